//! Deposits on a real EVM node, anvil: from a payment to the webhook of the one who takes it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, Ordering},
    },
    time::Duration,
};

use covault_actors::{
    chain_rpc::{ChainClients, ChainEndpoints, ChainKey, FollowPolicy},
    gateway::{Caller, Gateway, VaultScope},
    operations::{
        AddSweepAsset, ConfigureSweep, CreateDepositWallet, ListWebhookEvents, ReplayWebhookEvent,
    },
    webhooks::{TargetRules, WebhookKeys, WebhookParts},
};
use covault_core::{
    deposit::transfer::FollowedChain,
    schema::{
        admin::{
            AddSweepAssetRequest, ConfigureSweepRequest, ListWebhookEventsRequest,
            ReplayWebhookEventRequest,
        },
        wire,
    },
    token::TokenKind,
};
use serde_json::{Value, json};
use tracing_subscriber::filter::LevelFilter;

use crate::{
    evm_anvil::{Anvil, Way},
    http_double::{self, HttpRequest, HttpResponse},
    log::LogCapture,
    tokens::{make, new_token},
    world::*,
};

/// The account of anvil that pays.
pub const PAYER: &str = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";
pub const TARGET: &str = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";
pub const USDT: &str = "0x00000000000000000000000000000000000d0111";
pub const FAKE: &str = "0x00000000000000000000000000000000000fa4e0";
pub const TRANSFER: &str = "ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef";

/// What a receiver got, in order, and what it answers.
pub struct Receiver {
    pub url: String,
    got: Arc<Mutex<Vec<HttpRequest>>>,
    status: Arc<AtomicU16>,
}

impl Receiver {
    pub async fn start() -> Self {
        let got: Arc<Mutex<Vec<HttpRequest>>> = Arc::default();
        let status = Arc::new(AtomicU16::new(200));
        let (all, answer) = (Arc::clone(&got), Arc::clone(&status));
        let url = http_double::start(move |request| {
            all.lock().unwrap().push(request.clone());
            let mut response = HttpResponse::json(answer.load(Ordering::SeqCst), &json!({}));
            let elsewhere = "http://169.254.169.254/".to_owned();
            response.headers.push(("location", elsewhere));
            Some(response)
        })
        .await;
        Self { url, got, status }
    }

    /// What it answers from now on.
    pub fn answer(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    pub fn requests(&self) -> Vec<HttpRequest> {
        self.got.lock().unwrap().clone()
    }

    /// The events that it got, in the order in which they first came.
    pub fn events(&self) -> Vec<Value> {
        let mut events: Vec<Value> = Vec::new();
        for request in self.requests() {
            let body = request.json();
            assert_eq!(request.header("webhook-id"), body["id"].as_str());
            if events.iter().all(|event| event["id"] != body["id"]) {
                events.push(body);
            }
        }
        events
    }

    /// What was told of each transfer, by hash and index.
    pub fn stages(&self) -> BTreeMap<(String, String), Vec<String>> {
        let mut stages: BTreeMap<_, Vec<String>> = BTreeMap::new();
        for event in self.events() {
            // What only a balance shows has no hash.
            let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
            let of = stages.entry((text("tx_hash"), text("index"))).or_default();
            of.push(text("event"));
        }
        stages
    }
}

pub fn confirmed() -> String {
    "transfer.confirmed.v1".into()
}

pub fn finalized() -> String {
    "transfer.finalized.v1".into()
}

pub fn reverted() -> String {
    "transfer.reverted.v1".into()
}

/// A world whose followers and webhooks are quick.
pub fn world() -> World {
    let mut world = World::new();
    world.settings.webhook_retry_first_ms = 40;
    world.settings.webhook_retry_most_ms = 200;
    world.webhooks = WebhookParts {
        keys: Some(Arc::new(WebhookKeys::new(&[7; 32], None))),
        rules: TargetRules {
            allow: vec!["127.0.0.0/8".parse().unwrap()],
        },
        mailer: None,
    };
    world
}

/// What contracts pass on is found by balances alone.
pub fn policy() -> FollowPolicy {
    FollowPolicy {
        confirmations: Some(2),
        final_after: None,
        poll_ms: 50,
        traces: false,
        receipts: false,
    }
}

pub fn chains(world: &World, urls: &[&str], agree: usize) -> ChainClients {
    chains_with(world, urls, agree, policy())
}

fn chains_with(world: &World, urls: &[&str], agree: usize, policy: FollowPolicy) -> ChainClients {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let endpoints = ChainEndpoints {
        agree,
        // A busy machine is not a node that is silent.
        timeout_ms: 30_000,
        deposits: Some(policy),
        ..ChainEndpoints::new(urls.iter().map(|url| (*url).to_owned()).collect())
    };
    ChainClients::connect(&[(ChainKey::evm(CHAIN), endpoints)].into(), &world.ports()).unwrap()
}

/// A token whose transfers are made by whoever calls it with recipient and amount.
async fn put_token(anvil: &Anvil, address: &str) {
    let code = format!("0x60203560005260003533 7f{TRANSFER}60206000a300").replace(' ', "");
    anvil.call("anvil_setCode", json!([address, code])).await;
}

pub struct Shop {
    pub world: World,
    pub gateway: Gateway,
    caller: Caller,
    pub token: String,
    pub address: String,
}

impl Shop {
    /// A shop with one deposit wallet, whose chain is at these addresses.
    pub async fn open(receiver: &Receiver, urls: &[&str], agree: usize) -> Self {
        Self::open_in(world(), receiver, urls, agree).await
    }

    pub async fn open_in(world: World, receiver: &Receiver, urls: &[&str], agree: usize) -> Self {
        let shop = Self::open_unfollowed(world, receiver, urls, agree).await;
        shop.until("blocks are followed", async |shop| shop.head() > 0)
            .await;
        shop
    }

    /// A shop whose chain is followed in this way.
    pub async fn open_following(receiver: &Receiver, urls: &[&str], policy: FollowPolicy) -> Self {
        let world = world();
        let chains = chains_with(&world, urls, 1, policy);
        let shop = Self::open_on(world, receiver, chains).await;
        shop.until("blocks are followed", async |shop| shop.head() > 0)
            .await;
        shop
    }

    /// A shop whose chain need not answer.
    pub async fn open_unfollowed(
        world: World,
        receiver: &Receiver,
        urls: &[&str],
        agree: usize,
    ) -> Self {
        let chains = chains(&world, urls, agree);
        Self::open_on(world, receiver, chains).await
    }

    async fn open_on(world: World, receiver: &Receiver, chains: ChainClients) -> Self {
        let gateway = world.start_with(Arc::clone(&world.store), chains).await;
        let vault = vault(&gateway, "main").await;
        let token = make(&gateway, new_token("shop", TokenKind::Sweep)).await;
        let token = token.token.unwrap();
        let request = ConfigureSweepRequest {
            token: token.id.clone(),
            network: "EVM".into(),
            vault_uuid: Some(vault.to_string()),
            target: Some(TARGET.into()),
            webhook: Some(receiver.url.clone()),
            ..Default::default()
        };
        let made = call::<ConfigureSweep>(&gateway, &admin(), request).await;
        let secret = made.unwrap().webhook_secret.unwrap();
        assert!(secret.starts_with("whsec_"), "{secret}");
        let asset = AddSweepAssetRequest {
            token: token.id.clone(),
            network: "EVM".into(),
            chain_id: CHAIN.to_string(),
            contract: USDT.into(),
            minimum: "1".into(),
        };
        call::<AddSweepAsset>(&gateway, &admin(), asset)
            .await
            .unwrap();
        let caller = Caller {
            token: token.id.parse().unwrap(),
            vaults: VaultScope::All,
            admin: None,
            ..admin()
        };
        let mut shop = Self {
            world,
            gateway,
            caller,
            token: token.id,
            address: String::new(),
        };
        shop.address = shop.deposit_address("order-1").await;
        shop
    }

    pub async fn deposit_address(&self, reference: &str) -> String {
        let request = wire::CreateDepositWalletRequest {
            network: "EVM".into(),
            r#ref: reference.into(),
            ..Default::default()
        };
        let made = call::<CreateDepositWallet>(&self.gateway, &self.caller, request).await;
        made.unwrap().address
    }

    fn head(&self) -> u64 {
        let follows = self.gateway.follows();
        follows
            .get(&FollowedChain::Evm(CHAIN))
            .map_or(0, |counts| counts.head)
    }

    pub async fn until(&self, what: &str, is_so: impl AsyncFn(&Self) -> bool) {
        for _ in 0..2_400 {
            if is_so(self).await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!(
            "not within two minutes: {what}; {:?}",
            self.gateway.follows()
        );
    }

    pub async fn restart(&mut self, urls: &[&str]) {
        self.gateway.stop().await;
        let chains = chains(&self.world, urls, 1);
        let store = Arc::clone(&self.world.store);
        self.gateway = self.world.start_with(store, chains).await;
    }

    pub async fn events(&self, state: &str) -> Vec<covault_core::schema::admin::WebhookEvent> {
        let request = ListWebhookEventsRequest {
            token: self.token.clone(),
            state: state.into(),
        };
        let listed = call::<ListWebhookEvents>(&self.gateway, &admin(), request).await;
        listed.unwrap().events
    }
}

/// Pays wei. The hash.
pub async fn pay(anvil: &Anvil, to: &str, wei: u64) -> String {
    send(
        anvil,
        json!({"from": PAYER, "to": to, "value": format!("{wei:#x}")}),
    )
    .await
}

/// Pays tokens. The hash.
pub async fn pay_token(anvil: &Anvil, token: &str, to: &str, amount: u64) -> String {
    let data = format!("0x{:0>64}{amount:064x}", to.trim_start_matches("0x"));
    send(
        anvil,
        json!({"from": PAYER, "to": token, "data": data, "gas": "0x186a0"}),
    )
    .await
}

async fn send(anvil: &Anvil, transaction: Value) -> String {
    let hash = anvil
        .call("eth_sendTransaction", json!([transaction]))
        .await;
    hash.as_str().unwrap().to_owned()
}

/// A node whose newest final block is six below the newest, with some blocks and tokens.
pub async fn node() -> Anvil {
    let anvil = Anvil::start_with(&["--slots-in-an-epoch", "3"]).await;
    anvil.mine(20).await;
    for token in [USDT, FAKE] {
        put_token(&anvil, token).await;
    }
    anvil
}

pub fn value(hash: &str) -> (String, String) {
    (hash.to_owned(), "value".to_owned())
}

pub fn log(hash: &str) -> (String, String) {
    (hash.to_owned(), "log-0".to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deposits__should_be_told_confirmed_and_then_finalized_and_nothing_else() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let shop = Shop::open(&receiver, &[&anvil.url], 1).await;
    let to = &shop.address;
    let coin = pay(&anvil, to, 5).await;
    let token = pay_token(&anvil, USDT, to, 7).await;
    // A token that nobody takes, dust of nothing, and somebody else's money.
    pay_token(&anvil, FAKE, to, 9).await;
    pay_token(&anvil, USDT, to, 0).await;
    pay(&anvil, to, 0).await;
    pay(&anvil, USDT, 0).await;
    pay(&anvil, TARGET, 5).await;
    anvil.mine(1).await;
    shop.until("the block is followed", async |shop| shop.head() >= 21)
        .await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(
        receiver.events(),
        Vec::<Value>::new(),
        "one block is not enough"
    );
    anvil.mine(1).await;
    shop.until("both are confirmed", async |_| receiver.events().len() >= 2)
        .await;
    anvil.mine(10).await;
    shop.until("both are final", async |_| receiver.events().len() >= 4)
        .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let expected = [value(&coin), log(&token)].map(|of| (of, vec![confirmed(), finalized()]));
    assert_eq!(receiver.stages(), BTreeMap::from(expected));
    let events = receiver.events();
    let told = events.iter().find(|event| event["tx_hash"] == json!(token));
    let told = told.unwrap();
    let usdt = covault_core::networks::evm::parse_address(USDT).unwrap();
    for (field, expected) in [
        ("network", json!("EVM")),
        ("chain_id", json!(CHAIN.to_string())),
        ("block_number", json!("21")),
        ("address", json!(to)),
        ("to", json!(to)),
        ("ref", json!("order-1")),
        ("token_address", json!(usdt.to_checksum(None))),
        ("amount", json!("7")),
        ("is_send", json!(false)),
    ] {
        assert_eq!(told[field], expected, "{field}: {told}");
    }
    // Each came once: nothing had failed.
    assert_eq!(receiver.requests().len(), 4);
    assert_eq!(shop.events("delivered").await.len(), 4);
    // Sent again when an operator says so, under the same id.
    let id = told["id"].as_str().unwrap().to_owned();
    let again = ReplayWebhookEventRequest { id: id.clone() };
    call::<ReplayWebhookEvent>(&shop.gateway, &admin(), again)
        .await
        .unwrap();
    shop.until("it came again", async |_| receiver.requests().len() == 5)
        .await;
    assert_eq!(
        receiver.requests()[4].header("webhook-id"),
        Some(id.as_str())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reorganisations__should_take_back_what_was_told_and_tell_nothing_of_the_rest() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let shop = Shop::open(&receiver, &[&anvil.url], 1).await;
    let to = &shop.address;
    let first = pay(&anvil, to, 5).await;
    anvil.mine(2).await;
    shop.until("it is confirmed", async |_| receiver.events().len() == 1)
        .await;
    // Seen, and not told yet.
    pay(&anvil, to, 6).await;
    anvil.mine(1).await;
    shop.until("it is seen", async |shop| shop.head() == 23)
        .await;
    anvil.call("anvil_reorg", json!([3, []])).await;
    anvil.call("anvil_dropAllTransactions", json!([])).await;
    anvil.mine(1).await;
    shop.until("it is taken back", async |_| receiver.events().len() == 2)
        .await;
    let third = pay(&anvil, to, 7).await;
    anvil.mine(10).await;
    shop.until("another one is final", async |_| {
        receiver.events().len() >= 4
    })
    .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let expected = BTreeMap::from([
        (value(&first), vec![confirmed(), reverted()]),
        (value(&third), vec![confirmed(), finalized()]),
    ]);
    assert_eq!(receiver.stages(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chain_that_names_no_final_block__should_be_followed_with_final_after_alone() {
    let log = LogCapture::start(LevelFilter::WARN);
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let url = anvil
        .behind(move |call| match call["params"][0].as_str() {
            Some("finalized") => Way::Answered(Value::Null),
            _ => Way::Open,
        })
        .await;
    let mut shop = Shop::open_unfollowed(world(), &receiver, &[&url], 1).await;
    log.until("set final_after of the chain", || {}).await;
    assert_eq!(shop.head(), 0);
    let deep = FollowPolicy {
        final_after: Some(3),
        ..policy()
    };
    shop.gateway.stop().await;
    let chains = chains_with(&shop.world, &[&url], 1, deep);
    let store = Arc::clone(&shop.world.store);
    shop.gateway = shop.world.start_with(store, chains).await;
    shop.until("blocks are followed", async |shop| shop.head() > 0)
        .await;
    let hash = pay(&anvil, &shop.address, 5).await;
    anvil.mine(3).await;
    shop.until("all blocks are read", async |shop| shop.head() == 23)
        .await;
    shop.until("it is confirmed", async |_| receiver.events().len() == 1)
        .await;
    // Two blocks are on it: one too few.
    assert_eq!(
        receiver.stages(),
        BTreeMap::from([(value(&hash), vec![confirmed()])])
    );
    anvil.mine(1).await;
    shop.until("it is final", async |_| receiver.events().len() == 2)
        .await;
    let both = vec![confirmed(), finalized()];
    assert_eq!(receiver.stages(), BTreeMap::from([(value(&hash), both)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newest_block__should_be_taken_back_when_another_one_has_its_number() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let at_once = FollowPolicy {
        confirmations: Some(1),
        ..policy()
    };
    let shop = Shop::open_following(&receiver, &[&anvil.url], at_once).await;
    let coin = pay(&anvil, &shop.address, 5).await;
    anvil.mine(1).await;
    shop.until("it is confirmed", async |_| receiver.events().len() == 1)
        .await;
    anvil.call("anvil_reorg", json!([1, []])).await;
    anvil.call("anvil_dropAllTransactions", json!([])).await;
    // No block comes after it.
    shop.until("it is taken back", async |_| receiver.events().len() == 2)
        .await;
    let expected = BTreeMap::from([(value(&coin), vec![confirmed(), reverted()])]);
    assert_eq!(receiver.stages(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_in_another_block__should_be_told_again_in_a_new_round() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let shop = Shop::open(&receiver, &[&anvil.url], 1).await;
    let hash = pay(&anvil, &shop.address, 5).await;
    let raw = anvil
        .call("eth_getRawTransactionByHash", json!([hash]))
        .await;
    anvil.mine(2).await;
    shop.until("it is confirmed", async |_| receiver.events().len() == 1)
        .await;
    anvil.call("anvil_reorg", json!([2, []])).await;
    anvil.call("anvil_dropAllTransactions", json!([])).await;
    anvil.mine(1).await;
    shop.until("it is taken back", async |_| receiver.events().len() == 2)
        .await;
    anvil.call("eth_sendRawTransaction", json!([raw])).await;
    anvil.mine(10).await;
    shop.until("it is final", async |_| receiver.events().len() == 4)
        .await;
    let all = vec![confirmed(), reverted(), confirmed(), finalized()];
    assert_eq!(receiver.stages(), BTreeMap::from([(value(&hash), all)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fork_below_what_was_final__should_stop_the_chain_also_while_the_nodes_are_silent() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let is_silent = Arc::new(AtomicBool::new(false));
    let silent = Arc::clone(&is_silent);
    let way = move |_: &Value| match silent.load(Ordering::SeqCst) {
        true => Way::Lost,
        false => Way::Open,
    };
    let url = anvil.behind(way).await;
    let shop = Shop::open(&receiver, &[&url], 1).await;
    pay(&anvil, &shop.address, 5).await;
    anvil.mine(10).await;
    shop.until("it is final", async |_| receiver.events().len() == 2)
        .await;
    anvil.call("anvil_reorg", json!([10, []])).await;
    anvil.mine(1).await;
    let counts = |shop: &Shop| shop.gateway.follows()[&FollowedChain::Evm(CHAIN)];
    shop.until("it is stopped", async |shop| counts(shop).is_stopped)
        .await;
    pay(&anvil, &shop.address, 6).await;
    anvil.mine(10).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(receiver.events().len(), 2);
    // Nodes that say nothing do not make it well.
    is_silent.store(true, Ordering::SeqCst);
    let before = counts(&shop).failures;
    shop.until("they are silent", async |shop| {
        counts(shop).failures > before + 1
    })
    .await;
    assert!(counts(&shop).is_stopped);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts__should_lose_nothing_and_tell_nothing_twice() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let mut shop = Shop::open(&receiver, &[&anvil.url], 1).await;
    let other = shop.deposit_address("order-2").await;
    let mut paid = Vec::new();
    for round in 0..6_u64 {
        for to in [shop.address.clone(), other.clone()] {
            paid.push(value(&pay(&anvil, &to, 5 + round).await));
            paid.push(log(&pay_token(&anvil, USDT, &to, 5 + round).await));
        }
        anvil.mine(3).await;
        if round % 2 == 0 {
            // At any moment of the work.
            tokio::time::sleep(Duration::from_millis(70 * round)).await;
            shop.restart(&[&anvil.url]).await;
        }
    }
    anvil.mine(10).await;
    shop.until("all are final", async |_| {
        receiver.events().len() >= 2 * paid.len()
    })
    .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let expected = paid
        .into_iter()
        .map(|of| (of, vec![confirmed(), finalized()]));
    assert_eq!(receiver.stages(), expected.collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks__should_be_sent_until_200_and_in_order_and_follow_no_redirect() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    receiver.status.store(500, Ordering::SeqCst);
    let shop = Shop::open(&receiver, &[&anvil.url], 1).await;
    let hash = pay(&anvil, &shop.address, 5).await;
    anvil.mine(12).await;
    for status in [500, 301, 204] {
        receiver.status.store(status, Ordering::SeqCst);
        let before = receiver.requests().len();
        shop.until("it is tried again", async |_| {
            receiver.requests().len() > before + 1
        })
        .await;
    }
    // What comes after it waits, and what is wrong is shown.
    assert_eq!(
        receiver.stages(),
        BTreeMap::from([(value(&hash), vec![confirmed()])])
    );
    let waiting = shop.events("waiting").await;
    assert_eq!(waiting.len(), 2, "{waiting:?}");
    assert!(
        waiting
            .iter()
            .any(|event| event.problem.contains("only 200 counts"))
    );
    receiver.status.store(200, Ordering::SeqCst);
    shop.until("both came", async |_| receiver.events().len() == 2)
        .await;
    let expected = vec![confirmed(), finalized()];
    assert_eq!(
        receiver.stages(),
        BTreeMap::from([(value(&hash), expected)])
    );
    shop.until("nothing waits", async |shop| {
        shop.events("waiting").await.is_empty()
    })
    .await;
    let first = &receiver.requests()[0];
    for header in ["Signature", "webhook-timestamp", "webhook-signature"] {
        assert!(first.header(header).is_some(), "{header}");
    }
    assert_eq!(first.header("Signature-Algorithm"), Some("Ed25519"));
}
