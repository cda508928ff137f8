//! Backups of the store: one state of all its rows, as a file, and that file back into a store that
//! is empty.
//!
//! ```text
//! "covault store backup 1\n"
//! records, each as its length (4 bytes, little-endian) and the BCS of a Record:
//!     Begin, Rows..., End
//! SHA-256 of all bytes before
//! ```
//! Rows come in the order of kind and key. What a store must not do again after it was restored is
//! seen to at its first start (`restored.rs`).

pub(crate) mod live;
pub(crate) mod restore;

use std::{io, sync::Arc};

use covault_core::{
    audit::{ChainHead, ChainReport, KnownHeads, LogChecker},
    fault::{Class, Fault},
    request::SigningRequest,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{
    backup::restore::{RestoreState, RestoreTimes},
    store::{
        Batch, CommitError, Key, KeySpace, Precondition, RawRow, Row, Scan, Snapshot, Store, rows,
    },
};

const MAGIC: &[u8] = b"covault store backup 1\n";
/// Most bytes of a record: a row is at most some megabytes.
const MAX_RECORD: usize = 64 << 20;
/// Bytes of rows that are read at once.
const PAGE: usize = 1 << 20;
/// Most rows of one commit of a restore.
const MAX_ROWS_PER_COMMIT: usize = 500;
const DAMAGED: &str = "the backup is damaged, or is not a backup of a Covault store";

/// Rows with their values.
pub type BackupRows = Vec<(Key, Vec<u8>)>;

/// What a backup says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupHeader {
    /// When it was created, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The version of Covault that made it.
    pub version: String,
}

#[derive(Serialize, Deserialize)]
enum BackupRecord {
    Header(BackupHeader),
    Rows(Vec<RawRow>),
    End { rows: u64 },
}

fn damaged(cause: impl std::fmt::Display) -> Fault {
    Fault::new(Class::Invalid, format!("{DAMAGED}: {cause}"))
}

/// Writes a backup.
pub struct BackupWriter<W> {
    to: W,
    hash: Sha256,
    rows: u64,
}

impl<W: io::Write> BackupWriter<W> {
    /// Begins.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn start(to: W, begin: BackupHeader) -> io::Result<Self> {
        let mut writer = Self {
            to,
            hash: Sha256::new(),
            rows: 0,
        };
        writer.bytes(MAGIC)?;
        writer.record(&BackupRecord::Header(begin))?;
        Ok(writer)
    }

    /// The next rows.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn rows(&mut self, rows: Vec<RawRow>) -> io::Result<()> {
        let count = u64::try_from(rows.len()).map_err(io::Error::other)?;
        self.rows = self.rows.saturating_add(count);
        self.record(&BackupRecord::Rows(rows))
    }

    /// Ends it, and gives back what was written to.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn end(mut self) -> io::Result<W> {
        let rows = self.rows;
        self.record(&BackupRecord::End { rows })?;
        let sum = self.hash.clone().finalize();
        self.to.write_all(&sum)?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn record(&mut self, record: &BackupRecord) -> io::Result<()> {
        let bytes = bcs::to_bytes(record).map_err(io::Error::other)?;
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        self.bytes(&length.to_le_bytes())?;
        self.bytes(&bytes)
    }

    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.to.write_all(bytes)
    }
}

/// Reads a backup, and checks its form. What it gave is good only once it has come to its end.
pub struct BackupReader<R> {
    from: R,
    hash: Sha256,
    begin: BackupHeader,
    rows: u64,
    last: Option<(u8, Vec<u8>)>,
    ended: bool,
}

impl<R: io::Read> BackupReader<R> {
    /// Begins.
    ///
    /// # Errors
    /// [`Class::Invalid`] when it is no backup.
    pub fn start(mut from: R) -> Result<Self, Fault> {
        let mut hash = Sha256::new();
        let mut magic = [0; MAGIC.len()];
        from.read_exact(&mut magic).map_err(damaged)?;
        if magic != MAGIC {
            return Err(damaged("it does not start with the magic bytes"));
        }
        hash.update(magic);
        let mut reader = Self {
            from,
            hash,
            begin: BackupHeader {
                at_ms: 0,
                version: String::new(),
            },
            rows: 0,
            last: None,
            ended: false,
        };
        match reader.record()? {
            BackupRecord::Header(begin) => reader.begin = begin,
            BackupRecord::Rows(_) | BackupRecord::End { .. } => {
                return Err(damaged("the header is missing"));
            }
        }
        Ok(reader)
    }

    /// What it says of itself.
    pub fn begin(&self) -> &BackupHeader {
        &self.begin
    }

    /// The next rows; `None` at the end, when all of it was right.
    ///
    /// # Errors
    /// [`Class::Invalid`] when it is damaged, or of a newer version of Covault.
    pub fn page(&mut self) -> Result<Option<BackupRows>, Fault> {
        if self.ended {
            return Ok(None);
        }
        match self.record()? {
            BackupRecord::Header(_) => Err(damaged("it has a second header")),
            BackupRecord::Rows(rows) => {
                let rows = rows.into_iter().map(|row| self.row(row));
                rows.collect::<Result<_, _>>().map(Some)
            }
            BackupRecord::End { rows } => {
                if rows != self.rows {
                    return Err(damaged("rows are missing"));
                }
                let is = self.hash.clone().finalize();
                let mut says = [0; 32];
                self.from.read_exact(&mut says).map_err(damaged)?;
                if says != *is {
                    return Err(damaged("its checksum does not match"));
                }
                if self.from.read(&mut [0]).map_err(damaged)? != 0 {
                    return Err(damaged("data follows its end"));
                }
                self.ended = true;
                Ok(None)
            }
        }
    }

    fn row(&mut self, row: RawRow) -> Result<(Key, Vec<u8>), Fault> {
        let RawRow { space, key, value } = row;
        let place = (space, key);
        if self.last.as_ref().is_some_and(|last| *last >= place) {
            return Err(damaged("rows are out of order"));
        }
        let (byte, bytes) = &place;
        let space = KeySpace::of(*byte).ok_or_else(|| {
            let sentence = format!(
                "the backup is from Covault {}, and has rows that this version does not know: use that version",
                self.begin.version
            );
            Fault::new(Class::Invalid, sentence)
        })?;
        let key = Key {
            space,
            bytes: bytes.clone(),
        };
        self.rows = self.rows.saturating_add(1);
        self.last = Some(place);
        Ok((key, value))
    }

    fn record(&mut self) -> Result<BackupRecord, Fault> {
        let mut length = [0; 4];
        self.from.read_exact(&mut length).map_err(damaged)?;
        self.hash.update(length);
        let length = usize::try_from(u32::from_le_bytes(length)).map_err(damaged)?;
        if length > MAX_RECORD {
            return Err(damaged("a record is too long"));
        }
        // Read in pieces: a length that lies must not take memory.
        let mut bytes = Vec::new();
        let limit = u64::try_from(length).map_err(damaged)?;
        let read = io::Read::read_to_end(&mut io::Read::take(&mut self.from, limit), &mut bytes);
        if read.map_err(damaged)? != length {
            return Err(damaged("it is truncated"));
        }
        self.hash.update(&bytes);
        bcs::from_bytes(&bytes).map_err(damaged)
    }
}

/// Takes the state of a store as it is now; the caller reads it in parts.
///
/// # Errors
/// When the store cannot be read.
pub async fn snapshot(store: &dyn Store) -> Result<Arc<dyn Snapshot>, Fault> {
    Ok(store.snapshot().await?)
}

/// The next rows of a snapshot; empty at the end.
///
/// # Errors
/// When the store cannot be read.
pub async fn page(snapshot: &dyn Snapshot, after: Option<&RawRow>) -> Result<Vec<RawRow>, Fault> {
    Ok(snapshot.rows(after, PAGE).await?)
}

/// What is in a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupContents {
    /// What it says of itself.
    pub begin: BackupHeader,
    /// Rows of all kinds.
    pub rows: u64,
    /// Vaults.
    pub vaults: u64,
    /// Wallets.
    pub wallets: u64,
    /// Signing requests.
    pub requests: u64,
    /// Those of them that were not over.
    pub live: u64,
    /// Its audit log, chain by chain.
    pub audit: Vec<ChainReport>,
}

/// Reads all of a backup and checks it: its form, its sum, and the chains of the audit log in it.
///
/// # Errors
/// [`Class::Invalid`] when it is damaged. That its audit log is not whole is no error.
pub fn check<R: io::Read>(from: R, expected: KnownHeads) -> Result<BackupContents, Fault> {
    let mut reader = BackupReader::start(from)?;
    let mut audit = LogChecker::new(expected);
    let mut contents = BackupContents {
        begin: reader.begin().clone(),
        rows: 0,
        vaults: 0,
        wallets: 0,
        requests: 0,
        live: 0,
        audit: Vec::new(),
    };
    while let Some(page) = reader.page()? {
        for (key, value) in page {
            contents.rows = contents.rows.saturating_add(1);
            match key.space {
                KeySpace::Vault => contents.vaults = contents.vaults.saturating_add(1),
                KeySpace::Wallet => contents.wallets = contents.wallets.saturating_add(1),
                KeySpace::Request => {
                    contents.requests = contents.requests.saturating_add(1);
                    let request: SigningRequest = rows::decode(&value)
                        .map_err(|_| damaged("a signing request cannot be read"))?;
                    if !request.state.is_final() {
                        contents.live = contents.live.saturating_add(1);
                    }
                }
                KeySpace::AuditEntry => {
                    let (chain, number) = rows::audit_position(&key)
                        .ok_or_else(|| damaged("an audit log entry has no position"))?;
                    audit.entry(chain, &crate::audit::decode_linked(number, value));
                }
                KeySpace::AuditHead => {
                    let chain = rows::audit_chain(&key)
                        .ok_or_else(|| damaged("a head of the audit log has no chain"))?;
                    if let Ok(head) = rows::decode::<ChainHead>(&value) {
                        audit.head(chain, head);
                    }
                }
                _ => {}
            }
        }
    }
    contents.audit = audit.finish();
    Ok(contents)
}

/// Writes a backup into a store that is empty, or has what an earlier call left when it was cut off.
/// What it was about is not done again: that is seen to at the first start on it.
///
/// # Errors
/// [`Class::Conflict`] when the store is not empty. [`Class::Invalid`] when the backup is damaged, and
/// [`Class::Unavailable`] when the store cannot be written: nothing starts on the store then.
pub async fn restore<R: io::Read>(
    store: &dyn Store,
    from: R,
    now_ms: u64,
) -> Result<RestoreTimes, Fault> {
    let mut reader = BackupReader::start(from)?;
    let marker = rows::restore();
    let before = store.get(&marker).await?;
    let half = |row: &Row| matches!(rows::decode(&row.value), Ok(RestoreState::Importing));
    if before.as_ref().is_some_and(half) {
        clear(store, &marker).await?;
    } else {
        refuse_rows(store).await?;
    }
    let imported = RestoreTimes {
        backup_at_ms: reader.begin().at_ms,
        restored_at_ms: now_ms,
    };
    let mut batch = Batch::new();
    let begun = rows::encode(&RestoreState::Importing)?;
    let version = before.map(|row| row.version);
    let expect = version.map_or(Precondition::Absent, Precondition::Version);
    batch.put(marker.clone(), expect, begun);
    commit(store, batch).await?;
    let version = version.unwrap_or_default().saturating_add(1);
    while let Some(page) = reader.page()? {
        let (mut batch, mut count, mut bytes) = (Batch::new(), 0_usize, 0_usize);
        for (key, value) in page {
            // It is about the store that the backup was made of, and processes that used it.
            if key == marker || of_processes(key.space) {
                continue;
            }
            count = count.saturating_add(1);
            bytes = bytes.saturating_add(value.len());
            batch.put(key, Precondition::Absent, value);
            if count >= MAX_ROWS_PER_COMMIT || bytes >= PAGE {
                commit(store, std::mem::take(&mut batch)).await?;
                (count, bytes) = (0, 0);
            }
        }
        commit(store, batch).await?;
    }
    let mut batch = Batch::new();
    let done = rows::encode(&RestoreState::Imported(imported))?;
    batch.put(marker, Precondition::Version(version), done);
    commit(store, batch).await?;
    Ok(imported)
}

/// Rows that say nothing of vaults: who is there, who has what in progress, and who has signed in or may with a link. After a
/// restore people sign in again: a session that had ended since does not come back, nor does a challenge that was used.
fn of_processes(space: KeySpace) -> bool {
    matches!(
        space,
        KeySpace::Probe
            | KeySpace::Lease
            | KeySpace::Member
            | KeySpace::NodeStatus
            | KeySpace::Overview
            | KeySpace::UserSession
            | KeySpace::UserLink
            | KeySpace::UsedChallenges
            | KeySpace::ConsoleKey
    )
}

async fn refuse_rows(store: &dyn Store) -> Result<(), Fault> {
    for space in KeySpace::ALL {
        let rows = store.scan(&Scan::prefix(space, &[], 1)).await?;
        if !of_processes(space) && !rows.is_empty() {
            return Err(Fault::new(
                Class::Conflict,
                "the store is not empty: restore into a new one. Move this one away first, and keep it",
            ));
        }
    }
    Ok(())
}

/// Deletes all rows but the marker, which says that nothing may start on the store.
async fn clear(store: &dyn Store, marker: &Key) -> Result<(), Fault> {
    for space in KeySpace::ALL {
        if space == marker.space {
            continue;
        }
        loop {
            let rows = store
                .scan(&Scan::prefix(space, &[], MAX_ROWS_PER_COMMIT))
                .await?;
            if rows.is_empty() {
                break;
            }
            let mut batch = Batch::new();
            for (key, _) in rows {
                batch.delete(key, Precondition::Any);
            }
            commit(store, batch).await?;
        }
    }
    Ok(())
}

async fn commit(store: &dyn Store, batch: Batch) -> Result<(), Fault> {
    match store.commit(batch).await {
        Ok(()) => Ok(()),
        Err(CommitError::Conflict(_)) => Err(Fault::new(
            Class::Conflict,
            "another process writes to the store: stop it, and restore into an unused store",
        )),
        Err(error) => Err(error.into()),
    }
}
