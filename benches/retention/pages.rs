//! What each page of the console takes in a store with years of use, while much waits for people.

use std::time::{Duration, Instant};

use futures::StreamExt as _;
use serde_json::json;

use crate::{
    console_person::ConsolePerson,
    copies, first_paint,
    goals::{GoalTable, percentile},
    service::{BenchService, ServiceSize},
    support::base64,
};

/// How often each page is opened, and how far apart.
const TIMES: u32 = 300;
const EVERY: Duration = Duration::from_millis(20);
/// Milliseconds.
const MOST_MS: f64 = 50.0;
/// As many as one gesture approves.
const TOGETHER: usize = 100;

/// Those who look at pages, each at those of their role.
pub struct PagePeople {
    approver: ConsolePerson,
    operator: ConsolePerson,
    auditor: ConsolePerson,
    /// The vault whose requests wait.
    vault: String,
    wallet: String,
    waiting: Vec<String>,
}

impl PagePeople {
    /// Enrols them, and has so many requests wait for the approver.
    pub async fn make(service: &BenchService, port: u16, pending: u64) -> Self {
        let cluster = &service.cluster;
        let enrol = async |role: &str| ConsolePerson::enrol(cluster, port, role, role).await;
        let approver = enrol("approver").await;
        let rule = format!("approver={}", approver.line());
        let vault = cluster.create_vault_with("waiting", &["--approver", &rule]);
        let wallet = cluster.api.wallet(&vault, "NETWORK_TYPE_EVM").await;
        let from = wallet.as_str();
        let made = futures::stream::iter(0..pending).map(|number| async move {
            let message = json!({"notes": "the invoice of this month", "evmMessage": {
                "chainId": "1", "from": from, "content": base64(format!("{number:0200}"))}});
            let answer = service.call("createSigningRequest", &message).await;
            let uuid = answer["signingRequest"]["uuid"].as_str().unwrap();
            uuid.to_owned()
        });
        let waiting: Vec<String> = made.buffer_unordered(64).collect().await;
        Self {
            approver,
            operator: enrol("operator").await,
            auditor: enrol("auditor").await,
            vault,
            wallet,
            waiting,
        }
    }
}

/// The hash of a transaction in the middle of the store: every other request is a payment.
async fn old_hash(service: &BenchService, size: ServiceSize) -> String {
    let middle = size.requests / 2;
    for number in [middle, middle + 1] {
        let uuid = copies::request_id(service.first_ms, number).to_string();
        let asked = json!({"uuid": uuid});
        let details = service.call("getSigningRequestDetails", &asked).await;
        let hash = details["signingRequest"]["txHash"].as_str().unwrap();
        if !hash.is_empty() {
            return hash.to_owned();
        }
    }
    panic!("no transaction in the middle of the store");
}

/// Every page, with who opens it.
async fn pages<'a>(
    people: &'a PagePeople,
    service: &BenchService,
    size: ServiceSize,
) -> Vec<(&'a ConsolePerson, &'static str, String)> {
    let (main, batch, payer) = (&service.vaults[0], &service.batches[0], &service.payers[0]);
    let old = copies::request_id(service.first_ms, size.requests / 2);
    let PagePeople {
        vault,
        wallet,
        waiting,
        ..
    } = people;
    let chosen: Vec<_> = waiting.iter().take(TOGETHER).collect();
    let chosen: Vec<_> = chosen.iter().map(|uuid| format!("uuid={uuid}")).collect();
    let history = format!("/history?vault={main}");
    let hash = old_hash(service, size).await;
    // A page of what this wallet has signed begins in the middle of the store.
    let place = format!(
        "{}-{old}",
        copies::time_ms(service.first_ms, size.requests / 2)
    );
    let of_approver = [
        ("inbox", "/".to_owned()),
        ("all that waits", "/?view=all".to_owned()),
        ("a finished request", format!("/requests/{old}")),
        ("a request that waits", format!("/requests/{}", waiting[0])),
        (
            "100 requests that wait",
            format!("/requests?{}", chosen.join("&")),
        ),
        ("history", "/history".to_owned()),
        ("history of a vault", history.clone()),
        (
            "history of what waits",
            format!("/history?vault={vault}&status=pending"),
        ),
        // Of a vault in which nothing has the status: the most that one page looks through.
        ("pending", format!("{history}&status=pending")),
        ("succeeded", format!("{history}&status=succeeded")),
        ("failed", format!("{history}&status=failed")),
        ("search for a uuid", format!("{history}&search={old}")),
        ("search for a hash", format!("{history}&search={hash}")),
        (
            "search for a hash in every vault",
            format!("/history?vault=every&search={hash}"),
        ),
        ("search for a wallet", format!("{history}&search={payer}")),
        (
            "search for a wallet, in the middle",
            format!("{history}&search={payer}&before={place}"),
        ),
        (
            "search for a wallet in every vault",
            format!("/history?vault=every&search={payer}"),
        ),
        (
            "texts with an address, the second page",
            format!("{history}&search={payer}&page=2"),
        ),
        (
            "search for a word of notes",
            format!("{history}&search=rent"),
        ),
        (
            "search for what is nowhere",
            format!("{history}&search=nowhere-at-all"),
        ),
        (
            "failed ones with a word of notes",
            format!("{history}&search=rent&status=failed"),
        ),
        ("vaults", "/vaults".to_owned()),
        ("a vault", format!("/vaults/{main}")),
        ("a wallet", format!("/wallets/{payer}")),
        ("a wallet of what waits", format!("/wallets/{wallet}")),
        ("batch payments", "/batches".to_owned()),
        ("a batch payment", format!("/batches/{batch}")),
        ("new batch payment", format!("/batches/new?vault={main}")),
        ("account", "/account".to_owned()),
    ];
    let of_operator =
        ["nodes", "tokens", "users", "settings"].map(|name| (name, format!("/{name}")));
    let of_auditor = [
        (
            "audit log of the service",
            "/audit?chain=service".to_owned(),
        ),
        ("audit log of a vault", format!("/audit?chain={main}")),
        (
            "check of the audit log of the service",
            "/audit/verify?chain=service".to_owned(),
        ),
        (
            "check of the audit log of a vault",
            format!("/audit/verify?chain={main}"),
        ),
    ];
    let mut all = Vec::new();
    all.extend(of_approver.map(|(name, path)| (&people.approver, name, path)));
    all.extend(of_operator.map(|(name, path)| (&people.operator, name, path)));
    all.extend(of_auditor.map(|(name, path)| (&people.auditor, name, path)));
    all
}

/// Opens every page, and prints how long each takes.
pub async fn measure(service: &mut BenchService, size: ServiceSize) {
    let mut people = service.pages.take().unwrap();
    // Sessions may have ended while the store was filled.
    for person in [
        &mut people.approver,
        &mut people.operator,
        &mut people.auditor,
    ] {
        person.sign_in().await;
    }
    let mut table = GoalTable::default();
    for (person, name, path) in pages(&people, service, size).await {
        let took = open(person, &path).await;
        for percent in [50, 99] {
            let name = format!("{name}, p{percent}");
            table.add(&name, percentile(&took, percent), MOST_MS, "ms");
        }
    }
    let request = format!("/requests/{}", people.waiting[0]);
    let paths = ["/", "/history", &request];
    tokio::task::block_in_place(|| first_paint::measure(&people.approver, &paths, &mut table));
    println!(
        "{} finished requests, {} wallets, {} requests that wait for people; each page {TIMES} times",
        size.requests, size.wallets, size.pending
    );
    table.print();
}

/// Opens a page at a fixed rate: the milliseconds, in ascending order, from when each time should have begun.
async fn open(person: &ConsolePerson, path: &str) -> Vec<f64> {
    // The first time fills caches.
    let answer = person.page(path).send().await.unwrap();
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    assert_eq!(status.as_u16(), 200, "{path}: {text}");
    let first = Instant::now() + EVERY;
    let mut took = Vec::new();
    for number in 0..TIMES {
        let due = first + EVERY * number;
        tokio::time::sleep_until(due.into()).await;
        let answer = person.page(path).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 200, "{path}");
        answer.bytes().await.unwrap();
        took.push(due.elapsed().as_secs_f64() * 1e3);
    }
    took.sort_by(f64::total_cmp);
    took
}
