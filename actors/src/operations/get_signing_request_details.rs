use async_trait::async_trait;
use covault_core::{fault::Fault, schema::wire};

use super::{
    Call, Operation,
    lookup::{request, request_message},
};
use crate::simulations;

/// Reads a signing request.
pub struct GetSigningRequestDetails;

#[async_trait]
impl Operation for GetSigningRequestDetails {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.GetSigningRequestDetails";
    type Request = wire::GetSigningRequestDetailsRequest;
    type Response = wire::GetSigningRequestDetailsResponse;

    async fn run(call: Call<'_>, message: Self::Request) -> Result<Self::Response, Fault> {
        let (context, caller) = (call.context, call.caller);
        let request = request(context, caller, message.uuid.parse()?).await?;
        let simulation = simulations::shown(context, request.id).await?;
        let request = request_message(context, caller, &request, simulation);
        Ok(wire::GetSigningRequestDetailsResponse {
            signing_request: Some(request),
            error: None,
        })
    }
}
