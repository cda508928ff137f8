//! Which job of a pool is next.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use covault_core::scheme::Scheme;

/// What a pool runs.
pub type PoolJob = Box<dyn FnOnce() + Send>;

/// Which jobs go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Signing, before it is known with which scheme: a client waits for each.
    Signing,
    /// Signing with a scheme. Each scheme gets as much time of the threads as any other that has as much to do.
    SigningWith(Scheme),
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

/// How long a job is believed to take before one of its kind was measured.
const UNMEASURED: Duration = Duration::from_micros(100);
/// One job's part in how long those of its kind are believed to take: 1 of so many.
const SMOOTH: u32 = 8;

/// What signs with one scheme; `None`: what is still to be read.
type SigningKind = Option<Scheme>;

/// Jobs of signing. The next is of the kind that used the threads least while it had something to do, so that one
/// curve's crowd leaves the other its half, however many sessions it has in progress: start-time fair queueing, as
/// [`covault_core::turns`], but what a job takes is known only once it is over. Until then it counts with what those
/// of its kind take, since other threads choose in the meantime.
#[derive(Default)]
struct SigningQueues {
    kinds: BTreeMap<SigningKind, SigningQueue>,
    waiting: usize,
    /// Where a kind begins that had nothing to do.
    now: Duration,
}

/// Jobs of one kind.
#[derive(Default)]
struct SigningQueue {
    jobs: VecDeque<PoolJob>,
    /// What it used, and what it did not ask for in time.
    used: Duration,
    /// What one job takes, about.
    usual: Option<Duration>,
}

/// A signing job that runs, to be told how long it took.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunningSigning {
    kind: SigningKind,
    /// With what it counts.
    believed: Duration,
}

/// What runs next.
pub(super) enum NextJob {
    Signing(PoolJob, RunningSigning),
    Keygen(PoolJob),
    Idle(PoolJob),
}

impl SigningQueues {
    fn push(&mut self, kind: SigningKind, job: PoolJob) {
        let now = self.now;
        let queue = self.kinds.entry(kind).or_default();
        if queue.jobs.is_empty() {
            queue.used = queue.used.max(now);
        }
        queue.jobs.push_back(job);
        self.waiting = self.waiting.saturating_add(1);
    }

    fn pop(&mut self) -> Option<(PoolJob, RunningSigning)> {
        let waiting = self.kinds.iter_mut().filter(|(_, it)| !it.jobs.is_empty());
        let (kind, queue) = waiting.min_by_key(|(_, queue)| queue.used)?;
        let job = queue.jobs.pop_front()?;
        self.waiting = self.waiting.saturating_sub(1);
        self.now = self.now.max(queue.used);
        let believed = queue.usual.unwrap_or(UNMEASURED);
        queue.used = queue.used.saturating_add(believed);
        let kind = *kind;
        Some((job, RunningSigning { kind, believed }))
    }

    fn done(&mut self, RunningSigning { kind, believed }: RunningSigning, took: Duration) {
        let queue = self.kinds.entry(kind).or_default();
        queue.used = queue.used.saturating_sub(believed).saturating_add(took);
        queue.usual = Some(match queue.usual {
            None => took,
            Some(usual) => (usual * (SMOOTH - 1) + took) / SMOOTH,
        });
    }
}

#[derive(Default)]
pub(super) struct JobQueues {
    signing: SigningQueues,
    keygen: VecDeque<PoolJob>,
    idle: VecDeque<PoolJob>,
    /// Signing jobs that went before a key generation that waits.
    passed: usize,
    /// Other jobs that went before an idle one that waits.
    passed_idle: usize,
    /// An idle job runs.
    pub(super) idling: bool,
    pub(super) closed: bool,
}

impl JobQueues {
    pub(super) fn push(&mut self, priority: Priority, job: PoolJob) {
        match priority {
            Priority::Signing => self.signing.push(None, job),
            Priority::SigningWith(scheme) => self.signing.push(Some(scheme), job),
            Priority::Keygen => self.keygen.push_back(job),
            Priority::Idle => self.idle.push_back(job),
        }
    }

    /// The next job.
    pub(super) fn next(&mut self) -> Option<NextJob> {
        if self.passed_idle >= MAX_LIVE_IN_A_ROW
            && let Some(job) = self.next_idle()
        {
            return Some(NextJob::Idle(job));
        }
        let turn = self.passed >= MAX_SIGNING_IN_A_ROW || self.signing.waiting == 0;
        let live = if turn && let Some(job) = self.keygen.pop_front() {
            self.passed = 0;
            Some(NextJob::Keygen(job))
        } else {
            self.passed = match self.keygen.is_empty() {
                true => 0,
                false => self.passed.saturating_add(1),
            };
            let next = self.signing.pop();
            next.map(|(job, running)| NextJob::Signing(job, running))
        };
        if live.is_some() {
            self.passed_idle = match self.idle.is_empty() {
                true => 0,
                false => self.passed_idle.saturating_add(1),
            };
            return live;
        }
        self.next_idle().map(NextJob::Idle)
    }

    fn next_idle(&mut self) -> Option<PoolJob> {
        if self.idling {
            return None;
        }
        let job = self.idle.pop_front()?;
        (self.idling, self.passed_idle) = (true, 0);
        Some(job)
    }

    /// A signing job is over, for which a thread worked so long.
    pub(super) fn done(&mut self, running: RunningSigning, took: Duration) {
        self.signing.done(running, took);
    }

    /// Whether signing jobs wait for a thread.
    pub(super) fn is_signing_waiting(&self) -> bool {
        self.signing.waiting > 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.signing.waiting == 0 && self.keygen.is_empty() && self.idle.is_empty()
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const FAST: Duration = Duration::from_micros(200);
    const SLOW: Duration = Duration::from_millis(4);

    /// Signs with two schemes on so many threads, each of which always has so many jobs in progress; how many of each
    /// are done in `for_ms` milliseconds of the threads' own time.
    fn shared(threads: usize, (fast, slow): (usize, usize), for_ms: u64) -> [u64; 2] {
        const KINDS: [(Scheme, Duration); 2] =
            [(Scheme::FrostEd25519, FAST), (Scheme::Dkls23, SLOW)];
        let mut queues = JobQueues::default();
        let (ran, runs) = mpsc::channel();
        let push = |queues: &mut JobQueues, at: usize| {
            let ran = ran.clone();
            let job = Box::new(move || ran.send(at).unwrap());
            queues.push(Priority::SigningWith(KINDS[at].0), job);
        };
        // All of the fast ones stand before the first slow one.
        (0..fast).for_each(|_| push(&mut queues, 0));
        (0..slow).for_each(|_| push(&mut queues, 1));
        let mut done = [0; 2];
        // When each thread is free, and what it works on.
        let mut busy: Vec<(Duration, Option<(usize, RunningSigning)>)> =
            vec![(Duration::ZERO, None); threads];
        loop {
            let thread = (0..threads).min_by_key(|thread| busy[*thread].0).unwrap();
            let (now, ended) = busy[thread];
            if now > Duration::from_millis(for_ms) {
                return done;
            }
            if let Some((at, running)) = ended {
                queues.done(running, KINDS[at].1);
                done[at] += 1;
                push(&mut queues, at);
            }
            busy[thread] = match queues.next() {
                Some(NextJob::Signing(job, running)) => {
                    job();
                    let at = runs.try_recv().unwrap();
                    (now + KINDS[at].1, Some((at, running)))
                }
                Some(_) => panic!("nothing else was queued"),
                None => (now + FAST, None),
            };
        }
    }

    #[test]
    fn schemes__should_have_the_same_time_however_many_jobs_each_has_waiting() {
        for (threads, in_progress) in [
            (1, (2_000, 16)),
            (1, (2_000, 2)),
            (2, (2_000, 16)),
            (4, (500, 500)),
            (1, (2, 500)),
            (1, (1, 500)),
        ] {
            let [fast, slow] = shared(threads, in_progress, 4_000);
            // Half of the time each.
            let each_ms = 2_000 * threads as u64;
            let fast_ms = fast * 200 / 1_000;
            let near = |ms: u64| (each_ms * 9 / 10..=each_ms * 11 / 10).contains(&ms);
            assert!(
                near(fast_ms) && near(slow * 4),
                "{threads} {in_progress:?} {fast} {slow}"
            );
        }
    }

    #[test]
    fn scheme__should_have_all_of_the_time_that_others_leave() {
        let [fast, slow] = shared(1, (2_000, 0), 4_000);
        assert!(fast >= 19_990 && slow == 0, "{fast} {slow}");
        // Two of them keep no more than two of four threads busy.
        let [fast, slow] = shared(4, (2_000, 2), 4_000);
        assert!(slow >= 1_800 && fast >= 36_000, "{fast} {slow}");
    }

    #[test]
    fn scheme__should_not_catch_up_what_it_did_not_ask_for() {
        let mut queues = JobQueues::default();
        let names = |queues: &mut JobQueues, count: usize| -> Vec<SigningKind> {
            let mut names = Vec::new();
            for _ in 0..count {
                let Some(NextJob::Signing(_, running)) = queues.next() else {
                    panic!("signing jobs wait");
                };
                names.push(running.kind);
                queues.done(running, FAST);
            }
            names
        };
        let push = |queues: &mut JobQueues, scheme, count| {
            for _ in 0..count {
                queues.push(Priority::SigningWith(scheme), Box::new(|| {}));
            }
        };
        let (fast, slow) = (Scheme::FrostEd25519, Scheme::Dkls23);
        push(&mut queues, fast, 1_000);
        names(&mut queues, 900);
        push(&mut queues, slow, 100);
        let of_slow = names(&mut queues, 20);
        let of_slow = of_slow.iter().filter(|kind| **kind == Some(slow)).count();
        assert!((9..=11).contains(&of_slow), "{of_slow}");
        // What comes for the first time is heard soon, whatever waits.
        queues.push(Priority::Signing, Box::new(|| {}));
        assert!(names(&mut queues, 3).contains(&None));
    }
}
