//! What the tests of this folder break: an orchestrator on one of the stores, three signers, a Redis
//! that keeps nothing, and a chain.

use std::{
    fs,
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
};

use crate::support::{postgres::Postgres, *};

/// Where the orchestrator keeps its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    Redb,
    Postgres,
}

/// The chain's id.
pub const CHAIN: u64 = 31_337;

/// A running cluster, with wallets that have coins.
pub struct World {
    pub cluster: Cluster,
    pub server: Option<Postgres>,
    pub anvil: Anvil,
    pub vault: String,
    /// Accounts that pay.
    pub evm: Vec<String>,
    /// A wallet that signs with Ed25519.
    pub solana: String,
    _chain_folder: tempfile::TempDir,
}

impl World {
    pub async fn start(store: Store) -> Self {
        Self::start_prepared(store, |_| ()).await
    }

    /// `prepare` gets the folder of the configuration files before anything is started.
    pub async fn start_prepared(store: Store, prepare: impl FnOnce(&Path)) -> Self {
        let server = (store == Store::Postgres).then(Postgres::start);
        Self::start_on(server, |url| url, prepare).await
    }

    /// On this server, whose URL is changed by `route`.
    pub async fn start_on(
        server: Option<Postgres>,
        route: impl FnOnce(String) -> String,
        prepare: impl FnOnce(&Path),
    ) -> Self {
        let chain_folder = tempfile::tempdir().unwrap();
        let anvil = Anvil::start(chain_folder.path(), CHAIN).await;
        let url = server.as_ref().map(|server| route(server.database()));
        let chain = anvil.url.clone();
        let whole = |folder: &Path| {
            let mut tables = format!("[chains.evm.{CHAIN}]\nrpc = [{chain:?}]\n");
            if let Some(url) = url {
                let file = folder.join("store-url");
                fs::write(&file, url).unwrap();
                tables += &format!("[store]\nkind = \"postgres\"\nurl_file = {file:?}\n");
            }
            configure(&folder.join("serve.toml"), "serve", "", &tables);
            prepare(folder);
        };
        let cluster = Cluster::start_prepared(60_000, "raw_signing = true", whole).await;
        let vault = cluster.create_vault("treasury");
        let mut evm = Vec::new();
        for _ in 0..2 {
            let wallet = cluster.api.wallet(&vault, "NETWORK_TYPE_EVM").await;
            anvil.fund(&wallet, 1_000_000_000_000_000_000_000).await;
            evm.push(wallet);
        }
        let solana = cluster.api.wallet(&vault, "NETWORK_TYPE_SOLANA").await;
        Self {
            cluster,
            server,
            anvil,
            vault,
            evm,
            solana,
            _chain_folder: chain_folder,
        }
    }

    /// Starts again what has ended by itself, as a service manager does; how many that were.
    pub fn supervise(&mut self) -> u64 {
        let mut ended = 0;
        if self.cluster.serve.has_ended() {
            eprintln!("the orchestrator ended:\n{}", tail(&self.cluster.serve));
            self.cluster.start_serve();
            ended += 1;
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
        for process in std::iter::once(&self.cluster.serve).chain(&self.cluster.signers) {
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
pub struct Dice(u64);

impl Dice {
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

/// A way to a port of this machine that can lead elsewhere from one moment to the next.
pub struct Way {
    pub address: SocketAddr,
    target: Arc<AtomicU16>,
    cut: watch::Sender<u64>,
}

impl Way {
    /// From a free port of this address.
    pub async fn from(address: Ipv4Addr, target: u16) -> Self {
        let listener = TcpListener::bind((IpAddr::V4(address), 0)).await.unwrap();
        let (cut, cuts) = watch::channel(0);
        let way = Self {
            address: listener.local_addr().unwrap(),
            target: Arc::new(AtomicU16::new(target)),
            cut,
        };
        let target = Arc::clone(&way.target);
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
        way
    }

    /// Leads to another port from now on; who is on the way has to begin anew.
    pub fn lead_to(&self, target: u16) {
        self.target.store(target, Ordering::SeqCst);
        self.cut.send_modify(|times| *times += 1);
    }
}
