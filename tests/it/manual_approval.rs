//! People approve with OpenSSH keys, on the command line, against the real program.

use std::{path::Path, process::Command};

use serde_json::{Value, json};

use super::support::*;

/// `ssh-keygen`'s new key; the path of the private one.
pub fn new_key(folder: &Path, name: &str) -> String {
    let path = folder.join(name);
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"])
        .arg(&path)
        .status()
        .unwrap();
    assert!(made.success());
    path.to_str().unwrap().to_owned()
}

/// Runs a command with a token of the platform API.
pub fn person(api: &ApiClient, folder: &Path, arguments: &[&str]) -> (bool, String, String) {
    let token = folder.join("token");
    write_secret(&token, &api.token);
    let mut command = covault();
    command.args(arguments);
    command.args(["--url", &api.base, "--token-file"]);
    outcome_of(command.arg(token))
}

#[tokio::test]
async fn manual__should_sign_what_a_person_has_approved_with_an_ssh_key_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (key, other) = (new_key(folder, "treasurer"), new_key(folder, "stranger"));
    let approver = format!("treasurer={key}.pub");
    let arguments = ["--manual", approver.as_str()];
    let mut dev = DevProcess::start_first(&folder.join("dev"), &arguments).await;
    let from = dev.api.wallet(&dev.vault, "NETWORK_TYPE_EVM").await;
    let message =
        |text: &str| json!({"evmMessage": {"chainId": "1", "from": from, "content": base64(text)}});
    let first = dev.api.create(message("first")).await;
    let second = dev.api.create(message("second")).await;
    let third = dev.api.create(message("third")).await;

    // A token of whatever level gets nothing signed.
    let execute = json!({"uuid": first});
    let (status, body) = dev
        .api
        .post("executeSigningRequests", execute.clone())
        .await;
    assert_eq!(status, 403);
    assert_eq!(
        body["error"]["message"],
        "ClientSignerPublicKey is required"
    );
    let approve = json!({"uuid": first});
    let (status, body) = dev.api.post("approveSigningRequest", approve).await;
    assert_eq!(status, 400, "{body}");
    let said = body["error"]["message"].as_str().unwrap();
    assert!(said.starts_with("approval: is required"), "{said}");
    let grpc = GrpcClient::new(dev.info["grpcTarget"].as_str().unwrap(), &dev.api.token);
    let refused = grpc.call("executeSigningRequests", &execute, &[]).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);
    assert_eq!(refused.message(), "ClientSignerPublicKey is required");

    // It waits, whatever becomes of the process, and is found.
    dev.process.kill();
    dev.restart().await;
    let grpc = GrpcClient::new(dev.info["grpcTarget"].as_str().unwrap(), &dev.api.token);
    let found = grpc
        .call("getPendingSigningRequests", &json!({}), &[])
        .await;
    let found = found.unwrap().0["signingRequests"].clone();
    let uuids: Vec<_> = found
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["uuid"])
        .collect();
    assert_eq!(uuids, [&json!(first), &json!(second), &json!(third)]);
    let (done, out, err) = person(&dev.api, folder, &["pending"]);
    assert!(done && out.lines().count() == 3, "{out}{err}");
    assert!(
        out.contains("1 more to approve; approved by nobody yet"),
        "{out}"
    );
    let (done, out, err) = person(&dev.api, folder, &["pending", "--json"]);
    assert!(done, "{out}{err}");
    let listed: Value = serde_json::from_str(&out).unwrap();
    let listed = listed["signingRequests"].as_array().unwrap().iter();
    assert_eq!(listed.map(|it| &it["uuid"]).collect::<Vec<_>>(), uuids);

    // What a signer with a policy still wants of it.
    let public = std::fs::read_to_string(format!("{key}.pub")).unwrap();
    let another = std::fs::read_to_string(format!("{other}.pub")).unwrap();
    let policy = folder.join("policy.toml");
    let file = format!(
        "version = 2\n[[approver]]\nname = \"treasurer\"\nkeys = [{:?}]\n[[approver]]\nname = \"director\"\nkeys = [{:?}]\n\
         [[approval]]\nneeds = 2\nof = [\"treasurer\", \"director\"]\n\
         [[approval]]\nneeds = 1\nof = [\"treasurer\"]\n\
         [[approval]]\nnetworks = [\"bitcoin\"]\nneeds = 1\nof = [\"director\"]\n",
        public.trim(),
        another.trim()
    );
    std::fs::write(&policy, file).unwrap();
    let wanted = |dev: &DevProcess| {
        let policy = policy.to_str().unwrap();
        person(
            &dev.api,
            folder,
            &["policy", "check", policy, "--request", &first],
        )
    };
    let (done, out, err) = wanted(&dev);
    assert!(done && out.contains("allowed with approvals"), "{out}{err}");
    assert!(out.contains("wants 2 of treasurer, director"), "{out}");
    assert!(out.contains("missing: 2 of treasurer, director"), "{out}");
    assert!(out.contains("missing: 1 of treasurer"), "{out}");
    assert_eq!(out.matches("wants").count(), 2, "{out}");

    // A key that nobody named.
    let (done, _, err) = person(
        &dev.api,
        folder,
        &["approve", &first, "--key", &other, "--yes"],
    );
    assert!(!done && err.contains("key belongs to no approver"), "{err}");
    // Nobody is asked, and nothing approved without --yes.
    let (done, _, err) = person(&dev.api, folder, &["approve", &first, "--key", &key]);
    assert!(!done && err.contains("--yes"), "{err}");
    assert_eq!(dev.api.details(&first).await["status"], "STATUS_PENDING");

    // Two with one signature; the command shows what it has decoded itself.
    let both = ["approve", &first, &second, "--key", &key, "--yes"];
    let (done, out, err) = person(&dev.api, folder, &both);
    assert!(done, "{out}{err}");
    assert!(
        err.contains(&base64("first")) && err.contains(&base64("second")),
        "{err}"
    );
    assert_eq!(
        out.matches("approved; the signers sign it next").count(),
        2,
        "{out}"
    );
    for uuid in [&first, &second] {
        let outcome = dev.api.execute(uuid).await;
        assert_eq!(outcome["error"], Value::Null, "{outcome}");
        let details = dev.api.details(uuid).await;
        assert_eq!(details["approvals"][0]["person"], "treasurer");
        assert_eq!(details["requiredApprovalCount"], 1);
    }

    // Nothing is signed by anybody's key when one of them cannot be approved; and what is refused has its name.
    let ended = ["approve", &third, &first, "--key", &key, "--yes"];
    let (done, _, err) = person(&dev.api, folder, &ended);
    assert!(
        !done && err.contains("is not waiting for approval"),
        "{err}"
    );
    let unknown = "00000000-0000-4000-8000-000000000000";
    let unseen = ["approve", &third, unknown, "--key", &key, "--yes"];
    assert!(!person(&dev.api, folder, &unseen).0);
    let fourth = dev.api.create(message("fourth")).await;
    let strangers = ["approve", &third, &fourth, "--key", &other, "--yes"];
    let (done, out, err) = person(&dev.api, folder, &strangers);
    assert!(!done && out.is_empty(), "{out}");
    for uuid in [&third, &fourth] {
        assert!(err.contains(&format!("{uuid}  not approved: ")), "{err}");
        assert_eq!(dev.api.details(uuid).await["approvals"], json!([]));
    }
    let approve = ["approve", &fourth, "--key", &key, "--yes", "--json"];
    let (done, out, err) = person(&dev.api, folder, &approve);
    assert!(done, "{out}{err}");
    let answer: Value = serde_json::from_str(&out).unwrap();
    let expected = json!([{"uuid": fourth, "error": null, "remainingApprovalCount": 0}]);
    assert_eq!(answer["results"], expected, "{answer}");
    let rejection = folder.join("rejection.json");
    let written = rejection.to_str().unwrap();
    let reject = ["reject", &third, "--key", &key, "--out", written, "--json"];
    let (done, out, err) = person(&dev.api, folder, &reject);
    assert!(done && out.contains("\"error\": null"), "{out}{err}");
    let details = dev.api.details(&third).await;
    assert_eq!(details["status"], "STATUS_FAILED");
    assert_eq!(
        details["failedReason"],
        "rejected by treasurer (rejectSigningRequest)"
    );
    assert_eq!(details["signatures"], Value::Null);
    // What an administrator of a signer node vetoes it with, whose policy knows the person for one who can reject it.
    let node = folder.join("node.toml");
    let text = format!(
        "[signer]\ndata_dir = {:?}\npolicy_file = {policy:?}\n",
        folder.join("dev")
    );
    std::fs::write(&node, text).unwrap();
    let veto = || {
        let mut command = covault();
        command
            .args(["node", "veto", &third, "--config"])
            .arg(&node);
        outcome_of(command.arg("--rejection").arg(&rejection))
    };
    let (done, out, err) = veto();
    assert!(
        !done && err.contains("proof: is not from a person"),
        "{out}{err}"
    );
    let rejected = folder.join("dev/rejected");
    assert!(!rejected.exists());
    let holding = format!(
        "version = 2\n[[approver]]\nname = \"treasurer\"\nkeys = [{:?}]\n[[approval]]\nneeds = 1\n\
         of = [\"treasurer\"]\nhold_hours = 1\n",
        public.trim()
    );
    std::fs::write(&policy, holding).unwrap();
    let (done, out, err) = veto();
    assert!(
        done && out.contains("treasurer has rejected the request"),
        "{out}{err}"
    );
    assert!(
        rejected.join(format!("{}.{third}", dev.vault)).exists(),
        "of this vault alone"
    );
}

#[tokio::test]
async fn rule__should_be_changed_by_the_people_of_the_rule_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let keys = ["treasurer", "controller"].map(|name| new_key(folder, name));
    let approvers = keys.each_ref().map(|key| {
        let name = key.rsplit('/').next().unwrap();
        format!("{name}={key}.pub")
    });
    let dev = DevProcess::start_first(&folder.join("dev"), &["--manual", &approvers[0]]).await;
    let from = dev.api.wallet(&dev.vault, "NETWORK_TYPE_EVM").await;
    let message = json!({"evmMessage": {"chainId": "1", "from": from, "content": base64("x")}});
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (change, signature) = (path("change.json"), path("signature"));
    let said = dev.command(&[
        "vault",
        "approvals",
        "propose",
        "--vault",
        &dev.vault,
        "--approver",
        &approvers[1],
        "--out",
        &change,
    ]);
    assert!(said.contains("needs 1 signatures"), "{said}");
    // Neither the operator alone nor the new approver decides.
    let apply = [
        "vault",
        "approvals",
        "apply",
        &change,
        "--signature",
        &signature,
    ];
    let (done, _, err) = dev.ask(&apply[..4]);
    assert!(!done && err.contains("wants 1 of treasurer"), "{err}");
    let sign = |key: &str| {
        let mut command = covault();
        command.args(["vault", "approvals", "sign", &change, "--yes", "--key", key]);
        let (done, _, err) = outcome_of(command.args(["--out", &signature]));
        assert!(done, "{err}");
        err
    };
    sign(&keys[1]);
    let (done, _, err) = dev.ask(&apply);
    assert!(!done && err.contains("key belongs to no approver"), "{err}");
    let shown = sign(&keys[0]);
    for part in [
        "change 1 of its rule, to be made within 22 hours and ",
        "now: 1 of treasurer",
        "then: 1 of controller",
    ] {
        assert!(shown.contains(part), "{shown}");
    }
    let line = std::fs::read_to_string(format!("{}.pub", keys[1])).unwrap();
    assert!(shown.contains(line.trim()), "{shown}");
    let said = dev.command(&apply);
    assert!(said.contains("1 of controller"), "{said}");
    let said = dev.command(&["vault", "show", "--vault", &dev.vault]);
    let rule = "approvals: 1 of controller; requests wait 72 hours\n";
    assert!(said.contains(rule) && said.contains(line.trim()), "{said}");

    let uuid = dev.api.create(message).await;
    let approve = |key: &str| person(&dev.api, folder, &["approve", &uuid, "--key", key, "--yes"]);
    let (done, _, err) = approve(&keys[0]);
    assert!(!done && err.contains("key belongs to no approver"), "{err}");
    assert!(approve(&keys[1]).0);
    assert_eq!(dev.api.execute(&uuid).await["error"], Value::Null);
}

const TO: &str = "0x00000000000000000000000000000000C0FFEE18";
const ETHER: u128 = 1_000_000_000_000_000_000;
/// wei; more than anvil takes for a transfer.
const FEE: &str = "1000000000000000";

fn payment(from: &str, wei: u128) -> Value {
    json!({"evmSendNative": {"chainId": "31337", "from": from, "to": TO, "value": wei.to_string()}})
}

/// Waits until people are asked about a request that so many have approved.
async fn asked(api: &ApiClient, uuid: &str, approvals: usize) -> Value {
    eventually("people are asked", async || {
        let details = api.details(uuid).await;
        assert_eq!(details["status"], "STATUS_PENDING", "{details}");
        let given = details["approvals"].as_array().map_or(0, Vec::len);
        (details["pendingOperation"] == "approve" && given == approvals).then_some(details)
    })
    .await
}

/// The rule stands in the policy file of each signer; the vault itself signs at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signers__should_sign_above_their_limit_only_what_people_have_approved() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let anvil = Anvil::start(folder, 31337).await;
    let keys = ["treasurer", "controller", "stranger"].map(|name| new_key(folder, name));
    let line = |key: &str| std::fs::read_to_string(format!("{key}.pub")).unwrap();
    let policy = format!(
        "[[approver]]\nname = \"treasurer\"\nkeys = [{:?}]\n[[approver]]\nname = \"controller\"\nkeys = [{:?}]\n\
         [[approval]]\nneeds = 2\nof = [\"treasurer\", \"controller\"]\n\
         above = {{ asset = \"evm:31337\", per_request = \"{ETHER}\" }}\n",
        line(&keys[0]).trim(),
        line(&keys[1]).trim()
    );
    let chain = format!("[chains.evm.31337]\nrpc = [{:?}]\n", anvil.url);
    let cluster = TestCluster::start_prepared(60_000, &policy, |folder| {
        configure(&folder.join("serve.toml"), "serve", "", &chain);
    })
    .await;
    let approvers: Vec<String> = ["treasurer", "controller"]
        .iter()
        .zip(&keys)
        .map(|(name, key)| format!("{name}={key}.pub"))
        .collect();
    let rule = [
        "--approvals",
        "automatic",
        "--approver",
        &approvers[0],
        "--approver",
        &approvers[1],
    ];
    let vault = cluster.create_vault_with("treasury", &rule);
    let api = &cluster.api;
    let from = api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    anvil.fund(&from, 10 * ETHER).await;
    api.sign(payment(&from, 1)).await;

    // The fee counts, too: this is just above what the signers sign alone.
    let uuid = api.create(payment(&from, ETHER)).await;
    let details = asked(api, &uuid, 0).await;
    let wanted = details["approvalWanted"].as_str().unwrap();
    // A line of each signer that says so.
    let of_signer = |line: &str| {
        let said = line.split_once(" wants 2 of treasurer, controller");
        said.is_some_and(|(name, _)| name.starts_with("signer-"))
    };
    assert!(wanted.lines().all(of_signer), "{wanted}");
    let approve = |key: &str, more: &[&str]| {
        let words = ["approve", &uuid, "--key", key, "--yes"];
        person(api, folder, &[&words[..], more].concat())
    };
    let (done, _, err) = approve(&keys[2], &["--most-fee", FEE]);
    assert!(!done && err.contains("key belongs to no approver"), "{err}");
    // Signers take neither one person for two nor a fee above what was approved.
    let (done, out, err) = approve(&keys[0], &["--most-fee", "1"]);
    assert!(done, "{out}{err}");
    let details = asked(api, &uuid, 1).await;
    let wanted = details["approvalWanted"].as_str().unwrap();
    assert!(wanted.contains("above the approved 1 "), "{wanted}");
    let (done, out, err) = approve(&keys[0], &["--most-fee", FEE]);
    assert!(done, "{out}{err}");
    let details = eventually("signers say who is missing", async || {
        let details = asked(api, &uuid, 1).await;
        let wanted = details["approvalWanted"].as_str()?;
        wanted.contains("(approved: treasurer)").then_some(details)
    });
    assert_eq!(details.await["approvals"][0]["mostFee"], FEE);
    assert_eq!(anvil.balance(TO).await, 1);
    // Where nobody looks at it, the fee that the service says the others approved is not taken over.
    let (done, _, err) = approve(&keys[1], &[]);
    assert!(!done && err.contains("--yes requires --most-fee"), "{err}");
    let (done, out, err) = approve(&keys[1], &["--most-fee", FEE]);
    assert!(done, "{out}{err}");
    let outcome = eventually("it is signed", async || {
        let (status, outcome) = api
            .post("executeSigningRequests", json!({"uuid": uuid}))
            .await;
        (status == 200).then_some(outcome)
    })
    .await;
    assert_eq!(outcome["error"], Value::Null, "{outcome}");
    let hash = outcome["txHash"].as_str().unwrap();
    assert_eq!(anvil.receipt(hash).await["status"], "0x1");
    assert_eq!(anvil.balance(TO).await, ETHER + 1);
    let count = json!([from, "latest"]);
    let count = anvil.call("eth_getTransactionCount", count).await;
    assert_eq!(hex_number(&count), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approved__should_be_signed_once_by_the_orchestrator_that_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let anvil = Anvil::start(folder, 31337).await;
    let key = new_key(folder, "treasurer");
    let chain = format!("[chains.evm.31337]\nrpc = [{:?}]\n", anvil.url);
    let mut fleet = Fleet::start(&["all", "all"], &chain, None).await;
    let approver = format!("treasurer={key}.pub");
    let rule = ["--approver", approver.as_str()];
    let vault = tokio::task::block_in_place(|| fleet.cluster.create_vault_with("treasury", &rule));
    let owner = eventually("the vault is somewhere", async || fleet.owner(&vault)).await;
    let api = fleet.apis[1 - owner].clone();
    let from = api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    anvil.fund(&from, 10 * ETHER).await;
    let uuid = api.create(payment(&from, 5)).await;
    asked(&api, &uuid, 0).await;
    // The approval comes through the other one, and is on disk. No order can be answered.
    for signer in &mut fleet.cluster.signers {
        signer.freeze();
    }
    let words = ["approve", &uuid, "--key", &key, "--most-fee", FEE, "--yes"];
    let (done, out, err) = tokio::task::block_in_place(|| person(&api, folder, &words));
    assert!(done, "{out}{err}");
    fleet.process(owner).kill();
    for signer in &mut fleet.cluster.signers {
        signer.thaw();
    }
    fleet.owned(&vault, &[1 - owner]).await;
    let outcome = eventually("it is signed", async || {
        let (status, outcome) = api
            .post("executeSigningRequests", json!({"uuid": uuid}))
            .await;
        (status == 200).then_some(outcome)
    })
    .await;
    assert_eq!(outcome["error"], Value::Null, "{outcome}");
    // It comes back, and does nothing twice.
    fleet.restart(owner);
    fleet.ready().await;
    for api in &fleet.apis {
        assert_eq!(api.execute(&uuid).await, outcome);
    }
    let hash = outcome["txHash"].as_str().unwrap();
    assert_eq!(anvil.receipt(hash).await["status"], "0x1");
    let count = json!([from, "latest"]);
    let count = anvil.call("eth_getTransactionCount", count).await;
    assert_eq!((hex_number(&count), anvil.balance(TO).await), (1, 5));
    let details = api.details(&uuid).await;
    assert_eq!(details["approvals"].as_array().unwrap().len(), 1);
}
