//! Nodes whose clocks are off: when that is said, and what is shown of those of which nothing is believed for it.

use std::collections::HashMap;

use covault_core::order::NodeId;

use super::{KnownNode, MAX_NODES, REPLAY_MS};
use crate::{
    cluster::NodeStatus,
    message::{HaltReason, SKEW_MS},
};

/// How often it is said that a node's clock is off, in milliseconds.
pub(super) const CLOCK_REMINDER_MS: u64 = 3_600_000;

/// The last announcement of a node whose clock is off.
struct WrongClock {
    announced: KnownNode,
    /// When it was last said.
    said_ms: u64,
}

impl WrongClock {
    /// Whether this one came later: what is only repeated is no sign that the node is there. A clock that is set back, but
    /// not far enough, is seen once the one before is over.
    fn is_before(&self, announced: &KnownNode, live_ms: u64) -> bool {
        let is_over = announced.heard_ms.abs_diff(self.announced.heard_ms) >= live_ms;
        self.announced.at_ms < announced.at_ms
            || (is_over && self.announced.at_ms != announced.at_ms)
    }
}

#[derive(Default)]
pub(super) struct WrongClocks(HashMap<NodeId, WrongClock>);

impl WrongClocks {
    /// Notes an announcement of an admitted node; whether there is something to say about its clock: once, and each hour
    /// for as long as it is off. Of a node that was not heard for `live_ms` nothing is known any more.
    pub(super) fn is_news(&mut self, node: NodeId, announced: &KnownNode, live_ms: u64) -> bool {
        if announced.skew_ms().unsigned_abs() <= SKEW_MS {
            self.0.remove(&node);
            return false;
        }
        let now_ms = announced.heard_ms;
        let known = self.0.get(&node);
        let said_ms = known.map(|known| known.said_ms);
        let is_news = said_ms.is_none_or(|ms| now_ms.abs_diff(ms) >= CLOCK_REMINDER_MS);
        let is_newer = known.is_none_or(|known| known.is_before(announced, live_ms));
        if is_newer && (known.is_some() || self.0.len() < MAX_NODES) {
            let announced = announced.clone();
            let said_ms = said_ms.unwrap_or(now_ms);
            self.0.insert(node, WrongClock { announced, said_ms });
        }
        if let Some(known) = self.0.get_mut(&node).filter(|_| is_news) {
            known.said_ms = now_ms;
        }
        is_news
    }

    pub(super) fn retain(&mut self, is_kept: impl Fn(&NodeId) -> bool) {
        self.0.retain(|node, _| is_kept(node));
    }

    /// What this node announced within `live_ms`, by a clock that is too far off for anything of it to be believed.
    pub(super) fn unbelieved(
        &self,
        node: &NodeId,
        now_ms: u64,
        live_ms: u64,
    ) -> Option<&KnownNode> {
        let announced = &self.0.get(node)?.announced;
        let is_recent = now_ms.abs_diff(announced.heard_ms) < live_ms && !announced.left;
        (is_recent && announced.skew_ms().unsigned_abs() > REPLAY_MS).then_some(announced)
    }

    /// All of these.
    pub(super) fn shown(
        &self,
        now_ms: u64,
        live_ms: u64,
    ) -> impl Iterator<Item = (&NodeId, &KnownNode)> {
        let ids = self.0.keys();
        ids.filter_map(move |id| Some((id, self.unbelieved(id, now_ms, live_ms)?)))
    }

    /// Shows them among nodes as they are known, in place of one that is known only from before.
    pub(super) fn show(&self, nodes: &mut Vec<NodeStatus>, now_ms: u64, live_ms: u64) {
        for (id, announced) in self.shown(now_ms, live_ms) {
            let halted = vec![HaltReason::ClockTooFar];
            match nodes.iter_mut().find(|node| node.id == *id) {
                // Heard by a clock that is right: the other was an old one.
                Some(node) if node.live => {}
                Some(node) => {
                    node.halted.extend(halted);
                    node.skew_ms = announced.skew_ms();
                }
                None => nodes.push(announced.status(*id, false, halted)),
            }
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;
    use crate::cluster::node_registry::tests::announcement;

    fn announced(skew_ms: u64, now_ms: u64) -> KnownNode {
        KnownNode::new(announcement(now_ms + skew_ms), now_ms)
    }

    #[test]
    fn clock__should_be_told_once_and_each_hour_while_it_is_off() {
        let (mut clocks, node) = (WrongClocks::default(), NodeId([1; 32]));
        let other = NodeId([2; 32]);
        let off_ms = SKEW_MS + 1;
        let mut is_news =
            |node, skew_ms, now_ms| clocks.is_news(node, &announced(skew_ms, now_ms), 3_000);
        assert!(!is_news(node, SKEW_MS, 0));
        assert!(is_news(node, off_ms, 1_000));
        for now_ms in [2_000, 3_000, CLOCK_REMINDER_MS] {
            assert!(!is_news(node, off_ms, now_ms));
        }
        assert!(is_news(other, off_ms, 3_000));
        assert!(is_news(node, off_ms, 1_000 + CLOCK_REMINDER_MS));
        // Right, and wrong again.
        assert!(!is_news(node, 0, 2_000 + CLOCK_REMINDER_MS));
        assert!(is_news(node, off_ms, 3_000 + CLOCK_REMINDER_MS));
    }

    #[test]
    fn clock__should_not_be_shown_for_what_is_only_repeated() {
        let (mut clocks, node) = (WrongClocks::default(), NodeId([1; 32]));
        let mut is_shown = |at_ms, now_ms| {
            let announced = KnownNode::new(announcement(at_ms), now_ms);
            clocks.is_news(node, &announced, 3_000);
            clocks.unbelieved(&node, now_ms, 3_000).is_some()
        };
        let now_ms = 2_000 + REPLAY_MS;
        assert!(is_shown(1_000, now_ms) && is_shown(1_000, now_ms + 2_999));
        assert!(!is_shown(1_000, now_ms + 3_000));
        assert!(is_shown(2_000, now_ms + 4_000));
        // Set back, and still not right.
        assert!(is_shown(1_500, now_ms + 7_000));
    }
}
