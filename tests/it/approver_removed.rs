//! An approver who is taken out of the policy files of enough signers.

use std::fs;

use covault_core::{
    approval::{Approval, WebAuthnAssertion, testing::TestPasskey},
    networks::Network,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::support::*;

/// A passkey's approval of a message that waits, as a program sends it.
fn approval(passkey: &TestPasskey, details: &Value, valid_until_ms: u64) -> Value {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    let subject = &details["approvalSubject"];
    let bytes = |of: &Value| BASE64_STANDARD.decode(of.as_str().unwrap()).unwrap();
    let text = |of: &Value| of.as_str().unwrap().to_owned();
    let approval = Approval {
        vault: text(&details["vaultUuid"]).parse().unwrap(),
        root_public_key: bytes(&subject["rootPublicKey"]),
        request: text(&details["uuid"]).parse().unwrap(),
        network: Network::Evm,
        address: text(&subject["address"]),
        payload_sha256: Sha256::digest(bytes(&subject["payload"])).into(),
        most_fee: 0,
        valid_until_ms,
    };
    let WebAuthnAssertion {
        authenticator_data,
        client_data_json,
        signature,
    } = passkey.assert(&approval.id().unwrap());
    let proof = json!({"webAuthn": {
        "credentialId": base64(&passkey.passkey.credential_id),
        "authenticatorData": base64(authenticator_data),
        "clientDataJson": base64(client_data_json),
        "signature": base64(signature),
    }});
    let approval =
        json!({"mostFee": "0", "validUntilMs": valid_until_ms.to_string(), "proof": proof});
    json!({"uuid": details["uuid"], "approval": approval})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_approver__should_not_count_any_more_at_signers_that_have_read_their_policy_again()
 {
    let passkeys = [
        TestPasskey::new("treasurer", 1),
        TestPasskey::new("controller", 2),
    ];
    let names = ["treasurer", "controller"];
    let lines = passkeys.each_ref().map(|it| it.line().line().unwrap());
    let policy = |people: &[usize]| {
        let mut text = "version = 2\n".to_owned();
        for &index in people {
            let (name, line) = (names[index], &lines[index]);
            text += &format!("[[approver]]\nname = {name:?}\nkeys = [{line:?}]\n");
        }
        let of: Vec<&str> = people.iter().map(|&index| names[index]).collect();
        text + &format!("[[approval]]\nneeds = 1\nof = {of:?}\n")
    };
    let first = policy(&[0, 1]);
    let cluster = TestCluster::start_with(60_000, first.trim_start_matches("version = 2\n")).await;
    let approvers = [0, 1].map(|index| format!("{}={}", names[index], lines[index]));
    let rule = [
        "--needs",
        "1",
        "--approver",
        &approvers[0],
        "--approver",
        &approvers[1],
    ];
    let vault = cluster.create_vault_with("treasury", &rule);
    let api = &cluster.api;
    let from = api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let message =
        |text: &str| json!({"evmMessage": {"chainId": "1", "from": from, "content": base64(text)}});
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let until = u64::try_from(now.unwrap().as_millis()).unwrap() + 3_600_000;
    let approve = async |passkey: &TestPasskey, uuid: &str| {
        let body = approval(passkey, &api.details(uuid).await, until);
        api.ok("approveSigningRequest", body).await;
    };

    // While the policies name the treasurer, this approval is enough.
    let uuid = api.create(message("before")).await;
    approve(&passkeys[0], &uuid).await;
    assert_eq!(api.execute(&uuid).await["error"], Value::Null);

    // Two of the three read a policy without the treasurer; the third one and the vault's rule still have this person.
    let file = cluster.folder.path().join("policy.toml");
    fs::write(file, policy(&[1])).unwrap();
    for signer in &cluster.signers[..2] {
        let read = || signer.log().matches("this process's policy").count();
        let before = read();
        signer.signal("HUP");
        eventually("the signer has read its policy again", async || {
            (read() > before).then_some(())
        })
        .await;
    }
    let uuid = api.create(message("after")).await;
    approve(&passkeys[0], &uuid).await;
    let says =
        "wants 1 of controller (approvals[0] is signed by a key that no [[approver]] here has)";
    eventually("a signer says why it does not sign", async || {
        let details = api.details(&uuid).await;
        assert_eq!(details["status"], "STATUS_PENDING", "{details}");
        details["approvalWanted"]
            .as_str()?
            .contains(says)
            .then_some(())
    })
    .await;
    let shown = api.details(&uuid).await;
    assert_eq!(shown["signatures"], Value::Null, "{shown}");
    // Whom they still name counts.
    approve(&passkeys[1], &uuid).await;
    assert_eq!(api.execute(&uuid).await["error"], Value::Null);
}
