//! The REST API: what surrounds an operation (token, content type, size, error shape, request id).
//! There is no code per operation, only the registry.

mod docs;
pub mod error;
pub mod events;
pub mod health;
mod peers;
mod reading;
pub mod server;
pub mod socket;
mod webhook_keys;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Extension, Request},
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
    middleware::{self, Next},
    routing::{MethodRouter, get, post},
};
use covault_actors::{
    gateway::{OperationResponse, RequestBody},
    operations::{self, RegisteredOperation},
};
use covault_core::{
    fault::{Class, Fault},
    schema::service::OperationDescriptor,
};
use futures::StreamExt as _;
use tower::ServiceExt as _;

use self::error::HttpError;
use crate::api::{
    self, AdmittedCall, Api, ApiSide, Credentials,
    admission::{AnswerShare, CallRefusal, InFlight},
    headers::{self, REQUEST_ID, RequestId},
    meter::{MeasuredCall, NO_OPERATION, Transport},
    overload,
};
use crate::{grpc, shutdown::StopSignal, telemetry::ACCESS};

/// A body that is too large is read up to this multiple of the limit.
const MAX_DISCARD_FACTOR: usize = 64;
/// Room that a body gets before anything of it is there, in bytes.
const INITIAL_BODY_CAPACITY: usize = 16 * 1024;

/// What one route is.
#[derive(Clone)]
struct Route {
    api: Arc<Api>,
    operation: &'static RegisteredOperation,
}

/// Every route of a side. Streams end with `stop`.
///
/// # Errors
/// [`Class::Bug`] when the schema cannot be read.
pub fn router(api: &Arc<Api>, side: ApiSide, stop: &StopSignal) -> Result<Router, Fault> {
    let mut router = Router::new()
        .route("/livez", get(health::livez).fallback(not_get))
        .route("/readyz", get(health::readyz).fallback(not_get))
        .with_state(Arc::clone(api));
    let all = operations::all()?;
    for operation in all.filter(|operation| side.has(operation.descriptor().audience())) {
        let route = Route {
            api: Arc::clone(api),
            operation,
        };
        router = router.route(operation.descriptor().http_path(), route.methods());
    }
    let open = match side {
        ApiSide::Clients => {
            router = router.merge(events::routes(api, stop));
            docs::routes()?.merge(webhook_keys::routes(api))
        }
        ApiSide::Operators => docs::admin_routes()?,
    };
    let not_found_in = Arc::clone(api);
    Ok(router
        .merge(open.route_layer(middleware::from_fn_with_state(
            Arc::clone(api),
            rate_limited,
        )))
        .fallback(move |request: Request| not_found(Arc::clone(&not_found_in), request))
        .layer(middleware::from_fn_with_state(
            Arc::clone(api),
            assign_request_id,
        )))
}

/// The admin API of one listener, beside an API of clients: gRPC for who speaks it, REST for the others.
///
/// # Errors
/// As [`router`], and [`grpc::router`].
pub fn operators_router(
    api: &Api,
    longest_call: Duration,
    stop: &StopSignal,
) -> Result<Router, Fault> {
    let api = Arc::new(api.for_operators());
    let rest = router(&api, ApiSide::Operators, stop)?;
    let grpc = grpc::router(&api, ApiSide::Operators, longest_call, stop)?;
    Ok(Router::new().fallback(move |request: Request| {
        let side = if grpc::is_grpc(request.headers()) {
            grpc.clone()
        } else {
            rest.clone()
        };
        // A router answers whatever happens.
        async move {
            side.oneshot(request)
                .await
                .unwrap_or_else(|never| match never {})
        }
    }))
}

/// What a process serves that has no API.
pub fn health_router(api: &Arc<Api>) -> Router {
    Router::new()
        .route("/livez", get(health::livez).fallback(not_get))
        .route("/readyz", get(health::readyz).fallback(not_get))
        .with_state(Arc::clone(api))
        .layer(middleware::from_fn_with_state(
            Arc::clone(api),
            assign_request_id,
        ))
}

impl Route {
    /// POST, with everything around the operation checked; every other method is refused.
    fn methods(self) -> MethodRouter {
        let route = self.clone();
        let handler = move |Extension(id): Extension<RequestId>, request: Request| {
            let route = self.clone();
            async move {
                let measured = route.measured();
                let response = route.serve(&id.0, request).await;
                measured.answered(response.status());
                response
            }
        };
        let wrong_method = move |Extension(id): Extension<RequestId>, request: Request| {
            let route = route.clone();
            async move {
                let operation = Some(route.descriptor());
                let response = match count(&route.api, &request) {
                    Ok(()) => wrong_method("POST", operation, &id.0),
                    Err(failure) => failure.into_response(operation, &id.0),
                };
                route.measured().answered(response.status());
                response
            }
        };
        post(handler).fallback(wrong_method)
    }

    fn descriptor(&self) -> &'static OperationDescriptor {
        self.operation.descriptor()
    }

    fn measured(&self) -> MeasuredCall {
        MeasuredCall::begin(Transport::Rest, self.descriptor().name().into())
    }

    async fn serve(&self, request_id: &str, request: Request) -> Response<Body> {
        match self.answer(request_id, request).await {
            Ok((answer, share)) => {
                let mut response = self.respond(request_id, answer);
                response.extensions_mut().insert(share);
                response
            }
            Err(failure) => failure.into_response(Some(self.descriptor()), request_id),
        }
    }

    async fn answer(
        &self,
        request_id: &str,
        request: Request,
    ) -> Result<(OperationResponse, AnswerShare), HttpError> {
        let in_flight = self.api.admission.enter()?;
        let address = (self.api).client_address(request.extensions(), request.headers());
        let credentials = Credentials {
            token: headers::token(request.headers()),
            audience: self.descriptor().audience(),
            operation: self.descriptor().name(),
            address,
            request_id,
            trace: headers::trace_parent(request.headers()),
        };
        let caller = self.api.admit(credentials, &in_flight).await?;
        let (idempotency, body) = self.check(request, &in_flight).await?;
        let call = AdmittedCall {
            caller: &caller,
            address,
            operation: self.operation,
            body: RequestBody::Json(&body),
            idempotency,
        };
        self.api.call(call).await.map_err(HttpError::from)
    }

    /// Checks everything about an admitted request but its meaning.
    async fn check(
        &self,
        request: Request,
        in_flight: &InFlight,
    ) -> Result<(Option<String>, Bytes), HttpError> {
        let (head, body) = request.into_parts();
        check_content(&head.headers)?;
        let key = if self.descriptor().takes_idempotency_key() {
            headers::idempotency_key(&head.headers)?
        } else {
            None
        };
        let body = self.read(&head.headers, body, in_flight).await?;
        Ok((key, body))
    }

    async fn read(
        &self,
        headers: &HeaderMap,
        body: Body,
        in_flight: &InFlight,
    ) -> Result<Bytes, HttpError> {
        let announced = headers
            .get(header::CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse().ok())
            .unwrap_or(0);
        let limit = self.api.max_body_bytes;
        if announced > limit {
            // A client that waits for leave does not send it; one that sends would see a broken connection rather
            // than the answer.
            if !headers.contains_key(header::EXPECT) {
                tokio::spawn(tokio::time::timeout(
                    self.api.body_timeout,
                    discard(body, limit),
                ));
            }
            return Err(too_large(limit).into());
        }
        let read = read_body(body, announced, limit, in_flight);
        match tokio::time::timeout(self.api.body_timeout, read).await {
            Ok(read) => read.map_err(HttpError::from),
            Err(_) => Err(HttpError::http(
                StatusCode::REQUEST_TIMEOUT,
                "the body did not arrive in time",
            )),
        }
    }

    fn respond(&self, request_id: &str, answer: OperationResponse) -> Response<Body> {
        if answer.body_mismatch && self.api.strict_idempotency {
            let sentence = "this idempotency key was used with another body";
            return HttpError::http(StatusCode::UNPROCESSABLE_ENTITY, sentence)
                .into_response(Some(self.descriptor()), request_id);
        }
        let mut headers = HeaderMap::new();
        api::mark(&answer, &mut headers);
        let mut response = error::json(StatusCode::OK, answer.response);
        response.headers_mut().extend(headers);
        response
    }
}

/// Whether the body says that it is JSON, and nothing was done to it.
fn check_content(headers: &HeaderMap) -> Result<(), HttpError> {
    let refused = |sentence| {
        Err(HttpError::http(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            sentence,
        ))
    };
    let is_json = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"));
    if !is_json {
        return refused("wrong content type: send Content-Type: application/json");
    }
    let is_plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    if !headers
        .get_all(header::CONTENT_ENCODING)
        .iter()
        .all(is_plain)
    {
        return refused("wrong content encoding: send the body as it is, not compressed");
    }
    Ok(())
}

fn too_large(limit: usize) -> Fault {
    Fault::new(
        Class::TooLarge,
        format!("the body is larger than {limit} bytes"),
    )
}

/// Reads a body without keeping it, within reason.
async fn discard(body: Body, limit: usize) {
    let most = limit.saturating_mul(MAX_DISCARD_FACTOR);
    let mut total = 0_usize;
    let mut chunks = body.into_data_stream();
    while let Some(Ok(chunk)) = chunks.next().await {
        total = total.saturating_add(chunk.len());
        if total > most {
            break;
        }
    }
}

/// Reads a body of at most `limit` bytes, for which `in_flight` must have room. One that is larger is read on and thrown away, within
/// reason: a client that is still sending would see a broken connection rather than the answer.
async fn read_body(
    body: Body,
    announced: usize,
    limit: usize,
    in_flight: &InFlight,
) -> Result<Bytes, CallRefusal> {
    // What is announced is a word that costs nothing.
    let mut kept = Vec::with_capacity(announced.min(limit).min(INITIAL_BODY_CAPACITY));
    let mut total = 0_usize;
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| {
            Fault::new(Class::Invalid, "the body is incomplete").caused_by(error)
        })?;
        total = total.saturating_add(chunk.len());
        if total <= limit {
            in_flight.hold(chunk.len())?;
            kept.extend_from_slice(&chunk);
        } else if total > limit.saturating_mul(MAX_DISCARD_FACTOR) {
            break;
        }
    }
    if total > limit {
        return Err(too_large(limit).into());
    }
    Ok(kept.into())
}

/// Gives every request an id, its answer too, and the log a line.
async fn assign_request_id(
    axum::extract::State(api): axum::extract::State<Arc<Api>>,
    mut request: Request,
    next: Next,
) -> Response<Body> {
    let RequestId(id) = headers::request_id(request.headers(), api.entropy.as_ref());
    let (method, path) = (request.method().clone(), headers::shown_path(request.uri()));
    let began = api.clock.now_ms();
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = if headers::are_within_limits(request.headers()) {
        next.run(request).await
    } else {
        let failure = count(&api, &request).err().unwrap_or_else(|| {
            let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            HttpError::http(status, headers::TOO_LARGE)
        });
        failure.into_response_below(request.uri().path(), &id)
    };
    // Answers are of this moment, and of this token.
    let caching = response.headers_mut().entry(header::CACHE_CONTROL);
    caching.or_insert(HeaderValue::from_static("no-store"));
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    if response.status() == StatusCode::SERVICE_UNAVAILABLE {
        let headers = response.headers_mut().entry(header::RETRY_AFTER);
        headers.or_insert(HeaderValue::from_static("1"));
    }
    let (status, ms) = (
        response.status().as_u16(),
        api.clock.now_ms().saturating_sub(began),
    );
    // Asked every few seconds; what is wrong is logged where it is found.
    let is_health = matches!(path.as_str(), "/livez" | "/readyz");
    if is_health {
        tracing::trace!(target: ACCESS, request_id = id, %method, path, status, ms, "answered");
    } else if response.status().is_server_error()
        && !overload::is_no_trouble_answer(response.headers())
    {
        tracing::info!(target: ACCESS, request_id = id, %method, path, status, ms, "answered");
    } else {
        tracing::debug!(target: ACCESS, request_id = id, %method, path, status, ms, "answered");
    }
    response
}

async fn not_get(Extension(id): Extension<RequestId>) -> Response<Body> {
    wrong_method("GET", None, &id.0)
}

fn wrong_method(
    right: &'static str,
    operation: Option<&OperationDescriptor>,
    request_id: &str,
) -> Response<Body> {
    let sentence = format!("wrong method: use HTTP {right}");
    let mut response = HttpError::http(StatusCode::METHOD_NOT_ALLOWED, &sentence)
        .into_response(operation, request_id);
    // Anyone who may GET may ask for the headers alone.
    let allowed = if right == "GET" { "GET, HEAD" } else { right };
    response
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static(allowed));
    response
}

/// Counts what asks for no token.
async fn rate_limited(
    axum::extract::State(api): axum::extract::State<Arc<Api>>,
    Extension(id): Extension<RequestId>,
    request: Request,
    next: Next,
) -> Response<Body> {
    match count(&api, &request) {
        Ok(()) => next.run(request).await,
        Err(failure) => failure.into_response(None, &id.0),
    }
}

async fn not_found(api: Arc<Api>, request: Request) -> Response<Body> {
    let id = request.extensions().get::<RequestId>();
    let id = id.map(|RequestId(id)| id.clone()).unwrap_or_default();
    let measured = MeasuredCall::begin(Transport::Rest, NO_OPERATION.into());
    let failure = count(&api, &request).err().unwrap_or_else(|| {
        let sentence = format!("unknown path {}", headers::shown_path(request.uri()));
        HttpError::http(StatusCode::NOT_FOUND, &sentence)
    });
    let response = failure.into_response_below(request.uri().path(), &id);
    measured.answered(response.status());
    response
}

/// Counts a request that reaches no operation.
fn count(api: &Api, request: &Request) -> Result<(), HttpError> {
    api.count(request.extensions(), request.headers())
        .map_err(HttpError::from)
}

#[cfg(test)]
pub(crate) mod tests;
