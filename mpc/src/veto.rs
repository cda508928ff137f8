//! Requests that a node never signs: its operator has vetoed them, or a person has rejected them.
//!
//! Files of the node's folder, which only root and the node's user can write to: `vetoed/UUID` and `rejected/VAULT.UUID`. The
//! first are the operator's; nothing that comes over the bus makes or removes one, so an orchestrator that withholds a
//! person's rejection cannot get the node to sign. The second the node makes itself when an orchestrator passes on what a
//! person has signed, and for requests of the vault that was signed with it: a person of one vault stops nothing of another.
//! What cannot be looked at is not signed.

use std::{collections::HashMap, io, path::Path};

use covault_core::{
    fault::{Class, Fault},
    ids::{RequestId, VaultId},
};
use parking_lot::Mutex;

use crate::marks::MarkFolder;

const VETOED: &str = "vetoed";
const REJECTED: &str = "rejected";
/// Most rejections of one vault that are kept: who may reject could fill the disk otherwise. The operator's vetoes have no
/// bound.
const MAX_REJECTED: usize = 20_000;

/// Why a request is never signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Veto {
    /// The node's operator has vetoed it.
    Operator,
    /// A person has rejected it.
    Person,
}

/// What one node never signs.
pub struct VetoStore {
    vetoed: MarkFolder,
    rejected: MarkFolder,
    /// How many rejections of each vault there are, once they were counted.
    counts: Mutex<Option<HashMap<String, usize>>>,
    most: usize,
}

fn mark(vault: VaultId, request: RequestId) -> String {
    format!("{vault}.{request}")
}

fn failed(cause: io::Error) -> Fault {
    Fault::unavailable("the vetoes of this node cannot be read or written").caused_by(cause)
}

impl VetoStore {
    /// Of the node with this folder, which must be there.
    pub fn of(node_folder: &Path) -> Self {
        Self {
            vetoed: MarkFolder::new(node_folder, VETOED),
            rejected: MarkFolder::new(node_folder, REJECTED),
            counts: Mutex::default(),
            most: MAX_REJECTED,
        }
    }

    /// The operator vetoes a request for good. On disk, and so in force, when it returns.
    ///
    /// # Errors
    /// [`Class::Unavailable`] when the disk fails.
    pub fn veto(&self, request: RequestId) -> Result<(), Fault> {
        self.vetoed.put(&request.to_string()).map_err(failed)
    }

    /// A person rejects a request of a vault for good; who calls this has verified that. On disk when it returns. False when
    /// it was there.
    ///
    /// # Errors
    /// [`Class::Unavailable`] when the disk fails, [`Class::Limited`] when there are too many.
    pub fn reject(&self, vault: VaultId, request: RequestId) -> Result<bool, Fault> {
        let mark = mark(vault, request);
        let mut counts = self.counts.lock();
        if self.rejected.is_there(&mark).map_err(failed)? {
            return Ok(false);
        }
        let counts = match &mut *counts {
            Some(known) => known,
            unknown => {
                let mut found = HashMap::new();
                for mark in self.rejected.all().map_err(failed)? {
                    if let Some((vault, _)) = mark.split_once('.') {
                        *found.entry(vault.to_owned()).or_insert(0) += 1;
                    }
                }
                unknown.insert(found)
            }
        };
        let known = counts.entry(vault.to_string()).or_insert(0);
        if *known >= self.most {
            let sentence = "this node keeps no more rejections of the vault; its operator can veto the request (covault node veto)";
            return Err(Fault::new(Class::Limited, sentence));
        }
        self.rejected.put(&mark).map_err(failed)?;
        *known = known.saturating_add(1);
        Ok(true)
    }

    /// Why the request must not be signed; `None`: it may be.
    ///
    /// # Errors
    /// [`Class::Unavailable`] when that cannot be told: it must not be signed then either.
    pub fn of_request(&self, vault: VaultId, request: RequestId) -> Result<Option<Veto>, Fault> {
        if self.vetoed.is_there(&request.to_string()).map_err(failed)? {
            return Ok(Some(Veto::Operator));
        }
        let rejected = self.rejected.is_there(&mark(vault, request));
        let rejected = rejected.map_err(failed)?;
        Ok(rejected.then_some(Veto::Person))
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::fs;

    use super::*;

    fn vault() -> VaultId {
        VaultId::from_bytes([1; 16])
    }

    fn request(last: u8) -> RequestId {
        RequestId::from_bytes([last; 16])
    }

    #[test]
    fn veto__should_hold_for_its_request_for_good_and_where_nobody_can_look() {
        let folder = tempfile::tempdir().unwrap();
        let store = VetoStore::of(folder.path());
        assert_eq!(store.of_request(vault(), request(1)).unwrap(), None);
        for _ in 0..2 {
            store.veto(request(1)).unwrap();
        }
        let store = VetoStore::of(folder.path());
        assert_eq!(
            store.of_request(vault(), request(1)).unwrap(),
            Some(Veto::Operator)
        );
        assert_eq!(store.of_request(vault(), request(2)).unwrap(), None);
        fs::remove_dir_all(folder.path().join(VETOED)).unwrap();
        // Not a folder.
        fs::write(folder.path().join(VETOED), b"").unwrap();
        assert!(store.of_request(vault(), request(2)).is_err());
        assert!(store.veto(request(2)).is_err());
    }

    #[test]
    fn rejections__should_be_kept_for_good_and_be_bounded_by_vault_and_apart_from_vetoes() {
        let folder = tempfile::tempdir().unwrap();
        let store = VetoStore {
            most: 2,
            ..VetoStore::of(folder.path())
        };
        assert!(store.reject(vault(), request(1)).unwrap());
        assert!(!store.reject(vault(), request(1)).unwrap());
        // Counted again by who opens it.
        let store = VetoStore {
            most: 2,
            ..VetoStore::of(folder.path())
        };
        assert!(store.reject(vault(), request(2)).unwrap());
        let full = store.reject(vault(), request(3)).unwrap_err();
        assert_eq!(full.class(), &Class::Limited);
        assert!(!store.reject(vault(), request(2)).unwrap());
        // Another vault has room of its own, and its requests are others.
        let other = VaultId::from_bytes([2; 16]);
        assert_eq!(store.of_request(other, request(2)).unwrap(), None);
        assert!(store.reject(other, request(3)).unwrap());
        assert_eq!(
            store.of_request(vault(), request(2)).unwrap(),
            Some(Veto::Person)
        );
        assert_eq!(store.of_request(vault(), request(3)).unwrap(), None);
        store.veto(request(3)).unwrap();
        assert_eq!(
            store.of_request(vault(), request(3)).unwrap(),
            Some(Veto::Operator)
        );
        fs::remove_dir_all(folder.path().join(REJECTED)).unwrap();
        fs::write(folder.path().join(REJECTED), b"").unwrap();
        assert!(store.of_request(vault(), request(4)).is_err());
        assert!(store.reject(vault(), request(4)).is_err());
    }
}
