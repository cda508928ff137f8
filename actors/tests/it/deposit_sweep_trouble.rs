//! Sweeps that cannot go on as they began, on anvil: what they hold up, how they end, and that nothing is sent twice.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use covault_actors::{
    chain_rpc::FollowPolicy,
    gateway::{Caller, VaultScope},
    operations::{
        AddSweepAsset, ConfigureSweep, CreateDepositWallet, RemoveSweepAsset, SetSweepRules,
    },
    store::{Batch, CommitError, KeySpace, Precondition, Scan, Store},
    testing::StoreDouble,
};
use covault_core::{
    amount::U256,
    schema::{
        admin::{
            AddSweepAssetRequest, ConfigureSweepRequest, RemoveSweepAssetRequest,
            SetSweepRulesRequest,
        },
        wire,
    },
    token::TokenKind,
};
use serde_json::json;

use crate::{
    backup::{back_up, let_in, restored},
    deposit_chain::{Receiver, Shop, TARGET, USDT, chains, node, pay, pay_token, policy, world},
    deposit_sweeps::*,
    evm_anvil::Way,
    held_store::HeldStore,
    tokens::{make, new_token},
    world::{CHAIN, admin, call, vault},
};

/// Sweeps the token no longer.
async fn remove_token(shop: &Shop) {
    remove(shop, USDT).await;
}

async fn remove(shop: &Shop, contract: &str) {
    let remove = RemoveSweepAssetRequest {
        token: shop.token.clone(),
        network: "EVM".into(),
        chain_id: CHAIN.to_string(),
        contract: contract.into(),
    };
    call::<RemoveSweepAsset>(&shop.gateway, &admin(), remove)
        .await
        .unwrap();
}

#[tokio::test]
async fn sweep__should_let_others_go_first_when_a_topped_up_token_cannot_move() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let (shop, gas_wallet) = open(&anvil, &receiver).await;
    fund(&anvil, &gas_wallet).await;
    let (stuck, emptied) = (shop.address.clone(), shop.deposit_address("order-2").await);
    for address in [&stuck, &emptied] {
        pay_token(&anvil, USDT, address, 300).await;
    }
    let both = async |shop: &Shop, state: &str| {
        let sweeps = status(shop).await.sweeps;
        sweeps.len() == 2 && sweeps.iter().all(|sweep| sweep.state == state)
    };
    shop.until("both are topped up", async |shop| {
        if both(shop, "funding").await {
            return true;
        }
        anvil.mine(1).await;
        false
    })
    .await;
    // It is counted at the end of the look.
    shop.until("it is counted as waiting", async |shop| {
        counts(shop).await.oldest_wait_ms.is_some()
    })
    .await;
    // What is on its way arrives, and nothing follows.
    enable(&shop, false).await;
    until(&shop, &anvil, "it has arrived", async |shop| {
        both(shop, "funded").await
    })
    .await;
    let to = format!("{:0>64}", TARGET.trim_start_matches("0x"));
    let transfer = format!("0xa9059cbb{to}{:064x}", 300);
    let by_hand = json!({"to": USDT, "data": transfer, "gas": "0xfde8"});
    send_as(&anvil, &emptied, by_hand).await;
    anvil.mine(1).await;
    assert_eq!(tokens_of(&anvil, TARGET).await, U256::from(300));
    let frozen = ERC20.replace("63a9059cbb1461005e57", "63a9059cbb1461008457");
    assert_ne!(frozen, ERC20);
    anvil.call("anvil_setCode", json!([USDT, frozen])).await;
    pay(&anvil, &stuck, COIN).await;
    anvil.mine(10).await;
    enable(&shop, true).await;
    until(&shop, &anvil, "the coin is swept", async |shop| {
        shop.world.pass(PAUSE_MS);
        let sweeps = status(shop).await.sweeps;
        coin_of(&anvil, &stuck).await.is_zero() && sweeps.iter().all(|sweep| sweep.address == stuck)
    })
    .await;
    assert_eq!(tokens_of(&anvil, &stuck).await, U256::from(300));
    assert_eq!(sent(&anvil, &emptied).await, 1, "that of the hand");
    assert_eq!(sent(&anvil, &gas_wallet).await, 2);
}

#[tokio::test]
async fn token_that_moves_nothing__should_cost_three_fees_and_hold_up_no_other() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let (shop, _) = open(&anvil, &receiver).await;
    remove(&shop, "").await;
    // Whoever calls `transfer` is told that it went well.
    let idle = ERC20.replace("63a9059cbb1461005e57", "63a9059cbb1461008a57");
    let idle = idle + "5b600160005260206000f3";
    let address = shop.address.clone();
    fund(&anvil, &address).await;
    pay_token(&anvil, USDT, &address, 300).await;
    anvil.call("anvil_setCode", json!([USDT, idle])).await;
    until(&shop, &anvil, "it is held", async |shop| {
        shop.world.pass(PAUSE_MS);
        let sweep = sweep_of(shop, &address).await;
        sweep.is_some_and(|sweep| sweep.state == "held")
    })
    .await;
    for _ in 0..5 {
        shop.world.pass(PAUSE_MS);
        anvil.mine(1).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(sent(&anvil, &address).await, 3);
    assert_eq!(counts(&shop).await.held, 1);
    // What else comes is swept.
    let coin = AddSweepAssetRequest {
        token: shop.token.clone(),
        network: "EVM".into(),
        chain_id: CHAIN.to_string(),
        contract: String::new(),
        minimum: "1".into(),
    };
    call::<AddSweepAsset>(&shop.gateway, &admin(), coin)
        .await
        .unwrap();
    pay(&anvil, &address, COIN).await;
    until(&shop, &anvil, "the coin is swept", async |_| {
        coin_of(&anvil, &address).await.is_zero()
    })
    .await;
    assert_eq!(sweep_of(&shop, &address).await.unwrap().state, "held");
    assert_eq!(tokens_of(&anvil, TARGET).await, U256::ZERO);
}

#[tokio::test]
async fn sweep__should_end_although_its_token_was_removed_meanwhile() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let (shop, gas_wallet) = open(&anvil, &receiver).await;
    fund(&anvil, &gas_wallet).await;
    pay_token(&anvil, USDT, &shop.address, 300).await;
    let address = shop.address.clone();
    shop.until("it is moving", async |shop| {
        let sweep = sweep_of(shop, &address).await;
        if sweep.is_some_and(|sweep| sweep.state == "moving") {
            return true;
        }
        anvil.mine(1).await;
        false
    })
    .await;
    remove_token(&shop).await;
    pay(&anvil, &address, COIN).await;
    until(&shop, &anvil, "the coin is swept", async |shop| {
        shop.world.pass(PAUSE_MS);
        coin_of(&anvil, &address).await.is_zero() && status(shop).await.sweeps.is_empty()
    })
    .await;
    assert_eq!(tokens_of(&anvil, TARGET).await, U256::from(300));
    assert_eq!(sent(&anvil, &address).await, 2);
}

#[tokio::test]
async fn sweeper__should_note_nothing_where_nothing_is_swept_and_find_it_once_it_is() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let (shop, _) = open_in(world(), &anvil, &receiver).await;
    pay(&anvil, &shop.address, COIN).await;
    until(&shop, &anvil, "it is final", async |_| {
        receiver.events().len() == 2
    })
    .await;
    let noted = Scan::prefix(KeySpace::SweepDue, &[], 10);
    assert!(shop.world.store.scan(&noted).await.unwrap().is_empty());
    enable(&shop, true).await;
    until(&shop, &anvil, "it is swept", async |_| {
        coin_of(&anvil, &shop.address).await.is_zero()
    })
    .await;
}

#[tokio::test]
async fn rules__should_find_what_is_due_though_they_are_set_while_the_follower_asks_its_nodes() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let (holds, held, let_go) = <(Arc<AtomicBool>, Arc<AtomicBool>, Arc<AtomicBool>)>::default();
    let way = (Arc::clone(&holds), Arc::clone(&held), Arc::clone(&let_go));
    let url = anvil
        .behind(move |call| {
            let (holds, held, let_go) = &way;
            let asks_for_final = call["params"][0] == "finalized";
            if !asks_for_final || !holds.swap(false, Ordering::SeqCst) {
                return Way::Open;
            }
            held.store(true, Ordering::SeqCst);
            Way::Held(Arc::clone(let_go))
        })
        .await;
    anvil.call("anvil_setCode", json!([USDT, ERC20])).await;
    let shop = Shop::open_in(world(), &receiver, &[&url], 1).await;
    prepare(&shop).await;
    pay(&anvil, &shop.address, COIN).await;
    until(&shop, &anvil, "it is final", async |_| {
        receiver.events().len() == 2
    })
    .await;
    // The follower has read what is swept, and waits for a node.
    holds.store(true, Ordering::SeqCst);
    shop.until("it asks", async |_| held.load(Ordering::SeqCst))
        .await;
    enable(&shop, true).await;
    let_go.store(true, Ordering::SeqCst);
    until(&shop, &anvil, "it is swept", async |_| {
        coin_of(&anvil, &shop.address).await.is_zero()
    })
    .await;
}

#[tokio::test]
async fn sweeper__should_wait_for_the_operator_after_a_restore() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let (mut shop, _) = open(&anvil, &receiver).await;
    let backup = back_up(&shop.gateway).await;
    shop.gateway.stop().await;
    shop.world = restored(&shop.world, &backup).await;
    shop.restart(&[&anvil.url]).await;
    pay(&anvil, &shop.address, COIN).await;
    until(&shop, &anvil, "it is final and noted", async |shop| {
        let noted = Scan::prefix(KeySpace::SweepDue, &[], 10);
        !shop.world.store.scan(&noted).await.unwrap().is_empty()
    })
    .await;
    // Ten looks.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(shop.world.requests().await.is_empty());
    let_in(&shop.gateway, &admin()).await.unwrap();
    until(&shop, &anvil, "it is swept", async |_| {
        coin_of(&anvil, &shop.address).await.is_zero()
    })
    .await;
}

#[tokio::test]
async fn vault__should_admit_a_request_of_a_sweep_once() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let mut slow = world();
    let store = HeldStore::new(Arc::clone(&slow.store));
    store.hold.send_replace(false);
    slow.store = Arc::clone(&store) as _;
    let (mut shop, _) = open_in(slow, &anvil, &receiver).await;
    enable(&shop, true).await;
    // From now on nobody waits for long, and the store takes no request.
    shop.world.settings.command_timeout_ms = 500;
    shop.restart(&[&anvil.url]).await;
    store.hold.send_replace(true);
    pay(&anvil, &shop.address, COIN).await;
    until(&shop, &anvil, "it is asked for", async |_| {
        *store.handed.borrow() == 1
    })
    .await;
    // It is asked for again as soon as the first answer is late.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(*store.handed.borrow(), 1);
    store.hold.send_replace(false);
    until(&shop, &anvil, "it is swept", async |_| {
        coin_of(&anvil, &shop.address).await.is_zero()
    })
    .await;
    assert_eq!(shop.world.requests().await.len(), 1);
    assert_eq!(sent(&anvil, &shop.address).await, 1);
}

#[tokio::test]
async fn sweep__should_end_as_swept_where_blocks_are_final_before_they_are_deep() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    // Final blocks are six below the newest.
    let deep = FollowPolicy {
        confirmations: Some(15),
        ..policy()
    };
    let shop = Shop::open_following(&receiver, &[&anvil.url], deep).await;
    prepare(&shop).await;
    enable(&shop, true).await;
    pay(&anvil, &shop.address, COIN).await;
    until(&shop, &anvil, "it is swept", async |shop| {
        let status = status(shop).await;
        let reasons = status.sweeps.iter().map(|sweep| sweep.reason.as_str());
        assert_eq!(reasons.collect::<String>(), "", "it is never paused");
        status.totals.iter().any(|total| total.sweeps == 1)
    })
    .await;
}

#[tokio::test]
async fn sweep__should_let_others_go_first_when_a_token_gives_no_balance() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let (shop, gas_wallet) = open(&anvil, &receiver).await;
    fund(&anvil, &gas_wallet).await;
    pay_token(&anvil, USDT, &shop.address, 300).await;
    let address = shop.address.clone();
    until(&shop, &anvil, "it is topped up", async |shop| {
        let sweep = sweep_of(shop, &address).await;
        sweep.is_some_and(|sweep| sweep.state == "funding")
    })
    .await;
    let silent = ERC20.replace("6370a0823114610077", "6370a0823114610084");
    assert_ne!(silent, ERC20);
    anvil.call("anvil_setCode", json!([USDT, silent])).await;
    pay(&anvil, &address, COIN).await;
    until(&shop, &anvil, "the coin is swept", async |shop| {
        shop.world.pass(PAUSE_MS);
        coin_of(&anvil, TARGET).await > U256::ZERO
    })
    .await;
}

#[tokio::test]
async fn token__should_not_be_swept_without_max_gas_price_though_it_was_added_later() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let (shop, gas_wallet) = open_in(world(), &anvil, &receiver).await;
    fund(&anvil, &gas_wallet).await;
    remove_token(&shop).await;
    let change = SetSweepRulesRequest {
        enabled: Some(true),
        max_gas_price: Some(String::new()),
        ..Default::default()
    };
    rules(&shop, change).await.unwrap();
    let add = AddSweepAssetRequest {
        token: shop.token.clone(),
        network: "EVM".into(),
        chain_id: CHAIN.to_string(),
        contract: USDT.into(),
        minimum: "1".into(),
    };
    call::<AddSweepAsset>(&shop.gateway, &admin(), add)
        .await
        .unwrap();
    pay_token(&anvil, USDT, &shop.address, 300).await;
    until(&shop, &anvil, "it waits", async |shop| {
        let sweep = sweep_of(shop, &shop.address).await;
        sweep.is_some_and(|sweep| sweep.reason.contains("maxGasPrice is not set"))
    })
    .await;
    // What waits because an operator has switched it off is no trouble.
    shop.until("it is counted", async |shop| counts(shop).await.paused == 1)
        .await;
    enable(&shop, false).await;
    shop.until("nobody waits for it", async |shop| {
        let counts = counts(shop).await;
        counts.paused == 0 && counts.oldest_wait_ms.is_none()
    })
    .await;
    assert_eq!(sent(&anvil, &gas_wallet).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_rows__should_hold_up_neither_other_wallets_nor_the_follower() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let (shop, gas_wallet) = open(&anvil, &receiver).await;
    fund(&anvil, &gas_wallet).await;
    let rows = async |space: KeySpace| {
        let all = Scan::prefix(space, &[], 10);
        shop.world.store.scan(&all).await.unwrap()
    };
    let (own_rules, _) = rows(KeySpace::SweepRules).await.remove(0);
    // Another token, whose deposit waits for cheaper gas.
    let other = make(&shop.gateway, new_token("other", TokenKind::Sweep)).await;
    let other = other.token.unwrap().id;
    let vault = vault(&shop.gateway, "main").await;
    let configure = ConfigureSweepRequest {
        token: other.clone(),
        network: "EVM".into(),
        vault_uuid: Some(vault.to_string()),
        target: Some(TARGET.into()),
        ..Default::default()
    };
    call::<ConfigureSweep>(&shop.gateway, &admin(), configure)
        .await
        .unwrap();
    let coin = AddSweepAssetRequest {
        token: other.clone(),
        network: "EVM".into(),
        chain_id: CHAIN.to_string(),
        contract: String::new(),
        minimum: "1".into(),
    };
    call::<AddSweepAsset>(&shop.gateway, &admin(), coin)
        .await
        .unwrap();
    let waiting = SetSweepRulesRequest {
        token: other.clone(),
        network: "EVM".into(),
        chain_id: CHAIN.to_string(),
        enabled: Some(true),
        max_gas_price: Some("1".into()),
        ..Default::default()
    };
    call::<SetSweepRules>(&shop.gateway, &admin(), waiting)
        .await
        .unwrap();
    let caller = Caller {
        token: other.parse().unwrap(),
        vaults: VaultScope::All,
        admin: None,
        ..admin()
    };
    let request = wire::CreateDepositWalletRequest {
        network: "EVM".into(),
        r#ref: "order-1".into(),
        ..Default::default()
    };
    let made = call::<CreateDepositWallet>(&shop.gateway, &caller, request).await;
    let waiting = made.unwrap().address;
    pay(&anvil, &waiting, COIN).await;
    until(&shop, &anvil, "it waits", async |_| {
        rows(KeySpace::Sweep).await.len() == 1
    })
    .await;
    // Neither its rules nor its sweep can be read from now on.
    let mut broken = Batch::new();
    let rules = rows(KeySpace::SweepRules).await;
    let rules = rules.into_iter().filter(|(key, _)| *key != own_rules);
    for (key, _) in rules.chain(rows(KeySpace::Sweep).await) {
        broken.put(key, Precondition::Any, b"no row".to_vec());
    }
    shop.world.store.commit(broken).await.unwrap();
    pay(&anvil, &shop.address, COIN).await;
    until(&shop, &anvil, "the shop's is swept", async |_| {
        coin_of(&anvil, &shop.address).await.is_zero()
    })
    .await;
    // Operators are told of the wallet whose rules cannot be read.
    shop.until("it is counted", async |shop| counts(shop).await.failed == 1)
        .await;
    // Whether this is a top-up its sweep would say.
    send_as(&anvil, &gas_wallet, json!({"to": waiting, "value": "0x7"})).await;
    anvil.mine(1).await;
    let hash = pay(&anvil, &shop.address, 9).await;
    until(&shop, &anvil, "what comes after it is told", async |_| {
        let told = receiver.events();
        told.iter().any(|event| event["tx_hash"] == hash)
    })
    .await;
    assert_eq!(sent(&anvil, &waiting).await, 0);
}

/// A store whose power goes at the first commit with a row of a kind, such as a sweep, before it or right after.
pub struct SweepCut {
    inner: Arc<dyn Store>,
    space: KeySpace,
    is_before: bool,
    is_off: AtomicBool,
}

impl SweepCut {
    pub fn new(inner: &Arc<dyn Store>, is_before: bool) -> Arc<Self> {
        Self::at(inner, KeySpace::Sweep, is_before)
    }

    pub fn at(inner: &Arc<dyn Store>, space: KeySpace, is_before: bool) -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::clone(inner),
            space,
            is_before,
            is_off: AtomicBool::new(false),
        })
    }

    pub fn is_off(&self) -> bool {
        self.is_off.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl StoreDouble for SweepCut {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        let mut writes = batch.writes().iter();
        let is_step = writes.any(|write| write.key.space == self.space);
        let was_off = match is_step {
            true => self.is_off.swap(true, Ordering::SeqCst),
            false => self.is_off.load(Ordering::SeqCst),
        };
        if !(was_off || is_step && self.is_before) {
            self.inner.commit(batch).await?;
        }
        match was_off || is_step {
            true => Err(CommitError::Unavailable("no power".into())),
            false => Ok(()),
        }
    }
}

#[tokio::test]
async fn sweep__should_be_made_once_when_the_process_ends_before_and_after_each_of_its_steps() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let (mut shop, gas_wallet) = open(&anvil, &receiver).await;
    fund(&anvil, &gas_wallet).await;
    pay_token(&anvil, USDT, &shop.address, 300).await;
    let address = shop.address.clone();
    let mut ends = 0;
    loop {
        shop.gateway.stop().await;
        let store = SweepCut::new(&shop.world.store, ends % 2 == 0);
        let chains = chains(&shop.world, &[&anvil.url], 1);
        shop.gateway = shop.world.start_with(Arc::clone(&store) as _, chains).await;
        let is_swept = async |shop: &Shop| {
            tokens_of(&anvil, TARGET).await == U256::from(300)
                && status(shop).await.sweeps.is_empty()
        };
        until(&shop, &anvil, "its next step", async |shop| {
            store.is_off() || is_swept(shop).await
        })
        .await;
        if !store.is_off() {
            break;
        }
        ends += 1;
    }
    // It begins, is topped up, the coin arrives, it moves, and is over.
    assert_eq!(ends, 10);
    assert_eq!(tokens_of(&anvil, TARGET).await, U256::from(300));
    assert_eq!(
        (
            sent(&anvil, &address).await,
            sent(&anvil, &gas_wallet).await
        ),
        (1, 1)
    );
}
