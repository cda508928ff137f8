//! Calls in JSON.

use serde_json::{Value, json};

use super::*;
use crate::networks::outflow::ContentKind;

/// A call of a function that nobody knows.
fn call(ty_args: &[&str], arguments: Value) -> Result<Payload, Fault> {
    custom(&payload("0x5::mod::many", ty_args, arguments))
}

fn payload(function: &str, ty_args: &[&str], arguments: Value) -> Vec<u8> {
    let body = json!({
        "type": "entry_function_payload",
        "function": function,
        "type_arguments": ty_args,
        "arguments": arguments,
    });
    body.to_string().into_bytes()
}

fn abi(params: &[&str], type_parameters: u64) -> ChainData {
    ChainData {
        abi: Some(Abi {
            params: params.iter().map(|param| (*param).to_owned()).collect(),
            type_parameters,
        }),
        ..chain_data()
    }
}

fn entry(unsigned: &Unsigned) -> EntryFunction {
    tx::built(&unsigned.bytes)
        .unwrap()
        .0
        .called()
        .unwrap()
        .clone()
}

/// The one argument of a call, in hex.
fn encoded(param: &str, argument: Value) -> Result<String, Fault> {
    let payload = call(&["u16", "0x1::a::B"], json!([argument]))?;
    let unsigned = build(&payload, abi(&["&signer", param], 2))?;
    Ok(hex::encode(&entry(&unsigned).args[0]))
}

#[test]
fn arguments__should_be_encoded_by_their_type() {
    let big = "115792089237316195423570985008687907853269984665640564039457584007913129639935";
    let bob = &BOB[2..];
    let cases = [
        ("bool", json!(true), "01".to_owned()),
        ("u8", json!(255), "ff".into()),
        ("u8", json!("255"), "ff".into()),
        ("u16", json!(258), "0201".into()),
        ("u32", json!(1), "01000000".into()),
        ("u64", json!(u64::MAX), "ff".repeat(8)),
        ("u64", json!("18446744073709551615"), "ff".repeat(8)),
        (
            "u128",
            json!("340282366920938463463374607431768211455"),
            "ff".repeat(16),
        ),
        ("u256", json!(big), "ff".repeat(32)),
        ("u256", json!(1), format!("01{}", "00".repeat(31))),
        ("address", json!(BOB), bob.to_owned()),
        ("address", json!("0x1"), format!("{}01", "00".repeat(31))),
        ("0x1::string::String", json!("h\u{e9}"), "0368c3a9".into()),
        ("0x1::object::Object<T1>", json!(BOB), bob.to_owned()),
        (
            "0x1::object::Object<0x1::fungible_asset::Metadata>",
            json!(BOB),
            bob.to_owned(),
        ),
        ("vector<bool>", json!([true, false]), "020100".into()),
        ("vector<u8>", json!([0, 255]), "0200ff".into()),
        // As the vectors have it.
        (
            "vector<u8>",
            json!("0x00ff"),
            format!("06{}", hex::encode("0x00ff")),
        ),
        ("vector<vector<u8>>", json!(["a", [1]]), "0201610101".into()),
        (
            "vector<address>",
            json!([BOB, BOB]),
            format!("02{bob}{bob}"),
        ),
        (
            "vector<0x1::string::String>",
            json!(["", "a"]),
            "02000161".into(),
        ),
        ("vector<u64>", json!([]), "00".into()),
        ("T0", json!(7), "0700".into()),
        ("vector<T0>", json!([7]), "010700".into()),
        ("0x1::option::Option<u8>", json!(null), "00".into()),
        ("0x1::option::Option<u8>", json!(9), "0109".into()),
        ("0x1::option::Option<T0>", json!(9), "010900".into()),
        (
            "0x1::option::Option<0x1::option::Option<u8>>",
            json!(9),
            "010109".into(),
        ),
        (
            "0x1::option::Option<vector<u8>>",
            json!([1]),
            "010101".into(),
        ),
    ];
    for (param, argument, expected) in cases {
        assert_eq!(
            encoded(param, argument.clone()).unwrap(),
            expected,
            "{param} {argument}"
        );
    }
}

#[test]
fn arguments__should_be_refused_by_name() {
    let json = "has a type that is not supported in JSON: give the transaction in BCS";
    let cases = [
        ("bool", json!("true"), "must be true or false"),
        ("bool", json!(1), "must be true or false"),
        ("u8", json!(256), "is too large: at most 8 bits"),
        (
            "u64",
            json!("18446744073709551616"),
            "is too large: at most 64 bits",
        ),
        ("u64", json!(-1), "must be a whole number"),
        ("u64", json!(1.0), "must be a whole number"),
        ("u64", json!(1e30), "must be a whole number"),
        ("u64", json!("0x1"), "must be a whole number"),
        ("u64", json!("-1"), "must be a whole number"),
        ("u64", json!(""), "is required"),
        ("u64", json!("01"), "must not have leading zeros"),
        ("u64", json!(null), "must be a number"),
        ("u64", json!([1]), "must be a number"),
        ("u64", json!(true), "must be a number"),
        ("address", json!("0x12"), "must be an Aptos address"),
        ("address", json!(1), "must be an address"),
        ("0x1::string::String", json!(1), "must be a string"),
        (
            "0x1::object::Object<T1>",
            json!("0x12"),
            "must be an Aptos address",
        ),
        ("vector<u64>", json!("[1]"), "must be a list"),
        ("vector<u8>", json!(1), "must be a list of numbers, or text"),
        ("vector<u8>", json!([256]), "is too large: at most 8 bits"),
        (
            "vector<vector<u8>>",
            json!([[1], [true]]),
            "must be a number",
        ),
        (
            "0x1::option::Option<u8>",
            json!("x"),
            "must be a whole number",
        ),
        (
            "0x1::option::Option<u8>",
            json!({"vec": [1]}),
            "must not be an object",
        ),
        ("vector<u8>", json!([[1.5]]), "must be a whole number"),
        ("0x2::string::String", json!("a"), json),
        ("0x1::string::String<u8>", json!("a"), json),
        ("0x5::mod::Struct", json!("a"), json),
        ("0x1::mod::T0", json!(1), json),
        ("vector<signer>", json!(["0x1"]), json),
        ("&0x1::string::String", json!("a"), json),
        ("i64", json!(1), json),
        ("T2", json!(1), json),
        ("T99999999999999999999", json!(1), json),
        ("|u64|bool", json!(1), json),
        ("\u{e9}T0", json!(1), json),
    ];
    for (param, argument, problem) in cases {
        let fault = encoded(param, argument.clone()).unwrap_err();
        assert_eq!(fault.class(), &Class::Invalid);
        let path = "aptosSendCustom.payload.arguments[0]: ";
        assert!(
            fault.message().starts_with(path),
            "{param} {argument}: {fault}"
        );
        assert!(
            fault.message().contains(problem),
            "{param} {argument}: {fault}"
        );
    }
    let second = call(&[], json!([1, "x"])).unwrap();
    refused(
        build(&second, abi(&["u8", "u8"], 0)),
        "aptosSendCustom.payload.arguments[1]: must be a whole number",
    );
}

#[test]
fn abi__should_fit_the_call() {
    let payload = call(&["u8"], json!([1])).unwrap();
    let queries = asked(&payload);
    let function = queries.abi.unwrap();
    assert_eq!(function.address, special_address("5"));
    assert_eq!(
        (function.module.as_str(), function.name.as_str()),
        ("mod", "many")
    );
    let build = |params: &[&str], type_parameters| build(&payload, abi(params, type_parameters));
    assert!(build(&["&signer", "u8"], 1).is_ok());
    assert!(build(&["signer", "u8"], 1).is_ok());
    assert!(build(&["u8"], 1).is_ok());
    let path = "aptosSendCustom.payload";
    refused(
        build(&["u8"], 0),
        &format!("{path}.type_arguments: must be 0"),
    );
    refused(
        build(&["u8", "u8"], 1),
        &format!("{path}.arguments: must be 2"),
    );
    refused(build(&[], 1), &format!("{path}.arguments: must be 0"));
    refused(
        build(&["&signer", "&signer", "u8"], 1),
        &format!("{path}.function: needs more than one signer"),
    );
    // Absurd answers.
    refused(
        build(&["u8"; 300], 1),
        &format!("{path}.function: has invalid parameters according to the chain node"),
    );
    refused(
        build(&["T0".repeat(4000).as_str()], 1),
        &format!("{path}.function: has"),
    );
    refused(
        build(&["<T0".repeat(900).as_str()], 1),
        &format!("{path}.arguments[0]: has a type"),
    );
    let missing = super::build(&payload, chain_data()).unwrap_err();
    assert_eq!(missing.class(), &Class::Bug);
    let large = call(&[], json!(["a".repeat(tx::MAX_BYTES)])).unwrap();
    refused(
        super::build(&large, abi(&["vector<u8>"], 0)),
        &format!("{path}: results in a transaction of more than 65536 bytes"),
    );
}

#[test]
fn payload__should_be_a_call_and_nothing_else() {
    let path = "aptosSendCustom.payload";
    let form = "must be JSON with type, function";
    for (text, problem) in [
        (r#"{"type":"entry_function_payload""#, form),
        (r#"{"type":"entry_function_payload"}"#, form),
        (
            r#"{"type":"entry_function_payload","function":"0x1::a::b","args":[]}"#,
            form,
        ),
        (
            r#"{"type":"entry_function_payload","function":"0x1::a::b","function":"0x1::a::c"}"#,
            form,
        ),
        (
            r#"{"type":"entry_function_payload","function":"0x1::a::b"} x"#,
            form,
        ),
        (
            r#"{"type":"entry_function_payload","function":"0x1::a::b","arguments":{}}"#,
            form,
        ),
    ] {
        refused(custom(text.as_bytes()), &format!("{path}: {problem}"));
    }
    refused(
        custom(br#"{"type":"script_payload","function":"0x1::a::b"}"#),
        &format!("{path}.type: must be entry_function_payload"),
    );
    for function in [
        "",
        "0x1::a",
        "a::b::c",
        "0x1::a::b<u8>",
        "0x1::a::b::c",
        "0x1::a::1",
    ] {
        refused(
            custom(&payload(function, &[], json!([]))),
            &format!("{path}.function: must be address::module::function"),
        );
    }
    refused(
        call(&["u8", "u7"], json!([])),
        &format!("{path}.type_arguments[1]: must be a Move type"),
    );
    refused(
        call(&[], json!([1, [2.5]])),
        &format!("{path}.arguments[1]: must be a whole number"),
    );
    refused(
        call(&["u8"; 256], json!([])),
        &format!("{path}.type_arguments: are too many"),
    );
    refused(
        call(&[], json!(vec![1; 256])),
        &format!("{path}.arguments: are too many"),
    );
    refused(
        call(&[], json!(["a".repeat(256 * 1024)])),
        &format!("{path}: is too long"),
    );
    let deep = "[".repeat(200) + &"]".repeat(200);
    refused(
        custom(
            format!(
                r#"{{"type":"entry_function_payload","function":"0x1::a::b","arguments":{deep}}}"#
            )
            .as_bytes(),
        ),
        &format!("{path}: {form}"),
    );
    // As it came, gas and all.
    let spaced = r#"{ "function": "0x01::a::b", "type": "entry_function_payload" }"#;
    let payload = custom(spaced.as_bytes()).unwrap();
    let WireKind::AptosSendCustom(wire) = payload.to_wire() else {
        panic!("{payload:?}")
    };
    assert_eq!(wire.payload, spaced.as_bytes());
    assert_eq!(wire.gas_fee, gas(Some(2000), Some(100)));
}

#[test]
fn transfers__should_be_read_with_the_parameters_that_the_framework_has() {
    let transfer =
        |arguments: Value| custom(&payload("0x1::aptos_account::transfer", &[], arguments));
    let payload = transfer(json!([BOB, "1234567"])).unwrap();
    let outflow = payload.outflow(Network::Aptos);
    assert_eq!(outflow.nature, ContentKind::Custom);
    assert_eq!(outflow.spends.len(), 1);
    assert_eq!(outflow.spends[0].asset.to_string(), "aptos:1");
    assert_eq!(outflow.spends[0].amount, U256::from(1_234_567));
    assert_eq!(outflow.spends[0].recipient.as_deref(), Some(BOB));
    let unsigned = build(&payload, abi(&["&signer", "address", "u64"], 0)).unwrap();
    assert_eq!(entry(&unsigned).args[1], 1_234_567u64.to_le_bytes());
    // Seven characters and their length are eight bytes, which the chain would take for a u64.
    for lie in ["vector<u8>", "0x1::string::String"] {
        refused(
            build(&payload, abi(&["&signer", "address", lie], 0)),
            "aptosSendCustom.payload.function: has parameters, according to the chain node, that differ from the framework's",
        );
    }
    // What the framework will not take is refused before anybody is asked.
    let path = "aptosSendCustom.payload";
    refused(
        transfer(json!([BOB])),
        &format!("{path}.arguments: must be 2"),
    );
    refused(
        transfer(json!([BOB, "x"])),
        &format!("{path}.arguments[1]: must be a whole"),
    );
    refused(
        custom(&self::payload("0x1::coin::transfer", &[], json!([BOB, 1]))),
        &format!("{path}.type_arguments: must be 1"),
    );
    let asset = custom(&self::payload(
        "0x1::primary_fungible_store::transfer",
        &["0x1::fungible_asset::Metadata"],
        json!(["0xa", BOB, "1"]),
    ));
    let spends = asset.unwrap().outflow(Network::Aptos).spends;
    assert_eq!(spends[0].asset.to_string(), "aptos:1");
    // Unknown functions move nobody knows what; whose they are is known.
    let unknown = call(&[], json!([])).unwrap().outflow(Network::Aptos);
    assert_eq!(unknown.spends.len(), 1);
    assert!(unknown.spends[0].amount.is_zero());
    let staking = custom(&self::payload("0x1::stake::unlock", &[], json!(["1"])));
    let staking = staking.unwrap().outflow(Network::Aptos);
    assert_eq!(staking.spends[0].recipient, None);
    // What goes to others by another name than a transfer may be all that there is; what stays the
    // wallet's own is not.
    for (function, all) in [
        ("0x1::confidential_asset::deposit_to", true),
        ("0x1::confidential_asset::withdraw_to", true),
        (
            "0x1::resource_account::create_resource_account_and_fund",
            true,
        ),
        ("0x3::token_transfers::offer_script", true),
        ("0x1::confidential_asset::deposit", false),
        ("0x1::coin::migrate_to_fungible_store", false),
    ] {
        let handed = custom(&self::payload(function, &[], json!([]))).unwrap();
        let amount = handed.outflow(Network::Aptos).spends[0].amount;
        assert_eq!(amount == U256::MAX, all, "{function}");
    }
    let rotate = custom(&self::payload(
        "0x1::account::offer_signer_capability",
        &[],
        json!([]),
    ));
    assert_eq!(
        rotate.unwrap().account_changes(),
        [crate::networks::outflow::AccountChange::AptosKeyRotation].into()
    );
}

#[test]
fn simulation__should_encode_json_by_the_abi() {
    let json = payload("0x5::mod::many", &["u8"], json!([1]));
    let payload = Payload::parse(&WireKind::AptosSendCustom(wire::AptosSendCustom {
        chain_id: 126,
        from: from(),
        payload: json,
        gas_fee: None,
        ..Default::default()
    }))
    .unwrap();
    let queries = asked(&payload);
    let known = ChainData {
        gas_unit_price: Some(100),
        ..abi(&["&signer", "u8"], 1)
    };
    let simulated = simulation(&queries, &known, 12_300, None).unwrap();
    let built = build(
        &payload,
        ChainData {
            gas_used: Some(82),
            ..known.clone()
        },
    )
    .unwrap();
    assert_eq!(bytes_with_gas(&simulated), built.bytes);
    let unknown = ChainData { abi: None, ..known };
    let fault = simulation(&queries, &unknown, 12_300, None).unwrap_err();
    assert_eq!(fault.class(), &Class::Bug);
}

/// docs/threat-model.md: a chain node that tells false ABIs gets a refusal, "never other recipients or
/// amounts than the request names". A text of 7 digits takes 8 bytes, as a number of 64 bits does.
#[test]
fn build__should_refuse_an_abi_that_makes_another_number_of_an_amount() {
    for (amount, real, false_type) in [
        ("1234567", "u64", "0x1::string::String"),
        ("1234567", "u64", "vector<u8>"),
        ("123456789012345", "u128", "vector<u8>"),
        ("100", "u32", "vector<u8>"),
        ("5", "u16", "vector<u8>"),
    ] {
        let payload = call(&[], json!([BOB, amount])).unwrap();
        let argument = |param: &str| {
            let unsigned = build(&payload, abi(&["&signer", "address", param], 0));
            unsigned.map(|unsigned| entry(&unsigned).args[1].clone())
        };
        let asked = argument(real).unwrap();
        // The chain takes so many bytes for the number, whatever is in them.
        let signed = argument(false_type).ok();
        assert!(
            signed
                .as_ref()
                .is_none_or(|bytes| bytes.len() != asked.len()),
            "{amount} ({real}): {asked:?} was asked for, {signed:?} is signed"
        );
    }
}

/// As above, where texts are as long together as numbers are, and where options are in options. What
/// no number is as long as stays a text.
#[test]
fn build__should_refuse_texts_and_options_that_are_as_long_as_numbers_alone() {
    let option = |inner: &str| format!("0x1::option::Option<{inner}>");
    let string = "0x1::string::String";
    let texts = format!("vector<{string}>");
    for (param, argument) in [
        (&*texts, json!(["123456789", "12345"])),
        ("vector<vector<u8>>", json!(["1234567"])),
        (&format!("vector<{texts}>"), json!([["1234567"]])),
        (&option(string), json!("123456")),
        (&option(&option("u16")), json!(5)),
        // Of an option of a number, a text that is one too.
        (&option(string), json!("1234567")),
        // Of addresses
        (
            &*texts,
            json!(["0x1", "0x2", "0x3", "0x4", "0x5", BOB, BOB, BOB, BOB]),
        ),
    ] {
        assert!(
            encoded(param, argument.clone()).is_err(),
            "{param} {argument}"
        );
    }
    let fault = encoded(string, json!("1234567")).unwrap_err();
    let problem = "arguments[0]: is ambiguous if the chain node reports a false ABI: give the transaction in BCS";
    assert!(fault.message().contains(problem), "{fault}");
    for (param, argument) in [
        (string, json!("12345678")),
        (string, json!("0x1234567")),
        (string, json!("ab12345")),
        (&*texts, json!(["12", "3456789"])),
        ("vector<u8>", json!("hello world")),
        ("vector<u8>", json!([1, 2, 3, 4, 5, 6, 7])),
        ("vector<vector<u8>>", json!([[1, 2, 3], [4]])),
        (&option("u64"), json!("1234567")),
        ("vector<u64>", json!(["1234567", "1"])),
        ("vector<vector<u64>>", json!([["1234567"], ["1", "2"]])),
        (&option("vector<u64>"), json!(["7", "8", "9"])),
    ] {
        assert!(
            encoded(param, argument.clone()).is_ok(),
            "{param} {argument}"
        );
    }
}

proptest! {
    #[test]
    fn calls__should_never_panic(
        params in prop::collection::vec("[a-zT0-9&<>,: _]{0,30}|vector<u8>|T0|u64|address|0x1::option::Option<T0>", 0..4),
        text in ".{0,30}", number: u64, type_parameters in 0..2u64,
    ) {
        let arguments = json!([text, number, [text, number], null]);
        let payload = call(&["u8"], arguments).unwrap();
        prop_assert_eq!(Payload::decode(&payload.encode()).unwrap(), payload.clone());
        let params: Vec<&str> = params.iter().map(String::as_str).collect();
        let _ = build(&payload, abi(&params, type_parameters));
        let _ = custom(format!("{{{text}").as_bytes());
    }

    #[test]
    fn numbers__should_come_back(value: u128, small: u64) {
        let le = |bytes: &[u8]| hex::encode(bytes);
        prop_assert_eq!(encoded("u128", json!(value.to_string())).unwrap(), le(&value.to_le_bytes()));
        prop_assert_eq!(encoded("u64", json!(small)).unwrap(), le(&small.to_le_bytes()));
        let wide = [&value.to_le_bytes()[..], &[0; 16]].concat();
        prop_assert_eq!(encoded("u256", json!(value.to_string())).unwrap(), le(&wide));
    }
}
