//! `covault node freeze` and `covault node thaw`: what a node signs nothing of, until its operator says otherwise.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use covault_core::ids::VaultId;
use covault_mpc::{
    freeze::{FreezeStore, Frozen},
    shares::age_file,
};

use super::print_line;
use crate::{config::Config, wiring::explain};

/// Make this node sign nothing, or nothing for some vaults, until `covault node thaw`.
///
/// Run it on the node's own machine, as root or as the node's user; the node may be running, or be started later. It
/// is in force as soon as the command returns, also for sessions in progress, and survives restarts. Other nodes are
/// unaffected: a vault keeps signing while a threshold of its nodes is not frozen (`covault vault show`). No one can
/// thaw a node over the bus or an API.
///
/// It does not freeze a share that was copied or restored to another folder, or new shares on other nodes; refreshes
/// and backups continue.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The node's configuration file. Without it: the defaults, and COVAULT_ variables.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Only this vault; may be repeated.
    #[arg(long = "vault", value_name = "UUID")]
    vaults: Vec<String>,
}

/// Make this node sign again what was frozen.
///
/// Without --vault it undoes `covault node freeze` without --vault; vaults that were frozen by uuid stay frozen. Run
/// it on the node's own machine, as root or as the node's user.
#[derive(Debug, clap::Args)]
pub struct ThawArgs {
    /// The node's configuration file. Without it: the defaults, and COVAULT_ variables.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// This vault; may be repeated.
    #[arg(long = "vault", value_name = "UUID")]
    vaults: Vec<String>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let (folder, vaults) = target(args.config.as_deref(), &args.vaults)?;
    for vault in vaults.iter().flatten() {
        // A slip of the pen would leave it signing.
        ensure!(
            age_file::has_share(&folder, *vault).map_err(explain)?,
            "this node has no share of the vault {vault}: compare the uuid, and --config"
        );
    }
    let store = FreezeStore::of(&folder);
    for vault in &vaults {
        store.freeze(*vault).map_err(explain)?;
    }
    show(&store)
}

pub fn thaw(args: ThawArgs) -> anyhow::Result<()> {
    let (folder, vaults) = target(args.config.as_deref(), &args.vaults)?;
    let store = FreezeStore::of(&folder);
    for vault in &vaults {
        if !store.thaw(*vault).map_err(explain)? {
            match vault {
                Some(vault) => eprintln!("the vault {vault} was not frozen by itself"),
                None => eprintln!("it was not frozen as a whole"),
            }
        }
    }
    show(&store)
}

/// The node's folder, and what is meant; `None`: everything.
fn target(
    config: Option<&Path>,
    vaults: &[String],
) -> anyhow::Result<(PathBuf, Vec<Option<VaultId>>)> {
    let (config, _) = Config::load_for_signer(config)?;
    let folder = config.signer.data_dir;
    ensure!(
        folder.is_dir(),
        "there is no folder {}: name the node's configuration file with --config",
        folder.display()
    );
    if vaults.is_empty() {
        return Ok((folder, vec![None]));
    }
    let vaults = vaults.iter().map(|uuid| {
        let vault = uuid.parse().context("--vault is not a uuid")?;
        Ok(Some(vault))
    });
    Ok((folder, vaults.collect::<anyhow::Result<_>>()?))
}

/// What is frozen now.
fn show(store: &FreezeStore) -> anyhow::Result<()> {
    let Frozen { all, vaults } = store.list().map_err(explain)?;
    if all {
        print_line("frozen: this node signs nothing");
    }
    for vault in &vaults {
        print_line(format_args!(
            "frozen: this node signs nothing for the vault {vault}"
        ));
    }
    if !all && vaults.is_empty() {
        print_line("nothing is frozen: this node signs");
    }
    Ok(())
}
