//! Ports for tests, and what takes too long to make for each of them.

use covault_core::port::Entropy;
use zeroize::Zeroizing;

/// The operating system's randomness.
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        use rand_core_06::RngCore as _;
        rand_core_06::OsRng.fill_bytes(bytes);
    }
}

/// A set of safe primes for cggmp24 that everybody knows: for tests, never for a key that matters.
pub fn primes(party: u8) -> Zeroizing<Vec<u8>> {
    let set: &[u8] = match party {
        1 => include_bytes!("../tests/fixtures/cggmp24-primes-for-tests-only-1.json"),
        2 => include_bytes!("../tests/fixtures/cggmp24-primes-for-tests-only-2.json"),
        3 => include_bytes!("../tests/fixtures/cggmp24-primes-for-tests-only-3.json"),
        _ => panic!("there are primes for three parties"),
    };
    Zeroizing::new([&[1], set.trim_ascii()].concat())
}
