use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{Operation, OperationCall};
use crate::deposits::assets::{self, AssetName};

/// Adds a coin or token that a sweep token takes on one chain, or changes its minimum.
pub struct AddSweepAsset;

#[async_trait]
impl Operation for AddSweepAsset {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.AddSweepAsset";
    type Request = admin::AddSweepAssetRequest;
    type Response = admin::AddSweepAssetResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let asset = AssetName::parse(&request.network, &request.chain_id, &request.contract)?;
        let changed = assets::change(
            call.services,
            call.caller,
            &request.token,
            &asset,
            Some(&request.minimum),
        );
        let (token, networks) = changed.await?;
        Ok(admin::AddSweepAssetResponse {
            token: Some(token),
            networks,
        })
    }
}
