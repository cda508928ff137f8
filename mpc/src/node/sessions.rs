//! The sessions of a node. Each has a queue that one pool thread at a time works off.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    fs, io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use covault_core::{
    fault::Fault,
    ids::{SessionId, VaultId},
    order::{NodeId, ReshareOrder},
};
use parking_lot::{Mutex, MutexGuard};

use tokio::time::sleep;

use super::{EXPIRE_INTERVAL, Node, keygen_quota::SessionReservation, refusals::MessageRefusal};
use crate::{
    backend::KeyShare,
    envelope::{EnvelopeHeader, EnvelopeKind, OpenedEnvelope},
    evidence::Equivocation,
    message::{MAX_INPUTS, OrderReply},
    meter,
    pool::Priority,
    runner::{Finished, ProtocolMessage, ProtocolRun, RunFailure, RunProgress},
    shares::ShareRecord,
};

/// The longest that an attempt keeps a session, in milliseconds.
pub(super) const MAX_ATTEMPT_MS: u64 = 60_000;
/// The longest that a key generation or a reshare keeps a session, in milliseconds.
pub(super) const MAX_KEYGEN_MS: u64 = 600_000;
/// How long messages wait for the order that explains them, in milliseconds.
const EARLY_MS: u64 = 10_000;
/// How long a finished session is remembered, so that late messages find it over.
const REMEMBERED_MS: u64 = 5_000;
/// How long an order is remembered after its end, in milliseconds: a bus that was away delivers
/// what it has not acknowledged once more.
const REPEATED_MS: u64 = 60_000;
/// Limits of what others can make us keep before an order has come.
const MAX_SESSIONS: usize = 50_000;
const MAX_EARLY_BYTES: usize = 64 << 20;
/// Of those that share no key with us: everybody before the first key, and strangers.
const MAX_NON_HOLDER_BYTES: usize = 16 << 20;
/// Of one sender, no matter who it is: bytes, and sessions that it was the first to speak in.
const MAX_EARLY_EACH: usize = 16 << 20;
const MAX_SESSIONS_EACH: usize = 10_000;
/// Messages, and bytes, of one sender that wait in one session: more than a round or two of any
/// protocol has. What a run keeps is bounded by itself.
const MAX_QUEUED: usize = 8 * MAX_INPUTS;
const MAX_QUEUED_BYTES: usize = 16 << 20;
/// Files of evidence that a node keeps.
const MAX_EVIDENCE: usize = 1_000;
/// What a message costs in addition to its body, about.
const OVERHEAD: usize = 256;

type AttemptId = (SessionId, u32);

/// Sessions by id and attempt. Locks are taken in this order: work, table, mail.
#[derive(Default)]
pub(super) struct Sessions {
    table: Mutex<SessionTable>,
    /// Orders that were accepted: fingerprint, and when to forget.
    accepted: Mutex<HashMap<AttemptId, ([u8; 32], u64)>>,
}

#[derive(Default)]
struct SessionTable {
    cells: HashMap<AttemptId, Arc<SessionCell>>,
    /// What waits for its order, of whom. In all: bytes of holders of our keys, and of others.
    early: HashMap<NodeId, EarlyMessages>,
    holders: usize,
    non_holders: usize,
}

/// What of one sender waits for orders.
#[derive(Default, Clone, Copy)]
struct EarlyMessages {
    holder: bool,
    bytes: usize,
    /// Sessions that nobody else has spoken in before.
    sessions: usize,
}

/// One session.
struct SessionCell {
    key: AttemptId,
    mail: Mutex<Mailbox>,
    /// Held by the one thread that works.
    work: Mutex<SessionState>,
    /// Its run has ended: what still comes for it is of no use.
    over: AtomicBool,
}

struct Mailbox {
    queue: VecDeque<(EnvelopeHeader, OpenedEnvelope)>,
    /// What of each sender is in the queue: messages, bytes.
    queued: HashMap<NodeId, (usize, usize)>,
    /// What is counted as early here; empty once the order has come.
    early: HashMap<NodeId, EarlyMessages>,
    epoch: u32,
    /// A job for the queue is waiting or running.
    scheduled: bool,
    /// Who may speak, once the order has come.
    peers: Option<Vec<NodeId>>,
    priority: Priority,
    /// When the cell has to go or the run to end, in milliseconds since the Unix epoch.
    until_ms: u64,
}

enum SessionState {
    Waiting,
    Running(Box<RunningSession>),
    Finished,
}

struct RunningSession {
    /// Taken while it runs.
    _room: SessionReservation,
    run: ProtocolRun,
    orchestrator: NodeId,
    epoch: u32,
    job: SessionJob,
}

/// What a session is for, with what its outcome needs.
pub(super) enum SessionJob {
    /// Of which vault.
    Sign(VaultId),
    /// What to store with the share.
    Keygen(Box<dyn FnOnce(KeyShare) -> ShareRecord + Send>),
    /// The order for a new generation of shares.
    Reshare(Box<ReshareOrder>),
}

impl SessionJob {
    /// As metrics call it.
    fn kind(&self) -> &'static str {
        match self {
            Self::Sign(_) => "sign",
            Self::Keygen(_) => "keygen",
            Self::Reshare(_) => "reshare",
        }
    }

    /// Before what its work goes in the pool.
    pub(super) fn priority(&self) -> Priority {
        match self {
            Self::Sign(_) => Priority::Signing,
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl Mailbox {
    /// Queues a message; false when its sender has too much there.
    fn put(&mut self, header: EnvelopeHeader, opened: OpenedEnvelope) -> bool {
        let (messages, bytes) = self.queued.entry(header.from).or_default();
        let more = bytes.saturating_add(cost(&opened));
        if *messages >= MAX_QUEUED || more > MAX_QUEUED_BYTES {
            return false;
        }
        *messages = messages.saturating_add(1);
        *bytes = more;
        self.queue.push_back((header, opened));
        true
    }

    /// The next message.
    fn pop(&mut self) -> Option<(EnvelopeHeader, OpenedEnvelope)> {
        let (header, opened) = self.queue.pop_front()?;
        if let Some((messages, bytes)) = self.queued.get_mut(&header.from) {
            *messages = messages.saturating_sub(1);
            *bytes = bytes.saturating_sub(cost(&opened));
        }
        Some((header, opened))
    }
}

/// What a message takes of memory, in bytes.
fn cost(opened: &OpenedEnvelope) -> usize {
    opened.body.len().saturating_add(OVERHEAD)
}

impl SessionTable {
    /// The cell of a session; made when missing.
    fn cell(&mut self, key: AttemptId, until_ms: u64) -> Arc<SessionCell> {
        let make = || {
            Arc::new(SessionCell {
                key,
                mail: Mutex::new(Mailbox {
                    queue: VecDeque::new(),
                    queued: HashMap::new(),
                    early: HashMap::new(),
                    epoch: 0,
                    scheduled: false,
                    peers: None,
                    priority: Priority::Signing,
                    until_ms,
                }),
                work: Mutex::new(SessionState::Waiting),
                over: AtomicBool::new(false),
            })
        };
        Arc::clone(self.cells.entry(key).or_insert_with(make))
    }

    /// Counts what `from` wants to have waiting for an order, if there is room for it.
    fn wait(&mut self, from: NodeId, more: EarlyMessages) -> Result<(), MessageRefusal> {
        let (all, limit) = if more.holder {
            (&mut self.holders, MAX_EARLY_BYTES)
        } else {
            (&mut self.non_holders, MAX_NON_HOLDER_BYTES)
        };
        let own = self.early.get(&from).copied().unwrap_or_default();
        let bytes = own.bytes.saturating_add(more.bytes);
        let sessions = own.sessions.saturating_add(more.sessions);
        let sum = all.saturating_add(more.bytes);
        if sum > limit || bytes > MAX_EARLY_EACH || sessions > MAX_SESSIONS_EACH {
            return Err(MessageRefusal::Early);
        }
        *all = sum;
        let own = EarlyMessages {
            holder: more.holder,
            bytes,
            sessions,
        };
        self.early.insert(from, own);
        Ok(())
    }

    /// These wait no more.
    fn free(&mut self, early: HashMap<NodeId, EarlyMessages>) {
        for (from, gone) in early {
            let all = if gone.holder {
                &mut self.holders
            } else {
                &mut self.non_holders
            };
            *all = all.saturating_sub(gone.bytes);
            if let Entry::Occupied(mut entry) = self.early.entry(from) {
                let own = entry.get_mut();
                own.bytes = own.bytes.saturating_sub(gone.bytes);
                own.sessions = own.sessions.saturating_sub(gone.sessions);
                if own.bytes == 0 && own.sessions == 0 {
                    entry.remove();
                }
            }
        }
    }
}

impl SessionCell {
    /// Ends the run; what it was.
    fn end(&self, work: &mut SessionState) -> SessionState {
        self.over.store(true, Ordering::Relaxed);
        std::mem::replace(work, SessionState::Finished)
    }
}

impl Sessions {
    /// Whether the session that this message names has already run to its end here. What comes for it
    /// need not even be verified.
    pub(super) fn is_over(&self, header: &EnvelopeHeader) -> bool {
        let table = lock(&self.table);
        let Some(cell) = table.cells.get(&(header.session, header.attempt)) else {
            return false;
        };
        let peers = &lock(&cell.mail).peers;
        cell.over.load(Ordering::Relaxed)
            && peers
                .as_ref()
                .is_some_and(|peers| peers.contains(&header.from))
    }

    /// The fingerprint of the order that was accepted for this attempt.
    pub(super) fn accepted(&self, key: AttemptId) -> Option<[u8; 32]> {
        lock(&self.accepted)
            .get(&key)
            .map(|(fingerprint, _)| *fingerprint)
    }

    /// Notes an order; false when this very one is noted already.
    pub(super) fn accept(&self, key: AttemptId, fingerprint: [u8; 32], until_ms: u64) -> bool {
        let forget_ms = until_ms.saturating_add(REPEATED_MS);
        lock(&self.accepted)
            .insert(key, (fingerprint, forget_ms))
            .is_none_or(|(known, _)| known != fingerprint)
    }
}

impl Node {
    /// Takes a protocol message, whose sender is certain, on a pool thread.
    pub(super) fn protocol(self: &Arc<Self>, header: EnvelopeHeader, opened: OpenedEnvelope) {
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
            if priority == Priority::Signing {
                // We are on a pool thread already.
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
            self.reply(
                running.orchestrator,
                running.epoch,
                session,
                attempt,
                &reply,
            );
        }
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
            table.free(std::mem::take(&mut mail.early));
            drop(mail);
            cell
        };
        let running = RunningSession {
            _room: room,
            run,
            orchestrator,
            epoch,
            job,
        };
        *lock(&cell.work) = SessionState::Running(Box::new(running));
        self.guarded(&cell, || {
            {
                let mut work = lock(&cell.work);
                if let SessionState::Running(running) = &mut *work {
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
            // looked at, nor is the answer to one that was being looked at sent.
            let outcome = match self.stopped(running) {
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

    /// How a session ends that must not go on: a party is banned, or its vault was frozen.
    fn stopped(&self, running: &RunningSession) -> Option<RunFailure> {
        let frozen = match running.job {
            SessionJob::Sign(vault) => self.check_thawed(vault).err(),
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

    fn apply_outcome(
        self: &Arc<Self>,
        cell: &SessionCell,
        work: &mut SessionState,
        outcome: Result<RunProgress, RunFailure>,
    ) {
        let (session, attempt) = cell.key;
        match outcome {
            Ok(RunProgress { send, finished }) => {
                let SessionState::Running(running) = &*work else {
                    return;
                };
                let epoch = running.epoch;
                for message in send {
                    self.send(epoch, cell.key, running.run.view(), &message);
                }
                let Some(finished) = finished else { return };
                let SessionState::Running(running) = cell.end(work) else {
                    return;
                };
                meter::session_ended(&self.name, running.job.kind(), "done");
                match (finished, running.job) {
                    (Finished::Contributed, _) => {}
                    (Finished::Signed(signatures), _) => {
                        let reply = OrderReply::Signed(signatures);
                        self.reply(running.orchestrator, epoch, session, attempt, &reply);
                    }
                    (Finished::KeyMade(share), SessionJob::Keygen(record)) => {
                        self.keep_and_reply(record(share), running.orchestrator, epoch, cell.key);
                    }
                    (Finished::Reshared(share), SessionJob::Reshare(order)) => {
                        let reply = self.prepared(*order, share).unwrap_or_else(|fault| {
                            tracing::error!(node = %self.name, ?fault, "failed to store a new share");
                            OrderReply::Refused(fault)
                        });
                        self.reply(running.orchestrator, epoch, session, attempt, &reply);
                    }
                    // A run ends as what it was begun as.
                    (Finished::KeyMade(_) | Finished::Reshared(_), _) => {}
                }
            }
            Err(RunFailure {
                reason,
                culprits,
                ban,
                evidence,
            }) => {
                let SessionState::Running(running) = cell.end(work) else {
                    return;
                };
                tracing::warn!(node = %self.name, %session, attempt, %reason, ?culprits, "session aborted");
                meter::session_ended(&self.name, running.job.kind(), "failed");
                let reply = OrderReply::Failed {
                    culprits,
                    missing: Vec::new(),
                    reason,
                    evidence: evidence
                        .map_or_else(String::new, |it| self.keep_evidence(cell.key, &it)),
                };
                self.ban_then_reply(cell.key, &running, ban, reply);
            }
        }
    }

    /// Writes evidence of an equivocation into the node's folder, as text.
    fn keep_evidence(&self, (session, attempt): AttemptId, found: &Equivocation) -> String {
        let text = found.write();
        let path = self.evidence.join(format!("{session}-{attempt}.json"));
        let written = fs::create_dir_all(&self.evidence).and_then(|()| {
            if fs::read_dir(&self.evidence)?.count() >= MAX_EVIDENCE {
                return Err(io::Error::other("too many evidence files"));
            }
            fs::write(&path, &text)
        });
        match written {
            Ok(()) => {
                tracing::error!(
                    node = %self.name,
                    path = %path.display(),
                    "a node signed two conflicting messages: check with covault node evidence"
                );
            }
            Err(error) => tracing::warn!(node = %self.name, %error, "failed to store evidence"),
        }
        text
    }

    /// Stores a new share, and confirms it once the note about its vault is on disk.
    fn keep_and_reply(
        self: &Arc<Self>,
        record: ShareRecord,
        orchestrator: NodeId,
        epoch: u32,
        (session, attempt): AttemptId,
    ) {
        let vault = record.vault;
        let root = match self.keep(record) {
            Ok(root) => root,
            Err(fault) => {
                tracing::error!(node = %self.name, ?fault, "failed to store a share");
                let reply = OrderReply::Refused(fault);
                return self.reply(orchestrator, epoch, session, attempt, &reply);
            }
        };
        self.preprocessor.replenish(true);
        let node = Arc::clone(self);
        self.runtime.spawn(async move {
            let noted = node.note_made(&root.public_key, orchestrator, vault).await;
            let reply = match noted {
                Ok(()) => match node.keys.get(&root.public_key) {
                    Some(key) => node.key_made(&key),
                    None => return,
                },
                // The node ends; the share is there, and counts from the next start on.
                Err(error) => OrderReply::Refused(
                    Fault::unavailable("a signer's disk failed").caused_by(error),
                ),
            };
            node.reply(orchestrator, epoch, session, attempt, &reply);
        });
    }

    /// A ban is on disk before anybody hears of the failure: the next attempt may come at once.
    fn ban_then_reply(
        self: &Arc<Self>,
        (session, attempt): AttemptId,
        running: &RunningSession,
        ban: Vec<NodeId>,
        reply: OrderReply,
    ) {
        let (orchestrator, epoch) = (running.orchestrator, running.epoch);
        let root = match running.run.root() {
            Some(root) if !ban.is_empty() => root.to_vec(),
            _ => return self.reply(orchestrator, epoch, session, attempt, &reply),
        };
        // In force before this run lets go of its cell, for all that run and all that come.
        for peer in &ban {
            self.claims.ban_now(&root, *peer);
            tracing::error!(node = %self.name, ?peer, "peer banned from this key: it cheated in signing");
        }
        let (node, now_ms) = (Arc::clone(self), self.clock.now_ms());
        self.runtime.spawn(async move {
            for peer in ban {
                while let Err(error) = node.claims.ban(&root, peer, now_ms).await {
                    tracing::error!(node = %node.name, %error, "failed to store the ban");
                    if node.claims.is_broken() {
                        // The node ends. Nobody hears of the failure from it.
                        return;
                    }
                    sleep(EXPIRE_INTERVAL).await;
                }
            }
            node.reply(orchestrator, epoch, session, attempt, &reply);
        });
    }

    fn send(
        &self,
        epoch: u32,
        (session, attempt): AttemptId,
        view: &[u8],
        message: &ProtocolMessage,
    ) {
        let header = EnvelopeHeader {
            kind: EnvelopeKind::Protocol,
            sealed: message.private,
            epoch,
            session,
            attempt,
            round: message.round,
            sequence: message.sequence,
            from: self.codec.id(),
            to: message.to,
        };
        if let Err(fault) = self.codec.send_parts(header, &[view, &message.body]) {
            tracing::warn!(node = %self.name, ?fault, "cannot send");
        }
    }

    /// Ends what is past its deadline, and forgets what ended long ago.
    pub(super) fn expire_sessions(self: &Arc<Self>) {
        let now_ms = self.clock.now_ms();
        lock(&self.sessions.accepted).retain(|_, (_, forget_ms)| now_ms < *forget_ms);
        let due: Vec<Arc<SessionCell>> = {
            let mut table = lock(&self.sessions.table);
            let mut freed = Vec::new();
            let mut due = Vec::new();
            let mut running = 0_usize;
            table.cells.retain(|_, cell| {
                // Held for moments only.
                let mut mail = lock(&cell.mail);
                if mail.peers.is_some() {
                    // One that cannot be looked at is being worked on.
                    let over = cell
                        .work
                        .try_lock()
                        .is_some_and(|work| matches!(*work, SessionState::Finished));
                    running = running.saturating_add(usize::from(!over));
                    if now_ms >= mail.until_ms {
                        due.push(Arc::clone(cell));
                    }
                    return now_ms < mail.until_ms.saturating_add(REMEMBERED_MS);
                }
                if now_ms < mail.until_ms {
                    return true;
                }
                freed.push(std::mem::take(&mut mail.early));
                false
            });
            for early in freed {
                table.free(early);
            }
            // A simulation must see them in the same order every time.
            due.sort_unstable_by_key(|cell| cell.key);
            meter::sessions(&self.name, running);
            due
        };
        for cell in due {
            // One that is being worked on is looked at next time.
            let Some(mut work) = cell.work.try_lock() else {
                continue;
            };
            let SessionState::Running(running) = &*work else {
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
                        "these nodes report other orders of the orchestrator"
                    );
                    "timed out: the orchestrator sent the signers different orders"
                }
            };
            meter::session_ended(&self.name, running.job.kind(), "timed_out");
            tracing::info!(node = %self.name, %session, attempt, ?missing, "session timed out");
            let reply = OrderReply::Failed {
                culprits: Vec::new(),
                missing,
                reason: reason.into(),
                evidence: String::new(),
            };
            self.reply(
                running.orchestrator,
                running.epoch,
                session,
                attempt,
                &reply,
            );
            cell.end(&mut work);
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn session__should_be_over_from_its_end_until_it_is_forgotten() {
        let sessions = Sessions::default();
        let of = |attempt, from| EnvelopeHeader {
            session: SessionId::from_bytes([1; 16]),
            attempt,
            ..EnvelopeHeader::outside_sessions(
                EnvelopeKind::Protocol,
                NodeId([from; 32]),
                NodeId([9; 32]),
            )
        };
        // What comes before the order is kept.
        assert!(!sessions.is_over(&of(0, 1)));
        let cell = lock(&sessions.table).cell((of(0, 1).session, 0), 1_000);
        lock(&cell.mail).peers = Some(vec![NodeId([1; 32])]);
        assert!(!sessions.is_over(&of(0, 1)));
        cell.end(&mut lock(&cell.work));
        assert!(sessions.is_over(&of(0, 1)));
        // Who was not in it is named for speaking in it.
        assert!(!sessions.is_over(&of(0, 2)));
        // Another attempt of it is another session.
        assert!(!sessions.is_over(&of(1, 1)));
        lock(&sessions.table).cells.clear();
        assert!(!sessions.is_over(&of(0, 1)));
    }
}
