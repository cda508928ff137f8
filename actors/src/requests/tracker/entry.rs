//! The state of one followed transaction, and how a new answer of the nodes changes it.

use std::time::Duration;

use covault_core::{
    backoff::Backoff,
    request::{TransactionPart, TransactionState},
};
use tokio::time::Instant;

use crate::{
    chain_rpc::TransactionSighting,
    requests::{
        tracking::{TrackedRequest, Verdict},
        void_answers::VoidAnswers,
    },
    store::rows::TransactionRow,
};

/// How long no node has had a transaction before it is sent again, and before it is sent once more, in
/// milliseconds.
const RESEND_MS: u64 = 60_000;
/// So many of the longest pauses pass at most between two looks whose transaction was seen in the place of one: an hour,
/// by default.
const LOOK_PAUSES: u32 = 60;
/// What is said of one that a block has and that does not become final.
const NOT_FINAL: &str = "a node says that it is in a block, but it does not become final: the nodes disagree, or the \
                         chain is slow; compare the nodes";
/// What is said of one that nodes do not say anything about.
const NOT_SAID: &str = "the nodes do not report where it is, or disagree; compare the nodes";
/// So many blocks may the nodes of a chain be apart.
const MAX_NODES_APART: u64 = 64;

/// When it is looked whose transaction has taken the place of one that nobody here has.
#[derive(Default)]
pub struct ReplacementCheck {
    /// Not before.
    due: Option<Instant>,
    /// How long it is not, after the last one.
    pause: Duration,
    /// Since when the looks say that it is another one.
    never_since: Option<Instant>,
}

impl ReplacementCheck {
    /// Whether one is due. The next one comes after twice as long.
    pub fn begin(&mut self, longest: Duration) -> bool {
        let now = Instant::now();
        if self.due.is_some_and(|due| now < due) {
            return false;
        }
        let pauses = Backoff::new(longest, longest.saturating_mul(LOOK_PAUSES));
        self.pause = pauses.after(self.pause);
        self.due = Some(now + self.pause);
        true
    }

    /// Notes what one has come to. True once they have said for `settling` that the transaction never comes.
    pub fn says(&mut self, never: bool, settling: Duration) -> bool {
        if !never {
            self.never_since = None;
            return false;
        }
        let now = Instant::now();
        let since = *self.never_since.get_or_insert(now);
        self.due = Some(since + settling);
        now.duration_since(since) >= settling
    }
}

/// One transaction that is followed.
pub struct FollowedTransaction {
    pub tracked: TrackedRequest,
    /// As the store has it.
    pub known: TransactionRow,
    /// The version of its row; 0 when there is none.
    pub version: u64,
    /// When it is asked for again.
    pub due: Instant,
    /// How long it is not, after that.
    pub pause: Duration,
    /// Since when no node has it, in milliseconds since the Unix epoch.
    pub missing_since_ms: Option<u64>,
    /// The answers that it never comes, or some of it, since the nodes last said otherwise or nothing.
    pub void: Option<VoidAnswers>,
    /// Where nobody here has it: how it is found out whose transaction has taken its place.
    pub look: ReplacementCheck,
    /// When a block was first seen to have it, in milliseconds since the Unix epoch: one that says another block each
    /// time must not seem to bring something new.
    pub mined_ms: Option<u64>,
    /// Since when the block is gone that had it.
    pub unmined_since: Option<Instant>,
    /// When it was last sent again, in milliseconds since the Unix epoch.
    pub resent_ms: u64,
    /// When it was last looked whether a number before it is free, in milliseconds since the Unix epoch.
    pub gap_sought_ms: u64,
    /// Why it cannot be sent again.
    pub in_the_way: Option<String>,
    /// Its problem, as it was last found, is that no node takes it again.
    pub is_not_taken: bool,
    /// The log has been told that no node takes it again.
    pub told_not_taken: bool,
    /// When who waits for the verdict last heard that it is missing, or has sent it itself.
    pub told: Instant,
    /// The nodes did not answer the last question.
    pub unanswered: bool,
}

impl FollowedTransaction {
    /// Asks again later.
    pub fn wait(&mut self, longest: Duration) {
        self.wait_for(Backoff::new(Duration::ZERO, longest).after(self.pause));
    }

    /// Asks again after a pause.
    pub fn wait_for(&mut self, pause: Duration) {
        (self.pause, self.due) = (pause, Instant::now() + pause);
    }

    /// Whether what the nodes say counts. That it never comes counts when they have said so for `settling_ms`,
    /// several times, and nothing else in between: those that answer now may all be behind the one that has it.
    pub fn is_settled(&mut self, sighting: &TransactionSighting, settling_ms: u64) -> bool {
        let never_comes = match sighting {
            TransactionSighting::Replaced(_) | TransactionSighting::Expired => true,
            TransactionSighting::Partial(parts) => parts.iter().any(|it| it.inclusion.is_none()),
            _ => false,
        };
        if !never_comes {
            self.void = None;
            return true;
        }
        let void = self.void.get_or_insert_with(VoidAnswers::new);
        void.add(settling_ms)
    }

    /// The nodes say nothing now: what they said before does not continue.
    pub fn note_silence(&mut self) {
        self.unanswered = true;
        self.void = None;
    }

    /// Why it never comes, where the nodes say more than that.
    pub fn void_reason(&self, sighting: &TransactionSighting) -> Option<String> {
        let TransactionSighting::Replaced(by) = sighting else {
            return None;
        };
        let used = match self.tracked.number {
            Some(number) => format!("nonce {number} was used"),
            None => "what it spends was used".into(),
        };
        Some(match by {
            Some(hash) => format!("{used} by the transaction {hash}, which is final"),
            None => format!("{used} by another transaction, which is final"),
        })
    }

    /// What is told to the one who waits to hear whether a node has it; `None` while there is nothing new. Nodes
    /// that answer again may have lost it when they did not.
    pub fn verdict(
        &mut self,
        sighting: TransactionSighting,
        longest: Duration,
        settling_ms: u64,
    ) -> Option<Verdict> {
        let is_back = std::mem::take(&mut self.unanswered);
        if !self.is_settled(&sighting, settling_ms) {
            return None;
        }
        match sighting {
            TransactionSighting::Missing => {
                let is_due = is_back || self.told.elapsed() >= longest;
                is_due.then(|| {
                    self.told = Instant::now();
                    Verdict::Missing
                })
            }
            // Anyone who hears that it failed asks for all of it again, and so for what is on the chain.
            TransactionSighting::Waiting
            | TransactionSighting::Mined(_)
            | TransactionSighting::Final(_)
            | TransactionSighting::Partial(_) => Some(Verdict::Accepted),
            void @ (TransactionSighting::Replaced(_) | TransactionSighting::Expired) => {
                Some(Verdict::Void(self.void_reason(&void)))
            }
        }
    }

    /// What a sighting changes of what the store has.
    pub fn see(
        &mut self,
        sighting: TransactionSighting,
        now_ms: u64,
        reorganised: Duration,
        settling_ms: u64,
    ) -> Option<TransactionRow> {
        if !self.is_settled(&sighting, settling_ms) {
            return None;
        }
        if sighting == TransactionSighting::Missing {
            self.missing_since_ms.get_or_insert(now_ms);
        } else {
            self.missing_since_ms = None;
            self.in_the_way = None;
        }
        let state = match sighting {
            TransactionSighting::Missing | TransactionSighting::Waiting => {
                TransactionState::Pending
            }
            TransactionSighting::Mined(inclusion) => TransactionState::Mined(inclusion),
            TransactionSighting::Final(inclusion) => TransactionState::Final(inclusion),
            TransactionSighting::Replaced(by) => TransactionState::Replaced { by },
            TransactionSighting::Expired => TransactionState::Dropped,
            TransactionSighting::Partial(parts) => TransactionState::Partial(parts),
        };
        if state != TransactionState::Pending {
            self.unmined_since = None;
        } else if matches!(self.known.state, TransactionState::Mined(_)) {
            let since = *self.unmined_since.get_or_insert_with(Instant::now);
            if since.elapsed() < reorganised {
                return None;
            }
        }
        let problem = match state {
            TransactionState::Pending => self.problem(now_ms),
            TransactionState::Mined(_) => {
                let since_ms = *self.mined_ms.get_or_insert(now_ms);
                let rules = self.tracked.account.network.rules();
                (now_ms.saturating_sub(since_ms) >= rules.finality_ms()).then(|| NOT_FINAL.into())
            }
            _ => None,
        };
        self.is_not_taken =
            problem.is_some() && state == TransactionState::Pending && self.in_the_way.is_some();
        let row = TransactionRow {
            at_ms: if is_same_kind(&state, &self.known.state) {
                self.known.at_ms
            } else {
                now_ms
            },
            waits_since_block: self
                .known
                .waits_since_block
                .filter(|_| state == TransactionState::Pending),
            state,
            problem,
        };
        (row != self.known).then_some(row)
    }

    /// What it changes that the nodes do not say where it is: nobody must have to wait for ever without knowing it.
    pub fn unseen(&self, now_ms: u64) -> Option<TransactionRow> {
        let rules = self.tracked.account.network.rules();
        let (since_ms, most_ms) = match self.mined_ms {
            Some(since_ms) => (since_ms, rules.finality_ms()),
            None => (self.tracked.transaction.sent_at_ms, rules.patience_ms()),
        };
        let is_overdue = now_ms.saturating_sub(since_ms) >= most_ms;
        (is_overdue && self.known.problem.is_none()).then(|| TransactionRow {
            problem: Some(NOT_SAID.into()),
            ..self.known.clone()
        })
    }

    /// From now on blocks are counted that do not take it.
    pub fn begin_count(
        &self,
        head: Option<u64>,
        changed: Option<TransactionRow>,
    ) -> Option<TransactionRow> {
        let now = changed.as_ref().unwrap_or(&self.known);
        // What a node said that is far ahead of all others, or on another chain, must not stop the count for ever.
        let begins = head.filter(|head| {
            now.waits_since_block
                .is_none_or(|since| since > head.saturating_add(MAX_NODES_APART))
        });
        if begins.is_none() || now.state != TransactionState::Pending {
            return changed;
        }
        Some(TransactionRow {
            waits_since_block: begins,
            ..now.clone()
        })
    }

    /// Why it needs a person's attention; `None` while it may just take its time.
    fn problem(&self, now_ms: u64) -> Option<String> {
        let waited_ms = now_ms.saturating_sub(self.tracked.transaction.sent_at_ms);
        if waited_ms < self.tracked.account.network.rules().patience_ms() {
            return None;
        }
        Some(match (&self.in_the_way, self.missing_since_ms) {
            (Some(reason), _) => format!("no node accepts it again: {reason}"),
            (None, Some(_)) => "no node has it; it is sent again".into(),
            (None, None) => "nodes have it, but no block includes it: its fee may be too low, or \
                             an earlier nonce of the wallet is missing"
                .into(),
        })
    }

    /// Whether nodes have lost it for so long that it is sent again. A clock that was set back must not stop that.
    pub fn is_to_be_sent(&self, now_ms: u64) -> bool {
        self.missing_since_ms
            .is_some_and(|since_ms| now_ms.abs_diff(since_ms) >= RESEND_MS)
            && now_ms.abs_diff(self.resent_ms) >= RESEND_MS
    }

    /// Whether a node says that it has it, and no block takes it for so long that every node gets it: that one may have
    /// passed it on to nobody. The same where a block has it by what one says, and it does not become final.
    pub fn is_to_be_spread(&self, now_ms: u64) -> bool {
        let rules = self.tracked.account.network.rules();
        let (since_ms, most_ms, pause_ms) = match self.known.state {
            TransactionState::Pending if self.missing_since_ms.is_none() => {
                let sent_ms = self.tracked.transaction.sent_at_ms;
                (sent_ms, rules.patience_ms(), RESEND_MS)
            }
            // Seldom: while a node is away this is true of all that is final by the others.
            TransactionState::Mined(_) => {
                let since_ms = self.mined_ms.unwrap_or(now_ms);
                (since_ms, rules.finality_ms(), rules.finality_ms())
            }
            _ => return false,
        };
        now_ms.saturating_sub(since_ms) >= most_ms && now_ms.abs_diff(self.resent_ms) >= pause_ms
    }

    /// Logs what may need a person's attention.
    pub fn tell(&mut self, row: &TransactionRow) {
        let request = self.tracked.request;
        let hash = &self.tracked.transaction.signed.tx_hash;
        match (&self.known.state, &row.state) {
            (TransactionState::Mined(before), TransactionState::Pending) => {
                tracing::warn!(%request, hash, block = before.block, "the chain was reorganised: a transaction is \
                    no longer in a block");
            }
            (_, TransactionState::Mined(to) | TransactionState::Final(to)) if !to.success => {
                tracing::warn!(%request, hash, block = to.block, "a transaction failed on the chain, and only cost its fee");
            }
            (_, TransactionState::Replaced { .. } | TransactionState::Dropped) => {
                let detail = words(&row.state);
                tracing::warn!(%request, hash, detail, "a transaction can never be mined");
            }
            (_, TransactionState::Partial(_)) => {
                let detail = words(&row.state);
                tracing::warn!(%request, detail, "only some of a request's transactions are on the chain");
            }
            _ => {}
        }
        // Nodes that lose it and have it again change the reason each time.
        let is_new = self.known.problem.is_none() || !is_same_kind(&self.known.state, &row.state);
        // Why none takes it is news, once.
        let is_new = is_new || self.is_not_taken && !self.told_not_taken;
        self.told_not_taken |= self.is_not_taken;
        if let Some(problem) = row.problem.as_ref().filter(|_| is_new) {
            if let TransactionState::Mined(_) = row.state {
                tracing::warn!(%request, hash, problem, "a transaction is not final");
            } else {
                tracing::warn!(%request, hash, problem, "a transaction is not mined");
            }
        }
    }
}

/// Whether it is not where a transaction is that has changed, but at most in which block.
pub fn is_same_kind(one: &TransactionState, other: &TransactionState) -> bool {
    std::mem::discriminant(one) == std::mem::discriminant(other)
}

/// A state in words, for people.
pub fn words(state: &TransactionState) -> String {
    match state {
        TransactionState::Pending => "no block includes it".into(),
        TransactionState::Mined(inclusion) | TransactionState::Final(inclusion) => {
            let came = if inclusion.success {
                ""
            } else {
                ", where it failed"
            };
            format!("block {}{came}", inclusion.block)
        }
        TransactionState::Replaced { by: Some(hash) } => format!("{hash} has replaced it"),
        TransactionState::Replaced { by: None } => "another transaction has replaced it".into(),
        TransactionState::Dropped => "it has expired, and no block includes it".into(),
        TransactionState::Partial(parts) => {
            let part = |TransactionPart { hash, inclusion }: &TransactionPart| match inclusion {
                Some(inclusion) if inclusion.success => {
                    format!("{hash}: block {}", inclusion.block)
                }
                Some(inclusion) => format!("{hash}: block {}, where it failed", inclusion.block),
                None => format!("{hash}: no block includes it, and none ever will"),
            };
            parts.iter().map(part).collect::<Vec<_>>().join("; ")
        }
    }
}
