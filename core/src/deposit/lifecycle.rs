//! The life of a transfer, as blocks come and go.
//!
//! ```text
//! (nothing) -> Seen -> Confirmed -> Finalized
//!     Seen -> (nothing)                  (its block was replaced, and nobody was told of it)
//!     Confirmed -> Reverted -> Seen      (its block was replaced; another one may have it again: the next round)
//!     Seen -> Reverted                   (the same once more, before the round was told)
//! ```
//! `Finalized` is the end: no event leads out of it.

use serde::{Deserialize, Serialize};

use super::transfer::{BlockRef, FollowedChain};
use crate::fault::Fault;

/// Where a transfer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransferState {
    /// A block has it, and it was not told yet.
    Seen {
        /// The block.
        block: BlockRef,
        /// How often it was told as confirmed and reverted before.
        round: u32,
    },
    /// Its block is deep enough to be told.
    Confirmed {
        /// The block.
        block: BlockRef,
        /// How often it was told as confirmed and reverted before.
        round: u32,
    },
    /// Its block is final.
    Finalized {
        /// The block.
        block: BlockRef,
        /// How often it was told as confirmed and reverted before.
        round: u32,
    },
    /// It was told as confirmed, and its block was replaced.
    Reverted {
        /// The round that was taken back.
        round: u32,
    },
}

/// What happened to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferEvent {
    /// A block has it.
    Included(BlockRef),
    /// So many blocks are on top of its block as the chain's threshold wants.
    DeepEnough,
    /// Its block is final, and deep enough.
    BlockFinal,
    /// Its block was replaced.
    BlockReplaced,
}

/// Where an event leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferStep {
    /// The next state; `None`: nothing is left of it.
    pub next: Option<TransferState>,
    /// What the owner is told, with the block that it is about and the round.
    pub tell: Option<OwnerNotice>,
}

/// Which news of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// So many blocks have been built on it as the chain's threshold wants.
    Confirmed,
    /// It can no longer be taken back.
    Finalized,
    /// It was told as confirmed, and a reorganisation has taken it back.
    Reverted,
}

impl Stage {
    /// The kind of event of the API, with the version of the body.
    pub fn event(self) -> &'static str {
        match self {
            Stage::Confirmed => "transfer.confirmed.v1",
            Stage::Finalized => "transfer.finalized.v1",
            Stage::Reverted => "transfer.reverted.v1",
        }
    }

    pub(super) fn number(self) -> u8 {
        match self {
            Stage::Confirmed => 1,
            Stage::Finalized => 2,
            Stage::Reverted => 3,
        }
    }
}

/// What the owner is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerNotice {
    /// What.
    pub stage: Stage,
    /// The block that has, or had, the transfer.
    pub block: BlockRef,
    /// How often it was told as confirmed and reverted before.
    pub round: u32,
}

impl OwnerNotice {
    /// What is told of the transfer before this; `None`: nothing.
    pub fn predecessor(&self) -> Option<Self> {
        let (stage, round) = match self.stage {
            Stage::Confirmed => (Stage::Reverted, self.round.checked_sub(1)?),
            Stage::Finalized | Stage::Reverted => (Stage::Confirmed, self.round),
        };
        Some(Self {
            stage,
            round,
            ..*self
        })
    }
}

impl TransferState {
    /// The block that has it; `None` when none has.
    pub fn block(&self) -> Option<BlockRef> {
        match self {
            Self::Seen { block, .. }
            | Self::Confirmed { block, .. }
            | Self::Finalized { block, .. } => Some(*block),
            Self::Reverted { .. } => None,
        }
    }

    /// Whether its owner was told of it in the block that has it.
    pub fn is_told(&self) -> bool {
        matches!(self, Self::Confirmed { .. } | Self::Finalized { .. })
    }

    /// Whether it was told for good.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Finalized { .. })
    }

    /// Whether blocks to come can change it.
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Seen { .. } | Self::Confirmed { .. })
    }
}

/// Where an event leads from a state; `None`: the transfer was not seen before.
///
/// # Errors
/// [`crate::fault::Class::Bug`] when it cannot happen: above all when a block is replaced that was final.
pub fn step(state: Option<TransferState>, event: TransferEvent) -> Result<TransferStep, Fault> {
    use {TransferEvent as Event, TransferState as State};
    let seen = |block, round| TransferStep {
        next: Some(State::Seen { block, round }),
        tell: None,
    };
    let told = |next, stage, block, round| TransferStep {
        next: Some(next),
        tell: Some(OwnerNotice {
            stage,
            block,
            round,
        }),
    };
    Ok(match (state, event) {
        (None, Event::Included(block)) => seen(block, 0),
        (Some(State::Reverted { round }), Event::Included(block)) => {
            seen(block, round.saturating_add(1))
        }
        (Some(State::Seen { block, round }), Event::DeepEnough) => {
            let next = State::Confirmed { block, round };
            told(next, Stage::Confirmed, block, round)
        }
        (Some(State::Confirmed { block, round }), Event::BlockFinal) => {
            let next = State::Finalized { block, round };
            told(next, Stage::Finalized, block, round)
        }
        (Some(State::Seen { round, .. }), Event::BlockReplaced) => TransferStep {
            // What an earlier round has told stays known: a later one must have another number.
            next: round.checked_sub(1).map(|round| State::Reverted { round }),
            tell: None,
        },
        (Some(State::Confirmed { block, round }), Event::BlockReplaced) => {
            told(State::Reverted { round }, Stage::Reverted, block, round)
        }
        (state, event) => {
            let problem = format!("a transfer cannot go on from {state:?} by {event:?}");
            return Err(Fault::bug(problem));
        }
    })
}

/// After how many blocks a transfer is confirmed where configuration does not say, its own included: what merchants of
/// these chains wait for. Of chains that are not known it is that of Ethereum.
pub fn default_confirmations(chain: FollowedChain) -> u64 {
    match chain {
        FollowedChain::Evm(43_114) => 1,
        FollowedChain::Evm(10 | 8_453) => 5,
        FollowedChain::Evm(56) => 15,
        FollowedChain::Evm(42_161) => 20,
        FollowedChain::Evm(137) => 32,
        FollowedChain::Evm(_) => 12,
        FollowedChain::Tron => 19,
    }
}

/// What the chain says now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainView {
    /// The number of the newest block that was followed.
    pub head: u64,
    /// The number of the newest block that cannot be replaced.
    pub finalized: u64,
    /// After so many blocks a transfer is confirmed, its own included; at least 1.
    pub confirmations: u64,
}

impl ChainView {
    /// What happens next to a transfer in this state, which is in a block that was followed; `None`: nothing yet.
    pub fn next(&self, state: &TransferState) -> Option<TransferEvent> {
        let block = state.block()?;
        let depth = self.head.checked_sub(block.number)?.saturating_add(1);
        if depth < self.confirmations {
            return None;
        }
        match state {
            TransferState::Seen { .. } => Some(TransferEvent::DeepEnough),
            TransferState::Confirmed { .. } if block.number <= self.finalized => {
                Some(TransferEvent::BlockFinal)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block(number: u64, fork: u8) -> BlockRef {
        BlockRef {
            number,
            hash: [fork; 32],
        }
    }

    fn states() -> [Option<TransferState>; 6] {
        let block = block(5, 1);
        [
            None,
            Some(TransferState::Seen { block, round: 0 }),
            Some(TransferState::Seen { block, round: 2 }),
            Some(TransferState::Confirmed { block, round: 2 }),
            Some(TransferState::Finalized { block, round: 2 }),
            Some(TransferState::Reverted { round: 2 }),
        ]
    }

    #[test]
    fn step__should_take_exactly_what_can_happen() {
        let events = [
            TransferEvent::Included(block(6, 2)),
            TransferEvent::DeepEnough,
            TransferEvent::BlockFinal,
            TransferEvent::BlockReplaced,
        ];
        let matrix = states().map(|state| {
            events.map(|event| match step(state, event) {
                Err(_) => '-',
                Ok(TransferStep { tell: None, .. }) => 's',
                Ok(TransferStep {
                    tell: Some(tell), ..
                }) => match tell.stage {
                    Stage::Confirmed => 'C',
                    Stage::Finalized => 'F',
                    Stage::Reverted => 'R',
                },
            })
        });
        let expected = [
            // Included, deep enough, final, replaced.
            ['s', '-', '-', '-'],
            ['-', 'C', '-', 's'],
            ['-', 'C', '-', 's'],
            ['-', '-', 'F', 'R'],
            ['-', '-', '-', '-'],
            ['s', '-', '-', '-'],
        ];
        assert_eq!(matrix, expected);
    }

    #[test]
    fn seen__should_leave_nothing_when_nobody_was_told() {
        let replaced = step(states()[1], TransferEvent::BlockReplaced).unwrap();
        assert_eq!(replaced.next, None);
        // A round that was told is remembered.
        let replaced = step(states()[2], TransferEvent::BlockReplaced).unwrap();
        assert_eq!(replaced.next, Some(TransferState::Reverted { round: 1 }));
    }

    #[test]
    fn view__should_want_depth_and_finality() {
        let view = |head, finalized| ChainView {
            head,
            finalized,
            confirmations: 3,
        };
        let seen = TransferState::Seen {
            block: block(5, 1),
            round: 0,
        };
        let confirmed = TransferState::Confirmed {
            block: block(5, 1),
            round: 0,
        };
        assert_eq!(view(6, 6).next(&seen), None);
        assert_eq!(view(7, 0).next(&seen), Some(TransferEvent::DeepEnough));
        assert_eq!(view(9, 4).next(&confirmed), None);
        assert_eq!(view(9, 5).next(&confirmed), Some(TransferEvent::BlockFinal));
        // Final, and not deep enough: both are needed.
        assert_eq!(view(6, 6).next(&confirmed), None);
        // A head that is behind says nothing.
        assert_eq!(view(4, 9).next(&seen), None);
        assert_eq!(view(9, 9).next(&TransferState::Reverted { round: 0 }), None);
    }

    proptest! {
        /// Whatever blocks do: what is told is CONFIRMED, then FINALIZED or REVERTED, round by round.
        #[test]
        fn told__should_be_in_order_for_any_chain(choices in prop::collection::vec(0_u8..4, 0..60)) {
            let (mut state, mut told) = (None, Vec::new());
            for choice in choices {
                let event = match choice {
                    0 => TransferEvent::Included(block(5, 1)),
                    1 => TransferEvent::DeepEnough,
                    2 => TransferEvent::BlockFinal,
                    _ => TransferEvent::BlockReplaced,
                };
                if let Ok(next) = step(state, event) {
                    state = next.next;
                    told.extend(next.tell.map(|tell| (tell.round, tell.stage)));
                }
            }
            for (at, (round, stage)) in told.iter().enumerate() {
                let expected = u32::try_from(at / 2).unwrap();
                prop_assert_eq!(*round, expected);
                let tell = OwnerNotice { stage: *stage, block: block(5, 1), round: *round };
                let before = tell.predecessor().map(|tell| (tell.round, tell.stage));
                prop_assert_eq!(before, at.checked_sub(1).and_then(|at| told.get(at)).copied());
                match (at % 2, stage) {
                    (0, stage) => prop_assert_eq!(*stage, Stage::Confirmed),
                    (_, Stage::Finalized) => prop_assert_eq!(at + 1, told.len()),
                    (_, stage) => prop_assert_eq!(*stage, Stage::Reverted),
                }
            }
        }
    }
}
