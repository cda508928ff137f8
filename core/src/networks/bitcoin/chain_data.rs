//! What a Bitcoin node is asked, and what it answers.

use serde::{Deserialize, Serialize};

use crate::networks::fee_level::FeeLevel;

/// What a Bitcoin node must be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queries {
    /// The address whose spendable outputs are wanted, P2WPKH in lower case.
    pub from: String,
    /// Outputs, as `txid:vout`, that are wanted whatever the mempool does with them, and with them what
    /// [`ChainData::ancestors`] says. In addition, only what is in a block is wanted.
    pub inputs: Vec<String>,
    /// The level whose fee rate is wanted, and what the `inputs` cost as long as others wait to spend them.
    pub fee_level: Option<FeeLevel>,
}

/// What a Bitcoin node said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainData {
    /// The unspent outputs of the sender's address that a transaction may spend now, in any
    /// order: no coinbase outputs that are not mature, nothing that the mempool spends already.
    /// Their script is that of the address.
    pub outputs: Vec<UnspentOutput>,
    /// The fee rate of the level that was asked for, in satoshi per 1,000 virtual bytes.
    pub fee_rate: Option<u64>,
    /// The transactions that are in no block and have to come into one before the outputs that were named
    /// are there: a block takes them for what all pay together. `None` when there are none.
    pub ancestors: Option<Ancestors>,
    /// The transactions in the mempool whose place the transaction would take, where a level was asked
    /// for; `None` when there are none.
    pub replaced: Option<ReplacedFees>,
    /// Those of the outputs, as `txid:vout`, that the transaction spends whatever else it spends: the orchestrator
    /// says so, where the chain must not take another transaction that spends one of them as well.
    pub required: Vec<String>,
}

/// Transactions that a block must have before another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ancestors {
    /// Their size in virtual bytes.
    pub vsize: u64,
    /// What they pay, in satoshi.
    pub fees: u64,
}

/// What transactions pay that another one is to replace (BIP-125).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplacedFees {
    /// All of them and those that spend their outputs, in satoshi.
    pub fees: u64,
    /// The highest rate of one of them, in satoshi per 1,000 virtual bytes.
    pub rate: u64,
}

/// An unspent output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnspentOutput {
    /// The transaction's id as explorers show it: 64 hex digits.
    pub txid: String,
    /// Which output of the transaction it is, from 0.
    pub vout: u32,
    /// Its amount in satoshi.
    pub value: u64,
}
