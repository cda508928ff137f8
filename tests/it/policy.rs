//! The policy files of `covault signer`.

use std::fs;

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
    let mut cluster = Cluster::start_with(60_000, &policy).await;
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
    // Within the limit per request, until the day is full: at the latest after three, for each of
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
        reason
            .contains("amount: with the fee, more evm:1 than this signer's policy allows per day"),
        "{reason}"
    );

    // A file that cannot be read stops the start, and says why.
    let path = cluster.folder.path().join("policy.toml");
    fs::write(&path, "raw_singing = true\n").unwrap();
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
