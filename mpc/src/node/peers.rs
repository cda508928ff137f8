//! Whom a node works with, and whom it no longer does.

use covault_core::{fault::Fault, order::NodeId};

use super::Node;
use crate::{
    identity::openssh_line,
    message::{Ban, MAX_BANS},
};

impl Node {
    /// Whether the node's own configuration lets it work with this one.
    pub(super) fn is_peer(&self, node: &NodeId) -> bool {
        *node == self.post.id() || self.peers.as_ref().is_none_or(|peers| peers.contains(node))
    }

    /// Refuses an order that names a node outside the configured peers, whoever signed it.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] naming the field and the node.
    pub(super) fn check_peers<'a>(
        &self,
        field: &str,
        named: impl IntoIterator<Item = &'a NodeId>,
    ) -> Result<(), Fault> {
        match named.into_iter().find(|node| !self.is_peer(node)) {
            None => Ok(()),
            Some(stranger) => Err(Fault::field(
                field,
                format_args!(
                    "name {}, which signer.peers of this node does not list",
                    openssh_line(stranger, "")
                ),
            )),
        }
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
