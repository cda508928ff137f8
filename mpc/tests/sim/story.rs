//! One world from its beginning to its end: a cluster, bad weather, requests, new generations of
//! shares, a byzantine node, and then calm.

use std::sync::{Arc, atomic::Ordering};

use covault_core::{
    attest::MadeKey,
    derive::RootKey,
    order::Generation,
    port::Clock as _,
    scheme::Scheme,
    wallet::generation::{ReshareState, ReshareTarget},
};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    hostile::DisabledCheck,
    machines::{LIVE_MS, SimWorld},
    orchestrator::Orchestrator,
    people::PlantedRule,
    requests::{once, order, request, sign, strange_order},
    world::ms,
};

/// How long the honest nodes may take to sign, once everything works.
const CALM_MS: u64 = 60_000;
/// And to complete a reshare.
const RESHARE_MS: u64 = 180_000;

/// What is broken on purpose, to see that the oracle notices.
#[derive(Clone, Copy, Default, PartialEq)]
pub enum Sabotage {
    #[default]
    None,
    /// Machines are snapshots: after each start the same randomness comes again, and nodes use it
    /// without their hedge.
    RepeatedRandomness,
    /// The system always gives the same random bytes.
    ConstantRandomness,
    /// Both: each start finds an old folder too.
    ConstantAndRestored,
    /// Each start finds the folder as it was when all nonces were there, and nothing was signed.
    RestoredFolders,
    /// In the end, all folders are put back as they were before the last reshare.
    RestoredShares,
    /// Disks that report a sync that they have not done.
    LyingDisks,
}

impl Sabotage {
    pub fn restores(self) -> bool {
        matches!(
            self,
            Self::RestoredFolders | Self::RestoredShares | Self::ConstantAndRestored
        )
    }

    /// Whether the system's randomness stands still.
    pub fn stuck(self) -> bool {
        matches!(self, Self::ConstantRandomness | Self::ConstantAndRestored)
    }

    /// Whether folders are kept once all pools are full.
    fn keeps(self) -> bool {
        matches!(self, Self::RestoredFolders | Self::ConstantAndRestored)
    }
}

/// In which worlds nonces are made ahead.
#[derive(Clone, Copy)]
pub enum PreprocessMode {
    /// The seed decides: in most.
    Some,
    All,
}

/// What kind of world.
#[derive(Clone, Copy)]
pub struct SimConfig {
    pub seed: u64,
    pub scheme: Scheme,
    pub verbose: bool,
    pub sabotage: Sabotage,
    /// Nodes do not notice that their claims were restored from a copy.
    pub unguarded: bool,
    pub pools: PreprocessMode,
    /// The orchestrator and some nodes are hostile; which checks the others lack.
    pub hostile: Option<DisabledCheck>,
    /// People have to approve; what is wrong with the nodes' rules.
    pub people: Option<PlantedRule>,
}

/// The outcome of a world.
#[derive(Default, Debug, Clone, PartialEq)]
pub struct SimReport {
    pub trace: [u8; 32],
    pub events: u64,
    pub signed: u64,
    /// Shares made with nonces that were made ahead.
    pub one_round: u64,
    pub faults: u64,
    pub crashes: u64,
    pub power_losses: u64,
    pub torn: u64,
    pub orchestrator_crashes: u64,
    pub byzantine_nodes: u64,
    pub reshares: u64,
    pub violations: Vec<String>,
}

impl SimReport {
    /// Adds another world, without its violations.
    pub fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.signed += other.signed;
        self.one_round += other.one_round;
        self.faults += other.faults;
        self.crashes += other.crashes;
        self.power_losses += other.power_losses;
        self.torn += other.torn;
        self.orchestrator_crashes += other.orchestrator_crashes;
        self.byzantine_nodes += other.byzantine_nodes;
        self.reshares += other.reshares;
    }
}

/// Runs a world on this thread until its end.
pub fn run(setting: SimConfig) -> SimReport {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(story(setting))
}

async fn story(setting: SimConfig) -> SimReport {
    let world = SimWorld::new(setting);
    let orchestrator = Orchestrator::new(&world);
    world.calm();
    let mut lives: Vec<JoinHandle<()>> = (1..=world.nodes.len())
        .map(|place| tokio::spawn(Arc::clone(&world).live(place)))
        .collect();
    lives.push(tokio::spawn(Arc::clone(&orchestrator).live()));
    until_live(&world, &orchestrator).await;

    let Some(made) = key(&world, &orchestrator).await else {
        world
            .oracle
            .violation("no key is made in good weather".into());
        return report(&world, &orchestrator, (0, 0));
    };
    let root = made.root.clone();
    orchestrator.take(made);
    if setting.sabotage.keeps() {
        // The pools are full by then.
        sleep(ms(2_000)).await;
        world.nodes.iter().for_each(|node| node.keep());
    }

    let mut counts = storm(&world, &orchestrator, &root).await;

    // The calm: honest nodes sign, with the old shares or with new ones, and the byzantine node cannot
    // stop them.
    world.calm();
    until_live(&world, &orchestrator).await;
    if world.rng.chance(500) {
        orchestrator.cancel();
    }
    counts.0 += crowd_signs(&world, &orchestrator, &root).await;
    // They finish a reshare; then the new shares sign, and the old ones do not.
    if setting.scheme == Scheme::FrostEd25519 || world.rng.chance(500) {
        if setting.sabotage == Sabotage::RestoredShares {
            world.nodes.iter().for_each(|node| node.keep());
        }
        let old = reshares(&world, &orchestrator).await;
        counts.0 += signs(&world, &orchestrator, &root).await;
        if setting.sabotage == Sabotage::RestoredShares {
            world.kill_all();
            until_live(&world, &orchestrator).await;
        }
        if let Some(old) = old {
            signs_not(&world, &orchestrator, &root, &old).await;
        }
    }
    for life in lives {
        if life.is_finished() {
            world.oracle.violation(format!("{:?}", life.await));
        }
    }
    report(&world, &orchestrator, counts)
}

/// Generates some keys in bad weather; some fail.
async fn key(world: &SimWorld, orchestrator: &Orchestrator) -> Option<MadeKey> {
    if world.rng.chance(400) {
        world.set_weather(world.storm());
        let made = orchestrator.keygen(25_000).await;
        world.calm();
        until_live(world, orchestrator).await;
        if made.is_some() {
            return made;
        }
    }
    orchestrator.keygen(120_000).await
}

/// How many requests were signed, and how many not.
async fn storm(
    world: &Arc<SimWorld>,
    orchestrator: &Arc<Orchestrator>,
    root: &RootKey,
) -> (u64, u64) {
    if let Some((_, byzantine)) = &world.byzantine {
        byzantine.begin();
    }
    world.set_weather(world.storm());
    let until_ms = world.clock.age_ms() + 15_000;
    let chaos = tokio::spawn(Arc::clone(world).chaos(until_ms));
    let wishes = tokio::spawn(wishes(
        Arc::clone(world),
        Arc::clone(orchestrator),
        until_ms,
    ));
    let requests: Vec<_> = (0..world.rng.between(3, 7))
        .map(|_| {
            let (world, orchestrator) = (Arc::clone(world), Arc::clone(orchestrator));
            tokio::spawn(request(world, orchestrator, root.clone()))
        })
        .collect();
    let stranger = tokio::spawn(strange_order(Arc::clone(world), root.clone()));
    let mut counts = (0, 0);
    for request in requests {
        let (signed, faults) = request.await.unwrap();
        counts = (counts.0 + signed, counts.1 + faults);
    }
    stranger.await.unwrap();
    chaos.await.unwrap();
    wishes.await.unwrap();
    counts
}

/// What an operator does in the meantime, and what happens to the orchestrator.
async fn wishes(world: Arc<SimWorld>, orchestrator: Arc<Orchestrator>, until_ms: u64) {
    // ECDSA would make shares for a long time.
    let often = match world.setting.scheme {
        Scheme::FrostEd25519 => world.rng.between(500, 6_000),
        _ => 10_000,
    };
    while world.clock.age_ms() < until_ms {
        sleep(ms(world.rng.between(100, often))).await;
        match world.rng.below(6) {
            0 => orchestrator.crash(),
            1 => orchestrator.cancel(),
            _ => {
                let now = orchestrator.generation();
                // One at a time.
                let _ = orchestrator.want(world.some_target(&now));
            }
        }
    }
}

/// Waits until nodes that are gone are no longer seen as live, and then until all are.
pub async fn until_live(world: &SimWorld, orchestrator: &Orchestrator) {
    sleep(ms(LIVE_MS + 500)).await;
    for _ in 0..600 {
        let nodes = orchestrator.cluster().await.nodes();
        let live = nodes.iter().filter(|node| node.live).count();
        if live == world.nodes.len() {
            return;
        }
        sleep(ms(200)).await;
    }
    world.oracle.violation("nodes do not come back".into());
}

/// Some requests at once: often more than signers get at one time.
async fn crowd_signs(world: &SimWorld, orchestrator: &Orchestrator, root: &RootKey) -> u64 {
    let count = match world.rng.chance(400) {
        true => world.rng.between(5, 20),
        false => 1,
    };
    let crowd = (0..count).map(|_| signs(world, orchestrator, root));
    futures::future::join_all(crowd).await.into_iter().sum()
}

async fn signs(world: &SimWorld, orchestrator: &Orchestrator, root: &RootKey) -> u64 {
    let content = world.rng.bytes(40);
    let order = order(world, root, &content);
    match sign(world, orchestrator, &order, CALM_MS, true).await {
        Ok(_) => 1,
        Err(fault) => {
            let what = format!("no signature in good weather: {fault:?}");
            world.oracle.violation(what);
            0
        }
    }
}

/// Gives the generation before.
async fn reshares(world: &SimWorld, orchestrator: &Orchestrator) -> Option<Generation> {
    orchestrator.cancel();
    let old = orchestrator.generation();
    let target = world.safe_target(&old);
    if let Err(fault) = orchestrator.want(target.clone()) {
        world
            .oracle
            .violation(format!("no reshare may be wanted: {fault:?}"));
        return None;
    }
    let ReshareTarget { holders, .. } = &target;
    let done = async {
        let shown = orchestrator.shown.until(|shown| {
            shown.key.as_ref().is_some_and(|key| {
                key.reshare == ReshareState::Idle && key.generation.epoch > old.epoch
            })
        });
        let key = shown.await.key.unwrap();
        let epoch = key.generation.epoch;
        let told = |node| world.oracle.has_activated(node, epoch);
        // the byzantine node among the old ones may never say so; the others do, also those that leave.
        let honest = old.holders.iter().chain(holders);
        let byzantine = world.byzantine();
        let honest: Vec<_> = honest.filter(|node| Some(**node) != byzantine).collect();
        while !honest.iter().all(|node| told(node)) {
            sleep(ms(100)).await;
        }
        key.generation
    };
    match timeout(ms(RESHARE_MS), done).await {
        Ok(new) => {
            let asked = (new.threshold, &new.holders) == (target.threshold, holders);
            assert!(asked, "other shares than were asked for");
            Some(old)
        }
        Err(_) => {
            let reached = orchestrator.generation().epoch;
            let what = format!("no reshare in good weather: {reached} after {}", old.epoch);
            world.oracle.violation(what);
            None
        }
    }
}

/// What was given up does not sign, no matter who asks.
async fn signs_not(
    world: &SimWorld,
    orchestrator: &Orchestrator,
    root: &RootKey,
    old: &Generation,
) {
    let mut order = order(world, root, b"with shares of yesterday");
    order.epoch = old.epoch;
    let cluster = orchestrator.cluster().await;
    let deadline_ms = world.clock.now_ms() + 5_000;
    let outcome = once(world, &cluster, &order, old, deadline_ms).await;
    if outcome.is_ok() {
        world.oracle.violation("old shares sign".into());
    }
}

fn report(
    world: &SimWorld,
    orchestrator: &Orchestrator,
    (signed, faults): (u64, u64),
) -> SimReport {
    let (trace, events) = world.trace.finish();
    // Held so long: the nodes' folders.
    assert!(world.folder.path().exists());
    let counts = &world.counts;
    SimReport {
        trace,
        events,
        signed,
        one_round: world.oracle.one_round(),
        faults,
        crashes: counts.crashes.load(Ordering::Relaxed),
        power_losses: counts.power_losses.load(Ordering::Relaxed),
        torn: counts.torn.load(Ordering::Relaxed),
        orchestrator_crashes: orchestrator.crashes.load(Ordering::Relaxed),
        byzantine_nodes: u64::from(world.byzantine.is_some()),
        reshares: orchestrator.reshares.load(Ordering::Relaxed),
        violations: world.oracle.violations(),
    }
}
