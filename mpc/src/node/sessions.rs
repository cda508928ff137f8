//! The sessions of a node. Each has a queue that one pool thread at a time works off.

mod outcome;
mod spans;
mod table;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use covault_core::{
    fault::Fault,
    ids::{RequestId, SessionId, VaultId},
    order::{NodeId, ReshareOrder},
    scheme::Scheme,
};

use self::table::{EarlyMessages, RunningCount, SessionCell, cost, lock};
pub(super) use self::{spans::SessionSpans, table::Sessions};
use super::{Node, keygen_quota::SessionReservation, refusals::MessageRefusal};
use crate::{
    backend::KeyShare,
    envelope::{EnvelopeHeader, OpenedEnvelope},
    message::OrderReply,
    meter,
    pool::Priority,
    runner::{ProtocolRun, RunFailure},
    shares::ShareRecord,
};

/// The longest that an attempt keeps a session, in milliseconds.
pub(super) const MAX_ATTEMPT_MS: u64 = 60_000;
/// The longest that a key generation or a reshare keeps a session, in milliseconds.
pub(super) const MAX_KEYGEN_MS: u64 = 600_000;
/// How long messages wait for the order that explains them, in milliseconds.
const EARLY_MS: u64 = 10_000;
/// Sessions that others can make us keep before an order has come.
const MAX_SESSIONS: usize = 50_000;

type AttemptId = (SessionId, u32);

enum SessionState {
    Waiting,
    Running(Box<RunningSession>),
    Finished,
}

struct RunningSession {
    /// Taken while it runs.
    _room: SessionReservation,
    _count: RunningCount,
    run: ProtocolRun,
    orchestrator: NodeId,
    epoch: u32,
    /// The last round that the orchestrator was told of.
    told_round: u16,
    job: SessionJob,
}

/// What a session is for, with what its outcome needs.
pub(super) enum SessionJob {
    /// Of which vault, with which scheme.
    Sign {
        vault: VaultId,
        request: RequestId,
        scheme: Scheme,
        spans: SessionSpans,
    },
    /// What to store with the share.
    Keygen(Box<dyn FnOnce(KeyShare) -> ShareRecord + Send>),
    /// The order for a new generation of shares.
    Reshare(Box<ReshareOrder>),
}

impl SessionJob {
    /// As metrics call it.
    fn kind(&self) -> &'static str {
        match self {
            Self::Sign { .. } => "sign",
            Self::Keygen(_) => "keygen",
            Self::Reshare(_) => "reshare",
        }
    }

    /// Before what its work goes in the pool.
    pub(super) fn priority(&self) -> Priority {
        match self {
            Self::Sign { scheme, .. } => Priority::SigningWith(*scheme),
            Self::Keygen(_) | Self::Reshare(_) => Priority::Keygen,
        }
    }
}

/// A run that is about to begin.
pub(super) struct SessionStart {
    pub room: SessionReservation,
    pub key: AttemptId,
    pub run: ProtocolRun,
    pub orchestrator: NodeId,
    /// The generation of shares it uses or makes.
    pub epoch: u32,
    pub until_ms: u64,
    pub job: SessionJob,
}

impl Node {
    /// Takes a protocol message, whose sender is certain, on a pool thread that works with this priority.
    pub(super) fn protocol(
        self: &Arc<Self>,
        header: EnvelopeHeader,
        opened: OpenedEnvelope,
        thread: Priority,
    ) {
        let EnvelopeHeader {
            epoch,
            session,
            attempt,
            from,
            ..
        } = header;
        let key = (session, attempt);
        let mut table = lock(&self.sessions.table);
        let new = !table.cells.contains_key(&key);
        if new && table.cells.len() >= MAX_SESSIONS {
            return self.drop_message(&from, MessageRefusal::Early);
        }
        let mut early = EarlyMessages {
            holder: self.keys.is_holder(&from),
            bytes: cost(&opened),
            sessions: usize::from(new),
        };
        if new && let Err(refusal) = table.wait(from, early) {
            return self.drop_message(&from, refusal);
        }
        let cell = table.cell(key, self.clock.now_ms().saturating_add(EARLY_MS));
        let mut mail = lock(&cell.mail);
        match &mail.peers {
            Some(peers) if !peers.contains(&from) => {
                return self.drop_message(&from, MessageRefusal::NotInSession);
            }
            Some(_) if mail.epoch != epoch => {
                return self.drop_message(&from, MessageRefusal::WrongEpoch);
            }
            Some(_) => {}
            None => {
                // As it was counted first: what is freed must be what was taken.
                if let Some(own) = mail.early.get(&from) {
                    early.holder = own.holder;
                }
                if !new && let Err(refusal) = table.wait(from, early) {
                    return self.drop_message(&from, refusal);
                }
                let own = mail.early.entry(from).or_default();
                own.holder = early.holder;
                own.bytes = own.bytes.saturating_add(early.bytes);
                own.sessions = own.sessions.saturating_add(early.sessions);
            }
        }
        if !mail.put(header, opened) {
            return self.drop_message(&from, MessageRefusal::Queue);
        }
        drop(table);
        if mail.peers.is_some() && !mail.scheduled {
            mail.scheduled = true;
            let priority = mail.priority;
            drop(mail);
            if priority == thread {
                self.guarded(&cell, || self.drain_mailbox(&cell));
            } else {
                self.schedule(priority, cell);
            }
        }
    }

    fn schedule(self: &Arc<Self>, priority: Priority, cell: Arc<SessionCell>) {
        let node = Arc::clone(self);
        self.pool.spawn(priority, move || {
            node.guarded(&cell, || node.drain_mailbox(&cell))
        });
    }

    /// Runs a step. Should a library panic on what a peer sent, the session ends, not the node.
    fn guarded(self: &Arc<Self>, cell: &Arc<SessionCell>, step: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(step)).is_ok() {
            return;
        }
        lock(&cell.mail).scheduled = false;
        let work = cell.end(&mut lock(&cell.work));
        let (session, attempt) = cell.key;
        tracing::error!(node = %self.name, %session, attempt, "a session panicked");
        if let SessionState::Running(running) = work {
            let reply = OrderReply::Failed {
                culprits: Vec::new(),
                missing: Vec::new(),
                reason: "the session panicked".into(),
                evidence: String::new(),
            };
            self.answer(&running, (session, attempt), &reply);
        }
    }

    /// Tells a run's orchestrator of it.
    fn answer(&self, running: &RunningSession, (session, attempt): AttemptId, reply: &OrderReply) {
        let (orchestrator, epoch) = (running.orchestrator, running.epoch);
        self.reply(orchestrator, epoch, session, attempt, reply);
    }

    /// Begins a claimed run, on a pool thread: its first step, then whatever came early.
    pub(super) fn begin(self: &Arc<Self>, begin: SessionStart) {
        let SessionStart {
            room,
            key,
            run,
            orchestrator,
            epoch,
            until_ms,
            job,
        } = begin;
        if self.resumption.noticed().is_some() {
            // Its nonces may be in another machine too. The node is about to end.
            return;
        }
        if self.clock.now_ms() >= until_ms {
            // The asker has given up; what is late must not delay what is not.
            tracing::info!(node = %self.name, session = %key.0, "too late to begin");
            return;
        }
        let cell = {
            // No limit here: a trusted orchestrator asked for it.
            let mut table = lock(&self.sessions.table);
            let cell = table.cell(key, until_ms);
            let mut mail = lock(&cell.mail);
            if mail.peers.is_some() {
                return;
            }
            for _ in 0..mail.queue.len() {
                let Some((header, opened)) = mail.pop() else {
                    break;
                };
                let refusal = match header {
                    header if !run.is_peer(&header.from) => MessageRefusal::NotInSession,
                    header if header.epoch != epoch => MessageRefusal::WrongEpoch,
                    header => {
                        mail.put(header, opened);
                        continue;
                    }
                };
                self.drop_message(&header.from, refusal);
            }
            mail.peers = Some(run.peers());
            mail.epoch = epoch;
            mail.scheduled = true;
            mail.priority = job.priority();
            mail.until_ms = until_ms;
            table.times.add(until_ms, key);
            table.free(std::mem::take(&mut mail.early));
            drop(mail);
            cell
        };
        let running = RunningSession {
            _room: room,
            _count: self.sessions.begin(),
            run,
            orchestrator,
            epoch,
            told_round: 0,
            job,
        };
        *lock(&cell.work) = SessionState::Running(Box::new(running));
        self.guarded(&cell, || {
            {
                let mut work = lock(&cell.work);
                if let SessionState::Running(running) = &mut *work {
                    running.job.enter_round(1);
                    let outcome = match self.stopped(running) {
                        Some(failed) => Err(failed),
                        None => running.run.start(&self.entropy.session(key)),
                    };
                    self.apply_outcome(&cell, &mut work, outcome);
                }
            }
            self.drain_mailbox(&cell);
        });
    }

    /// Works off a cell's queue until it is empty.
    fn drain_mailbox(self: &Arc<Self>, cell: &Arc<SessionCell>) {
        loop {
            let (next, until_ms) = {
                let mut mail = lock(&cell.mail);
                let next = mail.pop();
                if next.is_none() {
                    mail.scheduled = false;
                }
                (next, mail.until_ms)
            };
            let Some((header, opened)) = next else { return };
            let mut work = lock(&cell.work);
            let SessionState::Running(running) = &mut *work else {
                continue;
            };
            if self.resumption.noticed().is_some() {
                // Another machine may answer something else from the same state.
                continue;
            }
            if self.clock.now_ms() >= until_ms {
                // The reaper reports it; computing on would only delay others.
                continue;
            }
            let EnvelopeHeader {
                from,
                round,
                sequence,
                ..
            } = header;
            // A party may have cheated in another session in the meantime. Each trial of a cheat tells
            // its author something, so there is not a second one: neither is a message of theirs
            // looked at, nor is the answer to one that was being looked at sent. What is frozen or rejected sends no answer:
            // that takes a look at files, once.
            let outcome = match self.banned_in(&running.run) {
                Some(failed) => Err(failed),
                None => running
                    .run
                    .receive(
                        from,
                        round,
                        sequence,
                        (opened.fingerprint, opened.signed),
                        opened.body,
                    )
                    .and_then(|progress| self.stopped(running).map_or(Ok(progress), Err)),
            };
            self.apply_outcome(cell, &mut work, outcome);
        }
    }

    /// How a session ends that must not continue: a party is banned, or its vault was frozen.
    fn stopped(&self, running: &RunningSession) -> Option<RunFailure> {
        let frozen = match running.job {
            SessionJob::Sign { vault, request, .. } => {
                let thawed = self.check_thawed(vault);
                let signable = thawed.and_then(|()| self.check_not_vetoed(vault, request));
                signable.err()
            }
            SessionJob::Keygen(_) | SessionJob::Reshare(_) => None,
        };
        let failure = |fault: Fault| RunFailure {
            reason: fault.message().to_owned(),
            culprits: Vec::new(),
            ban: Vec::new(),
            evidence: None,
        };
        frozen.map(failure).or_else(|| self.banned_in(&running.run))
    }

    /// How a run ends in which a party is banned from the key.
    fn banned_in(&self, run: &ProtocolRun) -> Option<RunFailure> {
        let root = run.root()?;
        let mut peers = run.peers().into_iter();
        let banned = peers.find(|peer| self.claims.banned(root, peer))?;
        Some(RunFailure {
            reason: "a party is banned from this key".into(),
            culprits: vec![banned],
            ban: Vec::new(),
            evidence: None,
        })
    }

    /// Ends what is past its deadline, and forgets what ended long ago.
    pub(super) fn expire_sessions(self: &Arc<Self>) {
        let now_ms = self.clock.now_ms();
        lock(&self.sessions.accepted).forget(now_ms);
        let due = self.sessions.due(now_ms);
        meter::sessions(&self.name, self.sessions.running());
        for cell in due {
            // One that is being worked on is looked at next time.
            let Some(mut work) = cell.work.try_lock() else {
                continue;
            };
            let SessionState::Running(running) = &mut *work else {
                continue;
            };
            let (session, attempt) = cell.key;
            let missing = running.run.missing();
            let misled = running.run.misled();
            let reason = match misled.is_empty() {
                true => "timed out",
                false => {
                    tracing::error!(
                        node = %self.name,
                        %session,
                        attempt,
                        ?misled,
                        orchestrator = ?running.orchestrator,
                        "these nodes received other orders from the orchestrator"
                    );
                    "timed out: the orchestrator sent the signers different orders"
                }
            };
            meter::session_ended(&self.name, running.job.kind(), "timed_out");
            running.job.failed("timed_out");
            tracing::info!(node = %self.name, %session, attempt, ?missing, "session timed out");
            let reply = OrderReply::Failed {
                culprits: Vec::new(),
                missing,
                reason: reason.into(),
                evidence: String::new(),
            };
            self.answer(running, (session, attempt), &reply);
            cell.end(&mut work);
        }
    }
}
