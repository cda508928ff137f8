//! Stellar, against a stub that checks every transaction with Stellar's own SDK.

use super::*;

const STELLAR: &str = "NETWORK_TYPE_STELLAR";
/// What the network takes for one operation, whatever was offered.
const FEE: u128 = 100;

/// Stroops and the last sequence number of an account.
async fn account(node: &ChainNode, address: &str) -> (u128, u64) {
    let found = node.call("test_account", json!({"address": address})).await;
    (
        found["balance"].as_str().unwrap().parse().unwrap(),
        found["sequence"].as_str().unwrap().parse().unwrap(),
    )
}

async fn stroops(node: &ChainNode, address: &str) -> u128 {
    account(node, address).await.0
}

async fn fund(node: &ChainNode, address: &str, stroops: u128) {
    let funds = json!({"address": address, "amount": stroops.to_string()});
    node.call("test_fund", funds).await;
}

/// What a ledger has of a transaction.
async fn applied(node: &ChainNode, outcome: &Value) -> Value {
    let applied = node
        .call("test_applied", json!({"hash": outcome["txHash"]}))
        .await;
    assert!(applied.is_object(), "{outcome}");
    applied
}

#[tokio::test]
async fn stellar__should_move_lumens_and_assets_by_the_exact_amount() {
    let folder = tempfile::tempdir().unwrap();
    let node = ChainNode::start(folder.path(), "stellar").await;
    let chains = [format!("stellar={}", node.url)];
    let (dev, from) = dev_with_wallet(folder.path(), &chains, STELLAR).await;
    let api = &dev.api;
    let to = api.wallet(&dev.vault, STELLAR).await;
    let send = |value: &str| json!({"stellarSendNative": {"from": from, "to": to, "value": value, "memo": "rent"}});

    // An account begins to exist with its first payment.
    assert_eq!(balance(api, STELLAR, &from, None).await, 0);
    let (code, reason) = refusal(api, send("2.5")).await;
    assert_eq!(code, INSUFFICIENT_FUNDS);
    assert!(reason.contains("does not exist"), "{reason}");
    let mut left: u128 = 10_000_000_000;
    fund(&node, &from, left).await;
    assert_eq!(balance(api, STELLAR, &from, None).await, left);

    // The first payment creates the recipient, the second pays it.
    for (value, stroops_sent, operation) in [
        ("2.5", 25_000_000u128, "createAccount"),
        ("3.0000001", 30_000_001, "payment"),
    ] {
        let before = balance(api, STELLAR, &to, None).await;
        let (_, number) = account(&node, &from).await;
        let sent = api.sign(send(value)).await;
        let applied = applied(&node, &sent).await;
        assert_eq!(applied["operations"], json!([operation]));
        assert_eq!(applied["memo"], "rent");
        assert_eq!(applied["fee"], FEE.to_string());
        // What nine of ten pay at most, by the node's statistics.
        assert_eq!(applied["offered"], "250");
        assert_eq!(applied["sequence"], (number + 1).to_string());
        left -= stroops_sent + FEE;
        assert_eq!(stroops(&node, &from).await, left);
        assert_eq!(stroops(&node, &to).await, before + stroops_sent);
    }

    // An asset: both trust its issuer, then one pays the other.
    let issuer = node.call("test_issuer", json!({})).await;
    let asset = format!("USDC:{}", issuer.as_str().unwrap());
    let trust = |wallet: &str| {
        json!({"stellarChangeTrust": {"from": wallet, "assetCode": "USDC",
            "assetIssuer": issuer}})
    };
    let send_asset = |amount: &str| {
        json!({"stellarSendAsset": {"from": from, "to": to, "assetCode": "USDC",
            "assetIssuer": issuer, "amount": amount, "memo": ""}})
    };
    api.sign(trust(&from)).await;
    left -= FEE;
    assert_eq!(stroops(&node, &from).await, left);
    assert_eq!(balance(api, STELLAR, &from, Some(&asset)).await, 0);
    let issued = json!({"address": from, "asset": asset, "amount": "1000000"});
    node.call("test_issue", issued).await;
    assert_eq!(balance(api, STELLAR, &from, Some(&asset)).await, 1_000_000);
    // The recipient has no trust line: a ledger would take the fee, and pay nobody.
    let (_, reason) = refusal(api, send_asset("0.025")).await;
    assert!(reason.starts_with("to: has no trust line"), "{reason}");
    let before = stroops(&node, &to).await;
    api.sign(trust(&to)).await;
    assert_eq!(stroops(&node, &to).await, before - FEE);
    api.sign(send_asset("0.0250001")).await;
    left -= FEE;
    assert_eq!(balance(api, STELLAR, &to, Some(&asset)).await, 250_001);
    assert_eq!(balance(api, STELLAR, &from, Some(&asset)).await, 749_999);
    assert_eq!(stroops(&node, &from).await, left);

    // What fills a gap uses a number, and pays nobody.
    let mut nothing = send("0.0000001");
    nothing["stellarSendNative"]["to"] = json!(from);
    let (_, number) = account(&node, &from).await;
    api.sign(nothing).await;
    left -= FEE;
    assert_eq!(account(&node, &from).await, (left, number + 1));

    // More than there is, by one of the smallest unit; with the fee that is offered, and the reserve of three entries.
    let too_many = left - 250 - 15_000_000 + 1;
    let lumens = format!("{}.{:07}", too_many / 10_000_000, too_many % 10_000_000);
    for (too_much, words) in [
        (send(&lumens), "value: is "),
        (send_asset("0.075"), "amount: is 750000 units"),
    ] {
        let (code, reason) = refusal(api, too_much).await;
        assert_eq!(code, INSUFFICIENT_FUNDS);
        assert!(reason.starts_with(words), "{reason}");
    }
    assert_eq!(stroops(&node, &from).await, left);
    assert_eq!(balance(api, STELLAR, &from, Some(&asset)).await, 749_999);
}

#[tokio::test]
async fn stellar_payments_of_one_wallet_at_once__should_all_arrive() {
    let folder = tempfile::tempdir().unwrap();
    let node = ChainNode::start(folder.path(), "stellar").await;
    let chains = [format!("stellar={}", node.url)];
    let (dev, from) = dev_with_wallet(folder.path(), &chains, STELLAR).await;
    let to = dev.api.wallet(&dev.vault, STELLAR).await;
    let funds: u128 = 100_000_000_000;
    fund(&node, &from, funds).await;
    fund(&node, &to, funds).await;
    let (_, number) = account(&node, &from).await;
    // The network takes one transaction of an account per ledger. All together take longer than one of them is
    // good for: its time begins when its turn comes.
    let payments: u64 = match std::env::var_os("COVAULT_LONG_SUITE") {
        None => 26,
        Some(_) => 80,
    };
    node.call("test_pace", json!({"milliseconds": 0})).await;
    let creations = (1..=payments).map(|count| {
        let value = format!("{count}.5");
        dev.api
            .create(json!({"stellarSendNative": {"from": from, "to": to, "value": value}}))
    });
    let uuids = futures::future::join_all(creations).await;
    eventually("all but the first wait for the one before", async || {
        let stuck = dev.command(&["request", "stuck", "--json"]);
        let words = ["waits for a later ledger", "is not in a ledger yet"];
        let count = words.map(|words| stuck.matches(words).count() as u64);
        (count.iter().sum::<u64>() == payments - 1).then_some(())
    })
    .await;
    let pace = json!({"milliseconds": 20, "slow": 14});
    node.call("test_pace", pace).await;
    let mut numbers = Vec::new();
    for uuid in uuids {
        let done = eventually("it is sent", async || {
            let shown = dev.api.details(&uuid).await;
            (shown["status"] != "STATUS_PENDING").then_some(shown)
        })
        .await;
        assert_eq!(done["status"], "STATUS_SUCCEEDED", "{done}");
        let applied = eventually("a ledger has it", async || {
            let applied = node.call("test_applied", json!({"hash": done["txHash"]}));
            Some(applied.await).filter(Value::is_object)
        })
        .await;
        assert_eq!(applied["ok"], true, "{applied}");
        let number = applied["sequence"].as_str().unwrap();
        numbers.push(number.parse::<u64>().unwrap());
    }
    numbers.sort_unstable();
    let expected = (1..=payments).map(|count| number + count);
    assert_eq!(numbers, expected.collect::<Vec<_>>());
    let count = u128::from(payments);
    let sent = (count * (count + 1) / 2) * 10_000_000 + count * 5_000_000;
    assert_eq!(stroops(&node, &to).await, funds + sent);
    assert_eq!(stroops(&node, &from).await, funds - sent - count * FEE);
}

#[tokio::test]
async fn stellar_transactions_made_elsewhere__should_keep_what_others_signed() {
    let folder = tempfile::tempdir().unwrap();
    let node = ChainNode::start(folder.path(), "stellar").await;
    let chains = [format!("stellar={}", node.url)];
    let (dev, from) = dev_with_wallet(folder.path(), &chains, STELLAR).await;
    let api = &dev.api;
    let seed = "07".repeat(32);
    let other = outside("stellarAccount", json!({"seed": seed}));
    let other = other["address"].as_str().unwrap();
    let funds: u128 = 10_000_000_000;
    fund(&node, &from, funds).await;
    fund(&node, other, funds).await;
    let moved: u128 = 2 * 12_500_001;
    let (mut ours, mut theirs) = (funds, funds);
    // Two operations; a fee bump pays for one more.
    for form in ["own", "foreign", "bump"] {
        let source = if form == "own" { &from } else { other };
        let (_, number) = account(&node, source).await;
        let made = outside(
            "stellarForeign",
            json!({"form": form, "from": from, "seed": seed, "sequence": number.to_string(),
                "amount": "1.2500001", "maxTime": 4_000_000_000u64}),
        );
        let sent = api
            .sign(json!({"stellarSendCustom": {"from": from, "txBase64": made["transaction"]}}))
            .await;
        assert_eq!(sent["txHash"], made["hash"], "{form}");
        let applied = applied(&node, &sent).await;
        assert_eq!(applied["ok"], true, "{applied}");
        assert_eq!(applied["memo"], "elsewhere");
        match form {
            "own" => {
                ours -= moved + 2 * FEE;
                theirs += moved;
            }
            "foreign" => {
                ours -= moved;
                theirs += moved - 2 * FEE;
            }
            _ => {
                ours += moved - 3 * FEE;
                theirs -= moved;
            }
        }
        assert_eq!(stroops(&node, &from).await, ours, "{form}");
        assert_eq!(stroops(&node, other).await, theirs, "{form}");
    }

    // What fails in a ledger costs its fee: nobody here looks at what was made elsewhere.
    let (_, number) = account(&node, &from).await;
    let made = outside(
        "stellarForeign",
        json!({"form": "own", "from": from, "seed": seed, "sequence": number.to_string(),
            "amount": "2000", "maxTime": 4_000_000_000u64}),
    );
    fails_on_chain(
        api,
        json!({"stellarSendCustom": {"from": from, "txBase64": made["transaction"]}}),
    )
    .await;
    ours -= 2 * FEE;
    assert_eq!(stroops(&node, &from).await, ours);

    // One that uses a number that is used is refused, and moves nothing.
    let (_, number) = account(&node, &from).await;
    let made = outside(
        "stellarForeign",
        json!({"form": "own", "from": from, "seed": seed, "sequence": (number - 1).to_string(),
            "amount": "1", "maxTime": 4_000_000_000u64}),
    );
    let (_, reason) = refusal(
        api,
        json!({"stellarSendCustom": {"from": from, "txBase64": made["transaction"]}}),
    )
    .await;
    assert!(reason.contains("sequence number"), "{reason}");
    assert_eq!(stroops(&node, &from).await, ours);
}
