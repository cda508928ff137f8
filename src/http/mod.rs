//! The HTTP API: what surrounds an operation (token, content type, size, error shape, request id).
//! The operations of `/v1` are those of [`crate::api`]; `/admin/v1` has its own here.

pub mod admin;
mod docs;
pub mod error;
pub mod health;
pub mod nodes;
pub mod server;

use std::{panic::AssertUnwindSafe, sync::Arc};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Extension, Request},
    handler::Handler,
    http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header},
    middleware::{self, Next},
    routing::{MethodRouter, get, post},
};
use covault_core::{
    fault::{Class, Fault},
    port::{Entropy, random_16},
    schema::service::{self, Family, Operation},
};
use futures::{FutureExt as _, StreamExt as _};

use self::error::Failure;
use crate::api::{self, Answer, Api, Call, Form, Knock, auth::Area};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TOKEN: HeaderName = HeaderName::from_static("x-mtoken");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const IDEMPOTENCY_MISMATCH: HeaderName = HeaderName::from_static("idempotency-body-mismatch");
const MAX_KEY: usize = 255;
/// A body that is too large is read on up to so many times the limit.
const THROWN_AWAY: usize = 64;

/// The id of the request being served.
#[derive(Clone)]
struct RequestId(String);

/// What one route is.
#[derive(Clone)]
struct Route {
    api: Arc<Api>,
    area: Area,
    /// The operation of the schema, which gives the shape of errors.
    operation: Option<Operation>,
    takes_idempotency_key: bool,
}

/// Every route.
///
/// # Errors
/// [`Class::Bug`] when the schema cannot be read.
pub fn router(api: &Arc<Api>) -> Result<Router, Fault> {
    let mut router = Router::new()
        .route("/livez", get(health::livez).fallback(not_get))
        .route("/readyz", get(health::readyz).fallback(not_get))
        .with_state(Arc::clone(api));
    for operation in service::operations()? {
        let served = api::served(&operation);
        let route = Route {
            api: Arc::clone(api),
            area: match operation.family() {
                Family::Platform => Area::Platform,
                Family::Sweep => Area::Sweep,
            },
            takes_idempotency_key: served.takes_idempotency_key,
            operation: Some(operation.clone()),
        };
        let handler = served.handler;
        router = router.route(
            &operation.http_path(),
            route.post(move |call| handler(call)),
        );
    }
    let router = router
        .merge(admin::routes(api))
        .merge(docs::routes()?)
        .fallback(not_found)
        .layer(middleware::from_fn_with_state(Arc::clone(api), identify));
    Ok(router)
}

impl Route {
    /// A route for POST only, with everything around `handle` checked.
    fn post<H, F>(self, handle: H) -> MethodRouter
    where
        H: Fn(Call) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<Answer, Fault>> + Send + 'static,
    {
        let route = self.clone();
        let handler = move |Extension(id): Extension<RequestId>, request: Request| {
            let (route, handle) = (self.clone(), handle.clone());
            async move { route.serve(&id.0, request, handle).await }
        };
        let wrong_method = move |Extension(id): Extension<RequestId>| async move {
            wrong_method("POST", route.operation.as_ref(), &id.0)
        };
        routed(handler, wrong_method)
    }

    async fn serve<H, F>(&self, request_id: &str, request: Request, handle: H) -> Response<Body>
    where
        H: Fn(Call) -> F,
        F: Future<Output = Result<Answer, Fault>>,
    {
        let answer = match self.call(request_id, request).await {
            Ok(call) => match AssertUnwindSafe(handle(call)).catch_unwind().await {
                Ok(answer) => answer.map_err(Failure::from),
                // The panic hook has said where. Nothing of ours is shared with the handler.
                Err(_) => Err(Fault::bug("the handler panicked").into()),
            },
            Err(failure) => Err(failure),
        };
        match answer {
            Ok(answer) => self.respond(request_id, answer),
            Err(failure) => failure.into_response(self.operation.as_ref(), request_id),
        }
    }

    /// Checks everything about a request but its meaning.
    async fn call(&self, request_id: &str, request: Request) -> Result<Call, Failure> {
        let (head, body) = request.into_parts();
        let token = head
            .headers
            .get(&TOKEN)
            .and_then(|token| token.to_str().ok());
        let knock = Knock {
            token,
            area: self.area,
            address: None,
            request_id,
        };
        let caller = self.api.caller(knock).await?;
        check_content_type(&head.headers)?;
        let key = if self.takes_idempotency_key {
            idempotency_key(&head.headers)?
        } else {
            None
        };
        let body = self.read(&head.headers, body).await?;
        Ok(Call {
            api: Arc::clone(&self.api),
            caller,
            body,
            form: Form::Json,
            idempotency: key,
        })
    }

    async fn read(&self, headers: &HeaderMap, body: Body) -> Result<Bytes, Failure> {
        let announced = headers
            .get(header::CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse().ok())
            .unwrap_or(0);
        let read = read_body(body, announced, self.api.max_body_bytes);
        match tokio::time::timeout(self.api.body_timeout, read).await {
            Ok(read) => read.map_err(Failure::from),
            Err(_) => Err(Failure::http(
                StatusCode::REQUEST_TIMEOUT,
                "the body did not arrive in time",
            )),
        }
    }

    fn respond(&self, request_id: &str, answer: Answer) -> Response<Body> {
        if answer.body_mismatch && self.api.strict_idempotency {
            let sentence = "this idempotency key was used with another body";
            return Failure::http(StatusCode::UNPROCESSABLE_ENTITY, sentence)
                .into_response(self.operation.as_ref(), request_id);
        }
        let mut response = error::json(StatusCode::OK, answer.body);
        let headers = response.headers_mut();
        if answer.replayed {
            headers.insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
        }
        if answer.body_mismatch {
            headers.insert(IDEMPOTENCY_MISMATCH, HeaderValue::from_static("true"));
        }
        response
    }
}

fn routed<H, F, T, U>(handler: H, wrong_method: F) -> MethodRouter
where
    H: Handler<T, ()>,
    F: Handler<U, ()>,
    T: 'static,
    U: 'static,
{
    post(handler).fallback(wrong_method)
}

fn check_content_type(headers: &HeaderMap) -> Result<(), Failure> {
    let is_json = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"));
    if is_json {
        return Ok(());
    }
    let sentence = "wrong content type: send Content-Type: application/json";
    Err(Failure::http(StatusCode::UNSUPPORTED_MEDIA_TYPE, sentence))
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Failure> {
    let mut values = headers.get_all(&IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let refused = |problem| Failure::from(Fault::field("idempotency-key", problem));
    if values.next().is_some() {
        return Err(refused("is given twice"));
    }
    let key = value
        .to_str()
        .map_err(|_| refused("must be printable ASCII"))?;
    // A tab is fine in a header, but not printable.
    if key.contains('\t') {
        return Err(refused("must be printable ASCII"));
    }
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(refused("must have 1 to 255 characters"));
    }
    Ok(Some(key.to_owned()))
}

/// Reads a body of at most `limit` bytes. One that is larger is read on and thrown away, within
/// reason: a client that is still sending would see a broken connection rather than the answer.
async fn read_body(body: Body, announced: usize, limit: usize) -> Result<Bytes, Fault> {
    let mut kept = Vec::with_capacity(announced.min(limit));
    let mut total = 0_usize;
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| {
            Fault::new(Class::Invalid, "the body did not arrive whole").caused_by(error)
        })?;
        total = total.saturating_add(chunk.len());
        if total <= limit {
            kept.extend_from_slice(&chunk);
        } else if total > limit.saturating_mul(THROWN_AWAY) {
            break;
        }
    }
    if total > limit {
        return Err(Fault::new(
            Class::TooLarge,
            format!("the body is larger than {limit} bytes"),
        ));
    }
    Ok(kept.into())
}

/// Gives every request an id, its answer too, and the log a line.
async fn identify(
    axum::extract::State(api): axum::extract::State<Arc<Api>>,
    mut request: Request,
    next: Next,
) -> Response<Body> {
    let id = request
        .headers()
        .get(&REQUEST_ID)
        .and_then(|id| id.to_str().ok())
        .filter(|id| is_sane(id))
        .map_or_else(|| new_id(api.entropy.as_ref()), ToOwned::to_owned);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let began = api.clock.now_ms();
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = next.run(request).await;
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let (status, ms) = (
        response.status().as_u16(),
        api.clock.now_ms().saturating_sub(began),
    );
    if matches!(path.as_str(), "/livez" | "/readyz") {
        // Asked every few seconds; what is wrong is logged where it is found.
        tracing::debug!(request_id = id, %method, path, status, ms, "answered");
    } else {
        tracing::info!(request_id = id, %method, path, status, ms, "answered");
    }
    response
}

/// An id that a client may choose: it ends up in logs and headers.
fn is_sane(id: &str) -> bool {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':');
    (1..=128).contains(&id.len()) && id.bytes().all(plain)
}

fn new_id(entropy: &dyn Entropy) -> String {
    uuid::Builder::from_random_bytes(random_16(entropy))
        .into_uuid()
        .as_hyphenated()
        .to_string()
}

async fn not_get(Extension(id): Extension<RequestId>) -> Response<Body> {
    wrong_method("GET", None, &id.0)
}

fn wrong_method(
    right: &'static str,
    operation: Option<&Operation>,
    request_id: &str,
) -> Response<Body> {
    let sentence = format!("wrong method: use HTTP {right}");
    let mut response = Failure::http(StatusCode::METHOD_NOT_ALLOWED, &sentence)
        .into_response(operation, request_id);
    response
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static(right));
    response
}

async fn not_found(Extension(id): Extension<RequestId>, request: Request) -> Response<Body> {
    let path: String = request.uri().path().chars().take(100).collect();
    let sentence = format!("there is nothing at {path}");
    Failure::http(StatusCode::NOT_FOUND, &sentence).into_response(None, &id.0)
}

#[cfg(test)]
mod tests;
