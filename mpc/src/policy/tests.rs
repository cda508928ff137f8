#![allow(non_snake_case)]

use covault_core::{
    chain::{Facts, evm, solana},
    derive::KeyPath,
    ids::{RequestId, VaultId},
    network::Network,
    payload::WireKind,
    schema::wire::{self, evm_message},
    signature::Curve,
};

use super::*;

const BOB: &str = "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be";
const EVE: &str = "0x37b5ba07902c51ef69dE0BbEa42A11a1A94e3ff6";
const TOKEN: &str = "0xdAC17F958D2ee523a2206206994597C13D831ec7";
const SOL: &str = "CxvTXCepdDTH4PXUwU2Pf3FBi87L7VwXtzsgeAm1xVsS";
const OTHER_SOL: &str = "4Nd1mBQtrMJVYVfKf2PJy9NZUZdTAsp7D4xWLs4gDB4T";
/// What a transaction of 21,000 gas at 2 * 10 + 1 wei can cost.
const FEE: u64 = 441_000;

fn public_key(curve: Curve) -> Vec<u8> {
    let text = match curve {
        // The generator of secp256k1, and a base point multiple of Ed25519 (RFC 8032, test 1).
        Curve::Secp256k1 => "0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798",
        Curve::Ed25519 => "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
    };
    hex::decode(text).unwrap()
}

fn sender(network: Network) -> String {
    let chain = network.chain();
    chain.address(&public_key(network.curve())).unwrap()
}

/// An order as an orchestrator would make it.
fn order(network: Network, kind: &WireKind, facts: Facts) -> (SigningOrder, Payload) {
    let public_key = public_key(network.curve());
    let payload = Payload::parse(kind).unwrap();
    let chain = network.chain();
    let unsigned = chain.build(&payload, &facts, &public_key).unwrap();
    let order = SigningOrder {
        request: RequestId::from_bytes([1; 16]),
        vault: VaultId::from_bytes([2; 16]),
        epoch: 0,
        network,
        root_public_key: public_key.clone(),
        path: KeyPath::new(Vec::new()).unwrap(),
        public_key,
        address: sender(network),
        payload: payload.encode(),
        facts,
        unsigned: unsigned.bytes,
        inputs: unsigned.signing,
        issued_at_ms: 0,
        expires_at_ms: 0,
    };
    (order, payload)
}

fn fees() -> Facts {
    Facts::Evm(evm::Facts {
        nonce: Some(0),
        eip1559: true,
        fees: Some(evm::Fees {
            estimate_gas: 21_000,
            base_fee: 10,
            max_priority_fee: 1,
        }),
    })
}

fn native(chain_id: u64, to: &str, value: u64) -> (SigningOrder, Payload) {
    let kind = WireKind::EvmSendNative(wire::EvmSendNative {
        chain_id,
        from: sender(Network::Evm),
        to: to.into(),
        value: value.to_string(),
        ..Default::default()
    });
    order(Network::Evm, &kind, fees())
}

fn gas() -> Option<wire::EvmGas> {
    Some(wire::EvmGas {
        max_fee: Some("10".into()),
        max_priority_fee: Some("1".into()),
        gas_limit: Some("100000".into()),
    })
}

fn token(token: &str, to: &str, amount: u64) -> (SigningOrder, Payload) {
    let kind = WireKind::EvmSendErc20(wire::EvmSendErc20 {
        chain_id: 1,
        from: sender(Network::Evm),
        to: to.into(),
        token_contract_address: token.into(),
        amount: amount.to_string(),
        gas_fee: gas(),
        nonce: Some(0),
    });
    order(Network::Evm, &kind, Facts::Nothing)
}

fn call(to: &str, input: Vec<u8>) -> (SigningOrder, Payload) {
    let kind = WireKind::EvmSendCustom(wire::EvmSendCustom {
        chain_id: 1,
        from: sender(Network::Evm),
        to: to.into(),
        value: "1".into(),
        input,
        gas_fee: gas(),
        nonce: Some(0),
    });
    order(Network::Evm, &kind, Facts::Nothing)
}

fn text(form: evm_message::Type, content: &str) -> (SigningOrder, Payload) {
    let kind = WireKind::EvmMessage(wire::EvmMessage {
        chain_id: 1,
        from: sender(Network::Evm),
        r#type: form.into(),
        content: content.as_bytes().to_vec(),
    });
    order(Network::Evm, &kind, Facts::Nothing)
}

fn message() -> (SigningOrder, Payload) {
    text(evm_message::Type::PersonalSign, "hello")
}

fn typed(domain: &str) -> (SigningOrder, Payload) {
    let content = format!(
        r#"{{"types": {{"A": [{{"name": "x", "type": "string"}}]}}, "primaryType": "A",
            "domain": {domain}, "message": {{"x": "y"}}}}"#
    );
    text(evm_message::Type::SignTypedData, &content)
}

fn raw(network: Network) -> (SigningOrder, Payload) {
    let kind = WireKind::RawMessage(wire::RawMessage {
        from: sender(network),
        content: vec![7; 32],
        ecdsa_hash_function: wire::EcdsaHashFunction::Sha256.into(),
    });
    order(network, &kind, Facts::Nothing)
}

fn lamports(to: &str, value: u64) -> (SigningOrder, Payload) {
    let kind = WireKind::SolanaSendNative(wire::SolanaSendNative {
        from: sender(Network::Solana),
        to: to.into(),
        value: value.to_string(),
        chain_id: 0,
    });
    let facts = solana::Facts {
        recent_blockhash: SOL.into(),
        token: None,
    };
    order(Network::Solana, &kind, Facts::Solana(facts))
}

fn policy(text: &str) -> Policy {
    Policy::parse(text).unwrap()
}

#[track_caller]
fn allowed(policy: &Policy, (order, payload): (SigningOrder, Payload)) -> Vec<Spending> {
    policy.check(&order, &payload).unwrap()
}

#[track_caller]
fn refused(policy: &Policy, (order, payload): (SigningOrder, Payload), starts: &str) -> Fault {
    let fault = policy.check(&order, &payload).unwrap_err();
    assert_eq!(fault.class(), &Class::Invalid);
    assert!(fault.public().starts_with(starts), "{fault}");
    fault
}

#[test]
fn without_a_file__should_be_signed_everything_but_raw_messages() {
    let floor = Policy::production();
    assert_eq!(policy(""), floor);
    for order in [
        native(1, BOB, 5),
        native(424_242, BOB, 5),
        token(TOKEN, BOB, 5),
        call(BOB, vec![1]),
        call("", vec![1]),
        message(),
        typed("{}"),
        lamports(SOL, 5),
    ] {
        allowed(&floor, order);
    }
    for network in [Network::Evm, Network::Solana] {
        refused(
            &floor,
            raw(network),
            "kind: raw signing (rawMessage) is off",
        );
        assert!(allowed(&Policy::development(), raw(network)).is_empty());
    }
}

#[test]
fn networks__should_bind_where_the_signature_is_good() {
    let one = policy(r#"networks = ["evm:1"]"#);
    allowed(&one, native(1, BOB, 5));
    allowed(&one, message());
    allowed(&one, typed(r#"{"chainId": 1}"#));
    refused(
        &one,
        native(10, BOB, 5),
        "network: this signer's policy does not allow evm:10",
    );
    refused(&one, lamports(SOL, 5), "network: ");
    // Good on any chain, whatever chain the request names.
    refused(&one, typed(r#"{"name": "n"}"#), "network: ");
    let raw_too = policy("networks = [\"evm:1\"]\nraw_signing = true");
    refused(&raw_too, raw(Network::Evm), "network: ");
    refused(&policy("networks = []"), message(), "network: ");
    let all = policy("networks = [\"evm\"]\nraw_signing = true");
    for order in [native(10, BOB, 5), typed("{}"), raw(Network::Evm)] {
        allowed(&all, order);
    }
    refused(&all, raw(Network::Solana), "network: ");
}

#[test]
fn kinds__should_be_those_that_are_listed() {
    let some = policy(r#"kinds = ["evmSendNative", "solanaSendNative"]"#);
    allowed(&some, native(1, BOB, 5));
    allowed(&some, lamports(SOL, 5));
    refused(
        &some,
        message(),
        "kind: this signer's policy does not allow evmMessage",
    );
    refused(&some, token(TOKEN, BOB, 5), "kind: ");
    let quiet = policy("messages = false");
    refused(&quiet, message(), "kind: messages (evmMessage) are off");
    // Listing it is not enough: raw signing has a switch of its own.
    refused(
        &policy(r#"kinds = ["rawMessage"]"#),
        raw(Network::Evm),
        "kind: raw signing",
    );
}

#[test]
fn recipients__should_be_those_that_are_listed() {
    let listed = policy(&format!(
        "recipients.evm = [\"{}\"]\nrecipients.\"evm:1\" = [\"{TOKEN}\"]\nrecipients.solana = []\ncustom_calls = [\"evm\"]",
        BOB.to_lowercase()
    ));
    allowed(&listed, native(1, BOB, 5));
    allowed(&listed, native(10, BOB, 5));
    allowed(&listed, native(1, TOKEN, 5));
    allowed(&listed, token(TOKEN, BOB, 5));
    // An empty list is none.
    allowed(&listed, lamports(SOL, 5));
    // The contract that is called.
    allowed(&listed, call(BOB, vec![1]));
    for order in [
        native(1, EVE, 5),
        native(10, TOKEN, 5),
        token(TOKEN, EVE, 5),
        call(EVE, vec![1]),
        call("", vec![1]),
        // Tokens in disguise.
        call(TOKEN, transfer(EVE, 1)),
    ] {
        let fault = refused(&listed, order, "recipient: is not in the list");
        assert_eq!(fault.code(), ExecuteCode::AddressNotInWhitelist);
    }
    allowed(&listed, call(TOKEN, transfer(BOB, 1)));
    let solana = policy(&format!("recipients.solana = [\"{SOL}\"]"));
    allowed(&solana, lamports(SOL, 5));
    refused(&solana, lamports(OTHER_SOL, 5), "recipient: ");
}

fn transfer(to: &str, amount: u8) -> Vec<u8> {
    let mut input = vec![0xa9, 0x05, 0x9c, 0xbb];
    input.extend([0; 12]);
    input.extend(hex::decode(&to[2..]).unwrap());
    input.extend([0; 31]);
    input.push(amount);
    input
}

#[test]
fn amounts__should_be_limited_per_request_with_the_fee() {
    let most = FEE + 5;
    let limited = policy(&format!(
        "limits = [{{ asset = \"evm:1\", per_request = \"{most}\", per_day = \"{}\" }},\n
         {{ asset = \"evm:1/{TOKEN}\", per_request = \"7\" }}]",
        most * 10
    ));
    let counted = allowed(&limited, native(1, BOB, 5));
    let expected = Spending {
        asset: "evm:1".into(),
        amount: U256::from(most),
        most_per_day: Some(U256::from(most * 10)),
    };
    assert_eq!(counted, [expected]);
    let fault = refused(&limited, native(1, BOB, 6), "amount: ");
    assert!(
        fault
            .public()
            .ends_with("more evm:1 than this signer's policy allows per request")
    );
    // Another chain is another coin.
    allowed(&limited, native(10, BOB, 6));
    let tokens: Vec<String> = allowed(&policy(""), token(TOKEN, BOB, 7))
        .into_iter()
        .map(|spending| format!("{} {}", spending.amount, spending.asset))
        .collect();
    assert_eq!(
        tokens,
        ["1000000 evm:1".to_owned(), format!("7 evm:1/{TOKEN}")]
    );
    let dear = policy(&format!(
        "limits = [{{ asset = \"evm:1/{TOKEN}\", per_request = \"7\" }}]"
    ));
    allowed(&dear, token(TOKEN, BOB, 7));
    refused(&dear, token(TOKEN, BOB, 8), "amount: ");
    // The fee alone is too much of the coin.
    refused(
        &limited,
        token(TOKEN, BOB, 7),
        "amount: with the fee, more evm:1 ",
    );
    allowed(&dear, token(BOB, BOB, 8));
    let only = format!(
        "only_listed_assets = true\nlimits = [{{ asset = \"evm:1/{TOKEN}\", per_request = \"7\" }}]\n"
    );
    // The fee goes out in a coin that is not listed: whoever sets it may be who gets it.
    refused(
        &policy(&only),
        token(TOKEN, BOB, 7),
        "fee: this signer's policy allows listed assets only, and limits neither evm:1 nor",
    );
    let only = policy(&format!("{only}most_fee.\"evm:1\" = \"1000000\""));
    allowed(&only, token(TOKEN, BOB, 7));
    refused(
        &only,
        token(BOB, BOB, 1),
        "amount: this signer's policy has no limits for evm:1/",
    );
    refused(&only, lamports(SOL, 1), "amount: ");
}

#[test]
fn solana__should_have_one_limit_for_all_that_its_signatures_can_move() {
    let limited = policy("limits = [{ asset = \"solana\", per_request = \"5005\" }]");
    allowed(&limited, lamports(SOL, 5));
    refused(&limited, lamports(SOL, 6), "amount: ");
    let (mut order, _) = lamports(SOL, 6);
    let sonic = Payload::parse(&WireKind::SonicSvmSendNative(wire::SolanaSendNative {
        from: sender(Network::Solana),
        to: SOL.into(),
        value: "6".into(),
        chain_id: 0,
    }));
    let sonic = sonic.unwrap();
    order.payload = sonic.encode();
    refused(&limited, (order, sonic), "amount: ");
}

#[test]
fn fees__should_be_limited_per_place() {
    let evm = policy(&format!("most_fee.\"evm:1\" = \"{FEE}\""));
    allowed(&evm, native(1, BOB, 5));
    // 1,000,000 wei.
    refused(
        &evm,
        token(TOKEN, BOB, 1),
        "fee: could take more than this signer's policy allows for evm:1",
    );
    let tight = policy(&format!("most_fee.evm = \"{}\"", FEE - 1));
    refused(&tight, native(1, BOB, 5), "fee: ");
    refused(&tight, native(10, BOB, 5), "fee: ");
    allowed(&tight, message());
    refused(
        &policy("most_fee.solana = \"4999\""),
        lamports(SOL, 5),
        "fee: ",
    );
    allowed(&policy("most_fee.solana = \"5000\""), lamports(SOL, 5));
}

#[test]
fn what_nobody_can_tell__should_be_refused_where_something_is_limited() {
    let limits = [
        "limits = [{ asset = \"evm:1\", per_day = \"9000000\" }]".to_owned(),
        "only_listed_assets = true".to_owned(),
        format!("recipients.evm = [\"{BOB}\"]"),
    ];
    for limit in limits {
        let limited = policy(&limit);
        refused(
            &limited,
            call(BOB, vec![1]),
            "kind: this signer's policy limits evm:1",
        );
        refused(&limited, typed("{}"), "kind: ");
        // Where nothing is unknown, there is no doubt.
        allowed(&limited, message());
        let open = format!("custom_calls = [\"evm:1\"]\ntyped_data = [\"evm\"]\n{limit}");
        allowed(&policy(&open), typed("{}"));
    }
    let elsewhere = policy("limits = [{ asset = \"evm:10\", per_day = \"1\" }]");
    allowed(&elsewhere, call(BOB, vec![1]));
    allowed(&elsewhere, typed(r#"{"chainId": 1}"#));
    refused(&elsewhere, typed("{}"), "kind: ");
    let never = policy("custom_calls = []\ntyped_data = []");
    refused(
        &never,
        call(BOB, vec![1]),
        "kind: this signer's policy does not allow custom calls",
    );
    refused(
        &never,
        typed("{}"),
        "kind: this signer's policy does not allow typed data",
    );
    // A call without call data does what it says.
    allowed(&never, call(BOB, Vec::new()));
}

#[test]
fn file__should_name_the_key_that_is_wrong() {
    for (text, problem) in [
        (
            "raw_singing = true",
            "raw_singing: unknown key; here can stand: networks, kinds, raw_",
        ),
        ("raw_signing = 1", "raw_signing: must be true or false"),
        ("networks = \"evm\"", "networks: must be a list of strings"),
        ("networks = [\"evm\", 1]", "networks[1]: must be a string"),
        ("networks = [\"eth\"]", "networks[0]: is not a network"),
        (
            "kinds = [\"sendEverything\"]",
            "kinds[0]: is not a payload kind",
        ),
        ("typed_data = true", "typed_data: must be a list of strings"),
        ("recipients = []", "recipients: must be a table"),
        (
            "recipients.evm = [\"0x1\"]",
            "recipients.\"evm\"[0]: must be 0x and 40 hex digits",
        ),
        (
            "recipients.\"evm:x\" = []",
            "recipients.\"evm:x\": must be an EVM chain id",
        ),
        (
            "most_fee.evm = 5",
            "most_fee.\"evm\": must be a whole number in the smallest unit, as a",
        ),
        (
            "most_fee.evm = \"1.5\"",
            "most_fee.\"evm\": must be a whole number",
        ),
        ("limits = 5", "limits: must be tables"),
        ("limits = [5]", "limits[0]: must be a table"),
        (
            "[[limits]]\nper_day = \"1\"",
            "limits[0].asset: is required",
        ),
        (
            "[[limits]]\nasset = \"evm\"\nper_day = \"1\"",
            "limits[0].asset: must name its chain",
        ),
        ("[[limits]]\nasset = \"evm:1\"", "limits[0]: limits nothing"),
        (
            "[[limits]]\nasset = \"evm:1\"\nper_day = \"-1\"",
            "limits[0].per_day: must be a whole",
        ),
        (
            "[[limits]]\nasset = \"evm:1\"\nper_hour = \"1\"",
            "limits[0].per_hour: unknown key; here can stand: asset, per_request, per_day",
        ),
        (
            "[[limits]]\nasset = \"evm:1\"\nper_day = \"1\"\n[[limits]]\nasset = \"evm:1\"\nper_day = \"2\"",
            "limits[1].asset: has limits already",
        ),
        ("\nraw_signing = maybe", "line 2 is not TOML: "),
        (
            "raw_signing = true\nraw_signing = false",
            "line 2 is not TOML: ",
        ),
    ] {
        let fault = Policy::parse(text).unwrap_err();
        assert!(fault.public().starts_with(problem), "{text}: {fault}");
        assert_eq!(fault.class(), &Class::Invalid);
    }
}

#[test]
fn file__should_be_named_when_it_cannot_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.toml");
    assert_eq!(Policy::read(&path).unwrap(), None);
    std::fs::write(&path, "raw = true").unwrap();
    let fault = Policy::read(&path).unwrap_err();
    let expected = format!("policy file {}: raw: unknown key", path.display());
    assert!(fault.public().starts_with(&expected), "{fault}");
    std::fs::write(&path, [0xff]).unwrap();
    assert!(
        Policy::read(&path)
            .unwrap_err()
            .public()
            .contains("cannot be read")
    );
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(
        Policy::read(&path)
            .unwrap_err()
            .public()
            .contains("cannot be read")
    );
}

#[test]
fn sample__should_work_as_it_stands_and_with_its_examples() {
    let sample = include_str!("../../../deploy/policy.toml");
    assert_eq!(policy(sample), Policy::production());
    let open: String = sample
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(example) if !example.starts_with([' ', '#']) => format!("{example}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let open = policy(&open);
    assert_eq!(
        (
            open.limits.len(),
            open.recipients.len(),
            open.most_fee.len()
        ),
        (3, 2, 2)
    );
    allowed(&open, native(1, BOB, 5));
    refused(&open, native(10, BOB, 5), "network: ");
    let shown = open.to_string();
    assert!(
        shown.contains("3 limits, 2 recipient lists, 2 fee limits"),
        "{shown}"
    );
}
