#![allow(non_snake_case)]

use super::*;
use crate::{
    networks::{
        Payload, WireKind,
        outflow::{ContentKind, Outflow, Spend},
    },
    schema::wire::{self, evm_message},
};

const ALICE: &str = "0x37b5ba07902c51ef69dE0BbEa42A11a1A94e3ff6";
const BOB: &str = "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be";
const TOKEN: &str = "0xdAC17F958D2ee523a2206206994597C13D831ec7";
const SOL: &str = "CxvTXCepdDTH4PXUwU2Pf3FBi87L7VwXtzsgeAm1xVsS";

const FUNGIBLE: &str = "0x357b0b74bc833e95a115ad22604854d6b0fca151cecd94111770e5d6ffc9dc2b";
// LayerZero's USDC: the coin, and the fungible asset that mainnet has paired with it.
const USDC_COIN: &str =
    "aptos:1/0xf22bede237a07e121b56d91a491eb7bcdfd1f5907926a9e58338f964a01b17fa::asset::USDC";
const USDC: &str = "aptos:1/0x2b3be0a97a73c87ff62cbdd36837a9fb5bbd1d7f06a73b7ed62ec15c5326c1b8";

fn outflow(kind: WireKind, wallet: Network) -> Outflow {
    Payload::parse(&kind).unwrap().outflow(wallet)
}

fn evm(kind: WireKind) -> Outflow {
    outflow(kind, Network::Evm)
}

/// (asset, amount, recipient), as they are printed.
fn shown(outflow: &Outflow) -> Vec<(String, String, Option<&str>)> {
    let one = |spend: &'_ Spend| (spend.asset.to_string(), spend.amount.to_string());
    outflow
        .spends
        .iter()
        .map(|spend| {
            let (asset, amount) = one(spend);
            (asset, amount, spend.recipient.as_deref())
        })
        .collect()
}

fn custom(to: &str, value: &str, input: Vec<u8>) -> Outflow {
    evm(WireKind::EvmSendCustom(wire::EvmSendCustom {
        chain_id: 10,
        from: ALICE.into(),
        to: to.into(),
        value: value.into(),
        input,
        ..Default::default()
    }))
}

fn transfer_call(amount: u8) -> Vec<u8> {
    let mut input = vec![0xa9, 0x05, 0x9c, 0xbb];
    input.extend([0; 12]);
    input.extend(hex::decode(&BOB[2..]).unwrap());
    input.extend([0; 31]);
    input.push(amount);
    input
}

#[test]
fn transfers__should_say_what_goes_where() {
    let native = evm(WireKind::EvmSendNative(wire::EvmSendNative {
        chain_id: 1,
        from: ALICE.into(),
        to: BOB.to_lowercase(),
        value: "5".into(),
        ..Default::default()
    }));
    assert_eq!(native.nature, ContentKind::Transfer);
    assert_eq!(native.place, ChainScope::evm(1));
    assert_eq!(shown(&native), [("evm:1".into(), "5".into(), Some(BOB))]);

    let token = evm(WireKind::EvmSendErc20(wire::EvmSendErc20 {
        chain_id: 1,
        from: ALICE.into(),
        to: BOB.into(),
        token_contract_address: TOKEN.to_lowercase(),
        amount: "7".into(),
        ..Default::default()
    }));
    assert_eq!(token.nature, ContentKind::Transfer);
    let asset = format!("evm:1/{TOKEN}");
    assert_eq!(shown(&token), [(asset, "7".into(), Some(BOB))]);
}

#[test]
fn solana__should_be_one_place_whatever_the_kind_is_called() {
    let send = || wire::SolanaSendNative {
        from: SOL.into(),
        to: SOL.into(),
        value: "9".into(),
        chain_id: 0,
        ..Default::default()
    };
    let solana = outflow(WireKind::SolanaSendNative(send()), Network::Solana);
    let sonic = outflow(WireKind::SonicSvmSendNative(send()), Network::Solana);
    // The same bytes are signed for both.
    assert_eq!(solana, sonic);
    assert_eq!(shown(&solana), [("solana".into(), "9".into(), Some(SOL))]);
}

#[test]
fn custom_calls__should_count_what_is_plain_to_see() {
    let plain = custom(BOB, "3", Vec::new());
    assert_eq!(plain.nature, ContentKind::Transfer);
    assert_eq!(shown(&plain), [("evm:10".into(), "3".into(), Some(BOB))]);

    let call = custom(BOB, "3", vec![1, 2, 3]);
    assert_eq!(call.nature, ContentKind::Custom);
    assert_eq!(shown(&call), [("evm:10".into(), "3".into(), Some(BOB))]);

    let creation = custom("", "3", vec![1]);
    assert_eq!(creation.nature, ContentKind::Custom);
    assert_eq!(shown(&creation), [("evm:10".into(), "3".into(), None)]);

    // A transfer of tokens in disguise, with and without more behind it.
    for more in [&[][..], &[0; 5]] {
        let disguised = custom(TOKEN, "0", [&transfer_call(8), more].concat());
        assert_eq!(disguised.nature, ContentKind::Custom);
        assert_eq!(
            shown(&disguised),
            [
                ("evm:10".into(), "0".into(), Some(TOKEN)),
                (format!("evm:10/{TOKEN}"), "8".into(), Some(BOB)),
            ]
        );
    }
    // A contract reads zeros behind the end.
    let short = custom(TOKEN, "0", transfer_call(8)[..67].to_vec());
    assert_eq!(shown(&short)[1].2, Some(BOB));
}

#[test]
fn messages__should_be_told_apart_and_bound_to_the_chain_that_is_signed() {
    let message = |form: evm_message::Type, content: &str| {
        evm(WireKind::EvmMessage(wire::EvmMessage {
            chain_id: 1,
            from: ALICE.into(),
            r#type: form.into(),
            content: content.as_bytes().to_vec(),
        }))
    };
    let typed = |domain: &str| {
        let content = format!(
            r#"{{"types": {{"A": [{{"name": "x", "type": "string"}}]}}, "primaryType": "A",
                "domain": {domain}, "message": {{"x": "y"}}}}"#
        );
        message(evm_message::Type::SignTypedData, &content)
    };
    let text = message(evm_message::Type::PersonalSign, "hello");
    let whole = ChainScope::network(Network::Evm);
    assert_eq!((text.nature, text.place), (ContentKind::Message, whole));
    for (domain, place) in [
        (r#"{"chainId": 1}"#, ChainScope::evm(1)),
        (r#"{"chainId": "0x1"}"#, ChainScope::evm(1)),
        // The request names a chain, the signature does not.
        (r#"{"name": "n"}"#, whole),
    ] {
        let typed = typed(domain);
        assert_eq!((typed.nature, typed.place), (ContentKind::TypedData, place));
        assert_eq!(typed.spends, [Spend::unseen(place)]);
    }
    // Contracts obey signatures of digests: they are no texts.
    for content in [
        "d".repeat(32),
        "d".repeat(64),
        format!("0x{}", "d".repeat(64)),
        "a\0b".to_owned(),
    ] {
        let digest = message(evm_message::Type::PersonalSign, &content);
        assert_eq!(
            (digest.nature, digest.place),
            (ContentKind::TypedData, whole)
        );
    }
    let raw = WireKind::RawMessage(wire::RawMessage {
        from: SOL.into(),
        content: vec![1],
        ecdsa_hash_function: 0,
    });
    let raw = outflow(raw, Network::Solana);
    assert_eq!(
        (raw.nature, raw.place),
        (ContentKind::Raw, ChainScope::network(Network::Solana))
    );
}

#[test]
fn solana_message__should_be_raw_unless_it_is_a_text_or_in_the_off_chain_format() {
    let nature = |content: &[u8]| {
        let message = WireKind::SolanaMessage(wire::SolanaMessage {
            from: SOL.into(),
            content: content.to_vec(),
            ..Default::default()
        });
        outflow(message, Network::Solana).nature
    };
    let key = crate::networks::solana::parse_key(SOL).unwrap().to_bytes();
    let off_chain = |key: &[u8; 32]| [&b"\xffsolana offchain\x01\x01"[..], key, b"hello"].concat();
    assert_eq!(nature(b"hello"), ContentKind::Message);
    assert_eq!(nature(&off_chain(&key)), ContentKind::Message);
    assert_eq!(nature(&off_chain(&[7; 32])), ContentKind::Raw);
    for opaque in [
        &b""[..],
        &[7; 32],
        &[7; 31],
        b"a text of exactly 32 bytes: raw.",
        b"APTOS\nmessage: hello\nnonce: 1",
        "d".repeat(64).as_bytes(),
    ] {
        assert_eq!(nature(opaque), ContentKind::Raw, "{opaque:?}");
    }
}

#[test]
fn places__should_cover_their_chains() {
    let (all, one, ten) = (
        ChainScope::network(Network::Evm),
        ChainScope::evm(1),
        ChainScope::evm(10),
    );
    assert!(all.covers(&one) && one.covers(&one));
    assert!(!one.covers(&ten) && !one.covers(&all));
    assert!(all.meets(&one) && one.meets(&all) && !one.meets(&ten));
    assert!(!ChainScope::network(Network::Solana).meets(&all));
}

#[test]
fn assets__should_be_read_as_they_are_printed() {
    for text in [
        "evm:1",
        "solana",
        &format!("evm:137/{TOKEN}"),
        &format!("solana/{SOL}"),
        "aptos:1",
        &format!("aptos:126/{FUNGIBLE}"),
    ] {
        assert_eq!(Asset::parse(text).unwrap().to_string(), text);
    }
    let lower = format!("evm:137/{}", TOKEN.to_lowercase());
    assert_eq!(
        Asset::parse(&lower).unwrap().to_string(),
        format!("evm:137/{TOKEN}")
    );
    for (text, shown) in [
        (
            "evm:42220/0x471ece3750da237f93b8e339c536989b8978a438",
            "evm:42220",
        ),
        ("aptos:1/0x1::aptos_coin::AptosCoin", "aptos:1"),
        ("aptos:1/0xa", "aptos:1"),
        (USDC_COIN, USDC),
    ] {
        assert_eq!(Asset::parse(text).unwrap().to_string(), shown);
    }
    for (text, problem) in [
        ("", "is not a network"),
        ("ethereum", "is not a network"),
        ("evm", "must name its chain"),
        ("evm:", "must be an EVM chain id"),
        ("evm:0", "must be an EVM chain id"),
        ("evm:01", "must be an EVM chain id"),
        ("evm:9223372036854775808", "must be an EVM chain id"),
        ("evm:1/", "0x and 40 hex digits"),
        ("evm:1/0x12", "0x and 40 hex digits"),
        ("solana:101", "good on every chain of the network"),
        ("aptos", "must name its chain, e.g. aptos:1"),
        ("aptos:2", "must be aptos:1 (Aptos) or aptos:126 (Movement)"),
        ("aptos:1/u64", "must be an Aptos address"),
        ("aptos:1/0x1::a", "must be a coin type"),
    ] {
        let fault = Asset::parse(text).unwrap_err();
        assert!(fault.message().contains(problem), "{text}: {fault}");
    }
}
