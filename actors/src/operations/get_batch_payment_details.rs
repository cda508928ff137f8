use async_trait::async_trait;
use covault_core::{fault::Fault, ids::RequestId, schema::wire};

use super::{
    Operation, OperationCall, batch,
    lookup::{request, shown_request},
};

/// Reads a batch payment with its signing requests.
pub struct GetBatchPaymentDetails;

#[async_trait]
impl Operation for GetBatchPaymentDetails {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.GetBatchPaymentDetails";
    type Request = wire::GetBatchPaymentDetailsRequest;
    type Response = wire::GetBatchPaymentDetailsResponse;

    async fn run(call: OperationCall<'_>, message: Self::Request) -> Result<Self::Response, Fault> {
        let (found, _) = batch::find(call.services, call.caller, &message.uuid).await?;
        let mut shown = found.to_wire();
        if let Some(progress) = found.state.progress() {
            shown.approval_signing_request = read(&call, progress.allowance()).await?;
            shown.send_signing_request = read(&call, progress.send()).await?;
        }
        Ok(wire::GetBatchPaymentDetailsResponse {
            batch_payment: Some(shown),
            error: None,
        })
    }
}

async fn read(
    call: &OperationCall<'_>,
    id: Option<RequestId>,
) -> Result<Option<wire::SigningRequest>, Fault> {
    let Some(id) = id else {
        return Ok(None);
    };
    let request = request(call.services, call.caller, id).await?;
    Ok(Some(
        shown_request(call.services, call.caller, &request).await?,
    ))
}
