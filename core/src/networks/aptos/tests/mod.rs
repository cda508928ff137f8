#![allow(non_snake_case)]

mod fee_payer;
mod json;
mod replacing;
mod text;
mod transactions;

use ed25519_dalek::{Signer as _, SigningKey};
use proptest::prelude::*;
use sha3::Sha3_256;

use super::{
    super::{move_types::parse_type, *},
    *,
};
use crate::{
    networks::{self, DynNetworkRules, FeeLevel, Payload, WireKind},
    schema::wire,
};

const APTOS: &dyn DynNetworkRules = &Aptos;
const BOB: &str = "0xecbecdcd8f64c620cec36ecab0f3e6a256a72ef889c5163ceb7b17e16c4cb3e2";
const USDC: &str =
    "0xf22bede237a07e121b56d91a491eb7bcdfd1f5907926a9e58338f964a01b17fa::asset::USDC";

fn key() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}

fn public_key() -> Vec<u8> {
    key().verifying_key().to_bytes().to_vec()
}

fn from() -> String {
    APTOS.address(&public_key()).unwrap()
}

fn special_address(digit: &str) -> String {
    format!("0x{}{digit}", "0".repeat(63))
}

fn gas(limit: Option<u64>, price: Option<u64>) -> Option<wire::AptosGas> {
    Some(wire::AptosGas {
        max_gas_amount: limit.map(|limit| limit.to_string()),
        gas_unit_price: price.map(|price| price.to_string()),
        ..Default::default()
    })
}

fn send_with(gas_fee: Option<wire::AptosGas>) -> Payload {
    Payload::parse(&WireKind::AptosSendNative(wire::AptosSendNative {
        chain_id: 1,
        from: from(),
        to: BOB.into(),
        value: "5".into(),
        gas_fee,
        ..Default::default()
    }))
    .unwrap()
}

/// Brings its gas.
fn send() -> Payload {
    send_with(gas(Some(2000), Some(100)))
}

fn send_coin(coin_tag: &str) -> Payload {
    Payload::parse(&WireKind::AptosSendCoin(wire::AptosSendCoin {
        chain_id: 126,
        from: from(),
        to: BOB.into(),
        coin_tag: coin_tag.into(),
        amount: "7".into(),
        gas_fee: gas(Some(2000), Some(100)),
        ..Default::default()
    }))
    .unwrap()
}

fn custom(payload: &[u8]) -> Result<Payload, Fault> {
    Payload::parse(&WireKind::AptosSendCustom(wire::AptosSendCustom {
        chain_id: 1,
        from: from(),
        payload: payload.to_vec(),
        gas_fee: gas(Some(2000), Some(100)),
        ..Default::default()
    }))
}

fn message_with(change: impl FnOnce(&mut wire::aptos_message::Message)) -> Result<Payload, Fault> {
    let mut content = wire::aptos_message::Message {
        message: "hello".into(),
        nonce: "1".into(),
        ..Default::default()
    };
    change(&mut content);
    Payload::parse(&WireKind::AptosMessage(wire::AptosMessage {
        from: from(),
        r#type: 0,
        content: Some(content),
    }))
}

fn message() -> Payload {
    message_with(|_| {}).unwrap()
}

/// With nothing that [`send`] does not ask for.
fn chain_data() -> ChainData {
    ChainData {
        sequence_number: 4,
        expiration_timestamp_secs: 1_762_000_600,
        gas_unit_price: None,
        gas_used: None,
        abi: None,
    }
}

fn build(payload: &Payload, chain_data: ChainData) -> Result<Unsigned, Fault> {
    APTOS.build(payload, &chain_data.into(), &public_key())
}

fn asked(payload: &Payload) -> Queries {
    match APTOS.queries(payload) {
        networks::Queries::Aptos(queries) => queries,
        other => panic!("{other:?}"),
    }
}

fn signature(message: &[u8]) -> Signature {
    let signature = key().sign(message);
    Signature::Ed25519 {
        r: *signature.r_bytes(),
        s: *signature.s_bytes(),
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, Fault>, sentence: &str) {
    let fault = outcome.unwrap_err();
    assert_eq!(fault.class(), &Class::Invalid, "{fault:?}");
    assert!(fault.message().starts_with(sentence), "{fault}");
}

#[test]
fn fee_level__should_be_for_a_price_that_is_left_to_the_nodes() {
    let level = |number: i32, price: Option<&str>| wire::AptosGas {
        gas_unit_price: price.map(Into::into),
        fee_level: number,
        ..Default::default()
    };
    for (number, expected) in [
        (0, FeeLevel::Normal),
        (1, FeeLevel::Slow),
        (2, FeeLevel::Normal),
        (3, FeeLevel::Fast),
    ] {
        let payload = send_with(Some(level(number, None)));
        let queries = asked(&payload);
        assert_eq!((queries.gas_unit_price, queries.level), (true, expected));
        assert_eq!(Payload::decode(&payload.encode()).unwrap(), payload);
    }
    let WireKind::AptosSendNative(wire) = send_with(None).to_wire() else {
        unreachable!()
    };
    for (gas, problem) in [
        (level(3, Some("5")), "cannot be combined with gasUnitPrice"),
        (level(4, None), "must "),
    ] {
        let wire = wire::AptosSendNative {
            gas_fee: Some(gas),
            ..wire.clone()
        };
        refused(
            Payload::parse(&WireKind::AptosSendNative(wire)),
            &format!("aptosSendNative.gasFee.feeLevel: {problem}"),
        );
    }
}

#[test]
fn needs__should_name_what_the_request_does_not_bring() {
    let wanted = |limit, price| {
        let queries = asked(&send_with(gas(limit, price)));
        let given = queries
            .simulate
            .as_ref()
            .and_then(|simulate| simulate.gas_unit_price);
        (queries.gas_unit_price, queries.simulate.is_some(), given)
    };
    assert_eq!(wanted(Some(1), Some(2)), (false, false, None));
    assert_eq!(wanted(None, Some(2)), (false, true, Some(2)));
    assert_eq!(wanted(Some(1), None), (true, false, None));
    assert_eq!(wanted(None, None), (true, true, None));
    let bare = asked(&send_with(None));
    assert_eq!((bare.chain_id, bare.from.as_str()), (1, from().as_str()));
    assert_eq!(bare, asked(&send_with(gas(None, None))));
    assert_eq!(bare.abi, None);
    assert!(APTOS.is_sequenced(&bare.clone().into()));
    // As they are stored.
    let bytes = bcs::to_bytes(&bare).unwrap();
    assert_eq!(bcs::from_bytes::<Queries>(&bytes).unwrap(), bare);
    assert_eq!(APTOS.queries(&message()), networks::Queries::Nothing);
    assert!(!APTOS.is_sequenced(&networks::Queries::Nothing));
}

#[test]
fn valid_until__should_be_the_expiration() {
    let payload = send();
    let unsigned = build(&payload, chain_data()).unwrap();
    let made = [signature(&unsigned.signing[0].message)];
    let signed = APTOS.assemble(&payload, &unsigned, &made, &public_key());
    let mut signed = signed.unwrap().unwrap();
    let end_ms = Some(ChainMoment::at_ms(1_762_000_600_000));
    assert_eq!(APTOS.valid_until(&signed), Ok(end_ms));
    signed.transaction.truncate(180);
    assert_eq!(APTOS.valid_until(&signed).unwrap_err().class(), &Class::Bug);
}

#[test]
fn settle__should_take_the_lowest_free_sequence_number() {
    let settled = |taken: &[u64]| {
        let taken = taken.iter().copied().map(Resource::Nonce).collect();
        match APTOS
            .allocate(&send(), chain_data().into(), &taken)
            .unwrap()
        {
            Allocation::ChainData(networks::ChainData::Aptos(settled)) => settled,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(settled(&[]), chain_data());
    assert_eq!(settled(&[3, 4, 5, 7]).sequence_number, 6);
    let unsigned = build(&send(), settled(&[4])).unwrap();
    assert_eq!(
        APTOS.reservations(&send(), &unsigned).unwrap(),
        [Resource::Nonce(5)]
    );
    let lower = APTOS.with_next_number(chain_data().into(), 2).unwrap();
    let lower = APTOS.allocate(&send(), lower, &[Resource::Nonce(2)].into());
    let Ok(Allocation::ChainData(networks::ChainData::Aptos(lower))) = lower else {
        panic!("{lower:?}");
    };
    assert_eq!(lower.sequence_number, 3);
    let nothing = build_message(&message());
    assert_eq!(APTOS.reservations(&message(), &nothing).unwrap(), []);
    let last = ChainData {
        sequence_number: u64::MAX,
        ..chain_data()
    };
    let taken = [Resource::Nonce(u64::MAX)].into();
    let fault = APTOS.allocate(&send(), last.into(), &taken).unwrap_err();
    assert_eq!(fault.class(), &Class::Bug);
}

fn build_message(payload: &Payload) -> Unsigned {
    APTOS
        .build(payload, &networks::ChainData::Nothing, &public_key())
        .unwrap()
}

#[test]
fn gas__should_be_the_requests_or_the_chains() {
    let built = |limit, price, used, estimate| {
        let chain_data = ChainData {
            gas_used: used,
            gas_unit_price: estimate,
            ..chain_data()
        };
        build(&send_with(gas(limit, price)), chain_data)
            .map(|unsigned| tx::built(&unsigned.bytes).unwrap())
            .map(|(raw, _)| (raw.max_gas_amount, raw.gas_unit_price))
    };
    assert_eq!(built(Some(9), Some(8), None, None).unwrap(), (9, 8));
    assert_eq!(built(None, Some(8), Some(7), None).unwrap(), (11, 8));
    assert_eq!(built(Some(9), None, None, Some(3)).unwrap(), (9, 3));
    assert_eq!(built(None, None, Some(1), Some(0)).unwrap(), (2, 0));
    let gas = "aptosSendNative.gasFee.maxGasAmount: cannot be determined: the chain node";
    refused(
        built(None, None, Some(0), Some(1)),
        &format!("{gas} reports zero gas"),
    );
    refused(
        built(None, None, Some(u64::MAX), Some(1)),
        &format!("{gas}'s gas is out of range"),
    );
    // Too much or too little was answered.
    for (limit, price, used, estimate) in [
        (Some(9), Some(8), Some(7), None),
        (Some(9), Some(8), None, Some(7)),
        (None, Some(8), None, None),
        (Some(9), None, None, None),
    ] {
        let fault = built(limit, price, used, estimate).unwrap_err();
        assert_eq!(fault.class(), &Class::Bug);
    }
    let unsigned = build(&send(), chain_data()).unwrap();
    assert_eq!(
        APTOS.most_fee(&unsigned.bytes).unwrap(),
        U256::from(200_000)
    );
    let most = send_with(self::gas(Some(u64::MAX), Some(u64::MAX)));
    let most = APTOS
        .most_fee(&build(&most, chain_data()).unwrap().bytes)
        .unwrap();
    assert_eq!(
        most,
        U256::from(u128::from(u64::MAX) * u128::from(u64::MAX))
    );
    assert_eq!(APTOS.most_fee(&[1]).unwrap_err().class(), &Class::Bug);
    assert_eq!(APTOS.most_fee(&[]).unwrap(), U256::ZERO);
}

#[test]
fn build__should_refuse_facts_and_wallets_that_do_not_fit() {
    let class = |payload: &Payload, chain_data: &networks::ChainData, key: &[u8]| {
        APTOS
            .build(payload, chain_data, key)
            .unwrap_err()
            .class()
            .clone()
    };
    let with_abi = ChainData {
        abi: Some(Abi {
            params: vec!["address".into(), "u64".into()],
            type_parameters: 0,
        }),
        ..chain_data()
    };
    let other = SigningKey::from_bytes(&[8; 32]).verifying_key().to_bytes();
    let key = public_key();
    assert_eq!(
        class(&send(), &networks::ChainData::Nothing, &key),
        Class::Bug
    );
    assert_eq!(class(&send(), &with_abi.into(), &key), Class::Bug);
    assert_eq!(class(&message(), &chain_data().into(), &key), Class::Bug);
    assert_eq!(class(&send(), &chain_data().into(), &other), Class::Invalid);
}

#[test]
fn assemble__should_take_the_signature_of_this_transaction_only() {
    let mut unsigned = build(&send(), chain_data()).unwrap();
    let good = [signature(&unsigned.signing[0].message)];
    let signed = APTOS
        .assemble(&send(), &unsigned, &good, &public_key())
        .unwrap()
        .unwrap();
    let bytes = hex::decode(&signed.transaction[2..]).unwrap();
    assert!(bytes.starts_with(&unsigned.bytes));
    // Authenticator 0, then key and signature with their lengths.
    assert_eq!(bytes.len(), unsigned.bytes.len() + 1 + 1 + 32 + 1 + 64);
    let other = build(
        &send(),
        ChainData {
            sequence_number: 5,
            ..chain_data()
        },
    )
    .unwrap();
    unsigned.signing = other.signing;
    let good = [signature(&unsigned.signing[0].message)];
    let fault = APTOS
        .assemble(&send(), &unsigned, &good, &public_key())
        .unwrap_err();
    assert_eq!(fault.class(), &Class::Bug);
    let text = build_message(&message());
    let good = [signature(&text.signing[0].message)];
    assert_eq!(
        APTOS
            .assemble(&message(), &text, &good, &public_key())
            .unwrap(),
        None
    );
}

#[test]
fn simulation__should_have_all_the_gas_that_can_be_paid() {
    let queries = asked(&send_with(None));
    let chain_data = ChainData {
        gas_unit_price: Some(100),
        ..chain_data()
    };
    let gas_of = |bytes: &[u8], authenticator: usize| {
        let (raw, _) = tx::built(&bytes[..bytes.len() - authenticator]).unwrap();
        (raw.max_gas_amount, raw.gas_unit_price)
    };
    let bytes = simulation(&queries, &chain_data, 12_345, Some(&public_key())).unwrap();
    assert_eq!(gas_of(&bytes, 99), (123, 100));
    assert!(bytes.ends_with(&[0; 64]));
    let bytes = simulation(&queries, &chain_data, u64::MAX, None).unwrap();
    assert_eq!(gas_of(&bytes, 2), (MAX_GAS, 100));
    // SingleSender, NoAccountAuthenticator.
    assert!(bytes.ends_with(&[4, 4]));
    let fault = simulation(&queries, &chain_data, 99, None).unwrap_err();
    assert_eq!(fault.execute_code(), ExecuteCode::InsufficientGasFee);
    let free = ChainData {
        gas_unit_price: Some(0),
        ..chain_data.clone()
    };
    assert_eq!(
        gas_of(&simulation(&queries, &free, 0, None).unwrap(), 2),
        (MAX_GAS, 0)
    );
    // What is simulated is what is built.
    let built = build(
        &send_with(None),
        ChainData {
            gas_used: Some(82),
            ..chain_data.clone()
        },
    )
    .unwrap();
    assert_eq!(
        built.bytes,
        bytes_with_gas(&simulation(&queries, &chain_data, 12_300, None).unwrap())
    );
    let whole = asked(&send());
    for (queries, chain_data) in [(&whole, &chain_data), (&queries, &self::chain_data())] {
        let fault = simulation(queries, chain_data, 1_000_000, None).unwrap_err();
        assert_eq!(fault.class(), &Class::Bug);
    }
}

fn bytes_with_gas(simulated: &[u8]) -> &[u8] {
    &simulated[..simulated.len() - 2]
}

#[test]
fn message__should_have_its_lines_in_order() {
    let full = |change: fn(&mut wire::aptos_message::Message)| {
        let payload = message_with(change).unwrap();
        String::from_utf8(build_message(&payload).signing[0].message.clone()).unwrap()
    };
    assert_eq!(full(|_| {}), "APTOS\nmessage: hello\nnonce: 1");
    let all = full(|content| {
        content.address = Some(from().to_uppercase().replacen("0X", "0x", 1));
        content.application = Some("app".into());
        content.chain_id = Some(126);
        content.message = "a\nb".into();
    });
    let address = from();
    assert_eq!(
        all,
        format!(
            "APTOS\naddress: {address}\napplication: app\nchainId: 126\nmessage: a\nb\nnonce: 1"
        )
    );
    let empty = full(|content| {
        content.address = Some(String::new());
        content.application = Some(String::new());
        (content.message, content.nonce) = Default::default();
    });
    assert_eq!(empty, "APTOS\nmessage: \nnonce: ");
}

#[test]
fn message__should_refuse_what_would_forge_lines_or_another_sender() {
    refused(
        message_with(|content| content.address = Some(BOB.into())),
        "aptosMessage.content.address: must be from",
    );
    for forged in [
        "1\nmessage: y",
        "1\r",
        "\u{0}",
        "\u{85}",
        "\u{2028}",
        "\u{7f}",
    ] {
        refused(
            message_with(|content| content.nonce = forged.into()),
            "aptosMessage.content.nonce: must be one line",
        );
        refused(
            message_with(|content| content.application = Some(forged.into())),
            "aptosMessage.content.application: must be one line",
        );
    }
    for chain_id in [0, -1, 2, 382] {
        refused(
            message_with(|content| content.chain_id = Some(chain_id)),
            "aptosMessage.content.chainId: must be 1",
        );
    }
    let mut bare = wire::AptosMessage {
        from: from(),
        ..Default::default()
    };
    let parse = |wire: &wire::AptosMessage| Payload::parse(&WireKind::AptosMessage(wire.clone()));
    refused(parse(&bare), "aptosMessage.content: is required");
    bare.r#type = 2;
    refused(parse(&bare), "aptosMessage.type: ");
}

proptest! {
    #[test]
    fn message__should_never_be_a_transaction(text: String, nonce in "[ -~]{0,40}") {
        let payload = message_with(|content| {
            content.message = text;
            content.nonce = nonce;
        }).unwrap();
        let signed = build_message(&payload).signing[0].message.clone();
        prop_assert!(signed.starts_with(b"APTOS\n"));
        prop_assert!(!tx::signing_message(&[]).starts_with(b"A"));
        prop_assert_eq!(Payload::decode(&payload.encode()).unwrap(), payload);
    }
}
