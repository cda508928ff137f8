//! Shares in files encrypted with age (age-encryption.org/v1), one folder per node.
//!
//! `keyring.age` holds an X25519 identity and is encrypted with a passphrase (scrypt);
//! `shares/*.age` are encrypted to that identity. So unlocking costs scrypt once per start. A
//! share's plaintext is a version byte, then BCS. `shares/*.pending` are shares that are not in use
//! yet. A file's name says which: vault, curve, epoch, and the first 8 bytes of the root key. In
//! `retired/` are shares that a later generation has replaced, with the time in their names.

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

use super::{RetiredShare, ShareLineage, ShareRecord, ShareStore};
use crate::{
    backend::KeyShare, claims::Claims, identity::write_private, preprocess::NonceStore,
    primes::PrimeStore,
};

/// The name of the keyring in a node's folder.
pub const KEYRING: &str = "keyring.age";
/// The folder of primes in a node's folder.
const PRIMES: &str = "primes";
/// The folder of shares that an operator has cleared, in a node's folder.
pub const CLEARED: &str = "cleared";
/// The folder of shares in a node's folder.
const SHARES: &str = "shares";
/// The folder of retired shares in a node's folder.
const RETIRED: &str = "retired";
/// Version of a share's plaintext.
const VERSION: u8 = 1;
/// The highest scrypt work factor that is tried; each step doubles time and memory.
const MAX_WORK_FACTOR: u8 = 22;

/// The shares of one node's folder.
pub struct AgeShareStore {
    folder: PathBuf,
    identity: x25519::Identity,
}

crate::secrets::secret!(AgeShareStore);

#[derive(Serialize, Deserialize)]
struct StoredShareRecord {
    vault: VaultId,
    epoch: u32,
    scheme: Scheme,
    session: SessionId,
    threshold: u16,
    holders: Vec<NodeId>,
    order: Option<[u8; 32]>,
    lineage: ShareLineage,
    restored: bool,
    root: RootKey,
    secret: Vec<u8>,
}

crate::secrets::secret_form!(StoredShareRecord);

impl StoredShareRecord {
    fn of(record: &ShareRecord) -> Self {
        Self {
            vault: record.vault,
            epoch: record.epoch,
            scheme: record.scheme,
            session: record.session,
            threshold: record.threshold,
            holders: record.holders.clone(),
            order: record.order,
            lineage: record.lineage.clone(),
            restored: record.restored,
            root: record.key.root.clone(),
            secret: record.key.secret.to_vec(),
        }
    }
}

impl Drop for StoredShareRecord {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

impl AgeShareStore {
    /// Opens a node's folder; makes folder and keyring when missing. `work_factor` is scrypt's
    /// log2 N for a new keyring (1 to 22; 18 takes about a second).
    ///
    /// # Errors
    /// [`Class::Invalid`] when the passphrase is wrong, the keyring is damaged, or it is missing
    /// while there are shares.
    pub fn open(folder: &Path, passphrase: &SecretString, work_factor: u8) -> Result<Self, Fault> {
        let shares = folder.join(SHARES);
        let path = folder.join(KEYRING);
        let refuse = |problem: &str| {
            Fault::new(
                Class::Invalid,
                format!("keyring {}: {problem}", path.display()),
            )
        };
        let failed = |cause: io::Error| refuse("cannot be read or written").caused_by(cause);
        for folder in [&shares, &folder.join(RETIRED)] {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)
                .map_err(failed)?;
        }
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
                let places = [
                    (shares.clone(), SHARES),
                    (folder.join(RETIRED), "retired shares"),
                    (folder.join(PRIMES), "primes"),
                ];
                for (folder, what) in &places {
                    if holds_any(folder).map_err(failed)? {
                        let problem = format!("is missing, but there are {what} that need it");
                        return Err(refuse(&problem));
                    }
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
    /// As [`NonceStore::new`].
    pub fn nonces(&self, claims: &Claims) -> Result<NonceStore, Fault> {
        NonceStore::new(self.identity.to_string().expose_secret().as_bytes(), claims)
    }

    /// The primes of the same folder, encrypted to the same keyring.
    ///
    /// # Errors
    /// [`Class::Unavailable`] when their folder cannot be made.
    pub fn primes(&self) -> Result<PrimeStore, Fault> {
        PrimeStore::open(self.folder.with_file_name(PRIMES), self.identity.clone())
    }

    /// Erases what interrupted writes and takings have left behind: a whole share may be in a file
    /// that was not renamed yet, and outlive its generation there. Only for who has the folder for
    /// itself.
    ///
    /// # Errors
    /// [`Class::Invalid`] when the folder cannot be read, [`Class::Unavailable`] when the disk fails.
    pub(crate) fn sweep(&self) -> Result<(), Fault> {
        let left = self.files(UNFINISHED)?;
        for path in &left {
            fs::remove_file(path).map_err(disk)?;
        }
        if !left.is_empty() {
            self.sync()?;
        }
        self.primes()?.sweep()
    }

    /// Erases the pending shares of a vault's key of this scheme, but for the one of the epoch that
    /// is in use; how many. Only for who has the folder for itself, and knows that no other epoch
    /// will ever be activated.
    ///
    /// # Errors
    /// [`Class::Invalid`] naming a share that cannot be read, [`Class::Unavailable`] when the disk
    /// fails.
    pub fn forget_prepared(
        &self,
        vault: VaultId,
        scheme: Scheme,
        in_use: u32,
    ) -> Result<usize, Fault> {
        let mut forgotten: usize = 0;
        for path in self.files(PENDING)? {
            let record = self.read(&path)?;
            if (record.vault, record.scheme) == (vault, scheme) && record.epoch != in_use {
                fs::remove_file(&path).map_err(disk)?;
                forgotten = forgotten.saturating_add(1);
            }
        }
        if forgotten > 0 {
            self.sync()?;
        }
        Ok(forgotten)
    }

    /// Moves all shares of a key, in use and pending, into the folder [`CLEARED`], from where they can
    /// be put back; on disk when it returns. Only for who has the folder for itself.
    ///
    /// # Errors
    /// [`Class::Invalid`] when a folder cannot be read, [`Class::Unavailable`] when the disk fails.
    pub fn clear(&self, vault: VaultId, root: &RootKey) -> Result<(), Fault> {
        let cleared = self.folder.with_file_name(CLEARED);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&cleared)
            .map_err(disk)?;
        let (before, after) = place(vault, root);
        for path in self.files(IN_USE)?.into_iter().chain(self.files(PENDING)?) {
            let stem = path.file_stem().and_then(|name| name.to_str());
            let is_of_key =
                stem.is_some_and(|name| name.starts_with(&before) && name.ends_with(&after));
            if let (true, Some(name)) = (is_of_key, path.file_name()) {
                fs::rename(&path, cleared.join(name)).map_err(disk)?;
            }
        }
        // There before it is gone from here.
        fs::File::open(&cleared)
            .and_then(|folder| folder.sync_all())
            .map_err(disk)?;
        self.sync()
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
            Some((&VERSION, rest)) => bcs::from_bytes::<StoredShareRecord>(rest),
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
            lineage: std::mem::take(&mut stored.lineage),
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
pub(crate) fn reencode(plain: &[u8]) -> Option<Vec<u8>> {
    bcs::from_bytes::<StoredShareRecord>(plain)
        .and_then(|stored| bcs::to_bytes(&stored))
        .ok()
}

/// What [`reencode`] reads; for fuzz targets.
#[cfg(feature = "simulation")]
pub(crate) fn plaintext(record: &ShareRecord) -> Option<Vec<u8>> {
    bcs::to_bytes(&StoredShareRecord::of(record)).ok()
}

/// What the files are called that are in use, and those that are not yet.
const IN_USE: &str = "age";
const PENDING: &str = "pending";
/// What a write has not finished; see [`write_private`].
const UNFINISHED: &str = "new";

/// Whether there is anything in a folder, which need not be there itself.
fn holds_any(folder: &Path) -> io::Result<bool> {
    match fs::read_dir(folder) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a node's folder has a share of a vault, of whatever key. Nothing is opened: names say it.
///
/// # Errors
/// [`Class::Unavailable`] when the folder cannot be read.
pub fn has_share(node_folder: &Path, vault: VaultId) -> Result<bool, Fault> {
    let failed = |cause: io::Error| {
        Fault::unavailable("the folder of shares cannot be read").caused_by(cause)
    };
    let entries = match fs::read_dir(node_folder.join(SHARES)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed(error)),
    };
    let prefix = format!("{vault}.");
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        if name.to_str().is_some_and(|name| name.starts_with(&prefix)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The name of a share's file without epoch: what comes before it, and after.
fn place(vault: VaultId, root: &RootKey) -> (String, String) {
    let key = hex::encode(root.public_key.get(..8).unwrap_or_default());
    (format!("{vault}.{}.", root.curve.name()), format!(".{key}"))
}

fn disk(cause: io::Error) -> Fault {
    Fault::unavailable("failed to store or erase a share").caused_by(cause)
}

impl AgeShareStore {
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
        let stored = StoredShareRecord::of(record);
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
        files_in(&self.folder, extension)
    }

    fn retired_folder(&self) -> PathBuf {
        self.folder.with_file_name(RETIRED)
    }

    /// The files of retired shares, with their times and whether they were in use.
    fn retired_files(&self) -> Result<Vec<(PathBuf, u64, bool)>, Fault> {
        let folder = self.retired_folder();
        let mut found = Vec::new();
        for (extension, in_use) in [(IN_USE, true), (PENDING, false)] {
            for path in files_in(&folder, extension)? {
                let name = path.file_stem().and_then(|name| name.to_str());
                let at_ms = name.and_then(|name| name.rsplit('.').next()?.parse().ok());
                // Of no time that we have written: it stays.
                let Some(at_ms) = at_ms else { continue };
                found.push((path, at_ms, in_use));
            }
        }
        Ok(found)
    }

    /// The retired shares, oldest first.
    ///
    /// # Errors
    /// [`Class::Invalid`] naming the one that cannot be read.
    pub fn retired(&self) -> Result<Vec<RetiredShare>, Fault> {
        let files = self.retired_files()?.into_iter();
        let mut retired = files
            .map(|(path, at_ms, was_in_use)| {
                Ok(RetiredShare {
                    record: self.read(&path)?,
                    at_ms,
                    was_in_use,
                })
            })
            .collect::<Result<Vec<_>, Fault>>()?;
        retired.sort_by_key(|it| (it.at_ms, it.record.epoch));
        Ok(retired)
    }
}

/// Whether a file in the folder of retired shares is of this key.
fn retired_of(vault: VaultId, root: &RootKey) -> impl Fn(&Path) -> bool {
    let (before, after) = place(vault, root);
    let after = format!("{after}.");
    move |path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(&before) && name.contains(&after))
    }
}

fn files_in(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, Fault> {
    let failed = |cause: io::Error| {
        Fault::new(
            Class::Invalid,
            format!("folder {}: cannot be read", folder.display()),
        )
        .caused_by(cause)
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        // Anything else is an interrupted write: it was never complete.
        if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
    }
    Ok(files)
}

/// Names are on the disk when this returns.
fn sync_folder(folder: &Path) -> Result<(), Fault> {
    fs::File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(disk)
}

impl AgeShareStore {
    fn sync(&self) -> Result<(), Fault> {
        sync_folder(&self.folder)
    }
}

impl ShareStore for AgeShareStore {
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

    fn retire(&self, vault: VaultId, root: &RootKey, below: u32, now_ms: u64) -> Result<(), Fault> {
        let (before, after) = place(vault, root);
        let folder = self.retired_folder();
        let mut found = false;
        for extension in [IN_USE, PENDING] {
            for path in self.files(extension)? {
                let Some(name) = path.file_stem().and_then(|name| name.to_str()) else {
                    continue;
                };
                let epoch = name
                    .strip_prefix(&before)
                    .and_then(|rest| rest.strip_suffix(&after)?.parse::<u32>().ok());
                if epoch.is_some_and(|epoch| epoch < below) {
                    let retired = folder.join(format!("{name}.{now_ms}.{extension}"));
                    fs::rename(&path, retired).map_err(disk)?;
                    found = true;
                }
            }
        }
        if found {
            // Where it is now, before it is gone from where it was.
            sync_folder(&folder)?;
            self.sync()?;
        }
        Ok(())
    }

    fn count_retired(&self, vault: VaultId, root: &RootKey) -> Result<usize, Fault> {
        let of_key = retired_of(vault, root);
        let files = self.retired_files()?;
        Ok(files.iter().filter(|(path, ..)| of_key(path)).count())
    }

    fn erase_retired(&self, before_ms: u64, keep: &[(VaultId, RootKey)]) -> Result<usize, Fault> {
        let keep: Vec<_> = keep
            .iter()
            .map(|(vault, root)| retired_of(*vault, root))
            .collect();
        let mut erased: usize = 0;
        for (path, at_ms, _) in self.retired_files()? {
            let kept = || keep.iter().any(|of_key| of_key(&path));
            if at_ms < before_ms && !kept() {
                fs::remove_file(&path).map_err(disk)?;
                erased = erased.saturating_add(1);
            }
        }
        if erased > 0 {
            sync_folder(&self.retired_folder())?;
        }
        Ok(erased)
    }
}

#[cfg(test)]
#[path = "age_file_tests.rs"]
mod tests;
