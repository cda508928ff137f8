//! Turns that parties take by how much each got. Pure.
//!
//! Start-time fair queueing (Goyal, Vin, Cheng, "Start-time Fair Queueing", SIGCOMM 1996): the next is the one that got
//! the least while it waited, and who comes late does not catch up what it did not ask for.

use std::collections::{BTreeMap, BTreeSet};

/// Where a request stands. In milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTurn {
    /// When it could be done first: of one party, who was accepted first comes first.
    pub accepted_ms: u64,
    /// From when on it goes before the turns of others, which must not cost it its end.
    pub overdue_ms: u64,
}

impl RequestTurn {
    /// That of a request which is accepted at one time, and has until another one: it is overdue after a third of that.
    pub fn new(accepted_ms: u64, deadline_ms: u64) -> Self {
        let third_ms = deadline_ms.saturating_sub(accepted_ms) / 3;
        Self {
            accepted_ms,
            overdue_ms: accepted_ms.saturating_add(third_ms),
        }
    }
}

/// Who left is remembered until others have got as much; it is looked for those after so many.
const REMEMBERED: usize = 16;

/// Whose turn it is, among those that wait.
#[derive(Clone, Debug)]
pub struct FairTurns<K> {
    order: BTreeSet<(u64, K)>,
    got: BTreeMap<K, u64>,
    /// What those got that waited until lately, where it is more than `now`.
    left: BTreeMap<K, u64>,
    /// Of so many, at most, it is not looked again who is to be forgotten.
    kept: usize,
    /// Where a newcomer begins: where the last one stood that got something, before it did.
    now: u64,
}

impl<K> Default for FairTurns<K> {
    fn default() -> Self {
        Self {
            order: BTreeSet::new(),
            got: BTreeMap::new(),
            left: BTreeMap::new(),
            kept: 0,
            now: 0,
        }
    }
}

impl<K: Ord + Clone> FairTurns<K> {
    /// Waits from now on, where it does not yet.
    pub fn come(&mut self, who: &K) {
        if !self.got.contains_key(who) {
            let got = self.left.remove(who).unwrap_or(0).max(self.now);
            self.got.insert(who.clone(), got);
            self.order.insert((got, who.clone()));
        }
    }

    /// Gets so much, where it waits.
    pub fn get(&mut self, who: &K, work: usize) {
        if let Some(got) = self.got.get_mut(who) {
            self.order.remove(&(*got, who.clone()));
            self.now = self.now.max(*got);
            *got = got.saturating_add(u64::try_from(work).unwrap_or(u64::MAX));
            self.order.insert((*got, who.clone()));
        }
    }

    /// Waits no more.
    pub fn leave(&mut self, who: &K) {
        if let Some(got) = self.got.remove(who) {
            self.order.remove(&(got, who.clone()));
            // Else it would come back as if it had got nothing.
            if got > self.now {
                self.left.insert(who.clone(), got);
            }
            if self.got.is_empty() {
                // Nobody is ahead of anyone: the end of a busy period.
                self.now = self.left.values().copied().fold(self.now, u64::max);
                self.left.clear();
                self.kept = 0;
            }
            let most = self.got.len().saturating_mul(2).max(REMEMBERED);
            if self.left.len() > most.max(self.kept) {
                let now = self.now;
                self.left.retain(|_, got| *got > now);
                self.kept = self.left.len().saturating_mul(2);
            }
        }
    }

    /// Who waits, each with what it got, the next one first.
    pub fn order(&self) -> &BTreeSet<(u64, K)> {
        &self.order
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    /// Gives one to the next, so many times; how often it was each of these.
    fn next(turns: &mut FairTurns<u32>, times: usize, of: u32) -> usize {
        let mut count = 0;
        for _ in 0..times {
            let (_, who) = *turns.order().first().unwrap();
            turns.get(&who, 1);
            count += usize::from(who == of);
        }
        count
    }

    #[test]
    fn turns__should_not_put_newcomers_behind_what_another_one_got() {
        let mut turns = FairTurns::default();
        (0..40).for_each(|who| turns.come(&who));
        next(&mut turns, 400, 0);
        // One large thing of someone who has nothing else.
        turns.come(&100);
        turns.get(&100, 252);
        turns.leave(&100);
        turns.come(&200);
        assert_eq!(next(&mut turns, 41, 200), 1);
    }

    #[test]
    fn turns__should_remember_what_who_comes_back_got() {
        let mut turns = FairTurns::default();
        (0..4).for_each(|who| turns.come(&who));
        for _ in 0..3 {
            turns.come(&100);
            turns.get(&100, 100);
            turns.leave(&100);
            turns.come(&100);
            assert_eq!(next(&mut turns, 396, 100), 0);
            assert_eq!(next(&mut turns, 9, 100), 1);
            turns.leave(&100);
        }
        assert!(turns.left.len() <= 1);
        // Who comes much later does not catch up what it did not ask for.
        next(&mut turns, 4_000, 100);
        turns.come(&100);
        assert!((19..=21).contains(&next(&mut turns, 100, 100)));
    }

    #[test]
    fn turns__should_forget_all_once_nobody_waits() {
        let mut turns = FairTurns::default();
        (0..10_000).for_each(|who| turns.come(&who));
        for who in 0..10_000 {
            turns.get(&who, 1);
            turns.leave(&who);
        }
        assert!(turns.left.is_empty() && turns.got.is_empty());
        // Nobody has an advantage of it, or a disadvantage.
        (9_999..10_001).for_each(|who| turns.come(&who));
        assert_eq!(next(&mut turns, 10, 10_000), 5);
    }

    #[test]
    fn turns__should_forget_who_left_long_ago() {
        let mut turns = FairTurns::default();
        turns.come(&0);
        for who in 1..10_000 {
            turns.come(&who);
            turns.get(&who, 10);
            turns.leave(&who);
            next(&mut turns, 1, 0);
        }
        assert!(turns.left.len() <= 2 * REMEMBERED, "{}", turns.left.len());
    }
}
