//! tonMessage, and what a signature lets leave the wallet.

use super::*;

#[test]
fn outflow__should_say_only_what_the_bytes_bind() {
    let shown = |payload: &Payload| {
        let outflow = payload.outflow(Network::Ton);
        let one = |spend: &Spend| {
            let recipient = spend.recipient.clone().unwrap_or_default();
            format!("{} {} {recipient}", spend.asset, spend.amount)
        };
        assert_eq!(outflow.place.to_string(), "ton");
        (
            outflow.nature,
            outflow.spends.iter().map(one).collect::<Vec<_>>(),
        )
    };
    let bob = parse_address(BOB).unwrap().contract_form();
    let native = native_of(&from(WalletVersion::V5r1), &bob, 5, "x");
    assert_eq!(
        shown(&native),
        (ContentKind::Transfer, vec![format!("ton 5 {BOB}")])
    );
    assert_eq!(
        shown(&token()),
        (
            ContentKind::Custom,
            vec!["ton 50000000 ".into(), format!("ton/{USDT} 5 {BOB}")]
        )
    );
    assert_eq!(
        shown(&custom(plain(2)).unwrap()),
        (ContentKind::Transfer, vec![format!("ton 1 {BOB}"); 2])
    );
    let empty = STANDARD.encode(cells::write(jetton::comment("x").unwrap().as_ref()));
    let called =
        format!(r#"{{"messages":[{{"address":"{BOB}","amount":"3","payload":"{empty}"}}]}}"#);
    assert_eq!(
        shown(&custom(called).unwrap()),
        (ContentKind::Custom, vec![format!("ton 3 {BOB}")])
    );
    for (content, nature) in [
        ("hello".to_owned(), ContentKind::Message),
        (
            r#"{"type":"ton_proof","payload":"x"}"#.to_owned(),
            ContentKind::Message,
        ),
        (
            format!(r#"{{"type":"cell","schema":"s","cell":"{empty}"}}"#),
            ContentKind::TypedData,
        ),
        (
            format!(r#"{{"type":"safe_sign","cell":"{empty}"}}"#),
            ContentKind::TypedData,
        ),
    ] {
        // Nobody can tell who gets something for a cell.
        let unseen = match nature {
            ContentKind::TypedData => vec!["ton 0 ".to_owned()],
            _ => vec![],
        };
        assert_eq!(shown(&message(&content).unwrap()), (nature, unseen));
    }
}

#[test]
fn message__should_be_in_the_form_that_it_names() {
    let form = |content: &[u8]| match message(content).unwrap() {
        Payload::Ton(TonPayload::Message(message)) => message.form,
        other => panic!("{other:?}"),
    };
    let text = |text: &str| TonMessageForm::Text(text.into());
    for plain in [
        "",
        "hello",
        "{}",
        "[]",
        r#"{"type":"other"}"#,
        r#"{"type":1}"#,
        r#"{"type":"text"#,
    ] {
        assert_eq!(form(plain.as_bytes()), text(plain));
    }
    assert_eq!(form(&[0xff, 0]), TonMessageForm::Binary(vec![0xff, 0]));
    assert_eq!(form(br#"{"type":"text","text":"a"}"#), text("a"));
    assert_eq!(
        form(br#"{"type":"binary","bytes":"AQI="}"#),
        TonMessageForm::Binary(vec![1, 2])
    );
    let sender = from(WalletVersion::V5r1);
    let with_all = format!(
        r#"{{"type":"ton_proof","payload":"p","domain":"a.b","timestamp":5,"network":"-239","from":"{sender}"}}"#
    );
    let Payload::Ton(TonPayload::Message(proof)) = message(&with_all).unwrap() else {
        panic!()
    };
    assert_eq!(
        proof.form,
        TonMessageForm::Proof {
            payload: "p".into()
        }
    );
    assert_eq!(
        (proof.domain.as_deref(), proof.timestamp),
        (Some("a.b"), Some(5))
    );
    for (bad, field) in [
        (r#"{"type":"text"}"#, "content: must be what its type says"),
        (
            r#"{"type":"text","text":"a","bytes":"AQI="}"#,
            "content: must be",
        ),
        (r#"{"type":"text","text":"a","more":1}"#, "content: must be"),
        (
            r#"{"type":"text","text":"a","text":"b"}"#,
            "content: must be",
        ),
        (
            r#"{"type":"binary","bytes":"?"}"#,
            "content.bytes: must be base64",
        ),
        (r#"{"type":"cell","cell":"AAAA"}"#, "content"),
        (
            r#"{"type":"cell","schema":"s","cell":"AAAA"}"#,
            "content.cell: must be one whole",
        ),
        (
            r#"{"type":"safe_sign","cell":"te6cckEBAQEAAgAAAEysuc0=","domain":"a.b"}"#,
            "content: must be",
        ),
        (
            r#"{"type":"text","text":"a","domain":"a b"}"#,
            "content.domain: must be",
        ),
        (
            r#"{"type":"text","text":"a","timestamp":-1}"#,
            "content: must be",
        ),
        (
            r#"{"type":"text","text":"a","network":"-3"}"#,
            "content.network: must be -239",
        ),
        (
            r#"{"type":"text","text":"a","from":"UQ"}"#,
            "content.from: is not",
        ),
    ] {
        let fault = message(bad).unwrap_err();
        let sentence = format!("tonMessage.{field}");
        assert!(fault.message().starts_with(&sentence), "{bad}: {fault}");
    }
}

#[test]
fn message__should_never_be_an_order_to_the_wallet() {
    let unsigned = build(&native(), &chain_data(1)).unwrap();
    let order = WalletOrder::read(&unsigned.bytes).unwrap().body().unwrap();
    let boc = cells::write(order.as_ref());
    let base64 = STANDARD.encode(&boc);
    let of_message = ChainData::Message {
        domain: Some("a.b".into()),
        timestamp: Some(1),
    };
    for content in [
        boc,
        base64.clone().into_bytes(),
        unsigned.signing[0].message.clone(),
        format!(r#"{{"type":"cell","schema":"s","cell":"{base64}"}}"#).into_bytes(),
        format!(r#"{{"type":"safe_sign","cell":"{base64}"}}"#).into_bytes(),
        format!(r#"{{"type":"binary","bytes":"{base64}"}}"#).into_bytes(),
    ] {
        let payload = message(&content).unwrap();
        let chain_data = match TON.queries(&payload) {
            networks::Queries::Nothing => networks::ChainData::Nothing,
            _ => of_message.clone().into(),
        };
        let built = build(&payload, &chain_data).unwrap();
        assert!(built.bytes.is_empty());
        assert_ne!(built.signing, unsigned.signing);
        assert_eq!(
            TON.assemble(&payload, &built, &[sign(&built)], &public_key()),
            Ok(None)
        );
    }
}

proptest! {
    #[test]
    fn message__should_never_panic(bytes: Vec<u8>, text in ".{0,80}") {
        let _ = message(&bytes);
        let _ = message(format!(r#"{{"type":"cell",{text}}}"#));
    }
}
