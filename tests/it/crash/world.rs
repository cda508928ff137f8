//! What the tests of this folder break: an orchestrator on one of the stores, or two on one, three
//! signers, a Redis that keeps nothing, and a chain.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::block_in_place,
};

use crate::support::{postgres::Postgres, *};

/// Where the orchestrator keeps its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreSetup {
    Redb,
    Postgres,
    /// Two orchestrators and two vaults on one PostgreSQL.
    Shared,
}

/// The chain's id.
pub const CHAIN: u64 = 31_337;

/// A running cluster, with wallets that have coins.
pub struct World {
    pub cluster: TestCluster,
    /// The orchestrators beside the cluster's own.
    pub others: Vec<Process>,
    /// Each orchestrator's API.
    pub apis: Vec<ApiClient>,
    pub server: Option<Postgres>,
    pub anvil: Anvil,
    pub vaults: Vec<String>,
    /// Accounts that pay.
    pub evm: Vec<String>,
    /// A wallet that signs with Ed25519.
    pub solana: String,
    _chain_folder: tempfile::TempDir,
}

impl World {
    pub async fn start(store: StoreSetup) -> Self {
        Self::start_prepared(store, |_| ()).await
    }

    /// `prepare` gets the folder of the configuration files before anything is started.
    pub async fn start_prepared(store: StoreSetup, prepare: impl FnOnce(&Path)) -> Self {
        let server = (store != StoreSetup::Redb).then(Postgres::start);
        let others = if store == StoreSetup::Shared { 1 } else { 0 };
        Self::start_with(server, others, |url| url, prepare).await
    }

    /// On this server, whose URL is changed by `route`.
    pub async fn start_on(
        server: Option<Postgres>,
        route: impl FnOnce(String) -> String,
        prepare: impl FnOnce(&Path),
    ) -> Self {
        Self::start_with(server, 0, route, prepare).await
    }

    /// With so many orchestrators beside the cluster's own.
    async fn start_with(
        server: Option<Postgres>,
        others: usize,
        route: impl FnOnce(String) -> String,
        prepare: impl FnOnce(&Path),
    ) -> Self {
        let chain_folder = tempfile::tempdir().unwrap();
        let anvil = Anvil::start(chain_folder.path(), CHAIN).await;
        let url = server.as_ref().map(|server| route(server.database()));
        let chain = anvil.url.clone();
        let ports: Vec<u16> = (0..others).map(|_| free_port()).collect();
        let whole = |folder: &Path| {
            let mut tables = format!("[chains.evm.{CHAIN}]\nrpc = [{chain:?}]\n");
            if others > 0 {
                let roles = vec!["all"; others + 1];
                share_store(folder, &url.unwrap(), &roles, &ports, &tables);
                return prepare(folder);
            }
            if let Some(url) = url {
                tables += &store_table(folder, &url);
            }
            configure(&folder.join("serve.toml"), "serve", "", &tables);
            prepare(folder);
        };
        let cluster = TestCluster::start_prepared(60_000, "raw_signing = true", whole).await;
        let mut apis = vec![cluster.api.clone()];
        let more = ports.iter().map(|port| {
            let base = format!("http://127.0.0.1:{port}");
            ApiClient::new(&base, &cluster.api.token)
        });
        apis.extend(more);
        let folder = cluster.folder.path();
        let launched = (1..=others).map(|index| launch_orchestrator(folder, index, "all"));
        let mut world = Self {
            others: launched.collect(),
            apis,
            cluster,
            server,
            anvil,
            vaults: Vec::new(),
            evm: Vec::new(),
            solana: String::new(),
            _chain_folder: chain_folder,
        };
        world.ready().await;
        world.make_wallets().await;
        world
    }

    /// A vault per orchestrator, and their wallets.
    async fn make_wallets(&mut self) {
        let (cluster, others) = (&self.cluster, self.others.len());
        for number in 0..=others {
            let name = format!("treasury-{number}");
            self.vaults
                .push(block_in_place(|| cluster.create_vault(&name)));
        }
        for number in 0..2 {
            let vault = &self.vaults[number % self.vaults.len()];
            let wallet = cluster.api.wallet(vault, "NETWORK_TYPE_EVM").await;
            self.anvil
                .fund(&wallet, 1_000_000_000_000_000_000_000)
                .await;
            self.evm.push(wallet);
        }
        self.solana = cluster
            .api
            .wallet(&self.vaults[0], "NETWORK_TYPE_SOLANA")
            .await;
    }

    /// Every orchestrator can work.
    pub async fn ready(&mut self) {
        self.cluster.ready().await;
        until_ready(&self.apis).await;
    }

    /// The orchestrator of this number; the first is the cluster's own.
    pub fn orchestrator(&mut self, index: usize) -> &mut Process {
        match index {
            0 => &mut self.cluster.serve,
            _ => &mut self.others[index - 1],
        }
    }

    /// Starts one that has ended, and waits for nothing.
    pub fn start_orchestrator(&mut self, index: usize) {
        if index == 0 {
            self.cluster.start_serve();
        } else {
            self.others[index - 1] = launch_orchestrator(self.cluster.folder.path(), index, "all");
        }
    }

    /// Starts again what has ended by itself, as a service manager does; how many that were.
    pub fn supervise(&mut self) -> u64 {
        let mut ended = 0;
        for index in 0..self.apis.len() {
            if self.orchestrator(index).has_ended() {
                let log = tail(self.orchestrator(index));
                eprintln!("orchestrator {} ended:\n{log}", index + 1);
                self.start_orchestrator(index);
                ended += 1;
            }
        }
        for index in 0..self.cluster.signers.len() {
            if self.cluster.signers[index].has_ended() {
                let log = tail(&self.cluster.signers[index]);
                eprintln!("signer {} ended:\n{log}", index + 1);
                self.cluster.restart_signer(index);
                ended += 1;
            }
        }
        ended
    }

    /// The status of a call that only reads; 0 when there is no answer.
    pub async fn reads(&self, uuid: &str) -> u16 {
        let body = serde_json::json!({"uuid": uuid});
        let answer = self.cluster.api.attempt("getSigningRequestDetails", &body);
        answer.await.map_or(0, |(status, _)| status)
    }

    /// No process has panicked, and no log tells the store's password.
    pub fn assert_sound(&self) {
        let orchestrators = std::iter::once(&self.cluster.serve).chain(&self.others);
        for process in orchestrators.chain(&self.cluster.signers) {
            let log = process.log();
            let panicked = log.lines().find(|line| line.contains("panicked at"));
            assert_eq!(panicked, None);
            assert!(!postgres::tells_password(&log));
        }
    }
}

/// The last lines of a log.
fn tail(process: &Process) -> String {
    let log = process.log();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

/// A number like any other: the same ones again for the same seed (SplitMix64).
pub struct TestRng(u64);

impl TestRng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Takes one out of these.
    pub fn take<T>(&mut self, from: &mut Vec<T>) -> T {
        let which = self.within(0, from.len() as u64);
        from.remove(usize::try_from(which).unwrap())
    }

    /// One of `from..to`.
    pub fn within(&mut self, from: u64, to: u64) -> u64 {
        from + self.roll() % (to - from)
    }
}

/// The seed of a test: COVAULT_CRASH_SEED, or one that is printed.
pub fn seed() -> u64 {
    let given = std::env::var("COVAULT_CRASH_SEED").ok();
    let seed = given.map_or_else(rand::random, |seed| seed.parse().unwrap());
    eprintln!("COVAULT_CRASH_SEED={seed} rolls the same dice again");
    seed
}

/// Whether there is time for the long forms.
pub fn long() -> bool {
    std::env::var_os("COVAULT_LONG_SUITE").is_some()
}

/// A way to a port of this machine that can lead elsewhere from one moment to the next.
pub struct TcpRelay {
    pub address: SocketAddr,
    target: Arc<AtomicU16>,
    cut: watch::Sender<u64>,
}

impl TcpRelay {
    /// From a free port of this address.
    pub async fn from(address: Ipv4Addr, target: u16) -> Self {
        let listener = TcpListener::bind((IpAddr::V4(address), 0)).await.unwrap();
        let (cut, cuts) = watch::channel(0);
        let relay = Self {
            address: listener.local_addr().unwrap(),
            target: Arc::new(AtomicU16::new(target)),
            cut,
        };
        let target = Arc::clone(&relay.target);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (target, mut cuts) = (target.load(Ordering::SeqCst), cuts.clone());
                cuts.mark_unchanged();
                tokio::spawn(async move {
                    // Nobody there: the caller sees the connection end.
                    let Ok(far) = TcpStream::connect(("127.0.0.1", target)).await else {
                        return;
                    };
                    let _ = (near.set_nodelay(true), far.set_nodelay(true));
                    let (mut near, mut far) = (near, far);
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = cuts.changed() => {}
                    }
                });
            }
        });
        relay
    }

    /// Leads to another port from now on; who is on the way has to begin anew.
    pub fn lead_to(&self, target: u16) {
        self.target.store(target, Ordering::SeqCst);
        self.cut.send_modify(|times| *times += 1);
    }
}
