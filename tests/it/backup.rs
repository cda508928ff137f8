//! `covault backup` as operators use it, on real processes.

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};

use super::support::*;

const EVM: &str = "NETWORK_TYPE_EVM";

fn message(wallet: &str, text: &str) -> Value {
    json!({"evmMessage": {"chainId": "1", "from": wallet, "content": base64(text)}})
}

/// `covault backup` with these arguments.
fn backup(words: &[&str], file: &Path) -> Command {
    let mut command = covault();
    command.arg("backup").args(words).arg(file);
    command
}

#[tokio::test]
async fn backup__should_be_made_while_the_service_runs_and_keep_clients_out_once_it_is_restored() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let data = path("dev");
    let mut dev = DevProcess::start(&data, &[]).await;
    let wallet = dev.api.wallet(&dev.vault, EVM).await;
    let before = dev.api.create(message(&wallet, "before")).await;
    dev.api.execute(&before).await;

    let identity = age::x25519::Identity::generate();
    let secret = identity.to_string();
    let secret = age::secrecy::ExposeSecret::expose_secret(&secret);
    fs::write(path("identity"), format!("{secret}\n")).unwrap();
    let recipient = identity.to_public().to_string();
    let file = path("store.age");
    let shown = file.to_str().unwrap().to_owned();
    let create = |words: &[&str]| dev.ask(&[&["backup", "create"], words].concat());
    let (done, _, err) = create(&["--out", &shown]);
    assert!(!done && err.contains("--recipient"), "{err}");
    let (done, out, err) = create(&["--recipient", &recipient, "--out", &shown]);
    assert!(done, "{out}{err}");
    let (done, _, err) = create(&["--recipient", &recipient, "--out", &shown]);
    assert!(!done && err.contains("cannot make"), "{err}");
    let plain = path("store.plain");
    let (done, _, err) = create(&["--plaintext", "--out", plain.to_str().unwrap()]);
    assert!(done, "{err}");
    assert!(
        !fs::read(&file)
            .unwrap()
            .windows(8)
            .any(|it| it == b"Received")
    );
    assert!(
        fs::read(&plain)
            .unwrap()
            .windows(8)
            .any(|it| it == b"Received")
    );

    // It can be checked anywhere, and what is wrong with it is said.
    let identity = path("identity");
    let with = |words: &[&str], file: &Path| {
        let mut command = backup(words, file);
        outcome_of(command.arg("--identity").arg(&identity))
    };
    let (done, heads, err) = with(&["verify"], &file);
    assert!(done && err.contains("1 vaults"), "{err}");
    assert!(heads.contains(&format!("vault:{} ", dev.vault)), "{heads}");
    let (done, _, err) = outcome_of(&mut backup(&["verify"], &file));
    assert!(!done && err.contains("--identity"), "{err}");
    let (done, _, err) = outcome_of(&mut backup(&["verify"], &plain));
    assert!(done, "{err}");
    for (name, of) in [("cut", &file), ("cut.plain", &plain)] {
        let whole = fs::read(of).unwrap();
        let cut = path(name);
        fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
        let (done, _, err) = with(&["verify"], &cut);
        assert!(!done && err.contains("damaged"), "{err}");
    }

    // What comes after it is lost when it is restored; and nobody restores into what is in use.
    let after = dev.api.create(message(&wallet, "after")).await;
    dev.api.execute(&after).await;
    let given_out = dev.api.wallet(&dev.vault, EVM).await;
    let orchestrator = data.join("orchestrator");
    let restore = || {
        let mut command = backup(&["restore"], &file);
        command.arg("--identity").arg(&identity);
        outcome_of(command.env("COVAULT_SERVE_DATA_DIR", &orchestrator))
    };
    let (done, _, err) = restore();
    assert!(!done && err.contains("another covault process"), "{err}");
    assert_eq!(dev.process.terminate(), Some(0));
    let (done, _, err) = restore();
    assert!(!done && err.contains("is not empty"), "{err}");
    fs::rename(orchestrator.join("store.redb"), path("old.redb")).unwrap();
    let (done, _, err) = restore();
    assert!(done && err.contains("covault backup resume"), "{err}");

    dev.restart().await;
    assert_eq!(dev.api.details(&before).await["status"], "STATUS_SUCCEEDED");
    let (status, _) = dev
        .api
        .post("getSigningRequestDetails", json!({"uuid": after}))
        .await;
    assert_eq!(status, 400);
    let refused = dev
        .api
        .post("createSigningRequest", message(&wallet, "held"))
        .await;
    assert_eq!(refused.0, 503, "{refused:?}");
    assert!(refused.1.to_string().contains("restored from a backup"));
    let list = dev.command(&["vault", "list"]);
    assert!(list.contains(&dev.vault), "{list}");
    let list = dev.command(&["vault", "list", "--json"]);
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["vaults"][0]["uuid"], dev.vault, "{list}");
    assert_eq!(dev.api.get("/readyz").await, 503);
    dev.command(&["backup", "resume"]);
    assert_eq!(dev.api.get("/readyz").await, 200);
    let (done, _, err) = dev.ask(&["backup", "resume"]);
    assert!(!done && err.contains("not refused"), "{err}");
    dev.api.sign(message(&wallet, "again")).await;
    let new = dev.api.wallet(&dev.vault, EVM).await;
    assert_ne!(new, given_out);

    // The log goes on from the backup, and says so.
    fs::write(path("heads"), heads).unwrap();
    let kept = path("heads");
    let out = dev.command(&["audit", "verify", "--expect", kept.to_str().unwrap()]);
    assert!(out.starts_with("service "), "{out}");
    let log = dev.command(&["audit", "export"]);
    for event in [
        "StoreBackedUp",
        "StoreRestored",
        "VaultRestored",
        "ClientsLetIn",
    ] {
        assert!(log.contains(event), "{event}");
    }
}

/// Each restore passes 1,000 epochs, and the nodes have seen none of them.
#[tokio::test]
async fn vault__should_be_refreshed_after_five_restores_of_its_store_in_a_row() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let data = path("dev");
    let mut dev = DevProcess::start(&data, &[]).await;
    let wallet = dev.api.wallet(&dev.vault, EVM).await;
    let orchestrator = data.join("orchestrator");
    for round in 0..5 {
        let file = path(&format!("store-{round}"));
        dev.command(&[
            "backup",
            "create",
            "--plaintext",
            "--out",
            file.to_str().unwrap(),
        ]);
        assert_eq!(dev.process.terminate(), Some(0));
        let old = path(&format!("old-{round}.redb"));
        fs::rename(orchestrator.join("store.redb"), old).unwrap();
        let mut command = backup(&["restore"], &file);
        command.env("COVAULT_SERVE_DATA_DIR", &orchestrator);
        let (done, _, err) = outcome_of(&mut command);
        assert!(done, "{err}");
        dev.restart().await;
        dev.command(&["backup", "resume"]);
    }
    let (done, out, err) = dev.ask(&["vault", "refresh", "--vault", &dev.vault]);
    assert!(done, "{out}{err}");
    dev.api.sign(message(&wallet, "after the refresh")).await;
}
