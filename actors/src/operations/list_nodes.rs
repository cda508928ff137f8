use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{Operation, OperationCall};
use crate::{
    nodes,
    port::{NodeHalt, NodeView, UnadmittedView},
};

/// Lists the signer nodes.
pub struct ListNodes;

#[async_trait]
impl Operation for ListNodes {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.ListNodes";
    type Request = admin::ListNodesRequest;
    type Response = admin::ListNodesResponse;

    async fn run(call: OperationCall<'_>, _: Self::Request) -> Result<Self::Response, Fault> {
        let nodes = nodes::view(call.services).await?;
        let unadmitted = call.services.signers.unadmitted();
        Ok(admin::ListNodesResponse {
            nodes: nodes.into_iter().map(node_message).collect(),
            want_to_join: unadmitted.into_iter().map(unadmitted_message).collect(),
            now_ms: call.services.now_ms(),
        })
    }
}

/// A node as operators see it.
pub(super) fn node_message(view: NodeView) -> admin::Node {
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
        last_seen_ms,
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
    }
}

fn unadmitted_message(view: UnadmittedView) -> admin::UnadmittedNode {
    let UnadmittedView {
        id,
        name,
        last_seen_ms,
    } = view;
    admin::UnadmittedNode {
        public_key: id.openssh_line(""),
        name,
        last_seen_ms,
    }
}
