#![allow(non_snake_case)]

use k256::ecdsa::SigningKey;
use proptest::prelude::*;

use super::{super::*, *};
use crate::{
    fault::Class,
    networks::{self, DynNetworkRules, Payload, WireKind},
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
