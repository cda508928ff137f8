//! The OpenAPI document, made from the schema: `GET /openapi.json`, `docs/openapi.json`.

mod examples;
mod operations;
mod rules;
mod schemas;
mod shape;

#[cfg(test)]
mod tests;

use covault_core::{fault::Fault, schema::service};
use serde_json::{Map, Value, json};

use self::schemas::Schemas;

/// The version of the interface (not of Covault).
const VERSION: &str = "0.0.1";

const DESCRIPTION: &str = "\
Wallet signing, batch payments, balances, deposit and watch addresses. Every operation is a POST \
with a JSON body; the same operations are served over gRPC.

**Requests** are proto3 JSON. Fields have lowerCamelCase names (the snake_case names of the \
schema are accepted too). A field that is `null` is not set. 64-bit integers are numbers or \
strings of digits; enums are names or numbers; bytes are base64, of the standard or the URL \
alphabet, padded or not where nothing else is said. An unknown field is refused, and so are a \
field that is given twice and two payload kinds in one request.

**Responses** hold every field; 64-bit integers are strings and bytes padded base64. Amounts are \
whole numbers in the smallest unit of the asset and times are milliseconds since the Unix epoch, \
where nothing else is said.

**Request ids**: every answer has the header `x-request-id`: the one of the request, when that \
is 1 to 128 of `A-Z a-z 0-9 - _ . :`, else a new one. The log has the same id.";

/// The document.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] when the schema cannot be read.
pub fn document() -> Result<Value, Fault> {
    let mut schemas = Schemas::default();
    let mut paths = Map::new();
    for operation in service::operations()? {
        let item = operations::item(&operation, &mut schemas)?;
        paths.insert(operation.http_path(), item);
    }
    for (path, item) in operations::health() {
        paths.insert(path.to_owned(), item);
    }
    Ok(json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Covault platform API",
            "version": VERSION,
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0 OR MIT", "identifier": "Apache-2.0 OR MIT"},
        },
        "servers": [{"url": "/", "description": "The service that gave this document"}],
        "tags": operations::tags(),
        "security": [{"platformToken": []}],
        "paths": paths,
        "components": {
            "schemas": schemas.finish()?,
            "headers": operations::headers(),
            "securitySchemes": {
                "platformToken": {
                    "type": "apiKey", "in": "header", "name": "x-mtoken",
                    "description": "A token of the platform API.",
                },
                "sweepToken": {
                    "type": "apiKey", "in": "header", "name": "x-mtoken",
                    "description": "A token of the sweep product.",
                },
            },
        },
    }))
}
