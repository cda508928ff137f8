//! How a checked payload becomes a signing request of its vault, no matter who asks for it: a client, or the policy of a
//! chain.

use std::{collections::BTreeSet, sync::Arc};

use covault_core::{
    fault::{ExecuteCode, Fault},
    ids::{RequestId, TokenId, VaultId},
    networks::{Network, Payload},
    order::NodeId,
    request::{Consent, RequestState, SigningRequest},
    schema::wire,
    wallet::{Wallet, WalletStatus},
};
use ractor::rpc::CallResult;

use super::{
    capacity::CapacityDemand,
    directory,
    vault::{self, AdmissionPermit, NewRequest},
    vault_actors::{VaultActors, answer},
    wallets,
};
use crate::{
    audit::AuditActor,
    chain_rpc::ChainKey,
    commands::command_commit::CommandCommit,
    port::ForeseenRequest,
    requests::{
        batch_claim::BatchClaim, recipients, replacing::ReplacementPlan, sweep_claim::SweepClaim,
        tx_builder,
    },
    services::Services,
};

/// How often a request is looked for whose creation ended without an answer.
const MAX_RESTARTS: u32 = 6;

/// What is to be signed, by which wallet.
pub struct SigningProposal {
    /// What.
    pub content: ProposalContent,
    /// By which wallet, whose address is the payload's.
    pub wallet: Wallet,
    /// The version of its row.
    pub wallet_version: u64,
    /// Notes for people.
    pub notes: Option<String>,
    /// The token that asks, or in whose name the service does.
    pub token: TokenId,
    /// The client signer that decides, where the client names one.
    pub client_signer: Option<NodeId>,
    /// Goes into the first commit.
    pub command_commit: CommandCommit,
}

/// What is to be signed.
pub enum ProposalContent {
    /// What a client made.
    Payload {
        /// The payload.
        payload: Payload,
        /// Whether it is to be sent once signed, where its kind can be.
        broadcast: bool,
    },
    /// What takes the place of an earlier transaction; always sent.
    Replacement(ReplacementPlan),
    /// What an approved batch payment is made of; always sent.
    BatchRequest {
        /// The payload.
        payload: Payload,
        /// The id that it gets.
        request: RequestId,
        /// The batch in its next state.
        claim: BatchClaim,
    },
    /// What uses a number of its account that no request uses; always sent. Refused when one does, or may get it.
    GapFiller {
        /// The payload, which names no number.
        payload: Payload,
        /// The number.
        number: u64,
    },
    /// A step of a sweep; always sent.
    Sweep {
        /// The payload.
        payload: Payload,
        /// The sweep, as it is once this is stored.
        claim: SweepClaim,
    },
}

/// Stores a request and hands it to its vault. Answers when it is stored.
///
/// # Errors
/// Any class; faults name fields of the payload's kind.
pub async fn admit(
    vaults: &VaultActors,
    proposal: SigningProposal,
) -> Result<wire::SigningRequest, Fault> {
    let SigningProposal {
        content,
        wallet,
        wallet_version,
        notes,
        token,
        client_signer,
        command_commit,
    } = proposal;
    let services = &vaults.services;
    let (mut batch, mut named) = (None, None);
    let mut sweep = None;
    let (payload, broadcast, replacement, gap) = match content {
        ProposalContent::Payload { payload, broadcast } => (payload, broadcast, None, None),
        ProposalContent::Sweep { payload, claim } => {
            sweep = Some(claim);
            (payload, true, None, None)
        }
        ProposalContent::Replacement(plan) => {
            let replacement = (plan.replaces, plan.claim);
            (plan.payload, true, Some(replacement), None)
        }
        ProposalContent::BatchRequest {
            payload,
            request,
            claim,
        } => {
            (batch, named) = (Some(claim), Some(request));
            (payload, true, None, None)
        }
        ProposalContent::GapFiller { payload, number } => (payload, true, None, Some(number)),
    };
    let (replaces, replacement) = replacement.unzip();
    payload.check_wallet(wallet.network)?;
    payload.screen(&services.known)?;
    if wallet.status == WalletStatus::Archived {
        return Err(wallets::archived(format!("{}.from", payload.kind())));
    }
    if broadcast && let Some(other) = payload.missing_signer() {
        let problem = format_args!(
            "must be false: {other} has to sign too, and its signature is not in the request"
        );
        return Err(Fault::field("broadcastTx", problem));
    }
    let broadcast = broadcast && payload.may_broadcast(&services.known);
    if batch.is_some() && !broadcast {
        return Err(Fault::bug("a batch whose payment is not sent"));
    }
    let (vault, _) = services
        .hot_vault(wallet.vault)
        .await?
        .ok_or_else(|| Fault::bug("a wallet without a vault"))?;
    let rule = vault.approval.of_wallet(&wallet.address);
    let client_signer = match replaces.is_some() || gap.is_some() {
        true => rule.still_named(client_signer),
        false => client_signer,
    };
    if let Some(signer) = client_signer {
        vault.check_client_signer(wallet.network.curve(), signer)?;
    }
    let root = vault
        .root(wallet.network.curve())
        .ok_or_else(|| Fault::bug("a wallet without a root key"))?;
    let queries = tx_builder::queries(services, wallet.network, &payload);
    let asks = tx_builder::local_chain_data(services, &payload, &queries).is_none();
    let demand = CapacityDemand {
        vault: &vault,
        token,
        client_signer,
        network: wallet.network,
        payload: &payload,
        asks,
    };
    // What replaces another transaction, or fills a gap before others, is never refused for this: it frees what waits
    // behind that.
    if replaces.is_none() && gap.is_none() {
        demand.check(services)?;
    }
    // In a crowd most are refused by then: this may have to read the vault's own wallets.
    foresee(services, &wallet, &payload).await?;
    let chain_wait = demand.enter(services);
    let request = SigningRequest {
        id: sweep
            .as_ref()
            .map(|claim| claim.request)
            .or(named)
            .unwrap_or_else(|| services.new_request_id()),
        vault: wallet.vault,
        wallet: wallet.id,
        network: wallet.network,
        root_public_key: root.public_key.clone(),
        path: wallet.path,
        public_key: wallet.public_key,
        address: wallet.address,
        payload: payload.encode(),
        notes,
        token,
        replaces,
        created_at_ms: services.now_ms(),
        consent: Consent::new(match client_signer {
            Some(signer) => rule.of_client_signer(signer),
            None => rule,
        }),
        state: RequestState::Received,
    };
    if (asks || broadcast)
        && services
            .chains
            .get(request.network, payload.chain_id())
            .is_none()
    {
        return Err(no_node(&payload, request.network, asks));
    }
    let admission = AdmissionPermit::new(services, &request, chain_wait)?;
    let actor = vaults.vault(request.vault).await?;
    let account_queue = tx_builder::account_queue(&request, &payload, &queries);
    let (vault, id) = (request.vault, request.id);
    let message = |reply| {
        vault::Msg::Admit(Box::new(NewRequest {
            request,
            account_queue,
            broadcast,
            wallet_version,
            replacement,
            batch,
            sweep,
            gap,
            command_commit,
            admission,
            reply,
        }))
    };
    let outcome = actor.call(message, services.call_timeout()).await;
    if matches!(outcome, Ok(CallResult::Timeout | CallResult::SenderError)) {
        restart_until_stored(vaults, vault, id);
    }
    answer(outcome)?
}

/// Refuses what signers are known to refuse.
async fn foresee(services: &Services, wallet: &Wallet, payload: &Payload) -> Result<(), Fault> {
    let of = (wallet.vault, wallet.network);
    let foresee = |own_wallets: &BTreeSet<String>| {
        services.signers.foresee(&ForeseenRequest {
            vault: of.0,
            network: of.1,
            payload,
            own_wallets,
        })
    };
    let refused = match foresee(&BTreeSet::new()) {
        Err(fault) if fault.execute_code() == ExecuteCode::AddressNotInWhitelist => fault,
        outcome => return outcome,
    };
    // Only now does it matter who of them is the vault's own.
    let own = recipients::own_wallets(services, of, payload, &[]).await?;
    if own.is_empty() {
        return Err(refused);
    }
    foresee(&own.into_keys().collect())
}

/// As [`admit`], for a request that the service itself makes because of what became of `about`, in the name of the
/// same token. Gives its uuid; `None` where the wallet is archived.
///
/// # Errors
/// As [`admit`].
pub async fn admit_own(
    vaults: &VaultActors,
    about: &SigningRequest,
    content: ProposalContent,
    notes: String,
) -> Result<Option<String>, Fault> {
    let (wallet, wallet_version) = vaults.services.wallet(about.wallet).await?;
    if wallet.status == WalletStatus::Archived {
        return Ok(None);
    }
    let proposal = SigningProposal {
        content,
        wallet,
        wallet_version,
        notes: Some(notes),
        token: about.token,
        client_signer: about.consent.rule.client_signer(),
        command_commit: CommandCommit::new(AuditActor::service(), None, None),
    };
    Ok(Some(admit(vaults, proposal).await?.uuid))
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
