//! Stellar nodes: the JSON-RPC of Stellar RPC. It takes parameters by name only.

mod answers;
mod sightings;

use std::time::Duration;

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_core::{
    fault::{ExecuteCode, Fault},
    networks::{
        ChainData, ChainMoment, FeeLevel, Queries,
        stellar::{
            ChainData as StellarChainData, IssuedAsset, NETWORK_ID, Queries as StellarQueries,
            calls_contract,
            ledger::{self, FailureCause, SentEnvelope, StellarFailure},
            parse_account, parse_address,
        },
    },
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use self::answers::{
    LedgerEntries, LedgerRange, StellarTrace, base_fees, failure_of, is_unreadable, objection_of,
    refusal, trace_of, tried,
};
use super::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainError, ChainRefusal, EndpointHealth,
    FeeEstimate, NodePool, SimulationOutcome, SimulationRequest, TrackedTransaction,
    TransactionSighting,
    client::Client,
    exchange::short,
    fees::same_prices,
    is_void,
    jsonrpc::{JsonRpc, RpcCall, RpcCallError, RpcError},
    resolve_refusal, sight_each,
    witnessed::witnessed,
};

/// For how long a transaction is good, in seconds.
const LIFETIME_S: u64 = 300;
/// What becomes of a transaction that a node has taken is asked for so often: two ledgers and
/// more, which close every 5 to 6 seconds.
const MAX_POLLS: u32 = 15;
/// The pause before each.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// What a ledger has of the sender.
struct SenderFacts {
    sequence: u64,
    /// Whether it has what it is to send.
    means: Result<(), Fault>,
}

/// Balances may differ from ledger to ledger: that they are enough, or are not, is the same.
impl PartialEq for SenderFacts {
    fn eq(&self, other: &Self) -> bool {
        (self.sequence, self.means.is_ok()) == (other.sequence, other.means.is_ok())
    }
}

/// The Stellar public network.
pub struct StellarNode {
    rpc: Client<JsonRpc>,
}

impl StellarNode {
    /// The chain, through its nodes.
    pub fn new(pool: NodePool) -> Self {
        let rpc = Client::new(pool, JsonRpc::default());
        let rpc = rpc.checked(RpcCall("getNetwork", json!({})), |network| {
            let passphrase = network.get("passphrase").and_then(Value::as_str);
            let found = passphrase.ok_or("the node named no network")?;
            Ok((Sha256::digest(found).as_slice() != NETWORK_ID).then(|| {
                format!(
                    "the node that is configured for Stellar is on \"{}\"",
                    short(found)
                )
            }))
        });
        Self { rpc }
    }

    async fn fetch_chain_data(
        &self,
        queries: &StellarQueries,
        now_ms: u64,
    ) -> Result<ChainData, ChainError> {
        let from = key_of(&queries.from)?;
        let destination = queries.destination.as_deref().map(key_of).transpose()?;
        let lines = queries.trust_lines().map_err(|fault| bug(&fault))?;
        let mut keys = vec![from.as_str()];
        keys.extend(destination.as_deref().filter(|key| *key != from));
        keys.extend(lines.iter());
        // First: what it leaves of the balance is to be known.
        let base_fee = queries.level.of(self.base_fees(Some(queries.level)).await?);
        let read = |answer: &Value| {
            let entries = LedgerEntries::of(answer)?;
            let account = entries.account(&from)?;
            let exists = match &destination {
                Some(key) => Some(entries.account(key)?.is_some()),
                None => None,
            };
            let sender = match account {
                None => None,
                Some(account) => Some(SenderFacts {
                    sequence: account.sequence,
                    means: queries
                        .check_means(&account, base_fee, &lines, |key| entries.find(key))?,
                }),
            };
            Some((sender, exists))
        };
        let call = RpcCall("getLedgerEntries", json!({"keys": keys}));
        let (sender, destination_exists) = self.rpc.query_quorum(call, read).await?;
        let Some(SenderFacts { sequence, means }) = sender else {
            return Err(ChainError::refused(
                "the wallet's account does not exist on Stellar: first send it at least 1 XLM plus the amount that \
                 it will spend",
                ExecuteCode::InsufficientFunds,
            ));
        };
        means.map_err(|fault| ChainError::lacks(&fault))?;
        Ok(ChainData::Stellar(StellarChainData {
            sequence,
            base_fee,
            max_time: now_ms / 1000 + LIFETIME_S,
            destination_exists,
        }))
    }

    /// What to offer per operation, in stroops: slow, normal and fast. Nodes have to agree on the one of the
    /// level, or on all.
    async fn base_fees(&self, level: Option<FeeLevel>) -> Result<[u32; 3], ChainError> {
        let call = RpcCall("getFeeStats", json!({}));
        let same = same_prices(level, |one: u32, other: u32| {
            one.max(other) / 4 <= one.min(other)
        });
        Ok(self.rpc.query_quorum_by(call, base_fees, same).await?)
    }

    /// Looks for the transaction in the ledgers of all nodes.
    async fn trace(&self, hash: &str) -> Result<StellarTrace, String> {
        let seen = Mutex::new(StellarTrace::Nowhere(LedgerRange::ALL));
        let look = |answer: &Value| {
            let found = trace_of(answer);
            let mut seen = seen.lock();
            let whole = match (&*seen, found) {
                (StellarTrace::Nowhere(all), StellarTrace::Nowhere(span)) => {
                    StellarTrace::Nowhere(all.and(span))
                }
                (_, found) => found,
            };
            *seen = whole;
            Ok(!matches!(*seen, StellarTrace::Nowhere(_)))
        };
        self.rpc
            .any(RpcCall("getTransaction", json!({"hash": hash})), look)
            .await?;
        Ok(seen.into_inner())
    }

    /// A node has the transaction and will put it into a ledger, which is enough. A node takes one of an account per
    /// ledger: the next one is sent once this one is there.
    async fn in_ledger(&self, hash: &str) -> BroadcastOutcome {
        for _ in 0..MAX_POLLS {
            tokio::time::sleep(POLL_INTERVAL).await;
            let answer = self
                .rpc
                .ask(RpcCall("getTransaction", json!({"hash": hash})))
                .await;
            if let Ok(StellarTrace::InLedger { problem }) = answer.map(|answer| trace_of(&answer)) {
                return accepted(hash, problem);
            }
        }
        BroadcastOutcome::Accepted
    }

    /// A node takes one transaction of an account per ledger. For some ledgers it also says this of
    /// one that is in a ledger.
    async fn later(&self, hash: &str, doubt: bool) -> BroadcastOutcome {
        if doubt && let Ok(StellarTrace::InLedger { problem }) = self.trace(hash).await {
            return accepted(hash, problem);
        }
        BroadcastOutcome::Unknown(
            "the node takes one transaction of an account per ledger; this one waits for a later ledger"
                .into(),
        )
    }

    /// A node refused it, and says why.
    async fn failed(
        &self,
        broadcast_request: &BroadcastRequest,
        sent: &SentEnvelope,
        why: StellarFailure,
        doubt: bool,
    ) -> BroadcastOutcome {
        match why.cause {
            FailureCause::Sequence => self.out_of_order(broadcast_request, sent, doubt).await,
            FailureCause::TooLate => {
                let refusal = ChainRefusal {
                    reason: "the transaction expired before a node took it; create a new request"
                        .into(),
                    code: ExecuteCode::Unspecified,
                };
                let is_over = |span: &LedgerRange| span.is_past(sent);
                self.refuse(broadcast_request, refusal, doubt, is_over)
                    .await
            }
            FailureCause::Later => {
                BroadcastOutcome::Unknown(format!("the node said: {}", why.name))
            }
            FailureCause::Passing => {
                let is_over = |span: &LedgerRange| span.is_past(sent);
                self.refuse(broadcast_request, refusal(&why), doubt, is_over)
                    .await
            }
            FailureCause::Final => {
                let is_over = |span: &LedgerRange| !doubt || span.is_past(sent);
                self.refuse(broadcast_request, refusal(&why), doubt, is_over)
                    .await
            }
        }
    }

    /// Its sequence number is not the next one of the account: too high, when an earlier
    /// transaction is not in a ledger yet; too low, when another has used it, or this very one.
    async fn out_of_order(
        &self,
        broadcast_request: &BroadcastRequest,
        sent: &SentEnvelope,
        doubt: bool,
    ) -> BroadcastOutcome {
        let key = match ledger::account_key(&sent.source) {
            Ok(key) => key,
            Err(fault) => return BroadcastOutcome::Unknown(fault.message().to_owned()),
        };
        let read = |answer: &Value| {
            let entries = LedgerEntries::of(answer)?;
            let used = entries.account(&key)?.map(|account| account.sequence);
            Some((used, entries.last))
        };
        let asked = self.rpc.query_quorum_by(
            RpcCall("getLedgerEntries", json!({"keys": [key]})),
            read,
            |(one, _), (other, _)| one == other,
        );
        let asked = witnessed(asked).await;
        let (used, ledger) = match asked {
            Ok(said) => said,
            Err(error) => return BroadcastOutcome::Unknown(error.into_reason()),
        };
        if used.is_none_or(|used| used < sent.sequence) {
            return BroadcastOutcome::Unknown(
                "an earlier transaction of the account is not in a ledger yet".into(),
            );
        }
        let refusal = ChainRefusal {
            reason: "another transaction has used its sequence number; create a new request".into(),
            code: ExecuteCode::Unspecified,
        };
        // The nodes must know the ledgers up to the one in which the number was used.
        let enough = |span: &LedgerRange| span.last >= ledger;
        match self.refuse(broadcast_request, refusal, true, enough).await {
            BroadcastOutcome::Doubtful(refusal, _) => is_void(refusal, doubt),
            outcome => outcome,
        }
    }

    /// A refusal is for good when the transaction is in no ledger; `enough` says whether these
    /// ledgers are all in which it could be.
    async fn refuse(
        &self,
        broadcast_request: &BroadcastRequest,
        refusal: ChainRefusal,
        doubt: bool,
        enough: impl Fn(&LedgerRange) -> bool,
    ) -> BroadcastOutcome {
        let built = broadcast_request
            .now_ms
            .saturating_sub(broadcast_request.age_ms)
            / 1000;
        let known = match self.trace(&broadcast_request.signed.tx_hash).await {
            Ok(StellarTrace::InLedger { problem }) => {
                return accepted(&broadcast_request.signed.tx_hash, problem);
            }
            Ok(StellarTrace::Nowhere(span)) if span.since <= built && enough(&span) => Ok(false),
            Ok(StellarTrace::Nowhere(_)) => {
                Err("it does not have all ledgers that could contain it".into())
            }
            Err(trouble) => Err(trouble),
        };
        match known {
            Ok(false) => is_void(refusal, doubt),
            known => resolve_refusal(refusal, known, doubt),
        }
    }

    /// An error instead of an answer to sendTransaction.
    async fn rejected(
        &self,
        broadcast_request: &BroadcastRequest,
        sent: &SentEnvelope,
        error: &RpcError,
        doubt: bool,
    ) -> BroadcastOutcome {
        let said = short(&error.message);
        if !is_unreadable(error) {
            return BroadcastOutcome::Unknown(format!("the node said: {said}"));
        }
        let refusal = ChainRefusal {
            reason: format!("the node refused the transaction: {said}"),
            code: ExecuteCode::Unspecified,
        };
        let is_over = |span: &LedgerRange| !doubt || span.is_past(sent);
        self.refuse(broadcast_request, refusal, doubt, is_over)
            .await
    }
}

#[async_trait]
impl ChainClient for StellarNode {
    async fn chain_data(&self, queries: &Queries, now_ms: u64) -> Result<ChainData, ChainError> {
        match queries {
            Queries::Stellar(queries) => self.fetch_chain_data(queries, now_ms).await,
            Queries::Nothing => Ok(ChainData::Nothing),
            _ => Err(ChainError::refused(
                "not a Stellar question",
                ExecuteCode::Unspecified,
            )),
        }
    }

    async fn broadcast(&self, broadcast_request: &BroadcastRequest) -> BroadcastOutcome {
        let sent = match ledger::read_sent(&broadcast_request.signed.transaction) {
            Ok(sent) => sent,
            Err(fault) => {
                return BroadcastOutcome::Refused(ChainRefusal {
                    reason: fault.message().to_owned(),
                    code: ExecuteCode::Unspecified,
                });
            }
        };
        let params = json!({"transaction": broadcast_request.signed.transaction});
        let call = RpcCall("sendTransaction", params);
        let (answer, doubt) = self.rpc.submit(call, objection_of).await;
        let doubt = doubt || broadcast_request.retried;
        let answer = match answer {
            Ok(answer) => answer,
            Err(RpcCallError::Node(error)) => {
                return self.rejected(broadcast_request, &sent, &error, doubt).await;
            }
            Err(error) => return BroadcastOutcome::Unknown(error.into_reason()),
        };
        let hash = &broadcast_request.signed.tx_hash;
        match answer.get("status").and_then(Value::as_str) {
            Some("PENDING" | "DUPLICATE") => self.in_ledger(hash).await,
            Some("TRY_AGAIN_LATER") => self.later(hash, doubt).await,
            Some("ERROR") => match failure_of(&answer, "errorResultXdr") {
                Some(why) => self.failed(broadcast_request, &sent, why, doubt).await,
                None => {
                    let refusal = ChainRefusal {
                        reason:
                            "the node refused the transaction without a reason that can be read"
                                .into(),
                        code: ExecuteCode::Unspecified,
                    };
                    let is_over = |span: &LedgerRange| span.is_past(&sent);
                    self.refuse(broadcast_request, refusal, doubt, is_over)
                        .await
                }
            },
            _ => BroadcastOutcome::Unknown(
                "the node's answer to sendTransaction makes no sense".into(),
            ),
        }
    }

    async fn next_number(
        &self,
        address: &str,
        since: ChainMoment,
    ) -> Result<Option<u64>, ChainError> {
        let newest = Mutex::new(0);
        // The answer about a transaction that nobody has names the last ledger and its time.
        let read = |answer: &Value| {
            let StellarTrace::Nowhere(span) = trace_of(answer) else {
                return None;
            };
            let is_later = span.until >= since.time_ms.div_ceil(1_000) && span.last >= since.height;
            if span == LedgerRange::NONE {
                return None;
            }
            if is_later {
                // The ledger of a node that lies is higher than it should be, and others have not
                // got so far, or lower, and does not count.
                let mut newest = newest.lock();
                *newest = span.last.max(*newest);
            }
            Some(is_later)
        };
        let nobodys = json!({"hash": "0".repeat(64)});
        if !self
            .rpc
            .query_quorum(RpcCall("getTransaction", nobodys), read)
            .await?
        {
            return Ok(None);
        }
        let ledger = newest.into_inner();
        let key = key_of(address)?;
        let read = |answer: &Value| {
            let entries = LedgerEntries::of(answer).filter(|entries| entries.last >= ledger)?;
            let used = entries.account(&key)??.sequence;
            used.checked_add(1)
        };
        let params = json!({"keys": [key]});
        let next = self
            .rpc
            .query_quorum(RpcCall("getLedgerEntries", params), read)
            .await?;
        Ok(Some(next))
    }

    async fn sightings(
        &self,
        transactions: &[TrackedTransaction],
        _now_ms: u64,
    ) -> Vec<Result<TransactionSighting, ChainError>> {
        sight_each(transactions, |one| self.sight(one)).await
    }

    async fn fee_estimates(&self) -> Result<[FeeEstimate; 3], ChainError> {
        let fees = self.base_fees(None).await?;
        Ok(fees.map(|fee| FeeEstimate::plain(fee.into(), 1, 0)))
    }

    /// An account that does not exist has nothing, and so has one without a trust line.
    async fn balance(&self, address: &str, token: Option<&str>) -> Result<String, ChainError> {
        let not_that = |problem: &dyn ToString| {
            ChainError::refused(problem.to_string(), ExecuteCode::Unspecified)
        };
        let account = parse_address(address)
            .map_err(|error| not_that(&error))?
            .account_id();
        let key = match token {
            None => ledger::account_key(&account),
            Some(token) => {
                let asset = IssuedAsset::parse(token).map_err(|error| not_that(&error))?;
                ledger::trust_line_key(&account, &asset)
            }
        };
        let key = key.map_err(|fault| bug(&fault))?;
        let read = |answer: &Value| {
            let entries = LedgerEntries::of(answer)?;
            match (entries.find(&key), token) {
                (None, _) => Some(0),
                (Some(entry), None) => Some(ledger::read_account(&key, entry)?.balance),
                (Some(entry), Some(_)) => Some(ledger::read_trust_line(&key, entry)?.balance),
            }
        };
        let asked = self
            .rpc
            .query_quorum(RpcCall("getLedgerEntries", json!({"keys": [key]})), read);
        Ok(asked.await?.to_string())
    }

    /// Nodes try what calls contracts, and nothing else.
    async fn simulate(&self, trial: &SimulationRequest) -> Option<SimulationOutcome> {
        if !calls_contract(&trial.unsigned.bytes) {
            return None;
        }
        let params = json!({"transaction": STANDARD.encode(&trial.unsigned.bytes)});
        let answer = self
            .rpc
            .query_best_effort(RpcCall("simulateTransaction", params))
            .await
            .ok()?;
        tried(&answer)
    }

    fn health(&self) -> Vec<EndpointHealth> {
        self.rpc.health()
    }
}

/// A ledger has it, also where it failed there: then it paid nobody, its number is used, and `transactionState` says so.
fn accepted(hash: &str, problem: Option<String>) -> BroadcastOutcome {
    if let Some(reason) = problem {
        tracing::warn!(
            hash,
            reason,
            "a Stellar transaction is in a ledger and failed"
        );
    }
    BroadcastOutcome::Accepted
}

fn key_of(account: &str) -> Result<String, ChainError> {
    let account = parse_account(account)
        .map_err(|error| ChainError::refused(error.to_string(), ExecuteCode::Unspecified))?;
    ledger::account_key(&account).map_err(|fault| bug(&fault))
}

fn bug(fault: &Fault) -> ChainError {
    ChainError::Unknown(fault.message().to_owned())
}
