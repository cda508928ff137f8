//! Ports for tests. Only with the feature `testing`, which no program has.

use async_trait::async_trait;
use covault_core::{
    approval::Rejection,
    attest::MadeKey,
    fault::Fault,
    ids::SessionId,
    networks::{Payload, VerifiedSignatures},
    order::{
        BackupOrder, KeygenOrder, NodeId, ProvenGeneration, ReshareOrder, ReshareOutcome,
        ReshareProof, SigningOrder,
    },
    testing::{ConstantEntropy, ManualClock},
};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;

use crate::{
    chain_rpc::ChainClients,
    port::{
        MonotonicClock, NodeBackup, NodeConfirmations, NodeView, SignerCluster, SigningAttempt,
        UnadmittedView,
    },
    settings::{OrchestratorParts, OrchestratorSharing, Settings},
    store::{Batch, CommitError, Key, KeySpace, ReadError, Row, RowMap, Scan, Snapshot, Store},
};

/// Payloads whose building panics, as encoded.
static PANICKING: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Has the building of a payload panic from now on.
pub fn panic_in_build(payload: &Payload) {
    PANICKING.lock().push(payload.encode());
}

/// How often building has panicked.
pub fn panics_in_build() -> usize {
    PANICS.load(Ordering::SeqCst)
}

#[expect(clippy::panic, reason = "that is what a test asks for")]
pub(crate) fn before_build(payload: &Payload) {
    let mut panicking = PANICKING.lock().clone().into_iter();
    if panicking.any(|one| one == payload.encode()) {
        PANICS.fetch_add(1, Ordering::SeqCst);
        panic!("a payload that cannot be built");
    }
}

/// An orchestrator's parts with nobody in them: no signers, no chains, settings as they are without a file.
pub fn orchestrator_parts(store: Arc<dyn Store>, clock: Arc<ManualClock>) -> OrchestratorParts {
    OrchestratorParts {
        store,
        signers: Arc::<NoSigners>::default(),
        clock,
        entropy: Arc::new(ConstantEntropy(0)),
        chains: ChainClients::default(),
        settings: Settings::default(),
        webhooks: Default::default(),
        sharing: OrchestratorSharing::default(),
    }
}

/// A store in front of another one: what a test does not change goes through.
#[async_trait]
pub trait StoreDouble: Send + Sync {
    /// The store behind.
    fn inner(&self) -> &dyn Store;

    /// See [`Store::commit`].
    ///
    /// # Errors
    /// As there.
    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        self.inner().commit(batch).await
    }

    /// See [`Store::get`].
    ///
    /// # Errors
    /// As there.
    async fn get(&self, key: &Key) -> Result<Option<Row>, ReadError> {
        self.inner().get(key).await
    }

    /// See [`Store::get_all`]; one by one, unless it says otherwise.
    ///
    /// # Errors
    /// As there.
    async fn get_all(&self, keys: &[Key]) -> Result<RowMap, ReadError> {
        let mut found = RowMap::new();
        for key in keys {
            if let Some(row) = self.get(key).await? {
                found.insert(key.clone(), row);
            }
        }
        Ok(found)
    }

    /// See [`Store::scan`].
    ///
    /// # Errors
    /// As there.
    async fn scan(&self, scan: &Scan) -> Result<Vec<(Key, Row)>, ReadError> {
        self.inner().scan(scan).await
    }
}

#[async_trait]
impl<D: StoreDouble> Store for D {
    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        StoreDouble::commit(self, batch).await
    }

    async fn get(&self, key: &Key) -> Result<Option<Row>, ReadError> {
        StoreDouble::get(self, key).await
    }

    async fn get_all(&self, keys: &[Key]) -> Result<RowMap, ReadError> {
        StoreDouble::get_all(self, keys).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Vec<(Key, Row)>, ReadError> {
        StoreDouble::scan(self, scan).await
    }

    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>, ReadError> {
        self.inner().snapshot().await
    }

    fn exclusive(&self) -> bool {
        self.inner().exclusive()
    }
}

/// A store that counts what is read.
pub struct CountingStore {
    inner: Arc<dyn Store>,
    /// Rows, and questions for one row.
    pub read: AtomicUsize,
    /// The most rows that a scan has passed over.
    pub most_skipped: AtomicUsize,
}

impl CountingStore {
    /// In front of this one.
    pub fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            read: AtomicUsize::new(0),
            most_skipped: AtomicUsize::new(0),
        })
    }
}

#[async_trait]
impl StoreDouble for CountingStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    async fn get(&self, key: &Key) -> Result<Option<Row>, ReadError> {
        self.read.fetch_add(1, Ordering::SeqCst);
        self.inner.get(key).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Vec<(Key, Row)>, ReadError> {
        self.most_skipped.fetch_max(scan.skip, Ordering::SeqCst);
        let found = self.inner.scan(scan).await?;
        self.read.fetch_add(found.len(), Ordering::SeqCst);
        Ok(found)
    }
}

/// What was asked of a store.
#[derive(Clone, Copy, Debug)]
pub enum StoreCall<'a> {
    /// To take a batch.
    Commit(&'a Batch),
    /// For a row.
    Get(&'a Key),
    /// For several rows.
    GetAll(&'a [Key]),
    /// For what a scan finds.
    Scan(&'a Scan),
}

impl StoreCall<'_> {
    /// Where it leads; of several rows, the space of the first.
    pub fn space(&self) -> Option<KeySpace> {
        match self {
            Self::Commit(batch) => batch.writes().first().map(|write| write.key.space),
            Self::Get(key) => Some(key.space),
            Self::GetAll(keys) => keys.first().map(|key| key.space),
            Self::Scan(scan) => Some(scan.space),
        }
    }
}

/// A store that tells a test what is asked of it: of rows once they were read, of batches before they are taken.
pub struct ToldStore<F> {
    inner: Arc<dyn Store>,
    tell: F,
}

impl<F: Fn(StoreCall<'_>) + Send + Sync> ToldStore<F> {
    /// In front of this one.
    pub fn new(inner: &Arc<dyn Store>, tell: F) -> Arc<Self> {
        let inner = Arc::clone(inner);
        Arc::new(Self { inner, tell })
    }
}

#[async_trait]
impl<F: Fn(StoreCall<'_>) + Send + Sync> StoreDouble for ToldStore<F> {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        (self.tell)(StoreCall::Commit(&batch));
        self.inner.commit(batch).await
    }

    async fn get(&self, key: &Key) -> Result<Option<Row>, ReadError> {
        let found = self.inner.get(key).await;
        (self.tell)(StoreCall::Get(key));
        found
    }

    async fn get_all(&self, keys: &[Key]) -> Result<RowMap, ReadError> {
        let found = self.inner.get_all(keys).await;
        (self.tell)(StoreCall::GetAll(keys));
        found
    }

    async fn scan(&self, scan: &Scan) -> Result<Vec<(Key, Row)>, ReadError> {
        let found = self.inner.scan(scan).await;
        (self.tell)(StoreCall::Scan(scan));
        found
    }
}

/// A store that takes some batches and does not say so: the answers to those that `is_lost` chooses.
pub struct MuteStore<F> {
    inner: Arc<dyn Store>,
    is_lost: F,
}

impl<F: Fn(&Batch) -> bool + Send + Sync> MuteStore<F> {
    /// In front of this one.
    pub fn new(inner: &Arc<dyn Store>, is_lost: F) -> Arc<Self> {
        let inner = Arc::clone(inner);
        Arc::new(Self { inner, is_lost })
    }
}

#[async_trait]
impl<F: Fn(&Batch) -> bool + Send + Sync> StoreDouble for MuteStore<F> {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        let is_lost = (self.is_lost)(&batch);
        self.inner.commit(batch).await?;
        match is_lost {
            true => Err(CommitError::Unavailable("no answer".into())),
            false => Ok(()),
        }
    }
}

/// A steady clock that only the test moves.
impl MonotonicClock for ManualClock {
    fn elapsed_ms(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A cluster without signers, but for those that a test announces.
#[derive(Debug, Default)]
pub struct NoSigners {
    /// See [`SignerCluster::nodes`].
    pub nodes: Mutex<Vec<NodeView>>,
    /// See [`SignerCluster::unadmitted`].
    pub unadmitted: Mutex<Vec<UnadmittedView>>,
    /// How often the list of nodes was copied.
    pub copies: AtomicUsize,
}

fn nobody() -> Fault {
    Fault::unavailable("there are no signers")
}

#[async_trait]
impl SignerCluster for NoSigners {
    async fn keygen(&self, _: &KeygenOrder) -> Result<MadeKey, Fault> {
        Err(nobody())
    }

    async fn sign(
        &self,
        _: &SigningOrder,
        _: &SigningAttempt,
    ) -> Result<VerifiedSignatures, Fault> {
        Err(nobody())
    }

    async fn tell_of_rejection(
        &self,
        _: &Rejection,
        _: SessionId,
        _: &[NodeId],
    ) -> Result<(), Fault> {
        Err(nobody())
    }

    async fn reshare(&self, _: &ReshareOrder) -> Result<ReshareOutcome, Fault> {
        Err(nobody())
    }

    async fn activate(
        &self,
        _: &ReshareOrder,
        _: &ReshareProof,
        _: &[ProvenGeneration],
        _: &[NodeId],
    ) -> Result<NodeConfirmations, Fault> {
        Err(nobody())
    }

    async fn backup(&self, _: &BackupOrder) -> Result<Vec<(NodeId, NodeBackup)>, Fault> {
        Err(nobody())
    }

    fn nodes(&self) -> Vec<NodeView> {
        self.copies.fetch_add(1, Ordering::SeqCst);
        self.nodes.lock().clone()
    }

    fn node_counts(&self) -> (usize, usize) {
        let nodes = self.nodes.lock();
        (nodes.iter().filter(|node| node.live).count(), nodes.len())
    }

    fn unadmitted(&self) -> Vec<UnadmittedView> {
        self.unadmitted.lock().clone()
    }
}
