//! Envelopes: every message between nodes, of a sender who is certain.
//!
//! Either the sender's Ed25519 signature or the recipient's pair key covers the version, the kind, the epoch, the
//! session and attempt, the round, the sequence, both ends and the body, so that nothing can be replayed into another
//! place. Private bodies are sealed for their recipient: with the pair key (XChaCha20-Poly1305, the header as associated
//! data, see `pair_keys`), or, under a signature, with `crypto_box` (X25519, XChaCha20-Poly1305).
//!
//! On the wire, integers big-endian: header (98 bytes), then signature (64) and body, or key id (8), nonce (24), tag (16)
//! and ciphertext.

mod header;
mod pair_keys;

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use covault_core::{
    fault::{Fault, FaultCode},
    order::NodeId,
    port::{Clock, Entropy},
};
use crypto_box::{
    ChaChaBox,
    aead::{AeadInPlace as _, generic_array::GenericArray},
};
use ed25519_dalek::{Signature, Verifier as _, VerifyingKey};
use parking_lot::RwLock;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::{
    bus::{Bus, BusAddress, BusError},
    identity::NodeIdentity,
    message::{KeyExchangeMsg, decode, encode},
};

pub(crate) use header::read_header;
pub use header::{EnvelopeHeader, EnvelopeKind, SignedHeader, VERSION};
use header::{HEADER_LEN, Protection, fingerprint, fingerprint_of, signed_bytes};
use pair_keys::{KEY_ID_LEN, PairKey, PairKeys};

/// What `to` says in an announcement.
pub const EVERYONE: NodeId = NodeId([0; 32]);

const SIGNATURE_LEN: usize = 64;
const NONCE_LEN: usize = 24;
const TAG_LEN: usize = 16;
/// Where a body starts, by what protects it.
const SIGNED_LEN: usize = HEADER_LEN + SIGNATURE_LEN;
const SEALED_LEN: usize = SIGNED_LEN + NONCE_LEN + TAG_LEN;
const PAIR_LEN: usize = HEADER_LEN + KEY_ID_LEN + NONCE_LEN + TAG_LEN;
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
    /// A pair key protects it that we do not have: one of us was started anew, or it is old.
    #[error("the envelope was sealed with a pair key that is not known here")]
    UnknownPairKey,
    /// A pair key protects what must be signed.
    #[error("the envelope must be signed")]
    Unsigned,
}

/// An envelope as it came from the bus: nothing in it can be believed before [`EnvelopeCodec::open`].
#[derive(Clone)]
pub struct Envelope {
    /// The header, unverified.
    pub header: EnvelopeHeader,
    protection: Protection,
    wire: Vec<u8>,
}

impl Envelope {
    /// Splits a message of the bus.
    ///
    /// # Errors
    /// [`EnvelopeError::Malformed`].
    pub fn parse(wire: Vec<u8>) -> Result<Self, EnvelopeError> {
        let (header, protection) = wire
            .get(..HEADER_LEN)
            .and_then(EnvelopeHeader::decode)
            .ok_or(EnvelopeError::Malformed)?;
        let least = match protection {
            Protection::Signed => SIGNED_LEN,
            Protection::SignedAndSealed => SEALED_LEN,
            Protection::PairKey => PAIR_LEN,
        };
        if wire.len() < least {
            return Err(EnvelopeError::Malformed);
        }
        Ok(Self {
            header,
            protection,
            wire,
        })
    }

    /// How many bytes it takes.
    pub fn size(&self) -> usize {
        self.wire.len()
    }

    /// Whether a pair key protects it, as it says.
    pub(crate) fn is_paired(&self) -> bool {
        self.protection == Protection::PairKey
    }

    /// As it came.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.wire
    }

    /// Its header, written anew.
    #[cfg(feature = "simulation")]
    pub(crate) fn encoded_header(&self) -> [u8; HEADER_LEN] {
        self.header.encode(self.protection)
    }
}

/// A body whose sender and place are certain.
pub struct OpenedEnvelope {
    /// The body in the clear.
    pub body: Zeroizing<Vec<u8>>,
    /// Of header and body as sent: two different ones for one slot are equivocation. SHA-256 where they are signed; else
    /// tag and nonce. Only the sender can make two bodies that share those, and it gains nothing: the second is ignored as
    /// a repetition, as if it had never been sent.
    pub fingerprint: [u8; 32],
    /// The envelope without its body, where it shows others who sent it.
    pub signed: Option<SignedHeader>,
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
    /// `None`: it signs everything.
    pair_keys: Option<PairKeys>,
}

crate::secrets::secret!(EnvelopeCodec);

impl EnvelopeCodec {
    /// Signs all that it sends in the name of `identity` on `bus`.
    pub fn new(identity: Arc<NodeIdentity>, bus: Arc<dyn Bus>, entropy: Arc<dyn Entropy>) -> Self {
        let id = identity.id();
        Self {
            identity,
            id,
            bus,
            entropy,
            peers: RwLock::default(),
            pair_keys: None,
        }
    }

    /// The same, which agrees on pair keys with its peers and signs only where it must.
    pub(crate) fn with_pair_keys(self, clock: Arc<dyn Clock>) -> Self {
        let (identity, entropy) = (Arc::clone(&self.identity), Arc::clone(&self.entropy));
        Self {
            pair_keys: Some(PairKeys::new(identity, clock, entropy)),
            ..self
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

    /// Sends, under a pair key or signed. A signed body is sealed if the header demands it, and always in orders and
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
        let pair_keys = self
            .pair_keys
            .as_ref()
            .filter(|_| header.kind != EnvelopeKind::Announcement);
        let key = pair_keys.and_then(|keys| {
            let key = keys.outgoing(&header.to, header.attempt);
            if key.is_none() {
                // Ahead of the message: whatever the recipient had of us is replaced before it answers.
                self.greet(&header.to);
            }
            key.filter(|_| header.kind.may_use_pair_key())
        });
        match key {
            Some(key) => {
                let header = EnvelopeHeader {
                    from: self.id,
                    ..header
                };
                let wire = self.write_with(&header, parts, &key)?;
                self.publish(BusAddress::Inbox(header.to), wire)
            }
            None => self.send_signed(header, parts),
        }
    }

    /// Sends it signed: its sender must be certain to others than the recipient, too.
    pub(crate) fn send_signed(&self, header: EnvelopeHeader, parts: &[&[u8]]) -> Result<(), Fault> {
        let header = EnvelopeHeader {
            from: self.id,
            sealed: header.sealed || header.kind.always_sealed(),
            ..header
        };
        let address = match header.kind {
            EnvelopeKind::Announcement => BusAddress::Announcements,
            _ => BusAddress::Inbox(header.to),
        };
        self.publish(address, self.write(&header, parts)?)
    }

    fn publish(&self, address: BusAddress, wire: Vec<u8>) -> Result<(), Fault> {
        self.bus.publish(address, wire).map_err(|cause| {
            let fault = Fault::unavailable("the message bus is not available");
            let fault = match cause {
                BusError::Full(_) => fault.with_code(FaultCode::Busy { seconds: 1 }),
                BusError::Refused(_) | BusError::Unreachable(_) => fault,
            };
            fault.caused_by(cause)
        })
    }

    /// Offers a peer our half of a pair key, unless it was offered a moment ago.
    pub(crate) fn greet(&self, peer: &NodeId) {
        let keys = self.pair_keys.as_ref();
        if let Some(offer) = keys.and_then(|keys| keys.offer(peer)) {
            self.send_half(*peer, &offer);
        }
    }

    /// The same of those with whom there is no key.
    pub(crate) fn greet_new(&self, peers: &[NodeId]) {
        if let Some(keys) = &self.pair_keys {
            let new = peers.iter().filter(|peer| keys.outgoing(peer, 0).is_none());
            new.for_each(|peer| self.greet(peer));
        }
    }

    /// Whether we have, or have asked for, a pair key with this one.
    pub(crate) fn has_greeted(&self, peer: &NodeId) -> bool {
        self.pair_keys.as_ref().is_some_and(|keys| keys.knows(peer))
    }

    /// Notes which start of a peer an opened announcement of it is of.
    pub(crate) fn announced(&self, peer: &NodeId, start: [u8; 16]) {
        if let Some(keys) = &self.pair_keys {
            keys.announced(peer, start);
        }
    }

    /// Takes a peer's half, from an opened envelope of it.
    pub(crate) fn take_half(&self, from: &NodeId, body: &[u8]) {
        let keys = self.pair_keys.as_ref();
        let said = decode::<KeyExchangeMsg>(body);
        let answer = keys
            .zip(said)
            .and_then(|(keys, said)| keys.take(from, &said));
        if let Some(answer) = answer {
            self.send_half(*from, &answer);
        }
    }

    /// Forgets pair keys that are too old, and renews the others; to be called every few seconds.
    pub(crate) fn renew_pair_keys(&self) {
        let due = self.pair_keys.as_ref().map(PairKeys::renew);
        for (peer, offer) in due.unwrap_or_default() {
            self.send_half(peer, &offer);
        }
    }

    fn send_half(&self, to: NodeId, half: &KeyExchangeMsg) {
        let header = EnvelopeHeader::outside_sessions(EnvelopeKind::KeyExchange, self.id, to);
        let sent = encode(half).and_then(|body| self.send_signed(header, &[&body]));
        if let Err(fault) = sent {
            // It is offered again, and messages are signed until then.
            tracing::debug!(?fault, "cannot offer a pair key");
        }
    }

    /// A signed envelope.
    fn write(&self, header: &EnvelopeHeader, parts: &[&[u8]]) -> Result<Vec<u8>, Fault> {
        let encoded = header.to_bytes();
        let failed = || Fault::bug("sealing failed");
        let mut wire = if header.sealed {
            let peer = self.peer(&header.to)?;
            let mut wire = start(&encoded, SEALED_LEN, parts);
            let (front, body) = wire.split_at_mut_checked(SEALED_LEN).ok_or_else(failed)?;
            let nonce = self.draw_nonce();
            let tag = self
                .sealing(&peer)
                .encrypt_in_place_detached(GenericArray::from_slice(&nonce), &[], body)
                .map_err(|_| failed())?;
            put(front, SIGNED_LEN, &[&nonce, &tag]).ok_or_else(failed)?;
            wire
        } else {
            start(&encoded, SIGNED_LEN, parts)
        };
        let (front, body) = wire.split_at_mut_checked(SIGNED_LEN).ok_or_else(failed)?;
        let signature = self
            .identity
            .sign(&signed_bytes(&fingerprint(&encoded, body)));
        put(front, HEADER_LEN, &[&signature]).ok_or_else(failed)?;
        Ok(std::mem::take(&mut *wire))
    }

    /// An envelope under a pair key.
    fn write_with(
        &self,
        header: &EnvelopeHeader,
        parts: &[&[u8]],
        key: &PairKey,
    ) -> Result<Vec<u8>, Fault> {
        let encoded = header.encode(Protection::PairKey);
        let failed = || Fault::bug("sealing failed");
        let mut wire = start(&encoded, PAIR_LEN, parts);
        let (front, body) = wire.split_at_mut_checked(PAIR_LEN).ok_or_else(failed)?;
        // Drawn at random, 24 bytes: no two messages of a key share one, on however many threads they are sealed.
        let nonce = self.draw_nonce();
        let tag = key.seal(&encoded, &nonce, body).ok_or_else(failed)?;
        put(front, HEADER_LEN, &[&key.id(), &nonce, &tag]).ok_or_else(failed)?;
        Ok(std::mem::take(&mut *wire))
    }

    fn draw_nonce(&self) -> [u8; NONCE_LEN] {
        let mut nonce = [0; NONCE_LEN];
        self.entropy.fill(&mut nonce);
        nonce
    }

    /// Verifies destination and sender, and unseals.
    ///
    /// # Errors
    /// [`EnvelopeError`]; the envelope must then be ignored, since its sender is unknown.
    pub fn open(&self, envelope: &Envelope) -> Result<OpenedEnvelope, EnvelopeError> {
        self.open_in_place(envelope.clone())
    }

    /// The same, in the memory that the envelope came in.
    ///
    /// # Errors
    /// As [`EnvelopeCodec::open`].
    pub(crate) fn open_in_place(
        &self,
        envelope: Envelope,
    ) -> Result<OpenedEnvelope, EnvelopeError> {
        let header = &envelope.header;
        let to_everyone = header.kind == EnvelopeKind::Announcement && header.to == EVERYONE;
        if header.to != self.id && !to_everyone {
            return Err(EnvelopeError::Misdirected);
        }
        if header.kind.always_sealed() && !header.sealed {
            return Err(EnvelopeError::Unsealed);
        }
        match envelope.protection {
            Protection::PairKey => self.open_paired(envelope),
            Protection::Signed | Protection::SignedAndSealed => self.open_signed(envelope),
        }
    }

    fn open_signed(&self, envelope: Envelope) -> Result<OpenedEnvelope, EnvelopeError> {
        let Envelope {
            header, mut wire, ..
        } = envelope;
        let peer = self
            .peer(&header.from)
            .map_err(|_| EnvelopeError::BadSignature)?;
        let (front, body) = wire
            .split_at_mut_checked(SIGNED_LEN)
            .ok_or(EnvelopeError::Malformed)?;
        let signature = front
            .last_chunk::<SIGNATURE_LEN>()
            .ok_or(EnvelopeError::Malformed)?;
        let hash: [u8; 32] = Sha256::digest(&*body).into();
        let fingerprint = fingerprint_of(&header.to_bytes(), &hash);
        peer.key
            .verify(
                &signed_bytes(&fingerprint),
                &Signature::from_bytes(signature),
            )
            .map_err(|_| EnvelopeError::BadSignature)?;
        let signed = SignedHeader {
            header,
            body: hash,
            signature: *signature,
        };
        let front = match header.sealed {
            false => SIGNED_LEN,
            true => {
                let (nonce, tag, secret) = sealed_parts(body).ok_or(EnvelopeError::Unopenable)?;
                let (nonce, tag) = (GenericArray::from(nonce), GenericArray::from(tag));
                self.sealing(&peer)
                    .decrypt_in_place_detached(&nonce, &[], secret, &tag)
                    .map_err(|_| EnvelopeError::Unopenable)?;
                SEALED_LEN
            }
        };
        Ok(OpenedEnvelope {
            body: body_of(wire, front),
            fingerprint,
            signed: Some(signed),
        })
    }

    fn open_paired(&self, envelope: Envelope) -> Result<OpenedEnvelope, EnvelopeError> {
        let Envelope {
            header, mut wire, ..
        } = envelope;
        if !header.kind.may_use_pair_key() {
            return Err(EnvelopeError::Unsigned);
        }
        let (id, rest) = wire
            .get_mut(HEADER_LEN..)
            .and_then(|rest| rest.split_first_chunk_mut::<KEY_ID_LEN>())
            .ok_or(EnvelopeError::Malformed)?;
        let key = self.incoming(&header.from, id)?;
        let (nonce, tag, secret) = sealed_parts(rest).ok_or(EnvelopeError::Malformed)?;
        let encoded = header.encode(Protection::PairKey);
        key.open(&encoded, &nonce, &tag, secret)
            .ok_or(EnvelopeError::Unopenable)?;
        let mut fingerprint = [0; 32];
        let first = tag.iter().chain(&nonce);
        fingerprint
            .iter_mut()
            .zip(first)
            .for_each(|(to, from)| *to = *from);
        Ok(OpenedEnvelope {
            body: body_of(wire, PAIR_LEN),
            fingerprint,
            signed: None,
        })
    }

    fn incoming(
        &self,
        from: &NodeId,
        id: &[u8; KEY_ID_LEN],
    ) -> Result<Arc<PairKey>, EnvelopeError> {
        let found = match &self.pair_keys {
            Some(keys) => {
                let found = keys.incoming(from, id);
                if found.is_none() {
                    // It signs once it knows that we have no such key.
                    self.greet(from);
                }
                found
            }
            #[cfg(feature = "simulation")]
            None => crate::simulated::pair_key((*from, self.id, *id))
                .map(|key| Arc::new(PairKey::new(*id, &key))),
            #[cfg(not(feature = "simulation"))]
            None => None,
        };
        found.ok_or(EnvelopeError::UnknownPairKey)
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

/// A message with its header and body, and room between them. Of its final size: a buffer that grows leaves copies of
/// secrets behind, and wiping another copy of a large message costs more than sealing it.
fn start(header: &[u8; HEADER_LEN], front: usize, parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut wire = Zeroizing::new(Vec::with_capacity(front.saturating_add(length)));
    wire.extend_from_slice(header);
    wire.resize(front, 0);
    for part in parts {
        wire.extend_from_slice(part);
    }
    wire
}

/// Writes the parts one behind the other.
fn put(bytes: &mut [u8], from: usize, parts: &[&[u8]]) -> Option<()> {
    let mut rest = bytes.get_mut(from..)?;
    for part in parts {
        let (place, after) = rest.split_at_mut_checked(part.len())?;
        place.copy_from_slice(part);
        rest = after;
    }
    Some(())
}

/// Nonce, tag and ciphertext.
fn sealed_parts(bytes: &mut [u8]) -> Option<([u8; NONCE_LEN], [u8; TAG_LEN], &mut [u8])> {
    let (nonce, rest) = bytes.split_first_chunk_mut()?;
    let (tag, secret) = rest.split_first_chunk_mut()?;
    Some((*nonce, *tag, secret))
}

/// The body alone, where the message was.
fn body_of(mut wire: Vec<u8>, front: usize) -> Zeroizing<Vec<u8>> {
    wire.drain(..front.min(wire.len()));
    Zeroizing::new(wire)
}

#[cfg(test)]
mod wire_tests;

#[cfg(test)]
mod pair_key_tests;

#[cfg(test)]
mod tests;
