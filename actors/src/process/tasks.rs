//! Tasks beside actors: those that end with their owner, and those that end with the orchestrator.

use std::panic::AssertUnwindSafe;

use covault_core::fault::Fault;
use futures::FutureExt as _;
use parking_lot::Mutex;
use tokio::task::JoinSet;

/// Tasks that nobody waits for; `None` once the orchestrator stops.
pub struct Tasks(Mutex<Option<JoinSet<()>>>);

impl Default for Tasks {
    fn default() -> Self {
        Self(Mutex::new(Some(JoinSet::new())))
    }
}

impl Tasks {
    /// Runs a task, unless the orchestrator stops.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(running) = self.0.lock().as_mut() {
            while running.try_join_next().is_some() {}
            running.spawn(task);
        }
    }

    /// Ends those that run, and begins no others.
    pub async fn close(&self) {
        let running = self.0.lock().take();
        if let Some(mut running) = running {
            running.shutdown().await;
        }
    }
}

/// What is done for one request where others would fall with it: a panic is a fault of that request.
///
/// # Errors
/// Those of the work; [`covault_core::fault::Class::Bug`] when it panics.
pub async fn contained<T>(work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    // The panic hook has said where. The work leaves nothing half done that others use.
    let done = AssertUnwindSafe(work).catch_unwind().await;
    done.unwrap_or_else(|_| Err(Fault::bug("panicked")))
}

/// A task that ends with its owner.
pub struct AbortOnDrop(pub tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
