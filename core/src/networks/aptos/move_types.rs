//! Move types and coins in text.
//!
//! The types are those of sui-sdk-types, whose text form and BCS layout are Move's own. Aptos
//! nests them less deep; what it has beyond them (signed integers, function types, `$` in names)
//! is refused. See docs/decisions/0012.

use std::{fmt, str::FromStr as _};

use sha3::{Digest as _, Sha3_256};
use sui_sdk_types::{Address, StructTag, TypeTag};

use super::address::{AddressError, parse_address};

/// How deep the chain lets vectors and structs nest (`MAX_TYPE_TAG_NESTING` of move-core-types).
const MAX_NESTING: usize = 8;
/// Bytes of a type in text.
pub(super) const MAX_TEXT: usize = 4096;
/// The scheme of addresses of named objects (`OBJECT_FROM_SEED_ADDRESS_SCHEME` of object.move).
const NAMED_OBJECT: u8 = 0xfe;
/// The metadata of the chain's coin as a fungible asset; also the creator of the fungible assets
/// that coin.move pairs with coins (`@aptos_fungible_asset`).
const FUNGIBLE_COIN: Address = special(0xa);

/// The address `0x0` to `0xf`.
pub(super) const fn special(number: u8) -> Address {
    let mut bytes = [0; 32];
    bytes[31] = number;
    Address::new(bytes)
}

/// Why a text is not a Move type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a Move type such as u64, vector<u8> or 0x1::aptos_coin::AptosCoin")]
pub struct TypeError;

/// Parses a type as Move writes it. Addresses in it may be short.
///
/// # Errors
/// See [`TypeError`].
pub fn parse_type(text: &str) -> Result<TypeTag, TypeError> {
    if text.len() > MAX_TEXT {
        return Err(TypeError);
    }
    // Printed, its addresses are in full, and that has to be read again.
    let is_short = |tag: &TypeTag| tag.to_string().len() <= MAX_TEXT;
    let tag = TypeTag::from_str(text).ok().filter(fits);
    tag.filter(is_short).ok_or(TypeError)
}

/// Whether the chain takes a type so deep.
pub(super) fn fits(tag: &TypeTag) -> bool {
    nesting(tag) <= MAX_NESTING
}

/// sui-sdk-types reads at most 128 levels.
fn nesting(tag: &TypeTag) -> usize {
    match tag {
        TypeTag::Vector(inner) => 1 + nesting(inner),
        TypeTag::Struct(inner) => 1 + inner.type_params().iter().map(nesting).max().unwrap_or(0),
        _ => 0,
    }
}

/// Whether a struct is `0x1::module::name`, whatever its type arguments.
pub(super) fn is_standard(tag: &StructTag, module: &str, name: &str) -> bool {
    *tag.address() == special(1) && tag.module() == module && tag.name() == name
}

/// What aptosSendCoin sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AptosCoin {
    /// A coin of coin.move, by its type.
    Type(StructTag),
    /// A fungible asset (AIP-21), by the address of its metadata.
    Asset(Address),
}

/// Why a text is not a coin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoinError {
    /// With `::`, and not the type of a struct.
    #[error(
        "must be a coin type such as 0x1::aptos_coin::AptosCoin, or the metadata address of a fungible asset"
    )]
    Type,
    /// Without.
    #[error(transparent)]
    Address(#[from] AddressError),
}

impl AptosCoin {
    /// Parses a coin type (with `::`) or the address of a fungible asset's metadata.
    ///
    /// # Errors
    /// See [`CoinError`].
    pub fn parse(text: &str) -> Result<Self, CoinError> {
        if !text.contains("::") {
            return Ok(AptosCoin::Asset(parse_address(text)?));
        }
        match parse_type(text) {
            Ok(TypeTag::Struct(tag)) => Ok(AptosCoin::Type(*tag)),
            Ok(_) | Err(TypeError) => Err(CoinError::Type),
        }
    }

    /// The metadata of the fungible asset that it is; `None` for the chain's own coin. A coin of
    /// coin.move and the fungible asset paired with it are one balance, which can be sent as
    /// either: a limit on one must hold for the other.
    pub fn metadata(&self) -> Option<Address> {
        match self {
            AptosCoin::Asset(address) => (*address != FUNGIBLE_COIN).then_some(*address),
            AptosCoin::Type(tag)
                if is_standard(tag, "aptos_coin", "AptosCoin") && tag.type_params().is_empty() =>
            {
                None
            }
            // AIP-63; create_and_return_paired_metadata_if_not_exist of coin.move.
            AptosCoin::Type(tag) => {
                let hash = Sha3_256::new()
                    .chain_update(FUNGIBLE_COIN.as_bytes())
                    .chain_update(struct_name(tag))
                    .chain_update([NAMED_OBJECT])
                    .finalize();
                Some(Address::new(hash.into()))
            }
        }
    }
}

/// The canonical form: addresses with all their digits.
impl fmt::Display for AptosCoin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AptosCoin::Type(tag) => tag.fmt(f),
            AptosCoin::Asset(address) => address.fmt(f),
        }
    }
}

/// `type_info::type_name` of Move's standard library: addresses without zeros in front.
fn type_name(tag: &TypeTag) -> String {
    match tag {
        TypeTag::Vector(inner) => format!("vector<{}>", type_name(inner)),
        TypeTag::Struct(tag) => struct_name(tag),
        primitive => primitive.to_string(),
    }
}

fn struct_name(tag: &StructTag) -> String {
    let digits = hex::encode(tag.address().as_bytes());
    let address = match digits.trim_start_matches('0') {
        "" => "0",
        short => short,
    };
    let params: Vec<String> = tag.type_params().iter().map(type_name).collect();
    let generics = match params.as_slice() {
        [] => String::new(),
        params => format!("<{}>", params.join(", ")),
    };
    format!("0x{address}::{}::{}{generics}", tag.module(), tag.name())
}
