//! getSigningRequestList.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use covault_actors::{
    gateway::{Caller, Gateway, VaultScope},
    operations::{
        BackupVault, ChangeApprovals, ExecuteSigningRequests, GetSigningRequestDetails,
        GetSigningRequestList, RejectSigningRequest,
    },
    store::{Batch, Key, KeySpace, Precondition, Scan, Store},
    testing::CountingStore,
};
use covault_core::{
    fault::{Class, Fault},
    ids::{RequestId, VaultId},
    schema::admin,
    schema::wire::{
        self,
        create_signing_request_request::Type as Kind,
        get_signing_request_list_request::SortOrder,
        signing_request::{Status, Type as Shown},
    },
};
use serde::Serialize;

use crate::world::*;

fn asked(vault: VaultId) -> wire::GetSigningRequestListRequest {
    wire::GetSigningRequestListRequest {
        vault_uuid: vault.to_string(),
        ..Default::default()
    }
}

async fn list(
    gateway: &Gateway,
    caller: &Caller,
    asked: wire::GetSigningRequestListRequest,
) -> Result<Vec<wire::SigningRequest>, Fault> {
    let found = call::<GetSigningRequestList>(gateway, caller, asked).await?;
    Ok(found.signing_requests)
}

async fn uuids(gateway: &Gateway, asked: wire::GetSigningRequestListRequest) -> Vec<String> {
    let found = list(gateway, &admin(), asked).await.unwrap();
    found.into_iter().map(|request| request.uuid).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_operators_do_to_a_vault__should_be_listed_and_neither_executed_nor_rejected() {
    let world = World::new();
    let gateway = world.start().await;
    let vault_id = vault(&gateway, "main").await;
    let listed = list(&gateway, &admin(), asked(vault_id)).await.unwrap();
    let mut kinds = Vec::new();
    for request in &listed {
        assert_eq!(request.status(), Status::Succeeded, "{request:?}");
        assert_eq!(request.vault_uuid, Some(vault_id.to_string()));
        assert_eq!(*request, details(&gateway, &request.uuid).await);
        kinds.push(match &request.r#type {
            Some(Shown::VaultCreation(made)) => format!("vault {}", made.name),
            Some(Shown::RootKeyGeneration(key)) => format!("{:?}", key.key_type()),
            kind => panic!("{kind:?}"),
        });
    }
    kinds.sort();
    assert_eq!(kinds, ["EccEd25519", "EccSecp256k1", "vault main"]);

    // What they do to it later, too.
    let another = admin::ChangeApprovalsRequest {
        vault_uuid: vault_id.to_string(),
        approvals: Some(admin::ApprovalRule {
            expires_ms: 60_000,
            ..automatic()
        }),
        ..Default::default()
    };
    call::<ChangeApprovals>(&gateway, &admin(), another)
        .await
        .unwrap();
    let backup = admin::BackupVaultRequest {
        vault_uuid: vault_id.to_string(),
        recipients: vec!["age1".into()],
    };
    call::<BackupVault>(&gateway, &admin(), backup)
        .await
        .unwrap();
    let later = list(&gateway, &admin(), asked(vault_id)).await.unwrap();
    let later: Vec<_> = later
        .iter()
        .filter(|it| listed.iter().all(|known| known.uuid != it.uuid))
        .collect();
    for request in &later {
        assert_eq!(request.status(), Status::Succeeded, "{request:?}");
        assert_eq!(**request, details(&gateway, &request.uuid).await);
    }
    let [of_rule, of_backup] = [0, 1].map(|place: usize| later[place].r#type.clone());
    let both = [of_rule, of_backup];
    let is = |kind: fn(&Option<Shown>) -> bool| both.iter().filter(|it| kind(it)).count();
    assert_eq!(later.len(), 2, "{later:?}");
    assert_eq!(is(|it| matches!(it, Some(Shown::VaultSettingUpdate(_)))), 1);
    assert_eq!(is(|it| matches!(it, Some(Shown::RootKeyBackup(_)))), 1);

    let uuid = listed[0].uuid.clone();
    let execute = wire::ExecuteSigningRequestsRequest { uuid: uuid.clone() };
    let executed = call::<ExecuteSigningRequests>(&gateway, &admin(), execute).await;
    let reject = wire::RejectSigningRequestRequest {
        uuid: uuid.clone(),
        ..Default::default()
    };
    let rejected = call::<RejectSigningRequest>(&gateway, &admin(), reject).await;
    for fault in [executed.unwrap_err(), rejected.unwrap_err()] {
        assert_eq!(fault.class(), &Class::WrongState, "{fault}");
    }

    // Who may not see the vault sees nothing of it either.
    let other = vault(&gateway, "other").await;
    let stranger = Caller {
        vaults: VaultScope::Only(vec![other]),
        ..admin()
    };
    let asked = wire::GetSigningRequestDetailsRequest { uuid };
    let hidden = call::<GetSigningRequestDetails>(&gateway, &stranger, asked).await;
    assert_eq!(hidden.unwrap_err().message(), "Invalid uuid");
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
async fn list__should_give_no_page_that_is_too_large() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    for length in [5 << 20, 1 << 20, 1 << 20, 1 << 20] {
        let long = Kind::RawMessage(wire::RawMessage {
            from: address.clone(),
            content: vec![7; length],
            ecdsa_hash_function: wire::EcdsaHashFunction::Sha256.into(),
        });
        let made = create(&gateway, long).await;
        outcome(&gateway, &made.uuid).await;
    }
    let page = async |page, limit| {
        let asked = wire::GetSigningRequestListRequest {
            page: Some(page),
            limit: Some(limit),
            ..asked(vault)
        };
        list(&gateway, &admin(), asked).await.map(|page| page.len())
    };
    let fault = page(1, 100).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Invalid);
    assert!(fault.message().starts_with("limit: "), "{fault}");
    assert!(fault.message().contains("only 3 of its"), "{fault}");
    assert_eq!(page(1, 3).await, Ok(3));
    // One alone may be larger.
    assert_eq!(page(4, 1).await, Ok(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list__should_be_in_the_order_of_creation_page_by_page() {
    let world = World::new();
    let gateway = world.start().await;
    let vault_id = vault(&gateway, "main").await;
    let other = vault(&gateway, "other").await;
    // The vault and its two keys.
    let mut up = uuids(&gateway, asked(vault_id)).await;
    assert_eq!(up.len(), 3);
    up.reverse();
    up.extend(make(&world, &gateway, vault_id, 22).await);
    let elsewhere = make(&world, &gateway, other, 1).await;
    let down: Vec<_> = up.iter().rev().cloned().collect();

    // As many as nobody asked for, the last one first.
    assert_eq!(uuids(&gateway, asked(vault_id)).await, down[..10]);
    assert_eq!(uuids(&gateway, asked(other)).await[..1], elsewhere);
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
    let listed = list(&gateway, &admin(), asked(vault_id)).await.unwrap();
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
        let fault = list(&gateway, &admin(), asked).await.unwrap_err();
        assert_eq!(fault.class(), &Class::Invalid);
        fault.message().to_owned()
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
    let fault = list(&gateway, &stranger(), asked(vault)).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Forbidden);
}

#[derive(Serialize)]
enum VersionedValue<T> {
    V1(T),
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list__should_find_a_page_far_behind_without_keeping_others_from_the_store() {
    let world = World::new();
    let store = CountingStore::new(Arc::clone(&world.store));
    let gateway = world.start_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let vault_id = vault(&gateway, "main").await;
    // Rows of the index alone, all of them of one request but some.
    let made = make(&world, &gateway, vault_id, 3).await;
    let id = |uuid: &str| uuid.parse::<RequestId>().unwrap();
    let mut batch = Batch::new();
    for (key, _) in world
        .store
        .scan(&Scan::prefix(
            KeySpace::RequestIndex,
            vault_id.as_bytes(),
            10,
        ))
        .await
        .unwrap()
    {
        batch.delete(key, Precondition::Any);
    }
    let value = bcs::to_bytes(&VersionedValue::V1(())).unwrap();
    for time in 0..25_000_u64 {
        let request = match time {
            10_000 => id(&made[1]),
            20_500 => id(&made[2]),
            _ => id(&made[0]),
        };
        let parts: [&[u8]; 3] = [vault_id.as_bytes(), &time.to_be_bytes(), request.as_bytes()];
        let key = Key::new(KeySpace::RequestIndex, &parts);
        batch.put(key, Precondition::Absent, value.clone());
    }
    world.store.commit(batch).await.unwrap();

    let page = async |page, limit, order: SortOrder| {
        let asked = wire::GetSigningRequestListRequest {
            page: Some(page),
            limit: Some(limit),
            sort_order: order.into(),
            ..asked(vault_id)
        };
        uuids(&gateway, asked).await
    };
    let (others, second, third) = (&made[0], &made[1], &made[2]);
    use SortOrder::{Asc, Desc};
    for (number, limit, order, expected) in [
        (10_000, 1, Asc, others),
        (10_001, 1, Asc, second),
        (10_002, 1, Asc, others),
        (20_501, 1, Asc, third),
        (25_000, 1, Asc, others),
        (14_999, 1, Desc, others),
        (15_000, 1, Desc, second),
        (4_500, 1, Desc, third),
    ] {
        let found = page(number, limit, order).await;
        assert_eq!(found, std::slice::from_ref(expected), "{number}");
    }
    let found = page(206, 100, Asc).await;
    assert_eq!((found.len(), &found[0]), (100, third));
    assert_eq!(page(250, 100, Desc).await.len(), 100);
    for past in [251, 1_000, i64::MAX] {
        assert!(page(past, 100, Desc).await.is_empty());
    }
    let most = store.most_skipped.load(Ordering::SeqCst);
    assert!(most <= 10_000, "{most} rows at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_and_lists__should_read_as_much_however_much_has_ended() {
    let mut read = Vec::new();
    for ended in [12, 60] {
        let world = World::new();
        let gateway = world.start().await;
        let vault_id = vault(&gateway, "main").await;
        let made = make(&world, &gateway, vault_id, ended).await;
        gateway.stop().await;

        let store = CountingStore::new(Arc::clone(&world.store));
        let rows = || store.read.swap(0, Ordering::SeqCst);
        let gateway = world.start_on(Arc::clone(&store) as Arc<dyn Store>).await;
        // Its vault makes a wallet once it has taken up what is live.
        let address = evm_wallet(&gateway, vault_id).await;
        // Some of what a start reads it reads beside what comes first.
        let mut start = rows();
        let mut calm = 0;
        while calm < 2 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let more = rows();
            calm = if more == 0 { calm + 1 } else { 0 };
            start += more;
        }
        assert_eq!(uuids(&gateway, asked(vault_id)).await.len(), 10);
        let list = rows();
        details(&gateway, &made[0]).await;
        let one = rows();
        let new = create(&gateway, raw(&address)).await;
        outcome(&gateway, &new.uuid).await;
        gateway.stop().await;
        read.push([start, list, one]);
    }
    assert_eq!(
        read[0], read[1],
        "rows read by a start, by a list, and by a look"
    );
}
