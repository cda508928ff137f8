use async_trait::async_trait;
use covault_core::{
    batch::{BatchEvent, BatchState},
    fault::{Class, Fault},
    schema::admin,
};

use super::{Home, HomeLookup, Operation, OperationCall, batch};
use crate::requests::batch_claim::BatchClaim;

/// Most characters of a reason.
const MAX_REASON: usize = 500;

/// Ends a batch payment that nobody has approved, or that could be resumed. Of one that is on its way the signing
/// requests are rejected.
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
        let is_closable = matches!(
            found.state,
            BatchState::Pending
                | BatchState::Failed {
                    resumable: true,
                    ..
                }
        );
        if !is_closable {
            return Err(Fault::new(
                Class::WrongState,
                "the batch waits for nobody; reject its signing request, if that one still waits",
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
            batch_payment: Some(batch::summary(&rejected)?),
        })
    }
}
