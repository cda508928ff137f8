#![allow(non_snake_case)]

use ed25519_dalek::{Signer as _, SigningKey};
use proptest::prelude::*;
use sui_sdk_types::{
    Digest, MoveStruct, Object, ObjectData, ObjectReference, Owner, TransactionExpiration, TypeTag,
};

use super::*;
use crate::{
    chain::{self, Chain, solana},
    payload::{
        Payload, WireKind,
        outflow::{Asset, Nature, Place},
        sui::batch_native,
    },
    schema::wire,
};

#[path = "custom_tests.rs"]
mod custom_tests;

const SUI_CHAIN: &dyn Chain = &Sui;

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
fn coin(kind: &str, number: u8, balance: u64) -> Coin {
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
    Coin {
        object_id: id.to_string(),
        version: 3,
        digest: object.digest().to_base58(),
        balance,
        origin: Some(Origin {
            previous_transaction: Digest::new([9; 32]).to_base58(),
            storage_rebate: 988_000,
        }),
    }
}

fn facts(sui: &[u64], tokens: &[u64]) -> Facts {
    Facts {
        reference_gas_price: None,
        gas_used: None,
        sui_coins: (1..).zip(sui).map(|(n, one)| coin(SUI, n, *one)).collect(),
        sui_address_balance: 0,
        coins: (101..)
            .zip(tokens)
            .map(|(n, one)| coin(TOKEN, n, *one))
            .collect(),
        coin_address_balance: 0,
        validity: Some(Validity {
            epoch: 5,
            chain_identifier: Digest::new(CHAIN).to_base58(),
            nonce: Some(77),
        }),
    }
}

fn build(payload: &Payload, facts: &Facts) -> Result<Unsigned, Fault> {
    SUI_CHAIN.build(payload, &facts.clone().into(), &public_key())
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
    let place = Place::network(Network::Sui);
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
    let asked = |payload: &Payload| match SUI_CHAIN.needs(payload) {
        chain::Needs::Sui(needs) => (needs.price, needs.simulation),
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
    assert!(SUI_CHAIN.is_sequenced(&SUI_CHAIN.needs(&native(1))));
    assert!(!SUI_CHAIN.is_sequenced(&chain::Needs::Nothing));
}

#[test]
fn gas__should_come_from_the_chain_by_the_conventions() {
    let of = |payload: &Payload, price: Option<u64>, used: Option<(u64, u64, u64)>| {
        let facts = Facts {
            reference_gas_price: price,
            gas_used: used.map(|(computation_cost, storage_cost, storage_rebate)| {
                Box::new(GasUsed {
                    computation_cost,
                    storage_cost,
                    storage_rebate,
                })
            }),
            ..facts(&[u64::MAX], &[])
        };
        build(payload, &facts).map(|unsigned| {
            let gas = read(&unsigned).gas_payment;
            (gas.price, gas.budget)
        })
    };
    let open = native_with("1", None);
    // 1000 units of gas more than the simulation took, and storage where it costs something.
    assert_eq!(of(&open, Some(505), Some((10, 30, 20))), Ok((505, 505_020)));
    assert_eq!(of(&open, Some(505), Some((10, 20, 30))), Ok((505, 505_010)));
    let most = Some((MAX_BUDGET_USED, 0, 0));
    assert_eq!(of(&open, Some(1), most), Ok((1, 50_000_000_000)));
    for (price, used) in [
        (0, (1, 1, 1)),
        (100_000, (1, 1, 1)),
        (u64::MAX, (1, 1, 1)),
        (1, (MAX_BUDGET_USED + 1, 0, 0)),
        (1, (u64::MAX, u64::MAX, 0)),
    ] {
        let fault = of(&open, Some(price), Some(used)).unwrap_err();
        assert_eq!(fault.class(), &Class::Invalid);
        assert!(
            fault.public().starts_with("suiSendNative.gasFee"),
            "{fault}"
        );
    }
    // Neither too little nor what the request has said itself.
    let given = native(1);
    for (payload, price, used) in [
        (&open, None, None),
        (&open, Some(1), None),
        (&open, None, Some((1, 1, 1))),
        (&given, Some(1), None),
        (&given, None, Some((1, 1, 1))),
    ] {
        assert_eq!(of(payload, price, used).unwrap_err().class(), &Class::Bug);
    }
}

const MAX_BUDGET_USED: u64 = 50_000_000_000 - 1000;

#[test]
fn build__should_refuse_facts_that_do_not_fit() {
    type Change = fn(&mut Facts);
    let cases: [(&Payload, Change); 9] = [
        (&native(1), |facts| facts.coins = vec![coin(TOKEN, 50, 1)]),
        (&native(1), |facts| facts.coin_address_balance = 1),
        (&native(1), |facts| {
            facts.sui_coins.push(facts.sui_coins[0].clone())
        }),
        (&token(1), |facts| {
            facts.coins.push(facts.sui_coins[0].clone())
        }),
        (&native(1), |facts| {
            facts.sui_coins[0].object_id = "0x2".into()
        }),
        (&native(1), |facts| facts.sui_coins[0].digest = "abc".into()),
        (&native(1), |facts| {
            let reserved = [&[1; 12][..], &[0xac; 20]].concat();
            facts.sui_coins[0].digest = bs58::encode(reserved).into_string();
        }),
        (&native(1), |facts| {
            (facts.sui_address_balance, facts.validity) = (1, None);
        }),
        (&native(1), |facts| {
            facts.sui_address_balance = 1;
            facts.validity.as_mut().unwrap().epoch = 1 << 32;
        }),
    ];
    for (index, (payload, change)) in cases.into_iter().enumerate() {
        let tokens: &[u64] = if payload == &token(1) { &[10] } else { &[] };
        let mut facts = facts(&[10_000], tokens);
        change(&mut facts);
        let fault = build(payload, &facts).unwrap_err();
        assert_eq!(fault.class(), &Class::Bug, "{index}: {fault:?}");
    }
    let mut many = facts(&[10_000], &[]);
    for number in 0..MAX_COINS {
        let mut id = [1; 32];
        id[..8].copy_from_slice(&number.to_le_bytes());
        let object_id = Address::new(id).to_string();
        many.sui_coins.push(Coin {
            object_id,
            ..coin(SUI, 200, 1)
        });
    }
    assert_eq!(build(&native(1), &many).unwrap_err().class(), &Class::Bug);
    many.sui_coins.pop();
    let gas = read(&build(&native(1), &many).unwrap()).gas_payment;
    assert_eq!(gas.objects.len(), 256);

    let others = chain::Facts::Solana(solana::Facts {
        recent_blockhash: String::new(),
        token: None,
    });
    for facts in [&chain::Facts::Nothing, &others] {
        let fault = SUI_CHAIN
            .build(&native(1), facts, &public_key())
            .unwrap_err();
        assert_eq!(fault.class(), &Class::Bug);
    }
    let key = SigningKey::from_bytes(&[8; 32]).verifying_key().to_bytes();
    let good = facts(&[10_000], &[]).into();
    let fault = SUI_CHAIN.build(&native(1), &good, &key).unwrap_err();
    assert_eq!(
        fault.public(),
        "suiSendNative.from: is not the wallet's address"
    );
}

#[test]
fn build__should_refuse_what_the_wallet_cannot_pay() {
    use crate::fault::ExecuteCode::{InsufficientFunds, InsufficientGasFee};
    let with_balance = |facts: Facts, sui, tokens| Facts {
        sui_address_balance: sui,
        coin_address_balance: tokens,
        ..facts
    };
    for (payload, facts, refusal) in [
        (native(9_000), facts(&[4_000, 6_000], &[]), None),
        (
            native(9_001),
            facts(&[4_000, 6_000], &[]),
            Some(InsufficientFunds),
        ),
        (
            native(9_001),
            with_balance(facts(&[4_000, 6_000], &[]), 1, 0),
            None,
        ),
        (native(0), facts(&[], &[]), Some(InsufficientFunds)),
        (native(1), with_balance(facts(&[], &[]), 1_001, 0), None),
        (token(30), facts(&[1_000], &[10, 20]), None),
        (
            token(31),
            facts(&[1_000], &[10, 20]),
            Some(InsufficientFunds),
        ),
        (
            token(31),
            with_balance(facts(&[1_000], &[10, 20]), 0, 1),
            None,
        ),
        (token(1), facts(&[999], &[1]), Some(InsufficientGasFee)),
        // Gas is taken from coins or from the balance, not from both.
        (
            token(1),
            with_balance(facts(&[999], &[1]), 999, 0),
            Some(InsufficientGasFee),
        ),
        (token(1), with_balance(facts(&[], &[1]), 1_000, 0), None),
        (token(0), facts(&[1_000], &[]), None),
    ] {
        let built = build(&payload, &facts);
        assert_eq!(built.as_ref().err().map(Fault::code), refusal, "{built:?}");
        if let Err(fault) = built {
            assert_eq!(fault.class(), &Class::Invalid);
        }
    }
    // Nobody has so much: encoded as asked for, and refused where it is decided.
    let most = native(u64::MAX);
    let facts = facts(&[1], &[]);
    assert!(build(&most, &facts).is_ok());
    let fault = SUI_CHAIN.settle(&most, facts.into(), &BTreeSet::new());
    assert_eq!(fault.unwrap_err().code(), InsufficientFunds);
}

#[test]
fn expiration__should_tell_payments_apart_that_spend_no_coin() {
    let from_balance = |nonce| Facts {
        sui_address_balance: 10_000,
        coin_address_balance: 10,
        validity: Some(Validity {
            epoch: 5,
            chain_identifier: Digest::new(CHAIN).to_base58(),
            nonce,
        }),
        ..facts(&[], &[])
    };
    let valid = |nonce| TransactionExpiration::ValidDuring {
        min_epoch: Some(5),
        max_epoch: Some(6),
        min_timestamp: None,
        max_timestamp: None,
        chain: Digest::new(CHAIN),
        nonce,
    };
    let sui = |nonce| Facts {
        coin_address_balance: 0,
        ..from_balance(nonce)
    };
    for nonce in [3, 4] {
        let unsigned = build(&token(1), &from_balance(Some(nonce))).unwrap();
        assert_eq!(read(&unsigned).expiration, valid(nonce));
        assert!(read(&unsigned).gas_payment.objects.is_empty());
        let used = vec![Resource::Nonce(5 << 32 | u64::from(nonce))];
        assert_eq!(SUI_CHAIN.uses(&token(1), &unsigned), Ok(used.clone()));
        // A coin reservation is no object.
        let unsigned = build(&native(1), &sui(Some(nonce))).unwrap();
        assert_eq!(read(&unsigned).expiration, valid(nonce));
        assert_eq!(read(&unsigned).gas_payment.objects.len(), 1);
        assert_eq!(SUI_CHAIN.uses(&native(1), &unsigned), Ok(used));
    }
    // As the SDK has it, which sets none beside a coin reservation.
    let unsigned = build(&native(1), &sui(None)).unwrap();
    assert_eq!(read(&unsigned).expiration, TransactionExpiration::None);
    let uses = SUI_CHAIN.uses(&native(1), &unsigned).unwrap();
    assert!(matches!(uses.as_slice(), [Resource::Whole(_)]));
    let fault = build(&token(1), &from_balance(None)).unwrap_err();
    assert_eq!(fault.class(), &Class::Bug);
    // Coins that change are enough.
    let unsigned = build(&native(1), &facts(&[10_000], &[])).unwrap();
    assert_eq!(read(&unsigned).expiration, TransactionExpiration::None);
}

#[test]
fn settle__should_leave_out_what_others_hold() {
    let settle = |payload: &Payload, facts: &Facts, taken: &[Resource]| {
        SUI_CHAIN.settle(
            payload,
            facts.clone().into(),
            &taken.iter().cloned().collect(),
        )
    };
    let left = |settled: Result<Settled, Fault>| match settled.unwrap() {
        Settled::Facts(chain::Facts::Sui(facts)) => facts,
        other => panic!("{other:?}"),
    };
    let two = facts(&[2_000, 3_000], &[]);
    assert_eq!(left(settle(&native(1), &two, &[])), two);
    let first = build(&native(1), &facts(&[2_000], &[])).unwrap();
    let taken = SUI_CHAIN.uses(&native(1), &first).unwrap();
    let name = format!("{}:3", two.sui_coins[0].object_id);
    assert_eq!(taken, [Resource::Piece(name)]);
    let kept = left(settle(&native(1), &two, &taken));
    assert_eq!(kept.sui_coins, two.sui_coins[1..]);
    let second = build(&native(1), &kept).unwrap();
    let both: Vec<_> = [taken.clone(), SUI_CHAIN.uses(&native(1), &second).unwrap()].concat();
    assert_eq!(both.iter().collect::<BTreeSet<_>>().len(), 2);
    // What others hold would be enough: it comes back.
    for taken in [&taken, &both] {
        let waiting = settle(&native(3_000), &two, taken).unwrap();
        assert!(matches!(waiting, Settled::Wait(_)), "{waiting:?}");
    }
    assert!(settle(&native(4_001), &two, &both).is_err());
    // Another version is another object.
    let mut moved = two.clone();
    moved.sui_coins[0].version = 4;
    assert_eq!(left(settle(&native(1), &moved, &taken)).sui_coins.len(), 2);

    let tokens = facts(&[5_000], &[10, 20]);
    let held = Resource::Piece(format!("{}:3", tokens.coins[1].object_id));
    let kept = left(settle(&token(10), &tokens, std::slice::from_ref(&held)));
    assert_eq!(kept.coins, tokens.coins[..1]);
    let waiting = settle(&token(11), &tokens, &[held]).unwrap();
    assert!(matches!(waiting, Settled::Wait(_)));
}

#[test]
fn settle__should_take_a_nonce_that_is_free() {
    let nonce = |start, taken: &[u32]| {
        let mut facts = facts(&[2_000], &[]);
        facts.validity.as_mut().unwrap().nonce = start;
        let taken = taken
            .iter()
            .map(|nonce| Resource::Nonce(5 << 32 | u64::from(*nonce)));
        match SUI_CHAIN
            .settle(&native(1), facts.into(), &taken.collect())
            .unwrap()
        {
            Settled::Facts(chain::Facts::Sui(facts)) => facts.validity.unwrap().nonce,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(nonce(None, &[]), None);
    assert_eq!(nonce(Some(77), &[]), Some(77));
    assert_eq!(nonce(Some(77), &[77, 78, 80]), Some(79));
    assert_eq!(nonce(Some(u32::MAX), &[u32::MAX, 0]), Some(1));
}

#[test]
fn vouch__should_want_tokens_that_show_their_type() {
    type Change = fn(&mut Coin);
    let vouched = |payload: &Payload, change: Change| {
        let mut facts = facts(&[5_000], &[10, 20]);
        change(&mut facts.coins[1]);
        let vouched = SUI_CHAIN.vouch(payload, &facts.clone().into());
        let settled = SUI_CHAIN.settle(payload, facts.into(), &BTreeSet::new());
        assert_eq!(vouched.is_ok(), settled.is_ok());
        vouched
    };
    assert_eq!(vouched(&token(5), |_| ()), Ok(()));
    let changes: [Change; 7] = [
        |coin| coin.origin = None,
        |coin| coin.balance += 1,
        |coin| coin.version += 1,
        |coin| coin.object_id = coin.object_id.replace("66", "67"),
        |coin| coin.digest = Digest::new([4; 32]).to_base58(),
        |coin| coin.origin.as_mut().unwrap().storage_rebate += 1,
        |coin| {
            let other = Digest::new([8; 32]).to_base58();
            coin.origin.as_mut().unwrap().previous_transaction = other;
        },
    ];
    for change in changes {
        let fault = vouched(&token(5), change).unwrap_err();
        assert!(
            fault.public().starts_with("facts: do not show that 0x6"),
            "{fault}"
        );
    }
    // The same coins, called something else.
    assert!(vouched(&coin_of("0xabc::tok::KOT", 5), |_| ()).is_err());
    // Of SUI nothing has to be shown.
    let facts = Facts {
        sui_coins: vec![Coin {
            origin: None,
            ..coin(SUI, 1, 5_000)
        }],
        ..facts(&[], &[])
    };
    assert_eq!(SUI_CHAIN.vouch(&native(1), &facts.into()), Ok(()));
    assert_eq!(SUI_CHAIN.vouch(&native(1), &chain::Facts::Nothing), Ok(()));
}

/// A coin of mainnet's genesis.
#[test]
fn coin__should_have_the_digest_of_its_object() {
    let coin = Coin {
        object_id: "0x0083481fbd9b0822f3d53dc1b1bd7d7d823805e3d88cb9719daa0e01ebf0f4d0".into(),
        version: 1,
        digest: "5DDtiu3P3jLmibHdHYURAe9DaMgLQ3yfuUM8s1tXAMiJ".into(),
        balance: 822_980_000_000_000,
        origin: Some(Origin {
            previous_transaction: "7CuBm1AnLgkBMB6GiEn5d3RizznF5LbawjJTs8A5dcXF".into(),
            storage_rebate: 0,
        }),
    };
    let owner = "0x5e1c2b740381bb2040b26a67acc84234880abe4a992d9faae99a659b1149db4a";
    let owner = parse_address(owner).unwrap();
    assert_eq!(coin.is_of(&StructTag::sui(), owner), Ok(true));
    assert_eq!(coin.is_of(&StructTag::sui(), Address::TWO), Ok(false));
    let other = parse_coin_type(TOKEN).unwrap();
    assert_eq!(coin.is_of(&other, owner), Ok(false));
}

#[test]
fn simulation__should_be_the_sdks() {
    let sdk: serde_json::Value = serde_json::from_str(include_str!("sdk.json")).unwrap();
    let sdk = &sdk["simulation"];
    let from = "0x559b58c97f8a3dee4d7e09196e8bba1e7d30b8de78b58321aa86481933dc2ea6";
    let payload = Payload::parse(&WireKind::SuiSendCoin(wire::SuiSendCoin {
        from: from.into(),
        to: TO.into(),
        coin_tag: TOKEN.into(),
        amount: "700".into(),
        gas_fee: None,
    }));
    let chain::Needs::Sui(needs) = SUI_CHAIN.needs(&payload.unwrap()) else {
        unreachable!()
    };
    let coin = |id: u8, version, digest, balance| Coin {
        object_id: format!("0x{id:064x}"),
        version,
        digest: Digest::new([digest; 32]).to_base58(),
        balance,
        origin: None,
    };
    let mut facts = Facts {
        reference_gas_price: Some(505),
        gas_used: None,
        sui_coins: vec![coin(0x23, 5, 10, 100_000_000)],
        sui_address_balance: 0,
        coins: vec![coin(0x21, 3, 8, 300), coin(0x22, 4, 9, 500)],
        coin_address_balance: 0,
        validity: Some(Validity {
            epoch: 1024,
            chain_identifier: Digest::new([7; 32]).to_base58(),
            nonce: Some(sdk["nonce"].as_u64().unwrap().try_into().unwrap()),
        }),
    };
    let bytes = simulation(&needs, &facts).unwrap();
    assert_eq!(STANDARD.encode(bytes), sdk["bcs"].as_str().unwrap());
    facts.coins.pop();
    let fault = simulation(&needs, &facts).unwrap_err();
    assert_eq!(fault.class(), &Class::Invalid);
    facts.validity = None;
    assert!(simulation(&needs, &facts).is_err());
}

#[test]
fn most_fee__should_be_the_budget() {
    let unsigned = build(&native(1), &facts(&[10_000], &[])).unwrap();
    assert_eq!(SUI_CHAIN.most_fee(&unsigned.bytes), Ok(U256::from(1_000)));
    assert_eq!(SUI_CHAIN.most_fee(&[]), Ok(U256::ZERO));
    for bytes in [
        &unsigned.bytes[1..],
        &[0],
        &[unsigned.bytes.clone(), vec![0]].concat(),
    ] {
        assert_eq!(SUI_CHAIN.most_fee(bytes).unwrap_err().class(), &Class::Bug);
    }
}

#[test]
fn difference__should_be_named() {
    let (payload, facts) = (
        token(5),
        Facts {
            coin_address_balance: 10,
            sui_address_balance: 10_000,
            ..facts(&[], &[])
        },
    );
    let built = build(&payload, &facts).unwrap();
    let shown = |change: fn(&mut Transaction)| {
        let mut transaction = read(&built);
        change(&mut transaction);
        tx::encode(&transaction).unwrap()
    };
    fn program(transaction: &mut Transaction) -> &mut sui_sdk_types::ProgrammableTransaction {
        match &mut transaction.kind {
            sui_sdk_types::TransactionKind::ProgrammableTransaction(program) => program,
            _ => unreachable!(),
        }
    }
    type Change = fn(&mut Transaction);
    let cases: [(&str, Change); 11] = [
        ("from", |tx| tx.sender = Address::TWO),
        ("recipient", |tx| {
            program(tx).inputs[0] = Input::Pure(vec![1; 32])
        }),
        ("amount", |tx| {
            program(tx).inputs[2] = Input::Pure(vec![1; 8])
        }),
        ("coinTag", |tx| {
            for command in &mut program(tx).commands {
                if let Command::MoveCall(call) = command {
                    call.type_arguments = vec![TypeTag::U8];
                }
            }
        }),
        ("coins", |tx| {
            program(tx).inputs[3] = Input::Pure(vec![1; 32])
        }),
        ("commands", |tx| {
            program(tx).commands.swap(0, 1);
        }),
        ("gasPayment", |tx| {
            let object = ObjectReference::new(Address::TWO, 1, Digest::ZERO);
            tx.gas_payment.objects.push(object);
        }),
        ("gasFee", |tx| tx.gas_payment.budget += 1),
        ("gasFee", |tx| tx.gas_payment.owner = Address::TWO),
        ("nonce", |tx| {
            if let TransactionExpiration::ValidDuring { nonce, .. } = &mut tx.expiration {
                *nonce += 1;
            }
        }),
        ("expiration", |tx| {
            if let TransactionExpiration::ValidDuring { max_epoch, .. } = &mut tx.expiration {
                *max_epoch = None;
            }
        }),
    ];
    for (name, change) in cases {
        let shown = shown(change);
        assert_eq!(SUI_CHAIN.difference(&built.bytes, &shown), Some(name));
    }
    assert_eq!(SUI_CHAIN.difference(&built.bytes, &built.bytes), None);
    assert_eq!(SUI_CHAIN.difference(&built.bytes, &[1]), None);
}

#[test]
fn assemble__should_give_what_a_node_takes() {
    let (payload, facts) = (native(5), facts(&[10_000], &[]));
    let unsigned = build(&payload, &facts).unwrap();
    let good = sign(&unsigned.signing[0].message);
    let assemble = |unsigned: &Unsigned, signatures: &[Signature]| {
        SUI_CHAIN.assemble(&payload, unsigned, signatures, &public_key())
    };
    let signed = assemble(&unsigned, std::slice::from_ref(&good))
        .unwrap()
        .unwrap();
    let text: serde_json::Value = serde_json::from_str(&signed.transaction).unwrap();
    assert_eq!(text["txBytes"], STANDARD.encode(&unsigned.bytes));
    let signature = UserSignature::from_base64(text["signatures"][0].as_str().unwrap()).unwrap();
    assert_eq!(signature.derive_address().to_string(), from());
    assert_eq!(signed.tx_hash, read(&unsigned).digest().to_base58());

    let ecdsa = Signature::Ecdsa {
        r: [1; 32],
        s: [1; 32],
        y_parity: 0,
    };
    for signatures in [&[][..], &[ecdsa], &[good.clone(), good.clone()]] {
        assert!(assemble(&unsigned, signatures).is_err());
    }
    for index in 0..unsigned.bytes.len() {
        let mut other = unsigned.clone();
        other.bytes[index] ^= 1;
        assert!(assemble(&other, std::slice::from_ref(&good)).is_err());
    }
}

#[test]
fn message__should_be_a_message_whatever_it_says() {
    let transaction = build(&native(5), &facts(&[10_000], &[])).unwrap();
    for content in [&b""[..], b"hello", &transaction.bytes] {
        let payload = Payload::parse(&WireKind::SuiMessage(wire::SuiMessage {
            from: from(),
            r#type: 0,
            content: content.to_vec(),
        }))
        .unwrap();
        assert_eq!(SUI_CHAIN.needs(&payload), chain::Needs::Nothing);
        let outflow = payload.outflow(Network::Sui);
        assert_eq!((outflow.nature, outflow.spends.len()), (Nature::Message, 0));
        let unsigned = SUI_CHAIN
            .build(&payload, &chain::Facts::Nothing, &public_key())
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

fn batch(amounts: &[&str]) -> Result<Payment, Fault> {
    batch_native(&wire::SuiBatchSendNative {
        from: from(),
        recipients: amounts
            .iter()
            .map(|amount| wire::BatchPaymentRecipient {
                address: TO.into(),
                amount: (*amount).into(),
                notes: None,
            })
            .collect(),
    })
}

#[test]
fn batch__should_pay_everybody_in_one_transaction() {
    let payment = batch(&["1", "2", "3"]).unwrap();
    let payment = payment
        .with_gas(gas(Some("1000"), Some("10")).as_ref())
        .unwrap();
    let payload: Payload = SuiPayload::Payment(payment).into();
    let outflow = payload.outflow(Network::Sui);
    assert_eq!(outflow.nature, Nature::Transfer);
    let amounts: Vec<_> = outflow.spends.iter().map(|spend| spend.amount).collect();
    assert_eq!(amounts, [1, 2, 3].map(U256::from));
    assert!(build(&payload, &facts(&[1_006], &[])).is_ok());
    let fault = build(&payload, &facts(&[1_005], &[])).unwrap_err();
    assert!(
        fault.public().starts_with("suiSendNative.recipients: "),
        "{fault}"
    );
    // It has no wire form that could be read as another payment.
    assert!(Payload::decode(&payload.encode()).is_err());
    let one: Payload = SuiPayload::Payment(batch(&["1"]).unwrap()).into();
    assert_eq!(Payload::decode(&one.encode()), Ok(one));
    for (amounts, sentence) in [
        (vec![], "recipients: must be 1 to 254"),
        (vec!["1"; 255], "recipients: must be 1 to 254"),
        (vec!["1", "0"], "recipients[1].amount: must be more than 0"),
        (vec!["1", "-1"], "recipients[1].amount: must be a whole"),
        (
            vec!["1", "18446744073709551615"],
            "recipients: get more than there can be",
        ),
    ] {
        let fault = batch(&amounts).unwrap_err();
        assert!(fault.public().starts_with(sentence), "{fault}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// What is built says what was asked for.
    #[test]
    fn payment__should_come_back_from_its_bytes(
        amounts in prop::collection::vec((any::<[u8; 32]>(), 1..1_000_000_u64), 1..6),
        coins in prop::collection::vec(0..1_000_000_u64, 0..6),
        balances in (0..4_000_000_u64, 0..4_000_000_u64),
        of_token: bool,
    ) {
        let outputs = amounts.iter().map(|(to, amount)| wire::BatchPaymentRecipient {
            address: Address::new(*to).to_string(),
            amount: amount.to_string(),
            notes: None,
        });
        let recipients = outputs.collect();
        let payment = if of_token {
            crate::payload::sui::batch_coin(&wire::SuiBatchSendCoin {
                from: from(), coin_tag: TOKEN.into(), recipients,
            })
        } else {
            batch_native(&wire::SuiBatchSendNative { from: from(), recipients })
        };
        let payment = payment.unwrap().with_gas(gas(Some("1000"), Some("10")).as_ref()).unwrap();
        let total = payment.total();
        let payload: Payload = SuiPayload::Payment(payment).into();
        let facts = Facts {
            sui_address_balance: balances.0,
            coin_address_balance: if of_token { balances.1 } else { 0 },
            ..if of_token { facts(&[1_000], &coins) } else { facts(&coins, &[]) }
        };
        let have: u64 = coins.iter().sum::<u64>()
            + if of_token { balances.1 } else { balances.0 };
        let need = if of_token { total } else { total + 1_000 };
        let built = build(&payload, &facts);
        prop_assert_eq!(built.is_ok(), have >= need);
        let Ok(unsigned) = built else { return Ok(()) };
        prop_assert_eq!(build(&payload, &facts).unwrap(), unsigned.clone());
        let transaction = read(&unsigned);
        prop_assert_eq!(tx::encode(&transaction).unwrap(), unsigned.bytes.clone());
        prop_assert_eq!(transaction.sender.to_string(), from());
        prop_assert_eq!(transaction.gas_payment.owner, transaction.sender);
        prop_assert_eq!((transaction.gas_payment.price, transaction.gas_payment.budget), (10, 1_000));
        let program = tx::program_of(&transaction).unwrap();
        let mut paid = Vec::new();
        let mut split = Vec::new();
        for command in &program.commands {
            match command {
                Command::SplitCoins(command) => split = command.amounts.iter()
                    .map(|amount| u64::from_le_bytes(tx::pure(program, amount).unwrap().try_into().unwrap()))
                    .collect(),
                Command::TransferObjects(command) => {
                    let [Argument::NestedResult(_, index)] = command.objects[..] else { panic!() };
                    let to: [u8; 32] = tx::pure(program, &command.address).unwrap().try_into().unwrap();
                    paid.push((to, split[usize::from(index)]));
                }
                _ => {}
            }
        }
        prop_assert_eq!(paid, amounts);
        // Nothing leaves but by calls of the coin module itself.
        for command in &program.commands {
            if let Command::MoveCall(call) = command {
                prop_assert_eq!(call.package, Address::TWO);
                prop_assert_eq!(call.module.as_str(), "coin");
            }
        }
        let uses = SUI_CHAIN.uses(&payload, &unsigned).unwrap();
        prop_assert!(!uses.is_empty());
    }

    #[test]
    fn address__should_never_panic(text: String, bytes: [u8; 32]) {
        let _ = (parse_address(&text), parse_coin_type(&text), SUI_CHAIN.parse_token(&text));
        let address = Address::new(bytes).to_string();
        prop_assert_eq!(SUI_CHAIN.parse_address(&address).unwrap(), address);
    }

    #[test]
    fn facts__should_never_panic(id in "\\PC{0,70}", digest in "\\PC{0,50}", balance: u64, epoch: u64, chain in "\\PC{0,50}", price: u64) {
        let mut facts = facts(&[u64::MAX, u64::MAX], &[]);
        facts.sui_coins[0].object_id = id;
        facts.sui_coins[1].digest = digest;
        facts.sui_address_balance = balance;
        facts.reference_gas_price = Some(price);
        facts.gas_used = Some(Box::new(GasUsed { computation_cost: balance, storage_cost: epoch, storage_rebate: price }));
        facts.validity = Some(Validity { epoch, chain_identifier: chain, nonce: Some(1) });
        let payload = native_with("5", None);
        let _ = build(&payload, &facts);
        let _ = SUI_CHAIN.settle(&payload, facts.into(), &BTreeSet::new());
    }
}
