//! Latency of the HTTP API at a fixed rate, `serve` with three `signer` processes and a real Redis on
//! this machine: getSigningRequestDetails and createSigningRequest (whose requests are signed
//! meanwhile), beside `/livez`, which does nothing, in the same run.
//!
//! Before that how many reads clients get that ask again as soon as they are answered, beside a bare axum server in a process of
//! its own that answers with the same bytes.
//!
//! `cargo bench --bench api`. COVAULT_BENCH_SECONDS sets how long each line measures, and
//! COVAULT_BENCH_RATE how many calls begin per second, whether earlier ones have ended or not.
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
    clippy::duplicate_mod,
    reason = "a benchmark reads the clock, prints, and stops at the first surprise"
)]

#[path = "../shared/http.rs"]
mod http;
#[path = "../../tests/it/support/mod.rs"]
mod support;

use std::{
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use http::{Connection, RATES, Target};
use serde_json::{Value, json};
use support::{TestCluster, base64, eventually, free_port};

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
        Err(_) => default,
    }
}

/// Calls begin at a fixed rate; a call's latency counts from when it should have begun, so that a
/// server that stalls does not hide it (no coordinated omission).
async fn at_rate(rate: u64, call: impl Fn(usize) -> reqwest::RequestBuilder) -> Vec<f64> {
    let count = rate * number("COVAULT_BENCH_SECONDS", 20);
    let started = Instant::now() + Duration::from_millis(50);
    let mut calls = tokio::task::JoinSet::new();
    for index in 0..count {
        let due = started + Duration::from_micros(index * 1_000_000 / rate);
        tokio::time::sleep_until(due.into()).await;
        let call = call(usize::try_from(index).unwrap());
        calls.spawn(async move {
            let response = call.send().await.unwrap();
            assert_eq!(response.status().as_u16(), 200);
            response.bytes().await.unwrap();
            due.elapsed().as_secs_f64() * 1e3
        });
    }
    let mut latencies = calls.join_all().await;
    latencies.sort_by(f64::total_cmp);
    latencies
}

fn line(what: &str, latencies: &[f64], floor: Option<&[f64]>) {
    let percentile = |of: &[f64], percent: usize| of[(of.len() * percent / 100).min(of.len() - 1)];
    let (p50, p99) = (percentile(latencies, 50), percentile(latencies, 99));
    let ratio = floor.map_or(String::new(), |floor| {
        format!(
            "{:>6.1} and {:.1} times /livez",
            p50 / percentile(floor, 50),
            p99 / percentile(floor, 99)
        )
    });
    println!("{what:<52} p50 {p50:>7.2} ms  p99 {p99:>7.2} ms {ratio}");
}

/// What the echo answers, in a variable of its process, as its command line is short.
const ECHO_BODY: &str = "COVAULT_BENCH_ECHO_BODY";

/// A bare server in a process of its own, which ends with this.
struct Echo {
    process: Child,
    target: Target,
}

impl Echo {
    async fn start(body: &str) -> Self {
        let address = format!("127.0.0.1:{}", free_port());
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--bench", "echo", &address])
            .env(ECHO_BODY, body)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        eventually("the echo answers", async || {
            tokio::net::TcpStream::connect(&address).await.ok()
        })
        .await;
        let target = Target {
            address,
            token: String::new(),
        };
        Self { process, target }
    }

    /// What its process does.
    async fn run(address: &str) {
        let body = axum::body::Bytes::from(std::env::var(ECHO_BODY).unwrap());
        let answer = move |_: axum::body::Bytes| {
            let body = body.clone();
            async move { ([("content-type", "application/json")], body) }
        };
        let router = axum::Router::new().fallback(answer);
        let listener = tokio::net::TcpListener::bind(address).await.unwrap();
        axum::serve(listener, router).await.unwrap();
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Reads per second of clients that ask again as soon as they are answered.
async fn reads(target: &Target, body: &Value, clients: usize) -> f64 {
    let (started, time) = (
        Instant::now(),
        Duration::from_secs(number("COVAULT_BENCH_SECONDS", 20) / 4),
    );
    let clients = (0..clients).map(|_| {
        let (mut connection, body) = (Connection::new(target), body.clone());
        tokio::spawn(async move {
            let mut answered = 0_u32;
            while started.elapsed() < time {
                let (status, _, _) = connection.post("getSigningRequestDetails", &body).await;
                assert_eq!(status, 200);
                answered += 1;
            }
            answered
        })
    });
    let clients: Vec<_> = clients.collect();
    let answered = futures::future::join_all(clients).await;
    let answered: u32 = answered.into_iter().map(Result::unwrap).sum();
    f64::from(answered) / started.elapsed().as_secs_f64()
}

/// The service beside the echo, in turns; the median of each.
async fn beside_echo(cluster: &TestCluster, uuid: &str) {
    let body = json!({"uuid": uuid});
    let target = Target {
        address: cluster.api.base.replace("http://", ""),
        token: cluster.api.token.clone(),
    };
    let (status, _, answer) = Connection::new(&target)
        .post("getSigningRequestDetails", &body)
        .await;
    assert_eq!(status, 200);
    let echo = Echo::start(&String::from_utf8(answer).unwrap()).await;
    for in_flight in [1, 16] {
        let (mut served, mut echoed) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            served.push(reads(&target, &body, in_flight).await);
            echoed.push(reads(&echo.target, &body, in_flight).await);
        }
        served.sort_by(f64::total_cmp);
        echoed.sort_by(f64::total_cmp);
        println!(
            "getSigningRequestDetails, {in_flight:>2} in flight               {:>7.0}/s of {:.0}/s of a bare echo: {:.2}",
            served[1],
            echoed[1],
            served[1] / echoed[1]
        );
    }
}

#[tokio::main]
async fn main() {
    // `cargo test --benches` and nextest ask for the list of tests: there are none.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    if let [.., word, address] = std::env::args().collect::<Vec<_>>().as_slice()
        && word == "echo"
    {
        return Echo::run(address).await;
    }
    let cluster = TestCluster::start_prepared(60_000, "raw_signing = true", |folder| {
        support::configure(&folder.join("serve.toml"), "serve", "", RATES);
    })
    .await;
    let vault = cluster.create_vault("bench");
    let evm = cluster.api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let solana = cluster.api.wallet(&vault, "NETWORK_TYPE_SOLANA").await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let (base, token) = (&cluster.api.base, &cluster.api.token);
    let post = |operation: &str, body: &Value| {
        let url = format!("{base}/v1/{operation}");
        http.post(url).header("x-mtoken", token).json(body)
    };
    let uuid = cluster
        .api
        .create(json!({"solanaMessage": {"from": solana, "content": base64("measure me")}}))
        .await;
    cluster.api.execute(&uuid).await;

    beside_echo(&cluster, &uuid).await;
    let rate = number("COVAULT_BENCH_RATE", 200);
    println!(
        "{rate} calls begin per second, for {} s a line",
        number("COVAULT_BENCH_SECONDS", 20)
    );
    let floor = at_rate(rate, |_| http.get(format!("{base}/livez"))).await;
    line("/livez", &floor, None);
    let details = json!({"uuid": uuid});
    let read = at_rate(rate, |_| post("getSigningRequestDetails", &details)).await;
    line("getSigningRequestDetails", &read, Some(&floor));
    // Two cores make fewer than 200 ECDSA signatures per second: what comes on top would be refused.
    for (what, kind, from, rate) in [
        (
            "signed with Ed25519 meanwhile",
            "solanaMessage",
            &solana,
            rate,
        ),
        (
            "half as often, signed with ECDSA meanwhile",
            "evmMessage",
            &evm,
            rate / 2,
        ),
    ] {
        let created = at_rate(rate, |index| {
            let content = base64(format!("message {index}"));
            let body = json!({kind: {"from": from, "content": content}});
            post("createSigningRequest", &body)
        })
        .await;
        line(
            &format!("createSigningRequest, {what}"),
            &created,
            Some(&floor),
        );
        // The next line is not to pay for this one's signatures.
        let newest = json!({"vaultUuid": vault, "limit": 1});
        let newest = cluster.api.ok("getSigningRequestList", newest).await;
        let newest = newest["signingRequests"][0]["uuid"].as_str().unwrap();
        cluster.api.execute(newest).await;
    }
}
