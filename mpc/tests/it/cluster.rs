//! Nodes and a cluster client together, on both buses.

use std::{sync::Arc, time::Duration};

use crate::support::{
    AcceptAnyOrder, SystemEntropy, TestBus, TestCluster, now_ms, start_cluster, task, verify,
};
use covault_core::{
    fault::{Class, Fault},
    ids::{SessionId, VaultId},
    networks::SigningInput,
    order::SigningOrder,
    port::random_16,
    scheme::Scheme,
    signature::Curve,
};
use covault_mpc::{
    bus::{Bus, BusAddress, BusError, double::BusDouble, memory::MemoryBus},
    envelope::{Envelope, EnvelopeKind},
    identity::NodeIdentity,
    node::RebuildCheck,
    preprocess::Watermarks,
};
use tokio::{sync::Notify, time::timeout};

/// The whole story of a vault.
async fn story(medium: TestBus) {
    let mut test = TestCluster::start(medium, 3).await;
    test.until_live(3).await;
    let mut names: Vec<_> = test
        .cluster
        .nodes()
        .into_iter()
        .map(|node| node.name)
        .collect();
    names.sort();
    assert_eq!(names, ["node-1", "node-2", "node-3"]);

    let mut roots = Vec::new();
    for curve in Curve::ALL {
        let order = test.keygen_order(curve, 2);
        let made = test.cluster.keygen(&order).await.unwrap();
        let root = made.root.clone();
        assert_eq!(root.curve, curve);
        assert_eq!(made.confirmed, test.confirmed(&root));
        // Repeating it gives the same key.
        assert_eq!(test.cluster.keygen(&order).await.unwrap(), made);
        test.sign_well(&root, 2).await;
        roots.push(root);
    }

    // One node down, without a word: the others sign.
    test.kill_node(1).await;
    for root in &roots {
        test.sign_well(root, 2).await;
    }
    test.until_live(2).await;

    // Two down: nobody signs, and the missing are named.
    test.stop_node(2).await;
    test.until_live(1).await;
    for root in &roots {
        let order = test.order(root);
        let fault = test.sign(&order, 2, 1_000).await.unwrap_err();
        assert_eq!(fault.class(), &Class::Unavailable);
        let missing = [(1, "node-2"), (2, "node-3")].map(|(place, name)| {
            format!("{name} ({})", test.nodes[place].identity.openssh_line(""))
        });
        let [one, other] = &missing;
        let either = [format!("{one}, {other}"), format!("{other}, {one}")].map(|missing| {
            format!("not enough signers: 1 of 2 needed answered; missing: {missing}")
        });
        assert!(either.contains(&fault.message().to_owned()), "{fault:?}");
    }

    // A request waits for a node that comes back, from its folder.
    let order = test.order(&roots[0]);
    let session = SessionId::from_random(random_16(&SystemEntropy));
    let (cluster, holders) = (Arc::clone(&test.cluster), test.holders());
    let waiting_order = order.clone();
    let waiting = tokio::spawn(async move {
        cluster
            .sign(
                &waiting_order,
                task(
                    Scheme::default_of(waiting_order.network.curve()),
                    session,
                    &holders,
                    2,
                    now_ms() + 60_000,
                ),
            )
            .await
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    test.start_node(1);
    verify(&order, &waiting.await.unwrap().unwrap());
    for root in &roots {
        test.sign_well(root, 2).await;
    }

    // The same request with a second digest is refused by every node that knows the first.
    test.start_node(2);
    test.until_live(3).await;
    let order = test.order(&roots[1]);
    verify(&order, &test.sign(&order, 2, 60_000).await.unwrap());
    verify(&order, &test.sign(&order, 2, 60_000).await.unwrap());
    let wallet = order.path.indices()[1];
    let mut second = test.raw_message(&roots[1], wallet, b"something else");
    second.request = order.request;
    let fault = test.sign(&second, 2, 20_000).await.unwrap_err();
    assert_eq!(fault.class(), &Class::WrongState, "{fault:?}");

    if let TestBus::Redis(server) = &mut test.medium {
        server.restart();
        for root in &roots {
            test.sign_well(root, 2).await;
        }
        test.until_live(3).await;
        let root = test.keygen(Curve::Ed25519, 3).await;
        test.sign_well(&root, 3).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster__should_do_its_work_over_memory() {
    story(TestBus::memory()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster__should_do_its_work_over_redis() {
    story(TestBus::redis()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes__should_refuse_what_they_should() {
    let test = TestCluster::start(TestBus::memory(), 3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let good = test.order(&root);
    type OrderTampering = fn(&mut SigningOrder);
    let broken: [(&str, OrderTampering); 8] = [
        ("address", |order| order.address.push('x')),
        ("inputs", |order| order.inputs[0].message[0] ^= 1),
        ("payload", |order| order.payload.push(1)),
        ("another vault", |order| {
            order.vault = VaultId::from_bytes([0; 16])
        }),
        ("epoch 0", |order| order.epoch = 1),
        ("no share of this key", |order| {
            order.root_public_key = vec![1; 32]
        }),
        ("no inputs", |order| order.inputs.clear()),
        ("another curve", |order| {
            order.inputs[0].curve = Curve::Secp256k1
        }),
    ];
    for (expected, spoil) in broken {
        let mut order = good.clone();
        spoil(&mut order);
        let fault = test.sign(&order, 2, 10_000).await.unwrap_err();
        assert_eq!(fault.class(), &Class::Invalid, "{expected}: {fault:?}");
        assert!(fault.message().contains(expected), "{expected}: {fault:?}");
        assert!(
            fault.message().contains("refused to sign"),
            "{expected}: {fault:?}"
        );
    }
    let mut expired = good.clone();
    expired.expires_at_ms = now_ms();
    assert!(test.sign(&expired, 2, 10_000).await.is_err());
    // Nothing of that has harmed the nodes.
    verify(&good, &test.sign(&good, 2, 60_000).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes__should_not_hear_an_unadmitted_node() {
    let test = TestCluster::start(TestBus::memory(), 3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let stranger = Arc::new(NodeIdentity::generate(&SystemEntropy));
    let cluster = start_cluster(&test.medium, &stranger).await;
    let order = test.order(&root);
    let session = SessionId::from_random(random_16(&SystemEntropy));
    let fault = cluster
        .sign(
            &order,
            task(
                Scheme::default_of(order.network.curve()),
                session,
                &test.holders(),
                2,
                now_ms() + 1_000,
            ),
        )
        .await
        .unwrap_err();
    assert_eq!(fault.class(), &Class::Unavailable, "{fault:?}");
    test.sign_well(&root, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes__should_run_a_session_once_also_after_a_restart() {
    let mut test = TestCluster::start(TestBus::memory(), 2).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let order = test.order(&root);
    let session = SessionId::from_random(random_16(&SystemEntropy));
    let sign = |order| {
        let (cluster, holders) = (Arc::clone(&test.cluster), test.holders());
        async move {
            cluster
                .sign(
                    order,
                    task(
                        Scheme::default_of(order.network.curve()),
                        session,
                        &holders,
                        2,
                        now_ms() + 30_000,
                    ),
                )
                .await
        }
    };
    verify(&order, &sign(&order).await.unwrap());
    assert_eq!(sign(&order).await.unwrap_err().class(), &Class::WrongState);
    for place in 0..2 {
        test.stop_node(place).await;
        test.start_node(place);
    }
    // Heartbeats of before count as live for a while, and a session that meets the start of a node
    // is tried once more under another number.
    let restarted = now_ms() + 200;
    test.until(|nodes| {
        let heard = nodes.iter().filter(|it| it.last_seen_ms > restarted);
        heard.filter(|node| node.live).count() == 2
    })
    .await;
    let holders = test.holders();
    let again = test
        .cluster
        .sign(
            &order,
            task(
                Scheme::default_of(order.network.curve()),
                session,
                &holders,
                2,
                now_ms() + 30_000,
            ),
        )
        .await;
    assert_eq!(again.unwrap_err().class(), &Class::WrongState);
    test.sign_well(&root, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes__should_survive_noise_on_the_bus() {
    use covault_mpc::bus::BusAddress;
    let test = TestCluster::start(TestBus::memory(), 3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let bus = test.medium.bus();
    for holder in test.holders() {
        for length in 0..300 {
            bus.publish(BusAddress::Inbox(holder), vec![0; length])
                .unwrap();
            let mut almost = vec![1; length];
            if let Some(version) = almost.get_mut(0) {
                *version = 0;
            }
            bus.publish(BusAddress::Inbox(holder), almost).unwrap();
        }
    }
    test.sign_well(&root, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster__should_sign_many_inputs_and_many_requests_at_once() {
    let check = Arc::new(AcceptAnyOrder);
    let test = Arc::new(TestCluster::start_with(TestBus::memory(), 3, check).await);
    let root = Arc::new(test.keygen(Curve::Ed25519, 2).await);
    let mut order = test.order(&root);
    order.inputs = (0..20_u8)
        .map(|number| SigningInput {
            curve: Curve::Ed25519,
            message: vec![number; number.into()],
        })
        .collect();
    verify(&order, &test.sign(&order, 2, 60_000).await.unwrap());
    let tasks: Vec<_> = (0..100)
        .map(|_| {
            let (test, root) = (Arc::clone(&test), Arc::clone(&root));
            tokio::spawn(async move { test.sign_well(&root, 2).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keygen__should_name_the_nodes_that_are_missing() {
    let mut test = TestCluster::start(TestBus::memory(), 3).await;
    test.until_live(3).await;
    test.stop_node(2).await;
    test.until_live(2).await;
    let mut order = test.keygen_order(Curve::Ed25519, 2);
    order.expires_at_ms = now_ms() + 600;
    let fault = test.cluster.keygen(&order).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Unavailable);
    let line = test.nodes[2].identity.id().openssh_line("");
    let expected = format!("not enough signers: 2 of 3 needed answered; missing: node-3 ({line})");
    assert_eq!(fault.message(), expected);
}

/// Tells when a node has spoken to another, in the midst of a run.
struct SpyBus {
    bus: Arc<MemoryBus>,
    spoken: Notify,
}

impl BusDouble for SpyBus {
    fn inner(&self) -> &dyn Bus {
        &*self.bus
    }

    fn publish(&self, to: BusAddress, message: Vec<u8>) -> Result<(), BusError> {
        if Envelope::parse(message.clone()).unwrap().header.kind == EnvelopeKind::Protocol {
            self.spoken.notify_one();
        }
        self.bus.publish(to, message)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs__should_end_soon_when_a_node_starts_again_in_the_middle() {
    let bus = Arc::new(SpyBus {
        bus: MemoryBus::new(),
        spoken: Notify::new(),
    });
    let medium = TestBus::Other(Arc::clone(&bus) as Arc<dyn Bus>);
    let none = Watermarks { low: 0, high: 0 };
    let mut test = TestCluster::start_pooled(medium, 3, Arc::new(RebuildCheck), none).await;
    test.until_live(3).await;
    let name = test.nodes[1].identity.id().openssh_line("");
    // The order is good for two minutes.
    let soon = Duration::from_secs(30);
    let says_who = |fault: Fault| {
        assert_eq!(fault.class(), &Class::Unavailable);
        assert!(fault.message().contains(&name), "{fault:?}");
    };

    let (cluster, order) = (
        Arc::clone(&test.cluster),
        test.keygen_order(Curve::Secp256k1, 2),
    );
    let run = tokio::spawn(async move { cluster.keygen(&order).await });
    bus.spoken.notified().await;
    test.kill_node(1).await;
    test.start_node(1);
    let outcome = timeout(soon, run).await.expect("ends soon").unwrap();
    says_who(outcome.unwrap_err());
    test.until_live(3).await;
    let root = test.keygen(Curve::Secp256k1, 2).await;

    let order = test.refresh_order(&root, 0, 2);
    let cluster = Arc::clone(&test.cluster);
    // What was said before is not of this run.
    let _ = timeout(Duration::ZERO, bus.spoken.notified()).await;
    let run = tokio::spawn(async move { cluster.reshare(&order).await });
    bus.spoken.notified().await;
    test.kill_node(1).await;
    test.start_node(1);
    let outcome = timeout(soon, run).await.expect("ends soon").unwrap();
    says_who(outcome.unwrap_err());
    test.until_live(3).await;
    test.sign_well(&root, 2).await;
}

/// A machine that is resumed: the log says so, once it has happened.
struct FakeResumeDetector(std::sync::atomic::AtomicBool);

impl covault_mpc::node::ResumeDetector for FakeResumeDetector {
    fn noticed(&self) -> Option<String> {
        let resumed = self.0.load(std::sync::atomic::Ordering::Relaxed);
        resumed.then(|| "in a test".to_owned())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn node__should_end_and_sign_nothing_when_its_machine_was_resumed() {
    let mut test = TestCluster::start(TestBus::memory(), 2).await;
    test.until_live(2).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    test.stop_node(0).await;
    let resumed = Arc::new(FakeResumeDetector(false.into()));
    test.resumption = Arc::clone(&resumed) as _;
    test.start_node(0);
    test.until_live(2).await;
    test.sign_well(&root, 2).await;

    resumed.0.store(true, std::sync::atomic::Ordering::Relaxed);
    // At once, before the node has looked by itself.
    assert!(test.sign(&test.order(&root), 2, 1_000).await.is_err());
    let fault = test.ended(0).await.unwrap_err();
    assert!(fault.to_string().contains("was resumed"), "{fault}");

    // A fresh start is safe: nothing of before is in its memory or used.
    test.resumption = Arc::new(covault_mpc::node::NoResumeDetector);
    test.start_node(0);
    test.until_live(2).await;
    test.sign_well(&root, 2).await;
}
