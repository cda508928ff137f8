//! Idempotency keys.

use std::{collections::BTreeSet, sync::atomic::Ordering};

use covault_actors::gateway::{Command, Query, Receipt, View};
use covault_core::{fault::Class, schema::wire::{self, NetworkType}};
use prost::Message as _;

use crate::world::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_identical_calls__should_make_one_wallet() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let calls = (0..50).map(|_| {
        let command = wallet_command(vault, NetworkType::Evm, "r");
        let gateway = gateway.clone();
        tokio::spawn(async move { gateway.submit(&admin(), command, Some(idempotency_key("k"))).await })
    });
    let mut bytes = BTreeSet::new();
    let mut replayed = 0;
    for call in futures::future::join_all(calls).await {
        let submitted = call.unwrap().unwrap();
        replayed += usize::from(submitted.replayed);
        let Receipt::Wallet(wallet) = submitted.receipt else {
            panic!("no wallet")
        };
        bytes.insert(wallet.encode_to_vec());
    }
    assert_eq!((bytes.len(), replayed), (1, 49));
    let all = Query::Wallets(wire::GetWalletListRequest {
        vault_uuid: vault.to_string(),
        ..Default::default()
    });
    match gateway.view(&admin(), all).await.unwrap() {
        View::Wallets(wallets) => assert_eq!(wallets.len(), 1),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replay__should_be_the_first_answer_also_after_a_restart_and_say_when_the_body_differs() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let first = created(try_create(&gateway, request(raw(&address)), Some("k")).await.unwrap());
    outcome(&gateway, &first.uuid).await;
    gateway.stop().await;

    let gateway = world.start().await;
    let again = try_create(&gateway, request(raw(&address)), Some("k")).await.unwrap();
    assert_eq!((again.replayed, again.body_mismatch), (true, false));
    assert_eq!(created(again), first, "as it was then: pending");

    let mut key = idempotency_key("k");
    key.body_hash = [9; 32];
    let command = Command::CreateSigningRequest(request(send(&address)));
    let other = gateway.submit(&admin(), command, Some(key)).await.unwrap();
    assert_eq!((other.replayed, other.body_mismatch), (true, true));
    assert_eq!(created(other), first);
    assert_eq!(world.requests().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys__should_belong_to_token_and_operation_and_end_after_a_day() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let key = || Some(idempotency_key("k"));
    let wallet = || wallet_command(vault, NetworkType::Evm, "");
    assert!(!gateway.submit(&admin(), wallet(), key()).await.unwrap().replayed);
    assert!(!try_create(&gateway, request(raw(&address)), Some("k")).await.unwrap().replayed);
    let mut other = admin();
    other.token = covault_core::ids::TokenId::from_bytes([7; 16]);
    assert!(!gateway.submit(&other, wallet(), key()).await.unwrap().replayed);

    let day = 24 * 60 * 60 * 1000;
    world.clock.ahead_ms.fetch_add(day - 60_000, Ordering::SeqCst);
    assert!(gateway.submit(&admin(), wallet(), key()).await.unwrap().replayed);
    world.clock.ahead_ms.fetch_add(60_001, Ordering::SeqCst);
    assert!(!gateway.submit(&admin(), wallet(), key()).await.unwrap().replayed);
    assert!(gateway.submit(&admin(), wallet(), key()).await.unwrap().replayed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_request__should_leave_the_key_free() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let wrong = raw("0x00000000000000000000000000000000000000aa");
    assert!(try_create(&gateway, request(wrong), Some("k")).await.is_err());
    assert!(!try_create(&gateway, request(raw(&address)), Some("k")).await.unwrap().replayed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key__should_have_1_to_255_characters() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    for key in ["", &"k".repeat(256)] {
        let fault = try_create(&gateway, request(raw(&address)), Some(key)).await.unwrap_err();
        assert_eq!(fault.class(), &Class::Invalid);
        assert!(fault.public().starts_with("idempotency-key: "));
    }
    let longest = "ü".repeat(255);
    assert!(try_create(&gateway, request(raw(&address)), Some(&longest)).await.is_ok());
}
