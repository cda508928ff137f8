//! Deposits on TRON that are swept: addresses that are not activated, what is burnt, and that nothing is sent twice.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use covault_actors::{
    chain_rpc::{ChainClients, ChainEndpoints, ChainKey, FollowPolicy},
    gateway::{Caller, Gateway, VaultScope},
    operations::{
        AddSweepAsset, ConfigureSweep, CreateDepositWallet, GetSweepStatus, RemoveSweepAsset,
        RetrySweeps, SetSweepRules,
    },
    store::KeySpace,
};
use covault_core::{
    deposit::transfer::FollowedChain,
    networks::Network,
    schema::{
        admin::{
            AddSweepAssetRequest, ConfigureSweepRequest, GetSweepStatusRequest,
            RemoveSweepAssetRequest, RetrySweepsRequest, SetSweepRulesRequest, Sweep, SweepStatus,
        },
        wire,
    },
    token::TokenKind,
};
use serde_json::Value;

use crate::{
    deposit_chain::{Receiver, world},
    deposit_sweep_trouble::SweepCut,
    deposit_sweeps::PAUSE_MS,
    tokens::{make, new_token},
    tron_bank::{ACTIVATION, Bank, ENERGY_PRICE},
    tron_chain::{USDT, account},
    world::*,
};

pub const TREASURY: &str = "TJRabPrwbZy45sbavfcjinPJC18kjpRTv8";
pub const TRX: u64 = 1_000_000;

/// A shop on TRON that takes TRX and USDT.
pub struct TronShop {
    pub world: World,
    pub gateway: Gateway,
    bank: Arc<Mutex<Bank>>,
    url: String,
    pub receiver: Receiver,
    caller: Caller,
    pub gas_wallet: String,
}

fn chains(world: &World, url: &str) -> ChainClients {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let endpoints = ChainEndpoints {
        // A busy machine is not a node that is silent.
        timeout_ms: 30_000,
        deposits: Some(FollowPolicy {
            confirmations: Some(2),
            final_after: None,
            poll_ms: 50,
            ..Default::default()
        }),
        ..ChainEndpoints::new(vec![url.to_owned()])
    };
    let key = ChainKey::of(Network::Tron, None);
    ChainClients::connect(&[(key, endpoints)].into(), &world.ports()).unwrap()
}

impl TronShop {
    /// Nothing is swept yet, and the gas wallet has nothing.
    pub async fn open() -> Self {
        let world = world();
        let (bank, url) = Bank::start(world.clock_ms()).await;
        bank.lock().unwrap().endow(TREASURY, 0);
        let gateway = world
            .start_with(Arc::clone(&world.store), chains(&world, &url))
            .await;
        let receiver = Receiver::start().await;
        let token = make(&gateway, new_token("shop", TokenKind::Sweep)).await;
        let token = token.token.unwrap().id;
        let vault = vault(&gateway, "main").await;
        let gas_wallet = wallet(&gateway, vault, wire::NetworkType::Tron)
            .await
            .address;
        let request = ConfigureSweepRequest {
            token: token.clone(),
            network: "TRON".into(),
            vault_uuid: Some(vault.to_string()),
            target: Some(TREASURY.into()),
            webhook: Some(receiver.url.clone()),
            ..Default::default()
        };
        call::<ConfigureSweep>(&gateway, &admin(), request)
            .await
            .unwrap();
        let caller = Caller {
            token: token.parse().unwrap(),
            vaults: VaultScope::All,
            admin: None,
            ..admin()
        };
        let shop = Self {
            world,
            gateway,
            bank,
            url,
            receiver,
            caller,
            gas_wallet,
        };
        for (contract, minimum) in [("", TRX), (USDT, 100)] {
            let asset = AddSweepAssetRequest {
                token: token.clone(),
                network: "TRON".into(),
                contract: contract.into(),
                minimum: minimum.to_string(),
                ..Default::default()
            };
            call::<AddSweepAsset>(&shop.gateway, &admin(), asset)
                .await
                .unwrap();
        }
        shop
    }

    pub async fn enable(&self, enabled: bool) {
        self.rules(SetSweepRulesRequest {
            enabled: Some(enabled),
            gas_wallet: Some(self.gas_wallet.clone()),
            max_gas_price: Some("500".into()),
            max_top_up: Some((50 * TRX).to_string()),
            ..Default::default()
        })
        .await;
    }

    pub async fn rules(&self, change: SetSweepRulesRequest) {
        let request = SetSweepRulesRequest {
            token: self.caller.token.to_string(),
            network: "TRON".into(),
            ..change
        };
        call::<SetSweepRules>(&self.gateway, &admin(), request)
            .await
            .unwrap();
    }

    pub async fn deposit_wallet(&self, reference: &str) -> String {
        let request = wire::CreateDepositWalletRequest {
            network: "TRON".into(),
            r#ref: reference.into(),
            ..Default::default()
        };
        let made = call::<CreateDepositWallet>(&self.gateway, &self.caller, request).await;
        made.unwrap().address
    }

    pub fn bank(&self) -> MutexGuard<'_, Bank> {
        self.bank.lock().unwrap()
    }

    pub fn trx(&self, of: &str) -> u64 {
        self.bank().trx(of)
    }

    pub fn usdt(&self, of: &str) -> u64 {
        self.bank().usdt(of)
    }

    pub fn mine(&self) {
        let now_ms = self.world.clock_ms();
        self.bank().mine(now_ms);
    }

    pub async fn status(&self) -> SweepStatus {
        let token = self.caller.token.to_string();
        let request = GetSweepStatusRequest { token };
        let status = call::<GetSweepStatus>(&self.gateway, &admin(), request).await;
        status.unwrap().chains.remove(0)
    }

    pub async fn sweep_of(&self, address: &str) -> Option<Sweep> {
        let sweeps = self.status().await.sweeps;
        sweeps.into_iter().find(|sweep| sweep.address == address)
    }

    pub async fn waits_for(&self, address: &str, reason: &str) -> bool {
        let sweep = self.sweep_of(address).await;
        sweep.is_some_and(|sweep| sweep.reason.contains(reason))
    }

    /// Waits for something while blocks are made.
    pub async fn until(&self, what: &str, is_so: impl AsyncFn(&Self) -> bool) {
        for _ in 0..2_400 {
            self.mine();
            if is_so(self).await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("not within two minutes: {what}; {:?}", self.status().await);
    }

    /// Its process ends and begins again.
    pub async fn restart(&mut self) {
        self.gateway.stop().await;
        let chains = chains(&self.world, &self.url);
        let store = Arc::clone(&self.world.store);
        self.gateway = self.world.start_with(store, chains).await;
    }

    /// Some looks of the sweeper pass.
    pub async fn settle(&self) {
        for _ in 0..20 {
            self.mine();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What an address has sent: TRX and USDT.
    pub fn sent(&self, from: &str) -> (usize, usize) {
        let bank = self.bank();
        let from = account(from);
        let all = bank.taken.iter().filter(|sent| sent.from == from);
        let usdt = all.clone().filter(|sent| sent.is_usdt).count();
        (all.count() - usdt, usdt)
    }

    /// Events of TRX that arrived at an address.
    pub fn told_of_trx(&self, address: &str) -> usize {
        let is_it = |event: &&Value| {
            event["address"] == address
                && event["token_address"].is_null()
                && event["is_send"] == false
        };
        self.receiver.events().iter().filter(is_it).count()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tron_sweeps__should_activate_what_got_only_tokens_and_move_all_to_the_unit() {
    let shop = TronShop::open().await;
    shop.enable(true).await;
    let (tokens, coin) = (
        shop.deposit_wallet("order-1").await,
        shop.deposit_wallet("order-2").await,
    );
    let dust = shop.deposit_wallet("order-3").await;
    shop.bank().pay(&tokens, 300, true);
    shop.bank().pay(&coin, 50 * TRX, false);
    shop.bank().pay(&dust, 99, true);
    shop.until("TRX is swept and the gas wallet is empty", async |shop| {
        let is_swept = shop.trx(TREASURY) > 0;
        is_swept && shop.waits_for(&tokens, "gas wallet cannot pay").await
    })
    .await;
    // It had bytes for nothing: nothing was burnt, and nothing is left.
    assert_eq!(shop.trx(TREASURY), 50 * TRX);
    assert_eq!(shop.trx(&coin), 0);
    // As much as the top-up, and not what the new account costs once more.
    let energy = 130_285 * ENERGY_PRICE;
    let top_up = 273_598 * ENERGY_PRICE + 350_000;
    shop.bank().endow(&shop.gas_wallet, top_up + ACTIVATION - 1);
    shop.world.pass(PAUSE_MS);
    shop.settle().await;
    assert!(shop.waits_for(&tokens, "gas wallet cannot pay").await);
    assert_eq!(shop.sent(&shop.gas_wallet), (0, 0));
    shop.bank().endow(&shop.gas_wallet, 100 * TRX);
    let burnt = shop.bank().burnt;
    shop.until("USDT is swept", async |shop| {
        let is_paused = shop
            .sweep_of(&tokens)
            .await
            .is_some_and(|sweep| sweep.state == "paused");
        if is_paused {
            shop.world.pass(PAUSE_MS);
        }
        shop.usdt(TREASURY) == 300 && shop.status().await.sweeps.is_empty()
    })
    .await;
    assert_eq!(shop.sent(&shop.gas_wallet), (1, 0));
    // The rest of the top-up is above the minimum of TRX, and nobody paid it: it is not swept.
    assert_eq!(shop.sent(&tokens), (0, 1));
    assert_eq!(shop.sent(&dust), (0, 0));
    assert_eq!(shop.usdt(&tokens), 0);
    let gas_left = shop.trx(&shop.gas_wallet);
    assert_eq!(gas_left, 100 * TRX - top_up - ACTIVATION);
    let burnt = shop.bank().burnt - burnt;
    assert_eq!(burnt, ACTIVATION + energy);
    // To the unit: what there was is at the treasury, is left, or was burnt.
    let left = shop.trx(&tokens) + gas_left + shop.trx(TREASURY) + burnt;
    assert_eq!(left, 150 * TRX);
    // A top-up is no deposit.
    assert_eq!(shop.told_of_trx(&tokens), 0);
    assert!(shop.told_of_trx(&coin) > 0);
    let totals = shop.status().await.totals;
    let [coin, token] = &totals[..] else {
        panic!("{totals:?}");
    };
    assert_eq!((coin.sweeps, coin.amount.as_str()), (1, "50000000"));
    assert_eq!((token.sweeps, token.amount.as_str()), (1, "300"));
    assert_eq!(token.top_ups, top_up.to_string());
    assert_eq!(token.fees, energy.to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tron_sweeps__should_find_what_was_paid_before_and_leave_what_burns_too_much() {
    let shop = TronShop::open().await;
    let (tokens, coin) = (
        shop.deposit_wallet("order-1").await,
        shop.deposit_wallet("order-2").await,
    );
    shop.bank().endow(&shop.gas_wallet, 100 * TRX);
    shop.bank().pay(&tokens, 300, true);
    shop.bank().pay(&coin, 5 * TRX, false);
    shop.until("both are final", async |shop| {
        shop.receiver.events().len() >= 4
    })
    .await;
    // Ten times as much as anything takes.
    shop.bank().energy_times = 10;
    shop.enable(true).await;
    shop.until("TRX is swept, USDT waits", async |shop| {
        shop.trx(TREASURY) == 5 * TRX && shop.waits_for(&tokens, "above the accepted maximum").await
    })
    .await;
    shop.bank().energy_times = 3;
    shop.rules(SetSweepRulesRequest {
        max_top_up: Some((20 * TRX).to_string()),
        ..Default::default()
    })
    .await;
    shop.world.pass(PAUSE_MS);
    shop.until("the top-up is too large", async |shop| {
        shop.waits_for(&tokens, "more than maxTopUp").await
    })
    .await;
    shop.bank().energy_times = 1;
    shop.rules(SetSweepRulesRequest {
        max_gas_price: Some("99".into()),
        ..Default::default()
    })
    .await;
    shop.world.pass(PAUSE_MS);
    shop.until("energy is too dear", async |shop| {
        shop.waits_for(&tokens, "a unit of gas costs 100, more than maxGasPrice")
            .await
    })
    .await;
    assert_eq!(shop.sent(&shop.gas_wallet), (0, 0));
    shop.enable(true).await;
    shop.world.pass(PAUSE_MS);
    shop.until("USDT is swept", async |shop| shop.usdt(TREASURY) == 300)
        .await;
    assert_eq!(shop.sent(&shop.gas_wallet), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tron_top_up_that_no_block_took__should_be_made_again_once_its_time_is_over() {
    let shop = TronShop::open().await;
    shop.enable(true).await;
    let tokens = shop.deposit_wallet("order-1").await;
    shop.bank().endow(&shop.gas_wallet, 100 * TRX);
    shop.bank().loses = true;
    shop.bank().pay(&tokens, 300, true);
    shop.until("the top-up is sent", async |shop| {
        shop.sent(&shop.gas_wallet) == (1, 0)
    })
    .await;
    shop.settle().await;
    assert_eq!(shop.sent(&shop.gas_wallet), (1, 0), "it can still come");
    shop.bank().loses = false;
    shop.until("USDT is swept", async |shop| {
        if shop.sent(&shop.gas_wallet).0 == 1 {
            shop.world.pass(2_000);
        }
        shop.usdt(TREASURY) == 300 && shop.status().await.sweeps.is_empty()
    })
    .await;
    let taken = shop.bank().taken.clone();
    let [lost, made, moved] = &taken[..] else {
        panic!("{taken:?}");
    };
    assert_eq!((lost.to, lost.amount), (made.to, made.amount));
    assert!(moved.is_usdt);
    assert_eq!(
        shop.trx(&shop.gas_wallet),
        100 * TRX - made.amount - ACTIVATION
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tron_sweep__should_be_made_once_when_the_process_ends_before_and_after_each_of_its_steps()
{
    let mut shop = TronShop::open().await;
    shop.enable(true).await;
    let tokens = shop.deposit_wallet("order-1").await;
    shop.bank().endow(&shop.gas_wallet, 100 * TRX);
    shop.bank().pay(&tokens, 300, true);
    let mut ends = 0;
    loop {
        shop.gateway.stop().await;
        let store = SweepCut::new(&shop.world.store, ends % 2 == 0);
        let chains = chains(&shop.world, &shop.url);
        shop.gateway = shop.world.start_with(Arc::clone(&store) as _, chains).await;
        shop.until("its next step", async |shop| {
            let is_swept = shop.usdt(TREASURY) == 300;
            store.is_off() || is_swept && shop.status().await.sweeps.is_empty()
        })
        .await;
        if !store.is_off() {
            break;
        }
        ends += 1;
    }
    // It begins, is topped up, the coin arrives, it moves, and is over.
    assert_eq!(ends, 10);
    assert_eq!(shop.sent(&shop.gas_wallet), (1, 0));
    assert_eq!(shop.sent(&tokens), (0, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_due__should_be_found_though_the_process_ends_as_sweeping_is_switched_on() {
    let mut shop = TronShop::open().await;
    let coin = shop.deposit_wallet("order-1").await;
    shop.bank().pay(&coin, 5 * TRX, false);
    shop.until("it is final", async |shop| {
        shop.receiver.events().len() >= 2
    })
    .await;
    shop.gateway.stop().await;
    let store = SweepCut::at(&shop.world.store, KeySpace::SweepRules, false);
    let no_follower = ChainClients::default();
    shop.gateway = shop.world.start_with(store as _, no_follower).await;
    let request = SetSweepRulesRequest {
        token: shop.caller.token.to_string(),
        network: "TRON".into(),
        enabled: Some(true),
        gas_wallet: Some(shop.gas_wallet.clone()),
        max_gas_price: Some("500".into()),
        max_top_up: Some((50 * TRX).to_string()),
        ..Default::default()
    };
    let ended = call::<SetSweepRules>(&shop.gateway, &admin(), request).await;
    ended.unwrap_err();
    shop.restart().await;
    shop.until("TRX is swept", async |shop| shop.trx(TREASURY) == 5 * TRX)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wallet_that_sent_more_than_came__should_wait_for_people() {
    let shop = TronShop::open().await;
    shop.enable(true).await;
    let address = shop.deposit_wallet("order-1").await;
    shop.bank().pay_unseen(&address, 100, TREASURY);
    shop.settle().await;
    shop.bank().pay(&address, 100, true);
    shop.until("it waits", async |shop| {
        shop.waits_for(&address, "less than its transfers explain")
            .await
    })
    .await;
    assert_eq!(shop.sent(&shop.gas_wallet), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wallet__should_be_swept_of_its_coin_and_of_each_token_once_in_a_round() {
    let shop = TronShop::open().await;
    shop.enable(true).await;
    shop.rules(SetSweepRulesRequest {
        every_seconds: Some(3_600),
        ..Default::default()
    })
    .await;
    let address = shop.deposit_wallet("order-1").await;
    shop.bank().endow(&shop.gas_wallet, 100 * TRX);
    shop.bank().pay(&address, 5 * TRX, false);
    let is_over = async |shop: &TronShop| shop.status().await.sweeps.is_empty();
    shop.until("TRX is swept", async |shop| {
        shop.trx(TREASURY) == 5 * TRX && is_over(shop).await
    })
    .await;
    // Its token has its turn in the round, and the coin not another one.
    shop.bank().pay(&address, 5 * TRX, false);
    shop.bank().pay(&address, 300, true);
    shop.until("USDT is swept", async |shop| {
        shop.usdt(TREASURY) == 300 && is_over(shop).await
    })
    .await;
    shop.settle().await;
    assert_eq!(shop.trx(TREASURY), 5 * TRX);
    shop.world.pass(3_600_000);
    shop.until("the next round has come", async |shop| {
        shop.trx(TREASURY) > 5 * TRX && is_over(shop).await
    })
    .await;
    assert_eq!(shop.trx(&address), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweep_that_runs_out_of_energy__should_be_sent_three_times_and_again_when_a_person_says_so()
{
    let shop = TronShop::open().await;
    let coin = RemoveSweepAssetRequest {
        token: shop.caller.token.to_string(),
        network: "TRON".into(),
        ..Default::default()
    };
    call::<RemoveSweepAsset>(&shop.gateway, &admin(), coin)
        .await
        .unwrap();
    shop.enable(true).await;
    let tokens = shop.deposit_wallet("order-1").await;
    // Enough for hundreds of transfers: each that fails burns some of it.
    shop.bank().endow(&tokens, 5_000 * TRX);
    shop.bank().energy_part = 3;
    shop.bank().pay(&tokens, 300, true);
    let is_held = async |shop: &TronShop| {
        let state = shop.sweep_of(&tokens).await.map(|sweep| sweep.state);
        // A transaction lives for a minute.
        if state.as_deref() == Some("paused") {
            shop.world.pass(PAUSE_MS);
        }
        state.as_deref() == Some("held")
    };
    let retry = async |address: &str| {
        let request = RetrySweepsRequest {
            token: shop.caller.token.to_string(),
            network: "TRON".into(),
            address: address.to_owned(),
            ..Default::default()
        };
        call::<RetrySweeps>(&shop.gateway, &admin(), request).await
    };
    shop.until("it is held", is_held).await;
    assert_eq!(shop.sent(&tokens), (0, 3));
    // By that call, and not by time: of that nothing passes.
    assert_eq!(retry(&tokens).await.unwrap().retried, 1);
    shop.until("it is sent again", async |shop| {
        shop.sent(&tokens) == (0, 4)
    })
    .await;
    shop.until("it is held again", is_held).await;
    let burnt = shop.bank().burnt;
    for _ in 0..10 {
        shop.world.pass(PAUSE_MS);
        shop.settle().await;
    }
    assert_eq!((shop.sent(&tokens), shop.bank().burnt), ((0, 6), burnt));
    assert!(shop.waits_for(&tokens, "covault sweep retry").await);
    assert!(shop.waits_for(&tokens, "failed on the chain").await);
    let held = shop.gateway.sweeps()[&FollowedChain::Tron].held;
    assert_eq!(held, 1);
    // Of another deposit wallet nothing is held.
    let other = shop.deposit_wallet("order-2").await;
    let problem = retry(&other).await.unwrap_err();
    assert!(
        problem.message().contains("no deposit wallet"),
        "{problem:?}"
    );
    shop.bank().energy_part = 1;
    assert_eq!(retry("").await.unwrap().retried, 1);
    shop.until("it is swept", async |shop| {
        shop.usdt(TREASURY) == 300 && shop.status().await.sweeps.is_empty()
    })
    .await;
    assert_eq!(shop.sent(&tokens), (0, 7));
}
