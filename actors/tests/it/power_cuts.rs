//! The power cut at every single operation of the disk below the store: every accepted request
//! reaches a final state, nothing is signed or sent twice, and keys answer as they did.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use covault_actors::{
    gateway::{Gateway, OperationResponse},
    operations::{CreateVault, CreateWallet},
    store::{Store, redb::RedbStore},
};
use covault_core::{fault::Fault, ids::VaultId, schema::wire};

use crate::{
    disk::{Loss, SimulatedDisk},
    restarts::{SCENARIOS, Scenario, check, fund, kind, network, set},
    world::*,
};

/// What clients were told. They repeat themselves, with the same keys, to the next process.
#[derive(Default)]
struct ClientView {
    vault: Option<VaultId>,
    wallet: Option<wire::Wallet>,
    /// By their keys.
    requests: BTreeMap<&'static str, wire::SigningRequest>,
    /// What was another time told otherwise.
    wrong: Vec<String>,
}

impl ClientView {
    fn wallet(&mut self, wallet: wire::Wallet) -> bool {
        let Some(first) = &self.wallet else {
            self.wallet = Some(wallet);
            return true;
        };
        if *first != wallet {
            self.wrong.push(format!("{first:?} became {wallet:?}"));
        }
        false
    }

    fn request(&mut self, key: &'static str, request: wire::SigningRequest) {
        let first = self.requests.entry(key).or_insert_with(|| request.clone());
        if *first != request {
            self.wrong.push(format!("{first:?} became {request:?}"));
        }
    }
}

async fn make_wallet(
    gateway: &Gateway,
    scenario: Scenario,
    vault: VaultId,
) -> Result<(wire::CreateWalletResponse, OperationResponse), Fault> {
    let request = wallet_request(vault, network(scenario), "the wallet");
    call_with_key::<CreateWallet>(gateway, &admin(), request, Some("wallet")).await
}

/// Makes vault, wallet and two requests, waits for their end, and tells what it has heard.
async fn live(world: &World, gateway: &Gateway, scenario: Scenario, told: &Mutex<ClientView>) {
    if !admit(gateway).await {
        return;
    }
    let made = call::<CreateVault>(gateway, &admin(), vault_request("main")).await;
    let Ok(made) = made else {
        return;
    };
    let vault: VaultId = made.vault.unwrap().uuid.parse().unwrap();
    told.lock().unwrap().vault = Some(vault);
    loop {
        match vault_named(gateway, "main").await {
            Ok(vault) if vault.ready => break,
            _ => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
    let Ok((made, _)) = make_wallet(gateway, scenario, vault).await else {
        return;
    };
    let wallet = made.details.unwrap();
    let address = wallet.address.clone();
    if told.lock().unwrap().wallet(wallet) {
        fund(world, scenario, &address);
    }
    for key in ["first", "second"] {
        let made = try_create(gateway, request(kind(scenario, &address)), Some(key)).await;
        if let Ok(made) = made {
            told.lock().unwrap().request(key, created(made));
        }
    }
    let made: Vec<_> = told.lock().unwrap().requests.values().cloned().collect();
    for request in made {
        while let Err(fault) = try_outcome(gateway, &admin(), &request.uuid).await {
            if !fault.message().contains("still pending") {
                break;
            }
            // A gateway that stops answers at once, and a task that never pauses cannot be aborted.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// A process on the disk, until its clients have all that they want or the power goes.
async fn run(
    world: &World,
    disk: &SimulatedDisk,
    scenario: Scenario,
    told: &Arc<Mutex<ClientView>>,
    what: &str,
) {
    let store = match RedbStore::open_backend(disk.clone()) {
        Ok(store) => Arc::new(store),
        Err(error) => {
            assert!(disk.is_dead(), "{what}: does not open: {error:?}");
            return;
        }
    };
    let started = world.try_start_with(Arc::clone(&store) as Arc<dyn Store>, world.chains());
    let gateway = match started.await {
        Ok(gateway) => gateway,
        Err(fault) => {
            assert!(disk.is_dead(), "{what}: does not start: {fault:?}");
            return;
        }
    };
    let clients = {
        let (world, gateway, told) = (world.clone(), gateway.clone(), Arc::clone(told));
        tokio::spawn(async move { live(&world, &gateway, scenario, &told).await })
    };
    let abort = clients.abort_handle();
    let over = async {
        tokio::select! {
            () = disk.died() => {
                // A moment for actors to stumble over the dead store.
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
                abort.abort();
            }
            ended = clients => ended.unwrap(),
        }
    };
    if tokio::time::timeout(Duration::from_secs(60), over)
        .await
        .is_err()
    {
        let stuck = World {
            store: Arc::clone(&store) as Arc<dyn Store>,
            ..world.clone()
        };
        let vault = vault_named(&gateway, "main").await;
        let mut requests = Vec::new();
        for id in stuck.requests().await {
            requests.push(try_outcome(&gateway, &admin(), &id.to_string()).await);
        }
        panic!(
            "{what}: hangs; the disk is dead: {}; {vault:?}; {requests:?}",
            disk.is_dead()
        );
    }
    gateway.stop().await;
    drop(gateway);
    // The store closes, and writes for the last time, only when its last user has dropped it.
    let weak = Arc::downgrade(&store);
    drop(store);
    while weak.strong_count() > 0 && !disk.is_dead() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    disk.cut();
}

fn new_store() -> Vec<u8> {
    let disk = SimulatedDisk::holding(vec![]);
    drop(RedbStore::open_backend(disk.clone()).unwrap());
    disk.image()
}

/// Operations of the disk in an undisturbed run.
async fn operations(scenario: Scenario) -> usize {
    let world = World::new();
    set(&world, scenario);
    let disk = SimulatedDisk::holding(new_store());
    let told = Arc::default();
    run(&world, &disk, scenario, &told, "whole").await;
    assert_eq!(told.lock().unwrap().requests.len(), 2);
    disk.operations()
}

/// One power cut at operation `at`, and another one at operation `again` of the next process.
async fn cut(scenario: Scenario, at: usize, loss: Loss, seed: u64, again: Option<usize>) {
    let what = format!("{scenario:?}, cut at operation {at}, {loss:?}, seed {seed}, {again:?}");
    let world = World::new();
    set(&world, scenario);
    let told = Arc::new(Mutex::new(ClientView::default()));
    let disk = SimulatedDisk::cut_at(new_store(), at);
    run(&world, &disk, scenario, &told, &what).await;
    let mut image = disk.after_power_cut(loss, seed);
    if let Some(again) = again {
        let disk = SimulatedDisk::cut_at(image, again);
        run(&world, &disk, scenario, &told, &what).await;
        image = disk.after_power_cut(loss, seed);
    }

    let disk = SimulatedDisk::holding(image);
    let store = RedbStore::open_backend(disk.clone())
        .unwrap_or_else(|error| panic!("{what}: does not open: {error:?}"));
    let world = World {
        store: Arc::new(store),
        ..world
    };
    let gateway = world.start().await;
    let ClientView {
        vault,
        wallet,
        requests,
        wrong,
    } = std::mem::take(&mut *told.lock().unwrap());
    assert!(wrong.is_empty(), "{what}: {wrong:?}");
    let accepted: Vec<_> = requests.values().map(|made| made.uuid.clone()).collect();
    check(&world, &gateway, scenario, &accepted, &what).await;
    if let (Some(vault), Some(wallet)) = (vault, wallet) {
        let (again, answer) = make_wallet(&gateway, scenario, vault).await.unwrap();
        assert!(answer.replayed, "{what}: the wallet was made again");
        assert_eq!(again.details.as_ref(), Some(&wallet), "{what}");
        let stored = world.requests().await.len();
        for (key, made) in &requests {
            let body = request(kind(scenario, &wallet.address));
            let (again, answer) = try_create(&gateway, body, Some(key)).await.unwrap();
            assert!(answer.replayed, "{what}: {key} was made again");
            assert_eq!(&again, made, "{what}");
        }
        assert_eq!(world.requests().await.len(), stored, "{what}");
    }
    // Whatever was cut, the service can be used.
    let vault = crate::world::vault(&gateway, "main").await;
    evm_wallet(&gateway, vault).await;
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart__should_finish_every_accepted_request_whatever_the_disk_has_lost() {
    // The long form takes every operation with every loss; the short one some of them.
    let long = std::env::var_os("COVAULT_LONG_SUITE").is_some();
    let started = tokio::time::Instant::now();
    let (mut points, mut cuts) = (0, 0);
    for (number, scenario) in SCENARIOS.into_iter().enumerate() {
        let operations = operations(scenario).await;
        let step = if long { 1 } else { operations.div_ceil(12) };
        let mut tried = 0;
        for at in (1 + number % step..=operations).step_by(step) {
            points += 1;
            let seed = 1_000 * number as u64 + at as u64;
            for (which, loss) in Loss::EVERY.into_iter().enumerate() {
                if !long && which != points % Loss::EVERY.len() {
                    continue;
                }
                cut(scenario, at, loss, seed, None).await;
                // Near the beginning of the next process: its repair, and what it takes up again.
                let again = 1 + (seed as usize * 7 + which) % 60;
                cut(scenario, at, loss, seed, Some(again)).await;
                tried += 2;
            }
        }
        cuts += tried;
        println!("{scenario:?}: {operations} operations of the disk, {tried} runs with power cuts");
    }
    println!("{points} points, {cuts} runs, {:?}", started.elapsed());
}
