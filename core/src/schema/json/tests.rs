#![allow(non_snake_case)]

use proptest::prelude::*;
use prost_reflect::{Kind, MessageDescriptor, Value};
use serde_json::json;

use super::*;
use crate::schema::{service, wire};

type Create = wire::CreateSigningRequestRequest;
type KindOf = wire::create_signing_request_request::Type;

fn refused<T: prost::Message + prost::Name + Default + std::fmt::Debug>(json: &str) -> String {
    let fault = decode::<T>(json.as_bytes()).expect_err(json);
    assert_eq!(*fault.class(), Class::Invalid, "{json}: {fault:?}");
    fault.message().to_owned()
}

fn native(json: &str) -> wire::EvmSendNative {
    decode::<wire::EvmSendNative>(json.as_bytes()).expect(json)
}

fn shown<T: prost::Message + prost::Name>(message: &T) -> serde_json::Value {
    serde_json::from_str(&encode(message).expect("encodes")).expect("is JSON")
}

#[test]
fn decode__should_take_both_name_forms_and_bare_wrappers() {
    let json = r#"{"evm_send_native":{"chain_id":"1","from":"0xa","to":"0xb","value":"5",
        "gasFee":{"maxFee":"7","max_priority_fee":null},"nonce":0},
        "vaultUuid":"v","broadcast_tx":false,"notes":null}"#;
    let request: Create = decode(json.as_bytes()).expect("decodes");
    assert_eq!(request.vault_uuid.as_deref(), Some("v"));
    assert_eq!(request.broadcast_tx, Some(false));
    assert_eq!(request.notes, None);
    let Some(KindOf::EvmSendNative(payload)) = request.r#type else {
        panic!("{request:?}")
    };
    assert_eq!((payload.chain_id, payload.nonce), (1, Some(0)));
    let gas = payload.gas_fee.expect("gas");
    assert_eq!(
        (gas.max_fee.as_deref(), gas.max_priority_fee),
        (Some("7"), None)
    );
}

#[test]
fn decode__should_take_64_bit_integers_as_number_or_string() {
    for text in ["5", "\"5\"", "5.0", "0.5e1"] {
        assert_eq!(
            native(&format!("{{\"chainId\":{text}}}")).chain_id,
            5,
            "{text}"
        );
    }
    assert_eq!(
        native(r#"{"chainId":"9223372036854775807"}"#).chain_id,
        i64::MAX as u64
    );
    assert_eq!(native(r#"{"nonce":"-3"}"#).nonce, Some(-3));
    for text in [
        "-1",
        "\"-1\"",
        "1.5",
        "\"1.5\"",
        "\"abc\"",
        "\"\"",
        "\" 1\"",
        "\"+1\"",
        "\"0x1\"",
        "\"01\"",
        "\"1e3\"",
        "\"\u{661}\"",
        "true",
        "[1]",
        "{}",
        "9223372036854775808",
        "\"9223372036854775808\"",
        "1e18",
        "1e300",
        "\"99999999999999999999999999999999999999999999999999\"",
    ] {
        let problem = refused::<wire::EvmSendNative>(&format!("{{\"chainId\":{text}}}"));
        assert!(problem.starts_with("chainId: "), "{text}: {problem}");
    }
    assert!(
        refused::<wire::EvmSendNative>(r#"{"nonce":"9223372036854775808"}"#).starts_with("nonce: ")
    );
    assert!(refused::<wire::VaultCreation>(r#"{"threshold":4294967296}"#).contains("out of range"));
}

#[test]
fn decode__should_never_make_another_number_of_one_with_fraction_or_exponent() {
    for (text, expected) in [
        ("1125899906842623.0", 1_125_899_906_842_623),
        ("112589990684262.3e1", 1_125_899_906_842_623),
        ("1e15", 1_000_000_000_000_000),
        ("-0", 0),
        ("0.0", 0),
    ] {
        let json = format!("{{\"chainId\":{text}}}");
        assert_eq!(native(&json).chain_id, expected, "{text}");
    }
    // The parser makes 9007199254740990 of the first, and no double is like the second.
    for text in [
        "9007199254740991.0",
        "9007199254740993.0",
        "9007199254740992.9",
        "900719925474099.1e1",
        "9007199254740993e0",
    ] {
        let problem = refused::<wire::EvmSendNative>(&format!("{{\"chainId\":{text}}}"));
        assert!(
            problem.contains("write it as a string"),
            "{text}: {problem}"
        );
    }
}

#[test]
fn decode__should_take_enums_by_name_or_number_and_refuse_unknown_ones() {
    let by = |text: &str| {
        decode::<wire::CreateWalletRequest>(format!("{{\"networkType\":{text}}}").as_bytes())
            .map(|request| request.network_type)
    };
    assert_eq!(by("\"NETWORK_TYPE_SOLANA\"").expect("name"), 6);
    assert_eq!(by("6").expect("number"), 6);
    for text in [
        "\"SOLANA\"",
        "\"network_type_solana\"",
        "99",
        "-1",
        "\"6\"",
        "true",
    ] {
        let problem = by(text).expect_err(text);
        assert!(problem.message().starts_with("networkType: "), "{problem}");
    }
    assert!(
        by("\"MD5\"")
            .expect_err("unknown")
            .message()
            .contains("NETWORK_TYPE_EVM")
    );
}

#[test]
fn decode__should_take_base64_of_both_alphabets_padded_or_not() {
    let content = |text: &str| {
        decode::<wire::RawMessage>(format!("{{\"content\":\"{text}\"}}").as_bytes())
            .map(|message| message.content)
    };
    for text in ["+/8=", "+/8", "-_8=", "-_8"] {
        assert_eq!(content(text).expect(text), [0xfb, 0xff], "{text}");
    }
    assert_eq!(content("").expect("empty"), b"");
    for text in ["***", "a", "+_8=", "aGk=\\n", " aGk=", "aGl="] {
        assert!(
            content(text)
                .expect_err(text)
                .message()
                .starts_with("content: ")
        );
    }
}

/// 0 is Sonic SVM mainnet, and was sent on Solana.
#[test]
fn decode__should_refuse_the_chain_id_of_sonic_on_the_kinds_of_solana() {
    for kind in ["solanaSendNative", "solanaSendSplToken", "solanaSendCustom"] {
        for zero in ["0", "\"0\"", "-0"] {
            for name in ["chainId", "chain_id"] {
                let json = format!("{{\"{kind}\":{{\"{name}\":{zero}}}}}");
                assert_eq!(
                    refused::<Create>(&json),
                    format!(
                        "{kind}.chainId: 0 names another network, which has payload kinds of its own"
                    ),
                );
            }
        }
        for taken in ["{}", r#"{"chainId":null}"#, r#"{"chainId":101}"#] {
            decode::<Create>(format!("{{\"{kind}\":{taken}}}").as_bytes()).expect(taken);
        }
    }
    for kind in [
        "sonicSvmSendNative",
        "sonicSvmSendSplToken",
        "sonicSvmSendCustom",
    ] {
        decode::<Create>(format!("{{\"{kind}\":{{\"chainId\":0}}}}").as_bytes()).expect(kind);
    }
}

/// An ERC-20 transfer that was given in hex was signed as other call data.
#[test]
fn decode__should_refuse_hex_where_base64_belongs() {
    const TRANSFER: &str = "a9059cbb00000000000000000000000078befdbc3a9b4cc239badd9322e98eae4394b4be0000000000000000000000000000000000000000000000000de0b6b3a7640000";
    let refused_hex = |json: String, path: &str| {
        let fault = decode::<Create>(json.as_bytes()).expect_err(&json);
        let expected = format!("{path}: looks like hex; give base64");
        assert_eq!(fault.message(), expected, "{json}");
    };
    for hex in [
        TRANSFER,
        &format!("0x{TRANSFER}"),
        "a9059cbb",
        "0Xa9059C",
        "a9059cbb0",
    ] {
        let json = format!("{{\"evmSendCustom\":{{\"input\":\"{hex}\"}}}}");
        refused_hex(json, "evmSendCustom.input");
    }
    for hex in [TRANSFER, "0123456789abcdef", "0x0123456789ABCD"] {
        let json = format!("{{\"rawMessage\":{{\"content\":\"{hex}\"}}}}");
        refused_hex(json, "rawMessage.content");
    }
    // Short enough to be base64 by chance, or with something in it that is no hex.
    for text in [
        "0123456789abcdA=",
        "0123456789ab",
        "0123456789abcdeg",
        "0x01",
    ] {
        let json = format!("{{\"rawMessage\":{{\"content\":\"{text}\"}}}}");
        decode::<Create>(json.as_bytes()).expect(text);
    }
    decode::<Create>(br#"{"evmSendCustom":{"input":"abcd"}}"#).expect("three bytes");
}

#[test]
fn decode__should_demand_padded_standard_base64_of_call_data() {
    let input = |text: &str| {
        decode::<wire::EvmSendCustom>(format!("{{\"input\":\"{text}\"}}").as_bytes())
            .map(|message| message.input)
    };
    assert_eq!(input("qrs=").expect("padded"), [0xaa, 0xbb]);
    for text in ["qrs", "-_8=", "0xa9059cbb", "not base64!!"] {
        assert!(
            input(text)
                .expect_err(text)
                .message()
                .starts_with("input: ")
        );
    }
}

#[test]
fn decode__should_demand_required_fields_when_their_message_is_present() {
    for kind in [
        "evmMessage",
        "solanaMessage",
        "suiMessage",
        "tonMessage",
        "rawMessage",
    ] {
        for body in [r#"{"from":"a"}"#, r#"{"from":"a","content":null}"#] {
            assert_eq!(
                refused::<Create>(&format!("{{\"{kind}\":{body}}}")),
                format!("{kind}.content: is required"),
            );
        }
        decode::<Create>(format!("{{\"{kind}\":{{\"content\":\"\"}}}}").as_bytes()).expect("empty");
    }
}

#[test]
fn decode__should_refuse_unknown_fields_with_their_path() {
    assert_eq!(
        refused::<Create>(r#"{"vault":"x"}"#),
        "vault: unknown field"
    );
    assert_eq!(
        refused::<Create>(r#"{"evmSendNative":{"gasFee":{"maxfee":"1"}}}"#),
        "evmSendNative.gasFee.maxfee: unknown field",
    );
    assert_eq!(
        refused::<Create>(r#"{"createWallet":{}}"#),
        "createWallet: unknown field"
    );
    assert_eq!(refused::<Create>(r#"{"x":null}"#), "x: unknown field");
    assert!(refused::<Create>(&format!("{{\"{}\":1}}", "y".repeat(500))).len() < 100);
}

#[test]
fn decode__should_refuse_two_kinds_and_keys_given_twice() {
    assert_eq!(
        refused::<Create>(r#"{"evmSendNative":{},"rawMessage":{"content":""}}"#),
        "rawMessage: exactly one payload kind may be given, and evmSendNative is given too",
    );
    assert!(
        refused::<wire::GetWalletInfoRequest>(r#"{"address":"a","ref":"b"}"#)
            .contains("address is given too")
    );
    decode::<Create>(br#"{"evmSendNative":{},"rawMessage":null}"#).expect("null is unset");
    assert_eq!(
        refused::<Create>(r#"{"evmSendNative":{"value":"1","value":"1"}}"#),
        "evmSendNative.value: is given twice",
    );
    assert_eq!(
        refused::<Create>(r#"{"evmSendNative":{"chainId":1,"chain_id":null}}"#),
        "evmSendNative.chainId: is given twice",
    );
}

#[test]
fn decode__should_name_the_path_of_a_value_of_the_wrong_type() {
    for (json, path) in [
        (
            r#"{"evmSendNative":{"value":5}}"#,
            "evmSendNative.value: must be a string",
        ),
        (
            r#"{"evmSendNative":[]}"#,
            "evmSendNative: must be a JSON object",
        ),
        (
            r#"{"evmSendNative":{"gasFee":{"maxFee":1}}}"#,
            "evmSendNative.gasFee.maxFee: must be a string",
        ),
        (
            r#"{"broadcastTx":"true"}"#,
            "broadcastTx: must be true or false",
        ),
        (
            r#"{"solanaSendCustom":{"txBase64":"AA=="}}"#,
            "solanaSendCustom.txBase64: must be a list",
        ),
        (
            r#"{"solanaSendCustom":{"txBase64":["AA==",null]}}"#,
            "solanaSendCustom.txBase64[1]: must be a string",
        ),
        ("[]", "the body must be a JSON object"),
        ("null", "the body must be a JSON object"),
    ] {
        assert_eq!(refused::<Create>(json), path);
    }
}

#[test]
fn decode__should_refuse_what_is_not_json_without_line_or_type_names() {
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(100), "]".repeat(100));
    for json in [
        "",
        "{",
        "{\"a\":",
        "{\"a\" 1}",
        "{} {}",
        "{'a':1}",
        "\"\\ud800\"",
        "{\"a\":1e999}",
        deep.as_str(),
    ] {
        let problem = refused::<Create>(json);
        assert!(problem.starts_with("malformed JSON"), "{json}: {problem}");
        assert!(
            !problem.contains("line") && !problem.contains("column") && !problem.contains("::")
        );
    }
    assert!(decode::<Create>(&[0xff, 0xfe]).is_err());
}

#[test]
fn encode__should_show_every_field() {
    let response = wire::CreateSigningRequestResponse {
        signing_request: Some(wire::SigningRequest {
            uuid: "u".into(),
            creation_timestamp: 5,
            r#type: Some(wire::signing_request::Type::EvmSendNative(
                wire::EvmSendNative {
                    nonce: Some(0),
                    ..Default::default()
                },
            )),
            signatures: Some(wire::SignatureContainer {
                signatures: vec![wire::signature_container::SignResponse {
                    signature: Some(
                        wire::signature_container::sign_response::Signature::EcdsaSignature(
                            wire::signature_container::EcdsaSignature {
                                r: "0x1".into(),
                                s: "0x2".into(),
                                v: "0".into(),
                            },
                        ),
                    ),
                }],
            }),
            ..Default::default()
        }),
        error: None,
    };
    assert_eq!(
        shown(&response),
        json!({
            "signingRequest": {
                "uuid": "u", "status": "STATUS_UNSPECIFIED", "failedReason": "", "txHash": "",
                "creationTimestamp": "5",
                "evmSendNative": {
                    "chainId": "0", "from": "", "to": "", "value": "", "gasFee": null, "nonce": "0",
                },
                "notes": null, "vaultUuid": null, "callbackClientSignerPublicKey": null,
                "simulation": "", "evmInputDataDecode": null,
                "signatures": {"signatures": [{"ecdsaSignature": {"R": "0x1", "S": "0x2", "V": "0"}}]},
                "source": null,
                "transactionState": null, "replacesUuid": "", "replacedByUuids": [], "tokenTransferFee": null,
                "signedTransaction": "", "pendingOperation": "",
                "requiredApprovalCount": 0, "remainingApprovalCount": 0, "approvals": [],
                "approvalExpiryTimestamp": "0", "approvalWanted": "", "approvalSubject": null,
                "batchPaymentUuid": "",
            },
            "error": null,
        })
    );
    assert_eq!(
        shown(&wire::GetWalletListResponse::default()),
        json!({"detailsList": [], "error": null})
    );
    assert_eq!(
        shown(&wire::VaultCreation {
            threshold: 2,
            ..Default::default()
        })["threshold"],
        json!(2)
    );
}

#[test]
fn encode__should_write_bytes_padded_and_in_the_standard_alphabet() {
    let message = wire::Wallet {
        public_key: vec![0xfb, 0xff],
        ..Default::default()
    };
    assert_eq!(shown(&message)["publicKey"], json!("+/8="));
    assert_eq!(shown(&message)["keyType"], json!("KEY_TYPE_UNSPECIFIED"));
}

/// A message as field `number` (below 16) of another.
fn inside(number: u8, message: &[u8]) -> Vec<u8> {
    let length = u8::try_from(message.len()).expect("short");
    [&[number << 3 | 2, length], message].concat()
}

#[test]
fn encode__should_leave_out_what_it_does_not_know_and_refuse_what_is_there_twice() {
    let name = "mpcvault.platform.v1.EVMSendNative";
    let json =
        |bytes: &[u8]| encode_wire(name, bytes).map(|json| String::from_utf8(json).expect("UTF-8"));
    let plain = json(&inside(2, b"0xa")).expect("encodes");
    let unknown = [
        inside(2, b"0xa"),
        vec![0x98, 0x06, 1],
        vec![0x9d, 0x06, 1, 2, 3, 4],
    ]
    .concat();
    assert_eq!(json(&unknown).expect("encodes"), plain);
    for wrong in [
        // Twice, of another type, cut off, no text.
        [inside(2, b"0xa"), inside(2, b"0xb")].concat(),
        vec![2 << 3, 1],
        vec![2 << 3 | 2, 9, b'a'],
        inside(2, &[0xff]),
    ] {
        assert!(json(&wrong).is_err(), "{wrong:?}");
    }
    // Two members of one oneof.
    let kinds = [inside(1, &[]), inside(2, &[])].concat();
    assert!(encode_wire("mpcvault.platform.v1.CreateSigningRequestRequest", &kinds).is_err());
}

#[test]
fn failure__should_be_the_response_of_every_operation_with_only_the_error() {
    let error = wire::Error {
        message: "no".into(),
        code: Some(wire::error::Code::ServiceErrorCode(0)),
    };
    let operations = service::operations().expect("service");
    let platform = operations
        .iter()
        .filter(|operation| operation.audience() == service::Audience::Platform);
    assert_eq!(platform.clone().count(), 19);
    for operation in platform {
        let json: serde_json::Value =
            serde_json::from_str(&operation.failure(&error).expect("encodes")).expect("JSON");
        assert_eq!(
            json["error"],
            json!({"message": "no", "serviceErrorCode": "SERVICE_ERROR_CODE_UNSPECIFIED"}),
            "{}",
            operation.name()
        );
    }
    let mut names = operations.iter().map(service::OperationDescriptor::name);
    assert!(names.any(|name| name == "createSigningRequest"));
}

/// Makes any message of the schema out of bytes that proptest chooses (and shrinks).
struct Source<'a>(std::slice::Iter<'a, u8>);

impl Source<'_> {
    fn byte(&mut self) -> u8 {
        self.0.next().copied().unwrap_or(0)
    }

    fn integer(&mut self) -> i64 {
        match self.byte() % 4 {
            0 => 0,
            1 => self.byte().into(),
            2 => i64::MAX,
            _ => i64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    fn text(&mut self) -> String {
        let length = self.byte() % 6;
        (0..length).map(|_| char::from(self.byte())).collect()
    }

    fn single(&mut self, kind: &Kind) -> Value {
        match kind {
            Kind::Bool => Value::Bool(self.byte() & 1 == 1),
            Kind::String => Value::String(self.text()),
            Kind::Bytes => Value::Bytes(self.text().into_bytes().into()),
            Kind::Int32 => Value::I32(self.integer() as i32),
            Kind::Uint32 => Value::U32(self.integer() as u32),
            Kind::Int64 => Value::I64(self.integer()),
            Kind::Uint64 => Value::U64(self.integer().unsigned_abs() & i64::MAX as u64),
            Kind::Enum(descriptor) => {
                let values: Vec<_> = descriptor.values().collect();
                Value::EnumNumber(values[usize::from(self.byte()) % values.len()].number())
            }
            Kind::Message(descriptor) => Value::Message(self.message(descriptor)),
            other => panic!("the schema has a field of type {other:?}, which has no JSON mapping"),
        }
    }

    fn message(&mut self, descriptor: &MessageDescriptor) -> DynamicMessage {
        let mut message = DynamicMessage::new(descriptor.clone());
        for field in descriptor.fields() {
            if field.containing_oneof().is_some() || self.byte() & 1 == 0 {
                continue;
            }
            let value = if field.is_list() {
                let count = self.byte() % 3;
                Value::List((0..count).map(|_| self.single(&field.kind())).collect())
            } else {
                self.single(&field.kind())
            };
            message.set_field(&field, value);
        }
        for oneof in descriptor.oneofs() {
            let members: Vec<_> = oneof.fields().collect();
            if let Some(field) = members.get(usize::from(self.byte()) % (members.len() + 1)) {
                let value = self.member(field);
                message.set_field(field, value);
            }
        }
        message
    }

    /// A member of a oneof, without a 0 that JSON may not name.
    fn member(&mut self, field: &prost_reflect::FieldDescriptor) -> Value {
        let mut value = self.single(&field.kind());
        if let (Some(name), Value::Message(message)) =
            (reflect::refuses_zero_of(field).expect("schema"), &mut value)
            && message.get_field_by_name(name).expect("field").as_u64() == Some(0)
        {
            message.set_field_by_name(name, Value::U64(101));
        }
        value
    }
}

/// The JSON of a message, which is what the descriptors say, byte for byte.
fn encode_dynamic(message: &DynamicMessage) -> String {
    use prost_reflect::ReflectMessage as _;
    let bytes = prost::Message::encode_to_vec(message);
    let json = encode_wire(message.descriptor().full_name(), &bytes).expect("encodes");
    let json = String::from_utf8(json).expect("UTF-8");
    let plain = serde_json::to_string(&reflected::ShownMessage(message)).expect("encodes");
    assert_eq!(json, plain);
    json
}

fn round_trip(message: &DynamicMessage) {
    use prost_reflect::ReflectMessage as _;
    let json = encode_dynamic(message);
    let tree = tree::parse(json.as_bytes()).expect("is JSON");
    let back = decode::message(&message.descriptor(), &tree).expect(&json);
    // As bytes: the wire does not tell a default from an unset field, nor does proto3.
    let bytes = |message: &DynamicMessage| prost::Message::encode_to_vec(message);
    assert_eq!(bytes(&back), bytes(message), "{json}");
}

#[test]
fn round_trip__should_hold_for_each_of_the_32_create_kinds() {
    let descriptor =
        reflect::message("mpcvault.platform.v1.CreateSigningRequestRequest").expect("schema");
    let kinds: Vec<_> = descriptor
        .oneofs()
        .flat_map(|oneof| oneof.fields().collect::<Vec<_>>())
        .collect();
    assert_eq!(kinds.len(), 32);
    for kind in kinds {
        for fill in [0x00, 0x01, 0x55, 0xff] {
            let bytes = vec![fill; 400];
            let mut message = DynamicMessage::new(descriptor.clone());
            message.set_field(&kind, Source(bytes.iter()).member(&kind));
            round_trip(&message);
            let typed: Create = message.transcode_to().expect("typed");
            // Its encoder writes fields in another order.
            let json = encode(&typed).expect("encodes");
            assert_eq!(json, encode_dynamic(&message));
            assert!(
                json.contains(&format!("\"{}\":", kind.json_name())),
                "{json}"
            );
            assert_eq!(decode::<Create>(json.as_bytes()).expect(&json), typed);
        }
    }
}

proptest! {
    #[test]
    fn round_trip__should_hold_for_every_message_of_the_schema(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for descriptor in reflect::messages().expect("schema") {
            let message = Source(bytes.iter()).message(&descriptor);
            // Requests of operators have fields that they must have.
            if descriptor.package_name() == reflect::PACKAGE {
                round_trip(&message);
            } else {
                encode_dynamic(&message);
            }
        }
    }

    #[test]
    fn encode__should_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for descriptor in reflect::messages().expect("schema") {
            let _ = encode_wire(descriptor.full_name(), &bytes);
        }
    }

    #[test]
    fn decode__should_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "[\\[\\]{}:,\"a-z0-9.e-]{0,80}") {
        let _ = decode::<Create>(&bytes);
        let _ = decode::<Create>(text.as_bytes());
    }
}
