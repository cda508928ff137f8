//! What transactions pay: their size, the fee rate, and what others that hang on them pay.

use bitcoin::{Amount, TxOut};

use super::{
    chain_data::{Ancestors, ChainData, ReplacedFees},
    payload::{BitcoinOutput, BitcoinPayment, FeeRate},
};
use crate::{fault::Fault, networks::rules::unexpected_chain_data};

/// Version, lock time, and the two counts, in weight units; marker and flag.
const BASE_WEIGHT: u64 = 42;
/// An input that spends P2WPKH with a signature of 72 bytes, the longest there is.
const INPUT_WEIGHT: u64 = 272;
/// Of that, what is its witness, and of [`BASE_WEIGHT`] marker and flag: what a transaction lacks that is not signed.
const WITNESS_WEIGHT: u64 = 108;
const MARKER_WEIGHT: u64 = 2;
/// Amount, length and script of a P2WPKH output.
const CHANGE_WEIGHT: u64 = 4 * (8 + 1 + 22);
/// From this many outputs on their count takes two more bytes.
const LONG_COUNT: usize = 253;
/// What a transaction has to pay above those that it replaces, in satoshi per virtual byte of its own:
/// `-incrementalrelayfee` of Bitcoin Core up to version 29, and later ones ask for less (BIP-125, rule 4).
const INCREMENTAL_RATE: u64 = 1;

/// What transactions that make the same payment cost.
pub(super) struct FeeTable {
    /// Satoshi per 1,000 vB.
    rate: u64,
    /// Recipients.
    outputs: usize,
    /// Weight of the outputs to them.
    weight: u64,
    /// What it brings into a block with itself.
    ancestors: Option<Ancestors>,
    /// What it takes the place of.
    replaced: Option<ReplacedFees>,
}

impl FeeTable {
    /// Of the payment, on what nodes said.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when they said something else than they were asked.
    pub(super) fn of(payment: &BitcoinPayment, chain_data: &ChainData) -> Result<Self, Fault> {
        let rate = match (payment.fee, chain_data.fee_rate) {
            (FeeRate::Fixed(rate), None) => rate.saturating_mul(1_000),
            (FeeRate::Level(_), Some(rate)) => rate,
            _ => return Err(unexpected_chain_data()),
        };
        let named = !payment.inputs.is_empty();
        if (chain_data.ancestors.is_some() && !named)
            || (chain_data.replaced.is_some() && !(named && payment.level().is_some()))
        {
            return Err(unexpected_chain_data());
        }
        let weight = |output: &BitcoinOutput| {
            let output = TxOut {
                value: Amount::from_sat(output.satoshi),
                script_pubkey: output.to.script_pubkey(),
            };
            output.weight().to_wu()
        };
        Ok(Self {
            rate,
            outputs: payment.outputs.len(),
            weight: payment.outputs.iter().map(weight).sum(),
            ancestors: chain_data.ancestors,
            replaced: chain_data.replaced,
        })
    }

    /// The fee in satoshi: it does not depend on the lengths of the signatures.
    pub(super) fn fee(&self, inputs: usize, change: bool) -> u64 {
        let vsize = self.vsize(inputs, change);
        // The longer count is not charged for; but nodes do not carry what pays below 1 sat/vB.
        let long_count = self.outputs + usize::from(change) >= LONG_COUNT;
        let least = vsize + if long_count { 2 } else { 0 };
        let fee = at_rate(self.rate, vsize).max(least);
        fee.saturating_add(self.deficit()).max(self.outbid(vsize))
    }

    /// What nodes let the transaction pay per virtual byte, in satoshi, rounded up; `None` where the payload says
    /// all that it pays. What it pays for its ancestors is counted as if it were for itself.
    pub(super) fn quoted(&self, inputs: usize, change: bool, level: bool) -> Option<u128> {
        let paid = if level {
            self.fee(inputs, change)
        } else {
            self.deficit()
        };
        let vsize = u128::from(self.vsize(inputs, change)).max(1);
        (level || paid > 0).then(|| u128::from(paid).div_ceil(vsize))
    }

    /// As [`FeeTable::quoted`], read off a transaction of such inputs that is not signed, of so many weight units.
    pub(super) fn paid(fee: u64, inputs: usize, weight: u64) -> u128 {
        let witnesses = WITNESS_WEIGHT.saturating_mul(inputs as u64);
        let weight = weight
            .saturating_add(MARKER_WEIGHT)
            .saturating_add(witnesses);
        u128::from(fee).div_ceil(u128::from(weight.div_ceil(4)).max(1))
    }

    fn vsize(&self, inputs: usize, change: bool) -> u64 {
        let change_weight = if change { CHANGE_WEIGHT } else { 0 };
        let weight = BASE_WEIGHT + INPUT_WEIGHT * inputs as u64 + self.weight + change_weight;
        weight.div_ceil(4)
    }

    /// What the ancestors pay too little for the rate, in satoshi: a block takes them with this transaction, for
    /// what all pay together (child pays for parent).
    fn deficit(&self) -> u64 {
        let Some(Ancestors { vsize, fees }) = self.ancestors else {
            return 0;
        };
        at_rate(self.rate, vsize).saturating_sub(fees)
    }

    /// The least fee for which nodes take the transaction in the place of others (BIP-125, rules 3 and 4, and the
    /// rule of Bitcoin Core that its rate is above that of each).
    fn outbid(&self, vsize: u64) -> u64 {
        let Some(ReplacedFees { fees, rate }) = self.replaced else {
            return 0;
        };
        let for_itself = fees.saturating_add(INCREMENTAL_RATE.saturating_mul(vsize));
        for_itself.max(at_rate(rate, vsize).saturating_add(1))
    }
}

/// The fee in satoshi of so many virtual bytes, rounded up, at a rate in satoshi per 1,000.
fn at_rate(rate: u64, vsize: u64) -> u64 {
    let fee = u128::from(rate)
        .saturating_mul(u128::from(vsize))
        .div_ceil(1_000);
    u64::try_from(fee).unwrap_or(u64::MAX)
}
