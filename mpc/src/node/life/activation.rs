//! Taking a generation into use, or making room for the one of others, when it is proven.

use std::{collections::HashSet, sync::Arc};

use covault_core::{
    fault::Fault,
    order::{Proven, ReshareOrder, ReshareProof},
    wallet::generation::MAX_BEFORE,
};
use ed25519_dalek::Signature;

use super::{
    super::{
        Node,
        orders::{Keys, refused, wrong_epoch},
    },
    stale,
    waiting::{Pending, Waiting},
};
#[cfg(feature = "simulation")]
use crate::simulated::believes_new_holders;
use crate::{
    envelope::Header,
    identity::{openssh_line, verifying_key},
    message::{ActivateRequest, Reply},
    shares::ShareRecord,
};

impl Node {
    /// Takes a prepared share into use, or learns that others have one; retires those of before.
    pub(in crate::node) fn activate_order(
        self: &Arc<Self>,
        header: &Header,
        request: ActivateRequest,
    ) -> Result<(), Fault> {
        let ActivateRequest {
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
        // Once proven, it never expires: who was away must still learn of it.
        self.check_time(sent_at_ms, order.issued_at_ms, u64::MAX)?;
        check_proof(&order, &proof)?;
        let id = order.id()?;
        let mut waiting = self.life.waiting();
        let current = self.keys.get(&order.root_public_key);
        let record = current.as_ref().map(|key| key.record());
        let again = record.is_some_and(|record| record.order == Some(id));
        if let Some(record) = record {
            if record.vault != order.vault {
                return Err(Fault::field("vault", "the key is another vault's"));
            }
            if record.epoch >= order.new.epoch && !again {
                return Err(stale(record.epoch));
            }
        }
        let prepared = waiting.shares.iter().find(|it| it.is_of(&order));
        let prepared = prepared.map(|it| it.root.clone());
        if !again {
            self.check_follows(&order, &before, record, &waiting)?;
        }
        let stays = order.new.holders.contains(&self.post.id());
        if stays {
            self.take_into_use(&order, &waiting.shares)?;
        } else {
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
                Ok(()) => waiting.remember(&order),
                // Nothing is here that could be given up.
                Err(_) if record.is_none() && prepared.is_none() => {}
                // To what our own rules do not allow, nothing is: not a share in use, and not one
                // that is prepared, which may be the only one there is.
                Err(fault) => return Err(fault),
            }
        }
        let root = record.map(|record| record.key.root.clone()).or(prepared);
        if let Some(root) = root {
            let (vault, below) = (order.vault, order.new.epoch);
            self.shares
                .retire(vault, &root, below, self.clock.now_ms())?;
        }
        if !stays {
            self.keys.remove(&order.root_public_key);
        }
        self.permits.use_up(&order.change())?;
        // Of the same epoch may be one of another run: its file is still there, and may be needed.
        waiting
            .shares
            .retain(|it| !it.is_of(&order) || (it.epoch >= order.new.epoch && it.order != id));
        drop(waiting);
        self.on_epoch_change();
        self.state_keys();
        tracing::info!(node = %self.name, epoch = order.new.epoch, "old shares retired");
        self.reply(
            header.from,
            header.epoch,
            header.session,
            header.attempt,
            &Reply::Activated,
        );
        Ok(())
    }

    /// Whether a proven generation follows one that we know: the one of our share, one that this came
    /// from, or one that was proven to follow these. Strangers who call each other the old holders
    /// prove nothing to us.
    fn check_follows(
        &self,
        order: &ReshareOrder,
        before: &[Proven],
        record: Option<&ShareRecord>,
        waiting: &Waiting,
    ) -> Result<(), Fault> {
        if believes_new_holders() {
            return Ok(());
        }
        let pending: Vec<&Pending> = waiting.shares.iter().filter(|it| it.is_of(order)).collect();
        let mut known: HashSet<[u8; 32]> = HashSet::new();
        match record {
            Some(record) => {
                known.extend(&record.lineage.known);
                known.insert(record.generation().id()?);
            }
            None => {
                // What came on the word of an orchestrator alone may be all that there is: it gives
                // way to what follows it, and not to something else.
                let any_sure = pending.iter().any(|it| it.lineage.sure);
                let sure = pending.iter().filter(|it| it.lineage.sure || !any_sure);
                known.extend(sure.filter_map(|it| it.lineage.known.last()));
                if known.is_empty() {
                    // Nothing is here.
                    return Ok(());
                }
            }
        }
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
        for Proven { order: it, proof } in before.iter().take(MAX_BEFORE) {
            let same = it.vault == order.vault && it.root_public_key == order.root_public_key;
            if same && known.contains(&it.old.id()?) && check_proof(it, proof).is_ok() {
                known.insert(it.new.id()?);
                add(&mut known);
            }
        }
        if known.contains(&order.old.id()?) {
            return Ok(());
        }
        // Only the operator can tell.
        self.ask_permit(order).map_err(|fault| {
            let sentence = format!(
                "old: is no generation that this node knows of, so it keeps its share; {}",
                fault.public()
            );
            Fault::new(fault.class().clone(), sentence)
        })
    }

    fn take_into_use(&self, order: &ReshareOrder, pending: &[Pending]) -> Result<(), Fault> {
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
        let key = Keys::open(record)?;
        self.shares
            .activate(prepared.vault, &prepared.root, epoch)?;
        self.keys.put(key);
        Ok(())
    }
}

/// A simulation can switch the check off, and nobody else.
#[cfg(not(feature = "simulation"))]
const fn believes_new_holders() -> bool {
    false
}

/// Every party says that the run has ended well: as many old holders as the old threshold that they
/// have dealt in it, all new holders that their shares are on disk. An order that is none, without
/// holders say, can have no proof.
pub(crate) fn check_proof(order: &ReshareOrder, proof: &ReshareProof) -> Result<(), Fault> {
    order.check()?;
    let statement = order.statement()?;
    let parties = match believes_new_holders() {
        true => order.new.holders.clone(),
        false => order.parties(),
    };
    for party in &parties {
        let missing = || {
            Fault::field(
                "proof",
                format_args!("lacks the statement of {}", openssh_line(party, "")),
            )
        };
        let mut of_party = proof.0.iter().filter(|(node, _)| node == party);
        let (_, signature) = of_party.next().ok_or_else(missing)?;
        Signature::from_slice(signature)
            .ok()
            .filter(|signature| {
                verifying_key(party)
                    .is_ok_and(|key| key.verify_strict(&statement, signature).is_ok())
            })
            .ok_or_else(missing)?;
    }
    Ok(())
}
