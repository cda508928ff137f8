//! Proofs of generations, as nodes show them to each other.
//!
//! An orchestrator that shows a proof to some nodes and is gone, or never means to show it to the others, would leave
//! shares of several generations in use, and too few of each. So a node that has taken a proof shows it to all other
//! parties: the old holders and the new ones. A proof is valid by itself: a node that gets one from a peer checks it
//! as if an orchestrator had shown it. It is shown again, also after a restart, until each party has confirmed that
//! it needs it no more.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use covault_core::order::{NodeId, ProvenGeneration};

use super::super::{Node, refusals::MessageRefusal};
use crate::{
    envelope::{EnvelopeHeader, EnvelopeKind, OpenedEnvelope},
    message::{ActivateMsg, OrderReply, decode, encode},
    pool::Priority,
    proofs::MAX_PROOFS,
};

/// How often it is shown to who has not confirmed it, in milliseconds.
const RESEND_MS: u64 = 60_000;
/// How many are shown again at a time; the others are next.
const MAX_RESENDS: usize = 256;

/// What some party has not confirmed yet.
pub(super) struct ProofGossip {
    unconfirmed: VecDeque<UnconfirmedProof>,
    /// When they are shown next, by the steady clock.
    due_ms: u64,
}

struct UnconfirmedProof {
    proven: ProvenGeneration,
    confirmed: BTreeSet<NodeId>,
}

impl ProofGossip {
    pub(super) fn new(proven: Vec<ProvenGeneration>) -> Self {
        let mut gossip = Self {
            unconfirmed: VecDeque::new(),
            due_ms: 0,
        };
        proven.into_iter().for_each(|it| gossip.add(it));
        gossip
    }

    /// As many of a key as are kept on disk.
    fn add(&mut self, proven: ProvenGeneration) {
        let order = &proven.order;
        let of_key = |it: &&UnconfirmedProof| {
            let other = &it.proven.order;
            (other.vault, &other.root_public_key) == (order.vault, &order.root_public_key)
        };
        if self.unconfirmed.iter().any(|it| it.proven.order == *order) {
            return;
        }
        let epochs = self.unconfirmed.iter().filter(of_key);
        let mut epochs: Vec<u32> = epochs.map(|it| it.proven.order.new.epoch).collect();
        if epochs.len() >= MAX_PROOFS {
            epochs.sort_unstable();
            let first = epochs.first().copied();
            self.unconfirmed
                .retain(|it| !of_key(&it) || Some(it.proven.order.new.epoch) != first);
        }
        self.unconfirmed.push_back(UnconfirmedProof {
            proven,
            confirmed: BTreeSet::new(),
        });
    }
}

impl Node {
    /// Who must learn of it, among those that our configuration knows.
    fn recipients_of(&self, ProvenGeneration { order, .. }: &ProvenGeneration) -> BTreeSet<NodeId> {
        let parties = order.old.holders.iter().chain(&order.new.holders);
        let others = parties.filter(|node| **node != self.codec.id() && self.is_peer(node));
        others.copied().collect()
    }

    /// Shows a proof that we have taken to its other parties.
    pub(super) fn gossip_proof(&self, proven: ProvenGeneration) {
        {
            let mut gossip = self.life.gossip.lock();
            gossip.add(proven.clone());
        }
        self.show(&proven, &BTreeSet::new());
    }

    /// Shows what was not confirmed again, now and then.
    pub(in crate::node) fn resend_proofs(self: &Arc<Self>) {
        let steady_ms = self.steady_ms();
        let shown: Vec<(ProvenGeneration, BTreeSet<NodeId>)> = {
            let mut gossip = self.life.gossip.lock();
            if steady_ms < gossip.due_ms {
                return;
            }
            gossip.due_ms = steady_ms.saturating_add(RESEND_MS);
            let count = gossip.unconfirmed.len().min(MAX_RESENDS);
            gossip.unconfirmed.rotate_left(count);
            let last = gossip.unconfirmed.iter().rev().take(count);
            last.map(|it| (it.proven.clone(), it.confirmed.clone()))
                .collect()
        };
        if shown.is_empty() {
            return;
        }
        let node = Arc::clone(self);
        self.pool.spawn(Priority::Keygen, move || {
            for (proven, confirmed) in shown {
                node.show(&proven, &confirmed);
            }
        });
    }

    fn show(&self, proven: &ProvenGeneration, confirmed: &BTreeSet<NodeId>) {
        let ProvenGeneration { order, proof } = proven;
        let before = self.proofs.before(order).unwrap_or_else(|fault| {
            tracing::warn!(node = %self.name, ?fault, "failed to read earlier proofs");
            Vec::new()
        });
        let body = encode(&ActivateMsg {
            order: order.clone(),
            proof: proof.clone(),
            before,
            sent_at_ms: self.clock.now_ms(),
        });
        for to in self.recipients_of(proven).difference(confirmed) {
            let header = EnvelopeHeader {
                kind: EnvelopeKind::Activate,
                sealed: true,
                epoch: order.new.epoch,
                session: order.session,
                attempt: 0,
                round: 0,
                sequence: 0,
                from: self.codec.id(),
                to: *to,
            };
            let sent = body.as_ref().map_err(Clone::clone);
            if let Err(fault) = sent.and_then(|body| self.codec.send(header, body)) {
                tracing::warn!(node = %self.name, ?fault, "failed to send a proof to a peer");
            }
        }
    }

    /// Takes the answer of a peer, whose sender is certain, on a pool thread.
    pub(in crate::node) fn confirmed(&self, header: &EnvelopeHeader, opened: &OpenedEnvelope) {
        match decode(&opened.body) {
            Some(OrderReply::Activated) => {}
            Some(_) => return,
            None => return self.drop_message(&header.from, MessageRefusal::Unreadable),
        }
        let over = {
            let mut gossip = self.life.gossip.lock();
            let of_header = |it: &UnconfirmedProof| it.proven.order.session == header.session;
            let Some(place) = gossip.unconfirmed.iter().position(of_header) else {
                return;
            };
            let Some(it) = gossip.unconfirmed.get_mut(place) else {
                return;
            };
            it.confirmed.insert(header.from);
            if !self.recipients_of(&it.proven).is_subset(&it.confirmed) {
                return;
            }
            gossip.unconfirmed.remove(place)
        };
        if let Some(it) = over
            && let Err(fault) = self.proofs.mark_confirmed(&it.proven.order)
        {
            tracing::warn!(
                node = %self.name,
                ?fault,
                "failed to record a sent proof; it is sent again after the next start"
            );
        }
    }
}
