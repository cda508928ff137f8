//! Shares in files encrypted with age (age-encryption.org/v1), one folder per node.
//!
//! `keyring.age` holds an X25519 identity and is encrypted with a passphrase (scrypt);
//! `shares/*.age` are encrypted to that identity. So unlocking costs scrypt once per start. A
//! share's plaintext is a version byte, then BCS. `shares/*.pending` are shares that are not in use
//! yet. A file's name says which: vault, curve, epoch, and the first 8 bytes of the root key.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    str::FromStr as _,
};

use age::x25519;
use covault_core::{
    derive::RootKey,
    fault::{Class, Fault},
    ids::{SessionId, VaultId},
    order::NodeId,
    scheme::Scheme,
};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize as _, Zeroizing};

use super::{ShareRecord, ShareStore};
use crate::{
    backend::KeyShare, claims::Claims, identity::write_private, nonces::Nonces, primes::Primes,
};

/// The name of the keyring in a node's folder.
pub const KEYRING: &str = "keyring.age";
/// Version of a share's plaintext.
const VERSION: u8 = 1;
/// The highest scrypt work factor that is tried; each step doubles time and memory.
const MAX_WORK_FACTOR: u8 = 22;

/// The shares of one node's folder.
pub struct AgeFiles {
    folder: PathBuf,
    identity: x25519::Identity,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    vault: VaultId,
    epoch: u32,
    scheme: Scheme,
    session: SessionId,
    threshold: u16,
    holders: Vec<NodeId>,
    order: Option<[u8; 32]>,
    restored: bool,
    root: RootKey,
    secret: Vec<u8>,
}

impl Stored {
    fn of(record: &ShareRecord) -> Self {
        Self {
            vault: record.vault,
            epoch: record.epoch,
            scheme: record.scheme,
            session: record.session,
            threshold: record.threshold,
            holders: record.holders.clone(),
            order: record.order,
            restored: record.restored,
            root: record.key.root.clone(),
            secret: record.key.secret.to_vec(),
        }
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

impl AgeFiles {
    /// Opens a node's folder; makes folder and keyring when missing. `work_factor` is scrypt's
    /// log2 N for a new keyring (1 to 22; 18 takes about a second).
    ///
    /// # Errors
    /// [`Class::Invalid`] when the passphrase is wrong, the keyring is damaged, or it is missing
    /// while there are shares.
    pub fn open(folder: &Path, passphrase: &SecretString, work_factor: u8) -> Result<Self, Fault> {
        let shares = folder.join("shares");
        let path = folder.join(KEYRING);
        let refuse = |problem: &str| {
            Fault::new(
                Class::Invalid,
                format!("keyring {}: {problem}", path.display()),
            )
        };
        let failed = |cause: io::Error| refuse("cannot be read or written").caused_by(cause);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&shares)
            .map_err(failed)?;
        let identity = match fs::read(&path) {
            Ok(sealed) => {
                let mut lock = age::scrypt::Identity::new(passphrase.clone());
                lock.set_max_work_factor(MAX_WORK_FACTOR);
                let text = age::decrypt(&lock, &sealed)
                    .map(Zeroizing::new)
                    .map_err(|cause| {
                        refuse("cannot be opened: wrong passphrase or damaged file")
                            .caused_by(cause)
                    })?;
                std::str::from_utf8(&text)
                    .ok()
                    .and_then(|text| x25519::Identity::from_str(text.trim()).ok())
                    .ok_or_else(|| refuse("is damaged"))?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if fs::read_dir(&shares).map_err(failed)?.next().is_some() {
                    return Err(refuse("is missing, but there are shares that need it"));
                }
                if !(1..=MAX_WORK_FACTOR).contains(&work_factor) {
                    return Err(refuse("needs a work factor from 1 to 22"));
                }
                let identity = x25519::Identity::generate();
                let mut lock = age::scrypt::Recipient::new(passphrase.clone());
                lock.set_work_factor(work_factor);
                let sealed = age::encrypt(&lock, identity.to_string().expose_secret().as_bytes())
                    .map_err(|cause| refuse("cannot be encrypted").caused_by(cause))?;
                write_private(&path, &sealed).map_err(failed)?;
                identity
            }
            Err(error) => return Err(failed(error)),
        };
        Ok(Self {
            folder: shares,
            identity,
        })
    }

    /// The node's nonces in `claims`, sealed with a key that is made from the keyring.
    ///
    /// # Errors
    /// As [`Nonces::new`].
    pub fn nonces(&self, claims: &Claims) -> Result<Nonces, Fault> {
        Nonces::new(self.identity.to_string().expose_secret().as_bytes(), claims)
    }

    /// The primes of the same folder, encrypted to the same keyring.
    ///
    /// # Errors
    /// [`Class::Unavailable`] when their folder cannot be made.
    pub fn primes(&self) -> Result<Primes, Fault> {
        Primes::open(self.folder.with_file_name("primes"), self.identity.clone())
    }

    fn read(&self, path: &Path) -> Result<ShareRecord, Fault> {
        let refuse = || {
            Fault::new(
                Class::Invalid,
                format!("share file {}: is damaged", path.display()),
            )
        };
        let sealed = fs::read(path).map_err(|cause| refuse().caused_by(cause))?;
        let plain = age::decrypt(&self.identity, &sealed)
            .map(Zeroizing::new)
            .map_err(|cause| refuse().caused_by(cause))?;
        let stored = match plain.split_first() {
            Some((&VERSION, rest)) => bcs::from_bytes::<Stored>(rest),
            _ => return Err(refuse().caused_by("unknown version")),
        };
        // The decoder's message could quote the content.
        let mut stored = stored.map_err(|_| refuse())?;
        let secret = Zeroizing::new(std::mem::take(&mut stored.secret));
        Ok(ShareRecord {
            vault: stored.vault,
            epoch: stored.epoch,
            scheme: stored.scheme,
            session: stored.session,
            threshold: stored.threshold,
            holders: std::mem::take(&mut stored.holders),
            order: stored.order,
            restored: stored.restored,
            key: KeyShare {
                root: stored.root.clone(),
                secret,
            },
        })
    }
}

/// Decodes the plaintext of a share without its version, and encodes it again; for fuzz targets.
#[cfg(feature = "simulation")]
pub(crate) fn again(plain: &[u8]) -> Option<Vec<u8>> {
    bcs::from_bytes::<Stored>(plain)
        .and_then(|stored| bcs::to_bytes(&stored))
        .ok()
}

/// What [`again`] reads; for fuzz targets.
#[cfg(feature = "simulation")]
pub(crate) fn plaintext(record: &ShareRecord) -> Option<Vec<u8>> {
    bcs::to_bytes(&Stored::of(record)).ok()
}

/// What the files are called that are in use, and those that are not yet.
const IN_USE: &str = "age";
const PENDING: &str = "pending";

/// The name of a share's file without epoch: what comes before it, and after.
fn place(vault: VaultId, root: &RootKey) -> (String, String) {
    let key = hex::encode(root.public_key.get(..8).unwrap_or_default());
    (format!("{vault}.{}.", root.curve.name()), format!(".{key}"))
}

fn disk(cause: io::Error) -> Fault {
    Fault::unavailable("a share could not be stored or erased").caused_by(cause)
}

impl AgeFiles {
    fn path(&self, vault: VaultId, root: &RootKey, epoch: u32, extension: &str) -> PathBuf {
        let (before, after) = place(vault, root);
        self.folder
            .join(format!("{before}{epoch}{after}.{extension}"))
    }

    fn write(&self, record: &ShareRecord, extension: &str) -> Result<(), Fault> {
        let root = &record.key.root;
        let path = self.path(record.vault, root, record.epoch, extension);
        if path.exists() {
            return Err(Fault::new(
                Class::Conflict,
                "there is a share for this key already",
            ));
        }
        let stored = Stored::of(record);
        // Of its final size: a buffer that grows leaves copies behind.
        let size = bcs::serialized_size(&stored)
            .map_err(|_| Fault::bug("a share cannot be encoded"))?
            .saturating_add(1);
        let mut plain = Zeroizing::new(Vec::with_capacity(size));
        plain.push(VERSION);
        bcs::serialize_into(&mut *plain, &stored)
            .map_err(|_| Fault::bug("a share cannot be encoded"))?;
        let sealed = age::encrypt(&self.identity.to_public(), &plain).map_err(Fault::bug)?;
        write_private(&path, &sealed).map_err(disk)
    }

    fn files(&self, extension: &str) -> Result<Vec<PathBuf>, Fault> {
        let failed = |cause: io::Error| {
            Fault::new(
                Class::Invalid,
                format!("folder {}: cannot be read", self.folder.display()),
            )
            .caused_by(cause)
        };
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            // Anything else is an interrupted write: it was never complete.
            if path.extension().is_some_and(|found| found == extension) {
                files.push(path);
            }
        }
        Ok(files)
    }

    /// Names are on the disk when this returns.
    fn sync(&self) -> Result<(), Fault> {
        fs::File::open(&self.folder)
            .and_then(|folder| folder.sync_all())
            .map_err(disk)
    }
}

impl ShareStore for AgeFiles {
    fn save(&self, record: &ShareRecord) -> Result<(), Fault> {
        self.write(record, IN_USE)
    }

    fn save_pending(&self, record: &ShareRecord) -> Result<(), Fault> {
        self.write(record, PENDING)
    }

    fn any(&self) -> Result<bool, Fault> {
        Ok(!self.files(IN_USE)?.is_empty())
    }

    fn load_all(&self) -> Result<Vec<ShareRecord>, Fault> {
        self.files(IN_USE)?
            .iter()
            .map(|path| self.read(path))
            .collect()
    }

    fn load_pending(&self) -> Result<Vec<ShareRecord>, Fault> {
        self.files(PENDING)?
            .iter()
            .map(|path| self.read(path))
            .collect()
    }

    fn load(
        &self,
        vault: VaultId,
        root: &RootKey,
        epoch: u32,
        pending: bool,
    ) -> Result<ShareRecord, Fault> {
        let extension = if pending { PENDING } else { IN_USE };
        self.read(&self.path(vault, root, epoch, extension))
    }

    fn activate(&self, vault: VaultId, root: &RootKey, epoch: u32) -> Result<(), Fault> {
        let pending = self.path(vault, root, epoch, PENDING);
        let path = self.path(vault, root, epoch, IN_USE);
        if !path.exists() {
            fs::rename(&pending, &path).map_err(disk)?;
        }
        self.sync()
    }

    fn erase(&self, vault: VaultId, root: &RootKey, below: u32) -> Result<(), Fault> {
        let (before, after) = place(vault, root);
        let mut found = false;
        for path in self.files(IN_USE)?.into_iter().chain(self.files(PENDING)?) {
            let epoch = path
                .file_stem()
                .and_then(|name| name.to_str())
                .and_then(|name| name.strip_prefix(&before)?.strip_suffix(&after))
                .and_then(|epoch| epoch.parse::<u32>().ok());
            if epoch.is_some_and(|epoch| epoch < below) {
                fs::remove_file(&path).map_err(disk)?;
                found = true;
            }
        }
        if found { self.sync() } else { Ok(()) }
    }
}

crate::secrets::secret_form!(Stored);

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::signature::Curve;

    use super::*;

    fn record() -> ShareRecord {
        ShareRecord {
            vault: VaultId::from_bytes([1; 16]),
            epoch: 0,
            scheme: Scheme::FrostEd25519,
            session: SessionId::from_bytes([2; 16]),
            threshold: 2,
            holders: vec![NodeId([3; 32]), NodeId([4; 32])],
            order: None,
            restored: false,
            key: KeyShare {
                root: RootKey {
                    curve: Curve::Ed25519,
                    public_key: vec![5; 32],
                    chain_code: [6; 32],
                },
                secret: Zeroizing::new(b"the secret share".to_vec()),
            },
        }
    }

    fn open(folder: &Path, passphrase: &str) -> Result<AgeFiles, Fault> {
        AgeFiles::open(folder, &SecretString::from(passphrase.to_owned()), 4)
    }

    #[test]
    fn shares__should_come_back_with_the_passphrase_only() {
        let folder = tempfile::tempdir().unwrap();
        open(folder.path(), "right")
            .unwrap()
            .save(&record())
            .unwrap();
        assert!(open(folder.path(), "wrong").is_err());
        let records = open(folder.path(), "right").unwrap().load_all().unwrap();
        assert_eq!(records.len(), 1);
        let (expected, got) = (record(), &records[0]);
        assert_eq!(
            (got.vault, got.epoch, got.session),
            (expected.vault, expected.epoch, expected.session)
        );
        assert_eq!(
            (got.threshold, &got.holders),
            (expected.threshold, &expected.holders)
        );
        assert_eq!(got.key.root, expected.key.root);
        assert_eq!(*got.key.secret, *expected.key.secret);
        assert_eq!(got.index_of(&NodeId([4; 32])), Some(2));
        assert_eq!(got.index_of(&NodeId([9; 32])), None);
    }

    #[test]
    fn shares__should_never_be_overwritten_and_never_lie_open() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let files = open(folder.path(), "right").unwrap();
        files.save(&record()).unwrap();
        assert_eq!(files.save(&record()).unwrap_err().class(), &Class::Conflict);
        let entries: Vec<_> = fs::read_dir(&files.folder)
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert_eq!(entries.len(), 1);
        let path = entries[0].path();
        let bytes = fs::read(&path).unwrap();
        assert!(!bytes.windows(10).any(|window| window == b"the secret"));
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(
            fs::metadata(&files.folder).unwrap().permissions().mode() & 0o777,
            0o700
        );
    }

    #[test]
    fn shares__should_be_refused_when_damaged_or_without_keyring() {
        let folder = tempfile::tempdir().unwrap();
        let files = open(folder.path(), "right").unwrap();
        files.save(&record()).unwrap();
        fs::write(files.folder.join("half.new"), b"an interrupted write").unwrap();
        assert_eq!(files.load_all().unwrap().len(), 1);
        let path = fs::read_dir(&files.folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .find(|path| path.extension().is_some_and(|extension| extension == "age"))
            .unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert!(files.load_all().is_err());
        fs::remove_file(folder.path().join("keyring.age")).unwrap();
        assert!(open(folder.path(), "right").is_err());
    }

    fn of_epoch(epoch: u32) -> ShareRecord {
        ShareRecord {
            epoch,
            order: Some([8; 32]),
            ..record()
        }
    }

    fn epochs(records: &[ShareRecord]) -> Vec<u32> {
        let mut epochs: Vec<u32> = records.iter().map(|record| record.epoch).collect();
        epochs.sort_unstable();
        epochs
    }

    #[test]
    fn shares__should_be_pending_until_activated_and_gone_when_erased() {
        let folder = tempfile::tempdir().unwrap();
        let files = open(folder.path(), "right").unwrap();
        let (vault, root) = (record().vault, record().key.root);
        files.save(&record()).unwrap();
        // Of another key: nothing of it is ever touched.
        let mut other = of_epoch(0);
        other.key.root.public_key = vec![6; 32];
        files.save(&other).unwrap();
        for epoch in [2, 11] {
            files.save_pending(&of_epoch(epoch)).unwrap();
        }
        assert_eq!(epochs(&files.load_all().unwrap()), [0, 0]);
        assert_eq!(epochs(&files.load_pending().unwrap()), [2, 11]);
        assert!(files.activate(vault, &root, 5).is_err(), "there is none");
        for _ in 0..2 {
            files.activate(vault, &root, 2).unwrap();
            // As after a crash before the old one was erased, or while it was.
            for _ in 0..2 {
                let files = open(folder.path(), "right").unwrap();
                assert!(epochs(&files.load_all().unwrap()).contains(&2));
            }
            files.erase(vault, &root, 2).unwrap();
        }
        assert_eq!(epochs(&files.load_all().unwrap()), [0, 2]);
        assert_eq!(epochs(&files.load_pending().unwrap()), [11]);
        assert!(files.load(vault, &root, 0, false).is_err());
        let loaded = files.load(vault, &root, 2, false).unwrap();
        assert_eq!((loaded.order, loaded.restored), (Some([8; 32]), false));
        files.erase(vault, &root, u32::MAX).unwrap();
        assert_eq!(epochs(&files.load_all().unwrap()), [0]);
        assert!(files.load_pending().unwrap().is_empty());
    }
}
