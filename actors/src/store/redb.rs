//! The store of one process, in one file: redb with two-phase commit.
//!
//! One thread writes. It takes every batch that waits into one transaction, so that
//! concurrent batches share one fsync (group commit); each batch is still checked and applied
//! on its own, in the order of arrival.
//!
//! After an error of the disk redb takes nothing more until the file is opened again. The writer does
//! that before its next batch, once the disk takes something. Whether a batch that failed is there
//! shows then, as after a restart.
//!
//! Which pages are free is not in each transaction: that grows with the file. Where it is not in the
//! last one a start reads the whole file three times after a crash. So transactions that many share
//! have it, and when nothing is to be written for a moment another one writes it down.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use async_trait::async_trait;
use covault_core::fault::Fault;
use parking_lot::{Mutex, RwLock};
use redb::{
    Database, Durability, ReadableDatabase as _, ReadableTable, StorageBackend, TableDefinition,
};
use tokio::sync::oneshot;

use super::{
    Batch, CommitError, Key, KeySpace, Precondition, RawRow, ReadError, Row, RowChange, RowMap,
    Scan, Snapshot, Store, prefix_end,
};

/// Space byte and key -> version (8 bytes, little-endian) and value.
const ROWS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("rows");

/// Format of the file: [`ROWS`] and how rows are laid out. Kept in [`META`].
const FORMAT: u64 = 1;
const META: TableDefinition<'static, &str, u64> = TableDefinition::new("meta");

/// What must fit on a disk before a store that failed there is opened again, in bytes.
const PROBE_BYTES: usize = 1 << 20;

/// Most batches that share one transaction: bounds how long the first of them waits.
const MAX_GROUP: usize = 256;

/// From this many batches on, a transaction also records which pages are free.
const LARGE_GROUP: usize = 8;
/// After so long without a batch that is written down.
const IDLE: Duration = Duration::from_millis(50);

/// What redb keeps of the file in memory, in bytes: the upper part of its tree, and what a transaction
/// writes. The system keeps the rest of what is read often; more here makes nothing quicker.
const CACHE_BYTES: usize = 4 << 20;

struct RedbJob {
    batch: Batch,
    reply: oneshot::Sender<Result<(), CommitError>>,
}

/// Where a database is.
trait DatabaseLocation: Send + Sync + 'static {
    /// Whether something can be written there.
    fn check(&self) -> io::Result<()>;

    /// Opens the database.
    fn open(&self) -> Result<Database, redb::Error>;
}

impl DatabaseLocation for PathBuf {
    fn check(&self) -> io::Result<()> {
        let mut trial = self.as_os_str().to_owned();
        trial.push(".trial");
        let written = fs::File::create(&trial).and_then(|mut file| {
            file.write_all(&vec![0; PROBE_BYTES])?;
            file.sync_all()
        });
        let removed = fs::remove_file(&trial);
        written.and(removed)
    }

    fn open(&self) -> Result<Database, redb::Error> {
        // One that has gone is not made again.
        Ok(Database::builder().set_cache_size(CACHE_BYTES).open(self)?)
    }
}

fn used() -> io::Error {
    io::Error::other("a backend is opened once")
}

/// A custom backend.
impl<B: StorageBackend> DatabaseLocation for Mutex<Option<B>> {
    fn check(&self) -> io::Result<()> {
        Err(used())
    }

    fn open(&self) -> Result<Database, redb::Error> {
        let mut backend = self.lock();
        let backend = backend.take().ok_or_else(used)?;
        Ok(Database::builder().create_with_backend(backend)?)
    }
}

/// The database, which can be opened again.
struct DatabaseFile {
    location: Box<dyn DatabaseLocation>,
    /// `None` when it could not be opened again.
    db: RwLock<Option<Database>>,
}

impl DatabaseFile {
    fn open(location: impl DatabaseLocation) -> Result<Self, redb::Error> {
        let db = location.open()?;
        prepare(&db)?;
        Ok(Self {
            location: Box::new(location),
            db: RwLock::new(Some(db)),
        })
    }

    /// Closes the file and opens it, if it can be written: until then it can at least be read.
    fn open_again(&self) -> Result<(), redb::Error> {
        self.location.check()?;
        let mut db = self.db.write();
        // Only one may have it open.
        *db = None;
        let opened = self.location.open()?;
        prepare(&opened)?;
        *db = Some(opened);
        Ok(())
    }

    fn with<T>(
        &self,
        work: impl FnOnce(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, redb::Error> {
        let db = self.db.read();
        match &*db {
            Some(db) => work(db),
            None => Err(io::Error::other("the file could not be opened again").into()),
        }
    }
}

/// See the module.
pub struct RedbStore {
    file: Arc<DatabaseFile>,
    /// `None` once it is being dropped.
    jobs: Option<mpsc::Sender<RedbJob>>,
    writer: Option<thread::JoinHandle<()>>,
}

impl Drop for RedbStore {
    fn drop(&mut self) {
        // Without a sender the writer ends; the file is free once it has.
        self.jobs = None;
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the store's writer panicked");
        }
    }
}

impl RedbStore {
    /// Opens or makes the file.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when it cannot be opened: it is in use by
    /// another process, is damaged, or is of a newer version of Covault.
    pub fn open(path: &Path) -> Result<Self, Fault> {
        if !path.exists() {
            make(path).map_err(|error| unusable(path, &error))?;
        }
        Self::start(path.to_owned()).map_err(|error| unusable(path, &error))
    }

    /// Opens a store on a custom backend (crash tests), which is not opened again.
    ///
    /// # Errors
    /// As [`RedbStore::open`].
    pub fn open_backend(backend: impl StorageBackend) -> Result<Self, Fault> {
        let path = Path::new("(backend)");
        Self::start(Mutex::new(Some(backend))).map_err(|error| unusable(path, &error))
    }

    fn start(location: impl DatabaseLocation) -> Result<Self, redb::Error> {
        let file = Arc::new(DatabaseFile::open(location)?);
        let (jobs, queue) = mpsc::channel();
        let shared = Arc::clone(&file);
        let writer = thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || write_until_closed(&shared, &queue))
            .map_err(redb::Error::Io)?;
        Ok(Self {
            file,
            jobs: Some(jobs),
            writer: Some(writer),
        })
    }
}

/// Makes a new file, for its owner only. A file that was cut off while redb laid it out never
/// opens again; therefore it gets its name once it is whole.
fn make(path: &Path) -> Result<(), redb::Error> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    fs::create_dir_all(folder)?;
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let unfinished = PathBuf::from(unfinished);
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(&unfinished)?;
    prepare(&Database::builder().create_file(file.try_clone()?)?)?;
    file.sync_all()?;
    // Linked, where the file system can, and not renamed: it must not replace the file that
    // another process has made.
    match fs::hard_link(&unfinished, path) {
        Ok(()) => fs::remove_file(&unfinished)?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(&unfinished)?;
        }
        Err(_) => fs::rename(&unfinished, path)?,
    }
    fs::File::open(folder)?.sync_all()?;
    Ok(())
}

/// Checks the format, or writes it where there is none. A start that finds it writes nothing: a
/// transaction with the free pages of a large file takes milliseconds.
fn prepare(db: &Database) -> Result<(), redb::Error> {
    match format(db)? {
        Some(FORMAT) => return Ok(()),
        Some(other) => {
            return Err(redb::Error::Io(io::Error::other(format!(
                "format {other} was written by another version of Covault"
            ))));
        }
        None => {}
    }
    let mut transaction = begin(db)?;
    transaction.set_quick_repair(true);
    transaction.open_table(META)?.insert("format", FORMAT)?;
    transaction.open_table(ROWS)?;
    transaction.commit()?;
    Ok(())
}

/// The format of the file; `None` when nothing was ever written to it.
fn format(db: &Database) -> Result<Option<u64>, redb::Error> {
    match db.begin_read()?.open_table(META) {
        Ok(meta) => Ok(meta.get("format")?.map(|format| format.value())),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn unusable(path: &Path, error: &redb::Error) -> Fault {
    let path = path.display();
    Fault::unavailable(match error {
        redb::Error::DatabaseAlreadyOpen => {
            format!("the store {path} is in use by another covault process; stop that one first")
        }
        _ => format!("the store {path} cannot be opened"),
    })
    .caused_by(error)
}

fn begin(db: &Database) -> Result<redb::WriteTransaction, redb::Error> {
    let mut transaction = db.begin_write()?;
    // Two-phase commit: a torn write of the commit slot can never be taken for a commit.
    transaction.set_two_phase_commit(true);
    transaction.set_durability(Durability::Immediate)?;
    Ok(transaction)
}

fn write_until_closed(file: &DatabaseFile, queue: &mpsc::Receiver<RedbJob>) {
    let mut failed = false;
    // Whether the file says which of its pages are free: who opened it does not know.
    let mut free_pages_known = false;
    loop {
        let first = if free_pages_known || failed {
            queue.recv().ok()
        } else {
            match queue.recv_timeout(IDLE) {
                Ok(job) => Some(job),
                Err(mpsc::RecvTimeoutError::Disconnected) => None,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    if let Err(error) = file.with(record_free_pages) {
                        tracing::error!(%error, "the store cannot be written");
                        failed |= is_disk_error(&error);
                    }
                    free_pages_known = true;
                    continue;
                }
            }
        };
        let Some(first) = first else {
            return;
        };
        let mut group = vec![first];
        while group.len() < MAX_GROUP {
            match queue.try_recv() {
                Ok(job) => group.push(job),
                Err(_) => break,
            }
        }
        if failed {
            match file.open_again() {
                Ok(()) => {
                    failed = false;
                    free_pages_known = false;
                    tracing::warn!("reopened the store after a disk error");
                }
                Err(error) => tracing::error!(%error, "failed to reopen the store"),
            }
        }
        match file.with(|db| write_group(db, &group)) {
            Ok(results) => {
                if results.iter().any(Result::is_ok) {
                    free_pages_known = group.len() >= LARGE_GROUP;
                }
                for (job, result) in group.into_iter().zip(results) {
                    // The caller may have gone; the batch is on disk regardless.
                    let _ = job.reply.send(result);
                }
            }
            Err(error) => {
                tracing::error!(%error, batches = group.len(), "the store cannot be written");
                failed |= is_disk_error(&error);
                for job in group {
                    let _ = job
                        .reply
                        .send(Err(CommitError::Unavailable(error.to_string())));
                }
            }
        }
    }
}

/// Whether redb takes nothing more after it.
fn is_disk_error(error: &redb::Error) -> bool {
    matches!(error, redb::Error::Io(_) | redb::Error::PreviousIo)
}

/// Writes down which pages are free, so that a start after a crash need not find out.
fn record_free_pages(db: &Database) -> Result<(), redb::Error> {
    let mut transaction = begin(db)?;
    transaction.set_quick_repair(true);
    transaction.commit()?;
    Ok(())
}

fn write_group(
    db: &Database,
    group: &[RedbJob],
) -> Result<Vec<Result<(), CommitError>>, redb::Error> {
    let mut transaction = begin(db)?;
    transaction.set_quick_repair(group.len() >= LARGE_GROUP);
    let mut results = Vec::with_capacity(group.len());
    {
        let mut table = transaction.open_table(ROWS)?;
        for job in group {
            results.push(apply(&mut table, &job.batch)?);
        }
    }
    if results.iter().any(Result::is_ok) {
        transaction.commit()?;
    } else {
        transaction.abort()?;
    }
    Ok(results)
}

fn apply(
    table: &mut redb::Table<'_, &[u8], &[u8]>,
    batch: &Batch,
) -> Result<Result<(), CommitError>, redb::Error> {
    // All checks come before the first change: a refused batch leaves no trace in the group.
    let mut versions = Vec::with_capacity(batch.writes().len());
    for write in batch.writes() {
        let version = version(table, &encode_key(&write.key))?;
        let holds = match write.expect {
            Precondition::Any => true,
            Precondition::Absent => version.is_none(),
            Precondition::Version(expected) => version == Some(expected),
        };
        if !holds {
            return Ok(Err(CommitError::Conflict(write.key.clone())));
        }
        versions.push(version);
    }
    let links = batch.links(|key| -> Result<_, redb::Error> {
        let row = table.get(encode_key(key).as_slice())?;
        let row = row.map(|value| decode_row(value.value())).transpose()?;
        Ok(row.map(|row| row.value))
    })?;
    let links = match links {
        Ok(links) => links,
        Err(error) => return Ok(Err(error)),
    };
    for (key, value) in links {
        let key = encode_key(&key);
        let version = version(table, &key)?.map_or(1, |version| version + 1);
        put(table, &key, version, &value)?;
    }
    for (write, version) in batch.writes().iter().zip(versions) {
        let key = encode_key(&write.key);
        match &write.change {
            RowChange::Put(value) => {
                let version = version.map_or(1, |version| version + 1);
                put(table, &key, version, value)?;
            }
            RowChange::Delete => {
                table.remove(key.as_slice())?;
            }
            RowChange::Check | RowChange::CheckOnce => {}
        }
    }
    Ok(Ok(()))
}

/// The version of a row: what it holds may be long.
fn version(table: &redb::Table<'_, &[u8], &[u8]>, key: &[u8]) -> Result<Option<u64>, redb::Error> {
    let row = table.get(key)?;
    let version = row.map(|row| Ok(split_row(row.value())?.0));
    version.transpose()
}

fn put(
    table: &mut redb::Table<'_, &[u8], &[u8]>,
    key: &[u8],
    version: u64,
    value: &[u8],
) -> Result<(), redb::Error> {
    let row = [version.to_le_bytes().as_slice(), value].concat();
    table.insert(key, row.as_slice())?;
    Ok(())
}

fn encode_key(key: &Key) -> Vec<u8> {
    encode(key.space, &key.bytes)
}

fn encode(space: KeySpace, bytes: &[u8]) -> Vec<u8> {
    [&[space as u8], bytes].concat()
}

fn decode_row(bytes: &[u8]) -> Result<Row, redb::Error> {
    let (version, value) = split_row(bytes)?;
    Ok(Row {
        version,
        value: value.to_vec(),
    })
}

fn split_row(bytes: &[u8]) -> Result<(u64, &[u8]), redb::Error> {
    let (version, value) = bytes
        .split_first_chunk::<8>()
        .ok_or_else(|| redb::Error::Corrupted("a row without a version".into()))?;
    Ok((u64::from_le_bytes(*version), value))
}

#[async_trait]
impl Store for RedbStore {
    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        let (reply, answer) = oneshot::channel();
        let gone = || CommitError::Unavailable("the writer has stopped".into());
        let jobs = self.jobs.as_ref().ok_or_else(gone)?;
        jobs.send(RedbJob { batch, reply }).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    async fn get(&self, key: &Key) -> Result<Option<Row>, ReadError> {
        // Reads see a snapshot and wait for nobody; rows are small, and mostly in the system's memory.
        self.file
            .with(|db| get(db, key))
            .map_err(|error| ReadError(error.to_string()))
    }

    async fn get_all(&self, keys: &[Key]) -> Result<RowMap, ReadError> {
        self.file
            .with(|db| get_all(db, keys))
            .map_err(|error| ReadError(error.to_string()))
    }

    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>, ReadError> {
        let table = self
            .file
            .with(|db| Ok(db.begin_read()?.open_table(ROWS)?))
            .map_err(|error| ReadError(error.to_string()))?;
        Ok(Arc::new(RedbSnapshot(table)))
    }

    async fn scan(&self, wanted: &Scan) -> Result<Vec<(Key, Row)>, ReadError> {
        self.file
            .with(|db| scan(db, wanted))
            .map_err(|error| ReadError(error.to_string()))
    }

    /// redb locks its file.
    fn exclusive(&self) -> bool {
        true
    }
}

/// The table as it was when its transaction began. It ends when the file is opened again.
struct RedbSnapshot(redb::ReadOnlyTable<&'static [u8], &'static [u8]>);

#[async_trait]
impl Snapshot for RedbSnapshot {
    async fn rows(&self, after: Option<&RawRow>, bytes: usize) -> Result<Vec<RawRow>, ReadError> {
        snapshot_rows(&self.0, after, bytes).map_err(|error| ReadError(error.to_string()))
    }
}

fn snapshot_rows(
    table: &redb::ReadOnlyTable<&'static [u8], &'static [u8]>,
    after: Option<&RawRow>,
    bytes: usize,
) -> Result<Vec<RawRow>, redb::Error> {
    // The smallest key after it.
    let from = after.map_or_else(Vec::new, |row| {
        [&[row.space], row.key.as_slice(), &[0]].concat()
    });
    let mut found = Vec::new();
    let mut left = bytes;
    for row in table.range(from.as_slice()..)? {
        let (key, value) = row?;
        let (space, key) = key
            .value()
            .split_first()
            .map(|(space, key)| (*space, key.to_vec()))
            .ok_or_else(|| redb::Error::Corrupted("a row without a kind".into()))?;
        let value = decode_row(value.value())?.value;
        left = left.saturating_sub(key.len().saturating_add(value.len()));
        found.push(RawRow { space, key, value });
        if left == 0 {
            break;
        }
    }
    Ok(found)
}

fn get(db: &Database, key: &Key) -> Result<Option<Row>, redb::Error> {
    let table = db.begin_read()?.open_table(ROWS)?;
    match table.get(encode_key(key).as_slice())? {
        Some(value) => decode_row(value.value()).map(Some),
        None => Ok(None),
    }
}

fn get_all(db: &Database, keys: &[Key]) -> Result<RowMap, redb::Error> {
    let table = db.begin_read()?.open_table(ROWS)?;
    let mut found = RowMap::new();
    for key in keys {
        if let Some(row) = table.get(encode_key(key).as_slice())? {
            found.insert(key.clone(), decode_row(row.value())?);
        }
    }
    Ok(found)
}

fn scan(db: &Database, scan: &Scan) -> Result<Vec<(Key, Row)>, redb::Error> {
    let table = db.begin_read()?.open_table(ROWS)?;
    let mut first = encode(scan.space, &scan.prefix);
    // A space byte is never 0xff, so that there always is an end.
    let mut end = prefix_end(&first).unwrap_or_default();
    if let Some(from) = &scan.from {
        let from = encode(scan.space, from);
        if scan.reverse {
            // The smallest key after `from`.
            end = end.min([from.as_slice(), &[0]].concat());
        } else {
            first = first.max(from);
        }
    }
    if first >= end {
        return Ok(Vec::new());
    }
    let range = table.range(first.as_slice()..end.as_slice())?;
    if scan.reverse {
        page(range.rev(), scan)
    } else {
        page(range, scan)
    }
}

type TableItem<'a> = Result<
    (
        redb::AccessGuard<'a, &'static [u8]>,
        redb::AccessGuard<'a, &'static [u8]>,
    ),
    redb::StorageError,
>;

fn page<'a>(
    rows: impl Iterator<Item = TableItem<'a>>,
    scan: &Scan,
) -> Result<Vec<(Key, Row)>, redb::Error> {
    let mut found = Vec::new();
    for row in rows.skip(scan.skip).take(scan.limit) {
        let (key, value) = row?;
        let bytes = key.value().get(1..).unwrap_or_default().to_vec();
        let key = Key {
            space: scan.space,
            bytes,
        };
        found.push((key, decode_row(value.value())?));
    }
    Ok(found)
}

#[cfg(test)]
#[path = "redb_tests.rs"]
mod tests;
