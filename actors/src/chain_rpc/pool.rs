//! The nodes of one chain, as one: HTTP requests go to the node that is doing best, then to the
//! others; where money depends on the answer, several have to give the same.
//!
//! Errors name the chain and never a node's address, which may hold an access key.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_core::{
    fault::Fault,
    port::{Clock, Entropy},
};
use futures::future::join_all;
use reqwest::{
    Url,
    header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue},
};
use secrecy::ExposeSecret as _;
use tokio::{sync::OnceCell, time::Instant};

use super::{
    endpoints::{ChainEndpoints, ChainKey, NodeAuth, NodeEndpoint},
    exchange::{NodeRequest, NodeRequestBody, NodeResponse, ParsedResponse},
    health::{EndpointHealth, NodeHealth},
};

/// Longest answer that is read: a node must not be able to fill the memory.
const MAX_ANSWER: usize = 8 << 20;
/// What is said of a longer one.
pub(super) const TOO_LONG: &str = "the node's answer is too long";
/// How often all nodes are gone through for one question.
const ROUNDS: u32 = 2;
/// The pause between, less up to a quarter.
const PAUSE_MS: u64 = 250;

/// What the pool takes from the world.
#[derive(Clone)]
pub struct PoolPorts {
    /// For how long a node is left alone.
    pub clock: Arc<dyn Clock>,
    /// So that not all wait equally long.
    pub entropy: Arc<dyn Entropy>,
}

/// Why no answer came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolError {
    /// No node answered, or they do not agree; ask again.
    Unknown(String),
    /// Every node that answered is on another chain.
    WrongChain(String),
}

/// What an answer says about the node's chain: `Err` says which it is, when it is another one.
type ReadChain = dyn Fn(&NodeResponse) -> ParsedResponse<Result<(), String>> + Send + Sync;

/// Whether a node is on the right chain, asked once before it is used.
struct ChainCheck {
    call: NodeRequest,
    read: Box<ReadChain>,
}

/// The nodes of one chain.
pub struct NodePool {
    chain: String,
    nodes: Vec<PoolNode>,
    agree: usize,
    timeout: Duration,
    check: Option<ChainCheck>,
    /// The node that answered last; asked first.
    preferred: AtomicUsize,
    ports: PoolPorts,
}

struct PoolNode {
    url: Url,
    headers: HeaderMap,
    http: reqwest::Client,
    health: NodeHealth,
    /// Set once it has said that it is on the right chain.
    checked: OnceCell<()>,
}

/// Why one node gave no answer.
enum NodeFailure {
    /// It did not take the request.
    Idle(String),
    /// It may have.
    Lost(String),
    /// It is on another chain.
    WrongChain(String),
}

impl NodePool {
    /// The nodes of a chain. Nothing is asked yet.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] naming the setting that is wrong.
    pub fn new(
        chain: ChainKey,
        endpoints: &ChainEndpoints,
        ports: PoolPorts,
    ) -> Result<Self, Fault> {
        let setting = |name: &str| format!("{}.{name}", chain.setting());
        if endpoints.nodes.is_empty() {
            return Err(Fault::field(setting("rpc"), "names no address of a node"));
        }
        if !(1..=endpoints.nodes.len()).contains(&endpoints.agree) {
            return Err(Fault::field(
                setting("agree"),
                "must be at least 1 and at most the number of addresses",
            ));
        }
        if endpoints.timeout_ms == 0 {
            return Err(Fault::field(setting("timeout_ms"), "must be more than 0"));
        }
        let timeout = Duration::from_millis(endpoints.timeout_ms);
        let client = || {
            reqwest::Client::builder()
                .timeout(timeout)
                .redirect(reqwest::redirect::Policy::none())
        };
        let far = client().build().map_err(Fault::bug)?;
        // A proxy of the environment cannot reach this machine's own nodes.
        let near = client().no_proxy().build().map_err(Fault::bug)?;
        let nodes = endpoints
            .nodes
            .iter()
            .map(|endpoint| {
                let NodeEndpoint { url, access } = endpoint;
                // The text may hold an access key: it is not repeated.
                let url = Url::parse(url)
                    .ok()
                    .filter(|url| matches!(url.scheme(), "http" | "https"))
                    .ok_or_else(|| {
                        Fault::field(setting("rpc"), "an address is not an http(s) URL")
                    })?;
                Ok(PoolNode {
                    http: if is_loopback(&url) { &near } else { &far }.clone(),
                    headers: headers(access)
                        .ok_or_else(|| Fault::field(setting("header_files"), "not a header"))?,
                    url,
                    health: NodeHealth::default(),
                    checked: OnceCell::new(),
                })
            })
            .collect::<Result<Vec<_>, Fault>>()?;
        Ok(Self {
            chain: chain.to_string(),
            nodes,
            agree: endpoints.agree,
            timeout,
            check: None,
            preferred: AtomicUsize::new(0),
            ports,
        })
    }

    /// Uses only nodes that say, once each, that they are on the right chain; `read` gives
    /// `Value(Err(sentence))` for one that is not.
    #[must_use]
    pub fn checked(
        mut self,
        call: NodeRequest,
        read: impl Fn(&NodeResponse) -> ParsedResponse<Result<(), String>> + Send + Sync + 'static,
    ) -> Self {
        self.check = Some(ChainCheck {
            call,
            read: Box::new(read),
        });
        self
    }

    /// The chain, for errors.
    pub fn chain(&self) -> &str {
        &self.chain
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// How many nodes have to give the same answer where money depends on it.
    pub fn agree(&self) -> usize {
        self.agree
    }

    /// Whether all nodes are on this machine.
    pub fn is_local(&self) -> bool {
        self.nodes.iter().all(|node| is_loopback(&node.url))
    }

    /// How the nodes are doing.
    pub fn health(&self) -> Vec<EndpointHealth> {
        let nodes = self.nodes.iter().enumerate();
        nodes
            .map(|(index, node)| node.health.view(&self.chain, index))
            .collect()
    }

    /// The answer of the first node that has one; when none has, all are asked once more.
    ///
    /// # Errors
    /// [`PoolError`].
    pub async fn first<T>(
        &self,
        call: &NodeRequest,
        read: impl Fn(&NodeResponse) -> ParsedResponse<T>,
    ) -> Result<T, PoolError> {
        let begun = Instant::now();
        let mut round = 1;
        loop {
            let (answer, _) = self.query_once(call, &read).await;
            // The caller waits no longer than for a node that is silent.
            let again = round < ROUNDS && begun.elapsed() < self.timeout;
            match answer {
                Err(PoolError::Unknown(_)) if again => {
                    let pause = PAUSE_MS - PAUSE_MS * u64::from(self.dice()) / 1024;
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                    round += 1;
                }
                answer => return answer,
            }
        }
    }

    /// As [`NodePool::first`], without a second round; also says whether a node may have taken the
    /// request before and its answer was lost.
    pub async fn query_once<T>(
        &self,
        call: &NodeRequest,
        read: impl Fn(&NodeResponse) -> ParsedResponse<T>,
    ) -> (Result<T, PoolError>, bool) {
        let mut trouble = None;
        let mut wrong_chain = None;
        let mut doubt = false;
        for index in self.order() {
            match self.ask(index, call, &read).await {
                Ok(said) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return (Ok(said), doubt);
                }
                Err(NodeFailure::Idle(reason)) => trouble = Some(reason),
                Err(NodeFailure::Lost(reason)) => {
                    doubt = true;
                    trouble = Some(reason);
                }
                Err(NodeFailure::WrongChain(reason)) => wrong_chain = Some(reason),
            }
        }
        let trouble = match (trouble, wrong_chain) {
            (None, Some(reason)) => PoolError::WrongChain(reason),
            (trouble, _) => self.unknown(&trouble.unwrap_or_default()),
        };
        (Err(trouble), doubt)
    }

    /// The answer of the node that is doing best, for questions that nothing hangs on: a node that
    /// is slow with them, or does not know them, is none the worse for others.
    ///
    /// # Errors
    /// Why it gave none.
    pub async fn query_best_effort<T>(
        &self,
        call: &NodeRequest,
        read: impl Fn(&NodeResponse) -> ParsedResponse<T>,
    ) -> Result<T, String> {
        let best = self.order().into_iter().next();
        let node = best.and_then(|index| self.nodes.get(index));
        let node = node.ok_or("no such node")?;
        match self.on_this_chain(node).await {
            Ok(()) => {}
            Err(
                NodeFailure::Idle(reason)
                | NodeFailure::Lost(reason)
                | NodeFailure::WrongChain(reason),
            ) => {
                return Err(reason);
            }
        }
        match read(&node.exchange(call).await?) {
            ParsedResponse::Value(said) => Ok(said),
            ParsedResponse::Busy(reason) | ParsedResponse::Malformed(reason) => Err(reason),
        }
    }

    /// The answer of one node, counted from 0: for what each of them has to do.
    ///
    /// # Errors
    /// Why it gave none.
    pub async fn at<T>(
        &self,
        index: usize,
        call: &NodeRequest,
        read: impl Fn(&NodeResponse) -> ParsedResponse<T>,
    ) -> Result<T, String> {
        let answer = self.ask(index, call, read).await;
        answer.map_err(|failure| match failure {
            NodeFailure::Idle(reason)
            | NodeFailure::Lost(reason)
            | NodeFailure::WrongChain(reason) => reason,
        })
    }

    /// The answer that as many nodes give as configuration wants to agree. Those that are asked
    /// first need not be outvoted: when they do not agree, all are asked, and an answer counts
    /// that has enough voices while no other has.
    ///
    /// # Errors
    /// [`PoolError`]; also when the nodes do not agree.
    pub async fn query_quorum<T>(
        &self,
        what: &str,
        call: &NodeRequest,
        read: impl Fn(&NodeResponse) -> ParsedResponse<T>,
        same: impl Fn(&T, &T) -> bool,
    ) -> Result<T, PoolError> {
        if self.agree <= 1 {
            return self.first(call, read).await;
        }
        let read = &read;
        let ask = |index: usize| async move { (index, self.ask(index, call, read).await) };
        let order = self.order();
        let (some, rest) = order.split_at(self.agree.min(order.len()));
        let mut answers: Vec<(usize, T)> = Vec::new();
        let mut trouble = None;
        let mut wrong_chain = None;
        for nodes in [some, rest] {
            for (index, answer) in join_all(nodes.iter().copied().map(ask)).await {
                match answer {
                    Ok(said) => answers.push((index, said)),
                    Err(NodeFailure::Idle(reason) | NodeFailure::Lost(reason)) => {
                        trouble = Some(reason)
                    }
                    Err(NodeFailure::WrongChain(reason)) => wrong_chain = Some(reason),
                }
            }
            let unanimous = answers
                .iter()
                .all(|(_, one)| answers.iter().all(|(_, other)| same(one, other)));
            if unanimous && answers.len() >= self.agree {
                break;
            }
        }
        if let (true, None, Some(reason)) = (answers.is_empty(), &trouble, wrong_chain) {
            return Err(PoolError::WrongChain(reason));
        }
        if answers.len() < self.agree {
            let reason = trouble.unwrap_or_else(|| "the others are on another chain".into());
            return Err(self.unknown(&format!(
                "{} of the {} nodes that have to agree answered; {reason}",
                answers.len(),
                self.agree
            )));
        }
        let voices = |one: &T| answers.iter().filter(|(_, other)| same(one, other)).count();
        let enough = |(_, said): &&(usize, T)| voices(said) >= self.agree;
        let winner = answers.iter().position(|answer| enough(&answer));
        let (against, contested) = match winner.and_then(|winner| answers.get(winner)) {
            Some((_, winner)) => {
                let against = answers.iter().filter(|(_, other)| !same(winner, other));
                let contested = against.clone().any(|answer| enough(&answer));
                (against.map(|(index, _)| *index).collect(), contested)
            }
            None => (Vec::new(), true),
        };
        for node in against.iter().filter_map(|index| self.nodes.get(*index)) {
            node.health.dissented();
        }
        if contested || !against.is_empty() {
            let nodes = against.iter().map(|index| index + 1).collect::<Vec<_>>();
            tracing::warn!(chain = self.chain, what, against = ?nodes, "nodes do not agree");
        }
        let winner = winner.filter(|_| !contested);
        match winner.map(|winner| answers.swap_remove(winner)) {
            Some((_, said)) => Ok(said),
            None => Err(self.unknown(&format!(
                "the nodes do not agree about {what}, and {} have to",
                self.agree
            ))),
        }
    }

    /// Asks every node, one after the other, until `found` is true of what one says; `Err` is a
    /// node that does not know.
    ///
    /// # Errors
    /// When it was true of none and some node of this chain, or every node, did not answer.
    pub async fn any<T>(
        &self,
        call: &NodeRequest,
        read: impl Fn(&NodeResponse) -> ParsedResponse<T>,
        found: impl Fn(&T) -> Result<bool, String>,
    ) -> Result<bool, String> {
        let mut trouble = None;
        let mut answered = false;
        for index in self.order() {
            match self.ask(index, call, &read).await {
                Ok(said) => match found(&said) {
                    Ok(true) => return Ok(true),
                    Ok(false) => answered = true,
                    Err(reason) => trouble = Some(reason),
                },
                Err(NodeFailure::Idle(reason) | NodeFailure::Lost(reason)) => {
                    trouble = Some(reason)
                }
                // It can know nothing about this chain.
                Err(NodeFailure::WrongChain(_)) => {}
            }
        }
        match trouble {
            None if answered => Ok(false),
            None => Err("no node could be reached".into()),
            Some(trouble) => Err(trouble),
        }
    }

    fn unknown(&self, reason: &str) -> PoolError {
        PoolError::Unknown(format!("{}: {reason}", self.chain))
    }

    /// Random bytes, for what is to be different each time.
    pub fn random<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.ports.entropy.fill(&mut bytes);
        bytes
    }

    fn dice(&self) -> u8 {
        let [dice] = self.random();
        dice
    }

    /// Every node: first those that are well, from the one that answered last; then the others,
    /// from the one that has been left alone for longest.
    fn order(&self) -> Vec<usize> {
        let now = self.ports.clock.now_ms();
        let (count, start) = (self.nodes.len(), self.preferred.load(Ordering::Relaxed));
        let mut order: Vec<usize> = (0..count).map(|offset| (start + offset) % count).collect();
        order.sort_by_cached_key(|index| {
            let node = self.nodes.get(*index);
            node.map(|node| node.health.cool_until_ms(now))
        });
        order
    }

    /// Asks one node, once it is known to be on the right chain, and notes how it does.
    async fn ask<T>(
        &self,
        index: usize,
        call: &NodeRequest,
        read: impl Fn(&NodeResponse) -> ParsedResponse<T>,
    ) -> Result<T, NodeFailure> {
        let node = self
            .nodes
            .get(index)
            .ok_or_else(|| NodeFailure::Idle("no such node".into()))?;
        let outcome = match self.on_this_chain(node).await {
            Ok(()) => match node.exchange(call).await.map(|answer| read(&answer)) {
                Ok(ParsedResponse::Value(said)) => Ok(said),
                Ok(ParsedResponse::Busy(reason)) => Err(NodeFailure::Idle(reason)),
                Ok(ParsedResponse::Malformed(reason)) | Err(reason) => {
                    Err(NodeFailure::Lost(reason))
                }
            },
            Err(failure) => Err(failure),
        };
        match &outcome {
            Ok(_) => {
                let failures = node.health.answered();
                if failures > 0 {
                    tracing::info!(
                        chain = self.chain,
                        node = index + 1,
                        failures,
                        "a node answers again"
                    );
                }
            }
            Err(
                NodeFailure::Idle(reason)
                | NodeFailure::Lost(reason)
                | NodeFailure::WrongChain(reason),
            ) => {
                let now = self.ports.clock.now_ms();
                let failures = node.health.failed(now, self.dice());
                // Not once per request as long as it is away.
                if failures.is_power_of_two() {
                    tracing::warn!(
                        chain = self.chain,
                        node = index + 1,
                        failures,
                        reason,
                        "a node gave no answer"
                    );
                }
            }
        }
        outcome
    }

    /// Whether a node is on the right chain: money must not be sent to another one.
    async fn on_this_chain(&self, node: &PoolNode) -> Result<(), NodeFailure> {
        let Some(check) = &self.check else {
            return Ok(());
        };
        node.checked
            .get_or_try_init(|| async {
                let answer = node
                    .exchange(&check.call)
                    .await
                    .map_err(NodeFailure::Idle)?;
                match (check.read)(&answer) {
                    ParsedResponse::Value(Ok(())) => Ok(()),
                    ParsedResponse::Value(Err(reason)) => Err(NodeFailure::WrongChain(reason)),
                    ParsedResponse::Busy(reason) | ParsedResponse::Malformed(reason) => {
                        Err(NodeFailure::Idle(reason))
                    }
                }
            })
            .await
            .copied()
    }
}

impl PoolNode {
    async fn exchange(&self, call: &NodeRequest) -> Result<NodeResponse, String> {
        // Without the URL, which may hold an access key.
        let describe = |error: reqwest::Error| describe(&error.without_url());
        let request = self
            .http
            .request(call.method.clone(), call.url(&self.url))
            .headers(self.headers.clone());
        let request = match &call.body {
            NodeRequestBody::Nothing => request,
            NodeRequestBody::Json(body) => request.json(body),
            NodeRequestBody::Bytes(kind, bytes) => request
                .header(reqwest::header::CONTENT_TYPE, *kind)
                .body(bytes.clone()),
        };
        let request = match call.within {
            Some(time) => request.timeout(time),
            None => request,
        };
        let mut response = request.send().await.map_err(describe)?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(describe)? {
            if body.len() + chunk.len() > MAX_ANSWER {
                return Err(TOO_LONG.into());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(NodeResponse {
            status,
            headers,
            body,
        })
    }
}

/// What a node wants to be shown, in a form that no log prints.
fn headers(access: &NodeAuth) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    let (name, value) = match access {
        NodeAuth::Open => return Some(headers),
        NodeAuth::Header { name, value } => (
            HeaderName::from_bytes(name.as_bytes()).ok()?,
            HeaderValue::from_str(value.expose_secret()).ok()?,
        ),
        NodeAuth::Login(login) => {
            let login = STANDARD.encode(login.expose_secret());
            (
                AUTHORIZATION,
                HeaderValue::from_str(&format!("Basic {login}")).ok()?,
            )
        }
    };
    let mut value = value;
    value.set_sensitive(true);
    headers.insert(name, value);
    Some(headers)
}

fn is_loopback(url: &Url) -> bool {
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

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn headers__should_not_be_shown() {
        let login = NodeAuth::Login("user:secret".into());
        let headers = headers(&login).unwrap();
        assert_eq!(headers[AUTHORIZATION], "Basic dXNlcjpzZWNyZXQ=");
        assert!(!format!("{headers:?}").contains("dXNl"));
        let bad = NodeAuth::Header {
            name: "a b".into(),
            value: "c".into(),
        };
        assert!(super::headers(&bad).is_none());
    }
}
