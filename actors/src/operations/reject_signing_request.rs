use std::collections::BTreeSet;

use async_trait::async_trait;
use covault_core::{
    approval::{ApprovalProof, Rejection},
    fault::Fault,
    ids::RequestId,
    request::RequestState,
    schema::wire,
    signature::Curve,
};
use ractor::rpc::CallResult;

use super::{
    Home, HomeLookup, Operation, OperationCall,
    lookup::{request, vault_of_request},
    person,
};
use crate::{
    requests::signing::{REJECTED, not_rejected},
    vaults::{vault, vault_actors::answer},
};

/// How often a request is looked at whose actor stopped while it was asked.
const TRIES: u32 = 6;

/// Ends a request that has not reached signing, in the name of the token or of a person who may approve it; or gives up one whose client has its transaction.
pub struct RejectSigningRequest;

#[async_trait]
impl Operation for RejectSigningRequest {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.RejectSigningRequest";
    type Request = wire::RejectSigningRequestRequest;
    type Response = wire::RejectSigningRequestResponse;

    async fn home(lookup: &HomeLookup<'_>, message: &Self::Request) -> Result<Home, Fault> {
        vault_of_request(lookup, &message.uuid).await
    }

    async fn run(call: OperationCall<'_>, message: Self::Request) -> Result<Self::Response, Fault> {
        let id = message.uuid.parse()?;
        let rejection = rejection(message.rejection)?;
        let rejected = reject(&call, id, rejection.as_ref(), &[id], "").await;
        if let Some(proof) = rejection {
            tell_signers(&call, &[id], proof).await;
        }
        rejected?;
        Ok(wire::RejectSigningRequestResponse { error: None })
    }
}

/// A person's rejection, where the call brings one.
pub(super) fn rejection(
    message: Option<wire::PersonProof>,
) -> Result<Option<ApprovalProof>, Fault> {
    let proof = message.map(|proof| person::proof(Some(proof))).transpose();
    proof.map_err(|fault| fault.with_prefix("rejection"))
}

/// Rejects one request, in the name of the token or of who has signed the rejection of all that are rejected `together`;
/// `why` may be empty.
///
/// # Errors
/// [`covault_core::fault::Class::Invalid`] naming the field, [`covault_core::fault::Class::WrongState`] when it is too
/// late.
pub(super) async fn reject(
    call: &OperationCall<'_>,
    id: RequestId,
    rejection: Option<&ApprovalProof>,
    together: &[RequestId],
    why: &str,
) -> Result<(), Fault> {
    for _ in 0..TRIES {
        let request = request(call.services, call.caller, id).await?;
        if let Some(reason) = request.state.past_rejection() {
            return Err(not_rejected(reason));
        }
        let reason = match rejection {
            Some(proof) => {
                let person = request.check_rejection(proof, together);
                let person = person.map_err(|fault| fault.with_prefix("rejection"))?;
                format!("rejected by {person} (rejectSigningRequest)")
            }
            None => REJECTED.to_owned(),
        };
        let reason = match why {
            "" => reason,
            why => format!("{reason}: {why}"),
        };
        let actor = call.vaults.vault(request.vault).await?;
        let commit = call.command_commit.clone();
        let message = |reply| vault::Msg::Reject(id, reason, commit, reply);
        match actor.call(message, call.services.call_timeout()).await {
            // The request's actor ended before it read the message: the store says how.
            Ok(CallResult::SenderError) => {}
            outcome => return answer(outcome)?,
        }
    }
    Err(Fault::unavailable(
        "the request is restarting; read its state before retrying",
    ))
}

/// Tells the signers of the vault what a person has rejected, once that is stored: they verify it themselves, and do not sign
/// it even for an orchestrator that no longer obeys. Those that do not hear of it continue as before; a repeated
/// call tells them again.
///
/// Nobody is told where one of the requests continues, or is none that this caller and this person could reject: signers
/// stop all that is in the list.
pub(super) async fn tell_signers(
    call: &OperationCall<'_>,
    requests: &[RequestId],
    proof: ApprovalProof,
) {
    let told = async {
        let services = call.services;
        let mut of_vault = None;
        for id in requests {
            let request = request(services, call.caller, *id).await?;
            request.check_rejection(&proof, requests)?;
            let goes_on = !matches!(request.state, RequestState::Failed { .. });
            if goes_on || *of_vault.get_or_insert(request.vault) != request.vault {
                return Ok(());
            }
        }
        let vault = of_vault.ok_or_else(Fault::invalid_uuid)?;
        let rejection = Rejection {
            vault,
            requests: requests.to_vec(),
            proof,
        };
        let vault = services.hot_vault(vault).await?;
        let (vault, _) = vault.ok_or_else(Fault::invalid_uuid)?;
        let generations = Curve::ALL
            .into_iter()
            .filter_map(|curve| vault.generation(curve));
        let holders: BTreeSet<_> = generations.flat_map(|it| it.holders.clone()).collect();
        let holders: Vec<_> = holders.into_iter().collect();
        let session = services.new_session_id();
        let told = services
            .signers
            .tell_of_rejection(&rejection, session, &holders);
        told.await
    };
    if let Err(fault) = told.await {
        tracing::warn!(
            ?requests,
            ?fault,
            "not all signers could be told of a rejection"
        );
    }
}
