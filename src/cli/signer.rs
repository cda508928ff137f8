//! `covault signer`: one signer node.

mod listed;
mod reload;

use std::{
    iter,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use covault_core::order::NodeId;
use covault_mpc::{
    identity::NodeIdentity,
    node::{ApprovalRelay, CurrentPeers, CurrentPolicy, KeyRules, KeygenQuota, Node},
    policy::Policy,
    preprocess::Watermarks,
};
use futures::future::FutureExt as _;

use self::{listed::ListedPeers, reload::InForce};
use super::node;
use crate::{
    adapters::{OsEntropy, SystemClock},
    approval_page::{self, ApprovalPageParts},
    config::{CallbackSettings, Config, ShownSetting, SignerSettings},
    files::{self, FolderLock},
    health, identities, metrics,
    passphrase::{self, Passphrase},
    preflight,
    protect::ProcessProtection,
    redis_access::RedisAccess,
    resumption::MachineWatch,
    service_manager, shutdown,
    tls::ServerTls,
    traces::{TracedProcess, Traces},
    wiring::{self, SignerParts},
};

/// Run one signer node.
///
/// It holds shares of keys, never a key. Together with other nodes it signs the orders of the orchestrators that its
/// configuration names. Before it uses a share, it rebuilds every transaction from the request itself, and applies
/// its own policy file. `covault node init` creates its folder first. The passphrase of its shares comes from the
/// configured file, a systemd credential ("covault-passphrase"), or is asked for on the terminal.
///
/// SIGHUP: reads the policy file, the log settings and the peers again, and says what changed. A file that is wrong then
/// changes nothing.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Configuration file (TOML). Without it: the defaults, and COVAULT_ variables.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// All that a node reads once, before it confines itself to its folder.
struct SignerSetup {
    file: Option<PathBuf>,
    config: Config,
    /// As `config` was read; nothing where that cannot be shown.
    settings: Option<Vec<ShownSetting>>,
    _folder_lock: FolderLock,
    policy: Policy,
    callback: Option<CallbackSettings>,
    redis: RedisAccess,
    identity: Arc<NodeIdentity>,
    passphrase: Passphrase,
    orchestrators: Vec<NodeId>,
    peers: ListedPeers,
    rules: KeyRules,
}

pub fn run(args: Args, protection: ProcessProtection) -> anyhow::Result<()> {
    run_node(args.config, false, protection)
}

/// Runs a node; a client signer where `asks`, else where its configuration makes it one.
pub fn run_node(
    config: Option<PathBuf>,
    asks: bool,
    protection: ProcessProtection,
) -> anyhow::Result<()> {
    // In this thread alone: landlock holds for the threads that are started after it.
    let alone = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the asynchronous runtime cannot be started")?;
    let Some(setup) = alone.block_on(prepare(config.as_deref(), asks).boxed_local())? else {
        return Ok(());
    };
    drop(alone);
    let signer = &setup.config.signer;
    let protection = protection.lock();
    let protection = if signer.sandbox {
        // All are read again at SIGHUP.
        let policy = signer.policy_file().0;
        let files: Vec<&Path> = iter::once(policy.as_path())
            .chain(setup.file.as_deref())
            .collect();
        protection.confine(&signer.data_dir, &files, &listed::paths(signer))
    } else {
        protection
    };
    protection.log();
    super::runtime()?.block_on(serve(setup).boxed_local())
}

/// `None` when the process was stopped while a file was missing.
async fn prepare(file: Option<&Path>, asks: bool) -> anyhow::Result<Option<SignerSetup>> {
    // First: SIGHUP must not end a node that waits for others. Its policy is read again once it serves.
    let _hangups = shutdown::hangups()?;
    let (config, ignored) = Config::load_for_signer(file)?;
    let settings = Config::shown(file).ok();
    super::start_logging(&config, &ignored)?;
    let mut stop = shutdown::on_signals(|| {})?;
    let signer = &config.signer;
    let callback = config.client_signer.callback()?;
    if asks && callback.is_none() {
        bail!(
            "a client signer needs vault-uuid and callback-url (client_signer.vault and client_signer.callback_url)"
        );
    }
    check_initialized(&config)?;
    check_orchestrators(signer)?;
    signer.check_secure()?;
    // Before the first file is made.
    let redis = RedisAccess::load(&config.bus)?;
    redis.servers()?;
    preflight::signer(&config, &redis).await?;
    let policy = wiring::policy(signer)?;
    let _folder_lock = files::lock_node_folder(&signer.data_dir).context("signer.data_dir")?;
    let identity =
        identities::signer_identity(&config, &signer.name).context("signer.identity_file")?;
    let passphrase =
        passphrase::obtain(signer, &node::keyring(signer)).context("signer.passphrase_file")?;
    // Nodes that wait for each other all have their identities by now.
    if !listed::wait_for_orchestrators(signer, &mut stop).await?
        || !listed::wait_for(listed::peer_files(signer), &mut stop).await?
    {
        return Ok(None);
    }
    let orchestrators = listed::nodes("signer.orchestrators", &signer.orchestrators)?;
    let peers = ListedPeers::default().read_again(signer)?;
    let rules = rules(signer)?;
    Ok(Some(SignerSetup {
        file: file.map(Path::to_owned),
        config,
        settings,
        _folder_lock,
        policy,
        callback,
        redis,
        identity,
        passphrase,
        orchestrators,
        peers,
        rules,
    }))
}

async fn serve(setup: SignerSetup) -> anyhow::Result<()> {
    let SignerSetup {
        file,
        config,
        settings,
        _folder_lock,
        policy,
        callback,
        redis,
        identity,
        passphrase,
        orchestrators,
        peers,
        rules,
    } = setup;
    let signer = &config.signer;
    let stop = shutdown::on_signals(service_manager::stopping)?;
    if signer.development {
        tracing::warn!(
            "signer.development is true: this node starts without what protects its keys from a \
             hostile orchestrator; never use it for keys that hold money"
        );
    }
    if peers.pinned.all.is_none() {
        tracing::warn!(
            "signer.peers is empty: this node accepts any peer that its orchestrators name"
        );
    }
    let mut limits = iter::once(&rules.limits).chain(rules.vaults.values());
    if limits.any(|limits| limits.least_threshold == Some(1)) {
        tracing::warn!(
            "signer.least_threshold is 1: this node may have all of a key, and an attacker who takes over one \
             such node has the key; set 2 or more"
        );
    }
    let current = Arc::new(CurrentPolicy::new(policy));
    let hangup = shutdown::hangups()?;
    let listed = peers;
    let peers = Arc::new(CurrentPeers::new(listed.pinned.clone()));
    let followed = (Arc::clone(&current), Arc::clone(&peers), listed);
    let in_force = InForce::new(file, settings, &config, followed);
    in_force.reload_on_hangup(hangup).await;
    let bus = redis.bus()?;
    let gauges = metrics::signer_gauges(Arc::clone(&bus));
    let tls = ServerTls::load(&config.tls)?;
    let metrics = metrics::bind(&signer.metrics_listen, "signer.metrics_listen").await?;
    let metrics = metrics::start(metrics, tls.clone(), gauges, stop.clone())?;
    let client = callback
        .map(|callback| wiring::client_signer(callback, &identity))
        .transpose()?;
    let health = match &client {
        Some(_) => health::start(&config.client_signer.health_listen, stop.clone())
            .await
            .context("client_signer.health_listen")?,
        None => None,
    };
    let (name, line) = (signer.name.clone(), identity.openssh_line(&signer.name));
    let approval_relay = match signer.approve_origin()? {
        Some(place) if !signer.approve_listen.is_empty() => {
            let relay = Arc::new(ApprovalRelay::default());
            let parts = ApprovalPageParts {
                node: signer.name.clone(),
                place,
                waiting: Arc::clone(&relay) as _,
                policy: Arc::clone(&current),
                folder: signer.data_dir.clone(),
                clock: Arc::new(SystemClock),
                entropy: Arc::new(OsEntropy),
            };
            let page = approval_page::start(parts, &signer.approve_listen, tls, stop.clone());
            Some((relay, page.await?))
        }
        _ => None,
    };
    let (approval_relay, page) = approval_relay.unzip();
    let traces = Traces::start(
        &config.log,
        &TracedProcess {
            service: "covault-signer",
            name: &signer.name,
        },
    )?;
    let node = wiring::node_config(SignerParts {
        tracer: traces.tracer.clone(),
        approval_relay,
        client,
        name: signer.name.clone(),
        folder: signer.data_dir.clone(),
        identity,
        bus,
        pool: wiring::cpu_pool(1)?,
        passphrase: passphrase.secret,
        work_factor: passphrase.work_factor,
        orchestrators,
        backup_recipients: signer.backup_recipients.clone(),
        rules,
        peers,
        policy: current,
        nonces: Watermarks {
            low: signer.nonce_pool_low,
            high: signer.nonce_pool_high,
        },
        resumption: Arc::new(MachineWatch::start()),
        keygen_quota: KeygenQuota {
            keys_per_vault_per_day: signer.keys_per_vault_per_day,
            keys_per_day: signer.keys_per_day,
            unused_keys: signer.unused_keys,
        },
    });
    let up = move || {
        tracing::info!(name, identity = line, "the signer node is up");
        service_manager::ready();
    };
    let run = Node::run_and_tell(node, stop, up);
    run.await.map_err(wiring::explain)?;
    traces.finish().await;
    if let Some(metrics) = metrics {
        metrics.await.context("the metrics server failed")??;
    }
    if let Some(page) = page {
        page.await.context("the approval page failed")??;
    }
    if let Some(health) = health {
        health.await.context("the health server failed")??;
    }
    tracing::info!("stopped");
    Ok(())
}

/// Refuses a start by mistake on an empty folder: the identity is made on purpose.
fn check_initialized(config: &Config) -> anyhow::Result<()> {
    let signer = &config.signer;
    // A key that is elsewhere says nothing about the folder.
    let has_key = config.client_signer.private_key().is_some() && node::keyring(signer).exists();
    if has_key || signer.identity_file().exists() {
        return Ok(());
    }
    if node::keyring(signer).exists() {
        bail!(
            "signer.identity_file: {} is missing, and {} holds the keyring of a node: bring the identity back; with a new one \
             the node's shares are worth nothing",
            signer.identity_file().display(),
            signer.data_dir.display()
        );
    }
    if signer.generate_passphrase {
        return Ok(());
    }
    bail!(
        "there is no signer node in {}: make one with covault node init, and the same --config",
        signer.data_dir.display()
    )
}

/// What an orchestrator may make of the node's keys.
fn rules(signer: &SignerSettings) -> anyhow::Result<KeyRules> {
    let vaults = listed::vaults(signer)?.into_iter();
    Ok(KeyRules {
        limits: signer.limits(),
        vaults: vaults.map(|(id, _, vault)| (id, vault.limits())).collect(),
        permits: true,
        keep_retired: Duration::from_secs(u64::from(signer.keep_retired_days) * 24 * 3600),
    })
}

fn check_orchestrators(signer: &SignerSettings) -> anyhow::Result<()> {
    if !signer.orchestrators.is_empty() {
        return Ok(());
    }
    bail!(
        "signer.orchestrators is empty: name the orchestrator's public key, an OpenSSH line or its .pub file"
    )
}
