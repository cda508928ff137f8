//! Evidence that a node has signed two messages for the same slot of a conversation: both envelopes, without
//! their bodies. A signature covers the header and a hash of the body, so that anyone can check it.

use covault_core::order::NodeId;
use serde::{Deserialize, Serialize};

use crate::envelope::{EnvelopeHeader, EnvelopeKind, SignedHeader, read_header};

/// Two envelopes of one sender for one place, with different bodies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Equivocation(SignedHeader, SignedHeader);

/// As it is written: the headers and signatures in hexadecimal.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EquivocationFile {
    /// OpenSSH line.
    accused: String,
    envelopes: [EnvelopeFile; 2],
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EnvelopeFile {
    header: String,
    body_sha256: String,
    signature: String,
}

impl EnvelopeFile {
    fn of(envelope: &SignedHeader) -> Self {
        Self {
            header: hex::encode(envelope.header.to_bytes()),
            body_sha256: hex::encode(envelope.body),
            signature: hex::encode(envelope.signature),
        }
    }

    fn read(&self) -> Option<SignedHeader> {
        let mut signed = SignedHeader {
            header: read_header(&hex::decode(&self.header).ok()?)?,
            body: [0; 32],
            signature: [0; 64],
        };
        hex::decode_to_slice(&self.body_sha256, &mut signed.body).ok()?;
        hex::decode_to_slice(&self.signature, &mut signed.signature).ok()?;
        Some(signed)
    }
}

impl Equivocation {
    /// `None` when the two are no evidence.
    pub(crate) fn of(one: &SignedHeader, other: &SignedHeader) -> Option<Self> {
        let found = Self(one.clone(), other.clone());
        found.accused().map(|_| found)
    }

    /// Who has said two things; `None` when nothing shows it.
    pub fn accused(&self) -> Option<NodeId> {
        let Self(one, other) = self;
        let place = |header: &EnvelopeHeader| EnvelopeHeader {
            // One may have been sealed, and the other not.
            sealed: false,
            ..*header
        };
        // Only in a run's rounds has each place one message. Of others, announcements say, honest nodes
        // send many under one header.
        let has_slots = one.header.kind == EnvelopeKind::Protocol && one.header.round > 0;
        let shown = has_slots
            && place(&one.header) == place(&other.header)
            && (one.body != other.body || one.header.sealed != other.header.sealed)
            && one.is_signed()
            && other.is_signed();
        shown.then_some(one.header.from)
    }

    /// As text, JSON.
    pub fn write(&self) -> String {
        let Self(one, other) = self;
        let written = EquivocationFile {
            accused: one.header.from.openssh_line(""),
            envelopes: [EnvelopeFile::of(one), EnvelopeFile::of(other)],
        };
        serde_json::to_string_pretty(&written).unwrap_or_default()
    }

    /// Reads [`Equivocation::write`]; `None` when it cannot be decoded. Whether it proves anything says
    /// [`Equivocation::accused`].
    pub fn read(text: &str) -> Option<Self> {
        let EquivocationFile {
            accused: _,
            envelopes: [one, other],
        } = serde_json::from_str(text).ok()?;
        Some(Self(one.read()?, other.read()?))
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn evidence__should_show_who_has_said_two_things_and_nothing_else() {
        let (one, other) = (SignedHeader::sample(2, 1, 5), SignedHeader::sample(2, 1, 6));
        let found = Equivocation::of(&one, &other).unwrap();
        assert_eq!(found.accused(), Some(one.header.from));
        let text = found.write();
        assert_eq!(Equivocation::read(&text).unwrap(), found);
        // Twice the same, two places, or words that it has not signed.
        assert!(Equivocation::of(&one, &one).is_none());
        assert!(Equivocation::of(&one, &SignedHeader::sample(3, 1, 6)).is_none());
        assert!(Equivocation::of(&one, &SignedHeader::sample(2, 2, 6)).is_none());
        let mut forged = other.clone();
        forged.body = [7; 32];
        assert!(Equivocation::of(&one, &forged).is_none());
        let mut forged = other;
        forged.header.from = NodeId([4; 32]);
        assert!(Equivocation::of(&one, &forged).is_none());
        // A changed file says nothing.
        let digits = text.rfind('5').unwrap();
        let mut changed = text.into_bytes();
        changed[digits] = b'4';
        let changed = String::from_utf8(changed).unwrap();
        assert!(
            Equivocation::read(&changed)
                .and_then(|it| it.accused())
                .is_none()
        );
    }
}
