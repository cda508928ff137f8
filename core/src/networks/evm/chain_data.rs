//! What an EVM node is asked, and what it answers.

use serde::{Deserialize, Serialize};

use crate::networks::fee_level::FeeLevel;

/// What an EVM node must be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queries {
    /// The chain.
    pub chain_id: u64,
    /// The sender, EIP-55.
    pub from: String,
    /// Whether the next nonce of the sender is wanted (the request brings none).
    pub nonce: bool,
    /// Whether fees and a gas estimate are wanted (the request brings no `gasFee`), and for what.
    pub fees: Option<EvmCall>,
    /// How soon a block should have it, for the fees.
    pub level: FeeLevel,
}

/// The call whose gas is to be estimated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvmCall {
    /// The recipient or contract, EIP-55; `None` creates a contract.
    pub to: Option<String>,
    /// wei, decimal.
    pub value: String,
    /// Call data.
    pub data: Vec<u8>,
}

/// What an EVM node said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainData {
    /// The nonce that was assigned to this transaction, where the request brought none.
    pub nonce: Option<u64>,
    /// Whether the chain's blocks have a base fee (EIP-1559). True unless known otherwise. Where
    /// not, the transaction is a legacy one and `maxPriorityFee` is ignored.
    pub eip1559: bool,
    /// Fees, where the request brought none.
    pub fees: Option<Fees>,
}

/// The network's present fees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fees {
    /// `eth_estimateGas`.
    pub estimate_gas: u64,
    /// Base fee of the latest block, wei; on a chain without one, `eth_gasPrice`.
    pub base_fee: u128,
    /// wei per unit of gas, for the maker of the block: `eth_maxPriorityFeePerGas`, or by the level what blocks
    /// have paid (`eth_feeHistory`); 0 on a chain without a base fee.
    pub max_priority_fee: u128,
}
