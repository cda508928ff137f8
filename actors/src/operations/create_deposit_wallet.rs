use async_trait::async_trait;
use covault_core::{
    deposit::{self, Deposit, DepositCall, SweepRoute},
    fault::{Class, Fault},
    ids::TokenId,
    schema::wire,
    wallet::{Wallet, WalletStatus},
};

use super::{Home, HomeLookup, Operation, OperationCall};
use crate::{
    commands::caller::in_scope,
    deposits::route,
    services::Services,
    store::rows,
    vaults::{
        address_proofs,
        vault::{self, NewWallet},
        wallets::{DepositPlan, WalletPlan},
    },
};

/// The deposit wallet of (token, network, ref): makes it, or finds it.
pub struct CreateDepositWallet;

#[async_trait]
impl Operation for CreateDepositWallet {
    const METHOD: &'static str = "mpcvault.platform.v1.SweepAPI.CreateDepositWallet";
    type Request = wire::CreateDepositWalletRequest;
    type Response = wire::CreateDepositWalletResponse;

    async fn home(lookup: &HomeLookup<'_>, request: &Self::Request) -> Result<Home, Fault> {
        let Ok(deposit) = DepositCall::parse(request) else {
            return Ok(Home::AnyProcess);
        };
        let key = rows::sweep_route(lookup.caller.token, deposit.network);
        let route = lookup.services.load::<SweepRoute>(&key).await?;
        Ok(route.and_then(|(route, _)| route.vault).into())
    }

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let deposit = DepositCall::parse(&request)?;
        let services = call.services;
        let key = rows::deposit(call.caller.token, deposit.network, &deposit.reference);
        // One at a time, so that repeated calls use up no key paths. What holds between processes
        // is that the row must be absent when the wallet is stored.
        let _turn = call.key_locks.lock(&key).await;
        if let Some(wallet) = deposit_wallet(services, &deposit, call.caller.token).await? {
            return existing_response(services, deposit, &wallet).await;
        }
        let route = route(services, call.caller.token, deposit.network).await?;
        let vault = route.deposit_vault()?;
        if !in_scope(call.caller, vault) {
            return Err(Fault::bug("a sweep token whose vault is outside its scope"));
        }
        let noted = call.noted_chains.note_all(services, deposit.network);
        noted.await?;
        let actor = call.vaults.vault(vault).await?;
        let command_commit = call.command_commit.clone();
        let message = |reply| {
            let plan = WalletPlan {
                network: deposit.network.network(),
                name: String::new(),
                reference: String::new(),
                deposit: Some(DepositPlan {
                    row: key,
                    network: deposit.network,
                    token: call.caller.token,
                    reference: deposit.reference.clone(),
                }),
                proven_reference: deposit.reference.clone(),
                require_proof: deposit.require_proof,
                command_commit,
            };
            vault::Msg::CreateWallet(Box::new(NewWallet { plan, reply }))
        };
        let made = call.ask(&actor, message).await?;
        match made {
            Ok(wallet) => Ok(response(deposit, wallet.address, wallet.address_proof)),
            Err(fault) if *fault.class() == Class::Conflict => {
                match deposit_wallet(services, &deposit, call.caller.token).await? {
                    Some(wallet) => existing_response(services, deposit, &wallet).await,
                    None => Err(fault),
                }
            }
            Err(fault) => Err(fault),
        }
    }
}

/// The wallet of a deposit that is there.
async fn deposit_wallet(
    services: &Services,
    deposit_call: &DepositCall,
    token: TokenId,
) -> Result<Option<Wallet>, Fault> {
    let key = rows::deposit(token, deposit_call.network, &deposit_call.reference);
    let Some((deposit, _)) = services.load::<Deposit>(&key).await? else {
        return Ok(None);
    };
    let wallet = services
        .load::<Wallet>(&rows::wallet(deposit.wallet))
        .await?;
    let (wallet, _) = wallet.ok_or_else(|| Fault::bug("a deposit without a wallet"))?;
    Ok(Some(wallet))
}

async fn existing_response(
    services: &Services,
    deposit_call: DepositCall,
    wallet: &Wallet,
) -> Result<wire::CreateDepositWalletResponse, Fault> {
    if wallet.status == WalletStatus::Archived {
        return Err(deposit::wallet_disabled());
    }
    let proof = address_proofs::of(services, wallet.id).await?;
    if proof.is_none() && deposit_call.require_proof {
        return Err(address_proofs::missing());
    }
    Ok(response(deposit_call, wallet.address.clone(), proof))
}

fn response(
    deposit_call: DepositCall,
    address: String,
    address_proof: Option<wire::AddressProof>,
) -> wire::CreateDepositWalletResponse {
    wire::CreateDepositWalletResponse {
        address,
        network: deposit_call.network.name().to_owned(),
        r#ref: deposit_call.reference,
        address_proof,
    }
}
