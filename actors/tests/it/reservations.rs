//! Outputs and whole transactions: what one request uses up no other does.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_actors::{
    gateway::Gateway,
    store::{Key, KeySpace, Scan, Store, redb::RedbStore},
};
use covault_core::{
    fault::Class,
    schema::wire::{
        self, NetworkType, create_signing_request_request::Type as Kind, signing_request::Status,
    },
};

use crate::world::*;

/// To an address that is not the wallet's.
pub fn pay(from: &str, amount: u64) -> Kind {
    Kind::BtcSendNative(wire::BtcSendNative {
        from: from.into(),
        to: "bc1qcr8te4kr609gcawutmrza0j4xv80jy8z306fyu".into(),
        amount: amount.to_string(),
        network_fee: 2,
        ..Default::default()
    })
}

fn pay_solana(from: &str) -> Kind {
    Kind::SolanaSendNative(wire::SolanaSendNative {
        to: from.into(),
        from: from.into(),
        value: "1".into(),
        chain_id: 101,
        ..Default::default()
    })
}

async fn bitcoin_wallet(gateway: &Gateway) -> String {
    let vault = vault(gateway, "main").await;
    wallet(gateway, vault, NetworkType::Bitcoin).await.address
}

async fn create_many(gateway: &Gateway, kind: &Kind, count: usize) -> Vec<wire::SigningRequest> {
    futures::future::join_all((0..count).map(|_| create(gateway, kind.clone()))).await
}

async fn all_succeed(gateway: &Gateway, requests: &[wire::SigningRequest]) {
    let outcomes = requests.iter().map(|one| outcome(gateway, &one.uuid));
    for outcome in futures::future::join_all(outcomes).await {
        assert_eq!(outcome.error, None);
    }
}

/// The keys of all rows of a kind.
async fn keys(world: &World, space: KeySpace) -> Vec<Key> {
    let all = Scan::prefix(space, &[], 100_000);
    let rows = world.store.scan(&all).await.unwrap();
    rows.into_iter().map(|(key, _)| key).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_payments__should_spend_each_output_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = RedbStore::open(&folder.path().join("store.redb")).unwrap();
    let mut world = World::on(Arc::new(store) as Arc<dyn Store>);
    world.settings.signing_deadline_ms = 300_000;
    let gateway = world.start().await;
    let address = bitcoin_wallet(&gateway).await;
    world.bitcoin.fund(&address, 220, 100_000);
    let requests = create_many(&gateway, &pay(&address, 10_000), 200).await;
    all_succeed(&gateway, &requests).await;
    assert_eq!(world.bitcoin.accepted(), 200);
    assert_eq!(world.bitcoin.conflicts.load(Ordering::SeqCst), 0);
    assert_eq!(world.bitcoin.handed.lock().unwrap().len(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payments__should_wait_for_outputs_and_go_on_after_a_restart() {
    let world = World::new();
    let gateway = world.start().await;
    let address = bitcoin_wallet(&gateway).await;
    // Each makes change, which the next ones spend.
    world.bitcoin.fund(&address, 5, 1_000_000);
    let mut requests = create_many(&gateway, &pay(&address, 10_000), 30).await;
    gateway.stop().await;
    let gateway = world.start().await;
    requests.extend(create_many(&gateway, &pay(&address, 10_000), 30).await);
    all_succeed(&gateway, &requests).await;
    assert_eq!(world.bitcoin.accepted(), 60);
    assert_eq!(world.bitcoin.conflicts.load(Ordering::SeqCst), 0);
    assert_eq!(world.bitcoin.handed.lock().unwrap().len(), 60);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_payments__should_take_each_version_of_a_coin_once_also_over_a_restart() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 300_000;
    (world.settings.retry_first_ms, world.settings.retry_most_ms) = (20, 320);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = wallet(&gateway, vault, NetworkType::Sui).await.address;
    world.sui.fund(5, 1_000_000_000);
    let kind = Kind::SuiSendNative(wire::SuiSendNative {
        recipients: vec![],
        from: from.clone(),
        to: format!("0x{}", "ab".repeat(32)),
        value: "5".into(),
        gas_fee: Some(wire::SuiGas {
            budget: Some("5000000".into()),
            price: Some("1000".into()),
        }),
    });
    let requests = create_many(&gateway, &kind, 200).await;
    gateway.stop().await;
    let gateway = world.start().await;
    let outcomes = requests.iter().map(|one| outcome(&gateway, &one.uuid));
    for outcome in futures::future::join_all(outcomes).await {
        assert_eq!(outcome.error, None);
    }
    assert_eq!(world.sui.executed(), 200);
    assert_eq!(world.sui.conflicts.load(Ordering::SeqCst), 0);
    assert_eq!(world.sui.handed.lock().unwrap().len(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payments_of_sui__should_go_beside_each_other_where_there_are_coins() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = wallet(&gateway, vault, NetworkType::Sui).await.address;
    world.sui.fund(3, 1_000_000_000);
    let mut requests = Vec::new();
    for _ in 0..3 {
        let mut asked = request(Kind::SuiSendNative(wire::SuiSendNative {
            recipients: vec![],
            from: from.clone(),
            to: format!("0x{}", "ab".repeat(32)),
            value: "5".into(),
            gas_fee: Some(wire::SuiGas {
                budget: Some("5000000".into()),
                price: Some("1000".into()),
            }),
        }));
        // Nobody sends them: none could have the coin of another.
        asked.broadcast_tx = Some(false);
        requests.push(created(try_create(&gateway, asked, None).await.unwrap()));
    }
    all_succeed(&gateway, &requests).await;
    assert_eq!(keys(&world, KeySpace::Claim).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_waits__should_say_why_and_fail_with_that_at_its_deadline() {
    let world = World::new();
    world.signers.silent.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let address = bitcoin_wallet(&gateway).await;
    world.bitcoin.fund(&address, 1, 100_000);
    create(&gateway, pay(&address, 10_000)).await;
    while world.signers.requests() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let waits = create(&gateway, pay(&address, 20_000)).await;
    let why = "the required outputs are reserved by other requests of this wallet";
    loop {
        let waits = try_outcome(&gateway, &admin(), &waits.uuid).await;
        let fault = waits.unwrap_err();
        assert_eq!(fault.class(), &Class::Unavailable);
        let trail = Scan::prefix(KeySpace::AuditEntry, &[], 1000);
        let trail = world.store.scan(&trail).await.unwrap();
        let noted = trail.iter().any(|(_, row)| {
            let text = String::from_utf8_lossy(&row.value);
            text.contains("Delayed") && text.contains(why)
        });
        if fault.message().contains(why) && noted {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    world.clock.ahead_ms.fetch_add(30_000, Ordering::SeqCst);
    let error = outcome(&gateway, &waits.uuid).await.error.unwrap();
    assert!(error.message.contains(why), "{error:?}");
    assert_eq!(world.signers.requests(), 1, "nothing was signed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outputs__should_be_free_again_when_the_node_refuses_for_good() {
    let world = World::new();
    world.bitcoin.refuse.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let address = bitcoin_wallet(&gateway).await;
    world.bitcoin.fund(&address, 1, 100_000);
    let refused = create(&gateway, pay(&address, 10_000)).await;
    assert!(outcome(&gateway, &refused.uuid).await.error.is_some());
    assert!(keys(&world, KeySpace::Claim).await.is_empty());
    world.bitcoin.refuse.store(false, Ordering::SeqCst);
    let next = create(&gateway, pay(&address, 10_000)).await;
    assert_eq!(outcome(&gateway, &next.uuid).await.error, None);
    assert_eq!(keys(&world, KeySpace::Claim).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outputs__should_stay_taken_for_a_day_when_the_transaction_is_handed_over() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 200;
    let gateway = world.start().await;
    let address = bitcoin_wallet(&gateway).await;
    world.bitcoin.fund(&address, 1, 100_000);
    for (broadcast, days) in [(true, 15), (false, 1)] {
        let mut asked = request(pay(&address, 10_000));
        asked.broadcast_tx = Some(broadcast);
        let made = created(try_create(&gateway, asked, None).await.unwrap());
        assert_eq!(outcome(&gateway, &made.uuid).await.error, None);
        let releases = keys(&world, KeySpace::ReservationExpiry).await;
        let of_this = releases.iter().find_map(|key| {
            let (due_ms, request) = key.bytes.split_first_chunk::<8>()?;
            let request = uuid::Uuid::from_slice(request).unwrap();
            (request.to_string() == made.uuid).then_some(u64::from_be_bytes(*due_ms))
        });
        let life_ms = of_this.unwrap() - made.creation_timestamp;
        assert_eq!(life_ms / 86_400_000, days);
    }
    // The change of the first is what the second spends, and the client may still send that.
    let third = create(&gateway, pay(&address, 10_000)).await;
    let error = outcome(&gateway, &third.uuid).await.error.unwrap();
    assert!(
        error
            .message
            .contains("the required outputs are reserved by other requests of this wallet"),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_payments__should_be_different_transactions() {
    let world = World::new();
    world.solana.fast_blocks.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = wallet(&gateway, vault, NetworkType::Solana).await.address;
    let mut requests = create_many(&gateway, &pay_solana(&from), 40).await;
    gateway.stop().await;
    let gateway = world.start().await;
    requests.extend(create_many(&gateway, &pay_solana(&from), 40).await);
    all_succeed(&gateway, &requests).await;
    assert_eq!(world.solana.accepted(), 80);
    assert_eq!(world.solana.handed.lock().unwrap().len(), 80);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment__should_wait_for_a_new_block_when_it_equals_another() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = wallet(&gateway, vault, NetworkType::Solana).await.address;
    let first = create(&gateway, pay_solana(&from)).await;
    assert_eq!(outcome(&gateway, &first.uuid).await.error, None);
    let second = create(&gateway, pay_solana(&from)).await;
    let why = format!(
        "an identical transaction is already pending in request {}",
        first.uuid
    );
    loop {
        let waits = try_outcome(&gateway, &admin(), &second.uuid).await;
        let fault = waits.unwrap_err();
        assert_eq!(fault.class(), &Class::Unavailable);
        if fault.message().contains(&why) {
            break;
        }
    }
    assert_eq!(
        details(&gateway, &second.uuid).await.status(),
        Status::Pending
    );
    world.solana.fast_blocks.store(true, Ordering::SeqCst);
    assert_eq!(outcome(&gateway, &second.uuid).await.error, None);
    assert_eq!(world.solana.accepted(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_made_elsewhere__should_be_refused_when_another_request_is_it() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = wallet(&gateway, vault, NetworkType::Solana).await.address;
    let mut asked = request(pay_solana(&from));
    asked.broadcast_tx = Some(false);
    let first = created(try_create(&gateway, asked, None).await.unwrap());
    let signed = outcome(&gateway, &first.uuid).await.signed_transaction;
    let mut bytes = STANDARD.decode(signed).unwrap();
    bytes[1..65].fill(0);
    let custom = || {
        Kind::SolanaSendCustom(wire::SolanaSendCustom {
            from: from.clone(),
            tx_base64: vec![STANDARD.encode(&bytes)],
            chain_id: 101,
        })
    };
    let fault = try_create(&gateway, request(custom()), None)
        .await
        .unwrap_err();
    assert_eq!(fault.class(), &Class::WrongState);
    let why = format!(
        "solanaSendCustom: an identical transaction is already pending in request {}",
        first.uuid
    );
    assert!(fault.message().starts_with(&why), "{fault}");
    assert_eq!(world.requests().await.len(), 1, "nothing was stored");
    assert_eq!(world.pending().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions__should_be_sent_in_the_order_of_their_numbers_without_long_pauses() {
    let mut world = World::new();
    // A request that waits for a pause and not for its turn is late.
    world.settings.retry_first_ms = 20_000;
    world.settings.retry_most_ms = 60_000;
    world.evm.in_order.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let requests = create_many(&gateway, &send(&address), 200).await;
    let outcomes = requests.iter().map(|one| outcome(&gateway, &one.uuid));
    let outcomes =
        tokio::time::timeout(Duration::from_secs(15), futures::future::join_all(outcomes));
    for outcome in outcomes.await.expect("nobody waits for a pause") {
        assert_eq!(outcome.error, None);
    }
    assert_eq!(world.evm.nonces(), (0..200).collect::<Vec<_>>());
}
