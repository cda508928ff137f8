//! How many signatures a 2-of-3 cluster in one process gives, over memory and over a real Redis,
//! beside what its cryptography alone gives on the same machine. Ed25519 is measured without nonces
//! made ahead (two rounds), and with pools that are full at the start and outlast the measurement (one
//! round).
//!
//! `cargo run --release -p covault-mpc --example throughput [seconds per line [curve [alone|memory|redis]]]`

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use covault_core::{
    derive::{KeyPath, RootKey},
    scheme::Scheme,
    signature::{Curve, Signature},
};
use covault_mpc::{
    backend::{self, KeygenSetup, Session, SignSetup, Signer, SignerIndex},
    node::RebuildCheck,
    preprocess::{MAX_POOL_SIZE, Watermarks},
};
use support::{SystemEntropy, TestBus, TestCluster, verify};

fn run<T>(mut parties: BTreeMap<SignerIndex, Box<dyn Session<T>>>) -> BTreeMap<SignerIndex, T> {
    let mut done = BTreeMap::new();
    let mut queue = Vec::new();
    for (me, session) in &mut parties {
        let output = session.start(&SystemEntropy).unwrap();
        queue.extend(output.send.into_iter().map(|message| (*me, message)));
    }
    while let Some((from, message)) = queue.pop() {
        let to = message.to;
        let session = parties.get_mut(&to).unwrap();
        let output = session
            .receive(from, message.round, message.body)
            .unwrap_or_else(|abort| panic!("{abort:?}"));
        queue.extend(output.send.into_iter().map(|message| (to, message)));
        done.extend(output.done.map(|outcome| (to, outcome)));
    }
    done
}

/// Signatures per second, and milliseconds of CPU for each.
fn crypto_alone(curve: Curve, threads: usize, time: Duration) -> (f64, f64) {
    let parties = (1..=3)
        .map(|me| {
            let setup = KeygenSetup {
                context: [0; 32],
                me,
                threshold: 2,
                parties: 3,
            };
            (
                me,
                backend::of(Scheme::default_of(curve))
                    .unwrap()
                    .keygen(setup)
                    .unwrap(),
            )
        })
        .collect();
    let shares = run(parties);
    let signers: Arc<Vec<Arc<dyn Signer>>> = Arc::new(
        shares
            .values()
            .map(|share| {
                backend::of(Scheme::default_of(curve))
                    .unwrap()
                    .open(share)
                    .unwrap()
            })
            .collect(),
    );
    let cpu = cpu_ms();
    let workers: Vec<_> = (0..threads)
        .map(|thread| {
            let signers = Arc::clone(&signers);
            std::thread::spawn(move || {
                let begun = Instant::now();
                let mut count = 0_u32;
                while begun.elapsed() < time {
                    let mut context = [thread as u8; 32];
                    context[..4].copy_from_slice(&count.to_be_bytes());
                    let parties = (1..=2)
                        .map(|me: SignerIndex| {
                            let setup = SignSetup {
                                context,
                                signers: vec![1, 2],
                                path: KeyPath::new(vec![0, count % 7]).unwrap(),
                                message: vec![7; 32],
                            };
                            (me, signers[usize::from(me) - 1].sign(setup).unwrap())
                        })
                        .collect();
                    let done: Vec<Option<Signature>> = run(parties).into_values().collect();
                    assert!(done.iter().any(Option::is_some));
                    count += 1;
                }
                f64::from(count) / begun.elapsed().as_secs_f64()
            })
        })
        .collect();
    let rate: f64 = workers
        .into_iter()
        .map(|worker| worker.join().unwrap())
        .sum();
    (rate, (cpu_ms() - cpu) / rate / time.as_secs_f64())
}

/// CPU time of this process so far, all threads, in milliseconds.
fn cpu_ms() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // After the name in parentheses: state is field 3, utime and stime are 14 and 15.
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    let ticks: f64 = fields[11..13]
        .iter()
        .map(|field| field.parse::<f64>().unwrap())
        .sum();
    ticks * 10.0
}

async fn through_cluster(
    test: &Arc<TestCluster>,
    root: &Arc<RootKey>,
    in_flight: usize,
    time: Duration,
    most: usize,
) -> (f64, Duration, f64) {
    let cpu = cpu_ms();
    let asked = Arc::new(AtomicUsize::new(0));
    let begun = Instant::now();
    let workers: Vec<_> = (0..in_flight)
        .map(|_| {
            let (test, root) = (Arc::clone(test), Arc::clone(root));
            let asked = Arc::clone(&asked);
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                while begun.elapsed() < time && asked.fetch_add(1, Ordering::Relaxed) < most {
                    let order = test.order(&root);
                    let started = Instant::now();
                    let signatures = test.sign(&order, 2, 60_000).await.unwrap();
                    latencies.push(started.elapsed());
                    if latencies.len() % 50 == 1 {
                        verify(&order, &signatures);
                    }
                }
                latencies
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for worker in workers {
        latencies.extend(worker.await.unwrap());
    }
    latencies.sort();
    let rate = latencies.len() as f64 / begun.elapsed().as_secs_f64();
    let cpu = (cpu_ms() - cpu) / latencies.len() as f64;
    (rate, latencies[latencies.len() / 2], cpu)
}

/// Waits until the orchestrator knows so many nonces of every node.
async fn until_ready(test: &TestCluster, at_least: usize) {
    loop {
        let levels = test.cluster.nonce_levels();
        let full = levels.iter().filter(|level| level.known >= at_least);
        if full.count() == test.nodes.len() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Signatures of one measurement with nonces made ahead: their pools outlast it.
const AHEAD: usize = MAX_POOL_SIZE / 2;

async fn measure(
    test: &Arc<TestCluster>,
    curve: Curve,
    name: &str,
    time: Duration,
    preprocess: bool,
) {
    let begun = Instant::now();
    let root = Arc::new(test.keygen(curve, 2).await);
    println!("{:9} {name}, keygen: {:?}", curve.name(), begun.elapsed());
    for in_flight in [1, 32] {
        let most = if preprocess { AHEAD } else { usize::MAX };
        if preprocess {
            until_ready(test, MAX_POOL_SIZE * 3 / 4).await;
        }
        let (rate, median, cpu) = through_cluster(test, &root, in_flight, time, most).await;
        let rounds = if preprocess { ", made ahead" } else { "" };
        println!(
            "{:9} {name}{rounds}, {in_flight:2} in flight: {rate:7.0}/s, p50 {median:?}, {cpu:.2} ms CPU each",
            curve.name()
        );
    }
}

#[tokio::main]
async fn main() {
    let seconds = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(5);
    let time = Duration::from_secs(seconds);
    let only =
        |place: usize, name: &str| std::env::args().nth(place).is_none_or(|only| only == name);
    let threads = std::thread::available_parallelism().unwrap().get();
    for curve in Curve::ALL {
        if !only(2, curve.name()) || !only(3, "alone") {
            continue;
        }
        for threads in [1, threads] {
            let (rate, cpu) = crypto_alone(curve, threads, time);
            println!(
                "{:9} crypto alone, {threads} threads: {rate:7.0}/s, {cpu:.2} ms CPU each",
                curve.name()
            );
        }
    }
    for name in ["memory", "redis"] {
        for (curve, high) in [
            (Curve::Secp256k1, 0),
            (Curve::Ed25519, 0),
            (Curve::Ed25519, MAX_POOL_SIZE),
        ] {
            if !only(2, curve.name()) || !only(3, name) {
                continue;
            }
            let medium = if name == "redis" {
                TestBus::redis()
            } else {
                TestBus::memory()
            };
            let low = high * 3 / 4;
            let watermarks = Watermarks { low, high };
            let test =
                TestCluster::start_pooled(medium, 3, Arc::new(RebuildCheck), watermarks).await;
            let test = Arc::new(test);
            test.until_live(3).await;
            measure(&test, curve, name, time, high > 0).await;
        }
    }
}
