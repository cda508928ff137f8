//! How long requests wait for what a chain's nodes say, so that no more are accepted than they can answer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use covault_core::rate::{Rate, count};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::CALLS_PER_NODE;

/// So many are no crowd: a node answers as many at once.
const NO_CROWD: usize = CALLS_PER_NODE;

/// The requests of one chain that wait for what its nodes say.
#[derive(Debug, Default)]
pub struct ChainQueue {
    state: Mutex<QueueState>,
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: usize,
    rate: Rate,
}

/// One request that waits, from its first question until it has what it needs or ends.
#[derive(Debug)]
pub struct ChainWait {
    queue: Arc<ChainQueue>,
    since: Instant,
    /// How many waited when it came, with it.
    place: usize,
    over: AtomicBool,
}

impl ChainQueue {
    /// A request begins to ask.
    pub fn enter(self: &Arc<Self>) -> ChainWait {
        let since = Instant::now();
        let mut state = self.state.lock();
        state.count(since, |waiting| waiting.saturating_add(1));
        ChainWait {
            queue: Arc::clone(self),
            since,
            place: state.waiting,
            over: AtomicBool::new(false),
        }
    }

    /// About how long one that comes now waits; nothing where there is no crowd, or nobody knows.
    pub fn expected_wait(&self) -> Duration {
        let state = self.state.lock();
        if state.waiting <= NO_CROWD {
            return Duration::ZERO;
        }
        let now = Instant::now().into_std();
        let wait = state.rate.time_for(state.waiting, NO_CROWD, now);
        wait.unwrap_or_default()
    }
}

impl QueueState {
    fn count(&mut self, now: Instant, change: impl FnOnce(usize) -> usize) {
        self.waiting = change(self.waiting);
        self.rate.waits(self.waiting > NO_CROWD, now.into_std());
    }
}

impl ChainWait {
    /// The nodes have said all that it needs, or that it cannot be. What it waits for from now on is not the nodes.
    pub fn answered(&self) {
        self.end(true);
    }

    fn end(&self, answered: bool) {
        if self.over.swap(true, Ordering::Relaxed) {
            return;
        }
        let now = Instant::now();
        let mut state = self.queue.state.lock();
        if answered {
            // In which so many as are no crowd were answered: the others before it were, too.
            let took = now.saturating_duration_since(self.since);
            let took = took.mul_f64(count(NO_CROWD) / count(self.place.max(NO_CROWD)));
            state.rate.done(1, took, now.into_std());
        }
        state.count(now, |waiting| waiting.saturating_sub(1));
    }
}

impl Drop for ChainWait {
    fn drop(&mut self) {
        self.end(false);
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn queue__should_say_how_long_the_next_one_waits() {
        let queue = Arc::new(ChainQueue::default());
        let mut waits: std::collections::VecDeque<ChainWait> =
            (0..1_000).map(|_| queue.enter()).collect();
        // Nobody was answered yet.
        assert_eq!(queue.expected_wait(), Duration::ZERO);
        for _ in 0..500 {
            tokio::time::advance(Duration::from_millis(50)).await;
            waits.pop_front().unwrap().answered();
            waits.push_back(queue.enter());
        }
        // 20 a second.
        let wait = queue.expected_wait().as_secs();
        assert!((30..=60).contains(&wait), "{wait}");
        // What ends without an answer is not done.
        waits.truncate(500);
        let half = queue.expected_wait().as_secs();
        assert!((15..=30).contains(&half), "{half}");
        waits.truncate(NO_CROWD);
        assert_eq!(queue.expected_wait(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn request__should_not_count_while_it_has_its_answers_and_waits_for_others() {
        let queue = Arc::new(ChainQueue::default());
        let (first, second) = (queue.enter(), queue.enter());
        first.answered();
        assert_eq!(queue.state.lock().waiting, 1);
        drop((first, second));
        assert_eq!(queue.state.lock().waiting, 0);
    }
}
