//! What a hostile bus, peer or stranger can send: each is refused, and the log names why. On memory
//! and on Redis.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::support::{
    SystemEntropy, TestBus, TestCluster, log::LogCapture, now_ms, redis_server::RedisServer, verify,
};
use covault_core::{
    derive::RootKey,
    ids::SessionId,
    order::{KeygenOrder, NodeId},
    port::random_16,
    scheme::Scheme,
    signature::Curve,
};
use covault_mpc::{
    backend::{self, Abort, KeyShare, KeygenSetup, OutgoingMessage, Session, SignerIndex},
    bus::{
        Bus, BusAddress, BusError, MAX_MESSAGE, double::BusDouble, memory::MemoryBus,
        redis::RedisBus,
    },
    envelope::{EVERYONE, Envelope, EnvelopeCodec, EnvelopeHeader, EnvelopeKind},
    identity::NodeIdentity,
    node::RebuildCheck,
    preprocess::Watermarks,
};
use tokio::{
    task::JoinHandle,
    time::{interval, sleep, timeout},
};
use tracing_subscriber::filter::LevelFilter;

type Tape = Vec<(BusAddress, Vec<u8>)>;

/// Keeps a copy of what is sent, and sends it in another order when told to.
struct ReorderingBus {
    bus: Arc<dyn Bus>,
    tape: Mutex<Tape>,
    held: Mutex<Option<Tape>>,
}

impl ReorderingBus {
    fn on(bus: Arc<dyn Bus>) -> Arc<Self> {
        Arc::new(Self {
            bus,
            tape: Mutex::default(),
            held: Mutex::default(),
        })
    }

    /// From now on messages wait a moment, and the last sent goes first.
    fn reverse(self: &Arc<Self>) -> JoinHandle<()> {
        *self.held.lock().unwrap() = Some(Vec::new());
        let tap = Arc::clone(self);
        tokio::spawn(async move {
            let mut tick = interval(Duration::from_millis(30));
            loop {
                tick.tick().await;
                let held = tap.held.lock().unwrap().replace(Vec::new());
                for (to, message) in held.unwrap_or_default().into_iter().rev() {
                    tap.bus.publish(to, message).unwrap();
                }
            }
        })
    }

    /// The last message of this kind to this node.
    fn last(&self, kind: EnvelopeKind, to: NodeId) -> Vec<u8> {
        let tape = self.tape.lock().unwrap();
        let of_kind = |message: &&(BusAddress, Vec<u8>)| {
            let header = Envelope::parse(message.1.clone()).unwrap().header;
            header.kind == kind && header.to == to
        };
        tape.iter().rev().find(of_kind).unwrap().1.clone()
    }
}

impl BusDouble for ReorderingBus {
    fn inner(&self) -> &dyn Bus {
        &*self.bus
    }

    fn publish(&self, to: BusAddress, message: Vec<u8>) -> Result<(), BusError> {
        self.tape.lock().unwrap().push((to, message.clone()));
        if let Some(held) = &mut *self.held.lock().unwrap() {
            held.push((to, message));
            return Ok(());
        }
        self.bus.publish(to, message)
    }
}

fn header(kind: EnvelopeKind, to: NodeId) -> EnvelopeHeader {
    EnvelopeHeader {
        kind,
        sealed: false,
        epoch: 0,
        session: SessionId::from_random(random_16(&SystemEntropy)),
        attempt: 0,
        round: u16::from(kind == EnvelopeKind::Protocol),
        sequence: 0,
        from: to,
        to,
    }
}

/// A cluster of three on a tapped bus, with an Ed25519 key.
async fn tapped(bus: Arc<dyn Bus>) -> (Arc<ReorderingBus>, TestCluster, RootKey) {
    let tap = ReorderingBus::on(bus);
    let medium = TestBus::Other(Arc::clone(&tap) as Arc<dyn Bus>);
    // Nothing made ahead: a replay would be refused for its used nonces, before its session.
    let none = Watermarks { low: 0, high: 0 };
    let test = TestCluster::start_pooled(medium, 3, Arc::new(RebuildCheck), none).await;
    test.until_live(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    (tap, test, root)
}

fn redis() -> (RedisServer, Arc<dyn Bus>) {
    let server = RedisServer::start();
    let bus = RedisBus::connect(&server.url(), "test").unwrap();
    (server, bus)
}

/// Where the sender stands in an envelope, after version, kind, seal, epoch, session, attempt, round
/// and sequence.
const FROM: std::ops::Range<usize> = 34..66;

async fn forgeries_are_refused(bus: Arc<dyn Bus>) {
    let log = LogCapture::start(LevelFilter::INFO);
    let (tap, mut test, root) = tapped(bus).await;
    test.sign_well(&root, 2).await;
    let victim = test.nodes[0].identity.id();
    let inbox = BusAddress::Inbox(victim);
    let publish = |message: &[u8]| tap.bus.publish(inbox, message.to_vec()).unwrap();
    let order = tap.last(EnvelopeKind::KeygenOrder, victim);

    // Truncation, in the header and in the body.
    log.until("malformed envelope", || publish(&order[..100]))
        .await;
    let wrong = "the envelope's signature is wrong";
    let cut = log
        .until(wrong, || publish(&order[..order.len() - 1]))
        .await;
    assert!(cut.contains("message refused"), "{cut}");

    // A wrong sender: the stranger signs in a pinned name.
    let stranger = Arc::new(NodeIdentity::generate(&SystemEntropy));
    let outbox = ReorderingBus::on(MemoryBus::new());
    let codec = EnvelopeCodec::new(
        Arc::clone(&stranger),
        Arc::clone(&outbox) as _,
        Arc::new(SystemEntropy),
    );
    codec
        .send(header(EnvelopeKind::SigningOrder, victim), b"order")
        .unwrap();
    let mut forged = outbox.last(EnvelopeKind::SigningOrder, victim);
    assert_eq!(forged[FROM], stranger.id().0);
    log.until("order ignored", || publish(&forged)).await;
    forged[FROM].copy_from_slice(&test.orchestrator.id().0);
    // Said once a second for all of its kind: until it is this one's turn.
    let pinned = test.orchestrator.openssh_line("");
    let named = timeout(Duration::from_secs(60), async {
        while !log.lines(wrong).iter().any(|line| line.contains(&pinned)) {
            publish(&forged);
            sleep(Duration::from_millis(50)).await;
        }
    });
    named.await.expect("who is spoken for is named");

    // A wrong recipient.
    let other = tap.last(EnvelopeKind::KeygenOrder, test.nodes[1].identity.id());
    log.until("the envelope is for another node", || publish(&other))
        .await;

    // A replay: the session was run, and stays so after a restart.
    let replayed = tap.last(EnvelopeKind::SigningOrder, {
        let order = test.order(&root);
        verify(&order, &test.sign(&order, 2, 60_000).await.unwrap());
        let tape = tap.tape.lock().unwrap();
        let headers = tape
            .iter()
            .rev()
            .map(|(_, message)| Envelope::parse(message.clone()).unwrap().header);
        headers
            .into_iter()
            .find(|it| it.kind == EnvelopeKind::SigningOrder)
            .unwrap()
            .to
    });
    let to = Envelope::parse(replayed.clone()).unwrap().header.to;
    let place = test
        .holders()
        .iter()
        .position(|holder| *holder == to)
        .unwrap();
    test.stop_node(place).await;
    test.start_node(place);
    test.until_live(3).await;
    log.until("this session was run before", || {
        tap.bus
            .publish(BusAddress::Inbox(to), replayed.clone())
            .unwrap();
    })
    .await;

    // Nothing of it has harmed anybody.
    test.sign_well(&root, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgeries__should_be_refused_and_named_on_memory() {
    forgeries_are_refused(MemoryBus::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgeries__should_be_refused_and_named_on_redis() {
    let (_server, bus) = redis();
    forgeries_are_refused(bus).await;
}

/// A pinned peer with its share's identity, that answers orders as it likes.
async fn impostor(
    bus: Arc<dyn Bus>,
    identity: &Arc<NodeIdentity>,
    answer: impl Fn(&EnvelopeCodec, EnvelopeHeader) + Send + 'static,
) -> JoinHandle<()> {
    let codec = EnvelopeCodec::new(
        Arc::clone(identity),
        Arc::clone(&bus),
        Arc::new(SystemEntropy),
    );
    let mut inbox = bus.subscribe(codec.id(), false).await.unwrap();
    tokio::spawn(async move {
        let mut heartbeat = interval(Duration::from_millis(200));
        loop {
            tokio::select! {
                _ = heartbeat.tick() => {
                    let body = crate::support::announcement("impostor", crate::support::now_ms());
                    codec.send(header(EnvelopeKind::Announcement, EVERYONE), &body).unwrap();
                }
                message = inbox.next() => {
                    let Ok(envelope) = Envelope::parse(message.unwrap()) else { continue };
                    if envelope.header.kind == EnvelopeKind::SigningOrder {
                        answer(&codec, envelope.header);
                    }
                }
            }
        }
    })
}

async fn byzantine_nodes_are_refused(bus: Arc<dyn Bus>) {
    let log = LogCapture::start(LevelFilter::INFO);
    let (tap, mut test, root) = tapped(bus).await;
    test.stop_node(2).await;
    test.until_live(2).await;
    let others = [0, 1].map(|place| test.nodes[place].identity.id());
    let byzantine = Arc::clone(&test.nodes[2].identity);
    let task = impostor(Arc::clone(&tap) as _, &byzantine, move |codec, order| {
        for to in others {
            let place = EnvelopeHeader {
                kind: EnvelopeKind::Protocol,
                sealed: false,
                round: 1,
                to,
                ..order
            };
            // Of another epoch; then two faces for a slot that is read later.
            let (epoch, round) = (order.epoch + 1, 2);
            let say = |header, body: &[u8]| codec.send(header, body).unwrap();
            say(EnvelopeHeader { epoch, ..place }, b"of tomorrow");
            say(EnvelopeHeader { round, ..place }, &[1; 64]);
            say(EnvelopeHeader { round, ..place }, &[2; 64]);
        }
    })
    .await;
    test.until_live(3).await;
    // As a sender, and as a culprit.
    let named = [byzantine.openssh_line(""), format!("{:?}", byzantine.id())];
    let expected = [
        "the message is of another epoch than the session",
        "two different messages for round 2",
        "the sender is not in the session",
    ];
    let own = EnvelopeCodec::new(
        Arc::clone(&byzantine),
        Arc::clone(&tap) as _,
        Arc::new(SystemEntropy),
    );
    timeout(Duration::from_secs(120), async {
        loop {
            // A cluster client that has just started begins with the same pair each time: every pair gets its
            // turn.
            for _ in 0..3 {
                test.sign_well(&root, 2).await;
            }
            // The two have signed without it, in a session that it can see on the bus.
            let theirs = Envelope::parse(tap.last(EnvelopeKind::Protocol, others[0])).unwrap();
            if theirs.header.from == others[1] {
                own.send(theirs.header, b"of somebody else").unwrap();
            }
            let said = |text: &&str| {
                let lines = log.lines(text);
                lines
                    .iter()
                    .any(|line| named.iter().any(|name| line.contains(name)))
            };
            if expected.iter().all(said) {
                return;
            }
            // the byzantine node is asked last for a while: the memory of it has to go.
            let orchestrator = &test.orchestrator;
            test.cluster = crate::support::start_cluster(&test.medium, orchestrator).await;
            test.until_live(3).await;
        }
    })
    .await
    .expect("every lie is named");
    task.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn byzantine_nodes__should_be_refused_and_named_on_memory() {
    byzantine_nodes_are_refused(MemoryBus::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn byzantine_nodes__should_be_refused_and_named_on_redis() {
    let (_server, bus) = redis();
    byzantine_nodes_are_refused(bus).await;
}

async fn reordering_does_no_harm(bus: Arc<dyn Bus>) {
    let (tap, test, root) = tapped(bus).await;
    let task = tap.reverse();
    for _ in 0..5 {
        test.sign_well(&root, 2).await;
    }
    let root = test.keygen(Curve::Ed25519, 3).await;
    test.sign_well(&root, 3).await;
    task.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reordering__should_do_no_harm_on_memory() {
    reordering_does_no_harm(MemoryBus::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reordering__should_do_no_harm_on_redis() {
    let (_server, bus) = redis();
    reordering_does_no_harm(bus).await;
}

/// Sends 25 MB to each victim, again and again.
fn flood(bus: &Arc<dyn Bus>, identity: Arc<NodeIdentity>, victims: &[NodeId]) -> JoinHandle<()> {
    let outbox = ReorderingBus::on(MemoryBus::new());
    let codec = EnvelopeCodec::new(identity, Arc::clone(&outbox) as _, Arc::new(SystemEntropy));
    let body = vec![7; 50_000];
    for _ in 0..500 {
        for to in victims {
            codec
                .send(header(EnvelopeKind::Protocol, *to), &body)
                .unwrap();
        }
    }
    let messages = std::mem::take(&mut *outbox.tape.lock().unwrap());
    let bus = Arc::clone(bus);
    tokio::spawn(async move {
        loop {
            for (to, message) in &messages {
                // The bus has a limit of its own.
                let _ = bus.publish(*to, message.clone());
            }
            sleep(Duration::from_secs(1)).await;
        }
    })
}

async fn floods_hit_the_flooder(bus: Arc<dyn Bus>) {
    let log = LogCapture::start(LevelFilter::INFO);
    let (tap, mut test, root) = tapped(bus).await;
    test.stop_node(2).await;
    test.until_live(2).await;
    // A holder of a share, and a stranger.
    let flooders = [
        Arc::clone(&test.nodes[2].identity),
        Arc::new(NodeIdentity::generate(&SystemEntropy)),
    ];
    let names = [0, 1].map(|place| flooders[place].openssh_line(""));
    let victims = [0, 1].map(|place| test.nodes[place].identity.id());
    let mut tasks = Vec::new();
    for (identity, name) in flooders.into_iter().zip(&names) {
        tasks.push(flood(&tap.bus, identity, &victims));
        // The stranger is no peer: none of its messages is kept at all.
        let flood = |line: &String| {
            line.contains(name) && (line.contains("flood") || line.contains("is not a peer"))
        };
        timeout(Duration::from_secs(60), async {
            while !log.lines("message refused").iter().any(flood) {
                sleep(Duration::from_millis(100)).await;
            }
        })
        .await
        .unwrap_or_else(|_| panic!("{name} is not named"));
        // The next one is to have the log for itself.
        if tasks.len() == 1 {
            tasks[0].abort();
        }
    }
    // Two honest nodes still sign.
    for _ in 0..3 {
        test.sign_well(&root, 2).await;
    }
    for task in tasks {
        task.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods__should_hit_the_flooder_on_memory() {
    floods_hit_the_flooder(MemoryBus::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods__should_hit_the_flooder_on_redis() {
    let (_server, bus) = redis();
    floods_hit_the_flooder(bus).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis__should_hold_nothing_some_time_after_the_last_message() {
    let server = RedisServer::start();
    let expire = Duration::from_secs(3);
    let bus = RedisBus::connect_for(&server.url(), "test", expire).unwrap();
    let (_, mut test, root) = tapped(bus).await;
    let ecdsa = test.keygen(Curve::Secp256k1, 2).await;
    test.sign_well(&root, 2).await;
    test.sign_well(&ecdsa, 2).await;
    let client = redis::Client::open(server.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let keys = || {
        let mut connection = connection.clone();
        async move {
            let query = redis::cmd("KEYS").arg("*").clone();
            let keys: Vec<String> = query.query_async(&mut connection).await.unwrap();
            keys
        }
    };
    let found = keys().await;
    assert!(found.len() >= 4, "{found:?}");
    for key in found {
        let query = redis::cmd("PTTL").arg(&key).clone();
        let left: i64 = query.query_async(&mut connection.clone()).await.unwrap();
        // -2: it has gone in the meantime; -1 would be for ever.
        assert!(left == -2 || (0..=3_000).contains(&left), "{key}: {left}");
    }
    for place in 0..3 {
        test.stop_node(place).await;
    }
    timeout(Duration::from_secs(30), async {
        while !keys().await.is_empty() {
            sleep(Duration::from_millis(100)).await;
        }
    })
    .await
    .expect("all keys expire");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis__should_not_let_its_queue_outgrow_the_memory() {
    let mut server = RedisServer::start();
    server.stop();
    let bus = RedisBus::connect(&server.url(), "test").unwrap();
    let to = BusAddress::Inbox(NodeId([1; 32]));
    // Nothing can be sent: 16 messages of 4 MiB are all it keeps.
    let taken = (0..100)
        .take_while(|_| bus.publish(to, vec![0; MAX_MESSAGE]).is_ok())
        .count();
    assert!((16..=17).contains(&taken), "{taken}");
}

/// A way to a server on which its answers take their time; its URL.
async fn slow_way_to(server: &RedisServer, bytes_a_second: usize) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let to = server.url().replace("redis://", "");
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            let server = tokio::net::TcpStream::connect(&to).await.unwrap();
            let (mut asked, mut answered) = client.into_split();
            let (mut answers, mut asks) = server.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut asked, &mut asks).await });
            tokio::spawn(async move {
                let mut piece = vec![0; 64 << 10];
                while let Ok(count @ 1..) = answers.read(&mut piece).await {
                    if answered.write_all(&piece[..count]).await.is_err() {
                        break;
                    }
                    let took = count as f64 / bytes_a_second as f64;
                    sleep(Duration::from_secs_f64(took)).await;
                }
            });
        }
    });
    url
}

/// More than the line carries in the time that a read has: in one piece it would never arrive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis__should_read_a_large_backlog_over_a_slow_line() {
    const COUNT: u8 = 14;
    let server = RedisServer::start();
    let me = NodeId([1; 32]);
    let far = RedisBus::connect(&slow_way_to(&server, 8 << 20).await, "test").unwrap();
    let mut inbox = far.subscribe(me, false).await.unwrap();
    let near = RedisBus::connect(&server.url(), "test").unwrap();
    for number in 0..COUNT {
        let message = vec![number; MAX_MESSAGE];
        while near
            .publish(BusAddress::Inbox(me), message.clone())
            .is_err()
        {
            sleep(Duration::from_millis(50)).await;
        }
    }
    for number in 0..COUNT {
        let message = timeout(Duration::from_secs(60), inbox.next()).await;
        assert_eq!(message.unwrap().unwrap()[0], number);
    }
}

/// The messages of ECDSA key generation grow with the number of nodes. `COVAULT_LARGE=1` makes it
/// 5 of 9 instead of 3 of 4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis__should_carry_the_largest_key_generation() {
    #[allow(clippy::disallowed_methods)]
    let large = std::env::var_os("COVAULT_LARGE").is_some();
    let (threshold, count) = if large { (5, 9) } else { (3, 4) };
    let test = TestCluster::start(TestBus::redis(), count).await;
    test.until_live(count).await;
    let order = KeygenOrder {
        expires_at_ms: now_ms() + 590_000,
        ..test.keygen_order(Curve::Secp256k1, threshold)
    };
    let root = test.cluster.keygen(&order).await.unwrap().root;
    test.sign_well(&root, threshold).await;
}

type Parties = BTreeMap<(SignerIndex, bool), Box<dyn Session<KeyShare>>>;

/// Makes a key of three in which party 2 shows party 3, in one round, what it says in another run of
/// itself: as valid as the truth. Gives the outcomes of the honest two.
fn two_faced_keygen(scheme: Scheme, round: u16) -> Vec<Option<Result<KeyShare, Abort>>> {
    let session = |me| {
        let setup = KeygenSetup {
            context: [4; 32],
            me,
            threshold: 2,
            parties: 3,
        };
        backend::of(scheme).unwrap().keygen(setup).unwrap()
    };
    // The second of party 2 is its other face.
    let mut parties: Parties = [(1, false), (2, false), (2, true), (3, false)]
        .into_iter()
        .map(|who| (who, session(who.0)))
        .collect();
    let mut queue: VecDeque<((SignerIndex, bool), OutgoingMessage)> = VecDeque::new();
    for (who, party) in &mut parties {
        let output = party.start(&SystemEntropy).unwrap();
        queue.extend(output.send.into_iter().map(|message| (*who, message)));
    }
    let mut outcomes: BTreeMap<(SignerIndex, bool), Result<KeyShare, Abort>> = BTreeMap::new();
    while let Some((from, mut message)) = queue.pop_front() {
        if (from, message.to, message.round) == ((2, false), 3, round) && round == 4 {
            // The hash of the comparison itself: another one is enough.
            message.body[0] ^= 1;
        }
        let to: Vec<(SignerIndex, bool)> = match (from, message.to) {
            ((2, false), 3) if message.round == round && round < 4 => continue,
            ((2, true), 3) if message.round == round && round < 4 => vec![(3, false)],
            ((2, true), _) => continue,
            // Both faces hear what is said to party 2.
            (_, 2) => vec![(2, false), (2, true)],
            (_, to) => vec![(to, false)],
        };
        for to in to {
            if outcomes.contains_key(&to) {
                continue;
            }
            let party = parties.get_mut(&to).unwrap();
            match party.receive(from.0, message.round, message.body.clone()) {
                Ok(output) => {
                    queue.extend(output.send.into_iter().map(|message| (to, message)));
                    if let Some(share) = output.done {
                        outcomes.insert(to, Ok(share));
                    }
                }
                Err(abort) => {
                    outcomes.insert(to, Err(abort));
                }
            }
        }
    }
    [1, 3].map(|me| outcomes.remove(&(me, false))).into()
}

#[test]
fn keygen__should_give_nobody_a_key_when_a_party_shows_two_faces() {
    // The rounds of each protocol in which everybody is to hear the same.
    for (scheme, rounds) in [
        (Scheme::FrostEd25519, [1, 2, 4].as_slice()),
        (Scheme::Dkls23, &[2, 3, 4]),
    ] {
        for round in rounds {
            let outcomes = two_faced_keygen(scheme, *round);
            let made = |it: &&Option<Result<KeyShare, Abort>>| matches!(it, Some(Ok(_)));
            let aborted = |it: &Option<Result<KeyShare, Abort>>| matches!(it, Some(Err(_)));
            // Round 4 is the comparison itself: what party 1 has heard in it is the truth.
            let allowed = usize::from(*round == 4);
            let made = outcomes.iter().filter(made).count();
            assert!(made <= allowed, "{scheme:?} {round}");
            assert!(outcomes.iter().any(aborted), "{scheme:?} {round}");
        }
    }
}
