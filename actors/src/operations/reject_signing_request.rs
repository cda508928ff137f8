use async_trait::async_trait;
use covault_core::{fault::Fault, ids::RequestId, schema::wire};
use ractor::rpc::CallResult;

use super::{Home, HomeLookup, Operation, OperationCall, lookup::request};
use crate::{
    requests::signing::not_rejected,
    vaults::{vault, vault_actors::answer},
};

/// How often a request is looked at whose actor stopped while it was asked.
const TRIES: u32 = 6;

/// Ends a request that has not reached signing.
pub struct RejectSigningRequest;

#[async_trait]
impl Operation for RejectSigningRequest {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.RejectSigningRequest";
    type Request = wire::RejectSigningRequestRequest;
    type Response = wire::RejectSigningRequestResponse;

    async fn home(lookup: &HomeLookup<'_>, message: &Self::Request) -> Result<Home, Fault> {
        let Ok(id) = message.uuid.parse::<RequestId>() else {
            return Ok(Home::AnyProcess);
        };
        let request = lookup.services.request(id).await?;
        Ok(request.map(|(request, _)| request.vault).into())
    }

    async fn run(call: OperationCall<'_>, message: Self::Request) -> Result<Self::Response, Fault> {
        let id = message.uuid.parse()?;
        for _ in 0..TRIES {
            let request = request(call.services, call.caller, id).await?;
            if let Some(reason) = request.state.past_rejection() {
                return Err(not_rejected(reason));
            }
            let actor = call.vaults.vault(request.vault).await?;
            let message = |reply| vault::Msg::Reject(id, call.command_commit.clone(), reply);
            match actor.call(message, call.services.call_timeout()).await {
                // The request's actor ended before it read the message: the store says how.
                Ok(CallResult::SenderError) => {}
                outcome => {
                    answer(outcome)??;
                    return Ok(wire::RejectSigningRequestResponse { error: None });
                }
            }
        }
        Err(Fault::unavailable(
            "the request is restarting; read its state before retrying",
        ))
    }
}
