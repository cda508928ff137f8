//! Coins that contracts transfer, as tracing nodes report them: `debug_traceBlockByHash` with geth's
//! `callTracer`, or `trace_block` of OpenEthereum, Erigon, Nethermind, Reth and others.
//!
//! Both say the same in two forms, in the order in which it happened: the calls of each transaction, with what failed. A
//! call that failed has moved nothing, nor has any within it. What a transaction moves by itself is told by the block.

use std::slice;

use serde_json::Value;

use super::transfers::{BlockError, BlockTransaction, EvmBlock, account_in, amount, hash_in};
use crate::deposit::transfer::{Account, Candidate, CandidatePlace, TransferIndex};

/// Most calls within calls: the machine has 1024.
const DEEPEST: usize = 1_100;

/// Collects what one transaction passes on.
struct TransferCollector<'a> {
    tx: [u8; 32],
    next: u32,
    found: &'a mut Vec<Candidate>,
}

impl TransferCollector<'_> {
    fn add(&mut self, from: Account, to: Account, amount: [u8; 32]) -> Result<(), BlockError> {
        if amount == [0; 32] {
            return Ok(());
        }
        let index = TransferIndex::Internal(self.next);
        let next = self.next.checked_add(1);
        self.next = next.ok_or(BlockError("a transaction has too many calls"))?;
        let candidate = Candidate {
            tx: self.tx,
            place: CandidatePlace::Certain(index),
            from,
            to,
            asset: None,
            amount,
        };
        // It has its number anyway.
        if candidate.moves_something() {
            self.found.push(candidate);
        }
        Ok(())
    }
}

impl EvmBlock {
    /// What `debug_traceBlockByHash` with the `callTracer` says.
    ///
    /// # Errors
    /// [`BlockError`] when it is not about exactly the transactions of this block, or cannot be read.
    pub fn passed_on(&self, traces: &Value) -> Result<Vec<Candidate>, BlockError> {
        let traces = traces.as_array();
        let traces = traces.ok_or(BlockError("the answer is not a list of traces"))?;
        if traces.len() != self.transactions.len() {
            return Err(BlockError("the traces belong to another block"));
        }
        let mut found = Vec::new();
        for (transaction, trace) in self.transactions.iter().zip(traces) {
            // Old nodes do not name it.
            let named = trace.get("txHash").is_some();
            if named && hash_in(trace, "txHash") != Some(transaction.hash) {
                return Err(BlockError("a trace belongs to another transaction"));
            }
            let root = trace.get("result").filter(|root| root.is_object());
            let root = root.ok_or(BlockError("a transaction has no trace"))?;
            check_root(transaction, root)?;
            let mut moves = TransferCollector {
                tx: transaction.hash,
                next: 0,
                found: &mut found,
            };
            walk(root, &mut moves)?;
        }
        Ok(found)
    }

    /// What `trace_block` says.
    ///
    /// # Errors
    /// As [`EvmBlock::passed_on`].
    pub fn passed_on_flat(&self, traces: &Value) -> Result<Vec<Candidate>, BlockError> {
        let traces = traces.as_array();
        let traces = traces.ok_or(BlockError("the answer is not a list of traces"))?;
        let mut found = Vec::new();
        let mut transactions = self.transactions.iter();
        let mut moves: Option<TransferCollector<'_>> = None;
        // Where the calls stand that have failed.
        let mut failed: Vec<Vec<u64>> = Vec::new();
        for trace in traces {
            if hash_in(trace, "blockHash") != Some(self.header.block.hash) {
                return Err(BlockError("a trace belongs to another block"));
            }
            // The reward of the block's producer.
            let Some(tx) = hash_in(trace, "transactionHash") else {
                continue;
            };
            let place = place(trace).ok_or(BlockError("a trace has no traceAddress"))?;
            if moves.as_ref().is_none_or(|moves| moves.tx != tx) {
                let next = transactions.next().filter(|next| next.hash == tx);
                let next = next.filter(|_| place.is_empty());
                let next = next.ok_or(BlockError("a trace belongs to another transaction"))?;
                check_root(next, trace.get("action").ok_or(UNREADABLE)?)?;
                failed.clear();
                moves = Some(TransferCollector {
                    tx,
                    next: 0,
                    found: &mut found,
                });
            }
            if has_failed(trace) {
                failed.push(place);
                continue;
            }
            let is_in_failed = failed.iter().any(|failed| place.starts_with(failed));
            // The first is the transaction itself.
            if is_in_failed || place.is_empty() {
                continue;
            }
            let moved = flat(trace)?;
            if let (Some((from, to, amount)), Some(moves)) = (moved, &mut moves) {
                moves.add(from, to, amount)?;
            }
        }
        match transactions.next() {
            None => Ok(found),
            Some(_) => Err(BlockError("a transaction has no trace")),
        }
    }
}

/// A trace begins with the transaction itself: where it does not, what it moves would be told twice.
fn check_root(transaction: &BlockTransaction, root: &Value) -> Result<(), BlockError> {
    let value = match root.get("value") {
        None | Some(Value::Null) => [0; 32],
        Some(value) => amount(value).ok_or(UNREADABLE)?,
    };
    let to = transaction.to;
    let is_it = account_in(root, "from") == Some(transaction.from)
        && value == transaction.value
        && (to.is_none() || account_in(root, "to") == to);
    match is_it {
        true => Ok(()),
        false => Err(BlockError("a trace does not begin with its transaction")),
    }
}

const UNREADABLE: BlockError = BlockError("a trace cannot be read");

/// The calls that a call has made.
fn calls(call: &Value) -> Result<slice::Iter<'_, Value>, BlockError> {
    match call.get("calls") {
        None | Some(Value::Null) => Ok(<&[Value]>::default().iter()),
        Some(calls) => Ok(calls.as_array().ok_or(UNREADABLE)?.iter()),
    }
}

/// What the calls of a trace of the `callTracer` pass on, from the outside in.
fn walk(root: &Value, moves: &mut TransferCollector<'_>) -> Result<(), BlockError> {
    if has_failed(root) {
        return Ok(());
    }
    let mut within = vec![calls(root)?];
    while let Some(level) = within.last_mut() {
        let Some(call) = level.next() else {
            within.pop();
            continue;
        };
        if has_failed(call) {
            continue;
        }
        let kind = call.get("type").and_then(Value::as_str);
        // Others run code of someone else for the caller, and move nothing.
        if matches!(
            kind.ok_or(UNREADABLE)?,
            "CALL" | "CREATE" | "CREATE2" | "SELFDESTRUCT"
        ) {
            let value = match call.get("value") {
                None | Some(Value::Null) => [0; 32],
                Some(value) => amount(value).ok_or(UNREADABLE)?,
            };
            let from = account_in(call, "from").ok_or(UNREADABLE)?;
            let to = account_in(call, "to").ok_or(UNREADABLE)?;
            moves.add(from, to, value)?;
        }
        if within.len() > DEEPEST {
            return Err(UNREADABLE);
        }
        within.push(calls(call)?);
    }
    Ok(())
}

fn has_failed(trace: &Value) -> bool {
    trace.get("error").is_some_and(|error| !error.is_null())
}

/// What an entry of `trace_block` moves: from, to and how much; `None` when it is of a kind that moves nothing.
fn flat(trace: &Value) -> Result<Option<(Account, Account, [u8; 32])>, BlockError> {
    let action = trace.get("action").ok_or(UNREADABLE)?;
    let text = |object: &Value, field: &str| {
        let text = object.get(field).and_then(Value::as_str);
        text.map(str::to_owned).ok_or(UNREADABLE)
    };
    let sides = |from: &str, to: Option<Account>, value: &str| {
        let amount = amount(action.get(value)?)?;
        Some((account_in(action, from)?, to?, amount))
    };
    let moved = match text(trace, "type")?.as_str() {
        "call" if text(action, "callType")? == "call" => {
            sides("from", account_in(action, "to"), "value")
        }
        "create" => {
            let made = trace.get("result");
            let made = made.and_then(|made| account_in(made, "address"));
            sides("from", made, "value")
        }
        "suicide" | "selfdestruct" => {
            sides("address", account_in(action, "refundAddress"), "balance")
        }
        _ => return Ok(None),
    };
    Ok(Some(moved.ok_or(UNREADABLE)?))
}

fn place(trace: &Value) -> Option<Vec<u64>> {
    let place = trace.get("traceAddress")?.as_array()?.iter();
    place.map(Value::as_u64).collect()
}

#[cfg(test)]
#[path = "traces_tests.rs"]
mod tests;
