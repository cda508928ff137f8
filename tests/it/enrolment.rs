//! The enrolment of docs/approvals.md, step by step, with the real programs: from a key to a payment that its person
//! has approved.

use std::{fs, process::Command};

use covault_core::approval::testing::TestPasskey;
use serde_json::{Value, json};

use super::support::*;

const BOB: &str = "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be";

#[tokio::test]
async fn enrolment__should_end_in_payments_that_its_person_approves() {
    let mut cluster = TestCluster::start_with(60_000, "raw_signing = true\n").await;
    let folder = cluster.folder.path().to_owned();
    let policy = folder.join("policy.toml");
    let before = fs::read_to_string(&policy).unwrap();
    let add = |line: &str, more: &[&str]| {
        let mut command = covault();
        command.args(["policy", "approver"]).arg(&policy).arg(line);
        outcome_of(command.args(more))
    };

    // 1. The person makes the keys. What the page shows of a passkey is its line and eight words.
    let passkey = TestPasskey::new("treasurer@key-1", 1);
    let (line, words) = (
        passkey.line().line().unwrap(),
        passkey.line().fingerprint().unwrap().join(" "),
    );
    let key = folder.join("key");
    let made = Command::new("ssh-keygen")
        .args([
            "-q",
            "-t",
            "ed25519",
            "-N",
            "",
            "-C",
            "treasurer@key-2",
            "-f",
        ])
        .arg(&key)
        .status();
    assert!(made.unwrap().success());
    let public = fs::read_to_string(folder.join("key.pub")).unwrap();

    // 2. and 3. The administrator gets the line, and reads what it is. Nothing is written yet.
    let (done, out, err) = add(&line, &[]);
    assert!(
        !done && err.contains("repeat the command with --yes"),
        "{err}"
    );
    for said in [
        "person: treasurer",
        "key: treasurer@key-1",
        "origin: https://console.example.com (rp id console.example.com)",
        "synced: no, this passkey stays in its device",
        &format!("words: {words}"),
    ] {
        assert!(out.lines().any(|line| line == said), "{said}: {out}");
    }
    assert_eq!(fs::read_to_string(&policy).unwrap(), before);

    // 4. The words are compared. Those of a line that was exchanged on its way are others, whatever it is called.
    let exchanged = TestPasskey::new("treasurer@key-1", 9).line();
    let (_, out, _) = add(&exchanged.line().unwrap(), &[]);
    assert!(out.contains("words: ") && !out.contains(&words), "{out}");
    // Nor can the line itself be changed: it proves that the key is there.
    let changed = line.replacen("approver1 D", "approver1 E", 1);
    assert_ne!(changed, line);
    let (done, _, err) = add(&changed, &["--yes"]);
    assert!(!done && err.contains("LINE: "), "{err}");
    let (done, _, err) = add(&line, &["--yes"]);
    assert!(
        done && err.contains("send the signer SIGHUP or restart it"),
        "{err}"
    );
    let (done, out, err) = add(public.trim(), &["--yes"]);
    assert!(done, "{err}");
    assert!(
        out.contains("person: treasurer, who has 1 already: compare with treasurer"),
        "{out}"
    );
    // The key is one person's.
    let (done, _, err) = add(public.trim(), &["--yes", "--name", "director"]);
    assert!(
        !done && err.contains("is already a key of treasurer"),
        "{err}"
    );

    // A rule that names the person, and the signers start again.
    let text = fs::read_to_string(&policy).unwrap();
    let rule = "[[approval]]\nneeds = 1\nof = [\"treasurer\"]\nkinds = [\"evmSendNative\"]\n";
    fs::write(&policy, format!("{text}\n{rule}")).unwrap();
    let mut check = covault();
    let (done, out, err) = outcome_of(check.args(["policy", "check"]).arg(&policy));
    assert!(
        done && out.contains("approvals: 1 of treasurer"),
        "{out}{err}"
    );
    assert!(
        out.contains("With 2 of 4 this signer makes no key"),
        "{out}"
    );
    for index in 0..3 {
        cluster.signers[index].terminate();
        cluster.restart_signer(index);
    }
    cluster.until_live(&[0, 1, 2]).await;

    let approver = format!("treasurer={}", folder.join("key.pub").display());
    let options = ["--approvals", "automatic", "--approver", &approver];
    let vault = cluster.create_vault_with("treasury", &options);
    let api = &cluster.api;
    let from = api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let payment = json!({"broadcastTx": false, "evmSendNative": {"chainId": "1", "from": from, "to": BOB,
        "value": "7", "nonce": "0",
        "gasFee": {"maxFee": "10", "maxPriorityFee": "1", "gasLimit": "21000"}}});
    let uuid = api.create(payment).await;
    let wanted = async || {
        for _ in 0..600 {
            let details = api.details(&uuid).await;
            if details.to_string().contains("wants 1 of treasurer") {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        panic!("nobody is asked: {}", api.details(&uuid).await);
    };
    wanted().await;
    let token = folder.join("person-token");
    write_secret(&token, &api.token);
    let mut approve = covault();
    approve.args(["approve", &uuid, "--most-fee", "210000", "--yes", "--key"]);
    approve.arg(&key);
    approve
        .args(["--url", &api.base, "--token-file"])
        .arg(&token);
    let (done, out, err) = outcome_of(&mut approve);
    assert!(done, "{out}{err}");
    let outcome = api.execute(&uuid).await;
    assert_eq!(outcome["error"], Value::Null, "{outcome}");
}
