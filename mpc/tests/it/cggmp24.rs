//! The second ECDSA backend on a cluster of nodes.

#![cfg(feature = "cggmp24")]

use crate::support::{SystemEntropy, TestBus, TestCluster, now_ms, start_cluster, verify};
use covault_core::{fault::Class, order::KeygenOrder, scheme::Scheme, signature::Curve};
use covault_mpc::{primes::PrimeStore, shares::age_file::AgeShareStore};
use secrecy::SecretString;

/// Everybody knows them: for tests only.
const PRIMES: [&[u8]; 2] = [
    include_bytes!("../fixtures/cggmp24-primes-for-tests-only-1.json"),
    include_bytes!("../fixtures/cggmp24-primes-for-tests-only-2.json"),
];

fn primes(test: &TestCluster, place: usize) -> PrimeStore {
    let passphrase = SecretString::from("a passphrase");
    AgeShareStore::open(&test.nodes[place].folder, &passphrase, 2)
        .unwrap()
        .primes()
        .unwrap()
}

fn order(test: &TestCluster) -> KeygenOrder {
    KeygenOrder {
        scheme: Scheme::Cggmp24,
        expires_at_ms: now_ms() + 280_000,
        ..test.keygen_order(Curve::Secp256k1, 2)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cggmp24__should_make_a_key_with_primes_made_ahead_and_sign_also_after_a_restart() {
    let mut test = TestCluster::start(TestBus::memory(), 2).await;
    test.until_live(2).await;

    // Without primes on every node there is no key, and it is said what to do.
    let preprocess = primes(&test, 0);
    preprocess
        .add(&[&[1], PRIMES[0].trim_ascii()].concat(), &SystemEntropy)
        .unwrap();
    let fault = test.cluster.keygen(&order(&test)).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Invalid, "{fault:?}");
    assert!(fault.message().contains("covault node primes"), "{fault:?}");
    // Who had some has not lost them by that.
    assert_eq!(preprocess.count().unwrap(), 1);

    primes(&test, 1)
        .add(&[&[1], PRIMES[1].trim_ascii()].concat(), &SystemEntropy)
        .unwrap();
    let root = test.cluster.keygen(&order(&test)).await.unwrap().root;
    assert_eq!(root.curve, Curve::Secp256k1);
    for place in 0..2 {
        assert_eq!(primes(&test, place).count().unwrap(), 0, "used once");
    }
    test.sign_well(&root, 2).await;

    test.stop_node(0).await;
    test.start_node(0);
    test.cluster = start_cluster(&test.medium, &test.orchestrator).await;
    test.until_live(2).await;
    let order = test.order(&root);
    verify(&order, &test.sign(&order, 2, 60_000).await.unwrap());
}
