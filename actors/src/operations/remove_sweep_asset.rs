use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{Operation, OperationCall};
use crate::deposits::assets::{self, AssetName};

/// Removes a coin or token of a sweep token.
pub struct RemoveSweepAsset;

#[async_trait]
impl Operation for RemoveSweepAsset {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.RemoveSweepAsset";
    type Request = admin::RemoveSweepAssetRequest;
    type Response = admin::RemoveSweepAssetResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let asset = AssetName::parse(&request.network, &request.chain_id, &request.contract)?;
        let changed = assets::change(call.services, call.caller, &request.token, &asset, None);
        let (token, networks) = changed.await?;
        Ok(admin::RemoveSweepAssetResponse {
            token: Some(token),
            networks,
        })
    }
}
