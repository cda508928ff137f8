//! Balances of deposit wallets on TRON, compared with what is known of their transfers.

use covault_actors::operations::ReconcileDeposits;
use covault_core::{deposit::transfer::FollowedChain, schema::admin::ReconcileDepositsRequest};
use serde_json::Value;

use crate::{
    deposit_sweeps::PAUSE_MS,
    deposit_tron_sweeps::{TREASURY, TRX, TronShop},
    tron_chain::USDT,
    world::{admin, call},
};

/// Has balances compared, and waits for the end of that and of the second look.
async fn reconcile(shop: &TronShop) {
    let chain = FollowedChain::Tron;
    let done = || {
        shop.gateway
            .follows()
            .get(&chain)
            .and_then(|of| of.reconciled)
    };
    let before = done().map(|(at_ms, _)| at_ms);
    shop.world.pass(1);
    let request = ReconcileDepositsRequest {
        network: "TRON".into(),
        ..Default::default()
    };
    call::<ReconcileDeposits>(&shop.gateway, &admin(), request)
        .await
        .unwrap();
    shop.until("balances are compared", async |_| {
        done().map(|(at_ms, _)| at_ms) > before
    })
    .await;
    // The second look, at final blocks.
    for _ in 0..3 {
        shop.settle().await;
    }
}

/// What was told of a wallet that no transfer explains: stage, token and amount.
fn unexplained(shop: &TronShop, address: &str) -> Vec<(String, bool, String)> {
    let events = shop.receiver.events();
    let of_balances = |event: &&Value| event["address"] == address && event["index"] == "balance";
    let told = events.iter().filter(of_balances);
    let told = told.map(|event| {
        let text = |field: &str| event[field].as_str().unwrap().to_owned();
        assert!(event["tx_hash"].is_null() && event["is_send"] == false);
        (
            text("event"),
            event["token_address"] == USDT,
            text("amount"),
        )
    });
    told.collect()
}

async fn opened(reference: &str) -> (TronShop, String) {
    let shop = TronShop::open().await;
    let address = shop.deposit_wallet(reference).await;
    shop.bank().pay(&address, 300, true);
    shop.bank().pay(&address, 5 * TRX, false);
    shop.until("both are final", async |shop| {
        shop.receiver.events().len() >= 4
    })
    .await;
    (shop, address)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_transfers_explain__should_be_told_once_on_tron_and_swept() {
    for knows_no_programs in [false, true] {
        let (shop, address) = opened("order-1").await;
        shop.bank().knows_no_programs = knows_no_programs;
        reconcile(&shop).await;
        assert_eq!(unexplained(&shop, &address), []);
        shop.bank().mint(&address, 50);
        shop.bank().endow(&address, 12 * TRX);
        reconcile(&shop).await;
        shop.until("both are told", async |shop| {
            unexplained(shop, &address).len() >= 4
        })
        .await;
        let mut told = unexplained(&shop, &address);
        told.sort();
        let event = |stage: &str, is_usdt, amount: u64| {
            let event = format!("transfer.{stage}.v1");
            (event, is_usdt, amount.to_string())
        };
        let expected = [
            event("confirmed", false, 7 * TRX),
            event("confirmed", true, 50),
            event("finalized", false, 7 * TRX),
            event("finalized", true, 50),
        ];
        assert_eq!(told, expected);
        // What comes later is told by its own transfer, and nothing twice.
        shop.bank().pay(&address, 25, true);
        for _ in 0..2 {
            reconcile(&shop).await;
        }
        assert_eq!(unexplained(&shop, &address).len(), 4);
        shop.bank().endow(&shop.gas_wallet, 100 * TRX);
        shop.enable(true).await;
        shop.until("all is swept", async |shop| {
            shop.usdt(TREASURY) == 375 && shop.status().await.sweeps.is_empty()
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn less_than_transfers_explain__should_stop_sweeps_on_tron_until_it_is_back() {
    let (shop, address) = opened("order-1").await;
    shop.bank().seize(&address, 20);
    reconcile(&shop).await;
    let counts = || {
        let all = shop.gateway.follows();
        let (_, counts) = all[&FollowedChain::Tron].reconciled.unwrap();
        (counts.found, counts.missing)
    };
    shop.until("it is counted", async |_| counts() == (0, 1))
        .await;
    shop.bank().endow(&shop.gas_wallet, 100 * TRX);
    shop.enable(true).await;
    shop.until("its sweep waits", async |shop| {
        shop.waits_for(&address, "less than its transfers explain")
            .await
    })
    .await;
    assert_eq!(shop.sent(&shop.gas_wallet), (0, 0));
    // It is counted in every round.
    reconcile(&shop).await;
    assert_eq!(counts(), (0, 1));
    shop.bank().mint(&address, 20);
    reconcile(&shop).await;
    assert_eq!(counts(), (0, 0));
    shop.until("all is swept", async |shop| {
        let sweep = shop.sweep_of(&address).await;
        // A transaction lives for a minute.
        if sweep.is_some_and(|sweep| sweep.state == "paused") {
            shop.world.pass(PAUSE_MS);
        }
        shop.usdt(TREASURY) == 300
    })
    .await;
}
