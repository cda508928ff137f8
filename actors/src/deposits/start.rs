//! The block from which a chain is followed first: before any payment to an announced address is possible.

use std::collections::HashSet;

use covault_core::{
    deposit::{
        DepositNetwork,
        transfer::{BlockHeader, FollowedChain},
    },
    fault::Fault,
};
use parking_lot::Mutex;

use crate::{
    chain_rpc::{BlockSource, ChainError},
    services::Services,
    store::{
        Batch, CommitError, Precondition,
        deposit_rows::{self, ChainStartRow, CursorRow},
        rows,
    },
};

/// How far the clocks of services and of those who make blocks are believed to be apart at most, in milliseconds.
const CLOCKS_APART_MS: u64 = 10 * 60 * 1_000;
/// How far the newest final block may be below the newest one: seven hours of Arbitrum. A node that names one that is
/// older is far behind, or lies.
const MOST_BEHIND: u64 = 100_000;

/// Chains that this process knows to be noted, which is never taken back: those that wallets were made on.
#[derive(Default)]
pub struct NotedChains(Mutex<HashSet<FollowedChain>>);

impl NotedChains {
    /// Notes that payments on the chains of a network are to be told from now on, before anyone is told an address: their
    /// nodes may be away at that moment.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub async fn note_all(
        &self,
        services: &Services,
        network: DepositNetwork,
    ) -> Result<(), Fault> {
        for chain in services.chains.followed() {
            if chain.network() == network && !self.0.lock().contains(&chain) {
                note(services, chain).await?;
                self.0.lock().insert(chain);
            }
        }
        Ok(())
    }
}

/// As [`NotedChains::note_all`], of one chain.
///
/// # Errors
/// As there.
pub async fn note(services: &Services, chain: FollowedChain) -> Result<(), Fault> {
    let key = deposit_rows::chain_start(chain);
    let cursor = deposit_rows::cursor(chain);
    let is_begun = services.load::<CursorRow>(&cursor).await?.is_some();
    if !is_begun && services.store.get(&key).await?.is_none() {
        let row = ChainStartRow {
            since_ms: services.now_ms(),
        };
        let mut batch = Batch::new();
        batch.put(key, Precondition::Absent, rows::encode(&row)?);
        match services.store.commit(batch).await {
            // Another process has done so.
            Ok(()) | Err(CommitError::Conflict(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Since when payments on a chain are to be told, in milliseconds since the Unix epoch.
///
/// # Errors
/// As [`NotedChains::note_all`].
pub async fn since_ms(services: &Services, chain: FollowedChain) -> Result<u64, Fault> {
    note(services, chain).await?;
    let key = deposit_rows::chain_start(chain);
    let row = services.load::<ChainStartRow>(&key).await?;
    let (row, _) = row.ok_or_else(|| Fault::bug("a chain without a start"))?;
    Ok(row.since_ms)
}

/// The first block of a chain that is followed, of those that are final: one from before payments are to be told.
///
/// # Errors
/// [`ChainError::Unknown`] when the nodes do not say it now, or are not believed.
pub async fn first_block(
    source: &dyn BlockSource,
    newest: u64,
    finalized: BlockHeader,
    since_ms: u64,
) -> Result<BlockHeader, ChainError> {
    let behind = newest.saturating_sub(finalized.block.number);
    if behind > MOST_BEHIND {
        return Err(ChainError::Unknown(format!(
            "the nodes report block {} as final, {behind} blocks below the newest: Covault does not start to follow there; \
             check the nodes, or set final_after of the chain",
            finalized.block.number
        )));
    }
    let before_ms = since_ms.saturating_sub(CLOCKS_APART_MS);
    let (mut low, mut high, mut step) = (finalized, finalized, 1_u64);
    while low.timestamp_ms > before_ms && low.block.number > 0 {
        high = low;
        let number = low.block.number.saturating_sub(step);
        low = source.header_at(number).await?;
        step = step.saturating_mul(2);
    }
    // The newest that is old enough: nothing is to be looked through in vain.
    while high.block.number.saturating_sub(low.block.number) > 1 {
        let number = low.block.number.midpoint(high.block.number);
        let middle = source.header_at(number).await?;
        match middle.timestamp_ms > before_ms {
            true => high = middle,
            false => low = middle,
        }
    }
    Ok(low)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::{
        collections::BTreeSet,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use async_trait::async_trait;
    use covault_core::deposit::transfer::{Account, BlockRef, Candidate, Transfer};

    use super::*;
    use crate::chain_rpc::ChainBlock;

    /// A block every three seconds.
    const BLOCK_MS: u64 = 3_000;

    #[derive(Default)]
    struct Headers(AtomicUsize);

    fn header(number: u64) -> BlockHeader {
        BlockHeader {
            block: BlockRef {
                number,
                hash: [0; 32],
            },
            parent: [0; 32],
            timestamp_ms: number * BLOCK_MS,
        }
    }

    #[async_trait]
    impl BlockSource for Headers {
        async fn newest(&self) -> Result<u64, ChainError> {
            unreachable!()
        }

        async fn newest_final(&self) -> Result<Vec<BlockRef>, ChainError> {
            unreachable!()
        }

        async fn block(
            &self,
            _: u64,
            _: &BTreeSet<Account>,
        ) -> Result<Option<ChainBlock>, ChainError> {
            unreachable!()
        }

        async fn header_at(&self, number: u64) -> Result<BlockHeader, ChainError> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Ok(header(number))
        }

        async fn header_of(&self, _: &BlockRef) -> Result<BlockHeader, ChainError> {
            unreachable!()
        }

        async fn confirm(
            &self,
            _: &BlockRef,
            _: &[Candidate],
        ) -> Result<Vec<Transfer>, ChainError> {
            unreachable!()
        }
    }

    #[tokio::test]
    async fn first_block__should_be_older_than_what_is_to_be_told_and_not_much() {
        let newest = 20_000_000;
        for final_block in [newest, newest - 64, 19_950_000] {
            for since in [0, 1, 200, 201, 10_000_000, 19_999_000, newest] {
                let source = Headers::default();
                let since_ms = since * BLOCK_MS;
                let found = first_block(&source, newest, header(final_block), since_ms).await;
                // Ten minutes are two hundred blocks.
                let expected = since.saturating_sub(200).min(final_block);
                assert_eq!(
                    found.unwrap().block.number,
                    expected,
                    "{final_block} {since}"
                );
                let calls = source.0.load(Ordering::SeqCst);
                assert!(calls <= 2 * 25, "{calls}");
            }
        }
    }

    #[tokio::test]
    async fn begin__should_wait_for_a_node_that_is_not_far_behind() {
        let newest = 20_000_000;
        let source = Headers::default();
        for far in [0, newest - MOST_BEHIND - 1] {
            let found = first_block(&source, newest, header(far), 0).await;
            let Err(ChainError::Unknown(reason)) = found else {
                panic!("{found:?}");
            };
            assert!(reason.contains("below the newest"), "{reason}");
        }
        let near = header(newest - MOST_BEHIND);
        let found = first_block(&source, newest, near, u64::MAX).await;
        assert_eq!(found.unwrap(), near);
    }
}
