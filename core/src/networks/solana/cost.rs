//! The most that a transaction can cost besides what it sends.

use solana_message::{Instruction, VersionedMessage};
use solana_pubkey::Pubkey;
use spl_associated_token_account_interface::program::ID as ASSOCIATED_TOKEN;

use super::{
    chain_data::ComputeBudget,
    effect::{COMPUTE_BUDGET, account},
    token::TOKEN,
};

/// The base fee of a signature.
const LAMPORTS_PER_SIGNATURE: u64 = 5000;

/// What an instruction may compute when the transaction sets no limit; those of the compute budget
/// program get less. All as in Agave; older nodes allow no more.
const UNITS_PER_INSTRUCTION: u64 = 200_000;
const UNITS_PER_BUDGET_INSTRUCTION: u64 = 3_000;
/// The most that a transaction may compute.
const MOST_UNITS: u64 = 1_400_000;
const MICRO_LAMPORTS_PER_LAMPORT: u128 = 1_000_000;

/// What an account must hold for each of its bytes, and for this many bytes that it has on top
/// (the rent sysvar: 3,480 lamports per byte and year, two years).
const LAMPORTS_PER_BYTE: u64 = 6960;
const BYTES_ON_TOP: u64 = 128;
/// A token account of the Token program.
const TOKEN_ACCOUNT_BYTES: u64 = 165;
/// The largest new one of Token-2022: 165 and its type, then the extensions that mints ask for, each
/// with 4 bytes in front (immutable owner 0, transfer fee 8, transfer hook 1, not transferable 0,
/// pausable 0).
const TOKEN_2022_ACCOUNT_BYTES: u64 = 195;

/// Programs that verify signatures; each costs as much as one of the transaction.
const VERIFIERS: [Pubkey; 3] = [
    Pubkey::from_str_const("Ed25519SigVerify111111111111111111111111111"),
    Pubkey::from_str_const("KeccakSecp256k11111111111111111111111111111"),
    Pubkey::from_str_const("Secp256r1SigVerify1111111111111111111111111"),
];

/// The most lamports that a transaction costs beside what it sends, no matter who pays them: base fee,
/// priority fee, and the deposits of the token accounts that it plainly opens, which go to the
/// owners of those accounts. What programs take when they run is not known.
///
/// Where the network would refuse the transaction (a setting twice), the highest counts.
pub fn most(message: &VersionedMessage) -> u128 {
    let mut signatures = u64::from(message.header().num_required_signatures);
    let mut units_by_default: u64 = 0;
    let mut units_limit: Option<u64> = None;
    let mut price: u64 = 0;
    let mut deposits: u64 = 0;
    for instruction in message.instructions() {
        let named = |index: u8| account(message, index).and_then(|account| account.named());
        let program = named(instruction.program_id_index);
        let data = instruction.data.as_slice();
        let mut units = UNITS_PER_INSTRUCTION;
        if program == Some(COMPUTE_BUDGET) {
            units = UNITS_PER_BUDGET_INSTRUCTION;
            match budget(data) {
                Some(BudgetSetting::Limit(limit)) => {
                    units_limit = units_limit.max(Some(limit.into()))
                }
                Some(BudgetSetting::Price(micro_lamports)) => price = price.max(micro_lamports),
                None => {}
            }
        } else if program.is_some_and(|program| VERIFIERS.contains(&program)) {
            let verified = data.first().copied().unwrap_or_default();
            signatures = signatures.saturating_add(verified.into());
        } else if program == Some(ASSOCIATED_TOKEN) && matches!(data, [] | [0 | 1, ..]) {
            // Create, whose tag may be left out, and CreateIdempotent.
            let of_token = instruction.accounts.get(5).and_then(|index| named(*index));
            let bytes = if of_token == Some(TOKEN) {
                TOKEN_ACCOUNT_BYTES
            } else {
                TOKEN_2022_ACCOUNT_BYTES
            };
            deposits = deposits.saturating_add((BYTES_ON_TOP + bytes) * LAMPORTS_PER_BYTE);
        }
        units_by_default = units_by_default.saturating_add(units);
    }
    let units = units_limit.unwrap_or(units_by_default).min(MOST_UNITS);
    let priority = (u128::from(price) * u128::from(units)).div_ceil(MICRO_LAMPORTS_PER_LAMPORT);
    let base = u128::from(signatures) * u128::from(LAMPORTS_PER_SIGNATURE);
    base + priority + u128::from(deposits)
}

/// The price per unit of computation that a transaction names, in micro-lamports, no matter who pays it. Where the
/// network would refuse it (named twice), the highest counts.
pub fn price(message: &VersionedMessage) -> u64 {
    let is_budget = |index: u8| {
        let program = account(message, index).and_then(|account| account.named());
        program == Some(COMPUTE_BUDGET)
    };
    let instructions = message.instructions().iter();
    let prices = instructions
        .filter(|instruction| is_budget(instruction.program_id_index))
        .filter_map(|instruction| match budget(&instruction.data)? {
            BudgetSetting::Price(micro_lamports) => Some(micro_lamports),
            BudgetSetting::Limit(_) => None,
        });
    prices.max().unwrap_or(0)
}

/// The instructions by which a transaction says what it may compute and pays for that. A price of
/// nothing takes no instruction.
pub(super) fn budget_instructions(compute: &ComputeBudget) -> Vec<Instruction> {
    let instruction = |variant: u8, value: &[u8]| Instruction {
        program_id: COMPUTE_BUDGET,
        accounts: Vec::new(),
        data: [&[variant], value].concat(),
    };
    let mut instructions = vec![instruction(SET_LIMIT, &compute.unit_limit.to_le_bytes())];
    if compute.unit_price > 0 {
        instructions.push(instruction(SET_PRICE, &compute.unit_price.to_le_bytes()));
    }
    instructions
}

/// SetComputeUnitLimit and SetComputeUnitPrice.
const SET_LIMIT: u8 = 2;
const SET_PRICE: u8 = 3;

/// A setting that bears on the fee.
enum BudgetSetting {
    /// Units of computation.
    Limit(u32),
    /// Micro-lamports per unit.
    Price(u64),
}

/// Reads an instruction of the compute budget program (borsh: the number of the variant, then the
/// value). As the program does, it does not mind what comes after.
fn budget(data: &[u8]) -> Option<BudgetSetting> {
    match data.split_first()? {
        (&SET_LIMIT, value) => Some(BudgetSetting::Limit(u32::from_le_bytes(
            *value.first_chunk()?,
        ))),
        (&SET_PRICE, value) => Some(BudgetSetting::Price(u64::from_le_bytes(
            *value.first_chunk()?,
        ))),
        _ => None,
    }
}
