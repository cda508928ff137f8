//! What waits for its activation, and what the node's configuration says about its shares.

use std::{
    collections::{HashMap, VecDeque},
    sync::atomic::{AtomicU64, Ordering},
};

use covault_core::{
    derive::RootKey,
    fault::Fault,
    ids::VaultId,
    order::{ProvenGeneration, ReshareOrder},
};
use parking_lot::{Mutex, MutexGuard};

use super::gossip::ProofGossip;
use crate::shares::{ShareLineage, ShareRecord, backup};

/// Keys whose latest proof is remembered although no share of them is left here.
const MAX_RETIRED_EPOCHS: usize = 4096;
/// Runs that are remembered although they have left no share here.
const MAX_DEALT: usize = 256;

/// What is prepared, and what the node's own configuration says about its shares.
pub(in crate::node) struct Lifecycle {
    /// Held while shares change their place.
    pending_shares: Mutex<PendingShares>,
    /// age recipients, as the configuration has them.
    pub(in crate::node) recipients: Vec<String>,
    /// Proofs that are shown to other nodes.
    pub(super) gossip: Mutex<ProofGossip>,
    /// When it is to be looked next what may be erased, by the steady clock.
    due_ms: AtomicU64,
}

/// What waits for its activation.
pub(super) struct PendingShares {
    pub(super) shares: Vec<PendingShare>,
    /// The latest generation that was proven to us as others', by key. A run that began before must
    /// not leave a share of an earlier one behind; runs end with the process.
    retired_epochs: HashMap<(VaultId, Vec<u8>), u32>,
    /// The ids of the orders by which we have dealt a share and got none. Who is asked again says
    /// again that the run has ended well.
    dealt: VecDeque<[u8; 32]>,
}

/// A share that waits for its activation on disk.
pub(super) struct PendingShare {
    pub(super) vault: VaultId,
    pub(super) root: RootKey,
    pub(super) epoch: u32,
    pub(super) order: [u8; 32],
    /// The id of its generation.
    pub(super) generation: [u8; 32],
    pub(super) lineage: ShareLineage,
}

impl Lifecycle {
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] naming an invalid recipient.
    pub(in crate::node) fn new(
        records: Vec<ShareRecord>,
        recipients: Vec<String>,
        unconfirmed: Vec<ProvenGeneration>,
    ) -> Result<Self, Fault> {
        backup::recipients(&recipients)?;
        let mut shares = Vec::new();
        for record in records {
            shares.extend(PendingShare::of(&record)?);
        }
        Ok(Self {
            pending_shares: Mutex::new(PendingShares {
                shares,
                retired_epochs: HashMap::new(),
                dealt: VecDeque::new(),
            }),
            recipients: recipients
                .iter()
                .map(|line| line.trim().to_owned())
                .collect(),
            gossip: Mutex::new(ProofGossip::new(unconfirmed)),
            due_ms: AtomicU64::new(0),
        })
    }

    /// Key and epoch of what is prepared.
    pub(in crate::node) fn prepared_epochs(&self) -> Vec<(Vec<u8>, u32)> {
        let pending_shares = self.pending_shares();
        let of = |it: &PendingShare| (it.root.public_key.clone(), it.epoch);
        pending_shares.shares.iter().map(of).collect()
    }

    /// The keys that shares are prepared of.
    pub(super) fn prepared_keys(&self) -> Vec<(VaultId, RootKey)> {
        let pending_shares = self.pending_shares();
        let of = |it: &PendingShare| (it.vault, it.root.clone());
        pending_shares.shares.iter().map(of).collect()
    }

    /// Whether it is time to look, so long after the last time. By the steady clock.
    pub(super) fn is_due(&self, steady_ms: u64, every_ms: u64) -> bool {
        let due = steady_ms >= self.due_ms.load(Ordering::Relaxed);
        if due {
            let next_ms = steady_ms.saturating_add(every_ms);
            self.due_ms.store(next_ms, Ordering::Relaxed);
        }
        due
    }

    pub(super) fn pending_shares(&self) -> MutexGuard<'_, PendingShares> {
        self.pending_shares.lock()
    }
}

impl PendingShares {
    /// The highest epoch of the key that is known here and has no share in use.
    pub(super) fn highest(&self, order: &ReshareOrder) -> Option<u32> {
        let shares = self.shares.iter().filter(|it| it.is_of(order));
        let retired_epochs = self
            .retired_epochs
            .get(&(order.vault, order.root_public_key.clone()));
        shares
            .map(|it| it.epoch)
            .chain(retired_epochs.copied())
            .max()
    }

    /// We have dealt by this order, and got no share.
    pub(super) fn dealt(&mut self, order: [u8; 32]) {
        if self.dealt.len() >= MAX_DEALT {
            self.dealt.pop_front();
        }
        self.dealt.push_back(order);
    }

    pub(super) fn has_dealt(&self, order: &[u8; 32]) -> bool {
        self.dealt.contains(order)
    }

    /// What was proven of a key of others counts no more.
    pub(super) fn forget(&mut self, order: &ReshareOrder) {
        let key = (order.vault, order.root_public_key.clone());
        self.retired_epochs.remove(&key);
    }

    /// A generation of others was proven to us.
    pub(super) fn remember(&mut self, order: &ReshareOrder) {
        let key = (order.vault, order.root_public_key.clone());
        if self.retired_epochs.len() >= MAX_RETIRED_EPOCHS
            && !self.retired_epochs.contains_key(&key)
        {
            self.retired_epochs.clear();
        }
        let retired_epochs = self.retired_epochs.entry(key).or_default();
        *retired_epochs = (*retired_epochs).max(order.new.epoch);
    }
}

impl PendingShare {
    /// None of a share that no order has made.
    pub(super) fn of(record: &ShareRecord) -> Result<Option<Self>, Fault> {
        let Some(order) = record.order else {
            return Ok(None);
        };
        Ok(Some(Self {
            vault: record.vault,
            root: record.key.root.clone(),
            epoch: record.epoch,
            order,
            generation: record.generation().id()?,
            lineage: record.lineage.clone(),
        }))
    }

    pub(super) fn is_of(&self, order: &ReshareOrder) -> bool {
        self.vault == order.vault && self.root.public_key == order.root_public_key
    }
}
