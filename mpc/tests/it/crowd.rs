//! More requests than signers can do at once, and signers that are slow, silent or busy.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use covault_core::{
    derive::RootKey,
    fault::{Fault, FaultCode},
    ids::{SessionId, TokenId},
    networks::Network,
    order::{BackupOrder, NodeId},
    port::random_16,
    rate::UnsignedWork,
    scheme::Scheme,
    signature::Curve,
};
use covault_mpc::{
    bus::{Bus, BusAddress, BusError, double::BusDouble, memory::MemoryBus},
    envelope::{Envelope, EnvelopeCodec, EnvelopeHeader, EnvelopeKind},
    identity::NodeIdentity,
    pool::{CpuPool, Priority},
};
use futures::future::join_all;
use rustix::time::{ClockId, clock_gettime};
use tokio::{runtime::Handle, time::sleep};
use tracing_subscriber::filter::LevelFilter;

use crate::{
    attest,
    byzantine::{Misbehavior, impersonate},
    support::{
        AcceptAnyOrder, SystemEntropy, TestBus, TestCluster, counters::CounterCapture,
        log::LogCapture, now_ms, start_cluster, task, verify,
    },
};

/// A bus on which some are slow or deaf, and that counts orders.
struct CrowdBus {
    bus: Arc<MemoryBus>,
    runtime: Handle,
    /// What they send and get comes so much later.
    slow: Mutex<BTreeMap<NodeId, Duration>>,
    /// They get nothing.
    deaf: Mutex<BTreeSet<NodeId>>,
    /// Signing orders, by whom they are for.
    orders: Mutex<BTreeMap<NodeId, usize>>,
    /// So many more are not taken.
    full: Mutex<usize>,
}

impl CrowdBus {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            bus: MemoryBus::new(),
            runtime: Handle::current(),
            slow: Mutex::default(),
            deaf: Mutex::default(),
            orders: Mutex::default(),
            full: Mutex::default(),
        })
    }

    /// Since it was asked last.
    fn orders(&self) -> BTreeMap<NodeId, usize> {
        std::mem::take(&mut self.orders.lock().unwrap())
    }
}

impl BusDouble for CrowdBus {
    fn inner(&self) -> &dyn Bus {
        &*self.bus
    }

    fn publish(&self, to: BusAddress, message: Vec<u8>) -> Result<(), BusError> {
        let header = Envelope::parse(message.clone()).unwrap().header;
        if header.kind == EnvelopeKind::Announcement {
            return self.bus.publish(to, message);
        }
        if matches!(
            header.kind,
            EnvelopeKind::SigningOrder | EnvelopeKind::AttestOrder | EnvelopeKind::BackupOrder
        ) {
            let mut full = self.full.lock().unwrap();
            if *full > 0 {
                *full -= 1;
                return Err(BusError::Full("too many queued messages"));
            }
        }
        if header.kind == EnvelopeKind::SigningOrder {
            *self.orders.lock().unwrap().entry(header.to).or_default() += 1;
        }
        if self.deaf.lock().unwrap().contains(&header.to) {
            return Ok(());
        }
        let slow = self.slow.lock().unwrap();
        let delays = [header.from, header.to].map(|node| slow.get(&node).copied());
        drop(slow);
        match delays.into_iter().flatten().max() {
            None => self.bus.publish(to, message),
            Some(delay) => {
                let bus = Arc::clone(&self.bus);
                self.runtime.spawn(async move {
                    sleep(delay).await;
                    bus.publish(to, message)
                });
                Ok(())
            }
        }
    }
}

async fn cluster(count: usize, curve: Curve) -> (Arc<CrowdBus>, TestCluster, RootKey) {
    let bus = CrowdBus::new();
    let medium = TestBus::Other(Arc::clone(&bus) as Arc<dyn Bus>);
    let test = TestCluster::start(medium, count).await;
    test.until_live(count).await;
    let root = test.keygen(curve, 2).await;
    (bus, test, root)
}

fn is_busy(fault: &Fault) -> bool {
    matches!(fault.code(), FaultCode::Busy { .. })
}

/// How long each takes, one after the other; sorted.
async fn times(test: &TestCluster, root: &RootKey, count: usize) -> Vec<Duration> {
    let mut times = Vec::new();
    for _ in 0..count {
        let began = Instant::now();
        test.sign_well(root, 2).await;
        times.push(began.elapsed());
    }
    times.sort();
    times
}

/// Much more than can be done in the time of an attempt, all at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crowd__should_be_signed_in_its_order_and_each_request_once() {
    let (bus, test, root) = cluster(3, Curve::Secp256k1).await;
    times(&test, &root, 10).await;
    bus.orders();
    const CROWD: usize = 300;
    let done = Mutex::new(Vec::new());
    let crowd = (0..CROWD).map(|number| {
        let (test, root, done) = (&test, &root, &done);
        async move {
            let order = test.order(root);
            let signed = test.sign(&order, 2, 120_000).await.unwrap();
            verify(&order, &signed);
            done.lock().unwrap().push(number);
        }
    });
    join_all(crowd).await;
    // Hardly any was begun twice: work that comes too late is what a crowd makes signers drown in.
    let orders: usize = bus.orders().values().sum();
    assert!(orders < 2 * CROWD * 5 / 4, "{orders} orders");
    // Nobody was passed by more than run at one time.
    let done = done.into_inner().unwrap();
    let passed = done
        .iter()
        .enumerate()
        .map(|(at, number)| at.abs_diff(*number));
    let passed = passed.max().unwrap();
    assert!(passed < CROWD / 3, "{passed}");
}

/// Each gives signers as much as they take, and hears of the other by their answers alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crowds_of_two_orchestrators__should_both_be_signed_by_the_same_signers() {
    let (_bus, mut test, root) = cluster(3, Curve::Secp256k1).await;
    let other = Arc::new(NodeIdentity::generate(&SystemEntropy));
    test.also_trusted.push(other.id());
    for place in 0..3 {
        test.stop_node(place).await;
        test.start_node(place);
    }
    test.until_live(3).await;
    let other = start_cluster(&test.medium, &other).await;
    while other.nodes().iter().filter(|node| node.live).count() < 3 {
        sleep(Duration::from_millis(50)).await;
    }
    const CROWD: usize = 50;
    let signed = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let sign = async |at: usize| {
        let cluster = [&test.cluster, &other][at];
        let (order, holders) = (test.order(&root), test.holders());
        let deadline_ms = now_ms() + 120_000;
        let task = task(Scheme::Dkls23, session(), &holders, 2, deadline_ms);
        let signatures = cluster.sign(&order, task).await.unwrap();
        verify(&order, &signatures);
        signed[at].fetch_add(1, Ordering::SeqCst);
    };
    // Neither waits until the other one has nothing to sign.
    let behind = Mutex::new(None);
    let crowd = async |at: usize| {
        join_all((0..CROWD).map(|_| sign(at))).await;
        let other = signed[1 - at].load(Ordering::SeqCst);
        behind.lock().unwrap().get_or_insert(other);
    };
    tokio::join!(crowd(0), crowd(1));
    let behind = behind.into_inner().unwrap().unwrap();
    assert!(behind > CROWD / 10, "{behind} of {CROWD}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request__should_fail_at_once_when_what_came_before_takes_longer() {
    let (_bus, test, root) = cluster(2, Curve::Secp256k1).await;
    times(&test, &root, 5).await;
    let patient = (0..400).map(|_| async {
        let order = test.order(&root);
        // Those that are still waiting when this test ends are dropped.
        let _ = test.sign(&order, 2, 120_000).await;
    });
    let hasty = async {
        sleep(Duration::from_millis(500)).await;
        let scheme = Scheme::Dkls23;
        let party = (test.vault, TokenId::from_bytes([1; 16]));
        let wait = |of: &[NodeId], of_vault| {
            let cluster = &test.cluster;
            let unsigned = UnsignedWork {
                of_vault,
                of_token: 0,
            };
            cluster.expected_wait(scheme, of, 2, party, None, unsigned)
        };
        let ours = test.holders();
        let full = wait(&ours, 0).unwrap();
        // What is built now comes later.
        assert!(wait(&ours, 100_000).unwrap() > full * 2);
        // Another token has nothing here, so that it is heard for longer.
        let other = (test.vault, TokenId::from_bytes([2; 16]));
        let half = {
            let none = UnsignedWork::default();
            test.cluster
                .expected_wait(scheme, &ours, 2, other, None, none)
        };
        assert!(half.unwrap() < full * 3 / 4);
        assert!(full > Duration::from_secs(1), "{full:?}");
        let order = test.order(&root);
        let fault = test.sign(&order, 2, 300).await.unwrap_err();
        assert!(is_busy(&fault), "{fault:?}");
        // When its time was over it would say so.
        let at_once = "earlier requests take about";
        assert!(fault.message().contains(at_once), "{fault:?}");
        // Signers of other keys have nothing to do with it.
        let others = [NodeId(random_32()), NodeId(random_32())];
        assert_eq!(wait(&others, 0), Some(Duration::ZERO));
    };
    tokio::select! {
        _ = join_all(patient) => panic!("the crowd was too small"),
        () = hasty => {}
    }
}

fn random_32() -> [u8; 32] {
    let half = random_16(&SystemEntropy);
    [half, half].concat().try_into().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_signer__should_be_avoided_and_come_back() {
    let (bus, test, root) = cluster(3, Curve::Ed25519).await;
    let slow = test.nodes[2].identity.id();
    times(&test, &root, 40).await;
    bus.slow
        .lock()
        .unwrap()
        .insert(slow, Duration::from_millis(200));
    times(&test, &root, 6).await;
    bus.orders();
    times(&test, &root, 60).await;
    let of_slow = |orders: BTreeMap<NodeId, usize>| orders.get(&slow).copied().unwrap_or(0);
    let asked = of_slow(bus.orders());
    // One of fifty tries it; the others do not feel it.
    assert!(asked <= 6, "{asked} of 60");
    bus.slow.lock().unwrap().clear();
    let mut rounds = 0;
    while of_slow(bus.orders()) < 20 {
        rounds += 1;
        assert!(rounds < 20, "it never comes back");
        times(&test, &root, 50).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_signer__should_be_waited_for_no_longer_than_nearly_all_attempts_take() {
    let (bus, test, root) = cluster(3, Curve::Ed25519).await;
    let usual = times(&test, &root, 40).await;
    // It lives, and hears nothing.
    bus.deaf.lock().unwrap().insert(test.nodes[2].identity.id());
    let times = times(&test, &root, 30).await;
    // By how fast this machine is now.
    let most = Duration::from_secs(1) + 10 * usual[39];
    assert!(times[29] < most, "{times:?}, usually {usual:?}");
}

/// So many at a time, each as soon as one before it is done; how long each took.
async fn times_of_crowd(test: &TestCluster, root: &RootKey, at_once: usize) -> Vec<Duration> {
    let clients = (0..at_once).map(|_| times(test, root, 8));
    let mut times = join_all(clients).await.concat();
    times.sort();
    times
}

/// All come at once, after the signer has stopped: half of them or more begin with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_signer__should_be_waited_for_no_longer_when_all_are_busy() {
    const AT_ONCE: usize = 32;
    let (bus, test, root) = cluster(3, Curve::Secp256k1).await;
    times_of_crowd(&test, &root, AT_ONCE).await;
    let usual = times_of_crowd(&test, &root, AT_ONCE).await;
    bus.deaf.lock().unwrap().insert(test.nodes[2].identity.id());
    let times = times_of_crowd(&test, &root, AT_ONCE).await;
    let (longest, usual) = (times.last().unwrap(), usual.last().unwrap());
    assert!(
        *longest < Duration::from_millis(600) + 2 * *usual,
        "{times:?}"
    );
}

/// Of two vaults that share a node, one needs another node that lives and hears nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_holder_of_one_vault__should_not_take_the_places_of_others() {
    let bus = CrowdBus::new();
    let medium = TestBus::Other(Arc::clone(&bus) as Arc<dyn Bus>);
    let test = TestCluster::start(medium, 3).await;
    test.until_live(3).await;
    let [shared, silent, good] = test.holders().try_into().unwrap();
    let key_of = async |holders: &[NodeId]| {
        let mut order = test.keygen_order(Curve::Ed25519, 2);
        order.signers = holders.to_vec();
        test.cluster.keygen(&order).await.unwrap().root
    };
    let (hung, healthy) = ([shared, silent], [shared, good]);
    let (hung_key, healthy_key) = (key_of(&hung).await, key_of(&healthy).await);
    let sign = async |root: &RootKey, holders: &[NodeId]| {
        let order = test.order(root);
        let scheme = Scheme::default_of(Curve::Ed25519);
        let task = task(scheme, session(), holders, 2, now_ms() + 120_000);
        test.cluster.sign(&order, task).await
    };
    let times = async || {
        let mut times = Vec::new();
        for _ in 0..60 {
            let began = Instant::now();
            sign(&healthy_key, &healthy).await.unwrap();
            times.push(began.elapsed());
        }
        times.sort();
        times
    };
    let usual = times().await;
    bus.deaf.lock().unwrap().insert(silent);
    let crowd = join_all((0..200).map(|_| sign(&hung_key, &hung)));
    let disturbed = async {
        sleep(Duration::from_millis(300)).await;
        times().await
    };
    let disturbed = tokio::select! {
        _ = crowd => panic!("somebody answers"),
        disturbed = disturbed => disturbed,
    };
    // An attempt of the others has more than a second.
    let margin = Duration::from_millis(500);
    assert!(
        disturbed[30] < usual[30] * 5 + margin,
        "{usual:?} {disturbed:?}"
    );
}

/// How long this thread has worked.
fn worked() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

/// Steps of sessions with the other curve, each followed by another one.
#[derive(Default)]
struct Steps {
    done: AtomicUsize,
    over: AtomicBool,
}

fn step(pool: Arc<CpuPool>, steps: Arc<Steps>) {
    let again = Arc::clone(&pool);
    pool.spawn(Priority::SigningWith(Scheme::FrostEd25519), move || {
        if steps.over.load(Ordering::Relaxed) {
            return;
        }
        let began = worked();
        while worked() - began < Duration::from_micros(200) {}
        steps.done.fetch_add(1, Ordering::Relaxed);
        step(again, steps);
    });
}

/// Where all waited in one line, each round of a session came after all steps of the other curve that waited.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crowd_of_one_curve__should_leave_time_of_a_signers_threads_to_the_other() {
    let (_bus, test, root) = cluster(2, Curve::Secp256k1).await;
    times(&test, &root, 5).await;
    let steps = Arc::new(Steps::default());
    // Four seconds of work, of however many threads.
    let threads = std::thread::available_parallelism().unwrap().get();
    let waiting = 20_000 * threads;
    (0..waiting).for_each(|_| step(Arc::clone(&test.pool), Arc::clone(&steps)));
    let signed = (0..40).map(|_| test.sign_well(&root, 2));
    join_all(signed).await;
    steps.over.store(true, Ordering::Relaxed);
    // About as much time as the signatures take, and that of waiting for a disk; each round would be as much.
    let done = steps.done.load(Ordering::Relaxed);
    assert!(done < 5 * waiting, "{done}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_signers__should_say_so_and_be_asked_again() {
    let counters = CounterCapture::start();
    let (_bus, test, root) = cluster(2, Curve::Ed25519).await;
    times(&test, &root, 2).await;
    // Every thread has something else to do, for longer than an attempt takes.
    for _ in 0..2 * std::thread::available_parallelism().unwrap().get() {
        test.pool.spawn(Priority::Signing, || {
            std::thread::sleep(Duration::from_millis(300));
        });
    }
    test.sign_well(&root, 2).await;
    let busy = counters.by_label("covault_signer_busy_total", "node");
    assert!(busy.values().sum::<u64>() > 0);
    // Not a word against them.
    let refused = counters.by_label("covault_signing_refusals_total", "class");
    assert!(refused.is_empty(), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster__should_sign_around_a_node_that_says_that_it_is_busy_always() {
    let (bus, mut test, root) = cluster(3, Curve::Ed25519).await;
    test.stop_node(1).await;
    test.until_live(2).await;
    let liar = test.nodes[1].identity.id();
    let _byzantine = impersonate(&test, 1, Misbehavior::Busy).await;
    test.until_live(3).await;
    bus.orders();
    let began = Instant::now();
    times(&test, &root, 100).await;
    let asked = bus.orders()[&liar];
    let most = 6 + began.elapsed().as_secs() as usize;
    assert!(asked <= most, "{asked} of 100");
    // Where it is needed, nothing comes, and it is said why.
    test.stop_node(2).await;
    test.until_live(2).await;
    let fault = test.sign(&test.order(&root), 2, 1_500).await.unwrap_err();
    assert!(is_busy(&fault), "{fault:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request__should_name_who_was_silent_also_when_it_is_busy_in_the_end() {
    let (_bus, mut test, root) = cluster(2, Curve::Ed25519).await;
    test.stop_node(1).await;
    test.until_live(1).await;
    let line = test.nodes[1].identity.openssh_line("");
    let _byzantine = impersonate(&test, 1, Misbehavior::SilentThenBusy).await;
    test.until_live(2).await;
    let fault = test.sign(&test.order(&root), 2, 8_000).await.unwrap_err();
    assert!(!is_busy(&fault), "{fault:?}");
    assert!(fault.message().contains(&line), "{fault:?}");
}

/// Those that only wait in the line of a silent signer wait for nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request__should_name_the_silent_signer_when_its_line_is_hopeless() {
    let (bus, test, root) = cluster(2, Curve::Ed25519).await;
    times(&test, &root, 20).await;
    let silent = test.nodes[1].identity.id();
    bus.deaf.lock().unwrap().insert(silent);
    // From then on no rate is asked.
    test.sign(&test.order(&root), 2, 1_500).await.unwrap_err();
    let crowd = (0..200).map(|_| async {
        let order = test.order(&root);
        test.sign(&order, 2, 8_000).await.unwrap_err()
    });
    let line = test.nodes[1].identity.openssh_line("");
    for fault in join_all(crowd).await {
        assert!(!is_busy(&fault), "{fault:?}");
        assert!(fault.message().contains(&line), "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request__should_wait_while_the_bus_is_full() {
    let (bus, test, root) = cluster(2, Curve::Ed25519).await;
    *bus.full.lock().unwrap() = 5;
    test.sign_well(&root, 2).await;
    assert_eq!(*bus.full.lock().unwrap(), 0);
    // Until its time is over.
    *bus.full.lock().unwrap() = usize::MAX;
    let began_ms = now_ms();
    let fault = test.sign(&test.order(&root), 2, 600).await.unwrap_err();
    assert!(is_busy(&fault), "{fault:?}");
    assert!(now_ms() - began_ms >= 500);
}

fn session() -> SessionId {
    SessionId::from_random(random_16(&SystemEntropy))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attest_and_backup__should_wait_while_the_bus_is_full() {
    let (bus, test, root) = cluster(2, Curve::Ed25519).await;
    let asked = || {
        let address = attest::address(&root, Network::Solana, 1, "");
        attest::order(&test, &root, vec![address])
    };
    let holders = test.holders();
    *bus.full.lock().unwrap() = 3;
    let patience = Duration::from_secs(20);
    let stated = test.cluster.attest(&asked(), &holders, 2, patience).await;
    assert_eq!(stated.unwrap().len(), 2);
    assert_eq!(*bus.full.lock().unwrap(), 0);
    // Until their time is over.
    *bus.full.lock().unwrap() = usize::MAX;
    let patience = Duration::from_millis(600);
    let stated = test.cluster.attest(&asked(), &holders, 2, patience).await;
    assert!(is_busy(&stated.unwrap_err()));

    *bus.full.lock().unwrap() = 3;
    let order = BackupOrder {
        vault: test.vault,
        session: session(),
        root_public_key: root.public_key.clone(),
        epoch: 0,
        holders,
        recipients: vec!["age1recipient".to_owned()],
        issued_at_ms: now_ms(),
        expires_at_ms: now_ms() + 60_000,
    };
    let answers = test.cluster.backup(&order).await.unwrap();
    assert_eq!(*bus.full.lock().unwrap(), 0);
    // They have no recipients, and say so.
    for (_, answer) in answers {
        let fault = answer.unwrap_err();
        assert!(fault.message().contains("refused to back up"), "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request__should_keep_its_place_when_it_is_asked_for_again() {
    let (_bus, test, root) = cluster(2, Curve::Ed25519).await;
    times(&test, &root, 5).await;
    let first = test.order(&root);
    sleep(Duration::from_millis(5)).await;
    const CROWD: usize = 400;
    let done = Mutex::new(0);
    let crowd = (0..CROWD).map(|_| async {
        test.sign_well(&root, 2).await;
        *done.lock().unwrap() += 1;
    });
    // As its actor asks again, after an attempt that was in vain.
    let again = async {
        sleep(Duration::from_millis(100)).await;
        let before = *done.lock().unwrap();
        assert!(before < CROWD / 4, "the crowd was too small: {before}");
        test.sign(&first, 2, 120_000).await.unwrap();
        *done.lock().unwrap() - before
    };
    let (passed, _) = tokio::join!(again, join_all(crowd));
    assert!(passed < CROWD / 4, "{passed} went before it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signer__should_be_busy_when_it_has_as_many_sessions_as_it_may() {
    let counters = CounterCapture::start();
    let log = LogCapture::start(LevelFilter::DEBUG);
    let bus = CrowdBus::new();
    let medium = TestBus::Other(Arc::clone(&bus) as Arc<dyn Bus>);
    let test = TestCluster::start_with(medium, 2, Arc::new(AcceptAnyOrder)).await;
    test.until_live(2).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let codec = EnvelopeCodec::new(
        Arc::clone(&test.orchestrator),
        test.medium.bus(),
        Arc::new(SystemEntropy),
    );
    // The other one of the team hears nothing of them: they last as long as they may.
    let to = test.holders()[0];
    let send = || {
        let mut order = test.order(&root);
        order.inputs = vec![order.inputs[0].clone(); 256];
        let session = session();
        let nonces: Vec<Vec<u64>> = Vec::new();
        let fields = (
            &order,
            session,
            test.holders(),
            nonces,
            60_000_u64,
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
            to,
        };
        codec
            .send(header, &bcs::to_bytes(&fields).unwrap())
            .unwrap();
    };
    log.until("too many sessions", send).await;
    let busy = counters.by_label("covault_signer_busy_total", "node");
    assert!(busy.values().sum::<u64>() > 0);
    let refused = counters.by_label("covault_signer_refusals_total", "class");
    assert!(refused.is_empty(), "{refused:?}");
}
