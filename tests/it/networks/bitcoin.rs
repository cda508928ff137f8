//! Bitcoin on a real node (regtest). Scripts and signatures do not know which chain they are on;
//! only the addresses of that chain are written otherwise.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::*;

const BITCOIN: &str = "NETWORK_TYPE_BITCOIN";
/// Others' addresses: P2PKH, and P2WSH of BIP-173.
const P2PKH: &str = "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa";
const P2WSH: &str = "bc1qrp33g0q5c5txsp9arysrx4k6zdkfs4nce4xj0gdcccefvpysxf3qccfmv3";
/// Bytes of the scripts of P2WPKH, P2PKH and P2WSH.
const OWN: u64 = 22;
const HASH: u64 = 25;
const LONG: u64 = 34;

/// The fee in satoshi at a rate in sat/vB: each signature counts 72 bytes, whatever it has.
fn fee(rate: u64, inputs: u64, scripts: &[u64]) -> u64 {
    let outputs: u64 = scripts.iter().map(|length| 4 * (8 + 1 + length)).sum();
    rate * (42 + 272 * inputs + outputs).div_ceil(4)
}

async fn start(folder: &std::path::Path) -> (Bitcoind, DevProcess, String) {
    let node = Bitcoind::start(folder).await;
    let chains = [format!("bitcoin={}", node.url)];
    let (dev, from) = dev_with_wallet(folder, &chains, BITCOIN).await;
    (node, dev, from)
}

fn payment(from: &str, to: &str, satoshi: u64, rate: u64) -> Value {
    json!({"btcSendNative": {"from": from, "to": to, "amount": satoshi.to_string(),
        "networkFee": rate}})
}

/// getBalance. A node that hears of an address for the first time may take longer than the call
/// waits, on a busy machine; then it says so.
async fn coins(api: &ApiClient, address: &str) -> u64 {
    let question = json!({"networkType": BITCOIN, "walletAddress": address});
    eventually("the node knows the address", async || {
        let (status, answer) = api.post("getBalance", question.clone()).await;
        let reason = answer["error"]["message"].as_str().unwrap_or_default();
        if status == 503 && reason.contains("for the first time") {
            return None;
        }
        assert_eq!(status, 200, "{answer}");
        Some(answer["balance"].as_str().unwrap().parse().unwrap())
    })
    .await
}

fn hash(outcome: &Value) -> String {
    outcome["txHash"].as_str().unwrap().to_owned()
}

/// What a mined transaction pays, as scripts and satoshi, in its order.
fn paid(transaction: &Value) -> Vec<(String, u64)> {
    let outputs = transaction["vout"].as_array().unwrap().iter();
    outputs
        .map(|output| {
            let script = output["scriptPubKey"]["hex"].as_str().unwrap();
            (script.to_owned(), satoshi(&output["value"]))
        })
        .collect()
}

/// What a mined transaction spends, `txid:vout`.
fn spent(transaction: &Value) -> Vec<String> {
    let inputs = transaction["vin"].as_array().unwrap().iter();
    inputs
        .map(|input| format!("{}:{}", input["txid"].as_str().unwrap(), input["vout"]))
        .collect()
}

#[tokio::test]
async fn bitcoin__should_move_the_exact_amount_for_exactly_the_fee() {
    let folder = tempfile::tempdir().unwrap();
    let (node, dev, from) = start(folder.path()).await;
    let api = &dev.api;
    let to = api.wallet(&dev.vault, BITCOIN).await;
    for satoshi in [3_000_000, 2_000_000, 1_000_000] {
        node.fund(&from, satoshi).await;
    }
    assert_eq!(coins(api, &from).await, 6_000_000);
    assert_eq!(coins(api, &to).await, 0);
    let script = |address: &str| Bitcoind::regtest_address(address).script;

    // One input, and change, which is there at once; what others get is theirs once it is mined.
    let first = api.sign(payment(&from, &to, 2_500_000, 7)).await;
    let change = 500_000 - fee(7, 1, &[OWN, OWN]);
    assert_eq!(coins(api, &from).await, 3_000_000 + change);
    assert_eq!(coins(api, &to).await, 0);

    // All three, with the change that is in no block yet.
    let second = api.sign(payment(&from, P2PKH, 3_100_000, 3)).await;
    let left = 3_000_000 + change - 3_100_000 - fee(3, 3, &[HASH, OWN]);

    // No change: it would be dust, and goes to the fee.
    let dust = 293;
    let whole_fee = fee(11, 1, &[LONG]) + dust;
    let third = api.sign(payment(&from, P2WSH, left - whole_fee, 11)).await;
    assert_eq!(coins(api, &from).await, 0);

    let mined = node.mine_one().await;
    assert_eq!(mined.len(), 3);
    let (own, to_script) = (script(&from), script(&to));
    for (outcome, inputs, outputs, fee) in [
        (
            &first,
            1,
            vec![(to_script, 2_500_000), (own.clone(), change)],
            fee(7, 1, &[OWN, OWN]),
        ),
        (
            &second,
            3,
            vec![(script(P2PKH), 3_100_000), (own, left)],
            fee(3, 3, &[HASH, OWN]),
        ),
        (
            &third,
            1,
            vec![(script(P2WSH), left - whole_fee)],
            whole_fee,
        ),
    ] {
        let transaction = &mined[&hash(outcome)];
        assert_eq!(spent(transaction).len(), inputs, "{transaction}");
        assert_eq!(paid(transaction), outputs, "{transaction}");
        assert_eq!(satoshi(&transaction["fee"]), fee, "{transaction}");
    }
    assert_eq!(coins(api, &to).await, 2_500_000);

    let (code, reason) = refusal(api, payment(&from, &to, 1_000, 1)).await;
    assert_eq!(code, INSUFFICIENT_FUNDS, "{reason}");
}

#[tokio::test]
async fn bitcoin_that_is_not_broadcast__should_be_what_the_node_would_take() {
    let folder = tempfile::tempdir().unwrap();
    let (node, dev, from) = start(folder.path()).await;
    let api = &dev.api;
    let to = api.wallet(&dev.vault, BITCOIN).await;
    for _ in 0..2 {
        node.fund(&from, 1_000_000).await;
    }
    let mut body = payment(&from, &to, 1_500_000, 2);
    body["broadcastTx"] = json!(false);
    let outcome = api.sign(body).await;
    let signed = outcome["signedTransaction"].as_str().unwrap();
    assert_eq!(node.call("getrawmempool", json!([])).await, json!([]));
    assert_eq!(coins(api, &from).await, 2_000_000);

    let verdict = node.call("testmempoolaccept", json!([[signed]])).await[0].clone();
    assert_eq!(verdict["allowed"], true, "{verdict}");
    assert_eq!(verdict["txid"], outcome["txHash"]);
    let fee = fee(2, 2, &[OWN, OWN]);
    assert_eq!(satoshi(&verdict["fees"]["base"]), fee);

    // What it spends is not spent again. The next payment waits for its change.
    let next = api.create(payment(&from, P2PKH, 1_000, 2)).await;
    node.call("sendrawtransaction", json!([signed])).await;
    let next = api.execute(&next).await;
    assert_eq!(next["error"], Value::Null, "{next}");
    let mined = node.mine_one().await;
    assert_eq!(mined.len(), 2);
    let change = format!("{}:1", hash(&outcome));
    assert_eq!(spent(&mined[&hash(&next)]), [change]);
    assert_eq!(coins(api, &to).await, 1_500_000);

    // Given up, it leaves what it spends to the next one.
    let mut body = payment(&from, &to, 10_000, 2);
    body["broadcastTx"] = json!(false);
    let uuid = api.create(body).await;
    let given_up = api.execute(&uuid).await;
    assert_eq!(given_up["error"], Value::Null, "{given_up}");
    api.ok("rejectSigningRequest", json!({"uuid": uuid})).await;
    let last = api.sign(payment(&from, &to, 20_000, 2)).await;
    let mined = node.mine_one().await;
    assert_eq!(mined.len(), 1);
    let change = format!("{}:1", hash(&next));
    assert_eq!(spent(&mined[&hash(&last)]), [change]);
    assert_eq!(coins(api, &to).await, 1_520_000);
}

#[tokio::test]
async fn bitcoin_payments_at_once__should_never_spend_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let (node, dev, from) = start(folder.path()).await;
    let api = &dev.api;
    let to = api.wallet(&dev.vault, BITCOIN).await;
    for satoshi in [3_000_000u64, 2_000_000, 1_000_000] {
        node.fund(&from, satoshi).await;
    }
    // More than there are outputs: some wait for the change of others.
    let amounts = [800_000u64, 800_000, 700_001, 600_002, 500_003, 400_004];
    let sends = amounts.map(|amount| {
        let (api, body) = (api.clone(), payment(&from, &to, amount, 5));
        async move { hash(&api.sign(body).await) }
    });
    let hashes = futures::future::join_all(sends).await;
    let mined = node.mine_one().await;
    assert_eq!(
        mined.keys().collect::<BTreeSet<_>>(),
        hashes.iter().collect()
    );
    let inputs: Vec<String> = mined.values().flat_map(spent).collect();
    let distinct: BTreeSet<&String> = inputs.iter().collect();
    assert_eq!(distinct.len(), inputs.len(), "{inputs:?}");
    let to_script = Bitcoind::regtest_address(&to).script;
    for (hash, amount) in hashes.iter().zip(amounts) {
        assert_eq!(paid(&mined[hash])[0], (to_script.clone(), amount));
    }
    let fees: u64 = mined
        .values()
        .map(|transaction| satoshi(&transaction["fee"]))
        .sum();
    let sent: u64 = amounts.iter().sum();
    assert_eq!(node.balance(&to).await, sent);
    assert_eq!(node.balance(&from).await, 6_000_000 - sent - fees);
    let left = coins(api, &from).await;
    assert_eq!(left, 6_000_000 - sent - fees);
}

/// What waits, by txid.
async fn mempool(node: &Bitcoind) -> Vec<String> {
    let waiting = node.call("getrawmempool", json!([])).await;
    serde_json::from_value(waiting).unwrap()
}

#[tokio::test]
async fn bitcoin_payments__should_be_replaced_and_lifted_by_those_that_name_outputs() {
    let folder = tempfile::tempdir().unwrap();
    let (node, dev, from) = start(folder.path()).await;
    let api = &dev.api;
    let to = api.wallet(&dev.vault, BITCOIN).await;
    node.fund(&from, 3_000_000).await;
    let uuid = api.create(payment(&from, &to, 1_000_000, 3)).await;
    let first = api.execute(&uuid).await;
    assert_eq!(first["error"], Value::Null, "{first}");
    let waits = node
        .call("getrawtransaction", json!([hash(&first), true]))
        .await;
    let inputs = spent(&waits);

    // A node on regtest names what its mempool takes: the old fee decides.
    let replace = async |uuid: &str, action: &str| {
        let asked = json!({"uuid": uuid, "action": action});
        let made = api.ok("replaceTransaction", asked).await;
        let uuid = made["signingRequest"]["uuid"].as_str().unwrap().to_owned();
        let outcome = api.execute(&uuid).await;
        assert_eq!(outcome["error"], Value::Null, "{outcome}");
        outcome
    };
    let second = replace(&uuid, "ACTION_SPEED_UP").await;
    assert_eq!(mempool(&node).await, [hash(&second)]);
    let waits = node
        .call("getrawtransaction", json!([hash(&second), true]))
        .await;
    assert_eq!(spent(&waits), inputs);
    // All back to the wallet.
    let third = replace(&uuid, "ACTION_CANCEL").await;
    assert_eq!(mempool(&node).await, [hash(&third)]);
    let fee_of = async |hash: String| {
        let entry = node.call("getmempoolentry", json!([hash])).await;
        satoshi(&entry["fees"]["base"])
    };
    assert_eq!(
        fee_of(hash(&third)).await,
        fee(3, 1, &[OWN, OWN]) + fee(1, 1, &[OWN, OWN]) + fee(1, 1, &[OWN])
    );

    // Another wallet's payment at 10 sat/vB, and a child that pays 50 for both.
    let own = Bitcoind::regtest_address(&from);
    let parent = node
        .call("sendtoaddress", json!([own.address, "0.01"]))
        .await;
    let waits = node.call("getrawtransaction", json!([parent, true])).await;
    let outputs = paid(&waits);
    let vout = outputs.iter().position(|(script, _)| *script == own.script);
    let name = format!("{}:{}", parent.as_str().unwrap(), vout.unwrap());
    let mut body = payment(&from, &to, 500_000, 50);
    body["btcSendNative"]["inputs"] = json!([name]);
    let child = api.sign(body).await;
    let entry = node.call("getmempoolentry", json!([hash(&child)])).await;
    assert_eq!(entry["ancestorcount"], 2);
    let fees = satoshi(&entry["fees"]["ancestor"]) as f64;
    let rate = fees / entry["ancestorsize"].as_f64().unwrap();
    assert!((50.0..50.5).contains(&rate), "{rate} sat/vB");

    let mined = node.mine_one().await;
    let expected = [
        hash(&third),
        hash(&child),
        parent.as_str().unwrap().to_owned(),
    ];
    assert_eq!(
        mined.keys().cloned().collect::<BTreeSet<_>>(),
        BTreeSet::from(expected)
    );
    let back = &mined[&hash(&third)];
    let left = 3_000_000 - satoshi(&back["fee"]);
    assert_eq!(paid(back), [(own.script, left)]);
    assert_eq!(coins(api, &to).await, 500_000);

    // What is in a block is not replaced.
    let again = json!({"btcSendNative": {"from": from, "to": to, "amount": "1000000",
        "feeLevel": "FEE_LEVEL_FAST", "inputs": inputs}});
    let (_, reason) = refusal(api, again).await;
    assert!(
        reason.contains("inputs[0]") && reason.contains("is already spent"),
        "{reason}"
    );
}

#[tokio::test]
async fn bitcoin_payments__should_be_made_once_whenever_the_service_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let (node, mut dev, from) = start(folder.path()).await;
    let to = dev.api.wallet(&dev.vault, BITCOIN).await;
    for _ in 0..3 {
        node.fund(&from, 1_000_000).await;
    }
    let mut hashes = BTreeMap::new();
    // From "just accepted" to "sent".
    for (amount, pause_ms) in [
        (10_001u64, 2),
        (20_002, 60),
        (30_003, 250),
        (40_004, 700),
        (50_005, 3_000),
    ] {
        let body = payment(&from, &to, amount, 4);
        let key = format!("payment {amount}");
        let uuid = create_once(&dev.api, &key, &body).await;
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        dev.process.kill();
        dev.restart().await;
        // A client that has no answer asks again.
        assert_eq!(create_once(&dev.api, &key, &body).await, uuid);
        let outcome = dev.api.execute(&uuid).await;
        assert_eq!(outcome["error"], Value::Null, "{outcome}");
        hashes.insert(hash(&outcome), amount);
        assert_eq!(dev.api.execute(&uuid).await["txHash"], outcome["txHash"]);
    }
    let mined = node.mine_one().await;
    assert_eq!(
        mined.keys().collect::<Vec<_>>(),
        hashes.keys().collect::<Vec<_>>()
    );
    let to_script = Bitcoind::regtest_address(&to).script;
    for (hash, amount) in &hashes {
        assert_eq!(paid(&mined[hash])[0], (to_script.clone(), *amount));
    }
    let sent: u64 = hashes.values().sum();
    assert_eq!(node.balance(&to).await, sent);
    // Also when it starts again after all of it.
    dev.process.kill();
    dev.restart().await;
    assert_eq!(coins(&dev.api, &to).await, sent);
    assert_eq!(node.call("getrawmempool", json!([])).await, json!([]));
}

/// Creates a request with an idempotency key, and gives its uuid.
async fn create_once(api: &ApiClient, key: &str, body: &Value) -> String {
    let response = api
        .raw("/v1/createSigningRequest", |request| {
            request
                .header("x-mtoken", &api.token)
                .header("idempotency-key", key)
                .json(body)
        })
        .await;
    let answer: Value = response.json().await.unwrap();
    let uuid = answer["signingRequest"]["uuid"].as_str();
    uuid.unwrap_or_else(|| panic!("{answer}")).to_owned()
}
