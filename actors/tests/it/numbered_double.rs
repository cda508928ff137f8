//! Stellar and TON in memory, each with one account: its transactions are taken in the order of their numbers, none
//! twice, and none after its time.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use covault_actors::chain_rpc::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainError, ChainRefusal, Standing,
    TrackedTransaction, TransactionSighting,
};
use covault_core::{
    fault::ExecuteCode,
    networks::{ChainData, ChainMoment, Network, Queries, Signed, stellar, ton},
    port::Clock as _,
    testing::ShiftedClock,
};

use crate::chain_double::FINAL;

/// See the module.
pub struct NumberedDouble {
    network: Network,
    clock: Arc<ShiftedClock>,
    /// The number of the next transaction.
    next: Mutex<u64>,
    /// The hashes of those that it took.
    taken: Mutex<BTreeMap<u64, String>>,
    /// It takes a transaction only when so much of its own clock has passed since the one before, in milliseconds.
    pub pace_ms: AtomicU64,
    taken_at_ms: AtomicU64,
    /// It refuses the next number for good, once it was sent a later one.
    pub refuses: AtomicBool,
    /// How many it has refused.
    pub refused: AtomicUsize,
    /// The highest number that it was sent.
    highest: AtomicU64,
    /// It refuses all that it gets for good.
    pub refuses_all: AtomicBool,
    /// By how much the number that it offers is higher than the next one.
    pub overstates: AtomicU64,
    /// It says nothing of what it is asked about, as one node of two where both are needed.
    pub is_blind: AtomicBool,
    /// For how long the service's machine sleeps once it has its next answer to build on, in milliseconds.
    pub sleeps_ms: AtomicU64,
    /// When the time of what is built is over, in seconds since the Unix epoch; 0: five minutes after.
    pub ends_s: AtomicU64,
    /// While true, who asks which number it waits for now gets no answer.
    pub is_slow: AtomicBool,
    /// How many wait for that answer.
    pub waiting: AtomicUsize,
    /// How often it was asked where transactions are.
    pub looks: AtomicUsize,
}

impl NumberedDouble {
    pub fn new(network: Network, clock: Arc<ShiftedClock>, next: u64) -> Arc<Self> {
        Arc::new(Self {
            network,
            clock,
            next: Mutex::new(next),
            taken: Mutex::default(),
            pace_ms: AtomicU64::new(0),
            taken_at_ms: AtomicU64::new(0),
            refuses: AtomicBool::new(false),
            refused: AtomicUsize::new(0),
            highest: AtomicU64::new(0),
            refuses_all: AtomicBool::new(false),
            overstates: AtomicU64::new(0),
            is_blind: AtomicBool::new(false),
            sleeps_ms: AtomicU64::new(0),
            ends_s: AtomicU64::new(0),
            is_slow: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            looks: AtomicUsize::new(0),
        })
    }

    /// The number of the next transaction.
    pub fn next(&self) -> u64 {
        *self.next.lock().unwrap()
    }

    /// What it took, in the order of the numbers.
    pub fn taken(&self) -> Vec<String> {
        self.taken.lock().unwrap().values().cloned().collect()
    }

    /// A block has a transaction with the next number, whoever has sent it.
    pub fn takes(&self, hash: &str) {
        let mut next = self.next.lock().unwrap();
        self.taken.lock().unwrap().insert(*next, hash.to_owned());
        *next += 1;
    }

    fn number(&self, signed: &Signed) -> u64 {
        let number = self.network.rules().sent_number(signed, "");
        number.unwrap().unwrap()
    }

    fn is_over(&self, signed: &Signed) -> bool {
        let end = self.network.rules().valid_until(signed).unwrap().unwrap();
        self.clock.now_ms() >= end.time_ms
    }
}

fn refusal(reason: &str) -> ChainRefusal {
    ChainRefusal {
        reason: reason.into(),
        code: ExecuteCode::Unspecified,
    }
}

#[async_trait]
impl ChainClient for NumberedDouble {
    async fn chain_data(&self, queries: &Queries, now_ms: u64) -> Result<ChainData, ChainError> {
        let next = self.next() + self.overstates.load(Ordering::SeqCst);
        let end_s = match self.ends_s.load(Ordering::SeqCst) {
            0 => now_ms / 1_000 + 300,
            ends_s => ends_s,
        };
        let slept_ms = self.sleeps_ms.swap(0, Ordering::SeqCst);
        self.clock.ahead_ms.fetch_add(slept_ms, Ordering::SeqCst);
        Ok(match queries {
            Queries::Stellar(queries) => ChainData::Stellar(stellar::ChainData {
                sequence: next - 1,
                base_fee: 100,
                max_time: end_s,
                destination_exists: queries.destination.as_ref().map(|_| true),
            }),
            Queries::Ton(ton::Queries::Transaction(queries)) => {
                let said = ton::TransactionChainData {
                    seqno: next.try_into().unwrap(),
                    deployed: true,
                    valid_until: queries.valid_until.then(|| end_s.try_into().unwrap()),
                    recipient_deployed: queries.recipient.as_ref().map(|_| true),
                    jetton: None,
                };
                ChainData::Ton(ton::ChainData::Transaction(said))
            }
            other => panic!("nothing is known about {other:?}"),
        })
    }

    async fn broadcast(&self, broadcast_request: &BroadcastRequest) -> BroadcastOutcome {
        let signed = &broadcast_request.signed;
        let number = self.number(signed);
        self.highest.fetch_max(number, Ordering::SeqCst);
        let mut next = self.next.lock().unwrap();
        let mut taken = self.taken.lock().unwrap();
        if taken.get(&number) == Some(&signed.tx_hash) {
            return BroadcastOutcome::Accepted;
        }
        if self.is_over(signed) {
            let refusal = refusal("the transaction expired before a node took it");
            return if broadcast_request.retried {
                BroadcastOutcome::Doubtful(refusal, Standing::Void)
            } else {
                BroadcastOutcome::Refused(refusal)
            };
        }
        assert!(number >= *next, "two transactions with one number");
        if self.refuses_all.load(Ordering::SeqCst) {
            return BroadcastOutcome::Refused(refusal("the sender cannot pay"));
        }
        let now_ms = self.clock.now_ms();
        let since_ms = now_ms - self.taken_at_ms.load(Ordering::SeqCst);
        if number > *next || since_ms < self.pace_ms.load(Ordering::SeqCst) {
            return BroadcastOutcome::Unknown("an earlier one is not there yet".into());
        }
        if self.refuses.load(Ordering::SeqCst) {
            if self.highest.load(Ordering::SeqCst) == number {
                return BroadcastOutcome::Unknown("the node is busy".into());
            }
            self.refused.fetch_add(1, Ordering::SeqCst);
            return BroadcastOutcome::Refused(refusal("the node refused the transaction"));
        }
        *next += 1;
        taken.insert(number, signed.tx_hash.clone());
        self.taken_at_ms.store(now_ms, Ordering::SeqCst);
        BroadcastOutcome::Accepted
    }

    async fn next_number(&self, _: &str, since: ChainMoment) -> Result<Option<u64>, ChainError> {
        if since == ChainMoment::ANY {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            while self.is_slow.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        Ok(Some(self.next()))
    }

    async fn sightings(
        &self,
        transactions: &[TrackedTransaction],
        _now_ms: u64,
    ) -> Vec<Result<TransactionSighting, ChainError>> {
        self.looks.fetch_add(1, Ordering::SeqCst);
        if self.is_blind.load(Ordering::SeqCst) {
            let silent = |_: &TrackedTransaction| Err(ChainError::Unknown("a node is away".into()));
            return transactions.iter().map(silent).collect();
        }
        let (next, taken) = (self.next(), self.taken.lock().unwrap());
        let sight = |one: &TrackedTransaction| match self.number(&one.signed) {
            number if taken.get(&number) == Some(&one.signed.tx_hash) => FINAL,
            number if number < next => TransactionSighting::Replaced(taken.get(&number).cloned()),
            _ if self.is_over(&one.signed) => TransactionSighting::Expired,
            _ => TransactionSighting::Missing,
        };
        transactions.iter().map(|one| Ok(sight(one))).collect()
    }

    async fn balance(&self, _address: &str, _token: Option<&str>) -> Result<String, ChainError> {
        Ok("0".into())
    }
}
