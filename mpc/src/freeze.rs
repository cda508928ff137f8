//! What a node's operator has frozen: the node signs nothing of it until it is thawed.
//!
//! Files of the node's folder, which only root and the node's user can write to: `frozen/all` for everything,
//! `frozen/UUID` for a vault. Nothing that comes over the bus makes or removes one. A running node looks at them before
//! each step of a signature, so that what is on disk holds at once; and what cannot be looked at is frozen.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use covault_core::{fault::Fault, ids::VaultId};

const FOLDER: &str = "frozen";
const ALL: &str = "all";

/// What is frozen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frozen {
    /// Everything.
    pub all: bool,
    /// These vaults, in order, whether or not everything is.
    pub vaults: Vec<VaultId>,
}

/// What is frozen on one node.
pub struct FreezeStore {
    node_folder: PathBuf,
}

fn failed(cause: io::Error) -> Fault {
    Fault::unavailable("the freeze files of this node cannot be read or written").caused_by(cause)
}

impl FreezeStore {
    /// Of the node with this folder, which must be there.
    pub fn of(node_folder: &Path) -> Self {
        Self {
            node_folder: node_folder.to_owned(),
        }
    }

    fn folder(&self) -> PathBuf {
        self.node_folder.join(FOLDER)
    }

    fn path(&self, vault: Option<VaultId>) -> PathBuf {
        let name = vault.map_or_else(|| ALL.to_owned(), |vault| vault.to_string());
        self.folder().join(name)
    }

    fn sync(path: &Path) -> Result<(), Fault> {
        fs::File::open(path)
            .and_then(|it| it.sync_all())
            .map_err(failed)
    }

    /// Freezes a vault, or everything. On disk, and so in force, when it returns.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when the disk fails.
    pub fn freeze(&self, vault: Option<VaultId>) -> Result<(), Fault> {
        let folder = self.folder();
        // Root may freeze what another user's node has to see, whatever root's umask is.
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&folder)
            .and_then(|()| fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)))
            .map_err(failed)?;
        Self::sync(&self.node_folder)?;
        fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(self.path(vault))
            .and_then(|file| {
                file.set_permissions(fs::Permissions::from_mode(0o644))?;
                file.sync_all()
            })
            .map_err(failed)?;
        Self::sync(&folder)
    }

    /// Thaws a vault, or what was frozen as everything; false when it was not frozen. A vault stays frozen as long as
    /// everything is.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when the disk fails.
    pub fn thaw(&self, vault: Option<VaultId>) -> Result<bool, Fault> {
        match fs::remove_file(self.path(vault)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(failed(error)),
        }
        Self::sync(&self.folder()).map(|()| true)
    }

    /// Whether nothing may be signed for a vault.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when that cannot be told: nothing may be signed then either.
    pub fn is_frozen(&self, vault: VaultId) -> Result<bool, Fault> {
        let is_there = |path| match fs::symlink_metadata(path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed(error)),
        };
        Ok(is_there(self.path(None))? || is_there(self.path(Some(vault)))?)
    }

    /// What is frozen.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when it cannot be read.
    pub fn list(&self) -> Result<Frozen, Fault> {
        let entries = match fs::read_dir(self.folder()) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Frozen::default()),
            Err(error) => return Err(failed(error)),
        };
        let mut frozen = Frozen::default();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            match name.to_str() {
                Some(ALL) => frozen.all = true,
                Some(name) => frozen.vaults.extend(name.parse::<VaultId>()),
                None => {}
            }
        }
        frozen.vaults.sort_unstable();
        Ok(frozen)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn vault(last: u8) -> VaultId {
        VaultId::from_bytes([last; 16])
    }

    #[test]
    fn freeze__should_hold_for_a_vault_or_for_all_until_it_is_thawed() {
        let folder = tempfile::tempdir().unwrap();
        let store = FreezeStore::of(folder.path());
        assert_eq!(store.list().unwrap(), Frozen::default());
        assert!(!store.is_frozen(vault(1)).unwrap());
        assert!(!store.thaw(None).unwrap() && !store.thaw(Some(vault(1))).unwrap());
        for _ in 0..2 {
            store.freeze(Some(vault(1))).unwrap();
        }
        // Whoever opens it anew finds the same.
        let store = FreezeStore::of(folder.path());
        assert!(store.is_frozen(vault(1)).unwrap() && !store.is_frozen(vault(2)).unwrap());
        store.freeze(None).unwrap();
        assert!(store.is_frozen(vault(2)).unwrap());
        let (all, vaults) = (true, vec![vault(1)]);
        assert_eq!(store.list().unwrap(), Frozen { all, vaults });
        assert!(store.thaw(Some(vault(1))).unwrap());
        assert!(store.is_frozen(vault(1)).unwrap());
        assert!(store.thaw(None).unwrap());
        assert!(!store.is_frozen(vault(1)).unwrap());
    }

    #[test]
    fn freeze__should_hold_where_nobody_can_look() {
        let folder = tempfile::tempdir().unwrap();
        let store = FreezeStore::of(folder.path());
        // Not a folder.
        fs::write(folder.path().join(FOLDER), b"").unwrap();
        assert!(store.is_frozen(vault(1)).is_err());
        assert!(store.freeze(None).is_err());
        fs::remove_file(folder.path().join(FOLDER)).unwrap();
        store.freeze(Some(vault(1))).unwrap();
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o022;
        assert_eq!(mode(store.folder()) | mode(store.path(Some(vault(1)))), 0);
        // A link to nowhere is there.
        std::os::unix::fs::symlink("/nowhere", store.path(Some(vault(2)))).unwrap();
        assert!(store.is_frozen(vault(2)).unwrap());
    }
}
