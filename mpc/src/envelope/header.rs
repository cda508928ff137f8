//! The place of an envelope in its conversation, and what its sender signs.

use covault_core::{ids::SessionId, order::NodeId};
use ed25519_dalek::Signature;
use sha2::{Digest as _, Sha256};

/// Version of the wire format.
pub const VERSION: u16 = 1;
pub(super) const HEADER_LEN: usize = 98;
const DOMAIN: &[u8] = b"covault/envelope";

/// What an envelope carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EnvelopeKind {
    /// Orchestrator to node: sign.
    SigningOrder = 1,
    /// Orchestrator to node: make a key.
    KeygenOrder = 2,
    /// Node to node: a protocol message.
    Protocol = 3,
    /// Node to orchestrator, or to the node that has shown a proof: how it went.
    Reply = 4,
    /// Node to everyone: I am here.
    Announcement = 5,
    /// Orchestrator to node: make a new generation of shares.
    ReshareOrder = 6,
    /// Orchestrator or node to node: take the new share into use, retire the old one.
    Activate = 7,
    /// Orchestrator to node: give your share, encrypted.
    BackupOrder = 8,
    /// Node to holders and orchestrators: nonces made ahead; back: a question for them.
    Nonces = 9,
    /// Orchestrator to node: state that addresses are the vault's.
    AttestOrder = 10,
    /// Node to node: what do you know of me, and the answer.
    Witness = 11,
    /// Orchestrator to node: a person has rejected requests.
    Rejection = 12,
    /// Node to orchestrator: for the people who approve on the node's own page.
    Question = 13,
    /// Orchestrator to node: the answer to that.
    Answer = 14,
    /// Either to the other: what both make their pair keys of.
    KeyExchange = 15,
}

impl EnvelopeKind {
    /// Whether who reads the bus must not read it: orders show what is going to be signed, and
    /// replies hold signatures, with which anyone could broadcast the transaction.
    pub(super) fn always_sealed(self) -> bool {
        match self {
            Self::SigningOrder
            | Self::KeygenOrder
            | Self::ReshareOrder
            | Self::Activate
            | Self::BackupOrder
            | Self::AttestOrder
            | Self::Rejection
            | Self::Reply
            | Self::Question
            | Self::Answer => true,
            // The protocol decides for each message.
            Self::Protocol | Self::Announcement => false,
            // Commitments and numbers: public.
            Self::Nonces => false,
            // What was announced to everyone, and public keys.
            Self::Witness | Self::KeyExchange => false,
        }
    }

    /// Whether a pair key may stand for the sender's signature: only its recipient must be certain who sent it.
    /// Orders are the root of all trust, announcements are shown to others, and both are kept as evidence.
    pub(super) fn may_use_pair_key(self) -> bool {
        match self {
            // Of key generations and reshares their senders sign (`EnvelopeCodec::send_signed`).
            Self::Protocol | Self::Reply | Self::Nonces => true,
            Self::SigningOrder
            | Self::KeygenOrder
            | Self::Announcement
            | Self::ReshareOrder
            | Self::Activate
            | Self::BackupOrder
            | Self::AttestOrder
            | Self::Witness
            | Self::Rejection
            | Self::Question
            | Self::Answer
            | Self::KeyExchange => false,
        }
    }
}

/// What shows that a body is the sender's, and hides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Protection {
    /// A signature; the body is in the clear.
    Signed = 0,
    /// A signature; the body is sealed for the recipient's identity.
    SignedAndSealed = 1,
    /// The body is sealed with a key that only the sender and the recipient have.
    PairKey = 2,
}

/// Where in which conversation an envelope belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EnvelopeHeader {
    /// What the body is.
    pub kind: EnvelopeKind,
    /// Whether the body is sealed.
    pub sealed: bool,
    /// The generation of the shares that the session uses or makes; 0 in announcements. What is of
    /// another generation than the session's order is refused.
    pub epoch: u32,
    /// The session.
    pub session: SessionId,
    /// The attempt within the session.
    pub attempt: u32,
    /// The round of the protocol; 0 outside protocols.
    pub round: u16,
    /// Which of several parallel runs of the protocol (one per signing input).
    pub sequence: u32,
    /// The sender.
    pub from: NodeId,
    /// The recipient.
    pub to: NodeId,
}

impl EnvelopeHeader {
    /// Of a message that belongs to no session, not sealed.
    pub fn outside_sessions(kind: EnvelopeKind, from: NodeId, to: NodeId) -> Self {
        Self {
            kind,
            sealed: false,
            epoch: 0,
            session: SessionId::from_bytes([0; 16]),
            attempt: 0,
            round: 0,
            sequence: 0,
            from,
            to,
        }
    }

    /// As it stands on the wire in what its sender signs.
    pub(crate) fn to_bytes(self) -> [u8; HEADER_LEN] {
        self.encode(match self.sealed {
            false => Protection::Signed,
            true => Protection::SignedAndSealed,
        })
    }

    pub(super) fn encode(&self, protection: Protection) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let fields: [&[u8]; 10] = [
            &VERSION.to_be_bytes(),
            &[self.kind as u8],
            &[protection as u8],
            &self.epoch.to_be_bytes(),
            self.session.as_bytes(),
            &self.attempt.to_be_bytes(),
            &self.round.to_be_bytes(),
            &self.sequence.to_be_bytes(),
            &self.from.0,
            &self.to.0,
        ];
        let mut rest = bytes.as_mut_slice();
        for field in fields {
            // The fields add up to HEADER bytes; a test says so.
            if let Some((place, after)) = rest.split_at_mut_checked(field.len()) {
                place.copy_from_slice(field);
                rest = after;
            } else {
                break;
            }
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<(Self, Protection)> {
        let mut reader = ByteReader(bytes);
        if u16::from_be_bytes(reader.take()?) != VERSION {
            return None;
        }
        let [kind] = reader.take()?;
        let kind = match kind {
            1 => EnvelopeKind::SigningOrder,
            2 => EnvelopeKind::KeygenOrder,
            3 => EnvelopeKind::Protocol,
            4 => EnvelopeKind::Reply,
            5 => EnvelopeKind::Announcement,
            6 => EnvelopeKind::ReshareOrder,
            7 => EnvelopeKind::Activate,
            8 => EnvelopeKind::BackupOrder,
            9 => EnvelopeKind::Nonces,
            10 => EnvelopeKind::AttestOrder,
            11 => EnvelopeKind::Witness,
            12 => EnvelopeKind::Rejection,
            13 => EnvelopeKind::Question,
            14 => EnvelopeKind::Answer,
            15 => EnvelopeKind::KeyExchange,
            _ => return None,
        };
        let [protection] = reader.take()?;
        let protection = match protection {
            0 => Protection::Signed,
            1 => Protection::SignedAndSealed,
            2 => Protection::PairKey,
            _ => return None,
        };
        let header = Self {
            kind,
            sealed: protection != Protection::Signed,
            epoch: u32::from_be_bytes(reader.take()?),
            session: SessionId::from_bytes(reader.take()?),
            attempt: u32::from_be_bytes(reader.take()?),
            round: u16::from_be_bytes(reader.take()?),
            sequence: u32::from_be_bytes(reader.take()?),
            from: NodeId(reader.take()?),
            to: NodeId(reader.take()?),
        };
        Some((header, protection))
    }
}

struct ByteReader<'a>(&'a [u8]);

impl ByteReader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }
}

/// An envelope without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedHeader {
    /// As it was sent.
    pub(crate) header: EnvelopeHeader,
    /// SHA-256 of the body as it was sent.
    pub(crate) body: [u8; 32],
    /// The sender's, over both.
    pub(crate) signature: [u8; 64],
}

impl SignedHeader {
    /// Whether the signature is the sender's.
    pub(crate) fn is_signed(&self) -> bool {
        let signed = signed_parts(&self.header, &self.body);
        let signature = Signature::from_bytes(&self.signature);
        self.header
            .from
            .verifying_key()
            .is_ok_and(|key| key.verify_strict(&signed, &signature).is_ok())
    }

    /// An envelope that a key made of its number signs.
    #[cfg(test)]
    pub(crate) fn sample(round: u16, sequence: u32, print: u8) -> Self {
        use covault_core::ids::SessionId;
        use ed25519_dalek::{Signer as _, SigningKey};
        let key = SigningKey::from_bytes(&[2; 32]);
        let header = EnvelopeHeader {
            kind: EnvelopeKind::Protocol,
            sealed: false,
            epoch: 0,
            session: SessionId::from_bytes([3; 16]),
            attempt: 0,
            round,
            sequence,
            from: NodeId(key.verifying_key().to_bytes()),
            to: NodeId([9; 32]),
        };
        let body = [print; 32];
        let signature = key.sign(&signed_parts(&header, &body)).to_bytes();
        Self {
            header,
            body,
            signature,
        }
    }
}

/// Reads a header of [`EnvelopeHeader::to_bytes`].
pub(crate) fn read_header(bytes: &[u8]) -> Option<EnvelopeHeader> {
    let (header, protection) = EnvelopeHeader::decode(bytes)?;
    (bytes.len() == HEADER_LEN && protection != Protection::PairKey).then_some(header)
}

/// What a sender signs: the header, and SHA-256 of the body.
fn signed_parts(header: &EnvelopeHeader, body: &[u8; 32]) -> [u8; 48] {
    signed_bytes(&fingerprint_of(&header.to_bytes(), body))
}

pub(super) fn fingerprint(header: &[u8; HEADER_LEN], body: &[u8]) -> [u8; 32] {
    // The body goes in as a hash: Ed25519 hashes its message twice, with a slower function.
    fingerprint_of(header, &Sha256::digest(body).into())
}

pub(super) fn fingerprint_of(header: &[u8; HEADER_LEN], body: &[u8; 32]) -> [u8; 32] {
    Sha256::new()
        .chain_update(header)
        .chain_update(body)
        .finalize()
        .into()
}

pub(super) fn signed_bytes(fingerprint: &[u8; 32]) -> [u8; 48] {
    let mut bytes = [0; 48];
    let (domain, rest) = bytes.split_at_mut(DOMAIN.len());
    domain.copy_from_slice(DOMAIN);
    rest.copy_from_slice(fingerprint);
    bytes
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn header__should_fill_its_bytes_and_stay_the_same() {
        let header = EnvelopeHeader {
            kind: EnvelopeKind::Reply,
            sealed: true,
            epoch: 9,
            session: SessionId::from_bytes([3; 16]),
            attempt: 4,
            round: 5,
            sequence: 6,
            from: NodeId([7; 32]),
            to: NodeId([8; 32]),
        };
        let bytes = header.to_bytes();
        assert_eq!(read_header(&bytes), Some(header));
        let sample = concat!(
            "00010401",
            "00000009",
            "03030303030303030303030303030303",
            "00000004",
            "0005",
            "00000006",
            "0707070707070707070707070707070707070707070707070707070707070707",
            "0808080808080808080808080808080808080808080808080808080808080808",
        );
        assert_eq!(hex::encode(bytes), sample);
        // Evidence is of what was signed.
        assert_eq!(read_header(&header.encode(Protection::PairKey)), None);
    }
}
