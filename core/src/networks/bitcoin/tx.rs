//! Bitcoin transactions: which outputs they spend, what they pay, their PSBT.

use std::{cmp::Reverse, collections::BTreeSet};

use bitcoin::{
    Amount, CompressedPublicKey, EcdsaSighashType, OutPoint, Psbt, ScriptBuf, Sequence,
    Transaction, TxIn, TxOut, Txid, Witness,
    absolute::LockTime,
    consensus::encode::{deserialize_hex, serialize_hex},
    ecdsa,
    hashes::Hash as _,
    secp256k1,
    sighash::SighashCache,
    transaction::Version,
};

use super::{
    chain_data::{ChainData, ReplacedFees, UnspentOutput},
    fee::FeeTable,
    payload::{BitcoinPayload, BitcoinPayment, MAX_INPUTS},
};
use crate::{
    fault::{ExecuteCode, Fault},
    networks::rules::Signed,
    signature::Signature,
};

/// A P2WPKH output below is dust at 3 sat/vB: it is left to the fee.
const LEAST_CHANGE: u64 = 294;
/// Far above what such a transaction's PSBT takes.
const MAX_PSBT_BYTES: usize = 400_000;

/// An output that can be spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpendableOutput {
    pub(super) outpoint: OutPoint,
    /// satoshi.
    pub(super) value: u64,
    /// See [`ChainData::required`].
    pub(super) is_required: bool,
}

impl From<&SpendableOutput> for UnspentOutput {
    fn from(coin: &SpendableOutput) -> Self {
        UnspentOutput {
            txid: coin.outpoint.txid.to_string(),
            vout: coin.outpoint.vout,
            value: coin.value,
        }
    }
}

/// The facts, read and in the order in which they are spent: the largest first, then by txid as
/// it is shown, then by vout.
pub(super) fn coins(chain_data: &ChainData) -> Result<Vec<SpendableOutput>, Fault> {
    let mut seen = BTreeSet::new();
    let mut sum: u64 = 0;
    let mut coins = Vec::with_capacity(chain_data.outputs.len());
    let required = chain_data.required.iter().map(|name| name.parse());
    let required: BTreeSet<OutPoint> = required
        .collect::<Result<_, _>>()
        .map_err(|_| Fault::bug("a required output is not named as txid:vout"))?;
    for UnspentOutput { txid, vout, value } in &chain_data.outputs {
        let txid: Txid = txid
            .parse()
            .map_err(|_| Fault::bug("the node's txid is not 64 hex digits"))?;
        let outpoint = OutPoint::new(txid, *vout);
        if !seen.insert(outpoint) {
            return Err(Fault::bug("the node lists an output twice"));
        }
        sum = sum.saturating_add(*value);
        coins.push(SpendableOutput {
            outpoint,
            value: *value,
            is_required: required.contains(&outpoint),
        });
    }
    if sum > Amount::MAX_MONEY.to_sat() {
        return Err(Fault::field(
            "from",
            "holds more than the bitcoin supply according to the chain node: check the node",
        ));
    }
    coins.sort_unstable_by_key(|coin| {
        let mut shown = coin.outpoint.txid.to_byte_array();
        shown.reverse();
        (Reverse(coin.value), shown, coin.outpoint.vout)
    });
    Ok(coins)
}

/// What a transaction spends.
pub(super) struct CoinSelection {
    /// In the order of the inputs.
    pub(super) coins: Vec<SpendableOutput>,
    /// What goes back to the sender, in satoshi.
    change: Option<u64>,
    /// What the only recipient, who is the sender, gets above its amount, in satoshi.
    surplus: u64,
}

impl CoinSelection {
    /// Whether there is a change output.
    pub(super) fn has_change(&self) -> bool {
        self.change.is_some()
    }
}

/// All coins that the payload names or that are required, and the smallest number of the first others that pays for amounts and fee
/// without change. Change is what is left of them, if its own output can be paid for and is not dust.
pub(super) fn choose(
    payload: &BitcoinPayload,
    coins: &[SpendableOutput],
    tariff: &FeeTable,
) -> Result<CoinSelection, Fault> {
    let payment = payload.payment();
    let named: BTreeSet<OutPoint> = payment.inputs.iter().copied().collect();
    let (wanted_coins, others): (Vec<SpendableOutput>, Vec<SpendableOutput>) = coins
        .iter()
        .copied()
        .partition(|coin| coin.is_required || named.contains(&coin.outpoint));
    let is_missing = |outpoint: &OutPoint| coins.iter().all(|coin| coin.outpoint != *outpoint);
    if let Some(index) = payment.inputs.iter().position(is_missing) {
        return Err(Fault::field(
            format_args!("inputs[{index}]"),
            "is not an output of the wallet that can be spent",
        ));
    }
    let wants = |inputs, change| {
        let fee = tariff.fee(inputs, change);
        payment.amount().saturating_add(fee)
    };
    let short = |problem: String| Fault::field(payload.amount_field(), problem);
    let least = wanted_coins.len();
    let (mut sum, mut wanted) = (0, wants(least.max(1), false));
    let in_order = wanted_coins.iter().chain(&others).copied();
    for (count, coin) in (1..).zip(in_order.clone()) {
        // The sum of all is at most 21 million bitcoin.
        sum += coin.value;
        if count < least {
            continue;
        }
        wanted = wants(count, false);
        if sum < wanted {
            continue;
        }
        if count > MAX_INPUTS {
            let problem = format!(
                "needs more than {MAX_INPUTS} outputs of the wallet: consolidate them first with payments to the wallet itself"
            );
            return Err(short(problem));
        }
        let left = sum.saturating_sub(wanted);
        let change = sum
            .checked_sub(wants(count, true))
            .filter(|change| *change >= LEAST_CHANGE);
        let (change, surplus) = if payment.gathers() {
            (None, left)
        } else {
            (change, 0)
        };
        return Ok(CoinSelection {
            coins: in_order.take(count).collect(),
            change,
            surplus,
        });
    }
    let problem = format!(
        "exceeds the wallet's funds: it has {sum} spendable satoshi, and needs {wanted} including the fee"
    );
    Err(short(problem).with_execute_code(ExecuteCode::InsufficientFunds))
}

fn read_signed(signed: &Signed) -> Result<Transaction, Fault> {
    deserialize_hex(&signed.transaction).map_err(Fault::bug)
}

/// What a signed transaction spends.
///
/// # Errors
/// [`crate::fault::Class::Bug`] when it cannot be read.
pub(super) fn spent(signed: &Signed) -> Result<Vec<OutPoint>, Fault> {
    let transaction = read_signed(signed)?;
    let inputs = transaction.input.iter();
    Ok(inputs.map(|input| input.previous_output).collect())
}

/// What a signed transaction makes.
///
/// # Errors
/// [`crate::fault::Class::Bug`] when it cannot be read.
pub(super) fn made(signed: &Signed) -> Result<Vec<OutPoint>, Fault> {
    let transaction = read_signed(signed)?;
    let txid = transaction.compute_txid();
    let outputs = (0..).zip(&transaction.output);
    Ok(outputs.map(|(vout, _)| OutPoint { txid, vout }).collect())
}

/// What a signed transaction pays that spends one of `named`; `None` where it spends none of them, or something
/// of which the value is not among `coins`.
///
/// # Errors
/// [`crate::fault::Class::Bug`] when it cannot be read.
pub(super) fn paid(
    signed: &Signed,
    named: &[OutPoint],
    coins: &[SpendableOutput],
) -> Result<Option<ReplacedFees>, Fault> {
    let transaction = read_signed(signed)?;
    let spent: Vec<OutPoint> = transaction
        .input
        .iter()
        .map(|input| input.previous_output)
        .collect();
    if !spent.iter().any(|outpoint| named.contains(outpoint)) {
        return Ok(None);
    }
    let value = |outpoint: &OutPoint| {
        let coin = coins.iter().find(|coin| coin.outpoint == *outpoint)?;
        Some(coin.value)
    };
    let values: Option<Vec<u64>> = spent.iter().map(value).collect();
    let outputs: u64 = transaction
        .output
        .iter()
        .fold(0, |sum, output| sum.saturating_add(output.value.to_sat()));
    let fees = values.and_then(|values| values.iter().sum::<u64>().checked_sub(outputs));
    let vsize = u128::try_from(transaction.vsize())
        .unwrap_or(u128::MAX)
        .max(1);
    Ok(fees.map(|fees| {
        let rate = u128::from(fees).saturating_mul(1_000).div_ceil(vsize);
        ReplacedFees {
            fees,
            rate: u64::try_from(rate).unwrap_or(u64::MAX),
        }
    }))
}

/// A transaction that is not signed, and the outputs that its inputs spend.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnsignedPsbt {
    transaction: Transaction,
    /// One for each input.
    spent: Vec<TxOut>,
}

impl UnsignedPsbt {
    /// Recipients first, in their order, then change.
    pub(super) fn new(payment: &BitcoinPayment, choice: &CoinSelection, own: &ScriptBuf) -> Self {
        let output = |satoshi, script_pubkey| TxOut {
            value: Amount::from_sat(satoshi),
            script_pubkey,
        };
        let recipients = payment.outputs.iter().map(|recipient| {
            let satoshi = recipient.satoshi.saturating_add(choice.surplus);
            output(satoshi, recipient.to.script_pubkey())
        });
        let change = choice.change.map(|change| output(change, own.clone()));
        let inputs = choice.coins.iter().map(|coin| TxIn {
            previous_output: coin.outpoint,
            script_sig: ScriptBuf::new(),
            sequence: Sequence::ENABLE_RBF_NO_LOCKTIME,
            witness: Witness::new(),
        });
        let spent = choice
            .coins
            .iter()
            .map(|coin| output(coin.value, own.clone()));
        Self {
            transaction: Transaction {
                version: Version::TWO,
                lock_time: LockTime::ZERO,
                input: inputs.collect(),
                output: recipients.chain(change).collect(),
            },
            spent: spent.collect(),
        }
    }

    /// The PSBT (BIP-174) with `PSBT_IN_WITNESS_UTXO` for each input and nothing else.
    pub(super) fn write(&self) -> Result<Vec<u8>, Fault> {
        let mut psbt = Psbt::from_unsigned_tx(self.transaction.clone()).map_err(Fault::bug)?;
        for (input, spent) in psbt.inputs.iter_mut().zip(&self.spent) {
            input.witness_utxo = Some(spent.clone());
        }
        Ok(psbt.serialize())
    }

    /// Reads what [`UnsignedPsbt::write`] gave, byte for byte.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Fault> {
        let unreadable = |why: &dyn std::fmt::Display| {
            Fault::bug(format_args!(
                "the unsigned transaction cannot be read: {why}"
            ))
        };
        if bytes.len() > MAX_PSBT_BYTES {
            return Err(unreadable(&"it is too long"));
        }
        let psbt = Psbt::deserialize(bytes).map_err(|error| unreadable(&error))?;
        let spent: Option<Vec<TxOut>> = psbt
            .inputs
            .into_iter()
            .map(|input| input.witness_utxo)
            .collect();
        let draft = Self {
            transaction: psbt.unsigned_tx,
            spent: spent.ok_or_else(|| unreadable(&"an input lacks the output it spends"))?,
        };
        if draft.write()? != bytes {
            return Err(unreadable(&"it holds more than a transaction"));
        }
        Ok(draft)
    }

    /// What the inputs have more than the outputs, in satoshi.
    pub(super) fn fee(&self) -> Result<u64, Fault> {
        let sum = |outputs: &[TxOut]| {
            let mut values = outputs.iter().map(|output| output.value.to_sat());
            values.try_fold(0, u64::checked_add)
        };
        let (spent, paid) = (sum(&self.spent), sum(&self.transaction.output));
        spent
            .zip(paid)
            .and_then(|(spent, paid)| spent.checked_sub(paid))
            .ok_or_else(|| Fault::bug("the transaction pays more than it spends"))
    }

    /// What it pays per virtual byte, in satoshi, rounded up.
    pub(super) fn price(&self) -> Result<u128, Fault> {
        let (inputs, weight) = (self.spent.len(), self.transaction.weight().to_wu());
        Ok(FeeTable::paid(self.fee()?, inputs, weight))
    }

    /// The id of a transaction that has several inputs.
    pub(super) fn signed_in_parts(&self) -> Option<[u8; 32]> {
        let several = self.transaction.input.len() > 1;
        several.then(|| self.transaction.compute_txid().to_byte_array())
    }

    /// The BIP-143 digest of each input, all of which spend outputs of the script `own`.
    pub(super) fn digests(&self, own: &ScriptBuf) -> Result<Vec<[u8; 32]>, Fault> {
        let mut cache = SighashCache::new(&self.transaction);
        self.spent
            .iter()
            .enumerate()
            .map(|(index, spent)| {
                if spent.script_pubkey != *own {
                    return Err(Fault::bug("an input spends what is not the sender's"));
                }
                cache
                    .p2wpkh_signature_hash(index, own, spent.value, EcdsaSighashType::All)
                    .map(|digest| digest.to_byte_array())
                    .map_err(Fault::bug)
            })
            .collect()
    }

    /// Puts a signature into each input.
    pub(super) fn sign(
        self,
        signatures: &[Signature],
        key: &CompressedPublicKey,
    ) -> Result<Signed, Fault> {
        let mut transaction = self.transaction;
        if transaction.input.len() != signatures.len() {
            return Err(Fault::bug(
                "the number of signatures does not match the number of inputs",
            ));
        }
        for (input, signature) in transaction.input.iter_mut().zip(signatures) {
            let Signature::Ecdsa { .. } = signature else {
                return Err(Fault::bug("an input takes an ECDSA signature"));
            };
            let signature = secp256k1::ecdsa::Signature::from_compact(&signature.to_bytes())
                .map_err(Fault::bug)?;
            let signature = ecdsa::Signature::sighash_all(signature);
            input.witness = Witness::p2wpkh(&signature, &key.0);
        }
        Ok(Signed {
            tx_hash: transaction.compute_txid().to_string(),
            transaction: serialize_hex(&transaction),
        })
    }

    /// The name of the first thing in which a transaction differs from another.
    pub(super) fn difference(&self, other: &Self) -> Option<&'static str> {
        let own = self.spent.first().map(|spent| &spent.script_pubkey);
        let (ours, theirs) = (self.payments(own), other.payments(own));
        let scripts = |outputs: &[TxOut]| -> Vec<ScriptBuf> {
            let scripts = outputs.iter().map(|output| output.script_pubkey.clone());
            scripts.collect()
        };
        if scripts(ours) != scripts(theirs) {
            return Some("recipient");
        }
        if ours != theirs {
            return Some("amount");
        }
        if self.outpoints() != other.outpoints() || self.spent != other.spent {
            return Some("inputs");
        }
        // The same is spent and the recipients get the same: what differs is the change.
        (self.transaction.output != other.transaction.output).then_some("networkFee")
    }

    /// The outputs without change: a last one of several that goes to `own`.
    fn payments(&self, own: Option<&ScriptBuf>) -> &[TxOut] {
        let all = self.transaction.output.as_slice();
        match all.split_last() {
            Some((last, payments)) if !payments.is_empty() && Some(&last.script_pubkey) == own => {
                payments
            }
            _ => all,
        }
    }

    /// What the inputs spend.
    pub(super) fn outpoints(&self) -> Vec<OutPoint> {
        let inputs = self.transaction.input.iter();
        inputs.map(|input| input.previous_output).collect()
    }
}
