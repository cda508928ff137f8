//! The sessions of a node. Each has a queue that one pool thread at a time works off.

use std::{
    collections::{HashMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError},
};

use covault_core::{ids::SessionId, order::NodeId};

use super::Node;
use crate::{
    envelope::{Envelope, Header, Kind},
    message::Reply,
    pool::Lane,
    runner::{Failed, Finished, Progress, Run, Send},
    shares::ShareRecord,
};

/// How long messages wait for the order that explains them, in milliseconds.
const EARLY_MS: u64 = 10_000;
/// How long a finished session is remembered, so that late messages find it over.
const REMEMBERED_MS: u64 = 5_000;
/// Limits of what strangers can make us keep.
const MAX_SESSIONS: usize = 50_000;
const MAX_QUEUED: usize = 1024;
const MAX_EARLY_BYTES: usize = 64 << 20;

type Key = (SessionId, u32);

/// Sessions by id and attempt.
#[derive(Default)]
pub(super) struct Sessions {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    cells: HashMap<Key, Arc<Cell>>,
    /// Of sessions whose order has not come.
    early_bytes: usize,
}

/// One session.
struct Cell {
    key: Key,
    mail: Mutex<Mail>,
    /// Held by the one thread that works.
    work: Mutex<Work>,
}

struct Mail {
    queue: VecDeque<Envelope>,
    bytes: usize,
    /// A job for the queue is waiting or running.
    scheduled: bool,
    /// The order has come.
    begun: bool,
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
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sessions {
    fn cell(&self, key: Key, until_ms: u64) -> Option<Arc<Cell>> {
        let mut table = lock(&self.table);
        if let Some(cell) = table.cells.get(&key) {
            return Some(Arc::clone(cell));
        }
        if table.cells.len() >= MAX_SESSIONS {
            return None;
        }
        let mail = Mail {
            queue: VecDeque::new(),
            bytes: 0,
            scheduled: false,
            begun: false,
            lane: Lane::Signing,
            until_ms,
        };
        let cell = Arc::new(Cell {
            key,
            mail: Mutex::new(mail),
            work: Mutex::new(Work::Waiting),
        });
        table.cells.insert(key, Arc::clone(&cell));
        Some(cell)
    }

    /// Whether the order of this session has come.
    pub(super) fn begun(&self, key: Key) -> bool {
        let cell = lock(&self.table).cells.get(&key).cloned();
        cell.is_some_and(|cell| lock(&cell.mail).begun)
    }
}

impl Node {
    /// Queues a protocol message for its session.
    pub(super) fn protocol(self: &Arc<Self>, envelope: Envelope) {
        let Header {
            session,
            attempt,
            to,
            ..
        } = envelope.header;
        let until_ms = self.clock.now_ms().saturating_add(EARLY_MS);
        if to != self.post.id() {
            return;
        }
        let Some(cell) = self.sessions.cell((session, attempt), until_ms) else {
            tracing::warn!(node = %self.name, "too many sessions; message dropped");
            return;
        };
        let size = envelope.size();
        let mut mail = lock(&cell.mail);
        if mail.queue.len() >= MAX_QUEUED {
            return;
        }
        if !mail.begun {
            let mut table = lock(&self.sessions.table);
            if table.early_bytes.saturating_add(size) > MAX_EARLY_BYTES {
                return;
            }
            table.early_bytes += size;
            mail.bytes += size;
        }
        mail.queue.push_back(envelope);
        if mail.begun && !mail.scheduled {
            mail.scheduled = true;
            let lane = mail.lane;
            drop(mail);
            self.schedule(lane, cell);
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
        } = begin;
        let Some(cell) = self.sessions.cell(key, until_ms) else {
            tracing::warn!(node = %self.name, "too many sessions; order dropped");
            return;
        };
        {
            let mut mail = lock(&cell.mail);
            if mail.begun {
                return;
            }
            mail.begun = true;
            mail.scheduled = true;
            mail.lane = lane;
            mail.until_ms = until_ms;
            let mut table = lock(&self.sessions.table);
            table.early_bytes = table.early_bytes.saturating_sub(mail.bytes);
            mail.bytes = 0;
        }
        let running = Running {
            run,
            orchestrator,
            record,
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
            let next = {
                let mut mail = lock(&cell.mail);
                let next = mail.queue.pop_front();
                if next.is_none() {
                    mail.scheduled = false;
                }
                next
            };
            let Some(envelope) = next else { return };
            let mut work = lock(&cell.work);
            let Work::Running(running) = &mut *work else {
                continue;
            };
            let Header {
                from,
                round,
                sequence,
                ..
            } = envelope.header;
            if !running.run.is_peer(&from) {
                continue;
            }
            // Authenticated before the protocol sees it. What is not, was not sent by `from`.
            let opened = match self.post.open(&envelope) {
                Ok(opened) => opened,
                Err(error) => {
                    tracing::warn!(node = %self.name, ?from, %error, "message refused");
                    continue;
                }
            };
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
                self.ban(&running, ban);
                let reply = Reply::Failed {
                    culprits,
                    missing: Vec::new(),
                    reason,
                };
                self.reply(running.orchestrator, session, attempt, &reply);
            }
        }
    }

    fn ban(self: &Arc<Self>, running: &Running, ban: Vec<NodeId>) {
        let Some(root) = running.run.root().map(<[u8]>::to_vec) else {
            return;
        };
        for peer in ban {
            tracing::error!(node = %self.name, ?peer, "peer banned from this key: it cheated in signing");
            let (node, root, now_ms) = (Arc::clone(self), root.clone(), self.clock.now_ms());
            self.runtime.spawn(async move {
                if let Err(error) = node.claims.ban(&root, peer, now_ms).await {
                    tracing::error!(node = %node.name, %error, "the ban could not be stored");
                }
            });
        }
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
        let due: Vec<Arc<Cell>> = {
            let mut table = lock(&self.sessions.table);
            let mut freed = 0;
            let mut due = Vec::new();
            table.cells.retain(|_, cell| {
                // A cell that is being worked on is looked at next time.
                let Ok(mail) = cell.mail.try_lock() else {
                    return true;
                };
                if mail.begun {
                    if now_ms >= mail.until_ms {
                        due.push(Arc::clone(cell));
                    }
                    return now_ms < mail.until_ms.saturating_add(REMEMBERED_MS);
                }
                if now_ms < mail.until_ms {
                    return true;
                }
                freed += mail.bytes;
                false
            });
            table.early_bytes = table.early_bytes.saturating_sub(freed);
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
