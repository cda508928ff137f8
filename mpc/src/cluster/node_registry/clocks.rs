//! Nodes whose clocks are off: when that is said, and what is shown of those of which nothing is believed for it.

use std::collections::HashMap;

use covault_core::order::NodeId;

use super::{KnownNode, MAX_NODES, NodeRegistry, REPLAY_MS, lock};
use crate::{
    cluster::NodeStatus,
    message::{HaltReason, LiveStatus, SKEW_MS},
};

/// How often it is said that a node's clock is off, in milliseconds.
pub(super) const CLOCK_REMINDER_MS: u64 = 3_600_000;

/// How often a node is asked whether it is there, in milliseconds.
const ASK_MS: u64 = 500;

/// A node whose clock is off.
#[derive(Default)]
struct WrongClock {
    name: String,
    /// When it was last said.
    said_ms: Option<u64>,
    /// The question that it has not answered, and when it was last asked.
    question: Option<[u8; 16]>,
    asked_ms: Option<u64>,
    /// When it has answered last, and how far its clock was ahead then.
    answer: Option<(u64, i64)>,
}

/// How far a clock that says `at_ms` is ahead of ours, in milliseconds.
pub(super) fn skew_ms(at_ms: u64, now_ms: u64) -> i64 {
    let apart = i64::try_from(at_ms.abs_diff(now_ms)).unwrap_or(i64::MAX);
    if at_ms < now_ms { -apart } else { apart }
}

/// What is shown of a node of which nothing else is believed.
pub(super) struct UnbelievedNode<'a> {
    name: &'a str,
    last_seen_ms: u64,
    skew_ms: i64,
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
        if self.0.len() >= MAX_NODES && !self.0.contains_key(&node) {
            return true;
        }
        let known = self.0.entry(node).or_default();
        known.name.clone_from(&announced.name);
        let last_ms = known.said_ms;
        let is_news = last_ms.is_none_or(|said_ms| now_ms.abs_diff(said_ms) >= CLOCK_REMINDER_MS);
        if is_news {
            known.said_ms = Some(now_ms);
        }
        is_news
    }

    /// What a node with such a clock is to be asked now: an announcement may be an old one that is repeated, and only an
    /// answer shows that it is there. The same until it is answered, so that no answers can be saved up.
    pub(super) fn question(
        &mut self,
        node: &NodeId,
        now_ms: u64,
        draw: impl FnOnce() -> [u8; 16],
    ) -> Option<[u8; 16]> {
        let known = self.0.get_mut(node)?;
        let asked_ms = known.asked_ms;
        if asked_ms.is_some_and(|asked_ms| now_ms.abs_diff(asked_ms) < ASK_MS) {
            return None;
        }
        known.asked_ms = Some(now_ms);
        Some(*known.question.get_or_insert_with(draw))
    }

    /// Notes an answer, which counts once.
    pub(super) fn answered(&mut self, node: &NodeId, answer: &LiveStatus, now_ms: u64) {
        let Some(known) = self.0.get_mut(node) else {
            return;
        };
        let asked = known.question.take_if(|it| *it == answer.question);
        if asked.is_some() {
            known.answer = Some((now_ms, skew_ms(answer.at_ms, now_ms)));
        }
    }

    pub(super) fn retain(&mut self, is_kept: impl Fn(&NodeId) -> bool) {
        self.0.retain(|node, _| is_kept(node));
    }

    /// A node that has answered within `live_ms`, by a clock that is too far off for anything of it to be believed.
    pub(super) fn unbelieved(
        &self,
        node: &NodeId,
        now_ms: u64,
        live_ms: u64,
    ) -> Option<UnbelievedNode<'_>> {
        let known = self.0.get(node)?;
        let (last_seen_ms, skew_ms) = known.answer?;
        let is_recent = now_ms.abs_diff(last_seen_ms) < live_ms;
        (is_recent && skew_ms.unsigned_abs() > REPLAY_MS).then_some(UnbelievedNode {
            name: &known.name,
            last_seen_ms,
            skew_ms,
        })
    }

    /// All of these.
    pub(super) fn shown(
        &self,
        now_ms: u64,
        live_ms: u64,
    ) -> impl Iterator<Item = (&NodeId, UnbelievedNode<'_>)> {
        let ids = self.0.keys();
        ids.filter_map(move |id| Some((id, self.unbelieved(id, now_ms, live_ms)?)))
    }

    /// Shows them among nodes as they are known: that they are there and by how much they are off, and nothing else that
    /// they announce.
    pub(super) fn show(&self, nodes: &mut Vec<NodeStatus>, now_ms: u64, live_ms: u64) {
        for (id, unbelieved) in self.shown(now_ms, live_ms) {
            let UnbelievedNode {
                name,
                last_seen_ms,
                skew_ms,
            } = unbelieved;
            let halted = vec![HaltReason::ClockTooFar];
            match nodes.iter_mut().find(|node| node.id == *id) {
                // Heard by a clock that is right.
                Some(node) if node.live => {}
                Some(node) => {
                    node.halted.extend(halted);
                    node.skew_ms = skew_ms;
                }
                None => nodes.push(NodeStatus {
                    id: *id,
                    name: name.to_owned(),
                    live: false,
                    last_seen_ms,
                    version: String::new(),
                    keys: 0,
                    bans: Vec::new(),
                    skew_ms,
                    halted,
                    frozen: Vec::new(),
                    listed: None,
                }),
            }
        }
    }
}

impl NodeRegistry {
    /// What to ask a node now whose clock is off ([`WrongClocks::question`]).
    pub(in crate::cluster) fn question(
        &self,
        node: &NodeId,
        draw: impl FnOnce() -> [u8; 16],
    ) -> Option<[u8; 16]> {
        let now_ms = self.clock.now_ms();
        lock(&self.state).wrong_clocks.question(node, now_ms, draw)
    }

    /// Notes what a node has answered to that.
    pub(in crate::cluster) fn note_presence(&self, node: &NodeId, answer: &LiveStatus) {
        let now_ms = self.clock.now_ms();
        lock(&self.state)
            .wrong_clocks
            .answered(node, answer, now_ms);
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
    fn clock__should_be_shown_for_answers_and_not_for_what_is_only_repeated() {
        let (mut clocks, node) = (WrongClocks::default(), NodeId([1; 32]));
        let answer = |question: u8, at_ms| LiveStatus {
            question: [question; 16],
            boot: [1; 16],
            count: 1,
            at_ms,
        };
        let is_shown =
            |clocks: &WrongClocks, now_ms| clocks.unbelieved(&node, now_ms, 3_000).is_some();
        assert_eq!(
            clocks.question(&node, 0, || [9; 16]),
            None,
            "nothing is known of it"
        );
        let mut now_ms = 20_000 + REPLAY_MS;
        // A long series of what was recorded once, each of them newer than the one before.
        for at_ms in 1_000..9_000 {
            now_ms += 1;
            let announced = KnownNode::new(announcement(at_ms), now_ms);
            clocks.is_news(node, &announced);
            assert!(!is_shown(&clocks, now_ms));
        }
        // It is asked now and then, the same until it answers.
        assert_eq!(clocks.question(&node, now_ms, || [1; 16]), Some([1; 16]));
        assert_eq!(
            clocks.question(&node, now_ms + ASK_MS - 1, || [2; 16]),
            None
        );
        now_ms += ASK_MS;
        assert_eq!(clocks.question(&node, now_ms, || [2; 16]), Some([1; 16]));
        clocks.answered(&node, &answer(2, 0), now_ms);
        assert!(!is_shown(&clocks, now_ms), "an answer to nothing");
        clocks.answered(&node, &answer(1, 5_000), now_ms);
        assert!(is_shown(&clocks, now_ms) && is_shown(&clocks, now_ms + 2_999));
        assert!(!is_shown(&clocks, now_ms + 3_000));
        // The same answer again.
        now_ms += 3_000;
        clocks.answered(&node, &answer(1, 5_000), now_ms);
        assert!(!is_shown(&clocks, now_ms));
        // Its clock is right enough now.
        assert_eq!(clocks.question(&node, now_ms, || [3; 16]), Some([3; 16]));
        clocks.answered(&node, &answer(3, now_ms - REPLAY_MS), now_ms);
        assert!(!is_shown(&clocks, now_ms));
    }
}
