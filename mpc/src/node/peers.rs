//! The peers that a node works with, and those that it no longer works with.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use covault_core::{
    fault::Fault,
    ids::VaultId,
    order::{ListedNodes, NodeId},
};
use parking_lot::RwLock;

use super::Node;
use crate::message::{Ban, MAX_BANS};

/// The nodes that a configuration lets a node work with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinnedPeers {
    /// For keys and signatures of all vaults; `None`: any that an orchestrator names.
    pub all: Option<BTreeSet<NodeId>>,
    /// In place of those, for some vaults.
    pub vaults: BTreeMap<VaultId, BTreeSet<NodeId>>,
}

impl PinnedPeers {
    /// Those of a vault; `None`: any.
    pub fn of(&self, vault: VaultId) -> Option<&BTreeSet<NodeId>> {
        self.vaults.get(&vault).or(self.all.as_ref())
    }

    /// Those of the vaults that have their own.
    pub(super) fn of_vaults(&self) -> impl Iterator<Item = &NodeId> {
        self.vaults.values().flatten()
    }

    /// Whether it is one for any vault.
    fn contains(&self, node: &NodeId) -> bool {
        let pinned = |peers: &BTreeSet<NodeId>| peers.contains(node);
        self.all.as_ref().is_none_or(pinned) || self.vaults.values().any(pinned)
    }

    /// The setting that pins those of a vault.
    pub fn setting(&self, vault: VaultId) -> String {
        match self.vaults.get(&vault) {
            Some(_) => format!("signer.vaults.\"{vault}\".peers"),
            None => "signer.peers".to_owned(),
        }
    }
}

/// The peers that are in force, which the operator can replace while the node runs: for messages and orders that come from
/// then on.
#[derive(Debug, Default)]
pub struct CurrentPeers(RwLock<Arc<PinnedPeers>>);

impl CurrentPeers {
    /// These, until others take their place.
    pub fn new(peers: PinnedPeers) -> Self {
        Self(RwLock::new(Arc::new(peers)))
    }

    /// These from now on; those that were in force.
    pub fn replace(&self, peers: PinnedPeers) -> Arc<PinnedPeers> {
        std::mem::replace(&mut self.0.write(), Arc::new(peers))
    }

    /// Those in force.
    pub fn get(&self) -> Arc<PinnedPeers> {
        Arc::clone(&self.0.read())
    }
}

impl Node {
    /// Whether the node's own configuration lets it work with this one, for any vault.
    pub(super) fn is_peer(&self, node: &NodeId) -> bool {
        *node == self.codec.id() || self.peers.get().contains(node)
    }

    /// Refuses an order that names a node outside the configured peers of its vault, no matter who signed
    /// it.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] naming the field and the node.
    pub(super) fn check_peers<'a>(
        &self,
        vault: VaultId,
        field: &str,
        named: impl IntoIterator<Item = &'a NodeId>,
    ) -> Result<(), Fault> {
        let pinned = self.peers.get();
        let peers = pinned.of(vault);
        let known = |node: &NodeId| {
            *node == self.codec.id() || peers.is_none_or(|peers| peers.contains(node))
        };
        match named.into_iter().find(|node| !known(node)) {
            None => Ok(()),
            Some(stranger) => Err(Fault::field(
                field,
                format_args!(
                    "name {}, which {} of this node does not list",
                    stranger.openssh_line(""),
                    pinned.setting(vault)
                ),
            )),
        }
    }

    /// Whether we agree on pair keys with this one. A peer may learn of a new vault's key a moment before this node does;
    /// it tries again. One that no longer holds a share with us is still answered.
    pub(super) fn shares_pair_keys(&self, node: &NodeId) -> bool {
        let has_business = || self.keys.is_holder(node) || self.codec.has_greeted(node);
        self.trusted.contains(node) || (self.is_peer(node) && has_business())
    }

    /// Tells those who may still have a pair key of our last start that it is gone, before they hear that we are there.
    pub(super) fn greet_peers(&self) {
        let holders = self.keys.holders();
        let peers = holders.iter().filter(|peer| self.is_peer(peer));
        peers
            .chain(&self.trusted)
            .for_each(|peer| self.codec.greet(peer));
    }

    /// Which processes the node's own configuration lists.
    pub(super) fn listed(&self) -> ListedNodes {
        let pinned = self.peers.get();
        let all = pinned.all.as_ref();
        let peers = all.map(|peers| peers.iter().chain(pinned.of_vaults()));
        ListedNodes::new(&self.trusted, peers)
    }

    /// The bans as operators are told of them.
    pub(super) fn announced_bans(&self) -> Vec<Ban> {
        let mut bans: Vec<Ban> = self
            .claims
            .bans()
            .into_iter()
            .map(|(root, peer)| {
                let mut key = [0; 8];
                key.iter_mut().zip(root).for_each(|(to, from)| *to = from);
                Ban { key, peer }
            })
            .collect();
        bans.sort_unstable();
        bans.truncate(MAX_BANS);
        bans
    }
}
