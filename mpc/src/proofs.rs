//! The proofs of generations that a node has accepted.
//!
//! A node that has retired a share for a generation, or has taken one into use, can show others why.
//! Files of its folder: `proofs/VAULT.KEY/EPOCH.ORDER.open` is one that some party has not confirmed
//! yet, `.settled` one that all have, or that was only shown to us on the way to another one. Nothing in
//! them is secret.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use covault_core::{
    fault::Fault,
    order::{ProvenGeneration, ReshareOrder},
};

use crate::identity::write_private;

const FOLDER: &str = "proofs";
const OPEN: &str = "open";
const SETTLED: &str = "settled";
/// The latest proofs of a key that are kept.
pub(crate) const MAX_PROOFS: usize = 32;
/// Version of the files.
const VERSION: u8 = 1;

/// The proofs that one node keeps.
pub(crate) struct ProofStore {
    folder: PathBuf,
}

fn failed(cause: io::Error) -> Fault {
    Fault::unavailable("the folder of proofs cannot be read or written").caused_by(cause)
}

/// What is in a folder; nothing when it is not there.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, Fault> {
    let found = match fs::read_dir(folder) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut paths = Vec::new();
    for entry in found {
        paths.push(entry.map_err(failed)?.path());
    }
    // By epoch within a key.
    paths.sort_unstable();
    Ok(paths)
}

fn has(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

/// `None` when it is nothing that we have written: others have the proof, too.
fn read(path: &Path) -> Result<Option<ProvenGeneration>, Fault> {
    let bytes = fs::read(path).map_err(failed)?;
    Ok(match bytes.split_first() {
        Some((&VERSION, body)) => bcs::from_bytes(body).ok(),
        _ => None,
    })
}

impl ProofStore {
    /// Those in a node's folder.
    pub(crate) fn of(node_folder: &Path) -> Self {
        Self {
            folder: node_folder.join(FOLDER),
        }
    }

    fn of_key(&self, order: &ReshareOrder) -> PathBuf {
        let key = order.root_public_key.get(..8).unwrap_or_default();
        let name = format!("{}.{}", order.vault, hex::encode(key));
        self.folder.join(name)
    }

    fn path(&self, order: &ReshareOrder, extension: &str) -> Result<PathBuf, Fault> {
        let id = order.id()?;
        let id = hex::encode(id.get(..8).unwrap_or_default());
        let name = format!("{:010}.{id}.{extension}", order.new.epoch);
        Ok(self.of_key(order).join(name))
    }

    fn write(&self, proven: &ProvenGeneration, extension: &str) -> Result<(), Fault> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(self.of_key(&proven.order))
            .map_err(failed)?;
        let body = bcs::to_bytes(proven).map_err(Fault::bug)?;
        let path = self.path(&proven.order, extension)?;
        write_private(&path, &[&[VERSION], &*body].concat()).map_err(failed)
    }

    fn has(&self, order: &ReshareOrder, extension: &str) -> Result<bool, Fault> {
        Ok(self.path(order, extension)?.exists())
    }

    /// Keeps a proof that is taken, and those of earlier ones that led to it; on disk when it returns.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when the disk fails.
    pub(crate) fn keep(
        &self,
        proven: &ProvenGeneration,
        way: &[&ProvenGeneration],
    ) -> Result<(), Fault> {
        let order = &proven.order;
        if self.has(order, OPEN)? {
            return Ok(());
        }
        if self.has(order, SETTLED)? {
            // Shown to us on the way to another one before, no matter who did so: the others may not know.
            let (from, to) = (self.path(order, SETTLED)?, self.path(order, OPEN)?);
            return fs::rename(from, to).map_err(failed);
        }
        self.write(proven, OPEN)?;
        for it in way {
            let earlier = it.order.new.epoch < order.new.epoch;
            if earlier && !self.has(&it.order, OPEN)? && !self.has(&it.order, SETTLED)? {
                self.write(it, SETTLED)?;
            }
        }
        let kept = entries(&self.of_key(order))?;
        let excess = kept.len().saturating_sub(MAX_PROOFS);
        for path in kept.iter().take(excess) {
            fs::remove_file(path).map_err(failed)?;
        }
        Ok(())
    }

    /// Those of the key that came before, oldest first.
    ///
    /// # Errors
    /// As [`ProofStore::keep`].
    pub(crate) fn before(&self, order: &ReshareOrder) -> Result<Vec<ProvenGeneration>, Fault> {
        let mut proven = self.known(order)?;
        proven.retain(|it| it.order.new.epoch < order.new.epoch);
        Ok(proven)
    }

    /// Those of the key, by epoch.
    ///
    /// # Errors
    /// As [`ProofStore::keep`].
    pub(crate) fn known(&self, order: &ReshareOrder) -> Result<Vec<ProvenGeneration>, Fault> {
        let mut proven = Vec::new();
        for path in entries(&self.of_key(order))? {
            if has(&path, OPEN) || has(&path, SETTLED) {
                proven.extend(read(&path)?);
            }
        }
        Ok(proven)
    }

    /// Those of all keys that some party has not confirmed.
    ///
    /// # Errors
    /// As [`ProofStore::keep`].
    pub(crate) fn open(&self) -> Result<Vec<ProvenGeneration>, Fault> {
        let mut proven = Vec::new();
        for key in entries(&self.folder)? {
            for path in entries(&key)?.iter().filter(|path| has(path, OPEN)) {
                proven.extend(read(path)?);
            }
        }
        Ok(proven)
    }

    /// All parties have confirmed it.
    ///
    /// # Errors
    /// As [`ProofStore::keep`].
    pub(crate) fn mark_confirmed(&self, order: &ReshareOrder) -> Result<(), Fault> {
        let (from, to) = (self.path(order, OPEN)?, self.path(order, SETTLED)?);
        match fs::rename(from, to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::{
        ids::{SessionId, VaultId},
        order::{Generation, NodeId, ReshareProof},
        scheme::Scheme,
    };

    use super::*;

    fn proven(epoch: u32) -> ProvenGeneration {
        let generation = |epoch| Generation {
            epoch,
            threshold: 2,
            holders: vec![NodeId([4; 32]), NodeId([5; 32])],
        };
        ProvenGeneration {
            order: ReshareOrder {
                vault: VaultId::from_bytes([1; 16]),
                session: SessionId::from_bytes([3; 16]),
                scheme: Scheme::FrostEd25519,
                root_public_key: vec![2; 32],
                old: generation(epoch - 1),
                dealers: generation(0).holders,
                new: generation(epoch),
                issued_at_ms: 5,
                expires_at_ms: 6,
            },
            proof: ReshareProof(vec![(NodeId([4; 32]), vec![7; 64])]),
        }
    }

    #[test]
    fn proofs__should_be_kept_in_order_until_all_have_them() {
        let folder = tempfile::tempdir().unwrap();
        let proofs = ProofStore::of(folder.path());
        assert!(proofs.open().unwrap().is_empty());
        for _ in 0..2 {
            // Neither one that is its own way, nor a later one.
            let way = [&proven(9), &proven(10), &proven(12)];
            proofs.keep(&proven(10), &way).unwrap();
            assert_eq!(proofs.open().unwrap(), [proven(10)]);
        }
        proofs.keep(&proven(11), &[]).unwrap();
        assert_eq!(proofs.open().unwrap(), [proven(10), proven(11)]);
        let before = proofs.before(&proven(11).order).unwrap();
        assert_eq!(before, [proven(9), proven(10)]);
        for _ in 0..2 {
            proofs.mark_confirmed(&proven(10).order).unwrap();
            assert_eq!(proofs.open().unwrap(), [proven(11)]);
        }
        assert_eq!(proofs.before(&proven(11).order).unwrap(), before);
        // What was only on the way is to be shown once it is taken.
        proofs.keep(&proven(9), &[]).unwrap();
        assert_eq!(proofs.open().unwrap(), [proven(9), proven(11)]);
        for epoch in 12..100 {
            proofs.keep(&proven(epoch), &[]).unwrap();
        }
        let before = proofs.before(&proven(100).order).unwrap();
        assert_eq!(before.len(), MAX_PROOFS);
        assert_eq!(before.last(), Some(&proven(99)));
    }
}
