//! Where a transaction is that was sent.

use covault_core::networks::tron::expires_ms;
use serde_json::{Value, json};

use super::{TronNode, block, is_empty, post, solid};
use crate::chain_rpc::{
    ChainError, Inclusion, NodeRequest, TrackedTransaction, TransactionSighting,
    exchange::ParsedResponse,
};

impl TronNode {
    pub(super) async fn sight(
        &self,
        transaction: &TrackedTransaction,
    ) -> Result<TransactionSighting, ChainError> {
        let id = transaction.signed.tx_hash.as_str();
        // In solidified blocks, which are final.
        let solid_info = info(solid, id);
        if let Some(found) = self.ask(&solid_info, |found| inclusion(found, id)).await? {
            let agreed = self.agreed(&solid_info, id).await?;
            return Ok(if agreed == Some(found) {
                TransactionSighting::Final(found)
            } else {
                TransactionSighting::Mined(found)
            });
        }
        let mined = info(post, id);
        if let Some(found) = self.ask(&mined, |found| inclusion(found, id)).await? {
            return Ok(TransactionSighting::Mined(found));
        }
        let unreadable = |_| ChainError::Unknown("the signed transaction cannot be read".into());
        let expires_ms = expires_ms(&transaction.signed).map_err(unreadable)?;
        // No block of this time or later takes it.
        let is_past = |found: &Value| {
            let is_past = block(found).map(|block| block.timestamp_ms >= expires_ms);
            ParsedResponse::required("its last solidified block", is_past)
        };
        let clock = solid("getnowblock", json!({}));
        let is_over = self
            .query_quorum("the chain's clock", &clock, is_past)
            .await?;
        // Asked last: from now on it can no longer get into a block.
        Ok(
            if is_over && self.agreed(&solid_info, id).await?.is_none() {
                TransactionSighting::Expired
            } else if self.known(id).await.map_err(ChainError::Unknown)? {
                TransactionSighting::Waiting
            } else {
                TransactionSighting::Missing
            },
        )
    }

    async fn agreed(&self, info: &NodeRequest, id: &str) -> Result<Option<Inclusion>, ChainError> {
        self.query_quorum("a transaction", info, |found| inclusion(found, id))
            .await
    }
}

fn info(post: fn(&str, Value) -> NodeRequest, id: &str) -> NodeRequest {
    post("gettransactioninfobyid", json!({"value": id}))
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
