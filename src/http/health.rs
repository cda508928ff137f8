//! Health, for orchestration: `/livez` says that the process runs, `/readyz` that it can work.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    body::Body,
    extract::{RawQuery, State},
    http::{Response, StatusCode},
};
use covault_actors::gateway::Health;
use covault_core::fault::Fault;
use serde_json::{Map, Value, json};

use super::{Api, error};
use crate::api::BUS_AWAY;

/// `GET /livez`.
pub async fn livez() -> Response<Body> {
    error::json(StatusCode::OK, String::from("{\"live\":true}"))
}

/// `GET /readyz`: the store can be written, the bus and a signer be reached, and clients are let in. `/readyz?verbose`
/// says how each part is. What is away for some vaults only takes no process out of a load balancer: `covault status`
/// tells of vaults.
pub(super) async fn readyz(
    State(api): State<Arc<Api>>,
    RawQuery(query): RawQuery,
) -> Response<Body> {
    let health = api.gateway.health().await;
    let is_verbose = query.is_some_and(|query| query == "verbose" || query.starts_with("verbose="));
    let parts = is_verbose.then(|| parts(&api, &health));
    let ready = api.ready_as(health);
    let (status, mut body) = match &ready {
        Ok(()) => (StatusCode::OK, json!({"ready": true})),
        Err(fault) => (
            StatusCode::SERVICE_UNAVAILABLE,
            json!({"ready": false, "reason": fault.message()}),
        ),
    };
    if let (Some(parts), Some(body)) = (parts, body.as_object_mut()) {
        body.extend(parts);
    }
    error::json(status, body.to_string())
}

/// Each part: "ok", or what is wrong; of signers and chain nodes how many answer.
fn parts(api: &Api, health: &Health) -> Map<String, Value> {
    let said = |part: &Result<(), Fault>| match part {
        Ok(()) => "ok".to_owned(),
        Err(fault) => fault.message().to_owned(),
    };
    let bus = if (api.bus_reachable)() {
        "ok"
    } else {
        BUS_AWAY
    };
    let mut chains: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for node in api.gateway.chain_nodes() {
        let (answering, all) = chains.entry(node.chain).or_default();
        *answering += usize::from(node.failures == 0);
        *all += 1;
    }
    let chains = chains
        .into_iter()
        .map(|(chain, (answering, all))| (chain, json!({"answering": answering, "nodes": all})));
    let (live, admitted) = health.signers;
    let parts = [
        ("store", json!(said(&health.store))),
        ("bus", json!(bus)),
        ("clients", json!(said(&health.clients))),
        ("leaving", json!(health.is_leaving)),
        ("signers", json!({"live": live, "admitted": admitted})),
        ("chains", Value::Object(chains.collect())),
    ];
    parts
        .into_iter()
        .map(|(name, part)| (name.to_owned(), part))
        .collect()
}
