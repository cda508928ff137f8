//! tonSendCustom.

use super::*;

#[test]
fn custom__should_be_json_that_says_nothing_else() {
    let item = |more: &str| format!(r#"{{"address":"{BOB}","amount":"1"{more}}}"#);
    let request = |item: &str| format!(r#"{{"messages":[{item}]}}"#);
    let sender = from(WalletVersion::V5r1);
    let wallet = parse_address(&sender).unwrap();
    let raw = format!("0:{}", hex::encode(wallet.account));
    for good in [
        request(&item("")),
        request(&item(r#","payload":null,"stateInit":null"#)),
        request(&item("")).replacen('{', r#"{"network":"-239","#, 1),
        request(&item("")).replacen('{', &format!(r#"{{"from":"{raw}","#), 1),
        request(&item("")).replacen('{', r#"{"valid_until":null,"#, 1),
    ] {
        assert!(custom(&good).is_ok(), "{good}");
    }
    for (bad, sentence) in [
        ("{}".into(), "payload: must be the JSON"),
        ("{".into(), "payload: must be the JSON"),
        (format!("{} x", plain(1)), "payload: must be the JSON"),
        (
            request(&item(r#","mode":128"#)),
            "payload: must be the JSON",
        ),
        (
            request(&item(r#","extra_currency":{"100":"1"}"#)),
            "payload: must be the JSON",
        ),
        (
            request(&item(r#","amount":"2""#)),
            "payload: must be the JSON",
        ),
        (
            request(&item("")).replacen('{', r#"{"messages":[],"#, 1),
            "payload: must be the JSON",
        ),
        (
            request(&item("")).replace(r#""1""#, "1"),
            "payload: must be the JSON",
        ),
        (
            request(&item("")).replacen('{', r#"{"valid_until":1762000100000,"#, 1),
            "payload.valid_until: must be in seconds",
        ),
        (
            request(&item("")).replacen('{', r#"{"network":"-3","#, 1),
            "payload.network: must be -239",
        ),
        (
            request(&item("")).replacen('{', &format!(r#"{{"from":"{BOB}","#), 1),
            "payload.from: is not",
        ),
        (plain(0), "payload.messages: must be 1 to 255"),
        (plain(256), "payload.messages: must be 1 to 255"),
        (
            request(&item("")).replace("NKp", "NKq"),
            "payload.messages[0].address: must be a valid TON address",
        ),
        (
            request(&item("")).replace(r#""1""#, r#""-1""#),
            "payload.messages[0].amount: must be a whole",
        ),
        (
            request(&item(r#","payload":"??""#)),
            "payload.messages[0].payload: must be base64",
        ),
        (
            request(&item(r#","payload":"AAAA""#)),
            "payload.messages[0].payload: must be one whole bag",
        ),
        (
            request(&item(r#","stateInit":"AAAA""#)),
            "payload.messages[0].stateInit: must be one whole bag",
        ),
    ] {
        let fault = custom(&bad).unwrap_err();
        assert_eq!(*fault.class(), Class::Invalid);
        let sentence = format!("tonSendCustom.{sentence}");
        assert!(fault.message().starts_with(&sentence), "{bad}: {fault}");
    }
    // A state with something behind it.
    let init = WalletVersion::V4r2.state_init(&[1; 32]).unwrap();
    for (more, is_good) in [(0, true), (1, false)] {
        let mut builder = CellBuilder::new();
        builder
            .store_builder(&{
                let mut state = CellBuilder::new();
                state
                    .store_slice(CellBuilder::build_from(&init).unwrap().as_slice().unwrap())
                    .unwrap();
                state
            })
            .unwrap();
        builder.store_zeros(more).unwrap();
        let boc = STANDARD.encode(cells::write(builder.build().unwrap().as_ref()));
        let asked = request(&item(&format!(r#","stateInit":"{boc}""#)));
        assert_eq!(custom(&asked).is_ok(), is_good);
    }
}

#[test]
fn custom__should_be_one_message_that_hides_nothing() {
    let info = |change: fn(&mut RelaxedIntMsgInfo)| {
        let mut info = RelaxedIntMsgInfo {
            dst: parse_address(BOB).unwrap().std().into(),
            value: CurrencyCollection::new(7),
            ..Default::default()
        };
        change(&mut info);
        let message: RelaxedMessage<'_> = BaseMessage {
            info: RelaxedMsgInfo::Int(info),
            init: None,
            body: Cell::empty_cell_ref().as_slice().unwrap(),
            layout: None,
        };
        CellBuilder::build_from(message).unwrap()
    };
    let with = |cell: &Cell| custom(cells::write(cell.as_ref()));
    let plain = info(|_| {});
    let Payload::Ton(TonPayload::SendCustom(send)) = with(&plain).unwrap() else {
        panic!()
    };
    let [message] = send.messages.as_slice() else {
        panic!()
    };
    assert_eq!((message.to.to_string().as_str(), message.value), (BOB, 7));
    assert!(message.is_plain);
    assert!(
        with(&info(|info| info.src = Some(
            WalletVersion::V5r1
                .address(&public_key())
                .unwrap()
                .std()
                .into()
        )))
        .is_ok()
    );
    let ragged = {
        let mut builder = CellBuilder::new();
        let mut slice = plain.as_slice().unwrap();
        // The last bit says that the body follows here: one more makes it a body.
        let bits = slice.size_bits();
        builder
            .store_slice(slice.load_prefix(bits - 1, 0).unwrap())
            .unwrap();
        // The body is in a cell of its own, and something stands beside it.
        builder.store_bit_one().unwrap();
        builder.store_reference(Cell::default()).unwrap();
        builder.store_bit_one().unwrap();
        builder.build().unwrap()
    };
    let extra = info(|info| {
        info.value.other = ExtraCurrencyCollection::try_from_iter([(1, 5_u128.into())]).unwrap();
    });
    for bad in [
        Cell::default(),
        ragged,
        extra,
        info(|info| info.ihr_disabled = false),
        info(|info| info.bounced = true),
        info(|info| info.src = Some(parse_address(BOB).unwrap().std().into())),
        info(|info| info.dst = StdAddr::new(5, HashBytes([1; 32])).into()),
    ] {
        let fault = with(&bad).unwrap_err();
        assert_eq!(*fault.class(), Class::Invalid);
        assert!(
            fault.message().starts_with("tonSendCustom.payload: "),
            "{fault}"
        );
    }
}

#[test]
fn custom__should_carry_library_references() {
    let mut body = CellBuilder::new();
    body.store_reference(CellBuilder::build_library(&HashBytes([7; 32])))
        .unwrap();
    let body = body.build().unwrap();
    let boc = STANDARD.encode(cells::write(body.as_ref()));
    let json = format!(r#"{{"messages":[{{"address":"{BOB}","amount":"1","payload":"{boc}"}}]}}"#);
    let payload = custom(json).unwrap();
    let unsigned = build(&payload, &chain_data(1)).unwrap();
    assert!(TON.most_fee(&unsigned.bytes).is_ok());
    let (_, _, messages) = sent(&payload, &unsigned, WalletVersion::V5r1);
    let sent = internal_of(&messages[0]).4;
    let library = sent.get_reference_cloned(0).unwrap();
    assert_eq!(library, body.reference_cloned(0).unwrap());
}

#[test]
fn custom__should_fit_into_one_message() {
    let mut boc = Cell::default();
    for _ in 0..300 {
        let mut builder = CellBuilder::new();
        builder.store_reference(boc).unwrap();
        boc = builder.build().unwrap();
    }
    let deep = STANDARD.encode(cells::write(boc.as_ref()));
    let asked = |count: usize| {
        let one = format!(r#"{{"address":"{BOB}","amount":"1","payload":"{deep}"}}"#);
        let rest = vec![format!(r#"{{"address":"{BOB}","amount":"1"}}"#); count - 1];
        custom(format!(r#"{{"messages":[{one},{}]}}"#, rest.join(",")))
    };
    // The first message lies below all the others.
    let payload = asked(200).unwrap();
    let unsigned = build(&payload, &chain_data(1)).unwrap();
    assert!(TON.most_fee(&unsigned.bytes).is_ok());
    let fault = asked(255).unwrap_err();
    assert!(
        fault.message().contains("is too large for a message"),
        "{fault}"
    );
}

proptest! {
    #[test]
    fn custom__should_be_sent_as_it_was_asked(
        version in any_version(),
        asked in prop::collection::vec((any_address(), any_amount(), "\\PC{0,200}"), 1..20),
    ) {
        let asked = &asked[..asked.len().min(version.most_messages())];
        let items: Vec<String> = asked.iter().map(|(to, value, comment)| {
            let body = cells::write(jetton::comment(comment).unwrap().as_ref());
            format!(r#"{{"address":"{to}","amount":"{value}","payload":"{}"}}"#, STANDARD.encode(body))
        }).collect();
        let json = format!(r#"{{"messages":[{}]}}"#, items.join(","));
        let payload = custom_of(&from(version), json.as_bytes()).unwrap();
        prop_assert_eq!(&Payload::decode(&payload.encode()).unwrap(), &payload);
        let unsigned = build(&payload, &chain_data(1)).unwrap();
        let (_, _, messages) = sent(&payload, &unsigned, version);
        prop_assert_eq!(messages.len(), asked.len());
        for (message, (to, value, comment)) in messages.iter().zip(asked) {
            let (recipient, bounce, amount, _, body) = internal_of(message);
            prop_assert_eq!((recipient, bounce, amount), (to.std(), to.bounce, *value));
            prop_assert_eq!(&comment_of(body), comment);
        }
        // Given as cells, one by one, they are the same messages.
        for message in &messages {
            let again = custom_of(&from(version), &Boc::encode(message)).unwrap();
            let unsigned = build(&again, &chain_data(1)).unwrap();
            prop_assert_eq!(sent(&again, &unsigned, version).2, vec![message.clone()]);
        }
    }

    #[test]
    fn custom__should_never_panic(bytes: Vec<u8>, text in ".{0,80}") {
        let _ = custom(&bytes);
        let _ = custom(format!("{{{text}"));
        let _ = custom(format!(r#"{{"messages":[{{"address":"{BOB}","amount":"1","payload":"{}"}}]}}"#, STANDARD.encode(&bytes)));
        let _ = custom([&[0xb5, 0xee, 0x9c, 0x72], bytes.as_slice()].concat());
    }
}

#[test]
fn custom__should_ask_for_the_contracts_that_it_calls_and_does_not_make() {
    let asked = |messages: &[String]| {
        let payload = custom(format!(r#"{{"messages":[{}]}}"#, messages.join(","))).unwrap();
        let networks::Queries::Ton(Queries::Transaction(queries)) = TON.queries(&payload) else {
            panic!()
        };
        queries.contracts.into_iter().collect::<Vec<_>>()
    };
    let to = |address: &str, more: &str| format!(r#"{{"address":"{address}","amount":"1"{more}}}"#);
    let body = format!(
        r#","payload":"{}""#,
        STANDARD.encode(Boc::encode(Cell::default()))
    );
    let init = CellBuilder::build_from(StateInit::default()).unwrap();
    let init = format!(r#","stateInit":"{}""#, STANDARD.encode(Boc::encode(init)));
    assert!(asked(&[to(BOB, "")]).is_empty());
    assert_eq!(asked(&[to(USDT, "")]), [USDT]);
    assert_eq!(
        asked(&[to(USDT, &body), to(JETTON_WALLET, &body)]),
        [JETTON_WALLET, USDT]
    );
    assert!(asked(&[to(USDT, &init)]).is_empty());
    assert!(asked(&[to(USDT, &init), to(USDT, &body)]).is_empty());
    assert_eq!(asked(&[to(USDT, &body), to(USDT, &init)]), [USDT]);
}
