//! Several orchestrators on one store, each as in a process of its own: with its own runtime, its own
//! steady clock, and a connection to the store that can freeze.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use covault_actors::{
    gateway::{Gateway, OperationResponse},
    store::{
        Batch, CommitError, Key, KeySpace, ReadError, Row, RowChange, RowMap, RowWrite, Scan,
        Store,
        memory::MemoryStore,
        postgres::{Options, PostgresStore},
    },
    testing::StoreDouble,
};
use covault_core::{fault::Fault, ids::VaultId, schema::wire, testing::ManualClock};
use tokio::{
    runtime::{Builder, Runtime},
    sync::watch,
    time::Instant,
};

use crate::{postgres::Postgres, world::*};

/// A connection that can freeze: what was sent in the meantime arrives when it thaws.
pub struct Connection {
    inner: Arc<dyn Store>,
    pub frozen: watch::Sender<bool>,
    /// While true, batches with a request do not arrive.
    pub held: watch::Sender<bool>,
    /// How many batches with a request wait to arrive.
    pub waiting: watch::Sender<usize>,
    /// What commits of requests came to after they had waited.
    pub refused: watch::Sender<usize>,
    /// Commits that wrote leases, and scans of all leases.
    pub lease_commits: AtomicUsize,
    pub lease_scans: AtomicUsize,
    /// How long each of those takes.
    pub lease_delay_ms: AtomicU64,
}

impl Connection {
    async fn thawed(&self) {
        let mut frozen = self.frozen.subscribe();
        frozen.wait_for(|frozen| !frozen).await.unwrap();
    }
}

#[async_trait]
impl StoreDouble for Connection {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        let writes_lease = |write: &RowWrite| {
            write.key.space == KeySpace::Lease && matches!(write.change, RowChange::Put(_))
        };
        if batch.writes().iter().any(writes_lease) {
            self.lease_commits.fetch_add(1, Ordering::SeqCst);
            let delay_ms = self.lease_delay_ms.load(Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        }
        let mut spaces = batch.writes().iter().map(|write| write.key.space);
        let waits = *self.held.borrow() && spaces.any(|space| space == KeySpace::Request);
        if waits {
            self.waiting.send_modify(|waiting| *waiting += 1);
            let mut held = self.held.subscribe();
            held.wait_for(|held| !held).await.unwrap();
            // On its way since before all froze.
        } else {
            self.thawed().await;
        }
        let done = self.inner.commit(batch).await;
        if let (true, Err(CommitError::Conflict(key))) = (waits, &done)
            && key.space == KeySpace::Lease
        {
            self.refused.send_modify(|refused| *refused += 1);
        }
        done
    }

    async fn get(&self, key: &Key) -> Result<Option<Row>, ReadError> {
        self.thawed().await;
        self.inner.get(key).await
    }

    async fn get_all(&self, keys: &[Key]) -> Result<RowMap, ReadError> {
        self.thawed().await;
        self.inner.get_all(keys).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Vec<(Key, Row)>, ReadError> {
        self.thawed().await;
        if scan.space == KeySpace::Lease && scan.from.is_none() {
            self.lease_scans.fetch_add(1, Ordering::SeqCst);
        }
        self.inner.scan(scan).await
    }
}

/// A world for several.
pub fn world() -> World {
    several_on(Arc::new(MemoryStore::shared()))
}

fn several_on(store: Arc<dyn Store>) -> World {
    let mut world = World::on(store);
    world.settings.heartbeat_ms = 20;
    world.settings.lease_ms = 200;
    world
}

/// The same on a new database of a server, which each process opens for itself.
pub async fn world_on(server: &Postgres) -> World {
    world_on_database(server.database()).await
}

/// The same on the database of this URL.
pub async fn world_on_database(url: String) -> World {
    World {
        database: Some(url.clone()),
        ..several_on(opened(&url).await)
    }
}

/// The store on the database of this URL, as a process opens it that shares it.
pub async fn opened(url: &str) -> Arc<dyn Store> {
    let options = Options {
        url: url.into(),
        readers: 4.try_into().unwrap(),
        // Longer than anything takes on a busy machine.
        patience: Duration::from_secs(60),
        alone: false,
    };
    Arc::new(PostgresStore::open(options).await.unwrap())
}

/// See the module.
pub struct Process {
    runtime: Option<Runtime>,
    pub gateway: Gateway,
    pub connection: Arc<Connection>,
    pub monotonic: Arc<ManualClock>,
}

impl Process {
    pub async fn start(world: &World) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let inner = match world.database.clone() {
            // What it has there ends with it. (Not spawned: the compiler does not see that opening
            // one can go from thread to thread.)
            Some(url) => {
                let handle = runtime.handle().clone();
                let open = move || handle.block_on(opened(&url));
                runtime.spawn_blocking(open).await.unwrap()
            }
            None => Arc::clone(&world.store),
        };
        let connection = Arc::new(Connection {
            inner,
            frozen: watch::channel(false).0,
            held: watch::channel(false).0,
            waiting: watch::channel(0).0,
            refused: watch::channel(0).0,
            lease_commits: AtomicUsize::new(0),
            lease_scans: AtomicUsize::new(0),
            lease_delay_ms: AtomicU64::new(0),
        });
        let world = World {
            monotonic: Arc::default(),
            ..world.clone()
        };
        let monotonic = Arc::clone(&world.monotonic);
        let store = Arc::clone(&connection) as Arc<dyn Store>;
        let start = runtime.spawn(async move { world.start_on(store).await });
        Self {
            gateway: start.await.unwrap(),
            runtime: Some(runtime),
            connection,
            monotonic,
        }
    }

    pub async fn inside<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.runtime.as_ref()?.spawn(work).await.ok()
    }

    /// A command; `None` when the process dies over it.
    pub async fn submit(
        &self,
        request: wire::CreateSigningRequestRequest,
        key: String,
    ) -> Option<Result<(wire::SigningRequest, OperationResponse), Fault>> {
        let gateway = self.gateway.clone();
        self.inside(async move { try_create(&gateway, request, Some(&key)).await })
            .await
    }

    /// How a request ended, as this process tells it.
    pub async fn outcome(&self, uuid: &str) -> bool {
        let gateway = self.gateway.clone();
        let uuid = uuid.to_owned();
        let outcome = self.inside(async move { outcome(&gateway, &uuid).await });
        outcome.await.unwrap().error.is_none()
    }

    pub async fn create(&self, from: &str) -> String {
        let gateway = self.gateway.clone();
        let kind = send(from);
        let made = self.inside(async move { create(&gateway, kind).await });
        made.await.unwrap().uuid
    }

    pub async fn vault(&self, name: &str) -> VaultId {
        let (gateway, name) = (self.gateway.clone(), name.to_owned());
        let made = self.inside(async move { vault(&gateway, &name).await });
        made.await.unwrap()
    }

    pub async fn evm_wallet(&self, vault: VaultId) -> String {
        let gateway = self.gateway.clone();
        let made = self.inside(async move { evm_wallet(&gateway, vault).await });
        made.await.unwrap()
    }

    /// Ends it as a kill does: in the middle of whatever it is at.
    pub fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Waits until it has given its vaults to others.
    pub async fn leave(&self) {
        let gateway = self.gateway.clone();
        self.inside(async move { gateway.leave().await }).await;
    }

    pub async fn stop(&mut self) {
        let gateway = self.gateway.clone();
        self.inside(async move { gateway.stop().await }).await;
        self.kill();
    }

    /// Has time pass on its steady clock as it does outside, from now on.
    pub fn let_run(&self) {
        let monotonic = Arc::clone(&self.monotonic);
        let (begun, before) = (Instant::now(), monotonic.0.load(Ordering::SeqCst));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(10)).await;
                let passed = u64::try_from(begun.elapsed().as_millis()).unwrap();
                monotonic.0.store(before + passed, Ordering::SeqCst);
            }
        });
    }

    /// Lets a part of the lease time pass on its clock, and waits until it has looked twice.
    pub async fn let_pass(&self, world: &World, ms: u64) {
        self.monotonic.0.fetch_add(ms, Ordering::SeqCst);
        let me = self.gateway.orchestrator();
        let before = beats(world, me.as_bytes()).await;
        while beats(world, me.as_bytes()).await < before + 2 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How often an orchestrator has shown that it is there.
async fn beats(world: &World, id: &[u8]) -> u64 {
    let row = world.store.get(&Key::new(KeySpace::Member, &[id])).await;
    row.unwrap().map_or(0, |row| row.version)
}

/// Where the vaults are, by the rows of their leases: the version of each, and its bytes.
pub async fn leases(world: &World) -> Vec<(Key, Row)> {
    let all = Scan::prefix(KeySpace::Lease, &[1], 1_000);
    world.store.scan(&all).await.unwrap()
}

/// Which of the processes has a vault.
pub async fn owner(world: &World, vault: VaultId, processes: &[&Process]) -> Option<usize> {
    let key = Key::new(KeySpace::Lease, &[&[1], vault.as_bytes()]);
    let row = world.store.get(&key).await.unwrap()?;
    // BCS of version, option and id.
    processes.iter().position(|process| {
        let id = process.gateway.orchestrator();
        row.value.windows(16).any(|window| window == id.as_bytes())
    })
}

/// Waits until one of the processes has a vault; says which.
pub async fn owned(world: &World, vault: VaultId, processes: &[&Process]) -> usize {
    loop {
        if let Some(owner) = owner(world, vault, processes).await {
            return owner;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
