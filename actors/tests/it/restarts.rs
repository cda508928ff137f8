//! The power cut or the stumble at every single commit: every accepted request reaches a final
//! state, none is signed for two digests, none is sent as two transactions.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use covault_actors::{
    gateway::Gateway,
    operations::{CreateVault, CreateWallet},
    port::KeyRound,
    store::{Store, memory::MemoryStore},
};
use covault_core::{
    ids::VaultId,
    schema::wire::{
        NetworkType, create_signing_request_request::Type as Kind, signing_request::Status,
    },
};

use crate::{
    audit,
    faulty_store::{FaultyStore, StoreFault},
    reservations::pay,
    world::*,
};

/// What a run of the scenario is about.
#[derive(Clone, Copy, Debug)]
pub enum Scenario {
    Raw,
    Transfer,
    /// The first signing attempt fails, and the answer to the first broadcast is lost.
    BumpyTransfer,
    /// The chain refuses the transaction.
    Refused,
    /// The signers refuse the order.
    Denied,
    /// Outputs are spent, and the answer to the first broadcast is lost.
    Outputs,
}

pub const SCENARIOS: [Scenario; 6] = [
    Scenario::Raw,
    Scenario::Transfer,
    Scenario::BumpyTransfer,
    Scenario::Refused,
    Scenario::Denied,
    Scenario::Outputs,
];

pub fn set(world: &World, scenario: Scenario) {
    match scenario {
        Scenario::Raw | Scenario::Transfer => {}
        Scenario::BumpyTransfer => {
            world.signers.failing.store(1, Ordering::SeqCst);
            world.evm.lost_answers.store(1, Ordering::SeqCst);
        }
        Scenario::Refused => world.evm.refuse.store(true, Ordering::SeqCst),
        Scenario::Denied => world.signers.refuse.store(true, Ordering::SeqCst),
        Scenario::Outputs => world.bitcoin.lost_answers.store(1, Ordering::SeqCst),
    }
}

pub fn network(scenario: Scenario) -> NetworkType {
    match scenario {
        Scenario::Outputs => NetworkType::Bitcoin,
        _ => NetworkType::Evm,
    }
}

pub fn fund(world: &World, scenario: Scenario, address: &str) {
    if let Scenario::Outputs = scenario {
        world.bitcoin.fund(address, 2, 100_000);
    }
}

pub fn kind(scenario: Scenario, address: &str) -> Kind {
    match scenario {
        Scenario::Raw => raw(address),
        Scenario::Outputs => pay(address, 10_000),
        _ => send(address),
    }
}

/// Makes vault, wallet and two requests, as far as the store lets it. Returns the requests
/// that were accepted.
async fn run(world: &World, gateway: &Gateway, scenario: Scenario) -> Vec<String> {
    let mut accepted = Vec::new();
    admit(gateway).await;
    let made = call::<CreateVault>(gateway, &admin(), vault_request("main")).await;
    let Ok(made) = made else {
        return accepted;
    };
    let vault: VaultId = made.vault.unwrap().uuid.parse().unwrap();
    ready(gateway, "main").await;
    let request_of_wallet = wallet_request(vault, network(scenario), "");
    let made = call::<CreateWallet>(gateway, &admin(), request_of_wallet).await;
    let Ok(made) = made else {
        return accepted;
    };
    let wallet = made.details.unwrap();
    fund(world, scenario, &wallet.address);
    for _ in 0..2 {
        if let Ok(made) = try_create(gateway, request(kind(scenario, &wallet.address)), None).await
        {
            accepted.push(created(made).uuid);
        }
    }
    for uuid in &accepted {
        outcome(gateway, uuid).await;
    }
    accepted
}

/// Commits of an undisturbed run.
async fn commits(scenario: Scenario) -> usize {
    let world = World::new();
    set(&world, scenario);
    let store = FaultyStore::new(Arc::clone(&world.store), usize::MAX, StoreFault::Before);
    let gateway = world.start_on(Arc::clone(&store) as Arc<dyn Store>).await;
    assert_eq!(run(&world, &gateway, scenario).await.len(), 2);
    gateway.stop().await;
    store.commits()
}

pub async fn check(
    world: &World,
    gateway: &Gateway,
    scenario: Scenario,
    accepted: &[String],
    what: &str,
) {
    let stored = world.requests().await;
    for uuid in accepted {
        assert!(
            stored.contains(&uuid.parse().unwrap()),
            "{what}: an accepted request is lost"
        );
    }
    for id in &stored {
        outcome(gateway, &id.to_string()).await;
        let status = details(gateway, &id.to_string()).await.status();
        let expected = match scenario {
            Scenario::Refused | Scenario::Denied => Status::Failed,
            _ => Status::Succeeded,
        };
        assert_eq!(status, expected, "{what}");
    }
    assert_eq!(world.pending().await, 0, "{what}: effects are left over");
    audit::tells_of_each_once(&*world.store, &stored, what).await;
    // Second digests and sessions used twice make the signers' double panic.
    assert!(world.signers.requests() <= stored.len(), "{what}");
    assert_eq!(world.bitcoin.conflicts.load(Ordering::SeqCst), 0, "{what}");
    let sent = match scenario {
        Scenario::Outputs => world.bitcoin.handed.lock().unwrap().len(),
        _ => world.evm.handed.lock().unwrap().len(),
    };
    assert!(
        sent <= stored.len(),
        "{what}: {sent} transactions for {} requests",
        stored.len()
    );
    if matches!(scenario, Scenario::Transfer | Scenario::BumpyTransfer) {
        let expected = (0..stored.len() as u64).collect::<Vec<_>>();
        assert_eq!(world.evm.nonces(), expected, "{what}");
    }
}

async fn cut(scenario: Scenario, at: usize, accident: StoreFault) {
    let what = format!("{scenario:?}, {accident:?} commit {at}");
    let world = World::on(Arc::new(MemoryStore::new()));
    set(&world, scenario);
    let store = FaultyStore::new(Arc::clone(&world.store), at, accident);
    let gateway = world.start_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let accepted = Arc::new(std::sync::Mutex::new(Vec::new()));
    {
        // What the clients of the process that dies have been told.
        let told = Arc::clone(&accepted);
        let running = gateway.clone();
        let world_of_clients = world.clone();
        let clients = tokio::spawn(async move {
            run_telling(&world_of_clients, &running, scenario, &told).await;
        });
        let power = store.accident();
        if tokio::time::timeout(Duration::from_secs(20), power)
            .await
            .is_err()
        {
            // What was two commits in the undisturbed run can be one here: the last ones do not come then.
            let fewer = at.saturating_sub(store.commits());
            assert!((1..=3).contains(&fewer), "{what}: never came");
        }
        // A moment for actors to stumble over the dead store.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        clients.abort();
        let _ = clients.await;
    }
    gateway.stop().await;

    let gateway = world.start().await;
    let accepted = accepted.lock().unwrap().clone();
    check(&world, &gateway, scenario, &accepted, &what).await;
    // Whatever was cut, the service can be used.
    let vault = vault(&gateway, "main").await;
    evm_wallet(&gateway, vault).await;
    gateway.stop().await;
}

async fn run_telling(
    world: &World,
    gateway: &Gateway,
    scenario: Scenario,
    told: &std::sync::Mutex<Vec<String>>,
) {
    admit(gateway).await;
    let made = call::<CreateVault>(gateway, &admin(), vault_request("main")).await;
    let Ok(made) = made else {
        return;
    };
    let vault: VaultId = made.vault.unwrap().uuid.parse().unwrap();
    ready(gateway, "main").await;
    let request_of_wallet = wallet_request(vault, network(scenario), "");
    let made = call::<CreateWallet>(gateway, &admin(), request_of_wallet).await;
    let Ok(made) = made else {
        return;
    };
    let wallet = made.details.unwrap();
    fund(world, scenario, &wallet.address);
    for _ in 0..2 {
        if let Ok(made) = try_create(gateway, request(kind(scenario, &wallet.address)), None).await
        {
            told.lock().unwrap().push(created(made).uuid);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart__should_finish_every_accepted_request_wherever_the_power_was_cut() {
    for scenario in SCENARIOS {
        let commits = commits(scenario).await;
        println!("{scenario:?}: {commits} commits");
        for at in 1..=commits {
            for accident in [StoreFault::Before, StoreFault::After] {
                cut(scenario, at, accident).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn actors__should_start_again_from_the_store_wherever_a_commit_went_wrong() {
    for scenario in SCENARIOS {
        let commits = commits(scenario).await;
        for at in 1..=commits {
            for accident in [StoreFault::StumbleBefore, StoreFault::StumbleAfter] {
                let what = format!("{scenario:?}, {accident:?} commit {at}");
                let world = World::new();
                set(&world, scenario);
                let store = FaultyStore::new(Arc::clone(&world.store), at, accident);
                let gateway = world.start_on(store as Arc<dyn Store>).await;
                let accepted =
                    tokio::time::timeout(Duration::from_secs(20), run(&world, &gateway, scenario))
                        .await
                        .unwrap_or_else(|_| panic!("{what}: hangs"));
                check(&world, &gateway, scenario, &accepted, &what).await;
                gateway.stop().await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directory_and_vaults__should_start_again_when_the_store_cannot_be_read() {
    let world = World::new();
    world.signers.silent.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let id = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, id).await;
    let pending = create(&gateway, send(&address)).await;
    gateway.stop().await;
    let cut = |working, failing| {
        let store = FaultyStore::new(Arc::clone(&world.store), usize::MAX, StoreFault::Before);
        store.working_scans.store(working, Ordering::SeqCst);
        store.failing_scans.store(failing, Ordering::SeqCst);
        store as Arc<dyn Store>
    };
    world.signers.silent.store(false, Ordering::SeqCst);
    for failing in 1..8 {
        // Each failing scan is another step of another actor's start.
        let gateway = world.start_on(cut(0, failing)).await;
        assert_eq!(outcome(&gateway, &pending.uuid).await.error, None);
        let more = loop {
            match try_create(&gateway, request(send(&address)), None).await {
                Ok(made) => break created(made),
                Err(fault) => assert_eq!(fault.class(), &covault_core::fault::Class::Unavailable),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        assert_eq!(outcome(&gateway, &more.uuid).await.error, None);
        gateway.stop().await;
    }
    assert_eq!(world.evm.nonces(), (0..8).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop__should_refuse_what_comes_later() {
    let world = World::new();
    let gateway = world.start().await;
    gateway.stop().await;
    let fault = try_create(&gateway, request(raw("x")), None)
        .await
        .unwrap_err();
    assert_eq!(fault.message(), "the service is shutting down");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rounds__should_be_those_of_runs_of_this_process() {
    let world = World::new();
    let until = async |gateway: &Gateway, wanted: Option<(u32, u32)>| {
        let shown = async || {
            let vault = vault_named(gateway, "main").await.unwrap();
            let mut rounds = vault.keys.into_iter().filter_map(|key| key.round);
            rounds.next().map(|it| (it.round, it.of))
        };
        while shown().await != wanted {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    world.signers.hold_ed25519.send_replace(true);
    *world.signers.round.lock().unwrap() = Some(KeyRound { round: 3, of: 5 });
    let gateway = world.start().await;
    assert!(admit(&gateway).await);
    let made = call::<CreateVault>(&gateway, &admin(), vault_request("main")).await;
    made.unwrap();
    until(&gateway, Some((3, 5))).await;
    gateway.stop().await;
    // The next one claims the same run, and waits for its nodes.
    *world.signers.round.lock().unwrap() = None;
    let gateway = world.start().await;
    until(&gateway, None).await;
    *world.signers.round.lock().unwrap() = Some(KeyRound { round: 1, of: 5 });
    until(&gateway, Some((1, 5))).await;
    world.signers.hold_ed25519.send_replace(false);
    ready(&gateway, "main").await;
    until(&gateway, None).await;
}
