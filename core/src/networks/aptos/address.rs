//! Aptos addresses in text (AIP-40).

use sui_sdk_types::Address;

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
