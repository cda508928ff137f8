use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{Operation, OperationCall};
use crate::deposits::{assets::AssetName, restart};

/// Has a chain followed again from a block on.
pub struct RestartDeposits;

#[async_trait]
impl Operation for RestartDeposits {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.RestartDeposits";
    type Request = admin::RestartDepositsRequest;
    type Response = admin::RestartDepositsResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let admin::RestartDepositsRequest {
            network,
            chain_id,
            from,
        } = request;
        let chain = AssetName::parse(&network, &chain_id, "")?.chain;
        restart::begin(call.services, call.caller, chain, from).await?;
        Ok(admin::RestartDepositsResponse {})
    }
}
