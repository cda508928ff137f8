//! What keeping everything for ever costs: a service with 1,000 finished requests and 1,000 wallets,
//! beside one with 1,000,000 and 100,000. Each has a `serve`, three `signer` processes, a Redis and a
//! chain of its own; they are asked over HTTP in turns, so that whatever else the machine does meets
//! both, at a fixed rate of up to 250 calls per second.
//!
//! `just bench-retention`. Options: `--requests N` and `--wallets N` of the large one, `--rounds N`,
//! `--postgres` instead of redb. The stores are where temporary files are (TMPDIR), and take about
//! 10 GB.
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
mod side;
#[path = "../../tests/it/support/mod.rs"]
mod support;

use std::{collections::BTreeMap, fs, time::Instant};

use side::{KINDS, Side};
use support::postgres::Postgres;

struct Options {
    requests: u64,
    wallets: u64,
    rounds: usize,
    postgres: bool,
}

fn options(arguments: impl Iterator<Item = String>) -> Options {
    let mut options = Options {
        requests: 1_000_000,
        wallets: 100_000,
        rounds: 12,
        postgres: false,
    };
    let mut arguments = arguments.skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().expect("an option without a value");
        match argument.as_str() {
            "--requests" => options.requests = value().parse().unwrap(),
            "--wallets" => options.wallets = value().parse().unwrap(),
            "--rounds" => options.rounds = value().parse().unwrap(),
            "--postgres" => options.postgres = true,
            // What cargo adds.
            "--bench" => {}
            other => panic!("what is {other}?"),
        }
    }
    options
}

/// What was found of one service.
#[derive(Default)]
struct Found {
    start_ms: f64,
    after_kill_ms: f64,
    started: f64,
    loaded: f64,
    peak: f64,
    calls: BTreeMap<&'static str, Vec<u64>>,
}

fn median(mut values: Vec<f64>) -> f64 {
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
    let found = measure(&mut sides, options.rounds).await;
    print(&sides, &found);
}

async fn measure(sides: &mut [Side], rounds: usize) -> Vec<Found> {
    let mut found: Vec<Found> = sides.iter().map(|_| Found::default()).collect();
    // Both stores are read once before anything counts.
    let mut starts = vec![Vec::new(); sides.len()];
    for _ in 0..6 {
        for (side, starts) in sides.iter_mut().zip(&mut starts) {
            starts.push(side.launch().await);
            side.stop();
        }
    }
    for (found, starts) in found.iter_mut().zip(starts) {
        found.start_ms = median(starts[1..].to_vec());
    }
    for (side, found) in sides.iter_mut().zip(&mut found) {
        side.launch().await;
        found.started = side.memory().0;
    }
    for round in 0..=rounds {
        // The first round fills caches.
        if round == 1 {
            sides.iter_mut().for_each(|side| side.calls.clear());
        }
        for kind in KINDS {
            for which in 0..sides.len() {
                sides[(round + which) % 2].ask_at_rate(kind).await;
            }
        }
        eprintln!("  round {round} of {rounds}");
    }
    for (side, found) in sides.iter_mut().zip(&mut found) {
        (found.loaded, found.peak) = side.memory();
        found.calls = std::mem::take(&mut side.calls);
        side.kill();
        found.after_kill_ms = side.launch().await;
        side.stop();
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
    line("start", "ms", &|side| found[side].start_ms);
    line("start after kill -9", "ms", &|side| {
        found[side].after_kill_ms
    });
    line("memory, started", "MiB", &|side| found[side].started);
    line("memory, after the load", "MiB", &|side| found[side].loaded);
    line("memory, at most", "MiB", &|side| found[side].peak);
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
