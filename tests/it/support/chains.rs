//! Chain nodes: programs of tests/node/nodes, and a real bitcoind.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{ChildStdin, Command},
};

use serde_json::{Value, json};

use super::{Process, eventually, free_port, http_client, node_tool, outside};

/// A node of tests/node/nodes. It ends with this value.
pub struct ChainNode {
    _process: Process,
    /// It ends when this closes, also when the test is killed.
    _leash: Option<ChildStdin>,
    pub url: String,
    http: reqwest::Client,
}

impl ChainNode {
    /// Starts `tests/node/nodes/<name>.mjs`.
    pub async fn start(folder: &Path, name: &str) -> Self {
        Self::start_with(folder, name, &[]).await
    }

    /// The same, with arguments.
    pub async fn start_with(folder: &Path, name: &str, arguments: &[&str]) -> Self {
        let log = folder.join(format!("{}.log", [&[name], arguments].concat().join("-")));
        let mut command = Command::new(node_tool("node_modules/node/bin/node"));
        command
            .arg(node_tool(&format!("nodes/{name}.mjs")))
            .args(arguments);
        let (mut process, leash) = Process::start_on_leash(&mut command, &log);
        let port = eventually("the node listens", async || {
            process.assert_running();
            let log = process.log();
            let (_, port) = log.lines().find_map(|line| line.split_once("listening "))?;
            port.parse::<u16>().ok()
        })
        .await;
        Self {
            _process: process,
            _leash: leash,
            url: format!("http://127.0.0.1:{port}"),
            http: http_client(),
        }
    }

    /// Posts JSON to a path and gives the JSON that comes back.
    pub async fn post(&self, path: &str, body: Value) -> Value {
        let response = self
            .http
            .post(format!("{}{path}", self.url))
            .json(&body)
            .send()
            .await
            .unwrap();
        let status = response.status();
        let text = response.text().await.unwrap();
        assert!(status.is_success(), "{path}: {text}");
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }

    /// A JSON-RPC call that must succeed.
    pub async fn call(&self, method: &str, params: Value) -> Value {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let answer = self.post("/", body).await;
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }
}

/// A real Bitcoin node on a chain of its own, with a wallet of the tests that mines.
pub struct Bitcoind {
    process: Process,
    /// Its address, with user and password.
    pub url: String,
    http: reqwest::Client,
}

/// An address of mainnet as regtest writes it, and its script in hex.
pub struct RegtestAddress {
    pub address: String,
    pub script: String,
}

impl Bitcoind {
    pub async fn start(folder: &Path) -> Self {
        let (user, password) = ("covault", "of-the-tests");
        let port = free_port();
        let data = folder.join("bitcoind");
        fs::create_dir_all(&data).unwrap();
        let process = Process::start(
            Command::new(node_tool("bitcoind"))
                .args(["-regtest", "-server", "-listen=0", "-fallbackfee=0.0001"])
                .arg(format!("-datadir={}", data.display()))
                .arg(format!("-rpcport={port}"))
                .arg(format!("-rpcuser={user}"))
                .arg(format!("-rpcpassword={password}")),
            &folder.join("bitcoind.log"),
        );
        let mut node = Self {
            process,
            url: format!("http://{user}:{password}@127.0.0.1:{port}"),
            http: http_client(),
        };
        eventually("bitcoind answers", async || {
            node.process.assert_running();
            let answer = node.ask("getblockchaininfo", json!([])).await?;
            answer["error"].is_null().then_some(())
        })
        .await;
        node.call("createwallet", json!(["tests"])).await;
        // Coins are spendable after 100. The wallet's lock times are up to 99 blocks before the tip, and
        // Bitcoin Knots refuses a lock time of 21 ("parasite-cat21").
        node.mine(130).await;
        node
    }

    async fn ask(&self, method: &str, params: Value) -> Option<Value> {
        let body = json!({"jsonrpc": "1.0", "id": 1, "method": method, "params": params});
        let path = match method {
            "createwallet" | "getblockchaininfo" => "/",
            _ => "/wallet/tests",
        };
        let request = self.http.post(format!("{}{path}", self.url)).json(&body);
        request.send().await.ok()?.json().await.ok()
    }

    /// A call of the node or of the tests' wallet that must succeed.
    pub async fn call(&self, method: &str, params: Value) -> Value {
        let answer = self.ask(method, params).await.unwrap();
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Blocks, whose coins go to the tests' wallet; the hash of the last.
    pub async fn mine(&self, blocks: u32) -> Value {
        let address = self.call("getnewaddress", json!([])).await;
        let hashes = self.call("generatetoaddress", json!([blocks, address]));
        hashes.await.as_array().unwrap().last().unwrap().clone()
    }

    /// A block with all that waits, by their ids, without what it pays the miner.
    pub async fn mine_one(&self) -> BTreeMap<String, Value> {
        let block = self.mine(1).await;
        // 2: with the fees.
        let block = self.call("getblock", json!([block, 2])).await;
        let transactions = block["tx"].as_array().unwrap().iter().skip(1);
        transactions
            .map(|one| (one["txid"].as_str().unwrap().to_owned(), one.clone()))
            .collect()
    }

    /// Pays to the script of a mainnet address (this chain writes its addresses otherwise), and
    /// mines.
    pub async fn fund(&self, address: &str, satoshi: u64) {
        let own = Self::regtest_address(address).address;
        let coins = format!("{}.{:08}", satoshi / 100_000_000, satoshi % 100_000_000);
        self.call("sendtoaddress", json!([own, coins])).await;
        self.mine(1).await;
    }

    /// A mainnet address as this chain writes it.
    pub fn regtest_address(address: &str) -> RegtestAddress {
        let answer = outside("bitcoinRegtest", json!({"address": address}));
        let text = |name: &str| answer[name].as_str().unwrap().to_owned();
        RegtestAddress {
            address: text("address"),
            script: text("script"),
        }
    }

    /// Confirmed coins of an address, in satoshi.
    pub async fn balance(&self, address: &str) -> u64 {
        let script = Self::regtest_address(address).script;
        let what = json!(["start", [format!("raw({script})")]]);
        let found = self.call("scantxoutset", what).await;
        satoshi(&found["total_amount"])
    }
}

/// Coins as the node's JSON has them, in satoshi.
pub fn satoshi(coins: &Value) -> u64 {
    (coins.as_f64().unwrap() * 1e8).round() as u64
}
