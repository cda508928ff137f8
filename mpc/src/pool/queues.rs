//! Which job of a pool is next.

use std::collections::VecDeque;

/// What a pool runs.
pub type Job = Box<dyn FnOnce() + Send>;

/// Which jobs go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Signing: a client waits for each.
    Signing,
    /// Key generation: long, and may wait; but not for ever, whatever keeps the first lane full.
    Keygen,
    /// Work done ahead, in pieces of about a millisecond: begun when nothing else waits, or now and then, since what
    /// is made ahead is less work than what is not; and one at a time, so that the other threads stay free for what
    /// clients wait for.
    Idle,
}

/// After this many signing jobs in a row a waiting key generation has its turn.
pub(super) const MAX_SIGNING_IN_A_ROW: usize = 1024;

/// After this many other jobs in a row a waiting idle one has its turn.
pub(super) const MAX_LIVE_IN_A_ROW: usize = 64;

#[derive(Default)]
pub(super) struct JobQueues {
    pub(super) signing: VecDeque<Job>,
    pub(super) keygen: VecDeque<Job>,
    pub(super) idle: VecDeque<Job>,
    /// Signing jobs that went before a key generation that waits.
    passed: usize,
    /// Other jobs that went before an idle one that waits.
    passed_idle: usize,
    /// An idle job runs.
    pub(super) idling: bool,
    pub(super) closed: bool,
}

impl JobQueues {
    /// The next job, and whether it is an idle one.
    pub(super) fn next(&mut self) -> Option<(Job, bool)> {
        if self.passed_idle >= MAX_LIVE_IN_A_ROW
            && let Some(job) = self.next_idle()
        {
            return Some((job, true));
        }
        let turn = self.passed >= MAX_SIGNING_IN_A_ROW || self.signing.is_empty();
        let live = if turn && let Some(job) = self.keygen.pop_front() {
            self.passed = 0;
            Some(job)
        } else {
            self.passed = match self.keygen.is_empty() {
                true => 0,
                false => self.passed.saturating_add(1),
            };
            self.signing.pop_front()
        };
        if let Some(job) = live {
            self.passed_idle = match self.idle.is_empty() {
                true => 0,
                false => self.passed_idle.saturating_add(1),
            };
            return Some((job, false));
        }
        self.next_idle().map(|job| (job, true))
    }

    fn next_idle(&mut self) -> Option<Job> {
        if self.idling {
            return None;
        }
        let job = self.idle.pop_front()?;
        (self.idling, self.passed_idle) = (true, 0);
        Some(job)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.signing.is_empty() && self.keygen.is_empty() && self.idle.is_empty()
    }
}
