//! Balances of deposit wallets beside what is known of their transfers, on anvil.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use covault_actors::operations::{
    AddSweepAsset, ReconcileDeposits, RescanDeposits, RestartDeposits,
};
use covault_core::{
    deposit::transfer::FollowedChain,
    schema::admin::{
        AddSweepAssetRequest, ReconcileDepositsRequest, RescanDepositsRequest,
        RestartDepositsRequest,
    },
};
use serde_json::{Value, json};

use crate::{
    deposit_chain::{
        FAKE, PAYER, Receiver, Shop, TRANSFER, USDT, confirmed, finalized, log, node, pay,
        pay_token, value, world,
    },
    deposit_sweeps::{self, COIN, PAUSE_MS, coin_of, enable, sent, sweep_of, until},
    evm_anvil::{Anvil, Way},
    world::{CHAIN, admin, call},
};

/// A contract that passes what it gets on to the account that it is called with.
pub const FORWARDER: &str = "0x00000000000000000000000000000000000f0111";

pub async fn put_forwarder(anvil: &Anvil) {
    let code = json!([FORWARDER, "0x6000600060006000346000355af100"]);
    anvil.call("anvil_setCode", code).await;
}

/// A token that keeps balances. It tells of what it moves when it is called with recipient and amount, and does not
/// with one byte more.
async fn put_token(anvil: &Anvil, address: &str) {
    let code = format!(
        "0x60003560e01c6370a08231146054576020356000355401600035556041361460525760203560005260003533\
         7f{TRANSFER}60206000a35b005b6004355460005260206000f3"
    );
    anvil.call("anvil_setCode", json!([address, code])).await;
}

async fn send(anvil: &Anvil, from: &str, to: &str, wei: u64, data: &str) -> String {
    let transaction = json!({"from": from, "to": to, "value": format!("{wei:#x}"), "data": data, "gas": "0x186a0"});
    let hash = anvil
        .call("eth_sendTransaction", json!([transaction]))
        .await;
    hash.as_str().unwrap().to_owned()
}

pub async fn forward(anvil: &Anvil, to: &str, wei: u64) -> String {
    let data = format!("0x{:0>64}", to.trim_start_matches("0x"));
    send(anvil, PAYER, FORWARDER, wei, &data).await
}

async fn mint_silently(anvil: &Anvil, token: &str, to: &str, amount: u64) {
    let data = format!("0x{:0>64}{amount:064x}00", to.trim_start_matches("0x"));
    send(anvil, PAYER, token, 0, &data).await;
}

async fn height(anvil: &Anvil) -> u64 {
    let height = anvil.call("eth_blockNumber", json!([])).await;
    let height = height.as_str().unwrap().trim_start_matches("0x");
    u64::from_str_radix(height, 16).unwrap()
}

/// How many balances the last whole round has found with more, and with less.
type Counts = (u64, u64);

/// What the last whole round has come to.
fn counts(shop: &Shop) -> Option<Counts> {
    let follows = shop.gateway.follows();
    let (_, counts) = follows.get(&FollowedChain::Evm(CHAIN))?.reconciled?;
    Some((counts.found, counts.missing))
}

fn finalized_block(shop: &Shop) -> u64 {
    shop.gateway.follows()[&FollowedChain::Evm(CHAIN)].finalized
}

/// A round over all balances, once all that was made until now is final.
pub async fn reconcile(shop: &Shop, anvil: &Anvil) -> Counts {
    let made = height(anvil).await;
    anvil.mine(10).await;
    shop.until("it is final", async |shop| finalized_block(shop) >= made)
        .await;
    // Rounds are told apart by their time.
    let before = shop.gateway.follows()[&FollowedChain::Evm(CHAIN)].reconciled;
    shop.world.pass(1);
    let request = ReconcileDepositsRequest {
        network: "EVM".into(),
        chain_id: CHAIN.to_string(),
    };
    // The follower may write at the same moment.
    shop.until("it is taken", async |shop| {
        call::<ReconcileDeposits>(&shop.gateway, &admin(), request.clone())
            .await
            .is_ok()
    })
    .await;
    shop.until("a round is over", async |shop| {
        shop.gateway.follows()[&FollowedChain::Evm(CHAIN)].reconciled != before
    })
    .await;
    counts(shop).unwrap()
}

pub async fn rescan(shop: &Shop) {
    let request = RescanDepositsRequest {
        network: "EVM".into(),
        chain_id: CHAIN.to_string(),
        from: 0,
        to: finalized_block(shop),
    };
    call::<RescanDeposits>(&shop.gateway, &admin(), request)
        .await
        .unwrap();
    // A second one is refused for as long as the first is in progress.
    let again = RescanDepositsRequest {
        network: "EVM".into(),
        chain_id: CHAIN.to_string(),
        from: 0,
        to: 0,
    };
    shop.until("the rescan is over", async |shop| {
        call::<RescanDeposits>(&shop.gateway, &admin(), again.clone())
            .await
            .is_ok()
    })
    .await;
}

fn of_balance(events: &[Value]) -> Vec<Value> {
    let mut found: Vec<_> = events
        .iter()
        .filter(|event| event["index"] == "balance" && event["event"] == confirmed())
        .cloned()
        .collect();
    found.sort_by_key(|event| event["block_number"].as_str().unwrap().to_owned());
    found
}

pub fn counted(found: u64, missing: u64) -> Counts {
    (found, missing)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn balances__should_show_what_contracts_have_passed_on_block_by_block_and_once() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    put_forwarder(&anvil).await;
    let shop = Shop::open(&receiver, &[&anvil.url], 1).await;
    let to = &shop.address;
    let seen = pay(&anvil, to, 5).await;
    forward(&anvil, to, 7).await;
    anvil.mine(3).await;
    forward(&anvil, to, 11).await;
    forward(&anvil, to, 13).await;
    anvil.mine(1).await;
    assert_eq!(reconcile(&shop, &anvil).await, counted(2, 0));
    shop.until("all are told", async |_| receiver.events().len() >= 6)
        .await;
    let told = of_balance(&receiver.events());
    let amounts: Vec<_> = told
        .iter()
        .map(|event| (event["block_number"].clone(), event["amount"].clone()))
        .collect();
    assert_eq!(
        amounts,
        [(json!("21"), json!("7")), (json!("24"), json!("24"))]
    );
    for (field, expected) in [
        ("tx_hash", Value::Null),
        ("from", Value::Null),
        ("token_address", Value::Null),
        ("to", json!(to)),
        ("address", json!(to)),
        ("ref", json!("order-1")),
        ("is_send", json!(false)),
    ] {
        assert_eq!(told[0][field], expected, "{field}: {told:?}");
    }
    // What was told is in the books.
    assert_eq!(reconcile(&shop, &anvil).await, counted(0, 0));
    rescan(&shop).await;
    let later = pay(&anvil, to, 17).await;
    assert_eq!(reconcile(&shop, &anvil).await, counted(0, 0));
    shop.until("it is told", async |_| receiver.events().len() >= 8)
        .await;
    let events = receiver.events();
    assert_eq!(events.len(), 8, "{events:?}");
    let mut stages = BTreeMap::new();
    for event in &events {
        let of = stages.entry(event["tx_hash"].clone().to_string());
        let of: &mut Vec<_> = of.or_default();
        of.push(event["event"].clone());
    }
    let both = vec![json!(confirmed()), json!(finalized())];
    for hash in [seen, later] {
        assert_eq!(stages[&json!(hash).to_string()], both);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fees__should_be_in_the_books_to_the_wei() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let shop = Shop::open(&receiver, &[&anvil.url], 1).await;
    let from = shop.address.clone();
    pay(&anvil, &from, 1_000_000_000_000_000_000).await;
    anvil.mine(1).await;
    anvil.call("anvil_impersonateAccount", json!([from])).await;
    put_token(&anvil, USDT).await;
    // A payment, a call without value, and one that fails.
    send(&anvil, &from, PAYER, 1_000, "0x").await;
    let data = format!("0x{:0>64}{:064x}", PAYER.trim_start_matches("0x"), 0);
    send(&anvil, &from, USDT, 0, &data).await;
    anvil
        .call("anvil_setCode", json!([FORWARDER, "0x60006000fd"]))
        .await;
    send(&anvil, &from, FORWARDER, 5, "0x").await;
    anvil.mine(1).await;
    let left = anvil.call("eth_getBalance", json!([from, "latest"])).await;
    let left = left.as_str().unwrap().trim_start_matches("0x");
    let left = u128::from_str_radix(left, 16).unwrap();
    assert!(left < 1_000_000_000_000_000_000 - 1_000, "no fees: {left}");
    assert_eq!(reconcile(&shop, &anvil).await, counted(0, 0));
    shop.until("both are told", async |_| receiver.events().len() >= 4)
        .await;
    let told: Vec<_> = receiver
        .stages()
        .into_keys()
        .map(|(_, index)| index)
        .collect();
    assert_eq!(told, ["value", "value"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn balances__should_be_counted_while_less_is_there_and_tell_nothing() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let shop = Shop::open(&receiver, &[&anvil.url], 1).await;
    pay(&anvil, &shop.address, 500).await;
    anvil.mine(1).await;
    let set = async |wei: u64| {
        let balance = json!([shop.address, format!("{wei:#x}")]);
        anvil.call("anvil_setBalance", balance).await;
        anvil.mine(1).await;
    };
    set(200).await;
    assert_eq!(reconcile(&shop, &anvil).await, counted(0, 1));
    set(500).await;
    assert_eq!(reconcile(&shop, &anvil).await, counted(0, 0));
    assert_eq!(of_balance(&receiver.events()), Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wallet_with_less_than_its_transfers_explain__should_not_be_swept_until_it_is_well() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let (shop, _) = deposit_sweeps::open_in(world(), &anvil, &receiver).await;
    let other = shop.deposit_address("order-2").await;
    for address in [&shop.address, &other] {
        pay(&anvil, address, COIN).await;
    }
    anvil.mine(1).await;
    let set = async |wei: u64| {
        let balance = json!([shop.address, format!("{wei:#x}")]);
        anvil.call("anvil_setBalance", balance).await;
        anvil.mine(1).await;
    };
    set(COIN - 1).await;
    assert_eq!(reconcile(&shop, &anvil).await, counted(0, 1));
    enable(&shop, true).await;
    until(&shop, &anvil, "it waits for a person", async |shop| {
        let sweep = sweep_of(shop, &shop.address).await;
        sweep.is_some_and(|sweep| sweep.reason.contains("has less than its transfers explain"))
    })
    .await;
    // That of one wallet keeps no other.
    until(&shop, &anvil, "the other is swept", async |_| {
        coin_of(&anvil, &other).await.is_zero()
    })
    .await;
    assert_eq!(sent(&anvil, &shop.address).await, 0);
    set(COIN).await;
    assert_eq!(reconcile(&shop, &anvil).await, counted(0, 0));
    shop.world.pass(PAUSE_MS);
    until(&shop, &anvil, "it is swept", async |_| {
        coin_of(&anvil, &shop.address).await.is_zero()
    })
    .await;
    assert_eq!(sent(&anvil, &shop.address).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens__should_be_told_once_by_their_balance_or_by_a_rescan() {
    const LATER: &str = "0x00000000000000000000000000000000000d0222";
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let shop = Shop::open(&receiver, &[&anvil.url], 1).await;
    let to = &shop.address;
    for token in [USDT, FAKE, LATER] {
        put_token(&anvil, token).await;
    }
    let seen = pay_token(&anvil, USDT, to, 5).await;
    mint_silently(&anvil, USDT, to, 7).await;
    // Before anybody named them.
    pay_token(&anvil, FAKE, to, 11).await;
    let rescanned = pay_token(&anvil, LATER, to, 13).await;
    anvil.mine(1).await;
    assert_eq!(reconcile(&shop, &anvil).await, counted(1, 0));
    let name = async |contract: &str| {
        let asset = AddSweepAssetRequest {
            token: shop.token.clone(),
            network: "EVM".into(),
            chain_id: CHAIN.to_string(),
            contract: contract.into(),
            minimum: "1".into(),
        };
        call::<AddSweepAsset>(&shop.gateway, &admin(), asset)
            .await
            .unwrap();
    };
    name(FAKE).await;
    assert_eq!(reconcile(&shop, &anvil).await, counted(1, 0));
    name(LATER).await;
    // It finds what was told by its balance too, and does not tell it again.
    rescan(&shop).await;
    assert_eq!(reconcile(&shop, &anvil).await, counted(0, 0));
    shop.until("all are told", async |_| receiver.events().len() >= 8)
        .await;
    let events = receiver.events();
    assert_eq!(events.len(), 8, "{events:?}");
    let told: BTreeMap<_, _> = of_balance(&events)
        .into_iter()
        .map(|event| {
            let token = event["token_address"].as_str().unwrap().to_lowercase();
            (token, event["amount"].clone())
        })
        .collect();
    let expected = [(USDT, json!("7")), (FAKE, json!("11"))];
    let expected = expected.map(|(token, amount)| (token.to_owned(), amount));
    assert_eq!(told, BTreeMap::from(expected));
    let hashes: Vec<_> = events
        .iter()
        .filter_map(|event| event["tx_hash"].as_str())
        .collect();
    for hash in [&seen, &rescanned] {
        let count = hashes.iter().filter(|one| *one == hash).count();
        assert_eq!(count, 2, "{hash}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn balances__should_be_compared_every_hour_and_hold_nothing_up_where_nodes_do_not_have_them()
{
    let (anvil, receiver) = (node().await, Receiver::start().await);
    put_forwarder(&anvil).await;
    let has_states = Arc::new(AtomicBool::new(false));
    let has = Arc::clone(&has_states);
    let url = anvil
        .behind(move |call| match call["method"].as_str() {
            Some("eth_call") if !has.load(Ordering::SeqCst) => Way::Refused("missing trie node"),
            _ => Way::Open,
        })
        .await;
    let shop = Shop::open(&receiver, &[&url], 1).await;
    forward(&anvil, &shop.address, 7).await;
    anvil.mine(10).await;
    shop.world.pass(3_600_001);
    let coin = pay(&anvil, &shop.address, 5).await;
    let token = pay_token(&anvil, USDT, &shop.address, 5).await;
    anvil.mine(10).await;
    shop.until("both are final", async |_| receiver.events().len() >= 4)
        .await;
    let expected = [value(&coin), log(&token)].map(|of| (of, vec![confirmed(), finalized()]));
    assert_eq!(receiver.stages(), BTreeMap::from(expected));
    assert_eq!(counts(&shop), None);
    // It is asked again after a while, which a new process does not wait for.
    has_states.store(true, Ordering::SeqCst);
    let mut shop = shop;
    shop.restart(&[&url]).await;
    shop.until("it is told", async |_| receiver.events().len() >= 6)
        .await;
    let told = of_balance(&receiver.events());
    assert_eq!(told.len(), 1);
    assert_eq!(told[0]["amount"], json!("7"));
    shop.until("the round is over", async |shop| {
        counts(shop) == Some(counted(1, 0))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart__should_be_replaced_and_not_tell_again_what_a_balance_has_told() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    put_forwarder(&anvil).await;
    let is_pruned = Arc::new(AtomicBool::new(false));
    let pruned = Arc::clone(&is_pruned);
    let url = anvil
        .behind(move |call| match call["params"][0].as_str() {
            Some("0x4") if pruned.load(Ordering::SeqCst) => Way::Answered(Value::Null),
            _ => Way::Open,
        })
        .await;
    put_token(&anvil, FAKE).await;
    let shop = Shop::open(&receiver, &[&url], 1).await;
    let to = &shop.address;
    let coin = pay(&anvil, to, 5).await;
    // Nobody has named the token yet: it is told by its balance once somebody has.
    pay_token(&anvil, FAKE, to, 11).await;
    forward(&anvil, to, 7).await;
    anvil.mine(1).await;
    let asset = AddSweepAssetRequest {
        token: shop.token.clone(),
        network: "EVM".into(),
        chain_id: CHAIN.to_string(),
        contract: FAKE.into(),
        minimum: "1".into(),
    };
    anvil.mine(10).await;
    shop.until("the coin is final", async |_| receiver.events().len() == 2)
        .await;
    call::<AddSweepAsset>(&shop.gateway, &admin(), asset)
        .await
        .unwrap();
    assert_eq!(reconcile(&shop, &anvil).await, counted(2, 0));
    shop.until("all are told", async |_| receiver.events().len() == 6)
        .await;
    let restart = async |from: u64| {
        let request = RestartDepositsRequest {
            network: "EVM".into(),
            chain_id: CHAIN.to_string(),
            from,
        };
        call::<RestartDeposits>(&shop.gateway, &admin(), request)
            .await
            .unwrap();
    };
    // Its block is not there: the chain goes on, and another one replaces it.
    is_pruned.store(true, Ordering::SeqCst);
    restart(5).await;
    let later = pay(&anvil, to, 6).await;
    anvil.mine(10).await;
    shop.until("it goes on", async |_| receiver.events().len() == 8)
        .await;
    restart(15).await;
    let last = pay(&anvil, to, 8).await;
    anvil.mine(10).await;
    shop.until("it was followed anew", async |_| {
        receiver.events().len() == 10
    })
    .await;
    // Nothing is told twice, and the books are right.
    assert_eq!(reconcile(&shop, &anvil).await, counted(0, 0));
    assert_eq!(receiver.events().len(), 10, "{:?}", receiver.events());
    let stages = receiver.stages();
    for hash in [coin, later, last] {
        assert_eq!(stages[&value(&hash)], [confirmed(), finalized()]);
    }
}
