//! The file: how it is made and read.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    sync::Arc,
};

use covault_core::{
    fault::{Class, Fault},
    order::NodeId,
};
use parking_lot::RwLock;
use redb::{StorageBackend, backends::FileBackend};

use super::{
    BANS, BanSet, CachedClaims, LoadedClaims, height,
    log::FindError,
    rows::{OpenError, Rows},
    windows::SpendingWindows,
};
use crate::{key_records, preprocess::table as nonce_table};

/// Makes a new file, for its owner only, unless another process has made it since. One that is cut off while it is laid out
/// never opens again; therefore it gets its name once it is whole.
pub(super) fn make(path: &Path, log_pages: u32) -> Result<(), redb::Error> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let unfinished = PathBuf::from(unfinished);
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&unfinished)?;
    file.try_lock().map_err(io::Error::from)?;
    // Whoever had the lock before may have finished this very file, which promises something by now.
    let place = |it: &fs::Metadata| (it.dev(), it.ino());
    if place(&fs::metadata(&unfinished)?) != place(&file.metadata()?) {
        return Err(io::Error::from(io::ErrorKind::WouldBlock).into());
    }
    if fs::metadata(path).is_ok_and(|it| it.len() > 0) {
        return Ok(fs::remove_file(&unfinished)?);
    }
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    file.set_len(0)?;
    let backend = FileBackend::new(file.try_clone()?)?;
    drop(Rows::make(Arc::new(backend), log_pages)?);
    file.sync_all()?;
    Ok(fs::rename(&unfinished, path)?)
}

/// The file, for this process alone for as long as it is open. Its name is on disk when it returns: who made it may have
/// been ended before that.
pub(super) fn lock(path: &Path) -> Result<FileBackend, redb::Error> {
    let file = fs::OpenOptions::new().read(true).write(true).open(path)?;
    file.try_lock().map_err(io::Error::from)?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    fs::File::open(folder)?.sync_all()?;
    Ok(FileBackend::new(file)?)
}

/// What is to be done about a file that does not hold all that it held.
const REPLACE: &str = "Move this file and the folder shares away, start the node, and have it given new shares: covault \
                       vault refresh --lost KEY";

/// Why a file is not opened, and what to do.
pub(super) fn refusal(file: &str, error: OpenError) -> Fault {
    let (problem, cause) = match error {
        OpenError::Log(FindError::Damaged(entry)) => (
            format!(
                "entry {entry} of its log is damaged or missing: this node no longer knows what it must never sign. Check \
                 the disk. {REPLACE}"
            ),
            None,
        ),
        OpenError::Log(FindError::Unreadable(cause)) => (
            format!(
                "its log cannot be read, and without it this node does not know what it must never sign. Check the disk, \
                 and start the node again. Where that never helps: {REPLACE}"
            ),
            Some(redb::Error::Io(cause)),
        ),
        OpenError::Store(cause @ redb::Error::Corrupted(_)) => (
            format!(
                "it is damaged: this node no longer knows what it must never sign. Check the disk. {REPLACE}"
            ),
            Some(cause),
        ),
        OpenError::Store(cause) => ("cannot be opened".to_owned(), Some(cause)),
    };
    let fault = Fault::new(Class::Invalid, format!("{file}: {problem}"));
    match cause {
        Some(cause) => fault.caused_by(cause),
        None => fault,
    }
}

/// Opens the rows in this storage: on disk once more when it returns, whatever an earlier process left in the log. Counts
/// this opening, and reads what belongs in memory.
pub(super) fn load(storage: Arc<dyn StorageBackend>) -> Result<(Rows, LoadedClaims), OpenError> {
    // The database trusts what it has synced: of a page that the disk has lost, it may panic.
    let loaded = panic::catch_unwind(AssertUnwindSafe(|| load_trusting(storage)));
    loaded.unwrap_or_else(|_| {
        let lost = "a page of its database is not what was written";
        Err(redb::Error::Corrupted(lost.into()).into())
    })
}

fn load_trusting(storage: Arc<dyn StorageBackend>) -> Result<(Rows, LoadedClaims), OpenError> {
    let mut rows = Rows::open(storage)?;
    nonce_table::count_start(&mut rows)?;
    rows.checkpoint()?;
    let mut bans = BanSet::new();
    rows.visit(&BANS, |(root, node), _| {
        bans.insert((root, NodeId(node)));
    })?;
    let (age, blocked, peers) = height::load(&rows)?;
    let loaded = LoadedClaims {
        known: CachedClaims {
            bans: RwLock::new(bans),
            blocked: RwLock::new(blocked),
            age: RwLock::new(age),
            log: RwLock::default(),
        },
        nonces: nonce_table::load(&rows)?,
        peers,
        windows: SpendingWindows::open(&rows)?,
        key_records: key_records::load(&rows)?,
        vault_keys: key_records::load_vaults(&rows)?,
    };
    Ok((rows, loaded))
}
