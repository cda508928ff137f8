use async_trait::async_trait;
use covault_core::{fault::Fault, schema::wire};

use super::{
    Operation, OperationCall,
    lookup::{FoundRequest, find, shown_request},
};
/// Reads a signing request.
pub struct GetSigningRequestDetails;

#[async_trait]
impl Operation for GetSigningRequestDetails {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.GetSigningRequestDetails";
    type Request = wire::GetSigningRequestDetailsRequest;
    type Response = wire::GetSigningRequestDetailsResponse;

    async fn run(call: OperationCall<'_>, message: Self::Request) -> Result<Self::Response, Fault> {
        let (services, caller) = (call.services, call.caller);
        let request = match find(services, caller, message.uuid.parse()?).await? {
            FoundRequest::Request(request) => request,
            FoundRequest::Management(shown) => {
                return Ok(wire::GetSigningRequestDetailsResponse {
                    signing_request: Some(*shown),
                    error: None,
                });
            }
        };
        let request = shown_request(services, caller, &request).await?;
        Ok(wire::GetSigningRequestDetailsResponse {
            signing_request: Some(request),
            error: None,
        })
    }
}
