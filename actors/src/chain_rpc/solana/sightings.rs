//! Finds out where sent transactions are.
//!
//! That one never comes is believed only of answers that name their slot: behind one address there may be several
//! nodes, and some of them may stand still. Its blockhash or nonce has to be gone in a finalized slot that came well
//! after it was sent, and a node that has got to that slot, and has all blocks from before it was sent, has to say that
//! none of them has it.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_core::{
    networks::solana::{self, lifetime::TransactionLifetime, wire::WireTransaction},
    request::TransactionPart,
    signature::Signature,
};
use serde_json::{Value, json};

use super::{BLOCKHASH_LIFE_MS, COMMITMENT_FOR_GOOD, SolanaNode, account};
use crate::chain_rpc::{
    ChainCall as _, ChainError, HISTORY_MARGIN_MS, Inclusion, RpcCall, TrackedTransaction,
    TransactionSighting,
    jsonrpc::{RpcCallError, RpcCalls},
};

/// Transactions of one getSignatureStatuses; nodes take no more.
const MOST_STATUSES: usize = 256;

/// Transactions of one getSignaturesForAddress; nodes give no more.
const PAGE: usize = 1_000;
/// Transactions that are asked for in one request.
const MOST_TRANSACTIONS: usize = 50;
/// Pages that are looked at.
const MAX_PAGES: usize = 10;

/// The status of a transaction in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SignatureStatus {
    inclusion: Inclusion,
    finalized: bool,
}

/// The statuses of transactions, `None` for those that the node does not know.
type SignatureStatuses = Vec<Option<SignatureStatus>>;

/// What one node says when another one did not know some transactions.
enum NodeTestimony {
    /// One of those can still come.
    Alive,
    /// None of those can, and this is what it knows of all that went with them.
    Over(SignatureStatuses),
}

/// How one of the transactions of a request has ended.
#[derive(Clone, Copy)]
enum TransactionEnd {
    /// A block has it for good.
    Final(Inclusion),
    /// It never comes.
    Never,
    /// It has not, as far as nodes agree.
    Open,
}

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
        let mut found = found.clone();
        if self.rpc.agree() > 1 && found.iter().all(Option::is_some) {
            found = self.agreed_statuses(parts).await?;
        }
        let Some(statuses) = found.iter().copied().collect::<Option<Vec<_>>>() else {
            return self.sight_missing(transaction, parts, &found, now_ms).await;
        };
        let inclusions = statuses.iter().map(|status| status.inclusion);
        if statuses.iter().all(|status| status.finalized) {
            return Ok(ended(parts, &inclusions.map(Some).collect::<Vec<_>>()));
        }
        Ok(TransactionSighting::Mined(Inclusion {
            block: inclusions.clone().map(|one| one.block).max().unwrap_or(0),
            success: inclusions.clone().all(|one| one.success),
        }))
    }

    /// Whether those that a node does not know can still come, and what became of those that went with them.
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
        let missing = parts.iter().zip(found).filter(|(_, known)| known.is_none());
        let lifetimes: Option<Vec<_>> = missing.map(|((text, _), _)| lifetime_of(text)).collect();
        let unreadable = || ChainError::Unknown("the transaction cannot be read".into());
        let lifetimes = lifetimes.ok_or_else(unreadable)?;
        let ids: Vec<&str> = parts.iter().map(|(_, id)| *id).collect();
        // One that is old is far behind all nodes.
        let margin_ms = if transaction.is_remembered(now_ms) {
            BLOCKHASH_LIFE_MS
        } else {
            HISTORY_MARGIN_MS
        };
        let ask = |node| self.testimony(node, transaction, &lifetimes, &ids, margin_ms);
        let said = self.rpc.witnesses(ask).await.unwrap_or_default();
        let (count, agree) = (said.len(), self.rpc.agree());
        let over: Vec<SignatureStatuses> =
            said.into_iter().filter_map(NodeTestimony::over).collect();
        if over.len() < agree || count - over.len() >= agree {
            return Ok(TransactionSighting::Missing);
        }
        let places = found.iter().enumerate();
        let ends = places.map(|(place, found)| {
            // A node that has it is right, whatever others say.
            let of_node = |of_node: &SignatureStatuses| of_node.get(place).copied().flatten();
            let known: Vec<SignatureStatus> = over.iter().filter_map(of_node).collect();
            let voices = |one: &SignatureStatus| known.iter().filter(|it| *it == one).count();
            let mut known_for_good = known.iter().filter(|one| one.finalized);
            match known_for_good.find(|one| voices(one) >= agree) {
                Some(status) => TransactionEnd::Final(status.inclusion),
                None if known.is_empty() && found.is_none() => TransactionEnd::Never,
                None => TransactionEnd::Open,
            }
        });
        let ends: Vec<TransactionEnd> = ends.collect();
        if !ends.iter().any(|end| matches!(end, TransactionEnd::Open)) {
            let inclusions: Vec<_> = ends.iter().map(|end| end.inclusion()).collect();
            return Ok(ended(parts, &inclusions));
        }
        let never = ends.iter().any(|end| matches!(end, TransactionEnd::Never));
        Ok(if never {
            TransactionSighting::Missing
        } else {
            TransactionSighting::Waiting
        })
    }

    /// What one node says of transactions of which another one did not know those with these lifetimes. `None` where
    /// that says nothing.
    async fn testimony(
        &self,
        node: usize,
        transaction: &TrackedTransaction,
        lifetimes: &[TransactionLifetime],
        ids: &[&str],
        margin_ms: u64,
    ) -> Option<NodeTestimony> {
        let mut slots = Vec::with_capacity(lifetimes.len());
        for lifetime in lifetimes {
            let (slot, alive) = self.alive_at(node, lifetime).await?;
            if alive {
                return Some(NodeTestimony::Alive);
            }
            slots.push(slot);
        }
        let (first, last) = (slots.iter().min()?, slots.iter().max()?);
        // Before it was sent the node could not know the blockhash or nonce yet.
        let over_since_ms = self.time_ms(node, *first).await?;
        if over_since_ms < transaction.sent_at_ms.saturating_add(margin_ms) {
            return None;
        }
        let (statuses, from_ms) = self.with_history(node, signature_statuses(ids)).await?;
        let to = statuses.pointer("/context/slot")?.as_u64()?;
        let complete = from_ms <= transaction.sent_at_ms.saturating_sub(HISTORY_MARGIN_MS);
        if to < *last || !complete {
            return None;
        }
        read_statuses(&statuses, ids.len()).map(NodeTestimony::Over)
    }

    /// Whether the chain could take a transaction after a slot that is final, and that slot.
    async fn alive_at(&self, node: usize, lifetime: &TransactionLifetime) -> Option<(u64, bool)> {
        let call = match lifetime {
            TransactionLifetime::Blockhash(hash) => {
                let params = json!([hash, {"commitment": COMMITMENT_FOR_GOOD}]);
                RpcCall("isBlockhashValid", params)
            }
            TransactionLifetime::Nonce(nonce) => {
                let options = json!({"encoding": "base64", "commitment": COMMITMENT_FOR_GOOD});
                RpcCall("getAccountInfo", json!([nonce.account(), options]))
            }
        };
        let answer = self.rpc.at(node, call).await.ok()?;
        let value = answer.get("value")?;
        let alive = match lifetime {
            TransactionLifetime::Blockhash(_) => value.as_bool()?,
            TransactionLifetime::Nonce(nonce) => {
                account(value)?.is_some_and(|account| nonce.stands_in(&account))
            }
        };
        Some((answer.pointer("/context/slot")?.as_u64()?, alive))
    }

    /// When a slot was, in milliseconds since the Unix epoch.
    async fn time_ms(&self, node: usize, slot: u64) -> Option<u64> {
        let time = self
            .rpc
            .at(node, RpcCall("getBlockTime", json!([slot])))
            .await;
        time.ok()?.as_u64()?.checked_mul(1_000)
    }

    /// What a node says, and since when it has all blocks, in milliseconds since the Unix epoch: in one request, as
    /// behind its address there may be nodes with other blocks. One that takes no two questions at once gets them one
    /// after the other.
    async fn with_history(&self, node: usize, call: RpcCall) -> Option<(Value, u64)> {
        let first = RpcCall("getFirstAvailableBlock", json!([]));
        let both = RpcCalls(vec![call.clone(), first.clone()]);
        let (answer, first) = match self.rpc.at(node, both).await {
            Ok(answers) => {
                let mut answers = answers.into_iter();
                (answers.next()?.ok()?, answers.next()?.ok()?)
            }
            Err(RpcCallError::Node(_)) => {
                let answer = self.rpc.at(node, call).await.ok()?;
                (answer, self.rpc.at(node, first).await.ok()?)
            }
            Err(_) => return None,
        };
        let from_ms = match first.as_u64()? {
            0 => 0,
            slot => self.time_ms(node, slot).await?,
        };
        Some((answer, from_ms))
    }

    /// The sender's signatures of all messages of a transaction, as what is final has them: looked for among the
    /// transactions of the wallet, back to before it was built. Empty where no block has any of them.
    pub(super) async fn find_messages(
        &self,
        transaction: &TrackedTransaction,
    ) -> Result<Vec<Signature>, ChainError> {
        let unknown = |problem: &str| ChainError::Unknown(problem.into());
        let parts = solana::each(&transaction.signed).unwrap_or_default();
        let wanted: Option<Vec<_>> = parts.iter().map(|(text, _)| message_of(text)).collect();
        let wanted = wanted.ok_or_else(|| unknown("the transaction cannot be read"))?;
        let ask = |node| self.finds_some(node, transaction, &wanted);
        let said = self.rpc.witnesses(ask).await;
        let said =
            said.ok_or_else(|| unknown("too few nodes have all transactions of the wallet since"))?;
        // A node that has one is right, whatever others say.
        let place = |place: usize| said.iter().find_map(|of_node| of_node.get(place)?.clone());
        let found: Vec<Option<Signature>> = (0..wanted.len()).map(place).collect();
        if found.iter().all(Option::is_none) {
            return Ok(Vec::new());
        }
        let all = found.into_iter().collect::<Option<Vec<_>>>();
        all.ok_or_else(|| unknown("blocks have only some of the request's transactions"))
    }

    /// Which of these messages one node has, with the sender's signatures. `None` where it does not have all blocks from
    /// around the moment at which the transaction was built, or the wallet has too many since.
    async fn finds_some(
        &self,
        node: usize,
        transaction: &TrackedTransaction,
        wanted: &[Vec<u8>],
    ) -> Option<Vec<Option<Signature>>> {
        let params = json!([{"commitment": COMMITMENT_FOR_GOOD}]);
        let last = self.rpc.at(node, RpcCall("getSlot", params)).await.ok()?;
        let to_ms = self.time_ms(node, last.as_u64()?).await?;
        let since_ms = transaction.sent_at_ms.saturating_sub(HISTORY_MARGIN_MS);
        let mut before = Value::Null;
        let mut found = vec![None; wanted.len()];
        for _ in 0..MAX_PAGES {
            // Not of a node behind the same address that has not got there.
            let options = json!({"limit": PAGE, "commitment": COMMITMENT_FOR_GOOD,
                "before": before, "minContextSlot": last});
            let params = json!([transaction.from, options]);
            let call = RpcCall("getSignaturesForAddress", params);
            let (page, from_ms) = self.with_history(node, call).await?;
            if !transaction.is_within(from_ms, to_ms) {
                return None;
            }
            let page = read_history(&page)?;
            let since = page.iter().take_while(|(_, time_ms)| *time_ms >= since_ms);
            let since: Vec<&str> = since.map(|(signature, _)| signature.as_str()).collect();
            for some in since.chunks(MOST_TRANSACTIONS) {
                for answer in self.transactions(node, some).await? {
                    let text = answer.pointer("/transaction/0")?.as_str()?;
                    let message = message_of(text)?;
                    let places = found.iter_mut().zip(wanted);
                    for (place, _) in places.filter(|(_, wanted)| **wanted == message) {
                        *place = Some(signature_of(text, &transaction.from)?);
                    }
                }
                if found.iter().all(Option::is_some) {
                    return Some(found);
                }
            }
            match page.last() {
                // The rest is older.
                _ if since.len() < page.len() => return Some(found),
                Some((signature, _)) if page.len() >= PAGE => before = json!(signature),
                _ => return Some(found),
            }
        }
        None
    }

    /// Transactions of final blocks, as one node has them: in one request, or one after the other where it takes no
    /// several at once.
    async fn transactions(&self, node: usize, signatures: &[&str]) -> Option<Vec<Value>> {
        let call = |signature: &&str| {
            let how = json!({"encoding": "base64", "commitment": COMMITMENT_FOR_GOOD,
                "maxSupportedTransactionVersion": 0});
            RpcCall("getTransaction", json!([signature, how]))
        };
        let calls: Vec<_> = signatures.iter().map(call).collect();
        match self.rpc.at(node, RpcCalls(calls.clone())).await {
            Ok(answers) => answers.into_iter().collect::<Result<_, _>>().ok(),
            Err(RpcCallError::Node(_)) => {
                let mut answers = Vec::with_capacity(calls.len());
                for call in calls {
                    answers.push(self.rpc.at(node, call).await.ok()?);
                }
                Some(answers)
            }
            Err(_) => None,
        }
    }

    /// What as many nodes say as have to agree; where they are not at the same slot, in which blocks it is.
    async fn agreed_statuses(
        &self,
        parts: &[(&str, &str)],
    ) -> Result<SignatureStatuses, ChainError> {
        let ids: Vec<&str> = parts.iter().map(|(_, id)| *id).collect();
        let call = signature_statuses(&ids).taking(|answer| read_statuses(answer, ids.len()));
        let said = self.rpc.voices(call, SignatureStatuses::eq).await?;
        let mut said: Vec<SignatureStatuses> = said.into_iter().flatten().collect();
        if let Some(agreed) = self.rpc.agreed_of(&said) {
            return Ok(agreed);
        }
        for status in said.iter_mut().flatten().flatten() {
            status.finalized = false;
        }
        let agreed = self.rpc.agreed_of(&said);
        Ok(agreed.ok_or_else(|| self.rpc.disagree("a transaction"))?)
    }
}

impl NodeTestimony {
    fn over(self) -> Option<SignatureStatuses> {
        match self {
            NodeTestimony::Alive => None,
            NodeTestimony::Over(statuses) => Some(statuses),
        }
    }
}

impl TransactionEnd {
    fn inclusion(self) -> Option<Inclusion> {
        match self {
            TransactionEnd::Final(inclusion) => Some(inclusion),
            TransactionEnd::Never | TransactionEnd::Open => None,
        }
    }
}

/// Where transactions are of which each has a block for good, or never comes.
fn ended(parts: &[(&str, &str)], ends: &[Option<Inclusion>]) -> TransactionSighting {
    let came: Vec<Inclusion> = ends.iter().flatten().copied().collect();
    let Some(block) = came.iter().map(|inclusion| inclusion.block).max() else {
        return TransactionSighting::Expired;
    };
    let success = came.iter().all(|inclusion| inclusion.success);
    let alike = came.iter().all(|inclusion| inclusion.success == success);
    if alike && came.len() == ends.len() {
        return TransactionSighting::Final(Inclusion { block, success });
    }
    let part = |((_, id), inclusion): (&(&str, &str), &Option<Inclusion>)| TransactionPart {
        hash: (*id).to_owned(),
        inclusion: *inclusion,
    };
    TransactionSighting::Partial(parts.iter().zip(ends).map(part).collect())
}

/// How long the network can take a transaction, in base64.
fn lifetime_of(transaction: &str) -> Option<TransactionLifetime> {
    let bytes = STANDARD.decode(transaction).ok()?;
    let parsed = WireTransaction::parse(&bytes).ok()?;
    Some(TransactionLifetime::of(&parsed))
}

/// The message of a transaction in base64: all of it but the signatures.
fn message_of(transaction: &str) -> Option<Vec<u8>> {
    let bytes = STANDARD.decode(transaction).ok()?;
    let parsed = WireTransaction::parse(&bytes).ok()?;
    Some(parsed.message_bytes().to_vec())
}

/// The signature of an address of a transaction in base64.
fn signature_of(transaction: &str, address: &str) -> Option<Signature> {
    let bytes = STANDARD.decode(transaction).ok()?;
    let parsed = WireTransaction::parse(&bytes).ok()?;
    let (r, s) = parsed.signature_of(address)?;
    Some(Signature::Ed25519 { r, s })
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
            inclusion: Inclusion {
                block: status.get("slot")?.as_u64()?,
                success: status.get("err").is_none_or(Value::is_null),
            },
            finalized: commitment == Some(COMMITMENT_FOR_GOOD),
        }))
    };
    let statuses = statuses.iter().map(read).collect::<Option<Vec<_>>>()?;
    (statuses.len() == count).then_some(statuses)
}
