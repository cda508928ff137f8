//! EVM addresses in text.

use alloy_primitives::Address;
use k256::ecdsa::VerifyingKey;

use crate::fault::Fault;

/// Why a text is not an EVM address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not `0x` and 40 hex digits.
    #[error("must be 0x and 40 hex digits")]
    Form,
    /// Capitals are there, but not where EIP-55 wants them.
    #[error("has an invalid checksum (EIP-55): check for a typo")]
    Checksum,
}

/// Parses `0x` and 40 hex digits. Letters all lower or all upper case carry no checksum and are
/// accepted; mixed ones must be as EIP-55 says.
///
/// # Errors
/// See [`AddressError`].
pub fn parse_address(text: &str) -> Result<Address, AddressError> {
    let digits = text.strip_prefix("0x").ok_or(AddressError::Form)?;
    let mut bytes = [0; 20];
    hex::decode_to_slice(digits, &mut bytes).map_err(|_| AddressError::Form)?;
    let address = Address::from(bytes);
    let mixed = digits.bytes().any(|byte| byte.is_ascii_lowercase())
        && digits.bytes().any(|byte| byte.is_ascii_uppercase());
    if mixed && address.to_checksum(None) != text {
        return Err(AddressError::Checksum);
    }
    Ok(address)
}

/// The address of a key: the last 20 bytes of keccak256 over the uncompressed point without its 0x04.
pub(super) fn address_of(key: &VerifyingKey) -> Result<Address, Fault> {
    let point = key.to_sec1_point(false);
    let bytes = point
        .as_bytes()
        .get(1..)
        .ok_or_else(|| Fault::bug("a public key without coordinates"))?;
    Ok(Address::from_raw_public_key(bytes))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // From EIP-55.
    const GOOD: &str = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";

    #[test]
    fn address__should_verify_a_checksum_that_is_there() {
        let parsed = parse_address(GOOD).unwrap();
        assert_eq!(parsed.to_checksum(None), GOOD);
        assert_eq!(parse_address(&GOOD.to_lowercase()), Ok(parsed));
        let upper = format!("0x{}", GOOD[2..].to_uppercase());
        assert_eq!(parse_address(&upper), Ok(parsed));
        let typo = GOOD.replace("aAeb", "AAeb");
        assert_eq!(parse_address(&typo), Err(AddressError::Checksum));
    }

    #[test]
    fn address__should_be_0x_and_40_digits() {
        for text in [
            "",
            "0x",
            &GOOD[2..],
            &GOOD[..41],
            &format!("{GOOD}0"),
            &format!(" {GOOD}"),
            &GOOD.replacen("0x", "0X", 1),
            &GOOD.replace('5', "g"),
            "0xé",
        ] {
            assert_eq!(parse_address(text), Err(AddressError::Form), "{text}");
        }
    }

    proptest! {
        #[test]
        fn address__should_return_what_was_written(bytes: [u8; 20]) {
            let address = Address::from(bytes);
            prop_assert_eq!(parse_address(&address.to_checksum(None)), Ok(address));
        }

        #[test]
        fn address__should_never_panic(text in "(0x)?.{0,50}") {
            let _ = parse_address(&text);
        }
    }
}
