//! Whole transactions: what is built, what is brought, what leaves the wallet.

use sui_sdk_types::{Identifier, TypeTag};

use super::{
    text::{address, identifier, type_tag},
    *,
};
use crate::networks::{
    aptos::{AptosAction, AptosPayload},
    outflow::{AccountChange, ContentKind, Outflow, Spend},
};

const METADATA: &str = "0x357b0b74bc833e95a115ad22604854d6b0fca151cecd94111770e5d6ffc9dc2b";

fn sender() -> Address {
    parse_address(&from()).unwrap()
}

fn raw(payload: TransactionPayload) -> RawTransaction {
    RawTransaction {
        sender: sender(),
        sequence_number: 9,
        payload,
        max_gas_amount: 3000,
        gas_unit_price: 100,
        expiration_timestamp_secs: 1_762_000_600,
        chain_id: 1,
    }
}

fn transfer() -> EntryFunction {
    transfers::send_native(parse_address(BOB).unwrap(), 5)
}

fn script() -> Script {
    Script {
        code: vec![1, 2, 3],
        ty_args: Vec::new(),
        args: vec![TransactionArgument::U8Vector(vec![9])],
    }
}

fn newer(
    executable: TransactionExecutable,
    multisig_address: Option<Address>,
    nonce: Option<u64>,
) -> TransactionPayload {
    TransactionPayload::Payload(TransactionPayloadInner::V1 {
        executable,
        extra_config: TransactionExtraConfig::V1 {
            multisig_address,
            replay_protection_nonce: nonce,
        },
    })
}

fn brought(raw: &RawTransaction) -> Result<Payload, Fault> {
    custom(&raw.encode().unwrap())
}

/// (asset, amount, recipient), as they are printed.
fn shown(outflow: &Outflow) -> Vec<(String, String, String)> {
    let spends = outflow.spends.iter().map(|spend| {
        let recipient = spend.recipient.clone().unwrap();
        (spend.asset.to_string(), spend.amount.to_string(), recipient)
    });
    spends.collect()
}

fn outflow(payload: &Payload) -> Outflow {
    payload.outflow(Network::Aptos)
}

fn owned(asset: &str, amount: &str, to: &str) -> (String, String, String) {
    (asset.into(), amount.into(), to.into())
}

#[test]
fn transfers__should_say_what_goes_where() {
    for (payload, asset, amount) in [
        (send(), "aptos:1", "5"),
        (send_coin("0x1::aptos_coin::AptosCoin"), "aptos:126", "7"),
        (send_coin("0xa"), "aptos:126", "7"),
        (send_coin(METADATA), &format!("aptos:126/{METADATA}"), "7"),
        (
            send_coin(USDC),
            "aptos:126/0x2b3be0a97a73c87ff62cbdd36837a9fb5bbd1d7f06a73b7ed62ec15c5326c1b8",
            "7",
        ),
    ] {
        let outflow = outflow(&payload);
        assert_eq!(outflow.nature, ContentKind::Transfer);
        assert_eq!(Some(outflow.place.chain_id.unwrap()), payload.chain_id());
        assert_eq!(shown(&outflow), [owned(asset, amount, BOB)]);
    }
    let message = outflow(&message());
    assert_eq!(
        (message.nature, message.place.chain_id),
        (ContentKind::Message, None)
    );
}

#[test]
fn account_changes__should_be_seen_in_calls_and_scripts() {
    let bob = parse_address(BOB).unwrap();
    let framework = |module: &str, function: &str| {
        let mut entry = transfer();
        entry.module.name = Identifier::new(module).unwrap();
        entry.function = Identifier::new(function).unwrap();
        entry
    };
    let changes = |payload| brought(&raw(payload)).unwrap().account_changes();
    use TransactionExecutable::{EntryFunction as Entry, Script as Code};
    for (module, function) in [
        ("account", "rotate_authentication_key"),
        ("account", "rotate_authentication_key_call"),
        ("account", "offer_signer_capability"),
        ("account", "offer_rotation_capability"),
        ("account_abstraction", "add_authentication_function"),
        ("multisig_account", "create_with_existing_account"),
    ] {
        let entry = framework(module, function);
        let mut code = script();
        code.code = [b"x", function.as_bytes(), b"y"].concat();
        for payload in [
            TransactionPayload::EntryFunction(entry.clone()),
            newer(Entry(entry.clone()), None, Some(1)),
            newer(Entry(entry.clone()), Some(bob), None),
            TransactionPayload::Multisig(Multisig {
                multisig_address: bob,
                transaction_payload: Some(MultisigTransactionPayload::EntryFunction(entry)),
            }),
            TransactionPayload::Script(code.clone()),
            newer(Code(code), None, None),
        ] {
            let expected = [AccountChange::AptosKeyRotation].into();
            assert_eq!(changes(payload), expected, "{function}");
        }
    }
    let mut elsewhere = framework("account", "rotate_authentication_key");
    elsewhere.module.address = bob;
    for entry in [
        elsewhere,
        framework("account", "revoke_signer_capability"),
        framework("account_abstraction", "remove_authenticator"),
        framework("multisig_account", "create"),
        framework("coin", "transfer"),
    ] {
        assert!(changes(TransactionPayload::EntryFunction(entry)).is_empty());
    }
}

#[test]
fn custom_transactions__should_count_what_is_plain_to_see() {
    let native = || vec![owned("aptos:1", "5", BOB)];
    let entry = |entry| TransactionPayload::EntryFunction(entry);
    let bob = parse_address(BOB).unwrap();
    let token = |text: &str| transfers::send_coin(&AptosCoin::parse(text).unwrap(), bob, 8);
    let bytes = |value: &[Address]| bcs::to_bytes(&value).unwrap();
    let mut batch = transfer();
    batch.function = Identifier::new("batch_transfer").unwrap();
    batch.args = vec![
        bytes(&[bob, sender()]),
        bcs::to_bytes(&[1u64, 2].as_slice()).unwrap(),
    ];
    let mut uneven = batch.clone();
    uneven.args[0] = bytes(&[bob]);
    let mut elsewhere = transfer();
    elsewhere.module.address = bob;
    let mut broken = transfer();
    broken.args[1].push(0);
    let multisig = |transaction_payload| {
        TransactionPayload::Multisig(Multisig {
            multisig_address: bob,
            transaction_payload,
        })
    };
    use TransactionExecutable::{Empty, EntryFunction as Entry};
    let cases = [
        (entry(transfer()), native()),
        (
            entry(token("0x1::aptos_coin::AptosCoin")),
            vec![owned("aptos:1", "8", BOB)],
        ),
        (
            entry(token(METADATA)),
            vec![owned(&format!("aptos:1/{METADATA}"), "8", BOB)],
        ),
        (
            entry(batch),
            vec![owned("aptos:1", "1", BOB), owned("aptos:1", "2", &from())],
        ),
        (newer(Entry(transfer()), None, None), native()),
        (newer(Entry(transfer()), None, Some(1)), native()),
        // Nobody can tell what leaves this wallet, or to whom.
        (entry(uneven), vec![]),
        // But whose code gets the signature.
        (entry(elsewhere), vec![owned("aptos:1", "0", BOB)]),
        (entry(broken), vec![]),
        (TransactionPayload::Script(script()), vec![]),
        (newer(Entry(transfer()), Some(bob), None), vec![]),
        (newer(Empty, Some(bob), None), vec![]),
        (multisig(None), vec![]),
        (
            multisig(Some(MultisigTransactionPayload::EntryFunction(transfer()))),
            vec![],
        ),
        (
            multisig(Some(MultisigTransactionPayload::Script(script()))),
            vec![],
        ),
    ];
    for (payload, spends) in cases {
        let raw = raw(payload);
        let payload = brought(&raw).unwrap();
        let outflow = outflow(&payload);
        assert_eq!(outflow.nature, ContentKind::Custom);
        assert_eq!(outflow.place.to_string(), "aptos:1");
        if spends.is_empty() {
            assert_eq!(outflow.spends, [Spend::unseen(outflow.place)], "{raw:?}");
        } else {
            assert_eq!(shown(&outflow), spends, "{raw:?}");
        }
        assert!(payload.account_changes().is_empty());
        // Signed as it came, with nothing asked.
        assert_eq!(APTOS.queries(&payload), networks::Queries::Nothing);
        let unsigned = APTOS
            .build(&payload, &networks::ChainData::Nothing, &public_key())
            .unwrap();
        assert_eq!(unsigned.bytes, raw.encode().unwrap());
        assert_eq!(
            APTOS.most_fee(&unsigned.bytes).unwrap(),
            U256::from(300_000)
        );
        assert_eq!(Payload::decode(&payload.encode()).unwrap(), payload);
        let fault = APTOS
            .build(&payload, &chain_data().into(), &public_key())
            .unwrap_err();
        assert_eq!(fault.class(), &Class::Bug);
        let reservations = APTOS.reservations(&payload, &unsigned).unwrap();
        let whole = matches!(reservations.as_slice(), [Resource::TxHash(_)]);
        assert_eq!(whole, raw.is_orderless());
        if !whole {
            assert_eq!(reservations, [Resource::Nonce(9)]);
        }
    }
}

#[test]
fn custom_bcs__should_be_of_this_sender_and_chain_and_read_whole() {
    let good = raw(TransactionPayload::EntryFunction(transfer()));
    let payload = brought(&good).unwrap();
    // Its gas is its own.
    let Payload::Aptos(AptosPayload::Transaction(transaction)) = &payload else {
        panic!("{payload:?}")
    };
    assert_eq!(
        (transaction.max_gas_amount, transaction.gas_unit_price),
        (None, None)
    );
    let bob = parse_address(BOB).unwrap();
    refused(
        brought(&RawTransaction {
            sender: bob,
            ..good.clone()
        }),
        "aptosSendCustom.payload.sender: must be from",
    );
    refused(
        brought(&RawTransaction {
            chain_id: 126,
            ..good.clone()
        }),
        "aptosSendCustom.payload.chain_id: must be chainId",
    );
    let unread = "aptosSendCustom.payload: must be a RawTransaction in BCS";
    let bytes = good.encode().unwrap();
    refused(custom(&bytes[..bytes.len() - 1]), unread);
    refused(custom(&[bytes.as_slice(), &[0]].concat()), unread);
    for number in [1, 5, 6, 0x80] {
        let mut other = bytes.clone();
        other[tx::PAYLOAD_AT] = number;
        refused(custom(&other), unread);
    }
    // A length in more bytes than it takes: that of the module's name.
    let mut longer = bytes.clone();
    longer.splice(73..74, [0x8d, 0]);
    assert_eq!(bytes[73], 13);
    refused(custom(&longer), unread);
    let mut deep = transfer();
    deep.ty_args = vec![parse_type(&("vector<".repeat(8) + "u8" + &">".repeat(8))).unwrap()];
    let mut deeper = deep.clone();
    deeper.ty_args = vec![TypeTag::Vector(Box::new(deep.ty_args[0].clone()))];
    assert!(brought(&raw(TransactionPayload::EntryFunction(deep))).is_ok());
    refused(
        brought(&raw(TransactionPayload::EntryFunction(deeper))),
        unread,
    );
    let mut large = script();
    large.code = vec![0; tx::MAX_BYTES];
    refused(brought(&raw(TransactionPayload::Script(large))), unread);
    refused(custom(b""), "aptosSendCustom.payload: is required");
}

#[test]
fn custom_bcs__should_not_be_taken_for_json_when_the_sender_begins_with_a_bracket() {
    let mut bytes = [0x11; 32];
    bytes[0] = b'{';
    let sender = Address::new(bytes);
    let transaction = RawTransaction {
        sender,
        ..raw(TransactionPayload::Script(script()))
    };
    let parse = |payload: Vec<u8>| {
        Payload::parse(&WireKind::AptosSendCustom(wire::AptosSendCustom {
            chain_id: 1,
            from: sender.to_string(),
            payload,
            gas_fee: None,
            ..Default::default()
        }))
    };
    let payload = parse(transaction.encode().unwrap()).unwrap();
    assert!(matches!(
        payload,
        Payload::Aptos(AptosPayload::Transaction(transaction))
            if matches!(transaction.action, AptosAction::Raw(_))
    ));
    refused(
        parse(b"{\xff".to_vec()),
        "aptosSendCustom.payload: must be JSON in UTF-8",
    );
    refused(
        parse(format!("{{{}", " ".repeat(60)).into_bytes()),
        "aptosSendCustom.payload: must be JSON with type",
    );
}

#[test]
fn difference__should_name_the_first_thing() {
    let bytes = |raw: &RawTransaction| raw.encode().unwrap();
    let built = raw(TransactionPayload::EntryFunction(transfer()));
    let bob = parse_address(BOB).unwrap();
    let differs = |change: &dyn Fn(&mut RawTransaction)| {
        let mut shown = built.clone();
        change(&mut shown);
        APTOS.difference(&bytes(&built), &bytes(&shown))
    };
    let pays = |to, octas| TransactionPayload::EntryFunction(transfers::send_native(to, octas));
    let token = |text: &str| {
        let entry = transfers::send_coin(&AptosCoin::parse(text).unwrap(), bob, 5);
        TransactionPayload::EntryFunction(entry)
    };
    assert_eq!(differs(&|_| {}), None);
    assert_eq!(differs(&|shown| shown.chain_id = 126), Some("chainId"));
    assert_eq!(differs(&|shown| shown.sender = bob), Some("from"));
    assert_eq!(
        differs(&|shown| shown.payload = pays(sender(), 6)),
        Some("recipient")
    );
    assert_eq!(
        differs(&|shown| shown.payload = pays(bob, 6)),
        Some("amount")
    );
    assert_eq!(
        differs(&|shown| shown.payload = token(METADATA)),
        Some("payload")
    );
    let script = || TransactionPayload::Script(script());
    assert_eq!(differs(&|shown| shown.payload = script()), Some("payload"));
    assert_eq!(
        differs(&|shown| shown.sequence_number = 0),
        Some("sequenceNumber")
    );
    assert_eq!(
        differs(&|shown| shown.expiration_timestamp_secs = 0),
        Some("expiration")
    );
    assert_eq!(differs(&|shown| shown.max_gas_amount = 0), Some("gasFee"));
    assert_eq!(differs(&|shown| shown.gas_unit_price = 0), Some("gasFee"));
    assert_eq!(APTOS.difference(&bytes(&built), &[1]), None);
}

fn entry_function() -> impl Strategy<Value = EntryFunction> {
    let args = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..4);
    (
        address(),
        identifier(),
        identifier(),
        prop::collection::vec(type_tag(), 0..3),
        args,
    )
        .prop_map(|(address, name, function, ty_args, args)| EntryFunction {
            module: ModuleId { address, name },
            function,
            ty_args,
            args,
        })
}

fn any_script() -> impl Strategy<Value = Script> {
    use TransactionArgument as Argument;
    let bytes = || prop::collection::vec(any::<u8>(), 0..40);
    let argument = prop_oneof![
        any::<u8>().prop_map(Argument::U8),
        any::<u64>().prop_map(Argument::U64),
        any::<u128>().prop_map(Argument::U128),
        address().prop_map(Argument::Address),
        bytes().prop_map(Argument::U8Vector),
        any::<bool>().prop_map(Argument::Bool),
        any::<u16>().prop_map(Argument::U16),
        any::<u32>().prop_map(Argument::U32),
        any::<[u8; 32]>().prop_map(Argument::U256),
        bytes().prop_map(Argument::Serialized),
        any::<i8>().prop_map(Argument::I8),
        any::<i16>().prop_map(Argument::I16),
        any::<i32>().prop_map(Argument::I32),
        any::<i64>().prop_map(Argument::I64),
        any::<i128>().prop_map(Argument::I128),
        any::<[u8; 32]>().prop_map(Argument::I256),
    ];
    let ty_args = prop::collection::vec(type_tag(), 0..3);
    (bytes(), ty_args, prop::collection::vec(argument, 0..4)).prop_map(|(code, ty_args, args)| {
        Script {
            code,
            ty_args,
            args,
        }
    })
}

fn transaction_payload() -> impl Strategy<Value = TransactionPayload> {
    use MultisigTransactionPayload as Inner;
    use TransactionExecutable as Executable;
    let inner = prop_oneof![
        entry_function().prop_map(Inner::EntryFunction),
        any_script().prop_map(Inner::Script),
    ];
    let executable = prop_oneof![
        entry_function().prop_map(Executable::EntryFunction),
        any_script().prop_map(Executable::Script),
        Just(Executable::Empty),
    ];
    prop_oneof![
        entry_function().prop_map(TransactionPayload::EntryFunction),
        any_script().prop_map(TransactionPayload::Script),
        (address(), prop::option::of(inner)).prop_map(|(multisig_address, transaction_payload)| {
            TransactionPayload::Multisig(Multisig {
                multisig_address,
                transaction_payload,
            })
        }),
        (
            executable,
            prop::option::of(address()),
            any::<Option<u64>>()
        )
            .prop_map(|(executable, multisig, nonce)| newer(executable, multisig, nonce)),
    ]
}

proptest! {
    #[test]
    fn transaction__should_come_back_from_its_bytes(
        payload in transaction_payload(), numbers: [u64; 4], chain_id in prop::sample::select(vec![1u8, 126]),
    ) {
        let raw = RawTransaction {
            sequence_number: numbers[0],
            max_gas_amount: numbers[1],
            gas_unit_price: numbers[2],
            expiration_timestamp_secs: numbers[3],
            chain_id,
            ..raw(payload)
        };
        let bytes = raw.encode().unwrap();
        prop_assert_eq!(RawTransaction::decode(&bytes), Some(raw.clone()));
        let payload = Payload::parse(&WireKind::AptosSendCustom(wire::AptosSendCustom {
            chain_id: chain_id.into(),
            from: from(),
            payload: bytes.clone(),
            gas_fee: None,
            ..Default::default()
        })).unwrap();
        prop_assert_eq!(Payload::decode(&payload.encode()).unwrap(), payload.clone());
        let unsigned = APTOS.build(&payload, &networks::ChainData::Nothing, &public_key()).unwrap();
        prop_assert_eq!(&unsigned.bytes, &bytes);
        let fee = u128::from(raw.max_gas_amount) * u128::from(raw.gas_unit_price);
        prop_assert_eq!(APTOS.most_fee(&bytes).unwrap(), U256::from(fee));
        prop_assert_eq!(outflow(&payload).nature, ContentKind::Custom);
    }

    #[test]
    fn sends__should_be_built_as_they_were_asked_for(
        to in address(), amount: u64, coin in prop::option::of(type_tag()), metadata in address(),
        numbers: [u64; 4], movement: bool,
    ) {
        let chain_id = if movement { 126 } else { 1 };
        let gas_fee = gas(Some(numbers[0].max(1)), Some(numbers[1]));
        let coin = match coin {
            Some(TypeTag::Struct(tag)) => Some(AptosCoin::Type(*tag)),
            Some(_) => Some(AptosCoin::Asset(metadata)),
            None => None,
        };
        let (from, to_text) = (from(), to.to_string());
        let kind = match &coin {
            None => WireKind::AptosSendNative(wire::AptosSendNative {
                chain_id, from, to: to_text, value: amount.to_string(), gas_fee,
                ..Default::default()
            }),
            Some(coin) => WireKind::AptosSendCoin(wire::AptosSendCoin {
                chain_id, from, to: to_text, coin_tag: coin.to_string(), amount: amount.to_string(), gas_fee,
                ..Default::default()
            }),
        };
        let payload = Payload::parse(&kind).unwrap();
        prop_assert_eq!(Payload::decode(&payload.encode()).unwrap(), payload.clone());
        prop_assert_eq!(payload.to_wire(), kind);
        let chain_data = ChainData {
            sequence_number: numbers[2],
            expiration_timestamp_secs: numbers[3],
            ..chain_data()
        };
        let unsigned = build(&payload, chain_data).unwrap();
        let raw = RawTransaction::decode(&unsigned.bytes).unwrap();
        prop_assert_eq!(raw.sender, sender());
        prop_assert_eq!(u64::from(raw.chain_id), chain_id);
        prop_assert_eq!(
            [raw.max_gas_amount, raw.gas_unit_price, raw.sequence_number, raw.expiration_timestamp_secs],
            [numbers[0].max(1), numbers[1], numbers[2], numbers[3]]
        );
        // The spends that are shown are those that the built bytes make.
        let made = transfers::transfers(raw.called().unwrap());
        prop_assert_eq!(made.len(), 1);
        prop_assert_eq!((made[0].to, made[0].amount), (to, amount));
        prop_assert_eq!(made[0].asset, coin.and_then(|coin| coin.metadata()));
        let message = unsigned.signing[0].message.clone();
        prop_assert_eq!(&message[32..], &unsigned.bytes);
        let signed = APTOS.assemble(&payload, &unsigned, &[signature(&message)], &public_key());
        prop_assert!(signed.unwrap().is_some());
    }

    #[test]
    fn decoders__should_never_panic(bytes: Vec<u8>, at: usize, value: u8) {
        let _ = RawTransaction::decode(&bytes);
        let _ = custom(&bytes);
        let mut close = raw(TransactionPayload::Script(script())).encode().unwrap();
        let at = at % close.len();
        close[at] = value;
        if let Ok(payload) = custom(&close) {
            let unsigned = APTOS.build(&payload, &networks::ChainData::Nothing, &public_key()).unwrap();
            prop_assert_eq!(unsigned.bytes, close);
        }
    }
}
