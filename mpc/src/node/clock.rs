//! Whether the wall clock can be trusted: compared with the machine's steady clock, with peers'
//! announcements, and with the latest time of the claims. Nothing is ever adjusted by it.

use std::collections::{BTreeMap, BTreeSet};

use covault_core::{fault::Fault, order::NodeId};

use crate::message::SKEW_MS;

/// How long the time of a peer that was heard counts, in milliseconds.
pub(super) const FRESH_MS: u64 = 10_000;
/// How far the wall clock may be behind the latest claim, in milliseconds.
const MAX_BEHIND_MS: u64 = 300_000;
/// What clocks may drift apart without a step: one part of so many.
const MAX_DRIFT_PARTS: u64 = 1_000;

/// The time of a peer.
struct PeerTime {
    boot: [u8; 16],
    count: u64,
    at_ms: u64,
    steady_ms: u64,
}

/// What is known of the time. The steady time is counted from the start of the node.
pub(super) struct ClockMonitor {
    /// A moment at which nothing spoke against the wall clock: that, and the steady time.
    anchor: (u64, u64),
    peers: BTreeMap<NodeId, PeerTime>,
}

/// How many of the recently heard peers agree with our time, and how many do not.
struct ClockVotes {
    agree: usize,
    object: usize,
    /// All peers, heard or not.
    peers: usize,
}

impl ClockVotes {
    /// More than half of all peers: of those that are heard alone, a bus that keeps others away would
    /// choose who is a majority.
    fn confirm(&self) -> bool {
        self.agree.saturating_mul(2) > self.peers
    }

    /// One alone, who may lie, cannot, nor can fewer than half of all peers when nobody else is heard.
    fn refute(&self) -> bool {
        let heard = self.agree.saturating_add(self.object);
        heard.saturating_mul(2) >= self.peers && self.object >= 2 && self.object > self.agree
    }
}

impl ClockMonitor {
    pub(super) fn new(wall_ms: u64) -> Self {
        Self {
            anchor: (wall_ms, 0),
            peers: BTreeMap::new(),
        }
    }

    /// Notes the time that a peer has announced; false when it is not known to run as this start. What
    /// it said before its answer, or as an earlier start, is a replay and tells nothing.
    pub(super) fn heard(
        &mut self,
        peer: NodeId,
        (boot, count): ([u8; 16], u64),
        at_ms: u64,
        steady_ms: u64,
    ) -> bool {
        let known = self.peers.get_mut(&peer).filter(|it| it.boot == boot);
        let Some(known) = known else { return false };
        if count > known.count {
            *known = PeerTime {
                boot,
                count,
                at_ms,
                steady_ms,
            };
        }
        true
    }

    /// Notes what a peer has answered to our question of now: which start it is, the number of its
    /// latest announcement, and its time.
    pub(super) fn answered(
        &mut self,
        peer: NodeId,
        (boot, count): ([u8; 16], u64),
        at_ms: u64,
        steady_ms: u64,
    ) {
        let heard = PeerTime {
            boot,
            count,
            at_ms,
            steady_ms,
        };
        self.peers.insert(peer, heard);
    }

    /// What others have announced counts no longer.
    pub(super) fn retain(&mut self, peers: &BTreeSet<NodeId>) {
        self.peers.retain(|peer, _| peers.contains(peer));
    }

    /// Whether the peer was heard recently.
    pub(super) fn is_fresh(&self, peer: &NodeId, steady_ms: u64) -> bool {
        let known = self.peers.get(peer);
        known.is_some_and(|known| steady_ms.saturating_sub(known.steady_ms) < FRESH_MS)
    }

    fn votes(&self, wall_ms: u64, steady_ms: u64, peers: usize) -> ClockVotes {
        let (mut agree, mut object) = (0_usize, 0_usize);
        for known in self.peers.values() {
            let since = steady_ms.saturating_sub(known.steady_ms);
            if since >= FRESH_MS {
                continue;
            }
            let theirs = known.at_ms.saturating_add(since);
            let count = match theirs.abs_diff(wall_ms) <= SKEW_MS {
                true => &mut agree,
                false => &mut object,
            };
            *count = count.saturating_add(1);
        }
        ClockVotes {
            agree,
            object,
            peers,
        }
    }

    /// Whether a recently heard peer has another time. One that lies can say so for ever: ask
    /// this only before what can wait.
    pub(super) fn is_disputed(&self, wall_ms: u64, steady_ms: u64) -> bool {
        self.votes(wall_ms, steady_ms, 0).object > 0
    }

    /// Whether the node may sign by its clock. `newest_ms` is the latest time of its claims, `peers`
    /// how many peers it has.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`]: what is wrong, and what to do.
    pub(super) fn check(
        &mut self,
        wall_ms: u64,
        steady_ms: u64,
        newest_ms: u64,
        peers: usize,
    ) -> Result<(), Fault> {
        let votes = self.votes(wall_ms, steady_ms, peers);
        let (anchor_ms, since_ms) = self.anchor;
        let passed = steady_ms.saturating_sub(since_ms);
        let off = anchor_ms.saturating_add(passed).abs_diff(wall_ms);
        if votes.confirm() {
            // Who has stepped together with the others has their time.
            self.anchor = (wall_ms, steady_ms);
        } else if off > SKEW_MS.saturating_add(passed / MAX_DRIFT_PARTS) {
            return Err(Fault::unavailable(format!(
                "the clock of this node was moved by {} s while it ran, and its peers do not confirm \
                 the new time: set the clock right, or start the node again",
                off / 1_000
            )));
        }
        if votes.refute() {
            return Err(Fault::unavailable(
                "the clock of this node differs by more than a minute from those of most of its \
                 peers: set the clock right",
            ));
        }
        if wall_ms.saturating_add(MAX_BEHIND_MS) < newest_ms && !votes.confirm() {
            return Err(Fault::unavailable(
                "the clock of this node is behind its own claims, and its peers do not confirm the \
                 time: set the clock right",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    const NOON: u64 = 1_800_000_000_000;
    const HOUR: u64 = 3_600_000;

    /// The peers say so, who have answered before.
    fn hear(clocks: &mut ClockMonitor, steady_ms: u64, times: &[u64]) {
        for (number, at_ms) in (1_u8..).zip(times) {
            let (peer, boot) = (NodeId([number; 32]), [1; 16]);
            if !clocks.peers.contains_key(&peer) {
                clocks.answered(peer, (boot, steady_ms), *at_ms, steady_ms);
            }
            assert!(clocks.heard(peer, (boot, steady_ms + 1), *at_ms, steady_ms));
        }
    }

    fn sentence(fault: Result<(), Fault>) -> String {
        fault.err().map_or_else(String::new, |it| it.to_string())
    }

    #[test]
    fn clock__should_be_refused_after_a_step_that_the_peers_do_not_confirm() {
        for wall_ms in [NOON + HOUR, NOON - HOUR, NOON + 86_400_000] {
            let mut clocks = ClockMonitor::new(NOON);
            // Nobody is heard.
            assert!(sentence(clocks.check(wall_ms, 1_000, 0, 2)).contains("was moved"));
            // One has the same new time, one has not: two clocks that were set are no majority.
            hear(&mut clocks, 1_000, &[wall_ms, NOON + 1_000]);
            assert!(sentence(clocks.check(wall_ms, 1_000, 0, 2)).contains("was moved"));
            // Set right again, it continues.
            assert_eq!(clocks.check(NOON + 2_000, 2_000, 0, 2), Ok(()));
            // All have moved.
            hear(&mut clocks, 3_000, &[wall_ms + 2_000, wall_ms + 2_000]);
            assert_eq!(clocks.check(wall_ms + 2_000, 3_000, 0, 2), Ok(()));
            // And it is believed from then on, also alone.
            assert_eq!(clocks.check(wall_ms + 59_000, 60_000, 0, 2), Ok(()));
        }
    }

    #[test]
    fn clock__should_not_creep_away_in_small_steps() {
        let mut clocks = ClockMonitor::new(NOON);
        let mut refused = false;
        for step in 1..100_u64 {
            // 30 s more than have passed, each time.
            let (steady, wall) = (step * 1_000, NOON + step * 31_000);
            refused |= clocks.check(wall, steady, 0, 2).is_err();
        }
        assert!(refused);
    }

    #[test]
    fn clock__should_be_refused_when_most_peers_have_another_time() {
        let mut clocks = ClockMonitor::new(NOON);
        hear(&mut clocks, 0, &[NOON + HOUR, NOON + HOUR, NOON]);
        assert!(sentence(clocks.check(NOON, 0, 0, 3)).contains("most of its peers"));
        // What they said long ago is no measure.
        assert_eq!(clocks.check(NOON + FRESH_MS, FRESH_MS, 0, 3), Ok(()));
    }

    #[test]
    fn hostile_peers__should_neither_stop_nor_move_a_clock_while_they_are_few() {
        for (times, peers) in [
            (&[NOON + HOUR][..], 1),
            (&[NOON + HOUR, NOON][..], 2),
            (&[NOON + HOUR, NOON - HOUR, NOON, NOON][..], 4),
            // The others are not heard: two of six are no measure.
            (&[NOON + HOUR, NOON + HOUR][..], 6),
        ] {
            let mut clocks = ClockMonitor::new(NOON);
            hear(&mut clocks, 0, times);
            assert_eq!(clocks.check(NOON, 0, 0, peers), Ok(()), "{times:?}");
            // Nor do they confirm a step, where there are more than one, no matter who else is not heard.
            let moved = clocks.check(NOON + HOUR, 0, 0, peers.max(2));
            assert!(sentence(moved).contains("was moved"), "{times:?}");
        }
    }

    #[test]
    fn replays__should_say_nothing_of_the_time() {
        let mut clocks = ClockMonitor::new(NOON);
        hear(&mut clocks, 5_000, &[NOON + 5_000, NOON + 5_000]);
        for number in [1, 2] {
            let peer = NodeId([number; 32]);
            // Of this start and of an earlier one.
            assert!(clocks.heard(peer, ([1; 16], 3), NOON - HOUR, 6_000));
            assert!(!clocks.heard(peer, ([2; 16], 9_999), NOON - HOUR, 6_000));
        }
        assert_eq!(clocks.check(NOON + 6_000, 6_000, 0, 2), Ok(()));
        // Nor when the peers have fallen silent, and to who has just started.
        for mut clocks in [clocks, ClockMonitor::new(NOON)] {
            for number in [1, 2] {
                let peer = NodeId([number; 32]);
                assert!(!clocks.heard(peer, ([2; 16], 9_999), NOON - HOUR, 60_000));
            }
            assert_eq!(clocks.check(NOON + 60_000, 60_000, 0, 2), Ok(()));
        }
    }

    #[test]
    fn clock__should_be_refused_behind_the_claims_unless_the_peers_confirm_it() {
        let mut clocks = ClockMonitor::new(NOON);
        assert_eq!(clocks.check(NOON, 0, NOON + MAX_BEHIND_MS, 2), Ok(()));
        let newest = NOON + HOUR;
        assert!(sentence(clocks.check(NOON, 0, newest, 2)).contains("behind its own claims"));
        hear(&mut clocks, 0, &[NOON, NOON]);
        assert_eq!(clocks.check(NOON, 0, newest, 2), Ok(()));
    }
}
