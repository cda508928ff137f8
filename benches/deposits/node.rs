//! A double of an EVM node for measurements: blocks of 200 transactions that stand ready as bytes, and a count of what is
//! asked.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use axum::{
    Router, body::Bytes, extract::State, http::header::CONTENT_TYPE, response::IntoResponse,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Of each block.
pub const TRANSACTIONS: u64 = 200;
/// A token that is configured; nobody moves it.
pub const TOKEN: &str = "0x00000000000000000000000000000000000d0111";
pub const CHAIN: u64 = 31_338;

fn hash(of: &[&[u8]]) -> String {
    let hash = of
        .iter()
        .fold(Sha256::new(), |all, one| all.chain_update(one));
    format!("0x{}", hex::encode(hash.finalize()))
}

fn block_hash(number: u64) -> String {
    hash(&[b"block", &number.to_be_bytes()])
}

/// The hash of a transaction of a block.
pub fn tx_hash(block: u64, number: u64) -> String {
    hash(&[b"tx", &block.to_be_bytes(), &number.to_be_bytes()])
}

struct Ready {
    whole: String,
    header: String,
}

#[derive(Default)]
struct Chain {
    blocks: Vec<Ready>,
    /// The receipts of what is paid to addresses of ours.
    receipts: BTreeMap<String, Value>,
    /// When blocks were first asked for.
    asked_at: BTreeMap<u64, Instant>,
}

#[derive(Default)]
pub struct NodeDouble {
    chain: Mutex<Chain>,
    calls: AtomicU64,
}

impl NodeDouble {
    /// It with its URL.
    pub async fn start() -> (Arc<Self>, String) {
        let node = Arc::new(Self::default());
        (0..8).for_each(|_| _ = node.add(&[]));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(Arc::clone(&node));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        (node, url)
    }

    /// Adds a block, which pays 5 wei to each of these addresses. Its number.
    pub fn add(&self, paid: &[&str]) -> u64 {
        let mut chain = self.chain.lock();
        let number = chain.blocks.len() as u64;
        let of_block = block_hash(number);
        let mut transactions = Vec::new();
        for index in 0..TRANSACTIONS {
            let id = tx_hash(number, index);
            let to = match paid.get(index as usize) {
                Some(address) => (*address).to_owned(),
                None => hash(&[b"to", id.as_bytes()])[..42].to_owned(),
            };
            let from = hash(&[b"from", id.as_bytes()])[..42].to_owned();
            transactions.push(json!({
                "hash": id, "blockHash": of_block, "blockNumber": format!("{number:#x}"), "from": from, "to": to,
                "value": "0x5", "transactionIndex": format!("{index:#x}"), "gas": "0x5208", "gasPrice": "0x3b9aca00",
                "input": "0x", "nonce": "0x1", "type": "0x2", "chainId": format!("{CHAIN:#x}"),
                "r": of_block, "s": of_block, "v": "0x1",
            }));
            if (index as usize) < paid.len() {
                let receipt = json!({"transactionHash": id, "blockHash": of_block, "blockNumber": format!("{number:#x}"),
                    "from": from, "to": to, "status": "0x1", "logs": [], "gasUsed": "0x5208",
                    "effectiveGasPrice": "0x3b9aca00"});
                chain.receipts.insert(id, receipt);
            }
        }
        let seconds = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs();
        let header = json!({"number": format!("{number:#x}"), "hash": of_block,
            "parentHash": block_hash(number.wrapping_sub(1)), "timestamp": format!("{seconds:#x}"), "transactions": []});
        let mut whole = header.clone();
        whole["transactions"] = json!(transactions);
        chain.blocks.push(Ready {
            whole: whole.to_string(),
            header: header.to_string(),
        });
        number
    }

    /// A block as it is answered.
    pub fn text(&self, number: u64) -> String {
        self.chain.lock().blocks[number as usize].whole.clone()
    }

    /// Calls since this was last asked.
    pub fn take_calls(&self) -> u64 {
        self.calls.swap(0, Ordering::SeqCst)
    }

    /// When a block was first asked for.
    pub fn asked_at(&self, number: u64) -> Option<Instant> {
        self.chain.lock().asked_at.get(&number).copied()
    }

    fn result(&self, call: &Value) -> String {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let mut chain = self.chain.lock();
        let newest = chain.blocks.len() as u64 - 1;
        let params = &call["params"];
        match call["method"].as_str().unwrap() {
            "eth_chainId" => json!(format!("{CHAIN:#x}")).to_string(),
            "eth_blockNumber" => json!(format!("{newest:#x}")).to_string(),
            "eth_getBlockByNumber" => {
                let number = match params[0].as_str().unwrap() {
                    "latest" | "pending" => newest,
                    "finalized" | "safe" => newest.saturating_sub(2),
                    "earliest" => 0,
                    text => u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap(),
                };
                let is_whole = params[1] == true;
                if is_whole {
                    chain.asked_at.entry(number).or_insert_with(Instant::now);
                }
                match chain.blocks.get(number as usize) {
                    None => "null".to_owned(),
                    Some(ready) if is_whole => ready.whole.clone(),
                    Some(ready) => ready.header.clone(),
                }
            }
            "eth_getBlockByHash" => {
                let is_it = |number: &u64| params[0] == json!(block_hash(*number));
                match (0..=newest).rev().find(is_it) {
                    Some(number) => chain.blocks[number as usize].header.clone(),
                    None => "null".to_owned(),
                }
            }
            "eth_getLogs" => "[]".to_owned(),
            "eth_getTransactionReceipt" => {
                let receipt = chain.receipts.get(params[0].as_str().unwrap());
                receipt.map_or("null".to_owned(), Value::to_string)
            }
            // What nothing here hangs on: such as prices and balances.
            _ => "null".to_owned(),
        }
    }

    fn reply(&self, call: &Value) -> String {
        format!(
            r#"{{"jsonrpc":"2.0","id":{},"result":{}}}"#,
            call["id"],
            self.result(call)
        )
    }
}

async fn answer(State(node): State<Arc<NodeDouble>>, body: Bytes) -> impl IntoResponse {
    let asked: Value = serde_json::from_slice(&body).unwrap();
    let text = match asked.as_array() {
        None => node.reply(&asked),
        Some(calls) => {
            let replies: Vec<_> = calls.iter().map(|call| node.reply(call)).collect();
            format!("[{}]", replies.join(","))
        }
    };
    ([(CONTENT_TYPE, "application/json")], text)
}
