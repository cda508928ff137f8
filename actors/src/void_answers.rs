//! Nodes that say that a transaction never comes are believed when they go on saying it: those that answer now may all be
//! behind the one that has it.

use std::{
    collections::{HashMap, hash_map::Entry},
    time::Duration,
};

use covault_core::ids::RequestId;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::account::ChainAccount;

/// So many of them, one after the other and each a part of that time after the one before, it takes at least.
const MIN_ANSWERS: u32 = 4;
/// After so long without one it begins anew: what was said in between nobody here has heard.
const MOST_PAUSE: Duration = Duration::from_secs(600);
/// Between two looks at the refused transactions of an account beside its requests.
const LOOK_PAUSE: Duration = Duration::from_secs(60);

/// Answers that say, one after the other, that a transaction never comes.
#[derive(Clone, Copy)]
pub struct VoidAnswers {
    since: Instant,
    last: Instant,
    /// When the last one came that counts.
    counted: Instant,
    count: u32,
}

impl VoidAnswers {
    /// None yet.
    pub fn new() -> Self {
        let now = Instant::now();
        Self {
            since: now,
            last: now,
            counted: now,
            count: 0,
        }
    }

    /// One more. True when they count by now: they have said so for `settling_ms`, at several times. Those that come at
    /// once, as several requests ask, are one.
    pub fn add(&mut self, settling_ms: u64) -> bool {
        let settling = Duration::from_millis(settling_ms);
        self.last = Instant::now();
        if self.count == 0 || self.counted.elapsed() >= settling / MIN_ANSWERS {
            self.counted = self.last;
            self.count = self.count.saturating_add(1);
        }
        self.count >= MIN_ANSWERS && self.since.elapsed() >= settling
    }
}

/// Those about the refused transactions of requests. A restart begins anew.
#[derive(Default)]
pub struct RefusedVoid(Mutex<HashMap<RequestId, VoidAnswers>>);

impl RefusedVoid {
    /// Nodes say that the transaction of this request never comes. True when that counts by now.
    pub fn add(&self, request: RequestId, settling_ms: u64) -> bool {
        let mut all = self.0.lock();
        all.retain(|_, it| it.last.elapsed() < MOST_PAUSE);
        let answers = all.entry(request).or_insert_with(VoidAnswers::new);
        answers.add(settling_ms)
    }

    /// They say something else, or nothing.
    pub fn clear(&self, request: RequestId) {
        self.0.lock().remove(&request);
    }
}

/// When the refused transactions of an account were last asked about beside its requests.
#[derive(Default)]
pub struct EndedLooks(Mutex<HashMap<ChainAccount, Option<Instant>>>);

impl EndedLooks {
    /// A look at those of this account begins. False while there is one, and for a minute after: what nodes never say must
    /// not cost them calls with each request.
    pub fn begin(&self, account: &ChainAccount) -> bool {
        let mut all = self.0.lock();
        all.retain(|_, ended| ended.is_none_or(|ended| ended.elapsed() < LOOK_PAUSE));
        match all.entry(account.clone()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(None);
                true
            }
        }
    }

    /// It has ended.
    pub fn end(&self, account: &ChainAccount) {
        let mut all = self.0.lock();
        all.insert(account.clone(), Some(Instant::now()));
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::networks::Network;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_never_comes__should_be_said_several_times_and_for_long() {
        let (refused, request) = (RefusedVoid::default(), RequestId::from_random([7; 16]));
        let pass = async |seconds| tokio::time::advance(Duration::from_secs(seconds)).await;
        // Often, and not for long.
        for _ in 0..10 {
            assert!(!refused.add(request, 180_000));
        }
        pass(170).await;
        // As many requests ask at once: at two times, however many they are.
        for _ in 0..10 {
            assert!(!refused.add(request, 180_000));
        }
        pass(45).await;
        assert!(!refused.add(request, 180_000));
        pass(45).await;
        assert!(refused.add(request, 180_000));
        // For long, and not often: something else was said in between.
        refused.clear(request);
        for _ in 0..3 {
            assert!(!refused.add(request, 180_000));
            pass(100).await;
        }
        assert!(refused.add(request, 180_000));
        // What was said long ago does not go on.
        pass(600).await;
        assert!(!refused.add(request, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn looks__should_pause() {
        let account = |address: &str| ChainAccount {
            network: Network::Tron,
            chain_id: None,
            address: address.to_owned(),
        };
        let (looks, one, other) = (EndedLooks::default(), account("one"), account("other"));
        assert!(looks.begin(&one));
        // However long it takes: one at a time, of each account.
        tokio::time::advance(Duration::from_secs(3_600)).await;
        assert!(!looks.begin(&one) && looks.begin(&other));
        looks.end(&one);
        tokio::time::advance(Duration::from_secs(59)).await;
        assert!(!looks.begin(&one));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(looks.begin(&one) && !looks.begin(&other));
    }
}
