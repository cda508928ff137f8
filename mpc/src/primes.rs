//! Safe primes for keys of the cggmp24 backend, made ahead: finding them takes minutes, and a key
//! generation does not wait that long.
//!
//! `primes/*.age` in the node's folder: each holds what one node needs for one key, encrypted to
//! its keyring. A set is taken out durably before it is used, and so serves one key; a key
//! generation that fails after that uses it up, too.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use age::x25519;
use covault_core::{
    fault::{Class, Fault},
    port::Entropy,
};
use zeroize::Zeroizing;

use crate::identity::write_private;

/// What a node says that has none.
pub const NONE_LEFT: &str = "this node has no precomputed primes, which a cggmp24 key needs: run \
                             `covault node primes` with the node's configuration";

/// The sets of primes in one node's folder.
pub struct PrimeStore {
    folder: PathBuf,
    identity: x25519::Identity,
}

fn failed(cause: io::Error) -> Fault {
    Fault::unavailable("the folder of primes cannot be read or written").caused_by(cause)
}

impl PrimeStore {
    pub(crate) fn open(folder: PathBuf, identity: x25519::Identity) -> Result<Self, Fault> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(failed)?;
        Ok(Self { folder, identity })
    }

    /// How many sets there are.
    ///
    /// # Errors
    /// [`Class::Unavailable`] when the folder cannot be read.
    pub fn count(&self) -> Result<usize, Fault> {
        Ok(self.files()?.len())
    }

    /// Stores a set that [`crate::backend::make_primes`] made; on disk when it returns.
    ///
    /// # Errors
    /// [`Class::Unavailable`] when the disk fails.
    pub fn add(&self, set: &[u8], entropy: &dyn Entropy) -> Result<(), Fault> {
        let mut name = [0; 8];
        entropy.fill(&mut name);
        let path = self.folder.join(format!("{}.age", hex::encode(name)));
        let sealed = age::encrypt(&self.identity.to_public(), set).map_err(Fault::bug)?;
        write_private(&path, &sealed).map_err(failed)
    }

    /// Takes a set out: when it returns, the set is no longer on disk, and nobody gets it again.
    ///
    /// # Errors
    /// [`Class::Invalid`] when there is none, or it is damaged; [`Class::Unavailable`] when the
    /// disk fails.
    pub fn take(&self) -> Result<Zeroizing<Vec<u8>>, Fault> {
        for path in self.files()? {
            let taken = path.with_extension("taken");
            // Anyone who renames it has it.
            match fs::rename(&path, &taken) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            }
            let sealed = fs::read(&taken).map_err(failed)?;
            fs::remove_file(&taken).map_err(failed)?;
            sync(&self.folder).map_err(failed)?;
            return age::decrypt(&self.identity, &sealed)
                .map(Zeroizing::new)
                .map_err(|cause| {
                    Fault::new(Class::Invalid, "a set of primes is damaged").caused_by(cause)
                });
        }
        Err(Fault::new(Class::Invalid, NONE_LEFT))
    }

    /// Erases sets that were taken out, by a process that was killed before it could: nobody gets
    /// them again. Only while nobody else takes any; a set may be added in the meantime.
    pub(crate) fn sweep(&self) -> Result<(), Fault> {
        let left = self.ending("taken")?;
        for path in &left {
            fs::remove_file(path).map_err(failed)?;
        }
        if left.is_empty() {
            return Ok(());
        }
        sync(&self.folder).map_err(failed)
    }

    fn files(&self) -> Result<Vec<PathBuf>, Fault> {
        self.ending("age")
    }

    fn ending(&self, wanted: &str) -> Result<Vec<PathBuf>, Fault> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == wanted)
            {
                files.push(path);
            }
        }
        Ok(files)
    }
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use secrecy::SecretString;

    use super::*;
    use crate::{shares::age_file::AgeShareStore, test_support::SystemEntropy};

    fn open(folder: &Path) -> PrimeStore {
        let passphrase = SecretString::from("right".to_owned());
        AgeShareStore::open(folder, &passphrase, 4)
            .unwrap()
            .primes()
            .unwrap()
    }

    #[test]
    fn primes__should_be_given_out_once_also_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let primes = open(folder.path());
        assert_eq!(primes.take().unwrap_err().message(), NONE_LEFT);
        for set in [b"one", b"two"] {
            primes.add(set, &SystemEntropy).unwrap();
        }
        assert_eq!(primes.count().unwrap(), 2);
        let first = primes.take().unwrap();
        let again = open(folder.path());
        assert_eq!(again.count().unwrap(), 1);
        let second = again.take().unwrap();
        let mut both = [first.to_vec(), second.to_vec()];
        both.sort();
        assert_eq!(both, [b"one".to_vec(), b"two".to_vec()]);
        assert!(primes.take().is_err());
        assert_eq!(
            fs::read_dir(folder.path().join("primes")).unwrap().count(),
            0
        );
    }

    #[test]
    fn primes__should_lie_encrypted_and_be_refused_when_damaged() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let primes = open(folder.path());
        primes.add(b"a secret prime", &SystemEntropy).unwrap();
        let path = primes.files().unwrap().remove(0);
        let mut bytes = fs::read(&path).unwrap();
        assert!(!bytes.windows(8).any(|window| window == b"a secret"));
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert!(primes.take().is_err());
        // It is gone anyway.
        assert_eq!(primes.count().unwrap(), 0);
    }
}
