//! Trouble that must stay where it is: with one request, one vault, one call.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use covault_actors::{
    gateway::{Caller, Gateway},
    operations::{CreateSigningRequest, CreateVault, CreateWallet},
    store::{Batch, Key, KeySpace, Precondition, Scan, Store, memory::MemoryStore},
};
use covault_core::{
    fault::{Class, Fault, FaultCode},
    ids::{TokenId, VaultId},
    schema::{
        admin::Vault,
        wire::{
            NetworkType, create_signing_request_request::Type as Kind, signing_request::Status,
        },
    },
    signature::Curve,
};

use futures::future::join_all;
use tokio::{sync::Semaphore, time::Instant};

use crate::{
    faulty_store::{FaultyStore, StoreFault},
    held_store::HeldStore,
    world::*,
};

async fn new_vault(gateway: &Gateway) -> Vault {
    assert!(admit(gateway).await);
    let made = call::<CreateVault>(gateway, &admin(), vault_request("main")).await;
    made.unwrap().vault.unwrap()
}

async fn vault_view(gateway: &Gateway) -> Vault {
    vault_named(gateway, "main").await.unwrap()
}

async fn until(gateway: &Gateway, wanted: impl Fn(&Vault) -> bool) -> Vault {
    loop {
        let vault = vault_view(gateway).await;
        if wanted(&vault) {
            return vault;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request__should_not_stay_behind_when_its_vault_dies_while_it_is_created() {
    let world = World::new();
    let store = HeldStore::new(Arc::clone(&world.store));
    world.signers.hold_ed25519.send_replace(true);
    let gateway = world.start_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let vault: VaultId = new_vault(&gateway).await.uuid.parse().unwrap();
    let address = loop {
        let request = wallet_request(vault, NetworkType::Evm, "");
        match call::<CreateWallet>(&gateway, &admin(), request).await {
            Ok(made) => break made.details.unwrap().address,
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    };
    let creating = {
        let gateway = gateway.clone();
        tokio::spawn(async move { try_create(&gateway, request(raw(&address)), None).await })
    };
    let mut handed = store.handed.subscribe();
    handed.wait_for(|handed| *handed == 1).await.unwrap();
    // The vault's next commit fails, and so does the vault.
    store.fail_vault.store(true, Ordering::SeqCst);
    world.signers.hold_ed25519.send_replace(false);
    let fault = creating.await.unwrap().unwrap_err();
    assert_eq!(fault.class(), &Class::Unavailable);
    assert!(fault.message().contains("outcome is not known"), "{fault}");
    // It starts again, sees no request, and only then the batch lands.
    ready(&gateway, "main").await;
    assert_eq!(world.pending().await, 0);
    store.hold.send_replace(false);
    while world.requests().await.is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let [id] = world.requests().await[..] else {
        panic!("one request")
    };
    assert_eq!(outcome(&gateway, &id.to_string()).await.error, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer__should_not_wait_for_one_that_no_node_can_judge() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 600_000;
    *world.evm.unanswerable.lock().unwrap() = Some("666".into());
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let mut odd = send_native(&address);
    odd.value = "666".into();
    let odd = create(&gateway, Kind::EvmSendNative(odd)).await;
    for _ in 0..3 {
        let pending = create(&gateway, send(&address)).await;
        assert_eq!(outcome(&gateway, &pending.uuid).await.error, None);
    }
    *world.evm.unanswerable.lock().unwrap() = None;
    assert_eq!(outcome(&gateway, &odd.uuid).await.error, None);
    assert_eq!(world.evm.nonces(), [0, 1, 2, 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_that_takes_nothing__should_not_keep_others_from_signing() {
    let mut world = World::new();
    world.settings.max_live_requests = 1;
    world.evm.stuck.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let stuck = create(&gateway, send(&address)).await;
    while world.evm.handed.lock().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let pending = create(&gateway, raw(&address)).await;
    assert_eq!(outcome(&gateway, &pending.uuid).await.error, None);
    assert_eq!(
        details(&gateway, &stuck.uuid).await.status(),
        Status::Pending
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_client_of_a_chain_that_hangs__should_leave_places_for_others() {
    let mut world = World::new();
    world.settings.max_live_requests = 20;
    world.settings.signing_deadline_ms = 600_000;
    world.evm.down.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let hung = evm_wallet(&gateway, vault(&gateway, "hung").await).await;
    let well = evm_wallet(&gateway, vault(&gateway, "well").await).await;
    let mut taken = 0;
    let fault = loop {
        match try_create(&gateway, request(send(&hung)), None).await {
            Ok(_) => taken += 1,
            Err(fault) => break fault,
        }
    };
    assert_eq!(fault.class(), &Class::Unavailable);
    assert_eq!(taken, 10, "half of them");
    // Its token gets no more, for whatever vault; another one does, also of its vault.
    let other = Caller {
        token: TokenId::from_bytes([3; 16]),
        ..admin()
    };
    for from in [&hung, &well] {
        let refused = call::<CreateSigningRequest>(&gateway, &admin(), request(raw(from))).await;
        assert!(refused.unwrap_err().message().contains("for others"));
        for _ in 0..20 {
            let made = call::<CreateSigningRequest>(&gateway, &other, request(raw(from))).await;
            let made = made.unwrap().signing_request.unwrap();
            assert_eq!(outcome(&gateway, &made.uuid).await.error, None);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_on_a_slow_chain__should_be_refused_and_not_fail_later() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 6_000;
    // 200 requests a second.
    let pace = (Arc::new(Semaphore::new(4)), Duration::from_millis(20));
    *world.evm.pace.lock().unwrap() = Some(pace);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let until = Instant::now() + Duration::from_secs(5);
    let clients = (0..16).map(|_| async {
        let (mut accepted, mut refused) = (Vec::new(), 0);
        while Instant::now() < until {
            match try_create(&gateway, request(send(&address)), None).await {
                Ok((made, _)) => accepted.push(made.uuid),
                Err(fault) => {
                    assert!(matches!(fault.code(), FaultCode::Busy { .. }), "{fault:?}");
                    refused += 1;
                    // Requests that need no chain node are signed anyway.
                    let message = create(&gateway, raw(&address)).await;
                    assert_eq!(outcome(&gateway, &message.uuid).await.error, None);
                }
            }
        }
        (accepted, refused)
    });
    let clients = join_all(clients).await;
    assert!(clients.iter().any(|(_, refused)| *refused > 0));
    for uuid in clients.into_iter().flat_map(|(accepted, _)| accepted) {
        assert_eq!(outcome(&gateway, &uuid).await.error, None);
    }
}

/// So few that none is refused, and too many for their time: what nodes come to in the end has not failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests__should_wait_on_while_nodes_answer_others() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 700;
    // The last one after 7 seconds. With what its nodes are given beyond it, its time is less than six.
    let pace = (Arc::new(Semaphore::new(1)), Duration::from_millis(700));
    *world.evm.pace.lock().unwrap() = Some(pace);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let mut made = Vec::new();
    for _ in 0..10 {
        // No two of one wallet: those would wait for each other, too.
        let address = evm_wallet(&gateway, vault).await;
        made.push(create(&gateway, send(&address)).await.uuid);
    }
    for uuid in made {
        assert_eq!(outcome(&gateway, &uuid).await.error, None);
    }
}

/// The nodes have answered what the later ones asked, and those only wait for the earlier ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_one_wallet__should_wait_on_while_earlier_ones_are_not_built() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 500;
    let pace = (Arc::new(Semaphore::new(1)), Duration::from_millis(700));
    *world.evm.pace.lock().unwrap() = Some(pace);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let mut made = Vec::new();
    // The last one after about 3.5 seconds; it may wait for 15.
    for _ in 0..5 {
        made.push(create(&gateway, send(&address)).await.uuid);
    }
    for uuid in made {
        assert_eq!(outcome(&gateway, &uuid).await.error, None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn create__should_refuse_more_bytes_than_the_settings_allow() {
    let mut world = World::new();
    world.settings.max_live_bytes = 9_300;
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    // What ends gives its bytes back.
    for _ in 0..20 {
        let mut noted = request(raw(&address));
        noted.notes = Some("n".repeat(500));
        let made = loop {
            match try_create(&gateway, noted.clone(), None).await {
                Ok(made) => break created(made),
                Err(fault) => assert_eq!(fault.class(), &Class::Unavailable),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        outcome(&gateway, &made.uuid).await;
    }
    let mut noted = request(raw(&address));
    noted.notes = Some("n".repeat(1_200));
    let fault = try_create(&gateway, noted, None).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits__should_count_what_was_live_before_a_restart() {
    let mut world = World::new();
    world.settings.max_live_requests = 2;
    world.signers.silent.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let first = create(&gateway, raw(&address)).await;
    let second = create(&gateway, raw(&address)).await;
    gateway.stop().await;
    for _ in 0..2 {
        let unanswered = world.signers.unanswered.load(Ordering::SeqCst);
        let gateway = world.start().await;
        // Both are live again.
        while world.signers.unanswered.load(Ordering::SeqCst) < unanswered + 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let refused = try_create(&gateway, request(raw(&address)), None).await;
        let fault = refused.unwrap_err();
        assert!(fault.message().contains("too many"), "{fault}");
        gateway.stop().await;
    }
    world.signers.silent.store(false, Ordering::SeqCst);
    let gateway = world.start().await;
    for request in [first, second] {
        assert_eq!(outcome(&gateway, &request.uuid).await.error, None);
    }
    let third = loop {
        match try_create(&gateway, request(raw(&address)), None).await {
            Ok(made) => break created(made),
            Err(fault) => assert_eq!(fault.class(), &Class::Unavailable),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    assert_eq!(outcome(&gateway, &third.uuid).await.error, None);
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits__should_count_bytes_that_wait_for_a_node_after_a_restart_too() {
    let mut world = World::new();
    // One, with what it costs beside its notes.
    world.settings.max_live_bytes = 9_300;
    world.evm.stuck.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let noted = || {
        let mut noted = request(send(&address));
        noted.notes = Some("n".repeat(600));
        noted
    };
    let first = created(try_create(&gateway, noted(), None).await.unwrap());
    gateway.stop().await;
    for _ in 0..2 {
        let sends = world.evm.sends.load(Ordering::SeqCst);
        let gateway = world.start().await;
        while world.evm.sends.load(Ordering::SeqCst) == sends {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let fault = try_create(&gateway, noted(), None).await.unwrap_err();
        assert!(fault.message().contains("too many"), "{fault}");
        gateway.stop().await;
    }
    world.evm.stuck.store(false, Ordering::SeqCst);
    let gateway = world.start().await;
    assert_eq!(outcome(&gateway, &first.uuid).await.error, None);
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits__should_be_as_large_as_anybody_likes() {
    let mut world = World::new();
    world.settings.max_live_requests = usize::MAX;
    world.settings.max_live_bytes = usize::MAX;
    world.settings.max_commands = usize::MAX;
    let gateway = world.start().await;
    vault(&gateway, "main").await;
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands__should_keep_their_places_until_they_are_done() {
    let mut world = World::new();
    world.settings.max_commands = 4;
    world.settings.command_timeout_ms = 10_000;
    let store = HeldStore::new(Arc::clone(&world.store));
    let gateway = world.start_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    gateway.stop().await;

    // From now on nobody waits for long, and the store takes no request.
    world.settings.command_timeout_ms = 20;
    let gateway = world.start_on(Arc::clone(&store) as Arc<dyn Store>).await;
    ready(&gateway, "main").await;
    let call = async || try_create(&gateway, request(raw(&address)), None).await;
    let mut waiting = 0;
    while waiting < 3 {
        let fault = call().await.unwrap_err();
        assert_eq!(fault.class(), &Class::Unavailable);
        // A vault that is only starting was not asked anything.
        waiting += usize::from(fault.message().contains("outcome is not known"));
    }
    for _ in 0..10 {
        let fault = call().await.unwrap_err();
        assert!(fault.message().contains("too many"), "{fault}");
    }
    let mut handed = store.handed.subscribe();
    handed.wait_for(|handed| *handed == 3).await.unwrap();
    store.hold.send_replace(false);
    while call().await.is_err() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Requests whose callers stopped waiting are done anyway.
    for id in world.requests().await {
        assert_eq!(outcome(&gateway, &id.to_string()).await.error, None);
    }
    assert!(world.requests().await.len() >= 4);
}

/// Changes the bytes of the only stored request.
async fn damage(world: &World, change: impl Fn(&mut Vec<u8>)) -> String {
    let rows = world
        .store
        .scan(&Scan::prefix(KeySpace::Request, &[], 2))
        .await
        .unwrap();
    let [(key, row)] = &rows[..] else {
        panic!("one request")
    };
    let mut value = row.value.clone();
    change(&mut value);
    let mut batch = Batch::new();
    batch.put(key.clone(), Precondition::Any, value);
    world.store.commit(batch).await.unwrap();
    covault_core::ids::RequestId::from_bytes(key.bytes.clone().try_into().unwrap()).to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_cannot_be_read__should_not_stop_its_vault() {
    for whole_row in [false, true] {
        let world = World::on(Arc::new(MemoryStore::new()));
        world.signers.silent.store(true, Ordering::SeqCst);
        let gateway = world.start().await;
        let vault = vault(&gateway, "main").await;
        let address = evm_wallet(&gateway, vault).await;
        create(&gateway, raw(&address)).await;
        gateway.stop().await;
        let damaged = damage(&world, |value| {
            if whole_row {
                value.truncate(20);
                return;
            }
            // A payload of another kind: the field's number in front of its bytes.
            let from = address.as_bytes();
            let payload = value
                .windows(from.len())
                .rposition(|part| part == from)
                .unwrap();
            value[payload - 2..payload].fill(0xff);
        })
        .await;
        world.signers.silent.store(false, Ordering::SeqCst);

        let gateway = world.start().await;
        let pending = create(&gateway, raw(&address)).await;
        assert_eq!(outcome(&gateway, &pending.uuid).await.error, None);
        if !whole_row {
            let error = outcome(&gateway, &damaged).await.error.unwrap();
            assert!(error.message.starts_with("internal error"), "{error:?}");
            let shown = details(&gateway, &damaged).await;
            assert_eq!((shown.status(), shown.r#type), (Status::Failed, None));
        }
        gateway.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn create_vault__should_make_keys_again_that_had_failed_for_good() {
    let world = World::new();
    world.signers.refuse_keygen.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let made = new_vault(&gateway).await;
    let failed = until(&gateway, |vault| vault.failed_reason.is_some()).await;
    assert_eq!(failed.failed_reason.unwrap(), "the order has expired");
    world.signers.refuse_keygen.store(false, Ordering::SeqCst);
    let again = new_vault(&gateway).await;
    assert_eq!((&again.uuid, again.failed_reason), (&made.uuid, None));
    until(&gateway, |vault| vault.ready).await;
    evm_wallet(&gateway, made.uuid.parse().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn create_vault__should_not_be_undone_by_a_refusal_from_before_it() {
    let world = World::new();
    world.signers.refuse_keygen.store(true, Ordering::SeqCst);
    world.signers.hold_ed25519.send_replace(true);
    let gateway = world.start().await;
    new_vault(&gateway).await;
    // One key is given up; that the other one is refused is not known yet.
    until(&gateway, |vault| vault.failed_reason.is_some()).await;
    world.signers.refuse_keygen.store(false, Ordering::SeqCst);
    new_vault(&gateway).await;
    world.signers.hold_ed25519.send_replace(false);
    let vault = until(&gateway, |vault| {
        vault.ready || vault.failed_reason.is_some()
    })
    .await;
    assert_eq!((vault.ready, vault.failed_reason), (true, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keygen__should_hear_the_cluster_out_and_say_what_is_wrong() {
    let mut world = World::new();
    world.settings.keygen_deadline_ms = 30;
    world.signers.late_keygen.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    new_vault(&gateway).await;
    let late = until(&gateway, |vault| vault.problem.is_some()).await;
    assert_eq!(late.problem.unwrap(), "not enough signers: missing node-2");
    assert_eq!((late.ready, late.failed_reason), (false, None));
    world.signers.late_keygen.store(false, Ordering::SeqCst);
    let vault = until(&gateway, |vault| vault.ready).await;
    assert_eq!(vault.problem, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn building__should_get_new_time_after_an_outage() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 5_000;
    world.evm.down.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let pending = create(&gateway, send(&address)).await;
    gateway.stop().await;
    world.clock.ahead_ms.fetch_add(3_600_000, Ordering::SeqCst);
    world.evm.asked.store(0, Ordering::SeqCst);
    let gateway = world.start().await;
    while world.evm.asked.load(Ordering::SeqCst) < 3 {
        assert_eq!(
            details(&gateway, &pending.uuid).await.status(),
            Status::Pending
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    world.evm.down.store(false, Ordering::SeqCst);
    assert_eq!(outcome(&gateway, &pending.uuid).await.error, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop__should_send_home_who_waits_for_a_request() {
    let mut world = World::new();
    world.settings.execute_wait_ms = 600_000;
    world.signers.silent.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let pending = create(&gateway, raw(&address)).await;
    let wait = |gateway: Gateway, uuid: String| async move {
        try_outcome(&gateway, &admin(), &uuid).await
    };
    let waiting = tokio::spawn(wait(gateway.clone(), pending.uuid.clone()));
    gateway.stop().await;
    let late = wait(gateway, pending.uuid);
    for outcome in [waiting.await.unwrap(), late.await] {
        let fault: Fault = outcome.unwrap_err();
        assert_eq!(fault.class(), &Class::Unavailable);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ready__should_write_once_however_many_ask() {
    let world = World::new();
    let store = FaultyStore::new(Arc::clone(&world.store), usize::MAX, StoreFault::Before);
    let gateway = world.start_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let ask = || async { gateway.ready().await.unwrap() };
    futures::future::join_all((0..50).map(|_| ask())).await;
    let first = store.commits();
    assert!(first <= 2, "{first} commits");
    world.clock.ahead_ms.fetch_add(1_000, Ordering::SeqCst);
    ask().await;
    assert_eq!(store.commits(), first + 1);
    let probe = world
        .store
        .get(&Key::new(KeySpace::Probe, &[]))
        .await
        .unwrap();
    assert!(probe.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keygen__should_repeat_its_run_after_a_restart_only_when_there_is_time() {
    for (later_ms, same) in [(60_000, true), (100_000, false), (200_000, false)] {
        let mut world = World::new();
        world.settings.keygen_deadline_ms = 120_000;
        world.signers.hold_ed25519.send_replace(true);
        let gateway = world.start().await;
        new_vault(&gateway).await;
        let sessions = || {
            let orders = world.signers.keygens.lock().unwrap();
            let of_curve = orders
                .iter()
                .filter(|order| order.scheme.curve() == Curve::Ed25519);
            of_curve.map(|order| order.session).collect::<Vec<_>>()
        };
        while sessions().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        gateway.stop().await;
        world.clock.ahead_ms.fetch_add(later_ms, Ordering::SeqCst);
        world.signers.hold_ed25519.send_replace(false);
        let gateway = world.start().await;
        ready(&gateway, "main").await;
        let [first, second] = sessions()[..] else {
            panic!("{:?}", sessions())
        };
        assert_eq!(first == second, same, "{later_ms} ms later");
    }
}
