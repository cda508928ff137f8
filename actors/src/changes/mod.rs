//! Changes of requests, for the listeners of `GET /v1/events`.
//!
//! A change has no row of its own: it is an entry of its vault's audit log, written in one commit with what has
//! changed, and numbered by the store in the order of the commits. While there are listeners, one task per process
//! ([`follower`]) reads on in the logs, its own process's and others', and keeps the newest changes in memory, once
//! for all listeners. Each [`ChangeListener`] has its place among them, and reads the logs itself ([`pages`]) where it is
//! further behind. Decisions: 0062.

pub(crate) mod follower;
mod listener;
mod pages;
mod position;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use covault_core::{audit::AuditChain, ids::VaultId};
use parking_lot::{Mutex, RwLock};
use tokio::{
    sync::{Notify, Semaphore, watch},
    time::Instant,
};

use crate::leases::LogListener;

pub use self::{
    listener::{ChangeListener, HeardChanges, ListenerStart},
    position::Position,
};

/// Changes that are kept in memory, for all listeners together: 330 bytes each.
const KEPT: usize = 65_536;
/// How long the logs are followed after the last listener has left: a listener that returns finds in memory what it
/// has missed.
const UNHEARD: Duration = Duration::from_secs(60);
/// By how much the clock of one process may be behind that of another, and a commit be later than its entry says, in
/// milliseconds: who comes back to another process hears once more what is so little older.
const MARGIN_MS: u64 = 120_000;
/// How far back listeners can begin, in milliseconds.
const REACH_MS: u64 = 24 * 60 * 60 * 1000;
/// Listeners that read the logs themselves at once; others wait for their turn at each page.
const READERS: usize = 4;

/// A change of a request.
#[derive(Debug)]
pub struct Change {
    /// The vault of the request.
    pub vault: VaultId,
    /// [`covault_core::request::RequestChange`] in JSON.
    pub data: String,
    /// When it was, in milliseconds since the Unix epoch.
    at_ms: u64,
    /// A time of which all that was before it comes before this change, but for [`MARGIN_MS`].
    safe_ms: u64,
}

/// What listeners wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ChangeProgress {
    /// The follower; 0: none yet.
    follower: u64,
    /// The number behind its newest change.
    next: u64,
    /// The last entry of the service's log.
    service: u64,
}

/// Where changes come together.
pub struct ChangeHub {
    /// What is known; `None` while nobody listens.
    followed: RwLock<Option<RecentChanges>>,
    audience: Mutex<ListenerCount>,
    /// Logs that this process has written to.
    written: Mutex<BTreeSet<AuditChain>>,
    /// Whether it is to be told of commits.
    active: AtomicBool,
    wake: Notify,
    news: watch::Sender<ChangeProgress>,
    readers: Semaphore,
}

#[derive(Default)]
struct ListenerCount {
    listeners: usize,
    /// Since when there is none.
    unheard_since: Option<Instant>,
}

/// What the follower has found.
struct RecentChanges {
    /// Which follower: a number that no other has.
    id: u64,
    /// The number of the first change that is kept.
    first: u64,
    kept: VecDeque<Arc<Change>>,
    /// The number behind the last change that listeners may have.
    visible: u64,
    /// All changes since then are kept, in milliseconds since the Unix epoch.
    complete_from_ms: u64,
    /// All that was before has been found, but for [`MARGIN_MS`].
    safe_ms: u64,
    /// When each vault's log was last written to.
    last_ms: HashMap<VaultId, u64>,
    /// The last entry of the service's log, which has what becomes of tokens.
    service: u64,
}

impl Default for ChangeHub {
    fn default() -> Self {
        Self {
            followed: RwLock::default(),
            audience: Mutex::default(),
            written: Mutex::default(),
            active: AtomicBool::new(false),
            wake: Notify::new(),
            news: watch::Sender::new(ChangeProgress::default()),
            readers: Semaphore::new(READERS),
        }
    }
}

impl LogListener for ChangeHub {
    fn is_active(&self) -> bool {
        self.active.load(Ordering::SeqCst)
    }

    fn written(&self, chains: BTreeSet<AuditChain>) {
        if !chains.is_empty() {
            self.written.lock().extend(chains);
            self.wake.notify_one();
        }
    }
}

impl ChangeHub {
    /// How many listen.
    pub fn listeners(&self) -> usize {
        self.audience.lock().listeners
    }

    fn enter(&self) {
        let mut audience = self.audience.lock();
        audience.listeners += 1;
        audience.unheard_since = None;
        self.wake.notify_one();
    }

    fn leave(&self) {
        let mut audience = self.audience.lock();
        audience.listeners = audience.listeners.saturating_sub(1);
        if audience.listeners == 0 {
            audience.unheard_since = Some(Instant::now());
        }
    }

    /// Waits for a listener.
    async fn heard(&self) {
        while self.listeners() == 0 {
            self.wake.notified().await;
        }
    }

    /// Whether following ends, as nobody has listened for a while.
    fn end_unheard(&self) -> bool {
        let audience = self.audience.lock();
        let unheard = audience.unheard_since;
        let ends = unheard.is_some_and(|since| since.elapsed() >= UNHEARD);
        if ends {
            self.active.store(false, Ordering::SeqCst);
            *self.followed.write() = None;
            self.written.lock().clear();
            self.news.send_replace(ChangeProgress::default());
        }
        ends
    }
}

impl RecentChanges {
    /// One change more; the oldest one goes where there are too many.
    fn keep(&mut self, change: Change) {
        self.kept.push_back(Arc::new(change));
        if self.kept.len() > KEPT
            && let Some(oldest) = self.kept.pop_front()
        {
            self.first += 1;
            self.complete_from_ms = self.complete_from_ms.max(oldest.at_ms.saturating_add(1));
        }
    }

    /// The number behind the newest change.
    fn next(&self) -> u64 {
        self.first.saturating_add(self.kept.len() as u64)
    }

    /// The kept changes from a number on that listeners may have, with the numbers behind each.
    fn from(&self, number: u64) -> impl Iterator<Item = (u64, &Arc<Change>)> {
        let skipped = usize::try_from(number.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let numbers = self.first.saturating_add(1)..=self.visible;
        numbers.zip(&self.kept).skip(skipped)
    }
}
