#![allow(non_snake_case)]

use std::collections::BTreeSet;

use covault_core::{
    networks::{Payload, PayloadKind},
    schema::{json as mapping, wire},
};

use super::*;

fn post<'a>(document: &'a Value, path: &str) -> &'a Value {
    &document["paths"][path]["post"]
}

/// Every string at a key `$ref`, wherever it stands.
fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str() {
                    Some(target) if key == "$ref" => {
                        found.insert(target.to_owned());
                    }
                    _ => references(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[test]
fn committed_document__should_be_that_of_the_schema() {
    for (file, made) in [
        ("docs/openapi.json", document()),
        ("docs/openapi-admin.json", admin_document()),
    ] {
        let path = format!("{}/{file}", env!("CARGO_MANIFEST_DIR"));
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        let same = serde_json::from_str::<Value>(&committed).ok() == Some(made.expect("document"));
        assert!(
            same,
            "{file} is not that of the schema: run `just openapi` and look at the difference"
        );
    }
}

#[test]
fn documents__should_have_every_operation_and_resolve_every_reference() {
    let (platform, admin) = (
        document().expect("document"),
        admin_document().expect("document"),
    );
    let operations = service::operations().expect("operations");
    for operation in &operations {
        let of_admin = operation.audience() == Audience::Admin;
        let document = if of_admin { &admin } else { &platform };
        let post = post(document, operation.http_path());
        assert_eq!(post["operationId"], operation.name());
        assert_ne!(post["description"], "", "{}", operation.name());
    }
    let paths = |document: &Value| document["paths"].as_object().expect("paths").len();
    let all = paths(&platform) + paths(&admin);
    // And the events and the keys of webhooks, which no operation of the schema is.
    assert_eq!(all, operations.len() + operations::health().len() + 2);
    resolves_every_reference(&platform, 100);
    resolves_every_reference(&admin, 30);
}

fn resolves_every_reference(document: &Value, at_least: usize) {
    assert_eq!(document["info"]["version"], "0.0.1");
    let mut found = BTreeSet::new();
    references(document, &mut found);
    assert!(found.len() > at_least, "{}", found.len());
    let mut used = BTreeSet::new();
    for reference in &found {
        let pointer = reference.strip_prefix('#').expect("of this document");
        assert!(document.pointer(pointer).is_some(), "{reference}");
        used.extend(
            reference
                .strip_prefix("#/components/schemas/")
                .map(ToOwned::to_owned),
        );
    }
    let made = document["components"]["schemas"]
        .as_object()
        .expect("schemas");
    let unused: Vec<_> = made.keys().filter(|name| !used.contains(*name)).collect();
    assert!(unused.is_empty(), "{unused:?}");
}

#[test]
fn links__should_lead_from_a_field_of_a_response_to_a_field_of_a_request() {
    let all = service::operations().unwrap();
    let mut count = 0;
    for operation in &all {
        for link in operation.leads_to() {
            let next = all.iter().find(|other| other.name() == link.operation);
            let next = next.unwrap_or_else(|| panic!("{link:?}: no such operation"));
            let to = next.request().get_field_by_json_name(&link.field);
            assert!(to.is_some(), "{link:?}");
            let mut path = link.from.strip_prefix('/').unwrap().split('/');
            let last = path.next_back().unwrap();
            let message = path.fold(operation.response(), |message, name| {
                let field = message.get_field_by_json_name(name).unwrap();
                field.kind().as_message().unwrap().clone()
            });
            assert!(message.get_field_by_json_name(last).is_some(), "{link:?}");
            count += 1;
        }
    }
    assert_eq!(count, 8);
}

#[test]
fn documents__should_put_every_operation_into_a_group_that_they_describe() {
    for document in [
        document().expect("document"),
        admin_document().expect("document"),
    ] {
        let tags = document["tags"].as_array().expect("groups");
        for (path, item) in document["paths"].as_object().expect("paths") {
            let operation = item.get("post").or(item.get("get"));
            let group = &operation.expect("an operation")["tags"][0];
            let known = tags.iter().any(|tag| tag["name"] == *group);
            assert!(
                known,
                "{path}: {group} is not described in src/openapi/operations.rs"
            );
        }
    }
}

#[test]
fn example__should_be_the_least_that_is_accepted_where_none_is_written() {
    let operations = service::operations().expect("operations");
    let (mut built, mut written) = (0, 0);
    for operation in &operations {
        match examples::least(&operation.request()) {
            Ok(least) => {
                built += 1;
                let decoded = operation.request_of_json(least.to_string().as_bytes());
                assert!(decoded.is_ok(), "{}: {decoded:?}", operation.name());
            }
            // An address, or one of several: nothing is invented.
            Err(_) => written += 1,
        }
    }
    assert!(built > 20 && written > 3, "{built} {written}");
    let of = |name: &str| {
        let operation = operations.iter().find(|it| it.name() == name);
        let operation = operation.expect("an operation");
        // What a bug is, its message does not say.
        examples::least(&operation.request()).map_err(|fault| format!("{fault:?}"))
    };
    let uuid = "0b9e1e0a-0a52-4a6e-9f2b-7c1de9f2a111";
    assert_eq!(of("listNodes"), Ok(json!({})));
    assert_eq!(of("rejectSigningRequest"), Ok(json!({"uuid": uuid})));
    let wallet = json!({"vaultUuid": uuid, "networkType": "NETWORK_TYPE_EVM"});
    assert_eq!(of("createWallet"), Ok(wallet));
    let unknown = of("addWatchAddress").expect_err("a TRON address");
    assert!(
        unknown.contains("AddWatchAddressRequest.address"),
        "{unknown}"
    );
}

#[test]
fn documents__should_describe_every_field() {
    // Their fields are the payload kinds, which are described themselves.
    let kinds = [
        "CreateSigningRequestRequest",
        "SigningRequest",
        "BatchPayment",
        "CreateBatchPaymentRequest",
    ];
    for document in [document(), admin_document()] {
        let document = document.expect("document");
        let schemas = document["components"]["schemas"].as_object();
        for (name, schema) in schemas.expect("schemas") {
            if kinds.contains(&name.as_str())
                || name.ends_with("Failure")
                || name.ends_with("Error")
            {
                continue;
            }
            for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
                assert!(schema["description"].is_string(), "{name}.{field}");
            }
        }
    }
}

#[test]
fn document__should_say_which_operations_take_a_key() {
    let document = document().expect("document");
    let mut with_key = Vec::new();
    for operation in service::operations().expect("operations") {
        let post = post(&document, operation.http_path());
        let named = &post["parameters"][0]["name"];
        let is_refused = post["responses"]["422"].is_object();
        assert_eq!(
            named == "idempotency-key",
            is_refused,
            "{}",
            operation.name()
        );
        if is_refused {
            with_key.push(operation.name().to_owned());
        }
    }
    let operations = service::operations().expect("operations");
    let taking = operations
        .iter()
        .filter(|it| it.takes_idempotency_key() && it.audience() != Audience::Admin);
    let taking: Vec<_> = taking.map(service::OperationDescriptor::name).collect();
    assert_eq!(with_key, taking);
    // Contract sections 5 and 12, and platform-api.md section 4.
    for of_the_contract in [
        "createSigningRequest",
        "replaceTransaction",
        "createBatchPayment",
        "createWallet",
    ] {
        assert!(taking.contains(&of_the_contract), "{of_the_contract}");
    }
}

#[test]
fn document__should_limit_what_requests_hold() {
    let document = document().expect("document");
    let at = |pointer: &str| {
        document
            .pointer(&format!("/components/schemas/{pointer}"))
            .unwrap_or(&Value::Null)
    };
    for (pointer, expected) in [
        ("CreateWalletRequest/properties/name/maxLength", json!(85)),
        ("CreateWalletRequest/properties/ref/maxLength", json!(500)),
        (
            "CreateWalletRequest/required",
            json!(["vaultUuid", "networkType"]),
        ),
        (
            "EVMBatchSendNativeInput/properties/recipients/maxItems",
            json!(254),
        ),
        (
            "SolanaSendCustomInput/properties/txBase64/maxItems",
            json!(5),
        ),
        (
            "SolanaSendCustomInput/properties/txBase64/minItems",
            json!(1),
        ),
        (
            "StellarSendNativeInput/properties/memo/maxLength",
            json!(28),
        ),
        (
            "CreateDepositWalletRequest/properties/ref/pattern",
            json!("^[A-Za-z0-9_.:@-]{1,128}$"),
        ),
        (
            "EVMSendCustomInput/properties/input/pattern",
            json!(shape::PADDED),
        ),
        (
            "CreateSigningRequestRequest/additionalProperties",
            json!(false),
        ),
    ] {
        let found = at(pointer);
        assert_eq!(*found, expected, "{pointer}");
    }
    let kinds = at("CreateSigningRequestRequest/allOf/0/oneOf")
        .as_array()
        .expect("kinds");
    assert_eq!(kinds.len(), PayloadKind::ALL.len());
}

#[test]
fn examples__should_be_accepted_by_the_decoder() {
    let operations = service::operations().expect("operations");
    let with_examples =
        |operation: &&service::OperationDescriptor| operation.audience() != Audience::Admin;
    for operation in operations.iter().filter(with_examples) {
        for (name, request) in examples::requests(operation).expect("examples") {
            let body = request.to_string();
            let decoded = operation.request_of_json(body.as_bytes());
            assert!(decoded.is_ok(), "{} {name}: {decoded:?}", operation.name());
            if operation.name() == "createSigningRequest" {
                let request: wire::CreateSigningRequestRequest =
                    mapping::decode(body.as_bytes()).expect("decodes");
                let kind = request.r#type.expect("a payload kind");
                Payload::parse(&kind).unwrap_or_else(|fault| panic!("{name}: {fault}"));
            }
        }
    }
    let mut operations = operations.iter();
    let kinds = operations.find(|operation| operation.name() == "createSigningRequest");
    let kinds = examples::requests(kinds.expect("an operation")).expect("examples");
    assert_eq!(
        kinds.len(),
        PayloadKind::ALL.len(),
        "one of every payload kind"
    );
}
