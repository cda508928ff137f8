#![allow(non_snake_case)]

use alloy_primitives::address;

use super::*;
use crate::{
    networks::Payload,
    schema::wire::{EvmSendCustom, create_signing_request_request::Type as Kind},
};

const CONTRACT: Address = address!("0x00000000000000000000000000000000000000c0");
const USDT: Address = address!("0xdAC17F958D2ee523a2206206994597C13D831ec7");
const ALICE: Address = address!("0x00000000000000000000000000000000000000a1");
const BOB: Address = address!("0x00000000000000000000000000000000000000b0");

fn call(token: Option<Address>) -> BatchCall {
    BatchCall {
        token,
        rows: vec![(ALICE, U256::from(5)), (BOB, U256::from(7))],
    }
}

fn payload(chain_id: u64, to: Address, value: u64, input: Vec<u8>) -> EvmPayload {
    let kind = Kind::EvmSendCustom(EvmSendCustom {
        chain_id,
        from: ALICE.to_string(),
        to: to.to_string(),
        value: value.to_string(),
        input,
        ..Default::default()
    });
    let Ok(Payload::Evm(payload)) = Payload::parse(&kind) else {
        panic!("not a payload");
    };
    payload
}

#[test]
fn call_data__should_be_what_solidity_encodes() {
    // The selectors and the layout of the ABI specification.
    let native = "e63d38ed\
        0000000000000000000000000000000000000000000000000000000000000040\
        00000000000000000000000000000000000000000000000000000000000000a0\
        0000000000000000000000000000000000000000000000000000000000000002\
        00000000000000000000000000000000000000000000000000000000000000a1\
        00000000000000000000000000000000000000000000000000000000000000b0\
        0000000000000000000000000000000000000000000000000000000000000002\
        0000000000000000000000000000000000000000000000000000000000000005\
        0000000000000000000000000000000000000000000000000000000000000007";
    assert_eq!(hex::encode(call(None).encode()), native);
    assert_eq!(hex::encode(&call(Some(USDT)).encode()[..4]), "c73a2d60");
    assert_eq!(
        hex::encode(approval(CONTRACT, U256::from(1)))[..8],
        *"095ea7b3"
    );
}

#[test]
fn decode__should_read_its_own_form_and_no_other() {
    for token in [None, Some(USDT)] {
        let call = call(token);
        let data = call.encode();
        assert_eq!(BatchCall::decode(&data), Some(call));
        for end in 0..data.len() {
            assert_eq!(BatchCall::decode(&data[..end]), None, "{end}");
        }
        assert_eq!(BatchCall::decode(&[&data[..], &[0]].concat()), None);
        assert_eq!(BatchCall::decode(&[&data[..], &[0; 32]].concat()), None);
        // A bit in any place of the head, of a count, or above an address: other lists, or dirt.
        for place in (4..data.len()).step_by(32) {
            let mut dirty = data.clone();
            dirty[place] ^= 0x80;
            let read = BatchCall::decode(&dirty);
            assert!(read.is_none_or(|read| read.encode() == dirty), "{place}");
        }
    }
    let empty = BatchCall {
        token: None,
        rows: Vec::new(),
    };
    assert_eq!(BatchCall::decode(&empty.encode()), Some(empty));
}

#[test]
fn total__should_not_wrap() {
    let rows = vec![(ALICE, U256::MAX), (BOB, U256::from(1))];
    let call = BatchCall { token: None, rows };
    assert_eq!(call.total(), None);
}

#[test]
fn batch_outflow__should_show_each_row_where_the_contract_is_known() {
    let known = BatchContracts::from([(1, CONTRACT)]);
    let native = call(None).encode();
    let token = call(Some(USDT)).encode();
    let outflow = payload(1, CONTRACT, 12, native.clone())
        .batch_outflow(&known)
        .unwrap();
    assert_eq!(outflow.nature, ContentKind::Transfer);
    let spends = outflow.spends.iter().map(|spend| {
        let to = spend.recipient.clone().unwrap();
        (spend.asset.to_string(), spend.amount, to)
    });
    let spends: Vec<_> = spends.collect();
    assert_eq!(
        spends,
        [
            ("evm:1".to_owned(), U256::from(5), ALICE.to_checksum(None)),
            ("evm:1".to_owned(), U256::from(7), BOB.to_checksum(None)),
        ]
    );
    let outflow = payload(1, CONTRACT, 0, token.clone()).batch_outflow(&known);
    let outflow = outflow.unwrap();
    assert_eq!(outflow.spends.len(), 2);
    assert_eq!(outflow.spends[0].asset.token, Some(USDT.to_checksum(None)));
    let allowance = payload(1, USDT, 0, approval(CONTRACT, U256::from(12)));
    assert_eq!(allowance.batch_outflow(&known).unwrap().spends, []);

    // Another value than the rows, another chain, another contract, another spender, or a value with an allowance.
    for other in [
        payload(1, CONTRACT, 11, native.clone()),
        payload(1, CONTRACT, 13, native.clone()),
        payload(1, CONTRACT, 1, token.clone()),
        payload(2, CONTRACT, 12, native.clone()),
        payload(1, BOB, 12, native),
        payload(1, CONTRACT, 0, vec![]),
        payload(1, USDT, 0, approval(BOB, U256::from(12))),
        payload(2, USDT, 0, approval(CONTRACT, U256::from(12))),
        payload(1, USDT, 1, approval(CONTRACT, U256::from(12))),
        payload(1, CONTRACT, 0, approval(CONTRACT, U256::from(12))),
        payload(
            1,
            USDT,
            0,
            [&approval(CONTRACT, U256::from(12))[..], &[0; 32]].concat(),
        ),
    ] {
        assert_eq!(other.batch_outflow(&known), None, "{other:?}");
    }
}

#[test]
fn batch_part__should_say_what_a_call_would_do_whatever_the_contract_is() {
    let native = call(None);
    let (chain, contract, part) = payload(5, BOB, 12, native.encode()).batch_part().unwrap();
    assert_eq!((chain, contract), (5, BOB));
    assert_eq!(part, BatchPart::Payment(native.clone()));
    let allowance = payload(1, USDT, 0, approval(BOB, U256::from(12)));
    let part = BatchPart::Allowance {
        token: USDT,
        amount: U256::from(12),
    };
    assert_eq!(allowance.batch_part(), Some((1, BOB, part)));
    // Of a token that a known contract may take, and of no other.
    let known = BatchContracts::from([(1, BOB)]);
    let token = allowance.batch_allowance(&known).unwrap();
    assert_eq!(token.to_string(), format!("evm:1/{USDT}"));
    assert_eq!(allowance.batch_allowance(&BatchContracts::new()), None);
    assert_eq!(
        payload(1, BOB, 12, native.encode()).batch_allowance(&known),
        None
    );
    for other in [
        payload(1, BOB, 11, native.encode()),
        payload(1, BOB, 0, vec![1, 2, 3]),
        payload(1, USDT, 0, approval(BOB, U256::from(1))[..60].to_vec()),
    ] {
        assert_eq!(other.batch_part(), None, "{other:?}");
    }
}

#[test]
fn parse_contract__should_name_what_a_contract_of_a_chain_is() {
    let text = format!("evm:1:{CONTRACT}");
    assert_eq!(parse_contract(&text), Ok((1, CONTRACT)));
    for wrong in [
        "",
        "evm:1",
        "evm:0x00000000000000000000000000000000000000c0",
        "tron:1:0x12",
        "evm:1:0x12",
    ] {
        assert!(parse_contract(wrong).is_err(), "{wrong}");
    }
}
