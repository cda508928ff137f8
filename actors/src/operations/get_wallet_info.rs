use async_trait::async_trait;
use covault_core::{
    fault::{Class, Fault},
    schema::wire::{self, get_wallet_info_request::Wallet},
};

use super::{
    Operation, OperationCall,
    lookup::{visible, wallet_by_address},
};
use crate::{store::rows, vaults::address_proofs};

/// Reads a wallet by its address or its ref.
pub struct GetWalletInfo;

#[async_trait]
impl Operation for GetWalletInfo {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.GetWalletInfo";
    type Request = wire::GetWalletInfoRequest;
    type Response = wire::GetWalletInfoResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        let wallet = match request.wallet {
            Some(Wallet::Address(address)) => {
                wallet_by_address(services, call.caller, &address).await?
            }
            Some(Wallet::Ref(reference)) => {
                let wallet = services.wallet_by(&rows::wallet_ref(&reference)).await?;
                visible(call.caller, wallet, "ref")?
            }
            None => {
                return Err(Fault::new(
                    Class::Invalid,
                    "exactly one of address and ref must be given",
                ));
            }
        };
        Ok(wire::GetWalletInfoResponse {
            details: Some(address_proofs::shown(services, &wallet).await?),
            error: None,
        })
    }
}
