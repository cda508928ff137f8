//! Coin that a gas wallet sends to deposit wallets, on anvil: sped up, taken by a reorganisation, sent by hand, after a
//! restore. It is no deposit, and is made once.

use covault_actors::{
    operations::{GetSigningRequestDetails, ReplaceTransaction},
    store::{Batch, KeySpace, Precondition, Scan},
};
use covault_core::{
    amount::U256,
    schema::wire::{
        self, replace_transaction_request::Action, signing_request::source, transaction_state,
    },
};
use serde_json::{Value, json};

use crate::{
    backup::{back_up_at, restored_at},
    deposit_chain::{PAYER, Receiver, Shop, TARGET, USDT, finalized, node, pay, pay_token},
    deposit_sweeps::*,
    evm_anvil::Anvil,
    world::{admin, call},
};

/// Transactions of an address, with those that no block has yet.
async fn handed_in(anvil: &Anvil, address: &str) -> u64 {
    let count = anvil.call("eth_getTransactionCount", json!([address, "pending"]));
    let count = count.await;
    u64::from_str_radix(count.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
}

async fn details(shop: &Shop, uuid: &str) -> wire::SigningRequest {
    let request = wire::GetSigningRequestDetailsRequest { uuid: uuid.into() };
    let found = call::<GetSigningRequestDetails>(&shop.gateway, &admin(), request).await;
    found.unwrap().signing_request.unwrap()
}

/// Waits without blocks until the request of a sweep in this state is with the node. Its uuid.
async fn until_handed_in(shop: &Shop, anvil: &Anvil, from: &str, state: &str) -> String {
    shop.until(state, async |shop| {
        let sweep = sweep_of(shop, &shop.address).await;
        sweep.is_some_and(|sweep| sweep.state == state) && handed_in(anvil, from).await == 1
    })
    .await;
    let uuid = sweep_of(shop, &shop.address).await.unwrap().request_uuid;
    shop.until("it was taken", async |shop| {
        let request = details(shop, &uuid).await;
        request.status() == wire::signing_request::Status::Succeeded
    })
    .await;
    assert_eq!(sent(anvil, from).await, 0, "no block has it");
    uuid
}

/// Lets the pause of a sweep end. What is on its way keeps its time.
async fn pass_where_paused(shop: &Shop) {
    let sweep = sweep_of(shop, &shop.address).await;
    if sweep.is_some_and(|sweep| sweep.state == "paused") {
        shop.world.pass(PAUSE_MS);
    }
}

/// Replaces the transaction of a request that is in no block, at a higher fee. The uuid of what replaces it.
async fn speed_up(shop: &Shop, uuid: &str) -> String {
    let request = wire::ReplaceTransactionRequest {
        uuid: uuid.into(),
        action: Action::SpeedUp.into(),
        most_fee: None,
        notes: None,
    };
    let made = call::<ReplaceTransaction>(&shop.gateway, &admin(), request).await;
    let made = made.unwrap().signing_request.unwrap().uuid;
    shop.until("the replacement was taken", async |shop| {
        let request = details(shop, &made).await;
        assert_eq!(request.failed_reason, "");
        request.status() == wire::signing_request::Status::Succeeded
    })
    .await;
    made
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweep__should_end_once_by_the_hash_of_what_has_sped_it_up() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let (shop, gas_wallet) = open(&anvil, &receiver).await;
    fund(&anvil, &gas_wallet).await;
    let address = shop.address.clone();
    pay_token(&anvil, USDT, &address, 300).await;
    anvil.mine(10).await;
    let top_up = until_handed_in(&shop, &anvil, &gas_wallet, "funding").await;
    let faster_top_up = speed_up(&shop, &top_up).await;
    // More than the top-up: what replaces the transfer may cost more. It is too little to be swept.
    let more = json!({"to": address, "value": "0x5af3107a4000"});
    send_as(&anvil, &gas_wallet, more).await;
    // A few blocks: it is deep enough, and the next step is in none of them.
    anvil.mine(1).await;
    anvil.mine(2).await;
    let moved = until_handed_in(&shop, &anvil, &address, "moving").await;
    let faster_move = speed_up(&shop, &moved).await;
    until(&shop, &anvil, "it is over", async |shop| {
        status(shop).await.sweeps.is_empty()
    })
    .await;
    assert_eq!(tokens_of(&anvil, TARGET).await, U256::from(300));
    assert_eq!(
        (
            sent(&anvil, &gas_wallet).await,
            sent(&anvil, &address).await
        ),
        (2, 1),
        "one of the gas wallet's is by hand"
    );
    let totals = status(&shop).await.totals;
    let [total] = &totals[..] else {
        panic!("{totals:?}");
    };
    assert_eq!((total.sweeps, total.amount.as_str()), (1, "300"));
    assert_eq!(
        shop.world.requests().await.len(),
        4,
        "two and what replaced them"
    );
    for faster in [&faster_top_up, &faster_move] {
        until(&shop, &anvil, "it is final", async |shop| {
            let state = details(shop, faster).await.transaction_state;
            state.is_some_and(|state| state.status() == transaction_state::Status::Final)
        })
        .await;
    }
    for (first, faster) in [(top_up, faster_top_up), (moved, faster_move)] {
        let found = [details(&shop, &first).await, details(&shop, &faster).await];
        for request in &found {
            let source = request.source.as_ref().unwrap().r#type();
            assert_eq!(source, source::Type::Sweep, "{}", request.uuid);
        }
        let [first, faster] = found;
        assert_eq!(first.replaced_by_uuids, [faster.uuid]);
    }
    let coin = |event: &&Value| event["address"] == address && event["token_address"].is_null();
    assert_eq!(receiver.events().iter().filter(coin).count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn top_up_that_a_reorganisation_takes_for_good__should_be_made_again() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let (shop, gas_wallet) = open(&anvil, &receiver).await;
    fund(&anvil, &gas_wallet).await;
    let address = shop.address.clone();
    pay_token(&anvil, USDT, &address, 300).await;
    anvil.mine(10).await;
    until_handed_in(&shop, &anvil, &gas_wallet, "funding").await;
    // What is on its way arrives, and nothing follows.
    enable(&shop, false).await;
    anvil.mine(3).await;
    shop.until("the top-up has arrived", async |shop| {
        let sweep = sweep_of(shop, &address).await;
        sweep.is_some_and(|sweep| sweep.state == "funded")
    })
    .await;
    let topped_up = coin_of(&anvil, &address).await;
    assert!(topped_up > U256::ZERO);
    let counted = async |shop: &Shop| {
        let totals = status(shop).await.totals.into_iter();
        let all = totals.map(|total| total.top_ups.parse::<U256>().unwrap());
        all.fold(U256::ZERO, |sum, each| sum + each)
    };
    assert_eq!(counted(&shop).await, topped_up);
    anvil.call("anvil_reorg", json!([3, []])).await;
    anvil.call("anvil_dropAllTransactions", json!([])).await;
    // Something else of the gas wallet takes its number.
    let other = json!({"to": PAYER, "value": "0x1", "nonce": "0x0", "gas": "0x5208", "gasPrice": "0x174876e800"});
    send_as(&anvil, &gas_wallet, other).await;
    anvil.mine(10).await;
    assert_eq!(coin_of(&anvil, &address).await, U256::ZERO);
    enable(&shop, true).await;
    until(&shop, &anvil, "it is swept", async |shop| {
        pass_where_paused(shop).await;
        tokens_of(&anvil, TARGET).await == U256::from(300) && status(shop).await.sweeps.is_empty()
    })
    .await;
    assert_eq!(
        (
            sent(&anvil, &gas_wallet).await,
            sent(&anvil, &address).await
        ),
        (2, 1)
    );
    // The one that was taken is counted no more, and the second is the same payment.
    assert_eq!(counted(&shop).await, topped_up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn top_up_on_its_way__should_be_no_deposit_though_the_rules_can_no_longer_be_read() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let (shop, gas_wallet) = open(&anvil, &receiver).await;
    fund(&anvil, &gas_wallet).await;
    let address = shop.address.clone();
    pay_token(&anvil, USDT, &address, 300).await;
    anvil.mine(10).await;
    until_handed_in(&shop, &anvil, &gas_wallet, "funding").await;
    let all = Scan::prefix(KeySpace::SweepRules, &[], 10);
    let (key, rules) = shop.world.store.scan(&all).await.unwrap().remove(0);
    let put = async |value: Vec<u8>| {
        let mut batch = Batch::new();
        batch.put(key.clone(), Precondition::Any, value);
        shop.world.store.commit(batch).await.unwrap();
    };
    put(b"no row".to_vec()).await;
    anvil.mine(3).await;
    // A payment of somebody else is a deposit, and all before it was read.
    let hash = pay(&anvil, &address, 9).await;
    until(&shop, &anvil, "it is told", async |_| {
        let events = receiver.events();
        let mut events = events.iter();
        events.any(|event| event["tx_hash"] == hash && event["event"] == finalized())
    })
    .await;
    let events = receiver.events();
    let coin = events
        .iter()
        .filter(|event| event["token_address"].is_null());
    assert!(coin.clone().count() >= 2 && coin.clone().all(|event| event["tx_hash"] == hash));
    put(rules.value).await;
    until(&shop, &anvil, "it is swept", async |shop| {
        pass_where_paused(shop).await;
        tokens_of(&anvil, TARGET).await == U256::from(300) && status(shop).await.sweeps.is_empty()
    })
    .await;
    assert_eq!(sent(&anvil, &gas_wallet).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn coin_that_a_gas_wallet_sends_by_hand_to_a_topped_up_wallet__should_be_told_to_nobody() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let (shop, gas_wallet) = open(&anvil, &receiver).await;
    fund(&anvil, &gas_wallet).await;
    let address = shop.address.clone();
    pay_token(&anvil, USDT, &address, 300).await;
    anvil.mine(10).await;
    until_handed_in(&shop, &anvil, &gas_wallet, "funding").await;
    enable(&shop, false).await;
    until(&shop, &anvil, "it is topped up", async |shop| {
        let sweep = sweep_of(shop, &address).await;
        sweep.is_some_and(|sweep| sweep.state == "funded")
    })
    .await;
    let by_hand = async |value: &str| {
        send_as(&anvil, &gas_wallet, json!({"to": address, "value": value})).await;
    };
    by_hand("0x7").await;
    enable(&shop, true).await;
    until(&shop, &anvil, "it is swept", async |shop| {
        pass_where_paused(shop).await;
        tokens_of(&anvil, TARGET).await == U256::from(300) && status(shop).await.sweeps.is_empty()
    })
    .await;
    // A payment of somebody else is a deposit, and all before it was read.
    let hash = pay(&anvil, &address, 9).await;
    until(&shop, &anvil, "it is told", async |_| {
        let events = receiver.events();
        let mut events = events.iter();
        events.any(|event| event["tx_hash"] == hash && event["event"] == finalized())
    })
    .await;
    let events = receiver.events();
    let coin = events.iter().filter(|event| {
        let is_coin = event["token_address"].is_null() && event["is_send"] == false;
        event["address"] == address && is_coin
    });
    let mut told: Vec<_> = coin.map(|event| event["amount"].clone()).collect();
    told.dedup();
    assert_eq!(told, [json!("9")], "{events:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore__should_not_tell_top_ups_since_the_backup_as_deposits() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let (mut shop, gas_wallet) = open(&anvil, &receiver).await;
    fund(&anvil, &gas_wallet).await;
    let address = shop.address.clone();
    let backup = back_up_at(&shop.gateway, shop.world.clock_ms()).await;
    pay_token(&anvil, USDT, &address, 300).await;
    until(&shop, &anvil, "it is swept", async |shop| {
        tokens_of(&anvil, TARGET).await == U256::from(300) && status(shop).await.sweeps.is_empty()
    })
    .await;
    let is_sent = |event: &Value| event["is_send"] == true && event["event"] == finalized();
    until(&shop, &anvil, "that it has left is told", async |_| {
        receiver.events().iter().any(is_sent)
    })
    .await;
    let before = receiver.requests().len();
    shop.gateway.stop().await;
    shop.world = restored_at(&shop.world, &backup, shop.world.clock_ms()).await;
    shop.restart(&[&anvil.url]).await;
    // The blocks since the backup are read again, and all that was told is told again.
    until(&shop, &anvil, "it is told again", async |_| {
        let again = receiver.requests();
        let mut again = again[before..].iter();
        again.any(|request| is_sent(&request.json()))
    })
    .await;
    let coin = |event: &&Value| event["address"] == address && event["token_address"].is_null();
    let events = receiver.events();
    assert_eq!(events.iter().filter(coin).count(), 0, "{events:?}");
    assert_eq!(sent(&anvil, &gas_wallet).await, 1);
}
