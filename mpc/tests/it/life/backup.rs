//! Backups, recovery and restoration.

use std::fs;

use age::x25519::Identity;
use covault_core::{derive::KeyPath, fault::Class, order::BackupOrder, signature::Curve};
use covault_mpc::shares::backup;
use secrecy::{ExposeSecret as _, SecretString};

use crate::{
    life::world::{LifecycleFixture, session},
    support::now_ms,
};

fn backup_order(life: &LifecycleFixture, recipients: Vec<String>) -> BackupOrder {
    BackupOrder {
        vault: life.test.vault,
        session: session(),
        root_public_key: life.root.public_key.clone(),
        epoch: life.generation.epoch,
        holders: life.generation.holders.clone(),
        recipients,
        issued_at_ms: now_ms(),
        expires_at_ms: now_ms() + 60_000,
    }
}

/// Backup, recovery from nothing else, restoration of a node, and the refresh that it needs.
async fn backup_story(curve: Curve) {
    let mut life = LifecycleFixture::start(curve, 3, 3, 2).await;
    let (alice, bob) = (Identity::generate(), Identity::generate());
    let lines: Vec<String> = [&alice, &bob]
        .map(|identity| identity.to_public().to_string())
        .to_vec();
    for place in 0..2 {
        life.test.nodes[place].backup_recipients = lines.clone();
        life.restart(place).await;
    }

    // To others a node gives nothing, whatever the orchestrator says.
    let thief = Identity::generate().to_public().to_string();
    let order = backup_order(&life, vec![lines[0].clone(), thief.clone()]);
    for (_, answer) in life.test.cluster.backup(&order).await.unwrap() {
        assert!(answer.unwrap_err().message().contains("recipients"));
    }
    let order = backup_order(&life, lines.clone());
    let answers = life.test.cluster.backup(&order).await.unwrap();
    let node = answers[2].1.as_ref().unwrap_err();
    assert!(node.message().contains("backup_recipients"), "{node:?}");
    let sealed: Vec<Vec<u8>> = answers
        .into_iter()
        .take(2)
        .map(|(_, answer)| answer.unwrap())
        .collect();
    let root = life.root.clone();
    for blob in &sealed {
        assert!(!blob.windows(8).any(|it| it == &root.public_key[..8]));
        assert!(backup::open(blob, &[Identity::generate()]).is_err());
    }

    // t backups and an offline identity are all that it takes.
    let file = format!("# offline\n{}\n", bob.to_string().expose_secret());
    let identities = backup::identities(&file).unwrap();
    let open = |blob: &Vec<u8>| backup::open(blob, &identities).unwrap();
    let backups: Vec<_> = sealed.iter().map(open).collect();
    let fault = backup::recover(&backups[..1]).err().unwrap();
    assert!(fault.message().contains("too few"), "{fault:?}");
    assert!(backup::recover(&[open(&sealed[0]), open(&sealed[0])]).is_err());
    let key = backup::recover(&backups).unwrap();
    assert_eq!(key.root, root);
    let path = KeyPath::new(vec![0, 7]).unwrap();
    check_private(curve, &key.private_hex(), &root.public_key);
    let child = key.child(&path).unwrap();
    assert_eq!(child.public_key, root.child(&path).unwrap().public_key);
    check_private(curve, &child.private_hex(), &child.public_key);
    if let Some(xprv) = key.xprv() {
        check_xprv(&xprv, &path, &child.private_hex());
    }

    // Node 0 burns down and gets its share back.
    life.test.stop_node(0).await;
    life.test.until_live(2).await;
    let folder = life.test.nodes[0].folder.clone();
    fs::remove_dir_all(&folder).unwrap();
    let passphrase = SecretString::from("a passphrase");
    let (this, other) = (life.id(0), life.id(1));
    assert!(backup::restore(&folder, &passphrase, 2, &other, &backups[0]).is_err());
    backup::restore(&folder, &passphrase, 2, &this, &backups[0]).unwrap();
    let fault = backup::restore(&folder, &passphrase, 2, &this, &backups[0]).unwrap_err();
    assert_eq!(fault.class(), &Class::Conflict);
    life.test.start_node(0);
    life.test.until_live(3).await;
    life.test.stop_node(2).await;
    life.test.until_live(2).await;
    // It does not sign: what it has signed since the backup is not known to it.
    let fault = life.sign_as(&life.generation, 3_000).await.unwrap_err();
    assert!(fault.message().contains("restored"), "{fault:?}");
    // But it deals: with node 2 gone for good, it takes both.
    life.reshare(&[0, 1], &[0, 1], 2).await;
    life.signs().await;
    // Backups of two generations do not mix.
    let order = backup_order(&life, lines);
    let answers = life.test.cluster.backup(&order).await.unwrap();
    let newer = open(answers[1].1.as_ref().unwrap());
    let fault = backup::recover(&[open(&sealed[0]), newer]).err().unwrap();
    assert!(fault.message().contains("epochs 0 and 1"), "{fault:?}");
}

/// That a private key has this public one, by libraries that did not recover it.
pub fn check_private(curve: Curve, private: &str, public: &[u8]) {
    let bytes: [u8; 32] = hex::decode(private).unwrap().try_into().unwrap();
    match curve {
        Curve::Secp256k1 => {
            use k256::ecdsa::{
                Signature, SigningKey,
                signature::hazmat::{PrehashSigner as _, PrehashVerifier as _},
            };
            let key = SigningKey::from_slice(&bytes).unwrap();
            let point = key.verifying_key().to_sec1_point(true);
            assert_eq!(point.as_bytes(), public);
            let signature: Signature = key.sign_prehash(&[3; 32]).unwrap();
            key.verifying_key()
                .verify_prehash(&[3; 32], &signature)
                .unwrap();
        }
        Curve::Ed25519 => {
            use ed25519_dalek::hazmat::{ExpandedSecretKey, raw_sign};
            let scalar =
                Option::from(curve25519_dalek::Scalar::from_canonical_bytes(bytes)).unwrap();
            let expanded = ExpandedSecretKey {
                scalar,
                hash_prefix: [5; 32],
            };
            let key = ed25519_dalek::VerifyingKey::from(&expanded);
            assert_eq!(key.as_bytes().as_slice(), public);
            let signature = raw_sign::<sha2::Sha512>(&expanded, b"message", &key);
            key.verify_strict(b"message", &signature).unwrap();
        }
    }
}

/// That an outside library derives the same child from the extended key.
fn check_xprv(xprv: &str, path: &KeyPath, child: &str) {
    let bytes = bs58::decode(xprv).with_check(None).into_vec().unwrap();
    assert!(xprv.starts_with("xprv") && bytes.len() == 78);
    let mut secret =
        generic_ec::Scalar::<generic_ec::curves::Secp256k1>::from_be_bytes_mod_order(&bytes[46..]);
    let root: hd_wallet::ExtendedKeyPair<_> = hd_wallet::ExtendedSecretKey {
        secret_key: generic_ec::SecretScalar::new(&mut secret),
        chain_code: bytes[13..45].try_into().unwrap(),
    }
    .into();
    let derived = <hd_wallet::Slip10 as hd_wallet::HdWallet<_>>::derive_child_key_pair_with_path(
        &root,
        path.indices().iter().copied(),
    );
    let secret: &generic_ec::Scalar<_> = derived.secret_key().secret_key.as_ref();
    assert_eq!(hex::encode(secret.to_be_bytes()), child);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn life__should_give_the_key_back_from_backups_on_ed25519() {
    backup_story(Curve::Ed25519).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn life__should_give_the_key_back_from_backups_on_secp256k1() {
    backup_story(Curve::Secp256k1).await;
}
