//! Ports for tests.

use covault_core::port::{Clock, Entropy};

/// The operating system's randomness.
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        use rand_core_06::RngCore as _;
        rand_core_06::OsRng.fill_bytes(bytes);
    }
}

/// The operating system's clock.
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the adapter of the tests")]
    fn now_ms(&self) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        u64::try_from(since.unwrap().as_millis()).unwrap()
    }
}
