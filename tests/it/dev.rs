//! `covault dev`: the main job, end to end.

use serde_json::{Value, json};

use super::support::*;

const EVM: &str = "NETWORK_TYPE_EVM";
const SOLANA: &str = "NETWORK_TYPE_SOLANA";

/// The JSON that a message shows.
fn shown_content(message: &Value) -> Value {
    use ::base64::{Engine as _, engine::general_purpose::STANDARD};
    let content = STANDARD.decode(message["content"].as_str().unwrap());
    serde_json::from_slice(&content.unwrap()).unwrap()
}

#[tokio::test]
async fn dev__should_sign_messages_that_outside_libraries_accept() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start_first(&folder.path().join("dev"), &[]).await;
    let api = &dev.api;
    let evm = api.wallet(&dev.vault, EVM).await;
    let solana = api.wallet(&dev.vault, SOLANA).await;

    let digest = [0x5a; 32];
    let outcome = api
        .sign(json!({"vaultUuid": dev.vault, "rawMessage": {
            "from": evm, "content": base64(digest),
            "ecdsaHashFunction": "ECDSA_HASH_FUNCTION_USE_MESSAGE_DIRECTLY"}}))
        .await;
    let signature = &first_signature(&outcome)["ecdsaSignature"];
    let answer = outside(
        "recover",
        json!({"digest": format!("0x{}", hex::encode(digest)), "signature": signature}),
    );
    assert_eq!(answer["address"], json!(evm));

    let content = base64("hashed by the service");
    let outcome = api
        .sign(json!({"rawMessage": {"from": evm, "content": content,
            "ecdsaHashFunction": "ECDSA_HASH_FUNCTION_SHA256"}}))
        .await;
    let digest = outside("sha256", json!({"content": content}))["digest"].clone();
    let signature = &first_signature(&outcome)["ecdsaSignature"];
    assert_eq!(
        outside("recover", json!({"digest": digest, "signature": signature}))["address"],
        json!(evm)
    );

    let content = base64("hello world");
    let outcome = api
        .sign(json!({"evmMessage": {"chainId": "1", "from": evm, "content": content}}))
        .await;
    let signature = &first_signature(&outcome)["ecdsaSignature"];
    assert_eq!(
        outside(
            "personal",
            json!({"content": content, "signature": signature})
        )["address"],
        json!(evm)
    );

    let payload = json!({
        "types": {
            "Person": [{"name": "name", "type": "string"}, {"name": "wallet", "type": "address"}],
            "Mail": [{"name": "from", "type": "Person"}, {"name": "contents", "type": "string"}]},
        "primaryType": "Mail",
        "domain": {"name": "Mail", "version": "1", "chainId": 1},
        "message": {"from": {"name": "Ada", "wallet": evm}, "contents": "hello"}});
    // What no type has is neither signed nor shown.
    let mut more = payload.clone();
    more["message"]["from"]["memo"] = json!("pay twice");
    more["message"]["amount"] = json!("1000000");
    let uuid = api
        .create(json!({"evmMessage": {"chainId": "1", "from": evm, "content": base64(more.to_string())}}))
        .await;
    let outcome = api.execute(&uuid).await;
    let signature = &first_signature(&outcome)["ecdsaSignature"];
    for payload in [&payload, &more] {
        let question = json!({"payload": payload, "signature": signature});
        let who = json!([evm, evm, evm]);
        assert_eq!(outside("typedData", question)["addresses"], who);
    }
    let shown = api.details(&uuid).await["evmMessage"].clone();
    assert_eq!(shown["type"], "TYPE_SIGN_TYPED_DATA");
    assert_eq!(shown_content(&shown), payload);

    for kind in ["rawMessage", "solanaMessage"] {
        let content = base64(format!("{kind} on the other curve"));
        let outcome = api
            .sign(json!({kind: {"from": solana, "content": content}}))
            .await;
        let signature = &first_signature(&outcome)["eddsaSignature"];
        let answer = outside(
            "ed25519",
            json!({"content": content, "signature": signature, "address": solana}),
        );
        assert_eq!(answer["valid"], json!(true), "{kind}");
    }
}

/// The link that it prints enrols a passkey, once, which then signs in and sees the vault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn console__should_be_entered_by_the_link_that_dev_prints() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let dev = DevProcess::start(&folder.path().join("dev"), &["--console", &address]).await;
    let origin = format!("http://localhost:{port}");
    let begin = format!("{origin}/enrol#");
    let link = eventually("dev prints a link", async || {
        let log = dev.process.log();
        let link = log.split_whitespace().find(|it| it.starts_with(&begin))?;
        Some(link.to_owned())
    })
    .await;
    let mut browser = Browsers::start(&origin, "dev-console");
    browser.ask("enrol", "developer", json!({"link": link}));
    browser.ask("signIn", "developer", json!({}));
    let vaults = browser.ask("open", "developer", json!({"path": "/vaults"}));
    assert_eq!(vaults["status"], 200, "{vaults}");
    let page = format!("/vaults/{}", dev.vault);
    let vault = browser.ask("open", "developer", json!({"path": page}));
    assert_eq!(vault["status"], 200, "{vault}");
    let again = browser.ask("refusedLink", "stranger", json!({"link": link}));
    let said = again["said"].as_str().unwrap();
    assert!(said.contains("cannot be used"), "{again}");
}

#[tokio::test]
async fn evm_transactions__should_move_the_exact_amount_on_a_real_node() {
    let folder = tempfile::tempdir().unwrap();
    let anvil = Anvil::start(folder.path(), 31337).await;
    let dev = DevProcess::start(
        &folder.path().join("dev"),
        &["--chain", &anvil.chain_argument()],
    )
    .await;
    let api = &dev.api;
    let from = api.wallet(&dev.vault, EVM).await;
    let funds = 5_000_000_000_000_000_000;
    anvil.fund(&from, funds).await;
    let balance = api
        .ok(
            "getBalance",
            json!({"networkType": EVM, "chainId": "31337", "walletAddress": from}),
        )
        .await;
    assert_eq!(balance["balance"], json!(funds.to_string()));

    // Native: the recipient gets the amount, the sender pays it and the fee, to the wei.
    let to = "0x00000000000000000000000000000000C0FFEE01";
    let amount = 1_234_567_890_123_456_789;
    let uuid = api
        .create(json!({"notes": "rent", "evmSendNative": {
            "chainId": 31337, "from": from, "to": to, "value": amount.to_string()}}))
        .await;
    let outcome = api.execute(&uuid).await;
    assert_eq!(outcome["error"], Value::Null, "{outcome}");
    let hash = outcome["txHash"].as_str().unwrap();
    let fee = |receipt: &Value| {
        hex_number(&receipt["gasUsed"]) * hex_number(&receipt["effectiveGasPrice"])
    };
    let paid = fee(&anvil.receipt(hash).await);
    assert_eq!(anvil.balance(to).await, amount);
    assert_eq!(anvil.balance(&from).await, funds - amount - paid);
    let details = api.details(&uuid).await;
    assert_eq!(details["status"], "STATUS_SUCCEEDED");
    assert_eq!(details["txHash"], json!(hash));
    assert_eq!(details["notes"], "rent");

    // Contract creation, then a token transfer.
    let code = outside("tokenCode", json!({"supply": "1000000"}))["code"].clone();
    let outcome = api
        .sign(json!({"evmSendCustom": {"chainId": "31337", "from": from, "to": "", "value": "0", "input": code}}))
        .await;
    let receipt = anvil.receipt(outcome["txHash"].as_str().unwrap()).await;
    assert_eq!(receipt["status"], "0x1");
    let token = receipt["contractAddress"].clone();
    let outcome = api
        .sign(
            json!({"evmSendErc20": {"chainId": "31337", "from": from, "to": to,
            "tokenContractAddress": token, "amount": "250001"}}),
        )
        .await;
    let receipt = anvil.receipt(outcome["txHash"].as_str().unwrap()).await;
    assert_eq!(receipt["status"], "0x1");
    for (owner, expected) in [(to, "250001"), (from.as_str(), "749999")] {
        let answer = api
            .ok("getBalance", json!({"networkType": EVM, "chainId": 31337, "walletAddress": owner, "tokenAddress": token}))
            .await;
        assert_eq!(answer["balance"], json!(expected));
    }

    // Not broadcast: the signed transaction is handed over, the node never sees it.
    let before = anvil.balance(&from).await;
    let outcome = api
        .sign(json!({"broadcastTx": false, "evmSendNative": {"chainId": "31337", "from": from, "to": to,
            "value": "7", "nonce": "0", "gasFee": {"maxFee": "9", "maxPriorityFee": "1", "gasLimit": "21000"}}}))
        .await;
    let parsed = outside(
        "evmTransaction",
        json!({"transaction": outcome["signedTransaction"]}),
    );
    assert_eq!(parsed["from"], json!(from));
    assert_eq!(parsed["nonce"], json!(0));
    assert_eq!(parsed["value"], "7");
    assert_eq!(parsed["hash"], outcome["txHash"]);
    assert_eq!(anvil.balance(&from).await, before);

    // More than there is: the request fails with a reason a person can act on.
    let uuid = api
        .create(json!({"evmSendNative": {"chainId": "31337", "from": from, "to": to, "value": "9000000000000000000"}}))
        .await;
    let outcome = api.execute(&uuid).await;
    assert_eq!(
        outcome["error"]["executeSigningRequestsErrorCode"],
        "EXECUTE_SIGNING_REQUESTS_ERROR_CODE_INSUFFICIENT_FUNDS",
        "{outcome}"
    );
    assert_eq!(api.details(&uuid).await["status"], "STATUS_FAILED");
    // It left no gap in the nonces.
    let outcome = api
        .sign(json!({"evmSendNative": {"chainId": "31337", "from": from, "to": to, "value": "1"}}))
        .await;
    assert_eq!(
        anvil.receipt(outcome["txHash"].as_str().unwrap()).await["status"],
        "0x1"
    );
}

#[tokio::test]
async fn concurrent_transactions_of_one_wallet__should_each_get_their_own_nonce() {
    let folder = tempfile::tempdir().unwrap();
    let anvil = Anvil::start(folder.path(), 31337).await;
    let dev = DevProcess::start(
        &folder.path().join("dev"),
        &["--chain", &anvil.chain_argument()],
    )
    .await;
    let from = dev.api.wallet(&dev.vault, EVM).await;
    anvil.fund(&from, 10_000_000_000_000_000_000).await;
    let to = "0x00000000000000000000000000000000C0FFEE02";
    let sends = (1..=20).map(|value| {
        let (api, from) = (dev.api.clone(), from.clone());
        async move {
            api.sign(json!({"evmSendNative": {"chainId": "31337", "from": from, "to": to, "value": value.to_string()}}))
                .await["txHash"]
                .as_str()
                .unwrap()
                .to_owned()
        }
    });
    let hashes = futures::future::join_all(sends).await;
    for hash in &hashes {
        assert_eq!(anvil.receipt(hash).await["status"], "0x1");
    }
    assert_eq!(anvil.balance(to).await, (1..=20).sum::<u128>());
    let count = anvil
        .call("eth_getTransactionCount", json!([from, "latest"]))
        .await;
    assert_eq!(hex_number(&count), 20);
}

#[tokio::test]
async fn solana_transfer__should_be_signed_as_the_network_takes_it() {
    let folder = tempfile::tempdir().unwrap();
    let node = SolanaStub::start().await;
    let dev = DevProcess::start(
        &folder.path().join("dev"),
        &["--chain", &format!("solana={}", node.url)],
    )
    .await;
    let api = &dev.api;
    let from = api.wallet(&dev.vault, SOLANA).await;
    let to = api.wallet(&dev.vault, SOLANA).await;
    let outcome = api
        .sign(json!({"broadcastTx": false, "solanaSendNative": {"from": from, "to": to, "value": "1234567"}}))
        .await;
    let parsed = outside(
        "solanaTransaction",
        json!({"transaction": outcome["signedTransaction"]}),
    );
    assert_eq!(parsed["valid"], json!(true));
    assert_eq!(parsed["feePayer"], json!(from));
    assert_eq!(parsed["to"], json!(to));
    assert_eq!(parsed["lamports"], "1234567");
    assert_eq!(parsed["program"], "11111111111111111111111111111111");
    assert_eq!(parsed["blockhash"], json!(SolanaStub::BLOCKHASH));

    let outcome = api
        .sign(
            json!({"solanaSendNative": {"from": from, "to": to, "value": "42", "chainId": "101"}}),
        )
        .await;
    // It is sent again where the node is slow to say that it has it.
    let mut sent = node.sent();
    sent.dedup();
    let [sent] = sent.as_slice() else {
        panic!("sent {} transactions", sent.len())
    };
    let parsed = outside("solanaTransaction", json!({"transaction": sent}));
    assert_eq!(parsed["valid"], json!(true));
    assert_eq!(parsed["lamports"], "42");
    assert!(!outcome["txHash"].as_str().unwrap().is_empty());
}

#[tokio::test]
async fn dev__should_come_up_again_with_the_same_keys_wallets_and_requests() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("dev");
    let mut dev = DevProcess::start(&data, &[]).await;
    let evm = dev.api.wallet(&dev.vault, EVM).await;
    let solana = dev.api.wallet(&dev.vault, SOLANA).await;
    let uuid = dev
        .api
        .create(json!({"solanaMessage": {"from": solana, "content": base64("before")}}))
        .await;
    let before = dev.api.execute(&uuid).await;

    // Nothing warns of what is as it should be.
    let log = dev.process.log();
    for word in ["message refused", "unknown node"] {
        assert!(!log.contains(word), "{log}");
    }

    // One folder has one owner.
    let second = covault()
        .args(["dev", "--listen", "127.0.0.1:0", "--data"])
        .arg(&data)
        .output()
        .unwrap();
    assert!(!second.status.success());
    let complaint = String::from_utf8_lossy(&second.stderr).to_lowercase();
    assert!(
        complaint.contains("in use") || complaint.contains("already"),
        "{complaint}"
    );

    assert_eq!(dev.process.terminate(), Some(0), "graceful shutdown");
    let first = dev.info.clone();
    dev.restart().await;
    for key in ["vaultUuid", "platformToken", "adminToken"] {
        assert_eq!(dev.info[key], first[key], "{key}");
    }
    assert_eq!(dev.api.execute(&uuid).await, before);
    let list = dev
        .api
        .ok("getWalletList", json!({"vaultUuid": dev.vault}))
        .await;
    let addresses: Vec<_> = list["detailsList"]
        .as_array()
        .unwrap()
        .iter()
        .map(|wallet| wallet["address"].clone())
        .collect();
    assert_eq!(addresses, [json!(evm), json!(solana)]);
    let info = dev
        .api
        .ok("getWalletInfo", json!({"address": evm.to_lowercase()}))
        .await;
    assert_eq!(info["details"]["address"], json!(evm));
    assert_eq!(info["details"]["keyType"], "KEY_TYPE_ECC_SECP256K1");

    let digest = [7; 32];
    let outcome = dev
        .api
        .sign(
            json!({"rawMessage": {"from": evm, "content": base64(digest), "ecdsaHashFunction": 1}}),
        )
        .await;
    let signature = &first_signature(&outcome)["ecdsaSignature"];
    let answer = outside(
        "recover",
        json!({"digest": format!("0x{}", hex::encode(digest)), "signature": signature}),
    );
    assert_eq!(answer["address"], json!(evm));
}

#[tokio::test]
async fn dev_folder__should_keep_its_secrets_to_its_owner() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("dev");
    let dev = DevProcess::start_first(&data, &[]).await;
    let mode = std::fs::metadata(data.join("dev.json"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let log = dev.process.log();
    for secret in ["platformToken", "adminToken"] {
        let shown = log.matches(dev.info[secret].as_str().unwrap()).count();
        // The curve of a first request: the curl line that dev prints carries the platform token.
        assert!(
            shown <= usize::from(secret == "platformToken"),
            "{secret} is in the log"
        );
    }
}
