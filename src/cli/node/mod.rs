//! `covault node`: making signer nodes, and the ones that an orchestrator knows.

mod approver_link;
mod clear;
mod evidence;
mod forget;
mod freeze;
mod init;
mod keys;
pub(super) mod list;
mod permit;
mod primes;
mod restore;
mod retired;
mod veto;

pub use self::init::keyring;
use super::{
    answer,
    client::{AdminClient, ConnectionArgs},
    print_line, public_key,
};
use anyhow::Context as _;
use covault_actors::operations::{AdmitNode, ListNodes, RemoveNode};
use covault_core::{order::NodeId, schema::admin};

/// Signer nodes.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    Init(init::Args),
    Primes(primes::Args),
    ForgetPrepared(forget::Args),
    Keys(keys::Args),
    ClearUnused(clear::Args),
    Permit(permit::Args),
    Freeze(freeze::Args),
    Thaw(freeze::ThawArgs),
    Veto(veto::Args),
    ApproverLink(approver_link::Args),
    Retired(retired::Args),
    /// Admit signer nodes by their keys.
    ///
    /// The orchestrator ignores nodes that are not admitted. `covault node init` and `covault node list` print the
    /// keys; take them from the person who runs the node, not from the network. Repeating it is safe.
    Admit {
        /// The nodes: OpenSSH lines ("ssh-ed25519 AAAA...") or paths of .pub files.
        #[arg(value_name = "KEY", required = true)]
        keys: Vec<String>,
        /// The node's name. Default: the comment of its line, else the name that it announces.
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Print JSON: a document for each node.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        target: ConnectionArgs,
    },
    /// Remove a signer node. Refused while it holds shares of a vault.
    Remove {
        /// The node: an OpenSSH line or the path of a .pub file.
        #[arg(value_name = "KEY")]
        key: String,
        /// Do not ask, in a context that asks (covault context).
        #[arg(long)]
        yes: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        target: ConnectionArgs,
    },
    /// List the admitted signer nodes, and unknown ones that announce themselves.
    ///
    /// Shows whether each is live, when it was last heard, its version, how many keys it holds a
    /// share of, how far its clock is off, and whom it has banned for cheating.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        target: ConnectionArgs,
    },
    Restore(restore::Args),
    Evidence(evidence::Args),
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Init(args) => init::run(args),
        Command::Primes(args) => primes::run(args),
        Command::Admit {
            keys,
            name,
            json,
            target,
        } => {
            if name.is_some() && keys.len() > 1 {
                anyhow::bail!("--name is for one node; admit them one by one");
            }
            let client = target.client()?;
            for key in keys {
                let line = public_key(&key)?;
                let request = admin::AdmitNodeRequest {
                    name: name.clone().unwrap_or_else(|| comment(&line).to_owned()),
                    public_key: line,
                };
                let node = client.call::<AdmitNode>(&request).await?.node;
                let node = node.context("the response has no node")?;
                answer(json, &node, |node| {
                    let name = match node.name.as_str() {
                        "" => "a node without a name yet",
                        name => name,
                    };
                    format!("admitted {name}: {}", node.public_key)
                })?;
            }
            Ok(())
        }
        Command::Remove {
            key,
            yes,
            json,
            target,
        } => {
            let public_key = public_key(&key)?;
            let client = target.client()?;
            if client.confirms() && !yes {
                let name = name_of(&client, &public_key).await?;
                client.confirm(&format!("node {name} is removed"), &name, yes)?;
            }
            let request = admin::RemoveNodeRequest { public_key };
            let removed = client.call::<RemoveNode>(&request).await?;
            answer(json, &removed, |_| "removed")
        }
        Command::List { json, target } => list::run(json, target).await,
        Command::Restore(args) => restore::run(args),
        Command::Evidence(args) => evidence::run(&args),
        Command::ForgetPrepared(args) => forget::run(args),
        Command::Keys(args) => keys::run(args),
        Command::ClearUnused(args) => clear::run(args),
        Command::Permit(args) => permit::run(args),
        Command::Freeze(args) => freeze::run(args),
        Command::Thaw(args) => freeze::thaw(args),
        Command::Veto(args) => veto::run(args),
        Command::ApproverLink(args) => approver_link::run(args),
        Command::Retired(args) => retired::run(args),
    }
}

/// What operators call a node.
async fn name_of(client: &AdminClient, public_key: &str) -> anyhow::Result<String> {
    let key = |line: &str| NodeId::parse_openssh_line(line).ok();
    let nodes = client
        .call::<ListNodes>(&admin::ListNodesRequest {})
        .await?
        .nodes;
    let node = nodes
        .into_iter()
        .find(|node| key(&node.public_key) == key(public_key));
    let name = node
        .context("there is no such node: covault node list")?
        .name;
    Ok(if name.is_empty() {
        "remove".to_owned()
    } else {
        name
    })
}

/// What stands behind the key of an OpenSSH line.
fn comment(line: &str) -> &str {
    line.trim().splitn(3, ' ').nth(2).unwrap_or_default().trim()
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn comment__should_be_what_follows_the_key() {
        assert_eq!(comment("ssh-ed25519 AAAA node one\n"), "node one");
        assert_eq!(comment("ssh-ed25519 AAAA"), "");
    }
}
