//! kill -9 at random moments, under load: nothing accepted is lost, nothing is done twice.

use std::{collections::BTreeMap, fs, time::Duration};

use serde_json::{Value, json};

use crate::support::*;

/// How many times the service is killed. COVAULT_CRASH_ROUNDS makes it longer.
fn rounds() -> u64 {
    std::env::var("COVAULT_CRASH_ROUNDS").map_or(4, |rounds| rounds.parse().unwrap())
}

#[tokio::test]
async fn killed_service__should_end_every_accepted_request_exactly_once() {
    let folder = tempfile::tempdir().unwrap();
    let anvil = Anvil::start(folder.path(), 31337).await;
    let mut dev = DevProcess::start(
        &folder.path().join("dev"),
        &["--chain", &anvil.chain_argument()],
    )
    .await;
    let sender = dev.api.wallet(&dev.vault, "NETWORK_TYPE_EVM").await;
    let speaker = dev.api.wallet(&dev.vault, "NETWORK_TYPE_SOLANA").await;
    let funds = 1_000_000_000_000_000_000_000;
    anvil.fund(&sender, funds).await;
    let to = "0x00000000000000000000000000000000C0FFEE04";

    // uuid -> amount in wei, or None for a message.
    let mut accepted: BTreeMap<String, Option<u128>> = BTreeMap::new();
    let mut next = 0_u64;
    for round in 0..rounds() {
        let load = (0..8).map(|_| {
            next += 1;
            let (api, value) = (dev.api.clone(), next);
            let body = if value % 3 == 0 {
                json!({"solanaMessage": {"from": speaker, "content": base64(format!("message {value}"))}})
            } else {
                json!({"evmSendNative": {"chainId": "31337", "from": sender, "to": to, "value": value.to_string()}})
            };
            async move {
                let (status, answer) = api.attempt("createSigningRequest", &body).await?;
                assert_eq!(status, 200, "{answer}");
                let uuid = answer["signingRequest"]["uuid"].as_str().unwrap().to_owned();
                Some((uuid, (value % 3 != 0).then_some(u128::from(value))))
            }
        });
        let load = tokio::spawn(futures::future::join_all(load.collect::<Vec<_>>()));
        // Each round another moment, from "just accepted" to "being broadcast".
        tokio::time::sleep(Duration::from_millis(7 + 41 * round % 400)).await;
        dev.process.kill();
        accepted.extend(load.await.unwrap().into_iter().flatten());
        dev.restart().await;
    }
    assert!(
        !accepted.is_empty(),
        "nothing was accepted before the kills"
    );

    let mut sent = 0;
    let mut hashes = BTreeMap::new();
    for (uuid, amount) in &accepted {
        let outcome = dev.api.execute(uuid).await;
        assert_eq!(outcome["error"], Value::Null, "{outcome}");
        assert_eq!(dev.api.details(uuid).await["status"], "STATUS_SUCCEEDED");
        if let Some(amount) = amount {
            let hash = outcome["txHash"].as_str().unwrap().to_owned();
            let receipt = anvil.receipt(&hash).await;
            assert_eq!(receipt["status"], "0x1");
            let transaction = anvil.call("eth_getTransactionByHash", json!([hash])).await;
            assert_eq!(hex_number(&transaction["value"]), *amount);
            assert_eq!(
                hashes.insert(hash, uuid.clone()),
                None,
                "one transaction for two requests"
            );
            sent += amount;
        }
    }
    // A request whose answer was lost with the process may have been accepted too; the list of
    // what the chain saw must be covered by requests, one each.
    let count = hex_number(
        &anvil
            .call("eth_getTransactionCount", json!([sender, "latest"]))
            .await,
    );
    assert!(count >= hashes.len() as u128);
    if count == hashes.len() as u128 {
        assert_eq!(anvil.balance(to).await, sent);
    }
    let mut values = Vec::new();
    let head = hex_number(&anvil.call("eth_blockNumber", json!([])).await);
    for number in 0..=head {
        let block = anvil
            .call(
                "eth_getBlockByNumber",
                json!([format!("{number:#x}"), true]),
            )
            .await;
        values.extend(
            block["transactions"]
                .as_array()
                .unwrap()
                .iter()
                .map(|transaction| hex_number(&transaction["value"])),
        );
    }
    let sum: u128 = values.iter().sum();
    let total = values.len();
    values.sort_unstable();
    values.dedup();
    assert_eq!(
        values.len(),
        total,
        "an amount was sent twice: every request had its own"
    );
    assert_eq!(anvil.balance(to).await, sum);
}

#[tokio::test]
async fn killed_pieces__should_leave_every_accepted_request_signed() {
    let mut cluster = TestCluster::start(60_000).await;
    let vault = cluster.create_vault("crash");
    let evm = cluster.api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let solana = cluster.api.wallet(&vault, "NETWORK_TYPE_SOLANA").await;
    let mut accepted = BTreeMap::new();
    for round in 0..rounds() {
        let load = (0..6).map(|index| {
            let api = cluster.api.clone();
            let content = base64(format!("round {round}, message {index}"));
            let from = if index % 2 == 0 { &evm } else { &solana };
            let body = json!({"rawMessage": {"from": from, "content": content,
                "ecdsaHashFunction": "ECDSA_HASH_FUNCTION_SHA256"}});
            async move {
                let (status, answer) = api.attempt("createSigningRequest", &body).await?;
                assert_eq!(status, 200, "{answer}");
                let uuid = answer["signingRequest"]["uuid"]
                    .as_str()
                    .unwrap()
                    .to_owned();
                Some((uuid, (index % 2 == 0, content)))
            }
        });
        let load = tokio::spawn(futures::future::join_all(load.collect::<Vec<_>>()));
        tokio::time::sleep(Duration::from_millis(3 + 29 * round % 200)).await;
        match round % 4 {
            // The orchestrator and every signer in turn.
            0 => cluster.kill_and_restart_serve().await,
            signer => {
                let index = usize::try_from(signer).unwrap() - 1;
                cluster.signers[index].kill();
                cluster.restart_signer(index);
            }
        }
        accepted.extend(load.await.unwrap().into_iter().flatten());
    }
    assert!(
        !accepted.is_empty(),
        "nothing was accepted before the kills"
    );
    cluster.assert_signed_once(&accepted, &evm, &solana).await;
}

#[tokio::test]
async fn first_start__should_survive_a_kill_at_any_moment() {
    for round in 0..rounds() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("dev");
        fs::create_dir(&data).unwrap();
        let mut command = covault();
        command
            .args(["dev", "--listen", "127.0.0.1:0", "--data"])
            .arg(&data);
        let mut process = Process::start(&mut command, &folder.path().join("first.log"));
        // From "making the first files" over "in the middle of keygen" to "just ready".
        tokio::time::sleep(Duration::from_millis(4 + round * round * 70 % 2_500)).await;
        process.kill();
        let dev = DevProcess::start_first(&data, &[]).await;
        let from = dev.api.wallet(&dev.vault, "NETWORK_TYPE_SOLANA").await;
        let content = base64(format!("round {round}"));
        let outcome = dev
            .api
            .sign(json!({"solanaMessage": {"from": from, "content": content}}))
            .await;
        let signature = &first_signature(&outcome)["eddsaSignature"];
        let question = json!({"content": content, "signature": signature, "address": from});
        assert_eq!(outside("ed25519", question)["valid"], json!(true));
    }
}

#[tokio::test]
async fn repeated_key__should_get_the_first_answer_after_a_kill_too() {
    let folder = tempfile::tempdir().unwrap();
    let mut dev = DevProcess::start(&folder.path().join("dev"), &[]).await;
    let body = json!({"vaultUuid": dev.vault, "networkType": "NETWORK_TYPE_EVM"});
    let mut answers = Vec::new();
    for _ in 0..2 {
        let response = dev
            .api
            .raw("/v1/createWallet", |request| {
                request
                    .header("x-mtoken", &dev.api.token)
                    .header("idempotency-key", "once")
                    .json(&body)
            })
            .await;
        answers.push((response.status(), response.text().await.unwrap()));
        dev.process.kill();
        dev.restart().await;
    }
    assert_eq!(answers[0], answers[1]);
}
