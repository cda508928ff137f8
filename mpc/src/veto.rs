//! Requests that a node's operator has vetoed: the node never signs them.
//!
//! Files of the node's folder, which only root and the node's user can write to: `vetoed/UUID`. Nothing that comes over
//! the bus makes or removes one, so an orchestrator that withholds a person's rejection cannot get the node to sign. What
//! cannot be looked at is vetoed.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use covault_core::{fault::Fault, ids::RequestId};

const FOLDER: &str = "vetoed";

/// What is vetoed on one node.
pub struct VetoStore {
    node_folder: PathBuf,
}

fn failed(cause: io::Error) -> Fault {
    Fault::unavailable("the vetoes of this node cannot be read or written").caused_by(cause)
}

impl VetoStore {
    /// Of the node with this folder, which must be there.
    pub fn of(node_folder: &Path) -> Self {
        Self {
            node_folder: node_folder.to_owned(),
        }
    }

    fn path(&self, request: RequestId) -> PathBuf {
        self.node_folder.join(FOLDER).join(request.to_string())
    }

    /// Vetoes a request for good. On disk, and so in force, when it returns.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when the disk fails.
    pub fn veto(&self, request: RequestId) -> Result<(), Fault> {
        let sync = |path: &Path| fs::File::open(path).and_then(|it| it.sync_all());
        let folder = self.node_folder.join(FOLDER);
        // Root may veto what another user's node has to see, whatever root's umask is.
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&folder)
            .and_then(|()| fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)))
            .and_then(|()| sync(&self.node_folder))
            .map_err(failed)?;
        fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(self.path(request))
            .and_then(|file| {
                file.set_permissions(fs::Permissions::from_mode(0o644))?;
                file.sync_all()
            })
            .and_then(|()| sync(&folder))
            .map_err(failed)
    }

    /// Whether the request must not be signed.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when that cannot be told: it must not be signed then either.
    pub fn is_vetoed(&self, request: RequestId) -> Result<bool, Fault> {
        match fs::symlink_metadata(self.path(request)) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn veto__should_be_seen_by_the_nodes_user_whatever_the_umask_of_root() {
        let node_folder = tempfile::tempdir().unwrap();
        let request = RequestId::from_bytes([1; 16]);
        let folder = node_folder.path().join(FOLDER);
        let file = folder.join(request.to_string());
        // What a umask of 077 leaves.
        fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
        fs::write(&file, b"").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        VetoStore::of(node_folder.path()).veto(request).unwrap();
        for (path, wanted) in [(&folder, 0o755), (&file, 0o644)] {
            let mode = fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, wanted, "{}", path.display());
        }
    }

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
