//! Sui.
//!
//! Payments are programmable transactions as the TypeScript SDK makes them. Money lies in coin
//! objects and in address balances (SIP-58); both are spent. A payment takes all coin objects that
//! its facts name; `allocate` leaves no more in them than are needed.

mod address;
mod chain_data;
mod coins;
mod custom;
mod json;
pub(super) mod payload;
mod payment;
mod rules;
mod seen;
mod selection;
mod sent;
mod sponsor;
mod tx;

pub use self::{
    address::{AddressError, CoinTypeError, SUI, parse_address, parse_coin_type},
    chain_data::{ChainData, GasUsed, Queries, SuiValidity},
    coins::{CoinObject, CoinOrigin, MAX_COINS},
    payload::{SuiCustom, SuiMessage, SuiPayload, batch_coin, batch_native},
    payment::{GasSettings, SuiOutput, SuiPayment},
    rules::{Sui, simulation},
    sent::{OwnedObject, SentTransaction, read_sent},
};
