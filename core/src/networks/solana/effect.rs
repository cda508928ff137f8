//! What the instructions of a message visibly do, and how two messages differ.

use std::fmt;

use solana_message::{VersionedMessage, compiled_instruction::CompiledInstruction};
use solana_pubkey::Pubkey;
use solana_system_interface::program::ID as SYSTEM;
use spl_token_interface::instruction::TokenInstruction;

use super::token::{TOKEN, TOKEN_2022};

pub(super) const COMPUTE_BUDGET: Pubkey =
    Pubkey::from_str_const("ComputeBudget111111111111111111111111111111");

/// An account that an instruction is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountRef {
    /// Named by the message.
    Named(Pubkey),
    /// In a table on the chain: what stands there is not signed.
    Listed {
        /// The address lookup table.
        table: Pubkey,
        /// The place in it.
        index: u8,
    },
}

impl AccountRef {
    /// The address, when the message names it.
    pub fn named(&self) -> Option<Pubkey> {
        match self {
            AccountRef::Named(key) => Some(*key),
            AccountRef::Listed { .. } => None,
        }
    }
}

/// The address, or the table's and the place: `table[3]`.
impl fmt::Display for AccountRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccountRef::Named(key) => write!(f, "{key}"),
            AccountRef::Listed { table, index } => write!(f, "{table}[{index}]"),
        }
    }
}

/// Which token an instruction moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MovedToken {
    /// The one of this mint.
    Of(AccountRef),
    /// The one that this account holds: the instruction does not name its mint.
    In(AccountRef),
}

/// An amount that an instruction moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Movement {
    /// Who has to sign for it.
    pub authority: AccountRef,
    /// `None`: lamports.
    pub token: Option<MovedToken>,
    /// The account that it goes to; for tokens that is a token account, not its owner.
    pub to: AccountRef,
    /// In the smallest unit.
    pub amount: u64,
}

/// The account with an index of the message: first those that it names, then what its tables hold,
/// writable before read-only. `None` when there are not so many.
pub fn account(message: &VersionedMessage, index: u8) -> Option<AccountRef> {
    let index = usize::from(index);
    let keys = message.static_account_keys();
    if let Some(key) = keys.get(index) {
        return Some(AccountRef::Named(*key));
    }
    let tables = message.address_table_lookups()?.iter();
    let writable = tables
        .clone()
        .flat_map(|table| table.writable_indexes.iter().map(move |at| (table, *at)));
    let readonly =
        tables.flat_map(|table| table.readonly_indexes.iter().map(move |at| (table, *at)));
    let (table, index) = writable.chain(readonly).nth(index - keys.len())?;
    Some(AccountRef::Listed {
        table: table.account_key,
        index,
    })
}

/// What an instruction plainly moves, and the place of who signs for it among its accounts.
pub(super) fn movement(
    program: &Pubkey,
    data: &[u8],
    accounts: &[AccountRef],
) -> Option<(Movement, usize)> {
    let at = |place: usize| accounts.get(place).copied();
    if *program == SYSTEM {
        let (from, to, lamports) = lamports(data)?;
        let moved = Movement {
            authority: at(from)?,
            token: None,
            to: at(to)?,
            amount: lamports,
        };
        Some((moved, from))
    } else if *program == TOKEN || *program == TOKEN_2022 {
        let (token, to, authority, amount) = match TokenInstruction::unpack(data) {
            Ok(TokenInstruction::Transfer { amount }) => (MovedToken::In(at(0)?), 1, 2, amount),
            Ok(TokenInstruction::TransferChecked { amount, .. }) => {
                (MovedToken::Of(at(1)?), 2, 3, amount)
            }
            // Token-2022: TransferCheckedWithFee of the transfer fee extension.
            _ => match data {
                [26, 1, rest @ ..] => {
                    let amount = u64::from_le_bytes(*rest.first_chunk()?);
                    (MovedToken::Of(at(1)?), 2, 3, amount)
                }
                _ => return None,
            },
        };
        let moved = Movement {
            authority: at(authority)?,
            token: Some(token),
            to: at(to)?,
            amount,
        };
        Some((moved, authority))
    } else {
        None
    }
}

fn movement_of(message: &VersionedMessage, instruction: &CompiledInstruction) -> Option<Movement> {
    let program = account(message, instruction.program_id_index)?.named()?;
    let accounts = instruction.accounts.iter();
    let accounts: Option<Vec<AccountRef>> =
        accounts.map(|index| account(message, *index)).collect();
    Some(movement(&program, &instruction.data, &accounts?)?.0)
}

/// An instruction of the system program that takes lamports from a signer: the places of who gives
/// and who gets among its accounts, and how many (bincode: the number of the variant in four bytes,
/// then the fields).
fn lamports(data: &[u8]) -> Option<(usize, usize, u64)> {
    let (variant, fields) = data.split_first_chunk()?;
    let (from, to, fields) = match u32::from_le_bytes(*variant) {
        // CreateAccount, Transfer
        0 | 2 => (0, 1, fields),
        // CreateAccountWithSeed: base and seed stand before the lamports.
        3 => {
            let (length, seed) = fields.get(32..)?.split_first_chunk()?;
            let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
            (0, 1, seed.get(length..)?)
        }
        // CreateAccountAllowPrefund
        13 => (1, 0, fields),
        _ => return None,
    };
    Some((from, to, u64::from_le_bytes(*fields.first_chunk()?)))
}

/// The first thing in which `shown` differs from `built`; `None` when they are the same.
pub fn difference(built: &VersionedMessage, shown: &VersionedMessage) -> Option<&'static str> {
    if built.static_account_keys().first() != shown.static_account_keys().first() {
        return Some("from");
    }
    let pairs = || built.instructions().iter().zip(shown.instructions());
    let program =
        |message, instruction: &CompiledInstruction| account(message, instruction.program_id_index);
    if built.instructions().len() != shown.instructions().len() {
        return Some("instructions");
    }
    if pairs().any(|(ours, theirs)| program(built, ours) != program(shown, theirs)) {
        return Some("program");
    }
    for (ours, theirs) in pairs() {
        let (Some(ours), Some(theirs)) = (movement_of(built, ours), movement_of(shown, theirs))
        else {
            continue;
        };
        if ours.token != theirs.token {
            return Some("token");
        }
        if ours.to != theirs.to {
            return Some("recipient");
        }
        if ours.amount != theirs.amount {
            return Some("amount");
        }
    }
    let accounts = |message, instruction: &CompiledInstruction| -> Vec<_> {
        let indices = instruction.accounts.iter();
        indices.map(|index| account(message, *index)).collect()
    };
    if pairs().any(|(ours, theirs)| accounts(built, ours) != accounts(shown, theirs)) {
        return Some("accounts");
    }
    if let Some((ours, _)) = pairs().find(|(ours, theirs)| ours.data != theirs.data) {
        let of_budget = program(built, ours).and_then(|program| program.named());
        return Some(if of_budget == Some(COMPUTE_BUDGET) {
            "computeBudget"
        } else {
            "data"
        });
    }
    if built.recent_blockhash() != shown.recent_blockhash() {
        return Some("recentBlockhash");
    }
    (built != shown).then_some("message")
}
