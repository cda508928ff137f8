//! What keeping everything for ever costs: an orchestrator on a store with 1,000 finished requests
//! and 1,000 wallets, beside one on a store with 1,000,000 and 100,000. Each is a process of its
//! own; they are asked in turns, so that whatever else the machine does meets both.
//!
//! `just bench-retention`. Options: `--requests N`, `--wallets N` (of the large store),
//! `--rounds N`, `--postgres` (instead of redb), `--folder PATH` (where the stores are made;
//! some gigabytes).
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

mod fill;
mod load;
#[path = "../../tests/it/one_key.rs"]
#[allow(dead_code)]
mod one_key;
#[path = "../../../tests/support/postgres.rs"]
mod server;
mod service;

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

/// What a store is filled with, and where it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The file of redb, or the URL of a database.
    pub store: String,
    /// What of it is there to be asked for.
    pub facts: PathBuf,
}

/// What a process says: once when it has started, then after each round.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// From opening the store to the first answer, in milliseconds; only of the start.
    pub start_ms: f64,
    /// Resident memory, in KiB.
    pub rss: u64,
    /// The most that was resident.
    pub peak: u64,
    /// Nanoseconds of each call, by what was asked.
    pub calls: BTreeMap<String, Vec<u64>>,
}

struct Options {
    requests: u64,
    wallets: u64,
    rounds: usize,
    postgres: bool,
    folder: Option<PathBuf>,
}

fn options() -> Options {
    let mut options = Options {
        requests: 1_000_000,
        wallets: 100_000,
        rounds: 10,
        postgres: false,
        folder: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().expect("an option without a value");
        match argument.as_str() {
            "--requests" => options.requests = value().parse().unwrap(),
            "--wallets" => options.wallets = value().parse().unwrap(),
            "--rounds" => options.rounds = value().parse().unwrap(),
            "--folder" => options.folder = Some(value().into()),
            "--postgres" => options.postgres = true,
            // What cargo adds.
            "--bench" => {}
            other => panic!("what is {other}?"),
        }
    }
    options
}

/// An orchestrator in a process of its own.
struct Service {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Service {
    fn start(place: &Place) -> (Self, Report) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env("COVAULT_RETENTION", serde_json::to_string(place).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut service = Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        };
        let report = service.report();
        (service, report)
    }

    fn report(&mut self) -> Report {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).expect("the orchestrator ended")
    }

    fn round(&mut self) -> Report {
        writeln!(self.input, "round").unwrap();
        self.report()
    }

    fn stop(mut self) {
        writeln!(self.input, "stop").unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// What was found of one store.
#[derive(Default)]
struct Found {
    start_ms: f64,
    after_kill_ms: f64,
    rss_started: u64,
    rss: u64,
    peak: u64,
    calls: BTreeMap<String, Vec<u64>>,
}

fn percentile(sorted: &[u64], share: f64) -> f64 {
    let place = (sorted.len() - 1) as f64 * share;
    sorted[place.round() as usize] as f64 / 1000.0
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    if let Ok(place) = std::env::var("COVAULT_RETENTION") {
        return load::serve(&serde_json::from_str(&place).unwrap());
    }
    let options = options();
    let temporary = tempfile::tempdir().unwrap();
    let folder = options.folder.as_deref().unwrap_or(temporary.path());
    let server = options.postgres.then(server::Postgres::start);
    let sizes = [
        (1_000, 1_000.min(options.wallets)),
        (options.requests, options.wallets),
    ];
    let mut places = Vec::new();
    for (requests, wallets) in sizes {
        let place = Place {
            store: match &server {
                Some(server) => server.database(),
                None => {
                    let name = format!("{requests}-{wallets}.redb");
                    folder.join(name).to_str().unwrap().to_owned()
                }
            },
            facts: folder.join(format!("{requests}-{wallets}.json")),
        };
        let started = Instant::now();
        if !place.facts.exists() || options.postgres {
            fill::fill(&place, requests, wallets);
        }
        let took = started.elapsed().as_secs();
        eprintln!("{requests} requests and {wallets} wallets: filled in {took} s");
        places.push(place);
    }
    let found = measure(&places, options.rounds);
    print(&sizes, &places, &found);
}

fn measure(places: &[Place], rounds: usize) -> Vec<Found> {
    let mut found: Vec<Found> = places.iter().map(|_| Found::default()).collect();
    // Both stores are read once before anything counts.
    let mut starts = vec![Vec::new(); places.len()];
    for _ in 0..5 {
        for (place, starts) in places.iter().zip(&mut starts) {
            let (service, report) = Service::start(place);
            starts.push(report.start_ms);
            service.stop();
        }
    }
    for (found, starts) in found.iter_mut().zip(starts) {
        found.start_ms = median(starts);
    }
    let mut services = Vec::new();
    for (place, found) in places.iter().zip(&mut found) {
        let (service, report) = Service::start(place);
        found.rss_started = report.rss;
        services.push(service);
    }
    for round in 0..=rounds {
        for (service, found) in services.iter_mut().zip(&mut found) {
            let report = service.round();
            // The first round fills caches.
            if round == 0 {
                continue;
            }
            for (name, calls) in report.calls {
                found.calls.entry(name).or_default().extend(calls);
            }
            (found.rss, found.peak) = (report.rss, report.peak);
        }
    }
    for service in services {
        service.kill();
    }
    for (place, found) in places.iter().zip(&mut found) {
        let (service, report) = Service::start(place);
        found.after_kill_ms = report.start_ms;
        service.stop();
    }
    found
}

fn print(sizes: &[(u64, u64)], places: &[Place], found: &[Found]) {
    let [(_, small_wallets), (requests, wallets)] = sizes else {
        panic!("two sizes")
    };
    println!("\nlarge: {requests} requests, {wallets} wallets; small: 1000 and {small_wallets}");
    for place in places {
        if let Ok(file) = fs::metadata(Path::new(&place.store)) {
            println!("{}: {} MB", place.store, file.len() >> 20);
        }
    }
    println!("{:<44}{:>12}{:>12}{:>10}", "", "small", "large", "ratio");
    let line = |name: &str, unit: &str, values: [f64; 2]| {
        let [small, large] = values;
        let ratio = large / small;
        let name = format!("{name}, {unit}");
        println!("{name:<44}{small:>12.1}{large:>12.1}{ratio:>10.2}");
    };
    let of = |value: &dyn Fn(&Found) -> f64| [value(&found[0]), value(&found[1])];
    line("start", "ms", of(&|found| found.start_ms));
    line(
        "start after kill -9",
        "ms",
        of(&|found| found.after_kill_ms),
    );
    let mib = |kib: u64| kib as f64 / 1024.0;
    line(
        "memory, started",
        "MiB",
        of(&|found| mib(found.rss_started)),
    );
    line("memory, after the load", "MiB", of(&|found| mib(found.rss)));
    line("memory, at most", "MiB", of(&|found| mib(found.peak)));
    for name in found[0].calls.keys() {
        for (label, share) in [("p50", 0.5), ("p99", 0.99)] {
            let values = of(&|found| {
                let mut calls = found.calls[name].clone();
                calls.sort_unstable();
                percentile(&calls, share)
            });
            line(&format!("{name}, {label}"), "µs", values);
        }
    }
}

/// How long the gateway may take to be there, in the fill and in a service.
pub const PATIENCE: Duration = Duration::from_secs(600);
