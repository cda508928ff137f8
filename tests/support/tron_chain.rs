//! Blocks of TRON, as a double of its nodes gives them.

use covault_core::deposit::{DepositNetwork, transfer::Account};
use serde_json::{Value, json};

pub const USDT: &str = "TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t";
pub const TRANSFER: &str = "ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef";

pub fn account(text: &str) -> [u8; 20] {
    Account::parse(DepositNetwork::Tron, text).unwrap().0
}

pub fn address(account: [u8; 20]) -> String {
    format!("41{}", hex::encode(account))
}

/// A transaction with what became of it.
pub type Transaction = (Value, Value);

/// Blocks with their results, and how many of them are solid.
#[derive(Default)]
pub struct TronChain {
    pub blocks: Vec<(Value, Value)>,
    pub solid: usize,
    /// It knows no call for headers, and its newest block is of so many bytes.
    pub full: Option<usize>,
}

impl TronChain {
    pub fn mine(&mut self, fork: u8, now_ms: u64, transactions: Vec<Transaction>) {
        let number = self.blocks.len();
        let block_id = format!("{number:016x}{}", hex::encode([fork; 24]));
        let parent = match self.blocks.last() {
            Some((block, _)) => block["blockID"].clone(),
            None => json!("00".repeat(32)),
        };
        let infos = transactions.iter().map(|(_, info)| {
            let mut info = info.clone();
            (info["blockNumber"], info["blockTimeStamp"]) = (json!(number), json!(now_ms));
            info
        });
        let infos: Vec<_> = infos.collect();
        let listed: Vec<_> = transactions
            .iter()
            .map(|(transaction, _)| transaction)
            .collect();
        let raw = json!({"number": number, "parentHash": parent, "timestamp": now_ms});
        let block =
            json!({"blockID": block_id, "block_header": {"raw_data": raw}, "transactions": listed});
        self.blocks.push((block, json!(infos)));
    }

    pub fn answer(&self, path: &str, body: &Value) -> Option<Value> {
        let header = |at: usize| {
            let mut block = self.blocks[at].0.clone();
            block.as_object_mut().unwrap().remove("transactions");
            block
        };
        let newest = self.blocks.len().saturating_sub(1);
        match (path, self.full) {
            ("/wallet/getblock", None) => return Some(header(newest)),
            ("/walletsolidity/getblock", None) => return Some(header(self.solid)),
            ("/wallet/getblock" | "/walletsolidity/getblock", Some(_)) => return None,
            ("/wallet/getnowblock", Some(bytes)) => {
                let mut block = self.blocks[newest].0.clone();
                block["raw"] = json!("0".repeat(bytes));
                return Some(block);
            }
            _ => {}
        }
        Some(self.answer_blocks(path, body))
    }

    fn answer_blocks(&self, path: &str, body: &Value) -> Value {
        let number = body["num"]
            .as_u64()
            .and_then(|number| usize::try_from(number).ok());
        let at = number.and_then(|number| self.blocks.get(number));
        match path {
            "/wallet/getnowblock" => self.blocks.last().unwrap().0.clone(),
            "/walletsolidity/getnowblock" => self.blocks[self.solid].0.clone(),
            "/wallet/getblockbynum" => at.map_or(json!({}), |(block, _)| block.clone()),
            "/wallet/gettransactioninfobyblocknum" => {
                at.map_or(json!([]), |(_, infos)| infos.clone())
            }
            "/wallet/getblockbyid" => {
                let found = self
                    .blocks
                    .iter()
                    .find(|(block, _)| block["blockID"] == body["value"]);
                found.map_or(json!({}), |(block, _)| block.clone())
            }
            other => panic!("{other}"),
        }
    }
}
