//! `covault serve` and three `covault signer` processes over a real Redis, from the sample
//! configuration in deploy/.

use std::fs;

use serde_json::json;

use super::support::*;

#[tokio::test]
async fn cluster__should_sign_while_two_of_three_signers_live_and_say_who_is_missing() {
    // Short, so that the request that finds too few signers ends soon.
    let mut cluster = TestCluster::start(8_000).await;
    let vault = cluster.create_vault("treasury");
    let evm = cluster.api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let solana = cluster.api.wallet(&vault, "NETWORK_TYPE_SOLANA").await;
    cluster.assert_signs(&evm, &solana, "three signers").await;

    cluster.signers[1].kill();
    cluster
        .assert_signs(&evm, &solana, "one signer was killed")
        .await;

    cluster.redis.restart().await;
    cluster
        .assert_signs(&evm, &solana, "Redis was restarted")
        .await;

    cluster.signers[2].kill();
    let uuid = cluster
        .api
        .create(json!({"solanaMessage": {"from": solana, "content": base64("too few")}}))
        .await;
    let outcome = cluster.api.execute(&uuid).await;
    let reason = outcome["error"]["message"].as_str().unwrap().to_owned();
    for index in [1, 2] {
        let key = cluster.keys[index]
            .split_whitespace()
            .nth(1)
            .unwrap()
            .to_owned();
        assert!(reason.contains(&key), "{reason} does not name {key}");
    }
    let alive = cluster.keys[0].split_whitespace().nth(1).unwrap();
    assert!(!reason.contains(alive), "{reason} names a node that lives");
    let details = cluster.api.details(&uuid).await;
    assert_eq!(details["status"], "STATUS_FAILED");
    assert_eq!(details["failedReason"], json!(reason));
    cluster.serve.assert_running();
    assert_eq!(cluster.api.get("/livez").await, 200);

    cluster.restart_signer(1);
    cluster.restart_signer(2);
    cluster
        .assert_signs(&evm, &solana, "the signers came back")
        .await;
    for process in cluster.signers.iter_mut().chain([&mut cluster.serve]) {
        assert_eq!(process.terminate(), Some(0), "{}", process.log());
    }
}

#[tokio::test]
async fn transaction__should_reach_a_real_node_through_the_pieces_apart() {
    let anvil_folder = tempfile::tempdir().unwrap();
    let anvil = Anvil::start(anvil_folder.path(), 31337).await;
    let mut cluster = TestCluster::start(60_000).await;
    // The chain is configured as an operator would: in the file, then a restart.
    let path = cluster.folder.path().join("serve.toml");
    let mut text = fs::read_to_string(&path).unwrap();
    text.push_str(&format!(
        "\n[chains.evm.31337]\nrpc = [\"{}\"]\n",
        anvil.url
    ));
    fs::write(&path, text).unwrap();
    cluster.restart_serve().await;

    let vault = cluster.create_vault("payouts");
    assert_eq!(
        cluster.create_vault("payouts"),
        vault,
        "a name names one vault"
    );
    let from = cluster.api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    anvil.fund(&from, 1_000_000_000_000_000_000).await;
    let to = "0x00000000000000000000000000000000C0FFEE03";
    let outcome = cluster
        .api
        .sign(json!({"evmSendNative": {"chainId": "31337", "from": from, "to": to, "value": "12345"}}))
        .await;
    assert_eq!(
        anvil.receipt(outcome["txHash"].as_str().unwrap()).await["status"],
        "0x1"
    );
    assert_eq!(anvil.balance(to).await, 12345);
}

#[tokio::test]
async fn admin_operations__should_need_the_admin_token() {
    let cluster = TestCluster::start(60_000).await;
    for (token, expected) in [
        (cluster.api.token.as_str(), [401, 403].as_slice()),
        ("", &[401]),
        (cluster.admin_token.as_str(), &[200]),
    ] {
        let response = cluster
            .api
            .raw("/admin/v1/listVaults", |request| {
                request.header("x-mtoken", token).json(&json!({}))
            })
            .await;
        assert!(
            expected.contains(&response.status().as_u16()),
            "{token:.4}: {}",
            response.status()
        );
    }
    // Signers announce themselves every second.
    eventually("every signer is in the list", async || {
        let listing = covault()
            .args(["node", "list", "--config"])
            .arg(cluster.folder.path().join("serve.toml"))
            .output()
            .unwrap();
        let listing = String::from_utf8(listing.stdout).unwrap();
        let listed = |key: &String| listing.contains(key.split_whitespace().nth(1).unwrap());
        cluster.keys.iter().all(listed).then_some(())
    })
    .await;
}
