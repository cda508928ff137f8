//! The store: rows with versions, changed in atomic batches.
//!
//! Everything that must hold together goes into one [`Batch`]: rows, their indexes, pending
//! effects, claims and the idempotency record. When [`Store::commit`] returns, it is on disk.

pub(crate) mod batch_rows;
#[cfg(test)]
mod conformance;
pub(crate) mod deposit_rows;
pub(crate) mod key;
pub mod memory;
pub(crate) mod notification_rows;
pub(crate) mod overview_rows;
pub mod postgres;
pub mod redb;
pub(crate) mod rows;
pub(crate) mod sweep_rows;

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    fmt,
    sync::Arc,
};

use async_trait::async_trait;
use covault_core::{
    audit::{AuditChain, ChainHead, LinkedEntry},
    fault::{Fault, FaultCode},
};

use serde::{Deserialize, Serialize};

pub use self::key::{Key, KeySpace};

/// A row as a backup has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RawRow {
    /// The number of its kind; one of a newer version may be unknown.
    pub space: u8,
    /// Its key within the kind.
    pub key: Vec<u8>,
    /// Its content.
    pub value: Vec<u8>,
}

/// One state of a store, which stays as it is while others write. It costs the store space for what
/// changes while it lasts: drop it soon.
#[async_trait]
pub trait Snapshot: Send + Sync {
    /// Rows after this one (from the first on after `None`), in the order of kind and key, until they
    /// have about so many bytes; one at least. Empty at the end.
    ///
    /// # Errors
    /// [`ReadError`].
    async fn rows(&self, after: Option<&RawRow>, bytes: usize) -> Result<Vec<RawRow>, ReadError>;
}

/// A row as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its version: 1 when it was first written, then one more with every write.
    pub version: u64,
    /// Its content.
    pub value: Vec<u8>,
}

/// Rows by their keys.
pub type RowMap = BTreeMap<Key, Row>;

/// What must be true of a row for a batch to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Anything.
    Any,
    /// There is no such row.
    Absent,
    /// The row exists in this version.
    Version(u64),
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowWrite {
    /// The row.
    pub key: Key,
    /// What must be true of it before the batch.
    pub expect: Precondition,
    /// What happens to it.
    pub change: RowChange,
}

/// What happens to a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowChange {
    /// It is written.
    Put(Vec<u8>),
    /// It is deleted; deleting what is not there does nothing.
    Delete,
    /// Nothing; only its expectation counts.
    Check,
    /// Nothing; its expectation counts as if the row had been read just before: another process may
    /// change it while the batch is being taken.
    CheckOnce,
}

impl RowChange {
    /// Whether the row stays as it is.
    pub fn is_check(&self) -> bool {
        matches!(self, Self::Check | Self::CheckOnce)
    }
}

/// Changes that happen together or not at all. No two of them name one row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    writes: Vec<RowWrite>,
    /// Entries of the audit log, in their order.
    appends: Vec<(AuditChain, Vec<u8>)>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes a row.
    pub fn put(&mut self, key: Key, expect: Precondition, value: Vec<u8>) -> &mut Self {
        self.push(key, expect, RowChange::Put(value))
    }

    /// Deletes a row.
    pub fn delete(&mut self, key: Key, expect: Precondition) -> &mut Self {
        self.push(key, expect, RowChange::Delete)
    }

    /// Demands something of a row without changing it.
    pub fn check(&mut self, key: Key, expect: Precondition) -> &mut Self {
        self.push(key, expect, RowChange::Check)
    }

    /// As [`Batch::check`], for what could as well be read before the batch is made: another process may
    /// change the row while the batch is being taken. That a row is absent costs less to find out so.
    pub fn check_once(&mut self, key: Key, expect: Precondition) -> &mut Self {
        self.push(key, expect, RowChange::CheckOnce)
    }

    /// Adds an entry at the end of a chain of the audit log. The store numbers and links it when it
    /// takes the batch: batches of one chain never conflict for that.
    pub fn append(&mut self, chain: AuditChain, body: Vec<u8>) -> &mut Self {
        self.appends.push((chain, body));
        self
    }

    /// The same batch, which is taken only while a row is in a version. Of several conflicts that of
    /// this row is told.
    pub fn guarded_by(mut self, key: Key, version: u64) -> Self {
        let check = RowWrite {
            key,
            expect: Precondition::Version(version),
            change: RowChange::Check,
        };
        self.writes.insert(0, check);
        self
    }

    /// The changes, without the entries of the audit log.
    pub fn writes(&self) -> &[RowWrite] {
        &self.writes
    }

    /// The entries of the audit log, in their order.
    pub fn appends(&self) -> &[(AuditChain, Vec<u8>)] {
        &self.appends
    }

    /// The chains of the audit log that get entries, in order: a store that locks their heads
    /// ([`KeySpace::AuditHead`]) locks them in this order.
    pub fn chains(&self) -> BTreeSet<AuditChain> {
        self.appends.iter().map(|(chain, _)| *chain).collect()
    }

    /// What the entries of the audit log write, to be called when nobody else can take a batch with
    /// the same chains until this one is taken or given up. `value` looks up what a row holds, with
    /// everything that was taken before. The writes are to be made without looking at versions.
    ///
    /// # Errors
    /// Those of `value`. [`CommitError::Unavailable`] within: a chain is damaged, and nothing may be
    /// added to it; the batch is not taken.
    pub fn links<E>(
        &self,
        mut value: impl FnMut(&Key) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Result<AuditLinks, CommitError>, E> {
        let mut writes = Vec::with_capacity(self.appends.len().saturating_add(1));
        let mut heads: BTreeMap<AuditChain, Option<ChainHead>> = BTreeMap::new();
        for (chain, body) in &self.appends {
            let damaged = |problem: &dyn fmt::Display| damaged(*chain, problem);
            let head = match heads.get(chain) {
                Some(head) => *head,
                None => match value(&rows::audit_head(*chain))? {
                    None => None,
                    Some(bytes) => match rows::decode::<ChainHead>(&bytes) {
                        Ok(head) => Some(head),
                        Err(_) => return Ok(Err(damaged(&"its head cannot be read"))),
                    },
                },
            };
            let next = LinkedEntry::after(head.as_ref(), *chain, body.clone());
            let next = next.and_then(|next| Ok((rows::encode(&next)?, next)));
            let (row, next) = match next {
                Ok(next) => next,
                Err(fault) => return Ok(Err(damaged(&fault))),
            };
            let key = rows::audit_entry(*chain, next.number);
            // What is there must never be written over, whatever the head says.
            if value(&key)?.is_some() {
                let problem = format!("entry {} lies behind its head", next.number);
                return Ok(Err(damaged(&problem)));
            }
            writes.push((key, row));
            heads.insert(*chain, Some(next.head()));
        }
        for (chain, head) in heads
            .into_iter()
            .filter_map(|(chain, head)| Some((chain, head?)))
        {
            match rows::encode(&head) {
                Ok(row) => writes.push((rows::audit_head(chain), row)),
                Err(fault) => return Ok(Err(CommitError::Unavailable(fault.to_string()))),
            }
        }
        Ok(Ok(writes))
    }

    /// Takes the batch on rows in memory, with its entries of the audit log, or changes nothing.
    ///
    /// # Errors
    /// [`CommitError::Conflict`], and those of [`Batch::links`].
    pub(crate) fn apply(&self, rows: &mut BTreeMap<Key, Row>) -> Result<(), CommitError> {
        for write in &self.writes {
            let version = rows.get(&write.key).map(|row| row.version);
            let holds = match write.expect {
                Precondition::Any => true,
                Precondition::Absent => version.is_none(),
                Precondition::Version(expected) => version == Some(expected),
            };
            if !holds {
                return Err(CommitError::Conflict(write.key.clone()));
            }
        }
        let value = |key: &Key| Ok::<_, Infallible>(rows.get(key).map(|row| row.value.clone()));
        let links = match self.links(value) {
            Ok(links) => links?,
            Err(never) => match never {},
        };
        let put = |rows: &mut BTreeMap<Key, Row>, key: Key, value: Vec<u8>| {
            let version = rows
                .get(&key)
                .map_or(1, |row| row.version.saturating_add(1));
            rows.insert(key, Row { version, value });
        };
        for (key, value) in links {
            put(rows, key, value);
        }
        for write in &self.writes {
            match &write.change {
                RowChange::Put(value) => put(rows, write.key.clone(), value.clone()),
                RowChange::Delete => {
                    rows.remove(&write.key);
                }
                RowChange::Check | RowChange::CheckOnce => {}
            }
        }
        Ok(())
    }

    fn push(&mut self, key: Key, expect: Precondition, change: RowChange) -> &mut Self {
        self.writes.push(RowWrite {
            key,
            expect,
            change,
        });
        self
    }
}

/// Why nothing can be added to a chain of the audit log.
fn damaged(chain: AuditChain, problem: &dyn fmt::Display) -> CommitError {
    CommitError::Unavailable(format!("the audit log {chain} is damaged: {problem}"))
}

/// The rows that entries of the audit log are written to, with their values.
pub type AuditLinks = Vec<(Key, Vec<u8>)>;

/// Which rows of a space a scan returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// The kind.
    pub space: KeySpace,
    /// Only keys that start with this.
    pub prefix: Vec<u8>,
    /// Only keys from this one on (included), in the direction of the scan.
    pub from: Option<Vec<u8>>,
    /// From the last key down instead of from the first up.
    pub reverse: bool,
    /// Leaves out so many rows first.
    pub skip: usize,
    /// At most so many rows.
    pub limit: usize,
}

impl Scan {
    /// Every row of a space whose key starts with `prefix`, in order, at most `limit`.
    pub fn prefix(space: KeySpace, prefix: &[u8], limit: usize) -> Self {
        Self {
            space,
            prefix: prefix.to_vec(),
            from: None,
            reverse: false,
            skip: 0,
            limit,
        }
    }

    /// The scan that continues in order behind a page that this one returned; `None` when it was the
    /// last.
    pub fn rest(self, page: &[(Key, Row)]) -> Option<Self> {
        let (key, _) = page.last().filter(|_| page.len() == self.limit)?;
        Some(Self {
            from: Some([key.bytes.as_slice(), &[0]].concat()),
            skip: 0,
            ..self
        })
    }
}

/// Why a batch was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// A row was not as expected. Nothing was changed.
    #[error("row changed: {:?} {}", .0.space, hex::encode(&.0.bytes))]
    Conflict(Key),
    /// This process may not write that: the vault went to another orchestrator. Nothing was changed.
    #[error("the vault belongs to another orchestrator")]
    NotOwner,
    /// The store is not there now. Whether the batch was taken is not known.
    #[error("store unavailable: {0}")]
    Unavailable(String),
}

impl From<CommitError> for Fault {
    fn from(error: CommitError) -> Self {
        if let CommitError::Conflict(key) = &error
            && matches!(key.space, KeySpace::Token | KeySpace::User)
        {
            // A command's commit demands that its token, or the person's account, was not revoked.
            return Fault::unauthenticated().caused_by("the token was revoked during the call");
        }
        let (sentence, code) = match error {
            CommitError::NotOwner => (
                "the vault moved to another orchestrator; retry",
                FaultCode::VaultMoving,
            ),
            CommitError::Conflict(_) | CommitError::Unavailable(_) => (
                "the store cannot be written now",
                FaultCode::StoreUnavailable,
            ),
        };
        Fault::unavailable(sentence)
            .with_code(code)
            .caused_by(error)
    }
}

/// The store could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("store unavailable: {0}")]
pub struct ReadError(pub String);

impl From<ReadError> for Fault {
    fn from(error: ReadError) -> Self {
        Fault::unavailable("the store cannot be read now")
            .with_code(FaultCode::StoreUnavailable)
            .caused_by(error)
    }
}

/// A store. Every one passes `conformance`.
#[async_trait]
pub trait Store: Send + Sync {
    /// Takes a batch, with what [`Batch::links`] gives for its entries of the audit log. When this
    /// returns `Ok`, the batch is on disk and survives a power cut, and every later read sees it.
    ///
    /// # Errors
    /// [`CommitError`]; after a conflict nothing was changed.
    async fn commit(&self, batch: Batch) -> Result<(), CommitError>;

    /// One row.
    ///
    /// # Errors
    /// [`ReadError`].
    async fn get(&self, key: &Key) -> Result<Option<Row>, ReadError>;

    /// Those of several rows that there are: in one question where the store can, as one to another machine takes its
    /// time.
    ///
    /// # Errors
    /// [`ReadError`].
    async fn get_all(&self, keys: &[Key]) -> Result<RowMap, ReadError> {
        let mut found = RowMap::new();
        for key in keys {
            if let Some(row) = self.get(key).await? {
                found.insert(key.clone(), row);
            }
        }
        Ok(found)
    }

    /// Rows in the order of their keys.
    ///
    /// # Errors
    /// [`ReadError`].
    async fn scan(&self, scan: &Scan) -> Result<Vec<(Key, Row)>, ReadError>;

    /// Its present state, with every batch that was taken before this was asked for.
    ///
    /// # Errors
    /// [`ReadError`].
    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>, ReadError> {
        Err(ReadError("this store gives no snapshots".into()))
    }

    /// Whether no other process can have it open: then every vault is this process's at once. A
    /// store that says so and is wrong costs interruptions, and nothing else.
    fn exclusive(&self) -> bool {
        false
    }
}

/// The first key after every key that starts with `prefix`; `None` when there is none.
pub(crate) fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Some(end);
        }
    }
    None
}
