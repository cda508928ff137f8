//! People approve on the page of a signer node, in a real browser, against the real programs.

use std::path::Path;

use covault_core::approval::{ApproverLine, testing::TestPasskey};
use serde_json::{Value, json};

use super::{
    manual_approval::{new_key, person},
    support::*,
};

/// A rule that takes approvals of a node's page alone: what the person has approved elsewhere does not count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_with_the_way_of_nodes__should_be_met_on_the_page_of_a_signer_node_alone() {
    let keys = tempfile::tempdir().unwrap();
    let key = new_key(keys.path(), "treasurer");
    let public = std::fs::read_to_string(format!("{key}.pub")).unwrap();
    let port = free_port();
    let origin = format!("http://localhost:{port}");
    let passkey = TestPasskey::new("treasurer@node-1", 1).at("localhost", &[&origin]);
    let line = passkey.line().line().unwrap();
    let policy = format!(
        "raw_signing = true\nnode_origins = [\"{origin}\"]\n[[approver]]\nname = \"treasurer\"\nkeys = [{line:?}, {:?}]\n\
         [[approval]]\nneeds = 1\nof = [\"treasurer\"]\nway = [\"node\"]\n\
         [[approval]]\nneeds = 1\nof = [\"treasurer\"]\nkinds = [\"rawMessage\"]\nhold_hours = 1\n",
        public.trim()
    );
    let settings =
        format!("approve_listen = \"127.0.0.1:{port}\"\napprove_origin = \"{origin}\"\n");
    let prepare = |folder: &Path| configure(&folder.join("signer-1.toml"), "signer", &settings, "");
    let cluster = TestCluster::start_prepared(60_000, &policy, prepare).await;
    cluster.until_live(&[0, 1, 2]).await;
    let folder = cluster.folder.path();
    let (with_page, with_ssh) = (
        format!("treasurer={line}"),
        format!("treasurer={}", public.trim()),
    );
    let rule = ["--approver", &with_page, "--approver", &with_ssh];
    let vault = tokio::task::block_in_place(|| cluster.create_vault_with("treasury", &rule));
    let api = &cluster.api;
    let from = api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let message = async |text: &str| {
        let content = base64(text);
        let message = json!({"evmMessage": {"chainId": "1", "from": from, "content": content}});
        api.create(message).await
    };
    let uuid = message("pay the baker").await;

    // With SSH it is enough for the vault's rule, and not for the signers'.
    let words = ["approve", &uuid, "--key", &key, "--yes"];
    let (done, out, err) = tokio::task::block_in_place(|| person(api, folder, &words));
    assert!(done, "{out}{err}");
    eventually("the signers ask for more", async || {
        let wanted = api.details(&uuid).await["approvalWanted"].to_string();
        let is_it = wanted.contains("wants 1 of treasurer by way of node");
        (is_it && wanted.contains("by way of ssh")).then_some(())
    })
    .await;

    // The person's browser at the page of the node: the list, one request, and several chosen there.
    let mut browser = Browsers::start(&origin, "node-page");
    let credential = json!({
        "credentialId": base64(&passkey.passkey.credential_id),
        "rpId": "localhost",
        "privateKey": base64(passkey.pkcs8().unwrap()),
        "userHandle": base64("treasurer"),
    });
    let more = json!({"credential": credential});
    browser.ask("addPasskey", "treasurer", more);
    browser.look("treasurer", Some("/sign-in"), "node-sign-in");
    browser.ask("signIn", "treasurer", json!({}));
    let inbox = browser.ask("open", "treasurer", json!({"path": "/"}));
    let listed = inbox["text"].as_str().unwrap();
    assert!(listed.contains("pay the baker"), "{inbox}");
    browser.look("treasurer", Some("/"), "node-inbox");
    let path = format!("/requests/{uuid}");
    browser.look("treasurer", Some(&path), "node-request");
    let approve = json!({"uuids": [uuid], "fee": ""});
    let done = browser.ask("approve", "treasurer", approve);
    assert_eq!(done["said"], "1 of 1 done", "{done}");
    let said = done["outcomes"][0].as_str().unwrap();
    assert!(said.starts_with("approved;"), "{done}");
    let outcome = api.execute(&uuid).await;
    assert_eq!(outcome["error"], Value::Null, "{outcome}");
    let (second, third) = (
        message("pay the cook").await,
        message("pay the porter").await,
    );
    browser.look(
        "treasurer",
        Some(&format!("/requests?uuid={second}&uuid={third}")),
        "node-requests",
    );
    let done = browser.ask("approveChosen", "treasurer", json!({}));
    assert_eq!(done["said"], "2 of 2 done", "{done}");
    for uuid in [&second, &third] {
        let outcome = api.execute(uuid).await;
        assert_eq!(outcome["error"], Value::Null, "{outcome}");
    }

    // A rejection on the page reaches the other signers, too, by way of the service.
    let uuid = message("pay nobody").await;
    let reject = json!({"uuid": uuid, "reason": "not ours"});
    let done = browser.ask("reject", "treasurer", reject);
    let said = "rejected; this node never signs it";
    assert_eq!(done["outcomes"], json!([said]), "{done}");
    let details = api.details(&uuid).await;
    assert_eq!(details["status"], "STATUS_FAILED");
    let reason = details["failedReason"].as_str().unwrap();
    assert!(reason.contains("rejected by treasurer"), "{details}");
    let mark = format!("rejected/{vault}.{uuid}");
    eventually("all signers have noted it", async || {
        let mut signers = (1..=3).map(|number| folder.join(format!("signer-{number}")));
        signers
            .all(|signer| signer.join(&mark).exists())
            .then_some(())
    })
    .await;

    browser.look("treasurer", None, "node-rejected");
    browser.look("treasurer", Some("/"), "node-inbox-empty");
    browser.look("treasurer", Some("/nowhere"), "node-not-found");
    browser.look(
        "treasurer",
        Some(&format!("/requests/{uuid}")),
        "node-request-ended",
    );

    // The administrator of the node makes links for more passkeys; the others have no page.
    let link = |node: &str| {
        let mut command = covault();
        command.args(["node", "approver-link", "controller@node-1", "--config"]);
        outcome_of(command.arg(folder.join(node)))
    };
    let (done, out, err) = link("signer-1.toml");
    assert!(done, "{out}{err}");
    let (at, secret) = out.trim().split_once('#').unwrap();
    assert_eq!(at, format!("{origin}/enrol"));
    assert!(!secret.is_empty(), "{out}");
    let enrolled = browser.ask("enrol", "controller", json!({"link": out.trim()}));
    let line = ApproverLine::parse(enrolled["line"].as_str().unwrap()).unwrap();
    assert_eq!(line.passkey.name, "controller@node-1");
    browser.look("controller", None, "node-enrolled");
    let without_page = [
        "POST /approve",
        "POST /approve/begin",
        "POST /enrol",
        "POST /enrol/begin",
        "POST /enrol/prove",
        "POST /reject",
        "POST /reject/begin",
        "POST /sign-in",
        "POST /sign-in/begin",
        "POST /sign-out",
    ];
    browser.assert_looked_at_all("src/approval_page/mod.rs", &without_page);
    let (done, _, err) = link("signer-2.toml");
    assert!(!done && err.contains("signer.approve_listen"), "{err}");
}
