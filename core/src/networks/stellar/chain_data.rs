//! What a Stellar node is asked, and what it answers.

use serde::{Deserialize, Serialize};

use crate::networks::fee_level::FeeLevel;

/// What a Stellar node is asked, in addition to its base fee.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queries {
    /// The sender (`G...`), whose sequence number is wanted.
    pub from: String,
    /// The account (`G...`, also where a muxed address was given) of which must be known whether
    /// it exists: the recipient of lumens.
    pub destination: Option<String>,
    /// How soon a ledger should have it, for the fee that is offered.
    pub level: FeeLevel,
    /// What the transaction moves: whether accounts have it is looked at before it is built ([`Queries::check_means`]),
    /// and no fact.
    pub moves: Moves,
}

/// What a transaction moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Moves {
    /// Stroops, to [`Queries::destination`].
    Lumens(u64),
    /// An issued asset.
    Asset {
        /// `CODE:ISSUER`.
        asset: String,
        /// Units of 10^-7.
        amount: u64,
        /// The account (`G...`) that gets it.
        to: String,
    },
    /// Nothing: the account is to have a trust line.
    Trust {
        /// `CODE:ISSUER`.
        asset: String,
    },
}

/// What a Stellar node said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainData {
    /// The sequence number before that of the transaction: the sender's present one, or the last
    /// that another request holds.
    pub sequence: u64,
    /// Stroops per operation: the most that the transaction offers. At least the base fee of the
    /// latest ledger.
    pub base_fee: u32,
    /// Seconds since the Unix epoch after which the network refuses the transaction. Never 0,
    /// which would mean that it is good for ever.
    pub max_time: u64,
    /// Whether [`Queries::destination`] exists; `None` where it was not asked.
    pub destination_exists: Option<bool>,
}
