//! How much this process takes on at once.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::settings::Settings;

/// Pages far behind the first that are looked for at once; others wait.
const MAX_FAR_PAGES: usize = 2;
/// Simulations that run at once; beyond it requests go without.
const SIMULATIONS: usize = 64;

/// A permit for each thing that may be taken on.
pub struct Limits {
    /// Live requests.
    pub live: Arc<Semaphore>,
    /// Bytes of live requests.
    pub live_bytes: Arc<Semaphore>,
    /// Commands in progress, also when their callers have stopped waiting.
    pub commands: Arc<Semaphore>,
    /// Pages far behind the first.
    pub far_pages: Semaphore,
    /// Simulations of transactions.
    pub simulations: Arc<Semaphore>,
}

impl Limits {
    /// Those of the settings, with nothing taken on.
    pub fn new(settings: &Settings) -> Self {
        let semaphore = |most| Arc::new(Semaphore::new(permits(most)));
        Self {
            live: semaphore(settings.max_live_requests),
            live_bytes: semaphore(settings.max_live_bytes),
            commands: semaphore(settings.max_commands),
            far_pages: Semaphore::new(MAX_FAR_PAGES),
            simulations: semaphore(SIMULATIONS),
        }
    }
}

/// As many permits as a semaphore can hold, and hand out at once.
pub fn permits(most: usize) -> usize {
    let at_once = usize::try_from(u32::MAX).unwrap_or(usize::MAX);
    most.min(Semaphore::MAX_PERMITS).min(at_once)
}
