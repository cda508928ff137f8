//! Signing requests.

use covault_actors::gateway::{Command, Query, Receipt, View};
use covault_core::{
    fault::Fault,
    schema::{json, wire},
};

use crate::http::{Answer, Call, take, unexpected};

/// createSigningRequest.
pub async fn create(call: Call) -> Result<Answer, Fault> {
    let request = json::decode(&call.body)?;
    let command = Command::CreateSigningRequest(request);
    let done = call
        .api
        .gateway
        .submit(&call.caller, command, call.idempotency)
        .await?;
    let (receipt, replayed, mismatch) = take(done);
    let Receipt::SigningRequest(request) = receipt else {
        return Err(unexpected(&receipt));
    };
    let response = wire::CreateSigningRequestResponse {
        signing_request: Some(*request),
        error: None,
    };
    Ok(Answer::submitted(
        json::encode(&response)?,
        replayed,
        mismatch,
    ))
}

/// executeSigningRequests: waits for the outcome.
pub async fn execute(call: Call) -> Result<Answer, Fault> {
    let request: wire::ExecuteSigningRequestsRequest = json::decode(&call.body)?;
    let query = Query::Outcome {
        uuid: request.uuid,
        timeout_ms: call.api.execute_wait_ms,
    };
    match call.api.gateway.view(&call.caller, query).await? {
        View::Outcome(response) => Ok(Answer::new(json::encode(response.as_ref())?)),
        other => Err(unexpected(&other)),
    }
}

/// getSigningRequestDetails.
pub async fn details(call: Call) -> Result<Answer, Fault> {
    let request: wire::GetSigningRequestDetailsRequest = json::decode(&call.body)?;
    let query = Query::SigningRequest { uuid: request.uuid };
    match call.api.gateway.view(&call.caller, query).await? {
        View::SigningRequest(request) => {
            let response = wire::GetSigningRequestDetailsResponse {
                signing_request: Some(*request),
                error: None,
            };
            Ok(Answer::new(json::encode(&response)?))
        }
        other => Err(unexpected(&other)),
    }
}
