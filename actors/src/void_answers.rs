//! Nodes that say that a transaction never comes are believed when they go on saying it: those that answer now may all be
//! behind the one that has it.

use std::{collections::HashMap, time::Duration};

use covault_core::ids::RequestId;
use parking_lot::Mutex;
use tokio::time::Instant;

/// So many of them, one after the other, it takes at least.
const MIN_ANSWERS: u32 = 4;
/// After so long without one it begins anew: what was said in between nobody here has heard.
const MOST_PAUSE: Duration = Duration::from_secs(600);

/// Answers that say, one after the other, that a transaction never comes.
#[derive(Clone, Copy)]
pub struct VoidAnswers {
    since: Instant,
    last: Instant,
    count: u32,
}

impl VoidAnswers {
    /// None yet.
    pub fn new() -> Self {
        let now = Instant::now();
        Self {
            since: now,
            last: now,
            count: 0,
        }
    }

    /// One more. True when they count by now: they have said so for `settling_ms`, several times.
    pub fn add(&mut self, settling_ms: u64) -> bool {
        self.last = Instant::now();
        self.count = self.count.saturating_add(1);
        self.count >= MIN_ANSWERS && self.since.elapsed() >= Duration::from_millis(settling_ms)
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

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_never_comes__should_be_said_several_times_and_for_long() {
        let (refused, request) = (RefusedVoid::default(), RequestId::from_random([7; 16]));
        let pass = async |seconds| tokio::time::advance(Duration::from_secs(seconds)).await;
        // Often, and not for long.
        for _ in 0..10 {
            assert!(!refused.add(request, 180_000));
        }
        pass(180).await;
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
}
