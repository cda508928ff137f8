//! Nonces: each number once, without a gap, in the order of creation.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use covault_actors::store::{Store, redb::RedbStore};
use covault_core::schema::wire::{self, create_signing_request_request::Type as Kind};

use crate::world::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_transfers__should_get_consecutive_nonces() {
    let folder = tempfile::tempdir().unwrap();
    let store = RedbStore::open(&folder.path().join("store.redb")).unwrap();
    let mut world = World::on(Arc::new(store) as Arc<dyn Store>);
    world.evm = world.evm.clone().with_history(3);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let requests =
        futures::future::join_all((0..200).map(|_| create(&gateway, send(&address)))).await;
    let outcomes =
        futures::future::join_all(requests.iter().map(|one| outcome(&gateway, &one.uuid))).await;
    let hashes = outcomes
        .iter()
        .map(|outcome| outcome.tx_hash.clone())
        .collect::<BTreeSet<_>>();
    assert!(outcomes.iter().all(|outcome| outcome.error.is_none()));
    assert_eq!(hashes.len(), 200);
    // The double panics on a nonce that comes twice.
    assert_eq!(world.evm.nonces(), (0..203).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonces__should_go_on_after_a_restart_in_the_middle() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let mut created =
        futures::future::join_all((0..40).map(|_| create(&gateway, send(&address)))).await;
    gateway.stop().await;
    let gateway = world.start().await;
    created
        .extend(futures::future::join_all((0..40).map(|_| create(&gateway, send(&address)))).await);
    for one in &created {
        assert_eq!(outcome(&gateway, &one.uuid).await.error, None);
    }
    assert_eq!(world.evm.nonces(), (0..80).collect::<Vec<_>>());
    assert_eq!(world.evm.handed.lock().unwrap().len(), 80);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonces__should_follow_the_order_of_creation() {
    let world = World::new();
    world.evm.down.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let mut created = Vec::new();
    for _ in 0..20 {
        let mut asked = request(send(&address));
        asked.broadcast_tx = Some(false);
        let (pending, _) = try_create(&gateway, asked, None).await.unwrap();
        created.push(pending);
    }
    world.evm.down.store(false, Ordering::SeqCst);
    for (nonce, one) in (0u64..).zip(&created) {
        let signed = outcome(&gateway, &one.uuid).await.signed_transaction;
        assert_eq!(nonce_of(&signed), nonce);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonces__should_step_around_those_that_clients_chose() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let chosen = |nonce| {
        let mut payload = send_native(&address);
        payload.nonce = Some(nonce);
        let mut asked = request(Kind::EvmSendNative(payload));
        asked.broadcast_tx = Some(false);
        asked
    };
    let automatic = || {
        let mut asked = request(send(&address));
        asked.broadcast_tx = Some(false);
        asked
    };
    let nonce = async |asked: wire::CreateSigningRequestRequest| {
        let (pending, _) = try_create(&gateway, asked, None).await.unwrap();
        nonce_of(&outcome(&gateway, &pending.uuid).await.signed_transaction)
    };
    assert_eq!(nonce(chosen(1)).await, 1);
    assert_eq!(nonce(chosen(0)).await, 0, "0 is a number like others");
    assert_eq!(nonce(automatic()).await, 2);
    assert_eq!(
        nonce(chosen(1)).await,
        1,
        "a client may replace its own transaction"
    );
    assert_eq!(nonce(automatic()).await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_whose_turn_comes__should_not_be_sent_as_if_for_the_first_time() {
    let world = World::new();
    world.evm.in_order.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let chosen = |nonce| {
        let mut payload = send_native(&address);
        payload.nonce = Some(nonce);
        Kind::EvmSendNative(payload)
    };
    for round in 0..5 {
        let second = create(&gateway, chosen(2 * round + 1)).await;
        while world.evm.handed.lock().unwrap().len() as i64 == 2 * round {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // It waits for the one before it, which a node takes now.
        let first = create(&gateway, chosen(2 * round)).await;
        for one in [first, second] {
            assert_eq!(outcome(&gateway, &one.uuid).await.error, None);
        }
    }
    // A refusal would have been taken for the last word.
    assert_eq!(world.evm.resent_as_new.load(Ordering::SeqCst), 0);
}

pub fn nonce_of(transaction: &str) -> u64 {
    use alloy_consensus::{Transaction as _, TxEnvelope};
    use alloy_eips::Decodable2718 as _;
    let bytes = hex::decode(&transaction[2..]).unwrap();
    TxEnvelope::decode_2718(&mut bytes.as_slice())
        .unwrap()
        .nonce()
}
