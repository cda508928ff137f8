use async_trait::async_trait;
use covault_core::{fault::Fault, networks::Network, schema::wire, wallet::check_labels};

use super::{Home, HomeLookup, Operation, OperationCall, lookup::client_signer};
use crate::{
    commands::caller::vault_in_scope,
    store::rows,
    vaults::{
        vault::{self, NewWallet},
        wallets::{self, WalletPlan},
    },
};

/// Makes a wallet of a vault.
pub struct CreateWallet;

#[async_trait]
impl Operation for CreateWallet {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.CreateWallet";
    type Request = wire::CreateWalletRequest;
    type Response = wire::CreateWalletResponse;

    async fn home(_: &HomeLookup<'_>, request: &Self::Request) -> Result<Home, Fault> {
        Ok(request.vault_uuid.parse().ok().into())
    }

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let network = Network::from_wire(request.network_type())
            .ok_or_else(|| Fault::field("networkType", "is required"))?;
        let wire::CreateWalletRequest {
            vault_uuid,
            callback_client_signer_public_key,
            network_type: _,
            r#ref: reference,
            name,
            require_address_proof,
        } = request;
        if vault_uuid.is_empty() {
            return Err(Fault::field("vaultUuid", "is required"));
        }
        let vault = vault_in_scope(call.caller, &vault_uuid)?;
        let client_signer = client_signer(Some(&callback_client_signer_public_key))?;
        check_labels(&name, &reference)?;
        let wallet_ref = rows::wallet_ref(&reference);
        if !reference.is_empty() && call.services.store.get(&wallet_ref).await?.is_some() {
            return Err(wallets::duplicate_ref());
        }
        if let Some(signer) = client_signer {
            let vault = call.services.hot_vault(vault).await?;
            let (vault, _) = vault.ok_or_else(Fault::invalid_uuid)?;
            vault.check_client_signer(network.curve(), signer)?;
        }
        let actor = call.vaults.vault(vault).await?;
        let command_commit = call.command_commit.clone();
        let message = |reply| {
            let plan = WalletPlan {
                network,
                name,
                proven_reference: reference.clone(),
                reference,
                deposit: None,
                require_proof: require_address_proof,
                command_commit,
            };
            vault::Msg::CreateWallet(Box::new(NewWallet { plan, reply }))
        };
        Ok(wallets::created(call.ask(&actor, message).await??))
    }
}
