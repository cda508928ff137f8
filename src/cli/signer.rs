//! `covault signer`: one signer node.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use covault_core::order::NodeId;
use covault_mpc::{identity::parse_openssh_line, node::Node, nonces::Marks};
use secrecy::SecretString;

use crate::{
    adapters::OsEntropy,
    config::{Config, Signer},
    files,
    http::auth::new_token,
    shutdown::{self, Stop},
    wiring::{self, SignerParts},
};

/// Run one signer node.
///
/// It holds shares of keys, never a key, and signs with other nodes what an orchestrator orders
/// that its configuration names. It rebuilds every transaction from the request itself before it
/// uses a share. On the first start it makes its identity (identity, identity.pub) in its data
/// folder; share files there are encrypted with the passphrase in the configured file.
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
    let _owned = files::own_folder(&signer.data_dir)?;
    let identity = wiring::identity(&signer.identity_file(), &signer.name)?;
    let folder = signer.data_dir.clone();
    let (passphrase, work_factor) = passphrase(signer, &folder.join("shares"))?;
    let Some(orchestrators) = orchestrators(&signer.orchestrators, &mut stop).await? else {
        return Ok(());
    };
    tracing::info!(
        name = signer.name,
        identity = identity.openssh_line(&signer.name),
        "the signer node is up"
    );
    let node = wiring::node_config(SignerParts {
        name: signer.name.clone(),
        folder,
        identity,
        bus: wiring::redis_bus(&config.bus.redis_url)?,
        pool: wiring::cpu_pool(1)?,
        passphrase,
        work_factor,
        orchestrators,
        nonces: Marks {
            low: signer.nonce_pool_low,
            high: signer.nonce_pool_high,
        },
    });
    Node::run(node, stop).await.map_err(wiring::explain)?;
    tracing::info!("stopped");
    Ok(())
}

/// The passphrase of the share files, made on first start where configuration says so, and
/// scrypt's work factor for it.
fn passphrase(signer: &Signer, shares: &Path) -> anyhow::Result<(SecretString, u8)> {
    let path = signer.passphrase_file();
    if path.exists() {
        return Ok((files::read_secret(&path)?, wiring::WORK_FACTOR));
    }
    if shares.exists() {
        bail!(
            "the passphrase file {} is missing, and the shares in {} need it: bring it back",
            path.display(),
            shares.display()
        );
    }
    if !signer.generate_passphrase {
        bail!(
            "the passphrase file {} is missing: write a long passphrase into it (mode 0600), or set signer.generate_passphrase = true",
            path.display()
        );
    }
    if let Some(folder) = path.parent() {
        files::make_folder(folder)?;
    }
    let secret = files::secret_or_new(&path, || new_token(&OsEntropy))?;
    tracing::info!(path = %path.display(), "made a passphrase: keep a copy, the shares are lost without it");
    Ok((secret, wiring::WORK_FACTOR_RANDOM))
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
