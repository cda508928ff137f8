use async_trait::async_trait;
use covault_core::{
    fault::{Class, Fault},
    ids::RequestId,
    request::{RequestState, SigningRequest},
    schema::wire,
};

use super::{
    Home, HomeLookup, Operation, OperationCall,
    lookup::{request, request_message, vault_of_request},
    person,
};
use crate::vaults::vault::{self, NewApproval, not_waiting};

/// Records a person's approval of a request that waits for it, once its proof is checked. Who calls does not matter:
/// a token approves nothing.
pub struct ApproveSigningRequest;

#[async_trait]
impl Operation for ApproveSigningRequest {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.ApproveSigningRequest";
    type Request = wire::ApproveSigningRequestRequest;
    type Response = wire::ApproveSigningRequestResponse;

    async fn home(lookup: &HomeLookup<'_>, message: &Self::Request) -> Result<Home, Fault> {
        vault_of_request(lookup, &message.uuid).await
    }

    async fn run(call: OperationCall<'_>, message: Self::Request) -> Result<Self::Response, Fault> {
        let approved = approve(&call, message.uuid.parse()?, message.approval).await?;
        let shown = request_message(call.services, call.caller, &approved, None, None, None);
        Ok(wire::ApproveSigningRequestResponse {
            error: None,
            signing_request: Some(shown),
        })
    }
}

/// Records an approval of one request. The request as it is then.
///
/// # Errors
/// [`Class::Invalid`] naming the field, [`Class::WrongState`] when it does not wait.
pub(super) async fn approve(
    call: &OperationCall<'_>,
    id: RequestId,
    approval: Option<wire::Approval>,
) -> Result<SigningRequest, Fault> {
    let services = call.services;
    let asked = request(services, call.caller, id).await?;
    match (&asked.state, not_waiting(&asked.state)) {
        (RequestState::Succeeded { .. }, _) => return Ok(asked),
        (_, Some(problem)) => return Err(Fault::new(Class::WrongState, problem)),
        (_, None) => {}
    }
    let (terms, given) = person::approval(approval)?;
    let approval = asked
        .check_approval(terms, given, services.now_ms())
        .map_err(|fault| fault.with_prefix("approval"))?;
    let actor = call.vaults.vault(asked.vault).await?;
    let command_commit = call.command_commit.clone();
    let new = |reply| NewApproval {
        request: id,
        approval,
        command_commit,
        reply,
    };
    call.ask(&actor, |reply| vault::Msg::Approve(Box::new(new(reply))))
        .await?
}
