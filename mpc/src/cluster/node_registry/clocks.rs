//! Nodes whose clocks are off: when that is said, and what is shown of those of which nothing is believed for it.

use std::collections::HashMap;

use covault_core::order::NodeId;

use super::{KnownNode, MAX_NODES, MAX_STARTS, REPLAY_MS};
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
    /// The last one of each start that was taken.
    taken: Vec<([u8; 16], u64)>,
    /// The latest time of any.
    latest_ms: u64,
}

impl WrongClock {
    fn new(announced: &KnownNode) -> Self {
        Self {
            announced: announced.clone(),
            said_ms: announced.heard_ms,
            taken: vec![(announced.boot, announced.count)],
            latest_ms: announced.at_ms,
        }
    }

    /// Takes this one unless it or a later one was taken: what is repeated, in whatever order, is no sign that the node is
    /// there. A clock that is set back goes on counting, or starts again.
    fn take(&mut self, announced: &KnownNode) {
        let (boot, count) = (announced.boot, announced.count);
        let known = self.taken.iter_mut().find(|(known, _)| *known == boot);
        if let Some((_, last)) = known {
            if count <= *last {
                return;
            }
            *last = count;
        } else {
            if self.taken.len() >= MAX_STARTS {
                // Of a start that may have been forgotten.
                if announced.at_ms <= self.latest_ms {
                    return;
                }
                self.taken.remove(0);
            }
            self.taken.push((boot, count));
        }
        self.latest_ms = self.latest_ms.max(announced.at_ms);
        self.announced = announced.clone();
    }
}

#[derive(Default)]
pub(super) struct WrongClocks(HashMap<NodeId, WrongClock>);

impl WrongClocks {
    /// Notes an announcement of an admitted node; whether there is something to say about its clock: once, and each hour
    /// for as long as it is off.
    pub(super) fn is_news(&mut self, node: NodeId, announced: &KnownNode) -> bool {
        if announced.skew_ms().unsigned_abs() <= SKEW_MS {
            self.0.remove(&node);
            return false;
        }
        let now_ms = announced.heard_ms;
        let Some(known) = self.0.get_mut(&node) else {
            if self.0.len() < MAX_NODES {
                self.0.insert(node, WrongClock::new(announced));
            }
            return true;
        };
        known.take(announced);
        let is_news = now_ms.abs_diff(known.said_ms) >= CLOCK_REMINDER_MS;
        if is_news {
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

    /// Shows them among nodes as they are known: that they are there and by how much they are off, and nothing else that
    /// such an announcement says.
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
                None => nodes.push(NodeStatus {
                    id: *id,
                    name: announced.name.clone(),
                    live: false,
                    last_seen_ms: announced.heard_ms,
                    version: String::new(),
                    keys: 0,
                    bans: Vec::new(),
                    skew_ms: announced.skew_ms(),
                    halted,
                    frozen: Vec::new(),
                    listed: None,
                }),
            }
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;
    use crate::{cluster::node_registry::tests::announcement, message::Announcement};

    fn announced(skew_ms: u64, now_ms: u64) -> KnownNode {
        KnownNode::new(announcement(now_ms + skew_ms), now_ms)
    }

    #[test]
    fn clock__should_be_told_once_and_each_hour_while_it_is_off() {
        let (mut clocks, node) = (WrongClocks::default(), NodeId([1; 32]));
        let other = NodeId([2; 32]);
        let off_ms = SKEW_MS + 1;
        let mut is_news = |node, skew_ms, now_ms| clocks.is_news(node, &announced(skew_ms, now_ms));
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
        let mut is_shown = |boot: u8, count, at_ms, now_ms| {
            let announced = Announcement {
                boot: [boot; 16],
                count,
                ..announcement(at_ms)
            };
            clocks.is_news(node, &KnownNode::new(announced, now_ms));
            clocks.unbelieved(&node, now_ms, 3_000).is_some()
        };
        let mut now_ms = 20_000 + REPLAY_MS;
        assert!(is_shown(1, 1, 1_000, now_ms) && is_shown(1, 1, 1_000, now_ms + 2_999));
        assert!(!is_shown(1, 1, 1_000, now_ms + 3_000));
        assert!(is_shown(1, 2, 2_000, now_ms + 4_000));
        // Set back, and still not right: while it runs, and by a start.
        now_ms += 7_000;
        assert!(is_shown(1, 3, 1_500, now_ms));
        assert!(is_shown(2, 1, 1_200, now_ms + 3_000));
        // The two and those before, in turn.
        for turn in 0..4 {
            now_ms += 6_000;
            for (boot, count, at_ms) in [(1, 3, 1_500), (2, 1, 1_200), (1, 1 + turn % 2, 2_000)] {
                assert!(!is_shown(boot, count, at_ms, now_ms), "{boot} {count}");
            }
        }
        // Of more starts than are remembered each is shown once.
        for (boot, is_later) in (3..20).map(|boot| (boot, usize::from(boot) <= MAX_STARTS)) {
            now_ms += 3_000;
            assert_eq!(is_shown(boot, 1, 1_000, now_ms), is_later, "{boot}");
        }
        assert!(is_shown(20, 1, 2_001, now_ms + 3_000));
        assert!(!is_shown(20, 1, 2_001, now_ms + 6_000));
    }
}
