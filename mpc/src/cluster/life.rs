//! The life of a key, as the orchestrator asks for it: new generations of shares, and backups.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use covault_core::{
    fault::{Class, Fault},
    order::{
        BackupOrder, Generation, LaterGenerations, NodeId, ProvenGeneration, ReshareOrder,
        ReshareOutcome, ReshareProof, latest_epoch_everywhere,
    },
};
use ed25519_dalek::Signature;
use tokio::time::{sleep, timeout};

use super::{
    Cluster, ClusterInner, ExpectedReply, POLL_INTERVAL, REPLY_GRACE_MS, RESEND_MS, not_sent,
    select_signers::AttemptFailures,
};
use crate::{
    envelope::EnvelopeKind,
    message::{ActivateMsg, BackupOrderMsg, OrderReply, ReshareOrderMsg, encode},
    node::check_proof,
    shares::backup::check_sealed,
};

/// How long nodes have to take new shares into use, or to give a backup, in milliseconds.
const ANSWER_TIMEOUT_MS: u64 = 15_000;
/// Activations are told apart from the runs before them by the attempt.
const ACTIVATION: u32 = 1;

impl Cluster {
    /// Makes a new generation of shares: every party says with a signed statement that the run has
    /// ended well, every new holder once it has stored its share. The old shares keep signing until [`Cluster::activate`]. Repeating an
    /// order that has succeeded gives the same proof. All of [`ReshareOrder::parties`] must live;
    /// they are waited for until the order expires.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when nodes did not answer before the order
    /// expired, or have left the run (the public sentence names them), [`covault_core::fault::Class::Peer`] when some
    /// misbehaved, [`covault_core::fault::Class::Invalid`] when nodes refused,
    /// [`covault_core::fault::Class::Forbidden`] when their operators have to permit the change. The
    /// next attempt needs a new session and a new epoch.
    pub async fn reshare(&self, order: &ReshareOrder) -> Result<ReshareProof, Fault> {
        match self.reshare_or_learn(order).await? {
            ReshareOutcome::Made(proof) => Ok(proof),
            ReshareOutcome::Behind(later) => Err(later.reason),
        }
    }

    /// As [`Cluster::reshare`]. When nodes refuse because they know of later generations than the order,
    /// their proofs of these, which were verified as nodes do it, or the epoch that they say was used.
    ///
    /// # Errors
    /// As [`Cluster::reshare`].
    pub async fn reshare_or_learn(&self, order: &ReshareOrder) -> Result<ReshareOutcome, Fault> {
        self.shared
            .unless_offline(&order.parties(), self.shared.reshare(order))
            .await
    }

    /// Has the new shares taken into use and the old ones retired. Ok when every new holder, and
    /// every old holder that lives, has confirmed. Old holders that are away are to be told later
    /// ([`Cluster::distribute_activation`]). May be repeated for ever: the order's expiry no longer matters.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] naming a node that has not confirmed yet,
    /// [`covault_core::fault::Class::Invalid`] when a node refused.
    pub async fn activate(&self, order: &ReshareOrder, proof: &ReshareProof) -> Result<(), Fault> {
        let everybody: BTreeSet<NodeId> = order
            .new
            .holders
            .iter()
            .chain(&order.old.holders)
            .copied()
            .collect();
        let everybody: Vec<NodeId> = everybody.into_iter().collect();
        let needed = |node: &NodeId| {
            order.new.holders.contains(node) || self.shared.node_registry.live(node)
        };
        let answers = self
            .distribute_activation(order, proof, &[], &everybody)
            .await?;
        let answers = answers.into_iter().filter(|(node, _)| needed(node));
        let mut problems: Vec<Fault> = answers.filter_map(|(_, answer)| answer.err()).collect();
        // What a node refuses says more than that another one is away.
        problems.sort_by_key(|fault| *fault.class() == Class::Unavailable);
        problems.into_iter().next().map_or(Ok(()), Err)
    }

    /// Shows nodes that a generation of shares is on the disks of its holders: these take it into
    /// use, and all retire what they have of earlier ones. `before` has the generations before it
    /// that some of them may not know, oldest first. Each node's answer, in their order; none is
    /// waited for that does not live. May be repeated for ever, and with any nodes.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Bug`] when they cannot be asked at all.
    pub async fn distribute_activation(
        &self,
        order: &ReshareOrder,
        proof: &ReshareProof,
        before: &[ProvenGeneration],
        nodes: &[NodeId],
    ) -> Result<Vec<(NodeId, Result<(), Fault>)>, Fault> {
        self.shared
            .distribute_activation(order, proof, before, nodes)
            .await
    }

    /// Asks holders for their shares, encrypted with age to the order's recipients. Gives each
    /// holder's backup (see [`crate::shares::backup`]) or why there is none: not live, its
    /// configuration does not name the recipients, or the bus has not taken the order
    /// ([`covault_core::fault::FaultCode::Busy`]).
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Bug`] when the order cannot be sent at all.
    pub async fn backup(
        &self,
        order: &BackupOrder,
    ) -> Result<Vec<(NodeId, Result<Vec<u8>, Fault>)>, Fault> {
        self.shared.backup(order).await
    }
}

fn says(node: &NodeId, statement: &[u8], signature: &[u8]) -> bool {
    Signature::from_slice(signature).is_ok_and(|signature| {
        node.verifying_key()
            .is_ok_and(|key| key.verify_strict(statement, &signature).is_ok())
    })
}

/// Passes the epochs that nodes say were used. Any of them is believed, up to what all nodes accept at this time: who
/// lies uses up no more epochs than time brings.
fn pass_epochs(
    order: &ReshareOrder,
    used: impl IntoIterator<Item = u32>,
    reason: Fault,
) -> Result<ReshareOutcome, Fault> {
    let most = latest_epoch_everywhere(order.issued_at_ms).saturating_sub(1);
    match used.into_iter().max().map(|epoch| epoch.min(most)) {
        Some(epoch) if epoch >= order.new.epoch => Ok(ReshareOutcome::Behind(LaterGenerations {
            proven: Vec::new(),
            epoch,
            reason,
        })),
        _ => Err(reason),
    }
}

/// The way from the order's old generation to the last one of these that follows it, each with a good proof. One
/// beside the old one counts, as it does for nodes, when the same hold it.
fn way_from(order: &ReshareOrder, proven: &[ProvenGeneration]) -> Option<Vec<ProvenGeneration>> {
    let is_sound = |it: &&ProvenGeneration| {
        let ProvenGeneration { order: it, proof } = it;
        it.vault == order.vault
            && it.scheme == order.scheme
            && it.root_public_key == order.root_public_key
            && check_proof(it, proof).is_ok()
    };
    let sound: Vec<&ProvenGeneration> = proven.iter().filter(is_sound).collect();
    let made = |of: &Generation| sound.iter().copied().find(|it| it.order.new == *of);
    let present = &order.old;
    let before = made(present).map(|it| &it.order.old);
    let last = sound.iter().copied();
    let last = last.filter(|it| it.order.new.epoch > present.epoch);
    let mut next = last.max_by_key(|it| it.order.new.epoch);
    let mut way = Vec::new();
    // Epochs fall: it ends.
    while let Some(it) = next {
        way.push(it.clone());
        let Generation {
            threshold, holders, ..
        } = &it.order.new;
        let beside = Some(&it.order.old) == before && present.is_held_as(*threshold, holders);
        if it.order.old == *present || beside {
            way.reverse();
            return Some(way);
        }
        next = made(&it.order.old);
    }
    None
}

impl ClusterInner {
    fn refused(&self, node: &NodeId, what: &str, fault: &Fault) -> Fault {
        let sentence = format!(
            "{} refused {what}: {}",
            self.node_registry.name(node),
            fault.message()
        );
        Fault::new(fault.class().clone(), sentence)
    }

    /// What the operators of these nodes have to do. The code is of the order, and not of what nodes
    /// say.
    fn not_permitted(
        &self,
        order: &ReshareOrder,
        nodes: &BTreeSet<NodeId>,
    ) -> Result<Fault, Fault> {
        let names: Vec<String> = nodes
            .iter()
            .map(|node| self.node_registry.name(node))
            .collect();
        let sentence = format!(
            "these nodes wait for a permit of their operators: {}. On the machine of each run: covault node permit {}",
            names.join(", "),
            order.change().code()?
        );
        Ok(Fault::new(Class::Forbidden, sentence))
    }

    fn silent(&self, nodes: &[NodeId], silent: &[NodeId]) -> Fault {
        self.node_registry.too_few(
            nodes,
            nodes.len(),
            &AttemptFailures::of_silent(silent),
            None,
        )
    }

    async fn reshare(&self, order: &ReshareOrder) -> Result<ReshareOutcome, Fault> {
        order.check()?;
        let statement = order.statement()?;
        let parties = order.parties();
        let mut call = self.call(
            ExpectedReply::Statements,
            order.new.epoch,
            order.session,
            &parties,
        )?;
        self.node_registry.want(&parties);
        // All must be there at the same time.
        while !parties.iter().all(|party| self.node_registry.live(party)) {
            if self.clock.now_ms() >= order.expires_at_ms {
                return Err(self.silent(&parties, &[]));
            }
            sleep(POLL_INTERVAL).await;
        }
        let mut proof: BTreeMap<NodeId, Vec<u8>> = BTreeMap::new();
        // Whom the nodes say they missed, and how many say so. Who is silent misses the others.
        let mut missed: BTreeMap<NodeId, usize> = BTreeMap::new();
        let mut reason = None;
        let mut forbidden: BTreeSet<NodeId> = BTreeSet::new();
        let mut used = Vec::new();
        let mut behind = None;
        let mut ends_ms = order.expires_at_ms.saturating_add(REPLY_GRACE_MS);
        // As in key generation.
        let repeated_until_ms = order.issued_at_ms.midpoint(order.expires_at_ms);
        let mut again_ms = Some(self.clock.now_ms());
        let mut heard: BTreeSet<NodeId> = BTreeSet::new();
        loop {
            if proof.len() == parties.len() {
                let in_order = parties.iter().filter_map(|party| {
                    let signature = proof.remove(party)?;
                    Some((*party, signature))
                });
                return Ok(ReshareOutcome::Made(ReshareProof(in_order.collect())));
            }
            let now_ms = self.clock.now_ms();
            if again_ms.is_some_and(|again_ms| now_ms >= again_ms) {
                let silent = parties.iter().filter(|party| !heard.contains(party));
                self.send_reshare(order, silent)?;
                again_ms = Some(now_ms.saturating_add(RESEND_MS));
                again_ms = again_ms.filter(|again_ms| *again_ms < repeated_until_ms);
            }
            let until_ms = again_ms.unwrap_or(ends_ms).min(ends_ms);
            let patience = Duration::from_millis(until_ms.saturating_sub(now_ms));
            let reply = timeout(patience, call.replies.recv()).await;
            if reply.is_err() && self.clock.now_ms() < ends_ms {
                continue;
            }
            let Ok(Some((node, _, reply))) = reply else {
                if let Some(reason) = behind {
                    return pass_epochs(order, used, reason);
                }
                if !forbidden.is_empty() {
                    return Err(self.not_permitted(order, &forbidden)?);
                }
                if let Some(reason) = reason {
                    let most = missed.values().max().copied().unwrap_or_default();
                    missed.retain(|_, count| *count == most);
                    let silent: Vec<NodeId> = missed.into_keys().collect();
                    return Err(self.silent(&parties, &silent).caused_by(reason));
                }
                let silent = parties.iter().filter(|node| !proof.contains_key(node));
                let silent: Vec<NodeId> = silent.copied().collect();
                return Err(self.silent(&parties, &silent));
            };
            // It may be started again before it is done, and says so when it gets the order once more.
            if let OrderReply::Round { round, of } = reply {
                self.note_round(order.session, node, round, of);
                continue;
            }
            heard.insert(node);
            match reply {
                OrderReply::Prepared(signature) => {
                    if !says(&node, &statement, &signature) {
                        return Err(self.node_registry.misbehaved(&[node]));
                    }
                    proof.insert(node, signature);
                }
                // Others are about to say the same: an operator wants to know of all of them.
                OrderReply::NotPermitted => {
                    let soon_ms = self.clock.now_ms().saturating_add(REPLY_GRACE_MS);
                    ends_ms = ends_ms.min(soon_ms);
                    forbidden.insert(node);
                }
                OrderReply::Refused(fault) => {
                    return Err(self.refused(&node, "to make new shares", &fault));
                }
                OrderReply::Behind {
                    fault,
                    proven,
                    epoch,
                } => {
                    let reason = self.refused(&node, "to make new shares", &fault);
                    if let Some(proven) = way_from(order, &proven) {
                        let epoch = 0;
                        return Ok(ReshareOutcome::Behind(LaterGenerations {
                            proven,
                            epoch,
                            reason,
                        }));
                    }
                    // The others are about to say the same, or a higher epoch.
                    if behind.is_none() {
                        ends_ms = ends_ms.min(self.clock.now_ms().saturating_add(REPLY_GRACE_MS));
                        behind = Some(reason);
                    }
                    used.push(epoch);
                }
                OrderReply::Failed {
                    culprits,
                    missing,
                    reason: why,
                    ..
                } if culprits.is_empty() => {
                    for node in missing {
                        let count = missed.entry(node).or_default();
                        *count = count.saturating_add(1);
                    }
                    // The others are about to say the same, or something else.
                    if reason.is_none() {
                        ends_ms = ends_ms.min(self.clock.now_ms().saturating_add(REPLY_GRACE_MS));
                        reason = Some(why);
                    }
                }
                OrderReply::Failed {
                    culprits, reason, ..
                } => return Err(self.node_registry.misbehaved(&culprits).caused_by(reason)),
                _ => {}
            }
        }
    }

    /// Sends the order. Who has it already ignores it, or says again that its share is there.
    fn send_reshare<'a>(
        &self,
        order: &ReshareOrder,
        to: impl Iterator<Item = &'a NodeId>,
    ) -> Result<(), Fault> {
        let body = encode(&ReshareOrderMsg {
            order: order.clone(),
            sent_at_ms: self.clock.now_ms(),
        })?;
        for party in to {
            let place = (order.new.epoch, order.session, 0);
            // What is lost is repeated while nobody answers.
            self.try_send(EnvelopeKind::ReshareOrder, place, *party, &body)?;
        }
        Ok(())
    }

    async fn distribute_activation(
        &self,
        order: &ReshareOrder,
        proof: &ReshareProof,
        before: &[ProvenGeneration],
        nodes: &[NodeId],
    ) -> Result<Vec<(NodeId, Result<(), Fault>)>, Fault> {
        let mut call = self.call(
            ExpectedReply::Activation,
            order.new.epoch,
            order.session,
            nodes,
        )?;
        self.node_registry.want(nodes);
        let began_ms = self.clock.now_ms();
        let mut again_ms = began_ms;
        let mut answers: BTreeMap<NodeId, Result<(), Fault>> = BTreeMap::new();
        loop {
            // Requests wait for this: a lost message must not hold them up.
            let now_ms = self.clock.now_ms();
            if now_ms >= again_ms {
                let silent = nodes.iter().filter(|node| !answers.contains_key(node));
                self.send_activation(order, proof, before, silent)?;
                again_ms = now_ms.saturating_add(RESEND_MS);
            }
            let waiting = nodes
                .iter()
                .any(|node| !answers.contains_key(node) && self.node_registry.live(node));
            let late = now_ms >= began_ms.saturating_add(ANSWER_TIMEOUT_MS);
            if !waiting || late {
                break;
            }
            match timeout(POLL_INTERVAL, call.replies.recv()).await {
                Ok(Some((node, ACTIVATION, OrderReply::Activated))) => {
                    answers.insert(node, Ok(()));
                }
                Ok(Some((node, ACTIVATION, OrderReply::Refused(fault)))) => {
                    let fault = self.refused(&node, "to learn of the new shares", &fault);
                    answers.insert(node, Err(fault));
                }
                _ => {}
            }
        }
        let answer = |node: &NodeId| {
            let silent = || {
                let name = self.node_registry.name(node);
                let sentence = format!("{name} has not confirmed that there are new shares");
                Err(Fault::unavailable(sentence))
            };
            (*node, answers.remove(node).unwrap_or_else(silent))
        };
        Ok(nodes.iter().map(answer).collect())
    }

    /// Sends the statements. A node that has activated its share already confirms it again.
    fn send_activation<'a>(
        &self,
        order: &ReshareOrder,
        proof: &ReshareProof,
        before: &[ProvenGeneration],
        to: impl Iterator<Item = &'a NodeId>,
    ) -> Result<(), Fault> {
        let body = encode(&ActivateMsg {
            order: order.clone(),
            proof: proof.clone(),
            before: before.to_vec(),
            sent_at_ms: self.clock.now_ms(),
        })?;
        for node in to {
            let place = (order.new.epoch, order.session, ACTIVATION);
            self.try_send(EnvelopeKind::Activate, place, *node, &body)?;
        }
        Ok(())
    }

    async fn backup(
        &self,
        order: &BackupOrder,
    ) -> Result<Vec<(NodeId, Result<Vec<u8>, Fault>)>, Fault> {
        let mut call = self.call(
            ExpectedReply::Backups,
            order.epoch,
            order.session,
            &order.holders,
        )?;
        let began_ms = self.clock.now_ms();
        let mut unsent: BTreeSet<NodeId> = order.holders.iter().copied().collect();
        let mut answers: BTreeMap<NodeId, Result<Vec<u8>, Fault>> = BTreeMap::new();
        loop {
            if !unsent.is_empty() {
                let body = encode(&BackupOrderMsg {
                    order: order.clone(),
                    sent_at_ms: self.clock.now_ms(),
                })?;
                let place = (order.epoch, order.session, 0);
                self.send_to_rest(EnvelopeKind::BackupOrder, place, &mut unsent, &body)?;
            }
            let waiting = order
                .holders
                .iter()
                .any(|node| !answers.contains_key(node) && self.node_registry.live(node));
            let late = self.clock.now_ms() >= began_ms.saturating_add(ANSWER_TIMEOUT_MS);
            if !waiting || late {
                break;
            }
            match timeout(POLL_INTERVAL, call.replies.recv()).await {
                Ok(Some((node, _, OrderReply::Backup(sealed)))) => {
                    let checked = check_sealed(&sealed, order.recipients.len());
                    let answer = checked.map(|()| sealed).map_err(|fault| {
                        let name = self.node_registry.name(&node);
                        let line = node.openssh_line("");
                        let culprits = vec![line];
                        Fault::new(
                            Class::Peer { culprits },
                            format!("{name}: {}", fault.message()),
                        )
                    });
                    answers.insert(node, answer);
                }
                Ok(Some((node, _, OrderReply::Refused(fault)))) => {
                    let fault = self.refused(&node, "to back up its share", &fault);
                    answers.insert(node, Err(fault));
                }
                _ => {}
            }
        }
        let answer = |node: &NodeId| {
            let silent = || {
                if unsent.contains(node) {
                    return Err(not_sent());
                }
                let name = self.node_registry.name(node);
                Err(Fault::unavailable(format!("{name} did not answer")))
            };
            (*node, answers.remove(node).unwrap_or_else(silent))
        };
        Ok(order.holders.iter().map(answer).collect())
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::{
        ids::{SessionId, VaultId},
        scheme::Scheme,
    };

    use super::*;
    use crate::{identity::NodeIdentity, test_support::SystemEntropy};

    fn order(nodes: &[NodeIdentity], from: u32, to: u32) -> ReshareOrder {
        let holders: Vec<NodeId> = nodes.iter().map(NodeIdentity::id).collect();
        let generation = |epoch| Generation {
            epoch,
            threshold: 2,
            holders: holders.clone(),
        };
        ReshareOrder {
            vault: VaultId::from_bytes([1; 16]),
            session: SessionId::from_bytes([3; 16]),
            scheme: Scheme::FrostEd25519,
            root_public_key: vec![2; 32],
            old: generation(from),
            dealers: holders[..2].to_vec(),
            new: generation(to),
            issued_at_ms: 5,
            expires_at_ms: 6,
        }
    }

    fn nodes() -> Vec<NodeIdentity> {
        let nodes = (0..3).map(|_| NodeIdentity::generate(&SystemEntropy));
        nodes.collect()
    }

    #[test]
    fn epochs__should_be_passed_up_to_those_that_all_nodes_accept_whoever_says_so() {
        let mut order = order(&nodes(), 0, 1);
        order.issued_at_ms = 60_000 * 100;
        let passed = |order: &ReshareOrder, said: &[u32]| {
            let reason = Fault::field("new.epoch", "was used");
            match pass_epochs(order, said.iter().copied(), reason) {
                Ok(ReshareOutcome::Behind(later)) => Some(later.epoch),
                _ => None,
            }
        };
        assert_eq!(passed(&order, &[0]), None);
        assert_eq!(passed(&order, &[7, 9, 0]), Some(9));
        assert_eq!(passed(&order, &[7, u32::MAX]), Some(98));
        order.new.epoch = 99;
        assert_eq!(passed(&order, &[u32::MAX]), None);
    }

    #[test]
    fn proofs__should_show_the_way_from_the_old_generation_or_one_beside_it() {
        let nodes = nodes();
        let proven = |from, to| {
            let order = order(&nodes, from, to);
            let statement = order.statement().unwrap();
            let signed = nodes
                .iter()
                .map(|it| (it.id(), it.sign(&statement).to_vec()));
            let proof = ReshareProof(signed.collect());
            ProvenGeneration { order, proof }
        };
        let way = |asked: &ReshareOrder, proven: &[ProvenGeneration]| {
            let epochs =
                |way: Vec<ProvenGeneration>| way.iter().map(|it| it.order.new.epoch).collect();
            way_from(asked, proven).map(epochs)
        };
        let first = order(&nodes, 0, 1);
        let (a, b, c) = (proven(0, 3), proven(3, 5), proven(5, 6));
        let all = [a.clone(), b.clone(), c.clone()];
        assert_eq!(way(&first, &all), Some(vec![3, 5, 6]));
        assert_eq!(way(&first, &[b.clone(), c.clone()]), None);
        assert_eq!(way(&order(&nodes, 3, 4), &all), Some(vec![5, 6]));
        assert_eq!(way(&order(&nodes, 6, 7), &all), None);
        // The old one, and one beside it of the same holders.
        let beside = [a.clone(), proven(0, 4)];
        assert_eq!(way(&order(&nodes, 3, 5), &beside), Some(vec![4]));
        assert_eq!(way(&order(&nodes, 3, 5), &beside[1..]), None);
        let mut forged = all;
        forged[1].proof.0[0].1[5] ^= 1;
        assert_eq!(way(&first, &forged), None);
        let mut other = a;
        other.order.vault = VaultId::from_bytes([9; 16]);
        assert_eq!(way(&first, &[other]), None);
    }
}
