//! `simulation` of a signing request: what its transaction would do, according to a node that tried it.
//!
//! It is for people who read a request. Nothing waits for it and nothing hangs on it: it runs beside
//! the signing, asks one node once, and its outcome, if there is one in time, gets a row of its
//! own (docs/decisions/0018-simulations.md).

use std::{sync::Arc, time::Duration};

use covault_core::{
    fault::{Class, Fault},
    ids::RequestId,
    networks::Payload,
    request::{Draft, RequestState, SigningRequest},
};

use crate::{
    chain_rpc::{ChainClient, ChainKey, SimulationRequest},
    commands::command_commit::CommandCommit,
    services::Services,
    store::{
        Batch, CommitError, Key, KeySpace, Precondition,
        rows::{self, SimulationRow},
    },
};

/// How long a node may take.
const SIMULATION_TIMEOUT: Duration = Duration::from_secs(5);

/// Has a node try what was built, where there is one that can; returns at once. `again`: it may
/// have been tried before.
pub fn start(
    services: &Arc<Services>,
    request: &SigningRequest,
    payload: &Payload,
    draft: &Draft,
    again: bool,
) {
    // Messages do nothing on a chain.
    if !services.settings.simulate || draft.unsigned.bytes.is_empty() {
        return;
    }
    let client = services.chains.get(request.network, payload.chain_id());
    let Some(client) = client.cloned() else {
        return;
    };
    let chain = ChainKey::of(request.network, payload.chain_id());
    let Ok(admission) = services.limits.simulations.take(&[chain], 1) else {
        tracing::debug!(request = %request.id, "too many simulations are running; skipping this one");
        return;
    };
    let request_to_simulate = simulation_request(request, payload, draft);
    let id = request.id;
    let task_services = Arc::clone(services);
    services.tasks.spawn(async move {
        let _place = admission;
        let services = task_services;
        if again && !matches!(stored(&services, id).await, Ok(None)) {
            return;
        }
        let Some(json) = run(&*client, &request_to_simulate).await else {
            return;
        };
        // The first one counts: later ones may have seen the transaction itself on the chain.
        if let Err(fault) = store_result(&services, id, json, Precondition::Absent, None).await {
            tracing::warn!(request = %id, ?fault, "failed to store a simulation");
        }
    });
}

fn simulation_request(
    request: &SigningRequest,
    payload: &Payload,
    draft: &Draft,
) -> SimulationRequest {
    SimulationRequest {
        payload: payload.clone(),
        chain_data: draft.chain_data.clone(),
        unsigned: draft.unsigned.clone(),
        public_key: request.public_key.clone(),
    }
}

async fn run(client: &dyn ChainClient, request_to_simulate: &SimulationRequest) -> Option<Vec<u8>> {
    let outcome =
        tokio::time::timeout(SIMULATION_TIMEOUT, client.simulate(request_to_simulate)).await;
    outcome.ok().flatten().and_then(|outcome| outcome.to_json())
}

/// Has a node try the transaction of a request once more, and keeps what it says in the place of
/// what was known. Only what waits for its signature is tried: before that there is no transaction,
/// and after it the chain may have it.
///
/// # Errors
/// [`Class::WrongState`] where there is nothing to try, and [`Class::Unavailable`] when no node
/// says anything.
pub async fn resimulate(
    services: &Services,
    request: &SigningRequest,
    command_commit: &CommandCommit,
) -> Result<Vec<u8>, Fault> {
    let refused = |reason: &str| {
        let sentence = format!("the request cannot be simulated again: {reason}");
        Err(Fault::new(Class::WrongState, sentence))
    };
    let draft = match &request.state {
        RequestState::Prepared { draft, .. } | RequestState::Signing { draft, .. } => draft,
        RequestState::Received
        | RequestState::Screened { .. }
        | RequestState::AwaitingApproval { .. }
        | RequestState::Preparing { .. } => return refused("its transaction is not built yet"),
        RequestState::Signed { .. } | RequestState::Broadcasting { .. } => {
            return refused("it is signed");
        }
        RequestState::InDoubt { .. }
        | RequestState::Succeeded { .. }
        | RequestState::Failed { .. } => {
            return refused("it has ended");
        }
    };
    if draft.unsigned.bytes.is_empty() {
        return refused("a message has no effect on a chain");
    }
    if !services.settings.simulate {
        return refused("simulations are switched off here (serve.simulate)");
    }
    let payload = Payload::decode(&request.payload).map_err(Fault::bug)?;
    let client = services.chains.get(request.network, payload.chain_id());
    let Some(client) = client.cloned() else {
        return refused("no node is configured for its chain");
    };
    let chain = ChainKey::of(request.network, payload.chain_id());
    let Ok(_place) = services.limits.simulations.take(&[chain], 1) else {
        return Err(Fault::unavailable(
            "too many simulations in progress; try again later",
        ));
    };
    let request_to_simulate = simulation_request(request, &payload, draft);
    let Some(json) = run(&*client, &request_to_simulate).await else {
        return Err(Fault::unavailable(
            "no node of the chain could simulate the transaction; try again later",
        ));
    };
    store_result(
        services,
        request.id,
        json.clone(),
        Precondition::Any,
        Some(command_commit),
    )
    .await?;
    Ok(json)
}

async fn store_result(
    services: &Services,
    request: RequestId,
    json: Vec<u8>,
    expect: Precondition,
    command_commit: Option<&CommandCommit>,
) -> Result<(), Fault> {
    let row = SimulationRow {
        at_ms: services.now_ms(),
        json,
    };
    let mut batch = Batch::new();
    batch.put(rows::simulation(request), expect, rows::encode(&row)?);
    if let Some(command_commit) = command_commit {
        command_commit.demand(&mut batch);
    }
    match services.store.commit(batch).await {
        Ok(()) => Ok(()),
        Err(CommitError::Conflict(key)) if key.space == KeySpace::Simulation => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What is known of a request's simulation.
///
/// # Errors
/// When the store cannot be read.
pub async fn stored(services: &Services, request: RequestId) -> Result<Option<Vec<u8>>, Fault> {
    let row = services
        .load::<SimulationRow>(&rows::simulation(request))
        .await?;
    Ok(row.map(|(row, _)| row.json))
}

/// The same of several requests, by the keys of their rows.
pub async fn load_all(
    services: &Services,
    keys: &[Key],
) -> Result<Vec<Result<Option<Vec<u8>>, Fault>>, Fault> {
    let rows = services.load_all::<SimulationRow>(keys).await?;
    let json = |row: Option<SimulationRow>| row.map(|row| row.json);
    Ok(rows.into_iter().map(|row| row.map(json)).collect())
}
