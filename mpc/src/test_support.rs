//! Ports for tests.

use covault_core::port::Entropy;

/// The operating system's randomness.
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        use rand_core_06::RngCore as _;
        rand_core_06::OsRng.fill_bytes(bytes);
    }
}
