//! The gRPC API: what surrounds an operation (token, size, deadline,
//! status, request id). There is no code per operation, only the registry.

mod arrival;
mod codec;
mod deadline;
mod health;
mod reflection;
mod status;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
    middleware::{self, Next},
    response::IntoResponse as _,
    routing::post,
};
use covault_actors::{
    gateway::{OperationResponse, RequestBody},
    operations::{self, RegisteredOperation},
};
use covault_core::fault::{Class, Fault};
use tokio::sync::{Semaphore, oneshot};
use tonic::{Code, Status, codec::CompressionEncoding, metadata::MetadataMap, server::Grpc};
use tonic_health::pb::health_server::HealthServer;

pub use self::arrival::PREFIX;
use self::{codec::RawCodec, health::ByAsking};
use crate::{
    api::{
        self, AdmittedCall, Api, ApiSide, Credentials,
        admission::{CallRefusal, InFlight},
        headers::{self, REQUEST_ID, RequestId},
        meter::{MeasuredCall, NO_OPERATION, Transport},
        overload,
    },
    shutdown::StopSignal,
    telemetry::ACCESS,
};

/// Answers of fewer bytes are not worth compressing.
const LEAST_COMPRESSED: usize = 1024;
/// The largest question about health, in bytes.
const HEALTH_QUESTION: usize = 16 * 1024;
/// Questions of those who need no token that wait for their answer, at once.
const STRANGERS: usize = 1024;

/// How an operation is called.
struct OperationMethod {
    api: Arc<Api>,
    operation: &'static RegisteredOperation,
    /// The longest that a call may take.
    longest: Duration,
}

/// Every method of a side. No call takes longer than `longest`, whatever its client is willing to wait;
/// streams end at `stop`.
///
/// # Errors
/// [`Class::Bug`] when the schema cannot be read.
pub fn router(
    api: &Arc<Api>,
    side: ApiSide,
    longest: Duration,
    stop: &StopSignal,
) -> Result<Router, Fault> {
    let mut router = Router::new();
    let mut services = Vec::new();
    let all = operations::all()?;
    for operation in all.filter(|operation| side.has(operation.descriptor().audience())) {
        let path = operation.descriptor().grpc_path();
        if let Some((service, _)) = path.trim_start_matches('/').split_once('/')
            && !services.iter().any(|known| known == service)
        {
            services.push(service.to_owned());
        }
        let method = Arc::new(OperationMethod {
            api: Arc::clone(api),
            operation,
            longest,
        });
        let serve = move |request: Request| Arc::clone(&method).serve(request);
        router = router.route(&path, post(serve));
    }
    let reflection = reflection::routes(api, &services, stop)?;
    let health = HealthServer::new(ByAsking::new(Arc::clone(api), services, stop.clone()))
        .max_decoding_message_size(HEALTH_QUESTION);
    let (patience, places) = (api.body_timeout, Arc::new(Semaphore::new(STRANGERS)));
    let unknown_in = Arc::clone(api);
    let unadmitted = Router::new()
        .route_service("/grpc.health.v1.Health/{method}", health)
        .merge(reflection)
        .route_layer(middleware::from_fn(move |request: Request, next: Next| {
            answered_within(patience, Arc::clone(&places), request, next)
        }));
    Ok(router
        .merge(unadmitted)
        .fallback(move |request: Request| unknown(Arc::clone(&unknown_in), request))
        .layer(middleware::from_fn_with_state(Arc::clone(api), identify)))
}

impl OperationMethod {
    async fn serve(self: Arc<Self>, request: Request) -> Response<Body> {
        let measured =
            MeasuredCall::begin(Transport::Grpc, self.operation.descriptor().name().into());
        let response = self.respond_to(request).await;
        measured.answered_with(code(&response));
        response
    }

    async fn respond_to(&self, request: Request) -> Response<Body> {
        if !is_grpc(request.headers()) {
            // What the protocol demands: the caller knows nothing of statuses.
            return match self.api.count(request.extensions(), request.headers()) {
                Ok(()) => StatusCode::UNSUPPORTED_MEDIA_TYPE.into_response(),
                Err(_) => StatusCode::TOO_MANY_REQUESTS.into_response(),
            };
        }
        let id = id_of(&request);
        match self.answer(&id, request).await {
            Ok(response) => response.into_response(),
            Err(status) => status.into_http(),
        }
    }

    async fn answer(
        &self,
        id: &str,
        request: Request,
    ) -> Result<Response<tonic::body::Body>, Status> {
        let asked = deadline::asked(request.headers()).map_err(|fault| status::of(fault, id))?;
        let longest = asked.map_or(self.longest, |asked| asked.min(self.longest));
        let in_flight = self.api.admission.enter();
        let in_flight = in_flight.map_err(|refusal| status::of(refusal, id))?;
        // What a command has begun is done anyway.
        tokio::time::timeout(longest, self.unary(id, request, Arc::new(in_flight)))
            .await
            .unwrap_or_else(|_| {
                let ms = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
                tracing::info!(request_id = id, ms, "call not answered within its deadline");
                let sentence =
                    "the call was not answered within its deadline; it may still be done";
                Err(Status::deadline_exceeded(sentence))
            })
    }

    async fn unary(
        &self,
        id: &str,
        request: Request,
        in_flight: Arc<InFlight>,
    ) -> Result<Response<tonic::body::Body>, Status> {
        let address = (self.api).client_address(request.extensions(), request.headers());
        let credentials = Credentials {
            token: headers::token(request.headers()),
            audience: self.operation.descriptor().audience(),
            operation: self.operation.descriptor().name(),
            address,
            request_id: id,
            trace: headers::trace_parent(request.headers()),
        };
        let caller = self.api.admit(credentials, &in_flight).await;
        let caller = caller.map_err(|refusal| status::of(refusal, id))?;
        let key = if self.operation.descriptor().takes_idempotency_key() {
            headers::idempotency_key(request.headers()).map_err(|fault| status::of(fault, id))?
        } else {
            None
        };
        let refused = Arc::new(OnceLock::<CallRefusal>::new());
        let most = self.api.max_body_bytes;
        let encoding = request.headers().get("grpc-encoding");
        let compressed = encoding.is_some_and(|encoding| encoding != "identity");
        let request = request
            .map(|body| arrival::watched(body, most, Arc::clone(&in_flight), Arc::clone(&refused)));
        // Dropped once the message is there.
        let (arriving, arrived) = oneshot::channel::<()>();
        let mut arriving = Some(arriving);
        let came = OnceLock::new();
        let service = tower::service_fn(|message: tonic::Request<Bytes>| {
            drop(arriving.take());
            let _ = came.set(());
            let message = message.into_inner();
            // What came compressed takes more room than it had on its way.
            let room = if compressed {
                in_flight.hold(message.len())
            } else {
                Ok(())
            };
            let (key, caller) = (key.clone(), &caller);
            async move {
                room.map_err(|refusal| status::of(refusal, id))?;
                let call = AdmittedCall {
                    caller,
                    address,
                    operation: self.operation,
                    body: RequestBody::Protobuf(&message),
                    idempotency: key,
                };
                self.run(id, call).await
            }
        });
        let mut grpc = Grpc::new(RawCodec)
            .max_decoding_message_size(most)
            .accept_compressed(CompressionEncoding::Gzip)
            .send_compressed(CompressionEncoding::Gzip);
        let response = tokio::select! {
            biased;
            response = grpc.unary(service, request) => response,
            () = late(self.api.body_timeout, arrived) => {
                return Err(Status::deadline_exceeded("the message did not arrive in time"));
            }
        };
        if came.get().is_some() {
            return Ok(response);
        }
        // The library's own codes and sentences for a message that did not come are others than
        // the contract's.
        let said = Status::from_header_map(response.headers());
        let (code, said) = said.map_or((Code::Unknown, String::new()), |status| {
            (status.code(), status.message().to_owned())
        });
        Err(match (refused.get(), code) {
            (Some(refusal), _) => status::of(refusal.clone(), id),
            // As it came, or once it is no longer compressed.
            (None, Code::OutOfRange | Code::ResourceExhausted) => {
                status::of(arrival::too_large(most), id)
            }
            // Compressed in another way than gzip.
            (None, Code::Unimplemented) => return Ok(response),
            (None, _) => {
                let fault = Fault::new(Class::Invalid, "the message is incomplete");
                status::of(fault.caused_by(said), id)
            }
        })
    }

    async fn run(
        &self,
        id: &str,
        call: AdmittedCall<'_>,
    ) -> Result<tonic::Response<Bytes>, Status> {
        let answer = self.api.call(call).await;
        let (answer, share) = answer.map_err(|fault| status::of(fault, id))?;
        let mut response = self.respond(answer)?;
        response.extensions_mut().insert(share);
        Ok(response)
    }

    fn respond(&self, answer: OperationResponse) -> Result<tonic::Response<Bytes>, Status> {
        if answer.body_mismatch && self.api.strict_idempotency {
            let sentence = "this idempotency key was used with another body";
            return Err(Status::already_exists(sentence));
        }
        let mut headers = HeaderMap::new();
        api::mark(&answer, &mut headers);
        let metadata = MetadataMap::from_headers(headers);
        let small = answer.response.len() < LEAST_COMPRESSED;
        let message = answer.response.into();
        let mut response = tonic::Response::from_parts(metadata, message, tonic::Extensions::new());
        if small {
            response.disable_compression();
        }
        Ok(response)
    }
}

/// Returns if the message has not arrived after `patience`.
async fn late(patience: Duration, arrived: oneshot::Receiver<()>) {
    if tokio::time::timeout(patience, arrived).await.is_ok() {
        // It is there, and the call takes the time that it needs.
        std::future::pending::<()>().await;
    }
}

/// `application/grpc`, also with `+proto`; not gRPC-Web, which is framed in another way.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|kind| matches!(kind.trim(), "application/grpc" | "application/grpc+proto"))
}

/// Those who need no token get an answer, or its beginning, soon or never; and only so many wait
/// for it, as each holds what it has sent.
async fn answered_within(
    patience: Duration,
    places: Arc<Semaphore>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let Ok(_place) = places.try_acquire() else {
        let fault = Fault::new(
            Class::Limited,
            "too many calls of this method are in progress; try again",
        );
        return status::of(fault, &id_of(&request)).into_http();
    };
    tokio::time::timeout(patience, next.run(request))
        .await
        .unwrap_or_else(|_| {
            Status::deadline_exceeded("the message did not arrive in time").into_http()
        })
}

async fn unknown(api: Arc<Api>, request: Request) -> Response<Body> {
    let measured = MeasuredCall::begin(Transport::Grpc, NO_OPERATION.into());
    let response = match api.count(request.extensions(), request.headers()) {
        Ok(()) => {
            let path = headers::shown_path(request.uri());
            Status::unimplemented(format!("unknown method {path}"))
        }
        Err(refusal) => status::of(refusal, &id_of(&request)),
    }
    .into_http();
    measured.answered_with(code(&response));
    response
}

/// The id of a call; every call has one.
fn id_of(request: &Request) -> String {
    let id = request.extensions().get::<RequestId>();
    id.map(|RequestId(id)| id.clone()).unwrap_or_default()
}

/// How a call ended. An error has its status in the headers: there is no message after which it
/// could come.
fn code(response: &Response<Body>) -> Code {
    match Status::from_header_map(response.headers()) {
        Some(status) => status.code(),
        None if response.status().is_success() => Code::Ok,
        None => Code::Unknown,
    }
}

/// Gives every call an id, its answer too, and the log a line.
async fn identify(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Response<Body> {
    let id = headers::request_id(request.headers(), api.entropy.as_ref());
    let path = headers::shown_path(request.uri());
    let began = api.clock.now_ms();
    request.extensions_mut().insert(id.clone());
    let mut response = if headers::are_within_limits(request.headers()) {
        next.run(request).await
    } else {
        let limited = api.count(request.extensions(), request.headers());
        let too_large = || CallRefusal::from(Fault::new(Class::TooLarge, headers::TOO_LARGE));
        status::of(limited.err().unwrap_or_else(too_large), &id.0).into_http()
    };
    let RequestId(id) = id;
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let code = code(&response);
    let ms = api.clock.now_ms().saturating_sub(began);
    if path.starts_with("/grpc.health.") {
        tracing::trace!(target: ACCESS, request_id = id, path, ?code, ms, "answered");
    } else if matches!(
        code,
        Code::Internal | Code::Unavailable | Code::Unknown | Code::DataLoss
    ) && !overload::is_no_trouble_answer(response.headers())
    {
        tracing::info!(target: ACCESS, request_id = id, path, ?code, ms, "answered");
    } else {
        tracing::debug!(target: ACCESS, request_id = id, path, ?code, ms, "answered");
    }
    response
}

#[cfg(test)]
pub(crate) mod tests;
