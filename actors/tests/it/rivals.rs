//! Requests that a restore has left in doubt, and others that use the same number: what ends them, and what does not.

use std::{sync::atomic::Ordering, time::Duration};

use covault_actors::{
    chain_rpc::{
        BroadcastOutcome, BroadcastRequest, ChainClient as _, Inclusion, TransactionSighting,
    },
    gateway::Gateway,
};
use covault_core::{
    networks::{ChainData, Signed},
    schema::wire::{
        self, create_signing_request_request::Type as Kind, signing_request,
        transaction_state::Status,
    },
};

use crate::{
    backup::{back_up, claims, let_in, restored, sent_since},
    chain_double::FINAL,
    rebroadcast::{noted, pass},
    tracker::{GAP_MS, fillers, numbered, until, until_status},
    world::*,
};

const MINED: TransactionSighting = TransactionSighting::Mined(Inclusion {
    block: 9,
    success: true,
});

fn unheard(world: &World, sighting: TransactionSighting) {
    *world.evm.unheard.lock().unwrap() = Some(sighting);
}

/// A process after a restore, with a request in doubt whose transaction was sent since the backup, and whose number nodes
/// offer again. With its uuid and the wallet's address.
async fn in_doubt(settling_ms: u64) -> (World, Gateway, String, String) {
    let (world, backup, address, sent) = sent_since().await;
    world.evm.forget(0);
    let mut world = restored(&world, &backup).await;
    world.settings.settling_ms = settling_ms;
    unheard(&world, TransactionSighting::Missing);
    *world.evm.sighting.lock().unwrap() = Some(MINED);
    let gateway = world.start().await;
    let_in(&gateway, &admin()).await.unwrap();
    (world, gateway, address, sent.uuid)
}

/// Another payment of the wallet.
fn another(address: &str) -> wire::CreateSigningRequestRequest {
    request(Kind::EvmSendNative(wire::EvmSendNative {
        value: "6".into(),
        ..send_native(address)
    }))
}

async fn is_pending(gateway: &Gateway, uuid: &str) {
    let shown = details(gateway, uuid).await;
    let status = shown.status();
    assert_eq!(
        status,
        signing_request::Status::Pending,
        "{}",
        shown.failed_reason
    );
}

/// Until a request has failed because a transaction has used its number.
async fn is_replaced(gateway: &Gateway, uuid: &str, by: &str) {
    let is_over =
        async || details(gateway, uuid).await.status() != signing_request::Status::Pending;
    until(is_over).await;
    let shown = details(gateway, uuid).await;
    assert_eq!(shown.status(), signing_request::Status::Failed);
    let words = format!("nonce 0 was used by the transaction {by}, which is final");
    let reason = shown.failed_reason;
    assert!(reason.ends_with(&words), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_in_doubt__should_not_fail_by_a_rival_that_one_node_shows_in_a_block() {
    let (world, gateway, address, uuid) = in_doubt(100).await;
    let rival = try_create(&gateway, another(&address), None)
        .await
        .unwrap()
        .0
        .uuid;
    let by = outcome(&gateway, &rival).await.tx_hash;
    until_status(&gateway, &rival, Status::Mined).await;
    // The number is used for good, and the node that is asked shows blocks without transactions.
    unheard(&world, TransactionSighting::Replaced(None));
    world.evm.asked_for(20).await;
    tokio::time::sleep(Duration::from_millis(4 * world.settings.settling_ms)).await;
    is_pending(&gateway, &uuid).await;
    world.evm.says(&by, FINAL);
    is_replaced(&gateway, &uuid, &by).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_in_doubt__should_end_by_a_rival_that_its_client_sent_itself() {
    let (world, gateway, address, uuid) = in_doubt(100).await;
    let mut handed_over = another(&address);
    handed_over.broadcast_tx = Some(false);
    let rival = try_create(&gateway, handed_over, None)
        .await
        .unwrap()
        .0
        .uuid;
    assert_eq!(outcome(&gateway, &rival).await.error, None);
    let rival = details(&gateway, &rival).await;
    let by = rival.tx_hash;
    let used = TransactionSighting::Replaced(Some(by.clone()));
    // While nodes do not agree that a block has it, it is not believed.
    unheard(&world, used);
    world.evm.asked_for(20).await;
    is_pending(&gateway, &uuid).await;
    let sent = BroadcastRequest {
        signed: Signed {
            transaction: rival.signed_transaction,
            tx_hash: by.clone(),
        },
        chain_data: ChainData::Nothing,
        age_ms: 0,
        now_ms: 0,
        retried: false,
    };
    let taken = world.evm.broadcast(&sent).await;
    assert!(matches!(taken, BroadcastOutcome::Accepted), "{taken:?}");
    is_replaced(&gateway, &uuid, &by).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whose_transaction_used_a_number__should_be_asked_seldom_and_not_before_it_is_settled() {
    let used = || TransactionSighting::Replaced(Some("0x77".into()));
    let (world, gateway, _, uuid) = in_doubt(3_600_000).await;
    unheard(&world, used());
    world.evm.asked_for(20).await;
    let asked = || world.evm.signatures_asked.load(Ordering::SeqCst);
    assert_eq!(asked(), 0, "the nodes may change their minds");
    gateway.stop().await;
    let (world, gateway, _, other) = in_doubt(100).await;
    unheard(&world, used());
    let asked = || world.evm.signatures_asked.load(Ordering::SeqCst);
    until(async || asked() > 0).await;
    world.evm.asked_for(40).await;
    // Each time after twice as long.
    assert!((2..20).contains(&asked()), "{}", asked());
    is_pending(&gateway, &other).await;
    assert_ne!(uuid, other);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gaps__should_be_filled_where_a_restore_has_left_the_number_in_doubt() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    world.signers.silent.store(true, Ordering::SeqCst);
    let doubted = create(&gateway, send(&address)).await.uuid;
    until(async || claims(&world).await == 1).await;
    let backup = back_up(&gateway).await;
    gateway.stop().await;
    world.signers.silent.store(false, Ordering::SeqCst);
    let world = restored(&world, &backup).await;
    // It was never sent.
    unheard(&world, TransactionSighting::Missing);
    *world.evm.sighting.lock().unwrap() = Some(TransactionSighting::Waiting);
    let gateway = world.start().await;
    let_in(&gateway, &admin()).await.unwrap();
    numbered(&gateway, &address, 1).await;
    is_pending(&gateway, &doubted).await;
    assert_eq!(world.evm.nonces(), [1]);
    // What a block has used is no gap, whoever has done it.
    world.evm.used.store(1, Ordering::SeqCst);
    pass(&world, GAP_MS);
    world.evm.asked_for(10).await;
    assert!(fillers(&gateway, &vault.to_string()).await.is_empty());
    world.evm.used.store(0, Ordering::SeqCst);
    pass(&world, GAP_MS);
    until(async || world.evm.nonces() == [0, 1]).await;
    assert_eq!(fillers(&gateway, &vault.to_string()).await.len(), 1);
    assert!(noted(&world, "Freed", "nonce 0 is free").await);
}
