//! TON on the real virtual machine (@ton/sandbox).

use super::*;

const TON: &str = "NETWORK_TYPE_TON";

async fn information(node: &Node, address: &str) -> (u128, String) {
    let answer = reqwest_get(&format!(
        "{}/api/v2/getAddressInformation?address={address}",
        node.url
    ))
    .await;
    let result = &answer["result"];
    (
        result["balance"].as_str().unwrap().parse().unwrap(),
        result["state"].as_str().unwrap().to_owned(),
    )
}

async fn reqwest_get(url: &str) -> Value {
    http_client()
        .get(url)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap()
}

async fn fees(node: &Node, address: &str) -> u128 {
    let fees = node
        .post("/api/v2/test/fees", json!({"address": address}))
        .await;
    fees.as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn ton__should_deploy_the_wallet_and_move_coins_and_jettons_by_the_exact_amount() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(folder.path(), "ton").await;
    let chains = [format!("ton={}", node.url)];
    let (dev, from) = dev_with_wallet(folder.path(), &chains, TON).await;
    let api = &dev.api;
    let to = api.wallet(&dev.vault, TON).await;
    let funds: u128 = 5_000_000_000;
    node.post(
        "/api/v2/test/give",
        json!({"address": from, "amount": funds.to_string()}),
    )
    .await;
    assert_eq!(balance(api, TON, &from, None).await, funds);
    assert_eq!(information(&node, &from).await.1, "uninitialized");

    let amount: u128 = 1_234_567_891;
    api.sign(
        json!({"tonSendNative": {"from": from, "to": to, "value": amount.to_string(),
        "comment": "rent"}}),
    )
    .await;
    assert_eq!(information(&node, &from).await.1, "active");
    let (left, _) = information(&node, &from).await;
    let paid = fees(&node, &from).await;
    // What forwarding costs is taken from the sender beside its transaction's fees.
    let spent = funds - amount - left;
    assert!(spent >= paid && spent < paid + 2_000_000, "{spent} {paid}");
    let (got, _) = information(&node, &to).await;
    assert!(got <= amount && got > amount - 1_000_000, "{got}");

    // Several at once get a number each, and all arrive.
    let sends = (1..=4u128).map(|number| {
        let (api, from, to) = (api.clone(), from.clone(), to.clone());
        async move {
            api.sign(json!({"tonSendNative": {"from": from, "to": to,
                "value": (number * 10_000_000).to_string()}}))
                .await
        }
    });
    futures::future::join_all(sends).await;
    let (after, _) = information(&node, &to).await;
    assert!(
        after > got + 99_000_000 && after <= got + 100_000_000,
        "{after}"
    );

    let minted = node
        .post(
            "/api/v2/test/mint",
            json!({"owner": from, "amount": "1000000"}),
        )
        .await;
    let jetton = minted["minter"].as_str().unwrap();
    api.sign(
        json!({"tonSendToken": {"from": from, "to": to, "mintAddress": jetton,
        "amount": "250001", "comment": "jettons"}}),
    )
    .await;
    for (owner, expected) in [(&to, 250_001), (&from, 749_999)] {
        assert_eq!(balance(api, TON, owner, Some(jetton)).await, expected);
    }
}
