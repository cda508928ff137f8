//! What a message does with a wallet's signature: what it moves, which programs get the signature,
//! and what it changes about who may sign for the wallet and its accounts.
//!
//! A program can use the wallet's signature only when the wallet is among the accounts of its
//! instruction.

use std::collections::BTreeSet;

use solana_message::{VersionedMessage, compiled_instruction::CompiledInstruction};
use solana_pubkey::Pubkey;
use solana_system_interface::program::ID as SYSTEM;
use spl_associated_token_account_interface::program::ID as ASSOCIATED_TOKEN;

use super::{
    effect::{AccountRef, COMPUTE_BUDGET, MovedToken, Movement, account, movement},
    token::{TOKEN, TOKEN_2022},
};
use crate::networks::payload::outflow::AccountChange;

const MEMO: Pubkey = Pubkey::from_str_const("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr");
const STAKE: Pubkey = Pubkey::from_str_const("Stake11111111111111111111111111111111111111");
const VOTE: Pubkey = Pubkey::from_str_const("Vote111111111111111111111111111111111111111");
const LOADER: Pubkey = Pubkey::from_str_const("BPFLoaderUpgradeab1e11111111111111111111111");

/// What the instructions that a wallet takes part in do, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct WalletInstructions {
    /// Amounts; programs may move more.
    pub moves: Vec<Movement>,
    /// The programs that are called, where they are not known to do what the others say; `None` for
    /// what a program of the system does that is not read here.
    pub called: Vec<Option<Pubkey>>,
    /// Changes of who may sign.
    pub changes: BTreeSet<AccountChange>,
}

/// See [`WalletInstructions`].
pub(crate) fn acts(message: &VersionedMessage, wallet: &Pubkey) -> WalletInstructions {
    let mut acts = WalletInstructions::default();
    for instruction in message.instructions() {
        acts.read(message, wallet, instruction);
    }
    acts
}

impl WalletInstructions {
    fn read(
        &mut self,
        message: &VersionedMessage,
        wallet: &Pubkey,
        instruction: &CompiledInstruction,
    ) {
        let indices = instruction.accounts.iter();
        let accounts: Option<Vec<AccountRef>> =
            indices.map(|index| account(message, *index)).collect();
        let wallet = AccountRef::Named(*wallet);
        // No network takes an index behind the last account.
        let accounts = accounts.unwrap_or_default();
        if !accounts.contains(&wallet) {
            return;
        }
        let known = account(message, instruction.program_id_index)
            .and_then(|program| program.named())
            .map(|program| {
                let data = instruction.data.as_slice();
                let one = ReadInstruction {
                    program,
                    data,
                    accounts: &accounts,
                    wallet,
                };
                (program, self.known(&one))
            });
        match known {
            Some((_, Some(()))) => {}
            Some((program, None)) if is_system(&program) => self.called.push(None),
            Some((program, None)) => self.called.push(Some(program)),
            None => self.called.push(None),
        }
    }

    /// Reads an instruction; `None` where what it does is not known.
    fn known(&mut self, one: &ReadInstruction<'_>) -> Option<()> {
        match one.program {
            SYSTEM => self.system(one),
            TOKEN | TOKEN_2022 => match one.data {
                [255, rest @ ..] => self.batch(one, rest),
                _ => self.token(one),
            },
            // Create and CreateIdempotent; the deposit is in the fee.
            ASSOCIATED_TOKEN if matches!(one.data, [] | [0 | 1, ..]) => {
                self.lamports(one, one.account(1)?, 0)
            }
            COMPUTE_BUDGET | MEMO => Some(()),
            STAKE => {
                // Authorize, SetLockup and their other forms
                if matches!(one.variant(), Some(1 | 6 | 8 | 10 | 11 | 12)) {
                    self.changes.insert(AccountChange::SolanaSetAuthority);
                }
                // Withdraw
                if one.variant() == Some(4) {
                    self.add_payment(one, 1, one.u64_at(4)?)?;
                }
                None
            }
            VOTE => {
                // Authorize and its other forms, UpdateValidatorIdentity
                if matches!(one.variant(), Some(1 | 4 | 7 | 10 | 11)) {
                    self.changes.insert(AccountChange::SolanaSetAuthority);
                }
                // Withdraw
                if one.variant() == Some(3) {
                    self.add_payment(one, 1, one.u64_at(4)?)?;
                }
                None
            }
            LOADER => {
                // SetAuthority, SetAuthorityChecked
                if matches!(one.variant(), Some(4 | 7)) {
                    self.changes.insert(AccountChange::SolanaSetAuthority);
                }
                // Upgrade, whose buffer is emptied; Close: all that the account has.
                match one.variant() {
                    Some(3) => self.add_payment(one, 3, u64::MAX)?,
                    Some(5) => self.add_payment(one, 1, u64::MAX)?,
                    _ => {}
                }
                None
            }
            _ => None,
        }
    }

    fn system(&mut self, one: &ReadInstruction<'_>) -> Option<()> {
        let at = |place| one.account(place) == Some(one.wallet);
        match one.variant()? {
            // CreateAccount and CreateAccountAllowPrefund may give the wallet itself away.
            0 if at(1) => self.change(AccountChange::SolanaAssign),
            13 if at(0) => self.change(AccountChange::SolanaAssign),
            0 | 2 | 3 | 13 => {}
            // Assign, Allocate
            1 | 8 if at(0) => self.change(AccountChange::SolanaAssign),
            // These look for the base of a seed, or for who has authority over a nonce account, among
            // all who sign, at whatever place: AllocateWithSeed, AssignWithSeed, WithdrawNonceAccount,
            // AuthorizeNonceAccount.
            9 | 10 => self.change(AccountChange::SolanaAssign),
            5 => return self.add_payment(one, 1, one.u64_at(4)?),
            7 => self.change(AccountChange::SolanaSetAuthority),
            // TransferWithSeed, whose base has its place
            11 if at(1) => return self.lamports(one, one.account(2)?, one.u64_at(4)?),
            0..=13 => {}
            _ => return None,
        }
        self.moved(one);
        Some(())
    }

    fn token(&mut self, one: &ReadInstruction<'_>) -> Option<()> {
        match one.data.first()? {
            // Transfer, TransferChecked, TransferCheckedWithFee
            3 | 12 => self.moved(one),
            26 if one.data.get(1) == Some(&1) => self.moved(one),
            // Approve, ApproveChecked
            4 => {
                self.change(AccountChange::SolanaApprove);
                self.tokens(one, MovedToken::In(one.account(0)?), [1, 2])?;
            }
            13 => {
                self.change(AccountChange::SolanaApprove);
                self.tokens(one, MovedToken::Of(one.account(1)?), [2, 3])?;
            }
            6 => self.change(AccountChange::SolanaSetAuthority),
            // MintTo, MintToChecked; Burn, BurnChecked
            7 | 14 => self.tokens(one, MovedToken::Of(one.account(0)?), [1, 2])?,
            8 | 15 => self.tokens(one, MovedToken::Of(one.account(1)?), [1, 2])?,
            // CloseAccount, WithdrawExcessLamports, UnwrapLamports: all that the account has.
            9 | 38 | 45 => self.add_payment(one, 1, u64::MAX)?,
            // What is initialized, Revoke, FreezeAccount, ThawAccount, SyncNative, and what only
            // answers
            0..=2 | 5 | 10 | 11 | 16..=24 => {}
            _ => return None,
        }
        Some(())
    }

    /// Instructions of the token programs, each with how many accounts and bytes it has. One that
    /// cannot be read may be any of them.
    fn batch(&mut self, one: &ReadInstruction<'_>, mut rest: &[u8]) -> Option<()> {
        let mut accounts = one.accounts;
        while let [count, length, tail @ ..] = rest {
            let split = (
                accounts.split_at_checked((*count).into()),
                tail.split_at_checked((*length).into()),
            );
            let (Some((its, others)), Some((data, next))) = split else {
                break;
            };
            let inner = ReadInstruction {
                accounts: its,
                data,
                ..*one
            };
            if its.contains(&one.wallet) && self.token(&inner).is_none() {
                self.called.push(None);
            }
            (accounts, rest) = (others, next);
        }
        if !rest.is_empty() {
            self.change(AccountChange::SolanaSetAuthority);
            return None;
        }
        Some(())
    }

    fn change(&mut self, change: AccountChange) {
        self.changes.insert(change);
    }

    /// What the instruction plainly moves, where the wallet signs for it: alone, or with the other
    /// keys of an account that has several.
    fn moved(&mut self, one: &ReadInstruction<'_>) {
        if let Some((moved, authority)) = movement(&one.program, one.data, one.accounts)
            && (one.program == SYSTEM && moved.authority == one.wallet
                || one.program != SYSTEM && one.signs(authority))
        {
            self.moves.push(moved);
        }
    }

    /// Tokens whose amount stands behind the instruction's number: the places of who gets them, and
    /// of who signs.
    fn tokens(
        &mut self,
        one: &ReadInstruction<'_>,
        token: MovedToken,
        places: [usize; 2],
    ) -> Option<()> {
        let [to, authority] = places;
        let amount = one.data.get(1..)?.first_chunk()?;
        if one.signs(authority) {
            self.moves.push(Movement {
                authority: one.account(authority)?,
                token: Some(token),
                to: one.account(to)?,
                amount: u64::from_le_bytes(*amount),
            });
        }
        Some(())
    }

    /// Lamports of an account that the wallet has authority over, for the account at a place; what
    /// the wallet gets does not leave.
    fn add_payment(&mut self, one: &ReadInstruction<'_>, to: usize, amount: u64) -> Option<()> {
        let to = one.account(to)?;
        if to != one.wallet {
            self.lamports(one, to, amount)?;
        }
        Some(())
    }

    fn lamports(&mut self, one: &ReadInstruction<'_>, to: AccountRef, amount: u64) -> Option<()> {
        self.moves.push(Movement {
            authority: one.wallet,
            token: None,
            to,
            amount,
        });
        Some(())
    }
}

#[derive(Clone, Copy)]
struct ReadInstruction<'a> {
    program: Pubkey,
    data: &'a [u8],
    accounts: &'a [AccountRef],
    wallet: AccountRef,
}

impl ReadInstruction<'_> {
    fn account(&self, place: usize) -> Option<AccountRef> {
        self.accounts.get(place).copied()
    }

    /// Whether the wallet is who signs, or one of several.
    fn signs(&self, authority: usize) -> bool {
        let mut signers = self.accounts.iter().skip(authority);
        signers.any(|account| *account == self.wallet)
    }

    /// The number of the variant (bincode).
    fn variant(&self) -> Option<u32> {
        Some(u32::from_le_bytes(*self.data.first_chunk()?))
    }

    fn u64_at(&self, place: usize) -> Option<u64> {
        let bytes = self.data.get(place..)?.first_chunk()?;
        Some(u64::from_le_bytes(*bytes))
    }
}

/// Whether everyone's transactions call the program, so that a list that names it would allow
/// everything.
fn is_system(program: &Pubkey) -> bool {
    [SYSTEM, TOKEN, TOKEN_2022, ASSOCIATED_TOKEN].contains(program)
}
