//! Idempotency keys.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use covault_actors::{
    gateway::{Caller, Gateway},
    operations::{
        CreateBatchPayment, CreateSigningRequest, CreateWallet, GetWalletList, Operation,
    },
    store::{Batch, KeySpace, Scan, memory::MemoryStore},
    testing::MuteStore,
};
use covault_core::{
    fault::Class,
    schema::wire::{self, NetworkType},
};

use crate::{batches::batch, world::*};

const DAY: u64 = 24 * 60 * 60 * 1000;

/// 50 identical calls at once, by turns through each of the gateways. Returns how many different
/// answers there were, and how many were given again.
async fn fifty<O: Operation<Request: Clone>>(
    gateways: &[Gateway],
    request: &O::Request,
    key: &str,
) -> (usize, usize) {
    let calls = (0..50).map(|number| {
        let gateway = gateways[number % gateways.len()].clone();
        let (request, key) = (request.clone(), key.to_owned());
        tokio::spawn(async move {
            let called = call_with_key::<O>(&gateway, &admin(), request, Some(&key)).await;
            called.unwrap().1
        })
    });
    let calls: Vec<_> = calls.collect();
    let mut answers = BTreeSet::new();
    let mut replayed = 0;
    for call in calls {
        let answer = call.await.unwrap();
        replayed += usize::from(answer.replayed);
        assert!(!answer.body_mismatch);
        answers.insert(answer.response);
    }
    (answers.len(), replayed)
}

/// Wallets beside the first, requests and batches in the store.
async fn effects(world: &World) -> [usize; 3] {
    let count = async |space| {
        let all = Scan::prefix(space, &[], 1_000);
        world.store.scan(&all).await.unwrap().len()
    };
    [
        count(KeySpace::Wallet).await - 1,
        count(KeySpace::Request).await,
        count(KeySpace::Batch).await,
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_identical_calls__should_have_one_effect_also_through_two_processes() {
    let world = World::on(Arc::new(MemoryStore::shared()));
    let first = world.start().await;
    let vault = vault(&first, "main").await;
    let address = evm_wallet(&first, vault).await;
    // Two processes on one store.
    let gateways = [first, world.start().await];
    ready(&gateways[1], "main").await;
    let (signing, payment) = (request(raw(&address)), batch(&address, CHAIN));
    for round in 1..=3 {
        // One key for all operations: each has its own keys.
        let key = format!("key {round}");
        let wallet = wallet_request(vault, NetworkType::Evm, &key);
        let answered = [
            fifty::<CreateWallet>(&gateways, &wallet, &key).await,
            fifty::<CreateSigningRequest>(&gateways, &signing, &key).await,
            fifty::<CreateBatchPayment>(&gateways, &payment, &key).await,
        ];
        assert_eq!(answered, [(1, 49); 3]);
        assert_eq!(effects(&world).await, [round; 3]);
    }
    // A clock that jumps by a day makes nothing a second time.
    world.clock.ahead_ms.fetch_add(DAY, Ordering::SeqCst);
    let answered = [
        fifty::<CreateSigningRequest>(&gateways, &signing, "key 1").await,
        fifty::<CreateBatchPayment>(&gateways, &payment, "key 1").await,
    ];
    assert_eq!(answered, [(1, 50); 2]);
    assert_eq!(effects(&world).await, [3; 3]);
}

/// Calls an operation twice with one key, and returns what both calls got.
async fn twice<O: Operation<Request: Clone>>(
    gateway: &Gateway,
    request: O::Request,
) -> O::Response {
    let call = async || {
        let called = call_with_key::<O>(gateway, &admin(), request.clone(), Some("k")).await;
        called.unwrap()
    };
    let ((response, first), (_, again)) = (call().await, call().await);
    assert_eq!(first.response, again.response);
    response
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_was_thought_to_be_lost__should_be_answered_all_the_same() {
    let world = World::new();
    let mute = Arc::new(AtomicBool::new(false));
    let is_mute = Arc::clone(&mute);
    let store = MuteStore::new(&world.store, move |batch: &Batch| {
        let mut writes = batch.writes().iter();
        is_mute.load(Ordering::SeqCst)
            && writes.any(|write| write.key.space == KeySpace::Idempotency)
    });
    let gateway = world.start_on(store).await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    mute.store(true, Ordering::SeqCst);
    twice::<CreateWallet>(&gateway, wallet_request(vault, NetworkType::Evm, "r")).await;
    let made = twice::<CreateSigningRequest>(&gateway, request(raw(&address))).await;
    // The request that was taken is worked on.
    let uuid = made.signing_request.unwrap().uuid;
    assert_eq!(outcome(&gateway, &uuid).await.error, None);
    twice::<CreateBatchPayment>(&gateway, batch(&address, CHAIN)).await;
    assert_eq!(effects(&world).await, [1; 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_identical_calls__should_make_one_wallet() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let wallet = wallet_request(vault, NetworkType::Evm, "r");
    let gateways = std::slice::from_ref(&gateway);
    let answered = fifty::<CreateWallet>(gateways, &wallet, "k").await;
    assert_eq!(answered, (1, 49));
    let all = wire::GetWalletListRequest {
        vault_uuid: vault.to_string(),
        ..Default::default()
    };
    let wallets = call::<GetWalletList>(&gateway, &admin(), all).await;
    assert_eq!(wallets.unwrap().details_list.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replay__should_be_the_first_answer_also_after_a_restart_and_say_when_the_body_differs() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let (first, _) = try_create(&gateway, request(raw(&address)), Some("k"))
        .await
        .unwrap();
    outcome(&gateway, &first.uuid).await;
    gateway.stop().await;

    let gateway = world.start().await;
    let (again, answer) = try_create(&gateway, request(raw(&address)), Some("k"))
        .await
        .unwrap();
    assert_eq!((answer.replayed, answer.body_mismatch), (true, false));
    assert_eq!(again, first, "as it was then: pending");

    let (other, answer) = try_create(&gateway, request(send(&address)), Some("k"))
        .await
        .unwrap();
    assert_eq!((answer.replayed, answer.body_mismatch), (true, true));
    assert_eq!(other, first);
    assert_eq!(world.requests().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys__should_belong_to_token_and_operation_and_count_however_the_clock_jumps() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let replayed = async |caller: &Caller| {
        let request = wallet_request(vault, NetworkType::Evm, "");
        let made = call_with_key::<CreateWallet>(&gateway, caller, request, Some("k")).await;
        made.unwrap().1.replayed
    };
    assert!(!replayed(&admin()).await);
    let (_, answer) = try_create(&gateway, request(raw(&address)), Some("k"))
        .await
        .unwrap();
    assert!(!answer.replayed);
    let mut other = admin();
    other.token = covault_core::ids::TokenId::from_bytes([7; 16]);
    assert!(!replayed(&other).await);

    let ahead = &world.clock.ahead_ms;
    // Records are deleted by a clock that did not jump (retention).
    for _ in 0..3 {
        ahead.fetch_add(DAY, Ordering::SeqCst);
        assert!(replayed(&admin()).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_request__should_leave_the_key_free() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let wrong = raw("0x00000000000000000000000000000000000000aa");
    assert!(
        try_create(&gateway, request(wrong), Some("k"))
            .await
            .is_err()
    );
    let (_, answer) = try_create(&gateway, request(raw(&address)), Some("k"))
        .await
        .unwrap();
    assert!(!answer.replayed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key__should_have_1_to_255_characters() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    for key in ["", &"k".repeat(256)] {
        let fault = try_create(&gateway, request(raw(&address)), Some(key))
            .await
            .unwrap_err();
        assert_eq!(fault.class(), &Class::Invalid);
        assert!(fault.message().starts_with("idempotency-key: "));
    }
    let longest = "ü".repeat(255);
    assert!(
        try_create(&gateway, request(raw(&address)), Some(&longest))
            .await
            .is_ok()
    );
}
