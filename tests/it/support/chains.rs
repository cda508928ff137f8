//! Chain nodes: programs of tests/node/nodes, and a real bitcoind.

use std::{
    fs,
    path::Path,
    process::{ChildStdin, Command, Stdio},
};

use serde_json::{Value, json};

use super::{Process, eventually, free_port, http_client, node_tool};

/// A node of tests/node/nodes. It ends with this value.
pub struct Node {
    process: Process,
    /// It ends when this closes, also when the test is killed.
    _leash: Option<ChildStdin>,
    pub url: String,
    http: reqwest::Client,
}

impl Node {
    /// Starts `tests/node/nodes/<name>.mjs`.
    pub async fn start(folder: &Path, name: &str) -> Self {
        let log = folder.join(format!("{name}.log"));
        let mut command = Command::new(node_tool("node_modules/node/bin/node"));
        command.arg(node_tool(&format!("nodes/{name}.mjs")));
        let (mut process, leash) = Process::start_on_leash(&mut command, &log);
        let port = eventually("the node listens", async || {
            process.assert_running();
            let log = process.log();
            let (_, port) = log.lines().find_map(|line| line.split_once("listening "))?;
            port.parse::<u16>().ok()
        })
        .await;
        Self {
            process,
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

    pub fn log(&self) -> String {
        self.process.log()
    }
}

/// A real Bitcoin node on a chain of its own, with a wallet of the tests that mines.
pub struct Bitcoind {
    process: Process,
    /// Its address, without user and password.
    pub url: String,
    /// `user:password`.
    pub login: String,
    http: reqwest::Client,
}

impl Bitcoind {
    pub async fn start(folder: &Path) -> Self {
        let port = free_port();
        let data = folder.join("bitcoind");
        fs::create_dir_all(&data).unwrap();
        let login = "covault:of-the-tests".to_owned();
        let (user, password) = login.split_once(':').unwrap();
        let process = Process::start(
            Command::new(node_tool("bitcoind"))
                .args([
                    "-regtest",
                    "-server",
                    "-listen=0",
                    "-txindex=1",
                    "-fallbackfee=0.0001",
                ])
                .arg(format!("-datadir={}", data.display()))
                .arg(format!("-rpcport={port}"))
                .arg(format!("-rpcuser={user}"))
                .arg(format!("-rpcpassword={password}")),
            &folder.join("bitcoind.log"),
        );
        let mut node = Self {
            process,
            url: format!("http://127.0.0.1:{port}"),
            login,
            http: http_client(),
        };
        eventually("bitcoind answers", async || {
            node.process.assert_running();
            let answer = node.ask("getblockchaininfo", json!([])).await?;
            answer["error"].is_null().then_some(())
        })
        .await;
        node.call("createwallet", json!(["tests"])).await;
        node.mine(101).await;
        node
    }

    async fn ask(&self, method: &str, params: Value) -> Option<Value> {
        let (user, password) = self.login.split_once(':')?;
        let body = json!({"jsonrpc": "1.0", "id": 1, "method": method, "params": params});
        let path = match method {
            "createwallet" | "getblockchaininfo" => "/",
            _ => "/wallet/tests",
        };
        self.http
            .post(format!("{}{path}", self.url))
            .basic_auth(user, Some(password))
            .json(&body)
            .send()
            .await
            .ok()?
            .json()
            .await
            .ok()
    }

    /// A call of the node or of the tests' wallet that must succeed.
    pub async fn call(&self, method: &str, params: Value) -> Value {
        let answer = self.ask(method, params).await.unwrap();
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Blocks, whose coins go to the tests' wallet.
    pub async fn mine(&self, blocks: u32) {
        let address = self.call("getnewaddress", json!([])).await;
        self.call("generatetoaddress", json!([blocks, address]))
            .await;
    }

    /// Pays to the script of a mainnet address (this chain writes its addresses otherwise), and
    /// mines.
    pub async fn fund(&self, address: &str, satoshi: u64) {
        let own = Self::own_form(address);
        self.call("sendtoaddress", json!([own, bitcoin_amount(satoshi)]))
            .await;
        self.mine(1).await;
    }

    /// A version 0 segwit address as this chain writes it.
    pub fn own_form(address: &str) -> String {
        super::outside("bitcoinRegtest", json!({"address": address}))["address"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// Confirmed coins of an address, in satoshi.
    pub async fn balance(&self, address: &str) -> u64 {
        let found = self
            .call(
                "scantxoutset",
                json!(["start", [format!("addr({})", Self::own_form(address))]]),
            )
            .await;
        satoshi(&found["total_amount"])
    }
}

/// Satoshi as the node's JSON has them, in coins.
pub fn bitcoin_amount(satoshi: u64) -> Value {
    let text = format!("{}.{:08}", satoshi / 100_000_000, satoshi % 100_000_000);
    json!(text)
}

/// Coins as the node's JSON has them, in satoshi.
pub fn satoshi(coins: &Value) -> u64 {
    (coins.as_f64().unwrap() * 1e8).round() as u64
}
