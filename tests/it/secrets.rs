//! Nothing secret in what real processes write: the logs of all of them at trace level, what the
//! commands of an operator print, and the files that are no one's secret.

use std::{fs, path::Path};

use base64::Engine as _;
use covault_core::{derive::KeyPath, ids::SessionId, networks::Network, signature::Curve};
use covault_mpc::{
    backend::{self, PreprocessedNonce},
    claims::{Claim, Claims},
    preprocess::NonceSelection,
    shares::ShareEpoch,
    shares::age_file::KEYRING,
};
use curve25519_dalek::Scalar;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};

use super::support::{search::SecretSearch, *};

const PASSPHRASE: &str = "Vier gelbe Ruder treiben seewaerts";
const EVE: &str = "0x37b5ba07902c51ef69dE0BbEa42A11a1A94e3ff6";
const BOB: &str = "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be";

/// A copy of a node's claims file, as it is now. The node goes on writing to it: only a copy serves that is the same as
/// what is read once more behind it.
pub fn copy_of_claims(cluster: &TestCluster, index: usize) -> (tempfile::TempDir, Claims) {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("claims.redb");
    let file = cluster.signer_folder(index).join("claims.redb");
    let is_whole = |_| {
        fs::copy(&file, &copy).unwrap();
        fs::read(&copy).unwrap() == fs::read(&file).unwrap()
    };
    assert!(
        (0..1_000).any(is_whole),
        "the node never stops writing claims"
    );
    let claims = Claims::open(&copy, false).unwrap();
    (folder, claims)
}

/// Takes every nonce out of a copy of a node's claims file. As a node does, by a claim: there is no
/// other way to read one.
pub async fn take_nonces(
    cluster: &TestCluster,
    index: usize,
) -> Vec<(ShareEpoch, u64, PreprocessedNonce)> {
    let (_folder, claims) = copy_of_claims(cluster, index);
    let files = cluster.files(index);
    let nonces = files.nonces(&claims).unwrap();
    let mut all = Vec::new();
    for (attempt, (of, _)) in (0..).zip(nonces.levels()) {
        let ids: Vec<u64> = nonces.ready(&of).iter().map(|(id, _)| *id).collect();
        let claim = Claim {
            session: SessionId::from_bytes([0xEE; 16]),
            attempt,
            digest: None,
            transaction: None,
            spending: Vec::new(),
            now_ms: 1,
            root: Vec::new(),
            approved_until_ms: None,
            hold: None,
        };
        let take = NonceSelection {
            of: of.clone(),
            ids: ids.clone(),
        };
        let taken = nonces.claim(&claims, claim, Some(take)).await.unwrap();
        let opened = nonces.open(taken).unwrap();
        all.extend(
            ids.into_iter()
                .zip(opened)
                .map(|(id, it)| (of.clone(), id, it)),
        );
    }
    all
}

/// Waits until the metrics of a signer show so many nonces made ahead.
pub async fn until_pooled(metrics: &str, signer: &str, count: u32) {
    let sample = format!("covault_signer_nonces{{node=\"{signer}\"}} {count}");
    let http = http_client();
    eventually("the pool is full", async || {
        let text = http.get(metrics).send().await.ok()?.text().await.ok()?;
        text.lines().any(|line| line == sample).then_some(())
    })
    .await;
}

/// What nobody may see.
#[derive(Default)]
struct KnownSecrets {
    /// In logs and on terminals.
    texts: SecretSearch,
    /// In files that hold other things by right, of which some stand beside the shares, too.
    files: SecretSearch,
}

impl KnownSecrets {
    fn add(&mut self, secret: &[u8]) {
        self.texts.add(secret);
        self.files.add(secret);
    }

    fn remove(&mut self, public: &[u8]) {
        self.texts.remove(public);
        self.files.remove(public);
    }
}

/// Adds a signer's shares of now, and what it derives from them for the first wallets.
fn add_shares(secrets: &mut KnownSecrets, cluster: &TestCluster, index: usize) {
    let records = cluster.shares(index);
    assert_eq!(records.len(), 2, "a share of each curve");
    for record in records {
        let root = &record.key.root;
        let plain = backend::of(record.scheme).unwrap();
        let plain = plain.plain(&record.key).unwrap();
        secrets.add(plain.secret.as_slice());
        // With all that a scheme keeps beside it.
        secrets.texts.add(&record.key.secret);
        // What the orchestrator has as well: the extended public key.
        secrets.remove(&root.public_key);
        secrets.remove(&root.chain_code);
        plain.verifying.values().for_each(|key| secrets.remove(key));
        if root.curve == Curve::Ed25519 {
            let share = Scalar::from_bytes_mod_order(*plain.secret);
            let networks = Network::ALL.into_iter();
            for network in networks.filter(|network| network.curve() == root.curve) {
                for wallet in 0..4 {
                    let path = KeyPath::of_wallet(network, wallet).unwrap();
                    let child = root.child(&path).unwrap();
                    let share = share + Scalar::from_bytes_mod_order(child.tweak);
                    secrets.add(share.as_bytes());
                }
            }
        }
    }
}

/// The seed in an OpenSSH private key file of Ed25519: it stands before the second, or later, copy
/// of the public key (PROTOCOL.key of OpenSSH).
fn seed(path: &Path) -> Vec<u8> {
    let text = fs::read_to_string(path).unwrap();
    let letters: String = text
        .lines()
        .filter(|line| !line.contains("-----"))
        .collect();
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(letters)
        .unwrap();
    let line = fs::read_to_string(path.with_extension("pub")).unwrap();
    let public = covault_core::order::NodeId::parse_openssh_line(&line)
        .unwrap()
        .0;
    let last = bytes.windows(32).rposition(|part| part == public).unwrap();
    bytes[last - 32..last].to_vec()
}

/// Adds what a node's folder holds beside shares: identity, keyring, passphrase.
fn add_node(secrets: &mut KnownSecrets, folder: &Path) {
    secrets.add(&seed(&folder.join("identity")));
    let passphrase = fs::read_to_string(folder.join("passphrase")).unwrap();
    secrets.add(passphrase.trim().as_bytes());
    let lock = age::scrypt::Identity::new(SecretString::from(passphrase.trim()));
    let keyring = age::decrypt(&lock, &fs::read(folder.join(KEYRING)).unwrap()).unwrap();
    add_age(secrets, std::str::from_utf8(&keyring).unwrap());
}

fn add_age(secrets: &mut KnownSecrets, identity: &str) {
    let secret = identity.trim().strip_prefix("AGE-SECRET-KEY-1").unwrap();
    secrets.add(secret.as_bytes());
}

/// A token as it is written, and its bytes.
fn add_token(secrets: &mut KnownSecrets, path: &Path) {
    let token = fs::read_to_string(path).unwrap();
    secrets.add(token.trim().as_bytes());
    secrets.add(&hex::decode(token.trim()).unwrap());
}

/// The files below a folder.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                files(&path)
            } else if path.is_file() {
                vec![path]
            } else {
                // A socket.
                Vec::new()
            }
        })
        .collect()
}

#[tokio::test]
async fn processes__should_write_no_secret_at_trace_level_whatever_they_do() {
    let offline = age::x25519::Identity::generate();
    let recipient = offline.to_public().to_string();
    let metrics = free_port();
    // What was printed on all the terminals.
    let mut said = Vec::new();
    let policy = format!("raw_signing = true\nrecipients.evm = [\"{BOB}\"]\n");
    let mut cluster = TestCluster::start_prepared(8_000, &policy, |folder| {
        for name in ["serve", "signer-1", "signer-2", "signer-3"] {
            let path = folder.join(format!("{name}.toml"));
            let trace = "[log]\nlevel = \"trace\"\n";
            let (table, settings) = match name {
                "serve" => ("serve", String::new()),
                _ => (
                    "signer",
                    format!(
                        "nonce_pool_low = 4\nnonce_pool_high = 8\nbackup_recipients = [\"{recipient}\"]"
                    ),
                ),
            };
            configure(&path, table, &settings, trace);
            if table == "signer" {
                // One passphrase is a person's, the others are made.
                if name == "signer-1" {
                    let listen = format!("metrics_listen = \"127.0.0.1:{metrics}\"");
                    configure(&path, table, &listen, "");
                    fs::create_dir(folder.join(name)).unwrap();
                    write_secret(&folder.join(name).join("passphrase"), PASSPHRASE);
                }
                let mut init = covault();
                let (done, out, err) =
                    outcome_of(init.args(["node", "init", "--config"]).arg(path));
                assert!(done, "{err}");
                said.extend([out, err]);
            }
        }
    })
    .await;
    cluster.until_live(&[0, 1, 2]).await;
    let all = cluster.keys.join(",");
    let (done, out, err) = cluster.try_vault("treasury", &all, &AUTOMATIC);
    assert!(done, "{err}");
    said.extend([out, err]);
    let mut vault = |arguments: &[&str], cluster: &TestCluster| {
        let (done, out, err) = cluster.vault(arguments);
        assert!(done, "{arguments:?}: {err}");
        said.extend([out, err]);
    };
    let id = cluster.create_vault("treasury");
    let evm = cluster.api.wallet(&id, "NETWORK_TYPE_EVM").await;
    let solana = cluster.api.wallet(&id, "NETWORK_TYPE_SOLANA").await;
    let mut secrets = KnownSecrets::default();
    (0..3).for_each(|index| add_shares(&mut secrets, &cluster, index));

    // What a node has made ahead is noted, from a copy of its file, and is then used: with one other
    // node away, it signs everything.
    let metrics = format!("http://127.0.0.1:{metrics}/metrics");
    until_pooled(&metrics, "signer-1", 8).await;
    let noted = take_nonces(&cluster, 0).await;
    assert_eq!(noted.len(), 8);
    cluster.signers[2].kill();
    cluster.until_live(&[0, 1]).await;
    cluster.assert_signs(&evm, &solana, "of two").await;
    let sample = "covault_signer_nonces{node=\"signer-1\"} ";
    eventually("nonces that were noted are used", async || {
        let message = json!({"from": solana, "content": base64("again")});
        cluster.api.sign(json!({"solanaMessage": message})).await;
        let text = http_client().get(&metrics).send().await.ok()?;
        let text = text.text().await.ok()?;
        let mut lines = text.lines();
        let level: u32 = lines.find_map(|line| line.strip_prefix(sample)?.parse().ok())?;
        (level < 8).then_some(())
    })
    .await;
    let send = |to: &str| {
        json!({"broadcastTx": false, "evmSendNative": {"chainId": "1", "from": evm, "to": to,
            "value": "1", "nonce": "0",
            "gasFee": {"maxFee": "10", "maxPriorityFee": "1", "gasLimit": "21000"}}})
    };
    cluster.api.sign(send(BOB)).await;
    // Refusals have words of their own.
    let refused = cluster.api.create(send(EVE)).await;
    let refused = cluster.api.execute(&refused).await;
    assert!(refused.to_string().contains("recipient"), "{refused}");
    let stranger = ApiClient::new(&cluster.api.base, &"f".repeat(64));
    assert_eq!(stranger.post("getWalletList", json!({})).await.0, 401);
    let node = &mut cluster.signers[0];
    assert_eq!(node.terminate(), Some(0), "{}", node.log());
    cluster.restart_signer(0);
    cluster.restart_signer(2);
    cluster.until_live(&[0, 1, 2]).await;

    vault(&["refresh", "--name", "treasury"], &cluster);
    (0..3).for_each(|index| add_shares(&mut secrets, &cluster, index));
    let out = cluster.folder.path().join("backups");
    let backup = [
        "backup",
        "--name",
        "treasury",
        "--recipient",
        &recipient,
        "--out",
    ];
    vault(&[&backup[..], &[out.to_str().unwrap()]].concat(), &cluster);
    vault(&["show", "--name", "treasury"], &cluster);
    vault(&["list"], &cluster);
    cluster.assert_signs(&evm, &solana, "refreshed").await;

    // The whole keys, and the identity that has them.
    let identity = cluster.folder.path().join("offline-identity");
    fs::write(&identity, offline.to_string().expose_secret()).unwrap();
    let keys = cluster.folder.path().join("keys.json");
    let mut recover = covault();
    recover.arg("recover").arg("--identity").arg(&identity);
    recover.arg("--out").arg(&keys).arg("--backup");
    let (done, out, err) = outcome_of(recover.args(files(&out)));
    assert!(done, "{err}");
    said.extend([out, err]);
    let keys: Vec<Value> = serde_json::from_slice(&fs::read(&keys).unwrap()).unwrap();
    assert_eq!(keys.len(), 2);
    for key in keys {
        secrets.add(&hex::decode(key["privateKey"].as_str().unwrap()).unwrap());
    }
    add_age(&mut secrets, offline.to_string().expose_secret());

    for process in cluster.signers.iter_mut().chain([&mut cluster.serve]) {
        assert_eq!(process.terminate(), Some(0), "{}", process.log());
    }
    let mut left = Vec::new();
    for index in 0..3 {
        left.push(take_nonces(&cluster, index).await);
    }
    // What was noted and not used is burned. The epoch may be above 1: a refresh that a node's start
    // broke off has used a number, too.
    let shares = cluster.shares(0);
    assert!(shares.iter().all(|share| share.epoch > 0));
    assert!(left[0].iter().all(|(of, ..)| {
        let mut shares = shares.iter();
        shares.any(|it| it.key.root.public_key == of.root && it.epoch == of.epoch)
    }));
    let lowest = left[0].iter().map(|(_, id, _)| *id).min().unwrap();
    assert!(noted.iter().all(|(_, id, _)| *id < lowest));
    for (_, _, nonce) in noted.iter().chain(left.iter().flatten()) {
        secrets.add(&nonce.secret);
        secrets.remove(&nonce.commitments);
    }
    let orchestrator = cluster.folder.path().join("orchestrator");
    secrets.add(&seed(&orchestrator.join("identity")));
    add_token(&mut secrets, &orchestrator.join("platform-token"));
    add_token(&mut secrets, &orchestrator.join("admin-token"));
    (0..3).for_each(|index| add_node(&mut secrets, &cluster.signer_folder(index)));

    for text in &said {
        assert_eq!(secrets.texts.in_text(text), None);
    }
    let (mut searched, mut quieter) = (Vec::new(), 0);
    for path in files(cluster.folder.path()) {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let bytes = fs::read(&path).unwrap();
        if name.ends_with(".log") {
            let text = String::from_utf8(bytes).unwrap();
            quieter += usize::from(text.contains(" DEBUG ") || text.contains(" TRACE "));
            assert_eq!(secrets.texts.in_text(&text), None, "{name}");
        } else if matches!(&*name, "store.redb" | "claims.redb" | "identity.pub")
            || name.ends_with(".age")
        {
            assert_eq!(secrets.files.in_bytes(&bytes), None, "{}", path.display());
        } else {
            continue;
        }
        searched.push(name);
    }
    // The level is in force: the orchestrator, for one, was asked whether it is ready.
    assert!(quieter >= 1);
    let count = |name: &str| searched.iter().filter(|it| it.contains(name)).count();
    assert_eq!((count(".log"), count(".redb"), count(".pub")), (5, 4, 4));
    // Keyrings, shares, retired ones, backups.
    assert_eq!(count(".age"), 3 + 6 + 6 + 6);
    assert!(said.iter().any(|text| text.contains("covault node admit")));
    secrets.texts.assert_finds(&noted[0].2.secret);
    secrets.texts.assert_finds(PASSPHRASE.as_bytes());
}
