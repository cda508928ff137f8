//! Tron.
//!
//! Transactions hold one contract: `TransferContract` (TRX), `TransferAssetContract` (TRC-10) or
//! `TriggerSmartContract` that calls `transfer` (TRC-20). They name a recent block, without which
//! they are void, and are gone 60 seconds after it.

mod address;
mod chain_data;
pub(super) mod payload;
mod proto;
mod rules;
pub mod transfers;
mod tx;

pub use self::{
    address::{Address, AddressError, AssetIdError, parse_address, parse_asset_id},
    chain_data::{Block, ChainData, Queries, TronCall},
    payload::{TronAction, TronPayload},
    rules::Tron,
    tx::expires_ms,
};
