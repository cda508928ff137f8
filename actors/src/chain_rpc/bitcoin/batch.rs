//! Several JSON-RPC calls in one HTTP request, which one node answers in their order: what it
//! says in them belongs together.

use std::{convert::Infallible, time::Duration};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::chain_rpc::{
    NodeRequest, NodeRequestBody, NodeResponse,
    client::{ChainCall, Protocol},
    exchange::{ParsedResponse, short},
    jsonrpc::RpcError,
};

/// The address of the node itself.
const NODE: &str = "";
/// The address of the wallet that watches.
const WALLET: &str = "/wallet/covault";

/// The name of the wallet that watches.
pub const WALLET_NAME: &str = "covault";

/// What a node answered to one call.
pub type BitcoinRpcResult = Result<Value, RpcError>;

/// The JSON-RPC of Bitcoin Core.
pub struct CoreRpc;

/// What a node says to a call of a batch is in its answer.
impl Protocol for CoreRpc {
    type Refusal = Infallible;
}

/// Calls that go together.
#[derive(Clone, Debug)]
pub struct RpcBatch {
    path: &'static str,
    calls: Vec<Value>,
    within: Option<Duration>,
    subject: &'static str,
}

impl RpcBatch {
    fn new(path: &'static str) -> Self {
        Self {
            path,
            calls: Vec::new(),
            within: None,
            subject: "what was asked",
        }
    }

    /// Calls of the node.
    pub fn node() -> Self {
        Self::new(NODE)
    }

    /// Calls of the node and of the wallet that watches.
    pub fn wallet() -> Self {
        Self::new(WALLET)
    }

    /// Adds a call.
    #[must_use]
    pub fn and(mut self, method: &str, params: Value) -> Self {
        let id = self.calls.len();
        self.calls
            .push(json!({"jsonrpc": "1.0", "id": id, "method": method, "params": params}));
        self
    }

    /// Adds the same call for each of some things.
    #[must_use]
    pub fn each<T>(
        self,
        things: impl IntoIterator<Item = T>,
        method: &str,
        params: impl Fn(T) -> Value,
    ) -> Self {
        let things = things.into_iter();
        things.fold(self, |batch, thing| batch.and(method, params(thing)))
    }

    /// Gives it this time instead of the usual one.
    #[must_use]
    pub fn within(mut self, time: Duration) -> Self {
        self.within = Some(time);
        self
    }

    /// Names what it asks for, for errors.
    #[must_use]
    pub fn about(mut self, subject: &'static str) -> Self {
        self.subject = subject;
        self
    }

    fn said(&self, answer: &NodeResponse) -> ParsedResponse<Vec<BitcoinRpcResult>> {
        match answer.status {
            401 | 403 => {
                return ParsedResponse::Busy(
                    "the node denies access: check login_files, and rpcallowip and rpcwhitelist of \
                     bitcoind"
                        .into(),
                );
            }
            // bitcoind: "Work queue depth exceeded".
            429 | 503 => return ParsedResponse::Busy("the node is overloaded".into()),
            _ => {}
        }
        let Ok(answers) = serde_json::from_slice::<Vec<RpcBatchItem>>(&answer.body) else {
            return ParsedResponse::Malformed(format!(
                "the node answered HTTP {} without what was asked",
                answer.status
            ));
        };
        let in_order = answers
            .iter()
            .enumerate()
            .all(|(index, one)| one.id == json!(index));
        if !in_order || answers.len() != self.calls.len() {
            return ParsedResponse::Malformed(
                "the node answered another question than was asked".into(),
            );
        }
        let starting = answers
            .iter()
            .filter_map(|one| one.error.as_ref())
            .find(|error| error.code == STARTING);
        if let Some(error) = starting {
            return ParsedResponse::Busy(format!(
                "the node is starting: {}",
                short(&error.message)
            ));
        }
        let said = |one: RpcBatchItem| match one.error {
            Some(error) => Err(error),
            None => Ok(one.result),
        };
        ParsedResponse::Value(answers.into_iter().map(said).collect())
    }
}

impl ChainCall<CoreRpc> for RpcBatch {
    /// One answer for each call.
    type Answer = Vec<BitcoinRpcResult>;

    fn subject(&self) -> &'static str {
        self.subject
    }

    fn request(&self, _: &CoreRpc) -> NodeRequest {
        let body = NodeRequestBody::Json(Value::Array(self.calls.clone()));
        let call = NodeRequest::post(self.path, body);
        match self.within {
            Some(time) => call.within(time),
            None => call,
        }
    }

    fn read(
        &self,
        _: &CoreRpc,
        response: &NodeResponse,
    ) -> ParsedResponse<Result<Self::Answer, Infallible>> {
        let said = self.said(response);
        said.and_then(|said| ParsedResponse::Value(Ok(said)))
    }
}

/// RPC_IN_WARMUP.
const STARTING: i64 = -28;

#[derive(Deserialize)]
struct RpcBatchItem {
    #[serde(default)]
    id: Value,
    #[serde(default)]
    result: Value,
    error: Option<RpcError>,
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn read(status: u16, body: &str) -> ParsedResponse<Vec<BitcoinRpcResult>> {
        let batch = RpcBatch::node()
            .and("uptime", json!([]))
            .and("stop", json!([]));
        let body = body.as_bytes().to_vec();
        batch.said(&NodeResponse {
            status,
            body,
            ..NodeResponse::default()
        })
    }

    #[test]
    fn an_answer__should_be_one_for_each_call_in_their_order() {
        let one = r#"{"result":7,"error":null,"id":0}"#;
        let other = r#"{"result":null,"error":{"code":-5,"message":"no"},"id":1}"#;
        match read(200, &format!("[{one},{other}]")) {
            ParsedResponse::Value(said) => {
                assert_eq!(said[0], Ok(json!(7)));
                assert_eq!(said[1].as_ref().unwrap_err().code, -5);
            }
            _ => panic!("not read"),
        }
        for body in [
            format!("[{other},{one}]"),
            format!("[{one}]"),
            one.to_owned(),
            String::new(),
        ] {
            assert!(
                matches!(read(200, &body), ParsedResponse::Malformed(_)),
                "{body}"
            );
        }
    }

    #[test]
    fn an_answer__should_say_when_the_node_took_nothing() {
        let starting = r#"{"result":null,"error":{"code":-28,"message":"Loading"},"id":0}"#;
        let other = r#"{"result":7,"error":null,"id":1}"#;
        let body = format!("[{starting},{other}]");
        assert!(matches!(read(200, &body), ParsedResponse::Busy(_)));
        for status in [401, 403, 429, 503] {
            assert!(
                matches!(read(status, ""), ParsedResponse::Busy(_)),
                "{status}"
            );
        }
    }
}
