//! `/admin/v1`: signer nodes.

use axum::Router;
use covault_actors::{
    gateway::{Command, Query, Receipt, View},
    port::{NodeHalt, NodeView, UnadmittedView},
};
use covault_core::{fault::Fault, order::NodeId};
use covault_mpc::identity;
use serde::{Deserialize, Serialize};

use super::{
    Answer, Call, Route,
    admin::{decode, encode},
};
use crate::api::unexpected;

/// The routes.
pub(super) fn routes(route: &Route) -> Router {
    Router::new()
        .route("/admin/v1/admitNode", route.clone().post(admit_node))
        .route("/admin/v1/removeNode", route.clone().post(remove_node))
        .route("/admin/v1/listNodes", route.clone().post(list_nodes))
}

/// A node to be admitted.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AdmitNode {
    /// OpenSSH line.
    pub public_key: String,
    /// What to call it; empty: what it calls itself.
    #[serde(default)]
    pub name: String,
}

/// A node to be removed.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemoveNode {
    /// OpenSSH line.
    pub public_key: String,
}

/// A signer node.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// OpenSSH line.
    pub public_key: String,
    /// What the operator calls it, else what it calls itself.
    pub name: String,
    /// Whether it announced itself lately.
    pub live: bool,
    /// Milliseconds since the Unix epoch; null: not since the orchestrator started.
    pub last_seen_ms: Option<u64>,
    /// Of its program.
    pub version: String,
    /// Keys that it says it holds a share of.
    pub keys: u32,
    /// Whom it says it has banned for cheating.
    pub bans: Vec<Ban>,
    /// How far its clock is ahead of the orchestrator's.
    pub clock_skew_ms: i64,
    /// Why it does not sign; empty: it does.
    pub halted: Vec<Halted>,
}

/// Why a node does not sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Halted {
    /// Its clock cannot be believed.
    ClockWrong,
    /// Promises of it are missing in its claims file: its vaults must be refreshed.
    ClaimsMissing,
    /// Two processes have its identity.
    RunsTwice,
}

/// A node will not sign with a peer again, with one key.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ban {
    /// The first 8 bytes of the root public key, in hex.
    pub key: String,
    /// OpenSSH line.
    pub peer: String,
}

/// A node that announces itself and was not admitted.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// OpenSSH line.
    pub public_key: String,
    /// What it calls itself; anybody can announce any name.
    pub name: String,
    /// Milliseconds since the Unix epoch.
    pub last_seen_ms: u64,
}

/// Answer of admitNode.
#[derive(Debug, Serialize, Deserialize)]
pub struct NodeAnswer {
    /// The node.
    pub node: Node,
}

/// Answer of listNodes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodesAnswer {
    /// Admitted nodes, by name.
    pub nodes: Vec<Node>,
    /// Others, by key; a short list.
    pub want_to_join: Vec<Waiting>,
    /// The orchestrator's clock, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

/// A request or an answer without fields.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

async fn admit_node(call: Call) -> Result<Answer, Fault> {
    let AdmitNode { public_key, name } = decode(&call.body)?;
    let id = parse(&public_key)?;
    submit(&call, Command::AdmitNode { id, name }).await?;
    let (nodes, _) = view(&call).await?;
    let node = nodes
        .into_iter()
        .find(|node| node.id == id)
        .ok_or_else(|| Fault::bug("a node was admitted and is not there"))?;
    encode(&NodeAnswer { node: show(node) })
}

async fn remove_node(call: Call) -> Result<Answer, Fault> {
    let RemoveNode { public_key } = decode(&call.body)?;
    submit(&call, Command::RemoveNode(parse(&public_key)?)).await?;
    encode(&Nothing {})
}

async fn list_nodes(call: Call) -> Result<Answer, Fault> {
    let Nothing {} = decode(&call.body)?;
    let (nodes, unadmitted) = view(&call).await?;
    encode(&NodesAnswer {
        nodes: nodes.into_iter().map(show).collect(),
        want_to_join: unadmitted.into_iter().map(show_stranger).collect(),
        now_ms: call.api.clock.now_ms(),
    })
}

async fn submit(call: &Call, command: Command) -> Result<(), Fault> {
    let done = call.api.gateway.submit(&call.caller, command, None).await?;
    match done.receipt {
        Receipt::NodesChanged => Ok(()),
        other => Err(unexpected(&other)),
    }
}

async fn view(call: &Call) -> Result<(Vec<NodeView>, Vec<UnadmittedView>), Fault> {
    match call.api.gateway.view(&call.caller, Query::Nodes).await? {
        View::Nodes { nodes, unadmitted } => Ok((nodes, unadmitted)),
        other => Err(unexpected(&other)),
    }
}

fn parse(line: &str) -> Result<NodeId, Fault> {
    identity::parse_openssh_line(line).map_err(|error| {
        Fault::field("publicKey", "must be an OpenSSH line: ssh-ed25519 AAAA...").caused_by(error)
    })
}

fn show(view: NodeView) -> Node {
    let NodeView {
        id,
        name,
        named: _,
        live,
        last_seen_ms,
        version,
        keys,
        bans,
        skew_ms,
        halted,
    } = view;
    Node {
        // Without the name, which the node has chosen: the line ends up in shells.
        public_key: identity::openssh_line(&id, ""),
        name,
        live,
        last_seen_ms,
        version,
        keys,
        bans: bans
            .into_iter()
            .map(|(key, peer)| Ban {
                key: hex::encode(key),
                peer: identity::openssh_line(&peer, ""),
            })
            .collect(),
        clock_skew_ms: skew_ms,
        halted: halted.into_iter().map(show_halt).collect(),
    }
}

fn show_halt(halt: NodeHalt) -> Halted {
    match halt {
        NodeHalt::Clock => Halted::ClockWrong,
        NodeHalt::Claims => Halted::ClaimsMissing,
        NodeHalt::Twice => Halted::RunsTwice,
    }
}

fn show_stranger(view: UnadmittedView) -> Waiting {
    let UnadmittedView {
        id,
        name,
        last_seen_ms,
    } = view;
    Waiting {
        public_key: identity::openssh_line(&id, ""),
        name,
        last_seen_ms,
    }
}
