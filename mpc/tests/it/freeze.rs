//! Nodes that their operators have frozen sign nothing, no matter who asks and what they were doing.

use std::{path::PathBuf, sync::Arc, time::Duration};

use covault_core::{fault::Class, ids::VaultId, order::NodeId, signature::Curve};
use covault_mpc::{
    bus::{Bus, BusAddress, BusError, double::BusDouble, memory::MemoryBus},
    cluster::HaltReason,
    envelope::{Envelope, EnvelopeKind},
    freeze::FreezeStore,
    node::RebuildCheck,
    preprocess::Watermarks,
};
use parking_lot::Mutex;

use crate::support::{TestBus, TestCluster, raw_message, verify};

fn freezes(test: &TestCluster, place: usize) -> FreezeStore {
    FreezeStore::of(&test.nodes[place].folder)
}

/// The error of a request that gets no signature.
async fn refused(test: &TestCluster, order: &covault_core::order::SigningOrder) -> String {
    let fault = test.sign(order, 2, 1_500).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Unavailable, "{fault:?}");
    fault.message().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_nodes__should_sign_nothing_until_they_are_thawed_over_every_restart() {
    let mut test = TestCluster::start(TestBus::memory(), 3).await;
    test.until_live(3).await;
    let roots = [
        test.keygen(Curve::Secp256k1, 2).await,
        test.keygen(Curve::Ed25519, 2).await,
    ];
    freezes(&test, 0).freeze(None).unwrap();
    // The others are enough, also before anybody has heard of it.
    for _ in 0..5 {
        for root in &roots {
            test.sign_well(root, 2).await;
        }
    }
    freezes(&test, 1).freeze(None).unwrap();
    let named = |message: &str, place: usize| {
        let line = test.nodes[place].identity.id().openssh_line("");
        let frozen = message.split_once("frozen by their operators (covault node thaw): ");
        frozen.is_some_and(|(_, rest)| rest.contains(&line))
    };
    test.until(|nodes| {
        let frozen = nodes.iter().filter(|it| it.halted == [HaltReason::Frozen]);
        frozen.count() == 2
    })
    .await;
    for root in &roots {
        let message = refused(&test, &test.order(root)).await;
        assert!(
            message.starts_with("not enough signers: 1 of 2 needed answered"),
            "{message}"
        );
        assert!(
            named(&message, 0) && named(&message, 1) && !named(&message, 2),
            "{message}"
        );
    }
    // Killed and started again: it is on disk.
    for place in [0, 1] {
        test.kill_node(place).await;
        test.start_node(place);
    }
    test.until_live(3).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    refused(&test, &test.order(&roots[0])).await;
    // A request that waits is signed as soon as one of them is thawed.
    let order = test.order(&roots[0]);
    let thaw = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(freezes(&test, 1).thaw(None).unwrap());
    };
    let (signed, ()) = tokio::join!(test.sign(&order, 2, 60_000), thaw);
    verify(&order, &signed.unwrap());
    for root in &roots {
        test.sign_well(root, 2).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_vault__should_leave_others_alone() {
    let mut test = TestCluster::start(TestBus::memory(), 2).await;
    test.until_live(2).await;
    let first = (test.vault, test.keygen(Curve::Ed25519, 2).await);
    test.vault = VaultId::from_bytes([7; 16]);
    let second = (test.vault, test.keygen(Curve::Ed25519, 2).await);
    freezes(&test, 0).freeze(Some(first.0)).unwrap();
    test.until(|nodes| {
        nodes
            .iter()
            .any(|it| it.frozen == [first.0] && it.halted.is_empty())
    })
    .await;
    let message = refused(&test, &raw_message(first.0, &first.1, 0, &[1; 32])).await;
    assert!(message.contains("frozen by their operators"), "{message}");
    test.sign_well(&second.1, 2).await;
    // What nobody can look at is frozen.
    freezes(&test, 0).thaw(Some(first.0)).unwrap();
    let folder = test.nodes[0].folder.join("frozen");
    std::fs::remove_dir(&folder).unwrap();
    std::fs::write(&folder, b"").unwrap();
    refused(&test, &test.order(&second.1)).await;
    std::fs::remove_file(&folder).unwrap();
    test.until(|nodes| nodes.iter().all(|it| it.halted.is_empty()))
        .await;
    test.sign_well(&second.1, 2).await;
}

/// Freezes a node when it has said its first word of a session.
struct FreezingBus {
    bus: Arc<MemoryBus>,
    /// Whose, and its folder.
    of: Mutex<Option<(NodeId, PathBuf)>>,
}

impl BusDouble for FreezingBus {
    fn inner(&self) -> &dyn Bus {
        &*self.bus
    }

    fn publish(&self, to: BusAddress, message: Vec<u8>) -> Result<(), BusError> {
        let header = Envelope::parse(message.clone()).unwrap().header;
        let mut of = self.of.lock();
        if header.kind == EnvelopeKind::Protocol
            && of.as_ref().is_some_and(|(node, _)| *node == header.from)
            && let Some((_, folder)) = of.take()
        {
            FreezeStore::of(&folder).freeze(None).unwrap();
        }
        drop(of);
        self.bus.publish(to, message)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn freeze__should_stop_what_is_being_signed() {
    for curve in Curve::ALL {
        let bus = Arc::new(FreezingBus {
            bus: MemoryBus::new(),
            of: Mutex::new(None),
        });
        let medium = TestBus::Other(Arc::clone(&bus) as Arc<dyn Bus>);
        // Without nonces made ahead a signature takes more than one message.
        let none = Watermarks { low: 0, high: 0 };
        let test = TestCluster::start_pooled(medium, 2, Arc::new(RebuildCheck), none).await;
        test.until_live(2).await;
        let root = test.keygen(curve, 2).await;
        test.sign_well(&root, 2).await;
        let node = &test.nodes[1];
        *bus.of.lock() = Some((node.identity.id(), node.folder.clone()));
        let order = test.order(&root);
        refused(&test, &order).await;
        assert!(bus.of.lock().is_none(), "it has not begun");
        freezes(&test, 1).thaw(None).unwrap();
        verify(&order, &test.sign(&order, 2, 60_000).await.unwrap());
    }
}
