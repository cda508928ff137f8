//! The rows of a claims file. What a batch changes goes to the [`log`](super::log) first, synced, and stays in memory until
//! it is folded into the database behind the log, in steps of some milliseconds.
//!
//! A row is looked up in the batch, then in what was logged, then in what is being folded, then in the database: the first
//! that knows it is right. Folding the same again changes nothing, so a crash in between does no harm: the database says
//! which entry of the log it holds last, in the transaction that completes it. Every transaction also says how far the log
//! was synced: rows of the same entries go to the database in several pieces, and the one that counts the promises must
//! never be there while the rest of an entry is lost.

use std::{collections::BTreeMap, fmt, io, marker::PhantomData, mem, ops::Bound, sync::Arc};

use redb::{
    Database, Durability, ReadOnlyTable, ReadableDatabase as _, StorageBackend, TableDefinition,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::log::{FindError, Log, PAGE};

/// Kind and key -> what is noted.
const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows.1");
/// What the database knows of the log.
const LOG: TableDefinition<'_, (), (u64, u64)> = TableDefinition::new("log.1");

/// Pages of a node's log: 4 MiB.
pub(super) const LOG_PAGES: u32 = 1024;
/// So few that tests fold all the time.
pub(super) const SMALL_LOG_PAGES: u32 = 6;
/// Rows that are folded at once, or twice those of the last batch if they are more: folding keeps up with what comes.
const STEP_ROWS: usize = 128;
/// With a small log: tests stop between any two pieces.
const SMALL_STEP_ROWS: usize = 2;
/// What the database keeps in memory: that must not grow with the file.
const CACHE_BYTES: usize = 4 * 1024 * 1024;
const MAGIC: [u8; 16] = *b"covault claims 1";

/// What rows are of.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum RowKind {
    Request = 1,
    Transaction,
    Session,
    Ban,
    Age,
    Blocked,
    Peer,
    Spent,
    Held,
    HeldShare,
    HeldLetGo,
    KnownRecipient,
    Nonce,
    NextNonce,
    Starts,
    Key,
    VaultKey,
    JoinedKey,
    NewHolder,
}

/// The rows of a kind, with keys `K`.
pub(crate) struct RowSpace<K, V> {
    kind: RowKind,
    of: PhantomData<fn(K) -> V>,
}

type RowBytes = Vec<u8>;
/// New values; `None`: deleted.
type Changes = BTreeMap<RowBytes, Option<RowBytes>>;

impl<K: Serialize + DeserializeOwned, V: Serialize + DeserializeOwned> RowSpace<K, V> {
    pub(crate) const fn new(kind: RowKind) -> Self {
        Self {
            kind,
            of: PhantomData,
        }
    }

    fn key(&self, key: &K) -> Result<RowBytes, redb::Error> {
        let mut bytes = vec![self.kind as u8];
        bcs::serialize_into(&mut bytes, key).map_err(damaged)?;
        Ok(bytes)
    }

    fn read(&self, key: &[u8], value: &[u8]) -> Result<(K, V), redb::Error> {
        let key = bcs::from_bytes(key.get(1..).unwrap_or_default()).map_err(damaged)?;
        Ok((key, bcs::from_bytes(value).map_err(damaged)?))
    }
}

fn damaged(error: bcs::Error) -> redb::Error {
    redb::Error::Corrupted(format!("a row: {error}"))
}

/// Why rows cannot be opened.
#[derive(Debug)]
pub(super) enum OpenError {
    /// The log lacks an entry that was synced.
    Log(FindError),
    Store(redb::Error),
}

impl From<redb::Error> for OpenError {
    fn from(error: redb::Error) -> Self {
        Self::Store(error)
    }
}

/// Begins a claims file.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct FileHeader {
    magic: [u8; 16],
    log_pages: u32,
    checksum: u32,
}

impl FileHeader {
    const BYTES: usize = 24;

    fn new(log_pages: u32) -> Self {
        Self {
            magic: MAGIC,
            log_pages,
            checksum: crc32fast::hash(&log_pages.to_le_bytes()),
        }
    }

    /// Where the database begins.
    fn database(&self) -> u64 {
        u64::from(self.log_pages)
            .saturating_add(1)
            .saturating_mul(PAGE)
    }
}

/// The storage from an offset on.
struct StorageTail {
    storage: Arc<dyn StorageBackend>,
    offset: u64,
}

impl fmt::Debug for StorageTail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("claims")
    }
}

impl StorageBackend for StorageTail {
    fn len(&self) -> io::Result<u64> {
        Ok(self.storage.len()?.saturating_sub(self.offset))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.storage.read(self.offset.saturating_add(offset), out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.storage.set_len(self.offset.saturating_add(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.storage.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.storage.write(self.offset.saturating_add(offset), data)
    }

    fn close(&self) -> io::Result<()> {
        self.storage.close()
    }
}

/// What was done since the file was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogCounts {
    /// Entries written, each with one sync.
    pub entries: u64,
    /// Times that all entries so far were moved into the database.
    pub folds: u64,
}

/// See the module.
pub(crate) struct Rows {
    log: Log,
    counts: LogCounts,
    /// What the database held after it was written last. Goes before it.
    stored: ReadOnlyTable<&'static [u8], &'static [u8]>,
    database: Database,
    /// Not in the log yet.
    batch: Changes,
    /// In the log only.
    logged: Changes,
    /// As `logged`, and older: on its way into the database.
    folding: Changes,
    /// The last entry of the log that `folding` is of.
    folding_to: u64,
    /// The last entry of the log that the database holds all of.
    folded: u64,
    /// Rows of the last batch.
    last_batch: usize,
    /// Rows that are folded at once at least.
    step_rows: usize,
}

impl Rows {
    /// Lays out a file in empty storage.
    pub(super) fn make(
        storage: Arc<dyn StorageBackend>,
        log_pages: u32,
    ) -> Result<Self, redb::Error> {
        let header = FileHeader::new(log_pages);
        storage.set_len(header.database())?;
        // Not only a length: blocks that are there are written faster than those that are not.
        let empty = vec![0; usize::try_from(PAGE).unwrap_or_default()];
        for page in 0..=u64::from(log_pages) {
            storage.write(page.saturating_mul(PAGE), &empty)?;
        }
        storage.write(0, &bcs::to_bytes(&header).map_err(damaged)?)?;
        let database = database(Arc::clone(&storage), &header)?;
        store(&database, Changes::new(), (0, 0))?;
        Self::of(storage, &header, database, 0)
    }

    /// Opens the file in this storage, with all that was logged. To be followed by [`Rows::checkpoint`].
    pub(super) fn open(storage: Arc<dyn StorageBackend>) -> Result<Self, OpenError> {
        let (header, database) = read(&storage)?;
        let (folded, reached) = known_of_log(&database)?;
        let mut rows = Self::of(storage, &header, database, folded)?;
        let entries = rows.log.find(folded, reached).map_err(OpenError::Log)?;
        for entry in entries {
            let changes: Changes = bcs::from_bytes(&entry).map_err(damaged)?;
            rows.batch.extend(changes);
        }
        Ok(rows)
    }

    fn of(
        storage: Arc<dyn StorageBackend>,
        header: &FileHeader,
        database: Database,
        folded: u64,
    ) -> Result<Self, redb::Error> {
        Ok(Self {
            log: Log::new(storage, PAGE, header.log_pages.into()),
            counts: LogCounts::default(),
            stored: database.begin_read()?.open_table(ROWS)?,
            database,
            batch: Changes::new(),
            logged: Changes::new(),
            folding: Changes::new(),
            folding_to: 0,
            folded,
            last_batch: 0,
            step_rows: match header.log_pages {
                SMALL_LOG_PAGES => SMALL_STEP_ROWS,
                _ => STEP_ROWS,
            },
        })
    }

    pub(crate) fn get<K, V>(&self, of: &RowSpace<K, V>, key: &K) -> Result<Option<V>, redb::Error>
    where
        K: Serialize + DeserializeOwned,
        V: Serialize + DeserializeOwned,
    {
        let key = of.key(key)?;
        let read = |value: &[u8]| bcs::from_bytes(value).map_err(damaged);
        for changes in [&self.batch, &self.logged, &self.folding] {
            if let Some(change) = changes.get(&key) {
                return change.as_deref().map(read).transpose();
            }
        }
        let stored = self.stored.get(key.as_slice())?;
        stored.map(|value| read(value.value())).transpose()
    }

    pub(crate) fn put<K, V>(
        &mut self,
        of: &RowSpace<K, V>,
        key: &K,
        value: &V,
    ) -> Result<(), redb::Error>
    where
        K: Serialize + DeserializeOwned,
        V: Serialize + DeserializeOwned,
    {
        let value = bcs::to_bytes(value).map_err(damaged)?;
        self.batch.insert(of.key(key)?, Some(value));
        Ok(())
    }

    pub(crate) fn delete<K, V>(&mut self, of: &RowSpace<K, V>, key: &K) -> Result<(), redb::Error>
    where
        K: Serialize + DeserializeOwned,
        V: Serialize + DeserializeOwned,
    {
        self.batch.insert(of.key(key)?, None);
        Ok(())
    }

    /// Shows all rows of a kind, in no order.
    pub(crate) fn visit<K, V>(
        &self,
        of: &RowSpace<K, V>,
        show: impl FnMut(K, V),
    ) -> Result<(), redb::Error>
    where
        K: Serialize + DeserializeOwned,
        V: Serialize + DeserializeOwned,
    {
        let end = vec![(of.kind as u8).saturating_add(1)];
        self.visit_to(of, end, show)
    }

    /// Shows those whose key, as it is written, is below these bytes.
    pub(crate) fn visit_below<K, V>(
        &self,
        of: &RowSpace<K, V>,
        end: &[u8],
        show: impl FnMut(K, V),
    ) -> Result<(), redb::Error>
    where
        K: Serialize + DeserializeOwned,
        V: Serialize + DeserializeOwned,
    {
        let mut bytes = vec![of.kind as u8];
        bytes.extend_from_slice(end);
        self.visit_to(of, bytes, show)
    }

    fn visit_to<K, V>(
        &self,
        of: &RowSpace<K, V>,
        end: RowBytes,
        mut show: impl FnMut(K, V),
    ) -> Result<(), redb::Error>
    where
        K: Serialize + DeserializeOwned,
        V: Serialize + DeserializeOwned,
    {
        let range = (Bound::Included(vec![of.kind as u8]), Bound::Excluded(end));
        let mut changes: BTreeMap<&[u8], Option<&RowBytes>> = BTreeMap::new();
        for newer in [&self.folding, &self.logged, &self.batch] {
            let rows = newer.range(range.clone());
            changes.extend(rows.map(|(key, change)| (key.as_slice(), change.as_ref())));
        }
        let (from, to) = (range.0.as_ref(), range.1.as_ref());
        let stored = (from.map(Vec::as_slice), to.map(Vec::as_slice));
        for entry in self.stored.range::<&[u8]>(stored)? {
            let (key, value) = entry?;
            if !changes.contains_key(key.value()) {
                let (key, value) = of.read(key.value(), value.value())?;
                show(key, value);
            }
        }
        for (key, change) in changes {
            if let Some(value) = change {
                let (key, value) = of.read(key, value)?;
                show(key, value);
            }
        }
        Ok(())
    }

    /// Ends the batch; on disk when it returns. After an error nothing is certain, and the rows are not to be used.
    pub(super) fn commit(&mut self) -> Result<(), redb::Error> {
        self.last_batch = self.batch.len();
        if self.batch.is_empty() {
            return Ok(());
        }
        let entry = bcs::to_bytes(&self.batch).map_err(damaged)?;
        if !self.log.has_room(&entry) {
            self.counts.folds = self.counts.folds.saturating_add(1);
            return self.checkpoint();
        }
        self.log.append(&entry)?;
        self.counts.entries = self.counts.entries.saturating_add(1);
        self.logged.extend(mem::take(&mut self.batch));
        Ok(())
    }

    /// Moves a piece of what was logged into the database, when there is enough of it.
    pub(super) fn fold_step(&mut self) -> Result<(), redb::Error> {
        if self.folding.is_empty() {
            if !self.log.is_half_full() {
                return Ok(());
            }
            self.folding = mem::take(&mut self.logged);
            self.folding_to = self.log.begin_folding();
        }
        let mut piece = Changes::new();
        while piece.len() < self.step_rows.max(self.last_batch.saturating_mul(2)) {
            let Some((key, change)) = self.folding.pop_first() else {
                break;
            };
            piece.insert(key, change);
        }
        let complete = self.folding.is_empty();
        if complete {
            self.folded = self.folding_to;
        }
        store(&self.database, piece, (self.folded, self.log.last()))?;
        if complete {
            self.log.folded();
            self.counts.folds = self.counts.folds.saturating_add(1);
        }
        self.stored = self.database.begin_read()?.open_table(ROWS)?;
        Ok(())
    }

    pub(super) fn counts(&self) -> LogCounts {
        self.counts
    }

    /// Moves everything into the database; on disk when it returns.
    pub(super) fn checkpoint(&mut self) -> Result<(), redb::Error> {
        let mut all = mem::take(&mut self.folding);
        all.append(&mut self.logged);
        all.append(&mut self.batch);
        self.folded = self.log.take_number();
        store(&self.database, all, (self.folded, self.folded))?;
        self.log.begin_folding();
        self.log.folded();
        self.stored = self.database.begin_read()?.open_table(ROWS)?;
        Ok(())
    }
}

/// The beginning of a claims file, and its database.
fn read(storage: &Arc<dyn StorageBackend>) -> Result<(FileHeader, Database), redb::Error> {
    let mut bytes = [0; FileHeader::BYTES];
    storage.read(0, &mut bytes)?;
    let header: FileHeader = bcs::from_bytes(&bytes).map_err(damaged)?;
    // In nothing, a new database would be made.
    if header != FileHeader::new(header.log_pages) || storage.len()? <= header.database() {
        let what = "it is not a claims file, or not all of it";
        return Err(redb::Error::Corrupted(what.into()));
    }
    let database = database(Arc::clone(storage), &header)?;
    Ok((header, database))
}

fn database(
    storage: Arc<dyn StorageBackend>,
    header: &FileHeader,
) -> Result<Database, redb::Error> {
    let tail = StorageTail {
        storage,
        offset: header.database(),
    };
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    Ok(builder.create_with_backend(tail)?)
}

/// The last entry of the log that the database holds all of, and the last one that was synced for certain.
fn known_of_log(database: &Database) -> Result<(u64, u64), redb::Error> {
    let known = database.begin_read()?.open_table(LOG)?.get(())?;
    let known = known.map(|known| known.value());
    known.ok_or_else(|| redb::Error::Corrupted("it is not complete".into()))
}

/// Puts changes into the database, and what [`known_of_log`] gives back.
fn store(database: &Database, changes: Changes, of_log: (u64, u64)) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    transaction.set_two_phase_commit(true);
    {
        let mut table = transaction.open_table(ROWS)?;
        for (key, change) in changes {
            match change {
                Some(value) => table.insert(key.as_slice(), value.as_slice())?,
                None => table.remove(key.as_slice())?,
            };
        }
        transaction.open_table(LOG)?.insert((), of_log)?;
    }
    Ok(transaction.commit()?)
}

#[cfg(test)]
#[path = "rows_tests.rs"]
#[allow(non_snake_case)]
mod tests;
