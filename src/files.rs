//! Files that only their owner reads: tokens, passphrases, what `covault dev` tells about itself. And
//! files that only root and this process's user can have written: what controls a signer node.

use std::{
    ffi::OsString,
    fs::{self, File, Metadata, OpenOptions, TryLockError},
    io::{Read as _, Write as _},
    os::{
        fd::OwnedFd,
        unix::{
            ffi::OsStringExt as _,
            fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
        },
    },
    path::{self, Component, Path, PathBuf},
};

use anyhow::{Context as _, bail};
use rustix::{
    fs::{FileType, Mode, OFlags, fstat, openat, readlinkat},
    io::Errno,
};
use secrecy::{ExposeSecret as _, SecretString};
use zeroize::Zeroizing;

use crate::config::credentials::credentials_folder;

/// A folder that this process owns until the guard is dropped.
#[derive(Debug)]
pub struct FolderLock {
    _lock: File,
}

/// Makes the folder (mode 0700) and takes it for this process.
///
/// # Errors
/// When another process has it; when others can change what is in it.
pub fn lock_folder(folder: &Path) -> anyhow::Result<FolderLock> {
    make_folder(folder)?;
    check_ownership(folder)?;
    let path = folder.join("lock");
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| {
            format!(
                "cannot write {}, and this process runs as user {}: give it the folder (chown)",
                path.display(),
                user()
            )
        })?;
    match lock.try_lock() {
        Ok(()) => Ok(FolderLock { _lock: lock }),
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

/// As [`lock_folder`], for a signer node: nobody but root and this process's user may be able to put
/// another folder in its place.
///
/// # Errors
/// As [`lock_folder`]; when a folder above it is others' or can be written by others, naming it and
/// what to do.
pub fn lock_node_folder(folder: &Path) -> anyhow::Result<FolderLock> {
    make_folder(folder)?;
    follow(folder)?;
    lock_folder(folder)
}

/// Refuses a folder in which others than root and this process's user could put another file in the
/// place of one that was written here.
fn check_ownership(folder: &Path) -> anyhow::Result<()> {
    let shown = folder.display();
    let found = fs::metadata(folder).with_context(|| format!("cannot inspect {shown}"))?;
    let owner = found.uid();
    if is_foreign(owner) {
        bail!(
            "{shown} belongs to user {owner}, who could change what is in it: run this as that user, \
             or give it to user {} (chown)",
            user()
        );
    }
    if found.mode() & OTHERS_WRITE != 0 {
        bail!(
            "{shown} can be written by others than its owner, who could change what is in it: \
             chmod go-w {shown}"
        );
    }
    Ok(())
}

/// Reads a file that nobody but root and this process's user can have written, or can put another in
/// the place of; `None` when there is none. What is read is what was looked at: every folder and link
/// on the way is, and the file when it is open.
///
/// # Errors
/// When it is so, naming the folder, link or file and what to do; when it cannot be read, is no regular
/// file or too large.
pub fn read_trusted(path: &Path) -> anyhow::Result<Option<String>> {
    let shown = path.display();
    let (folder, name, place) = match follow(path)? {
        None => return Ok(None),
        Some(ResolvedPath::Folder) => bail!("{shown} is a folder: name a file"),
        Some(ResolvedPath::File {
            folder,
            name,
            place,
        }) => (folder, name, place),
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(&folder, &name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
    };
    let found = file.metadata();
    let found = found.with_context(|| format!("cannot inspect {shown}"))?;
    check_regular(path, found.is_file())?;
    check_step(path, &place, found.uid(), found.mode() & OTHERS_WRITE != 0)?;
    if found.len() > MOST_BYTES {
        bail!("{shown} is too large");
    }
    let mut text = String::new();
    file.take(MOST_BYTES)
        .read_to_string(&mut text)
        .with_context(|| format!("cannot read {shown}"))?;
    Ok(Some(text))
}

/// Larger than any file that makes sense.
const MOST_BYTES: u64 = 16 << 20;
/// More links than this are a circle.
const MOST_LINKS: usize = 40;
/// What others than a file's owner may do, in its mode.
const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;
/// In a sticky folder nobody moves or removes what is others'.
const STICKY: u32 = 0o1000;

/// What a path leads to.
enum ResolvedPath {
    Folder,
    /// The open folder, and the file's name and whole path in it.
    File {
        folder: OwnedFd,
        name: OsString,
        place: PathBuf,
    },
}

/// Follows a path from "/" on, as the system does, and refuses every folder and link on the way that
/// others than root and this process's user could put another in the place of. Each step is looked at
/// in the open folder that was looked at before: nothing can be changed in between. `None` when there
/// is nothing at its end.
fn follow(path: &Path) -> anyhow::Result<Option<ResolvedPath>> {
    let whole = path::absolute(path);
    let whole = whole.with_context(|| format!("cannot inspect {}", path.display()))?;
    let mut steps = steps_back(&whole);
    let mut place = PathBuf::from("/");
    let mut folder = root()?;
    let mut links = 0_usize;
    inspect(path, &place, &folder)?;
    while let Some(name) = steps.pop() {
        let next = if name == ".." {
            place.parent().unwrap_or(&place).to_owned()
        } else {
            place.join(&name)
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match openat(&folder, &name, flags, Mode::empty()) {
            Ok(opened) => opened,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot inspect {}", next.display()));
            }
        };
        match inspect(path, &next, &opened)? {
            FileType::Symlink => {
                links = links.saturating_add(1);
                if links > MOST_LINKS {
                    bail!("{}: too many links", path.display());
                }
                let target = readlinkat(&opened, "", Vec::new());
                let target = target.with_context(|| format!("cannot read {}", next.display()))?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                if target.is_absolute() {
                    (folder, place) = (root()?, PathBuf::from("/"));
                }
                steps.extend(steps_back(&target));
            }
            FileType::Directory => (folder, place) = (opened, next),
            kind if steps.is_empty() => {
                check_regular(path, kind == FileType::RegularFile)?;
                return Ok(Some(ResolvedPath::File {
                    folder,
                    name,
                    place: next,
                }));
            }
            _ => bail!("{} is not a folder", next.display()),
        }
    }
    Ok(Some(ResolvedPath::Folder))
}

/// The names of a path, the last one first.
fn steps_back(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    names.collect()
}

fn root() -> anyhow::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open("/", flags, Mode::empty()).context("cannot inspect /")
}

/// What is at this step of a path; refuses it where others could put another in the place of it or of
/// what is in it.
fn inspect(path: &Path, place: &Path, opened: &OwnedFd) -> anyhow::Result<FileType> {
    let found = fstat(opened).with_context(|| format!("cannot inspect {}", place.display()))?;
    let kind = FileType::from_raw_mode(found.st_mode);
    let written = kind == FileType::Directory
        && found.st_mode & OTHERS_WRITE != 0
        && found.st_mode & STICKY == 0;
    check_step(path, place, found.st_uid, written)?;
    Ok(kind)
}

fn check_step(path: &Path, place: &Path, owner: u32, written: bool) -> anyhow::Result<()> {
    let on_the_way = if path == place {
        String::new()
    } else {
        format!("{}: ", path.display())
    };
    let shown = place.display();
    if is_foreign(owner) {
        bail!(
            "{on_the_way}{shown} belongs to user {owner}, who could change how this node behaves: \
             give it to user {} or root (chown)",
            user()
        );
    }
    if written {
        bail!(
            "{on_the_way}{shown} can be written by others than its owner, who could change how this \
             node behaves: chmod go-w {shown}"
        );
    }
    Ok(())
}

fn check_regular(path: &Path, regular: bool) -> anyhow::Result<()> {
    if !regular {
        bail!(
            "{} is not a regular file (but a pipe, a socket or a device)",
            path.display()
        );
    }
    Ok(())
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Neither root's nor ours.
fn is_foreign(owner: u32) -> bool {
    owner != 0 && owner != user()
}

/// Reads a secret; white space at its ends does not belong to it. Nobody but root and this process's
/// user may be able to read it, unless the service manager has handed it over as a credential: who
/// reads those is its business, and their modes do not say it.
///
/// # Errors
/// When the file cannot be read, is empty, or others can read it.
pub fn read_secret(path: &Path) -> anyhow::Result<SecretString> {
    let handed_over = credentials_folder().is_some_and(|folder| path.starts_with(folder));
    read_private(path, |found| {
        if handed_over {
            return Ok(());
        }
        let owner = found.uid();
        if is_foreign(owner) {
            bail!(
                "{} belongs to user {owner}, who can read it: give it to user {} (chown)",
                path.display(),
                user()
            );
        }
        check_private(path, found)
    })
}

/// As [`read_secret`], for a token used on the command line: root may use any user's.
///
/// # Errors
/// As [`read_secret`].
pub fn read_token(path: &Path) -> anyhow::Result<SecretString> {
    read_private(path, |found| check_private(path, found))
}

fn check_private(path: &Path, found: &Metadata) -> anyhow::Result<()> {
    if found.mode() & OTHERS != 0 {
        let shown = path.display();
        bail!("others than its owner can use the secret in {shown}: chmod 600 {shown}");
    }
    Ok(())
}

/// Reads a regular file that passes a check, which is of the file that is read.
fn read_private(
    path: &Path,
    check: impl FnOnce(&Metadata) -> anyhow::Result<()>,
) -> anyhow::Result<SecretString> {
    let shown = path.display();
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = rustix::fs::open(path, flags, Mode::empty())
        .map(File::from)
        .with_context(|| format!("cannot read {shown}"))?;
    let found = file.metadata();
    let found = found.with_context(|| format!("cannot inspect {shown}"))?;
    check_regular(path, found.is_file())?;
    check(&found)?;
    let mut text = Zeroizing::new(String::new());
    file.read_to_string(&mut text)
        .with_context(|| format!("cannot read {shown}"))?;
    if text.trim().is_empty() {
        bail!("{shown} is empty");
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
    sync_folder_of(path)
}

/// Waits until the disk knows that a new file is in its folder.
///
/// # Errors
/// When the folder cannot be read.
pub fn sync_folder_of(path: &Path) -> std::io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    File::open(folder)?.sync_all()
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

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn refusal(path: &Path) -> String {
        format!("{:#}", read_trusted(path).unwrap_err())
    }

    #[test]
    fn secret__should_be_refused_when_others_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        fs::write(&path, "it\n").unwrap();
        for (bits, good) in [
            (0o600, true),
            (0o400, true),
            (0o640, false),
            (0o604, false),
            (0o620, false),
        ] {
            mode(&path, bits);
            for read in [read_secret, read_token] {
                match read(&path) {
                    Ok(secret) => assert!(good && secret.expose_secret() == "it", "{bits:o}"),
                    Err(refusal) => {
                        assert!(!good, "{bits:o}");
                        assert!(refusal.to_string().contains("chmod 600"), "{refusal}");
                    }
                }
            }
        }
        if user() == 0 {
            mode(&path, 0o600);
            std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
            let refusal = read_secret(&path).unwrap_err().to_string();
            assert!(refusal.contains("belongs to user 12345"), "{refusal}");
            read_token(&path).unwrap();
        }
    }

    #[test]
    fn file__should_be_refused_when_others_can_write_or_replace_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.toml");
        assert!(read_trusted(&path).unwrap().is_none());
        fs::write(&path, "text").unwrap();
        for (of_file, of_folder, good) in [
            (0o644, 0o755, true),
            (0o600, 0o1777, true),
            (0o666, 0o700, false),
            (0o664, 0o755, false),
            (0o646, 0o755, false),
            (0o644, 0o775, false),
            (0o644, 0o757, false),
        ] {
            mode(&path, of_file);
            mode(folder.path(), of_folder);
            let read = read_trusted(&path);
            assert_eq!(read.is_ok(), good, "{of_file:o} in {of_folder:o}");
            match read {
                Ok(text) => assert_eq!(text.unwrap(), "text"),
                Err(refusal) => {
                    let refusal = refusal.to_string();
                    assert!(refusal.contains("chmod go-w"), "{refusal}");
                }
            }
        }
        mode(folder.path(), 0o755);
        mode(&path, 0o644);
        if user() == 0 {
            std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
            let refusal = refusal(&path);
            assert!(refusal.contains("belongs to user 12345"), "{refusal}");
        }
    }

    #[test]
    fn file__should_be_refused_when_others_can_replace_a_folder_or_link_on_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("a/b/file"), "text").unwrap();
        mode(&at("a/b/file"), 0o644);
        fs::create_dir(at("links")).unwrap();
        let link = |to: &Path, name: &str| std::os::unix::fs::symlink(to, at(name)).unwrap();
        link(&at("a/b/file"), "links/file");
        link(Path::new("../a/b"), "links/folder");
        link(&at("links/folder"), "again");
        link(Path::new("round"), "round");
        let ways = ["a/b/file", "links/file", "links/folder/file", "again/file"];
        for way in ways {
            assert_eq!(read_trusted(&at(way)).unwrap().unwrap(), "text", "{way}");
        }
        assert_eq!(
            read_trusted(&at("links/../a/b/../b/file"))
                .unwrap()
                .unwrap(),
            "text"
        );
        for (open, closed_to) in [("a", &ways[..]), ("a/b", &ways[..]), ("links", &ways[1..])] {
            for bits in [0o777, 0o775, 0o757] {
                mode(&at(open), bits);
                for way in ways {
                    let read = read_trusted(&at(way));
                    assert_eq!(read.is_err(), closed_to.contains(&way), "{way} {open}");
                    if let Err(refusal) = read {
                        let advice = format!("chmod go-w {}", at(open).display());
                        assert!(refusal.to_string().ends_with(&advice), "{refusal}");
                    }
                }
            }
            // Nobody removes the files of others there.
            mode(&at(open), 0o1777);
            for way in ways {
                read_trusted(&at(way)).unwrap();
            }
            mode(&at(open), 0o755);
        }
        if user() == 0 {
            std::os::unix::fs::lchown(at("links/folder"), Some(12_345), None).unwrap();
            mode(&at("links"), 0o1777);
            for way in &ways[2..] {
                let refusal = refusal(&at(way));
                assert!(refusal.contains("belongs to user 12345"), "{refusal}");
            }
        }
        assert!(refusal(&at("round")).contains("too many links"));
        assert!(refusal(&at("a")).contains("is a folder"));
        assert!(refusal(&at("a/b/file/more")).contains("is not a folder"));
        assert!(read_trusted(&at("none/of/these")).unwrap().is_none());
    }

    #[test]
    fn pipe__should_be_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        mode(&path, 0o600);
        assert!(refusal(&path).contains("not a regular file"));
        let refusal = read_secret(&path).unwrap_err().to_string();
        assert!(refusal.contains("not a regular file"), "{refusal}");
    }

    #[test]
    fn folder__should_have_one_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let owned = lock_folder(&path).unwrap();
        let refusal = lock_folder(&path).unwrap_err().to_string();
        assert!(refusal.contains("in use"), "{refusal}");
        drop(owned);
        lock_folder(&path).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o700
        );
    }

    #[test]
    fn folder__should_be_its_users_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        drop(lock_folder(&path).unwrap());
        for bits in [0o770, 0o777, 0o1777, 0o720] {
            mode(&path, bits);
            let refusal = lock_folder(&path).unwrap_err().to_string();
            assert!(refusal.contains("chmod go-w"), "{refusal}");
        }
        mode(&path, 0o755);
        drop(lock_folder(&path).unwrap());
        // Someone could put another one in its place.
        mode(folder.path(), 0o777);
        let refusal = lock_node_folder(&path).unwrap_err().to_string();
        assert!(refusal.contains("chmod go-w"), "{refusal}");
        mode(folder.path(), 0o700);
        drop(lock_node_folder(&path).unwrap());
        if user() == 0 {
            std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
            let refusal = lock_folder(&path).unwrap_err().to_string();
            assert!(refusal.contains("belongs to user 12345"), "{refusal}");
        }
    }
}
