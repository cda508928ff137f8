//! Transactions made elsewhere.

use serde_json::{Value, json};
use sui_sdk_types::{
    ChangeEpoch, GasPayment, Identifier, MakeMoveVector, MergeCoins, MoveCall,
    ProgrammableTransaction, Publish, SharedInput, SplitCoins, TransactionKind, TransferObjects,
};

use super::*;
use crate::networks::outflow::Spend;

const SDK_FROM: &str = "0x559b58c97f8a3dee4d7e09196e8bba1e7d30b8de78b58321aa86481933dc2ea6";

fn custom_of(from: &str, payload: Vec<u8>) -> Result<Payload, Fault> {
    custom_with(from, payload, &[])
}

fn custom_with(from: &str, payload: Vec<u8>, others: &[Vec<u8>]) -> Result<Payload, Fault> {
    Payload::parse(&WireKind::SuiSendCustom(wire::SuiSendCustom {
        from: from.into(),
        payload,
        other_signatures: others.to_vec(),
    }))
}

fn custom(payload: Vec<u8>) -> Result<Payload, Fault> {
    custom_of(&from(), payload)
}

fn object(number: u8) -> ObjectReference {
    ObjectReference::new(Address::new([number; 32]), 3, Digest::new([number; 32]))
}

fn transaction(inputs: Vec<Input>, commands: Vec<Command>) -> Transaction {
    let sender = parse_address(&from()).unwrap();
    Transaction {
        kind: TransactionKind::ProgrammableTransaction(ProgrammableTransaction {
            inputs,
            commands,
        }),
        sender,
        gas_payment: GasPayment {
            objects: vec![object(1)],
            owner: sender,
            price: 10,
            budget: 1_000,
        },
        expiration: TransactionExpiration::None,
    }
}

fn sdk() -> Vec<(Value, Vec<u8>)> {
    let sdk: Value = serde_json::from_str(include_str!("../sdk.json")).unwrap();
    let one = |one: &Value| {
        let bytes = STANDARD.decode(one["bcs"].as_str().unwrap()).unwrap();
        (one["json"].clone(), bytes)
    };
    sdk["transactions"]
        .as_array()
        .unwrap()
        .iter()
        .map(one)
        .collect()
}

#[test]
fn json__should_be_what_the_sdk_makes_of_it() {
    let all = sdk();
    assert_eq!(all.len(), 5);
    for (json, bytes) in all {
        let from_bcs = custom_of(SDK_FROM, bytes.clone()).unwrap();
        for text in [json.to_string(), format!("\n {json:#} ")] {
            let payload = custom_of(SDK_FROM, text.into_bytes()).unwrap();
            assert_eq!(payload, from_bcs);
            assert_eq!(Payload::decode(&payload.encode()), Ok(payload));
        }
        let Payload::Sui(SuiPayload::Custom(custom)) = from_bcs else {
            unreachable!()
        };
        assert_eq!(custom.bytes, bytes);
    }
}

#[test]
fn json__should_be_refused_where_something_is_left_open() {
    let (whole, _) = sdk().remove(0);
    let refused = |change: &dyn Fn(&mut Value), sentence: &str| {
        let mut json = whole.clone();
        // Of what is changed it would no longer be true.
        json.as_object_mut().unwrap().remove("digest");
        assert!(custom_of(SDK_FROM, json.to_string().into_bytes()).is_ok());
        change(&mut json);
        let fault = custom_of(SDK_FROM, json.to_string().into_bytes()).unwrap_err();
        assert_eq!(fault.class(), &Class::Invalid);
        let sentence = format!("suiSendCustom.payload: {sentence}");
        assert!(fault.message().starts_with(&sentence), "{fault}");
    };
    refused(
        &|json| json["sender"] = Value::Null,
        "is not resolved: sender",
    );
    for field in ["budget", "price", "payment"] {
        let sentence = format!("is not resolved: gasData.{field} is missing");
        refused(&|json| json["gasData"][field] = Value::Null, &sentence);
    }
    refused(
        &|json| json["inputs"][1] = json!({"UnresolvedPure": {"value": 5}}),
        "is not resolved: inputs[1] is a value",
    );
    refused(
        &|json| json["inputs"][2] = json!({"UnresolvedObject": {"objectId": "0x5"}}),
        "is not resolved: inputs[2] is an object",
    );
    refused(
        &|json| {
            let data = json!({"type": "gas", "balance": "1"});
            json["commands"][0] =
                json!({"$Intent": {"name": "CoinWithBalance", "inputs": {}, "data": data}});
        },
        "is not resolved: commands[0] is an intent",
    );
    let not_json = "is not a transaction in JSON: ";
    for (place, wrong) in [
        ("/gasData/budget", json!("0x10")),
        ("/gasData/budget", json!(-1)),
        ("/gasData/budget", json!(1.5)),
        ("/gasData/budget", json!("18446744073709551616")),
        ("/gasData/payment/0/digest", json!("abc")),
        ("/gasData/payment/0/objectId", json!("0xzz")),
        ("/inputs/0", json!({"Pure": {"bytes": "*"}})),
        ("/inputs/0", json!({"Other": {}})),
        ("/inputs/0", json!({"Pure": {"bytes": ""}, "Object": {}})),
        (
            "/commands/0",
            json!({"SplitCoins": {"coin": {"GasCoin": true}, "amounts": [], "x": 1}}),
        ),
        (
            "/commands/0",
            json!({"SplitCoins": {"coin": {"Input": 65536}, "amounts": []}}),
        ),
        ("/commands/2/MoveCall/typeArguments", json!(["@app::m::T"])),
        ("/commands/2/MoveCall/package", json!("@mysten/app")),
        ("/expiration", json!({"Later": 1})),
        ("/extra", json!(1)),
    ] {
        refused(
            &|json| match json.pointer_mut(place) {
                Some(value) => *value = wrong.clone(),
                None => json["extra"] = wrong.clone(),
            },
            not_json,
        );
    }
    refused(
        &|json| {
            json["commands"][0] = json!({"SplitCoins": {"coin": {"GasCoin": false}, "amounts": []}})
        },
        "commands[0]: GasCoin must be true",
    );
    refused(
        &|json| json["version"] = json!(1),
        "is JSON, but not version 2",
    );
    refused(
        &|json| json["digest"] = json!("11111111111111111111111111111111"),
        "has a digest that does not match the transaction",
    );
    refused(
        &|json| {
            json["sender"] = json!("0x5");
            json["gasData"]["owner"] = json!("0x6");
        },
        "is not a transaction of `from`",
    );
    for text in [
        "{",
        "{}",
        "{\"version\":2}",
        "[]",
        "null",
        "{\"version\":2,\"version\":3}",
    ] {
        assert!(custom(text.into()).is_err(), "{text}");
    }
}

#[test]
fn custom__should_be_a_programmable_transaction_in_its_one_encoding() {
    let good = tx::encode(&transaction(vec![], vec![])).unwrap();
    assert!(custom(good.clone()).is_ok());
    let mut other = transaction(vec![], vec![]);
    other.kind = TransactionKind::ChangeEpoch(ChangeEpoch {
        epoch: 1,
        protocol_version: 1,
        storage_charge: 1,
        computation_charge: 1,
        storage_rebate: 1,
        non_refundable_storage_fee: 1,
        epoch_start_timestamp_ms: 1,
        system_packages: vec![],
    });
    let mut of_other = transaction(vec![], vec![]);
    (of_other.sender, of_other.gas_payment.owner) = (Address::TWO, Address::TWO);
    let large = transaction(vec![Input::Pure(vec![0; 128 * 1024])], vec![]);
    // An empty vector whose length takes two bytes.
    let mut padded = good.clone();
    padded.splice(2..3, [0x80, 0]);
    let encode = |transaction: &Transaction| bcs::to_bytes(transaction).unwrap();
    for (bytes, sentence) in [
        (encode(&other), "must be a programmable transaction"),
        (encode(&large), "must be a programmable transaction"),
        (encode(&of_other), "is not a transaction of `from`"),
        (padded, "must be a programmable transaction"),
        (
            good[..good.len() - 1].to_vec(),
            "must be a programmable transaction",
        ),
        (vec![], "is required"),
    ] {
        let fault = custom(bytes).unwrap_err();
        let sentence = format!("suiSendCustom.payload: {sentence}");
        assert!(fault.message().starts_with(&sentence), "{fault}");
    }
}

#[test]
fn custom__should_be_signed_as_it_is() {
    let bytes = tx::encode(&transaction(vec![], vec![])).unwrap();
    let payload = custom(bytes.clone()).unwrap();
    assert_eq!(SUI_CHAIN.queries(&payload), networks::Queries::Nothing);
    let unsigned = SUI_CHAIN
        .build(&payload, &networks::ChainData::Nothing, &public_key())
        .unwrap();
    assert_eq!(unsigned.bytes, bytes);
    assert_eq!(SUI_CHAIN.most_fee(&bytes), Ok(U256::from(1_000)));
    let fault = build(&payload, &chain_data(&[], &[])).unwrap_err();
    assert_eq!(fault.class(), &Class::Bug);
    let settled = SUI_CHAIN.allocate(&payload, chain_data(&[], &[]).into(), &BTreeSet::new());
    assert_eq!(settled.unwrap_err().class(), &Class::Bug);
    let signature = sign(&unsigned.signing[0].message);
    let signed = SUI_CHAIN.assemble(&payload, &unsigned, &[signature], &public_key());
    assert!(signed.unwrap().is_some());
}

fn call(package: &str, arguments: Vec<Argument>) -> Command {
    Command::MoveCall(MoveCall {
        package: Address::from_hex(package).unwrap(),
        module: Identifier::from_static("m"),
        function: Identifier::from_static("f"),
        type_arguments: vec![],
        arguments,
    })
}

fn transfer(objects: Vec<Argument>, address: u16) -> Command {
    Command::TransferObjects(TransferObjects {
        objects,
        address: Argument::Input(address),
    })
}

fn split(coin: Argument, amounts: Vec<Argument>) -> Command {
    Command::SplitCoins(SplitCoins { coin, amounts })
}

#[test]
fn uses__should_name_the_objects_that_are_spent() {
    let reservations = |mut transaction: Transaction, gas: Vec<ObjectReference>| {
        transaction.gas_payment.objects = gas;
        let payload = custom(tx::encode(&transaction).unwrap()).unwrap();
        let unsigned = SUI_CHAIN
            .build(&payload, &networks::ChainData::Nothing, &public_key())
            .unwrap();
        SUI_CHAIN.reservations(&payload, &unsigned).unwrap()
    };
    let piece = |number: u8| Resource::Object(format!("{}:3", Address::new([number; 32])));
    let owned = |number| Input::ImmutableOrOwned(object(number));
    let inputs = vec![
        owned(10),
        owned(11),
        owned(12),
        owned(13),
        owned(14),
        owned(15),
        Input::Receiving(object(16)),
        Input::Shared(SharedInput::new(Address::new([17; 32]), 3, true)),
        Input::Pure(vec![1; 32]),
    ];
    let input = Argument::Input;
    let commands = vec![
        split(input(0), vec![]),
        Command::MergeCoins(MergeCoins {
            coin: input(1),
            coins_to_merge: vec![input(2)],
        }),
        Command::MakeMoveVector(MakeMoveVector {
            type_: None,
            elements: vec![input(3)],
        }),
        transfer(vec![input(4), input(0)], 8),
        // May be immutable, and then everybody uses it at this version.
        call("0xabc", vec![input(5), input(6), input(7)]),
    ];
    let all = reservations(transaction(inputs, commands), vec![object(1), object(2)]);
    assert_eq!(all, [1, 2, 10, 11, 12, 13, 14, 16].map(piece));
    let reserved = [&[1; 12][..], &[0xac; 20]].concat();
    let reserved = Digest::from_bytes(reserved).unwrap();
    for gas in [
        vec![],
        vec![ObjectReference::new(Address::TWO, 0, reserved)],
    ] {
        let none = transaction(vec![], vec![]);
        let alone = reservations(none.clone(), gas.clone());
        assert!(
            matches!(alone.as_slice(), [Resource::TxHash(_)]),
            "{alone:?}"
        );
        assert_eq!(reservations(none.clone(), gas.clone()), alone);
        let mut other = none;
        other.expiration = TransactionExpiration::Epoch(1);
        assert_ne!(reservations(other, gas), alone);
    }
}

#[test]
fn account_changes__should_be_calls_of_address_aliases() {
    use crate::networks::outflow::AccountChange;
    let changes = |package: &str, module: &str| {
        let Command::MoveCall(mut call) = call(package, vec![]) else {
            unreachable!()
        };
        call.module = Identifier::new(module).unwrap();
        let bytes = tx::encode(&transaction(vec![], vec![Command::MoveCall(call)])).unwrap();
        custom(bytes).unwrap().account_changes()
    };
    let alias = [AccountChange::SuiAddressAlias].into();
    assert_eq!(changes("0x2", "address_alias"), alias);
    assert!(changes("0x2", "coin").is_empty());
    assert!(changes("0xabc00000000000", "address_alias").is_empty());
}

#[test]
fn outflow__should_show_what_is_plain_to_see() {
    let seen = |inputs: Vec<Input>, commands: Vec<Command>| {
        let bytes = tx::encode(&transaction(inputs, commands)).unwrap();
        let outflow = custom(bytes).unwrap().outflow(Network::Sui);
        assert_eq!(outflow.nature, ContentKind::Custom);
        let one = |spend: Spend| (spend.asset.to_string(), spend.amount, spend.recipient);
        outflow.spends.into_iter().map(one).collect::<Vec<_>>()
    };
    let amount = |amount: u64| Input::Pure(amount.to_le_bytes().to_vec());
    let to = |text: &str| Input::Pure(parse_address(text).unwrap().as_bytes().to_vec());
    let inputs = || {
        vec![
            amount(5),
            amount(7),
            to(TO),
            to(&from()),
            Input::ImmutableOrOwned(object(10)),
            Input::FundsWithdrawal(sui_sdk_types::FundsWithdrawal::new(
                9,
                parse_coin_type(TOKEN).unwrap().into(),
                sui_sdk_types::WithdrawFrom::Sender,
            )),
        ]
    };
    let input = Argument::Input;
    let nested = Argument::NestedResult;
    let both = || split(Argument::Gas, vec![input(0), input(1)]);
    let token = format!("sui/{}", SUI_CHAIN.parse_token(TOKEN).unwrap());
    let package = Address::from_hex("0xabc00000000000").unwrap().to_string();
    let sui = |amount: u64, to: Option<&str>| {
        (
            "sui".to_owned(),
            U256::from(amount),
            to.map(ToOwned::to_owned),
        )
    };
    let most = |to| {
        let (asset, _, to) = sui(0, to);
        (asset, U256::MAX, to)
    };
    for (commands, expected) in [
        (
            vec![both(), transfer(vec![nested(0, 0), nested(0, 1)], 2)],
            vec![sui(12, Some(TO))],
        ),
        (
            vec![both(), transfer(vec![nested(0, 1)], 2)],
            vec![sui(7, Some(TO))],
        ),
        (
            vec![
                split(Argument::Gas, vec![input(0)]),
                transfer(vec![Argument::Result(0)], 2),
            ],
            vec![sui(5, Some(TO))],
        ),
        // Back to the sender, or into the gas coin again.
        (vec![both(), transfer(vec![nested(0, 0)], 3)], vec![]),
        (
            vec![
                both(),
                Command::MergeCoins(MergeCoins {
                    coin: Argument::Gas,
                    coins_to_merge: vec![nested(0, 0)],
                }),
            ],
            vec![],
        ),
        // All that the gas coins hold, and as much as nobody knows.
        (vec![transfer(vec![Argument::Gas], 2)], vec![most(Some(TO))]),
        (vec![transfer(vec![Argument::Gas], 3)], vec![]),
        (
            vec![call("0xabc00000000000", vec![Argument::Gas])],
            vec![most(Some(&package))],
        ),
        (
            vec![
                split(Argument::Gas, vec![Argument::Result(9)]),
                transfer(vec![nested(0, 0)], 2),
            ],
            vec![most(Some(TO))],
        ),
        // Not known how much, but to whom.
        (vec![transfer(vec![input(4)], 2)], vec![sui(0, Some(TO))]),
        (vec![transfer(vec![input(4)], 4)], vec![sui(0, None)]),
        (
            vec![
                both(),
                call("0xabc00000000000", vec![nested(0, 0), nested(0, 0)]),
            ],
            vec![sui(5, Some(&package))],
        ),
        (
            vec![both(), call("0x2", vec![nested(0, 0)])],
            vec![sui(5, None)],
        ),
        (
            vec![
                both(),
                Command::MakeMoveVector(MakeMoveVector {
                    type_: None,
                    elements: vec![nested(0, 0), nested(0, 1)],
                }),
            ],
            vec![sui(12, None)],
        ),
        (
            vec![both(), split(nested(0, 1), vec![input(0)])],
            vec![sui(7, None)],
        ),
        (
            vec![
                both(),
                Command::MergeCoins(MergeCoins {
                    coin: input(4),
                    coins_to_merge: vec![nested(0, 0)],
                }),
            ],
            vec![sui(5, None)],
        ),
        (
            vec![Command::Publish(Publish {
                modules: vec![],
                dependencies: vec![],
            })],
            vec![sui(0, None)],
        ),
        (vec![], vec![]),
    ] {
        let mut expected = expected;
        expected.insert(0, (token.clone(), U256::from(9), None));
        assert_eq!(seen(inputs(), commands.clone()), expected, "{commands:?}");
    }
}

/// A function that takes a number or an address by mutable reference changes it for the commands after
/// it: the network writes such arguments back, pure ones too.
#[test]
fn outflow__should_not_believe_an_input_that_a_function_may_have_changed() {
    let seen = |commands: Vec<Command>| {
        let to = |text: &str| Input::Pure(parse_address(text).unwrap().as_bytes().to_vec());
        let inputs = vec![
            Input::Pure(1_u64.to_le_bytes().to_vec()),
            to(TO),
            to(&from()),
        ];
        let bytes = tx::encode(&transaction(inputs, commands)).unwrap();
        let spends = custom(bytes).unwrap().outflow(Network::Sui).spends;
        let one = |spend: Spend| (spend.amount, spend.recipient);
        spends.into_iter().map(one).collect::<Vec<_>>()
    };
    let changes = |input: u16| call("0xabc00000000000", vec![Argument::Input(input)]);
    let paid = |to: u16| {
        vec![
            split(Argument::Gas, vec![Argument::Input(0)]),
            transfer(vec![Argument::NestedResult(1, 0)], to),
        ]
    };
    // It says 1 MIST, and all of the gas coin may go.
    let amount = seen([vec![changes(0)], paid(1)].concat());
    assert_eq!(amount[1], (U256::MAX, Some(TO.to_owned())));
    // It says whom the list allows, or the sender, and anybody may get it.
    for to in [1, 2] {
        let recipients = seen([vec![changes(to)], paid(to)].concat());
        assert!(
            recipients[1..].iter().any(|(_, to)| to.is_none()),
            "{recipients:?}"
        );
    }
}

proptest! {
    #[test]
    fn custom__should_never_panic(bytes: Vec<u8>, cut in 0..400_usize, flip in 0..400_usize, json in "\\{\\PC{0,200}\\}") {
        let _ = custom(bytes.clone());
        let _ = custom(json.into_bytes());
        let (text, whole) = sdk().remove(3);
        let mut changed = whole.clone();
        let last = changed.len() - 1;
        changed[flip.min(last)] ^= bytes.first().copied().unwrap_or(1);
        changed.truncate(cut.max(1));
        for changed in [changed, whole[..cut.min(last)].to_vec()] {
            if let Ok(payload) = custom_of(SDK_FROM, changed) {
                let _ = payload.outflow(Network::Sui);
            }
        }
        let text = text.to_string();
        let _ = custom_of(SDK_FROM, text.as_bytes()[..cut.min(text.len())].to_vec());
    }

    #[test]
    fn transaction__should_never_panic(bytes: Vec<u8>) {
        let _ = SUI_CHAIN.most_fee(&bytes);
        let _ = SUI_CHAIN.difference(&bytes, &bytes);
    }
}
