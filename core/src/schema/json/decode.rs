//! JSON to message, by the descriptors.

use std::collections::{BTreeMap, BTreeSet};

use base64::{
    Engine as _,
    engine::{
        DecodePaddingMode,
        general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD},
    },
};
use prost_reflect::{
    Cardinality, DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor,
    ReflectMessage as _, Value,
};

use super::{
    layout::{self, unmapped, wrapped},
    tree::JsonValue,
};
use crate::{
    fault::Fault,
    schema::{path::FieldPath, reflect},
};

const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const STANDARD_LENIENT: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::STANDARD, LENIENT);
const URL_LENIENT: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::URL_SAFE, LENIENT);

/// From 2^50 on a JSON number with fraction or exponent may have become another whole number: the
/// parser is off by a few units in the last place, and 2^53 + 1 is no double at all.
const EXACT_FLOAT: f64 = 1_125_899_906_842_624.0;

/// How long a text of hex digits is that is refused as base64: bytes, and call data. Shorter ones
/// are base64 too often.
const HEX_BYTES: usize = 16;
const HEX_CALL_DATA: usize = 8;

/// Decodes a whole request.
pub(super) fn message(
    descriptor: &MessageDescriptor,
    tree: &JsonValue,
) -> Result<DynamicMessage, Fault> {
    object(descriptor, tree, &FieldPath::Root)
}

fn object(
    descriptor: &MessageDescriptor,
    tree: &JsonValue,
    path: &FieldPath<'_>,
) -> Result<DynamicMessage, Fault> {
    let JsonValue::Object(entries) = tree else {
        return Err(path.fault("must be a JSON object"));
    };
    // Keys first: a request with two payload kinds is told that, not what is wrong with one of them.
    let given = keys(descriptor, entries, path)?;
    let required = &layout::schema()?.named(descriptor.full_name())?.required;
    let mut message = DynamicMessage::new(descriptor.clone());
    // Not all of them: a message has up to fifty.
    let numbers: BTreeSet<u32> = given.keys().chain(required).copied().collect();
    for field in numbers
        .into_iter()
        .filter_map(|it| descriptor.get_field(it))
    {
        let here = FieldPath::Field(path, field.json_name());
        let Some(tree) = given.get(&field.number()).copied().flatten() else {
            if required.contains(&field.number()) {
                return Err(here.fault("is required"));
            }
            continue;
        };
        let value = if field.is_list() {
            list(&field, tree, &here)?
        } else {
            single(&field, tree, &here)?
        };
        message.try_set_field(&field, value).map_err(Fault::bug)?;
    }
    Ok(message)
}

/// The values by field number; `None` where `null` stands.
fn keys<'a>(
    descriptor: &MessageDescriptor,
    entries: &'a [(String, JsonValue)],
    path: &FieldPath<'_>,
) -> Result<BTreeMap<u32, Option<&'a JsonValue>>, Fault> {
    let mut given = BTreeMap::new();
    for (key, tree) in entries {
        let Some(field) = find(descriptor, key) else {
            let name = shown(key);
            return Err(FieldPath::Field(path, &name).fault("unknown field"));
        };
        let tree = (*tree != JsonValue::Null).then_some(tree);
        if tree.is_some() {
            check_oneof(&given, &field, path)?;
        }
        if given.insert(field.number(), tree).is_some() {
            return Err(FieldPath::Field(path, field.json_name()).fault("is given twice"));
        }
    }
    Ok(given)
}

/// Both name forms of proto3 JSON: lowerCamelCase and the name in the schema.
fn find(descriptor: &MessageDescriptor, key: &str) -> Option<FieldDescriptor> {
    descriptor
        .get_field_by_json_name(key)
        .or_else(|| descriptor.get_field_by_name(key))
}

/// A key of the client's, safe to be shown back.
fn shown(key: &str) -> String {
    key.chars().take(64).flat_map(char::escape_debug).collect()
}

fn check_oneof(
    given: &BTreeMap<u32, Option<&JsonValue>>,
    field: &FieldDescriptor,
    path: &FieldPath<'_>,
) -> Result<(), Fault> {
    let Some(oneof) = field.containing_oneof() else {
        return Ok(());
    };
    let is_given =
        |other: &FieldDescriptor| given.get(&other.number()).is_some_and(Option::is_some);
    let Some(other) = oneof
        .fields()
        .find(|other| other != field && is_given(other))
    else {
        return Ok(());
    };
    let what = if oneof.name() == "type" {
        "payload kind"
    } else {
        oneof.name()
    };
    Err(
        FieldPath::Field(path, field.json_name()).fault(format_args!(
            "exactly one {what} may be given, and {} is given too",
            other.json_name()
        )),
    )
}

fn list(field: &FieldDescriptor, tree: &JsonValue, path: &FieldPath<'_>) -> Result<Value, Fault> {
    let JsonValue::List(items) = tree else {
        return Err(path.fault("must be a list"));
    };
    let values: Result<Vec<_>, _> = items
        .iter()
        .enumerate()
        .map(|(index, item)| single(field, item, &FieldPath::Item(path, index)))
        .collect();
    Ok(Value::List(values?))
}

fn single(field: &FieldDescriptor, tree: &JsonValue, path: &FieldPath<'_>) -> Result<Value, Fault> {
    if field.is_map() || field.cardinality() == Cardinality::Required {
        return Err(unmapped(field));
    }
    Ok(match field.kind() {
        Kind::Bool => match tree {
            JsonValue::Bool(value) => Value::Bool(*value),
            _ => return Err(path.fault("must be true or false")),
        },
        Kind::String => match tree {
            JsonValue::String(text) => Value::String(text.clone()),
            _ => return Err(path.fault("must be a string")),
        },
        Kind::Bytes => Value::Bytes(bytes(tree, path, reflect::is_padded(field)?)?.into()),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(integer(tree, path)?),
        Kind::Uint32 | Kind::Fixed32 => Value::U32(integer(tree, path)?),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(integer(tree, path)?),
        // The public document calls every 64-bit field int64; what does not fit is refused.
        Kind::Uint64 | Kind::Fixed64 => {
            let value: i64 = integer(tree, path)?;
            Value::U64(u64::try_from(value).map_err(|_| path.fault("must not be negative"))?)
        }
        Kind::Enum(descriptor) => Value::EnumNumber(enumeration(&descriptor, tree, path)?),
        Kind::Message(descriptor) => Value::Message(match wrapped(&descriptor) {
            Some(inner) => {
                let mut wrapper = DynamicMessage::new(descriptor.clone());
                let value = single(&inner, tree, path)?;
                wrapper.try_set_field(&inner, value).map_err(Fault::bug)?;
                wrapper
            }
            None => {
                let message = object(&descriptor, tree, path)?;
                if let Some(name) = reflect::refuses_zero_of(field)? {
                    refuse_zero(&message, tree, name, path)?;
                }
                message
            }
        }),
        Kind::Double | Kind::Float => return Err(unmapped(field)),
    })
}

/// Refuses a 0 that is given as such: protobuf drops it, as if the field had been left out.
fn refuse_zero(
    message: &DynamicMessage,
    tree: &JsonValue,
    name: &str,
    path: &FieldPath<'_>,
) -> Result<(), Fault> {
    let (descriptor, JsonValue::Object(entries)) = (message.descriptor(), tree) else {
        return Ok(());
    };
    let given = entries.iter().find(|(key, value)| {
        *value != JsonValue::Null && find(&descriptor, key).is_some_and(|it| it.name() == name)
    });
    match given.and_then(|(key, _)| find(&descriptor, key)) {
        Some(field) if !message.has_field(&field) => {
            let here = FieldPath::Field(path, field.json_name());
            Err(here.fault("0 names another network, which has payload kinds of its own"))
        }
        _ => Ok(()),
    }
}

fn integer<T: TryFrom<i128>>(tree: &JsonValue, path: &FieldPath<'_>) -> Result<T, Fault> {
    let number = match tree {
        JsonValue::Integer(number) => *number,
        JsonValue::Float(number) => whole(*number, path)?,
        JsonValue::String(text) => {
            decimal(text).ok_or_else(|| path.fault("must be a whole number"))?
        }
        _ => return Err(path.fault("must be a whole number or a string that holds one")),
    };
    T::try_from(number).map_err(|_| path.fault("is out of range"))
}

/// A number written with a fraction or an exponent, when it is whole and exact.
fn whole(number: f64, path: &FieldPath<'_>) -> Result<i128, Fault> {
    if number.fract() != 0.0 {
        return Err(path.fault("must be a whole number"));
    }
    if number.abs() >= EXACT_FLOAT {
        return Err(path.fault("is out of range for a JSON number; write it as a string of digits"));
    }
    #[expect(clippy::cast_possible_truncation, reason = "whole and below 2^50")]
    Ok(number as i128)
}

/// Digits with an optional minus sign, as JSON writes a whole number: no plus sign, no leading
/// zeros, no fraction, no exponent.
fn decimal(text: &str) -> Option<i128> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = !digits.is_empty()
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && (digits == "0" || !digits.starts_with('0'));
    if !plain {
        return None;
    }
    // Longer than i128: out of range of every field, and reported as that.
    Some(text.parse().unwrap_or(i128::MAX))
}

fn enumeration(
    descriptor: &EnumDescriptor,
    tree: &JsonValue,
    path: &FieldPath<'_>,
) -> Result<i32, Fault> {
    let known = match tree {
        JsonValue::String(name) => descriptor.get_value_by_name(name),
        JsonValue::Integer(_) | JsonValue::Float(_) => descriptor.get_value(integer(tree, path)?),
        _ => None,
    };
    known.map(|value| value.number()).ok_or_else(|| {
        let names: Vec<String> = descriptor
            .values()
            .map(|value| value.name().to_owned())
            .collect();
        path.fault(format_args!("must be one of {}", names.join(", ")))
    })
}

fn bytes(tree: &JsonValue, path: &FieldPath<'_>, padded: bool) -> Result<Vec<u8>, Fault> {
    let JsonValue::String(text) = tree else {
        return Err(path.fault("must be a base64 string"));
    };
    if is_hex(text, if padded { HEX_CALL_DATA } else { HEX_BYTES }) {
        return Err(path.fault("looks like hex; give base64"));
    }
    if padded {
        return STANDARD
            .decode(text)
            .map_err(|_| path.fault("must be base64 of the standard alphabet, with padding"));
    }
    let engine = if text.contains(['-', '_']) {
        URL_LENIENT
    } else {
        STANDARD_LENIENT
    };
    engine
        .decode(text)
        .map_err(|_| path.fault("must be base64"))
}

/// Whether the text is `least` characters or more, all hex digits, with or without `0x`. As base64 it would decode to
/// other bytes without a word.
fn is_hex(text: &str, least: usize) -> bool {
    let digits = text.strip_prefix("0x").or(text.strip_prefix("0X"));
    text.len() >= least
        && digits
            .unwrap_or(text)
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit())
}
