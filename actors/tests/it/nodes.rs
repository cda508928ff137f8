//! Which signer nodes may be used.

use std::sync::Arc;

use covault_actors::{
    gateway::{Command, Gateway, Query, View},
    port::NodeView,
    store::redb::RedbStore,
};
use covault_core::{
    fault::{Class, Fault},
    order::NodeId,
};

use crate::world::*;

fn node(number: u8) -> NodeId {
    NodeId([number; 32])
}

async fn submit(gateway: &Gateway, command: Command) -> Result<(), Fault> {
    gateway.submit(&admin(), command, None).await.map(|_| ())
}

fn admit_as(number: u8, name: &str) -> Command {
    Command::AdmitNode {
        id: node(number),
        name: name.into(),
    }
}

fn create(signers: &[u8]) -> Command {
    Command::CreateVault {
        name: "main".into(),
        threshold: 2,
        signers: signers.iter().map(|number| node(*number)).collect(),
        ecdsa: covault_core::scheme::Scheme::Dkls23,
    }
}

async fn list(gateway: &Gateway) -> Vec<NodeView> {
    match gateway.view(&admin(), Query::Nodes).await.unwrap() {
        View::Nodes { nodes, .. } => nodes,
        other => panic!("{other:?}"),
    }
}

async fn names(gateway: &Gateway) -> Vec<(NodeId, String)> {
    let nodes = list(gateway).await;
    nodes.into_iter().map(|node| (node.id, node.name)).collect()
}

#[tokio::test]
async fn vault__should_be_refused_with_a_node_that_was_not_admitted() {
    let world = World::new();
    let gateway = world.start().await;
    submit(&gateway, admit_as(1, "")).await.unwrap();
    let fault = submit(&gateway, create(&[1, 2])).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Invalid);
    let line = hex::encode([2; 32]);
    let sentence = fault.message();
    assert!(
        sentence.starts_with(&format!("signers: {line} ")),
        "{sentence}"
    );
    assert!(
        sentence.contains(&format!("covault node admit '{line}'")),
        "{sentence}"
    );
    assert!(world.signers.keygens.lock().unwrap().is_empty());
    submit(&gateway, admit_as(2, "")).await.unwrap();
    submit(&gateway, create(&[1, 2])).await.unwrap();
    ready(&gateway, "main").await;
    gateway.stop().await;
}

#[tokio::test]
async fn admission__should_outlive_a_restart_and_reach_the_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Arc::new(RedbStore::open(&folder.path().join("store")).unwrap());
    let world = World::on(open());
    let gateway = world.start().await;
    submit(&gateway, admit_as(2, "vienna")).await.unwrap();
    submit(&gateway, admit_as(9, "")).await.unwrap();
    // Once more, without a name and with another one.
    submit(&gateway, admit_as(2, "")).await.unwrap();
    submit(&gateway, admit_as(9, "graz")).await.unwrap();
    gateway.stop().await;
    drop((gateway, world));

    let world = World::on(open());
    let gateway = world.start().await;
    let admitted = world.signers.admitted.lock().unwrap().clone();
    assert_eq!(admitted, [node(2), node(9)]);
    let expected = [(node(9), "graz".to_owned()), (node(2), "vienna".to_owned())];
    assert_eq!(names(&gateway).await, expected);
    let seen = list(&gateway).await;
    assert!(
        !seen[0].live && seen[0].last_seen_ms.is_none(),
        "nobody has heard of it"
    );
    assert!(seen[1].live);

    submit(&gateway, Command::RemoveNode(node(2)))
        .await
        .unwrap();
    assert_eq!(*world.signers.admitted.lock().unwrap(), [node(9)]);
    assert_eq!(list(&gateway).await.len(), 1);
    let fault = submit(&gateway, Command::RemoveNode(node(2)))
        .await
        .unwrap_err();
    assert_eq!(fault.class(), &Class::Invalid);
    gateway.stop().await;
}

#[tokio::test]
async fn node__should_not_be_removed_while_it_holds_shares() {
    let world = World::new();
    let gateway = world.start().await;
    vault(&gateway, "main").await;
    vault(&gateway, "other").await;
    let fault = submit(&gateway, Command::RemoveNode(node(3)))
        .await
        .unwrap_err();
    assert_eq!(fault.class(), &Class::Conflict);
    assert!(fault.message().contains("main, other"), "{fault}");
    assert_eq!(list(&gateway).await.len(), 3);
    gateway.stop().await;
}

#[tokio::test]
async fn nodes__should_be_changed_by_operators_only_and_have_sane_names() {
    let world = World::new();
    let gateway = world.start().await;
    for command in [admit_as(1, ""), Command::RemoveNode(node(1))] {
        let fault = gateway
            .submit(&stranger(), command, None)
            .await
            .unwrap_err();
        assert_eq!(fault.class(), &Class::Forbidden);
    }
    for name in ["\u{1b}[2J", &"x".repeat(65)] {
        let fault = submit(&gateway, admit_as(1, name)).await.unwrap_err();
        assert!(fault.message().starts_with("name: "), "{fault}");
    }
    assert!(list(&gateway).await.is_empty());
    gateway.stop().await;
}
