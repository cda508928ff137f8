//! Addresses.

use solana_pubkey::Pubkey;

/// Why a text is not a Solana address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not base58 of 32 bytes.
    #[error("must be a Solana address: base58 of 32 bytes")]
    Form,
}

/// Parses base58 of exactly 32 bytes. Not every address is on the curve (those of programs are
/// not), so that is not asked for.
///
/// # Errors
/// See [`AddressError`].
pub fn parse_key(text: &str) -> Result<Pubkey, AddressError> {
    bytes_32(text)
        .map(Pubkey::new_from_array)
        .ok_or(AddressError::Form)
}

pub(super) fn bytes_32(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    let length = bs58::decode(text).onto(&mut bytes).ok()?;
    (length == 32).then_some(bytes)
}
