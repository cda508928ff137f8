//! Which orchestrators are alive, as one of them sees it.
//!
//! Each writes its row again and again. It counts as alive until its row has stayed the same for the
//! lease time, by the observer's own steady clock: no clocks of different machines are compared, so
//! that clocks that jump or are wrong change nothing. Only time between looks that succeeded counts,
//! and little of it for each: an observer that was stalled itself, or could not read the store,
//! learns nothing about others from that.

use std::collections::HashMap;

use covault_core::ids::OrchestratorId;

use super::{LeaseScope, MemberRow, preferred};

/// What is seen of one.
struct ObservedMember {
    version: u64,
    member: MemberRow,
    /// For how long its row has stayed the same, in milliseconds.
    quiet_ms: u64,
    /// For how long it has been seen, in milliseconds.
    known_ms: u64,
    /// It has written its row since it was first seen: it is no row that a dead one has left behind.
    has_written: bool,
}

/// See the module.
#[derive(Default)]
pub(super) struct MemberTable {
    seen: HashMap<OrchestratorId, ObservedMember>,
    last_ms: Option<u64>,
}

impl MemberTable {
    /// Takes in all rows as they are now. `now_ms` is the steady clock; no more than `most_ms` of
    /// what has passed since the last look counts.
    pub fn observe(
        &mut self,
        rows: impl IntoIterator<Item = (OrchestratorId, u64, MemberRow)>,
        now_ms: u64,
        most_ms: u64,
    ) {
        let passed = self.last_ms.map_or(0, |last| now_ms.saturating_sub(last));
        let passed = passed.min(most_ms);
        self.last_ms = Some(now_ms);
        let mut before = std::mem::take(&mut self.seen);
        for (id, version, member) in rows {
            let seen = match before.remove(&id) {
                None => ObservedMember {
                    version,
                    member,
                    quiet_ms: 0,
                    known_ms: 0,
                    has_written: false,
                },
                Some(seen) => ObservedMember {
                    quiet_ms: if seen.version == version {
                        seen.quiet_ms.saturating_add(passed)
                    } else {
                        0
                    },
                    known_ms: seen.known_ms.saturating_add(passed),
                    has_written: seen.has_written || seen.version != version,
                    version,
                    member,
                },
            };
            self.seen.insert(id, seen);
        }
    }

    /// Whether it has written its row within the lease time.
    pub fn is_live(&self, id: OrchestratorId, lease_ms: u64) -> bool {
        self.seen
            .get(&id)
            .is_some_and(|seen| seen.quiet_ms < lease_ms)
    }

    /// Those that have written their row while they were looked at, and are alive.
    pub fn writing(&self, lease_ms: u64) -> impl Iterator<Item = (OrchestratorId, &MemberRow)> {
        let writing = self.seen.iter();
        let writing = writing.filter(move |(_, seen)| seen.has_written && seen.quiet_ms < lease_ms);
        writing.map(|(id, seen)| (*id, &seen.member))
    }

    /// Those that are alive and may be given something, sorted.
    pub fn eligible(&self, lease_ms: u64) -> Vec<OrchestratorId> {
        let eligible = self.seen.iter();
        let eligible =
            eligible.filter(|(_, seen)| seen.quiet_ms < lease_ms && !seen.member.leaving);
        let mut eligible: Vec<_> = eligible.map(|(id, _)| *id).collect();
        eligible.sort_unstable();
        eligible
    }

    /// The one of these that is to have something: of those that can do it.
    pub fn preferred(
        &self,
        scope: LeaseScope,
        eligible: &[OrchestratorId],
    ) -> Option<OrchestratorId> {
        let eligible = eligible.iter().copied();
        preferred(scope, eligible.filter(|id| self.can_do(*id, scope)))
    }

    fn can_do(&self, id: OrchestratorId, scope: LeaseScope) -> bool {
        let seen = self.seen.get(&id);
        seen.is_some_and(|seen| seen.member.can_do(scope))
    }

    /// Whether it has been alive for as long as the lease time: worth moving something to.
    pub fn is_settled(&self, id: OrchestratorId, lease_ms: u64) -> bool {
        self.seen
            .get(&id)
            .is_some_and(|seen| seen.known_ms >= lease_ms && seen.quiet_ms < lease_ms)
    }

    /// What changes when something is to be had: who is able, and who else has given something back.
    pub fn signature(&self, me: OrchestratorId, lease_ms: u64) -> Vec<(OrchestratorId, u64, bool)> {
        let mut all: Vec<_> = self
            .seen
            .iter()
            .filter(|(id, _)| **id != me)
            .map(|(id, seen)| {
                let eligible = seen.quiet_ms < lease_ms && !seen.member.leaving;
                (*id, seen.member.moves, eligible)
            })
            .collect();
        all.sort_unstable();
        all
    }

    /// Rows that have stayed the same for so long that nobody needs them, with their versions.
    pub fn forgotten(&self, after_ms: u64) -> Vec<(OrchestratorId, u64)> {
        let old = self.seen.iter();
        let old = old.filter(|(_, seen)| seen.quiet_ms >= after_ms);
        old.map(|(id, seen)| (*id, seen.version)).collect()
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::{deposit::transfer::FollowedChain, ids::VaultId};

    use super::*;

    const LEASE: u64 = 5_000;
    const MOST: u64 = 2_000;

    fn id(number: u8) -> OrchestratorId {
        OrchestratorId::from_bytes([number; 16])
    }

    fn row(number: u8, version: u64) -> (OrchestratorId, u64, MemberRow) {
        (id(number), version, MemberRow::default())
    }

    #[test]
    fn preferred__should_be_one_that_can_do_it() {
        let chain = FollowedChain::Evm(1);
        let all = [id(1), id(2)];
        let scopes = [LeaseScope::Chain(chain), LeaseScope::Webhooks];
        for able in [1, 2] {
            let rows = [1, 2].map(|number| {
                let (id, version, mut member) = row(number, 7);
                if number == able {
                    (member.follows, member.sends_webhooks) = (vec![chain], true);
                }
                (id, version, member)
            });
            let mut members = MemberTable::default();
            members.observe(rows, 0, MOST);
            for scope in scopes {
                assert_eq!(members.preferred(scope, &all), Some(id(able)));
            }
            let other = LeaseScope::Chain(FollowedChain::Evm(2));
            assert_eq!(members.preferred(other, &all), None);
            let vault = LeaseScope::Vault(VaultId::from_bytes([1; 16]));
            assert_eq!(members.preferred(vault, &all), preferred(vault, all));
        }
    }

    #[test]
    fn writing__should_be_those_whose_row_has_changed_since_it_was_first_seen() {
        let mut members = MemberTable::default();
        // The second one died before this one started.
        members.observe([row(1, 7), row(2, 7)], 10_000, MOST);
        assert_eq!(members.writing(LEASE).count(), 0);
        members.observe([row(1, 8), row(2, 7)], 11_000, MOST);
        let writing: Vec<_> = members.writing(LEASE).map(|(id, _)| id).collect();
        assert_eq!(writing, [id(1)]);
        for second in 2..=8 {
            members.observe([row(1, 8), row(2, 7)], 10_000 + second * 1_000, MOST);
        }
        assert_eq!(members.writing(LEASE).count(), 0, "it has died");
    }

    #[test]
    fn members__should_be_dead_once_their_row_was_the_same_for_the_lease_time() {
        let mut members = MemberTable::default();
        members.observe([row(1, 7), row(2, 7)], 10_000, MOST);
        for second in 1..=4 {
            members.observe(
                [row(1, 7), row(2, 7 + second)],
                10_000 + second * 1000,
                MOST,
            );
            assert!(members.is_live(id(1), LEASE), "{second}");
        }
        members.observe([row(1, 7), row(2, 12)], 15_000, MOST);
        assert!(!members.is_live(id(1), LEASE));
        assert!(members.is_live(id(2), LEASE));
        assert!(members.is_settled(id(2), LEASE));
        assert_eq!(members.eligible(LEASE), [id(2)]);
        // It wakes up: any other version will do, also a smaller one.
        members.observe([row(1, 1), row(2, 13)], 16_000, MOST);
        assert_eq!(members.eligible(LEASE), [id(1), id(2)]);
        // One that left is not there at all.
        members.observe([row(2, 14)], 17_000, MOST);
        assert!(!members.is_live(id(1), LEASE));
    }

    #[test]
    fn members__should_not_be_dead_because_the_observer_was_away() {
        let mut members = MemberTable::default();
        members.observe([row(1, 7)], 0, MOST);
        // Stalled for an hour, and the other's next row is not there yet.
        members.observe([row(1, 7)], 3_600_000, MOST);
        assert!(members.is_live(id(1), LEASE));
        members.observe([row(1, 8)], 3_601_000, MOST);
        // A clock that goes back is ignored, and does no harm.
        members.observe([row(1, 8)], 0, MOST);
        assert!(members.is_live(id(1), LEASE));
    }

    #[test]
    fn members__should_show_when_there_is_something_to_be_had() {
        let mut members = MemberTable::default();
        members.observe([row(1, 7), row(2, 7)], 0, MOST);
        let before = members.signature(id(1), LEASE);
        members.observe([row(1, 8), row(2, 8)], 1_000, MOST);
        assert_eq!(members.signature(id(1), LEASE), before);
        let mut moved = row(2, 9);
        moved.2.moves = 1;
        members.observe([row(1, 9), moved], 2_000, MOST);
        assert_ne!(members.signature(id(1), LEASE), before);
        let mut leaving = row(2, 10);
        leaving.2.leaving = true;
        members.observe([row(1, 10), leaving], 3_000, MOST);
        assert_eq!(members.eligible(LEASE), [id(1)]);
        assert!(members.is_live(id(2), LEASE));
        assert_eq!(members.forgotten(1_000), []);
        members.observe([row(1, 11), row(2, 10)], 4_000, MOST);
        assert_eq!(members.forgotten(1_000), [(id(2), 10)]);
    }
}
