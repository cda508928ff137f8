//! Nonces made ahead: encoding, and peers' commitments as points.

use covault_core::{fault::Fault, port::Entropy};
use frost_ed25519::{
    keys::SigningShare,
    round1::{self, SigningCommitments, SigningNonces},
};
use zeroize::Zeroizing;

use crate::{backend::MadeNonce, entropy::EntropyRng};

/// A peer's commitments, parsed: both are points of the prime-order group.
pub struct Commitments {
    pub(super) bytes: Vec<u8>,
    pub(super) points: SigningCommitments,
}

impl Commitments {
    /// Parses; this is the costly part of taking part in a signature. `None` when they are
    /// malformed.
    pub fn parse(bytes: Vec<u8>) -> Option<Self> {
        let points = SigningCommitments::deserialize(&bytes).ok()?;
        Some(Self { bytes, points })
    }
}

/// In the library's own encoding.
pub(super) fn make(share: &SigningShare, entropy: &dyn Entropy) -> Result<MadeNonce, Fault> {
    let (nonces, commitments) = round1::commit(share, &mut EntropyRng(entropy));
    Ok(MadeNonce {
        commitments: commitments.serialize().map_err(Fault::bug)?,
        secret: Zeroizing::new(nonces.serialize().map_err(Fault::bug)?),
    })
}

/// The nonces of [`make`].
pub(super) fn read(secret: &[u8]) -> Option<SigningNonces> {
    SigningNonces::deserialize(secret).ok()
}
