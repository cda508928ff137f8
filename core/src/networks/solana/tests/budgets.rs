//! Transfers that say what they may compute and pay for that.

use super::{
    super::super::{
        ComputeBudget, ComputeQueries, TransferSimulation, token::TokenChainData, trial,
    },
    token, *,
};
use crate::fault::Class;

/// ComputeBudget111111111111111111111111111111.
const BUDGET: [u8; 32] = [
    3, 6, 70, 111, 229, 33, 23, 50, 255, 236, 173, 186, 114, 195, 155, 231, 188, 140, 229, 187,
    197, 247, 18, 107, 44, 67, 155, 58, 64, 0, 0, 0,
];

fn with_budget(chain_data: networks::ChainData, limit: u32, price: u64) -> networks::ChainData {
    let networks::ChainData::Solana(own) = chain_data else {
        panic!("{chain_data:?}")
    };
    networks::ChainData::Solana(ChainData {
        compute: Some(ComputeBudget {
            unit_limit: limit,
            unit_price: price,
        }),
        ..own
    })
}

fn built(payload: &Payload, chain_data: &networks::ChainData) -> Unsigned {
    SOLANA.build(payload, chain_data, &public_key()).unwrap()
}

/// An instruction by the wire format of a legacy transaction with one signature: its program, how many
/// accounts it has, and its data. Read without the code under test; all lengths are below 128.
fn read_instructions(transaction: &[u8]) -> Vec<(Vec<u8>, usize, Vec<u8>)> {
    let mut rest = transaction.iter().copied();
    let mut take = |count: usize| -> Vec<u8> { rest.by_ref().take(count).collect() };
    assert_eq!(take(1), [1]);
    assert_eq!(take(64), [0; 64]);
    assert_eq!(take(1), [1], "one signer");
    take(2);
    let keys = take(1)[0];
    let keys: Vec<_> = (0..keys).map(|_| take(32)).collect();
    take(32);
    let count = take(1)[0];
    let instructions = (0..count).map(|_| {
        let program = keys[usize::from(take(1)[0])].clone();
        let accounts = usize::from(take(1)[0]);
        take(accounts);
        let length = usize::from(take(1)[0]);
        (program, accounts, take(length))
    });
    instructions.collect()
}

#[test]
fn transfers__should_begin_with_limit_and_price_of_their_computation() {
    let cases: [(Payload, networks::ChainData, usize); 3] = [
        (send(), chain_data(), 1),
        (token::payload(|_| {}), token::chain_data(|_| {}), 1),
        (
            token::payload(|_| {}),
            token::chain_data(|known| known.recipient_account_owner = None),
            2,
        ),
    ];
    for (payload, plain, own) in cases {
        let without = read_instructions(&built(&payload, &plain).bytes);
        assert_eq!(without.len(), own);
        let unsigned = built(&payload, &with_budget(plain.clone(), 540, 7_000_000));
        let instructions = read_instructions(&unsigned.bytes);
        let limit = [&[2][..], &540_u32.to_le_bytes()].concat();
        let price = [&[3][..], &7_000_000_u64.to_le_bytes()].concat();
        assert_eq!(
            instructions[..2],
            [
                (BUDGET.to_vec(), 0, limit.clone()),
                (BUDGET.to_vec(), 0, price)
            ]
        );
        // What follows is what there was without them.
        assert_eq!(instructions[2..], without);
        let free = read_instructions(&built(&payload, &with_budget(plain, 540, 0)).bytes);
        assert_eq!(free[0], (BUDGET.to_vec(), 0, limit));
        assert_eq!(free[1..], without);
    }
}

#[test]
fn transfers__should_move_and_change_no_more_for_their_budget() {
    let unsigned = built(&send(), &with_budget(chain_data(), 540, 7));
    let transaction = WireTransaction::parse(&unsigned.bytes).unwrap();
    let acts = acts::acts(transaction.message(), &parse_key(&from()).unwrap());
    assert_eq!(acts.moves.len(), 1);
    assert_eq!((acts.called, acts.changes.len()), (vec![], 0));
}

#[test]
fn most_fee__should_count_what_computation_costs() {
    let fee = |limit, price| {
        let unsigned = built(&send(), &with_budget(chain_data(), limit, price));
        SOLANA.most_fee(&unsigned.bytes).unwrap()
    };
    assert_eq!(fee(540, 0), U256::from(5_000));
    // 540 x 3,000,001 micro-lamports, rounded up.
    assert_eq!(fee(540, 3_000_001), U256::from(5_000 + 1_621));
    let absurd = u128::from(u64::MAX) * 10_000;
    assert_eq!(
        fee(10_000, u64::MAX),
        U256::from(5_000 + absurd.div_ceil(1_000_000))
    );
}

#[test]
fn build__should_refuse_a_limit_above_what_the_kind_can_take() {
    let opens = |known: &mut TokenChainData| known.recipient_account_owner = None;
    for (payload, plain, most) in [
        (send(), chain_data(), 10_000),
        (token::payload(|_| {}), token::chain_data(|_| {}), 200_000),
        (token::payload(|_| {}), token::chain_data(opens), 400_000),
    ] {
        for (limit, fits) in [
            (0, false),
            (1, true),
            (most, true),
            (most + 1, false),
            (u32::MAX, false),
        ] {
            let chain_data = with_budget(plain.clone(), limit, 1);
            let outcome = SOLANA.build(&payload, &chain_data, &public_key());
            assert_eq!(outcome.is_ok(), fits, "{limit}");
            if let Err(fault) = outcome {
                assert_eq!(*fault.class(), Class::Bug, "{fault}");
            }
        }
    }
}

#[test]
fn quoted_price__should_be_that_of_a_unit_of_computation() {
    for payload in [send(), token::payload(|_| {})] {
        assert_eq!(SOLANA.quoted_price(&payload, &chain_data()), None);
        let priced = with_budget(chain_data(), 540, u64::MAX);
        assert_eq!(
            SOLANA.quoted_price(&payload, &priced),
            Some(u64::MAX.into())
        );
    }
    // 0.004 SOL for the dearest kind.
    assert_eq!(SOLANA.default_most_price(Some(101)), 10_000_000);
}

#[test]
fn difference__should_name_the_budget() {
    let bytes = |limit, price| built(&send(), &with_budget(chain_data(), limit, price)).bytes;
    let shown = bytes(540, 7);
    assert_eq!(SOLANA.difference(&shown, &shown), None);
    for other in [bytes(541, 7), bytes(540, 8)] {
        assert_eq!(SOLANA.difference(&shown, &other), Some("computeBudget"));
    }
    assert_eq!(
        SOLANA.difference(&shown, &bytes(540, 0)),
        Some("instructions")
    );
}

#[test]
fn trial__should_be_the_transfer_with_what_it_writes() {
    let asked = |payload: &Payload| match SOLANA.queries(payload) {
        networks::Queries::Solana(queries) => queries,
        other => panic!("{other:?}"),
    };
    let TransferSimulation {
        transaction,
        writable,
        least_units,
        most_units,
    } = trial(&asked(&send()), None).unwrap();
    let (sender, recipient, mint) = token::keys();
    assert_eq!(writable, [sender, recipient].map(|key| key.to_string()));
    assert_eq!((least_units, most_units), (540, 10_000));
    let zeros = networks::ChainData::Solana(ChainData {
        recent_blockhash: "1".repeat(32),
        token: None,
        compute: None,
    });
    let real = built(&send(), &with_budget(zeros, 10_000, 1));
    assert_eq!(transaction, real.bytes);

    let queries = asked(&token::payload(|_| {}));
    let mut known = token::known();
    let program = parse_key(&known.program).unwrap();
    let account = |owner| super::super::super::token::associated_account(owner, &mint, &program);
    let mut expected = [sender, account(&sender), account(&recipient)].map(|key| key.to_string());
    let mut tried = trial(&queries, Some(&known)).unwrap();
    expected.sort_unstable();
    tried.writable.sort_unstable();
    assert_eq!(
        (
            tried.writable.as_slice(),
            tried.least_units,
            tried.most_units
        ),
        (&expected[..], 10_000, 200_000)
    );
    known.recipient_account_owner = None;
    let opens = trial(&queries, Some(&known)).unwrap();
    assert_eq!((opens.least_units, opens.most_units), (40_000, 400_000));
    known.sender_account_owner = None;
    assert_eq!(
        *trial(&queries, Some(&known)).unwrap_err().class(),
        Class::Invalid
    );

    for (queries, token) in [
        (asked(&send()), Some(&token::known())),
        (queries.clone(), None),
        (
            Queries {
                compute: None,
                ..queries
            },
            Some(&token::known()),
        ),
    ] {
        assert_eq!(*trial(&queries, token).unwrap_err().class(), Class::Bug);
    }
}

#[test]
fn fee_level__should_go_into_the_queries_and_come_back() {
    for (number, level) in [
        (0, FeeLevel::Normal),
        (1, FeeLevel::Slow),
        (2, FeeLevel::Normal),
        (3, FeeLevel::Fast),
    ] {
        let native = WireKind::SolanaSendNative(wire::SolanaSendNative {
            from: from(),
            to: token::to(),
            value: "5".into(),
            chain_id: 101,
            fee_level: number,
        });
        let native = Payload::parse(&native).unwrap();
        for payload in [native, token::payload(|wire| wire.fee_level = number)] {
            match SOLANA.queries(&payload) {
                networks::Queries::Solana(Queries {
                    compute: Some(ComputeQueries { level: asked, .. }),
                    ..
                }) => {
                    assert_eq!(asked, level);
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(Payload::decode(&payload.encode()), Ok(payload));
        }
    }
    let unknown = wire::SolanaSendNative {
        from: from(),
        to: token::to(),
        value: "5".into(),
        chain_id: 101,
        fee_level: 4,
    };
    let fault = Payload::parse(&WireKind::SolanaSendNative(unknown)).unwrap_err();
    assert!(
        fault
            .message()
            .starts_with("solanaSendNative.feeLevel: must be"),
        "{fault}"
    );
}

proptest! {
    /// What signers rebuild is what was built, from chain data as they travel.
    #[test]
    fn budget__should_be_rebuilt_from_the_chain_data(limit in 1..=10_000_u32, price: u64) {
        let chain_data = with_budget(chain_data(), limit, price);
        let bytes = bcs::to_bytes(&chain_data).unwrap();
        let read: networks::ChainData = bcs::from_bytes(&bytes).unwrap();
        prop_assert_eq!(built(&send(), &read), built(&send(), &chain_data));
        let priority = (u128::from(limit) * u128::from(price)).div_ceil(1_000_000);
        let fee = SOLANA.most_fee(&built(&send(), &read).bytes).unwrap();
        prop_assert_eq!(fee, U256::from(5_000 + priority));
    }
}
