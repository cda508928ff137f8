//! Aptos and Movement.
//!
//! Transactions have one Ed25519 signer with the legacy authentication key, sequence numbers and
//! an expiration; the sender pays. Transfers call the framework as @aptos-labs/ts-sdk does.

mod address;
mod call;
mod chain_data;
mod move_types;
pub(super) mod payload;
mod rules;
mod transfers;
mod tx;

pub use self::{
    address::{AddressError, parse_address},
    call::Call,
    chain_data::{Abi, ChainData, Function, Planned, Queries, Simulate},
    move_types::{Coin, CoinError},
    payload::{AptosAction, AptosMessage, AptosPayload, AptosTransaction},
    rules::{Aptos, simulation},
    tx::{
        EntryFunction, ModuleId, Multisig, MultisigTransactionPayload, Never, RawTransaction,
        Script, TransactionArgument, TransactionExecutable, TransactionExtraConfig,
        TransactionPayload, TransactionPayloadInner, to_simulate,
    },
};
