use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{Operation, OperationCall};
use crate::deposits::{assets::AssetName, rescan};

/// Has final blocks of a chain looked through again.
pub struct RescanDeposits;

#[async_trait]
impl Operation for RescanDeposits {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.RescanDeposits";
    type Request = admin::RescanDepositsRequest;
    type Response = admin::RescanDepositsResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let admin::RescanDepositsRequest {
            network,
            chain_id,
            from,
            to,
        } = request;
        let chain = AssetName::parse(&network, &chain_id, "")?.chain;
        rescan::begin(call.services, call.caller, chain, (from, to)).await?;
        Ok(admin::RescanDepositsResponse {})
    }
}
