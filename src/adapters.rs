//! The machine's clock, and its randomness.

use std::time::{SystemTime, UNIX_EPOCH};

use covault_core::port::{Clock, Entropy};
use rand::{TryRng as _, rngs::SysRng};

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one adapter that reads the clock"
    )]
    fn now_ms(&self) -> u64 {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// The operating system's generator, asked each time: a generator in memory would be the same in
/// every copy of a machine that is resumed, where the system's own is seeded again.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsEntropy;

impl Entropy for OsEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        if let Err(error) = SysRng.try_fill_bytes(bytes) {
            tracing::error!(%error, "the operating system provides no randomness; exiting");
            // Nothing that is drawn may be anything else.
            std::process::abort();
        }
    }
}
