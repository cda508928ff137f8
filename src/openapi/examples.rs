//! Examples of requests. Those of signing requests are the first of each kind in tests/vectors; others that say
//! more than what is required stand beside them, by operation and name.

use covault_core::{
    fault::Fault,
    schema::{describe, service::OperationDescriptor},
};
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value, json};

use super::rules;

const EXAMPLES: &str = include_str!("examples.json");

/// The requests of an operation, by name: those that are written down, or the least that it takes.
pub fn requests(operation: &OperationDescriptor) -> Result<Map<String, Value>, Fault> {
    let examples: Value = serde_json::from_str(EXAMPLES).map_err(Fault::bug)?;
    let written = examples.get(operation.name()).and_then(Value::as_object);
    match written.filter(|examples| !examples.is_empty()) {
        Some(written) => Ok(written.clone()),
        None => Ok(Map::from_iter([(
            "least".to_owned(),
            least(&operation.request())?,
        )])),
    }
}

/// The same as the document has them.
pub fn shown(operation: &OperationDescriptor) -> Result<Map<String, Value>, Fault> {
    let requests = requests(operation)?.into_iter();
    Ok(requests
        .map(|(name, value)| (name, json!({"value": value})))
        .collect())
}

/// A message with nothing in it but what is required.
pub(super) fn least(message: &MessageDescriptor) -> Result<Value, Fault> {
    let name = describe::name_in_package(message.full_name());
    if message.oneofs().next().is_some() || !rules::across(name).is_empty() {
        return Err(unknown(name));
    }
    let mut example = Map::new();
    for field in message.fields() {
        if rules::rule(name, field.name()).required || describe::is_required(&field)? {
            example.insert(field.json_name().to_owned(), value(name, &field)?);
        }
    }
    Ok(Value::Object(example))
}

/// A value that a field accepts.
fn value(message: &str, field: &FieldDescriptor) -> Result<Value, Fault> {
    let limits = rules::rule(message, field.name()).limits;
    let limit = |name: &str| limits.as_ref().and_then(|limits| limits.get(name));
    let of_enum = limit("enum").and_then(|values| values.get(0)).cloned();
    let smallest = |least: i64| limit("minimum").and_then(Value::as_i64).unwrap_or(least);
    let item = match (field.kind(), of_enum) {
        (_, Some(value)) => Some(value),
        (Kind::String, _) if limit("format") == Some(&json!("uuid")) => {
            Some(json!("0b9e1e0a-0a52-4a6e-9f2b-7c1de9f2a111"))
        }
        // No example of a pattern is known, nor of a list whose items have a form of their own.
        (Kind::String | Kind::Bytes, _) if limit("pattern").or(limit("items")).is_some() => None,
        (Kind::String, _) => Some(json!("text")),
        (Kind::Bytes, _) => Some(json!("AAAA")),
        (Kind::Bool, _) => Some(json!(true)),
        (Kind::Enum(names), _) => names.values().nth(1).map(|value| json!(value.name())),
        (Kind::Message(message), _) => match describe::wrapped(&message) {
            Some(_) => None,
            None => Some(least(&message)?),
        },
        (Kind::Double | Kind::Float, _) => None,
        (Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 | Kind::Uint64 | Kind::Fixed64, _) => {
            Some(json!(smallest(1).to_string()))
        }
        (Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 | Kind::Uint32 | Kind::Fixed32, _) => {
            Some(json!(smallest(1)))
        }
    };
    let item = item.ok_or_else(|| unknown(&format!("{message}.{}", field.json_name())))?;
    Ok(if field.is_list() { json!([item]) } else { item })
}

fn unknown(what: &str) -> Fault {
    Fault::bug(format!(
        "{what} has a form of its own: write an example of the operation into src/openapi/examples.json"
    ))
}
