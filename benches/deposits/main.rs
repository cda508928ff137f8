//! Deposits: what following, telling and sweeping them costs, beside the goals. `serve`, three `signer` processes, a Redis, and a
//! double of an EVM node or anvil, all on this machine.
//!
//! `just bench-deposits`, or only some rows: `calls`, `catch-up`, `latency`, `deliveries`, `memory`, `sweeps`. Options:
//! `--addresses N` of the larger store (100,000; it is filled at about 50,000 a second), `--blocks N` to catch up with,
//! `--wallets N` to sweep, `--postgres` instead of redb. COVAULT_BENCH_SECONDS says how long signing is measured.
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

mod node;
mod shop;
#[path = "../../tests/it/support/mod.rs"]
mod support;
#[path = "../shared/usage.rs"]
mod usage;

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use covault_core::{deposit::transfer::Account, networks::evm::transfers::EvmBlock};
use node::NodeDouble;
use serde_json::{Value, json};
use shop::Shop;
use support::{Anvil, base64, eventually};

const ROWS: [&str; 6] = [
    "calls",
    "catch-up",
    "latency",
    "deliveries",
    "memory",
    "sweeps",
];

struct Options {
    rows: BTreeSet<String>,
    addresses: u64,
    blocks: u64,
    wallets: usize,
    postgres: bool,
}

fn options() -> Options {
    let mut options = Options {
        rows: BTreeSet::new(),
        addresses: 100_000,
        blocks: 2_000,
        wallets: 300,
        postgres: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().expect("an option without a value");
        match argument.as_str() {
            "--addresses" => options.addresses = value().parse().unwrap(),
            "--blocks" => options.blocks = value().parse().unwrap(),
            "--wallets" => options.wallets = value().parse().unwrap(),
            "--postgres" => options.postgres = true,
            // What cargo adds.
            "--bench" => {}
            row => {
                assert!(ROWS.contains(&row), "what is {row}?");
                options.rows.insert(row.to_owned());
            }
        }
    }
    if options.rows.is_empty() {
        options.rows = ROWS.map(str::to_owned).into();
    }
    options
}

fn line(what: &str, measured: &str, goal: &str, is_met: bool) {
    let verdict = if is_met { "met" } else { "MISSED" };
    println!("{what:<58} {measured:<44} goal {goal:<24} {verdict}");
}

/// A service that follows the double, with one address of its own.
struct Followed {
    node: Arc<NodeDouble>,
    shop: Shop,
    address: String,
}

impl Followed {
    async fn start(postgres: bool) -> Self {
        let (node, url) = NodeDouble::start().await;
        let shop = Shop::open(&url, node::CHAIN, node::TOKEN, postgres).await;
        let address = shop.wallet(0).await;
        let followed = Self {
            node,
            shop,
            address,
        };
        followed.pay().await;
        followed
    }

    /// Pays the address in a block of its own, and waits until that is told. Milliseconds from the block to the webhook.
    async fn pay(&self) -> f64 {
        let before = Instant::now();
        let block = self.node.add(&[&self.address]);
        let at = self
            .shop
            .arrivals
            .until_confirmed(&node::tx_hash(block, 0))
            .await;
        at.saturating_duration_since(before).as_secs_f64() * 1e3
    }

    /// Calls of a block, one of which comes each second.
    async fn calls_per_block(&self) -> f64 {
        const BLOCKS: u64 = 20;
        self.pay().await;
        self.node.take_calls();
        for _ in 0..BLOCKS {
            self.node.add(&[]);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        self.node.take_calls() as f64 / BLOCKS as f64
    }
}

/// Calls of each block and memory, with few addresses and with many.
async fn many_addresses(options: &Options) {
    let mut few = Followed::start(options.postgres).await;
    // A process of the same age.
    few.shop.stop_and_fill(10).await;
    let started = few.shop.start().await;
    let calls = few.calls_per_block().await;
    let memory = few.shop.memory_mib();
    let filling = Instant::now();
    few.shop.stop_and_fill(options.addresses).await;
    eprintln!(
        "{} addresses made in {:.0} s",
        options.addresses,
        filling.elapsed().as_secs_f64()
    );
    let started_with_many = few.shop.start().await;
    let calls_with_many = few.calls_per_block().await;
    let more = few.shop.memory_mib() - memory;
    let many = options.addresses;
    if options.rows.contains("calls") {
        line(
            &format!("calls per block of 1 s, polls of 250 ms in them, 10 / {many}"),
            &format!("{calls:.1} / {calls_with_many:.1}"),
            "equal",
            (calls - calls_with_many).abs() / calls < 0.1,
        );
    }
    if options.rows.contains("memory") {
        let (most, start) = match many {
            0..=100_000 => (10.0, 1.0),
            _ => (100.0, 30.0),
        };
        line(
            &format!("memory with {many} addresses, above that with 10"),
            &format!("{more:+.1} MiB ({memory:.1} with 10)"),
            &format!("<= {most} MiB"),
            more <= most,
        );
        let later = started_with_many - started;
        line(
            &format!("start with {many} addresses, above that with 10"),
            &format!("{later:+.2} s ({started:.2} with 10)"),
            &format!("<= {start} s"),
            later <= start,
        );
    }
}

/// Blocks per second of parsing and matching alone, by one thread.
fn alone(node: &NodeDouble, first: u64, blocks: u64, address: &str) -> f64 {
    let mut account = [0; 20];
    hex::decode_to_slice(address.trim_start_matches("0x"), &mut account).unwrap();
    let ours = BTreeSet::from([Account(account)]);
    let texts: Vec<_> = (first..first + blocks)
        .map(|number| node.text(number))
        .collect();
    let started = Instant::now();
    let mut matched = 0;
    for text in &texts {
        let block: Value = serde_json::from_str(text).unwrap();
        let block = EvmBlock::read(&block).unwrap();
        let candidates = block.values().chain(block.fees());
        matched += candidates
            .filter(|it| ours.contains(&it.from) || ours.contains(&it.to))
            .count();
    }
    assert_eq!(matched, 1);
    blocks as f64 / started.elapsed().as_secs_f64()
}

async fn catch_up(options: &Options) {
    let mut followed = Followed::start(options.postgres).await;
    followed.shop.cluster.serve.kill();
    let first = followed.node.add(&[]);
    for _ in 0..options.blocks - 2 {
        followed.node.add(&[]);
    }
    let last = followed.node.add(&[&followed.address]);
    let alone = alone(&followed.node, first, options.blocks, &followed.address);
    followed.shop.start().await;
    let told = followed
        .shop
        .arrivals
        .until_confirmed(&node::tx_hash(last, 0))
        .await;
    let begun = followed.node.asked_at(first).expect("it was asked for");
    let rate = options.blocks as f64 / told.saturating_duration_since(begun).as_secs_f64();
    line(
        &format!(
            "catching up with {} blocks of 200 transactions",
            options.blocks
        ),
        &format!("{rate:.0}/s of {alone:.0}/s alone: {:.2}", rate / alone),
        ">= 0.7",
        rate / alone >= 0.7,
    );
}

async fn latency(options: &Options) {
    let followed = Followed::start(options.postgres).await;
    let mut all = Vec::new();
    let mut due = Instant::now();
    for _ in 0..40 {
        all.push(followed.pay().await);
        due += Duration::from_secs(1);
        tokio::time::sleep_until(due.into()).await;
    }
    all.sort_by(f64::total_cmp);
    let (middle, last) = (all[all.len() / 2], all[all.len() * 99 / 100]);
    line(
        "block to webhook, 1 s blocks, poll 250 ms",
        &format!("p50 {middle:.0} ms, p99 {last:.0} ms of {}", all.len()),
        "p50 200, p99 500 ms",
        middle <= 200.0 && last <= 500.0,
    );
}

async fn deliveries(options: &Options) {
    const BLOCKS: usize = 25;
    let followed = Followed::start(options.postgres).await;
    let before = followed.shop.arrivals.all().len();
    let paid = [followed.address.as_str(); node::TRANSACTIONS as usize];
    for _ in 0..BLOCKS {
        followed.node.add(&paid);
    }
    // Those are final.
    (0..3).for_each(|_| _ = followed.node.add(&[]));
    let expected = 2 * BLOCKS * paid.len();
    while followed.shop.arrivals.all().len() < before + expected {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut all = followed.shop.arrivals.all();
    all.sort_unstable();
    let took = all[all.len() - 1] - all[before];
    let rate = expected as f64 / took.as_secs_f64();
    let store = if options.postgres {
        "PostgreSQL"
    } else {
        "redb"
    };
    line(
        &format!("deliveries to one receiver while following, {store}"),
        &format!("{rate:.0}/s of {expected}"),
        ">= 1000/s",
        rate >= 1_000.0,
    );
}

const PAYER: &str = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";

/// ECDSA signatures per second through HTTP.
async fn signing_rate(shop: &Shop) -> f64 {
    let text = std::env::var("COVAULT_BENCH_SECONDS").unwrap_or_else(|_| "10".to_owned());
    let seconds = Duration::from_secs(text.parse().unwrap());
    let api = &shop.cluster.api;
    let from = api.wallet(&shop.vault, "NETWORK_TYPE_EVM").await;
    let body = json!({"rawMessage": {"from": from, "content": base64("measure me"),
        "ecdsaHashFunction": "ECDSA_HASH_FUNCTION_SHA256"}});
    api.sign(body.clone()).await;
    let started = Instant::now();
    let workers = (0..32).map(|_| {
        let (api, body) = (api.clone(), body.clone());
        tokio::spawn(async move {
            let mut signed = 0_u32;
            while started.elapsed() < seconds {
                api.sign(body.clone()).await;
                signed += 1;
            }
            signed
        })
    });
    let workers: Vec<_> = workers.collect();
    let signed: u32 = futures::future::join_all(workers)
        .await
        .into_iter()
        .map(Result::unwrap)
        .sum();
    f64::from(signed) / started.elapsed().as_secs_f64()
}

async fn sweeps(options: &Options) {
    let folder = tempfile::tempdir().unwrap();
    let anvil = Anvil::start(folder.path(), 31_337).await;
    anvil.call("anvil_mine", json!(["0x50"])).await;
    let shop = Shop::open(&anvil.url, 31_337, node::TOKEN, options.postgres).await;
    for number in 0..options.wallets {
        let wallet = shop.wallet(number).await;
        let paid = json!([{"from": PAYER, "to": wallet, "value": "0x2386f26fc10000"}]);
        anvil.call("eth_sendTransaction", paid).await;
    }
    // Two events of each.
    while shop.arrivals.all().len() < 2 * options.wallets {
        anvil.call("anvil_mine", json!(["0x10"])).await;
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    let alone = signing_rate(&shop).await;
    let remove = format!(
        "sweep asset remove --token shop --chain 31337 --contract {}",
        node::TOKEN
    );
    shop.operator(&remove);
    let there = async || {
        let answer = anvil
            .call("eth_getBalance", json!([shop::TARGET, "latest"]))
            .await;
        u128::from_str_radix(answer.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
    };
    let enable =
        "sweep rules --token shop --chain 31337 --enabled true --max-gas-price 1000000000000000";
    let started = Instant::now();
    shop.operator(enable);
    // The fee of each is far below a hundredth of it.
    let all = options.wallets as u128 * 10_000_000_000_000_000 / 100 * 99;
    while there().await < all {
        assert!(
            started.elapsed() < Duration::from_secs(900),
            "waited in vain"
        );
        anvil.call("anvil_mine", json!(["0x1"])).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let rate = options.wallets as f64 / started.elapsed().as_secs_f64();
    line(
        &format!("sweeps of {} wallets, ECDSA 2-of-3", options.wallets),
        &format!("{rate:.1}/s of {alone:.1}/s signing: {:.2}", rate / alone),
        ">= 0.8",
        rate / alone >= 0.8,
    );
}

#[tokio::main]
async fn main() {
    // `cargo test --benches` and nextest ask for the list of tests: there are none.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let options = options();
    let wants = |row: &str| options.rows.contains(row);
    if wants("calls") || wants("memory") {
        many_addresses(&options).await;
    }
    if wants("catch-up") {
        catch_up(&options).await;
    }
    if wants("latency") {
        latency(&options).await;
    }
    if wants("deliveries") {
        deliveries(&options).await;
    }
    if wants("sweeps") {
        sweeps(&options).await;
    }
}
