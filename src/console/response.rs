//! What the console answers with.

use std::fmt;

use askama::Template;
use axum::{
    body::Body,
    http::{HeaderValue, Response, StatusCode, header, request::Parts},
};
use covault_core::fault::{Class, Fault};
use http_body::Body as _;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{ConsoleCall, assets, text::Text, views};
use crate::{
    api::{
        self,
        admission::{AnswerShare, CallRefusal},
    },
    http::error,
};

/// An answer before its headers for safety.
pub struct PageResponse {
    response: Response<Body>,
}

impl PageResponse {
    /// A page.
    pub fn page(page: &impl Template) -> Result<Self, PageError> {
        let html = page.render().map_err(Fault::bug)?;
        Ok(Self::new(StatusCode::OK, "text/html; charset=utf-8", html))
    }

    /// Something for the script.
    pub fn json(body: &Value) -> Self {
        Self::new(StatusCode::OK, "application/json", body.to_string())
    }

    /// The same with another status.
    #[must_use]
    pub fn with_status(mut self, status: StatusCode) -> Self {
        *self.response.status_mut() = status;
        self
    }

    /// Another page.
    pub fn see(path: &'static str) -> Self {
        let answer = Self::new(StatusCode::SEE_OTHER, "text/plain", String::new());
        answer.with_header(header::LOCATION, HeaderValue::from_static(path))
    }

    /// The same, of a path that was made.
    ///
    /// # Errors
    /// When it is none.
    pub fn see_page(path: &str) -> Result<Self, PageError> {
        let place = HeaderValue::from_str(path).map_err(Fault::bug)?;
        let answer = Self::new(StatusCode::SEE_OTHER, "text/plain", String::new());
        Ok(answer.with_header(header::LOCATION, place))
    }

    /// The same with a header.
    #[must_use]
    pub fn with_header(mut self, name: header::HeaderName, value: HeaderValue) -> Self {
        self.response.headers_mut().append(name, value);
        self
    }

    /// Its bytes, as far as they are known: a stream counts for itself.
    pub fn size(&self) -> usize {
        let bytes = self.response.body().size_hint().lower();
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// The same, which counts until it is read.
    #[must_use]
    pub fn with_share(mut self, share: AnswerShare) -> Self {
        self.response.extensions_mut().insert(share);
        self
    }

    /// A stream.
    pub fn stream(response: Response<Body>) -> Self {
        Self { response }
    }

    fn new(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Self {
        let mut response = Response::new(body.into());
        *response.status_mut() = status;
        let kind = HeaderValue::from_static(kind);
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        Self { response }
    }

    /// What is sent.
    pub fn into_response(self) -> Response<Body> {
        self.response
    }
}

/// Style and script. A browser keeps one only under its own version: anyone who serves another file under it, if only another
/// release, has it kept nowhere.
pub fn fixed(path: &[&str], query: Option<&str>) -> Option<PageResponse> {
    let asset = assets::fixed(path)?;
    let answer = PageResponse::new(StatusCode::OK, asset.kind, asset.text);
    let is_named = query.and_then(|query| query.strip_prefix("v=")) == Some(&asset.version);
    let year = HeaderValue::from_static("public, max-age=31536000, immutable");
    Some(match is_named {
        true => answer.with_header(header::CACHE_CONTROL, year),
        false => answer,
    })
}

/// Why something is not answered.
pub struct PageError {
    status: StatusCode,
    refusal: CallRefusal,
    /// What surrounds the page that says so; `None`: nobody has signed in.
    shell: Option<Box<views::Shell>>,
}

impl fmt::Debug for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.status, self.refusal)
    }
}

impl PageError {
    /// With this status.
    pub fn new(status: StatusCode, problem: &str) -> Self {
        Self {
            status,
            refusal: Fault::new(Class::Invalid, problem).into(),
            shell: None,
        }
    }

    /// On a page for who has signed in.
    #[must_use]
    pub fn within(mut self, shell: views::Shell) -> Self {
        self.shell = Some(Box::new(shell));
        self
    }

    /// As a page, as JSON for the script, or as the way to the page on which one signs in.
    pub fn answer(self, head: &Parts, id: &str) -> PageResponse {
        let Self {
            status, refusal, ..
        } = &self;
        let fault = &refusal.fault;
        match *status {
            StatusCode::INTERNAL_SERVER_ERROR => {}
            status if status.is_server_error() => {
                tracing::warn!(request_id = id, ?fault, "a page failed");
            }
            _ => tracing::info!(request_id = id, ?fault, "refused"),
        }
        self.answer_quietly(head, id)
    }

    /// The same of somebody who can have it logged as often as he likes.
    pub fn answer_quietly(self, head: &Parts, id: &str) -> PageResponse {
        let Self {
            status,
            refusal: CallRefusal { fault, retry_after },
            shell,
        } = self;
        match status {
            // Not what somebody can bring about as often as he likes.
            StatusCode::INTERNAL_SERVER_ERROR => {
                tracing::warn!(request_id = id, ?fault, "a page failed");
            }
            _ => tracing::debug!(request_id = id, ?fault, "refused"),
        }
        let answer = Self::say((status, shell), &fault, head, id);
        match retry_after {
            Some(seconds) => answer.with_header(header::RETRY_AFTER, seconds.into()),
            None => answer,
        }
    }

    fn say(
        (status, shell): (StatusCode, Option<Box<views::Shell>>),
        fault: &Fault,
        head: &Parts,
        id: &str,
    ) -> PageResponse {
        let sentence = api::sentence(fault, id);
        let accept = head.headers.get(header::ACCEPT);
        let is_script = accept.is_some_and(|it| it.as_bytes() == b"application/json");
        if is_script {
            let body = serde_json::json!({"error": sentence});
            return PageResponse::json(&body).with_status(status);
        }
        if status == StatusCode::UNAUTHORIZED {
            return PageResponse::see("/sign-in");
        }
        let page = views::ErrorPage {
            shell: shell.map_or_else(views::Shell::outside, |shell| *shell),
            status: status.as_u16(),
            sentence: Text::new(whole(&sentence)),
        };
        let page = PageResponse::page(&page);
        page.unwrap_or_else(|_| PageResponse::new(status, "text/plain", sentence))
            .with_status(status)
    }
}

impl From<Fault> for PageError {
    fn from(fault: Fault) -> Self {
        CallRefusal::from(fault).into()
    }
}

impl From<CallRefusal> for PageError {
    fn from(refusal: CallRefusal) -> Self {
        Self {
            status: error::status(refusal.fault.class()),
            refusal,
            shell: None,
        }
    }
}

/// As a sentence that stands alone.
fn whole(sentence: &str) -> String {
    let mut characters = sentence.chars();
    let first = characters.next().into_iter().flat_map(char::to_uppercase);
    let mut whole: String = first.chain(characters).collect();
    if !whole.ends_with(['.', '!', '?']) {
        whole.push('.');
    }
    whole
}

/// What the script has sent.
///
/// # Errors
/// 415 or 400.
pub fn json<T: DeserializeOwned>(call: &ConsoleCall<'_>) -> Result<T, PageError> {
    json_of(call.head, &call.body)
}

/// The same of a body.
///
/// # Errors
/// As [`json`].
pub fn json_of<T: DeserializeOwned>(head: &Parts, body: &[u8]) -> Result<T, PageError> {
    let kind = head.headers.get(header::CONTENT_TYPE);
    // A page of another site cannot send this kind without being asked first.
    if kind.is_none_or(|kind| kind.as_bytes() != b"application/json") {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(PageError::new(status, "send application/json"));
    }
    serde_json::from_slice(body).map_err(|error| {
        let fault = Fault::new(Class::Invalid, "the form is not as this page sends it");
        // Not the whole of it: what is wrong may be a link or a signature.
        let (line, column) = (error.line(), error.column());
        fault
            .caused_by(format_args!("line {line}, column {column}"))
            .into()
    })
}
