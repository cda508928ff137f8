//! Nothing secret in the logs: a full run at trace level, whose text is then searched for everything
//! that only the nodes may know, in hexadecimal, in base64, and as a list of numbers.

#![allow(non_snake_case, missing_docs)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

mod support;

use std::{
    collections::HashSet,
    io,
    sync::{Arc, Mutex},
};

use base64::Engine as _;
use covault_core::{
    derive::{KeyPath, RootKey},
    port::Entropy,
    signature::Curve,
};
use covault_mpc::{
    node::Rebuild,
    shares::{ShareStore as _, age_file::AgeFiles},
};
use curve25519_dalek::Scalar;
use secrecy::SecretString;
use sha2::{Digest as _, Sha512};
use support::{Medium, SystemEntropy, TestCluster};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Remembers what it gave.
#[derive(Default)]
struct Recorder(Mutex<Vec<Vec<u8>>>);

impl Entropy for Recorder {
    fn fill(&self, bytes: &mut [u8]) {
        SystemEntropy.fill(bytes);
        self.0.lock().unwrap().push(bytes.to_vec());
    }
}

/// So many bytes of a secret in a row give it away.
const WINDOW: usize = 12;

/// Every piece of every secret.
#[derive(Default)]
struct Secrets(HashSet<Vec<u8>>);

impl Secrets {
    fn add(&mut self, secret: &[u8]) {
        assert!(secret.len() >= WINDOW);
        self.0.extend(secret.windows(WINDOW).map(<[u8]>::to_vec));
    }

    fn remove(&mut self, public: &[u8]) {
        for window in public.windows(WINDOW) {
            self.0.remove(window);
        }
    }

    fn in_bytes(&self, bytes: &[u8]) -> bool {
        bytes.windows(WINDOW).any(|window| self.0.contains(window))
    }

    /// What in the text is, or hides, a piece of a secret.
    fn in_text(&self, text: &str) -> Option<String> {
        if self.in_bytes(text.as_bytes()) {
            return Some("in the clear".into());
        }
        for run in runs(text, |letter| letter.is_ascii_hexdigit()) {
            for start in 0..2 {
                let digits = &run[start.min(run.len())..];
                let even = &digits[..digits.len() & !1];
                if self.in_bytes(&hex::decode(even).unwrap()) {
                    return Some(run.to_owned());
                }
            }
        }
        let of_base64 = |letter: char| letter.is_ascii_alphanumeric() || "+/-_".contains(letter);
        let engine = base64::engine::GeneralPurpose::new(
            &base64::alphabet::STANDARD,
            base64::engine::general_purpose::NO_PAD.with_decode_allow_trailing_bits(true),
        );
        for run in runs(text, of_base64) {
            let run = run.replace('-', "+").replace('_', "/");
            for start in 0..4 {
                let letters = &run[start.min(run.len())..];
                let whole = &letters[..letters.len() & !3];
                if self.in_bytes(&engine.decode(whole).unwrap()) {
                    return Some(run);
                }
            }
        }
        let of_list = |letter: char| letter.is_ascii_digit() || ", \n".contains(letter);
        for run in runs(text, of_list) {
            let numbers: Vec<u8> = run
                .split([',', ' ', '\n'])
                .filter_map(|number| number.parse().ok())
                .collect();
            if self.in_bytes(&numbers) {
                return Some(run.to_owned());
            }
        }
        None
    }
}

/// The longest pieces of a text that are of these letters.
fn runs(text: &str, of: impl Fn(char) -> bool) -> impl Iterator<Item = &str> {
    text.split(move |letter| !of(letter))
        .filter(|run| run.len() >= WINDOW)
}

/// Shares and all that follows from them; gives them to the search.
fn collect(secrets: &mut Secrets, test: &TestCluster, draws: &[Vec<u8>]) {
    let passphrase = SecretString::from("a passphrase");
    let mut scalars = Vec::new();
    for node in &test.nodes {
        let files = AgeFiles::open(&node.folder, &passphrase, 1).unwrap();
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
                    secrets.remove(&[0; WINDOW]);
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
        let child = root.child(&KeyPath::new(vec![0, wallet]).unwrap()).unwrap();
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
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    let recorder = Arc::new(Recorder::default());
    let entropy = Arc::clone(&recorder) as Arc<dyn Entropy>;
    let mut test =
        TestCluster::start_drawing(Medium::memory(), 3, Arc::new(Rebuild), entropy).await;
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

    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains("share stored") && text.contains("order refused"));
    let draws = recorder.0.lock().unwrap().clone();
    assert!(draws.iter().filter(|draw| draw.len() == 32).count() > 10);
    let mut secrets = Secrets::default();
    collect(&mut secrets, &test, &draws);
    secrets.add(b"a passphrase");
    assert_eq!(secrets.in_text(&text), None);

    // The search finds what it is to find.
    let secret = draws.iter().find(|draw| draw.len() == 32).unwrap();
    let standard = base64::engine::general_purpose::STANDARD.encode(secret);
    let url = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(&secret[3..]);
    let hex = hex::encode(&secret[5..20]).to_uppercase();
    for shown in [
        format!("share={hex}"),
        format!("a{standard}"),
        format!("x={url} y"),
        format!("{secret:?}"),
        format!("{secret:#?}"),
        "a passphrase".into(),
    ] {
        assert!(secrets.in_text(&shown).is_some(), "{shown}");
    }
}
