//! Amounts of nanoton and of jettons.

use crate::amount::{AmountError, parse_u128};

/// An amount of nanoton or of a jetton: up to 2^120 - 1 (TL-B `VarUInteger 16`).
///
/// # Errors
/// See [`AmountError`].
pub fn parse_coins(text: &str) -> Result<u128, AmountError> {
    match parse_u128(text)? {
        value if value >> 120 == 0 => Ok(value),
        _ => Err(AmountError::TooLarge(120)),
    }
}
