//! `covault serve`: the orchestrator and its API.

use std::{path::PathBuf, sync::Arc};

use anyhow::Context as _;

use crate::{
    chain_nodes,
    config::{AdminAddress, Config, ProcessRole, StoreKind},
    files, identities, metrics, preflight,
    protect::ProcessProtection,
    redis_access::RedisAccess,
    service_manager, shutdown, telemetry, token_files,
    traces::{TracedProcess, Traces},
    wiring::{self, ApiListeners},
};

/// Run the orchestrator with its HTTP and gRPC API.
///
/// Signer nodes announce themselves over Redis, and are used once they are admitted (covault node admit). The first
/// start, with --init, creates the orchestrator's identity (the signers need its public half, identity.pub) and two tokens
/// (platform-token for /v1, admin-token for /admin/v1), all in its data folder and readable by its owner only. The admin API
/// is on a listener of its own (serve.admin_listen): a socket in that folder, unless another address is set.
///
/// SIGTERM or SIGINT: finishes requests in flight; a second signal ends the process at once. SIGHUP: reads
/// the log settings again, and serve.policy_file, where there is one.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Configuration file (TOML). Without it: the defaults, and COVAULT_ variables.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Make a new orchestrator where there is none yet: its identity, its tokens, an empty store (in PostgreSQL, too); as
    /// serve.init = true
    #[arg(long)]
    init: bool,
    /// What this process does; instead of cluster.roles
    #[arg(long, value_enum, value_name = "ROLES")]
    roles: Option<ProcessRole>,
}

pub async fn run(args: Args, protection: ProcessProtection) -> anyhow::Result<()> {
    let hangup = shutdown::hangups()?;
    let (mut config, ignored) = Config::load(args.config.as_deref())?;
    if let Some(roles) = args.roles {
        config.cluster.roles = roles;
    }
    config.serve.init |= args.init;
    super::start_logging(&config, &ignored)?;
    protection.log();
    let stop = shutdown::on_signals(service_manager::stopping)?;
    let serve = &config.serve;
    telemetry::on_hangup(hangup, args.config.clone());
    // Before the first file is made: a start that fails leaves nothing behind.
    let redis = RedisAccess::load(&config.bus)?;
    preflight::serve(&config, &redis).await?;
    let grpc = if config.cluster.roles.serve_api() {
        serve.grpc_listen.clone()
    } else {
        String::new()
    };
    let console = config.cluster.roles.serve_api().then_some(&config.console);
    let mut listeners = ApiListeners::bind(&serve.listen, |_| grpc, console, &config.tls).await?;
    let admin = match config.cluster.roles.serve_api() {
        true => Some(serve.admin_address().map_err(anyhow::Error::msg)?),
        false => None,
    };
    // A socket comes once its folder is this process's.
    if let Some(address @ AdminAddress::Network(_)) = &admin {
        listeners.listen_for_operators(address).await?;
    }
    if listeners.console.is_some() {
        listeners.settings = Config::shown(args.config.as_deref())?;
    }
    let metrics = metrics::bind(&serve.metrics_listen, "serve.metrics_listen").await?;
    let elsewhere = match config.store.kind {
        StoreKind::Postgres => Some(wiring::store_of_orchestrator(&config).await?),
        StoreKind::Redb => None,
    };
    let _folder_lock = files::lock_folder(&serve.data_dir).context("serve.data_dir")?;
    let store = match elsewhere {
        Some(store) => store,
        None => wiring::store_of_orchestrator(&config).await?,
    };
    let identity = identities::identity(&serve.identity_file(), "covault-orchestrator");
    let identity = identity.context("serve.identity_file")?;
    let tokens = token_files::tokens(serve)?;
    if let Some(address @ AdminAddress::Socket(_)) = &admin {
        listeners.listen_for_operators(address).await?;
    }
    let bus = redis.bus()?;
    let traces = Traces::start(
        &config.log,
        &TracedProcess {
            service: "covault-orchestrator",
            name: &config.cluster.name,
        },
    )?;
    let tracer = &traces.tracer;
    let running = wiring::orchestrator(&config, store, bus, identity, &tokens, tracer).await?;
    let gauges = metrics::orchestrator_gauges(
        running.gateway.clone(),
        Arc::clone(&running.bus),
        wiring::store_file(&config),
    );
    let metrics = metrics::start(metrics, listeners.tls.clone(), gauges, stop.clone())?;
    tracing::info!(
        address = %listeners.http.local_addr()?,
        grpc_address = listeners.grpc_address()?.map(tracing::field::display),
        admin_api = listeners.admin.as_ref().map(|admin| admin.url.as_str()),
        console = listeners.console.as_ref().map(|(_, place)| place.origin.as_str()),
        tls = listeners.tls.is_some(),
        platform_token_file = %serve.platform_token_file().display(),
        identity = %identities::public_key_path(&serve.identity_file()).display(),
        roles = ?config.cluster.roles,
        id = %running.gateway.orchestrator(),
        "the orchestrator is up"
    );
    let single = chain_nodes::with_one_node(&config.chains)?;
    if config.cluster.roles.run_vaults() && !single.is_empty() {
        tracing::warn!(
            chains = single,
            "these chains have one node each, which alone decides how requests and transactions end: a node that lies can \
             cause a payment to be made twice, or never; add a second node, of another operator, to rpc \
             (docs/threat-model.md)"
        );
    }
    service_manager::ready();
    running.serve(listeners, stop).await?;
    traces.finish().await;
    if let Some(metrics) = metrics {
        metrics.await.context("the metrics server failed")??;
    }
    tracing::info!("stopped");
    Ok(())
}
