//! More requests than signers can do: it takes longer, and nothing that was accepted fails.

use std::{
    fs,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, future::join_all, stream};
use serde_json::json;

use super::support::*;

/// How long it is more than they can do.
const CROWD: Duration = Duration::from_secs(6);
/// Clients that ask again as soon as they are answered.
const CLIENTS: usize = 64;
/// As many connections as make it take memory.
const FLOOD: usize = 800;
/// A request has this long to be signed.
const DEADLINE_MS: u64 = 20_000;

/// What clients of one curve got: the requests that were accepted, and how many were refused.
async fn crowd(
    api: &ApiClient,
    from: &str,
    clients: usize,
    time: Duration,
) -> (Vec<String>, usize) {
    let until = Instant::now() + time;
    let clients = (0..clients).map(|client| async move {
        let (mut accepted, mut refused) = (Vec::new(), 0_usize);
        while Instant::now() < until {
            let body = json!({"rawMessage": {
                "from": from,
                "content": base64(format!("{client} {}", accepted.len())),
                "ecdsaHashFunction": "ECDSA_HASH_FUNCTION_SHA256"
            }});
            let response = api
                .raw("/v1/createSigningRequest", |request| {
                    request.header("x-mtoken", &api.token).json(&body)
                })
                .await;
            let retry = response.headers().get("retry-after").cloned();
            match response.status().as_u16() {
                200 => {
                    let answer: serde_json::Value = response.json().await.unwrap();
                    let uuid = answer["signingRequest"]["uuid"].as_str().unwrap();
                    accepted.push(uuid.to_owned());
                }
                503 => {
                    let seconds: u64 = retry.unwrap().to_str().unwrap().parse().unwrap();
                    assert!((1..=60).contains(&seconds), "{seconds}");
                    refused += 1;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                status => panic!("{status}"),
            }
        }
        (accepted, refused)
    });
    let clients = join_all(clients).await.into_iter();
    clients.fold((Vec::new(), 0), |(mut all, sum), (accepted, refused)| {
        all.extend(accepted);
        (all, sum + refused)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crowd__should_make_it_slower_and_no_accepted_request_fail() {
    let cluster = TestCluster::start(DEADLINE_MS).await;
    let vault = cluster.create_vault("crowd");
    let api = &cluster.api;
    let evm = api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let solana = api.wallet(&vault, "NETWORK_TYPE_SOLANA").await;
    for (from, name) in [(&evm, "ECDSA"), (&solana, "Ed25519")] {
        for number in 0..10 {
            let content = base64(format!("before {number}"));
            api.sign(json!({"rawMessage": {"from": from, "content": content,
                "ecdsaHashFunction": "ECDSA_HASH_FUNCTION_SHA256"}}))
                .await;
        }
        let began = Instant::now();
        let (accepted, refused) = crowd(api, from, CLIENTS, CROWD).await;
        let ends = stream::iter(&accepted).map(|uuid| api.execute(uuid));
        let mut ends = ends.buffer_unordered(CLIENTS);
        while let Some(outcome) = ends.next().await {
            assert_eq!(outcome["error"], json!(null), "{name}: {outcome}");
        }
        let took = began.elapsed();
        eprintln!(
            "{name}: {} signed in {took:?}, {refused} refused",
            accepted.len()
        );
        assert!(accepted.len() > CLIENTS, "{name}: {}", accepted.len());
    }
}

/// What of a process is in memory, in bytes.
fn resident(process: &Process) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    for line in status.lines().filter(|line| line.starts_with("Rss")) {
        eprint!("{line} ");
    }
    eprintln!();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kilobytes = line.unwrap().split_whitespace().nth(1).unwrap();
    kilobytes.parse::<u64>().unwrap() * 1024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crowd__should_leave_no_memory_taken() {
    let cluster = TestCluster::start(60_000).await;
    let vault = cluster.create_vault("crowd");
    let api = &cluster.api;
    let solana = api.wallet(&vault, "NETWORK_TYPE_SOLANA").await;
    for number in 0..50 {
        let content = base64(format!("before {number}"));
        let message = json!({"from": solana, "content": content});
        api.sign(json!({"rawMessage": message})).await;
    }
    let before = resident(&cluster.serve);
    let flood = ApiClient::new(&api.base, &api.token);
    let (accepted, refused) = crowd(&flood, &solana, FLOOD, CROWD).await;
    drop(flood);
    let most = resident(&cluster.serve);
    for uuid in accepted.iter().rev().take(100) {
        api.execute(uuid).await;
    }
    let began = Instant::now();
    let mut after = resident(&cluster.serve);
    while after * 2 > before * 3 {
        let figures = format!(
            "{} MiB, {} MiB, {} MiB",
            before >> 20,
            most >> 20,
            after >> 20
        );
        assert!(began.elapsed() < Duration::from_secs(60), "{figures}");
        tokio::time::sleep(Duration::from_secs(1)).await;
        after = resident(&cluster.serve);
    }
    eprintln!(
        "{} accepted, {refused} refused; {} MiB, {} MiB, {} MiB after {:?}",
        accepted.len(),
        before >> 20,
        most >> 20,
        after >> 20,
        began.elapsed()
    );
}
