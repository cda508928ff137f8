//! A double of TRON that keeps accounts: it takes signed transactions, checks and charges them as java-tron does, and puts
//! them into blocks.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use prost::Message as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    http_double::{self, HttpResponse},
    tron_chain::{TRANSFER, Transaction, TronChain, USDT, account, address},
};

pub const ENERGY_PRICE: u64 = 100;
const BYTE_PRICE: u64 = 1_000;
/// 1 TRX for a new account, and 0.1 TRX in place of its bytes.
pub const ACTIVATION: u64 = 1_100_000;
/// Bytes that an account has for nothing, once it is activated.
const FREE_BYTES: u64 = 600;
const TRX_BYTES: u64 = 268;
const USDT_BYTES: u64 = 345;

#[derive(prost::Message)]
struct SignedMessage {
    #[prost(bytes, tag = "1")]
    raw: Vec<u8>,
    #[prost(bytes, repeated, tag = "2")]
    signatures: Vec<Vec<u8>>,
}

#[derive(prost::Message)]
struct RawMessage {
    #[prost(int64, tag = "8")]
    expiration: i64,
    #[prost(message, required, tag = "11")]
    contract: ContractMessage,
    #[prost(int64, tag = "18")]
    fee_limit: i64,
}

#[derive(prost::Message)]
struct ContractMessage {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(message, required, tag = "2")]
    parameter: ParameterMessage,
}

#[derive(prost::Message)]
struct ParameterMessage {
    #[prost(bytes, tag = "2")]
    value: Vec<u8>,
}

#[derive(prost::Message)]
struct TrxMessage {
    #[prost(bytes, tag = "1")]
    owner: Vec<u8>,
    #[prost(bytes, tag = "2")]
    to: Vec<u8>,
    #[prost(int64, tag = "3")]
    amount: i64,
}

#[derive(prost::Message)]
struct CallMessage {
    #[prost(bytes, tag = "1")]
    owner: Vec<u8>,
    #[prost(bytes, tag = "2")]
    contract: Vec<u8>,
    #[prost(bytes, tag = "4")]
    data: Vec<u8>,
}

/// What somebody has sent.
#[derive(Clone, Debug)]
pub struct Sent {
    pub id: String,
    pub from: [u8; 20],
    pub to: [u8; 20],
    pub amount: u64,
    pub is_usdt: bool,
    fee_limit: u64,
    expires_ms: u64,
}

fn tail(bytes: &[u8]) -> [u8; 20] {
    bytes[bytes.len() - 20..].try_into().unwrap()
}

fn read(transaction: &str) -> Sent {
    let bytes = hex::decode(transaction).unwrap();
    let signed = SignedMessage::decode(bytes.as_slice()).unwrap();
    assert_eq!(signed.signatures[0].len(), 65);
    let raw = RawMessage::decode(signed.raw.as_slice()).unwrap();
    let value = raw.contract.parameter.value.as_slice();
    let (from, to, amount) = match raw.contract.kind {
        1 => {
            let trx = TrxMessage::decode(value).unwrap();
            (tail(&trx.owner), tail(&trx.to), trx.amount.unsigned_abs())
        }
        31 => {
            let call = CallMessage::decode(value).unwrap();
            assert_eq!(tail(&call.contract), account(USDT));
            assert_eq!(call.data[..4], [0xa9, 0x05, 0x9c, 0xbb]);
            let amount = call.data[60..68].try_into().unwrap();
            (
                tail(&call.owner),
                tail(&call.data[4..36]),
                u64::from_be_bytes(amount),
            )
        }
        other => panic!("{other}"),
    };
    Sent {
        id: hex::encode(Sha256::digest(&signed.raw)),
        from,
        to,
        amount,
        is_usdt: raw.contract.kind == 31,
        fee_limit: raw.fee_limit.unsigned_abs(),
        expires_ms: raw.expiration.unsigned_abs(),
    }
}

/// What accounts have after a block.
#[derive(Clone)]
struct HeldNow {
    number: usize,
    trx: BTreeMap<[u8; 20], u64>,
    usdt: BTreeMap<[u8; 20], u64>,
}

#[derive(Default)]
pub struct Bank {
    chain: TronChain,
    /// Of those that are activated.
    trx: BTreeMap<[u8; 20], u64>,
    usdt: BTreeMap<[u8; 20], u64>,
    used_bytes: BTreeMap<[u8; 20], u64>,
    /// What no block has yet.
    pending: Vec<Sent>,
    /// What it took, in order.
    pub taken: Vec<Sent>,
    /// The block that has a transaction, and whether it failed there.
    mined: BTreeMap<String, (usize, bool)>,
    /// What was burnt.
    pub burnt: u64,
    /// It takes transactions, and no block gets them.
    pub loses: bool,
    /// It says that all energy is so many times as much.
    pub energy_times: u64,
    /// Of calls that are tried it names only a part so small of the energy.
    pub energy_part: u64,
    /// It calls contracts alone, as nodes of before.
    pub knows_no_programs: bool,
    /// Where balances are asked for, one answers that got no block since this one.
    stuck: Option<HeldNow>,
    number: u8,
}

impl Bank {
    pub fn trx(&self, of: &str) -> u64 {
        self.trx.get(&account(of)).copied().unwrap_or_default()
    }

    pub fn usdt(&self, of: &str) -> u64 {
        self.usdt.get(&account(of)).copied().unwrap_or_default()
    }

    fn energy(&self, to: [u8; 20]) -> u64 {
        let has_some = self.usdt.get(&to).is_some_and(|amount| *amount > 0);
        let energy = if has_some { 64_285 } else { 130_285 };
        energy * self.energy_times.max(1)
    }

    fn bytes_cost(&mut self, of: [u8; 20], bytes: u64) -> u64 {
        let used = self.used_bytes.entry(of).or_default();
        match *used + bytes <= FREE_BYTES {
            true => {
                *used += bytes;
                0
            }
            false => bytes * BYTE_PRICE,
        }
    }

    /// Carries out what was sent: its fee, and whether it failed.
    fn settle(&mut self, sent: &Sent) -> (u64, bool) {
        let (fee, failed) = match sent.is_usdt {
            false => {
                let fee = match self.trx.contains_key(&sent.to) {
                    true => self.bytes_cost(sent.from, TRX_BYTES),
                    false => ACTIVATION,
                };
                assert!(self.trx[&sent.from] >= fee + sent.amount, "{sent:?}");
                *self.trx.get_mut(&sent.from).unwrap() -= sent.amount;
                *self.trx.entry(sent.to).or_default() += sent.amount;
                (fee, false)
            }
            true => {
                let bytes = self.bytes_cost(sent.from, USDT_BYTES);
                let energy = self.energy(sent.to) * ENERGY_PRICE;
                let most = sent.fee_limit.min(self.trx[&sent.from] - bytes);
                let there = self.usdt.get(&sent.from).copied().unwrap_or_default();
                if energy > most || there < sent.amount {
                    (bytes + energy.min(most), true)
                } else {
                    self.usdt.insert(sent.from, there - sent.amount);
                    *self.usdt.entry(sent.to).or_default() += sent.amount;
                    (bytes + energy, false)
                }
            }
        };
        *self.trx.get_mut(&sent.from).unwrap() -= fee;
        self.burnt += fee;
        (fee, failed)
    }

    /// As blocks and their results have it.
    fn shown(sent: &Sent, fee: u64, failed: bool) -> Transaction {
        let (from, to) = (address(sent.from), address(sent.to));
        let (kind, value) = match sent.is_usdt {
            true => (
                "TriggerSmartContract",
                json!({"owner_address": from, "contract_address": address(account(USDT))}),
            ),
            false => (
                "TransferContract",
                json!({"owner_address": from, "to_address": to, "amount": sent.amount}),
            ),
        };
        let contract = json!([{"type": kind, "parameter": {"value": value}}]);
        let result = if failed { "OUT_OF_ENERGY" } else { "SUCCESS" };
        let transaction = json!({"txID": sent.id, "ret": [{"contractRet": result}], "raw_data": {"contract": contract}});
        let mut info = json!({"id": sent.id});
        if fee > 0 {
            info["fee"] = json!(fee);
        }
        if failed {
            info["result"] = json!("FAILED");
        } else if sent.is_usdt {
            let word = |account: [u8; 20]| format!("{:0>64}", hex::encode(account));
            info["log"] = json!([{"address": hex::encode(account(USDT)), "topics": [TRANSFER, word(sent.from), word(sent.to)],
                "data": format!("{:064x}", sent.amount)}]);
        }
        (transaction, info)
    }

    /// A block with all that was sent. What is older than three blocks is solid.
    pub fn mine(&mut self, now_ms: u64) {
        let number = self.chain.blocks.len();
        let mut transactions = Vec::new();
        for sent in std::mem::take(&mut self.pending) {
            if sent.expires_ms <= now_ms {
                continue;
            }
            let (fee, failed) = self.settle(&sent);
            self.mined.insert(sent.id.clone(), (number, failed));
            transactions.push(Self::shown(&sent, fee, failed));
        }
        self.chain.mine(0, now_ms, transactions);
        self.chain.solid = number.saturating_sub(3);
    }

    /// Somebody outside pays, in the next block.
    pub fn pay(&mut self, to: &str, amount: u64, is_usdt: bool) {
        let from = [9; 20];
        self.number += 1;
        self.trx.insert(from, u64::MAX / 2);
        self.usdt.insert(from, u64::MAX / 2);
        self.pending.push(Sent {
            id: hex::encode([self.number; 32]),
            from,
            to: account(to),
            amount,
            is_usdt,
            fee_limit: 100_000_000,
            expires_ms: u64::MAX,
        });
    }

    /// USDT that nobody sees come, and the next block sends on.
    pub fn pay_unseen(&mut self, who: &str, amount: u64, on: &str) {
        self.number += 1;
        self.trx.insert(account(who), 100_000_000);
        self.usdt.insert(account(who), amount);
        self.pending.push(Sent {
            id: hex::encode([self.number; 32]),
            from: account(who),
            to: account(on),
            amount,
            is_usdt: true,
            fee_limit: 100_000_000,
            expires_ms: u64::MAX,
        });
    }

    /// USDT that no block shows.
    pub fn mint(&mut self, to: &str, amount: u64) {
        *self.usdt.entry(account(to)).or_default() += amount;
    }

    /// USDT that goes, and no block shows it.
    pub fn seize(&mut self, from: &str, amount: u64) {
        *self.usdt.get_mut(&account(from)).unwrap() -= amount;
    }

    fn held_now(&self) -> HeldNow {
        HeldNow {
            number: self.chain.blocks.len() - 1,
            trx: self.trx.clone(),
            usdt: self.usdt.clone(),
        }
    }

    /// From now on balances are those of now, or again of their time.
    pub fn stick(&mut self, is_stuck: bool) {
        self.stuck = is_stuck.then(|| self.held_now());
    }

    /// Coin that is there from the beginning.
    pub fn endow(&mut self, of: &str, sun: u64) {
        self.trx.insert(account(of), sun);
    }

    fn trial(&self, body: &Value) -> Value {
        let data = hex::decode(body["data"].as_str().unwrap()).unwrap();
        let said = |energy: u64, word: u64| {
            json!({"result": {"result": true}, "energy_used": energy, "constant_result": [format!("{word:064x}")],
                "transaction": {"ret": [{}]}})
        };
        if body.get("contract_address").is_none() {
            return self.balances(&data);
        }
        let who = tail(&data[4..36]);
        if data[..4] == [0x70, 0xa0, 0x82, 0x31] {
            return said(900, self.usdt.get(&who).copied().unwrap_or_default());
        }
        let owner = account(body["owner_address"].as_str().unwrap());
        let amount = u64::from_be_bytes(data[60..68].try_into().unwrap());
        if self.usdt.get(&owner).copied().unwrap_or_default() < amount {
            return json!({"result": {"result": true, "message": hex::encode("REVERT opcode executed")},
                "energy_used": 700, "constant_result": [""], "transaction": {"ret": [{"ret": "FAILED"}]}});
        }
        said(self.energy(who) / self.energy_part.max(1), 1)
    }

    /// A program that is on no chain: pairs of accounts and tokens stand behind it.
    fn balances(&self, data: &[u8]) -> Value {
        if self.knows_no_programs {
            return json!({"result": {"code": "OTHER_ERROR",
                "message": hex::encode("class java.security.InvalidParameterException : contract_address isn't set.")}});
        }
        let (pairs, _) = data[0x74..].as_chunks::<40>();
        let held = self.stuck.clone().unwrap_or_else(|| self.held_now());
        let mut output = format!("{:064x}", held.number);
        for pair in pairs {
            let who: [u8; 20] = pair[..20].try_into().unwrap();
            let kept = match pair[20..] == [0; 20] {
                true => &held.trx,
                false => &held.usdt,
            };
            output += &format!("{:064x}", kept.get(&who).copied().unwrap_or_default());
        }
        json!({"result": {"result": true}, "energy_used": 9_000, "constant_result": [output],
            "transaction": {"ret": [{}]}})
    }

    fn take(&mut self, body: &Value) -> Value {
        let sent = read(body["transaction"].as_str().unwrap());
        let known: BTreeSet<_> = self.taken.iter().map(|sent| sent.id.clone()).collect();
        if known.contains(&sent.id) {
            return json!({"result": false, "code": "DUP_TRANSACTION_ERROR", "message": ""});
        }
        let there = self.trx.get(&sent.from).copied();
        let least = if sent.is_usdt { 0 } else { sent.amount };
        if there.is_none_or(|there| there < least) {
            let words = "Validate TransferContract error, balance is not sufficient.";
            return json!({"result": false, "code": "CONTRACT_VALIDATE_ERROR", "message": hex::encode(words)});
        }
        self.taken.push(sent.clone());
        if !self.loses {
            self.pending.push(sent.clone());
        }
        json!({"result": true, "code": "SUCCESS", "txid": sent.id, "message": ""})
    }

    fn answer(&mut self, path: &str, body: &Value) -> Option<Value> {
        let of = |field: &str| account(body[field].as_str().unwrap());
        Some(match path {
            "/wallet/getaccount" => match self.trx.get(&of("address")) {
                Some(sun) => json!({"address": body["address"], "balance": sun}),
                None => json!({}),
            },
            "/wallet/getaccountresource" => match self.trx.contains_key(&of("address")) {
                true => {
                    let used = self
                        .used_bytes
                        .get(&of("address"))
                        .copied()
                        .unwrap_or_default();
                    json!({"freeNetLimit": FREE_BYTES, "freeNetUsed": used})
                }
                false => json!({}),
            },
            "/wallet/getcontract" => json!({"consume_user_resource_percent": 100}),
            "/wallet/getchainparameters" => json!({"chainParameter": [
                {"key": "getTransactionFee", "value": BYTE_PRICE}, {"key": "getEnergyFee", "value": ENERGY_PRICE}]}),
            "/wallet/triggerconstantcontract" => self.trial(body),
            "/wallet/broadcasthex" => self.take(body),
            "/wallet/gettransactionbyid" => {
                let mut taken = self.taken.iter();
                match taken.any(|sent| body["value"] == json!(sent.id)) && !self.loses {
                    true => json!({"txID": body["value"]}),
                    false => json!({}),
                }
            }
            "/wallet/gettransactioninfobyid" | "/walletsolidity/gettransactioninfobyid" => {
                let is_solid = path.starts_with("/walletsolidity");
                let mined = self.mined.get(body["value"].as_str().unwrap());
                match mined.filter(|(block, _)| !is_solid || *block <= self.chain.solid) {
                    None => json!({}),
                    Some((block, false)) => json!({"id": body["value"], "blockNumber": block}),
                    Some((block, true)) => {
                        json!({"id": body["value"], "blockNumber": block, "result": "FAILED"})
                    }
                }
            }
            _ => return self.chain.answer(path, body),
        })
    }

    /// Its node's address.
    pub async fn start(now_ms: u64) -> (Arc<Mutex<Self>>, String) {
        let bank: Arc<Mutex<Self>> = Arc::default();
        (0..5).for_each(|_| bank.lock().unwrap().mine(now_ms));
        let node = Arc::clone(&bank);
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
        (bank, url)
    }
}
