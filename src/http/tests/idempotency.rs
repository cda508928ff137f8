//! Contract section 5, as far as the front is concerned: a used key is answered before anything of
//! the call is judged. The store's side has its tests in the actors.

use serde_json::{Value, json};

use super::routes::{TestRequest, app_strict, post, vault};
use crate::{
    api::headers::{IDEMPOTENCY_MISMATCH, IDEMPOTENCY_REPLAYED},
    http::Router,
};

struct Response {
    status: u16,
    replayed: bool,
    mismatch: bool,
    body: Value,
}

async fn call(app: &Router, operation: &str, key: &str, body: &str) -> Response {
    let path = format!("/v1/{operation}");
    let mut ask = TestRequest {
        body: body.to_owned(),
        ..post(&path, Value::Null)
    };
    ask.headers.push(("idempotency-key", key));
    let (status, headers, body) = ask.of(app).await;
    Response {
        status,
        replayed: headers.contains_key(IDEMPOTENCY_REPLAYED),
        mismatch: headers.contains_key(IDEMPOTENCY_MISMATCH),
        body,
    }
}

#[tokio::test]
async fn used_key__should_be_answered_whatever_the_body_says() {
    for strict in [false, true] {
        let app = app_strict(strict).await;
        let vault = vault(&app).await;
        let wallet = json!({"vaultUuid": vault, "networkType": "NETWORK_TYPE_EVM"});
        let first = call(&app, "createWallet", "k", &wallet.to_string()).await;
        assert_eq!((first.status, first.replayed), (200, false));

        // The same message, written in another way.
        let again =
            format!("{{ \"network_type\": 1,\n\"name\":null, \"vaultUuid\": \"{vault}\" }}");
        let again = call(&app, "createWallet", "k", &again).await;
        assert_eq!(
            (again.status, again.replayed, again.mismatch),
            (200, true, false)
        );
        assert_eq!(again.body, first.body);

        // Bodies that no free key would get past.
        for other in [
            "",
            "{",
            "[]",
            "{\"noSuchField\": 1}",
            "{\"vaultUuid\": \"x\"}",
            "{\"networkType\": \"NETWORK_TYPE_DOGECOIN\"}",
        ] {
            let said = call(&app, "createWallet", "k", other).await;
            if strict {
                assert_eq!(said.status, 422, "{other}: {}", said.body);
            } else {
                assert_eq!((said.status, said.mismatch), (200, true), "{other}");
                assert_eq!(said.body, first.body, "{other}");
            }
            let free = call(&app, "createWallet", "free", other).await;
            assert_eq!((free.status, free.replayed), (400, false), "{other}");
        }
        // Refused calls have left it free.
        let free = call(&app, "createWallet", "free", &wallet.to_string()).await;
        assert_eq!((free.status, free.replayed), (200, false), "{}", free.body);
    }
}

#[tokio::test]
async fn used_key__should_be_answered_whatever_has_changed_since() {
    let app = app_strict(false).await;
    let vault = vault(&app).await;
    let wallet = json!({"vaultUuid": vault, "networkType": "NETWORK_TYPE_EVM"});
    let (_, _, wallet) = post("/v1/createWallet", wallet).of(&app).await;
    let from = &wallet["details"]["address"];
    let message = json!({"evmMessage": {"from": from, "content": "aGk="}}).to_string();
    let batch = json!({"name": "wages", "evmBatchSendNative": {"chainId": 1, "from": from,
        "recipients": [{"address": from, "amount": "1"}]}});
    let calls = [
        ("createSigningRequest", message),
        ("createBatchPayment", batch.to_string()),
    ];
    let mut firsts = Vec::new();
    for (operation, body) in &calls {
        let first = call(&app, operation, "k", body).await;
        assert_eq!(first.status, 200, "{}", first.body);
        firsts.push(first.body);
    }
    let archive = json!({"address": from, "status": "STATUS_ARCHIVED"});
    assert_eq!(post("/v1/updateWallet", archive).of(&app).await.0, 200);
    for ((operation, body), first) in calls.iter().zip(&firsts) {
        assert_eq!(call(&app, operation, "other", body).await.status, 409);
        let again = call(&app, operation, "k", body).await;
        assert_eq!(
            (again.status, again.replayed, again.mismatch),
            (200, true, false)
        );
        assert_eq!(&again.body, first);
    }
}
