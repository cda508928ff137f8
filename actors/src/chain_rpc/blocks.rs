//! The blocks of a chain, for deposits.

use std::collections::BTreeSet;

use async_trait::async_trait;
use covault_core::{
    deposit::transfer::{Account, BlockHeader, BlockRef, Candidate, Transfer},
    fault::ExecuteCode,
};

use super::ChainError;

/// A block with all that it may have moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainBlock {
    /// Its place in the chain.
    pub header: BlockHeader,
    /// Of the coin, and of the tokens that were asked for. [`BlockSource::confirm`] tells which of them happened.
    pub candidates: Vec<Candidate>,
}

/// Balances as of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockBalances {
    /// Its number.
    pub block: u64,
    /// In the order of the questions, in the smallest unit, big-endian; `None` where a token gives none.
    pub balances: Vec<Option<[u8; 32]>>,
}

/// What an account has now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalanceNow {
    /// The newest block of the node that has said so, as the same answer names it.
    pub block: u64,
    /// In the smallest unit, big-endian.
    pub balance: [u8; 32],
}

/// Whether two nodes say the same of now, each with its newest block: they need not be at the same one.
pub fn same_now<T: PartialEq>((at, one): &(u64, T), (there, other): &(u64, T)) -> bool {
    at.abs_diff(*there) <= APART && one == other
}

/// How far the newest blocks of nodes that are well may be apart. Where they are further, all nodes are asked.
pub const APART: u64 = 2;

/// Of the final blocks that nodes name, those for which so many have to agree: as many name it or a newer one. The newest
/// first.
pub fn final_blocks(mut named: Vec<BlockRef>, agree: usize) -> Vec<BlockRef> {
    named.sort_by_key(|block| std::cmp::Reverse(block.number));
    named.split_off(agree.saturating_sub(1).min(named.len()))
}

/// The newest block that so many of these nodes have; `None` when fewer have said anything.
pub fn newest_of(mut numbers: Vec<u64>, agree: usize) -> Option<u64> {
    numbers.sort_unstable_by_key(|number| std::cmp::Reverse(*number));
    numbers.get(agree.saturating_sub(1)).copied()
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

    /// Blocks that cannot be replaced by the word of as many nodes as have to agree, the newest first: one of them may be
    /// a lie, which is then on no chain that was followed. None when the nodes have no word for it.
    ///
    /// # Errors
    /// [`ChainError::Unknown`] when the nodes do not say it now.
    async fn newest_final(&self) -> Result<Vec<BlockRef>, ChainError>;

    /// Bytes of the longest answer since this was last asked.
    fn take_longest(&self) -> usize {
        0
    }

    /// How the nodes tell what contracts pass on: the name of the method, or `none`; `unknown` before they were asked.
    fn traces(&self) -> &'static str {
        "unknown"
    }

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

    /// Whether nodes say what accounts had after a block ([`BlockSource::balances`]).
    fn has_balances(&self) -> bool {
        false
    }

    /// What accounts have of a token, or of the coin (`None`), after a final block.
    ///
    /// # Errors
    /// [`ChainError::Refused`] when the nodes no longer have it, or never had it; else as [`BlockSource::block`].
    async fn balances(
        &self,
        _block: u64,
        _of: &[(Account, Option<Account>)],
    ) -> Result<BlockBalances, ChainError> {
        let reason = "nodes of this network do not report balances at an earlier block";
        Err(ChainError::refused(reason, ExecuteCode::Unspecified))
    }

    /// What accounts have now, in the order of the questions; `None` where a token gives none, or nodes do not say it soon.
    ///
    /// # Errors
    /// As [`BlockSource::block`], when the nodes say nothing of any.
    async fn balances_now(
        &self,
        _of: &[(Account, Option<Account>)],
    ) -> Result<Vec<Option<BalanceNow>>, ChainError> {
        let reason = "nodes of this network are asked for balances after a block";
        Err(ChainError::refused(reason, ExecuteCode::Unspecified))
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn newest_and_final__should_be_what_enough_nodes_have() {
        assert_eq!(newest_of(vec![7, 9, 8], 2), Some(8));
        assert_eq!(newest_of(vec![0, 9, u64::MAX], 2), Some(9));
        assert_eq!(newest_of(vec![9], 1), Some(9));
        assert_eq!(newest_of(vec![9], 2), None);
        let block = |number: u64| BlockRef {
            number,
            hash: [0; 32],
        };
        let of = |numbers: &[u64], agree| {
            let named = numbers.iter().map(|number| block(*number));
            let found = final_blocks(named.collect(), agree).into_iter();
            found.map(|block| block.number).collect::<Vec<_>>()
        };
        // One is stuck, one is ahead of all others.
        assert_eq!(of(&[5, 0, 6], 2), [5, 0]);
        assert_eq!(of(&[5, u64::MAX, 6], 2), [6, 5]);
        assert_eq!(of(&[5], 1), [5]);
        assert!(of(&[5], 2).is_empty());
    }
}
