//! The encoding of forwarded commands and answers: BCS with the version first; what the schema has a
//! message for is that message in protobuf (`tests/wire/command_bus-*` has samples).

use covault_core::{
    fault::Fault,
    ids::{TokenId, VaultId},
    order::NodeId,
    schema::wire,
    scheme::Scheme,
    token::Access,
};
use prost::Message;
use serde::{Deserialize, Serialize};

use super::{ForwardOutcome, ForwardedCommand};
use crate::{
    gateway::{
        Caller, Command, IdempotencyKey, Receipt, Reshare, ShareBackup, Submitted, VaultScope,
        VaultView,
    },
    rows,
};

#[derive(Serialize, Deserialize)]
struct ForwardedCommandForm {
    recipient_version: u64,
    token: TokenId,
    /// `None`: every vault.
    vaults: Option<Vec<VaultId>>,
    access: Access,
    operator: bool,
    request_id: String,
    command: CommandForm,
    /// The key, and the hash of the body.
    idempotency: Option<(String, [u8; 32])>,
}

/// What is done where a vault is, or anywhere but by a process that only listens. The order counts.
#[derive(Serialize, Deserialize)]
enum CommandForm {
    CreateWallet(Vec<u8>),
    UpdateWallet(Vec<u8>),
    CreateSigningRequest(Vec<u8>),
    RejectSigningRequest(String),
    CreateBatchPayment(Vec<u8>),
    CreateVault(VaultForm),
    ReplaceSigners(VaultForm),
    ReshareVault {
        vault: String,
        to: Option<(u16, Vec<NodeId>)>,
        lost: Vec<NodeId>,
        schemes: Vec<Scheme>,
    },
    CancelReshare(String),
    BackupVault {
        vault: String,
        recipients: Vec<String>,
    },
    CreateDepositWallet(Vec<u8>),
}

#[derive(Serialize, Deserialize)]
struct VaultForm {
    name: String,
    threshold: u16,
    signers: Vec<NodeId>,
    ecdsa: Scheme,
}

#[derive(Serialize, Deserialize)]
enum DeliveryForm {
    Done {
        receipt: ReceiptForm,
        replayed: bool,
        body_mismatch: bool,
    },
    Refused(Fault),
    NotDone,
}

#[derive(Serialize, Deserialize)]
enum ReceiptForm {
    Wallet(Vec<u8>),
    SigningRequest(Vec<u8>),
    Rejected,
    BatchPayment(Vec<u8>),
    Vault(VaultView),
    Backups(Vec<ShareBackup>),
    Deposit(Vec<u8>),
}

/// The bytes of a forwarded command.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] for a command that is never sent: it can be done by any
/// process.
pub fn encode_command(forwarded: &ForwardedCommand) -> Result<Vec<u8>, Fault> {
    let ForwardedCommand {
        recipient_version,
        caller,
        command,
        idempotency,
    } = forwarded.clone();
    let Caller {
        token,
        vaults,
        access,
        operator,
        request_id,
    } = caller;
    rows::encode(&ForwardedCommandForm {
        recipient_version,
        token,
        vaults: match vaults {
            VaultScope::All => None,
            VaultScope::Only(vaults) => Some(vaults),
        },
        access,
        operator,
        request_id,
        command: command_form(command)?,
        idempotency: idempotency.map(|IdempotencyKey { key, body_hash }| (key, body_hash)),
    })
}

fn command_form(command: Command) -> Result<CommandForm, Fault> {
    Ok(match command {
        Command::CreateWallet(request) => CommandForm::CreateWallet(request.encode_to_vec()),
        Command::UpdateWallet(request) => CommandForm::UpdateWallet(request.encode_to_vec()),
        Command::CreateSigningRequest(request) => {
            CommandForm::CreateSigningRequest(request.encode_to_vec())
        }
        Command::RejectSigningRequest { uuid } => CommandForm::RejectSigningRequest(uuid),
        Command::CreateBatchPayment(request) => {
            CommandForm::CreateBatchPayment(request.encode_to_vec())
        }
        Command::CreateVault {
            name,
            threshold,
            signers,
            ecdsa,
        } => CommandForm::CreateVault(VaultForm {
            name,
            threshold,
            signers,
            ecdsa,
        }),
        Command::ReplaceSigners {
            name,
            threshold,
            signers,
            ecdsa,
        } => CommandForm::ReplaceSigners(VaultForm {
            name,
            threshold,
            signers,
            ecdsa,
        }),
        Command::ReshareVault {
            vault,
            reshare: Reshare { to, lost, schemes },
        } => CommandForm::ReshareVault {
            vault,
            to,
            lost,
            schemes,
        },
        Command::CancelReshare { vault } => CommandForm::CancelReshare(vault),
        Command::BackupVault { vault, recipients } => {
            CommandForm::BackupVault { vault, recipients }
        }
        Command::CreateDepositWallet(request) => {
            CommandForm::CreateDepositWallet(request.encode_to_vec())
        }
        Command::Resimulate { .. }
        | Command::AdmitNode { .. }
        | Command::RemoveNode(_)
        | Command::CreateToken(_)
        | Command::RevokeToken(_)
        | Command::ConfigureSweep(_)
        | Command::AddWatchAddress(_)
        | Command::BeginBackup
        | Command::LetClientsIn => {
            return Err(Fault::bug("a command that is done by any process"));
        }
    })
}

/// The forwarded command of these bytes.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] when they are not those of one.
pub fn decode_command(bytes: &[u8]) -> Result<ForwardedCommand, Fault> {
    let ForwardedCommandForm {
        recipient_version,
        token,
        vaults,
        access,
        operator,
        request_id,
        command,
        idempotency,
    } = rows::decode(bytes)?;
    Ok(ForwardedCommand {
        recipient_version,
        caller: Caller {
            token,
            vaults: match vaults {
                None => VaultScope::All,
                Some(vaults) => VaultScope::Only(vaults),
            },
            access,
            operator,
            request_id,
        },
        command: command_of(command)?,
        idempotency: idempotency.map(|(key, body_hash)| IdempotencyKey { key, body_hash }),
    })
}

fn command_of(form: CommandForm) -> Result<Command, Fault> {
    Ok(match form {
        CommandForm::CreateWallet(bytes) => Command::CreateWallet(message(&bytes)?),
        CommandForm::UpdateWallet(bytes) => Command::UpdateWallet(message(&bytes)?),
        CommandForm::CreateSigningRequest(bytes) => Command::CreateSigningRequest(message(&bytes)?),
        CommandForm::RejectSigningRequest(uuid) => Command::RejectSigningRequest { uuid },
        CommandForm::CreateBatchPayment(bytes) => Command::CreateBatchPayment(message(&bytes)?),
        CommandForm::CreateVault(VaultForm {
            name,
            threshold,
            signers,
            ecdsa,
        }) => Command::CreateVault {
            name,
            threshold,
            signers,
            ecdsa,
        },
        CommandForm::ReplaceSigners(VaultForm {
            name,
            threshold,
            signers,
            ecdsa,
        }) => Command::ReplaceSigners {
            name,
            threshold,
            signers,
            ecdsa,
        },
        CommandForm::ReshareVault {
            vault,
            to,
            lost,
            schemes,
        } => Command::ReshareVault {
            vault,
            reshare: Reshare { to, lost, schemes },
        },
        CommandForm::CancelReshare(vault) => Command::CancelReshare { vault },
        CommandForm::BackupVault { vault, recipients } => {
            Command::BackupVault { vault, recipients }
        }
        CommandForm::CreateDepositWallet(bytes) => Command::CreateDepositWallet(message(&bytes)?),
    })
}

/// The bytes of the outcome of a forwarded command.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] for a receipt of no command that is sent.
pub fn encode_delivery(outcome: ForwardOutcome) -> Result<Vec<u8>, Fault> {
    rows::encode(&match outcome {
        ForwardOutcome::NotDone => DeliveryForm::NotDone,
        ForwardOutcome::NotKnown => {
            return Err(Fault::bug("who did it knows what became of it"));
        }
        ForwardOutcome::Answer(answer) => match *answer {
            Err(fault) => DeliveryForm::Refused(fault),
            Ok(Submitted {
                receipt,
                replayed,
                body_mismatch,
            }) => DeliveryForm::Done {
                receipt: receipt_form(receipt)?,
                replayed,
                body_mismatch,
            },
        },
    })
}

fn receipt_form(receipt: Receipt) -> Result<ReceiptForm, Fault> {
    Ok(match receipt {
        Receipt::Wallet(wallet) => ReceiptForm::Wallet(wallet.encode_to_vec()),
        Receipt::SigningRequest(request) => ReceiptForm::SigningRequest(request.encode_to_vec()),
        Receipt::Rejected => ReceiptForm::Rejected,
        Receipt::BatchPayment(batch) => ReceiptForm::BatchPayment(batch.encode_to_vec()),
        Receipt::Vault(vault) => ReceiptForm::Vault(vault),
        Receipt::Backups(backups) => ReceiptForm::Backups(backups),
        Receipt::Deposit(wallet) => ReceiptForm::Deposit(wallet.encode_to_vec()),
        Receipt::Simulation(_)
        | Receipt::NodesChanged
        | Receipt::TokenMade(_)
        | Receipt::Token(_)
        | Receipt::Sweep(_)
        | Receipt::Watch(_)
        | Receipt::Backup(_)
        | Receipt::ClientsLetIn => {
            return Err(Fault::bug("the receipt of a command that is never sent"));
        }
    })
}

/// The outcome of a forwarded command, from its bytes.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] when they are not those of an answer.
pub fn decode_delivery(bytes: &[u8]) -> Result<ForwardOutcome, Fault> {
    Ok(match rows::decode(bytes)? {
        DeliveryForm::NotDone => ForwardOutcome::NotDone,
        DeliveryForm::Refused(fault) => ForwardOutcome::Answer(Box::new(Err(fault))),
        DeliveryForm::Done {
            receipt,
            replayed,
            body_mismatch,
        } => ForwardOutcome::Answer(Box::new(Ok(Submitted {
            receipt: receipt_of(receipt)?,
            replayed,
            body_mismatch,
        }))),
    })
}

fn receipt_of(form: ReceiptForm) -> Result<Receipt, Fault> {
    Ok(match form {
        ReceiptForm::Wallet(bytes) => Receipt::Wallet(message::<wire::Wallet>(&bytes)?),
        ReceiptForm::SigningRequest(bytes) => Receipt::SigningRequest(Box::new(message(&bytes)?)),
        ReceiptForm::Rejected => Receipt::Rejected,
        ReceiptForm::BatchPayment(bytes) => Receipt::BatchPayment(Box::new(message(&bytes)?)),
        ReceiptForm::Vault(vault) => Receipt::Vault(vault),
        ReceiptForm::Backups(backups) => Receipt::Backups(backups),
        ReceiptForm::Deposit(bytes) => Receipt::Deposit(message(&bytes)?),
    })
}

fn message<M: Message + Default>(bytes: &[u8]) -> Result<M, Fault> {
    M::decode(bytes).map_err(Fault::bug)
}

#[cfg(test)]
#[path = "form_tests.rs"]
mod tests;
