//! What waits for its activation, and what the node's configuration says about its shares.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use covault_core::{derive::RootKey, fault::Fault, ids::VaultId, order::ReshareOrder};

use crate::shares::{ShareRecord, backup};

/// Keys whose latest proof is remembered although no share of them is left here.
const MAX_TOLD: usize = 4096;

/// What is prepared, and what the node's own configuration says about its shares.
pub(in crate::node) struct Life {
    /// Held while shares change their place.
    waiting: Mutex<Waiting>,
    /// age recipients, as the configuration has them.
    pub(in crate::node) recipients: Vec<String>,
    /// How far a reshare may lower a threshold; `None`: not at all.
    pub(super) least_threshold: Option<u16>,
}

/// What waits for its activation.
pub(super) struct Waiting {
    pub(super) shares: Vec<Pending>,
    /// The latest generation that was proven to us as others', by key. A run that began before must
    /// not leave a share of an earlier one behind; runs end with the process.
    told: HashMap<(VaultId, Vec<u8>), u32>,
}

/// A share that waits for its activation on disk.
pub(super) struct Pending {
    pub(super) vault: VaultId,
    pub(super) root: RootKey,
    pub(super) epoch: u32,
    pub(super) order: [u8; 32],
}

impl Life {
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] naming a recipient that is none.
    pub(in crate::node) fn new(
        records: Vec<ShareRecord>,
        recipients: Vec<String>,
        least_threshold: Option<u16>,
    ) -> Result<Self, Fault> {
        backup::recipients(&recipients)?;
        let shares = records
            .into_iter()
            .filter_map(|record| {
                Some(Pending {
                    vault: record.vault,
                    epoch: record.epoch,
                    order: record.order?,
                    root: record.key.root.clone(),
                })
            })
            .collect();
        Ok(Self {
            waiting: Mutex::new(Waiting {
                shares,
                told: HashMap::new(),
            }),
            recipients: recipients
                .iter()
                .map(|line| line.trim().to_owned())
                .collect(),
            least_threshold,
        })
    }

    pub(super) fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// The highest epoch of the key that is known here and has no share in use.
    pub(super) fn highest(&self, order: &ReshareOrder) -> Option<u32> {
        let shares = self.shares.iter().filter(|it| it.is_of(order));
        let told = self.told.get(&(order.vault, order.root_public_key.clone()));
        shares.map(|it| it.epoch).chain(told.copied()).max()
    }

    /// A generation of others was proven to us.
    pub(super) fn remember(&mut self, order: &ReshareOrder) {
        let key = (order.vault, order.root_public_key.clone());
        if self.told.len() >= MAX_TOLD && !self.told.contains_key(&key) {
            self.told.clear();
        }
        let told = self.told.entry(key).or_default();
        *told = (*told).max(order.new.epoch);
    }
}

impl Pending {
    pub(super) fn is_of(&self, order: &ReshareOrder) -> bool {
        self.vault == order.vault && self.root.public_key == order.root_public_key
    }
}
