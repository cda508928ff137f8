//! Pieces of JSON Schema.

use serde_json::{Value, json};

/// Base64 of the standard alphabet, padded; each of its texts stands for other bytes.
pub const PADDED: &str =
    "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=|[A-Za-z0-9+/][AQgw]==)?$";
/// Base64 of either alphabet, padded or not.
pub const BASE64: &str = "^(([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=?|[A-Za-z0-9+/][AQgw]={0,2})?|([A-Za-z0-9_-]{4})*([A-Za-z0-9_-]{2}[AEIMQUYcgkosw048]=?|[A-Za-z0-9_-][AQgw]={0,2})?)$";
/// Hex of 16 characters and more, which no base64 may look like; of call data 8 and more.
pub const HEX_BYTES: &str = "^(0[xX][0-9a-fA-F]{14}|[0-9a-fA-F]{16})[0-9a-fA-F]*$";
pub const HEX_CALL_DATA: &str = "^(0[xX][0-9a-fA-F]{6}|[0-9a-fA-F]{8})[0-9a-fA-F]*$";
/// A name or a reference: no control characters, and none that turn the direction of writing.
pub const LABEL: &str =
    "^[^\\u0000-\\u001f\\u007f-\\u009f\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]*$";
/// Notes: the same, but for tabs and ends of lines.
pub const NOTES: &str = "^[^\\u0000-\\u0008\\u000b\\u000c\\u000e-\\u001f\\u007f-\\u009f\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]*$";
/// A UUID, or nothing.
pub const UUID_OR_EMPTY: &str =
    "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12})?$";
/// An OpenSSH line with an Ed25519 key, or nothing.
pub const SSH_KEY_OR_EMPTY: &str = "^((ssh-ed25519 )?[A-Za-z0-9+/]{68}( [^\\r\\n]*)?)?$";

/// A reference to a schema of the document.
pub fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// Also `null`.
pub fn nullable(mut schema: Value) -> Value {
    let nothing = json!({"type": "null"});
    if let Some(options) = schema.get_mut("anyOf").and_then(Value::as_array_mut) {
        options.push(nothing);
        return schema;
    }
    match schema.get_mut("type") {
        Some(Value::Array(types)) => types.push(json!("null")),
        Some(kind) => *kind = json!([kind.clone(), "null"]),
        None => return json!({"anyOf": [schema, nothing]}),
    }
    if let Some(values) = schema.get_mut("enum").and_then(Value::as_array_mut) {
        values.push(Value::Null);
    }
    schema
}

/// The same with a description, where there is one.
pub fn described(mut schema: Value, description: &str) -> Value {
    if let (Some(fields), false) = (schema.as_object_mut(), description.is_empty()) {
        fields.insert("description".to_owned(), json!(description));
    }
    schema
}

/// The same with the fields of `more`.
pub fn with(mut schema: Value, more: Value) -> Value {
    if let (Some(fields), Value::Object(more)) = (schema.as_object_mut(), more) {
        fields.extend(more);
    }
    schema
}

/// A decimal amount of so many digits at most.
pub fn amount(digits: usize) -> String {
    format!("^(0|[1-9][0-9]{{0,{}}})$", digits.saturating_sub(1))
}

/// The same, and more than 0.
pub fn positive(digits: usize) -> String {
    format!("^[1-9][0-9]{{0,{}}}$", digits.saturating_sub(1))
}
