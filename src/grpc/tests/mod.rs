#![allow(non_snake_case)]

mod calls;
mod services;

use std::str::FromStr as _;

use axum::http::{Request as HttpRequest, uri::PathAndQuery};
use covault_actors::chain_rpc::ChainClients;
use prost::Message as _;
use tokio::sync::watch;
use tower::ServiceExt as _;

use super::*;
use crate::http::tests::routes::{NoSigners, api_of, api_with, as_one};

const LONG: Duration = Duration::from_secs(60);
const PLATFORM: &str = "/mpcvault.platform.v1.PlatformAPI";

/// A server, and what stops it.
struct Server {
    api: Arc<Api>,
    router: Router,
    stop: watch::Sender<bool>,
}

impl Server {
    async fn start(change: impl FnOnce(&mut Api)) -> Self {
        Self::patient(LONG, change).await
    }

    async fn patient(longest: Duration, change: impl FnOnce(&mut Api)) -> Self {
        Self::of(api_with(change).await, longest)
    }

    async fn with_bus(has_bus: bool) -> Self {
        let signers = Arc::new(NoSigners { has_bus });
        let api = api_of(signers, ChainClients::default(), |_| ()).await;
        Self::of(api, LONG)
    }

    fn of(api: Arc<Api>, longest: Duration) -> Self {
        let (stop, stopped) = watch::channel(false);
        let router = both_grpc_sides(&api, longest, &stopped);
        Self { api, router, stop }
    }

    /// Calls a method of the platform, as a client that has only the schema.
    async fn call<Q, A>(&self, method: &str, request: tonic::Request<Q>) -> Called<A>
    where
        Q: prost::Message,
        A: prost::Message + Default,
    {
        let path = format!("{PLATFORM}/{method}");
        let request = request.map(|message| Bytes::from(message.encode_to_vec()));
        let (metadata, body, extensions) = send(&self.router, &path, request).await?.into_parts();
        let message = A::decode(body).expect("the answer is of the schema");
        Ok(tonic::Response::from_parts(metadata, message, extensions))
    }
}

/// The listeners of both sides as one.
pub(crate) fn both_grpc_sides(api: &Arc<Api>, longest: Duration, stop: &StopSignal) -> Router {
    as_one("/covault.admin.", |side| {
        router(api, side, longest, stop).expect("routes")
    })
}

type Called<A> = Result<tonic::Response<A>, Status>;

/// A request with the platform token.
fn with_token<Q>(message: Q) -> tonic::Request<Q> {
    with("platform", message)
}

fn with<Q>(token: &'static str, message: Q) -> tonic::Request<Q> {
    let mut request = tonic::Request::new(message);
    let token = tonic::metadata::MetadataValue::from_static(token);
    request.metadata_mut().insert("x-mtoken", token);
    request
}

/// One call with tonic's client.
async fn send(router: &Router, path: &str, request: tonic::Request<Bytes>) -> Called<Bytes> {
    let mut client = tonic::client::Grpc::new(router.clone());
    client.ready().await.expect("a router is");
    let path = PathAndQuery::from_str(path).expect("path");
    client.unary(request, path, RawCodec).await
}

/// How a call ends whose message is these bytes.
pub(crate) async fn status(router: &Router, path: &str, token: &str, message: &[u8]) -> Status {
    let mut request = tonic::Request::new(Bytes::copy_from_slice(message));
    let token = token.parse().expect("metadata");
    request.metadata_mut().insert("x-mtoken", token);
    match send(router, path, request).await {
        Ok(_) => Status::ok(""),
        Err(status) => status,
    }
}

/// A call whose message never comes.
fn without_end(path: &str, timeout: Option<&str>) -> HttpRequest<Body> {
    let mut request = HttpRequest::post(path)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("x-mtoken", "platform");
    if let Some(timeout) = timeout {
        request = request.header("grpc-timeout", timeout);
    }
    let never = futures::stream::pending::<Result<Bytes, std::io::Error>>();
    request.body(Body::from_stream(never)).expect("request")
}

fn status_of(response: &Response<Body>) -> Status {
    Status::from_header_map(response.headers()).expect("ended at once")
}
