//! Which processes a signer node's configuration lists.

use serde::{Deserialize, Serialize};

use super::NodeId;

/// Processes of one kind that are told of.
const MAX_LISTED: usize = 128;

/// The processes that a node's own configuration lists, each by the first bytes of its id: enough to find what an operator has
/// forgotten. What a node refuses is up to the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedNodes {
    /// The orchestrators whose orders it takes (`signer.orchestrators`).
    pub orchestrators: Vec<[u8; 8]>,
    /// The nodes that it works with, for all vaults or some (`signer.peers`); `None`: any.
    pub peers: Option<Vec<[u8; 8]>>,
}

impl ListedNodes {
    /// With these in its configuration.
    pub fn new<'a>(
        orchestrators: impl IntoIterator<Item = &'a NodeId>,
        peers: Option<impl IntoIterator<Item = &'a NodeId>>,
    ) -> Self {
        Self {
            orchestrators: orchestrators.into_iter().map(first_bytes).collect(),
            peers: peers.map(|peers| peers.into_iter().map(first_bytes).collect()),
        }
        .cut()
    }

    /// No more than are told of.
    #[must_use]
    pub fn cut(mut self) -> Self {
        for listed in [Some(&mut self.orchestrators), self.peers.as_mut()] {
            let Some(listed) = listed else { continue };
            listed.sort_unstable();
            listed.dedup();
            listed.truncate(MAX_LISTED);
        }
        self
    }

    /// Whether it takes the orders of this orchestrator. Of very many not all are told of.
    pub fn has_orchestrator(&self, orchestrator: &NodeId) -> bool {
        has(&self.orchestrators, orchestrator)
    }

    /// Whether it works with this node.
    pub fn has_peer(&self, peer: &NodeId) -> bool {
        self.peers.as_ref().is_none_or(|peers| has(peers, peer))
    }
}

fn first_bytes(node: &NodeId) -> [u8; 8] {
    let mut first = [0; 8];
    first
        .iter_mut()
        .zip(node.0)
        .for_each(|(to, from)| *to = from);
    first
}

fn has(listed: &[[u8; 8]], node: &NodeId) -> bool {
    listed.len() >= MAX_LISTED || listed.contains(&first_bytes(node))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn listed__should_tell_who_is_missing_and_nothing_of_what_was_cut() {
        let [one, two] = [1, 2].map(|number| NodeId([number; 32]));
        let listed = ListedNodes::new([&one, &one], Some([&two]));
        assert_eq!(listed.orchestrators, [[1; 8]]);
        assert!(listed.has_orchestrator(&one) && !listed.has_orchestrator(&two));
        assert!(listed.has_peer(&two) && !listed.has_peer(&one));
        let any = ListedNodes::new([&one], None::<[&NodeId; 0]>);
        assert!(any.has_peer(&one));
        let many: Vec<_> = (0..=u8::MAX).map(|number| NodeId([number; 32])).collect();
        let many = ListedNodes::new(&many, Some(&many));
        assert_eq!(many.orchestrators.len(), MAX_LISTED);
        assert!(many.has_orchestrator(&NodeId([255; 32])) && many.has_peer(&NodeId([255; 32])));
    }
}
