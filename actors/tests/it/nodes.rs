//! Which signer nodes may be used.

use std::sync::Arc;

use covault_actors::{
    gateway::{Caller, Gateway},
    operations::{AdmitNode, CreateVault, RemoveNode},
    port::NodeView,
    store::redb::RedbStore,
};
use covault_core::{
    fault::{Class, Fault},
    order::NodeId,
    schema::admin,
};

use crate::world::*;

async fn admit_node(
    gateway: &Gateway,
    caller: &Caller,
    number: u8,
    name: &str,
) -> Result<(), Fault> {
    let request = admin::AdmitNodeRequest {
        public_key: node(number).openssh_line(""),
        name: name.into(),
    };
    let admitted = call::<AdmitNode>(gateway, caller, request).await;
    admitted.map(|_| ())
}

async fn admit_as(gateway: &Gateway, number: u8, name: &str) -> Result<(), Fault> {
    admit_node(gateway, &admin(), number, name).await
}

async fn remove(gateway: &Gateway, caller: &Caller, number: u8) -> Result<(), Fault> {
    let public_key = node(number).openssh_line("");
    let request = admin::RemoveNodeRequest { public_key };
    let removed = call::<RemoveNode>(gateway, caller, request).await;
    removed.map(|_| ())
}

async fn create(gateway: &Gateway, signers: [u8; 2]) -> Result<(), Fault> {
    let request = admin::CreateVaultRequest {
        signers: lines(signers),
        ..vault_request("main")
    };
    let made = call::<CreateVault>(gateway, &admin(), request).await;
    made.map(|_| ())
}

async fn list(gateway: &Gateway) -> Vec<NodeView> {
    gateway.nodes().await.unwrap().0
}

async fn names(gateway: &Gateway) -> Vec<(NodeId, String)> {
    let nodes = list(gateway).await;
    nodes.into_iter().map(|node| (node.id, node.name)).collect()
}

#[tokio::test]
async fn vault__should_be_refused_with_a_node_that_was_not_admitted() {
    let world = World::new();
    let gateway = world.start().await;
    admit_as(&gateway, 1, "").await.unwrap();
    let fault = create(&gateway, [1, 2]).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Invalid);
    let line = node(2).openssh_line("");
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
    admit_as(&gateway, 2, "").await.unwrap();
    create(&gateway, [1, 2]).await.unwrap();
    ready(&gateway, "main").await;
    gateway.stop().await;
}

#[tokio::test]
async fn admission__should_outlive_a_restart_and_reach_the_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Arc::new(RedbStore::open(&folder.path().join("store")).unwrap());
    let world = World::on(open());
    let gateway = world.start().await;
    admit_as(&gateway, 2, "vienna").await.unwrap();
    admit_as(&gateway, 9, "").await.unwrap();
    // Once more, without a name and with another one.
    admit_as(&gateway, 2, "").await.unwrap();
    admit_as(&gateway, 9, "graz").await.unwrap();
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

    remove(&gateway, &admin(), 2).await.unwrap();
    assert_eq!(*world.signers.admitted.lock().unwrap(), [node(9)]);
    assert_eq!(list(&gateway).await.len(), 1);
    let fault = remove(&gateway, &admin(), 2).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Invalid);
    gateway.stop().await;
}

#[tokio::test]
async fn node__should_not_be_removed_while_it_holds_shares() {
    let world = World::new();
    let gateway = world.start().await;
    vault(&gateway, "main").await;
    vault(&gateway, "other").await;
    let fault = remove(&gateway, &admin(), 3).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Conflict);
    assert!(fault.message().contains("main, other"), "{fault}");
    assert_eq!(list(&gateway).await.len(), 3);
    gateway.stop().await;
}

#[tokio::test]
async fn node__should_not_be_removed_while_any_of_many_vaults_needs_it() {
    let world = World::new();
    let gateway = world.start().await;
    for number in 0..101 {
        vault(&gateway, &format!("vault {number:03}")).await;
    }
    let fault = remove(&gateway, &admin(), 3).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Conflict);
    let all = "vault 000, vault 001, ";
    assert!(fault.message().contains(all), "{fault}");
    assert!(fault.message().contains(" and 81 more"), "{fault}");
    gateway.stop().await;
}

#[tokio::test]
async fn nodes__should_be_changed_by_operators_only_and_have_sane_names() {
    let world = World::new();
    let gateway = world.start().await;
    for refused in [
        admit_node(&gateway, &stranger(), 1, "").await,
        remove(&gateway, &stranger(), 1).await,
    ] {
        assert_eq!(refused.unwrap_err().class(), &Class::Forbidden);
    }
    for name in ["\u{1b}[2J", &"x".repeat(65)] {
        let fault = admit_as(&gateway, 1, name).await.unwrap_err();
        assert!(fault.message().starts_with("name: "), "{fault}");
    }
    assert!(list(&gateway).await.is_empty());
    gateway.stop().await;
}
