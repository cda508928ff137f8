#![allow(non_snake_case)]

use std::{
    collections::BTreeMap,
    io,
    sync::{
        MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use proptest::prelude::*;
use redb::backends::FileBackend;

use super::*;
use crate::store::conformance::conformance;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redb__should_conform() {
    let folder = tempfile::tempdir().unwrap();
    let number = std::sync::atomic::AtomicUsize::new(0);
    conformance(|| async {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = folder.path().join(format!("{number}.redb"));
        Arc::new(RedbStore::open(&path).unwrap()) as Arc<dyn Store>
    })
    .await;
}

#[tokio::test]
async fn redb__should_find_everything_again_after_it_was_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/store.redb");
    let key = Key::new(Space::Request, &[b"a"]);
    {
        let store = RedbStore::open(&path).unwrap();
        let mut batch = Batch::new();
        batch.put(key.clone(), Expect::Absent, b"value".to_vec());
        store.commit(batch).await.unwrap();
        assert!(
            RedbStore::open(&path).is_err(),
            "two processes must not share the file"
        );
    }
    let store = RedbStore::open(&path).unwrap();
    let row = store.get(&key).await.unwrap().unwrap();
    assert_eq!(
        (row.version, row.value.as_slice()),
        (1, b"value".as_slice())
    );
}

/// A file whose disk can be full.
#[derive(Debug)]
struct Fillable {
    file: FileBackend,
    full: Arc<AtomicBool>,
}

impl Fillable {
    fn room(&self) -> io::Result<()> {
        if self.full.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

impl StorageBackend for Fillable {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.room()?;
        self.file.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.room()?;
        self.file.write(offset, data)
    }
}

struct FillablePlace {
    path: PathBuf,
    full: Arc<AtomicBool>,
}

impl Place for FillablePlace {
    fn check(&self) -> io::Result<()> {
        match self.full.load(Ordering::SeqCst) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => self.path.check(),
        }
    }

    fn open(&self) -> Result<Database, redb::Error> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = FileBackend::new(options.open(&self.path)?)?;
        let full = Arc::clone(&self.full);
        Ok(Database::builder().create_with_backend(Fillable { file, full })?)
    }
}

#[tokio::test]
async fn redb__should_go_on_when_its_disk_has_room_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let full = Arc::new(AtomicBool::new(false));
    let place = FillablePlace {
        path,
        full: Arc::clone(&full),
    };
    let store = RedbStore::start(place).unwrap();
    let put = async |number: u16| {
        let mut batch = Batch::new();
        batch.put(row(number, 0), Expect::Absent, vec![7; 10_000]);
        store.commit(batch).await
    };
    put(1).await.unwrap();
    for round in 0..2 {
        full.store(true, Ordering::SeqCst);
        for _ in 0..3 {
            let refused = put(2 + round).await.unwrap_err();
            assert!(matches!(refused, CommitError::Unavailable(_)), "{refused}");
            // What can be read can be read.
            assert!(store.get(&row(1, 0)).await.unwrap().is_some());
        }
        full.store(false, Ordering::SeqCst);
        // What was there is there; what was refused may be there too.
        let outcome = put(2 + round).await;
        assert!(
            matches!(outcome, Ok(()) | Err(CommitError::Conflict(_))),
            "{outcome:?}"
        );
        for number in 1..=2 + round {
            let found = store.get(&row(number, 0)).await.unwrap();
            assert_eq!(found.unwrap().value, vec![7; 10_000], "{number}");
        }
    }
}

#[test]
fn redb__should_open_after_its_first_start_was_cut_off_at_any_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let unfinished = folder.path().join("store.redb.new");
    let whole = Disk::new(vec![], None, 0);
    drop(RedbStore::open_backend(whole.clone()).unwrap());
    let operations = whole.platter().operations;
    for cut in 1..=operations {
        let disk = Disk::new(vec![], Some(cut), cut as u64);
        let _ = RedbStore::open_backend(disk.clone());
        std::fs::write(&unfinished, disk.after_power_cut()).unwrap();
        drop(RedbStore::open(&path).unwrap_or_else(|error| panic!("cut {cut}: {error:?}")));
        assert!(!unfinished.exists());
        std::fs::remove_file(&path).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn redb__should_keep_its_file_from_others() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    drop(RedbStore::open(&path).unwrap());
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// A disk that loses power at its `cut`th operation: what was not synced is lost, kept or torn,
/// piece by piece, as `seed` has it.
#[derive(Clone, Debug)]
struct Disk(Arc<Mutex<Platter>>);

#[derive(Debug)]
struct Platter {
    /// What a reader sees.
    live: Vec<u8>,
    /// What is on disk for sure.
    synced: Vec<u8>,
    /// What was written since the last sync, in order.
    loose: Vec<Op>,
    operations: usize,
    cut: Option<usize>,
    dead: bool,
    seed: u64,
}

#[derive(Clone, Debug)]
enum Op {
    Write(usize, Vec<u8>),
    Resize(usize),
}

/// Real disks write whole sectors.
const SECTOR: usize = 512;

impl Disk {
    fn new(image: Vec<u8>, cut: Option<usize>, seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Platter {
            live: image.clone(),
            synced: image,
            loose: vec![],
            operations: 0,
            cut,
            dead: false,
            seed,
        })))
    }

    fn platter(&self) -> MutexGuard<'_, Platter> {
        self.0.lock().unwrap()
    }

    /// What is on the disk when the power is back.
    fn after_power_cut(&self) -> Vec<u8> {
        let platter = self.platter();
        let mut image = platter.synced.clone();
        let mut dice = platter.seed;
        let mut roll = |sides: u64| {
            // SplitMix64
            dice = dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = dice;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) % sides
        };
        for op in &platter.loose {
            match op {
                Op::Resize(length) => {
                    if roll(2) == 0 {
                        image.resize(*length, 0);
                    }
                }
                Op::Write(offset, data) => {
                    for (number, sector) in data.chunks(SECTOR).enumerate() {
                        if roll(2) == 0 {
                            continue;
                        }
                        let start = offset + number * SECTOR;
                        if image.len() < start + sector.len() {
                            image.resize(start + sector.len(), 0);
                        }
                        image[start..start + sector.len()].copy_from_slice(sector);
                    }
                }
            }
        }
        image
    }
}

impl Platter {
    fn operation(&mut self, op: Option<Op>) -> io::Result<()> {
        if self.dead {
            return Err(io::Error::other("no power"));
        }
        // The last operation before the cut may have reached the disk as well.
        if let Some(op) = op {
            self.loose.push(op);
        }
        self.operations += 1;
        if self.cut == Some(self.operations) {
            self.dead = true;
            return Err(io::Error::other("power cut"));
        }
        Ok(())
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.platter().live.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let platter = self.platter();
        let start = offset as usize;
        let bytes = platter
            .live
            .get(start..start + out.len())
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut platter = self.platter();
        platter.operation(Some(Op::Resize(length as usize)))?;
        platter.live.resize(length as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut platter = self.platter();
        platter.operation(None)?;
        platter.synced = platter.live.clone();
        platter.loose.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut platter = self.platter();
        platter.operation(Some(Op::Write(offset as usize, data.to_vec())))?;
        let start = offset as usize;
        platter.live[start..start + data.len()].copy_from_slice(data);
        Ok(())
    }
}

const PAIRS: u16 = 24;

fn row(number: u16, half: u8) -> Key {
    Key::new(Space::Request, &[&number.to_be_bytes(), &[half]])
}

fn pair(number: u16) -> Batch {
    let mut batch = Batch::new();
    let value = vec![number as u8; 700];
    batch.put(row(number, 0), Expect::Absent, value.clone());
    batch.put(row(number, 1), Expect::Absent, value);
    // One row that every batch changes, so that pages are rewritten and freed.
    batch.put(
        Key::new(Space::Probe, &[]),
        Expect::Any,
        number.to_be_bytes().to_vec(),
    );
    batch
}

/// Writes pairs of rows, some alone and some in a group, until the disk dies. Returns the
/// numbers of those that were acknowledged.
fn write_pairs(runtime: &tokio::runtime::Runtime, disk: Disk) -> Vec<u16> {
    let Ok(store) = RedbStore::open_backend(disk) else {
        return vec![];
    };
    runtime.block_on(async {
        let mut acknowledged = vec![];
        for group in (0..PAIRS).collect::<Vec<_>>().chunks(3) {
            let commits = group.iter().map(|number| store.commit(pair(*number)));
            for (number, outcome) in group.iter().zip(futures::future::join_all(commits).await) {
                if outcome.is_ok() {
                    acknowledged.push(*number);
                }
            }
        }
        acknowledged
    })
}

/// Opens the disk as the power cut left it and checks what is on it.
fn check(runtime: &tokio::runtime::Runtime, image: Vec<u8>, acknowledged: &[u16], what: &str) {
    let found: BTreeMap<Vec<u8>, Vec<u8>> = {
        let store = RedbStore::open_backend(Disk::new(image, None, 0))
            .unwrap_or_else(|error| panic!("{what}: does not open: {error:?}"));
        runtime.block_on(async {
            let all = store
                .scan(&Scan::prefix(Space::Request, &[], 1000))
                .await
                .unwrap();
            // And it must be possible to go on.
            store.commit(pair(1000)).await.unwrap();
            all.into_iter()
                .map(|(key, row)| (key.bytes, row.value))
                .collect()
        })
    };
    for number in 0..PAIRS {
        let first = found.get(&row(number, 0).bytes);
        let second = found.get(&row(number, 1).bytes);
        assert_eq!(first, second, "{what}: batch {number} is half there");
        if acknowledged.contains(&number) {
            assert_eq!(
                first,
                Some(&vec![number as u8; 700]),
                "{what}: batch {number} was acknowledged and is lost"
            );
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
}

#[test]
fn redb__should_keep_every_acknowledged_batch_whole_when_the_power_is_cut_at_any_operation() {
    let runtime = runtime();
    let whole = Disk::new(vec![], None, 0);
    assert_eq!(
        write_pairs(&runtime, whole.clone()).len(),
        usize::from(PAIRS)
    );
    let operations = whole.platter().operations;
    println!("{operations} disk operations");
    let mut opened_empty = 0;
    for cut in 1..=operations {
        let disk = Disk::new(vec![], Some(cut), cut as u64);
        let acknowledged = write_pairs(&runtime, disk.clone());
        if acknowledged.is_empty() {
            opened_empty += 1;
        }
        check_or_new(&runtime, &disk, &acknowledged, cut);
    }
    assert!(
        opened_empty < operations / 2,
        "most cuts must come after the first batch"
    );
}

/// While the file is being made for the first time, nothing was promised yet.
fn check_or_new(runtime: &tokio::runtime::Runtime, disk: &Disk, acknowledged: &[u16], cut: usize) {
    let image = disk.after_power_cut();
    if acknowledged.is_empty()
        && RedbStore::open_backend(Disk::new(image.clone(), None, 0)).is_err()
    {
        return;
    }
    check(
        runtime,
        image,
        acknowledged,
        &format!("cut at operation {cut}"),
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn redb__should_survive_any_loss_of_what_was_not_synced(share in 0.0f64..1.0, seed: u64) {
        let runtime = runtime();
        let whole = Disk::new(vec![], None, 0);
        write_pairs(&runtime, whole.clone());
        let operations = whole.platter().operations;
        let cut = 1 + (share * (operations - 1) as f64) as usize;
        let disk = Disk::new(vec![], Some(cut), seed);
        let acknowledged = write_pairs(&runtime, disk.clone());
        check_or_new(&runtime, &disk, &acknowledged, cut);
    }
}
