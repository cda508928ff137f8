use async_trait::async_trait;
use covault_core::{fault::Fault, ids::WalletId, schema::wire, wallet::Wallet};

use super::{Operation, OperationCall};
use crate::{
    commands::caller::vault_in_scope,
    lists::{self, PageBytes, PageRange},
    services::skip_unreadable,
    store::{Key, KeySpace, rows},
    vaults::address_proofs,
};

/// Lists the wallets of a vault in the order in which they were made.
pub struct GetWalletList;

#[async_trait]
impl Operation for GetWalletList {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.GetWalletList";
    type Request = wire::GetWalletListRequest;
    type Response = wire::GetWalletListResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        if request.vault_uuid.is_empty() {
            return Err(Fault::field("vaultUuid", "is required"));
        }
        let vault = vault_in_scope(call.caller, &request.vault_uuid)?;
        let page = PageRange::of(request.page, request.limit, lists::MAX_PAGE)?;
        if services.vault(vault).await?.is_none() {
            return Err(Fault::invalid_uuid());
        }
        let all = Key::new(KeySpace::WalletIndex, &[vault.as_bytes()]);
        let page = lists::page((services, call.caller), &all, false, page).await?;
        let ids = page
            .iter()
            .map(|(_, row)| rows::decode::<WalletId>(&row.value));
        let ids = ids.collect::<Result<Vec<_>, _>>()?;
        let (mut details_list, mut bytes) = (Vec::new(), PageBytes::default());
        for ids in ids.chunks(lists::READ_CHUNK) {
            let keys: Vec<_> = ids.iter().map(|id| rows::wallet(*id)).collect();
            let wallets = services.load_all::<Wallet>(&keys).await?;
            let mut together = Vec::with_capacity(ids.len());
            for (id, wallet) in ids.iter().zip(wallets) {
                let Some(wallet) = skip_unreadable(wallet, format_args!("wallet {id}"))? else {
                    continue;
                };
                let wallet = wallet.ok_or_else(|| Fault::bug("an index without a wallet"))?;
                together.push(wallet);
            }
            for details in address_proofs::shown_all(services, &together).await? {
                bytes.add(&details)?;
                details_list.push(details);
            }
        }
        Ok(wire::GetWalletListResponse {
            details_list,
            error: None,
        })
    }
}
