//! Transactions that are built here.

use super::*;

#[test]
fn fee_level__should_go_into_the_queries_and_come_back() {
    for (number, level) in [
        (0, FeeLevel::Normal),
        (1, FeeLevel::Slow),
        (2, FeeLevel::Normal),
        (3, FeeLevel::Fast),
    ] {
        for mut wire in [send().to_wire(), send_asset().to_wire(), trust().to_wire()] {
            match &mut wire {
                WireKind::StellarSendNative(wire) => wire.fee_level = number,
                WireKind::StellarSendAsset(wire) => wire.fee_level = number,
                WireKind::StellarChangeTrust(wire) => wire.fee_level = number,
                other => panic!("{other:?}"),
            }
            let payload = Payload::parse(&wire).unwrap();
            match STELLAR.queries(&payload) {
                networks::Queries::Stellar(queries) => assert_eq!(queries.level, level),
                other => panic!("{other:?}"),
            }
            assert_eq!(Payload::decode(&payload.encode()).unwrap(), payload);
        }
    }
}

#[test]
fn needs__should_ask_for_the_sender_and_who_may_have_to_be_created() {
    let asked = |payload: &Payload| match STELLAR.queries(payload) {
        networks::Queries::Stellar(queries) => queries,
        other => panic!("{other:?}"),
    };
    let wanted = |destination: Option<&str>, moves| Queries {
        from: from(),
        destination: destination.map(Into::into),
        level: FeeLevel::Normal,
        moves,
    };
    let to_one = wanted(Some(TO), Moves::Lumens(25_000_000));
    assert_eq!(asked(&send()), to_one);
    let account = muxed(MUXED).account_id().to_string();
    let to_muxed = wanted(Some(&account), Moves::Lumens(10_000_000));
    assert_eq!(asked(&send_to(MUXED, "1").unwrap()), to_muxed);
    let usdc = Moves::Asset {
        asset: format!("USDC:{ISSUER}"),
        amount: 1,
        to: account,
    };
    assert_eq!(asked(&send_asset()), wanted(None, usdc));
    let asset = format!("LONGASSET123:{ISSUER}");
    assert_eq!(asked(&trust()), wanted(None, Moves::Trust { asset }));
    assert!(STELLAR.is_sequenced(&STELLAR.queries(&trust())));
    let custom = custom(&v1(&from(), vec![native(TO, 1)])).unwrap();
    assert_eq!(STELLAR.queries(&custom), networks::Queries::Nothing);
    assert!(!STELLAR.is_sequenced(&networks::Queries::Nothing));
}

#[test]
fn settle__should_give_the_lowest_free_number() {
    let settled = |sequence, taken: &[u64]| {
        let chain_data = ChainData {
            sequence,
            ..own_facts(Some(true))
        };
        let taken = taken.iter().copied().map(Resource::Nonce).collect();
        STELLAR.allocate(&send(), chain_data.into(), &taken)
    };
    let given = |sequence, taken: &[u64]| match settled(sequence, taken) {
        Ok(Allocation::ChainData(chain_data)) => {
            let unsigned = build(&send(), &chain_data).unwrap();
            STELLAR.reservations(&send(), &unsigned).unwrap()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(given(41, &[]), [Resource::Nonce(42)]);
    assert_eq!(given(41, &[41, 43]), [Resource::Nonce(42)]);
    assert_eq!(given(41, &[42, 43, 45]), [Resource::Nonce(44)]);
    let lower = STELLAR.with_next_number(own_facts(Some(true)).into(), 7);
    let lower = STELLAR.allocate(&send(), lower.unwrap(), &BTreeSet::new());
    let Ok(Allocation::ChainData(lower)) = lower else {
        panic!("{lower:?}");
    };
    let unsigned = build(&send(), &lower).unwrap();
    assert_eq!(
        STELLAR.reservations(&send(), &unsigned).unwrap(),
        [Resource::Nonce(7)]
    );
    let last = i64::MAX.unsigned_abs();
    assert_eq!(given(last - 1, &[]), [Resource::Nonce(last)]);
    for sequence in [last, u64::MAX] {
        let fault = settled(sequence, &[]).unwrap_err();
        assert_eq!(fault.class(), &Class::Invalid);
    }
}

#[test]
fn time__should_begin_when_those_before_are_through() {
    let mut taken = BTreeSet::new();
    for before in 0..80 {
        let settled = STELLAR.allocate(&send(), chain_data(Some(true)), &taken);
        let Ok(Allocation::ChainData(settled)) = settled else {
            panic!("{settled:?}")
        };
        let unsigned = build(&send(), &settled).unwrap();
        let signature = signature(&unsigned.signing[0].message);
        let signed = STELLAR
            .assemble(&send(), &unsigned, &[signature], &public_key())
            .unwrap()
            .unwrap();
        let end_s = 1_762_000_300 + 15 * before + 1;
        assert_eq!(
            STELLAR.valid_until(&signed),
            Ok(Some(ChainMoment::at_ms(end_s * 1_000)))
        );
        assert_eq!(STELLAR.sent_number(&signed, &from()), Ok(Some(42 + before)));
        taken.insert(Resource::Nonce(42 + before));
    }
    // Numbers that the chain has passed hold up nothing.
    let passed = ChainData {
        sequence: 121,
        ..own_facts(Some(true))
    };
    let settled = STELLAR.allocate(&send(), passed.clone().into(), &taken);
    assert_eq!(settled, Ok(Allocation::ChainData(passed.into())));
}

#[test]
fn transaction__should_be_what_was_asked_for() {
    let decoded = |payload: &Payload, exists| {
        let unsigned = build(payload, &chain_data(exists)).unwrap();
        assert_eq!(STELLAR.most_fee(&unsigned.bytes), Ok(U256::from(100)));
        match decode(&unsigned.bytes).unwrap() {
            TransactionEnvelope::Tx(envelope) => envelope.tx,
            other => panic!("{other:?}"),
        }
    };
    let paid = decoded(&send(), Some(true));
    assert_eq!(paid.operations[0].body, native(TO, 25_000_000));
    assert_eq!((paid.seq_num.0, paid.fee), (42, 100));
    assert_eq!(paid.source_account.to_string(), from());
    assert_eq!(paid.memo, Memo::None);
    let Preconditions::Time(bounds) = paid.cond else {
        panic!("{:?}", paid.cond)
    };
    assert_eq!((bounds.min_time.0, bounds.max_time.0), (0, 1_762_000_300));

    let created = decoded(&send(), Some(false));
    let OperationBody::CreateAccount(op) = &created.operations[0].body else {
        panic!("{created:?}")
    };
    assert_eq!(
        (op.destination.to_string().as_str(), op.starting_balance),
        (TO, 25_000_000)
    );

    let asset = decoded(&send_asset(), None);
    let OperationBody::Payment(op) = &asset.operations[0].body else {
        panic!("{asset:?}")
    };
    assert_eq!((op.destination.to_string().as_str(), op.amount), (MUXED, 1));
    assert_eq!(
        IssuedAsset::of(&op.asset).unwrap().to_string(),
        format!("USDC:{ISSUER}")
    );
    assert_eq!(asset.memo, Memo::Text("rent".try_into().unwrap()));

    let trusted = decoded(&trust(), None);
    let OperationBody::ChangeTrust(op) = &trusted.operations[0].body else {
        panic!("{trusted:?}")
    };
    assert_eq!(op.limit, i64::MAX);
    assert_eq!(
        op.line,
        IssuedAsset::new("LONGASSET123", ISSUER).unwrap().to_line()
    );
}

#[test]
fn build__should_refuse_facts_and_wallets_that_do_not_fit() {
    let fault = |payload: &Payload, chain_data: &networks::ChainData| {
        build(payload, chain_data).unwrap_err()
    };
    let solana = networks::solana::ChainData {
        recent_blockhash: String::new(),
        token: None,
        compute: None,
    };
    let endless = ChainData {
        max_time: 0,
        ..own_facts(Some(true))
    };
    for (payload, chain_data) in [
        (send(), networks::ChainData::Nothing),
        (send(), solana.into()),
        (send(), chain_data(None)),
        (send(), endless.into()),
        (send_asset(), chain_data(Some(true))),
        (trust(), chain_data(Some(false))),
        (
            custom(&v1(&from(), vec![native(TO, 1)])).unwrap(),
            chain_data(None),
        ),
    ] {
        assert_eq!(fault(&payload, &chain_data).class(), &Class::Bug);
    }
    let with = |change: fn(&mut ChainData)| {
        let mut chain_data = own_facts(Some(true));
        change(&mut chain_data);
        chain_data.into()
    };
    for (payload, chain_data, sentence) in [
        (
            send_to(MUXED, "5").unwrap(),
            chain_data(Some(false)),
            "stellarSendNative.to: is a muxed address",
        ),
        (
            send_to(TO, "0.9999999").unwrap(),
            chain_data(Some(false)),
            "stellarSendNative.value: must be at least 1",
        ),
        (
            send(),
            with(|f| f.base_fee = 0),
            "stellarSendNative.fee: the chain node",
        ),
        (
            send(),
            with(|f| f.base_fee = u32::MAX),
            "stellarSendNative.fee: the chain node",
        ),
        (
            send(),
            with(|f| f.sequence = u64::MAX),
            "stellarSendNative.sequence: the chain node",
        ),
        (
            send(),
            with(|f| f.sequence = i64::MAX.unsigned_abs()),
            "stellarSendNative.sequence: the chain node",
        ),
    ] {
        let fault = fault(&payload, &chain_data);
        assert_eq!(fault.class(), &Class::Invalid);
        assert!(fault.message().starts_with(sentence), "{fault}");
    }
    let other = key(8).verifying_key().to_bytes();
    let fault = STELLAR
        .build(&send(), &chain_data(Some(true)), &other)
        .unwrap_err();
    assert_eq!(
        fault.message(),
        "stellarSendNative.from: is not the wallet's address"
    );
    assert!(
        STELLAR
            .build(&send(), &chain_data(Some(true)), &[2; 31])
            .is_err()
    );
}

#[test]
fn difference__should_name_the_first_thing() {
    let bytes = |payload: &Payload, change: &dyn Fn(&mut ChainData)| {
        let networks::Queries::Stellar(queries) = STELLAR.queries(payload) else {
            unreachable!()
        };
        let mut chain_data = own_facts(queries.destination.map(|_| true));
        change(&mut chain_data);
        build(payload, &chain_data.into()).unwrap().bytes
    };
    let same = |_: &mut ChainData| {};
    let native = bytes(&send(), &same);
    let asset = |to: &str, code: &str, amount: &str| {
        bytes(
            &Payload::parse(&send_asset_wire(to, code, amount)).unwrap(),
            &same,
        )
    };
    let trust = |code: &str| bytes(&Payload::parse(&trust_wire(code, ISSUER)).unwrap(), &same);
    let usdc = asset(TO, "USDC", "1");
    let envelope = |envelope: TransactionEnvelope| envelope.to_xdr(Limits::none()).unwrap();
    let other = envelope(v1(ISSUER, vec![super::native(TO, 1)]));
    for (one, two, name) in [
        (&native, &native, None),
        (
            &native,
            &bytes(&send_to(ISSUER, "2.5").unwrap(), &same),
            Some("recipient"),
        ),
        (
            &native,
            &bytes(&send_to(TO, "2.6").unwrap(), &same),
            Some("amount"),
        ),
        (
            &native,
            &bytes(&send(), &|f| f.destination_exists = Some(false)),
            Some("operations"),
        ),
        (
            &native,
            &bytes(&send(), &|f| f.sequence += 1),
            Some("sequence"),
        ),
        (&native, &bytes(&send(), &|f| f.base_fee += 1), Some("fee")),
        (
            &native,
            &bytes(&send(), &|f| f.max_time += 1),
            Some("conditions"),
        ),
        (&native, &other, Some("from")),
        (&native, &usdc, Some("asset")),
        (&usdc, &asset(TO, "USD", "1"), Some("asset")),
        (&usdc, &asset(MUXED, "USD", "1"), Some("recipient")),
        (&usdc, &asset(TO, "USDC", "2"), Some("amount")),
        (&trust("USDC"), &trust("EURC"), Some("asset")),
        (&trust("USDC"), &usdc, Some("operations")),
        (&native, &vec![1], None),
    ] {
        assert_eq!(STELLAR.difference(one, two), name);
    }
    let mut wire = match send().to_wire() {
        WireKind::StellarSendNative(wire) => wire,
        _ => unreachable!(),
    };
    wire.memo = "x".into();
    let memo = Payload::parse(&WireKind::StellarSendNative(wire)).unwrap();
    assert_eq!(
        STELLAR.difference(&native, &bytes(&memo, &same)),
        Some("memo")
    );
}

#[test]
fn outflow__should_be_all_of_what_is_built_here() {
    let usdc = format!("USDC:{ISSUER}");
    for (payload, spends) in [
        (send(), vec![(None, "25000000".into(), Some(TO))]),
        (
            send_asset(),
            vec![(Some(usdc.as_str()), "1".into(), Some(MUXED))],
        ),
        (trust(), vec![]),
    ] {
        let outflow = payload.outflow(Network::Stellar);
        assert_eq!(outflow.nature, ContentKind::Transfer);
        assert_eq!(shown(&outflow), spends);
        // As a policy names them.
        for spend in &outflow.spends {
            let asset = spend.asset.to_string();
            assert_eq!(Asset::parse(&asset).unwrap(), spend.asset);
            let recipient = spend.recipient.as_ref().unwrap();
            assert_eq!(STELLAR.parse_address(recipient).as_ref(), Ok(recipient));
        }
    }
}

#[test]
fn assemble__should_refuse_what_was_not_built() {
    let unsigned = build(&send(), &chain_data(Some(true))).unwrap();
    let good = signature(&unsigned.signing[0].message);
    let ecdsa = Signature::Ecdsa {
        r: [1; 32],
        s: [1; 32],
        y_parity: 0,
    };
    let assemble = |unsigned: &Unsigned, signatures: &[Signature]| {
        STELLAR.assemble(&send(), unsigned, signatures, &public_key())
    };
    assert!(assemble(&unsigned, std::slice::from_ref(&good)).is_ok());
    let other = signature(b"other");
    for signatures in [&[][..], &[ecdsa], &[other], &[good.clone(), good.clone()]] {
        assert!(assemble(&unsigned, signatures).is_err());
    }
    // The last 4 bytes count the signatures.
    for index in 0..unsigned.bytes.len() {
        let mut changed = unsigned.clone();
        changed.bytes[index] ^= 1;
        assert!(
            assemble(&changed, std::slice::from_ref(&good)).is_err(),
            "{index}"
        );
    }
}

fn account() -> impl Strategy<Value = AccountId> {
    any::<[u8; 32]>().prop_map(|key| MuxedAccount::Ed25519(Uint256(key)).account_id())
}

proptest! {
    #[test]
    fn built__should_be_read_as_it_was_asked_for(
        to in recipient(),
        amount in NEW_ACCOUNT..,
        code in "[A-Za-z0-9]{1,12}",
        issuer in account(),
        memo in ".{0,7}",
        sequence in 0..i64::MAX.unsigned_abs(),
        base_fee in 1..=MAX_BASE_FEE,
        max_time in 1u64..,
        exists: bool,
        kind in 0..3,
    ) {
        let value = format!("{}.{:07}", amount / 10_000_000, amount % 10_000_000);
        let wire = match kind {
            0 => WireKind::StellarSendNative(wire::StellarSendNative {
                from: from(), to: to.to_string(), value, memo: memo.clone(), ..Default::default()
            }),
            1 => WireKind::StellarSendAsset(wire::StellarSendAsset {
                from: from(),
                to: to.to_string(),
                asset_code: code.clone(),
                asset_issuer: issuer.to_string(),
                amount: value,
                memo: memo.clone(), ..Default::default()
            }),
            _ => WireKind::StellarChangeTrust(wire::StellarChangeTrust {
                from: from(),
                asset_code: code.clone(),
                asset_issuer: issuer.to_string(),
                memo: memo.clone(), ..Default::default()
            }),
        };
        let payload = Payload::parse(&wire).unwrap();
        prop_assert_eq!(&Payload::decode(&payload.encode()).unwrap(), &payload);
        let exists = exists || matches!(to, MuxedAccount::MuxedEd25519(_));
        let chain_data = ChainData {
            sequence, base_fee, max_time, destination_exists: (kind == 0).then_some(exists),
        };
        let unsigned = build(&payload, &chain_data.clone().into()).unwrap();
        prop_assert_eq!(&unsigned, &build(&payload, &chain_data.into()).unwrap());
        let TransactionEnvelope::Tx(envelope) = decode(&unsigned.bytes).unwrap() else {
            panic!("{unsigned:?}")
        };
        let read = &envelope.tx;
        let credit = IssuedAsset::new(&code, &issuer.to_string()).unwrap();
        let expected = match kind {
            0 if !exists => OperationBody::CreateAccount(stellar_xdr::CreateAccountOp {
                destination: to.account_id(), starting_balance: amount,
            }),
            0 => OperationBody::Payment(PaymentOp {
                destination: to, asset: XdrAsset::Native, amount,
            }),
            1 => OperationBody::Payment(PaymentOp {
                destination: to, asset: credit.to_asset(), amount,
            }),
            _ => OperationBody::ChangeTrust(stellar_xdr::ChangeTrustOp {
                line: credit.to_line(), limit: i64::MAX,
            }),
        };
        prop_assert_eq!(&read.operations[..], &[by(None, expected)]);
        prop_assert_eq!(read.seq_num.0.unsigned_abs(), sequence + 1);
        prop_assert_eq!(read.fee, base_fee);
        prop_assert_eq!(
            &read.cond,
            &Preconditions::Time(TimeBounds {
                min_time: TimePoint(0), max_time: TimePoint(max_time),
            })
        );
        prop_assert_eq!(
            &read.memo,
            &match memo.as_str() {
                "" => Memo::None,
                text => Memo::Text(text.try_into().unwrap()),
            }
        );
        prop_assert_eq!(STELLAR.most_fee(&unsigned.bytes), Ok(U256::from(base_fee)));
        prop_assert_eq!(
            STELLAR.reservations(&payload, &unsigned), Ok(vec![Resource::Nonce(sequence + 1)])
        );
    }
}
