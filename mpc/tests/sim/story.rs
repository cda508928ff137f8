//! One world from its beginning to its end: a cluster, bad weather, requests, a liar, and then calm.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use covault_core::{
    derive::RootKey,
    fault::Fault,
    ids::{RequestId, SessionId, VaultId},
    order::{KeygenOrder, NodeId, SigningOrder},
    port::{Clock as _, random_16},
    scheme::Scheme,
    signature::Signature,
};
use covault_mpc::{
    bus::{Address, Bus as _},
    cluster::{Cluster, ClusterConfig},
    envelope::{Header, Kind, Post},
    identity::NodeIdentity,
    node::{Node, NodeConfig, Rebuild},
    nonces::Marks,
    pool::CpuPool,
};
use secrecy::SecretString;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    byzantine::Byzantine,
    net::{Net, Port, Weather},
    oracle::Oracle,
    support::{raw_message, verify},
    world::{Dice, Life, SimClock, Trace, machine, ms},
};

const HEARTBEAT_MS: u64 = 1_000;
const LIVE_MS: u64 = 3 * HEARTBEAT_MS + 500;
/// What a call may take beyond its deadline: the nodes' last words, and one look.
const SLACK_MS: u64 = 1_000;
/// How long the honest nodes have, once everything works, to sign.
const CALM_MS: u64 = 60_000;

/// What may go wrong on purpose, to see that the oracle sees it.
#[derive(Clone, Copy, Default, PartialEq)]
pub enum Sabotage {
    #[default]
    None,
    /// Machines are snapshots: after each start the same randomness comes again.
    RepeatedRandomness,
    /// Each start finds the claims file as it was after key generation.
    RestoredClaims,
}

/// What kind of world.
#[derive(Clone, Copy)]
pub struct Setting {
    pub seed: u64,
    pub scheme: Scheme,
    pub verbose: bool,
    pub sabotage: Sabotage,
}

/// What came of a world.
#[derive(Default, Debug, Clone, PartialEq)]
pub struct Report {
    pub trace: [u8; 32],
    pub events: u64,
    pub signed: u64,
    pub faults: u64,
    pub crashes: u64,
    pub liars: u64,
    pub violations: Vec<String>,
}

/// The parts of a cluster in its world.
struct World {
    setting: Setting,
    clock: SimClock,
    dice: Arc<Dice>,
    trace: Arc<Trace>,
    net: Arc<Net>,
    oracle: Arc<Oracle>,
    identities: Vec<Arc<NodeIdentity>>,
    orchestrator: NodeId,
    byzantine: Option<(usize, Arc<Byzantine>)>,
    threshold: u16,
    vault: VaultId,
    nodes: Vec<SimNode>,
    folder: tempfile::TempDir,
    crashes: Mutex<u64>,
}

/// What of a node outlives its crashes.
struct SimNode {
    entropy: Mutex<Arc<Dice>>,
    skew_ms: i64,
    folder: PathBuf,
    disk_full: Arc<AtomicBool>,
    life: Mutex<Arc<Life>>,
    /// How long it stays down.
    down_ms: Mutex<u64>,
}

/// Runs a world on this thread until its end.
pub fn run(setting: Setting) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(story(setting))
}

/// Where folders cost no time; anywhere else without it.
fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = tempfile::tempdir_in(memory);
    made.unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

impl World {
    fn new(setting: Setting) -> Arc<Self> {
        let dice = Arc::new(Dice::new(setting.seed, 0));
        let clock = SimClock::start();
        let trace = Arc::new(Trace::new(clock, setting.verbose));
        let (threshold, count) = match dice.below(10) {
            0 => (2, 2),
            // ECDSA would make keys for a long time.
            1..=2 if setting.scheme == Scheme::FrostEd25519 => (3, 5),
            _ => (2, 3),
        };
        let identities: Vec<_> = (0..=count)
            .map(|_| Arc::new(NodeIdentity::generate(&*dice)))
            .collect();
        let ids: Vec<NodeId> = identities.iter().map(|identity| identity.id()).collect();
        let orchestrator = ids[0];
        // The others must be enough without it.
        let liar =
            (count > usize::from(threshold) && dice.chance(600)).then(|| 1 + dice.below(count));
        let byzantine = liar.map(|place| {
            let liar = Byzantine::new(Arc::clone(&dice), &identities[place], &identities);
            (place, liar)
        });
        let oracle = Arc::new(Oracle::new(
            orchestrator,
            &identities,
            liar.map(|place| ids[place]),
            setting.scheme == Scheme::FrostEd25519,
        ));
        let net = Net::new(
            &ids,
            Arc::clone(&dice),
            Arc::clone(&trace),
            Arc::clone(&oracle),
        );
        let folder = folder();
        let nodes = (1..=count)
            .map(|place| SimNode {
                entropy: Mutex::new(Arc::new(Dice::new(setting.seed, place as u64))),
                skew_ms: dice.between(0, 40_000) as i64 - 20_000,
                folder: folder.path().join(place.to_string()),
                disk_full: Arc::default(),
                life: Mutex::default(),
                down_ms: Mutex::new(0),
            })
            .collect();
        let vault = VaultId::from_random(random_16(&*dice));
        trace.note(format_args!("{threshold} of {count}, liar {liar:?}"));
        Arc::new(Self {
            setting,
            clock,
            dice,
            trace,
            net,
            oracle,
            orchestrator,
            byzantine,
            identities,
            threshold,
            vault,
            nodes,
            folder,
            crashes: Mutex::new(0),
        })
    }

    fn holders(&self) -> Vec<NodeId> {
        self.identities
            .iter()
            .skip(1)
            .map(|identity| identity.id())
            .collect()
    }

    fn node(&self, place: usize) -> &SimNode {
        &self.nodes[place - 1]
    }

    fn port(self: &Arc<Self>, place: usize, life: &Arc<Life>) -> Arc<Port> {
        let byzantine = self.byzantine.as_ref();
        Arc::new(Port {
            net: Arc::clone(&self.net),
            place,
            life: Arc::clone(life),
            byzantine: byzantine
                .filter(|(liar, _)| *liar == place)
                .map(|(_, byzantine)| Arc::clone(byzantine)),
        })
    }

    /// Starts a node from its folder, and again whenever it has ended.
    async fn live(self: Arc<Self>, place: usize) {
        let node = self.node(place);
        loop {
            let life = Arc::new(Life::default());
            *node.life.lock().unwrap() = Arc::clone(&life);
            if self.setting.sabotage == Sabotage::RepeatedRandomness {
                *node.entropy.lock().unwrap() =
                    Arc::new(Dice::new(self.setting.seed, place as u64));
            }
            let restored = node.folder.join("claims.kept");
            if self.setting.sabotage == Sabotage::RestoredClaims && restored.exists() {
                std::fs::copy(&restored, node.folder.join("claims.redb")).unwrap();
            }
            let config = NodeConfig {
                name: format!("node-{place}"),
                identity: Arc::clone(&self.identities[place]),
                bus: self.port(place, &life),
                clock: Arc::new(self.clock.skewed(node.skew_ms)),
                entropy: Arc::clone(&*node.entropy.lock().unwrap()) as _,
                pool: CpuPool::simulated(machine(&self.dice, &life, &node.disk_full)),
                folder: node.folder.clone(),
                passphrase: SecretString::from("a passphrase"),
                work_factor: 1,
                trusted: vec![self.orchestrator],
                peers: None,
                backup_recipients: Vec::new(),
                least_threshold: None,
                check: Arc::new(Rebuild),
                heartbeat: ms(HEARTBEAT_MS),
                nonces: Marks { low: 0, high: 0 },
            };
            let (_shutdown, receiver) = watch::channel(false);
            let mut task = tokio::spawn(Node::run(config, receiver));
            tokio::select! {
                biased;
                () = life.ended() => {
                    task.abort();
                    let _ = task.await;
                    self.trace.note(format_args!("{place} is down"));
                }
                ended = &mut task => {
                    // Its disk, or the file is still held by the life before.
                    let fault = ended.unwrap().err();
                    let fault = fault.map(|fault| fault.class().clone());
                    self.trace.note(format_args!("{place} has ended: {fault:?}"));
                }
            }
            life.end();
            *self.crashes.lock().unwrap() += 1;
            let down_ms = *node.down_ms.lock().unwrap();
            sleep(ms(down_ms.max(50))).await;
        }
    }

    /// A moment's weather.
    fn set_weather(&self, weather: Weather) {
        *self.net.weather.lock().unwrap() = weather;
    }

    fn calm(&self) {
        self.set_weather(Weather {
            delay_ms: 5,
            ..Weather::default()
        });
        for node in &self.nodes {
            node.disk_full.store(false, Ordering::Relaxed);
            *node.down_ms.lock().unwrap() = 50;
        }
    }

    fn storm(&self) -> Weather {
        let dice = &self.dice;
        // Some worlds are rough in one way only.
        let rate = |limit: u64| {
            if dice.chance(600) {
                dice.between(0, limit)
            } else {
                0
            }
        };
        Weather {
            drop: rate(150),
            repeat: rate(200),
            corrupt: rate(60),
            replay: rate(150),
            delay_ms: [5, 50, 300, 1_500][dice.below(4)],
            die: rate(15),
            cut: BTreeSet::new(),
        }
    }

    /// Crashes, partitions and full disks, until the weather calms.
    async fn chaos(self: Arc<Self>, until_ms: u64) {
        let count = self.nodes.len();
        while self.clock.age_ms() < until_ms {
            sleep(ms(self.dice.between(100, 3_000))).await;
            let place = 1 + self.dice.below(count);
            let other = self.dice.below(count + 1);
            let node = self.node(place);
            *node.down_ms.lock().unwrap() = self.dice.between(50, 4_000);
            match self.dice.below(8) {
                0..=2 => {
                    self.trace.note(format_args!("kill {place}"));
                    node.life.lock().unwrap().end();
                }
                3..=4 => {
                    self.trace.note(format_args!("cut {place} {other}"));
                    let mut weather = self.net.weather.lock().unwrap();
                    weather.cut.insert((place, other));
                    if self.dice.chance(700) {
                        weather.cut.insert((other, place));
                    }
                }
                5 => {
                    self.trace.note(format_args!("disk of {place} is full"));
                    node.disk_full.store(true, Ordering::Relaxed);
                }
                6 => node.disk_full.store(false, Ordering::Relaxed),
                _ => self.net.weather.lock().unwrap().cut.clear(),
            }
        }
    }

    fn order(&self, root: &RootKey, content: &[u8]) -> SigningOrder {
        let mut order = raw_message(self.vault, root, 3, content);
        order.request = RequestId::from_random(random_16(&*self.dice));
        order.issued_at_ms = self.clock.now_ms();
        order.expires_at_ms = order.issued_at_ms + 120_000;
        order
    }

    /// Signs, and sees that it ends in time.
    async fn sign(
        &self,
        cluster: &Cluster,
        order: &SigningOrder,
        patience_ms: u64,
    ) -> Result<Vec<Signature>, Fault> {
        let session = SessionId::from_random(random_16(&*self.dice));
        self.oracle.expect(session, order);
        let holders = self.holders();
        let deadline_ms = self.clock.now_ms() + patience_ms;
        let call = cluster.sign(order, session, &holders, self.threshold, deadline_ms);
        let outcome = timeout(ms(patience_ms + SLACK_MS), call).await;
        let Ok(outcome) = outcome else {
            let what = format!("request {} did not end in time", order.request);
            self.oracle.violation(what.clone());
            return Err(Fault::bug(what));
        };
        match &outcome {
            Ok(signatures) => {
                verify(order, signatures);
                self.oracle.signed(order, signatures);
                self.trace.note(format_args!("signed {}", order.request));
            }
            Err(fault) => {
                let class = fault.class();
                self.trace
                    .note(format_args!("not signed {}: {class:?}", order.request));
            }
        }
        outcome
    }

    async fn keygen(&self, cluster: &Cluster, patience_ms: u64) -> Option<RootKey> {
        let now_ms = self.clock.now_ms();
        let order = KeygenOrder {
            vault: self.vault,
            session: SessionId::from_random(random_16(&*self.dice)),
            scheme: self.setting.scheme,
            threshold: self.threshold,
            signers: self.holders(),
            issued_at_ms: now_ms,
            expires_at_ms: now_ms + patience_ms,
        };
        let outcome = timeout(ms(patience_ms + SLACK_MS), cluster.keygen(&order)).await;
        if outcome.is_err() {
            self.oracle
                .violation("a key generation did not end in time".into());
        }
        let root = outcome.ok()?.ok();
        self.trace.note(format_args!("keygen: {}", root.is_some()));
        root
    }

    /// Waits until nobody is taken for alive who is not, and all are.
    async fn until_live(&self, cluster: &Cluster) {
        sleep(ms(LIVE_MS + 500)).await;
        for _ in 0..600 {
            let live = cluster.nodes().iter().filter(|node| node.live).count();
            if live == self.nodes.len() {
                return;
            }
            sleep(ms(200)).await;
        }
        self.oracle.violation("nodes do not come back".into());
    }

    /// Somebody whose key no node pins orders a signature, in the orchestrator's words.
    async fn strange_order(self: Arc<Self>, root: RootKey) {
        let identity = Arc::new(NodeIdentity::generate(&*self.dice));
        let life = Arc::new(Life::default());
        let bus = Arc::new(Port {
            net: Arc::clone(&self.net),
            place: 0,
            life,
            byzantine: None,
        });
        let post = Post::new(identity, bus, Arc::clone(&self.dice) as _);
        let order = self.order(&root, b"all your coins");
        let signers: Vec<NodeId> = self
            .holders()
            .into_iter()
            .take(self.threshold.into())
            .collect();
        let session = SessionId::from_random(random_16(&*self.dice));
        let now_ms = self.clock.now_ms();
        let body = bcs::to_bytes(&(
            &order,
            session,
            &signers,
            Vec::<Vec<u64>>::new(),
            2_000_u64,
            now_ms,
        ))
        .unwrap();
        for to in &signers {
            let header = Header {
                kind: Kind::SigningOrder,
                sealed: true,
                epoch: 0,
                session,
                attempt: 0,
                round: 0,
                sequence: 0,
                from: *to,
                to: *to,
            };
            post.send(header, &body).unwrap();
        }
        // Noise, too.
        let noise = self.dice.bytes(300);
        let bus = self.port(0, &Arc::default());
        bus.publish(Address::Inbox(signers[0]), noise).unwrap();
    }

    /// A request; sometimes two for the same id, of which one at most may be signed.
    async fn request(self: Arc<Self>, cluster: Arc<Cluster>, root: RootKey) -> (u64, u64) {
        sleep(ms(self.dice.between(0, 12_000))).await;
        let content = self.dice.bytes(40);
        let order = self.order(&root, &content);
        let patience_ms = self.dice.between(500, 12_000);
        let rival = self.dice.chance(350).then(|| {
            let mut rival = self.order(&root, &[&content[..], b"!"].concat());
            rival.request = order.request;
            rival
        });
        let first = self.sign(&cluster, &order, patience_ms);
        let second = async {
            let rival = rival.as_ref()?;
            sleep(ms(self.dice.between(0, 4_000))).await;
            Some(self.sign(&cluster, rival, patience_ms).await)
        };
        let (first, second) = tokio::join!(biased; first, second);
        let outcomes = [Some(first), second];
        let signed = outcomes.iter().flatten().filter(|it| it.is_ok()).count() as u64;
        (signed, outcomes.iter().flatten().count() as u64 - signed)
    }
}

async fn story(setting: Setting) -> Report {
    let world = World::new(setting);
    let cluster = Cluster::start(ClusterConfig {
        identity: Arc::clone(&world.identities[0]),
        bus: world.port(0, &Arc::default()),
        clock: Arc::new(world.clock),
        entropy: Arc::new(Dice::new(setting.seed, 1_000)),
        live_for: ms(LIVE_MS),
        attempt: ms(2_000),
    })
    .await
    .unwrap();
    world.calm();
    let lives: Vec<JoinHandle<()>> = (1..=world.nodes.len())
        .map(|place| tokio::spawn(Arc::clone(&world).live(place)))
        .collect();
    world.until_live(&cluster).await;

    // Some keys are made in bad weather, or not made.
    let mut root = None;
    if world.dice.chance(400) {
        world.set_weather(world.storm());
        root = world.keygen(&cluster, 15_000).await;
        world.calm();
        world.until_live(&cluster).await;
    }
    let root = match root {
        Some(root) => root,
        None => match world.keygen(&cluster, 120_000).await {
            Some(root) => root,
            None => {
                world
                    .oracle
                    .violation("no key is made in good weather".into());
                return report(&world, (0, 0));
            }
        },
    };
    if setting.sabotage == Sabotage::RestoredClaims {
        for node in &world.nodes {
            let claims = node.folder.join("claims.redb");
            std::fs::copy(claims, node.folder.join("claims.kept")).unwrap();
        }
    }

    // The storm.
    if let Some((_, byzantine)) = &world.byzantine {
        byzantine.begin();
    }
    let weather = world.storm();
    world.set_weather(weather);
    let until_ms = world.clock.age_ms() + 15_000;
    let chaos = tokio::spawn(Arc::clone(&world).chaos(until_ms));
    let requests: Vec<_> = (0..world.dice.between(3, 7))
        .map(|_| {
            let (world, cluster) = (Arc::clone(&world), Arc::clone(&cluster));
            tokio::spawn(world.request(cluster, root.clone()))
        })
        .collect();
    let stranger = tokio::spawn(Arc::clone(&world).strange_order(root.clone()));
    let mut counts = (0, 0);
    for request in requests {
        let (signed, faults) = request.await.unwrap();
        counts = (counts.0 + signed, counts.1 + faults);
    }
    stranger.await.unwrap();
    chaos.await.unwrap();

    // The calm: whoever is honest signs, and the liar cannot stop them.
    world.calm();
    world.until_live(&cluster).await;
    let content = world.dice.bytes(40);
    let order = world.order(&root, &content);
    match world.sign(&cluster, &order, CALM_MS).await {
        Ok(_) => counts.0 += 1,
        Err(fault) => {
            let what = format!("no signature in good weather: {fault:?}");
            world.oracle.violation(what);
        }
    }
    for life in lives {
        if life.is_finished() {
            world.oracle.violation(format!("{:?}", life.await));
        }
    }
    report(&world, counts)
}

fn report(world: &World, (signed, faults): (u64, u64)) -> Report {
    let (trace, events) = world.trace.finish();
    // Held so long: the nodes' folders.
    assert!(world.folder.path().exists());
    Report {
        trace,
        events,
        signed,
        faults,
        crashes: *world.crashes.lock().unwrap(),
        liars: u64::from(world.byzantine.is_some()),
        violations: world.oracle.violations(),
    }
}
