//! Tasks that nobody waits for, and that end with the orchestrator.

use parking_lot::Mutex;
use tokio::task::JoinSet;

/// Those that run; `None` once the orchestrator stops.
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
