//! Holds the files of a store in memory, where a system with room keeps them by itself. Some give
//! memory back to their host and forget what was not read for seconds: then it would be the disk that
//! is measured, of the large store alone.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

/// A file or a folder that stays in memory until this is dropped.
pub struct PinnedFile(Child);

impl PinnedFile {
    /// Reads it, and returns once all of it is in memory. Panics without vmtouch, and for who may not
    /// lock as much memory (`ulimit -l`).
    pub fn new(path: &Path) -> Self {
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "stdbuf", "-oL", "vmtouch", "-l"])
            .arg(path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("setpriv is installed (apt-get install util-linux)");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let locked = lines.any(|line| line.unwrap().starts_with("LOCKED"));
        assert!(
            locked,
            "vmtouch holds {} in memory (apt-get install vmtouch; as root, or with ulimit -l)",
            path.display()
        );
        Self(child)
    }
}

impl Drop for PinnedFile {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
