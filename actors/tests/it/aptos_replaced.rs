//! Requests on Aptos that name their number: the same transaction at a higher price takes the place of one that waits.

use std::sync::atomic::Ordering;

use covault_core::{
    networks::{Network, Payload, Replacement, Signed},
    schema::wire::{self, NetworkType, create_signing_request_request::Type as Kind},
};

use crate::world::*;

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
