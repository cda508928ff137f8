//! Wallets.

use covault_actors::gateway::{Command, Operation, Query, Receipt, View};
use covault_core::{
    fault::{Class, Fault},
    schema::wire,
};

use super::{Answer, Call, unexpected};

/// createWallet.
pub async fn create(call: Call) -> Result<Answer, Fault> {
    let done = call
        .submit_once(Operation::CreateWallet, Command::CreateWallet)
        .await?;
    call.answer_to(done, |receipt| match receipt {
        Receipt::Wallet(wallet) => Some(wire::CreateWalletResponse {
            details: Some(wallet),
            error: None,
        }),
        _ => None,
    })
}

/// updateWallet.
pub async fn update(call: Call) -> Result<Answer, Fault> {
    let command = Command::UpdateWallet(call.request()?);
    let done = call.submit(command).await?;
    call.answer_to(done, |receipt| match receipt {
        Receipt::Wallet(wallet) => Some(wire::UpdateWalletResponse {
            details: Some(wallet),
            error: None,
        }),
        _ => None,
    })
}

/// getWalletInfo, by address or ref.
pub async fn info(call: Call) -> Result<Answer, Fault> {
    use wire::get_wallet_info_request::Wallet;
    let request: wire::GetWalletInfoRequest = call.request()?;
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
        View::Wallet(wallet) => call.answer(&wire::GetWalletInfoResponse {
            details: Some(wallet),
            error: None,
        }),
        other => Err(unexpected(&other)),
    }
}

/// getWalletList.
pub async fn list(call: Call) -> Result<Answer, Fault> {
    let query = Query::Wallets(call.request()?);
    match call.api.gateway.view(&call.caller, query).await? {
        View::Wallets(wallets) => call.answer(&wire::GetWalletListResponse {
            details_list: wallets,
            error: None,
        }),
        other => Err(unexpected(&other)),
    }
}
