//! Asking a client signer before anyone signs.

use std::time::Duration;

use covault_core::{
    approval::{ApprovalProof, ApproverKey, GivenApproval, MAX_VALIDITY_MS},
    fault::{Class, Fault, FaultCode},
    order::{NodeId, SigningOrder},
};
use tokio::time::timeout;

use super::crowded;
use crate::{
    cluster::{
        ClusterInner, ExpectedReply, POLL_INTERVAL, SigningTask, not_sent,
        select_signers::AttemptFailures,
    },
    envelope::EnvelopeKind,
    message::{OrderReply, SKEW_MS, SignOrderMsg, encode},
};

/// The attempt that questions are of: one that no session reaches.
const QUESTION: u32 = u32::MAX;
/// How long a question may have got lost before it is put again, in milliseconds.
const REPEAT_MS: u64 = 10_000;
/// The same where the node could not answer it, in milliseconds.
const RETRY_MS: u64 = 500;

impl ClusterInner {
    /// The order with the client signer's approval, without which that signs nothing.
    ///
    /// # Errors
    /// Its refusal, and [`Class::Unavailable`] when it has not answered in time.
    pub(super) async fn ask_client_signer(
        &self,
        order: &SigningOrder,
        task: &SigningTask<'_>,
        signer: NodeId,
    ) -> Result<SigningOrder, Fault> {
        let mut order = order.clone();
        let name = || self.node_registry.name(&signer);
        if !task.holders.contains(&signer) {
            let sentence = format!("client signer {} holds no share of the vault's key", name());
            return Err(Fault::new(Class::WrongState, sentence));
        }
        if order.approvals.given.is_empty() {
            // Bound by nothing else, it is by what this very transaction costs, and for as long as any: nodes that have
            // just got their shares take none that ends soon.
            order.approvals.most_fee = u128::try_from(order.most_fee()?).unwrap_or(u128::MAX);
            order.approvals.valid_until_ms =
                (order.issued_at_ms.saturating_add(MAX_VALIDITY_MS)).saturating_sub(SKEW_MS);
        }
        let key = ApproverKey::parse(&signer.openssh_line(""))?;
        let challenge = order.approval().id()?;
        let deadline_ms = task.deadline_ms.min(order.expires_at_ms);
        let place = (order.epoch, task.session, QUESTION);
        let mut call = self.call(
            ExpectedReply::Approval,
            order.epoch,
            task.session,
            &[signer],
        )?;
        self.node_registry.want(task.holders);
        // When it is to be put next, and which start of the node it was put to.
        let (mut due_ms, mut asked) = (0, None);
        let mut silent = true;
        // When it has answered that it has too many questions. It counts until an answer to what was asked since then is
        // overdue.
        let mut busy_at_ms = None;
        // Why it could not answer, when it was asked last.
        let mut cannot = None;
        loop {
            let now_ms = self.clock.now_ms();
            if now_ms >= deadline_ms {
                if let Some(sentence) = cannot {
                    return Err(Fault::unavailable(sentence));
                }
                if busy_at_ms.is_some_and(|at_ms: u64| now_ms < at_ms.saturating_add(REPEAT_MS)) {
                    return Err(crowded(None));
                }
                return Err(match silent {
                    true => self.node_registry.too_few(
                        &[signer],
                        1,
                        &AttemptFailures::of_silent(&[signer]),
                        Some((order.vault, Some(signer))),
                    ),
                    false => not_sent(),
                });
            }
            if self.node_registry.is_ordinary(&signer) {
                let sentence = format!("{} is no client signer", name());
                return Err(Fault::new(Class::WrongState, sentence));
            }
            let start = self.node_registry.start_of(&signer);
            if self.node_registry.live(&signer) && (now_ms >= due_ms || asked != Some(start)) {
                let body = encode(&SignOrderMsg {
                    order: order.clone(),
                    session: task.session,
                    signers: Vec::new(),
                    nonces: Vec::new(),
                    attempt_ms: deadline_ms.saturating_sub(now_ms),
                    sent_at_ms: now_ms,
                    trace: None,
                })?;
                silent = self.try_send(EnvelopeKind::SigningOrder, place, signer, &body)?;
                if silent {
                    (due_ms, asked) = (now_ms.saturating_add(REPEAT_MS), Some(start));
                }
            }
            let left = Duration::from_millis(deadline_ms.saturating_sub(now_ms));
            let reply = timeout(POLL_INTERVAL.min(left), call.replies.recv()).await;
            let Ok(Some((_, QUESTION, reply))) = reply else {
                continue;
            };
            match reply {
                OrderReply::Approved(signature) => {
                    let proof = ApprovalProof::Node {
                        node: signer,
                        signature,
                    };
                    if let Err(fault) = key.verify(&proof, &challenge) {
                        tracing::warn!(?signer, ?fault, "a client signer's approval is not valid");
                        return Err(self.node_registry.misbehaved(&[signer]));
                    }
                    let list = Vec::new();
                    order.approvals.given.push(GivenApproval { list, proof });
                    order.approvals.check_bounds()?;
                    return Ok(order);
                }
                OrderReply::Refused(fault) => {
                    let sentence = format!("{} refused to sign: {}", name(), fault.message());
                    // It may not have been told of its new shares yet, and no other node can do it instead.
                    let behind = matches!(fault.path(), Some("epoch" | "rootPublicKey"));
                    if behind
                        || *fault.class() == Class::Unavailable
                        || fault.code() == FaultCode::Time
                    {
                        (cannot, busy_at_ms) = (Some(sentence), None);
                        due_ms = self.clock.now_ms().saturating_add(RETRY_MS);
                        continue;
                    }
                    // As of a team that refuses: people may approve a higher fee, or for longer.
                    let terms = fault.path().is_some_and(|at| at.starts_with("approvals"));
                    let code = match terms {
                        true => FaultCode::ApprovalsMissing,
                        false => fault.code(),
                    };
                    return Err(Fault::new(fault.class().clone(), sentence)
                        .with_code(code)
                        .with_execute_code(fault.execute_code()));
                }
                OrderReply::Busy => {
                    let now_ms = self.clock.now_ms();
                    busy_at_ms = Some(now_ms);
                    due_ms = now_ms.saturating_add(RETRY_MS);
                }
                _ => {}
            }
        }
    }
}
