use async_trait::async_trait;
use covault_core::{
    fault::{Class, Fault, FaultCode},
    networks::Payload,
    request::check_notes,
    schema::wire,
};

use super::{
    Home, HomeLookup, Operation, OperationCall,
    lookup::{client_signer, vault_of_address},
};
use crate::{
    commands::caller::{in_scope, vault_in_scope},
    store::rows,
    vaults::admission::{ProposalContent, SigningProposal, admit},
};

/// Stores a signing request and hands it to its vault. Answers when it is stored.
pub struct CreateSigningRequest;

#[async_trait]
impl Operation for CreateSigningRequest {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.CreateSigningRequest";
    type Request = wire::CreateSigningRequestRequest;
    type Response = wire::CreateSigningRequestResponse;

    async fn home(lookup: &HomeLookup<'_>, request: &Self::Request) -> Result<Home, Fault> {
        let payload = request.r#type.as_ref().map(Payload::parse);
        Ok(match payload {
            Some(Ok(payload)) => vault_of_address(lookup.services, payload.from())
                .await?
                .into(),
            _ => Home::AnyProcess,
        })
    }

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let wire::CreateSigningRequestRequest {
            notes,
            vault_uuid,
            callback_client_signer_public_key,
            broadcast_tx,
            r#type: kind,
        } = request;
        let kind = kind.ok_or_else(|| {
            Fault::new(Class::Invalid, "exactly one payload kind is required")
                .with_code(FaultCode::Payload)
        })?;
        let payload = Payload::parse(&kind)?;
        check_notes(notes.as_deref())?;
        let vault = match vault_uuid.as_deref() {
            None | Some("") => None,
            Some(uuid) => Some(vault_in_scope(call.caller, uuid)?),
        };
        let client_signer = client_signer(callback_client_signer_public_key.as_deref())?;
        let from = format!("{}.from", payload.kind());
        let (wallet, wallet_version) = call
            .services
            .hot_wallet_by(&rows::wallet_address(payload.from()))
            .await?
            .filter(|(wallet, _)| in_scope(call.caller, wallet.vault))
            .ok_or_else(|| Fault::field(&from, "is not the address of a wallet"))?;
        if vault.is_some_and(|vault| vault != wallet.vault) {
            return Err(Fault::field(&from, "is not a wallet of this vault"));
        }
        let proposal = SigningProposal {
            content: ProposalContent::Payload {
                payload,
                broadcast: broadcast_tx.unwrap_or(true),
            },
            wallet,
            wallet_version,
            notes,
            token: call.caller.token,
            client_signer,
            command_commit: call.command_commit.clone(),
        };
        Ok(wire::CreateSigningRequestResponse {
            signing_request: Some(admit(call.vaults, proposal).await?),
            error: None,
        })
    }
}
