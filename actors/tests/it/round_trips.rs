//! How often a request goes to the store, which may be on another machine.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use covault_actors::{
    gateway::Gateway,
    store::KeySpace,
    testing::{StoreCall, ToldStore},
};

use covault_core::schema::wire::{self, create_signing_request_request::Type as Kind};

use crate::{
    delayed_port::DelayedPort,
    postgres::Postgres,
    processes::{opened, world_on_database},
    world::*,
};

/// Looking after others is no part of a request.
fn is_upkeep(space: KeySpace) -> bool {
    matches!(
        space,
        KeySpace::Member | KeySpace::Node | KeySpace::NodeStatus | KeySpace::Lease
    )
}

/// Each question to a store and each commit, in words.
fn trip(call: StoreCall<'_>) -> Option<String> {
    let (what, space) = match call {
        StoreCall::Commit(batch) => {
            let mut spaces = batch.writes().iter().map(|write| write.key.space);
            ("commit", spaces.find(|space| !is_upkeep(*space))?)
        }
        StoreCall::Get(key) => ("get", key.space),
        StoreCall::GetAll(keys) => ("get all", keys.first()?.space),
        StoreCall::Scan(scan) => ("scan", scan.space),
    };
    (!is_upkeep(space)).then(|| format!("{what} {space:?}"))
}

async fn transfer(world: &World, gateway: &Gateway, from: &str, to: &str) -> String {
    let before = world.evm.accepted();
    let payment = wire::EvmSendNative {
        to: to.into(),
        ..send_native(from)
    };
    let made = create(gateway, Kind::EvmSendNative(payment)).await;
    while world.evm.accepted() == before || world.pending().await > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    made.uuid
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer__should_go_to_the_store_four_times() {
    let mut world = World::new();
    // What follows a transaction is no part of its request.
    world.settings.tracking_first_ms = 3_600_000;
    let taken = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&taken);
    let store = ToldStore::new(&world.store, move |call: StoreCall<'_>| {
        noted.lock().unwrap().extend(trip(call));
    });
    let gateway = world.start_on(store).await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let own = evm_wallet(&gateway, vault).await;
    // Nobody was paid before, but for the second wallet, which is known once it was.
    let strangers = (1..=5).map(|number| format!("0x{number:040x}"));
    let recipients: Vec<String> = strangers.chain([own.clone(), own]).collect();
    let mut trips = Vec::new();
    let mut requests = Vec::new();
    for to in &recipients {
        taken.lock().unwrap().clear();
        requests.push(transfer(&world, &gateway, &address, to).await);
        trips.push(std::mem::take(&mut *taken.lock().unwrap()));
    }
    // The first one looks at what is not known, and so does the first one to the second wallet.
    for number in [1, 2, 3, 4, 6] {
        let trips = &trips[number];
        let commits = trips.iter().filter(|trip| trip.starts_with("commit"));
        assert_eq!((trips.len(), commits.count()), (4, 4), "{trips:#?}");
    }
    assert_eq!(world.evm.nonces(), (0..7).collect::<Vec<_>>());
    // Signers hear of those that are the vault's own, however it was found out.
    let told = requests.iter().map(|uuid| world.signers.recipients(uuid));
    let told: Vec<usize> = told.map(|indices| indices.len()).collect();
    assert_eq!(told, [0, 0, 0, 0, 0, 1, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message__should_be_two_commits_with_an_audit_entry_each_and_two_questions() {
    let world = World::new();
    let taken = Arc::new(Mutex::new(Vec::new()));
    let entries = Arc::new(AtomicUsize::new(0));
    let (noted, counted) = (Arc::clone(&taken), Arc::clone(&entries));
    let store = ToldStore::new(&world.store, move |call: StoreCall<'_>| {
        noted.lock().unwrap().extend(trip(call));
        if let StoreCall::Commit(batch) = call {
            counted.fetch_add(batch.appends().len(), Ordering::SeqCst);
        }
    });
    let gateway = world.start_on(store).await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    // The first one looks at what is not known.
    let uuid = create(&gateway, raw(&address)).await.uuid;
    outcome(&gateway, &uuid).await;
    for _ in 0..5 {
        taken.lock().unwrap().clear();
        entries.store(0, Ordering::SeqCst);
        let uuid = create(&gateway, raw(&address)).await.uuid;
        let signed = outcome(&gateway, &uuid).await;
        let shown = details(&gateway, &uuid).await;
        assert_eq!(shown.signatures, signed.signatures);
        let mut trips = std::mem::take(&mut *taken.lock().unwrap());
        // What the vault reads after its start is no part of them.
        trips.retain(|trip| trip != "scan OpenBatch");
        // It may have ended before it was asked for.
        trips.sort();
        let expected = [
            "commit Request",
            "commit Request",
            "get Request",
            "get all Request",
        ];
        assert_eq!(trips, expected);
        assert_eq!(entries.load(Ordering::SeqCst), 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer__should_take_four_round_trips_to_postgres() {
    let server = Postgres::start();
    let url = server.database();
    let counted = DelayedPort::to(server.port()).await;
    let mut world = world_on_database(url.clone()).await;
    // What follows a transaction is no part of its request, and neither is looking after leases.
    world.settings.tracking_first_ms = 3_600_000;
    world.settings.heartbeat_ms = 3_600_000;
    world.settings.lease_ms = 36_000_000;
    let gateway = world.start_on(opened(&counted.url(&url)).await).await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let mut trips = Vec::new();
    for number in 1..=8 {
        let before = counted.questions();
        transfer(&world, &gateway, &address, &format!("0x{number:040x}")).await;
        trips.push(counted.questions() - before);
    }
    // The first ones prepare statements, and see how far the vault's audit log is. Something else may be done
    // beside any of them.
    assert_eq!(trips.iter().min(), Some(&4), "{trips:?}");
}
