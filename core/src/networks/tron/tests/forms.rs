//! Addresses, tokens and payloads: what is taken and how it is shown.

use proptest::prelude::*;

use super::*;
use crate::networks::outflow::{Asset, ContentKind};

#[track_caller]
fn refused(kind: &WireKind, sentence: &str) {
    let fault = Payload::parse(kind).unwrap_err();
    assert_eq!(fault.class(), &Class::Invalid);
    assert!(fault.message().starts_with(sentence), "{fault}");
}

#[test]
fn address__should_be_base58check_of_a_41_and_20_bytes() {
    assert_eq!(parse_address(BOB).unwrap().to_string(), BOB);
    assert_eq!(TRON.parse_address(USDT).unwrap(), USDT);
    let typo = BOB.replace("MB", "M1");
    assert_eq!(parse_address(&typo), Err(AddressError::Checksum));
    let check = |bytes: &[u8]| bs58::encode(bytes).with_check().into_string();
    for text in [
        "",
        "T",
        &BOB[..32],
        &format!("{BOB}1"),
        &format!("1{BOB}"),
        &format!(" {BOB}"),
        "TX39nY681TTGNLgVkaX7Nkq56F5YRePoM0",
        "41e7199eed514888c6ee11a7a93bdee0207d5054d7",
        "0xe7199eed514888c6ee11a7a93bdee0207d5054d7",
        "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa",
        &check(&[0x41; 20]),
        &check(&[0x41; 22]),
        &check(&[0xa0; 21]),
        &bs58::encode([0x41; 25]).into_string().replace('T', "é"),
        &"1".repeat(100_000),
        &"T".repeat(100_000),
    ] {
        assert_eq!(
            parse_address(text),
            Err(AddressError::Form),
            "{}",
            text.len()
        );
    }
    for key in [&[][..], &[2; 32], &[0xff; 33], &[4; 65]] {
        assert!(TRON.address(key).is_err());
    }
}

#[test]
fn token__should_be_the_number_of_an_asset_or_a_contract() {
    for token in ["1002000", "1", "9223372036854775807", USDT] {
        assert_eq!(TRON.parse_token(token).unwrap(), token);
        let asset = format!("tron/{token}");
        assert_eq!(Asset::parse(&asset).unwrap().to_string(), asset);
    }
    for token in [
        "",
        "0",
        "01002000",
        "-1",
        "abc",
        "9223372036854775808",
        &"1".repeat(34),
        &BOB.replace("MB", "M1"),
        "0xdAC17F958D2ee523a2206206994597C13D831ec7",
    ] {
        let fault = TRON.parse_token(token).unwrap_err();
        assert_eq!(fault.class(), &Class::Invalid, "{token}");
    }
}

#[test]
fn outflow__should_say_what_goes_where() {
    let [native, trc10, trc20] = kinds();
    for (kind, asset, amount) in [
        (native, "tron".to_owned(), 5),
        (trc10, "tron/1002000".to_owned(), 6),
        (trc20, format!("tron/{USDT}"), 7),
    ] {
        let outflow = payload(&kind).outflow(Network::Tron);
        assert_eq!(outflow.nature, ContentKind::Transfer);
        let [spend] = outflow.spends.as_slice() else {
            panic!("{outflow:?}")
        };
        assert_eq!(spend.asset, Asset::parse(&asset).unwrap());
        assert_eq!(spend.amount, U256::from(amount));
        assert_eq!(spend.recipient.as_deref(), Some(BOB));
    }
}

#[test]
fn payload__should_be_refused_by_field() {
    let native = |change: fn(&mut wire::TronSendNative)| {
        let mut wire = native();
        change(&mut wire);
        WireKind::TronSendNative(wire)
    };
    refused(
        &native(|wire| wire.from = String::new()),
        "tronSendNative.from: is required",
    );
    refused(
        &native(|wire| wire.to = "41".into()),
        "tronSendNative.to: must be a Tron address",
    );
    refused(
        &native(|wire| wire.to = wire.from.clone()),
        "tronSendNative.to: must not be the sender's own",
    );
    refused(
        &native(|wire| wire.value = "0".into()),
        "tronSendNative.value: must be more than 0",
    );
    let trc10 = |change: fn(&mut wire::TronSendTrc10)| {
        let mut wire = trc10();
        change(&mut wire);
        WireKind::TronSendTrc10(wire)
    };
    refused(
        &trc10(|wire| wire.to = wire.from.clone()),
        "tronSendTrc10.to: must not be the sender's own",
    );
    refused(
        &trc10(|wire| wire.asset_name = String::new()),
        "tronSendTrc10.assetName: is required",
    );
    refused(
        &trc10(|wire| wire.asset_name = "01002000".into()),
        "tronSendTrc10.assetName: must be the number",
    );
    refused(
        &trc10(|wire| wire.asset_name = USDT.into()),
        "tronSendTrc10.assetName: must be the number",
    );
    refused(
        &trc10(|wire| wire.amount = "0".into()),
        "tronSendTrc10.amount: must be more than 0",
    );
    let trc20 = |change: fn(&mut wire::TronSendTrc20)| {
        let mut wire = trc20();
        change(&mut wire);
        WireKind::TronSendTrc20(wire)
    };
    refused(
        &trc20(|wire| wire.contract_address = "1002000".into()),
        "tronSendTrc20.contractAddress: must be a Tron address",
    );
    for limit in ["0", "15000000001"] {
        let mut wire = self::trc20();
        wire.fee_limit = Some(limit.into());
        refused(
            &WireKind::TronSendTrc20(wire),
            "tronSendTrc20.feeLimit: must be from 1 to 15000000000 sun",
        );
    }
    refused(
        &trc20(|wire| wire.fee_limit = Some(String::new())),
        "tronSendTrc20.feeLimit: is required",
    );
    // The chain leaves these to the contract.
    payload(&trc20(|wire| wire.to = wire.from.clone()));
    payload(&trc20(|wire| wire.amount = "0".into()));
}

#[test]
fn fee_limit__should_be_100_trx_unless_named_and_shown() {
    let mut wire = trc20();
    wire.fee_limit = None;
    let payload = payload(&WireKind::TronSendTrc20(wire));
    let WireKind::TronSendTrc20(shown) = payload.to_wire() else {
        panic!("{payload:?}")
    };
    assert_eq!(shown.fee_limit.as_deref(), Some("100000000"));
    let unsigned = build(&payload, &chain_data()).unwrap();
    assert_eq!(tx::decode(&unsigned.bytes).unwrap().fee_limit, 100_000_000);
}

#[test]
fn raw_message__should_take_tron_wallets() {
    let raw = payload(&WireKind::RawMessage(wire::RawMessage {
        from: from(),
        content: vec![9; 32],
        ecdsa_hash_function: wire::EcdsaHashFunction::UseMessageDirectly.into(),
    }));
    assert_eq!(raw.from(), from());
    assert_eq!(raw.check_wallet(Network::Tron), Ok(()));
    let unsigned = build(&raw, &networks::ChainData::Nothing).unwrap();
    assert_eq!(unsigned.signing[0].message, [9; 32]);
    assert_eq!(
        TRON.assemble(&raw, &unsigned, &[sign(&unsigned)], &public_key()),
        Ok(None)
    );
    // No address is one of two networks, or the rawMessage could be read in two ways.
    let others = Network::ALL
        .into_iter()
        .filter(|network| *network != Network::Tron)
        .map(Network::rules);
    for other in others {
        assert!(other.parse_address(&from()).is_err());
    }
}

proptest! {
    #[test]
    fn address__should_return_what_was_written(bytes: [u8; 20]) {
        let bytes = [&[0x41][..], &bytes].concat();
        let address = Address::from_bytes(&bytes).unwrap();
        prop_assert_eq!(&address.to_bytes()[..], &bytes);
        let text = address.to_string();
        prop_assert_eq!(text.len(), 34);
        prop_assert!(text.starts_with('T'));
        prop_assert_eq!(parse_address(&text), Ok(address));
        prop_assert_eq!(Address::from_word(address.to_word().0), Some(address));
    }

    #[test]
    fn address__should_never_panic(text in "T?.{0,50}", bytes: Vec<u8>) {
        let _ = parse_address(&text);
        let _ = TRON.parse_token(&text);
        let _ = TRON.address(&bytes);
        let _ = Address::from_bytes(&bytes);
    }
}
