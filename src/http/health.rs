//! Health, for orchestration: `/livez` says that the process runs, `/readyz` that it can work.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    body::Body,
    extract::{RawQuery, State},
    http::{Response, StatusCode},
};
use covault_actors::gateway::{BackupRow, Gateway, Health, ServiceCounts};
use covault_core::fault::Fault;
use serde_json::{Map, Value, json};

use super::{Api, error};

/// `GET /livez`.
pub async fn livez() -> Response<Body> {
    error::json(StatusCode::OK, String::from("{\"live\":true}"))
}

/// `GET /readyz`: the store can be written, the bus and a signer be reached, and clients are let in. `/readyz?verbose`
/// says how each part is, and how many vaults can sign. What is away for some vaults only takes no process out of a load
/// balancer: `covault status` says which.
pub(super) async fn readyz(
    State(api): State<Arc<Api>>,
    RawQuery(query): RawQuery,
) -> Response<Body> {
    let health = api.gateway.health().await;
    let is_verbose = query.is_some_and(|query| query == "verbose" || query.starts_with("verbose="));
    let parts = match is_verbose {
        true => Some(parts(&api.gateway, &health).await),
        false => None,
    };
    let ready = health.ready();
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
async fn parts(gateway: &Gateway, health: &Health) -> Map<String, Value> {
    let said = |part: &Result<(), Fault>| match part {
        Ok(()) => "ok".to_owned(),
        Err(fault) => fault.message().to_owned(),
    };
    let mut chains: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for node in gateway.chain_nodes() {
        let (answering, all) = chains.entry(node.chain).or_default();
        *answering += usize::from(node.failures == 0);
        *all += 1;
    }
    let chains = chains
        .into_iter()
        .map(|(chain, (answering, all))| (chain, json!({"answering": answering, "nodes": all})));
    let (live, admitted) = health.signers;
    // It was counted, and is not looked up here: anyone may ask.
    let (counts, backup) = match &health.store {
        Ok(()) => gateway.overview().await.unwrap_or_default(),
        Err(_) => (None, None),
    };
    let parts = [
        ("store", json!(said(&health.store))),
        ("bus", json!(said(&health.bus))),
        ("clients", json!(said(&health.clients))),
        ("leaving", json!(health.is_leaving)),
        ("signers", json!({"live": live, "admitted": admitted})),
        ("chains", Value::Object(chains.collect())),
        ("vaults", counts.as_ref().map_or(Value::Null, vaults)),
        (
            "backup",
            backup.map_or(
                Value::Null,
                |BackupRow { at_ms, .. }| json!({"atMs": at_ms}),
            ),
        ),
    ];
    parts
        .into_iter()
        .map(|(name, part)| (name.to_owned(), part))
        .collect()
}

fn vaults(ServiceCounts { at_ms, vaults, .. }: &ServiceCounts) -> Value {
    json!({"ready": vaults.ready, "short": vaults.short, "noKeys": vaults.no_keys, "countedMs": at_ms})
}
