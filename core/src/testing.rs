//! Ports for tests: clocks and entropy of which the test says what they give. Only with the feature
//! `testing`, which no program has.

use std::sync::atomic::{AtomicU64, Ordering};

use rand::{TryRng as _, rngs::SysRng};
use sha2::{Digest as _, Sha256};

use crate::port::{Clock, Entropy};

/// A clock that only the test moves; it begins at 0.
#[derive(Debug, Default)]
pub struct ManualClock(pub AtomicU64);

impl ManualClock {
    /// A clock that begins at this time, in milliseconds since the Unix epoch.
    pub fn at(now_ms: u64) -> Self {
        Self(AtomicU64::new(now_ms))
    }

    /// Time passes.
    pub fn advance(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// The machine's time, and what the test adds to it.
#[derive(Debug, Default)]
pub struct ShiftedClock {
    /// In milliseconds.
    pub ahead_ms: AtomicU64,
}

impl Clock for ShiftedClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "deadlines of these tests are real ones"
    )]
    fn now_ms(&self) -> u64 {
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        now_ms.saturating_add(self.ahead_ms.load(Ordering::SeqCst))
    }
}

/// One byte, again and again.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConstantEntropy(pub u8);

impl Entropy for ConstantEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(self.0);
    }
}

/// SHA-256 over a counter: no two ids are equal.
#[derive(Debug, Default)]
pub struct CounterEntropy(AtomicU64);

impl Entropy for CounterEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(32) {
            let block = Sha256::digest(self.0.fetch_add(1, Ordering::SeqCst).to_be_bytes());
            for (byte, drawn) in chunk.iter_mut().zip(block) {
                *byte = drawn;
            }
        }
    }
}

/// The operating system's randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    #[expect(
        clippy::expect_used,
        reason = "a test without randomness tests nothing"
    )]
    fn fill(&self, bytes: &mut [u8]) {
        SysRng.try_fill_bytes(bytes).expect("randomness");
    }
}
