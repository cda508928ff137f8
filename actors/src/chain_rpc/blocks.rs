//! The blocks of a chain, for deposits.

use std::collections::BTreeSet;

use async_trait::async_trait;
use covault_core::deposit::transfer::{Account, BlockHeader, BlockRef, Candidate, Transfer};

use super::ChainError;

/// A block with all that it may have moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainBlock {
    /// Its place in the chain.
    pub header: BlockHeader,
    /// Of the coin, and of the tokens that were asked for. [`BlockSource::confirm`] tells which of them happened.
    pub candidates: Vec<Candidate>,
}

/// What the nodes of a chain say of its blocks, where as many say the same as have to agree. An answer that
/// contradicts itself is an error: nothing is made up, and nothing is left out.
#[async_trait]
pub trait BlockSource: Send + Sync {
    /// The number of the newest block. One that is behind, or ahead, does no harm.
    ///
    /// # Errors
    /// [`ChainError::Unknown`] when the nodes do not say it now.
    async fn newest(&self) -> Result<u64, ChainError>;

    /// The newest block that cannot be replaced; `None` when the nodes have no word for it.
    ///
    /// # Errors
    /// [`ChainError::Unknown`] when the nodes do not say it now.
    async fn newest_final(&self) -> Result<Option<BlockRef>, ChainError>;

    /// The block with a number, with the transfers of these tokens; `None` when there is none yet.
    ///
    /// # Errors
    /// [`ChainError::Unknown`] when the nodes do not say it now, or what they say cannot be.
    async fn block(
        &self,
        number: u64,
        tokens: &BTreeSet<Account>,
    ) -> Result<Option<ChainBlock>, ChainError>;

    /// The header of a block, by number.
    ///
    /// # Errors
    /// As [`BlockSource::block`]; also when there is none.
    async fn header_at(&self, number: u64) -> Result<BlockHeader, ChainError>;

    /// The header of a block, by its hash.
    ///
    /// # Errors
    /// As [`BlockSource::header_at`].
    async fn header_of(&self, block: &BlockRef) -> Result<BlockHeader, ChainError>;

    /// Those of these transfers of a block that have happened, in their order.
    ///
    /// # Errors
    /// As [`BlockSource::block`].
    async fn confirm(
        &self,
        block: &BlockRef,
        candidates: &[Candidate],
    ) -> Result<Vec<Transfer>, ChainError>;
}
