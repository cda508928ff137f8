//! Finds out where sent transactions are, and the next nonce of an account.

use std::collections::BTreeMap;

use covault_core::{
    fault::Fault,
    networks::evm::{self, SentTransaction},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    EvmNode, FINAL_DEPTH, MAX_SEARCHED, MOST_CALLS, number_in, refusals::knows_no_such_block,
};
use crate::chain_rpc::{
    ChainError, Inclusion, TrackedTransaction, TransactionSighting,
    client::{ChainCall, Refusal as _},
    jsonrpc::{JsonRpc, RpcCall, RpcCallError, RpcCalls, RpcError, quantity},
};

impl EvmNode {
    /// The number of the account's next transaction in the latest block that is final, and the number of that
    /// block: the one that nodes call so, or the 64th before the latest where they call none so.
    pub(super) async fn final_number(&self, account: &str) -> Result<(u64, u64), ChainError> {
        let height = self.final_height().await?;
        Ok((self.number_at(account, height).await?, height))
    }

    pub(super) async fn final_height(&self) -> Result<u64, ChainError> {
        let block = async |tag: &'static str| {
            let seen = Mutex::new(Vec::new());
            let number = |block: &Value| {
                let number = number_in(block, "number")?;
                seen.lock().push(number);
                Some(number)
            };
            let call = RpcCall("eth_getBlockByNumber", json!([tag, false]));
            // Nodes are some blocks apart, and one that is far ahead of the others lies.
            let same = |one: &u64, other: &u64| one.abs_diff(*other) <= FINAL_DEPTH;
            let agreed = self.rpc.query_quorum_by(call, number, same).await?;
            // The lowest: one that is a little ahead may lie too.
            let seen = seen.into_inner().into_iter();
            let lowest = seen.filter(|number| same(number, &agreed)).min();
            Ok::<_, RpcCallError>(lowest.unwrap_or(agreed))
        };
        match block("finalized").await {
            Ok(height) => {
                // Already set is as good.
                let _ = self.finalized.set(());
                Ok(height)
            }
            Err(RpcCallError::Node(error))
                if knows_no_such_block(&error) && !self.finalized.initialized() =>
            {
                Ok(block("latest").await?.saturating_sub(FINAL_DEPTH))
            }
            // A node in trouble may know it well.
            Err(error) => Err(error.into()),
        }
    }

    /// The number of the account's next transaction as of a block.
    async fn number_at(&self, account: &str, height: u64) -> Result<u64, ChainError> {
        let params = json!([account, format!("{height:#x}")]);
        let count = |count: &Value| u64::try_from(quantity(count)?).ok();
        let asked = self
            .rpc
            .query_quorum(RpcCall("eth_getTransactionCount", params), count);
        Ok(asked.await?)
    }

    /// The number of the account's next transaction as of a block, and whether some block has a transaction: in one
    /// request, as behind a node's address there may be several, and the one that does not have it may not have that block
    /// either. A node that takes no two questions at once gets them one after the other.
    async fn number_and_receipt(
        &self,
        account: &str,
        height: u64,
        hash: &str,
    ) -> Result<(u64, bool), ChainError> {
        let number = RpcCall(
            "eth_getTransactionCount",
            json!([account, format!("{height:#x}")]),
        );
        let receipt = RpcCall("eth_getTransactionReceipt", json!([hash]));
        let read = |answers: &Vec<Result<Value, RpcError>>| match answers.as_slice() {
            [Ok(number), Ok(receipt)] => {
                let number = u64::try_from(quantity(number)?).ok()?;
                Some((number, !receipt.is_null()))
            }
            _ => None,
        };
        let both = RpcCalls(vec![number, receipt.clone()]);
        match self.rpc.query_quorum(both, read).await {
            Err(RpcCallError::Node(_)) => {
                let next = self.number_at(account, height).await?;
                let is_there = |receipt: &Value| Some(!receipt.is_null());
                Ok((next, self.rpc.query_quorum(receipt, is_there).await?))
            }
            both => Ok(both?),
        }
    }

    /// The hash of the transaction that used a number, which blocks up to `height` have. `None` when it is
    /// older than nodes can say.
    pub(super) async fn find_by_number(
        &self,
        sent: &SentTransaction,
        height: u64,
    ) -> Option<String> {
        // The block before which the number was free, and the first that is known to have it.
        let (mut before, mut with) = (height.checked_sub(1), height);
        let mut step = 1_u64;
        while let Some(at) = before {
            if self.number_at(&sent.from, at).await.ok()? <= sent.nonce {
                break;
            }
            with = at;
            step = step.checked_mul(2).filter(|step| *step <= MAX_SEARCHED)?;
            before = (at > 0).then(|| at.saturating_sub(step));
        }
        let mut free = before?;
        while with - free > 1 {
            let middle = free + (with - free) / 2;
            if self.number_at(&sent.from, middle).await.ok()? <= sent.nonce {
                free = middle;
            } else {
                with = middle;
            }
        }
        let is_it = |transaction: &&Value| {
            let from = transaction.get("from").and_then(Value::as_str);
            from.is_some_and(|from| from.eq_ignore_ascii_case(&sent.from))
                && number_in(transaction, "nonce") == Some(sent.nonce)
        };
        let hash = |block: &Value| {
            let transactions = block.get("transactions")?.as_array()?;
            let hash = transactions.iter().find(is_it)?.get("hash")?.as_str()?;
            Some(hash.to_owned())
        };
        let call = RpcCall("eth_getBlockByNumber", json!([format!("{with:#x}"), true]));
        self.rpc.query_quorum(call, hash).await.ok()
    }

    /// The same question about several hashes: what is said to each, by one node, or by as many as have to agree.
    pub(super) async fn of_each<'a>(
        &self,
        method: &'static str,
        hashes: impl Iterator<Item = &'a str>,
        by_one: bool,
    ) -> Result<Vec<Vec<Result<Value, RpcError>>>, ChainError> {
        let calls: Vec<_> = hashes.map(|hash| RpcCall(method, json!([hash]))).collect();
        let mut answers = Vec::with_capacity(calls.len());
        let mut most = MOST_CALLS;
        while let Some(rest) = calls.get(answers.len()..).filter(|rest| !rest.is_empty()) {
            let some: Vec<_> = rest.iter().take(most).cloned().collect();
            let asked = some.len();
            let said = match self.said(RpcCalls(some), by_one).await {
                // One that has to agree may take no several at once, and say so in words that are none of JSON-RPC.
                Err(ChainError::Unknown(_)) if !by_one && self.rpc.agree() > 1 => {
                    for call in rest.iter().cloned() {
                        answers.push(self.said(call, by_one).await?);
                    }
                    continue;
                }
                said => said?,
            };
            match said.into_iter().collect::<Result<Vec<_>, _>>() {
                Ok(said) => answers.extend((0..asked).map(|index| {
                    let of_it = said.iter().filter_map(|of_node| of_node.get(index));
                    of_it.cloned().collect()
                })),
                // Some nodes take fewer calls at once than others.
                Err(_) if asked > 1 => most = asked / 2,
                // Or one at a time, by itself.
                Err(_) => {
                    let alone = rest.iter().take(1).cloned();
                    for call in alone {
                        answers.push(self.said(call, by_one).await?);
                    }
                }
            }
        }
        Ok(answers)
    }

    /// What one node says, or as many as have to agree.
    async fn said<C>(
        &self,
        call: C,
        by_one: bool,
    ) -> Result<Vec<Result<C::Answer, RpcError>>, ChainError>
    where
        C: ChainCall<JsonRpc>,
        C::Answer: PartialEq,
    {
        if !by_one {
            return Ok(self.rpc.voices(call, C::Answer::eq).await?);
        }
        Ok(vec![match self.rpc.ask(call).await {
            Ok(found) => Ok(found),
            Err(RpcCallError::Node(error)) => Err(error),
            Err(error) => return Err(error.into()),
        }])
    }

    /// Where a transaction is that a block has, by its receipts, as the nodes have them that have to agree.
    pub(super) async fn sight_mined(
        &self,
        transaction: &TrackedTransaction,
        found: &Value,
        receipts: &[Result<Value, RpcError>],
        final_height: u64,
        used: &mut BTreeMap<String, u64>,
    ) -> Result<TransactionSighting, ChainError> {
        let is_in_block = number_in(found, "blockNumber").is_some();
        let said: Vec<_> = receipts.iter().flatten().filter_map(inclusion).collect();
        match self.rpc.agreed_of(&said) {
            Some(Some(found)) if found.block <= final_height => {
                Ok(TransactionSighting::Final(found))
            }
            Some(Some(found)) => Ok(TransactionSighting::Mined(found)),
            _ if !is_in_block && found.is_null() => {
                self.sight_missing(transaction, final_height, used).await
            }
            _ if !is_in_block => Ok(TransactionSighting::Waiting),
            // It is gone from its block in the meantime.
            Some(None) if said.iter().all(Option::is_none) => Ok(TransactionSighting::Waiting),
            // One node alone said so.
            Some(None) => self.sight_missing(transaction, final_height, used).await,
            None => Err(match receipts.iter().find_map(|said| said.as_ref().err()) {
                Some(error) => ChainError::Unknown(error.words()),
                None if said.is_empty() => ChainError::unknown("the receipt makes no sense"),
                None => self.rpc.disagree("a transaction").into(),
            }),
        }
    }

    /// Whether a transaction that no node has can still come. `used` has the numbers of the accounts in the
    /// final block.
    pub(super) async fn sight_missing(
        &self,
        transaction: &TrackedTransaction,
        height: u64,
        used: &mut BTreeMap<String, u64>,
    ) -> Result<TransactionSighting, ChainError> {
        let unreadable = |fault: Fault| ChainError::Unknown(fault.message().to_owned());
        let mut sent = evm::read_sent(&transaction.signed).map_err(unreadable)?;
        // What signers may have signed has no signature here to recover the sender from.
        sent.from.clone_from(&transaction.from);
        let next = match used.get(&sent.from) {
            Some(next) => *next,
            None => {
                let next = self.number_at(&sent.from, height).await?;
                used.insert(sent.from.clone(), next);
                next
            }
        };
        if next <= sent.nonce {
            return Ok(TransactionSighting::Missing);
        }
        // The node that did not know it may have been behind.
        let hash = &transaction.signed.tx_hash;
        let (next, is_there) = self.number_and_receipt(&sent.from, height, hash).await?;
        if is_there {
            return Ok(TransactionSighting::Waiting);
        }
        if next <= sent.nonce {
            return Ok(TransactionSighting::Missing);
        }
        // Behind one address the nodes may be other ones by now, of another chain, where the account has other numbers.
        let id = |id: &Value| u64::try_from(quantity(id)?).ok();
        let call = RpcCall("eth_chainId", json!([]));
        let found = self.rpc.query_quorum(call, id).await?;
        if found != self.chain_id {
            let problem = format!("the nodes are on chain {found} now");
            return Err(ChainError::Unknown(problem));
        }
        let by = self.find_by_number(&sent, height).await;
        Ok(match by {
            Some(hash) if hash == transaction.signed.tx_hash => TransactionSighting::Waiting,
            by => TransactionSighting::Replaced(by),
        })
    }

    pub(super) async fn known(&self, hash: &str) -> Result<bool, String> {
        self.rpc
            .any(
                RpcCall("eth_getTransactionByHash", json!([hash])),
                |found| Ok(!found.is_null()),
            )
            .await
    }
}

/// Where a receipt says that its transaction is, `Some(None)` where there is none; `None` when it makes no
/// sense.
fn inclusion(receipt: &Value) -> Option<Option<Inclusion>> {
    if receipt.is_null() {
        return Some(None);
    }
    Some(Some(Inclusion {
        block: number_in(receipt, "blockNumber")?,
        // Before Byzantium (EIP-658) receipts had none.
        success: receipt
            .get("status")
            .is_none_or(|status| quantity(status) == Some(1)),
    }))
}
