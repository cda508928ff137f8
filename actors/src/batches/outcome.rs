//! The outcome of a batch's signing request, including requests that were made to replace its transaction.

use covault_core::{
    fault::{ExecuteCode, Fault},
    ids::RequestId,
    networks::Replacement,
    request::{Inclusion, RequestState, SigningRequest, TransactionState},
};

use crate::{
    requests::replacing::ReplacementFamily,
    services::Services,
    store::{
        batch_rows,
        rows::{self, TransactionRow},
    },
};

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchOutcome {
    /// It continues, or nobody knows.
    Waiting,
    /// A block has it, and it did what it was to do; the block may still be taken back.
    Mined,
    /// The chain has it for good, and it did what it was to do.
    Final,
    /// It did nothing.
    Void {
        /// Why.
        reason: String,
        /// Whether it can no longer do it.
        certain: bool,
        /// Whether people, or their rules, do not want it.
        denied: bool,
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
    let keys: Vec<_> = all
        .iter()
        .map(|one| batch_rows::asked_request(one.id))
        .collect();
    let asked = services.load_all::<()>(&keys).await?;
    for ((request, place), asked) in all.into_iter().zip(places).zip(asked) {
        let one = of_one(request, place?.map(|row| row.state), asked?.is_some());
        joined = Some(match joined {
            None => one,
            Some(joined) => join(joined, one),
        });
    }
    Ok(joined.unwrap_or(BatchOutcome::Waiting))
}

/// Of one request alone. `asked`: it ended without signatures that signers had been asked for.
fn of_one(request: &SigningRequest, place: Option<TransactionState>, asked: bool) -> BatchOutcome {
    let void = |reason: &str| BatchOutcome::Void {
        reason: reason.to_owned(),
        certain: true,
        denied: false,
    };
    let cancels = request.replaces.as_ref();
    let cancels = cancels.is_some_and(|it| it.how == Replacement::Cancel);
    // What the chain has counts, however the request has ended: nodes may have taken what they had refused.
    match place {
        Some(TransactionState::Final(Inclusion { success, .. })) => {
            return match (success, cancels) {
                (true, false) => BatchOutcome::Final,
                (true, true) => void("the transaction was cancelled"),
                (false, _) => void("the transaction was reverted on the chain"),
            };
        }
        Some(TransactionState::Mined(Inclusion { success, .. })) => {
            return match success && !cancels {
                true => BatchOutcome::Mined,
                false => BatchOutcome::Waiting,
            };
        }
        Some(TransactionState::Replaced { .. }) => {
            return void("another transaction has replaced its transaction");
        }
        Some(TransactionState::Dropped) => {
            return void("its transaction has expired, and no block includes it");
        }
        Some(TransactionState::Pending | TransactionState::Partial(_)) | None => {}
    }
    match &request.state {
        RequestState::Failed {
            reason,
            signatures,
            code,
        } => BatchOutcome::Void {
            reason: reason.clone(),
            // Who has the signed bytes can send them, whatever nodes have said of them: a node that refused them, or a
            // signer that finished the signature and told nobody.
            certain: signatures.is_empty() && !asked,
            denied: *code == ExecuteCode::AlreadyDenied,
        },
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
            Void {
                reason,
                certain,
                denied,
            },
        ) => Void {
            reason,
            certain: before && certain,
            denied,
        },
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::{
        derive::KeyPath,
        ids::{TokenId, VaultId, WalletId},
        networks::Network,
        request::{ApprovalRule, Consent, Replaces},
        signature::Signature,
    };

    use super::*;

    #[test]
    fn join__should_not_call_void_what_may_still_come() {
        use BatchOutcome::{Final, Mined, Void, Waiting};
        let void = |certain| Void {
            reason: "x".to_owned(),
            certain,
            denied: false,
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

    fn request(state: RequestState, how: Option<Replacement>) -> SigningRequest {
        let id = RequestId::from_bytes([1; 16]);
        SigningRequest {
            id,
            vault: VaultId::from_bytes([2; 16]),
            wallet: WalletId::from_bytes([3; 16]),
            network: Network::Evm,
            root_public_key: Vec::new(),
            path: KeyPath::new(Vec::new()).unwrap(),
            public_key: Vec::new(),
            address: String::new(),
            payload: Vec::new(),
            notes: None,
            token: TokenId::from_bytes([4; 16]),
            replaces: how.map(|how| Replaces {
                request: id,
                first: id,
                how,
                most_fee: None,
            }),
            created_at_ms: 0,
            consent: Consent::new(ApprovalRule::automatic()),
            state,
        }
    }

    #[test]
    fn of_one__should_believe_the_chain_before_the_request() {
        let failed = |signed: bool, code| RequestState::Failed {
            reason: "x".to_owned(),
            code,
            signatures: match signed {
                true => vec![Signature::Ed25519 {
                    r: [0; 32],
                    s: [0; 32],
                }],
                false => Vec::new(),
            },
        };
        let plain = ExecuteCode::Unspecified;
        let place = |success| Some(TransactionState::Final(Inclusion { block: 1, success }));
        // Nodes had refused it, and a block has it.
        let refused = || request(failed(true, plain), None);
        assert_eq!(of_one(&refused(), place(true), false), BatchOutcome::Final);
        let certain = |outcome| match outcome {
            BatchOutcome::Void {
                certain, denied, ..
            } => Some((certain, denied)),
            _ => None,
        };
        for (state, place, asked, expected) in [
            (failed(true, plain), None, false, (false, false)),
            (failed(true, plain), place(false), false, (true, false)),
            (failed(false, plain), None, false, (true, false)),
            (failed(false, plain), None, true, (false, false)),
            (
                failed(false, ExecuteCode::AlreadyDenied),
                None,
                false,
                (true, true),
            ),
        ] {
            let outcome = of_one(&request(state.clone(), None), place, asked);
            assert_eq!(certain(outcome), Some(expected), "{state:?} {asked}");
        }
        let cancelled = request(failed(true, plain), Some(Replacement::Cancel));
        assert_eq!(
            certain(of_one(&cancelled, place(true), false)),
            Some((true, false))
        );
    }
}
