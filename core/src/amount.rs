//! Amounts: decimal strings, checked, never floats.
//!
//! An amount is one or more ASCII digits and nothing else: no sign, space, separator, fraction,
//! exponent or hex. Leading zeros are refused (`0` alone is zero): nobody writes `0010` on
//! purpose, and some readers take it for octal.

pub use alloy_primitives::U256;

/// Why a text is not an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    /// Nothing there.
    #[error("is required: give a whole number in the smallest unit")]
    Empty,
    /// Something else than digits.
    #[error("must be a whole number in the smallest unit, digits only")]
    NotDigits,
    /// `01`.
    #[error("must not have leading zeros")]
    LeadingZeros,
    /// More than the network can express.
    #[error("is too large: at most {0} bits")]
    TooLarge(u16),
    /// Not a decimal number with so many digits after the point.
    #[error("must be a decimal number with at most {0} digits after the point")]
    NotDecimal(u8),
}

fn digits(text: &str) -> Result<&str, AmountError> {
    if text.is_empty() {
        return Err(AmountError::Empty);
    }
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(AmountError::NotDigits);
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err(AmountError::LeadingZeros);
    }
    Ok(text)
}

/// An amount up to 2^64 - 1 (lamports, satoshi, octa).
///
/// # Errors
/// See [`AmountError`].
pub fn parse_u64(text: &str) -> Result<u64, AmountError> {
    digits(text)?.parse().map_err(|_| AmountError::TooLarge(64))
}

/// An amount up to 2^63 - 1 (sun, stroops).
///
/// # Errors
/// See [`AmountError`].
pub fn parse_i64(text: &str) -> Result<i64, AmountError> {
    digits(text)?.parse().map_err(|_| AmountError::TooLarge(63))
}

/// An amount up to 2^128 - 1 (fees in wei per unit of gas).
///
/// # Errors
/// See [`AmountError`].
pub fn parse_u128(text: &str) -> Result<u128, AmountError> {
    digits(text)?
        .parse()
        .map_err(|_| AmountError::TooLarge(128))
}

/// An amount up to 2^256 - 1 (wei, ERC-20 tokens).
///
/// # Errors
/// See [`AmountError`].
pub fn parse_u256(text: &str) -> Result<U256, AmountError> {
    U256::from_str_radix(digits(text)?, 10).map_err(|_| AmountError::TooLarge(256))
}

/// Hex digits of at most 256 bits (no `0x`, 1 to 64 of them) as an amount.
pub fn hex_to_decimal(digits: &str) -> Option<String> {
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex || !(1..=64).contains(&digits.len()) {
        return None;
    }
    let value = U256::from_str_radix(digits, 16).ok()?;
    Some(value.to_string())
}

/// A decimal number such as `12.5` in units of 10^-`decimals`, up to 2^63 - 1 of them.
///
/// # Errors
/// See [`AmountError`].
pub fn parse_decimal(text: &str, decimals: u8) -> Result<i64, AmountError> {
    let wrong = AmountError::NotDecimal(decimals);
    let (whole, fraction) = match text.split_once('.') {
        Some((_, "")) => return Err(wrong),
        Some(parts) => parts,
        None => (text, ""),
    };
    let whole = digits(whole).map_err(|error| match error {
        AmountError::NotDigits => wrong,
        other => other,
    })?;
    let missing = usize::from(decimals)
        .checked_sub(fraction.len())
        .ok_or(wrong)?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong);
    }
    format!("{whole}{fraction}{}", "0".repeat(missing))
        .parse()
        .map_err(|_| AmountError::TooLarge(63))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn amount__should_take_digits_only() {
        for text in [
            " 1", "1 ", "+1", "-1", "1.5", "1e3", "0x10", "1_000", "1,0", "\u{661}", "1\n", "NaN",
        ] {
            assert_eq!(parse_u256(text), Err(AmountError::NotDigits), "{text:?}");
            assert_eq!(parse_u64(text), Err(AmountError::NotDigits), "{text:?}");
        }
        assert_eq!(parse_u64(""), Err(AmountError::Empty));
        assert_eq!(parse_u64("01"), Err(AmountError::LeadingZeros));
        assert_eq!(parse_u256("00"), Err(AmountError::LeadingZeros));
        assert_eq!(parse_u64("0"), Ok(0));
    }

    #[test]
    fn amount__should_stop_at_its_width() {
        assert_eq!(parse_u64("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(
            parse_u64("18446744073709551616"),
            Err(AmountError::TooLarge(64))
        );
        assert_eq!(
            parse_i64("9223372036854775808"),
            Err(AmountError::TooLarge(63))
        );
        assert_eq!(parse_u256(&U256::MAX.to_string()), Ok(U256::MAX));
        let over = "115792089237316195423570985008687907853269984665640564039457584007913129639936";
        assert_eq!(parse_u256(over), Err(AmountError::TooLarge(256)));
        assert_eq!(
            parse_u256(&"9".repeat(1000)),
            Err(AmountError::TooLarge(256))
        );
    }

    #[test]
    fn hex_to_decimal__should_take_up_to_256_bits() {
        assert_eq!(hex_to_decimal("0").unwrap(), "0");
        assert_eq!(
            hex_to_decimal("de0b6b3a7640000").unwrap(),
            "1000000000000000000"
        );
        assert_eq!(
            hex_to_decimal(&"f".repeat(64)).unwrap(),
            U256::MAX.to_string()
        );
        let long = "0".repeat(65);
        for text in ["", "zz", "0x1", "1_0", "+1", long.as_str()] {
            assert_eq!(hex_to_decimal(text), None, "{text}");
        }
    }

    #[test]
    fn decimal__should_be_exact() {
        assert_eq!(parse_decimal("12.5", 7), Ok(125_000_000));
        assert_eq!(parse_decimal("0.0000001", 7), Ok(1));
        assert_eq!(parse_decimal("922337203685.4775807", 7), Ok(i64::MAX));
        for text in ["1.", ".5", "1.00000001", "1.-5", "-1", "1e5", "1.5.5", ""] {
            assert!(parse_decimal(text, 7).is_err(), "{text}");
        }
        assert!(parse_decimal("922337203685.4775808", 7).is_err());
    }

    proptest! {
        #[test]
        fn amount__should_return_what_was_written(value: u64, wide: u128) {
            prop_assert_eq!(parse_u64(&value.to_string()), Ok(value));
            prop_assert_eq!(parse_u128(&wide.to_string()), Ok(wide));
            prop_assert_eq!(parse_u256(&wide.to_string()), Ok(U256::from(wide)));
        }

        #[test]
        fn amount__should_never_panic(text: String) {
            if let Ok(value) = parse_u256(&text) {
                prop_assert_eq!(value.to_string(), text.clone());
            }
            let _ = (parse_u64(&text), parse_i64(&text), parse_u128(&text), parse_decimal(&text, 7));
        }
    }
}
