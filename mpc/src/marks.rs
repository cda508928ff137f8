//! Marks that a node's operator puts, or the node itself: files in a folder of the node's folder, which only root and the node's user
//! can write to. That one is there is all that it says; some have a line in them for who counts them. What cannot be looked at counts as marked.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, fchown},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, fchmod, fsync, mkdirat, open, openat},
    io::Errno,
};

/// One folder of marks.
pub(crate) struct MarkFolder {
    node_folder: PathBuf,
    name: &'static str,
}

impl MarkFolder {
    /// The one of this name in a node's folder, which must be there.
    pub(crate) fn new(node_folder: &Path, name: &'static str) -> Self {
        Self {
            node_folder: node_folder.to_owned(),
            name,
        }
    }

    fn path(&self) -> PathBuf {
        self.node_folder.join(self.name)
    }

    /// Puts a mark. On disk when it returns.
    ///
    /// # Errors
    /// When the disk fails, or the folder is a link or no folder.
    pub(crate) fn put(&self, mark: &str) -> io::Result<()> {
        self.put_all(&[mark.to_owned()], "")
    }

    /// Puts several marks with this in them, with one look after their folder. On disk when it returns; when it fails, some
    /// of them may be.
    ///
    /// # Errors
    /// As [`MarkFolder::put`].
    fn put_all(&self, marks: &[String], content: &str) -> io::Result<()> {
        // Root puts marks, and the node's user may have put a link where they go: none is followed.
        let a_folder = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = open(&self.node_folder, a_folder, Mode::empty())?;
        // The node's user has to see it, whatever root's umask is. To see that a file is there takes no more.
        let readable = Mode::from_raw_mode(0o755);
        match mkdirat(&parent, self.name, readable) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let folder = openat(
            &parent,
            self.name,
            a_folder | OFlags::NOFOLLOW,
            Mode::empty(),
        )?;
        match fchmod(&folder, readable) {
            // Root has made it.
            Ok(()) | Err(Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
        let new = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        for mark in marks {
            match openat(&folder, mark.as_str(), new, Mode::from_raw_mode(0o644)) {
                Ok(file) => {
                    let mut file = fs::File::from(file);
                    file.write_all(content.as_bytes())?;
                    file.sync_all()?;
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        fsync(&folder)?;
        Ok(fsync(&parent)?)
    }

    /// Puts a mark that the node's user can take away, also where root puts it.
    ///
    /// # Errors
    /// As [`MarkFolder::put`].
    pub(crate) fn put_for_the_node(&self, mark: &str) -> io::Result<()> {
        self.put_all_for_the_node(&[mark.to_owned()], "")
    }

    /// Puts several marks with this in them to a folder in which the node's user puts marks and takes them away, also where
    /// root puts these.
    ///
    /// # Errors
    /// As [`MarkFolder::put`]; some of them may be on disk.
    pub(crate) fn put_all_for_the_node(&self, marks: &[String], content: &str) -> io::Result<()> {
        self.put_all(marks, content)?;
        let owner = fs::metadata(&self.node_folder)?;
        let a_folder = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let folder = fs::File::from(open(self.path(), a_folder, Mode::empty())?);
        // Only root can give it away; the node's user has made it itself.
        if folder.metadata()?.uid() != owner.uid() {
            fchown(&folder, Some(owner.uid()), Some(owner.gid()))?;
        }
        Ok(())
    }

    /// Takes a mark away; false when there was none.
    ///
    /// # Errors
    /// When the disk fails.
    pub(crate) fn take_away(&self, mark: &str) -> io::Result<bool> {
        match fs::remove_file(self.path().join(mark)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        }
        fs::File::open(self.path())?.sync_all()?;
        Ok(true)
    }

    /// Whether a mark is there, whatever it is.
    ///
    /// # Errors
    /// When that cannot be told.
    pub(crate) fn is_there(&self, mark: &str) -> io::Result<bool> {
        match fs::symlink_metadata(self.path().join(mark)) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What is in a mark.
    ///
    /// # Errors
    /// When it is not there or cannot be read as text.
    pub(crate) fn content(&self, mark: &str) -> io::Result<String> {
        fs::read_to_string(self.path().join(mark))
    }

    /// All marks whose names are text.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub(crate) fn all(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.path()) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut names = Vec::new();
        for entry in entries {
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn mark__should_be_seen_by_the_nodes_user_whatever_the_umask_of_root() {
        let node_folder = tempfile::tempdir().unwrap();
        let folder = node_folder.path().join("marks");
        // What a umask of 077 leaves.
        fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
        let marks = MarkFolder::new(node_folder.path(), "marks");
        for _ in 0..2 {
            marks.put("one").unwrap();
        }
        assert_eq!(mode(&folder), 0o755);
        assert!(marks.is_there("one").unwrap());
        assert_eq!(marks.all().unwrap(), ["one"]);
    }

    #[test]
    fn mark__should_follow_no_link_and_change_no_other_file() {
        let (node_folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let secret = elsewhere.path().join("secret");
        fs::write(&secret, b"it").unwrap();
        for path in [&secret, &elsewhere.path().to_owned()] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
        }
        let marks = MarkFolder::new(node_folder.path(), "marks");
        symlink(elsewhere.path(), node_folder.path().join("marks")).unwrap();
        assert!(marks.put("one").is_err());
        assert!(!elsewhere.path().join("one").exists());
        fs::remove_file(node_folder.path().join("marks")).unwrap();
        fs::create_dir(node_folder.path().join("marks")).unwrap();
        symlink(&secret, node_folder.path().join("marks/one")).unwrap();
        // It is there: that is all that a mark says.
        marks.put("one").unwrap();
        assert!(marks.is_there("one").unwrap());
        assert_eq!((mode(&secret), mode(elsewhere.path())), (0o700, 0o700));
        assert_eq!(fs::read(&secret).unwrap(), b"it");
    }
}
