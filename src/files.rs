//! Files that only their owner reads: tokens, passphrases, what `covault dev` tells about itself. And
//! files that only their owner writes: what a signer node goes by.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
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

/// Refuses a file that others than root and this process's user can write: itself, where its folder
/// lets them reach it, or by putting another into its folder.
///
/// # Errors
/// When it is so, naming file or folder and what to do; when it cannot be looked at.
pub fn check_unexposed(path: &Path) -> anyhow::Result<()> {
    let look = |path: &Path| {
        let found = fs::metadata(path);
        found.with_context(|| format!("cannot look at {}", path.display()))
    };
    let file = fs::canonicalize(path).with_context(|| format!("cannot read {}", path.display()))?;
    let folder = file.parent().unwrap_or(Path::new("/"));
    let (of_file, of_folder) = (look(&file)?, look(folder)?);
    let user = rustix::process::geteuid().as_raw();
    for (path, found) in [(&*file, &of_file), (folder, &of_folder)] {
        let owner = found.uid();
        if owner != 0 && owner != user {
            bail!(
                "{} belongs to user {owner}, who could change what this node goes by: give it to \
                 user {user} or root (chown)",
                path.display()
            );
        }
    }
    // In a sticky folder nobody replaces the files of others.
    let replaced = of_folder.mode() & 0o022 != 0 && of_folder.mode() & 0o1000 == 0;
    let written = of_file.mode() & 0o022 != 0 && of_folder.mode() & 0o011 != 0;
    for (path, exposed) in [(folder, replaced), (&*file, written)] {
        if exposed {
            bail!(
                "{} can be written by others than its owner, who could change what this node goes \
                 by: chmod go-w {}",
                path.display(),
                path.display()
            );
        }
    }
    Ok(())
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
    fn file__should_be_refused_when_others_can_write_or_replace_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.toml");
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        fs::write(&path, "").unwrap();
        for (of_file, of_folder, good) in [
            (0o644, 0o755, true),
            (0o600, 0o1777, true),
            (0o666, 0o700, true),
            (0o664, 0o755, false),
            (0o646, 0o755, false),
            (0o644, 0o775, false),
            (0o644, 0o757, false),
        ] {
            mode(&path, of_file);
            mode(folder.path(), of_folder);
            let checked = check_unexposed(&path);
            assert_eq!(checked.is_ok(), good, "{of_file:o} in {of_folder:o}");
            if let Err(refusal) = checked {
                assert!(refusal.to_string().contains("chmod go-w"), "{refusal}");
            }
        }
        // What a link points to counts.
        mode(folder.path(), 0o755);
        mode(&path, 0o666);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        check_unexposed(&link).unwrap_err();
        mode(&path, 0o644);
        check_unexposed(&link).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
            let refusal = check_unexposed(&path).unwrap_err().to_string();
            assert!(refusal.contains("belongs to user 12345"), "{refusal}");
        }
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
