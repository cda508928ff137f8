//! EIP-712 typed data, as `eth_signTypedData_v4` takes it.
//!
//! Wallet libraries differ in what they make of data that is not quite right: numbers that do not
//! fit, keys given twice, a domain that differs from its type. The same content then has several
//! digests. Here every such content is refused, with the path of what is wrong, so that what is
//! signed is what every library would have signed. Keys of the message that its type lacks are left
//! out, as ethers, viem and MetaMask do, and are not shown either.

mod permits;
mod types;
mod unique;

#[cfg(test)]
mod tests;

use std::{cell::RefCell, collections::BTreeMap};

use alloy_primitives::{B256, Keccak256, U256, keccak256};
use serde_json::{Map, Value};

pub(crate) use self::permits::permits;
use self::types::{FieldType, StructField, StructTypes};
use super::parse_address;
use crate::{amount::parse_u256, fault::Fault};

/// Longest content, in bytes.
const MAX_CONTENT: usize = 256 * 1024;
/// Above this JavaScript has lost digits of a JSON number.
const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// What a content is made of.
const PARTS: [&str; 4] = ["types", "primaryType", "domain", "message"];
const DOMAIN: &str = "EIP712Domain";
/// What a domain may hold, in the order of EIP-712.
const DOMAIN_FIELDS: [(&str, &str); 5] = [
    ("name", "string"),
    ("version", "string"),
    ("chainId", "uint256"),
    ("verifyingContract", "address"),
    ("salt", "bytes32"),
];

/// Whether content without an explicit type is typed data: a JSON object with `types`,
/// `primaryType`, `domain` and `message`.
pub(crate) fn looks_like(content: &[u8]) -> bool {
    serde_json::from_slice::<Map<String, Value>>(content)
        .is_ok_and(|object| PARTS.iter().all(|key| object.contains_key(*key)))
}

/// The digest of EIP-712: `keccak256(0x1901 ‖ domainSeparator ‖ hashStruct(message))`.
/// `chain_id` is what the request named.
///
/// # Errors
/// [`crate::fault::Class::Invalid`] with the path of what is wrong, from `content` on.
pub(crate) fn signing_hash(content: &[u8], chain_id: Option<u64>) -> Result<B256, Fault> {
    if content.len() > MAX_CONTENT {
        return Err(Fault::field(
            "content",
            format_args!("is too long: typed data has at most {MAX_CONTENT} bytes"),
        ));
    }
    let object = unique::parse(content).map_err(|problem| Fault::field("content", problem))?;
    digest(&object, chain_id).map_err(|fault| fault.with_prefix("content"))
}

/// A content without what its digest does not depend on: keys that the types lack. `None` when there is nothing
/// of that.
///
/// # Errors
/// As [`signing_hash`].
pub(crate) fn without_unsigned(content: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
    let mut whole = unique::parse(content).map_err(|problem| Fault::field("content", problem))?;
    let parts = digest_parts(&whole).map_err(|fault| fault.with_prefix("content"))?;
    let mut message = Value::Object(parts.message.clone());
    let kind = FieldType::Struct(parts.primary.to_owned());
    let mut pruned = prune(&parts.types, &kind, &mut message);
    let keys = whole.len();
    whole.retain(|key, _| PARTS.contains(&key.as_str()));
    pruned |= whole.len() != keys;
    whole.insert("message".into(), message);
    match pruned {
        true => serde_json::to_vec(&whole).map(Some).map_err(Fault::bug),
        false => Ok(None),
    }
}

/// Takes out the keys that a type lacks; whether there were any.
fn prune(types: &StructTypes, kind: &FieldType, value: &mut Value) -> bool {
    match (kind, value) {
        (FieldType::Struct(name), Value::Object(object)) => {
            let Some(fields) = types.get(name) else {
                return false;
            };
            let keys = object.len();
            object.retain(|key, _| fields.iter().any(|field| field.name == *key));
            let mut pruned = object.len() != keys;
            for field in fields {
                if let Some(value) = object.get_mut(&field.name) {
                    pruned |= prune(types, &field.kind, value);
                }
            }
            pruned
        }
        (FieldType::Array(inner, _), Value::Array(items)) => {
            let pruned = items.iter_mut().map(|item| prune(types, inner, item));
            pruned.fold(false, |any, one| any | one)
        }
        _ => false,
    }
}

/// The parts of a content; their own contents are not checked yet.
struct TypedDataParts<'a> {
    domain: &'a Map<String, Value>,
    types: StructTypes,
    primary: &'a str,
    message: &'a Map<String, Value>,
}

fn digest_parts(content: &Map<String, Value>) -> Result<TypedDataParts<'_>, Fault> {
    let part = |key: &str| {
        content
            .get(key)
            .ok_or_else(|| Fault::field(key, "is required in typed data"))
    };
    let domain = object(part("domain")?, "domain")?;
    let types = StructTypes::parse(object(part("types")?, "types")?)?;
    let message = part("message")?;
    let Value::String(primary) = part("primaryType")? else {
        return Err(Fault::field("primaryType", "must be a string"));
    };
    if primary == DOMAIN || types.get(primary).is_none() {
        return Err(Fault::field(
            "primaryType",
            "must be one of types, and not EIP712Domain",
        ));
    }
    Ok(TypedDataParts {
        domain,
        types,
        primary,
        message: object(message, "message")?,
    })
}

fn digest(content: &Map<String, Value>, chain_id: Option<u64>) -> Result<B256, Fault> {
    let TypedDataParts {
        domain,
        mut types,
        primary,
        message,
    } = digest_parts(content)?;
    declare_domain(&mut types, domain)?;
    check_chain(domain, chain_id)?;

    let hasher = StructHasher {
        types: &types,
        type_hashes: RefCell::default(),
    };
    let mut digest = Keccak256::new();
    digest.update([0x19, 0x01]);
    digest.update(hasher.structure(DOMAIN, domain, "domain")?);
    digest.update(hasher.structure(primary, message, "message")?);
    Ok(digest.finalize())
}

fn object<'a>(value: &'a Value, path: &str) -> Result<&'a Map<String, Value>, Fault> {
    value
        .as_object()
        .ok_or_else(|| Fault::field(path, "must be an object"))
}

/// The type of the domain follows from its keys. Where the content declares one, it must be that
/// one: libraries that go by the keys and libraries that go by the declaration then agree.
fn declare_domain(types: &mut StructTypes, domain: &Map<String, Value>) -> Result<(), Fault> {
    for key in domain.keys() {
        if !DOMAIN_FIELDS.iter().any(|(name, _)| name == key) {
            return Err(unknown("domain", key));
        }
    }
    let fields: Vec<StructField> = DOMAIN_FIELDS
        .iter()
        .filter(|(name, _)| domain.contains_key(*name))
        .map(|(name, type_name)| StructField::new(name, type_name))
        .collect::<Result<_, _>>()
        .map_err(Fault::bug)?;
    match types.get(DOMAIN) {
        None => types.insert(DOMAIN, fields),
        Some(declared) if *declared == fields => Ok(()),
        Some(_) => Err(Fault::field(
            "types.EIP712Domain",
            "must declare exactly the keys of domain, in the order and with the types of EIP-712 (or leave it out)",
        )),
    }
}

/// EIP-712: "The user-agent should refuse signing if it does not match the currently active
/// chain."
fn check_chain(domain: &Map<String, Value>, chain_id: Option<u64>) -> Result<(), Fault> {
    let (Some(value), Some(active)) = (domain.get("chainId"), chain_id) else {
        return Ok(());
    };
    match integer(value) {
        Ok((false, given)) if given == U256::from(active) => Ok(()),
        Ok(_) => Err(Fault::field(
            "domain.chainId",
            format_args!("is not the chainId of the request, {active}"),
        )),
        Err(problem) => Err(Fault::field("domain.chainId", problem)),
    }
}

/// The chain that the signature is bound to: that of the domain. `None` without one, or when it
/// is no chain id.
pub(crate) fn domain_chain(content: &[u8]) -> Option<u64> {
    let object = unique::parse(content).ok()?;
    domain_chain_of(object.get("domain")?.as_object()?)
}

fn domain_chain_of(domain: &Map<String, Value>) -> Option<u64> {
    match integer(domain.get("chainId")?) {
        Ok((false, id)) => u64::try_from(id).ok(),
        _ => None,
    }
}

fn unknown(path: &str, key: &str) -> Fault {
    let key: String = key.chars().take(64).flat_map(char::escape_debug).collect();
    Fault::field(format_args!("{path}.{key}"), "is not a field of the type")
}

struct StructHasher<'a> {
    types: &'a StructTypes,
    type_hashes: RefCell<BTreeMap<&'a str, B256>>,
}

impl<'a> StructHasher<'a> {
    /// `hashStruct`: keccak256 over the type's hash and one word per field.
    fn structure(&self, name: &str, value: &Map<String, Value>, path: &str) -> Result<B256, Fault> {
        let (name, fields) = self
            .types
            .entry(name)
            .ok_or_else(|| Fault::field(path, "has a type that is not declared in types"))?;
        let mut hash = Keccak256::new();
        hash.update(self.type_hash(name)?);
        for field in fields {
            let path = format!("{path}.{}", field.name);
            let value = value
                .get(&field.name)
                .ok_or_else(|| Fault::field(&path, "is required by the type"))?;
            hash.update(self.word(&field.kind, value, &path)?);
        }
        Ok(hash.finalize())
    }

    fn type_hash(&self, name: &'a str) -> Result<B256, Fault> {
        if let Some(known) = self.type_hashes.borrow().get(name) {
            return Ok(*known);
        }
        let hash = self.types.hash(name)?;
        self.type_hashes.borrow_mut().insert(name, hash);
        Ok(hash)
    }

    /// The 32 bytes that `encodeData` has for a value.
    fn word(&self, kind: &FieldType, value: &Value, path: &str) -> Result<B256, Fault> {
        let wrong = |problem: &str| Fault::field(path, problem);
        Ok(match kind {
            FieldType::Bool => match value {
                Value::Bool(bit) => B256::with_last_byte((*bit).into()),
                _ => return Err(wrong("must be true or false")),
            },
            FieldType::String => match value {
                Value::String(text) => keccak256(text),
                _ => return Err(wrong("must be a string")),
            },
            FieldType::Address => match value {
                Value::String(text) => parse_address(text)
                    .map_err(|error| Fault::field(path, error))?
                    .into_word(),
                _ => return Err(wrong("must be an address in a string")),
            },
            FieldType::Bytes => keccak256(bytes(value).map_err(wrong)?),
            FieldType::FixedBytes(length) => {
                let bytes = bytes(value).map_err(wrong)?;
                if bytes.len() != *length {
                    return Err(wrong(&format!("must be {length} bytes, 0x and hex digits")));
                }
                B256::right_padding_from(&bytes)
            }
            FieldType::Uint(bits) => match integer(value).map_err(wrong)? {
                (false, number) if number.bit_len() <= *bits => number.into(),
                _ => return Err(wrong(&format!("does not fit uint{bits}"))),
            },
            FieldType::Int(bits) => {
                let (negative, magnitude) = integer(value).map_err(wrong)?;
                // -2^(bits-1) to 2^(bits-1) - 1.
                let limit = U256::ONE << (bits - 1);
                match negative {
                    false if magnitude < limit => magnitude.into(),
                    true if magnitude <= limit => magnitude.wrapping_neg().into(),
                    _ => return Err(wrong(&format!("does not fit int{bits}"))),
                }
            }
            FieldType::Struct(name) => self.structure(name, object(value, path)?, path)?,
            FieldType::Array(inner, length) => {
                let Value::Array(items) = value else {
                    return Err(wrong("must be a list"));
                };
                if length.is_some_and(|length| length != items.len()) {
                    return Err(wrong("does not have the length of its type"));
                }
                let mut hash = Keccak256::new();
                for (index, item) in items.iter().enumerate() {
                    hash.update(self.word(inner, item, &format!("{path}[{index}]"))?);
                }
                hash.finalize()
            }
        })
    }
}

/// `0x` and an even number of hex digits.
fn bytes(value: &Value) -> Result<Vec<u8>, &'static str> {
    const WRONG: &str = "must be bytes: 0x and an even number of hex digits, in a string";
    let digits = value.as_str().and_then(|text| text.strip_prefix("0x"));
    hex::decode(digits.ok_or(WRONG)?).map_err(|_| WRONG)
}

/// Sign and magnitude of a whole number: a JSON number that every library reads alike, or a
/// string of decimal digits (with `-` for negative ones) or of `0x` and hex digits.
fn integer(value: &Value) -> Result<(bool, U256), &'static str> {
    const WRONG: &str = "must be a whole number: digits, or 0x and hex digits, in a string";
    match value {
        Value::Number(number) => {
            let (negative, magnitude) = match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => (false, number),
                (None, Some(number)) => (true, number.unsigned_abs()),
                (None, None) => return Err(WRONG),
            };
            if magnitude > MAX_SAFE_INTEGER {
                return Err("is too large for a JSON number: write it as a string");
            }
            Ok((negative, U256::from(magnitude)))
        }
        Value::String(text) => {
            if let Some(digits) = text.strip_prefix("0x") {
                // from_str_radix would take underscores and an empty text.
                let plain =
                    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                let number = plain.then(|| U256::from_str_radix(digits, 16).ok());
                return number.flatten().map(|number| (false, number)).ok_or(WRONG);
            }
            let (negative, digits) = match text.strip_prefix('-') {
                Some(digits) => (true, digits),
                None => (false, text.as_str()),
            };
            match parse_u256(digits) {
                Ok(magnitude) if negative && magnitude.is_zero() => Err(WRONG),
                Ok(magnitude) => Ok((negative, magnitude)),
                Err(_) => Err(WRONG),
            }
        }
        _ => Err(WRONG),
    }
}
