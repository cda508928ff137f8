//! getSigningRequestList.

use std::sync::{Arc, atomic::Ordering};

use covault_actors::{
    gateway::{Gateway, Query, View},
    store::{Batch, Expect, Scan, Space, Store, redb::RedbStore},
};
use covault_core::{
    fault::{Class, Fault},
    ids::VaultId,
    schema::wire::{self, get_signing_request_list_request::SortOrder},
};

use crate::world::*;

fn asked(vault: VaultId) -> wire::GetSigningRequestListRequest {
    wire::GetSigningRequestListRequest {
        vault_uuid: vault.to_string(),
        ..Default::default()
    }
}

async fn list(
    gateway: &Gateway,
    asked: wire::GetSigningRequestListRequest,
) -> Result<Vec<wire::SigningRequest>, Fault> {
    match gateway
        .view(&admin(), Query::SigningRequests(asked))
        .await?
    {
        View::SigningRequests(found) => Ok(found),
        other => panic!("{other:?}"),
    }
}

async fn uuids(gateway: &Gateway, asked: wire::GetSigningRequestListRequest) -> Vec<String> {
    let found = list(gateway, asked).await.unwrap();
    found.into_iter().map(|request| request.uuid).collect()
}

/// Requests, each in a millisecond of its own.
async fn make(world: &World, gateway: &Gateway, vault: VaultId, count: usize) -> Vec<String> {
    let address = evm_wallet(gateway, vault).await;
    let mut made = Vec::new();
    for _ in 0..count {
        world.clock.ahead_ms.fetch_add(1, Ordering::SeqCst);
        let pending = create(gateway, raw(&address)).await;
        outcome(gateway, &pending.uuid).await;
        made.push(pending.uuid);
    }
    made
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list__should_be_in_the_order_of_creation_page_by_page() {
    let world = World::new();
    let gateway = world.start().await;
    let vault_id = vault(&gateway, "main").await;
    let other = vault(&gateway, "other").await;
    assert!(uuids(&gateway, asked(vault_id)).await.is_empty());
    let up = make(&world, &gateway, vault_id, 25).await;
    let elsewhere = make(&world, &gateway, other, 1).await;
    let down: Vec<_> = up.iter().rev().cloned().collect();

    // As many as nobody asked for, the last one first.
    assert_eq!(uuids(&gateway, asked(vault_id)).await, down[..10]);
    assert_eq!(uuids(&gateway, asked(other)).await, elsewhere);
    let page = async |page, limit, order: SortOrder| {
        let asked = wire::GetSigningRequestListRequest {
            page,
            limit,
            sort_order: order.into(),
            ..asked(vault_id)
        };
        uuids(&gateway, asked).await
    };
    for first in [None, Some(0), Some(1)] {
        assert_eq!(page(first, Some(7), SortOrder::Asc).await, up[..7]);
    }
    assert_eq!(page(Some(2), None, SortOrder::Asc).await, up[10..20]);
    assert_eq!(page(Some(4), Some(7), SortOrder::Asc).await, up[21..]);
    assert_eq!(page(Some(3), Some(10), SortOrder::Desc).await, down[20..]);
    assert_eq!(page(None, Some(100), SortOrder::Desc).await, down);
    for past in [5, i64::MAX] {
        assert!(page(Some(past), Some(7), SortOrder::Asc).await.is_empty());
    }
    // What is listed is what getSigningRequestDetails shows.
    let listed = list(&gateway, asked(vault_id)).await.unwrap();
    assert_eq!(listed[0], details(&gateway, &down[0]).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list__should_refuse_what_it_cannot_answer() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let refused = async |change: &dyn Fn(&mut wire::GetSigningRequestListRequest)| {
        let mut asked = asked(vault);
        change(&mut asked);
        let fault = list(&gateway, asked).await.unwrap_err();
        assert_eq!(fault.class(), &Class::Invalid);
        fault.public().to_owned()
    };
    for limit in [101, -1, i64::MIN] {
        let said = refused(&|asked| asked.limit = Some(limit)).await;
        assert_eq!(said, "limit: must be 1 to 100");
    }
    for page in [-1, i64::MIN] {
        let said = refused(&|asked| asked.page = Some(page)).await;
        assert_eq!(said, "page: must be 1 or more");
    }
    let said = refused(&|asked| asked.sort_order = 7).await;
    assert!(said.starts_with("sortOrder: "), "{said}");
    let said = refused(&|asked| asked.vault_uuid.clear()).await;
    assert_eq!(said, "vaultUuid: is required");
    for uuid in ["x", "00000000-0000-4000-8000-000000000000"] {
        let said = refused(&|asked| asked.vault_uuid = uuid.into()).await;
        assert_eq!(said, "Invalid uuid");
    }
    let query = Query::SigningRequests(asked(vault));
    let fault = gateway.view(&stranger(), query).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Forbidden);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list__should_have_the_requests_of_versions_before_the_index() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(RedbStore::open(&folder.path().join("store.redb")).unwrap());
    let world = World::on(Arc::clone(&store) as Arc<dyn Store>);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let made = make(&world, &gateway, vault, 5).await;
    gateway.stop().await;

    let index = || Scan::prefix(Space::RequestIndex, &[], 1_000);
    let mut batch = Batch::new();
    for (key, _) in store.scan(&index()).await.unwrap() {
        batch.delete(key, Expect::Any);
    }
    store.commit(batch).await.unwrap();
    let expected: Vec<_> = made.iter().rev().cloned().collect();
    for _ in 0..2 {
        let gateway = world.start().await;
        assert_eq!(uuids(&gateway, asked(vault)).await, expected);
        // One row for each, and the mark that nothing is missing.
        assert_eq!(store.scan(&index()).await.unwrap().len(), 6);
        gateway.stop().await;
    }
}
