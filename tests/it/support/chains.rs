//! Chain nodes: programs of tests/node/nodes.

use std::{
    path::Path,
    process::{ChildStdin, Command},
};

use serde_json::{Value, json};

use super::{Process, eventually, http_client, node_tool};

/// A node of tests/node/nodes. It ends with this value.
pub struct Node {
    _process: Process,
    /// It ends when this closes, also when the test is killed.
    _leash: Option<ChildStdin>,
    pub url: String,
    http: reqwest::Client,
}

impl Node {
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
