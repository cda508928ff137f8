//! What a Tron node is asked, and what it answers.

use serde::{Deserialize, Serialize};

/// How long after its reference block a transaction can be mined, in milliseconds; the default of
/// nodes and TronWeb.
pub(super) const LIFETIME_MS: u64 = 60_000;

/// What a Tron node must be asked: always its head block, and whether this call goes through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queries {
    /// The call that the transaction makes, to be tried on the node (`triggerconstantcontract`)
    /// before it is built. `None` where no contract is called: nodes take such transactions only
    /// when they can be paid. They take a call unseen, and one that fails costs its energy too.
    /// Nothing that comes of the trial is a fact.
    pub call: Option<TronCall>,
}

/// A call of a contract, which is sent nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TronCall {
    /// The caller, base58check.
    pub from: String,
    /// The contract, base58check.
    pub contract: String,
    /// Call data.
    pub data: Vec<u8>,
    /// The most that it may burn for energy, in sun.
    pub fee_limit: u64,
}

/// What a Tron node said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainData {
    /// The node's head block: reference of the transaction, and start of the 60 seconds in which
    /// it can be mined.
    pub block: Block,
    /// When the transaction says that it was made, in milliseconds since the Unix epoch. That of
    /// the block; a little later where another request pays the same on the same block. Nodes do
    /// not look at it.
    pub timestamp_ms: u64,
}

impl ChainData {
    /// When the transaction that is built from these has expired, in milliseconds since the Unix
    /// epoch: it is not mined on top of a block of this time or later.
    pub fn expires_ms(&self) -> u64 {
        self.block.timestamp_ms.saturating_add(LIFETIME_MS)
    }
}

/// A block of the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// `block_header.raw_data.number`.
    pub number: u64,
    /// `blockID`: the number in 8 bytes, then 24 bytes of the header's hash.
    pub id: [u8; 32],
    /// `block_header.raw_data.timestamp`, in milliseconds since the Unix epoch.
    pub timestamp_ms: u64,
}

impl From<Block> for ChainData {
    fn from(block: Block) -> Self {
        Self {
            timestamp_ms: block.timestamp_ms,
            block,
        }
    }
}
