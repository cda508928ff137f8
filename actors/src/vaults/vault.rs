//! The actor of one vault: makes its keys, numbers its wallets, lets the requests of a wallet have
//! their turns, and keeps the actors of its live requests.

mod asking;
mod changes;
mod keys;
mod life;
mod message;
mod permit;
mod problems;
mod proving;
mod requests;
mod slots;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use async_trait::async_trait;
use covault_core::{
    attest::MadeKey,
    fault::Fault,
    ids::{RequestId, VaultId, WalletId},
    order::KeygenOrder,
    request::SigningRequest,
    schema::wire,
    scheme::Scheme,
    wallet::{
        WalletChange,
        vault::{KeyState, Vault},
    },
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use tokio::sync::watch;

pub use keys::KeyPlan;
pub use life::{Msg as ReshareMsg, ReshareRequest, SharesInUse};
pub use message::vault_message;
pub use permit::AdmissionPermit;
pub use slots::SlotRequest;

use crate::{
    account::ChainAccount,
    audit::AuditActor,
    backup::restore,
    commands::command_commit::CommandCommit,
    requests::{
        account_queues::AccountQueues,
        signing::{self, VaultRequests},
    },
    services::Services,
    store::{KeySpace, Scan, rows},
    vaults::{
        address_proofs::{ProofQueues, ShareHolders},
        wallets::{self, WalletPlan},
    },
};

/// Rows that one scan reads at most.
const PAGE: usize = 512;
/// Requests that are read at once when a vault starts.
const MAX_PARALLEL_READS: usize = 16;

pub enum Msg {
    /// Loads live requests and missing keys, and goes on with them.
    Resume,
    /// Makes a wallet.
    CreateWallet(Box<NewWallet>),
    /// Makes a wallet whose number another process on the store was faster to use; those from this
    /// one on may be free.
    NumberWallet(u32, Box<NewWallet>),
    /// Changes a wallet of the vault.
    UpdateWallet(
        WalletId,
        WalletChange,
        CommandCommit,
        RpcReplyPort<Result<wire::Wallet, Fault>>,
    ),
    /// Admits a request.
    Admit(Box<NewRequest>),
    /// Rejects a request that is not signed yet.
    Reject(RequestId, CommandCommit, RpcReplyPort<Result<(), Fault>>),
    /// A request that queued up when it was admitted is ready for its turn.
    RequestSlot(RequestId, Box<SlotRequest>),
    /// What the request's transaction uses up is on disk.
    Claimed(RequestId),
    /// The request cannot be built now; others need not wait for it.
    MoveToBack(RequestId),
    /// Keys that failed for good are wanted again.
    RetryKeygen(AuditActor, RpcReplyPort<Result<Vault, Fault>>),
    /// Keys that are not there are wanted of other nodes.
    ReplaceSigners(Box<KeyPlan>),
    /// A key is to be made (again).
    KeygenDue(Scheme),
    /// The cluster answered.
    KeygenEnded(Box<KeygenOrder>, Result<MadeKey, Fault>),
    /// About the shares of keys that are there.
    Reshare(ReshareMsg),
    /// Wallets without proof of their address are to get it; none may be there.
    ProofsDue,
    /// What came of that: whether there may be more.
    ProofsTried(Result<bool, Fault>),
    /// A wallet was made without proof of its address.
    ProofMissing,
    /// A request's actor is to be started again, unless it lives.
    RestartDue(RequestId),
}

/// A wallet to be made.
pub struct NewWallet {
    /// What the client wants.
    pub plan: WalletPlan,
    /// Where the receipt goes.
    pub reply: RpcReplyPort<Result<wire::Wallet, Fault>>,
}

/// A request to be admitted.
pub struct NewRequest {
    /// In state `Received`, checked.
    pub request: SigningRequest,
    /// The account in whose queue it has to wait.
    pub account_queue: Option<ChainAccount>,
    /// Whether it is to be sent once signed.
    pub broadcast: bool,
    /// The version of its wallet's row in which the wallet was active.
    pub wallet_version: u64,
    /// What is stored and demanded with it.
    pub command_commit: CommandCommit,
    /// Counts it as live.
    pub admission: AdmissionPermit,
    /// Where the receipt goes.
    pub reply: RpcReplyPort<Result<wire::SigningRequest, Fault>>,
}

pub struct VaultActor;

pub struct VaultState {
    services: Arc<Services>,
    vault: Vault,
    version: u64,
    next_index: u32,
    account_queues: AccountQueues<SlotRequest>,
    requests: HashMap<RequestId, ActorRef<signing::Msg>>,
    vault_requests: Arc<VaultRequests>,
    ids: HashMap<ActorId, RequestId>,
    /// How often the actor of a live request has failed.
    failures: HashMap<RequestId, u32>,
    keygens: keys::KeygenWorks,
    works: life::ReshareWorks,
    proof_queues: Arc<ProofQueues>,
    proving: proving::ProofWork,
    /// Why keys, or their next shares, are not there yet, as their rows say.
    problems: BTreeMap<Scheme, String>,
    in_use: watch::Sender<SharesInUse>,
}

#[async_trait]
impl Actor for VaultActor {
    type Msg = Msg;
    type State = VaultState;
    type Arguments = (Arc<Services>, VaultId);

    async fn pre_start(
        &self,
        myself: ActorRef<Msg>,
        (services, id): (Arc<Services>, VaultId),
    ) -> Result<VaultState, ActorProcessingErr> {
        let (vault, version) = services
            .vault(id)
            .await?
            .ok_or_else(|| Fault::bug("no such vault"))?;
        let next_index = restore::next_wallet(&services, id).await?;
        let problems = problems::load(&services, id).await?;
        // First in the mailbox: nobody else has the address yet.
        myself.cast(Msg::Resume)?;
        let works = life::ReshareWorks::new();
        Ok(VaultState {
            in_use: watch::channel(life::in_use(&vault, &works)).0,
            works,
            services,
            vault,
            version,
            next_index,
            account_queues: AccountQueues::default(),
            requests: HashMap::new(),
            vault_requests: Arc::default(),
            ids: HashMap::new(),
            failures: HashMap::new(),
            keygens: keys::KeygenWorks::new(),
            proof_queues: Arc::default(),
            proving: proving::ProofWork::default(),
            problems,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        live: &mut VaultState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Msg::Resume => live.resume(&myself).await?,
            Msg::CreateWallet(wallet) => live.create_wallet(&myself, *wallet),
            Msg::NumberWallet(next, wallet) => {
                live.next_index = live.next_index.max(next);
                live.create_wallet(&myself, *wallet);
            }
            Msg::UpdateWallet(wallet, change, command_commit, reply) => {
                let _ = reply.send(live.update_wallet(wallet, &change, &command_commit).await);
            }
            Msg::Admit(request) => live.admit(&myself, *request).await?,
            Msg::Reject(request, command_commit, reply) => {
                live.reject(request, command_commit, reply).await
            }
            Msg::RequestSlot(request, wanted) => {
                if let Some(account) = live.account_queues.mark_ready(request, *wanted) {
                    live.dispatch(&account).await;
                }
            }
            Msg::Claimed(request) => {
                if let Some(account) = live.account_queues.claimed(request) {
                    live.dispatch(&account).await;
                }
            }
            Msg::MoveToBack(request) => {
                if let Some(account) = live.account_queues.move_to_back(request) {
                    live.dispatch(&account).await;
                }
            }
            Msg::RetryKeygen(by, reply) => {
                let vault = live.retry_keygen(&myself, &by).await;
                let failed = vault.as_ref().err().cloned();
                let _ = reply.send(vault);
                if let Some(fault) = failed {
                    return Err(fault.into());
                }
            }
            Msg::ReplaceSigners(plan) => live.replace_signers(&myself, *plan).await?,
            Msg::KeygenDue(scheme) => live.start_keygen(&myself, scheme).await?,
            Msg::KeygenEnded(order, result) => live.keygen_ended(&myself, &order, result).await?,
            Msg::Reshare(message) => live.handle_reshare(&myself, message).await?,
            Msg::ProofsDue => live.prove(&myself),
            Msg::ProofsTried(tried) => live.proofs_tried(&myself, &tried),
            Msg::ProofMissing => live.proof_missing(&myself),
            Msg::RestartDue(request) => {
                if !live.requests.contains_key(&request) {
                    live.load_request(&myself, request).await?;
                }
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Msg>,
        event: SupervisionEvent,
        live: &mut VaultState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(actor, _, _) => {
                if let Some(request) = live.forget(actor.get_id()) {
                    live.failures.remove(&request);
                    live.leave_account_queue(request).await;
                }
            }
            SupervisionEvent::ActorFailed(actor, error) => {
                if let Some(request) = live.forget(actor.get_id()) {
                    tracing::error!(%request, %error, "the actor of a request failed; it starts again from the store");
                    live.leave_account_queue(request).await;
                    live.restart_later(&myself, request);
                }
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }
}

impl VaultState {
    /// The actor of a request has ended. Returns which request.
    fn forget(&mut self, actor: ActorId) -> Option<RequestId> {
        let request = self.ids.remove(&actor)?;
        self.requests.remove(&request);
        Some(request)
    }

    async fn resume(&mut self, myself: &ActorRef<Msg>) -> Result<(), Fault> {
        for key in &self.vault.keys {
            if matches!(key.state, KeyState::Wanted | KeyState::Generating(_)) {
                let _ = myself.cast(Msg::KeygenDue(key.scheme));
            }
        }
        self.forget_solved().await;
        self.resume_reshares(myself);
        self.prove(myself);
        let mut pending = Vec::new();
        let mut next = Some(Scan::prefix(
            KeySpace::Outbox,
            self.vault.id.as_bytes(),
            PAGE,
        ));
        while let Some(scan) = next {
            let page = self.services.store.scan(&scan).await?;
            let ids: Vec<_> = page
                .iter()
                .filter_map(|(key, _)| rows::outbox_request(key))
                .collect();
            // One after the other, a store on another machine would make a start after a crash last.
            let mut found = stream::iter(ids.into_iter().map(|id| self.load_readable(id)))
                .buffered(MAX_PARALLEL_READS);
            while let Some(request) = found.try_next().await? {
                pending.extend(request);
            }
            drop(found);
            next = scan.rest(&page);
        }
        // Turns follow the order of creation.
        pending.sort_by_key(|(request, _)| (request.created_at_ms, request.id));
        for (request, version) in pending {
            self.start_loaded(myself, request, version).await?;
        }
        Ok(())
    }

    /// Numbers the wallet and stores it in a task beside the actor: wallets share a commit.
    fn create_wallet(&mut self, myself: &ActorRef<Msg>, new: NewWallet) {
        let curve = new.plan.network.curve();
        let Some(holders) = ShareHolders::of(&self.vault, curve) else {
            let reason = match self.vault.failed_reason() {
                Some(reason) => {
                    format!("the vault has no {} key: {reason}", curve.name())
                }
                None => "the vault's keys are still being made; try again".into(),
            };
            let _ = new.reply.send(Err(Fault::unavailable(reason)));
            return;
        };
        let index = self.next_index;
        self.next_index = index.saturating_add(1);
        let services = Arc::clone(&self.services);
        let queues = Arc::clone(&self.proof_queues);
        let vault = self.vault.id;
        let actor = myself.clone();
        tokio::spawn(async move {
            let made = match wallets::make(&services, &queues, &holders, index, &new.plan).await {
                Ok(Some(made)) => {
                    if made.address_proof.is_none() {
                        let _ = actor.cast(Msg::ProofMissing);
                    }
                    Ok(made)
                }
                Ok(None) => match wallets::next_index(&services, vault).await {
                    Ok(next) => {
                        // Without an actor nobody gets an answer, and the caller asks again.
                        let _ = actor.cast(Msg::NumberWallet(next, Box::new(new)));
                        return;
                    }
                    Err(fault) => Err(fault),
                },
                Err(fault) => Err(fault),
            };
            // The command is done before anybody hears of it.
            let NewWallet { plan, reply } = new;
            drop(plan);
            let _ = reply.send(made);
        });
    }
}
