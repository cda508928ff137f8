//! The counters behind the metrics of this process.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use covault_core::deposit::transfer::FollowedChain;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::{
    chain_rpc::ChainKey,
    deposits::sweep_counts::SweepCounts,
    process::mailbox::Mailboxes,
    store::{deposit_rows::ReconciliationCounts, overview_rows::FailedRequest},
};

/// So many of the last failures are kept for operators.
pub const SHOWN_FAILURES: usize = 10;

/// What this process has counted since its start.
#[derive(Default)]
pub struct Counters {
    waiting: Arc<AtomicUsize>,
    /// Outcomes of transactions that nodes had forgotten.
    pub forgotten: Mutex<DroppedCounts>,
    /// The transactions that are followed, by chain.
    pub transactions: Mutex<BTreeMap<ChainKey, OpenTransactions>>,
    /// Requests, by the name of their kind.
    requests: Mutex<BTreeMap<&'static str, RequestCounts>>,
    /// Requests that have failed here and are not written down yet.
    failures: Mutex<Vec<FailedRequest>>,
    follows: Mutex<BTreeMap<FollowedChain, FollowCounts>>,
    /// Sweeps of vaults that are here, by chain.
    pub sweeps: Mutex<BTreeMap<FollowedChain, SweepCounts>>,
    /// The outcome of webhooks that this process has sent.
    pub webhooks: Mutex<WebhookCounts>,
    /// The outcome of notifications that this process has sent.
    pub notifications: Mutex<NotificationCounts>,
    /// Of the actors of vaults.
    pub vault_mailboxes: Arc<Mailboxes>,
    /// Of the actors of live requests.
    pub request_mailboxes: Arc<Mailboxes>,
}

/// Requests of one kind or of all, since the start of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestCounts {
    /// They were accepted.
    pub created: u64,
    /// They have ended well.
    pub succeeded: u64,
    /// They have failed, or were rejected.
    pub failed: u64,
}

impl RequestCounts {
    /// Those of both.
    pub fn and(self, other: Self) -> Self {
        Self {
            created: self.created.saturating_add(other.created),
            succeeded: self.succeeded.saturating_add(other.succeeded),
            failed: self.failed.saturating_add(other.failed),
        }
    }
}

/// The outcome of webhooks that this process has sent since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WebhookCounts {
    /// The receiver has them.
    pub delivered: u64,
    /// Tries that have failed.
    pub failed: u64,
    /// They were given up.
    pub dead: u64,
    /// Events that are due or wait for their next try, of all receivers; `None`: another process sends them.
    pub waiting: Option<u64>,
}

/// The outcome of notifications that this process has sent to people since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotificationCounts {
    /// Messages that have arrived.
    pub delivered: u64,
    /// Tries that have failed.
    pub failed: u64,
    /// What was given up.
    pub given_up: u64,
    /// What is to be told; `None`: another process does it.
    pub waiting: Option<u64>,
}

/// How far this process has followed the blocks of a chain for deposits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowCounts {
    /// The newest block that was followed.
    pub head: u64,
    /// The newest final block that was followed.
    pub finalized: u64,
    /// The newest block that the nodes have named.
    pub newest: u64,
    /// Looks that have failed.
    pub failures: u64,
    /// The nodes are on another chain than before, below what was final.
    pub is_stopped: bool,
    /// When the newest block that was followed was made, in milliseconds since the Unix epoch.
    pub head_ms: u64,
    /// How the nodes tell what contracts pass on.
    pub traces: &'static str,
    /// What the last whole round over the balances has come to, and when that was, in milliseconds since the Unix epoch.
    pub reconciled: Option<(u64, ReconciliationCounts)>,
}

/// The counts of a chain, to be changed.
pub struct FollowCounter<'a> {
    counters: &'a Counters,
    chain: FollowedChain,
}

impl FollowCounter<'_> {
    /// A look has come to this.
    pub fn followed(&self, head: u64, finalized: u64, newest: u64) {
        self.change(|counts| {
            counts.head = head;
            counts.finalized = finalized;
            counts.newest = newest;
            counts.is_stopped = false;
        });
    }

    /// The newest block was made then, in milliseconds since the Unix epoch.
    pub fn seen(&self, head_ms: u64) {
        self.change(|counts| counts.head_ms = head_ms);
    }

    /// The nodes tell in this way what contracts pass on.
    pub fn traced(&self, by: &'static str) {
        self.change(|counts| counts.traces = by);
    }

    /// Balances were compared.
    pub fn reconciled(&self, done: Option<(u64, ReconciliationCounts)>) {
        self.change(|counts| counts.reconciled = done);
    }

    /// A look has failed. A chain that was stopped stays so until a look finds it well: nodes that are silent say
    /// nothing about that.
    pub fn failed(&self, is_stopped: bool) {
        self.change(|counts| {
            counts.failures = counts.failures.saturating_add(1);
            counts.is_stopped |= is_stopped;
        });
    }

    /// The chain is not followed here, or no longer: its numbers here would only get old.
    pub fn forget(&self) {
        self.counters.follows.lock().remove(&self.chain);
    }

    fn change(&self, change: impl FnOnce(&mut FollowCounts)) {
        let mut follows = self.counters.follows.lock();
        change(follows.entry(self.chain).or_default());
    }
}

impl Counters {
    /// Counts a request that cannot continue now, until the result is dropped.
    pub fn wait(&self) -> StalledRequest {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        StalledRequest(Arc::clone(&self.waiting))
    }

    /// Counts requests of a kind.
    pub fn request(&self, kind: &'static str, count: impl FnOnce(&mut RequestCounts)) {
        count(self.requests.lock().entry(kind).or_default());
    }

    /// What became of requests here, by the name of their kind.
    pub fn requests(&self) -> BTreeMap<&'static str, RequestCounts> {
        self.requests.lock().clone()
    }

    /// The same of all kinds.
    pub fn all_requests(&self) -> RequestCounts {
        let requests = self.requests.lock();
        let all = requests.values().copied();
        all.fold(RequestCounts::default(), RequestCounts::and)
    }

    /// Requests have failed, which is to be written down. Of very many only the last ones are.
    pub fn note_failures(&self, failed: impl IntoIterator<Item = FailedRequest>) {
        let mut failures = self.failures.lock();
        failures.extend(failed);
        failures.sort_by_key(|failed| failed.at_ms);
        let older = failures.len().saturating_sub(SHOWN_FAILURES);
        failures.drain(..older);
    }

    /// What has failed since this was last asked.
    pub fn take_failures(&self) -> Vec<FailedRequest> {
        std::mem::take(&mut *self.failures.lock())
    }

    /// How far the blocks of a chain are followed.
    pub fn follow(&self, chain: FollowedChain) -> FollowCounter<'_> {
        FollowCounter {
            counters: self,
            chain,
        }
    }

    /// How far the blocks of each chain were followed here.
    pub fn follows(&self) -> BTreeMap<FollowedChain, FollowCounts> {
        self.follows.lock().clone()
    }

    /// How many requests cannot continue now.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// A request that cannot continue now.
pub struct StalledRequest(Arc<AtomicUsize>);

impl Drop for StalledRequest {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Outcomes of transactions that nodes had accepted and forgotten, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedCounts {
    /// Sent again, and a node has it again.
    pub taken: u64,
    /// Sent again, and no node takes it.
    pub refused: u64,
    /// It has expired, and its number is free again.
    pub expired: u64,
}

/// Transactions of one chain that are not final yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenTransactions {
    /// No block has them.
    pub pending: u64,
    /// A block has them that may still be replaced.
    pub mined: u64,
    /// No block has them although the patience of their chain is over.
    pub overdue: u64,
}
