//! Health, for orchestration: `/livez` says that the process runs, `/readyz` that it can work.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Extension, State},
    http::{Response, StatusCode},
};
use covault_actors::gateway::Query;
use covault_core::fault::Fault;

use super::{Api, RequestId, error};
use crate::api::auth;

/// `GET /livez`.
pub async fn livez() -> Response<Body> {
    error::json(StatusCode::OK, String::from("{\"live\":true}"))
}

/// `GET /readyz`: the store can be written and the bus reached.
pub(super) async fn readyz(
    State(api): State<Arc<Api>>,
    Extension(id): Extension<RequestId>,
) -> Response<Body> {
    let ready = match api.gateway.view(&auth::internal(&id.0), Query::Ready).await {
        Ok(_) if !(api.bus_reachable)() => Err(Fault::unavailable("the bus cannot be reached")),
        other => other,
    };
    match ready {
        Ok(_) => error::json(StatusCode::OK, String::from("{\"ready\":true}")),
        Err(fault) => {
            tracing::warn!(request_id = id.0, ?fault, "not ready");
            let body = serde_json::json!({"ready": false, "reason": fault.public()});
            error::json(StatusCode::SERVICE_UNAVAILABLE, body.to_string())
        }
    }
}
