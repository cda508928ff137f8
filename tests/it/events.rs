//! `GET /v1/events` of the built program: kills, restarts, several processes, many listeners.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::join_all;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

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

/// A connection that listens and does not read.
async fn deaf(api: &ApiClient) -> TcpStream {
    let address = api.base.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "GET /v1/events HTTP/1.1\r\nhost: x\r\nx-mtoken: {}\r\n\r\n",
        api.token
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// How many listeners are measured: `LISTENERS=5000` for the figure of docs/events.md.
fn listeners() -> usize {
    let asked = std::env::var("LISTENERS").ok();
    asked.map_or(200, |asked| asked.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_listeners__should_each_hear_in_time() {
    let _ = rustix_files();
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(&folder.path().join("dev"), &[]).await;
    let from = dev.api.wallet(&dev.vault, "NETWORK_TYPE_SOLANA").await;
    let most = listeners();
    let mut streams = Vec::new();
    for _ in 0..most {
        let mut stream = deaf(&dev.api).await;
        let mut head = [0; 1024];
        let read = stream.read(&mut head).await.unwrap();
        assert!(head[..read].starts_with(b"HTTP/1.1 200"));
        streams.push(stream);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let began = Instant::now();
    let uuid = dev.api.create(message(&from, 0)).await;
    let answered = began.elapsed();
    let heard = Arc::new(AtomicUsize::new(0));
    let waits = streams.into_iter().map(|mut stream| {
        let (uuid, heard) = (uuid.clone(), Arc::clone(&heard));
        tokio::spawn(async move {
            let (mut text, mut piece) = (Vec::new(), [0; 4096]);
            loop {
                let read = stream.read(&mut piece).await.unwrap();
                assert_ne!(read, 0, "closed");
                text.extend_from_slice(&piece[..read]);
                if String::from_utf8_lossy(&text).contains(&uuid) {
                    heard.fetch_add(1, Ordering::SeqCst);
                    return (began.elapsed(), stream);
                }
            }
        })
    });
    let mut times: Vec<_> = join_all(waits)
        .await
        .into_iter()
        .map(|it| it.unwrap().0)
        .collect();
    times.sort_unstable();
    let p99 = times[times.len() * 99 / 100 - 1];
    let after = p99.saturating_sub(answered);
    eprintln!(
        "{most} listeners: the request was answered after {answered:?}, heard by 99 of 100 {after:?} later, by all after {:?}",
        times.last().unwrap()
    );
}

/// As many files as this process may open.
fn rustix_files() -> std::io::Result<std::process::Output> {
    let pid = std::process::id().to_string();
    Command::new("prlimit")
        .args(["--pid", &pid, "--nofile=30000:30000"])
        .output()
}
