//! The nodes of one chain, as one: HTTP requests go to the node that is doing best, then to the
//! others; where money depends on the answer, several have to give the same.
//!
//! What hangs is not waited for by everyone: a node has so many calls in progress and no more ([`CallLine`]), one that
//! is silent gets them one at a time, and all who wait to hear on which chain it is wait for the same call.
//!
//! Errors name the chain and never a node's address, which may hold an access key.

mod erased;
mod node;
mod said;
mod submit;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use covault_core::{
    fault::Fault,
    port::{Clock, Entropy},
};
use futures::future::join_all;
use parking_lot::Mutex;
use reqwest::Url;
use rustls::ClientConfig;
use rustls_platform_verifier::ConfigVerifierExt as _;
use tokio::sync::Semaphore;

use super::{
    endpoints::{ChainEndpoints, ChainKey, NodeEndpoint},
    exchange::{NodeRequest, NodeResponse, ParsedResponse},
    health::{EndpointHealth, NodeHealth},
    line::{CallLine, is_of_request},
    load::{self, NodeLoad},
    witnessed::is_witnessed,
};

use node::{AnswerReader, NodeFailure, PoolNode, headers, keeping};
use said::Said;
pub use submit::{Objection, ObjectionKind};

/// So many transactions that other nodes have taken wait for their turn at a node.
const MOST_PASSED_ON: usize = 256;
/// Cannot happen: what says something was kept.
const UNREAD: &str = "the node's answer was not read";
/// What is said of a longer one.
const TOO_LONG: &str = "the node's answer is too long";
/// What is said of one that would fill the memory.
const STUFFED: &str = "the node's answer has too many values";
/// What is said of one that was not read in time because of others.
const WAITED: &str = "too many long answers came at once";
/// Most calls to one node that are in progress at once.
pub const CALLS_PER_NODE: usize = 128;
/// Statuses by which a node says that it has too much to do.
const TOO_MUCH: [u16; 3] = [429, 503, 504];
/// Connections to one node that are kept for later calls.
const IDLE_PER_NODE: usize = 16;
/// So many nodes have to say what ends something for good, where there are as many.
const MIN_WITNESSES: usize = 2;
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
    /// Calls to one node that may be in progress at once, at most; others wait for a place. Each has a socket.
    pub calls_per_node: usize,
}

/// Why no answer came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolError {
    /// No node answered, or they do not agree; ask again.
    Unknown(String),
    /// The answer is longer than any that is read, by the last node that failed.
    TooLong(String),
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
    nodes: Vec<Arc<PoolNode>>,
    agree: usize,
    timeout: Duration,
    check: Option<Arc<ChainCheck>>,
    /// The node that answered last; asked first.
    preferred: AtomicUsize,
    longest: Arc<AtomicUsize>,
    ports: PoolPorts,
}

/// TLS as this machine's root certificates have it. They are read once per process: there are more than a hundred, and
/// each chain has two clients.
fn machine_trust() -> Result<ClientConfig, Fault> {
    static TRUST: Mutex<Option<ClientConfig>> = Mutex::new(None);
    let mut trust = TRUST.lock();
    if let Some(trust) = &*trust {
        return Ok(trust.clone());
    }
    let read = ClientConfig::with_platform_verifier().map_err(Fault::bug)?;
    Ok(trust.insert(read).clone())
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
        let trust = machine_trust()?;
        let client = || {
            reqwest::Client::builder()
                .tls_backend_preconfigured(trust.clone())
                .timeout(timeout)
                .pool_max_idle_per_host(IDLE_PER_NODE)
                .redirect(reqwest::redirect::Policy::none())
        };
        let far = client().build().map_err(Fault::bug)?;
        // A proxy of the environment cannot reach this machine's own nodes.
        let near = client().no_proxy().build().map_err(Fault::bug)?;
        let longest = Arc::<AtomicUsize>::default();
        let nodes = endpoints
            .nodes
            .iter()
            .zip(1..)
            .map(|(endpoint, number)| {
                let NodeEndpoint { url, access } = endpoint;
                // The text may hold an access key: it is not repeated.
                let url = Url::parse(url)
                    .ok()
                    .filter(|url| matches!(url.scheme(), "http" | "https"))
                    .ok_or_else(|| {
                        Fault::field(setting("rpc"), "an address is not an http(s) URL")
                    })?;
                Ok(Arc::new(PoolNode {
                    chain: chain.to_string(),
                    number,
                    http: if is_loopback(&url) { &near } else { &far }.clone(),
                    headers: headers(access)
                        .ok_or_else(|| Fault::field(setting("header_files"), "not a header"))?,
                    url,
                    timeout,
                    health: NodeHealth::default(),
                    line: CallLine::new(ports.calls_per_node),
                    passed_on: Arc::new(Semaphore::new(MOST_PASSED_ON)),
                    checked: AtomicBool::new(false),
                    checking: Mutex::default(),
                    longest: Arc::clone(&longest),
                    ports: ports.clone(),
                }))
            })
            .collect::<Result<Vec<_>, Fault>>()?;
        Ok(Self {
            chain: chain.to_string(),
            nodes,
            agree: endpoints.agree,
            timeout,
            check: None,
            preferred: AtomicUsize::new(0),
            longest,
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
        self.check = Some(Arc::new(ChainCheck {
            call,
            read: Box::new(read),
        }));
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

    /// How many nodes have to give the same answer where money depends on it; within [`witnessed`] as many as have to
    /// say what ends something for good.
    pub fn agree(&self) -> usize {
        match is_witnessed() {
            true => self.witnesses_needed(),
            false => self.agree,
        }
    }

    /// How many nodes have to say what ends something for good: two at least, wherever there are two. One that lies must
    /// not have something paid twice, or never.
    pub fn witnesses_needed(&self) -> usize {
        self.agree.max(self.nodes.len().min(MIN_WITNESSES))
    }

    /// Whether all nodes are on this machine.
    pub fn is_local(&self) -> bool {
        self.nodes.iter().all(|node| is_loopback(&node.url))
    }

    /// Bytes of the longest answer since this was last asked.
    pub fn take_longest(&self) -> usize {
        self.longest.swap(0, Ordering::Relaxed)
    }

    /// How the nodes are doing.
    pub fn health(&self) -> Vec<EndpointHealth> {
        let nodes = self.nodes.iter();
        nodes
            .map(|node| node.health.view(&node.chain, node.number))
            .collect()
    }

    /// The answer of the first node that has one; when none has, all are asked once more.
    ///
    /// # Errors
    /// [`PoolError`].
    pub async fn query<T: Send>(
        &self,
        call: &NodeRequest,
        read: impl Fn(&NodeResponse) -> ParsedResponse<T> + Sync,
    ) -> Result<T, PoolError> {
        let said = Said::new(self.nodes.len());
        let keep = |node, response: &NodeResponse| said.keep(node, read(response));
        let node = self.first_of(call, &keep).await?;
        said.take(node).ok_or_else(|| self.unknown(UNREAD))
    }

    /// The answer of the node that is doing best, for questions that nothing hangs on: a node that
    /// is slow with them, or does not know them, is none the worse for others.
    ///
    /// # Errors
    /// Why it gave none.
    pub async fn query_best_effort<T: Send>(
        &self,
        call: &NodeRequest,
        read: impl Fn(&NodeResponse) -> ParsedResponse<T> + Sync,
    ) -> Result<T, String> {
        let best = self.order(call.is_costly).into_iter().next();
        let best = best.ok_or("no such node")?;
        self.query_quietly(best, call, &read).await
    }

    /// As [`NodePool::query_best_effort`], of as many nodes as have to agree: what each of them says.
    pub async fn query_several_best_effort<T: Send>(
        &self,
        call: &NodeRequest,
        read: impl Fn(&NodeResponse) -> ParsedResponse<T> + Sync,
    ) -> Vec<Result<T, String>> {
        let order = self.order(call.is_costly).into_iter().take(self.agree());
        join_all(order.map(|index| self.query_quietly(index, call, &read))).await
    }

    /// The answer of one node, which is none the worse for it.
    async fn query_quietly<T: Send>(
        &self,
        index: usize,
        call: &NodeRequest,
        read: impl Fn(&NodeResponse) -> ParsedResponse<T> + Sync,
    ) -> Result<T, String> {
        let mut said = None;
        let mut keep = keeping(&read, &mut said);
        self.put_quietly(index, call, &mut keep).await?;
        drop(keep);
        said.ok_or_else(|| UNREAD.into())
    }

    /// The answer of one node, counted from 0: for what each of them has to do.
    ///
    /// # Errors
    /// Why it gave none; never [`PoolError::WrongChain`].
    pub async fn at<T: Send>(
        &self,
        index: usize,
        call: &NodeRequest,
        read: impl Fn(&NodeResponse) -> ParsedResponse<T> + Sync,
    ) -> Result<T, PoolError> {
        let answer = self.ask(index, call, read).await;
        answer.map_err(|failure| match failure {
            NodeFailure::TooLong => PoolError::TooLong(failure.reason().to_owned()),
            failure => PoolError::Unknown(failure.reason().to_owned()),
        })
    }

    /// The answer that as many nodes give as configuration wants to agree. Those that are asked
    /// first need not be outvoted: when they do not agree, all are asked, and an answer counts
    /// that has enough voices while no other has.
    ///
    /// # Errors
    /// [`PoolError`]; also when the nodes do not agree.
    pub async fn query_quorum<T: Send>(
        &self,
        what: &str,
        call: &NodeRequest,
        read: impl Fn(&NodeResponse) -> ParsedResponse<T> + Sync,
        same: impl Fn(&T, &T) -> bool + Sync,
    ) -> Result<T, PoolError> {
        let said = Said::new(self.nodes.len());
        let keep = |node, response: &NodeResponse| said.keep(node, read(response));
        let agree = |one, other| said.agree(one, other, &same);
        let node = self.quorum_of(what, call, &keep, &agree).await?;
        said.take(node).ok_or_else(|| self.unknown(UNREAD))
    }

    /// What nodes say, of as many of this chain as have to agree, with their numbers from 0: of all of them where those
    /// that are asked first do not say the same. With `agree` of 1 it is the answer of [`NodePool::first`].
    ///
    /// # Errors
    /// [`PoolError`]; also when fewer answered than have to agree.
    pub async fn gather<T: Send>(
        &self,
        call: &NodeRequest,
        read: impl Fn(&NodeResponse) -> ParsedResponse<T> + Sync,
        same: impl Fn(&T, &T) -> bool + Sync,
    ) -> Result<Vec<(usize, T)>, PoolError> {
        let said = Said::new(self.nodes.len());
        let keep = |node, response: &NodeResponse| said.keep(node, read(response));
        let agree = |one, other| said.agree(one, other, &same);
        let nodes = self.gather_of(call, &keep, &agree).await?;
        let taken = nodes.into_iter().map(|node| Some((node, said.take(node)?)));
        let taken: Option<Vec<_>> = taken.collect();
        taken.ok_or_else(|| self.unknown(UNREAD))
    }

    /// Asks every node, one after the other, until `found` is true of what one says; `Err` is a
    /// node that does not know.
    ///
    /// # Errors
    /// When it was true of none and some node of this chain did not answer, or fewer did than have to agree.
    pub async fn any<T: Send>(
        &self,
        call: &NodeRequest,
        read: impl Fn(&NodeResponse) -> ParsedResponse<T> + Sync,
        found: impl Fn(&T) -> Result<bool, String>,
    ) -> Result<bool, String> {
        let mut trouble = None;
        let mut answers = 0_usize;
        for index in self.order(call.is_costly) {
            match self.ask(index, call, &read).await {
                Ok(said) => match found(&said) {
                    Ok(true) => return Ok(true),
                    Ok(false) => answers = answers.saturating_add(1),
                    Err(reason) => trouble = Some(reason),
                },
                // It can know nothing about this chain.
                Err(NodeFailure::WrongChain(_)) => {}
                Err(failure) => trouble = Some(failure.reason().to_owned()),
            }
        }
        match trouble {
            None if answers >= self.agree() => Ok(false),
            None if answers == 0 => Err("no node could be reached".into()),
            None => Err(format!(
                "{answers} of the {} nodes that have to agree answered; the others are on another chain",
                self.agree()
            )),
            Some(trouble) => Err(trouble),
        }
    }

    fn unknown(&self, reason: &str) -> PoolError {
        PoolError::Unknown(format!("{}: {reason}", self.chain))
    }

    /// As [`NodePool::unknown`], where the last node that failed says why.
    fn failed(&self, last: Option<&NodeFailure>, reason: &str) -> PoolError {
        match last {
            Some(NodeFailure::TooLong) => PoolError::TooLong(format!("{}: {reason}", self.chain)),
            _ => self.unknown(reason),
        }
    }

    /// Random bytes, for what is to be different each time.
    pub fn random<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.ports.entropy.fill(&mut bytes);
        bytes
    }

    fn dice(&self) -> u8 {
        dice(&*self.ports.entropy)
    }

    /// Every node: first those that are well, from the one that answered last, those with room for such a call before
    /// others and of these the ones with the shorter line; then the rest, from the one that has been left alone for longest.
    fn order(&self, is_costly: bool) -> Vec<usize> {
        let now = self.ports.clock.now_ms();
        let (count, start) = (self.nodes.len(), self.preferred.load(Ordering::Relaxed));
        let mut order: Vec<usize> = (0..count).map(|offset| (start + offset) % count).collect();
        order.sort_by_cached_key(|index| {
            let node = self.nodes.get(*index);
            node.map(|node| (node.health.cool_until_ms(now), node.line.crowd(is_costly)))
        });
        order
    }

    /// How long a call waits for its turn at a node where so many others can be asked instead. Without others, a
    /// request waits as long as it has time; what nothing hangs on does not.
    fn patience(&self, others: usize) -> Option<Duration> {
        (others > 0 || !is_of_request()).then_some(self.timeout)
    }

    /// Asks one node that is to answer, as [`NodePool::ask_within`].
    async fn ask<T: Send>(
        &self,
        index: usize,
        call: &NodeRequest,
        read: impl Fn(&NodeResponse) -> ParsedResponse<T> + Sync,
    ) -> Result<T, NodeFailure> {
        let patience = self.patience(0);
        self.ask_within(index, patience, call, read).await
    }

    /// Asks one node, once it is known to be on the right chain, and notes how it does.
    async fn ask_within<T: Send>(
        &self,
        index: usize,
        patience: Option<Duration>,
        call: &NodeRequest,
        read: impl Fn(&NodeResponse) -> ParsedResponse<T> + Sync,
    ) -> Result<T, NodeFailure> {
        let mut said = None;
        let mut keep = keeping(&read, &mut said);
        self.put(index, patience, call, &mut keep).await?;
        drop(keep);
        said.ok_or_else(|| NodeFailure::Lost(UNREAD.into()))
    }

    /// As [`NodePool::ask_within`], of any type: made once, and not again for every question that there is.
    async fn put(
        &self,
        index: usize,
        patience: Option<Duration>,
        call: &NodeRequest,
        read: &mut AnswerReader<'_>,
    ) -> Result<(), NodeFailure> {
        let node = self.nodes.get(index);
        let node = node.ok_or_else(|| NodeFailure::NotAsked("no such node".into()))?;
        if let Err(failed) = node.on_this_chain(self.check.as_ref()).await {
            if !failed.noted.swap(true, Ordering::Relaxed) {
                node.note(Some(&failed.failure));
            }
            // For each who waited for the check.
            if let Some(load) = failed.load {
                load::note(load);
            }
            // What is to be asked of it was not asked yet.
            return Err(match failed.failure {
                NodeFailure::Lost(reason) | NodeFailure::Silent(reason) => {
                    NodeFailure::Idle(reason)
                }
                NodeFailure::TooLong => NodeFailure::Idle(TOO_LONG.into()),
                failure => failure,
            });
        }
        let outcome = match node.exchange(patience, call, read).await {
            Ok(ParsedResponse::Value(())) => Ok(()),
            Ok(ParsedResponse::Busy(reason) | ParsedResponse::TooMuch(reason)) => {
                Err(NodeFailure::Idle(reason))
            }
            Ok(ParsedResponse::Malformed(reason)) => Err(NodeFailure::Lost(reason)),
            Err(failure) => Err(failure),
        };
        if outcome.as_ref().is_err_and(NodeFailure::is_silence) {
            load::note(NodeLoad::Silent);
        }
        node.note(outcome.as_ref().err());
        outcome
    }

    /// As [`NodePool::put`], for what a node is none the worse for.
    async fn put_quietly(
        &self,
        index: usize,
        call: &NodeRequest,
        read: &mut AnswerReader<'_>,
    ) -> Result<(), String> {
        let node = self.nodes.get(index).ok_or("no such node")?;
        if node.health.is_silent() {
            return Err("the node does not answer".into());
        }
        let response = async {
            let checked = node.on_this_chain(self.check.as_ref()).await;
            checked.map_err(|failed| failed.failure)?;
            node.exchange(self.patience(0), call, read).await
        };
        match response.await {
            Ok(ParsedResponse::Value(())) => Ok(()),
            Ok(
                ParsedResponse::Busy(reason)
                | ParsedResponse::TooMuch(reason)
                | ParsedResponse::Malformed(reason),
            ) => Err(reason),
            Err(failure) => Err(failure.reason().to_owned()),
        }
    }
}

fn dice(entropy: &dyn Entropy) -> u8 {
    let mut dice = [0; 1];
    entropy.fill(&mut dice);
    let [dice] = dice;
    dice
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

#[cfg(test)]
#[allow(non_snake_case)]
mod long_answers;
