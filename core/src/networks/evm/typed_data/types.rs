//! The `types` of typed data.

use std::collections::{BTreeMap, BTreeSet};

use alloy_dyn_abi::{PropertyDef, Resolver, TypeDef};
use alloy_primitives::B256;
use serde_json::{Map, Value};

use crate::fault::Fault;

/// Struct types of one content.
const MAX_TYPES: usize = 64;
/// Dimensions of an array. Bulk orders of real exchanges nest two dozen.
const MAX_DIMENSIONS: usize = 32;
/// Characters of a name.
const MAX_NAME: usize = 256;

/// The type of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FieldType {
    Bool,
    /// Bits.
    Uint(usize),
    /// Bits.
    Int(usize),
    Address,
    /// Bytes.
    FixedBytes(usize),
    Bytes,
    String,
    /// Name.
    Struct(String),
    /// Items, and how many where the type says.
    Array(Box<FieldType>, Option<usize>),
}

/// A field of a struct type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StructField {
    pub(super) name: String,
    pub(super) type_name: String,
    pub(super) kind: FieldType,
}

impl StructField {
    /// A field. The error says what is wrong with its name or type.
    pub(super) fn new(name: &str, type_name: &str) -> Result<Self, &'static str> {
        if !is_identifier(name) {
            return Err("has a name that is not an identifier");
        }
        Ok(Self {
            name: name.to_owned(),
            type_name: type_name.to_owned(),
            kind: parse_type(type_name)?,
        })
    }
}

/// The struct types, by name.
#[derive(Debug, Default)]
pub(super) struct StructTypes {
    structs: BTreeMap<String, Vec<StructField>>,
    resolver: Resolver,
}

impl StructTypes {
    /// Checks the form of all types, also of those that the message does not use.
    pub(super) fn parse(object: &Map<String, Value>) -> Result<Self, Fault> {
        if object.len() > MAX_TYPES {
            return Err(Fault::field(
                "types",
                format_args!("has too many types: at most {MAX_TYPES}"),
            ));
        }
        let mut types = Self::default();
        for (name, fields) in object {
            if !is_identifier(name) || is_reserved(name) {
                return Err(Fault::field(
                    "types",
                    "has a name that cannot be a struct's name",
                ));
            }
            let path = format!("types.{name}");
            let list = fields
                .as_array()
                .ok_or_else(|| Fault::field(&path, "must be a list of fields"))?;
            let mut seen = BTreeSet::new();
            let mut checked = Vec::with_capacity(list.len());
            for (index, field) in list.iter().enumerate() {
                let path = format!("{path}[{index}]");
                let field = parse_field(field).map_err(|problem| Fault::field(&path, problem))?;
                if !seen.insert(field.name.clone()) {
                    return Err(Fault::field(&path, "has the same name as another field"));
                }
                checked.push(field);
            }
            types.insert(name, checked)?;
        }
        Ok(types)
    }

    pub(super) fn insert(&mut self, name: &str, fields: Vec<StructField>) -> Result<(), Fault> {
        let properties = fields
            .iter()
            .map(|field| PropertyDef::new_unchecked(&field.type_name, &field.name))
            .collect();
        let definition = TypeDef::new(name, properties)
            .map_err(|_| Fault::field("types", "has a name that cannot be a struct's name"))?;
        self.resolver.ingest(definition);
        self.structs.insert(name.to_owned(), fields);
        Ok(())
    }

    pub(super) fn get(&self, name: &str) -> Option<&Vec<StructField>> {
        self.structs.get(name)
    }

    pub(super) fn entry(&self, name: &str) -> Option<(&str, &[StructField])> {
        self.structs
            .get_key_value(name)
            .map(|(name, fields)| (name.as_str(), fields.as_slice()))
    }

    /// keccak256 of `encodeType`. Fails on types that are missing or refer to each other in a
    /// circle.
    pub(super) fn hash(&self, name: &str) -> Result<B256, Fault> {
        self.resolver.type_hash(name).map_err(|error| {
            Fault::field(
                format_args!("types.{name}"),
                "refers to a missing type, or to itself",
            )
            .caused_by(error)
        })
    }
}

fn parse_field(value: &Value) -> Result<StructField, &'static str> {
    const WRONG: &str = "must be an object with a name and a type, both strings";
    let object = value.as_object().ok_or(WRONG)?;
    let text = |key: &str| object.get(key).and_then(Value::as_str).ok_or(WRONG);
    let (name, type_name) = (text("name")?, text("type")?);
    if object.len() != 2 {
        return Err(WRONG);
    }
    StructField::new(name, type_name)
}

fn parse_type(text: &str) -> Result<FieldType, &'static str> {
    const WRONG: &str = "has a type that EIP-712 does not define";
    let (base, mut dimensions) = match text.find('[') {
        Some(at) => text.split_at_checked(at).ok_or(WRONG)?,
        None => (text, ""),
    };
    let mut kind = match atomic(base) {
        Some(kind) => kind,
        None if is_identifier(base) && !is_reserved(base) => FieldType::Struct(base.to_owned()),
        None => return Err(WRONG),
    };
    let mut depth = 0;
    while !dimensions.is_empty() {
        let (length, rest) = dimensions
            .strip_prefix('[')
            .and_then(|rest| rest.split_once(']'))
            .ok_or(WRONG)?;
        let length = match length {
            "" => None,
            digits => Some(number(digits).filter(|length| *length > 0).ok_or(WRONG)?),
        };
        kind = FieldType::Array(Box::new(kind), length);
        dimensions = rest;
        depth += 1;
        if depth > MAX_DIMENSIONS {
            return Err("has a type of too many dimensions");
        }
    }
    Ok(kind)
}

/// The atomic and dynamic types of EIP-712. `uint` and `int` are not: their hash would depend on
/// whether a library writes them out.
fn atomic(name: &str) -> Option<FieldType> {
    let bits =
        |digits: &str| number(digits).filter(|bits| (8..=256).contains(bits) && bits % 8 == 0);
    match name {
        "bool" => Some(FieldType::Bool),
        "address" => Some(FieldType::Address),
        "string" => Some(FieldType::String),
        "bytes" => Some(FieldType::Bytes),
        _ => {
            if let Some(digits) = name.strip_prefix("uint") {
                bits(digits).map(FieldType::Uint)
            } else if let Some(digits) = name.strip_prefix("int") {
                bits(digits).map(FieldType::Int)
            } else {
                number(name.strip_prefix("bytes")?)
                    .filter(|length| (1..=32).contains(length))
                    .map(FieldType::FixedBytes)
            }
        }
    }
}

/// Decimal digits without leading zeros, up to six of them.
fn number(digits: &str) -> Option<usize> {
    let plain = (1..=6).contains(&digits.len())
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && (digits == "0" || !digits.starts_with('0'));
    plain.then(|| digits.parse().ok()).flatten()
}

/// A name as Solidity has it; `:` too, which some exchanges use in struct names. Anything else
/// could forge other types in the text that is hashed.
fn is_identifier(name: &str) -> bool {
    let mut bytes = name.bytes();
    let starts = bytes
        .next()
        .is_some_and(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'$'));
    starts
        && name.len() <= MAX_NAME
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b':'))
}

/// Names that Solidity has for types of its own, whether EIP-712 knows them or not.
fn is_reserved(name: &str) -> bool {
    let stem = name.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == 'x');
    matches!(
        stem,
        "bool"
            | "address"
            | "string"
            | "bytes"
            | "byte"
            | "function"
            | "uint"
            | "int"
            | "fixed"
            | "ufixed"
    )
}
