//! Requests that a node never signs: its operator has vetoed them, or a person has rejected them.
//!
//! Files of the node's folder, which only root and the node's user can write to: `vetoed/UUID` and `rejected/UUID`. The
//! first are the operator's; nothing that comes over the bus makes or removes one, so an orchestrator that withholds a
//! person's rejection cannot get the node to sign. The second the node makes itself when an orchestrator passes on what a
//! person has signed. What cannot be looked at is not signed.

use std::{io, path::Path};

use covault_core::{
    fault::{Class, Fault},
    ids::RequestId,
};
use parking_lot::Mutex;

use crate::marks::MarkFolder;

const VETOED: &str = "vetoed";
const REJECTED: &str = "rejected";
/// Most rejections that are kept: who may reject could fill the disk otherwise. The operator's vetoes have no bound.
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
    /// How many rejections there are, once they were counted.
    count: Mutex<Option<usize>>,
    most: usize,
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
            count: Mutex::default(),
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

    /// A person rejects a request for good; who calls this has verified that. On disk when it returns. False when it was
    /// there.
    ///
    /// # Errors
    /// [`Class::Unavailable`] when the disk fails, [`Class::Limited`] when there are too many.
    pub(crate) fn reject(&self, request: RequestId) -> Result<bool, Fault> {
        let mark = request.to_string();
        let mut count = self.count.lock();
        if self.rejected.is_there(&mark).map_err(failed)? {
            return Ok(false);
        }
        let known = match *count {
            Some(known) => known,
            None => self.rejected.all().map_err(failed)?.len(),
        };
        if known >= self.most {
            let sentence = "this node keeps no more rejections; its operator can veto the request (covault node veto)";
            return Err(Fault::new(Class::Limited, sentence));
        }
        self.rejected.put(&mark).map_err(failed)?;
        *count = Some(known.saturating_add(1));
        Ok(true)
    }

    /// Why the request must not be signed; `None`: it may be.
    ///
    /// # Errors
    /// [`Class::Unavailable`] when that cannot be told: it must not be signed then either.
    pub fn of_request(&self, request: RequestId) -> Result<Option<Veto>, Fault> {
        let mark = request.to_string();
        if self.vetoed.is_there(&mark).map_err(failed)? {
            return Ok(Some(Veto::Operator));
        }
        let rejected = self.rejected.is_there(&mark).map_err(failed)?;
        Ok(rejected.then_some(Veto::Person))
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::fs;

    use super::*;

    fn request(last: u8) -> RequestId {
        RequestId::from_bytes([last; 16])
    }

    #[test]
    fn veto__should_hold_for_its_request_for_good_and_where_nobody_can_look() {
        let folder = tempfile::tempdir().unwrap();
        let store = VetoStore::of(folder.path());
        assert_eq!(store.of_request(request(1)).unwrap(), None);
        for _ in 0..2 {
            store.veto(request(1)).unwrap();
        }
        let store = VetoStore::of(folder.path());
        assert_eq!(store.of_request(request(1)).unwrap(), Some(Veto::Operator));
        assert_eq!(store.of_request(request(2)).unwrap(), None);
        fs::remove_dir_all(folder.path().join(VETOED)).unwrap();
        // Not a folder.
        fs::write(folder.path().join(VETOED), b"").unwrap();
        assert!(store.of_request(request(2)).is_err());
        assert!(store.veto(request(2)).is_err());
    }

    #[test]
    fn rejections__should_be_kept_for_good_and_be_bounded_apart_from_vetoes() {
        let folder = tempfile::tempdir().unwrap();
        let store = VetoStore {
            most: 2,
            ..VetoStore::of(folder.path())
        };
        assert!(store.reject(request(1)).unwrap());
        assert!(!store.reject(request(1)).unwrap());
        // Counted anew by who opens it.
        let store = VetoStore {
            most: 2,
            ..VetoStore::of(folder.path())
        };
        assert!(store.reject(request(2)).unwrap());
        let full = store.reject(request(3)).unwrap_err();
        assert_eq!(full.class(), &Class::Limited);
        assert!(!store.reject(request(2)).unwrap());
        assert_eq!(store.of_request(request(2)).unwrap(), Some(Veto::Person));
        assert_eq!(store.of_request(request(3)).unwrap(), None);
        store.veto(request(3)).unwrap();
        assert_eq!(store.of_request(request(3)).unwrap(), Some(Veto::Operator));
        fs::remove_dir_all(folder.path().join(REJECTED)).unwrap();
        fs::write(folder.path().join(REJECTED), b"").unwrap();
        assert!(store.of_request(request(4)).is_err());
        assert!(store.reject(request(4)).is_err());
    }
}
