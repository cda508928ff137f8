use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{Operation, OperationCall};
use crate::deposits::{assets::AssetName, reconcile};

/// Has the balances of all deposit wallets on a chain compared with their transfers.
pub struct ReconcileDeposits;

#[async_trait]
impl Operation for ReconcileDeposits {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.ReconcileDeposits";
    type Request = admin::ReconcileDepositsRequest;
    type Response = admin::ReconcileDepositsResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let admin::ReconcileDepositsRequest { network, chain_id } = request;
        let chain = AssetName::parse(&network, &chain_id, "")?.chain;
        reconcile::begin(call.services, call.caller, chain).await?;
        Ok(admin::ReconcileDepositsResponse {})
    }
}
