//! Signatures, as the orchestrator asks for them: attempts with one set of signers after another.

use std::time::Duration;

use covault_core::{
    fault::{Class, Fault, FaultCode},
    ids::SessionId,
    order::{NodeId, SigningOrder},
    signature::{Curve, Signature},
};
use tokio::time::timeout;

use super::{
    CallGuard, ClusterInner, ExpectedReply, POLL_INTERVAL, REPLY_GRACE_MS,
    select_signers::{AttemptFailures, NoSigningSet},
};
use crate::{
    envelope::EnvelopeKind,
    evidence::Equivocation,
    message::{OrderReply, PreprocessMsg, SKEW_MS, SignOrderMsg, encode},
    meter,
    preprocess::NonceQuery,
    verify::verify,
};

/// How an attempt has ended.
enum AttemptOutcome {
    Signed(Vec<Signature>),
    /// With the same nodes, but without nonces made ahead, it may go well.
    NoNonces,
    Failed,
}

impl ClusterInner {
    pub(super) async fn sign(
        &self,
        order: &SigningOrder,
        session: SessionId,
        holders: &[NodeId],
        threshold: u16,
        deadline_ms: u64,
    ) -> Result<Vec<Signature>, Fault> {
        let deadline_ms = deadline_ms.min(order.expires_at_ms);
        let needed = usize::from(threshold);
        let mut request = SignOrderMsg {
            order: order.clone(),
            session,
            signers: Vec::new(),
            nonces: Vec::new(),
            attempt_ms: 0,
            sent_at_ms: 0,
        };
        let wanted = ExpectedReply::Signatures(order.inputs.len(), order.network.curve());
        let mut call = self.call(wanted, order.epoch, session, holders)?;
        let mut failures = AttemptFailures::default();
        let mut attempt = 0_u32;
        // The schemes of the other curve make nothing ahead.
        let mut preprocess = order.network.curve() == Curve::Ed25519;
        if preprocess {
            self.preprocess
                .want(&order.root_public_key, order.epoch, holders);
        }
        loop {
            let now_ms = self.clock.now_ms();
            if now_ms >= deadline_ms {
                return Err(self.node_registry.too_few(holders, needed, &failures));
            }
            if is_future(order.issued_at_ms, now_ms) {
                // Nobody would take it for as long as that was. An order of now is taken.
                return Err(Fault::unavailable(
                    "the orchestrator's clock was set back while signers were asked",
                ));
            }
            let signing_set = match self
                .node_registry
                .select_signers(holders, needed, &failures)
            {
                Ok(signing_set) => signing_set,
                Err(NoSigningSet::Wait) => {
                    let left = Duration::from_millis(deadline_ms.saturating_sub(now_ms));
                    match late(order, &mut call, POLL_INTERVAL.min(left)).await {
                        Some(signatures) => return Ok(signatures),
                        None => continue,
                    }
                }
                Err(NoSigningSet::Never) => return Err(self.give_up(holders, needed, failures)),
            };
            // What is slow, a backend or a machine, gets more time after two tries.
            let longer = 1 << (attempt / 2).min(3);
            let attempt_ms = u64::try_from(self.attempt.as_millis())
                .unwrap_or(u64::MAX)
                .saturating_mul(longer);
            request.nonces = if preprocess {
                self.name_nonces(order, &signing_set.signers)
            } else {
                Vec::new()
            };
            request.signers = signing_set.signers.clone();
            request.attempt_ms = attempt_ms.min(deadline_ms.saturating_sub(now_ms));
            request.sent_at_ms = now_ms;
            let body = encode(&request)?;
            for signer in &signing_set.signers {
                let place = (order.epoch, session, attempt);
                self.send(EnvelopeKind::SigningOrder, place, *signer, &body)?;
            }
            let ended = self
                .await_attempt(order, &mut call, &request, attempt, &mut failures)
                .await;
            meter::attempted(matches!(ended, AttemptOutcome::Signed(_)));
            match ended {
                AttemptOutcome::Signed(signatures) => return Ok(signatures),
                // Nobody's fault: the nodes commit anew.
                AttemptOutcome::NoNonces => preprocess = false,
                AttemptOutcome::Failed => {
                    failures.failed(&signing_set.signers);
                    // The second try comes at once; what fails again and again must not spin.
                    if attempt > 0
                        && let Some(signatures) = late(order, &mut call, POLL_INTERVAL).await
                    {
                        return Ok(signatures);
                    }
                }
            }
            attempt = attempt
                .checked_add(1)
                .ok_or_else(|| Fault::bug("too many attempts"))?;
        }
    }

    /// Names nonces that were made ahead, if every signer has some, and asks those who have none.
    fn name_nonces(&self, order: &SigningOrder, signers: &[NodeId]) -> Vec<Vec<u64>> {
        let root = &order.root_public_key;
        let (nonces, asks) = self.preprocess.name(root, signers, order.inputs.len());
        self.ask(root, order.epoch, asks);
        nonces
    }

    pub(super) fn ask(&self, root: &[u8], epoch: u32, asks: impl IntoIterator<Item = NonceQuery>) {
        for NonceQuery { node, spent_below } in asks {
            let of = (root.to_vec(), epoch);
            let sent = encode(&PreprocessMsg::Ask { of, spent_below }).and_then(|body| {
                self.send(
                    EnvelopeKind::Nonces,
                    (epoch, SessionId::from_bytes([0; 16]), 0),
                    node,
                    &body,
                )
            });
            if let Err(fault) = sent {
                tracing::warn!(?fault, "cannot ask for nonces");
            }
        }
    }

    /// Waits for the signatures of an attempt; when it has failed, `failures` says why.
    async fn await_attempt(
        &self,
        order: &SigningOrder,
        call: &mut CallGuard<'_>,
        request: &SignOrderMsg,
        attempt: u32,
        failures: &mut AttemptFailures,
    ) -> AttemptOutcome {
        let signing_set = request.signers.as_slice();
        let ends_ms = request.sent_at_ms.saturating_add(request.attempt_ms);
        let mut reported: Vec<NodeId> = Vec::new();
        loop {
            let now_ms = self.clock.now_ms();
            let left = if is_future(request.sent_at_ms, now_ms) {
                0
            } else {
                ends_ms
                    .saturating_add(REPLY_GRACE_MS)
                    .saturating_sub(now_ms)
            };
            let patience = Duration::from_millis(left).min(POLL_INTERVAL);
            match timeout(patience, call.replies.recv()).await {
                Err(_) | Ok(None) => {
                    let gone: Vec<NodeId> = signing_set
                        .iter()
                        .filter(|node| !self.node_registry.live(node))
                        .copied()
                        .collect();
                    if left > 0 && gone.is_empty() {
                        continue;
                    }
                    if !gone.is_empty() {
                        // Do not penalise signers that are still live.
                        self.suspect(&gone, failures);
                        return AttemptOutcome::Failed;
                    }
                    // With nonces made ahead only the collector has anything to say: the others are
                    // done once they have sent their shares.
                    let speakers = if request.nonces.is_empty() {
                        signing_set
                    } else {
                        signing_set.get(..1).unwrap_or_default()
                    };
                    let silent: Vec<NodeId> = speakers
                        .iter()
                        .filter(|node| !reported.contains(node))
                        .copied()
                        .collect();
                    self.failed(signing_set, &silent, failures);
                    return AttemptOutcome::Failed;
                }
                // Of whichever attempt: what verifies is good.
                Ok(Some((node, of, OrderReply::Signed(signatures)))) => {
                    if verify(order, &signatures).is_ok() {
                        // All of them: the collector could not have done it alone.
                        if of == attempt {
                            for node in signing_set {
                                self.node_registry.clear_suspicion(node);
                            }
                        }
                        return AttemptOutcome::Signed(signatures);
                    }
                    tracing::warn!(?node, "a node sent signatures that do not verify");
                    failures.misbehaved(node, node);
                    self.suspect(&[node], failures);
                    if signing_set.contains(&node) {
                        return AttemptOutcome::Failed;
                    }
                }
                Ok(Some((node, of, OrderReply::Refused(fault))))
                    if of == attempt && signing_set.contains(&node) =>
                {
                    tracing::warn!(?node, ?fault, "a node refused an order");
                    meter::was_refused(&fault);
                    match fault.class() {
                        Class::Unavailable => self.suspect(&[node], failures),
                        // No verdict on the order: clocks are set right again.
                        Class::Invalid if fault.code() == FaultCode::Time => {
                            self.suspect(&[node], failures)
                        }
                        // It has banned one of the others.
                        Class::Peer { culprits } => {
                            let banned: Vec<NodeId> = signing_set
                                .iter()
                                .filter(|other| **other != node)
                                .filter(|other| culprits.contains(&other.openssh_line("")))
                                .copied()
                                .collect();
                            for other in &banned {
                                failures.misbehaved(node, *other);
                                self.node_registry.record_mistrust(&node, other);
                            }
                            if banned.is_empty() {
                                failures.refused(node, fault);
                            }
                        }
                        _ => failures.refused(node, fault),
                    }
                    return AttemptOutcome::Failed;
                }
                Ok(Some((
                    node,
                    of,
                    OrderReply::Failed {
                        culprits,
                        missing,
                        reason,
                        evidence,
                    },
                ))) if of == attempt && signing_set.contains(&node) => {
                    tracing::warn!(?node, ?culprits, ?missing, %reason, "a signing attempt failed");
                    let shown = Equivocation::read(&evidence).and_then(|it| it.accused());
                    if let Some(accused) = shown {
                        let accused = self.node_registry.name(&accused);
                        tracing::error!(%accused, %evidence, "a node has said two different things: check the evidence with covault node evidence");
                    }
                    let mut named = false;
                    for culprit in culprits
                        .iter()
                        .filter(|culprit| signing_set.contains(culprit))
                    {
                        failures.misbehaved(node, *culprit);
                        self.node_registry.record_mistrust(&node, culprit);
                        named = true;
                    }
                    if named {
                        return AttemptOutcome::Failed;
                    }
                    let missing: Vec<NodeId> = missing
                        .into_iter()
                        .filter(|other| signing_set.contains(other) && *other != node)
                        .collect();
                    if missing.is_empty() {
                        // Nobody can be named: try whom we have not tried.
                        self.failed(signing_set, signing_set, failures);
                        return AttemptOutcome::Failed;
                    }
                    // A word against a word: no matter who lies, this team does not work.
                    self.failed(signing_set, &missing, failures);
                    reported.push(node);
                    if reported.len() == signing_set.len() {
                        return AttemptOutcome::Failed;
                    }
                }
                Ok(Some((node, at, OrderReply::NoNonces { of })))
                    if at == attempt && signing_set.contains(&node) =>
                {
                    tracing::info!(?node, ?of, "preprocessed nonces are missing");
                    let root = &order.root_public_key;
                    self.ask(root, order.epoch, self.preprocess.lacking(root, node, of));
                    // Said of a request that names none it would be a way to stop us.
                    if request.nonces.is_empty() {
                        self.failed(signing_set, &[node], failures);
                        return AttemptOutcome::Failed;
                    }
                    return AttemptOutcome::NoNonces;
                }
                // Of an earlier attempt.
                Ok(Some(_)) => {}
            }
        }
    }

    fn suspect(&self, nodes: &[NodeId], failures: &mut AttemptFailures) {
        for node in nodes {
            self.node_registry.suspect(node, true);
            failures.was_silent(*node);
        }
    }

    /// The team failed, and nobody is to blame for certain: those who say whom they missed may
    /// have kept silent themselves. So all are suspect, the missed ones more.
    fn failed(&self, signing_set: &[NodeId], missed: &[NodeId], failures: &mut AttemptFailures) {
        for node in signing_set {
            self.node_registry.suspect(node, false);
        }
        self.suspect(missed, failures);
    }

    fn give_up(&self, holders: &[NodeId], needed: usize, mut failures: AttemptFailures) -> Fault {
        // Fewer refusals than it takes to stop the rest are no verdict: one node may lie.
        let verdict = holders.len().saturating_sub(needed).saturating_add(1);
        if failures.refusals().count() < verdict && !failures.culprits().is_empty() {
            return self.node_registry.misbehaved(&failures.culprits());
        }
        if let Some((node, fault)) = failures.take_refusal() {
            let sentence = format!(
                "{} refused to sign: {}",
                self.node_registry.name(&node),
                fault.message()
            );
            return Fault::new(fault.class().clone(), sentence)
                .with_execute_code(fault.execute_code());
        }
        let culprits = failures.culprits();
        if culprits.is_empty() {
            return self.node_registry.too_few(holders, needed, &failures);
        }
        self.node_registry.misbehaved(&culprits)
    }
}

/// Whether a moment that was the present can no longer be: the clock was set back since.
fn is_future(at_ms: u64, now_ms: u64) -> bool {
    at_ms > now_ms.saturating_add(SKEW_MS)
}

/// Waits while there is nobody to ask, and takes the signatures of an earlier attempt if they come.
async fn late(
    order: &SigningOrder,
    call: &mut CallGuard<'_>,
    patience: Duration,
) -> Option<Vec<Signature>> {
    let signed = async {
        loop {
            match call.replies.recv().await {
                Some((_, _, OrderReply::Signed(signatures)))
                    if verify(order, &signatures).is_ok() =>
                {
                    return signatures;
                }
                Some(_) => {}
                None => return std::future::pending().await,
            }
        }
    };
    timeout(patience, signed).await.ok()
}
