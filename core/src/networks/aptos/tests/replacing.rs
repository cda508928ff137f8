//! The same transaction at a higher price.

use super::*;

/// As it was signed with these facts.
fn sent(payload: &Payload, chain_data: Option<ChainData>) -> Signed {
    let chain_data = chain_data.map_or(networks::ChainData::Nothing, Into::into);
    let unsigned = APTOS.build(payload, &chain_data, &public_key()).unwrap();
    let signatures = [signature(&unsigned.signing[0].message)];
    let signed = APTOS.assemble(payload, &unsigned, &signatures, &public_key());
    signed.unwrap().unwrap()
}

fn read(signed: &Signed) -> RawTransaction {
    read_signed(signed).unwrap().1
}

fn priced(price: u64) -> ChainData {
    ChainData {
        gas_unit_price: Some(price),
        ..chain_data()
    }
}

fn speed_up(payload: &Payload, signed: &Signed) -> Payload {
    APTOS
        .replacement(payload, signed, Replacement::SpeedUp)
        .unwrap()
}

#[test]
fn speeding_up__should_change_nothing_but_the_price() {
    for payload in [send(), send_with(gas(Some(2000), None))] {
        let asked_price = asked(&payload).gas_unit_price;
        let facts = if asked_price {
            priced(100)
        } else {
            chain_data()
        };
        let old = sent(&payload, Some(facts));
        let again = speed_up(&payload, &old);
        assert_eq!(Payload::decode(&again.encode()), Ok(again.clone()));
        let queries = asked(&again);
        assert_eq!(
            (
                queries.sequence_number,
                queries.expiration_timestamp_secs,
                queries.gas_unit_price,
                queries.level,
                queries.simulate,
            ),
            (
                Some(4),
                Some(1_762_000_600),
                true,
                networks::FeeLevel::Fast,
                None
            )
        );
        assert!(!APTOS.is_sequenced(&APTOS.queries(&again)));
        // Nodes name less, the same and more.
        for (named, price) in [(1, 113), (100, 113), (500, 500)] {
            let facts = APTOS.outbid(&again, priced(named).into(), &old).unwrap();
            let networks::ChainData::Aptos(facts) = facts else {
                panic!("{facts:?}")
            };
            let new = sent(&again, Some(facts));
            let expected = RawTransaction {
                gas_unit_price: price,
                ..read(&old)
            };
            assert_eq!(read(&new), expected);
        }
    }
}

#[test]
fn speeding_up__should_keep_the_bytes_of_a_transaction_made_elsewhere() {
    let raw = read(&sent(&send(), Some(chain_data())));
    let payload = custom(&raw.encode().unwrap()).unwrap();
    let old = sent(&payload, None);
    let again = speed_up(&payload, &old);
    let new = read(&sent(&again, None));
    let expected = RawTransaction {
        gas_unit_price: 113,
        ..raw
    };
    assert_eq!(new, expected);
    // And once more, of that one.
    let third = speed_up(&again, &sent(&again, None));
    assert_eq!(read(&sent(&third, None)).gas_unit_price, 128);
}

#[test]
fn outbid__should_leave_other_numbers_and_prices_of_ones_own_alone() {
    let old = sent(&send(), Some(chain_data()));
    let facts = networks::ChainData::from(priced(1));
    let other = send_with(gas(Some(2000), None));
    assert_eq!(APTOS.outbid(&other, facts.clone(), &old).unwrap(), facts);
    let own = networks::ChainData::from(chain_data());
    assert_eq!(APTOS.outbid(&send(), own.clone(), &old).unwrap(), own);
}

#[test]
fn cancelling__should_be_refused_with_the_end() {
    let payload = send();
    let old = sent(&payload, Some(chain_data()));
    let fault = APTOS
        .replacement(&payload, &old, Replacement::Cancel)
        .unwrap_err();
    assert_eq!(fault.class(), &Class::Invalid);
    assert!(fault.message().contains("1762000600"), "{fault}");
}

#[test]
fn a_number_of_ones_own__should_be_what_is_signed() {
    let named = |number: Option<u64>, end: Option<u64>| {
        Payload::parse(&WireKind::AptosSendNative(wire::AptosSendNative {
            chain_id: 1,
            from: from(),
            to: BOB.into(),
            value: "5".into(),
            gas_fee: gas(Some(2000), Some(100)),
            sequence_number: number,
            expiration_timestamp_secs: end,
        }))
    };
    let payload = named(Some(0), Some(7)).unwrap();
    let facts = |number, end| ChainData {
        sequence_number: number,
        expiration_timestamp_secs: end,
        ..chain_data()
    };
    let transaction = read(&sent(&payload, Some(facts(0, 7))));
    assert_eq!(transaction.sequence_number, 0);
    assert_eq!(transaction.expiration_timestamp_secs, 7);
    // Signers build it anew: no other number, and no other end.
    for (number, end) in [(1, 7), (0, 8)] {
        let fault = build(&payload, facts(number, end)).unwrap_err();
        assert_eq!(fault.class(), &Class::Bug);
    }
    let taken = BTreeSet::from([Resource::Nonce(0)]);
    let allocation = APTOS.allocate(&payload, facts(0, 7).into(), &taken);
    assert_eq!(
        allocation.unwrap(),
        Allocation::ChainData(facts(0, 7).into())
    );
    refused(
        named(Some(u64::MAX), None),
        "aptosSendNative.sequenceNumber: is out of range",
    );
    refused(
        named(None, Some(0)),
        "aptosSendNative.expirationTimestampSecs: must be more than 0",
    );
    let raw = read(&sent(&send(), Some(chain_data()))).encode().unwrap();
    for (number, end, field) in [
        (Some(1), None, "sequenceNumber"),
        (None, Some(1), "expirationTimestampSecs"),
    ] {
        let wire = wire::AptosSendCustom {
            chain_id: 1,
            from: from(),
            payload: raw.clone(),
            gas_fee: None,
            sequence_number: number,
            expiration_timestamp_secs: end,
            ..Default::default()
        };
        refused(
            Payload::parse(&WireKind::AptosSendCustom(wire)),
            &format!("aptosSendCustom.{field}: cannot be combined with a RawTransaction"),
        );
    }
}
