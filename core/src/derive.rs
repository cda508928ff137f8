//! Non-hardened child keys: BIP-32 on secp256k1, the Edwards scheme of the `hd-wallet` crate
//! on Ed25519.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{fault::Fault, signature::Curve};

/// A path of non-hardened indices below a root key, each under 2^31. Printed as `m/0/5`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyPath(Vec<u32>);

/// A vault's root public key on one curve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootKey {
    /// The curve.
    pub curve: Curve,
    /// 33 bytes compressed (secp256k1) or 32 bytes (Ed25519).
    pub public_key: Vec<u8>,
    /// Chain code, 32 bytes.
    pub chain_code: [u8; 32],
}

impl KeyPath {
    /// A path of indices, each under 2^31.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] for a hardened index or more than 8 of them.
    pub fn new(indices: Vec<u32>) -> Result<Self, Fault> {
        let _ = indices;
        todo!()
    }

    /// The indices below the root, in order.
    pub fn indices(&self) -> &[u32] {
        &self.0
    }
}

impl RootKey {
    /// The child key at a path.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when the root key is not on the curve.
    pub fn child(&self, path: &KeyPath) -> Result<ChildKey, Fault> {
        let _ = path;
        todo!()
    }
}

/// A child public key, with what signers add to their shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildKey {
    /// 33 bytes compressed (secp256k1) or 32 bytes (Ed25519).
    pub public_key: Vec<u8>,
    /// The sum of the tweaks along the path, mod the group order: 32 bytes, big-endian for
    /// secp256k1, little-endian for Ed25519. Public, as chain code and root key are.
    pub tweak: [u8; 32],
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("m")?;
        self.0.iter().try_for_each(|index| write!(f, "/{index}"))
    }
}

impl fmt::Debug for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPath({self})")
    }
}

impl FromStr for KeyPath {
    type Err = Fault;

    fn from_str(_text: &str) -> Result<Self, Fault> {
        todo!()
    }
}
