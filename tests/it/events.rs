//! `GET /v1/events` of the built program: kills, restarts, several processes, many listeners.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::support::*;

fn message(from: &str, number: usize) -> Value {
    let content = base64(format!("message {number}"));
    json!({"solanaMessage": {"from": from, "content": content}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_service__should_lose_no_change_for_listeners_that_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut dev = DevProcess::start(&folder.path().join("dev"), &[]).await;
    let from = dev.api.wallet(&dev.vault, "NETWORK_TYPE_SOLANA").await;
    let mut listener = Listener::new(&dev.api).await;
    // One that has gone, and comes back much later.
    let mut late = Listener::new(&dev.api).await;
    late.connect(&dev.api).await;
    let mut accepted = Vec::new();
    for round in 0..3_usize {
        let mut uuids = Vec::new();
        for number in 0..8 {
            uuids.push(dev.api.create(message(&from, round * 8 + number)).await);
        }
        // Some of it is heard, and some of it happens when nobody does.
        if round == 1 {
            listener.until(&uuids[..2], "STATUS_SUCCEEDED").await;
        }
        dev.process.kill();
        while listener.more().await {}
        dev.restart().await;
        accepted.extend(uuids);
        for uuid in &accepted {
            dev.api.execute(uuid).await;
        }
        listener.connect(&dev.api).await;
        listener.until(&accepted, "STATUS_SUCCEEDED").await;
    }
    // What was heard before is not told all over again.
    let first = listener.heard[&accepted[0]].1;
    assert!(first < 12, "{first} times");
    late.connect(&dev.api).await;
    late.until(&accepted, "STATUS_SUCCEEDED").await;
    assert_eq!((listener.resets, late.resets), (0, 0));
    let heard = listener.heard.values().map(|(data, _)| data);
    for data in heard {
        assert_eq!(data["vaultUuid"], json!(dev.vault));
        assert_eq!(data["kind"], "solanaMessage");
        assert!(!data.to_string().contains(&from));
    }

    // Streams end when the process is asked to stop, and do not hold it up.
    let began = Instant::now();
    let code = tokio::task::block_in_place(|| dev.process.terminate());
    assert_eq!(code, Some(0));
    assert!(began.elapsed() < Duration::from_secs(15));
    while listener.more().await {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_orchestrators__should_tell_each_others_changes_and_take_over_listeners() {
    let mut fleet = Fleet::start(&["all", "all"], "", None).await;
    let vaults = fleet.vaults(&[0, 1]).await;
    let mut listeners = Vec::new();
    for api in &fleet.apis {
        listeners.push(Listener::new(api).await);
    }
    let of = vaults.clone();
    let load = FleetLoad::start(&fleet.apis, 4, move |number| {
        of[number / 2 % 2].message(number)
    });
    load.go_on(12).await;
    fleet.process(1).kill();
    load.go_on(12).await;
    let accepted = load.end().await;
    fleet.assert_done(&accepted, &[0]).await;
    let uuids: Vec<_> = accepted.iter().map(|one| one.uuid.clone()).collect();
    while listeners[1].more().await {}
    // With the id of the process that is gone.
    listeners[1].connect(&fleet.apis[0]).await;
    for listener in &mut listeners {
        listener.until(&uuids, "STATUS_SUCCEEDED").await;
        assert_eq!(listener.resets, 0);
    }
    let seen = listeners[0].heard.values();
    let vaults_seen: std::collections::BTreeSet<_> = seen
        .map(|(data, _)| data["vaultUuid"].to_string())
        .collect();
    assert_eq!(vaults_seen.len(), 2);
}

/// How many listeners are measured: `LISTENERS=5000` for the figure of docs/events.md.
fn listeners() -> usize {
    let asked = std::env::var("LISTENERS").ok();
    asked.map_or(200, |asked| asked.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_listeners__should_each_hear_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(&folder.path().join("dev"), &[]).await;
    let from = dev.api.wallet(&dev.vault, "NETWORK_TYPE_SOLANA").await;
    let most = listeners();
    let mut many = ManyListeners::start(&dev.api, most).await;
    let (answered, heard) = many.hear(&dev.api, message(&from, 0)).await;
    let p99 = heard[heard.len() * 99 / 100 - 1];
    eprintln!(
        "{most} listeners: the request was answered after {answered:?}, heard by 99 of 100 {:?} later, by all after {:?}",
        p99.saturating_sub(answered),
        heard.last().unwrap()
    );
}
