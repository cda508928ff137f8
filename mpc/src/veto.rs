//! Requests that a node's operator has vetoed: the node never signs them.
//!
//! Files of the node's folder, which only root and the node's user can write to: `vetoed/UUID`. Nothing that comes over
//! the bus makes or removes one, so an orchestrator that withholds a person's rejection cannot get the node to sign. What
//! cannot be looked at is vetoed.

use std::{io, path::Path};

use covault_core::{fault::Fault, ids::RequestId};

use crate::marks::MarkFolder;

const FOLDER: &str = "vetoed";

/// What is vetoed on one node.
pub struct VetoStore(MarkFolder);

fn failed(cause: io::Error) -> Fault {
    Fault::unavailable("the vetoes of this node cannot be read or written").caused_by(cause)
}

impl VetoStore {
    /// Of the node with this folder, which must be there.
    pub fn of(node_folder: &Path) -> Self {
        Self(MarkFolder::new(node_folder, FOLDER))
    }

    /// Vetoes a request for good. On disk, and so in force, when it returns.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when the disk fails.
    pub fn veto(&self, request: RequestId) -> Result<(), Fault> {
        self.0.put(&request.to_string()).map_err(failed)
    }

    /// Whether the request must not be signed.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when that cannot be told: it must not be signed then either.
    pub fn is_vetoed(&self, request: RequestId) -> Result<bool, Fault> {
        self.0.is_there(&request.to_string()).map_err(failed)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn veto__should_hold_for_its_request_for_good_and_where_nobody_can_look() {
        let folder = tempfile::tempdir().unwrap();
        let request = |last| RequestId::from_bytes([last; 16]);
        let store = VetoStore::of(folder.path());
        assert!(!store.is_vetoed(request(1)).unwrap());
        for _ in 0..2 {
            store.veto(request(1)).unwrap();
        }
        let store = VetoStore::of(folder.path());
        assert!(store.is_vetoed(request(1)).unwrap() && !store.is_vetoed(request(2)).unwrap());
        fs::remove_dir_all(folder.path().join(FOLDER)).unwrap();
        // Not a folder.
        fs::write(folder.path().join(FOLDER), b"").unwrap();
        assert!(store.is_vetoed(request(2)).is_err());
        assert!(store.veto(request(2)).is_err());
    }
}
