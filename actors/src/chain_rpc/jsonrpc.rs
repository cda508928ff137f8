//! JSON-RPC over HTTP, to several nodes of one chain.

use std::sync::atomic::{AtomicU64, Ordering};

use covault_core::fault::ExecuteCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    ChainError, ChainRefusal,
    health::EndpointHealth,
    pool::{self, NodePool, NodeRequest, NodeRequestBody, ParsedResponse, PoolError},
};

/// Most characters of a node's words that are repeated.
const MAX_WORDS: usize = 300;

/// A node's `error` object.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct RpcError {
    /// Code.
    pub code: i64,
    /// What the node says.
    #[serde(default)]
    pub message: String,
    /// More, in a form of the node's own.
    #[serde(default)]
    pub data: Value,
}

/// Why a call gave no result.
#[derive(Clone, Debug, PartialEq)]
pub enum CallError {
    /// No node answered, or they do not agree.
    Unreachable(String),
    /// A node answered with an error.
    Node(RpcError),
    /// Every node that answered is on another chain.
    WrongChain(String),
}

impl From<CallError> for ChainError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Unreachable(reason) => ChainError::Unknown(reason),
            CallError::Node(error) => {
                ChainError::Unknown(format!("the node said: {}", short(&error.message)))
            }
            CallError::WrongChain(reason) => ChainError::Refused(ChainRefusal {
                reason,
                code: ExecuteCode::Unspecified,
            }),
        }
    }
}

impl From<PoolError> for CallError {
    fn from(trouble: PoolError) -> Self {
        match trouble {
            PoolError::Unknown(reason) => CallError::Unreachable(reason),
            PoolError::WrongChain(reason) => CallError::WrongChain(reason),
        }
    }
}

/// A client of one chain's nodes.
pub struct JsonRpcClient {
    pool: NodePool,
    version: &'static str,
    next_id: AtomicU64,
}

#[derive(Deserialize)]
struct JsonRpcResponse {
    #[serde(default)]
    result: Value,
    error: Option<RpcError>,
}

/// What a node said: a result, or an error, which is an answer too.
type JsonRpcResult = Result<Value, RpcError>;

impl JsonRpcClient {
    /// A client that speaks JSON-RPC 2.0.
    pub fn new(pool: NodePool) -> Self {
        Self {
            pool,
            version: "2.0",
            next_id: AtomicU64::new(1),
        }
    }

    /// Speaks JSON-RPC 1.0, as bitcoind does.
    #[must_use]
    pub fn version_1(mut self) -> Self {
        self.version = "1.0";
        self
    }

    /// Uses only nodes that say, once each, that they are on this EVM chain.
    #[must_use]
    pub fn on_chain(self, chain_id: u64) -> Self {
        self.on("eth_chainId", json!([]), move |result| {
            let found = quantity(result).ok_or("the node named no chain")?;
            Ok((found != u128::from(chain_id)).then(|| {
                format!("the node that is configured for chain {chain_id} is on chain {found}")
            }))
        })
    }

    /// Uses only nodes of which `wrong` finds nothing, once each, in what they answer to a call;
    /// else it says on which chain the node is. `Err` when the answer makes no sense.
    #[must_use]
    pub fn on(
        mut self,
        method: &str,
        params: Value,
        wrong: impl Fn(&Value) -> Result<Option<String>, &'static str> + Send + Sync + 'static,
    ) -> Self {
        let call = self.request(method, &params);
        self.pool = self.pool.checked(call, move |answer| match read(answer) {
            ParsedResponse::Value(Ok(result)) => match wrong(&result) {
                Ok(None) => ParsedResponse::Value(Ok(())),
                Ok(Some(reason)) => ParsedResponse::Value(Err(reason)),
                Err(reason) => ParsedResponse::Malformed(reason.into()),
            },
            ParsedResponse::Value(Err(error)) => {
                ParsedResponse::Malformed(format!("the node said: {}", short(&error.message)))
            }
            ParsedResponse::Busy(reason) => ParsedResponse::Busy(reason),
            ParsedResponse::Malformed(reason) => ParsedResponse::Malformed(reason),
        });
        self
    }

    /// The chain, for errors.
    pub fn name(&self) -> &str {
        self.pool.chain()
    }

    /// How the nodes are doing.
    pub fn health(&self) -> Vec<EndpointHealth> {
        self.pool.health()
    }

    /// Asks: the node that answered last first, then the others. An error that a node answers with
    /// is an answer.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call(&self, method: &str, params: Value) -> Result<Value, CallError> {
        let said = self
            .pool
            .first(&self.request(method, &params), read)
            .await?;
        said.map_err(CallError::Node)
    }

    /// As [`NodePool::query_best_effort`].
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn query_best_effort(&self, method: &str, params: Value) -> Result<Value, CallError> {
        let said = self
            .pool
            .query_best_effort(&self.request(method, &params), read)
            .await;
        said.map_err(CallError::Unreachable)?
            .map_err(CallError::Node)
    }

    /// Sends: as [`JsonRpcClient::call`], in one round; also says whether a node may have taken it before
    /// and its answer was lost.
    pub async fn call_once(&self, method: &str, params: Value) -> (Result<Value, CallError>, bool) {
        let (said, doubt) = self
            .pool
            .query_once(&self.request(method, &params), read)
            .await;
        let result = said
            .map_err(CallError::from)
            .and_then(|said| said.map_err(CallError::Node));
        (result, doubt)
    }

    /// Asks as many nodes as configuration wants to agree: money depends on the answer. Of each
    /// only what `read` takes out of it is compared; `None` when the answer makes no sense.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn query_quorum<T: PartialEq>(
        &self,
        method: &str,
        params: Value,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<T, CallError> {
        self.query_quorum_by(method, params, read, T::eq).await
    }

    /// As [`JsonRpcClient::query_quorum`], where two answers need not be equal to be the same.
    ///
    /// # Errors
    /// As there.
    pub async fn query_quorum_by<T>(
        &self,
        method: &str,
        params: Value,
        take: impl Fn(&Value) -> Option<T>,
        same: impl Fn(&T, &T) -> bool,
    ) -> Result<T, CallError> {
        let taking = |answer: &pool::NodeResponse| match read(answer) {
            ParsedResponse::Value(Ok(result)) => match take(&result) {
                Some(taken) => ParsedResponse::Value(Ok(taken)),
                None => ParsedResponse::Malformed(format!(
                    "the node's answer to {method} makes no sense"
                )),
            },
            ParsedResponse::Value(Err(error)) => ParsedResponse::Value(Err(error)),
            ParsedResponse::Busy(reason) => ParsedResponse::Busy(reason),
            ParsedResponse::Malformed(reason) => ParsedResponse::Malformed(reason),
        };
        let same = |one: &Result<T, RpcError>, other: &Result<T, RpcError>| match (one, other) {
            (Ok(one), Ok(other)) => same(one, other),
            (Err(_), Err(_)) => true,
            _ => false,
        };
        let call = self.request(method, &params);
        let said = self.pool.query_quorum(method, &call, taking, same).await?;
        said.map_err(CallError::Node)
    }

    /// Asks every node, one after the other, until `found` is true of a result.
    ///
    /// # Errors
    /// When it was true of none and some node of this chain, or every node, did not answer.
    pub async fn any(
        &self,
        method: &str,
        params: Value,
        found: impl Fn(&Value) -> bool,
    ) -> Result<bool, String> {
        let found = |said: &JsonRpcResult| match said {
            Ok(result) => Ok(found(result)),
            Err(error) => Err(short(&error.message)),
        };
        let call = self.request(method, &params);
        self.pool.any(&call, read, found).await
    }

    fn request(&self, method: &str, params: &Value) -> NodeRequest {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let version = self.version;
        let body = json!({"jsonrpc": version, "id": id, "method": method, "params": params});
        NodeRequest::post("", NodeRequestBody::Json(body))
    }
}

/// Some nodes send JSON-RPC errors with an HTTP error status.
fn read(answer: &pool::NodeResponse) -> ParsedResponse<JsonRpcResult> {
    let said = serde_json::from_slice::<JsonRpcResponse>(&answer.body)
        .ok()
        .filter(|said| answer.is_success() || said.error.is_some());
    match said {
        Some(JsonRpcResponse {
            error: Some(error), ..
        }) if overloaded(&error) => {
            ParsedResponse::Busy(format!("the node said: {}", short(&error.message)))
        }
        Some(JsonRpcResponse {
            error: Some(error), ..
        }) => ParsedResponse::Value(Err(error)),
        Some(JsonRpcResponse { result, .. }) => ParsedResponse::Value(Ok(result)),
        None => ParsedResponse::Malformed(format!(
            "the node answered HTTP {} without JSON-RPC",
            answer.status
        )),
    }
}

/// Codes by which nodes say "not now": -32005 limit exceeded of EIP-1474, 429 of many, -28 of a
/// bitcoind that starts.
fn overloaded(error: &RpcError) -> bool {
    matches!(error.code, -32005 | 429 | -28)
        || error.message.to_ascii_lowercase().contains("rate limit")
}

/// A node's words, cut to what fits a sentence.
pub fn short(words: &str) -> String {
    words.chars().take(MAX_WORDS).collect()
}

/// A quantity of the Ethereum JSON-RPC: hex with `0x`.
pub fn quantity(value: &Value) -> Option<u128> {
    let digits = value.as_str()?.strip_prefix("0x")?;
    u128::from_str_radix(digits, 16).ok()
}
