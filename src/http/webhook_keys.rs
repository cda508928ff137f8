//! `GET /v1/webhooks/keys`: the public keys that webhooks are signed with, for anyone who receives them. It asks for no
//! token: there is no secret in it.

use std::sync::Arc;

use axum::extract::Extension;
use axum::{
    Router,
    body::Body,
    extract::State,
    http::{HeaderValue, Response, StatusCode, header},
    routing::get,
};
use covault_actors::webhooks::key_set;

use super::{
    error::{self, HttpError},
    not_get,
};
use crate::api::{Api, headers::RequestId};

/// Where it is.
pub const PATH: &str = "/v1/webhooks/keys";
/// How long a receiver may keep the answer.
const CACHE: HeaderValue = HeaderValue::from_static("public, max-age=300");

/// The route.
pub fn routes(api: &Arc<Api>) -> Router {
    Router::new()
        .route(PATH, get(keys).fallback(not_get))
        .with_state(Arc::clone(api))
}

async fn keys(State(api): State<Arc<Api>>, Extension(id): Extension<RequestId>) -> Response<Body> {
    match api.gateway.webhook_keys().await {
        Ok(keys) => {
            let mut response = error::json(StatusCode::OK, key_set(&keys).to_string());
            response.headers_mut().insert(header::CACHE_CONTROL, CACHE);
            response
        }
        Err(fault) => HttpError::from(fault).into_response(None, &id.0),
    }
}
