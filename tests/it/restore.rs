//! What a backup holds, and what a node that was restored from one does not do.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use covault_mpc::shares::backup;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use super::{
    secrets::{copy_of_claims, take_nonces, until_pooled},
    support::{search::SecretSearch, *},
};

/// The nonces that are ready in a signer's claims file, by the epoch of their shares.
fn ready(cluster: &TestCluster, index: usize) -> BTreeMap<u32, Vec<u64>> {
    let (_folder, claims) = copy_of_claims(cluster, index);
    let nonces = cluster.files(index).nonces(&claims).unwrap();
    let of = |(of, _)| {
        let ids = nonces.ready(&of).iter().map(|(id, _)| *id).collect();
        (of.epoch, ids)
    };
    nonces.levels().into_iter().map(of).collect()
}

fn stop(cluster: &mut TestCluster, index: usize) {
    let node = &mut cluster.signers[index];
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
}

/// Both keys' requests end FAILED, and the reason says what to do.
async fn assert_refuses(cluster: &TestCluster, evm: &str, solana: &str, sentence: &str) {
    let content = base64("not by a restored share");
    let raw = json!({"rawMessage": {"from": evm, "content": content,
        "ecdsaHashFunction": "ECDSA_HASH_FUNCTION_SHA256"}});
    let message = json!({"solanaMessage": {"from": solana, "content": content}});
    let execute = async |body: Value| {
        let uuid = cluster.api.create(body).await;
        cluster.api.execute(&uuid).await
    };
    let (one, other) = tokio::join!(execute(raw), execute(message));
    for outcome in [one, other] {
        assert_eq!(outcome["signatures"], Value::Null, "{outcome}");
        let reason = outcome["error"]["message"].as_str().unwrap();
        assert!(reason.contains(sentence), "{reason}");
    }
}

/// The backups of the first signer in a folder.
fn of_first(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    files
        .filter(|path| path.to_str().unwrap().contains(".signer-1-"))
        .collect()
}

#[tokio::test]
async fn restored_node__should_sign_only_after_a_refresh_and_have_no_nonce_of_before() {
    let offline = age::x25519::Identity::generate();
    let recipient = offline.to_public().to_string();
    let metrics = free_port();
    let mut cluster = TestCluster::start_prepared(6_000, "raw_signing = true", |folder| {
        for index in 1..=3 {
            let path = folder.join(format!("signer-{index}.toml"));
            let settings = format!(
                "nonce_pool_low = 4\nnonce_pool_high = 8\nbackup_recipients = [\"{recipient}\"]"
            );
            configure(&path, "signer", &settings, "");
        }
        let listen = format!("metrics_listen = \"127.0.0.1:{metrics}\"");
        configure(&folder.join("signer-1.toml"), "signer", &listen, "");
    })
    .await;
    let metrics = format!("http://127.0.0.1:{metrics}/metrics");
    let vault = cluster.create_vault("treasury");
    let evm = cluster.api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let solana = cluster.api.wallet(&vault, "NETWORK_TYPE_SOLANA").await;
    until_pooled(&metrics, "signer-1", 8).await;
    let folder = cluster.folder.path().join("backups");
    let out = folder.to_str().unwrap();
    let backup = [
        "backup",
        "--vault",
        &vault,
        "--recipient",
        &recipient,
        "--out",
        out,
    ];
    assert_eq!(cluster.run(&backup).lines().count(), 6);

    // A backup holds a share: it parses to its last byte as nothing else, and no part of any nonce
    // that was ready is in it.
    stop(&mut cluster, 0);
    let mut pool = SecretSearch::default();
    let nonces = take_nonces(&cluster, 0).await;
    assert_eq!(nonces.len(), 8);
    for (_, _, nonce) in &nonces {
        pool.add(&nonce.secret);
        pool.add(&nonce.commitments);
    }
    // What begins every one of them says what they are.
    let first = &nonces[0].2;
    for part in [&first.secret[..], &first.commitments] {
        assert!(pool.in_bytes(part).is_some());
    }
    let files = of_first(&folder);
    assert_eq!(files.len(), 2);
    for path in &files {
        let sealed = fs::read(path).unwrap();
        let share = backup::open(&sealed, std::slice::from_ref(&offline)).unwrap();
        assert_eq!((share.epoch, share.threshold), (0, 2));
        assert_eq!(share.holders.len(), 3);
        let plain = age::decrypt(&offline, &sealed).unwrap();
        assert_eq!(pool.in_bytes(&plain), None);
        // 32 bytes, the public halves of three, and whose it is.
        assert!(plain.len() < 512, "{} bytes", plain.len());
        let longer = age::encrypt(&offline.to_public(), &[&plain[..], &[0]].concat()).unwrap();
        assert!(backup::open(&longer, std::slice::from_ref(&offline)).is_err());
    }

    // Its shares are lost; keyring and pool are not.
    let identity = cluster.folder.path().join("offline-identity");
    fs::write(&identity, offline.to_string().expose_secret()).unwrap();
    let restore = |cluster: &TestCluster| {
        let shares = cluster.signer_folder(0).join("shares");
        for share in fs::read_dir(shares).unwrap() {
            fs::remove_file(share.unwrap().path()).unwrap();
        }
        let mut command = covault();
        command.args(["node", "restore", "--config"]);
        command.arg(cluster.folder.path().join("signer-1.toml"));
        command.arg("--identity").arg(&identity).arg("--backup");
        let (done, _, err) = outcome_of(command.args(&files));
        assert!(done && err.contains("covault vault refresh"), "{err}");
    };
    assert_eq!(ready(&cluster, 0)[&0].len(), 8);
    restore(&cluster);
    cluster.restart_signer(0);
    cluster.signers[2].kill();
    cluster.until_live(&[0, 1]).await;
    let sentence = "this share was restored from a backup: refresh the vault first";
    assert_refuses(&cluster, &evm, &solana, sentence).await;
    stop(&mut cluster, 0);
    assert_eq!(ready(&cluster, 0), BTreeMap::new(), "the pool is burned");

    // The refresh raises the epoch, and the new share signs.
    cluster.restart_signer(0);
    cluster.restart_signer(2);
    cluster.until_live(&[0, 1, 2]).await;
    cluster.run(&["refresh", "--vault", &vault]);
    until_pooled(&metrics, "signer-1", 8).await;
    cluster.signers[2].kill();
    cluster.assert_signs(&evm, &solana, "refreshed").await;

    // The same backup is an old one now: of an epoch that is over.
    stop(&mut cluster, 0);
    let numbers = ready(&cluster, 0).remove(&1).unwrap();
    assert!(nonces.iter().all(|(_, id, _)| !numbers.contains(id)));
    restore(&cluster);
    cluster.restart_signer(0);
    cluster.until_live(&[0, 1]).await;
    assert_refuses(&cluster, &evm, &solana, sentence).await;
    cluster.restart_signer(2);
    cluster.until_live(&[0, 1, 2]).await;
    // It cannot be used for dealing, and the operator who put it back has to say so: the node cannot know
    // what came after it.
    let lost = &cluster.keys[0];
    let refresh = ["refresh", "--vault", &vault, "--lost", lost];
    let (done, _, err) = cluster.vault(&[&refresh[..], &["--timeout", "10"]].concat());
    assert!(!done && err.contains("wait for a permit"), "{err}");
    cluster.run_permitted(&refresh);
    cluster.signers[2].kill();
    cluster.assert_signs(&evm, &solana, "refreshed again").await;
    stop(&mut cluster, 0);
    let epochs: Vec<u32> = ready(&cluster, 0).into_keys().collect();
    // Each try has an epoch of its own.
    assert!(epochs.len() == 1 && epochs[0] >= 2, "{epochs:?}");
}
