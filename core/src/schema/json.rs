//! The JSON mapping of the schema (contract section 2), driven by the descriptors.

use crate::fault::Fault;

/// Decodes a JSON request body into the wire message `T`.
///
/// # Errors
/// [`crate::fault::Class::Invalid`] with the path of the field.
pub fn decode<T: prost::Message + prost::Name + Default>(json: &[u8]) -> Result<T, Fault> {
    let _ = json;
    todo!()
}

/// Encodes the wire message `T` as a JSON response: every field present.
///
/// # Errors
/// [`crate::fault::Class::Bug`] when the message is not in the schema.
pub fn encode<T: prost::Message + prost::Name>(message: &T) -> Result<String, Fault> {
    let _ = message;
    todo!()
}
