//! Envelopes: every message between nodes, signed by its sender.
//!
//! The Ed25519 signature covers the version, the kind, the epoch, the session and attempt, the
//! round, the sequence, both ends and the body, so that nothing can be replayed into another place. Private
//! bodies are sealed for their recipient with `crypto_box` (X25519, XChaCha20-Poly1305).
//!
//! On the wire: header (98 bytes, integers big-endian), signature (64 bytes), body.

mod header;

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use covault_core::{
    fault::{Fault, FaultCode},
    order::NodeId,
    port::Entropy,
};
use crypto_box::{
    ChaChaBox,
    aead::{Aead as _, AeadInPlace as _, generic_array::GenericArray},
};
use ed25519_dalek::{Signature, Verifier as _, VerifyingKey};
use parking_lot::RwLock;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::{
    bus::{Bus, BusAddress, BusError},
    identity::NodeIdentity,
};

pub(crate) use header::read_header;
pub use header::{EnvelopeHeader, EnvelopeKind, SignedHeader, VERSION};
use header::{HEADER_LEN, fingerprint, fingerprint_of, signed_bytes};

/// What `to` says in an announcement.
pub const EVERYONE: NodeId = NodeId([0; 32]);

const SIGNATURE_LEN: usize = 64;
const NONCE_LEN: usize = 24;
const TAG_LEN: usize = 16;
/// Peers whose keys are kept ready.
const CACHED_PEERS: usize = 1024;

/// Why an envelope was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// Not an envelope of a version we know.
    #[error("malformed envelope")]
    Malformed,
    /// Meant for another node.
    #[error("the envelope is for another node")]
    Misdirected,
    /// The signature is not the sender's.
    #[error("the envelope's signature is wrong")]
    BadSignature,
    /// The body is in the clear, and must not be.
    #[error("the envelope's body is not sealed")]
    Unsealed,
    /// The body does not open.
    #[error("the envelope's body does not open")]
    Unopenable,
}

/// An envelope as it came from the bus: nothing in it can be believed before [`EnvelopeCodec::open`].
pub struct Envelope {
    /// The header, unverified.
    pub header: EnvelopeHeader,
    wire: Vec<u8>,
}

impl Envelope {
    /// Splits a message of the bus.
    ///
    /// # Errors
    /// [`EnvelopeError::Malformed`].
    pub fn parse(wire: Vec<u8>) -> Result<Self, EnvelopeError> {
        let header = wire
            .get(..HEADER_LEN)
            .filter(|_| wire.len() >= HEADER_LEN + SIGNATURE_LEN)
            .and_then(EnvelopeHeader::decode)
            .ok_or(EnvelopeError::Malformed)?;
        Ok(Self { header, wire })
    }

    /// How many bytes it takes.
    pub fn size(&self) -> usize {
        self.wire.len()
    }

    /// As it came.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.wire
    }

    fn body(&self) -> &[u8] {
        self.wire
            .get(HEADER_LEN + SIGNATURE_LEN..)
            .unwrap_or_default()
    }

    fn signature(&self) -> Option<Signature> {
        self.wire
            .get(HEADER_LEN..HEADER_LEN + SIGNATURE_LEN)
            .and_then(|bytes| Signature::from_slice(bytes).ok())
    }
}

/// A body whose sender and place are certain.
pub struct OpenedEnvelope {
    /// The body in the clear.
    pub body: Zeroizing<Vec<u8>>,
    /// SHA-256 over header and body as sent: two different ones for one slot are equivocation.
    pub fingerprint: [u8; 32],
    /// The envelope without its body.
    pub signed: SignedHeader,
}

crate::secrets::secret!(OpenedEnvelope { body });

struct PeerKeys {
    key: VerifyingKey,
    sealing: OnceLock<ChaChaBox>,
}

/// Sends and opens envelopes in the name of one identity.
pub struct EnvelopeCodec {
    identity: Arc<NodeIdentity>,
    id: NodeId,
    bus: Arc<dyn Bus>,
    entropy: Arc<dyn Entropy>,
    peers: RwLock<HashMap<NodeId, Arc<PeerKeys>>>,
}

crate::secrets::secret!(EnvelopeCodec);

impl EnvelopeCodec {
    /// A post for `identity` on `bus`.
    pub fn new(identity: Arc<NodeIdentity>, bus: Arc<dyn Bus>, entropy: Arc<dyn Entropy>) -> Self {
        let id = identity.id();
        Self {
            identity,
            id,
            bus,
            entropy,
            peers: RwLock::default(),
        }
    }

    /// Who we are.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// The identity.
    pub fn identity(&self) -> &NodeIdentity {
        &self.identity
    }

    /// Signs and sends; seals the body first if the header demands it, and always for orders and
    /// replies. `from` is always us.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when the bus does not take it, and
    /// [`covault_core::fault::Class::Invalid`] when the recipient is not a valid identity.
    pub fn send(&self, header: EnvelopeHeader, body: &[u8]) -> Result<(), Fault> {
        self.send_parts(header, &[body])
    }

    /// The same of a body in parts.
    pub(crate) fn send_parts(&self, header: EnvelopeHeader, parts: &[&[u8]]) -> Result<(), Fault> {
        let header = EnvelopeHeader {
            from: self.id,
            sealed: header.sealed || header.kind.always_sealed(),
            ..header
        };
        let address = match header.kind {
            EnvelopeKind::Announcement => BusAddress::Announcements,
            _ => BusAddress::Inbox(header.to),
        };
        let wire = self.write(&header, parts)?;
        self.bus.publish(address, wire).map_err(|cause| {
            let fault = Fault::unavailable("the message bus is not available");
            let fault = match cause {
                BusError::Full(_) => fault.with_code(FaultCode::Busy { seconds: 1 }),
                BusError::Refused(_) | BusError::Unreachable(_) => fault,
            };
            fault.caused_by(cause)
        })
    }

    fn write(&self, header: &EnvelopeHeader, parts: &[&[u8]]) -> Result<Vec<u8>, Fault> {
        let encoded = header.encode();
        let body = if header.sealed {
            self.seal(&header.to, parts)?
        } else {
            parts.concat()
        };
        let signature = self
            .identity
            .sign(&signed_bytes(&fingerprint(&encoded, &body)));
        Ok([&encoded[..], &signature, &body].concat())
    }

    /// Nonce and ciphertext. Sealed where it stands, since wiping another copy of a large message costs
    /// more than sealing it.
    fn seal(&self, to: &NodeId, parts: &[&[u8]]) -> Result<Vec<u8>, Fault> {
        let mut nonce = [0; NONCE_LEN];
        self.entropy.fill(&mut nonce);
        let peer = self.peer(to)?;
        let length: usize = parts.iter().map(|part| part.len()).sum();
        // Of its final size: a buffer that grows leaves copies of secrets behind.
        let size = NONCE_LEN.saturating_add(TAG_LEN).saturating_add(length);
        let mut sealed = Zeroizing::new(Vec::with_capacity(size));
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(&[0; TAG_LEN]);
        for part in parts {
            sealed.extend_from_slice(part);
        }
        let failed = || Fault::bug("sealing failed");
        let (preprocess, secret) = sealed
            .split_at_mut_checked(NONCE_LEN.saturating_add(TAG_LEN))
            .ok_or_else(failed)?;
        let tag = self
            .sealing(&peer)
            .encrypt_in_place_detached(GenericArray::from_slice(&nonce), &[], secret)
            .map_err(|_| failed())?;
        preprocess
            .get_mut(NONCE_LEN..)
            .ok_or_else(failed)?
            .copy_from_slice(&tag);
        Ok(std::mem::take(&mut *sealed))
    }

    /// Verifies destination and signature, and unseals.
    ///
    /// # Errors
    /// [`EnvelopeError`]; the envelope must then be ignored, since its sender is unknown.
    pub fn open(&self, envelope: &Envelope) -> Result<OpenedEnvelope, EnvelopeError> {
        let header = &envelope.header;
        let to_everyone = header.kind == EnvelopeKind::Announcement && header.to == EVERYONE;
        if header.to != self.id && !to_everyone {
            return Err(EnvelopeError::Misdirected);
        }
        if header.kind.always_sealed() && !header.sealed {
            return Err(EnvelopeError::Unsealed);
        }
        let peer = self
            .peer(&header.from)
            .map_err(|_| EnvelopeError::BadSignature)?;
        let hash: [u8; 32] = Sha256::digest(envelope.body()).into();
        let fingerprint = fingerprint_of(&header.encode(), &hash);
        let signature = envelope.signature().ok_or(EnvelopeError::Malformed)?;
        peer.key
            .verify(&signed_bytes(&fingerprint), &signature)
            .map_err(|_| EnvelopeError::BadSignature)?;
        let body = if header.sealed {
            let (nonce, secret) = envelope
                .body()
                .split_first_chunk::<NONCE_LEN>()
                .ok_or(EnvelopeError::Unopenable)?;
            self.sealing(&peer)
                .decrypt(GenericArray::from_slice(nonce), secret)
                .map_err(|_| EnvelopeError::Unopenable)?
        } else {
            envelope.body().to_vec()
        };
        Ok(OpenedEnvelope {
            body: Zeroizing::new(body),
            fingerprint,
            signed: SignedHeader {
                header: *header,
                body: hash,
                signature: signature.to_bytes(),
            },
        })
    }

    fn peer(&self, id: &NodeId) -> Result<Arc<PeerKeys>, Fault> {
        if let Some(peer) = self.peers.read().get(id) {
            return Ok(Arc::clone(peer));
        }
        let peer = Arc::new(PeerKeys {
            key: id.verifying_key()?,
            sealing: OnceLock::new(),
        });
        let mut peers = self.peers.write();
        if peers.len() >= CACHED_PEERS {
            // Strangers filled it; the keys of our peers are soon back.
            peers.clear();
        }
        peers.insert(*id, Arc::clone(&peer));
        Ok(peer)
    }

    fn sealing<'a>(&self, peer: &'a PeerKeys) -> &'a ChaChaBox {
        peer.sealing
            .get_or_init(|| self.identity.sealing_box(&peer.key))
    }
}

#[cfg(test)]
mod wire_tests;

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::ids::SessionId;

    use super::*;
    use crate::{bus::memory::MemoryBus, test_support::SystemEntropy};

    fn codec() -> EnvelopeCodec {
        let identity = Arc::new(NodeIdentity::generate(&SystemEntropy));
        EnvelopeCodec::new(identity, MemoryBus::new(), Arc::new(SystemEntropy))
    }

    fn header(from: &EnvelopeCodec, to: &EnvelopeCodec, sealed: bool) -> EnvelopeHeader {
        EnvelopeHeader {
            kind: EnvelopeKind::Protocol,
            sealed,
            epoch: 0x0b0c_0d0e,
            session: SessionId::from_bytes([3; 16]),
            attempt: 0x0102_0304,
            round: 0x0506,
            sequence: 0x0708_090a,
            from: from.id(),
            to: to.id(),
        }
    }

    #[test]
    fn envelope__should_open_for_its_recipient_only() {
        let (alice, bob, eve) = (codec(), codec(), codec());
        for sealed in [false, true] {
            let header = header(&alice, &bob, sealed);
            let wire = alice.write(&header, &[b"secret words"]).unwrap();
            assert_eq!(
                wire.windows(12).any(|window| window == b"secret words"),
                !sealed
            );
            let envelope = Envelope::parse(wire).unwrap();
            assert_eq!(envelope.header, header);
            assert_eq!(
                bob.open(&envelope).unwrap().body.as_slice(),
                b"secret words"
            );
            assert_eq!(eve.open(&envelope).err(), Some(EnvelopeError::Misdirected));
        }
    }

    #[test]
    fn envelope__should_be_refused_when_any_byte_changes() {
        let (alice, bob) = (codec(), codec());
        for sealed in [false, true] {
            let wire = alice
                .write(&header(&alice, &bob, sealed), &[b"body"])
                .unwrap();
            for at in 0..wire.len() {
                let mut changed = wire.clone();
                changed[at] ^= 1;
                let refused = Envelope::parse(changed).and_then(|envelope| bob.open(&envelope));
                assert!(refused.is_err(), "byte {at}");
            }
            for length in 0..wire.len() {
                let cut = Envelope::parse(wire[..length].to_vec());
                assert!(
                    cut.and_then(|envelope| bob.open(&envelope)).is_err(),
                    "length {length}"
                );
            }
        }
    }

    #[test]
    fn envelope__should_never_hold_an_order_or_a_reply_in_the_clear() {
        let (alice, bob) = (codec(), codec());
        for kind in [
            EnvelopeKind::SigningOrder,
            EnvelopeKind::KeygenOrder,
            EnvelopeKind::Reply,
        ] {
            let header = EnvelopeHeader {
                kind,
                ..header(&alice, &bob, false)
            };
            let clear = Envelope::parse(alice.write(&header, &[b"body"]).unwrap()).unwrap();
            assert_eq!(bob.open(&clear).err(), Some(EnvelopeError::Unsealed));
        }
    }

    #[test]
    fn envelope__should_not_be_sealed_anew_by_another_sender() {
        let (alice, bob, eve) = (codec(), codec(), codec());
        let claimed = header(&alice, &bob, false);
        // Eve signs in the name of Alice.
        let envelope = Envelope::parse(eve.write(&claimed, &[b"body"]).unwrap()).unwrap();
        assert_eq!(bob.open(&envelope).err(), Some(EnvelopeError::BadSignature));
    }
}
