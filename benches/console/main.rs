//! What the console costs: 200 tries a second to sign in beside calls of the API, 500 open consoles, how soon 5,000 listeners
//! to `/v1/events` hear of a request, and how soon a browser on a slow line shows something. `serve` with three `signer` processes, a real Redis, the clients and Chromium share
//! this machine.
//!
//! `cargo bench --bench console`. COVAULT_BENCH_SECONDS sets how long each line measures, COVAULT_BENCH_CONSOLES how many
//! pages are open, COVAULT_BENCH_LISTENERS how many listeners there are. Pages of a large store: `cargo bench --bench retention -- --pages`.
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

#[path = "../shared/console_person.rs"]
mod console_person;
#[path = "../shared/first_paint.rs"]
mod first_paint;
#[path = "../shared/goals.rs"]
mod goals;
#[path = "../../tests/it/support/mod.rs"]
mod support;
#[path = "../shared/usage.rs"]
mod usage;

use std::{
    collections::BTreeMap,
    fs,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use console_person::ConsolePerson;
use goals::{GoalTable, percentile};
use serde_json::{Value, json};
use support::{ManyListeners, TestCluster, base64, free_port};
use usage::cpu_s;

/// Tries to sign in that begin each second.
const TRIES: u64 = 200;
/// Calls of the API that begin each second: another rate, so that tries begin at any moment of a call.
const CALLS: u64 = 171;
/// Rounds of quiet and of tries, in turns: whatever else the machine does meets both.
const ROUNDS: usize = 30;
/// One person may not have all places of listeners.
const PEOPLE: usize = 10;
/// More requests that wait than a page of the inbox has.
const WAITING: u64 = 120;
/// Percent by which calls may be slower beside tries to sign in, and of a core that open consoles may take.
const MOST_SLOWER: f64 = 5.0;
/// Percent of the tries that may be refused before their signature is verified: there are places for so many strangers.
const MOST_WITHOUT_WORK: f64 = 1.0;
const MOST_OF_A_CORE: f64 = 5.0;
const PERCENTS: [usize; 3] = [50, 90, 99];
/// Requests that the listeners hear of, and in how many milliseconds 99 of 100 have to, each time.
const HEARD: usize = 20;
const MOST_MS: f64 = 200.0;

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
        Err(_) => default,
    }
}

/// Begins so many of these a second, whether earlier ones have ended or not: their milliseconds from when each should have
/// begun, and how many had which status.
async fn at_rate(
    (rate, seconds): (u64, u64),
    call: impl Fn() -> reqwest::RequestBuilder,
) -> (Vec<f64>, Vec<(u16, usize)>) {
    let started = Instant::now() + Duration::from_millis(50);
    let mut calls = tokio::task::JoinSet::new();
    for index in 0..rate * seconds {
        let due = started + Duration::from_micros(index * 1_000_000 / rate);
        tokio::time::sleep_until(due.into()).await;
        let call = call();
        calls.spawn(async move {
            let answer = call.send().await.unwrap();
            let status = answer.status().as_u16();
            answer.bytes().await.unwrap();
            (due.elapsed().as_secs_f64() * 1e3, status)
        });
    }
    let ended = calls.join_all().await;
    let mut latencies: Vec<f64> = ended.iter().map(|(ms, _)| *ms).collect();
    latencies.sort_by(f64::total_cmp);
    let mut statuses: Vec<(u16, usize)> = Vec::new();
    for (_, status) in ended {
        match statuses.iter_mut().find(|(known, _)| *known == status) {
            Some((_, count)) => *count += 1,
            None => statuses.push((status, 1)),
        }
    }
    (latencies, statuses)
}

#[tokio::main]
async fn main() {
    // `cargo test --benches` and nextest ask for the list of tests: there are none.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let port = free_port();
    let cluster = TestCluster::start_prepared(60_000, "raw_signing = true", |folder| {
        let path = folder.join("serve.toml");
        let text = fs::read_to_string(&path).unwrap();
        let console = format!(
            "\n[console]\nlisten = \"127.0.0.1:{port}\"\norigin = \"http://localhost:{port}\"\ntrusted_proxies = 1\n"
        );
        fs::write(&path, text + &console).unwrap();
    })
    .await;
    let vault = cluster.create_vault("bench");
    let from = cluster.api.wallet(&vault, "NETWORK_TYPE_SOLANA").await;
    let mut people = Vec::new();
    for person in 0..PEOPLE {
        let name = format!("person-{person}");
        people.push(ConsolePerson::enrol(&cluster, port, &name, "viewer").await);
    }
    for person in &mut people {
        person.sign_in().await;
    }
    let mut table = GoalTable::default();
    overload(&cluster, &people, &from, &mut table).await;
    open_consoles(&cluster, &people, &from, &mut table).await;
    listeners(&cluster, &from, &mut table).await;
    paints(&cluster, port, &mut table).await;
    table.print();
}

/// How long after its call was answered listeners to the API's events have heard of a request.
async fn listeners(cluster: &TestCluster, from: &str, table: &mut GoalTable) {
    let count = usize::try_from(number("COVAULT_BENCH_LISTENERS", 5_000)).unwrap();
    let mut many = ManyListeners::start(&cluster.api, count).await;
    let mut times = Vec::new();
    for number in 0..HEARD {
        let content = base64(format!("heard {number}"));
        let message = json!({"solanaMessage": {"from": from, "content": content}});
        let (answered, heard) = many.hear(&cluster.api, message).await;
        let after = |heard: Duration| heard.saturating_sub(answered).as_secs_f64() * 1e3;
        let mut after: Vec<f64> = heard.into_iter().map(after).collect();
        after.sort_by(f64::total_cmp);
        times.push(percentile(&after, 99));
        // Also of its end, before the next one begins.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    times.sort_by(f64::total_cmp);
    for (what, percent) in [("median", 50), ("worst", 100)] {
        let name = format!("{count} listeners hear of a request, p99, {what} of {HEARD}");
        table.add(&name, percentile(&times, percent), MOST_MS, "ms");
    }
}

/// How soon pages are seen by an approver whose inbox is full.
async fn paints(cluster: &TestCluster, port: u16, table: &mut GoalTable) {
    let approver = ConsolePerson::enrol(cluster, port, "approver", "approver").await;
    let rule = format!("approver={}", approver.line());
    let vault = cluster.create_vault_with("manual", &["--approver", &rule]);
    let from = cluster.api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let mut uuid = String::new();
    for number in 0..WAITING {
        let content = base64(format!("message {number}"));
        let message = json!({"evmMessage": {"chainId": "1", "from": from, "content": content}});
        uuid = cluster.api.create(message).await;
    }
    let (request, of_vault) = (format!("/requests/{uuid}"), format!("/vaults/{vault}"));
    let wallet = format!("/wallets/{from}");
    let fixed = ["/", "/history", "/vaults", "/batches", "/account"];
    let more = [request.as_str(), of_vault.as_str(), wallet.as_str()];
    let paths = [&fixed[..], &more[..]].concat();
    tokio::task::block_in_place(|| first_paint::measure(&approver, &paths, table));
}

/// How much slower calls of the API are beside tries to sign in.
async fn overload(
    cluster: &TestCluster,
    people: &[ConsolePerson],
    from: &str,
    table: &mut GoalTable,
) {
    let seconds = number("COVAULT_BENCH_SECONDS", 30);
    let message = json!({"solanaMessage": {"from": from, "content": base64("measure me")}});
    let uuid = cluster.api.create(message).await;
    cluster.api.execute(&uuid).await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let (url, token) = (&cluster.api.base, &cluster.api.token);
    let details = || {
        let call = http.post(format!("{url}/v1/getSigningRequestDetails"));
        call.header("x-mtoken", token).json(&json!({"uuid": uuid}))
    };
    let tries = AtomicU64::new(0);
    let round = (seconds * 2).div_ceil(u64::try_from(ROUNDS).unwrap());
    let mut slower: [Vec<f64>; PERCENTS.len()] = Default::default();
    let mut tried = BTreeMap::new();
    at_rate((CALLS, 5), details).await;
    for round_number in 0..ROUNDS {
        let person = &people[round_number % people.len()];
        // The challenge holds for longer than a round.
        let wrong = person.wrong_sign_in().await;
        let (quiet, quiet_statuses) = at_rate((CALLS, round), details).await;
        let one_try = || person.try_of_many(&wrong, tries.fetch_add(1, Ordering::Relaxed));
        let tried_now = at_rate((TRIES, round), one_try);
        let calls = at_rate((CALLS, round), details);
        let ((beside, beside_statuses), (_, statuses)) = tokio::join!(calls, tried_now);
        for answered in [quiet_statuses, beside_statuses] {
            assert!(
                matches!(answered.as_slice(), [(200, _)]),
                "calls of the API were answered (by status): {answered:?}"
            );
        }
        for (slower, percent) in slower.iter_mut().zip(PERCENTS) {
            let [one, other] = [&quiet, &beside].map(|of| percentile(of, percent));
            slower.push((other / one - 1.0) * 100.0);
        }
        for (status, count) in statuses {
            *tried.entry(status).or_insert(0) += count;
        }
    }
    for (slower, percent) in slower.iter_mut().zip(PERCENTS) {
        slower.sort_by(f64::total_cmp);
        let name = format!("calls slower beside {TRIES} tries a second to sign in, p{percent}");
        table.add(&name, percentile(slower, 50), MOST_SLOWER, "%");
    }
    println!("  the tries were answered (by status): {tried:?}");
    let (all, verified): (usize, usize) = (
        tried.values().sum(),
        tried.get(&401).copied().unwrap_or_default(),
    );
    assert!(
        !tried.contains_key(&429) && !tried.contains_key(&200),
        "{tried:?}"
    );
    #[allow(clippy::cast_precision_loss, reason = "counts of a benchmark")]
    let without = (all - verified) as f64 / all as f64 * 100.0;
    let name = "tries to sign in that were refused before any work";
    table.add(name, without, MOST_WITHOUT_WORK, "%");
}

/// What pages that listen cost the service while a request a second changes.
async fn open_consoles(
    cluster: &TestCluster,
    people: &[ConsolePerson],
    from: &str,
    table: &mut GoalTable,
) {
    let seconds = number("COVAULT_BENCH_SECONDS", 30);
    let count = usize::try_from(number("COVAULT_BENCH_CONSOLES", 500)).unwrap();
    let heard = Arc::new(AtomicU64::new(0));
    let mut used = Vec::new();
    let mut open = tokio::task::JoinSet::new();
    for are_open in [false, true] {
        if are_open {
            for number in 0..count {
                let answer = people[number % people.len()].page("/events").send();
                let answer = answer.await.unwrap();
                assert_eq!(answer.status().as_u16(), 200, "console {number}");
                let heard = Arc::clone(&heard);
                open.spawn(async move {
                    let mut answer = answer;
                    while let Ok(Some(bytes)) = answer.chunk().await {
                        let changed = bytes.windows(7).filter(|it| *it == b"changed");
                        heard.fetch_add(u64::try_from(changed.count()).unwrap(), Ordering::Relaxed);
                    }
                });
            }
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
        let pid = cluster.serve.pid();
        let (before, began) = (cpu_s(pid), Instant::now());
        for number in 0..seconds {
            let content = base64(format!("message {number} {are_open}"));
            let message = json!({"solanaMessage": {"from": from, "content": content}});
            cluster.api.create(message).await;
            let due = began + Duration::from_secs(number + 1);
            tokio::time::sleep_until(due.into()).await;
        }
        used.push((cpu_s(pid) - before) / began.elapsed().as_secs_f64() * 100.0);
    }
    println!(
        "a message a second: {:.1} % of a core; beside {count} open consoles {:.1} % ({:+.1}), which were told {} times",
        used[0],
        used[1],
        used[1] - used[0],
        heard.load(Ordering::Relaxed)
    );
    let name = format!("{count} open consoles, beside none");
    table.add(&name, used[1] - used[0], MOST_OF_A_CORE, "% of a core");
}
