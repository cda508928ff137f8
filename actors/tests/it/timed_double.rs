//! TRON, Solana and Sonic SVM in memory: a block can have a transaction for some time after it was built, and none later.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
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
    networks::{ChainData, Queries, solana, tron},
    port::Clock as _,
    testing::ShiftedClock,
};

use crate::chain_double::FINAL;

/// Longer than any of its transactions can come, in milliseconds.
pub const LIFE_MS: u64 = 1_000_000;

/// See the module.
pub struct TimedDouble {
    clock: Arc<ShiftedClock>,
    /// All that it was sent, with the time at which it came first.
    sent: Mutex<BTreeMap<String, u64>>,
    blocks: Mutex<BTreeSet<String>>,
    /// The messages of these, each of which the chain takes once, whatever its signature is.
    messages: Mutex<BTreeMap<String, Vec<u8>>>,
    /// It refuses what it gets, and keeps it.
    pub refuses: AtomicBool,
    /// No block takes what it has.
    pub is_slow: AtomicBool,
    /// Its nodes do not agree on where a transaction is.
    pub is_blind: AtomicBool,
    /// What it says first where a transaction is, whatever is true.
    pub says: Mutex<VecDeque<TransactionSighting>>,
    /// How often it was asked where each one is.
    looks: Mutex<BTreeMap<String, usize>>,
}

impl TimedDouble {
    pub fn new(clock: Arc<ShiftedClock>) -> Arc<Self> {
        Arc::new(Self {
            clock,
            sent: Mutex::default(),
            blocks: Mutex::default(),
            messages: Mutex::default(),
            refuses: AtomicBool::new(false),
            is_slow: AtomicBool::new(false),
            is_blind: AtomicBool::new(false),
            says: Mutex::default(),
            looks: Mutex::default(),
        })
    }

    /// The hashes of all that it was ever sent.
    pub fn sent(&self) -> Vec<String> {
        self.sent.lock().unwrap().keys().cloned().collect()
    }

    /// How often it was asked where this one is.
    pub fn looks(&self, hash: &str) -> usize {
        self.looks.lock().unwrap().get(hash).copied().unwrap_or(0)
    }

    /// What blocks have.
    pub fn blocks(&self) -> Vec<String> {
        self.blocks.lock().unwrap().iter().cloned().collect()
    }

    /// A node that has kept a transaction brings it into a block. False where it is too late.
    pub fn takes_what_it_kept(&self, hash: &str) -> bool {
        let in_time = !self.is_over(hash);
        if in_time {
            self.take(hash);
        }
        in_time
    }

    /// Where a block has the same message with another signature, nothing changes.
    fn take(&self, hash: &str) {
        let messages = self.messages.lock().unwrap();
        let mut blocks = self.blocks.lock().unwrap();
        let is_there = |one: &String| messages.get(one) == messages.get(hash);
        if !blocks.iter().any(is_there) {
            blocks.insert(hash.to_owned());
        }
    }

    fn is_over(&self, hash: &str) -> bool {
        let sent = self.sent.lock().unwrap();
        let since = sent.get(hash).map(|at_ms| self.clock.now_ms() - at_ms);
        since.is_some_and(|since_ms| since_ms >= LIFE_MS - 50_000)
    }
}

#[async_trait]
impl ChainClient for TimedDouble {
    async fn chain_data(&self, queries: &Queries, now_ms: u64) -> Result<ChainData, ChainError> {
        let number = (now_ms / 1_000).to_be_bytes();
        Ok(match queries {
            Queries::Tron(_) => ChainData::Tron(
                tron::Block {
                    number: now_ms / 1_000,
                    id: [&number[..], &[7; 24]].concat().try_into().unwrap(),
                    timestamp_ms: now_ms,
                }
                .into(),
            ),
            Queries::Solana(_) => ChainData::Solana(solana::ChainData {
                recent_blockhash: bs58::encode([&number[..], &[7; 24]].concat()).into_string(),
                token: None,
                compute: None,
            }),
            other => panic!("nothing is known about {other:?}"),
        })
    }

    async fn broadcast(&self, broadcast_request: &BroadcastRequest) -> BroadcastOutcome {
        let hash = broadcast_request.signed.tx_hash.clone();
        // Of Solana it follows its only signature.
        let bytes = STANDARD.decode(&broadcast_request.signed.transaction);
        let bytes = bytes.ok().filter(|bytes| bytes.first() == Some(&1));
        let message = bytes.and_then(|bytes| Some(bytes.get(65..)?.to_vec()));
        let message = message.unwrap_or_else(|| hash.clone().into_bytes());
        let mut messages = self.messages.lock().unwrap();
        messages.insert(hash.clone(), message);
        drop(messages);
        let mut sent = self.sent.lock().unwrap();
        sent.entry(hash.clone()).or_insert(self.clock.now_ms());
        if self.refuses.load(Ordering::SeqCst) {
            return BroadcastOutcome::Refused(ChainRefusal {
                reason: "the sender cannot pay".into(),
                code: ExecuteCode::InsufficientFunds,
            });
        }
        self.take(&hash);
        BroadcastOutcome::Accepted
    }

    async fn sightings(
        &self,
        transactions: &[TrackedTransaction],
        _now_ms: u64,
    ) -> Vec<Result<TransactionSighting, ChainError>> {
        let blocks = self.blocks();
        for one in transactions {
            let mut looks = self.looks.lock().unwrap();
            *looks.entry(one.signed.tx_hash.clone()).or_default() += 1;
        }
        if let Some(said) = self.says.lock().unwrap().pop_front() {
            return transactions.iter().map(|_| Ok(said.clone())).collect();
        }
        let sight = |one: &TrackedTransaction| match &one.signed.tx_hash {
            _ if self.is_blind.load(Ordering::SeqCst) => {
                Err(ChainError::Unknown("the nodes do not agree".into()))
            }
            hash if blocks.contains(hash) && self.is_slow.load(Ordering::SeqCst) => {
                Ok(TransactionSighting::Waiting)
            }
            hash if blocks.contains(hash) => Ok(FINAL),
            hash if self.is_over(hash) => Ok(TransactionSighting::Expired),
            _ => Ok(TransactionSighting::Missing),
        };
        transactions.iter().map(sight).collect()
    }

    async fn balance(&self, _address: &str, _token: Option<&str>) -> Result<String, ChainError> {
        Ok("0".into())
    }
}
