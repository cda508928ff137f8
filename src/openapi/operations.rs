//! Operations: what each takes, and all that it can answer.

use covault_core::{
    fault::Fault,
    schema::{
        describe,
        service::{Audience, OperationDescriptor},
    },
};
use prost_reflect::{FieldDescriptor, Kind};
use serde_json::{Map, Value, json};

use super::{
    examples,
    schemas::{MessageSide, Schemas},
    shape::{described, nullable, with},
};

/// Where events are.
const EVENTS: &str = "/v1/events";

const SIGNING: &str = "Signing requests";
const HEALTH: &str = "Health";

/// The groups of operations of the admin API. Which one an operation is in, its service says, or the operation itself.
pub fn admin_tags() -> Value {
    json!([
        {"name": "Vaults", "description": "Vaults, and the shares of their keys."},
        {"name": "Batch payments", "description": "Payments to many recipients: approve, resume, reject."},
        {"name": "Signer nodes", "description": "Signer nodes."},
        {"name": "Tokens", "description": "API tokens, and the configuration of sweep tokens."},
        {"name": "Users", "description": "Users of the console."},
        {"name": "Service", "description": "How the service is doing."},
        {"name": "Audit log and backups", "description": "The audit log, and backups of the store."},
    ])
}

/// The groups of operations.
pub fn tags() -> Value {
    json!([
        {"name": SIGNING, "description": "Transactions and messages, signed by a vault's keys."},
        {"name": "Wallets", "description": "Wallets, balances and transaction fees."},
        {"name": "Batch payments", "description": "Payments to many recipients, completed by a person (covault batch)."},
        {"name": "Deposit and sweep", "description": "Deposit and watch addresses. Needs a sweep token."},
        {"name": HEALTH, "description": "Health checks. No token needed."},
    ])
}

/// Headers of answers.
pub fn headers() -> Value {
    let text =
        |description: &str| json!({"description": description, "schema": {"type": "string"}});
    let yes = |description: &str| json!({"description": description, "schema": {"type": "string", "enum": ["true"]}});
    json!({
        "x-request-id": {
            "description": "Id of the call; the service's log has it too.",
            "required": true,
            "schema": {"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,128}$"},
        },
        "idempotency-replayed": yes(
            "Present if the idempotency key was used before: this is the first call's response."
        ),
        "idempotency-body-mismatch": yes("Present if the first call had another body."),
        "retry-after": {
            "description": "When to retry, in seconds.",
            "schema": {"type": "string", "pattern": "^[0-9]+$"},
        },
        "allow": text("The allowed method."),
    })
}

/// The path item of an operation.
pub fn item(operation: &OperationDescriptor, schemas: &mut Schemas) -> Result<Value, Fault> {
    let name = operation.name();
    let description = operation.description();
    let summary = description
        .split(['.', ':', ';'])
        .next()
        .unwrap_or_default();
    let takes_key = operation.takes_idempotency_key();
    let success = success(operation, schemas)?;
    let failure = failure(operation, schemas)?;
    let mut responses = Map::new();
    responses.insert("200".to_owned(), done(operation, success, takes_key));
    for (status, description) in STATUSES {
        if *status != "422" || takes_key {
            responses.insert((*status).to_owned(), refused(status, description, &failure));
        }
    }
    let mut body = json!({"schema": schemas.message(&operation.request(), MessageSide::Request)});
    if operation.audience() != Audience::Admin {
        body = with(body, json!({"examples": examples::shown(operation)?}));
    }
    let mut post = json!({
        "operationId": name,
        "tags": [operation.group()],
        "summary": summary,
        "description": description,
        "requestBody": {
            "required": true,
            "content": {"application/json": body},
        },
        "responses": responses,
        "security": [match operation.audience() {
            Audience::Platform => json!({"platformToken": []}),
            Audience::Sweep => json!({"sweepToken": []}),
            Audience::Admin => json!({"adminToken": []}),
        }],
    });
    if let (Some(post), true) = (post.as_object_mut(), takes_key) {
        post.insert("parameters".to_owned(), json!([idempotency_key()]));
    }
    Ok(json!({"post": post}))
}

fn idempotency_key() -> Value {
    json!({
        "name": "idempotency-key",
        "in": "header",
        "required": false,
        "description": "Makes retries safe: a call with a key that this token used for this \
            operation within the last 24 hours does nothing and returns the first call's response. \
            1 to 255 printable ASCII characters, e.g. a UUID v4. A refused call does not use up its key.",
        "schema": {
            "type": "string", "minLength": 1, "maxLength": 255,
            "pattern": "^[!-~]([ -~]*[!-~])?$",
        },
    })
}

const STATUSES: &[(&str, &str)] = &[
    (
        "400",
        "The request is wrong: malformed JSON, a field that cannot be accepted (the message begins \
         with its path), `Invalid uuid`, `Invalid chain id`.",
    ),
    ("401", "The token is missing or unknown."),
    (
        "403",
        "The token may not do this: `IP is not allowed`, a vault that it cannot access, a \
         read-only token, a token of another kind.",
    ),
    ("405", "The method is not POST."),
    ("408", "The body did not arrive in time."),
    (
        "409",
        "It exists already (e.g. a wallet's ref), or its state does not allow this.",
    ),
    ("413", "The body is too large."),
    (
        "415",
        "The content type is not `application/json`, or the body is compressed.",
    ),
    (
        "422",
        "The idempotency key was used with another body, and the service is configured to refuse that.",
    ),
    ("429", "Too many requests: retry later."),
    (
        "500",
        "Internal error. The message contains only the request id.",
    ),
    (
        "503",
        "Signers, store, bus or chain nodes cannot be reached, or the service is overloaded: retry after `retry-after`.",
    ),
];

fn done(operation: &OperationDescriptor, schema: Value, takes_key: bool) -> Value {
    let mut headers = json!({"x-request-id": header("x-request-id")});
    if let (Some(headers), true) = (headers.as_object_mut(), takes_key) {
        for name in ["idempotency-replayed", "idempotency-body-mismatch"] {
            headers.insert(name.to_owned(), header(name));
        }
    }
    let mut response = json!({
        "description": if operation.fails_with_execute_code() {
            "The outcome. `error` is set if the request failed."
        } else {
            "Done."
        },
        "headers": headers,
        "content": {"application/json": {"schema": schema}},
    });
    let links = links(operation);
    if let (Some(response), false) = (response.as_object_mut(), links.is_empty()) {
        response.insert("links".to_owned(), Value::Object(links));
    }
    response
}

fn refused(status: &str, description: &str, schema: &Value) -> Value {
    let mut headers = json!({"x-request-id": header("x-request-id")});
    let more = match status {
        "429" | "503" => Some("retry-after"),
        "405" => Some("allow"),
        _ => None,
    };
    if let (Some(headers), Some(name)) = (headers.as_object_mut(), more) {
        headers.insert(name.to_owned(), header(name));
    }
    json!({
        "description": description,
        "headers": headers,
        "content": {"application/json": {"schema": schema}},
    })
}

fn header(name: &str) -> Value {
    json!({"$ref": format!("#/components/headers/{name}")})
}

/// What can be asked next of what an operation made.
fn links(operation: &OperationDescriptor) -> Map<String, Value> {
    let links = operation.leads_to().iter().map(|link| {
        let body = json!({link.field.as_str(): format!("$response.body#{}", link.from)});
        let link_object = json!({"operationId": link.operation, "requestBody": body});
        (link.operation.clone(), link_object)
    });
    links.collect()
}

/// The schema of the answer with status 200.
fn success(operation: &OperationDescriptor, schemas: &mut Schemas) -> Result<Value, Fault> {
    let response = operation.response();
    if operation.audience() != Audience::Platform {
        return Ok(schemas.message(&response, MessageSide::Response));
    }
    let execute = operation.fails_with_execute_code();
    let error = error(operation, schemas)?;
    let fields = response.fields().map(|field| {
        let schema = match (field.name(), field.kind()) {
            ("error", _) if execute => nullable(error.clone()),
            ("error", _) => json!({"type": "null"}),
            // What succeeded has a result.
            (_, Kind::Message(message)) if !execute && !field.is_list() => {
                schemas.message(&message, MessageSide::Response)
            }
            _ => schemas.shown_field(&field),
        };
        let comment = match field.name() {
            "error" if !execute => "Always null: the call succeeded.".to_owned(),
            _ => describe::comment(&field),
        };
        (field, described(schema, &comment))
    });
    let schema = all_of_them(fields);
    Ok(schemas.add(response.name(), schema))
}

/// The schema of every answer with another status.
fn failure(operation: &OperationDescriptor, schemas: &mut Schemas) -> Result<Value, Fault> {
    if operation.audience() == Audience::Sweep {
        return Ok(schemas.add("SweepError", sweep_error()));
    }
    if operation.audience() == Audience::Admin {
        let failure = json!({
            "type": "object", "required": ["error"], "properties": {"error": admin_error(schemas)?},
        });
        return Ok(schemas.add("Failure", failure));
    }
    let error = error(operation, schemas)?;
    let response = operation.response();
    let fields = response.fields().map(|field| {
        let schema = match (field.name(), field.kind()) {
            ("error", _) => error.clone(),
            _ if field.is_list() => json!({"type": "array", "items": {}, "maxItems": 0}),
            (_, Kind::Message(_)) => json!({"type": "null"}),
            _ => json!({"type": "string", "const": ""}),
        };
        (field, schema)
    });
    let schema = described(
        all_of_them(fields),
        "The call failed: the result is null or empty.",
    );
    let name = response.name().replace("Response", "Failure");
    Ok(schemas.add(&name, schema))
}

fn all_of_them(fields: impl Iterator<Item = (FieldDescriptor, Value)>) -> Value {
    let properties: Map<String, Value> = fields
        .map(|(field, schema)| (field.json_name().to_owned(), schema))
        .collect();
    let required: Vec<&String> = properties.keys().collect();
    json!({"type": "object", "required": required, "properties": properties})
}

/// `error` of an operation: exactly one of the two codes, which the operation decides.
fn error(operation: &OperationDescriptor, schemas: &mut Schemas) -> Result<Value, Fault> {
    let message = describe::message("Error")?;
    let (name, code) = if operation.fails_with_execute_code() {
        (
            "ExecuteSigningRequestsError",
            "execute_signing_requests_error_code",
        )
    } else {
        ("ServiceError", "service_error_code")
    };
    let fields = message
        .fields()
        .filter(|field| ["message", code].contains(&field.name()))
        .map(|field| {
            let schema = schemas.shown_field(&field);
            let comment = describe::comment(&field);
            (field, described(schema, &comment))
        });
    let schema = described(all_of_them(fields), &describe::comment(&message));
    Ok(schemas.add(name, schema))
}

/// `error` of the admin API: that of the platform, with what tells one kind of error from another.
fn admin_error(schemas: &mut Schemas) -> Result<Value, Fault> {
    let message = describe::message("Error")?;
    let (mut properties, mut required) = (Map::new(), vec!["code", "field"]);
    for name in ["message", "service_error_code"] {
        let field = message.get_field_by_name(name);
        let field = field.ok_or_else(|| Fault::bug(format!("an error has no {name}")))?;
        let schema = described(schemas.shown_field(&field), &describe::comment(&field));
        properties.insert(field.json_name().to_owned(), schema);
    }
    required.extend(["message", "serviceErrorCode"]);
    properties.insert(
        "code".to_owned(),
        json!({
            "type": "string",
            "description": "Stable code of the error: docs/errors.md lists the codes.",
        }),
    );
    properties.insert(
        "field".to_owned(),
        json!({
            "type": ["string", "null"],
            "description": "Path of the field that is wrong; null if none is.",
        }),
    );
    let schema = json!({"type": "object", "required": required, "properties": properties});
    let schema = described(schema, &describe::comment(&message));
    Ok(schemas.add("AdminError", schema))
}

fn sweep_error() -> Value {
    json!({
        "type": "object",
        "description": "Why the call failed.",
        "required": ["code", "error", "reason"],
        "properties": {
            "code": {"type": "integer", "description": "The HTTP status."},
            "error": {"type": "string", "description": "Name of the HTTP status."},
            "reason": {"type": "string", "description": "What is wrong."},
        },
    })
}

/// `/v1/events`, which is no operation of the schema: its answer has no end.
pub fn events() -> (&'static str, Value) {
    let failure = json!({
        "type": "object", "required": ["error"],
        "properties": {"error": {"$ref": "#/components/schemas/ServiceError"}},
    });
    let mut responses = Map::new();
    responses.insert(
        "200".to_owned(),
        json!({
            "description": "Endless stream of events: `request` when a signing request has changed, with a JSON object as its data; \
                `reset` when the client must read all requests again. An event without data only advances the position.",
            "headers": {"x-request-id": header("x-request-id")},
            "content": {"text/event-stream": {"schema": {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": change(),
            }}},
        }),
    );
    for (status, description) in STATUSES {
        let description = match *status {
            "400" => "`Last-Event-ID` is not an id from this service.",
            "405" => "The method is not GET.",
            "401" | "403" | "429" | "500" => description,
            "503" => "The store cannot be read, or there are too many listeners: retry.",
            _ => continue,
        };
        responses.insert((*status).to_owned(), refused(status, description, &failure));
    }
    let item = json!({"get": {
        "operationId": "events",
        "tags": [SIGNING],
        "summary": "Server-sent events about signing requests that have changed",
        "description": "Server-sent events about the signing requests of all vaults that the token can access: which one has \
            changed, and its new status. Send the id of the last event received as `Last-Event-ID` to get all changes \
            since then, up to 24 hours back. A change may be sent twice.",
        "parameters": [{
            "name": "last-event-id",
            "in": "header",
            "required": false,
            "description": "Id of the last event received: the stream continues after it.",
            "schema": {"type": "string", "pattern": "^[0-9]+-[0-9a-f]{16}-[0-9]+$"},
        }],
        "responses": responses,
        "security": [{"platformToken": []}],
    }});
    (EVENTS, item)
}

/// The data of an event about a request.
fn change() -> Value {
    let uuid = json!({"type": "string", "format": "uuid"});
    let count =
        |description: &str| json!({"type": "integer", "minimum": 0, "description": description});
    let properties = json!({
        "uuid": with(uuid.clone(), json!({"description": "UUID of the signing request."})),
        "vaultUuid": with(uuid, json!({"description": "UUID of its vault."})),
        "kind": {"type": "string", "description": "Payload kind, e.g. evmSendNative."},
        "status": {"type": "string", "enum": ["STATUS_PENDING", "STATUS_SUCCEEDED", "STATUS_FAILED"]},
        "pendingOperation": {
            "type": "string", "enum": ["", "approve"],
            "description": "What the request waits for people to do.",
        },
        "requiredApprovalCount": count("Approvals needed, as far as known."),
        "remainingApprovalCount": count("Approvals still missing; 0 if the request does not wait for people."),
        "timestamp": {
            "type": "string", "pattern": "^[0-9]+$",
            "description": "Time of the change, in milliseconds since the Unix epoch.",
        },
    });
    let required: Vec<_> = properties
        .as_object()
        .into_iter()
        .flat_map(Map::keys)
        .collect();
    json!({"type": "object", "required": required, "properties": properties})
}

/// `/v1/webhooks/keys`.
pub fn webhook_keys() -> (&'static str, Value) {
    let text = || json!({"type": "string"});
    let names = ["kty", "crv", "alg", "use", "kid", "x", "ssh"];
    let fields: Map<String, Value> = names
        .iter()
        .map(|name| ((*name).to_owned(), text()))
        .collect();
    let key = json!({"type": "object", "required": names, "properties": fields});
    let set = json!({
        "type": "object",
        "required": ["keys"],
        "properties": {"keys": {"type": "array", "items": key}},
    });
    let item = json!({"get": {
        "operationId": "webhookKeys",
        "tags": ["Deposit and sweep"],
        "summary": "Public keys that webhooks are signed with",
        "description": "A JWK set (RFC 8037) of the Ed25519 keys that sign webhooks about deposits (`Signature`, and `v1a` in \
                        `webhook-signature`), each with its OpenSSH line (`ssh`). While keys are changed there are two. Needs \
                        no token.",
        "responses": {"200": {
            "description": "The keys.",
            "headers": {"x-request-id": header("x-request-id")},
            "content": {"application/json": {"schema": set}},
        }},
        "security": [],
    }});
    ("/v1/webhooks/keys", item)
}

/// `/livez` and `/readyz`.
pub fn health() -> [(&'static str, Value); 2] {
    let answer = |description: &str, field: &str, is: bool| {
        let mut properties = json!({field: {"type": "boolean", "const": is}});
        let mut required = vec![field];
        if let (Some(properties), false) = (properties.as_object_mut(), is) {
            properties.insert("reason".to_owned(), json!({"type": "string"}));
            required.push("reason");
        }
        json!({
            "description": description,
            "headers": {"x-request-id": header("x-request-id")},
            "content": {"application/json": {"schema": {
                "type": "object", "required": required, "properties": properties,
            }}},
        })
    };
    let item = |name: &str, summary: &str, responses: Value| {
        json!({"get": {
            "operationId": name,
            "tags": [HEALTH],
            "summary": summary,
            "responses": responses,
            "security": [],
        }})
    };
    let live = json!({"200": answer("The process is running.", "live", true)});
    let ready = json!({
        "200": answer("The store is writable and the bus is reachable.", "ready", true),
        "503": answer("The service cannot work now.", "ready", false),
    });
    [
        ("/livez", item("livez", "Says that the process runs", live)),
        (
            "/readyz",
            item("readyz", "Says whether the service can work", ready),
        ),
    ]
}
