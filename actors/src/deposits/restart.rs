//! Follows a chain again from a block on: the way out after its nodes have replaced blocks that were final,
//! once a person has found out that the nodes are right.

use covault_core::{
    audit::AuditChain,
    deposit::{ring::HeaderRing, transfer::FollowedChain},
    fault::{Class, Fault},
};

use super::{
    change::ChainChange, follower::FollowStep, known::StoredProgress, progress::FollowError,
};
use crate::{
    audit::{AuditActor, AuditNote},
    commands::caller::Caller,
    services::Services,
    store::{
        Batch, CommitError, Precondition,
        deposit_rows::{self, CursorRow, ReconciliationRow, RestartRow, RoundOfNow},
        rows,
    },
};

/// Most blocks that are followed again by one call: a slip of the pen would have a node read for weeks.
const MOST: u64 = 10_000_000;

/// Has a chain followed again from a block on, which is looked through too, by the process that follows it.
///
/// # Errors
/// [`Class::Invalid`] naming the field, [`Class::Conflict`] when another call changes it at the same time.
pub async fn begin(
    services: &Services,
    caller: &Caller,
    chain: FollowedChain,
    from: u64,
) -> Result<(), Fault> {
    let cursor = deposit_rows::cursor(chain);
    let Some((cursor, _)) = services.load::<CursorRow>(&cursor).await? else {
        return Err(Fault::field(
            "chainId",
            "names a chain that is not followed",
        ));
    };
    let newest = cursor.finalized.number;
    if from > newest {
        let problem = format!(
            "must be at most {newest}, the newest block that was final: no block may be skipped"
        );
        return Err(Fault::field("from", problem));
    }
    if cursor.head.number.saturating_sub(from) >= MOST {
        let problem = format!("must not be {MOST} blocks below the newest one");
        return Err(Fault::field("from", problem));
    }
    let key = deposit_rows::chain_restart(chain);
    // One that waits for nodes that do not have its block is replaced.
    let expect = match services.load::<RestartRow>(&key).await? {
        Some((_, version)) => Precondition::Version(version),
        None => Precondition::Absent,
    };
    let mut batch = Batch::new();
    let row = rows::encode(&RestartRow { from })?;
    batch.put(key.clone(), expect, row);
    let subject = format!("chain:{chain}");
    AuditNote::new(&AuditActor::caller(caller), subject, "DepositsRestarted")
        .fact("from", from)
        .fact("final", newest)
        .fact("head", cursor.head.number)
        .add_to(&mut batch, AuditChain::Service, services.now_ms())?;
    match services.store.commit(batch).await {
        Ok(()) => Ok(()),
        Err(CommitError::Conflict(conflict)) if conflict == key => Err(Fault::new(
            Class::Conflict,
            "the restart of the chain was changed at the same time; read it again",
        )),
        Err(error) => Err(error.into()),
    }
}

impl FollowStep<'_> {
    /// Does what [`begin`] has asked for; whether there was anything.
    pub(super) async fn restart(&self, known: &mut StoredProgress) -> Result<bool, FollowError> {
        let key = deposit_rows::chain_restart(self.chain);
        let wanted = self.services.load::<RestartRow>(&key).await?;
        let (Some((row, row_version)), Some((version, ring))) = (wanted, &known.followed) else {
            return Ok(false);
        };
        // The block before it, so that what the block itself moves is found in whatever chain of blocks it is now.
        let header = self.source.header_at(row.from.saturating_sub(1)).await?;
        let mut change = ChainChange::default();
        for number in ring.finalized().block.number..=ring.head().block.number {
            change.drop_header(number);
        }
        change.add_header(header);
        change.revert(&mut known.open, &header.block)?;
        let cursor = CursorRow {
            head: header.block,
            finalized: header.block,
        };
        // What balances were compared with may be gone: all is added up again.
        let books = deposit_rows::reconciliation(self.chain);
        let (stored, expect_books) = match self.services.load::<ReconciliationRow>(&books).await? {
            Some((row, version)) => (row, Precondition::Version(version)),
            None => (ReconciliationRow::default(), Precondition::Absent),
        };
        let done = |batch: &mut Batch| {
            batch.delete(key.clone(), Precondition::Version(row_version));
            let row = ReconciliationRow {
                restarts: stored.restarts.saturating_add(1),
                next: None,
                // A round that it ends was to find what is due.
                is_wanted: stored.is_wanted || stored.next.is_some(),
                // What is known of balances counts no more, and sweeps go by it.
                of_now: RoundOfNow {
                    is_wanted: true,
                    ..RoundOfNow::default()
                },
                ..stored.clone()
            };
            batch.put(books.clone(), expect_books, rows::encode(&row)?);
            Ok(())
        };
        let expect = Precondition::Version(*version);
        change
            .commit(
                (self.services, self.routes),
                (self.chain, &cursor),
                expect,
                done,
            )
            .await?;
        tracing::warn!(chain = %self.chain, from = row.from, "an operator has restarted following deposits");
        known.followed = Some((version.saturating_add(1), HeaderRing::new(header)));
        Ok(true)
    }
}
