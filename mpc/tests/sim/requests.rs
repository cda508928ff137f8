//! Requests: what clients want signed, and what is asked in the orchestrator's name.

use std::sync::Arc;

use covault_core::{
    derive::RootKey,
    fault::Fault,
    ids::{RequestId, SessionId, TokenId},
    networks::VerifiedSignatures,
    order::{Generation, NodeId, SigningOrder},
    port::{Clock as _, random_16},
    scheme::Scheme,
    turns::RequestTurn,
};
use covault_mpc::{
    bus::{Bus as _, BusAddress},
    envelope::{EnvelopeCodec, EnvelopeHeader, EnvelopeKind},
    identity::NodeIdentity,
};
use tokio::time::{sleep, timeout};

use crate::{
    machines::SimWorld,
    net::SimBus,
    orchestrator::{Orchestrator, OrchestratorView, SLACK_MS},
    support::{raw_message, verify},
    world::{ProcessLife, ms},
};

pub fn order(world: &SimWorld, root: &RootKey, content: &[u8]) -> SigningOrder {
    let mut order = raw_message(world.vault, root, 3, content);
    order.request = RequestId::from_random(random_16(&*world.rng));
    order.issued_at_ms = world.clock.now_ms();
    order.expires_at_ms = order.issued_at_ms + 240_000;
    order
}

/// Has it signed with the shares in use, and sees that it ends in time. Begins again when the
/// orchestrator crashes; and when it fails, if it is `patient`.
pub async fn sign(
    world: &SimWorld,
    orchestrator: &Orchestrator,
    order: &SigningOrder,
    patience_ms: u64,
    patient: bool,
) -> Result<VerifiedSignatures, Fault> {
    let deadline_ms = world.clock.now_ms() + patience_ms;
    loop {
        let left_ms = deadline_ms.saturating_sub(world.clock.now_ms());
        let shown = &orchestrator.shown;
        let told = shown.until(|shown| shown.in_use().is_some());
        let (process, in_use) = match timeout(ms(left_ms), told).await {
            Ok(shown) => (shown.process, shown.in_use().unwrap()),
            Err(_) => return Err(Fault::unavailable("no shares are in use")),
        };
        let (cluster, generation) = in_use;
        let mut order = order.clone();
        order.epoch = generation.epoch;
        let crashed =
            |shown: &OrchestratorView| shown.process != process || shown.cluster.is_none();
        let attempt = async move { once(world, &cluster, &order, &generation, deadline_ms).await };
        let outcome = tokio::select! {
            biased;
            outcome = attempt => outcome,
            _ = shown.until(crashed) => continue,
        };
        let over = world.clock.now_ms() >= deadline_ms;
        if outcome.is_ok() || !patient || over {
            return outcome;
        }
        sleep(ms(200)).await;
    }
}

/// One call, with shares that need not be those in use.
pub async fn once(
    world: &SimWorld,
    cluster: &covault_mpc::cluster::Cluster,
    order: &SigningOrder,
    generation: &Generation,
    deadline_ms: u64,
) -> Result<VerifiedSignatures, Fault> {
    let session = SessionId::from_random(random_16(&*world.rng));
    world.oracle.expect(session, order);
    let Generation {
        threshold, holders, ..
    } = generation;
    let left_ms = deadline_ms.saturating_sub(world.clock.now_ms());
    let call = cluster.sign(
        order,
        covault_mpc::cluster::SigningTask {
            client_signer: None,
            scheme: Scheme::default_of(order.network.curve()),
            session,
            holders,
            threshold: *threshold,
            deadline_ms,
            token: TokenId::from_bytes([1; 16]),
            turn: RequestTurn::new(order.request.time_ms(), deadline_ms),
            trace: None,
        },
    );
    let Ok(outcome) = timeout(ms(left_ms + SLACK_MS), call).await else {
        let what = format!("request {} did not end in time", order.request);
        world.oracle.violation(what.clone());
        return Err(Fault::bug(what));
    };
    let epoch = order.epoch;
    match &outcome {
        Ok(signatures) => {
            verify(order, signatures);
            world.oracle.signed(order, generation, signatures);
            world
                .trace
                .note(format_args!("signed {} with {epoch}", order.request));
        }
        Err(fault) => {
            let class = fault.class();
            world.trace.note(format_args!(
                "not signed {} with {epoch}: {class:?}",
                order.request
            ));
        }
    }
    outcome
}

/// A request; sometimes two for the same id, of which one at most may be signed. How many were
/// signed, and how many not.
pub async fn request(
    world: Arc<SimWorld>,
    orchestrator: Arc<Orchestrator>,
    root: RootKey,
) -> (u64, u64) {
    sleep(ms(world.rng.between(0, 12_000))).await;
    let content = world.rng.bytes(40);
    let first = order(&world, &root, &content);
    let patience_ms = world.rng.between(500, 12_000);
    let patient = world.rng.chance(300);
    let rival = world.rng.chance(350).then(|| {
        let mut rival = order(&world, &root, &[&content[..], b"!"].concat());
        rival.request = first.request;
        rival
    });
    let one = sign(&world, &orchestrator, &first, patience_ms, patient);
    let other = async {
        let rival = rival.as_ref()?;
        sleep(ms(world.rng.between(0, 4_000))).await;
        Some(sign(&world, &orchestrator, rival, patience_ms, patient).await)
    };
    let (one, other) = tokio::join!(biased; one, other);
    let outcomes = [Some(one), other];
    let signed = outcomes.iter().flatten().filter(|it| it.is_ok()).count() as u64;
    (signed, outcomes.iter().flatten().count() as u64 - signed)
}

/// A stranger, whose key no node pins, orders a signature with the orchestrator's messages.
pub async fn strange_order(world: Arc<SimWorld>, root: RootKey) {
    let identity = Arc::new(NodeIdentity::generate(&*world.rng));
    let bus = Arc::new(SimBus {
        net: Arc::clone(&world.net),
        place: 0,
        life: Arc::new(ProcessLife::default()),
        byzantine: None,
    });
    let codec = EnvelopeCodec::new(identity, bus, Arc::clone(&world.rng) as _);
    let order = order(&world, &root, b"all your coins");
    let signers: Vec<NodeId> = world
        .first
        .holders
        .iter()
        .copied()
        .take(world.first.threshold.into())
        .collect();
    let session = SessionId::from_random(random_16(&*world.rng));
    let now_ms = world.clock.now_ms();
    let nonces = Vec::<Vec<u64>>::new();
    let body = bcs::to_bytes(&(&order, session, &signers, nonces, 2_000_u64, now_ms)).unwrap();
    for to in &signers {
        let header = EnvelopeHeader {
            kind: EnvelopeKind::SigningOrder,
            sealed: true,
            epoch: 0,
            session,
            attempt: 0,
            round: 0,
            sequence: 0,
            from: *to,
            to: *to,
        };
        codec.send(header, &body).unwrap();
    }
    // Noise, too.
    let noise = world.rng.bytes(300);
    let bus = world.port(0, &Arc::default());
    bus.publish(BusAddress::Inbox(signers[0]), noise).unwrap();
}
