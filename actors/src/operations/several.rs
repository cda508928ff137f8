//! What commands about several signing requests have in common.

use std::collections::BTreeSet;

use covault_core::{
    approval::MAX_LIST,
    fault::{Class, Fault},
    ids::RequestId,
    schema::wire,
};

use super::{Home, HomeLookup, OperationCall, lookup::request};

/// Where such a command runs: where the first of them does that the caller can see. Others must not lead it elsewhere.
///
/// # Errors
/// When the store cannot be read.
pub(super) async fn home(lookup: &HomeLookup<'_>, uuids: &[String]) -> Result<Home, Fault> {
    for uuid in uuids.iter().take(MAX_LIST) {
        let Ok(id) = uuid.parse::<RequestId>() else {
            continue;
        };
        match request(lookup.services, lookup.caller, id).await {
            Ok(request) => return Ok(Home::Vault(request.vault)),
            Err(fault) if *fault.class() == Class::Invalid => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(Home::AnyProcess)
}

/// The requests that a call names: all of one vault, so that the call runs where that is. What the caller cannot see is
/// left to each one's own result.
///
/// # Errors
/// [`Class::Invalid`] naming the entry.
pub(super) async fn requests_of_one_vault(
    call: &OperationCall<'_>,
    uuids: &[String],
) -> Result<Vec<RequestId>, Fault> {
    if !(1..=MAX_LIST).contains(&uuids.len()) {
        let problem = format_args!("must be 1 to {MAX_LIST} signing requests");
        return Err(Fault::field("uuids", problem));
    }
    let (mut ids, mut known, mut vault) = (Vec::new(), BTreeSet::new(), None);
    for (place, uuid) in uuids.iter().enumerate() {
        let field = || format!("uuids[{place}]");
        let id: RequestId = uuid.parse().map_err(|fault: Fault| fault.at(field()))?;
        if !known.insert(id) {
            return Err(Fault::field(field(), "is named twice"));
        }
        match request(call.services, call.caller, id).await {
            Ok(request) if *vault.get_or_insert(request.vault) != request.vault => {
                let problem =
                    "is of another vault than those before it: make a call for each vault";
                return Err(Fault::field(field(), problem));
            }
            Err(fault) if *fault.class() != Class::Invalid => return Err(fault),
            _ => {}
        }
        ids.push(id);
    }
    Ok(ids)
}
/// What became of one of them: the approvals that it still lacks, or why it is as it was.
///
/// # Errors
/// [`Class::Bug`]: what is wrong then is told to nobody.
pub(super) fn result(
    id: RequestId,
    outcome: Result<u32, Fault>,
) -> Result<wire::SigningRequestResult, Fault> {
    let (remaining_approval_count, error) = match outcome {
        Ok(remaining) => (remaining, None),
        Err(fault) if *fault.class() == Class::Bug => return Err(fault),
        Err(fault) => {
            let code =
                wire::error::Code::ServiceErrorCode(wire::ServiceErrorCode::Unspecified.into());
            let error = wire::Error {
                message: fault.message().to_owned(),
                code: Some(code),
            };
            (0, Some(error))
        }
    };
    Ok(wire::SigningRequestResult {
        uuid: id.to_string(),
        error,
        remaining_approval_count,
    })
}
