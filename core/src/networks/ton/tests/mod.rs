#![allow(non_snake_case)]

mod custom;
mod messages;
mod refusals;

use ed25519_dalek::{Signer as _, SigningKey};
use proptest::prelude::*;
use tycho_types::{
    boc::Boc,
    cell::{Cell, CellBuilder, CellFamily as _, CellSlice, HashBytes, Load as _},
    models::{
        BaseMessage, CurrencyCollection, ExtraCurrencyCollection, IntAddr, OutAction,
        OutActionsRevIter, OwnedMessage, RelaxedIntMsgInfo, RelaxedMessage, RelaxedMsgInfo,
        StateInit, StdAddr,
    },
    num::Tokens,
};

use super::{super::*, *};
use crate::{
    approval::OrderApprovals,
    derive::{ChildKey, KeyPath, RootKey},
    ids::{RequestId, VaultId},
    networks::{
        self, DynNetworkRules, Payload, WireKind,
        outflow::{ContentKind, Spend},
    },
    order::SigningOrder,
    schema::wire,
};

const TON: &dyn DynNetworkRules = &Ton;

const BOB: &str = "UQCzhX8UMF-q7gamM_JgyU9yb1RojCQoua8cjcuufiMYwNKp";
const USDT: &str = "EQCxE6mUtQJKFnGfaROTKOt1lZbDiiX1kCixRv7Nw2Id_sDs";
const JETTON_WALLET: &str = "EQCrwnmBzjcAxkJOOkrI5y9msz7bqLtVG0GSu5cmaVwB0qbW";

fn secret() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}

fn public_key() -> [u8; 32] {
    secret().verifying_key().to_bytes()
}

fn from(version: WalletVersion) -> String {
    version.address(&public_key()).unwrap().wallet_form()
}

fn native_of(from: &str, to: &str, value: u128, comment: &str) -> Payload {
    Payload::parse(&WireKind::TonSendNative(wire::TonSendNative {
        from: from.into(),
        to: to.into(),
        value: value.to_string(),
        comment: comment.into(),
    }))
    .unwrap()
}

fn native() -> Payload {
    native_of(&from(WalletVersion::V5r1), BOB, 5, "rent")
}

fn token_of(from: &str, to: &str, amount: u128, comment: &str, decimals: Option<i64>) -> Payload {
    Payload::parse(&WireKind::TonSendToken(wire::TonSendToken {
        from: from.into(),
        to: to.into(),
        mint_address: USDT.into(),
        amount: amount.to_string(),
        comment: comment.into(),
        decimals,
    }))
    .unwrap()
}

fn token() -> Payload {
    token_of(&from(WalletVersion::V5r1), BOB, 5, "", None)
}

fn custom_of(from: &str, payload: &[u8]) -> Result<Payload, Fault> {
    Payload::parse(&WireKind::TonSendCustom(wire::TonSendCustom {
        from: from.into(),
        payload: payload.to_vec(),
    }))
}

fn custom(payload: impl AsRef<[u8]>) -> Result<Payload, Fault> {
    custom_of(&from(WalletVersion::V5r1), payload.as_ref())
}

/// A sendTransaction with so many plain messages.
fn plain(count: usize) -> String {
    let messages = vec![format!(r#"{{"address":"{BOB}","amount":"1"}}"#); count];
    format!(r#"{{"messages":[{}]}}"#, messages.join(","))
}

fn message(content: impl AsRef<[u8]>) -> Result<Payload, Fault> {
    Payload::parse(&WireKind::TonMessage(wire::TonMessage {
        from: from(WalletVersion::V5r1),
        r#type: 0,
        content: content.as_ref().to_vec(),
    }))
}

fn transaction_facts(seqno: u32) -> TransactionChainData {
    TransactionChainData {
        seqno,
        deployed: true,
        valid_until: Some(1_762_000_000),
        recipient_deployed: None,
        jetton: None,
    }
}

fn chain_data(seqno: u32) -> networks::ChainData {
    ChainData::Transaction(transaction_facts(seqno)).into()
}

/// To an address that takes money back, of which the node says whether a contract is there.
fn contract_data(is_there: bool) -> networks::ChainData {
    ChainData::Transaction(TransactionChainData {
        recipient_deployed: Some(is_there),
        ..transaction_facts(1)
    })
    .into()
}

fn jetton_facts(decimals: Option<u8>) -> TransactionChainData {
    TransactionChainData {
        jetton: Some(JettonChainData {
            wallet: JETTON_WALLET.into(),
            master: Some(USDT.into()),
            decimals,
        }),
        ..transaction_facts(3)
    }
}

fn build(payload: &Payload, chain_data: &networks::ChainData) -> Result<Unsigned, Fault> {
    TON.build(payload, chain_data, &public_key())
}

fn sign(unsigned: &Unsigned) -> Signature {
    let signature = secret().sign(&unsigned.signing[0].message);
    Signature::Ed25519 {
        r: *signature.r_bytes(),
        s: *signature.s_bytes(),
    }
}

/// The messages of a signed transaction, as the contract reads them; checks all around them.
fn sent(payload: &Payload, unsigned: &Unsigned, version: WalletVersion) -> (u32, u32, Vec<Cell>) {
    let signed = TON
        .assemble(payload, unsigned, &[sign(unsigned)], &public_key())
        .unwrap()
        .unwrap();
    let root = Boc::decode_base64(&signed.transaction).unwrap();
    let external: OwnedMessage = root.parse().unwrap();
    let (range, cell) = external.body;
    let mut body = range.apply(&cell).unwrap();
    let mut messages = Vec::new();
    let mut signature = [0; 64];
    let numbers = match version {
        WalletVersion::V5r1 => {
            let mut end = body.load_suffix(512, 0).unwrap();
            end.load_raw(&mut signature, 512).unwrap();
            assert_eq!(body.load_u32().unwrap(), 0x7369_676e);
            assert_eq!(body.load_u32().unwrap(), 0x7fff_ff11);
            let numbers = (body.load_u32().unwrap(), body.load_u32().unwrap());
            assert_eq!(body.load_small_uint(2).unwrap(), 0b10);
            for action in OutActionsRevIter::new(body.load_reference_as_slice().unwrap()) {
                let OutAction::SendMsg { mode, out_msg } = action.unwrap() else {
                    panic!("does not send")
                };
                assert_eq!(mode.bits(), 3);
                messages.insert(0, out_msg.into_inner());
            }
            numbers
        }
        WalletVersion::V4r2 => {
            body.load_raw(&mut signature, 512).unwrap();
            assert_eq!(body.load_u32().unwrap(), 698_983_191);
            let numbers = (body.load_u32().unwrap(), body.load_u32().unwrap());
            assert_eq!(body.load_u8().unwrap(), 0);
            while !body.is_empty() {
                assert_eq!(body.load_u8().unwrap(), 3);
                messages.push(body.load_reference_cloned().unwrap());
            }
            numbers
        }
    };
    assert!(body.is_empty());
    assert_eq!(signature, sign(unsigned).to_bytes());
    let end_ms = (u64::from(numbers.0) + 1) * 1_000;
    assert_eq!(
        TON.valid_until(&signed),
        Ok(Some(ChainMoment::at_ms(end_ms)))
    );
    (numbers.0, numbers.1, messages)
}

fn comment_of(mut body: CellSlice<'_>) -> String {
    if body.is_empty() {
        return String::new();
    }
    assert_eq!(body.load_u32().unwrap(), 0);
    let mut text = Vec::new();
    loop {
        let mut part = vec![0; usize::from(body.size_bits() / 8)];
        let bits = body.size_bits();
        body.load_raw(&mut part, bits).unwrap();
        text.extend(part);
        match body.load_reference_as_slice() {
            Ok(next) => body = next,
            Err(_) => return String::from_utf8(text).unwrap(),
        }
    }
}

/// Recipient, bounce, nanoton, first state, body.
fn internal_of(message: &Cell) -> (StdAddr, bool, u128, Option<StateInit>, CellSlice<'_>) {
    let message: RelaxedMessage<'_> = message.parse().unwrap();
    let RelaxedMsgInfo::Int(info) = message.info else {
        panic!("not internal")
    };
    assert!(info.ihr_disabled && !info.bounced && info.src.is_none());
    let IntAddr::Std(to) = info.dst else { panic!() };
    let value = info.value.tokens.into_inner();
    (to, info.bounce, value, message.init, message.body)
}

#[test]
fn wallets__should_have_the_code_that_explorers_know() {
    for (version, hash) in [
        (
            WalletVersion::V5r1,
            "20834b7b72b112147e1b2fb457b84e74d1a30f04f737d4f62a668e9552d2b72f",
        ),
        (
            WalletVersion::V4r2,
            "feb5ff6820e2ff0d9483e7e0d62c817d846789fb4ae580c878866d959dabd5c0",
        ),
    ] {
        let init = version.state_init(&[1; 32]).unwrap();
        assert_eq!(hex::encode(init.code.unwrap().repr_hash().0), hash);
    }
}

#[test]
fn key__should_own_the_addresses_of_both_wallets() {
    let [new, old] = [from(WalletVersion::V5r1), from(WalletVersion::V4r2)];
    assert_ne!(new, old);
    assert_eq!(TON.address(&public_key()).unwrap(), new);
    for address in [&new, &old] {
        assert!(TON.owns(&public_key(), address).unwrap());
        assert_eq!(TON.parse_address(address).unwrap(), *address);
    }
    for other in [BOB, "", &new[..47]] {
        assert!(!TON.owns(&public_key(), other).unwrap());
    }
    let other = SigningKey::from_bytes(&[8; 32]).verifying_key().to_bytes();
    assert!(!TON.owns(&other, &new).unwrap());
    for bad in [&[2; 31][..], &[0xff; 32], &[0; 32], &[2; 32], &[]] {
        assert_eq!(*TON.address(bad).unwrap_err().class(), Class::Bug);
        assert_eq!(*TON.owns(bad, &new).unwrap_err().class(), Class::Bug);
    }
}

#[test]
fn order__should_hold_for_the_older_wallet_too() {
    let path = KeyPath::of_wallet(Network::Ton, 0).unwrap();
    let child = ChildKey {
        public_key: public_key().to_vec(),
        tweak: [0; 32],
    };
    let root = RootKey {
        curve: Curve::Ed25519,
        public_key: public_key().to_vec(),
        chain_code: [3; 32],
    };
    for (version, other) in [
        (WalletVersion::V5r1, WalletVersion::V4r2),
        (WalletVersion::V4r2, WalletVersion::V5r1),
    ] {
        let payload = native_of(&from(version), BOB, 1, "");
        let unsigned = build(&payload, &chain_data(1)).unwrap();
        let order = SigningOrder {
            request: RequestId::from_bytes([1; 16]),
            vault: VaultId::from_bytes([2; 16]),
            epoch: 0,
            network: Network::Ton,
            root_public_key: root.public_key.clone(),
            path: path.clone(),
            public_key: root.public_key.clone(),
            address: from(version),
            payload: payload.encode(),
            chain_data: chain_data(1),
            unsigned: unsigned.bytes,
            inputs: unsigned.signing,
            recipient_indices: Vec::new(),
            approvals: OrderApprovals::default(),
            issued_at_ms: 1,
            expires_at_ms: 2,
        };
        assert_eq!(order.verify_child(&root, &child).unwrap(), payload);
        let swapped = SigningOrder {
            address: from(other),
            ..order.clone()
        };
        let fault = swapped.verify_child(&root, &child).unwrap_err();
        assert_eq!(
            fault.message(),
            "payload.tonSendNative.from: is not the address of the wallet"
        );
        let foreign = SigningOrder {
            address: BOB.into(),
            ..order
        };
        let fault = foreign.verify_child(&root, &child).unwrap_err();
        assert!(fault.message().starts_with("address: "), "{fault}");
    }
    // A rawMessage as well.
    let raw = Payload::parse(&WireKind::RawMessage(wire::RawMessage {
        from: from(WalletVersion::V4r2),
        content: vec![1],
        ecdsa_hash_function: 0,
    }))
    .unwrap();
    let unsigned = build(&raw, &networks::ChainData::Nothing).unwrap();
    assert_eq!(unsigned.signing[0].message, [1]);
    let other = SigningKey::from_bytes(&[8; 32]).verifying_key().to_bytes();
    let fault = TON
        .build(&raw, &networks::ChainData::Nothing, &other)
        .unwrap_err();
    assert_eq!(
        fault.message(),
        "rawMessage.from: is not the wallet's address"
    );
}

#[test]
fn needs__should_name_what_the_request_does_not_bring() {
    let transaction = |value, valid_until, jetton| {
        networks::Queries::Ton(Queries::Transaction(TransactionQueries {
            from: from(WalletVersion::V5r1),
            value,
            valid_until,
            recipient: None,
            contracts: BTreeSet::new(),
            jetton,
        }))
    };
    let jetton = |amount, decimals| {
        Some(JettonQueries {
            master: USDT.into(),
            amount,
            decimals,
        })
    };
    let sender = from(WalletVersion::V5r1);
    let dated = plain(1).replacen('{', r#"{"valid_until":1762000100,"#, 1);
    let of_contract = |value| {
        let networks::Queries::Ton(Queries::Transaction(queries)) = transaction(value, true, None)
        else {
            panic!()
        };
        networks::Queries::Ton(Queries::Transaction(TransactionQueries {
            recipient: Some(USDT.into()),
            ..queries
        }))
    };
    for (payload, queries) in [
        (native(), transaction(5, true, None)),
        (native_of(&sender, USDT, 5, ""), of_contract(5)),
        (token(), transaction(50_000_000, true, jetton(5, false))),
        (
            token_of(&sender, BOB, 1, "", Some(6)),
            transaction(50_000_000, true, jetton(1, true)),
        ),
        (custom(plain(3)).unwrap(), transaction(3, true, None)),
        (custom(dated).unwrap(), transaction(1, false, None)),
    ] {
        assert_eq!(TON.queries(&payload), queries);
        assert!(TON.is_sequenced(&queries));
    }
    let asked = |content: &str| TON.queries(&message(content).unwrap());
    let of_message =
        |domain, timestamp| networks::Queries::Ton(Queries::Message { domain, timestamp });
    assert_eq!(asked("hello"), of_message(true, true));
    assert!(!TON.is_sequenced(&of_message(true, true)));
    assert_eq!(
        asked(r#"{"type":"text","text":"a","domain":"a.b"}"#),
        of_message(false, true)
    );
    assert_eq!(
        asked(r#"{"type":"text","text":"a","timestamp":1}"#),
        of_message(true, false)
    );
    assert_eq!(
        asked(r#"{"type":"text","text":"a","domain":"a.b","timestamp":1}"#),
        networks::Queries::Nothing
    );
}

#[test]
fn settle__should_give_the_lowest_number_that_is_free() {
    let taken = |numbers: &[u64]| numbers.iter().map(|n| Resource::Nonce(*n)).collect();
    let seqno = |floor, numbers: &[u64]| match TON.allocate(
        &native(),
        chain_data(floor),
        &taken(numbers),
    ) {
        Ok(Allocation::ChainData(networks::ChainData::Ton(ChainData::Transaction(chain_data)))) => {
            chain_data.seqno
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(seqno(5, &[]), 5);
    assert_eq!(seqno(5, &[4, 5, 6, 8]), 7);
    assert_eq!(seqno(0, &[0]), 1);
    let last = TON.allocate(&native(), chain_data(u32::MAX), &taken(&[u32::MAX.into()]));
    assert_eq!(*last.unwrap_err().class(), Class::Invalid);
    // Its time begins at its turn; nothing else changes, and what has no number stays as it is.
    let Ok(Allocation::ChainData(settled)) = TON.allocate(
        &token(),
        ChainData::Transaction(jetton_facts(None)).into(),
        &taken(&[3]),
    ) else {
        panic!()
    };
    let mut wanted = jetton_facts(None);
    wanted.seqno = 4;
    wanted.valid_until = wanted.valid_until.map(|end| end + 20);
    assert_eq!(settled, ChainData::Transaction(wanted).into());
    let of_message = ChainData::Message {
        domain: None,
        timestamp: Some(1),
    };
    assert_eq!(
        TON.allocate(
            &message("a").unwrap(),
            of_message.clone().into(),
            &taken(&[0])
        ),
        Ok(Allocation::ChainData(of_message.into()))
    );
    let evm = networks::ChainData::Evm(networks::evm::ChainData {
        nonce: None,
        eip1559: true,
        fees: None,
    });
    assert!(TON.allocate(&native(), evm, &taken(&[])).is_err());
}

#[test]
fn time__should_begin_when_those_before_are_through() {
    let mut taken = BTreeSet::new();
    for before in 0..80_u32 {
        let settled = TON.allocate(&native(), chain_data(3), &taken).unwrap();
        let Allocation::ChainData(settled) = settled else {
            panic!()
        };
        let unsigned = build(&native(), &settled).unwrap();
        let (until, seqno, _) = sent(&native(), &unsigned, WalletVersion::V5r1);
        assert_eq!((until, seqno), (1_762_000_000 + 20 * before, 3 + before));
        taken.insert(Resource::Nonce(seqno.into()));
    }
    // Numbers that the chain has passed hold up nothing.
    let passed = TON.allocate(&native(), chain_data(83), &taken).unwrap();
    assert_eq!(passed, Allocation::ChainData(chain_data(83)));
    // A time that the client chose is its own.
    let dated = plain(1).replacen('{', r#"{"valid_until":1762000100,"#, 1);
    let facts = TransactionChainData {
        valid_until: None,
        ..transaction_facts(3)
    };
    let settled = TON
        .allocate(
            &custom(dated).unwrap(),
            ChainData::Transaction(facts.clone()).into(),
            &taken,
        )
        .unwrap();
    let wanted = TransactionChainData { seqno: 83, ..facts };
    let wanted = ChainData::Transaction(wanted).into();
    assert_eq!(settled, Allocation::ChainData(wanted));
}

#[test]
fn native__should_not_bounce_where_no_contract_is() {
    let payload = native_of(&from(WalletVersion::V5r1), USDT, 5, "rent");
    let message = |is_there| {
        let unsigned = build(&payload, &contract_data(is_there)).unwrap();
        let (.., messages) = sent(&payload, &unsigned, WalletVersion::V5r1);
        messages[0].clone()
    };
    let [without, with] = [false, true].map(message);
    let (to, bounce, value, _, body) = internal_of(&without);
    let usdt = parse_address(USDT).unwrap().std();
    assert_eq!((to, bounce, value), (usdt.clone(), false, 5));
    assert_eq!(comment_of(body), "rent");
    // A node that lies changes nothing else.
    let (to, bounce, value, _, body) = internal_of(&with);
    assert_eq!((to, bounce, value), (usdt, true, 5));
    assert_eq!(comment_of(body), "rent");
}

#[test]
fn first_state__should_go_along_until_the_wallet_is_there() {
    for version in WalletVersion::ALL {
        let payload = native_of(&from(version), BOB, 1, "");
        for (seqno, deployed, attached) in [
            (0, false, true),
            (0, true, false),
            (1, true, false),
            (1, false, false),
        ] {
            let chain_data = TransactionChainData {
                deployed,
                ..transaction_facts(seqno)
            };
            let unsigned = build(&payload, &ChainData::Transaction(chain_data).into()).unwrap();
            let reservations = TON.reservations(&payload, &unsigned).unwrap();
            assert_eq!(reservations, [Resource::Nonce(seqno.into())]);
            let signed = TON
                .assemble(&payload, &unsigned, &[sign(&unsigned)], &public_key())
                .unwrap()
                .unwrap();
            let root = Boc::decode_base64(&signed.transaction).unwrap();
            let external: OwnedMessage = root.parse().unwrap();
            let (range, cell) = &external.body;
            let body = CellBuilder::build_from(range.apply(cell).unwrap()).unwrap();
            let expected = ledger::SentMessage {
                wallet: version.address(&public_key()).unwrap(),
                seqno,
                valid_until: 1_762_000_000,
                messages: 1,
                value: 1,
                body_hash: body.repr_hash().0,
            };
            assert_eq!(ledger::read_sent(&signed.transaction), Ok(expected));
            let unsigned = STANDARD.encode(&unsigned.bytes);
            assert!(ledger::read_sent(&unsigned).is_err());
            assert_eq!(external.init.is_some(), attached);
            if let Some(init) = external.init {
                // The address is the hash of what goes along.
                let state = CellBuilder::build_from(&init).unwrap();
                let address = version.address(&public_key()).unwrap();
                assert_eq!(state.repr_hash().0, address.account);
            }
        }
    }
}

#[test]
fn comment__should_fit_at_any_length() {
    for version in WalletVersion::ALL {
        // In the message's cell up to 80 bytes or so, then in one of its own, then in many.
        for length in (0..300).chain([1000, 1023, 1024]) {
            for value in [0, 1, (1 << 120) - 1] {
                let comment = "c".repeat(length);
                let payload = native_of(&from(version), BOB, value, &comment);
                let unsigned = build(&payload, &chain_data(1)).unwrap();
                let order = WalletOrder::read(&unsigned.bytes).unwrap();
                let (.., body) = internal_of(&order.messages[0]);
                assert_eq!(comment_of(body), comment);
            }
        }
    }
}

#[test]
fn most_fee__should_be_above_what_the_network_takes() {
    let fee = |payload: &Payload, chain_data: &networks::ChainData| {
        let unsigned = build(payload, chain_data).unwrap();
        let fee = TON.most_fee(&unsigned.bytes).unwrap();
        u128::try_from(fee).unwrap()
    };
    // Nothing here costs more than a few hundredths of a TON, and nothing less than it does.
    let simple = fee(&native(), &chain_data(1));
    assert!((5_000_000..50_000_000).contains(&simple), "{simple}");
    let long = native_of(&from(WalletVersion::V5r1), BOB, 5, &"c".repeat(1024));
    assert!(fee(&long, &chain_data(1)) > simple);
    let first = TransactionChainData {
        deployed: false,
        ..transaction_facts(0)
    };
    assert!(fee(&native(), &ChainData::Transaction(first).into()) > simple);
    let master = "Ef_9g7SiBmJ8EoFZEy1_uZHOd58thXg7NBkYe0W3c9MMWBdT";
    let far = native_of(&from(WalletVersion::V5r1), master, 5, "rent");
    assert!(fee(&far, &contract_data(true)) > simple + 9_600_000);
    let many = fee(&custom(plain(255)).unwrap(), &chain_data(1));
    // All the gas that there is, and 255 messages.
    assert!(many > 400_000_000 + 255 * 400_000, "{many}");
    assert_eq!(TON.most_fee(&[]).unwrap(), U256::ZERO);
    let bytes = build(&native(), &chain_data(1)).unwrap().bytes;
    for end in 1..bytes.len() {
        assert_eq!(
            *TON.most_fee(&bytes[..end]).unwrap_err().class(),
            Class::Bug
        );
    }
}

fn any_address() -> impl Strategy<Value = TonAddress> {
    (any::<[u8; 32]>(), any::<bool>(), any::<bool>()).prop_map(|(account, bounce, master)| {
        TonAddress {
            workchain: if master { -1 } else { 0 },
            account,
            bounce,
        }
    })
}

fn any_version() -> impl Strategy<Value = WalletVersion> {
    prop::sample::select(WalletVersion::ALL.to_vec())
}

fn any_amount() -> impl Strategy<Value = u128> {
    (any::<u128>(), 8..128_u32).prop_map(|(amount, shift)| amount >> shift)
}

proptest! {
    #[test]
    fn native__should_be_readable_by_the_contract(
        version in any_version(), to in any_address(), value in any_amount(),
        comment in "\\PC{0,300}", seqno: u32, deployed: bool, valid_until: u32, is_there: bool,
    ) {
        let payload = native_of(&from(version), &to.to_string(), value, &comment);
        prop_assert_eq!(&Payload::decode(&payload.encode()).unwrap(), &payload);
        let chain_data = TransactionChainData {
            seqno,
            deployed,
            valid_until: Some(valid_until),
            recipient_deployed: to.bounce.then_some(is_there),
            jetton: None,
        };
        let chain_data = ChainData::Transaction(chain_data).into();
        let unsigned = build(&payload, &chain_data).unwrap();
        prop_assert_eq!(&build(&payload, &chain_data).unwrap(), &unsigned);
        let (until, number, messages) = sent(&payload, &unsigned, version);
        prop_assert_eq!((until, number, messages.len()), (valid_until, seqno, 1));
        let (recipient, bounce, amount, init, body) = internal_of(&messages[0]);
        prop_assert_eq!((recipient, bounce, amount), (to.std(), to.bounce && is_there, value));
        prop_assert!(init.is_none());
        prop_assert_eq!(comment_of(body), comment);
        prop_assert!(TON.most_fee(&unsigned.bytes).is_ok());
    }

    #[test]
    fn token__should_be_readable_by_the_jetton_wallet(
        version in any_version(), to in any_address(), amount in any_amount(), comment in "\\PC{0,300}", seqno: u32,
    ) {
        let payload = token_of(&from(version), &to.to_string(), amount, &comment, None);
        prop_assert_eq!(&Payload::decode(&payload.encode()).unwrap(), &payload);
        let chain_data = TransactionChainData { seqno, ..jetton_facts(None) };
        let unsigned = build(&payload, &ChainData::Transaction(chain_data).into()).unwrap();
        let (_, _, messages) = sent(&payload, &unsigned, version);
        let (recipient, bounce, value, init, mut body) = internal_of(&messages[0]);
        prop_assert_eq!(recipient, parse_address(JETTON_WALLET).unwrap().std());
        prop_assert!(bounce && init.is_none());
        prop_assert_eq!(value, 50_000_000);
        prop_assert_eq!(jetton::read_transfer(body), Some((to.std(), amount)));
        prop_assert_eq!(body.load_u32().unwrap(), 0x0f8a7ea5);
        prop_assert_eq!(body.load_u64().unwrap(), 0);
        prop_assert_eq!(Tokens::load_from(&mut body).unwrap().into_inner(), amount);
        prop_assert_eq!(StdAddr::load_from(&mut body).unwrap(), to.std());
        let sender = version.address(&public_key()).unwrap().std();
        prop_assert_eq!(StdAddr::load_from(&mut body).unwrap(), sender);
        prop_assert!(!body.load_bit().unwrap());
        prop_assert_eq!(Tokens::load_from(&mut body).unwrap().into_inner(), 1);
        let forwarded = if body.load_bit().unwrap() {
            comment_of(body.load_reference_as_slice().unwrap())
        } else {
            String::new()
        };
        prop_assert_eq!(forwarded, comment);
        prop_assert!(body.is_empty());
    }

    #[test]
    fn unsigned_bytes__should_never_panic(places in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5), bytes: Vec<u8>) {
        let unsigned = build(&native(), &chain_data(0)).unwrap();
        let mut damaged = unsigned.bytes.clone();
        // The checksum stands at the end; without its flag nobody looks at it.
        damaged.truncate(damaged.len() - 4);
        damaged[4] &= !0x40;
        for (place, change) in places {
            let place = place.index(damaged.len());
            damaged[place] ^= change;
        }
        for bytes in [damaged, bytes] {
            let _ = TON.most_fee(&bytes);
            let _ = TON.difference(&unsigned.bytes, &bytes);
            let _ = TON.difference(&bytes, &unsigned.bytes);
        }
    }
}
