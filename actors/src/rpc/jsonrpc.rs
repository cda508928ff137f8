//! JSON-RPC 2.0 over HTTP, to several nodes of one chain.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use covault_core::fault::{ExecuteCode, Fault};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::{ChainError, Endpoints, Refusal};

/// Longest answer that is read: a node must not be able to fill the memory.
const MAX_ANSWER: usize = 8 << 20;

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
    /// No node answered.
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
            CallError::WrongChain(reason) => ChainError::Refused(Refusal {
                reason,
                code: ExecuteCode::Unspecified,
            }),
        }
    }
}

/// A client of one chain's nodes.
pub struct JsonRpc {
    name: String,
    nodes: Vec<Node>,
    /// The EVM chain id that every node has to have; `None`: not asked.
    chain_id: Option<u64>,
    /// The node that answered last; asked first.
    preferred: AtomicUsize,
    next_id: AtomicU64,
}

struct Node {
    url: reqwest::Url,
    http: reqwest::Client,
    /// Set once it has said that it is on the right chain.
    checked: OnceCell<()>,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    result: Value,
    error: Option<RpcError>,
}

/// Why a node is not to be used now.
enum Unfit {
    /// It did not say which chain it is on.
    Unknown(String),
    /// It is on another chain.
    WrongChain(String),
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
        let client = || {
            reqwest::Client::builder()
                .timeout(Duration::from_millis(endpoints.timeout_ms))
                .redirect(reqwest::redirect::Policy::none())
        };
        let far = client().build().map_err(Fault::bug)?;
        // A proxy of the environment cannot reach this machine's own nodes.
        let near = client().no_proxy().build().map_err(Fault::bug)?;
        let nodes = urls
            .into_iter()
            .map(|url| Node {
                http: if is_loopback(&url) { &near } else { &far }.clone(),
                url,
                checked: OnceCell::new(),
            })
            .collect();
        Ok(Self {
            name: name.to_owned(),
            nodes,
            chain_id: None,
            preferred: AtomicUsize::new(0),
            next_id: AtomicU64::new(1),
        })
    }

    /// Uses only nodes that say, once each, that they are on this EVM chain.
    #[must_use]
    pub fn on_chain(mut self, chain_id: u64) -> Self {
        self.chain_id = Some(chain_id);
        self
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
        self.call_once(method, params).await.0
    }

    /// As [`JsonRpc::call`]; also says whether another node may have taken the call before and
    /// its answer was lost.
    pub async fn call_once(&self, method: &str, params: Value) -> (Result<Value, CallError>, bool) {
        let start = self.preferred.load(Ordering::Relaxed);
        let count = self.nodes.len();
        let mut trouble = String::new();
        let mut wrong_chain = None;
        let mut doubt = false;
        for offset in 0..count {
            let index = (start + offset) % count;
            match self.check_chain(index).await {
                Ok(()) => {}
                Err(Unfit::Unknown(reason)) => {
                    trouble = format!("{}: {reason}", self.name);
                    continue;
                }
                Err(Unfit::WrongChain(reason)) => {
                    wrong_chain = Some(reason);
                    continue;
                }
            }
            match self.ask(index, method, &params).await {
                Ok(Answer {
                    error: Some(error), ..
                }) if overloaded(&error) => {
                    trouble = format!("{}: the node said: {}", self.name, short(&error.message));
                }
                Ok(answer) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    let result = match answer.error {
                        Some(error) => Err(CallError::Node(error)),
                        None => Ok(answer.result),
                    };
                    return (result, doubt);
                }
                Err(error) => {
                    tracing::debug!(chain = self.name, node = index, %error, "a node did not answer");
                    trouble = format!("{}: {error}", self.name);
                    doubt = true;
                }
            }
        }
        let error = match wrong_chain {
            Some(reason) if trouble.is_empty() => CallError::WrongChain(reason),
            _ => CallError::Unreachable(trouble),
        };
        (Err(error), doubt)
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
        let mut trouble = None;
        let mut answered = false;
        for index in 0..self.nodes.len() {
            match self.check_chain(index).await {
                Ok(()) => {}
                Err(Unfit::Unknown(reason)) => {
                    trouble = Some(reason);
                    continue;
                }
                // It can know nothing about this chain.
                Err(Unfit::WrongChain(_)) => continue,
            }
            match self.ask(index, method, &params).await {
                Ok(Answer {
                    error: Some(error), ..
                }) => trouble = Some(short(&error.message)),
                Ok(answer) if found(&answer.result) => return Ok(true),
                Ok(_) => answered = true,
                Err(error) => trouble = Some(error),
            }
        }
        match trouble {
            None if answered => Ok(false),
            None => Err("no node could be asked".into()),
            Some(trouble) => Err(trouble),
        }
    }

    /// Whether a node is on the right chain: money must not be sent to another one.
    async fn check_chain(&self, index: usize) -> Result<(), Unfit> {
        let (Some(expected), Some(node)) = (self.chain_id, self.nodes.get(index)) else {
            return Ok(());
        };
        node.checked
            .get_or_try_init(|| async {
                let answer = self
                    .ask(index, "eth_chainId", &json!([]))
                    .await
                    .map_err(Unfit::Unknown)?;
                if let Some(error) = answer.error {
                    let words = short(&error.message);
                    return Err(Unfit::Unknown(format!("the node said: {words}")));
                }
                let found = quantity(&answer.result)
                    .ok_or_else(|| Unfit::Unknown("the node named no chain".into()))?;
                if found == u128::from(expected) {
                    return Ok(());
                }
                Err(Unfit::WrongChain(format!(
                    "the node that is configured for chain {expected} is on chain {found}"
                )))
            })
            .await
            .copied()
    }

    async fn ask(&self, index: usize, method: &str, params: &Value) -> Result<Answer, String> {
        let node = self.nodes.get(index).ok_or("no such node")?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let mut response = node
            .http
            .post(node.url.clone())
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
            .ok_or_else(|| {
                format!(
                    "the node answered HTTP {} without JSON-RPC",
                    status.as_u16()
                )
            })
    }
}

/// Codes by which public nodes say "not now" (-32005 limit exceeded of EIP-1474, 429 of many).
fn overloaded(error: &RpcError) -> bool {
    matches!(error.code, -32005 | 429) || error.message.to_ascii_lowercase().contains("rate limit")
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

fn is_loopback(url: &reqwest::Url) -> bool {
    url.host_str().is_some_and(|host| {
        host == "localhost"
            || host
                .trim_matches(['[', ']'])
                .parse::<std::net::IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    })
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
