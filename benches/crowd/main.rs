//! More requests than signers can do, and signers that are slow or gone: `serve`, three `signer`
//! processes, a real Redis and the clients, all on this machine. Each line stands beside what the same
//! cluster does undisturbed in the same run.
//!
//! `just bench-crowd`, about 25 minutes. Arguments choose what is measured: `flood` (five times what they
//! can do, for COVAULT_BENCH_SECONDS), `both` (the same with both curves at once, in the end), `clients` (2,000 in a
//! closed loop), `slow` (one signer 200 ms late), `stopped` (one signer killed, and one frozen); `secp256k1` or `ed25519` chooses
//! one curve. COVAULT_BENCH_DEADLINE_MS is how long a request may take.
//! Needs 5,000 open files (`ulimit -n`).
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

#[path = "../../tests/support/delayed_port.rs"]
mod delayed_port;
#[path = "../shared/http.rs"]
mod http;
#[path = "../../tests/it/support/mod.rs"]
mod support;
#[path = "../shared/usage.rs"]
mod usage;

use std::{
    fs,
    time::{Duration, Instant},
};

use covault_core::signature::Curve;
use delayed_port::DelayedPort;
use futures::future::join_all;
use http::{Connection, RATES, Target};
use serde_json::{Value, json};
use support::{Process, TestCluster, base64, free_port};

/// Clients that together keep the signers busy.
const BUSY: usize = 64;
const MANY: usize = 2_000;
/// How often more than they can do.
const TIMES: f64 = 5.0;
/// Connections that offer them.
const OFFERING: usize = 128;
/// Accepted requests per second whose end is waited for as a client would.
const WATCHED: f64 = 20.0;
const LATE_MS: u64 = 200;

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
        Err(_) => default,
    }
}

#[derive(Default)]
struct Measured {
    latencies: Vec<f64>,
    seconds: f64,
    refused: usize,
}

impl Measured {
    fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.seconds
    }

    /// In milliseconds.
    fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.latencies.clone();
        sorted.sort_by(f64::total_cmp);
        let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
        sorted.get(index).copied().unwrap_or(f64::NAN)
    }
}

fn line(what: &str, measured: &Measured, undisturbed: Option<&Measured>) {
    let beside = undisturbed.map_or(String::new(), |other| {
        format!(
            "  rate {:.2}, p50 {:.2}",
            measured.rate() / other.rate(),
            measured.percentile(50) / other.percentile(50)
        )
    });
    println!(
        "{what:<40} {:>7.1}/s  p50 {:>7.1}  p99 {:>8.1}  longest {:>8.1} ms  {} refused{beside}",
        measured.rate(),
        measured.percentile(50),
        measured.percentile(99),
        measured.percentile(100),
        measured.refused,
    );
}

struct Bench {
    cluster: TestCluster,
    target: Target,
    late: DelayedPort,
    metrics: u16,
}

impl Bench {
    async fn start() -> Self {
        let deadline_ms = number("COVAULT_BENCH_DEADLINE_MS", 60_000);
        let metrics = free_port();
        // The way of the third signer to Redis, whose port is known only when it is there.
        let (way, ways) = std::sync::mpsc::channel();
        let runtime = tokio::runtime::Handle::current();
        let cluster = TestCluster::start_prepared(deadline_ms, "raw_signing = true", |folder| {
            support::configure(
                &folder.join("serve.toml"),
                "serve",
                &format!("metrics_listen = \"127.0.0.1:{metrics}\""),
                RATES,
            );
            let file = folder.join("signer-3.toml");
            let text = fs::read_to_string(&file).unwrap();
            let url = text.split('"').find(|word| word.starts_with("redis://"));
            let port = url.unwrap().rsplit(':').next().unwrap();
            let late = tokio::task::block_in_place(|| {
                runtime.block_on(DelayedPort::to(port.parse().unwrap()))
            });
            fs::write(&file, text.replace(port, &late.port.to_string())).unwrap();
            way.send(late).unwrap();
        })
        .await;
        let target = Target {
            address: cluster.api.base.replace("http://", ""),
            token: cluster.api.token.clone(),
        };
        Self {
            cluster,
            target,
            late: ways.recv().unwrap(),
            metrics,
        }
    }

    /// Attempts that ended in a signature so far.
    async fn signed(&self) -> u64 {
        let url = format!("http://127.0.0.1:{}/metrics", self.metrics);
        let text = reqwest::get(url).await.unwrap().text().await.unwrap();
        let mut lines = text.lines();
        let value = lines
            .find_map(|line| {
                line.strip_prefix("covault_signing_attempts_total{outcome=\"signed\"} ")
            })
            .unwrap_or("0");
        value.parse::<f64>().unwrap() as u64
    }

    /// Clients that ask again as soon as they are answered, for so long.
    async fn closed_loop(&self, body: &Value, clients: usize, time: Duration) -> Measured {
        let started = Instant::now();
        let until = started + time;
        let clients = (0..clients).map(|_| {
            let (mut connection, body) = (Connection::new(&self.target), body.clone());
            tokio::spawn(async move {
                let (mut latencies, mut refused) = (Vec::new(), 0);
                let mut begun = Instant::now();
                while Instant::now() < until {
                    match connection.create(&body).await {
                        Ok(uuid) => {
                            assert!(connection.signed(&uuid).await);
                            // What ends later is not of this time.
                            if Instant::now() < until {
                                latencies.push(begun.elapsed().as_secs_f64() * 1e3);
                            }
                            begun = Instant::now();
                        }
                        Err(seconds) => {
                            refused += 1;
                            tokio::time::sleep(Duration::from_secs(seconds)).await;
                        }
                    }
                }
                (latencies, refused)
            })
        });
        let ended = join_all(clients.collect::<Vec<_>>()).await;
        let mut measured = Measured {
            seconds: time.as_secs_f64(),
            ..Measured::default()
        };
        for client in ended {
            let (latencies, refused) = client.unwrap();
            measured.latencies.extend(latencies);
            measured.refused += refused;
        }
        measured
    }

    /// Requests that begin at a fixed rate whether earlier ones have ended or not.
    async fn flood(&self, body: &Value, rate: f64, time: Duration) -> (Vec<String>, Measured) {
        let started = Instant::now();
        let signed = self.signed().await;
        let count = (rate * time.as_secs_f64()) as usize;
        let offering = (0..OFFERING).map(|place| {
            let (target, body) = (self.target.clone(), body.clone());
            tokio::spawn(async move {
                let mut connection = Connection::new(&target);
                let (mut accepted, mut refused, mut watched) = (Vec::new(), 0, Vec::new());
                let mut next_watch = Instant::now();
                for index in (place..count).step_by(OFFERING) {
                    let due = started + Duration::from_secs_f64(index as f64 / rate);
                    tokio::time::sleep_until(due.into()).await;
                    // Who could not keep up does not offer it later.
                    if started.elapsed() > time {
                        break;
                    }
                    let begun = Instant::now();
                    let Ok(uuid) = connection.create(&body).await else {
                        refused += 1;
                        continue;
                    };
                    if Instant::now() >= next_watch {
                        next_watch =
                            Instant::now() + Duration::from_secs_f64(OFFERING as f64 / WATCHED);
                        let (mut connection, uuid) = (Connection::new(&target), uuid.clone());
                        watched.push(tokio::spawn(async move {
                            connection.signed(&uuid).await;
                            begun.elapsed().as_secs_f64() * 1e3
                        }));
                    }
                    accepted.push(uuid);
                }
                (accepted, refused, watched)
            })
        });
        let offering: Vec<_> = offering.collect();
        tokio::time::sleep_until((started + time).into()).await;
        let signed = self.signed().await - signed;
        let seconds = started.elapsed().as_secs_f64();
        let (mut accepted, mut refused, mut latencies) = (Vec::new(), 0, Vec::new());
        for client in offering {
            let (some, more, watched) = client.await.unwrap();
            accepted.extend(some);
            refused += more;
            for latency in watched {
                latencies.push(latency.await.unwrap());
            }
        }
        println!(
            "    offered {:.0}/s, signed {:.1}/s meanwhile",
            (accepted.len() + refused) as f64 / seconds,
            signed as f64 / seconds
        );
        let measured = Measured {
            latencies,
            seconds,
            refused,
        };
        (accepted, measured)
    }

    /// How many of these failed.
    async fn failures(&self, accepted: Vec<String>) -> usize {
        let shares: Vec<Vec<String>> = accepted
            .chunks(accepted.len().div_ceil(16).max(1))
            .map(<[String]>::to_vec)
            .collect();
        let checks = shares.into_iter().map(|share| {
            let mut connection = Connection::new(&self.target);
            tokio::spawn(async move {
                let mut failures = 0;
                for uuid in share {
                    failures += usize::from(!connection.signed(&uuid).await);
                }
                failures
            })
        });
        let checked = join_all(checks.collect::<Vec<_>>()).await;
        checked.into_iter().map(Result::unwrap).sum()
    }
}

/// How long a signer that was late or away may be asked after others.
const SUSPICION: Duration = Duration::from_secs(35);

impl Bench {
    /// Lets the cluster forget what was done to it, and shows that all three signers sign again.
    async fn rest(&self, body: &Value, in_flight: usize) {
        for _ in 0..5 {
            tokio::time::sleep(SUSPICION).await;
            let signers = || {
                self.cluster
                    .signers
                    .iter()
                    .map(|signer| usage::cpu_s(signer.pid()))
            };
            let before: Vec<f64> = signers().collect();
            self.closed_loop(body, in_flight, Duration::from_secs(20))
                .await;
            let used: Vec<f64> = signers()
                .zip(before)
                .map(|(now, then)| now - then)
                .collect();
            let most = used.iter().copied().fold(0.0, f64::max);
            if used.iter().all(|used| *used > most / 3.0) {
                return;
            }
        }
        panic!("a signer is still avoided");
    }
}

#[tokio::main]
async fn main() {
    // `cargo test --benches` and nextest ask for the list of tests: there are none.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let chosen: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let is_curve = |word: &String| Curve::ALL.iter().any(|curve| curve.name() == word);
    let (curves, rows): (Vec<String>, Vec<String>) = chosen.into_iter().partition(is_curve);
    let measures = |what: &str| rows.is_empty() || rows.iter().any(|it| it == what);
    let time = Duration::from_secs(number("COVAULT_BENCH_SECONDS", 60));
    let short = time.min(Duration::from_secs(20));
    let mut bench = Bench::start().await;
    let vault = bench.cluster.create_vault("bench");
    let mut peaks = Vec::new();
    println!("2-of-3, rawMessage; the last columns: beside the same cluster undisturbed");
    let wanted = |curve: &Curve| curves.is_empty() || curves.iter().any(|it| it == curve.name());
    for curve in Curve::ALL.into_iter().filter(wanted) {
        let network = match curve {
            Curve::Secp256k1 => "NETWORK_TYPE_EVM",
            Curve::Ed25519 => "NETWORK_TYPE_SOLANA",
        };
        let from = bench.cluster.api.wallet(&vault, network).await;
        let body = json!({"rawMessage": {"from": from, "content": base64("measure me"),
            "ecdsaHashFunction": "ECDSA_HASH_FUNCTION_SHA256"}});
        let name = curve.name();
        // Whatever grows with the first load has grown, and signers that the curve before stopped sign again.
        bench.closed_loop(&body, BUSY, short).await;
        if curve == Curve::Ed25519 && measures("stopped") {
            bench.rest(&body, BUSY).await;
        }
        let peak = bench.closed_loop(&body, BUSY, short).await;
        line(&format!("{name}: {BUSY} clients"), &peak, None);
        peaks.push((body.clone(), peak.rate()));
        if measures("clients") {
            let many = bench.closed_loop(&body, MANY, time).await;
            line(&format!("{name}: {MANY} clients"), &many, Some(&peak));
        }
        if measures("flood") {
            let before = usage::memory_mib(bench.cluster.serve.pid(), "VmRSS");
            let (accepted, measured) = bench.flood(&body, peak.rate() * TIMES, time).await;
            line(&format!("{name}: accepted, watched"), &measured, None);
            let most = usage::memory_mib(bench.cluster.serve.pid(), "VmRSS");
            let count = accepted.len();
            let failures = bench.failures(accepted).await;
            // A machine that others share may have become slower meanwhile.
            let again = bench.closed_loop(&body, BUSY, short).await;
            line(
                &format!("{name}: {BUSY} clients again"),
                &again,
                Some(&peak),
            );
            tokio::time::sleep(Duration::from_secs(60)).await;
            let after = usage::memory_mib(bench.cluster.serve.pid(), "VmRSS");
            println!(
                "    {count} accepted, {failures} of them failed; memory {before:.0}, at the end {most:.0}, \
                 a minute later {after:.0} MiB ({:.2})",
                after / before
            );
        }
        let disturbs = measures("slow") || measures("stopped");
        for in_flight in [1, 32].into_iter().filter(|_| disturbs) {
            bench.rest(&body, in_flight).await;
            let undisturbed = bench.closed_loop(&body, in_flight, short).await;
            let what = format!("{name}: {in_flight} in flight");
            line(&what, &undisturbed, None);
            if measures("slow") {
                bench.late.delay_by(LATE_MS);
                let slow = bench.closed_loop(&body, in_flight, short).await;
                line(
                    &format!("{what}, a signer {LATE_MS} ms late"),
                    &slow,
                    Some(&undisturbed),
                );
                bench.late.delay_by(0);
            }
            if measures("stopped") {
                for frozen in [false, true] {
                    bench.rest(&body, in_flight).await;
                    let signer = &mut bench.cluster.signers[2];
                    if frozen {
                        signer.freeze();
                    } else {
                        signer.kill();
                    }
                    let without = bench.closed_loop(&body, in_flight, short).await;
                    let how = if frozen { "frozen" } else { "killed" };
                    line(
                        &format!("{what}, a signer {how}"),
                        &without,
                        Some(&undisturbed),
                    );
                    if frozen {
                        bench.cluster.signers[2].thaw();
                    } else {
                        bench.cluster.restart_signer(2);
                    }
                    bench.cluster.until_live(&[0, 1, 2]).await;
                }
            }
        }
    }
    if measures("both") && curves.is_empty() {
        // Each offered what would be too much for the machine alone.
        let floods = peaks.iter();
        let floods = floods.map(|(body, rate)| bench.flood(body, rate * TIMES, time));
        for (curve, (accepted, measured)) in Curve::ALL.iter().zip(join_all(floods).await) {
            line(
                &format!("both at once, {}: accepted, watched", curve.name()),
                &measured,
                None,
            );
            let count = accepted.len();
            let failures = bench.failures(accepted).await;
            println!("    {count} accepted, {failures} of them failed");
        }
    }
}
