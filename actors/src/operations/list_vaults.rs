use async_trait::async_trait;
use covault_core::{fault::Fault, ids::VaultId, schema::admin};

use super::{Operation, OperationCall};
use crate::{
    store::{KeySpace, Scan, rows},
    vaults::vault::vault_message,
};

/// Most vaults that are listed.
const MAX_VAULTS: usize = 100_000;

/// Lists the vaults.
pub struct ListVaults;

#[async_trait]
impl Operation for ListVaults {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.ListVaults";
    type Request = admin::ListVaultsRequest;
    type Response = admin::ListVaultsResponse;

    async fn run(call: OperationCall<'_>, _: Self::Request) -> Result<Self::Response, Fault> {
        let all = Scan::prefix(KeySpace::VaultName, &[], MAX_VAULTS);
        let mut vaults = Vec::new();
        for (_, row) in call.services.store.scan(&all).await? {
            let id: VaultId = rows::decode(&row.value)?;
            if let Some((vault, _)) = call.services.vault(id).await? {
                vaults.push(vault_message(call.services, &vault).await?);
            }
        }
        Ok(admin::ListVaultsResponse { vaults })
    }
}
