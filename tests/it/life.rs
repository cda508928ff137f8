//! The life of a key with real processes: refresh, reshare, replacement, repair, backup, recovery,
//! restoration. Addresses stay, and what is signed is checked by outside libraries.

use std::{fs, path::PathBuf};

use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use super::support::*;

/// How many share files a signer has.
fn shares(cluster: &TestCluster, index: usize) -> usize {
    let folder = cluster.signer_folder(index).join("shares");
    fs::read_dir(folder).unwrap().count()
}

fn epoch(printed: &str) -> Vec<u32> {
    let lines = printed.lines();
    lines
        .map(|line| {
            let mut words = line.split_whitespace().skip_while(|word| *word != "epoch");
            words.nth(1).unwrap().parse().unwrap()
        })
        .collect()
}

#[tokio::test]
async fn vault__should_keep_its_addresses_while_nodes_and_shares_change() {
    let mut cluster = TestCluster::start(60_000).await;
    let vault = cluster.create_vault("treasury");
    let evm = cluster.api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let solana = cluster.api.wallet(&vault, "NETWORK_TYPE_SOLANA").await;

    let printed = cluster.run(&["refresh", "--name", "treasury"]);
    assert_eq!(epoch(&printed), [1, 1], "{printed}");
    // Of each key one share: the old ones are retired.
    assert_eq!([0, 1, 2].map(|index| shares(&cluster, index)), [2, 2, 2]);
    cluster.assert_signs(&evm, &solana, "refreshed").await;

    // kill -9 of the orchestrator with a run in progress: it cannot end while a node stands still.
    cluster.signers[2].signal("STOP");
    let refreshing = {
        let mut command = cluster.vault_command(&["refresh", "--vault", &vault]);
        std::thread::spawn(move || outcome_of(&mut command))
    };
    eventually("the nodes are asked", async || {
        let log = cluster.serve.log();
        let asked = log
            .lines()
            .filter(|line| line.contains("started resharing"));
        (asked.count() == 4).then_some(())
    })
    .await;
    let shown = cluster.run(&["show", "--vault", &vault]);
    assert!(
        shown.contains("in progress") && !shown.contains("epoch 2"),
        "{shown}"
    );
    cluster.serve.kill();
    cluster.signers[2].signal("CONT");
    cluster.kill_and_restart_serve().await;
    cluster.assert_signs(&evm, &solana, "killed").await;
    let (done, printed, err) = refreshing.join().unwrap();
    assert!(done, "{printed}\n{err}");
    // An attempt that was cut off costs an epoch at most.
    assert!(epoch(&printed).iter().all(|epoch| (2..=3).contains(epoch)));
    assert_eq!([0, 1, 2].map(|index| shares(&cluster, index)), [2, 2, 2]);
    cluster.assert_signs(&evm, &solana, "refreshed again").await;

    // To another set: who leaves has nothing left.
    let fourth = cluster.add_signer().await;
    let reshare = [
        "reshare",
        "--vault",
        &vault,
        "--threshold",
        "2",
        "--signers",
    ];
    let stranger = [cluster.keys[0].as_str(), &cluster.keys[fourth]].join(",");
    let (done, _, err) = cluster.vault(&[&reshare[..], &[&stranger, "--timeout", "90"]].concat());
    assert!(!done && err.contains("signer.peers"), "{err}");
    // Given up, and not waited for.
    assert!(err.contains("repeat the command"), "{err}");
    let shown = cluster.run(&["show", "--vault", &vault]);
    assert!(
        shown.contains("failed; repeat the command") && shown.contains("signer.peers"),
        "{shown}"
    );
    cluster.run(&["reshare", "--vault", &vault, "--cancel"]);
    let shown = cluster.run(&["show", "--vault", &vault]);
    assert!(shown.contains("may have shares of a run"), "{shown}");
    cluster.pin_peers();
    // Who leaves is away.
    cluster.signers[2].kill();
    let keys = [&cluster.keys[0], &cluster.keys[1], &cluster.keys[fourth]].map(String::as_str);
    let set = keys.join(",");
    // Nobody has permitted it: the command says who has to, and how.
    let (done, _, err) = cluster.vault(&[&reshare[..], &[&set, "--timeout", "5"]].concat());
    assert!(!done && err.contains("run: covault node permit"), "{err}");
    for node in ["signer-1", "signer-2", "signer-4"] {
        assert!(err.contains(node), "{node}: {err}");
    }
    cluster.run_permitted(&[&reshare[..], &[&set]].concat());
    assert_eq!(
        [0, 1, 2, fourth].map(|index| shares(&cluster, index)),
        [2, 2, 2, 2]
    );
    cluster.assert_signs(&evm, &solana, "reshared").await;
    let shown = cluster.run(&["show", "--vault", &vault]);
    assert_eq!(shown.matches("not confirmed yet").count(), 2, "{shown}");
    assert!(
        shown.contains("signer-4") && shown.contains("signer-3"),
        "{shown}"
    );
    assert!(!shown.contains("may have shares of a run"), "{shown}");
    // Nobody does anything but start it again.
    cluster.restart_signer(2);
    eventually("who has left is told", async || {
        let shown = cluster.run(&["show", "--vault", &vault]);
        (shares(&cluster, 2) == 0 && !shown.contains("signer-3")).then_some(())
    })
    .await;

    // A node's machine is lost; a new one, with an identity of its own, takes its place.
    cluster.signers[0].kill();
    // Else it may be chosen as a dealer that the others no longer know.
    cluster.until_live(&[1, 2, fourth]).await;
    fs::remove_dir_all(cluster.signer_folder(0)).unwrap();
    cluster.restart_signer(0);
    let new = cluster.public_key(0).await;
    assert_ne!(new, cluster.keys[0]);
    cluster.keys[0].clone_from(&new);
    cluster.admit();
    cluster.pin_peers();
    let set = [&cluster.keys[1], &cluster.keys[fourth], &new].map(String::as_str);
    cluster.run_permitted(&[&reshare[..], &[&set.join(",")]].concat());
    cluster.signers[1].kill();
    cluster
        .assert_signs(&evm, &solana, "a node was replaced")
        .await;

    // A node has lost its claims: with shares it does not start, and says what to do.
    fs::remove_file(cluster.signer_folder(1).join("claims.redb")).unwrap();
    let mut command = covault();
    command.args(["signer", "--config"]);
    let (done, _, err) = outcome_of(command.arg(cluster.folder.path().join("signer-2.toml")));
    assert!(!done && err.contains("vault refresh --lost"), "{err}");
    let folder = cluster.signer_folder(1).join("shares");
    for share in fs::read_dir(folder).unwrap() {
        fs::remove_file(share.unwrap().path()).unwrap();
    }
    cluster.restart_signer(1);
    let lost = cluster.keys[1].clone();
    cluster.run_permitted(&["refresh", "--vault", &vault, "--lost", &lost]);
    cluster.signers[fourth].kill();
    cluster
        .assert_signs(&evm, &solana, "a share was repaired")
        .await;
}

#[tokio::test]
async fn reshare__should_say_who_is_missing_and_be_cancelled() {
    let mut cluster = TestCluster::start(60_000).await;
    let vault = cluster.create_vault("treasury");
    let solana = cluster.api.wallet(&vault, "NETWORK_TYPE_SOLANA").await;
    let evm = cluster.api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let stranger =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINdamAGCsQq31Uv+08lkBzoO4XLz2qYjJa8CGmj3B1Ea";
    cluster.keys.push(stranger.to_owned());
    cluster.admit();
    let set = [cluster.keys[0].as_str(), stranger].join(",");
    let (done, out, err) = cluster.vault(&[
        "reshare",
        "--name",
        "treasury",
        "--threshold",
        "2",
        "--timeout",
        "2",
        "--signers",
        &set,
    ]);
    assert!(!done && out.is_empty(), "{out}");
    assert!(err.contains(stranger) && err.contains("--cancel"), "{err}");
    cluster.assert_signs(&evm, &solana, "meanwhile").await;
    cluster.run(&["reshare", "--name", "treasury", "--cancel"]);
    let (done, _, err) = cluster.vault(&["reshare", "--name", "treasury", "--cancel"]);
    assert!(!done && err.contains("cancelled"), "{err}");
    // Nothing is in the way of the next.
    let printed = cluster.run(&["refresh", "--name", "treasury"]);
    assert_eq!(epoch(&printed).len(), 2);
}

/// The backups of one node in a folder of backups.
fn of_node(folder: &std::path::Path, name: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    files
        .filter(|path| path.to_str().unwrap().contains(&format!(".{name}-")))
        .collect()
}

fn recover(
    identity: &std::path::Path,
    backups: &[PathBuf],
    more: &[&str],
) -> (bool, String, String) {
    let mut command = covault();
    // No configuration, and nothing in reach.
    command.current_dir("/").arg("recover").arg("--backup");
    command.args(backups).arg("--identity").arg(identity);
    outcome_of(command.args(more))
}

#[tokio::test]
async fn backups__should_give_the_keys_to_the_outside_and_a_share_back_to_its_node() {
    let mut cluster = TestCluster::start(60_000).await;
    let vault = cluster.create_vault("treasury");
    let offline = age::x25519::Identity::generate();
    let recipient = offline.to_public().to_string();
    let stranger = age::x25519::Identity::generate().to_public().to_string();
    let folder = cluster.folder.path().join("backups");
    let out = folder.to_str().unwrap();
    let backup = |cluster: &TestCluster, recipient: &str| {
        cluster.vault(&[
            "backup",
            "--vault",
            &vault,
            "--out",
            out,
            "--recipient",
            recipient,
        ])
    };
    // Nodes decide who may have their shares, not the orchestrator.
    let (done, _, err) = backup(&cluster, &recipient);
    assert!(!done && err.contains("signer-1"), "{err}");
    // In the end two are left, with none to spare.
    cluster.configure_signers("least_spare", "0");
    cluster.configure_signers("backup_recipients", &format!("[{recipient:?}]"));
    let (done, files) = eventually("the signers are back", async || {
        let (done, files, _) = backup(&cluster, &recipient);
        (files.lines().count() == 6).then_some((done, files))
    })
    .await;
    assert!(done, "{files}");
    let (done, _, err) = backup(&cluster, &stranger);
    assert!(!done && err.contains("signer-1"), "{err}");

    // From two nodes' backups and the identity, and nothing else.
    let identity = cluster.folder.path().join("offline-identity");
    fs::write(&identity, offline.to_string().expose_secret()).unwrap();
    let backups = [of_node(&folder, "signer-1"), of_node(&folder, "signer-3")];
    assert_eq!(backups.each_ref().map(Vec::len), [2, 2]);
    let (done, out, err) = recover(&identity, &backups[0], &[]);
    assert!(!done && out.is_empty(), "{err}");
    let answer = cluster
        .api
        .ok(
            "createWallet",
            json!({"vaultUuid": vault, "networkType": "NETWORK_TYPE_EVM"}),
        )
        .await;
    let wallet = &answer["details"];
    let (evm, path) = (
        wallet["address"].clone(),
        wallet["keyPath"].as_str().unwrap(),
    );
    let answer = cluster
        .api
        .ok(
            "createWallet",
            json!({"vaultUuid": vault, "networkType": "NETWORK_TYPE_SOLANA"}),
        )
        .await;
    let wallet = &answer["details"];
    let (solana, other) = (
        wallet["address"].clone(),
        wallet["keyPath"].as_str().unwrap(),
    );
    let two = backups.concat();
    let (done, out, err) = recover(&identity, &two, &["--path", path, "--path", other]);
    assert!(done && err.contains("WARNING"), "{err}");
    let children: Vec<Value> = serde_json::from_str(&out).unwrap();
    let found = |keys: &[Value], curve: &str, path: &str| {
        let mut keys = keys.iter();
        let fits = |key: &&Value| key["curve"] == json!(curve) && key["path"] == json!(path);
        keys.find(fits).unwrap().clone()
    };
    let key = found(&children, "secp256k1", path);
    assert_eq!(outside("keyAddress", key)["address"], evm);
    let key = found(&children, "ed25519", other);
    assert_eq!(outside("scalarAddress", key)["address"], solana);
    // The root in the standard form of wallets, to a file of its owner's.
    let file = cluster.folder.path().join("keys.json");
    let (done, out, err) = recover(&identity, &two, &["--out", file.to_str().unwrap()]);
    assert!(done && out.is_empty(), "{err}");
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let roots: Vec<Value> = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let mut root = found(&roots, "secp256k1", "m");
    root["path"] = json!(path.trim_start_matches("m/"));
    assert_eq!(outside("childAddress", root)["address"], evm);

    // A node gets its shares back, and does its part after a refresh.
    cluster.signers[0].kill();
    let data = cluster.signer_folder(0);
    fs::remove_dir_all(data.join("shares")).unwrap();
    for name in ["keyring.age", "claims.redb"] {
        fs::remove_file(data.join(name)).unwrap();
    }
    let restore = |backups: &[PathBuf]| {
        let mut command = covault();
        command.args(["node", "restore", "--config"]);
        command.arg(cluster.folder.path().join("signer-1.toml"));
        command.arg("--identity").arg(&identity).arg("--backup");
        outcome_of(command.args(backups))
    };
    let (done, _, err) = restore(&backups[1]);
    assert!(!done && err.contains("another node"), "{err}");
    let (done, _, err) = restore(&backups[0]);
    assert!(done && err.contains("refresh"), "{err}");
    // Another one is gone for good: a refresh would wait for it. The key goes to those that are left.
    cluster.signers[2].kill();
    cluster.restart_signer(0);
    let left = cluster.keys[..2].join(",");
    let reshare = [
        "reshare",
        "--vault",
        &vault,
        "--threshold",
        "2",
        "--signers",
        &left,
    ];
    cluster.run_permitted(&reshare);
    let (evm, solana) = (evm.as_str().unwrap(), solana.as_str().unwrap());
    cluster
        .assert_signs(evm, solana, "a share was restored")
        .await;
    // What was backed up before does not fit what there is now.
    let (done, ..) = backup(&cluster, &recipient);
    assert!(done);
    let old = |path: &PathBuf| path.to_str().unwrap().contains(".epoch-0.");
    let of = |name: &str, of_before: bool| -> Vec<PathBuf> {
        let files = of_node(&folder, name).into_iter();
        files.filter(|path| old(path) == of_before).collect()
    };
    let later = of("signer-2", false);
    let mixed = [later.clone(), of("signer-1", true)].concat();
    assert_eq!(mixed.len(), 4, "{mixed:?}");
    let (done, out, err) = recover(&identity, &mixed, &[]);
    assert!(
        !done && out.is_empty() && err.contains("generation"),
        "{err}"
    );
    // All that there is, and bytes that are none: the keys, and each file that is left out by name.
    let junk = folder.join("junk.age");
    fs::write(&junk, b"age-encryption.org/v1\nnothing").unwrap();
    let cut = folder.join("cut.age");
    let whole = fs::read(&of("signer-1", false)[0]).unwrap();
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let all: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    let (done, out, err) = recover(&identity, &all, &["--path", path]);
    assert!(done, "{err}");
    let children: Vec<Value> = serde_json::from_str(&out).unwrap();
    assert_eq!(children.len(), 1);
    let key = found(&children, "secp256k1", path);
    assert_eq!(outside("keyAddress", key)["address"], evm);
    let later = later[0].file_name().unwrap().to_str().unwrap();
    for left_out in ["junk.age", "cut.age", later] {
        assert!(
            err.lines()
                .any(|line| line.contains(left_out) && line.contains("left out")),
            "{left_out}: {err}"
        );
    }
}
