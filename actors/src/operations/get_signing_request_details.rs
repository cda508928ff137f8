use async_trait::async_trait;
use covault_core::{fault::Fault, schema::wire};

use super::{Operation, OperationCall, lookup::shown};

/// Reads a signing request.
pub struct GetSigningRequestDetails;

#[async_trait]
impl Operation for GetSigningRequestDetails {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.GetSigningRequestDetails";
    type Request = wire::GetSigningRequestDetailsRequest;
    type Response = wire::GetSigningRequestDetailsResponse;

    async fn run(call: OperationCall<'_>, message: Self::Request) -> Result<Self::Response, Fault> {
        let request = shown(call.services, call.caller, message.uuid.parse()?).await?;
        Ok(wire::GetSigningRequestDetailsResponse {
            signing_request: Some(request),
            error: None,
        })
    }
}
