use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{Operation, OperationCall};
use crate::{
    leases,
    nodes::{self, status},
    port::{NodeHalt, NodeView, UnadmittedView},
    services::Services,
};

/// Lists the signer nodes, as the orchestrator that watches them has written them down: every process answers
/// the same.
pub struct ListNodes;

#[async_trait]
impl Operation for ListNodes {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.ListNodes";
    type Request = admin::ListNodesRequest;
    type Response = admin::ListNodesResponse;

    async fn run(call: OperationCall<'_>, _: Self::Request) -> Result<Self::Response, Fault> {
        nodes_message(call.services).await
    }
}

/// The nodes as operators see them.
pub(super) async fn nodes_message(services: &Services) -> Result<admin::ListNodesResponse, Fault> {
    let as_of_ms = leases::watched_ms(services).await?;
    let mut want_to_join = status::unadmitted(services).await?;
    let nodes = nodes::written(services).await?;
    // The list may be older than an admission.
    want_to_join.retain(|node| nodes.iter().all(|admitted| admitted.id != node.id));
    let nodes = nodes.into_iter().map(|node| node_message(node, as_of_ms));
    Ok(admin::ListNodesResponse {
        nodes: nodes.collect(),
        want_to_join: want_to_join.into_iter().map(unadmitted_message).collect(),
        now_ms: services.now_ms(),
        as_of_ms,
    })
}

/// A node as operators see it.
pub(super) fn node_message(view: NodeView, as_of_ms: Option<u64>) -> admin::Node {
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
        frozen,
        listed: _,
    } = view;
    let ban = |(key, peer): ([u8; 8], covault_core::order::NodeId)| admin::Ban {
        key: hex::encode(key),
        peer: peer.openssh_line(""),
    };
    admin::Node {
        // Without the name, which the node has chosen: the line ends up in shells.
        public_key: id.openssh_line(""),
        name,
        live,
        // Of a live node only what changes is written.
        last_seen_ms: last_seen_ms.map(|seen_ms| match as_of_ms {
            Some(as_of_ms) if live => seen_ms.max(as_of_ms),
            _ => seen_ms,
        }),
        version,
        keys,
        bans: bans.into_iter().map(ban).collect(),
        clock_skew_ms: skew_ms,
        halted: halted
            .into_iter()
            .map(|halt| halt_name(halt).to_owned())
            .collect(),
        frozen_vaults: frozen.iter().map(ToString::to_string).collect(),
    }
}

fn halt_name(halt: NodeHalt) -> &'static str {
    match halt {
        NodeHalt::Clock => "clockWrong",
        NodeHalt::Claims => "claimsMissing",
        NodeHalt::DuplicateIdentity => "runsTwice",
        NodeHalt::Frozen => "frozen",
        NodeHalt::ClientSigner => "clientSigner",
        NodeHalt::Version => "versionTooFar",
        NodeHalt::ClockTooFar => "clockTooFar",
    }
}

fn unadmitted_message(view: UnadmittedView) -> admin::UnadmittedNode {
    let UnadmittedView {
        id,
        name,
        last_seen_ms: _,
    } = view;
    admin::UnadmittedNode {
        public_key: id.openssh_line(""),
        name,
    }
}
