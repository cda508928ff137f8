//! Stellar.
//!
//! Transactions that are built here have one operation, the sender as source and fee payer, and
//! end at a given time. Those that are made elsewhere come as a whole envelope, and get one more
//! signature. Everything is signed for the public network ([`NETWORK_ID`]).

mod address;
mod build;
mod chain_data;
mod envelope;
pub mod ledger;
mod means;
pub(super) mod payload;
mod rules;

pub use self::{
    address::{AddressError, AssetError, IssuedAsset, parse_account, parse_address},
    chain_data::{ChainData, Moves, Queries},
    envelope::{EnvelopeError, MAX_BYTES, NETWORK_ID, calls_contract},
    means::TrustLineKeys,
    payload::{StellarAction, StellarCustom, StellarPayload, StellarTransaction},
    rules::Stellar,
};
