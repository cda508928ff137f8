//! What replies mean for the attempts of a request, and how a request fails when no attempt is left.

use covault_core::{
    fault::{Class, Fault, FaultCode},
    order::NodeId,
};

use super::{AttemptOutcome, ClusterInner, SigningRun};
use crate::{
    cluster::{calls::NodeReply, node_registry::SigningFor, select_signers::AttemptFailures},
    evidence::Equivocation,
    message::OrderReply,
    meter,
    verify::verify,
};

impl ClusterInner {
    /// Notes how long the attempt took, and who was in another one that takes longer.
    pub(super) fn note_signed(&self, run: &SigningRun<'_>, number: u32) {
        meter::attempted(true);
        let Some(place) = run.place_of(number) else {
            return;
        };
        let Some(done) = run.running.get(place) else {
            return;
        };
        let signers = &done.team.signers;
        for node in signers {
            // All of them: the collector could not have done it alone.
            self.node_registry.clear_suspicion(node);
        }
        let overtaken = run.running.iter().filter(|other| other.number < number);
        let overtook = overtaken.map(|other| other.sent.elapsed()).max();
        self.node_registry
            .answered(&run.ask, &done.team, done.sent.elapsed(), overtook);
        for other in &run.running {
            let others = other.team.signers.iter().copied();
            let others = others.filter(|node| !signers.contains(node));
            self.node_registry
                .late(&run.ask, others, other.sent.elapsed());
        }
    }

    /// What a reply means for the attempt that it is of: how that has ended, if it has.
    pub(super) fn take_reply(
        &self,
        run: &mut SigningRun<'_>,
        (node, of, reply): NodeReply,
    ) -> Option<AttemptOutcome> {
        let SigningRun {
            order,
            running,
            failures,
            ..
        } = run;
        let reply = match reply {
            // Of whichever attempt: what verifies is good.
            OrderReply::Signed(signatures) => {
                if let Ok(verified) = verify(order, signatures) {
                    return Some(AttemptOutcome::Signed(verified));
                }
                tracing::warn!(?node, "a node sent signatures that do not verify");
                failures.misbehaved(node, node);
                self.suspect(&[node], failures);
                let attempt = running.iter().find(|attempt| attempt.number == of)?;
                let member = attempt.team.signers.contains(&node);
                return member.then_some(AttemptOutcome::Failed);
            }
            reply => reply,
        };
        // Others are of an earlier attempt.
        let attempt = running
            .iter_mut()
            .find(|attempt| attempt.number == of && attempt.team.signers.contains(&node))?;
        let signing_set = attempt.team.signers.as_slice();
        match reply {
            OrderReply::Busy => {
                tracing::debug!(?node, "a node is busy");
                self.node_registry.busy(&run.ask, &node, attempt.sent);
                run.crowded = true;
                Some(AttemptOutcome::Busy)
            }
            OrderReply::Refused(fault) => {
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
                Some(AttemptOutcome::Failed)
            }
            OrderReply::Failed {
                culprits,
                missing,
                reason,
                evidence,
            } => {
                tracing::warn!(?node, ?culprits, ?missing, %reason, "a signing attempt failed");
                let shown = Equivocation::read(&evidence).and_then(|it| it.accused());
                if let Some(accused) = shown {
                    let accused = self.node_registry.name(&accused);
                    tracing::error!(
                        %accused,
                        %evidence,
                        "a node signed two conflicting messages: check the evidence with covault node evidence"
                    );
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
                    return Some(AttemptOutcome::Failed);
                }
                let missing: Vec<NodeId> = missing
                    .into_iter()
                    .filter(|other| signing_set.contains(other) && *other != node)
                    .collect();
                if missing.is_empty() {
                    // Nobody can be named: try whom we have not tried.
                    self.failed(signing_set, signing_set, failures);
                    return Some(AttemptOutcome::Failed);
                }
                // A word against a word: no matter who lies, this team does not work.
                self.failed(signing_set, &missing, failures);
                attempt.reported.push(node);
                let all = attempt.reported.len() == attempt.team.signers.len();
                all.then_some(AttemptOutcome::Failed)
            }
            OrderReply::NoNonces { of } => {
                tracing::info!(?node, ?of, "preprocessed nonces are missing");
                let root = &order.root_public_key;
                self.ask(root, order.epoch, self.preprocess.lacking(root, node, of));
                // Said of a request that names none it would be a way to stop us.
                if !attempt.named {
                    self.failed(signing_set, &[node], failures);
                    return Some(AttemptOutcome::Failed);
                }
                // Nobody's fault: the nodes commit again.
                run.preprocess = false;
                Some(AttemptOutcome::NoNonces)
            }
            _ => None,
        }
    }

    pub(super) fn suspect(&self, nodes: &[NodeId], failures: &mut AttemptFailures) {
        for node in nodes {
            self.node_registry.suspect(node, true);
            failures.was_silent(*node);
        }
    }

    /// The team failed, and nobody is to blame for certain: those who say whom they missed may
    /// have kept silent themselves. So all are suspect, the missed ones more.
    pub(super) fn failed(
        &self,
        signing_set: &[NodeId],
        missed: &[NodeId],
        failures: &mut AttemptFailures,
    ) {
        for node in signing_set {
            self.node_registry.suspect(node, false);
        }
        self.suspect(missed, failures);
    }

    /// What a signer says that wants more approvals, or others; `None` where it refuses for another reason.
    pub(in crate::cluster) fn wanted_approvals(
        &self,
        node: &NodeId,
        fault: &Fault,
    ) -> Option<String> {
        let verb = match fault.code() {
            FaultCode::ApprovalsMissing | FaultCode::Held { .. } => "",
            _ if is_about_approvals(fault) => "refuses ",
            _ => return None,
        };
        let name = self.node_registry.name(node);
        Some(format!("{name} {verb}{}", fault.message()))
    }

    pub(super) fn give_up(
        &self,
        holders: &[NodeId],
        needed: usize,
        mut failures: AttemptFailures,
        signing_for: SigningFor,
    ) -> Fault {
        // Fewer refusals than it takes to stop the rest are no verdict: one node may lie.
        let verdict = holders.len().saturating_sub(needed).saturating_add(1);
        if failures.refusals().count() < verdict && !failures.culprits().is_empty() {
            return self.node_registry.misbehaved(&failures.culprits());
        }
        // With more approvals, or others (a higher fee, a later end), these might sign, and no more than can be done
        // without will not.
        let refusals = failures.refusals();
        let wants = refusals.filter_map(|(node, fault)| self.wanted_approvals(node, fault));
        let wants: Vec<String> = wants.collect();
        let for_good = failures.refusals().count().saturating_sub(wants.len());
        if !wants.is_empty() && for_good < verdict {
            // Where people have to approve more, waiting alone does not help.
            let code = failures
                .refusals()
                .filter_map(|(_, fault)| match fault.code() {
                    FaultCode::Held { until_ms } => Some(Some(until_ms)),
                    FaultCode::ApprovalsMissing => Some(None),
                    _ => is_about_approvals(fault).then_some(None),
                });
            let until_ms = code.collect::<Option<Vec<u64>>>().and_then(|mut until_ms| {
                until_ms.sort_unstable();
                // So many of them are needed, and the first ones to let go are those.
                let free = holders.len().saturating_sub(until_ms.len());
                let last = needed.saturating_sub(free).saturating_sub(1);
                until_ms.get(last).copied()
            });
            let code = match until_ms {
                Some(until_ms) => FaultCode::Held { until_ms },
                None => FaultCode::ApprovalsMissing,
            };
            return Fault::of_several(Class::Invalid, wants).with_code(code);
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
            return self
                .node_registry
                .too_few(holders, needed, &failures, Some(signing_for));
        }
        self.node_registry.misbehaved(&culprits)
    }
}

fn is_about_approvals(fault: &Fault) -> bool {
    fault.path().is_some_and(|at| at.starts_with("approvals"))
}
