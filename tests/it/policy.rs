//! The policy files of `covault signer`.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::support::*;

const BOB: &str = "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be";
const EVE: &str = "0x37b5ba07902c51ef69dE0BbEa42A11a1A94e3ff6";

/// A transfer that needs no chain node.
fn send(from: &str, to: &str, nonce: u64, value: &str) -> Value {
    json!({"broadcastTx": false, "evmSendNative": {"chainId": "1", "from": from, "to": to, "value": value,
        "nonce": nonce.to_string(),
        "gasFee": {"maxFee": "10", "maxPriorityFee": "1", "gasLimit": "21000"}}})
}

#[tokio::test]
async fn signers__should_sign_within_their_policy_only_and_say_what_it_forbids() {
    // The fee is 210,000 wei at most.
    let policy = format!(
        "kinds = [\"evmSendNative\", \"evmMessage\", \"rawMessage\"]\n\
         recipients.evm = [\"{BOB}\"]\n\
         [[limits]]\nasset = \"evm:1\"\nper_request = \"211000\"\nper_day = \"420500\"\n"
    );
    let mut cluster = TestCluster::start_with(60_000, &policy).await;
    let vault = cluster.create_vault("treasury");
    let from = cluster.api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let api = &cluster.api;

    let ends = async |body: Value, reason: &str, code: &str| {
        let uuid = api.create(body).await;
        let outcome = api.execute(&uuid).await;
        let message = outcome["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(reason), "{outcome}");
        let code = format!("EXECUTE_SIGNING_REQUESTS_ERROR_CODE_{code}");
        assert_eq!(
            outcome["error"]["executeSigningRequestsErrorCode"],
            json!(code),
            "{outcome}"
        );
        let details = api.details(&uuid).await;
        assert_eq!(details["status"], "STATUS_FAILED");
        assert_eq!(details["failedReason"], json!(message));
    };
    let no_code = "UNSPECIFIED";
    ends(
        send(&from, BOB, 0, "1001"),
        "refused to sign: amount: with the fee, more evm:1 than this signer's policy allows per request",
        no_code,
    )
    .await;
    ends(
        send(&from, EVE, 0, "1"),
        "refused to sign: recipient: is not in the list of this signer's policy for evm:1",
        "ADDRESS_NOT_IN_WHITELIST",
    )
    .await;
    let raw = json!({"rawMessage": {"from": from, "content": base64("what I like"),
        "ecdsaHashFunction": "ECDSA_HASH_FUNCTION_SHA256"}});
    ends(raw, "raw signing (rawMessage) is off", no_code).await;

    let message = json!({"evmMessage": {"chainId": "1", "from": from, "content": base64("hello")}});
    api.sign(message).await;
    // Within the limit per request, until the 24 hours are full: at the latest after three, for each of
    // the three nodes can take part twice.
    for nonce in 0..2 {
        api.sign(send(&from, BOB, nonce, "1")).await;
    }
    let mut reason = String::new();
    for nonce in 2..4 {
        let uuid = api.create(send(&from, BOB, nonce, "1")).await;
        let outcome = api.execute(&uuid).await;
        reason = outcome["error"]["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
    }
    assert!(
        reason.contains(
            "amount: with the fee, more evm:1 than this signer's policy allows in 24 hours"
        ),
        "{reason}"
    );

    // A file that cannot be read stops the start, and says why.
    let path = cluster.folder.path().join("policy.toml");
    fs::write(&path, "version = 2\nraw_singing = true\n").unwrap();
    let node = &mut cluster.signers[0];
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
    let config = cluster.folder.path().join("signer-1.toml");
    let refuses_to_start = |problem: &str| {
        let output = covault()
            .args(["signer", "--config"])
            .arg(&config)
            .output()
            .unwrap();
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.contains("policy file") && said.contains(problem),
            "{said}"
        );
    };
    refuses_to_start("raw_singing: unknown key");
    fs::remove_file(&path).unwrap();
    refuses_to_start("is missing: bring it back");
}

#[tokio::test]
async fn vaults__should_each_have_their_own_limits_and_recipients() {
    let policy = "[[each_vault.limits]]\nasset = \"evm:1\"\nper_day = \"420500\"\n";
    let cluster = TestCluster::start_with(60_000, policy).await;
    let first = cluster.create_vault("first");
    let second = cluster.create_vault("second");
    let api = &cluster.api;
    let of_first = api.wallet(&first, "NETWORK_TYPE_EVM").await;
    let of_second = api.wallet(&second, "NETWORK_TYPE_EVM").await;
    let mut refused = 0;
    for nonce in 0..4 {
        let uuid = api.create(send(&of_first, BOB, nonce, "1")).await;
        let outcome = api.execute(&uuid).await;
        let message = outcome["error"]["message"].as_str().unwrap_or_default();
        let over =
            format!("more evm:1 than this signer's policy (vault {first}) allows in 24 hours");
        refused += u32::from(message.contains(&over));
    }
    assert!(refused > 0, "the first vault's limit was not reached");
    for nonce in 0..2 {
        api.sign(send(&of_second, EVE, nonce, "1")).await;
    }
}

#[tokio::test]
async fn own_wallets__should_receive_and_nobody_else() {
    let policy = "[each_vault]\nown_wallets = true\n";
    let cluster = TestCluster::start_with(60_000, policy).await;
    let (vault, other) = (cluster.create_vault("own"), cluster.create_vault("other"));
    let api = &cluster.api;
    let from = api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let own = api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let of_other = api.wallet(&other, "NETWORK_TYPE_EVM").await;
    api.sign(send(&from, &own, 0, "1")).await;
    for to in [&of_other, EVE] {
        let uuid = api.create(send(&from, to, 1, "1")).await;
        let outcome = api.execute(&uuid).await;
        let message = outcome["error"]["message"].as_str().unwrap_or_default();
        assert!(
            message.contains("recipient: is not in the list of"),
            "{outcome}"
        );
    }
}

#[test]
fn policy_check__should_say_what_a_file_allows_and_why_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.toml");
    let vault = "02020202-0202-0202-0202-020202020202";
    fs::write(
        &path,
        format!(
            "version = 2\n[[each_vault.limits]]\nasset = \"evm:1\"\nper_day = \"300000\"\n\
             [vaults.\"{vault}\".recipients]\nevm = [\"{BOB}\"]\n"
        ),
    )
    .unwrap();
    let check = |arguments: &[&str]| {
        let output = covault()
            .args(["policy", "check"])
            .arg(&path)
            .args(arguments)
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    let (code, said) = check(&[]);
    assert_eq!(code, Some(0), "{said}");
    for line in [
        "  raw signing: off",
        "  fee of a transaction on evm: at most 100000000000000000 (default)",
        "Each vault that is not named below, by itself:",
        "  evm:1: at most 300000 in any 24 hours, with fees",
        &format!("Vault {vault}, by itself:"),
        &format!("  recipients on evm: {BOB}"),
    ] {
        assert!(said.lines().any(|said| said == line), "{line}: {said}");
    }

    let payment = send(EVE, EVE, 0, "7").to_string();
    let (code, said) = check(&["--payload", &payment]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.starts_with("allowed\n  counts 210007 of the 300000 evm:1 that "),
        "{said}"
    );
    let (code, said) = check(&["--payload", &payment, "--vault", vault]);
    assert_eq!(code, Some(1), "{said}");
    let why = format!(
        "refused: recipient: is not in the list of this signer's policy (vault {vault}) for evm:1 [invalid]"
    );
    assert!(said.contains(&why), "{said}");
    let (code, said) = check(&["--payload", &payment, "--fee", "300000"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("more evm:1 than this signer's policy (vault 00000000-"),
        "{said}"
    );
    let (code, said) = check(&["--payload", &payment, "--fee", "100000000000000001"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("refused: fee: could take more than this signer's policy allows for evm")
    );
    // A fee that the network is asked for.
    let open = json!({"evmSendNative": {"chainId": "1", "from": EVE, "to": BOB, "value": "7"}});
    fs::write(folder.path().join("open.json"), open.to_string()).unwrap();
    let file = format!("@{}", folder.path().join("open.json").display());
    let (code, said) = check(&["--payload", &file]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("the fee is not counted"), "{said}");
    let raw = json!({"rawMessage": {"from": EVE, "content": base64("anything"),
        "ecdsaHashFunction": "ECDSA_HASH_FUNCTION_SHA256"}});
    let raw = raw.to_string();
    let (code, said) = check(&["--payload", &raw]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("--network: is required for a rawMessage"),
        "{said}"
    );
    let (code, said) = check(&["--payload", &raw, "--network", "evm"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("refused: kind: raw signing (rawMessage) is off"),
        "{said}"
    );

    // A file that a signer does not start with is an error here too.
    fs::write(&path, "version = 2\nlimit = 1\n").unwrap();
    let (code, said) = check(&[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains(
            "limit: unknown key; allowed here: version, node_origins, approver, networks"
        ),
        "{said}"
    );
    fs::remove_file(&path).unwrap();
    let (code, said) = check(&[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("is missing"), "{said}");
}

/// "It ends with 0 when it is allowed, otherwise with 1" (docs/policy-floor.md): every transaction has a
/// fee, no matter who sets it, and no signer with this file ever signs one.
#[test]
fn policy_check__should_refuse_what_no_fee_makes_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.toml");
    let token = "0xdAC17F958D2ee523a2206206994597C13D831ec7";
    fs::write(
        &path,
        format!(
            "version = 2\nonly_listed_assets = true\n\
             [[limits]]\nasset = \"evm:1/{token}\"\nper_day = \"300000\"\n"
        ),
    )
    .unwrap();
    let payment = json!({"evmSendErc20": {"chainId": "1", "from": EVE, "to": BOB,
        "tokenContractAddress": token, "amount": "7"}});
    let check = |fee: &[&str]| {
        let mut command = covault();
        command.args(["policy", "check"]).arg(&path);
        command.args(["--payload", &payment.to_string()]).args(fee);
        command.output().unwrap()
    };
    // The least that there can be.
    assert_eq!(check(&["--fee", "1"]).status.code(), Some(1));
    let output = check(&[]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
}

const WHITELIST: &str = "EXECUTE_SIGNING_REQUESTS_ERROR_CODE_ADDRESS_NOT_IN_WHITELIST";

/// Has the service read the policy file `service.toml` of the folder.
fn with_service_policy(folder: &Path, policy: &str) {
    let file = folder.join("service.toml");
    fs::write(&file, format!("version = 2\n{policy}")).unwrap();
    let config = folder.join("serve.toml");
    let text = fs::read_to_string(&config).unwrap();
    let text = text.replace(
        "\nsigning_deadline_ms",
        &format!("\npolicy_file = {file:?}\nsigning_deadline_ms"),
    );
    fs::write(config, text).unwrap();
}

#[tokio::test]
async fn requests__should_be_refused_when_they_are_made_for_what_the_services_policy_forbids() {
    let service = format!(
        "raw_signing = true\nown_wallets = true\nrecipients.evm = [\"{BOB}\", \"{EVE}\"]\n\
         [[limits]]\nasset = \"evm:1\"\nper_request = \"211000\"\nper_day = \"210900\"\n"
    );
    // Signers let less through, and check by themselves.
    let signers = format!("own_wallets = true\nrecipients.evm = [\"{BOB}\"]\n");
    let mut cluster = TestCluster::start_prepared(60_000, &signers, |folder| {
        with_service_policy(folder, &service);
    })
    .await;
    let (vault, other) = (cluster.create_vault("treasury"), cluster.create_vault("b"));
    let api = &cluster.api;
    let from = api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let own = api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let others = api.wallet(&other, "NETWORK_TYPE_EVM").await;
    let refused = async |body: Value, reason: &str, code: Option<&str>| {
        let (status, answer) = api.post("createSigningRequest", body).await;
        assert_eq!((status, &answer["signingRequest"]), (400, &Value::Null));
        let error = &answer["error"];
        let message = error["message"].as_str().unwrap_or_default();
        assert!(message.starts_with(reason), "{answer}");
        assert_eq!(error["executeSigningRequestsErrorCode"], json!(code));
        assert_eq!(error["serviceErrorCode"].is_null(), code.is_some());
    };
    let listed = "recipient: is not in the list of this service's policy for evm:1";
    for stranger in [&others, "0x0000000000000000000000000000000000000bad"] {
        refused(send(&from, stranger, 0, "1"), listed, Some(WHITELIST)).await;
    }
    refused(
        send(&from, BOB, 0, "1001"),
        "amount: with the fee, more evm:1 than this service's policy allows per request",
        None,
    )
    .await;
    refused(
        send(&from, BOB, 0, "901"),
        "amount: with the fee, more evm:1 than this service's policy allows in 24 hours",
        None,
    )
    .await;
    // Nothing of them was stored: there are the vault and its two keys.
    let list = json!({"vaultUuid": vault});
    let list = api.ok("getSigningRequestList", list).await;
    let kinds = list["signingRequests"].as_array().unwrap().iter();
    let kinds =
        kinds.map(|one| one["vaultCreation"].is_object() || one["rootKeyGeneration"].is_object());
    assert_eq!(kinds.collect::<Vec<_>>(), [true; 3], "{list}");

    for (nonce, to) in [BOB, &own].into_iter().enumerate() {
        api.sign(send(&from, to, nonce as u64, "1")).await;
    }
    let uuid = api.create(send(&from, EVE, 2, "1")).await;
    let outcome = api.execute(&uuid).await;
    let message = outcome["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("this signer's policy"), "{outcome}");
    assert_eq!(
        outcome["error"]["executeSigningRequestsErrorCode"],
        WHITELIST
    );

    // It is read again when it is asked to, and stays when it is wrong then.
    let file = cluster.folder.path().join("service.toml");
    fs::write(&file, "version = 2\nraw_singing = true\n").unwrap();
    cluster.serve.signal("HUP");
    eventually("the service says what is wrong", async || {
        let log = cluster.serve.log();
        log.contains("raw_singing: unknown key").then_some(())
    })
    .await;
    refused(send(&from, &others, 3, "1"), listed, Some(WHITELIST)).await;
    // A vault has rules of its own, which are no other vault's.
    let of_vault = format!(
        "version = 2\n[vaults.\"{vault}\"]\nrecipients.evm = [\"{BOB}\"]\n\
         [[vaults.\"{vault}\".limits]]\nasset = \"evm:1\"\nper_request = \"211000\"\n"
    );
    fs::write(&file, of_vault).unwrap();
    cluster.serve.signal("HUP");
    eventually("the service takes the rules of the vault", async || {
        let (_, answer) = api
            .post("createSigningRequest", send(&from, &others, 3, "1"))
            .await;
        let said = answer["error"]["message"].as_str().unwrap_or_default();
        said.contains("(vault ").then_some(())
    })
    .await;
    let listed_there =
        format!("recipient: is not in the list of this service's policy (vault {vault}) for evm:1");
    refused(send(&from, EVE, 3, "1"), &listed_there, Some(WHITELIST)).await;
    let over = format!(
        "amount: with the fee, more evm:1 than this service's policy (vault {vault}) allows per request"
    );
    refused(send(&from, BOB, 3, "1001"), &over, None).await;
    api.create(send(&others, EVE, 0, "1001")).await;
    fs::write(&file, "version = 2\n").unwrap();
    cluster.serve.signal("HUP");
    eventually("the service takes what the new file allows", async || {
        let body = send(&from, &others, 3, "1");
        let (status, _) = api.post("createSigningRequest", body).await;
        (status == 200).then_some(())
    })
    .await;
    fs::remove_file(&file).unwrap();
    assert_eq!(cluster.serve.terminate(), Some(0));
    let config = cluster.folder.path().join("serve.toml");
    let (done, _, said) = outcome_of(covault().args(["serve", "--config"]).arg(config));
    assert!(!done && said.contains("is missing"), "{said}");
}

#[tokio::test]
async fn signers__should_read_their_policy_again_when_they_are_asked_to() {
    let policy = |listed: &[&str]| format!("version = 2\nrecipients.evm = {listed:?}\n");
    let cluster = TestCluster::start_with(60_000, "recipients.evm = []\n").await;
    // A service without a policy file goes on as it was.
    cluster.serve.signal("HUP");
    eventually("the service has read its log settings", async || {
        let log = cluster.serve.log();
        log.contains("SIGHUP: the log settings were read again")
            .then_some(())
    })
    .await;
    let vault = cluster.create_vault("treasury");
    let api = &cluster.api;
    let from = api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let reread = async |text: Option<&str>, said: &str| {
        let count = |log: &str| log.matches(said).count();
        let before: Vec<_> = cluster.signers.iter().map(|it| count(&it.log())).collect();
        let file = cluster.folder.path().join("policy.toml");
        match text {
            Some(text) => fs::write(file, text).unwrap(),
            None => fs::remove_file(file).unwrap(),
        }
        for signer in &cluster.signers {
            signer.signal("HUP");
        }
        eventually("the signers have read their policy again", async || {
            let mut signers = cluster.signers.iter().zip(&before);
            let all = signers.all(|(signer, before)| count(&signer.log()) > *before);
            all.then_some(())
        })
        .await;
    };
    let outcome = async |nonce: u64| {
        let uuid = api.create(send(&from, BOB, nonce, "1")).await;
        api.execute(&uuid).await["error"].clone()
    };
    let is_refused = |error: &Value| {
        let code = &error["executeSigningRequestsErrorCode"];
        assert_eq!(code, WHITELIST, "{error}");
    };
    is_refused(&outcome(0).await);
    reread(Some(&policy(&[BOB])), "this process's policy").await;
    assert_eq!(outcome(0).await, Value::Null);
    // What is wrong changes nothing, and nobody signs more for it.
    reread(Some("version = 2\nraw_singing = true\n"), "raw_singing").await;
    assert_eq!(outcome(1).await, Value::Null);
    reread(Some(&policy(&[EVE])), "this process's policy").await;
    is_refused(&outcome(2).await);
    // One that has gone does not open the node.
    reread(None, "is missing: bring it back").await;
    is_refused(&outcome(2).await);
}
