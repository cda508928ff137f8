//! The encoding of forwarded commands and answers: BCS with the version first, messages in protobuf
//! (`tests/wire/forwarded-command-*` has samples).

use covault_core::{
    fault::Fault,
    ids::{TokenId, UserId, VaultId},
    token::{AdminRole, TokenAccess},
    trace::TraceParent,
};
use serde::{Deserialize, Serialize};

use super::{ForwardOutcome, ForwardedCommand};
use crate::{
    commands::{
        answer::{IdempotencyKey, OperationResponse},
        caller::{AdminCaller, Caller, Person, VaultScope},
    },
    store::rows,
};

#[derive(Serialize, Deserialize)]
struct EncodedCommand {
    recipient_version: u64,
    token: TokenId,
    /// `None`: every vault.
    vaults: Option<Vec<VaultId>>,
    access: TokenAccess,
    /// The role in the admin API, and the name of the token where it has one.
    admin: Option<(AdminRole, Option<String>)>,
    request_id: String,
    /// Who calls from the console, and the name.
    person: Option<(UserId, String)>,
    trace: TraceParent,
    method: String,
    request: Vec<u8>,
    /// The key, and the hash of the request.
    key: Option<(String, [u8; 32])>,
}

#[derive(Serialize, Deserialize)]
enum EncodedOutcome {
    Done {
        response: Vec<u8>,
        replayed: bool,
        body_mismatch: bool,
    },
    Refused(Fault),
    NotDone,
}

/// The bytes of a forwarded command.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] when it cannot be serialized.
pub fn encode_command(forwarded: &ForwardedCommand) -> Result<Vec<u8>, Fault> {
    let ForwardedCommand {
        recipient_version,
        caller,
        method,
        request,
        key,
    } = forwarded.clone();
    let Caller {
        token,
        vaults,
        access,
        admin,
        request_id,
        person,
        trace,
    } = caller;
    rows::encode(&EncodedCommand {
        recipient_version,
        token,
        vaults: match vaults {
            VaultScope::All => None,
            VaultScope::Only(vaults) => Some(vaults),
        },
        access,
        admin: admin.map(|admin| (admin.role, admin.token)),
        request_id,
        person: person.map(|person| (person.id, person.name)),
        trace,
        method,
        request,
        key: key.map(|key| (key.key, key.body_hash)),
    })
}

/// The forwarded command of such bytes.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] when this version cannot decode them.
pub fn decode_command(bytes: &[u8]) -> Result<ForwardedCommand, Fault> {
    let EncodedCommand {
        recipient_version,
        token,
        vaults,
        access,
        admin,
        request_id,
        person,
        trace,
        method,
        request,
        key,
    } = rows::decode(bytes)?;
    Ok(ForwardedCommand {
        recipient_version,
        caller: Caller {
            token,
            vaults: vaults.map_or(VaultScope::All, VaultScope::Only),
            access,
            admin: admin.map(|(role, token)| AdminCaller { role, token }),
            request_id,
            person: person.map(|(id, name)| Person { id, name }),
            trace,
        },
        method,
        request,
        key: key.map(|(key, body_hash)| IdempotencyKey { key, body_hash }),
    })
}

/// The bytes of an outcome.
///
/// # Errors
/// As [`encode_command`].
pub fn encode_outcome(outcome: ForwardOutcome) -> Result<Vec<u8>, Fault> {
    rows::encode(&match outcome {
        ForwardOutcome::Done(answer) => match *answer {
            Ok(OperationResponse {
                response,
                replayed,
                body_mismatch,
            }) => EncodedOutcome::Done {
                response,
                replayed,
                body_mismatch,
            },
            Err(fault) => EncodedOutcome::Refused(fault),
        },
        ForwardOutcome::NotDone => EncodedOutcome::NotDone,
        ForwardOutcome::NotKnown => return Err(Fault::bug("an unknown outcome")),
    })
}

/// The outcome of such bytes.
///
/// # Errors
/// As [`decode_command`].
pub fn decode_outcome(bytes: &[u8]) -> Result<ForwardOutcome, Fault> {
    Ok(match rows::decode(bytes)? {
        EncodedOutcome::Done {
            response,
            replayed,
            body_mismatch,
        } => ForwardOutcome::Done(Box::new(Ok(OperationResponse {
            response,
            replayed,
            body_mismatch,
        }))),
        EncodedOutcome::Refused(fault) => ForwardOutcome::Done(Box::new(Err(fault))),
        EncodedOutcome::NotDone => ForwardOutcome::NotDone,
    })
}

#[cfg(test)]
#[path = "form_tests.rs"]
mod tests;
