//! Searches final blocks again, for addresses and tokens that were unknown at the time. Nothing is announced
//! twice.

use covault_core::{
    audit::AuditChain,
    deposit::{lifecycle::ChainView, transfer::FollowedChain},
    fault::{Class, Fault},
};

use super::{
    beside::SideTask,
    change::{ChainChange, OpenTransfers, may_be_included},
    follower::FollowStep,
    known::StoredProgress,
    progress::{FollowError, FollowProgress},
    routes::Routes,
};
use crate::{
    audit::{AuditActor, AuditNote},
    commands::caller::Caller,
    services::Services,
    store::{
        Batch, CommitError, Precondition,
        deposit_rows::{self, CursorRow, RescanRow, TransferRow},
        rows,
    },
};

/// For how long blocks are not asked for again that nodes did not give, in milliseconds.
const PAUSE_MS: u64 = 30_000;
/// How often an end is tried to be written while the rescan continues.
const TRIES: usize = 8;
/// Most blocks of one call.
const MOST: u64 = 10_000_000;

/// Has the blocks of a chain looked through again by the process that follows it.
///
/// # Errors
/// [`Class::Invalid`] naming the field, [`Class::WrongState`] while another rescan of the chain is in progress.
pub async fn begin(
    services: &Services,
    caller: &Caller,
    chain: FollowedChain,
    (from, to): (u64, u64),
) -> Result<(), Fault> {
    let cursor = services
        .load::<CursorRow>(&deposit_rows::cursor(chain))
        .await?;
    let Some((cursor, _)) = cursor else {
        return Err(Fault::field(
            "chainId",
            "names a chain that is not followed",
        ));
    };
    if from > to || to.saturating_sub(from) >= MOST {
        let problem = format!("must not be above to, nor {MOST} blocks below it");
        return Err(Fault::field("from", problem));
    }
    let newest = cursor.finalized.number;
    if to > newest {
        let problem = format!("must be at most {newest}, the newest final block");
        return Err(Fault::field("to", problem));
    }
    let row = RescanRow {
        next: from,
        last: to,
    };
    let key = deposit_rows::rescan(chain);
    let mut batch = Batch::new();
    batch.put(key.clone(), Precondition::Absent, rows::encode(&row)?);
    let subject = format!("chain:{chain}");
    AuditNote::new(&AuditActor::caller(caller), subject, "RescanBegun")
        .fact("from", from)
        .fact("to", to)
        .add_to(&mut batch, AuditChain::Service, services.now_ms())?;
    match services.store.commit(batch).await {
        Ok(()) => Ok(()),
        Err(CommitError::Conflict(conflict)) if conflict == key => Err(Fault::new(
            Class::WrongState,
            "chainId: another rescan of the chain is in progress; wait for its end",
        )),
        Err(error) => Err(error.into()),
    }
}

/// Ends a rescan where it is.
///
/// # Errors
/// [`Class::WrongState`] when there is none.
pub async fn stop(services: &Services, caller: &Caller, chain: FollowedChain) -> Result<(), Fault> {
    let key = deposit_rows::rescan(chain);
    // The follower writes it after each window.
    for _ in 0..TRIES {
        let Some((row, version)) = services.load::<RescanRow>(&key).await? else {
            return Err(Fault::new(
                Class::WrongState,
                "chainId: no rescan of the chain is in progress",
            ));
        };
        let mut batch = Batch::new();
        batch.delete(key.clone(), Precondition::Version(version));
        let subject = format!("chain:{chain}");
        AuditNote::new(&AuditActor::caller(caller), subject, "RescanStopped")
            .fact("next", row.next)
            .fact("to", row.last)
            .add_to(&mut batch, AuditChain::Service, services.now_ms())?;
        match services.store.commit(batch).await {
            Ok(()) => return Ok(()),
            Err(CommitError::Conflict(conflict)) if conflict == key => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Fault::new(
        Class::Conflict,
        "the rescan is reading blocks; retry",
    ))
}

impl FollowStep<'_> {
    /// Looks through the next blocks of a rescan, when there is one and nothing newer is to be followed. Blocks that the
    /// nodes do not give are asked for again later: the chain is followed as before.
    pub(super) async fn look_at_rescan(
        &self,
        rescans: &mut SideTask,
        known: &mut StoredProgress,
    ) -> Result<FollowProgress, FollowError> {
        let now_ms = self.services.monotonic.elapsed_ms();
        if rescans.is_paused(now_ms) {
            return Ok(FollowProgress::AtHead);
        }
        let what = "failed to continue the rescan; retrying";
        let again_ms = now_ms.saturating_add(PAUSE_MS);
        rescans.settle(self.rescan(known).await, self.chain, what, again_ms)
    }

    async fn rescan(&self, known: &mut StoredProgress) -> Result<FollowProgress, FollowError> {
        let key = deposit_rows::rescan(self.chain);
        let wanted = self.services.load::<RescanRow>(&key).await?;
        let (Some((row, row_version)), Some((version, ring))) = (wanted, &mut known.followed)
        else {
            return Ok(FollowProgress::AtHead);
        };
        // What was configured before it was asked for is looked for, too.
        let routes = Routes::load(self.services, self.chain.network()).await?;
        let this = self.with_routes(&routes);
        let last = row.last.min(ring.finalized().block.number);
        // After a restart further back: these blocks are followed again first.
        if row.next > last {
            return Ok(FollowProgress::AtHead);
        }
        let blocks = this.blocks(row.next, last).await?;
        if blocks.is_empty() {
            let reason = format!("the nodes do not have block {}, which is final", row.next);
            return Err(FollowError::Nodes(reason));
        }
        let follows = blocks
            .iter()
            .zip(blocks.iter().skip(1))
            .all(|(one, next)| next.header.parent == one.header.block.hash);
        if !follows {
            let reason = "the nodes contradict themselves: final blocks do not follow each other";
            return Err(FollowError::Nodes(reason.into()));
        }
        let (mut change, mut found) = (ChainChange::default(), OpenTransfers::new());
        let owners = this.owners(&blocks).await?;
        let was_restarted = self.was_restarted().await?;
        for block in &blocks {
            let transfers = this.transfers(block, &owners).await?;
            let number = block.header.block.number;
            let transfers: Vec<_> = transfers.into_iter().map(|it| (number, it)).collect();
            let reconciled = self.reconciled(&transfers).await?;
            for ((_, transfer), is_reconciled) in transfers.into_iter().zip(reconciled) {
                if is_reconciled {
                    continue;
                }
                let key = deposit_rows::transfer(&transfer);
                let stored = self.services.load::<TransferRow>(&key).await?;
                let stored = stored.map(|(row, _)| row);
                let is_open = known.open.contains_key(&transfer.key());
                let is_told = stored.is_none()
                    && self
                        .may_be_told_otherwise(&transfer, number, was_restarted)
                        .await?;
                if !is_open && !is_told && may_be_included(stored.as_ref()) {
                    change.include(&mut found, transfer, stored, &block.header)?;
                }
            }
        }
        let view = ChainView {
            head: ring.head().block.number,
            finalized: ring.finalized().block.number,
            confirmations: self.confirmations(),
        };
        change.settle(&mut found, &view, usize::MAX)?;
        let cursor = CursorRow {
            head: ring.head().block,
            finalized: ring.finalized().block,
        };
        let expect = Precondition::Version(*version);
        let next = blocks.last().map(|block| block.header.block.number);
        let next = next.map(|number| number.saturating_add(1));
        let next = next.filter(|next| *next <= row.last);
        let progress = |batch: &mut Batch| {
            let expect = Precondition::Version(row_version);
            match next {
                Some(next) => {
                    let row = rows::encode(&RescanRow { next, ..row })?;
                    batch.put(key.clone(), expect, row)
                }
                None => {
                    let subject = format!("chain:{}", self.chain);
                    AuditNote::new(&AuditActor::service(), subject, "RescanEnded")
                        .fact("to", row.last)
                        .add_to(batch, AuditChain::Service, self.services.now_ms())?;
                    batch.delete(key.clone(), expect)
                }
            };
            Ok(())
        };
        change
            .commit(
                (self.services, &routes),
                (self.chain, &cursor),
                expect,
                progress,
            )
            .await?;
        if next.is_none() {
            tracing::info!(chain = %self.chain, last = row.last, "the rescan has ended");
        }
        *version = version.saturating_add(1);
        known.open.append(&mut found);
        Ok(FollowProgress::Behind)
    }
}
