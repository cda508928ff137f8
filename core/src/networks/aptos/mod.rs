//! Aptos and Movement.
//!
//! Transactions have one Ed25519 signer with the legacy authentication key, sequence numbers and
//! an expiration; the sender pays, or who a custom transaction names. Transfers call the framework as @aptos-labs/ts-sdk does.

mod address;
mod call;
mod chain_data;
mod fee_payer;
mod move_types;
pub(super) mod payload;
mod rules;
mod transfers;
mod tx;

pub use self::{
    address::{AddressError, parse_address},
    call::JsonCall,
    chain_data::{Abi, ChainData, CoinAmount, FunctionName, PlannedCall, Queries, SimulationQuery},
    fee_payer::FeePayer,
    move_types::{AptosCoin, CoinError},
    payload::{AptosAction, AptosMessage, AptosPayload, AptosTransaction},
    rules::{Aptos, simulation},
    tx::{
        EntryFunction, ModuleId, Multisig, MultisigTransactionPayload, RawTransaction, Script,
        TransactionArgument, TransactionExecutable, TransactionExtraConfig, TransactionPayload,
        TransactionPayloadInner, Uninhabited, read_signed, to_simulate,
    },
};
