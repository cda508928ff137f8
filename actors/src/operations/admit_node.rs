use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{Operation, OperationCall, admin::parse_line, list_nodes::node_message};
use crate::{audit::AuditActor, leases, nodes};

/// Admits a signer node. Repeating it changes nothing but the name, if one is given.
pub struct AdmitNode;

#[async_trait]
impl Operation for AdmitNode {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.AdmitNode";
    type Request = admin::AdmitNodeRequest;
    type Response = admin::AdmitNodeResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let id = parse_line(&request.public_key)?;
        let change = nodes::NodeChange::Admit {
            id,
            name: request.name,
        };
        nodes::change(call.services, change, &AuditActor::caller(call.caller)).await?;
        let as_of_ms = leases::watched_ms(call.services).await?;
        let mut nodes = nodes::written(call.services).await?.into_iter();
        let node = nodes.find(|node| node.id == id);
        Ok(admin::AdmitNodeResponse {
            node: node.map(|node| node_message(node, as_of_ms)),
        })
    }
}
