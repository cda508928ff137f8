//! The end of transactions on a real EVM node, anvil, whose time passes as fast as the test wants.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use covault_actors::{
    chain_rpc::{ChainClients, ChainEndpoints, ChainKey},
    gateway::Gateway,
    operations::ReplaceTransaction,
};
use covault_core::schema::wire::{
    self, create_signing_request_request::Type as Kind, replace_transaction_request::Action,
    signing_request, transaction_state::Status,
};
use serde_json::{Value, json};

use crate::{
    backup::{back_up, claims, let_in, restored},
    evm_node::connect_to,
    http_double::{self, HttpResponse},
    ports::free_port,
    rebroadcast::noted,
    tracker::{a_while, until, until_status},
    world::*,
};

/// The recipient of [`send`].
const TO: &str = "0x00000000000000000000000000000000000000aa";

struct Anvil {
    process: Child,
    url: String,
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
    async fn start() -> Self {
        // Another test of the process may have installed it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/node");
        let program: PathBuf = tests.join("node_modules/@foundry-rs/anvil-linux-amd64/bin/anvil");
        let (port, chain) = (free_port().to_string(), CHAIN.to_string());
        let process = Command::new(program)
            .args(["--no-mining", "--port", &port, "--chain-id", &chain])
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

    async fn ask(&self, method: &str, params: Value) -> Option<Value> {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let asked = self.http.post(&self.url).body(body.to_string());
        let asked = asked.header("content-type", "application/json").send();
        let answer = asked.await.ok()?.bytes().await.ok()?;
        serde_json::from_slice(&answer).ok()
    }

    async fn call(&self, method: &str, params: Value) -> Value {
        let answer = self.ask(method, params).await.unwrap();
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Wei of the recipient.
    async fn received(&self) -> Value {
        self.call("eth_getBalance", json!([TO, "latest"])).await
    }

    async fn mine(&self, blocks: u32) {
        let blocks = json!([format!("{blocks:#x}")]);
        self.call("anvil_mine", blocks).await;
    }

    /// A gateway whose chain is at this address.
    async fn start_on(world: &World, url: &str) -> Gateway {
        let chain = ChainKey::evm(CHAIN);
        let client = connect_to(chain, ChainEndpoints::new(vec![url.to_owned()]));
        let chains = ChainClients::default().with(chain, client);
        world.start_with(Arc::clone(&world.store), chains).await
    }

    /// A gateway whose chain is at this address, and a wallet in it that can pay.
    async fn gateway(&self, world: &World, url: &str) -> (Gateway, String) {
        let gateway = Self::start_on(world, url).await;
        let vault = vault(&gateway, "main").await;
        let address = evm_wallet(&gateway, vault).await;
        let funds = json!([address, "0xde0b6b3a7640000"]);
        self.call("anvil_setBalance", funds).await;
        (gateway, address)
    }
}

async fn replace(gateway: &Gateway, uuid: &str, action: Action) -> (String, String) {
    let asked = wire::ReplaceTransactionRequest {
        uuid: uuid.into(),
        action: action.into(),
        most_fee: None,
        notes: None,
    };
    let made = call::<ReplaceTransaction>(gateway, &admin(), asked).await;
    let made = made.unwrap().signing_request.unwrap().uuid;
    let outcome = outcome(gateway, &made).await;
    assert_eq!(outcome.error, None);
    (made, outcome.tx_hash)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_anvil_has_replaced__should_be_shown_with_the_hash_that_took_its_place() {
    let (anvil, world) = (Anvil::start().await, World::new());
    let (gateway, address) = anvil.gateway(&world, &anvil.url).await;
    let first = create(&gateway, send(&address)).await.uuid;
    assert_eq!(outcome(&gateway, &first).await.error, None);
    let (second, _) = replace(&gateway, &first, Action::SpeedUp).await;
    let (third, hash) = replace(&gateway, &first, Action::SpeedUp).await;
    anvil.mine(1).await;
    until_status(&gateway, &third, Status::Mined).await;
    for uuid in [&first, &second] {
        let shown = details(&gateway, uuid).await.transaction_state.unwrap();
        assert_eq!(shown.status(), Status::Pending, "the block may still go");
    }
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
    let (anvil, world) = (Anvil::start().await, World::new());
    // The first transaction that is sent is lost on its way, however often.
    let lost = Arc::new(Mutex::new(None::<Value>));
    let (listener, url) = http_double::listen().await;
    let (target, http) = (anvil.url.clone(), anvil.http.clone());
    http_double::serve(listener, move |request| {
        let asked = request.json();
        let is_lost = asked["method"] == "eth_sendRawTransaction" && {
            let mut lost = lost.lock().unwrap();
            *lost.get_or_insert_with(|| asked["params"].clone()) == asked["params"]
        };
        let passed_on = http.post(&target).body(request.body);
        let passed_on = passed_on.header("content-type", "application/json");
        async move {
            if is_lost {
                return Some(HttpResponse::json(502, &json!({})));
            }
            let answer = passed_on.send().await.ok()?.bytes().await.ok()?;
            Some(HttpResponse {
                status: 200,
                headers: vec![("content-type", "application/json".into())],
                body: answer.to_vec(),
            })
        }
    });
    let (gateway, address) = anvil.gateway(&world, &url).await;
    let first = create(&gateway, send(&address)).await.uuid;
    until(async || noted(&world, "Delayed", "502").await).await;
    let (second, hash) = replace(&gateway, &first, Action::Cancel).await;
    anvil.mine(1).await;
    until_status(&gateway, &second, Status::Mined).await;
    let shown = details(&gateway, &first).await;
    assert_eq!(shown.status(), signing_request::Status::Pending);
    anvil.mine(128).await;
    assert!(outcome(&gateway, &first).await.error.is_some());
    let shown = details(&gateway, &first).await;
    assert_eq!(shown.status(), signing_request::Status::Failed);
    let words = format!("nonce 0 was used by the transaction {hash}, which is final");
    assert_eq!(shown.failed_reason, words);
    until_status(&gateway, &second, Status::Final).await;
    assert_eq!(anvil.received().await, "0x0", "nothing was paid");
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_anvil_has_mined_since_a_backup__should_succeed_after_a_restore() {
    let (anvil, world) = (Anvil::start().await, World::new());
    let (_, uuid, backup) = signing_in_a_backup(&anvil, &world).await;
    let gateway = Anvil::start_on(&world, &anvil.url).await;
    let sent = outcome(&gateway, &uuid).await;
    assert_eq!(sent.error, None);
    gateway.stop().await;
    anvil.mine(1).await;
    let world = restored(&world, &backup).await;
    let gateway = Anvil::start_on(&world, &anvil.url).await;
    a_while().await;
    let shown = details(&gateway, &uuid).await;
    assert_eq!(
        shown.status(),
        signing_request::Status::Pending,
        "its block may go"
    );
    anvil.mine(128).await;
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
    anvil.mine(1).await;
    let world = restored(&world, &backup).await;
    let gateway = Anvil::start_on(&world, &anvil.url).await;
    a_while().await;
    let shown = details(&gateway, &uuid).await;
    assert_eq!(
        shown.status(),
        signing_request::Status::Pending,
        "its block may go"
    );
    anvil.mine(128).await;
    let_in(&gateway, &admin()).await.unwrap();
    let error = outcome(&gateway, &uuid).await.error.unwrap();
    let words = format!("nonce 0 was used by the transaction {by}, which is final");
    assert!(error.message.ends_with(&words), "{error:?}");
}
