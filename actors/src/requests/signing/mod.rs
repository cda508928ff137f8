//! The actor of one live signing request.
//!
//! It folds every transition that has no outside effect into one commit, then runs the effect
//! of the state it reached in a task beside it; the outcome comes back as a message. It never
//! repairs itself: on anything unexpected it ends with an error, and its vault starts it again
//! from the store.

mod creating;
mod effects;
mod ending;
mod holding;
mod nonce_waiters;
mod preparing;
mod spans;
mod stages;
mod waiting;

use std::sync::Arc;

use async_trait::async_trait;
use covault_core::{
    fault::{Class, ExecuteCode, Fault, FaultCode},
    ids::{SessionId, WalletId},
    networks::{ChainData, VerifiedSignatures},
    request::{NonceReservation, RequestEffect, RequestEvent, RequestState, SigningRequest},
    schema::wire,
    trace::TraceParent,
};
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use tokio::sync::watch;

use self::creating::FirstCommit;
pub use self::ending::{ARCHIVED, GIVEN_UP, REJECTED, not_rejected};
use self::nonce_waiters::NonceWaiters;
use self::spans::span_of;
use self::stages::StageClock;
use self::waiting::{MAX_CONTENDED_TRIES, OVERLOADED_NODES, OVERLOADED_SIGNERS};
use crate::{
    chain_rpc::{BroadcastOutcome, ChainError, ChainRefusal, ChainWait, NodeLoad},
    commands::command_commit::CommandCommit,
    port::SignerHold,
    process::{
        mailbox::{ActorMailbox, MailboxDepth, Posted},
        tasks::AbortOnDrop,
    },
    requests::{
        batch_claim::BatchClaim,
        rebroadcast::RebroadcastCache,
        refused::RefusedLooks,
        replacement_claim::ReplacementClaim,
        request_store::{CommitExtras, StoredRequest},
        sweep_claim::SweepClaim,
        tracking::Verdict,
    },
    services::Services,
    store::Key,
    vaults::vault::{self, SharesInUse},
};

/// Why a request waits whose vault is still taking up those that come before it.
const BEHIND: &str = "the vault has just started and is resuming earlier requests";

/// Why there is another session.
const SESSION_LOST: &str = "the session ended without signatures";

/// Why a request failed that no chain node came to.
const TOO_MUCH: &str = "no chain node answered in time: they are overloaded";

pub enum Msg {
    /// Begins, or continues where the store says.
    Begin(Box<SigningStart>),
    /// The chain answered, and what depends on the account's other requests was settled.
    ChainDataArrived(Result<ChainData, BuildBlocker>),
    /// The cluster answered.
    SignersAnswered {
        /// In which session.
        session: SessionId,
        /// The epoch of the shares that were to sign; `None` when nobody was asked.
        epoch: Option<u32>,
        /// What.
        answer: Result<VerifiedSignatures, Fault>,
    },
    /// Signers were told of the approvals, and hold the payment or not; or they want more of them.
    ApprovalsTold(Result<Option<SignerHold>, Fault>),
    /// The nodes answered, and whether one of them may have got the transaction.
    NodeAnswered(BroadcastOutcome, bool),
    /// What the nodes say of its transaction, of which nobody knew whether one has it.
    VerdictCame(Verdict),
    /// The effect of the state is to be run (again); by the number of the plan.
    EffectDue(u64),
    /// A node has the transaction whose number is the one before.
    TurnCame,
    /// A client or a person rejects the request; the words say who.
    Reject(String, CommandCommit, RpcReplyPort<Result<(), Fault>>),
    /// A wallet of the vault was archived.
    WalletArchived(WalletId),
    /// A task beside the actor panicked.
    TaskDied(&'static str),
}

/// Why there is nothing to build on.
pub enum BuildBlocker {
    /// The chain gave no answer, or said that it cannot be.
    Chain(ChainError),
    /// Other requests hold what there is; in words for people.
    Taken(String),
    /// Its turn in the queue of its account did not come in time.
    NoTurn,
    /// The same payment was refused, and can still come; in words for people.
    Repeated(String),
    /// Earlier ones of its account were not taken up again yet: until then its time does not run.
    Behind,
    /// Its time was over before the nodes came to it.
    TimeOver,
    /// Its time was over while earlier ones of its account had not got their turns.
    OthersLate,
    /// Its nodes gave no answer, and have shown that they have too much to do; in words for people.
    Loaded(String, NodeLoad),
    /// Its price is higher than what is believed of nodes; in words for people.
    Price(String),
    /// It cannot be built, or something is wrong.
    Wrong(Fault),
}

/// How an actor starts.
pub enum SigningStart {
    /// With a new request.
    New {
        /// In state `Received`.
        request: SigningRequest,
        /// Whether it is to be sent once signed.
        broadcast: bool,
        /// The version of its wallet's row in which the wallet was active.
        wallet_version: u64,
        /// The row that it joins when it replaces another one's transaction.
        replacement: Option<Box<ReplacementClaim>>,
        /// The batch payment that it belongs to.
        batch: Option<Box<BatchClaim>>,
        /// The sweep that it is a step of.
        sweep: Option<Box<SweepClaim>>,
        /// What is stored and demanded with it.
        command_commit: CommandCommit,
        /// Where the receipt goes.
        reply: RpcReplyPort<Result<wire::SigningRequest, Fault>>,
    },
    /// With a request from the store.
    Load {
        /// It.
        request: SigningRequest,
        /// Its version.
        version: u64,
        /// How often its actor has failed.
        failures: u32,
    },
}

/// What the requests of a vault share; it ends with the vault's actor.
pub struct VaultRequests {
    nonce_waiters: NonceWaiters,
    rebroadcast_cache: RebroadcastCache,
    refused_looks: Arc<RefusedLooks>,
}

impl VaultRequests {
    /// None yet. What is in memory of refused transactions is that of the process.
    pub fn new(refused_looks: Arc<RefusedLooks>) -> Self {
        Self {
            nonce_waiters: NonceWaiters::default(),
            rebroadcast_cache: RebroadcastCache::default(),
            refused_looks,
        }
    }
}

/// Arguments.
pub struct SigningArgs {
    /// Ports and settings.
    pub services: Arc<Services>,
    /// What it shares with the vault's other requests.
    pub vault_requests: Arc<VaultRequests>,
    /// The vault.
    pub vault: ActorMailbox<vault::Msg>,
    /// The shares of the vault that sign.
    pub in_use: watch::Receiver<SharesInUse>,
    /// How to start.
    pub start: SigningStart,
    /// Counts the request as live.
    pub admission: vault::AdmissionPermit,
    /// Counts its messages.
    pub depth: Arc<MailboxDepth>,
}

pub struct SigningActor;

pub struct SigningState {
    services: Arc<Services>,
    vault_requests: Arc<VaultRequests>,
    vault: ActorMailbox<vault::Msg>,
    in_use: watch::Receiver<SharesInUse>,
    /// `None` before the first commit.
    current: Option<StoredRequest>,
    /// Tries of the effect that is run now.
    tries: u32,
    /// Number of the last plan to run it again; earlier ones are void.
    plan: u64,
    /// What it waits for now: a plan, rather than its task.
    is_waiting: bool,
    /// Its turn came while its task ran.
    turn_came: bool,
    /// Why it cannot continue, as its row says.
    delayed: Option<String>,
    /// The reason that its audit trail has last.
    delay_in_trail: Option<String>,
    /// It was live before: what its last effect did is not known.
    resumed: bool,
    /// It has begun to send its transaction.
    sends: bool,
    /// A try to send it runs.
    is_sending: bool,
    /// A node may have got its transaction from a try that did not end it.
    got_out: bool,
    /// Its transaction is, or was, tried on a node.
    simulated: bool,
    /// Signers were told of its approvals.
    told: bool,
    /// What a node last said against its transaction, which may have reached another one.
    refusal: Option<ChainRefusal>,
    /// Addresses that it pays, by their rows, which were no wallet's when it was built.
    strangers: Vec<Key>,
    /// It may take until then, in milliseconds since the Unix epoch, whatever its row says.
    extended_deadline_ms: u64,
    /// Since when its wallet has had too little for it, by what nodes say; 0 where it has not.
    lacks_since_ms: u64,
    /// When its chain was asked last, in milliseconds since the Unix epoch.
    asked_ms: u64,
    /// How often its time was over while it only waited for others, and it got new time.
    renewals: u32,
    /// How often it got new time while the same payment, which nodes refused, could still come.
    repeats: u32,
    /// Its next session has new time.
    has_new_time: bool,
    /// It waits for what its chain's nodes say.
    chain_wait: Option<Arc<ChainWait>>,
    stages: StageClock,
    task: Option<AbortOnDrop>,
    admission: vault::AdmissionPermit,
}

/// Nobody waits for the turn of a request that has no actor.
impl Drop for SigningState {
    fn drop(&mut self) {
        // Without a draft nothing waits.
        let _ = self.stop_waiting();
        if let Some(stored) = &mut self.current {
            spans::end(stored);
        }
    }
}

#[async_trait]
impl Actor for SigningActor {
    type Msg = Posted<Msg>;
    type State = SigningState;
    type Arguments = SigningArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<Posted<Msg>>,
        mut args: SigningArgs,
    ) -> Result<SigningState, ActorProcessingErr> {
        let myself = ActorMailbox::new(myself, args.depth);
        myself.cast(Msg::Begin(Box::new(args.start)))?;
        Ok(SigningState {
            services: args.services,
            vault_requests: args.vault_requests,
            vault: args.vault,
            in_use: args.in_use,
            current: None,
            tries: 0,
            plan: 0,
            is_waiting: false,
            turn_came: false,
            delayed: None,
            delay_in_trail: None,
            resumed: false,
            sends: false,
            is_sending: false,
            got_out: false,
            simulated: false,
            told: false,
            refusal: None,
            strangers: Vec::new(),
            extended_deadline_ms: 0,
            lacks_since_ms: 0,
            asked_ms: 0,
            renewals: 0,
            repeats: 0,
            has_new_time: false,
            chain_wait: args.admission.chain_wait.take(),
            stages: StageClock::default(),
            task: None,
            admission: args.admission,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Posted<Msg>>,
        posted: Posted<Msg>,
        live: &mut SigningState,
    ) -> Result<(), ActorProcessingErr> {
        let (message, myself) = posted.open(myself);
        if let Msg::ChainDataArrived(answer) = &message
            && !matches!(
                answer,
                Err(BuildBlocker::Chain(ChainError::Unknown(_))
                    | BuildBlocker::Loaded(..)
                    | BuildBlocker::TimeOver)
            )
            && let Some(wait) = live.chain_wait.take()
        {
            wait.answered();
        }
        match message {
            Msg::Begin(start) => match *start {
                SigningStart::New {
                    request,
                    broadcast,
                    wallet_version,
                    replacement,
                    batch,
                    sweep,
                    command_commit,
                    reply,
                } => {
                    let first = FirstCommit {
                        broadcast,
                        wallet_version,
                        replacement: replacement.map(|claim| *claim),
                        batch: batch.map(|claim| *claim),
                        sweep: sweep.map(|claim| *claim),
                        command_commit,
                    };
                    let receipt = live.create(request, first).await;
                    let refused = receipt.as_ref().err().cloned();
                    // The caller may have gone; the request is on disk regardless.
                    let _ = reply.send(receipt);
                    match refused {
                        None => {}
                        Some(fault)
                            if matches!(
                                fault.class(),
                                Class::Invalid | Class::WrongState | Class::Unauthenticated
                            ) =>
                        {
                            myself.actor().stop(None);
                            return Ok(());
                        }
                        // The store may have taken it nevertheless: the vault looks again.
                        Some(fault) => return Err(fault.into()),
                    }
                }
                SigningStart::Load {
                    request,
                    version,
                    failures,
                } => live.resume(request, version, failures).await?,
            },
            Msg::ChainDataArrived(Ok(chain_data)) => {
                live.chain_data_arrived(&myself, chain_data).await?
            }
            Msg::ChainDataArrived(Err(BuildBlocker::Chain(ChainError::Refused(refusal)))) => {
                live.give_up(refusal.reason, refusal.code).await?;
            }
            Msg::ChainDataArrived(Err(BuildBlocker::Chain(ChainError::Lacks(refusal)))) => {
                live.wait_for_means(&myself, refusal).await?;
            }
            Msg::ChainDataArrived(Err(BuildBlocker::Wrong(fault))) => {
                live.build_failed(fault).await?
            }
            Msg::ChainDataArrived(Err(BuildBlocker::Chain(ChainError::Unknown(reason)))) => {
                let reason = waiting::unanswered(&reason);
                live.retry_build(&myself, reason, u32::MAX).await?;
            }
            Msg::ChainDataArrived(Err(BuildBlocker::TimeOver)) => {
                // While nodes answer others, it only waits in line, and they come to it.
                if live.others_are_answered() && live.may_wait_on() {
                    live.extended_deadline_ms = live.fresh_deadline_ms();
                    let reason = OVERLOADED_NODES.to_owned();
                    return Ok(live
                        .retry_build(&myself, reason, MAX_CONTENDED_TRIES)
                        .await?);
                }
                // Where it had to wait before, that is the better reason.
                let reason = live.delayed.clone().unwrap_or_else(|| TOO_MUCH.to_owned());
                live.give_up(reason, ExecuteCode::Unspecified).await?;
            }
            Msg::ChainDataArrived(Err(BuildBlocker::NoTurn)) => live.retry_turn(&myself).await?,
            Msg::ChainDataArrived(Err(BuildBlocker::Loaded(reason, load))) => {
                live.wait_for_nodes(&myself, &reason, load).await?;
            }
            Msg::ChainDataArrived(Err(BuildBlocker::OthersLate)) => {
                live.wait_on_behind_others(&myself).await?;
            }
            Msg::ChainDataArrived(Err(BuildBlocker::Behind)) => {
                live.extended_deadline_ms = live.fresh_deadline_ms();
                let reason = BEHIND.to_owned();
                live.retry_build(&myself, reason, MAX_CONTENDED_TRIES)
                    .await?;
            }
            Msg::ChainDataArrived(Err(BuildBlocker::Repeated(reason))) => {
                live.wait_for_refused(&myself, reason).await?;
            }
            Msg::ChainDataArrived(Err(
                BuildBlocker::Taken(reason) | BuildBlocker::Price(reason),
            )) => {
                live.retry_build(&myself, reason, MAX_CONTENDED_TRIES)
                    .await?;
            }
            Msg::SignersAnswered {
                session,
                epoch,
                answer,
            } => {
                if live.session()? != Some(session) {
                    return Ok(());
                }
                match answer {
                    Ok(signatures) => live.signed(signatures).await?,
                    // No attempt of it has failed: signers have not come to it.
                    Err(fault)
                        if matches!(fault.code(), FaultCode::Busy { .. }) && live.may_wait_on() =>
                    {
                        tracing::debug!(request = %live.stored()?.request.id, %session, ?fault, "signers did not \
                            reach a request before its deadline; it keeps waiting");
                        if live.end_if_expired().await? {
                            return live.run_effect(&myself);
                        }
                        live.has_new_time = true;
                        let pause = live.services.backoff(live.tries);
                        live.schedule_retry(&myself, pause);
                        return Ok(());
                    }
                    Err(fault) => {
                        tracing::warn!(request = %live.stored()?.request.id, %session, ?fault, "signing attempt failed");
                        if live.is_held(&fault).await? || live.ask_people(&fault).await? {
                            return live.run_effect(&myself);
                        }
                        let for_good = matches!(fault.class(), Class::Invalid | Class::Forbidden)
                            && live.shares_unchanged(epoch)?;
                        // It has waited on as often as it may.
                        let is_busy = matches!(fault.code(), FaultCode::Busy { .. });
                        if !for_good && !is_busy && live.retry_before_deadline(&myself)? {
                            return Ok(());
                        }
                        live.give_up(fault.message().to_owned(), fault.execute_code())
                            .await?;
                    }
                }
            }
            Msg::ApprovalsTold(hold) => live.approvals_told(&myself, hold).await?,
            Msg::NodeAnswered(outcome, got_out) => {
                live.is_sending = false;
                live.got_out |= got_out;
                match outcome {
                    BroadcastOutcome::Accepted => live.node_accepted().await?,
                    BroadcastOutcome::Refused(refusal) => live.node_refused(refusal).await?,
                    BroadcastOutcome::Doubtful(refusal, standing) => {
                        live.weigh_doubt(&myself, refusal, standing).await?;
                    }
                    BroadcastOutcome::Unknown(reason) => {
                        live.retry_broadcast(&myself, reason).await?;
                    }
                }
            }
            Msg::VerdictCame(verdict) => {
                if !live.verdict_came(verdict).await? {
                    return Ok(());
                }
            }
            Msg::EffectDue(plan) if plan == live.plan && live.is_waiting => {
                live.is_waiting = false;
                let has_new_time = std::mem::take(&mut live.has_new_time);
                let deadline_ms = has_new_time.then(|| live.fresh_deadline_ms());
                let reason = match has_new_time {
                    true => OVERLOADED_SIGNERS,
                    false => SESSION_LOST,
                };
                live.renew_session(deadline_ms, reason).await?;
            }
            Msg::EffectDue(_) => return Ok(()),
            Msg::TurnCame if live.is_waiting => {
                // The pause would be long after many tries, and what they waited for is there.
                live.tries = 0;
                live.is_waiting = false;
            }
            Msg::TurnCame => {
                live.turn_came = true;
                return Ok(());
            }
            Msg::Reject(reason, command_commit, reply) => {
                if !live.reject(&reason, &command_commit, reply).await? {
                    return Ok(());
                }
            }
            Msg::WalletArchived(wallet) => {
                if !live.wallet_archived(wallet).await? {
                    return Ok(());
                }
            }
            Msg::TaskDied(task) => return Err(Fault::bug(format!("{task} panicked")).into()),
        }
        if live.is_waiting {
            return Ok(());
        }
        live.run_effect(&myself)
    }
}

impl SigningState {
    fn stored(&self) -> Result<&StoredRequest, Fault> {
        self.current
            .as_ref()
            .ok_or_else(|| Fault::bug("no request yet"))
    }

    fn stored_mut(&mut self) -> Result<&mut StoredRequest, Fault> {
        self.current
            .as_mut()
            .ok_or_else(|| Fault::bug("no request yet"))
    }

    async fn advance(&mut self, events: Vec<RequestEvent>) -> Result<(), Fault> {
        self.advance_with(events, CommitExtras::default()).await
    }

    async fn advance_with(
        &mut self,
        events: Vec<RequestEvent>,
        extras: CommitExtras<'_>,
    ) -> Result<(), Fault> {
        let services = Arc::clone(&self.services);
        let stored = self.stored_mut()?;
        let before = stored.request.state.effect();
        stored.advance(&services, &events, extras).await?;
        if stored.request.state.effect() != before {
            self.proceed();
        }
        Ok(())
    }

    /// The number that the transaction holds.
    fn claim(&self) -> Result<Option<&NonceReservation>, Fault> {
        let draft = self.stored()?.request.state.draft();
        Ok(draft.and_then(|draft| draft.claim.as_ref()))
    }

    fn session(&self) -> Result<Option<SessionId>, Fault> {
        Ok(match &self.stored()?.request.state {
            RequestState::Signing { session, .. } => Some(*session),
            _ => None,
        })
    }

    async fn resume(
        &mut self,
        request: SigningRequest,
        version: u64,
        failures: u32,
    ) -> Result<(), Fault> {
        // Before it is built nothing of it is anywhere.
        self.resumed = request.state.effect() != Some(RequestEffect::Prepare);
        let mut stored = StoredRequest {
            failures,
            ..StoredRequest::open(request, version)?
        };
        // Whatever it was part of before: it is drawn anew whether there is a trace.
        stored.trace = span_of(&self.services, &stored, TraceParent::Unknown);
        self.current = Some(stored);
        // A session that ran when the process ended is never run again. The request gets new
        // time: the outage was not its fault.
        let fresh = self.fresh_deadline_ms();
        self.extended_deadline_ms = fresh;
        if self.stored()?.request.state.past_rejection().is_none()
            && self.active_wallet_version().await?.is_none()
        {
            return Ok(());
        }
        self.renew_session(Some(fresh), SESSION_LOST).await
    }

    fn fresh_deadline_ms(&self) -> u64 {
        let services = &self.services;
        services
            .now_ms()
            .saturating_add(services.settings.signing_deadline_ms)
    }

    /// Whether the shares that were to sign are still those in use, and every node knows it. Else
    /// a refusal says nothing about the request.
    fn shares_unchanged(&self, epoch: Option<u32>) -> Result<bool, Fault> {
        let curve = self.stored()?.request.network.curve();
        let in_use = self.in_use.borrow();
        let shares = in_use.of(curve);
        Ok(shares.is_some_and(|shares| shares.confirmed && Some(shares.generation.epoch) == epoch))
    }

    /// In `Prepared` and `SigningActor`: a new session for the same digest. Elsewhere: nothing.
    /// `reason`: why the one before is over.
    async fn renew_session(
        &mut self,
        new_deadline_ms: Option<u64>,
        reason: &str,
    ) -> Result<(), Fault> {
        let (lost, deadline_ms) = match &self.stored()?.request.state {
            RequestState::Prepared { draft, .. } => (None, draft.deadline_ms),
            RequestState::Signing { draft, .. } => {
                let reason = reason.to_owned();
                (
                    Some(RequestEvent::SessionLost { reason }),
                    draft.deadline_ms,
                )
            }
            _ => return Ok(()),
        };
        if self.end_if_expired().await? {
            return Ok(());
        }
        let most_ms = self.ends_ms()?.unwrap_or(u64::MAX);
        let deadline_ms = new_deadline_ms.unwrap_or(deadline_ms);
        let claimed = RequestEvent::SessionClaimed {
            session: self.services.new_session_id(),
            deadline_ms: deadline_ms.min(most_ms),
        };
        let events = lost.into_iter().chain([claimed]).collect();
        self.advance(events).await
    }

    async fn signed(&mut self, signatures: VerifiedSignatures) -> Result<(), Fault> {
        let StoredRequest {
            request, payload, ..
        } = self.stored()?;
        let RequestState::Signing { draft, .. } = &request.state else {
            return Ok(());
        };
        let chain = request.network.rules();
        let (unsigned, key) = (&draft.unsigned, &request.public_key);
        let signed = chain.assemble_verified(payload, unsigned, &signatures, key)?;
        let delivery = if draft.broadcast {
            RequestEvent::SendingStarted
        } else {
            RequestEvent::HandedOver
        };
        let signatures = signatures.into_signatures();
        let made = RequestEvent::SignaturesMade { signatures, signed };
        // First: who hears from the commit that it has ended has its place for another one.
        self.admission.signed();
        self.advance(vec![made, delivery]).await
    }

    async fn give_up(&mut self, reason: String, code: ExecuteCode) -> Result<(), Fault> {
        self.advance(vec![RequestEvent::GaveUp { reason, code }])
            .await
    }
}
