//! Unary gRPC calls as gRPC-Web: a POST whose answer holds the trailers in its body, so that they
//! go through the same pool as all others, over HTTP/1.1 too. A status that is about the request
//! is an answer.

use std::{borrow::Cow, marker::PhantomData, time::Duration};

use prost::Message;
use reqwest::header::HeaderMap;

use super::{
    client::{ChainCall, Protocol, Refusal},
    exchange::{
        NOT_ABOUT_THE_REQUEST, NodeRequest, NodeRequestBody, NodeResponse, ParsedResponse, short,
    },
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
    is_costly: bool,
    types: PhantomData<fn(Q) -> A>,
}

impl<Q, A> GrpcMethod<Q, A> {
    /// `/package.Service/GrpcMethod`.
    pub const fn new(path: &'static str) -> Self {
        Self {
            path,
            internal_is_answer: false,
            is_costly: false,
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

    /// As [`NodeRequest::costly`].
    #[must_use]
    pub const fn costly(self) -> Self {
        Self {
            is_costly: true,
            ..self
        }
    }

    /// A call of it.
    pub fn call(&self, request: Q) -> GrpcCall<Q, A> {
        GrpcCall {
            path: self.path,
            internal_is_answer: self.internal_is_answer,
            is_costly: self.is_costly,
            request,
            within: None,
            answer: PhantomData,
        }
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

impl Refusal for GrpcStatus {
    fn words(&self) -> String {
        match self.message.as_str() {
            "" => format!("the node said {:?}", self.code),
            message => format!("the node said: {}", short(message)),
        }
    }

    fn agrees_with(&self, other: &Self) -> bool {
        self.code == other.code
    }

    fn is_absence(&self) -> bool {
        self.code == GrpcCode::NotFound
    }
}

/// gRPC-Web.
pub struct GrpcWeb;

impl Protocol for GrpcWeb {
    type Refusal = GrpcStatus;
}

/// A call of a method.
pub struct GrpcCall<Q, A> {
    path: &'static str,
    internal_is_answer: bool,
    is_costly: bool,
    request: Q,
    within: Option<Duration>,
    answer: PhantomData<fn() -> A>,
}

impl<Q, A> GrpcCall<Q, A> {
    /// Gives it more time, or less, than others.
    #[must_use]
    pub fn within(mut self, time: Duration) -> Self {
        self.within = Some(time);
        self
    }
}

impl<Q: Message, A: Message + Default> ChainCall<GrpcWeb> for GrpcCall<Q, A> {
    type Answer = A;

    /// The method's own name.
    fn subject(&self) -> &'static str {
        self.path.rsplit('/').next().unwrap_or(self.path)
    }

    fn request(&self, _: &GrpcWeb) -> NodeRequest {
        let body = frame(0, &self.request.encode_to_vec());
        let request = NodeRequest::post(self.path, NodeRequestBody::Bytes(CONTENT_TYPE, body));
        let request = match self.is_costly {
            true => request.costly(),
            false => request,
        };
        match self.within {
            Some(time) => request.within(time),
            None => request,
        }
    }

    fn read(&self, _: &GrpcWeb, response: &NodeResponse) -> ParsedResponse<Result<A, GrpcStatus>> {
        read(response, self.internal_is_answer)
    }
}

fn frame(flags: u8, bytes: &[u8]) -> Vec<u8> {
    // What does not fit is far beyond what a node reads.
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&[flags], length.to_be_bytes().as_slice(), bytes].concat()
}

/// Where there is no message, servers put the status into the headers. As the frame that it would
/// be in the body.
fn trailers_of(headers: &HeaderMap) -> Option<Vec<u8>> {
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
) -> ParsedResponse<Result<A, GrpcStatus>> {
    let no_grpc = || format!("the node answered HTTP {} without gRPC-Web", answer.status);
    if NOT_ABOUT_THE_REQUEST.contains(&answer.status) {
        return ParsedResponse::Busy(no_grpc());
    }
    let in_headers = || trailers_of(&answer.headers).unwrap_or_default();
    let body = match answer.body.as_slice() {
        [] => Cow::from(in_headers()),
        body => Cow::from(body),
    };
    let frames = answer.is_success().then(|| GrpcWebFrames::read(&body));
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
        8 => ParsedResponse::TooMuch(trouble()),
        // No permission, not offered, no key: it did nothing.
        7 | 12 | 16 => ParsedResponse::Busy(trouble()),
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
            ..NodeResponse::default()
        }
    }

    fn said(answer: &NodeResponse) -> Result<Result<u64, GrpcStatus>, (bool, String)> {
        match read::<Number>(answer, false) {
            ParsedResponse::Value(said) => Ok(said.map(|number| number.value)),
            ParsedResponse::Busy(reason) | ParsedResponse::TooMuch(reason) => Err((true, reason)),
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
            let _ = said(&NodeResponse { status, body, ..NodeResponse::default() });
            let trailers = format!("grpc-status:3\r\ngrpc-message:{words}\r\n");
            let _ = said(&answer(status, &[(TRAILERS, trailers.as_bytes())]));
        }
    }

    #[test]
    fn read__should_take_the_status_from_the_headers_where_there_is_no_message() {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-status", "5".parse().unwrap());
        headers.insert("grpc-message", "Object%20x not found".parse().unwrap());
        let answer = NodeResponse {
            status: 200,
            headers,
            body: Vec::new(),
        };
        let status = GrpcStatus {
            code: GrpcCode::NotFound,
            message: "Object x not found".into(),
        };
        assert_eq!(said(&answer), Ok(Err(status)));
    }
}
