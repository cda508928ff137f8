//! JSON-RPC 2.0 over HTTP, to several nodes of one chain.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use covault_core::fault::Fault;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{ChainError, Endpoints};

/// Longest answer that is read: a node must not be able to fill the memory.
const MAX_ANSWER: usize = 8 << 20;

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
    /// No node answered.
    Unreachable(String),
    /// A node answered with an error.
    Node(RpcError),
}

impl From<CallError> for ChainError {
    fn from(error: CallError) -> Self {
        ChainError::Unknown(match error {
            CallError::Unreachable(reason) => reason,
            CallError::Node(error) => format!("the node said: {}", error.message),
        })
    }
}

/// A client of one chain's nodes.
pub struct JsonRpc {
    name: String,
    urls: Vec<reqwest::Url>,
    http: reqwest::Client,
    /// The node that answered last; asked first.
    preferred: AtomicUsize,
    next_id: AtomicU64,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    result: Value,
    error: Option<RpcError>,
}

impl JsonRpc {
    /// A client; `name` names the chain in errors. Nothing is asked yet.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] naming what is not a URL.
    pub fn new(name: &str, endpoints: &Endpoints) -> Result<Self, Fault> {
        let urls = endpoints
            .urls
            .iter()
            .map(|url| {
                // The text may hold an access key: it is not repeated.
                reqwest::Url::parse(url)
                    .ok()
                    .filter(|url| matches!(url.scheme(), "http" | "https"))
                    .ok_or_else(|| Fault::field(name, "an RPC address is not an http(s) URL"))
            })
            .collect::<Result<Vec<_>, _>>()?;
        if urls.is_empty() {
            return Err(Fault::field(name, "has no RPC address"));
        }
        let http = reqwest::Client::builder()
            .timeout(Duration::from_millis(endpoints.timeout_ms))
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(Fault::bug)?;
        Ok(Self {
            name: name.to_owned(),
            urls,
            http,
            preferred: AtomicUsize::new(0),
            next_id: AtomicU64::new(1),
        })
    }

    /// The chain, for errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Calls a method: the node that answered last first, then the others. An error that a
    /// node answers with is an answer.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call(&self, method: &str, params: Value) -> Result<Value, CallError> {
        let start = self.preferred.load(Ordering::Relaxed);
        let count = self.urls.len();
        let mut trouble = String::new();
        for offset in 0..count {
            let index = (start + offset) % count;
            match self.ask(index, method, &params).await {
                Ok(Answer { error: Some(error), .. }) if overloaded(&error) => {
                    trouble = format!("{}: the node said: {}", self.name, error.message);
                }
                Ok(answer) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return match answer.error {
                        Some(error) => Err(CallError::Node(error)),
                        None => Ok(answer.result),
                    };
                }
                Err(error) => {
                    tracing::debug!(chain = self.name, node = index, %error, "a node did not answer");
                    trouble = format!("{}: {error}", self.name);
                }
            }
        }
        Err(CallError::Unreachable(trouble))
    }

    /// Calls a method on every node, one after the other; stops at the first result that
    /// `wanted` takes.
    pub async fn find<T>(
        &self,
        method: &str,
        params: Value,
        wanted: impl Fn(&Value) -> Option<T>,
    ) -> Option<T> {
        for index in 0..self.urls.len() {
            if let Ok(answer) = self.ask(index, method, &params).await
                && answer.error.is_none()
                && let Some(found) = wanted(&answer.result)
            {
                return Some(found);
            }
        }
        None
    }

    async fn ask(&self, index: usize, method: &str, params: &Value) -> Result<Answer, String> {
        let url = self.urls.get(index).ok_or("no such node")?.clone();
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let mut response = self
            .http
            .post(url)
            .json(&body)
            .send()
            .await
            // Without the URL, which may hold an access key.
            .map_err(|error| describe(&error.without_url()))?;
        let status = response.status();
        let mut bytes = Vec::new();
        while let Some(chunk) = response
            .chunk()
            .await
            .map_err(|error| describe(&error.without_url()))?
        {
            if bytes.len() + chunk.len() > MAX_ANSWER {
                return Err("the node's answer is too long".into());
            }
            bytes.extend_from_slice(&chunk);
        }
        // Some nodes send JSON-RPC errors with an HTTP error status.
        serde_json::from_slice::<Answer>(&bytes)
            .ok()
            .filter(|answer| status.is_success() || answer.error.is_some())
            .ok_or_else(|| format!("the node answered HTTP {} without JSON-RPC", status.as_u16()))
    }
}

/// Codes by which public nodes say "not now" (-32005 limit exceeded of EIP-1474, 429 of many).
fn overloaded(error: &RpcError) -> bool {
    matches!(error.code, -32005 | 429) || error.message.to_ascii_lowercase().contains("rate limit")
}

fn describe(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        "the node did not answer in time".into()
    } else if error.is_connect() {
        "the node cannot be reached".into()
    } else {
        format!("talking to the node failed ({error})")
    }
}
