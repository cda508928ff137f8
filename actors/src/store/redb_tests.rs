#![allow(non_snake_case)]

#[path = "../../../tests/support/disk.rs"]
mod disk;

use std::{
    collections::BTreeMap,
    io,
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::Condvar;
use proptest::prelude::*;
use redb::backends::FileBackend;

use self::disk::{Loss, SimulatedDisk};

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
    let key = Key::new(KeySpace::Request, &[b"a"]);
    {
        let store = RedbStore::open(&path).unwrap();
        let mut batch = Batch::new();
        batch.put(key.clone(), Precondition::Absent, b"value".to_vec());
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
struct FillableFile {
    file: FileBackend,
    full: Arc<AtomicBool>,
}

impl FillableFile {
    fn room(&self) -> io::Result<()> {
        if self.full.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

impl StorageBackend for FillableFile {
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

struct FillableLocation {
    path: PathBuf,
    full: Arc<AtomicBool>,
}

impl DatabaseLocation for FillableLocation {
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
        Ok(Database::builder().create_with_backend(FillableFile { file, full })?)
    }
}

#[tokio::test]
async fn redb__should_go_on_when_its_disk_has_room_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let full = Arc::new(AtomicBool::new(false));
    let place = FillableLocation {
        path,
        full: Arc::clone(&full),
    };
    let store = RedbStore::start(place).unwrap();
    let put = async |number: u16| {
        let mut batch = Batch::new();
        batch.put(row(number, 0), Precondition::Absent, vec![7; 10_000]);
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
    let whole = SimulatedDisk::holding(vec![]);
    drop(RedbStore::open_backend(whole.clone()).unwrap());
    for cut in 1..=whole.operations() {
        let disk = SimulatedDisk::cut_at(vec![], cut);
        let _ = RedbStore::open_backend(disk.clone());
        for loss in Loss::EVERY {
            let image = disk.after_power_cut(loss, cut as u64);
            std::fs::write(&unfinished, image).unwrap();
            let opened = RedbStore::open(&path);
            drop(opened.unwrap_or_else(|error| panic!("cut {cut}, {loss:?}: {error:?}")));
            assert!(!unfinished.exists());
            std::fs::remove_file(&path).unwrap();
        }
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

/// Sets of batches that are handed over at once.
const ROUNDS: u16 = 8;
/// Batches of a set.
const READ_CHUNK: u16 = 3;

fn row(number: u16, half: u8) -> Key {
    Key::new(KeySpace::Request, &[&number.to_be_bytes(), &[half]])
}

fn counter() -> Key {
    Key::new(KeySpace::Probe, &[])
}

/// The batch with this number: two rows that belong together; one that every batch changes, so that
/// pages are rewritten and freed; and of each set the last demands the row that the last of the set
/// before wrote, in its version.
fn pair(number: u16) -> Batch {
    let mut batch = Batch::new();
    let value = vec![number as u8; 700];
    batch.put(row(number, 0), Precondition::Absent, value.clone());
    batch.put(row(number, 1), Precondition::Absent, value);
    batch.put(counter(), Precondition::Any, number.to_be_bytes().to_vec());
    if number % READ_CHUNK == READ_CHUNK - 1 {
        let set = number / READ_CHUNK;
        let expect = match set {
            0 => Precondition::Absent,
            set => Precondition::Version(u64::from(set)),
        };
        batch.put(row(u16::MAX, 0), expect, vec![]);
    }
    batch
}

/// A batch that no store may take: its second row is there.
fn refused(number: u16) -> Batch {
    let mut batch = Batch::new();
    batch.put(row(number, 2), Precondition::Any, vec![1]);
    batch.put(row(number, 0), Precondition::Absent, vec![1]);
    batch
}

/// Hands batches over, some at once, until the disk dies. Returns the numbers of those that were
/// acknowledged.
fn write_pairs(runtime: &tokio::runtime::Runtime, store: &RedbStore) -> Vec<u16> {
    runtime.block_on(async {
        let mut acknowledged = vec![];
        for round in 0..ROUNDS {
            let numbers = || round * READ_CHUNK..(round + 1) * READ_CHUNK;
            // Each is followed by one that contradicts it, in the same group or the next.
            let batches = numbers().flat_map(|number| [pair(number), refused(number)]);
            let commits = batches.map(|batch| store.commit(batch));
            let outcomes = futures::future::join_all(commits).await;
            for (number, outcome) in numbers().zip(outcomes.chunks(2)) {
                if outcome[0].is_ok() {
                    acknowledged.push(number);
                }
                assert!(outcome[1].is_err(), "{number} was written twice");
            }
        }
        acknowledged
    })
}

/// What a power cut left of `write_pairs`.
struct Recovered {
    found: BTreeMap<Vec<u8>, Vec<u8>>,
    counter: Option<Row>,
}

/// Opens the disk as a power cut left it, and shows that the store can be used.
fn look(
    runtime: &tokio::runtime::Runtime,
    disk: SimulatedDisk,
    more: u16,
    what: &dyn std::fmt::Display,
) -> Recovered {
    let store = RedbStore::open_backend(disk)
        .unwrap_or_else(|error| panic!("{what}: does not open: {error:?}"));
    runtime.block_on(async {
        let all = Scan::prefix(KeySpace::Request, &[], 1000);
        let found = store.scan(&all).await.unwrap();
        let counter = store.get(&counter()).await.unwrap();
        let mut batch = Batch::new();
        batch.put(row(more, 0), Precondition::Absent, vec![]);
        store.commit(batch).await.unwrap();
        Recovered {
            found: found
                .into_iter()
                .map(|(key, row)| (key.bytes, row.value))
                .collect(),
            counter,
        }
    })
}

impl Recovered {
    /// Each batch is there in whole or not at all, every acknowledged one is, and none is without
    /// those before it.
    fn check(&self, acknowledged: &[u16], what: &dyn std::fmt::Display) {
        let has = |number, half| self.found.get(&row(number, half).bytes);
        let mut taken = 0;
        for number in 0..ROUNDS * READ_CHUNK {
            let (first, second) = (has(number, 0), has(number, 1));
            assert_eq!(first, second, "{what}: batch {number} is half there");
            assert_eq!(has(number, 2), None, "{what}: part of a refused batch");
            if acknowledged.contains(&number) {
                let value = vec![number as u8; 700];
                let lost = "was acknowledged and is lost";
                assert_eq!(first, Some(&value), "{what}: batch {number} {lost}");
            }
            if first.is_some() {
                assert_eq!(taken, number, "{what}: without the batch before it");
                taken = number + 1;
            }
        }
        let counter = self.counter.as_ref().map(|row| row.version);
        assert_eq!(counter.unwrap_or_default(), u64::from(taken), "{what}");
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
}

/// A store that was just made. Before that is whole it has not got its name.
fn new_store() -> Vec<u8> {
    let disk = SimulatedDisk::holding(vec![]);
    drop(RedbStore::open_backend(disk.clone()).unwrap());
    disk.image()
}

/// The disk whose power goes at its operation number `cut`, and what was acknowledged before.
fn cut_off(
    runtime: &tokio::runtime::Runtime,
    image: &[u8],
    cut: usize,
    what: &dyn std::fmt::Display,
) -> (SimulatedDisk, Vec<u16>) {
    let disk = SimulatedDisk::cut_at(image.to_vec(), cut);
    let acknowledged = match RedbStore::open_backend(disk.clone()) {
        Ok(store) => write_pairs(runtime, &store),
        Err(error) => {
            assert!(disk.is_dead(), "{what}: does not open: {error:?}");
            vec![]
        }
    };
    disk.cut();
    (disk, acknowledged)
}

/// The long form takes all the power cuts and many losses of each; the short one some.
fn long() -> bool {
    std::env::var_os("COVAULT_LONG_SUITE").is_some()
}

#[test]
fn redb__should_keep_every_acknowledged_batch_whole_when_the_power_is_cut_at_any_operation() {
    let runtime = runtime();
    let image = new_store();
    let whole = SimulatedDisk::holding(image.clone());
    let store = RedbStore::open_backend(whole.clone()).unwrap();
    let all = usize::from(ROUNDS * READ_CHUNK);
    assert_eq!(write_pairs(&runtime, &store).len(), all);
    drop(store);
    let seeds = if long() { 40 } else { 2 };
    let (mut variants, mut before_all, mut again) = (0, 0, 0);
    for cut in 1..=whole.operations() {
        let what = format!("cut at operation {cut}");
        let (disk, acknowledged) = cut_off(&runtime, &image, cut, &what);
        if acknowledged.is_empty() {
            before_all += 1;
        }
        for loss in Loss::EVERY {
            for turn in 0..if loss.is_random() { seeds } else { 1 } {
                let seed = 1_000_000 * cut as u64 + turn;
                let what = format!("{what}, {loss:?}, seed {seed}");
                let image = disk.after_power_cut(loss, seed);
                let found = SimulatedDisk::holding(image.clone());
                look(&runtime, found.clone(), 1000, &what).check(&acknowledged, &what);
                variants += 1;
                // The power goes once more while the store is opened and used again.
                let operations = found.operations();
                let step = if long() && turn == 0 { 1 } else { operations };
                for second in (1 + seed as usize % step..=operations).step_by(step) {
                    let what = format!("{what}, again at operation {second}");
                    let disk = SimulatedDisk::cut_at(image.clone(), second);
                    if let Ok(store) = RedbStore::open_backend(disk.clone()) {
                        let mut batch = Batch::new();
                        batch.put(row(1000, 0), Precondition::Absent, vec![]);
                        let _ = runtime.block_on(store.commit(batch));
                    }
                    disk.cut();
                    let loss = Loss::EVERY[(seed as usize + second) % Loss::EVERY.len()];
                    let image = disk.after_power_cut(loss, seed);
                    look(&runtime, SimulatedDisk::holding(image), 1001, &what)
                        .check(&acknowledged, &what);
                    again += 1;
                }
            }
        }
    }
    let operations = whole.operations();
    println!("{operations} operations of the disk, {variants} losses, {again} of two power cuts");
    assert!(
        before_all < operations / 2,
        "most cuts must come after the first batch"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn redb__should_survive_any_loss_of_what_was_not_synced(
        share in 0.0f64..1.0,
        loss in proptest::sample::select(Loss::EVERY.to_vec()),
        seed: u64,
    ) {
        let runtime = runtime();
        let image = new_store();
        let whole = SimulatedDisk::holding(image.clone());
        write_pairs(&runtime, &RedbStore::open_backend(whole.clone()).unwrap());
        let cut = 1 + (share * (whole.operations() - 1) as f64) as usize;
        let what = format!("cut at operation {cut}, {loss:?}, seed {seed}");
        let (disk, acknowledged) = cut_off(&runtime, &image, cut, &what);
        let image = disk.after_power_cut(loss, seed);
        look(&runtime, SimulatedDisk::holding(image), 1000, &what).check(&acknowledged, &what);
    }
}

/// A disk that confirms nothing while it is shut.
#[derive(Clone, Debug)]
struct GatedDisk {
    disk: SimulatedDisk,
    shut: Arc<(Mutex<bool>, Condvar)>,
}

impl GatedDisk {
    fn set(&self, shut: bool) {
        *self.shut.0.lock() = shut;
        self.shut.1.notify_all();
    }
}

impl StorageBackend for GatedDisk {
    fn len(&self) -> io::Result<u64> {
        self.disk.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.disk.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.disk.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut shut = self.shut.0.lock();
        self.shut.1.wait_while(&mut shut, |shut| *shut);
        drop(shut);
        self.disk.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.disk.write(offset, data)
    }
}

#[test]
fn redb__should_have_batches_that_wait_share_what_the_disk_confirms() {
    let runtime = runtime();
    let disk = SimulatedDisk::holding(new_store());
    let gated = GatedDisk {
        disk: disk.clone(),
        shut: Arc::default(),
    };
    let store = RedbStore::open_backend(gated.clone()).unwrap();
    let put = |number: u16| {
        let mut batch = Batch::new();
        batch.put(row(number, 0), Precondition::Absent, vec![7; 100]);
        store.commit(batch)
    };
    let syncs = |count: u16| {
        gated.set(true);
        let before = disk.syncs();
        runtime.block_on(async {
            let first = count * 1000;
            let commits = (first..first + count).map(&put).collect::<Vec<_>>();
            // All are handed over before the disk confirms anything.
            let open = async { gated.set(false) };
            let (outcomes, ()) = futures::join!(futures::future::join_all(commits), open);
            assert!(outcomes.into_iter().all(|outcome| outcome.is_ok()));
        });
        disk.syncs() - before
    };
    let one = syncs(1);
    assert!(one > 0);
    // The writer had begun with some, and takes the rest at once.
    for count in [8, 64] {
        let many = syncs(count);
        assert!(
            many <= 2 * one,
            "{many} syncs of {count} batches, {one} of one"
        );
    }
}

fn job(number: u16) -> RedbJob {
    let mut batch = Batch::new();
    batch.put(row(number, 0), Precondition::Absent, vec![7; 1_000]);
    let (reply, _) = oneshot::channel();
    RedbJob { batch, reply }
}

/// Whether all of a store would be read to start it as a power cut would leave it now.
fn would_be_read(disk: &SimulatedDisk) -> bool {
    let image = disk.after_power_cut(Loss::All, 0);
    let opened = Database::builder()
        .set_repair_callback(|repair| repair.abort())
        .create_with_backend(SimulatedDisk::holding(image));
    match opened {
        Ok(_) => false,
        Err(redb::DatabaseError::RepairAborted) => true,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn redb__should_say_which_pages_are_free_where_many_share_a_transaction() {
    let disk = SimulatedDisk::holding(new_store());
    let place = Mutex::new(Some(disk.clone()));
    let db = place.open().unwrap();
    prepare(&db).unwrap();
    assert!(!would_be_read(&disk));
    for (first, count) in [(0, 200), (200, 1), (201, LARGE_GROUP)] {
        let count = u16::try_from(count).unwrap();
        let jobs: Vec<_> = (first..first + count).map(job).collect();
        let outcomes = write_group(&db, &jobs).unwrap();
        assert!(outcomes.iter().all(Result::is_ok));
        assert_eq!(would_be_read(&disk), count == 1, "behind {first}");
    }
}

#[test]
fn redb__should_not_read_all_of_itself_after_a_crash_once_it_had_a_moment() {
    let runtime = runtime();
    let disk = SimulatedDisk::holding(new_store());
    let store = RedbStore::open_backend(disk.clone()).unwrap();
    for number in 0..3 {
        let batch = job(number).batch;
        runtime.block_on(store.commit(batch)).unwrap();
        while would_be_read(&disk) {
            runtime.block_on(async { tokio::time::sleep(Duration::from_millis(5)).await });
        }
    }
}

#[test]
fn start__should_write_nothing_where_it_finds_the_format() {
    let disk = SimulatedDisk::holding(new_store());
    let db = Mutex::new(Some(disk.clone())).open().unwrap();
    let before = disk.syncs();
    prepare(&db).unwrap();
    assert_eq!(disk.syncs(), before);
    assert!(!would_be_read(&disk));
}

#[test]
fn start__should_write_down_which_pages_are_free_after_it_had_to_find_out() {
    let disk = SimulatedDisk::holding(new_store());
    let db = Mutex::new(Some(disk.clone())).open().unwrap();
    let outcomes = write_group(&db, &[job(0)]).unwrap();
    assert!(outcomes.iter().all(Result::is_ok));
    let disk = SimulatedDisk::holding(disk.after_power_cut(Loss::All, 0));
    assert!(would_be_read(&disk));

    // Nothing is asked of it in the meantime.
    let _store = RedbStore::open_backend(disk.clone()).unwrap();
    let runtime = runtime();
    while would_be_read(&disk) {
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(5)).await });
    }
}
