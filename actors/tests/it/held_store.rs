//! A store whose writer is slow with requests: a batch that was handed over lands whatever
//! becomes of who waits for it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use covault_actors::store::{Batch, CommitError, KeySpace, Store};
use covault_actors::testing::StoreDouble;
use tokio::sync::{oneshot, watch};

pub struct HeldStore {
    inner: Arc<dyn Store>,
    /// While true, batches with a request do not land.
    pub hold: watch::Sender<bool>,
    /// Batches with a request that were handed over.
    pub handed: watch::Sender<usize>,
    /// The next batch with a vault fails.
    pub fail_vault: AtomicBool,
}

impl HeldStore {
    pub fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            hold: watch::channel(true).0,
            handed: watch::channel(0).0,
            fail_vault: AtomicBool::new(false),
        })
    }
}

#[async_trait]
impl StoreDouble for HeldStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        let has = |space| batch.writes().iter().any(|write| write.key.space == space);
        if has(KeySpace::Vault) && self.fail_vault.swap(false, Ordering::SeqCst) {
            return Err(CommitError::Unavailable("no power".into()));
        }
        if !has(KeySpace::Request) {
            return self.inner.commit(batch).await;
        }
        let (told, answer) = oneshot::channel();
        let (inner, mut hold) = (Arc::clone(&self.inner), self.hold.subscribe());
        self.handed.send_modify(|handed| *handed += 1);
        tokio::spawn(async move {
            hold.wait_for(|hold| !hold).await.unwrap();
            let _ = told.send(inner.commit(batch).await);
        });
        answer.await.unwrap()
    }
}
