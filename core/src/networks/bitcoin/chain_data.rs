//! What a Bitcoin node is asked, and what it answers.

use serde::{Deserialize, Serialize};

/// What a Bitcoin node must be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queries {
    /// The address whose spendable outputs are wanted, P2WPKH in lower case.
    pub from: String,
}

/// What a Bitcoin node said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainData {
    /// The unspent outputs of the sender's address that a transaction may spend now, in any
    /// order: no coinbase outputs that are not mature, nothing that the mempool spends already.
    /// Their script is that of the address.
    pub outputs: Vec<UnspentOutput>,
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
