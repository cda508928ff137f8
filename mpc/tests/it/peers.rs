//! A node works with the peers of its own configuration, whatever an orchestrator orders; and an
//! orchestrator works with the nodes that were admitted, no matter which others announce themselves.

use crate::support::*;
use covault_core::{
    fault::Class,
    ids::SessionId,
    order::{Generation, NodeId, ReshareOrder},
    port::random_16,
    scheme::Scheme,
    signature::Curve,
};
use covault_mpc::{claims::Claims, cluster::NodeStatus, node::PinnedPeers};
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node__should_refuse_orders_that_name_others_than_its_peers() {
    let mut cluster = TestCluster::start(TestBus::memory(), 3).await;
    cluster.until_live(3).await;
    let root = cluster.keygen(Curve::Ed25519, 2).await;
    let ids = cluster.holders();
    cluster.stop_node(0).await;
    cluster.until_live(2).await;
    cluster.nodes[0].peers = Some(vec![ids[1]]);
    cluster.start_node(0);
    cluster.until_live(3).await;

    let refused = cluster
        .cluster
        .keygen(&cluster.keygen_order(Curve::Ed25519, 2))
        .await
        .unwrap_err();
    assert_eq!(refused.class(), &Class::Invalid);
    let stranger = ids[2].openssh_line("");
    assert!(
        refused
            .message()
            .contains(&format!("signers: name {stranger}")),
        "{refused}"
    );

    // A new generation of shares for others, no more than a key.
    let generation = |epoch, holders| Generation {
        epoch,
        threshold: 2,
        holders,
    };
    let order = ReshareOrder {
        vault: cluster.vault,
        session: SessionId::from_random(random_16(&SystemEntropy)),
        scheme: Scheme::default_of(root.curve),
        root_public_key: root.public_key.clone(),
        old: generation(0, ids.clone()),
        dealers: vec![ids[0], ids[1]],
        new: generation(1, vec![ids[0], ids[2]]),
        issued_at_ms: now_ms(),
        expires_at_ms: now_ms() + 60_000,
    };
    let refused = cluster.cluster.reshare(&order).await.err().unwrap();
    let sentence = format!("new.holders: name {stranger}");
    assert!(refused.message().contains(&sentence), "{refused}");

    // With a pinned peer it signs; with the other it does not, and says why.
    cluster.stop_node(2).await;
    cluster.until_live(2).await;
    cluster.sign_well(&root, 2).await;
    cluster.start_node(2);
    cluster.until_live(3).await;
    cluster.stop_node(1).await;
    cluster.until_live(2).await;
    let order = cluster.order(&root);
    let refused = cluster.sign(&order, 2, 10_000).await.unwrap_err();
    assert!(
        refused
            .message()
            .contains(&format!("signers: name {stranger}")),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers__should_count_as_they_are_now_and_not_as_at_the_start() {
    let mut cluster = TestCluster::start(TestBus::memory(), 3).await;
    cluster.until_live(3).await;
    let root = cluster.keygen(Curve::Ed25519, 2).await;
    let ids = cluster.holders();
    let current = Arc::clone(&cluster.nodes[0].current_peers);
    let replace = |peers: &[NodeId]| {
        current.replace(PinnedPeers {
            all: Some(peers.iter().copied().collect()),
            ..PinnedPeers::default()
        });
    };
    let is_listed = |nodes: &[NodeStatus]| {
        let node = nodes.iter().find(|node| node.id == ids[0]);
        node.is_some_and(|node| node.listed.as_ref().unwrap().has_peer(&ids[2]))
    };
    replace(&ids[..2]);
    let refused = cluster
        .cluster
        .keygen(&cluster.keygen_order(Curve::Ed25519, 2))
        .await
        .unwrap_err();
    let stranger = format!("signers: name {}", ids[2].openssh_line(""));
    assert!(refused.message().contains(&stranger), "{refused}");
    cluster.until(|nodes| !is_listed(nodes)).await;
    cluster.stop_node(1).await;
    cluster.until_live(2).await;
    let order = cluster.order(&root);
    let refused = cluster.sign(&order, 2, 10_000).await.unwrap_err();
    assert!(refused.message().contains(&stranger), "{refused}");

    replace(&ids);
    cluster.until(is_listed).await;
    cluster.sign_well(&root, 2).await;
    cluster.start_node(1);
    cluster.until_live(3).await;
    cluster.keygen(Curve::Ed25519, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stranger__should_not_be_used_before_it_is_admitted() {
    let cluster = TestCluster::start(TestBus::memory(), 3).await;
    let ids = cluster.holders();
    cluster.cluster.admit(&ids[..2]);
    cluster.until_live(2).await;
    while cluster.cluster.unadmitted().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(cluster.cluster.unadmitted()[0].id, ids[2]);
    let mut order = cluster.keygen_order(Curve::Ed25519, 2);
    order.expires_at_ms = now_ms() + 1_500;
    let fault = cluster.cluster.keygen(&order).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Unavailable);
    assert!(
        fault.message().contains(&ids[2].openssh_line("")),
        "{fault}"
    );
    cluster.cluster.admit(&ids);
    cluster.until_live(3).await;
    cluster.keygen(Curve::Ed25519, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bans__should_be_shown_to_operators() {
    let mut cluster = TestCluster::start(TestBus::memory(), 2).await;
    cluster.until_live(2).await;
    let root = cluster.keygen(Curve::Ed25519, 2).await;
    let ids = cluster.holders();
    cluster.stop_node(0).await;
    cluster.until_live(1).await;
    let path = cluster.nodes[0].folder.join("claims.redb");
    let claims = loop {
        // The node closes its file a moment after it has ended.
        match Claims::open(&path, false) {
            Ok(claims) => break claims,
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
        }
    };
    claims
        .ban(&root.public_key, ids[1], now_ms())
        .await
        .unwrap();
    drop(claims);
    cluster.start_node(0);
    // The heartbeat that is known may be one from before the key generation.
    cluster
        .until(|nodes| nodes.iter().all(|node| node.live && node.keys == 1))
        .await;
    let nodes = cluster.cluster.nodes();
    let of = |id| nodes.iter().find(|node| node.id == id).unwrap();
    let bans = &of(ids[0]).bans;
    assert_eq!((bans.len(), bans[0].peer), (1, ids[1]));
    assert_eq!(bans[0].key, root.public_key[..8]);
    assert!(of(ids[1]).bans.is_empty());
}
