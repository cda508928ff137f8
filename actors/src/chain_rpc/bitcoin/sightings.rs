//! Finds out where sent transactions are.

use std::collections::BTreeSet;

use bitcoin::{Transaction, consensus::encode::deserialize_hex};
use serde_json::{Value, json};

use super::{
    BitcoinNode, FINAL_MS,
    batch::{BitcoinRpcResult, CoreRpc, RpcBatch},
    behind, found_in, is_in_block, is_there, malformed,
};
use crate::chain_rpc::{
    ChainCall, ChainError, Inclusion, MEMORY_MS, TrackedTransaction, TransactionSighting,
    exchange::ParsedResponse,
};

/// Blocks that make a transaction final, its own among them.
const FINAL_BLOCKS: i64 = 6;
/// Transactions of one HTTP request.
const CHUNK: usize = 16;

/// Where a node has a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BitcoinPlace {
    /// In the block of this height, with enough of them on it.
    Final(u64),
    /// In the block of this height.
    Block(u64),
    Mempool,
    /// Another one that spends the same is in a block, with enough of them on it.
    Void,
    Nowhere,
}

impl BitcoinPlace {
    /// Whether it is no matter of one node's word.
    fn is_for_all(self) -> bool {
        !matches!(self, BitcoinPlace::Mempool | BitcoinPlace::Nowhere)
    }

    /// Without how many blocks there are on its own: nodes are not at the same one. What has been replaced only one
    /// node's wallet may have seen.
    fn without_depth(self) -> Self {
        match self {
            BitcoinPlace::Final(height) => BitcoinPlace::Block(height),
            BitcoinPlace::Void => BitcoinPlace::Nowhere,
            place => place,
        }
    }
}

impl BitcoinNode {
    pub(super) async fn sight_all(
        &self,
        transactions: &[TrackedTransaction],
        now_ms: u64,
    ) -> Vec<Result<TransactionSighting, ChainError>> {
        let mut sightings = Vec::with_capacity(transactions.len());
        for some in transactions.chunks(CHUNK) {
            match self.places(some).await {
                Ok(places) => {
                    for (transaction, place) in some.iter().zip(places) {
                        sightings.push(self.sight(transaction, place, now_ms).await);
                    }
                }
                Err(error) => sightings.extend(some.iter().map(|_| Err(error.clone()))),
            }
        }
        sightings
    }

    /// Where a node has them, and, where a block is said to have them or what they spend, where enough nodes do; `None`
    /// where these do not agree. What they say of one is no matter of another: only one node's wallet may have seen what
    /// has been replaced.
    async fn places(
        &self,
        transactions: &[TrackedTransaction],
    ) -> Result<Vec<Option<BitcoinPlace>>, ChainError> {
        let found = self.rpc.ask(places_of(transactions.iter())).await?;
        if self.rpc.agree() <= 1 {
            return Ok(found.into_iter().map(Some).collect());
        }
        // One that stands still must not hide what the others have.
        let asked = places_of(transactions.iter());
        let said = self.rpc.voices(asked, Vec::<BitcoinPlace>::eq).await;
        let said = said.unwrap_or_default();
        let said: Vec<Vec<BitcoinPlace>> = said.into_iter().flatten().collect();
        let agreed = found.into_iter().enumerate().map(|(index, place)| {
            let of_it = said.iter().filter_map(|one| one.get(index).copied());
            let exact: Vec<_> = of_it.clone().collect();
            let rough: Vec<_> = of_it.map(BitcoinPlace::without_depth).collect();
            let agreed = self.rpc.agreed_of(&exact);
            let agreed = agreed.or_else(|| self.rpc.agreed_of(&rough));
            match place {
                BitcoinPlace::Mempool | BitcoinPlace::Nowhere => {
                    agreed.filter(|agreed| agreed.is_for_all()).or(Some(place))
                }
                // The others' wallets may never have seen it.
                BitcoinPlace::Void => agreed.or(Some(BitcoinPlace::Nowhere)),
                BitcoinPlace::Final(_) | BitcoinPlace::Block(_) => agreed,
            }
        });
        Ok(agreed.collect())
    }

    async fn sight(
        &self,
        transaction: &TrackedTransaction,
        place: Option<BitcoinPlace>,
        now_ms: u64,
    ) -> Result<TransactionSighting, ChainError> {
        let in_block = |block| Inclusion {
            block,
            success: true,
        };
        let place = place.ok_or_else(|| self.rpc.disagree("a transaction"))?;
        Ok(match place {
            BitcoinPlace::Final(height) => TransactionSighting::Final(in_block(height)),
            BitcoinPlace::Block(height) => TransactionSighting::Mined(in_block(height)),
            BitcoinPlace::Mempool => TransactionSighting::Waiting,
            BitcoinPlace::Void => {
                TransactionSighting::Replaced(self.conflicting(transaction).await)
            }
            BitcoinPlace::Nowhere => {
                if self.is_spent_for_good(transaction, now_ms).await? {
                    TransactionSighting::Replaced(self.conflicting(transaction).await)
                } else {
                    TransactionSighting::Missing
                }
            }
        })
    }

    /// The transaction in a block that spends the same, where a node's wallet knows.
    async fn conflicting(&self, transaction: &TrackedTransaction) -> Option<String> {
        let ask = RpcBatch::wallet().and("gettransaction", json!([transaction.signed.tx_hash]));
        let conflicts = |said: &Vec<BitcoinRpcResult>| {
            let in_wallet = said.first()?.as_ref().ok()?;
            let others = in_wallet.get("walletconflicts")?.as_array()?;
            let others = others.iter().filter_map(Value::as_str).map(str::to_owned);
            Some(others.collect::<BTreeSet<String>>())
        };
        let others = self.rpc.query_quorum(ask, conflicts).await.ok()?;
        let in_block = |said: &Vec<BitcoinRpcResult>| {
            let mut found = others.iter().zip(said);
            let (by, _) = found.find(|(_, said)| said.as_ref().is_ok_and(is_in_block))?;
            Some(by.clone())
        };
        let ask = RpcBatch::wallet().each(&others, "gettransaction", |other| json!([other]));
        self.rpc.query_quorum(ask, in_block).await.ok()
    }

    /// Whether a block has spent what a transaction spends that no node has, and this one did not, or has replaced what was
    /// to make that: some node
    /// may never have seen it, so that its wallet knows of no conflict. Which block that is nodes do not say: so it counts
    /// once they have said so for six blocks or for an hour.
    async fn is_spent_for_good(
        &self,
        transaction: &TrackedTransaction,
        now_ms: u64,
    ) -> Result<bool, ChainError> {
        let unreadable = |_| ChainError::Unknown("the transaction cannot be read".into());
        let sent: Transaction =
            deserialize_hex(&transaction.signed.transaction).map_err(unreadable)?;
        let inputs: Vec<_> = sent
            .input
            .iter()
            .map(|input| input.previous_output)
            .collect();
        let id = &transaction.signed.tx_hash;
        let ask = RpcBatch::wallet()
            .and("getblockchaininfo", json!([]))
            .and("getrawtransaction", json!([id, 1]))
            .and("gettransaction", json!([id]))
            .each(&inputs, "gettxout", |input| {
                json!([input.txid.to_string(), input.vout, false])
            })
            .each(&inputs, "gettransaction", |input| {
                json!([input.txid.to_string()])
            });
        let trace = ask.about("what a transaction spends").reading(|said| {
            let [Ok(info), raw, in_wallet, of_inputs @ ..] = said.as_slice() else {
                return malformed(said);
            };
            if let Some(reason) = behind(info) {
                return ParsedResponse::Busy(reason);
            }
            let height = info.get("blocks").and_then(Value::as_i64);
            let is_here =
                raw.as_ref().is_ok_and(is_there) || in_wallet.as_ref().is_ok_and(is_in_block);
            // Where the node's wallet knows what has taken its place, that one's own depth decides: see `place`.
            let rival = in_wallet.as_ref().map_or(0, depth).min(0);
            let (outputs, makers) = of_inputs.split_at(of_inputs.len() / 2);
            let of_inputs = || outputs.iter().zip(makers);
            let is_gone = |output: &BitcoinRpcResult| output.as_ref().is_ok_and(Value::is_null);
            let maker_depth = |maker: &BitcoinRpcResult| maker.as_ref().map_or(0, depth);
            // Another one has taken the place of what was to make it.
            let is_unmade = of_inputs()
                .any(|(output, maker)| is_gone(output) && maker_depth(maker) <= -FINAL_BLOCKS);
            let is_used = of_inputs()
                .any(|(output, maker)| is_gone(output) && maker_depth(maker) >= FINAL_BLOCKS);
            let trace = height.map(|height| SpentTrace {
                height,
                is_spent: (rival < 0 || is_used || is_unmade) && !is_here,
                is_unmade: is_unmade && !is_here,
                is_young: (1 - FINAL_BLOCKS..0).contains(&rival),
            });
            found_in(said, trace)
        });
        let same = |one: &SpentTrace, other: &SpentTrace| one.is_over() == other.is_over();
        let said = self.rpc.voices(trace, same).await?;
        let said: Vec<SpentTrace> = said.into_iter().flatten().collect();
        let spent: Vec<_> = said.iter().filter(|trace| trace.is_spent).collect();
        let (first, last) = (
            spent.iter().map(|trace| trace.height).min().unwrap_or(0),
            spent.iter().map(|trace| trace.height).max().unwrap_or(0),
        );
        let mut spent_since = self.spent_since.lock();
        let agree = self.rpc.agree();
        // What fewer nodes have said for long is new where more have to.
        let key = (id.clone(), agree);
        if spent.len() < agree || said.len() - spent.len() >= agree {
            // What a few nodes no longer report as spent, more nodes do not report as spent either.
            spent_since.retain(|(other, voices), _| other != id || *voices < agree);
            return Ok(false);
        }
        // Those whose request has ended are no longer asked for.
        spent_since.retain(|_, since| now_ms.abs_diff(since.asked_ms) < MEMORY_MS);
        let since = spent_since.entry(key).or_insert(SpentSince {
            height: last,
            at_ms: now_ms,
            asked_ms: now_ms,
        });
        since.asked_ms = now_ms;
        // Six blocks are on what is there instead of the maker.
        let unmade = spent.iter().filter(|trace| trace.is_unmade).count();
        let stands = unmade >= agree
            || first.saturating_sub(since.height) >= FINAL_BLOCKS - 1
            || now_ms.saturating_sub(since.at_ms) >= FINAL_MS;
        let over = said.iter().map(|trace| trace.is_over());
        Ok(stands && self.rpc.agreed_of(&over.collect::<Vec<_>>()) == Some(true))
    }
}

/// What a node says of what a transaction spends that it does not have.
struct SpentTrace {
    /// Of its last block.
    height: i64,
    /// A block has spent some of it otherwise.
    is_spent: bool,
    /// Or what was to make it was replaced for good.
    is_unmade: bool,
    /// By one that its wallet knows, and that is not final.
    is_young: bool,
}

impl SpentTrace {
    fn is_over(&self) -> bool {
        self.is_spent && !self.is_young
    }
}

/// Since when nodes say that a block has spent what a transaction spends.
pub(super) struct SpentSince {
    /// The highest block of any of them then.
    height: i64,
    /// In milliseconds since the Unix epoch.
    at_ms: u64,
    /// When they were last asked.
    asked_ms: u64,
}

/// The question where some transactions are.
fn places_of<'a>(
    transactions: impl Iterator<Item = &'a TrackedTransaction>,
) -> impl ChainCall<CoreRpc, Answer = Vec<BitcoinPlace>> {
    let ids: Vec<&str> = transactions
        .map(|one| one.signed.tx_hash.as_str())
        .collect();
    let count = ids.len();
    let ask = RpcBatch::wallet()
        .and("getblockchaininfo", json!([]))
        .each(&ids, "getrawtransaction", |id| json!([id, 1]))
        .each(&ids, "gettransaction", |id| json!([id]));
    ask.about("transactions").reading(move |said| {
        let [Ok(info), of_each @ ..] = said.as_slice() else {
            return malformed(said);
        };
        if let Some(reason) = behind(info) {
            return ParsedResponse::Busy(reason);
        }
        let (raw, in_wallet) = of_each.split_at(count.min(of_each.len()));
        let height = info.get("blocks").and_then(Value::as_i64);
        let places = height.and_then(|height| {
            let of_each = raw.iter().zip(in_wallet);
            of_each
                .map(|(raw, in_wallet)| place(height, raw, in_wallet))
                .collect::<Option<Vec<_>>>()
        });
        found_in(said, places.filter(|places| places.len() == count))
    })
}

/// `height` is that of the last block.
fn place(
    height: i64,
    raw: &BitcoinRpcResult,
    in_wallet: &BitcoinRpcResult,
) -> Option<BitcoinPlace> {
    let raw = raw.as_ref().ok().filter(|raw| is_there(raw));
    let depth = match (raw, in_wallet) {
        (Some(raw), _) => depth(raw),
        (None, Ok(in_wallet)) => depth(in_wallet),
        (None, Err(_)) => 0,
    };
    if depth > 0 {
        let block = u64::try_from(height.checked_add(1)?.checked_sub(depth)?).ok()?;
        return Some(if depth >= FINAL_BLOCKS {
            BitcoinPlace::Final(block)
        } else {
            BitcoinPlace::Block(block)
        });
    }
    Some(match raw {
        Some(_) => BitcoinPlace::Mempool,
        None if depth <= -FINAL_BLOCKS => BitcoinPlace::Void,
        None => BitcoinPlace::Nowhere,
    })
}

/// Blocks from the transaction's own to the last one; below zero, those since one that spends the same.
fn depth(found: &Value) -> i64 {
    let depth = found.get("confirmations").and_then(Value::as_i64);
    depth.unwrap_or(0)
}
