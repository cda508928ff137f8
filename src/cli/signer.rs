//! `covault signer`: one signer node.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use covault_core::order::NodeId;
use covault_mpc::{identity::parse_openssh_line, node::Node, nonces::Marks};

use super::node;
use crate::{
    config::{Config, Signer},
    files, metrics,
    passphrase::{self, Passphrase},
    shutdown::{self, Stop},
    wiring::{self, SignerParts},
};

/// Run one signer node.
///
/// It holds shares of keys, never a key, and signs with other nodes what an orchestrator orders
/// that its configuration names. It rebuilds every transaction from the request itself, and applies
/// its own policy file, before it uses a share. `covault node init` makes its folder first. The
/// passphrase of its shares comes from the configured file, a systemd credential
/// ("covault-passphrase"), or is asked for on the terminal.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Configuration file (TOML). Without it: the defaults, and COVAULT_ variables.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

const POLL: Duration = Duration::from_millis(250);
/// Polls between two reminders that a file is still missing: ten seconds.
const REMIND: u32 = 40;

pub async fn run(args: Args) -> anyhow::Result<()> {
    let (config, ignored) = Config::load(args.config.as_deref())?;
    super::start_logging(&config, &ignored)?;
    let mut stop = shutdown::on_signals()?;
    let signer = &config.signer;
    check_made(signer)?;
    let peers = peers(&signer.peers)?;
    let _owned = files::own_folder(&signer.data_dir)?;
    let policy = wiring::policy(signer)?;
    let identity = wiring::identity(&signer.identity_file(), &signer.name)?;
    let folder = signer.data_dir.clone();
    let Passphrase {
        secret: passphrase,
        work_factor,
    } = passphrase::obtain(signer, &node::keyring(signer))?;
    let Some(orchestrators) = orchestrators(&signer.orchestrators, &mut stop).await? else {
        return Ok(());
    };
    tracing::info!(
        name = signer.name,
        identity = identity.openssh_line(&signer.name),
        "the signer node is up"
    );
    if peers.is_none() {
        tracing::warn!(
            "signer.peers is empty: this node works with whomever its orchestrators name"
        );
    }
    let bus = wiring::redis_bus(&config.bus.redis_url)?;
    let look = metrics::of_signer(Arc::clone(&bus));
    let metrics = metrics::start(&signer.metrics_listen, look, stop.clone()).await?;
    let node = wiring::node_config(SignerParts {
        name: signer.name.clone(),
        folder,
        identity,
        bus,
        pool: wiring::cpu_pool(1)?,
        passphrase,
        work_factor,
        orchestrators,
        backup_recipients: signer.backup_recipients.clone(),
        least_threshold: signer.least_threshold(),
        peers,
        policy,
        nonces: Marks {
            low: signer.nonce_pool_low,
            high: signer.nonce_pool_high,
        },
    });
    Node::run(node, stop).await.map_err(wiring::explain)?;
    if let Some(metrics) = metrics {
        metrics.await.context("the metrics ended badly")?;
    }
    tracing::info!("stopped");
    Ok(())
}

/// Refuses a start by mistake on an empty folder: the identity is made on purpose.
fn check_made(signer: &Signer) -> anyhow::Result<()> {
    if signer.generate_passphrase || signer.identity_file().exists() {
        return Ok(());
    }
    bail!(
        "there is no signer node in {}: make one with covault node init, and the same --config",
        signer.data_dir.display()
    )
}

/// The peers to work with; `None` when any will do.
fn peers(entries: &[String]) -> anyhow::Result<Option<Vec<NodeId>>> {
    if entries.is_empty() {
        return Ok(None);
    }
    let peer = |entry: &String| {
        let line = super::public_key(entry)?;
        parse_openssh_line(&line).map_err(wiring::explain)
    };
    let peers: anyhow::Result<Vec<NodeId>> = entries
        .iter()
        .map(|entry| peer(entry).with_context(|| format!("signer.peers: {entry}")))
        .collect();
    peers.map(Some)
}

/// The orchestrators to obey; `None` when the process was stopped while a file was missing.
async fn orchestrators(entries: &[String], stop: &mut Stop) -> anyhow::Result<Option<Vec<NodeId>>> {
    if entries.is_empty() {
        bail!(
            "signer.orchestrators is empty: name the orchestrator's public key, an OpenSSH line or its .pub file"
        );
    }
    let mut ids = Vec::new();
    for entry in entries {
        let line = if entry.trim_start().starts_with("ssh-") {
            entry.clone()
        } else {
            match wait_for(Path::new(entry), stop).await? {
                Some(line) => line,
                None => return Ok(None),
            }
        };
        let id = parse_openssh_line(&line)
            .map_err(wiring::explain)
            .with_context(|| format!("signer.orchestrators: {entry}"))?;
        ids.push(id);
    }
    Ok(Some(ids))
}

async fn wait_for(path: &Path, stop: &mut Stop) -> anyhow::Result<Option<String>> {
    for poll in 0_u32.. {
        match std::fs::read_to_string(path) {
            Ok(line) => return Ok(Some(line)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        }
        if poll % REMIND == 0 {
            tracing::warn!(path = %path.display(), "waiting for the orchestrator's public key: start the orchestrator, or copy the file here");
        }
        tokio::select! {
            () = shutdown::requested(stop) => break,
            () = tokio::time::sleep(POLL) => {}
        }
    }
    Ok(None)
}
