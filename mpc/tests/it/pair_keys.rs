//! Pair keys between real nodes and a real cluster: they come, go with a process, and nothing waits for them.

use std::{
    collections::HashSet,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::support::{TestBus, TestCluster, redis_server::RedisServer};
use covault_core::{derive::RootKey, order::NodeId, signature::Curve};
use covault_mpc::{
    bus::{Bus, BusAddress, BusError, double::BusDouble, memory::MemoryBus, redis::RedisBus},
    envelope::{Envelope, EnvelopeKind},
    node::RebuildCheck,
    preprocess::Watermarks,
};
use tokio::time::timeout;

/// Where an envelope says what protects it, and what it says of pair keys.
const FORM: usize = 3;
const PAIR_KEY: u8 = 2;
/// Where it says of which session it is, and whose.
const SESSION: Range<usize> = 8..24;
const SENDER: Range<usize> = 34..66;

/// Counts the rounds and replies that are sent: all of them, and those under a pair key.
struct CountingBus {
    bus: Arc<dyn Bus>,
    said: Mutex<(usize, usize)>,
    /// No pair key can be agreed on.
    drops_halves: AtomicBool,
    /// To whom halves of keys were sent.
    halves_to: Mutex<HashSet<NodeId>>,
    /// A message under a pair key, and where it went.
    sample: Mutex<Option<(BusAddress, Vec<u8>)>>,
}

impl CountingBus {
    /// Since the last call.
    fn count(&self) -> (usize, usize) {
        std::mem::take(&mut *self.said.lock().unwrap())
    }
}

impl BusDouble for CountingBus {
    fn inner(&self) -> &dyn Bus {
        &*self.bus
    }

    fn publish(&self, to: BusAddress, message: Vec<u8>) -> Result<(), BusError> {
        let header = Envelope::parse(message.clone()).unwrap().header;
        if header.kind == EnvelopeKind::KeyExchange {
            self.halves_to.lock().unwrap().insert(header.to);
        }
        if message[FORM] == PAIR_KEY && header.kind == EnvelopeKind::Protocol {
            *self.sample.lock().unwrap() = Some((to, message.clone()));
        }
        match header.kind {
            EnvelopeKind::KeyExchange if self.drops_halves.load(Ordering::Relaxed) => return Ok(()),
            EnvelopeKind::Protocol | EnvelopeKind::Reply => {
                let mut said = self.said.lock().unwrap();
                said.0 += 1;
                said.1 += usize::from(message[FORM] == PAIR_KEY);
            }
            _ => {}
        }
        self.bus.publish(to, message)
    }
}

/// A cluster of three with an Ed25519 key, whose signatures take two rounds.
async fn counted(
    bus: Arc<dyn Bus>,
    drops_halves: bool,
) -> (Arc<CountingBus>, TestCluster, RootKey) {
    let counter = Arc::new(CountingBus {
        bus,
        said: Mutex::default(),
        drops_halves: AtomicBool::new(drops_halves),
        halves_to: Mutex::default(),
        sample: Mutex::default(),
    });
    let medium = TestBus::Other(Arc::clone(&counter) as Arc<dyn Bus>);
    let none = Watermarks { low: 0, high: 0 };
    let test = TestCluster::start_pooled(medium, 3, Arc::new(RebuildCheck), none).await;
    test.until_live(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    (counter, test, root)
}

async fn until_paired(counter: &CountingBus, test: &TestCluster, root: &RootKey) {
    let paired = timeout(Duration::from_secs(60), async {
        loop {
            test.sign_well(root, 2).await;
            let (said, paired) = counter.count();
            if said > 0 && said == paired {
                break;
            }
        }
    });
    paired.await.expect("all have agreed on keys");
}

/// A node that is started anew is heard, and hears.
async fn each_starts_anew(test: &mut TestCluster, root: &RootKey) {
    for place in 0..3 {
        test.stop_node(place).await;
        test.start_node(place);
        test.until_live(3).await;
        for _ in 0..3 {
            test.sign_well(root, 2).await;
        }
    }
}

async fn keys_come_and_go(bus: Arc<dyn Bus>) {
    let (counter, mut test, root) = counted(bus, false).await;
    // The replies at most, of each node five about rounds and the last one: a key generation is signed.
    let (said, paired) = counter.count();
    assert!(said > 18 && paired <= 18, "{paired} of {said}");
    until_paired(&counter, &test, &root).await;
    each_starts_anew(&mut test, &root).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pair_keys__should_come_and_go_on_memory() {
    keys_come_and_go(MemoryBus::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pair_keys__should_come_and_go_on_redis() {
    let server = RedisServer::start();
    keys_come_and_go(RedisBus::connect(&server.url(), "test").unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signing__should_go_on_when_no_pair_key_can_be_agreed_on() {
    let (counter, test, root) = counted(MemoryBus::new(), true).await;
    for _ in 0..10 {
        test.sign_well(&root, 2).await;
    }
    let (said, paired) = counter.count();
    assert!(said >= 30, "{said}");
    assert_eq!(paired, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signing__should_go_on_when_a_new_start_cannot_say_that_it_has_no_pair_key() {
    let (counter, mut test, root) = counted(MemoryBus::new(), false).await;
    until_paired(&counter, &test, &root).await;
    counter.drops_halves.store(true, Ordering::Relaxed);
    each_starts_anew(&mut test, &root).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes__should_agree_on_keys_with_nobody_whose_name_somebody_made_up() {
    let (counter, mut test, root) = counted(MemoryBus::new(), false).await;
    // Nodes that pin nobody take anyone for a peer.
    for node in &mut test.nodes {
        node.peers = None;
    }
    each_starts_anew(&mut test, &root).await;
    until_paired(&counter, &test, &root).await;
    let sample = counter.sample.lock().unwrap().clone();
    let (to, wire) = sample.expect("a round was under a pair key");
    let made_up = (0..100_u8).map(|number| NodeId([number; 32]));
    for id in made_up.clone() {
        let mut forged = wire.clone();
        // One that no node has run.
        forged[SESSION].copy_from_slice(&id.0[..16]);
        forged[SENDER].copy_from_slice(&id.0);
        counter.bus.publish(to, forged).unwrap();
    }
    // Behind them in each inbox.
    for _ in 0..3 {
        test.sign_well(&root, 2).await;
    }
    let greeted = counter.halves_to.lock().unwrap();
    assert!(made_up.into_iter().all(|id| !greeted.contains(&id)));
}
