//! The rows that are committed with a request: entries of the audit log, and what it holds.

use covault_core::{
    audit::AuditChain,
    fault::Fault,
    networks::Payload,
    request::{AuditRecord, Draft, RequestState, ReservationChange, SigningRequest},
};
use sha2::{Digest as _, Sha256};

use crate::{
    audit::{AuditActor, AuditNote},
    requests::{
        account::ChainAccount,
        reservations::{self, PassedClaim},
    },
    store::{
        Batch, Key, KeySpace, Precondition,
        rows::{self, ReservationExpiry},
    },
};

/// How long what a handed-over transaction uses up stays taken: the client sends it soon or never.
const HANDED_OVER_MS: u64 = 24 * 60 * 60 * 1000;
/// How long what a sent transaction uses up stays taken: longer than nodes keep one that no block
/// takes (14 days in bitcoind).
const SENT_MS: u64 = 15 * 24 * 60 * 60 * 1000;

/// The entry of the audit log: one per commit, as each is looked for, hashed and written. The first one of a request
/// says what is wanted.
pub(super) fn add_audit_entry(
    batch: &mut Batch,
    request: &SigningRequest,
    first: bool,
    payload: Option<&Payload>,
    trail: &[AuditRecord],
    by: Option<&AuditActor>,
) -> Result<(), Fault> {
    let service = AuditActor::service();
    let by = by.unwrap_or(&service);
    let mut entry_ms = request.created_at_ms;
    let mut note = first.then(|| {
        AuditNote::for_request(by, request.id, "Received")
            .fact("kind", payload.map_or("", Payload::kind))
            .fact("network", request.network.name())
            .fact("wallet", request.wallet)
            .fact("address", &request.address)
            .fact(
                "replaces",
                request
                    .replaces
                    .as_ref()
                    .map(|replaces| replaces.request.to_string())
                    .unwrap_or_default(),
            )
            .fact(
                "payloadSha256",
                hex::encode(Sha256::digest(&request.payload)),
            )
    });
    for AuditRecord {
        at_ms,
        event,
        state,
        detail,
    } in trail
    {
        let next = match note {
            Some(note) => note.and(event),
            None => AuditNote::for_request(by, request.id, event),
        };
        note = Some(next.fact("state", state).fact("detail", detail));
        entry_ms = *at_ms;
    }
    match note {
        Some(note) => note.add_to(batch, AuditChain::Vault(request.vault), entry_ms),
        None => Ok(()),
    }
}

/// Gives claims to their next holders, or to nobody.
pub(super) fn pass_on(batch: &mut Batch, claims: &[PassedClaim]) -> Result<(), Fault> {
    for claim in claims {
        let expect = Precondition::Version(claim.version);
        match claim.holder {
            Some(holder) => batch.put(claim.key.clone(), expect, rows::encode(&holder)?),
            None => batch.delete(claim.key.clone(), expect),
        };
    }
    Ok(())
}

/// The rows of a change of what a request holds. `request` is in its new state.
pub(super) fn change_claims(
    batch: &mut Batch,
    request: &SigningRequest,
    payload: Option<&Payload>,
    change: ReservationChange,
    passed_on: Option<&[PassedClaim]>,
    now_ms: u64,
) -> Result<(), Fault> {
    let keys = |draft: &Draft| -> Result<Vec<Key>, Fault> {
        let payload = payload.ok_or_else(|| Fault::bug("a payload that cannot be read"))?;
        let account = ChainAccount::of(request, payload);
        let reservations = reservations::of(request, payload, draft)?;
        Ok(reservations
            .iter()
            .map(|one| rows::claim(&account, one))
            .collect())
    };
    // An unreadable payload must not keep a request from its end: the rest stays reserved.
    let what_is_known = |draft: &Draft| {
        keys(draft).unwrap_or_else(|fault| {
            tracing::error!(request = %request.id, ?fault, "the reservations of a request cannot be read");
            draft.claim.iter().map(rows::nonce_claim).collect()
        })
    };
    // Its own notes of what it replaces. Those of numbers stay, as numbers do.
    let shared = |draft: &Draft| -> Vec<Key> {
        let account = payload.map(|payload| ChainAccount::of(request, payload));
        account.map_or_else(Vec::new, |account| {
            let shared = draft.shared.iter();
            shared
                .map(|resource| rows::replacement(&account, resource, request.id))
                .collect()
        })
    };
    match change {
        ReservationChange::Take => {
            let draft = request.state.draft();
            let draft = draft.ok_or_else(|| Fault::bug("a state without a draft"))?;
            for key in keys(draft)? {
                batch.put(key, Precondition::Absent, rows::encode(&request.id)?);
            }
            // Needed when what it replaces would be sent again.
            if let Some(payload) = payload {
                let account = ChainAccount::of(request, payload);
                for resource in reservations::replaced(request, payload, draft)? {
                    let key = rows::replacement(&account, &resource, request.id);
                    batch.put(key, Precondition::Any, rows::encode(&request.id)?);
                }
            }
        }
        ReservationChange::Free(draft) => {
            match passed_on {
                Some(passed_on) => pass_on(batch, passed_on)?,
                None => {
                    for key in what_is_known(&draft) {
                        batch.delete(key, Precondition::Any);
                    }
                }
            }
            for key in shared(&draft) {
                batch.delete(key, Precondition::Any);
            }
        }
        ReservationChange::Outlive(draft) => {
            let claims = what_is_known(&draft).into_iter().chain(shared(&draft));
            // It may have got these from who held them; else they are left alone then.
            let account = payload.map(|payload| ChainAccount::of(request, payload));
            let passed_on = account.iter().flat_map(|account| {
                let shared = draft.shared.iter();
                shared.map(|resource| rows::claim(account, resource))
            });
            let claims = claims.chain(passed_on);
            // Numbers stay taken for ever: a node that lags must not make one be used twice.
            let claims = claims.filter(|key| key.space == KeySpace::Claim);
            let claims: Vec<_> = claims.map(|key| key.bytes).collect();
            if !claims.is_empty() {
                let life_ms = match request.state {
                    RequestState::Succeeded { sent: false, .. } => HANDED_OVER_MS,
                    _ => SENT_MS,
                };
                let key = rows::reservation_expiry(now_ms.saturating_add(life_ms), request.id);
                batch.put(
                    key,
                    Precondition::Any,
                    rows::encode(&ReservationExpiry { claims })?,
                );
            }
        }
    }
    Ok(())
}
