//! `covault node restore`: a share back into the folder of its node.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use covault_mpc::shares::backup;
use zeroize::Zeroizing;

use super::keyring;
use crate::{
    config::Config,
    files,
    identities::existing_identity,
    passphrase::{self, Passphrase},
    wiring::explain,
};

/// Put shares back into a node's folder, from backups of its own.
///
/// The node must be stopped, and needs its identity. A restored share does not sign, because the node no longer knows
/// what it has signed already: reshare the vault afterwards to this node and the remaining ones (`covault vault
/// reshare`), or refresh it when no holder is missing. That raises the epoch and gives the node a new share. With a
/// threshold of healthy other nodes you need no backup: `covault vault refresh --lost KEY`. Shares of cggmp24 keys
/// cannot be restored: that backend has no refresh.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The node's configuration file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Backups of this node's shares.
    #[arg(long = "backup", value_name = "FILE", num_args = 1.., required = true)]
    backups: Vec<PathBuf>,
    /// age identity files ("AGE-SECRET-KEY-1...").
    #[arg(long = "identity", value_name = "FILE", num_args = 1.., required = true)]
    identities: Vec<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let (config, _) = Config::load_for_signer(args.config.as_deref())?;
    let node = &config.signer;
    let _folder_lock = files::lock_node_folder(&node.data_dir)?;
    let identity = existing_identity(&config)?;
    let Passphrase {
        secret,
        work_factor,
    } = passphrase::obtain(node, &keyring(node))?;
    let mut identities = Vec::new();
    for path in &args.identities {
        let text = std::fs::read_to_string(path)
            .map(Zeroizing::new)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let more = backup::identities(&text).map_err(explain);
        identities.extend(more.with_context(|| path.display().to_string())?);
    }
    let mut refused = 0_usize;
    for path in &args.backups {
        let sealed =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let share = backup::open(&sealed, &identities).map_err(explain);
        let share = share.with_context(|| path.display().to_string())?;
        if !share.scheme.reshares() {
            eprintln!("{}: {}", path.display(), backup::unrestorable(share.scheme));
            refused += 1;
            continue;
        }
        backup::restore(&node.data_dir, &secret, work_factor, &identity.id(), &share)
            .map_err(explain)
            .with_context(|| path.display().to_string())?;
        eprintln!(
            "restored the {} share of vault {}, epoch {}: start the node, then `covault vault reshare --vault {}` to \
             the remaining nodes (`covault vault refresh` when no holder is missing). It does not sign before that",
            share.scheme.name(),
            share.vault,
            share.epoch,
            share.vault
        );
    }
    if refused > 0 {
        bail!("{refused} of the shares cannot be restored");
    }
    Ok(())
}
