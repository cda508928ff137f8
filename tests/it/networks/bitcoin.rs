//! Bitcoin on a real node (regtest). Scripts and signatures do not know which chain they are on;
//! only the addresses of that chain are written otherwise.

use super::*;

const BITCOIN: &str = "NETWORK_TYPE_BITCOIN";

#[tokio::test]
async fn bitcoin__should_move_the_exact_amount_and_lock_what_it_spends() {
    let folder = tempfile::tempdir().unwrap();
    let node = Bitcoind::start(folder.path()).await;
    let login = folder.path().join("bitcoind.login");
    std::fs::write(&login, &node.login).unwrap();
    let chains = [format!("bitcoin={}#{}", node.url, login.display())];
    let (dev, from) = dev_with_wallet(folder.path(), &chains, BITCOIN).await;
    let api = &dev.api;
    let to = api.wallet(&dev.vault, BITCOIN).await;
    for satoshi in [3_000_000u64, 2_000_000, 1_000_000] {
        node.fund(&from, satoshi).await;
    }
    assert_eq!(balance(api, BITCOIN, &from, None).await, 6_000_000);

    // Three at once: each takes outputs of its own.
    let amounts = [2_500_000u64, 1_500_000, 600_000];
    let sends = amounts.map(|amount| {
        let (api, from, to) = (api.clone(), from.clone(), to.clone());
        async move {
            api.sign(json!({"btcSendNative": {"from": from, "to": to,
                "amount": amount.to_string(), "networkFee": 7}}))
                .await["txHash"]
                .as_str()
                .unwrap()
                .to_owned()
        }
    });
    let hashes = futures::future::join_all(sends).await;
    node.mine(1).await;
    let mut fees = 0;
    for hash in &hashes {
        let transaction = node.call("getrawtransaction", json!([hash, 2])).await;
        assert_eq!(transaction["confirmations"], 1, "{transaction}");
        let fee = satoshi(&transaction["fee"]);
        let size = transaction["vsize"].as_u64().unwrap();
        // Counted with signatures of 72 bytes, so at most some bytes more than the rate.
        assert!(
            (size * 7..=(size + 4) * 7).contains(&fee),
            "{fee} for {size}"
        );
        fees += fee;
    }
    let sent: u64 = amounts.iter().sum();
    assert_eq!(node.balance(&to).await, sent);
    assert_eq!(node.balance(&from).await, 6_000_000 - sent - fees);

    let (code, reason) = refusal(
        api,
        json!({"btcSendNative": {"from": from, "to": to, "amount": "500000000", "networkFee": 1}}),
    )
    .await;
    assert_eq!(code, INSUFFICIENT_FUNDS, "{reason}");
}
