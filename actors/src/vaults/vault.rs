//! The actor of one vault: makes its keys, numbers its wallets, lets the requests of a wallet have
//! their turns, and keeps the actors of its live requests.

mod approving;
mod asking;
mod changes;
mod keys;
mod life;
mod message;
mod permit;
mod progress;
mod proving;
mod requests;
mod resuming;
mod slots;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use async_trait::async_trait;
use covault_core::{
    attest::MadeKey,
    fault::Fault,
    ids::{RequestId, SessionId, VaultId, WalletId},
    networks::Resource,
    order::KeygenOrder,
    request::SigningRequest,
    schema::wire,
    scheme::Scheme,
    wallet::{
        WalletChange,
        vault::{KeyState, Vault},
    },
};
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use tokio::sync::watch;

pub use approving::{NewApproval, NewRule, not_waiting};
pub use keys::KeyPlan;
pub use life::{KeyShares, Msg as ReshareMsg, ReshareRequest, SharesInUse};
pub use message::{vault_message, why_no_keys};
pub use permit::{AdmissionPermit, parties};
pub use progress::KeyProgress;
pub use slots::SlotRequest;

use crate::{
    audit::AuditActor,
    backup::restore,
    commands::command_commit::CommandCommit,
    port::KeyRound,
    process::mailbox::{ActorMailbox, MailboxDepth, Posted},
    requests::{
        account::ChainAccount,
        account_queues::AccountQueues,
        batch_claim::BatchClaim,
        refused::RefusedLooks,
        replacement_claim::ReplacementClaim,
        signing::{self, BuildBlocker, VaultRequests},
        sweep_claim::SweepClaim,
    },
    services::Services,
    vaults::{
        address_proofs::{ProofQueues, ShareHolders},
        wallets::{self, WalletPlan},
    },
};

pub enum Msg {
    /// Goes on with live requests and missing keys.
    Resume,
    /// About the requests that were live before.
    Resuming(resuming::ResumeStep),
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
    /// Rejects a request that is not signed yet; the words say who does.
    Reject(
        RequestId,
        String,
        CommandCommit,
        RpcReplyPort<Result<(), Fault>>,
    ),
    /// A person has approved a request.
    Approve(Box<NewApproval>),
    /// Others decide about requests from now on.
    ChangeApprovals(Box<NewRule>, RpcReplyPort<Result<Vault, Fault>>),
    /// Enough have: it continues, with the places that it has had from that commit on.
    Agreed(RequestId, Box<AdmissionPermit>),
    /// A request waits for people, until this time at most, in milliseconds since the Unix epoch.
    Awaits(u64),
    /// The time of a request may be over that waits for people.
    ExpiryDue,
    /// Those have ended whose time was; the next one's is over then, in milliseconds since the Unix epoch.
    Expired(Option<u64>),
    /// A request that queued up when it was admitted is ready for its turn.
    RequestSlot(RequestId, Box<SlotRequest>),
    /// More requests of an account may be ready for their turns.
    SlotsDue(ChainAccount),
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
    /// A run for a key, or for new shares of it, is in another round.
    RoundReached(Scheme, SessionId, KeyRound),
    /// The cluster answered.
    KeygenEnded(Box<KeygenOrder>, Result<MadeKey, Fault>),
    /// About the shares of keys that are there.
    Reshare(ReshareMsg),
    /// Wallets without proof of their address are to get it; none may be there.
    ProofsDue,
    /// The result: whether there may be more.
    ProofsTried(Result<bool, Fault>),
    /// A wallet was made without proof of its address.
    ProofMissing,
    /// A request's actor is to be started again, unless it lives.
    RestartDue(RequestId),
}

/// The wallet to create.
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
    /// The row that it joins when it replaces another one's transaction.
    pub replacement: Option<ReplacementClaim>,
    /// The batch payment that it belongs to.
    pub batch: Option<BatchClaim>,
    /// The sweep that it is a step of.
    pub sweep: Option<SweepClaim>,
    /// The number of its account that it is to use, as no request does.
    pub gap: Option<u64>,
    /// What is stored and demanded with it.
    pub command_commit: CommandCommit,
    /// Counts it as live.
    pub admission: AdmissionPermit,
    /// Where the receipt goes.
    pub reply: RpcReplyPort<Result<wire::SigningRequest, Fault>>,
}

pub struct VaultActor;

/// Arguments.
pub struct VaultArgs {
    /// Ports and settings, under the vault's lease.
    pub services: Arc<Services>,
    /// The vault.
    pub vault: VaultId,
    /// What is in memory of refused transactions.
    pub refused_looks: Arc<RefusedLooks>,
    /// Counts its messages.
    pub depth: Arc<MailboxDepth>,
}

pub struct VaultState {
    mailbox: ActorMailbox<Msg>,
    services: Arc<Services>,
    vault: Vault,
    version: u64,
    next_index: u32,
    account_queues: AccountQueues<SlotRequest>,
    /// The outputs of transactions that live requests are to take the place of, by these, from before the store says
    /// so. Each is named by its transaction, so that no account has one of another's.
    replaced_outputs: HashMap<RequestId, BTreeSet<Resource>>,
    requests: HashMap<RequestId, ActorMailbox<signing::Msg>>,
    vault_requests: Arc<VaultRequests>,
    ids: HashMap<ActorId, RequestId>,
    /// Of the actors of live requests.
    failures: HashMap<RequestId, requests::ActorFailures>,
    /// `None` once everything that was live before has an actor.
    resuming: Option<resuming::ResumeProgress>,
    keygens: keys::KeygenWorks,
    works: life::ReshareWorks,
    proof_queues: Arc<ProofQueues>,
    proving: proving::ProofWork,
    /// The places of requests that people have agreed to, until they have actors: those that they had may be just
    /// ending.
    agreed: HashMap<RequestId, AdmissionPermit>,
    expiry: approving::ApprovalExpiry,
    /// How far keys, or their next shares, are that are not there yet, as their rows say.
    progress: BTreeMap<Scheme, KeyProgress>,
    in_use: watch::Sender<SharesInUse>,
}

#[async_trait]
impl Actor for VaultActor {
    type Msg = Posted<Msg>;
    type State = VaultState;
    type Arguments = VaultArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<Posted<Msg>>,
        args: VaultArgs,
    ) -> Result<VaultState, ActorProcessingErr> {
        let VaultArgs {
            services,
            vault: id,
            refused_looks,
            depth,
        } = args;
        let mailbox = ActorMailbox::new(myself, depth);
        let (vault, version) = services
            .vault(id)
            .await?
            .ok_or_else(|| Fault::bug("no such vault"))?;
        let next_index = restore::next_wallet(&services, id).await?;
        let progress = progress::load(&services, id).await?;
        mailbox.cast(Msg::Resume)?;
        let works = life::ReshareWorks::new();
        Ok(VaultState {
            mailbox,
            in_use: watch::channel(life::in_use(&vault, &works)).0,
            works,
            services,
            vault,
            version,
            next_index,
            account_queues: AccountQueues::default(),
            replaced_outputs: HashMap::new(),
            requests: HashMap::new(),
            vault_requests: Arc::new(VaultRequests::new(refused_looks)),
            ids: HashMap::new(),
            failures: HashMap::new(),
            // Others have its address by now: what they ask for comes after what was there.
            resuming: Some(resuming::ResumeProgress::new()),
            keygens: keys::KeygenWorks::new(),
            proof_queues: Arc::default(),
            proving: proving::ProofWork::default(),
            agreed: HashMap::new(),
            expiry: approving::ApprovalExpiry::default(),
            progress,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Posted<Msg>>,
        posted: Posted<Msg>,
        live: &mut VaultState,
    ) -> Result<(), ActorProcessingErr> {
        let (message, myself) = posted.open(myself);
        match message {
            Msg::Resume => live.resume(&myself).await,
            Msg::Resuming(step) => live.resume_requests(&myself, step).await?,
            Msg::CreateWallet(wallet) => live.create_wallet(&myself, *wallet),
            Msg::NumberWallet(next, wallet) => {
                live.next_index = live.next_index.max(next);
                live.create_wallet(&myself, *wallet);
            }
            Msg::UpdateWallet(wallet, change, command_commit, reply) => {
                let _ = reply.send(live.update_wallet(wallet, &change, &command_commit).await);
            }
            Msg::Admit(request) => live.admit(&myself, *request).await?,
            Msg::Reject(request, reason, command_commit, reply) => {
                live.reject(&myself, request, reason, command_commit, reply)
                    .await
            }
            Msg::Approve(approval) => live.approve(&myself, *approval),
            Msg::ChangeApprovals(new, reply) => live.change_approvals(*new, reply).await?,
            Msg::Agreed(request, room) => live.agreed(&myself, request, *room).await?,
            Msg::Awaits(until_ms) => live.awaits(&myself, until_ms),
            Msg::ExpiryDue => live.expire(&myself),
            Msg::Expired(next_ms) => live.expired(&myself, next_ms),
            Msg::RequestSlot(request, wanted) => {
                if live.waits_for_resumption(request) {
                    let _ = wanted.reply.send(Err(BuildBlocker::Behind));
                } else if let Some(account) = live.account_queues.mark_ready(request, *wanted) {
                    live.dispatch(&myself, &account).await;
                }
            }
            Msg::Claimed(request) => {
                if let Some(account) = live.account_queues.claimed(request) {
                    live.dispatch(&myself, &account).await;
                }
            }
            Msg::MoveToBack(request) => {
                if let Some(account) = live.account_queues.move_to_back(request) {
                    live.dispatch(&myself, &account).await;
                }
            }
            Msg::SlotsDue(account) => live.dispatch(&myself, &account).await,
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
            Msg::RoundReached(scheme, session, round) => {
                live.note_round(scheme, &session, round).await;
            }
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
        _: ActorRef<Posted<Msg>>,
        event: SupervisionEvent,
        live: &mut VaultState,
    ) -> Result<(), ActorProcessingErr> {
        let myself = live.mailbox.clone();
        match event {
            SupervisionEvent::ActorTerminated(actor, _, _) => {
                if let Some(request) = live.forget(actor.get_id()) {
                    live.failures.remove(&request);
                    live.replaced_outputs.remove(&request);
                    live.leave_account_queue(&myself, request).await;
                    if live.agreed.contains_key(&request) {
                        live.load_request(&myself, request).await?;
                    }
                }
            }
            SupervisionEvent::ActorFailed(actor, error) => {
                if let Some(request) = live.forget(actor.get_id()) {
                    tracing::error!(%request, %error, "the actor of a request failed; restarting it from the store");
                    live.leave_account_queue(&myself, request).await;
                    // It starts again in any case.
                    live.agreed.remove(&request);
                    live.actor_failed(&myself, request, &error).await;
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

    async fn resume(&mut self, myself: &ActorMailbox<Msg>) {
        for key in &self.vault.keys {
            if matches!(key.state, KeyState::Wanted | KeyState::Generating(_)) {
                let _ = myself.cast(Msg::KeygenDue(key.scheme));
            }
        }
        self.forget_old_progress().await;
        self.resume_reshares(myself);
        self.prove(myself);
        self.expire(myself);
        self.begin_resumption(myself);
    }

    /// Numbers the wallet and stores it in a task beside the actor: wallets share a commit.
    fn create_wallet(&mut self, myself: &ActorMailbox<Msg>, new: NewWallet) {
        let curve = new.plan.network.curve();
        let Some(holders) = ShareHolders::of(&self.vault, curve) else {
            let reason = match self.vault.failed_reason() {
                Some(reason) => {
                    format!("the vault has no {} key: {reason}", curve.name())
                }
                None => "the vault's keys are still being generated; try again".into(),
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
            // The command is done before anyone hears of it.
            let NewWallet { plan, reply } = new;
            drop(plan);
            let _ = reply.send(made);
        });
    }
}
