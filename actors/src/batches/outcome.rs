//! What became of a signing request of a batch, with those that were made to replace its transaction.

use covault_core::{
    fault::Fault,
    ids::RequestId,
    networks::{Network, Replacement},
    request::{Inclusion, RequestState, SigningRequest, TransactionState},
};

use crate::{
    requests::replacing::ReplacementFamily,
    services::Services,
    store::rows::{self, TransactionRow},
};

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchOutcome {
    /// It goes on, or nobody knows.
    Waiting,
    /// A block has it, and it did what it was to do; the block may still be taken back.
    Mined,
    /// The chain has it for good, and it did what it was to do.
    Final,
    /// It did nothing.
    Void {
        /// Why.
        reason: String,
        /// Whether it can never do it any more.
        certain: bool,
    },
}

/// What became of a request, as the store says.
///
/// # Errors
/// When the store cannot be read.
pub async fn outcome(services: &Services, id: RequestId) -> Result<BatchOutcome, Fault> {
    let Some((first, _)) = services.request(id).await? else {
        return Ok(BatchOutcome::Waiting);
    };
    let family = ReplacementFamily::load(services, &first).await?;
    let later = family.after(first.id).map(|(_, request)| request);
    let all: Vec<&SigningRequest> = std::iter::once(&first).chain(later).collect();
    let keys: Vec<_> = all.iter().map(|one| rows::transaction(one.id)).collect();
    let places = services.load_all::<TransactionRow>(&keys).await?;
    let mut joined = None;
    for (request, place) in all.into_iter().zip(places) {
        let one = of_one(request, place?.map(|row| row.state));
        joined = Some(match joined {
            None => one,
            Some(joined) => join(joined, one),
        });
    }
    Ok(joined.unwrap_or(BatchOutcome::Waiting))
}

/// Of one request alone.
fn of_one(request: &SigningRequest, place: Option<TransactionState>) -> BatchOutcome {
    let void = |reason: String| BatchOutcome::Void {
        reason,
        certain: true,
    };
    match (&request.state, place) {
        (
            RequestState::Failed {
                reason, signatures, ..
            },
            _,
        ) => BatchOutcome::Void {
            reason: reason.clone(),
            // A node that has refused a signed transaction may have kept it. The account's next request gets its number
            // on EVM chains; elsewhere nothing keeps another payment from spending other outputs or objects.
            certain: signatures.is_empty() || request.network == Network::Evm,
        },
        (
            RequestState::Succeeded { .. },
            Some(TransactionState::Final(Inclusion { success, .. })),
        ) => {
            let cancels = request.replaces.as_ref();
            match (
                success,
                cancels.is_some_and(|it| it.how == Replacement::Cancel),
            ) {
                (true, false) => BatchOutcome::Final,
                (true, true) => void("the transaction was cancelled".to_owned()),
                (false, _) => void("the transaction was reverted on the chain".to_owned()),
            }
        }
        (
            RequestState::Succeeded { .. },
            Some(TransactionState::Mined(Inclusion { success, .. })),
        ) => {
            let cancels = request.replaces.as_ref();
            match success && cancels.is_none_or(|it| it.how != Replacement::Cancel) {
                true => BatchOutcome::Mined,
                false => BatchOutcome::Waiting,
            }
        }
        (RequestState::Succeeded { .. }, Some(TransactionState::Replaced { .. })) => {
            void("another transaction has taken the place of its transaction".to_owned())
        }
        (RequestState::Succeeded { .. }, Some(TransactionState::Dropped)) => {
            void("the time of its transaction is over, and no block has it".to_owned())
        }
        _ => BatchOutcome::Waiting,
    }
}

/// Of several, one of which at most can come.
fn join(one: BatchOutcome, other: BatchOutcome) -> BatchOutcome {
    use BatchOutcome::{Final, Mined, Void, Waiting};
    match (one, other) {
        (Final, _) | (_, Final) => Final,
        (Mined, _) | (_, Mined) => Mined,
        (Waiting, _) | (_, Waiting) => Waiting,
        (
            Void {
                certain: before, ..
            },
            Void { reason, certain },
        ) => Void {
            reason,
            certain: before && certain,
        },
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn join__should_not_call_void_what_may_still_come() {
        use BatchOutcome::{Final, Mined, Void, Waiting};
        let void = |certain| Void {
            reason: "x".to_owned(),
            certain,
        };
        for (one, other, expected) in [
            (void(true), Waiting, Waiting),
            (void(true), Mined, Mined),
            (Waiting, Final, Final),
            (void(true), void(true), void(true)),
            (void(false), void(true), void(false)),
            (void(true), void(false), void(false)),
        ] {
            assert_eq!(join(one.clone(), other.clone()), expected);
            if !matches!((&one, &other), (Void { .. }, Void { .. })) {
                assert_eq!(join(other, one), expected);
            }
        }
    }
}
