//! A hostile orchestrator whose key is pinned asks for keys without end.

use std::{fs, sync::Arc, time::Duration};

use crate::support::{SystemEntropy, TestBus, TestCluster, start_cluster, verify};
use covault_core::{
    fault::{Class, Fault},
    ids::VaultId,
    port::random_16,
    signature::Curve,
};
use covault_mpc::{identity::NodeIdentity, node::KeygenQuota};

/// Share files of a node, which every start loads.
fn files(test: &TestCluster, place: usize) -> usize {
    let shares = test.nodes[place].folder.join("shares");
    fs::read_dir(shares).unwrap().count()
}

/// Has a key made, for a vault of its own or for the one of the test.
async fn ask(test: &TestCluster, new_vault: bool) -> Result<(), Fault> {
    let mut order = test.keygen_order(Curve::Ed25519, 2);
    if new_vault {
        order.vault = VaultId::from_random(random_16(&SystemEntropy));
    }
    test.cluster.keygen(&order).await.map(|_| ())
}

fn assert_refused(outcome: Result<(), Fault>, setting: &str) {
    let fault = outcome.unwrap_err();
    assert_eq!(fault.class(), &Class::Invalid, "{fault:?}");
    assert!(fault.message().contains(setting), "{fault:?}");
}

async fn restart(test: &mut TestCluster) {
    for place in 0..test.nodes.len() {
        test.stop_node(place).await;
        test.start_node(place);
    }
    test.until_live(test.nodes.len()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys__should_be_bounded_whatever_an_orchestrator_asks_for() {
    let mut test = TestCluster::start(TestBus::memory(), 2).await;
    let honest = Arc::new(NodeIdentity::generate(&SystemEntropy));
    test.also_trusted.push(honest.id());
    test.keygen_quota = KeygenQuota {
        keys_per_vault_per_day: 3,
        keys_per_day: 100,
        unused_keys: 10,
    };
    restart(&mut test).await;

    // Of one vault.
    let root = test.keygen(Curve::Ed25519, 2).await;
    for _ in 0..2 {
        ask(&test, false).await.unwrap();
    }
    for _ in 0..5 {
        assert_refused(ask(&test, false).await, "signer.keys_per_vault_per_day");
    }
    // Of as many vaults as it invents.
    for _ in 0..7 {
        ask(&test, true).await.unwrap();
    }
    for _ in 0..30 {
        assert_refused(ask(&test, true).await, "covault node clear-unused");
    }
    assert_eq!([files(&test, 0), files(&test, 1)], [10, 10]);
    // Counted on disk.
    restart(&mut test).await;
    assert_refused(ask(&test, true).await, "covault node clear-unused");
    assert_refused(ask(&test, false).await, "signer.keys_per_vault_per_day");

    // Another orchestrator, which is pinned too, still makes its vault.
    let other = start_cluster(&test.medium, &honest).await;
    let mut order = test.keygen_order(Curve::Ed25519, 2);
    order.vault = VaultId::from_random(random_16(&SystemEntropy));
    let made = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            // It has to hear the nodes first.
            match other.keygen(&order).await {
                Ok(root) => break root,
                Err(fault) if fault.class() == &Class::Unavailable => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(fault) => panic!("{fault:?}"),
            }
        }
    });
    made.await.unwrap();

    // A key that signs is no longer counted, also after a restart.
    let order = test.order(&root);
    verify(&order, &test.sign(&order, 2, 60_000).await.unwrap());
    restart(&mut test).await;
    ask(&test, true).await.unwrap();
    assert_refused(ask(&test, true).await, "covault node clear-unused");
    assert_eq!([files(&test, 0), files(&test, 1)], [12, 12]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys__should_be_bounded_when_all_are_asked_for_at_once() {
    let mut test = TestCluster::start(TestBus::memory(), 2).await;
    test.keygen_quota.unused_keys = 5;
    restart(&mut test).await;
    let asked: Vec<_> = (0..200)
        .map(|_| {
            let mut order = test.keygen_order(Curve::Ed25519, 2);
            order.vault = VaultId::from_random(random_16(&SystemEntropy));
            order.expires_at_ms = order.issued_at_ms + 10_000;
            let cluster = Arc::clone(&test.cluster);
            tokio::spawn(async move { cluster.keygen(&order).await.is_ok() })
        })
        .collect();
    let mut made = 0;
    for one in asked {
        made += usize::from(one.await.unwrap());
    }
    assert!(made <= 5, "{made}");
    for place in 0..2 {
        assert!(files(&test, place) <= 5, "{}", files(&test, place));
    }
    restart(&mut test).await;
    // What was refused has left nothing behind that is in the way.
    for _ in made..5 {
        ask(&test, true).await.unwrap();
    }
    assert_refused(ask(&test, true).await, "covault node clear-unused");
}
