//! rejectSigningRequest for what was handed over: the next request uses what that one used.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use alloy_consensus::{Transaction as _, TxEnvelope};
use alloy_eips::Decodable2718 as _;
use covault_actors::{
    chain_rpc::{ChainClient, ChainClients, ChainKey},
    gateway::Gateway,
    operations::RejectSigningRequest,
    store::{Batch, KeySpace, Precondition, Scan},
};
use covault_core::{
    fault::{Class, Fault},
    networks::Network,
    schema::wire::{
        self, ExecuteSigningRequestsErrorCode as ErrorCode, NetworkType,
        create_signing_request_request::Type as Kind, signing_request::Status,
    },
};

use crate::{
    coin_control, numbered_double::NumberedDouble, requests::code, reservations::pay, world::*,
};

async fn give_up(gateway: &Gateway, uuid: &str) -> Result<(), Fault> {
    let request = wire::RejectSigningRequestRequest {
        uuid: uuid.into(),
        rejection: None,
    };
    call::<RejectSigningRequest>(gateway, &admin(), request).await?;
    Ok(())
}

/// A request whose transaction the client has: its uuid and that transaction.
async fn handed_over(gateway: &Gateway, kind: Kind) -> (String, String) {
    let mut asked = request(kind);
    asked.broadcast_tx = Some(false);
    let made = created(try_create(gateway, asked, None).await.unwrap());
    let outcome = outcome(gateway, &made.uuid).await;
    assert_eq!(outcome.error, None);
    (made.uuid, outcome.signed_transaction)
}

fn nonce_of(transaction: &str) -> u64 {
    let bytes = hex::decode(&transaction[2..]).unwrap();
    TxEnvelope::decode_2718(&mut bytes.as_slice())
        .unwrap()
        .nonce()
}

/// With a number that the client chose.
fn with_nonce(from: &str, nonce: u64) -> Kind {
    let mut payload = send_native(from);
    payload.nonce = Some(nonce.try_into().unwrap());
    Kind::EvmSendNative(payload)
}

fn pay_sui(from: &str) -> Kind {
    Kind::SuiSendNative(wire::SuiSendNative {
        recipients: vec![],
        from: from.into(),
        to: format!("0x{}", "ab".repeat(32)),
        value: "5".into(),
        gas_fee: Some(wire::SuiGas {
            budget: Some("5000000".into()),
            price: Some("1000".into()),
        }),
    })
}

fn pay_aptos(from: &str) -> Kind {
    Kind::AptosSendNative(wire::AptosSendNative {
        from: from.into(),
        to: format!("0x{}", "ab".repeat(32)),
        value: "5".into(),
        chain_id: 1,
        gas_fee: Some(wire::AptosGas {
            max_gas_amount: Some("2000".into()),
            gas_unit_price: Some("100".into()),
            ..Default::default()
        }),
        ..Default::default()
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number__should_be_the_next_ones_when_its_request_is_given_up() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    let (first, transaction) = handed_over(&gateway, send(&from)).await;
    assert_eq!(nonce_of(&transaction), 0);
    let behind = create(&gateway, send(&from)).await;
    assert_eq!(outcome(&gateway, &behind.uuid).await.error, None);
    give_up(&gateway, &first).await.unwrap();

    let shown = details(&gateway, &first).await;
    assert_eq!(shown.status(), Status::Failed);
    assert!(
        shown
            .failed_reason
            .starts_with("given up after it was handed over (rejectSigningRequest): "),
        "{shown:?}"
    );
    let answer = outcome(&gateway, &first).await;
    assert_eq!(code(&answer.error.unwrap()), ErrorCode::AlreadyDenied);
    assert_eq!(answer.signed_transaction, "");
    let fault = give_up(&gateway, &first).await.unwrap_err();
    assert_eq!(fault.class(), &Class::WrongState);
    let trail = Scan::prefix(KeySpace::AuditEntry, &[], 1000);
    let trail = world.store.scan(&trail).await.unwrap();
    let noted = |(_, row): &&(_, covault_actors::store::Row)| {
        let text = String::from_utf8_lossy(&row.value);
        text.contains("Rejected") && text.contains("given up after it was handed over")
    };
    assert_eq!(trail.iter().filter(noted).count(), 1);

    // Nothing of that is lost in a restart.
    gateway.stop().await;
    let gateway = world.start().await;
    assert_eq!(details(&gateway, &first).await, shown);
    let next = create(&gateway, send(&from)).await;
    assert_eq!(outcome(&gateway, &next.uuid).await.error, None);
    assert_eq!(world.evm.nonces(), [0, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number__should_stay_with_the_request_that_replaces_the_one_given_up() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    let (first, _) = handed_over(&gateway, send(&from)).await;
    let (second, _) = handed_over(&gateway, with_nonce(&from, 0)).await;
    let (third, _) = handed_over(&gateway, with_nonce(&from, 0)).await;
    let next = async || nonce_of(&handed_over(&gateway, send(&from)).await.1);
    give_up(&gateway, &first).await.unwrap();
    assert_eq!(next().await, 1, "two others have the number");
    // One that does not hold it changes nothing for the others.
    give_up(&gateway, &second).await.unwrap();
    assert_eq!(next().await, 2);
    give_up(&gateway, &third).await.unwrap();
    assert_eq!(next().await, 0, "nobody has it any more");
    assert_eq!(next().await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number__should_stay_with_the_request_that_replaces_one_that_fails() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 2_000;
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    world.signers.silent.store(true, Ordering::SeqCst);
    let first = create(&gateway, send(&from)).await;
    while world.signers.unanswered.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    world.signers.silent.store(false, Ordering::SeqCst);
    handed_over(&gateway, with_nonce(&from, 0)).await;
    assert!(outcome(&gateway, &first.uuid).await.error.is_some());
    let (_, next) = handed_over(&gateway, send(&from)).await;
    assert_eq!(nonce_of(&next), 1, "the second one has the number");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outputs__should_stay_with_the_request_that_replaces_the_one_given_up() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 60_000;
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = wallet(&gateway, vault, NetworkType::Bitcoin).await.address;
    world.bitcoin.fund(&from, 1, 100_000);
    let (first, _) = handed_over(&gateway, pay(&from, 10_000)).await;
    let named = [format!("{}:0", "01".repeat(32))];
    let (second, _) = handed_over(
        &gateway,
        coin_control::names(&from, 20_000, &named, Some(9)),
    )
    .await;
    give_up(&gateway, &first).await.unwrap();
    let waits = create(&gateway, pay(&from, 30_000)).await;
    loop {
        let waits = try_outcome(&gateway, &admin(), &waits.uuid).await;
        let why = "reserved by other requests of this wallet";
        if waits.unwrap_err().message().contains(why) {
            break;
        }
    }
    give_up(&gateway, &second).await.unwrap();
    assert_eq!(outcome(&gateway, &waits.uuid).await.error, None);
    assert_eq!(world.bitcoin.accepted(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number__should_never_be_two_requests_when_one_is_given_up_while_another_replaces_it() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    for nonce in 0..40 {
        let (first, transaction) = handed_over(&gateway, send(&from)).await;
        assert_eq!(nonce_of(&transaction), nonce);
        let (gone, (_, replaced)) = tokio::join!(
            give_up(&gateway, &first),
            handed_over(&gateway, with_nonce(&from, nonce))
        );
        gone.unwrap();
        assert_eq!(nonce_of(&replaced), nonce);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_and_pieces_of_every_kind__should_be_the_next_ones_at_once() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 10_000;
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;

    let from = wallet(&gateway, vault, NetworkType::Bitcoin).await.address;
    world.bitcoin.fund(&from, 1, 100_000);
    let (first, _) = handed_over(&gateway, pay(&from, 10_000)).await;
    give_up(&gateway, &first).await.unwrap();
    let next = create(&gateway, pay(&from, 20_000)).await;
    assert_eq!(outcome(&gateway, &next.uuid).await.error, None);
    assert_eq!(world.bitcoin.accepted(), 1);

    let from = wallet(&gateway, vault, NetworkType::Sui).await.address;
    world.sui.fund(1, 1_000_000_000);
    let (first, _) = handed_over(&gateway, pay_sui(&from)).await;
    let waits = create(&gateway, pay_sui(&from)).await;
    let why = "the required coins are reserved by other transactions of this wallet";
    loop {
        let waits = try_outcome(&gateway, &admin(), &waits.uuid).await;
        if waits.unwrap_err().message().contains(why) {
            break;
        }
    }
    give_up(&gateway, &first).await.unwrap();
    assert_eq!(outcome(&gateway, &waits.uuid).await.error, None);
    assert_eq!(world.sui.executed(), 1);

    let from = wallet(&gateway, vault, NetworkType::Aptos).await.address;
    let (first, _) = handed_over(&gateway, pay_aptos(&from)).await;
    give_up(&gateway, &first).await.unwrap();
    let next = create(&gateway, pay_aptos(&from)).await;
    assert_eq!(outcome(&gateway, &next.uuid).await.error, None);
    assert_eq!(world.aptos.executed().len(), 1, "it has the number 0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_of_stellar_and_ton__should_be_the_next_ones_at_once() {
    let world = World::new();
    for (network, kind_of_network, name) in [
        (Network::Stellar, NetworkType::Stellar, "stellar"),
        (Network::Ton, NetworkType::Ton, "ton"),
    ] {
        // As an account that has sent some.
        let chain = NumberedDouble::new(network, Arc::clone(&world.clock), 7);
        let client = Arc::clone(&chain) as Arc<dyn ChainClient>;
        let key = ChainKey::of(network, None);
        let chains = ChainClients::default().with(key, client);
        let gateway = world.start_with(Arc::clone(&world.store), chains).await;
        let vault = vault(&gateway, name).await;
        let from = wallet(&gateway, vault, kind_of_network).await.address;
        let pay = || match network {
            Network::Stellar => Kind::StellarSendNative(wire::StellarSendNative {
                from: from.clone(),
                to: from.clone(),
                value: "5".into(),
                ..Default::default()
            }),
            _ => Kind::TonSendNative(wire::TonSendNative {
                from: from.clone(),
                to: from.clone(),
                value: "5".into(),
                ..Default::default()
            }),
        };
        let (first, _) = handed_over(&gateway, pay()).await;
        // Those behind its number wait for it.
        let behind = create(&gateway, pay()).await;
        let why = "an earlier one is not there yet";
        loop {
            let waits = try_outcome(&gateway, &admin(), &behind.uuid).await;
            if waits.unwrap_err().message().contains(why) {
                break;
            }
        }
        assert_eq!(chain.next(), 7);
        give_up(&gateway, &first).await.unwrap();
        let next = create(&gateway, pay()).await;
        assert_eq!(outcome(&gateway, &next.uuid).await.error, None);
        assert_eq!(outcome(&gateway, &behind.uuid).await.error, None);
        assert_eq!(chain.next(), 9);
        let shown = details(&gateway, &first).await;
        assert_eq!(shown.status(), Status::Failed);
        gateway.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_request_holds_by_now__should_stay_with_it() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = wallet(&gateway, vault, NetworkType::Bitcoin).await.address;
    world.bitcoin.fund(&from, 2, 100_000);
    let (first, _) = handed_over(&gateway, pay(&from, 10_000)).await;
    let claims = Scan::prefix(KeySpace::Claim, &[], 10);
    let [(key, row)] = world.store.scan(&claims).await.unwrap().try_into().unwrap();
    handed_over(&gateway, pay(&from, 10_000)).await;
    let both = world.store.scan(&claims).await.unwrap();
    let (_, other) = both.iter().find(|(other, _)| *other != key).unwrap();
    // As if its day was over, and the other request had come.
    let mut batch = Batch::new();
    let expect = Precondition::Version(row.version);
    batch.put(key, expect, other.value.clone());
    world.store.commit(batch).await.unwrap();
    let before = world.store.scan(&claims).await.unwrap();
    give_up(&gateway, &first).await.unwrap();
    assert_eq!(world.store.scan(&claims).await.unwrap(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn giving_up__should_count_once_also_when_it_comes_twice() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    for nonce in 0..20 {
        let (uuid, transaction) = handed_over(&gateway, send(&from)).await;
        assert_eq!(nonce_of(&transaction), 0, "{nonce}");
        let both = tokio::join!(give_up(&gateway, &uuid), give_up(&gateway, &uuid));
        let both = [both.0, both.1];
        assert_eq!(both.iter().filter(|answer| answer.is_ok()).count(), 1);
        for fault in both.into_iter().filter_map(Result::err) {
            assert_eq!(fault.class(), &Class::WrongState, "{fault}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_sent__should_not_be_given_up() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    let sent = create(&gateway, send(&from)).await;
    assert_eq!(outcome(&gateway, &sent.uuid).await.error, None);
    let fault = give_up(&gateway, &sent.uuid).await.unwrap_err();
    assert_eq!(fault.class(), &Class::WrongState);
    assert_eq!(
        details(&gateway, &sent.uuid).await.status(),
        Status::Succeeded
    );
}
