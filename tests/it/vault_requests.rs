//! What operators do to a vault, as API clients see it; and the choice of who approves.

use serde_json::{Value, json};

use super::{manual_approval::new_key, support::*};

/// The kinds of contract 8. Of the others that the schema says are created elsewhere Covault makes none: a batch is
/// paid with ordinary kinds.
const KINDS: [&str; 5] = [
    "vaultCreation",
    "rootKeyGeneration",
    "vaultSettingUpdate",
    "rootKeyBackup",
    "keyAccessGrant",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_operators__should_be_in_lists_and_details_and_wait_for_nobody() {
    let mut cluster = TestCluster::start(60_000).await;
    let offline = age::x25519::Identity::generate();
    let recipient = offline.to_public().to_string();
    cluster.configure_signers("backup_recipients", &format!("[{recipient:?}]"));
    cluster.until_live(&[0, 1, 2]).await;
    let vault = cluster.create_vault("treasury");
    let folder = cluster.folder.path().to_owned();
    let approver = format!("treasurer={}.pub", new_key(&folder, "treasurer"));
    let change = folder.join("change.json").to_str().unwrap().to_owned();
    cluster.run(&[
        "approvals",
        "propose",
        "--vault",
        &vault,
        "--approver",
        &approver,
        "--out",
        &change,
    ]);
    cluster.run(&["approvals", "apply", &change]);
    let backups = folder.join("backups");
    let out = backups.to_str().unwrap();
    cluster.run(&[
        "backup",
        "--vault",
        &vault,
        "--recipient",
        &recipient,
        "--out",
        out,
    ]);
    cluster.add_signer().await;
    cluster.pin_peers();
    cluster.until_live(&[0, 1, 2, 3]).await;
    let signers = [0, 1, 3].map(|index: usize| cluster.keys[index].clone());
    let signers = signers.join(",");
    cluster.run_permitted(&[
        "reshare",
        "--vault",
        &vault,
        "--threshold",
        "2",
        "--signers",
        &signers,
    ]);

    let api = &cluster.api;
    let list = json!({"vaultUuid": vault, "limit": 100});
    let listed = api.ok("getSigningRequestList", list).await;
    let listed = listed["signingRequests"].as_array().unwrap();
    let of = |kind: &str| -> Vec<&Value> {
        let mut all: Vec<_> = listed.iter().filter(|it| it[kind].is_object()).collect();
        all.sort_by_key(|it| it["uuid"].to_string());
        all
    };
    for kind in KINDS {
        let all = of(kind);
        // A root key and a share of it on each curve.
        let count = match kind {
            "rootKeyGeneration" | "keyAccessGrant" => 2,
            _ => 1,
        };
        assert_eq!(all.len(), count, "{kind}: {listed:?}");
        for one in all {
            let uuid = one["uuid"].as_str().unwrap();
            assert_eq!(one["status"], "STATUS_SUCCEEDED", "{one}");
            assert_eq!(one["source"]["type"], "TYPE_CLI", "{one}");
            assert_eq!(one[kind]["vaultUuid"], json!(vault), "{one}");
            let details = api.details(uuid).await;
            assert_eq!(details[kind], one[kind], "{details}");
            assert_eq!(details["status"], "STATUS_SUCCEEDED", "{details}");
            for operation in ["executeSigningRequests", "rejectSigningRequest"] {
                let (status, said) = api.post(operation, json!({"uuid": uuid})).await;
                assert_eq!(status, 409, "{operation}: {said}");
            }
        }
    }
    for one in of("keyAccessGrant") {
        let granted = one["keyAccessGrant"]["clientSignerPublicKey"].as_str();
        assert_eq!(public_part(granted.unwrap()), public_part(&cluster.keys[3]));
    }
    let pending = json!({"vaultUuid": vault});
    let pending = api.ok("getPendingSigningRequests", pending).await;
    assert_eq!(pending["signingRequests"], json!([]), "{pending}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vault__should_be_made_when_it_was_said_who_approves() {
    let cluster = TestCluster::start(60_000).await;
    let signers = cluster.keys.join(",");
    let asks = "name who approves the vault's requests (--approver NAME=KEY), or choose --approvals automatic";
    for words in [&[][..], &["--approvals", "manual"]] {
        let (done, out, err) = cluster.try_vault("nobody", &signers, words);
        assert!(!done && err.contains(asks), "{words:?}: {out}{err}");
    }
    let (done, out, err) = cluster.try_vault("other", &signers, &["--approvals", "auto"]);
    assert!(!done && err.contains("auto"), "{out}{err}");
    let listed = cluster.run(&["list"]);
    assert!(
        !listed.contains("nobody") && !listed.contains("other"),
        "{listed}"
    );

    // With a person and without a mode it is manual.
    let folder = cluster.folder.path();
    let approver = format!("treasurer={}.pub", new_key(folder, "treasurer"));
    let manual = cluster.create_vault_with("manual", &["--approver", &approver]);
    let automatic = cluster.create_vault_with("automatic", &["--approvals", "automatic"]);
    for (vault, rule) in [
        (&manual, "approvals: 1 of treasurer"),
        (&automatic, "approvals: automatic"),
    ] {
        let shown = cluster.run(&["show", "--vault", vault]);
        assert!(shown.contains(rule), "{shown}");
    }
    let api = &cluster.api;
    let from = api.wallet(&manual, "NETWORK_TYPE_EVM").await;
    let message = json!({"evmMessage": {"chainId": "1", "from": from, "content": base64("x")}});
    let uuid = api.create(message).await;
    let (status, _) = api
        .post("executeSigningRequests", json!({"uuid": uuid}))
        .await;
    assert_eq!(status, 403);
}
