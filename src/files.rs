//! Files that only their owner reads: tokens, passphrases, what `covault dev` tells about itself.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
};

use anyhow::{Context as _, bail};
use secrecy::{ExposeSecret as _, SecretString};
use zeroize::Zeroizing;

/// A folder that this process owns until the guard is dropped.
#[derive(Debug)]
pub struct Owned {
    _lock: File,
}

/// Makes the folder (mode 0700) and takes it for this process.
///
/// # Errors
/// When another process has it.
pub fn own_folder(folder: &Path) -> anyhow::Result<Owned> {
    make_folder(folder)?;
    let path = folder.join("lock");
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    match lock.try_lock() {
        Ok(()) => Ok(Owned { _lock: lock }),
        Err(TryLockError::WouldBlock) => bail!(
            "{} is in use by another covault process; stop that one or choose another folder",
            folder.display()
        ),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

/// Makes a folder and its parents, for its owner only.
///
/// # Errors
/// When it cannot be made.
pub fn make_folder(folder: &Path) -> anyhow::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))
}

/// Reads a secret; white space at its ends does not belong to it.
///
/// # Errors
/// When the file cannot be read or is empty.
pub fn read_secret(path: &Path) -> anyhow::Result<SecretString> {
    let text = fs::read_to_string(path)
        .map(Zeroizing::new)
        .with_context(|| format!("cannot read {}", path.display()))?;
    if text.trim().is_empty() {
        bail!("{} is empty", path.display());
    }
    Ok(SecretString::from(text.trim()))
}

/// Reads a secret, or makes it on first use.
///
/// # Errors
/// When the file can be neither read nor made.
pub fn secret_or_new(
    path: &Path,
    new: impl FnOnce() -> SecretString,
) -> anyhow::Result<SecretString> {
    if path.exists() {
        return read_secret(path);
    }
    let secret = new();
    let text = Zeroizing::new(format!("{}\n", secret.expose_secret()));
    write_private(path, text.as_bytes())?;
    Ok(secret)
}

/// Writes a file of mode 0600, whole or not at all.
///
/// # Errors
/// When it cannot be written.
pub fn write_private(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    write(path, bytes, 0o600).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a file that everyone may read, whole or not at all.
///
/// # Errors
/// When it cannot be written.
pub fn write_public(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    write(path, bytes, 0o644).with_context(|| format!("cannot write {}", path.display()))
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".new");
    let temporary = path.with_file_name(name);
    remove(&temporary)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    // A passphrase that a power cut takes away takes the shares with it.
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    fs::File::open(folder)?.sync_all()
}

/// Removes a file if it is there.
///
/// # Errors
/// When it is there and cannot be removed.
pub fn remove(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn secret__should_be_made_once_and_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let first = secret_or_new(&path, || SecretString::from("one")).unwrap();
        let second = secret_or_new(&path, || SecretString::from("two")).unwrap();
        assert_eq!(first.expose_secret(), second.expose_secret());
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        fs::write(&path, " \n").unwrap();
        assert!(
            read_secret(&path)
                .unwrap_err()
                .to_string()
                .contains("is empty")
        );
    }

    #[test]
    fn folder__should_have_one_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let owned = own_folder(&path).unwrap();
        let refusal = own_folder(&path).unwrap_err().to_string();
        assert!(refusal.contains("in use"), "{refusal}");
        drop(owned);
        own_folder(&path).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o700
        );
    }
}
