//! Where transactions are that were sent.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_core::networks::solana::{self, lifetime::TransactionLifetime, wire::WireTransaction};
use serde_json::{Value, json};

use super::{BLOCKHASH_LIFE_MS, COMMITMENT_FOR_GOOD, SolanaNode, account};
use crate::chain_rpc::{
    ChainError, HISTORY_MARGIN_MS, Inclusion, RpcCall, TrackedTransaction, TransactionSighting,
};

/// Transactions of one getSignatureStatuses; nodes take no more.
const MOST_STATUSES: usize = 256;

/// Transactions of one getSignaturesForAddress; nodes give no more.
const PAGE: usize = 1_000;
/// Pages that are looked at.
const MAX_PAGES: usize = 10;

/// The status of a transaction in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SignatureStatus {
    slot: u64,
    success: bool,
    finalized: bool,
}

/// The statuses of transactions, `None` for those that the node does not know.
type SignatureStatuses = Vec<Option<SignatureStatus>>;

impl SolanaNode {
    pub(super) async fn sight_all(
        &self,
        transactions: &[TrackedTransaction],
        now_ms: u64,
    ) -> Vec<Result<TransactionSighting, ChainError>> {
        let each = |one| solana::each(one).unwrap_or_default();
        let of_each: Vec<_> = transactions.iter().map(|one| each(&one.signed)).collect();
        let all: Vec<&str> = of_each.iter().flatten().map(|(_, id)| *id).collect();
        let mut statuses = Vec::with_capacity(all.len());
        for some in all.chunks(MOST_STATUSES) {
            let answer = self.rpc.ask(signature_statuses(some)).await;
            let read = answer.map_err(ChainError::from).and_then(|answer| {
                let nonsense = || ChainError::Unknown("the node's statuses make no sense".into());
                read_statuses(&answer, some.len()).ok_or_else(nonsense)
            });
            match read {
                Ok(some) => statuses.extend(some),
                Err(error) => return transactions.iter().map(|_| Err(error.clone())).collect(),
            }
        }
        let mut statuses = statuses.into_iter();
        let mut sightings = Vec::with_capacity(transactions.len());
        for (transaction, parts) in transactions.iter().zip(of_each) {
            let found: SignatureStatuses = statuses.by_ref().take(parts.len()).collect();
            sightings.push(self.sight(transaction, &parts, &found, now_ms).await);
        }
        sightings
    }

    async fn sight(
        &self,
        transaction: &TrackedTransaction,
        parts: &[(&str, &str)],
        found: &SignatureStatuses,
        now_ms: u64,
    ) -> Result<TransactionSighting, ChainError> {
        let Some(statuses) = found.iter().copied().collect::<Option<Vec<_>>>() else {
            return self.sight_missing(transaction, parts, found, now_ms).await;
        };
        let inclusion = Inclusion {
            block: statuses.iter().map(|status| status.slot).max().unwrap_or(0),
            success: statuses.iter().all(|status| status.success),
        };
        if !statuses.iter().all(|status| status.finalized) {
            return Ok(TransactionSighting::Mined(inclusion));
        }
        let agreed = self.agreed_statuses(parts).await?;
        Ok(if agreed == *found {
            TransactionSighting::Final(inclusion)
        } else {
            TransactionSighting::Mined(inclusion)
        })
    }

    /// Whether one that a node does not know can still come: its blockhash or nonce is good for that.
    async fn sight_missing(
        &self,
        transaction: &TrackedTransaction,
        parts: &[(&str, &str)],
        found: &SignatureStatuses,
        now_ms: u64,
    ) -> Result<TransactionSighting, ChainError> {
        if now_ms.saturating_sub(transaction.sent_at_ms) < BLOCKHASH_LIFE_MS {
            return Ok(TransactionSighting::Missing);
        }
        let missing = parts
            .iter()
            .zip(found)
            .filter(|(_, status)| status.is_none());
        for ((text, _), _) in missing {
            let bytes = STANDARD.decode(text).ok();
            let sent = bytes.and_then(|bytes| WireTransaction::parse(&bytes).ok());
            let unreadable = || ChainError::Unknown("the transaction cannot be read".into());
            let lifetime = TransactionLifetime::of(&sent.ok_or_else(unreadable)?);
            if self.agree_that_alive(&lifetime).await? {
                return Ok(TransactionSighting::Missing);
            }
        }
        // Asked last: from now on it can no longer get into a block.
        let agreed = if transaction.is_remembered(now_ms) {
            self.agreed_statuses(parts).await?
        } else if let Some(remembered) = self.remembered_statuses(transaction, parts).await {
            remembered
        } else {
            return Ok(TransactionSighting::Missing);
        };
        Ok(if agreed.iter().any(Option::is_none) {
            TransactionSighting::Expired
        } else {
            TransactionSighting::Waiting
        })
    }

    /// Whether what is final has a transaction with this message: looked for among those of the wallet, back to before
    /// it was built.
    pub(super) async fn find_message(
        &self,
        transaction: &TrackedTransaction,
    ) -> Result<bool, ChainError> {
        let wanted = message_of(&transaction.signed.transaction);
        let wanted =
            wanted.ok_or_else(|| ChainError::Unknown("the transaction cannot be read".into()))?;
        let since_ms = transaction.sent_at_ms.saturating_sub(HISTORY_MARGIN_MS);
        let mut before = Value::Null;
        for _ in 0..MAX_PAGES {
            let options =
                json!({"limit": PAGE, "commitment": COMMITMENT_FOR_GOOD, "before": before});
            let call = RpcCall(
                "getSignaturesForAddress",
                json!([transaction.from, options]),
            );
            let page: Vec<(String, u64)> = self.rpc.query_quorum(call, read_history).await?;
            for (signature, time_ms) in &page {
                if *time_ms < since_ms {
                    return Ok(false);
                }
                let how = json!({"encoding": "base64", "commitment": COMMITMENT_FOR_GOOD,
                    "maxSupportedTransactionVersion": 0});
                let call = RpcCall("getTransaction", json!([signature, how]));
                let read = |answer: &Value| message_of(answer.pointer("/transaction/0")?.as_str()?);
                if self.rpc.query_quorum(call, read).await? == wanted {
                    return Ok(true);
                }
            }
            match page.last() {
                Some((signature, _)) if page.len() >= PAGE => before = json!(signature),
                _ => return Ok(false),
            }
        }
        Err(ChainError::Unknown(
            "the wallet has too many transactions since".into(),
        ))
    }

    async fn agreed_statuses(
        &self,
        parts: &[(&str, &str)],
    ) -> Result<SignatureStatuses, ChainError> {
        let ids: Vec<&str> = parts.iter().map(|(_, id)| *id).collect();
        let read = |answer: &Value| read_statuses(answer, ids.len());
        let call = signature_statuses(&ids);
        Ok(self.rpc.query_quorum(call, read).await?)
    }

    /// What is known of one that is older than what all nodes remember, by as many nodes as have to agree whose blocks
    /// reach back to before it was sent; `None` where there are not so many.
    async fn remembered_statuses(
        &self,
        transaction: &TrackedTransaction,
        parts: &[(&str, &str)],
    ) -> Option<SignatureStatuses> {
        let ids: Vec<&str> = parts.iter().map(|(_, id)| *id).collect();
        let said = |node| self.statuses_of_archive(node, transaction, &ids);
        let said = self.rpc.witnesses(said).await?;
        // A node that has it is right, whatever others say.
        let known = |place| said.iter().find_map(|of_node| *of_node.get(place)?);
        Some((0..ids.len()).map(known).collect())
    }

    /// What one node says of transactions, where it has all blocks from before they were sent.
    async fn statuses_of_archive(
        &self,
        node: usize,
        transaction: &TrackedTransaction,
        ids: &[&str],
    ) -> Option<SignatureStatuses> {
        let ask = |call: RpcCall| async move { self.rpc.at(node, call).await.ok() };
        let first = ask(RpcCall("getFirstAvailableBlock", json!([]))).await?;
        let params = json!([{"commitment": COMMITMENT_FOR_GOOD}]);
        let last = ask(RpcCall("getSlot", params)).await?;
        let time_ms = async |slot: Value| {
            let time = ask(RpcCall("getBlockTime", json!([slot]))).await?;
            time.as_u64()?.checked_mul(1_000)
        };
        let (from_ms, to_ms) = (time_ms(first).await?, time_ms(last).await?);
        if !transaction.is_within(from_ms, to_ms) {
            return None;
        }
        let answer = ask(signature_statuses(ids)).await?;
        read_statuses(&answer, ids.len())
    }

    /// Whether a transaction can be taken after what is final, by as many nodes as have to agree.
    async fn agree_that_alive(&self, lifetime: &TransactionLifetime) -> Result<bool, ChainError> {
        let answer = match lifetime {
            TransactionLifetime::Blockhash(hash) => {
                let params = json!([hash, {"commitment": COMMITMENT_FOR_GOOD}]);
                let read = |answer: &Value| answer.get("value")?.as_bool();
                let call = RpcCall("isBlockhashValid", params);
                self.rpc.query_quorum(call, read).await
            }
            TransactionLifetime::Nonce(nonce) => {
                let options = json!({"encoding": "base64", "commitment": COMMITMENT_FOR_GOOD});
                let params = json!([nonce.account(), options]);
                let read = |answer: &Value| {
                    let account = account(answer.get("value")?)?;
                    Some(account.is_some_and(|account| nonce.is_held(&account)))
                };
                let call = RpcCall("getAccountInfo", params);
                self.rpc.query_quorum(call, read).await
            }
        };
        Ok(answer?)
    }
}

/// The message of a transaction in base64: all of it but the signatures.
fn message_of(transaction: &str) -> Option<Vec<u8>> {
    let bytes = STANDARD.decode(transaction).ok()?;
    let parsed = WireTransaction::parse(&bytes).ok()?;
    Some(parsed.message_bytes().to_vec())
}

/// The transactions of an address, the newest first, each with its time in milliseconds since the Unix epoch.
fn read_history(answer: &Value) -> Option<Vec<(String, u64)>> {
    let read = |entry: &Value| {
        let signature = entry.get("signature")?.as_str()?.to_owned();
        let time_ms = entry.get("blockTime")?.as_u64()?.checked_mul(1_000)?;
        Some((signature, time_ms))
    };
    answer.as_array()?.iter().map(read).collect()
}

fn signature_statuses(ids: &[&str]) -> RpcCall {
    let params = json!([ids, {"searchTransactionHistory": true}]);
    RpcCall("getSignatureStatuses", params)
}

fn read_statuses(answer: &Value, count: usize) -> Option<SignatureStatuses> {
    let statuses = answer.get("value")?.as_array()?;
    let read = |status: &Value| {
        if status.is_null() {
            return Some(None);
        }
        let commitment = status.get("confirmationStatus").and_then(Value::as_str);
        Some(Some(SignatureStatus {
            slot: status.get("slot")?.as_u64()?,
            success: status.get("err").is_none_or(Value::is_null),
            finalized: commitment == Some(COMMITMENT_FOR_GOOD),
        }))
    };
    let statuses = statuses.iter().map(read).collect::<Option<Vec<_>>>()?;
    (statuses.len() == count).then_some(statuses)
}
