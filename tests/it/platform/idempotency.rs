//! Contract section 5: a key makes one effect and one answer.

use serde_json::{Value, json};

use super::World;

/// The status, whether it was replayed, whether the body was another, and the answer as it came.
type Reply = (u16, bool, bool, String);

async fn call(world: &World, operation: &str, key: &str, body: &Value) -> Reply {
    let api = world.api();
    let response = api
        .raw(&format!("/v1/{operation}"), |request| {
            request
                .header("x-mtoken", &api.token)
                .header("idempotency-key", key)
                .json(body)
        })
        .await;
    let says = |name: &str| {
        let value = response.headers().get(name);
        value.is_some_and(|value| value == "true")
    };
    let (replayed, mismatch) = (
        says("idempotency-replayed"),
        says("idempotency-body-mismatch"),
    );
    (
        response.status().as_u16(),
        replayed,
        mismatch,
        response.text().await.unwrap(),
    )
}

#[tokio::test]
async fn fifty_calls_with_one_key__should_make_one_thing_and_get_one_answer() {
    let mut world = World::start().await;
    let batch = json!({"name": "wages", "evmBatchSendNative": {"chainId": 1, "from": world.evm,
        "recipients": [{"address": world.evm, "amount": "1"}]}});
    let calls = [
        (
            "createWallet",
            json!({"vaultUuid": world.dev.vault, "networkType": "NETWORK_TYPE_TRON"}),
        ),
        ("createSigningRequest", world.message("once")),
        ("createBatchPayment", batch),
    ];
    let longest = "\u{21}".repeat(255);
    let mut firsts = Vec::new();
    for (operation, body) in &calls {
        let all = (0..50).map(|_| call(&world, operation, &longest, body));
        let all = futures::future::join_all(all).await;
        let first = all[0].3.clone();
        assert!(
            all.iter().all(|it| it.0 == 200 && it.3 == first && !it.2),
            "{all:?}"
        );
        assert_eq!(all.iter().filter(|it| !it.1).count(), 1, "{operation}");
        firsts.push(first);
    }
    let wallets = world
        .api()
        .ok("getWalletList", json!({"vaultUuid": world.dev.vault}))
        .await;
    assert_eq!(wallets["detailsList"].as_array().unwrap().len(), 3);
    let requests = world
        .api()
        .ok(
            "getSigningRequestList",
            json!({"vaultUuid": world.dev.vault}),
        )
        .await;
    assert_eq!(requests["signingRequests"].as_array().unwrap().len(), 1);

    // A crash forgets nothing: the answer is the first one, although the request is signed by now.
    world.dev.process.kill();
    world.dev.restart().await;
    for ((operation, body), first) in calls.iter().zip(&firsts) {
        let again = call(&world, operation, &longest, body).await;
        assert_eq!(again, (200, true, false, first.clone()), "{operation}");
    }

    // Keys belong to one operation; another body gets the first answer and is told so.
    let other = json!({"vaultUuid": world.dev.vault, "networkType": "NETWORK_TYPE_TON"});
    let again = call(&world, "createWallet", &longest, &other).await;
    assert_eq!(again, (200, true, true, firsts[0].clone()));
    let (status, replayed, ..) = call(&world, "createWallet", "new", &other).await;
    assert_eq!((status, replayed), (200, false));

    // A refused call leaves its key free.
    let wrong = json!({"vaultUuid": world.dev.vault});
    assert_eq!(call(&world, "createWallet", "again", &wrong).await.0, 400);
    let (status, replayed, ..) = call(&world, "createWallet", "again", &other).await;
    assert_eq!((status, replayed), (200, false));

    for key in ["", &format!("{longest}k")] {
        let (status, _, _, answer) = call(&world, "createWallet", key, &other).await;
        assert_eq!(status, 400, "{answer}");
        assert!(answer.contains("idempotency-key"), "{answer}");
    }
}
