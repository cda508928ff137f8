//! Signatures as they leave the signer nodes.

use serde::{Deserialize, Serialize};

/// A signature algorithm, which is also the kind of key that makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Curve {
    /// ECDSA over secp256k1 (SEC 2), low s.
    Secp256k1,
    /// Ed25519 (RFC 8032).
    Ed25519,
}

impl Curve {
    /// Both curves, in the order in which a vault makes its root keys.
    pub const ALL: [Curve; 2] = [Curve::Secp256k1, Curve::Ed25519];

    /// A short name for logs, file names and configuration.
    pub fn name(self) -> &'static str {
        match self {
            Curve::Secp256k1 => "secp256k1",
            Curve::Ed25519 => "ed25519",
        }
    }
}

/// One signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Signature {
    /// ECDSA over secp256k1.
    Ecdsa {
        /// r, 32 bytes big-endian.
        r: [u8; 32],
        /// s, 32 bytes big-endian, at most half the group order.
        s: [u8; 32],
        /// Parity of the y coordinate of the nonce point: 0 or 1.
        y_parity: u8,
    },
    /// Ed25519.
    Ed25519 {
        /// R, 32 bytes (RFC 8032 section 5.1.6).
        r: [u8; 32],
        /// s, 32 bytes little-endian.
        s: [u8; 32],
    },
}

impl Signature {
    /// The curve of the key that made it.
    pub fn curve(&self) -> Curve {
        match self {
            Signature::Ecdsa { .. } => Curve::Secp256k1,
            Signature::Ed25519 { .. } => Curve::Ed25519,
        }
    }

    /// r and s (ECDSA, big-endian each) or R and s (Ed25519): 64 bytes.
    pub fn to_bytes(&self) -> [u8; 64] {
        let (Signature::Ecdsa { r, s, .. } | Signature::Ed25519 { r, s }) = self;
        let mut bytes = [0; 64];
        let (left, right) = bytes.split_at_mut(32);
        left.copy_from_slice(r);
        right.copy_from_slice(s);
        bytes
    }
}
