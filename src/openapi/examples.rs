//! Examples of requests: by operation, then by name. Those of signing requests are the first of
//! each kind in tests/vectors.

use covault_core::fault::Fault;
use serde_json::{Map, Value, json};

const EXAMPLES: &str = include_str!("examples.json");

/// The requests of an operation, by name.
pub fn requests(operation: &str) -> Result<Map<String, Value>, Fault> {
    let examples: Value = serde_json::from_str(EXAMPLES).map_err(Fault::bug)?;
    examples
        .get(operation)
        .and_then(Value::as_object)
        .filter(|examples| !examples.is_empty())
        .cloned()
        .ok_or_else(|| Fault::bug(format!("{operation} has no example")))
}

/// The same as the document has them.
pub fn shown(operation: &str) -> Result<Map<String, Value>, Fault> {
    let requests = requests(operation)?.into_iter();
    Ok(requests
        .map(|(name, value)| (name, json!({"value": value})))
        .collect())
}
