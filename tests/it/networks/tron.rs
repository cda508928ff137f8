//! Tron, on a node that checks what it gets with TronWeb.

use super::*;

const TRON: &str = "NETWORK_TYPE_TRON";
const INSUFFICIENT_GAS_FEE: &str = "EXECUTE_SIGNING_REQUESTS_ERROR_CODE_INSUFFICIENT_GAS_FEE";
const ASSET: &str = "1002000";

async fn start(folder: &std::path::Path, sun: u128) -> (ChainNode, DevProcess, String) {
    let node = ChainNode::start(folder, "tron").await;
    let chains = [format!("tron={}", node.url)];
    let (dev, from) = dev_with_wallet(folder, &chains, TRON).await;
    give(&node, &from, sun).await;
    (node, dev, from)
}

async fn give(node: &ChainNode, address: &str, sun: u128) {
    node.post(
        "/test/give",
        json!({"address": address, "amount": sun.to_string()}),
    )
    .await;
}

/// What the node says of a mined transaction: it went through, for this fee in sun.
async fn fee(node: &ChainNode, outcome: &Value) -> u128 {
    let info = node
        .post(
            "/wallet/gettransactioninfobyid",
            json!({"value": outcome["txHash"]}),
        )
        .await;
    assert_eq!(info["id"], outcome["txHash"], "{outcome}");
    assert_eq!(info["receipt"]["result"], "SUCCESS", "{info}");
    info["fee"].as_u64().unwrap().into()
}

#[tokio::test]
async fn tron__should_move_coins_and_tokens_by_the_exact_amount() {
    let folder = tempfile::tempdir().unwrap();
    let mut left: u128 = 100_000_000;
    let (node, dev, from) = start(folder.path(), left).await;
    let api = &dev.api;
    let to = api.wallet(&dev.vault, TRON).await;
    assert_eq!(balance(api, TRON, &from, None).await, left);
    assert_eq!(balance(api, TRON, &to, None).await, 0);

    // To an account that is not there yet, then to one that is.
    let mut got = 0;
    for (amount, opens) in [(12_345_678u128, true), (1, false)] {
        let sent = api
            .sign(json!({"tronSendNative": {"from": from, "to": to, "value": amount.to_string()}}))
            .await;
        let fee = fee(&node, &sent).await;
        assert_eq!(fee >= 1_100_000, opens, "{fee}");
        (left, got) = (left - amount - fee, got + amount);
        assert_eq!(balance(api, TRON, &from, None).await, left);
        assert_eq!(balance(api, TRON, &to, None).await, got);
    }

    node.post(
        "/test/asset",
        json!({"address": from, "asset": ASSET, "amount": "1000000"}),
    )
    .await;
    let sent = api
        .sign(json!({"tronSendTrc10": {"from": from, "to": to, "assetName": ASSET, "amount": "250001"}}))
        .await;
    left -= fee(&node, &sent).await;
    assert_eq!(balance(api, TRON, &from, None).await, left);
    assert_eq!(balance(api, TRON, &from, Some(ASSET)).await, 749_999);
    assert_eq!(balance(api, TRON, &to, Some(ASSET)).await, 250_001);

    let token = token(&node, &from, 1_000_000).await;
    let sent = api
        .sign(
            json!({"tronSendTrc20": {"from": from, "to": to, "contractAddress": token, "amount": "250001"}}),
        )
        .await;
    left -= fee(&node, &sent).await;
    assert_eq!(balance(api, TRON, &from, None).await, left);
    assert_eq!(balance(api, TRON, &from, Some(&token)).await, 749_999);
    assert_eq!(balance(api, TRON, &to, Some(&token)).await, 250_001);

    let tried = simulated(
        api,
        json!({"tronSendTrc20": {"from": from, "to": to, "contractAddress": token, "amount": "1"}}),
    )
    .await;
    assert_eq!(
        (&tried["success"], &tried["error"]),
        (&json!(true), &Value::Null)
    );
    assert!(
        tried["unitsUsed"]
            .as_str()
            .is_some_and(|energy| energy != "0"),
        "{tried}"
    );
}

/// A new token, all of which is the owner's.
async fn token(node: &ChainNode, owner: &str, amount: u128) -> String {
    let made = node
        .post(
            "/test/token",
            json!({"owner": owner, "amount": amount.to_string()}),
        )
        .await;
    made["contract"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn equal_tron_payments__should_both_arrive() {
    let folder = tempfile::tempdir().unwrap();
    let funds: u128 = 100_000_000;
    let (node, dev, from) = start(folder.path(), funds).await;
    let api = &dev.api;
    let to = api.wallet(&dev.vault, TRON).await;
    give(&node, &to, 1).await;
    let payment = json!({"tronSendNative": {"from": from, "to": to, "value": "1000000"}});
    // On one block, where they would be one transaction.
    let (first, second) = tokio::join!(api.sign(payment.clone()), api.sign(payment));
    assert_ne!(first["txHash"], second["txHash"]);
    let fees = fee(&node, &first).await + fee(&node, &second).await;
    assert_eq!(balance(api, TRON, &to, None).await, 2_000_001);
    assert_eq!(
        balance(api, TRON, &from, None).await,
        funds - 2_000_000 - fees
    );
}

#[tokio::test]
async fn tron_payments_that_cannot_be_made__should_be_refused_and_cost_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let funds: u128 = 20_000_000;
    let (node, dev, from) = start(folder.path(), funds).await;
    let api = &dev.api;
    let to = api.wallet(&dev.vault, TRON).await;
    let token = token(&node, &from, 1_000).await;
    let trc20 = |token: &str, amount: &str, fee_limit: &str| {
        json!({"tronSendTrc20": {"from": from, "to": to, "contractAddress": token,
            "amount": amount, "feeLimit": fee_limit}})
    };
    let other = "EXECUTE_SIGNING_REQUESTS_ERROR_CODE_UNSPECIFIED";
    for (body, expected, words) in [
        (
            json!({"tronSendNative": {"from": from, "to": to, "value": "20000000"}}),
            INSUFFICIENT_FUNDS,
            "balance is not sufficient",
        ),
        (
            json!({"tronSendTrc10": {"from": from, "to": to, "assetName": ASSET, "amount": "1"}}),
            INSUFFICIENT_FUNDS,
            "assetBalance is not sufficient",
        ),
        (
            trc20(&token, "1001", "100000000"),
            INSUFFICIENT_FUNDS,
            "REVERT",
        ),
        // The transfer burns 6.4 TRX: a node would take it, burn what it may, and move nothing.
        (
            trc20(&token, "1", "6399999"),
            INSUFFICIENT_GAS_FEE,
            "feeLimit",
        ),
        (trc20(&to, "1", "100000000"), other, "not exist"),
    ] {
        let (code, reason) = refusal(api, body).await;
        assert_eq!(code, expected, "{reason}");
        assert!(reason.contains(words), "{reason}");
    }
    assert_eq!(balance(api, TRON, &from, None).await, funds);
    assert_eq!(balance(api, TRON, &from, Some(&token)).await, 1_000);
    assert_eq!(balance(api, TRON, &to, Some(&token)).await, 0);
}
