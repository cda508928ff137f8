//! Nothing secret in the logs: a full run at trace level, whose text is then searched for everything
//! that only the nodes may know, in hexadecimal, in base64, and as a list of numbers.

use std::sync::{Arc, Mutex};

use crate::support::{SystemEntropy, TestBus, TestCluster, log::LogCapture, search::SecretSearch};
use covault_core::{
    derive::{KeyPath, RootKey},
    networks::Network,
    port::Entropy,
    signature::Curve,
};
use covault_mpc::{
    node::RebuildCheck,
    shares::{ShareStore as _, age_file::AgeShareStore},
    simulated,
};
use curve25519_dalek::Scalar;
use secrecy::SecretString;
use sha2::{Digest as _, Sha512};
use tracing_subscriber::filter::LevelFilter;

/// Remembers what it gave.
#[derive(Default)]
struct RecordingEntropy(Mutex<Vec<Vec<u8>>>);

impl Entropy for RecordingEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        SystemEntropy.fill(bytes);
        self.0.lock().unwrap().push(bytes.to_vec());
    }
}

/// Shares and all that follows from them; gives them to the search.
fn collect(secrets: &mut SecretSearch, test: &TestCluster, draws: &[Vec<u8>]) {
    let passphrase = SecretString::from("a passphrase");
    let mut scalars = Vec::new();
    for node in &test.nodes {
        let files = AgeShareStore::open(&node.folder, &passphrase, 1).unwrap();
        let records = files.load_all().unwrap();
        assert_eq!(records.len(), 2, "a share of each curve");
        for record in records {
            match record.key.root.curve {
                Curve::Ed25519 => {
                    // Version, key package, public package.
                    let (_, key, _): (u8, Vec<u8>, Vec<u8>) =
                        bcs::from_bytes(&record.key.secret).unwrap();
                    let key = frost_ed25519::keys::KeyPackage::deserialize(&key).unwrap();
                    let share: [u8; 32] = key.signing_share().serialize().try_into().unwrap();
                    secrets.add(&share);
                    scalars.push((record.key.root, share));
                }
                Curve::Secp256k1 => {
                    secrets.add(&record.key.secret);
                    // It holds the public key, too.
                    secrets.remove(&record.key.root.public_key);
                }
            }
        }
    }
    for draw in draws.iter().filter(|draw| draw.len() >= 32) {
        secrets.add(draw);
    }
    for (root, share) in &scalars {
        for nonce in nonces(root, share, draws) {
            secrets.add(&nonce);
        }
    }
}

/// The nonces that FROST (RFC 9591, 4.1) makes of these draws with the children of a share.
fn nonces(root: &RootKey, share: &[u8; 32], draws: &[Vec<u8>]) -> Vec<[u8; 32]> {
    let share = Scalar::from_bytes_mod_order(*share);
    let mut nonces = Vec::new();
    for wallet in 0..7 {
        let path = KeyPath::of_wallet(Network::Solana, wallet).unwrap();
        let child = root.child(&path).unwrap();
        let child = share + Scalar::from_bytes_mod_order(child.tweak);
        for base in [share, child] {
            for draw in draws.iter().filter(|draw| draw.len() == 32) {
                let hash = Sha512::new()
                    .chain_update(b"FROST-ED25519-SHA512-v1nonce")
                    .chain_update(draw)
                    .chain_update(base.as_bytes());
                let nonce = Scalar::from_bytes_mod_order_wide(&hash.finalize().into());
                nonces.push(nonce.to_bytes());
            }
        }
    }
    nonces
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs__should_show_no_share_no_nonce_and_no_key() {
    let log = LogCapture::start(LevelFilter::TRACE);
    simulated::keep_draws();
    let recorder = Arc::new(RecordingEntropy::default());
    let entropy = Arc::clone(&recorder) as Arc<dyn Entropy>;
    let mut test =
        TestCluster::start_drawing(TestBus::memory(), 3, Arc::new(RebuildCheck), entropy).await;
    test.until_live(3).await;
    let mut roots = Vec::new();
    for curve in Curve::ALL {
        let root = test.keygen(curve, 2).await;
        test.sign_well(&root, 2).await;
        roots.push(root);
    }
    // A refusal and a restart have words of their own.
    let mut order = test.order(&roots[0]);
    order.address.push('x');
    assert!(test.sign(&order, 2, 5_000).await.is_err());
    for place in 0..3 {
        test.stop_node(place).await;
        test.start_node(place);
    }
    test.until_live(3).await;
    for root in &roots {
        test.sign_well(root, 2).await;
    }
    for place in 0..3 {
        test.stop_node(place).await;
    }

    let text = log.text();
    assert!(text.contains("share stored") && text.contains("order refused"));
    // What the system gave, and what the nodes made of it.
    let mut draws = recorder.0.lock().unwrap().clone();
    assert!(!draws.is_empty());
    draws.extend(simulated::kept_draws());
    assert!(draws.iter().filter(|draw| draw.len() == 32).count() > 10);
    let mut secrets = SecretSearch::default();
    collect(&mut secrets, &test, &draws);
    secrets.add(b"a passphrase");
    assert_eq!(secrets.in_text(&text), None);

    // The search finds what it is to find.
    let secret = draws.iter().find(|draw| draw.len() == 32).unwrap();
    secrets.assert_finds(secret);
    assert!(secrets.in_text("a passphrase").is_some());
}
