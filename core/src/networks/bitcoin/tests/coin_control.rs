//! Payments that name outputs or a level: what they take the place of, and what they bring along.

use super::*;

/// A payment of 50,000 satoshi to another wallet.
fn wire_of(inputs: &[&UnspentOutput], level: wire::FeeLevel, rate: u64) -> wire::BtcSendNative {
    let name = |output: &&UnspentOutput| format!("{}:{}", output.txid, output.vout);
    wire::BtcSendNative {
        inputs: inputs.iter().map(name).collect(),
        fee_level: level.into(),
        ..wire(P2WPKH, "50000", rate)
    }
}

fn parsed(wire: wire::BtcSendNative) -> Payload {
    Payload::parse(&WireKind::BtcSendNative(wire)).unwrap()
}

/// At a rate in sat/vB.
fn fixed(inputs: &[&UnspentOutput], rate: u64) -> Payload {
    parsed(wire_of(inputs, wire::FeeLevel::Unspecified, rate))
}

fn fast(inputs: &[&UnspentOutput]) -> Payload {
    parsed(wire_of(inputs, wire::FeeLevel::Fast, 0))
}

fn said(outputs: &[UnspentOutput], change: impl FnOnce(&mut ChainData)) -> networks::ChainData {
    let mut chain_data = ChainData {
        outputs: outputs.to_vec(),
        ..Default::default()
    };
    change(&mut chain_data);
    chain_data.into()
}

fn fee_of(payload: &Payload, chain_data: &networks::ChainData) -> u64 {
    run(payload, chain_data).1.fee().unwrap().to_sat()
}

fn spent(payload: &Payload, chain_data: &networks::ChainData) -> Vec<u64> {
    let (_, psbt) = run(payload, chain_data);
    let coins = psbt.iter_funding_utxos();
    coins.map(|coin| coin.unwrap().value.to_sat()).collect()
}

fn signed(payload: &Payload, chain_data: &networks::ChainData) -> Signed {
    let unsigned = build(payload, chain_data).unwrap();
    let signed = BITCOIN.assemble(payload, &unsigned, &signatures(&unsigned), &public_key());
    signed.unwrap().unwrap()
}

#[test]
fn payload__should_take_a_rate_or_a_level_and_each_input_once() {
    let name = |digits: &str, vout: &str| format!("{}:{vout}", digits.repeat(32));
    let with = |inputs: Vec<String>| wire::BtcSendNative {
        inputs,
        ..wire(P2WPKH, "1000", 1)
    };
    let many: Vec<String> = (0..253).map(|n| name("ab", &n.to_string())).collect();
    let again = vec![name("ab", "1"), name("AB", "1")];
    for (wire, sentence) in [
        (
            wire::BtcSendNative {
                fee_level: wire::FeeLevel::Slow.into(),
                ..wire(P2WPKH, "1000", 1)
            },
            "feeLevel: cannot be combined with networkFee",
        ),
        (
            wire::BtcSendNative {
                fee_level: 9,
                ..wire(P2WPKH, "1000", 0)
            },
            "feeLevel: must be FEE_LEVEL_SLOW",
        ),
        (wire(P2WPKH, "1000", 0), "networkFee: is required"),
        (with(many.clone()), "inputs: must be at most 252"),
        (with(again), "inputs[1]: is named twice"),
        (with(vec![String::new()]), "inputs[0]: must be an output"),
        (with(vec![name("ab", "01")]), "inputs[0]: must be an output"),
        (
            with(vec![name("ab", "4294967296")]),
            "inputs[0]: must be an output",
        ),
        (
            with(vec![name("ab", "1"), name("a", "1")]),
            "inputs[1]: must be an output",
        ),
        (
            with(vec![name("00", "4294967295")]),
            "inputs[0]: is named twice, or is not an output",
        ),
    ] {
        let fault = Payload::parse(&WireKind::BtcSendNative(wire)).unwrap_err();
        let sentence = format!("btcSendNative.{sentence}");
        assert!(fault.message().starts_with(&sentence), "{fault}");
    }
    parsed(with(many[..252].to_vec()));
    // One canonical form, with which it comes back.
    let payload = parsed(with(vec![name("AB", "7"), name("0c", "0")]));
    let WireKind::BtcSendNative(shown) = payload.to_wire() else {
        unreachable!()
    };
    assert_eq!(shown.inputs, [name("ab", "7"), name("0c", "0")]);
    let coins = unspent(&[1, 2]);
    for payload in [payload, fast(&[&coins[0], &coins[1]]), fixed(&[], 5)] {
        assert_eq!(Payload::decode(&payload.encode()), Ok(payload));
    }
}

#[test]
fn queries__should_ask_for_what_is_named_and_for_the_level() {
    let coins = unspent(&[1]);
    let asked = |payload: &Payload| match BITCOIN.queries(payload) {
        networks::Queries::Bitcoin(queries) => (queries.inputs, queries.fee_level),
        other => panic!("{other:?}"),
    };
    let name = format!("{}:0", coins[0].txid);
    assert_eq!(
        asked(&fast(&[&coins[0]])),
        (vec![name.clone()], Some(FeeLevel::Fast))
    );
    assert_eq!(asked(&fixed(&[&coins[0]], 3)), (vec![name.clone()], None));
    assert_eq!(
        BITCOIN.named_inputs(&fixed(&[&coins[0]], 3)),
        [Resource::Object(name)]
    );
    assert_eq!(BITCOIN.named_inputs(&fixed(&[], 3)), []);
}

#[test]
fn named_inputs__should_all_be_spent_and_others_only_where_they_are_not_enough() {
    let coins = unspent(&[40_000, 90_000, 1_000, 20_000, 80_000]);
    // The largest would do, and is not named.
    let payload = fixed(&[&coins[2], &coins[0], &coins[3]], 1);
    let all = said(&coins, |_| {});
    assert_eq!(spent(&payload, &all), [40_000, 20_000, 1_000]);
    // Not enough: the largest of the others.
    let payload = fixed(&[&coins[2], &coins[0]], 1);
    assert_eq!(spent(&payload, &all), [40_000, 1_000, 90_000]);
    // Also when one alone would be enough.
    let payload = fixed(&[&coins[2], &coins[4]], 1);
    assert_eq!(spent(&payload, &all), [80_000, 1_000]);
    // Whatever others hold, and of the rest only what is free.
    let payload = fixed(&[&coins[2], &coins[0]], 1);
    let settled = BITCOIN
        .allocate(&payload, all.clone(), &taken(&coins[..3]))
        .unwrap();
    let Allocation::ChainData(settled) = settled else {
        panic!("{settled:?}")
    };
    assert_eq!(spent(&payload, &settled), [40_000, 1_000, 80_000]);
    let settled = BITCOIN.allocate(&payload, all, &taken(&coins));
    assert!(matches!(settled, Ok(Allocation::Wait(_))));
}

#[test]
fn build__should_refuse_facts_that_lack_a_named_input() {
    let coins = unspent(&[60_000, 70_000]);
    let payload = fixed(&[&coins[1], &coins[0]], 1);
    let fault = build(&payload, &said(&coins[..1], |_| {})).unwrap_err();
    assert_eq!(fault.class(), &Class::Invalid);
    assert_eq!(
        fault.message(),
        "btcSendNative.inputs[0]: is not an output of the wallet that can be spent"
    );
}

#[test]
fn fee__should_be_of_the_rate_that_nodes_name_for_the_level() {
    let coins = unspent(&[100_000]);
    let payload = fast(&[]);
    // 141 vB.
    for (rate, fee) in [(1_000, 141), (12_345, 1_741), (2_500, 353), (10, 141)] {
        let chain_data = said(&coins, |said| said.fee_rate = Some(rate));
        assert_eq!(fee_of(&payload, &chain_data), fee);
        let price = u128::from(fee).div_ceil(141);
        assert_eq!(BITCOIN.quoted_price(&payload, &chain_data), Some(price));
    }
    // What was not asked for, and what was and is not there.
    let none = said(&coins, |_| {});
    assert_eq!(build(&payload, &none).unwrap_err().class(), &Class::Bug);
    let own = fixed(&[], 5);
    assert_eq!(BITCOIN.quoted_price(&own, &none), None);
    for change in [
        (|said| said.fee_rate = Some(1_000)) as fn(&mut ChainData),
        |said| said.ancestors = Some(Ancestors { vsize: 1, fees: 0 }),
        |said| said.replaced = Some(ReplacedFees { fees: 1, rate: 1 }),
    ] {
        let chain_data = said(&coins, change);
        assert_eq!(build(&own, &chain_data).unwrap_err().class(), &Class::Bug);
    }
    // The client has named the price with which it replaces.
    let own = fixed(&[&coins[0]], 5);
    let chain_data = said(&coins, |said| {
        said.replaced = Some(ReplacedFees { fees: 1, rate: 1 });
    });
    assert_eq!(build(&own, &chain_data).unwrap_err().class(), &Class::Bug);
}

#[test]
fn absurd_prices__should_be_quoted_in_full() {
    let coins = unspent(&[2_000_000_000]);
    let most = BITCOIN.default_most_price(None);
    let named = fast(&[&coins[0]]);
    let own = fixed(&[&coins[0]], 10_000);
    let dear = Ancestors {
        vsize: 1_000_000,
        fees: 0,
    };
    for (payload, change) in [
        (
            &named,
            (|said| said.fee_rate = Some(2_000_001)) as fn(&mut ChainData),
        ),
        (&named, |said| said.fee_rate = Some(u64::MAX)),
        (&named, |said| {
            said.fee_rate = Some(1_000);
            said.replaced = Some(ReplacedFees {
                fees: 400_000,
                rate: 1,
            });
        }),
        (&named, |said| {
            said.fee_rate = Some(1_000);
            said.replaced = Some(ReplacedFees {
                fees: 1,
                rate: u64::MAX,
            });
        }),
        (&named, |said| {
            said.fee_rate = Some(1_000);
            said.ancestors = Some(Ancestors {
                vsize: u64::MAX,
                fees: 0,
            });
        }),
    ] {
        let price = BITCOIN.quoted_price(payload, &said(&coins, change));
        assert!(price.is_some_and(|price| price > most), "{price:?}");
    }
    // Its own price is the client's, and what others lack for it is not.
    assert_eq!(BITCOIN.quoted_price(&own, &said(&coins, |_| {})), None);
    let chain_data = said(&coins, |said| said.ancestors = Some(dear));
    let price = BITCOIN.quoted_price(&own, &chain_data);
    assert_eq!(price, Some(10_000_000_000u128.div_ceil(110)));
}

#[test]
fn child__should_pay_what_its_ancestors_lack() {
    let coins = unspent(&[100_000]);
    let ancestors = |vsize, fees| {
        said(&coins, |said| {
            said.ancestors = Some(Ancestors { vsize, fees })
        })
    };
    let payload = fixed(&[&coins[0]], 20);
    assert_eq!(
        fee_of(&payload, &ancestors(300, 300)),
        20 * (141 + 300) - 300
    );
    // They pay enough themselves.
    for fees in [6_000, 6_001, u64::MAX] {
        let chain_data = ancestors(300, fees);
        assert_eq!(fee_of(&payload, &chain_data), 20 * 141);
        assert_eq!(BITCOIN.quoted_price(&payload, &chain_data), None);
    }
    let level = said(&coins, |said| {
        said.fee_rate = Some(20_000);
        said.ancestors = Some(Ancestors {
            vsize: 300,
            fees: 300,
        });
    });
    assert_eq!(fee_of(&fast(&[&coins[0]]), &level), 20 * (141 + 300) - 300);
}

#[test]
fn replacement__should_pay_more_than_what_it_replaces_at_a_higher_rate() {
    let coins = unspent(&[100_000, 90_000]);
    let payload = fast(&[&coins[0]]);
    let fee = |fees, rate| {
        let chain_data = said(&coins, |said| {
            said.fee_rate = Some(1_000);
            said.replaced = Some(ReplacedFees { fees, rate });
        });
        fee_of(&payload, &chain_data)
    };
    // Above the old fee by 1 sat/vB of its own 141 vB.
    assert_eq!(fee(1_000, 1_000), 1_000 + 141);
    // Above the old rate, although it is larger.
    assert_eq!(fee(1_000, 20_000), 141 * 20 + 1);
    // What nodes ask for is more anyway.
    assert_eq!(fee(0, 10), 141);
    // More than the change has: another output is spent, whose own bytes it pays for.
    assert_eq!(fee(60_000, 1_000), 60_000 + 209);
}

#[test]
fn outbid__should_follow_from_the_outputs_that_the_old_one_spent() {
    let coins = unspent(&[60_000, 40_000, 30_000]);
    let old = fixed(&[&coins[0], &coins[1]], 9);
    let sent = signed(&old, &said(&coins, |_| {}));
    let fees = fee_of(&old, &said(&coins, |_| {}));
    let chain_data = |outputs: &[UnspentOutput]| said(outputs, |said| said.fee_rate = Some(1_000));
    let replaced = |payload: &Payload, facts: networks::ChainData| match BITCOIN
        .outbid(payload, facts, &sent)
        .unwrap()
    {
        networks::ChainData::Bitcoin(chain_data) => chain_data.replaced,
        other => panic!("{other:?}"),
    };
    let again = fast(&[&coins[1], &coins[0]]);
    let found = replaced(&again, chain_data(&coins)).unwrap();
    assert_eq!(found.fees, fees);
    assert!((9_000..9_100).contains(&found.rate), "{found:?}");
    // What nodes said counts where it is more.
    let more = said(&coins, |said| {
        said.fee_rate = Some(1_000);
        said.replaced = Some(ReplacedFees {
            fees: fees + 1,
            rate: 1,
        });
    });
    let both = replaced(&again, more).unwrap();
    assert_eq!((both.fees, both.rate), (fees + 1, found.rate));
    // It spends nothing of the old one, the price is the client's, or what the old one spent is not known.
    let other = fast(&[&coins[2]]);
    assert_eq!(replaced(&other, chain_data(&coins)), None);
    assert_eq!(replaced(&fast(&[&coins[0]]), chain_data(&coins[..1])), None);
    let own = fixed(&[&coins[0], &coins[1]], 20);
    assert_eq!(replaced(&own, said(&coins, |_| {})), None);
    let unreadable = Signed {
        transaction: "00".into(),
        ..sent.clone()
    };
    let fault = BITCOIN.outbid(&again, chain_data(&coins), &unreadable);
    assert_eq!(fault.unwrap_err().class(), &Class::Bug);
}

#[test]
fn speeding_up__should_make_the_same_payment_with_the_same_inputs() {
    let coins = unspent(&[60_000, 40_000, 30_000]);
    let old = send(P2TR, 70_000, 2);
    let sent = signed(&old, &said(&coins, |_| {}));
    let payload = BITCOIN
        .replacement(&old, &sent, Replacement::SpeedUp)
        .unwrap();
    let Payload::Bitcoin(own) = &payload else {
        panic!("{payload:?}")
    };
    assert_eq!(own.payment().level(), Some(FeeLevel::Fast));
    assert_eq!(Payload::decode(&payload.encode()), Ok(payload.clone()));
    let facts = said(&coins, |said| said.fee_rate = Some(1_000));
    let facts = BITCOIN.outbid(&payload, facts, &sent).unwrap();
    let (before, after) = (run(&old, &said(&coins, |_| {})).0, run(&payload, &facts).0);
    let outpoints = |transaction: &Transaction| {
        let inputs = transaction.input.iter();
        inputs
            .map(|input| input.previous_output)
            .collect::<Vec<_>>()
    };
    assert_eq!(outpoints(&before), outpoints(&after));
    assert_eq!(before.output[0], after.output[0]);
    let paid = |transaction: &Transaction| transaction.output[1].value.to_sat();
    // 1 sat/vB of 221 vB: two inputs of 68, P2TR and change, and 10.5.
    assert_eq!(paid(&before) - paid(&after), 221);
    assert_eq!(
        BITCOIN.sent_inputs(&sent).unwrap(),
        BITCOIN.named_inputs(&payload)
    );
    let made = [0, 1].map(|vout| Resource::Object(format!("{}:{vout}", sent.tx_hash)));
    assert_eq!(BITCOIN.sent_outputs(&sent).unwrap(), made);
}

#[test]
fn cancelling__should_send_all_back_in_one_output() {
    let coins = unspent(&[60_000, 40_000, 30_000]);
    let old = send(P2TR, 70_000, 2);
    let sent = signed(&old, &said(&coins, |_| {}));
    let payload = BITCOIN
        .replacement(&old, &sent, Replacement::Cancel)
        .unwrap();
    let facts = said(&coins, |said| said.fee_rate = Some(5_000));
    let facts = BITCOIN.outbid(&payload, facts, &sent).unwrap();
    let (transaction, psbt) = run(&payload, &facts);
    assert_eq!(transaction.output.len(), 1);
    assert_eq!(transaction.output[0].script_pubkey, own());
    assert_eq!(transaction.input.len(), 2);
    let fee = psbt.fee().unwrap().to_sat();
    assert_eq!(transaction.output[0].value.to_sat(), 100_000 - fee);
    assert_eq!(fee, 5 * 178);
    let outflow = payload.outflow(Network::Bitcoin);
    assert_eq!(outflow.spends[0].recipient.as_deref(), Some(&*from()));
    // With a payment to the wallet itself that names nothing, the rest stays change.
    let plain = send(&from(), 50_000, 1);
    assert_eq!(run(&plain, &said(&coins, |_| {})).0.output.len(), 2);
    // What pays several is sped up with all of them.
    let several = many(&[(P2PKH, 1000), (P2TR, 2000)], 1);
    let faster = BITCOIN.replacement(&several, &sent, Replacement::SpeedUp);
    let spends = |payload: &Payload| payload.outflow(Network::Bitcoin).spends;
    assert_eq!(spends(&faster.unwrap()), spends(&several));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn named_inputs__should_pay_for_all_that_hangs_on_them(
        values in prop::collection::vec(1_000..200_000_u64, 2..8),
        named in 1..8_usize,
        rate in 1_000..100_000_u64,
        ancestors: Option<(u16, u16)>,
        replaced: Option<(u16, u16)>,
        back: bool,
    ) {
        let coins = unspent(&values);
        let inputs: Vec<&UnspentOutput> = coins.iter().take(named).collect();
        let to = if back { from() } else { P2TR.to_owned() };
        let payload = parsed(wire::BtcSendNative { to, ..wire_of(&inputs, wire::FeeLevel::Slow, 0) });
        let facts = ChainData {
            outputs: coins.clone(),
            fee_rate: Some(rate),
            ancestors: ancestors.map(|(vsize, fees)| Ancestors { vsize: vsize.into(), fees: fees.into() }),
            replaced: replaced.map(|(fees, rate)| ReplacedFees { fees: fees.into(), rate: rate.into() }),
            required: Vec::new(),
        };
        let chain_data = networks::ChainData::Bitcoin(facts.clone());
        let Ok(_) = build(&payload, &chain_data) else { return Ok(()) };
        let (transaction, psbt) = run(&payload, &chain_data);
        let spent: BTreeSet<String> = transaction.input.iter().map(|input| input.previous_output.to_string()).collect();
        for input in &inputs {
            let name = format!("{}:{}", input.txid, input.vout);
            prop_assert!(spent.contains(&name));
        }
        let (fee, vsize) = (psbt.fee().unwrap().to_sat(), transaction.vsize() as u64);
        if let Some(Ancestors { vsize: before, fees }) = facts.ancestors {
            prop_assert!((fee + fees) * 1_000 >= rate * (vsize + before));
        }
        if let Some(ReplacedFees { fees, rate: old }) = facts.replaced {
            prop_assert!(fee >= fees + vsize);
            prop_assert!(fee * 1_000 > old * vsize);
        }
        let price = BITCOIN.quoted_price(&payload, &chain_data).unwrap();
        // What the change would have been may go to the fee too.
        prop_assert!(u128::from(fee) <= price * u128::from(vsize + 2 + spent.len() as u64) + 294 + 31 * u128::from(rate).div_ceil(1_000));
        let settled = BITCOIN.allocate(&payload, chain_data.clone(), &taken(&coins)).unwrap();
        if let Allocation::ChainData(settled) = settled {
            prop_assert_eq!(build(&payload, &settled), build(&payload, &chain_data));
        }
    }
}

#[test]
fn required_outputs__should_be_spent_whatever_else_is() {
    let coins = unspent(&[5_000, 60_000, 200_000]);
    let object = |coin: &UnspentOutput| Resource::Object(format!("{}:{}", coin.txid, coin.vout));
    let required = |coin: &UnspentOutput| {
        let inputs = BTreeSet::from([object(coin)]);
        BITCOIN.with_inputs(said(&coins, |_| ()), &inputs).unwrap()
    };
    // It pays 50,000.
    let payload = fixed(&[], 1);
    assert_eq!(spent(&payload, &said(&coins, |_| ())), [200_000]);
    assert_eq!(spent(&payload, &required(&coins[1])), [60_000]);
    assert_eq!(spent(&payload, &required(&coins[0])), [5_000, 200_000]);
    // Beside what the client names.
    let both = spent(&fixed(&[&coins[0]], 1), &required(&coins[1]));
    assert_eq!(both, [60_000, 5_000]);
    // What is chosen is what it is built with. One that another one holds is not taken, which the orchestrator sees.
    let chosen = |taken: &[&UnspentOutput]| {
        let taken = taken.iter().map(|coin| object(coin)).collect();
        match BITCOIN
            .allocate(&payload, required(&coins[0]), &taken)
            .unwrap()
        {
            Allocation::ChainData(chosen) => spent(&payload, &chosen),
            Allocation::Wait(reason) => panic!("{reason}"),
        }
    };
    assert_eq!(chosen(&[]), [5_000, 200_000]);
    assert_eq!(chosen(&[&coins[0]]), [200_000]);
}
