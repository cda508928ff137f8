//! What metrics show of this process.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;

use crate::chain_rpc::ChainKey;

/// What this process has counted since its start.
#[derive(Default)]
pub struct Counters {
    waiting: Arc<AtomicUsize>,
    /// Outcomes of transactions that nodes had forgotten.
    pub forgotten: Mutex<DroppedCounts>,
    /// The transactions that are followed, by chain.
    pub transactions: Mutex<BTreeMap<ChainKey, OpenTransactions>>,
}

impl Counters {
    /// Counts a request that cannot go on now, until the result is dropped.
    pub fn wait(&self) -> Waiting {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(Arc::clone(&self.waiting))
    }

    /// How many requests cannot go on now.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// A request that cannot go on now.
pub struct Waiting(Arc<AtomicUsize>);

impl Drop for Waiting {
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
