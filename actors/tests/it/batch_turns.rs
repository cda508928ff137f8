//! Batch payments whose turn it is not: of people who may not start them, of one token at once, between two requests.

use std::sync::{Arc, atomic::Ordering};

use covault_actors::operations::ListVaults;
use covault_core::{fault::Class, schema::admin, token::TokenAccess};

use crate::{
    batch_payments::{
        approve, approve_as, evm_batch, make, person, reject, start, summary, token_batch,
        until_over,
    },
    tracker::until,
    world::*,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn person__should_start_no_batch_whose_requests_nobody_approves() {
    let mut world = World::new();
    world.settings.console_origin = "https://console.example.com".to_owned();
    let gateway = start(&world, Arc::clone(&world.store)).await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    let uuid = make(&gateway, evm_batch(&from)).await;
    // A session alone moves no money.
    let may = person(&world, &gateway, TokenAccess::Full).await;
    let refused = approve_as(&gateway, &may, &uuid, None).await.unwrap_err();
    assert_eq!(*refused.class(), Class::Forbidden, "{refused}");
    assert!(world.requests().await.is_empty());
    // What is for operators alone stays that.
    let vaults = admin::ListVaultsRequest::default();
    let refused = call::<ListVaults>(&gateway, &may, vaults)
        .await
        .unwrap_err();
    assert_eq!(*refused.class(), Class::Forbidden, "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_one_token_at_once__should_be_approved_one_after_the_other() {
    let world = World::new();
    let allowances = ["0", "12", "0", "12", "0"].map(str::to_owned);
    world.evm.allowances.lock().unwrap().extend(allowances);
    let gateway = start(&world, Arc::clone(&world.store)).await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    let batches = [
        make(&gateway, token_batch(&from)).await,
        make(&gateway, token_batch(&from)).await,
    ];
    let [first, second] = &batches;
    let all = tokio::join!(approve(&gateway, first), approve(&gateway, second));
    let (won, lost) = match (all.0, all.1) {
        (Ok(_), Err(fault)) => ((first, second), fault),
        (Err(fault), Ok(_)) => ((second, first), fault),
        other => panic!("{other:?}"),
    };
    assert_eq!(*lost.class(), Class::WrongState, "{lost}");
    assert!(lost.message().contains("pays the same token"), "{lost}");
    let (won, waits) = won;
    assert_eq!(until_over(&gateway, won).await.status, "STATUS_SUCCEEDED");
    // Then it is the other one's turn.
    approve(&gateway, waits).await.unwrap();
    assert_eq!(until_over(&gateway, waits).await.status, "STATUS_SUCCEEDED");
    assert_eq!(world.evm.accepted(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_between_its_requests__should_say_why_it_waits_and_be_closable() {
    let world = World::new();
    // What a chain says that is no number.
    let allowances = ["0", "many"].map(str::to_owned);
    world.evm.allowances.lock().unwrap().extend(allowances);
    let gateway = start(&world, Arc::clone(&world.store)).await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    let uuid = make(&gateway, token_batch(&from)).await;
    world.evm.holds.store(true, Ordering::SeqCst);
    approve(&gateway, &uuid).await.unwrap();
    // Its request is on its way.
    let refused = reject(&gateway, &uuid).await.unwrap_err();
    assert_eq!(*refused.class(), Class::WrongState);
    world.evm.holds.store(false, Ordering::SeqCst);
    until(async || !summary(&gateway, &uuid).await.held_up_by.is_empty()).await;
    let waits = summary(&gateway, &uuid).await;
    assert_eq!(waits.status, "STATUS_PENDING");
    assert!(
        waits.held_up_by.starts_with("an internal error"),
        "{waits:?}"
    );
    until(async || reject(&gateway, &uuid).await.is_ok()).await;
    let closed = summary(&gateway, &uuid).await;
    assert_eq!(
        (closed.status.as_str(), closed.resumable),
        ("STATUS_FAILED", false)
    );
    assert_eq!(closed.held_up_by, "");
    // The token is free for another one.
    let other = make(&gateway, token_batch(&from)).await;
    let refused = approve(&gateway, &other).await.unwrap_err();
    assert_eq!(*refused.class(), Class::Bug, "{refused}");
    assert_eq!(world.requests().await.len(), 1);
}
