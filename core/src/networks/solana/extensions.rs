//! What mints and token accounts of Token-2022 say beyond those of the Token program.
//!
//! Extensions stand one after the other, each behind its type and length (both u16, little-endian), as
//! `spl_token_2022_interface::extension` has them.

use serde::{Deserialize, Serialize};

/// TransferFeeConfig, of a mint.
const TRANSFER_FEE_CONFIG: u16 = 1;
/// DefaultAccountState, of a mint: the state of new accounts.
const DEFAULT_ACCOUNT_STATE: u16 = 6;
/// MemoTransfer, of an account.
const MEMO_TRANSFER: u16 = 8;
/// NonTransferable, of a mint.
const NON_TRANSFERABLE: u16 = 9;
/// TransferHook, of a mint: who may change it, then the program.
const TRANSFER_HOOK: u16 = 14;
/// Pausable, of a mint: who may pause it, then whether it is paused.
const PAUSABLE: u16 = 26;

/// The state of a token account that its issuer has frozen.
pub(super) const FROZEN: u8 = 2;
const KEY_BYTES: usize = 32;
/// Where TransferFeeConfig has the older of its two fees, behind two keys and what was withheld.
const OLDER_FEE: usize = 2 * KEY_BYTES + 8;
/// Epoch, highest fee and hundredths of a percent.
const FEE_BYTES: usize = 8 + 8 + 2;
/// All of an amount, in hundredths of a percent.
const WHOLE: u16 = 10_000;

/// The extensions of a mint or token account.
#[derive(Clone, Copy)]
pub(super) struct Extensions<'a>(pub &'a [u8]);

impl<'a> Extensions<'a> {
    /// The value of the first one of a type.
    fn get(&self, wanted: u16) -> Option<&'a [u8]> {
        let mut rest = self.0;
        loop {
            let (kind, tail) = rest.split_first_chunk()?;
            let (length, tail) = tail.split_first_chunk()?;
            let length = usize::from(u16::from_le_bytes(*length));
            let (value, next) = tail.split_at_checked(length)?;
            match u16::from_le_bytes(*kind) {
                // Room that is not used yet; nothing comes after it.
                0 => return None,
                kind if kind == wanted => return Some(value),
                _ => rest = next,
            }
        }
    }

    fn is_set(&self, kind: u16, place: usize) -> bool {
        self.get(kind)
            .and_then(|value| value.get(place))
            .is_some_and(|byte| *byte != 0)
    }

    /// Of a token account: whether the token program refuses what comes without a memo.
    pub fn demands_memo(&self) -> bool {
        self.is_set(MEMO_TRANSFER, 0)
    }

    /// Of a mint: whether accounts are frozen from the start.
    pub fn freezes_new_accounts(&self) -> bool {
        let state = self.get(DEFAULT_ACCOUNT_STATE).and_then(<[u8]>::first);
        state == Some(&FROZEN)
    }

    /// Of a mint: why no plain transfer of it can pass.
    pub fn blocker(&self) -> Option<&'static str> {
        if self.get(NON_TRANSFERABLE).is_some() {
            return Some("cannot be transferred: the token stays with its owner (NonTransferable)");
        }
        if self.is_set(PAUSABLE, KEY_BYTES) {
            return Some("is paused by its issuer and cannot be transferred now (Pausable)");
        }
        let hook = self
            .get(TRANSFER_HOOK)
            .and_then(|hook| hook.get(KEY_BYTES..));
        if hook.is_some_and(|program| program.iter().any(|byte| *byte != 0)) {
            return Some(
                "calls a program of its issuer with each transfer (TransferHook), which needs accounts that only a \
                 transaction built elsewhere can name",
            );
        }
        None
    }

    /// Of a mint: what it takes of each transfer.
    pub fn transfer_fees(&self) -> Option<TransferFees> {
        let fees = self.get(TRANSFER_FEE_CONFIG)?.get(OLDER_FEE..)?;
        let (older, newer) = fees.split_at_checked(FEE_BYTES)?;
        let (_, older) = scheduled(older)?;
        let (newer_from, newer) = scheduled(newer)?;
        Some(TransferFees {
            older,
            newer,
            newer_from,
        })
    }
}

/// A fee, and the epoch from which on it is taken.
fn scheduled(bytes: &[u8]) -> Option<(u64, TransferFee)> {
    let (epoch, rest) = bytes.split_first_chunk()?;
    let (most, rest) = rest.split_first_chunk()?;
    let basis_points = u16::from_le_bytes(*rest.first_chunk()?);
    let fee = TransferFee {
        basis_points,
        most: u64::from_le_bytes(*most),
    };
    Some((u64::from_le_bytes(*epoch), fee))
}

/// What a mint takes of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferFee {
    /// Hundredths of a percent of the amount: 0 to 10000.
    pub basis_points: u16,
    /// The highest fee, in the token's smallest unit.
    pub most: u64,
}

impl TransferFee {
    /// The fee for an amount, rounded up as the token program does it, in the token's smallest unit.
    /// `None` where it is more than the amount.
    pub fn of(&self, amount: u64) -> Option<u64> {
        if self.basis_points > WHOLE {
            return None;
        }
        let share = u128::from(amount) * u128::from(self.basis_points);
        let fee = share.div_ceil(u128::from(WHOLE));
        u64::try_from(fee).ok().map(|fee| fee.min(self.most))
    }
}

/// The fees of a mint, which its issuer changes some epochs ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferFees {
    older: TransferFee,
    newer: TransferFee,
    newer_from: u64,
}

impl TransferFees {
    /// The one of an epoch.
    pub fn at(&self, epoch: u64) -> TransferFee {
        if epoch >= self.newer_from {
            self.newer
        } else {
            self.older
        }
    }

    /// The one of every epoch, where it is the same.
    pub fn fixed(&self) -> Option<TransferFee> {
        (self.older == self.newer).then_some(self.newer)
    }
}
