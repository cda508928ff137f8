//! Transactions that are made elsewhere.

use super::*;

#[test]
fn custom__should_be_signed_as_it_is() {
    let op = || vec![by(None, native(TO, 1))];
    for mut envelope in [
        v0(op()),
        tx(&from(), op()).into(),
        tx(&own_muxed(), op()).into(),
        tx(
            ISSUER,
            vec![by(None, native(TO, 1)), by(Some(&from()), native(TO, 1))],
        )
        .into(),
        tx(ISSUER, vec![by(Some(&own_muxed()), native(TO, 1))]).into(),
        bump(&from(), 900, tx(ISSUER, op())),
        bump(&own_muxed(), 900, tx(&from(), op())),
    ] {
        // Another account has signed already.
        let other = key(8);
        let digest = envelope.hash(NETWORK_ID).unwrap();
        let theirs = other.sign(&digest).to_bytes();
        envelope::sign(&mut envelope, other.verifying_key().as_bytes(), theirs).unwrap();

        let payload = custom(&envelope).unwrap();
        assert_eq!(Payload::decode(&payload.encode()).unwrap(), payload);
        let unsigned = build(&payload, &networks::ChainData::Nothing).unwrap();
        assert_eq!(unsigned.bytes, envelope.to_xdr(Limits::none()).unwrap());
        assert_eq!(unsigned.signing[0].message, digest);
        let ours = signature(&digest);
        let signed = STELLAR
            .assemble(&payload, &unsigned, &[ours], &public_key())
            .unwrap()
            .unwrap();
        assert_eq!(signed.tx_hash, hex::encode(digest));
        let bytes = STANDARD.decode(signed.transaction).unwrap();
        let ours = key(7).sign(&digest).to_bytes();
        envelope::sign(&mut envelope, key(7).verifying_key().as_bytes(), ours).unwrap();
        assert_eq!(decode(&bytes).unwrap(), envelope);
        assert_eq!(envelope::parts(&envelope).signatures, 2);
    }
}

#[test]
fn custom_v0__should_be_signed_as_the_v1_that_it_means() {
    let envelope = v0(vec![by(None, native(TO, 1))]);
    let bytes = envelope.to_xdr(Limits::none()).unwrap();
    // CAP-15: between type and count of signatures, v0 lacks only the type of the source's key.
    let transaction = &bytes[4..bytes.len() - 4];
    let preimage = [&NETWORK_ID, &[0, 0, 0, 2][..], &[0; 4], transaction].concat();
    let unsigned = build(&custom(&envelope).unwrap(), &networks::ChainData::Nothing).unwrap();
    assert_eq!(
        unsigned.signing[0].message,
        Sha256::digest(preimage).as_slice()
    );
}

#[test]
fn custom__should_be_one_that_the_wallet_has_to_sign() {
    let op = || vec![by(None, native(TO, 1))];
    for envelope in [
        tx(ISSUER, op()).into(),
        // Anyone who is paid signs nothing.
        v1(ISSUER, vec![native(&from(), 1)]),
        // What the wallet signs in a fee bump stands in the inner transaction.
        bump(ISSUER, 900, tx(&from(), op())),
        bump(
            ISSUER,
            900,
            tx(ISSUER, vec![by(Some(&from()), native(TO, 1))]),
        ),
    ] {
        let fault = custom(&envelope).unwrap_err();
        assert!(
            fault
                .message()
                .starts_with("stellarSendCustom.from: must be the source"),
            "{fault}"
        );
    }
}

#[test]
fn custom__should_be_refused_when_no_network_takes_it() {
    let good = v1(&from(), vec![native(TO, 1)]);
    let mut full = good.clone();
    for _ in 0..20 {
        envelope::sign(&mut full, &[1; 32], [2; 64]).unwrap();
    }
    assert!(envelope::sign(&mut full, &[1; 32], [2; 64]).is_err());
    let mut negative = tx(&from(), vec![by(None, native(TO, 1))]);
    negative.seq_num = SequenceNumber(-1);
    for (envelope, problem) in [
        (v1(&from(), Vec::new()), "must have an operation"),
        (full, "already has 20 signatures, the maximum"),
        (negative.into(), "must have no negative"),
        (
            bump(&from(), -1, tx(ISSUER, vec![by(None, native(TO, 1))])),
            "must have no negative",
        ),
    ] {
        let fault = custom(&envelope).unwrap_err();
        let sentence = format!("stellarSendCustom.txBase64: {problem}");
        assert!(fault.message().starts_with(&sentence), "{fault}");
    }
    let bytes = good.to_xdr(Limits::none()).unwrap();
    assert!(custom_bytes(&bytes).is_ok());
    for wrong in [
        &[][..],
        &bytes[..bytes.len() - 1],
        &[&bytes[..], &[0; 4]].concat(),
        &[&[0, 0, 0, 9], &bytes[4..]].concat(),
    ] {
        assert!(custom_bytes(wrong).is_err());
    }
    assert_eq!(
        decode(&vec![0; MAX_BYTES + 1]),
        Err(EnvelopeError::TooLarge)
    );
    for text in ["", "%%", "AAAA", "AAA", " AAAA"] {
        let kind = WireKind::StellarSendCustom(wire::StellarSendCustom {
            from: from(),
            tx_base64: text.into(),
        });
        let fault = Payload::parse(&kind).unwrap_err();
        assert!(
            fault.message().starts_with("stellarSendCustom.txBase64: "),
            "{fault}"
        );
    }
}

/// A call of a contract whose one argument takes the last 4 bytes before the last 12.
fn call(argument: ScVal) -> Vec<u8> {
    let call = InvokeHostFunctionOp {
        host_function: HostFunction::InvokeContract(InvokeContractArgs {
            contract_address: ScAddress::Contract(CONTRACT.parse().unwrap()),
            function_name: "f".try_into().unwrap(),
            args: [argument].try_into().unwrap(),
        }),
        auth: Default::default(),
    };
    v1(&from(), vec![OperationBody::InvokeHostFunction(call)])
        .to_xdr(Limits::none())
        .unwrap()
}

#[test]
fn custom__should_have_one_form_only() {
    let bytes = call(ScVal::Bool(true));
    assert!(decode(&bytes).is_ok());
    // The library takes 2 for false, and would sign that.
    let mut other = bytes.clone();
    let at = bytes.len() - 13;
    assert_eq!(bytes[at], 1);
    other[at] = 2;
    assert_eq!(decode(&other), Err(EnvelopeError::NotCanonical));
    let fault = custom_bytes(&other).unwrap_err();
    assert_eq!(fault.class(), &Class::Invalid);
}

/// Values within values, as deep as `levels` say.
fn nested(levels: usize) -> [Vec<u8>; 2] {
    let within = |bytes: &[u8], tail: usize, level: &[u8]| {
        let (head, tail) = bytes.split_at(bytes.len() - tail);
        [head, &level.repeat(levels), tail].concat()
    };
    // SCV_VEC, there is one, of one value.
    let values = within(
        &call(ScVal::Void),
        16,
        &[0, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 1],
    );
    let balance = OperationBody::CreateClaimableBalance(CreateClaimableBalanceOp {
        asset: XdrAsset::Native,
        amount: 1,
        claimants: [claimant(TO)].try_into().unwrap(),
    });
    let balance = v1(&from(), vec![balance]).to_xdr(Limits::none()).unwrap();
    // CLAIM_PREDICATE_NOT, there is one.
    let predicates = within(&balance, 12, &[0, 0, 0, 3, 0, 0, 0, 1]);
    [values, predicates]
}

#[test]
fn custom__should_be_read_within_limits() {
    // Much less than any thread has.
    let small = std::thread::Builder::new().stack_size(512 * 1024);
    let run = small.spawn(|| {
        for bytes in nested(20) {
            assert!(custom_bytes(&bytes).is_ok());
        }
        for levels in 30..200 {
            for bytes in nested(levels) {
                let _ = custom_bytes(&bytes);
            }
        }
        for levels in [200, 20_000] {
            for bytes in nested(levels) {
                assert_eq!(decode(&bytes), Err(EnvelopeError::Malformed));
            }
        }
    });
    run.unwrap().join().unwrap();
    // A length that is not there reserves no memory.
    let mut long = call(ScVal::Bytes(vec![1; 4].try_into().unwrap()));
    let at = long.len() - 12 - 8;
    long[at..at + 4].copy_from_slice(&[0xff; 4]);
    assert_eq!(decode(&long), Err(EnvelopeError::Malformed));
}

#[test]
fn custom__should_have_room_for_a_signature() {
    let upload = |bytes: usize| {
        let code = InvokeHostFunctionOp {
            host_function: HostFunction::UploadContractWasm(vec![1; bytes].try_into().unwrap()),
            auth: Default::default(),
        };
        v1(&from(), vec![OperationBody::InvokeHostFunction(code)])
    };
    let empty = upload(0).to_xdr(Limits::none()).unwrap().len();
    let payload = custom(&upload(MAX_BYTES - empty)).unwrap();
    let unsigned = build(&payload, &networks::ChainData::Nothing).unwrap();
    assert_eq!(unsigned.bytes.len(), MAX_BYTES);
    let ours = signature(&unsigned.signing[0].message);
    let signed = STELLAR.assemble(&payload, &unsigned, &[ours], &public_key());
    assert!(signed.is_ok());
    let fault = custom(&upload(MAX_BYTES - empty + 1)).unwrap_err();
    assert_eq!(
        fault.message(),
        "stellarSendCustom.txBase64: exceeds the network's transaction size limit"
    );
}

#[test]
fn uses__should_be_the_number_where_it_is_the_senders() {
    let op = || vec![by(None, native(TO, 1))];
    let used = |envelope: &TransactionEnvelope| {
        let payload = custom(envelope).unwrap();
        let unsigned = build(&payload, &networks::ChainData::Nothing).unwrap();
        let [resource] = STELLAR
            .reservations(&payload, &unsigned)
            .unwrap()
            .try_into()
            .unwrap();
        resource
    };
    for envelope in [
        v0(op()),
        tx(&own_muxed(), op()).into(),
        bump(&from(), 900, tx(&from(), op())),
    ] {
        assert_eq!(used(&envelope), Resource::Nonce(9));
    }
    for envelope in [
        tx(ISSUER, vec![by(Some(&from()), native(TO, 1))]).into(),
        bump(&from(), 900, tx(ISSUER, op())),
    ] {
        let digest = envelope.hash(NETWORK_ID).unwrap();
        let whole = Resource::TxHash(Sha256::digest(digest).into());
        assert_eq!(used(&envelope), whole);
    }
    let mut unsigned = build(&send(), &chain_data(Some(true))).unwrap();
    unsigned.bytes.pop();
    let fault = STELLAR.reservations(&send(), &unsigned).unwrap_err();
    assert_eq!(fault.class(), &Class::Bug);
}

#[test]
fn most_fee__should_be_that_of_who_pays() {
    let fee =
        |envelope: TransactionEnvelope| STELLAR.most_fee(&envelope.to_xdr(Limits::none()).unwrap());
    let op = || vec![by(None, native(TO, 1))];
    assert_eq!(fee(v0(op())), Ok(U256::from(300)));
    assert_eq!(fee(tx(ISSUER, op()).into()), Ok(U256::from(300)));
    let most = fee(bump(&from(), i64::MAX, tx(ISSUER, op())));
    assert_eq!(most, Ok(U256::from(i64::MAX)));
    for wrong in [
        fee(bump(&from(), -1, tx(ISSUER, op()))),
        STELLAR.most_fee(&[1]),
    ] {
        assert_eq!(wrong.unwrap_err().class(), &Class::Bug);
    }
    assert_eq!(STELLAR.most_fee(&[]), Ok(U256::ZERO));
}

#[test]
fn paid_price__should_be_what_is_offered_beside_the_resources_of_contracts() {
    let price = |envelope: TransactionEnvelope| {
        let bytes = envelope.to_xdr(Limits::none()).unwrap();
        STELLAR.paid_price(&bytes).unwrap()
    };
    let op = || vec![by(None, native(TO, 1))];
    let resources = |resource_fee| {
        TransactionExt::V1(SorobanTransactionData {
            resource_fee,
            ..Default::default()
        })
    };
    let calls = || {
        vec![by(
            None,
            OperationBody::RestoreFootprint(Default::default()),
        )]
    };
    let with = |ext, fee| Transaction {
        fee,
        ext,
        ..tx(&from(), calls())
    };
    assert_eq!(price(v0(op())), Some(300));
    assert_eq!(price(tx(&from(), [op(), op()].concat()).into()), Some(150));
    assert_eq!(
        price(with(resources(1_000_000), 1_000_301).into()),
        Some(301)
    );
    // Less than nothing makes no room for more.
    assert_eq!(price(with(resources(-5), 300).into()), Some(300));
    assert_eq!(price(with(resources(301), 300).into()), Some(0));
    // Only contracts have resources.
    let ext = resources(301);
    let plain = Transaction {
        ext,
        ..tx(&from(), op())
    };
    assert_eq!(price(plain.into()), Some(300));
    // A fee bump pays for one operation more, and for the resources of what is in it.
    let inner = with(resources(1_000_000), 1_000_100);
    assert_eq!(price(bump(&from(), 1_000_301, inner)), Some(151));
}

fn claimant(account: &str) -> Claimant {
    Claimant::ClaimantTypeV0(ClaimantV0 {
        destination: parse_account(account).unwrap(),
        predicate: ClaimPredicate::Unconditional,
    })
}

#[test]
fn outflow__should_show_what_a_custom_transaction_pays() {
    let usdc = IssuedAsset::new("USDC", ISSUER).unwrap();
    let bodies = vec![
        native(TO, 1),
        OperationBody::CreateAccount(stellar_xdr::CreateAccountOp {
            destination: parse_account(TO).unwrap(),
            starting_balance: 2,
        }),
        OperationBody::PathPaymentStrictReceive(PathPaymentStrictReceiveOp {
            send_asset: usdc.to_asset(),
            send_max: 3,
            destination: muxed(MUXED),
            dest_asset: XdrAsset::Native,
            dest_amount: 1,
            path: Default::default(),
        }),
        OperationBody::PathPaymentStrictSend(PathPaymentStrictSendOp {
            send_asset: XdrAsset::Native,
            send_amount: 4,
            destination: muxed(TO),
            dest_asset: usdc.to_asset(),
            dest_min: 1,
            path: Default::default(),
        }),
        OperationBody::PathPaymentStrictSend(PathPaymentStrictSendOp {
            send_asset: XdrAsset::Native,
            send_amount: 6,
            destination: muxed(TO),
            dest_asset: XdrAsset::Native,
            dest_min: 1,
            path: Default::default(),
        }),
        OperationBody::PathPaymentStrictSend(PathPaymentStrictSendOp {
            send_asset: XdrAsset::Native,
            send_amount: 8,
            destination: muxed(TO),
            dest_asset: XdrAsset::Native,
            dest_min: 1,
            path: [usdc.to_asset()].try_into().unwrap(),
        }),
        OperationBody::CreateClaimableBalance(CreateClaimableBalanceOp {
            asset: usdc.to_asset(),
            amount: 5,
            claimants: [claimant(TO), claimant(ISSUER)].try_into().unwrap(),
        }),
        OperationBody::AccountMerge(muxed(TO)),
        native(TO, -7),
        OperationBody::Inflation,
    ];
    let token = usdc.to_string();
    let token = Some(token.as_str());
    let all = [
        (None, "1".to_owned(), Some(TO)),
        (None, "2".to_owned(), Some(TO)),
        // A market comes between, but for what is sent as it is.
        (token, "3".to_owned(), Some(MUXED)),
        (None, "0".to_owned(), None),
        (None, "4".to_owned(), Some(TO)),
        (None, "0".to_owned(), None),
        (None, "6".to_owned(), Some(TO)),
        (None, "8".to_owned(), Some(TO)),
        (None, "0".to_owned(), None),
        (token, "5".to_owned(), Some(TO)),
        (token, "0".to_owned(), Some(ISSUER)),
        (None, i64::MAX.to_string(), Some(TO)),
        (None, "0".to_owned(), Some(TO)),
    ];
    let operations: Vec<Operation> = bodies.iter().cloned().map(|body| by(None, body)).collect();
    for envelope in [
        v0(operations.clone()),
        v1(&from(), bodies.clone()),
        v1(&own_muxed(), bodies.clone()),
        bump(&from(), 900, tx(&from(), operations.clone())),
    ] {
        let outflow = custom(&envelope).unwrap().outflow(Network::Stellar);
        assert_eq!(outflow.nature, ContentKind::Custom);
        assert_eq!(shown(&outflow), all);
    }
    // What others pay is not the wallet's.
    let mut mixed = operations.clone();
    mixed.push(by(Some(&from()), native(ISSUER, 8)));
    mixed.push(by(Some(&own_muxed()), native(ISSUER, 9)));
    let outflow = custom(&tx(ISSUER, mixed).into()).unwrap();
    let outflow = outflow.outflow(Network::Stellar);
    assert_eq!(outflow.nature, ContentKind::Custom);
    assert_eq!(
        shown(&outflow),
        [
            (None, "8".to_owned(), Some(ISSUER)),
            (None, "9".to_owned(), Some(ISSUER)),
        ]
    );
    let outflow = custom(&bump(&from(), 900, tx(ISSUER, operations))).unwrap();
    let outflow = outflow.outflow(Network::Stellar);
    assert_eq!(
        (outflow.nature, outflow.spends.len()),
        (ContentKind::Custom, 0)
    );
}

#[test]
fn account_changes__should_be_those_of_the_wallets_own_operations() {
    use crate::networks::outflow::AccountChange::{StellarBumpSequence, StellarSetOptions};
    let none = stellar_xdr::SetOptionsOp::default();
    let options = |options: stellar_xdr::SetOptionsOp| OperationBody::SetOptions(options);
    let signer = Some(stellar_xdr::Signer {
        key: stellar_xdr::SignerKey::Ed25519(Uint256([9; 32])),
        weight: 255,
    });
    let handed = [
        options(stellar_xdr::SetOptionsOp {
            signer,
            ..none.clone()
        }),
        options(stellar_xdr::SetOptionsOp {
            master_weight: Some(0),
            ..none.clone()
        }),
        options(stellar_xdr::SetOptionsOp {
            high_threshold: Some(255),
            ..none.clone()
        }),
    ];
    for body in handed {
        for envelope in [
            v0(vec![by(None, native(TO, 1)), by(None, body.clone())]),
            v1(&own_muxed(), vec![body.clone()]),
            tx(ISSUER, vec![by(Some(&from()), body.clone())]).into(),
            bump(&from(), 900, tx(ISSUER, vec![by(Some(&from()), body)])),
        ] {
            let changes = custom(&envelope).unwrap().account_changes();
            assert_eq!(changes, [StellarSetOptions].into());
        }
    }
    let bumped = OperationBody::BumpSequence(stellar_xdr::BumpSequenceOp {
        bump_to: SequenceNumber(i64::MAX),
    });
    let changes = custom(&v1(&from(), vec![bumped.clone()])).unwrap();
    assert_eq!(changes.account_changes(), [StellarBumpSequence].into());
    // A precondition does it too, of whose number is used.
    let skips = |source: &str, lowest: Option<i64>| {
        let conditions = stellar_xdr::PreconditionsV2 {
            min_seq_num: lowest.map(SequenceNumber),
            ..Default::default()
        };
        let mut skips = tx(source, vec![by(Some(&from()), native(TO, 1))]);
        skips.cond = Preconditions::V2(conditions);
        skips
    };
    for source in [from(), own_muxed()] {
        for envelope in [
            skips(&source, Some(0)).into(),
            bump(&from(), 900, skips(&source, Some(0))),
        ] {
            let changes = custom(&envelope).unwrap().account_changes();
            assert_eq!(changes, [StellarBumpSequence].into());
        }
    }
    for other in [skips(&from(), None), skips(ISSUER, Some(0))] {
        let changes = custom(&other.into()).unwrap().account_changes();
        assert!(changes.is_empty());
    }
    let home = options(stellar_xdr::SetOptionsOp {
        home_domain: Some(Default::default()),
        set_flags: Some(1),
        ..none
    });
    for envelope in [
        v1(&from(), vec![home, native(TO, 1)]),
        // Somebody else's.
        tx(&from(), vec![by(Some(ISSUER), bumped)]).into(),
    ] {
        assert!(custom(&envelope).unwrap().account_changes().is_empty());
    }
}

#[test]
fn outflow__should_count_what_markets_and_contracts_may_take() {
    let usdc = IssuedAsset::new("USDC", ISSUER).unwrap();
    let token = usdc.to_string();
    let price = |n, d| stellar_xdr::Price { n, d };
    let sell = |amount| {
        OperationBody::ManageSellOffer(stellar_xdr::ManageSellOfferOp {
            selling: usdc.to_asset(),
            buying: XdrAsset::Native,
            amount,
            price: price(1, 2),
            offer_id: 0,
        })
    };
    let buy = |amount, price| {
        OperationBody::ManageBuyOffer(stellar_xdr::ManageBuyOfferOp {
            selling: XdrAsset::Native,
            buying: usdc.to_asset(),
            buy_amount: amount,
            price,
            offer_id: 0,
        })
    };
    let withdraw =
        OperationBody::LiquidityPoolWithdraw(stellar_xdr::LiquidityPoolWithdrawOp::default());
    let outflow = custom(&v1(
        &from(),
        vec![
            sell(7),
            sell(0),
            buy(10, price(1, 3)),
            buy(i64::MAX, price(i32::MAX, 1)),
            buy(1, price(1, 0)),
            withdraw,
        ],
    ));
    let outflow = outflow.unwrap().outflow(Network::Stellar);
    assert_eq!(
        shown(&outflow),
        [
            (Some(token.as_str()), "7".to_owned(), None),
            (None, "4".to_owned(), None),
            (None, i64::MAX.to_string(), None),
            (None, i64::MAX.to_string(), None),
            (None, "0".to_owned(), None),
        ]
    );
}

proptest! {
    /// What can be read can be signed, no matter who made it.
    #[test]
    fn custom__should_never_panic(bytes: Vec<u8>, at: prop::sample::Index, envelope in 0..4usize) {
        let op = || vec![by(None, native(TO, 1)), by(Some(&own_muxed()), native(MUXED, 2))];
        let good = [
            v0(op()).to_xdr(Limits::none()).unwrap(),
            TransactionEnvelope::from(tx(&from(), op())).to_xdr(Limits::none()).unwrap(),
            bump(&from(), 900, tx(&from(), op())).to_xdr(Limits::none()).unwrap(),
            call(ScVal::Bool(true)),
        ];
        // Anything, and something good with a piece of it exchanged.
        let mut changed = good[envelope].clone();
        let at = at.index(changed.len());
        for (place, byte) in changed.iter_mut().skip(at).zip(bytes.iter().take(3)) {
            *place = *byte;
        }
        for bytes in [bytes, changed] {
            let _ = (STELLAR.most_fee(&bytes), STELLAR.difference(&bytes, &good[envelope]));
            if let Ok(payload) = custom_bytes(&bytes) {
                prop_assert_eq!(&Payload::decode(&payload.encode()).unwrap(), &payload);
                let unsigned = build(&payload, &networks::ChainData::Nothing).unwrap();
                prop_assert_eq!(&unsigned.bytes, &bytes);
                prop_assert_eq!(payload.outflow(Network::Stellar).nature, ContentKind::Custom);
                STELLAR.most_fee(&bytes).unwrap();
                STELLAR.reservations(&payload, &unsigned).unwrap();
                let signature = signature(&unsigned.signing[0].message);
                STELLAR
                    .assemble(&payload, &unsigned, &[signature], &public_key())
                    .unwrap();
            }
        }
    }
}

#[test]
fn calls_contract__should_be_true_of_what_nodes_simulate() {
    use crate::networks::stellar::calls_contract;
    assert!(calls_contract(&call(ScVal::Bool(true))));
    let payment = v1(&from(), vec![native(TO, 1)]);
    assert!(!calls_contract(&payment.to_xdr(Limits::none()).unwrap()));
    assert!(!calls_contract(&[]));
}
