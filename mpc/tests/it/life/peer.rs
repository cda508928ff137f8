//! One hostile node that the others pin, and nobody else: no orchestrator helps it. It shows proofs.

use std::{sync::Arc, time::Duration};

use covault_core::{
    order::{Generation, NodeId, ProvenGeneration, ReshareOrder, ReshareProof},
    signature::Curve,
};
use covault_mpc::{
    envelope::{EnvelopeCodec, EnvelopeHeader, EnvelopeKind},
    identity::NodeIdentity,
    permits::PermitStore,
};
use tokio::time::sleep;
use tracing_subscriber::filter::LevelFilter;

use crate::{
    life::world::{LifecycleFixture, session},
    support::{SystemEntropy, log::LogCapture, now_ms, start_cluster},
};

/// Node 2 shows a proof to another one.
fn show(life: &LifecycleFixture, to: usize, order: &ReshareOrder, proof: &ReshareProof) {
    let identity = Arc::clone(&life.test.nodes[2].identity);
    let codec = EnvelopeCodec::new(identity, life.test.medium.bus(), Arc::new(SystemEntropy));
    let body = bcs::to_bytes(&(order, proof, Vec::<ProvenGeneration>::new(), now_ms())).unwrap();
    let header = EnvelopeHeader {
        kind: EnvelopeKind::Activate,
        sealed: true,
        epoch: order.new.epoch,
        session: order.session,
        attempt: 0,
        round: 0,
        sequence: 0,
        from: codec.id(),
        to: life.id(to),
    };
    codec.send(header, &body).unwrap();
}

/// A generation of the key that two invented nodes have made for themselves, and their statements.
fn invented(life: &mut LifecycleFixture, epoch: u32) -> (ReshareOrder, ReshareProof) {
    let unadmitted = [(); 2].map(|()| NodeIdentity::generate(&SystemEntropy));
    let ids: Vec<NodeId> = unadmitted.iter().map(NodeIdentity::id).collect();
    let generation = |epoch| Generation {
        epoch,
        threshold: 2,
        holders: ids.clone(),
    };
    let mut order = life.order(&[], &[], 2);
    order.session = session();
    order.old = generation(epoch - 1);
    order.dealers.clone_from(&ids);
    order.new = generation(epoch);
    let proof = signed(&order, unadmitted.iter());
    (order, proof)
}

/// The statements of these.
fn signed<'a>(
    order: &ReshareOrder,
    parties: impl Iterator<Item = &'a NodeIdentity>,
) -> ReshareProof {
    let statement = order.statement().unwrap();
    let signed = parties.map(|it| (it.id(), it.sign(&statement).to_vec()));
    ReshareProof(signed.collect())
}

/// What the operator of node 0 is about to permit is forgotten, and what node 2 has made up is shown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_that_wait_for_a_permit__should_not_be_replaced_by_what_a_peer_makes_up() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 4, 3, 2).await;
    life.test.nodes[0].rules.permits = true;
    life.restart(0).await;
    let order = life.order(&[0, 1], &[0, 1, 3], 2);
    life.test.cluster.reshare(&order).await.unwrap_err();
    let asked = |life: &LifecycleFixture| {
        let permits = PermitStore::of(&life.test.nodes[0].folder);
        permits.asked().unwrap()
    };
    assert_eq!(asked(&life), [order.change()]);
    for epoch in 10..75 {
        let (order, proof) = invented(&mut life, epoch);
        show(&life, 0, &order, &proof);
    }
    sleep(Duration::from_secs(5)).await;
    let asked = asked(&life);
    assert!(
        asked.contains(&order.change()),
        "the change is gone, and these {} that no orchestrator has asked for are there",
        asked.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer__should_not_fill_the_log_with_proofs_that_are_refused() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 3, 3, 2).await;
    let log = LogCapture::start(LevelFilter::WARN);
    for epoch in 10..310 {
        let (order, proof) = invented(&mut life, epoch);
        show(&life, 0, &order, &proof);
    }
    sleep(Duration::from_secs(5)).await;
    let lines = log.lines("refused").len();
    assert!((1..50).contains(&lines), "{lines} lines of 300 messages");
}

/// Node 2 shows the others a few proofs of generations with very many holders. Nothing of it is signed:
/// one text, sent a few times. A key has 255 holders at most.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes__should_sign_while_a_peer_shows_generations_with_very_many_holders() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 3, 3, 2).await;
    life.signs().await;
    // A message has room for 60,000. Unoptimized, as core is in tests, a third takes as long.
    let many: Vec<NodeId> = (0..20_000_u64)
        .map(|number| {
            let mut id = [7; 32];
            id[24..].copy_from_slice(&number.to_be_bytes());
            NodeId(id)
        })
        .collect();
    let mut order = life.order(&[], &[0, 1], 2);
    order.old = Generation {
        epoch: 0,
        threshold: 20_000,
        holders: many.clone(),
    };
    order.dealers = many.into_iter().rev().collect();
    for _ in 0..4 {
        for place in 0..2 {
            show(&life, place, &order, &ReshareProof::default());
        }
    }
    let generation = Generation {
        holders: vec![life.id(0), life.id(1)],
        ..life.generation.clone()
    };
    sleep(Duration::from_millis(200)).await;
    let signed = life.sign_as(&generation, 10_000).await;
    assert!(
        signed.is_ok(),
        "8 messages, of 1.3 MB each, and nobody signs: {signed:?}"
    );
}

/// Nodes 2 and 4 are hostile and pinned, and hold no share. While node 3 joins, which its operator has
/// permitted, they show it a generation of their own again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_joins__should_not_be_kept_from_it_by_what_peers_show_meanwhile() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 5, 2, 2).await;
    let theirs = [life.id(2), life.id(4)];
    let mut forged = life.order(&[2, 4], &[2, 4], 2);
    forged.old = Generation {
        epoch: u32::MAX - 1,
        threshold: 2,
        holders: theirs.to_vec(),
    };
    forged.new.epoch = u32::MAX;
    let hostile = [2, 4].map(|place| Arc::clone(&life.test.nodes[place].identity));
    let proof = signed(&forged, hostile.iter().map(|it| &**it));
    let mut refusals = Vec::new();
    for _ in 0..5 {
        let order = life.order(&[0, 1], &[0, 1, 3], 2);
        let cluster = Arc::clone(&life.test.cluster);
        let joins = {
            let order = order.clone();
            tokio::spawn(async move { cluster.reshare(&order).await })
        };
        while !joins.is_finished() {
            show(&life, 3, &forged, &proof);
            sleep(Duration::from_millis(1)).await;
        }
        match joins.await.unwrap() {
            Ok(_) => return,
            Err(fault) => refusals.push(fault.message().to_owned()),
        }
    }
    panic!("{refusals:#?}");
}

/// An orchestrator was hostile, had a refresh prepared, gave the proof to node 2, and was thrown out. Nodes
/// 0 and 1 have not done anything with it since. One day node 2 shows the proof, and the store of the
/// present orchestrator knows nothing of that generation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vault__should_sign_after_a_refresh_whatever_a_peer_shows_that_was_prepared_before() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 3, 3, 2).await;
    let mut store = life.first_store();
    let hostile = life.order(&[0, 1], &[0, 1, 2], 2);
    let proof = life.prepare(&hostile).await;
    life.test.orchestrator = Arc::new(NodeIdentity::generate(&SystemEntropy));
    life.test.cluster = start_cluster(&life.test.medium, &life.test.orchestrator).await;
    for place in 0..3 {
        life.test.stop_node(place).await;
        life.test.start_node(place);
    }
    life.test.until_live(3).await;
    life.signs().await;
    for place in 0..2 {
        show(&life, place, &hostile, &proof);
    }
    sleep(Duration::from_secs(1)).await;
    let fault = life.sign_as(&life.generation, 5_000).await.unwrap_err();
    assert!(fault.message().contains("epoch 1"), "{fault:?}");
    life.refresh(&mut store).await;
    life.signs().await;
}
