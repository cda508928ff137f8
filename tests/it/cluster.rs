//! `covault serve` and three `covault signer` processes over a real Redis, from the sample
//! configuration in deploy/.

use std::{fs, path::Path};

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

/// Tokens with a name take the place of the one of the file, and the admin API moves to the network.
async fn named_admin_tokens(cluster: &mut TestCluster) {
    let folder = cluster.folder.path().to_owned();
    let config = folder.join("serve.toml");
    let run = |words: &[&str], token: Option<&Path>| {
        let mut command = covault();
        command.args(words);
        if !words.contains(&"--url") {
            command.arg("--config").arg(&config);
        }
        outcome_of(command.args(token.map(|_| "--token-file")).args(token))
    };
    let create = "token create --kind admin --allow 127.0.0.1 --expires 1d --name";
    let create: Vec<&str> = create.split(' ').collect();
    let made = |name: &str, role: &str| {
        let (done, secret, err) = run(&[&create[..], &[name, "--role", role]].concat(), None);
        assert!(done && secret.starts_with("cva_"), "{secret}{err}");
        let file = folder.join(format!("{name}.token"));
        write_secret(&file, secret.trim());
        file
    };
    let (anna, ben) = (made("anna", "viewer"), made("ben", "operator"));
    for (words, said) in [
        (vec!["audit", "verify"], "may not read the audit log"),
        (
            [&create[..], &["x", "--role", "viewer"]].concat(),
            "this token is read-only",
        ),
    ] {
        let (done, out, err) = run(&words, Some(&anna));
        assert!(!done && err.contains(said), "{words:?}: {out}{err}");
    }
    // Without the words that say for how long and from where, none is made.
    let (done, _, err) = run(
        &[
            "token", "create", "--kind", "admin", "--name", "x", "--role", "viewer",
        ],
        Some(&ben),
    );
    assert!(
        !done && err.contains("--allow") && err.contains("--expires"),
        "{err}"
    );

    let port = free_port();
    let text = fs::read_to_string(&config).unwrap();
    let of_network =
        format!("[serve]\nadmin_file_token = false\nadmin_listen = \"127.0.0.1:{port}\"");
    fs::write(&config, text.replace("[serve]", &of_network)).unwrap();
    cluster.restart_serve().await;
    assert!(!folder.join("orchestrator/admin.sock").exists());
    let (done, _, err) = run(&["vault", "list"], None);
    assert!(
        !done && err.contains("serve.admin_file_token is false"),
        "{err}"
    );
    let (done, _, err) = run(
        &["vault", "list"],
        Some(&folder.join("orchestrator/admin-token")),
    );
    assert!(!done && err.contains("HTTP 401"), "{err}");
    let url = format!("http://127.0.0.1:{port}");
    let (done, _, err) = run(&["vault", "list", "--url", &url], Some(&anna));
    assert!(done, "{err}");
    let (done, _, err) = run(&["token", "revoke", "anna"], Some(&ben));
    assert!(done, "{err}");
    let (done, _, err) = run(&["vault", "list"], Some(&anna));
    assert!(!done && err.contains("HTTP 401"), "{err}");
    let (done, log, err) = run(&["audit", "export"], Some(&ben));
    assert!(done, "{err}");
    let revoked = log.lines().find(|line| line.contains("TokenRevoked"));
    assert!(
        revoked.is_some_and(|line| line.contains("\"admin:ben\"")),
        "{log}"
    );
}

#[tokio::test]
async fn admin_operations__should_need_an_admin_token_and_be_where_operators_call() {
    let mut cluster = TestCluster::start(60_000).await;
    let socket = cluster.folder.path().join("orchestrator/admin.sock");
    let admin_url = format!("unix:{}", socket.display());
    for (token, expected) in [
        (cluster.api.token.as_str(), 403),
        ("", 401),
        (cluster.admin_token.as_str(), 200),
    ] {
        let (status, _) = call_admin(&admin_url, token, "listVaults", &json!({})).await;
        assert_eq!(status, expected, "{token:.4}");
    }
    // Clients' listener has none of it, whatever the token.
    let response = cluster
        .api
        .raw("/admin/v1/listVaults", |request| {
            request
                .header("x-mtoken", &cluster.admin_token)
                .json(&json!({}))
        })
        .await;
    assert_eq!(response.status().as_u16(), 404);
    named_admin_tokens(&mut cluster).await;
    // Signers announce themselves every second.
    eventually("every signer is in the list", async || {
        let token = cluster.folder.path().join("ben.token");
        let (_, listing, _) = cluster.node(&["list", "--token-file", token.to_str().unwrap()]);
        let listed = |key: &String| listing.contains(key.split_whitespace().nth(1).unwrap());
        cluster.keys.iter().all(listed).then_some(())
    })
    .await;
}
