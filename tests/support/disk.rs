//! A disk in memory that loses its power: what was not synced is lost, kept or torn then.
//!
//! Shared by the tests of several crates; some of them use less than there is.
#![allow(
    dead_code,
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "for tests"
)]

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard},
};

use redb::StorageBackend;
use tokio::sync::watch;

/// Disks write whole sectors.
const SECTOR: usize = 512;

/// What becomes of what was written, and not synced, when the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// All of it is lost.
    All,
    /// All of it is on the disk.
    Nothing,
    /// Each write, and each change of the length, is there in whole or not at all.
    Writes,
    /// Of each write any sectors are there: they came in any order.
    Sectors,
    /// Each write ends at any byte.
    Torn,
    /// As `Sectors`, and some hold neither what they held before nor what was written. Not the first one of the
    /// database, where redb says which of two states is the last: that one the disk writes in whole or not at all, as
    /// disks promise of each.
    Garbage,
    /// All that was written before the database is lost, and what was written to it is there: only a disk does that which
    /// lies about its syncs.
    BeforeDatabase,
    /// The other way round.
    Database,
}

impl Loss {
    /// All that an honest disk can lose.
    pub const EVERY: [Self; 6] = [
        Self::All,
        Self::Nothing,
        Self::Writes,
        Self::Sectors,
        Self::Torn,
        Self::Garbage,
    ];

    /// Whether it is different each time.
    pub fn is_random(self) -> bool {
        !matches!(
            self,
            Self::All | Self::Nothing | Self::BeforeDatabase | Self::Database
        )
    }
}

/// See the module. Clones are the same disk.
#[derive(Clone, Debug)]
pub struct SimulatedDisk(Arc<SharedDisk>);

#[derive(Debug)]
struct SharedDisk {
    state: Mutex<DiskState>,
    dead: watch::Sender<bool>,
}

#[derive(Debug)]
struct DiskState {
    /// What a reader sees.
    live: Vec<u8>,
    /// What is on the disk for sure.
    synced: Vec<u8>,
    /// What was written since the last sync, in order.
    unsynced: Vec<DiskOp>,
    operations: usize,
    syncs: usize,
    /// Bytes that were read.
    read: usize,
    cut: Option<usize>,
    /// Where the database begins.
    database: usize,
    /// From this operation on, no sync does what it says.
    lies_from: usize,
}

#[derive(Clone, Debug)]
enum DiskOp {
    Write(usize, Vec<u8>),
    Resize(usize),
}

impl DiskOp {
    fn apply(&self, image: &mut Vec<u8>) {
        match self {
            DiskOp::Resize(length) => image.resize(*length, 0),
            DiskOp::Write(offset, data) => put(image, *offset, data),
        }
    }
}

fn put(image: &mut Vec<u8>, offset: usize, data: &[u8]) {
    let end = offset + data.len();
    if image.len() < end {
        image.resize(end, 0);
    }
    image[offset..end].copy_from_slice(data);
}

impl SimulatedDisk {
    /// A disk with this on it.
    pub fn holding(image: Vec<u8>) -> Self {
        Self::with(image, None)
    }

    /// The same, whose power goes at its operation number `cut`, from 1: that is the last one to
    /// reach it, and no one learns of it.
    pub fn cut_at(image: Vec<u8>, cut: usize) -> Self {
        Self::with(image, Some(cut))
    }

    fn with(image: Vec<u8>, cut: Option<usize>) -> Self {
        Self(Arc::new(SharedDisk {
            state: Mutex::new(DiskState {
                live: image.clone(),
                synced: image,
                unsynced: vec![],
                operations: 0,
                syncs: 0,
                read: 0,
                cut,
                database: 0,
                lies_from: usize::MAX,
            }),
            dead: watch::channel(false).0,
        }))
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.0.state.lock().unwrap()
    }

    /// The database on it begins here, not with the first byte.
    pub fn with_database_at(self, offset: usize) -> Self {
        self.state().database = offset;
        self
    }

    /// From its operation of this number on, from 1, a sync says that all is on the disk, and nothing is.
    pub fn lying_from(self, operation: usize) -> Self {
        self.state().lies_from = operation;
        self
    }

    /// How often it was written, resized or synced.
    pub fn operations(&self) -> usize {
        self.state().operations
    }

    /// How often it was synced.
    pub fn syncs(&self) -> usize {
        self.state().syncs
    }

    /// How many bytes were read.
    pub fn read_bytes(&self) -> usize {
        self.state().read
    }

    /// What a reader sees.
    pub fn image(&self) -> Vec<u8> {
        self.state().live.clone()
    }

    /// Whether the power has gone.
    pub fn is_dead(&self) -> bool {
        *self.0.dead.borrow()
    }

    /// Returns once the power has gone.
    pub async fn died(&self) {
        let mut dead = self.0.dead.subscribe();
        dead.wait_for(|dead| *dead).await.unwrap();
    }

    /// The power goes now, if it has not gone yet.
    pub fn cut(&self) {
        // Every operation that was begun has ended.
        let _platter = self.state();
        self.0.dead.send_replace(true);
    }

    /// What is on the disk when the power is back.
    pub fn after_power_cut(&self, loss: Loss, seed: u64) -> Vec<u8> {
        let state = self.state();
        let mut image = state.synced.clone();
        let mut rng = TestRng(seed);
        for op in &state.unsynced {
            match (loss, op) {
                (Loss::All, _) => {}
                (Loss::Nothing, op) => op.apply(&mut image),
                (Loss::BeforeDatabase, op @ DiskOp::Resize(_)) => op.apply(&mut image),
                (Loss::Database, DiskOp::Resize(_)) => {}
                (Loss::Writes, op) | (_, op @ DiskOp::Resize(_)) => {
                    if rng.roll(2) == 0 {
                        op.apply(&mut image);
                    }
                }
                (Loss::BeforeDatabase | Loss::Database, op @ DiskOp::Write(offset, _)) => {
                    if (*offset < state.database) == (loss == Loss::Database) {
                        op.apply(&mut image);
                    }
                }
                (Loss::Torn, DiskOp::Write(offset, data)) => {
                    let length = match rng.roll(4) {
                        0 => 0,
                        1 => data.len(),
                        _ => rng.roll(data.len() as u64 + 1) as usize,
                    };
                    put(&mut image, *offset, &data[..length]);
                }
                (Loss::Sectors | Loss::Garbage, DiskOp::Write(offset, data)) => {
                    let mut start = *offset;
                    let end = start + data.len();
                    while start < end {
                        // To the end of the sector.
                        let stop = end.min(start - start % SECTOR + SECTOR);
                        let first = state.database..state.database + SECTOR;
                        let harmed = loss == Loss::Garbage && !first.contains(&start);
                        match rng.roll(if harmed { 3 } else { 2 }) {
                            0 => {}
                            1 => put(&mut image, start, &data[start - offset..stop - offset]),
                            _ => {
                                let garbage = (start..stop).map(|_| rng.roll(256) as u8);
                                let garbage: Vec<_> = garbage.collect();
                                put(&mut image, start, &garbage);
                            }
                        }
                        start = stop;
                    }
                }
            }
        }
        image
    }

    fn operation(&self, op: Option<DiskOp>) -> io::Result<()> {
        let mut state = self.state();
        if self.is_dead() {
            return Err(io::Error::other("no power"));
        }
        state.operations += 1;
        let last = state.cut == Some(state.operations);
        match op {
            // The last operation may have reached the disk as well.
            Some(op) => {
                if !last {
                    op.apply(&mut state.live);
                }
                state.unsynced.push(op);
            }
            None if last => {}
            None if state.operations >= state.lies_from => state.syncs += 1,
            None => {
                state.syncs += 1;
                let DiskState {
                    synced, unsynced, ..
                } = &mut *state;
                for op in unsynced.drain(..) {
                    op.apply(synced);
                }
            }
        }
        if last {
            self.0.dead.send_replace(true);
            return Err(io::Error::other("power cut"));
        }
        Ok(())
    }
}

/// SplitMix64.
struct TestRng(u64);

impl TestRng {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

impl StorageBackend for SimulatedDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().live.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut state = self.state();
        let start = offset as usize;
        let bytes = state
            .live
            .get(start..start + out.len())
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        state.read += out.len();
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.operation(Some(DiskOp::Resize(length as usize)))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.operation(None)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.operation(Some(DiskOp::Write(offset as usize, data.to_vec())))
    }
}
