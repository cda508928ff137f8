//! Addresses, digests and coin types.

use sui_sdk_types::{Address, Digest, StructTag};

/// The type of SUI as [`parse_coin_type`] writes it.
pub const SUI: &str =
    "0x0000000000000000000000000000000000000000000000000000000000000002::sui::SUI";

/// Bytes of a coin type's text; far more than any that is in use.
pub(super) const MAX_TYPE_BYTES: usize = 2048;

/// Why a text is not a Sui address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not `0x` and 64 hex digits. Short forms are of system objects, and a typo away from money
    /// lost.
    #[error("must be a Sui address: 0x and 64 hex digits")]
    Form,
}

/// Why a text is not a coin type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoinTypeError {
    /// Not a Move struct.
    #[error("must be a coin type, e.g. 0x2::sui::SUI")]
    Form,
}

/// Parses `0x` and 64 hex digits.
///
/// # Errors
/// See [`AddressError`].
pub fn parse_address(text: &str) -> Result<Address, AddressError> {
    let mut bytes = [0; Address::LENGTH];
    text.strip_prefix("0x")
        .and_then(|digits| hex::decode_to_slice(digits, &mut bytes).ok())
        .map(|()| Address::new(bytes))
        .ok_or(AddressError::Form)
}

/// Parses base58 of exactly 32 bytes ([`Digest::from_base58`] takes fewer too).
pub(super) fn parse_digest(text: &str) -> Option<Digest> {
    let mut bytes = [0; Digest::LENGTH];
    let length = bs58::decode(text).onto(&mut bytes).ok()?;
    (length == Digest::LENGTH).then(|| Digest::new(bytes))
}

/// Parses a coin type, `package::module::Name`, maybe with type arguments. Addresses in it may be
/// short; printed, it has them in full.
///
/// # Errors
/// See [`CoinTypeError`].
pub fn parse_coin_type(text: &str) -> Result<StructTag, CoinTypeError> {
    if text.len() > MAX_TYPE_BYTES {
        return Err(CoinTypeError::Form);
    }
    let coin: StructTag = text.parse().map_err(|_| CoinTypeError::Form)?;
    // What is printed has to be read again.
    if coin.to_string().len() > MAX_TYPE_BYTES {
        return Err(CoinTypeError::Form);
    }
    Ok(coin)
}
