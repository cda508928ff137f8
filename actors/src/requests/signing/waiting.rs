//! How a request waits: for its next attempt, for its turn to be sent, and with a reason that callers can
//! see.

use std::{sync::Arc, time::Duration};

use covault_core::{
    fault::{ExecuteCode, Fault},
    networks::{ChainData, Payload},
    request::{Draft, NonceReservation, RequestEvent, RequestState, SigningRequest},
};

use super::{BuildBlocker, Msg, SigningState, TOO_MUCH};
use crate::{
    chain_rpc::{ChainError, ChainRefusal, NodeLoad, Standing},
    process::mailbox::ActorMailbox,
    requests::{
        followed,
        request_store::{CommitExtras, StoredRequest},
        tracking::{PendingVerdict, Verdict},
    },
    services::DEADLINE_GRACE_MS,
    vaults::vault,
};

/// After so many tries in vain pauses get no longer where other requests hold what is needed.
pub(super) const MAX_CONTENDED_TRIES: u32 = 4;
/// After so many tries in vain to send it, the nodes are asked what became of it.
const TRIES_BEFORE_DOUBT: u32 = 5;
/// How often a request gets new time that has only waited for others: its nodes and signers may never come to it.
const MAX_RENEWALS: u32 = 30;
/// The part of its time for which a request that its wallet has too little for is asked about again.
const LACKS_SHARE: u64 = 6;
/// Why a request waits that signers, or nodes, have not come to in its time.
pub(super) const OVERLOADED_SIGNERS: &str = "the signers are overloaded; the request keeps waiting, and requests are signed in the order in which they were \
     accepted";
pub(super) const OVERLOADED_NODES: &str = "the nodes of its chain are overloaded; the request keeps waiting, and \
                                           requests are handled in the order in which they were accepted";
const OVERLOADED_ACCOUNT: &str =
    "earlier requests of the same wallet are not built yet; the request waits for them";
/// Why a request waits, or failed, whose turn in the queue of its account did not come.
const NO_TURN: &str = "timed out waiting for other requests of the same wallet";
/// How long a Solana transaction can be mined after it was built on the newest blockhash: 150 slots of 0.4 s, and half
/// as much again where these take longer. In milliseconds.
const SOLANA_LIFETIME_MS: u64 = 90_000;
/// Why a request failed that signers came to too late for its chain.
const EXPIRED_UNSIGNED: &str = "its transaction expired before it was signed; create it again";
/// Why a request failed whose transaction never comes, where the nodes say no more.
const VOID: &str = "the transaction has expired, and no block includes it";
/// So many tries are no delay that is worth a line in the trail.
const UNREPORTED_TRIES: u32 = 2;

impl SigningState {
    /// The transaction waits for no earlier nonce. Returns its nonce.
    pub(super) fn stop_waiting(&self) -> Result<Option<NonceReservation>, Fault> {
        let claim = self.claim()?.cloned();
        if let Some(claim) = &claim {
            self.vault_requests.nonce_waiters.leave(claim);
        }
        Ok(claim)
    }

    /// Nothing can be built now: asks again later, unless the deadline comes first. Pauses do not
    /// get longer after `most_tries`.
    pub(super) async fn retry_build(
        &mut self,
        myself: &ActorMailbox<Msg>,
        reason: String,
        most_tries: u32,
    ) -> Result<(), Fault> {
        self.tries = self.tries.min(most_tries);
        if !self.retry_before_deadline(myself)? {
            return self.give_up(reason, ExecuteCode::Unspecified).await;
        }
        self.let_others_pass(reason).await
    }

    /// There is too little for it: asks again, for a part of its time. A node may be behind, and an earlier transaction may
    /// bring it.
    pub(super) async fn wait_for_means(
        &mut self,
        myself: &ActorMailbox<Msg>,
        refusal: ChainRefusal,
    ) -> Result<(), Fault> {
        let now_ms = self.services.now_ms();
        if self.lacks_since_ms == 0 {
            self.lacks_since_ms = now_ms;
        }
        let patience_ms = self.services.settings.signing_deadline_ms / LACKS_SHARE;
        let is_over = now_ms.saturating_sub(self.lacks_since_ms) >= patience_ms;
        self.tries = self.tries.min(MAX_CONTENDED_TRIES);
        if is_over || !self.retry_before_deadline(myself)? {
            return self.give_up(refusal.reason, refusal.code).await;
        }
        self.let_others_pass(refusal.reason).await
    }

    /// As [`Self::retry_build`], where its turn did not come: when its time is over, it gets new time, as those before
    /// it do.
    pub(super) async fn retry_turn(&mut self, myself: &ActorMailbox<Msg>) -> Result<(), Fault> {
        self.tries = self.tries.min(MAX_CONTENDED_TRIES);
        if !self.retry_before_deadline(myself)? {
            return self.wait_on_behind_others(myself).await;
        }
        self.let_others_pass(NO_TURN.to_owned()).await
    }

    /// Others need not wait for it while it waits for its next try.
    async fn let_others_pass(&mut self, reason: String) -> Result<(), Fault> {
        let request = self.stored()?.request.id;
        let _ = self.vault.cast(vault::Msg::MoveToBack(request));
        self.note_delay(reason).await
    }

    /// The same payment was refused, and can still come: gets new time, as it only waits for that, and asks again later.
    /// What nodes refused ends within minutes on most networks.
    pub(super) async fn wait_for_refused(
        &mut self,
        myself: &ActorMailbox<Msg>,
        reason: String,
    ) -> Result<(), Fault> {
        if let RequestState::Preparing { deadline_ms, .. } = self.stored()?.request.state {
            let deadline_ms = deadline_ms.max(self.extended_deadline_ms);
            let left_ms = deadline_ms.saturating_sub(self.services.now_ms());
            // Before its next try would be too late, however short its time is.
            let pause = self.services.backoff(self.tries.min(MAX_CONTENDED_TRIES));
            let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
            let least_ms = self.services.settings.signing_deadline_ms / 4;
            let least_ms = least_ms.max(pause_ms.saturating_mul(4));
            // Counted by itself: busy signers and nodes may take as much time after it.
            if left_ms < least_ms && self.repeats < MAX_RENEWALS {
                self.repeats += 1;
                self.extended_deadline_ms = self.fresh_deadline_ms();
            }
        }
        self.retry_build(myself, reason, MAX_CONTENDED_TRIES).await
    }

    /// Nobody knows whether a node took the transaction: sends it again, soon at first, and then when the nodes
    /// say that none has it.
    pub(super) async fn retry_broadcast(
        &mut self,
        myself: &ActorMailbox<Msg>,
        reason: String,
    ) -> Result<(), Fault> {
        tracing::warn!(request = %self.stored()?.request.id, reason, tries = self.tries, "broadcast outcome unknown; retrying");
        if std::mem::take(&mut self.turn_came) {
            self.tries = 0;
            self.schedule_retry(myself, Duration::ZERO);
        } else if self.tries < TRIES_BEFORE_DOUBT {
            let pause = self.services.backoff(self.tries);
            self.schedule_retry(myself, pause);
        } else {
            self.await_verdict(myself)?;
        }
        self.note_delay(reason).await
    }

    /// A node refuses a transaction that an earlier try may have got onto the chain.
    pub(super) async fn weigh_doubt(
        &mut self,
        myself: &ActorMailbox<Msg>,
        refusal: ChainRefusal,
        standing: Standing,
    ) -> Result<(), Fault> {
        let words = match standing {
            Standing::Open => "an earlier attempt may have reached the chain; sending it again",
            Standing::Passed => "waiting until the transaction with its nonce is final",
            Standing::Void => "asking for a few more minutes whether a node has it",
        };
        let reason = format!("{}; {words}", refusal.reason);
        tracing::warn!(request = %self.stored()?.request.id, reason, "a chain node refuses a transaction that may \
            be on the chain");
        self.refusal = Some(refusal);
        if std::mem::take(&mut self.turn_came) {
            self.schedule_retry(myself, Duration::ZERO);
        } else {
            self.await_verdict(myself)?;
        }
        self.note_delay(reason).await
    }

    /// Waits until the nodes say what became of the transaction: they are asked for many at once.
    fn await_verdict(&mut self, myself: &ActorMailbox<Msg>) -> Result<(), Fault> {
        self.tries = self.tries.saturating_add(1);
        self.is_waiting = true;
        let actor = myself.clone();
        let doubt =
            PendingVerdict::new(move |verdict| actor.cast(Msg::VerdictCame(verdict)).is_ok());
        let StoredRequest {
            request, payload, ..
        } = self.stored()?;
        let doubted = followed::doubted(request, payload, doubt);
        let doubted = doubted.ok_or_else(|| Fault::bug("a doubt about what is not sent"))?;
        self.services.listeners.tracking.push(doubted);
        Ok(())
    }

    /// What the nodes say of a transaction that may have reached one. False when nothing is to be done.
    pub(super) async fn verdict_came(&mut self, verdict: Verdict) -> Result<bool, Fault> {
        if !matches!(
            self.stored()?.request.state,
            RequestState::Broadcasting { .. }
        ) {
            return Ok(false);
        }
        match verdict {
            Verdict::Accepted => self.node_accepted().await?,
            Verdict::Missing if !self.is_waiting => return Ok(false),
            Verdict::Missing => {}
            Verdict::Void(said) => {
                self.stop_waiting()?;
                let refusal = self.refusal.take();
                let code = refusal
                    .as_ref()
                    .map_or(ExecuteCode::Unspecified, |refusal| refusal.code);
                let reason = said.or(refusal.map(|refusal| refusal.reason));
                let reason = reason.unwrap_or_else(|| VOID.into());
                self.advance(vec![RequestEvent::NodeRefused { reason, code }])
                    .await?;
            }
        }
        self.is_waiting = false;
        Ok(true)
    }

    /// The nodes refuse the transaction for good.
    pub(super) async fn node_refused(&mut self, refusal: ChainRefusal) -> Result<(), Fault> {
        self.stop_waiting()?;
        let event = RequestEvent::NodeRefused {
            reason: refusal.reason,
            code: refusal.code,
        };
        let extras = CommitExtras {
            may_be_kept: true,
            ..CommitExtras::default()
        };
        self.advance_with(vec![event], extras).await
    }

    /// A node has the transaction.
    pub(super) async fn node_accepted(&mut self) -> Result<(), Fault> {
        let claim = self.stop_waiting()?;
        self.advance(vec![RequestEvent::NodeAccepted]).await?;
        if let Some(claim) = claim {
            self.vault_requests.nonce_waiters.taken(&claim);
        }
        Ok(())
    }

    /// Has everyone who asks see why the request cannot continue. The trail gets a new reason once the
    /// request has waited for longer than a moment.
    pub(super) async fn note_delay(&mut self, reason: String) -> Result<(), Fault> {
        let services = Arc::clone(&self.services);
        let request = self.stored()?.request.id;
        if self.delayed.as_ref() != Some(&reason) {
            if let Err(fault) = self.stored_mut()?.delay(&services, &reason).await {
                tracing::warn!(%request, ?fault, reason, "failed to store why a request waits");
            }
            self.delayed = Some(reason.clone());
        }
        if self.tries <= UNREPORTED_TRIES || self.delay_in_trail.as_ref() == Some(&reason) {
            return Ok(());
        }
        tracing::info!(%request, reason, "a request is waiting");
        self.delay_in_trail = Some(reason.clone());
        self.advance(vec![RequestEvent::Delayed { reason }]).await
    }

    /// The request waits for nothing now; its row said so in the same commit.
    pub(super) fn proceed(&mut self) {
        self.tries = 0;
        self.delayed = None;
        self.delay_in_trail = None;
    }

    /// Whether it has got new time before: then it is not overdue by its age.
    pub(super) fn has_waited_on(&self) -> bool {
        self.renewals > 0 || self.repeats > 0
    }

    /// Whether the request may wait on although its time is over: it has only waited for others, which is no failure
    /// of its own. Counts it.
    pub(super) fn may_wait_on(&mut self) -> bool {
        let may = self.renewals < MAX_RENEWALS;
        self.renewals = self.renewals.saturating_add(1);
        may
    }

    /// Its time was over while it waited for earlier ones of its account: it has only waited, as they do, and keeps
    /// its place behind them.
    pub(super) async fn wait_on_behind_others(
        &mut self,
        myself: &ActorMailbox<Msg>,
    ) -> Result<(), Fault> {
        if !self.may_wait_on() {
            return self
                .give_up(NO_TURN.to_owned(), ExecuteCode::Unspecified)
                .await;
        }
        self.extended_deadline_ms = self.fresh_deadline_ms();
        let pause = self.services.backoff(0);
        self.schedule_retry(myself, pause);
        self.note_delay(OVERLOADED_ACCOUNT.to_owned()).await
    }

    /// Gives up what is built and no block can include now: signed, it would take the time of those that can still be
    /// mined. It is never built again: that would be a second digest. True when it has ended.
    pub(super) async fn end_if_expired(&mut self) -> Result<bool, Fault> {
        let ends_ms = self.ends_ms()?;
        if ends_ms.is_none_or(|ends_ms| ends_ms > self.services.now_ms()) {
            return Ok(false);
        }
        let reason = EXPIRED_UNSIGNED.to_owned();
        self.give_up(reason, ExecuteCode::Unspecified).await?;
        Ok(true)
    }

    /// From when on no block can have its transaction, in milliseconds since the Unix epoch. `None`: by no time that is
    /// known here.
    pub(super) fn ends_ms(&self) -> Result<Option<u64>, Fault> {
        let StoredRequest {
            request, payload, ..
        } = self.stored()?;
        match request.state.draft() {
            Some(draft) => ends_ms(request, payload, draft),
            None => Ok(None),
        }
    }

    /// Whether its chain's nodes have answered others in the time that a request has: they are there, and come to it.
    pub(super) fn others_are_answered(&self) -> bool {
        let patience_ms = self.services.settings.signing_deadline_ms;
        let patience = Duration::from_millis(patience_ms.saturating_add(DEADLINE_GRACE_MS));
        let wait = self.chain_wait.as_ref();
        wait.is_some_and(|wait| wait.others_answered_within(patience))
    }

    /// The nodes gave no answer as they have too much to do: asks again later, and gets new time where they have said so, or
    /// answer others. What was accepted does not fail because of load.
    pub(super) async fn wait_for_nodes(
        &mut self,
        myself: &ActorMailbox<Msg>,
        reason: &str,
        load: NodeLoad,
    ) -> Result<(), Fault> {
        let is_load = load == NodeLoad::TooMuch || self.others_are_answered();
        if !self.retry_before_deadline(myself)? {
            if !is_load || !self.may_wait_on() {
                let reason = match load {
                    NodeLoad::TooMuch => format!("{TOO_MUCH} ({reason})"),
                    NodeLoad::Silent => unanswered(reason),
                };
                return self.give_up(reason, ExecuteCode::Unspecified).await;
            }
            self.extended_deadline_ms = self.fresh_deadline_ms();
            let pause = self.services.backoff(self.tries);
            self.schedule_retry(myself, pause);
        }
        let request = self.stored()?.request.id;
        // Others need not wait for it.
        let _ = self.vault.cast(vault::Msg::MoveToBack(request));
        self.note_delay(match load {
            // Not in the node's words: they can be others with each try.
            NodeLoad::TooMuch => OVERLOADED_NODES.to_owned(),
            NodeLoad::Silent => unanswered(reason),
        })
        .await
    }

    /// Plans another try, unless the deadline comes first.
    pub(super) fn retry_before_deadline(
        &mut self,
        myself: &ActorMailbox<Msg>,
    ) -> Result<bool, Fault> {
        let deadline_ms = match &self.stored()?.request.state {
            RequestState::Preparing { deadline_ms, .. } => {
                (*deadline_ms).max(self.extended_deadline_ms)
            }
            RequestState::Prepared { draft, .. } | RequestState::Signing { draft, .. } => {
                draft.deadline_ms
            }
            _ => return Ok(false),
        };
        let pause = self.services.backoff(self.tries);
        let due = self
            .services
            .now_ms()
            .saturating_add(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
        if due >= deadline_ms {
            return Ok(false);
        }
        self.schedule_retry(myself, pause);
        Ok(true)
    }

    pub(super) fn schedule_retry(&mut self, myself: &ActorMailbox<Msg>, pause: Duration) {
        self.tries = self.tries.saturating_add(1);
        self.plan += 1;
        self.is_waiting = true;
        let plan = self.plan;
        myself.send_after(pause, move || Msg::EffectDue(plan));
    }
}

/// What is said of nodes that gave no answer.
pub(super) fn unanswered(reason: &str) -> String {
    format!("no chain node answered in time: {reason}")
}

/// From when on no block can have a transaction that is built like this, in milliseconds since the Unix epoch. `None`: by
/// no time that is known here.
pub(super) fn ends_ms(
    request: &SigningRequest,
    payload: &Payload,
    draft: &Draft,
) -> Result<Option<u64>, Fault> {
    if matches!(draft.chain_data, ChainData::Solana(_)) {
        return Ok(Some(draft.built_at_ms.saturating_add(SOLANA_LIFETIME_MS)));
    }
    let rules = request.network.rules();
    let Some(stand_in) = rules.stand_in(payload, &draft.unsigned, &request.public_key)? else {
        return Ok(None);
    };
    let ends = rules.valid_until(&stand_in)?.map(|moment| moment.time_ms);
    Ok(ends.filter(|ends_ms| *ends_ms > 0))
}

/// What asking the chain came to, with what its nodes have shown of how much they have to do. `outcome` is `None` where its
/// time was over; `answered`: it only waited for others then.
pub(super) fn chain_asked(outcome: Option<Msg>, load: Option<NodeLoad>, answered: bool) -> Msg {
    let blocker = match (outcome, load) {
        (
            Some(Msg::ChainDataArrived(Err(BuildBlocker::Chain(ChainError::Unknown(reason))))),
            Some(load),
        ) => BuildBlocker::Loaded(reason, load),
        (Some(outcome), _) => return outcome,
        (None, _) if answered => BuildBlocker::OthersLate,
        (None, Some(NodeLoad::TooMuch)) => {
            BuildBlocker::Loaded("its time was over".to_owned(), NodeLoad::TooMuch)
        }
        (None, _) => BuildBlocker::TimeOver,
    };
    Msg::ChainDataArrived(Err(blocker))
}
