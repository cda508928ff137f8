//! EVM nodes: the JSON-RPC of execution clients (ethereum/execution-apis, EIP-1474).

mod blocks;
mod fees;
mod refusals;
mod sightings;
mod simulation;
pub(super) mod tokens;
mod tracing;

use std::collections::BTreeMap;

use async_trait::async_trait;
use covault_core::{
    amount,
    fault::ExecuteCode,
    networks::{
        ChainData, ChainMoment, FeeLevel, Payload, Queries,
        evm::{
            self, ChainData as EvmChainData, EvmCall, Fees, Queries as EvmQueries, SentTransaction,
        },
    },
    signature::Signature,
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use self::{
    fees::near,
    refusals::{judge, knows_no_such_block, refused_call, speaks_of_another, speaks_of_number},
    tracing::TraceSupport,
};
use super::{
    BlockSource, BroadcastOutcome, BroadcastRequest, ChainClient, ChainError, ChainRefusal,
    EndpointHealth, FeeEstimate, FollowPolicy, NodePool, Objection, ObjectionKind,
    SimulationOutcome, SimulationRequest, Standing, TokenFacts, TrackedTransaction,
    TransactionSighting,
    client::{Client, Refusal as _},
    jsonrpc::{JsonRpc, RpcCall, RpcCallError, RpcError, quantity},
    resolve_refusal,
    witnessed::{is_witnessed, witnessed},
};

/// Selector of `allowance(address,address)` (EIP-20).
const ALLOWANCE: &str = "dd62ed3e";

/// JSON-RPC: the node does not know the method.
const METHOD_NOT_FOUND: i64 = -32601;
/// JSON-RPC: what was sent is not what the method takes.
const INVALID_PARAMS: i64 = -32602;

/// How far below the latest block one is that counts as final, on chains whose nodes do not say: two epochs of
/// Ethereum.
const FINAL_DEPTH: u64 = 64;
/// How far back is looked for the transaction that used a number, in blocks.
const MAX_SEARCHED: u64 = 65_536;

/// Calls in one HTTP request: nodes take a hundred and more.
const MOST_CALLS: usize = 50;

/// The contract that tells on OP chains what the data of a transaction costs (`GasPriceOracle` of their specification).
const DATA_FEE_ORACLE: &str = "0x420000000000000000000000000000000000000F";
/// `getL1FeeUpperBound(uint256)`, by the size of the unsigned transaction.
const DATA_FEE: &str = "0xf1c7a58b";
/// More than the bytes of a transfer of the coin or of a token.
const TRANSFER_BYTES: u32 = 200;

/// What is used of the latest block.
struct LatestBlock {
    /// wei; `None` on a chain without one.
    base_fee: Option<u128>,
    /// Units, where the node says.
    gas_limit: Option<u64>,
}

impl LatestBlock {
    /// The gas limit of a call. What it takes may grow until it is mined, by what others do before it; what it
    /// does not use costs nothing.
    fn with_reserve(&self, call: &EvmCall, estimate: u64) -> u64 {
        if call.data.is_empty() {
            return estimate;
        }
        let limit = estimate.saturating_add(estimate / 4);
        self.gas_limit
            .map_or(limit, |most| limit.min(most))
            .max(estimate)
    }
}

/// One EVM chain.
pub struct EvmNode {
    chain_id: u64,
    rpc: Client<JsonRpc>,
    /// Set once a block had a base fee: EIP-1559 is never switched off again.
    eip1559: OnceCell<()>,
    /// Set once nodes have named a block `finalized`: from then on no other one counts as final.
    finalized: OnceCell<()>,
    follow: FollowPolicy,
    tracing: TraceSupport,
}

impl EvmNode {
    /// The chain `chain_id`, through its nodes.
    pub fn new(chain_id: u64, pool: NodePool, follow: FollowPolicy) -> Self {
        let rpc = Client::new(pool, JsonRpc::default());
        Self {
            chain_id,
            rpc: rpc.checked(RpcCall("eth_chainId", json!([])), move |answer| {
                let found = quantity(answer).ok_or("the node named no chain")?;
                Ok((found != u128::from(chain_id)).then(|| {
                    format!("the node that is configured for chain {chain_id} is on chain {found}")
                }))
            }),
            eip1559: OnceCell::new(),
            finalized: OnceCell::new(),
            follow,
            tracing: TraceSupport::default(),
        }
    }

    /// Fees and gas for a call, on top of the latest block.
    async fn fees(
        &self,
        from: &str,
        call: &EvmCall,
        level: FeeLevel,
        latest: LatestBlock,
    ) -> Result<Fees, ChainError> {
        let estimate = self.estimate_gas(from, call);
        let price = async {
            match latest.base_fee {
                Some(base_fee) => {
                    let tips = self.tips(base_fee, Some(level)).await?;
                    Ok((base_fee, level.of(tips)))
                }
                None => Ok::<_, ChainError>((self.gas_price().await?, 0)),
            }
        };
        let (estimate, price) = tokio::join!(estimate, price);
        let estimate = u64::try_from(estimate?)
            .map_err(|_| ChainError::Unknown("the node's gas estimate is absurd".into()))?;
        let (base_fee, max_priority_fee) = price?;
        Ok(Fees {
            estimate_gas: latest.with_reserve(call, estimate),
            base_fee,
            max_priority_fee,
        })
    }

    /// The gas that a call takes: the highest that one of the nodes names that have to agree, as too little costs the
    /// fee and does nothing. It is refused only when as many refuse it.
    async fn estimate_gas(&self, from: &str, call: &EvmCall) -> Result<u128, ChainError> {
        // Some nodes would estimate on top of what waits, where what replaces a transfer finds the tokens gone.
        let params = json!([transaction(from, call), "latest"]);
        let call = RpcCall("eth_estimateGas", params);
        let said = self.rpc.voices(call, |_, _| true).await?;
        let estimates = said.iter().filter_map(|said| quantity(said.as_ref().ok()?));
        if let Some(highest) = estimates.max() {
            return Ok(highest);
        }
        let errors = said.into_iter().map(|said| match said {
            Ok(other) => number(&other).err(),
            Err(error) => Some(refused_call(&error)),
        });
        let is_refusal = |error: &ChainError| matches!(error, ChainError::Refused(_));
        let (mut refused, unknown): (Vec<_>, Vec<_>) = errors.flatten().partition(is_refusal);
        let enough = refused.len() >= self.rpc.agree();
        let error = refused
            .pop()
            .filter(|_| enough)
            .or(unknown.into_iter().next());
        Err(error.unwrap_or_else(|| ChainError::unknown("too few nodes estimated its gas")))
    }

    /// The latest block.
    async fn latest(&self) -> Result<LatestBlock, ChainError> {
        let read = |block: &Value| {
            let base_fee = match block.get("baseFeePerGas") {
                // The node has no block yet.
                _ if block.is_null() => return None,
                None => None,
                Some(fee) => Some(quantity(fee)?),
            };
            Some(LatestBlock {
                base_fee,
                gas_limit: number_in(block, "gasLimit"),
            })
        };
        let same = |one: &LatestBlock, other: &LatestBlock| match (one.base_fee, other.base_fee) {
            (Some(one), Some(other)) => near(&one, &other),
            (None, None) => true,
            _ => false,
        };
        let call = RpcCall("eth_getBlockByNumber", json!(["latest", false]));
        let latest = self.rpc.query_quorum_by(call, read, same).await?;
        if latest.base_fee.is_some() {
            // Already set is as good.
            let _ = self.eip1559.set(());
        }
        Ok(latest)
    }

    /// Whether the chain has a base fee, for a transaction that brings everything else.
    /// Without an answer it has: the signature must not wait for a node.
    async fn has_base_fee(&self) -> bool {
        let latest = || async { self.latest().await.map(|latest| latest.base_fee) };
        self.eip1559.initialized() || !matches!(latest().await, Ok(None))
    }

    async fn fetch_chain_data(&self, queries: &EvmQueries) -> Result<ChainData, ChainError> {
        if !queries.nonce && queries.fees.is_none() {
            return Ok(ChainData::Evm(EvmChainData {
                nonce: None,
                eip1559: self.has_base_fee().await,
                fees: None,
            }));
        }
        let nonce = async {
            if !queries.nonce {
                return Ok(None);
            }
            // Nonces stay far below: EIP-2681 ends them at 2^64 - 1.
            let count = |count: &Value| {
                let count = i64::try_from(quantity(count)?).ok()?;
                Some(Some(count.unsigned_abs()))
            };
            let params = json!([queries.from, "pending"]);
            let asked = self
                .rpc
                .query_quorum(RpcCall("eth_getTransactionCount", params), count);
            Ok(asked.await?)
        };
        let latest = async {
            match queries.fees.is_none() && self.eip1559.initialized() {
                true => Ok(None),
                false => self.latest().await.map(Some),
            }
        };
        let (nonce, latest) = tokio::try_join!(nonce, latest)?;
        let has_base_fee = |latest: &LatestBlock| latest.base_fee.is_some();
        let eip1559 = latest.as_ref().is_none_or(has_base_fee);
        let fees = match (&queries.fees, latest) {
            (Some(call), Some(latest)) => Some(
                self.fees(&queries.from, call, queries.level, latest)
                    .await?,
            ),
            _ => None,
        };
        Ok(ChainData::Evm(EvmChainData {
            nonce,
            eip1559,
            fees,
        }))
    }

    /// What a refusal means of a transaction that may have reached the chain. Only the account's key can
    /// use its number: when a final block has that, and not with this transaction, it never comes.
    async fn weigh_number(
        &self,
        broadcast_request: &BroadcastRequest,
        refusal: ChainRefusal,
        error: &RpcError,
    ) -> BroadcastOutcome {
        let sent = match evm::read_sent(&broadcast_request.signed) {
            Ok(sent) => sent,
            Err(fault) => return BroadcastOutcome::Unknown(fault.message().to_owned()),
        };
        let SentTransaction { from, nonce, .. } = &sent;
        match self.final_number(from).await {
            Ok((next, height)) if next > *nonce => {
                match witnessed(self.find_by_number(&sent, height)).await {
                    Some(hash) if hash == broadcast_request.signed.tx_hash => {
                        BroadcastOutcome::Accepted
                    }
                    by => {
                        let by = by.map_or_else(
                            || "another transaction of the account".to_owned(),
                            |hash| format!("the transaction {hash}"),
                        );
                        let reason = format!("nonce {nonce} was used by {by}, which is final");
                        let refusal = ChainRefusal { reason, ..refusal };
                        BroadcastOutcome::Doubtful(refusal, Standing::Void)
                    }
                }
            }
            Ok(_) => {
                let standing = if speaks_of_number(error) {
                    Standing::Passed
                } else {
                    Standing::Open
                };
                BroadcastOutcome::Doubtful(refusal, standing)
            }
            Err(trouble) => BroadcastOutcome::Unknown(format!(
                "a node said \"{}\", and it is not known whether a final transaction used nonce {nonce}: {}",
                refusal.reason,
                trouble.into_reason()
            )),
        }
    }
}

#[async_trait]
impl ChainClient for EvmNode {
    async fn chain_data(&self, queries: &Queries, _now_ms: u64) -> Result<ChainData, ChainError> {
        match queries {
            Queries::Evm(queries) => self.fetch_chain_data(queries).await,
            Queries::Nothing => Ok(ChainData::Nothing),
            _ => Err(ChainError::refused(
                "not an EVM question",
                ExecuteCode::Unspecified,
            )),
        }
    }

    async fn preflight(&self, payload: &Payload) -> Result<(), ChainError> {
        self.try_token_transfer(payload).await
    }

    async fn broadcast(&self, broadcast_request: &BroadcastRequest) -> BroadcastOutcome {
        let raw = json!([broadcast_request.signed.transaction]);
        let objection = |said: Result<&Value, &RpcError>| {
            let error = said.err()?;
            let kind = match speaks_of_another(error) {
                true => ObjectionKind::Used,
                false => ObjectionKind::Refused,
            };
            match judge(error) {
                BroadcastOutcome::Refused(refusal) => Some(Objection::new(kind, refusal.reason)),
                _ => None,
            }
        };
        let call = RpcCall("eth_sendRawTransaction", raw);
        let (answer, doubt) = self.rpc.submit(call, objection).await;
        match answer {
            Ok(_) => BroadcastOutcome::Accepted,
            Err(
                error @ (RpcCallError::Unreachable(_)
                | RpcCallError::TooLong(_)
                | RpcCallError::WrongChain(_)),
            ) => BroadcastOutcome::Unknown(error.into_reason()),
            Err(RpcCallError::Node(error)) => match judge(&error) {
                BroadcastOutcome::Refused(refusal) => {
                    let known = self.known(&broadcast_request.signed.tx_hash).await;
                    let doubt = doubt || broadcast_request.retried || speaks_of_another(&error);
                    match resolve_refusal(refusal, known, doubt) {
                        BroadcastOutcome::Doubtful(refusal, Standing::Open) => {
                            self.weigh_number(broadcast_request, refusal, &error).await
                        }
                        verdict => verdict,
                    }
                }
                verdict => verdict,
            },
        }
    }

    async fn sightings(
        &self,
        transactions: &[TrackedTransaction],
        _now_ms: u64,
    ) -> Vec<Result<TransactionSighting, ChainError>> {
        let hashes = || transactions.iter().map(|one| one.signed.tx_hash.as_str());
        // The final block first: what is missing then, and whose number it has, never comes.
        let asked = async {
            let height = self.final_height().await?;
            let found = self
                .of_each("eth_getTransactionByHash", hashes(), true)
                .await?;
            // Of one node.
            let found: Vec<_> = found.into_iter().flatten().collect();
            Ok::<_, ChainError>((height, found))
        };
        let (height, found) = match asked.await {
            Ok(found) => found,
            Err(error) => return transactions.iter().map(|_| Err(error.clone())).collect(),
        };
        // Where several have to agree, one that stands still must not hide what the others have.
        let several = self.rpc.agree() > 1;
        let is_mined = |found: &Result<Value, RpcError>| {
            let found = found.as_ref().ok();
            found.is_some_and(|found| several || number_in(found, "blockNumber").is_some())
        };
        let mined = hashes().zip(&found).filter(|(_, found)| is_mined(found));
        let mined = mined.map(|(hash, _)| hash);
        let receipts = self.of_each("eth_getTransactionReceipt", mined, false);
        let mut receipts = match receipts.await {
            Ok(receipts) => receipts.into_iter(),
            Err(error) => return transactions.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut used = BTreeMap::new();
        let mut sightings = Vec::with_capacity(transactions.len());
        for (transaction, found) in transactions.iter().zip(found) {
            let receipt = if is_mined(&found) {
                receipts.next()
            } else {
                None
            };
            sightings.push(match (found, receipt) {
                (Err(error), _) => Err(ChainError::Unknown(error.words())),
                (Ok(found), Some(receipts)) => {
                    self.sight_mined(transaction, &found, &receipts, height, &mut used)
                        .await
                }
                (Ok(found), None) if found.is_null() => {
                    self.sight_missing(transaction, height, &mut used).await
                }
                (Ok(_), None) => Ok(TransactionSighting::Waiting),
            });
        }
        sightings
    }

    async fn signatures_in_block(
        &self,
        transaction: &TrackedTransaction,
        by: Option<&str>,
    ) -> Result<Vec<Signature>, ChainError> {
        let unknown = |problem: &str| ChainError::Unknown(problem.into());
        let by =
            by.ok_or_else(|| unknown("the nodes do not report which transaction used the nonce"))?;
        let sent = evm::read_sent(&transaction.signed)
            .map_err(|fault| ChainError::Unknown(fault.message().to_owned()))?;
        let height = self.final_height().await?;
        let read = |found: &Value| {
            let text = |field| found.get(field).and_then(Value::as_str);
            let is_it = text("hash")?.eq_ignore_ascii_case(by)
                && text("from")?.eq_ignore_ascii_case(&transaction.from)
                && number_in(found, "nonce")? == sent.nonce
                && number_in(found, "blockNumber")? <= height;
            is_it.then_some((word(text("r")?)?, word(text("s")?)?))
        };
        let call = RpcCall("eth_getTransactionByHash", json!([by]));
        let (r, s) = self.rpc.query_quorum(call, read).await?;
        // Nodes write the parity in several ways; either can be tried.
        Ok(vec![Signature::Ecdsa { r, s, y_parity: 0 }])
    }

    async fn fee_estimates(&self) -> Result<[FeeEstimate; 3], ChainError> {
        self.estimates().await
    }

    /// As of the latest block. Transactions of EVM chains do not end with time.
    async fn next_number(
        &self,
        address: &str,
        since: ChainMoment,
    ) -> Result<Option<u64>, ChainError> {
        if since != ChainMoment::ANY {
            let problem = "the nodes of this chain are not asked for it";
            return Err(ChainError::Unknown(problem.into()));
        }
        let count = |count: &Value| u64::try_from(quantity(count)?).ok();
        let call = RpcCall("eth_getTransactionCount", json!([address, "latest"]));
        Ok(Some(match is_witnessed() {
            // Anyone who asks this has to know soon what is certain, however the nodes differ.
            true => self.rpc.reached(call, count).await?,
            false => self.rpc.query_quorum(call, count).await?,
        }))
    }

    async fn head(&self) -> Result<Option<u64>, ChainError> {
        let number = |number: &Value| u64::try_from(quantity(number)?).ok();
        // Nodes are some blocks apart, and one that is far ahead of the others lies.
        let same = |one: &u64, other: &u64| one.abs_diff(*other) <= FINAL_DEPTH;
        let call = RpcCall("eth_blockNumber", json!([]));
        Ok(Some(self.rpc.query_quorum_by(call, number, same).await?))
    }

    async fn balance(&self, address: &str, token: Option<&str>) -> Result<String, ChainError> {
        let Some(token) = token else {
            let read =
                |answer: &Value| amount::hex_to_decimal(answer.as_str()?.strip_prefix("0x")?);
            let params = json!([address, "latest"]);
            return Ok(self
                .rpc
                .query_quorum(RpcCall("eth_getBalance", params), read)
                .await?);
        };
        self.token_word(token, tokens::balance_call(address)).await
    }

    async fn allowance(
        &self,
        owner: &str,
        token: &str,
        spender: &str,
    ) -> Result<String, ChainError> {
        let data = format!(
            "0x{ALLOWANCE}{}{}",
            tokens::word_of(owner),
            tokens::word_of(spender)
        );
        self.token_word(token, data).await
    }

    async fn gas_of(&self, queries: &Queries) -> Result<u64, ChainError> {
        let Queries::Evm(EvmQueries {
            from,
            fees: Some(call),
            ..
        }) = queries
        else {
            let problem = "gas is asked for of what names its own fees";
            return Err(ChainError::refused(problem, ExecuteCode::Unspecified));
        };
        let estimate = self.estimate_gas(from, call).await?;
        let estimate = u64::try_from(estimate)
            .map_err(|_| ChainError::Unknown("the node's gas estimate is absurd".into()))?;
        let any_block = LatestBlock {
            base_fee: None,
            gas_limit: None,
        };
        Ok(any_block.with_reserve(call, estimate))
    }

    /// By the oracle of OP chains; where there is no such contract, nothing is taken.
    async fn data_fee(&self) -> Result<u128, ChainError> {
        let data = format!("{DATA_FEE}{TRANSFER_BYTES:064x}");
        let params = json!([{"to": DATA_FEE_ORACLE, "data": data}, "latest"]);
        let read = |answer: &Value| match answer.as_str()? {
            "0x" => Some(0),
            _ => quantity(answer),
        };
        // It changes with each block, and nodes are some blocks apart.
        let near = |one: &u128, other: &u128| one.abs_diff(*other) <= (*one).max(*other) / 2;
        let call = RpcCall("eth_call", params);
        Ok(self.rpc.query_quorum_by(call, read, near).await?)
    }

    async fn token_facts(&self, token: &str) -> Result<Option<TokenFacts>, ChainError> {
        let ask = |data: &'static str| {
            let call = RpcCall("eth_call", json!([{"to": token, "data": data}, "latest"]));
            let read = |answer: &Value| Some(answer.as_str()?.to_owned());
            self.rpc.query_quorum(call, read)
        };
        let decimals = ask(tokens::DECIMALS).await?;
        // Some tokens have none.
        let symbol = ask(tokens::SYMBOL).await.unwrap_or_default();
        tokens::facts(&decimals, &symbol).map(Some)
    }

    /// By `eth_call` of the whole transaction on the latest block.
    async fn simulate(&self, trial: &SimulationRequest) -> Option<SimulationOutcome> {
        self.try_on_latest(trial).await
    }

    fn blocks(&self) -> Option<&dyn BlockSource> {
        Some(self)
    }

    fn health(&self) -> Vec<EndpointHealth> {
        self.rpc.health()
    }
}

fn transaction(from: &str, call: &EvmCall) -> Value {
    let value = call.value.parse::<u128>().map_or_else(
        // Over 2^128 wei: no account has it, and the node says so.
        |_| format!("0x{}", "f".repeat(64)),
        |value| format!("{value:#x}"),
    );
    let mut object = json!({
        "from": from,
        "value": value,
        "data": format!("0x{}", hex::encode(&call.data)),
    });
    if let (Some(to), Some(fields)) = (&call.to, object.as_object_mut()) {
        fields.insert("to".into(), json!(to));
    }
    object
}

/// 32 bytes, without zeros in front where a node leaves them out.
fn word(text: &str) -> Option<[u8; 32]> {
    let digits = text.strip_prefix("0x")?;
    hex::decode(format!("{digits:0>64}")).ok()?.try_into().ok()
}

/// A number in an object.
fn number_in(object: &Value, field: &str) -> Option<u64> {
    u64::try_from(quantity(object.get(field)?)?).ok()
}

fn number(value: &Value) -> Result<u128, ChainError> {
    quantity(value).ok_or_else(|| {
        ChainError::Unknown("the node answered something that is not a number".into())
    })
}
