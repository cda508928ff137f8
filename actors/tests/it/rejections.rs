//! rejectSigningRequest.

use std::{sync::atomic::Ordering, time::Duration};

use covault_actors::{
    chain_rpc::{ChainClient, ChainKey},
    gateway::{Caller, Gateway},
    operations::RejectSigningRequest,
};
use covault_core::{
    fault::{Class, Fault},
    networks::Network,
    schema::wire::{
        self, ExecuteSigningRequestsErrorCode as ErrorCode, NetworkType,
        create_signing_request_request::Type as Kind, signing_request::Status,
    },
};
use std::sync::Arc;

use crate::{requests::code, world::*};

async fn reject_as(caller: &Caller, gateway: &Gateway, uuid: &str) -> Result<(), Fault> {
    let request = wire::RejectSigningRequestRequest {
        uuid: uuid.into(),
        rejection: None,
    };
    call::<RejectSigningRequest>(gateway, caller, request).await?;
    Ok(())
}

async fn reject(gateway: &Gateway, uuid: &str) -> Result<(), Fault> {
    reject_as(&admin(), gateway, uuid).await
}

async fn too_late(gateway: &Gateway, uuid: &str) -> String {
    let fault = reject(gateway, uuid).await.unwrap_err();
    assert_eq!(fault.class(), &Class::WrongState);
    fault.message().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reject__should_end_a_request_for_good_and_let_the_next_one_go() {
    let world = World::new();
    world.evm.down.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let first = create(&gateway, send(&address)).await;
    let second = create(&gateway, send(&address)).await;
    reject(&gateway, &first.uuid).await.unwrap();

    let shown = details(&gateway, &first.uuid).await;
    assert_eq!(shown.status(), Status::Failed);
    assert_eq!(
        shown.failed_reason,
        "rejected before it was signed (rejectSigningRequest)"
    );
    let error = outcome(&gateway, &first.uuid).await.error.unwrap();
    assert_eq!(code(&error), ErrorCode::AlreadyDenied);
    let again = too_late(&gateway, &first.uuid).await;
    assert_eq!(
        again,
        "the request cannot be rejected: it was already rejected, or has failed"
    );

    world.evm.down.store(false, Ordering::SeqCst);
    assert_eq!(outcome(&gateway, &second.uuid).await.error, None);
    assert_eq!(world.evm.nonces(), [0], "the first one holds no number");
    gateway.stop().await;
    let gateway = world.start().await;
    assert_eq!(details(&gateway, &first.uuid).await, shown);
    assert_eq!(world.evm.accepted(), 1);
    assert_eq!(world.pending().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reject__should_come_too_late_once_the_request_is_being_signed() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let done = create(&gateway, raw(&address)).await;
    outcome(&gateway, &done.uuid).await;
    let said = too_late(&gateway, &done.uuid).await;
    assert!(said.ends_with("it has already succeeded"), "{said}");
    assert_eq!(
        details(&gateway, &done.uuid).await.status(),
        Status::Succeeded
    );

    world.evm.stuck.store(true, Ordering::SeqCst);
    let signed = create(&gateway, send(&address)).await;
    while world.evm.handed.lock().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let said = too_late(&gateway, &signed.uuid).await;
    assert!(said.contains("it is signed; "), "{said}");

    world.signers.silent.store(true, Ordering::SeqCst);
    let signing = create(&gateway, raw(&address)).await;
    let said = too_late(&gateway, &signing.uuid).await;
    assert!(said.contains("it is being signed; "), "{said}");
    assert_eq!(
        details(&gateway, &signing.uuid).await.status(),
        Status::Pending
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reject__should_know_only_what_the_token_may_see() {
    let world = World::new();
    world.evm.down.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let pending = create(&gateway, send(&address)).await;
    let fault = reject_as(&stranger(), &gateway, &pending.uuid)
        .await
        .unwrap_err();
    assert_eq!(fault.message(), "Invalid uuid");
    for uuid in ["", "x", "00000000-0000-4000-8000-000000000000"] {
        let fault = reject(&gateway, uuid).await.unwrap_err();
        assert_eq!(fault.message(), "Invalid uuid");
    }
    assert_eq!(
        details(&gateway, &pending.uuid).await.status(),
        Status::Pending
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reject__should_end_a_request_whose_actor_waits_for_its_restart() {
    let mut world = World::new();
    world.settings.retry_first_ms = 60_000;
    world.settings.retry_most_ms = 60_000;
    // The double panics when it is asked about another network.
    let tron = Arc::clone(&world.solana) as Arc<dyn ChainClient>;
    let chains = world.chains().with(ChainKey::of(Network::Tron, None), tron);
    let gateway = world.start_with(Arc::clone(&world.store), chains).await;
    let vault = vault(&gateway, "main").await;
    let from = wallet(&gateway, vault, NetworkType::Tron).await.address;
    let kind = Kind::TronSendNative(wire::TronSendNative {
        to: "TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t".into(),
        from,
        value: "1".into(),
    });
    let pending = create(&gateway, kind).await;
    while world.solana.asked.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    reject(&gateway, &pending.uuid).await.unwrap();
    let shown = details(&gateway, &pending.uuid).await;
    assert!(shown.failed_reason.starts_with("rejected "), "{shown:?}");
    assert_eq!(world.pending().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reject__should_never_be_answered_for_a_request_that_is_sent() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let calls = (0..60).map(|number| {
        let (gateway, address) = (gateway.clone(), address.clone());
        tokio::spawn(async move {
            let uuid = create(&gateway, send(&address)).await.uuid;
            for _ in 0..number % 12 {
                tokio::task::yield_now().await;
            }
            // Two at once: at most one of them succeeds.
            let both = tokio::join!(reject(&gateway, &uuid), reject(&gateway, &uuid));
            let both = [both.0, both.1];
            let rejected = both.iter().filter(|answer| answer.is_ok()).count();
            for fault in both.into_iter().filter_map(Result::err) {
                assert_eq!(fault.class(), &Class::WrongState, "{fault}");
            }
            (uuid, rejected)
        })
    });
    let mut sent = 0;
    for call in futures::future::join_all(calls).await {
        let (uuid, rejected) = call.unwrap();
        assert!(rejected <= 1);
        let error = outcome(&gateway, &uuid).await.error;
        assert_eq!(error.is_some(), rejected == 1, "{error:?}");
        sent += usize::from(error.is_none());
    }
    assert_eq!(world.evm.accepted(), sent);
    let numbers: Vec<_> = (0..sent as u64).collect();
    assert_eq!(world.evm.nonces(), numbers, "no number is left out");
    assert_eq!(world.pending().await, 0);
}
