//! The sessions that a node knows, and the messages that wait for them, within limits.

use std::{
    collections::{BTreeSet, HashMap, VecDeque, hash_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use covault_core::order::NodeId;
use parking_lot::{Mutex, MutexGuard};

use super::{AttemptId, SessionState};
use crate::{
    envelope::{EnvelopeHeader, OpenedEnvelope},
    message::MAX_INPUTS,
    node::refusals::MessageRefusal,
    pool::Priority,
};

/// How long a finished session is remembered, so that late messages find it over.
const REMEMBERED_MS: u64 = 5_000;
/// How long an order is remembered after its end, in milliseconds: a bus that was away delivers
/// what it has not acknowledged once more.
const REPEATED_MS: u64 = 60_000;
/// Limits of what others can make us keep before an order has come.
const MAX_EARLY_BYTES: usize = 64 << 20;
/// Of those that share no key with us: everyone before the first key, and strangers.
const MAX_NON_HOLDER_BYTES: usize = 16 << 20;
/// Of one sender, no matter who it is: bytes, and sessions that it was the first to speak in.
const MAX_EARLY_EACH: usize = 16 << 20;
const MAX_SESSIONS_EACH: usize = 10_000;
/// Messages, and bytes, of one sender that wait in one session: more than a round or two of any
/// protocol has. What a run keeps is bounded by itself.
const MAX_QUEUED: usize = 8 * MAX_INPUTS;
const MAX_QUEUED_BYTES: usize = 16 << 20;
/// What a message costs in addition to its body, about.
const OVERHEAD: usize = 256;

/// Sessions by id and attempt. Locks are taken in this order: work, table, mail.
#[derive(Default)]
pub(in crate::node) struct Sessions {
    pub(super) table: Mutex<SessionTable>,
    pub(super) accepted: Mutex<AcceptedOrders>,
    running: Arc<AtomicUsize>,
}

/// Orders that were accepted: fingerprint, and when to forget.
#[derive(Default)]
pub(super) struct AcceptedOrders {
    orders: HashMap<AttemptId, ([u8; 32], u64)>,
    times: DueTimes,
}

impl AcceptedOrders {
    /// Forgets those whose time is over.
    pub(super) fn forget(&mut self, now_ms: u64) {
        while let Some(key) = self.times.next_due(now_ms) {
            // One that was accepted again later has another time as well.
            if let Entry::Occupied(order) = self.orders.entry(key)
                && order.get().1 <= now_ms
            {
                order.remove();
            }
        }
    }
}

/// When to look at what: so nothing looks at all of it again and again. One thing may have several times.
#[derive(Default)]
pub(super) struct DueTimes(BTreeSet<(u64, AttemptId)>);

impl DueTimes {
    pub(super) fn add(&mut self, at_ms: u64, key: AttemptId) {
        self.0.insert((at_ms, key));
    }

    /// What has to be looked at, each time once.
    pub(super) fn next_due(&mut self, now_ms: u64) -> Option<AttemptId> {
        let (at_ms, _) = self.0.first()?;
        if *at_ms > now_ms {
            return None;
        }
        self.0.pop_first().map(|(_, key)| key)
    }
}

/// Counts a run for as long as it lives.
pub(super) struct RunningCount(Arc<AtomicUsize>);

impl Drop for RunningCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
pub(super) struct SessionTable {
    pub(super) cells: HashMap<AttemptId, Arc<SessionCell>>,
    /// When cells have to be looked at.
    pub(super) times: DueTimes,
    /// What waits for its order, of whom. In all: bytes of holders of our keys, and of others.
    pub(super) early: HashMap<NodeId, EarlyMessages>,
    pub(super) holders: usize,
    pub(super) non_holders: usize,
}

/// What of one sender waits for orders.
#[derive(Default, Clone, Copy)]
pub(super) struct EarlyMessages {
    pub(super) holder: bool,
    pub(super) bytes: usize,
    /// Sessions that nobody else has spoken in before.
    pub(super) sessions: usize,
}

/// One session.
pub(super) struct SessionCell {
    pub(super) key: AttemptId,
    pub(super) mail: Mutex<Mailbox>,
    /// Held by the one thread that works.
    pub(super) work: Mutex<SessionState>,
    /// Its run has ended: what still comes for it is of no use.
    pub(super) over: AtomicBool,
}

pub(super) struct Mailbox {
    pub(super) queue: VecDeque<(EnvelopeHeader, OpenedEnvelope)>,
    /// What of each sender is in the queue: messages, bytes.
    pub(super) queued: HashMap<NodeId, (usize, usize)>,
    /// What is counted as early here; empty once the order has come.
    pub(super) early: HashMap<NodeId, EarlyMessages>,
    pub(super) epoch: u32,
    /// A job for the queue is waiting or running.
    pub(super) scheduled: bool,
    /// Who may speak, once the order has come.
    pub(super) peers: Option<Vec<NodeId>>,
    pub(super) priority: Priority,
    /// When the cell has to go or the run to end, in milliseconds since the Unix epoch.
    pub(super) until_ms: u64,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl Mailbox {
    /// Queues a message; false when its sender has too much there.
    pub(super) fn put(&mut self, header: EnvelopeHeader, opened: OpenedEnvelope) -> bool {
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
    pub(super) fn pop(&mut self) -> Option<(EnvelopeHeader, OpenedEnvelope)> {
        let (header, opened) = self.queue.pop_front()?;
        if let Some((messages, bytes)) = self.queued.get_mut(&header.from) {
            *messages = messages.saturating_sub(1);
            *bytes = bytes.saturating_sub(cost(&opened));
        }
        Some((header, opened))
    }
}

/// What a message takes of memory, in bytes.
pub(super) fn cost(opened: &OpenedEnvelope) -> usize {
    opened.body.len().saturating_add(OVERHEAD)
}

impl SessionTable {
    /// The cell of a session; made when missing.
    pub(super) fn cell(&mut self, key: AttemptId, until_ms: u64) -> Arc<SessionCell> {
        let times = &mut self.times;
        let make = || {
            times.add(until_ms, key);
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
    pub(super) fn wait(&mut self, from: NodeId, more: EarlyMessages) -> Result<(), MessageRefusal> {
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
    pub(super) fn free(&mut self, early: HashMap<NodeId, EarlyMessages>) {
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
    pub(super) fn end(&self, work: &mut SessionState) -> SessionState {
        self.over.store(true, Ordering::Relaxed);
        std::mem::replace(work, SessionState::Finished)
    }
}

impl Sessions {
    /// Whether the session that this message names has already run to its end here. What comes for it
    /// need not even be verified.
    pub(in crate::node) fn is_over(&self, header: &EnvelopeHeader) -> bool {
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

    /// With which priority a message of a session is read: that of its scheme, once a session with its sender has
    /// begun to sign. Messages that make keys are read as all others are, so that a round of many is not late.
    pub(in crate::node) fn priority_of(&self, header: &EnvelopeHeader) -> Priority {
        let table = lock(&self.table);
        let cell = table.cells.get(&(header.session, header.attempt));
        let priority = cell.and_then(|cell| {
            let mail = lock(&cell.mail);
            let is_peer = mail.peers.as_ref()?.contains(&header.from);
            is_peer.then_some(mail.priority)
        });
        match priority {
            Some(Priority::SigningWith(scheme)) => Priority::SigningWith(scheme),
            _ => Priority::Signing,
        }
    }

    /// The fingerprint of the order that was accepted for this attempt.
    pub(in crate::node) fn accepted(&self, key: AttemptId) -> Option<[u8; 32]> {
        let accepted = lock(&self.accepted);
        let known = accepted.orders.get(&key);
        known.map(|(fingerprint, _)| *fingerprint)
    }

    /// Notes an order; false when this very one is noted already.
    pub(in crate::node) fn accept(
        &self,
        key: AttemptId,
        fingerprint: [u8; 32],
        until_ms: u64,
    ) -> bool {
        let forget_ms = until_ms.saturating_add(REPEATED_MS);
        let mut accepted = lock(&self.accepted);
        accepted.times.add(forget_ms, key);
        let known = accepted.orders.insert(key, (fingerprint, forget_ms));
        known.is_none_or(|(known, _)| known != fingerprint)
    }

    /// The cells whose run has to end now. Those that ended long ago, and those that no order came for, are gone.
    pub(super) fn due(&self, now_ms: u64) -> Vec<Arc<SessionCell>> {
        let mut table = lock(&self.table);
        let mut again = Vec::new();
        let mut due = Vec::new();
        while let Some(key) = table.times.next_due(now_ms) {
            let Some(cell) = table.cells.get(&key).map(Arc::clone) else {
                continue;
            };
            // Held for moments only.
            let mut mail = lock(&cell.mail);
            if now_ms < mail.until_ms {
                again.push((mail.until_ms, key));
                continue;
            }
            let forget_ms = mail.until_ms.saturating_add(REMEMBERED_MS);
            if mail.peers.is_none() || now_ms >= forget_ms {
                table.cells.remove(&key);
                let early = std::mem::take(&mut mail.early);
                table.free(early);
            } else if cell.over.load(Ordering::Relaxed) {
                again.push((forget_ms, key));
            } else {
                // One that is being worked on is not ended now.
                again.push((now_ms.saturating_add(1), key));
            }
            if mail.peers.is_some() {
                drop(mail);
                due.push(cell);
            }
        }
        for (at_ms, key) in again {
            table.times.add(at_ms, key);
        }
        due
    }

    /// Counts a run that begins.
    pub(super) fn begin(&self) -> RunningCount {
        self.running.fetch_add(1, Ordering::Relaxed);
        RunningCount(Arc::clone(&self.running))
    }

    /// How many runs have not ended.
    pub(super) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::{ids::SessionId, scheme::Scheme};

    use super::*;
    use crate::envelope::EnvelopeKind;

    #[test]
    fn message__should_be_read_in_the_turn_of_its_scheme_once_its_session_signs() {
        let sessions = Sessions::default();
        let of = |from| EnvelopeHeader {
            session: SessionId::from_bytes([1; 16]),
            ..EnvelopeHeader::outside_sessions(
                EnvelopeKind::Protocol,
                NodeId([from; 32]),
                NodeId([9; 32]),
            )
        };
        assert_eq!(sessions.priority_of(&of(1)), Priority::Signing);
        let cell = lock(&sessions.table).cell((of(1).session, of(1).attempt), 1_000);
        assert_eq!(sessions.priority_of(&of(1)), Priority::Signing);
        let signing = Priority::SigningWith(Scheme::Dkls23);
        for (priority, read) in [(signing, signing), (Priority::Keygen, Priority::Signing)] {
            let mut mail = lock(&cell.mail);
            (mail.peers, mail.priority) = (Some(vec![NodeId([1; 32])]), priority);
            drop(mail);
            assert_eq!(sessions.priority_of(&of(1)), read);
            // A stranger takes nothing of its time.
            assert_eq!(sessions.priority_of(&of(2)), Priority::Signing);
        }
    }

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
