//! `covault dev`: a whole cluster in one process, for development.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use covault_actors::{
    chain_rpc::ChainKey,
    gateway::{Caller, Gateway},
    operations::{AdmitNode, CreateUser, CreateVault, LinkUser, ListUsers, ListVaults, Operation},
};
use covault_core::{fault::Fault, order::NodeId, schema::admin, trace::Tracer};
use covault_mpc::{
    bus::Bus,
    node::{CurrentPolicy, KeyRules, KeygenQuota, NoResumeDetector, Node, NodeConfig},
    policy::Policy,
    preprocess::Watermarks,
};
use secrecy::ExposeSecret;
use tokio::{sync::watch, task::JoinSet};

use super::{
    print_line,
    progress::{ProgressSpinner, keys_in_words},
    vault::approvals::ApprovalArgs,
};
use crate::{
    adapters::OsEntropy,
    api::auth::new_token,
    bus_check,
    config::{Config, ConsoleSettings, LogSettings},
    files, identities,
    listeners::url_of,
    metrics,
    redis_access::RedisAccess,
    shutdown,
    token_files::{self, TokenPair},
    traces::{TracedProcess, Traces},
    wiring::{self, ApiListeners, SignerParts},
};

const VAULT: &str = "default";
/// The user of the console.
const USER: &str = "developer";
const THRESHOLD: u32 = 2;
const SIGNERS: usize = 3;
const POLL: Duration = Duration::from_millis(100);
/// Quiet, so that what the command prints stays readable.
const SETTINGS: &str = "[log]\nlevel = \"warn\"\n[signer]\ndevelopment = true\n";

/// Run everything in one process, for development: orchestrator, three signers, a vault.
///
/// It admits the signers itself. The vault "default" needs any 2 of the 3 signers; the first start generates its keys
/// by real distributed key generation. Every request is signed at once, unless --manual names who approves. When it
/// is ready, it prints a first call to try; DIR/dev.json says where and how to reach it. Another start on the same
/// folder has the same keys, wallets, requests and tokens. The signers sign everything, raw messages too.
///
/// Not for production: one machine that holds all shares holds the keys. Set
/// COVAULT_LOG_LEVEL=info to see more.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder for keys, store, tokens and dev.json. One process at a time.
    #[arg(long, value_name = "DIR", default_value = "./covault-dev")]
    data: PathBuf,
    /// Where the HTTP API listens. Port 0 takes a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8080")]
    listen: String,
    /// Where the gRPC API listens; empty: gRPC is off. Default: the port after that of the HTTP API, or a free one
    /// when that is port 0.
    #[arg(long, value_name = "IP:PORT")]
    grpc_listen: Option<String>,
    /// Use this Redis as the bus between the nodes instead of this process's memory.
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// Sign nothing before the person with this key has approved it (covault approve): an OpenSSH line or a .pub
    /// file. May be repeated: one of these persons has to approve. Without it, requests are signed at once.
    #[arg(long, value_name = "NAME=KEY")]
    manual: Vec<String>,
    /// Serve the console here, for browsers on this machine (http://localhost:PORT), and print a link that enrols a
    /// passkey of the user "developer". The passkey signs in; it approves where its line is given to --manual.
    #[arg(long, value_name = "IP:PORT", value_parser = console_address)]
    console: Option<SocketAddr>,
    #[arg(long = "chain", value_name = "CHAIN=URL", value_parser = chain, help = chains_help())]
    chains: Vec<(String, String)>,
}

fn console_address(text: &str) -> Result<SocketAddr, String> {
    let address: Option<SocketAddr> = text.parse().ok();
    // Passkeys are made for the port, too. Sessions in the clear stay on this machine.
    let fixed = address.filter(|address| address.port() != 0 && address.ip().is_loopback());
    fixed.ok_or_else(|| {
        "use an address of this machine with a port of its own, e.g. 127.0.0.1:8082".to_owned()
    })
}

fn chains_help() -> String {
    let named = ChainKey::NAMED.map(|(name, _)| name).join(", ");
    format!(
        "A chain and the URL of a node of it; may be repeated. An EVM chain is named by its chain id \
         (31337=http://127.0.0.1:8545) and becomes a known chain; the others are {named}"
    )
}

fn chain(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((id, url)) if url.starts_with("http://") || url.starts_with("https://") => {
            Ok((id.to_owned(), url.to_owned()))
        }
        _ => Err("use CHAIN=URL, e.g. 31337=http://127.0.0.1:8545".to_owned()),
    }
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let (mut config, ignored) = Config::load_with("covault dev", SETTINGS)?;
    super::start_logging(&config, &ignored)?;
    let mut stop = shutdown::on_signals(|| {})?;
    for (id, url) in &args.chains {
        config.chains.add(id, url)?;
    }
    if let Some(address) = args.console {
        config.console = ConsoleSettings::for_development(address.to_string(), address.port());
    }
    let _folder_lock = files::lock_folder(&args.data)?;
    // What a killed process left behind must not be taken for this one.
    let info = args.data.join("dev.json");
    files::remove(&info).with_context(|| format!("cannot remove {}", info.display()))?;
    let grpc = |http| match &args.grpc_listen {
        Some(address) => address.clone(),
        None => next_address(&args.listen, http).to_string(),
    };
    let mut listeners =
        ApiListeners::bind(&args.listen, grpc, Some(&config.console), &config.tls).await?;
    config.serve.data_dir = args.data.join("orchestrator");
    config.serve.init = true;
    let this_machine = ["127.0.0.0/8", "::1/128"].map(str::to_owned);
    config.webhooks.allow.extend(this_machine);
    let identity = identities::identity(&config.serve.identity_file(), "covault-orchestrator")?;
    let tokens = token_files::tokens(&config.serve)?;
    let admin = config.serve.admin_address().map_err(anyhow::Error::msg);
    listeners
        .listen_for_operators(&admin.context("serve.admin_listen")?)
        .await?;
    let addresses = ApiAddresses {
        base_url: url_of(listeners.http.local_addr()?, listeners.tls.is_some()),
        grpc_target: listeners.grpc_address()?.map(target),
        admin_url: listeners.admin.as_ref().map(|admin| admin.url.clone()),
    };
    let bus = match &args.redis {
        Some(url) => {
            config.bus.redis_url.clone_from(url);
            let access = RedisAccess::load(&config.bus)?;
            if let Some(away) = bus_check::check(&access, None).await? {
                anyhow::bail!("--redis: {away}; start Redis, or leave --redis out");
            }
            access.bus()?
        }
        None => wiring::memory_bus(),
    };
    let mut nodes = SignerNodes::prepare(&args.data, &config.log, &bus, identity.id())?;
    let store = wiring::store_of_orchestrator(&config).await?;
    let traces = Traces::start(
        &config.log,
        &TracedProcess {
            service: "covault-orchestrator",
            name: &config.cluster.name,
        },
    )?;
    let tracer = &traces.tracer;
    let running = wiring::orchestrator(&config, store, bus, identity, &tokens, tracer).await?;
    let gateway = running.gateway.clone();
    let gauges = metrics::orchestrator_gauges(
        gateway.clone(),
        Arc::clone(&running.bus),
        wiring::store_file(&config),
    );
    let tls = listeners.tls.clone();
    let metrics = metrics::bind(&config.serve.metrics_listen, "serve.metrics_listen").await?;
    metrics::start(metrics, tls, gauges, stop.clone())?;
    let served = tokio::spawn(running.serve(listeners, stop.clone()));
    admit(&gateway, &nodes.ids).await?;
    nodes.start();

    let signers = nodes.ids.clone();
    let approvals = ApprovalArgs::for_development(args.manual).rule()?;
    let vault = tokio::select! {
        vault = ready_vault(&gateway, &signers, approvals) => Some(vault?),
        ended = nodes.ended() => return Err(ended),
        () = shutdown::requested(&mut stop) => None,
    };
    if let Some(vault) = vault {
        let uuid = vault.uuid;
        publish_info(&info, &addresses, &uuid, &tokens)?;
        if !config.console.listen.is_empty() {
            match console_link(&gateway).await {
                Ok(link) => print_line(format_args!(
                    "\nThis link enrols a passkey of {USER} for the console, once, within 15 minutes:\n\n  {link}"
                )),
                // Those that are enrolled keep signing in.
                Err(error) => print_line(format_args!(
                    "\nThere is no new link for {USER} and the console: {error:#}"
                )),
            }
        }
        tokio::select! {
            ended = nodes.ended() => return Err(ended),
            () = shutdown::requested(&mut stop) => {}
        }
    }
    served.await.context("the API failed")??;
    nodes.stop().await;
    traces.finish().await;
    files::remove(&info)?;
    Ok(())
}

/// Where the APIs are reached.
struct ApiAddresses {
    base_url: String,
    grpc_target: Option<String>,
    /// What commands take as --url.
    admin_url: Option<String>,
}

/// Where gRPC listens when nothing is said: beside HTTP, which was asked to listen on `asked`.
fn next_address(asked: &str, http: SocketAddr) -> SocketAddr {
    let port = if asked.ends_with(":0") {
        0
    } else {
        http.port().checked_add(1).unwrap_or(0)
    };
    SocketAddr::new(http.ip(), port)
}

/// `HOST:PORT`, as gRPC clients are told.
fn target(address: SocketAddr) -> String {
    let url = url_of(address, false);
    url.trim_start_matches("http://").to_owned()
}

/// The signer nodes: each with its own identity, passphrase and folder; only the bus is shared.
struct SignerNodes {
    ids: Vec<NodeId>,
    /// Not started yet.
    prepared: Vec<NodeConfig>,
    running: JoinSet<Result<(), Fault>>,
    traces: Vec<Traces>,
    stop: watch::Sender<bool>,
}

impl SignerNodes {
    /// Their identities and folders.
    fn prepare(
        data: &Path,
        log: &LogSettings,
        bus: &Arc<dyn Bus>,
        orchestrator: NodeId,
    ) -> anyhow::Result<Self> {
        let mut nodes = Self {
            ids: Vec::new(),
            prepared: Vec::new(),
            running: JoinSet::new(),
            traces: Vec::new(),
            stop: watch::Sender::new(false),
        };
        for number in 1..=SIGNERS {
            let name = format!("signer-{number}");
            let folder = data.join(&name);
            let process = TracedProcess {
                service: "covault-signer",
                name: &name,
            };
            let traces = Traces::start(log, &process)?;
            let tracer = traces.tracer.clone();
            nodes.traces.push(traces);
            nodes.add(name, &folder, tracer, Arc::clone(bus), orchestrator)?;
        }
        Ok(nodes)
    }

    fn add(
        &mut self,
        name: String,
        folder: &Path,
        tracer: Tracer,
        bus: Arc<dyn Bus>,
        orchestrator: NodeId,
    ) -> anyhow::Result<()> {
        let identity = identities::identity(&folder.join("identity"), &name)?;
        let passphrase =
            files::secret_or_new(&folder.join("passphrase"), || new_token(&OsEntropy))?;
        self.ids.push(identity.id());
        let config = wiring::node_config(SignerParts {
            tracer,
            approval_relay: None,
            client: None,
            name,
            folder: folder.to_owned(),
            identity,
            bus,
            pool: wiring::cpu_pool(SIGNERS)?,
            passphrase,
            work_factor: wiring::WORK_FACTOR_RANDOM,
            orchestrators: vec![orchestrator],
            backup_recipients: Vec::new(),
            // One operator has all of them: asking for a change is permitting it.
            rules: KeyRules {
                permits: false,
                ..KeyRules::default()
            },
            peers: Arc::default(),
            policy: Arc::new(CurrentPolicy::new(Policy::development())),
            nonces: Watermarks::default(),
            // A laptop sleeps; keys for development are not worth a node that ends.
            resumption: Arc::new(NoResumeDetector),
            keygen_quota: KeygenQuota::default(),
        });
        self.prepared.push(config);
        Ok(())
    }

    /// Once they are admitted, so that none is announced as unknown.
    fn start(&mut self) {
        for config in self.prepared.drain(..) {
            self.running.spawn(Node::run(config, self.stop.subscribe()));
        }
    }

    /// Waits for a node to end, which none should.
    async fn ended(&mut self) -> anyhow::Error {
        match self.running.join_next().await {
            Some(Ok(Err(fault))) => wiring::explain(fault).context("a signer node ended"),
            Some(Err(error)) => anyhow::Error::new(error).context("a signer node ended"),
            Some(Ok(Ok(()))) | None => anyhow::anyhow!("a signer node ended"),
        }
    }

    async fn stop(mut self) {
        // No receiver: they have all ended.
        let _ = self.stop.send(true);
        while self.running.join_next().await.is_some() {}
        for traces in self.traces {
            traces.finish().await;
        }
    }
}

/// Admits the signers of this process.
async fn admit(gateway: &Gateway, ids: &[NodeId]) -> anyhow::Result<()> {
    for id in ids {
        let request = admin::AdmitNodeRequest {
            public_key: id.openssh_line(""),
            name: String::new(),
        };
        call::<AdmitNode>(gateway, &request).await?;
    }
    Ok(())
}

async fn call<O: Operation>(
    gateway: &Gateway,
    request: &O::Request,
) -> anyhow::Result<O::Response> {
    let caller = Caller::service("dev");
    let called = gateway.call_typed::<O>(&caller, request, None).await;
    Ok(called.map_err(wiring::explain)?.0)
}

/// A link that enrols a passkey of the user of the console, who is made where there is none.
async fn console_link(gateway: &Gateway) -> anyhow::Result<String> {
    let users = call::<ListUsers>(gateway, &admin::ListUsersRequest::default()).await?;
    let is_there = users.users.iter().any(|user| user.name == USER);
    let link = if is_there {
        let request = admin::LinkUserRequest {
            name: USER.to_owned(),
        };
        call::<LinkUser>(gateway, &request).await?.link
    } else {
        let request = admin::CreateUserRequest {
            name: USER.to_owned(),
            role: "approver".to_owned(),
            vaults: Vec::new(),
            all_vaults: true,
        };
        call::<CreateUser>(gateway, &request).await?.link
    };
    Ok(link.unwrap_or_default().url)
}

/// Makes the vault, or finds it again, and waits for its keys.
async fn ready_vault(
    gateway: &Gateway,
    signers: &[NodeId],
    approvals: admin::ApprovalRule,
) -> anyhow::Result<admin::Vault> {
    let request = admin::CreateVaultRequest {
        name: VAULT.to_owned(),
        threshold: THRESHOLD,
        signers: signers.iter().map(|id| id.openssh_line("")).collect(),
        ecdsa_backend: None,
        replace: false,
        approvals: Some(approvals),
    };
    let made = call::<CreateVault>(gateway, &request).await?;
    let mut vault = made.vault.context("the vault was not created")?;
    let progress = (!vault.ready).then(|| {
        ProgressSpinner::start(format!(
            "generating the keys of vault {VAULT}: {THRESHOLD}-of-{SIGNERS}, on two curves, by distributed key \
             generation"
        ))
    });
    while !vault.ready {
        if let Some(progress) = &progress {
            let keys = keys_in_words(&vault.keys);
            progress.next(format!("generating the keys of vault {VAULT}: {keys}"));
        }
        if let Some(reason) = vault.failed_reason {
            bail!("vault {VAULT} has no keys: {reason}");
        }
        tokio::time::sleep(POLL).await;
        let all = call::<ListVaults>(gateway, &admin::ListVaultsRequest::default()).await?;
        let mut all = all.vaults.into_iter();
        vault = all
            .find(|vault| vault.name == VAULT)
            .context("the orchestrator no longer lists the vault")?;
    }
    if let Some(progress) = progress {
        progress.next("the keys exist");
    }
    Ok(vault)
}

/// Writes dev.json and prints what to try.
fn publish_info(
    info: &Path,
    addresses: &ApiAddresses,
    vault: &str,
    tokens: &TokenPair,
) -> anyhow::Result<()> {
    let ApiAddresses {
        base_url,
        grpc_target,
        admin_url,
    } = addresses;
    let platform = tokens.platform.expose_secret();
    let json = serde_json::json!({
        "baseUrl": base_url,
        "grpcTarget": grpc_target,
        "adminUrl": admin_url,
        "vaultUuid": vault,
        "platformToken": platform,
        "adminToken": tokens.admin.as_ref().map(ExposeSecret::expose_secret),
        "pid": std::process::id(),
    });
    let text = zeroize::Zeroizing::new(format!("{json:#}\n"));
    files::write_private(info, text.as_bytes())?;
    print_line(format_args!(
        "Covault is ready at {base_url}, with vault {VAULT} ({THRESHOLD}-of-{SIGNERS}). {} holds its address and tokens.\n\n\
         Try this, a wallet whose key is split over {SIGNERS} signers:\n\n  \
         curl -sS {base_url}/v1/createWallet -H 'x-mtoken: {platform}' -H 'content-type: application/json' \
         -d '{{\"vaultUuid\": \"{vault}\", \"networkType\": \"NETWORK_TYPE_EVM\"}}'\n\n\
         Then createSigningRequest and executeSigningRequests: README.md continues from there. Ctrl-C stops it.",
        info.display()
    ));
    Ok(())
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn grpc__should_listen_beside_http() {
        let beside =
            |asked: &str, http: &str| next_address(asked, http.parse().unwrap()).to_string();
        assert_eq!(beside("localhost:8080", "127.0.0.1:8080"), "127.0.0.1:8081");
        assert_eq!(beside("127.0.0.1:0", "127.0.0.1:41234"), "127.0.0.1:0");
        assert_eq!(beside("[::]:65535", "[::]:65535"), "[::]:0");
        assert_eq!(target("0.0.0.0:8081".parse().unwrap()), "127.0.0.1:8081");
        assert_eq!(target("[::]:8081".parse().unwrap()), "[::1]:8081");
    }

    #[test]
    fn console__should_have_a_port_of_its_own() {
        let settings = |text: &str| {
            let address = console_address(text)?;
            let settings = ConsoleSettings::for_development(address.to_string(), address.port());
            let origin = settings.origin().map_err(|error| error.to_string())?;
            Ok::<_, String>(origin.ok_or("none")?.origin)
        };
        assert_eq!(settings("127.0.0.1:8082").unwrap(), "http://localhost:8082");
        assert_eq!(settings("[::1]:80").unwrap(), "http://localhost");
        for text in [
            "127.0.0.1:0",
            "localhost:8082",
            "8082",
            "0.0.0.0:8082",
            "192.0.2.1:8082",
        ] {
            assert!(settings(text).is_err(), "{text}");
        }
    }

    #[test]
    fn chain__should_take_an_id_and_a_url() {
        let url = "http://127.0.0.1:8545/?key=a=b";
        assert_eq!(
            chain(&format!("31337={url}")).unwrap(),
            ("31337".to_owned(), url.to_owned())
        );
        for text in [
            "31337",
            "31337=",
            "31337=127.0.0.1:8545",
            "http://127.0.0.1:8545",
        ] {
            assert!(chain(text).is_err(), "{text}");
        }
    }
}
