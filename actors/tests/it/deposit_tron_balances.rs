//! Balances of deposit wallets on TRON, compared with what is known of their transfers.

use covault_actors::operations::{ReconcileDeposits, RestartDeposits};
use covault_core::{
    deposit::transfer::FollowedChain,
    schema::admin::{ReconcileDepositsRequest, RestartDepositsRequest},
};
use serde_json::Value;

use crate::{
    deposit_sweeps::PAUSE_MS,
    deposit_tron_sweeps::{TREASURY, TRX, TronShop},
    tron_chain::USDT,
    world::{admin, call},
};

/// When all balances were last compared.
fn compared_at(shop: &TronShop) -> Option<u64> {
    let follows = shop.gateway.follows();
    let (at_ms, _) = follows.get(&FollowedChain::Tron)?.reconciled?;
    Some(at_ms)
}

async fn want_comparison(shop: &TronShop) {
    let request = ReconcileDepositsRequest {
        network: "TRON".into(),
        ..Default::default()
    };
    call::<ReconcileDeposits>(&shop.gateway, &admin(), request)
        .await
        .unwrap();
}

/// Has balances compared, and waits for the end of that and of the second look.
async fn reconcile(shop: &TronShop) {
    shop.world.pass(1);
    let since_ms = shop.world.clock_ms();
    want_comparison(shop).await;
    shop.until("balances are compared", async |shop| {
        compared_at(shop).is_some_and(|at_ms| at_ms >= since_ms)
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
    // A comparison leaves alone what was paid a few blocks ago.
    shop.settle().await;
    (shop, address)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_transfers_explain__should_be_told_once_on_tron_and_swept() {
    let (shop, address) = opened("order-1").await;
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

/// Has balances compared by nodes that cannot, for some minutes.
async fn compare_in_vain(shop: &TronShop) {
    let before = compared_at(shop);
    want_comparison(shop).await;
    for _ in 0..4 {
        shop.settle().await;
        shop.world.pass(PAUSE_MS);
    }
    assert_eq!(compared_at(shop), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_is_stuck__should_make_no_deposit_of_what_was_swept() {
    let (mut shop, address) = opened("order-1").await;
    reconcile(&shop).await;
    shop.bank().stick(true);
    shop.bank().endow(&shop.gas_wallet, 100 * TRX);
    shop.enable(true).await;
    let is_swept = async |shop: &TronShop, amount| {
        shop.usdt(TREASURY) == amount && shop.status().await.sweeps.is_empty()
    };
    shop.until("all is swept", async |shop| is_swept(shop, 300).await)
        .await;
    // Blocks come from a node that is well, balances from one that has what was there before.
    (0..12).for_each(|_| shop.mine());
    compare_in_vain(&shop).await;
    assert_eq!(unexplained(&shop, &address), []);
    shop.bank().stick(false);
    // What has failed is left alone for a minute, or until the process begins again.
    shop.restart().await;
    reconcile(&shop).await;
    assert_eq!(unexplained(&shop, &address), []);
    // Nor does anything seem to be missing.
    shop.bank().pay(&address, 125, true);
    shop.until("what comes is swept", async |shop| {
        is_swept(shop, 425).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_run_no_programs__should_not_be_asked_for_balances_of_no_known_block() {
    let (mut shop, address) = opened("order-1").await;
    shop.bank().knows_no_programs = true;
    shop.bank().mint(&address, 50);
    compare_in_vain(&shop).await;
    assert_eq!(unexplained(&shop, &address), []);
    shop.bank().knows_no_programs = false;
    shop.restart().await;
    reconcile(&shop).await;
    shop.until("it is told", async |shop| {
        unexplained(shop, &address).len() == 2
    })
    .await;
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
    // It is when the chain was followed again, which is compared at once then, and nothing is swept meanwhile.
    let before = compared_at(&shop);
    shop.world.pass(1);
    let restart = RestartDepositsRequest {
        network: "TRON".into(),
        from: 1,
        ..Default::default()
    };
    call::<RestartDeposits>(&shop.gateway, &admin(), restart)
        .await
        .unwrap();
    shop.until("it is compared again", async |shop| {
        compared_at(shop) > before
    })
    .await;
    assert_eq!(counts(), (0, 1));
    shop.world.pass(PAUSE_MS);
    shop.settle().await;
    assert_eq!(shop.sent(&shop.gas_wallet), (0, 0));
    shop.bank().mint(&address, 20);
    reconcile(&shop).await;
    shop.until("a second look says so too", async |_| counts() == (0, 0))
        .await;
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
