//! Deposit wallets and watch addresses.

use covault_actors::gateway::{Command, Receipt};
use covault_core::fault::Fault;

use super::{Answer, Call};

/// sweep/wallets: the same answer for the same token, network and ref.
pub async fn create_wallet(call: Call) -> Result<Answer, Fault> {
    let command = Command::CreateDepositWallet(call.request()?);
    let done = call.submit(command).await?;
    call.answer_to(done, |receipt| match receipt {
        Receipt::Deposit(wallet) => Some(wallet),
        _ => None,
    })
}

/// sweep/addWatchAddress: the same answer for the same token and address.
pub async fn add_watch(call: Call) -> Result<Answer, Fault> {
    let command = Command::AddWatchAddress(call.request()?);
    let done = call.submit(command).await?;
    call.answer_to(done, |receipt| match receipt {
        Receipt::Watch(watch) => Some(watch),
        _ => None,
    })
}
