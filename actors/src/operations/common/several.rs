//! What commands about several signing requests have in common.

use std::collections::BTreeSet;

use covault_core::{
    approval::MAX_LIST,
    fault::{Class, Fault},
    ids::RequestId,
    schema::wire,
};

use super::lookup::request;
use crate::operations::{Home, HomeLookup, OperationCall};

/// Where such a command runs: where the first of them does that the caller can see. Others must not lead it elsewhere.
///
/// # Errors
/// When the store cannot be read.
pub async fn home(lookup: &HomeLookup<'_>, uuids: &[String]) -> Result<Home, Fault> {
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
pub async fn requests_of_one_vault(
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
                let problem = "belongs to another vault than the ones before it: make one call for each vault";
                return Err(Fault::field(field(), problem));
            }
            Err(fault) if *fault.class() != Class::Invalid => return Err(fault),
            _ => {}
        }
        ids.push(id);
    }
    Ok(ids)
}
/// What became of each of them: the approvals that it still lacks, or why it is as it was. Each stands for itself.
///
/// # Errors
/// What all of them failed with, where that is no matter of theirs, but of the service or of the caller.
pub fn results(
    ids: &[RequestId],
    outcomes: Vec<Result<u32, Fault>>,
) -> Result<Vec<wire::SigningRequestResult>, Fault> {
    if let Some(fault) = failure_of_all(&outcomes) {
        return Err(fault.clone());
    }
    let each = ids.iter().zip(outcomes);
    Ok(each.map(|(id, outcome)| result(*id, outcome)).collect())
}

fn failure_of_all(outcomes: &[Result<u32, Fault>]) -> Option<&Fault> {
    let first = outcomes.first()?.as_ref().err()?;
    let concerns_all = matches!(
        first.class(),
        Class::Unauthenticated | Class::Unavailable | Class::Limited | Class::Bug
    );
    let mut faults = outcomes.iter().map(|outcome| outcome.as_ref().err());
    let same = faults.all(|fault| fault.is_some_and(|fault| fault.class() == first.class()));
    (concerns_all && same).then_some(first)
}

fn result(id: RequestId, outcome: Result<u32, Fault>) -> wire::SigningRequestResult {
    let (remaining_approval_count, message) = match outcome {
        Ok(remaining) => (remaining, None),
        // What is wrong then is told to nobody, and what was done for the others is.
        Err(fault) if *fault.class() == Class::Bug => {
            tracing::error!(request = %id, ?fault, "a command about several requests failed for one of them");
            (
                0,
                Some("internal error, see the log of the service".to_owned()),
            )
        }
        Err(fault) => (0, Some(fault.message().to_owned())),
    };
    let unspecified = wire::ServiceErrorCode::Unspecified.into();
    wire::SigningRequestResult {
        uuid: id.to_string(),
        error: message.map(|message| wire::Error {
            message,
            code: Some(wire::error::Code::ServiceErrorCode(unspecified)),
        }),
        remaining_approval_count,
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn ids() -> [RequestId; 3] {
        [1, 2, 3].map(|number| RequestId::from_bytes([number; 16]))
    }

    /// What is said of each, or the fault of all.
    fn said(outcomes: [Result<u32, Fault>; 3]) -> Result<Vec<Result<u32, String>>, Fault> {
        let results = results(&ids(), outcomes.into())?;
        let uuids: Vec<_> = results.iter().map(|it| it.uuid.clone()).collect();
        assert_eq!(uuids, ids().map(|id| id.to_string()));
        let each = results.into_iter().map(|it| match it.error {
            Some(error) => Err(error.message),
            None => Ok(it.remaining_approval_count),
        });
        Ok(each.collect())
    }

    #[test]
    fn results__should_hide_nothing_that_was_done_behind_an_internal_error() {
        let said = said([Ok(2), Err(Fault::bug("a secret cause")), Ok(0)]).unwrap();
        let problem = "internal error, see the log of the service".to_owned();
        assert_eq!(said, [Ok(2), Err(problem), Ok(0)]);
    }

    #[test]
    fn results__should_be_the_fault_of_all_where_all_failed_for_what_is_not_theirs() {
        let limited = || Fault::new(Class::Limited, "too many");
        for fault in [
            Fault::unauthenticated(),
            Fault::unavailable("no store"),
            limited(),
            Fault::bug("cause"),
        ] {
            let all = said([1, 2, 3].map(|_| Err(fault.clone()))).unwrap_err();
            assert_eq!(
                (all.class(), all.message()),
                (fault.class(), fault.message())
            );
            // Of one that went well, or failed for what is its own, the caller is to hear.
            for other in [
                Ok(1),
                Err(Fault::invalid_uuid()),
                Err(Fault::new(Class::WrongState, "ended")),
            ] {
                for place in 0..3 {
                    let mut outcomes = [1, 2, 3].map(|_| Err(fault.clone()));
                    outcomes[place] = other.clone();
                    let said = said(outcomes).unwrap();
                    let expected = other.clone().map_err(|fault| fault.message().to_owned());
                    assert_eq!(said[place], expected);
                }
            }
        }
        let mixed = said([
            Err(limited()),
            Err(Fault::unavailable("no store")),
            Err(limited()),
        ]);
        assert_eq!(mixed.unwrap().len(), 3);
        let own = said([1, 2, 3].map(|_| Err(Fault::invalid_uuid()))).unwrap();
        assert_eq!(own, [1, 2, 3].map(|_| Err("Invalid uuid".to_owned())));
    }
}
