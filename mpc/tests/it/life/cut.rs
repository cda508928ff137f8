//! Runs that are cut off at any round.

use std::{
    ops::RangeInclusive,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU16, Ordering},
    },
};

use covault_core::{
    attest::{AttestOrder, AttestedAddress},
    derive::{KeyPath, RootKey},
    fault::Class,
    ids::{SessionId, VaultId},
    networks::Network,
    order::NodeId,
    scheme::Scheme,
    signature::Curve,
};
use covault_mpc::{
    attest::{KeyStatements, has_signed},
    bus::{Bus, BusAddress, BusError, double::BusDouble, memory::MemoryBus},
    envelope::{Envelope, EnvelopeHeader, EnvelopeKind},
    shares::{ShareStore as _, age_file::AgeShareStore},
};
use secrecy::SecretString;
use tokio::sync::watch;

use crate::{
    life::world::{LifecycleFixture, session},
    support::{TestBus, TestCluster, now_ms, task, verify},
};

/// A bus that keeps what some sender sends in one round of a protocol, to all or to one.
struct HoldingBus {
    bus: Arc<MemoryBus>,
    round: AtomicU16,
    /// Of this run alone, where it is set: a node that was cut off sends what its next round says whenever it comes
    /// to it.
    session: Mutex<Option<SessionId>>,
    from: Mutex<Option<NodeId>>,
    to: Mutex<Option<NodeId>>,
    kept: Mutex<Vec<(BusAddress, Vec<u8>)>>,
    /// Messages that it has kept.
    cut: watch::Sender<usize>,
}

impl BusDouble for HoldingBus {
    fn inner(&self) -> &dyn Bus {
        &*self.bus
    }

    fn publish(&self, to: BusAddress, message: Vec<u8>) -> Result<(), BusError> {
        let envelope = Envelope::parse(message.clone()).unwrap();
        let EnvelopeHeader {
            kind,
            round,
            session,
            from,
            to: recipient,
            ..
        } = envelope.header;
        let cut = kind == EnvelopeKind::Protocol
            && round == self.round.load(Ordering::Relaxed)
            && self.session.lock().unwrap().is_none_or(|of| of == session)
            && Some(from) == *self.from.lock().unwrap()
            && self.to.lock().unwrap().is_none_or(|to| to == recipient);
        if cut {
            self.kept.lock().unwrap().push((to, message));
            self.cut.send_modify(|messages| *messages += 1);
            return Ok(());
        }
        self.bus.publish(to, message)
    }
}

impl HoldingBus {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            bus: MemoryBus::new(),
            round: AtomicU16::new(0),
            session: Mutex::default(),
            from: Mutex::default(),
            to: Mutex::default(),
            kept: Mutex::default(),
            cut: watch::channel(0).0,
        })
    }

    fn release(&self) {
        for (to, message) in self.kept.lock().unwrap().drain(..) {
            self.bus.publish(to, message).unwrap();
        }
    }
}

/// Cuts off node 1, which deals, in every round; then lets the run through. With a patience, until
/// the run has failed; else, until the orchestrator that had asked for it is gone.
async fn cut_story(
    curve: Curve,
    holders: &[usize],
    rounds: RangeInclusive<u16>,
    patience_ms: Option<u64>,
) {
    let bus = HoldingBus::new();
    let medium = TestBus::Other(Arc::clone(&bus) as Arc<dyn Bus>);
    let mut life = LifecycleFixture::start_on(medium, curve, 4, 3, 2).await;
    *bus.from.lock().unwrap() = Some(life.id(1));
    let last = *rounds.end();
    for round in rounds {
        let mut order = life.order(&[0, 1], holders, 2);
        *bus.session.lock().unwrap() = Some(order.session);
        bus.cut.send_replace(0);
        bus.round.store(round, Ordering::Relaxed);
        if let Some(patience_ms) = patience_ms {
            order.expires_at_ms = now_ms() + patience_ms;
        }
        let run = life.test.cluster.reshare(&order);
        if patience_ms.is_some() {
            let fault = run.await.unwrap_err();
            assert_eq!(fault.class(), &Class::Unavailable, "{fault:?}");
            assert!(
                fault.message().contains("node-2"),
                "round {round}: {fault:?}"
            );
            assert!(*bus.cut.borrow() > 0, "no round {round}");
        } else {
            let mut cut = bus.cut.subscribe();
            // To each of the others: later messages are no longer cut.
            let others = holders.len() - 1;
            tokio::select! {
                outcome = run => panic!("round {round}: {outcome:?}"),
                cut = cut.wait_for(|messages| *messages >= others) => drop(cut.unwrap()),
            }
        }
        for place in 0..4 {
            let (in_use, prepared) = life.files(place);
            assert_eq!(in_use, if place == 3 { vec![] } else { vec![0] });
            // Only who was heard by nobody can have heard everybody to the end.
            assert!(
                prepared.is_empty() || (place == 1 && round == last),
                "round {round}: node {place} has {prepared:?}"
            );
        }
        bus.round.store(0, Ordering::Relaxed);
        life.signs().await;
    }
    *bus.session.lock().unwrap() = None;
    bus.cut.send_replace(0);
    bus.round.store(last + 1, Ordering::Relaxed);
    life.reshare(&[0, 1], holders, 2).await;
    assert_eq!(*bus.cut.borrow(), 0, "there are more rounds");
    life.signs().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn life__should_leave_the_old_shares_working_when_cut_off_at_any_round_on_ed25519() {
    // The keys of the run, deals, echoes, parts, outcomes. Node 1 deals and leaves.
    cut_story(Curve::Ed25519, &[0, 2, 3], 1..=5, Some(1_500)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn life__should_leave_the_old_shares_working_when_cut_off_at_any_round_on_secp256k1() {
    // The first five are the same as above, and slow here; then come the four rounds of the crate's
    // refresh. Node 1 deals and stays.
    cut_story(Curve::Secp256k1, &[0, 1, 3], 5..=9, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_that_ends_late__should_leave_no_share_of_before() {
    let bus = HoldingBus::new();
    let medium = TestBus::Other(Arc::clone(&bus) as Arc<dyn Bus>);
    let mut life = LifecycleFixture::start_on(medium, Curve::Ed25519, 4, 2, 2).await;
    // Node 3 waits for the last message of a run when it is told of a later generation, in which it
    // has no share.
    *bus.from.lock().unwrap() = Some(life.id(1));
    *bus.to.lock().unwrap() = Some(life.id(3));
    bus.round.store(5, Ordering::Relaxed);
    let late = life.order(&[0, 1], &[0, 1, 3], 2);
    let next = life.order(&[0, 1], &[0, 1, 2], 2);
    let everybody: Vec<NodeId> = (0..4).map(|place| life.id(place)).collect();
    let meanwhile = async {
        let mut cut = bus.cut.subscribe();
        cut.wait_for(|messages| *messages > 0).await.unwrap();
        let proof = life.prepare(&next).await;
        let told = life.distribute_activation(&next, &proof, &everybody).await;
        assert!(told.iter().all(|(_, answer)| answer.is_ok()), "{told:?}");
        bus.release();
    };
    let (outcome, ()) = tokio::join!(life.test.cluster.reshare(&late), meanwhile);
    let fault = outcome.unwrap_err();
    assert!(fault.message().contains("epoch 2"), "{fault:?}");
    assert_eq!(life.files(3), (vec![], vec![]));
    life.generation = next.new;
    life.signs().await;
}

/// Node 2 is hostile, and with the orchestrator: in the last round of a key generation it tells node 0
/// that all is well, and node 1 nothing. What comes of it: the key, which node 2 tells the orchestrator.
async fn key_of_two(test: &TestCluster, bus: &HoldingBus) -> RootKey {
    *bus.from.lock().unwrap() = Some(test.nodes[2].identity.id());
    *bus.to.lock().unwrap() = Some(test.nodes[1].identity.id());
    bus.round.store(5, Ordering::Relaxed);
    let mut order = test.keygen_order(Curve::Ed25519, 2);
    order.expires_at_ms = now_ms() + 3_000;
    test.cluster.keygen(&order).await.unwrap_err();
    assert_eq!(*bus.cut.borrow(), 1);
    bus.round.store(0, Ordering::Relaxed);
    let has = |place: usize| {
        let node = &test.nodes[place];
        KeyStatements::load(&node.folder, &node.identity.id())
            .map_or(0, |statements| statements.keys.len())
    };
    assert_eq!([has(0), has(1), has(2)], [1, 0, 1]);
    let passphrase = SecretString::from("a passphrase");
    let shares = AgeShareStore::open(&test.nodes[2].folder, &passphrase, 2).unwrap();
    shares.load_all().unwrap().remove(0).key.root
}

/// Whether two nodes state an address of the key when they are shown these signatures of holders.
async fn is_stated(test: &TestCluster, root: &RootKey, confirmed: Vec<Vec<u8>>) -> bool {
    let path = KeyPath::of_wallet(Network::Solana, 0).unwrap();
    let child = root.child(&path).unwrap();
    let attested = AttestedAddress {
        address: Network::Solana.rules().address(&child.public_key).unwrap(),
        path,
        network: Network::Solana,
        reference: "order 5".to_owned(),
    };
    let attest = AttestOrder {
        session: session(),
        vault: test.vault,
        epoch: 0,
        root_public_key: root.public_key.clone(),
        threshold: 2,
        holders: test.holders(),
        confirmed,
        addresses: vec![attested],
    };
    let patience = std::time::Duration::from_secs(3);
    let stated = test
        .cluster
        .attest(&attest, &test.holders(), 2, patience)
        .await;
    let text = attest.statements().next().unwrap().text();
    let good = stated.unwrap_or_default().into_iter();
    good.filter(|(node, signatures)| has_signed(node, &text, &signatures[0]))
        .count()
        >= 2
}

/// Node 2 states addresses with node 0, and is gone. (Here all three are honest but for that message: no
/// node states anything.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn address__should_not_be_stated_of_a_key_that_too_few_have() {
    let bus = HoldingBus::new();
    let medium = TestBus::Other(Arc::clone(&bus) as Arc<dyn Bus>);
    let test = TestCluster::start(medium, 3).await;
    test.until_live(3).await;
    let root = key_of_two(&test, &bus).await;
    let two = test.confirmed(&root);
    assert_eq!(two.len(), 2);
    let (first, last) = (two[0].clone(), two[1].clone());
    // What the orchestrator has, and what it can make of it.
    for confirmed in [
        vec![],
        two,
        vec![first.clone(), vec![], last.clone()],
        vec![first.clone(), first.clone(), last.clone()],
        vec![first.clone(), last.clone(), last.clone()],
        vec![first, vec![0; 64], last],
    ] {
        assert!(!is_stated(&test, &root, confirmed).await);
    }
}

/// The same: what is paid to an address must not be gone with node 2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key__should_sign_without_the_hostile_node_once_its_address_is_stated() {
    let bus = HoldingBus::new();
    let medium = TestBus::Other(Arc::clone(&bus) as Arc<dyn Bus>);
    let mut test = TestCluster::start(medium, 3).await;
    test.until_live(3).await;
    let of_two = key_of_two(&test, &bus).await;
    // It does sign, with node 2. It has no address.
    let with = test.order(&of_two);
    let signers = [test.nodes[0].identity.id(), test.nodes[2].identity.id()];
    let signed = test
        .cluster
        .sign(
            &with,
            task(
                Scheme::default_of(with.network.curve()),
                session(),
                &signers,
                2,
                now_ms() + 10_000,
            ),
        )
        .await;
    verify(&with, &signed.unwrap());
    assert!(!is_stated(&test, &of_two, test.confirmed(&of_two)).await);

    // The vault's next try, under another name: node 0 has used the key above.
    test.vault = VaultId::from_bytes([9; 16]);
    let root = test.keygen(Curve::Ed25519, 2).await;
    assert!(is_stated(&test, &root, test.confirmed(&root)).await);
    test.kill_node(2).await;
    test.until_live(2).await;
    let without = test.order(&root);
    let signed = test.sign(&without, 2, 5_000).await;
    assert!(signed.is_ok(), "{signed:?}");
}
