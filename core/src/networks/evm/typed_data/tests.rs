#![allow(non_snake_case)]

use alloy_dyn_abi::TypedData;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::fault::Class;

/// Content with the digests that ethers 6.17 gives (`TypedDataEncoder.hash`).
const ETHERS: &str = include_str!("ethers.json");

fn mail() -> Value {
    json!({
        "types": {
            "Person": [{"name": "name", "type": "string"}, {"name": "wallet", "type": "address"}],
            "Mail": [
                {"name": "from", "type": "Person"},
                {"name": "to", "type": "Person[]"},
                {"name": "sum", "type": "int16"},
                {"name": "id", "type": "bytes4"},
                {"name": "two", "type": "uint8[2]"},
                {"name": "ok", "type": "bool"},
                {"name": "blob", "type": "bytes"}
            ]
        },
        "primaryType": "Mail",
        "domain": {"name": "Ether Mail", "chainId": 1},
        "message": {
            "from": {"name": "Cow", "wallet": "0xCD2a3d9F938E13CD947Ec05AbC7FE734Df8DD826"},
            "to": [{"name": "Bob", "wallet": "0xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"}],
            "sum": -5,
            "id": "0x01020304",
            "two": [1, 2],
            "ok": true,
            "blob": "0x00ff"
        }
    })
}

fn hash(content: &Value, chain_id: Option<u64>) -> Result<B256, Fault> {
    signing_hash(content.to_string().as_bytes(), chain_id)
}

/// Sets the value at a JSON pointer; `None` removes it.
fn with(pointer: &str, value: Option<Value>) -> Value {
    let mut content = mail();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match (content.pointer_mut(parent).unwrap(), value) {
        (Value::Object(object), Some(value)) => drop(object.insert(key.into(), value)),
        (Value::Object(object), None) => drop(object.remove(key).unwrap()),
        (Value::Array(list), Some(value)) => list[key.parse::<usize>().unwrap()] = value,
        _ => panic!("{pointer}"),
    }
    content
}

#[track_caller]
fn refused(content: &Value, sentence: &str) {
    let fault = hash(content, Some(1)).unwrap_err();
    assert_eq!(fault.class(), &Class::Invalid);
    let path = fault.message().strip_prefix("content").unwrap();
    assert!(path[1..].trim_start().starts_with(sentence), "{fault}");
}

#[test]
fn typed_data__should_hash_as_ethers_does() {
    let cases: Vec<Value> = serde_json::from_str(ETHERS).unwrap();
    assert_eq!(cases.len(), 13);
    for case in cases {
        let digest = hash(&case["content"], None)
            .unwrap_or_else(|fault| panic!("{}: {fault}", case["name"]));
        assert_eq!(
            json!(digest.to_string()),
            case["digest"],
            "{}",
            case["name"]
        );
    }
}

#[test]
fn typed_data__should_hash_as_alloy_does() {
    let cases: Vec<Value> = serde_json::from_str(ETHERS).unwrap();
    for content in cases.iter().map(|case| &case["content"]).chain([&mail()]) {
        let typed: TypedData = serde_json::from_value(content.clone()).unwrap();
        assert_eq!(
            hash(content, None).unwrap(),
            typed.eip712_signing_hash().unwrap()
        );
    }
}

#[test]
fn typed_data__should_allow_a_type_that_holds_itself() {
    let content = json!({
        "types": {"Node": [{"name": "v", "type": "uint8"}, {"name": "kids", "type": "Node[]"}]},
        "primaryType": "Node",
        "domain": {},
        "message": {"v": 1, "kids": [{"v": 2, "kids": []}]}
    });
    // By hand, from the definitions of EIP-712.
    let type_hash = keccak256("Node(uint8 v,Node[] kids)");
    let node = |v: u8, kids: B256| keccak256([type_hash, B256::with_last_byte(v), kids].concat());
    let leaf = node(2, keccak256([]));
    let separator = keccak256(keccak256("EIP712Domain()"));
    let digest = keccak256([&[0x19, 0x01], &separator[..], &node(1, keccak256(leaf))[..]].concat());
    assert_eq!(hash(&content, None).unwrap(), digest);
}

#[test]
fn typed_data__should_refuse_values_that_are_not_of_their_type() {
    for (pointer, value, sentence) in [
        (
            "/message/sum",
            json!(32768),
            "message.sum: does not fit int16",
        ),
        (
            "/message/sum",
            json!("-32769"),
            "message.sum: does not fit int16",
        ),
        (
            "/message/sum",
            json!("0xffff"),
            "message.sum: does not fit int16",
        ),
        (
            "/message/sum",
            json!(1.0),
            "message.sum: must be a whole number",
        ),
        (
            "/message/sum",
            json!("1e3"),
            "message.sum: must be a whole number",
        ),
        (
            "/message/sum",
            json!(""),
            "message.sum: must be a whole number",
        ),
        (
            "/message/sum",
            json!(" 1"),
            "message.sum: must be a whole number",
        ),
        (
            "/message/sum",
            json!("+1"),
            "message.sum: must be a whole number",
        ),
        (
            "/message/sum",
            json!("-0"),
            "message.sum: must be a whole number",
        ),
        (
            "/message/sum",
            json!("007"),
            "message.sum: must be a whole number",
        ),
        (
            "/message/sum",
            json!("0x"),
            "message.sum: must be a whole number",
        ),
        (
            "/message/sum",
            json!("0x_1"),
            "message.sum: must be a whole number",
        ),
        (
            "/message/sum",
            json!("1_0"),
            "message.sum: must be a whole number",
        ),
        (
            "/message/sum",
            json!(true),
            "message.sum: must be a whole number",
        ),
        (
            "/message/sum",
            json!(null),
            "message.sum: must be a whole number",
        ),
        (
            "/message/sum",
            json!(9007199254740992_u64),
            "message.sum: is too large for a JSON number",
        ),
        (
            "/message/two",
            json!([1]),
            "message.two: does not have the length of its type",
        ),
        (
            "/message/two",
            json!([1, 2, 3]),
            "message.two: does not have the length of its type",
        ),
        ("/message/two", json!("1,2"), "message.two: must be a list"),
        (
            "/message/two/1",
            json!(256),
            "message.two[1]: does not fit uint8",
        ),
        (
            "/message/two/1",
            json!(-1),
            "message.two[1]: does not fit uint8",
        ),
        (
            "/message/ok",
            json!("true"),
            "message.ok: must be true or false",
        ),
        ("/message/ok", json!(1), "message.ok: must be true or false"),
        (
            "/message/id",
            json!("0x010203"),
            "message.id: must be 4 bytes",
        ),
        (
            "/message/id",
            json!("0x0102030400"),
            "message.id: must be 4 bytes",
        ),
        (
            "/message/id",
            json!("01020304"),
            "message.id: must be bytes",
        ),
        ("/message/blob", json!("0x1"), "message.blob: must be bytes"),
        (
            "/message/blob",
            json!([1, 2]),
            "message.blob: must be bytes",
        ),
        (
            "/message/blob",
            json!("text"),
            "message.blob: must be bytes",
        ),
        (
            "/message/from",
            json!("Cow"),
            "message.from: must be an object",
        ),
        (
            "/message/from",
            json!(null),
            "message.from: must be an object",
        ),
        (
            "/message/from/name",
            json!(7),
            "message.from.name: must be a string",
        ),
        (
            "/message/to/0/wallet",
            json!("0x12"),
            "message.to[0].wallet: must be 0x and 40",
        ),
        (
            "/message/from/wallet",
            json!("0xcD2a3d9F938E13CD947Ec05AbC7FE734Df8DD826"),
            "message.from.wallet: has an invalid checksum (EIP-55): check for a typo",
        ),
        ("/message", json!([]), "message: must be an object"),
        ("/domain", json!("x"), "domain: must be an object"),
        ("/primaryType", json!(1), "primaryType: must be a string"),
    ] {
        refused(&with(pointer, Some(value)), sentence);
    }
}

#[test]
fn typed_data__should_refuse_fields_that_are_missing_or_unknown() {
    refused(
        &with("/message/sum", None),
        "message.sum: is required by the type",
    );
    refused(
        &with("/message/from/name", None),
        "message.from.name: is required",
    );
    refused(
        &with("/domain/more", Some(json!(1))),
        "domain.more: is not a field",
    );
    for key in ["types", "primaryType", "domain", "message"] {
        refused(
            &with(&format!("/{key}"), None),
            &format!("{key}: is required"),
        );
    }
}

#[test]
fn typed_data__should_neither_sign_nor_show_what_the_types_lack() {
    let content = |content: &Value| content.to_string().into_bytes();
    let good = content(&mail());
    let digest = signing_hash(&good, None).unwrap();
    assert_eq!(without_unsigned(&good).unwrap(), None);
    for pointer in [
        "/message/more",
        "/message/from/more",
        "/message/to/0/more",
        "/more",
    ] {
        let more = content(&with(pointer, Some(json!({"amount": "1"}))));
        assert_eq!(signing_hash(&more, None).unwrap(), digest, "{pointer}");
        let shown = without_unsigned(&more).unwrap().unwrap();
        assert_eq!(
            serde_json::from_slice::<Value>(&shown).unwrap(),
            serde_json::from_slice::<Value>(&good).unwrap(),
            "{pointer}"
        );
    }
}

#[test]
fn typed_data__should_refuse_types_that_libraries_read_differently() {
    let field = |kind: &str| json!([{"name": "x", "type": kind}]);
    for kind in [
        "uint",
        "int",
        "uint7",
        "uint264",
        "uint08",
        "bytes0",
        "bytes33",
        "byte",
        "function",
        "fixed128x18",
        "uint8[0]",
        "uint8[",
        "uint8[]x",
        "uint8[-1]",
        "",
        "a b",
        "Person ",
        "(uint8)",
        "Person)Evil(uint8 x",
        "Foo.Bar",
        "\u{e9}",
    ] {
        refused(
            &with("/types/Other", Some(field(kind))),
            "types.Other[0]: has a type",
        );
    }
    for name in [
        "uint",
        "bool",
        "uint256",
        "string",
        "bytes32",
        "",
        "A(uint8 x)B",
        "A,B",
        "fixed8x1",
    ] {
        refused(
            &with(&format!("/types/{name}"), Some(field("uint8"))),
            "types: has a name",
        );
    }
    for name in ["", "a b", "x,uint8 y", "1st"] {
        let fields = json!([{"name": name, "type": "uint8"}]);
        refused(
            &with("/types/Other", Some(fields)),
            "types.Other[0]: has a name",
        );
    }
    let twice = json!([{"name": "x", "type": "uint8"}, {"name": "x", "type": "uint8"}]);
    refused(
        &with("/types/Other", Some(twice)),
        "types.Other[1]: has the same name as another field",
    );
    let more = json!([{"name": "x", "type": "uint8", "indexed": true}]);
    refused(
        &with("/types/Other", Some(more)),
        "types.Other[0]: must be an object",
    );
    refused(
        &with("/types/Other", Some(json!({}))),
        "types.Other: must be a list",
    );
    refused(
        &with("/types/Person", None),
        "types.Mail: refers to a missing type, or to itself",
    );
    let deep = format!("uint8{}", "[]".repeat(33));
    refused(
        &with("/types/Other", Some(field(&deep))),
        "types.Other[0]: has a type of too many",
    );
}

#[test]
fn typed_data__should_refuse_types_in_a_circle() {
    let content = json!({
        "types": {
            "A": [{"name": "b", "type": "B[]"}],
            "B": [{"name": "a", "type": "A[]"}]
        },
        "primaryType": "A",
        "domain": {},
        "message": {"b": []}
    });
    refused(&content, "types.A: refers to");
}

#[test]
fn typed_data__should_refuse_a_domain_that_differs_from_its_type() {
    let declared = |fields: &[(&str, &str)]| {
        let fields = fields
            .iter()
            .map(|(name, kind)| json!({"name": name, "type": kind}));
        with("/types/EIP712Domain", Some(fields.collect()))
    };
    let same = declared(&[("name", "string"), ("chainId", "uint256")]);
    assert_eq!(
        hash(&same, Some(1)).unwrap(),
        hash(&mail(), Some(1)).unwrap()
    );
    for fields in [
        &[("name", "string")][..],
        &[("chainId", "uint256"), ("name", "string")],
        &[("name", "string"), ("chainId", "uint64")],
        &[
            ("name", "string"),
            ("chainId", "uint256"),
            ("salt", "bytes32"),
        ],
        &[],
    ] {
        refused(
            &declared(fields),
            "types.EIP712Domain: must declare exactly",
        );
    }
    refused(
        &with("/domain/name", Some(json!(null))),
        "domain.name: must be a string",
    );
    refused(
        &with("/primaryType", Some(json!("EIP712Domain"))),
        "primaryType: must be one of",
    );
    refused(
        &with("/primaryType", Some(json!("Nobody"))),
        "primaryType: must be one of",
    );
    refused(
        &with("/primaryType", Some(json!("uint256"))),
        "primaryType: must be one of",
    );
}

#[test]
fn typed_data__should_be_for_the_chain_of_the_request() {
    assert!(hash(&mail(), None).is_ok());
    assert!(hash(&with("/domain/chainId", Some(json!("0x1"))), Some(1)).is_ok());
    assert!(hash(&with("/domain/chainId", None), Some(137)).is_ok());
    let fault = hash(&mail(), Some(137)).unwrap_err();
    assert_eq!(
        fault.message(),
        "content.domain.chainId: is not the chainId of the request, 137"
    );
}

#[test]
fn typed_data__should_refuse_a_key_that_is_given_twice() {
    let once = mail().to_string();
    for (key, twice) in [
        (r#""ok":true"#, r#""ok":false,"ok":true"#),
        (
            r#""primaryType":"Mail""#,
            r#""primaryType":"Person","primaryType":"Mail""#,
        ),
    ] {
        assert!(once.contains(key));
        let fault = signing_hash(once.replace(key, twice).as_bytes(), None).unwrap_err();
        assert_eq!(
            fault.message(),
            "content: contains an object with a duplicate key"
        );
    }
}

#[test]
fn typed_data__should_stay_small() {
    let mut types = mail()["types"].as_object().unwrap().clone();
    for index in 0..256 {
        types.insert(format!("T{index}"), json!([]));
    }
    refused(
        &with("/types", Some(types.into())),
        "types: has too many types",
    );
    let long = "x".repeat(MAX_CONTENT);
    refused(
        &with("/message/from/name", Some(long.into())),
        "is too long",
    );
    // Twenty types that each hold the next one twice are two million values when written out.
    let mut types = Map::new();
    for index in 0..40 {
        let next = format!("T{}[]", index + 1);
        types.insert(
            format!("T{index}"),
            json!([{"name": "a", "type": next}, {"name": "b", "type": next}]),
        );
    }
    types.insert("T40".into(), json!([]));
    let content = json!({
        "types": types, "primaryType": "T0", "domain": {}, "message": {"a": [], "b": []}
    });
    assert!(hash(&content, None).is_ok());
}

#[test]
fn inference__should_see_typed_data_by_its_four_keys() {
    assert!(looks_like(mail().to_string().as_bytes()));
    assert!(looks_like(
        br#" {"types":1,"primaryType":2,"domain":3,"message":4,"x":5} "#
    ));
    assert!(!looks_like(br#"{"types":1,"primaryType":2,"domain":3}"#));
    assert!(!looks_like(
        br#"[{"types":1,"primaryType":2,"domain":3,"message":4}]"#
    ));
    assert!(!looks_like(b"{"));
    assert!(!looks_like(b""));
}

/// Any JSON, biased to the keys that matter.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec![
            "Mail",
            "uint8",
            "uint8[2]",
            "0x01",
            "name",
            "EIP712Domain",
            "-5"
        ])
        .prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        let key = prop::sample::select(vec![
            "types",
            "primaryType",
            "domain",
            "message",
            "name",
            "type",
            "Mail",
            "chainId",
            "x",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..5).prop_map(|entries| entries
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect::<Map<_, _>>()
                .into()),
        ]
    })
}

proptest! {
    #[test]
    fn typed_data__should_never_panic(content in any_json(), bytes: Vec<u8>) {
        let _ = hash(&content, Some(1));
        let _ = (looks_like(&bytes), signing_hash(&bytes, None));
    }

    #[test]
    fn typed_data__should_hash_a_changed_value_as_alloy_does_or_refuse_it(
        place in prop::sample::select(vec![
            "/types/Mail", "/types/Person", "/types/Mail/2/type", "/message/sum", "/message/two",
            "/message/ok", "/message/from", "/message/to", "/message/blob", "/domain/chainId",
            "/domain/name", "/primaryType",
        ]),
        value in any_json(),
    ) {
        let content = with(place, Some(value));
        if let Ok(digest) = hash(&content, None) {
            let typed: TypedData = serde_json::from_value(content).unwrap();
            prop_assert_eq!(digest, typed.eip712_signing_hash().unwrap());
        }
    }
}
