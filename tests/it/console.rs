//! People with real browsers: Debian's Chromium and its virtual authenticators, against the real programs.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use covault_core::approval::ApproverLine;
use serde_json::{Value, json};

use super::support::*;

mod attacks;
mod every_page;
mod token_batch;

pub const TO: &str = "0x00000000000000000000000000000000c0ffEE19";
pub const ETHER: u128 = 1_000_000_000_000_000_000;
/// Where the batch contract is.
const CONTRACT: &str = "0xD152f549545093347A162Dce210e7293f1452150";
/// `approve(0x...c0ffee19, 1000000)` of ERC-20.
const ALLOW: &str = "095ea7b300000000000000000000000000000000000000000000000000000000c0ffee19\
    00000000000000000000000000000000000000000000000000000000000f4240";
/// More than anvil takes for a transfer.
pub const FEE: &str = "0.001";

/// What the parts of the test of real browsers work with.
pub struct ConsoleStage<'a> {
    anvil: &'a Anvil,
    api: &'a ApiClient,
    people: &'a mut Browsers,
    vault: &'a str,
    from: &'a str,
}

/// `covault ...` of the orchestrator; what it prints on standard output.
fn of_service(cluster: &TestCluster, arguments: &[&str]) -> String {
    let mut command = covault();
    command.args(arguments).arg("--config");
    let file = cluster.folder.path().join("serve.toml");
    let (done, out, err) = outcome_of(command.arg(file));
    assert!(done, "{out}{err}");
    out.trim().to_owned()
}

/// A user who sees all vaults; the link to enrol with.
pub fn create(cluster: &TestCluster, name: &str, role: &str) -> String {
    of_service(
        cluster,
        &["user", "create", name, "--role", role, "--all-vaults"],
    )
}

pub fn payment(from: &str, wei: u128, notes: &str) -> Value {
    json!({"evmSendNative": {"chainId": "31337", "from": from, "to": TO, "value": wei.to_string()}, "notes": notes})
}

fn message(from: &str, text: &str) -> Value {
    json!({"evmMessage": {"chainId": "1", "from": from, "content": base64(text)}})
}

/// Adds a passkey to the policy of the signers, as their administrators do: the words that the command prints are those
/// that the page has shown.
pub fn add_to_policy(policy: &Path, enrolled: &Value) -> String {
    let (line, words) = (
        enrolled["line"].as_str().unwrap(),
        enrolled["words"].as_str().unwrap(),
    );
    let add = |more: &[&str]| {
        let mut command = covault();
        command.args(["policy", "approver"]).arg(policy).arg(line);
        outcome_of(command.args(more))
    };
    let (done, out, _) = add(&[]);
    assert!(!done && out.contains(&format!("words: {words}")), "{out}");
    assert!(add(&["--yes"]).0);
    // What Chromium's authenticator has signed passes the same check as a signer's.
    let parsed = ApproverLine::parse(line).unwrap();
    assert!(parsed.passkey.rp_id == "localhost" && words.split(' ').count() == 8);
    line.to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people__should_enrol_and_approve_in_real_browsers_what_signers_then_sign() {
    let folder = tempfile::tempdir().unwrap();
    let anvil = Anvil::start(folder.path(), 31337).await;
    let compiled = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/contracts/CovaultBatch.json");
    let compiled: Value = serde_json::from_str(&fs::read_to_string(compiled).unwrap()).unwrap();
    let code = json!([CONTRACT, compiled["contracts"]["CovaultBatch"]["runtime"]]);
    anvil.call("anvil_setCode", code).await;
    let port = free_port();
    let origin = format!("http://localhost:{port}");
    let tables = format!(
        "[chains.evm.31337]\nrpc = [{:?}]\nbatch_contract = \"{CONTRACT}\"\n[console]\nlisten = \"127.0.0.1:{port}\"\norigin = \"{origin}\"\n",
        anvil.url
    );
    let cluster = TestCluster::start_prepared(60_000, "", |folder| {
        let file = folder.join("serve.toml");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{text}\n{tables}")).unwrap();
    })
    .await;
    let policy: PathBuf = cluster.folder.path().join("policy.toml");
    let mut people = Browsers::start(&origin, "console");

    // Enrolment: link, passkey, line and words; to the signers by their administrators, and SIGHUP.
    let mut lines = Vec::new();
    for name in ["treasurer", "controller"] {
        let link = create(&cluster, name, "approver");
        assert!(link.starts_with(&format!("{origin}/enrol#")), "{link}");
        let enrolled = people.ask("enrol", name, json!({"link": link}));
        lines.push(add_to_policy(&policy, &enrolled));
        let again = people.ask("refusedLink", "stranger", json!({"link": link}));
        assert!(
            again["said"].as_str().unwrap().contains("cannot be used"),
            "{again}"
        );
    }
    let director = folder.path().join("director");
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", "director", "-f"])
        .arg(&director)
        .status();
    assert!(made.unwrap().success());
    let public = fs::read_to_string(director.with_extension("pub")).unwrap();
    let text = fs::read_to_string(&policy).unwrap();
    let rule = format!(
        "batch_contracts = [\"evm:31337:{CONTRACT}\"]\n{text}\n[[approver]]\nname = \"director\"\nkeys = [{:?}]\n\
         [[approval]]\nneeds = 2\nof = [\"treasurer\", \"controller\", \"director\"]\n\
         [[approval]]\nneeds = 2\nof = [\"treasurer\", \"controller\"]\nkinds = [\"evmSendNative\"]\nhold_hours = 1\n\
         above = {{ asset = \"evm:31337\", per_request = \"{}\" }}\n",
        public.trim(),
        every_page::HELD_ABOVE
    );
    fs::write(&policy, rule).unwrap();
    for signer in &cluster.signers {
        signer.signal("HUP");
    }
    // Signing in, by the keyboard; what the cookie is.
    for name in ["treasurer", "controller"] {
        let signed_in = people.ask("signIn", name, json!({}));
        let cookie = &signed_in["cookies"][0];
        assert_eq!(cookie["name"], "__Host-covault-session");
        assert_eq!(
            (&cookie["httpOnly"], &cookie["secure"], &cookie["sameSite"]),
            (&json!(true), &json!(true), &json!("Strict"))
        );
    }

    every_page::empty(&mut people);
    let approvers = [
        format!("treasurer={}", lines[0]),
        format!("controller={}", lines[1]),
        format!("director={}", public.trim()),
    ];
    let mut words = vec!["--needs", "2"];
    for approver in &approvers {
        words.extend(["--approver", approver]);
    }
    let vault = cluster.create_vault_with("treasury", &words);
    let api = &cluster.api;
    let from = api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    anvil.fund(&from, 10 * ETHER).await;

    // A payment of 2 of 3, in two browsers. The inbox notices it by itself.
    people.ask("open", "treasurer", json!({"path": "/"}));
    let evil = "for \u{200b}rent <img src=x onerror=alert(1)>";
    let uuid = api.create(payment(&from, ETHER + ETHER / 2, evil)).await;
    people.ask("waitForTitle", "treasurer", json!({"title": "(1) Inbox"}));
    let shown = people.ask(
        "open",
        "treasurer",
        json!({"path": format!("/requests/{uuid}")}),
    );
    let shown = shown["text"].as_str().unwrap();
    for part in [
        "1.5 coins of this chain",
        "1500000000000000000",
        TO,
        "<img src=x onerror=alert(1)>",
        "\\u{200b}",
        "treasury",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let first = people.ask("approve", "treasurer", json!({"uuids": [uuid], "fee": FEE}));
    assert_eq!(first["said"], "1 of 1 done", "{first}");
    assert_eq!(first["outcomes"][0], "approved; 1 more to approve it");
    // One person is not two.
    let again = people.ask(
        "open",
        "treasurer",
        json!({"path": format!("/requests/{uuid}")}),
    );
    assert!(
        !again["text"]
            .as_str()
            .unwrap()
            .contains("with your passkey"),
        "{again}"
    );
    let second = people.ask(
        "approve",
        "controller",
        json!({"uuids": [uuid], "fee": FEE}),
    );
    assert_eq!(
        second["outcomes"][0], "approved; the signers sign it next",
        "{second}"
    );
    let outcome = api.execute(&uuid).await;
    assert_eq!(outcome["error"], Value::Null, "{outcome}");
    assert_eq!(anvil.balance(TO).await, ETHER + ETHER / 2);
    let hash = outcome["txHash"].as_str().unwrap().to_owned();

    // It is found again, by whom it paid and by its hash, as a page and as a file.
    for search in [TO, &TO.to_lowercase(), &hash, &uuid] {
        let path = format!("/history?vault={vault}&search={search}");
        let found = people.ask("open", "treasurer", json!({"path": path}));
        let text = found["text"].as_str().unwrap();
        assert!(
            text.contains("Found 1.") && text.contains(TO),
            "{search}: {text}"
        );
    }
    let path = format!("/history?vault={vault}");
    let file = people.ask("download", "treasurer", json!({"path": path}));
    assert_eq!(file["name"], "requests.csv");
    let text = file["text"].as_str().unwrap();
    assert!(text.contains(&hash) && text.contains(&uuid), "{text}");
    let wallet = people.ask(
        "open",
        "treasurer",
        json!({"path": format!("/wallets/{from}")}),
    );
    let text = wallet["text"].as_str().unwrap();
    assert!(text.contains("evm:31337") && text.contains("8.4"), "{text}");

    // Rejected, with a reason; and approved on a page that is older than that.
    let uuid = api.create(payment(&from, 1, "")).await;
    let shown = people.ask(
        "open",
        "treasurer",
        json!({"path": format!("/requests/{uuid}")}),
    );
    let shown = shown["text"].as_str().unwrap();
    for part in [
        "One payment to this address was signed before: 1.5 coins of this chain",
        "2 of treasurer, controller, director",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    people.ask("look", "controller", json!({"uuid": uuid}));
    let rejected = people.ask(
        "reject",
        "treasurer",
        json!({"uuid": uuid, "reason": "not ours"}),
    );
    assert_eq!(rejected["outcomes"][0], "rejected", "{rejected}");
    let rejected = uuid.clone();
    let details = api.details(&uuid).await;
    assert_eq!(
        details["failedReason"],
        "rejected by treasurer (rejectSigningRequest): not ours"
    );
    let late = people.ask("press", "controller", json!({}));
    assert!(
        late["said"]
            .as_str()
            .unwrap()
            .contains("no longer waits for approval"),
        "{late}"
    );

    // Fifty payments with one gesture each, and their fees with one field.
    let mut many = Vec::new();
    for _ in 0..50 {
        many.push(api.create(payment(&from, 1, "")).await);
    }
    for name in ["treasurer", "controller"] {
        let done = people.ask("approveChosen", name, json!({"fee": "0.0001"}));
        assert_eq!(done["fees"], json!(vec!["0.0001"; 50]), "{done}");
        assert_eq!(done["said"], "50 of 50 done", "{done}");
    }
    for uuid in &many {
        let outcome = api.execute(uuid).await;
        assert_eq!(outcome["error"], Value::Null, "{outcome}");
    }

    // Whoever names a fee that is far above what the chain asks for is asked whether that is meant.
    let uuid = api.create(payment(&from, 1, "")).await;
    for name in ["treasurer", "controller"] {
        let done = people.ask("farFee", name, json!({"uuid": uuid, "fee": "0.5"}));
        let asked = done["asked"][0].as_str().unwrap();
        assert!(asked.contains("more than ten times"), "{done}");
        assert_eq!(done["refused"], json!([""]), "{done}");
        assert_eq!(done["said"], "1 of 1 done", "{done}");
    }
    let outcome = api.execute(&uuid).await;
    assert_eq!(outcome["error"], Value::Null, "{outcome}");

    // Two tabs of one person are one person. A browser whose clock is an hour off approves all the same: what counts is the
    // service's. On the way back the page is a new one, and offers nothing that was done.
    for (off_ms, second) in [
        (3_600_000_i64, "withClock"),
        (-3_600_000, "withClock"),
        (0, "back"),
    ] {
        let uuid = api.create(payment(&from, 1, "")).await;
        let twice = people.ask("twoTabs", "treasurer", json!({"uuid": uuid, "fee": FEE}));
        for said in twice["said"].as_array().unwrap() {
            assert_eq!(
                said["outcomes"][0], "approved; 1 more to approve it",
                "{twice}"
            );
        }
        let ask = json!({"uuid": uuid, "fee": FEE, "offMs": off_ms});
        let mut done = people.ask(second, "controller", ask);
        if second == "back" {
            assert_eq!(
                (&done["before"], &done["offered"]),
                (&json!(1), &json!(0)),
                "{done}"
            );
            done = done["done"].take();
        }
        assert_eq!(
            done["outcomes"][0], "approved; the signers sign it next",
            "{done}"
        );
        let outcome = api.execute(&uuid).await;
        assert_eq!(outcome["error"], Value::Null, "{outcome}");
    }

    // A device that has not verified its user approves nothing.
    let uuid = api.create(message(&from, "unverified")).await;
    people.ask("verified", "controller", json!({"isUserVerified": false}));
    let refused = people.ask("approve", "controller", json!({"uuids": [uuid], "fee": ""}));
    assert!(
        refused["said"]
            .as_str()
            .unwrap()
            .contains("Your passkey was not used"),
        "{refused}"
    );
    people.ask("verified", "controller", json!({"isUserVerified": true}));

    // Another page on this machine, and one of a name below the console's, has no session, and is refused.
    for host in ["localhost", "evil.localhost"] {
        let page = format!("{}/livez", api.base).replace("127.0.0.1", host);
        let attack = json!({"page": page, "path": "/sign-out"});
        let attacked = people.ask("attack", "controller", attack);
        assert_eq!(attacked["status"], 403, "{host}: {attacked}");
    }
    let still = people.ask("open", "controller", json!({"path": "/account"}));
    assert_eq!(still["status"], 200);
    assert!(
        still["text"].as_str().unwrap().contains("controller@key-1"),
        "{still}"
    );

    // A batch payment of a file, whose mistakes are mended in the page; then two people approve its request.
    let paid = "0x00000000000000000000000000000000000ba7c1";
    let file = |first: &str, amount: &str| {
        format!("recipient,amount,notes\n{first},{amount},=1+1\n{TO},0.25,rent\n")
    };
    let (bad, good) = (file("0x12", "\"0,5\""), file(paid, "0.5"));
    let batch = json!({"vault": vault, "bad": bad, "good": good});
    let batch = people.ask("batch", "treasurer", batch);
    assert_eq!(
        (&batch["wider"], &batch["serious"]),
        (&json!([]), &json!([])),
        "{batch}"
    );
    let said = |name: &str| batch[name].as_str().unwrap();
    for part in [
        "Row 2, recipient",
        "Row 2, amount: has a comma",
        "(text, no formula)",
    ] {
        assert!(said("mistakes").contains(part), "{part}: {batch}");
    }
    assert!(said("made").contains("0.75 coins of this chain"), "{batch}");
    let request = said("request");
    for name in ["treasurer", "controller"] {
        let done = people.ask("approve", name, json!({"uuids": [request], "fee": FEE}));
        assert_eq!(done["said"], "1 of 1 done", "{done}");
    }
    let outcome = api.execute(request).await;
    assert_eq!(outcome["error"], Value::Null, "{outcome}");
    while anvil.balance(paid).await == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(anvil.balance(paid).await, ETHER / 2);
    let batch_page = said("path").to_owned();
    let new_batch = format!("/batches/new?vault={vault}");

    let one = format!("treasurer={}", lines[0]);
    let evil_vault = cluster.create_vault_with(attacks::EVIL_NAME, &["--approver", &one]);
    let mut stage = ConsoleStage {
        anvil: &anvil,
        api,
        people: &mut people,
        vault: &vault,
        from: &from,
    };
    token_batch::pay(&mut stage).await;
    every_page::waiting(&mut stage, &evil_vault).await;
    every_page::batches_by_keys(&mut stage).await;
    attacks::texts(&mut stage, &evil_vault).await;
    attacks::signing_in(&cluster, &mut people, &origin);
    let evil = attacks::token_with_an_evil_symbol(&anvil, api, &from).await;
    attacks::symbols(&mut people, &evil);

    // By the keyboard alone: fee, button and passkey.
    let by_keys = api.create(payment(&from, 3, "by keys")).await;
    for (who, said) in [
        ("treasurer", "approved; 1 more to approve it"),
        ("controller", "approved; the signers sign it next"),
    ] {
        let done = people.ask(
            "approveByKeys",
            who,
            json!({"uuid": by_keys, "fee": "0.0001"}),
        );
        assert_eq!(done["outcomes"][0], said, "{done}");
    }
    let outcome = api.execute(&by_keys).await;
    assert_eq!(outcome["error"], Value::Null, "{outcome}");

    // Every page, light and dark, wide and narrow; and without scripts.
    let token = [
        "token", "create", "--name", "payroll", "--kind", "platform", "--vault", &vault,
        "--access", "full",
    ];
    of_service(&cluster, &token);
    let operator = create(&cluster, "operator", "operator");
    people.ask("enrol", "operator", json!({"link": operator}));
    people.ask("signIn", "operator", json!({}));
    let auditor = create(&cluster, "auditor", "auditor");
    people.ask("enrol", "auditor", json!({"link": auditor}));
    people.ask("signIn", "auditor", json!({}));
    let nobody = create(&cluster, "deputy", "approver");
    people.ask("enrol", "deputy", json!({"link": nobody}));
    people.ask("signIn", "deputy", json!({}));
    let other = api.create(payment(&from, 7, "for the same")).await;
    let call = json!({"evmSendCustom": {"chainId": "31337", "from": from, "to": TO, "value": "0",
        "input": base64(hex::decode(ALLOW).unwrap())}});
    let call = format!("/requests/{}", api.create(call).await);
    let (waits, failed) = (
        format!("/requests/{other}"),
        format!("/requests/{rejected}"),
    );
    let vault_page = format!("/vaults/{vault}?balances=1");
    let wallet_page = format!("/wallets/{from}");
    let two_page = format!("/requests?uuid={uuid}&uuid={other}");
    let history_page = format!("/history?vault={vault}");
    let found_page = format!("/history?vault={vault}&search={TO}");
    let request_page = format!("/requests/{uuid}");
    let pages = [
        ("treasurer", "/", "inbox"),
        ("deputy", "/", "inbox-empty"),
        ("treasurer", request_page.as_str(), "request"),
        ("treasurer", waits.as_str(), "payment"),
        ("treasurer", call.as_str(), "call"),
        ("treasurer", failed.as_str(), "request-failed"),
        ("treasurer", history_page.as_str(), "history"),
        ("treasurer", batch_page.as_str(), "batch"),
        ("treasurer", new_batch.as_str(), "batch-new"),
        ("treasurer", vault_page.as_str(), "wallets"),
        ("treasurer", wallet_page.as_str(), "wallet"),
        ("treasurer", two_page.as_str(), "together"),
        ("treasurer", found_page.as_str(), "found"),
    ];
    every_page::all(&mut people, &vault, &pages);
    every_page::assert_no_route_was_left_out(&mut people);
    // By the keyboard alone from the top of a page to what it is about.
    for (who, path, name) in [
        (
            "treasurer",
            request_page.as_str(),
            "Approve with your passkey",
        ),
        ("treasurer", "/history", "Search"),
        ("treasurer", wallet_page.as_str(), "Show"),
        ("auditor", "/audit", "Check that the entries fit together"),
    ] {
        let reached = people.ask("tabTo", who, json!({"path": path, "name": name}));
        assert_ne!(reached["tabs"], 0, "{path}: {name}");
    }
    // Without scripts every page can be read.
    for (who, path, part) in [
        ("treasurer", "/", "Waiting for your approval"),
        ("treasurer", found_page.as_str(), TO),
        ("treasurer", vault_page.as_str(), "can sign"),
        ("treasurer", batch_page.as_str(), "0.75 coins of this chain"),
        ("operator", "/users", "treasurer@key-1"),
        ("auditor", "/audit/verify?chain=service", "is the last one"),
    ] {
        let bare = people.ask("withoutScript", who, json!({"path": path}));
        let text = bare["text"].as_str().unwrap();
        assert!(text.contains(part), "{path}: {text}");
    }
    let bare = people.ask("withoutScript", "treasurer", json!({"path": request_page}));
    let text = bare["text"].as_str().unwrap();
    assert!(
        text.contains("need JavaScript") && text.contains(&from),
        "{text}"
    );

    // Revoked: the next page is the one to sign in on.
    of_service(&cluster, &["user", "revoke", "treasurer"]);
    let out = people.ask("open", "treasurer", json!({"path": "/"}));
    assert!(out["url"].as_str().unwrap().ends_with("/sign-in"), "{out}");
    let listed = of_service(&cluster, &["user", "list"]);
    assert!(
        listed.contains("revoked") && listed.contains("controller"),
        "{listed}"
    );
}
