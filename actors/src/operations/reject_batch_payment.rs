use async_trait::async_trait;
use covault_core::{
    batch::{BatchEvent, BatchProgress, BatchStage, BatchState},
    fault::{Class, Fault},
    schema::admin,
};

use super::{Home, HomeLookup, Operation, OperationCall, batch};
use crate::{
    batches::outcome::{BatchOutcome, outcome},
    requests::batch_claim::BatchClaim,
    services::Services,
};

/// Most characters of a reason.
const MAX_REASON: usize = 500;

/// Ends a batch payment that nobody has approved, that could be resumed, or that stands still between its signing requests.
/// Of one that is on its way the signing requests are rejected.
pub struct RejectBatchPayment;

#[async_trait]
impl Operation for RejectBatchPayment {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.RejectBatchPayment";
    type Request = admin::RejectBatchPaymentRequest;
    type Response = admin::RejectBatchPaymentResponse;

    async fn home(lookup: &HomeLookup<'_>, message: &Self::Request) -> Result<Home, Fault> {
        batch::home(lookup, &message.uuid).await
    }

    async fn run(call: OperationCall<'_>, message: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        covault_core::field::label("reason", &message.reason, MAX_REASON)?;
        let (found, version) = batch::find(services, call.caller, &message.uuid).await?;
        batch::check_concerns(services, call.caller, &found).await?;
        let is_closable = match &found.state {
            BatchState::Pending
            | BatchState::Failed {
                resumable: true, ..
            } => true,
            BatchState::Approved(progress) => stands_still(services, progress).await?,
            BatchState::Succeeded(_) | BatchState::Failed { .. } => false,
        };
        if !is_closable {
            return Err(Fault::new(
                Class::WrongState,
                "the batch does not wait for approval; reject its signing request if that still waits",
            ));
        }
        let reason = match message.reason.as_str() {
            "" => "rejected".to_owned(),
            reason => format!("rejected: {reason}"),
        };
        let by = call.command_commit.by();
        let event = BatchEvent::Rejected { reason };
        let claim = BatchClaim::new(&found, version, event, by, services.now_ms())?;
        let rejected = claim.commit(services, &call.command_commit).await?;
        Ok(admin::RejectBatchPaymentResponse {
            batch_payment: Some(batch::whole_summary(services, &rejected).await?),
        })
    }
}

/// Whether none of its requests is on its way: the newest has set the allowance, or is not in the store any more. It is
/// closed for good then: that of a payment which is not in the store may have paid.
async fn stands_still(services: &Services, progress: &BatchProgress) -> Result<bool, Fault> {
    let Some(newest) = progress.requests.last() else {
        return Ok(true);
    };
    if services.request(newest.request).await?.is_none() {
        return Ok(true);
    }
    let outcome = outcome(services, newest.request).await?;
    Ok(newest.stage != BatchStage::Send && outcome == BatchOutcome::Final)
}
