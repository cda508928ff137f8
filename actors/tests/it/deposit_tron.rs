//! Deposits and watched addresses on TRON, against a double of its nodes with the shapes of java-tron.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use covault_actors::{
    chain_rpc::{ChainClients, ChainEndpoints, ChainKey, FollowPolicy},
    gateway::{Caller, Gateway, VaultScope},
    operations::{AddSweepAsset, AddWatchAddress, ConfigureSweep, CreateDepositWallet},
};
use covault_core::{
    deposit::transfer::FollowedChain,
    networks::Network,
    schema::{
        admin::{AddSweepAssetRequest, ConfigureSweepRequest},
        wire,
    },
    token::TokenKind,
};
use serde_json::{Value, json};

use crate::{
    deposit_chain::{Receiver, confirmed, finalized, reverted, world},
    http_double::{self, HttpResponse},
    tokens::{make, new_token},
    tron_chain::{TRANSFER, Transaction, TronChain, USDT, account, address},
    world::*,
};

const WATCHED: &str = "TJRabPrwbZy45sbavfcjinPJC18kjpRTv8";
const OTHER: [u8; 20] = [9; 20];
fn id(number: u8) -> String {
    hex::encode([number; 32])
}

/// TRX from one to another.
fn trx(number: u8, from: [u8; 20], to: [u8; 20], result: &str) -> Transaction {
    let value = json!({"amount": 5, "owner_address": address(from), "to_address": address(to)});
    let contract = json!([{"type": "TransferContract", "parameter": {"value": value}}]);
    let transaction = json!({"txID": id(number), "ret": [{"contractRet": result}], "raw_data": {"contract": contract}});
    (transaction, json!({"id": id(number)}))
}

/// A call that says that a token was transferred, and passes on TRX.
fn call(number: u8, token: &str, to: [u8; 20], more: Value) -> Transaction {
    let word = |account: [u8; 20]| format!("{}{}", "00".repeat(12), hex::encode(account));
    let log = json!([{"address": hex::encode(account(token)), "topics": [TRANSFER, word(OTHER), word(to)],
        "data": format!("{:064x}", 7)}]);
    let contract = json!([{"type": "TriggerSmartContract", "parameter": {"value": {}}}]);
    let transaction = json!({"txID": id(number), "ret": [{"contractRet": "SUCCESS"}], "raw_data": {"contract": contract}});
    let mut info = json!({"id": id(number), "log": log});
    for (name, value) in more.as_object().unwrap() {
        info[name] = value.clone();
    }
    (transaction, info)
}

struct Watcher {
    chain: Arc<Mutex<TronChain>>,
    gateway: Gateway,
    receiver: Receiver,
    /// Of the sweep token.
    caller: Caller,
    now_ms: u64,
}

impl Watcher {
    async fn start() -> Self {
        Self::start_behind(0).await
    }

    /// The clock of those who make blocks is behind by so many milliseconds.
    async fn start_behind(behind_ms: u64) -> Self {
        let world = world();
        let now_ms = world.clock_ms() - behind_ms;
        let chain: Arc<Mutex<TronChain>> = Arc::default();
        for _ in 0..5 {
            chain.lock().unwrap().mine(0, now_ms, vec![]);
        }
        chain.lock().unwrap().solid = 2;
        let node = Arc::clone(&chain);
        let url = http_double::start(move |request| {
            let said = node
                .lock()
                .unwrap()
                .answer(request.target(), &request.json());
            Some(match said {
                Some(said) => HttpResponse::json(200, &said),
                None => HttpResponse::json(405, &json!({})),
            })
        })
        .await;
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
            ..ChainEndpoints::new(vec![url])
        };
        let key = ChainKey::of(Network::Tron, None);
        let chains = ChainClients::connect(&[(key, endpoints)].into(), &world.ports()).unwrap();
        let gateway = world.start_with(Arc::clone(&world.store), chains).await;
        let receiver = Receiver::start().await;
        let token = make(&gateway, new_token("watcher", TokenKind::Sweep)).await;
        let token = token.token.unwrap();
        let request = ConfigureSweepRequest {
            token: token.id.clone(),
            network: "TRON".into(),
            webhook: Some(receiver.url.clone()),
            ..Default::default()
        };
        crate::world::call::<ConfigureSweep>(&gateway, &admin(), request)
            .await
            .unwrap();
        let caller = Caller {
            token: token.id.parse().unwrap(),
            vaults: VaultScope::All,
            admin: None,
            ..admin()
        };
        let request = wire::AddWatchAddressRequest {
            network: "TRON".into(),
            address: WATCHED.into(),
        };
        crate::world::call::<AddWatchAddress>(&gateway, &caller, request)
            .await
            .unwrap();
        Self {
            chain,
            gateway,
            receiver,
            caller,
            now_ms,
        }
    }

    /// The address of a new deposit wallet of the token, which takes TRX and this token.
    async fn deposit_wallet(&self, reference: &str, contract: &str) -> String {
        let vault = vault(&self.gateway, "main").await;
        let token = self.caller.token.to_string();
        let request = ConfigureSweepRequest {
            token: token.clone(),
            network: "TRON".into(),
            vault_uuid: Some(vault.to_string()),
            target: Some(WATCHED.into()),
            ..Default::default()
        };
        crate::world::call::<ConfigureSweep>(&self.gateway, &admin(), request)
            .await
            .unwrap();
        let asset = AddSweepAssetRequest {
            token,
            network: "TRON".into(),
            contract: contract.into(),
            minimum: "1".into(),
            ..Default::default()
        };
        crate::world::call::<AddSweepAsset>(&self.gateway, &admin(), asset)
            .await
            .unwrap();
        let request = wire::CreateDepositWalletRequest {
            network: "TRON".into(),
            r#ref: reference.into(),
            ..Default::default()
        };
        let made = crate::world::call::<CreateDepositWallet>(&self.gateway, &self.caller, request);
        made.await.unwrap().address
    }

    fn mine(&self, fork: u8, transactions: Vec<Transaction>) {
        self.chain
            .lock()
            .unwrap()
            .mine(fork, self.now_ms, transactions);
    }

    async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..2_400 {
            if is_so(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let follows = self.gateway.follows();
        panic!(
            "not within two minutes: {what}; {follows:?} {:?}",
            self.receiver.events()
        );
    }

    fn head(&self) -> u64 {
        let follows = self.gateway.follows();
        follows
            .get(&FollowedChain::Tron)
            .map_or(0, |counts| counts.head)
    }
}

fn of(number: u8, index: &str) -> (String, String) {
    (id(number), index.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watched_addresses__should_be_told_of_trx_and_usdt_in_both_directions() {
    let watcher = Watcher::start().await;
    watcher
        .until("blocks are followed", |it| it.head() == 4)
        .await;
    let mine = account(WATCHED);
    let internal = |rejected: bool| {
        json!({"internal_transactions": [{"caller_address": address(OTHER), "transferTo_address": address(mine),
            "callValueInfo": [{"callValue": 5}], "rejected": rejected, "note": hex::encode("call")}]})
    };
    watcher.mine(
        0,
        vec![
            trx(1, OTHER, mine, "SUCCESS"),
            trx(2, mine, OTHER, "SUCCESS"),
            trx(3, mine, mine, "SUCCESS"),
            trx(4, OTHER, mine, "OUT_OF_ENERGY"),
            call(5, USDT, mine, json!({})),
            call(6, WATCHED, mine, json!({})),
            call(7, USDT, mine, json!({"result": "FAILED"})),
            call(8, WATCHED, OTHER, internal(false)),
            call(9, WATCHED, OTHER, internal(true)),
        ],
    );
    watcher.mine(0, vec![]);
    let told = [
        of(1, "value"),
        of(2, "value"),
        of(5, "log-0"),
        of(8, "internal-0"),
    ];
    watcher
        .until("all are confirmed", |it| it.receiver.events().len() >= 4)
        .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let expected: BTreeMap<_, _> = told.clone().map(|of| (of, vec![confirmed()])).into();
    assert_eq!(watcher.receiver.stages(), expected);
    for event in watcher.receiver.events() {
        assert_eq!(
            event["is_send"],
            json!(event["tx_hash"] == id(2)),
            "{event}"
        );
        assert_eq!(
            (&event["address"], &event["ref"]),
            (&json!(WATCHED), &json!(""))
        );
        let is_usdt = event["tx_hash"] == id(5);
        let token = if is_usdt { json!(USDT) } else { Value::Null };
        assert_eq!(event["token_address"], token);
    }
    // Solid blocks lag behind.
    watcher.chain.lock().unwrap().solid = 5;
    watcher
        .until("all are final", |it| it.receiver.events().len() >= 8)
        .await;
    let expected: BTreeMap<_, _> = told.map(|of| (of, vec![confirmed(), finalized()])).into();
    assert_eq!(watcher.receiver.stages(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deposit_wallet__should_be_told_of_trx_and_named_tokens_with_its_reference() {
    /// Named by the token's owner; that of the watched addresses is not.
    const NAMED: &str = "TEkxiTehnzSmSe2XqrBj4w32RUN966rdz8";
    let watcher = Watcher::start().await;
    let wallet = watcher.deposit_wallet("order-7", NAMED).await;
    watcher
        .until("blocks are followed", |it| it.head() == 4)
        .await;
    let own = account(&wallet);
    watcher.mine(
        0,
        vec![
            trx(1, OTHER, own, "SUCCESS"),
            call(2, NAMED, own, json!({})),
            call(3, USDT, own, json!({})),
            trx(4, OTHER, own, "OUT_OF_ENERGY"),
            call(5, NAMED, own, json!({"result": "FAILED"})),
            trx(6, own, account(WATCHED), "SUCCESS"),
        ],
    );
    watcher.mine(0, vec![]);
    watcher.chain.lock().unwrap().solid = 5;
    // The last one also arrives at the address that is watched.
    watcher
        .until("all are final", |it| it.receiver.events().len() >= 8)
        .await;
    let events = watcher.receiver.events();
    let of_wallet = events
        .iter()
        .filter(|event| event["address"] == json!(wallet));
    let mut told: Vec<_> = of_wallet
        .map(|event| {
            assert_eq!(event["ref"], "order-7", "{event}");
            let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
            let is_send = event["is_send"].as_bool().unwrap();
            (
                text("tx_hash"),
                text("event"),
                text("token_address"),
                text("amount"),
                is_send,
            )
        })
        .collect();
    told.sort();
    let mut expected = Vec::new();
    for (number, token, amount, is_send) in [
        (1, "", "5", false),
        (2, NAMED, "7", false),
        (6, "", "5", true),
    ] {
        for event in [confirmed(), finalized()] {
            expected.push((
                id(number),
                event,
                token.to_owned(),
                amount.to_owned(),
                is_send,
            ));
        }
    }
    assert_eq!(told, expected);
    assert_eq!(events.len(), 8, "{events:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watched_addresses__should_be_told_when_a_fork_takes_a_transfer_back() {
    let watcher = Watcher::start().await;
    watcher
        .until("blocks are followed", |it| it.head() == 4)
        .await;
    watcher.mine(0, vec![trx(1, OTHER, account(WATCHED), "SUCCESS")]);
    watcher.mine(0, vec![]);
    watcher
        .until("it is confirmed", |it| it.receiver.events().len() == 1)
        .await;
    watcher.chain.lock().unwrap().blocks.truncate(5);
    for _ in 0..3 {
        watcher.mine(1, vec![]);
    }
    watcher
        .until("it is taken back", |it| it.receiver.events().len() == 2)
        .await;
    let expected = BTreeMap::from([(of(1, "value"), vec![confirmed(), reverted()])]);
    assert_eq!(watcher.receiver.stages(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payment_right_after_the_watch__should_be_told_though_the_clocks_differ() {
    let watcher = Watcher::start_behind(10_000).await;
    watcher
        .until("blocks are followed", |it| it.head() == 4)
        .await;
    watcher.mine(0, vec![trx(1, OTHER, account(WATCHED), "SUCCESS")]);
    watcher.mine(0, vec![]);
    watcher
        .until("it is confirmed", |it| it.receiver.events().len() == 1)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newest_block_of_ten_mebibytes__should_not_stop_the_chain() {
    let watcher = Watcher::start().await;
    watcher.chain.lock().unwrap().full = Some(10 << 20);
    watcher
        .until("blocks are followed", |it| it.head() == 4)
        .await;
    watcher.mine(0, vec![trx(1, OTHER, account(WATCHED), "SUCCESS")]);
    watcher.mine(0, vec![]);
    watcher
        .until("it is confirmed", |it| it.receiver.events().len() == 1)
        .await;
}
