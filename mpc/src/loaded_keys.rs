//! The keys that a node holds shares of, ready to sign.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use covault_core::{
    attest::KeyStatement,
    derive::{ChildKey, KeyPath, RootKey},
    fault::{Class, Fault},
    ids::{SessionId, VaultId},
    order::NodeId,
    signature::Signature,
};
use parking_lot::{Mutex, RwLock};

use crate::{
    attest::{has_signed, statement, transcript},
    backend::{self, PlainShare, SignSetup, Signer},
    shares::{FIRST_EPOCH, ShareRecord},
};

/// Child public keys kept ready per root key.
const CACHED_CHILDREN: usize = 4096;

/// A key that the node holds a share of.
pub(crate) struct LoadedKey {
    pub(crate) record: ShareRecord,
    pub(crate) signer: Arc<dyn Signer>,
    /// Of the run that made the share.
    pub(crate) transcript: [u8; 32],
    /// Whether it is known that key generation has given a share to all holders.
    confirmed: AtomicBool,
    children: Mutex<HashMap<KeyPath, Arc<ChildKey>>>,
}

crate::secrets::secret!(LoadedKey);

impl LoadedKey {
    pub(crate) fn record(&self) -> &ShareRecord {
        &self.record
    }

    pub(crate) fn statement(&self) -> KeyStatement {
        statement(&self.record, self.transcript)
    }

    /// Checks that every holder has stated that its share is on disk. The last round of key generation
    /// can reach some and not others: they would have a key that too few can sign with.
    pub(crate) fn check_confirmed(&self, signatures: &[Vec<u8>]) -> Result<(), Fault> {
        // Later shares are taken into use only when all new holders have said the same.
        if self.record.epoch != FIRST_EPOCH || self.confirmed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (text, holders) = (self.statement().text(), &self.record.holders);
        let all = signatures.len() == holders.len()
            && holders
                .iter()
                .zip(signatures)
                .all(|(holder, signature)| has_signed(holder, &text, signature));
        if !all {
            return Err(Fault::field(
                "confirmed",
                "not every holder has stated that it has its share of this key",
            ));
        }
        self.confirmed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The child at a path. A wallet signs more than once, and deriving costs more than looking.
    pub(crate) fn child(&self, path: &KeyPath) -> Result<Arc<ChildKey>, Fault> {
        let children = || self.children.lock();
        if let Some(child) = children().get(path) {
            return Ok(Arc::clone(child));
        }
        let child = Arc::new(self.record.key.root.child(path)?);
        let mut children = children();
        if children.len() >= CACHED_CHILDREN {
            children.clear();
        }
        children.insert(path.clone(), Arc::clone(&child));
        Ok(child)
    }
}

/// The keys of a node.
#[derive(Default)]
pub(crate) struct LoadedKeys {
    by_root: RwLock<HashMap<Vec<u8>, Arc<LoadedKey>>>,
    /// Who holds shares of these keys too.
    holders: RwLock<HashSet<NodeId>>,
}

impl LoadedKeys {
    pub(crate) fn load(records: Vec<ShareRecord>) -> Result<Self, Fault> {
        let keys = Self::default();
        for record in records {
            keys.insert(record)?;
        }
        Ok(keys)
    }

    /// Loads a share and takes it into use, unless there is one of a later epoch.
    pub(crate) fn insert(&self, record: ShareRecord) -> Result<(), Fault> {
        self.put(Self::open(record)?);
        Ok(())
    }

    /// Loads a share.
    pub(crate) fn open(mut record: ShareRecord) -> Result<LoadedKey, Fault> {
        let signer = signer(&record)?;
        let transcript = transcript(&record)?;
        // The signer has it now; one copy is enough.
        record.key.secret = Vec::new().into();
        Ok(LoadedKey {
            record,
            signer,
            transcript,
            confirmed: AtomicBool::new(false),
            children: Mutex::default(),
        })
    }

    /// Takes a share into use, unless there is one of a later epoch.
    pub(crate) fn put(&self, key: LoadedKey) {
        let root = key.record.key.root.public_key.clone();
        self.holders.write().extend(&key.record.holders);
        let key = Arc::new(key);
        let mut keys = self.by_root.write();
        let newer = keys
            .get(&root)
            .is_none_or(|known| known.record.epoch < key.record.epoch);
        if newer {
            keys.insert(root, key);
        }
    }

    /// Forgets the share of a key. Sessions that use it end as they will.
    pub(crate) fn remove(&self, root: &[u8]) {
        self.by_root.write().remove(root);
    }

    /// The epochs of the shares in use.
    pub(crate) fn epochs(&self) -> Vec<(VaultId, RootKey, u32)> {
        let keys = self.by_root.read();
        keys.values()
            .map(|key| {
                let record = &key.record;
                (record.vault, record.key.root.clone(), record.epoch)
            })
            .collect()
    }

    /// Those in use.
    pub(crate) fn all(&self) -> Vec<Arc<LoadedKey>> {
        let keys = self.by_root.read();
        keys.values().cloned().collect()
    }

    /// The root public keys of those in use.
    pub(crate) fn roots(&self) -> HashSet<Vec<u8>> {
        let keys = self.by_root.read();
        keys.keys().cloned().collect()
    }

    pub(crate) fn get(&self, root: &[u8]) -> Option<Arc<LoadedKey>> {
        self.by_root.read().get(root).cloned()
    }

    /// Whether the node shares a key with us.
    pub(crate) fn is_holder(&self, node: &NodeId) -> bool {
        self.holders.read().contains(node)
    }

    /// Who holds shares of our keys, this node too.
    pub(crate) fn holders(&self) -> BTreeSet<NodeId> {
        let holders = self.holders.read();
        holders.iter().copied().collect()
    }

    pub(crate) fn of_session(&self, session: SessionId) -> Option<Arc<LoadedKey>> {
        let keys = self.by_root.read();
        keys.values()
            .find(|key| key.record.session == session)
            .cloned()
    }

    pub(crate) fn count(&self) -> usize {
        self.by_root.read().len()
    }
}

/// In the place of the signer of a share that was put back from a backup.
struct RestoredSigner;

impl Signer for RestoredSigner {
    fn sign(&self, _: SignSetup) -> Result<Box<dyn backend::Session<Option<Signature>>>, Fault> {
        Err(Fault::new(
            Class::Invalid,
            "this share was restored from a backup: refresh the vault first",
        ))
    }
}

/// The scheme's signer, or the stand-in for a share that must not sign.
fn signer(record: &ShareRecord) -> Result<Arc<dyn Signer>, Fault> {
    if record.restored {
        // Damaged or not, now is the time to know.
        PlainShare::decode(&record.key.root, &record.key.secret)?;
        return Ok(Arc::new(RestoredSigner));
    }
    backend::of(record.scheme)?.open(&record.key)
}
