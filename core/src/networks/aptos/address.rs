//! Aptos addresses in text (AIP-40).

use curve25519_dalek::edwards::CompressedEdwardsY;
use sha3::{Digest as _, Sha3_256};
use sui_sdk_types::Address;

use crate::fault::Fault;

/// Why a text is not an Aptos address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Neither the long form nor that of a special address.
    #[error(
        "must be an Aptos address: 0x and 64 hex digits (up to 4 zeros in front may be missing), or 0x0 to 0xf"
    )]
    Form,
}

/// Parses `0x` and 60 to 64 hex digits, or one for the special addresses 0x0 to 0xf. Shorter
/// texts are refused, although nodes pad them: an EVM address would become one that nobody has
/// the key of. Printed, an address has all 64 digits in lower case.
///
/// # Errors
/// See [`AddressError`].
pub fn parse_address(text: &str) -> Result<Address, AddressError> {
    let digits = text.strip_prefix("0x").ok_or(AddressError::Form)?;
    if !matches!(digits.len(), 1 | 60..=64)
        || !digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    {
        return Err(AddressError::Form);
    }
    Address::from_hex(text).map_err(|_| AddressError::Form)
}

/// The legacy authentication key of one Ed25519 key (`Scheme::Ed25519` of aptos-core, 0), which
/// is the address of an account that has never changed its key.
pub(super) fn sender(public_key: &[u8]) -> Result<Address, Fault> {
    let key: [u8; 32] = public_key
        .try_into()
        .map_err(|_| Fault::bug("an Ed25519 public key has 32 bytes"))?;
    // RFC 8032 wants the canonical encoding; a key of small order is nobody's.
    let point = CompressedEdwardsY(key)
        .decompress()
        .filter(|point| point.compress().to_bytes() == key && !point.is_small_order());
    if point.is_none() {
        return Err(Fault::bug("not an Ed25519 public key"));
    }
    let hash = Sha3_256::new().chain_update(key).chain_update([0]);
    Ok(Address::new(hash.finalize().into()))
}
