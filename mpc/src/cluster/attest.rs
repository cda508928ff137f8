//! Statements about addresses, as the orchestrator asks for them.

use std::{collections::BTreeSet, time::Duration};

use covault_core::{
    attest::{AttestOrder, NodeStatements},
    fault::Fault,
    order::NodeId,
};
use tokio::time::timeout;

use super::{
    Cluster, ClusterInner, ExpectedReply, POLL_INTERVAL, not_sent, select_signers::AttemptFailures,
};
use crate::{
    attest::has_signed,
    envelope::EnvelopeKind,
    message::{AttestOrderMsg, OrderReply, encode},
};

/// Bytes of a signature.
pub(super) const SIGNATURE_LEN: usize = 64;

impl Cluster {
    /// Asks the live `holders` to state that the order's addresses are the vault's. The statements of
    /// `threshold` nodes, each verified; fails at once while too few holders live.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] naming who did not answer within `patience`, with the code
    /// [`covault_core::fault::FaultCode::Busy`] when the bus has not taken the order.
    pub async fn attest(
        &self,
        order: &AttestOrder,
        holders: &[NodeId],
        threshold: u16,
        patience: Duration,
    ) -> Result<Vec<NodeStatements>, Fault> {
        self.shared
            .attest(order, holders, threshold, patience)
            .await
    }
}

impl ClusterInner {
    async fn attest(
        &self,
        order: &AttestOrder,
        holders: &[NodeId],
        threshold: u16,
        patience: Duration,
    ) -> Result<Vec<NodeStatements>, Fault> {
        let threshold = usize::from(threshold);
        self.node_registry.want(holders);
        let wanted = ExpectedReply::Attestations(order.addresses.len());
        let mut call = self.call(wanted, order.epoch, order.session, holders)?;
        let mut silent: BTreeSet<NodeId> = holders.iter().copied().collect();
        silent.retain(|node| self.node_registry.live(node));
        let ends_ms = self
            .clock
            .now_ms()
            .saturating_add(u64::try_from(patience.as_millis()).unwrap_or(u64::MAX));
        let mut unsent = BTreeSet::new();
        if silent.len() >= threshold {
            unsent.clone_from(&silent);
        }
        let texts: Vec<String> = order.statements().map(|it| it.text()).collect();
        let texts = std::sync::Arc::new(texts);
        let mut stated: Vec<NodeStatements> = Vec::new();
        while stated.len() < threshold {
            let now_ms = self.clock.now_ms();
            if !unsent.is_empty() {
                let body = encode(&AttestOrderMsg {
                    order: order.clone(),
                    sent_at_ms: now_ms,
                })?;
                let place = (order.epoch, order.session, 0);
                self.send_to_rest(EnvelopeKind::AttestOrder, place, &mut unsent, &body)?;
            }
            let left_ms = ends_ms.saturating_sub(now_ms);
            let live = silent
                .iter()
                .filter(|node| self.node_registry.live(node))
                .count();
            let enough_live = stated.len().saturating_add(live) >= threshold;
            if enough_live && left_ms == 0 && !unsent.is_empty() {
                return Err(not_sent());
            }
            if !enough_live || left_ms == 0 {
                let silent: Vec<NodeId> = silent.into_iter().collect();
                let failures = AttemptFailures::of_silent(&silent);
                return Err(self
                    .node_registry
                    .too_few(holders, threshold, &failures, None));
            }
            let wait = POLL_INTERVAL.min(Duration::from_millis(left_ms));
            match timeout(wait, call.replies.recv()).await {
                Ok(Some((node, 0, OrderReply::Attested(bytes)))) if silent.remove(&node) => {
                    // A hundred verifications take some milliseconds.
                    let texts = std::sync::Arc::clone(&texts);
                    let checked =
                        tokio::task::spawn_blocking(move || signatures(&node, &texts, &bytes));
                    match checked.await.map_err(Fault::bug)? {
                        Some(signatures) => stated.push((node, signatures)),
                        None => {
                            let node = self.node_registry.name(&node);
                            tracing::warn!(%node, "a node's statements about addresses are not signed by it; \
                                                   ignoring the node");
                        }
                    }
                }
                Ok(Some((node, 0, OrderReply::Refused(fault)))) if silent.remove(&node) => {
                    let node = self.node_registry.name(&node);
                    tracing::warn!(%node, ?fault, "a node refused to state addresses");
                }
                Ok(None) => return Err(Fault::bug("a call without an end")),
                _ => {}
            }
        }
        Ok(stated)
    }
}

/// The signatures of a reply, when every one is the node's.
fn signatures(node: &NodeId, texts: &[String], bytes: &[u8]) -> Option<Vec<[u8; SIGNATURE_LEN]>> {
    let (signatures, rest) = bytes.as_chunks::<SIGNATURE_LEN>();
    let signed =
        |(text, signature): (&String, &[u8; SIGNATURE_LEN])| has_signed(node, text, signature);
    let sound = rest.is_empty()
        && signatures.len() == texts.len()
        && texts.iter().zip(signatures).all(signed);
    sound.then(|| signatures.to_vec())
}
