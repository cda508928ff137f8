//! What operators wait for: a start on a large store, `covault status`, the same of the admin API, a scrape of the metrics,
//! and what `covault top` takes of a core. One `serve` with three signers over a Redis, where 97 more nodes announce
//! themselves, 20 chain nodes that do not answer, 1,000,000 finished requests, and 100,000 vaults for all but the first start.
//!
//! `just bench-operate`, about 15 minutes. Options: `--requests N` and `--vaults N`. The store is where temporary files are
//! (TMPDIR), and takes about 3 GB there.
#![allow(
    clippy::disallowed_methods,
    clippy::duplicate_mod,
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
#[path = "../retention/copies.rs"]
mod copies;
#[path = "../shared/first_paint.rs"]
mod first_paint;
#[path = "../shared/goals.rs"]
mod goals;
#[path = "../../mpc/tests/support/mod.rs"]
mod node_support;
#[path = "../retention/pages.rs"]
mod pages;
#[path = "../retention/service.rs"]
mod service;
#[path = "../../tests/it/support/mod.rs"]
mod support;
#[path = "../shared/usage.rs"]
mod usage;
mod vaults;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use covault_mpc::{bus::redis::RedisBus, node::RebuildCheck, preprocess::Watermarks};
use goals::{GoalTable, percentile};
use node_support::TestBus;
use serde_json::{Value, json};
use service::{BenchService, ServiceSize};
use support::{Terminal, configure, covault, eventually, free_port, outcome_of};

/// Nodes with the three signers of the service.
const NODES: usize = 100;
const CHAIN_NODES: usize = 20;
const STARTS: usize = 5;
/// Of each question.
const TIMES: usize = 50;
/// How long top is watched.
const WATCHED: Duration = Duration::from_secs(30);
/// How long the service may take to count all vaults.
const COUNTING: Duration = Duration::from_secs(600);

struct Options {
    requests: u64,
    vaults: usize,
}

fn options(arguments: impl Iterator<Item = String>) -> Options {
    let mut options = Options {
        requests: 1_000_000,
        vaults: 100_000,
    };
    let mut arguments = arguments.skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().expect("an option without a value");
        match argument.as_str() {
            "--requests" => options.requests = value().parse().unwrap(),
            "--vaults" => options.vaults = value().parse().unwrap(),
            // What cargo adds.
            "--bench" => {}
            other => panic!("what is {other}?"),
        }
    }
    options
}

#[tokio::main]
async fn main() {
    // `cargo test --benches` and nextest ask for the list of tests: there are none.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let Options { requests, vaults } = options(std::env::args());
    let mut goals = GoalTable::default();
    eprintln!("a service with {requests} requests is being made");
    let size = ServiceSize {
        requests,
        wallets: 1_000,
        open: 0,
        pending: 0,
    };
    let mut service = BenchService::start(size, None).await;
    let starts = starts(&mut service).await;
    let name = format!("start until a request is accepted, {requests} requests");
    goals.add(&name, percentile(&starts, 50), 1_000.0, "ms");

    eprintln!("{vaults} vaults and {NODES} nodes are being made");
    let main = service.vaults[0].parse().unwrap();
    vaults::add(&service.file(), main, "main", vaults).await;
    let metrics = free_port();
    widen(&service, metrics);
    let started = Instant::now();
    service.launch().await;
    println!(
        "start with {vaults} vaults: {} ms",
        started.elapsed().as_millis()
    );
    let _nodes = more_nodes(&service).await;
    let admin = Admin::new(&service);
    admin.until_counted(vaults).await;

    let asked = admin.times("status").await;
    let name = format!("/admin/v1/status with {vaults} vaults, p98");
    goals.add(&name, percentile(&asked, 98), 50.0, "ms");
    let commands = status_commands(&service);
    goals.add(
        "covault status, p98",
        percentile(&commands, 98),
        300.0,
        "ms",
    );
    let (scrapes, bytes) = scrapes(metrics).await;
    let name = format!("a scrape with {NODES} nodes and {CHAIN_NODES} chain nodes, p98");
    goals.add(&name, percentile(&scrapes, 98), 20.0, "ms");
    goals.add("its answer", bytes as f64 / 1e6, 1.0, "MB");
    goals.add("covault top", top(&service).await, 1.0, "% of a core");
    service.stop();
    goals.print();
}

/// Milliseconds of each start, in ascending order.
async fn starts(service: &mut BenchService) -> Vec<f64> {
    let mut took = Vec::new();
    // The first one reads the store from the disk.
    for start in 0..=STARTS {
        let start_ms = service.launch().await;
        service.stop();
        if start > 0 {
            took.push(start_ms);
        }
    }
    sorted(took)
}

/// Gives the service its chain nodes, of which none answers, and a listener for metrics.
fn widen(service: &BenchService, metrics: u16) {
    let away = free_port();
    let chains = (0..CHAIN_NODES / 2).map(|chain| {
        let nodes = ["a", "b"].map(|node| format!("http://127.0.0.1:{away}/{node}"));
        format!("[chains.evm.{}]\nrpc = {nodes:?}\n", 7_000 + chain)
    });
    let file = service.cluster.folder.path().join("serve.toml");
    let listen = format!("metrics_listen = \"127.0.0.1:{metrics}\"\n");
    configure(&file, "serve", &listen, &chains.collect::<String>());
}

/// The nodes beside the service's own, in this process, and admitted.
async fn more_nodes(service: &BenchService) -> node_support::TestCluster {
    let bus = RedisBus::connect(&service.cluster.redis.url(), "covault").unwrap();
    let count = NODES - service.cluster.keys.len();
    let check = Arc::new(RebuildCheck);
    let watermarks = Watermarks::default();
    let nodes =
        node_support::TestCluster::start_pooled(TestBus::Other(bus), count, check, watermarks)
            .await;
    for (number, node) in nodes.nodes.iter().enumerate() {
        let name = format!("node-{number}");
        let line = node.identity.id().openssh_line(&name);
        let (done, _, said) = service.cluster.node(&["admit", &line, "--name", &name]);
        assert!(done, "{said}");
    }
    nodes
}

/// The admin API on its socket.
struct Admin {
    http: reqwest::Client,
    token: String,
}

impl Admin {
    fn new(service: &BenchService) -> Self {
        let socket = service
            .cluster
            .folder
            .path()
            .join("orchestrator/admin.sock");
        Self {
            http: reqwest::Client::builder()
                .unix_socket(socket)
                .build()
                .unwrap(),
            token: service.cluster.admin_token.clone(),
        }
    }

    async fn call(&self, operation: &str) -> Value {
        let url = format!("http://localhost/admin/v1/{operation}");
        let call = self.http.post(url).header("x-mtoken", &self.token);
        let response = call.json(&json!({})).send().await.unwrap();
        assert!(response.status().is_success(), "{}", response.status());
        response.json().await.unwrap()
    }

    /// Milliseconds of each call, in ascending order.
    async fn times(&self, operation: &str) -> Vec<f64> {
        let mut took = Vec::new();
        for _ in 0..TIMES {
            let started = Instant::now();
            self.call(operation).await;
            took.push(started.elapsed().as_secs_f64() * 1e3);
        }
        sorted(took)
    }

    /// Waits until the service has counted so many vaults and heard all nodes.
    async fn until_counted(&self, vaults: usize) {
        let started = Instant::now();
        loop {
            let status = self.call("status").await;
            let count = |field: &str| {
                let count = status["vaults"][field].as_str();
                count.map_or(0, |count| count.parse::<usize>().unwrap())
            };
            let counted: usize = ["ready", "short", "noKeys"].map(count).iter().sum();
            let nodes = status["nodes"].as_array().unwrap();
            let live = nodes.iter().filter(|node| node["live"] == true).count();
            if counted >= vaults && live == NODES {
                return;
            }
            assert!(
                started.elapsed() < COUNTING,
                "{counted} vaults, {live} nodes: {}",
                status["vaults"]
            );
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Milliseconds of each run of `covault status`, in ascending order.
fn status_commands(service: &BenchService) -> Vec<f64> {
    let config = service.cluster.folder.path().join("serve.toml");
    let took = (0..TIMES).map(|_| {
        let started = Instant::now();
        let (_, out, err) = outcome_of(covault().args(["status", "--config"]).arg(&config));
        assert!(out.contains("vaults"), "{out}{err}");
        started.elapsed().as_secs_f64() * 1e3
    });
    sorted(took.collect())
}

/// Milliseconds of each scrape, in ascending order, and the bytes of the last one.
async fn scrapes(port: u16) -> (Vec<f64>, usize) {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://127.0.0.1:{port}/metrics");
    let (mut took, mut text) = (Vec::new(), String::new());
    for _ in 0..TIMES {
        let started = Instant::now();
        text = http.get(&url).send().await.unwrap().text().await.unwrap();
        took.push(started.elapsed().as_secs_f64() * 1e3);
    }
    let series = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(series("covault_node_up{"), NODES);
    // With the one of the chain that the requests were on.
    assert_eq!(series("covault_chain_node_up{"), CHAIN_NODES + 1);
    (sorted(took), text.len())
}

/// How many percent of a core `covault top` takes.
async fn top(service: &BenchService) -> f64 {
    let folder = service.cluster.folder.path();
    let terminal = Terminal::start(folder, "bench-operate");
    let config = folder.join("serve.toml");
    terminal.line(&format!("covault top --config {}", config.display()));
    terminal.until(&["q leaves"]).await;
    let process = terminal.process();
    let before = usage::cpu_s(process);
    tokio::time::sleep(WATCHED).await;
    (usage::cpu_s(process) - before) / WATCHED.as_secs_f64() * 100.0
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}
