//! Transfers that are built here.

use solana_hash::Hash;
use solana_message::{Instruction, Message, VersionedMessage};
use solana_pubkey::Pubkey;
use solana_system_interface::instruction::transfer;
use spl_associated_token_account_interface::instruction::create_associated_token_account_idempotent;
use spl_token_interface::instruction::transfer_checked;

use super::{
    address::{bytes_32, parse_key},
    chain_data::ChainData,
    payload::{SolanaTokenTransfer, SolanaTransfer},
    token::{TOKEN, associated_account, token_program},
    wire::WireTransaction,
};

use crate::{
    fault::{ExecuteCode, Fault},
    networks::rules::{SigningInput, Unsigned, unexpected_chain_data},
    signature::Curve,
};

pub(super) fn send_native(
    send: &SolanaTransfer,
    chain_data: &ChainData,
) -> Result<Unsigned, Fault> {
    if chain_data.token.is_some() {
        return Err(unexpected_chain_data());
    }
    let (from, to) = (field_key("from", &send.from)?, field_key("to", &send.to)?);
    transfer_message(&from, &[transfer(&from, &to, send.lamports)], chain_data)
}

/// A transaction of our own: a legacy message that the sender pays for.
pub(super) fn transfer_message(
    from: &Pubkey,
    instructions: &[Instruction],
    chain_data: &ChainData,
) -> Result<Unsigned, Fault> {
    let blockhash = bytes_32(&chain_data.recent_blockhash)
        .map(Hash::new_from_array)
        .ok_or_else(|| Fault::bug("the recent blockhash is not base58 of 32 bytes"))?;
    let message = Message::new_with_blockhash(instructions, Some(from), &blockhash);
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
        .as_ref()
        .ok_or_else(unexpected_chain_data)?;
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
    let mut instructions = Vec::with_capacity(2);
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
    instructions.push(transfer);
    transfer_message(&from, &instructions, chain_data)
}

pub(super) fn input(message: &[u8]) -> SigningInput {
    SigningInput {
        curve: Curve::Ed25519,
        message: message.to_vec(),
    }
}
