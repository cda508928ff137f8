//! kill -9 of any process at any moment, round after round, without waiting for calm.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use tokio::task::block_in_place;

use super::{
    load::{self, LoadGenerator},
    world::{StoreSetup, TestRng, World, seed},
};

/// How many rounds; COVAULT_CRASH_ROUNDS makes it more.
fn rounds() -> u64 {
    std::env::var("COVAULT_CRASH_ROUNDS").map_or(8, |rounds| rounds.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_rounds_on_redb__should_lose_nothing_and_do_nothing_twice() {
    survive(StoreSetup::Redb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_rounds_on_postgres__should_lose_nothing_and_do_nothing_twice() {
    survive(StoreSetup::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_rounds_of_two_orchestrators__should_lose_nothing_and_do_nothing_twice() {
    survive(StoreSetup::Shared).await;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Orchestrator(usize),
    Signer(usize),
    Redis,
    Postgres,
}

impl Victim {
    fn all(store: StoreSetup) -> Vec<Self> {
        let mut all = vec![Self::Orchestrator(0), Self::Redis];
        all.extend((0..3).map(Self::Signer));
        if store == StoreSetup::Shared {
            all.push(Self::Orchestrator(1));
        }
        if store != StoreSetup::Redb {
            all.push(Self::Postgres);
        }
        all
    }

    fn kill(self, world: &mut World) {
        match self {
            Self::Orchestrator(index) => world.orchestrator(index).kill(),
            Self::Signer(index) => world.cluster.signers[index].kill(),
            Self::Redis => world.cluster.redis.stop(),
            Self::Postgres => world.server.as_mut().unwrap().kill(),
        }
    }

    async fn start(self, world: &mut World) {
        match self {
            Self::Orchestrator(index) => world.start_orchestrator(index),
            Self::Signer(index) => world.cluster.restart_signer(index),
            Self::Redis => world.cluster.redis.restart().await,
            Self::Postgres => block_in_place(|| world.server.as_mut().unwrap().restart()),
        }
    }
}

async fn survive(store: StoreSetup) {
    let (seed, began) = (seed(), Instant::now());
    let mut rng = TestRng::new(seed);
    let mut world = World::start(store).await;
    let load = LoadGenerator::start(&world, seed);
    load.goes_on("the load has begun").await;
    let mut kills: BTreeMap<Victim, u64> = BTreeMap::new();
    let mut ended = 0;
    // As often as the others, each of them.
    let mut due = Victim::all(store);
    for round in 1..=rounds() {
        pause(&mut rng, 100, 1_500).await;
        ended += world.supervise();
        if due.is_empty() {
            due = Victim::all(store);
        }
        let mut victims = vec![rng.take(&mut due)];
        // In every third round another one with it.
        if rng.within(0, 3) == 0 {
            let mut others = Victim::all(store);
            others.retain(|other| *other != victims[0]);
            victims.push(rng.take(&mut others));
        }
        for victim in &victims {
            victim.kill(&mut world);
            *kills.entry(*victim).or_default() += 1;
            pause(&mut rng, 0, 300).await;
        }
        pause(&mut rng, 0, 1_200).await;
        if rng.within(0, 2) == 0 {
            victims.reverse();
        }
        for victim in &victims {
            victim.start(&mut world).await;
        }
        let ledger = load.ledger();
        let (accepted, over) = ledger.counts();
        eprintln!(
            "{store:?} round {round}: {victims:?} killed; {accepted} accepted, {over} known to be over, \
             {} calls refused or not answered",
            ledger.troubles()
        );
    }
    ended += world.supervise();
    let calm = Instant::now();
    world.ready().await;
    let ledger = load.finish().await;
    eprintln!(
        "{store:?}: {} rounds, kills {kills:?}, {ended} processes ended by themselves; {}; {} ms after \
         the last round until everything had ended; {} s with start and end",
        rounds(),
        ledger.figures(),
        calm.elapsed().as_millis(),
        began.elapsed().as_secs()
    );
    ledger.check(&world).await;
    // Requests get new time when the orchestrator starts, and it is enough here. Where kills go on for
    // long, some may find too few signers for all of it.
    let failures = ledger.failures();
    let (all, failed) = (ledger.counts().1 as u64, failures.values().sum::<u64>());
    let short = rounds() <= 8;
    assert!(failed * 20 <= if short { 0 } else { all }, "{failures:?}");
    let told = |reason: &String| reason.starts_with("not enough signers");
    assert!(failures.keys().all(told), "{failures:?}");
    // What was answered once is answered again, whatever processes have forgotten in the meantime.
    for victim in Victim::all(store) {
        victim.kill(&mut world);
    }
    for victim in Victim::all(store).into_iter().rev() {
        victim.start(&mut world).await;
    }
    world.ready().await;
    load::repeat_all(&world, &ledger).await;
    world.assert_sound();
    // An orchestrator that starts while PostgreSQL dies ends, and says so.
    let died = kills.get(&Victim::Postgres).copied().unwrap_or_default();
    let excused = died * world.apis.len() as u64;
    assert!(ended <= excused, "{ended} processes ended by themselves");
}

async fn pause(rng: &mut TestRng, from_ms: u64, to_ms: u64) {
    tokio::time::sleep(Duration::from_millis(rng.within(from_ms, to_ms))).await;
}
