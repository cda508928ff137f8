//! Idempotency records are deleted when their time is over. An index has them by their age, so that
//! only those are looked at whose time has come, however many others there are.

use std::collections::BTreeSet;

use covault_core::fault::Fault;

use crate::{
    context::{Context, readable},
    idempotency::LIFETIME_MS,
    rows::{self, Replay},
    store::{Batch, CommitError, Expect, Key, Scan, Space},
};

/// When a record is deleted, in milliseconds after it was made. A command that has found it void, and
/// is to write it anew, has ended long before: a record made by another one meanwhile would have the
/// same version again.
pub const KEPT_MS: u64 = LIFETIME_MS + 60 * 60 * 1000;
/// Rows that are read at once; a record may be as large as the body of a request.
const PAGE: usize = 64;

/// Adds the row of a record to the index.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] when it cannot be serialized.
pub fn add_to(batch: &mut Batch, record: &Key, at_ms: u64) -> Result<(), Fault> {
    let key = rows::record_age(at_ms, record);
    batch.put(key, Expect::Any, rows::encode(&())?);
    Ok(())
}

/// Deletes every record whose time is over.
///
/// # Errors
/// When the store cannot be read or written.
pub async fn delete_expired(context: &Context) -> Result<(), Fault> {
    let mut next = Some(Scan::prefix(Space::RecordAge, &[], PAGE));
    while let Some(scan) = next {
        let page = context.store.scan(&scan).await?;
        let mut batch = Batch::new();
        let mut records = BTreeSet::new();
        let mut all_due = true;
        for (key, row) in &page {
            // One that cannot be read is left alone.
            let Some((at_ms, record)) = rows::aged_record(key) else {
                continue;
            };
            if !is_over(context, at_ms) {
                all_due = false;
                break;
            }
            // A key that was used again has a younger record.
            if records.insert(record.clone())
                && let Some(row) = context.store.get(&record).await?
                && let Some(replay) = readable(rows::decode::<Replay>(&row.value), "a record")?
                && is_over(context, replay.at_ms)
            {
                batch.delete(record, Expect::Version(row.version));
            }
            batch.delete(key.clone(), Expect::Version(row.version));
        }
        commit(context, batch).await?;
        next = scan.rest(&page).filter(|_| all_due);
    }
    Ok(())
}

fn is_over(context: &Context, at_ms: u64) -> bool {
    at_ms.saturating_add(KEPT_MS) <= context.now_ms()
}

async fn commit(context: &Context, batch: Batch) -> Result<(), Fault> {
    if batch.writes().is_empty() {
        return Ok(());
    }
    match context.store.commit(batch).await {
        // Somebody uses one of the keys again just now; the next sweep has the rest.
        Ok(()) | Err(CommitError::Conflict(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
