//! Keys, as the orchestrator asks for them.

use std::{collections::HashMap, time::Duration};

use covault_core::{
    attest::{KeyStatement, MadeKey},
    derive::RootKey,
    fault::{Class, Fault},
    order::{KeygenOrder, NodeId},
    signature::Curve,
};
use tokio::time::{sleep, timeout};

use super::{
    ClusterInner, ExpectedReply, NodeReply, POLL_INTERVAL, REPLY_GRACE_MS, RESEND_MS,
    select_signers::AttemptFailures,
};
use crate::{
    attest::has_signed,
    envelope::EnvelopeKind,
    message::{KeygenOrderMsg, OrderReply, encode},
    shares::FIRST_EPOCH,
};

/// What a node says of the key: the key, the run's transcript, its signature over both.
type KeygenResult = (RootKey, [u8; 32], Vec<u8>);

impl ClusterInner {
    pub(super) async fn keygen(&self, order: &KeygenOrder) -> Result<MadeKey, Fault> {
        let mut call = self.call(
            ExpectedReply::Key,
            FIRST_EPOCH,
            order.session,
            &order.signers,
        )?;
        self.node_registry.want(&order.signers);
        // All must be there at the same time.
        while !order
            .signers
            .iter()
            .all(|signer| self.node_registry.live(signer))
        {
            if self.clock.now_ms() >= order.expires_at_ms {
                return Err(self.no_key(order, &[]));
            }
            sleep(POLL_INTERVAL).await;
        }
        let ends_ms = order.expires_at_ms.saturating_add(REPLY_GRACE_MS);
        // Late in its life an order that was lost is of no use, and whose clock is ahead would call
        // it expired.
        let repeated_until_ms = order.issued_at_ms.midpoint(order.expires_at_ms);
        let mut again_ms = Some(self.clock.now_ms());
        let mut made: HashMap<NodeId, KeygenResult> = HashMap::new();
        while made.len() < order.signers.len() {
            let silent = || {
                let silent = order.signers.iter();
                let silent = silent.filter(|node| !made.contains_key(node));
                silent.copied().collect::<Vec<NodeId>>()
            };
            let now_ms = self.clock.now_ms();
            if again_ms.is_some_and(|again_ms| now_ms >= again_ms) {
                self.send_keygen(order, &silent())?;
                again_ms = Some(now_ms.saturating_add(RESEND_MS));
                again_ms = again_ms.filter(|again_ms| *again_ms < repeated_until_ms);
            }
            if now_ms >= ends_ms {
                return Err(self.no_key(order, &silent()));
            }
            let until_ms = again_ms.unwrap_or(ends_ms).min(ends_ms);
            let patience = Duration::from_millis(until_ms.saturating_sub(now_ms));
            match timeout(patience, call.replies.recv()).await {
                Err(_) => {}
                Ok(None) => return Err(Fault::bug("a call without an end")),
                Ok(Some(said)) => {
                    if let Some((node, key)) = self.key_reply(order, said)? {
                        made.insert(node, key);
                    }
                }
            }
        }
        let mut first: Option<(RootKey, [u8; 32])> = None;
        let mut confirmed = Vec::with_capacity(order.signers.len());
        for signer in &order.signers {
            let said = made.remove(signer);
            let (root, transcript, signature) = said.ok_or_else(|| Fault::bug("no answer"))?;
            let key = (root, transcript);
            if first.get_or_insert_with(|| key.clone()) != &key {
                return Err(Fault::bug("the nodes report different keys"));
            }
            confirmed.push(signature);
        }
        let (root, _) = first.ok_or_else(|| Fault::bug("no signers"))?;
        if root.curve != order.scheme.curve() {
            return Err(Fault::bug("the nodes report a key of another curve"));
        }
        if root.curve == Curve::Ed25519 {
            let root = &root.public_key;
            self.preprocess.want(root, FIRST_EPOCH, &order.signers);
            self.ask(root, FIRST_EPOCH, self.preprocess.ask_all(root));
        }
        Ok(MadeKey { root, confirmed })
    }

    /// Sends the order. A node that has it already ignores it, or reports the resulting key again.
    fn send_keygen(&self, order: &KeygenOrder, to: &[NodeId]) -> Result<(), Fault> {
        let body = encode(&KeygenOrderMsg {
            order: order.clone(),
            sent_at_ms: self.clock.now_ms(),
        })?;
        for signer in to {
            let place = (FIRST_EPOCH, order.session, 0);
            // What is lost is repeated while nobody answers.
            self.try_send(EnvelopeKind::KeygenOrder, place, *signer, &body)?;
        }
        Ok(())
    }

    fn no_key(&self, order: &KeygenOrder, silent: &[NodeId]) -> Fault {
        let signers = &order.signers;
        let failures = AttemptFailures::of_silent(silent);
        self.node_registry
            .too_few(signers, signers.len(), &failures, None)
    }

    /// Who has made which key; an error when the order can no longer succeed.
    fn key_reply(
        &self,
        order: &KeygenOrder,
        (node, _, reply): NodeReply,
    ) -> Result<Option<(NodeId, KeygenResult)>, Fault> {
        match reply {
            OrderReply::KeyMade {
                root,
                transcript,
                signature,
            } => {
                let statement = KeyStatement {
                    vault: order.vault,
                    scheme: order.scheme,
                    root: root.clone(),
                    epoch: FIRST_EPOCH,
                    threshold: order.threshold,
                    holders: order.signers.clone(),
                    transcript,
                };
                if !has_signed(&node, &statement.text(), &signature) {
                    let node = self.node_registry.name(&node);
                    tracing::warn!(%node, "a node's statement about a new key is not signed by it; treating it as no \
                                           answer");
                    return Ok(None);
                }
                Ok(Some((node, (root, transcript, signature))))
            }
            // It has begun, and was restarted before it was done.
            OrderReply::Refused(fault) if fault.class() == &Class::WrongState => {
                Err(self.no_key(order, &[node]).caused_by(fault.message()))
            }
            OrderReply::Refused(fault) => {
                let name = self.node_registry.name(&node);
                let sentence = format!("{name} refused to make a key: {}", fault.message());
                Err(Fault::new(fault.class().clone(), sentence))
            }
            OrderReply::Failed {
                culprits,
                missing,
                reason,
                ..
            } if culprits.is_empty() => Err(self.no_key(order, &missing).caused_by(reason)),
            OrderReply::Failed {
                culprits, reason, ..
            } => Err(self.node_registry.misbehaved(&culprits).caused_by(reason)),
            OrderReply::Round { round, of } => {
                self.note_round(order.session, node, round, of);
                Ok(None)
            }
            OrderReply::Signed(_)
            | OrderReply::Prepared(_)
            | OrderReply::Activated
            | OrderReply::Backup(_)
            | OrderReply::Attested(_)
            | OrderReply::NoNonces { .. }
            | OrderReply::NotPermitted
            | OrderReply::Busy
            | OrderReply::Approved(_)
            | OrderReply::Noted { .. }
            | OrderReply::Behind { .. } => Ok(None),
        }
    }
}
