#![allow(non_snake_case)]

mod forms;

use k256::ecdsa::SigningKey;
use proptest::prelude::*;
use prost::Message as _;

use super::{super::*, *};
use crate::{
    networks::{self, DynNetworkRules, Payload, Replacement, WireKind, evm},
    schema::wire,
};

const TRON: &dyn DynNetworkRules = &Tron;
const BOB: &str = "TX39nY681TTGNLgVkaX7Nkq56F5YRePoMB";
const USDT: &str = "TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t";

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

fn from() -> String {
    TRON.address(&public_key()).unwrap()
}

fn native() -> wire::TronSendNative {
    wire::TronSendNative {
        from: from(),
        to: BOB.into(),
        value: "5".into(),
    }
}

fn trc10() -> wire::TronSendTrc10 {
    wire::TronSendTrc10 {
        from: from(),
        to: BOB.into(),
        asset_name: "1002000".into(),
        amount: "6".into(),
    }
}

fn trc20() -> wire::TronSendTrc20 {
    wire::TronSendTrc20 {
        from: from(),
        to: BOB.into(),
        contract_address: USDT.into(),
        amount: "7".into(),
        fee_limit: Some("30000000".into()),
    }
}

/// One payload of each kind: TRX, TRC-10, TRC-20.
fn kinds() -> [WireKind; 3] {
    [
        WireKind::TronSendNative(native()),
        WireKind::TronSendTrc10(trc10()),
        WireKind::TronSendTrc20(trc20()),
    ]
}

fn payload(kind: &WireKind) -> Payload {
    Payload::parse(kind).unwrap()
}

fn block(number: u64) -> Block {
    let mut id = [0xab; 32];
    id[..8].copy_from_slice(&number.to_be_bytes());
    Block {
        number,
        id,
        timestamp_ms: 1_762_000_000_000,
    }
}

fn chain_data() -> networks::ChainData {
    ChainData::from(block(75_123_456)).into()
}

fn build(payload: &Payload, chain_data: &networks::ChainData) -> Result<Unsigned, Fault> {
    TRON.build(payload, chain_data, &public_key())
}

fn bytes(kind: &WireKind) -> Vec<u8> {
    build(&payload(kind), &chain_data()).unwrap().bytes
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
fn needs__should_name_the_call_of_a_contract_only() {
    let call = |kind: &WireKind| match TRON.queries(&payload(kind)) {
        networks::Queries::Tron(queries) => queries.call,
        other => panic!("{other:?}"),
    };
    let [native, trc10, trc20] = kinds();
    assert_eq!((call(&native), call(&trc10)), (None, None));
    let call = call(&trc20).unwrap();
    assert_eq!(
        (call.from, call.contract.as_str(), call.fee_limit),
        (from(), USDT, 30_000_000)
    );
    // transfer(address,uint256) with BOB's 20 bytes and 7.
    let word = "000000000000000000000000e7199eed514888c6ee11a7a93bdee0207d5054d7";
    assert_eq!(hex::encode(call.data), format!("a9059cbb{word}{:064x}", 7));
    for kind in kinds() {
        assert!(TRON.is_sequenced(&TRON.queries(&payload(&kind))));
    }
    assert!(!TRON.is_sequenced(&networks::Queries::Nothing));
}

#[test]
fn build__should_name_its_block_and_end_a_minute_after_it() {
    for kind in kinds() {
        let bytes = bytes(&kind);
        let decoded = tx::decode(&bytes).unwrap();
        // 75,123,456 is 0x47a4b00.
        assert_eq!(decoded.block, (vec![0x4b, 0], vec![0xab; 8]));
        assert_eq!(decoded.timestamp, 1_762_000_000_000);
        assert_eq!(decoded.expiration, 1_762_000_060_000);
    }
}

#[test]
fn build__should_refuse_facts_and_wallets_that_do_not_fit() {
    let class = |chain_data: &networks::ChainData| {
        let payload = payload(&WireKind::TronSendNative(native()));
        build(&payload, chain_data).unwrap_err().class().clone()
    };
    let good = ChainData::from(block(75_123_456));
    let other_number = ChainData::from(Block {
        number: 75_123_457,
        ..good.block.clone()
    });
    let at = |block_ms, timestamp_ms| ChainData {
        block: Block {
            timestamp_ms: block_ms,
            ..good.block.clone()
        },
        timestamp_ms,
    };
    let last = i64::MAX as u64 - 60_000;
    for chain_data in [
        other_number,
        at(u64::MAX, u64::MAX),
        at(last + 1, last + 1),
        at(100_000, 99_999),
        at(100_000, 160_000),
    ] {
        assert_eq!(
            class(&chain_data.clone().into()),
            Class::Bug,
            "{chain_data:?}"
        );
    }
    let evm_facts = networks::ChainData::Evm(evm::ChainData {
        nonce: None,
        eip1559: true,
        fees: None,
    });
    for chain_data in [networks::ChainData::Nothing, evm_facts] {
        assert_eq!(class(&chain_data), Class::Bug);
    }
    let payload = payload(&WireKind::TronSendNative(native()));
    for chain_data in [at(last, last), at(0, 59_999)] {
        assert!(build(&payload, &chain_data.into()).is_ok());
    }
    let other = SigningKey::from_slice(&[8; 32]).unwrap();
    let other = other.verifying_key().to_sec1_point(true);
    let fault = TRON
        .build(&payload, &chain_data(), other.as_bytes())
        .unwrap_err();
    assert_eq!(
        fault.message(),
        "tronSendNative.from: is not the wallet's address"
    );
    assert!(TRON.build(&payload, &chain_data(), &[2; 32]).is_err());
}

#[test]
fn equal_payments__should_become_two_transactions() {
    for kind in kinds() {
        let payload = payload(&kind);
        let mut taken = BTreeSet::new();
        for later in 0..3 {
            let Allocation::ChainData(settled) =
                TRON.allocate(&payload, chain_data(), &taken).unwrap()
            else {
                panic!("{taken:?}")
            };
            let unsigned = build(&payload, &settled).unwrap();
            let decoded = tx::decode(&unsigned.bytes).unwrap();
            assert_eq!(decoded.timestamp, 1_762_000_000_000 + later);
            assert_eq!(decoded.expiration, 1_762_000_060_000);
            let reservations = TRON.reservations(&payload, &unsigned).unwrap();
            let [Resource::TxHash(id)] = reservations.as_slice() else {
                panic!("{reservations:?}")
            };
            assert_eq!(id.as_slice(), unsigned.signing[0].message);
            assert!(taken.insert(reservations[0].clone()));
        }
    }
}

#[test]
fn settle__should_wait_when_the_time_of_a_block_is_used_up() {
    let native = payload(&WireKind::TronSendNative(native()));
    let last = ChainData {
        timestamp_ms: 1_762_000_059_999,
        ..ChainData::from(block(75_123_456))
    };
    let allocate = |chain_data: &ChainData, taken: &BTreeSet<Resource>| {
        TRON.allocate(&native, chain_data.clone().into(), taken)
    };
    assert_eq!(
        allocate(&last, &BTreeSet::new()),
        Ok(Allocation::ChainData(last.clone().into()))
    );
    let unsigned = build(&native, &last.clone().into()).unwrap();
    let taken = TRON
        .reservations(&native, &unsigned)
        .unwrap()
        .into_iter()
        .collect();
    assert!(matches!(allocate(&last, &taken), Ok(Allocation::Wait(_))));
    let past = ChainData {
        timestamp_ms: 1_762_000_060_000,
        ..last
    };
    assert_eq!(allocate(&past, &taken).unwrap_err().class(), &Class::Bug);
}

#[test]
fn most_fee__should_count_bytes_activation_and_the_fee_limit() {
    let fee = |kind: &WireKind| {
        let bytes = bytes(kind);
        // raw_data and one signature, with tag and length each, and 64 for the result.
        let size = 1 + 2 + bytes.len() + 2 + 65 + 64;
        let fee = TRON.most_fee(&bytes).unwrap();
        (fee - U256::from(size * 1000)).to::<u64>()
    };
    let [native, trc10, trc20] = kinds();
    assert_eq!(fee(&native), 1_100_000);
    assert_eq!(fee(&trc10), 1_100_000);
    assert_eq!(fee(&trc20), 30_000_000);
    for bytes in [&[][..], b"x", &[0x0a, 0xff], &bytes(&native)[..100]] {
        let fee = TRON.most_fee(bytes);
        match bytes {
            [] => assert_eq!(fee, Ok(U256::ZERO)),
            _ => assert_eq!(fee.unwrap_err().class(), &Class::Bug),
        }
    }
}

#[test]
fn decode__should_take_nothing_that_is_not_built() {
    let good = bytes(&WireKind::TronSendTrc20(trc20()));
    assert!(tx::decode(&good).is_some());
    let raw = proto::TransactionRaw::decode(good.as_slice()).unwrap();
    let with = |change: &dyn Fn(&mut proto::TransactionRaw)| {
        let mut raw = raw.clone();
        change(&mut raw);
        tx::decode(&raw.encode_to_vec())
    };
    let parameter = |raw: &mut proto::TransactionRaw,
                     change: &dyn Fn(&mut proto::TriggerSmartContract)| {
        use proto::ContractParameter as _;
        let mut call = proto::TriggerSmartContract::from_contract(&raw.contract[0]).unwrap();
        change(&mut call);
        raw.contract[0] = call.contract();
    };
    assert!(with(&|_| {}).is_some());
    let changes: [&dyn Fn(&mut proto::TransactionRaw); 10] = [
        &|raw| raw.contract.clear(),
        &|raw| raw.contract.push(raw.contract[0].clone()),
        &|raw| raw.contract[0].r#type = 1,
        &|raw| raw.contract[0].r#type = 30,
        &|raw| raw.contract[0].parameter = None,
        &|raw| raw.fee_limit = -1,
        &|raw| parameter(raw, &|call| call.owner_address[0] = 0xa0),
        &|raw| parameter(raw, &|call| call.data.push(0)),
        &|raw| parameter(raw, &|call| call.data[0] ^= 1),
        // More than an address in the word of the recipient.
        &|raw| parameter(raw, &|call| call.data[4] = 1),
    ];
    for (index, change) in changes.iter().enumerate() {
        assert_eq!(with(change), None, "{index}");
    }
    // A call_value (field 3) within, and a memo (field 10) beside, the contract.
    let mut paying = raw.clone();
    let value = &mut paying.contract[0].parameter.as_mut().unwrap().value;
    value.extend([0x18, 1]);
    assert_eq!(tx::decode(&paying.encode_to_vec()), None);
    assert_eq!(tx::decode(&[&good[..], &[0x52, 1, b'x']].concat()), None);
}

#[test]
fn difference__should_be_named() {
    type Change = fn(&mut wire::TronSendTrc20);
    let built = bytes(&WireKind::TronSendTrc20(trc20()));
    let changes: [(Change, &str); 4] = [
        (|wire| wire.contract_address = BOB.into(), "token"),
        (|wire| wire.to = USDT.into(), "recipient"),
        (|wire| wire.amount = "8".into(), "amount"),
        (|wire| wire.fee_limit = None, "feeLimit"),
    ];
    for (change, name) in changes {
        let mut wire = trc20();
        change(&mut wire);
        let shown = bytes(&WireKind::TronSendTrc20(wire));
        assert_eq!(TRON.difference(&built, &shown), Some(name));
    }
    let [native, trc10, trc20] = kinds();
    assert_eq!(
        TRON.difference(&bytes(&native), &bytes(&trc10)),
        Some("token")
    );
    let at = |number, block_ms, timestamp_ms| {
        let chain_data = ChainData {
            block: Block {
                timestamp_ms: block_ms,
                ..block(number)
            },
            timestamp_ms,
        };
        build(&payload(&trc20), &chain_data.into()).unwrap().bytes
    };
    let base = at(5, 100, 101);
    for (shown, name) in [
        (at(6, 100, 101), Some("block")),
        (at(5, 101, 101), Some("expiration")),
        (at(5, 100, 100), Some("timestamp")),
        (at(5, 100, 101), None),
        (vec![1], None),
    ] {
        assert_eq!(TRON.difference(&base, &shown), name);
    }
    let raw = proto::TransactionRaw::decode(built.as_slice()).unwrap();
    let mut other = raw.clone();
    let mut contract = {
        use proto::ContractParameter as _;
        proto::TriggerSmartContract::from_contract(&raw.contract[0]).unwrap()
    };
    contract.owner_address[5] ^= 1;
    other.contract = vec![proto::ContractParameter::contract(&contract)];
    assert_eq!(
        TRON.difference(&built, &other.encode_to_vec()),
        Some("from")
    );
}

#[test]
fn assemble__should_give_the_transaction_and_its_id() {
    for kind in kinds() {
        let payload = payload(&kind);
        let unsigned = build(&payload, &chain_data()).unwrap();
        let signature = sign(&unsigned);
        let signed = TRON
            .assemble(
                &payload,
                &unsigned,
                std::slice::from_ref(&signature),
                &public_key(),
            )
            .unwrap()
            .unwrap();
        let bytes = hex::decode(&signed.transaction).unwrap();
        let transaction = proto::SignedTransaction::decode(bytes.as_slice()).unwrap();
        assert_eq!(transaction.raw_data, unsigned.bytes);
        let [sealed] = transaction.signature.as_slice() else {
            panic!("{transaction:?}")
        };
        let Signature::Ecdsa { y_parity, .. } = signature else {
            unreachable!()
        };
        assert_eq!(sealed[..64], signature.to_bytes());
        assert_eq!(sealed[64..], [27 + y_parity]);
        assert_eq!(signed.tx_hash, hex::encode(&unsigned.signing[0].message));
    }
}

#[test]
fn replacement__should_be_refused_with_the_end_of_the_transaction() {
    for kind in kinds() {
        let payload = payload(&kind);
        let unsigned = build(&payload, &chain_data()).unwrap();
        let signature = sign(&unsigned);
        let signed = TRON.assemble(&payload, &unsigned, &[signature], &public_key());
        let signed = signed.unwrap().unwrap();
        let expires_ms = ChainData::from(block(75_123_456)).expires_ms();
        for how in [Replacement::SpeedUp, Replacement::Cancel] {
            let fault = TRON.replacement(&payload, &signed, how).unwrap_err();
            assert_eq!(fault.class(), &Class::Invalid);
            let said = fault.message();
            assert!(said.contains(&expires_ms.to_string()), "{said}");
            assert!(said.contains("cannot be replaced"), "{said}");
        }
    }
}

#[test]
fn assemble__should_refuse_what_was_not_built() {
    let payload = payload(&WireKind::TronSendNative(native()));
    let unsigned = build(&payload, &chain_data()).unwrap();
    let good = sign(&unsigned);
    let assemble = |unsigned: &Unsigned, signatures: &[Signature]| {
        TRON.assemble(&payload, unsigned, signatures, &public_key())
    };
    let Signature::Ecdsa { r, s, y_parity } = good.clone() else {
        unreachable!()
    };
    let other_parity = Signature::Ecdsa {
        r,
        s,
        y_parity: 1 - y_parity,
    };
    let ed25519 = Signature::Ed25519 { r, s };
    for signatures in [
        &[][..],
        &[good.clone(), good.clone()],
        &[other_parity],
        &[ed25519],
    ] {
        assert!(assemble(&unsigned, signatures).is_err());
    }
    for index in 0..unsigned.bytes.len() {
        let mut other = unsigned.clone();
        other.bytes[index] ^= 1;
        assert!(assemble(&other, std::slice::from_ref(&good)).is_err());
    }
    // Signed by the key, and no transaction.
    let text = b"not a transaction".to_vec();
    let mut other = unsigned.clone();
    other.signing[0].message = tx::id(&text).to_vec();
    other.bytes = text;
    let signature = sign(&other);
    assert!(assemble(&other, &[signature]).is_err());
}

fn address() -> impl Strategy<Value = String> {
    any::<[u8; 20]>().prop_map(|bytes| {
        let address = Address::from_bytes(&[&[0x41][..], &bytes].concat());
        address.unwrap().to_string()
    })
}

proptest! {
    #[test]
    fn transaction__should_be_read_as_it_was_built(
        to in address(), token in address(), amount in 1..=i64::MAX, asset in 1..=i64::MAX,
        words: [u64; 4], fee_limit in 1..=15_000_000_000_u64, number: u64,
        block_ms in 0..=1_u64 << 62, later in 0..60_000_u64,
    ) {
        let chain_data = ChainData {
            block: Block { timestamp_ms: block_ms, ..block(number) },
            timestamp_ms: block_ms + later,
        };
        let whole = U256::from_limbs(words);
        let amounts = [U256::from(amount), U256::from(amount), whole];
        let tokens = [
            tx::TronToken::Coin,
            tx::TronToken::Trc10(asset.to_string().into_bytes()),
            tx::TronToken::Trc20(parse_address(&token).unwrap()),
        ];
        let kinds = [
            WireKind::TronSendNative(wire::TronSendNative {
                from: from(), to: to.clone(), value: amount.to_string(),
            }),
            WireKind::TronSendTrc10(wire::TronSendTrc10 {
                from: from(), to: to.clone(), asset_name: asset.to_string(), amount: amount.to_string(),
            }),
            WireKind::TronSendTrc20(wire::TronSendTrc20 {
                from: from(), to: to.clone(), contract_address: token, amount: whole.to_string(),
                fee_limit: Some(fee_limit.to_string()),
            }),
        ];
        for ((kind, token), amount) in kinds.iter().zip(tokens).zip(amounts) {
            let unsigned = build(&payload(kind), &chain_data.clone().into()).unwrap();
            let fee_limit = match token {
                tx::TronToken::Trc20(_) => fee_limit,
                _ => 0,
            };
            let decoded = tx::DecodedTransaction {
                owner: parse_address(&from()).unwrap(),
                token,
                to: parse_address(&to).unwrap(),
                amount,
                fee_limit,
                block: (number.to_be_bytes()[6..].to_vec(), vec![0xab; 8]),
                expiration: (block_ms + 60_000).try_into().unwrap(),
                timestamp: (block_ms + later).try_into().unwrap(),
            };
            prop_assert_eq!(tx::decode(&unsigned.bytes), Some(decoded));
            prop_assert!(TRON.most_fee(&unsigned.bytes).unwrap() > U256::from(fee_limit));
        }
    }

    #[test]
    fn bytes__should_never_panic(bytes: Vec<u8>, at in 0..200_usize, flip: u8) {
        let mut near = self::bytes(&WireKind::TronSendTrc20(trc20()));
        let at = at % near.len();
        near[at] ^= flip;
        for bytes in [bytes, near] {
            let _ = TRON.most_fee(&bytes);
            let _ = TRON.difference(&bytes, &bytes);
            let _ = tx::assemble(&bytes, vec![0; 65]);
        }
    }
}
