//! Contract section 3: what every operation does when it is asked rightly.

use serde_json::{Value, json};

use super::{World, assert_keys, keys};
use crate::support::*;

const BOB: &str = "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be";
const TOKEN: &str = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";
const WALLET: [&str; 10] = [
    "vaultUuid",
    "keyType",
    "keyPath",
    "publicKey",
    "networkType",
    "address",
    "ref",
    "status",
    "name",
    "addressProof",
];

#[tokio::test]
async fn wallets__should_be_made_changed_found_and_listed() {
    let world = World::start().await;
    let (api, vault) = (world.api(), &world.dev.vault);
    let made = api
        .ok(
            "createWallet",
            json!({"vaultUuid": vault, "networkType": 1, "ref": "customer-7", "name": "\u{1F511}".repeat(85)}),
        )
        .await;
    assert_keys(&made, &["details", "error"]);
    let wallet = &made["details"];
    assert_keys(wallet, &WALLET);
    assert_eq!(wallet["status"], "STATUS_ACTIVE");
    assert_eq!(wallet["networkType"], "NETWORK_TYPE_EVM");
    assert_eq!(wallet["keyType"], "KEY_TYPE_ECC_SECP256K1");
    let address = wallet["address"].as_str().unwrap();

    // A name of its own, then the archive, each alone and both together.
    let update = async |body: Value| api.ok("updateWallet", body).await["details"].clone();
    let renamed = update(json!({"address": address.to_lowercase(), "name": "Ada"})).await;
    assert_keys(&renamed, &WALLET);
    let mut expected = wallet.clone();
    expected["name"] = json!("Ada");
    assert_eq!(renamed, expected);
    let archived = update(json!({"address": address, "status": "STATUS_ARCHIVED"})).await;
    expected["status"] = json!("STATUS_ARCHIVED");
    assert_eq!(archived, expected);

    // An archived wallet is seen, and does not sign.
    for which in [json!({"address": address}), json!({"ref": "customer-7"})] {
        assert_eq!(api.ok("getWalletInfo", which).await["details"], expected);
    }
    let message = json!({"evmMessage": {"chainId": 1, "from": address, "content": "AA=="}});
    let (status, refused) = api.post("createSigningRequest", message.clone()).await;
    assert!(status == 409 || status == 400, "{refused}");
    let reason = refused["error"]["message"].as_str().unwrap();
    assert!(reason.contains("archived"), "{reason}");
    let back = update(json!({"address": address, "name": "Bo", "status": "STATUS_ACTIVE"})).await;
    expected["status"] = json!("STATUS_ACTIVE");
    expected["name"] = json!("Bo");
    assert_eq!(back, expected);
    api.sign(message).await;

    for (body, part) in [
        (json!({"address": address}), "name"),
        (
            json!({"address": address, "name": "", "status": ""}),
            "name",
        ),
        (json!({"address": address, "name": "n".repeat(86)}), "name"),
        (
            json!({"address": address, "status": "STATUS_PENDING"}),
            "status",
        ),
        (json!({"address": address, "status": "archived"}), "status"),
        (json!({"name": "x"}), "address"),
        (json!({"address": "nonsense", "name": "x"}), "address"),
        (json!({"address": BOB, "name": "x"}), "address"),
    ] {
        let (status, answer) = api.post("updateWallet", body.clone()).await;
        assert_eq!(status, 400, "{body}: {answer}");
        assert_eq!(answer["details"], Value::Null);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(part), "{body}: {message}");
    }
    let now = api.ok("getWalletInfo", json!({"address": address})).await;
    assert_eq!(now["details"], expected);

    // Pages, in the order of creation.
    let list = async |body: Value| {
        let list = api.ok("getWalletList", body).await["detailsList"].clone();
        let list = list.as_array().unwrap().clone();
        list.iter()
            .map(|wallet| wallet["address"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let all = list(json!({"vaultUuid": vault})).await;
    assert_eq!(all, [&world.evm, &world.solana, address]);
    assert_eq!(list(json!({"vaultUuid": vault, "page": 0})).await, all);
    let two = json!({"vaultUuid": vault, "page": "2", "limit": 2});
    assert_eq!(list(two).await, [address]);
    let past = json!({"vaultUuid": vault, "page": 9, "limit": 100});
    assert!(list(past).await.is_empty());
}

#[tokio::test]
async fn signing_requests__should_be_listed_by_age_and_rejected_before_they_sign() {
    let world = World::start().await;
    let (api, vault) = (world.api(), &world.dev.vault);
    let mut made = Vec::new();
    for number in 0..13 {
        let uuid = api.create(world.message(&number.to_string())).await;
        api.execute(&uuid).await;
        made.push(uuid);
    }
    let list = async |body: Value| {
        let answer = api.ok("getSigningRequestList", body).await;
        assert_keys(&answer, &["signingRequests", "error"]);
        let list = answer["signingRequests"].as_array().unwrap().clone();
        list.iter()
            .map(|request| request["uuid"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let newest: Vec<_> = made.iter().rev().cloned().collect();
    assert_eq!(list(json!({"vaultUuid": vault})).await, newest[..10]);
    let oldest = json!({"vaultUuid": vault, "sortOrder": "SORT_ORDER_ASC", "limit": 100});
    // The vault itself and its keys come first.
    assert_eq!(list(oldest).await[3..], made);
    let second = json!({"vaultUuid": vault, "page": 2, "limit": "5", "sortOrder": 0});
    assert_eq!(list(second).await, newest[5..10]);
    assert!(
        list(json!({"vaultUuid": vault, "page": 3}))
            .await
            .is_empty()
    );
    let answer = api
        .ok(
            "getSigningRequestList",
            json!({"vaultUuid": vault, "limit": 1}),
        )
        .await;
    let shown = &answer["signingRequests"][0];
    assert_eq!(*shown, api.details(&newest[0]).await);
    for (body, part) in [
        (json!({"vaultUuid": vault, "limit": 101}), "limit"),
        (json!({"vaultUuid": vault, "limit": -1}), "limit"),
        (json!({"vaultUuid": vault, "page": -1}), "page"),
        (json!({"vaultUuid": "x"}), "Invalid uuid"),
    ] {
        let (status, answer) = api.post("getSigningRequestList", body).await;
        assert_eq!(status, 400, "{answer}");
        assert_eq!(answer["signingRequests"], json!([]));
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(part), "{message}");
    }

    // What is over cannot be rejected.
    let (status, answer) = api
        .post("rejectSigningRequest", json!({"uuid": made[0]}))
        .await;
    assert_eq!(status, 409, "{answer}");
    assert_keys(&answer, &["error"]);
    for uuid in ["", "x", "00000000-0000-4000-8000-000000000000"] {
        let (status, answer) = api
            .post("rejectSigningRequest", json!({"uuid": uuid}))
            .await;
        assert_eq!(
            (status, &answer["error"]["message"]),
            (400, &json!("Invalid uuid"))
        );
    }
}

/// A request that waits for its chain's node has not reached signing.
#[tokio::test]
async fn rejection__should_end_a_request_that_waits_for_good() {
    let nothing = format!("31337=http://127.0.0.1:{}", free_port());
    let world = World::start_with(&["--chain", &nothing]).await;
    let api = world.api();
    let uuid = api
        .create(json!({"evmSendNative": {"chainId": 31337, "from": world.evm, "to": BOB, "value": "1"}}))
        .await;
    let answer = api.ok("rejectSigningRequest", json!({"uuid": uuid})).await;
    assert_keys(&answer, &["error"]);
    let details = api.details(&uuid).await;
    assert_eq!(details["status"], "STATUS_FAILED");
    assert_ne!(details["failedReason"], "");
    let outcome = api.execute(&uuid).await;
    assert_eq!(
        outcome["error"]["executeSigningRequestsErrorCode"],
        "EXECUTE_SIGNING_REQUESTS_ERROR_CODE_ALREADY_DENIED",
        "{outcome}"
    );
    let (status, again) = api
        .post("rejectSigningRequest", json!({"uuid": uuid}))
        .await;
    assert_eq!(status, 409, "{again}");
}

#[tokio::test]
async fn batches__should_be_stored_with_every_recipient_checked() {
    let world = World::start().await;
    let (api, vault) = (world.api(), &world.dev.vault);
    let bitcoin = api.wallet(vault, "NETWORK_TYPE_BITCOIN").await;
    let sui = api.wallet(vault, "NETWORK_TYPE_SUI").await;
    let recipient = |address: &str| json!({"address": address, "amount": "1000", "notes": "rent"});
    let kinds = [
        (
            "evmBatchSendNative",
            json!({"chainId": "1", "from": world.evm, "recipients": [recipient(BOB)]}),
        ),
        (
            "evmBatchSendErc20",
            json!({"chainId": "1", "from": world.evm, "tokenContractAddress": TOKEN, "recipients": [recipient(BOB)]}),
        ),
        (
            "btcBatchSendNative",
            json!({"from": bitcoin, "recipients": [recipient(&bitcoin)]}),
        ),
        (
            "suiBatchSendNative",
            json!({"from": sui, "recipients": [recipient(&sui)]}),
        ),
        (
            "suiBatchSendCoin",
            json!({"from": sui, "coinTag": "0x5a5a::usd::USD", "recipients": [recipient(&sui)]}),
        ),
    ];
    for (kind, content) in &kinds {
        let body = json!({"name": "wages", "notes": "June", *kind: content});
        let answer = api.ok("createBatchPayment", body).await;
        assert_keys(&answer, &["batchPayment", "error"]);
        let batch = &answer["batchPayment"];
        assert_keys(
            batch,
            &[
                "uuid",
                "name",
                "notes",
                "status",
                "failedReason",
                "creationTimestamp",
                "approvalSigningRequest",
                "sendSigningRequest",
                kind,
            ],
        );
        assert_eq!(batch["status"], "STATUS_PENDING");
        assert_eq!(batch["name"], "wages");
        assert_eq!(batch["notes"], "June");
        assert_eq!(batch["approvalSigningRequest"], Value::Null);
        let shown = &batch[kind]["recipients"][0];
        assert_eq!(keys(shown).len(), 3);
        assert_eq!(shown["notes"], "rent");
        let details = api
            .ok("getBatchPaymentDetails", json!({"uuid": batch["uuid"]}))
            .await;
        assert_eq!(details["batchPayment"], *batch);
    }

    // The row that is wrong is named.
    let many = |count: usize| vec![recipient(BOB); count];
    let evm =
        |recipients: Value| json!({"chainId": "1", "from": world.evm, "recipients": recipients});
    let good = recipient(BOB);
    let with = |field: &str, value: &str| {
        let mut bad = good.clone();
        bad[field] = json!(value);
        evm(json!([good, good, bad]))
    };
    for (content, path) in [
        (evm(json!([])), "evmBatchSendNative.recipients"),
        (evm(json!(many(255))), "evmBatchSendNative.recipients"),
        (
            with("address", "0x12"),
            "evmBatchSendNative.recipients[2].address",
        ),
        (
            with("address", &BOB.replace('B', "b")),
            "evmBatchSendNative.recipients[2].address",
        ),
        (
            with("amount", "0"),
            "evmBatchSendNative.recipients[2].amount",
        ),
        (
            with("amount", "-1"),
            "evmBatchSendNative.recipients[2].amount",
        ),
        (
            with("amount", "1.5"),
            "evmBatchSendNative.recipients[2].amount",
        ),
        (
            with("amount", ""),
            "evmBatchSendNative.recipients[2].amount",
        ),
        (
            json!({"chainId": "1", "from": BOB, "recipients": [good]}),
            "evmBatchSendNative.from",
        ),
    ] {
        let body = json!({"name": "wages", "evmBatchSendNative": content});
        let (status, answer) = api.post("createBatchPayment", body).await;
        assert_eq!(status, 400, "{path}: {answer}");
        assert_eq!(answer["batchPayment"], Value::Null);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("{path}: ")), "{message}");
    }
    let most = json!({"name": "many", "evmBatchSendNative": evm(json!(many(254)))});
    let answer = api.ok("createBatchPayment", most).await;
    let shown = &answer["batchPayment"]["evmBatchSendNative"]["recipients"];
    assert_eq!(shown.as_array().unwrap().len(), 254);

    for body in [
        json!({"name": "none"}),
        json!({"name": "two", kinds[0].0: kinds[0].1, kinds[2].0: kinds[2].1}),
    ] {
        let (status, answer) = api.post("createBatchPayment", body).await;
        assert_eq!(status, 400, "{answer}");
    }
    let (status, answer) = api
        .post(
            "createBatchPayment",
            json!({"name": "x", "evmBatchSendNative": {"chainId": "424242", "from": world.evm, "recipients": [good]}}),
        )
        .await;
    assert_eq!(
        (status, &answer["error"]["message"]),
        (400, &json!("Invalid chain id"))
    );
    for uuid in ["", "00000000-0000-4000-8000-000000000000"] {
        let (status, answer) = api
            .post("getBatchPaymentDetails", json!({"uuid": uuid}))
            .await;
        assert_eq!(
            (status, &answer["error"]["message"]),
            (400, &json!("Invalid uuid"))
        );
        assert_eq!(answer["batchPayment"], Value::Null);
    }
}
