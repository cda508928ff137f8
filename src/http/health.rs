//! Health, for orchestration: `/livez` says that the process runs, `/readyz` that it can work.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::State,
    http::{Response, StatusCode},
};

use super::{Api, error};

/// `GET /livez`.
pub async fn livez() -> Response<Body> {
    error::json(StatusCode::OK, String::from("{\"live\":true}"))
}

/// `GET /readyz`: the store can be written and the bus reached.
pub(super) async fn readyz(State(api): State<Arc<Api>>) -> Response<Body> {
    match api.ready().await {
        Ok(()) => error::json(StatusCode::OK, String::from("{\"ready\":true}")),
        Err(fault) => {
            let body = serde_json::json!({"ready": false, "reason": fault.message()});
            error::json(StatusCode::SERVICE_UNAVAILABLE, body.to_string())
        }
    }
}
