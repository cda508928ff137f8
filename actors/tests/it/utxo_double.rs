//! A chain of outputs in memory, which takes no output twice.

use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use bitcoin::{Address, OutPoint, ScriptBuf, Transaction, Txid, consensus, hashes::Hash as _};
use covault_actors::chain_rpc::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainError, ChainRefusal, TrackedTransaction,
    TransactionSighting,
};
use covault_core::{
    fault::ExecuteCode,
    networks::{
        ChainData, Queries,
        bitcoin::{ChainData as BitcoinChainData, UnspentOutput},
    },
};

use crate::chain_double::FINAL;
use crate::fake_signers::take;

/// See the module.
#[derive(Default)]
pub struct UtxoDouble {
    /// What can be spent, and whose it is.
    unspent: Mutex<BTreeMap<OutPoint, (ScriptBuf, u64)>>,
    sent: Mutex<BTreeSet<Txid>>,
    /// What the mempool has, which no block takes.
    waiting: Mutex<BTreeMap<Txid, Transaction>>,
    /// All that came, in their order.
    pub broadcasts: Mutex<Vec<String>>,
    /// What waits may be replaced (BIP-125).
    pub replaces: AtomicBool,
    /// What was sent is in no mempool and no block.
    pub lost: AtomicBool,
    /// What transactions have spent.
    spent: Mutex<BTreeMap<OutPoint, (ScriptBuf, u64)>>,
    /// Every different transaction that it ever received.
    pub handed: Mutex<BTreeSet<String>>,
    /// Two different transactions wanted one output.
    pub conflicts: AtomicUsize,
    pub refuse: AtomicBool,
    /// The hashes of what it has refused so.
    refused: Mutex<BTreeSet<String>>,
    /// No block has what was sent.
    pub unmined: AtomicBool,
    /// What was made by transactions that others have replaced is offered for longer, as by nodes that are behind.
    pub behind: AtomicBool,
    gone: Mutex<BTreeMap<OutPoint, (ScriptBuf, u64)>>,
    /// No answer about outputs that are named.
    pub unanswerable: AtomicBool,
    /// Broadcasts arrive but their answers are lost, so many times.
    pub lost_answers: AtomicUsize,
}

fn script(address: &str) -> ScriptBuf {
    Address::from_str(address)
        .unwrap()
        .assume_checked()
        .script_pubkey()
}

impl UtxoDouble {
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Gives an address so many outputs.
    pub fn fund(&self, address: &str, outputs: u32, value: u64) {
        let txid = Txid::from_byte_array([outputs as u8; 32]);
        let outputs = (0..outputs).map(|vout| (OutPoint { txid, vout }, (script(address), value)));
        self.unspent.lock().unwrap().extend(outputs);
    }

    /// The node loses all transactions, and what they spend is there again.
    pub fn forget(&self) {
        let sent = std::mem::take(&mut *self.sent.lock().unwrap());
        self.waiting.lock().unwrap().clear();
        let mut unspent = self.unspent.lock().unwrap();
        unspent.append(&mut self.spent.lock().unwrap());
        unspent.retain(|outpoint, _| !sent.contains(&outpoint.txid));
    }

    /// Takes out of the mempool what spends the same as a transaction, when that pays enough.
    fn replace(
        &self,
        transaction: &Transaction,
        unspent: &mut BTreeMap<OutPoint, (ScriptBuf, u64)>,
    ) -> bool {
        let mut waiting = self.waiting.lock().unwrap();
        let mut spent = self.spent.lock().unwrap();
        let fee = |transaction: &Transaction| {
            let inputs = transaction.input.iter().map(|input| {
                let outpoint = &input.previous_output;
                let output = spent.get(outpoint).or_else(|| unspent.get(outpoint));
                output.map_or(0, |(_, value)| *value)
            });
            let outputs = transaction
                .output
                .iter()
                .map(|output| output.value.to_sat());
            inputs.sum::<u64>() - outputs.sum::<u64>()
        };
        let spends = |other: &Transaction| {
            let mut inputs = other.input.iter();
            inputs.any(|one| {
                let mut own = transaction.input.iter();
                own.any(|input| input.previous_output == one.previous_output)
            })
        };
        let old: Vec<Txid> = waiting
            .iter()
            .filter(|(_, other)| spends(other))
            .map(|(txid, _)| *txid)
            .collect();
        let paid: u64 = old.iter().map(|txid| fee(&waiting[txid])).sum();
        if !old.is_empty() && fee(transaction) < paid + transaction.vsize() as u64 {
            return false;
        }
        for txid in old {
            for input in &waiting.remove(&txid).unwrap().input {
                if let Some(output) = spent.remove(&input.previous_output) {
                    unspent.insert(input.previous_output, output);
                }
            }
            let made: BTreeMap<_, _> = unspent
                .extract_if(.., |outpoint, _| outpoint.txid == txid)
                .collect();
            self.gone.lock().unwrap().extend(made);
            self.sent.lock().unwrap().remove(&txid);
        }
        true
    }

    pub fn accepted(&self) -> usize {
        self.sent.lock().unwrap().len()
    }
}

#[async_trait]
impl ChainClient for UtxoDouble {
    async fn chain_data(&self, queries: &Queries, _now_ms: u64) -> Result<ChainData, ChainError> {
        tokio::task::yield_now().await;
        let Queries::Bitcoin(queries) = queries else {
            panic!("nothing is known about {queries:?}")
        };
        if !queries.inputs.is_empty() && self.unanswerable.load(Ordering::SeqCst) {
            return Err(ChainError::Unknown("the node is at a loss".into()));
        }
        let owner = script(&queries.from);
        let unspent = self.unspent.lock().unwrap();
        let spent = self.spent.lock().unwrap();
        let gone = self.gone.lock().unwrap();
        let behind = self.behind.load(Ordering::SeqCst);
        let named = |outpoint: &OutPoint| queries.inputs.contains(&outpoint.to_string());
        let outputs = unspent
            .iter()
            .chain(spent.iter().filter(|(outpoint, _)| named(outpoint)))
            .chain(gone.iter().filter(|_| behind))
            .filter(|(_, (script, _))| *script == owner)
            .map(|(outpoint, (_, value))| UnspentOutput {
                txid: outpoint.txid.to_string(),
                vout: outpoint.vout,
                value: *value,
            });
        Ok(ChainData::Bitcoin(BitcoinChainData {
            outputs: outputs.collect(),
            fee_rate: queries.fee_level.map(|_| 1_000),
            ..Default::default()
        }))
    }

    async fn broadcast(&self, broadcast_request: &BroadcastRequest) -> BroadcastOutcome {
        tokio::task::yield_now().await;
        let bytes = hex::decode(&broadcast_request.signed.transaction).unwrap();
        let transaction: Transaction = consensus::deserialize(&bytes).unwrap();
        let txid = transaction.compute_txid();
        assert_eq!(txid.to_string(), broadcast_request.signed.tx_hash);
        self.handed
            .lock()
            .unwrap()
            .insert(broadcast_request.signed.transaction.clone());
        let handed = &broadcast_request.signed;
        self.broadcasts.lock().unwrap().push(handed.tx_hash.clone());
        let refusal = |words: &str| {
            BroadcastOutcome::Refused(ChainRefusal {
                reason: format!("the node refused the transaction: {words}"),
                code: ExecuteCode::Unspecified,
            })
        };
        if self.refuse.load(Ordering::SeqCst) {
            let hash = handed.tx_hash.clone();
            self.refused.lock().unwrap().insert(hash);
            return refusal("min relay fee not met");
        }
        let mut unspent = self.unspent.lock().unwrap();
        if !self.sent.lock().unwrap().insert(txid) {
            return BroadcastOutcome::Accepted;
        }
        if self.replaces.load(Ordering::SeqCst) && !self.replace(&transaction, &mut unspent) {
            self.sent.lock().unwrap().remove(&txid);
            return refusal("insufficient fee, rejecting replacement");
        }
        let mut inputs = transaction.input.iter();
        if !inputs.all(|input| unspent.contains_key(&input.previous_output)) {
            self.conflicts.fetch_add(1, Ordering::SeqCst);
            self.sent.lock().unwrap().remove(&txid);
            return refusal("txn-mempool-conflict");
        }
        self.waiting
            .lock()
            .unwrap()
            .insert(txid, transaction.clone());
        for input in &transaction.input {
            let output = unspent.remove(&input.previous_output).unwrap();
            let mut spent = self.spent.lock().unwrap();
            spent.insert(input.previous_output, output);
        }
        for (vout, output) in (0..).zip(transaction.output) {
            let made = (output.script_pubkey, output.value.to_sat());
            unspent.insert(OutPoint { txid, vout }, made);
        }
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
        let (sent, refused) = (self.sent.lock().unwrap(), self.refused.lock().unwrap());
        let is_sent = |hash: &str| sent.iter().any(|txid| txid.to_string() == hash);
        let sighted = |one: &TrackedTransaction| match one.signed.tx_hash.as_str() {
            _ if self.lost.load(Ordering::SeqCst) => TransactionSighting::Missing,
            hash if refused.contains(hash) && !is_sent(hash) => TransactionSighting::Missing,
            _ if self.unmined.load(Ordering::SeqCst) => TransactionSighting::Waiting,
            _ => FINAL,
        };
        transactions.iter().map(|one| Ok(sighted(one))).collect()
    }

    async fn balance(&self, address: &str, _token: Option<&str>) -> Result<String, ChainError> {
        let owner = script(address);
        let unspent = self.unspent.lock().unwrap();
        let own = unspent.values().filter(|(script, _)| *script == owner);
        Ok(own.map(|(_, value)| value).sum::<u64>().to_string())
    }
}
