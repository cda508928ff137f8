//! Contract section 9 and section 7 of the requirement: deposit wallets and watch addresses.

use serde_json::{Value, json};

use super::{World, assert_keys, caller::INVALID};
use crate::support::*;

const TRON: &str = "TJRabPrwbZy45sbavfcjinPJC18kjpRTv8";

#[tokio::test]
async fn sweep__should_make_addresses_once_and_give_every_reason() {
    let mut world = World::start().await;
    let api = world.token(&["--name", "deposits", "--kind", "sweep", "--access", "full"]);
    let caller = world.caller().with(&api.token);

    for (body, reason) in [
        (json!({"ref": "a"}), "network required"),
        (json!({"network": "", "ref": "a"}), "network required"),
        (
            json!({"network": "SOLANA", "ref": "a"}),
            "network unsupported",
        ),
        (json!({"network": "EVM"}), "ref required"),
        (json!({"network": "EVM", "ref": ""}), "ref required"),
        (json!({"network": "EVM", "ref": "a b"}), "ref invalid"),
        (json!({"network": "EVM", "ref": "\u{e4}"}), "ref invalid"),
        (
            json!({"network": "EVM", "ref": "x".repeat(129)}),
            "ref invalid",
        ),
        (
            json!({"network": "EVM", "ref": "a"}),
            "sweep config not configured",
        ),
    ] {
        caller.refused("sweep/wallets", body, INVALID, reason).await;
    }
    for (body, reason) in [
        (json!({"address": TRON}), "network unsupported"),
        (
            json!({"network": "EVM", "address": TRON}),
            "network unsupported",
        ),
        (json!({"network": "TRON"}), "address required"),
        (
            json!({"network": "TRON", "address": "x"}),
            "address invalid",
        ),
        (
            json!({"network": "TRON", "address": TRON.replace('J', "K")}),
            "address invalid",
        ),
        (
            json!({"network": "TRON", "address": TRON}),
            "webhook not configured",
        ),
    ] {
        let operation = "sweep/addWatchAddress";
        caller.refused(operation, body, INVALID, reason).await;
    }
    // What is wrong before there is an operation has the same shape.
    for (path, body, kind, code, error) in [
        (
            "/v1/sweep/nothing",
            "{}",
            "application/json",
            404,
            "Not Found",
        ),
        (
            "/v1/sweep/wallets",
            "{",
            "application/json",
            400,
            "Bad Request",
        ),
        (
            "/v1/sweep/wallets",
            "{}",
            "text/plain",
            415,
            "Unsupported Media Type",
        ),
    ] {
        let response = api
            .raw(path, |request| {
                request
                    .header("x-mtoken", &api.token)
                    .header("content-type", kind)
                    .body(body)
            })
            .await;
        assert_eq!(response.status().as_u16(), code, "{path}");
        assert!(response.headers().contains_key("x-request-id"));
        let answer: Value = response.json().await.unwrap();
        assert_keys(&answer, &["code", "error", "reason"]);
        assert_eq!(
            (&answer["code"], &answer["error"]),
            (&json!(code), &json!(error))
        );
    }
    let large = api
        .raw("/v1/sweep/wallets", |request| {
            request
                .header("x-mtoken", &api.token)
                .header("content-type", "application/json")
                .body(vec![b' '; 2 << 20])
        })
        .await;
    assert_eq!(large.status().as_u16(), 413);
    assert_keys(&large.json().await.unwrap(), &["code", "error", "reason"]);
    let got = http_client()
        .get(format!("{}/v1/sweep/wallets", api.base))
        .send()
        .await
        .unwrap();
    assert_eq!(got.status().as_u16(), 405);
    assert_keys(&got.json().await.unwrap(), &["code", "error", "reason"]);

    for (network, target) in [("EVM", world.evm.as_str()), ("TRON", TRON)] {
        world.command(&[
            "sweep",
            "configure",
            "--token",
            "deposits",
            "--network",
            network,
            "--vault",
            "default",
            "--target",
            target,
            "--webhook",
            "https://example.com/hook",
        ]);
    }
    for network in ["EVM", "TRON"] {
        let body = json!({"network": network, "ref": "customer-7:a"});
        let all = (0..50).map(|_| api.post("sweep/wallets", body.clone()));
        let all = futures::future::join_all(all).await;
        let (status, first) = &all[0];
        assert_eq!(*status, 200, "{first}");
        assert!(
            all.iter()
                .all(|(status, answer)| (*status, answer) == (200, first))
        );
        assert_keys(first, &["address", "network", "ref", "addressProof"]);
        assert_eq!(
            (&first["network"], &first["ref"]),
            (&body["network"], &body["ref"])
        );
        let info = world
            .api()
            .ok("getWalletInfo", json!({"address": first["address"]}))
            .await;
        assert_eq!(info["details"]["vaultUuid"], world.dev.vault.as_str());
    }
    let list = world
        .api()
        .ok("getWalletList", json!({"vaultUuid": world.dev.vault}))
        .await;
    assert_eq!(list["detailsList"].as_array().unwrap().len(), 4);

    let body = json!({"network": "TRON", "address": TRON});
    let watch = api.post("sweep/addWatchAddress", body.clone()).await;
    assert_eq!(watch.0, 200, "{}", watch.1);
    assert_keys(&watch.1, &["uuid", "address", "network"]);
    assert_eq!(api.post("sweep/addWatchAddress", body.clone()).await, watch);

    // They are still there after a crash, and another token has its own.
    let deposit = json!({"network": "EVM", "ref": "customer-7:a"});
    let before = api.post("sweep/wallets", deposit.clone()).await;
    world.dev.process.kill();
    world.dev.restart().await;
    let api = ApiClient::new(&world.dev.api.base, &api.token);
    assert_eq!(api.post("sweep/wallets", deposit.clone()).await, before);
    assert_eq!(api.post("sweep/addWatchAddress", body).await, watch);
    let other = world.token(&["--name", "other", "--kind", "sweep", "--access", "full"]);
    let other = world.caller().with(&other.token);
    let reason = "sweep config not configured";
    other
        .refused("sweep/wallets", deposit.clone(), INVALID, reason)
        .await;

    // Once archived, it is no longer a deposit address.
    let address = before.1["address"].clone();
    let archive = json!({"address": address, "status": "STATUS_ARCHIVED"});
    world.api().ok("updateWallet", archive).await;
    let caller = world.caller().with(&api.token);
    caller
        .refused("sweep/wallets", deposit, INVALID, "wallet disabled")
        .await;
}
