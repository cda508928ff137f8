//! Finds out where a sent transaction is.

use covault_core::networks::stellar::ledger;
use serde_json::{Value, json};

use super::{LIFETIME_S, LedgerEntries, LedgerRange, StellarNode, StellarTrace, bug, trace_of};
use crate::chain_rpc::{
    ChainCall as _, ChainError, Inclusion, RpcCall, TrackedTransaction, TransactionSighting,
};

/// Where a node has a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StellarPlace {
    /// In a ledger, which is final.
    Ledger(Inclusion),
    /// In none of these ledgers.
    Nowhere(LedgerRange),
}

impl StellarNode {
    pub(super) async fn sight(
        &self,
        transaction: &TrackedTransaction,
    ) -> Result<TransactionSighting, ChainError> {
        let hash = transaction.signed.tx_hash.as_str();
        // The ledgers that nodes know differ.
        let ledger = |answer: &Value| match place(answer)? {
            StellarPlace::Ledger(found) => Some(Some(found)),
            StellarPlace::Nowhere(_) => Some(None),
        };
        match self.rpc.seconded(by_hash(hash).taking(ledger)).await? {
            Some(found) => Ok(TransactionSighting::Final(found)),
            None => self.sight_missing(transaction).await,
        }
    }

    /// Whether one that no ledger has can still come. What nodes hold that is in no ledger they do not say.
    async fn sight_missing(
        &self,
        transaction: &TrackedTransaction,
    ) -> Result<TransactionSighting, ChainError> {
        let sent =
            ledger::read_sent(&transaction.signed.transaction).map_err(|fault| bug(&fault))?;
        let key = ledger::account_key(&sent.source).map_err(|fault| bug(&fault))?;
        let read = |answer: &Value| {
            let entries = LedgerEntries::of(answer)?;
            let used = entries.account(&key)?.map(|account| account.sequence);
            Some((used >= Some(sent.sequence), entries.last))
        };
        let call = RpcCall("getLedgerEntries", json!({"keys": [key]}));
        let (is_used, ledger) = self
            .rpc
            .query_quorum_by(call, read, |(one, _), (other, _)| one == other)
            .await?;
        // Nodes forget ledgers: those that count know it from before it was made up to now.
        let made_s = (transaction.sent_at_ms / 1_000).saturating_sub(LIFETIME_S);
        let is_void = |answer: &Value| match place(answer)? {
            StellarPlace::Ledger(_) => Some(false),
            StellarPlace::Nowhere(range) => Some(
                range.since <= made_s && (range.is_past(&sent) || is_used && range.last >= ledger),
            ),
        };
        let call = by_hash(&transaction.signed.tx_hash);
        let is_void = self.rpc.query_quorum(call, is_void).await?;
        Ok(match (is_void, is_used) {
            (false, _) => TransactionSighting::Missing,
            (true, true) => TransactionSighting::Replaced(None),
            (true, false) => TransactionSighting::Expired,
        })
    }
}

fn by_hash(hash: &str) -> RpcCall {
    RpcCall("getTransaction", json!({"hash": hash}))
}

fn place(answer: &Value) -> Option<StellarPlace> {
    let success = match trace_of(answer) {
        StellarTrace::Nowhere(LedgerRange::NONE) => return None,
        StellarTrace::Nowhere(range) => return Some(StellarPlace::Nowhere(range)),
        StellarTrace::InLedger { problem } => problem.is_none(),
    };
    Some(StellarPlace::Ledger(Inclusion {
        block: answer.get("ledger")?.as_u64()?,
        success,
    }))
}
