//! The file: how it is made and read.

use std::{
    fs, io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use covault_core::order::NodeId;
use parking_lot::RwLock;
use redb::{Database, ReadableDatabase as _, ReadableTable as _};

use super::{
    BANS, BanSet, CachedClaims, LoadedClaims, REQUESTS, SESSIONS, TRANSACTIONS, height, holds,
    windows::SpendingWindows,
};
use crate::{key_records, preprocess::table as nonce_table};

/// Makes a new file, for its owner only. One that is cut off while redb lays it out never opens
/// again; therefore it gets its name once it is whole.
pub(super) fn make(path: &Path) -> Result<(), redb::Error> {
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
    load(&Database::builder().create_file(file.try_clone()?)?)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    fs::File::open(folder)?.sync_all()?;
    Ok(())
}

/// Makes the tables that are missing, and reads bans and nonces.
pub(super) fn load(database: &Database) -> Result<LoadedClaims, redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(REQUESTS)?;
    transaction.open_table(TRANSACTIONS)?;
    transaction.open_table(SESSIONS)?;
    transaction.open_table(BANS)?;
    let windows = SpendingWindows::open(&transaction)?;
    height::make(&transaction)?;
    holds::make(&transaction)?;
    nonce_table::make(&transaction)?;
    key_records::make(&transaction)?;
    transaction.commit()?;
    let mut bans = BanSet::new();
    let transaction = database.begin_read()?;
    for entry in transaction.open_table(BANS)?.iter()? {
        let (key, _) = entry?;
        let (root, node) = key.value();
        bans.insert((root.to_vec(), NodeId(*node)));
    }
    let (age, blocked, peers) = height::load(&transaction)?;
    Ok(LoadedClaims {
        known: CachedClaims {
            bans: RwLock::new(bans),
            blocked: RwLock::new(blocked),
            age: RwLock::new(age),
        },
        nonces: nonce_table::load(&transaction)?,
        peers,
        windows,
        key_records: key_records::load(&transaction)?,
        vault_keys: key_records::load_vaults(&transaction)?,
    })
}
