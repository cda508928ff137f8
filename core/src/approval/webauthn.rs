//! Assertions of WebAuthn (Web Authentication Level 3, section 7.2), as far as approvals need them: 37 fixed
//! bytes, a JSON object, a signature. No CBOR, and no attestation.
//!
//! A counter is not looked at: a signer sees only some assertions, and synced passkeys send 0. A replay is
//! worth nothing, since a request claims one digest, once.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use ed25519_dalek::VerifyingKey;
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use serde::{Deserialize, Deserializer, Serialize, de::IgnoredAny};
use sha2::{Digest as _, Sha256};

use super::{Passkey, PasskeyPublicKey};
use crate::fault::Fault;

/// Most bytes of `clientDataJSON`.
pub const MAX_CLIENT_DATA: usize = 2 << 10;

const USER_PRESENT: u8 = 1;
const USER_VERIFIED: u8 = 1 << 2;
const BACKUP_ELIGIBLE: u8 = 1 << 3;
const BACKED_UP: u8 = 1 << 4;
const ATTESTED_DATA: u8 = 1 << 6;
const EXTENSION_DATA: u8 = 1 << 7;

/// What `navigator.credentials.get` gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebAuthnAssertion {
    /// 37 bytes: SHA-256 of the rp id, flags, counter.
    pub authenticator_data: Vec<u8>,
    /// The bytes of the JSON, at most [`MAX_CLIENT_DATA`].
    pub client_data_json: Vec<u8>,
    /// Over `authenticator_data` and SHA-256 of `client_data_json`: ES256 in DER, or Ed25519 (64 bytes).
    pub signature: Vec<u8>,
}

/// What is read of `clientDataJSON`. Keys that are not here are ignored, as the standard wants; one that is
/// here twice is refused.
#[derive(Deserialize)]
struct ClientData {
    #[serde(rename = "type")]
    kind: String,
    challenge: String,
    origin: String,
    #[serde(rename = "crossOrigin", default)]
    cross_origin: bool,
    /// Whether it is there, with whatever value.
    #[serde(rename = "topOrigin", default, deserialize_with = "is_there")]
    top_origin: bool,
}

fn is_there<'de, D: Deserializer<'de>>(value: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(value).map(|_| true)
}

impl WebAuthnAssertion {
    /// How many bytes count for the bounds.
    pub(super) fn size(&self) -> usize {
        let Self {
            authenticator_data,
            client_data_json,
            signature,
        } = self;
        authenticator_data
            .len()
            .saturating_add(client_data_json.len())
            .saturating_add(signature.len())
    }

    /// Checks that `passkey` has signed `challenge` on a page of one of its origins, with the user present and
    /// verified. The origin of that page.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field.
    pub(super) fn verify(&self, passkey: &Passkey, challenge: &[u8; 32]) -> Result<String, Fault> {
        // The signature is verified whatever else is wrong: a refusal takes as long for each passkey.
        let origin = self.check_client_data(passkey, challenge);
        let data = self.check_authenticator_data(passkey);
        let signature = self.is_signed_by(&passkey.public_key);
        let origin = origin?;
        data.and(signature).map(|()| origin)
    }

    /// Checks the signature alone.
    ///
    /// # Errors
    /// As [`WebAuthnAssertion::verify`].
    pub(super) fn is_signed_by(&self, key: &PasskeyPublicKey) -> Result<(), Fault> {
        let client_data = Sha256::digest(&self.client_data_json);
        let signed = [self.authenticator_data.as_slice(), &client_data].concat();
        key.verify(&signed, &self.signature)
    }

    fn check_client_data(&self, passkey: &Passkey, challenge: &[u8; 32]) -> Result<String, Fault> {
        let wrong = |field: &str, problem: &str| {
            let path = match field {
                "" => "clientDataJSON".to_owned(),
                field => format!("clientDataJSON.{field}"),
            };
            Err(Fault::field(path, problem))
        };
        if self.client_data_json.len() > MAX_CLIENT_DATA {
            return wrong("", "must be at most 2048 bytes");
        }
        const NO_OBJECT: &str = "is not a JSON object with type, challenge and origin, each once";
        // A struct is also read from a list of its values.
        if !self.client_data_json.trim_ascii_start().starts_with(b"{") {
            return wrong("", NO_OBJECT);
        }
        let data: ClientData = match serde_json::from_slice(&self.client_data_json) {
            Ok(data) => data,
            Err(cause) => return wrong("", NO_OBJECT).map_err(|fault| fault.caused_by(cause)),
        };
        if data.kind != "webauthn.get" {
            return wrong("type", "must be webauthn.get");
        }
        if data.challenge != BASE64_URL_SAFE_NO_PAD.encode(challenge) {
            return wrong(
                "challenge",
                "is not the challenge of this approval in base64url without padding",
            );
        }
        if !passkey.origins.contains(&data.origin) {
            return wrong("origin", "is not one that the passkey was enrolled with");
        }
        if data.cross_origin {
            return wrong("crossOrigin", "must be false or left out");
        }
        if data.top_origin {
            return wrong("topOrigin", "must be left out");
        }
        Ok(data.origin)
    }

    fn check_authenticator_data(&self, passkey: &Passkey) -> Result<(), Fault> {
        let wrong = |problem: &str| Err(Fault::field("authenticatorData", problem));
        let Some((rp_id_hash, rest)) = self.authenticator_data.split_first_chunk::<32>() else {
            return wrong("must be 37 bytes");
        };
        let [flags, _, _, _, _] = rest else {
            return wrong("must be 37 bytes");
        };
        if *rp_id_hash != <[u8; 32]>::from(Sha256::digest(&passkey.rp_id)) {
            return wrong("has another rp id than the passkey was enrolled with");
        }
        if flags & USER_PRESENT == 0 {
            return wrong("the user was not present (flag UP)");
        }
        if flags & USER_VERIFIED == 0 {
            return wrong("the device has not verified its user (flag UV)");
        }
        if flags & (ATTESTED_DATA | EXTENSION_DATA) != 0 {
            return wrong("must have neither attested data nor extensions (flags AT, ED)");
        }
        let eligible = flags & BACKUP_ELIGIBLE != 0;
        if eligible != passkey.backup_eligible {
            return wrong("flag BE (the passkey can be copied) differs from enrolment");
        }
        if !eligible && flags & BACKED_UP != 0 {
            return wrong("is backed up, but not eligible for backup (flag BS without BE)");
        }
        Ok(())
    }
}

impl PasskeyPublicKey {
    /// ES256 takes a high `s` too, which authenticators make, and strict DER only.
    fn verify(&self, message: &[u8], signature: &[u8]) -> Result<(), Fault> {
        let wrong = || {
            Fault::field(
                "signature",
                "is not this passkey's signature of authenticatorData and clientDataJSON (ES256 in DER)",
            )
        };
        #[cfg(any(test, feature = "testing"))]
        super::verified::VERIFIED.with(|counts| counts.count(self));
        match self {
            PasskeyPublicKey::Es256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point)
                    .verify(message, signature)
                    .map_err(|_| wrong())
            }
            PasskeyPublicKey::Ed25519(bytes) => {
                let key =
                    VerifyingKey::from_bytes(bytes).map_err(|cause| wrong().caused_by(cause))?;
                let signature =
                    ed25519_dalek::Signature::from_slice(signature).map_err(|cause| {
                        Fault::field("signature", "must be 64 bytes").caused_by(cause)
                    })?;
                key.verify_strict(message, &signature)
                    .map_err(|cause| wrong().caused_by(cause))
            }
        }
    }
}
