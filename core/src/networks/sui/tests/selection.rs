//! Which coins pay.

use super::*;

fn chosen(
    payload: &Payload,
    chain_data: &ChainData,
    taken: &[Resource],
) -> Result<Allocation<networks::ChainData>, Fault> {
    let taken = taken.iter().cloned().collect();
    SUI_CHAIN.allocate(payload, chain_data.clone().into(), &taken)
}

/// What it is built with, and that it can be.
fn facts(payload: &Payload, chain_data: &ChainData, taken: &[Resource]) -> ChainData {
    match chosen(payload, chain_data, taken) {
        Ok(Allocation::ChainData(networks::ChainData::Sui(chosen))) => {
            build(payload, &chosen).unwrap();
            chosen
        }
        other => panic!("{other:?}"),
    }
}

fn balances(coins: &[CoinObject]) -> Vec<u64> {
    coins.iter().map(|coin| coin.balance).collect()
}

/// So many coins of `kind`, with ids that differ.
fn dust(kind: &str, count: u64, balance: impl Fn(u64) -> u64) -> Vec<CoinObject> {
    let one = coin(kind, 200, 1);
    let dust = (0..count).map(|number| {
        let mut id = [1; 32];
        id[..8].copy_from_slice(&number.to_be_bytes());
        CoinObject {
            object_id: Address::new(id).to_string(),
            balance: balance(number),
            ..one.clone()
        }
    });
    dust.collect()
}

#[test]
fn coins__should_be_as_few_as_are_enough_and_the_last_the_smallest() {
    // The budget is 1,000.
    let all = chain_data(&[5_000, 100, 9_000, 4_000, 0, 9_000], &[]);
    for (value, expected) in [
        (1, vec![4_000]),
        (3_000, vec![4_000]),
        (3_001, vec![5_000]),
        (4_001, vec![9_000]),
        // In the order in which the node named them.
        (8_001, vec![100, 9_000]),
        (9_000, vec![9_000, 4_000]),
        (21_000, vec![9_000, 4_000, 9_000]),
        (26_100, vec![5_000, 100, 9_000, 4_000, 9_000]),
    ] {
        let found = facts(&native(value), &all, &[]);
        assert_eq!(balances(&found.sui_coins), expected, "{value}");
    }
    assert!(chosen(&native(26_101), &all, &[]).is_err());
    let tokens = chain_data(&[5_000, 1_500, 3_000], &[10, 40, 20]);
    for (amount, expected) in [
        (1, vec![10]),
        (11, vec![20]),
        (41, vec![10, 40]),
        (55, vec![40, 20]),
    ] {
        let found = facts(&token(amount), &tokens, &[]);
        assert_eq!(balances(&found.coins), expected, "{amount}");
        assert_eq!(balances(&found.sui_coins), [1_500], "gas goes by itself");
    }
}

#[test]
fn payments__should_go_beside_each_other_where_there_are_coins_enough() {
    let all = chain_data(&[3_000, 3_000, 3_000], &[10, 10, 10]);
    let natives = ChainData {
        coins: Vec::new(),
        ..all.clone()
    };
    for (payload, all) in [(native(5), &natives), (token(5), &all)] {
        let mut taken: Vec<Resource> = Vec::new();
        for _ in 0..3 {
            let facts = facts(&payload, all, &taken);
            let unsigned = build(&payload, &facts).unwrap();
            let used = SUI_CHAIN.reservations(&payload, &unsigned).unwrap();
            assert!(used.iter().all(|resource| !taken.contains(resource)));
            taken.extend(used);
        }
        let waiting = chosen(&payload, all, &taken).unwrap();
        assert!(matches!(waiting, Allocation::Wait(_)), "{waiting:?}");
    }
}

#[test]
fn a_thousand_small_coins__should_pay_what_256_of_them_can() {
    let mut all = chain_data(&[], &[]);
    // The richest are the last, whatever order a node has.
    all.sui_coins = dust(SUI, 1_000, |number| 100 + number);
    let most: u64 = (744..1_000).map(|number| 100 + number).sum();
    let found = facts(&native(most - 1_000), &all, &[]);
    assert_eq!(balances(&found.sui_coins), (844..1_100).collect::<Vec<_>>());
    let fault = chosen(&native(most - 999), &all, &[]).unwrap_err();
    let sentence = format!(
        "value: needs {} MIST including the gas budget; the wallet has {most} that one \
         transaction can spend",
        most + 1
    );
    assert_eq!(fault.message(), sentence);
    // One place is the address balance's.
    all.sui_address_balance = 900;
    let found = facts(&native(most - 999), &all, &[]);
    assert_eq!(
        (found.sui_coins.len(), found.sui_address_balance),
        (255, 900)
    );
    // Gas of a token.
    let mut all = chain_data(&[], &[10]);
    all.sui_coins = dust(SUI, 1_000, |_| 4);
    assert_eq!(facts(&token(1), &all, &[]).sui_coins.len(), 250);
    all.sui_coins = dust(SUI, 1_000, |_| 3);
    assert!(chosen(&token(1), &all, &[]).is_err());
}

#[test]
fn address_balance__should_help_out_with_what_is_missing_only() {
    let with = |sui: &[u64], tokens: &[u64], outside: (u64, u64)| ChainData {
        sui_address_balance: outside.0,
        coin_address_balance: outside.1,
        ..chain_data(sui, tokens)
    };
    let sui = |value, all: &ChainData| {
        let found = facts(&native(value), all, &[]);
        (balances(&found.sui_coins), found.sui_address_balance)
    };
    // Coins alone: another payment may take the balance.
    assert_eq!(
        sui(1_000, &with(&[2_000], &[], (9_000, 0))),
        (vec![2_000], 0)
    );
    let both = with(&[2_000, 500], &[], (9_000, 0));
    assert_eq!(sui(9_000, &both), (vec![2_000], 8_000));
    assert_eq!(sui(10_300, &both), (vec![2_000, 500], 8_800));
    assert_eq!(sui(5_000, &both), (vec![], 6_000));
    assert!(chosen(&native(10_501), &both, &[]).is_err());

    let tokens = |amount, all: &ChainData| {
        let found = facts(&token(amount), all, &[]);
        (balances(&found.coins), balances(&found.sui_coins))
    };
    let rich = with(&[5_000], &[10, 20], (1_000, 8));
    assert_eq!(tokens(8, &rich), (vec![], vec![]));
    assert_eq!(tokens(9, &rich), (vec![10], vec![]));
    assert_eq!(tokens(30, &rich), (vec![10, 20], vec![]));
    assert_eq!(tokens(38, &rich), (vec![10, 20], vec![]));
    let poor = with(&[5_000], &[10, 20], (999, 8));
    assert_eq!(tokens(8, &poor), (vec![], vec![5_000]));
}

#[test]
fn gas__should_be_enough_for_the_coins_that_are_merged() {
    let open = Payload::parse(&WireKind::SuiSendCoin(wire::SuiSendCoin {
        recipients: vec![],
        from: from(),
        to: TO.into(),
        coin_tag: TOKEN.into(),
        amount: "20".into(),
        gas_fee: None,
    }));
    let open = open.unwrap();
    let networks::Queries::Sui(queries) = SUI_CHAIN.queries(&open) else {
        unreachable!()
    };
    let all = ChainData {
        reference_gas_price: Some(10),
        ..chain_data(&[50_000], &[25, 6, 6, 6, 6])
    };
    // What is simulated is what is built, when nobody holds anything.
    let simulated: Transaction = bcs::from_bytes(&simulation(&queries, &all).unwrap()).unwrap();
    let mut used = all.clone();
    used.gas_used = Some(Box::new(GasUsed {
        computation_cost: 5,
        storage_cost: 3,
        storage_rebate: 1,
    }));
    let alone = facts(&open, &used, &[]);
    assert_eq!(balances(&alone.coins), [25]);
    let built = read(&build(&open, &alone).unwrap());
    assert_eq!(simulated.kind, built.kind);
    assert_eq!(built.gas_payment.budget, 10_000 + 5 + 2);
    // More coins than that take more.
    let taken = Resource::Object(format!("{}:3", all.coins[0].object_id));
    let more = facts(&open, &used, &[taken]);
    assert_eq!(balances(&more.coins), [6, 6, 6, 6]);
    let built = read(&build(&open, &more).unwrap());
    assert_eq!(built.gas_payment.budget, 10_000 + 5 + 2 + 3 * 10 * 10);
}

#[test]
fn required_coins__should_be_taken_whatever_else_is() {
    // The budget is 1,000.
    let all = chain_data(&[5_000, 100, 9_000], &[]);
    let requiring = |all: &ChainData, index: usize| {
        let coin = all.sui_coins.iter().chain(&all.coins).nth(index).unwrap();
        let object = Resource::Object(format!("{}:{}", coin.object_id, coin.version));
        let asked = SUI_CHAIN.with_inputs(all.clone().into(), &BTreeSet::from([object]));
        match asked.unwrap() {
            networks::ChainData::Sui(asked) => asked,
            other => panic!("{other:?}"),
        }
    };
    for (value, index, expected) in [
        (1, 0, vec![5_000]),
        (1, 1, vec![5_000, 100]),
        (1, 2, vec![9_000]),
        (8_500, 0, vec![5_000, 9_000]),
    ] {
        let found = facts(&native(value), &requiring(&all, index), &[]);
        assert_eq!(balances(&found.sui_coins), expected, "{value} {index}");
        assert!(found.required.is_empty(), "what signers see has none");
    }
    let tokens = chain_data(&[5_000, 1_500], &[10, 40, 20]);
    let found = facts(&token(1), &requiring(&tokens, 3), &[]);
    assert_eq!(balances(&found.coins), [40]);
    let found = facts(&token(1), &requiring(&tokens, 0), &[]);
    assert_eq!(
        (balances(&found.coins), balances(&found.sui_coins)),
        (vec![10], vec![5_000])
    );
    // An address balance alone would do, as gas and of the token, and then none of them would be spent.
    let outside = |coins, sui| ChainData {
        coin_address_balance: coins,
        sui_address_balance: sui,
        ..chain_data(&[5_000, 1_500], &[10, 40])
    };
    for (all, index) in [(outside(0, 1_000_000), 1), (outside(1_000, 0), 2)] {
        let asked = requiring(&all, index);
        let unsigned = build(&token(30), &facts(&token(30), &asked, &[])).unwrap();
        let spent = SUI_CHAIN.reservations(&token(30), &unsigned).unwrap();
        let required = Resource::Object(asked.required[0].clone());
        assert!(spent.contains(&required), "{index}: {spent:?}");
    }
    // One that another one holds is not taken, which the orchestrator sees.
    let held = Resource::Object(requiring(&all, 0).required.remove(0));
    let found = facts(&native(1), &requiring(&all, 0), &[held]);
    assert_eq!(balances(&found.sui_coins), [9_000]);
}
