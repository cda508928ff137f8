//! Turns that parties take by how much each got. Pure.
//!
//! Start-time fair queueing (Goyal, Vin, Cheng, "Start-time Fair Queueing", SIGCOMM 1996): the next is the one that got
//! the least while it waited, and who comes late does not catch up what it did not ask for.

use std::collections::{BTreeMap, BTreeSet};

/// Whose turn it is, among those that wait.
#[derive(Clone, Debug)]
pub struct Turns<K> {
    order: BTreeSet<(u64, K)>,
    got: BTreeMap<K, u64>,
    /// Where whoever comes now begins.
    now: u64,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self {
            order: BTreeSet::new(),
            got: BTreeMap::new(),
            now: 0,
        }
    }
}

impl<K: Ord + Clone> Turns<K> {
    /// Waits from now on, where it does not yet.
    pub fn come(&mut self, who: &K) {
        if !self.got.contains_key(who) {
            self.got.insert(who.clone(), self.now);
            self.order.insert((self.now, who.clone()));
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
            // Else it would come back as if it had got nothing.
            self.now = self.now.max(got);
            self.order.remove(&(got, who.clone()));
        }
    }

    /// Who waits, each with what it got, the next one first.
    pub fn order(&self) -> &BTreeSet<(u64, K)> {
        &self.order
    }
}
