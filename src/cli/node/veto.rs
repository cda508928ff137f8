//! `covault node veto`: requests that a node never signs, whoever has approved them.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use covault_core::ids::RequestId;
use covault_mpc::veto::VetoStore;

use super::print_line;
use crate::{config::Config, wiring::explain};

/// Make this node never sign these requests, whatever people have approved.
///
/// For a payment that the node holds (hold_hours in its policy) when the orchestrator may not obey `covault reject`. Run
/// it on the node's own machine, as root or as the node's user; the node may be running. It is in force as soon as the
/// command returns, survives restarts, and cannot be undone: create the request again instead. Other nodes are
/// unaffected: veto it on as many nodes that the rest are fewer than the vault's threshold, or freeze nodes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The node's configuration file. Without it: the defaults, and COVAULT_ variables.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The requests.
    #[arg(value_name = "UUID", required = true)]
    requests: Vec<String>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let requests = args.requests.iter().map(|uuid| {
        let request: Result<RequestId, _> = uuid.parse();
        request.with_context(|| format!("{uuid} is not a uuid"))
    });
    let requests: Vec<RequestId> = requests.collect::<anyhow::Result<_>>()?;
    let (config, _) = Config::load_for_signer(args.config.as_deref())?;
    let folder = config.signer.data_dir;
    ensure!(
        folder.is_dir(),
        "there is no folder {}: name the node's configuration file with --config",
        folder.display()
    );
    let store = VetoStore::of(&folder);
    for request in requests {
        store.veto(request).map_err(explain)?;
        print_line(format_args!(
            "vetoed: this node never signs the request {request}"
        ));
    }
    Ok(())
}
