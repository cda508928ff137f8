//! An orchestrator that is hostile, or too busy: what it cannot make nodes do with their shares.

use covault_core::{
    ids::VaultId,
    order::{Generation, NodeId, ReshareOrder, ReshareProof, latest_epoch},
    scheme::Scheme,
    signature::Curve,
};
use covault_mpc::{claims::Claims, identity::NodeIdentity};

use crate::{
    life::world::LifecycleFixture,
    support::{SystemEntropy, now_ms},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn life__should_not_hand_the_key_to_nodes_that_nobody_pinned() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 4, 3, 2).await;
    // Nodes 0 to 2 know each other, or pin nobody at all; node 3 is the orchestrator's own.
    let pins = (0..3).map(|place| life.id(place)).collect::<Vec<_>>();
    life.test.nodes[0].peers = Some(pins.clone());
    life.test.nodes[1].peers = None;
    life.test.nodes[2].peers = Some(pins);
    for place in 0..3 {
        life.restart(place).await;
    }
    let line = life.test.nodes[3].identity.openssh_line("");
    for dealers in [[0, 1], [1, 2]] {
        let order = life.order(&dealers, &[0, 1, 3], 2);
        let fault = life.test.cluster.reshare(&order).await.unwrap_err();
        assert!(fault.message().contains(&line), "{fault:?}");
        assert!(fault.message().contains("new.holders"), "{fault:?}");
    }
    // Nor does a node give up its share for one of theirs.
    let order = life.order(&[0, 1], &[3, 0], 2);
    let statement = order.statement().unwrap();
    let proof = [3, 0].map(|place| {
        let identity = &life.test.nodes[place].identity;
        (identity.id(), identity.sign(&statement).to_vec())
    });
    let proof = ReshareProof(proof.to_vec());
    assert!(life.test.cluster.activate(&order, &proof).await.is_err());
    for place in 0..3 {
        assert_eq!(life.files(place).0, [0]);
    }
    life.signs().await;
    // Among themselves they may.
    life.reshare(&[0, 1], &[0, 1, 2], 2).await;
    life.signs().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn life__should_refuse_orders_that_do_not_fit_what_is_held() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 3, 3, 2).await;
    life.reshare(&[0, 1], &[0, 1, 2], 2).await;
    let mut lies: Vec<(ReshareOrder, &str)> = Vec::new();
    let mut lie =
        |life: &mut LifecycleFixture, change: &dyn Fn(&mut ReshareOrder), says: &'static str| {
            let mut order = life.order(&[0, 1], &[0, 1, 2], 2);
            change(&mut order);
            lies.push((order, says));
        };
    lie(&mut life, &|order| order.old.epoch = 0, "epoch 1");
    lie(&mut life, &|order| order.old.holders.swap(0, 2), "old");
    lie(
        &mut life,
        &|order| order.vault = VaultId::from_bytes([1; 16]),
        "vault",
    );
    lie(&mut life, &|order| order.scheme = Scheme::Dkls23, "scheme");
    lie(
        &mut life,
        &|order| order.root_public_key[3] ^= 1,
        "no share",
    );
    lie(&mut life, &|order| order.issued_at_ms += 120_000, "future");
    for (order, says) in lies {
        let fault = life.test.cluster.reshare(&order).await.unwrap_err();
        assert!(fault.message().contains(says), "{says}: {fault:?}");
    }
    for place in 0..3 {
        assert_eq!(life.files(place), (vec![1], vec![]));
    }
    life.signs().await;
}

/// What an orchestrator can write by itself: a generation of strangers, with all their statements.
fn forged(life: &LifecycleFixture, old: Generation, epoch: u32) -> (ReshareOrder, ReshareProof) {
    let unadmitted = [(); 2].map(|()| NodeIdentity::generate(&SystemEntropy));
    // Also what was before is theirs: no statement is missing.
    let old = Generation {
        holders: unadmitted.each_ref().map(NodeIdentity::id).to_vec(),
        ..old
    };
    let order = ReshareOrder {
        vault: life.test.vault,
        session: super::world::session(),
        scheme: Scheme::default_of(life.root.curve),
        root_public_key: life.root.public_key.clone(),
        dealers: unadmitted.each_ref().map(NodeIdentity::id).to_vec(),
        old,
        new: Generation {
            epoch,
            threshold: 2,
            holders: unadmitted.each_ref().map(NodeIdentity::id).to_vec(),
        },
        issued_at_ms: now_ms(),
        expires_at_ms: now_ms() + 60_000,
    };
    let statement = order.statement().unwrap();
    let sign = |node: &NodeIdentity| (node.id(), node.sign(&statement).to_vec());
    (order, ReshareProof(unadmitted.iter().map(sign).collect()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepared_shares__should_not_be_retired_on_the_word_of_unadmitted_nodes() {
    // From nodes 0 and 1 to 2 and 3. Node 3 is told about by an older one, and pins nobody later.
    let mut life = LifecycleFixture::start(Curve::Ed25519, 4, 2, 2).await;
    let order = life.order(&[0, 1], &[2, 3], 2);
    let proof = life.prepare(&order).await;
    life.test.nodes[3].peers = None;
    life.restart(3).await;
    let holders = order.new.holders.clone();
    let old = Generation {
        epoch: 0,
        threshold: 2,
        holders,
    };
    let erased = |life: &LifecycleFixture| {
        [2, 3].map(|place| life.files(place)) != [(); 2].map(|()| (vec![], vec![1]))
    };
    for epoch in [2, 99, u32::MAX] {
        let (order, proof) = forged(&life, old.clone(), epoch);
        for (_, answer) in life
            .distribute_activation(&order, &proof, &old.holders)
            .await
        {
            let fault = answer.unwrap_err();
            // What they call the old generation does not precede the one prepared here.
            assert!(fault.message().contains("keeps its share"), "{fault:?}");
        }
        assert!(!erased(&life), "epoch {epoch}");
    }
    // The old ones give theirs up to the new ones, which have them.
    life.test.cluster.activate(&order, &proof).await.unwrap();
    for (place, files) in [(0, vec![]), (1, vec![]), (2, vec![1]), (3, vec![1])] {
        assert_eq!(life.files(place), (files, vec![]));
    }
    life.generation = order.new;
    life.signs().await;
    // Nor is a share in use erased so.
    for epoch in [2, 99, u32::MAX] {
        let (order, proof) = forged(&life, life.generation.clone(), epoch);
        let told = life
            .distribute_activation(&order, &proof, &life.generation.holders)
            .await;
        assert!(told.iter().all(|(_, answer)| answer.is_err()), "{told:?}");
    }
    life.signs().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_pins_nobody__should_not_join_a_key() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 3, 2, 2).await;
    life.test.nodes[2].peers = None;
    life.restart(2).await;
    let order = life.order(&[0, 1], &[0, 2], 2);
    let fault = life.test.cluster.reshare(&order).await.unwrap_err();
    assert!(fault.message().contains("signer.peers"), "{fault:?}");
    assert_eq!(life.files(2), (vec![], vec![]));
    life.signs().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepared_shares__should_be_retired_once_a_later_generation_is_proven() {
    // Nodes 2 to 4 have a quorum of a run that is no longer wanted.
    let mut life = LifecycleFixture::start(Curve::Ed25519, 5, 3, 2).await;
    let dropped = life.order(&[0, 1], &[2, 3, 4], 2);
    let proof = life.prepare(&dropped).await;
    life.crash(4).await;
    let next = life.order(&[0, 1], &[0, 1, 2], 2);
    let next_proof = life.prepare(&next).await;
    let everybody: Vec<NodeId> = (0..5).map(|place| life.id(place)).collect();
    let told = life
        .distribute_activation(&next, &next_proof, &everybody)
        .await;
    assert_eq!(told.iter().filter(|(_, answer)| answer.is_ok()).count(), 4);
    assert!(matches!(&told[4], (node, Err(_)) if *node == everybody[4]));
    for (place, files) in [(0, vec![2]), (1, vec![2]), (2, vec![2]), (3, vec![])] {
        assert_eq!(life.files(place), (files, vec![]));
    }
    // Who was away learns of it when it is back; telling all again does no harm.
    assert_eq!(life.files(4), (vec![], vec![1]));
    life.test.start_node(4);
    life.test.until_live(5).await;
    for _ in 0..2 {
        let told = life
            .distribute_activation(&next, &next_proof, &everybody)
            .await;
        assert!(told.iter().all(|(_, answer)| answer.is_ok()), "{told:?}");
    }
    assert_eq!(life.files(4), (vec![], vec![]));
    life.generation = next.new;
    life.signs().await;
    // What was dropped no longer has a quorum: no node activates it.
    assert!(life.test.cluster.activate(&dropped, &proof).await.is_err());
    life.signs().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_generations_of_one_epoch__should_both_keep_their_shares() {
    // Two halves of the holders are made to reshare apart, and each is shown the other's proof first.
    let mut life = LifecycleFixture::start(Curve::Ed25519, 4, 4, 2).await;
    let first = life.order(&[0, 1], &[0, 1], 2);
    life.tried = 0;
    let second = life.order(&[2, 3], &[2, 3], 2);
    let proofs = [life.prepare(&first).await, life.prepare(&second).await];
    let (left, right) = ([life.id(0), life.id(1)], [life.id(2), life.id(3)]);
    life.distribute_activation(&first, &proofs[0], &right).await;
    life.distribute_activation(&second, &proofs[1], &left).await;
    life.distribute_activation(&first, &proofs[0], &left).await;
    life.distribute_activation(&second, &proofs[1], &right)
        .await;
    for place in 0..4 {
        assert_eq!(life.files(place), (vec![1], vec![]), "{place}");
    }
    for generation in [first.new, second.new] {
        life.sign_as(&generation, 60_000).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_that_failed__should_not_be_in_the_way_of_a_good_one() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 3, 2, 2).await;
    // More than any list of a node had room for once. Each leaves shares with nodes 0 and 1.
    for _ in 0..35 {
        let order = life.order(&[0, 1], &[1, 0], 2);
        life.prepare(&order).await;
    }
    assert_eq!(life.files(0).1.len(), 35);
    life.reshare(&[0, 1], &[0, 1, 2], 2).await;
    for place in 0..3 {
        assert_eq!(life.files(place), (vec![36], vec![]));
    }
    life.signs().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn epochs__should_not_be_used_up_faster_than_time_passes() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 2, 2, 2).await;
    let mut store = life.first_store();
    let now = latest_epoch(now_ms());
    for epoch in [now + 3, now + 1_024, u32::MAX - 1, u32::MAX] {
        let mut order = life.order(&[0, 1], &[0, 1], 2);
        order.new.epoch = epoch;
        let fault = life.test.cluster.reshare(&order).await.unwrap_err();
        assert!(fault.message().contains("new.epoch"), "{fault:?}");
    }
    // A jump to the last one but one, and into use.
    life.tried = now - 2;
    life.reshare(&[0, 1], &[0, 1], 2).await;
    life.signs().await;
    // The next orchestrator, whose store knows nothing of that, is not kept from a refresh.
    life.refresh(&mut store).await;
    life.signs().await;
}

/// Each restore of an orchestrator's store passes 1,000 epochs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refresh__should_get_through_after_five_restores_of_the_store() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 3, 3, 2).await;
    let mut store = life.first_store();
    for _ in 0..5 {
        store.next_epoch += 1_000;
    }
    life.refresh(&mut store).await;
    assert_eq!(store.generation.epoch, 5_001);
    life.signs().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threshold__should_go_down_only_as_far_as_each_node_allows() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 4, 4, 4).await;
    for place in 0..4 {
        life.test.nodes[place].rules.limits.least_threshold = None;
        life.restart(place).await;
    }
    let lower = async |life: &mut LifecycleFixture, threshold| {
        let order = life.order(&[0, 1, 2, 3], &[0, 1, 2, 3], threshold);
        let fault = life.test.cluster.reshare(&order).await.unwrap_err();
        assert!(fault.message().contains("threshold"), "{fault:?}");
        assert!(
            fault.message().contains("signer.least_threshold"),
            "{fault:?}"
        );
    };
    lower(&mut life, 3).await;
    for place in 0..4 {
        life.test.nodes[place].rules.limits.least_threshold = Some(3);
        life.restart(place).await;
    }
    lower(&mut life, 2).await;
    life.signs().await;
    life.reshare(&[0, 1, 2, 3], &[0, 1, 2, 3], 3).await;
    // A floor above the present threshold is in nobody's way.
    life.test.nodes[1].rules.limits.least_threshold = Some(9);
    life.restart(1).await;
    life.reshare(&[0, 1, 2], &[0, 1, 2], 3).await;
    life.signs().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn banned_node__should_deal_when_it_leaves_and_not_stay() {
    // Both shares are needed, and node 0 has seen node 1 cheat.
    let mut life = LifecycleFixture::start(Curve::Secp256k1, 3, 2, 2).await;
    life.test.stop_node(0).await;
    life.test.until_live(2).await;
    let path = life.test.nodes[0].folder.join("claims.redb");
    // The node closes it once its last job is done.
    let claims = loop {
        match Claims::open(&path, false) {
            Ok(claims) => break claims,
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
        }
    };
    let cheat = life.id(1);
    claims
        .ban(&life.root.public_key, cheat, now_ms())
        .await
        .unwrap();
    drop(claims);
    life.test.start_node(0);
    life.test.until_live(3).await;
    assert!(life.sign_as(&life.generation, 3_000).await.is_err());
    let order = life.order(&[0, 1], &[0, 1, 2], 2);
    let fault = life.test.cluster.reshare(&order).await.unwrap_err();
    assert!(fault.message().contains("banned"), "{fault:?}");
    life.reshare(&[0, 1], &[0, 2], 2).await;
    life.signs().await;
}
