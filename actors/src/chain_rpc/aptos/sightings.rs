//! Finds out where a sent transaction is.

use super::{AptosNode, SignedAptosTransaction, field, number, says};
use crate::chain_rpc::{
    ChainError, Inclusion, NodeRequest, NodeResponse, TrackedTransaction, TransactionSighting,
};
use serde_json::Value;

/// Where a node has a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AptosPlace {
    /// In the ledger, from which nothing is ever taken back.
    Ledger(Inclusion),
    Mempool,
    Nowhere,
}

impl AptosNode {
    pub(super) async fn sight(
        &self,
        transaction: &TrackedTransaction,
        now_ms: u64,
    ) -> Result<TransactionSighting, ChainError> {
        let hash = transaction.signed.tx_hash.as_str();
        let found = self.rest.ask(by_hash(hash)).await?;
        match place(&found, hash) {
            None => Err(ChainError::unknown(
                "the node's answer about a transaction makes no sense",
            )),
            Some(AptosPlace::Mempool) => Ok(TransactionSighting::Waiting),
            Some(AptosPlace::Ledger(_)) => match self.agreed_place(hash).await? {
                AptosPlace::Ledger(found) => Ok(TransactionSighting::Final(found)),
                AptosPlace::Mempool => Ok(TransactionSighting::Waiting),
                // One node alone said so.
                AptosPlace::Nowhere => self.sight_missing(transaction, now_ms).await,
            },
            Some(AptosPlace::Nowhere) => self.sight_missing(transaction, now_ms).await,
        }
    }

    /// Whether one that a node does not know can still come: its sender's number is free, no matter who pays, and its time
    /// is not over.
    async fn sight_missing(
        &self,
        transaction: &TrackedTransaction,
        now_ms: u64,
    ) -> Result<TransactionSighting, ChainError> {
        let hash = transaction.signed.tx_hash.as_str();
        let sent = SignedAptosTransaction::read(&transaction.signed)
            .ok_or_else(|| ChainError::unknown("the signed transaction cannot be read"))?
            .transaction;
        let is_used = self.sequence_number(&sent.sender.to_string()).await? > sent.sequence_number;
        let is_over = is_used || {
            // In microseconds.
            let read = |answer: &NodeResponse| {
                let now_s = field(answer, "ledger_timestamp")? / 1_000_000;
                Some(now_s > sent.expiration_timestamp_secs)
            };
            let clock = NodeRequest::get("", &[]).about("the chain's clock");
            self.rest.query_quorum(clock, read).await?
        };
        if !is_over {
            return Ok(TransactionSighting::Missing);
        }
        // Asked last: from now on it can no longer get into the ledger. A number is never forgotten; what used it may be.
        let place = if !is_used || transaction.is_remembered(now_ms) {
            match self.agreed_place(hash).await? {
                AptosPlace::Ledger(found) => return Ok(TransactionSighting::Final(found)),
                place => place,
            }
        } else if let Some(place) = self.remembered_place(transaction).await {
            place
        } else {
            return Ok(TransactionSighting::Missing);
        };
        if place != AptosPlace::Nowhere {
            return Ok(TransactionSighting::Waiting);
        }
        if !is_used {
            return Ok(TransactionSighting::Expired);
        }
        Ok(match self.executed(&sent).await {
            Some(by) if by == hash => TransactionSighting::Waiting,
            by => TransactionSighting::Replaced(by),
        })
    }

    /// Where one is that is older than what all nodes remember, by as many nodes as have to agree whose ledgers reach
    /// back to before it was sent; `None` where there are not so many.
    async fn remembered_place(&self, transaction: &TrackedTransaction) -> Option<AptosPlace> {
        let said = |node| self.place_of_archive(node, transaction);
        let said = self.rest.witnesses(said).await?;
        // A node that has it is right, whatever others say.
        let mut known = said.into_iter();
        let is_known = |place: &AptosPlace| *place != AptosPlace::Nowhere;
        Some(known.find(is_known).unwrap_or(AptosPlace::Nowhere))
    }

    /// What one node says of a transaction, where it has all from before that was sent.
    async fn place_of_archive(
        &self,
        node: usize,
        transaction: &TrackedTransaction,
    ) -> Option<AptosPlace> {
        let ask = |call: NodeRequest| async move { self.rest.at(node, call).await.ok() };
        let ledger = ask(NodeRequest::get("", &[])).await?;
        let oldest = field(&ledger, "oldest_block_height")?;
        let first = ask(NodeRequest::get(
            &format!("/blocks/by_height/{oldest}"),
            &[],
        ))
        .await?;
        // In microseconds.
        let from_ms = field(&first, "block_timestamp")? / 1_000;
        let to_ms = field(&ledger, "ledger_timestamp")? / 1_000;
        if !transaction.is_within(from_ms, to_ms) {
            return None;
        }
        let hash = transaction.signed.tx_hash.as_str();
        place(&ask(by_hash(hash)).await?, hash)
    }

    async fn agreed_place(&self, hash: &str) -> Result<AptosPlace, ChainError> {
        let read = |answer: &NodeResponse| place(answer, hash);
        Ok(self.rest.query_quorum(by_hash(hash), read).await?)
    }
}

fn by_hash(hash: &str) -> NodeRequest {
    NodeRequest::get(&format!("/transactions/by_hash/{hash}"), &[]).about("a transaction")
}

fn place(answer: &NodeResponse, hash: &str) -> Option<AptosPlace> {
    if answer.status == 404 {
        return says(answer, &["transaction_not_found"]).then_some(AptosPlace::Nowhere);
    }
    let found = answer.is_success().then(|| answer.json::<Value>())??;
    if found.get("hash")?.as_str()? != hash {
        return None;
    }
    if found.get("type")?.as_str()? == "pending_transaction" {
        return Some(AptosPlace::Mempool);
    }
    Some(AptosPlace::Ledger(Inclusion {
        block: number(found.get("version")?)?,
        success: found.get("success")?.as_bool()?,
    }))
}
