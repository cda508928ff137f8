//! Contract section 2: the JSON mapping.

use serde_json::{Value, json};

use super::{World, assert_keys};
use crate::support::*;

/// A payment with one of its fields as JSON text, so that it stands in the body as it is here.
fn payment_with(world: &World, field: &str, text: &str) -> String {
    let mut payment = world.payment();
    payment["evmSendNative"][field] = json!("PLACE");
    payment.to_string().replace("\"PLACE\"", text)
}

async fn create(world: &World, body: String) -> (u16, Value) {
    let api = world.api();
    let response = api
        .raw("/v1/createSigningRequest", |request| {
            request
                .header("x-mtoken", &api.token)
                .header("content-type", "application/json")
                .body(body)
        })
        .await;
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test]
async fn json__should_follow_every_rule_of_the_mapping() {
    let world = World::start().await;
    integers(&world).await;
    base64_variants(&world).await;
    names_and_nulls(&world).await;
    enums(&world).await;
    booleans(&world).await;
    other_operations(&world).await;
    kinds(&world).await;
    malformed(&world).await;
    responses(&world).await;
}

async fn integers(world: &World) {
    for text in ["1", "\"1\"", "1.0", "1e0", "10e-1"] {
        let (status, answer) = create(world, payment_with(world, "chainId", text)).await;
        assert_eq!(status, 200, "{text}: {answer}");
        let shown = &answer["signingRequest"]["evmSendNative"];
        assert_eq!(shown["chainId"], "1", "{text}");
        // The wrapper is there, and 0.
        assert_eq!(shown["nonce"], "0", "{text}");
    }
    for text in [
        "1.5",
        "\"1.5\"",
        "\" 1\"",
        "\"+1\"",
        "\"01\"",
        "\"0x1\"",
        "\"\"",
        "true",
        "[1]",
        "{}",
        "-1",
        "\"-1\"",
        "1e30",
        "9223372036854775808",
        "\"18446744073709551616\"",
    ] {
        let (status, answer) = create(world, payment_with(world, "chainId", text)).await;
        assert_eq!(status, 400, "{text}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(
            message.starts_with("evmSendNative.chainId: "),
            "{text}: {message}"
        );
    }
    // Amounts are strings: a JSON number would lose digits on the way.
    let (status, answer) = create(world, payment_with(world, "value", "1")).await;
    assert_eq!(status, 400, "{answer}");
    assert_eq!(
        answer["error"]["message"],
        "evmSendNative.value: must be a string"
    );
}

async fn base64_variants(world: &World) {
    let bytes = [0xfb, 0xff, 0xbf, 0x00];
    let create_with = async |content: &str| {
        let body = json!({"solanaMessage": {"from": world.solana, "content": content}});
        create(world, body.to_string()).await
    };
    for content in ["+/+/AA==", "+/+/AA", "-_-_AA==", "-_-_AA"] {
        let (status, answer) = create_with(content).await;
        assert_eq!(status, 200, "{content}: {answer}");
        let shown = &answer["signingRequest"]["solanaMessage"]["content"];
        assert_eq!(*shown, base64(bytes), "{content}");
    }
    for content in ["+_+_AA==", "AAA*", "A", "AA=A", "====", "AAAA "] {
        let (status, answer) = create_with(content).await;
        assert_eq!(status, 400, "{content}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("solanaMessage.content: "), "{message}");
    }
}

async fn names_and_nulls(world: &World) {
    let snake = json!({
        "broadcast_tx": false, "vault_uuid": world.dev.vault, "notes": null,
        "callbackClientSignerPublicKey": null, "evmMessage": null,
        "evm_send_native": {"chain_id": 1, "from": world.evm, "to": world.evm, "value": "1",
            "nonce": 0, "gas_fee": {"max_fee": "10", "max_priority_fee": null, "gas_limit": "21000"}}});
    let (status, answer) = create(world, snake.to_string()).await;
    assert_eq!(status, 200, "{answer}");
    let shown = &answer["signingRequest"];
    assert_eq!(shown["evmSendNative"]["gasFee"]["maxFee"], "10");
    assert_eq!(
        shown["evmSendNative"]["gasFee"]["maxPriorityFee"],
        Value::Null
    );
    assert_eq!(shown["notes"], Value::Null);

    for (body, path) in [
        (json!({"evmSendNatives": {}}), "evmSendNatives"),
        (
            json!({"evmMessage": {"form": world.evm}}),
            "evmMessage.form",
        ),
        (
            json!({"evmSendNative": {"gasFee": {"maxfee": "1"}}}),
            "evmSendNative.gasFee.maxfee",
        ),
    ] {
        let (status, answer) = create(world, body.to_string()).await;
        assert_eq!(status, 400, "{answer}");
        assert_eq!(answer["error"]["message"], format!("{path}: unknown field"));
    }
    let twice = format!(
        r#"{{"evmMessage": {{"from": "{0}", "from": "{0}", "content": "AA=="}}}}"#,
        world.evm
    );
    let both_forms = format!(
        r#"{{"evmMessage": {{"chainId": 1, "chain_id": 1, "from": "{}", "content": "AA=="}}}}"#,
        world.evm
    );
    for body in [twice, both_forms] {
        let (status, answer) = create(world, body).await;
        assert_eq!(status, 400, "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.ends_with("is given twice"), "{message}");
    }
}

async fn enums(world: &World) {
    let create_with = async |hash: Value| {
        let body = json!({"rawMessage": {"from": world.evm, "content": base64([7; 32]),
            "ecdsaHashFunction": hash}});
        create(world, body.to_string()).await
    };
    for hash in [json!("ECDSA_HASH_FUNCTION_SHA256"), json!(2), json!(2.0)] {
        let (status, answer) = create_with(hash).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(
            answer["signingRequest"]["rawMessage"]["ecdsaHashFunction"],
            "ECDSA_HASH_FUNCTION_SHA256"
        );
    }
    for hash in [
        json!("SHA256"),
        json!("ecdsa_hash_function_sha256"),
        json!("2"),
        json!(3),
        json!(-1),
        json!(true),
        json!(1.5),
    ] {
        let (status, answer) = create_with(hash.clone()).await;
        assert_eq!(status, 400, "{hash}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(
            message.starts_with("rawMessage.ecdsaHashFunction: "),
            "{message}"
        );
    }
}

/// A wrapper: unset means true.
async fn booleans(world: &World) {
    for text in ["true", "false", "null"] {
        let body = json!({"solanaMessage": {"from": world.solana, "content": "AA=="}});
        let body = body
            .to_string()
            .replacen('{', &format!("{{\"broadcastTx\": {text}, "), 1);
        let (status, answer) = create(world, body).await;
        assert_eq!(status, 200, "{text}: {answer}");
    }
    for text in ["\"true\"", "1", "0", "{}", "[true]", "{\"value\": true}"] {
        let body = world.message("hello").to_string();
        let body = body.replacen('{', &format!("{{\"broadcastTx\": {text}, "), 1);
        let (status, answer) = create(world, body).await;
        assert_eq!(status, 400, "{text}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("broadcastTx: "), "{text}: {message}");
    }
}

/// The rules are those of the schema, and not of one operation.
async fn other_operations(world: &World) {
    let (api, vault) = (world.api(), &world.dev.vault);
    let upper = vault.to_uppercase();
    let message = json!({"name": "x", "btc_batch_send_native": null, "sui_batch_send_coin": null});
    for (operation, body, field, part) in [
        // Both forms of names, nulls, and numbers for enums and as strings.
        (
            "createWallet",
            json!({"vault_uuid": upper, "network_type": 1, "ref": null, "name": null}),
            "details",
            "",
        ),
        (
            "getWalletList",
            json!({"vault_uuid": vault, "page": "1", "limit": 1e0}),
            "detailsList",
            "",
        ),
        (
            "getSigningRequestList",
            json!({"vaultUuid": vault, "sort_order": 1, "page": null}),
            "signingRequests",
            "",
        ),
        // What is not there, of which there are two, or that is unknown.
        ("createBatchPayment", message, "batchPayment", "exactly one"),
        (
            "createBatchPayment",
            json!({"btcBatchSendNative": {}, "sui_batch_send_native": {}}),
            "batchPayment",
            "exactly one",
        ),
        (
            "createBatchPayment",
            json!({"btcBatchSendNative": {"recipients": [{}, {"adress": "x"}]}}),
            "batchPayment",
            "btcBatchSendNative.recipients[1].adress: unknown field",
        ),
        (
            "getWalletInfo",
            json!({"address": world.evm, "ref": "x"}),
            "details",
            "exactly one",
        ),
        (
            "createWallet",
            json!({"vaultUuid": vault, "networkType": 9}),
            "details",
            "networkType: ",
        ),
        (
            "updateWallet",
            json!({"address": world.evm, "names": "x"}),
            "details",
            "names: unknown field",
        ),
    ] {
        let (status, answer) = api.post(operation, body.clone()).await;
        assert_keys(&answer, &[field, "error"]);
        let expected = if part.is_empty() { 200 } else { 400 };
        assert_eq!(status, expected, "{operation} {body}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(part), "{operation} {body}: {message}");
    }
}

async fn kinds(world: &World) {
    let message = world.message("hello")["evmMessage"].clone();
    let raw = json!({"from": world.solana, "content": "AA=="});
    for (body, part) in [
        (json!({}), "exactly one payload kind"),
        (
            json!({"notes": "nothing to sign"}),
            "exactly one payload kind",
        ),
        (json!({"evmMessage": null}), "exactly one payload kind"),
        (
            json!({"evmMessage": message, "rawMessage": raw}),
            "exactly one payload kind",
        ),
        // Also where they are wrong in themselves.
        (
            json!({"evmMessage": {}, "rawMessage": {}}),
            "exactly one payload kind",
        ),
    ] {
        let (status, answer) = create(world, body.to_string()).await;
        assert_eq!(status, 400, "{body}: {answer}");
        let said = answer["error"]["message"].as_str().unwrap();
        assert!(said.contains(part), "{body}: {said}");
        assert_eq!(answer["signingRequest"], Value::Null);
    }
    // Kinds that appear in responses only.
    for kind in ["createWallet", "vaultCreation", "swapSend"] {
        let (status, answer) = create(world, json!({kind: {}}).to_string()).await;
        assert_eq!(status, 400, "{kind}: {answer}");
        assert_eq!(answer["error"]["message"], format!("{kind}: unknown field"));
    }
}

async fn malformed(world: &World) {
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    for body in [
        "",
        "{",
        "null",
        "[]",
        "\"text\"",
        "1",
        "{} {}",
        "{\"notes\": \"\\ud800\"}",
        "{'notes': 1}",
        "{\"notes\": NaN}",
        "{\"notes\": \"a\nb\"}",
        &format!("{{\"notes\": {deep}}}"),
    ] {
        let (status, answer) = create(world, body.to_owned()).await;
        assert_eq!(status, 400, "{body:.60}: {answer}");
        assert_keys(&answer, &["signingRequest", "error"]);
        assert_keys(&answer["error"], &["message", "serviceErrorCode"]);
    }
}

/// Every field is present, whatever it holds.
async fn responses(world: &World) {
    const FIELDS: [&str; 26] = [
        "uuid",
        "status",
        "failedReason",
        "replacesUuid",
        "replacedByUuids",
        "transactionState",
        "tokenTransferFee",
        "signedTransaction",
        "pendingOperation",
        "requiredApprovalCount",
        "remainingApprovalCount",
        "approvals",
        "batchPaymentUuid",
        "approvalExpiryTimestamp",
        "approvalWanted",
        "approvalSubject",
        "txHash",
        "creationTimestamp",
        "notes",
        "vaultUuid",
        "callbackClientSignerPublicKey",
        "simulation",
        "evmInputDataDecode",
        "signatures",
        "source",
        "evmSendNative",
    ];
    let mut body = world.payment();
    body["notes"] = json!("Grüße, \u{1F511}");
    let (status, answer) = create(world, body.to_string()).await;
    assert_eq!(status, 200, "{answer}");
    assert_keys(&answer, &["signingRequest", "error"]);
    assert_eq!(answer["error"], Value::Null);
    let request = &answer["signingRequest"];
    assert_keys(request, &FIELDS);
    assert_eq!(request["status"], "STATUS_PENDING");
    for empty in ["failedReason", "txHash", "simulation"] {
        assert_eq!(request[empty], "", "{empty}");
    }
    for unset in [
        "callbackClientSignerPublicKey",
        "evmInputDataDecode",
        "signatures",
    ] {
        assert_eq!(request[unset], Value::Null, "{unset}");
    }
    assert_eq!(request["notes"], "Grüße, \u{1F511}");
    assert_eq!(request["vaultUuid"], world.dev.vault.as_str());
    assert_keys(
        &request["evmSendNative"],
        &["chainId", "from", "to", "value", "gasFee", "nonce"],
    );
    let uuid = request["uuid"].as_str().unwrap();
    assert_eq!(uuid.len(), 36);
    assert_eq!(uuid, uuid.to_lowercase());
    let created: u64 = request["creationTimestamp"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    // Milliseconds of this century.
    assert!((1_700_000_000_000..4_000_000_000_000).contains(&created));

    let outcome = world.api().execute(uuid).await;
    assert_keys(
        &outcome,
        &["error", "txHash", "signatures", "signedTransaction"],
    );
    let signature = &first_signature(&outcome)["ecdsaSignature"];
    assert_keys(signature, &["R", "S", "V"]);
    for number in ["R", "S"] {
        let text = signature[number].as_str().unwrap();
        assert!(text.starts_with("0x") && text.len() == 66, "{text}");
    }
    // At most half of the order of the curve.
    let half = "7fffffffffffffffffffffffffffffff5d576e7357a4501ddfe92f46681b20a0";
    assert!(&signature["S"].as_str().unwrap()[2..] <= half);
    assert!(["0", "1"].contains(&signature["V"].as_str().unwrap()));
    let details = world.api().details(uuid).await;
    assert_keys(&details, &FIELDS);
    assert_eq!(details["status"], "STATUS_SUCCEEDED");
    assert_eq!(details["txHash"], outcome["txHash"]);

    let uuid = world
        .api()
        .create(json!({"solanaMessage": {"from": world.solana, "content": base64("x")}}))
        .await;
    let outcome = world.api().execute(&uuid).await;
    let signature = &first_signature(&outcome)["eddsaSignature"];
    assert_eq!(signature.as_str().unwrap().len(), 88);
    assert_eq!(outcome["txHash"], "");
    assert_eq!(outcome["signedTransaction"], "");
}
