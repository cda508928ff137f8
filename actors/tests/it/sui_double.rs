//! A chain of coin objects in memory: each transaction makes new versions of what it takes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_actors::chain_rpc::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainError, ChainRefusal, TrackedTransaction,
    TransactionSighting,
};
use covault_core::{
    fault::ExecuteCode,
    networks::{
        ChainData, Queries,
        sui::{ChainData as SuiChainData, CoinObject, GasUsed, SuiValidity},
    },
};
use sha2::{Digest as _, Sha256};
use sui_sdk_types::Transaction;

use crate::chain_double::FINAL;

/// What every payment takes away, whatever it pays.
const TAKEN: u64 = 1_000_000;

/// See the module.
#[derive(Default)]
pub struct SuiDouble {
    /// Version and balance by object.
    coins: Mutex<BTreeMap<String, (u64, u64)>>,
    /// What every address has of each token, in no coin object.
    pub tokens: AtomicU64,
    done: Mutex<BTreeSet<String>>,
    /// Every different transaction that it ever received.
    pub handed: Mutex<BTreeSet<String>>,
    /// Transactions that wanted a coin in a version that is no more.
    pub conflicts: AtomicUsize,
    /// It refuses what it gets, and keeps it.
    pub refuses: AtomicBool,
    pub kept: Mutex<Vec<BroadcastRequest>>,
}

fn digest(object: &str, version: u64) -> String {
    let digest = Sha256::digest(format!("{object} {version}"));
    bs58::encode(digest).into_string()
}

fn id(number: u8) -> String {
    format!("0x{}", hex::encode([number; 32]))
}

impl SuiDouble {
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Gives this many coins to every address.
    pub fn fund(&self, count: u8, balance: u64) {
        let coins = (1..=count).map(|number| (id(number), (1, balance)));
        self.coins.lock().unwrap().extend(coins);
    }

    /// Gives every address another coin.
    pub fn add(&self, number: u8, balance: u64) {
        self.coins.lock().unwrap().insert(id(number), (1, balance));
    }

    /// The balance of a coin in its first version.
    pub fn balance_of(&self, number: u8) -> Option<u64> {
        let coins = self.coins.lock().unwrap();
        let (version, balance) = coins.get(&id(number)).copied()?;
        (version == 1).then_some(balance)
    }

    pub fn executed(&self) -> usize {
        self.done.lock().unwrap().len()
    }
}

#[async_trait]
impl ChainClient for SuiDouble {
    async fn chain_data(&self, queries: &Queries, _now_ms: u64) -> Result<ChainData, ChainError> {
        tokio::task::yield_now().await;
        let Queries::Sui(queries) = queries else {
            panic!("nothing is known about {queries:?}")
        };
        let coins = self.coins.lock().unwrap();
        let coin = |(id, (version, balance)): (&String, &(u64, u64))| CoinObject {
            object_id: id.clone(),
            version: *version,
            digest: digest(id, *version),
            balance: *balance,
            origin: None,
        };
        Ok(ChainData::Sui(SuiChainData {
            reference_gas_price: queries.price.then_some(750),
            gas_used: queries.simulation.then(|| {
                Box::new(GasUsed {
                    computation_cost: 750_000,
                    storage_cost: 2_000_000,
                    storage_rebate: 1_000_000,
                })
            }),
            sui_coins: coins.iter().map(coin).collect(),
            sui_address_balance: 0,
            coins: Vec::new(),
            coin_address_balance: match queries.payment.token() {
                Some(_) => self.tokens.load(Ordering::SeqCst),
                None => 0,
            },
            required: Vec::new(),
            validity: Some(SuiValidity {
                epoch: 1,
                chain_identifier: digest("chain", 0),
                nonce: Some(0),
            }),
        }))
    }

    async fn broadcast(&self, broadcast_request: &BroadcastRequest) -> BroadcastOutcome {
        tokio::task::yield_now().await;
        let signed = broadcast_request.signed.clone();
        self.handed
            .lock()
            .unwrap()
            .insert(signed.transaction.clone());
        if self.done.lock().unwrap().contains(&signed.tx_hash) {
            return BroadcastOutcome::Accepted;
        }
        if self.refuses.load(Ordering::SeqCst) {
            self.kept.lock().unwrap().push(broadcast_request.clone());
            return BroadcastOutcome::Refused(ChainRefusal {
                reason: "the sender cannot pay".into(),
                code: ExecuteCode::InsufficientFunds,
            });
        }
        let signed: serde_json::Value = serde_json::from_str(&signed.transaction).unwrap();
        let bytes = STANDARD.decode(signed["txBytes"].as_str().unwrap());
        let transaction: Transaction = bcs::from_bytes(&bytes.unwrap()).unwrap();
        let mut coins = self.coins.lock().unwrap();
        let mut taken = Vec::new();
        for object in &transaction.gas_payment.objects {
            let id = object.object_id().to_string();
            match coins.get(&id) {
                Some((version, balance)) if *version == object.version() => {
                    taken.push((id, *version, *balance));
                }
                _ => {
                    self.conflicts.fetch_add(1, Ordering::SeqCst);
                    return BroadcastOutcome::Refused(ChainRefusal {
                        reason: "an object is not there in this version".into(),
                        code: ExecuteCode::Unspecified,
                    });
                }
            }
        }
        let version = taken.iter().map(|(_, version, _)| version).max().unwrap() + 1;
        let balance = taken.iter().map(|(_, _, balance)| balance).sum::<u64>() - TAKEN;
        for (id, _, _) in &taken {
            coins.remove(id);
        }
        coins.insert(taken[0].0.clone(), (version, balance));
        self.done
            .lock()
            .unwrap()
            .insert(broadcast_request.signed.tx_hash.clone());
        BroadcastOutcome::Accepted
    }

    async fn sightings(
        &self,
        transactions: &[TrackedTransaction],
        _now_ms: u64,
    ) -> Vec<Result<TransactionSighting, ChainError>> {
        // What it never had is nowhere.
        let (done, handed) = (self.done.lock().unwrap(), self.kept.lock().unwrap());
        let is_kept = |hash: &str| handed.iter().any(|kept| kept.signed.tx_hash == hash);
        let sighted = |one: &TrackedTransaction| match one.signed.tx_hash.as_str() {
            hash if is_kept(hash) && !done.contains(hash) => TransactionSighting::Missing,
            _ => FINAL,
        };
        transactions.iter().map(|one| Ok(sighted(one))).collect()
    }

    async fn balance(&self, _address: &str, _token: Option<&str>) -> Result<String, ChainError> {
        Ok("0".into())
    }
}
