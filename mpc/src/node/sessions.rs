//! The sessions of a node. Each has a queue that one pool thread at a time works off.

use std::{
    collections::{HashMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError},
};

use covault_core::{
    ids::SessionId,
    order::{NodeId, ReshareOrder},
};

use super::{Node, orders::MAX_INPUTS};
use crate::{
    envelope::{Header, Kind, Opened},
    message::Reply,
    meter,
    pool::Lane,
    runner::{Failed, Finished, Progress, Run, Send},
    shares::ShareRecord,
};

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
const MAX_STRANGE_BYTES: usize = 16 << 20;
/// More rounds than any protocol has.
const MAX_ROUNDS: usize = 10;
/// Messages of one sender that wait in one session.
const MAX_QUEUED: usize = MAX_ROUNDS * MAX_INPUTS;

type Key = (SessionId, u32);

/// Sessions by id and attempt. Locks are taken in this order: work, table, mail.
#[derive(Default)]
pub(super) struct Sessions {
    table: Mutex<Table>,
    /// Orders that were accepted: fingerprint, and when to forget.
    accepted: Mutex<HashMap<Key, ([u8; 32], u64)>>,
}

#[derive(Default)]
struct Table {
    cells: HashMap<Key, Arc<Cell>>,
    /// Of sessions whose order has not come; from holders of our keys, and from others.
    early: Early,
}

/// Bytes that wait for an order.
#[derive(Default, Clone, Copy)]
struct Early {
    holders: usize,
    strangers: usize,
}

impl Early {
    fn of(&mut self, holder: bool) -> &mut usize {
        if holder {
            &mut self.holders
        } else {
            &mut self.strangers
        }
    }

    fn minus(&mut self, other: Self) {
        self.holders = self.holders.saturating_sub(other.holders);
        self.strangers = self.strangers.saturating_sub(other.strangers);
    }
}

/// One session.
struct Cell {
    key: Key,
    mail: Mutex<Mail>,
    /// Held by the one thread that works.
    work: Mutex<Work>,
}

struct Mail {
    queue: VecDeque<(Header, Opened)>,
    early: Early,
    /// A job for the queue is waiting or running.
    scheduled: bool,
    /// Who may speak, once the order has come.
    peers: Option<Vec<NodeId>>,
    lane: Lane,
    /// When the cell has to go or the run to end, in milliseconds since the Unix epoch.
    until_ms: u64,
}

enum Work {
    Waiting,
    Running(Box<Running>),
    Over,
}

struct Running {
    run: Run,
    orchestrator: NodeId,
    /// For key generation: what to store with the share.
    record: Option<Box<dyn FnOnce(crate::backend::KeyShare) -> ShareRecord + std::marker::Send>>,
    /// For a new generation of shares: the order.
    reshare: Option<Box<ReshareOrder>>,
}

impl Running {
    /// What the session is for, as metrics call it.
    fn kind(&self) -> &'static str {
        if self.record.is_some() {
            "keygen"
        } else {
            "sign"
        }
    }
}

/// A run that is about to begin.
pub(super) struct Begin {
    pub key: Key,
    pub run: Run,
    pub orchestrator: NodeId,
    pub until_ms: u64,
    pub lane: Lane,
    pub record:
        Option<Box<dyn FnOnce(crate::backend::KeyShare) -> ShareRecord + std::marker::Send>>,
    pub reshare: Option<Box<ReshareOrder>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    /// The cell of a session; made when missing.
    fn cell(&mut self, key: Key, until_ms: u64) -> Arc<Cell> {
        let make = || {
            Arc::new(Cell {
                key,
                mail: Mutex::new(Mail {
                    queue: VecDeque::new(),
                    early: Early::default(),
                    scheduled: false,
                    peers: None,
                    lane: Lane::Signing,
                    until_ms,
                }),
                work: Mutex::new(Work::Waiting),
            })
        };
        Arc::clone(self.cells.entry(key).or_insert_with(make))
    }
}

impl Sessions {
    /// The fingerprint of the order that was accepted for this attempt.
    pub(super) fn accepted(&self, key: Key) -> Option<[u8; 32]> {
        lock(&self.accepted)
            .get(&key)
            .map(|(fingerprint, _)| *fingerprint)
    }

    /// Notes an order; false when this very one is noted already.
    pub(super) fn accept(&self, key: Key, fingerprint: [u8; 32], until_ms: u64) -> bool {
        let forget_ms = until_ms.saturating_add(REPEATED_MS);
        lock(&self.accepted)
            .insert(key, (fingerprint, forget_ms))
            .is_none_or(|(known, _)| known != fingerprint)
    }
}

impl Node {
    /// Takes a protocol message, whose sender is certain, on a pool thread.
    pub(super) fn protocol(self: &Arc<Self>, header: Header, opened: Opened) {
        let Header {
            session,
            attempt,
            from,
            ..
        } = header;
        let key = (session, attempt);
        let holder = self.keys.is_holder(&from);
        let size = opened.body.len();
        let mut table = lock(&self.sessions.table);
        if table.cells.len() >= MAX_SESSIONS && !table.cells.contains_key(&key) {
            tracing::warn!(node = %self.name, "too many sessions; message dropped");
            return;
        }
        let cell = table.cell(key, self.clock.now_ms().saturating_add(EARLY_MS));
        let mut mail = lock(&cell.mail);
        let of_sender = mail.queue.iter().filter(|(header, _)| header.from == from);
        if of_sender.count() >= MAX_QUEUED {
            return;
        }
        match &mail.peers {
            Some(peers) if !peers.contains(&from) => return,
            Some(_) => {}
            None => {
                let limit = if holder {
                    MAX_EARLY_BYTES
                } else {
                    MAX_STRANGE_BYTES
                };
                let early = table.early.of(holder);
                if early.saturating_add(size) > limit {
                    tracing::warn!(node = %self.name, ?from, "too many early messages; one dropped");
                    return;
                }
                *early = early.saturating_add(size);
                let early = mail.early.of(holder);
                *early = early.saturating_add(size);
            }
        }
        drop(table);
        mail.queue.push_back((header, opened));
        if mail.peers.is_some() && !mail.scheduled {
            mail.scheduled = true;
            let lane = mail.lane;
            drop(mail);
            if lane == Lane::Signing {
                // We are on a pool thread already.
                self.guarded(&cell, || self.work_off(&cell));
            } else {
                self.schedule(lane, cell);
            }
        }
    }

    fn schedule(self: &Arc<Self>, lane: Lane, cell: Arc<Cell>) {
        let node = Arc::clone(self);
        self.pool
            .spawn(lane, move || node.guarded(&cell, || node.work_off(&cell)));
    }

    /// Runs a step. Should a library panic on what a peer sent, the session ends, not the node.
    fn guarded(self: &Arc<Self>, cell: &Arc<Cell>, step: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(step)).is_ok() {
            return;
        }
        lock(&cell.mail).scheduled = false;
        let work = std::mem::replace(&mut *lock(&cell.work), Work::Over);
        let (session, attempt) = cell.key;
        tracing::error!(node = %self.name, %session, attempt, "a session panicked");
        if let Work::Running(running) = work {
            let reply = Reply::Failed {
                culprits: Vec::new(),
                missing: Vec::new(),
                reason: "the session panicked".into(),
            };
            self.reply(running.orchestrator, session, attempt, &reply);
        }
    }

    /// Begins a claimed run, on a pool thread: its first step, then whatever came early.
    pub(super) fn begin(self: &Arc<Self>, begin: Begin) {
        let Begin {
            key,
            run,
            orchestrator,
            until_ms,
            lane,
            record,
            reshare,
        } = begin;
        if self.clock.now_ms() >= until_ms {
            // Whoever asked has given up; what is late must not delay what is not.
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
            mail.queue.retain(|(header, _)| run.is_peer(&header.from));
            mail.peers = Some(run.peers());
            mail.scheduled = true;
            mail.lane = lane;
            mail.until_ms = until_ms;
            table.early.minus(std::mem::take(&mut mail.early));
            drop(mail);
            cell
        };
        let running = Running {
            run,
            orchestrator,
            record,
            reshare,
        };
        *lock(&cell.work) = Work::Running(Box::new(running));
        self.guarded(&cell, || {
            {
                let mut work = lock(&cell.work);
                if let Work::Running(running) = &mut *work {
                    let outcome = running.run.start(&*self.entropy);
                    self.proceed(&cell, &mut work, outcome);
                }
            }
            self.work_off(&cell);
        });
    }

    /// Works off a cell's queue until it is empty.
    fn work_off(self: &Arc<Self>, cell: &Arc<Cell>) {
        loop {
            let (next, until_ms) = {
                let mut mail = lock(&cell.mail);
                let next = mail.queue.pop_front();
                if next.is_none() {
                    mail.scheduled = false;
                }
                (next, mail.until_ms)
            };
            let Some((header, opened)) = next else { return };
            let mut work = lock(&cell.work);
            let Work::Running(running) = &mut *work else {
                continue;
            };
            if self.clock.now_ms() >= until_ms {
                // The reaper says so; computing on would only make others late.
                continue;
            }
            let Header {
                from,
                round,
                sequence,
                ..
            } = header;
            let outcome =
                running
                    .run
                    .receive(from, round, sequence, opened.fingerprint, opened.body);
            self.proceed(cell, &mut work, outcome);
        }
    }

    fn proceed(self: &Arc<Self>, cell: &Cell, work: &mut Work, outcome: Result<Progress, Failed>) {
        let (session, attempt) = cell.key;
        match outcome {
            Ok(Progress { send, finished }) => {
                for message in send {
                    self.send(cell.key, &message);
                }
                let Some(finished) = finished else { return };
                let Work::Running(running) = std::mem::replace(work, Work::Over) else {
                    return;
                };
                meter::session_ended(&self.name, running.kind(), "done");
                match finished {
                    Finished::Contributed => {}
                    Finished::Signed(signatures) => {
                        let reply = Reply::Signed(signatures);
                        self.reply(running.orchestrator, session, attempt, &reply);
                    }
                    Finished::KeyMade(share) => {
                        let Some(record) = running.record else { return };
                        let reply = match self.keep(record(share)) {
                            Ok(root) => Reply::KeyMade(root),
                            Err(fault) => {
                                tracing::error!(node = %self.name, ?fault, "share not stored");
                                Reply::Refused(fault)
                            }
                        };
                        self.reply(running.orchestrator, session, attempt, &reply);
                        self.tend(true);
                    }
                    Finished::Reshared(share) => {
                        let Some(order) = running.reshare else { return };
                        let reply = self.prepared(*order, share).unwrap_or_else(|fault| {
                            tracing::error!(node = %self.name, ?fault, "new share not stored");
                            Reply::Refused(fault)
                        });
                        self.reply(running.orchestrator, session, attempt, &reply);
                    }
                }
            }
            Err(Failed {
                reason,
                culprits,
                ban,
            }) => {
                let Work::Running(running) = std::mem::replace(work, Work::Over) else {
                    return;
                };
                tracing::warn!(node = %self.name, %session, attempt, %reason, ?culprits, "session aborted");
                meter::session_ended(&self.name, running.kind(), "failed");
                let reply = Reply::Failed {
                    culprits,
                    missing: Vec::new(),
                    reason,
                };
                self.ban_then_reply(cell.key, &running, ban, reply);
            }
        }
    }

    /// A ban is on disk before anybody hears of the failure: the next attempt may come at once.
    fn ban_then_reply(
        self: &Arc<Self>,
        (session, attempt): Key,
        running: &Running,
        ban: Vec<NodeId>,
        reply: Reply,
    ) {
        let orchestrator = running.orchestrator;
        let root = match running.run.root() {
            Some(root) if !ban.is_empty() => root.to_vec(),
            _ => return self.reply(orchestrator, session, attempt, &reply),
        };
        let (node, now_ms) = (Arc::clone(self), self.clock.now_ms());
        self.runtime.spawn(async move {
            for peer in ban {
                tracing::error!(node = %node.name, ?peer, "peer banned from this key: it cheated in signing");
                if let Err(error) = node.claims.ban(&root, peer, now_ms).await {
                    tracing::error!(node = %node.name, %error, "the ban could not be stored");
                }
            }
            node.reply(orchestrator, session, attempt, &reply);
        });
    }

    fn send(&self, (session, attempt): Key, message: &Send) {
        let header = Header {
            kind: Kind::Protocol,
            sealed: message.private,
            session,
            attempt,
            round: message.round,
            sequence: message.sequence,
            from: self.post.id(),
            to: message.to,
        };
        if let Err(fault) = self.post.send(header, &message.body) {
            tracing::warn!(node = %self.name, ?fault, "cannot send");
        }
    }

    /// Ends what is past its deadline, and forgets what ended long ago.
    pub(super) fn reap(self: &Arc<Self>) {
        let now_ms = self.clock.now_ms();
        lock(&self.sessions.accepted).retain(|_, (_, forget_ms)| now_ms < *forget_ms);
        let due: Vec<Arc<Cell>> = {
            let mut table = lock(&self.sessions.table);
            let mut freed = Early::default();
            let mut due = Vec::new();
            let mut running = 0_usize;
            table.cells.retain(|_, cell| {
                // Held for moments only.
                let mail = lock(&cell.mail);
                if mail.peers.is_some() {
                    // One that cannot be looked at is being worked on.
                    let over = cell
                        .work
                        .try_lock()
                        .is_ok_and(|work| matches!(*work, Work::Over));
                    running = running.saturating_add(usize::from(!over));
                    if now_ms >= mail.until_ms {
                        due.push(Arc::clone(cell));
                    }
                    return now_ms < mail.until_ms.saturating_add(REMEMBERED_MS);
                }
                if now_ms < mail.until_ms {
                    return true;
                }
                freed.holders = freed.holders.saturating_add(mail.early.holders);
                freed.strangers = freed.strangers.saturating_add(mail.early.strangers);
                false
            });
            table.early.minus(freed);
            meter::sessions(&self.name, running);
            due
        };
        for cell in due {
            let mut work = match cell.work.try_lock() {
                Ok(work) => work,
                Err(TryLockError::Poisoned(work)) => work.into_inner(),
                // Being worked on: looked at next time.
                Err(TryLockError::WouldBlock) => continue,
            };
            let Work::Running(running) = &*work else {
                continue;
            };
            let (session, attempt) = cell.key;
            let missing = running.run.missing();
            meter::session_ended(&self.name, running.kind(), "timed_out");
            tracing::info!(node = %self.name, %session, attempt, ?missing, "session timed out");
            let reply = Reply::Failed {
                culprits: Vec::new(),
                missing,
                reason: "timed out".into(),
            };
            self.reply(running.orchestrator, session, attempt, &reply);
            *work = Work::Over;
        }
    }
}
