//! A hostile orchestrator alone, without a hostile node: generations that are prepared beside each
//! other, and proofs that are shown to some nodes only.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use covault_core::{
    order::{Generation, NodeId, ProvenGeneration, ReshareOrder, ReshareProof, latest_epoch},
    signature::Curve,
};
use covault_mpc::permits::PermitStore;

use crate::{
    life::world::LifecycleFixture,
    support::{now_ms, start_cluster},
};

fn grant(life: &LifecycleFixture, order: &ReshareOrder, places: &[usize]) {
    for place in places {
        PermitStore::of(&life.test.nodes[*place].folder)
            .grant(&order.change(), now_ms() + 600_000)
            .unwrap();
    }
}

/// Shows a proof to these nodes, which accept it.
async fn show(
    life: &LifecycleFixture,
    order: &ReshareOrder,
    proof: &ReshareProof,
    places: &[usize],
) {
    let nodes: Vec<NodeId> = places.iter().map(|place| life.id(*place)).collect();
    let told = life.distribute_activation(order, proof, &nodes).await;
    assert!(told.iter().all(|(_, answer)| answer.is_ok()), "{told:?}");
}

/// Nodes 0 to 2 hold a key; a change of holders needs permits.
async fn start_with_permits(nodes: usize) -> LifecycleFixture {
    let mut life = LifecycleFixture::start(Curve::Ed25519, nodes, 3, 2).await;
    for place in 0..nodes {
        life.test.nodes[place].rules.permits = true;
        life.restart(place).await;
    }
    life
}

/// The operators give the key from nodes 0 to 2 to nodes 3 to 5, and permit that. The orchestrator
/// has the old nodes prepare a refresh in the meantime, and keeps its proof. All nodes activate the
/// new holders' shares. Returns the permitted order, and the refresh with its proof.
async fn two_generations() -> (LifecycleFixture, ReshareOrder, ReshareOrder, ReshareProof) {
    let mut life = start_with_permits(6).await;
    let permitted = life.order(&[0, 1], &[3, 4, 5], 2);
    grant(&life, &permitted, &[0, 1, 3, 4, 5]);
    let permitted_proof = life.prepare(&permitted).await;
    // Needs no permit: the same holders.
    let beside = life.order(&[0, 1], &[0, 1, 2], 2);
    let beside_proof = life.prepare(&beside).await;
    show(&life, &permitted, &permitted_proof, &[0, 1, 2, 3, 4, 5]).await;
    (life, permitted, beside, beside_proof)
}

/// The new holders sign, and the old machines are wiped. Then the new holders are shown the refresh.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shares__should_not_be_retired_for_a_generation_beside_theirs_that_nobody_permitted() {
    let (mut life, permitted, beside, beside_proof) = two_generations().await;
    life.generation = permitted.new.clone();
    life.signs().await;
    for place in 0..3 {
        // They use none: the operators see that the shares are retired.
        assert_eq!(life.files(place).0, Vec::<u32>::new());
        assert_eq!(life.retired(place), [0]);
        life.crash(place).await;
    }
    let nodes: Vec<NodeId> = (3..6).map(|place| life.id(place)).collect();
    let told = life
        .distribute_activation(&beside, &beside_proof, &nodes)
        .await;
    let have: Vec<_> = (3..6)
        .map(|place| (life.files(place), life.retired(place)))
        .collect();
    assert!(
        told.iter().all(|(_, answer)| answer.is_err()),
        "the only shares that are left were given up: {have:?}"
    );
    life.signs().await;
}

/// The same with all nodes online: a node that the operators have removed gets the key back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reshare__should_not_be_undone_without_a_permit() {
    let mut life = start_with_permits(4).await;
    // Node 2 is removed.
    let permitted = life.order(&[0, 1], &[0, 1, 3], 2);
    grant(&life, &permitted, &[0, 1, 3]);
    let permitted_proof = life.prepare(&permitted).await;
    let beside = life.order(&[0, 1], &[0, 1, 2], 2);
    let beside_proof = life.prepare(&beside).await;
    show(&life, &permitted, &permitted_proof, &[0, 1, 2, 3]).await;
    let nodes: Vec<NodeId> = (0..4).map(|place| life.id(place)).collect();
    life.distribute_activation(&beside, &beside_proof, &nodes)
        .await;
    let has: Vec<_> = (0..4).map(|place| life.files(place).0).collect();
    assert_ne!(
        has,
        [vec![2], vec![2], vec![2], vec![]],
        "node 2 holds the key again, node 3 does not, and nobody has permitted it"
    );
}

/// Three honest nodes, two are needed. The orchestrator shows each node another proof, or none, and is
/// lost with all its state. The next one has only the nodes and what they know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orchestrator_that_is_gone__should_not_leave_each_node_with_an_epoch_of_its_own() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 3, 3, 2).await;
    let old = life.generation.clone();
    let first = life.order(&[0, 1], &[0, 1, 2], 2);
    let first_proof = life.prepare(&first).await;
    let second = life.order(&[0, 1], &[0, 1, 2], 2);
    let second_proof = life.prepare(&second).await;
    show(&life, &first, &first_proof, &[0]).await;
    show(&life, &second, &second_proof, &[1]).await;
    let generations: Vec<Generation> = vec![old, first.new.clone(), second.new.clone()];
    drop((first, first_proof, second, second_proof));
    let has: Vec<_> = (0..3).map(|place| life.files(place)).collect();
    // Another orchestrator starts, and all nodes restart.
    for place in 0..3 {
        life.restart(place).await;
    }
    life.test.cluster = start_cluster(&life.test.medium, &life.test.orchestrator).await;
    life.test.until_live(3).await;
    let mut refusals = Vec::new();
    for generation in &generations {
        // The vault signs at once, or after a refresh.
        match life.sign_as(generation, 3_000).await {
            Ok(()) => return,
            Err(fault) => refusals.push(fault.message().to_owned()),
        }
        for dealers in [[0, 1], [0, 2], [1, 2]] {
            life.generation = generation.clone();
            life.tried = 9;
            let mut order = life.order(&dealers, &[0, 1, 2], 2);
            order.expires_at_ms = now_ms() + 2_000;
            match life.test.cluster.reshare(&order).await {
                Ok(_) => return,
                Err(fault) => refusals.push(fault.message().to_owned()),
            }
        }
    }
    panic!("no two nodes use one epoch, and nobody can change that: {has:?} {refusals:#?}");
}

/// The clock of one node jumps by 31 days and back, because of a hypervisor or a bad time server. The node
/// reports that its clock is wrong, and signs nothing; it must not erase anything either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retired_shares__should_not_be_erased_by_a_clock_that_is_not_believed() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 3, 3, 2).await;
    let keep = Duration::from_secs(8);
    life.test.nodes[0].rules.keep_retired = keep;
    life.restart(0).await;
    // It erases nothing before it has run for that long, and checks four times in that time.
    tokio::time::sleep(keep).await;
    // As far ahead as clocks may be: set back it leaves 45 s, however slow the machine is.
    let moved = Arc::clone(&life.test.nodes[0].moved_ms);
    moved.store(45_000, Ordering::Relaxed);
    life.reshare(&[0, 1], &[0, 1, 2], 2).await;
    assert_eq!(life.retired(0), [0]);
    moved.store(31 * 86_400_000, Ordering::Relaxed);
    tokio::time::sleep(keep / 2).await;
    moved.store(0, Ordering::Relaxed);
    assert_eq!(life.retired(0), [0], "erased 31 days early");
    // With the right clock it erases them when it is time.
    moved.store(45_000, Ordering::Relaxed);
    for _ in 0..600 {
        if life.retired(0).is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("not erased at all");
}

/// The orchestrator shows the new holders the refresh, which no node has activated, and is lost. All six
/// nodes are online and honest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orchestrator_that_is_gone__should_not_leave_all_shares_retired_or_prepared() {
    let (life, _, beside, beside_proof) = two_generations().await;
    let nodes: Vec<NodeId> = (3..6).map(|place| life.id(place)).collect();
    life.distribute_activation(&beside, &beside_proof, &nodes)
        .await;
    let has: Vec<_> = (0..6)
        .map(|place| (life.files(place), life.retired(place)))
        .collect();
    assert!(
        has.iter().any(|((in_use, _), _)| !in_use.is_empty()),
        "no node uses any share; (in use, prepared), retired: {has:?}"
    );
}

/// Node 2 is offline when the others are shown a generation. When it is back, there is no orchestrator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_was_away__should_be_shown_proofs_by_the_others() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 3, 3, 2).await;
    let order = life.order(&[0, 1], &[0, 1, 2], 2);
    let proof = life.prepare(&order).await;
    life.crash(2).await;
    show(&life, &order, &proof, &[0]).await;
    drop(proof);
    life.test.start_node(2);
    life.test.until_live(3).await;
    // They do so every minute, and when they start.
    life.restart(0).await;
    for _ in 0..200 {
        if (0..3).all(|place| life.files(place) == (vec![1], vec![])) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let has: Vec<_> = (0..3).map(|place| life.files(place)).collect();
    assert_eq!(has, [(); 3].map(|()| (vec![1], vec![])));
    life.generation = order.new;
    life.signs().await;
}

/// The orchestrator shows one node a generation as what came before itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proof__should_be_passed_on_whatever_was_shown_with_it() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 3, 3, 2).await;
    let order = life.order(&[0, 1], &[0, 1, 2], 2);
    let proof = life.prepare(&order).await;
    let before = [ProvenGeneration {
        order: order.clone(),
        proof: proof.clone(),
    }];
    let node = [life.id(0)];
    let told = life
        .test
        .cluster
        .distribute_activation(&order, &proof, &before, &node)
        .await;
    told.unwrap()[0].1.clone().unwrap();
    for _ in 0..200 {
        if (0..3).all(|place| life.files(place) == (vec![1], vec![])) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("nodes 1 and 2 were not shown it");
}

/// An orchestrator prepares generations with epochs as high as the nodes allow, and is removed. The next
/// one has the store, in which epoch 1 is the next one, and refreshes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refresh__should_get_through_whatever_epoch_was_prepared_before() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 3, 3, 2).await;
    let mut store = life.first_store();
    let latest = latest_epoch(now_ms());
    for epoch in [1024, latest - 3, latest - 2] {
        let mut hostile = life.order(&[0, 1], &[0, 1, 2], 2);
        hostile.new.epoch = epoch;
        life.prepare(&hostile).await;
    }
    life.refresh(&mut store).await;
    let reached = (store.generation.epoch, store.next_epoch);
    assert_eq!(reached, (latest - 1, latest));
    life.signs().await;
}

/// The same, and each of two proofs was shown to some nodes: they use generations that the store does not know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refresh__should_go_on_from_the_generation_that_the_nodes_prove() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 3, 3, 2).await;
    let mut store = life.first_store();
    let mut shown = Vec::new();
    for epoch in [3, 7] {
        let mut hostile = life.order(&[0, 1], &[0, 1, 2], 2);
        hostile.new.epoch = epoch;
        let proof = life.prepare(&hostile).await;
        shown.push((hostile, proof));
    }
    let (order, proof) = &shown[0];
    show(&life, order, proof, &[0, 1, 2]).await;
    life.refresh(&mut store).await;
    assert_eq!(store.generation.epoch, 8);
    life.signs().await;
    // The other one is void.
    let (order, proof) = &shown[1];
    let nodes: Vec<NodeId> = (0..3).map(|place| life.id(place)).collect();
    let told = life.distribute_activation(order, proof, &nodes).await;
    assert!(told.iter().all(|(_, answer)| answer.is_err()), "{told:?}");
    life.signs().await;
}

/// A generation is in use, and another of the same epoch, which an orchestrator had prepared, replaces it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refresh__should_go_on_from_a_generation_beside_the_one_in_the_store() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 3, 3, 2).await;
    let mut store = life.first_store();
    let order = life.order(&[0, 1], &[0, 1, 2], 2);
    let proof = life.prepare(&order).await;
    let beside = life.order(&[0, 1], &[0, 1, 2], 2);
    let beside_proof = life.prepare(&beside).await;
    show(&life, &order, &proof, &[0, 1, 2]).await;
    store.generation = order.new;
    store.next_epoch = 2;
    show(&life, &beside, &beside_proof, &[0, 1, 2]).await;
    life.refresh(&mut store).await;
    life.signs().await;
}
