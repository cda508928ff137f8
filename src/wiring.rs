//! Wiring: the one place that names concrete adapters.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use covault_actors::{
    chain_rpc::{CALLS_PER_NODE, ChainClients, PoolPorts},
    gateway::Gateway,
    settings::{OrchestratorParts, Settings},
    store::{
        Store,
        postgres::{self, PostgresStore},
        redb::RedbStore,
    },
};
use covault_core::{fault::Fault, order::NodeId, trace::Tracer};
use covault_mpc::{
    bus::{Bus, memory::MemoryBus},
    cluster::{Cluster, ClusterConfig},
    identity::NodeIdentity,
    node::{
        ApprovalRelay, ClientSignerConfig, CurrentPeers, CurrentPolicy, KeyRules, KeygenQuota,
        NodeConfig, ResumeDetector,
    },
    policy::Policy,
    pool::CpuPool,
    preprocess::Watermarks,
};
use secrecy::SecretString;
use tokio::sync::watch;

use crate::{
    abis,
    adapters::{OsEntropy, SystemClock},
    api::{
        Api, ApiSide,
        admission::{Admission, AdmissionLimits, CallRate},
        auth::Tokens,
        refusals::RefusalLog,
    },
    callback::HttpCallback,
    chain_nodes,
    config::{
        self, CallbackSettings, Config, ProcessRole, RateLimits, ServeSettings, SignerSettings,
        StoreKind,
    },
    console, files, grpc,
    http::{
        self,
        server::{self, HttpVersion, ServerLimits},
    },
    node_questions, policy_reload, sharing,
    shutdown::{self, StopSignal},
    signers::ClusterSigners,
    sockets::SocketShares,
    store_meter::MeteredStore,
    token_files::TokenPair,
    webhooks,
};

pub use crate::listeners::{ApiListeners, listen};

/// How often nodes announce themselves, how long that counts, and how long one set of signers
/// has before another is tried.
const HEARTBEAT: Duration = Duration::from_secs(1);
const LIVE_FOR: Duration = Duration::from_millis(3500);
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a client may take to read an answer.
const READING: Duration = Duration::from_secs(30);
/// A client must be able to get the largest answer, in bytes.
const LEAST_UNREAD_BYTES: usize = 16 << 20;
/// What a call may take beyond the longest wait of executeSigningRequests.
const CALL_MARGIN_MS: u64 = 5_000;

/// scrypt's work factor for passphrases that people choose: about a second.
pub const WORK_FACTOR: u8 = 18;
/// For passphrases of 256 random bits, where stretching adds nothing.
pub const WORK_FACTOR_RANDOM: u8 = 10;

/// A fault for the person who started this process, who may know its cause. Its code comes last, for scripts.
pub fn explain(fault: Fault) -> anyhow::Error {
    let (message, code) = (fault.message(), fault.stable_code());
    match fault.cause() {
        Some(cause) => anyhow::anyhow!("{message} ({cause}) [{code}]"),
        None => anyhow::anyhow!("{message} [{code}]"),
    }
}

/// A bus within this process.
pub fn memory_bus() -> Arc<dyn Bus> {
    MemoryBus::new()
}

/// What makes a node a client signer.
///
/// # Errors
/// When URL or secret cannot be used.
pub fn client_signer(
    callback: CallbackSettings,
    identity: &Arc<NodeIdentity>,
) -> anyhow::Result<ClientSignerConfig> {
    let vault = callback.vault;
    let callback = HttpCallback::new(callback, Arc::clone(identity), Arc::new(SystemClock))?;
    Ok(ClientSignerConfig {
        vault,
        callback: Arc::new(callback),
    })
}

/// Threads for the cryptography of one node of `nodes` on this machine.
///
/// # Errors
/// When the system refuses threads.
pub fn cpu_pool(nodes: usize) -> anyhow::Result<Arc<CpuPool>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    CpuPool::new(cores.div_ceil(nodes)).map_err(explain)
}

/// A signer node.
pub struct SignerParts {
    pub name: String,
    pub folder: PathBuf,
    pub identity: Arc<NodeIdentity>,
    pub bus: Arc<dyn Bus>,
    pub pool: Arc<CpuPool>,
    pub passphrase: SecretString,
    pub work_factor: u8,
    pub orchestrators: Vec<NodeId>,
    pub backup_recipients: Vec<String>,
    pub rules: KeyRules,
    pub peers: Arc<CurrentPeers>,
    pub policy: Arc<CurrentPolicy>,
    pub nonces: Watermarks,
    pub resumption: Arc<dyn ResumeDetector>,
    pub keygen_quota: KeygenQuota,
    pub client: Option<ClientSignerConfig>,
    pub approval_relay: Option<Arc<ApprovalRelay>>,
    pub tracer: Tracer,
}

/// What `Node::run` takes.
pub fn node_config(parts: SignerParts) -> NodeConfig {
    NodeConfig {
        name: parts.name,
        identity: parts.identity,
        bus: parts.bus,
        clock: Arc::new(SystemClock),
        entropy: Arc::new(OsEntropy),
        pool: parts.pool,
        folder: parts.folder,
        passphrase: parts.passphrase,
        work_factor: parts.work_factor,
        trusted: parts.orchestrators,
        peers: parts.peers,
        check: parts.policy,
        backup_recipients: parts.backup_recipients,
        rules: parts.rules,
        heartbeat: HEARTBEAT,
        nonces: parts.nonces,
        resumption: parts.resumption,
        keygen_quota: parts.keygen_quota,
        client: parts.client,
        approval_relay: parts.approval_relay,
        tracer: parts.tracer,
    }
}

/// The policy floor of a signer node.
///
/// # Errors
/// When the file cannot be used, or is named and not there: what an operator forbade must not
/// be signed because of a typing error.
pub fn policy(signer: &SignerSettings) -> anyhow::Result<Policy> {
    let (path, named) = signer.policy_file();
    match parse_policy(&path, "signer.policy_file")? {
        Some(policy) => {
            policy_reload::tell(&path, &policy);
            Ok(policy)
        }
        None if named => Err(missing_policy(&path, "signer.policy_file")),
        None => {
            tracing::info!(path = %path.display(), "no policy file: this node signs everything but raw messages and high fees, in any amount");
            Ok(Policy::production())
        }
    }
}

/// The same, while the node runs: a file that has gone allows nothing.
///
/// # Errors
/// When the file cannot be used, or is not there.
pub fn policy_again(signer: &SignerSettings) -> anyhow::Result<Policy> {
    let (path, _) = signer.policy_file();
    parse_policy(&path, "signer.policy_file")?
        .ok_or_else(|| missing_policy(&path, "signer.policy_file"))
}

/// The policy by which an orchestrator refuses early what its signers would.
///
/// # Errors
/// As [`policy_again`].
pub fn service_policy(path: &Path) -> anyhow::Result<Policy> {
    let policy = parse_policy(path, "serve.policy_file")?;
    Ok(policy
        .ok_or_else(|| missing_policy(path, "serve.policy_file"))?
        .of_service())
}

/// Whether a policy file that must be there can be used.
///
/// # Errors
/// When it is missing, or wrong.
pub fn check_policy(path: &Path, setting: &'static str) -> anyhow::Result<()> {
    let policy = parse_policy(path, setting)?;
    policy
        .map(drop)
        .ok_or_else(|| missing_policy(path, setting))
}

fn parse_policy(path: &Path, setting: &'static str) -> anyhow::Result<Option<Policy>> {
    let Some(text) = files::read_trusted(path).context(setting)? else {
        return Ok(None);
    };
    let of = || format!("{setting}: policy file {}", path.display());
    Policy::parse(&text)
        .map(Some)
        .map_err(explain)
        .with_context(of)
}

fn missing_policy(path: &Path, setting: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "{setting}: the policy file {} is missing: bring it back, or name another",
        path.display()
    )
}

/// An orchestrator that runs, and its API.
pub struct RunningOrchestrator {
    pub gateway: Gateway,
    pub bus: Arc<dyn Bus>,
    api: Arc<Api>,
    patience: ServerLimits,
    /// Connections of one address at a listener, where they are clients' own.
    most_per_address: usize,
    longest_call: Duration,
    roles: ProcessRole,
    cluster: Arc<Cluster>,
}

/// Where the store is that is a file.
pub fn store_path(serve: &ServeSettings) -> PathBuf {
    serve.data_dir.join("store.redb")
}

/// The same, where the store is a file.
pub fn store_file(config: &Config) -> Option<PathBuf> {
    (config.store.kind == StoreKind::Redb).then(|| store_path(&config.serve))
}

/// Starts the orchestrator on a data folder that this process owns.
///
/// # Errors
/// When store, cluster or chains cannot be used.
pub async fn orchestrator(
    config: &Config,
    store: Arc<dyn Store>,
    bus: Arc<dyn Bus>,
    identity: Arc<NodeIdentity>,
    tokens: &TokenPair,
    tracer: &Tracer,
) -> anyhow::Result<RunningOrchestrator> {
    let serve = &config.serve;
    // What is wrong with it is said before anything is begun.
    let calls = abis::load(&config.evm)?;
    let sharing = sharing::from_config(config, &identity, tracer.clone())?;
    let roles = config.cluster.roles;
    let cluster = Cluster::start(ClusterConfig {
        identity,
        bus: Arc::clone(&bus),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(OsEntropy),
        live_for: LIVE_FOR,
        attempt: ATTEMPT_TIMEOUT,
    })
    .await
    .map_err(explain)?;
    let chains = chain_nodes::from_config(&config.chains)?;
    let sockets = SocketShares::of_this_process();
    let chain_nodes = chains.values().map(|chain| chain.nodes.len()).sum();
    let ports = PoolPorts {
        clock: Arc::new(SystemClock),
        entropy: Arc::new(OsEntropy),
        calls_per_node: sockets.per_chain_node(chain_nodes).min(CALLS_PER_NODE),
    };
    anyhow::ensure!(
        roles.run_vaults() || !store.exclusive(),
        "a process without vaults needs a store that it shares with the processes that have them"
    );
    let policy = match serve.policy_file.clone() {
        path if path.as_os_str().is_empty() => None,
        path => {
            // Listens before it reads: a change after that is not missed.
            let hangup = shutdown::hangups()?;
            let policy = service_policy(&path)?;
            policy_reload::tell(&path, &policy);
            let policy = Arc::new(CurrentPolicy::new(policy));
            let read = {
                let path = path.clone();
                move || service_policy(&path)
            };
            policy_reload::on_hangup(hangup, path, Arc::clone(&policy), read);
            Some(policy)
        }
    };
    let gateway = Gateway::start(OrchestratorParts {
        store,
        signers: Arc::new(ClusterSigners {
            cluster: Arc::clone(&cluster),
            policy,
        }),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(OsEntropy),
        chains: ChainClients::connect(&chains, &ports).map_err(explain)?,
        settings: Settings {
            signing_deadline_ms: serve.signing_deadline_ms,
            most_wait_ms: serve.most_wait_ms,
            max_live_requests: serve.max_live_requests,
            max_live_bytes: serve.max_live_bytes,
            message_domain: serve.message_domain.clone(),
            console_origin: config
                .console
                .origin()?
                .map_or_else(String::new, |it| it.origin),
            simulate: serve.simulate,
            execute_wait_ms: serve.execute_wait_ms,
            calls,
            notify_details: config.notify.details,
            ..Settings::default()
        },
        webhooks: webhooks::from_config(config)?,
        sharing,
    })
    .await
    .map_err(explain)?;
    let api = Arc::new(Api {
        gateway: gateway.clone(),
        tokens: Tokens::new(&tokens.platform, tokens.admin.as_ref()),
        admission: Admission::new(&terms(serve, &config.limits)),
        refusals: Arc::new(RefusalLog::new()),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(OsEntropy),
        tracer: tracer.clone(),
        max_body_bytes: serve.max_body_bytes,
        body_timeout: Duration::from_millis(serve.body_timeout_ms),
        trusted_proxies: serve.trusted_proxies,
        strict_idempotency: config.idempotency.strict,
    });
    let max_connections = max_connections(serve, sockets);
    let patience = ServerLimits {
        headers: Duration::from_millis(serve.header_timeout_ms),
        idle: Duration::from_millis(serve.idle_timeout_ms),
        reading: READING,
        stopping: Duration::from_millis(serve.shutdown_grace_ms),
        max_connections,
        max_per_address: None,
    };
    let waiting = serve.execute_wait_ms.saturating_add(CALL_MARGIN_MS);
    Ok(RunningOrchestrator {
        gateway,
        bus,
        api,
        patience,
        most_per_address: per_address(serve.max_connections_per_ip.get(), max_connections),
        roles,
        cluster,
        longest_call: Duration::from_millis(serve.grpc_timeout_ms.max(waiting)),
    })
}

/// The connections of one listener: no more than there are files for.
fn max_connections(serve: &ServeSettings, sockets: SocketShares) -> usize {
    let (wanted, most) = (serve.max_connections.get(), sockets.per_listener);
    if wanted > most {
        tracing::warn!(
            wanted,
            most,
            "accepting fewer connections than serve.max_connections: this process may not open enough files (ulimit \
             -n)"
        );
    }
    wanted.min(most)
}

/// The connections of one address: never so many that few addresses have all, however few files there are.
fn per_address(wanted: usize, max_connections: usize) -> usize {
    wanted.min((max_connections / 4).max(1))
}

/// Opens the store of an orchestrator, and makes it where there is none.
///
/// # Errors
/// When it cannot be opened, naming the setting.
pub async fn store_of_orchestrator(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    // Who cannot send commands to others has nobody beside it.
    let alone = config.cluster.secret_file().is_none();
    let setting = match config.store.kind {
        StoreKind::Redb => "serve.data_dir",
        StoreKind::Postgres if config.store.url.is_empty() => "store.url_file",
        StoreKind::Postgres => "store.url",
    };
    if config.store.kind == StoreKind::Postgres && !config.serve.init {
        let made = PostgresStore::is_made(&postgres_options(config, alone)?).await;
        // A wrong database would be a new service, in which no vault is.
        anyhow::ensure!(
            made.map_err(explain).context(setting)?,
            "{setting}: the database holds no store of Covault. If there was one, name its database or restore it; to make a new \
             one, start once with covault serve --init (or set serve.init = true)"
        );
    }
    let store = store(config, alone).await.context(setting)?;
    Ok(Arc::new(MeteredStore(store)))
}

/// Opens the store that the configuration names, and makes it where there is none. `alone`: exclusively; a file is
/// always opened so.
///
/// # Errors
/// When it cannot be opened.
pub async fn store(config: &Config, alone: bool) -> anyhow::Result<Arc<dyn Store>> {
    let file = store_path(&config.serve);
    match config.store.kind {
        StoreKind::Redb => Ok(Arc::new(RedbStore::open(&file).map_err(explain)?)),
        StoreKind::Postgres => {
            // Its vaults would seem to be gone.
            anyhow::ensure!(
                !file.exists(),
                "store.kind is \"postgres\", but there is a store of kind \"redb\" in {}; Covault does not convert \
                 one into the other: move the file away to start with an empty PostgreSQL store",
                file.display()
            );
            let options = postgres_options(config, alone)?;
            let store = PostgresStore::open(options).await.map_err(explain)?;
            Ok(Arc::new(store))
        }
    }
}

fn postgres_options(config: &Config, alone: bool) -> anyhow::Result<postgres::Options> {
    Ok(postgres::Options {
        url: store_url(&config.store)?,
        readers: config.store.connections,
        patience: Duration::from_millis(config.store.timeout_ms),
        alone,
    })
}

/// Where PostgreSQL is.
///
/// # Errors
/// When nothing says it, or two settings do.
pub fn store_url(store: &config::StoreSettings) -> anyhow::Result<SecretString> {
    let in_file = !store.url_file.as_os_str().is_empty();
    match (store.url.as_str(), in_file) {
        ("", true) => files::read_secret(&store.url_file).context("store.url_file"),
        ("", false) => anyhow::bail!(
            "store.kind is \"postgres\": set COVAULT_STORE_URL, or store.url_file, or store.url"
        ),
        (url, false) => Ok(SecretString::from(url)),
        (_, true) => anyhow::bail!("store.url and store.url_file are both set: leave one of them"),
    }
}

fn terms(serve: &ServeSettings, limits: &RateLimits) -> AdmissionLimits {
    AdmissionLimits {
        max_in_flight: serve.max_in_flight.get(),
        // The largest body always finds room when nothing else is in progress.
        max_in_flight_bytes: serve
            .max_in_flight_bytes
            .max(serve.max_body_bytes.saturating_add(grpc::PREFIX)),
        max_unread_bytes: serve.max_unread_bytes.max(LEAST_UNREAD_BYTES),
        max_listeners: serve.max_event_listeners,
        per_token: CallRate {
            per_second: limits.per_token_per_second,
            burst: limits.per_token_burst,
        },
        per_address: CallRate {
            per_second: limits.per_ip_per_second,
            burst: limits.per_ip_burst,
        },
    }
}

impl RunningOrchestrator {
    /// Serves the API until `stop`; then gives the vaults to other orchestrators while it keeps serving, ends the
    /// calls in flight, and stops the actors.
    ///
    /// # Errors
    /// When a router cannot be built.
    pub async fn serve(self, listeners: ApiListeners, mut stop: StopSignal) -> anyhow::Result<()> {
        let (left, end) = watch::channel(false);
        let rest = if self.roles.serve_api() {
            http::router(&self.api, ApiSide::Clients, &end).map_err(explain)?
        } else {
            http::health_router(&self.api)
        };
        let grpc = grpc::router(&self.api, ApiSide::Clients, self.longest_call, &end);
        let grpc = grpc.map_err(explain)?;
        let gateway = self.gateway.clone();
        let leaving = async move {
            shutdown::requested(&mut stop).await;
            gateway.leave().await;
            // Nobody listening means that everything has stopped already.
            let _ = left.send(true);
            Ok(())
        };
        let serve = |listener, router, protocol, trusted_proxies| {
            let (tls, end) = (listeners.tls.clone(), end.clone());
            let limits = ServerLimits {
                // Behind a proxy, all of them come from it.
                max_per_address: (trusted_proxies == 0).then_some(self.most_per_address),
                ..self.patience
            };
            server::serve(listener, tls, router, protocol, limits, end)
        };
        let admin = match listeners.admin {
            None => None,
            Some(admin) => {
                let router = http::operators_router(&self.api, self.longest_call, &end);
                let (router, tls) = (router.map_err(explain)?, listeners.tls.clone());
                Some(admin.serve(router, tls, self.patience, end.clone()))
            }
        };
        let proxies = self.api.trusted_proxies;
        let rest = serve(listeners.http, rest, HttpVersion::Http1, proxies);
        let grpc = listeners
            .grpc
            .map(|listener| serve(listener, grpc, HttpVersion::Http2, proxies));
        let console = listeners.console.map(|(listener, origin)| {
            let proxies = origin.trusted_proxies;
            let pages = console::router(&self.api, origin, listeners.settings, &end);
            serve(listener, pages, HttpVersion::Http1, proxies)
        });
        let questions = async {
            if let Some(questions) = self.cluster.questions() {
                let (cluster, gateway) = (Arc::clone(&self.cluster), self.gateway.clone());
                node_questions::serve(questions, cluster, gateway, end.clone()).await;
            }
            anyhow::Ok(())
        };
        tokio::try_join!(
            leaving,
            rest,
            served(grpc),
            served(admin),
            served(console),
            questions
        )?;
        self.gateway.stop().await;
        Ok(())
    }
}

/// Waits for a listener, where there is one.
async fn served(listener: Option<impl Future<Output = anyhow::Result<()>>>) -> anyhow::Result<()> {
    match listener {
        Some(served) => served.await,
        None => Ok(()),
    }
}
