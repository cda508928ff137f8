#![allow(non_snake_case)]

use k256::ecdsa::SigningKey;
use proptest::prelude::*;

use super::{super::*, *};
use crate::{
    fault::Class,
    networks::{self, DynNetworkRules, FeeLevel, Payload, WireKind},
    schema::wire,
};

const EVM: &dyn DynNetworkRules = &Evm;

fn key() -> SigningKey {
    SigningKey::from_slice(&[7; 32]).unwrap()
}

fn public_key() -> Vec<u8> {
    key()
        .verifying_key()
        .to_sec1_point(true)
        .as_bytes()
        .to_vec()
}

/// evmSendNative on Ethereum with or without nonce and fees.
fn send(nonce: Option<i64>, gas_fee: Option<wire::EvmGas>) -> Payload {
    Payload::parse(&WireKind::EvmSendNative(wire::EvmSendNative {
        chain_id: 1,
        from: EVM.address(&public_key()).unwrap(),
        to: "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be".into(),
        value: "5".into(),
        gas_fee,
        nonce,
    }))
    .unwrap()
}

fn gas(max_priority_fee: Option<&str>) -> Option<wire::EvmGas> {
    Some(wire::EvmGas {
        max_fee: Some("100".into()),
        max_priority_fee: max_priority_fee.map(Into::into),
        gas_limit: Some("21000".into()),
        ..Default::default()
    })
}

fn fees() -> Option<Fees> {
    Some(Fees {
        estimate_gas: 21000,
        base_fee: 10,
        max_priority_fee: 3,
    })
}

fn chain_data(nonce: Option<u64>, eip1559: bool, fees: Option<Fees>) -> networks::ChainData {
    networks::ChainData::Evm(ChainData {
        nonce,
        eip1559,
        fees,
    })
}

fn build(payload: &Payload, chain_data: &networks::ChainData) -> Result<Unsigned, Fault> {
    EVM.build(payload, chain_data, &public_key())
}

fn sign(unsigned: &Unsigned) -> Signature {
    let (signature, id) = key().sign_prehash_recoverable(&unsigned.signing[0].message);
    let (r, s) = signature.split_bytes();
    Signature::Ecdsa {
        r: r.into(),
        s: s.into(),
        y_parity: id.is_y_odd().into(),
    }
}

#[test]
fn needs__should_name_what_the_request_does_not_bring() {
    let asked = |payload: &Payload| match EVM.queries(payload) {
        networks::Queries::Evm(queries) => (queries.nonce, queries.fees.is_some()),
        networks::Queries::Nothing => (false, false),
        _ => unreachable!(),
    };
    assert_eq!(asked(&send(None, None)), (true, true));
    assert_eq!(asked(&send(Some(0), None)), (false, true));
    assert_eq!(asked(&send(None, gas(Some("1")))), (true, false));
    assert_eq!(
        EVM.queries(&send(Some(0), gas(None))),
        networks::Queries::Nothing
    );
    let networks::Queries::Evm(queries) = EVM.queries(&send(None, None)) else {
        unreachable!()
    };
    let call = queries.fees.unwrap();
    assert_eq!(
        call.to.as_deref(),
        Some("0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be")
    );
    assert_eq!((call.value.as_str(), call.data.len()), ("5", 0));
}

/// What a payload is built of with the fees of [`fees`]: gas limit, most price and tip.
fn prices(payload: &Payload, chain_data: &networks::ChainData) -> (u64, u128, Option<u128>) {
    let unsigned = build(payload, chain_data).unwrap();
    let built = trial(&unsigned.bytes).unwrap();
    (built.gas_limit, built.most_price, built.priority)
}

#[test]
fn gas_fee__should_take_from_the_chain_what_it_leaves_out() {
    let only = |max_fee: Option<&str>, tip: Option<&str>, limit: Option<&str>| {
        send(
            Some(0),
            Some(wire::EvmGas {
                max_fee: max_fee.map(Into::into),
                max_priority_fee: tip.map(Into::into),
                gas_limit: limit.map(Into::into),
                ..Default::default()
            }),
        )
    };
    for (payload, expected) in [
        (only(None, None, Some("30000")), (30_000, 23, Some(3))),
        (only(None, Some("5"), None), (21_000, 25, Some(5))),
        (only(Some("100"), Some("5"), None), (21_000, 100, Some(5))),
        (only(Some("100"), None, None), (21_000, 100, None)),
        (only(None, None, None), (21_000, 23, Some(3))),
    ] {
        let networks::Queries::Evm(queries) = EVM.queries(&payload) else {
            unreachable!()
        };
        assert!(queries.fees.is_some());
        assert_eq!(prices(&payload, &chain_data(None, true, fees())), expected);
        // Its echo says no more than the request did.
        assert_eq!(Payload::parse(&payload.to_wire()).unwrap(), payload);
    }
    let tip = EVM.quoted_price(
        &only(None, Some("5"), None),
        &chain_data(None, true, fees()),
    );
    assert_eq!(tip, Some(20), "its own tip is no price of the nodes");
    let own = only(Some("100"), None, None);
    assert_eq!(
        EVM.quoted_price(&own, &chain_data(None, true, fees())),
        None
    );
}

#[test]
fn fee_level__should_be_for_prices_that_are_left_to_the_nodes() {
    let with = |level: i32, change: &dyn Fn(&mut wire::EvmGas)| {
        let mut gas = wire::EvmGas {
            fee_level: level,
            ..Default::default()
        };
        change(&mut gas);
        gas
    };
    let asked = |payload: &Payload| match EVM.queries(payload) {
        networks::Queries::Evm(queries) => (queries.fees.is_some(), queries.level),
        other => panic!("{other:?}"),
    };
    let limit = |gas: &mut wire::EvmGas| gas.gas_limit = Some("30000".into());
    for (number, level) in [
        (0, FeeLevel::Normal),
        (1, FeeLevel::Slow),
        (2, FeeLevel::Normal),
        (3, FeeLevel::Fast),
    ] {
        for gas in [with(number, &|_| {}), with(number, &limit)] {
            let payload = send(Some(0), Some(gas));
            assert_eq!(asked(&payload), (true, level));
            assert_eq!(Payload::decode(&payload.encode()).unwrap(), payload);
            // The level asks for a price, and is none.
            let facts = chain_data(None, true, fees());
            assert_eq!(prices(&payload, &facts).1, 23);
            assert_eq!(EVM.quoted_price(&payload, &facts), Some(23));
        }
    }
    let max: &dyn Fn(&mut wire::EvmGas) = &|gas| gas.max_fee = Some("9".into());
    let tip: &dyn Fn(&mut wire::EvmGas) = &|gas| gas.max_priority_fee = Some("9".into());
    let combined = "cannot be combined with maxFee or maxPriorityFee";
    for (gas, problem) in [
        (with(3, max), combined),
        (with(1, tip), combined),
        (with(4, &|_| {}), "must "),
    ] {
        let kind = send(Some(0), Some(with(0, &|_| {}))).to_wire();
        let WireKind::EvmSendNative(mut kind) = kind else {
            unreachable!()
        };
        kind.gas_fee = Some(gas);
        let fault = Payload::parse(&WireKind::EvmSendNative(kind)).unwrap_err();
        let sentence = format!("evmSendNative.gasFee.feeLevel: {problem}");
        assert!(fault.message().starts_with(&sentence), "{fault}");
    }
}

#[test]
fn outbid__should_raise_both_prices_by_an_eighth() {
    let sent = |max_fee: &str, tip: &str| {
        let gas = wire::EvmGas {
            max_fee: Some(max_fee.into()),
            ..gas(Some(tip)).unwrap()
        };
        let payload = send(Some(7), Some(gas));
        let unsigned = build(&payload, &networks::ChainData::Nothing).unwrap();
        let signature = sign(&unsigned);
        EVM.assemble(&payload, &unsigned, &[signature], &public_key())
            .unwrap()
            .unwrap()
    };
    let again = send(Some(7), None);
    let outbid = |payload: &Payload, max_fee, tip| {
        let data = chain_data(None, true, fees());
        let data = EVM.outbid(payload, data, &sent(max_fee, tip)).unwrap();
        prices(payload, &data)
    };
    let (_, max_fee, tip) = outbid(&again, "1000", "80");
    assert!((1_125..=1_126).contains(&max_fee), "{max_fee}");
    assert_eq!(tip, Some(90));
    // What blocks take now may be more than that.
    assert_eq!(outbid(&again, "8", "1"), (21_000, 23, Some(3)));
    // Who names a price means it, and another number is another transaction.
    let named = send(Some(7), gas(Some("1")));
    let data = networks::ChainData::Nothing;
    assert_eq!(
        EVM.outbid(&named, data.clone(), &sent("1000", "80"))
            .unwrap(),
        data
    );
    assert_eq!(outbid(&send(Some(8), None), "1000", "80").1, 23);
}

/// What a signed transaction of [`send`] with the number 7 was: with these prices, and this gas limit.
fn sent(max_fee: &str, tip: Option<&str>, limit: &str) -> (Payload, Signed) {
    let gas = wire::EvmGas {
        max_fee: Some(max_fee.into()),
        max_priority_fee: tip.map(Into::into),
        gas_limit: Some(limit.into()),
        ..Default::default()
    };
    let payload = send(Some(7), Some(gas));
    let unsigned = build(&payload, &networks::ChainData::Nothing).unwrap();
    let signature = sign(&unsigned);
    let signed = EVM.assemble(&payload, &unsigned, &[signature], &public_key());
    (payload, signed.unwrap().unwrap())
}

#[test]
fn replacement__should_be_the_same_with_the_nonce_and_prices_of_the_nodes() {
    for tip in [Some("80"), None] {
        let (payload, replaced) = sent("1000", tip, "30000");
        let again = EVM
            .replacement(&payload, &replaced, Replacement::SpeedUp)
            .unwrap();
        // Its echo says the same.
        assert_eq!(Payload::parse(&again.to_wire()).unwrap(), again);
        let data = EVM
            .outbid(&again, chain_data(None, true, fees()), &replaced)
            .unwrap();
        let before = trial(
            &build(&payload, &networks::ChainData::Nothing)
                .unwrap()
                .bytes,
        )
        .unwrap();
        let unsigned = build(&again, &data).unwrap();
        let after = trial(&unsigned.bytes).unwrap();
        assert!((1_125..=1_145).contains(&after.most_price), "{after:?}");
        let old_tip = tip.map_or(1_000, |tip| tip.parse().unwrap());
        assert_eq!(after.priority, Some(old_tip + old_tip / 8));
        let priced = SimulationCall {
            most_price: before.most_price,
            priority: before.priority,
            ..after
        };
        assert_eq!(priced, before, "nothing else differs");
        let reservations = EVM.reservations(&again, &unsigned).unwrap();
        assert_eq!(reservations, [Resource::Nonce(7)]);
    }
}

#[test]
fn replacement__should_cancel_by_nothing_to_the_wallet_itself() {
    let (payload, replaced) = sent("1000", Some("80"), "30000");
    let cancel = EVM
        .replacement(&payload, &replaced, Replacement::Cancel)
        .unwrap();
    let data = chain_data(None, true, fees());
    let data = EVM.outbid(&cancel, data, &replaced).unwrap();
    let built = trial(&build(&cancel, &data).unwrap().bytes).unwrap();
    assert_eq!(built.to, Some(EVM.address(&public_key()).unwrap()));
    assert_eq!(
        (built.value, built.data.len(), built.nonce),
        (U256::ZERO, 0, 7)
    );
    assert_eq!(built.gas_limit, 21_000, "as the nodes say");
    assert!(built.most_price >= 1_125 && built.priority >= Some(90));
}

#[test]
fn replacement__should_outbid_a_price_of_nothing() {
    let (payload, replaced) = sent("0", Some("0"), "30000");
    let again = EVM
        .replacement(&payload, &replaced, Replacement::SpeedUp)
        .unwrap();
    let nothing = Some(Fees {
        estimate_gas: 21_000,
        base_fee: 0,
        max_priority_fee: 0,
    });
    let data = EVM
        .outbid(&again, chain_data(None, true, nothing), &replaced)
        .unwrap();
    let (_, max_fee, tip) = prices(&again, &data);
    assert!(max_fee > 0 && tip > Some(0), "{max_fee} {tip:?}");
}

#[test]
fn replacement__should_refuse_the_transaction_of_another_wallet() {
    let (payload, replaced) = sent("1000", Some("80"), "30000");
    let Payload::Evm(EvmPayload::Transaction(mut other)) = payload else {
        unreachable!()
    };
    other.from = "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be".into();
    let other = Payload::Evm(EvmPayload::Transaction(other));
    let fault = EVM
        .replacement(&other, &replaced, Replacement::SpeedUp)
        .unwrap_err();
    assert_eq!(fault.class(), &Class::Bug);
}

#[test]
fn transaction__should_be_legacy_where_the_chain_or_the_request_says_so() {
    let kind =
        |payload: &Payload, chain_data: &networks::ChainData| match build(payload, chain_data)
            .unwrap()
            .bytes[0]
        {
            2 => "eip1559",
            0xc0.. => "legacy",
            _ => unreachable!(),
        };
    let brings_all = send(Some(0), gas(Some("1")));
    assert_eq!(kind(&brings_all, &networks::ChainData::Nothing), "eip1559");
    assert_eq!(kind(&brings_all, &chain_data(None, true, None)), "eip1559");
    assert_eq!(kind(&brings_all, &chain_data(None, false, None)), "legacy");
    assert_eq!(
        kind(&send(Some(0), gas(None)), &networks::ChainData::Nothing),
        "legacy"
    );
    assert_eq!(
        kind(&send(None, gas(None)), &chain_data(Some(1), true, None)),
        "legacy"
    );
    assert_eq!(
        kind(&send(None, None), &chain_data(Some(1), true, fees())),
        "eip1559"
    );
    assert_eq!(
        kind(&send(None, None), &chain_data(Some(1), false, fees())),
        "legacy"
    );
}

#[test]
fn fees__should_come_from_the_chain_by_the_conventions() {
    let unsigned = build(&send(None, None), &chain_data(Some(1), true, fees())).unwrap();
    let same = build(
        &send(
            Some(1),
            Some(wire::EvmGas {
                max_fee: Some("23".into()),
                max_priority_fee: Some("3".into()),
                gas_limit: Some("21000".into()),
                ..Default::default()
            }),
        ),
        &networks::ChainData::Nothing,
    );
    assert_eq!(unsigned, same.unwrap());
    // eth_gasPrice where there is no base fee.
    let unsigned = build(&send(None, None), &chain_data(Some(1), false, fees())).unwrap();
    let mut gas = gas(None);
    gas.as_mut().unwrap().max_fee = Some("10".into());
    let same = build(&send(Some(1), gas), &networks::ChainData::Nothing).unwrap();
    assert_eq!(unsigned, same);
}

#[test]
fn build__should_refuse_facts_that_do_not_fit() {
    let class = |payload: &Payload, chain_data: &networks::ChainData| {
        build(payload, chain_data).unwrap_err().class().clone()
    };
    let (none, all) = (send(None, None), send(Some(0), gas(None)));
    for chain_data in [
        networks::ChainData::Nothing,
        chain_data(None, true, fees()),
        chain_data(Some(1), true, None),
        networks::ChainData::Solana(networks::solana::ChainData {
            recent_blockhash: String::new(),
            token: None,
            compute: None,
        }),
    ] {
        assert_eq!(class(&none, &chain_data), Class::Bug);
    }
    // A node must not replace what the request says.
    assert_eq!(class(&all, &chain_data(Some(1), true, None)), Class::Bug);
    assert_eq!(class(&all, &chain_data(None, true, fees())), Class::Bug);
    let mut absurd = fees().unwrap();
    absurd.base_fee = u128::MAX / 2 + 1;
    assert_eq!(
        class(&none, &chain_data(Some(1), true, Some(absurd))),
        Class::Invalid
    );
    let mut low = fees().unwrap();
    low.estimate_gas = 20_999;
    assert_eq!(
        class(&none, &chain_data(Some(1), true, Some(low))),
        Class::Invalid
    );
    let other = SigningKey::from_slice(&[8; 32]).unwrap();
    let other = other.verifying_key().to_sec1_point(true);
    let fault = EVM
        .build(&all, &networks::ChainData::Nothing, other.as_bytes())
        .unwrap_err();
    assert_eq!(
        fault.message(),
        "evmSendNative.from: is not the wallet's address"
    );
    assert!(
        EVM.build(&all, &networks::ChainData::Nothing, &[2; 32])
            .is_err()
    );
}

#[test]
fn assemble__should_refuse_a_signature_that_is_not_the_senders() {
    let payload = send(Some(0), gas(Some("1")));
    let unsigned = build(&payload, &networks::ChainData::Nothing).unwrap();
    let good = sign(&unsigned);
    assert!(
        EVM.assemble(
            &payload,
            &unsigned,
            std::slice::from_ref(&good),
            &public_key()
        )
        .unwrap()
        .is_some()
    );
    let Signature::Ecdsa { r, s, y_parity } = good.clone() else {
        unreachable!()
    };
    let scalar = k256::ecdsa::Signature::from_scalars(r, s).unwrap();
    let high = (-*scalar.s()).to_bytes();
    for bad in [
        Signature::Ecdsa {
            r,
            s,
            y_parity: 1 - y_parity,
        },
        Signature::Ecdsa { r, s, y_parity: 2 },
        Signature::Ecdsa {
            r,
            s: high.into(),
            y_parity: 1 - y_parity,
        },
        Signature::Ecdsa {
            r: s,
            s: r,
            y_parity,
        },
        Signature::Ecdsa {
            r: [0; 32],
            s,
            y_parity,
        },
        Signature::Ecdsa {
            r: [0xff; 32],
            s,
            y_parity,
        },
        Signature::Ed25519 { r, s },
    ] {
        assert!(
            EVM.assemble(
                &payload,
                &unsigned,
                std::slice::from_ref(&bad),
                &public_key()
            )
            .is_err(),
            "{bad:?}"
        );
    }
    for signatures in [&[][..], &[good.clone(), good.clone()]] {
        assert!(
            EVM.assemble(&payload, &unsigned, signatures, &public_key())
                .is_err()
        );
    }
    for index in 0..unsigned.bytes.len() {
        let mut other = unsigned.clone();
        other.bytes[index] ^= 1;
        assert!(
            EVM.assemble(&payload, &other, std::slice::from_ref(&good), &public_key())
                .is_err()
        );
    }
}

#[test]
fn contract__should_be_created_without_a_recipient() {
    let payload = Payload::parse(&WireKind::EvmSendCustom(wire::EvmSendCustom {
        chain_id: 1,
        from: EVM.address(&public_key()).unwrap(),
        value: "0".into(),
        input: vec![0x60, 0x00],
        ..Default::default()
    }))
    .unwrap();
    let networks::Queries::Evm(queries) = EVM.queries(&payload) else {
        unreachable!()
    };
    assert_eq!(queries.fees.unwrap().to, None);
    let estimate = Some(Fees {
        estimate_gas: 53_020,
        ..fees().unwrap()
    });
    let unsigned = build(&payload, &chain_data(Some(0), true, estimate)).unwrap();
    // gas 53020 (82cf1c), no recipient (80), value 0 (80), code (826000), no access list (c0).
    assert!(hex::encode(&unsigned.bytes).ends_with("82cf1c8080826000c0"));
    let signed = EVM.assemble(&payload, &unsigned, &[sign(&unsigned)], &public_key());
    assert!(signed.unwrap().unwrap().transaction.starts_with("0x02"));
}

proptest! {
    #[test]
    fn assemble__should_never_panic(bytes: Vec<u8>) {
        let signature = alloy_primitives::Signature::from_scalars_and_parity(
            B256::with_last_byte(1), B256::with_last_byte(1), false,
        );
        let _ = tx::assemble(&bytes, &signature);
    }

    #[test]
    fn address__should_never_panic(bytes: Vec<u8>) {
        let _ = EVM.address(&bytes);
    }
}
