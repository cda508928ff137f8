//! Changes of the node's keys that its operator has permitted.
//!
//! Other holders of a key, or another threshold, are made only when the operator of each node that takes part has
//! permitted this very change on the node's own machine: an orchestrator alone must not decide who has a key. A
//! change is permitted once: it names the present generation, so the permit is void once the change is made. Files of
//! the node's folder, so that a running node sees them: `permits/CODE.asked` is a change that a trusted orchestrator
//! has asked for, `permits/CODE.permit` that it is permitted, and until when.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use covault_core::{
    fault::{Class, Fault},
    order::ReshareChange,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::identity::write_private;

const FOLDER: &str = "permits";
const ASKED: &str = "asked";
const PERMIT: &str = "permit";
/// Changes that are kept for operators to look at. An orchestrator that asks for more has the others
/// forgotten, and has to ask again.
const MAX_ASKED: usize = 64;
/// Version of the files.
const VERSION: u8 = 1;

/// A permit.
#[derive(Serialize, Deserialize)]
struct Permit {
    /// [`ReshareChange::id`].
    change: [u8; 32],
    /// In milliseconds since the Unix epoch.
    until_ms: u64,
}

/// The permits of one node.
pub struct PermitStore {
    folder: PathBuf,
}

fn failed(cause: io::Error) -> Fault {
    Fault::unavailable("the folder of permits cannot be read or written").caused_by(cause)
}

impl PermitStore {
    /// Those in a node's folder.
    pub fn of(node_folder: &Path) -> Self {
        Self {
            folder: node_folder.join(FOLDER),
        }
    }

    fn path(&self, code: &str, extension: &str) -> PathBuf {
        self.folder.join(format!("{code}.{extension}"))
    }

    fn write<T: Serialize>(&self, code: &str, extension: &str, what: &T) -> Result<(), Fault> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)
            .map_err(failed)?;
        let body = bcs::to_bytes(what).map_err(Fault::bug)?;
        write_private(&self.path(code, extension), &[&[VERSION], &*body].concat()).map_err(failed)
    }

    /// What is in a file; `None` when it is not there, or nothing that we have written.
    fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Fault> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        Ok(match bytes.split_first() {
            Some((&VERSION, body)) => bcs::from_bytes(body).ok(),
            _ => None,
        })
    }

    fn files(&self, extension: &str) -> Result<Vec<PathBuf>, Fault> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut files = Vec::new();
        for entry in entries {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|found| found == extension) {
                files.push(path);
            }
        }
        files.sort_unstable();
        Ok(files)
    }

    fn remove(path: &Path) -> Result<(), Fault> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        }
    }

    /// Keeps a change that an orchestrator asks for, for the operator to look at.
    ///
    /// # Errors
    /// [`Class::Unavailable`] when the disk fails.
    pub fn ask(&self, change: &ReshareChange) -> Result<(), Fault> {
        let code = change.code()?;
        if self.path(&code, ASKED).exists() {
            return Ok(());
        }
        let asked = self.files(ASKED)?;
        if asked.len() >= MAX_ASKED {
            for path in asked {
                Self::remove(&path)?;
            }
        }
        self.write(&code, ASKED, change)
    }

    /// The changes that were asked for and not made.
    ///
    /// # Errors
    /// [`Class::Unavailable`] when the disk fails.
    pub fn asked(&self) -> Result<Vec<ReshareChange>, Fault> {
        let mut changes = Vec::new();
        for path in self.files(ASKED)? {
            changes.extend(Self::read::<ReshareChange>(&path)?);
        }
        Ok(changes)
    }

    /// Permits a change, until a time in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// [`Class::Unavailable`] when the disk fails.
    pub fn grant(&self, change: &ReshareChange, until_ms: u64) -> Result<(), Fault> {
        let permit = Permit {
            change: change.id()?,
            until_ms,
        };
        self.write(&change.code()?, PERMIT, &permit)
    }

    /// Whether a change is permitted now.
    ///
    /// # Errors
    /// [`Class::Unavailable`] when the disk fails.
    pub fn holds(&self, change: &ReshareChange, now_ms: u64) -> Result<bool, Fault> {
        let permit = Self::read::<Permit>(&self.path(&change.code()?, PERMIT))?;
        let id = change.id()?;
        Ok(permit.is_some_and(|permit| permit.change == id && now_ms < permit.until_ms))
    }

    /// The change was made.
    ///
    /// # Errors
    /// [`Class::Unavailable`] when the disk fails.
    pub fn use_up(&self, change: &ReshareChange) -> Result<(), Fault> {
        let code = change.code()?;
        if !self.path(&code, PERMIT).exists() && !self.path(&code, ASKED).exists() {
            return Ok(());
        }
        Self::remove(&self.path(&code, PERMIT))?;
        Self::remove(&self.path(&code, ASKED))?;
        fs::File::open(&self.folder)
            .and_then(|folder| folder.sync_all())
            .map_err(failed)
    }
}

/// The refusal of a change that is not permitted.
pub(crate) fn not_permitted(change: &ReshareChange) -> Result<Fault, Fault> {
    let sentence = format!(
        "the operator of this node has not permitted this change: run covault node permit {} on its machine",
        change.code()?
    );
    Ok(Fault::new(Class::Forbidden, sentence))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::{
        ids::VaultId,
        order::{Generation, NodeId},
        scheme::Scheme,
    };

    use super::*;

    fn change(threshold: u16) -> ReshareChange {
        ReshareChange {
            vault: VaultId::from_bytes([1; 16]),
            scheme: Scheme::FrostEd25519,
            root_public_key: vec![2; 32],
            old: Generation {
                epoch: 3,
                threshold: 2,
                holders: vec![NodeId([4; 32]), NodeId([5; 32])],
            },
            threshold,
            holders: vec![NodeId([4; 32]), NodeId([6; 32])],
        }
    }

    #[test]
    fn permit__should_be_for_one_change_once_and_for_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let permits = PermitStore::of(folder.path());
        assert!(permits.asked().unwrap().is_empty());
        permits.ask(&change(2)).unwrap();
        permits.ask(&change(2)).unwrap();
        assert_eq!(permits.asked().unwrap(), [change(2)]);
        assert!(!permits.holds(&change(2), 0).unwrap());
        permits.grant(&change(2), 1_000).unwrap();
        assert!(permits.holds(&change(2), 999).unwrap());
        assert!(!permits.holds(&change(2), 1_000).unwrap());
        let mut others = [change(3), change(2), change(2)];
        others[1].old.epoch = 4;
        others[2].holders.swap(0, 1);
        for other in others {
            assert!(!permits.holds(&other, 0).unwrap(), "{other:?}");
        }
        // A permit in another one's name is none.
        let code = change(2).code().unwrap();
        fs::copy(
            permits.path(&code, PERMIT),
            permits.path(&change(3).code().unwrap(), PERMIT),
        )
        .unwrap();
        assert!(!permits.holds(&change(3), 0).unwrap());
        for _ in 0..2 {
            permits.use_up(&change(2)).unwrap();
            assert!(!permits.holds(&change(2), 0).unwrap());
        }
        assert!(permits.asked().unwrap().is_empty());
        for threshold in 0..200 {
            permits.ask(&change(threshold)).unwrap();
        }
        assert!(permits.asked().unwrap().len() <= MAX_ASKED);
    }
}
