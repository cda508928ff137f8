//! The peers that a node works with, and those that it no longer works with.

use std::collections::HashSet;

use covault_core::{
    fault::Fault,
    ids::VaultId,
    order::{ListedNodes, NodeId},
};

use super::Node;
use crate::message::{Ban, MAX_BANS};

impl Node {
    /// Whether the node's own configuration lets it work with this one, for any vault.
    pub(super) fn is_peer(&self, node: &NodeId) -> bool {
        let pinned = |peers: &HashSet<NodeId>| peers.contains(node);
        *node == self.codec.id()
            || self.peers.as_ref().is_none_or(pinned)
            || self.rules.vault_peers().any(pinned)
    }

    /// The nodes that the configuration pins for a vault; `None`: any.
    pub(super) fn peers_of(&self, vault: VaultId) -> Option<&HashSet<NodeId>> {
        self.rules.peers(vault).or(self.peers.as_ref())
    }

    /// The setting that pins the peers of a vault.
    pub(super) fn peers_setting(&self, vault: VaultId) -> String {
        match self.rules.peers(vault) {
            Some(_) => format!("signer.vaults.\"{vault}\".peers"),
            None => "signer.peers".to_owned(),
        }
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
        let peers = self.peers_of(vault);
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
                    self.peers_setting(vault)
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
        let of_vaults = self.rules.vault_peers().flatten();
        let peers = self
            .peers
            .as_ref()
            .map(|peers| peers.iter().chain(of_vaults));
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
