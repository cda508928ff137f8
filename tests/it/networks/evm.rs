//! EVM against a real node, anvil, behind an address with two faces.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use axum::{Json, Router, extract::State, http::StatusCode, response::IntoResponse};

use super::*;

const EVM: &str = "NETWORK_TYPE_EVM";
pub(super) const TO: &str = "0x00000000000000000000000000000000C0FFEE09";

/// A load balancer before anvil: transactions go to a node that takes them and whose answers are lost, and
/// questions about them to one that is behind.
struct TwoFaced {
    target: String,
    http: reqwest::Client,
    /// Hashes are not known.
    is_behind: AtomicBool,
    /// Transactions that came.
    sends: AtomicUsize,
    /// How often it said that it does not know a transaction.
    denials: AtomicUsize,
}

impl TwoFaced {
    /// Starts before a node. Gives the address too.
    async fn start(target: &str) -> (Arc<Self>, String) {
        let proxy = Arc::new(Self {
            target: target.to_owned(),
            http: http_client(),
            is_behind: AtomicBool::new(true),
            sends: AtomicUsize::new(0),
            denials: AtomicUsize::new(0),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&proxy));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        (proxy, url)
    }
}

async fn answer(
    State(proxy): State<Arc<TwoFaced>>,
    Json(request): Json<Value>,
) -> axum::response::Response {
    let is_behind = proxy.is_behind.load(Ordering::SeqCst);
    let hides = |call: &Value| {
        let method = call["method"].as_str().unwrap_or_default();
        is_behind
            && matches!(
                method,
                "eth_getTransactionByHash" | "eth_getTransactionReceipt"
            )
    };
    let calls = match &request {
        Value::Array(calls) => calls.as_slice(),
        call => std::slice::from_ref(call),
    };
    let said = proxy.http.post(&proxy.target).json(&request).send().await;
    let mut said: Value = said.unwrap().json().await.unwrap();
    if calls.iter().any(hides) {
        proxy.denials.fetch_add(1, Ordering::SeqCst);
        let hidden: Vec<&Value> = calls.iter().filter(|call| hides(call)).collect();
        let answers = match &mut said {
            Value::Array(answers) => answers.as_mut_slice(),
            answer => std::slice::from_mut(answer),
        };
        for answer in answers {
            if hidden.iter().any(|call| call["id"] == answer["id"]) {
                answer["result"] = Value::Null;
            }
        }
    }
    if request["method"] == "eth_sendRawTransaction"
        && proxy.sends.fetch_add(1, Ordering::SeqCst) == 0
    {
        return StatusCode::BAD_GATEWAY.into_response();
    }
    Json(said).into_response()
}

#[tokio::test]
async fn evm_payments__should_never_fail_although_they_are_mined() {
    for is_final in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let anvil = Anvil::start(folder.path(), 31337).await;
        let (proxy, url) = TwoFaced::start(&anvil.url).await;
        let (dev, from) = dev_that_can_pay(folder.path(), &anvil, &url).await;
        let uuid = dev.api.create(payment(&from)).await;
        eventually("it was sent again and asked for", async || {
            let (sends, denials) = (&proxy.sends, &proxy.denials);
            (sends.load(Ordering::SeqCst) >= 2 && denials.load(Ordering::SeqCst) >= 4).then_some(())
        })
        .await;
        assert_eq!(anvil.balance(TO).await, 5, "it is mined");
        assert_eq!(dev.api.details(&uuid).await["status"], "STATUS_PENDING");
        if is_final {
            // The hash is still not known; the final block has it.
            anvil.call("anvil_mine", json!(["0x100"])).await;
        } else {
            proxy.is_behind.store(false, Ordering::SeqCst);
        }
        let hash = sent_hash(&dev, &uuid).await;
        assert_eq!(anvil.receipt(&hash).await["status"], "0x1");
        assert_eq!(anvil.balance(TO).await, 5);
    }
}

/// A `covault dev` whose chain is at this address, and a wallet in it that can pay.
async fn dev_that_can_pay(
    folder: &std::path::Path,
    anvil: &Anvil,
    url: &str,
) -> (DevProcess, String) {
    let chain = format!("31337={url}");
    let (dev, from) = dev_with_wallet(folder, &[chain], EVM).await;
    anvil.fund(&from, 1_000_000_000_000_000_000).await;
    (dev, from)
}

/// Five wei for a recipient that has nothing yet.
pub(super) fn payment(from: &str) -> Value {
    json!({"evmSendNative": {"chainId": "31337", "from": from, "to": TO, "value": "5"}})
}

/// The uuid of a request whose transaction was sent, and its hash.
pub(super) async fn sent(dev: &DevProcess, payment: Value) -> (String, String) {
    let uuid = dev.api.create(payment).await;
    let hash = sent_hash(dev, &uuid).await;
    (uuid, hash)
}

/// The hash of the transaction of a request, once it was sent.
pub(super) async fn sent_hash(dev: &DevProcess, uuid: &str) -> String {
    let outcome = dev.api.execute(uuid).await;
    assert_eq!(outcome["error"], Value::Null, "{outcome}");
    outcome["txHash"].as_str().unwrap().to_owned()
}

/// What the details of a request say of its transaction.
async fn state(dev: &DevProcess, uuid: &str) -> Value {
    dev.api.details(uuid).await["transactionState"].clone()
}

async fn until_state(dev: &DevProcess, uuid: &str, status: &str) -> Value {
    eventually(&format!("it is {status}"), async || {
        let state = state(dev, uuid).await;
        (state["status"] == status).then_some(state)
    })
    .await
}

#[tokio::test]
async fn evm_payments__should_be_followed_through_reorganisations_until_they_are_final() {
    let folder = tempfile::tempdir().unwrap();
    let anvil = Anvil::start(folder.path(), 31337).await;
    let (dev, from) = dev_that_can_pay(folder.path(), &anvil, &anvil.url).await;
    anvil.call("evm_setAutomine", json!([false])).await;
    let (uuid, hash) = sent(&dev, payment(&from)).await;
    assert_eq!(
        state(&dev, &uuid).await,
        json!({"status": "STATUS_PENDING", "block": null, "success": null, "replacedBy": "",
            "parts": []})
    );
    anvil.call("anvil_mine", json!(["0x1"])).await;
    let mined = until_state(&dev, &uuid, "STATUS_MINED").await;
    assert_eq!(mined["success"], true, "{mined}");

    // Another chain of blocks takes over, and no node has the transaction any longer.
    anvil.call("anvil_reorg", json!([1, []])).await;
    anvil.call("anvil_dropTransaction", json!([hash])).await;
    assert_eq!(anvil.balance(TO).await, 0);
    until_state(&dev, &uuid, "STATUS_PENDING").await;
    let warning = "the chain was reorganised: a transaction is no longer in a block";
    let log = dev.process.log();
    let lines = log.lines().filter(|line| line.contains(warning));
    let lines: Vec<_> = lines.filter(|line| line.contains(&uuid)).collect();
    assert!(
        matches!(*lines, [line] if line.contains("WARN")),
        "{lines:?}"
    );
    anvil.call("evm_setAutomine", json!([true])).await;
    // It is sent again although the wallet has no other request.
    until_state(&dev, &uuid, "STATUS_MINED").await;
    assert_eq!(anvil.balance(TO).await, 5);
    anvil.call("anvil_mine", json!(["0x80"])).await;
    let done = until_state(&dev, &uuid, "STATUS_FINAL").await;
    assert_eq!(done["success"], true, "{done}");
    assert_eq!(dev.api.details(&uuid).await["txHash"], hash);
    assert_eq!(anvil.balance(TO).await, 5);
}

#[tokio::test]
async fn evm_payments__should_come_although_no_request_has_a_number_before_theirs() {
    let folder = tempfile::tempdir().unwrap();
    let anvil = Anvil::start(folder.path(), 31337).await;
    let (dev, from) = dev_that_can_pay(folder.path(), &anvil, &anvil.url).await;
    let mut later = payment(&from);
    later["evmSendNative"]["nonce"] = json!("1");
    let (uuid, _) = sent(&dev, later).await;
    assert_eq!(anvil.balance(TO).await, 0);
    until_state(&dev, &uuid, "STATUS_MINED").await;
    assert_eq!(anvil.balance(TO).await, 5);
    let count = anvil
        .call("eth_getTransactionCount", json!([from, "latest"]))
        .await;
    assert_eq!(count, "0x2");
}

/// Replaces the transaction of a request. Gives the uuid of the request that does, and its hash.
async fn replace(dev: &DevProcess, uuid: &str, action: &str) -> (String, String) {
    let wanted = json!({"uuid": uuid, "action": action});
    let made = dev.api.ok("replaceTransaction", wanted).await["signingRequest"].clone();
    assert_eq!(made["replacesUuid"], uuid, "{made}");
    let made = made["uuid"].as_str().unwrap().to_owned();
    let hash = sent_hash(dev, &made).await;
    (made, hash)
}

/// Mines one block, and says which of the transactions it has.
async fn mined_of(anvil: &Anvil, hashes: &[&str]) -> Vec<usize> {
    anvil.call("anvil_mine", json!(["0x1"])).await;
    let block = anvil
        .call("eth_getBlockByNumber", json!(["latest", false]))
        .await;
    let mined = block["transactions"].as_array().unwrap();
    let is_in = |index: &usize| mined.contains(&json!(hashes[*index]));
    (0..hashes.len()).filter(is_in).collect()
}

#[tokio::test]
async fn evm_payments__should_be_sped_up_and_cancelled_with_one_of_all_in_the_chain() {
    for cancelled in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let anvil = Anvil::start(folder.path(), 31337).await;
        let (dev, from) = dev_that_can_pay(folder.path(), &anvil, &anvil.url).await;
        anvil.call("evm_setAutomine", json!([false])).await;
        let (first, first_hash) = sent(&dev, payment(&from)).await;
        let (second, second_hash) = replace(&dev, &first, "ACTION_SPEED_UP").await;
        let mut all = vec![(first, first_hash), (second.clone(), second_hash)];
        if cancelled {
            all.push(replace(&dev, &second, "ACTION_CANCEL").await);
        }
        let hashes: Vec<&str> = all.iter().map(|(_, hash)| hash.as_str()).collect();
        let last = all.len() - 1;
        assert_eq!(mined_of(&anvil, &hashes).await, [last], "one alone is in");
        assert_eq!(anvil.balance(TO).await, if cancelled { 0 } else { 5 });
        let (uuid, hash) = &all[last];
        until_state(&dev, uuid, "STATUS_MINED").await;
        // What has been mined is not replaced.
        let late = json!({"uuid": uuid, "action": "ACTION_CANCEL"});
        let (status, answer) = dev.api.post("replaceTransaction", late).await;
        assert_eq!(status, 409, "{answer}");
        anvil.call("anvil_mine", json!(["0x80"])).await;
        let done = until_state(&dev, uuid, "STATUS_FINAL").await;
        assert_eq!(done["success"], true, "{done}");
        assert_eq!(anvil.balance(TO).await, if cancelled { 0 } else { 5 });
        // It counts when the nodes have said so for three minutes; actors/tests does not wait for that.
        if std::env::var_os("COVAULT_LONG_SUITE").is_some() {
            for (replaced, _) in &all[..last] {
                let mut shown = state(&dev, replaced).await;
                for _ in 0..300 {
                    if shown["status"] == "STATUS_REPLACED" {
                        break;
                    }
                    assert_eq!(shown["status"], "STATUS_PENDING", "{shown}");
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                    shown = state(&dev, replaced).await;
                }
                assert_eq!(shown["status"], "STATUS_REPLACED", "{shown}");
                assert_eq!(shown["replacedBy"], hash.as_str(), "{shown}");
            }
        }
        for (index, (uuid, hash)) in all.iter().enumerate() {
            let shown = dev.api.details(uuid).await;
            assert_eq!(shown["txHash"], hash.as_str());
            let later: Vec<_> = all[index + 1..].iter().map(|(uuid, _)| uuid).collect();
            assert_eq!(shown["replacedByUuids"], json!(later), "{shown}");
        }
    }
}

#[tokio::test]
async fn evm_payments__should_be_sped_up_by_the_policy_of_their_chain() {
    let folder = tempfile::tempdir().unwrap();
    let anvil = Anvil::start(folder.path(), 31337).await;
    let chain = anvil.chain_argument();
    let policy = [
        ("COVAULT_CHAINS_EVM_31337_SPEED_UP_AFTER_BLOCKS", "3"),
        (
            "COVAULT_CHAINS_EVM_31337_SPEED_UP_MOST_FEE",
            "100000000000000000",
        ),
    ];
    let data = folder.path().join("dev");
    let dev = DevProcess::start_with(&data, &["--chain", &chain], &policy).await;
    let from = dev.api.wallet(&dev.vault, EVM).await;
    anvil.fund(&from, 1_000_000_000_000_000_000).await;
    anvil.call("evm_setAutomine", json!([false])).await;
    let (first, first_hash) = sent(&dev, payment(&from)).await;
    // Blocks whose base fee is above all that it offers.
    let mut blocks = 0;
    let shown = loop {
        let shown = dev.api.details(&first).await;
        if shown["replacedByUuids"] != json!([]) {
            break shown;
        }
        assert!(blocks < 120, "nobody speeds it up: {shown}");
        let base_fee = json!(["0x174876e800"]);
        anvil
            .call("anvil_setNextBlockBaseFeePerGas", base_fee)
            .await;
        anvil.call("anvil_mine", json!(["0x1"])).await;
        assert_eq!(anvil.balance(TO).await, 0, "no block takes it");
        blocks += 1;
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    };
    assert!(blocks >= 3, "{blocks}");
    let second = shown["replacedByUuids"][0].as_str().unwrap().to_owned();
    let hashes = [first_hash, sent_hash(&dev, &second).await];
    let hashes: Vec<&str> = hashes.iter().map(String::as_str).collect();
    assert_eq!(shown["txHash"], hashes[0], "{shown}");
    assert_eq!(mined_of(&anvil, &hashes).await, [1], "the later one is in");
    assert_eq!(anvil.balance(TO).await, 5);
    anvil.call("anvil_mine", json!(["0x80"])).await;
    let done = until_state(&dev, &second, "STATUS_FINAL").await;
    assert_eq!(done["success"], true, "{done}");
    let made = dev.api.details(&second).await;
    assert_eq!(made["replacesUuid"], first.as_str(), "{made}");
    let notes = made["notes"].as_str().unwrap();
    assert!(notes.contains("31337.speed_up_after_blocks"), "{notes}");
    assert_eq!(made["replacedByUuids"], json!([]), "{made}");
}
