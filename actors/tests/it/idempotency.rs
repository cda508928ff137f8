//! Idempotency keys.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use covault_actors::{
    gateway::{Command, Gateway, Query, Receipt, Submitted, View},
    store::{Batch, CommitError, Key, ReadError, Row, Scan, Space, Store, memory::MemoryStore},
};
use covault_core::{
    fault::Class,
    schema::wire::{self, NetworkType},
};
use prost::Message as _;

use crate::{batches::batch, world::*};

const DAY: u64 = 24 * 60 * 60 * 1000;

/// What a call got, as bytes.
fn bytes(submitted: &Submitted) -> Vec<u8> {
    match &submitted.receipt {
        Receipt::Wallet(wallet) => wallet.encode_to_vec(),
        Receipt::SigningRequest(request) => request.encode_to_vec(),
        Receipt::BatchPayment(batch) => batch.encode_to_vec(),
        other => panic!("{other:?}"),
    }
}

/// 50 identical calls at once, by turns through each of the gateways. Returns how many different
/// answers there were, and how many were given again.
async fn fifty(gateways: &[Gateway], command: &Command, key: &str) -> (usize, usize) {
    let calls = (0..50).map(|number| {
        let gateway = gateways[number % gateways.len()].clone();
        let (command, key) = (command.clone(), idempotency_key(key));
        tokio::spawn(async move { gateway.submit(&admin(), command, Some(key)).await })
    });
    let calls: Vec<_> = calls.collect();
    let mut answers = BTreeSet::new();
    let mut replayed = 0;
    for call in calls {
        let submitted = call.await.unwrap().unwrap();
        replayed += usize::from(submitted.replayed);
        assert!(!submitted.body_mismatch);
        answers.insert(bytes(&submitted));
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
        count(Space::Wallet).await - 1,
        count(Space::Request).await,
        count(Space::Batch).await,
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
    let commands = [
        wallet_command(vault, NetworkType::Evm, "r"),
        Command::CreateSigningRequest(request(raw(&address))),
        Command::CreateBatchPayment(batch(&address, CHAIN)),
    ];
    for round in 1..=3 {
        for command in &commands {
            // One key for all operations: each has its own keys.
            let key = format!("key {round}");
            let command = match command {
                Command::CreateWallet(wallet) => Command::CreateWallet(wire::CreateWalletRequest {
                    r#ref: key.clone(),
                    ..wallet.clone()
                }),
                other => other.clone(),
            };
            assert_eq!(
                fifty(&gateways, &command, &key).await,
                (1, 49),
                "{command:?}"
            );
        }
        assert_eq!(effects(&world).await, [round; 3]);
    }
    // After a day the keys are free, and again one call is the first.
    world.clock.ahead_ms.fetch_add(DAY, Ordering::SeqCst);
    for command in &commands[1..] {
        assert_eq!(fifty(&gateways, command, "key 1").await, (1, 49));
    }
    assert_eq!(effects(&world).await, [3, 4, 4]);
}

/// A store that takes batches with an idempotency record and does not tell.
struct MuteStore {
    inner: Arc<dyn Store>,
    mute: AtomicBool,
}

#[async_trait]
impl Store for MuteStore {
    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        let writes = batch.writes();
        let pledged = writes
            .iter()
            .any(|write| write.key.space == Space::Idempotency);
        self.inner.commit(batch).await?;
        if pledged && self.mute.load(Ordering::SeqCst) {
            return Err(CommitError::Unavailable("no answer".into()));
        }
        Ok(())
    }

    async fn get(&self, key: &Key) -> Result<Option<Row>, ReadError> {
        self.inner.get(key).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Vec<(Key, Row)>, ReadError> {
        self.inner.scan(scan).await
    }

    fn exclusive(&self) -> bool {
        self.inner.exclusive()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_was_thought_to_be_lost__should_be_answered_all_the_same() {
    let world = World::new();
    let store = Arc::new(MuteStore {
        inner: Arc::clone(&world.store),
        mute: AtomicBool::new(false),
    });
    let gateway = world.start_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    store.mute.store(true, Ordering::SeqCst);
    for command in [
        wallet_command(vault, NetworkType::Evm, "r"),
        Command::CreateSigningRequest(request(raw(&address))),
        Command::CreateBatchPayment(batch(&address, CHAIN)),
    ] {
        let call = async || {
            let key = Some(idempotency_key("k"));
            gateway
                .submit(&admin(), command.clone(), key)
                .await
                .unwrap()
        };
        let first = call().await;
        assert_eq!(bytes(&first), bytes(&call().await));
        // The request that was taken is worked on.
        if let Receipt::SigningRequest(pending) = first.receipt {
            assert_eq!(outcome(&gateway, &pending.uuid).await.error, None);
        }
    }
    assert_eq!(effects(&world).await, [1; 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_identical_calls__should_make_one_wallet() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let calls = (0..50).map(|_| {
        let command = wallet_command(vault, NetworkType::Evm, "r");
        let gateway = gateway.clone();
        tokio::spawn(async move {
            gateway
                .submit(&admin(), command, Some(idempotency_key("k")))
                .await
        })
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
    let first = created(
        try_create(&gateway, request(raw(&address)), Some("k"))
            .await
            .unwrap(),
    );
    outcome(&gateway, &first.uuid).await;
    gateway.stop().await;

    let gateway = world.start().await;
    let again = try_create(&gateway, request(raw(&address)), Some("k"))
        .await
        .unwrap();
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
    assert!(
        !gateway
            .submit(&admin(), wallet(), key())
            .await
            .unwrap()
            .replayed
    );
    assert!(
        !try_create(&gateway, request(raw(&address)), Some("k"))
            .await
            .unwrap()
            .replayed
    );
    let mut other = admin();
    other.token = covault_core::ids::TokenId::from_bytes([7; 16]);
    assert!(
        !gateway
            .submit(&other, wallet(), key())
            .await
            .unwrap()
            .replayed
    );

    let day = 24 * 60 * 60 * 1000;
    world
        .clock
        .ahead_ms
        .fetch_add(day - 60_000, Ordering::SeqCst);
    assert!(
        gateway
            .submit(&admin(), wallet(), key())
            .await
            .unwrap()
            .replayed
    );
    world.clock.ahead_ms.fetch_add(60_001, Ordering::SeqCst);
    assert!(
        !gateway
            .submit(&admin(), wallet(), key())
            .await
            .unwrap()
            .replayed
    );
    assert!(
        gateway
            .submit(&admin(), wallet(), key())
            .await
            .unwrap()
            .replayed
    );
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
    assert!(
        !try_create(&gateway, request(raw(&address)), Some("k"))
            .await
            .unwrap()
            .replayed
    );
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
