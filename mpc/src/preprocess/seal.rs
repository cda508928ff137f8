//! Sealing of nonces at rest: XChaCha20-Poly1305, the row's place as associated data.

use chacha20poly1305::{
    Key, KeyInit as _, XChaCha20Poly1305, XNonce,
    aead::{Aead as _, Payload},
};
use covault_core::port::Entropy;
use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::shares::ShareEpoch;

/// Version of a sealed secret; its first byte.
const VERSION: u8 = 1;
/// Bytes of XChaCha20's own nonce, which stand behind the version.
const NONCE: usize = 24;

/// Seals and opens. Never printed; the cipher clears its key on drop.
pub(crate) struct NonceSealer(XChaCha20Poly1305);

crate::secrets::secret!(NonceSealer { 0 });

impl NonceSealer {
    /// With a key that is made from `secret` (HKDF-SHA256, RFC 5869) and good for nothing else.
    /// `None` never happens: the length fits.
    pub fn new(secret: &[u8]) -> Option<Self> {
        let mut key = Zeroizing::new([0; 32]);
        Hkdf::<Sha256>::new(None, secret)
            .expand(b"covault/nonces/1", key.as_mut_slice())
            .ok()?;
        Some(Self(XChaCha20Poly1305::new(Key::from_slice(
            key.as_slice(),
        ))))
    }

    /// Version, random 24 bytes, ciphertext with its tag.
    pub fn seal(
        &self,
        of: &ShareEpoch,
        id: u64,
        commitments: &[u8],
        secret: &[u8],
        entropy: &dyn Entropy,
    ) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE];
        entropy.fill(&mut nonce);
        let aad = place(of, id, commitments);
        let payload = Payload {
            msg: secret,
            aad: &aad,
        };
        let sealed = self.0.encrypt(XNonce::from_slice(&nonce), payload).ok()?;
        Some([&[VERSION][..], &nonce, &sealed].concat())
    }

    /// `None` when it is damaged, of another place, or sealed with another key.
    pub fn open(
        &self,
        of: &ShareEpoch,
        id: u64,
        commitments: &[u8],
        sealed: &[u8],
    ) -> Option<Zeroizing<Vec<u8>>> {
        let rest = match sealed.split_first() {
            Some((&VERSION, rest)) => rest,
            _ => return None,
        };
        let (nonce, sealed) = rest.split_first_chunk::<NONCE>()?;
        let aad = place(of, id, commitments);
        let payload = Payload {
            msg: sealed,
            aad: &aad,
        };
        let secret = self.0.decrypt(XNonce::from_slice(nonce), payload).ok()?;
        Some(Zeroizing::new(secret))
    }
}

/// Binds a secret to its row: epoch and number, both of fixed length, then root key and
/// commitments with their lengths.
fn place(of: &ShareEpoch, id: u64, commitments: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(of.epoch.to_be_bytes());
    bytes.extend(id.to_be_bytes());
    for field in [&of.root, commitments] {
        bytes.extend(u64::try_from(field.len()).unwrap_or(u64::MAX).to_be_bytes());
        bytes.extend(field);
    }
    bytes
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;
    use crate::test_support::SystemEntropy;

    fn of(epoch: u32) -> ShareEpoch {
        ShareEpoch {
            root: vec![7; 32],
            epoch,
        }
    }

    #[test]
    fn sealed__should_open_in_its_own_place_only() {
        let sealer = NonceSealer::new(b"keyring").unwrap();
        let sealed = sealer
            .seal(&of(3), 9, b"commitments", b"secret", &SystemEntropy)
            .unwrap();
        let open =
            |sealer: &NonceSealer, of: &ShareEpoch, id, commitments: &[u8], sealed: &[u8]| {
                sealer
                    .open(of, id, commitments, sealed)
                    .map(|secret| secret.to_vec())
            };
        let right = open(&sealer, &of(3), 9, b"commitments", &sealed);
        assert_eq!(right.as_deref(), Some(&b"secret"[..]));
        assert_eq!(open(&sealer, &of(4), 9, b"commitments", &sealed), None);
        assert_eq!(open(&sealer, &of(3), 8, b"commitments", &sealed), None);
        assert_eq!(open(&sealer, &of(3), 9, b"commitment", &sealed), None);
        let other = NonceSealer::new(b"another keyring").unwrap();
        assert_eq!(open(&other, &of(3), 9, b"commitments", &sealed), None);
        for at in 0..sealed.len() {
            let mut harmed = sealed.clone();
            harmed[at] ^= 1;
            assert_eq!(open(&sealer, &of(3), 9, b"commitments", &harmed), None);
            assert_eq!(
                open(&sealer, &of(3), 9, b"commitments", &sealed[..at]),
                None
            );
        }
    }

    /// Sealed by the first release; it opens for ever.
    #[test]
    fn sealed__should_open_as_it_was_written_by_version_1() {
        let sealed = hex::decode(include_str!("../../../tests/wire/nonce-v1-sealed.hex").trim());
        let opened =
            NonceSealer::new(b"keyring")
                .unwrap()
                .open(&of(3), 9, b"commitments", &sealed.unwrap());
        assert_eq!(opened.unwrap().as_slice(), b"secret");
    }
}
