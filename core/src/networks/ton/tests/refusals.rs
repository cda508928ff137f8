//! What is refused in building and in assembling, and how transactions are told apart.

use super::*;

#[test]
fn difference__should_have_a_name() {
    let sender = from(WalletVersion::V5r1);
    let bytes = |payload: &Payload, chain_data: &networks::ChainData| {
        build(payload, chain_data).unwrap().bytes
    };
    let of = |payload: &Payload| bytes(payload, &chain_data(1));
    let with = |change: fn(&mut TransactionChainData)| {
        let mut chain_data = transaction_facts(0);
        change(&mut chain_data);
        bytes(&native(), &ChainData::Transaction(chain_data).into())
    };
    let jetton = |to: &str, amount, comment: &str| {
        let payload = token_of(&sender, to, amount, comment, None);
        bytes(&payload, &ChainData::Transaction(jetton_facts(None)).into())
    };
    let base = of(&native());
    let other_wallet = {
        let mut chain_data = jetton_facts(None);
        chain_data.jetton.as_mut().unwrap().wallet = USDT.into();
        bytes(&token(), &ChainData::Transaction(chain_data).into())
    };
    let bob = parse_address(BOB).unwrap().contract_form();
    for (built, shown, name) in [
        (&base, &base, None),
        (
            &base,
            &of(&native_of(&from(WalletVersion::V4r2), BOB, 5, "rent")),
            Some("from"),
        ),
        (
            &base,
            &bytes(&native_of(&sender, USDT, 5, "rent"), &contract_data(true)),
            Some("recipient"),
        ),
        (
            &base,
            &of(&native_of(&sender, BOB, 6, "rent")),
            Some("amount"),
        ),
        (
            &base,
            &of(&native_of(&sender, BOB, 5, "Rent")),
            Some("payload"),
        ),
        (
            &base,
            &bytes(&native_of(&sender, &bob, 5, "rent"), &contract_data(true)),
            Some("bounce"),
        ),
        (&base, &of(&custom(plain(2)).unwrap()), Some("messages")),
        (&base, &bytes(&native(), &chain_data(2)), Some("nonce")),
        (
            &with(|_| {}),
            &with(|chain_data| chain_data.valid_until = Some(9)),
            Some("validUntil"),
        ),
        (
            &with(|_| {}),
            &with(|chain_data| chain_data.deployed = false),
            Some("stateInit"),
        ),
        (&jetton(BOB, 5, ""), &jetton(USDT, 5, ""), Some("recipient")),
        (&jetton(BOB, 5, ""), &jetton(BOB, 6, ""), Some("amount")),
        (&jetton(BOB, 5, ""), &jetton(BOB, 5, "c"), Some("payload")),
        (&jetton(BOB, 5, ""), &other_wallet, Some("recipient")),
        (&base, &vec![1, 2, 3], None),
    ] {
        assert_eq!(TON.difference(built, shown), name);
    }
}

#[test]
fn build__should_refuse_facts_and_wallets_that_do_not_fit() {
    let fault =
        |payload: &Payload, chain_data: ChainData| build(payload, &chain_data.into()).unwrap_err();
    let of_transaction = |change: fn(&mut TransactionChainData)| {
        let mut chain_data = jetton_facts(None);
        change(&mut chain_data);
        ChainData::Transaction(chain_data)
    };
    let of_message = ChainData::Message {
        domain: Some("a.b".into()),
        timestamp: Some(1),
    };
    // Not those that were asked for.
    let sender = from(WalletVersion::V5r1);
    let dated = plain(1).replacen('{', r#"{"valid_until":1762000100,"#, 1);
    let whole = r#"{"type":"text","text":"a","domain":"a.b","timestamp":1}"#;
    for (payload, chain_data) in [
        (native(), of_message.clone()),
        (native(), of_transaction(|_| {})),
        (
            native(),
            of_transaction(|chain_data| {
                (chain_data.jetton, chain_data.recipient_deployed) = (None, Some(true));
            }),
        ),
        (
            native_of(&sender, USDT, 5, ""),
            of_transaction(|chain_data| chain_data.jetton = None),
        ),
        (
            token(),
            of_transaction(|chain_data| chain_data.recipient_deployed = Some(false)),
        ),
        (
            native(),
            of_transaction(|chain_data| (chain_data.jetton, chain_data.valid_until) = (None, None)),
        ),
        (
            token(),
            of_transaction(|chain_data| chain_data.jetton = None),
        ),
        (
            token(),
            of_transaction(|chain_data| chain_data.jetton.as_mut().unwrap().decimals = Some(6)),
        ),
        (
            token(),
            of_transaction(|chain_data| chain_data.jetton.as_mut().unwrap().wallet = "EQ".into()),
        ),
        (
            token(),
            of_transaction(|chain_data| {
                chain_data.jetton.as_mut().unwrap().master = Some("EQ".into())
            }),
        ),
        (
            custom(dated).unwrap(),
            of_transaction(|chain_data| chain_data.jetton = None),
        ),
        (message("a").unwrap(), of_transaction(|_| {})),
        (
            message("a").unwrap(),
            ChainData::Message {
                domain: None,
                timestamp: Some(1),
            },
        ),
        (
            message("a").unwrap(),
            ChainData::Message {
                domain: Some("a.b".into()),
                timestamp: None,
            },
        ),
        (
            message("a").unwrap(),
            ChainData::Message {
                domain: Some("a b".into()),
                timestamp: Some(1),
            },
        ),
        (message(whole).unwrap(), of_message.clone()),
    ] {
        assert_eq!(*fault(&payload, chain_data).class(), Class::Bug);
    }
    for payload in [
        native(),
        token(),
        custom(plain(1)).unwrap(),
        message("a").unwrap(),
    ] {
        assert!(build(&payload, &networks::ChainData::Nothing).is_err());
        let other = SigningKey::from_bytes(&[8; 32]).verifying_key().to_bytes();
        let fault = TON.build(&payload, &chain_data(1), &other).unwrap_err();
        assert_eq!(
            fault.message(),
            format!("{}.from: is not the wallet's address", payload.kind())
        );
    }
    // What the chain says against the request.
    let decimals = |given, real: Option<u8>| {
        let payload = token_of(&sender, BOB, 1, "", Some(given));
        build(&payload, &ChainData::Transaction(jetton_facts(real)).into())
    };
    assert!(decimals(6, Some(6)).is_ok());
    for (payload, chain_data, sentence) in [
        (
            token_of(&sender, BOB, 1, "", Some(9)),
            jetton_facts(Some(6)),
            "decimals: do not match the jetton's",
        ),
        (
            token_of(&sender, BOB, 1, "", Some(9)),
            jetton_facts(None),
            "decimals: cannot be verified: this jetton does not store them on chain; omit them",
        ),
        (
            token(),
            {
                let mut chain_data = jetton_facts(None);
                chain_data.jetton.as_mut().unwrap().master = Some(JETTON_WALLET.into());
                chain_data
            },
            "mintAddress: is not a valid jetton: it reports a wallet of another jetton as the sender's",
        ),
        (
            token(),
            {
                let mut chain_data = jetton_facts(None);
                chain_data.jetton.as_mut().unwrap().master = None;
                chain_data
            },
            "mintAddress: the wallet holds none",
        ),
    ] {
        let fault = fault(&payload, ChainData::Transaction(chain_data));
        assert_eq!(*fault.class(), Class::Invalid);
        let sentence = format!("tonSendToken.{sentence}");
        assert!(fault.message().starts_with(&sentence), "{fault}");
    }
    // An older wallet sends four at most.
    let five = custom_of(&from(WalletVersion::V4r2), plain(5).as_bytes()).unwrap();
    let fault = build(&five, &chain_data(1)).unwrap_err();
    assert_eq!(
        fault.message(),
        "tonSendCustom.payload: must hold at most 4 messages for this wallet"
    );
    let four = custom_of(&from(WalletVersion::V4r2), plain(4).as_bytes()).unwrap();
    assert!(build(&four, &chain_data(1)).is_ok());
}

#[test]
fn assemble__should_refuse_what_was_not_built() {
    let payload = native();
    let unsigned = build(&payload, &chain_data(0)).unwrap();
    let assemble = |unsigned: &Unsigned, signatures: &[Signature]| {
        TON.assemble(&payload, unsigned, signatures, &public_key())
    };
    let good = sign(&unsigned);
    assert!(
        assemble(&unsigned, std::slice::from_ref(&good))
            .unwrap()
            .is_some()
    );
    let Signature::Ed25519 { r, s } = good.clone() else {
        unreachable!()
    };
    for bad in [
        vec![],
        vec![good.clone(), good.clone()],
        vec![Signature::Ed25519 { r: s, s: r }],
        vec![Signature::Ecdsa { r, s, y_parity: 0 }],
    ] {
        assert!(assemble(&unsigned, &bad).is_err());
    }
    for place in 0..unsigned.bytes.len() {
        let mut other = unsigned.clone();
        other.bytes[place] ^= 1;
        assert!(assemble(&other, std::slice::from_ref(&good)).is_err());
    }
    // Another transaction of the sender, and another account's, with a signature of ours.
    let mut mixed = build(&payload, &chain_data(1)).unwrap();
    mixed.signing = unsigned.signing.clone();
    assert!(assemble(&mixed, std::slice::from_ref(&good)).is_err());
    let mut order = WalletOrder::read(&unsigned.bytes).unwrap();
    order.wallet = parse_address(BOB).unwrap();
    let foreign = Unsigned {
        bytes: order.unsigned().unwrap(),
        ..unsigned.clone()
    };
    assert!(assemble(&foreign, std::slice::from_ref(&good)).is_err());
    let mut order = WalletOrder::read(&unsigned.bytes).unwrap();
    order.init = Some(WalletVersion::V5r1.state_init(&[9; 32]).unwrap());
    let foreign = Unsigned {
        bytes: order.unsigned().unwrap(),
        ..unsigned
    };
    assert!(assemble(&foreign, &[good]).is_err());
}
