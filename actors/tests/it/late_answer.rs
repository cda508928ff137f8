//! A vault that is made just when the orchestrator looks for the first time who has what.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use covault_actors::store::{
    Batch, CommitError, Key, KeySpace, Precondition, ReadError, Row, Scan, Store,
};
use covault_actors::testing::StoreDouble;
use tokio::sync::watch;

use crate::world::*;

/// The second look at the leases comes when a vault has been made, and whoever makes it hears of that
/// after the look.
struct LateStore {
    inner: Arc<dyn Store>,
    rebroadcast_cache: AtomicUsize,
    made: watch::Sender<bool>,
    looked: watch::Sender<bool>,
}

#[async_trait]
impl StoreDouble for LateStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        let makes = |write: &covault_actors::store::RowWrite| {
            write.key.space == KeySpace::Vault && write.expect == Precondition::Absent
        };
        let vault = batch.writes().iter().any(makes);
        let done = self.inner.commit(batch).await;
        if vault {
            self.made.send_replace(true);
            let mut looked = self.looked.subscribe();
            looked.wait_for(|looked| *looked).await.unwrap();
            // What follows from the look.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        done
    }

    async fn scan(&self, scan: &Scan) -> Result<Vec<(Key, Row)>, ReadError> {
        let second = scan.space == KeySpace::Lease
            && self.rebroadcast_cache.fetch_add(1, Ordering::SeqCst) == 1;
        if second {
            let mut made = self.made.subscribe();
            made.wait_for(|made| *made).await.unwrap();
        }
        let found = self.inner.scan(scan).await;
        if second {
            self.looked.send_replace(true);
        }
        found
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vault__should_get_its_keys_also_when_it_is_made_during_the_first_look_at_leases() {
    let world = World::new();
    let store = LateStore {
        inner: Arc::clone(&world.store),
        rebroadcast_cache: AtomicUsize::new(0),
        made: watch::channel(false).0,
        looked: watch::channel(false).0,
    };
    let gateway = world.start_on(Arc::new(store)).await;
    let making = tokio::time::timeout(Duration::from_secs(20), vault(&gateway, "main"));
    let made = making.await.expect("the vault gets its keys");
    evm_wallet(&gateway, made).await;
    assert!(vault_named(&gateway, "main").await.unwrap().ready);
}
