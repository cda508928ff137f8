//! The Bitcoin client against a real bitcoind, on a chain of its own.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use covault_actors::chain_rpc::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainClients, ChainEndpoints, ChainError,
    ChainKey, Inclusion, NodeAuth, NodeEndpoint, SpeedUpPolicy, Standing, TrackedTransaction,
    TransactionSighting,
};
use covault_core::{
    fault::ExecuteCode,
    networks::{
        Allocation, ChainData, DynNetworkRules, Network, Payload, Queries, Signed, WireKind,
        bitcoin::{self as rules, UnspentOutput},
    },
    schema::wire::{BtcSendNative, NetworkType, transaction_state::Status},
    signature::Signature,
};
use k256::ecdsa::SigningKey;
use serde_json::{Value, json};

use crate::{
    ports::free_port,
    rebroadcast::noted,
    reservations::pay,
    tracker::{a_while, until, until_status},
    world::*,
};

/// The client's, who may do no more than the decision says.
const LOGIN: &str = "covault:of-the-client";
const DECISION: &str = include_str!("../../../docs/decisions/0015-bitcoin-outputs.md");
/// The tests', who may do everything; then as bitcoind wants it, the name and HMAC-SHA256.
const OWN_LOGIN: (&str, &str) = ("tests", "of-the-tests");
const OWN_AUTH: &str =
    "tests:salt$220def78535a530572718f9747340bf1990f0a081c30215fd7d2d87cd7908023";

/// Where coins can be spent. The wallet's lock times are up to 99 blocks before the tip, and Bitcoin Knots
/// refuses a lock time of 21 ("parasite-cat21").
const RICH_HEIGHT: u32 = 130;

/// The methods that the decision names, as -rpcwhitelist wants them.
fn methods() -> String {
    let (_, list) = DECISION.split_once("with these methods:").unwrap();
    let (list, _) = list.split_once(".\n").unwrap();
    let methods: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
    assert!(methods.len() > 10, "{methods:?}");
    methods.join(",")
}

/// A node with a wallet of the tests that mines.
pub struct Bitcoind {
    process: Child,
    url: String,
    http: reqwest::Client,
}

impl Drop for Bitcoind {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Bitcoind {
    pub async fn start(folder: &Path, arguments: &[&str]) -> Self {
        Self::start_at(free_port(), folder, arguments).await
    }

    async fn start_at(port: u16, folder: &Path, arguments: &[&str]) -> Self {
        // Another test of the process may have installed it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/node/bitcoind");
        let (user, password) = LOGIN.split_once(':').unwrap();
        let process = Command::new(program)
            .args(["-regtest", "-server", "-listen=0", "-fallbackfee=0.0001"])
            .arg(format!("-datadir={}", folder.display()))
            .arg(format!("-rpcport={port}"))
            .arg(format!("-rpcuser={user}"))
            .arg(format!("-rpcpassword={password}"))
            .arg(format!("-rpcwhitelist={user}:{}", methods()))
            .arg(format!("-rpcauth={OWN_AUTH}"))
            .arg("-rpcwhitelistdefault=0")
            .args(arguments)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut node = Self {
            process,
            url: format!("http://127.0.0.1:{port}"),
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
        };
        // The first start of all fetches the program.
        for _ in 0..3_000 {
            assert!(node.process.try_wait().unwrap().is_none(), "bitcoind ended");
            let answer = node.ask("/", "getblockcount", json!([])).await;
            if answer.is_some_and(|answer| answer["error"].is_null()) {
                return node;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("bitcoind does not answer");
    }

    /// Starts again at the same address, without what was in the mempool; its wallets do not bring that back.
    pub async fn restart(&mut self, folder: &Path) {
        self.call("stop", json!([])).await;
        self.process.wait().unwrap();
        let port = self.url.rsplit(':').next().unwrap().parse().unwrap();
        *self = Self::start_at(port, folder, &["-persistmempool=0", "-walletbroadcast=0"]).await;
        self.call("loadwallet", json!(["tests"])).await;
    }

    /// With coins to spend.
    pub async fn rich(folder: &Path, arguments: &[&str]) -> Self {
        let node = Self::start(folder, arguments).await;
        node.call("createwallet", json!(["tests"])).await;
        node.mine(RICH_HEIGHT).await;
        node
    }

    async fn ask(&self, path: &str, method: &str, params: Value) -> Option<Value> {
        let (user, password) = OWN_LOGIN;
        let body = json!({"jsonrpc": "1.0", "id": 1, "method": method, "params": params});
        let request = self.http.post(format!("{}{path}", self.url));
        let request = request.basic_auth(user, Some(password)).json(&body);
        request.send().await.ok()?.json().await.ok()
    }

    pub async fn call(&self, method: &str, params: Value) -> Value {
        let path = match method {
            "createwallet" | "loadwallet" | "setmocktime" | "stop" | "unloadwallet" => "/",
            _ => "/wallet/tests",
        };
        let answer = self.ask(path, method, params).await.unwrap();
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    pub async fn mine(&self, blocks: u32) {
        let own = self.call("getnewaddress", json!([])).await;
        self.call("generatetoaddress", json!([blocks, own])).await;
    }

    /// A block with all that waits but one transaction.
    pub async fn mine_without(&self, txid: &str) {
        let waiting = self.call("getrawmempool", json!([])).await;
        let mut waiting: Vec<String> = serde_json::from_value(waiting).unwrap();
        waiting.retain(|other| other != txid);
        let own = self.call("getnewaddress", json!([])).await;
        self.call("generateblock", json!([own, waiting])).await;
    }

    /// The outputs of a transaction that waits which pay an address, `txid:vout`.
    pub async fn outputs_of(&self, txid: &str, address: &str) -> Vec<String> {
        let script = rules::parse_address(address).unwrap().script_pubkey();
        let script = json!(script.to_hex_string());
        let transaction = self.call("getrawtransaction", json!([txid, true])).await;
        let outputs = transaction["vout"].as_array().unwrap().iter();
        let own = outputs.filter(|output| output["scriptPubKey"]["hex"] == script);
        own.map(|output| format!("{txid}:{}", output["n"]))
            .collect()
    }

    /// Half a day of blocks.
    async fn grow_old(&self) {
        let info = self.call("getblockchaininfo", json!([])).await;
        let time = info["time"].as_u64().unwrap();
        for hour in 1..=12 {
            let time = time + hour * 3_600;
            self.call("setmocktime", json!([time])).await;
            self.mine(1).await;
        }
    }

    /// As this chain writes an address.
    async fn local(&self, address: &str) -> Value {
        let script = rules::parse_address(address).unwrap().script_pubkey();
        let decoded = self
            .call("decodescript", json!([script.to_hex_string()]))
            .await;
        decoded["address"].clone()
    }

    /// Pays; not yet in a block.
    pub async fn pay(&self, address: &str, satoshi: u64) -> String {
        let to = self.local(address).await;
        let coins = format!("{}.{:08}", satoshi / 100_000_000, satoshi % 100_000_000);
        let txid = self.call("sendtoaddress", json!([to, coins])).await;
        self.call("getmempoolentry", json!([txid])).await;
        txid.as_str().unwrap().to_owned()
    }

    pub fn endpoint(&self) -> NodeEndpoint {
        NodeEndpoint {
            url: self.url.clone(),
            access: NodeAuth::Login(LOGIN.to_owned().into()),
        }
    }

    pub fn client(&self) -> Arc<dyn ChainClient> {
        connect(vec![self.endpoint()], 1)
    }
}

pub fn connect(nodes: Vec<NodeEndpoint>, agree: usize) -> Arc<dyn ChainClient> {
    let chain = ChainKey::of(Network::Bitcoin, None);
    let endpoints = ChainEndpoints {
        nodes,
        agree,
        // A real node beside other work may be slow.
        timeout_ms: 60_000,
        ..ChainEndpoints::new(Vec::new())
    };
    let chains =
        ChainClients::connect(&[(chain, endpoints)].into(), &World::new().ports()).unwrap();
    Arc::clone(chains.get(Network::Bitcoin, None).unwrap())
}

/// A wallet with a key that is whole.
pub struct TestWallet {
    key: SigningKey,
    pub address: String,
}

impl TestWallet {
    pub fn new(seed: u8) -> Self {
        let key = SigningKey::from_slice(&[seed; 32]).unwrap();
        let address = bitcoin().address(&public_key(&key)).unwrap();
        Self { key, address }
    }

    pub fn queries(&self) -> Queries {
        let from = self.address.clone();
        rules::Queries {
            from,
            inputs: Vec::new(),
            fee_level: None,
        }
        .into()
    }

    pub async fn outputs(&self, client: &Arc<dyn ChainClient>) -> Vec<UnspentOutput> {
        match client.chain_data(&self.queries(), 0).await.unwrap() {
            ChainData::Bitcoin(chain_data) => chain_data.outputs,
            other => panic!("{other:?}"),
        }
    }

    pub async fn values(&self, client: &Arc<dyn ChainClient>) -> Vec<u64> {
        let outputs = self.outputs(client).await;
        let mut values: Vec<u64> = outputs.iter().map(|output| output.value).collect();
        values.sort_unstable();
        values
    }

    /// A payment of some of these outputs, as the service makes it.
    pub fn pays(
        &self,
        outputs: &[UnspentOutput],
        to: &str,
        amount: u64,
        fee: u64,
    ) -> BroadcastRequest {
        let payload = Payload::parse(&WireKind::BtcSendNative(BtcSendNative {
            from: self.address.clone(),
            to: to.into(),
            amount: amount.to_string(),
            network_fee: fee,
            ..Default::default()
        }))
        .unwrap();
        let outputs = outputs.to_vec();
        let chain_data = rules::ChainData {
            outputs,
            ..Default::default()
        }
        .into();
        self.makes(&payload, chain_data)
    }

    /// What a payload makes of what nodes said, as the service does.
    pub fn makes(&self, payload: &Payload, chain_data: ChainData) -> BroadcastRequest {
        let settled = bitcoin()
            .allocate(payload, chain_data, &BTreeSet::new())
            .unwrap();
        let Allocation::ChainData(chain_data) = settled else {
            panic!("{settled:?}");
        };
        let public_key = public_key(&self.key);
        let unsigned = bitcoin().build(payload, &chain_data, &public_key).unwrap();
        let sign = |message: &[u8]| {
            let (signature, recovery) = self.key.sign_prehash_recoverable(message);
            let (r, s) = signature.split_bytes();
            Signature::Ecdsa {
                r: r.into(),
                s: s.into(),
                y_parity: u8::from(recovery.is_y_odd()),
            }
        };
        let signatures: Vec<Signature> = unsigned
            .signing
            .iter()
            .map(|input| sign(&input.message))
            .collect();
        let signed = bitcoin().assemble(payload, &unsigned, &signatures, &public_key);
        broadcast_request(signed.unwrap().unwrap(), chain_data)
    }
}

pub fn bitcoin() -> &'static dyn DynNetworkRules {
    Network::Bitcoin.rules()
}

fn public_key(key: &SigningKey) -> Vec<u8> {
    key.verifying_key().to_sec1_point(true).as_bytes().to_vec()
}

fn broadcast_request(signed: Signed, chain_data: ChainData) -> BroadcastRequest {
    BroadcastRequest {
        signed,
        chain_data,
        age_ms: 0,
        now_ms: 0,
        retried: false,
    }
}

fn again(broadcast_request: &BroadcastRequest) -> BroadcastRequest {
    BroadcastRequest {
        retried: true,
        ..broadcast_request.clone()
    }
}

pub fn refusal(broadcast: BroadcastOutcome) -> (ExecuteCode, String) {
    match broadcast {
        BroadcastOutcome::Refused(refusal) => (refusal.code, refusal.reason),
        other => panic!("{other:?}"),
    }
}

/// What a node says of a transaction that may have been sent before.
fn doubtful(broadcast: BroadcastOutcome) -> (Standing, String) {
    match broadcast {
        BroadcastOutcome::Doubtful(refusal, standing) => (standing, refusal.reason),
        other => panic!("{other:?}"),
    }
}

fn doubt(broadcast: BroadcastOutcome) -> String {
    match broadcast {
        BroadcastOutcome::Unknown(reason) => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn bitcoin_outputs__should_be_those_of_before_and_those_that_come() {
    let folder = tempfile::tempdir().unwrap();
    let node = Bitcoind::rich(folder.path(), &[]).await;
    let (wallet, other) = (TestWallet::new(1), TestWallet::new(2));
    // Long before a node is asked for the address; one of them is spent again.
    for satoshi in [300_000_001, 20_000, 546] {
        node.pay(&wallet.address, satoshi).await;
    }
    node.mine(1).await;
    node.grow_old().await;
    let client = node.client();
    assert_eq!(wallet.values(&client).await, [546, 20_000, 300_000_001]);
    let balance = client.balance(&wallet.address, None).await;
    assert_eq!(balance, Ok("300020547".into()));
    assert_eq!(client.balance(&other.address, None).await, Ok("0".into()));

    // What others pay counts when it is in a block.
    node.pay(&wallet.address, 1_000).await;
    assert_eq!(wallet.values(&client).await, [546, 20_000, 300_000_001]);
    node.mine(1).await;
    assert_eq!(
        wallet.values(&client).await,
        [546, 1_000, 20_000, 300_000_001]
    );

    // Also when they are wallets that the node watches. What comes back is there at once.
    let outputs = wallet.outputs(&client).await;
    let payment = wallet.pays(&outputs, &other.address, 100_000_000, 5);
    assert_eq!(client.broadcast(&payment).await, BroadcastOutcome::Accepted);
    assert_eq!(client.broadcast(&payment).await, BroadcastOutcome::Accepted);
    assert_eq!(client.balance(&other.address, None).await, Ok("0".into()));
    let values = wallet.values(&client).await;
    let [546, 1_000, 20_000, change] = values[..] else {
        panic!("{values:?}");
    };
    assert_eq!(change, 200_000_001 - 141 * 5);
    let outputs = wallet.outputs(&client).await;
    let second = wallet.pays(&outputs, &other.address, change - 110 * 5, 5);
    assert_eq!(client.broadcast(&second).await, BroadcastOutcome::Accepted);
    assert_eq!(wallet.values(&client).await, [546, 1_000, 20_000]);
    node.mine(1).await;
    assert_eq!(other.values(&client).await.len(), 2);

    // The first is in a block and all of its outputs that are known here are spent.
    let outputs = other.outputs(&client).await;
    let all: u64 = outputs.iter().map(|output| output.value).sum();
    let third = other.pays(&outputs, &wallet.address, all - 1_000, 5);
    assert_eq!(client.broadcast(&third).await, BroadcastOutcome::Accepted);
    node.mine(1).await;
    for old in [&payment, &second, &third] {
        assert_eq!(
            client.broadcast(&again(old)).await,
            BroadcastOutcome::Accepted
        );
    }
    assert_eq!(client.balance(&other.address, None).await, Ok("0".into()));

    // The node keeps all of it; its wallet may have to be loaded.
    let before = wallet.outputs(&client).await;
    node.call("unloadwallet", json!(["covault"])).await;
    let client = node.client();
    assert_eq!(wallet.outputs(&client).await, before);
}

#[tokio::test]
async fn bitcoin_outputs__should_be_found_after_a_search_that_was_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let node = Bitcoind::rich(folder.path(), &[]).await;
    let wallet = TestWallet::new(3);
    node.pay(&wallet.address, 70_000).await;
    node.mine(1).await;
    let client = node.client();
    assert_eq!(wallet.values(&client).await, [70_000]);

    // Another address of which the wallet has seen one output, and not that it was spent.
    let cut_off = TestWallet::new(4);
    for satoshi in [50_000, 60_000] {
        node.pay(&cut_off.address, satoshi).await;
    }
    node.mine(1).await;
    let script = rules::parse_address(&cut_off.address).unwrap();
    let raw = format!("raw({})", script.script_pubkey().to_hex_string());
    let scan = json!(["start", [raw]]);
    let found = node.call("scantxoutset", scan).await;
    let output = found["unspents"]
        .as_array()
        .unwrap()
        .iter()
        .find(|output| output["amount"] == json!(0.0005))
        .unwrap();
    let block = output["blockhash"].clone();
    let proof = node
        .call("gettxoutproof", json!([[output["txid"]], block]))
        .await;
    let bytes = node
        .call("getrawtransaction", json!([output["txid"], 0, block]))
        .await;
    let spent = UnspentOutput {
        txid: output["txid"].as_str().unwrap().into(),
        vout: output["vout"].as_u64().unwrap().try_into().unwrap(),
        value: 50_000,
    };
    // To an address that the wallet does not watch: else it would see that.
    let payment = cut_off.pays(&[spent], &TestWallet::new(30).address, 49_400, 5);
    assert_eq!(client.broadcast(&payment).await, BroadcastOutcome::Accepted);
    node.mine(1).await;
    node.grow_old().await;
    let info = node.call("getdescriptorinfo", json!([raw])).await;
    let import = json!([[{"desc": info["descriptor"], "timestamp": "now"}]]);
    for (method, params) in [
        ("importdescriptors", import),
        ("importprunedfunds", json!([bytes, proof])),
    ] {
        let answer = node.ask("/wallet/covault", method, params).await.unwrap();
        assert!(answer["error"].is_null(), "{answer}");
    }
    let listed = json!([1, 9_999_999, [node.local(&cut_off.address).await]]);
    let listed = node.ask("/wallet/covault", "listunspent", listed).await;
    let listed = listed.unwrap()["result"].clone();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed[0]["amount"], json!(0.0005));
    assert_eq!(cut_off.values(&client).await, [60_000]);
    assert_eq!(wallet.values(&client).await, [70_000]);
}

#[tokio::test]
async fn bitcoin_refusals__should_be_for_good_only_where_that_is_certain() {
    let folder = tempfile::tempdir().unwrap();
    let node = Bitcoind::rich(folder.path(), &["-minrelaytxfee=0.00002"]).await;
    let (wallet, one, other) = (TestWallet::new(5), TestWallet::new(6), TestWallet::new(7));
    node.pay(&wallet.address, 1_000_000).await;
    node.mine(1).await;
    let client = node.client();
    let outputs = wallet.outputs(&client).await;

    let cheap = wallet.pays(&outputs, &one.address, 400_000, 1);
    let (code, reason) = refusal(client.broadcast(&cheap).await);
    assert_eq!(code, ExecuteCode::InsufficientGasFee, "{reason}");
    // What it would spend is not spent, by what this node knows.
    let (standing, _) = doubtful(client.broadcast(&again(&cheap)).await);
    assert_eq!(standing, Standing::Open);

    // Two payments with the same output.
    let first = wallet.pays(&outputs, &one.address, 400_000, 5);
    let second = wallet.pays(&outputs, &other.address, 400_000, 5);
    assert_eq!(client.broadcast(&first).await, BroadcastOutcome::Accepted);
    let (_, reason) = refusal(client.broadcast(&second).await);
    assert!(reason.contains("another transaction"), "{reason}");
    let (standing, reason) = doubtful(client.broadcast(&again(&second)).await);
    assert!(reason.contains("another transaction"), "{reason}");
    assert_eq!(standing, Standing::Open, "the other one is in no block");
    // Without an index the node cannot say which of them is in the block.
    node.mine(1).await;
    refusal(client.broadcast(&second).await);
    let reason = doubt(client.broadcast(&again(&second)).await);
    assert!(reason.contains("txindex=1"), "{reason}");

    // One that spends what is not there, or not yet.
    let missing = UnspentOutput {
        txid: "ab".repeat(32),
        vout: 0,
        value: 1_000_000,
    };
    let early = wallet.pays(&[missing], &one.address, 400_000, 5);
    for early in [&early, &again(&early)] {
        let reason = doubt(client.broadcast(early).await);
        assert!(reason.contains("does not know (yet)"), "{reason}");
    }

    // As many transactions that wait for each other as a mempool takes.
    let mut last = wallet.outputs(&client).await;
    for _ in 0..25 {
        let [output] = &last[..] else {
            panic!("{last:?}");
        };
        let next = wallet.pays(&last, &one.address, 600, 5);
        assert_eq!(
            client.broadcast(&next).await,
            BroadcastOutcome::Accepted,
            "{output:?}"
        );
        last = wallet.outputs(&client).await;
    }
    let next = wallet.pays(&last, &one.address, 600, 5);
    let reason = doubt(client.broadcast(&next).await);
    assert!(reason.contains("too-long-mempool-chain"), "{reason}");
    node.mine(1).await;
    assert_eq!(
        client.broadcast(&again(&next)).await,
        BroadcastOutcome::Accepted
    );
}

#[tokio::test]
async fn bitcoin_nodes__should_watch_each_for_itself() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [first, second] = &folders;
    let first = Bitcoind::rich(first.path(), &["-txindex=1"]).await;
    let second = Bitcoind::start(second.path(), &["-txindex=1"]).await;
    let wallet = TestWallet::new(8);
    for satoshi in [100_000, 200_000] {
        first.pay(&wallet.address, satoshi).await;
    }
    first.mine(1).await;
    assert_eq!(first.call("getrawmempool", json!([])).await, json!([]));
    let copy = async || {
        let have = second.ask("/", "getblockcount", json!([])).await.unwrap();
        let tip = first.call("getblockcount", json!([])).await;
        let (have, tip) = (have["result"].as_u64().unwrap(), tip.as_u64().unwrap());
        for height in have + 1..=tip {
            let hash = first.call("getblockhash", json!([height])).await;
            let block = first.call("getblock", json!([hash, 0])).await;
            second
                .ask("/", "submitblock", json!([block]))
                .await
                .unwrap();
        }
    };
    copy().await;
    let both = connect(vec![first.endpoint(), second.endpoint()], 2);
    assert_eq!(wallet.values(&both).await, [100_000, 200_000]);

    // Only the first has the payment, until it is in a block.
    let outputs = wallet.outputs(&both).await;
    let payment = wallet.pays(&outputs, &TestWallet::new(9).address, 150_000, 5);
    assert_eq!(
        first.client().broadcast(&payment).await,
        BroadcastOutcome::Accepted
    );
    let chain_data = both.chain_data(&wallet.queries(), 0).await;
    assert!(
        matches!(chain_data, Err(ChainError::Unknown(_))),
        "{chain_data:?}"
    );
    first.mine(1).await;
    copy().await;
    assert_eq!(
        wallet.values(&both).await,
        [200_000 - 150_000 - 141 * 5, 100_000]
    );

    // An index of all transactions says that another one spent the output.
    let late = wallet.pays(&outputs, &TestWallet::new(10).address, 150_000, 5);
    for (age_ms, expected) in [(0, Standing::Passed), (3_600_000, Standing::Void)] {
        let late = BroadcastRequest {
            age_ms,
            ..again(&late)
        };
        let (standing, reason) = doubtful(both.broadcast(&late).await);
        assert!(reason.contains("another transaction"), "{reason}");
        assert_eq!(standing, expected);
    }
    assert_eq!(
        both.broadcast(&again(&payment)).await,
        BroadcastOutcome::Accepted
    );
}

#[tokio::test]
async fn head__should_be_the_height_of_the_bitcoin_chain() {
    let folder = tempfile::tempdir().unwrap();
    let node = Bitcoind::rich(folder.path(), &[]).await;
    let chain = connect(vec![node.endpoint()], 1);
    assert_eq!(chain.head().await, Ok(Some(RICH_HEIGHT.into())));
    node.mine(2).await;
    assert_eq!(chain.head().await, Ok(Some(u64::from(RICH_HEIGHT) + 2)));
}

#[tokio::test]
async fn a_bitcoin_node_without_wallets__should_say_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let node = Bitcoind::start(folder.path(), &["-disablewallet=1"]).await;
    match node
        .client()
        .chain_data(&TestWallet::new(11).queries(), 0)
        .await
    {
        Err(ChainError::Unknown(reason)) => assert!(reason.contains("disablewallet=1"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

/// Sent at the start of the epoch.
pub fn tracked(wallet: &TestWallet, broadcast_request: &BroadcastRequest) -> TrackedTransaction {
    TrackedTransaction {
        signed: broadcast_request.signed.clone(),
        from: wallet.address.clone(),
        sent_at_ms: 0,
    }
}

#[tokio::test]
async fn sightings__should_say_where_bitcoin_transactions_are() {
    let folder = tempfile::tempdir().unwrap();
    let node = Bitcoind::rich(folder.path(), &[]).await;
    let (wallet, one, other) = (TestWallet::new(5), TestWallet::new(6), TestWallet::new(7));
    node.pay(&wallet.address, 1_000_000).await;
    node.mine(1).await;
    let client = node.client();
    let outputs = wallet.outputs(&client).await;
    let first = wallet.pays(&outputs, &one.address, 400_000, 5);
    let second = wallet.pays(&outputs, &other.address, 400_000, 5);
    let both = [tracked(&wallet, &first), tracked(&wallet, &second)];
    let hour_ms = 3_600_000;
    let sighted = async |now_ms: u64| {
        let sighted = client.sightings(&both, now_ms).await;
        let [first, second] = sighted.try_into().unwrap();
        (first.unwrap(), second.unwrap())
    };
    let missing = || TransactionSighting::Missing;
    assert_eq!(sighted(0).await, (missing(), missing()));
    assert_eq!(client.broadcast(&first).await, BroadcastOutcome::Accepted);
    let waiting = TransactionSighting::Waiting;
    assert_eq!(sighted(hour_ms).await, (waiting, missing()));

    node.mine(1).await;
    let height = node
        .call("getblockcount", json!([]))
        .await
        .as_u64()
        .unwrap();
    let place = Inclusion {
        block: height,
        success: true,
    };
    let mined = || TransactionSighting::Mined(place);
    assert_eq!(sighted(0).await, (mined(), missing()));
    // What it spends is spent. That is not said of a young one: its node may be behind.
    let replaced = || TransactionSighting::Replaced(None);
    assert_eq!(sighted(hour_ms - 1).await, (mined(), missing()));
    node.mine(4).await;
    assert_eq!(sighted(0).await, (mined(), missing()));
    node.mine(1).await;
    let settled = || TransactionSighting::Final(place);
    assert_eq!(sighted(hour_ms).await, (settled(), replaced()));

    // The block is gone from the chain, and the transaction waits again.
    let block = node.call("getblockhash", json!([height])).await;
    node.call("invalidateblock", json!([block])).await;
    assert_eq!(sighted(0).await, (TransactionSighting::Waiting, missing()));

    // Another block has the other one: that block may go, too, until it is final.
    for _ in 0..6 {
        node.mine_without(&first.signed.tx_hash).await;
    }
    let own = node.call("getnewaddress", json!([])).await;
    let others = json!([own, [second.signed.transaction]]);
    node.call("generateblock", others).await;
    assert_eq!(sighted(hour_ms).await.0, missing());
    node.mine(5).await;
    let (first, _) = sighted(hour_ms).await;
    assert!(
        matches!(first, TransactionSighting::Replaced(_)),
        "{first:?}"
    );
}

/// The service itself: a pool that forgets, blocks that go, and a fee that is too low.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_on_bitcoin__should_be_followed_sent_again_and_sped_up_until_it_is_final() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Bitcoind::rich(folder.path(), &[]).await;
    let world = World::new();
    let chain = ChainKey::of(Network::Bitcoin, None);
    let policy = SpeedUpPolicy {
        after_blocks: 3,
        most_fee: 5_000,
    };
    let chains = ChainClients::default().with(chain, node.client());
    let chains = chains.with_speed_up(chain, policy);
    let gateway = world.start_with(Arc::clone(&world.store), chains).await;
    let vault = vault(&gateway, "main").await;
    let from = wallet(&gateway, vault, NetworkType::Bitcoin).await.address;
    node.pay(&from, 1_000_000).await;
    node.mine(1).await;
    let first = create(&gateway, pay(&from, 400_000)).await.uuid;
    let sent = outcome(&gateway, &first).await;
    assert_eq!(sent.error, None);
    let waiting = async |node: &Bitcoind| node.call("getrawmempool", json!([])).await;
    assert_eq!(waiting(&node).await, json!([sent.tx_hash]));

    // The node starts again, and has forgotten it. The wallet has no other request.
    node.restart(folder.path()).await;
    assert_eq!(waiting(&node).await, json!([]));
    until(async || {
        world.pass(1_000);
        waiting(&node).await == json!([sent.tx_hash])
    })
    .await;
    node.mine(1).await;
    let block = node.call("getbestblockhash", json!([])).await;
    until_status(&gateway, &first, Status::Mined).await;

    // Other blocks take over, which do not have it.
    node.call("invalidateblock", json!([block])).await;
    until_status(&gateway, &first, Status::Pending).await;
    assert!(noted(&world, "Pending", "no block includes it").await);
    let replacements = async || details(&gateway, &first).await.replaced_by_uuids;
    assert_eq!(replacements().await, [""; 0]);
    for _ in 0..3 {
        node.mine_without(&sent.tx_hash).await;
        a_while().await;
    }
    until(async || replacements().await.len() == 1).await;
    let second = replacements().await.remove(0);
    let faster = outcome(&gateway, &second).await;
    assert_eq!(faster.error, None);
    assert_eq!(waiting(&node).await, json!([faster.tx_hash]));
    node.mine(1).await;
    until_status(&gateway, &second, Status::Mined).await;
    node.mine(5).await;
    until_status(&gateway, &second, Status::Final).await;
    let shown = until_status(&gateway, &first, Status::Replaced).await;
    assert_eq!(shown.replaced_by, faster.tx_hash);
    assert_eq!(details(&gateway, &first).await.tx_hash, sent.tx_hash);
    assert_eq!(world.followed().await, 0);
}

#[tokio::test]
async fn sightings__should_name_the_bitcoin_transaction_that_came_instead() {
    let folder = tempfile::tempdir().unwrap();
    let node = Bitcoind::rich(folder.path(), &["-mempoolfullrbf=1"]).await;
    let (wallet, one, other) = (TestWallet::new(5), TestWallet::new(6), TestWallet::new(7));
    node.pay(&wallet.address, 1_000_000).await;
    node.mine(1).await;
    let client = node.client();
    let outputs = wallet.outputs(&client).await;
    let first = wallet.pays(&outputs, &one.address, 400_000, 5);
    let second = wallet.pays(&outputs, &other.address, 400_000, 50);
    assert_eq!(client.broadcast(&first).await, BroadcastOutcome::Accepted);
    assert_eq!(client.broadcast(&second).await, BroadcastOutcome::Accepted);
    node.mine(6).await;
    let sighted = client.sightings(&[tracked(&wallet, &first)], 0).await;
    let by = second.signed.tx_hash.clone();
    assert_eq!(sighted, [Ok(TransactionSighting::Replaced(Some(by)))]);
}

#[tokio::test]
async fn sightings__should_take_no_single_bitcoin_node_s_word_for_the_end() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [first, second] = &folders;
    // They are not connected: to the second one, none of this has happened.
    let rich = Bitcoind::rich(first.path(), &[]).await;
    let poor = Bitcoind::rich(second.path(), &[]).await;
    let wallet = TestWallet::new(8);
    rich.pay(&wallet.address, 1_000_000).await;
    rich.mine(1).await;
    let outputs = wallet.outputs(&rich.client()).await;
    let payment = wallet.pays(&outputs, &wallet.address, 400_000, 5);
    assert_eq!(
        rich.client().broadcast(&payment).await,
        BroadcastOutcome::Accepted
    );
    rich.mine(7).await;
    for nodes in [[&rich, &poor], [&poor, &rich]] {
        let client = connect(nodes.map(Bitcoind::endpoint).to_vec(), 2);
        let sighted = client.sightings(&[tracked(&wallet, &payment)], 0).await;
        assert!(
            !matches!(sighted.as_slice(), [Ok(TransactionSighting::Final(_))]),
            "{sighted:?}"
        );
    }
}
