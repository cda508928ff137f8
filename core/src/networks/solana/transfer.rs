//! Transfers that are built here.

use solana_hash::Hash;
use solana_message::{Instruction, Message, VersionedMessage};
use solana_pubkey::Pubkey;
use solana_system_interface::instruction::transfer;
use spl_associated_token_account_interface::instruction::create_associated_token_account_idempotent;
use spl_token_interface::instruction::transfer_checked;

use super::{
    address::{bytes_32, parse_key},
    chain_data::{ChainData, ComputeBudget, Queries},
    cost::budget_instructions,
    effect::account,
    payload::{SolanaCluster, SolanaTokenTransfer, SolanaTransfer},
    token::{TOKEN, TOKEN_2022, TokenChainData, associated_account, token_program},
    wire::WireTransaction,
};

use crate::{
    fault::{ExecuteCode, Fault},
    networks::rules::{SigningInput, Unsigned, unexpected_chain_data},
    signature::Curve,
};

/// The most that a transfer may compute, in units. Of the coin: twenty times what it takes (150, and
/// 150 for each setting).
const MOST_NATIVE_UNITS: u32 = 10_000;
/// Of a token, and of one whose account is opened first: what the network gives where nothing is said.
const MOST_TOKEN_UNITS: u32 = 200_000;
const MOST_OPENING_UNITS: u32 = 400_000;

/// What a transfer is given at least, whatever a node says: one whose limit is too low fails on the chain. Of the coin: a
/// fifth above what it takes, which is the same everywhere. Of a token, and of one whose account is opened first:
/// above what the programs take for mints without extensions.
const LEAST_NATIVE_UNITS: u32 = 540;
const LEAST_TOKEN_UNITS: u32 = 10_000;
const LEAST_OPENING_UNITS: u32 = 40_000;

/// TransferCheckedWithFee of Token-2022: the transfer fee extension, and its instruction.
const TRANSFER_WITH_FEE: [u8; 2] = [26, 1];

/// What a transfer does, and the least and the most that it is let compute.
struct TransferPlan {
    instructions: Vec<Instruction>,
    least_units: u32,
    most_units: u32,
}

pub(super) fn send_native(
    send: &SolanaTransfer,
    chain_data: &ChainData,
) -> Result<Unsigned, Fault> {
    if chain_data.token.is_some() {
        return Err(unexpected_chain_data());
    }
    transfer_message(&send.from, plan_native(send)?, chain_data)
}

fn plan_native(send: &SolanaTransfer) -> Result<TransferPlan, Fault> {
    let (from, to) = (field_key("from", &send.from)?, field_key("to", &send.to)?);
    Ok(TransferPlan {
        instructions: vec![transfer(&from, &to, send.lamports)],
        least_units: LEAST_NATIVE_UNITS,
        most_units: MOST_NATIVE_UNITS,
    })
}

/// A transaction of our own: a legacy message that the sender pays for.
fn transfer_message(
    from: &str,
    plan: TransferPlan,
    chain_data: &ChainData,
) -> Result<Unsigned, Fault> {
    let blockhash = bytes_32(&chain_data.recent_blockhash)
        .map(Hash::new_from_array)
        .ok_or_else(|| Fault::bug("the recent blockhash is not base58 of 32 bytes"))?;
    let mut instructions = match &chain_data.compute {
        // Each unit costs, and how many there are is a node's word.
        Some(compute) if !(1..=plan.most_units).contains(&compute.unit_limit) => {
            return Err(Fault::bug("the limit of computation is out of range"));
        }
        Some(compute) => budget_instructions(compute),
        None => Vec::new(),
    };
    instructions.extend(plan.instructions);
    let from = field_key("from", from)?;
    let message = Message::new_with_blockhash(&instructions, Some(&from), &blockhash);
    let transaction =
        WireTransaction::unsigned(VersionedMessage::Legacy(message)).map_err(Fault::bug)?;
    Ok(Unsigned {
        bytes: transaction.bytes().to_vec(),
        signing: vec![input(transaction.message_bytes())],
    })
}

/// An address of the payload.
pub(super) fn field_key(name: &str, text: &str) -> Result<Pubkey, Fault> {
    parse_key(text).map_err(|error| Fault::field(name, error))
}

/// Builds the transfer of a token.
pub(super) fn send_token(
    send: &SolanaTokenTransfer,
    chain_data: &ChainData,
) -> Result<Unsigned, Fault> {
    let known = chain_data
        .token
        .as_deref()
        .ok_or_else(unexpected_chain_data)?;
    transfer_message(&send.from, plan_token(send, known)?, chain_data)
}

fn plan_token(send: &SolanaTokenTransfer, known: &TokenChainData) -> Result<TransferPlan, Fault> {
    let (from, to) = (field_key("from", &send.from)?, field_key("to", &send.to)?);
    let mint = field_key("mintAddress", &send.mint)?;
    let program = token_program(&known.program)
        .ok_or_else(|| Fault::field("mintAddress", "is not a token"))?;
    if send.decimals.is_some_and(|given| given != known.decimals) {
        let problem = "do not match the token's; omit or correct them";
        return Err(Fault::field("decimals", problem));
    }
    // Tokens that are sent to the token account of a token account are lost.
    if let Some(recipient_program) = &known.recipient_program
        && token_program(recipient_program).is_some()
    {
        let problem = "belongs to a token program: give the address of the recipient's wallet, not \
                       that of a token account or mint";
        return Err(Fault::field("to", problem));
    }
    match &known.sender_account_owner {
        Some(owner) if *owner == send.from => {}
        Some(_) => {
            let problem = "no longer owns its account for this token";
            return Err(Fault::field("from", problem));
        }
        None => {
            return Err(Fault::field("from", "holds none of this token")
                .with_execute_code(ExecuteCode::InsufficientFunds));
        }
    }
    let mut instructions = Vec::with_capacity(4);
    match &known.recipient_account_owner {
        Some(owner) if *owner == send.to => {}
        Some(_) => {
            let problem = "no longer owns its account for this token; use another address";
            return Err(Fault::field("to", problem));
        }
        None => instructions.push(create_associated_token_account_idempotent(
            &from, &to, &mint, &program,
        )),
    }
    let opens = !instructions.is_empty();
    // The crate makes it for the Token program only.
    let mut transfer = transfer_checked(
        &TOKEN,
        &associated_account(&from, &mint, &program),
        &mint,
        &associated_account(&to, &mint, &program),
        &from,
        &[],
        send.amount,
        known.decimals,
    )
    .map_err(Fault::bug)?;
    transfer.program_id = program;
    if let Some(fee) = &known.transfer_fee {
        if program == TOKEN {
            return Err(Fault::bug("the Token program has no transfer fees"));
        }
        let fee = fee
            .of(send.amount)
            .filter(|fee| *fee < send.amount || send.amount == 0)
            .ok_or_else(|| Fault::field("mintAddress", "takes all as a transfer fee"))?;
        // The same accounts.
        transfer.data = [
            &TRANSFER_WITH_FEE[..],
            &send.amount.to_le_bytes(),
            &[known.decimals],
            &fee.to_le_bytes(),
        ]
        .concat();
    }
    instructions.push(transfer);
    let (least_units, most_units) = if opens {
        (LEAST_OPENING_UNITS, MOST_OPENING_UNITS)
    } else {
        (LEAST_TOKEN_UNITS, MOST_TOKEN_UNITS)
    };
    Ok(TransferPlan {
        instructions,
        least_units,
        most_units,
    })
}

/// The transfer fee that a transaction of [`send_token`] names, signed or not, in the token's smallest
/// unit.
pub fn transfer_fee(transaction: &WireTransaction) -> Option<u64> {
    let message = transaction.message();
    let instructions = message.instructions().iter();
    let mut fees = instructions.filter_map(|instruction| {
        let program = account(message, instruction.program_id_index)?.named()?;
        if program != TOKEN_2022 {
            return None;
        }
        let fee = instruction
            .data
            .strip_prefix(&TRANSFER_WITH_FEE)?
            .get(9..)?;
        Some(u64::from_le_bytes(*fee.first_chunk()?))
    });
    fees.next()
}

/// A transfer to be tried by a node before it is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferSimulation {
    /// The transaction without signature, with a blockhash of zeros.
    pub transaction: Vec<u8>,
    /// The accounts that it writes, base58.
    pub writable: Vec<String>,
    /// The least that its kind is let compute, in units, whatever nodes say.
    pub least_units: u32,
    /// The most that its kind may compute, in units: what holds where no node can say it.
    pub most_units: u32,
}

/// The transaction of which it is to be asked what it computes and what that costs. `token` is what is
/// known of the token, when one is sent.
///
/// # Errors
/// Those that building it has; [`crate::fault::Class::Bug`] also when the queries ask for none of it.
pub fn trial(
    queries: &Queries,
    token: Option<&TokenChainData>,
) -> Result<TransferSimulation, Fault> {
    let wanted = queries.compute.as_ref().ok_or_else(unexpected_chain_data)?;
    let cluster = if queries.chain_id == SolanaCluster::SonicSvm.chain_id() {
        SolanaCluster::SonicSvm
    } else {
        SolanaCluster::Solana
    };
    let (from, to) = (wanted.from.clone(), wanted.to.clone());
    let plan = match (&queries.token, token) {
        (None, None) => plan_native(&SolanaTransfer {
            cluster,
            from,
            to,
            lamports: wanted.amount,
            level: None,
        })?,
        (Some(asked), Some(known)) => {
            let send = SolanaTokenTransfer {
                cluster,
                from,
                to,
                mint: asked.mint.clone(),
                amount: wanted.amount,
                decimals: None,
                level: None,
            };
            plan_token(&send, known)?
        }
        _ => return Err(unexpected_chain_data()),
    };
    let (least_units, most_units) = (plan.least_units, plan.most_units);
    let chain_data = ChainData {
        recent_blockhash: Hash::default().to_string(),
        token: None,
        // Any price, for the units that its instruction takes.
        compute: Some(ComputeBudget {
            unit_limit: most_units,
            unit_price: 1,
        }),
    };
    let unsigned = transfer_message(&wanted.from, plan, &chain_data)?;
    let transaction = WireTransaction::parse(&unsigned.bytes).map_err(Fault::bug)?;
    let message = transaction.message();
    let header = message.header();
    let keys = message.static_account_keys();
    let signers = usize::from(header.num_required_signatures);
    let written_signers = signers.saturating_sub(header.num_readonly_signed_accounts.into());
    let written = keys
        .len()
        .saturating_sub(header.num_readonly_unsigned_accounts.into());
    let is_written = |place: usize| place < written_signers || (signers..written).contains(&place);
    let writable = keys
        .iter()
        .enumerate()
        .filter(|(place, _)| is_written(*place));
    Ok(TransferSimulation {
        writable: writable.map(|(_, key)| key.to_string()).collect(),
        transaction: unsigned.bytes,
        least_units,
        most_units,
    })
}

pub(super) fn input(message: &[u8]) -> SigningInput {
    SigningInput {
        curve: Curve::Ed25519,
        message: message.to_vec(),
    }
}
