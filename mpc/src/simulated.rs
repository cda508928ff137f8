//! What replaces threads and disks in simulations. Behind the feature `simulation`, which only this
//! crate's own tests turn on.

use std::{
    fmt, fs, io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use redb::{Database, StorageBackend, backends::FileBackend};

use crate::pool::{Job, Lane};

/// Runs a job, now or later, on the one thread there is.
pub type Executor = Box<dyn Fn(Lane, Job) + Send + Sync>;

/// The machine that a simulated node runs on.
pub struct Machine {
    /// Takes the pool's jobs.
    pub run: Executor,
    /// While true, the disk takes no writes.
    pub disk_full: Arc<AtomicBool>,
}

/// A claims file on a disk that can fill up.
struct File {
    file: FileBackend,
    full: Arc<AtomicBool>,
}

/// Opens the database in `path`. One process at a time has it, as outside simulations.
pub(crate) fn open(path: &Path, full: Arc<AtomicBool>) -> Result<Database, redb::Error> {
    let file = fs::OpenOptions::new().read(true).write(true).open(path)?;
    // The lock belongs to the open file: it lasts as long as the backend.
    file.try_lock().map_err(io::Error::from)?;
    let file = FileBackend::new(file)?;
    Ok(Database::builder().create_with_backend(File { file, full })?)
}

impl File {
    fn writable(&self) -> io::Result<()> {
        if self.full.load(Ordering::Relaxed) {
            return Err(io::Error::other("no space left"));
        }
        Ok(())
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated file")
    }
}

impl StorageBackend for File {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.writable()?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.writable()?;
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write(offset, data)
    }
}
