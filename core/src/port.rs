//! What the domain needs from the world. The adapters are in `src/`; simulations bring their own.

/// A clock.
pub trait Clock: Send + Sync {
    /// Milliseconds since the Unix epoch.
    fn now_ms(&self) -> u64;
}

/// A source of randomness fit for keys and ids.
pub trait Entropy: Send + Sync {
    /// Fills `bytes` with randomness.
    fn fill(&self, bytes: &mut [u8]);
}

/// 16 random bytes, as the id types take them.
pub fn random_16(entropy: &dyn Entropy) -> [u8; 16] {
    let mut bytes = [0; 16];
    entropy.fill(&mut bytes);
    bytes
}
