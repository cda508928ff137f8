//! The entropy port as the random number generator that libraries take.

use covault_core::port::Entropy;
use rand_core_06::{CryptoRng, Error, RngCore};

/// Draws from an [`Entropy`].
pub(crate) struct EntropyRng<'a>(pub &'a dyn Entropy);

impl RngCore for EntropyRng<'_> {
    fn next_u32(&mut self) -> u32 {
        let mut bytes = [0; 4];
        self.0.fill(&mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn next_u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        self.0.fill(bytes);
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        self.0.fill(bytes);
        Ok(())
    }
}

// The port promises randomness fit for keys.
impl CryptoRng for EntropyRng<'_> {}
