//! Wallets.

use covault_actors::gateway::{Command, Query, Receipt, View};
use covault_core::{
    fault::{Class, Fault},
    schema::{json, wire},
};

use crate::http::{Answer, Call, take, unexpected};

/// createWallet.
pub async fn create(call: Call) -> Result<Answer, Fault> {
    let command = Command::CreateWallet(json::decode(&call.body)?);
    let done = call
        .api
        .gateway
        .submit(&call.caller, command, call.idempotency)
        .await?;
    let (receipt, replayed, mismatch) = take(done);
    let Receipt::Wallet(wallet) = receipt else {
        return Err(unexpected(&receipt));
    };
    let response = wire::CreateWalletResponse {
        details: Some(wallet),
        error: None,
    };
    Ok(Answer::submitted(
        json::encode(&response)?,
        replayed,
        mismatch,
    ))
}

/// getWalletInfo, by address or ref.
pub async fn info(call: Call) -> Result<Answer, Fault> {
    use wire::get_wallet_info_request::Wallet;
    let request: wire::GetWalletInfoRequest = json::decode(&call.body)?;
    let query = match request.wallet {
        Some(Wallet::Address(address)) => Query::WalletByAddress(address),
        Some(Wallet::Ref(name)) => Query::WalletByRef(name),
        None => {
            return Err(Fault::new(
                Class::Invalid,
                "exactly one of address and ref must be given",
            ));
        }
    };
    match call.api.gateway.view(&call.caller, query).await? {
        View::Wallet(wallet) => {
            let response = wire::GetWalletInfoResponse {
                details: Some(wallet),
                error: None,
            };
            Ok(Answer::new(json::encode(&response)?))
        }
        other => Err(unexpected(&other)),
    }
}

/// getWalletList.
pub async fn list(call: Call) -> Result<Answer, Fault> {
    let query = Query::Wallets(json::decode(&call.body)?);
    match call.api.gateway.view(&call.caller, query).await? {
        View::Wallets(wallets) => {
            let response = wire::GetWalletListResponse {
                details_list: wallets,
                error: None,
            };
            Ok(Answer::new(json::encode(&response)?))
        }
        other => Err(unexpected(&other)),
    }
}
