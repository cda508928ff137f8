//! Signing with nonces that were made ahead.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::support::{
    AcceptAnyOrder, SystemEntropy, TestBus, TestCluster, now_ms, start_cluster, verify,
};
use covault_core::{
    derive::RootKey,
    ids::SessionId,
    networks::SigningInput,
    order::{NodeId, SigningOrder},
    port::random_16,
    signature::Curve,
};
use covault_mpc::{
    bus::{Bus, BusAddress, BusError, Subscription, double::BusDouble, memory::MemoryBus},
    claims::Claims,
    envelope::{Envelope, EnvelopeCodec, EnvelopeHeader, EnvelopeKind},
    preprocess::{NonceStore, Watermarks},
};

const MARKS: Watermarks = Watermarks { low: 8, high: 64 };

/// A bus that records its messages, and drops those that the test names.
#[derive(Default)]
struct RecordingBus {
    bus: Arc<MemoryBus>,
    headers: Mutex<Vec<EnvelopeHeader>>,
    /// Messages about nonces from the one to the other are lost.
    deaf: Mutex<Option<(NodeId, NodeId)>>,
}

impl BusDouble for RecordingBus {
    fn inner(&self) -> &dyn Bus {
        &*self.bus
    }

    fn publish(&self, to: BusAddress, message: Vec<u8>) -> Result<(), BusError> {
        let envelope = Envelope::parse(message.clone()).unwrap();
        let EnvelopeHeader {
            kind,
            from,
            to: node,
            ..
        } = envelope.header;
        self.headers.lock().unwrap().push(envelope.header);
        if kind == EnvelopeKind::Nonces && *self.deaf.lock().unwrap() == Some((from, node)) {
            return Ok(());
        }
        self.bus.publish(to, message)
    }
}

impl RecordingBus {
    /// Protocol messages by round since the last call.
    fn rounds(&self) -> BTreeMap<u16, usize> {
        let mut rounds = BTreeMap::new();
        for header in self.headers.lock().unwrap().drain(..) {
            if header.kind == EnvelopeKind::Protocol {
                *rounds.entry(header.round).or_default() += 1;
            }
        }
        rounds
    }
}

async fn cluster(count: usize, watermarks: Watermarks) -> (Arc<RecordingBus>, TestCluster) {
    let recording = Arc::new(RecordingBus::default());
    let medium = TestBus::Other(Arc::clone(&recording) as Arc<dyn Bus>);
    let test = TestCluster::start_pooled(medium, count, Arc::new(AcceptAnyOrder), watermarks).await;
    test.until_live(count).await;
    (recording, test)
}

/// Waits until the orchestrator knows so many nonces of every node.
async fn until_ready(test: &TestCluster, at_least: usize) {
    for _ in 0..1_000 {
        let levels = test.cluster.nonce_levels();
        let holders = test.holders();
        let ready = holders.iter().all(|holder| {
            let level = levels.iter().find(|level| level.node == *holder);
            level.is_some_and(|level| level.known >= at_least)
        });
        if ready {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the pools are {:?}", test.cluster.nonce_levels());
}

fn with_inputs(test: &TestCluster, root: &RootKey, inputs: u8) -> SigningOrder {
    let mut order = test.order(root);
    order.inputs = (0..inputs)
        .map(|number| SigningInput {
            curve: Curve::Ed25519,
            message: vec![number; 40],
        })
        .collect();
    order
}

/// Signs, and gives the messages of each round that it took.
async fn rounds_of(
    recording: &RecordingBus,
    test: &TestCluster,
    order: &SigningOrder,
    threshold: u16,
) -> BTreeMap<u16, usize> {
    recording.rounds();
    let signatures = test.sign(order, threshold, 30_000).await.unwrap();
    verify(order, &signatures);
    recording.rounds()
}

/// Signs until it takes one round only: peers hear of nonces after the orchestrator at times.
async fn until_one_round(
    recording: &RecordingBus,
    test: &TestCluster,
    root: &RootKey,
    threshold: u16,
) {
    let order = || test.order(root);
    until_one_round_of(recording, test, order, threshold).await;
}

async fn until_one_round_of(
    recording: &RecordingBus,
    test: &TestCluster,
    order: impl Fn() -> SigningOrder,
    threshold: u16,
) {
    let one = BTreeMap::from([(2, usize::from(threshold) - 1)]);
    for _ in 0..500 {
        if rounds_of(recording, test, &order(), threshold).await == one {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!(
        "two rounds: the pools are {:?}",
        test.cluster.nonce_levels()
    );
}

/// An order for the shares that a first refresh has made.
fn refreshed(test: &TestCluster, root: &RootKey) -> SigningOrder {
    let mut order = test.order(root);
    order.epoch = 1;
    order
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster__should_sign_in_one_round_with_nonces_made_ahead() {
    let (recording, test) = cluster(3, MARKS).await;
    let root = test.keygen(Curve::Ed25519, 3).await;
    until_ready(&test, MARKS.high).await;
    until_one_round(&recording, &test, &root, 3).await;
    // From each of the two that do not collect, one message per input.
    for inputs in [1, 1, 5, 1, 3] {
        let order = with_inputs(&test, &root, inputs);
        let rounds = rounds_of(&recording, &test, &order, 3).await;
        assert_eq!(rounds, BTreeMap::from([(2, 2 * usize::from(inputs))]));
    }
    // The pools are filled again when they are low.
    for _ in 0..80 {
        let order = test.order(&root);
        verify(&order, &test.sign(&order, 3, 30_000).await.unwrap());
    }
    until_ready(&test, MARKS.low).await;
    until_one_round(&recording, &test, &root, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster__should_sign_in_two_rounds_where_no_nonces_are_left() {
    let (recording, test) = cluster(2, Watermarks { low: 0, high: 0 }).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    for inputs in [1, 4] {
        let order = with_inputs(&test, &root, inputs);
        let inputs = usize::from(inputs);
        // Commitments to each other, and the share of the one who does not collect.
        let two = BTreeMap::from([(1, 2 * inputs), (2, inputs)]);
        assert_eq!(rounds_of(&recording, &test, &order, 2).await, two);
    }
    // More inputs than there are nonces.
    let (recording, test) = cluster(2, Watermarks { low: 1, high: 4 }).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    until_ready(&test, 4).await;
    let order = with_inputs(&test, &root, 9);
    let two = BTreeMap::from([(1, 18), (2, 9)]);
    assert_eq!(rounds_of(&recording, &test, &order, 2).await, two);
    until_one_round(&recording, &test, &root, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster__should_go_on_in_one_round_after_restarts() {
    let (recording, mut test) = cluster(2, MARKS).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    until_ready(&test, MARKS.high).await;
    until_one_round(&recording, &test, &root, 2).await;
    for place in 0..2 {
        test.stop_node(place).await;
        test.start_node(place);
        test.until_live(2).await;
        until_one_round(&recording, &test, &root, 2).await;
    }
    // An orchestrator without any state asks.
    test.cluster = start_cluster(&test.medium, &test.orchestrator).await;
    test.until_live(2).await;
    until_one_round(&recording, &test, &root, 2).await;
}

/// The nonces in a stopped node's folder: the epoch of their shares, and the number of each.
async fn stored(test: &TestCluster, place: usize) -> Vec<(u32, u64)> {
    let path = test.nodes[place].folder.join("claims.redb");
    for _ in 0..500 {
        // The node closes its file a moment after it has ended.
        if let Ok(claims) = Claims::open(&path, false) {
            let nonces = NonceStore::new(b"any: nothing is opened", &claims).unwrap();
            let levels = nonces.levels().into_iter();
            let numbers = levels.flat_map(|(of, _)| {
                let ready = nonces.ready(&of).into_iter();
                ready.map(move |(number, _)| (of.epoch, number))
            });
            return numbers.collect();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the claims file stays locked");
}

/// Nobody can tell an old copy of a folder from the folder: what either holds is not used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node__should_use_no_nonce_of_an_old_copy_of_its_folder() {
    let (recording, mut test) = cluster(2, MARKS).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    until_ready(&test, MARKS.high).await;
    until_one_round(&recording, &test, &root, 2).await;
    test.stop_node(1).await;
    let of_before = stored(&test, 1).await;
    let claims = test.nodes[1].folder.join("claims.redb");
    let old = std::fs::read(&claims).unwrap();
    assert!(!of_before.is_empty());
    // Used up, and others made.
    test.start_node(1);
    test.until_live(2).await;
    for _ in 0..MARKS.high {
        test.sign_well(&root, 2).await;
    }
    until_one_round(&recording, &test, &root, 2).await;
    test.stop_node(1).await;
    let of_then = stored(&test, 1).await;
    // Not into the file: the process that had it open may still be writing.
    let copy = claims.with_extension("copy");
    std::fs::write(&copy, old).unwrap();
    std::fs::rename(&copy, &claims).unwrap();
    test.start_node(1);
    test.until_live(2).await;
    // The others have shown it that it is an old one.
    let fault = test.sign(&test.order(&root), 2, 30_000).await;
    let fault = fault.expect_err("with an old copy").to_string();
    assert!(fault.contains("missing from its claims file"), "{fault}");
    let order = test.refresh_order(&root, 0, 2);
    let proof = test.cluster.reshare(&order).await.unwrap();
    test.cluster.activate(&order, &proof).await.unwrap();
    until_one_round_of(&recording, &test, || refreshed(&test, &root), 2).await;
    test.stop_node(1).await;
    let of_now = stored(&test, 1).await;
    let highest = of_before.iter().chain(&of_then).max();
    assert!(
        of_now.iter().min() > highest,
        "{of_now:?} after {highest:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster__should_fall_back_when_a_peer_has_not_heard_of_the_nonces() {
    let (recording, test) = cluster(2, MARKS).await;
    *recording.deaf.lock().unwrap() = Some((test.holders()[1], test.holders()[0]));
    let root = test.keygen(Curve::Ed25519, 2).await;
    until_ready(&test, MARKS.high).await;
    let order = test.order(&root);
    let rounds = rounds_of(&recording, &test, &order, 2).await;
    assert_eq!(rounds.get(&1), Some(&2), "a second attempt, of two rounds");
    // It asks, and once it is answered one round will do.
    *recording.deaf.lock().unwrap() = None;
    until_one_round(&recording, &test, &root, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes__should_burn_their_nonces_when_the_epoch_changes() {
    let (recording, mut test) = cluster(2, MARKS).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    until_ready(&test, MARKS.high).await;
    until_one_round(&recording, &test, &root, 2).await;
    let order = test.refresh_order(&root, 0, 2);
    let proof = test.cluster.reshare(&order).await.unwrap();
    test.cluster.activate(&order, &proof).await.unwrap();
    // One round again, with nonces of the new shares.
    until_one_round_of(&recording, &test, || refreshed(&test, &root), 2).await;
    for place in 0..2 {
        test.stop_node(place).await;
        let nonces = stored(&test, place).await;
        assert!(!nonces.is_empty() && nonces.iter().all(|(epoch, _)| *epoch == 1));
    }
}

/// An orchestrator whose key the nodes trust, and that does as it likes.
struct HostileOrchestrator {
    recording: Arc<RecordingBus>,
    codec: EnvelopeCodec,
    inbox: Subscription,
}

impl HostileOrchestrator {
    async fn of(recording: &Arc<RecordingBus>, test: &TestCluster) -> Self {
        let bus = Arc::clone(recording) as Arc<dyn Bus>;
        let codec = EnvelopeCodec::new(
            Arc::clone(&test.orchestrator),
            Arc::clone(&bus),
            Arc::new(SystemEntropy),
        );
        let inbox = bus.subscribe(codec.id(), false).await.unwrap();
        Self {
            recording: Arc::clone(recording),
            codec,
            inbox,
        }
    }

    fn send(&self, kind: EnvelopeKind, session: SessionId, to: NodeId, body: &[u8]) {
        let header = EnvelopeHeader {
            kind,
            sealed: true,
            epoch: 0,
            session,
            attempt: 0,
            round: 0,
            sequence: 0,
            from: self.codec.id(),
            to,
        };
        self.codec.send(header, body).unwrap();
    }

    /// The next message of a kind from a node.
    async fn next(&mut self, kind: EnvelopeKind, from: NodeId, session: SessionId) -> Vec<u8> {
        loop {
            let message = tokio::time::timeout(Duration::from_secs(20), self.inbox.next());
            let envelope = Envelope::parse(message.await.unwrap().unwrap()).unwrap();
            let header = envelope.header;
            if (header.kind, header.from, header.session) == (kind, from, session) {
                return self.codec.open(&envelope).unwrap().body.to_vec();
            }
        }
    }

    /// NonceNews::Ask, answered by NonceNews::Ready.
    async fn ids(&mut self, root: &RootKey, node: NodeId) -> Vec<u64> {
        let none = SessionId::from_bytes([0; 16]);
        let mut ask = vec![2];
        ask.extend(bcs::to_bytes(&((&root.public_key, 0_u32), 0_u64)).unwrap());
        // It does not answer the same one again at once.
        tokio::time::sleep(Duration::from_millis(300)).await;
        self.send(EnvelopeKind::Nonces, none, node, &ask);
        let body = self.next(EnvelopeKind::Nonces, node, none).await;
        assert_eq!(body[0], 1);
        let (_, _, ids): ((Vec<u8>, u32), u64, Vec<u64>) = bcs::from_bytes(&body[1..]).unwrap();
        ids
    }

    /// A SignRequest that names nonces.
    fn order(&self, order: &SigningOrder, signers: &[NodeId], nonces: [Vec<u64>; 2]) -> SessionId {
        let session = SessionId::from_random(random_16(&SystemEntropy));
        let nonces = nonces.to_vec();
        let body = bcs::to_bytes(&(
            order,
            session,
            signers,
            nonces,
            5_000_u64,
            now_ms(),
            None::<()>,
        ))
        .unwrap();
        self.send(EnvelopeKind::SigningOrder, session, signers[1], &body);
        session
    }

    /// Shares that have left.
    fn shares(&self) -> usize {
        let headers = self.recording.headers.lock().unwrap();
        let shares = headers
            .iter()
            .filter(|header| (header.kind, header.round) == (EnvelopeKind::Protocol, 2));
        shares.count()
    }

    async fn until_shares(&self, count: usize) {
        for _ in 0..1_000 {
            if self.shares() == count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{} shares instead of {count}", self.shares());
    }
}

/// The variant of a reply.
const REFUSED: u8 = 2;
const NO_NONCES: u8 = 7;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node__should_give_one_share_for_a_nonce_whatever_the_orchestrator_asks() {
    let (recording, mut test) = cluster(2, Watermarks { low: 1, high: 32 }).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    until_ready(&test, 32).await;
    until_one_round(&recording, &test, &root, 2).await;
    let signers = test.holders();
    let victim = signers[1];
    let mut hostile = HostileOrchestrator::of(&recording, &test).await;
    let theirs = hostile.ids(&root, signers[0]).await;
    let ids = hostile.ids(&root, victim).await;
    recording.headers.lock().unwrap().clear();

    // One number for two messages.
    let (one, two) = (test.order(&root), test.order(&root));
    hostile.order(&one, &signers, [vec![theirs[0]], vec![ids[0]]]);
    hostile.until_shares(1).await;
    let session = hostile.order(&two, &signers, [vec![theirs[1]], vec![ids[0]]]);
    let reply = hostile.next(EnvelopeKind::Reply, victim, session).await;
    assert_eq!(reply[0], NO_NONCES);

    // For the same message again, in another session.
    let session = hostile.order(&one, &signers, [vec![theirs[2]], vec![ids[0]]]);
    let reply = hostile.next(EnvelopeKind::Reply, victim, session).await;
    assert_eq!(reply[0], NO_NONCES);

    // Many at once.
    let rivals: Vec<SessionId> = (3..11)
        .map(|place| {
            let order = test.order(&root);
            hostile.order(&order, &signers, [vec![theirs[place]], vec![ids[1]]])
        })
        .collect();
    hostile.until_shares(2).await;
    let mut refused = 0;
    while refused < rivals.len() - 1 {
        let message = tokio::time::timeout(Duration::from_secs(20), hostile.inbox.next());
        let envelope = Envelope::parse(message.await.unwrap().unwrap()).unwrap();
        if rivals.contains(&envelope.header.session) && envelope.header.kind == EnvelopeKind::Reply
        {
            assert_eq!(hostile.codec.open(&envelope).unwrap().body[0], NO_NONCES);
            refused += 1;
        }
    }

    // Twice in one order; too few; of one who is not asked.
    let order = with_inputs(&test, &root, 2);
    let twice = [vec![theirs[12], theirs[13]], vec![ids[2], ids[2]]];
    let few = [vec![theirs[14]], vec![ids[3]]];
    let far = [vec![theirs[15], theirs[16]], vec![ids[4], u64::MAX]];
    for (nonces, expected) in [(twice, NO_NONCES), (few, REFUSED), (far, NO_NONCES)] {
        let session = hostile.order(&order, &signers, nonces);
        let reply = hostile.next(EnvelopeKind::Reply, victim, session).await;
        assert_eq!(reply[0], expected);
    }

    // What was named once is gone. After a restart so is all the rest.
    let left = hostile.ids(&root, victim).await;
    assert_eq!(left, &ids[5..]);
    test.stop_node(1).await;
    test.until_live(1).await;
    test.start_node(1);
    test.until_live(2).await;
    for (place, id) in (17..).zip(&ids[0..7]) {
        let order = test.order(&root);
        let session = hostile.order(&order, &signers, [vec![theirs[place]], vec![*id]]);
        let reply = hostile.next(EnvelopeKind::Reply, victim, session).await;
        assert_eq!(reply[0], NO_NONCES, "{id}");
    }
    assert_eq!(hostile.shares(), 2);
}
