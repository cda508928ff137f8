//! Which calls wait for a place at a node, and which is next. Pure.

use std::collections::{BTreeMap, BTreeSet};

use covault_core::{ids::TokenId, turns::FairTurns};
use tokio::{sync::oneshot, time::Instant};

use super::CallPermit;

/// Where requests wait, one call of so many is of what belongs to none.
const READS_SHARE: usize = 4;

/// What a call belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CallClass {
    Request,
    Read,
}

/// A place in the line: since when the call is wanted, then the order of coming.
pub(super) type QueuePosition = (u64, u64);

/// A call that waits.
#[derive(Debug)]
pub(super) struct WaitingCall {
    pub(super) token: Option<TokenId>,
    /// When it goes before all others.
    pub(super) overdue: Option<Instant>,
    /// The same, or when it was accepted where that is later, in milliseconds since the Unix epoch.
    pub(super) overdue_ms: u64,
    pub(super) placed: oneshot::Sender<CallPermit>,
}

/// Those of one class that wait.
#[derive(Debug, Default)]
pub(super) struct WaitingClass {
    by_place: BTreeMap<QueuePosition, WaitingCall>,
    /// Each with the time from which on it goes before all others.
    overdue: BTreeSet<(u64, QueuePosition)>,
    pub(super) by_token: BTreeMap<Option<TokenId>, BTreeSet<QueuePosition>>,
    turns: FairTurns<Option<TokenId>>,
}

impl WaitingClass {
    fn come(&mut self, place: QueuePosition, waiter: WaitingCall) {
        self.turns.come(&waiter.token);
        let own = self.by_token.entry(waiter.token).or_default();
        own.insert(place);
        self.overdue.insert((waiter.overdue_ms, place));
        self.by_place.insert(place, waiter);
    }

    /// Who is next: the one that has been overdue longest; else the first one of the party whose turn it is.
    fn next(&self, now: Instant) -> Option<QueuePosition> {
        // Not the oldest: that one may have got new time, and be overdue long after others.
        let (_, first) = self.overdue.first()?;
        let waiter = self.by_place.get(first)?;
        if waiter.overdue.is_some_and(|overdue| overdue <= now) {
            return Some(*first);
        }
        let (_, token) = self.turns.order().first()?;
        self.by_token.get(token)?.first().copied()
    }

    /// Takes a call out of the line.
    fn take(&mut self, place: &QueuePosition, is_served: bool) -> Option<WaitingCall> {
        let waiter = self.by_place.remove(place)?;
        self.overdue.remove(&(waiter.overdue_ms, *place));
        if is_served {
            self.turns.get(&waiter.token, 1);
        }
        if let Some(own) = self.by_token.get_mut(&waiter.token) {
            own.remove(place);
            if own.is_empty() {
                self.by_token.remove(&waiter.token);
                self.turns.leave(&waiter.token);
            }
        }
        Some(waiter)
    }
}

/// All that wait, costly ones or others.
#[derive(Debug, Default)]
pub(super) struct CallQueue {
    pub(super) requests: WaitingClass,
    reads: WaitingClass,
    pub(super) turns: FairTurns<CallClass>,
}

impl CallQueue {
    fn class(&mut self, class: CallClass) -> &mut WaitingClass {
        match class {
            CallClass::Request => &mut self.requests,
            CallClass::Read => &mut self.reads,
        }
    }

    pub(super) fn len(&self) -> usize {
        let requests = self.requests.by_place.len();
        requests.saturating_add(self.reads.by_place.len())
    }

    pub(super) fn come(&mut self, class: CallClass, place: QueuePosition, waiter: WaitingCall) {
        self.turns.come(&class);
        self.class(class).come(place, waiter);
    }

    pub(super) fn next(&self, now: Instant) -> Option<(CallClass, QueuePosition)> {
        let (_, class) = self.turns.order().first()?;
        let place = match class {
            CallClass::Request => self.requests.next(now),
            CallClass::Read => self.reads.next(now),
        };
        Some((*class, place?))
    }

    pub(super) fn take(
        &mut self,
        class: CallClass,
        place: &QueuePosition,
        is_served: bool,
    ) -> Option<WaitingCall> {
        let waiter = self.class(class).take(place, is_served)?;
        if is_served {
            let cost = match class {
                CallClass::Request => 1,
                CallClass::Read => READS_SHARE - 1,
            };
            self.turns.get(&class, cost);
        }
        if self.class(class).by_place.is_empty() {
            self.turns.leave(&class);
        }
        Some(waiter)
    }
}
