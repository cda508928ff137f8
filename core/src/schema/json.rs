//! The JSON mapping of the schema (contract section 2), driven by the descriptors.
//!
//! It is proto3 canonical JSON, stricter where money could be lost: unknown fields, unknown
//! enum values, keys given twice and two members of one oneof are refused. An error carries the
//! JSON path of the field and nothing of the value.

mod decode;
mod encode;
mod layout;
#[cfg(test)]
mod reflected;
mod tree;

#[cfg(test)]
mod tests;

use prost_reflect::{DynamicMessage, MessageDescriptor};

use self::encode::JsonWriter;
pub(in crate::schema) use self::layout::wrapped;
use super::reflect;
use crate::fault::{Class, Fault};

/// Decodes a JSON request body into the wire message `T`.
///
/// # Errors
/// [`crate::fault::Class::Invalid`] with the path of the field.
pub fn decode<T: prost::Message + prost::Name + Default>(json: &[u8]) -> Result<T, Fault> {
    decode_dynamic(&reflect::message(&T::full_name())?, json)?
        .transcode_to()
        .map_err(Fault::bug)
}

/// Decodes a JSON request body into a message of the schema.
///
/// # Errors
/// As [`decode`].
pub(super) fn decode_dynamic(
    descriptor: &MessageDescriptor,
    json: &[u8],
) -> Result<DynamicMessage, Fault> {
    let tree = tree::parse(json).map_err(|problem| Fault::new(Class::Invalid, problem))?;
    decode::message(descriptor, &tree)
}

/// Encodes the wire message `T` as a JSON response: every field present.
///
/// # Errors
/// [`crate::fault::Class::Bug`] when the message is not in the schema.
pub fn encode<T: prost::Message + prost::Name>(message: &T) -> Result<String, Fault> {
    let json = encode_wire(&T::full_name(), &message.encode_to_vec())?;
    String::from_utf8(json).map_err(Fault::bug)
}

/// Encodes the bytes of any message of the schema, which our own encoder has made.
///
/// # Errors
/// As [`encode`], and when they are no such message.
pub(super) fn encode_wire(full_name: &str, message: &[u8]) -> Result<Vec<u8>, Fault> {
    let schema = layout::schema()?;
    JsonWriter::write(schema, schema.named(full_name)?, message)
}
