//! The OpenAPI documents, made from the schema: `GET /openapi.json` and `docs/openapi.json`,
//! `GET /openapi-admin.json` and `docs/openapi-admin.json`.

mod examples;
mod operations;
mod rules;
mod schemas;
mod shape;

#[cfg(test)]
mod tests;

use covault_core::{
    fault::Fault,
    schema::service::{self, Audience},
};
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
alphabet, padded or not unless stated otherwise, and refused if they look like hex. Unknown fields, \
fields given twice, and two payload kinds in one request are refused.

**Responses** contain every field; 64-bit integers are strings and bytes padded base64. Amounts are \
whole numbers in the smallest unit of the asset, and times are milliseconds since the Unix epoch, \
unless stated otherwise.

**Request ids**: every response has the header `x-request-id`: the client's own, if it \
is 1 to 128 of `A-Z a-z 0-9 - _ . :`, else a new one. The service's log has the same id.

**Errors** have two more headers: `covault-code`, a stable code, and `covault-field`, the path of the \
field that is wrong, if one is. docs/errors.md lists the codes.";

const ADMIN_DESCRIPTION: &str = "\
Operations for operators: vaults, signer nodes, tokens, the audit log and backups. Every operation is a POST \
with a JSON body; the same operations are served over gRPC. The JSON format is that of the platform API \
(`/openapi.json`).";

/// The document of the platform and sweep APIs.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] when the schema cannot be read.
pub fn document() -> Result<Value, Fault> {
    let (mut paths, schemas) = paths(|audience| audience != Audience::Admin)?;
    for (path, item) in operations::health() {
        paths.insert(path.to_owned(), item);
    }
    let (path, item) = operations::webhook_keys();
    paths.insert(path.to_owned(), item);
    let (path, item) = operations::events();
    paths.insert(path.to_owned(), item);
    let tokens = json!({
        "platformToken": token("A token of the platform API."),
        "sweepToken": token("A token of the sweep product."),
    });
    let mut document = about("Covault platform API", DESCRIPTION, operations::tags());
    if let Some(document) = document.as_object_mut() {
        document.insert("security".to_owned(), json!([{"platformToken": []}]));
        document.insert("paths".to_owned(), Value::Object(paths));
        document.insert("components".to_owned(), components(schemas, &tokens)?);
    }
    Ok(document)
}

/// The document of the admin API.
///
/// # Errors
/// As [`document`].
pub fn admin_document() -> Result<Value, Fault> {
    let (paths, schemas) = paths(|audience| audience == Audience::Admin)?;
    let tokens = json!({"adminToken": token("The admin token.")});
    let tags = operations::admin_tags();
    let mut document = about("Covault admin API", ADMIN_DESCRIPTION, tags);
    if let Some(document) = document.as_object_mut() {
        document.insert("security".to_owned(), json!([{"adminToken": []}]));
        document.insert("paths".to_owned(), Value::Object(paths));
        document.insert("components".to_owned(), components(schemas, &tokens)?);
    }
    Ok(document)
}

fn paths(is_in: impl Fn(Audience) -> bool) -> Result<(Map<String, Value>, Schemas), Fault> {
    let (mut schemas, mut paths) = (Schemas::default(), Map::new());
    for operation in service::operations()? {
        if is_in(operation.audience()) {
            let item = operations::item(&operation, &mut schemas)?;
            paths.insert(operation.http_path().to_owned(), item);
        }
    }
    Ok((paths, schemas))
}

fn about(title: &str, description: &str, tags: Value) -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": VERSION,
            "description": description,
            "license": {"name": "Apache-2.0 OR MIT", "identifier": "Apache-2.0 OR MIT"},
        },
        "servers": [{"url": "/", "description": "The service that gave this document"}],
        "tags": tags,
    })
}

fn components(schemas: Schemas, tokens: &Value) -> Result<Value, Fault> {
    Ok(json!({
        "schemas": schemas.finish()?,
        "headers": operations::headers(),
        "securitySchemes": tokens,
    }))
}

fn token(description: &str) -> Value {
    json!({"type": "apiKey", "in": "header", "name": "x-mtoken", "description": description})
}
