//! A store that stops working, or stumbles once, at a chosen commit.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use covault_actors::store::{
    Batch, CommitError, Key, KeySpace, ReadError, Row, RowWrite, Scan, Store,
};
use covault_actors::testing::StoreDouble;
use tokio::sync::watch;

use crate::fake_signers::take;

/// What happens at the chosen commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// The power goes before the batch is on disk.
    Before,
    /// The power fails after the commit and before its answer.
    After,
    /// The batch is lost once; then all is well again.
    StumbleBefore,
    /// The batch is committed and its answer is lost; then everything works again.
    StumbleAfter,
}

pub struct FaultyStore {
    inner: Arc<dyn Store>,
    at: usize,
    accident: StoreFault,
    commits: AtomicUsize,
    happened: watch::Sender<bool>,
    /// So many scans work, then so many fail, and all others work.
    pub working_scans: AtomicUsize,
    pub failing_scans: AtomicUsize,
    /// So many scans of nonces panic.
    pub panicking_scans: AtomicUsize,
}

impl FaultyStore {
    /// An accident at commit number `at`, counted from 1.
    pub fn new(inner: Arc<dyn Store>, at: usize, accident: StoreFault) -> Arc<Self> {
        Arc::new(Self {
            inner,
            at,
            accident,
            commits: AtomicUsize::new(0),
            happened: watch::channel(false).0,
            working_scans: AtomicUsize::new(0),
            failing_scans: AtomicUsize::new(0),
            panicking_scans: AtomicUsize::new(0),
        })
    }

    pub fn commits(&self) -> usize {
        self.commits.load(Ordering::SeqCst)
    }

    /// Returns once the accident has happened.
    pub async fn accident(&self) {
        self.happened
            .subscribe()
            .wait_for(|happened| *happened)
            .await
            .unwrap();
    }
}

/// That chains of the audit log begin is part of a start; that the maintenance lease is taken, and how nodes are
/// doing is written down, comes at no certain time: they count as no commits.
fn of_a_start(batch: &Batch) -> bool {
    let house = Key::new(KeySpace::Lease, &[&[2]]);
    let own = |write: &RowWrite| {
        matches!(write.key.space, KeySpace::AuditHead | KeySpace::NodeStatus) || write.key == house
    };
    !batch.writes().is_empty() && batch.writes().iter().all(own)
}

#[async_trait]
impl StoreDouble for FaultyStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        if of_a_start(&batch) {
            return self.inner.commit(batch).await;
        }
        let number = self.commits.fetch_add(1, Ordering::SeqCst) + 1;
        if number < self.at {
            return self.inner.commit(batch).await;
        }
        let last = number == self.at;
        let taken = match self.accident {
            StoreFault::Before => false,
            StoreFault::After => last,
            StoreFault::StumbleBefore => !last,
            StoreFault::StumbleAfter => true,
        };
        let outcome = if taken {
            self.inner.commit(batch).await
        } else {
            Ok(())
        };
        if last {
            self.happened.send_replace(true);
        }
        let told = taken && !last;
        if told {
            return outcome;
        }
        Err(CommitError::Unavailable("no power".into()))
    }

    async fn scan(&self, scan: &Scan) -> Result<Vec<(Key, Row)>, ReadError> {
        if !take(&self.working_scans) && take(&self.failing_scans) {
            return Err(ReadError("no power".into()));
        }
        let of_nonces = scan.space == KeySpace::NonceReservation;
        assert!(!of_nonces || !take(&self.panicking_scans), "as wanted");
        self.inner.scan(scan).await
    }
}
