//! One node of a chain: its calls, whether it is on the right chain, and how it is doing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared, WeakShared},
};
use parking_lot::Mutex;
use reqwest::{
    Url,
    header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue},
};
use secrecy::ExposeSecret as _;
use tokio::sync::Semaphore;

use super::{ChainCheck, PoolPorts, STUFFED, TOO_LONG, TOO_MUCH, UNREAD, WAITED, dice};
use crate::chain_rpc::{
    answers::{self, AnswerBody},
    endpoints::NodeAuth,
    exchange::{NodeRequest, NodeRequestBody, NodeResponse, ParsedResponse},
    health::NodeHealth,
    line::{CallLine, CallPermit, CallsOf},
    load::{self, NodeLoad, load_of_nodes},
};

pub(super) struct PoolNode {
    pub(super) chain: String,
    /// From 1.
    pub(super) number: usize,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) http: reqwest::Client,
    pub(super) timeout: Duration,
    pub(super) health: NodeHealth,
    pub(super) line: CallLine,
    /// Room for what other nodes have taken before it.
    pub(super) passed_on: Arc<Semaphore>,
    /// It has said that it is on the right chain.
    pub(super) checked: AtomicBool,
    /// The call that asks it now.
    pub(super) checking: Mutex<Option<WeakShared<RunningCheck>>>,
    /// Bytes of the longest answer of late, of all nodes of the chain.
    pub(super) longest: Arc<AtomicUsize>,
    pub(super) ports: PoolPorts,
}

pub(super) type RunningCheck = BoxFuture<'static, Result<(), FailedCheck>>;

/// What a check came to for all who waited for it.
#[derive(Clone)]
pub(super) struct FailedCheck {
    pub(super) failure: NodeFailure,
    /// What the node has shown of how much it has to do.
    pub(super) load: Option<NodeLoad>,
    /// One of them has noted it.
    pub(super) noted: Arc<AtomicBool>,
}

/// Why one node gave no answer.
#[derive(Clone)]
pub(super) enum NodeFailure {
    /// It was not asked.
    NotAsked(String),
    /// It was not asked: there was no place for so long that others are to be asked first.
    Crowded(String),
    /// It did not take the request.
    Idle(String),
    /// It may have.
    Lost(String),
    /// It may have, and its answer is longer than any that is read.
    TooLong,
    /// It may have, and said nothing at all.
    Silent(String),
    /// It did not: no connection to it came about.
    Unreached(String),
    /// It may have, and is not done in time with what takes long. That says nothing of the node.
    Slow(String),
    /// It is on another chain.
    WrongChain(String),
}

impl NodeFailure {
    pub(super) fn reason(&self) -> &str {
        match self {
            Self::NotAsked(reason)
            | Self::Crowded(reason)
            | Self::Idle(reason)
            | Self::Lost(reason)
            | Self::Silent(reason)
            | Self::Unreached(reason)
            | Self::Slow(reason)
            | Self::WrongChain(reason) => reason,
            Self::TooLong => TOO_LONG,
        }
    }

    /// It may only have had too much to do.
    pub(super) fn is_silence(&self) -> bool {
        matches!(
            self,
            Self::NotAsked(_) | Self::Crowded(_) | Self::Silent(_) | Self::Slow(_)
        )
    }

    pub(super) fn may_have_taken_it(&self) -> bool {
        matches!(
            self,
            Self::Lost(_) | Self::TooLong | Self::Silent(_) | Self::Slow(_)
        )
    }

    /// Whether the request may have got to it: one that says that it did not take it may have kept it.
    pub(super) fn may_have_got_it(&self) -> bool {
        self.may_have_taken_it() || matches!(self, Self::Idle(_))
    }
}

impl PoolNode {
    /// Whether it is on the right chain: money must not be sent to another one. Who asks while it is being
    /// asked waits for that answer.
    pub(super) async fn on_this_chain(
        self: &Arc<Self>,
        check: Option<&Arc<ChainCheck>>,
    ) -> Result<(), FailedCheck> {
        let Some(check) = check else {
            return Ok(());
        };
        if self.checked.load(Ordering::Relaxed) {
            return Ok(());
        }
        let running = {
            let mut checking = self.checking.lock();
            let running = checking.as_ref().and_then(WeakShared::upgrade);
            match running.filter(|running| running.peek().is_none()) {
                Some(running) => running,
                None => {
                    let running = Self::check(Arc::clone(self), Arc::clone(check));
                    let running: Shared<RunningCheck> = running.boxed().shared();
                    // Weak: a call that nobody waits for is dropped.
                    *checking = running.downgrade();
                    running
                }
            }
        };
        running.await
    }

    async fn check(self: Arc<Self>, check: Arc<ChainCheck>) -> Result<(), FailedCheck> {
        let mut said = None;
        let mut keep = keeping(&check.read, &mut said);
        let asking = self.exchange(None, &check.call, &mut keep);
        let (answer, load) = load_of_nodes(asking).await;
        drop(keep);
        let outcome = answer.and_then(|answer| match answer {
            ParsedResponse::Value(()) => match said {
                Some(Err(reason)) => Err(NodeFailure::WrongChain(reason)),
                Some(Ok(())) => Ok(()),
                None => Err(NodeFailure::Lost(UNREAD.into())),
            },
            ParsedResponse::Busy(reason)
            | ParsedResponse::TooMuch(reason)
            | ParsedResponse::Malformed(reason) => Err(NodeFailure::Idle(reason)),
        });
        if outcome.is_ok() {
            self.checked.store(true, Ordering::Relaxed);
        }
        outcome.map_err(|failure| FailedCheck {
            load: load.or(failure.is_silence().then_some(NodeLoad::Silent)),
            failure,
            noted: Arc::default(),
        })
    }

    /// How a call ended.
    pub(super) fn note(&self, failure: Option<&NodeFailure>) {
        let Self { chain, number, .. } = self;
        let Some(failure) = failure else {
            let failures = self.health.answered();
            if failures > 0 {
                tracing::info!(chain, node = number, failures, "a node answers again");
            }
            return;
        };
        if matches!(
            failure,
            NodeFailure::NotAsked(_) | NodeFailure::Crowded(_) | NodeFailure::Slow(_)
        ) {
            return;
        }
        let silent = matches!(failure, NodeFailure::Silent(_) | NodeFailure::Unreached(_));
        let now = self.ports.clock.now_ms();
        let random = dice(&*self.ports.entropy);
        let failures = self.health.failed(now, random, silent);
        // Not once per request as long as it is away.
        if failures.is_power_of_two() {
            let reason = failure.reason();
            tracing::warn!(
                chain,
                node = number,
                failures,
                reason,
                "a node gave no answer"
            );
        }
    }

    /// One call, once there is a place for it: within so long, or however long that takes.
    pub(super) async fn exchange(
        &self,
        patience: Option<Duration>,
        call: &NodeRequest,
        read: &mut AnswerReader<'_>,
    ) -> Result<ParsedResponse<()>, NodeFailure> {
        let silent =
            || NodeFailure::NotAsked("the node does not answer; Covault is testing it".to_owned());
        if self.health.is_tried() {
            return Err(silent());
        }
        let now_ms = self.ports.clock.now_ms();
        let place = self.line.enter(CallsOf::present(), now_ms, call.is_costly);
        let permit = match patience {
            None => place.await,
            Some(patience) => tokio::time::timeout(patience, place)
                .await
                .map_err(|_| NodeFailure::Crowded("the node is overloaded".into()))?,
        };
        let turn = self.health.enter().ok_or_else(silent)?;
        // A trial is one call that others would wait for.
        let within = call.within.map(|time| match turn.is_trial() {
            true => time.min(self.timeout),
            false => time,
        });
        let mut permit = Some(permit);
        let answer = self.send(call, within, &mut permit).await;
        let answer = answer.map(|(answer, _held)| {
            let is_too_much = TOO_MUCH.contains(&answer.status);
            let bytes = answer.body.len();
            (is_too_much, answers::read_aside(bytes, || read(&answer)))
        });
        let was_taken = matches!(
            &answer,
            Ok((
                false,
                ParsedResponse::Value(_) | ParsedResponse::Malformed(_)
            ))
        );
        if matches!(
            &answer,
            Ok((true, ParsedResponse::Malformed(_) | ParsedResponse::Busy(_)))
                | Ok((_, ParsedResponse::TooMuch(_)))
        ) {
            load::note(NodeLoad::TooMuch);
        }
        // Where it has waited for long answers of others, its time says nothing of the node.
        if let Some(mut permit) = permit {
            permit.ended(was_taken, within.unwrap_or(self.timeout));
        }
        answer.map(|(_, said)| said)
    }

    async fn send(
        &self,
        call: &NodeRequest,
        within: Option<Duration>,
        permit: &mut Option<CallPermit>,
    ) -> Result<(NodeResponse, AnswerBody), NodeFailure> {
        // Without the URL, which may hold an access key.
        let silent = |error: reqwest::Error| {
            let (is_connecting, is_late) = (error.is_connect(), error.is_timeout());
            let reason = describe(&error.without_url());
            match call.is_costly && is_late {
                _ if is_connecting => NodeFailure::Unreached(reason),
                true => NodeFailure::Slow(reason),
                false => NodeFailure::Silent(reason),
            }
        };
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
        let request = match within {
            Some(time) => request.timeout(time),
            None => request,
        };
        let mut response = request.send().await.map_err(silent)?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let mut body = AnswerBody::default();
        loop {
            let chunk = match response.chunk().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break,
                Err(error) if error.is_timeout() && body.has_waited() => {
                    return Err(NodeFailure::NotAsked(WAITED.into()));
                }
                Err(error) => return Err(silent(error)),
            };
            if body.len() + chunk.len() > call.max_answer {
                return Err(NodeFailure::TooLong);
            }
            // What requests wait for does not wait for blocks.
            if call.is_of_blocks() && !body.has_room(chunk.len()) {
                // Nor are calls of requests kept from the node in the meantime.
                permit.take();
                body.make_room(chunk.len()).await;
            }
            body.add(&chunk);
        }
        self.longest.fetch_max(body.len(), Ordering::Relaxed);
        let bytes = body.take();
        if call.is_of_blocks() && answers::is_stuffed(&bytes) {
            return Err(NodeFailure::Lost(STUFFED.into()));
        }
        let response = NodeResponse {
            status,
            headers,
            body: bytes,
        };
        Ok((response, body))
    }
}

/// Reads a node's answer, and keeps what it says for who asked.
pub(super) type AnswerReader<'a> = dyn FnMut(&NodeResponse) -> ParsedResponse<()> + Send + 'a;

/// What `read` finds goes into `said`.
pub(super) fn keeping<T: Send>(
    read: &(impl Fn(&NodeResponse) -> ParsedResponse<T> + Sync + ?Sized),
    said: &mut Option<T>,
) -> impl FnMut(&NodeResponse) -> ParsedResponse<()> + Send {
    move |response| {
        read(response).and_then(|value| {
            *said = Some(value);
            ParsedResponse::Value(())
        })
    }
}

/// What a node wants to be shown, in a form that no log prints.
pub(super) fn headers(access: &NodeAuth) -> Option<HeaderMap> {
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
