//! A store in trouble: on a disk without room, and with rows that are damaged. Both are real: it is
//! the system that lets no file grow, and the damage is in the file. An error of the service's own
//! (500) can be had in this way alone, without a double.

use std::path::Path;

use covault_actors::store::{
    Batch, Key, KeySpace, Precondition, Row, Scan, Store as _, redb::RedbStore,
};
use serde_json::{Value, json};

use super::{
    World,
    caller::{ApiCaller, BUG, EXISTS, UNAVAILABLE},
};
use crate::support::*;

const BOB: &str = "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be";
const TRON: &str = "TJRabPrwbZy45sbavfcjinPJC18kjpRTv8";

/// What is asked for, before and after.
struct SampleRequests {
    wallet: Value,
    message: Value,
    batch: Value,
    /// By the uuid of a signed request, and of a batch.
    request: Value,
    details: Value,
    /// The token of the sweep API.
    sweep: String,
}

#[tokio::test]
async fn store_in_trouble__should_be_told_without_what_is_wrong_inside() {
    let mut world = World::start_on_small_disk().await;
    let samples = samples(&world).await;
    let caller = world.caller();
    let before = stored(&caller, &samples).await;
    no_room(&world, &samples).await;

    // Everything is there.
    world.dev.process.kill();
    world.dev.restart().await;
    let caller = world.caller();
    let after = stored(&caller, &samples).await;
    assert_eq!(before, after);
    for again in [&samples.wallet, &samples.wallet] {
        caller.api.ok("createWallet", again.clone()).await;
    }
    let sweep = caller.with(&samples.sweep);
    for number in 1..=3 {
        sweep.same("sweep/wallets", order(number)).await;
    }

    world.dev.process.kill();
    damage(&world.dev.store()).await;
    world.dev.restart().await;
    damaged(&world, &samples).await;
}

/// A request and a batch as they are shown.
async fn stored(caller: &ApiCaller, samples: &SampleRequests) -> [Value; 2] {
    [
        caller
            .same("getSigningRequestDetails", samples.request.clone())
            .await,
        caller
            .same("getBatchPaymentDetails", samples.details.clone())
            .await,
    ]
}

fn order(number: u8) -> Value {
    json!({"network": "EVM", "ref": format!("order-{number}")})
}

async fn samples(world: &World) -> SampleRequests {
    let api = world.api();
    let recipient = json!({"address": BOB, "amount": "1"});
    let batch = json!({"name": "wages",
        "evmBatchSendNative": {"chainId": 1, "from": world.evm, "recipients": [recipient]}});
    let request = json!({"uuid": api.create(world.message("before")).await});
    api.ok("executeSigningRequests", request.clone()).await;
    let made = api.ok("createBatchPayment", batch.clone()).await;
    let new = ["--name", "deposits", "--kind", "sweep", "--access", "full"];
    let sweep = world.token(&new).token;
    for (network, target) in [("EVM", BOB), ("TRON", TRON)] {
        let route = format!(
            "sweep configure --token deposits --network {network} --vault default \
             --target {target} --webhook https://example.com/hook"
        );
        world.command(&route.split_whitespace().collect::<Vec<_>>());
    }
    SampleRequests {
        wallet: json!({"vaultUuid": world.dev.vault, "networkType": 1}),
        message: world.message("after"),
        batch,
        request,
        details: json!({"uuid": made["batchPayment"]["uuid"]}),
        sweep,
    }
}

/// Nothing is done that cannot be stored, and every caller gets an error; the process lives on.
async fn no_room(world: &World, samples: &SampleRequests) {
    let caller = world.caller();
    let sweep = caller.with(&samples.sweep);
    world.dev.process.limit_files("4096");
    let part = "the store cannot be written now";
    let watch = json!({"network": "TRON", "address": TRON});
    for (who, operation, body) in [
        (&caller, "createWallet", samples.wallet.clone()),
        (&caller, "createSigningRequest", samples.message.clone()),
        (&caller, "createBatchPayment", samples.batch.clone()),
        (
            &caller,
            "updateWallet",
            json!({"address": world.evm, "name": "x"}),
        ),
        (&sweep, "sweep/wallets", order(1)),
        (&sweep, "sweep/addWatchAddress", watch),
    ] {
        who.refused(operation, body, UNAVAILABLE, part).await;
    }
    eventually("the service is not ready", async || {
        (caller.api.get("/readyz").await == 503).then_some(())
    })
    .await;
    assert!(!caller.bare().is_serving().await);
    assert_eq!(caller.api.get("/livez").await, 200);

    // When there is room again, it goes on.
    world.dev.process.limit_files("unlimited");
    eventually("the service is ready", async || {
        (caller.api.get("/readyz").await == 200).then_some(())
    })
    .await;
    caller.api.ok("createWallet", samples.wallet.clone()).await;
    let request = world.api().create(samples.message.clone()).await;
    caller.api.execute(&request).await;
}

/// Replaces what wallets, requests and batches are by something else, and takes two deposits away
/// but for their addresses, as if the store had been put back in parts.
async fn damage(path: &Path) {
    let store = RedbStore::open(path).unwrap();
    let rows = async |space| -> Vec<(Key, Row)> {
        let all = Scan::prefix(space, &[], 1000);
        store.scan(&all).await.unwrap()
    };
    let mut batch = Batch::new();
    for space in [KeySpace::Wallet, KeySpace::Request, KeySpace::Batch] {
        for (key, _) in rows(space).await {
            batch.put(key, Precondition::Any, b"damaged".to_vec());
        }
    }
    for (key, _) in rows(KeySpace::WalletIndex).await.into_iter().rev().take(2) {
        batch.delete(key, Precondition::Any);
    }
    for (key, _) in rows(KeySpace::Deposit).await {
        if [b"order-2", b"order-3"]
            .iter()
            .any(|it| key.bytes.ends_with(*it))
        {
            batch.delete(key, Precondition::Any);
        }
    }
    store.commit(batch).await.unwrap();
}

async fn damaged(world: &World, samples: &SampleRequests) {
    let caller = world.caller();
    let sweep = caller.with(&samples.sweep);
    let address = json!({"address": world.evm});
    for (operation, body) in [
        ("getWalletInfo", address),
        ("updateWallet", json!({"address": world.evm, "name": "x"})),
        ("createSigningRequest", samples.message.clone()),
        ("createBatchPayment", samples.batch.clone()),
        ("getSigningRequestDetails", samples.request.clone()),
        ("executeSigningRequests", samples.request.clone()),
        ("rejectSigningRequest", samples.request.clone()),
        ("replaceTransaction", samples.request.clone()),
        (
            "resimulation",
            json!({"signingRequestUuid": samples.request["uuid"]}),
        ),
        ("getBatchPaymentDetails", samples.details.clone()),
    ] {
        let part = "internal error, see request id ";
        caller.refused(operation, body, BUG, part).await;
    }
    // A list is of those that can be read.
    let list = json!({"vaultUuid": world.dev.vault});
    let list = caller.same("getWalletList", list).await;
    assert_eq!(list["detailsList"], json!([]), "{list}");
    // With the id the log says more, and the client no more than that.
    let id = [("x-request-id", "broken-1")];
    let rest = caller
        .rest("getBatchPaymentDetails", &samples.details, &id)
        .await;
    let sentence = &rest.body["error"]["message"];
    assert_eq!(*sentence, "internal error, see request id broken-1");
    let log = world.dev.process.log();
    assert!(log.contains("broken-1"), "{log}");

    let reason = "internal server error";
    sweep.refused("sweep/wallets", order(1), BUG, reason).await;
    // Its address is another wallet's: each call tries the next.
    let reason = "wallet address conflict; retry";
    sweep
        .refused("sweep/wallets", order(2), EXISTS, reason)
        .await;
    sweep.same("sweep/wallets", order(4)).await;
}
