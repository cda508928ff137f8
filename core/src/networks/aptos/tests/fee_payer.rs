//! Transactions whose fee another one pays. What is expected is what @aptos-labs/ts-sdk makes of the keys 7, 8
//! and 9.

use serde_json::Value;

use super::*;
use crate::networks::KnownChains;

/// `plain`: 7 sends and 8 pays; `open`: 8 has signed without knowing that 7 pays; `single`: of the account of the
/// single key 9, and 7 pays.
fn sdk(name: &str) -> Value {
    let sdk: Value = serde_json::from_str(include_str!("../fee_payer.json")).unwrap();
    sdk[name].clone()
}

fn bytes(sdk: &Value, name: &str) -> Vec<u8> {
    hex::decode(sdk[name].as_str().unwrap()).unwrap()
}

fn text(sdk: &Value, name: &str) -> String {
    sdk[name].as_str().unwrap().to_owned()
}

fn asked_of(sdk: &Value, fee_payer: &str, other: Vec<u8>) -> wire::AptosSendCustom {
    wire::AptosSendCustom {
        chain_id: 1,
        from: from(),
        payload: bytes(sdk, "raw"),
        gas_fee: None,
        fee_payer: Some(fee_payer.into()),
        other_signature: other,
        ..Default::default()
    }
}

fn parse(wire: wire::AptosSendCustom) -> Result<Payload, Fault> {
    Payload::parse(&WireKind::AptosSendCustom(wire))
}

fn built(payload: &Payload) -> (Unsigned, Signed) {
    let unsigned = APTOS
        .build(payload, &networks::ChainData::Nothing, &public_key())
        .unwrap();
    let own = signature(&unsigned.signing[0].message);
    let signed = APTOS.assemble(payload, &unsigned, &[own], &public_key());
    (unsigned, signed.unwrap().unwrap())
}

#[test]
fn both_roles__should_make_the_transaction_of_the_sdk() {
    for (name, other) in [("plain", "payer"), ("open", "sender"), ("single", "sender")] {
        let sdk = sdk(name);
        let payload = asked_of(&sdk, &text(&sdk, "fee"), bytes(&sdk, other));
        let payload = parse(payload).unwrap();
        assert_eq!(Payload::decode(&payload.encode()), Ok(payload.clone()));
        assert_eq!(payload.missing_signer(), None);
        assert!(payload.may_broadcast(&KnownChains::default()));
        assert_eq!(APTOS.queries(&payload), networks::Queries::Nothing);
        let (unsigned, signed) = built(&payload);
        assert_eq!(unsigned.signing[0].message, unsigned.bytes);
        if name != "open" {
            // There it is what the sender has signed.
            assert_eq!(unsigned.bytes, bytes(&sdk, "message"));
        }
        assert_eq!(signed.transaction, format!("0x{}", text(&sdk, "signed")));
        assert_eq!(signed.tx_hash, text(&sdk, "hash"));
        let (whole, raw) = read_signed(&signed).unwrap();
        assert_eq!(hex::encode(whole), text(&sdk, "signed"));
        assert_eq!(raw.encode().unwrap(), bytes(&sdk, "raw"));
        assert_eq!(
            APTOS.valid_until(&signed),
            Ok(Some(ChainMoment::at_ms(1_762_000_600_000)))
        );
    }
}

#[test]
fn alone__should_be_handed_over_and_never_sent() {
    let sdk = sdk("plain");
    let alone = parse(asked_of(&sdk, &text(&sdk, "fee"), Vec::new())).unwrap();
    assert_eq!(alone.missing_signer(), Some(text(&sdk, "fee")));
    assert!(!alone.may_broadcast(&KnownChains::default()));
    let (_, signed) = built(&alone);
    assert_eq!(signed.tx_hash, "", "it has no name before it is whole");
    let own = text(&sdk, "sender");
    let expected = format!(
        "0x{}03{own}0000{}04",
        text(&sdk, "raw"),
        &text(&sdk, "fee")[2..]
    );
    assert_eq!(signed.transaction, expected);
    // Before it is known who pays.
    let open = parse(asked_of(&sdk, "0x0", Vec::new())).unwrap();
    assert!(open.missing_signer().is_some());
    let (unsigned, _) = built(&open);
    let message = bytes(&sdk, "message");
    let raw_end = message.len() - 32;
    assert_eq!(unsigned.bytes[..raw_end], message[..raw_end]);
    assert_eq!(unsigned.bytes[raw_end..], [0; 32]);
    // Who pays, alone.
    let sdk = self::sdk("open");
    let payer = parse(asked_of(&sdk, &from(), Vec::new())).unwrap();
    assert_eq!(payer.missing_signer(), Some(text(&sdk, "from")));
    let expected = format!("03040000{}{}", &from()[2..], text(&sdk, "payer"));
    assert!(built(&payer).1.transaction.ends_with(&expected));
}

#[test]
fn fee__should_be_the_payers_and_the_rest_the_senders() {
    let sdk = sdk("plain");
    let sender = parse(asked_of(&sdk, &text(&sdk, "fee"), Vec::new())).unwrap();
    assert!(!sender.pays_fee());
    let spends = sender.outflow(Network::Aptos).spends;
    assert_eq!(spends.len(), 1);
    assert_eq!(spends[0].amount, U256::from(5));
    let (unsigned, signed) = built(&sender);
    assert_eq!(
        APTOS.reservations(&sender, &unsigned),
        Ok(vec![Resource::Nonce(4)])
    );
    assert_eq!(APTOS.sent_number(&signed, &from()), Ok(Some(4)));
    // At another price both would have to sign it anew.
    let replacement = APTOS.replacement(&sender, &signed, Replacement::SpeedUp);
    let fault = replacement.unwrap_err();
    assert!(
        fault.message().contains("both would have to sign"),
        "{fault}"
    );

    let sdk = self::sdk("open");
    let payer = parse(asked_of(&sdk, &from(), bytes(&sdk, "sender"))).unwrap();
    assert!(payer.pays_fee());
    assert!(payer.outflow(Network::Aptos).spends.is_empty());
    let (unsigned, signed) = built(&payer);
    // 2,000 units at 100 octa.
    assert_eq!(APTOS.most_fee(&unsigned.bytes), Ok(U256::from(200_000)));
    // The number is the other's.
    let held = APTOS.reservations(&payer, &unsigned).unwrap();
    assert!(matches!(held.as_slice(), [Resource::TxHash(_)]), "{held:?}");
    assert_eq!(APTOS.sent_number(&signed, &from()), Ok(None));
}

#[test]
fn other_signature__should_be_good_for_what_is_sent() {
    let plain = sdk("plain");
    let fee = text(&plain, "fee");
    let good = bytes(&plain, "payer");
    let mut flipped = good.clone();
    flipped[40] ^= 1;
    let of = |other: Vec<u8>| parse(asked_of(&plain, &fee, other));
    assert!(of(good.clone()).is_ok());
    let not_this = "aptosSendCustom.otherSignature: does not sign this transaction";
    for (other, sentence) in [
        (flipped, not_this),
        (
            bytes(&plain, "sender"),
            "aptosSendCustom.otherSignature: is the signature of `from` itself",
        ),
        (
            good[..good.len() - 1].to_vec(),
            "aptosSendCustom.otherSignature: must be an AccountAuthenticator in BCS",
        ),
        (
            [good.clone(), vec![0]].concat(),
            "aptosSendCustom.otherSignature: must be an AccountAuthenticator in BCS",
        ),
        (
            vec![4],
            "aptosSendCustom.otherSignature: must be of one Ed25519 key",
        ),
        (
            vec![0, 0, 0],
            "aptosSendCustom.otherSignature: does not sign",
        ),
    ] {
        refused(of(other), sentence);
    }
    // A payer who signs over nobody.
    let open = sdk("open");
    let swapped = parse(asked_of(&plain, "0x0", good.clone()));
    refused(
        swapped,
        "aptosSendCustom.otherSignature: needs the address of the fee payer",
    );
    let mut as_payer = asked_of(&open, &from(), bytes(&open, "sender"));
    as_payer.payload[32] ^= 1;
    refused(parse(as_payer), not_this);
    // The sender may have signed over 0x0, the payer not.
    let (key, message) = (SigningKey::from_bytes(&[8; 32]), {
        let open = parse(asked_of(&plain, "0x0", Vec::new())).unwrap();
        built(&open).0.bytes
    });
    let over_nobody = ed25519_dalek::Signer::sign(&key, &message).to_bytes();
    let over_nobody = [&good[..35], over_nobody.as_slice()].concat();
    refused(of(over_nobody), not_this);
}

#[test]
fn fee_payer__should_be_refused_where_it_makes_no_sense() {
    let plain = sdk("plain");
    let fee = text(&plain, "fee");
    let with = |change: fn(&mut wire::AptosSendCustom)| {
        let mut asked = asked_of(&plain, &fee, Vec::new());
        change(&mut asked);
        parse(asked)
    };
    refused(
        with(|asked| asked.fee_payer = Some(asked.from.clone())),
        "aptosSendCustom.feePayer: must differ from the sender",
    );
    refused(
        with(|asked| asked.fee_payer = Some("0xx".into())),
        "aptosSendCustom.feePayer: must be an Aptos address",
    );
    refused(
        with(|asked| {
            asked.payload = br#"{"type": "entry_function_payload", "function": "0x1::a::b",
                "arguments": []}"#
                .to_vec();
        }),
        "aptosSendCustom.feePayer: needs a RawTransaction in BCS",
    );
    refused(
        with(|asked| (asked.fee_payer, asked.other_signature) = (None, vec![1])),
        "aptosSendCustom.otherSignature: must be empty",
    );
    // Neither sender nor payer.
    let open = sdk("open");
    refused(
        parse(asked_of(&open, BOB, Vec::new())),
        "aptosSendCustom.payload.sender: must be from",
    );
    // Empty is none.
    let none = with(|asked| asked.fee_payer = Some(String::new())).unwrap();
    assert!(none.pays_fee());
    assert_eq!(none.missing_signer(), None);
}

#[test]
fn payer__should_be_told_apart_and_never_be_mistaken_for_a_plain_transaction() {
    let plain = sdk("plain");
    let bytes_of = |fee_payer: Option<&str>| {
        let mut asked = asked_of(&plain, "", Vec::new());
        asked.fee_payer = fee_payer.map(Into::into);
        let payload = parse(asked).unwrap();
        let unsigned = APTOS.build(&payload, &networks::ChainData::Nothing, &public_key());
        (payload, unsigned.unwrap())
    };
    let (own, alone) = bytes_of(None);
    let fee = text(&plain, "fee");
    let (_, paid) = bytes_of(Some(&fee));
    let (bob, other) = bytes_of(Some(BOB));
    for (one, two) in [(&alone, &paid), (&paid, &alone), (&paid, &other)] {
        assert_eq!(APTOS.difference(&one.bytes, &two.bytes), Some("feePayer"));
    }
    assert_eq!(APTOS.difference(&paid.bytes, &paid.bytes), None);
    assert_eq!(APTOS.most_fee(&paid.bytes), APTOS.most_fee(&alone.bytes));
    // The signature over one is never put to another.
    for (payload, unsigned) in [(&own, &paid), (&bob, &paid), (&bob, &alone)] {
        let own = signature(&unsigned.signing[0].message);
        assert!(
            APTOS
                .assemble(payload, unsigned, &[own], &public_key())
                .is_err()
        );
    }
    for end in 0..paid.bytes.len() {
        assert!(APTOS.most_fee(&paid.bytes[..end]).is_err() || end == 0);
    }
}
