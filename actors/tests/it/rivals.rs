//! Requests that a restore has left in doubt, and others that use the same number: what ends them, and what does not.

use std::time::Duration;

use covault_actors::{
    chain_rpc::{Inclusion, TransactionSighting},
    gateway::Gateway,
};
use covault_core::schema::wire::{
    self, create_signing_request_request::Type as Kind, signing_request, transaction_state::Status,
};

use crate::{
    backup::{let_in, restored, sent_since},
    chain_double::FINAL,
    tracker::{until, until_status},
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
