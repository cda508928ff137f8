//! Tron addresses in text, and what names a token.

use std::fmt;

use alloy_primitives::B256;
use k256::ecdsa::VerifyingKey;

use crate::{amount::parse_i64, fault::Fault};

/// First byte of every address.
const PREFIX: u8 = 0x41;
/// The prefix and 20 bytes.
const ADDRESS_BYTES: usize = 21;
/// First 4 bytes of the double SHA-256 (base58check).
const CHECKSUM_BYTES: usize = 4;
/// Characters of an address; all begin with `T`.
const ADDRESS_CHARS: usize = 34;

/// An address: 0x41 and the last 20 bytes of keccak256 over the public key. Printed in
/// base58check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(alloy_primitives::Address);

impl Address {
    /// The address of a secp256k1 public key (33 bytes compressed, SEC 1).
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when it is not such a key.
    pub fn of_key(public_key: &[u8]) -> Result<Self, Fault> {
        let point = (public_key.len() == 33)
            .then(|| VerifyingKey::from_sec1_bytes(public_key).ok())
            .flatten()
            .map(|key| key.to_sec1_point(false))
            .ok_or_else(|| Fault::bug("not a compressed secp256k1 public key"))?;
        let coordinates = point
            .as_bytes()
            .get(1..)
            .ok_or_else(|| Fault::bug("a public key without coordinates"))?;
        Ok(Self(alloy_primitives::Address::from_raw_public_key(
            coordinates,
        )))
    }

    /// The address of 21 bytes, the first of them 0x41.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [PREFIX, rest @ ..]: [u8; ADDRESS_BYTES] = bytes.try_into().ok()? else {
            return None;
        };
        Some(Self(rest.into()))
    }

    /// The address of its last 20 bytes, as the TVM has it.
    pub fn of_account(account: [u8; 20]) -> Self {
        Self(account.into())
    }

    /// The 21 bytes that transactions hold.
    pub fn to_bytes(&self) -> [u8; ADDRESS_BYTES] {
        let mut bytes = [PREFIX; ADDRESS_BYTES];
        let [_, rest @ ..] = &mut bytes;
        *rest = self.0.into_array();
        bytes
    }

    /// The address as the TVM has it in call data: without the prefix.
    pub(super) fn to_word(self) -> B256 {
        self.0.into_word()
    }

    /// See [`Address::to_word`]; `None` when more than 20 bytes are in it.
    pub(super) fn from_word(word: [u8; 32]) -> Option<Self> {
        let address = alloy_primitives::Address::from_word(word.into());
        (address.into_word() == word).then_some(Self(address))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = bs58::encode(self.to_bytes()).with_check().into_string();
        f.write_str(&text)
    }
}

/// Why a text is not a Tron address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not base58check of 21 bytes that begin with 0x41.
    #[error("must be a Tron address: T and 33 more characters of base58")]
    Form,
    /// Looks like one, and the checksum is another.
    #[error("has an invalid checksum: check for a typo")]
    Checksum,
}

/// Parses base58check of 0x41 and 20 bytes. The hex form (`41...`) is refused: one address has
/// one text.
///
/// # Errors
/// See [`AddressError`].
pub fn parse_address(text: &str) -> Result<Address, AddressError> {
    // Base58check of 0x41 and 20 bytes has no other length.
    if text.len() != ADDRESS_CHARS {
        return Err(AddressError::Form);
    }
    let mut bytes = [0; ADDRESS_BYTES + CHECKSUM_BYTES];
    let decoded = bs58::decode(text).with_check(Some(PREFIX)).onto(&mut bytes);
    match decoded {
        Ok(ADDRESS_BYTES) => bytes
            .first_chunk::<ADDRESS_BYTES>()
            .and_then(|bytes| Address::from_bytes(bytes))
            .ok_or(AddressError::Form),
        Err(bs58::decode::Error::InvalidChecksum { .. }) if text.starts_with('T') => {
            Err(AddressError::Checksum)
        }
        _ => Err(AddressError::Form),
    }
}

/// Not the number of a TRC-10 asset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be the number of a TRC-10 asset, e.g. 1002000")]
pub struct AssetIdError;

/// Parses the number of a TRC-10 asset: digits without leading zeros, 1 to 2^63 - 1. Names, which
/// were used before assets had numbers, are no longer unique.
///
/// # Errors
/// See [`AssetIdError`].
pub fn parse_asset_id(text: &str) -> Result<i64, AssetIdError> {
    parse_i64(text)
        .ok()
        .filter(|id| *id > 0)
        .ok_or(AssetIdError)
}
