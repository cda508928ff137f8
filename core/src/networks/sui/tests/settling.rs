//! What is left for a payment, what is checked for, and what is compared and signed.

use super::*;

#[test]
fn settle__should_leave_out_what_others_hold() {
    let allocate = |payload: &Payload, chain_data: &ChainData, taken: &[Resource]| {
        SUI_CHAIN.allocate(
            payload,
            chain_data.clone().into(),
            &taken.iter().cloned().collect(),
        )
    };
    let left = |settled: Result<Allocation<networks::ChainData>, Fault>| match settled.unwrap() {
        Allocation::ChainData(networks::ChainData::Sui(chain_data)) => chain_data,
        other => panic!("{other:?}"),
    };
    let two = chain_data(&[2_000, 3_000], &[]);
    let of_first = left(allocate(&native(1), &two, &[]));
    assert_eq!(of_first, chain_data(&[2_000], &[]));
    let first = build(&native(1), &of_first).unwrap();
    let taken = SUI_CHAIN.reservations(&native(1), &first).unwrap();
    let name = format!("{}:3", two.sui_coins[0].object_id);
    assert_eq!(taken, [Resource::Object(name)]);
    let kept = left(allocate(&native(1), &two, &taken));
    assert_eq!(kept.sui_coins, two.sui_coins[1..]);
    let second = build(&native(1), &kept).unwrap();
    let both: Vec<_> = [
        taken.clone(),
        SUI_CHAIN.reservations(&native(1), &second).unwrap(),
    ]
    .concat();
    assert_eq!(both.iter().collect::<BTreeSet<_>>().len(), 2);
    // What others hold would be enough: it comes back.
    for taken in [&taken, &both] {
        let waiting = allocate(&native(3_000), &two, taken).unwrap();
        assert!(matches!(waiting, Allocation::Wait(_)), "{waiting:?}");
    }
    assert!(allocate(&native(4_001), &two, &both).is_err());
    // Another version is another object.
    let mut moved = two.clone();
    moved.sui_coins[0].version = 4;
    assert_eq!(
        left(allocate(&native(1), &moved, &taken)).sui_coins,
        moved.sui_coins[..1]
    );

    let tokens = chain_data(&[5_000], &[10, 20]);
    let held = Resource::Object(format!("{}:3", tokens.coins[1].object_id));
    let kept = left(allocate(&token(10), &tokens, std::slice::from_ref(&held)));
    assert_eq!(kept.coins, tokens.coins[..1]);
    let waiting = allocate(&token(11), &tokens, &[held]).unwrap();
    assert!(matches!(waiting, Allocation::Wait(_)));
}

#[test]
fn settle__should_take_a_nonce_that_is_free() {
    let nonce = |start, taken: &[u32]| {
        let mut chain_data = chain_data(&[2_000], &[]);
        chain_data.validity.as_mut().unwrap().nonce = start;
        let taken = taken
            .iter()
            .map(|nonce| Resource::Nonce(5 << 32 | u64::from(*nonce)));
        match SUI_CHAIN
            .allocate(&native(1), chain_data.into(), &taken.collect())
            .unwrap()
        {
            Allocation::ChainData(networks::ChainData::Sui(chain_data)) => {
                chain_data.validity.unwrap().nonce
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(nonce(None, &[]), None);
    assert_eq!(nonce(Some(77), &[]), Some(77));
    assert_eq!(nonce(Some(77), &[77, 78, 80]), Some(79));
    assert_eq!(nonce(Some(u32::MAX), &[u32::MAX, 0]), Some(1));
}

#[test]
fn check_chain_data__should_want_tokens_that_show_their_type() {
    type Change = fn(&mut CoinObject);
    let checked = |payload: &Payload, change: Change| {
        let mut chain_data = chain_data(&[5_000], &[10, 20]);
        change(&mut chain_data.coins[1]);
        let checked = SUI_CHAIN.check_chain_data(payload, &chain_data.clone().into());
        let settled = SUI_CHAIN.allocate(payload, chain_data.into(), &BTreeSet::new());
        assert_eq!(checked.is_ok(), settled.is_ok());
        checked
    };
    assert_eq!(checked(&token(5), |_| ()), Ok(()));
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
        let fault = checked(&token(5), change).unwrap_err();
        assert!(
            fault
                .message()
                .starts_with("chainData: do not show that 0x6"),
            "{fault}"
        );
    }
    // The same coins, called something else.
    assert!(checked(&coin_of("0xabc::tok::KOT", 5), |_| ()).is_err());
    // Of SUI nothing has to be shown.
    let chain_data = ChainData {
        sui_coins: vec![CoinObject {
            origin: None,
            ..coin(SUI, 1, 5_000)
        }],
        ..chain_data(&[], &[])
    };
    assert_eq!(
        SUI_CHAIN.check_chain_data(&native(1), &chain_data.into()),
        Ok(())
    );
    assert_eq!(
        SUI_CHAIN.check_chain_data(&native(1), &networks::ChainData::Nothing),
        Ok(())
    );
}

/// A coin of mainnet's genesis.
#[test]
fn coin__should_have_the_digest_of_its_object() {
    let coin = CoinObject {
        object_id: "0x0083481fbd9b0822f3d53dc1b1bd7d7d823805e3d88cb9719daa0e01ebf0f4d0".into(),
        version: 1,
        digest: "5DDtiu3P3jLmibHdHYURAe9DaMgLQ3yfuUM8s1tXAMiJ".into(),
        balance: 822_980_000_000_000,
        origin: Some(CoinOrigin {
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
fn most_fee__should_be_the_budget() {
    let unsigned = build(&native(1), &chain_data(&[10_000], &[])).unwrap();
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
    let (payload, chain_data) = (
        token(5),
        ChainData {
            coin_address_balance: 10,
            sui_address_balance: 10_000,
            ..chain_data(&[], &[])
        },
    );
    let built = build(&payload, &chain_data).unwrap();
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
fn sent__should_name_its_last_epoch_and_objects_but_no_reservation() {
    // Gas out of the address balance; then a reservation of it beside a coin.
    let mut rich = chain_data(&[], &[10, 20]);
    rich.sui_address_balance = 5_000;
    let mut both = chain_data(&[10_000], &[]);
    both.sui_address_balance = 5_000;
    for (payload, chain_data, last_epoch, objects, next) in [
        (token(25), &rich, Some(6), &rich.coins, 4),
        (native(5), &both, None, &both.sui_coins, 4),
    ] {
        let unsigned = build(&payload, chain_data).unwrap();
        let signature = sign(&unsigned.signing[0].message);
        let signed = SUI_CHAIN
            .assemble(&payload, &unsigned, &[signature], &public_key())
            .unwrap()
            .unwrap();
        let sent = read_sent(&signed.transaction).unwrap();
        assert_eq!(sent.last_epoch, last_epoch);
        let named = |coin: &CoinObject| OwnedObject {
            object_id: coin.object_id.clone(),
            version: coin.version,
        };
        let expected: Vec<_> = objects.iter().map(named).collect();
        assert_eq!(
            (sent.objects.as_slice(), sent.next_version()),
            (expected.as_slice(), next)
        );
    }
}

#[test]
fn assemble__should_give_what_a_node_takes() {
    let (payload, chain_data) = (native(5), chain_data(&[10_000], &[]));
    let unsigned = build(&payload, &chain_data).unwrap();
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

    let sent = read_sent(&signed.transaction).unwrap();
    assert_eq!(sent.transaction, unsigned.bytes);
    assert_eq!(sent.signatures, [signature.to_bytes()]);
    assert_eq!(sent.last_epoch, None);
    let gas = OwnedObject {
        object_id: chain_data.sui_coins[0].object_id.clone(),
        version: 3,
    };
    assert_eq!(
        (sent.objects.as_slice(), sent.next_version()),
        (&[gas][..], 4)
    );
    for text in [
        "",
        "{}",
        r#"{"txBytes": "AAAA", "signatures": []}"#,
        &signed
            .transaction
            .replace("txBytes\":\"", "txBytes\":\"AAAA"),
        &signed.transaction.replace('}', ", \"more\": 1}"),
    ] {
        assert!(read_sent(text).is_err(), "{text}");
    }

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
