//! The adapters of `covault_core::port`: the machine's clock and its randomness.

use std::time::{SystemTime, UNIX_EPOCH};

use covault_core::port::{Clock, Entropy};
use rand::Rng as _;

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

/// A cryptographically secure generator, seeded and reseeded by the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsEntropy;

impl Entropy for OsEntropy {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one adapter that draws randomness"
    )]
    fn fill(&self, bytes: &mut [u8]) {
        rand::rng().fill_bytes(bytes);
    }
}
