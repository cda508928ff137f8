//! Outputs that a payment names: they are looked up also while the mempool spends them.

use std::collections::BTreeSet;

use bitcoin::OutPoint;
use covault_core::networks::bitcoin::{Ancestors, UnspentOutput};
use serde_json::{Value, json};

use super::{
    BitcoinNode,
    batch::{BitcoinRpcResult, RpcBatch},
    behind, found_in, malformed, refused,
    transactions::read_transaction,
    watch::WatchedAddress,
};
use crate::chain_rpc::{ChainCall as _, ChainError, exchange::ParsedResponse};

/// So many outputs are asked for at once: their transactions are in the answer, and nodes relay none of more than
/// 400,000 bytes.
const CHUNK: usize = 4;

/// What a node says of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
enum OutputReport {
    /// It is the wallet's, and no block has spent it.
    There { value: u64, confirmed: bool },
    /// It is not the wallet's, or its transaction does not have so many.
    Foreign,
    /// A block has spent it, or what it was to be made of.
    Spent,
    /// The node does not know its transaction.
    Unknown,
}

impl BitcoinNode {
    /// The outputs `names` (`txid:vout`) of an address, in that order, and what has to come into a block with them.
    ///
    /// # Errors
    /// [`ChainError::Refused`] naming one that can never be spent, and [`ChainError::Unknown`] when nodes do not
    /// answer, do not agree or do not know one of them.
    pub(super) async fn named(
        &self,
        place: &WatchedAddress,
        names: &[String],
    ) -> Result<(Vec<UnspentOutput>, Option<Ancestors>), ChainError> {
        let outpoints: Option<Vec<OutPoint>> = names.iter().map(|name| name.parse().ok()).collect();
        let outpoints =
            outpoints.ok_or_else(|| refused("the names of outputs cannot be read".into()))?;
        let mut outputs = Vec::with_capacity(names.len());
        let mut waiting: BTreeSet<String> = BTreeSet::new();
        for (index, some) in outpoints.chunks(CHUNK).enumerate() {
            let found = self.find(place, some).await?;
            for ((place, outpoint), found) in (index * CHUNK..).zip(some).zip(found) {
                let wrong = |why: &str| {
                    let field = format!("btcSendNative.inputs[{place}]");
                    format!("{field}: {outpoint} {why}")
                };
                let (value, confirmed) = match found {
                    OutputReport::There { value, confirmed } => (value, confirmed),
                    OutputReport::Foreign => {
                        return Err(refused(wrong("is not an output of the wallet")));
                    }
                    OutputReport::Spent => {
                        return Err(refused(wrong("is already spent in a block")));
                    }
                    OutputReport::Unknown => {
                        return Err(ChainError::Unknown(wrong(
                            "belongs to a transaction that the nodes do not know",
                        )));
                    }
                };
                let txid = outpoint.txid.to_string();
                if !confirmed {
                    waiting.insert(txid.clone());
                }
                outputs.push(UnspentOutput {
                    txid,
                    vout: outpoint.vout,
                    value,
                });
            }
        }
        let waiting = waiting.iter().map(String::as_str).collect();
        Ok((outputs, self.ancestors(&waiting).await?))
    }

    async fn find(
        &self,
        place: &WatchedAddress,
        outpoints: &[OutPoint],
    ) -> Result<Vec<OutputReport>, ChainError> {
        let ask = RpcBatch::wallet()
            .and("getblockchaininfo", json!([]))
            .each(outpoints, "gettransaction", |outpoint| {
                json!([outpoint.txid.to_string()])
            })
            .each(outpoints, "gettxout", |outpoint| {
                json!([outpoint.txid.to_string(), outpoint.vout, false])
            });
        let found = ask.about("outputs that a payment names").reading(|said| {
            let [Ok(info), of_each @ ..] = said.as_slice() else {
                return malformed(said);
            };
            if let Some(reason) = behind(info) {
                return ParsedResponse::Busy(reason);
            }
            let (made, unspent) = of_each.split_at(outpoints.len().min(of_each.len()));
            let found = outpoints.iter().zip(made).zip(unspent);
            let found =
                found.map(|((outpoint, made), unspent)| output(place, *outpoint, made, unspent));
            found_in(said, found.collect())
        });
        Ok(self.rpc.quorum(found, Vec::<OutputReport>::eq).await?)
    }
}

/// What the transaction that made an output says of it, and whether it is among the unspent ones of the chain.
fn output(
    place: &WatchedAddress,
    outpoint: OutPoint,
    made: &BitcoinRpcResult,
    unspent: &BitcoinRpcResult,
) -> Option<OutputReport> {
    let Ok(made) = made else {
        return Some(OutputReport::Unknown);
    };
    // The id is a hash of the outputs: nobody can lie about what they are worth.
    let transaction = read_transaction(made, &outpoint.txid.to_string())?;
    let depth = made.get("confirmations").and_then(Value::as_i64)?;
    let index = usize::try_from(outpoint.vout).ok()?;
    let own = transaction
        .output
        .get(index)
        .filter(|made| made.script_pubkey.to_hex_string() == place.script);
    let Some(own) = own else {
        return Some(OutputReport::Foreign);
    };
    let is_there = !unspent.as_ref().ok()?.is_null();
    Some(if depth < 0 || (depth > 0 && !is_there) {
        OutputReport::Spent
    } else {
        OutputReport::There {
            value: own.value.to_sat(),
            confirmed: depth > 0,
        }
    })
}
