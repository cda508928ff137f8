//! Signatures per second and latency of `rawMessage` on both curves: through the HTTP API with
//! `serve`, three `signer` processes and a real Redis, beside what the cryptography alone gives, and beside
//! the limit (`limit.rs`: signers over Redis without HTTP and store), in the same run on the same machine.
//!
//! `cargo bench --bench signing`. COVAULT_BENCH_SECONDS sets how long each line measures. `-- limit` measures the limit
//! alone, of 2-of-3, 3-of-5 and 5-of-9; `-- postgres` Ed25519 with PostgreSQL beside redb.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::duplicate_mod,
    dead_code,
    unused_imports,
    missing_docs,
    reason = "a benchmark reads the clock, prints, and stops at the first surprise"
)]

#[path = "../shared/http.rs"]
mod http;
#[path = "../../tests/it/support/mod.rs"]
mod support;
#[path = "../shared/usage.rs"]
mod usage;

mod alone;
mod limit;

use std::time::{Duration, Instant};

use covault_core::signature::Curve;
use http::{Connection, RATES, Target};
use limit::Limit;
use serde_json::{Value, json};
use support::{TestCluster, base64, postgres::Postgres, store_table};

/// What one line of the table is made of.
pub struct Measured {
    latencies: Vec<Duration>,
    elapsed: Duration,
    /// CPU seconds of all that signs; 0 where they are not counted.
    cpu_s: f64,
}

impl Measured {
    fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64()
    }

    fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let index = (sorted.len() * percent / 100).min(sorted.len() - 1);
        sorted[index].as_secs_f64() * 1e3
    }
}

fn seconds() -> Duration {
    let text = std::env::var("COVAULT_BENCH_SECONDS").unwrap_or_else(|_| "10".to_owned());
    Duration::from_secs(text.parse().expect("COVAULT_BENCH_SECONDS is a number"))
}

/// Creates a request and waits until it is signed.
async fn sign(connection: &mut Connection, body: &Value) {
    let uuid = connection.create(body).await.expect("accepted");
    assert!(connection.signed(&uuid).await);
}

/// Creates and executes requests, `in_flight` at a time.
async fn through_http(cluster: &TestCluster, body: &Value, in_flight: usize) -> Measured {
    // A load generator that takes little of the CPU time that is measured.
    let target = Target {
        address: cluster.api.base.replace("http://", ""),
        token: cluster.api.token.clone(),
    };
    // One signature first: child keys and caches are warm for every line alike.
    sign(&mut Connection::new(&target), body).await;
    let pids = cluster.signers.iter().map(support::Process::pid);
    let pids = pids.chain([cluster.serve.pid(), cluster.redis.pid()]);
    let pids: Vec<_> = pids.collect();
    let cpu = || pids.iter().map(|pid| usage::cpu_s(*pid)).sum::<f64>();
    let before = cpu();
    let started = Instant::now();
    let until = started + seconds();
    let workers = (0..in_flight).map(|_| {
        let (mut connection, body) = (Connection::new(&target), body.clone());
        tokio::spawn(async move {
            let mut latencies = Vec::new();
            while Instant::now() < until {
                let begun = Instant::now();
                sign(&mut connection, &body).await;
                latencies.push(begun.elapsed());
            }
            latencies
        })
    });
    let latencies = futures::future::join_all(workers.collect::<Vec<_>>()).await;
    let elapsed = started.elapsed();
    Measured {
        latencies: latencies.into_iter().flat_map(Result::unwrap).collect(),
        elapsed,
        cpu_s: cpu() - before,
    }
}

fn line(what: &str, measured: &Measured) {
    let cpu = match measured.cpu_s {
        0.0 => String::new(),
        cpu_s => format!(
            "{:>7.2} ms of CPU each",
            cpu_s * 1e3 / measured.latencies.len() as f64
        ),
    };
    println!(
        "{what:<44} {:>8.1}/s  p50 {:>7.2} ms  p99 {:>7.2} ms {cpu}",
        measured.rate(),
        measured.percentile(50),
        measured.percentile(99),
    );
}

/// How the service compares with the limit.
fn ratios(of: &Measured, limit: &Measured) {
    let cpu = |measured: &Measured| measured.cpu_s / measured.latencies.len() as f64;
    println!(
        "{:<44} rate {:.2}, CPU of the limit {:.2}, p50 {:.2} times, p99 over own p50 {:.1}",
        "    beside the limit:",
        of.rate() / limit.rate(),
        cpu(limit) / cpu(of),
        of.percentile(50) / limit.percentile(50),
        of.percentile(99) / of.percentile(50),
    );
}

/// The limit of other thresholds.
async fn limits() {
    for (threshold, nodes) in [(2, 3), (3, 5), (5, 9)] {
        let limit = Limit::start(threshold, nodes).await;
        for curve in Curve::ALL {
            let root = limit.key(curve).await;
            for in_flight in [1, 32] {
                let measured = limit.run_for(&root, in_flight, seconds()).await;
                let name = curve.name();
                line(
                    &format!("{name} {threshold}-of-{nodes}: the limit, {in_flight} in flight"),
                    &measured,
                );
            }
        }
    }
}

/// Three signers and an orchestrator, with this before its other settings.
async fn cluster_with(store: &str) -> TestCluster {
    let before = format!("{store}{RATES}");
    TestCluster::start_prepared(60_000, "raw_signing = true", |folder| {
        support::configure(&folder.join("serve.toml"), "serve", "", &before);
    })
    .await
}

/// Ed25519 with one store and then the other; the median of three.
async fn on_postgres() {
    let server = Postgres::start();
    let folder = tempfile::tempdir().unwrap();
    let stores = [
        String::new(),
        store_table(folder.path(), &server.database()),
    ];
    let mut rates = Vec::new();
    for (store, name) in stores.iter().zip(["redb", "PostgreSQL"]) {
        let cluster = cluster_with(store).await;
        let vault = cluster.create_vault("bench");
        let from = cluster.api.wallet(&vault, "NETWORK_TYPE_SOLANA").await;
        let body = json!({"rawMessage": {"from": from, "content": base64("measure me"),
            "ecdsaHashFunction": "ECDSA_HASH_FUNCTION_SHA256"}});
        let mut measured = Vec::new();
        for _ in 0..3 {
            measured.push(through_http(&cluster, &body, 128).await);
        }
        measured.sort_by(|one, other| one.rate().total_cmp(&other.rate()));
        let median = &measured[1];
        line(&format!("ed25519: {name}, 128 in flight"), median);
        rates.push(median.rate());
    }
    println!(
        "    PostgreSQL beside redb: rate {:.2}",
        rates[1] / rates[0]
    );
}

#[tokio::main]
async fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    // `cargo test --benches` and nextest ask for the list of tests: there are none.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return;
    }
    if arguments.iter().any(|argument| argument == "limit") {
        return limits().await;
    }
    if arguments.iter().any(|argument| argument == "postgres") {
        return on_postgres().await;
    }
    let limit = Limit::start(2, 3).await;
    let cluster = cluster_with("").await;
    let vault = cluster.create_vault("bench");
    println!("2-of-3, rawMessage");
    for curve in Curve::ALL {
        let network = match curve {
            Curve::Secp256k1 => "NETWORK_TYPE_EVM",
            Curve::Ed25519 => "NETWORK_TYPE_SOLANA",
        };
        let from = cluster.api.wallet(&vault, network).await;
        let body = json!({"rawMessage": {"from": from, "content": base64("measure me"),
            "ecdsaHashFunction": "ECDSA_HASH_FUNCTION_SHA256"}});
        let name = curve.name();
        for threads in [1, 2] {
            let alone = alone::run_for(curve, threads, seconds());
            line(
                &format!("{name}: the cryptography alone, {threads} threads"),
                &alone,
            );
        }
        let root = limit.key(curve).await;
        // In flight, and of the limit that it is compared with.
        let lines: &[(usize, usize)] = match curve {
            Curve::Secp256k1 => &[(1, 1), (32, 32)],
            Curve::Ed25519 => &[(1, 1), (32, 32), (128, 64)],
        };
        for (in_flight, of_limit) in lines {
            let most = limit.run_for(&root, *of_limit, seconds()).await;
            line(&format!("{name}: the limit, {of_limit} in flight"), &most);
            let measured = through_http(&cluster, &body, *in_flight).await;
            line(
                &format!("{name}: HTTP and Redis, {in_flight} in flight"),
                &measured,
            );
            ratios(&measured, &most);
        }
    }
}
