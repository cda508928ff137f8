use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{Operation, OperationCall};
use crate::deposits::{assets::AssetName, rescan};

/// Ends a rescan where it is.
pub struct StopRescan;

#[async_trait]
impl Operation for StopRescan {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.StopRescan";
    type Request = admin::StopRescanRequest;
    type Response = admin::StopRescanResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let admin::StopRescanRequest { network, chain_id } = request;
        let chain = AssetName::parse(&network, &chain_id, "")?.chain;
        rescan::stop(call.services, call.caller, chain).await?;
        Ok(admin::StopRescanResponse {})
    }
}
