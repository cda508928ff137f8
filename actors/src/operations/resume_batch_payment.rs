use async_trait::async_trait;
use covault_core::{
    batch::{BatchEvent, BatchStage, BatchState},
    fault::{Class, Fault},
    schema::admin,
};

use super::{Home, HomeLookup, Operation, OperationCall, batch};
use crate::{
    batches::{
        outcome::{BatchOutcome, outcome},
        start::{self, LoadedBatch},
    },
    requests::batch_claim::BatchClaim,
};

/// Tries a failed batch payment again. None of the requests that were to pay may ever do it. One that has paid
/// nevertheless ends the batch as paid.
pub struct ResumeBatchPayment;

#[async_trait]
impl Operation for ResumeBatchPayment {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.ResumeBatchPayment";
    type Request = admin::ResumeBatchPaymentRequest;
    type Response = admin::ResumeBatchPaymentResponse;

    async fn home(lookup: &HomeLookup<'_>, message: &Self::Request) -> Result<Home, Fault> {
        batch::home(lookup, &message.uuid).await
    }

    async fn run(call: OperationCall<'_>, message: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        let refused = |why: String| Err(Fault::new(Class::WrongState, why));
        let (found, version) = batch::find(services, call.caller, &message.uuid).await?;
        let (progress, reason, resumable) = match &found.state {
            BatchState::Failed {
                progress,
                reason,
                resumable,
            } => (progress, reason, *resumable),
            BatchState::Pending => return refused("the batch was not approved yet".to_owned()),
            BatchState::Approved(_) => return refused("the batch is on its way".to_owned()),
            BatchState::Succeeded(_) => return refused("the batch was paid".to_owned()),
        };
        // What was certain when it failed is looked at again: nothing is paid twice.
        for made in &progress.requests {
            if made.stage != BatchStage::Send {
                continue;
            }
            match outcome(services, made.request).await? {
                BatchOutcome::Void { certain: true, .. } => {}
                BatchOutcome::Final => {
                    let (by, now_ms) = (call.command_commit.by(), services.now_ms());
                    let event = BatchEvent::PaymentSent;
                    let claim = BatchClaim::new(&found, version, event, by, now_ms)?;
                    let paid = claim.commit(services, &call.command_commit).await?;
                    return Ok(admin::ResumeBatchPaymentResponse {
                        batch_payment: Some(batch::whole_summary(services, &paid).await?),
                    });
                }
                _ => {
                    return refused(format!(
                        "request {} may have paid the batch, or may still do it",
                        made.request
                    ));
                }
            }
        }
        if !resumable {
            return refused(format!("the batch cannot be resumed: {reason}"));
        }
        let signer = progress.client_signer;
        batch::check_people_approve(services, call.caller, &found, signer).await?;
        let stage = start::first_stage(services, &found).await?;
        let read = LoadedBatch {
            batch: &found,
            version,
            progress,
            client_signer: progress.client_signer,
        };
        let commit = call.command_commit.clone();
        start::make(call.vaults, read, stage, BatchEvent::Resumed, commit).await?;
        let (found, _) = batch::find(services, call.caller, &message.uuid).await?;
        Ok(admin::ResumeBatchPaymentResponse {
            batch_payment: Some(batch::whole_summary(services, &found).await?),
        })
    }
}
