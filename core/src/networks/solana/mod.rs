//! Solana and Sonic SVM.
//!
//! Transfers are legacy messages that the sender pays for. Where chain data has a [`ComputeBudget`], they
//! begin with its limit and price. Accounts stand in the order that the Rust SDK gives them. Transactions
//! that were made elsewhere are signed as they are.

mod acts;
mod address;
mod chain_data;
mod cost;
pub mod effect;
mod extensions;
pub mod lifetime;
pub mod offchain;
pub(super) mod payload;
mod rules;
pub mod token;
mod transfer;
pub mod wire;

pub use self::{
    address::{AddressError, parse_key},
    chain_data::{ChainData, ComputeBudget, ComputeQueries, Queries},
    payload::{
        SolanaCluster, SolanaCustom, SolanaMessage, SolanaPayload, SolanaTokenTransfer,
        SolanaTransfer,
    },
    rules::{Solana, each},
    transfer::{TransferSimulation, transfer_fee, trial},
};
