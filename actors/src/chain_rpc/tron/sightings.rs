//! Finds out where a sent transaction is.

use covault_core::networks::tron::expires_ms;
use serde_json::{Value, json};

use super::{
    TronNode, block,
    http::{TronHttp, TronQuery, post, solid},
    is_empty,
};
use crate::chain_rpc::{
    ChainCall, ChainError, Inclusion, TrackedTransaction, TransactionSighting,
    exchange::ParsedResponse,
};

impl TronNode {
    pub(super) async fn sight(
        &self,
        transaction: &TrackedTransaction,
    ) -> Result<TransactionSighting, ChainError> {
        let id = transaction.signed.tx_hash.as_str();
        // In solidified blocks, which are final.
        if let Some(found) = self.http.seconded(inclusion_in(solid, id)).await? {
            return Ok(TransactionSighting::Final(found));
        }
        match self.http.seconded(inclusion_in(post, id)).await? {
            Some(found) => Ok(TransactionSighting::Mined(found)),
            None => self.sight_missing(transaction).await,
        }
    }

    /// Whether one that no block has can still come.
    async fn sight_missing(
        &self,
        transaction: &TrackedTransaction,
    ) -> Result<TransactionSighting, ChainError> {
        let id = transaction.signed.tx_hash.as_str();
        let unreadable = |_| ChainError::Unknown("the signed transaction cannot be read".into());
        let expires_ms = expires_ms(&transaction.signed).map_err(unreadable)?;
        // No block of this time or later takes it.
        let is_past = |found: &Value| Some(block(found)?.timestamp_ms >= expires_ms);
        let clock = solid("getnowblock", json!({})).about("the chain's clock");
        let is_over = self.http.query_quorum(clock, is_past).await?;
        // Asked last: from now on it can no longer get into a block.
        Ok(if is_over && self.quorum(id).await?.is_none() {
            TransactionSighting::Expired
        } else if self.known(id).await.map_err(ChainError::Unknown)? {
            TransactionSighting::Waiting
        } else {
            TransactionSighting::Missing
        })
    }

    /// Where a solidified block has it, as many nodes say as have to agree.
    async fn quorum(&self, id: &str) -> Result<Option<Inclusion>, ChainError> {
        let same = Option::<Inclusion>::eq;
        Ok(self.http.quorum(inclusion_in(solid, id), same).await?)
    }
}

fn inclusion_in(
    blocks: fn(&str, Value) -> TronQuery,
    id: &str,
) -> impl ChainCall<TronHttp, Answer = Option<Inclusion>> {
    let info = blocks("gettransactioninfobyid", json!({"value": id}));
    info.about("a transaction")
        .reading(move |found| inclusion(found, id))
}

/// Where a block has a transaction; `None` where none has it.
fn inclusion(found: &Value, id: &str) -> ParsedResponse<Option<Inclusion>> {
    if is_empty(found) {
        return ParsedResponse::Value(None);
    }
    let is_it = found.get("id").and_then(Value::as_str) == Some(id);
    let number = found.get("blockNumber").and_then(Value::as_u64);
    // What went well is left out.
    let failed = found.get("result").and_then(Value::as_str) == Some("FAILED");
    let inclusion = number.filter(|_| is_it).map(|block| Inclusion {
        block,
        success: !failed,
    });
    ParsedResponse::required("a transaction", inclusion.map(Some))
}
