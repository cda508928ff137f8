use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{Call, Operation, admin::parse_line};
use crate::{audit::By, nodes};

/// Removes a signer node; refused while it holds shares.
pub struct RemoveNode;

#[async_trait]
impl Operation for RemoveNode {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.RemoveNode";
    type Request = admin::RemoveNodeRequest;
    type Response = admin::RemoveNodeResponse;

    async fn run(call: Call<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let change = nodes::Change::Remove(parse_line(&request.public_key)?);
        nodes::change(call.services, change, &By::caller(call.caller)).await?;
        Ok(admin::RemoveNodeResponse {})
    }
}
