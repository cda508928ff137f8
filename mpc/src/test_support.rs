//! Ports for tests, and what takes too long to make for each of them.

pub use covault_core::testing::SystemEntropy;
use zeroize::Zeroizing;

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
