//! How many steps per second a store takes, with 1, 8 and 64 writers at once: redb and a PostgreSQL
//! of this machine, and in the same run how often per second the disk below them confirms a small
//! write (fsync), which is what a step costs at least when nothing shares it.
//!
//! Beside it, how often each of them has the disk confirm something per step: whether those that wait
//! share that. redb confirms a transaction twice, PostgreSQL once.
//!
//! `just bench-store`. A step is the batch of a signing request: the request, its audit entry, its
//! pending effect and the record of its key, some hundred bytes each, with versions checked.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs,
    reason = "a benchmark prints, and stops at the first surprise"
)]

#[path = "../../tests/support/ports.rs"]
mod ports;
#[path = "../../tests/support/postgres.rs"]
mod server;

use std::{
    fs,
    io::{self, Seek as _, Write as _},
    num::NonZeroU32,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use covault_actors::store::{
    Batch, Key, KeySpace, Precondition, Store,
    postgres::{Options, PostgresStore},
    redb::RedbStore,
};
use criterion::{Criterion, Throughput};
use redb::{StorageBackend, backends::FileBackend};
use secrecy::SecretString;
use tokio::runtime::Runtime;

const WRITERS: [u64; 3] = [1, 8, 64];

/// Where criterion writes, apart from the other benches.
fn folder() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    PathBuf::from(target).join("criterion-store")
}

/// Steps of which it is counted how often the disk confirms something.
const COUNTED: u64 = 4_000;

/// A file that counts how often it is synced.
#[derive(Debug)]
struct CountingFile {
    file: FileBackend,
    syncs: Arc<AtomicU64>,
}

impl CountingFile {
    fn new(path: &Path, syncs: &Arc<AtomicU64>) -> Self {
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).open(path);
        Self {
            file: FileBackend::new(file.unwrap()).unwrap(),
            syncs: Arc::clone(syncs),
        }
    }
}

impl StorageBackend for CountingFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write(offset, data)
    }
}

/// A new request, or the next version of one.
fn step(number: u64, version: u64) -> Batch {
    let id = number.to_be_bytes();
    let expect = match version {
        0 => Precondition::Absent,
        version => Precondition::Version(version),
    };
    let mut batch = Batch::new();
    batch.put(Key::new(KeySpace::Request, &[&id]), expect, vec![7; 600]);
    let audit = Key::new(KeySpace::AuditEntry, &[&id, &version.to_be_bytes()]);
    batch.put(audit, Precondition::Any, vec![7; 120]);
    batch.put(
        Key::new(KeySpace::Outbox, &[&id]),
        Precondition::Any,
        vec![7; 200],
    );
    if version == 0 {
        let record = Key::new(KeySpace::Idempotency, &[&id]);
        batch.put(record, Precondition::Absent, vec![7; 300]);
    }
    // What all steps of an orchestrator will check: the row of a lease.
    batch.check(Key::new(KeySpace::Probe, &[]), Precondition::Version(1));
    batch
}

/// Takes `steps` steps, `writers` at once, each waiting for its own.
async fn work(store: &Arc<dyn Store>, next: &Arc<AtomicU64>, writers: u64, steps: u64) {
    let tasks = (0..writers).map(|writer| {
        let (store, next) = (Arc::clone(store), Arc::clone(next));
        let mine = steps / writers + u64::from(writer < steps % writers);
        tokio::spawn(async move {
            let mut number = 0;
            for step_of_mine in 0..mine {
                // Each request has four steps.
                let version = step_of_mine % 4;
                if version == 0 {
                    number = next.fetch_add(1, Ordering::Relaxed);
                }
                store.commit(step(number, version)).await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

/// Confirmations of the disk per step, by the number of writers.
type SyncsPerStep = Vec<f64>;

fn measure(
    criterion: &mut Criterion,
    runtime: &Runtime,
    name: &str,
    store: &Arc<dyn Store>,
    syncs: &dyn Fn() -> u64,
) -> SyncsPerStep {
    let mut lease = Batch::new();
    lease.put(Key::new(KeySpace::Probe, &[]), Precondition::Absent, vec![]);
    runtime.block_on(store.commit(lease)).unwrap();
    let next = Arc::new(AtomicU64::new(0));
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Elements(1)).sample_size(10);
    for writers in WRITERS {
        group.bench_function(writers.to_string(), |bencher| {
            bencher.iter_custom(|steps| {
                // So that with many writers all have something to do.
                let all = steps.max(4 * writers);
                let started = Instant::now();
                runtime.block_on(work(store, &next, writers, all));
                started.elapsed().mul_f64(steps as f64 / all as f64)
            });
        });
    }
    group.finish();
    let share = |writers| {
        let before = syncs();
        runtime.block_on(work(store, &next, writers, COUNTED));
        (syncs() - before) as f64 / COUNTED as f64
    };
    WRITERS.map(share).to_vec()
}

/// Small writes in place, each confirmed by the disk.
fn disk(criterion: &mut Criterion, path: PathBuf) {
    let mut file = fs::File::create(path).unwrap();
    file.write_all(&[0; 1 << 20]).unwrap();
    file.sync_all().unwrap();
    let mut group = criterion.benchmark_group("disk");
    group.throughput(Throughput::Elements(1)).sample_size(10);
    group.bench_function("1", |bencher| {
        bencher.iter(|| {
            file.rewind().unwrap();
            file.write_all(&[7; 2048]).unwrap();
            file.sync_data().unwrap();
        });
    });
    group.finish();
}

/// Steps per second, from the median.
fn rate(name: &str, writers: u64) -> f64 {
    let path = folder().join(name).join(writers.to_string());
    let text = fs::read(path.join("new/estimates.json")).unwrap();
    let estimates: serde_json::Value = serde_json::from_slice(&text).unwrap();
    1e9 / estimates["median"]["point_estimate"].as_f64().unwrap()
}

fn main() {
    // Of an earlier run: they would look like this one's.
    let _ = fs::remove_dir_all(folder());
    let mut criterion = Criterion::default()
        .output_directory(&folder())
        .without_plots()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(5))
        .configure_from_args();
    let runtime = Runtime::new().unwrap();
    // One disk for all.
    let place = tempfile::tempdir().unwrap();
    disk(&mut criterion, place.path().join("disk"));
    let syncs = Arc::new(AtomicU64::new(0));
    let file = CountingFile::new(&place.path().join("store.redb"), &syncs);
    let redb: Arc<dyn Store> = Arc::new(RedbStore::open_backend(file).unwrap());
    let synced = || syncs.load(Ordering::SeqCst);
    let of_redb = measure(&mut criterion, &runtime, "redb", &redb, &synced);
    let server = server::Postgres::start();
    let url = server.database();
    let name = url.rsplit('/').next().unwrap().to_owned();
    let options = Options {
        url: SecretString::from(url),
        readers: NonZeroU32::MIN,
        patience: Duration::from_secs(30),
        alone: true,
    };
    let postgres = runtime.block_on(PostgresStore::open(options)).unwrap();
    let postgres: Arc<dyn Store> = Arc::new(postgres);
    let synced = || {
        // What other processes count is shown with a delay.
        std::thread::sleep(Duration::from_secs(2));
        let count = "SELECT wal_sync FROM pg_stat_wal";
        server.query(&name, count).parse().unwrap()
    };
    let of_postgres = measure(&mut criterion, &runtime, "postgres", &postgres, &synced);
    let disk = rate("disk", 1);
    println!("\nsteps per second (times what the disk confirms one by one: {disk:.0} per second)");
    println!("{:<12}{:>18}{:>18}{:>18}", "writers", 1, 8, 64);
    for name in ["redb", "postgres"] {
        let cell = |writers| {
            let rate = rate(name, writers);
            format!("{rate:.0} ({:.1})", rate / disk)
        };
        println!("{name:<12}{:>18}{:>18}{:>18}", cell(1), cell(8), cell(64));
    }
    println!("\nconfirmations of the disk per step");
    for (name, of) in [("redb", of_redb), ("postgres", of_postgres)] {
        println!("{name:<12}{:>18.3}{:>18.3}{:>18.3}", of[0], of[1], of[2]);
    }
    drop(postgres);
    runtime.shutdown_timeout(Duration::from_secs(5));
}
