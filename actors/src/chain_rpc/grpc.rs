//! Unary gRPC calls to several nodes of one chain, as gRPC-Web: a POST whose answer holds the
//! trailers in its body, so that they go through the same pool as all others, over HTTP/1.1 too.
//! A status that is about the request is an answer.

use std::marker::PhantomData;

use prost::Message;
use reqwest::header::HeaderMap;

use super::{
    ChainError,
    health::EndpointHealth,
    jsonrpc::short,
    pool::{NodePool, NodeRequest, NodeRequestBody, NodeResponse, ParsedResponse},
    rest::NOT_ABOUT_THE_REQUEST,
};

/// The content type of requests and answers.
pub(super) const CONTENT_TYPE: &str = "application/grpc-web+proto";
/// A frame begins with its flags and its length, four bytes with the highest first.
const FRAME_HEAD: usize = 5;
/// The flag of the frame that holds the trailers.
const TRAILERS: u8 = 0x80;

/// A unary method: what it takes, and what it gives.
pub struct GrpcMethod<Q, A> {
    path: &'static str,
    internal_is_answer: bool,
    types: PhantomData<fn(Q) -> A>,
}

impl<Q, A> GrpcMethod<Q, A> {
    /// `/package.Service/GrpcMethod`.
    pub const fn new(path: &'static str) -> Self {
        Self {
            path,
            internal_is_answer: false,
            types: PhantomData,
        }
    }

    /// The node says INTERNAL of requests that are wrong: it is not the node that is in trouble.
    #[must_use]
    pub const fn explaining(self) -> Self {
        Self {
            internal_is_answer: true,
            ..self
        }
    }

    /// The method's own name.
    fn name(&self) -> &'static str {
        self.path.rsplit('/').next().unwrap_or(self.path)
    }
}

/// Codes of statuses, as far as they say something about the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrpcCode {
    /// The request can never be.
    InvalidArgument,
    /// There is no such thing.
    NotFound,
    /// The state of things does not allow it.
    FailedPrecondition,
    /// Something else came in between.
    Aborted,
    /// The node found something that it takes for its own error.
    Internal,
    /// Any other.
    Other,
}

/// A status that is no success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcStatus {
    /// What kind of.
    pub code: GrpcCode,
    /// The node's words; they may be empty.
    pub message: String,
}

/// What a node says.
pub type GrpcWebResult<A> = Result<A, GrpcStatus>;

/// A client of one chain's nodes.
pub struct GrpcWebClient {
    pool: NodePool,
}

impl GrpcWebClient {
    /// A client.
    pub fn new(pool: NodePool) -> Self {
        Self { pool }
    }

    /// Uses only nodes of which `wrong` finds nothing, once each, in what they answer; else it
    /// says on which chain the node is. `Err` when the answer makes no sense.
    #[must_use]
    pub fn checked<Q: Message, A: Message + Default + 'static>(
        mut self,
        method: &GrpcMethod<Q, A>,
        request: &Q,
        wrong: impl Fn(&A) -> Result<Option<String>, &'static str> + Send + Sync + 'static,
    ) -> Self {
        self.pool = self.pool.checked(call(method, request), move |answer| {
            match read::<A>(answer, false) {
                ParsedResponse::Value(Ok(said)) => match wrong(&said) {
                    Ok(None) => ParsedResponse::Value(Ok(())),
                    Ok(Some(reason)) => ParsedResponse::Value(Err(reason)),
                    Err(reason) => ParsedResponse::Malformed(reason.into()),
                },
                ParsedResponse::Value(Err(status)) => ParsedResponse::Malformed(status.words()),
                ParsedResponse::Busy(reason) => ParsedResponse::Busy(reason),
                ParsedResponse::Malformed(reason) => ParsedResponse::Malformed(reason),
            }
        });
        self
    }

    /// How the nodes are doing.
    pub fn health(&self) -> Vec<EndpointHealth> {
        self.pool.health()
    }

    /// Random bytes.
    pub fn random<const N: usize>(&self) -> [u8; N] {
        self.pool.random()
    }

    /// Asks: the node that answered last first, then the others.
    ///
    /// # Errors
    /// [`ChainError`] when no node answered.
    pub async fn ask<Q: Message, A: Message + Default>(
        &self,
        method: &GrpcMethod<Q, A>,
        request: &Q,
    ) -> Result<GrpcWebResult<A>, ChainError> {
        let read = |answer: &NodeResponse| read(answer, method.internal_is_answer);
        Ok(self.pool.first(&call(method, request), read).await?)
    }

    /// Asks as many nodes as configuration wants to agree: money depends on the answer. Of each
    /// only what `take` takes out of it is compared; `None` when the answer makes no sense.
    ///
    /// # Errors
    /// [`ChainError`] when too few nodes answered, or do not agree.
    pub async fn query_quorum<Q: Message, A: Message + Default, T>(
        &self,
        method: &GrpcMethod<Q, A>,
        request: &Q,
        take: impl Fn(A) -> Option<T>,
        same: impl Fn(&T, &T) -> bool,
    ) -> Result<GrpcWebResult<T>, ChainError> {
        let what = method.name();
        let read = |answer: &NodeResponse| match read::<A>(answer, method.internal_is_answer) {
            ParsedResponse::Value(Ok(said)) => match take(said) {
                Some(taken) => ParsedResponse::Value(Ok(taken)),
                None => {
                    ParsedResponse::Malformed(format!("the node's answer to {what} makes no sense"))
                }
            },
            ParsedResponse::Value(Err(status)) => ParsedResponse::Value(Err(status)),
            ParsedResponse::Busy(reason) => ParsedResponse::Busy(reason),
            ParsedResponse::Malformed(reason) => ParsedResponse::Malformed(reason),
        };
        let same = |one: &GrpcWebResult<T>, other: &GrpcWebResult<T>| match (one, other) {
            (Ok(one), Ok(other)) => same(one, other),
            (Err(one), Err(other)) => one.code == other.code,
            _ => false,
        };
        let call = call(method, request);
        Ok(self.pool.query_quorum(what, &call, read, same).await?)
    }

    /// As [`NodePool::query_best_effort`]; `None` when the node gave no answer, or said that it cannot.
    pub async fn query_best_effort<Q: Message, A: Message + Default>(
        &self,
        method: &GrpcMethod<Q, A>,
        request: &Q,
    ) -> Option<A> {
        let read = |answer: &NodeResponse| read(answer, method.internal_is_answer);
        let said: GrpcWebResult<A> = self
            .pool
            .query_best_effort(&call(method, request), read)
            .await
            .ok()?;
        said.ok()
    }

    /// Sends: as [`GrpcWebClient::ask`], in one round and with more time; also says whether a node may have
    /// done it and its answer was lost.
    pub async fn send<Q: Message, A: Message + Default>(
        &self,
        method: &GrpcMethod<Q, A>,
        request: &Q,
        within: std::time::Duration,
    ) -> (Result<GrpcWebResult<A>, ChainError>, bool) {
        let read = |answer: &NodeResponse| read(answer, method.internal_is_answer);
        let call = call(method, request).within(within);
        let (said, doubt) = self.pool.query_once(&call, read).await;
        (said.map_err(ChainError::from), doubt)
    }

    /// Asks every node until `found` is true of what one says; `Err` is a node that does not know.
    ///
    /// # Errors
    /// When it was true of none and some node did not answer.
    pub async fn any<Q: Message, A: Message + Default>(
        &self,
        method: &GrpcMethod<Q, A>,
        request: &Q,
        found: impl Fn(&GrpcWebResult<A>) -> Result<bool, String>,
    ) -> Result<bool, String> {
        let read = |answer: &NodeResponse| read(answer, method.internal_is_answer);
        self.pool.any(&call(method, request), read, found).await
    }
}

impl GrpcStatus {
    /// As a sentence.
    pub fn words(&self) -> String {
        match self.message.as_str() {
            "" => format!("the node said {:?}", self.code),
            message => format!("the node said: {}", short(message)),
        }
    }
}

fn call<Q: Message, A>(method: &GrpcMethod<Q, A>, request: &Q) -> NodeRequest {
    NodeRequest::post(
        method.path,
        NodeRequestBody::Bytes(CONTENT_TYPE, frame(0, &request.encode_to_vec())),
    )
}

fn frame(flags: u8, bytes: &[u8]) -> Vec<u8> {
    // What does not fit is far beyond what a node reads.
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&[flags], length.to_be_bytes().as_slice(), bytes].concat()
}

/// Where there is no message, servers put the status into the headers. As the frame that it would
/// be in the body.
pub(super) fn trailers_of(headers: &HeaderMap) -> Option<Vec<u8>> {
    headers.get("grpc-status")?;
    let mut text = Vec::new();
    for name in ["grpc-status", "grpc-message"] {
        if let Some(value) = headers.get(name) {
            text.extend_from_slice(name.as_bytes());
            text.extend_from_slice(b": ");
            text.extend_from_slice(value.as_bytes());
            text.extend_from_slice(b"\r\n");
        }
    }
    Some(frame(TRAILERS, &text))
}

fn read<A: Message + Default>(
    answer: &NodeResponse,
    internal_is_answer: bool,
) -> ParsedResponse<GrpcWebResult<A>> {
    let no_grpc = || format!("the node answered HTTP {} without gRPC-Web", answer.status);
    if NOT_ABOUT_THE_REQUEST.contains(&answer.status) {
        return ParsedResponse::Busy(no_grpc());
    }
    let frames = answer
        .is_success()
        .then(|| GrpcWebFrames::read(&answer.body));
    let Some(GrpcWebFrames { message, trailers }) = frames.flatten() else {
        return ParsedResponse::Malformed(no_grpc());
    };
    let (number, words) = trailers;
    let status = |code| {
        ParsedResponse::Value(Err(GrpcStatus {
            code,
            message: words.clone(),
        }))
    };
    let trouble = || format!("the node said: {} (gRPC status {number})", short(&words));
    match number {
        0 => match message.and_then(|message| A::decode(message).ok()) {
            Some(message) => ParsedResponse::Value(Ok(message)),
            None => ParsedResponse::Malformed("the node's answer cannot be read".into()),
        },
        3 => status(GrpcCode::InvalidArgument),
        5 => status(GrpcCode::NotFound),
        9 => status(GrpcCode::FailedPrecondition),
        10 => status(GrpcCode::Aborted),
        13 if internal_is_answer => status(GrpcCode::Internal),
        // Already exists, out of range.
        6 | 11 => status(GrpcCode::Other),
        // No permission, too much, not offered, no key: it did nothing.
        7 | 8 | 12 | 16 => ParsedResponse::Busy(trouble()),
        _ => ParsedResponse::Malformed(trouble()),
    }
}

/// The body of an answer.
struct GrpcWebFrames<'a> {
    message: Option<&'a [u8]>,
    /// `grpc-status` and `grpc-message`.
    trailers: (u32, String),
}

impl<'a> GrpcWebFrames<'a> {
    /// At most one message, and trailers, after which nothing comes.
    fn read(mut body: &'a [u8]) -> Option<Self> {
        let mut message = None;
        loop {
            let (head, rest) = body.split_at_checked(FRAME_HEAD)?;
            let (flags, length) = head.split_first()?;
            let length = u32::from_be_bytes(length.try_into().ok()?);
            let (bytes, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
            match *flags {
                0 if message.is_none() => message = Some(bytes),
                TRAILERS if rest.is_empty() => {
                    return Some(Self {
                        message,
                        trailers: trailers(bytes)?,
                    });
                }
                _ => return None,
            }
            body = rest;
        }
    }
}

fn trailers(bytes: &[u8]) -> Option<(u32, String)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let value = |wanted: &str| {
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        let mut found = lines.filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
        found.next().map(|(_, value)| value.trim())
    };
    let message = value("grpc-message").unwrap_or_default();
    Some((
        value("grpc-status")?.parse().ok()?,
        percent_decoded(message),
    ))
}

/// `grpc-message` is UTF-8 with `%` and two hex digits for what is not printable ASCII.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        let escaped = others
            .split_at_checked(2)
            .filter(|_| *first == b'%')
            .and_then(|(digits, after)| Some((*hex::decode(digits).ok()?.first()?, after)));
        let (byte, after) = escaped.unwrap_or((*first, others));
        bytes.push(byte);
        rest = after;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    /// Any message: one number.
    #[derive(Clone, PartialEq, Message)]
    struct Number {
        #[prost(uint64, tag = "1")]
        value: u64,
    }

    fn answer(status: u16, frames: &[(u8, &[u8])]) -> NodeResponse {
        let frames = frames.iter().map(|(flags, bytes)| frame(*flags, bytes));
        NodeResponse {
            status,
            body: frames.flatten().collect(),
        }
    }

    fn said(answer: &NodeResponse) -> Result<GrpcWebResult<u64>, (bool, String)> {
        match read::<Number>(answer, false) {
            ParsedResponse::Value(said) => Ok(said.map(|number| number.value)),
            ParsedResponse::Busy(reason) => Err((true, reason)),
            ParsedResponse::Malformed(reason) => Err((false, reason)),
        }
    }

    #[test]
    fn read__should_give_the_message_or_the_status() {
        let seven = Number { value: 7 }.encode_to_vec();
        let ok: (u8, &[u8]) = (TRAILERS, b"grpc-status:0\r\n");
        assert_eq!(said(&answer(200, &[(0, &seven), ok])), Ok(Ok(7)));
        // A message of nothing but defaults has no bytes.
        assert_eq!(said(&answer(200, &[(0, &[]), ok])), Ok(Ok(0)));
        for (number, code) in [
            (3, GrpcCode::InvalidArgument),
            (5, GrpcCode::NotFound),
            (9, GrpcCode::FailedPrecondition),
            (10, GrpcCode::Aborted),
            (11, GrpcCode::Other),
        ] {
            let trailers = format!("grpc-status: {number}\r\nGrpc-Message: caf%C3%A9 100%\r\n");
            let status = GrpcStatus {
                code,
                message: "café 100%".into(),
            };
            let answer = answer(200, &[(TRAILERS, trailers.as_bytes())]);
            assert_eq!(said(&answer), Ok(Err(status)));
        }
    }

    #[test]
    fn read__should_tell_a_node_that_did_nothing_from_one_that_may_have() {
        for (number, idle) in [(7, true), (8, true), (12, true), (16, true), (1, false)]
            .into_iter()
            .chain([2, 4, 13, 14, 15, 99].map(|number| (number, false)))
        {
            let trailers = format!("grpc-status:{number}\r\ngrpc-message:not%20now\r\n");
            let (is_idle, reason) =
                said(&answer(200, &[(TRAILERS, trailers.as_bytes())])).unwrap_err();
            assert_eq!(is_idle, idle, "{number}");
            assert!(reason.contains("not now"), "{reason}");
        }
        let trailers: (u8, &[u8]) = (TRAILERS, b"grpc-status:13\r\ngrpc-message:bad input\r\n");
        let internal = read::<Number>(&answer(200, &[trailers]), true);
        assert!(matches!(
            internal,
            ParsedResponse::Value(Err(GrpcStatus {
                code: GrpcCode::Internal,
                ..
            }))
        ));
        for (status, idle) in [(429, true), (401, true), (404, false), (502, false)] {
            let (is_idle, reason) = said(&answer(status, &[])).unwrap_err();
            assert_eq!(is_idle, idle, "{status}");
            assert!(reason.contains(&format!("HTTP {status}")), "{reason}");
        }
    }

    #[test]
    fn read__should_take_no_answer_that_is_cut_or_longer() {
        let seven = Number { value: 7 }.encode_to_vec();
        let whole = answer(200, &[(0, &seven), (TRAILERS, b"grpc-status:0\r\n")]);
        for length in 0..whole.body.len() {
            let mut cut = whole.clone();
            cut.body.truncate(length);
            assert!(said(&cut).is_err(), "{length}");
        }
        let ok: (u8, &[u8]) = (TRAILERS, b"grpc-status:0\r\n");
        for frames in [
            &[(0, seven.as_slice()), (0, &seven), ok][..],
            &[(0, &seven), ok, ok],
            &[(1, &seven), ok],
            &[(0, &[0xff]), ok],
            &[ok],
            &[(0, &seven), (TRAILERS, b"grpc-message:nothing\r\n")],
            &[(0, &seven), (TRAILERS, b"grpc-status:none\r\n")],
        ] {
            assert!(said(&answer(200, frames)).is_err());
        }
    }

    proptest::proptest! {
        #[test]
        fn read__should_never_panic(status in 200u16..600, body: Vec<u8>, words: String) {
            let _ = said(&NodeResponse { status, body });
            let trailers = format!("grpc-status:3\r\ngrpc-message:{words}\r\n");
            let _ = said(&answer(status, &[(TRAILERS, trailers.as_bytes())]));
        }
    }

    #[test]
    fn trailers_of__should_be_the_status_in_the_headers() {
        let mut headers = HeaderMap::new();
        assert_eq!(trailers_of(&headers), None);
        headers.insert("grpc-status", "5".parse().unwrap());
        headers.insert("grpc-message", "Object%20x not found".parse().unwrap());
        let answer = NodeResponse {
            status: 200,
            body: trailers_of(&headers).unwrap(),
        };
        let status = GrpcStatus {
            code: GrpcCode::NotFound,
            message: "Object x not found".into(),
        };
        assert_eq!(said(&answer), Ok(Err(status)));
    }
}
