use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{Operation, OperationCall, admin::parse_line};
use crate::{audit::AuditActor, nodes};

/// Removes a signer node; refused while it holds shares.
pub struct RemoveNode;

#[async_trait]
impl Operation for RemoveNode {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.RemoveNode";
    type Request = admin::RemoveNodeRequest;
    type Response = admin::RemoveNodeResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let change = nodes::NodeChange::Remove(parse_line(&request.public_key)?);
        nodes::change(call.services, change, &AuditActor::caller(call.caller)).await?;
        Ok(admin::RemoveNodeResponse {})
    }
}
