//! The blocks of a chain from its newest final one to the newest that was followed. Whether a block follows them is
//! decided by its parent's hash alone.

use std::collections::VecDeque;

use super::transfer::{BlockHeader, BlockRef};
use crate::fault::Fault;

/// How a block stands to those that were followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Succession {
    /// It comes next.
    Follows,
    /// It has another parent: blocks were replaced.
    Forks,
}

/// Where a chain that has forked is to be looked at next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkSearch {
    /// This block is in both.
    Ancestor(BlockRef),
    /// The header of this block has to be asked for.
    Ask(BlockRef),
    /// The fork is below a block that was final: nothing more can be said.
    BelowFinal,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderRing {
    finalized: BlockHeader,
    /// Those after it, without a gap.
    open: VecDeque<BlockHeader>,
}

impl HeaderRing {
    /// Begins with a final block.
    pub fn new(finalized: BlockHeader) -> Self {
        Self {
            finalized,
            open: VecDeque::new(),
        }
    }

    /// The newest block.
    pub fn head(&self) -> &BlockHeader {
        self.open.back().unwrap_or(&self.finalized)
    }

    /// The newest final block.
    pub fn finalized(&self) -> &BlockHeader {
        &self.finalized
    }

    /// How a block stands to the newest one.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when it is not the next by its number.
    pub fn succession(&self, header: &BlockHeader) -> Result<Succession, Fault> {
        let head = self.head();
        if header.block.number.checked_sub(1) != Some(head.block.number) {
            return Err(Fault::bug("a block that is not the next"));
        }
        Ok(match header.parent == head.block.hash {
            true => Succession::Follows,
            false => Succession::Forks,
        })
    }

    /// Adds the next block.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when it does not follow.
    pub fn push(&mut self, header: BlockHeader) -> Result<(), Fault> {
        match self.succession(&header)? {
            Succession::Follows => self.open.push_back(header),
            Succession::Forks => return Err(Fault::bug("a block with another parent")),
        }
        Ok(())
    }

    /// The block with a number, where it is here.
    pub fn get(&self, number: u64) -> Option<&BlockHeader> {
        match number.checked_sub(self.finalized.block.number)? {
            0 => Some(&self.finalized),
            offset => self.open.get(usize::try_from(offset).ok()?.checked_sub(1)?),
        }
    }

    /// Whether a block is one of them.
    pub fn has(&self, block: &BlockRef) -> bool {
        self.get(block.number)
            .is_some_and(|header| header.block == *block)
    }

    /// Where the chain continues below a block that is not one of them.
    pub fn search(&self, header: &BlockHeader) -> ForkSearch {
        let Some(number) = header.block.number.checked_sub(1) else {
            return ForkSearch::BelowFinal;
        };
        let parent = BlockRef {
            number,
            hash: header.parent,
        };
        if self.has(&parent) {
            ForkSearch::Ancestor(parent)
        } else if number <= self.finalized.block.number {
            ForkSearch::BelowFinal
        } else {
            ForkSearch::Ask(parent)
        }
    }

    /// Takes off what comes after a block, the newest first.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when the block is not one of them.
    pub fn cut(&mut self, ancestor: &BlockRef) -> Result<Vec<BlockHeader>, Fault> {
        if !self.has(ancestor) {
            return Err(Fault::bug("a fork at a block that was not followed"));
        }
        let mut replaced = Vec::new();
        while self.head().block.number > ancestor.number {
            replaced.extend(self.open.pop_back());
        }
        Ok(replaced)
    }

    /// Takes off what is before a block that is final now; nothing, unless it is one of them.
    pub fn finalize(&mut self, block: &BlockRef) -> Vec<BlockHeader> {
        let mut before = Vec::new();
        if !self.has(block) {
            return before;
        }
        while self.finalized.block.number < block.number {
            let Some(next) = self.open.pop_front() else {
                break;
            };
            before.push(std::mem::replace(&mut self.finalized, next));
        }
        before
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(number: u64, fork: u8, parent: u8) -> BlockHeader {
        let hash = |number: u64, fork: u8| {
            let mut hash = [fork; 32];
            hash[..8].copy_from_slice(&number.to_be_bytes());
            hash
        };
        BlockHeader {
            block: BlockRef {
                number,
                hash: hash(number, fork),
            },
            parent: hash(number - 1, parent),
            timestamp_ms: number,
        }
    }

    fn ring(to: u64) -> HeaderRing {
        let mut ring = HeaderRing::new(header(10, 0, 0));
        for number in 11..=to {
            ring.push(header(number, 0, 0)).unwrap();
        }
        ring
    }

    #[test]
    fn next__should_be_decided_by_the_hash_of_the_parent() {
        let mut ring = ring(12);
        assert_eq!(
            ring.succession(&header(13, 0, 0)).unwrap(),
            Succession::Follows
        );
        let fork = header(13, 1, 1);
        assert_eq!(ring.succession(&fork).unwrap(), Succession::Forks);
        assert!(ring.push(fork).is_err());
        for number in [11, 12, 14] {
            assert!(ring.succession(&header(number, 0, 0)).is_err(), "{number}");
        }
        assert_eq!(ring.head(), &header(12, 0, 0));
    }

    #[test]
    fn search__should_go_down_to_the_ancestor_and_never_below_what_is_final() {
        let ring = ring(14);
        // 15 and 14 are new, 13 is in both.
        let fork = header(15, 1, 1);
        let asked = header(14, 1, 0);
        assert_eq!(ring.search(&fork), ForkSearch::Ask(asked.block));
        assert_eq!(
            ring.search(&asked),
            ForkSearch::Ancestor(header(13, 0, 0).block)
        );
        // Down to the final block it is still an ancestor, below nothing is.
        assert_eq!(
            ring.search(&header(11, 1, 0)),
            ForkSearch::Ancestor(header(10, 0, 0).block)
        );
        assert_eq!(ring.search(&header(11, 1, 1)), ForkSearch::BelowFinal);
        assert_eq!(ring.search(&header(3, 1, 1)), ForkSearch::BelowFinal);
    }

    #[test]
    fn cut_and_finalize__should_take_off_both_ends_and_nothing_unknown() {
        let mut ring = ring(14);
        let cut = ring.cut(&header(12, 0, 0).block).unwrap();
        assert_eq!(cut, [header(14, 0, 0), header(13, 0, 0)]);
        assert!(ring.cut(&header(12, 1, 0).block).is_err());
        // A node that calls another block final says nothing about this chain.
        assert_eq!(ring.finalize(&header(11, 1, 0).block), []);
        assert_eq!(ring.finalize(&header(13, 0, 0).block), []);
        assert_eq!(
            ring.finalize(&header(12, 0, 0).block),
            [header(10, 0, 0), header(11, 0, 0)]
        );
        assert_eq!(
            (ring.finalized(), ring.head()),
            (&header(12, 0, 0), &header(12, 0, 0))
        );
        assert_eq!(ring.finalize(&header(11, 0, 0).block), []);
    }

    proptest! {
        #[test]
        fn ring__should_never_have_a_gap(acts in prop::collection::vec((0_u8..3, 0_u64..30, 0_u8..2), 0..80)) {
            let mut ring = ring(10);
            for (act, number, fork) in acts {
                let before = ring.finalized().block.number;
                match act {
                    0 => {
                        let head = ring.head().block;
                        let next = BlockHeader {
                            block: header(head.number + 1, fork, 0).block,
                            parent: head.hash,
                            timestamp_ms: 0,
                        };
                        ring.push(next).unwrap();
                    }
                    1 => {
                        let _ = ring.cut(&header(number.max(1), fork, 0).block);
                    }
                    _ => {
                        ring.finalize(&header(number.max(1), fork, 0).block);
                    }
                }
                prop_assert!(ring.finalized().block.number >= before);
                let numbers = ring.finalized().block.number..=ring.head().block.number;
                for number in numbers.skip(1) {
                    let (one, parent) = (ring.get(number).unwrap(), ring.get(number - 1).unwrap());
                    prop_assert_eq!(one.parent, parent.block.hash);
                }
            }
        }
    }
}
