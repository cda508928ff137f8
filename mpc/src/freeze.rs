//! What a node's operator has frozen: the node signs nothing for it until it is thawed.
//!
//! Files of the node's folder, which only root and the node's user can write to: `frozen/all` for everything,
//! `frozen/UUID` for a vault. Nothing that comes over the bus makes or removes one. A running node looks at them before
//! each step of a signature, so that what is on disk holds at once; and what cannot be looked at is frozen.

use std::{io, path::Path};

use covault_core::{fault::Fault, ids::VaultId};

use crate::marks::MarkFolder;

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
pub struct FreezeStore(MarkFolder);

fn failed(cause: io::Error) -> Fault {
    Fault::unavailable("the freeze files of this node cannot be read or written").caused_by(cause)
}

fn mark(vault: Option<VaultId>) -> String {
    vault.map_or_else(|| ALL.to_owned(), |vault| vault.to_string())
}

impl FreezeStore {
    /// Of the node with this folder, which must be there.
    pub fn of(node_folder: &Path) -> Self {
        Self(MarkFolder::new(node_folder, FOLDER))
    }

    /// Freezes a vault, or everything. On disk, and so in force, when it returns.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when the disk fails.
    pub fn freeze(&self, vault: Option<VaultId>) -> Result<(), Fault> {
        self.0.put(&mark(vault)).map_err(failed)
    }

    /// Thaws a vault, or what was frozen as everything; false when it was not frozen. A vault stays frozen as long as
    /// everything is.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when the disk fails.
    pub fn thaw(&self, vault: Option<VaultId>) -> Result<bool, Fault> {
        self.0.take_away(&mark(vault)).map_err(failed)
    }

    /// Whether nothing may be signed for a vault.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when that cannot be told: nothing may be signed then either.
    pub fn is_frozen(&self, vault: VaultId) -> Result<bool, Fault> {
        let is_there = |vault| self.0.is_there(&mark(vault)).map_err(failed);
        Ok(is_there(None)? || is_there(Some(vault))?)
    }

    /// What is frozen.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when it cannot be read.
    pub fn list(&self) -> Result<Frozen, Fault> {
        let mut frozen = Frozen::default();
        for name in self.0.all().map_err(failed)? {
            match name.as_str() {
                ALL => frozen.all = true,
                name => frozen.vaults.extend(name.parse::<VaultId>()),
            }
        }
        frozen.vaults.sort_unstable();
        Ok(frozen)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

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
        // Anyone who opens it again finds the same.
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
        let frozen = folder.path().join(FOLDER);
        let marked = frozen.join(vault(1).to_string());
        assert_eq!(mode(frozen.clone()) | mode(marked), 0);
        // A link to nowhere is there.
        std::os::unix::fs::symlink("/nowhere", frozen.join(vault(2).to_string())).unwrap();
        assert!(store.is_frozen(vault(2)).unwrap());
    }
}
