//! Taking a generation into use, or making room for the one of others, when it is proven.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use covault_core::{
    fault::Fault,
    order::{Generation, NodeId, ProvenGeneration, ReshareOrder, ReshareProof},
    wallet::generation::MAX_BEFORE,
};
use ed25519_dalek::Signature;

use super::{
    super::{
        Node,
        refusals::{refused, wrong_epoch},
    },
    pending_shares::{PendingShare, PendingShares},
    stale,
};
#[cfg(feature = "simulation")]
use crate::simulated::believes_new_holders;
use crate::{
    envelope::EnvelopeHeader,
    key_records::JoinedKey,
    loaded_keys::LoadedKeys,
    message::{ActivateMsg, OrderReply},
    meter,
    permits::not_permitted,
    pool::Priority,
    shares::ShareRecord,
};

/// What has to be on disk before a share is taken into use.
struct ActivationNotes {
    /// That this is the vault's key: the operator has permitted a share of it to a node that had none. Before, the
    /// node may have stated an address of a key that an orchestrator alone called the vault's.
    vault_key: bool,
    /// That the node does not know what the key's holders have signed: they were others, or sets of them without a node
    /// in common with the new ones could sign.
    joined: bool,
    /// Then: it held a share of the generation before.
    held_before: bool,
}

/// Whether the order leaves holders and threshold of the node's own share as they are, and the node knows what it has signed.
fn is_refresh(record: &ShareRecord, order: &ReshareOrder) -> bool {
    let holders = |holders: &[NodeId]| holders.iter().copied().collect::<BTreeSet<_>>();
    let same = |of: &Generation| {
        of.threshold == record.threshold && holders(&of.holders) == holders(&record.holders)
    };
    !record.restored && record.epoch == order.old.epoch && same(&order.old) && same(&order.new)
}

impl Node {
    /// Takes a prepared share into use, or learns that others have one; retires those of before.
    pub(in crate::node) fn activate_order(
        self: &Arc<Self>,
        header: &EnvelopeHeader,
        request: ActivateMsg,
    ) -> Result<(), Fault> {
        self.activate(header, request, false)
    }

    /// `noted`: what has to be on disk before is.
    fn activate(
        self: &Arc<Self>,
        header: &EnvelopeHeader,
        request: ActivateMsg,
        noted: bool,
    ) -> Result<(), Fault> {
        let ActivateMsg {
            order,
            proof,
            before,
            sent_at_ms,
        } = request;
        order.check()?;
        if order.session != header.session {
            return Err(Fault::field("session", "the order is for another session"));
        }
        if header.epoch != order.new.epoch {
            return Err(wrong_epoch());
        }
        let trusted = self.trusted.contains(&header.from);
        // Once proven, it never expires: who was away must still learn of it.
        let sent_at_ms = match trusted {
            true => sent_at_ms,
            // The clock of a peer says nothing of the proof that it shows.
            false => self.clock.now_ms(),
        };
        self.check_time(sent_at_ms, order.issued_at_ms, u64::MAX)?;
        check_proof(&order, &proof)?;
        let id = order.id()?;
        let mut pending_shares = self.life.pending_shares();
        let current = self.keys.get(&order.root_public_key);
        let record = current.as_ref().map(|key| key.record());
        let again = record.is_some_and(|record| record.order == Some(id));
        if let Some(record) = record {
            if record.vault != order.vault {
                return Err(Fault::field("vault", "the key belongs to another vault"));
            }
            if (again || record.epoch > order.new.epoch) && !trusted {
                // A peer shows what it knows of, and no longer needs to.
                self.reply_activated(header);
                return Ok(());
            }
            if record.epoch >= order.new.epoch && !again {
                return Err(stale(record.epoch));
            }
        }
        let prepared = pending_shares.shares.iter().find(|it| it.is_of(&order));
        let prepared = prepared.map(|it| it.root.clone());
        let stays = order.new.holders.contains(&self.codec.id());
        let way = match again {
            true => Some(Vec::new()),
            false => self.way_from_here(&order, &before, record, &pending_shares, stays)?,
        };
        let way = match way {
            Some(way) => way,
            None => {
                self.check_unproven(&order, record, trusted)?;
                Vec::new()
            }
        };
        let waits = pending_shares.shares.iter().any(|it| it.order == id);
        if stays && waits && !again && !noted {
            let permitted =
                record.is_none() && self.permits.holds(&order.change(), self.clock.now_ms())?;
            let notes = ActivationNotes {
                vault_key: permitted
                    && !self
                        .quota_tracker
                        .is_noted((order.vault, order.scheme.curve()), &order.root_public_key),
                joined: !record.is_some_and(|record| is_refresh(record, &order)),
                held_before: record.is_some_and(|it| !it.restored && it.epoch == order.old.epoch),
            };
            if notes.vault_key || notes.joined {
                let request = ActivateMsg {
                    order,
                    proof,
                    before,
                    sent_at_ms,
                };
                self.note_then_activate(*header, request, notes);
                return Ok(());
            }
        }
        let here = record.is_some() || prepared.is_some();
        let proven = ProvenGeneration { order, proof };
        let order = &proven.order;
        if !stays {
            let ours = self.check_joining(order.vault, &order.new.holders, record);
            let ours = ours.and_then(|()| match record {
                Some(record) => self.rules.limits(order.vault).check(
                    order.new.threshold,
                    order.new.holders.len(),
                    Some((record.threshold, record.holders.len())),
                ),
                None => Ok(()),
            });
            match ours {
                // Of a key that we know nothing of, peers could show us what nobody else knows of, and
                // keep us from every run that our operator has permitted.
                Ok(()) if !here && !trusted => {}
                Ok(()) => pending_shares.remember(order),
                // Nothing is here that could be given up.
                Err(_) if !here => {}
                // To what our own rules do not allow, nothing is: not a share in use, and not one
                // that is prepared, which may be the only one there is.
                Err(fault) => return Err(fault),
            }
        }
        // On disk before anything changes here: it must not rest with an orchestrator alone.
        let taken = !again && here;
        if taken {
            self.proofs.keep(&proven, &way)?;
        }
        if stays {
            self.take_into_use(order, &pending_shares.shares)?;
        }
        let root = record.map(|record| record.key.root.clone()).or(prepared);
        if let Some(root) = root {
            let (vault, below) = (order.vault, order.new.epoch);
            // A clock that is behind takes nothing from the time that they are kept.
            let now_ms = self.clock.now_ms().max(self.claims.age().newest_ms);
            self.shares.retire(vault, &root, below, now_ms)?;
        }
        if !stays {
            self.keys.remove(&order.root_public_key);
        }
        self.permits.use_up(&order.change())?;
        // Of the same epoch may be one of another run: its file is still there, and may be needed.
        pending_shares
            .shares
            .retain(|it| !it.is_of(order) || (it.epoch >= order.new.epoch && it.order != id));
        drop(pending_shares);
        if here {
            self.on_epoch_change();
            self.state_keys();
            tracing::info!(node = %self.name, epoch = order.new.epoch, "old shares retired");
        }
        self.reply_activated(header);
        if taken {
            self.gossip_proof(proven);
        }
        Ok(())
    }

    fn reply_activated(&self, header: &EnvelopeHeader) {
        let (epoch, session) = (header.epoch, header.session);
        let reply = OrderReply::Activated;
        self.reply(header.from, epoch, session, header.attempt, &reply);
    }

    /// Activates once the notes are on disk.
    fn note_then_activate(
        self: &Arc<Self>,
        header: EnvelopeHeader,
        request: ActivateMsg,
        notes: ActivationNotes,
    ) {
        let node = Arc::clone(self);
        let order = &request.order;
        let of = (order.vault, order.scheme.curve());
        let root = order.root_public_key.clone();
        self.runtime.spawn(async move {
            let mut noted = Ok(());
            if notes.joined {
                // A clock that is behind makes no approval newer.
                let joined = JoinedKey {
                    at_ms: node.clock.now_ms().max(node.claims.age().newest_ms),
                    held_before: notes.held_before,
                };
                noted = node.claims.note_joined(root.clone(), joined).await;
            }
            if notes.vault_key && noted.is_ok() {
                noted = node.write_vault_key(of, root).await;
            }
            let again = Arc::clone(&node);
            node.pool.spawn(Priority::Keygen, move || {
                let failed = |error| Fault::unavailable("a signer's disk failed").caused_by(error);
                let outcome = noted.map_err(failed);
                let outcome = outcome.and_then(|()| again.activate(&header, request, true));
                if let Err(fault) = outcome {
                    again.refuse_activation(&header, fault);
                }
            });
        });
    }

    /// Refuses a generation. Peers wait for no such answer, and show as many as they like.
    pub(in crate::node) fn refuse_activation(&self, header: &EnvelopeHeader, fault: Fault) {
        let EnvelopeHeader {
            epoch,
            session,
            attempt,
            from,
            ..
        } = *header;
        if self.trusted.contains(&from) {
            self.refuse(from, epoch, session, attempt, fault);
        } else {
            meter::node_refused(&self.name, &fault);
            self.drop_proof(&from, &fault);
        }
    }

    /// Whether a generation may be taken that nothing shows to follow ours: only the operator can tell.
    /// An orchestrator may ask for that, and peers must not: what they make up would take the place of
    /// what an operator is about to permit.
    fn check_unproven(
        &self,
        order: &ReshareOrder,
        record: Option<&ShareRecord>,
        trusted: bool,
    ) -> Result<(), Fault> {
        let change = order.change();
        if self.permits.holds(&change, self.clock.now_ms())? {
            return Ok(());
        }
        let fault = match self.check_joining(order.vault, &order.new.holders, record) {
            Err(fault) => fault,
            Ok(()) => {
                if trusted {
                    self.permits.ask(&change)?;
                }
                not_permitted(&change)?
            }
        };
        let sentence = format!(
            "old: is not the generation of this node's share nor one that is proven to follow it, \
             so the node keeps its share; {}",
            fault.message()
        );
        Err(Fault::new(fault.class().clone(), sentence))
    }

    /// Whether a proven generation may take the place of what is here. It may when it follows the
    /// generation of our share: the share is given up for it only. One beside ours, that follows what
    /// ours came from, may only have the same holders, of whom we are one: all honest ones have stored
    /// its shares, and of two such generations all come to have the later one. Without a share in use
    /// it may follow whatever ours that wait come from. Strangers who call each other the old holders
    /// prove nothing to us. The proofs that were needed to see it; `None` when they do not show it.
    fn way_from_here<'a>(
        &self,
        order: &ReshareOrder,
        before: &'a [ProvenGeneration],
        record: Option<&ShareRecord>,
        pending_shares: &PendingShares,
        stays: bool,
    ) -> Result<Option<Vec<&'a ProvenGeneration>>, Fault> {
        if believes_new_holders() {
            return Ok(Some(Vec::new()));
        }
        let pending: Vec<&PendingShare> = pending_shares
            .shares
            .iter()
            .filter(|it| it.is_of(order))
            .collect();
        match record {
            Some(record) => {
                let present = record.generation().id()?;
                let mut way = way_to(order, [present].into(), &pending, before)?;
                if way.is_none() && stays && !self.needs_permit(order, Some(record)) {
                    let mut known: HashSet<[u8; 32]> = HashSet::from([present]);
                    known.extend(&record.lineage.known);
                    way = way_to(order, known, &pending, before)?;
                }
                Ok(way)
            }
            None => {
                // What came on the word of an orchestrator alone may be all that there is: it gives
                // way to what follows it, and not to something else.
                let any_sure = pending.iter().any(|it| it.lineage.sure);
                let sure = pending.iter().filter(|it| it.lineage.sure || !any_sure);
                let known: HashSet<[u8; 32]> = sure
                    .filter_map(|it| it.lineage.known.last())
                    .copied()
                    .collect();
                if known.is_empty() {
                    // Nothing is here.
                    return Ok(Some(Vec::new()));
                }
                way_to(order, known, &pending, before)
            }
        }
    }

    fn take_into_use(&self, order: &ReshareOrder, pending: &[PendingShare]) -> Result<(), Fault> {
        let id = order.id()?;
        let epoch = order.new.epoch;
        if self
            .keys
            .get(&order.root_public_key)
            .is_some_and(|key| key.record().order == Some(id))
        {
            return Ok(());
        }
        let prepared = pending.iter().find(|it| it.order == id);
        let prepared = prepared
            .ok_or_else(|| refused(format!("no share of epoch {epoch} was prepared here")))?;
        let record = self
            .shares
            .load(prepared.vault, &prepared.root, epoch, true)?;
        // Opened first: should it not open, the old one stays.
        let key = LoadedKeys::open(record)?;
        self.shares
            .activate(prepared.vault, &prepared.root, epoch)?;
        self.keys.put(key);
        Ok(())
    }
}

/// Whether the order's old generation is one of these, or is proven to follow one of them; with what
/// proofs of those that were shown.
fn way_to<'a>(
    order: &ReshareOrder,
    mut known: HashSet<[u8; 32]>,
    pending: &[&PendingShare],
    before: &'a [ProvenGeneration],
) -> Result<Option<Vec<&'a ProvenGeneration>>, Fault> {
    // What we have prepared after something known is known, too. Their epochs go up.
    let mut pending: Vec<(u32, [u8; 32], [u8; 32])> = pending
        .iter()
        .filter_map(|it| Some((it.epoch, *it.lineage.known.last()?, it.generation)))
        .collect();
    pending.sort_unstable();
    let add = |known: &mut HashSet<[u8; 32]>| {
        for (_, old, new) in &pending {
            if known.contains(old) {
                known.insert(*new);
            }
        }
    };
    add(&mut known);
    let mut way = Vec::new();
    for proven in before.iter().take(MAX_BEFORE) {
        let ProvenGeneration { order: it, proof } = proven;
        let same = it.vault == order.vault && it.root_public_key == order.root_public_key;
        if same && known.contains(&it.old.id()?) && check_proof(it, proof).is_ok() {
            known.insert(it.new.id()?);
            add(&mut known);
            way.push(proven);
        }
    }
    Ok(known.contains(&order.old.id()?).then_some(way))
}

/// A simulation can switch the check off, and nobody else.
#[cfg(not(feature = "simulation"))]
const fn believes_new_holders() -> bool {
    false
}

/// Every party says that the run has ended well: as many old holders as the old threshold that they have dealt in it,
/// all new holders that their shares are on disk. An invalid order, for example without holders, can have no proof.
pub(crate) fn check_proof(order: &ReshareOrder, proof: &ReshareProof) -> Result<(), Fault> {
    order.check()?;
    if proof.0.len() > order.parties().len() {
        return Err(Fault::field("proof", "has more statements than parties"));
    }
    let statement = order.statement()?;
    let parties = match believes_new_holders() {
        true => order.new.holders.clone(),
        false => order.parties(),
    };
    for party in &parties {
        let missing = || {
            Fault::field(
                "proof",
                format_args!("lacks the statement of {}", party.openssh_line("")),
            )
        };
        let mut of_party = proof.0.iter().filter(|(node, _)| node == party);
        let (_, signature) = of_party.next().ok_or_else(missing)?;
        Signature::from_slice(signature)
            .ok()
            .filter(|signature| {
                party
                    .verifying_key()
                    .is_ok_and(|key| key.verify_strict(&statement, signature).is_ok())
            })
            .ok_or_else(missing)?;
    }
    Ok(())
}
