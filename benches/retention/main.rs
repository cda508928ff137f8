//! What keeping everything for ever costs: a service with 1,000 finished requests and 1,000 wallets,
//! beside one with 1,000,000 and 100,000. Each has a `serve`, three `signer` processes, a Redis and a
//! chain of its own; they are asked over HTTP in turns, so that whatever else the machine does meets
//! both, at a fixed rate of up to 250 calls per second.
//!
//! `just bench-retention`, about 10 minutes. Options: `--requests N` and `--wallets N` of the large
//! one, `--runs N`, `--postgres` instead of redb. The stores are where temporary files are (TMPDIR),
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

mod copies;
mod held;
mod side;
#[path = "../../tests/it/support/mod.rs"]
mod support;

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use held::Held;
use side::{KINDS, Side};
use support::postgres::Postgres;

struct Options {
    requests: u64,
    wallets: u64,
    runs: usize,
    postgres: bool,
}

fn options(arguments: impl Iterator<Item = String>) -> Options {
    let mut options = Options {
        requests: 1_000_000,
        wallets: 100_000,
        runs: 8,
        postgres: false,
    };
    let mut arguments = arguments.skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().expect("an option without a value");
        match argument.as_str() {
            "--requests" => options.requests = value().parse().unwrap(),
            "--wallets" => options.wallets = value().parse().unwrap(),
            "--runs" => options.runs = value().parse().unwrap(),
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

/// Before a kill: redb has written down then which pages are free.
const REST: Duration = Duration::from_millis(200);

/// What was found of one service, in each run.
#[derive(Default)]
struct Found {
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
    let mut sides = Vec::new();
    for (requests, wallets) in [(1_000, 1_000), (options.requests, options.wallets)] {
        let started = Instant::now();
        eprintln!("a service with {requests} requests and {wallets} wallets is being made");
        sides.push(Side::start(requests, wallets, server.as_ref()).await);
        eprintln!("  that took {} s", started.elapsed().as_secs());
    }
    if let Some(server) = &server {
        // What the server would do by itself, sooner or later, after so many rows: not while it is
        // measured.
        for side in &sides {
            let database = side.database().unwrap();
            server.query(database, "VACUUM (ANALYZE)");
        }
        server.query("postgres", "CHECKPOINT");
    }
    let _held: Vec<_> = match &server {
        Some(server) => vec![Held::new(&server.data())],
        None => sides.iter().map(|side| Held::new(&side.file())).collect(),
    };
    let found = measure(&mut sides, &options).await;
    print(&sides, &found);
}

async fn measure(sides: &mut [Side], options: &Options) -> Vec<Found> {
    let mut found: Vec<Found> = sides.iter().map(|_| Found::default()).collect();
    // Both stores are read once before anything counts.
    for side in sides.iter_mut() {
        side.launch().await;
        side.stop();
    }
    // Where a process happens to lie in memory is worth some percent: many processes.
    for run in 0..options.runs {
        let turns: Vec<usize> = (0..sides.len())
            .map(|turn| (run + turn) % sides.len())
            .collect();
        for start in 1..=STARTS {
            for &which in &turns {
                let (side, found) = (&mut sides[which], &mut found[which]);
                found.start_ms.push(side.launch().await);
                if start < STARTS {
                    side.stop();
                } else {
                    found.started.push(side.memory().0);
                }
            }
        }
        for round in 0..=ROUNDS {
            // The first round fills caches.
            let count = round > 0;
            for kind in KINDS {
                for &which in &turns {
                    sides[which].ask_at_rate(kind, count).await;
                }
            }
        }
        for &which in &turns {
            let (side, found) = (&mut sides[which], &mut found[which]);
            let (loaded, peak) = side.memory();
            found.loaded.push(loaded);
            found.peak.push(peak);
        }
        for _ in 0..STARTS {
            for &which in &turns {
                let (side, found) = (&mut sides[which], &mut found[which]);
                // What a start after less of a rest may take: docs/decisions/0026.
                tokio::time::sleep(REST).await;
                side.kill();
                found.after_kill_ms.push(side.launch().await);
            }
        }
        for side in sides.iter_mut() {
            side.stop();
        }
        eprintln!("  run {} of {}", run + 1, options.runs);
    }
    for (side, found) in sides.iter_mut().zip(&mut found) {
        found.calls = std::mem::take(&mut side.calls);
    }
    found
}

fn print(sides: &[Side], found: &[Found]) {
    println!("\n{:<44}{:>12}{:>12}{:>10}", "", "small", "large", "ratio");
    let line = |name: &str, unit: &str, value: &dyn Fn(usize) -> f64| {
        let (small, large) = (value(0), value(1));
        let (name, ratio) = (format!("{name}, {unit}"), large / small);
        println!("{name:<44}{small:>12.2}{large:>12.2}{ratio:>10.2}");
    };
    line("requests", "number", &|side| sides[side].requests as f64);
    line("wallets", "number", &|side| sides[side].wallets as f64);
    let size =
        |side: usize| fs::metadata(sides[side].file()).map_or(f64::NAN, |it| it.len() as f64);
    line("file of redb", "MB", &|side| size(side) / 1e6);
    line("start", "ms", &|side| median(&found[side].start_ms));
    line("start after kill -9", "ms", &|side| {
        median(&found[side].after_kill_ms)
    });
    line("memory, started", "MiB", &|side| {
        median(&found[side].started)
    });
    line("memory, after the load", "MiB", &|side| {
        median(&found[side].loaded)
    });
    line("memory, at most", "MiB", &|side| {
        found[side].peak.iter().copied().fold(0.0, f64::max)
    });
    for name in found[0].calls.keys() {
        for (label, share) in [("p50", 0.5), ("p99", 0.99)] {
            line(&format!("{name}, {label}"), "ms", &|side| {
                let mut calls = found[side].calls[name].clone();
                calls.sort_unstable();
                let place = (calls.len() - 1) as f64 * share;
                calls[place.round() as usize] as f64 / 1e6
            });
        }
    }
}
