//! TON: wallets v5r1 (every new one) and v4r2 (imported ones).
//!
//! A transaction is an external message that orders the wallet contract to send messages. The
//! contract takes them strictly by number: one whose seqno is not the wallet's present one is
//! refused, so while a transaction is on its way the next one gets the next seqno, and can only be
//! sent when the first is done.

mod address;
mod cells;
mod chain_data;
mod code;
mod coins;
mod connect;
pub mod fee;
mod jetton;
pub mod ledger;
mod message;
pub(super) mod payload;
mod rules;
mod wallet;

pub use self::{
    address::{AddressError, TonAddress, parse_address},
    cells::BocError,
    chain_data::{
        ChainData, JettonChainData, JettonQueries, Queries, TransactionChainData,
        TransactionQueries,
    },
    coins::parse_coins,
    connect::OutMessage,
    message::TonMessageForm,
    payload::{JettonTransfer, TonCustom, TonMessage, TonPayload, TonTransfer},
    rules::Ton,
    wallet::WalletVersion,
};
