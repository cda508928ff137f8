//! Reflection: the schema for tools such as grpcurl. It is public, and asks for no token; so it
//! has few places.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::Response,
    middleware::{self, Next},
};
use covault_core::{
    fault::{Class, Fault},
    schema::DESCRIPTOR_SET,
};
use futures::StreamExt as _;
use tokio::sync::Semaphore;
use tonic_reflection::server::Builder;

use super::{id_of, status};
use crate::{
    api::Api,
    http::server::RequestGuard,
    shutdown::{self, StopSignal},
};

/// Conversations at once.
const PLACES: usize = 64;
/// How long one may last.
const LONGEST: Duration = Duration::from_secs(60);
/// The largest question, in bytes.
const LARGEST: usize = 16 * 1024;

struct ReflectionGate {
    api: Arc<Api>,
    places: Arc<Semaphore>,
    stop: StopSignal,
}

/// The routes, in both versions of the protocol. Lists these services, health and itself.
///
/// # Errors
/// [`Class::Bug`] when the schema cannot be read.
pub fn routes(api: &Arc<Api>, services: &[String], stop: &StopSignal) -> Result<Router, Fault> {
    // The bytes, not what they decode to: decoding would lose the schema's own options.
    let builder = |version: &str| {
        let itself = format!("grpc.reflection.{version}.ServerReflection");
        let builder = Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .with_service_name("grpc.health.v1.Health")
            .with_service_name(itself);
        services.iter().fold(builder, Builder::with_service_name)
    };
    let v1 = builder("v1").build_v1().map_err(Fault::bug)?;
    let v1alpha = builder("v1alpha").build_v1alpha().map_err(Fault::bug)?;
    let gate = Arc::new(ReflectionGate {
        api: Arc::clone(api),
        places: Arc::new(Semaphore::new(PLACES)),
        stop: stop.clone(),
    });
    Ok(Router::new()
        .route_service(
            "/grpc.reflection.v1.ServerReflection/{method}",
            v1.max_decoding_message_size(LARGEST),
        )
        .route_service(
            "/grpc.reflection.v1alpha.ServerReflection/{method}",
            v1alpha.max_decoding_message_size(LARGEST),
        )
        .route_layer(middleware::from_fn_with_state(gate, bounded)))
}

/// Ends the client's half of the conversation, and with it the conversation, when it lasts too
/// long or the process stops.
async fn bounded(
    State(gate): State<Arc<ReflectionGate>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let id = id_of(&request);
    if let Err(refusal) = gate.api.count(request.extensions(), request.headers()) {
        return status::of(refusal, &id).into_http();
    }
    let Ok(place) = Arc::clone(&gate.places).try_acquire_owned() else {
        let fault = Fault::new(
            Class::Limited,
            "too many reflection calls are in progress; try again",
        );
        return status::of(fault, &id).into_http();
    };
    let held = (place, request.extensions().get::<RequestGuard>().cloned());
    let mut stop = gate.stop.clone();
    let end = Box::pin(async move {
        tokio::select! {
            () = shutdown::requested(&mut stop) => {}
            () = tokio::time::sleep(LONGEST) => {}
        }
    });
    let request = request.map(|body| {
        let chunks = body.into_data_stream().take_until(end);
        // With the body goes what is held.
        Body::from_stream(chunks.inspect(move |_| {
            let _ = &held;
        }))
    });
    next.run(request).await
}
