//! An account's numbers in memory: a chain that executes transactions in the order of their
//! numbers, none twice and none after its time, and nodes that can forget what waits.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use covault_actors::chain_rpc::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainError, ChainRefusal, TrackedTransaction,
    TransactionSighting,
};
use covault_core::{
    fault::ExecuteCode,
    networks::{
        ChainData, ChainMoment, Queries,
        aptos::{ChainData as AptosChainData, RawTransaction, read_signed},
    },
    port::Clock as _,
};

use covault_core::testing::ShiftedClock;

use crate::chain_double::FINAL;

/// See the module.
#[derive(Default)]
pub struct AptosDouble {
    clock: Arc<ShiftedClock>,
    account: Mutex<AptosAccount>,
    /// It takes transactions, and executes none.
    pub halted: AtomicBool,
    /// It takes only the next number.
    pub strict: AtomicBool,
    /// It refuses whatever it does not have.
    pub refuse: AtomicBool,
    /// How far its clock is behind.
    pub behind_ms: AtomicU64,
    /// It says where transactions are; else all are final, whether it has them or not.
    pub is_asked: AtomicBool,
    /// The height of its newest block.
    pub head: AtomicU64,
    /// It refuses the next number for good, once a later one waits.
    pub refuses_next: AtomicBool,
    /// What it says first where a transaction is, whatever is true.
    pub says: Mutex<VecDeque<TransactionSighting>>,
}

/// The only account.
#[derive(Default)]
struct AptosAccount {
    /// Hashes by number.
    waiting: BTreeMap<u64, (String, RawTransaction)>,
    executed: Vec<String>,
    handed: Vec<String>,
    /// By hash.
    signed: BTreeMap<String, String>,
}

impl AptosDouble {
    pub fn new(clock: Arc<ShiftedClock>) -> Arc<Self> {
        Arc::new(Self {
            clock,
            ..Self::default()
        })
    }

    /// The hashes of what was executed; the first has the number 0.
    pub fn executed(&self) -> Vec<String> {
        self.account.lock().unwrap().executed.clone()
    }

    /// The hashes of all transactions that it ever received, in order.
    pub fn handed(&self) -> Vec<String> {
        self.account.lock().unwrap().handed.clone()
    }

    /// The signed transaction that was handed to it with a hash.
    pub fn signed(&self, hash: &str) -> String {
        self.account.lock().unwrap().signed[hash].clone()
    }

    /// What those that wait pay per unit of gas, in the order of their numbers.
    pub fn prices(&self) -> Vec<u64> {
        let account = self.account.lock().unwrap();
        let waiting = account.waiting.values();
        waiting.map(|(_, waits)| waits.gas_unit_price).collect()
    }

    /// The nodes lose what they have not executed.
    pub fn forget(&self) {
        self.account.lock().unwrap().waiting.clear();
    }

    /// Executes what it has refused and kept.
    pub fn executes_what_it_kept(&self, hash: &str) {
        self.account.lock().unwrap().executed.push(hash.to_owned());
    }

    /// Executes what waits.
    pub fn execute(&self) {
        self.account.lock().unwrap().execute();
    }

    fn now_ms(&self) -> u64 {
        self.clock.now_ms() - self.behind_ms.load(Ordering::SeqCst)
    }
}

impl AptosAccount {
    fn execute(&mut self) {
        while let Some((hash, _)) = self.waiting.remove(&(self.executed.len() as u64)) {
            self.executed.push(hash);
        }
    }
}

#[async_trait]
impl ChainClient for AptosDouble {
    async fn chain_data(&self, queries: &Queries, now_ms: u64) -> Result<ChainData, ChainError> {
        tokio::task::yield_now().await;
        let Queries::Aptos(queries) = queries else {
            panic!("nothing is known about {queries:?}")
        };
        assert!(queries.abi.is_none());
        let account = self.account.lock().unwrap();
        Ok(ChainData::Aptos(AptosChainData {
            sequence_number: queries
                .sequence_number
                .unwrap_or(account.executed.len() as u64),
            expiration_timestamp_secs: queries
                .expiration_timestamp_secs
                .unwrap_or(now_ms / 1_000 + 600),
            gas_unit_price: queries.gas_unit_price.then_some(100),
            gas_used: queries.simulate.as_ref().map(|_| 9),
            abi: None,
        }))
    }

    async fn broadcast(&self, broadcast_request: &BroadcastRequest) -> BroadcastOutcome {
        tokio::task::yield_now().await;
        let (_, transaction) = read_signed(&broadcast_request.signed).unwrap();
        let hash = broadcast_request.signed.tx_hash.clone();
        let refused = |reason: &str| {
            BroadcastOutcome::Refused(ChainRefusal {
                reason: reason.into(),
                code: ExecuteCode::Unspecified,
            })
        };
        let now_s = self.now_ms() / 1_000;
        let mut account = self.account.lock().unwrap();
        account
            .waiting
            .retain(|_, (_, waits)| now_s < waits.expiration_timestamp_secs);
        account.handed.push(hash.clone());
        let signed = broadcast_request.signed.transaction.clone();
        account.signed.insert(hash.clone(), signed);
        if account.executed.contains(&hash) || account.waiting.values().any(|(one, _)| *one == hash)
        {
            return BroadcastOutcome::Accepted;
        }
        if self.refuse.load(Ordering::SeqCst) {
            return refused("the sender cannot pay the fee");
        }
        if now_s >= transaction.expiration_timestamp_secs {
            return refused("the transaction expired");
        }
        let (number, next) = (transaction.sequence_number, account.executed.len() as u64);
        if number < next {
            return refused("another transaction has the account's number");
        }
        if number == next && self.refuses_next.load(Ordering::SeqCst) {
            return match account.waiting.is_empty() {
                true => BroadcastOutcome::Unknown("the node is busy".into()),
                false => refused("the sender cannot pay the fee"),
            };
        }
        if number > next && self.strict.load(Ordering::SeqCst) {
            return BroadcastOutcome::Unknown("an earlier transaction is not there yet".into());
        }
        if let Some((_, before)) = account.waiting.get(&number) {
            // Nothing but a higher price (`TransactionStore::insert` of aptos-core).
            let same = RawTransaction {
                gas_unit_price: before.gas_unit_price,
                ..transaction.clone()
            };
            assert_eq!(same, *before, "two transactions with the number {number}");
            if transaction.gas_unit_price <= before.gas_unit_price {
                return refused("INVALID_UPDATE: the gas price is too low");
            }
        }
        account.waiting.insert(number, (hash, transaction));
        if !self.halted.load(Ordering::SeqCst) {
            account.execute();
        }
        BroadcastOutcome::Accepted
    }

    async fn next_number(
        &self,
        _address: &str,
        since: ChainMoment,
    ) -> Result<Option<u64>, ChainError> {
        let next = self.account.lock().unwrap().executed.len() as u64;
        Ok((self.now_ms() >= since.time_ms).then_some(next))
    }

    async fn sightings(
        &self,
        transactions: &[TrackedTransaction],
        _now_ms: u64,
    ) -> Vec<Result<TransactionSighting, ChainError>> {
        if !self.is_asked.load(Ordering::SeqCst) {
            return transactions.iter().map(|_| Ok(FINAL)).collect();
        }
        if let Some(said) = self.says.lock().unwrap().pop_front() {
            return transactions.iter().map(|_| Ok(said.clone())).collect();
        }
        let account = self.account.lock().unwrap();
        let sight = |one: &TrackedTransaction| {
            let hash = &one.signed.tx_hash;
            let (_, sent) = read_signed(&one.signed).unwrap();
            if account.executed.contains(hash) {
                FINAL
            } else if let Some(by) = account.executed.get(sent.sequence_number as usize) {
                TransactionSighting::Replaced(Some(by.clone()))
            } else if self.now_ms() / 1_000 > sent.expiration_timestamp_secs {
                TransactionSighting::Expired
            } else if account.waiting.values().any(|(one, _)| one == hash) {
                TransactionSighting::Waiting
            } else {
                TransactionSighting::Missing
            }
        };
        transactions.iter().map(|one| Ok(sight(one))).collect()
    }

    async fn head(&self) -> Result<Option<u64>, ChainError> {
        Ok(Some(self.head.load(Ordering::SeqCst)))
    }

    async fn balance(&self, _address: &str, _token: Option<&str>) -> Result<String, ChainError> {
        Ok("0".into())
    }
}
