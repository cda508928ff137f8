//! The rules under which dkls23 may be used, as far as nodes keep them; the others are in
//! `src/backend/suite/dkls23_rules.rs`. docs/threat-model.md lists them all.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::support::{SystemEntropy, TestBus, TestCluster, now_ms, start_cluster_on, task, verify};
use covault_core::{
    fault::Class, ids::SessionId, order::NodeId, port::random_16, scheme::Scheme, signature::Curve,
};
use covault_mpc::{
    bus::{Bus, BusAddress, BusError, double::BusDouble, memory::MemoryBus},
    envelope::{Envelope, EnvelopeCodec, EnvelopeHeader, EnvelopeKind},
};

type Interceptor = Box<dyn Fn(&MemoryBus, BusAddress, &[u8]) -> bool + Send + Sync>;

/// A bus that shows each message to an interceptor first, which may take it.
struct InterceptingBus {
    bus: Arc<MemoryBus>,
    meddle: Mutex<Option<Interceptor>>,
}

impl InterceptingBus {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            bus: MemoryBus::new(),
            meddle: Mutex::default(),
        })
    }

    fn medium(self: &Arc<Self>) -> TestBus {
        TestBus::Other(Arc::clone(self) as Arc<dyn Bus>)
    }

    fn with(&self, meddle: impl Fn(&MemoryBus, BusAddress, &[u8]) -> bool + Send + Sync + 'static) {
        *self.meddle.lock().unwrap() = Some(Box::new(meddle));
    }

    fn leave(&self) {
        *self.meddle.lock().unwrap() = None;
    }
}

impl BusDouble for InterceptingBus {
    fn inner(&self) -> &dyn Bus {
        &*self.bus
    }

    fn publish(&self, to: BusAddress, message: Vec<u8>) -> Result<(), BusError> {
        let taken = match &*self.meddle.lock().unwrap() {
            Some(meddle) => meddle(&self.bus, to, &message),
            None => false,
        };
        if taken {
            return Ok(());
        }
        self.bus.publish(to, message)
    }
}

fn protocol(message: &[u8]) -> Option<EnvelopeHeader> {
    let header = Envelope::parse(message.to_vec()).ok()?.header;
    (header.kind == EnvelopeKind::Protocol).then_some(header)
}

/// Whom the nodes say they have banned, once that many do.
async fn bans(test: &TestCluster, count: usize) -> Vec<NodeId> {
    let mut bans = Vec::new();
    for _ in 0..100 {
        // What has happened is announced with the next heartbeat.
        tokio::time::sleep(Duration::from_millis(250)).await;
        let nodes = test.cluster.nodes();
        let all = nodes.iter().flat_map(|node| &node.bans);
        bans = all.map(|ban| ban.peer).collect();
        if bans.len() == count {
            break;
        }
    }
    bans
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dkls23_rule__should_authenticate_every_message_before_a_phase_sees_it() {
    let bus = InterceptingBus::new();
    let test = TestCluster::start(bus.medium(), 3).await;
    test.until_live(3).await;
    // Before every protocol message a forged one comes, for the same slot: a bit of it is another.
    let forged = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&forged);
    bus.with(move |bus, to, message| {
        if protocol(message).is_some() {
            let mut forgery = message.to_vec();
            let middle = 158 + (forgery.len() - 158) / 2;
            forgery[middle] ^= 0x10;
            bus.publish(to, forgery).unwrap();
            count.fetch_add(1, Ordering::Relaxed);
        }
        false
    });
    // A phase that saw one would end the session, blame the honest sender, or ban it for good.
    let root = test.keygen(Curve::Secp256k1, 2).await;
    for _ in 0..6 {
        test.sign_well(&root, 2).await;
    }
    assert!(forged.load(Ordering::Relaxed) > 24);
    assert_eq!(bans(&test, 0).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dkls23_rule__should_persist_a_ban_and_tell_the_operator() {
    let bus = InterceptingBus::new();
    let mut test = TestCluster::start(bus.medium(), 2).await;
    test.until_live(2).await;
    let root = test.keygen(Curve::Secp256k1, 2).await;
    test.sign_well(&root, 2).await;
    let (victim, cheat) = (&test.nodes[0].identity, &test.nodes[1].identity);
    let cheat_line = cheat.openssh_line("");
    // The cheat speaks under its own name, but something else than the protocol says.
    let codec = |identity: &Arc<_>| {
        let bus = Arc::clone(&bus.bus) as Arc<dyn Bus>;
        EnvelopeCodec::new(Arc::clone(identity), bus, Arc::new(SystemEntropy))
    };
    let (reader, writer) = (codec(victim), codec(cheat));
    let (victim, cheat) = (victim.id(), cheat.id());
    bus.with(move |_, _, message| {
        let Some(header) = protocol(message) else {
            return false;
        };
        if (header.from, header.to, header.round) != (cheat, victim, 1) {
            return false;
        }
        let envelope = Envelope::parse(message.to_vec()).unwrap();
        let mut body = reader.open(&envelope).unwrap().body;
        let middle = body.len() / 2;
        body[middle] ^= 0x10;
        writer.send(header, &body).unwrap();
        true
    });
    let fault = test.sign(&test.order(&root), 2, 4_000).await.unwrap_err();
    assert!(
        fault.message().contains("node-2") || fault.message().contains(&cheat_line),
        "{fault:?}"
    );
    // From now on it behaves. The ban stays, says who is banned, and outlives a restart.
    bus.leave();
    for restart in [false, true] {
        if restart {
            test.stop_node(0).await;
            test.start_node(0);
            test.cluster = start_cluster_on(test.medium.bus(), &test.orchestrator).await;
            test.until_live(2).await;
        }
        let fault = test.sign(&test.order(&root), 2, 4_000).await.unwrap_err();
        assert!(fault.message().contains(&cheat_line), "{fault:?}");
        let Class::Peer { culprits } = fault.class() else {
            panic!("{fault:?}")
        };
        assert_eq!(culprits, std::slice::from_ref(&cheat_line));
        // What operators see in the list of nodes.
        assert_eq!(bans(&test, 1).await, [cheat]);
    }
    // It is a ban from that key only.
    let other = test.keygen(Curve::Secp256k1, 2).await;
    test.sign_well(&other, 2).await;
}

/// Each trial of a cheat in the multiplications tells its author something about a share. Sessions
/// that began before the ban must not be more trials.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dkls23_rule__should_let_a_cheat_try_once_however_many_sessions_wait_for_it() {
    /// No client asks for more at once of a node that it does not know.
    const EACH: usize = 4;
    const SESSIONS: usize = 6 * EACH;
    let bus = InterceptingBus::new();
    let test = TestCluster::start(bus.medium(), 2).await;
    test.until_live(2).await;
    let root = test.keygen(Curve::Secp256k1, 2).await;
    let codec = |identity: &Arc<_>| {
        let bus = Arc::clone(&bus.bus) as Arc<dyn Bus>;
        EnvelopeCodec::new(Arc::clone(identity), bus, Arc::new(SystemEntropy))
    };
    let victim = test.nodes[0].identity.id();
    let cheat = test.nodes[1].identity.id();
    let (reader, writer) = (
        codec(&test.nodes[0].identity),
        codec(&test.nodes[1].identity),
    );
    let orchestrator = codec(&test.orchestrator);
    let (hold, mut held) = tokio::sync::mpsc::unbounded_channel();
    let (say, mut said) = tokio::sync::mpsc::unbounded_channel();
    bus.with(move |_, _, message| {
        let envelope = Envelope::parse(message.to_vec()).unwrap();
        let header = envelope.header;
        if header.kind == EnvelopeKind::Reply && header.from == victim && header.attempt == 0 {
            let body = orchestrator.open(&envelope).unwrap().body;
            say.send(String::from_utf8_lossy(&body).into_owned())
                .unwrap();
        }
        let first = header.kind == EnvelopeKind::Protocol && header.round == 1;
        if !first || (header.from, header.to) != (cheat, victim) {
            return false;
        }
        // Withheld until all sessions have begun, and wrong.
        let mut body = reader.open(&envelope).unwrap().body;
        let middle = body.len() / 2;
        body[middle] ^= 0x10;
        hold.send((header, body)).unwrap();
        true
    });
    let mut clusters = Vec::new();
    while clusters.len() < SESSIONS / EACH {
        let cluster = start_cluster_on(test.medium.bus(), &test.orchestrator).await;
        while cluster.nodes().iter().filter(|node| node.live).count() < 2 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        clusters.push(cluster);
    }
    let orders: Vec<_> = (0..SESSIONS).map(|_| test.order(&root)).collect();
    let holders = test.holders();
    let signing = orders
        .iter()
        .zip(clusters.iter().cycle())
        .map(|(order, cluster)| {
            let session = SessionId::from_random(random_16(&SystemEntropy));
            cluster.sign(
                order,
                task(Scheme::Dkls23, session, &holders, 2, now_ms() + 8_000),
            )
        });
    let cheating = async {
        let mut all = Vec::new();
        while all.len() < SESSIONS {
            all.push(held.recv().await.unwrap());
        }
        for (header, body) in all {
            writer.send(header, &body).unwrap();
        }
        let mut tried = 0;
        for _ in 0..SESSIONS {
            let reason = said.recv().await.unwrap();
            tried += usize::from(!reason.contains("a party is banned from this key"));
        }
        tried
    };
    let (outcomes, tried) = tokio::join!(futures::future::join_all(signing), cheating);
    assert!(outcomes.iter().all(Result::is_err));
    // Those that were being looked at when the first one failed.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    assert!((1..=threads).contains(&tried), "{tried} trials");
}

/// Every file below a folder, with its size.
fn files(folder: &Path) -> BTreeSet<(String, u64)> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()));
        } else if entry.path().extension().is_none_or(|it| it != "redb") {
            found.insert((
                entry.path().display().to_string(),
                entry.metadata().unwrap().len(),
            ));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dkls23_rule__should_store_no_state_and_begin_at_phase_1_after_a_crash() {
    let bus = InterceptingBus::new();
    let mut test = TestCluster::start(bus.medium(), 2).await;
    test.until_live(2).await;
    let root = test.keygen(Curve::Secp256k1, 2).await;
    let before = files(&test.nodes[0].folder);
    // Phase 2 never arrives: both are in the middle of it.
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    bus.with(move |_, _, message| match protocol(message) {
        Some(header) if header.round == 2 => {
            told.send(header).unwrap();
            true
        }
        _ => false,
    });
    let order = test.order(&root);
    let session = SessionId::from_random(random_16(&SystemEntropy));
    let sign = |session, deadline_ms| {
        let (cluster, order, holders) = (Arc::clone(&test.cluster), order.clone(), test.holders());
        tokio::spawn(async move {
            cluster
                .sign(
                    &order,
                    task(Scheme::Dkls23, session, &holders, 2, deadline_ms),
                )
                .await
        })
    };
    let signing = sign(session, now_ms() + 1_500);
    let stuck = [heard.recv().await.unwrap(), heard.recv().await.unwrap()];
    assert_eq!(stuck[0].session, session);
    // What there is of the session is in memory only, beside the claim that it was begun.
    assert_eq!(files(&test.nodes[0].folder), before);
    test.kill_node(0).await;
    signing.await.unwrap().unwrap_err();
    bus.leave();
    test.start_node(0);
    test.cluster = start_cluster_on(test.medium.bus(), &test.orchestrator).await;
    test.until_live(2).await;
    assert_eq!(files(&test.nodes[0].folder), before);
    // The old session is over for good. A new one for the same digest begins anew.
    let again = test
        .cluster
        .sign(
            &order,
            task(
                Scheme::Dkls23,
                session,
                &test.holders(),
                2,
                now_ms() + 3_000,
            ),
        )
        .await;
    assert_eq!(again.unwrap_err().class(), &Class::WrongState);
    verify(&order, &test.sign(&order, 2, 20_000).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dkls23_rule__should_run_phases_off_the_async_threads() {
    let bus = InterceptingBus::new();
    let test = TestCluster::start(bus.medium(), 3).await;
    test.until_live(3).await;
    // A message is sent by the thread that computed it.
    let threads = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = Arc::clone(&threads);
    bus.with(move |_, _, message| {
        if protocol(message).is_some() {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            seen.lock().unwrap().insert(name);
        }
        false
    });
    let root = test.keygen(Curve::Secp256k1, 2).await;
    test.sign_well(&root, 2).await;
    let threads = threads.lock().unwrap();
    assert!(!threads.is_empty());
    assert!(
        threads.iter().all(|name| name.starts_with("covault-mpc-")),
        "{threads:?}"
    );
}
