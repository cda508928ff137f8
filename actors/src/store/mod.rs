//! The store: rows with versions, changed in atomic batches.
//!
//! Everything that must hold together goes into one [`Batch`]: rows, their indexes, pending
//! effects, claims and the idempotency record. When [`Store::commit`] returns, it is on disk.

#[cfg(test)]
mod conformance;
pub mod memory;
pub mod postgres;
pub mod redb;

use async_trait::async_trait;
use covault_core::fault::Fault;

/// A kind of row. The numbers are on disk: never change one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Space {
    /// Vault id -> vault.
    Vault = 1,
    /// Vault name -> vault id.
    VaultName = 2,
    /// Wallet id -> wallet.
    Wallet = 3,
    /// Address -> wallet id.
    WalletAddress = 4,
    /// Reference -> wallet id.
    WalletRef = 5,
    /// Vault id, index -> wallet id: the order of creation.
    WalletIndex = 6,
    /// Request id -> signing request.
    Request = 7,
    /// Vault id, request id -> effect that is to be run (at least once).
    Outbox = 8,
    /// Token, operation, key -> what the first call got.
    Idempotency = 9,
    /// Network, chain id (0 without one), address, nonce -> request id.
    NonceClaim = 10,
    /// Request id, version -> what happened.
    Audit = 11,
    /// Written by readiness checks.
    Probe = 12,
    /// Network, chain id, address, output or object or hash of a transaction -> request id.
    Claim = 13,
    /// Time, request id -> claims that the request lets go of then.
    Release = 14,
    /// Request id -> what its transaction would do.
    Simulation = 15,
    /// Vault id, time of creation, request id -> nothing: a vault's requests in the order of their
    /// creation. The row without a key says that no request of an earlier version is missing.
    RequestIndex = 16,
    /// Batch id -> batch payment.
    Batch = 17,
    /// Token id -> API token, without the token itself.
    Token = 18,
    /// Token id, network -> where a sweep token's deposits and events go.
    SweepRoute = 19,
    /// Node id -> node that an operator has admitted.
    Node = 20,
    /// Name -> id of the token that has it; not those that are revoked.
    TokenName = 21,
    /// Token id, network, reference -> deposit wallet.
    Deposit = 22,
    /// Token id, network, address -> watch.
    Watch = 23,
    /// Time of creation, key of an idempotency record -> nothing: the records in the order of their
    /// age. The row without a key says that no record of an earlier version is missing.
    RecordAge = 24,
}

/// The name of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its kind.
    pub space: Space,
    /// Its key within the kind. Rows are ordered by it.
    pub bytes: Vec<u8>,
}

impl Key {
    /// A key from its parts, one after the other.
    pub fn new(space: Space, parts: &[&[u8]]) -> Self {
        Self {
            space,
            bytes: parts.concat(),
        }
    }
}

/// A row as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its version: 1 when it was first written, then one more with every write.
    pub version: u64,
    /// Its content.
    pub value: Vec<u8>,
}

/// What must be true of a row for a batch to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Anything.
    Any,
    /// There is no such row.
    Absent,
    /// The row is there in this version.
    Version(u64),
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The row.
    pub key: Key,
    /// What must be true of it before the batch.
    pub expect: Expect,
    /// What happens to it.
    pub change: Change,
}

/// What happens to a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is written.
    Put(Vec<u8>),
    /// It is deleted; deleting what is not there does nothing.
    Delete,
    /// Nothing; only its expectation counts.
    Check,
}

/// Changes that happen together or not at all. No two of them name one row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    writes: Vec<Write>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes a row.
    pub fn put(&mut self, key: Key, expect: Expect, value: Vec<u8>) -> &mut Self {
        self.push(key, expect, Change::Put(value))
    }

    /// Deletes a row.
    pub fn delete(&mut self, key: Key, expect: Expect) -> &mut Self {
        self.push(key, expect, Change::Delete)
    }

    /// Demands something of a row without changing it.
    pub fn check(&mut self, key: Key, expect: Expect) -> &mut Self {
        self.push(key, expect, Change::Check)
    }

    /// The changes.
    pub fn writes(&self) -> &[Write] {
        &self.writes
    }

    fn push(&mut self, key: Key, expect: Expect, change: Change) -> &mut Self {
        self.writes.push(Write {
            key,
            expect,
            change,
        });
        self
    }
}

/// Which rows of a space a scan returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// The kind.
    pub space: Space,
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
    pub fn prefix(space: Space, prefix: &[u8], limit: usize) -> Self {
        Self {
            space,
            prefix: prefix.to_vec(),
            from: None,
            reverse: false,
            skip: 0,
            limit,
        }
    }
}

/// Why a batch was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// A row was not as expected. Nothing was changed.
    #[error("row changed: {:?} {}", .0.space, hex::encode(&.0.bytes))]
    Conflict(Key),
    /// The store is not there now. Whether the batch was taken is not known.
    #[error("store unavailable: {0}")]
    Unavailable(String),
}

impl From<CommitError> for Fault {
    fn from(error: CommitError) -> Self {
        if let CommitError::Conflict(key) = &error
            && key.space == Space::Token
        {
            // A command's commit demands that its token was not revoked.
            return Fault::unauthenticated().caused_by("the token was revoked meanwhile");
        }
        Fault::unavailable("the store cannot be written now").caused_by(error)
    }
}

/// The store could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("store unavailable: {0}")]
pub struct ReadError(pub String);

impl From<ReadError> for Fault {
    fn from(error: ReadError) -> Self {
        Fault::unavailable("the store cannot be read now").caused_by(error)
    }
}

/// A store. Every one passes `conformance`.
#[async_trait]
pub trait Store: Send + Sync {
    /// Takes a batch. When this returns `Ok`, the batch is on disk and survives a power cut,
    /// and every later read sees it.
    ///
    /// # Errors
    /// [`CommitError`]; after a conflict nothing was changed.
    async fn commit(&self, batch: Batch) -> Result<(), CommitError>;

    /// One row.
    ///
    /// # Errors
    /// [`ReadError`].
    async fn get(&self, key: &Key) -> Result<Option<Row>, ReadError>;

    /// Rows in the order of their keys.
    ///
    /// # Errors
    /// [`ReadError`].
    async fn scan(&self, scan: &Scan) -> Result<Vec<(Key, Row)>, ReadError>;
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
