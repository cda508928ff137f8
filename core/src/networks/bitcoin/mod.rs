//! Bitcoin, mainnet.
//!
//! Wallets have one P2WPKH address. A transaction is of version 2 without lock time, replaceable
//! (BIP-125), and every input is signed with SIGHASH_ALL over its BIP-143 digest. The unsigned
//! bytes are a PSBT (BIP-174) with the outputs that are spent: their amounts are part of what is
//! signed, and only with them does the transaction say its fee.

mod address;
mod chain_data;
pub(super) mod payload;
mod rules;
mod tx;

pub use self::{
    address::{AddressError, parse_address},
    chain_data::{ChainData, Queries, UnspentOutput},
    payload::{BitcoinOutput, BitcoinPayload, BitcoinPayment, batch},
    rules::Bitcoin,
};
