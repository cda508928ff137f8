//! What becomes of a payment while nobody here sees it: behind the word of a node that is too busy, while the service is
//! down, and while a node thinks about what to say.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use covault_core::{
    networks::Network,
    schema::wire::{
        self, create_signing_request_request::Type as Kind, signing_request,
        transaction_state::Status,
    },
};
use serde_json::{Value, json};

use crate::{
    evm_anvil::{Anvil, Way, paid},
    keeping_byzantine_node::patient,
    numbers_behind::{LIFE_MS, Numbered, failed},
    rebroadcast::{noted, pass},
    tracker::{GAP_MS, a_while, fillers, until, until_status},
    world::*,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_busy_node_has_passed_on__should_be_paid_once_whatever_it_says_later() {
    for http_status in [200, 429, 503] {
        let (anvil, world) = (Anvil::start().await, patient());
        // Several backends behind one address. The first one takes the payment, and is too busy to say so. The others do not
        // know it, and find the wallet empty for it.
        let (first, knows_it) = (OnceLock::new(), Arc::new(AtomicBool::new(false)));
        let is_known = Arc::clone(&knows_it);
        let way = move |call: &Value| match call["method"].as_str() {
            _ if is_known.load(Ordering::SeqCst) => Way::Open,
            Some("eth_sendRawTransaction") => match first.set(call["params"].clone()) {
                Ok(()) => Way::Busy(http_status),
                Err(again) if first.get() == Some(&again) => {
                    Way::Refused("insufficient funds for gas * price + value")
                }
                Err(_) => Way::Open,
            },
            Some("eth_getTransactionByHash" | "eth_getTransactionReceipt") => {
                Way::Answered(Value::Null)
            }
            Some("eth_getTransactionCount") => Way::Answered(json!("0x0")),
            _ => Way::Open,
        };
        let url = anvil.behind(way).await;
        let (gateway, address) = anvil.gateway(&world, &url).await;
        let payment = create(&gateway, send(&address)).await.uuid;
        let status = async || details(&gateway, &payment).await.status();
        until(async || {
            noted(&world, "Delayed", "insufficient funds").await
                || status().await != signing_request::Status::Pending
        })
        .await;
        a_while().await;
        // Who was told that it failed would pay once more.
        assert_eq!(
            status().await,
            signing_request::Status::Pending,
            "{http_status}"
        );
        // Nor does what comes next take its place.
        let next = Kind::EvmSendNative(wire::EvmSendNative {
            value: "6".into(),
            ..send_native(&address)
        });
        let next = create(&gateway, next).await.uuid;
        anvil.mine(1).await;
        knows_it.store(true, Ordering::SeqCst);
        for uuid in [&payment, &next] {
            assert_eq!(outcome(&gateway, uuid).await.error, None);
        }
        anvil.mine(128).await;
        for uuid in [&payment, &next] {
            let shown = until_status(&gateway, uuid, Status::Final).await;
            assert_eq!(shown.success, Some(true));
        }
        assert_eq!(anvil.received().await, "0xb", "each is paid once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_that_goes_while_the_service_is_down__should_not_be_shown_when_it_is_back() {
    let (anvil, world) = (Anvil::start().await, World::new());
    let (gateway, address) = anvil.gateway(&world, &anvil.url).await;
    let (payment, _) = paid(&gateway, &address).await;
    anvil.mine(1).await;
    until_status(&gateway, &payment, Status::Mined).await;
    gateway.stop().await;
    anvil.lose_newest_block().await;
    let gateway = Anvil::start_on(&world, &anvil.url).await;
    until_status(&gateway, &payment, Status::Pending).await;
    anvil.gets_again(&world, 1).await;
    anvil.mine(128).await;
    until_status(&gateway, &payment, Status::Final).await;
    assert_eq!(anvil.received().await, "0x5", "paid once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gap__should_not_be_filled_for_what_ends_while_a_node_thinks_about_it() {
    for network in [Network::Stellar, Network::Ton] {
        let it = Numbered::start(network, World::new()).await;
        // A node offers a number behind a gap, so that the payment waits for a number that nobody uses.
        it.chain.overstates.store(1, Ordering::SeqCst);
        let behind = it.pay().await;
        until(async || it.chain.looks.load(Ordering::SeqCst) > 0).await;
        it.chain.is_slow.store(true, Ordering::SeqCst);
        pass(&it.world, GAP_MS);
        // Who sends it again, and who looks at the gap.
        until(async || it.chain.waiting.load(Ordering::SeqCst) == 2).await;
        pass(&it.world, LIFE_MS);
        failed(&it.gateway, &behind).await;
        it.chain.is_slow.store(false, Ordering::SeqCst);
        a_while().await;
        let vault = details(&it.gateway, &behind).await.vault_uuid.unwrap();
        // It would cost a fee, and nothing waits behind it.
        assert_eq!(fillers(&it.gateway, &vault).await, [], "{network:?}");
    }
}
