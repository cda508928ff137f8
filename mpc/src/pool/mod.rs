//! Threads for cryptography, kept away from the asynchronous ones.

pub(crate) mod queues;

use std::{sync::Arc, thread, time::Duration};

use covault_core::fault::Fault;
use parking_lot::{Condvar, Mutex};
use rustix::time::{ClockId, clock_gettime};

#[cfg(feature = "simulation")]
use crate::simulated::SimMachine;

use queues::{JobQueues, NextJob};
pub use queues::{PoolJob, Priority};

/// A fixed number of threads and a queue per lane. Nodes of one process share a pool, or threads
/// would outnumber cores. Threads end when the last handle is dropped and the queues are empty.
pub struct CpuPool {
    shared: Arc<PoolInner>,
    threads: usize,
    /// Instead of threads.
    #[cfg(feature = "simulation")]
    machine: Option<SimMachine>,
}

#[derive(Default)]
struct PoolInner {
    queues: Mutex<JobQueues>,
    wake: Condvar,
}

impl CpuPool {
    /// A pool of `threads` threads; at least one.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Bug`] when the system refuses a thread.
    pub fn new(threads: usize) -> Result<Arc<Self>, Fault> {
        let shared = Arc::new(PoolInner::default());
        let threads = threads.max(1);
        for number in 0..threads {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name(format!("covault-mpc-{number}"))
                .spawn(move || shared.work())
                .map_err(Fault::bug)?;
        }
        Ok(Arc::new(Self {
            shared,
            threads,
            #[cfg(feature = "simulation")]
            machine: None,
        }))
    }

    /// A pool without threads, for simulations: nodes that use it do everything on the thread of
    /// their runtime, in an order that the machine decides.
    #[cfg(feature = "simulation")]
    pub fn simulated(machine: SimMachine) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::default(),
            threads: 1,
            machine: Some(machine),
        })
    }

    /// How many threads it has.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    #[cfg(feature = "simulation")]
    pub(crate) fn machine(&self) -> Option<&SimMachine> {
        self.machine.as_ref()
    }

    /// As many threads as cores.
    ///
    /// # Errors
    /// As [`CpuPool::new`].
    pub fn per_core() -> Result<Arc<Self>, Fault> {
        Self::new(thread::available_parallelism().map_or(1, usize::from))
    }

    /// Runs what takes its time on the disk, away from the asynchronous threads.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Bug`] when it panics.
    pub(crate) async fn block_on<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Fault> {
        #[cfg(feature = "simulation")]
        if self.machine.is_some() {
            return Ok(job());
        }
        tokio::task::spawn_blocking(job).await.map_err(Fault::bug)
    }

    /// Queues a job.
    pub fn spawn(&self, priority: Priority, job: impl FnOnce() + Send + 'static) {
        #[cfg(feature = "simulation")]
        if let Some(machine) = &self.machine {
            return (machine.run)(priority, Box::new(job));
        }
        self.shared.queues.lock().push(priority, Box::new(job));
        self.shared.wake.notify_one();
    }

    /// Goes on with a signing job of which it has turned out on a thread of the pool with which scheme it signs: at
    /// once where no other waits.
    pub(crate) fn go_on(&self, priority: Priority, job: impl FnOnce() + Send + 'static) {
        #[cfg(feature = "simulation")]
        if self.machine.is_some() {
            return job();
        }
        if self.shared.queues.lock().is_signing_waiting() {
            self.spawn(priority, job);
        } else {
            job();
        }
    }
}

/// How long this thread has worked.
fn worked() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

impl Drop for CpuPool {
    fn drop(&mut self) {
        self.shared.queues.lock().closed = true;
        self.shared.wake.notify_all();
    }
}

impl PoolInner {
    fn work(&self) {
        let mut queues = self.queues.lock();
        loop {
            match queues.next() {
                Some(next) => {
                    drop(queues);
                    let (job, is_idle, running) = match next {
                        NextJob::Signing(job, running) => (job, false, Some((running, worked()))),
                        NextJob::Keygen(job) => (job, false, None),
                        NextJob::Idle(job) => (job, true, None),
                    };
                    // A job that panics must not take its thread with it.
                    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
                        tracing::error!("a cryptography job panicked");
                    }
                    let took = running.map(|(_, began)| worked().saturating_sub(began));
                    queues = self.queues.lock();
                    if let (Some((running, _)), Some(took)) = (running, took) {
                        queues.done(running, took);
                    }
                    if is_idle {
                        // The next one is this thread's, unless something else has come.
                        queues.idling = false;
                    }
                }
                None if queues.closed && queues.is_empty() => {
                    // Others may wait for the idle job that ended last.
                    self.wake.notify_all();
                    return;
                }
                None => {
                    self.wake.wait(&mut queues);
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    };

    use super::{
        queues::{MAX_LIVE_IN_A_ROW, MAX_SIGNING_IN_A_ROW},
        *,
    };

    #[test]
    fn idle_lane__should_wait_for_everything_else() {
        let pool = CpuPool::new(1).unwrap();
        let (done, order) = mpsc::channel();
        let gate = Arc::new(Barrier::new(2));
        let held = Arc::clone(&gate);
        pool.spawn(Priority::Signing, move || {
            held.wait();
        });
        for (priority, name) in [
            (Priority::Idle, "idle"),
            (Priority::Keygen, "keygen"),
            (Priority::Idle, "idle"),
            (Priority::Signing, "signing"),
        ] {
            let done = done.clone();
            pool.spawn(priority, move || done.send(name).unwrap());
        }
        gate.wait();
        let names: Vec<_> = order.iter().take(4).collect();
        assert_eq!(names, ["signing", "keygen", "idle", "idle"]);
    }

    #[test]
    fn keygen_lane__should_have_its_turn_however_much_is_to_be_signed() {
        let mut queues = JobQueues::default();
        let (done, order) = mpsc::channel();
        for (priority, name, count) in [
            (Priority::Signing, "signing", 3 * MAX_SIGNING_IN_A_ROW),
            (Priority::Keygen, "keygen", 2),
        ] {
            for _ in 0..count {
                let done = done.clone();
                queues.push(priority, Box::new(move || done.send(name).unwrap()));
            }
        }
        while let Some(NextJob::Signing(job, _) | NextJob::Keygen(job)) = queues.next() {
            job();
        }
        let names: Vec<_> = order.try_iter().collect();
        let turns: Vec<_> = (0..names.len())
            .filter(|at| names[*at] == "keygen")
            .collect();
        assert_eq!(turns, [MAX_SIGNING_IN_A_ROW, 2 * MAX_SIGNING_IN_A_ROW + 1]);
        assert_eq!(names.len(), 3 * MAX_SIGNING_IN_A_ROW + 2);
    }

    #[test]
    fn idle_lane__should_have_its_turn_however_much_is_to_be_signed() {
        let mut queues = JobQueues::default();
        for _ in 0..3 * MAX_LIVE_IN_A_ROW {
            queues.push(Priority::Signing, Box::new(|| {}));
        }
        for _ in 0..2 {
            queues.push(Priority::Idle, Box::new(|| {}));
        }
        let mut turns = Vec::new();
        let mut at = 0;
        while let Some(job) = queues.next() {
            if matches!(job, NextJob::Idle(_)) {
                turns.push(at);
                // Until it is done there is no other one.
                let next = queues
                    .next()
                    .is_none_or(|next| !matches!(next, NextJob::Idle(_)));
                assert!(next);
                queues.idling = false;
                at += 1;
            }
            at += 1;
        }
        assert_eq!(turns, [MAX_LIVE_IN_A_ROW, 2 * MAX_LIVE_IN_A_ROW + 1]);
    }

    #[test]
    fn idle_lane__should_never_take_a_second_thread() {
        let pool = CpuPool::new(4).unwrap();
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (done, over) = mpsc::channel();
        for _ in 0..200 {
            let (running, most, done) = (Arc::clone(&running), Arc::clone(&most), done.clone());
            pool.spawn(Priority::Idle, move || {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::yield_now();
                running.fetch_sub(1, Ordering::SeqCst);
                done.send(()).unwrap();
            });
        }
        assert_eq!(over.iter().take(200).count(), 200);
        assert_eq!(most.load(Ordering::SeqCst), 1);
    }
}
