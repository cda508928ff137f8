//! EVM chains.
//!
//! Transactions are EIP-1559 (type 2), or legacy ones with EIP-155 replay protection where the
//! chain has no base fee or the request names a gas price only. Messages are EIP-191 personal
//! sign and EIP-712 typed data.

mod action;
mod address;
pub mod balances;
pub mod batch;
pub mod calls;
mod chain_data;
mod coins;
mod effect;
pub(super) mod payload;
mod rules;
pub mod traces;
pub mod transfers;
mod tx;
mod typed_data;

pub use alloy_primitives::Address;

pub(crate) use self::payload::{chain_id, check_token_recipient, parse_field};
pub use self::{
    action::EvmAction,
    address::{AddressError, parse_address},
    chain_data::{ChainData, EvmCall, Fees, Queries},
    payload::{EvmGas, EvmMessage, EvmMessageForm, EvmPayload, EvmTransaction},
    rules::Evm,
    tx::{SentTransaction, SimulationCall, read_sent, trial},
};
