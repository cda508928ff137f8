use std::sync::Arc;

use async_trait::async_trait;
use covault_core::{
    fault::{Class, Fault},
    ids::{RequestId, VaultId},
    networks::{Network, Payload},
    request::{RequestState, SigningRequest},
    schema::wire,
    wallet::WalletStatus,
};
use ractor::rpc::CallResult;

use super::{
    Home, HomeLookup, Operation, OperationCall,
    lookup::{refuse_client_signer, vault_of_address},
};
use crate::{
    chain_rpc::ChainKey,
    commands::caller::{in_scope, vault_in_scope},
    requests::tx_builder,
    store::rows,
    vaults::{
        directory,
        vault::{self, AdmissionPermit, NewRequest},
        vault_actors::{VaultActors, answer, too_many},
        wallets,
    },
};

/// How often a request is looked for whose creation ended without an answer.
const MAX_RESTARTS: u32 = 6;

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
        let services = call.services;
        let wire::CreateSigningRequestRequest {
            notes,
            vault_uuid,
            callback_client_signer_public_key,
            broadcast_tx,
            r#type: kind,
        } = request;
        let kind =
            kind.ok_or_else(|| Fault::new(Class::Invalid, "exactly one payload kind is required"))?;
        let payload = Payload::parse(&kind)?;
        let vault = match vault_uuid.as_deref() {
            None | Some("") => None,
            Some(uuid) => Some(vault_in_scope(call.caller, uuid)?),
        };
        refuse_client_signer(callback_client_signer_public_key.as_deref())?;
        let from = format!("{}.from", payload.kind());
        let (wallet, wallet_version) = services
            .wallet_by(&rows::wallet_address(payload.from()))
            .await?
            .filter(|(wallet, _)| in_scope(call.caller, wallet.vault))
            .ok_or_else(|| Fault::field(&from, "is not the address of a wallet"))?;
        if vault.is_some_and(|vault| vault != wallet.vault) {
            return Err(Fault::field(&from, "is not a wallet of this vault"));
        }
        payload.check_wallet(wallet.network)?;
        payload.screen(&services.known)?;
        if wallet.status == WalletStatus::Archived {
            return Err(wallets::archived(from));
        }
        let broadcast = broadcast_tx.unwrap_or(true) && payload.may_broadcast(&services.known);
        let (vault, _) = services
            .vault(wallet.vault)
            .await?
            .ok_or_else(|| Fault::bug("a wallet without a vault"))?;
        let root = vault
            .root(wallet.network.curve())
            .ok_or_else(|| Fault::bug("a wallet without a root key"))?;
        let request = SigningRequest {
            id: services.new_request_id(),
            vault: wallet.vault,
            wallet: wallet.id,
            network: wallet.network,
            root_public_key: root.public_key.clone(),
            path: wallet.path,
            public_key: wallet.public_key,
            address: wallet.address,
            payload: payload.encode(),
            notes,
            token: call.caller.token,
            created_at_ms: services.now_ms(),
            state: RequestState::Received,
        };
        let queries = tx_builder::queries(services, request.network, &payload);
        let asks = tx_builder::local_chain_data(services, &payload, &queries).is_none();
        if (asks || broadcast)
            && services
                .chains
                .get(request.network, payload.chain_id())
                .is_none()
        {
            return Err(no_node(&payload, request.network, asks));
        }
        let admission = AdmissionPermit::new(services, &request).ok_or_else(too_many)?;
        let actor = call.vaults.vault(request.vault).await?;
        let account_queue = tx_builder::account_queue(&request, &payload, &queries);
        let (vault, id) = (request.vault, request.id);
        let command_commit = call.command_commit.clone();
        let message = |reply| {
            vault::Msg::Admit(Box::new(NewRequest {
                request,
                account_queue,
                broadcast,
                wallet_version,
                command_commit,
                admission,
                reply,
            }))
        };
        let outcome = actor.call(message, services.call_timeout()).await;
        if matches!(outcome, Ok(CallResult::Timeout | CallResult::SenderError)) {
            restart_until_stored(call.vaults, vault, id);
        }
        Ok(wire::CreateSigningRequestResponse {
            signing_request: Some(answer(outcome)??),
            error: None,
        })
    }
}

/// Has a request looked for whose creation ended without an answer: its first commit may
/// come after its vault has looked for live requests.
fn restart_until_stored(vaults: &VaultActors, vault: VaultId, request: RequestId) {
    let services = Arc::clone(&vaults.services);
    let directory = vaults.directory.clone();
    tokio::spawn(async move {
        for tries in 0..MAX_RESTARTS {
            tokio::time::sleep(services.backoff(tries)).await;
            let Some(directory) = directory.borrow().clone() else {
                continue;
            };
            let message = |reply| directory::Msg::GetVault(vault, reply);
            if let Ok(CallResult::Success(Some(actor))) =
                directory.call(message, services.call_timeout()).await
            {
                let _ = actor.cast(vault::Msg::RestartDue(request));
            }
        }
    });
}

fn no_node(payload: &Payload, network: Network, asks: bool) -> Fault {
    let chain = ChainKey::of(network, payload.chain_id());
    let way_out = if asks {
        "the operator has to configure one"
    } else {
        "set broadcastTx to false to get the signed transaction"
    };
    let problem = format!("{}; {way_out}", chain.without_node());
    match chain.chain_id {
        Some(_) => Fault::field(format!("{}.chainId", payload.kind()), problem),
        None => Fault::field(payload.kind(), problem),
    }
}
