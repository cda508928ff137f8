use async_trait::async_trait;
use covault_core::{batch::BatchPayment, fault::Fault, ids::BatchId, schema::wire};

use super::{Operation, OperationCall};
use crate::{commands::caller::in_scope, store::rows};

/// Reads a batch payment.
pub struct GetBatchPaymentDetails;

#[async_trait]
impl Operation for GetBatchPaymentDetails {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.GetBatchPaymentDetails";
    type Request = wire::GetBatchPaymentDetailsRequest;
    type Response = wire::GetBatchPaymentDetailsResponse;

    async fn run(call: OperationCall<'_>, message: Self::Request) -> Result<Self::Response, Fault> {
        let id: BatchId = message.uuid.parse()?;
        let batch = call.services.load::<BatchPayment>(&rows::batch(id)).await?;
        let batch = batch
            .map(|(batch, _)| batch)
            .filter(|batch| in_scope(call.caller, batch.vault))
            .ok_or_else(Fault::invalid_uuid)?;
        Ok(wire::GetBatchPaymentDetailsResponse {
            batch_payment: Some(batch.to_wire()),
            error: None,
        })
    }
}
