//! Several orchestrators: one owner each, take-over, hand-over, and no harm by those that stall.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use covault_actors::{
    operations::{CreateVault, CreateWallet, ListNodes},
    store::{Key, KeySpace, Scan},
};
use covault_core::{
    fault::Class,
    ids::VaultId,
    schema::{admin, wire::NetworkType},
};

use crate::{
    fake_signers::FakeSigners,
    many_vaults::{copy_vault, numbered},
    processes::{Process, leases, owned, owner, world},
    world::*,
};

const HOUR: u64 = 60 * 60 * 1000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vaults__should_be_spread_and_be_used_through_every_process() {
    spread(&world()).await;
}

pub async fn spread(world: &World) {
    let (one, two) = (Process::start(world).await, Process::start(world).await);
    let both = [&one, &two];
    let mut vaults = Vec::new();
    for number in 0..12 {
        vaults.push(both[number % 2].vault(&format!("v{number}")).await);
    }
    let mut by_owner: BTreeMap<usize, usize> = BTreeMap::new();
    for (number, vault) in vaults.iter().enumerate() {
        *by_owner
            .entry(owned(world, *vault, &both).await)
            .or_default() += 1;
        // No matter which of them has it: both answer.
        for process in both {
            let address = process.evm_wallet(*vault).await;
            let other = both[(number + 1) % 2];
            let uuid = other.create(&address).await;
            assert!(process.outcome(&uuid).await);
        }
    }
    assert_eq!(by_owner.len(), 2, "{by_owner:?}");
    assert_eq!(leases(world).await.len(), 12);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill__should_be_taken_over_after_the_lease_time_and_not_before() {
    kill(&world()).await;
}

pub async fn kill(world: &World) {
    let mut one = Process::start(world).await;
    let vault = one.vault("main").await;
    let address = one.evm_wallet(vault).await;
    assert_eq!(owned(world, vault, &[&one]).await, 0);
    world.signers.silent.store(true, Ordering::SeqCst);
    let pending = one.create(&address).await;
    let two = Process::start(world).await;
    one.kill();
    world.signers.silent.store(false, Ordering::SeqCst);
    let (heartbeat, lease) = (world.settings.heartbeat_ms, world.settings.lease_ms);
    // Wall clocks are nothing to it.
    world.clock.ahead_ms.fetch_add(HOUR, Ordering::SeqCst);
    for _ in 0..5 {
        two.let_pass(world, 0).await;
    }
    assert_eq!(owner(world, vault, &[&one, &two]).await, Some(0));
    let mut passed = 0;
    while owner(world, vault, &[&one, &two]).await != Some(1) {
        two.let_pass(world, heartbeat).await;
        passed += heartbeat;
        assert!(passed <= lease + 3 * heartbeat, "{passed} ms");
    }
    assert!(passed >= lease, "{passed} ms");
    assert!(two.outcome(&pending).await);
    let more = two.create(&address).await;
    assert!(two.outcome(&more).await);
    assert_eq!(world.evm.nonces(), [0, 1]);
    assert_eq!(world.pending().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_in_the_same_place__should_wait_for_nothing() {
    let mut world = world();
    world.home = Some([1; 32]);
    let mut one = Process::start(&world).await;
    let vault = one.vault("main").await;
    let address = one.evm_wallet(vault).await;
    assert_eq!(owned(&world, vault, &[&one]).await, 0);
    one.kill();
    let two = Process::start(&world).await;
    assert_eq!(owned(&world, vault, &[&two]).await, 0);
    assert_eq!(two.monotonic.0.load(Ordering::SeqCst), 0);
    let uuid = two.create(&address).await;
    assert!(two.outcome(&uuid).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn front_end__should_send_on_what_needs_a_vault_and_answer_the_rest() {
    let world = world();
    let one = Process::start(&world).await;
    let front = World {
        runs_vaults: false,
        ..world.clone()
    };
    let front = Process::start(&front).await;
    let vault = front.vault("main").await;
    let address = front.evm_wallet(vault).await;
    let uuid = front.create(&address).await;
    assert!(front.outcome(&uuid).await);
    assert_eq!(owner(&world, vault, &[&one, &front]).await, Some(0));
    assert_eq!(front.gateway.vault_share().0, 0);
    let unknown = wallet_request(VaultId::from_bytes([9; 16]), NetworkType::Evm, "");
    let gateway = front.gateway.clone();
    let made = front.inside(async move { call::<CreateWallet>(&gateway, &admin(), unknown).await });
    let fault = made.await.unwrap().unwrap_err();
    assert_eq!(fault.message(), "Invalid uuid");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop__should_hand_over_at_once() {
    stop(&world()).await;
}

pub async fn stop(world: &World) {
    let mut one = Process::start(world).await;
    let vault = one.vault("main").await;
    let address = one.evm_wallet(vault).await;
    assert_eq!(owned(world, vault, &[&one]).await, 0);
    let two = Process::start(world).await;
    world.signers.silent.store(true, Ordering::SeqCst);
    let pending = one.create(&address).await;
    while world.signers.unanswered.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // That call gets no answer any more; those of the other one do.
    world.signers.silent.store(false, Ordering::SeqCst);
    one.stop().await;
    // Its clock does not move: nothing is waited for.
    assert_eq!(two.monotonic.0.load(Ordering::SeqCst), 0);
    assert_eq!(owned(world, vault, &[&two]).await, 0);
    assert!(two.outcome(&pending).await);
    assert_eq!(world.evm.nonces(), [0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves__should_give_its_vaults_to_anybody_alive_and_go_on_with_calls() {
    leave(&world()).await;
}

pub async fn leave(world: &World) {
    let mut one = Process::start(world).await;
    let mut accounts = Vec::new();
    for number in 0..4 {
        let vault = one.vault(&format!("v{number}")).await;
        accounts.push((vault, one.evm_wallet(vault).await));
    }
    let mut two = Process::start(world).await;
    world.signers.silent.store(true, Ordering::SeqCst);
    let mut uuids = vec![one.create(&accounts[0].1).await];
    while world.signers.unanswered.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // That call gets no answer any more; those of others do.
    world.signers.silent.store(false, Ordering::SeqCst);
    while one.gateway.vault_share().1 < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    one.leave().await;
    assert_eq!(one.gateway.vault_share().0, 0);
    // Nobody's clock has moved: the other one has not been there for long.
    for (vault, _) in &accounts {
        assert_eq!(owned(world, *vault, &[&two]).await, 0);
    }
    // Calls come to it as before, and none is refused.
    for (_, address) in &accounts {
        uuids.push(one.create(address).await);
        uuids.push(two.create(address).await);
    }
    let late = one.vault("late").await;
    assert_eq!(owned(world, late, &[&two]).await, 0);
    assert!(one.gateway.ready().await.is_err());
    for uuid in &uuids {
        assert!(one.outcome(uuid).await);
    }
    one.stop().await;
    for uuid in &uuids {
        assert!(two.outcome(uuid).await);
    }
    assert_eq!(world.evm.handed.lock().unwrap().len(), uuids.len());
    // There is nobody who would take anything from the last one.
    two.leave().await;
    let last = two.create(&accounts[0].1).await;
    assert!(two.outcome(&last).await);
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_vaults__should_move_together() {
    const VAULTS: usize = 300;
    let world = world();
    let mut one = Process::start(&world).await;
    let gateway = one.gateway.clone();
    let made = one.inside(async move {
        assert!(admit(&gateway).await);
        for number in 0..VAULTS {
            let request = vault_request(&format!("v{number}"));
            call::<CreateVault>(&gateway, &admin(), request)
                .await
                .unwrap();
        }
    });
    made.await.unwrap();
    let commits = |process: &Process| process.connection.lease_commits.swap(0, Ordering::SeqCst);
    let here = |process: &Process| process.gateway.vault_share().0;
    assert_eq!(here(&one), VAULTS);
    commits(&one);
    let two = Process::start(&world).await;
    // About half of them are for the new one.
    while here(&two) < VAULTS / 3 || here(&one) + here(&two) < VAULTS {
        one.let_pass(&world, world.settings.heartbeat_ms).await;
    }
    let (gave, took) = (commits(&one), commits(&two));
    assert!(gave <= 4 && took <= 8, "{gave} {took}");
    let left = here(&one);
    one.stop().await;
    while here(&two) < VAULTS {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (gave, took) = (commits(&one), commits(&two));
    assert!(gave <= 2 && took <= 4, "{gave} {took} for {left}");
    // Each can be read through either process.
    let vaults = leases(&world).await;
    assert_eq!(vaults.len(), VAULTS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vaults_that_move__should_be_nowhere_in_bounded_number_however_slowly_they_are_taken() {
    const VAULTS: usize = 40_000;
    let mut world = world();
    world.settings.heartbeat_ms = 100;
    world.settings.lease_ms = 3_000;
    let mut zero = Process::start(&world).await;
    let template = zero.vault(&numbered(0)).await;
    zero.stop().await;
    copy_vault(&*world.store, template, 1..VAULTS).await;
    let here = |process: &Process| process.gateway.vault_share().0;
    let one = Process::start(&world).await;
    one.let_run();
    while here(&one) < VAULTS {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let two = Process::start(&world).await;
    two.connection.lease_delay_ms.store(20, Ordering::SeqCst);
    two.let_run();
    let mut most = 0;
    loop {
        let (here_one, here_two) = (here(&one), here(&two));
        most = most.max(VAULTS.saturating_sub(here_one + here_two));
        if here_two > VAULTS / 3 && here_one + here_two == VAULTS {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(most <= 8_192, "{most}");
    // Most of the time it reads only what it is to get.
    let scans = two.connection.lease_scans.load(Ordering::SeqCst);
    let takes = two.connection.lease_commits.load(Ordering::SeqCst);
    assert!(takes > 50 && scans <= 12, "{takes} {scans}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_owner__should_commit_nothing_once_another_has_the_vault() {
    stalled_owner(&world()).await;
}

pub async fn stalled_owner(world: &World) {
    let one = Process::start(world).await;
    let vault = one.vault("main").await;
    let address = one.evm_wallet(vault).await;
    assert_eq!(owned(world, vault, &[&one]).await, 0);
    world.signers.silent.store(true, Ordering::SeqCst);
    let pending = one.create(&address).await;
    let two = Process::start(world).await;
    // It freezes, with a call on its way.
    one.connection.frozen.send_replace(true);
    let late = {
        let gateway = one.gateway.clone();
        let kind = request(send(&address));
        tokio::spawn(async move { try_create(&gateway, kind, Some("late")).await })
    };
    world.signers.silent.store(false, Ordering::SeqCst);
    while owner(world, vault, &[&one, &two]).await != Some(1) {
        two.let_pass(world, world.settings.heartbeat_ms).await;
    }
    assert!(two.outcome(&pending).await);
    let more = two.create(&address).await;
    assert!(two.outcome(&more).await);
    let before = world.requests().await.len();
    // It wakes up. What it was at is done by the other, or not at all.
    one.connection.frozen.send_replace(false);
    let late = match late.await.unwrap() {
        // It was taken over before it could say what came of it: who repeats the call gets that.
        Err(fault) if *fault.class() == Class::Unavailable => {
            let again = request(send(&address));
            try_create(&two.gateway, again, Some("late")).await
        }
        made => made,
    };
    let late = created(late.unwrap());
    assert!(two.outcome(&late.uuid).await);
    assert_eq!(world.requests().await.len(), before + 1);
    assert!(one.outcome(&pending).await);
    let through_one = one.create(&address).await;
    assert!(one.outcome(&through_one).await);
    // The vault may be back by now, where it is to be.
    assert_eq!(world.evm.nonces(), [0, 1, 2, 3]);
    assert_eq!(world.evm.handed.lock().unwrap().len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_in_flight__should_be_refused_when_the_vault_went_meanwhile() {
    commit_in_flight(&world()).await;
}

pub async fn commit_in_flight(world: &World) {
    let one = Process::start(world).await;
    let vault = one.vault("main").await;
    let address = one.evm_wallet(vault).await;
    assert_eq!(owned(world, vault, &[&one]).await, 0);
    let two = Process::start(world).await;
    // The first commit of a request is on its way when all stands still.
    one.connection.held.send_replace(true);
    let asked = request(send(&address));
    let first = {
        let (gateway, asked) = (one.gateway.clone(), asked.clone());
        tokio::spawn(async move { try_create(&gateway, asked, Some("k")).await })
    };
    let mut waiting = one.connection.waiting.subscribe();
    waiting.wait_for(|waiting| *waiting > 0).await.unwrap();
    one.connection.frozen.send_replace(true);
    while owner(world, vault, &[&one, &two]).await != Some(1) {
        two.let_pass(world, world.settings.heartbeat_ms).await;
    }
    assert!(world.requests().await.is_empty());
    // It arrives before its sender finds out in any other way.
    one.connection.held.send_replace(false);
    let mut refused = one.connection.refused.subscribe();
    refused.wait_for(|refused| *refused > 0).await.unwrap();
    one.connection.frozen.send_replace(false);
    // It is done after all, where the vault is now.
    let made = created(first.await.unwrap().unwrap());
    for process in [&one, &two] {
        let again = process.submit(asked.clone(), "k".into()).await.unwrap();
        let (again, answer) = again.unwrap();
        assert!(answer.replayed);
        assert_eq!(again, made);
    }
    assert!(one.outcome(&made.uuid).await);
    assert_eq!(world.requests().await.len(), 1);
    assert_eq!(world.evm.nonces(), [0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outcome__should_be_told_by_a_process_that_has_not_got_the_vault() {
    let world = world();
    let one = Process::start(&world).await;
    let vault = one.vault("main").await;
    let address = one.evm_wallet(vault).await;
    let two = Process::start(&world).await;
    world.evm.down.store(true, Ordering::SeqCst);
    let pending = one.create(&address).await;
    let waits = async { two.outcome(&pending).await };
    let goes_on = async {
        tokio::task::yield_now().await;
        world.evm.down.store(false, Ordering::SeqCst);
    };
    let (told, ()) = tokio::join!(waits, goes_on);
    assert!(told);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_process__should_say_why_a_request_or_a_key_waits() {
    let mut world = world();
    world.settings.keygen_deadline_ms = 30;
    let owner = Process::start(&world).await;
    let front = World {
        runs_vaults: false,
        ..world.clone()
    };
    let front = Process::start(&front).await;
    let vault = owner.vault("main").await;
    let address = owner.evm_wallet(vault).await;
    world.evm.down.store(true, Ordering::SeqCst);
    let uuid = owner.create(&address).await;
    for process in [&owner, &front] {
        let (gateway, uuid) = (process.gateway.clone(), uuid.clone());
        let told = process.inside(async move {
            loop {
                let fault = try_outcome(&gateway, &admin(), &uuid).await.unwrap_err();
                if fault.message() != "the request is still pending; ask again" {
                    return fault.message().to_owned();
                }
            }
        });
        let told = told.await.unwrap();
        let why = "still pending (no chain node answered in time";
        assert!(told.contains(why), "{told}");
    }
    world.evm.down.store(false, Ordering::SeqCst);
    assert!(front.outcome(&uuid).await);
    let delays = Scan::prefix(KeySpace::Delay, &[], 10);
    assert_eq!(world.store.scan(&delays).await.unwrap(), []);

    world.signers.late_keygen.store(true, Ordering::SeqCst);
    let gateway = owner.gateway.clone();
    let made = owner.inside(async move {
        call::<CreateVault>(&gateway, &admin(), vault_request("late")).await
    });
    made.await.unwrap().unwrap();
    for process in [&owner, &front] {
        let gateway = process.gateway.clone();
        let problem = process.inside(async move {
            loop {
                let vault = vault_named(&gateway, "late").await.unwrap();
                if let Some(problem) = vault.problem {
                    return problem;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let problem = problem.await.unwrap();
        assert_eq!(problem, "not enough signers: missing node-2");
    }
}

async fn nodes_of(process: &Process) -> Vec<admin::Node> {
    let gateway = process.gateway.clone();
    let request = admin::ListNodesRequest::default();
    let nodes = process
        .inside(async move { call::<ListNodes>(&gateway, &admin(), request).await })
        .await;
    nodes.unwrap().unwrap().nodes
}

async fn available(process: &Process) -> Vec<u32> {
    let gateway = process.gateway.clone();
    let vault = process.inside(async move { vault_named(&gateway, "main").await });
    let keys = vault.await.unwrap().unwrap().keys;
    let shares = keys.into_iter().map(|key| key.shares.unwrap().available);
    shares.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_process__should_say_the_same_of_the_nodes() {
    let world = world();
    let away = |numbers: &[u8]| numbers.iter().map(|number| node(*number)).collect();
    *world.signers.away.lock().unwrap() = away(&[3]);
    let one = Process::start(&world).await;
    one.vault("main").await;
    let two = Process::start(&world).await;
    // What this one hears itself is wrong.
    let front = World {
        runs_vaults: false,
        signers: FakeSigners::new(),
        ..world.clone()
    };
    *front.signers.away.lock().unwrap() = away(&[1, 2]);
    let front = Process::start(&front).await;
    let all = [&one, &two, &front];
    let version = async |number| {
        let key = Key::new(KeySpace::NodeStatus, &[&[1], &node(number).0]);
        world.store.get(&key).await.unwrap().map(|row| row.version)
    };
    for (absent, live, can_sign) in [(3, [true, true, false], 2), (2, [true, false, true], 2)] {
        *world.signers.away.lock().unwrap() = away(&[absent]);
        for process in all {
            let expected = vec![can_sign; available(process).await.len()];
            loop {
                let nodes = nodes_of(process).await;
                assert_eq!(nodes.len(), 3);
                let said: Vec<bool> = nodes.iter().map(|node| node.live).collect();
                if said == live && available(process).await == expected {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
    // Nobody wrote for the sake of time: 20 looks and more have passed since.
    let before = [version(1).await, version(2).await, version(3).await];
    for process in [&one, &two] {
        for _ in 0..10 {
            process.let_pass(&world, 0).await;
        }
    }
    let after = [version(1).await, version(2).await, version(3).await];
    assert_eq!(before, after);
    assert_eq!(after, [Some(1), Some(2), Some(2)]);
}

/// What clients of a service do that is being restarted: repeat with the same key.
async fn patient(processes: &[Arc<Process>], number: usize, address: &str) -> String {
    let key = format!("key {number}");
    for tries in 0_usize.. {
        let process = &processes[(number + tries) % processes.len()];
        match process.submit(request(send(address)), key.clone()).await {
            Some(Ok(made)) => return created(made).uuid,
            Some(Err(fault)) => {
                let class = fault.class();
                assert_eq!(class, &Class::Unavailable, "{fault:?}");
            }
            None => {}
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    unreachable!()
}

/// Makes requests through changing processes; `change` ends one in each round.
pub async fn under_load(world: &World, change: impl AsyncFn(&mut Process), rounds: usize) {
    // Time passes by itself here: a process may be taken for dead that is only slow.
    let clock = Arc::new(tokio::sync::watch::channel(()).0);
    let first = Process::start(world).await;
    let mut addresses = Vec::new();
    for name in ["a", "b", "c"] {
        let vault = first.vault(name).await;
        addresses.push(first.evm_wallet(vault).await);
    }
    let second = Process::start(world).await;
    let mut processes = vec![first, second];
    let mut all = BTreeSet::new();
    let mut number = 0;
    for round in 0..rounds {
        processes.push(Process::start(world).await);
        let mut ending = processes.remove(0);
        let shared: Vec<Arc<Process>> = processes.drain(..).map(Arc::new).collect();
        let ticking = {
            let (shared, clock) = (shared.clone(), Arc::clone(&clock));
            let heartbeat = world.settings.heartbeat_ms;
            tokio::spawn(async move {
                while clock.receiver_count() == 0 {
                    for process in &shared {
                        process.monotonic.0.fetch_add(heartbeat, Ordering::SeqCst);
                    }
                    tokio::time::sleep(Duration::from_millis(heartbeat)).await;
                }
            })
        };
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..12 {
            let (shared, address) = (shared.clone(), addresses[number % 3].clone());
            calls.spawn(async move { patient(&shared, number, &address).await });
            number += 1;
        }
        // In the middle of it.
        while world.requests().await.len() < round * 12 + 4 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        change(&mut ending).await;
        while let Some(made) = calls.join_next().await {
            assert!(all.insert(made.unwrap()), "one request for two calls");
        }
        for uuid in &all {
            assert!(shared[0].outcome(uuid).await);
        }
        ticking.abort();
        let _ = ticking.await;
        for process in shared {
            processes.push(Arc::into_inner(process).unwrap());
        }
    }
    assert_eq!(world.requests().await.len(), all.len());
    assert_eq!(world.pending().await, 0);
    assert_eq!(world.evm.handed.lock().unwrap().len(), all.len());
    assert_eq!(world.evm.accepted(), all.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restart__should_lose_nothing_and_do_nothing_twice() {
    under_load(&world(), async |process| process.stop().await, 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills__should_lose_nothing_and_do_nothing_twice() {
    under_load(&world(), async |process| process.kill(), 4).await;
}
