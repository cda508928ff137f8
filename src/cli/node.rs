//! `covault node`: the signer nodes that an orchestrator knows.

use super::{answer, client::Target, restore};
use crate::http::admin::{Node, NodesAnswer};

/// Signer nodes.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List the signer nodes that announced themselves: state, name, public key.
    List {
        #[command(flatten)]
        target: Target,
    },
    Restore(restore::Args),
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    let target = match command {
        Command::List { target } => target,
        Command::Restore(args) => return restore::run(args),
    };
    let NodesAnswer { nodes } = target
        .client()?
        .call("listNodes", &serde_json::json!({}))
        .await?;
    if nodes.is_empty() {
        eprintln!("no signer node has announced itself yet: covault signer --help");
    }
    for Node {
        public_key,
        name,
        live,
        last_seen_ms: _,
    } in nodes
    {
        let state = if live { "live" } else { "away" };
        answer(format_args!("{state}  {name}  {public_key}"));
    }
    Ok(())
}
