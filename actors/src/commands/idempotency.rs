//! Idempotency keys: the first call's answer is stored with its effect and given again. Records are
//! deleted when their time is over: an index has them by their age, so that only those are looked at
//! whose time has come, however many others there are.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use covault_core::{fault::Fault, ids::TokenId};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::{
    commands::answer::{IdempotencyKey, OperationResponse},
    services::{Services, skip_unreadable},
    store::{
        Batch, CommitError, Key, KeySpace, Precondition, Scan,
        rows::{self, IdempotencyRow},
    },
};

/// How long a key is kept at least, in milliseconds: 24 hours. It counts for as long as its record is there: a clock that jumps
/// must not make a repeated call a second one.
pub const LIFETIME_MS: u64 = 24 * 60 * 60 * 1000;

/// Rows that are read at once; a record may be as large as the body of a request.
const PAGE: usize = 64;

/// Most characters of a key.
const MAX_KEY: usize = 255;

/// The record that a command stores in the commit of its effect.
#[derive(Clone, Debug)]
pub struct IdempotencyRecord {
    key: Key,
    body_hash: [u8; 32],
}

impl IdempotencyRecord {
    /// Adds the record to the batch. `response` is the message that the call answers with.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Bug`] when it cannot be serialized.
    pub fn add_to(&self, batch: &mut Batch, response: &[u8], now_ms: u64) -> Result<(), Fault> {
        let record = IdempotencyRow {
            body_hash: self.body_hash,
            at_ms: now_ms,
            response: response.to_vec(),
        };
        batch.put(
            self.key.clone(),
            Precondition::Absent,
            rows::encode(&record)?,
        );
        add_age(batch, &self.key, now_ms)
    }

    /// Stores the record by itself. Another process that has answered the same key in the meantime is as good.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn store(&self, services: &Services, response: &[u8]) -> Result<(), Fault> {
        let mut batch = Batch::new();
        self.add_to(&mut batch, response, services.now_ms())?;
        commit(services, batch).await
    }
}

/// What a key means for a call.
pub enum KeyStatus {
    /// No other call has used it. The turn is over when the guard is dropped.
    First(IdempotencyRecord, KeyGuard),
    /// Another call got this.
    Replay(OperationResponse),
}

/// The answer that the store has of a key.
async fn recorded(
    services: &Services,
    name: &Key,
    key: &IdempotencyKey,
) -> Result<Option<OperationResponse>, Fault> {
    let found = services.load::<IdempotencyRow>(name).await?;
    Ok(found.map(|(record, _)| OperationResponse {
        response: record.response,
        replayed: true,
        body_mismatch: record.body_hash != key.body_hash,
    }))
}

/// What a key has got by now, after a call with it ended in an error: another process on the same
/// store may have been faster, and a commit that was thought to be lost may be on disk.
///
/// # Errors
/// When the store cannot be read.
pub async fn find_recorded(
    services: &Services,
    token: TokenId,
    method: &str,
    key: &IdempotencyKey,
) -> Result<Option<OperationResponse>, Fault> {
    let name = rows::idempotency(token, method, &key.key);
    recorded(services, &name, key).await
}

/// Keys of calls that are in progress: a second call waits for the first.
#[derive(Default)]
pub struct KeyLocks {
    locks: Arc<Mutex<HashMap<Key, Arc<AsyncMutex<()>>>>>,
}

/// A call's turn with a key.
pub struct KeyGuard {
    key: Key,
    locks: Arc<Mutex<HashMap<Key, Arc<AsyncMutex<()>>>>>,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Drop for KeyGuard {
    fn drop(&mut self) {
        let mut locks = self.locks.lock();
        self.guard = None;
        // A waiting call holds a share of the lock.
        if locks
            .get(&self.key)
            .is_some_and(|turn| Arc::strong_count(turn) == 1)
        {
            locks.remove(&self.key);
        }
    }
}

impl KeyLocks {
    /// Waits until no other call of this process works on a row that is to be made once.
    pub async fn lock(&self, key: &Key) -> KeyGuard {
        let lock = {
            let mut locks = self.locks.lock();
            Arc::clone(locks.entry(key.clone()).or_default())
        };
        KeyGuard {
            key: key.clone(),
            locks: Arc::clone(&self.locks),
            guard: Some(lock.lock_owned().await),
        }
    }

    /// Waits for the turn of a key and looks up whether it was used.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] for an empty or too long key.
    pub async fn enter(
        &self,
        services: &Services,
        token: TokenId,
        method: &str,
        key: &IdempotencyKey,
    ) -> Result<KeyStatus, Fault> {
        let length = key.key.chars().count();
        if length == 0 || length > MAX_KEY {
            return Err(Fault::field(
                "idempotency-key",
                format!("must have 1 to {MAX_KEY} characters"),
            ));
        }
        let name = rows::idempotency(token, method, &key.key);
        let turn = self.lock(&name).await;
        if let Some(earlier) = recorded(services, &name, key).await? {
            return Ok(KeyStatus::Replay(earlier));
        }
        let record = IdempotencyRecord {
            key: name,
            body_hash: key.body_hash,
        };
        Ok(KeyStatus::First(record, turn))
    }
}

/// Adds the row of a record to the index of their ages.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] when it cannot be serialized.
pub fn add_age(batch: &mut Batch, record: &Key, at_ms: u64) -> Result<(), Fault> {
    let key = rows::record_age(at_ms, record);
    batch.put(key, Precondition::Any, rows::encode(&())?);
    Ok(())
}

/// Deletes every record whose time is over. `now_ms` is in milliseconds since the Unix epoch, by a clock that did not jump.
///
/// # Errors
/// When the store cannot be read or written.
pub async fn delete_expired(services: &Services, now_ms: u64) -> Result<(), Fault> {
    let is_over = |at_ms: u64| at_ms.saturating_add(LIFETIME_MS) <= now_ms;
    let mut next = Some(Scan::prefix(KeySpace::RecordAge, &[], PAGE));
    while let Some(scan) = next {
        let page = services.store.scan(&scan).await?;
        let mut batch = Batch::new();
        let mut records = BTreeSet::new();
        let mut all_due = true;
        for (key, row) in &page {
            // One that cannot be read is left alone.
            let Some((at_ms, record)) = rows::record_of_age(key) else {
                continue;
            };
            if !is_over(at_ms) {
                all_due = false;
                break;
            }
            // A key that was used again has a younger record.
            if records.insert(record.clone())
                && let Some(row) = services.store.get(&record).await?
                && let Some(replay) =
                    skip_unreadable(rows::decode::<IdempotencyRow>(&row.value), "a record")?
                && is_over(replay.at_ms)
            {
                batch.delete(record, Precondition::Version(row.version));
            }
            batch.delete(key.clone(), Precondition::Version(row.version));
        }
        commit(services, batch).await?;
        next = scan.rest(&page).filter(|_| all_due);
    }
    Ok(())
}

async fn commit(services: &Services, batch: Batch) -> Result<(), Fault> {
    if batch.writes().is_empty() {
        return Ok(());
    }
    match services.store.commit(batch).await {
        // Another process was faster; of what is deleted the next sweep has the rest.
        Ok(()) | Err(CommitError::Conflict(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
