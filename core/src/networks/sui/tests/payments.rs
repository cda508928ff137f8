//! What payments are made of, and what is refused.

use super::*;

#[test]
fn gas__should_come_from_the_chain_by_the_conventions() {
    let of = |payload: &Payload, price: Option<u64>, used: Option<(u64, u64, u64)>| {
        let chain_data = ChainData {
            reference_gas_price: price,
            gas_used: used.map(|(computation_cost, storage_cost, storage_rebate)| {
                Box::new(GasUsed {
                    computation_cost,
                    storage_cost,
                    storage_rebate,
                })
            }),
            ..chain_data(&[u64::MAX], &[])
        };
        build(payload, &chain_data).map(|unsigned| {
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
            fault.message().starts_with("suiSendNative.gasFee"),
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
    type Change = fn(&mut ChainData);
    let cases: [(&Payload, Change); 9] = [
        (&native(1), |chain_data| {
            chain_data.coins = vec![coin(TOKEN, 50, 1)]
        }),
        (&native(1), |chain_data| chain_data.coin_address_balance = 1),
        (&native(1), |chain_data| {
            chain_data.sui_coins.push(chain_data.sui_coins[0].clone())
        }),
        (&token(1), |chain_data| {
            chain_data.coins.push(chain_data.sui_coins[0].clone())
        }),
        (&native(1), |chain_data| {
            chain_data.sui_coins[0].object_id = "0x2".into()
        }),
        (&native(1), |chain_data| {
            chain_data.sui_coins[0].digest = "abc".into()
        }),
        (&native(1), |chain_data| {
            let reserved = [&[1; 12][..], &[0xac; 20]].concat();
            chain_data.sui_coins[0].digest = bs58::encode(reserved).into_string();
        }),
        (&native(1), |chain_data| {
            (chain_data.sui_address_balance, chain_data.validity) = (1, None);
        }),
        (&native(1), |chain_data| {
            chain_data.sui_address_balance = 1;
            chain_data.validity.as_mut().unwrap().epoch = 1 << 32;
        }),
    ];
    for (index, (payload, change)) in cases.into_iter().enumerate() {
        let tokens: &[u64] = if payload == &token(1) { &[10] } else { &[] };
        let mut chain_data = chain_data(&[10_000], tokens);
        change(&mut chain_data);
        let fault = build(payload, &chain_data).unwrap_err();
        assert_eq!(fault.class(), &Class::Bug, "{index}: {fault:?}");
    }
    let mut many = chain_data(&[10_000], &[]);
    for number in 0..MAX_COINS {
        let mut id = [1; 32];
        id[..8].copy_from_slice(&number.to_le_bytes());
        let object_id = Address::new(id).to_string();
        many.sui_coins.push(CoinObject {
            object_id,
            ..coin(SUI, 200, 1)
        });
    }
    assert_eq!(build(&native(1), &many).unwrap_err().class(), &Class::Bug);
    many.sui_coins.pop();
    let gas = read(&build(&native(1), &many).unwrap()).gas_payment;
    assert_eq!(gas.objects.len(), 256);

    let others = networks::ChainData::Solana(solana::ChainData {
        recent_blockhash: String::new(),
        token: None,
        compute: None,
    });
    for chain_data in [&networks::ChainData::Nothing, &others] {
        let fault = SUI_CHAIN
            .build(&native(1), chain_data, &public_key())
            .unwrap_err();
        assert_eq!(fault.class(), &Class::Bug);
    }
    let key = SigningKey::from_bytes(&[8; 32]).verifying_key().to_bytes();
    let good = chain_data(&[10_000], &[]).into();
    let fault = SUI_CHAIN.build(&native(1), &good, &key).unwrap_err();
    assert_eq!(
        fault.message(),
        "suiSendNative.from: is not the wallet's address"
    );
}

#[test]
fn build__should_refuse_what_the_wallet_cannot_pay() {
    use crate::fault::ExecuteCode::{InsufficientFunds, InsufficientGasFee};
    let with_balance = |chain_data: ChainData, sui, tokens| ChainData {
        sui_address_balance: sui,
        coin_address_balance: tokens,
        ..chain_data
    };
    for (payload, chain_data, refusal) in [
        (native(9_000), chain_data(&[4_000, 6_000], &[]), None),
        (
            native(9_001),
            chain_data(&[4_000, 6_000], &[]),
            Some(InsufficientFunds),
        ),
        (
            native(9_001),
            with_balance(chain_data(&[4_000, 6_000], &[]), 1, 0),
            None,
        ),
        (native(0), chain_data(&[], &[]), Some(InsufficientFunds)),
        (
            native(1),
            with_balance(chain_data(&[], &[]), 1_001, 0),
            None,
        ),
        (token(30), chain_data(&[1_000], &[10, 20]), None),
        (
            token(31),
            chain_data(&[1_000], &[10, 20]),
            Some(InsufficientFunds),
        ),
        (
            token(31),
            with_balance(chain_data(&[1_000], &[10, 20]), 0, 1),
            None,
        ),
        (token(1), chain_data(&[999], &[1]), Some(InsufficientGasFee)),
        // Gas is taken from coins or from the balance, not from both.
        (
            token(1),
            with_balance(chain_data(&[999], &[1]), 999, 0),
            Some(InsufficientGasFee),
        ),
        (
            token(1),
            with_balance(chain_data(&[], &[1]), 1_000, 0),
            None,
        ),
        (token(0), chain_data(&[1_000], &[]), None),
    ] {
        let built = build(&payload, &chain_data);
        assert_eq!(
            built.as_ref().err().map(Fault::execute_code),
            refusal,
            "{built:?}"
        );
        if let Err(fault) = built {
            assert_eq!(fault.class(), &Class::Invalid);
        }
    }
    // Nobody has so much: encoded as asked for, and refused where it is decided.
    let most = native(u64::MAX);
    let chain_data = chain_data(&[1], &[]);
    assert!(build(&most, &chain_data).is_ok());
    let fault = SUI_CHAIN.allocate(&most, chain_data.into(), &BTreeSet::new());
    assert_eq!(fault.unwrap_err().execute_code(), InsufficientFunds);
}

#[test]
fn expiration__should_tell_payments_apart_that_spend_no_coin() {
    let from_balance = |nonce| ChainData {
        sui_address_balance: 10_000,
        coin_address_balance: 10,
        validity: Some(SuiValidity {
            epoch: 5,
            chain_identifier: Digest::new(CHAIN).to_base58(),
            nonce,
        }),
        ..chain_data(&[], &[])
    };
    let valid = |nonce| TransactionExpiration::ValidDuring {
        min_epoch: Some(5),
        max_epoch: Some(6),
        min_timestamp: None,
        max_timestamp: None,
        chain: Digest::new(CHAIN),
        nonce,
    };
    let sui = |nonce| ChainData {
        coin_address_balance: 0,
        ..from_balance(nonce)
    };
    for nonce in [3, 4] {
        let unsigned = build(&token(1), &from_balance(Some(nonce))).unwrap();
        assert_eq!(read(&unsigned).expiration, valid(nonce));
        assert!(read(&unsigned).gas_payment.objects.is_empty());
        let used = vec![Resource::Nonce(5 << 32 | u64::from(nonce))];
        assert_eq!(
            SUI_CHAIN.reservations(&token(1), &unsigned),
            Ok(used.clone())
        );
        // A coin reservation is no object.
        let unsigned = build(&native(1), &sui(Some(nonce))).unwrap();
        assert_eq!(read(&unsigned).expiration, valid(nonce));
        assert_eq!(read(&unsigned).gas_payment.objects.len(), 1);
        assert_eq!(SUI_CHAIN.reservations(&native(1), &unsigned), Ok(used));
    }
    // As the SDK has it, which sets none beside a coin reservation.
    let unsigned = build(&native(1), &sui(None)).unwrap();
    assert_eq!(read(&unsigned).expiration, TransactionExpiration::None);
    let reservations = SUI_CHAIN.reservations(&native(1), &unsigned).unwrap();
    assert!(matches!(reservations.as_slice(), [Resource::TxHash(_)]));
    let fault = build(&token(1), &from_balance(None)).unwrap_err();
    assert_eq!(fault.class(), &Class::Bug);
    // Coins that change are enough.
    let unsigned = build(&native(1), &chain_data(&[10_000], &[])).unwrap();
    assert_eq!(read(&unsigned).expiration, TransactionExpiration::None);
}

#[test]
fn simulation__should_be_the_sdks() {
    let sdk: serde_json::Value = serde_json::from_str(include_str!("../sdk.json")).unwrap();
    let sdk = &sdk["simulation"];
    let from = "0x559b58c97f8a3dee4d7e09196e8bba1e7d30b8de78b58321aa86481933dc2ea6";
    let payload = Payload::parse(&WireKind::SuiSendCoin(wire::SuiSendCoin {
        recipients: vec![],
        from: from.into(),
        to: TO.into(),
        coin_tag: TOKEN.into(),
        amount: "700".into(),
        gas_fee: None,
    }));
    let networks::Queries::Sui(queries) = SUI_CHAIN.queries(&payload.unwrap()) else {
        unreachable!()
    };
    let coin = |id: u8, version, digest, balance| CoinObject {
        object_id: format!("0x{id:064x}"),
        version,
        digest: Digest::new([digest; 32]).to_base58(),
        balance,
        origin: None,
    };
    let mut chain_data = ChainData {
        reference_gas_price: Some(505),
        gas_used: None,
        sui_coins: vec![coin(0x23, 5, 10, 100_000_000)],
        sui_address_balance: 0,
        coins: vec![coin(0x21, 3, 8, 300), coin(0x22, 4, 9, 500)],
        coin_address_balance: 0,
        required: Vec::new(),
        validity: Some(SuiValidity {
            epoch: 1024,
            chain_identifier: Digest::new([7; 32]).to_base58(),
            nonce: Some(sdk["nonce"].as_u64().unwrap().try_into().unwrap()),
        }),
    };
    let bytes = simulation(&queries, &chain_data).unwrap();
    assert_eq!(STANDARD.encode(bytes), sdk["bcs"].as_str().unwrap());
    chain_data.coins.pop();
    let fault = simulation(&queries, &chain_data).unwrap_err();
    assert_eq!(fault.class(), &Class::Invalid);
    chain_data.validity = None;
    assert!(simulation(&queries, &chain_data).is_err());
}

fn batch(amounts: &[&str]) -> Result<SuiPayment, Fault> {
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
    assert_eq!(outflow.nature, ContentKind::Transfer);
    let amounts: Vec<_> = outflow.spends.iter().map(|spend| spend.amount).collect();
    assert_eq!(amounts, [1, 2, 3].map(U256::from));
    assert!(build(&payload, &chain_data(&[1_006], &[])).is_ok());
    let fault = build(&payload, &chain_data(&[1_005], &[])).unwrap_err();
    assert!(
        fault.message().starts_with("suiSendNative.recipients: "),
        "{fault}"
    );
    assert_eq!(Payload::decode(&payload.encode()), Ok(payload.clone()));
    let one: Payload = SuiPayload::Payment(batch(&["1"]).unwrap()).into();
    assert_eq!(Payload::decode(&one.encode()), Ok(one));
    for (amounts, sentence) in [
        (vec![], "recipients: must be 1 to 254"),
        (vec!["1"; 255], "recipients: must be 1 to 254"),
        (vec!["1", "0"], "recipients[1].amount: must be more than 0"),
        (vec!["1", "-1"], "recipients[1].amount: must be a whole"),
        (
            vec!["1", "18446744073709551615"],
            "recipients: total exceeds",
        ),
    ] {
        let fault = batch(&amounts).unwrap_err();
        assert!(fault.message().starts_with(sentence), "{fault}");
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
            crate::networks::sui::batch_coin(&wire::SuiBatchSendCoin {
                from: from(), coin_tag: TOKEN.into(), recipients,
            })
        } else {
            batch_native(&wire::SuiBatchSendNative { from: from(), recipients })
        };
        let payment = payment.unwrap().with_gas(gas(Some("1000"), Some("10")).as_ref()).unwrap();
        let total = payment.total();
        let payload: Payload = SuiPayload::Payment(payment).into();
        let chain_data = ChainData {
            sui_address_balance: balances.0,
            coin_address_balance: if of_token { balances.1 } else { 0 },
            ..if of_token { chain_data(&[1_000], &coins) } else { chain_data(&coins, &[]) }
        };
        let have: u64 = coins.iter().sum::<u64>()
            + if of_token { balances.1 } else { balances.0 };
        let need = if of_token { total } else { total + 1_000 };
        let built = build(&payload, &chain_data);
        prop_assert_eq!(built.is_ok(), have >= need);
        let Ok(unsigned) = built else { return Ok(()) };
        prop_assert_eq!(build(&payload, &chain_data).unwrap(), unsigned.clone());
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
        let reservations = SUI_CHAIN.reservations(&payload, &unsigned).unwrap();
        prop_assert!(!reservations.is_empty());
    }

    #[test]
    fn address__should_never_panic(text: String, bytes: [u8; 32]) {
        let _ = (parse_address(&text), parse_coin_type(&text), SUI_CHAIN.parse_token(&text));
        let address = Address::new(bytes).to_string();
        prop_assert_eq!(SUI_CHAIN.parse_address(&address).unwrap(), address);
    }

    #[test]
    fn facts__should_never_panic(id in "\\PC{0,70}", digest in "\\PC{0,50}", balance: u64, epoch: u64, chain in "\\PC{0,50}", price: u64) {
        let mut chain_data = chain_data(&[u64::MAX, u64::MAX], &[]);
        chain_data.sui_coins[0].object_id = id;
        chain_data.sui_coins[1].digest = digest;
        chain_data.sui_address_balance = balance;
        chain_data.reference_gas_price = Some(price);
        chain_data.gas_used = Some(Box::new(GasUsed { computation_cost: balance, storage_cost: epoch, storage_rebate: price }));
        chain_data.validity = Some(SuiValidity { epoch, chain_identifier: chain, nonce: Some(1) });
        let payload = native_with("5", None);
        let _ = build(&payload, &chain_data);
        let _ = SUI_CHAIN.allocate(&payload, chain_data.into(), &BTreeSet::new());
    }
}
