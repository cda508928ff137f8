//! What mints and accounts of Token-2022 bring.

use super::{
    super::super::token::{
        AccountInfo, TOKEN, TOKEN_2022, TokenChainData, TransferFee, TransferFees,
    },
    token::{account, account_data, build, chain_data, keys, mint_data, payload, queries},
    *,
};
use crate::fault::Class;

const MINT: u8 = 1;
const ACCOUNT: u8 = 2;

/// Values, each with its type.
type Extensions = Vec<(u16, Vec<u8>)>;

/// A mint or account with extensions.
fn with(mut data: Vec<u8>, kind: u8, extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    data.resize(165, 0);
    data.push(kind);
    for (kind, value) in extensions {
        data.extend(kind.to_le_bytes());
        data.extend(u16::try_from(value.len()).unwrap().to_le_bytes());
        data.extend(value);
    }
    data
}

/// TransferFeeConfig with two fees: epoch, highest, hundredths of a percent.
fn fees(older: (u64, u64, u16), newer: (u64, u64, u16)) -> Vec<u8> {
    let mut value = vec![9; 64];
    value.extend(77_u64.to_le_bytes());
    for (epoch, most, basis_points) in [older, newer] {
        value.extend(epoch.to_le_bytes());
        value.extend(most.to_le_bytes());
        value.extend(basis_points.to_le_bytes());
    }
    value
}

fn accounts(
    mint: &[(u16, Vec<u8>)],
    sender: Option<Vec<u8>>,
    recipient: Option<Vec<u8>>,
) -> Vec<Option<AccountInfo>> {
    let held = |data: Option<Vec<u8>>| data.and_then(|data| account(&TOKEN_2022, data));
    let mint = account(&TOKEN_2022, with(mint_data(6), MINT, mint));
    vec![mint, None, None, None, held(sender), held(recipient)]
}

fn of(owner: &Pubkey, extensions: &[(u16, Vec<u8>)]) -> Option<Vec<u8>> {
    Some(with(account_data(&keys().2, owner), ACCOUNT, extensions))
}

fn frozen(owner: &Pubkey) -> Option<Vec<u8>> {
    let mut data = of(owner, &[]).unwrap();
    data[108] = 2;
    Some(data)
}

#[test]
fn facts__should_refuse_by_name_what_the_token_program_would_refuse() {
    let (from, to, _) = keys();
    let paused = |byte| vec![(26, [&[5; 32][..], &[byte]].concat())];
    let hook = |program: u8| vec![(14, [[5; 32], [program; 32]].concat())];
    let by_default = |state| vec![(6, vec![state])];
    let memo = |byte| vec![(7, vec![]), (8, vec![byte])];
    let both = || (of(&from, &[]), of(&to, &[]));
    let cases: Vec<(Extensions, _, &str)> = vec![
        (
            vec![(9, vec![])],
            both(),
            "mintAddress: cannot be transferred",
        ),
        (paused(1), both(), "mintAddress: is paused by its issuer"),
        (
            hook(3),
            both(),
            "mintAddress: calls a program of its issuer",
        ),
        (
            vec![],
            (frozen(&from), of(&to, &[])),
            "from: its account for this token is frozen",
        ),
        (
            vec![],
            (of(&from, &[]), frozen(&to)),
            "to: its account for this token is frozen",
        ),
        (
            vec![],
            (of(&from, &[]), of(&to, &memo(1))),
            "to: its account for this token requires a memo",
        ),
        (
            by_default(2),
            (of(&from, &[]), None),
            "to: has no account for this token",
        ),
        (paused(0), both(), ""),
        (hook(0), both(), ""),
        // The sender demands none of itself.
        (vec![], (of(&from, &memo(1)), of(&to, &memo(0))), ""),
        (by_default(2), both(), ""),
        (by_default(1), (of(&from, &[]), None), ""),
    ];
    for (mint, (sender, recipient), refusal) in cases {
        let outcome = queries().chain_data(&accounts(&mint, sender, recipient));
        match outcome {
            Ok(_) => assert_eq!(refusal, "", "{mint:?}"),
            Err(fault) => {
                assert_eq!(*fault.class(), Class::Invalid);
                assert!(
                    !refusal.is_empty() && fault.message().starts_with(refusal),
                    "{fault}"
                );
            }
        }
    }
}

#[test]
fn facts__should_refuse_a_frozen_account_of_either_token_program() {
    let (from, _, mint) = keys();
    let mut held = account_data(&mint, &from);
    held[108] = 2;
    let accounts = [
        account(&TOKEN, mint_data(6)),
        None,
        account(&TOKEN, held),
        None,
        None,
        None,
    ];
    let fault = queries().chain_data(&accounts).unwrap_err();
    assert!(fault.message().starts_with("from: its account"), "{fault}");
}

#[test]
fn transfer_fees__should_be_those_of_the_epoch() {
    let config = fees((3, 500, 100), (9, 700, 250));
    let mint = [(3, vec![1; 32]), (1, config.clone()), (18, vec![2; 64])];
    let found: TransferFees = queries()
        .transfer_fees(&accounts(&mint, None, None))
        .unwrap();
    let fee = |basis_points, most| TransferFee { basis_points, most };
    for epoch in [0, 3, 8] {
        assert_eq!(found.at(epoch), fee(100, 500));
    }
    for epoch in [9, u64::MAX] {
        assert_eq!(found.at(epoch), fee(250, 700));
    }
    assert_eq!(found.fixed(), None);
    let same = [(1, fees((3, 500, 100), (9, 500, 100)))];
    let same = queries()
        .transfer_fees(&accounts(&same, None, None))
        .unwrap();
    assert_eq!(same.fixed(), Some(fee(100, 500)));

    // Room at the end, a value that is cut, another extension: no fee.
    let cut = config[..config.len() - 1].to_vec();
    for mint in [
        vec![],
        vec![(0, vec![]), (1, config.clone())],
        vec![(1, cut)],
        vec![(2, config)],
    ] {
        assert_eq!(queries().transfer_fees(&accounts(&mint, None, None)), None);
    }
    assert_eq!(queries().transfer_fees(&[]), None);
}

#[test]
fn transfer_fee__should_be_rounded_up_and_held_by_its_most() {
    let fee = |basis_points, most, amount| TransferFee { basis_points, most }.of(amount);
    assert_eq!(fee(0, 9, 1_000), Some(0));
    assert_eq!(fee(100, u64::MAX, 10_000), Some(100));
    assert_eq!(fee(100, u64::MAX, 10_001), Some(101));
    assert_eq!(fee(1, u64::MAX, 1), Some(1));
    assert_eq!(fee(100, 7, 10_000), Some(7));
    assert_eq!(fee(10_000, u64::MAX, u64::MAX), Some(u64::MAX));
    assert_eq!(fee(10_001, 7, 5), None);
    assert_eq!(fee(250, u64::MAX, 0), Some(0));
}

#[test]
fn transfer_with_fee__should_name_the_fee_that_the_chain_has_to_take() {
    let with_fee = |basis_points, program: &Pubkey| {
        let program = program.to_string();
        chain_data(move |known: &mut TokenChainData| {
            known.program = program;
            known.transfer_fee = Some(TransferFee {
                basis_points,
                most: u64::MAX,
            });
        })
    };
    let unsigned = build(&payload(|_| {}), &with_fee(333, &TOKEN_2022)).unwrap();
    let transaction = WireTransaction::parse(&unsigned.bytes).unwrap();
    let [instruction] = transaction.message().instructions() else {
        panic!("{transaction:?}")
    };
    // 1500 with six decimals, of which 3.33 %, rounded up, are 50.
    let data = [
        &[26, 1][..],
        &1500_u64.to_le_bytes(),
        &[6],
        &50_u64.to_le_bytes(),
    ]
    .concat();
    assert_eq!(instruction.data, data);
    assert_eq!(instruction.accounts.len(), 4);
    assert_eq!(super::super::super::transfer_fee(&transaction), Some(50));

    // The accounts are those of a transfer without; policies see the same amount and recipient.
    let plain = build(
        &payload(|_| {}),
        &chain_data(|known| known.program = TOKEN_2022.to_string()),
    );
    let plain = WireTransaction::parse(&plain.unwrap().bytes).unwrap();
    assert_eq!(
        plain.message().instructions()[0].accounts,
        instruction.accounts
    );
    let wallet = parse_key(&from()).unwrap();
    assert_eq!(
        acts::acts(plain.message(), &wallet).moves,
        acts::acts(transaction.message(), &wallet).moves
    );
    assert_eq!(super::super::super::transfer_fee(&plain), None);

    let fault = build(&payload(|_| {}), &with_fee(10_001, &TOKEN_2022)).unwrap_err();
    assert_eq!(*fault.class(), Class::Invalid);
    let fault = build(&payload(|_| {}), &with_fee(1, &TOKEN)).unwrap_err();
    assert_eq!(*fault.class(), Class::Bug);
}

proptest! {
    #[test]
    fn extensions__should_never_panic(data: Vec<u8>, sender: Vec<u8>) {
        let extended = |data: Vec<u8>, basic: Vec<u8>, kind| [with(basic, kind, &[]), data].concat();
        let (from, to, mint) = keys();
        let sender = extended(sender.clone(), account_data(&mint, &from), ACCOUNT);
        let recipient = extended(data.clone(), account_data(&mint, &to), ACCOUNT);
        let mut accounts = accounts(&[], Some(sender), Some(recipient));
        accounts[0] = account(&TOKEN_2022, extended(data, mint_data(6), MINT));
        let _ = queries().chain_data(&accounts);
        let _ = queries().transfer_fees(&accounts);
    }
}
