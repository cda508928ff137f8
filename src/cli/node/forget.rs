//! `covault node forget-prepared`: makes room on a node whose prepared shares nobody will use.

use std::path::PathBuf;

use anyhow::Context as _;
use covault_core::{ids::VaultId, scheme::Scheme};
use covault_mpc::shares::age_file::AgeShareStore;

use super::keyring;
use crate::{cli::print_line, config::Config, files, passphrase, wiring::explain};

/// Erase the shares that a node has prepared for generations that were never activated.
///
/// Not needed in normal life: the next refresh or reshare erases them. It is for a node that refuses new ones because
/// too many are prepared; only a hostile orchestrator can cause that. The node must not run.
///
/// Erasing what other nodes take into use later would lose the key, and a former orchestrator may have the proof that
/// makes them do so. It is safe only when all of this holds: `covault vault show`, asked of an orchestrator that you
/// trust, shows the epoch in use and nothing in progress; this node has a share of that epoch in use; and all holders
/// of the key are stopped, and cleared, before one of them is started again. Then refresh the vault at once.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The node's configuration file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The vault's uuid.
    #[arg(long, value_name = "UUID")]
    vault: String,
    /// The scheme of the key: frost-ed25519 or dkls23.
    #[arg(long, value_name = "SCHEME")]
    scheme: String,
    /// The epoch that `covault vault show` prints for the key: a share of this one is kept.
    #[arg(long, value_name = "EPOCH")]
    in_use: u32,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let (config, _) = Config::load_for_signer(args.config.as_deref())?;
    let node = &config.signer;
    let vault: VaultId = args.vault.parse().context("--vault is not a uuid")?;
    let scheme = Scheme::parse(&args.scheme).context("--scheme is unknown")?;
    let _folder_lock = files::lock_node_folder(&node.data_dir)?;
    let passphrase = passphrase::obtain(node, &keyring(node))?;
    let shares = AgeShareStore::open(&node.data_dir, &passphrase.secret, passphrase.work_factor)
        .map_err(explain)?;
    let forgotten = shares
        .forget_prepared(vault, scheme, args.in_use)
        .map_err(explain)?;
    print_line(forgotten);
    Ok(())
}
