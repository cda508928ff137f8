//! Nodes that were restored from a copy, run twice, or have a wrong clock: peers and orchestrators notice,
//! and nobody can make them suspect a healthy node.

use std::{
    path::Path,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use crate::support::*;
use covault_core::{
    amount::U256,
    derive::{ChildKey, RootKey},
    fault::{Class, Fault},
    ids::{SessionId, VaultId},
    networks::VerifiedSignatures,
    order::{ListedNodes, NodeId, SigningOrder},
    port::random_16,
    scheme::Scheme,
    signature::Curve,
};
use covault_mpc::{
    bus::{Bus, BusAddress, BusError, double::BusDouble, memory::MemoryBus},
    claims::Claims,
    cluster::{Cluster, ClusterConfig, HaltReason, NodeStatus},
    envelope::{EVERYONE, Envelope, EnvelopeCodec, EnvelopeHeader, EnvelopeKind},
    identity::NodeIdentity,
    node::OrderCheck,
    policy::{PolicyScope, Spending, SpendingCounter},
};
use tokio::time::sleep;

/// Each order of a wallet with an odd number spends 1, and the limit is 1 per day. The others spend nothing.
struct OnePerDayCheck;

impl OrderCheck for OnePerDayCheck {
    fn check(
        &self,
        order: &SigningOrder,
        _root: &RootKey,
        _child: &ChildKey,
        _now_ms: u64,
    ) -> Result<Vec<Spending>, Fault> {
        let limited = order.path.indices().last().unwrap() % 2 == 1;
        let spending = Spending {
            counter: SpendingCounter {
                scope: PolicyScope::Node,
                asset: "coin".into(),
            },
            amount: U256::from(1_u64),
            most_per_day: Some(U256::from(1_u64)),
            unapproved: None,
        };
        Ok(limited.then_some(spending).into_iter().collect())
    }
}

async fn cluster(count: usize) -> TestCluster {
    let test = TestCluster::start_with(TestBus::memory(), count, Arc::new(OnePerDayCheck)).await;
    test.until_live(count).await;
    test
}

/// Asks these nodes and no others.
async fn sign_with(
    cluster: &Cluster,
    order: &SigningOrder,
    signers: &[NodeId],
    patience_ms: u64,
) -> Result<VerifiedSignatures, Fault> {
    let session = SessionId::from_random(random_16(&SystemEntropy));
    let deadline_ms = order.issued_at_ms + patience_ms;
    cluster
        .sign(
            order,
            task(
                Scheme::default_of(order.network.curve()),
                session,
                signers,
                2,
                deadline_ms,
            ),
        )
        .await
}

fn limited(test: &TestCluster, root: &RootKey, number: u8) -> SigningOrder {
    test.raw_message(root, 1, &[number; 40])
}

fn unlimited(test: &TestCluster, root: &RootKey, number: u8) -> SigningOrder {
    test.raw_message(root, 2, &[number; 40])
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn halted(nodes: &[NodeStatus], id: NodeId) -> Vec<HaltReason> {
    let node = nodes.iter().find(|node| node.id == id);
    node.map(|node| node.halted.clone()).unwrap_or_default()
}

/// A node closes its claims file a moment after it has ended.
async fn let_go(path: &Path) {
    while std::fs::File::open(path).unwrap().try_lock().is_err() {
        sleep(Duration::from_millis(10)).await;
    }
}

/// Long enough for announcements to be heard.
async fn heartbeats() {
    sleep(Duration::from_millis(700)).await;
}

async fn refresh(test: &TestCluster, root: &RootKey, epoch: u32) {
    let order = test.refresh_order(root, epoch, 2);
    let proof = test.cluster.reshare(&order).await.unwrap();
    let told = test
        .cluster
        .distribute_activation(&order, &proof, &[], &test.holders())
        .await;
    for (node, confirmed) in told.unwrap() {
        assert!(confirmed.is_ok(), "{node:?}: {confirmed:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims__should_give_no_second_limit_when_they_are_put_back() {
    let mut test = cluster(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let ids = test.holders();
    let claims = |test: &TestCluster, place: usize| test.nodes[place].folder.join("claims.redb");
    let kept = |test: &TestCluster, place: usize| test.nodes[place].folder.join("kept.redb");
    for place in 0..2 {
        test.stop_node(place).await;
        let_go(&claims(&test, place)).await;
        std::fs::copy(claims(&test, place), kept(&test, place)).unwrap();
        test.start_node(place);
    }
    test.until_live(3).await;
    let order = limited(&test, &root, 1);
    let signed = sign_with(&test.cluster, &order, &ids[..2], 20_000).await;
    verify(&order, &signed.unwrap());
    let over = sign_with(&test.cluster, &limited(&test, &root, 2), &ids[..2], 20_000).await;
    over.expect_err("the limit does not hold");
    heartbeats().await;

    // Two of three nodes, three times: the third remembers them.
    for round in 3..6 {
        for place in 0..2 {
            test.stop_node(place).await;
            let_go(&claims(&test, place)).await;
            std::fs::copy(kept(&test, place), claims(&test, place)).unwrap();
            test.start_node(place);
        }
        let order = limited(&test, &root, round);
        let fault = sign_with(&test.cluster, &order, &ids[..2], 8_000).await;
        let fault = fault.expect_err("the limit was forgotten");
        test.until(|nodes| {
            ids[..2]
                .iter()
                .all(|id| halted(nodes, *id) == [HaltReason::Claims])
        })
        .await;
        // Nor do they sign anything else.
        let order = unlimited(&test, &root, round);
        let other = sign_with(&test.cluster, &order, &ids[..2], 5_000).await;
        let other = other.expect_err("it signs without knowing what it promised");
        for fault in [fault, other] {
            let said = fault.message();
            assert!(
                said.contains("an older copy was restored") || said.contains("claims missing"),
                "{said}"
            );
        }
    }
    // Restarts do not help.
    for place in 0..2 {
        test.stop_node(place).await;
        test.start_node(place);
    }
    test.until_live(3).await;
    let order = unlimited(&test, &root, 6);
    let fault = sign_with(&test.cluster, &order, &ids[..2], 8_000).await;
    assert!(
        fault
            .unwrap_err()
            .message()
            .contains("an older copy was restored")
    );

    // A refresh does, but not for the limit: what was spent today is no longer known.
    refresh(&test, &root, 0).await;
    test.until(|nodes| nodes.iter().all(|node| node.live && node.halted.is_empty()))
        .await;
    let mut order = unlimited(&test, &root, 7);
    order.epoch = 1;
    let signed = sign_with(&test.cluster, &order, &ids[..2], 20_000).await;
    verify(&order, &signed.unwrap());
    let mut order = limited(&test, &root, 8);
    order.epoch = 1;
    let fault = sign_with(&test.cluster, &order, &ids[..2], 8_000).await;
    let fault = fault.expect_err("a refresh gave a new limit");
    assert!(
        fault
            .message()
            .contains("limits and approvals count as used up"),
        "{fault}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims__should_have_their_bans_again_when_they_were_put_back() {
    let mut test = cluster(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let ids = test.holders();
    test.stop_node(0).await;
    let folder = test.nodes[0].folder.clone();
    let (path, kept) = (folder.join("claims.redb"), folder.join("kept.redb"));
    let_go(&path).await;
    std::fs::copy(&path, &kept).unwrap();
    let claims = loop {
        // The node closes its file a moment after it has ended.
        match Claims::open(&path, false) {
            Ok(claims) => break claims,
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    };
    claims
        .ban(&root.public_key, ids[1], now_ms())
        .await
        .unwrap();
    drop(claims);
    test.start_node(0);
    let banned = |nodes: &[NodeStatus]| {
        let of = |node: &&NodeStatus| node.id == ids[0];
        let bans = nodes.iter().find(of).map(|node| node.bans.clone());
        bans.is_some_and(|bans| bans.len() == 1 && bans[0].peer == ids[1])
    };
    test.until(banned).await;
    heartbeats().await;
    test.stop_node(0).await;
    let_go(&path).await;
    std::fs::copy(&kept, &path).unwrap();
    test.start_node(0);
    test.until(|nodes| halted(nodes, ids[0]) == [HaltReason::Claims] && banned(nodes))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node__should_be_noticed_when_it_runs_twice_and_sign_nothing() {
    let mut test = cluster(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let ids = test.holders();
    test.stop_node(0).await;
    let copied = test.nodes[0].folder.with_extension("copy");
    let_go(&test.nodes[0].folder.join("claims.redb")).await;
    copy(&test.nodes[0].folder, &copied);
    test.start_node(0);
    test.until_live(3).await;
    let order = unlimited(&test, &root, 1);
    let signed = sign_with(&test.cluster, &order, &ids[..2], 20_000).await;
    verify(&order, &signed.unwrap());

    let (shutdown, twin) = test.start_from(0, copied);
    let noticed = test.until(|nodes| halted(nodes, ids[0]).contains(&HaltReason::Twice));
    tokio::time::timeout(Duration::from_secs(10), noticed)
        .await
        .expect("nobody has noticed within 10 s");
    let order = unlimited(&test, &root, 2);
    let fault = sign_with(&test.cluster, &order, &ids[..2], 4_000).await;
    let fault = fault.expect_err("it signs although it runs twice");
    assert!(fault.message().contains("running twice"), "{fault}");
    // An orchestrator that asks them anyway is refused by both.
    let hostile = hostile_cluster(&test, 0).await;
    let fault = sign_with(&hostile, &unlimited(&test, &root, 3), &ids[..2], 4_000).await;
    assert!(fault.is_err());
    // The others sign.
    let order = unlimited(&test, &root, 4);
    let signed = sign_with(&test.cluster, &order, &ids[1..], 20_000).await;
    verify(&order, &signed.unwrap());

    // One is stopped, the other restarted: then it needs new shares, as it does not know what the copy
    // has promised.
    shutdown.send(true).unwrap();
    twin.await.unwrap().unwrap();
    test.stop_node(0).await;
    test.start_node(0);
    test.until(|nodes| halted(nodes, ids[0]) == [HaltReason::Claims])
        .await;
    test.until_live(3).await;
    refresh(&test, &root, 0).await;
    test.until(|nodes| nodes.iter().all(|node| node.halted.is_empty()))
        .await;
    let mut order = unlimited(&test, &root, 5);
    order.epoch = 1;
    let signed = sign_with(&test.cluster, &order, &ids[..2], 20_000).await;
    verify(&order, &signed.unwrap());
}

/// A client of the same orchestrator that has a clock of its own.
pub(crate) async fn hostile_cluster(test: &TestCluster, moved_ms: i64) -> Arc<Cluster> {
    let moved = Arc::new(std::sync::atomic::AtomicI64::new(moved_ms));
    Cluster::start(ClusterConfig {
        identity: Arc::clone(&test.orchestrator),
        bus: test.medium.bus(),
        clock: Arc::new(SkewedClock(0, moved)),
        entropy: Arc::new(SystemEntropy),
        live_for: Duration::from_millis(1500),
        attempt: Duration::from_secs(2),
    })
    .await
    .unwrap()
}

/// Two of three nodes and the orchestrator claim that it is a day and an hour later, when the limit is used up.
async fn ask_by_clocks_set_ahead(test: &TestCluster, root: &RootKey) -> Arc<Cluster> {
    let ahead_ms = 25 * 3_600_000;
    for node in &test.nodes[..2] {
        node.moved_ms.store(ahead_ms, Ordering::Relaxed);
    }
    let hostile = hostile_cluster(test, ahead_ms).await;
    let mut order = limited(test, root, 2);
    order.issued_at_ms = order.issued_at_ms.saturating_add_signed(ahead_ms);
    order.expires_at_ms = order.expires_at_ms.saturating_add_signed(ahead_ms);
    let fault = sign_with(&hostile, &order, &test.holders()[..2], 8_000).await;
    fault.expect_err("clocks that were set ahead give a new limit");
    hostile
}

/// A bus that cuts the third node off does not make the two a majority: each hears one other node that agrees.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks__should_give_no_second_limit_when_they_are_set_ahead_and_another_node_is_away() {
    let mut test = cluster(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let order = limited(&test, &root, 1);
    let signed = sign_with(&test.cluster, &order, &test.holders()[..2], 20_000).await;
    verify(&order, &signed.unwrap());
    test.stop_node(2).await;
    // What it reported as its time counts for ten seconds.
    sleep(Duration::from_secs(11)).await;
    ask_by_clocks_set_ahead(&test, &root).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks__should_give_no_second_limit_when_they_are_set_ahead() {
    let test = cluster(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let ids = test.holders();
    let order = limited(&test, &root, 1);
    let signed = sign_with(&test.cluster, &order, &ids[..2], 20_000).await;
    verify(&order, &signed.unwrap());
    let hostile = ask_by_clocks_set_ahead(&test, &root).await;
    let preprocess = |place: usize| {
        let nodes = hostile.nodes();
        halted(&nodes, ids[place])
    };
    assert_eq!(
        (preprocess(0), preprocess(1)),
        (vec![HaltReason::Clock], vec![HaltReason::Clock])
    );

    // With right clocks they sign.
    for place in 0..2 {
        test.nodes[place].moved_ms.store(0, Ordering::Relaxed);
    }
    drop(hostile);
    let again = hostile_cluster(&test, 0).await;
    let order = unlimited(&test, &root, 3);
    let signed = sign_with(&again, &order, &ids[..2], 20_000).await;
    verify(&order, &signed.unwrap());
}

/// Keeps all announcements.
struct RecordingBus {
    bus: Arc<MemoryBus>,
    kept: Mutex<Vec<Vec<u8>>>,
}

impl BusDouble for RecordingBus {
    fn inner(&self) -> &dyn Bus {
        &*self.bus
    }

    fn publish(&self, to: BusAddress, message: Vec<u8>) -> Result<(), BusError> {
        if to == BusAddress::Announcements {
            self.kept.lock().unwrap().push(message.clone());
        }
        self.bus.publish(to, message)
    }
}

async fn noted(count: usize) -> (Arc<RecordingBus>, TestCluster) {
    let noting = Arc::new(RecordingBus {
        bus: MemoryBus::new(),
        kept: Mutex::default(),
    });
    let medium = TestBus::Other(Arc::clone(&noting) as Arc<dyn Bus>);
    let test = TestCluster::start_with(medium, count, Arc::new(OnePerDayCheck)).await;
    test.until_live(count).await;
    (noting, test)
}

fn from(message: &[u8]) -> NodeId {
    let envelope = Envelope::parse(message.to_vec()).unwrap();
    envelope.header.from
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replays__should_stop_nobody() {
    let (noting, mut test) = noted(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let ids = test.holders();
    let order = unlimited(&test, &root, 1);
    verify(&order, &test.sign(&order, 2, 20_000).await.unwrap());
    // Some restarts of each, and some time.
    for place in [0, 1, 2, 0] {
        test.stop_node(place).await;
        test.start_node(place);
        test.until_live(3).await;
        heartbeats().await;
    }
    let old = noting.kept.lock().unwrap().clone();
    assert!(ids.iter().all(|id| old.iter().any(|it| from(it) == *id)));
    for _ in 0..3 {
        for message in old.iter().chain(old.iter().rev()) {
            noting
                .bus
                .publish(BusAddress::Announcements, message.clone())
                .unwrap();
            for id in &ids {
                noting
                    .bus
                    .publish(BusAddress::Inbox(*id), message.clone())
                    .unwrap();
            }
        }
        heartbeats().await;
    }
    test.until(|nodes| nodes.iter().all(|node| node.live && node.halted.is_empty()))
        .await;
    for signers in [&ids[..2], &ids[1..]] {
        let order = test.order(&root);
        let signed = sign_with(&test.cluster, &unlimited(&test, &root, 2), signers, 20_000).await;
        assert!(signed.is_ok(), "{signed:?} {:?}", order.request);
    }
}

/// A reader of the bus takes two announcements of an honest node and presents them as equivocation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evidence__should_not_be_made_of_what_an_honest_node_announces() {
    let (noting, test) = noted(3).await;
    heartbeats().await;
    let honest = test.holders()[0];
    let said: Vec<Vec<u8>> = noting.kept.lock().unwrap().clone();
    let said: Vec<&Vec<u8>> = said.iter().filter(|it| from(it) == honest).collect();
    let envelope = |wire: &[u8]| {
        use sha2::Digest as _;
        format!(
            r#"{{"header":"{}","bodySha256":"{}","signature":"{}"}}"#,
            hex::encode(&wire[..98]),
            hex::encode(sha2::Sha256::digest(&wire[162..])),
            hex::encode(&wire[98..162])
        )
    };
    let report = format!(
        r#"{{"accused":"","envelopes":[{},{}]}}"#,
        envelope(said[0]),
        envelope(said[1])
    );
    let report = covault_mpc::evidence::Equivocation::read(&report).unwrap();
    // What `covault node evidence` checks.
    assert_eq!(report.accused(), None, "an honest node is found guilty");
}

/// An attacker without a key has recorded the announcements of two nodes from an hour ago, before they were
/// restarted, and replays them one by one when the third node starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replays_of_an_earlier_start__should_not_be_taken_for_the_time() {
    let (noting, mut test) = noted(3).await;
    let ids = test.holders();
    let start = async |test: &mut TestCluster, skew_ms: i64| {
        for place in [1, 2] {
            test.stop_node(place).await;
            test.nodes[place].skew_ms = skew_ms;
            test.start_node(place);
        }
    };
    // An hour ago.
    start(&mut test, -3_600_000).await;
    noting.kept.lock().unwrap().clear();
    let recorded = loop {
        sleep(Duration::from_secs(1)).await;
        let kept = noting.kept.lock().unwrap().clone();
        let of = |id: &NodeId| kept.iter().filter(|it| from(it) == *id).count();
        if ids[1..].iter().all(|id| of(id) > 12) {
            break kept;
        }
    };
    start(&mut test, 0).await;
    test.until_live(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let order = unlimited(&test, &root, 1);
    let signed = sign_with(&test.cluster, &order, &ids[..2], 20_000).await;
    verify(&order, &signed.unwrap());
    let of = |place: usize| {
        let of: Vec<Vec<u8>> = recorded
            .iter()
            .filter(|it| from(it) == ids[place])
            .cloned()
            .collect();
        assert!(of.len() > 10);
        of
    };
    let recorded = [of(1), of(2)];
    test.stop_node(0).await;
    let bus = Arc::clone(&noting.bus);
    let replay = tokio::spawn(async move {
        for place in 1.. {
            for _ in 0..400 {
                for node in &recorded {
                    if let Some(message) = node.get(place) {
                        bus.publish(BusAddress::Announcements, message.clone())
                            .unwrap();
                    }
                }
                sleep(Duration::from_millis(5)).await;
            }
        }
    });
    test.start_node(0);
    sleep(Duration::from_secs(14)).await;
    // Its peers are live, have the right time, and say so all the time.
    let order = unlimited(&test, &root, 2);
    let signed = sign_with(&test.cluster, &order, &ids[..2], 5_000).await;
    replay.abort();
    let halted = halted(&test.cluster.nodes(), ids[0]);
    assert!(halted.is_empty() && signed.is_ok(), "{halted:?} {signed:?}");
}

/// The announcements of a peer that wants to stop another one.
struct Byzantine {
    codec: EnvelopeCodec,
    bus: Arc<MemoryBus>,
}

impl Byzantine {
    fn send(&self, kind: EnvelopeKind, to: NodeId, body: &[u8]) {
        let header = EnvelopeHeader::outside_sessions(kind, self.codec.id(), to);
        self.codec.send(header, body).unwrap();
    }
}

/// The body of an announcement.
fn said(boot: [u8; 16], at_ms: u64, height: u64, others: &[[u8; 16]]) -> Vec<u8> {
    let bans: Vec<([u8; 8], NodeId)> = Vec::new();
    let halted: Vec<u8> = Vec::new();
    let frozen: Vec<VaultId> = Vec::new();
    let listed = ListedNodes::default();
    let claims = (
        u64::MAX,
        height,
        halted,
        others.to_vec(),
        1_u16,
        frozen,
        listed,
    );
    bcs::to_bytes(&(
        "byzantine node",
        at_ms,
        false,
        boot,
        env!("CARGO_PKG_VERSION"),
        1_u32,
        bans,
        claims,
    ))
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn byzantine_node__should_not_stop_a_node_by_words_about_it() {
    let (noting, mut test) = noted(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let ids = test.holders();
    test.stop_node(2).await;
    let codec = |identity: &Arc<NodeIdentity>| {
        let bus = Arc::clone(&noting.bus) as Arc<dyn Bus>;
        EnvelopeCodec::new(Arc::clone(identity), bus, Arc::new(SystemEntropy))
    };
    let byzantine = Byzantine {
        codec: codec(&test.nodes[2].identity),
        bus: Arc::clone(&noting.bus),
    };
    // It has heard the victims' starts.
    let boots: Vec<[u8; 16]> = {
        let kept = noting.kept.lock().unwrap();
        let of = |id: &NodeId| {
            let last = kept.iter().rev().find(|message| from(message) == *id);
            let envelope = Envelope::parse(last.unwrap().clone()).unwrap();
            let opened = byzantine.codec.open(&envelope).unwrap();
            type Announced = (
                String,
                u64,
                bool,
                [u8; 16],
                String,
                u32,
                Vec<([u8; 8], NodeId)>,
                AnnouncementTail,
            );
            type AnnouncementTail = (
                u64,
                u64,
                Vec<u8>,
                Vec<[u8; 16]>,
                u16,
                Vec<VaultId>,
                ListedNodes,
            );
            let said: Announced = bcs::from_bytes(&opened.body).unwrap();
            said.3
        };
        ids[..2].iter().map(of).collect()
    };
    for round in 0..10_u64 {
        let wrong_ms = now_ms() + 3_600_000 + round;
        for (victim, boot) in ids[..2].iter().zip(&boots) {
            // Its own announcements, and some in the victim's name that it has signed itself.
            let own = said([9; 16], wrong_ms, u64::MAX, &boots);
            byzantine.send(EnvelopeKind::Announcement, EVERYONE, &own);
            let mut forged = noting.kept.lock().unwrap().clone();
            forged.retain(|message| from(message) == *victim);
            let mut forged = forged.pop().unwrap();
            forged.truncate(forged.len() - 8);
            forged.extend_from_slice(&[0xff; 8]);
            let mut own_wire = noting.kept.lock().unwrap().clone();
            own_wire.retain(|message| from(message) == ids[2]);
            for wire in [forged.clone(), own_wire.pop().unwrap(), vec![1; 300]] {
                byzantine
                    .bus
                    .publish(BusAddress::Announcements, wire.clone())
                    .unwrap();
                // WitnessNews::Told
                let mut told = vec![1];
                told.extend(bcs::to_bytes(&(boot, &wire, None::<u8>)).unwrap());
                byzantine.send(EnvelopeKind::Witness, *victim, &told);
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
    let nodes = test.cluster.nodes();
    for id in &ids[..2] {
        assert!(halted(&nodes, *id).is_empty());
    }
    let order = unlimited(&test, &root, 1);
    let signed = sign_with(&test.cluster, &order, &ids[..2], 20_000).await;
    verify(&order, &signed.unwrap());
    // They started before that; a node that starts while the peer lies signs, too.
    test.stop_node(0).await;
    test.start_node(0);
    let order = unlimited(&test, &root, 2);
    let signed = sign_with(&test.cluster, &order, &ids[..2], 20_000).await;
    verify(&order, &signed.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heights__should_be_remembered_by_peers_that_were_started_again() {
    let mut test = cluster(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let ids = test.holders();
    test.stop_node(0).await;
    let folder = test.nodes[0].folder.clone();
    let (path, kept) = (folder.join("claims.redb"), folder.join("kept.redb"));
    let_go(&path).await;
    std::fs::copy(&path, &kept).unwrap();
    test.start_node(0);
    test.until_live(3).await;
    let order = unlimited(&test, &root, 1);
    let signed = sign_with(&test.cluster, &order, &ids[..2], 20_000).await;
    verify(&order, &signed.unwrap());
    heartbeats().await;
    for place in 0..3 {
        test.stop_node(place).await;
    }
    let_go(&path).await;
    std::fs::copy(&kept, &path).unwrap();
    for place in 0..3 {
        test.start_node(place);
    }
    test.until(|nodes| halted(nodes, ids[0]) == [HaltReason::Claims])
        .await;
    let order = unlimited(&test, &root, 2);
    let fault = sign_with(&test.cluster, &order, &ids[..2], 6_000).await;
    assert_ne!(fault.unwrap_err().class(), &Class::Bug);
}

/// An orchestrator that shows two honest nodes two orders in one session. Their messages do not match, like
/// those of a cheater: with ECDSA that was a permanent ban, of each by the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orchestrator__should_not_make_honest_nodes_blame_each_other_by_two_orders() {
    let test = cluster(2).await;
    let ids = test.holders();
    let bus = test.medium.bus();
    let orchestrator = Arc::clone(&test.orchestrator);
    let codec = EnvelopeCodec::new(orchestrator, Arc::clone(&bus), Arc::new(SystemEntropy));
    for curve in Curve::ALL {
        let root = test.keygen(curve, 2).await;
        let mut inbox = bus.subscribe(codec.id(), false).await.unwrap();
        let mut sessions = Vec::new();
        for round in 0..4_u8 {
            let session = SessionId::from_random(random_16(&SystemEntropy));
            sessions.push(session);
            for (number, to) in (0_u8..).zip(&ids) {
                let order = unlimited(&test, &root, 2 * round + number);
                let nonces = Vec::<Vec<u64>>::new();
                let body = (
                    &order,
                    session,
                    &ids,
                    nonces,
                    2_000_u64,
                    now_ms(),
                    None::<()>,
                );
                let header = EnvelopeHeader {
                    kind: EnvelopeKind::SigningOrder,
                    sealed: true,
                    epoch: 0,
                    session,
                    attempt: 0,
                    round: 0,
                    sequence: 0,
                    from: codec.id(),
                    to: *to,
                };
                codec.send(header, &bcs::to_bytes(&body).unwrap()).unwrap();
            }
        }
        let mut failed = 0;
        while failed < 2 * sessions.len() {
            let message = tokio::time::timeout(Duration::from_secs(20), inbox.next()).await;
            let envelope = Envelope::parse(message.unwrap().unwrap()).unwrap();
            let EnvelopeHeader { kind, session, .. } = envelope.header;
            if kind != EnvelopeKind::Reply || !sessions.contains(&session) {
                continue;
            }
            // Reply::Failed { culprits, missing, reason, evidence }
            let body = codec.open(&envelope).unwrap().body;
            type FailedReply = (Vec<NodeId>, Vec<NodeId>, String, String);
            let (culprits, _, reason, _): FailedReply = match body.split_first() {
                Some((3, rest)) => bcs::from_bytes(rest).unwrap(),
                _ => panic!("another reply"),
            };
            assert!(culprits.is_empty(), "{reason}");
            assert!(
                reason.contains("sent the signers different orders"),
                "{reason}"
            );
            failed += 1;
        }
        heartbeats().await;
        assert!(test.cluster.nodes().iter().all(|node| node.bans.is_empty()));
        test.sign_well(&root, 2).await;
    }
}

/// Delays what nodes tell each other about their claims, by less than a starting node waits for it.
struct SlowWitnessBus {
    bus: Arc<MemoryBus>,
    runtime: tokio::runtime::Handle,
}

impl BusDouble for SlowWitnessBus {
    fn inner(&self) -> &dyn Bus {
        &*self.bus
    }

    fn publish(&self, to: BusAddress, message: Vec<u8>) -> Result<(), BusError> {
        let kind = Envelope::parse(message.clone()).map(|envelope| envelope.header.kind);
        if kind != Ok(EnvelopeKind::Witness) {
            return self.bus.publish(to, message);
        }
        let bus = Arc::clone(&self.bus);
        self.runtime.spawn(async move {
            sleep(Duration::from_secs(2)).await;
            let _ = bus.publish(to, message);
        });
        Ok(())
    }
}

/// Copies a file of the first two nodes, which are stopped in the meantime.
async fn copy_claims_of_two(test: &mut TestCluster, from: &str, to: &str) {
    for place in 0..2 {
        test.stop_node(place).await;
        let folder = test.nodes[place].folder.clone();
        let_go(&folder.join("claims.redb")).await;
        std::fs::copy(folder.join(from), folder.join(to)).unwrap();
        test.start_node(place);
    }
}

/// The first two nodes keep copies of their claims, and sign as much as they may in a day.
async fn use_up_the_limit(test: &mut TestCluster, root: &RootKey) {
    copy_claims_of_two(test, "claims.redb", "kept.redb").await;
    test.until_live(3).await;
    let signers = &*test.holders();
    let order = limited(test, root, 1);
    let signed = sign_with(&test.cluster, &order, &signers[..2], 20_000).await;
    verify(&order, &signed.unwrap());
    let over = sign_with(
        &test.cluster,
        &limited(test, root, 2),
        &signers[..2],
        20_000,
    )
    .await;
    over.expect_err("the limit does not hold");
    heartbeats().await;
}

async fn assert_no_second_limit(test: &TestCluster, root: &RootKey) {
    let order = limited(test, root, 3);
    let signed = sign_with(&test.cluster, &order, &test.holders()[..2], 15_000).await;
    assert!(
        signed.is_err(),
        "the limit was had twice, and nobody has noticed: {:?}",
        test.cluster.nodes()
    );
}

/// The attacker who restores the claims also has the orchestrator, which orders a few keys as soon as the nodes
/// are up: those are claims too, and soon there are as many as the peers remember.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims__should_be_noticed_when_they_are_put_back_and_the_orchestrator_adds_promises() {
    let medium = TestBus::Other(Arc::new(SlowWitnessBus {
        bus: MemoryBus::new(),
        runtime: tokio::runtime::Handle::current(),
    }));
    let mut test = TestCluster::start_with(medium, 3, Arc::new(OnePerDayCheck)).await;
    test.until_live(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    use_up_the_limit(&mut test, &root).await;
    copy_claims_of_two(&mut test, "kept.redb", "claims.redb").await;
    for _ in 0..3 {
        test.keygen(Curve::Ed25519, 2).await;
    }
    assert_no_second_limit(&test, &root).await;
}

/// The nodes of a vault are named in its own table, and the node's other peers, of another vault, are offline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims__should_be_noticed_by_the_peers_of_a_vault_when_they_are_put_back() {
    let mut test = cluster(5).await;
    let ids = test.holders();
    for place in 0..2 {
        test.stop_node(place).await;
        let of_vault = ids[..3].iter().copied().collect();
        test.nodes[place].peers = Some(ids[3..].to_vec());
        test.nodes[place].vault_peers.insert(test.vault, of_vault);
        test.start_node(place);
    }
    test.until_live(5).await;
    let mut order = test.keygen_order(Curve::Ed25519, 2);
    order.signers.truncate(3);
    let root = test.cluster.keygen(&order).await.unwrap().root;
    for place in 3..5 {
        test.stop_node(place).await;
    }
    use_up_the_limit(&mut test, &root).await;
    // Node 2 knows of it, is live, and is heard.
    copy_claims_of_two(&mut test, "kept.redb", "claims.redb").await;
    test.until_live(3).await;
    assert_no_second_limit(&test, &root).await;
}

/// An attacker has an old announcement of a node, and replays it to another node again and again while the
/// first one starts: the answer with the highest count goes to the old start, and the question of the new
/// start comes too soon after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replays__should_not_keep_a_node_that_has_started_from_signing() {
    let (noting, mut test) = noted(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let ids = test.holders();
    let order = unlimited(&test, &root, 1);
    let signed = sign_with(&test.cluster, &order, &ids[..2], 20_000).await;
    verify(&order, &signed.unwrap());
    heartbeats().await;
    let kept = noting.kept.lock().unwrap().clone();
    let old = kept.into_iter().find(|it| from(it) == ids[0]).unwrap();
    let (bus, to) = (Arc::clone(&noting.bus), BusAddress::Inbox(ids[1]));
    let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let ended = Arc::clone(&over);
    let replay = tokio::spawn(async move {
        let mut often = tokio::time::interval(Duration::from_micros(250));
        while !ended.load(Ordering::Relaxed) {
            bus.publish(to, old.clone()).unwrap();
            often.tick().await;
        }
    });
    test.stop_node(0).await;
    test.start_node(0);
    test.until_live(3).await;
    let order = unlimited(&test, &root, 2);
    let signed = sign_with(&test.cluster, &order, &ids[..2], 6_000).await;
    over.store(true, Ordering::Relaxed);
    replay.await.unwrap();
    assert!(signed.is_ok(), "{signed:?}");
}
