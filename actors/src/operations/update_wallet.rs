use async_trait::async_trait;
use covault_core::{fault::Fault, schema::wire, wallet::WalletChange};

use super::{Home, HomeLookup, Operation, OperationCall, lookup::wallet_by_address};
use crate::vaults::vault;

/// Renames or archives a wallet, or takes it back. Repeating it changes nothing.
pub struct UpdateWallet;

#[async_trait]
impl Operation for UpdateWallet {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.UpdateWallet";
    type Request = wire::UpdateWalletRequest;
    type Response = wire::UpdateWalletResponse;

    async fn home(lookup: &HomeLookup<'_>, request: &Self::Request) -> Result<Home, Fault> {
        let wallet = wallet_by_address(lookup.services, lookup.caller, &request.address).await;
        Ok(wallet.ok().map(|wallet| wallet.vault).into())
    }

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let wire::UpdateWalletRequest {
            address,
            name,
            status,
        } = request;
        if address.is_empty() {
            return Err(Fault::field("address", "is required"));
        }
        let change = WalletChange::parse(&name, &status)?;
        let wallet = wallet_by_address(call.services, call.caller, &address).await?;
        let actor = call.vaults.vault(wallet.vault).await?;
        let command_commit = call.command_commit.clone();
        let message = |reply| vault::Msg::UpdateWallet(wallet.id, change, command_commit, reply);
        Ok(wire::UpdateWalletResponse {
            details: Some(call.ask(&actor, message).await??),
            error: None,
        })
    }
}
