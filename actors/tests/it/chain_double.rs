//! Chains in memory: an EVM one that checks what it is sent, and a Solana one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use alloy_consensus::{Transaction as _, TxEnvelope, private::alloy_primitives::keccak256};
use alloy_eips::Decodable2718 as _;
use async_trait::async_trait;
use covault_actors::chain_rpc::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainError, ChainRefusal, Inclusion,
    SimulationOutcome, SimulationRequest, Standing, TrackedTransaction, TransactionSighting,
};
use covault_core::{
    fault::ExecuteCode,
    networks::{ChainData, ChainMoment, Payload, Queries, evm, solana},
    signature::Signature as CoreSignature,
};
use k256::ecdsa::{RecoveryId, Signature, VerifyingKey};
use tokio::sync::Semaphore;

use crate::fake_signers::take;

/// See the module.
#[derive(Default)]
pub struct ChainDouble {
    /// Transactions by their hashes.
    sent: Mutex<BTreeMap<String, String>>,
    /// The numbers that are taken, by sender, and those that every account had used before.
    nonces: Mutex<BTreeSet<(String, u64)>>,
    before: AtomicU64,
    /// Every different transaction that it ever received, also while down.
    pub handed: Mutex<BTreeSet<String>>,
    /// How often it was sent what it had been sent before, as if for the first time.
    pub resent_as_new: AtomicUsize,
    pub down: AtomicBool,
    /// Broadcasts arrive but their answers are lost, so many times.
    pub lost_answers: AtomicUsize,
    pub refuse: AtomicBool,
    pub broke: AtomicBool,
    /// What it says of every payload before anything is signed.
    pub preflight: Mutex<Option<ChainError>>,
    /// It takes a transaction and says nothing yet.
    pub holds: AtomicBool,
    /// It takes questions and no transactions.
    pub stuck: AtomicBool,
    /// No answer about calls of this value.
    pub unanswerable: Mutex<Option<String>>,
    /// Its tip in wei, on top of the usual one.
    pub tip: AtomicU64,
    /// What it says of transactions that it was handed before.
    pub doubt: Mutex<Option<(String, Standing)>>,
    /// Where every transaction is that it has; without it all are final, whether it has them or not.
    pub sighting: Mutex<Option<TransactionSighting>>,
    /// The most transactions that it was asked for at once, and how often it was.
    pub most_sighted: AtomicUsize,
    sighted: AtomicUsize,
    /// How often it was asked whose signatures a block has.
    pub signatures_asked: AtomicUsize,
    /// How often it was sent a transaction.
    pub sends: AtomicUsize,
    /// It takes a number only when the one before is in.
    pub in_order: AtomicBool,
    /// Where those are that it was never handed, whatever is said of all others.
    pub unheard: Mutex<Option<TransactionSighting>>,
    /// Where single transactions are, by hash, whatever is said of all others.
    pub fates: Mutex<BTreeMap<String, TransactionSighting>>,
    /// The numbers below this one are used in a block.
    pub used: AtomicU64,
    /// The newest block.
    pub head: AtomicU64,
    /// How often it was asked for the newest block.
    pub heads: AtomicUsize,
    /// It panics when it is asked for the newest block, so many times.
    pub panicking_heads: AtomicUsize,
    /// The transaction that it panics about when it is asked for.
    pub unspeakable: Mutex<Option<String>>,
    /// A transaction with the number of another one replaces it.
    pub replaceable: AtomicBool,
    /// There is a new block for every third question.
    pub fast_blocks: AtomicBool,
    /// How often it was asked for facts.
    pub asked: AtomicUsize,
    /// It answers so many questions at once, and takes so long for each.
    pub pace: Mutex<Option<(Arc<Semaphore>, Duration)>>,
    /// What it was to try.
    pub tried: Mutex<Vec<SimulationRequest>>,
    trying: Mutex<SimulationReply>,
    /// What every contract may take of every token, by how many transactions it has; the last of them thereafter.
    pub allowances: Mutex<Vec<String>>,
}

/// A block has it for good, and it did what it was to do.
pub const FINAL: TransactionSighting = TransactionSighting::Final(Inclusion {
    block: 9,
    success: true,
});

/// What comes of trying a transaction.
#[derive(Clone, Default)]
pub enum SimulationReply {
    #[default]
    Cannot,
    Says(SimulationOutcome),
    NeverAnswers,
    Panics,
}

impl ChainDouble {
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// The nonces of accepted transactions.
    pub fn nonces(&self) -> Vec<u64> {
        let before = 0..self.before.load(Ordering::SeqCst);
        let nonces = self.nonces.lock().unwrap();
        before
            .chain(nonces.iter().map(|(_, nonce)| *nonce))
            .collect()
    }

    pub fn accepted(&self) -> usize {
        self.sent.lock().unwrap().len()
    }

    pub fn has(&self, hash: &str) -> bool {
        self.sent.lock().unwrap().contains_key(hash)
    }

    /// Waits for this many more queries of transactions.
    pub async fn asked_for(&self, times: usize) {
        let most = self.sighted.load(Ordering::SeqCst) + times;
        while self.sighted.load(Ordering::SeqCst) < most {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    /// The nodes lose the transactions with this number and higher ones.
    pub fn forget(&self, from: u64) {
        self.before.fetch_min(from, Ordering::SeqCst);
        let mut nonces = self.nonces.lock().unwrap();
        nonces.retain(|(_, nonce)| *nonce < from);
        drop(nonces);
        let is_kept = |_: &String, raw: &mut String| nonce_of(raw) < from;
        self.sent.lock().unwrap().retain(is_kept);
    }

    /// Where one transaction is, whatever is said of all others.
    pub fn says(&self, hash: &str, fate: TransactionSighting) {
        self.fates.lock().unwrap().insert(hash.to_owned(), fate);
    }

    /// How transactions are tried from now on.
    pub fn try_by(&self, trying: SimulationReply) {
        *self.trying.lock().unwrap() = trying;
    }

    /// As if transactions of this account had been sent before.
    pub fn with_history(self: Arc<Self>, count: u64) -> Arc<Self> {
        self.before(count);
        self
    }

    /// As if this many transactions of every account had been sent before.
    pub fn before(&self, count: u64) {
        self.before.store(count, Ordering::SeqCst);
    }
}

pub fn decoded(raw: &str) -> TxEnvelope {
    let bytes = hex::decode(&raw[2..]).unwrap();
    TxEnvelope::decode_2718(&mut bytes.as_slice()).unwrap()
}

fn nonce_of(raw: &str) -> u64 {
    decoded(raw).nonce()
}

/// Sender, in small letters, and nonce.
fn number_of(envelope: &TxEnvelope) -> (String, u64) {
    let signed = envelope.signature();
    let signature = Signature::from_slice(&signed.as_bytes()[..64]).unwrap();
    let recovery = RecoveryId::new(signed.v(), false);
    let hash = envelope.signature_hash();
    let key = VerifyingKey::recover_from_prehash(hash.as_slice(), &signature, recovery).unwrap();
    let point = key.to_sec1_point(false);
    let address = hex::encode(&keccak256(&point.as_bytes()[1..])[12..]);
    (format!("0x{address}"), envelope.nonce())
}

#[async_trait]
impl ChainClient for ChainDouble {
    async fn chain_data(&self, queries: &Queries, _now_ms: u64) -> Result<ChainData, ChainError> {
        tokio::task::yield_now().await;
        let asked = self.asked.fetch_add(1, Ordering::SeqCst);
        let pace = self.pace.lock().unwrap().clone();
        if let Some((places, takes)) = pace {
            let _place = places.acquire().await.unwrap();
            tokio::time::sleep(takes).await;
        }
        if let (Queries::Evm(queries), Some(value)) = (queries, &*self.unanswerable.lock().unwrap())
            && queries
                .fees
                .as_ref()
                .is_some_and(|call| call.value == *value)
        {
            return Err(ChainError::Unknown("the node is at a loss".into()));
        }
        if self.down.load(Ordering::SeqCst) {
            return Err(ChainError::Unknown("the node cannot be reached".into()));
        }
        if self.broke.load(Ordering::SeqCst) {
            return Err(ChainError::Refused(ChainRefusal {
                reason: "the sender cannot pay amount and fee".into(),
                code: ExecuteCode::InsufficientFunds,
            }));
        }
        Ok(match queries {
            Queries::Nothing => ChainData::Nothing,
            Queries::Solana(_) => ChainData::Solana(solana::ChainData {
                recent_blockhash: if self.fast_blocks.load(Ordering::SeqCst) {
                    bs58::encode([[7; 24].as_slice(), &(asked as u64 / 3).to_be_bytes()].concat())
                        .into_string()
                } else {
                    "4uQeVj5tqViQh7yWWGStvkEG1Zmhx6uasJtWCJziofM".into()
                },
                token: None,
                compute: None,
            }),
            Queries::Evm(queries) => {
                let taken = self.nonces.lock().unwrap();
                let (from, before) = (
                    queries.from.to_lowercase(),
                    self.before.load(Ordering::SeqCst),
                );
                let pending = (before..).find(|nonce| !taken.contains(&(from.clone(), *nonce)));
                ChainData::Evm(evm::ChainData {
                    nonce: pending.filter(|_| queries.nonce),
                    eip1559: true,
                    fees: queries.fees.as_ref().map(|call| evm::Fees {
                        estimate_gas: if call.data.is_empty() {
                            21_000
                        } else {
                            200_000
                        },
                        base_fee: 1_000_000_000,
                        max_priority_fee: 1_000 + u128::from(self.tip.load(Ordering::SeqCst)),
                    }),
                })
            }
            other => panic!("nothing is known about {other:?}"),
        })
    }

    async fn preflight(&self, _payload: &Payload) -> Result<(), ChainError> {
        match &*self.preflight.lock().unwrap() {
            Some(problem) => Err(problem.clone()),
            None => Ok(()),
        }
    }

    async fn broadcast(&self, broadcast_request: &BroadcastRequest) -> BroadcastOutcome {
        tokio::task::yield_now().await;
        self.sends.fetch_add(1, Ordering::SeqCst);
        let transaction = broadcast_request.signed.transaction.clone();
        let is_new = self.handed.lock().unwrap().insert(transaction.clone());
        if !is_new && !broadcast_request.retried {
            self.resent_as_new.fetch_add(1, Ordering::SeqCst);
        }
        if self.down.load(Ordering::SeqCst) || self.stuck.load(Ordering::SeqCst) {
            return BroadcastOutcome::Unknown("the node cannot be reached".into());
        }
        if let (false, Some((words, standing))) = (is_new, &*self.doubt.lock().unwrap()) {
            let refusal = ChainRefusal {
                reason: words.clone(),
                code: ExecuteCode::Unspecified,
            };
            return BroadcastOutcome::Doubtful(refusal, *standing);
        }
        while self.holds.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut sent = self.sent.lock().unwrap();
        if sent.contains_key(&broadcast_request.signed.tx_hash) {
            return BroadcastOutcome::Accepted;
        }
        if self.refuse.load(Ordering::SeqCst) {
            return BroadcastOutcome::Refused(ChainRefusal {
                reason: "the node refused the transaction: intrinsic gas too low".into(),
                code: ExecuteCode::InsufficientGasFee,
            });
        }
        if transaction.starts_with("0x") {
            let envelope = decoded(&transaction);
            assert_eq!(
                envelope.tx_hash().to_string(),
                broadcast_request.signed.tx_hash
            );
            let number = number_of(&envelope);
            if number.1 < self.used.load(Ordering::SeqCst) {
                let refusal = ChainRefusal {
                    reason: "nonce too low".into(),
                    code: ExecuteCode::Unspecified,
                };
                return BroadcastOutcome::Doubtful(refusal, Standing::Passed);
            }
            let mut nonces = self.nonces.lock().unwrap();
            let before = number.1.checked_sub(1);
            let past = self.before.load(Ordering::SeqCst);
            let is_in = |nonce| nonce < past || nonces.contains(&(number.0.clone(), nonce));
            if self.in_order.load(Ordering::SeqCst) && before.is_some_and(|before| !is_in(before)) {
                return BroadcastOutcome::Unknown("the number is too high".into());
            }
            let fresh = !is_in(number.1);
            let replaces = !fresh && self.replaceable.load(Ordering::SeqCst);
            nonces.insert(number.clone());
            if replaces {
                sent.retain(|_, raw| number_of(&decoded(raw)) != number);
            }
            assert!(
                fresh || replaces,
                "two transactions with nonce {}",
                envelope.nonce()
            );
        }
        sent.insert(broadcast_request.signed.tx_hash.clone(), transaction);
        if take(&self.lost_answers) {
            return BroadcastOutcome::Unknown("the answer was lost".into());
        }
        BroadcastOutcome::Accepted
    }

    async fn sightings(
        &self,
        transactions: &[TrackedTransaction],
        _now_ms: u64,
    ) -> Vec<Result<TransactionSighting, ChainError>> {
        self.most_sighted
            .fetch_max(transactions.len(), Ordering::SeqCst);
        self.sighted.fetch_add(1, Ordering::SeqCst);
        let unspeakable = self.unspeakable.lock().unwrap().clone();
        if let Some(hash) = unspeakable {
            let is_asked_for = transactions.iter().any(|one| one.signed.tx_hash == hash);
            assert!(!is_asked_for, "a client that is wrong");
        }
        let sighting = self.sighting.lock().unwrap().clone();
        let sight = |one: &TrackedTransaction| {
            if let Some(fate) = self.fates.lock().unwrap().get(&one.signed.tx_hash) {
                return Ok(fate.clone());
            }
            let handed = self.handed.lock().unwrap();
            if let Some(fate) = self.unheard.lock().unwrap().as_ref()
                && !handed.contains(&one.signed.transaction)
            {
                return Ok(fate.clone());
            }
            let Some(sighting) = &sighting else {
                return Ok(FINAL);
            };
            if self.down.load(Ordering::SeqCst) {
                return Err(ChainError::Unknown("the node cannot be reached".into()));
            }
            match (self.has(&one.signed.tx_hash), sighting) {
                (
                    false,
                    TransactionSighting::Final(_)
                    | TransactionSighting::Mined(_)
                    | TransactionSighting::Waiting,
                ) => Ok(TransactionSighting::Missing),
                (_, sighting) => Ok(sighting.clone()),
            }
        };
        transactions.iter().map(sight).collect()
    }

    /// Those of a transaction that it has taken.
    async fn signatures_in_block(
        &self,
        _: &TrackedTransaction,
        by: Option<&str>,
    ) -> Result<Vec<CoreSignature>, ChainError> {
        self.signatures_asked.fetch_add(1, Ordering::SeqCst);
        let sent = self.sent.lock().unwrap();
        let Some(raw) = by.and_then(|by| sent.get(by)) else {
            return Err(ChainError::Unknown("the nodes do not say it".into()));
        };
        let envelope = decoded(raw);
        let signature = envelope.signature();
        Ok(vec![CoreSignature::Ecdsa {
            r: signature.r().to_be_bytes(),
            s: signature.s().to_be_bytes(),
            y_parity: 0,
        }])
    }

    async fn next_number(&self, _: &str, _: ChainMoment) -> Result<Option<u64>, ChainError> {
        Ok(Some(self.used.load(Ordering::SeqCst)))
    }

    async fn head(&self) -> Result<Option<u64>, ChainError> {
        self.heads.fetch_add(1, Ordering::SeqCst);
        assert!(!take(&self.panicking_heads), "a client that is wrong");
        Ok(Some(self.head.load(Ordering::SeqCst)))
    }

    async fn allowance(&self, _: &str, _: &str, _: &str) -> Result<String, ChainError> {
        let accepted = self.accepted();
        let said = self.allowances.lock().unwrap();
        let now = said.get(accepted).or(said.last());
        Ok(now.cloned().unwrap_or_else(|| "0".to_owned()))
    }

    async fn balance(&self, _address: &str, token: Option<&str>) -> Result<String, ChainError> {
        Ok(if token.is_some() { "5" } else { "1000" }.into())
    }

    async fn simulate(&self, trial: &SimulationRequest) -> Option<SimulationOutcome> {
        self.tried.lock().unwrap().push(trial.clone());
        let trying = self.trying.lock().unwrap().clone();
        match trying {
            SimulationReply::Cannot => None,
            SimulationReply::Says(simulation) => Some(simulation),
            SimulationReply::NeverAnswers => std::future::pending().await,
            SimulationReply::Panics => panic!("a client that is wrong"),
        }
    }
}
