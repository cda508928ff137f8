//! What becomes of transactions on a real EVM node, anvil, whose time passes as fast as the test wants.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use covault_actors::{
    chain_rpc::{ChainClients, ChainEndpoints, ChainKey},
    gateway::Gateway,
    operations::ReplaceTransaction,
};
use covault_core::schema::wire::{
    self, EvmGas, create_signing_request_request::Type as Kind,
    replace_transaction_request::Action, signing_request, transaction_state::Status,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    backup::{back_up, claims, let_in, restored},
    evm_node::connect_to,
    http_double::{self, HttpResponse},
    ports::free_port,
    rebroadcast::noted,
    tracker::{GAP_MS, a_while, fillers, stuck, until, until_status},
    world::*,
};

/// The recipient of [`send`].
const TO: &str = "0x00000000000000000000000000000000000000aa";
/// Longer than an EVM chain may take for a transaction without anybody being told.
const IMPATIENT_MS: u64 = 601_000;

/// What a call of a request comes to on its way to anvil and back.
pub enum Way {
    Open,
    /// anvil never gets it.
    Lost,
    /// anvil gets it once this is set.
    Held(Arc<AtomicBool>),
    /// This is answered, whatever anvil says.
    Answered(Value),
    /// anvil never gets it, and it is refused in these words.
    Refused(&'static str),
    /// anvil never gets it, and this is answered.
    Swallowed(Value),
    /// anvil gets it, and this is answered by what stands before it, with this HTTP status.
    Busy(u16),
}

pub struct Anvil {
    process: Child,
    pub url: String,
    http: reqwest::Client,
}

impl Drop for Anvil {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Anvil {
    /// It makes blocks only on request.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// The same, with more arguments.
    pub async fn start_with(more: &[&str]) -> Self {
        // Another test of the process may have installed it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/node");
        let program: PathBuf = tests.join("node_modules/@foundry-rs/anvil-linux-amd64/bin/anvil");
        let (port, chain) = (free_port().to_string(), CHAIN.to_string());
        let process = Command::new(program)
            .args(["--no-mining", "--port", &port, "--chain-id", &chain])
            .args(more)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let anvil = Self {
            process,
            url: format!("http://127.0.0.1:{port}"),
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
        };
        for _ in 0..3_000 {
            if anvil.ask("eth_chainId", json!([])).await.is_some() {
                return anvil;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("anvil does not answer");
    }

    pub async fn ask(&self, method: &str, params: Value) -> Option<Value> {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let asked = self.http.post(&self.url).body(body.to_string());
        let asked = asked.header("content-type", "application/json").send();
        let answer = asked.await.ok()?.bytes().await.ok()?;
        serde_json::from_slice(&answer).ok()
    }

    pub async fn call(&self, method: &str, params: Value) -> Value {
        let answer = self.ask(method, params).await.unwrap();
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Wei of the recipient.
    pub async fn received(&self) -> Value {
        self.call("eth_getBalance", json!([TO, "latest"])).await
    }

    /// How many transactions wait for a block that could have them now.
    pub async fn waiting(&self) -> Value {
        self.call("txpool_status", json!([])).await["pending"].clone()
    }

    /// The newest block is gone, and with it and the pool all transactions that are in no other.
    pub async fn lose_newest_block(&self) {
        self.call("anvil_reorg", json!([1, []])).await;
        self.call("anvil_dropAllTransactions", json!([])).await;
    }

    /// An address before it. All calls of a request come on the worst way of theirs, answers each on its own.
    pub async fn behind(&self, way: impl Fn(&Value) -> Way + Send + Sync + 'static) -> String {
        let (listener, url) = http_double::listen().await;
        self.behind_at(listener, way);
        url
    }

    /// The same, where somebody listens already.
    pub fn behind_at(
        &self,
        listener: TcpListener,
        way: impl Fn(&Value) -> Way + Send + Sync + 'static,
    ) {
        let (target, http) = (self.url.clone(), self.http.clone());
        http_double::serve(listener, move |request| {
            let asked = request.json();
            let calls = match &asked {
                Value::Array(calls) => calls.as_slice(),
                call => std::slice::from_ref(call),
            };
            let (mut is_lost, mut held, mut answered) = (false, None, Vec::new());
            let (mut kept, mut busy) = (None, None);
            for call in calls {
                match way(call) {
                    Way::Open => {}
                    Way::Lost => is_lost = true,
                    Way::Held(until) => held = Some(until),
                    Way::Answered(answer) => answered.push((call["id"].clone(), answer)),
                    Way::Refused(message) => {
                        let error = json!({"code": -32000, "message": message});
                        kept = Some(json!({"jsonrpc": "2.0", "id": call["id"], "error": error}));
                    }
                    Way::Swallowed(answer) => {
                        kept = Some(json!({"jsonrpc": "2.0", "id": call["id"], "result": answer}));
                    }
                    Way::Busy(status) => {
                        let error = json!({"code": -32005, "message": "too many requests"});
                        let said = json!({"jsonrpc": "2.0", "id": call["id"], "error": error});
                        busy = Some(HttpResponse::json(status, &said));
                    }
                }
            }
            let passed_on = http.post(&target).body(request.body);
            let passed_on = passed_on.header("content-type", "application/json");
            async move {
                if is_lost {
                    return Some(HttpResponse::json(502, &json!({})));
                }
                if let Some(answer) = kept {
                    return Some(HttpResponse::json(200, &answer));
                }
                while held
                    .as_ref()
                    .is_some_and(|free| !free.load(Ordering::SeqCst))
                {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                let said = passed_on.send().await.ok()?.bytes().await.ok()?;
                if busy.is_some() {
                    return busy;
                }
                let mut said: Value = serde_json::from_slice(&said).ok()?;
                let answers = match &mut said {
                    Value::Array(answers) => answers.as_mut_slice(),
                    answer => std::slice::from_mut(answer),
                };
                for (id, answer) in answered {
                    for one in answers.iter_mut().filter(|one| one["id"] == id) {
                        *one = json!({"jsonrpc": "2.0", "id": id, "result": answer});
                    }
                }
                Some(HttpResponse::json(200, &said))
            }
        });
    }

    pub async fn mine(&self, blocks: u32) {
        let blocks = json!([format!("{blocks:#x}")]);
        self.call("anvil_mine", blocks).await;
    }

    /// Waits until so many transactions are in its pool that nobody asks for anew.
    pub async fn gets_again(&self, world: &World, count: u32) {
        // Some look at a node that has just lost them: only then does time begin to count.
        until(async || {
            world.pass(1_000);
            self.waiting().await == format!("{count:#x}")
        })
        .await;
    }

    /// A gateway whose chain is at this address.
    pub async fn start_on(world: &World, url: &str) -> Gateway {
        Self::start_on_all(world, &[url]).await
    }

    /// A gateway whose chain has its nodes at these addresses.
    pub async fn start_on_all(world: &World, urls: &[&str]) -> Gateway {
        let chain = ChainKey::evm(CHAIN);
        let urls = urls.iter().map(|url| (*url).to_owned()).collect();
        let client = connect_to(chain, ChainEndpoints::new(urls));
        let chains = ChainClients::default().with(chain, client);
        world.start_with(Arc::clone(&world.store), chains).await
    }

    /// A gateway whose chain is at this address, and a wallet in it that can pay.
    pub async fn gateway(&self, world: &World, url: &str) -> (Gateway, String) {
        let gateway = Self::start_on(world, url).await;
        let address = self.wallet(&gateway).await;
        (gateway, address)
    }

    /// A wallet that can pay.
    pub async fn wallet(&self, gateway: &Gateway) -> String {
        let vault = vault(gateway, "main").await;
        let address = evm_wallet(gateway, vault).await;
        let funds = json!([address, "0xde0b6b3a7640000"]);
        self.call("anvil_setBalance", funds).await;
        address
    }
}

/// The uuid and the hash of a payment that was sent.
pub async fn paid(gateway: &Gateway, address: &str) -> (String, String) {
    let made = create(gateway, send(address)).await.uuid;
    let outcome = outcome(gateway, &made).await;
    assert_eq!(outcome.error, None);
    (made, outcome.tx_hash)
}

/// The uuid of a request that is to replace this one.
async fn replacement(gateway: &Gateway, uuid: &str, action: Action) -> String {
    let asked = wire::ReplaceTransactionRequest {
        uuid: uuid.into(),
        action: action.into(),
        most_fee: None,
        notes: None,
    };
    let made = call::<ReplaceTransaction>(gateway, &admin(), asked).await;
    made.unwrap().signing_request.unwrap().uuid
}

async fn replace(gateway: &Gateway, uuid: &str, action: Action) -> (String, String) {
    let made = replacement(gateway, uuid, action).await;
    let outcome = outcome(gateway, &made).await;
    assert_eq!(outcome.error, None);
    (made, outcome.tx_hash)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_anvil_has_replaced__should_be_shown_with_the_hash_that_took_its_place() {
    let (anvil, world) = (Anvil::start().await, World::new());
    let (gateway, address) = anvil.gateway(&world, &anvil.url).await;
    let (first, _) = paid(&gateway, &address).await;
    let (second, _) = replace(&gateway, &first, Action::SpeedUp).await;
    let (third, hash) = replace(&gateway, &first, Action::SpeedUp).await;
    anvil.mine(1).await;
    until_status(&gateway, &third, Status::Mined).await;
    for uuid in [&first, &second] {
        let shown = details(&gateway, uuid).await.transaction_state.unwrap();
        assert_eq!(shown.status(), Status::Pending, "the block may still go");
    }
    // It goes, and of the three the newest alone is sent again.
    anvil.lose_newest_block().await;
    until_status(&gateway, &third, Status::Pending).await;
    anvil.gets_again(&world, 1).await;
    a_while().await;
    assert_eq!(anvil.waiting().await, "0x1");
    anvil.mine(1).await;
    until_status(&gateway, &third, Status::Mined).await;
    anvil.mine(128).await;
    for uuid in [&first, &second] {
        let shown = until_status(&gateway, uuid, Status::Replaced).await;
        assert_eq!(shown.replaced_by, hash);
        assert_eq!(shown.success, None);
    }
    let shown = until_status(&gateway, &third, Status::Final).await;
    assert_eq!(shown.success, Some(true));
    assert_eq!(anvil.received().await, "0x5", "paid once");
    assert_eq!(world.followed().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_anvil_never_got__should_fail_once_another_one_is_final_and_name_it() {
    // The payment, or the one that is to cancel it.
    for lost in [0, 1] {
        let (anvil, world) = (Anvil::start().await, World::new());
        // Of the transactions that are sent this one is lost on its way, however often.
        let all = Mutex::new(Vec::<Value>::new());
        let way = move |call: &Value| {
            if call["method"] != "eth_sendRawTransaction" {
                return Way::Open;
            }
            let mut all = all.lock().unwrap();
            if !all.contains(&call["params"]) {
                all.push(call["params"].clone());
            }
            match all.get(lost) == Some(&call["params"]) {
                true => Way::Lost,
                false => Way::Open,
            }
        };
        let url = anvil.behind(way).await;
        let (gateway, address) = anvil.gateway(&world, &url).await;
        let is_in_doubt = async || noted(&world, "Delayed", "502").await;
        let payment = create(&gateway, send(&address)).await.uuid;
        if lost == 0 {
            until(is_in_doubt).await;
        } else {
            outcome(&gateway, &payment).await;
        }
        let other = replacement(&gateway, &payment, Action::Cancel).await;
        if lost == 1 {
            until(is_in_doubt).await;
        }
        let [loser, winner] = match lost {
            0 => [payment, other],
            _ => [other, payment],
        };
        let hash = outcome(&gateway, &winner).await.tx_hash;
        anvil.mine(1).await;
        until_status(&gateway, &winner, Status::Mined).await;
        gateway.stop().await;
        let gateway = Anvil::start_on(&world, &url).await;
        a_while().await;
        let shown = details(&gateway, &loser).await;
        assert_eq!(shown.status(), signing_request::Status::Pending);
        anvil.mine(128).await;
        assert!(outcome(&gateway, &loser).await.error.is_some());
        let shown = details(&gateway, &loser).await;
        assert_eq!(shown.status(), signing_request::Status::Failed);
        let words = format!("nonce 0 was used by the transaction {hash}, which is final");
        assert_eq!(shown.failed_reason, words);
        until_status(&gateway, &winner, Status::Final).await;
        let paid = ["0x0", "0x5"][lost];
        assert_eq!(anvil.received().await, paid);
    }
}

/// A request that was being signed when a backup was made: with the wallet's address, its uuid and the backup.
async fn signing_in_a_backup(anvil: &Anvil, world: &World) -> (String, String, Vec<u8>) {
    let (gateway, address) = anvil.gateway(world, &anvil.url).await;
    world.signers.silent.store(true, Ordering::SeqCst);
    let uuid = create(&gateway, send(&address)).await.uuid;
    until(async || claims(world).await == 1).await;
    let backup = back_up(&gateway).await;
    gateway.stop().await;
    world.signers.silent.store(false, Ordering::SeqCst);
    (address, uuid, backup)
}

/// A restored store whose request waits while a block has what ended it, and that block final thereafter.
async fn restored_before_it_is_final(
    anvil: &Anvil,
    world: &World,
    backup: &[u8],
    uuid: &str,
) -> (World, Gateway) {
    anvil.mine(1).await;
    let world = restored(world, backup).await;
    let gateway = Anvil::start_on(&world, &anvil.url).await;
    a_while().await;
    let shown = details(&gateway, uuid).await;
    assert_eq!(
        shown.status(),
        signing_request::Status::Pending,
        "its block may go"
    );
    anvil.mine(128).await;
    (world, gateway)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_anvil_has_mined_since_a_backup__should_succeed_after_a_restore() {
    let (anvil, world) = (Anvil::start().await, World::new());
    let (_, uuid, backup) = signing_in_a_backup(&anvil, &world).await;
    let gateway = Anvil::start_on(&world, &anvil.url).await;
    let sent = outcome(&gateway, &uuid).await;
    assert_eq!(sent.error, None);
    gateway.stop().await;
    let (world, gateway) = restored_before_it_is_final(&anvil, &world, &backup, &uuid).await;
    let shown = until_status(&gateway, &uuid, Status::Final).await;
    assert_eq!(shown.success, Some(true));
    let_in(&gateway, &admin()).await.unwrap();
    let found = outcome(&gateway, &uuid).await;
    assert_eq!(found, sent);
    assert_eq!(anvil.received().await, "0x5", "paid once");
    assert_eq!(world.followed().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_anvil_has_another_one_for_since_a_backup__should_fail_after_a_restore_and_name_it() {
    let (anvil, world) = (Anvil::start().await, World::new());
    let (address, uuid, backup) = signing_in_a_backup(&anvil, &world).await;
    // By a store that is not there any more.
    let other = restored(&world, &backup).await;
    let gateway = Anvil::start_on(&other, &anvil.url).await;
    let_in(&gateway, &admin()).await.unwrap();
    let payment = wire::EvmSendNative {
        value: "6".into(),
        ..send_native(&address)
    };
    let payment = create(&gateway, Kind::EvmSendNative(payment)).await.uuid;
    let by = outcome(&gateway, &payment).await.tx_hash;
    gateway.stop().await;
    let (_world, gateway) = restored_before_it_is_final(&anvil, &world, &backup, &uuid).await;
    let_in(&gateway, &admin()).await.unwrap();
    let error = outcome(&gateway, &uuid).await.error.unwrap();
    let words = format!("nonce 0 was used by the transaction {by}, which is final");
    assert!(error.message.ends_with(&words), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_anvil_loses__should_come_again_without_another_request_also_when_it_fails_then() {
    let (anvil, world) = (Anvil::start().await, World::new());
    let (gateway, address) = anvil.gateway(&world, &anvil.url).await;
    let mut sent = Vec::new();
    for _ in 0..3 {
        sent.push(paid(&gateway, &address).await);
    }
    // No block takes them.
    world.pass(IMPATIENT_MS);
    until(async || stuck(&gateway).await.len() == 3).await;
    for listed in stuck(&gateway).await {
        assert!(listed.reason.contains("no block includes it"), "{listed:?}");
    }
    // The pool has forgotten all, and the service starts again.
    gateway.stop().await;
    anvil.call("anvil_dropAllTransactions", json!([])).await;
    let gateway = Anvil::start_on(&world, &anvil.url).await;
    anvil.gets_again(&world, 3).await;
    anvil.mine(1).await;
    for (uuid, _) in &sent {
        let shown = until_status(&gateway, uuid, Status::Mined).await;
        assert_eq!(shown.success, Some(true));
    }
    assert_eq!(anvil.received().await, "0xf");
    assert_eq!(stuck(&gateway).await, []);

    // Another chain of blocks takes over, in which the recipient has become a contract that takes nothing.
    anvil.lose_newest_block().await;
    anvil.call("anvil_setCode", json!([TO, "0xfe"])).await;
    for (uuid, _) in &sent {
        until_status(&gateway, uuid, Status::Pending).await;
    }
    anvil.gets_again(&world, 3).await;
    anvil.mine(128).await;
    for (uuid, hash) in &sent {
        let shown = until_status(&gateway, uuid, Status::Final).await;
        assert_eq!(shown.success, Some(false), "it is said that it paid nobody");
        assert_eq!(details(&gateway, uuid).await.tx_hash, *hash);
    }
    assert_eq!(anvil.received().await, "0x0");
    assert_eq!(world.followed().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_behind_anvil__should_not_end_the_next_request_of_the_wallet() {
    let (anvil, world) = (Anvil::start().await, World::new());
    // What is asked goes to one that has none of it, and what is sent to anvil.
    let is_behind = Arc::new(AtomicBool::new(false));
    let behind = Arc::clone(&is_behind);
    let way = move |call: &Value| match call["method"].as_str() {
        _ if !behind.load(Ordering::SeqCst) => Way::Open,
        Some("eth_getTransactionCount") => Way::Answered(json!("0x0")),
        Some("eth_getTransactionByHash" | "eth_getTransactionReceipt") => {
            Way::Answered(Value::Null)
        }
        _ => Way::Open,
    };
    let url = anvil.behind(way).await;
    let (gateway, address) = anvil.gateway(&world, &url).await;
    let (first, _) = paid(&gateway, &address).await;
    anvil.mine(1).await;
    until_status(&gateway, &first, Status::Mined).await;
    is_behind.store(true, Ordering::SeqCst);
    world.pass(GAP_MS);
    // It gets the number that is free, as it does when two of them wait.
    let (second, _) = paid(&gateway, &address).await;
    world.pass(GAP_MS);
    let (third, _) = paid(&gateway, &address).await;
    anvil.mine(1).await;
    assert_eq!(anvil.received().await, "0xf");
    is_behind.store(false, Ordering::SeqCst);
    anvil.mine(128).await;
    for uuid in [first, second, third] {
        let shown = until_status(&gateway, &uuid, Status::Final).await;
        assert_eq!(shown.success, Some(true));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_that_anvil_refused__should_be_filled_for_what_waits_behind_it() {
    let (anvil, world) = (Anvil::start().await, World::new());
    // The first transaction is on its way until the second one is there.
    let (on_its_way, free) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let (was_sent, until_free) = (Arc::clone(&on_its_way), Arc::clone(&free));
    let way = move |call: &Value| {
        let is_sent = call["method"] == "eth_sendRawTransaction";
        match is_sent && !was_sent.swap(true, Ordering::SeqCst) {
            true => Way::Held(Arc::clone(&until_free)),
            false => Way::Open,
        }
    };
    let url = anvil.behind(way).await;
    let (gateway, address) = anvil.gateway(&world, &url).await;
    // More than the wallet has; as it brings its fees and its gas, no node is asked before.
    let hopeless = wire::EvmSendNative {
        value: "2000000000000000000".into(),
        gas_fee: Some(EvmGas {
            max_fee: Some("3000000000".into()),
            max_priority_fee: Some("1000000000".into()),
            gas_limit: Some("21000".into()),
            ..Default::default()
        }),
        ..send_native(&address)
    };
    let hopeless = create(&gateway, Kind::EvmSendNative(hopeless)).await.uuid;
    until(async || on_its_way.load(Ordering::SeqCst)).await;
    let (behind, _) = paid(&gateway, &address).await;
    free.store(true, Ordering::SeqCst);
    let error = outcome(&gateway, &hopeless).await.error.unwrap();
    assert!(
        error.message.to_lowercase().contains("insufficient funds"),
        "{error:?}"
    );
    assert_eq!(anvil.waiting().await, "0x0", "it waits behind a gap");
    until(async || {
        let open = gateway.backlog().transactions;
        open.values().any(|open| open.pending == 1)
    })
    .await;
    a_while().await;
    let vault = details(&gateway, &behind).await.vault_uuid.unwrap();
    assert!(fillers(&gateway, &vault).await.is_empty(), "not at once");
    world.pass(GAP_MS);
    until(async || anvil.waiting().await == "0x2").await;
    anvil.mine(1).await;
    until_status(&gateway, &behind, Status::Mined).await;
    anvil.mine(128).await;
    until_status(&gateway, &behind, Status::Final).await;
    assert_eq!(anvil.received().await, "0x5");
    let fillers = fillers(&gateway, &vault).await;
    assert_eq!(fillers.len(), 1);
    until_status(&gateway, &fillers[0].uuid, Status::Final).await;
}
