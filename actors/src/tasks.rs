//! Tasks beside actors: those that end with their owner, and those that end with the orchestrator.

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

/// A task that ends with its owner.
pub struct AbortOnDrop(pub tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
