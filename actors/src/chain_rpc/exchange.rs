//! Requests to a chain's node over HTTP, and its answers.

use std::time::Duration;

use reqwest::{Method, Url, header::HeaderMap};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Most characters of a node's words that are repeated.
const MAX_WORDS: usize = 300;

/// Longest answer that is read.
const MAX_ANSWER: usize = 8 << 20;
/// Longest answer about a block: calldata of a full one is about 12 MB in hex (60 million gas, 10 a byte by EIP-7623),
/// and its logs are some more.
const MAX_BLOCK_ANSWER: usize = 48 << 20;

/// Statuses by which a node says that it is not the request that is wrong: no access, too many
/// requests, not now.
pub const NOT_ABOUT_THE_REQUEST: [u16; 6] = [401, 403, 407, 408, 425, 429];

/// One HTTP request, the same for every node.
#[derive(Clone, Debug)]
pub struct NodeRequest {
    pub(super) method: Method,
    /// Appended to the path of the node's address.
    path: String,
    /// Appended to its query.
    query: Vec<(String, String)>,
    pub(super) body: NodeRequestBody,
    /// How long it may take, where that is not the usual time.
    pub(super) within: Option<Duration>,
    /// What it asks for, for errors.
    pub(super) subject: &'static str,
    /// The node has to run a program for it.
    pub(super) is_costly: bool,
    /// Longest answer that is read, in bytes: a node must not be able to fill the memory.
    pub(super) max_answer: usize,
}

/// What is sent with it.
#[derive(Clone, Debug)]
pub enum NodeRequestBody {
    /// Nothing.
    Nothing,
    /// JSON.
    Json(Value),
    /// Bytes of this content type.
    Bytes(&'static str, Vec<u8>),
}

impl NodeRequest {
    /// A GET below the node's address.
    pub fn get(path: &str, query: &[(&str, &str)]) -> Self {
        Self {
            method: Method::GET,
            path: path.to_owned(),
            query: query
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            body: NodeRequestBody::Nothing,
            within: None,
            subject: "what was asked",
            is_costly: false,
            max_answer: MAX_ANSWER,
        }
    }

    /// A POST below the node's address; an empty path is the address itself.
    pub fn post(path: &str, body: NodeRequestBody) -> Self {
        Self {
            method: Method::POST,
            path: path.to_owned(),
            query: Vec::new(),
            body,
            within: None,
            subject: "what was asked",
            is_costly: false,
            max_answer: MAX_ANSWER,
        }
    }

    /// Names what it asks for, for errors: "a balance".
    #[must_use]
    pub fn about(mut self, subject: &'static str) -> Self {
        self.subject = subject;
        self
    }

    /// The node has to run a program for it, which takes as long as that likes: such calls get a part of the node's places
    /// only, and one that takes too long says nothing of the node.
    #[must_use]
    pub fn costly(mut self) -> Self {
        self.is_costly = true;
        self
    }

    /// Reads an answer of whole blocks, which anyone can fill.
    #[must_use]
    pub fn of_blocks(mut self) -> Self {
        self.max_answer = MAX_BLOCK_ANSWER;
        self
    }

    /// Whether its answer is of whole blocks.
    pub(super) fn is_of_blocks(&self) -> bool {
        self.max_answer > MAX_ANSWER
    }

    /// Gives it more time, or less, than others.
    #[must_use]
    pub fn within(mut self, time: Duration) -> Self {
        self.within = Some(time);
        self
    }

    /// The address of the call below that of the node, whose query may hold a key.
    pub(super) fn url(&self, base: &Url) -> Url {
        let mut url = base.clone();
        if !self.path.is_empty() {
            let path = format!(
                "{}/{}",
                base.path().trim_end_matches('/'),
                self.path.trim_start_matches('/')
            );
            url.set_path(&path);
        }
        if !self.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&self.query);
        }
        url
    }
}

/// What a node answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeResponse {
    /// The HTTP status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Vec<u8>,
}

/// What an answer is worth.
pub enum ParsedResponse<T> {
    /// It says something.
    Value(T),
    /// The node cannot now; another may. It has not done what it was asked for.
    Busy(String),
    /// As [`ParsedResponse::Busy`]: it has too much to do, or its caller asks for too much.
    TooMuch(String),
    /// It cannot be read: another node may say more. Whether this one did what it was asked for is
    /// not known.
    Malformed(String),
}

impl<T> ParsedResponse<T> {
    /// Makes more of what it says.
    pub fn and_then<U>(self, read: impl FnOnce(T) -> ParsedResponse<U>) -> ParsedResponse<U> {
        match self {
            Self::Value(value) => read(value),
            Self::Busy(reason) => ParsedResponse::Busy(reason),
            Self::TooMuch(reason) => ParsedResponse::TooMuch(reason),
            Self::Malformed(reason) => ParsedResponse::Malformed(reason),
        }
    }

    /// What it says; `Malformed` when there is nothing about this subject.
    pub fn required(subject: &str, value: Option<T>) -> Self {
        match value {
            Some(value) => Self::Value(value),
            None => Self::Malformed(format!("the node's answer about {subject} makes no sense")),
        }
    }
}

impl NodeResponse {
    /// Whether the status is one of success.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The body, as JSON of this form.
    pub fn json<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(&self.body).ok()
    }

    /// The body as text, cut to what fits a sentence.
    pub fn words(&self) -> String {
        short(&String::from_utf8_lossy(&self.body))
    }
}

/// A node's words, cut to what fits a sentence.
pub fn short(words: &str) -> String {
    words.chars().take(MAX_WORDS).collect()
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn url__should_keep_the_path_and_the_query_of_the_nodes_address() {
        for (base, call, expected) in [
            (
                "https://node/key/",
                NodeRequest::post("", NodeRequestBody::Nothing),
                "https://node/key/",
            ),
            (
                "https://node/v1",
                NodeRequest::get("/accounts/0x1", &[]),
                "https://node/v1/accounts/0x1",
            ),
            (
                "https://node/?key=a",
                NodeRequest::get("blocks/latest", &[("limit", "1&2")]),
                "https://node/blocks/latest?key=a&limit=1%262",
            ),
        ] {
            assert_eq!(call.url(&Url::parse(base).unwrap()).as_str(), expected);
        }
    }
}
