//! Solana and Sonic SVM nodes: the Solana JSON-RPC.
//!
//! Nodes have to be on the right chain, which is told by its genesis hash. Where all nodes of a
//! chain are on this machine that is not asked: they may be of a private chain, for tests.

mod fees;
mod refusals;
mod sightings;

use std::time::Duration;

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_core::{
    fault::{ExecuteCode, Fault},
    networks::{
        ChainData, Queries,
        solana::{
            self, ChainData as SolanaChainData,
            lifetime::TransactionLifetime,
            parse_key,
            token::{AccountInfo, TokenChainData, TokenQueries},
            wire::{self, WireTransaction},
        },
    },
    signature::Signature,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainError, ChainKey, ChainRefusal,
    EndpointHealth, FeeEstimate, NodePool, Objection, ObjectionKind, SimulationOutcome,
    SimulationRequest, Standing, TokenFacts, TrackedTransaction, TransactionSighting,
    client::{Client, Refusal as _},
    evm::tokens::MAX_DECIMALS,
    exchange::short,
    is_void,
    jsonrpc::{JsonRpc, RpcCall, RpcCallError, RpcError},
    resolve_refusal,
    witnessed::witnessed,
};
use refusals::{SolanaVerdict, judge};

/// As Solana's own tools know it.
const SOLANA_GENESIS: &str = "5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d";
/// From the public documentation of a wallet that tells networks by it (OKX, `SONIC_SOL`).
const SONIC_GENESIS: &str = "9qoRTAHGWBZHYzMJGkt62wBbFRASj6H7CvoNsNyRw2h4";

/// A blockhash is good for 150 blocks, about a minute. When a node does not know it after
/// this time, it is not too new.
const BLOCKHASH_LIFE_MS: u64 = 150_000;
/// After this time it is over, also where a node cannot say so.
const SURELY_OVER_MS: u64 = 15 * 60_000;

/// The account in which the chain keeps its time, and whose it is: seconds since the Unix epoch from byte 32 of 40 on.
const CLOCK: &str = "SysvarC1ock11111111111111111111111111111111";
const SYSVARS: &str = "Sysvar1111111111111111111111111111111111111";
/// By how much the clock of this machine may be behind the chain's: by less than what has to pass until a blockhash
/// that a node does not know counts as gone.
const MAX_BEHIND_MS: u64 = 60_000;
/// How long it is not looked at again.
const CLOCK_CHECK: Duration = Duration::from_secs(60);

/// How long one try to send waits until a transaction is confirmed on which the next may depend.
const PATIENCE: Duration = Duration::from_secs(30);
/// About a block.
const POLL: Duration = Duration::from_millis(500);

/// The commitment of what is asked for: at `finalized`, the default, a node is half a minute behind.
const COMMITMENT: &str = "confirmed";
/// That of blocks which are never dropped.
const COMMITMENT_FOR_GOOD: &str = "finalized";

/// One Solana-family chain.
pub struct SolanaNode {
    rpc: Client<JsonRpc>,
    /// When the clock of this machine was last found not to be behind.
    clock_checked: Mutex<Option<Instant>>,
}

impl SolanaNode {
    /// The chain, through its nodes.
    pub fn new(chain: ChainKey, pool: NodePool) -> Self {
        let genesis = genesis(chain).filter(|_| !pool.is_local());
        let rpc = Client::new(pool, JsonRpc::default());
        let rpc = match genesis {
            None => rpc,
            Some(genesis) => rpc.checked(RpcCall("getGenesisHash", json!([])), move |found| {
                chain_mismatch(chain, genesis, found)
            }),
        };
        Self {
            rpc,
            clock_checked: Mutex::default(),
        }
    }

    /// Why nothing is signed or sent now: the clock of this machine is behind the chain's. What is sent gets its time,
    /// and a node that stands still before the chain has come to a blockhash would seem to be past its end.
    async fn clock_problem(&self, now_ms: u64) -> Option<String> {
        let checked = *self.clock_checked.lock();
        if checked.is_some_and(|at| at.elapsed() < CLOCK_CHECK) {
            return None;
        }
        let options = json!({"encoding": "base64", "commitment": COMMITMENT});
        let call = RpcCall("getAccountInfo", json!([CLOCK, options]));
        let read = |answer: &Value| clock_ms(answer.get("value")?);
        let near = |one: &u64, other: &u64| one.abs_diff(*other) <= MAX_BEHIND_MS;
        // Nodes that do not say it cannot say either that a transaction is over.
        let chain_ms = self.rpc.query_quorum_by(call, read, near).await.ok()?;
        let behind_ms = chain_ms.saturating_sub(now_ms);
        if behind_ms > MAX_BEHIND_MS {
            return Some(format!(
                "the clock of this machine is {} seconds behind the chain's: set it right",
                behind_ms / 1_000
            ));
        }
        *self.clock_checked.lock() = Some(Instant::now());
        None
    }

    async fn blockhash(&self) -> Result<String, ChainError> {
        let params = json!([{"commitment": COMMITMENT}]);
        let answer = self.rpc.ask(RpcCall("getLatestBlockhash", params)).await?;
        answer
            .pointer("/value/blockhash")
            .and_then(Value::as_str)
            .filter(|hash| parse_key(hash).is_ok())
            .map(str::to_owned)
            .ok_or_else(|| ChainError::Unknown("the node named no blockhash".into()))
    }

    async fn token(&self, queries: &TokenQueries) -> Result<TokenChainData, ChainError> {
        let refused = |fault: Fault| {
            ChainError::Refused(ChainRefusal {
                reason: fault.message().to_owned(),
                code: fault.execute_code(),
            })
        };
        let names = queries.accounts().map_err(refused)?;
        let params = json!([names, {"encoding": "base64", "commitment": COMMITMENT}]);
        // Compared is what they mean: balances differ from block to block.
        let read = |answer: &Value| {
            let accounts = answer.get("value")?.as_array()?.iter().map(account);
            let accounts = accounts.collect::<Option<Vec<_>>>()?;
            (accounts.len() == names.len()).then(|| {
                let fees = queries.transfer_fees(&accounts);
                (queries.chain_data(&accounts), fees)
            })
        };
        let (chain_data, fees) = self
            .rpc
            .query_quorum(RpcCall("getMultipleAccounts", params), read)
            .await?;
        let mut chain_data = chain_data.map_err(refused)?;
        chain_data.transfer_fee = match fees.map(|fees| (fees, fees.fixed())) {
            None => None,
            Some((_, Some(fee))) => Some(fee),
            Some((fees, None)) => Some(fees.at(self.epoch().await?)),
        };
        Ok(chain_data)
    }

    /// The present epoch, by which transfer fees of tokens change.
    async fn epoch(&self) -> Result<u64, ChainError> {
        let params = json!([{"commitment": COMMITMENT}]);
        let epoch = |answer: &Value| answer.get("epoch")?.as_u64();
        let call = RpcCall("getEpochInfo", params);
        Ok(self.rpc.query_quorum(call, epoch).await?)
    }

    async fn known(&self, id: &str) -> Result<bool, String> {
        self.rpc
            .any(RpcCall("getSignatureStatuses", statuses(id)), |found| {
                let status = found.pointer("/value/0");
                Ok(status.is_some_and(|status| !status.is_null()))
            })
            .await
    }

    /// Sends one transaction; `slot` is that of what came before, on which it may depend. With `sent_before`, a node
    /// may have it, or has another one of the same request.
    async fn send(
        &self,
        (text, id): (&str, &str),
        slot: Option<u64>,
        age_ms: u64,
        sent_before: bool,
    ) -> BroadcastOutcome {
        // Preflight at the commitment of the blockhash: at `finalized`, the default, the node
        // would not know it yet. A node that is behind says so.
        let mut options = json!({"encoding": "base64", "preflightCommitment": COMMITMENT});
        if let (Some(slot), Some(options)) = (slot, options.as_object_mut()) {
            options.insert("minContextSlot".into(), slot.into());
        }
        let call = RpcCall("sendTransaction", json!([text, options]));
        // One that refuses it may have sent it on nevertheless.
        let objection = |said: Result<&Value, &RpcError>| {
            let error = said.err()?;
            match judge(error) {
                SolanaVerdict::Refused(refusal) => {
                    Some(Objection::new(ObjectionKind::Refused, refusal.reason))
                }
                SolanaVerdict::NoBlockhash => {
                    Some(Objection::new(ObjectionKind::Missing, error.words()))
                }
                SolanaVerdict::Processed | SolanaVerdict::Later => None,
            }
        };
        let (answer, lost) = self.rpc.submit(call, objection).await;
        let doubt = lost || sent_before;
        let error = match answer {
            Ok(_) => return BroadcastOutcome::Accepted,
            Err(RpcCallError::Node(error)) => error,
            Err(error) => return BroadcastOutcome::Unknown(error.into_reason()),
        };
        match judge(&error) {
            SolanaVerdict::Processed => BroadcastOutcome::Accepted,
            SolanaVerdict::NoBlockhash => self.without_blockhash(text, id, age_ms, doubt).await,
            SolanaVerdict::Later => BroadcastOutcome::Unknown(error.words()),
            SolanaVerdict::Refused(refusal) => {
                resolve_refusal(refusal, self.known(id).await, doubt)
            }
        }
    }

    /// What it means that a node does not know the blockhash or nonce of a transaction: it is too
    /// new for the node, or over, or used up by this very transaction.
    async fn without_blockhash(
        &self,
        text: &str,
        id: &str,
        age_ms: u64,
        doubt: bool,
    ) -> BroadcastOutcome {
        if age_ms < BLOCKHASH_LIFE_MS {
            return match self.known(id).await {
                Ok(true) => BroadcastOutcome::Accepted,
                _ => BroadcastOutcome::Unknown("the node does not know the blockhash yet".into()),
            };
        }
        let bytes = STANDARD.decode(text).ok();
        let transaction = bytes.and_then(|bytes| WireTransaction::parse(&bytes).ok());
        let lifetime = transaction.as_ref().map(TransactionLifetime::of);
        let patient = match lifetime {
            Some(TransactionLifetime::Nonce(_)) => true,
            Some(TransactionLifetime::Blockhash(_)) => age_ms < SURELY_OVER_MS,
            None => false,
        };
        match witnessed(self.is_alive(lifetime.as_ref())).await {
            Ok(true) => {
                let reason = "the node does not know the blockhash or nonce, which is still good";
                return BroadcastOutcome::Unknown(reason.into());
            }
            Err(trouble) if patient => {
                let reason = format!(
                    "the transaction may have expired, and a node cannot say whether: {trouble}"
                );
                return BroadcastOutcome::Unknown(reason);
            }
            Ok(false) | Err(_) => {}
        }
        let refusal = ChainRefusal {
            reason: match &lifetime {
                Some(TransactionLifetime::Nonce(nonce)) => format!(
                    "the account {} no longer holds the transaction's nonce, or not under \
                     an authority that has signed; create a new request",
                    nonce.account()
                ),
                _ => "the transaction expired before a node took it; create a new request".into(),
            },
            code: ExecuteCode::Unspecified,
        };
        // Asked last: from now on it can no longer get into a block.
        match witnessed(self.known(id)).await {
            Ok(false) => is_void(refusal, doubt),
            known => resolve_refusal(refusal, known, true),
        }
    }

    /// Whether any node says that a transaction can still be taken. Asked is what is final, for
    /// blocks that are not may be dropped.
    async fn is_alive(&self, lifetime: Option<&TransactionLifetime>) -> Result<bool, String> {
        match lifetime {
            None => Ok(false),
            Some(TransactionLifetime::Blockhash(hash)) => {
                let params = json!([hash, {"commitment": COMMITMENT_FOR_GOOD}]);
                let valid = |answer: &Value| Ok(answer.get("value") == Some(&Value::Bool(true)));
                self.rpc
                    .any(RpcCall("isBlockhashValid", params), valid)
                    .await
            }
            Some(TransactionLifetime::Nonce(nonce)) => {
                let options = json!({"encoding": "base64", "commitment": COMMITMENT_FOR_GOOD});
                let params = json!([nonce.account(), options]);
                let held = |answer: &Value| {
                    let account = answer.get("value").and_then(account).flatten();
                    Ok(account.is_some_and(|account| nonce.is_held(&account)))
                };
                self.rpc.any(RpcCall("getAccountInfo", params), held).await
            }
        }
    }

    /// Waits until a transaction is in a block that enough of the stake has voted for, and gives
    /// its slot; what stands against sending the next otherwise.
    async fn confirmed(&self, id: &str) -> Result<u64, BroadcastOutcome> {
        let begun = Instant::now();
        loop {
            let reason = match self
                .rpc
                .ask(RpcCall("getSignatureStatuses", statuses(id)))
                .await
            {
                Ok(answer) => match landed(&answer) {
                    Some(ConfirmedTransaction { slot, error: None }) => return Ok(slot),
                    Some(ConfirmedTransaction {
                        error: Some(error), ..
                    }) => {
                        let refusal = ChainRefusal {
                            reason: format!("its block says {}", short(&error)),
                            code: ExecuteCode::Unspecified,
                        };
                        // One node says so, and the block is not final yet.
                        return Err(BroadcastOutcome::Doubtful(refusal, Standing::Open));
                    }
                    None => "it was sent, and is not confirmed yet".into(),
                },
                Err(error) => error.into_reason(),
            };
            if begun.elapsed() >= PATIENCE {
                return Err(BroadcastOutcome::Unknown(reason));
            }
            sleep(POLL).await;
        }
    }
}

#[async_trait]
impl ChainClient for SolanaNode {
    async fn chain_data(&self, queries: &Queries, now_ms: u64) -> Result<ChainData, ChainError> {
        let queries = match queries {
            Queries::Nothing => return Ok(ChainData::Nothing),
            Queries::Solana(queries) => queries,
            _ => {
                return Err(ChainError::Refused(ChainRefusal {
                    reason: "not a Solana question".into(),
                    code: ExecuteCode::Unspecified,
                }));
            }
        };
        if let Some(problem) = self.clock_problem(now_ms).await {
            return Err(ChainError::Unknown(problem));
        }
        let token = match &queries.token {
            Some(token) => Some(self.token(token).await?),
            None => None,
        };
        let compute = self.compute(queries, token.as_ref()).await?;
        // Last, so that it is as new as can be.
        let recent_blockhash = if queries.blockhash {
            self.blockhash().await?
        } else {
            String::new()
        };
        Ok(ChainData::Solana(SolanaChainData {
            recent_blockhash,
            token: token.map(Box::new),
            compute,
        }))
    }

    /// Several transactions go one after the other, each when the one before it is confirmed: it
    /// may depend on it. Once a node has taken the first, no refusal ends the request: who hears that it failed
    /// asks for all of them again.
    async fn broadcast(&self, broadcast_request: &BroadcastRequest) -> BroadcastOutcome {
        let Some(transactions) = solana::each(&broadcast_request.signed) else {
            return BroadcastOutcome::Unknown("the transactions do not fit their hashes".into());
        };
        if let Some(problem) = self.clock_problem(broadcast_request.now_ms).await {
            return BroadcastOutcome::Unknown(problem);
        }
        let count = transactions.len();
        let mut slot = None;
        for (number, transaction) in (1..).zip(transactions) {
            let sent_before = broadcast_request.retried || number > 1;
            let sent = self.send(transaction, slot, broadcast_request.age_ms, sent_before);
            let (verdict, what) = match sent.await {
                BroadcastOutcome::Accepted if number == count => return BroadcastOutcome::Accepted,
                BroadcastOutcome::Accepted => match self.confirmed(transaction.1).await {
                    Ok(at) => {
                        slot = slot.max(Some(at));
                        continue;
                    }
                    Err(verdict) => (verdict, "failed"),
                },
                other => (other, "was refused"),
            };
            return of_several(number, count, what, verdict);
        }
        BroadcastOutcome::Accepted
    }

    async fn sightings(
        &self,
        transactions: &[TrackedTransaction],
        now_ms: u64,
    ) -> Vec<Result<TransactionSighting, ChainError>> {
        self.sight_all(transactions, now_ms).await
    }

    async fn signatures_in_block(
        &self,
        transaction: &TrackedTransaction,
        _by: Option<&str>,
    ) -> Result<Vec<Signature>, ChainError> {
        self.find_messages(transaction).await
    }

    async fn fee_estimates(&self) -> Result<[FeeEstimate; 3], ChainError> {
        // Of no account: what the cheapest transactions of blocks paid.
        let prices = self.priority_prices(&[], None).await?;
        Ok(prices.map(fees::estimate))
    }

    async fn balance(&self, address: &str, token: Option<&str>) -> Result<String, ChainError> {
        let Some(mint) = token else {
            let params = json!([address, {"commitment": COMMITMENT}]);
            let lamports = |answer: &Value| answer.get("value")?.as_u64();
            let lamports = self
                .rpc
                .query_quorum(RpcCall("getBalance", params), lamports)
                .await?;
            return Ok(lamports.to_string());
        };
        let params = json!([
            address,
            {"mint": mint},
            {"encoding": "jsonParsed", "commitment": COMMITMENT}
        ]);
        match self
            .rpc
            .query_quorum(RpcCall("getTokenAccountsByOwner", params), sum)
            .await
        {
            // -32602 invalid params: addresses are checked before, so that it is the mint.
            Err(RpcCallError::Node(error)) if error.code == -32602 => {
                Err(ChainError::Refused(ChainRefusal {
                    reason: format!("is not a token of {}", self.rpc.chain()),
                    code: ExecuteCode::Unspecified,
                }))
            }
            amount => Ok(amount?.to_string()),
        }
    }

    /// A mint has decimals. Symbols are elsewhere, and nobody need have one.
    async fn token_facts(&self, token: &str) -> Result<Option<TokenFacts>, ChainError> {
        let params = json!([token, {"commitment": COMMITMENT}]);
        // The supply changes from block to block.
        let decimals = |answer: &Value| {
            let decimals = answer.pointer("/value/decimals")?.as_u64()?;
            u8::try_from(decimals).ok().filter(|it| *it <= MAX_DECIMALS)
        };
        let call = RpcCall("getTokenSupply", params);
        let decimals = self.rpc.query_quorum(call, decimals).await?;
        Ok(Some(TokenFacts {
            decimals,
            symbol: String::new(),
        }))
    }

    /// Not of several transactions: a later one is tried without what the earlier ones do.
    async fn simulate(&self, trial: &SimulationRequest) -> Option<SimulationOutcome> {
        let transactions = wire::split(&trial.unsigned.bytes)?;
        let [transaction] = transactions.as_slice() else {
            return None;
        };
        let options = json!({
            "encoding": "base64",
            "commitment": COMMITMENT,
            "sigVerify": false,
            "replaceRecentBlockhash": false,
        });
        let params = json!([STANDARD.encode(transaction.bytes()), options]);
        let answer = self
            .rpc
            .query_best_effort(RpcCall("simulateTransaction", params))
            .await
            .ok()?;
        tried(answer.get("value")?, trial.chain_data == ChainData::Nothing)
    }

    fn health(&self) -> Vec<EndpointHealth> {
        self.rpc.health()
    }
}

/// Reads simulateTransaction. `None` when it failed for what says nothing about the transaction:
/// it is in a block in the meantime, or the node is behind and does not know the blockhash. One that is
/// `foreign` came with its blockhash, which may be over.
fn tried(value: &Value, foreign: bool) -> Option<SimulationOutcome> {
    let logs = value.get("logs").and_then(Value::as_array);
    let logs = logs.into_iter().flatten().filter_map(Value::as_str);
    let units = value.get("unitsConsumed").and_then(Value::as_u64);
    let returned = value.pointer("/returnData/data/0").and_then(Value::as_str);
    let error = match value.get("err")? {
        Value::Null => None,
        Value::String(words) if words == "AlreadyProcessed" => return None,
        Value::String(words) if words == "BlockhashNotFound" && !foreign => return None,
        Value::String(words) => Some(words.clone()),
        other => Some(other.to_string()),
    };
    Some(SimulationOutcome {
        success: error.is_none(),
        result: returned.map(str::to_owned),
        error,
        units_used: units.map(|units| units.to_string()),
        logs: logs.map(str::to_owned).collect(),
        truncated: false,
    })
}

/// The time in the chain's clock account, in milliseconds since the Unix epoch.
fn clock_ms(value: &Value) -> Option<u64> {
    let found = account(value)??;
    let time = found.data.get(32..).filter(|_| found.owner == SYSVARS)?;
    u64::from_le_bytes(time.try_into().ok()?).checked_mul(1_000)
}

/// The hash of a chain's first block.
fn genesis(chain: ChainKey) -> Option<&'static str> {
    match chain {
        ChainKey::SOLANA => Some(SOLANA_GENESIS),
        ChainKey::SONIC => Some(SONIC_GENESIS),
        _ => None,
    }
}

/// What is wrong with a node of another chain.
fn chain_mismatch(chain: ChainKey, genesis: &str, found: &Value) -> Result<Option<String>, String> {
    let found = found.as_str().ok_or("the node named no chain")?;
    Ok((found != genesis).then(|| {
        format!(
            "the node that is configured for {chain} is on another chain, whose genesis hash is {}",
            short(found)
        )
    }))
}

/// What all token accounts of an owner hold of one mint; of either token program.
fn sum(answer: &Value) -> Option<u128> {
    let accounts = answer.get("value")?.as_array()?;
    accounts.iter().try_fold(0u128, |sum, account| {
        let amount = account.pointer("/account/data/parsed/info/tokenAmount/amount")?;
        sum.checked_add(u128::from(amount.as_str()?.parse::<u64>().ok()?))
    })
}

/// An account with encoding base64; null where there is none.
fn account(value: &Value) -> Option<Option<AccountInfo>> {
    if value.is_null() {
        return Some(None);
    }
    Some(Some(AccountInfo {
        owner: value.get("owner")?.as_str()?.to_owned(),
        data: STANDARD.decode(value.pointer("/data/0")?.as_str()?).ok()?,
    }))
}

/// The parameters of getSignatureStatuses.
fn statuses(id: &str) -> Value {
    json!([[id], {"searchTransactionHistory": true}])
}

/// A transaction in a block.
#[derive(Debug, PartialEq, Eq)]
struct ConfirmedTransaction {
    slot: u64,
    /// Its instructions were not carried out.
    error: Option<String>,
}

/// Reads getSignatureStatuses; `None` where the block is not there or may yet be dropped.
fn landed(answer: &Value) -> Option<ConfirmedTransaction> {
    let status = answer.pointer("/value/0")?;
    let slot = status.get("slot")?.as_u64()?;
    let commitment = status.get("confirmationStatus").and_then(Value::as_str);
    matches!(commitment, Some("confirmed" | "finalized")).then(|| ConfirmedTransaction {
        slot,
        error: status
            .get("err")
            .filter(|error| !error.is_null())
            .map(Value::to_string),
    })
}

/// What is to be said of the whole when one of several transactions was not accepted; `what` is
/// the word for that.
fn of_several(
    number: usize,
    count: usize,
    what: &str,
    verdict: BroadcastOutcome,
) -> BroadcastOutcome {
    if count == 1 {
        return verdict;
    }
    let which = format!("transaction {number} of {count}");
    let others = match number {
        1 => "the later ones were not sent",
        _ if number == count => "the earlier ones were sent",
        _ => "the earlier ones were sent, the later ones were not",
    };
    let refused = |ChainRefusal { reason, code }| ChainRefusal {
        reason: format!("{which} {what}: {reason}; {others}"),
        code,
    };
    match verdict {
        BroadcastOutcome::Accepted => BroadcastOutcome::Accepted,
        BroadcastOutcome::Refused(refusal) => BroadcastOutcome::Refused(refused(refusal)),
        BroadcastOutcome::Doubtful(refusal, standing) => {
            BroadcastOutcome::Doubtful(refused(refusal), standing)
        }
        BroadcastOutcome::Unknown(reason) => {
            BroadcastOutcome::Unknown(format!("{which}: {reason}"))
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn landed__should_be_only_what_is_confirmed() {
        let status = |commitment: Value, error: Value| {
            let status = json!({"slot": 7, "confirmations": null, "err": error,
                "confirmationStatus": commitment});
            landed(&json!({"context": {"slot": 9}, "value": [status]}))
        };
        let fine = ConfirmedTransaction {
            slot: 7,
            error: None,
        };
        assert_eq!(
            status(json!("confirmed"), Value::Null).as_ref(),
            Some(&fine)
        );
        assert_eq!(
            status(json!("finalized"), Value::Null).as_ref(),
            Some(&fine)
        );
        assert_eq!(status(json!("processed"), Value::Null), None);
        assert_eq!(status(Value::Null, Value::Null), None);
        let failed = status(json!("confirmed"), json!({"InstructionError": [0, "X"]}));
        assert!(failed.unwrap().error.unwrap().contains("InstructionError"));
        for nothing in [json!({"value": [null]}), json!({"value": []}), json!(3)] {
            assert_eq!(landed(&nothing), None);
        }
    }

    #[test]
    fn of_several__should_say_what_became_of_the_others() {
        let refusal = || {
            BroadcastOutcome::Refused(ChainRefusal {
                reason: "no".into(),
                code: ExecuteCode::InsufficientFunds,
            })
        };
        let reason = |number, count| match of_several(number, count, "was refused", refusal()) {
            BroadcastOutcome::Refused(refusal) => {
                assert_eq!(refusal.code, ExecuteCode::InsufficientFunds);
                refusal.reason
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(reason(1, 1), "no");
        assert_eq!(
            reason(1, 3),
            "transaction 1 of 3 was refused: no; the later ones were not sent"
        );
        assert_eq!(
            reason(2, 3),
            "transaction 2 of 3 was refused: no; the earlier ones were sent, the later ones were not"
        );
        assert_eq!(
            reason(3, 3),
            "transaction 3 of 3 was refused: no; the earlier ones were sent"
        );
    }

    #[test]
    fn genesis__should_tell_chains_apart() {
        for chain in [ChainKey::SOLANA, ChainKey::SONIC] {
            let genesis = genesis(chain).unwrap();
            assert!(parse_key(genesis).is_ok());
            assert_eq!(chain_mismatch(chain, genesis, &json!(genesis)), Ok(None));
            let devnet = json!("EtWTRABZaYq6iMfeYKouRu166VU2xqa1wcaWoxPkrZBG");
            let reason = chain_mismatch(chain, genesis, &devnet).unwrap().unwrap();
            assert!(reason.contains(&format!("configured for {chain} is on another chain")));
            assert!(chain_mismatch(chain, genesis, &Value::Null).is_err());
        }
        assert_ne!(genesis(ChainKey::SOLANA), genesis(ChainKey::SONIC));
    }

    #[test]
    fn account__should_be_read_whole_or_not_at_all() {
        assert_eq!(account(&Value::Null), Some(None));
        let whole = json!({"owner": "x", "data": ["AQI=", "base64"], "lamports": 1});
        let expected = AccountInfo {
            owner: "x".into(),
            data: vec![1, 2],
        };
        assert_eq!(account(&whole), Some(Some(expected)));
        for broken in [
            json!({"owner": "x", "data": ["?", "base64"]}),
            json!({"owner": "x", "data": {"parsed": {}}}),
            json!({"data": ["AQI=", "base64"]}),
            json!(1),
        ] {
            assert_eq!(account(&broken), None, "{broken}");
        }
    }

    #[test]
    fn sum__should_be_over_all_accounts() {
        let account = |amount: &str| json!({"account": {"data": {"parsed": {"info": {"tokenAmount": {"amount": amount}}}}}});
        let most = u64::MAX.to_string();
        let answer = json!({"value": [account(&most), account("1")]});
        assert_eq!(sum(&answer), Some(u128::from(u64::MAX) + 1));
        assert_eq!(sum(&json!({"value": []})), Some(0));
        assert_eq!(
            sum(&json!({"value": [{"account": {"data": ["", "base64"]}}]})),
            None
        );
    }
}
