//! What replaces threads and disks in simulations. Behind the feature `simulation`, which only this
//! crate's own tests turn on.

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    os::unix::fs::FileExt as _,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use covault_core::order::NodeId;
use parking_lot::{Mutex, MutexGuard};
use redb::{StorageBackend, backends::FileBackend};

use crate::pool::queues::{PoolJob, Priority};

/// Runs a job, now or later, on the one thread there is.
pub type Executor = Box<dyn Fn(Priority, PoolJob) + Send + Sync>;

/// Is called before each sync: the last chance to [`SimDisk::stop`].
pub type SyncHook = Box<dyn Fn() + Send + Sync>;

/// What nodes of this process drew, once recording is on.
static DRAWS: OnceLock<Mutex<Vec<Vec<u8>>>> = OnceLock::new();

/// From now on, what nodes of this process draw is kept.
pub fn keep_draws() {
    DRAWS.get_or_init(Mutex::default);
}

/// What nodes drew since [`keep_draws`].
pub fn kept_draws() -> Vec<Vec<u8>> {
    let draws = DRAWS.get().map(|draws| draws.lock());
    draws.map_or_else(Vec::new, |draws| draws.clone())
}

pub(crate) fn drawn(bytes: &[u8]) {
    if let Some(draws) = DRAWS.get() {
        let mut draws = draws.lock();
        draws.push(bytes.to_vec());
    }
}

type PairKeyId = (NodeId, NodeId, [u8; 8]);

/// The pair keys of this process: sender, recipient, and the key's name.
static PAIR_KEYS: Mutex<BTreeMap<PairKeyId, [u8; 32]>> = Mutex::new(BTreeMap::new());

/// Lets codecs without pair keys of their own open what was sealed with this one: oracles, and liars.
pub(crate) fn keep_pair_key(id: PairKeyId, key: [u8; 32]) {
    PAIR_KEYS.lock().insert(id, key);
}

pub(crate) fn pair_key(id: PairKeyId) -> Option<[u8; 32]> {
    PAIR_KEYS.lock().get(&id).copied()
}

/// The machine that a simulated node runs on, from one start of the node to its end.
pub struct SimMachine {
    /// Takes the pool's jobs.
    pub run: Executor,
    /// Has the claims.
    pub disk: Arc<SimDisk>,
    /// The secret that hedges the node's randomness: one from its keyring would not come from the
    /// seed. `None`: nothing is hedged, as a planted fault.
    pub hedging: Option<[u8; 32]>,
    /// The node does not notice that its claims were put back, nor that it runs twice: for worlds that show the
    /// consequences.
    pub unguarded: bool,
}

/// A disk, as one life of a node sees it. What was written and not synced is lost when the power
/// fails, or some of it is.
#[derive(Default)]
pub struct SimDisk {
    full: AtomicBool,
    off: AtomicBool,
    lies: AtomicBool,
    sync_hook: OnceLock<SyncHook>,
    /// What was not synced, in its order.
    unsynced: Mutex<Vec<DiskChange>>,
}

/// A change of a file, and how to undo it.
enum DiskChange {
    Written {
        offset: u64,
        old: Vec<u8>,
        new: Vec<u8>,
    },
    Resized {
        old: u64,
        /// What was cut off.
        tail: Vec<u8>,
        new: u64,
    },
}

impl SimDisk {
    /// From now on it takes no more, or does again.
    pub fn fill(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
    }

    /// From now on it says that it has synced, and has not.
    pub fn lie(&self) {
        self.lies.store(true, Ordering::Relaxed);
    }

    /// Waits for the next sync; the first caller is told.
    pub fn watch(&self, sync_hook: SyncHook) {
        // Another one is not called.
        let _ = self.sync_hook.set(sync_hook);
    }

    /// The process is dead: nothing is written.
    pub fn stop(&self) {
        self.off.store(true, Ordering::Relaxed);
    }

    /// The power has failed: of what was written to the database in `path` and not synced, only
    /// what `survives` is there. Gives whether there was any.
    ///
    /// # Errors
    /// Those of the real disk.
    pub fn lose_power(&self, path: &Path, mut survives: impl FnMut() -> bool) -> io::Result<bool> {
        self.stop();
        let changes = std::mem::take(&mut *self.changes());
        if changes.is_empty() {
            return Ok(false);
        }
        let file = fs::OpenOptions::new().write(true).open(path)?;
        for change in changes.iter().rev() {
            match change {
                DiskChange::Written { offset, old, .. } => file.write_all_at(old, *offset)?,
                DiskChange::Resized { old, tail, new } => {
                    file.set_len(*old)?;
                    file.write_all_at(tail, *new)?;
                }
            }
        }
        for change in &changes {
            match change {
                _ if !survives() => {}
                DiskChange::Written { offset, new, .. } => file.write_all_at(new, *offset)?,
                DiskChange::Resized { new, .. } => file.set_len(*new)?,
            }
        }
        Ok(true)
    }

    fn changes(&self) -> MutexGuard<'_, Vec<DiskChange>> {
        self.unsynced.lock()
    }

    fn is_on(&self) -> io::Result<()> {
        if self.off.load(Ordering::Relaxed) {
            return Err(io::Error::other("the machine is off"));
        }
        Ok(())
    }

    fn has_room(&self) -> io::Result<()> {
        self.is_on()?;
        if self.full.load(Ordering::Relaxed) {
            return Err(io::Error::other("no space left"));
        }
        Ok(())
    }
}

/// A claims file on such a disk.
pub(crate) struct SimFile {
    file: FileBackend,
    disk: Arc<SimDisk>,
}

impl SimFile {
    pub(crate) fn new(file: FileBackend, disk: Arc<SimDisk>) -> Self {
        Self { file, disk }
    }

    /// What is there of so many bytes.
    fn old(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let there = self.file.len()?.saturating_sub(offset);
        let length = length.min(usize::try_from(there).unwrap_or(usize::MAX));
        let mut old = vec![0; length];
        self.file.read(offset, &mut old)?;
        Ok(old)
    }
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated file")
    }
}

impl StorageBackend for SimFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.has_room()?;
        let old = self.file.len()?;
        let cut = usize::try_from(old.saturating_sub(len)).unwrap_or(usize::MAX);
        let tail = self.old(len, cut)?;
        self.file.set_len(len)?;
        let change = DiskChange::Resized {
            old,
            tail,
            new: len,
        };
        self.disk.changes().push(change);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        if let Some(sync_hook) = self.disk.sync_hook.get() {
            sync_hook();
        }
        self.disk.has_room()?;
        if !self.disk.lies.load(Ordering::Relaxed) {
            self.disk.changes().clear();
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.disk.is_on()?;
        let change = DiskChange::Written {
            offset,
            old: self.old(offset, data.len())?,
            new: data.to_vec(),
        };
        self.file.write(offset, data)?;
        self.disk.changes().push(change);
        Ok(())
    }
}

thread_local! {
    static BELIEVE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Has the nodes of this thread take the word of new holders alone for a generation, as they must
/// not: to see that simulations notice.
pub fn believe_new_holders(believe: bool) {
    BELIEVE.set(believe);
}

/// Whether [`believe_new_holders`] was set.
pub(crate) fn believes_new_holders() -> bool {
    BELIEVE.get()
}
