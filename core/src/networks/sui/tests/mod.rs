#![allow(non_snake_case)]

use ed25519_dalek::{Signer as _, SigningKey};
use proptest::prelude::*;
use sui_sdk_types::{
    Address, Digest, MoveStruct, Object, ObjectData, ObjectReference, Owner, StructTag,
    TransactionExpiration, TypeTag,
};

use super::{
    super::{address::MAX_TYPE_BYTES, *},
    *,
};
use crate::{
    networks::{
        self, DynNetworkRules, Payload, WireKind,
        outflow::{Asset, ChainScope, ContentKind},
        solana,
        sui::batch_native,
    },
    schema::wire,
};

mod custom;
mod payments;
mod selection;
mod settling;
mod sponsored;

const SUI_CHAIN: &dyn DynNetworkRules = &Sui;
const TO: &str = "0x2e11e011732dddf470541604330633038cccb0c199170662795b0dd34bf742da";
const TOKEN: &str = "0xabc::tok::TOK";
const CHAIN: [u8; 32] = [7; 32];

fn signing_key() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}

fn public_key() -> Vec<u8> {
    signing_key().verifying_key().to_bytes().to_vec()
}

fn from() -> String {
    SUI_CHAIN.address(&public_key()).unwrap()
}

fn gas(budget: Option<&str>, price: Option<&str>) -> Option<wire::SuiGas> {
    Some(wire::SuiGas {
        budget: budget.map(Into::into),
        price: price.map(Into::into),
    })
}

fn native_with(value: &str, gas_fee: Option<wire::SuiGas>) -> Payload {
    Payload::parse(&WireKind::SuiSendNative(wire::SuiSendNative {
        recipients: vec![],
        from: from(),
        to: TO.into(),
        value: value.into(),
        gas_fee,
    }))
    .unwrap()
}

/// With a budget of 1000 and a price of 10.
fn native(value: u64) -> Payload {
    native_with(&value.to_string(), gas(Some("1000"), Some("10")))
}

fn coin_of(coin_tag: &str, amount: u64) -> Payload {
    Payload::parse(&WireKind::SuiSendCoin(wire::SuiSendCoin {
        recipients: vec![],
        from: from(),
        to: TO.into(),
        coin_tag: coin_tag.into(),
        amount: amount.to_string(),
        gas_fee: gas(Some("1000"), Some("10")),
    }))
    .unwrap()
}

fn token(amount: u64) -> Payload {
    coin_of(TOKEN, amount)
}

/// A coin object that the sender owns, with the digest that it would have.
fn coin(kind: &str, number: u8, balance: u64) -> CoinObject {
    let kind = parse_coin_type(kind).unwrap();
    let id = Address::new([number; 32]);
    let mut contents = id.as_bytes().to_vec();
    contents.extend(balance.to_le_bytes());
    let data = MoveStruct::new(StructTag::coin(kind.into()), true, 3, contents).unwrap();
    let object = Object::new(
        ObjectData::Struct(data),
        Owner::Address(parse_address(&from()).unwrap()),
        Digest::new([9; 32]),
        988_000,
    );
    CoinObject {
        object_id: id.to_string(),
        version: 3,
        digest: object.digest().to_base58(),
        balance,
        origin: Some(CoinOrigin {
            previous_transaction: Digest::new([9; 32]).to_base58(),
            storage_rebate: 988_000,
        }),
    }
}

fn chain_data(sui: &[u64], tokens: &[u64]) -> ChainData {
    ChainData {
        reference_gas_price: None,
        gas_used: None,
        sui_coins: (1..).zip(sui).map(|(n, one)| coin(SUI, n, *one)).collect(),
        sui_address_balance: 0,
        coins: (101..)
            .zip(tokens)
            .map(|(n, one)| coin(TOKEN, n, *one))
            .collect(),
        coin_address_balance: 0,
        required: Vec::new(),
        validity: Some(SuiValidity {
            epoch: 5,
            chain_identifier: Digest::new(CHAIN).to_base58(),
            nonce: Some(77),
        }),
    }
}

fn build(payload: &Payload, chain_data: &ChainData) -> Result<Unsigned, Fault> {
    SUI_CHAIN.build(payload, &chain_data.clone().into(), &public_key())
}

fn read(unsigned: &Unsigned) -> Transaction {
    tx::decode(&unsigned.bytes).unwrap()
}

fn sign(message: &[u8]) -> Signature {
    let signature = signing_key().sign(message);
    Signature::Ed25519 {
        r: *signature.r_bytes(),
        s: *signature.s_bytes(),
    }
}

#[test]
fn address__should_be_0x_and_64_digits() {
    for text in [
        "",
        "0x",
        "0x2",
        "2e11e011732dddf470541604330633038cccb0c199170662795b0dd34bf742da",
        "0X2e11e011732dddf470541604330633038cccb0c199170662795b0dd34bf742da",
        "0x2e11e011732dddf470541604330633038cccb0c199170662795b0dd34bf742dg",
        "0x2e11e011732dddf470541604330633038cccb0c199170662795b0dd34bf742d",
        "0x2e11e011732dddf470541604330633038cccb0c199170662795b0dd34bf742da0",
        " 0x2e11e011732dddf470541604330633038cccb0c199170662795b0dd34bf742da",
        "0x0x2e11e011732dddf470541604330633038cccb0c199170662795b0dd34bf742",
    ] {
        assert_eq!(parse_address(text), Err(AddressError::Form), "{text}");
    }
    let upper = TO.to_uppercase().replace("0X", "0x");
    assert_eq!(SUI_CHAIN.parse_address(&upper).unwrap(), TO);
    for key in [&[0xff; 32][..], &[0; 32], &[2; 31], &[]] {
        assert!(SUI_CHAIN.address(key).is_err());
    }
}

#[test]
fn coin_type__should_have_one_form() {
    let full = format!("0x{}abc::tok::TOK", "0".repeat(61));
    for text in [TOKEN, "0x0abc::tok::TOK", "0xABC::tok::TOK", full.as_str()] {
        assert_eq!(SUI_CHAIN.parse_token(text).unwrap(), full);
    }
    let pair = SUI_CHAIN.parse_token("0x2::lp::LP<0xabc::tok::TOK,u8>");
    assert_eq!(
        pair.unwrap(),
        format!("0x{}2::lp::LP<{full}, u8>", "0".repeat(63))
    );
    let place = ChainScope::network(Network::Sui);
    for text in ["0x2::sui::SUI", "0x002::sui::SUI", SUI] {
        assert_eq!(SUI_CHAIN.parse_token(text).unwrap(), SUI);
        assert_eq!(Asset::parse(&format!("sui/{text}")), Ok(Asset::coin(place)));
        let payload = coin_of(text, 1);
        assert_eq!(payload.outflow(Network::Sui).spends[0].asset.token, None);
        assert_eq!(payload.kind(), "suiSendCoin");
    }
    let listed = Asset::parse("sui/0xabc::tok::TOK").unwrap();
    assert_eq!(listed.token.as_deref(), Some(full.as_str()));
    assert_eq!(token(1).outflow(Network::Sui).spends[0].asset, listed);
    let long = format!("0x2::lp::LP<{}u8>", "u8,".repeat(1000));
    for text in [
        "",
        "SUI",
        "u64",
        "0x2::sui",
        "0x2::sui::SUI<",
        "0x2::sui::SUI ",
        &long,
    ] {
        assert!(parse_coin_type(text).is_err(), "{text}");
    }
}

#[test]
fn needs__should_name_what_the_request_does_not_bring() {
    let asked = |payload: &Payload| match SUI_CHAIN.queries(payload) {
        networks::Queries::Sui(queries) => (queries.price, queries.simulation),
        other => panic!("{other:?}"),
    };
    assert_eq!(asked(&native(1)), (false, false));
    assert_eq!(asked(&native_with("1", None)), (true, true));
    assert_eq!(
        asked(&native_with("1", gas(Some("1"), None))),
        (true, false)
    );
    assert_eq!(
        asked(&native_with("1", gas(None, Some("1")))),
        (false, true)
    );
    assert!(SUI_CHAIN.is_sequenced(&SUI_CHAIN.queries(&native(1))));
    assert!(!SUI_CHAIN.is_sequenced(&networks::Queries::Nothing));
}

#[test]
fn message__should_be_a_message_whatever_it_says() {
    let transaction = build(&native(5), &chain_data(&[10_000], &[])).unwrap();
    for (content, nature) in [
        (&b""[..], (ContentKind::Message, 0)),
        (b"hello", (ContentKind::Message, 0)),
        (&transaction.bytes, (ContentKind::TypedData, 1)),
    ] {
        let payload = Payload::parse(&WireKind::SuiMessage(wire::SuiMessage {
            from: from(),
            r#type: 0,
            content: content.to_vec(),
        }))
        .unwrap();
        assert_eq!(SUI_CHAIN.queries(&payload), networks::Queries::Nothing);
        let outflow = payload.outflow(Network::Sui);
        assert_eq!((outflow.nature, outflow.spends.len()), nature);
        let unsigned = SUI_CHAIN
            .build(&payload, &networks::ChainData::Nothing, &public_key())
            .unwrap();
        assert!(unsigned.bytes.is_empty());
        let [input] = unsigned.signing.as_slice() else {
            unreachable!()
        };
        assert_ne!(input.message, transaction.signing[0].message);
        let signature = sign(&input.message);
        let signed = SUI_CHAIN.assemble(&payload, &unsigned, &[signature], &public_key());
        assert_eq!(signed, Ok(None));
    }
}

#[test]
fn parse_token__should_take_only_types_whose_canonical_form_it_takes() {
    let long = |count: usize| format!("0x1::a::B<{}>", vec!["0x1::a::B"; count].join(","));
    let canonical = SUI_CHAIN.parse_token(&long(20)).unwrap();
    assert_eq!(SUI_CHAIN.parse_token(&canonical), Ok(canonical));
    // Short enough as it is, and not with addresses in full.
    assert!(long(100).len() < MAX_TYPE_BYTES);
    assert!(SUI_CHAIN.parse_token(&long(100)).is_err());
}
