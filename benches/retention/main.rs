//! What keeping everything for ever costs: a service with 1,000 finished requests and 1,000 wallets,
//! beside one with 1,000,000 and 100,000. Each has a `serve`, three `signer` processes, a Redis and a
//! chain of its own; they are asked over HTTP in turns, so that whatever else the machine does meets
//! both, at a fixed rate of up to 250 calls per second.
//!
//! `just bench-retention`, about 10 minutes. Options: `--requests N` and `--wallets N` of the large
//! one, `--runs N`, `--postgres` instead of redb. With `--open N` it measures instead what it costs to
//! follow N transactions that no block takes, beside the finished requests of the large one; with `--pages` what each page of
//! the console takes beside them and `--pending N` requests that wait for people. The stores are where temporary files are (TMPDIR),
//! take about 10 GB there, and are held in memory by vmtouch.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    dead_code,
    unused_imports,
    missing_docs,
    reason = "a benchmark prints, and stops at the first surprise"
)]

#[path = "../shared/console_person.rs"]
mod console_person;
mod copies;
#[path = "../shared/first_paint.rs"]
mod first_paint;
#[path = "../shared/goals.rs"]
mod goals;
mod pages;
mod pinned;
mod service;
#[path = "../../tests/it/support/mod.rs"]
mod support;
#[path = "../shared/usage.rs"]
mod usage;

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use pinned::PinnedFile;
use service::{BenchService, KINDS, ServiceSize};
use support::postgres::Postgres;

struct Options {
    requests: u64,
    wallets: u64,
    runs: usize,
    open: u64,
    pages: bool,
    pending: u64,
    postgres: bool,
}

fn options(arguments: impl Iterator<Item = String>) -> Options {
    let mut options = Options {
        requests: 1_000_000,
        wallets: 100_000,
        runs: 8,
        open: 0,
        pages: false,
        pending: 10_000,
        postgres: false,
    };
    let mut arguments = arguments.skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().expect("an option without a value");
        match argument.as_str() {
            "--requests" => options.requests = value().parse().unwrap(),
            "--wallets" => options.wallets = value().parse().unwrap(),
            "--open" => options.open = value().parse().unwrap(),
            "--runs" => options.runs = value().parse().unwrap(),
            "--pages" => options.pages = true,
            "--pending" => options.pending = value().parse().unwrap(),
            "--postgres" => options.postgres = true,
            // What cargo adds.
            "--bench" => {}
            other => panic!("what is {other}?"),
        }
    }
    options
}

/// Starts of each run, and as many after kill -9.
const STARTS: usize = 5;
/// Rounds that count of each run.
const ROUNDS: usize = 3;

/// How long a service follows transactions before that is measured, and how long it is then.
const SETTLING: Duration = Duration::from_secs(240);
const FOLLOWED: Duration = Duration::from_secs(180);

/// Before a kill: redb has written down then which pages are free.
const REST: Duration = Duration::from_millis(200);

/// What was found of one service, in each run.
#[derive(Default)]
struct Measurements {
    start_ms: Vec<f64>,
    after_kill_ms: Vec<f64>,
    started: Vec<f64>,
    loaded: Vec<f64>,
    peak: Vec<f64>,
    calls: BTreeMap<&'static str, Vec<u64>>,
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::main]
async fn main() {
    // `cargo test --benches` and nextest ask for the list of tests: there are none.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let options = options(std::env::args());
    let server = options.postgres.then(Postgres::start);
    if options.open > 0 {
        return follow(&options, server.as_ref()).await;
    }
    if options.pages {
        return look(&options, server.as_ref()).await;
    }
    let mut services = Vec::new();
    for (requests, wallets) in [(1_000, 1_000), (options.requests, options.wallets)] {
        let started = Instant::now();
        eprintln!("a service with {requests} requests and {wallets} wallets is being made");
        let size = ServiceSize {
            requests,
            wallets,
            open: 0,
            pending: 0,
        };
        services.push(BenchService::start(size, server.as_ref()).await);
        eprintln!("  that took {} s", started.elapsed().as_secs());
    }
    if let Some(server) = &server {
        // What the server would do by itself, sooner or later, after so many rows: not while it is
        // measured.
        for service in &services {
            let database = service.database().unwrap();
            server.query(database, "VACUUM (ANALYZE)");
        }
        server.query("postgres", "CHECKPOINT");
    }
    let _held: Vec<_> = match &server {
        Some(server) => vec![PinnedFile::new(&server.data())],
        None => services
            .iter()
            .map(|service| PinnedFile::new(&service.file()))
            .collect(),
    };
    let found = measure(&mut services, &options).await;
    print(&services, &found);
}

/// What it costs to follow transactions that wait: the CPU time of the service while nobody asks it anything.
async fn follow(options: &Options, server: Option<&Postgres>) {
    let requests = options.requests;
    for open in [0, options.open] {
        eprintln!("a service with {requests} requests, {open} of them open, is being made");
        let size = ServiceSize {
            requests,
            wallets: options.wallets,
            open,
            pending: 0,
        };
        let mut service = BenchService::start(size, server).await;
        let _held = server.is_none().then(|| PinnedFile::new(&service.file()));
        service.launch().await;
        // Pauses between questions have reached their most after that.
        tokio::time::sleep(SETTLING).await;
        let before = service.cpu_s();
        tokio::time::sleep(FOLLOWED).await;
        let share = (service.cpu_s() - before) / FOLLOWED.as_secs_f64();
        let memory = service.memory().0;
        println!(
            "{open} transactions followed among {requests} requests: {:.2} % of a core, {memory:.0} MiB",
            share * 100.0
        );
        service.stop();
    }
}

/// What pages of the console take in a large store.
async fn look(options: &Options, server: Option<&Postgres>) {
    let size = ServiceSize {
        requests: options.requests,
        wallets: options.wallets,
        open: 0,
        pending: options.pending,
    };
    eprintln!(
        "a service with {} requests, and {} that wait for people, is being made",
        size.requests, size.pending
    );
    let mut service = BenchService::start(size, server).await;
    let _held = server.is_none().then(|| PinnedFile::new(&service.file()));
    service.launch().await;
    pages::measure(&mut service, size).await;
    service.stop();
}

async fn measure(services: &mut [BenchService], options: &Options) -> Vec<Measurements> {
    let mut found: Vec<Measurements> = services.iter().map(|_| Measurements::default()).collect();
    // Both stores are read once before anything counts.
    for service in services.iter_mut() {
        service.launch().await;
        service.stop();
    }
    // Where a process happens to lie in memory is worth some percent: many processes.
    for run in 0..options.runs {
        let turns: Vec<usize> = (0..services.len())
            .map(|turn| (run + turn) % services.len())
            .collect();
        for start in 1..=STARTS {
            for &which in &turns {
                let (service, found) = (&mut services[which], &mut found[which]);
                found.start_ms.push(service.launch().await);
                if start < STARTS {
                    service.stop();
                } else {
                    found.started.push(service.memory().0);
                }
            }
        }
        for round in 0..=ROUNDS {
            // The first round fills caches.
            let count = round > 0;
            for kind in KINDS {
                for &which in &turns {
                    services[which].ask_at_rate(kind, count).await;
                }
            }
        }
        for &which in &turns {
            let (service, found) = (&mut services[which], &mut found[which]);
            let (loaded, peak) = service.memory();
            found.loaded.push(loaded);
            found.peak.push(peak);
        }
        for _ in 0..STARTS {
            for &which in &turns {
                let (service, found) = (&mut services[which], &mut found[which]);
                // What a start after less of a rest may take: docs/decisions/0026.
                tokio::time::sleep(REST).await;
                service.kill();
                found.after_kill_ms.push(service.launch().await);
            }
        }
        for service in services.iter_mut() {
            service.stop();
        }
        eprintln!("  run {} of {}", run + 1, options.runs);
    }
    for (service, found) in services.iter_mut().zip(&mut found) {
        found.calls = std::mem::take(&mut service.calls);
    }
    found
}

fn print(services: &[BenchService], found: &[Measurements]) {
    println!("\n{:<44}{:>12}{:>12}{:>10}", "", "small", "large", "ratio");
    let line = |name: &str, unit: &str, value: &dyn Fn(usize) -> f64| {
        let (small, large) = (value(0), value(1));
        let (name, ratio) = (format!("{name}, {unit}"), large / small);
        println!("{name:<44}{small:>12.2}{large:>12.2}{ratio:>10.2}");
    };
    line("requests", "number", &|service| {
        services[service].requests as f64
    });
    line("wallets", "number", &|service| {
        services[service].wallets as f64
    });
    let size = |service: usize| {
        fs::metadata(services[service].file()).map_or(f64::NAN, |it| it.len() as f64)
    };
    line("file of redb", "MB", &|service| size(service) / 1e6);
    line("start", "ms", &|service| median(&found[service].start_ms));
    line("start after kill -9", "ms", &|service| {
        median(&found[service].after_kill_ms)
    });
    line("memory, started", "MiB", &|service| {
        median(&found[service].started)
    });
    line("memory, after the load", "MiB", &|service| {
        median(&found[service].loaded)
    });
    line("memory, at most", "MiB", &|service| {
        found[service].peak.iter().copied().fold(0.0, f64::max)
    });
    for name in found[0].calls.keys() {
        for (label, share) in [("p50", 0.5), ("p99", 0.99)] {
            line(&format!("{name}, {label}"), "ms", &|service| {
                let mut calls = found[service].calls[name].clone();
                calls.sort_unstable();
                let place = (calls.len() - 1) as f64 * share;
                calls[place.round() as usize] as f64 / 1e6
            });
        }
    }
}
