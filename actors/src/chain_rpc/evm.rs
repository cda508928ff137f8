//! EVM nodes: the JSON-RPC of execution clients (ethereum/execution-apis, EIP-1474).

use async_trait::async_trait;
use covault_core::{
    amount,
    fault::ExecuteCode,
    networks::{
        ChainData, Queries,
        evm::{self, ChainData as EvmChainData, EvmCall, Fees, Queries as EvmQueries},
    },
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainError, ChainRefusal, EndpointHealth,
    NodePool, SimulationOutcome, SimulationRequest,
    client::Client,
    exchange::short,
    jsonrpc::{JsonRpc, RpcCall, RpcCallError, RpcError, quantity},
    resolve_refusal,
    simulation::revert_reason,
};

/// Selector of `balanceOf(address)` (EIP-20).
const BALANCE_OF: &str = "70a08231";

/// JSON-RPC: the node does not know the method.
const METHOD_NOT_FOUND: i64 = -32601;
/// JSON-RPC: what was sent is not what the method takes.
const INVALID_PARAMS: i64 = -32602;

/// 3 gwei.
const SMALL_PRICE: u128 = 3_000_000_000;

/// One EVM chain.
pub struct EvmNode {
    rpc: Client<JsonRpc>,
    /// Set once a block had a base fee: EIP-1559 is never switched off again.
    eip1559: OnceCell<()>,
}

impl EvmNode {
    /// The chain `chain_id`, through its nodes.
    pub fn new(chain_id: u64, pool: NodePool) -> Self {
        let rpc = Client::new(pool, JsonRpc::default());
        Self {
            rpc: rpc.checked(RpcCall("eth_chainId", json!([])), move |answer| {
                let found = quantity(answer).ok_or("the node named no chain")?;
                Ok((found != u128::from(chain_id)).then(|| {
                    format!("the node that is configured for chain {chain_id} is on chain {found}")
                }))
            }),
            eip1559: OnceCell::new(),
        }
    }

    async fn fees(
        &self,
        from: &str,
        call: &EvmCall,
        base_fee: Option<u128>,
    ) -> Result<Fees, ChainError> {
        let estimate = self
            .rpc
            .ask(RpcCall("eth_estimateGas", json!([transaction(from, call)])));
        let method = if base_fee.is_some() {
            "eth_maxPriorityFeePerGas"
        } else {
            "eth_gasPrice"
        };
        let price = self
            .rpc
            .query_quorum_by(RpcCall(method, json!([])), quantity, near);
        let (estimate, price) = tokio::join!(estimate, price);
        let estimate = match estimate {
            Err(RpcCallError::Node(error)) => return Err(refused_call(&error)),
            other => number(&other?)?,
        };
        let estimate_gas = u64::try_from(estimate)
            .map_err(|_| ChainError::Unknown("the node's gas estimate is absurd".into()))?;
        let price = price?;
        Ok(match base_fee {
            Some(base_fee) => Fees {
                estimate_gas,
                base_fee,
                max_priority_fee: price,
            },
            None => Fees {
                estimate_gas,
                base_fee: price,
                max_priority_fee: 0,
            },
        })
    }

    /// The base fee of the latest block; `None` on a chain without one.
    async fn base_fee(&self) -> Result<Option<u128>, ChainError> {
        let base_fee = |block: &Value| match block.get("baseFeePerGas") {
            // The node has no block yet.
            _ if block.is_null() => None,
            None => Some(None),
            Some(fee) => quantity(fee).map(Some),
        };
        let same = |one: &Option<u128>, other: &Option<u128>| match (one, other) {
            (Some(one), Some(other)) => near(one, other),
            (None, None) => true,
            _ => false,
        };
        let params = json!(["latest", false]);
        let asked =
            self.rpc
                .query_quorum_by(RpcCall("eth_getBlockByNumber", params), base_fee, same);
        let base_fee = asked.await?;
        if base_fee.is_some() {
            // Already set is as good.
            let _ = self.eip1559.set(());
        }
        Ok(base_fee)
    }

    /// Whether the chain has a base fee, for a transaction that brings everything else.
    /// Without an answer it has: the signature must not wait for a node.
    async fn has_base_fee(&self) -> bool {
        self.eip1559.initialized() || !matches!(self.base_fee().await, Ok(None))
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
        let (nonce, base_fee) = tokio::try_join!(nonce, self.base_fee())?;
        let fees = match &queries.fees {
            Some(call) => Some(self.fees(&queries.from, call, base_fee).await?),
            None => None,
        };
        Ok(ChainData::Evm(EvmChainData {
            nonce,
            eip1559: base_fee.is_some(),
            fees,
        }))
    }

    async fn known(&self, hash: &str) -> Result<bool, String> {
        self.rpc
            .any(
                RpcCall("eth_getTransactionByHash", json!([hash])),
                |found| Ok(!found.is_null()),
            )
            .await
    }
}

#[async_trait]
impl ChainClient for EvmNode {
    async fn chain_data(&self, queries: &Queries, _now_ms: u64) -> Result<ChainData, ChainError> {
        match queries {
            Queries::Evm(queries) => self.fetch_chain_data(queries).await,
            Queries::Nothing => Ok(ChainData::Nothing),
            _ => Err(refused(
                "not an EVM question".into(),
                ExecuteCode::Unspecified,
            )),
        }
    }

    async fn broadcast(&self, broadcast_request: &BroadcastRequest) -> BroadcastOutcome {
        let raw = json!([broadcast_request.signed.transaction]);
        let (answer, doubt) = self.rpc.send(RpcCall("eth_sendRawTransaction", raw)).await;
        match answer {
            Ok(_) => BroadcastOutcome::Accepted,
            Err(RpcCallError::Unreachable(reason) | RpcCallError::WrongChain(reason)) => {
                BroadcastOutcome::Unknown(reason)
            }
            Err(RpcCallError::Node(error)) => match judge(&error) {
                BroadcastOutcome::Refused(refusal) => {
                    let known = self.known(&broadcast_request.signed.tx_hash).await;
                    let doubt = doubt || broadcast_request.retried || speaks_of_another(&error);
                    resolve_refusal(refusal, known, doubt)
                }
                verdict => verdict,
            },
        }
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
        let owner = address.trim_start_matches("0x").to_ascii_lowercase();
        let data = format!("0x{BALANCE_OF}{owner:0>64}");
        let params = json!([{"to": token, "data": data}, "latest"]);
        // The first word of the answer, as ABI decoders read it. The contract is one that the
        // client named: it can answer anything.
        let read = |answer: &Value| {
            let digits = answer.as_str()?.strip_prefix("0x")?;
            Some(digits.get(..64).and_then(amount::hex_to_decimal))
        };
        let not_a_token = || {
            refused(
                "there is no token contract at this address".into(),
                ExecuteCode::Unspecified,
            )
        };
        match self
            .rpc
            .query_quorum(RpcCall("eth_call", params), read)
            .await
        {
            Err(RpcCallError::Node(error)) if reverted(&error) => Err(not_a_token()),
            answer => answer?.ok_or_else(not_a_token),
        }
    }

    /// By `eth_call` of the whole transaction on the latest block.
    async fn simulate(&self, trial: &SimulationRequest) -> Option<SimulationOutcome> {
        let from = trial.payload.from();
        let transaction = evm::trial(&trial.unsigned.bytes).ok()?;
        let params = json!([attempt(from, &transaction), "latest"]);
        let error = match self
            .rpc
            .query_best_effort(RpcCall("eth_call", params))
            .await
        {
            Ok(returned) => {
                return Some(SimulationOutcome::passes(Some(
                    returned.as_str()?.to_owned(),
                )));
            }
            Err(RpcCallError::Node(error)) => error,
            Err(RpcCallError::Unreachable(_) | RpcCallError::WrongChain(_)) => return None,
        };
        if speaks_of_load(&error) || matches!(error.code, METHOD_NOT_FOUND | INVALID_PARAMS) {
            return None;
        }
        // It may fail because it has gone through: it is signed and sent at the same time.
        let params = json!([from, "latest"]);
        let count = self
            .rpc
            .query_best_effort(RpcCall("eth_getTransactionCount", params))
            .await;
        let count = count.as_ref().ok().and_then(quantity)?;
        if count > u128::from(transaction.nonce) {
            return None;
        }
        let data = revert_data(&error.data);
        let reason = data.as_ref().and_then(|data| revert_reason(data));
        let words = match reason.filter(|reason| !error.message.contains(reason.as_str())) {
            Some(reason) => format!("{}: {reason}", short(&error.message)),
            None => error.message,
        };
        Some(SimulationOutcome {
            result: data.map(|data| format!("0x{}", hex::encode(data))),
            ..SimulationOutcome::fails(&words)
        })
    }

    fn health(&self) -> Vec<EndpointHealth> {
        self.rpc.health()
    }
}

/// The whole transaction, as nodes take it to be tried. Its nonce is left out: earlier ones of the
/// account need not be mined.
fn attempt(from: &str, transaction: &evm::SimulationCall) -> Value {
    let evm::SimulationCall {
        to,
        value,
        data,
        nonce: _,
        gas_limit,
        most_price,
        priority,
    } = transaction;
    let mut object = json!({
        "from": from,
        "value": format!("{value:#x}"),
        "data": format!("0x{}", hex::encode(data)),
        "gas": format!("{gas_limit:#x}"),
    });
    let price = format!("{most_price:#x}");
    let prices = match priority {
        Some(priority) => vec![
            ("maxFeePerGas", price),
            ("maxPriorityFeePerGas", format!("{priority:#x}")),
        ],
        None => vec![("gasPrice", price)],
    };
    let to = to.iter().map(|to| ("to", to.clone()));
    if let Some(fields) = object.as_object_mut() {
        for (name, text) in prices.into_iter().chain(to) {
            fields.insert(name.into(), text.into());
        }
    }
    object
}

/// What a call reverts with: text, in an object with some nodes, with words before it in others.
fn revert_data(data: &Value) -> Option<Vec<u8>> {
    let text = data.as_str().or_else(|| data.get("data")?.as_str())?;
    let (_, digits) = text.split_once("0x")?;
    hex::decode(digits).ok()
}

/// Whether two prices are those of one moment, as nodes with other transactions in their pools
/// see it. Small tips differ by more, and cost nothing.
fn near(one: &u128, other: &u128) -> bool {
    let (low, high) = (one.min(other), one.max(other));
    *high <= low.saturating_mul(4) || high - low <= SMALL_PRICE
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

/// What a node's answer to eth_sendRawTransaction means. The words are those of geth, reth,
/// erigon, nethermind, besu and anvil.
fn judge(error: &RpcError) -> BroadcastOutcome {
    let said = error.message.to_ascii_lowercase();
    // Anything less plain is settled by whether the nodes know the hash.
    if [
        "already known",
        "known transaction",
        "already imported",
        "alreadyknown",
    ]
    .iter()
    .any(|phrase| says(&said, phrase))
    {
        return BroadcastOutcome::Accepted;
    }
    // A block gas limit is not that of the pool, and never passes.
    let limited = said.contains("limit exceeded") && !said.contains("gas limit");
    if limited || speaks_of_load(error) {
        return BroadcastOutcome::Unknown(format!("the node said: {}", short(&error.message)));
    }
    BroadcastOutcome::Refused(refusal(error))
}

/// Whether the words are there and are not the end of another word: `unknown transaction type`
/// is not a known transaction.
fn says(said: &str, phrase: &str) -> bool {
    said.match_indices(phrase).any(|(at, _)| {
        !said
            .get(..at)
            .and_then(|before| before.chars().next_back())
            .is_some_and(char::is_alphanumeric)
    })
}

/// Whether the node may find it wrong because it, or another node behind the same address, has
/// this very transaction.
fn speaks_of_another(error: &RpcError) -> bool {
    let said = error.message.to_ascii_lowercase();
    ["nonce", "already", "replace", "exist", "known"]
        .iter()
        .any(|word| said.contains(word))
}

/// Whether the node may say something else later.
fn speaks_of_load(error: &RpcError) -> bool {
    let said = error.message.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
    has(&[
        "txpool is full",
        "pool is full",
        "try again",
        "too many requests",
        "timeout",
        "timed out",
        "overloaded",
        "unavailable",
        "syncing",
        "header not found",
    ]) || error.code == -32603 && has(&["internal error"])
}

fn refusal(error: &RpcError) -> ChainRefusal {
    let said = error.message.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
    let code = if has(&[
        "intrinsic gas too low",
        "out of gas",
        "gas required exceeds",
        "underpriced",
        "max fee per gas less",
        "fee cap",
        "gas allowance",
    ]) {
        ExecuteCode::InsufficientGasFee
    } else if has(&[
        "insufficient funds",
        "insufficient balance",
        "insufficientfunds",
        "exceeds balance",
    ]) {
        ExecuteCode::InsufficientFunds
    } else {
        ExecuteCode::Unspecified
    };
    let hint = match code {
        ExecuteCode::InsufficientFunds => "the sender cannot pay amount and fee; the node said: ",
        ExecuteCode::InsufficientGasFee => "the fee or gas limit is too low; the node said: ",
        _ => "the node refused the transaction: ",
    };
    ChainRefusal {
        reason: format!("{hint}{}", short(&error.message)),
        code,
    }
}

/// An error of eth_estimateGas: the call reverts or cannot be paid. 3 is geth's code of a
/// revert, -32000 that of a call that cannot be made, -32015 that of other nodes for both.
fn refused_call(error: &RpcError) -> ChainError {
    let said = error.message.to_ascii_lowercase();
    let speaks_of_the_call = reverted(error)
        || [
            "insufficient",
            "exceeds",
            "gas required",
            "invalid opcode",
            "out of gas",
        ]
        .iter()
        .any(|word| said.contains(word));
    let code_of_calls = matches!(error.code, 3 | -32000 | -32015);
    if speaks_of_the_call || code_of_calls && !speaks_of_load(error) {
        ChainError::Refused(refusal(error))
    } else {
        ChainError::Unknown(format!("the node said: {}", short(&error.message)))
    }
}

fn reverted(error: &RpcError) -> bool {
    // 3 is geth's code of a revert.
    error.code == 3 || error.message.to_ascii_lowercase().contains("revert")
}

fn refused(reason: String, code: ExecuteCode) -> ChainError {
    ChainError::Refused(ChainRefusal { reason, code })
}

fn number(value: &Value) -> Result<u128, ChainError> {
    quantity(value).ok_or_else(|| {
        ChainError::Unknown("the node answered something that is not a number".into())
    })
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn said(code: i64, message: &str) -> RpcError {
        RpcError {
            code,
            message: message.into(),
            data: Value::Null,
        }
    }

    #[test]
    fn judge__should_take_a_known_transaction_for_accepted() {
        for words in [
            "already known",
            "known transaction: 0x12",
            "AlreadyKnown",
            "transaction already imported",
            "INTERNAL_ERROR: already known",
        ] {
            assert_eq!(
                judge(&said(-32000, words)),
                BroadcastOutcome::Accepted,
                "{words}"
            );
        }
    }

    #[test]
    fn judge__should_not_take_an_unknown_transaction_for_accepted() {
        for words in [
            "unknown transaction type",
            "Unknown transaction type: 2",
            "a transaction of this nonce already exists",
            "block gas limit exceeded",
        ] {
            assert!(
                matches!(judge(&said(-32000, words)), BroadcastOutcome::Refused(_)),
                "{words}"
            );
        }
    }

    #[test]
    fn refused_call__should_wait_only_for_what_may_pass() {
        for (code, words, refused) in [
            (-32000, "missing trie node", true),
            (-32015, "VM execution error.", true),
            (3, "", true),
            (-32000, "header not found", false),
            (-32000, "request timed out", false),
            (-32603, "internal error", false),
        ] {
            let answer = refused_call(&said(code, words));
            assert_eq!(matches!(answer, ChainError::Refused(_)), refused, "{words}");
        }
    }

    #[test]
    fn judge__should_name_the_code_of_a_refusal() {
        let code = |words: &str| match judge(&said(-32000, words)) {
            BroadcastOutcome::Refused(refusal) => refusal.code,
            other => panic!("{words}: {other:?}"),
        };
        assert_eq!(
            code("insufficient funds for gas * price + value: balance 0"),
            ExecuteCode::InsufficientFunds
        );
        assert_eq!(
            code("Insufficient funds for gas * price + value"),
            ExecuteCode::InsufficientFunds
        );
        assert_eq!(
            code("intrinsic gas too low: gas 1"),
            ExecuteCode::InsufficientGasFee
        );
        assert_eq!(
            code("transaction underpriced"),
            ExecuteCode::InsufficientGasFee
        );
        assert_eq!(code("nonce too low"), ExecuteCode::Unspecified);
    }

    #[test]
    fn judge__should_not_refuse_for_good_what_may_work_later() {
        for words in [
            "txpool is full",
            "request timeout",
            "node is syncing",
            "daily request limit exceeded",
        ] {
            assert!(
                matches!(judge(&said(-32000, words)), BroadcastOutcome::Unknown(_)),
                "{words}"
            );
        }
    }
}
