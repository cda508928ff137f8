//! JSON-RPC over HTTP.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::{
    client::{CallError, ChainCall, Protocol, Refusal},
    exchange::{NodeRequest, NodeRequestBody, NodeResponse, ParsedResponse, short},
};

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

impl Refusal for RpcError {
    fn words(&self) -> String {
        format!("the node said: {}", short(&self.message))
    }

    /// Nodes say the same in their own words.
    fn agrees_with(&self, _: &Self) -> bool {
        true
    }
}

/// Methods for which a node runs a program.
const COSTLY: [&str; 5] = [
    "eth_call",
    "eth_estimateGas",
    "simulateTransaction",
    "debug_traceBlockByHash",
    "trace_block",
];

/// Methods whose answers are whole blocks, or as much as anyone puts into one.
const OF_BLOCKS: [&str; 6] = [
    "debug_traceBlockByHash",
    "trace_block",
    "eth_getBlockByNumber",
    "eth_getBlockReceipts",
    "eth_getLogs",
    "eth_getTransactionReceipt",
];

/// Why a call gave no result.
pub type RpcCallError = CallError<RpcError>;

/// JSON-RPC 2.0 over HTTP.
#[derive(Default)]
pub struct JsonRpc {
    next_id: AtomicU64,
}

impl Protocol for JsonRpc {
    type Refusal = RpcError;
}

/// The request with what its methods say of it.
fn marked(request: NodeRequest, methods: &[&str]) -> NodeRequest {
    let has = |list: &[&str]| methods.iter().any(|method| list.contains(method));
    let request = match has(&COSTLY) {
        true => request.costly(),
        false => request,
    };
    match has(&OF_BLOCKS) {
        true => request.of_blocks(),
        false => request,
    }
}

/// A method and its parameters.
#[derive(Clone)]
pub struct RpcCall(pub &'static str, pub Value);

impl ChainCall<JsonRpc> for RpcCall {
    type Answer = Value;

    fn subject(&self) -> &'static str {
        self.0
    }

    fn request(&self, protocol: &JsonRpc) -> NodeRequest {
        let Self(method, params) = self;
        let id = protocol.next_id.fetch_add(1, Ordering::Relaxed);
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let request = NodeRequest::post("", NodeRequestBody::Json(body));
        marked(request, &[*method])
    }

    /// Some nodes send JSON-RPC errors with an HTTP error status.
    fn read(
        &self,
        _: &JsonRpc,
        response: &NodeResponse,
    ) -> ParsedResponse<Result<Value, RpcError>> {
        let parsed = serde_json::from_slice::<JsonRpcResponse>(&response.body)
            .ok()
            .filter(|parsed| response.is_success() || parsed.error.is_some());
        match parsed {
            Some(JsonRpcResponse {
                error: Some(error), ..
            }) if is_of_gateway(response) => ParsedResponse::Malformed(error.words()),
            Some(JsonRpcResponse {
                error: Some(error), ..
            }) if overloaded(&error) => ParsedResponse::TooMuch(error.words()),
            Some(JsonRpcResponse {
                error: Some(error), ..
            }) => ParsedResponse::Value(Err(error)),
            Some(JsonRpcResponse {
                result: Some(result),
                ..
            }) => ParsedResponse::Value(Ok(result)),
            _ => ParsedResponse::Malformed(format!(
                "the node answered HTTP {} without JSON-RPC",
                response.status
            )),
        }
    }
}

/// Several calls in one HTTP request, of which one node answers all.
pub struct RpcCalls(pub Vec<RpcCall>);

impl ChainCall<JsonRpc> for RpcCalls {
    /// In the order of the calls.
    type Answer = Vec<Result<Value, RpcError>>;

    fn subject(&self) -> &'static str {
        self.0.first().map_or("", |call| call.0)
    }

    fn request(&self, _: &JsonRpc) -> NodeRequest {
        let call = |(id, RpcCall(method, params)): (usize, &RpcCall)| json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let calls = self.0.iter().enumerate().map(call).collect();
        let request = NodeRequest::post("", NodeRequestBody::Json(Value::Array(calls)));
        let methods: Vec<_> = self.0.iter().map(|call| call.0).collect();
        marked(request, &methods)
    }

    /// Answers may come in any order (JSON-RPC 2.0, section 6).
    fn read(
        &self,
        _: &JsonRpc,
        response: &NodeResponse,
    ) -> ParsedResponse<Result<Self::Answer, RpcError>> {
        let malformed = || {
            ParsedResponse::Malformed(format!(
                "the node answered HTTP {} without an answer for each call",
                response.status
            ))
        };
        let Ok(answers) = serde_json::from_slice::<Vec<RpcBatchAnswer>>(&response.body) else {
            return match serde_json::from_slice::<JsonRpcResponse>(&response.body) {
                Ok(JsonRpcResponse {
                    error: Some(error), ..
                }) if overloaded(&error) => ParsedResponse::TooMuch(error.words()),
                Ok(JsonRpcResponse {
                    error: Some(error), ..
                }) => ParsedResponse::Value(Err(error)),
                _ => malformed(),
            };
        };
        let mut found = BTreeMap::new();
        for RpcBatchAnswer { id, answer } in answers {
            if let Some(error) = answer.error.as_ref().filter(|error| overloaded(error)) {
                return ParsedResponse::TooMuch(error.words());
            }
            let said = match answer.error {
                Some(error) => Some(Err(error)),
                None => answer.result.map(Ok),
            };
            found.extend(said.map(|said| (id, said)));
        }
        let answers: Option<Vec<_>> = (0..self.0.len()).map(|id| found.remove(&id)).collect();
        match answers {
            Some(answers) => ParsedResponse::Value(Ok(answers)),
            None => malformed(),
        }
    }
}

#[derive(Deserialize)]
struct RpcBatchAnswer {
    id: usize,
    #[serde(flatten)]
    answer: JsonRpcResponse,
}

#[derive(Deserialize)]
struct JsonRpcResponse {
    /// `null` says that there is no such thing. Nothing says nothing: a gateway may have written that.
    #[serde(default, deserialize_with = "present")]
    result: Option<Value>,
    error: Option<RpcError>,
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Whether what is in front of a node says so: the node may have got the call anyway.
fn is_of_gateway(response: &NodeResponse) -> bool {
    matches!(response.status, 502..=504)
}

/// Codes by which nodes say "not now": -32005 limit exceeded of EIP-1474, 429 of many, -28 of a
/// bitcoind that starts.
fn overloaded(error: &RpcError) -> bool {
    let said = error.message.to_ascii_lowercase();
    // besu says -32005 of a transaction that takes more gas than a block has.
    let is_gas = said.contains("block gas limit");
    matches!(error.code, -32005 | 429 | -28) && !is_gas || said.contains("rate limit")
}

/// A quantity of the Ethereum JSON-RPC: hex with `0x`.
pub fn quantity(value: &Value) -> Option<u128> {
    let digits = value.as_str()?.strip_prefix("0x")?;
    u128::from_str_radix(digits, 16).ok()
}
