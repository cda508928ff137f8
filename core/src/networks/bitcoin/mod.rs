//! Bitcoin, mainnet.
//!
//! Wallets have one P2WPKH address. A transaction is of version 2 without lock time, replaceable
//! (BIP-125), and every input is signed with SIGHASH_ALL over its BIP-143 digest. The unsigned
//! bytes are a PSBT (BIP-174) with the outputs that are spent: their amounts are part of what is
//! signed, and only with them does the transaction say its fee.
//!
//! A payment may name outputs that it spends: of a transaction that waits, to take its place (RBF), or of one
//! that makes them, to pay for that too (CPFP).

mod address;
mod chain_data;
mod fee;
pub(super) mod payload;
mod rules;
mod tx;

pub use self::{
    address::{AddressError, parse_address},
    chain_data::{Ancestors, ChainData, Queries, ReplacedFees, UnspentOutput},
    payload::{BitcoinOutput, BitcoinPayload, BitcoinPayment, FeeRate, batch},
    rules::Bitcoin,
};
