//! What a node's wallet lists, checked against the transactions that made it.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
};

use bitcoin::{Transaction, consensus::encode::deserialize_hex};
use covault_core::networks::{
    NetworkRules as _,
    bitcoin::{Bitcoin, UnspentOutput},
};
use serde_json::{Value, json};

use super::{BitcoinNode, ListedOutput, batch::RpcBatch, found_in, locked, watch::WatchedAddress};
use crate::chain_rpc::{CallError, ChainError, client::ChainCall as _};

/// So many transactions are asked for at once. Nodes relay none of more than 400,000 bytes, so
/// that the answer is short enough; blocks may have longer ones.
const CHUNK: usize = 8;
/// So many outputs are offered to a payment, the largest there are. It takes 252 of them at most.
const MAX_CANDIDATES: usize = 1_000;
/// Of so many outputs it is remembered that they are what nodes say; then all are forgotten.
const MAX_VERIFIED: usize = 100_000;

/// An output of which it is known what it is worth.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VerifiedOutput {
    address: String,
    txid: String,
    vout: u32,
    satoshi: u64,
}

impl VerifiedOutput {
    fn new(place: &WatchedAddress, output: &UnspentOutput) -> Self {
        Self {
            address: place.address.clone(),
            txid: output.txid.clone(),
            vout: output.vout,
            satoshi: output.value,
        }
    }
}

impl BitcoinNode {
    /// Without the outputs in the mempool of transactions that another may replace.
    pub(super) async fn trusted(
        &self,
        address: &str,
        listed: Vec<ListedOutput>,
    ) -> Result<Vec<UnspentOutput>, ChainError> {
        let pending = listed.iter().filter(|listed| !listed.confirmed);
        let pending = pending.map(|listed| listed.output.txid.as_str()).collect();
        let look = |_: &str, transaction: &Transaction| is_signed_by(address, transaction);
        let own = self.inspect(&pending, look).await?;
        let trusted =
            |listed: &ListedOutput| listed.confirmed || own.get(&listed.output.txid) == Some(&true);
        Ok(listed
            .into_iter()
            .filter(trusted)
            .map(|listed| listed.output)
            .collect())
    }

    /// The largest of some outputs, and that they are worth what the nodes say.
    ///
    /// A signature of segwit v0 binds the amount of its own input only (BIP-143), and no signer
    /// sees more than the amounts that it is shown. Who could call one of two inputs worth less
    /// than it is, and the other one in the next try of the same payment, would have two
    /// signatures that together pay a higher fee than either request did (CVE-2020-14199). But the
    /// id of a transaction is a hash of its outputs.
    pub(super) async fn proven(
        &self,
        place: &WatchedAddress,
        mut outputs: Vec<UnspentOutput>,
    ) -> Result<Vec<UnspentOutput>, ChainError> {
        outputs.sort_by_key(|output| std::cmp::Reverse(output.value));
        outputs.truncate(MAX_CANDIDATES);
        let known = |output: &UnspentOutput| {
            locked(&self.proven).contains(&VerifiedOutput::new(place, output))
        };
        let new: Vec<UnspentOutput> = outputs
            .iter()
            .filter(|output| !known(output))
            .cloned()
            .collect();
        let txids = new.iter().map(|output| output.txid.as_str()).collect();
        let look = |txid: &str, transaction: &Transaction| {
            let mut of_it = new.iter().filter(|output| output.txid == txid);
            of_it.all(|output| has(transaction, &place.script, output))
        };
        let seen = self.inspect(&txids, look).await?;
        let mut passed_over = BTreeSet::new();
        for output in &new {
            match seen.get(&output.txid) {
                Some(true) => {}
                Some(false) => {
                    return Err(ChainError::Unknown(format!(
                        "{}: a node reports outputs of {} that do not match that transaction: check the node",
                        self.rpc.chain(),
                        output.txid
                    )));
                }
                None => {
                    passed_over.insert(output.txid.clone());
                }
            }
        }
        outputs.retain(|output| !passed_over.contains(&output.txid));
        let mut proven = locked(&self.proven);
        if proven.len() >= MAX_VERIFIED {
            proven.clear();
        }
        proven.extend(
            outputs
                .iter()
                .map(|output| VerifiedOutput::new(place, output)),
        );
        drop(proven);
        Ok(outputs)
    }

    /// Looks at transactions of the nodes' wallets. One that is too long for an answer is passed
    /// over: who sends such a one must not keep the wallet from paying.
    async fn inspect<T: Clone + PartialEq + Send>(
        &self,
        txids: &BTreeSet<&str>,
        look: impl Fn(&str, &Transaction) -> T + Copy + Send + Sync,
    ) -> Result<BTreeMap<String, T>, ChainError> {
        let all: Vec<&str> = txids.iter().copied().collect();
        let mut todo: Vec<&[&str]> = all.chunks(CHUNK).collect();
        let mut seen = BTreeMap::new();
        while let Some(some) = todo.pop() {
            match self.inspect_some(some, look).await {
                Ok(found) => seen.extend(some.iter().map(ToString::to_string).zip(found)),
                Err(CallError::TooLong(_)) => {
                    if let [txid] = some {
                        tracing::warn!(
                            chain = self.rpc.chain(),
                            txid,
                            "a transaction is too long: its outputs are not spent"
                        );
                    } else {
                        todo.extend(some.chunks(1));
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(seen)
    }

    async fn inspect_some<T: Clone + PartialEq + Send>(
        &self,
        txids: &[&str],
        look: impl Fn(&str, &Transaction) -> T + Send + Sync,
    ) -> Result<Vec<T>, CallError<Infallible>> {
        let ask = RpcBatch::wallet().each(txids, "gettransaction", |txid| json!([txid]));
        let seen = ask.about("transactions of an address").reading(|said| {
            let seen = said.iter().zip(txids).map(|(said, txid)| {
                let transaction = read_transaction(said.as_ref().ok()?, txid)?;
                Some(look(txid, &transaction))
            });
            found_in(said, seen.collect())
        });
        self.rpc.quorum(seen, Vec::<T>::eq).await
    }
}

/// Reads a gettransaction; `None` when it is not the transaction that was asked for.
pub(super) fn read_transaction(found: &Value, txid: &str) -> Option<Transaction> {
    let transaction: Transaction = deserialize_hex(found.get("hex")?.as_str()?).ok()?;
    (transaction.compute_txid().to_string() == txid).then_some(transaction)
}

/// Whether a transaction has an output of this script that is worth this much.
fn has(transaction: &Transaction, script: &str, output: &UnspentOutput) -> bool {
    let index = usize::try_from(output.vout).ok();
    let made = index.and_then(|index| transaction.output.get(index));
    made.is_some_and(|made| {
        made.value.to_sat() == output.value && made.script_pubkey.to_hex_string() == script
    })
}

/// Whether every input of a transaction is signed with the key of a P2WPKH address: then nobody
/// else can replace it.
fn is_signed_by(address: &str, transaction: &Transaction) -> bool {
    let inputs = &transaction.input;
    let by_key = |input: &bitcoin::TxIn| {
        let witness: Vec<&[u8]> = input.witness.iter().collect();
        let [_signature, key] = witness.as_slice() else {
            return false;
        };
        let signer = Bitcoin.address(key).ok();
        input.script_sig.is_empty() && signer.as_deref() == Some(address)
    };
    !inputs.is_empty() && inputs.iter().all(by_key)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use bitcoin::{
        Amount, OutPoint, ScriptBuf, Sequence, TxIn, TxOut, Witness, absolute::LockTime,
        consensus::encode::serialize_hex, transaction::Version,
    };

    use super::*;

    /// The key 7 7 7 ...
    const KEY: &str = "02989c0b76cb563971fdc9bef31ec06c3560f3249d6ee9e5d83c57625596e05f6f";

    fn address() -> String {
        Bitcoin.address(&hex::decode(KEY).unwrap()).unwrap()
    }

    fn input(script_sig: &[u8], witness: &[&str]) -> TxIn {
        let witness: Vec<Vec<u8>> = witness
            .iter()
            .map(|part| hex::decode(part).unwrap())
            .collect();
        TxIn {
            previous_output: OutPoint::null(),
            script_sig: ScriptBuf::from_bytes(script_sig.to_vec()),
            sequence: Sequence::MAX,
            witness: Witness::from_slice(&witness),
        }
    }

    fn transaction(input: Vec<TxIn>, output: &[(u64, &str)]) -> Transaction {
        let output = output.iter().map(|(satoshi, script)| TxOut {
            value: Amount::from_sat(*satoshi),
            script_pubkey: ScriptBuf::from_hex(script).unwrap(),
        });
        Transaction {
            version: Version::TWO,
            lock_time: LockTime::ZERO,
            input,
            output: output.collect(),
        }
    }

    #[test]
    fn a_transaction__should_be_ones_own_only_if_every_input_is_signed_with_the_key() {
        let own = input(&[], &["3044", KEY]);
        let other_key = format!("03{}", &KEY[2..]);
        for (inputs, expected) in [
            (vec![own.clone()], true),
            (vec![own.clone(), own.clone()], true),
            (vec![], false),
            (vec![own.clone(), input(&[], &["3044", &other_key])], false),
            (vec![input(&[], &["3044", KEY, ""])], false),
            (vec![input(&[], &[KEY])], false),
            (vec![input(&[], &["3044", "00"])], false),
            (vec![input(&[0x16], &["3044", KEY])], false),
            (vec![input(&[], &[])], false),
        ] {
            let transaction = transaction(inputs, &[]);
            let is_own = is_signed_by(&address(), &transaction);
            assert_eq!(is_own, expected, "{transaction:?}");
        }
    }

    #[test]
    fn an_output__should_be_what_its_transaction_says() {
        let made = transaction(
            vec![input(&[], &[])],
            &[(1_000, "0014aa"), (2_000, "0014bb")],
        );
        let output = |vout, value| UnspentOutput {
            txid: made.compute_txid().to_string(),
            vout,
            value,
        };
        assert!(has(&made, "0014bb", &output(1, 2_000)));
        for (script, vout, value) in [
            ("0014bb", 1, 1_999),
            ("0014bb", 1, 2_001),
            ("0014aa", 1, 2_000),
            ("0014bb", 0, 2_000),
            ("0014bb", 2, 2_000),
        ] {
            assert!(
                !has(&made, script, &output(vout, value)),
                "{script} {vout} {value}"
            );
        }
    }

    #[test]
    fn a_transaction__should_be_the_one_that_was_asked_for() {
        let made = transaction(vec![input(&[], &["3044", KEY])], &[(1_000, "0014aa")]);
        let mut poorer = made.clone();
        poorer.output[0].value = Amount::from_sat(999);
        let txid = made.compute_txid().to_string();
        let read = |transaction: &Transaction| {
            read_transaction(&json!({"hex": serialize_hex(transaction)}), &txid)
        };
        assert_eq!(read(&made).as_ref(), Some(&made));
        assert_eq!(read(&poorer), None);
        for found in [json!({}), json!({"hex": "zz"}), json!({"hex": ""})] {
            assert_eq!(read_transaction(&found, &txid), None);
        }
    }
}
