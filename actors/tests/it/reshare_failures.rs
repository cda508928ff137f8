//! Nodes that are away or refuse while shares change, and power cuts: nothing is lost, and nobody
//! keeps what is no longer to be used.

use std::{sync::Arc, time::Duration};

use covault_actors::{
    gateway::Gateway,
    operations::CreateVault,
    port::SignerCluster as _,
    store::{Store, memory::MemoryStore},
};
use covault_core::{
    ids::{SessionId, VaultId},
    order::{Generation, NodeId, ReshareOrder, ReshareOutcome, ReshareProof, latest_epoch},
    schema::admin::{Key, Vault},
    scheme::Scheme,
};

use crate::{
    fake_signers::root,
    faulty_store::{FaultyStore, StoreFault},
    reshares::*,
    world::*,
};

fn scheme(key: &Key) -> Scheme {
    Scheme::parse(&key.scheme).unwrap()
}

/// The shares of a key that sign.
fn generation(key: &Key) -> Generation {
    let shares = key.shares.as_ref().unwrap();
    let holders = shares.holders.iter();
    Generation {
        epoch: shares.epoch,
        threshold: shares.threshold.try_into().unwrap(),
        holders: holders
            .map(|line| NodeId::parse_openssh_line(line).unwrap())
            .collect(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_that_is_away_when_it_is_dropped__should_be_told_when_it_is_back() {
    let world = World::new();
    let gateway = world.start().await;
    let id = new_vault(&gateway).await;
    let wallets = addresses(&gateway, id).await;
    let away = |number: u8| {
        world.signers.away.lock().unwrap().insert(node(number));
    };
    away(3);
    reshare(&gateway, id, to(2, &[1, 2])).await.unwrap();
    // It does not keep the command waiting, nor anybody from signing, and is named.
    let done = until(&gateway, idle).await;
    for key in &done.keys {
        assert_eq!(key.unconfirmed, lines([3]));
    }
    signs(&gateway, &wallets).await;
    assert!(!has_nothing(&world, id, 3));
    // Another generation comes, and another process.
    reshare(&gateway, id, to(2, &[1, 2, 4])).await.unwrap();
    until(&gateway, |vault| idle(vault) && epochs(vault) == [2, 2]).await;
    gateway.stop().await;
    let gateway = world.start().await;
    let still = until(&gateway, idle).await;
    for key in &still.keys {
        assert_eq!(key.unconfirmed, lines([3]));
    }
    // It may never come, and an operator may give it up.
    remove(&gateway, 3).await.unwrap();
    assert!(admit(&gateway).await);
    world.signers.away.lock().unwrap().clear();
    let done = until(&gateway, known).await;
    assert!(
        done.keys.iter().all(|key| key.problem.is_none()),
        "{done:?}"
    );
    assert!(has_nothing(&world, id, 3));
    signs(&gateway, &wallets).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_that_leave_shares_behind__should_end_and_be_made_void() {
    let world = World::new();
    let gateway = world.start().await;
    let id = new_vault(&gateway).await;
    let wallets = addresses(&gateway, id).await;
    world.signers.full.lock().unwrap().insert(node(5));
    reshare(&gateway, id, to(2, &[3, 4, 5])).await.unwrap();
    let halted = |vault: &Vault| {
        let mut works = vault.keys.iter().map(|key| key.work.as_ref());
        works.all(|work| {
            work.is_some_and(|work| work.step == "halted" && work.reason.contains("disk"))
        })
    };
    let stopped = until(&gateway, halted).await;
    let runs = || world.signers.nodes.lock().unwrap().runs;
    assert_eq!(runs(), 6, "three of each key");
    for key in &stopped.keys {
        assert_eq!(key.leftover, lines(3..=5));
    }
    // Nor does a new process begin again. Asked again, three more.
    gateway.stop().await;
    let gateway = world.start().await;
    signs(&gateway, &wallets).await;
    assert_eq!((halted(&view(&gateway).await), runs()), (true, 6));
    reshare(&gateway, id, to(2, &[3, 4, 5])).await.unwrap();
    until(&gateway, |vault| halted(vault) && runs() == 12).await;
    // Nodes 3 and 4 are a quorum of what nobody wants: a refresh makes it void, and they are told,
    // node 4 once it is there again.
    let cancelled = cancel(&gateway, id).await.unwrap();
    assert!(idle(&cancelled));
    assert_eq!(cancelled.keys[1].leftover, lines(3..=5));
    assert!(!has_nothing(&world, id, 4));
    world.signers.away.lock().unwrap().insert(node(4));
    reshare(&gateway, id, refresh()).await.unwrap();
    let done = until(&gateway, idle).await;
    for key in &done.keys {
        assert_eq!(
            (key.leftover.clone(), key.unconfirmed.clone()),
            (vec![], lines([4]))
        );
    }
    signs(&gateway, &wallets).await;
    world.signers.away.lock().unwrap().clear();
    until(&gateway, known).await;
    for number in [4, 5] {
        assert!(has_nothing(&world, id, number));
    }
    let nodes = world.signers.nodes.lock().unwrap();
    for key in nodes.shares.keys() {
        assert_eq!(nodes.epochs(*key, &node(3)), (Some(7), vec![]));
    }
}

/// Another orchestrator has a refresh of this epoch prepared, in a session of this number.
async fn prepared_elsewhere(
    world: &World,
    vault: VaultId,
    key: &Key,
    (session, epoch): (u8, u32),
) -> (ReshareOrder, ReshareProof) {
    let old = generation(key);
    let order = ReshareOrder {
        vault,
        session: SessionId::from_bytes([session; 16]),
        scheme: scheme(key),
        root_public_key: root(vault, scheme(key).curve()).public_key,
        dealers: old.holders[..2].to_vec(),
        new: Generation {
            epoch,
            ..old.clone()
        },
        old,
        issued_at_ms: 1,
        expires_at_ms: 2,
    };
    let made = world.signers.reshare(&order).await.unwrap();
    let ReshareOutcome::Made(proof) = made else {
        panic!("{made:?}")
    };
    (order, proof)
}

/// Another orchestrator has a refresh prepared and shown to the nodes, and one more prepared of an epoch far
/// above. The store of this one knows nothing of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refresh__should_go_on_from_what_the_nodes_show() {
    let world = World::new();
    let gateway = world.start().await;
    let id = new_vault(&gateway).await;
    let wallets = addresses(&gateway, id).await;
    for key in &view(&gateway).await.keys {
        let (order, proof) = prepared_elsewhere(&world, id, key, (1, 900)).await;
        prepared_elsewhere(&world, id, key, (2, 1024)).await;
        let holders = generation(key).holders;
        let told = world.signers.activate(&order, &proof, &[], &holders);
        told.await.unwrap();
    }
    world.signers.nodes.lock().unwrap().foreign = [900, 1024].into();
    reshare(&gateway, id, refresh()).await.unwrap();
    until(&gateway, |vault| {
        known(vault) && epochs(vault) == [1025, 1025]
    })
    .await;
    signs(&gateway, &wallets).await;
}

/// Epochs that no node can take yet are used up by somebody: asking again and again uses up no more of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refresh__should_wait_for_an_epoch_that_nodes_can_take() {
    const MINUTE: u64 = 60_000;
    let world = World::new();
    let gateway = world.start().await;
    let id = new_vault(&gateway).await;
    let wallets = addresses(&gateway, id).await;
    let used = latest_epoch(world.clock_ms()) + 2;
    for key in &view(&gateway).await.keys {
        prepared_elsewhere(&world, id, key, (1, used)).await;
    }
    world.signers.nodes.lock().unwrap().foreign = [used].into();
    reshare(&gateway, id, refresh()).await.unwrap();
    let waits = |vault: &Vault| {
        let problems = vault.keys.iter().map(|key| key.problem.as_deref());
        let mut problems = problems.map(Option::unwrap_or_default);
        problems.all(|problem| problem.contains("one new generation of a key a minute"))
    };
    until(&gateway, waits).await;
    // Several tries later.
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.pass(6 * MINUTE);
    until(&gateway, |vault| {
        known(vault) && epochs(vault) == [used + 1, used + 1]
    })
    .await;
    signs(&gateway, &wallets).await;
}

/// Makes the vault, refreshes it, gives it to other nodes, and signs; as far as the store lets it.
async fn run(gateway: &Gateway) {
    if !admit(gateway).await || !admit_more(gateway).await {
        return;
    }
    let made = call::<CreateVault>(gateway, &admin(), vault_request("main")).await;
    let Ok(made) = made else {
        return;
    };
    let id = made.vault.unwrap().uuid.parse().unwrap();
    for reshare_request in [refresh(), to(2, &[2, 3, 4])] {
        until(gateway, known).await;
        if reshare(gateway, id, reshare_request).await.is_err() {
            return;
        }
    }
    until(gateway, known).await;
}

/// Whatever was cut: a restart finishes what was wished for, epochs go up, both keys sign.
async fn check(world: &World, what: &str) {
    let gateway = world.start().await;
    let id = new_vault(&gateway).await;
    let now = until(&gateway, known).await;
    for key in &now.keys {
        let (generation, key) = (generation(key), (id, scheme(key)));
        let nodes = world.signers.nodes.lock().unwrap();
        assert!(nodes.use_it(key, &generation), "{what}");
        for (node, disk) in &nodes.shares[&key] {
            // Nodes that made shares that are not used keep none of them.
            assert_eq!(disk.prepared, [], "{what}");
            assert_eq!(disk.active.is_some(), generation.holders.contains(node));
        }
    }
    let wallets = addresses(&gateway, id).await;
    signs(&gateway, &wallets).await;
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reshare__should_go_on_wherever_the_power_was_cut() {
    let world = World::new();
    let store = FaultyStore::new(Arc::clone(&world.store), usize::MAX, StoreFault::Before);
    let gateway = world.start_on(Arc::clone(&store) as Arc<dyn Store>).await;
    run(&gateway).await;
    gateway.stop().await;
    let commits = store.commits();
    assert!(commits >= 15, "{commits}");
    for at in 1..=commits {
        for accident in [StoreFault::Before, StoreFault::After] {
            let what = format!("{accident:?} commit {at}");
            let world = World::on(Arc::new(MemoryStore::new()));
            let store = FaultyStore::new(Arc::clone(&world.store), at, accident);
            let gateway = world.start_on(Arc::clone(&store) as Arc<dyn Store>).await;
            let running = gateway.clone();
            let operator = tokio::spawn(async move { run(&running).await });
            tokio::time::timeout(Duration::from_secs(20), store.accident())
                .await
                .unwrap_or_else(|_| panic!("{what}: never came"));
            operator.abort();
            let _ = operator.await;
            gateway.stop().await;
            check(&world, &what).await;
        }
        for accident in [StoreFault::StumbleBefore, StoreFault::StumbleAfter] {
            let what = format!("{accident:?} commit {at}");
            let world = World::new();
            let store = FaultyStore::new(Arc::clone(&world.store), at, accident);
            let gateway = world.start_on(store as Arc<dyn Store>).await;
            run(&gateway).await;
            gateway.stop().await;
            check(&world, &what).await;
        }
    }
}
