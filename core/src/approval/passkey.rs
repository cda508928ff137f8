//! Passkeys, as signers and orchestrator know them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{ENROL, tagged};
use crate::{fault::Fault, field, order::NodeId};

/// Fewest and most bytes of a credential id (WebAuthn, section 4).
const CREDENTIAL_ID: std::ops::RangeInclusive<usize> = 16..=1023;
/// Most origins of one passkey.
const MAX_ORIGINS: usize = 8;
/// Most bytes of an origin or rp id, characters of a name.
const MAX_ORIGIN: usize = 300;
const MAX_NAME: usize = 64;

/// The public key of a passkey.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PasskeyPublicKey {
    /// ES256 (COSE -7): a point of P-256 in SEC1, uncompressed, 65 bytes.
    Es256(Vec<u8>),
    /// Ed25519 (COSE -8), 32 bytes.
    Ed25519([u8; 32]),
}

/// The first bytes of the two forms that browsers give (`getPublicKey()`, SubjectPublicKeyInfo in DER).
const SPKI_P256: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
const SPKI_ED25519: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

impl PasskeyPublicKey {
    /// Reads what a browser's `AuthenticatorAttestationResponse.getPublicKey()` gives.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`], field `publicKey`, when it is neither.
    pub fn from_spki(der: &[u8]) -> Result<Self, Fault> {
        let key = if let Some(point) = der.strip_prefix(&SPKI_P256) {
            p256::ecdsa::VerifyingKey::from_sec1_bytes(point)
                .ok()
                .map(|key| Self::Es256(key.to_encoded_point(false).as_bytes().to_vec()))
        } else {
            der.strip_prefix(&SPKI_ED25519)
                .and_then(|bytes| <[u8; 32]>::try_from(bytes).ok())
                .map(Self::Ed25519)
        };
        let key = key.ok_or_else(bad_key)?;
        key.check()?;
        Ok(key)
    }

    fn check(&self) -> Result<(), Fault> {
        let sound = match self {
            Self::Es256(point) => {
                point.len() == 65 && p256::ecdsa::VerifyingKey::from_sec1_bytes(point).is_ok()
            }
            Self::Ed25519(bytes) => NodeId(*bytes).verifying_key().is_ok(),
        };
        if sound { Ok(()) } else { Err(bad_key()) }
    }
}

fn bad_key() -> Fault {
    Fault::field("publicKey", "must be a P-256 or Ed25519 public key")
}

/// A passkey, as it was enrolled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passkey {
    /// What the person calls it, e.g. `treasurer@key-1`. Nothing is decided by it.
    pub name: String,
    /// The relying party, e.g. `console.example.com`: the authenticator signs for no other.
    pub rp_id: String,
    /// The origins of the pages that may ask it, e.g. `https://console.example.com`; compared as whole strings.
    pub origins: BTreeSet<String>,
    /// The credential's id, 16 to 1023 bytes.
    pub credential_id: Vec<u8>,
    /// Its key.
    pub public_key: PasskeyPublicKey,
    /// Whether a cloud can copy it (flag BE).
    pub backup_eligible: bool,
}

impl Passkey {
    /// The challenge that proves at enrolment that the passkey is there: SHA-256 of the tag `covault/enrol`,
    /// the version and every field, in BCS.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when a field cannot be serialized.
    pub fn enrol_challenge(&self) -> Result<[u8; 32], Fault> {
        Ok(Sha256::digest(tagged(ENROL, self)?).into())
    }

    /// Checks that it can be one.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field.
    pub fn check(&self) -> Result<(), Fault> {
        let Self {
            name,
            rp_id,
            origins,
            credential_id,
            public_key,
            backup_eligible: _,
        } = self;
        field::required("name", name)?;
        // An administrator reads it on a terminal.
        field::label("name", name, MAX_NAME)?;
        field::required("rpId", rp_id)?;
        field::at_most_bytes("rpId", rp_id, MAX_ORIGIN)?;
        if origins.is_empty() || origins.len() > MAX_ORIGINS {
            return Err(Fault::field("origins", "must be 1 to 8"));
        }
        for origin in origins {
            let host = origin
                .strip_prefix("https://")
                .or_else(|| origin.strip_prefix("http://"))
                .unwrap_or_default();
            let (host, port) = host.split_once(':').unwrap_or((host, ""));
            let below = host
                .strip_suffix(rp_id.as_str())
                .is_some_and(|above| above.is_empty() || above.ends_with('.'));
            // As browsers write it, so that who reads it on a terminal sees where the page is.
            let is_host = |letter: u8| letter.is_ascii_alphanumeric() || b"-._".contains(&letter);
            let written = host.bytes().all(is_host) && port.bytes().all(|it| it.is_ascii_digit());
            if !below || !written || origin.len() > MAX_ORIGIN {
                return Err(Fault::field(
                    "origins",
                    "must be origins of the rp id, e.g. https://console.example.com",
                ));
            }
        }
        if !CREDENTIAL_ID.contains(&credential_id.len()) {
            return Err(Fault::field("credentialId", "must be 16 to 1023 bytes"));
        }
        public_key.check()
    }
}
