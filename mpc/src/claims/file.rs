//! The file: how it is made and read.

use std::{
    fs, io,
    os::unix::fs::OpenOptionsExt as _,
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
    log::DamagedEntry,
    rows::{OpenError, Rows},
    windows::SpendingWindows,
};
use crate::{key_records, preprocess::table as nonce_table};

/// Makes a new file, for its owner only. One that is cut off while it is laid out never opens again; therefore it gets its
/// name once it is whole.
pub(super) fn make(path: &Path, log_pages: u32) -> Result<(), redb::Error> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let unfinished = PathBuf::from(unfinished);
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished)?;
    let backend = FileBackend::new(file.try_clone()?)?;
    drop(Rows::make(Arc::new(backend), log_pages)?);
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    fs::File::open(folder)?.sync_all()?;
    Ok(())
}

/// The file, for this process alone for as long as it is open.
pub(super) fn lock(path: &Path) -> Result<FileBackend, redb::Error> {
    let file = fs::OpenOptions::new().read(true).write(true).open(path)?;
    file.try_lock().map_err(io::Error::from)?;
    Ok(FileBackend::new(file)?)
}

/// Why a file is not opened, and what to do.
pub(super) fn refusal(file: &str, error: OpenError) -> Fault {
    match error {
        OpenError::Store(cause) => {
            Fault::new(Class::Invalid, format!("{file}: cannot be opened")).caused_by(cause)
        }
        OpenError::Damaged(DamagedEntry(entry)) => Fault::new(
            Class::Invalid,
            format!(
                "{file}: entry {entry} of its log is damaged, and later ones are not: this node no longer knows what it \
                 must never sign. Check the disk. Move this file and the folder shares away, start the node, and have it \
                 given new shares: covault vault refresh --lost KEY"
            ),
        ),
    }
}

/// Opens the rows in this storage: on disk once more when it returns, whatever an earlier process left in the log. Counts
/// this opening, and reads what belongs in memory.
pub(super) fn load(storage: Arc<dyn StorageBackend>) -> Result<(Rows, LoadedClaims), OpenError> {
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
        },
        nonces: nonce_table::load(&rows)?,
        peers,
        windows: SpendingWindows::open(&rows)?,
        key_records: key_records::load(&rows)?,
        vault_keys: key_records::load_vaults(&rows)?,
    };
    Ok((rows, loaded))
}
