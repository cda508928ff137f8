//! The life of a key on a cluster: refresh, reshare, replacement, repair, backup.

mod attack;
mod backup;
mod cut;
mod fork;
mod hostile;
mod peer;
pub mod world;

use std::fs;

use crate::support::{SystemEntropy, counters::CounterCapture, start_cluster};
use covault_core::{fault::Class, order::ReshareProof, signature::Curve};
use covault_mpc::identity::NodeIdentity;
use world::{LifecycleFixture, Statements};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn life__should_refresh_and_reshare_and_retire_what_is_old() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 5, 3, 2).await;
    life.signs().await;
    let first = life.generation.clone();
    life.reshare(&[0, 2], &[0, 1, 2], 2).await;
    life.signs().await;
    for place in 0..3 {
        assert_eq!(life.files(place), (vec![1], vec![]));
    }
    // Orders of the old generation are refused, and told which one there is.
    let fault = life.sign_as(&first, 5_000).await.unwrap_err();
    assert!(fault.message().contains("epoch 1"), "{fault:?}");
    life.reshare(&[1, 2], &[4, 3, 2, 1, 0], 3).await;
    life.signs().await;
    // Across a restart of all, which may now go back to 2-of-n.
    for place in 0..5 {
        life.test.nodes[place].rules.limits.least_threshold = Some(2);
        life.restart(place).await;
    }
    life.signs().await;
    life.reshare(&[0, 3, 2], &[4, 0], 2).await;
    life.signs().await;
    for place in [1, 2, 3] {
        assert_eq!(life.files(place), (vec![], vec![]), "who has left");
    }
    let order = life.order(&[4, 0], &[4, 0], 1);
    let fault = life.test.cluster.reshare(&order).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Invalid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions__should_be_counted_by_what_they_are_for() {
    let counters = CounterCapture::start();
    let kinds = || counters.by_label("covault_signer_sessions_total", "kind");
    let mut life = LifecycleFixture::start(Curve::Ed25519, 3, 3, 2).await;
    life.reshare(&[0, 2], &[0, 1, 2], 2).await;
    assert_eq!(
        kinds(),
        [("keygen".into(), 3), ("reshare".into(), 3)].into()
    );
    life.signs().await;
    let kinds = kinds();
    assert_eq!((kinds["keygen"], kinds["reshare"]), (3, 3));
    assert!(kinds["sign"] >= 1, "{kinds:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn life__should_replace_a_lost_node_and_repair_a_lost_share_on_secp256k1() {
    let mut life = LifecycleFixture::start(Curve::Secp256k1, 4, 3, 2).await;
    // Node 1 is gone with all it had; node 3 takes its place.
    life.crash(1).await;
    life.reshare(&[0, 2], &[0, 3, 2], 2).await;
    life.signs().await;
    // Node 0 has lost its shares, though not its identity.
    life.test.stop_node(0).await;
    life.test.until_live(2).await;
    fs::remove_dir_all(life.test.nodes[0].folder.join("shares")).unwrap();
    life.test.start_node(0);
    life.test.until_live(3).await;
    life.reshare(&[3, 2], &[0, 3, 2], 2).await;
    // It is needed.
    life.test.stop_node(2).await;
    life.test.until_live(2).await;
    life.signs().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn life__should_leave_the_old_shares_working_until_all_is_proven() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 4, 3, 2).await;
    let order = life.order(&[0, 1], &[0, 1, 3], 2);
    let proof = life.prepare(&order).await;
    let files =
        |life: &LifecycleFixture| -> Vec<_> { (0..4).map(|place| life.files(place)).collect() };
    let prepared = [
        (vec![0], vec![1]),
        (vec![0], vec![1]),
        (vec![0], vec![]),
        (vec![], vec![1]),
    ];
    assert_eq!(files(&life), prepared);
    life.signs().await;
    // Everybody dies, the orchestrator too.
    for place in 0..4 {
        life.crash(place).await;
    }
    for place in 0..4 {
        life.test.start_node(place);
    }
    life.test.cluster = start_cluster(&life.test.medium, &life.test.orchestrator).await;
    life.test.until_live(4).await;
    life.signs().await;
    assert_eq!(files(&life), prepared);

    // The orchestrator asks for it without the proof.
    let forged = |change: &dyn Fn(&mut Statements)| {
        let mut forged = proof.clone();
        change(&mut forged.0);
        forged
    };
    let other = life.order(&[0, 1], &[0, 1, 3], 2);
    let stranger = NodeIdentity::generate(&SystemEntropy);
    for forged in [
        ReshareProof::default(),
        forged(&|proof| proof.truncate(2)),
        forged(&|proof| proof[2].1[5] ^= 1),
        forged(&|proof| proof[2].1 = proof[1].1.clone()),
        forged(&|proof| {
            proof[2].1 = life.test.nodes[3]
                .identity
                .sign(&other.statement().unwrap())
                .to_vec();
        }),
        forged(&|proof| proof[2].1 = stranger.sign(&order.statement().unwrap()).to_vec()),
    ] {
        let fault = life
            .test
            .cluster
            .activate(&order, &forged)
            .await
            .unwrap_err();
        assert!(fault.message().contains("proof"), "{fault:?}");
    }
    assert_eq!(files(&life), prepared);
    life.signs().await;

    // Repeating the order gives the same proof; node 2 is away when it is shown.
    assert_eq!(life.prepare(&order).await, proof);
    life.crash(2).await;
    for _ in 0..2 {
        life.test.cluster.activate(&order, &proof).await.unwrap();
    }
    assert_eq!(life.prepare(&order).await, proof, "even now");
    let old = std::mem::replace(&mut life.generation, order.new.clone());
    life.signs().await;
    assert_eq!(life.files(2), (vec![0], vec![]));
    // Back again, it still has its old share, which is of no use to anybody, and erases it when
    // it is told.
    life.test.start_node(2);
    life.test.until_live(4).await;
    assert!(life.sign_as(&old, 3_000).await.is_err());
    life.test.cluster.activate(&order, &proof).await.unwrap();
    assert_eq!(life.files(2), (vec![], vec![]));
    life.signs().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn life__should_finish_an_activation_that_was_cut_off() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 3, 3, 2).await;
    let order = life.order(&[0, 1], &[0, 1, 2], 2);
    let proof = life.prepare(&order).await;
    // Node 0 dies between the rename and the erasure, node 1 before both.
    life.crash(0).await;
    life.crash(1).await;
    let shares = life.test.nodes[0].folder.join("shares");
    let pending = fs::read_dir(&shares)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|it| it == "pending"))
        .unwrap();
    fs::rename(&pending, pending.with_extension("age")).unwrap();
    assert_eq!(life.files(0), (vec![0, 1], vec![]));
    life.test.start_node(0);
    life.test.until_live(2).await;
    let fault = life
        .test
        .cluster
        .activate(&order, &proof)
        .await
        .unwrap_err();
    assert_eq!(fault.class(), &Class::Unavailable);
    assert!(fault.message().contains("node-2"), "{fault:?}");
    assert_eq!(life.files(0), (vec![1], vec![]));
    life.test.start_node(1);
    life.test.until_live(3).await;
    life.test.cluster.activate(&order, &proof).await.unwrap();
    assert_eq!(life.files(1), (vec![1], vec![]));
    life.generation = order.new;
    life.signs().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn life__should_keep_every_prepared_share_until_a_later_one_is_in_use() {
    // Two generations are prepared, and a hostile orchestrator shows one proof to one node and the
    // other to the other: the later one still gets both its shares.
    let mut life = LifecycleFixture::start(Curve::Ed25519, 2, 2, 2).await;
    let first = life.order(&[0, 1], &[0, 1], 2);
    let first_proof = life.prepare(&first).await;
    let second = life.order(&[1, 0], &[1, 0], 2);
    let second_proof = life.prepare(&second).await;
    assert_eq!(life.files(0), (vec![0], vec![1, 2]));
    life.crash(1).await;
    let cluster = &life.test.cluster;
    assert!(cluster.activate(&first, &first_proof).await.is_err());
    assert_eq!(life.files(0), (vec![1], vec![2]));
    life.test.start_node(1);
    life.test.until_live(2).await;
    life.test
        .cluster
        .activate(&second, &second_proof)
        .await
        .unwrap();
    for place in 0..2 {
        assert_eq!(life.files(place), (vec![2], vec![]));
    }
    life.generation = second.new.clone();
    life.signs().await;
    // The earlier one never comes back, nor is its epoch used again.
    let fault = life
        .test
        .cluster
        .activate(&first, &first_proof)
        .await
        .unwrap_err();
    assert!(fault.message().contains("epoch 2"), "{fault:?}");
    let mut again = life.order(&[0, 1], &[0, 1], 2);
    again.old = first.old.clone();
    let fault = life.test.cluster.reshare(&again).await.unwrap_err();
    assert!(fault.message().contains("epoch 2"), "{fault:?}");
    life.signs().await;
}
