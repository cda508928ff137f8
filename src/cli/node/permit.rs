//! `covault node permit`: what the operator of a node permits to be done with its keys.

use std::path::PathBuf;

use anyhow::bail;
use covault_core::{
    order::{NodeId, ReshareChange},
    port::Clock as _,
};
use covault_mpc::permits::PermitStore;

use super::print_line;
use crate::{adapters::SystemClock, config::Config, wiring::explain};

const DAY_MS: u64 = 24 * 3600 * 1000;

/// Permit one change of a key's holders or threshold, on the node's own machine.
///
/// A node does not change the holders or the threshold of a key on an orchestrator's order alone. `covault vault
/// reshare` and `covault vault show` name the nodes that wait, and the code of the change. Shows the change that the
/// node was asked for: permit it if it is what you agreed on with the operators of the other nodes. The permit is for
/// this change only, once, and expires after some days. The node may be running. A refresh needs no permit, but on a
/// node that has lost its share: there it shows the key and the generation of the new share. Without a code: lists
/// the changes that the node was asked for.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The node's configuration file. Without it: the defaults, and COVAULT_ variables.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The code of the change.
    #[arg(value_name = "ORDER")]
    code: Option<String>,
    /// For how many days the permit is valid.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=90))]
    days: u16,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let (config, _) = Config::load_for_signer(args.config.as_deref())?;
    let permits = PermitStore::of(&config.signer.data_dir);
    let now_ms = SystemClock.now_ms();
    let mut found = None;
    for change in permits.asked().map_err(explain)? {
        let code = change.code().map_err(explain)?;
        match &args.code {
            Some(wanted) if *wanted == code => found = Some(change),
            Some(_) => {}
            None => {
                let holds = permits.holds(&change, now_ms).map_err(explain)?;
                let state = if holds { "permitted" } else { "not permitted" };
                print_line(format_args!("{code}  {state}\n{}", shown(&change)));
            }
        }
    }
    let Some(code) = args.code else { return Ok(()) };
    let Some(change) = found else {
        bail!(
            "no order for the change {code} has reached this node: run `covault vault reshare` first, and compare \
             the code and --config; `covault node permit` without a code lists what it was asked for"
        );
    };
    let until_ms = now_ms.saturating_add(u64::from(args.days) * DAY_MS);
    permits.grant(&change, until_ms).map_err(explain)?;
    print_line(format_args!(
        "permitted, once, for {} days:\n{}",
        args.days,
        shown(&change)
    ));
    Ok(())
}

fn shown(change: &ReshareChange) -> String {
    let ReshareChange {
        vault,
        scheme,
        root_public_key,
        old,
        threshold,
        holders,
    } = change;
    let mut lines = vec![
        format!(
            "  the {} key {} of vault {vault}",
            scheme.name(),
            hex::encode(root_public_key)
        ),
        format!(
            "  from {}-of-{} (epoch {}) to {threshold}-of-{}",
            old.threshold,
            old.holders.len(),
            old.epoch,
            holders.len()
        ),
    ];
    let list = |what: &str, of: &[NodeId], but: &[NodeId]| {
        let of = of.iter().filter(|node| !but.contains(node));
        of.map(|node| format!("  {what} {}", node.openssh_line("")))
            .collect::<Vec<_>>()
    };
    lines.extend(list("leaves:", &old.holders, holders));
    lines.extend(list("joins: ", holders, &old.holders));
    let joining = list("", holders, &old.holders).len();
    if joining < holders.len() {
        let staying: Vec<NodeId> = holders
            .iter()
            .filter(|node| old.holders.contains(node))
            .copied()
            .collect();
        lines.extend(list("stays: ", &staying, &[]));
    }
    lines.join("\n")
}
