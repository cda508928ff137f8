//! What a Solana node is asked, and what it answers.

use serde::{Deserialize, Serialize};

use super::token::{TokenChainData, TokenQueries};
use crate::networks::fee_level::FeeLevel;

/// What a Solana node must be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queries {
    /// 101 for Solana, 0 for Sonic SVM.
    pub chain_id: u64,
    /// Whether a recent blockhash is wanted.
    pub blockhash: bool,
    /// The token that is sent, if one is.
    pub token: Option<TokenQueries>,
    /// What is sent, where limit and price of its computation are wanted. Asked after the token.
    pub compute: Option<ComputeQueries>,
}

/// A transfer of which it is asked what it computes and what that costs: of the token of
/// [`Queries::token`], else of the coin. [`super::trial`] makes the transaction to be tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeQueries {
    /// Sender and fee payer, base58.
    pub from: String,
    /// The recipient's wallet, base58.
    pub to: String,
    /// In the smallest unit of coin or token.
    pub amount: u64,
    /// How soon a block should have it.
    pub level: FeeLevel,
}

/// What a Solana node said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainData {
    /// `getLatestBlockhash` at commitment confirmed, base58.
    pub recent_blockhash: String,
    /// About the token, when it was asked for.
    pub token: Option<Box<TokenChainData>>,
    /// What the transaction may compute and pays for that. `None`: it says nothing of it, has the
    /// network's own limit and pays the base fee alone.
    pub compute: Option<ComputeBudget>,
}

/// What a transaction may compute, and what it pays for that on top of the base fee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeBudget {
    /// Units: a fifth more than `unitsConsumed` of `simulateTransaction`, no less than
    /// [`super::TransferSimulation::least_units`] and no more than [`super::TransferSimulation::most_units`].
    pub unit_limit: u32,
    /// Micro-lamports per unit, of `getRecentPrioritizationFees` for the accounts that it writes.
    pub unit_price: u64,
}
