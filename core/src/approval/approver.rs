//! Keys of approvers, and the line that enrols a passkey.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use ssh_key::{PublicKey, public::KeyData};

use super::{ApprovalProof, Passkey, PasskeyPublicKey, ProofFacts, WebAuthnAssertion, ssh};
use crate::fault::{Class, Fault};

/// What the line of an enrolled passkey begins with.
const PREFIX: &str = "covault-approver1";
/// Most bytes behind the base64 of a line.
const MAX_LINE: usize = 4 << 10;
/// Words of a fingerprint, 11 bits each.
const WORDS: usize = 8;

/// An enrolled passkey with the proof that it is there: what a person gives to the administrator of each node,
/// as one line `covault-approver1 <base64> comment`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApproverLine {
    /// The passkey.
    pub passkey: Passkey,
    /// Its assertion over [`Passkey::enrol_challenge`].
    pub possession: WebAuthnAssertion,
}

impl ApproverLine {
    /// Reads a line and checks its proof; the comment is ignored.
    ///
    /// # Errors
    /// [`Class::Invalid`] naming the field.
    pub fn parse(line: &str) -> Result<Self, Fault> {
        let line = Self::decode(line)?;
        line.check()?;
        Ok(line)
    }

    fn decode(line: &str) -> Result<Self, Fault> {
        let refuse = || {
            Fault::new(
                Class::Invalid,
                "must be a line that begins with covault-approver1 and base64",
            )
        };
        let mut words = line.split_whitespace();
        if words.next() != Some(PREFIX) {
            return Err(refuse());
        }
        let text = words.next().ok_or_else(refuse)?;
        if text.len() > MAX_LINE.saturating_mul(2) {
            return Err(refuse());
        }
        let bytes = BASE64_STANDARD
            .decode(text)
            .map_err(|cause| refuse().caused_by(cause))?;
        bcs::from_bytes(&bytes).map_err(|cause| refuse().caused_by(cause))
    }

    /// Checks the passkey and the proof.
    ///
    /// # Errors
    /// [`Class::Invalid`] naming the field.
    pub fn check(&self) -> Result<(), Fault> {
        self.passkey.check()?;
        let challenge = self.passkey.enrol_challenge()?;
        self.possession.verify(&self.passkey, &challenge)?;
        if self.bytes()?.len() > MAX_LINE {
            return Err(Fault::new(Class::Invalid, "the line is too long"));
        }
        Ok(())
    }

    /// The line, with the passkey's name as comment.
    ///
    /// # Errors
    /// [`Class::Bug`] when a field cannot be serialized.
    pub fn line(&self) -> Result<String, Fault> {
        let base64 = BASE64_STANDARD.encode(self.bytes()?);
        Ok(format!("{PREFIX} {base64} {}", self.passkey.name))
    }

    /// Eight words (the English list of BIP-39, 88 bits of the SHA-256 of the line's bytes), to be read
    /// aloud: a line that was exchanged on its way has others.
    ///
    /// # Errors
    /// As [`ApproverLine::line`].
    pub fn fingerprint(&self) -> Result<[&'static str; WORDS], Fault> {
        Ok(words(&Sha256::digest(self.bytes()?).into()))
    }

    fn bytes(&self) -> Result<Vec<u8>, Fault> {
        bcs::to_bytes(self).map_err(Fault::bug)
    }
}

/// The first 88 bits of a SHA-256 as eight words of the English list of BIP-39, to be read aloud.
pub fn words(digest: &[u8; 32]) -> [&'static str; WORDS] {
    let bits = digest
        .iter()
        .take(WORDS.saturating_mul(11).div_ceil(8))
        .fold(0_u128, |bits, byte| (bits << 8) | u128::from(*byte));
    let list = bip39::Language::English.word_list();
    let mut words = [""; WORDS];
    for (place, word) in words.iter_mut().rev().enumerate() {
        let index = usize::try_from((bits >> place.saturating_mul(11)) & 0x7ff).unwrap_or_default();
        *word = list.get(index).copied().unwrap_or_default();
    }
    words
}

/// A key that approves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApproverKey {
    /// A passkey.
    Passkey(Box<Passkey>),
    /// An SSH key; an Ed25519 one may also be the node key of a client signer.
    Ssh(Box<PublicKey>),
}

/// What a proof names its key by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ApproverKeyId {
    /// The credential's id.
    Credential(Vec<u8>),
    /// The key.
    Ssh(KeyData),
}

impl ApproverKey {
    /// Reads a line `covault-approver1 ...`, whose proof it checks, or an OpenSSH public key.
    ///
    /// # Errors
    /// [`Class::Invalid`] with what is wrong.
    pub fn parse(line: &str) -> Result<Self, Fault> {
        if line.trim_start().starts_with(PREFIX) {
            return Ok(Self::Passkey(Box::new(ApproverLine::parse(line)?.passkey)));
        }
        Ok(Self::Ssh(Box::new(ssh::parse(line)?)))
    }

    /// Reads a line that [`ApproverKey::parse`] has accepted before, without checking the proof of a passkey again: that
    /// is a signature, and a rule may have 1,600 keys.
    ///
    /// # Errors
    /// [`Class::Invalid`] with what is wrong.
    pub(crate) fn reread(line: &str) -> Result<Self, Fault> {
        if line.trim_start().starts_with(PREFIX) {
            return Ok(Self::Passkey(Box::new(ApproverLine::decode(line)?.passkey)));
        }
        Ok(Self::Ssh(Box::new(ssh::parse(line)?)))
    }

    /// What proofs of this key name it by.
    pub fn id(&self) -> ApproverKeyId {
        match self {
            Self::Passkey(passkey) => ApproverKeyId::Credential(passkey.credential_id.clone()),
            Self::Ssh(key) => ApproverKeyId::Ssh(key.key_data().clone()),
        }
    }

    /// The public key itself (65 bytes P-256, 32 bytes Ed25519): the same one under two ids is one key.
    pub fn public_key(&self) -> &[u8] {
        match self {
            Self::Passkey(passkey) => match &passkey.public_key {
                PasskeyPublicKey::Es256(point) => point.as_slice(),
                PasskeyPublicKey::Ed25519(key) => key.as_slice(),
            },
            Self::Ssh(key) => ssh::public_key(key.key_data()),
        }
    }

    /// Checks that this key has signed `challenge`. What the proof shows.
    ///
    /// # Errors
    /// [`Class::Invalid`] naming the field.
    pub fn verify(&self, proof: &ApprovalProof, challenge: &[u8; 32]) -> Result<ProofFacts, Fault> {
        match (self, proof) {
            (Self::Passkey(passkey), ApprovalProof::WebAuthn { assertion, .. }) => {
                let origin = assertion.verify(passkey, challenge)?;
                let synced = passkey.backup_eligible;
                Ok(ProofFacts::WebAuthn { origin, synced })
            }
            (Self::Ssh(key), ApprovalProof::Ssh(text)) => {
                ssh::verify(key, text, challenge).map(|()| ProofFacts::Ssh)
            }
            (Self::Ssh(key), ApprovalProof::Node { node, signature }) => {
                let wrong =
                    || Fault::field("signature", "is not this node's signature of this approval");
                if key.key_data().ed25519().map(|key| key.0) != Some(node.0) {
                    return Err(wrong());
                }
                let signature =
                    ed25519_dalek::Signature::from_slice(signature).map_err(|_| wrong())?;
                node.verifying_key()?
                    .verify_strict(&ApprovalProof::node_statement(challenge), &signature)
                    .map_err(|_| wrong())?;
                Ok(ProofFacts::Node)
            }
            _ => Err(Fault::field("proof", "does not match the type of the key")),
        }
    }
}

impl ApprovalProof {
    /// What it names its key by.
    ///
    /// # Errors
    /// [`Class::Invalid`], field `signature`, when it is not an SSH signature.
    pub fn key_id(&self) -> Result<ApproverKeyId, Fault> {
        Ok(match self {
            Self::WebAuthn { credential_id, .. } => {
                ApproverKeyId::Credential(credential_id.clone())
            }
            Self::Ssh(text) => ApproverKeyId::Ssh(ssh::read(text)?.public_key().clone()),
            Self::Node { node, .. } => {
                ApproverKeyId::Ssh(KeyData::Ed25519(ssh_key::public::Ed25519PublicKey(node.0)))
            }
        })
    }
}
