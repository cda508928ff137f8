//! JSON-RPC over HTTP.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    client::{Call, CallError, Protocol, Refusal},
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

/// A method and its parameters.
pub struct RpcCall(pub &'static str, pub Value);

impl Call<JsonRpc> for RpcCall {
    type Answer = Value;

    fn subject(&self) -> &str {
        self.0
    }

    fn request(&self, protocol: &JsonRpc) -> NodeRequest {
        let Self(method, params) = self;
        let id = protocol.next_id.fetch_add(1, Ordering::Relaxed);
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        NodeRequest::post("", NodeRequestBody::Json(body))
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
            }) if overloaded(&error) => ParsedResponse::Busy(error.words()),
            Some(JsonRpcResponse {
                error: Some(error), ..
            }) => ParsedResponse::Value(Err(error)),
            Some(JsonRpcResponse { result, .. }) => ParsedResponse::Value(Ok(result)),
            None => ParsedResponse::Malformed(format!(
                "the node answered HTTP {} without JSON-RPC",
                response.status
            )),
        }
    }
}

#[derive(Deserialize)]
struct JsonRpcResponse {
    #[serde(default)]
    result: Value,
    error: Option<RpcError>,
}

/// Codes by which nodes say "not now": -32005 limit exceeded of EIP-1474, 429 of many, -28 of a
/// bitcoind that starts.
fn overloaded(error: &RpcError) -> bool {
    matches!(error.code, -32005 | 429 | -28)
        || error.message.to_ascii_lowercase().contains("rate limit")
}

/// A quantity of the Ethereum JSON-RPC: hex with `0x`.
pub fn quantity(value: &Value) -> Option<u128> {
    let digits = value.as_str()?.strip_prefix("0x")?;
    u128::from_str_radix(digits, 16).ok()
}
