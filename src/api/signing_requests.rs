//! Signing requests.

use covault_actors::gateway::{Command, Operation, Query, Receipt, View};
use covault_core::{fault::Fault, schema::wire};

use super::{Answer, Call, unexpected};

/// createSigningRequest.
pub async fn create(call: Call) -> Result<Answer, Fault> {
    let done = call
        .submit_once(
            Operation::CreateSigningRequest,
            Command::CreateSigningRequest,
        )
        .await?;
    call.answer_to(done, |receipt| match receipt {
        Receipt::SigningRequest(request) => Some(wire::CreateSigningRequestResponse {
            signing_request: Some(*request),
            error: None,
        }),
        _ => None,
    })
}

/// executeSigningRequests: waits for the outcome.
pub async fn execute(call: Call) -> Result<Answer, Fault> {
    let request: wire::ExecuteSigningRequestsRequest = call.request()?;
    let query = Query::Outcome {
        uuid: request.uuid,
        timeout_ms: call.api.execute_wait_ms,
    };
    match call.api.gateway.view(&call.caller, query).await? {
        View::Outcome(response) => call.answer(response.as_ref()),
        other => Err(unexpected(&other)),
    }
}

/// getSigningRequestDetails.
pub async fn details(call: Call) -> Result<Answer, Fault> {
    let request: wire::GetSigningRequestDetailsRequest = call.request()?;
    let query = Query::SigningRequest { uuid: request.uuid };
    match call.api.gateway.view(&call.caller, query).await? {
        View::SigningRequest(request) => call.answer(&wire::GetSigningRequestDetailsResponse {
            signing_request: Some(*request),
            error: None,
        }),
        other => Err(unexpected(&other)),
    }
}

/// getSigningRequestList.
pub async fn list(call: Call) -> Result<Answer, Fault> {
    let query = Query::SigningRequests(call.request()?);
    match call.api.gateway.view(&call.caller, query).await? {
        View::SigningRequests(requests) => call.answer(&wire::GetSigningRequestListResponse {
            signing_requests: requests,
            error: None,
        }),
        other => Err(unexpected(&other)),
    }
}

/// rejectSigningRequest.
pub async fn reject(call: Call) -> Result<Answer, Fault> {
    let request: wire::RejectSigningRequestRequest = call.request()?;
    let command = Command::RejectSigningRequest { uuid: request.uuid };
    let done = call.submit(command).await?;
    call.answer_to(done, |receipt| match receipt {
        Receipt::Rejected => Some(wire::RejectSigningRequestResponse { error: None }),
        _ => None,
    })
}

/// resimulation: tries the transaction of a pending request once more.
pub async fn resimulate(call: Call) -> Result<Answer, Fault> {
    let request: wire::ResimulationRequest = call.request()?;
    let command = Command::Resimulate {
        uuid: request.signing_request_uuid,
    };
    let done = call.submit(command).await?;
    call.answer_to(done, |receipt| match receipt {
        Receipt::Simulation(simulation) => Some(wire::ResimulationResponse {
            simulation,
            error: None,
        }),
        _ => None,
    })
}
