//! What goes wrong after a request was accepted.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use covault_actors::{
    chain_rpc::{ChainError, ChainRefusal, Standing, TransactionSighting},
    gateway::Gateway,
    store::Store,
    testing::{panic_in_build, panics_in_build},
};
use covault_core::{
    fault::{Class, ExecuteCode},
    networks::Payload,
    schema::wire::{
        self, EvmGas, ExecuteSigningRequestsErrorCode as ErrorCode,
        create_signing_request_request::Type as Kind, signing_request::Status,
    },
};

use crate::{
    faulty_store::{FaultyStore, StoreFault},
    requests::code,
    tracker::until,
    world::*,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signing__should_be_tried_again_in_new_sessions_for_the_same_digest() {
    let world = World::new();
    world.signers.failing.store(3, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let pending = create(&gateway, send(&address)).await;
    assert_eq!(outcome(&gateway, &pending.uuid).await.error, None);
    // The double refuses a session that comes twice and a second digest.
    assert_eq!((world.signers.sessions(), world.signers.requests()), (4, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signing__should_fail_at_its_deadline_and_say_who_is_missing() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 100;
    world.signers.failing.store(usize::MAX, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let pending = create(&gateway, raw(&address)).await;
    let error = outcome(&gateway, &pending.uuid).await.error.unwrap();
    assert_eq!(error.message, "not enough signers: missing node-2");
    assert_eq!(code(&error), ErrorCode::Unspecified);
    let failed = details(&gateway, &pending.uuid).await;
    assert_eq!(failed.status(), Status::Failed);
    assert_eq!(failed.failed_reason, error.message);
    assert_eq!(world.pending().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signing__should_fail_at_once_when_the_signers_refuse() {
    let world = World::new();
    world.signers.refuse.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let pending = create(&gateway, send(&address)).await;
    let error = outcome(&gateway, &pending.uuid).await.error.unwrap();
    assert_eq!(error.message, "the signers' policy forbids this");
    assert_eq!(world.signers.sessions(), 1);

    // The nonce is free again for the next request.
    world.signers.refuse.store(false, Ordering::SeqCst);
    let pending = create(&gateway, send(&address)).await;
    assert_eq!(outcome(&gateway, &pending.uuid).await.error, None);
    assert_eq!(world.evm.nonces(), [0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signing__should_survive_panics_of_what_it_calls() {
    let world = World::new();
    world.signers.panicking.store(3, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let pending = create(&gateway, send(&address)).await;
    assert_eq!(outcome(&gateway, &pending.uuid).await.error, None);
    assert_eq!(world.evm.nonces(), [0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signing__should_give_up_what_makes_its_actor_fail_again_and_again() {
    let world = World::new();
    world.signers.panicking.store(usize::MAX, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let pending = create(&gateway, raw(&address)).await;
    let error = outcome(&gateway, &pending.uuid).await.error.unwrap();
    assert!(error.message.starts_with("internal error"), "{error:?}");

    world.signers.panicking.store(0, Ordering::SeqCst);
    let pending = create(&gateway, raw(&address)).await;
    assert_eq!(outcome(&gateway, &pending.uuid).await.error, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn allocating__should_not_take_the_vault_down_again_and_again_when_it_panics() {
    let mut world = World::new();
    world.settings.retry_first_ms = 40;
    let store = FaultyStore::new(Arc::clone(&world.store), usize::MAX, StoreFault::Before);
    let start = || world.start_on(Arc::clone(&store) as Arc<dyn Store>);
    let left = || usize::MAX - store.panicking_scans.load(Ordering::SeqCst);
    let gateway = start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    store.panicking_scans.store(usize::MAX, Ordering::SeqCst);
    let pending = create(&gateway, send(&address)).await;
    let stop = async |gateway: Gateway, panics| {
        while left() < panics {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Others of the vault are none the worse.
        let other = create(&gateway, raw(&address)).await;
        assert_eq!(outcome(&gateway, &other.uuid).await.error, None);
        gateway.stop().await;
    };
    // The count goes on where the last process has stopped.
    stop(gateway, 2).await;
    stop(start().await, 4).await;
    let gateway = start().await;
    let error = outcome(&gateway, &pending.uuid).await.error.unwrap();
    assert!(error.message.contains("failed 5 times"), "{error:?}");
    assert!(left() <= 8, "{} panics", left());
    store.panicking_scans.store(0, Ordering::SeqCst);
    let pending = create(&gateway, send(&address)).await;
    assert_eq!(outcome(&gateway, &pending.uuid).await.error, None);
    assert_eq!(world.evm.nonces(), [0]);
}

/// One that is built of what nodes say, and one that is built in the commit which accepts it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn building__should_not_take_the_vault_down_again_and_again_when_it_panics() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let transfer = Kind::EvmSendNative(wire::EvmSendNative {
        value: "31337".into(),
        ..send_native(&address)
    });
    let message = Kind::RawMessage(wire::RawMessage {
        from: address.clone(),
        content: b"what cannot be built".to_vec(),
        ecdsa_hash_function: wire::EcdsaHashFunction::Sha256.into(),
    });
    for kind in [&transfer, &message] {
        panic_in_build(&Payload::parse(kind).unwrap());
    }
    let pending = create(&gateway, transfer).await;
    let refused = try_create(&gateway, request(message), None).await;
    let fault = refused.unwrap_err();
    assert!(
        matches!(fault.class(), Class::Bug | Class::Unavailable),
        "{fault:?}"
    );
    // Others of the vault are none the worse.
    let other = create(&gateway, send(&address)).await;
    let error = outcome(&gateway, &pending.uuid).await.error.unwrap();
    assert!(error.message.starts_with("internal error"), "{error:?}");
    assert_eq!(outcome(&gateway, &other.uuid).await.error, None);
    assert_eq!(world.pending().await, 0);
    let panics = panics_in_build();
    assert!(panics <= 10, "{panics} panics");
    // Nor after a restart.
    gateway.stop().await;
    let gateway = world.start().await;
    let other = create(&gateway, send(&address)).await;
    assert_eq!(outcome(&gateway, &other.uuid).await.error, None);
    assert_eq!(
        (panics_in_build(), world.evm.nonces()),
        (panics, vec![0, 1])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn building__should_fail_with_the_code_of_what_is_missing() {
    let world = World::new();
    world.evm.broke.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let pending = create(&gateway, send(&address)).await;
    let error = outcome(&gateway, &pending.uuid).await.error.unwrap();
    assert_eq!(code(&error), ErrorCode::InsufficientFunds);
    assert_eq!(world.signers.sessions(), 0, "nothing was signed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn building__should_fail_before_anything_is_signed_where_nodes_say_that_it_would_pay_nothing()
{
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let with_all = wire::EvmSendNative {
        gas_fee: Some(EvmGas {
            max_fee: Some("2000000000".into()),
            max_priority_fee: Some("1".into()),
            gas_limit: Some("21000".into()),
            ..Default::default()
        }),
        nonce: Some(0),
        ..send_native(&address)
    };
    // One for which nodes are asked for facts, and one that brings all of them.
    for kind in [send(&address), Kind::EvmSendNative(with_all)] {
        *world.evm.preflight.lock().unwrap() = Some(ChainError::Refused(ChainRefusal {
            reason: "the token refuses the transfer: it returns false".into(),
            code: ExecuteCode::Unspecified,
        }));
        let sessions = world.signers.sessions();
        let refused = create(&gateway, kind.clone()).await;
        let error = outcome(&gateway, &refused.uuid).await.error.unwrap();
        assert!(error.message.contains("returns false"), "{error:?}");
        assert_eq!(world.signers.sessions(), sessions, "nothing was signed");

        // A node that cannot answer now is asked again.
        let away = ChainError::Unknown("the node is at a loss".into());
        *world.evm.preflight.lock().unwrap() = Some(away);
        let waits = create(&gateway, kind).await;
        let is_told = async || {
            let said = try_outcome(&gateway, &admin(), &waits.uuid).await;
            said.is_err_and(|why| why.message().contains("the node is at a loss"))
        };
        until(is_told).await;
        assert_eq!(world.signers.sessions(), sessions, "nothing was signed");
        *world.evm.preflight.lock().unwrap() = None;
        assert_eq!(outcome(&gateway, &waits.uuid).await.error, None);
        world.evm.forget(0);
    }
}

/// A node may be behind, and an earlier transaction may bring what is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn building__should_wait_for_a_while_where_the_wallet_has_too_little() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 12_000;
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let lacks = ChainError::Lacks(ChainRefusal {
        reason: "amount: is 78, and the wallet has 77".into(),
        code: ExecuteCode::InsufficientFunds,
    });
    *world.evm.preflight.lock().unwrap() = Some(lacks.clone());
    let waits = create(&gateway, send(&address)).await;
    let is_told = async || {
        let said = try_outcome(&gateway, &admin(), &waits.uuid).await;
        said.is_err_and(|why| why.message().contains("the wallet has 77"))
    };
    until(is_told).await;
    *world.evm.preflight.lock().unwrap() = None;
    assert_eq!(outcome(&gateway, &waits.uuid).await.error, None);

    let sessions = world.signers.sessions();
    *world.evm.preflight.lock().unwrap() = Some(lacks);
    let fails = create(&gateway, send(&address)).await;
    let error = outcome(&gateway, &fails.uuid).await.error.unwrap();
    assert_eq!(code(&error), ErrorCode::InsufficientFunds);
    assert!(error.message.contains("the wallet has 77"), "{error:?}");
    assert_eq!(world.signers.sessions(), sessions, "nothing was signed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn building__should_wait_for_the_node_until_the_deadline() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 200;
    world.evm.down.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let pending = create(&gateway, send(&address)).await;
    let error = outcome(&gateway, &pending.uuid).await.error.unwrap();
    assert!(
        error.message.contains("no chain node answered in time"),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sending__should_fail_only_when_the_node_refuses_for_good() {
    let world = World::new();
    world.evm.refuse.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let pending = create(&gateway, send(&address)).await;
    let error = outcome(&gateway, &pending.uuid).await.error.unwrap();
    assert_eq!(code(&error), ErrorCode::InsufficientGasFee);
    let failed = details(&gateway, &pending.uuid).await;
    assert_eq!(
        (failed.status(), failed.tx_hash.as_str()),
        (Status::Failed, "")
    );

    // The next request takes the nonce, so that no gap blocks the wallet.
    world.evm.refuse.store(false, Ordering::SeqCst);
    let pending = create(&gateway, send(&address)).await;
    assert_eq!(outcome(&gateway, &pending.uuid).await.error, None);
    assert_eq!(world.evm.nonces(), [0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sending__should_go_on_past_the_deadline_with_the_same_bytes() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 300;
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    // It goes down between the question and the broadcast.
    world.signers.failing.store(1, Ordering::SeqCst);
    let pending = create(&gateway, send(&address)).await;
    while world.signers.sessions() == 0 {
        tokio::task::yield_now().await;
    }
    world.evm.down.store(true, Ordering::SeqCst);
    world.clock.ahead_ms.fetch_add(200, Ordering::SeqCst);
    while world.evm.handed.lock().unwrap().is_empty() && world.evm.accepted() == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    world.clock.ahead_ms.fetch_add(3_600_000, Ordering::SeqCst);
    world.evm.down.store(false, Ordering::SeqCst);
    assert_eq!(outcome(&gateway, &pending.uuid).await.error, None);
    assert_eq!(world.evm.handed.lock().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sending__should_succeed_when_only_the_answers_are_lost() {
    let world = World::new();
    world.evm.lost_answers.store(1, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let pending = create(&gateway, send(&address)).await;
    assert_eq!(outcome(&gateway, &pending.uuid).await.error, None);
    assert_eq!(world.evm.handed.lock().unwrap().len(), 1);
    assert_eq!(world.evm.accepted(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keygen__should_be_tried_again_until_the_keys_are_there() {
    let world = World::new();
    world.signers.failing_keygens.store(5, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    evm_wallet(&gateway, vault).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keygen__should_be_tried_again_when_what_it_calls_panics() {
    let world = World::new();
    world.signers.panicking_keygens.store(3, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    evm_wallet(&gateway, vault).await;
}

/// A chain node took transactions and its answers were lost; the ones that are asked later say that the
/// number is used, and of the hash what `sighting` says.
async fn two_faced(
    mut world: World,
    standing: Standing,
    sighting: TransactionSighting,
) -> (World, Gateway, String) {
    world.settings.settling_ms = 3_000;
    world.evm.lost_answers.store(usize::MAX, Ordering::SeqCst);
    *world.evm.doubt.lock().unwrap() = Some(("nonce too low".into(), standing));
    *world.evm.sighting.lock().unwrap() = Some(sighting);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    (world, gateway, address)
}

async fn until_says(gateway: &Gateway, uuid: &str, words: &str) {
    while !says(gateway, uuid).await.contains(words) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(details(gateway, uuid).await.status(), Status::Pending);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_may_be_mined__should_be_pending_until_that_is_known() {
    for standing in [Standing::Open, Standing::Passed, Standing::Void] {
        let (world, gateway, address) =
            two_faced(World::new(), standing, TransactionSighting::Missing).await;
        let request = create(&gateway, send(&address)).await;
        until_says(&gateway, &request.uuid, "nonce too low").await;
        *world.evm.doubt.lock().unwrap() = None;
        assert_eq!(outcome(&gateway, &request.uuid).await.error, None);
        assert_eq!(world.evm.handed.lock().unwrap().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_may_be_mined__should_succeed_once_a_node_shows_it() {
    let (world, gateway, address) = two_faced(
        World::new(),
        Standing::Void,
        TransactionSighting::Replaced(None),
    )
    .await;
    let request = create(&gateway, send(&address)).await;
    until_says(&gateway, &request.uuid, "nonce too low").await;
    // Those that said so were behind.
    *world.evm.sighting.lock().unwrap() = Some(TransactionSighting::Waiting);
    assert_eq!(outcome(&gateway, &request.uuid).await.error, None);
    let shown = details(&gateway, &request.uuid).await;
    assert_eq!(shown.status(), Status::Succeeded);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_can_never_come__should_fail_when_that_was_true_for_minutes() {
    for (sighting, reason) in [
        (
            TransactionSighting::Replaced(Some("0xabc".into())),
            "nonce 0 was used by the transaction 0xabc, which is final",
        ),
        (TransactionSighting::Expired, "nonce too low"),
    ] {
        let (world, gateway, address) = two_faced(World::new(), Standing::Passed, sighting).await;
        let request = create(&gateway, send(&address)).await;
        until_says(&gateway, &request.uuid, "is final").await;
        world.evm.asked_for(3).await;
        until_says(&gateway, &request.uuid, "is final").await;
        // A clock that is set says nothing of how long it was true.
        world.clock.ahead_ms.fetch_add(3_001, Ordering::SeqCst);
        world.evm.asked_for(3).await;
        until_says(&gateway, &request.uuid, "is final").await;
        let error = outcome(&gateway, &request.uuid).await.error.unwrap();
        assert_eq!(error.message, reason);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_transactions_in_doubt__should_be_asked_for_together_and_not_sent_all_the_time() {
    let mut world = World::new();
    world.settings.tracking_most_ms = 3_600_000;
    let (world, gateway, address) =
        two_faced(world, Standing::Open, TransactionSighting::Missing).await;
    let mut requests = Vec::new();
    for _ in 0..40 {
        requests.push(create(&gateway, send(&address)).await.uuid);
    }
    for uuid in &requests {
        until_says(&gateway, uuid, "nonce too low").await;
    }
    world.evm.asked_for(3).await;
    assert_eq!(world.evm.sends.load(Ordering::SeqCst), 2 * requests.len());
    assert!(world.evm.most_sighted.load(Ordering::SeqCst) > 1);
    // A node that was away may have lost what it had.
    world.evm.down.store(true, Ordering::SeqCst);
    world.evm.asked_for(1).await;
    world.evm.asked_for(1).await;
    *world.evm.doubt.lock().unwrap() = None;
    world.evm.lost_answers.store(0, Ordering::SeqCst);
    world.evm.down.store(false, Ordering::SeqCst);
    for uuid in &requests {
        assert_eq!(outcome(&gateway, uuid).await.error, None);
    }
    assert_eq!(world.evm.handed.lock().unwrap().len(), requests.len());
}

/// Its chain was away for most of the time of a request: thousands of others come to the signers with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signers__should_have_the_time_that_a_chain_took_of_a_request() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 20_000;
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    world.evm.down.store(true, Ordering::SeqCst);
    let made = create(&gateway, send(&address)).await;
    world.clock.ahead_ms.fetch_add(15_000, Ordering::SeqCst);
    world.evm.down.store(false, Ordering::SeqCst);
    assert_eq!(outcome(&gateway, &made.uuid).await.error, None);
    let time_ms = world.signers.time_ms(&made.uuid);
    assert!(time_ms > 10_000, "{time_ms} ms");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_price_that_nodes_name__should_be_believed_up_to_a_ceiling() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 5_000;
    // 1,000,000 gwei: a transfer would cost 21 of the coin.
    world.evm.tip.store(1_000_000_000_000_000, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let costly = create(&gateway, send(&address)).await;
    let reason = loop {
        let reason = says(&gateway, &costly.uuid).await;
        if reason.contains("most_price") {
            break reason;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    assert!(reason.contains("wei per unit of gas"), "{reason}");
    world.clock.ahead_ms.fetch_add(6_000, Ordering::SeqCst);
    let error = outcome(&gateway, &costly.uuid).await.error.unwrap();
    assert!(error.message.contains("most_price"), "{error:?}");
    assert_eq!(world.signers.requests(), 0, "nothing was signed");
    // It was wrong only for a while.
    let late = create(&gateway, send(&address)).await;
    world.evm.tip.store(0, Ordering::SeqCst);
    assert_eq!(outcome(&gateway, &late.uuid).await.error, None);
    // The request's own price is the client's word.
    world.evm.tip.store(1_000_000_000_000_000, Ordering::SeqCst);
    let mut own = send_native(&address);
    own.gas_fee = Some(EvmGas {
        gas_limit: Some("21000".into()),
        max_fee: Some("1000000000000000".into()),
        max_priority_fee: Some("1000000000000000".into()),
        ..Default::default()
    });
    let own = create(&gateway, Kind::EvmSendNative(own)).await;
    assert_eq!(outcome(&gateway, &own.uuid).await.error, None);
}

/// What executeSigningRequests says of a pending request.
async fn says(gateway: &Gateway, uuid: &str) -> String {
    match try_outcome(gateway, &admin(), uuid).await {
        Ok(outcome) => panic!("{outcome:?}"),
        Err(fault) => fault.message().to_owned(),
    }
}
