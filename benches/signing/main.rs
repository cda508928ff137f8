//! Signatures per second and latency of `rawMessage` on both curves: through the HTTP API with
//! `serve`, three `signer` processes and a real Redis, beside what the cryptography alone gives
//! in the same run on the same machine.
//!
//! `cargo bench --bench signing`. COVAULT_BENCH_SECONDS sets how long each line measures.
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
    reason = "a benchmark reads the clock, prints, and stops at the first surprise"
)]

#[path = "../../tests/it/support/mod.rs"]
mod support;

mod alone;

use std::time::{Duration, Instant};

use covault_core::signature::Curve;
use serde_json::{Value, json};
use support::{ApiClient, TestCluster, base64};

/// What one line of the table is made of.
pub struct Measured {
    latencies: Vec<Duration>,
    elapsed: Duration,
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

/// Creates and executes requests, `in_flight` at a time.
async fn through_http(api: &ApiClient, body: &Value, in_flight: usize) -> Measured {
    // One signature first: connections, child keys and caches are warm for every line alike.
    api.sign(body.clone()).await;
    let started = Instant::now();
    let until = started + seconds();
    let workers = (0..in_flight).map(|_| {
        let (api, body) = (api.clone(), body.clone());
        tokio::spawn(async move {
            let mut latencies = Vec::new();
            while Instant::now() < until {
                let begun = Instant::now();
                api.sign(body.clone()).await;
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
    }
}

fn line(what: &str, measured: &Measured, alone: Option<&Measured>) {
    let ratio = alone.map_or(String::new(), |alone| {
        format!("{:>6.0} %", 100.0 * measured.rate() / alone.rate())
    });
    println!(
        "{what:<44} {:>8.1}/s  p50 {:>7.2} ms  p99 {:>7.2} ms {ratio}",
        measured.rate(),
        measured.percentile(50),
        measured.percentile(99),
    );
}

#[tokio::main]
async fn main() {
    // `cargo test --benches` and nextest ask for the list of tests: there are none.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let cluster = TestCluster::start(60_000).await;
    let vault = cluster.create_vault("bench");
    println!(
        "2-of-3, rawMessage; the last column is the share of the cryptography alone on 2 threads"
    );
    for curve in Curve::ALL {
        let network = match curve {
            Curve::Secp256k1 => "NETWORK_TYPE_EVM",
            Curve::Ed25519 => "NETWORK_TYPE_SOLANA",
        };
        let from = cluster.api.wallet(&vault, network).await;
        let body = json!({"rawMessage": {"from": from, "content": base64("measure me"),
            "ecdsaHashFunction": "ECDSA_HASH_FUNCTION_SHA256"}});
        let single = alone::run_for(curve, 1, seconds());
        let double = alone::run_for(curve, 2, seconds());
        let name = curve.name();
        line(
            &format!("{name}: the cryptography alone, 1 thread"),
            &single,
            None,
        );
        line(
            &format!("{name}: the cryptography alone, 2 threads"),
            &double,
            None,
        );
        for in_flight in [1, 32] {
            let measured = through_http(&cluster.api, &body, in_flight).await;
            line(
                &format!("{name}: HTTP and Redis, {in_flight} in flight"),
                &measured,
                Some(&double),
            );
        }
    }
}
