//! Contract section 5: a key makes one effect and one answer.

use serde_json::{Value, json};
use tonic::Code;

use super::{World, caller::ApiCaller};

/// A transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallTransport {
    Rest,
    Grpc,
}

/// The status, whether it was replayed, whether the body was another, and the answer as it came
/// (over gRPC, as JSON).
type Reply = (u16, bool, bool, String);

async fn call(
    over: CallTransport,
    caller: &ApiCaller,
    operation: &str,
    key: &str,
    body: &Value,
) -> Reply {
    let key = ("idempotency-key", key);
    if over == CallTransport::Grpc {
        let (answer, metadata) = match caller.grpc(operation, body, &[key]).await {
            Ok(answered) => answered,
            Err(status) => {
                assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
                return (400, false, false, status.message().to_owned());
            }
        };
        let says = |name: &str| metadata.get(name).is_some_and(|value| value == "true");
        let (replayed, mismatch) = (
            says("idempotency-replayed"),
            says("idempotency-body-mismatch"),
        );
        return (200, replayed, mismatch, answer.to_string());
    }
    let response = caller
        .api
        .raw(&format!("/v1/{operation}"), |request| {
            request
                .header("x-mtoken", &caller.api.token)
                .header(key.0, key.1)
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
    // A key of its own for each transport.
    let ways = [
        (CallTransport::Rest, "\u{21}".repeat(255)),
        (CallTransport::Grpc, "~".repeat(255)),
    ];
    let caller = world.caller();
    let mut firsts = Vec::new();
    for (over, longest) in &ways {
        for (operation, body) in &calls {
            let all = (0..50).map(|_| call(*over, &caller, operation, longest, body));
            let all = futures::future::join_all(all).await;
            let first = all[0].3.clone();
            assert!(
                all.iter().all(|it| it.0 == 200 && it.3 == first && !it.2),
                "{all:?}"
            );
            assert_eq!(all.iter().filter(|it| !it.1).count(), 1, "{operation}");
            firsts.push((*over, longest, *operation, body, first));
        }
    }
    let vault = json!({"vaultUuid": world.dev.vault});
    let wallets = world.api().ok("getWalletList", vault.clone()).await;
    assert_eq!(wallets["detailsList"].as_array().unwrap().len(), 4);
    let requests = world.api().ok("getSigningRequestList", vault).await;
    // The vault itself and its two keys are listed, too.
    assert_eq!(requests["signingRequests"].as_array().unwrap().len(), 5);

    // A crash forgets nothing: the answer is the first one, although the request is signed by now.
    world.dev.process.kill();
    world.dev.restart().await;
    let caller = world.caller();
    for (over, longest, operation, body, first) in &firsts {
        let again = call(*over, &caller, operation, longest, body).await;
        assert_eq!(again, (200, true, false, first.clone()), "{operation}");
    }

    let other = json!({"vaultUuid": world.dev.vault, "networkType": "NETWORK_TYPE_TON"});
    let wrong = json!({"vaultUuid": world.dev.vault});
    for (over, longest, operation, _, first) in &firsts {
        if *operation != "createWallet" {
            continue;
        }
        let call = async |key: &str, body: &Value| call(*over, &caller, operation, key, body).await;
        // Keys belong to one operation; another body gets the first answer and a header that says so.
        let again = call(longest, &other).await;
        assert_eq!(again, (200, true, true, first.clone()));
        let new = format!("new over {over:?}");
        let (status, replayed, ..) = call(&new, &other).await;
        assert_eq!((status, replayed), (200, false));

        // A refused call leaves its key free.
        let again = format!("again over {over:?}");
        assert_eq!(call(&again, &wrong).await.0, 400);
        let (status, replayed, ..) = call(&again, &other).await;
        assert_eq!((status, replayed), (200, false));

        for key in ["", &format!("{longest}k")] {
            let (status, _, _, answer) = call(key, &other).await;
            assert_eq!(status, 400, "{answer}");
            assert!(
                answer.contains("idempotency-key: must have 1 to 255"),
                "{answer}"
            );
        }
    }
}
