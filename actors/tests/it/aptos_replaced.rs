//! The same transaction of Aptos at a higher price takes the place of one that waits: by a request that names its number,
//! and by the policy of the chain.

use std::sync::atomic::Ordering;

use covault_actors::{
    chain_rpc::{ChainKey, SpeedUpPolicy},
    gateway::Gateway,
};
use covault_core::{
    networks::{Network, Payload, Replacement, Signed},
    schema::wire::{
        self, NetworkType, create_signing_request_request::Type as Kind, transaction_state::Status,
    },
};

use crate::{
    rebroadcast::{aptos_wallet, pay_aptos},
    tracker::{a_while, until, until_status},
    world::*,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_aptos__should_be_sped_up_by_the_same_one_at_a_higher_price() {
    let world = World::new();
    world.aptos.halted.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = wallet(&gateway, vault, NetworkType::Aptos).await.address;
    let kind = Kind::AptosSendNative(wire::AptosSendNative {
        chain_id: 1,
        from: from.clone(),
        to: format!("0x{}", "ab".repeat(32)),
        value: "5".into(),
        gas_fee: Some(wire::AptosGas {
            max_gas_amount: Some("2000".into()),
            gas_unit_price: Some("160".into()),
            ..Default::default()
        }),
        ..Default::default()
    });
    let mut asked = request(kind.clone());
    asked.broadcast_tx = Some(true);
    let first = created(try_create(&gateway, asked, None).await.unwrap());
    let first = outcome(&gateway, &first.uuid).await;
    assert_eq!(first.error, None);

    // A second one, with the next number, is not touched by it.
    let next = create(&gateway, kind.clone()).await;
    assert_eq!(outcome(&gateway, &next.uuid).await.error, None);

    let signed = world.aptos.signed(&first.tx_hash);
    let rules = Network::Aptos.rules();
    let replaced = Signed {
        transaction: signed,
        tx_hash: first.tx_hash.clone(),
    };
    let payload = Payload::parse(&kind).unwrap();
    let faster = rules
        .replacement(&payload, &replaced, Replacement::SpeedUp)
        .unwrap();
    let faster = create(&gateway, faster.to_wire()).await;
    let faster = outcome(&gateway, &faster.uuid).await;
    assert_eq!(faster.error, None);
    // The node names 100: the price of the first and an eighth of it count.
    let prices = world.aptos.prices();
    assert_eq!(prices, [180, 160]);
    world.aptos.halted.store(false, Ordering::SeqCst);
    world.aptos.execute();
    let executed = world.aptos.executed();
    assert_eq!((executed.len(), &executed[0]), (2, &faster.tx_hash));
}

/// With a policy: after three blocks, for no more than that fee.
async fn with_policy(most_fee: u128) -> (World, Gateway, String) {
    let mut world = World::new();
    let policy = SpeedUpPolicy {
        after_blocks: 3,
        most_fee,
    };
    world.speed_up = Some((ChainKey::APTOS, policy));
    world.aptos.is_asked.store(true, Ordering::SeqCst);
    world.aptos.halted.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let address = aptos_wallet(&gateway).await;
    (world, gateway, address)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_policy__should_replace_transactions_of_aptos_until_the_cap() {
    // 2,000 units of gas at 100 octa each, an eighth more, and a quarter more.
    let (world, gateway, address) = with_policy(2_000 * 120).await;
    let first = create(&gateway, pay_aptos(&address)).await.uuid;
    assert_eq!(outcome(&gateway, &first).await.error, None);
    let behind = create(&gateway, pay_aptos(&address)).await.uuid;
    assert_eq!(outcome(&gateway, &behind).await.error, None);
    let made = async || details(&gateway, &first).await.replaced_by_uuids;
    a_while().await;
    world.aptos.head.fetch_add(2, Ordering::SeqCst);
    a_while().await;
    assert_eq!(world.aptos.prices(), [100, 100], "it may wait for three");
    world.aptos.head.fetch_add(1, Ordering::SeqCst);
    until(async || world.aptos.prices() == [113, 100]).await;
    let second = made().await.pop().unwrap();
    let faster = outcome(&gateway, &second).await;
    assert_eq!(faster.error, None);
    let notes = details(&gateway, &second).await.notes.unwrap();
    assert!(
        notes.contains("chains.aptos.speed_up_after_blocks"),
        "{notes}"
    );
    // The next one would cost more than the cap.
    a_while().await;
    world.aptos.head.fetch_add(3, Ordering::SeqCst);
    until(async || made().await.len() == 2).await;
    let third = made().await.pop().unwrap();
    let error = outcome(&gateway, &third).await.error.unwrap();
    let words = "above the allowed maximum";
    assert!(error.message.contains(words), "{error:?}");
    for _ in 0..2 {
        world.aptos.head.fetch_add(30, Ordering::SeqCst);
        a_while().await;
    }
    assert_eq!(made().await.len(), 2);
    assert_eq!(world.aptos.prices(), [113, 100]);
    assert!(
        details(&gateway, &behind)
            .await
            .replaced_by_uuids
            .is_empty()
    );
    // One of the two is on the chain, and the other one's state says so.
    world.aptos.execute();
    assert_eq!(world.aptos.executed()[0], faster.tx_hash);
    let gone = until_status(&gateway, &first, Status::Replaced).await;
    assert_eq!(gone.replaced_by, faster.tx_hash);
    until_status(&gateway, &second, Status::Final).await;
    until_status(&gateway, &behind, Status::Final).await;
}
