use solana_message::{AccountMeta, Instruction};
use solana_system_interface::instruction as system;
use spl_associated_token_account_interface::instruction as associated;
use spl_token_interface::instruction as spl;

use super::{
    super::super::token::{TOKEN, TOKEN_2022},
    custom::{BUDGET, MEMO, at, call, legacy, payload, simple, sponsored, wallet, with_tables},
    *,
};
use crate::{fault::Class, networks::outflow::ContentKind};

fn fee(transaction: &WireTransaction) -> u128 {
    SOLANA.most_fee(transaction.bytes()).unwrap().to()
}

/// (asset, amount, recipient), as they are printed.
fn spends(transactions: &[WireTransaction]) -> Vec<(String, String, Option<String>)> {
    let outflow = payload(transactions).outflow(Network::Solana);
    assert_eq!(outflow.nature, ContentKind::Custom);
    let shown = outflow.spends.into_iter().map(|spend| {
        let asset = spend.asset.to_string();
        (asset, spend.amount.to_string(), spend.recipient)
    });
    shown.collect()
}

#[test]
fn most_fee__should_count_signatures_and_what_programs_verify() {
    assert_eq!(fee(&simple(1)), 5000);
    assert_eq!(fee(&sponsored()), 10_000);
    let verifiers = [
        "Ed25519SigVerify111111111111111111111111111",
        "KeccakSecp256k11111111111111111111111111111",
        "Secp256r1SigVerify1111111111111111111111111",
    ];
    let calls = verifiers.map(|program| call(Pubkey::from_str_const(program), &[3, 0]));
    assert_eq!(fee(&legacy(&wallet(), &calls)), 5000 * 10);
    let empty = call(Pubkey::from_str_const(verifiers[0]), &[]);
    assert_eq!(fee(&legacy(&wallet(), &[empty])), 5000);
    let all = [simple(1), sponsored()].map(|one| one.bytes().to_vec());
    assert_eq!(SOLANA.most_fee(&all.concat()), Ok(U256::from(15_000)));
}

#[test]
fn most_fee__should_count_the_price_of_computation() {
    let price = |price: u64| call(BUDGET, &[&[3][..], &price.to_le_bytes()].concat());
    let limit = |limit: u32| call(BUDGET, &[&[2][..], &limit.to_le_bytes()].concat());
    let memo = || call(MEMO, b"x");
    let fee = |instructions: &[Instruction]| fee(&legacy(&wallet(), instructions)) - 5000;
    assert_eq!(fee(&[limit(300_000), memo()]), 0);
    // Micro-lamports, rounded up.
    assert_eq!(fee(&[limit(300_000), price(12_345), memo()]), 3704);
    assert_eq!(fee(&[price(1), limit(1), memo()]), 1);
    assert_eq!(fee(&[price(1), limit(0), memo()]), 0);
    // Without a limit: 200,000 units per instruction, 3,000 for those of the budget.
    assert_eq!(fee(&[price(1_000_000), memo(), memo()]), 403_000);
    // 1,400,000 at the most, asked for or not.
    let eight = [vec![price(1_000_000)], vec![memo(); 8]].concat();
    assert_eq!(fee(&eight), 1_400_000);
    assert_eq!(fee(&[limit(u32::MAX), price(1_000_000), memo()]), 1_400_000);
    // What comes after the number is not looked at, there as here.
    let longer = call(
        BUDGET,
        &[&[3][..], &1_000_000_u64.to_le_bytes(), &[9]].concat(),
    );
    assert_eq!(fee(&[longer, limit(7)]), 7);
    let cut = call(BUDGET, &[3, 1, 0]);
    let heap = call(BUDGET, &[1, 0, 0, 4, 0]);
    assert_eq!(fee(&[cut, heap, memo()]), 0);
    // The network refuses two; the higher counts.
    assert_eq!(fee(&[price(9_000_000), price(1), limit(2)]), 18);
    assert_eq!(
        fee(&[price(u64::MAX), limit(u32::MAX)]),
        (u128::from(u64::MAX) * 1_400_000).div_ceil(1_000_000)
    );
}

#[test]
fn most_fee__should_count_deposits_for_others_accounts() {
    let open = associated::create_associated_token_account;
    let again = associated::create_associated_token_account_idempotent;
    let mut untagged = open(&wallet(), &at(1), &at(4), &TOKEN);
    untagged.data.clear();
    for one in [
        open(&wallet(), &at(1), &at(4), &TOKEN),
        again(&wallet(), &at(1), &at(4), &TOKEN),
        untagged,
    ] {
        assert_eq!(fee(&legacy(&wallet(), &[one])), 5000 + 2_039_280);
    }
    let newer = open(&wallet(), &at(1), &at(4), &TOKEN_2022);
    assert_eq!(fee(&legacy(&wallet(), &[newer])), 5000 + 2_248_080);
    let nested = associated::recover_nested(&wallet(), &at(4), &at(5), &TOKEN);
    assert_eq!(fee(&legacy(&wallet(), &[nested])), 5000);
}

#[test]
fn most_fee__should_be_a_bug_for_what_cannot_be_read() {
    for bytes in [&[1][..], &[0; 200], &simple(1).bytes()[1..]] {
        assert_eq!(*SOLANA.most_fee(bytes).unwrap_err().class(), Class::Bug);
    }
    let six: Vec<u8> = (0..6)
        .flat_map(|one| simple(one).bytes().to_vec())
        .collect();
    assert!(SOLANA.most_fee(&six).is_err());
    assert!(SOLANA.most_fee(&six[..six.len() / 6 * 5]).is_ok());
}

#[test]
fn outflow__should_show_plain_transfers_of_lamports() {
    let owner = at(9);
    let wallet = wallet();
    let coin = |amount: u64, to: &Pubkey| {
        let asset = "solana".to_owned();
        (asset, amount.to_string(), Some(to.to_string()))
    };
    let transfers = [
        system::transfer(&wallet, &at(1), 5),
        system::create_account(&wallet, &at(2), 6, 0, &owner),
        system::create_account_with_seed(&wallet, &at(3), &at(7), "seed", 7, 0, &owner),
        system::create_account_allow_prefund(&at(4), Some((&wallet, 8)), 0, &owner),
        // Another account's, and none.
        system::transfer(&at(5), &at(1), 9),
        system::create_account_allow_prefund(&at(6), None, 0, &owner),
        system::assign(&wallet, &owner),
        call(MEMO, b"hello"),
        call(Pubkey::default(), &[2, 0, 0]),
    ];
    let plain = [
        coin(5, &at(1)),
        coin(6, &at(2)),
        coin(7, &at(3)),
        coin(8, &at(4)),
    ];
    // What the system program cannot read, nobody can.
    let unseen = [("solana".to_owned(), "0".to_owned(), None)];
    let all = [&plain[..], &unseen].concat();
    assert_eq!(spends(&[legacy(&wallet, &transfers)]), all);
    assert_eq!(spends(&[with_tables(&transfers, &[])]), all);
    assert_eq!(
        spends(&[simple(1), simple(2)]),
        [coin(1, &at(1)), coin(2, &at(1))]
    );
    assert_eq!(spends(&[legacy(&wallet, &[call(MEMO, b"")])]), []);
}

#[test]
fn outflow__should_show_plain_transfers_of_tokens() {
    let wallet = wallet();
    let (source, mint, to) = (at(1), at(2), at(3));
    let checked = |authority: &Pubkey, amount| {
        spl::transfer_checked(&TOKEN, &source, &mint, &to, authority, &[], amount, 6).unwrap()
    };
    let mut newer = checked(&wallet, 6);
    newer.program_id = TOKEN_2022;
    let mut with_fee = newer.clone();
    with_fee.data = [
        &[26, 1][..],
        &7_u64.to_le_bytes(),
        &[6],
        &1_u64.to_le_bytes(),
    ]
    .concat();
    let unchecked = spl::transfer(&TOKEN, &source, &to, &wallet, &[], 8).unwrap();
    let instructions = [
        checked(&wallet, 5),
        newer,
        with_fee,
        unchecked,
        checked(&at(4), 9),
        spl::approve(&TOKEN, &source, &to, &wallet, &[], 10).unwrap(),
    ];
    let token = |asset: &str, amount: u64| {
        let asset = format!("solana/{asset}");
        (asset, amount.to_string(), Some(to.to_string()))
    };
    let mint = mint.to_string();
    assert_eq!(
        spends(&[legacy(&wallet, &instructions)]),
        [
            token(&mint, 5),
            token(&mint, 6),
            token(&mint, 7),
            // The mint is not in the signed bytes.
            token("*", 8),
            // A delegate may take it.
            token("*", 10),
        ]
    );
}

#[test]
fn outflow__should_show_what_is_taken_out_of_other_accounts() {
    let wallet = wallet();
    let to = Some(at(1).to_string());
    let five = 5_u64.to_le_bytes();
    // The wallet stands behind all that the program looks at.
    let call = |program: &str, to: usize, data: &[&[u8]]| {
        let mut accounts = vec![AccountMeta::new(at(2), false); 8];
        accounts[to] = AccountMeta::new(at(1), false);
        accounts.push(AccountMeta::new_readonly(wallet, true));
        let program = Pubkey::from_str_const(program);
        Instruction::new_with_bytes(program, &data.concat(), accounts)
    };
    let system = "11111111111111111111111111111111";
    let stake = "Stake11111111111111111111111111111111111111";
    let vote = "Vote111111111111111111111111111111111111111";
    let loader = "BPFLoaderUpgradeab1e11111111111111111111111";
    let most = u64::MAX.to_string();
    for (program, place, data, amount) in [
        // WithdrawNonceAccount, Withdraw, Withdraw
        (system, 1, &[&[5, 0, 0, 0][..], &five][..], "5"),
        (stake, 1, &[&[4, 0, 0, 0], &five], "5"),
        (vote, 1, &[&[3, 0, 0, 0], &five], "5"),
        // Close, Upgrade
        (loader, 1, &[&[5, 0, 0, 0]], &most),
        (loader, 3, &[&[3, 0, 0, 0]], &most),
    ] {
        let shown = spends(&[legacy(&wallet, &[call(program, place, data)])]);
        let paid = ("solana".to_owned(), amount.to_owned(), to.clone());
        assert_eq!(shown.first(), Some(&paid), "{program}");
        // The programs that are not everybody's are recipients too.
        let called = shown.get(1).map(|(_, _, called)| called.as_deref());
        assert_eq!(called, (program != system).then_some(Some(program)));
    }
}

#[test]
fn outflow__should_not_guess_what_stands_in_tables() {
    let wallet = wallet();
    let (source, mint, to) = (at(1), at(2), at(3));
    let instructions = [
        system::transfer(&wallet, &to, 5),
        spl::transfer_checked(&TOKEN, &source, &mint, &to, &wallet, &[], 6, 6).unwrap(),
    ];
    // Read-only accounts come after the writable ones of all tables.
    let tables = [(at(8), vec![mint, source]), (at(9), vec![at(7), to])];
    assert_eq!(
        spends(&[with_tables(&instructions, &tables)]),
        [
            ("solana".into(), "5".into(), None),
            ("solana/*".into(), "6".into(), None)
        ]
    );
}

#[test]
fn difference__should_be_named() {
    let usual = [system::transfer(&wallet(), &at(1), 5), call(MEMO, b"x")];
    let usual = legacy(&wallet(), &usual);
    let difference = |shown: &[u8]| SOLANA.difference(usual.bytes(), shown);
    let other = |transfer: Instruction, call: Instruction| {
        let shown = legacy(&wallet(), &[transfer, call]);
        difference(shown.bytes())
    };
    let transfer = |to: u8, lamports| system::transfer(&wallet(), &at(to), lamports);
    assert_eq!(other(transfer(1, 5), call(MEMO, b"x")), None);
    assert_eq!(other(transfer(2, 5), call(MEMO, b"x")), Some("recipient"));
    assert_eq!(other(transfer(1, 6), call(MEMO, b"x")), Some("amount"));
    assert_eq!(other(transfer(1, 5), call(MEMO, b"y")), Some("data"));
    assert_eq!(other(transfer(1, 5), call(at(6), b"x")), Some("program"));
    let mut more = call(MEMO, b"x");
    more.accounts.push(AccountMeta::new(at(5), false));
    assert_eq!(other(transfer(1, 5), more), Some("accounts"));
    let mut stronger = call(MEMO, b"x");
    stronger.accounts.push(AccountMeta::new(at(1), true));
    assert_eq!(other(transfer(1, 5), stronger), Some("accounts"));
    assert_eq!(difference(simple(5).bytes()), Some("instructions"));
    assert_eq!(difference(sponsored().bytes()), Some("from"));
    let two = [usual.bytes(), simple(5).bytes()].concat();
    assert_eq!(difference(&two), Some("transactions"));
    assert_eq!(SOLANA.difference(&two, usual.bytes()), Some("transactions"));
    let signed = usual.signed(&wallet(), &[1; 64]).unwrap();
    assert_eq!(difference(signed.bytes()), Some("signatures"));
    assert_eq!(difference(&[]), None);
    assert_eq!(difference(b"no transaction"), None);
}
