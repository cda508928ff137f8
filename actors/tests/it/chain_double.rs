//! Chains in memory: an EVM one that checks what it is sent, and a Solana one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use alloy_consensus::{Transaction as _, TxEnvelope};
use alloy_eips::Decodable2718 as _;
use async_trait::async_trait;
use covault_actors::rpc::{
    Broadcast, ChainClient, ChainError, Refusal, Shipment, Simulation, Trial,
};
use covault_core::{
    chain::{Facts, Needs, evm, solana},
    fault::ExecuteCode,
};

use crate::one_key::take;

/// See the module.
#[derive(Default)]
pub struct ChainDouble {
    /// Transactions by sender (the double takes the `from` it was asked about) and nonce.
    sent: Mutex<BTreeMap<String, String>>,
    nonces: Mutex<BTreeSet<u64>>,
    /// Every different transaction that it was ever handed, also while down.
    pub handed: Mutex<BTreeSet<String>>,
    pub down: AtomicBool,
    /// Broadcasts arrive but their answers are lost, so many times.
    pub lost_answers: AtomicUsize,
    pub refuse: AtomicBool,
    pub broke: AtomicBool,
    /// It takes questions and no transactions.
    pub stuck: AtomicBool,
    /// No answer about calls of this value.
    pub unanswerable: Mutex<Option<String>>,
    /// It takes a number only when the one before is in.
    pub in_order: AtomicBool,
    /// A transaction with the number of another one replaces it.
    pub replaceable: AtomicBool,
    /// There is a new block for every third question.
    pub fast_blocks: AtomicBool,
    /// How often it was asked for facts.
    pub asked: AtomicUsize,
    /// What it was to try.
    pub tried: Mutex<Vec<Trial>>,
    trying: Mutex<Trying>,
}

/// What comes of trying a transaction.
#[derive(Clone, Default)]
pub enum Trying {
    #[default]
    Cannot,
    Says(Simulation),
    NeverAnswers,
    Panics,
}

impl ChainDouble {
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// The nonces of accepted transactions.
    pub fn nonces(&self) -> Vec<u64> {
        self.nonces.lock().unwrap().iter().copied().collect()
    }

    pub fn accepted(&self) -> usize {
        self.sent.lock().unwrap().len()
    }

    pub fn has(&self, hash: &str) -> bool {
        self.sent.lock().unwrap().contains_key(hash)
    }

    /// The nodes lose the transactions with this number and higher ones.
    pub fn forget(&self, from: u64) {
        self.nonces.lock().unwrap().retain(|nonce| *nonce < from);
        let is_kept = |_: &String, raw: &mut String| nonce_of(raw) < from;
        self.sent.lock().unwrap().retain(is_kept);
    }

    /// How transactions are tried from now on.
    pub fn try_by(&self, trying: Trying) {
        *self.trying.lock().unwrap() = trying;
    }

    /// As if somebody had sent transactions of this account before.
    pub fn with_history(self: Arc<Self>, count: u64) -> Arc<Self> {
        self.nonces.lock().unwrap().extend(0..count);
        self
    }
}

fn nonce_of(raw: &str) -> u64 {
    let bytes = hex::decode(&raw[2..]).unwrap();
    let envelope = TxEnvelope::decode_2718(&mut bytes.as_slice()).unwrap();
    envelope.nonce()
}

#[async_trait]
impl ChainClient for ChainDouble {
    async fn facts(&self, needs: &Needs, _now_ms: u64) -> Result<Facts, ChainError> {
        tokio::task::yield_now().await;
        let asked = self.asked.fetch_add(1, Ordering::SeqCst);
        if let (Needs::Evm(needs), Some(value)) = (needs, &*self.unanswerable.lock().unwrap())
            && needs.fees.as_ref().is_some_and(|call| call.value == *value)
        {
            return Err(ChainError::Unknown("the node is at a loss".into()));
        }
        if self.down.load(Ordering::SeqCst) {
            return Err(ChainError::Unknown("the node cannot be reached".into()));
        }
        if self.broke.load(Ordering::SeqCst) {
            return Err(ChainError::Refused(Refusal {
                reason: "the sender cannot pay amount and fee".into(),
                code: ExecuteCode::InsufficientFunds,
            }));
        }
        Ok(match needs {
            Needs::Nothing => Facts::Nothing,
            Needs::Solana(_) => Facts::Solana(solana::Facts {
                recent_blockhash: if self.fast_blocks.load(Ordering::SeqCst) {
                    bs58::encode([[7; 24].as_slice(), &(asked as u64 / 3).to_be_bytes()].concat())
                        .into_string()
                } else {
                    "4uQeVj5tqViQh7yWWGStvkEG1Zmhx6uasJtWCJziofM".into()
                },
                token: None,
            }),
            Needs::Evm(needs) => {
                let taken = self.nonces.lock().unwrap();
                let pending = (0..).find(|nonce| !taken.contains(nonce));
                Facts::Evm(evm::Facts {
                    nonce: pending.filter(|_| needs.nonce),
                    eip1559: true,
                    fees: needs.fees.as_ref().map(|_| evm::Fees {
                        estimate_gas: 21_000,
                        base_fee: 1_000_000_000,
                        max_priority_fee: 1_000,
                    }),
                })
            }
            other => panic!("nothing is known about {other:?}"),
        })
    }

    async fn broadcast(&self, shipment: &Shipment) -> Broadcast {
        tokio::task::yield_now().await;
        let transaction = shipment.signed.transaction.clone();
        self.handed.lock().unwrap().insert(transaction.clone());
        if self.down.load(Ordering::SeqCst) || self.stuck.load(Ordering::SeqCst) {
            return Broadcast::Unknown("the node cannot be reached".into());
        }
        let mut sent = self.sent.lock().unwrap();
        if sent.contains_key(&shipment.signed.tx_hash) {
            return Broadcast::Accepted;
        }
        if self.refuse.load(Ordering::SeqCst) {
            return Broadcast::Refused(Refusal {
                reason: "the node refused the transaction: intrinsic gas too low".into(),
                code: ExecuteCode::InsufficientGasFee,
            });
        }
        if let Some(raw) = transaction.strip_prefix("0x") {
            let bytes = hex::decode(raw).unwrap();
            let envelope = TxEnvelope::decode_2718(&mut bytes.as_slice()).unwrap();
            assert_eq!(envelope.tx_hash().to_string(), shipment.signed.tx_hash);
            let mut nonces = self.nonces.lock().unwrap();
            let before = envelope.nonce().checked_sub(1);
            if self.in_order.load(Ordering::SeqCst)
                && before.is_some_and(|before| !nonces.contains(&before))
            {
                return Broadcast::Unknown("the number is too high".into());
            }
            let fresh = nonces.insert(envelope.nonce());
            let replaces = !fresh && self.replaceable.load(Ordering::SeqCst);
            if replaces {
                sent.retain(|_, raw| nonce_of(raw) != envelope.nonce());
            }
            assert!(
                fresh || replaces,
                "two transactions with nonce {}",
                envelope.nonce()
            );
        }
        sent.insert(shipment.signed.tx_hash.clone(), transaction);
        if take(&self.lost_answers) {
            return Broadcast::Unknown("the answer was lost".into());
        }
        Broadcast::Accepted
    }

    async fn balance(&self, _address: &str, token: Option<&str>) -> Result<String, ChainError> {
        Ok(if token.is_some() { "5" } else { "1000" }.into())
    }

    async fn simulate(&self, trial: &Trial) -> Option<Simulation> {
        self.tried.lock().unwrap().push(trial.clone());
        let trying = self.trying.lock().unwrap().clone();
        match trying {
            Trying::Cannot => None,
            Trying::Says(simulation) => Some(simulation),
            Trying::NeverAnswers => std::future::pending().await,
            Trying::Panics => panic!("a client that is wrong"),
        }
    }
}
