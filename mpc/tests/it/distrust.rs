//! Nodes, clocks and a bus that cannot be relied upon.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::support::{
    SystemEntropy, TestBus, TestCluster, announcement, now_ms, start_cluster_on, task, verify,
};
use covault_core::{
    derive::RootKey,
    fault::Class,
    ids::SessionId,
    order::NodeId,
    port::random_16,
    scheme::Scheme,
    signature::{Curve, Signature},
};
use covault_mpc::{
    bus::{Bus, BusAddress, BusError, double::BusDouble, memory::MemoryBus},
    claims::Claims,
    cluster::{Cluster, HaltReason},
    envelope::{EVERYONE, Envelope, EnvelopeCodec, EnvelopeHeader, EnvelopeKind},
};
use tokio::{
    task::JoinHandle,
    time::{interval, sleep, timeout},
};

/// Bans a peer in a stopped node's claims.
async fn ban(test: &TestCluster, place: usize, root: &RootKey, peer: usize) {
    let path = test.nodes[place].folder.join("claims.redb");
    for _ in 0..500 {
        // The node closes its file a moment after it has ended.
        if let Ok(claims) = Claims::open(&path, false) {
            let peer = test.nodes[peer].identity.id();
            claims.ban(&root.public_key, peer, now_ms()).await.unwrap();
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the claims file stays locked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster__should_sign_without_the_node_that_another_has_banned() {
    let mut test = TestCluster::start(TestBus::memory(), 3).await;
    test.until_live(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    test.stop_node(1).await;
    ban(&test, 1, &root, 0).await;
    test.start_node(1);
    test.until_live(3).await;
    // All three are there, and the two that do not get along are never needed together.
    for _ in 0..6 {
        test.sign_well(&root, 2).await;
    }
    // Not even without the third: the ban holds, and it is said who it is about.
    test.stop_node(2).await;
    test.until_live(2).await;
    let fault = test.sign(&test.order(&root), 2, 3_000).await.unwrap_err();
    assert!(
        matches!(fault.class(), Class::Unavailable | Class::Peer { .. }),
        "{fault:?}"
    );
    let line = test.nodes[0].identity.openssh_line("");
    assert!(fault.message().contains(&line), "{fault:?}");
    // With it back, signing goes on.
    test.start_node(2);
    test.until_live(3).await;
    for _ in 0..4 {
        test.sign_well(&root, 2).await;
    }
    // The banned and the third, too.
    test.stop_node(1).await;
    test.until_live(2).await;
    test.sign_well(&root, 2).await;
}

/// Takes a node's place: keeps all it should send to itself, and says that its peers did.
async fn slander(test: &TestCluster, place: usize) -> (JoinHandle<()>, Arc<AtomicUsize>) {
    let bus = test.medium.bus();
    let identity = Arc::clone(&test.nodes[place].identity);
    let me = identity.id();
    let others: Vec<NodeId> = test.holders().into_iter().filter(|id| *id != me).collect();
    let codec = EnvelopeCodec::new(identity, Arc::clone(&bus), Arc::new(SystemEntropy));
    let mut inbox = bus.subscribe(me, false).await.unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let task = tokio::spawn(async move {
        let mut heartbeat = interval(Duration::from_millis(200));
        loop {
            tokio::select! {
                _ = heartbeat.tick() => {
                    let body = announcement("byzantine node", now_ms());
                    let session = SessionId::from_bytes([0; 16]);
                    codec.send(header(EnvelopeKind::Announcement, session, 0, EVERYONE), &body).unwrap();
                }
                message = inbox.next() => {
                    let envelope = Envelope::parse(message.unwrap()).unwrap();
                    let EnvelopeHeader { kind, session, attempt, from, .. } = envelope.header;
                    if kind != EnvelopeKind::SigningOrder {
                        continue;
                    }
                    counter.fetch_add(1, Ordering::Relaxed);
                    // Reply::Failed { culprits, missing, reason, evidence }: all the others.
                    let none: Vec<NodeId> = Vec::new();
                    let mut body = vec![3];
                    body.extend(bcs::to_bytes(&(none, &others, "timed out", "")).unwrap());
                    codec.send(header(EnvelopeKind::Reply, session, attempt, from), &body).unwrap();
                }
            }
        }
    });
    (task, asked)
}

fn header(kind: EnvelopeKind, session: SessionId, attempt: u32, to: NodeId) -> EnvelopeHeader {
    EnvelopeHeader {
        kind,
        sealed: false,
        epoch: 0,
        session,
        attempt,
        round: 0,
        sequence: 0,
        from: to,
        to,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster__should_sign_around_a_node_that_lies_about_who_is_missing() {
    for byzantine in 0..2 {
        let mut test = TestCluster::start(TestBus::memory(), 3).await;
        test.until_live(3).await;
        let root = test.keygen(Curve::Ed25519, 2).await;
        test.stop_node(byzantine).await;
        let (task, asked) = slander(&test, byzantine).await;
        test.until_live(3).await;
        let since = std::time::Instant::now();
        let mut signed = 0;
        // Whom an attempt asks is chance.
        while signed < 6 || (signed < 60 && asked.load(Ordering::Relaxed) == 0) {
            test.sign_well(&root, 2).await;
            signed += 1;
        }
        // It was found out, and is asked last; after half a minute it gets another chance.
        let chances = 1 + usize::try_from(since.elapsed().as_secs() / 30).unwrap();
        let asked = asked.load(Ordering::Relaxed);
        assert!(
            (1..=4 * chances).contains(&asked),
            "asked {asked} times, {chances} chances"
        );
        task.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes__should_sign_with_clocks_that_differ() {
    let mut test = TestCluster::start(TestBus::memory(), 2).await;
    // Both further off than an attempt takes.
    for (place, skew_ms) in [(0, 20_000), (1, -20_000)] {
        test.stop_node(place).await;
        test.nodes[place].skew_ms = skew_ms;
        test.start_node(place);
    }
    // The old one has heard of later times.
    test.cluster = start_cluster_on(test.medium.bus(), &test.orchestrator).await;
    test.until_live(2).await;
    for curve in Curve::ALL {
        let root = test.keygen(curve, 2).await;
        for _ in 0..3 {
            test.sign_well(&root, 2).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes__should_ask_for_the_clocks_to_be_set_when_they_differ_too_much() {
    let mut test = TestCluster::start(TestBus::memory(), 2).await;
    test.until_live(2).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    test.stop_node(0).await;
    // One that is behind cannot be told from one that is dead, and whose words were held back.
    for (skew_ms, live) in [(90_000, 2), (-90_000, 1)] {
        test.nodes[0].skew_ms = skew_ms;
        test.start_node(0);
        test.until_live(live).await;
        let id = test.nodes[0].identity.id();
        timeout(Duration::from_secs(60), async {
            while !test.cluster.nodes().iter().any(|node| node.id == id) {
                sleep(Duration::from_millis(50)).await;
            }
        })
        .await
        .expect("it is heard");
        let fault = test.sign(&test.order(&root), 2, 5_000).await.unwrap_err();
        // Not for good: clocks are set right again.
        assert_eq!(fault.class(), &Class::Unavailable, "{fault:?}");
        assert!(fault.message().contains("check the clocks"), "{fault:?}");
        // The old one has heard of later times.
        test.stop_node(0).await;
        test.cluster = start_cluster_on(test.medium.bus(), &test.orchestrator).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node__should_be_shown_with_its_wrong_clock_while_it_answers() {
    let mut test = TestCluster::start(TestBus::memory(), 2).await;
    test.until_live(2).await;
    for skew_ms in [180_000, -180_000] {
        test.stop_node(0).await;
        test.until_live(1).await;
        test.nodes[0].skew_ms = skew_ms;
        test.start_node(0);
        let id = test.nodes[0].identity.id();
        for shown in [true, false] {
            timeout(Duration::from_secs(60), async {
                let is_shown = || {
                    let nodes = test.cluster.nodes().into_iter();
                    let mut of_it = nodes.filter(|node| node.id == id);
                    of_it.any(|node| node.halted == [HaltReason::ClockTooFar])
                };
                while is_shown() != shown {
                    sleep(Duration::from_millis(50)).await;
                }
            })
            .await
            .expect("it is shown while it is there");
            if shown {
                test.stop_node(0).await;
            }
        }
        test.start_node(0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order__should_be_made_anew_when_the_clock_was_set_back() {
    let test = TestCluster::start(TestBus::memory(), 2).await;
    test.until_live(2).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let mut order = test.order(&root);
    let hour_ms = 3_600_000;
    order.issued_at_ms += hour_ms;
    order.expires_at_ms += hour_ms;
    // It says so at once: waiting for that hour would hold up what comes after it.
    let signing = test.sign(&order, 2, 2 * hour_ms);
    let signed = timeout(Duration::from_secs(60), signing).await;
    let fault = signed.expect("it does not wait").unwrap_err();
    assert_eq!(fault.class(), &Class::Unavailable, "{fault:?}");
    assert!(fault.message().contains("clock was set back"), "{fault:?}");
    test.sign_well(&root, 2).await;
}

/// A bus that everybody reads, and that delivers everything twice.
struct LeakyBus {
    bus: Arc<MemoryBus>,
    read: Mutex<Vec<Vec<u8>>>,
}

impl BusDouble for LeakyBus {
    fn inner(&self) -> &dyn Bus {
        &*self.bus
    }

    fn publish(&self, to: BusAddress, message: Vec<u8>) -> Result<(), BusError> {
        self.read.lock().unwrap().push(message.clone());
        self.bus.publish(to, message.clone())?;
        self.bus.publish(to, message)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bus__should_neither_show_a_signature_nor_harm_when_it_repeats_itself() {
    let leaky = Arc::new(LeakyBus {
        bus: MemoryBus::new(),
        read: Mutex::default(),
    });
    let medium = TestBus::Other(Arc::clone(&leaky) as Arc<dyn Bus>);
    let test = TestCluster::start(medium, 3).await;
    test.until_live(3).await;
    for curve in Curve::ALL {
        // Twice ordered, once made.
        let root = test.keygen(curve, 2).await;
        for _ in 0..10 {
            let order = test.order(&root);
            // One attempt is all there is time for.
            let signatures = sign_once(&test.cluster, &test, &order).await;
            verify(&order, &signatures);
            let read = leaky.read.lock().unwrap();
            for signature in &signatures {
                let secrets: Vec<Vec<u8>> = match signature {
                    Signature::Ecdsa { r, s, .. } => vec![r.to_vec(), s.to_vec()],
                    Signature::Ed25519 { r, s } => vec![r.to_vec(), s.to_vec()],
                };
                for secret in secrets.iter().chain([&order.payload, &order.unsigned]) {
                    let shown = |message: &Vec<u8>| {
                        message
                            .windows(secret.len())
                            .any(|window| window == &secret[..])
                    };
                    assert!(secret.is_empty() || !read.iter().any(shown));
                }
            }
        }
        leaky.read.lock().unwrap().clear();
    }
}

async fn sign_once(
    cluster: &Cluster,
    test: &TestCluster,
    order: &covault_core::order::SigningOrder,
) -> Vec<Signature> {
    let session = SessionId::from_random(random_16(&SystemEntropy));
    cluster
        .sign(
            order,
            task(
                Scheme::default_of(order.network.curve()),
                session,
                &test.holders(),
                2,
                now_ms() + 1_900,
            ),
        )
        .await
        .unwrap()
        .into_signatures()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node__should_not_start_without_its_claims_when_it_holds_shares() {
    let mut test = TestCluster::start(TestBus::memory(), 2).await;
    test.until_live(2).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    test.stop_node(0).await;
    let path = test.nodes[0].folder.join("claims.redb");
    let kept = test.nodes[0].folder.join("kept.redb");
    std::fs::rename(&path, &kept).unwrap();
    test.start_node(0);
    let fault = test.ended(0).await.unwrap_err();
    assert!(
        fault.message().contains("claims.redb: is missing"),
        "{fault:?}"
    );
    assert!(!path.exists());
    std::fs::rename(&kept, &path).unwrap();
    test.start_node(0);
    test.until_live(2).await;
    test.sign_well(&root, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes__should_refuse_a_request_that_has_grown() {
    let check = Arc::new(crate::support::AcceptAnyOrder);
    let test = TestCluster::start_with(TestBus::memory(), 2, check).await;
    test.until_live(2).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let mut order = test.order(&root);
    verify(&order, &test.sign(&order, 2, 60_000).await.unwrap());
    order.inputs.extend(test.order(&root).inputs);
    let fault = test.sign(&order, 2, 20_000).await.unwrap_err();
    assert_eq!(fault.class(), &Class::WrongState, "{fault:?}");
    // More inputs than a session has room for.
    order.inputs = vec![order.inputs[0].clone(); 257];
    let fault = test.sign(&order, 2, 20_000).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Invalid, "{fault:?}");
    // As many as it has room for.
    let mut order = test.order(&root);
    order.inputs = vec![order.inputs[0].clone(); 256];
    verify(&order, &test.sign(&order, 2, 60_000).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes__should_sign_the_largest_message_that_a_client_can_send() {
    let test = TestCluster::start(TestBus::redis(), 2).await;
    test.until_live(2).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    // A body of 1 MiB holds so much in hexadecimal.
    let order = test.raw_message(&root, 1, &vec![7; 500 << 10]);
    verify(&order, &test.sign(&order, 2, 20_000).await.unwrap());
}
