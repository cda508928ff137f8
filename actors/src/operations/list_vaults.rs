use async_trait::async_trait;
use covault_core::{fault::Fault, ids::VaultId, schema::admin};

use super::{Operation, OperationCall};
use crate::{
    lists::{PageBytes, READ_CHUNK},
    store::{KeySpace, Scan, rows},
    vaults::vault::vault_message,
};

/// Most vaults of a page.
const MAX_VAULTS: usize = 10_000;

/// Lists the vaults by their names, page by page.
pub struct ListVaults;

#[async_trait]
impl Operation for ListVaults {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.ListVaults";
    type Request = admin::ListVaultsRequest;
    type Response = admin::ListVaultsResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        let (mut vaults, mut bytes) = (Vec::new(), PageBytes::default());
        let all = Scan::prefix(KeySpace::VaultName, &[], READ_CHUNK);
        let mut next = Some(Scan {
            // The first key behind that of the name.
            from: request
                .after
                .map(|name| [&rows::vault_name(&name).bytes, &[0][..]].concat()),
            ..all
        });
        while let Some(scan) = next {
            let page = services.store.scan(&scan).await?;
            for (_, row) in &page {
                let id: VaultId = rows::decode(&row.value)?;
                let Some((vault, _)) = services.vault(id).await? else {
                    continue;
                };
                let vault = vault_message(services, &vault).await?;
                if vaults.len() == MAX_VAULTS || !bytes.fits(&vault) {
                    return Ok(admin::ListVaultsResponse { vaults });
                }
                vaults.push(vault);
            }
            next = scan.rest(&page);
        }
        Ok(admin::ListVaultsResponse { vaults })
    }
}
