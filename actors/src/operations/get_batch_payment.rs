use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{Operation, OperationCall, batch};

/// Reads a batch payment with its rows.
pub struct GetBatchPayment;

#[async_trait]
impl Operation for GetBatchPayment {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.GetBatchPayment";
    type Request = admin::GetBatchPaymentRequest;
    type Response = admin::GetBatchPaymentResponse;

    async fn run(call: OperationCall<'_>, message: Self::Request) -> Result<Self::Response, Fault> {
        let (found, _) = batch::find(call.services, call.caller, &message.uuid).await?;
        Ok(admin::GetBatchPaymentResponse {
            batch_payment: Some(batch::whole_summary(call.services, &found).await?),
            rows: batch::rows_of(&found)?,
        })
    }
}
