//! The orchestrator: what its database says of the key, and a process that crashes and goes on from
//! there. It keeps the order of things that the actors keep: commit, then act.

use std::{
    future::pending,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use covault_core::{
    attest::MadeKey,
    fault::Fault,
    ids::SessionId,
    order::{Generation, KeygenOrder, NodeId, ReshareOrder},
    port::{Clock as _, random_16},
    wallet::generation::{Activation, LiveKey, ReshareState, ReshareTarget},
};
use covault_mpc::cluster::{Cluster, ClusterConfig};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use crate::{
    machines::{LIVE_MS, SimWorld},
    world::{ProcessLife, SeededRng, ms},
};

/// What a call may take beyond its deadline: the nodes' last words, and one look.
pub const SLACK_MS: u64 = 1_000;
/// How long they have to say that they use them, in the cluster client.
const TELLING_MS: u64 = 15_000;

/// What the other parts see of it.
#[derive(Clone, Default)]
pub struct OrchestratorView {
    /// Of the process that runs.
    pub cluster: Option<Arc<Cluster>>,
    /// Which process that is.
    pub process: u64,
    /// What its database says.
    pub key: Option<LiveKey>,
    /// This process has told the nodes to use the generation.
    told: bool,
}

impl OrchestratorView {
    /// The shares to sign with, once their nodes were told.
    pub fn in_use(&self) -> Option<(Arc<Cluster>, Generation)> {
        let key = self.key.as_ref()?;
        let told = self.told || key.activation.is_none();
        let cluster = self.cluster.as_ref().filter(|_| told)?;
        Some((Arc::clone(cluster), key.generation.clone()))
    }
}

/// Where it is shown. Not a `watch` channel: that wakes who waits in an order without a seed.
#[derive(Default)]
pub struct ViewBoard {
    shown: Mutex<OrchestratorView>,
    changed: Notify,
}

impl ViewBoard {
    pub fn now(&self) -> OrchestratorView {
        self.shown.lock().unwrap().clone()
    }

    fn change(&self, change: impl FnOnce(&mut OrchestratorView)) {
        change(&mut self.shown.lock().unwrap());
        self.changed.notify_waiters();
    }

    /// Waits until it is so.
    pub async fn until(&self, is: impl Fn(&OrchestratorView) -> bool) -> OrchestratorView {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let now = self.now();
            if is(&now) {
                return now;
            }
            changed.await;
        }
    }
}

pub struct Orchestrator {
    world: Arc<SimWorld>,
    pub shown: ViewBoard,
    life: Mutex<Arc<ProcessLife>>,
    entropy: Arc<SeededRng>,
    pub crashes: AtomicU64,
    /// Generations that were taken into use.
    pub reshares: AtomicU64,
}

impl Orchestrator {
    pub fn new(world: &Arc<SimWorld>) -> Arc<Self> {
        Arc::new(Self {
            world: Arc::clone(world),
            shown: ViewBoard::default(),
            life: Mutex::default(),
            entropy: Arc::new(SeededRng::new(world.setting.seed, 1_000)),
            crashes: AtomicU64::default(),
            reshares: AtomicU64::default(),
        })
    }

    /// Its process, again and again.
    pub async fn live(self: Arc<Self>) {
        let world = Arc::clone(&self.world);
        loop {
            let life = Arc::new(ProcessLife::default());
            *self.life.lock().unwrap() = Arc::clone(&life);
            let cluster = Cluster::start(ClusterConfig {
                identity: Arc::clone(&world.identities[0]),
                bus: world.port(0, &life),
                clock: Arc::new(world.clock),
                entropy: Arc::clone(&self.entropy) as _,
                live_for: ms(LIVE_MS),
                attempt: ms(2_000),
            });
            let cluster = cluster.await.unwrap();
            self.shown.change(|shown| {
                shown.cluster = Some(Arc::clone(&cluster));
                shown.process += 1;
                shown.told = false;
            });
            let keeper = tokio::spawn(Arc::clone(&self).keep(cluster));
            life.ended().await;
            keeper.abort();
            if let Err(error) = keeper.await
                && error.is_panic()
            {
                world.oracle.violation("the orchestrator panicked".into());
            }
            self.shown.change(|shown| shown.cluster = None);
            self.crashes.fetch_add(1, Ordering::Relaxed);
            world.trace.note("the orchestrator is down");
            sleep(ms(world.rng.between(50, 2_000))).await;
        }
    }

    pub fn crash(&self) {
        self.life.lock().unwrap().end();
    }

    /// The process that runs, or the next one.
    pub async fn cluster(&self) -> Arc<Cluster> {
        let shown = self.shown.until(|shown| shown.cluster.is_some());
        shown.await.cluster.unwrap()
    }

    /// The shares that sign.
    pub fn generation(&self) -> Generation {
        self.key().unwrap().generation
    }

    fn key(&self) -> Option<LiveKey> {
        self.shown.now().key
    }

    /// One commit of its database.
    fn commit(&self, change: impl FnOnce(&mut LiveKey) -> Result<(), Fault>) -> Result<(), Fault> {
        let mut outcome = Ok(());
        self.shown.change(|shown| {
            let Some(mut key) = shown.key.clone() else {
                return;
            };
            let generation = key.generation.clone();
            outcome = change(&mut key);
            if outcome.is_ok() {
                shown.told &= key.generation == generation;
                shown.key = Some(key);
            }
        });
        outcome
    }

    /// Before or after a commit is when it hurts.
    async fn may_crash(&self) {
        if self.world.stormy() && self.world.rng.chance(100) {
            self.world.trace.note("the orchestrator dies");
            self.crash();
            pending::<()>().await;
        }
    }

    pub async fn keygen(&self, patience_ms: u64) -> Option<MadeKey> {
        let world = &self.world;
        let now_ms = world.clock.now_ms();
        let order = KeygenOrder {
            vault: world.vault,
            session: SessionId::from_random(random_16(&*world.rng)),
            scheme: world.setting.scheme,
            threshold: world.first.threshold,
            signers: world.first.holders.clone(),
            issued_at_ms: now_ms,
            expires_at_ms: now_ms + patience_ms,
        };
        let cluster = self.cluster().await;
        let outcome = timeout(ms(patience_ms + SLACK_MS), cluster.keygen(&order)).await;
        if outcome.is_err() {
            world
                .oracle
                .violation("a key generation did not end in time".into());
        }
        let made = outcome.ok()?.ok();
        world.trace.note(format_args!("keygen: {}", made.is_some()));
        made
    }

    /// From here on there is a key.
    pub fn take(&self, made: MadeKey) {
        let Generation {
            threshold, holders, ..
        } = self.world.first.clone();
        let key = LiveKey::new(made, threshold, holders);
        self.shown.change(|shown| shown.key = Some(key));
    }

    /// An operator wants other shares.
    pub fn want(&self, target: ReshareTarget) -> Result<(), Fault> {
        self.world.trace.note(format_args!(
            "wanted: {} of {}, {} lost",
            target.threshold,
            target.holders.len(),
            target.lost.len()
        ));
        self.commit(|key| key.want(target))
    }

    /// An operator cancels it.
    pub fn cancel(&self) {
        let cancelled = self.commit(LiveKey::cancel).is_ok();
        self.world
            .trace
            .note(format_args!("cancelled: {cancelled}"));
    }

    /// Does what the database says is to be done for the key.
    async fn keep(self: Arc<Self>, cluster: Arc<Cluster>) {
        tokio::join!(biased; self.make(&cluster), self.tell(&cluster));
    }

    /// Makes new generations when they are wanted.
    async fn make(&self, cluster: &Cluster) {
        let mut failed = 0_u64;
        loop {
            let wanted = |shown: &OrchestratorView| {
                let key = shown.key.as_ref();
                key.is_some_and(|key| key.reshare != ReshareState::Idle)
            };
            if !wanted(&self.shown.now()) {
                failed = 0;
            }
            self.shown.until(wanted).await;
            let made = match self.order(cluster, failed > 0) {
                Some(order) => self.run(cluster, &order).await,
                None => false,
            };
            if made {
                failed = 0;
            } else {
                failed += 1;
                sleep(ms(200 * failed.min(10))).await;
            }
        }
    }

    /// The run to begin, or to repeat: the one before a crash may have succeeded.
    fn order(&self, cluster: &Cluster, others: bool) -> Option<ReshareOrder> {
        let world = &self.world;
        let key = self.key()?;
        let now_ms = world.clock.now_ms();
        let target = match key.reshare {
            ReshareState::Idle | ReshareState::Halted { .. } => return None,
            ReshareState::Preparing { order, .. }
                if !others && order.expires_at_ms > now_ms + world.reshare_ms / 4 =>
            {
                world.trace.note("a reshare is repeated");
                return Some(order);
            }
            ReshareState::Preparing { target, .. } | ReshareState::Wanted(target) => target,
        };
        let nodes = cluster.nodes();
        let live = |node: &NodeId| nodes.iter().any(|it| it.id == *node && it.live);
        if !target.holders.iter().all(live) {
            return None;
        }
        let mut dealers = key.generation.holders.clone();
        dealers.retain(|node| live(node) && !target.lost.contains(node));
        let needed = usize::from(key.generation.threshold);
        while others && dealers.len() > needed {
            dealers.swap_remove(world.rng.below(dealers.len()));
        }
        dealers.truncate(needed);
        if dealers.len() < needed {
            return None;
        }
        let order = ReshareOrder {
            vault: world.vault,
            session: SessionId::from_random(random_16(&*world.rng)),
            scheme: world.setting.scheme,
            root_public_key: key.root.public_key.clone(),
            old: key.generation.clone(),
            dealers,
            new: Generation {
                epoch: key.next_epoch,
                threshold: target.threshold,
                holders: target.holders,
            },
            issued_at_ms: now_ms,
            expires_at_ms: now_ms + world.reshare_ms,
        };
        let claim = order.clone();
        self.commit(|key| key.begin(claim)).ok()?;
        Some(order)
    }

    async fn run(&self, cluster: &Cluster, order: &ReshareOrder) -> bool {
        let world = &self.world;
        self.may_crash().await;
        let epoch = order.new.epoch;
        let left_ms = order.expires_at_ms.saturating_sub(world.clock.now_ms());
        let outcome = timeout(ms(left_ms + SLACK_MS), cluster.reshare(order)).await;
        let Ok(outcome) = outcome else {
            world
                .oracle
                .violation(format!("the reshare to epoch {epoch} did not end in time"));
            return false;
        };
        match outcome {
            Ok(proof) => {
                self.may_crash().await;
                // Not when it was cancelled.
                let took = self.commit(|key| key.prepared(order, proof)).is_ok();
                world
                    .trace
                    .note(format_args!("epoch {epoch} is there: {took}"));
                self.reshares.fetch_add(u64::from(took), Ordering::Relaxed);
                self.may_crash().await;
                true
            }
            Err(fault) => {
                let why = fault.message();
                world
                    .trace
                    .note(format_args!("epoch {epoch} is not made: {why}"));
                false
            }
        }
    }

    /// Tells the nodes to use what is there, until all have confirmed.
    async fn tell(&self, cluster: &Cluster) {
        let activation = |shown: &OrchestratorView| shown.key.as_ref()?.activation.clone();
        loop {
            let now = self.shown.until(|shown| activation(shown).is_some()).await;
            let Some(now) = activation(&now) else {
                continue;
            };
            let confirmed = tokio::select! {
                biased;
                confirmed = self.tell_once(cluster, &now) => confirmed,
                // The next generation exists: this one no longer needs to be announced.
                _ = self.shown.until(|shown| activation(shown).as_ref() != Some(&now)) => continue,
            };
            self.shown.change(|shown| {
                shown.told |= activation(shown).as_ref() == Some(&now);
            });
            let all = now.untold.iter().all(|node| confirmed.contains(node));
            let _ = self.commit(|key| key.confirmed(&now.order, &confirmed));
            self.may_crash().await;
            if !all {
                sleep(ms(500)).await;
            }
        }
    }

    /// Who has confirmed.
    async fn tell_once(&self, cluster: &Cluster, now: &Activation) -> Vec<NodeId> {
        let world = &self.world;
        let call = cluster.distribute_activation(&now.order, &now.proof, &now.before, &now.untold);
        let outcome = timeout(ms(TELLING_MS + SLACK_MS), call).await;
        let epoch = now.order.new.epoch;
        match outcome {
            Ok(answers) => {
                let answers = answers.unwrap_or_default().into_iter();
                let confirmed: Vec<NodeId> = answers
                    .filter_map(|(node, answer)| answer.is_ok().then_some(node))
                    .collect();
                let (count, of) = (confirmed.len(), now.untold.len());
                world.trace.note(format_args!(
                    "epoch {epoch} is told: {count} of {of} confirm"
                ));
                confirmed
            }
            Err(_) => {
                world
                    .oracle
                    .violation(format!("telling of epoch {epoch} did not end in time"));
                Vec::new()
            }
        }
    }
}
