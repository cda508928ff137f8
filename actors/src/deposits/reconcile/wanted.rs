//! Balances that are to be compared before their hourly turn.

use covault_core::{
    audit::AuditChain,
    deposit::{DepositNetwork, transfer::FollowedChain},
    fault::{Class, Fault},
};

use crate::{
    audit::{AuditActor, AuditNote},
    commands::caller::Caller,
    services::Services,
    store::{
        Batch, CommitError, Key, Precondition,
        deposit_rows::{self, CursorRow, ReconciliationRow},
        rows,
    },
};

/// How often a commit is tried beside a follower that compares balances.
const TRIES: usize = 8;

/// Has all balances of a chain compared by the process that follows it.
///
/// # Errors
/// [`Class::Invalid`] naming the field, [`Class::Conflict`] when the follower writes at the same time.
pub async fn begin(
    services: &Services,
    caller: &Caller,
    chain: FollowedChain,
) -> Result<(), Fault> {
    let cursor = deposit_rows::cursor(chain);
    if services.load::<CursorRow>(&cursor).await?.is_none() {
        return Err(Fault::field(
            "chainId",
            "names a chain that is not followed",
        ));
    }
    let key = deposit_rows::reconciliation(chain);
    let (row, expect) = stored(services, &key).await?;
    let mut row = row;
    match chain.network() {
        DepositNetwork::Evm => row.is_wanted = true,
        DepositNetwork::Tron => row.of_now.is_wanted = true,
    }
    let mut batch = Batch::new();
    batch.put(key.clone(), expect, rows::encode(&row)?);
    let subject = format!("chain:{chain}");
    AuditNote::new(&AuditActor::caller(caller), subject, "ReconciliationWanted").add_to(
        &mut batch,
        AuditChain::Service,
        services.now_ms(),
    )?;
    match services.store.commit(batch).await {
        Ok(()) => {
            services.listeners.followers.wake(chain);
            Ok(())
        }
        Err(CommitError::Conflict(conflict)) if conflict == key => Err(Fault::new(
            Class::Conflict,
            "balances of the chain are already being compared; retry",
        )),
        Err(error) => Err(error.into()),
    }
}

/// The row of a chain.
///
/// # Errors
/// When the store cannot be read.
pub(super) async fn stored(
    services: &Services,
    key: &Key,
) -> Result<(ReconciliationRow, Precondition), Fault> {
    Ok(match services.load::<ReconciliationRow>(key).await? {
        Some((row, version)) => (row, Precondition::Version(version)),
        None => (ReconciliationRow::default(), Precondition::Absent),
    })
}

/// Commits a change of what is swept. With `wanted`, balances of that chain are compared as soon as they can be, which the
/// same commit says: what is to be swept now is found by its balance, and on TRON by nothing else.
///
/// # Errors
/// [`Class::Conflict`] when another call changes the same, whose words begin with `what`. When the store cannot be read or written.
pub async fn commit(
    services: &Services,
    batch: Batch,
    wanted: Option<FollowedChain>,
    what: &str,
) -> Result<(), Fault> {
    for _ in 0..TRIES {
        let mut all = batch.clone();
        let key = wanted.map(deposit_rows::reconciliation);
        if let Some(key) = &key {
            let (row, expect) = stored(services, key).await?;
            let row = ReconciliationRow {
                is_wanted: true,
                ..row
            };
            all.put(key.clone(), expect, rows::encode(&row)?);
        }
        match services.store.commit(all).await {
            Ok(()) => {
                if let Some(chain) = wanted {
                    services.listeners.followers.wake(chain);
                    services.listeners.sweepers.wake(chain);
                }
                return Ok(());
            }
            // The follower has gone on with a round at the same time.
            Err(CommitError::Conflict(conflict)) if Some(&conflict) == key.as_ref() => {}
            Err(CommitError::Conflict(_)) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let problem = format!("{what} changed by another call at the same time; read it again");
    Err(Fault::new(Class::Conflict, problem))
}
