//! Worlds whose orchestrator is hostile, together with fewer hostile nodes than a signature needs. It
//! forges generations and proofs, asks for whatever it likes, and shows to whom it likes. In the end
//! the hostile nodes are gone for ever. Judged are the folders of the others: the shares that they
//! use must give the key, and those of the hostile nodes must not.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use age::x25519::Identity;
use covault_core::{
    attest::MadeKey,
    ids::SessionId,
    order::{Generation, NodeId, ProvenGeneration, ReshareChange, ReshareOrder, ReshareProof},
    port::{Clock as _, random_16},
};
use covault_mpc::{
    node::{KeyRules, ThresholdLimits},
    permits::PermitStore,
    shares::{RetiredShare, ShareStore as _, age_file::AgeShareStore, backup},
    simulated,
};
use secrecy::SecretString;
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    machines::SimWorld,
    orchestrator::Orchestrator,
    story::{SimConfig, SimReport},
    support::free,
    world::ms,
};

/// What is switched off in the honest nodes, to see that the oracle sees it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum DisabledCheck {
    Nothing,
    /// Floors, ceilings and permits.
    Floors,
    /// That old holders have to say that they dealt.
    Statements,
}

impl DisabledCheck {
    pub fn rules(self) -> KeyRules {
        match self {
            Self::Nothing => KeyRules::default(),
            Self::Floors => free(),
            Self::Statements => KeyRules {
                limits: ThresholdLimits {
                    least_threshold: Some(2),
                    most_threshold: Some(u16::MAX),
                    least_spare: Some(0),
                },
                ..KeyRules::default()
            },
        }
    }
}

pub fn run(setting: SimConfig) -> SimReport {
    let planted = setting.hostile.unwrap_or(DisabledCheck::Nothing);
    simulated::believe_new_holders(planted == DisabledCheck::Statements);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let report = runtime.block_on(story(setting));
    simulated::believe_new_holders(false);
    report
}

/// What the attacker knows.
struct ReshareAttack {
    world: Arc<SimWorld>,
    orchestrator: Arc<Orchestrator>,
    root: Vec<u8>,
    /// Generations that there are, or that it says there are.
    known: Vec<Generation>,
    proven: Vec<ProvenGeneration>,
    permitted: Vec<ReshareChange>,
    epoch: u32,
}

async fn story(setting: SimConfig) -> SimReport {
    let world = SimWorld::new(setting);
    let orchestrator = Orchestrator::new(&world);
    world.calm();
    let mut lives: Vec<JoinHandle<()>> = (1..=world.nodes.len())
        .map(|place| tokio::spawn(Arc::clone(&world).live(place)))
        .collect();
    lives.push(tokio::spawn(Arc::clone(&orchestrator).live()));
    sleep(ms(5_000)).await;
    let made = orchestrator.keygen(120_000).await;
    let Some(MadeKey { root, .. }) = made else {
        world
            .oracle
            .violation("no key is made in good weather".into());
        return report(&world, 0);
    };
    let mut attack = ReshareAttack {
        root: root.public_key.clone(),
        known: vec![world.first.clone()],
        proven: Vec::new(),
        permitted: Vec::new(),
        epoch: 0,
        world: Arc::clone(&world),
        orchestrator: Arc::clone(&orchestrator),
    };
    for _ in 0..world.rng.between(8, 20) {
        attack.step().await;
    }
    // The orchestrator is gone. Nodes show each other what was proven, again every minute.
    sleep(ms(130_000)).await;
    for life in &lives {
        life.abort();
    }
    sleep(ms(100)).await;
    let is_hostile = |place: &usize| world.hostile.contains(place);
    let (hostile, honest): (Vec<usize>, Vec<usize>) = (1..=world.nodes.len()).partition(is_hostile);
    let gives = |places: &[usize], prepared| recovers(&world, places, prepared, &root.public_key);
    // Prepared shares sign nothing.
    if !gives(&honest, false) {
        world.oracle.violation("a key that cannot sign".into());
    }
    if gives(&hostile, true) {
        world
            .oracle
            .violation("a key that others can sign with".into());
    }
    report(&world, attack.proven.len() as u64)
}

impl ReshareAttack {
    fn some(&self, of: &[NodeId], count: usize) -> Vec<NodeId> {
        let mut of = of.to_vec();
        let mut some = Vec::new();
        while some.len() < count && !of.is_empty() {
            some.push(of.swap_remove(self.world.rng.below(of.len())));
        }
        some
    }

    fn hostile(&self) -> Vec<NodeId> {
        let places = self.world.hostile.iter();
        places.map(|place| self.world.ids[*place]).collect()
    }

    /// Any set of two or more, often with hostile nodes first.
    fn some_holders(&self) -> (u16, Vec<NodeId>) {
        let (world, all) = (&self.world, &self.world.ids[1..]);
        let hostile = self.hostile();
        let mut holders = if world.rng.chance(600) {
            hostile
        } else {
            Vec::new()
        };
        let others: Vec<NodeId> = all
            .iter()
            .filter(|it| !holders.contains(it))
            .copied()
            .collect();
        let least = 2_usize.saturating_sub(holders.len());
        let more = least + world.rng.below(others.len() + 1 - least);
        let more = if holders.len() >= 2 && world.rng.chance(500) {
            0
        } else {
            more
        };
        holders.extend(self.some(&others, more));
        let threshold = 2 + world.rng.below(holders.len() - 1);
        (threshold as u16, holders)
    }

    fn order(&mut self, old: Generation, (threshold, holders): (u16, Vec<NodeId>)) -> ReshareOrder {
        let world = &self.world;
        self.epoch += 1 + u32::from(world.rng.chance(200)) * 50;
        let now_ms = world.clock.now_ms();
        ReshareOrder {
            vault: world.vault,
            session: SessionId::from_random(random_16(&*world.rng)),
            scheme: world.setting.scheme,
            root_public_key: self.root.clone(),
            dealers: self.some(&old.holders, old.threshold.into()),
            old,
            new: Generation {
                epoch: self.epoch,
                threshold,
                holders,
            },
            issued_at_ms: now_ms,
            expires_at_ms: now_ms + world.reshare_ms,
        }
    }

    fn some_known(&self) -> Generation {
        let rng = &self.world.rng;
        // Mostly the last one, of which most is to be had.
        let place = if rng.chance(600) {
            self.known.len() - 1
        } else {
            rng.below(self.known.len())
        };
        self.known[place].clone()
    }

    async fn step(&mut self) {
        let world = Arc::clone(&self.world);
        match world.rng.below(8) {
            0..=2 => self.forge().await,
            3..=5 => self.ask().await,
            6 => self.permit(),
            _ => {
                let place = 1 + world.rng.below(world.nodes.len());
                world.kill(place);
                sleep(ms(1_500)).await;
            }
        }
        if !self.proven.is_empty() && world.rng.chance(700) {
            let last = self.proven.len() - 1;
            let place = if world.rng.chance(600) {
                last
            } else {
                world.rng.below(last + 1)
            };
            self.show(self.proven[place].clone()).await;
        }
    }

    /// A generation that was never made, with all statements that hostile nodes can give.
    async fn forge(&mut self) {
        let mut old = self.some_known();
        let hostile = self.hostile();
        if hostile.len() >= 2 && self.world.rng.chance(500) {
            // What was before is theirs, too.
            old.holders.clone_from(&hostile);
            old.threshold = 2;
        }
        let to = self.some_holders();
        let order = self.order(old, to);
        let statement = order.statement().unwrap();
        let parties = order.parties();
        let statements = self.world.hostile.iter().filter_map(|place| {
            let identity = &self.world.identities[*place];
            let signed = || (identity.id(), identity.sign(&statement).to_vec());
            parties.contains(&identity.id()).then(signed)
        });
        let proof = ReshareProof(statements.collect());
        self.show(ProvenGeneration { order, proof }).await;
    }

    /// A run that the nodes are really asked for.
    async fn ask(&mut self) {
        let old = self.some_known();
        let rng = Arc::clone(&self.world.rng);
        let permitted = self.permitted.last().filter(|change| change.old == old);
        let to = match (permitted, rng.below(3)) {
            (Some(change), 0..=1) => (change.threshold, change.holders.clone()),
            (_, 1) => self.some_holders(),
            _ => (old.threshold, old.holders.clone()),
        };
        let order = self.order(old, to);
        let cluster = self.orchestrator.cluster().await;
        let patience = ms(self.world.reshare_ms + 2_000);
        let outcome = timeout(patience, cluster.reshare(&order)).await;
        if let Ok(Ok(proof)) = outcome {
            self.world.trace.note(format_args!("made: {order:?}"));
            self.known.push(order.new.clone());
            self.proven.push(ProvenGeneration { order, proof });
        }
    }

    /// Operators agree on a change that is safe while fewer than its threshold are hostile.
    fn permit(&mut self) {
        let (old, hostile) = (self.some_known(), self.hostile());
        let spare = old.holders.len() - usize::from(old.threshold);
        let all = self.world.ids[1..].to_vec();
        let count = usize::from(old.threshold) + spare;
        let holders = self.some(&all, count);
        let bad = holders.iter().filter(|it| hostile.contains(it)).count();
        if bad >= usize::from(old.threshold) || bad > spare || holders.len() < count {
            return;
        }
        let change = ReshareChange {
            vault: self.world.vault,
            scheme: self.world.setting.scheme,
            root_public_key: self.root.clone(),
            threshold: old.threshold,
            old,
            holders,
        };
        let until_ms = self.world.clock.now_ms() + 3_600_000;
        for node in &self.world.nodes {
            PermitStore::of(&node.folder)
                .grant(&change, until_ms)
                .unwrap();
        }
        self.permitted.push(change);
    }

    /// To some nodes, with some of what was proven.
    async fn show(&self, ProvenGeneration { order, proof }: ProvenGeneration) {
        let world = &self.world;
        world.trace.note(format_args!("shown: {order:?}"));
        let all = &world.ids[1..];
        let count = if world.rng.chance(500) {
            all.len()
        } else {
            1 + world.rng.below(all.len())
        };
        let nodes = self.some(all, count);
        let before = if world.rng.chance(500) {
            self.proven.clone()
        } else {
            Vec::new()
        };
        let cluster = self.orchestrator.cluster().await;
        let call = cluster.distribute_activation(&order, &proof, &before, &nodes);
        let told = timeout(ms(20_000), call).await;
        world.trace.note(format_args!("{told:?}"));
    }
}

/// Whether the shares of these nodes that are in use, or prepared ones too, give the key.
fn recovers(world: &SimWorld, places: &[usize], prepared: bool, root: &[u8]) -> bool {
    let offline = Identity::generate();
    let recipients = [offline.to_public().to_string()];
    let passphrase = SecretString::from("a passphrase");
    let mut groups: BTreeMap<Option<[u8; 32]>, Vec<backup::DecryptedBackup>> = BTreeMap::new();
    for place in places {
        let files = AgeShareStore::open(&world.nodes[place - 1].folder, &passphrase, 1).unwrap();
        let mut records = files.load_all().unwrap();
        if prepared {
            records.extend(files.load_pending().unwrap());
        }
        for record in records {
            let order = record.order;
            let share = RetiredShare {
                record,
                at_ms: 0,
                was_in_use: true,
            };
            let sealed = backup::of_retired(&share, &world.ids[*place], &recipients).unwrap();
            let opened = backup::open(&sealed, std::slice::from_ref(&offline)).unwrap();
            groups.entry(order).or_default().push(opened);
        }
    }
    groups.values().any(|shares| {
        let enough = shares.len() >= usize::from(shares[0].threshold);
        enough && backup::recover(shares).is_ok_and(|key| key.root.public_key == root)
    })
}

fn report(world: &SimWorld, reshares: u64) -> SimReport {
    let (trace, events) = world.trace.finish();
    assert!(world.folder.path().exists());
    SimReport {
        trace,
        events,
        reshares,
        byzantine_nodes: world.hostile.len() as u64,
        violations: world.oracle.violations(),
        ..SimReport::default()
    }
}

/// How many worlds: `COVAULT_SIM_HOSTILE_RUNS`.
#[test]
fn simulation__should_leave_the_key_to_its_holders_whatever_a_hostile_orchestrator_does() {
    let runs = crate::number("COVAULT_SIM_HOSTILE_RUNS").unwrap_or(60);
    let first = crate::number("COVAULT_SIM_FIRST").unwrap_or(0);
    let sum = Mutex::new(SimReport::default());
    for seed in first..first + runs {
        let report = run(world_of(seed, DisabledCheck::Nothing));
        assert!(
            report.violations.is_empty(),
            "seed {seed}: {:?}",
            report.violations
        );
        sum.lock().unwrap().add(&report);
    }
    let sum = sum.into_inner().unwrap();
    eprintln!(
        "{runs} worlds, {} hostile nodes, {} generations",
        sum.byzantine_nodes, sum.reshares
    );
    assert!(runs < 50 || (sum.reshares > runs / 2 && sum.byzantine_nodes > runs / 3));
}

fn world_of(seed: u64, planted: DisabledCheck) -> SimConfig {
    SimConfig {
        verbose: crate::number("COVAULT_SIM_SEED").is_some(),
        hostile: Some(planted),
        ..crate::setting(seed)
    }
}

fn notices(planted: DisabledCheck, what: &str) {
    let seen = (0..150).any(|seed| {
        let report = run(world_of(seed, planted));
        report.violations.iter().any(|it| it.contains(what))
    });
    assert!(seen, "nobody noticed");
}

#[test]
fn simulation__should_notice_shares_that_are_retired_without_the_word_of_their_dealers() {
    notices(DisabledCheck::Statements, "cannot sign");
}

#[test]
fn simulation__should_notice_a_key_that_was_made_fragile_or_given_away() {
    notices(DisabledCheck::Floors, "cannot sign");
    notices(DisabledCheck::Floors, "others can sign");
}
