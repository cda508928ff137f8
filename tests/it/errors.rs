//! What a client gets when it asks for something wrong: contract section 4.

use serde_json::{Value, json};

use super::support::*;

#[tokio::test]
async fn wrong_requests__should_be_refused_in_the_shape_of_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let dev = Dev::start(&folder.path().join("dev"), &[]).await;
    let api = &dev.api;
    let evm = api.wallet(&dev.vault, "NETWORK_TYPE_EVM").await;
    let message = json!({"from": evm, "content": base64([1; 32]), "ecdsaHashFunction": 1});

    let cases = [
        // (operation, body, result field, part of the message)
        (
            "getSigningRequestDetails",
            json!({"uuid": "nonsense"}),
            "signingRequest",
            "Invalid uuid",
        ),
        (
            "getSigningRequestDetails",
            json!({"uuid": "00000000-0000-4000-8000-000000000000"}),
            "signingRequest",
            "Invalid uuid",
        ),
        (
            "executeSigningRequests",
            json!({"uuid": ""}),
            "signatures",
            "Invalid uuid",
        ),
        (
            "createSigningRequest",
            json!({}),
            "signingRequest",
            "exactly one",
        ),
        (
            "createSigningRequest",
            json!({"rawMessage": message, "evmMessage": {}}),
            "signingRequest",
            "exactly one",
        ),
        (
            "createSigningRequest",
            json!({"rawMesage": message}),
            "signingRequest",
            "rawMesage",
        ),
        (
            "createSigningRequest",
            json!({"rawMessage": {"from": evm, "content": "AA=="}}),
            "signingRequest",
            "rawMessage.ecdsaHashFunction",
        ),
        (
            "createSigningRequest",
            json!({"evmSendNative": {"chainId": "1", "from": evm, "to": "0x12", "value": "1"}}),
            "signingRequest",
            "evmSendNative.to",
        ),
        (
            "createSigningRequest",
            json!({"evmSendNative": {"chainId": "424242", "from": evm, "to": evm, "value": "1"}}),
            "signingRequest",
            "evmSendNative",
        ),
        (
            "createSigningRequest",
            json!({"rawMessage": {"from": "0x1111111111111111111111111111111111111111", "content": base64([1; 32]), "ecdsaHashFunction": 1}}),
            "signingRequest",
            "rawMessage.from",
        ),
        (
            "createWallet",
            json!({"vaultUuid": dev.vault}),
            "details",
            "networkType",
        ),
        (
            "createWallet",
            json!({"vaultUuid": dev.vault, "networkType": "NETWORK_TYPE_EVM", "name": "n".repeat(86)}),
            "details",
            "name",
        ),
        (
            "getBalance",
            json!({"networkType": "NETWORK_TYPE_EVM", "walletAddress": evm}),
            "balance",
            "chainId",
        ),
        (
            "getBalance",
            json!({"networkType": "NETWORK_TYPE_EVM", "walletAddress": evm, "chainId": "424242"}),
            "balance",
            "Invalid chain id",
        ),
        (
            "getWalletList",
            json!({"vaultUuid": dev.vault, "limit": 101}),
            "detailsList",
            "limit",
        ),
        ("getWalletInfo", json!({}), "details", "exactly one"),
    ];
    for (operation, body, field, part) in cases {
        let (status, answer) = api.post(operation, body.clone()).await;
        assert_eq!(status, 400, "{operation} {body}: {answer}");
        let error = &answer["error"];
        assert!(
            error["message"].as_str().unwrap().contains(part),
            "{operation} {body}: {answer}"
        );
        let codes = ["serviceErrorCode", "executeSigningRequestsErrorCode"];
        assert_eq!(
            codes
                .iter()
                .filter(|code| error.get(**code).is_some())
                .count(),
            1,
            "{answer}"
        );
        assert!(
            answer.get(field).is_some(),
            "{operation} without {field}: {answer}"
        );
        assert!(
            answer[field].is_null() || answer[field] == json!([]) || answer[field] == "",
            "{answer}"
        );
    }

    let wallet =
        json!({"vaultUuid": dev.vault, "networkType": "NETWORK_TYPE_EVM", "ref": "customer-7"});
    api.ok("createWallet", wallet.clone()).await;
    let (status, answer) = api.post("createWallet", wallet).await;
    assert_eq!(status, 409, "{answer}");
    let info = api.ok("getWalletInfo", json!({"ref": "customer-7"})).await;
    assert_eq!(info["details"]["ref"], "customer-7");
}

#[tokio::test]
async fn every_answer__should_carry_a_request_id_and_ask_for_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let dev = Dev::start(&folder.path().join("dev"), &[]).await;
    let token = dev.api.token.clone();
    for (path, expected, token) in [
        ("/v1/getWalletList", 401, None),
        ("/v1/getWalletList", 401, Some("wrong")),
        ("/v1/getWalletList", 200, Some(token.as_str())),
        ("/v1/noSuchOperation", 404, Some(token.as_str())),
    ] {
        let response = dev
            .api
            .raw(path, |request| {
                let request = request.json(&json!({"vaultUuid": dev.vault}));
                match token {
                    Some(token) => request.header("x-mtoken", token),
                    None => request,
                }
            })
            .await;
        assert_eq!(response.status().as_u16(), expected, "{path}");
        assert!(!response.headers()["x-request-id"].is_empty());
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["error"].is_null(), expected == 200, "{body}");
    }
    let large = dev
        .api
        .raw("/v1/createSigningRequest", |request| {
            request
                .header("x-mtoken", &token)
                .header("content-type", "application/json")
                .body(vec![b' '; 8 << 20])
        })
        .await;
    assert_eq!(large.status().as_u16(), 413);
    let malformed = dev
        .api
        .raw("/v1/createSigningRequest", |request| {
            request
                .header("x-mtoken", &token)
                .header("content-type", "application/json")
                .body("{")
        })
        .await;
    assert_eq!(malformed.status().as_u16(), 400);
    assert_eq!(dev.api.get("/livez").await, 200);
    assert_eq!(dev.api.get("/readyz").await, 200);
}

#[tokio::test]
async fn repeated_key__should_get_the_first_answer_again() {
    let folder = tempfile::tempdir().unwrap();
    let dev = Dev::start(&folder.path().join("dev"), &[]).await;
    let body = json!({"vaultUuid": dev.vault, "networkType": "NETWORK_TYPE_EVM"});
    let call = async |key: &str| {
        let response = dev
            .api
            .raw("/v1/createWallet", |request| {
                request
                    .header("x-mtoken", &dev.api.token)
                    .header("idempotency-key", key)
                    .json(&body)
            })
            .await;
        let replayed = response
            .headers()
            .get("idempotency-replayed")
            .is_some_and(|value| value == "true");
        (replayed, response.text().await.unwrap())
    };
    let (replayed, first) = call("a").await;
    assert!(!replayed);
    assert_eq!(call("a").await, (true, first.clone()));
    let (replayed, other) = call("b").await;
    assert!(!replayed && other != first);
}

/// Every create kind of the schema is known: an ordinary request of another's wallet is refused for
/// its wallet, and for nothing else.
#[tokio::test]
async fn every_kind__should_be_taken_from_wallets_of_ones_own_only() {
    let folder = tempfile::tempdir().unwrap();
    let dev = Dev::start(&folder.path().join("dev"), &[]).await;
    let vectors = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let mut refused = std::collections::BTreeSet::new();
    for name in [
        "evm", "bitcoin", "tron", "aptos", "sui", "ton", "stellar", "solana", "sonic", "raw",
    ] {
        let text = std::fs::read_to_string(vectors.join(format!("{name}.json"))).unwrap();
        let file: Value = serde_json::from_str(&text).unwrap();
        for case in file["vectors"].as_array().unwrap() {
            let kind = case["kind"].as_str().unwrap();
            // Batches are another operation; kinds with a note in brackets are no kinds of the schema.
            let no_kind =
                kind == "addressDerivation" || kind.contains("Batch") || kind.contains('(');
            // The first case of each kind is an ordinary one.
            if no_kind || !refused.insert(kind.to_owned()) {
                continue;
            }
            let (status, answer) = dev
                .api
                .post("createSigningRequest", json!({kind: case["input"]}))
                .await;
            assert_eq!(status, 400, "{kind}: {answer}");
            let message = answer["error"]["message"].as_str().unwrap();
            assert!(
                message.starts_with(&format!("{kind}.from: ")),
                "{kind}: {message}"
            );
        }
    }
    assert_eq!(refused.len(), 32, "only {refused:?}");
}
