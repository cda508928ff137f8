//! The rows of a claims file. What a batch changes goes to the [`log`](super::log) first, synced, and stays in memory until
//! it is folded into the database behind the log, in steps of some milliseconds.
//!
//! A row is looked up in the batch, then in what was logged, then in what is being folded, then in the database: the first
//! that knows it is right. Folding the same again changes nothing, so a crash in between does no harm: the database says
//! which entry of the log it holds last, in the transaction that completes it.

use std::{collections::BTreeMap, fmt, io, marker::PhantomData, mem, ops::Bound, sync::Arc};

use redb::{
    Database, Durability, ReadOnlyTable, ReadableDatabase as _, StorageBackend, TableDefinition,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::log::{DamagedEntry, Log, PAGE};

/// Kind and key -> what is noted.
const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows.1");
/// The last entry of the log that is in [`ROWS`].
const FOLDED: TableDefinition<'_, (), u64> = TableDefinition::new("folded.1");

/// Pages of a node's log: 4 MiB.
pub(super) const LOG_PAGES: u32 = 1024;
/// So few that tests fold all the time.
pub(super) const SMALL_LOG_PAGES: u32 = 6;
/// Rows that are folded at once, or twice those of the last batch if they are more: folding keeps up with what comes.
const STEP_ROWS: usize = 128;
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
    /// The log lacks an entry that others follow.
    Damaged(DamagedEntry),
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

/// See the module.
pub(crate) struct Rows {
    log: Log,
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
    /// Rows of the last batch.
    last_batch: usize,
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
        store(&database, Changes::new(), Some(0))?;
        Self::of(storage, &header, database)
    }

    /// Opens the file in this storage, with all that was logged. To be followed by [`Rows::checkpoint`].
    pub(super) fn open(storage: Arc<dyn StorageBackend>) -> Result<Self, OpenError> {
        let (mut rows, entries) = Self::read(storage)?;
        for entry in entries.map_err(OpenError::Damaged)? {
            let changes: Changes = bcs::from_bytes(&entry).map_err(damaged)?;
            rows.batch.extend(changes);
        }
        Ok(rows)
    }

    /// The rows in the database, and what the log holds beyond.
    fn read(
        storage: Arc<dyn StorageBackend>,
    ) -> Result<(Self, Result<Vec<RowBytes>, DamagedEntry>), redb::Error> {
        let corrupted = |what: &str| redb::Error::Corrupted(what.into());
        let mut bytes = [0; FileHeader::BYTES];
        storage.read(0, &mut bytes)?;
        let header: FileHeader = bcs::from_bytes(&bytes).map_err(damaged)?;
        // In nothing, a new database would be made.
        if header != FileHeader::new(header.log_pages) || storage.len()? <= header.database() {
            return Err(corrupted("it is not a claims file, or not all of it"));
        }
        let database = database(Arc::clone(&storage), &header)?;
        let folded = database.begin_read()?.open_table(FOLDED)?.get(())?;
        let folded = folded.map(|folded| folded.value());
        let folded = folded.ok_or_else(|| corrupted("it is not complete"))?;
        let mut rows = Self::of(storage, &header, database)?;
        let entries = rows.log.find(folded)?;
        Ok((rows, entries))
    }

    fn of(
        storage: Arc<dyn StorageBackend>,
        header: &FileHeader,
        database: Database,
    ) -> Result<Self, redb::Error> {
        Ok(Self {
            log: Log::new(storage, PAGE, header.log_pages.into()),
            stored: database.begin_read()?.open_table(ROWS)?,
            database,
            batch: Changes::new(),
            logged: Changes::new(),
            folding: Changes::new(),
            folding_to: 0,
            last_batch: 0,
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
            return self.checkpoint();
        }
        self.log.append(&entry)?;
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
        while piece.len() < STEP_ROWS.max(self.last_batch.saturating_mul(2)) {
            let Some((key, change)) = self.folding.pop_first() else {
                break;
            };
            piece.insert(key, change);
        }
        let complete = self.folding.is_empty();
        store(&self.database, piece, complete.then_some(self.folding_to))?;
        if complete {
            self.log.folded();
        }
        self.stored = self.database.begin_read()?.open_table(ROWS)?;
        Ok(())
    }

    /// Moves everything into the database; on disk when it returns.
    pub(super) fn checkpoint(&mut self) -> Result<(), redb::Error> {
        let mut all = mem::take(&mut self.folding);
        all.append(&mut self.logged);
        all.append(&mut self.batch);
        store(&self.database, all, Some(self.log.last()))?;
        self.log.begin_folding();
        self.log.folded();
        self.stored = self.database.begin_read()?.open_table(ROWS)?;
        Ok(())
    }
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

/// Puts changes into the database; and the number of the entry, once all up to it are there.
fn store(database: &Database, changes: Changes, folded: Option<u64>) -> Result<(), redb::Error> {
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
        if let Some(folded) = folded {
            transaction.open_table(FOLDED)?.insert((), folded)?;
        }
    }
    Ok(transaction.commit()?)
}

#[cfg(test)]
#[path = "rows_tests.rs"]
#[allow(non_snake_case)]
mod tests;
