//! What the log says of transactions that may need an operator: one WARN line each.

use std::sync::atomic::Ordering;

use covault_actors::{
    chain_rpc::{Inclusion, Standing, TransactionSighting},
    gateway::Gateway,
    operations::RejectSigningRequest,
};
use covault_core::schema::wire::{self, transaction_state::Status};
use tracing_subscriber::filter::LevelFilter;

use crate::{
    approvals::manual_vault,
    log::LogCapture,
    rebroadcast::pass,
    tracker::{GAP_MS, NOT_FINAL_MS, a_while, numbered, stuck, until, until_status},
    world::*,
};

/// The uuid and the hash of a payment that was sent.
async fn paid(gateway: &Gateway, address: &str) -> (String, String) {
    let made = create(gateway, send(address)).await.uuid;
    let outcome = outcome(gateway, &made).await;
    assert_eq!(outcome.error, None);
    (made, outcome.tx_hash)
}

/// Waits for a warning that has all these words, and looks whether there is one alone.
async fn warned(log: &LogCapture, words: &[&str]) {
    let lines = || {
        let mut lines = log.lines("WARN");
        lines.retain(|line| words.iter().all(|word| line.contains(word)));
        lines
    };
    until(async || !lines().is_empty()).await;
    a_while().await;
    let lines = lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warnings__should_say_once_what_became_of_a_transaction() {
    let log = LogCapture::start(LevelFilter::WARN);
    let world = World::new();
    *world.evm.sighting.lock().unwrap() = Some(TransactionSighting::Waiting);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let at = |block, success| Inclusion { block, success };

    // In a block, and out of it again.
    let (uuid, hash) = paid(&gateway, &address).await;
    world
        .evm
        .says(&hash, TransactionSighting::Mined(at(7, true)));
    until_status(&gateway, &uuid, Status::Mined).await;
    assert_eq!(log.lines(&hash), [""; 0], "nothing is wrong");
    world.evm.says(&hash, TransactionSighting::Waiting);
    let reorganised = "the chain was reorganised: a transaction is no longer in a block";
    warned(&log, &[reorganised, &uuid, &hash, "block=7"]).await;

    // No block takes it within the patience of its chain.
    pass(&world, 601_000);
    let waits = [
        "a transaction is not mined",
        &uuid,
        &hash,
        "no block includes it",
    ];
    warned(&log, &waits).await;
    // Nodes that lose it and have it again change the reason, and do not fill the log.
    for (sighting, reason) in [
        (TransactionSighting::Missing, "no node has it"),
        (TransactionSighting::Waiting, "no block includes it"),
        (TransactionSighting::Missing, "no node has it"),
    ] {
        world.evm.says(&hash, sighting);
        let has_reason = async || stuck(&gateway).await[0].reason.contains(reason);
        until(has_reason).await;
    }
    warned(&log, &["a transaction is not mined", &uuid]).await;

    // A block has it, where it fails.
    world
        .evm
        .says(&hash, TransactionSighting::Final(at(8, false)));
    until_status(&gateway, &uuid, Status::Final).await;
    let fails = "a transaction failed on the chain, and only cost its fee";
    warned(&log, &[fails, &uuid, &hash, "block=8"]).await;

    // A block has it that does not become final, and another one each time.
    let (uuid, hash) = paid(&gateway, &address).await;
    for block in 9..12 {
        world
            .evm
            .says(&hash, TransactionSighting::Mined(at(block, true)));
        until(async || {
            let shown = details(&gateway, &uuid).await.transaction_state;
            shown.is_some_and(|state| state.block == Some(block))
        })
        .await;
        pass(&world, NOT_FINAL_MS);
    }
    let stays = [
        "a transaction is not final",
        &uuid,
        &hash,
        "does not become final",
    ];
    warned(&log, &stays).await;
    world
        .evm
        .says(&hash, TransactionSighting::Final(at(12, true)));
    until_status(&gateway, &uuid, Status::Final).await;

    // It never comes.
    for (fate, words) in [
        (
            TransactionSighting::Replaced(Some("0xother".into())),
            "0xother has replaced it",
        ),
        (TransactionSighting::Expired, "it has expired"),
    ] {
        let (uuid, hash) = paid(&gateway, &address).await;
        world.evm.says(&hash, fate);
        warned(
            &log,
            &["a transaction can never be mined", &uuid, &hash, words],
        )
        .await;
    }

    // Nobody has the number before it.
    let behind = numbered(&gateway, &address, 5).await;
    pass(&world, GAP_MS);
    let gap = "a transaction waits behind a nonce that no request uses";
    let line = log.until(gap, || {}).await;
    assert!(line.contains(&behind), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_that_failed__should_be_told_once_without_whom_it_was_to_pay() {
    let log = LogCapture::start(LevelFilter::WARN);
    let world = World::new();
    world.evm.down.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let uuid = create(&gateway, send(&address)).await.uuid;
    let request = wire::RejectSigningRequestRequest {
        uuid: uuid.clone(),
        rejection: None,
    };
    call::<RejectSigningRequest>(&gateway, &admin(), request)
        .await
        .unwrap();
    let vault = vault.to_string();
    let words = [
        "a request has failed",
        &uuid,
        &vault,
        "evmSendNative",
        "during",
    ];
    warned(&log, &words).await;
    for line in log.lines("a request has failed") {
        assert!(!line.contains(&address), "{line}");
    }
    // What people decide is no trouble.
    let manual = manual_vault(&gateway).await;
    let address = evm_wallet(&gateway, manual).await;
    let request = wire::RejectSigningRequestRequest {
        uuid: create(&gateway, send(&address)).await.uuid,
        rejection: None,
    };
    call::<RejectSigningRequest>(&gateway, &admin(), request)
        .await
        .unwrap();
    assert_eq!(log.lines("a request has failed").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn that_no_node_takes_a_transaction_again__should_be_said_once_after_another_problem() {
    let log = LogCapture::start(LevelFilter::WARN);
    let world = World::new();
    *world.evm.sighting.lock().unwrap() = Some(TransactionSighting::Waiting);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let (uuid, hash) = paid(&gateway, &address).await;
    pass(&world, 601_000);
    let not_mined = "a transaction is not mined";
    warned(&log, &[not_mined, &uuid, "no block includes it"]).await;

    // The nodes lose it, and refuse it when it is sent again.
    let words = "insufficient funds";
    *world.evm.doubt.lock().unwrap() = Some((words.into(), Standing::Open));
    let not_taken = "no node accepts it again";
    for (sighting, reason) in [
        (TransactionSighting::Missing, not_taken),
        (TransactionSighting::Waiting, "no block includes it"),
        (TransactionSighting::Missing, not_taken),
    ] {
        world.evm.says(&hash, sighting);
        let has_reason = async || {
            pass(&world, 1_000);
            let listed = stuck(&gateway).await;
            listed.iter().any(|one| one.reason.contains(reason))
        };
        until(has_reason).await;
    }
    warned(&log, &[not_mined, &uuid, &hash, not_taken, words]).await;
}
