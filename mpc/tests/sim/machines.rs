//! A world: its machines, their weather, and what goes wrong with them.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use covault_core::{
    ids::VaultId,
    order::{Generation, NodeId},
    port::random_16,
    scheme::Scheme,
    trace::Tracer,
    wallet::generation::ReshareTarget,
};
use covault_mpc::{
    identity::NodeIdentity,
    node::{
        CurrentPeers, KeygenQuota, NoResumeDetector, Node, NodeConfig, PinnedPeers, RebuildCheck,
    },
    pool::CpuPool,
    preprocess::Watermarks,
};
use secrecy::SecretString;
use tokio::{sync::watch, time::sleep};

use crate::{
    byzantine::Byzantine,
    net::{NetworkFaults, SimBus, SimNetwork},
    oracle::Oracle,
    people,
    story::{PreprocessMode, Sabotage, SimConfig},
    support::free,
    world::{ConstantEntropy, ProcessLife, SeededRng, SimClock, Trace, machine, ms},
};

const HEARTBEAT_MS: u64 = 1_000;
pub const LIVE_MS: u64 = 3 * HEARTBEAT_MS + 500;

/// What happened how often.
#[derive(Default)]
pub struct CrashCounts {
    /// Nodes that ended, for whatever reason.
    pub crashes: AtomicU64,
    /// Of these with the power.
    pub power_losses: AtomicU64,
    /// Of these in the middle of a transaction.
    pub torn: AtomicU64,
}

/// The parts of a cluster in its world.
pub struct SimWorld {
    pub setting: SimConfig,
    pub clock: SimClock,
    pub rng: Arc<SeededRng>,
    pub trace: Arc<Trace>,
    pub net: Arc<SimNetwork>,
    pub oracle: Arc<Oracle>,
    pub identities: Vec<Arc<NodeIdentity>>,
    /// The first is the orchestrator's.
    pub ids: Vec<NodeId>,
    pub byzantine: Option<(usize, Arc<Byzantine>)>,
    /// Who makes the key.
    pub first: Generation,
    pub vault: VaultId,
    /// The places of the nodes that work for a hostile orchestrator.
    pub hostile: Vec<usize>,
    /// How long nodes have to make new shares.
    pub reshare_ms: u64,
    pub nodes: Vec<SimNode>,
    pub folder: tempfile::TempDir,
    pub counts: CrashCounts,
    watermarks: Watermarks,
    stormy: AtomicBool,
}

/// What of a node outlives its crashes.
pub struct SimNode {
    entropy: Mutex<Arc<SeededRng>>,
    skew_ms: i64,
    pub folder: PathBuf,
    full: AtomicBool,
    life: Mutex<Arc<ProcessLife>>,
    /// How long it stays down.
    down_ms: AtomicU64,
}

impl SimNode {
    fn life(&self) -> Arc<ProcessLife> {
        Arc::clone(&self.life.lock().unwrap())
    }

    fn fill_disk(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
        self.life().disk.fill(full);
    }

    fn path(&self) -> PathBuf {
        self.folder.join("claims.redb")
    }

    fn kept(&self) -> PathBuf {
        self.folder.with_extension("kept")
    }

    /// An attacker keeps a copy of the folder.
    pub fn keep(&self) {
        copy(&self.folder, &self.kept());
    }
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

/// Where folders cost no time; anywhere else without it.
fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = tempfile::tempdir_in(memory);
    made.unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

impl SimWorld {
    pub fn new(setting: SimConfig) -> Arc<Self> {
        let rng = Arc::new(SeededRng::new(setting.seed, 0));
        let clock = SimClock::start();
        let trace = Arc::new(Trace::new(clock, setting.verbose));
        let (threshold, count) = match rng.below(10) {
            0 => (2, 2),
            // ECDSA would make keys for a long time.
            1..=2 if setting.scheme == Scheme::FrostEd25519 => (3, 5),
            _ => (2, 3),
        };
        // Some have a node more than hold shares at first.
        let spare = usize::from(rng.chance(400));
        // With a hostile orchestrator there are nodes that everybody pins and that hold nothing.
        let spare = if setting.hostile.is_some() { 2 } else { spare };
        let identities: Vec<_> = (0..=count + spare)
            .map(|_| Arc::new(NodeIdentity::generate(&*rng)))
            .collect();
        let ids: Vec<NodeId> = identities.iter().map(|identity| identity.id()).collect();
        // The others must be enough without it.
        let byzantine_index = (count > usize::from(threshold) && rng.chance(600))
            .then(|| 1 + rng.below(count + spare));
        let byzantine = byzantine_index.map(|place| {
            let byzantine = Byzantine::new(Arc::clone(&rng), &identities[place], &identities);
            (place, byzantine)
        });
        let oracle = Arc::new(Oracle::new(
            ids[0],
            &identities,
            byzantine_index.map(|place| ids[place]),
            setting.scheme == Scheme::FrostEd25519,
        ));
        let net = SimNetwork::new(
            &ids,
            Arc::clone(&rng),
            Arc::clone(&trace),
            Arc::clone(&oracle),
        );
        let pools = match setting.pools {
            PreprocessMode::Some => rng.chance(850),
            PreprocessMode::All => true,
        };
        let watermarks = match pools {
            true => Watermarks {
                low: rng.between(1, 4) as usize,
                high: rng.between(4, 8) as usize,
            },
            false => Watermarks { low: 0, high: 0 },
        };
        // How wrong clocks are: an order has to live longer.
        let skew_ms = [100, 3_000, 20_000][rng.below(3)];
        let folder = folder();
        let nodes = (1..=count + spare)
            .map(|place| SimNode {
                entropy: Mutex::new(Arc::new(SeededRng::new(setting.seed, place as u64))),
                skew_ms: rng.between(0, 2 * skew_ms) as i64 - skew_ms as i64,
                folder: folder.path().join(place.to_string()),
                full: AtomicBool::default(),
                life: Mutex::default(),
                down_ms: AtomicU64::default(),
            })
            .collect();
        let vault = VaultId::from_random(random_16(&*rng));
        let mut hostile = Vec::new();
        if setting.hostile.is_some() {
            let mut places: Vec<usize> = (1..=count + spare).collect();
            for _ in 0..rng.below(usize::from(threshold)) + usize::from(threshold) / 3 {
                hostile.push(places.swap_remove(rng.below(places.len())));
            }
            hostile.truncate(usize::from(threshold) - 1);
            // A key that needs all of its holders is lost by the silence of one.
            let mut lost = count - usize::from(threshold);
            hostile.retain(|place| {
                let fits = *place > count || lost > 0;
                lost -= usize::from(fits && *place <= count);
                fits
            });
        }
        trace.note(format_args!(
            "{threshold} of {count} and {spare}, byzantine node {byzantine_index:?}, {watermarks:?}"
        ));
        Arc::new(Self {
            setting,
            clock,
            rng,
            trace,
            net,
            oracle,
            byzantine,
            identities,
            first: Generation {
                epoch: 0,
                threshold,
                holders: ids[1..=count].to_vec(),
            },
            ids,
            vault,
            hostile,
            reshare_ms: skew_ms + 9_000,
            nodes,
            folder,
            counts: CrashCounts::default(),
            watermarks,
            stormy: AtomicBool::default(),
        })
    }

    pub fn byzantine(&self) -> Option<NodeId> {
        let (place, _) = self.byzantine.as_ref()?;
        Some(self.ids[*place])
    }

    /// How many of these follow the protocol.
    pub fn honest(&self, nodes: &[NodeId]) -> usize {
        let byzantine = self.byzantine();
        nodes
            .iter()
            .filter(|node| Some(**node) != byzantine)
            .count()
    }

    fn node(&self, place: usize) -> &SimNode {
        &self.nodes[place - 1]
    }

    pub fn port(self: &Arc<Self>, place: usize, life: &Arc<ProcessLife>) -> Arc<SimBus> {
        let byzantine = self.byzantine.as_ref();
        Arc::new(SimBus {
            net: Arc::clone(&self.net),
            place,
            life: Arc::clone(life),
            byzantine: byzantine
                .filter(|(byzantine, _)| *byzantine == place)
                .map(|(_, byzantine)| Arc::clone(byzantine)),
        })
    }

    fn config(self: &Arc<Self>, place: usize, life: &Arc<ProcessLife>) -> NodeConfig {
        let node = self.node(place);
        let hedged = self.setting.sabotage != Sabotage::RepeatedRandomness;
        let hedging = hedged.then_some([place as u8; 32]);
        NodeConfig {
            approval_relay: None,
            tracer: Tracer::default(),
            client: None,
            keygen_quota: KeygenQuota::default(),
            name: format!("node-{place}"),
            identity: Arc::clone(&self.identities[place]),
            bus: self.port(place, life),
            clock: Arc::new(self.clock.skewed(node.skew_ms)),
            entropy: match self.setting.sabotage.stuck() {
                true => Arc::new(ConstantEntropy(7)),
                false => Arc::clone(&*node.entropy.lock().unwrap()) as _,
            },
            pool: CpuPool::simulated(machine(&self.rng, life, hedging, self.setting.unguarded)),
            folder: node.folder.clone(),
            passphrase: SecretString::from("a passphrase"),
            work_factor: 1,
            trusted: vec![self.ids[0]],
            // Without them a key stays among its holders.
            peers: Arc::new(CurrentPeers::new(PinnedPeers {
                all: Some(self.ids[1..].iter().copied().collect()),
                ..PinnedPeers::default()
            })),
            backup_recipients: Vec::new(),
            // Thresholds go up and down.
            rules: match self.setting.hostile {
                Some(planted) if !self.hostile.contains(&place) => planted.rules(),
                _ => free(),
            },
            check: match self.setting.people {
                Some(planted) if self.ids.get(place).copied() != self.byzantine() => {
                    Arc::new(people::check(self.setting.seed, place, planted))
                }
                _ => Arc::new(RebuildCheck),
            },
            heartbeat: ms(HEARTBEAT_MS),
            nonces: self.watermarks,
            resumption: Arc::new(NoResumeDetector),
        }
    }

    /// Starts a node from its folder, and again whenever it has ended.
    pub async fn live(self: Arc<Self>, place: usize) {
        let node = self.node(place);
        let sabotage = self.setting.sabotage;
        loop {
            let life = Arc::new(ProcessLife::default());
            *node.life.lock().unwrap() = Arc::clone(&life);
            life.disk.fill(node.full.load(Ordering::Relaxed));
            self.watch_disk(place, &life);
            if sabotage == Sabotage::LyingDisks {
                life.disk.lie();
            }
            if sabotage == Sabotage::RepeatedRandomness {
                *node.entropy.lock().unwrap() =
                    Arc::new(SeededRng::new(self.setting.seed, place as u64));
            }
            if sabotage.restores() && node.kept().exists() {
                std::fs::remove_dir_all(&node.folder).unwrap();
                copy(&node.kept(), &node.folder);
            }
            let (_shutdown, receiver) = watch::channel(false);
            let mut task = tokio::spawn(Node::run(self.config(place, &life), receiver));
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
            self.counts.crashes.fetch_add(1, Ordering::Relaxed);
            if life.power_failed() {
                self.power_failed(place, &life);
            }
            sleep(ms(node.down_ms.load(Ordering::Relaxed).max(50))).await;
        }
    }

    /// The power also fails in the middle of a transaction.
    fn watch_disk(self: &Arc<Self>, place: usize, life: &Arc<ProcessLife>) {
        // Of its own: how often a disk syncs is the database's business.
        let rng = SeededRng::new(self.rng.between(0, u64::MAX), 79);
        let (world, life_of) = (Arc::downgrade(self), Arc::downgrade(life));
        life.disk.watch(Box::new(move || {
            let (Some(world), Some(life)) = (world.upgrade(), life_of.upgrade()) else {
                return;
            };
            let rate = world.net.network_faults.lock().unwrap().die;
            if life.alive() && rng.chance(rate / 2) {
                world
                    .trace
                    .note(format_args!("power off {place}, while it writes"));
                life.lose_power();
            }
        }));
    }

    /// Some of what was not synced has reached the disk, in whatever order.
    fn power_failed(&self, place: usize, life: &ProcessLife) {
        // Of its own, as above.
        let rng = SeededRng::new(self.rng.between(0, u64::MAX), 78);
        let rate = match self.setting.sabotage {
            Sabotage::LyingDisks => 0,
            _ => [0, 300, 700, 1_000][rng.below(4)],
        };
        let path = self.node(place).path();
        let torn = life.disk.lose_power(&path, || rng.chance(rate)).unwrap();
        self.trace
            .note(format_args!("{place} has lost what it wrote: {torn}"));
        self.counts.power_losses.fetch_add(1, Ordering::Relaxed);
        self.counts.torn.fetch_add(torn.into(), Ordering::Relaxed);
    }

    /// A moment's weather.
    pub fn set_weather(&self, network_faults: NetworkFaults) {
        self.stormy.store(true, Ordering::Relaxed);
        *self.net.network_faults.lock().unwrap() = network_faults;
    }

    pub fn calm(&self) {
        self.set_weather(NetworkFaults {
            delay_ms: 5,
            ..NetworkFaults::default()
        });
        self.stormy.store(false, Ordering::Relaxed);
        for node in &self.nodes {
            node.fill_disk(false);
            node.down_ms.store(50, Ordering::Relaxed);
        }
    }

    pub fn stormy(&self) -> bool {
        self.stormy.load(Ordering::Relaxed)
    }

    pub fn storm(&self) -> NetworkFaults {
        let rng = &self.rng;
        // Some worlds are rough in one way only.
        let rate = |limit: u64| {
            if rng.chance(600) {
                rng.between(0, limit)
            } else {
                0
            }
        };
        NetworkFaults {
            drop: rate(150),
            repeat: rate(200),
            corrupt: rate(60),
            replay: rate(150),
            delay_ms: [5, 50, 300, 1_500][rng.below(4)],
            die: rate(15),
            cut: BTreeSet::new(),
        }
    }

    pub fn kill(&self, place: usize) {
        self.node(place).life().end();
    }

    /// All nodes at once.
    pub fn kill_all(&self) {
        self.nodes.iter().for_each(|node| node.life().end());
    }

    /// Crashes, power cuts, partitions and full disks, until the weather calms.
    pub async fn chaos(self: Arc<Self>, until_ms: u64) {
        let count = self.nodes.len();
        while self.clock.age_ms() < until_ms {
            sleep(ms(self.rng.between(100, 3_000))).await;
            let place = 1 + self.rng.below(count);
            let other = self.rng.below(count + 1);
            let node = self.node(place);
            let down_ms = self.rng.between(50, 4_000);
            node.down_ms.store(down_ms, Ordering::Relaxed);
            match self.rng.below(8) {
                0 => {
                    self.trace.note(format_args!("power off {place}"));
                    node.life().lose_power();
                }
                1..=2 => {
                    self.trace.note(format_args!("kill {place}"));
                    node.life().end();
                }
                3..=4 => {
                    self.trace.note(format_args!("cut {place} {other}"));
                    let mut network_faults = self.net.network_faults.lock().unwrap();
                    network_faults.cut.insert((place, other));
                    if self.rng.chance(700) {
                        network_faults.cut.insert((other, place));
                    }
                }
                5 => {
                    self.trace.note(format_args!("disk of {place} is full"));
                    node.fill_disk(true);
                }
                6 => node.fill_disk(false),
                _ => self.net.network_faults.lock().unwrap().cut.clear(),
            }
        }
    }

    /// Who could hold the next shares. Always so many are honest that they can sign alone.
    pub fn some_target(&self, now: &Generation) -> ReshareTarget {
        if self.rng.chance(400) {
            // A refresh.
            return ReshareTarget {
                threshold: now.threshold,
                holders: now.holders.clone(),
                lost: Vec::new(),
            };
        }
        let mut all = self.ids[1..].to_vec();
        let mut holders = Vec::new();
        let count = 2 + self.rng.below(all.len() - 1);
        while holders.len() < count || self.honest(&holders) < 2 {
            holders.push(all.swap_remove(self.rng.below(all.len())));
        }
        let most = self.honest(&holders);
        let threshold = 2 + self.rng.below(most - 1);
        // A node may have lost its share, or an operator believes so.
        let lost = now.holders[self.rng.below(now.holders.len())];
        let others: Vec<NodeId> = now
            .holders
            .iter()
            .copied()
            .filter(|node| *node != lost)
            .collect();
        let enough = self.honest(&others) >= usize::from(now.threshold);
        ReshareTarget {
            threshold: threshold as u16,
            holders,
            lost: if enough && self.rng.chance(200) {
                vec![lost]
            } else {
                Vec::new()
            },
        }
    }

    /// Without the byzantine node, which an operator knows by now.
    pub fn safe_target(&self, now: &Generation) -> ReshareTarget {
        let byzantine = self.byzantine();
        let mut holders = self.ids[1..].to_vec();
        holders.retain(|node| Some(*node) != byzantine);
        while holders.len() > 2 && self.rng.chance(300) {
            holders.swap_remove(self.rng.below(holders.len()));
        }
        let threshold = 2 + self.rng.below(holders.len() - 1);
        ReshareTarget {
            threshold: threshold as u16,
            holders,
            lost: byzantine
                .into_iter()
                .filter(|byzantine| now.holders.contains(byzantine))
                .collect(),
        }
    }
}
