use std::collections::BTreeSet;

use solana_message::{AccountMeta, Instruction};
use solana_system_interface::instruction as system;
use spl_associated_token_account_interface::instruction as associated;
use spl_token_interface::instruction::{self as spl, AuthorityType};

use super::{
    super::super::token::{TOKEN, TOKEN_2022, associated_account},
    custom::{BUDGET, MEMO, at, call, legacy, payload, wallet},
    *,
};
use crate::networks::outflow::AccountChange;

fn changes(instructions: &[Instruction]) -> BTreeSet<AccountChange> {
    payload(&[legacy(&wallet(), instructions)]).account_changes()
}

/// (asset, amount, recipient), as they are printed.
fn spends(instructions: &[Instruction]) -> Vec<(String, String, Option<String>)> {
    let outflow = payload(&[legacy(&wallet(), instructions)]).outflow(Network::Solana);
    let shown = outflow.spends.into_iter().map(|spend| {
        let asset = spend.asset.to_string();
        (asset, spend.amount.to_string(), spend.recipient)
    });
    shown.collect()
}

/// An instruction in which the wallet signs last, after accounts of others.
fn others(program: &str, accounts: u8, data: &[u8]) -> Instruction {
    let mut instruction = call(Pubkey::from_str_const(program), data);
    let others = (1..=accounts).map(|number| AccountMeta::new(at(number), false));
    instruction.accounts = others.chain(instruction.accounts).collect();
    instruction
}

const STAKE: &str = "Stake11111111111111111111111111111111111111";

#[test]
fn hand_overs__should_be_seen_whatever_program_does_them() {
    use AccountChange::{SolanaApprove, SolanaAssign, SolanaSetAuthority};
    let (wallet, owner) = (wallet(), at(9));
    let (account, mint, eve) = (at(1), at(2), at(3));
    let authority = |program: &Pubkey, kind| {
        let mut instruction =
            spl::set_authority(&TOKEN, &account, Some(&eve), kind, &wallet, &[]).unwrap();
        instruction.program_id = *program;
        instruction
    };
    let loader = "BPFLoaderUpgradeab1e11111111111111111111111";
    let vote = "Vote111111111111111111111111111111111111111";
    for (instruction, change) in [
        (system::assign(&wallet, &owner), SolanaAssign),
        (system::allocate(&wallet, 8), SolanaAssign),
        (
            system::assign_with_seed(&account, &wallet, "seed", &owner),
            SolanaAssign,
        ),
        (
            system::allocate_with_seed(&account, &wallet, "seed", 8, &owner),
            SolanaAssign,
        ),
        // Another account pays for the wallet's own account, and names its owner.
        (
            system::create_account(&eve, &wallet, 1, 0, &owner),
            SolanaAssign,
        ),
        (
            system::create_account_allow_prefund(&wallet, None, 0, &owner),
            SolanaAssign,
        ),
        (
            system::authorize_nonce_account(&account, &wallet, &eve),
            SolanaSetAuthority,
        ),
        (
            authority(&TOKEN, AuthorityType::AccountOwner),
            SolanaSetAuthority,
        ),
        (
            authority(&TOKEN_2022, AuthorityType::MintTokens),
            SolanaSetAuthority,
        ),
        (
            others(STAKE, 2, &[&[1, 0, 0, 0][..], &[3; 32], &[0; 4]].concat()),
            SolanaSetAuthority,
        ),
        (others(vote, 2, &[1, 0, 0, 0]), SolanaSetAuthority),
        (others(loader, 1, &[4, 0, 0, 0]), SolanaSetAuthority),
        (
            spl::approve(&TOKEN, &account, &eve, &wallet, &[], 10).unwrap(),
            SolanaApprove,
        ),
        (
            spl::approve_checked(&TOKEN, &account, &mint, &eve, &wallet, &[], 10, 6).unwrap(),
            SolanaApprove,
        ),
    ] {
        let shown = changes(&[system::transfer(&wallet, &at(4), 1), instruction.clone()]);
        assert_eq!(shown, BTreeSet::from([change]), "{instruction:?}");
        // In a batch of the token program.
        if instruction.program_id == TOKEN {
            let plain = spl::transfer(&TOKEN, &account, &at(5), &wallet, &[], 1).unwrap();
            let batch = batch(&[plain, instruction]);
            assert_eq!(
                changes(std::slice::from_ref(&batch)),
                BTreeSet::from([change])
            );
            let mut cut = batch;
            cut.data.pop();
            assert!(changes(&[cut]).contains(&SolanaSetAuthority));
        }
    }
    // What others hand over is theirs.
    for instruction in [
        system::assign(&eve, &owner),
        spl::set_authority(
            &TOKEN,
            &account,
            Some(&wallet),
            AuthorityType::AccountOwner,
            &eve,
            &[],
        )
        .unwrap(),
        system::create_account(&wallet, &eve, 1, 0, &owner),
        spl::revoke(&TOKEN, &account, &wallet, &[]).unwrap(),
    ] {
        assert_eq!(changes(&[instruction]), BTreeSet::new());
    }
}

/// Many instructions of the token program in one.
fn batch(instructions: &[Instruction]) -> Instruction {
    let mut all = call(TOKEN, &[255]);
    all.accounts.clear();
    for one in instructions {
        all.data.push(one.accounts.len() as u8);
        all.data.push(one.data.len() as u8);
        all.data.extend(&one.data);
        all.accounts.extend(one.accounts.clone());
    }
    all
}

#[test]
fn spends__should_be_seen_under_every_instruction_that_moves() {
    let wallet = wallet();
    let (account, mint, eve) = (at(1), at(2), at(3));
    let token = |asset: &Pubkey, amount: u64, to: &Pubkey| {
        let asset = format!("solana/{asset}");
        (asset, amount.to_string(), Some(to.to_string()))
    };
    let coin = |amount: u64, to: &Pubkey| {
        let to = Some(to.to_string());
        ("solana".to_owned(), amount.to_string(), to)
    };
    let approve = spl::approve_checked(&TOKEN, &account, &mint, &eve, &wallet, &[], 10, 6).unwrap();
    // One of several keys of an account.
    let shared = spl::transfer_checked(
        &TOKEN,
        &account,
        &mint,
        &eve,
        &at(7),
        &[&at(8), &wallet],
        6,
        6,
    );
    for (instruction, expected) in [
        (approve.clone(), token(&mint, 10, &eve)),
        (shared.unwrap(), token(&mint, 6, &eve)),
        (
            spl::mint_to(&TOKEN, &mint, &eve, &wallet, &[], 4).unwrap(),
            token(&mint, 4, &eve),
        ),
        (
            spl::burn(&TOKEN, &account, &mint, &wallet, &[], 5).unwrap(),
            token(&mint, 5, &mint),
        ),
        (
            spl::close_account(&TOKEN, &account, &eve, &wallet, &[]).unwrap(),
            coin(u64::MAX, &eve),
        ),
        (
            system::withdraw_nonce_account(&account, &wallet, &eve, 7),
            coin(7, &eve),
        ),
        (
            system::transfer_with_seed(&account, &wallet, "s".into(), &at(9), &eve, 8),
            coin(8, &eve),
        ),
        (batch(&[approve]), token(&mint, 10, &eve)),
        (
            associated::create_associated_token_account(&wallet, &eve, &mint, &TOKEN),
            coin(0, &associated_account(&eve, &mint, &TOKEN)),
        ),
    ] {
        assert_eq!(
            spends(std::slice::from_ref(&instruction)),
            [expected],
            "{instruction:?}"
        );
    }
    let mine = spl::close_account(&TOKEN, &account, &wallet, &wallet, &[]).unwrap();
    assert_eq!(spends(&[mine]), []);
    let withdrawal = [&[4, 0, 0, 0][..], &9_u64.to_le_bytes()].concat();
    assert_eq!(
        spends(&[others(STAKE, 4, &withdrawal)]),
        [coin(9, &at(2)), coin(0, &Pubkey::from_str_const(STAKE))]
    );
}

#[test]
fn programs__should_be_recipients_where_they_get_the_signature() {
    let program = at(6);
    let called = |to: Option<&Pubkey>| {
        let to = to.map(ToString::to_string);
        ("solana".to_owned(), "0".to_owned(), to)
    };
    assert_eq!(
        spends(&[call(program, b"take all")]),
        [called(Some(&program))]
    );
    // No list should name what everybody uses.
    assert_eq!(spends(&[call(TOKEN, &[200])]), [called(None)]);
    assert_eq!(
        spends(&[call(Pubkey::default(), &[99, 0, 0, 0])]),
        [called(None)]
    );
    // Without the wallet among its accounts a program has no signature of it.
    let mut apart = call(program, b"nothing");
    apart.accounts.clear();
    assert_eq!(
        spends(&[apart, call(MEMO, b"hi"), call(BUDGET, &[2, 1, 0, 0, 0])]),
        []
    );
}
