//! What is followed for a request: its transaction, or what signers may have signed.

use covault_core::{
    fault::Fault,
    networks::{Payload, Resource, Signed},
    request::{Draft, RequestState, SigningRequest},
};

use crate::{
    chain_rpc::TrackedTransaction,
    requests::{
        account::ChainAccount,
        tracking::{PendingVerdict, TrackedRequest},
    },
};

/// What is followed of a request; `None` where nothing is. `sent_at_ms` is in milliseconds since the Unix
/// epoch.
pub fn tracked(
    request: &SigningRequest,
    payload: &Payload,
    sent_at_ms: u64,
    resumed: bool,
) -> Option<TrackedRequest> {
    match &request.state {
        RequestState::Succeeded {
            signed: Some(signed),
            sent: true,
            ..
        } => Some(followed(request, payload, signed, sent_at_ms, resumed)),
        RequestState::InDoubt { draft, .. } => {
            watched(request, payload, draft).unwrap_or_else(|fault| {
                tracing::error!(request = %request.id, ?fault, "what signers may have signed cannot be read");
                None
            })
        }
        _ => None,
    }
}

/// What is asked for of a request that was given up after signers were asked.
fn watched(
    request: &SigningRequest,
    payload: &Payload,
    draft: &Draft,
) -> Result<Option<TrackedRequest>, Fault> {
    let rules = request.network.rules();
    let Some(signed) = rules.stand_in(payload, &draft.unsigned, &request.public_key)? else {
        return Ok(None);
    };
    let uses = rules.reservations(payload, &draft.unsigned)?;
    let number = uses.iter().find_map(|resource| match resource {
        Resource::Nonce(number) => Some(*number),
        Resource::Object(_) | Resource::TxHash(_) => None,
    });
    Ok(Some(TrackedRequest {
        number,
        unsigned: Some(uses),
        ..followed(request, payload, &signed, draft.built_at_ms, false)
    }))
}

/// What is asked for of a request whose transaction may have reached a node; `None` when it sends none now.
pub fn doubted(
    request: &SigningRequest,
    payload: &Payload,
    doubt: PendingVerdict,
) -> Option<TrackedRequest> {
    let RequestState::Broadcasting { draft, signed, .. } = &request.state else {
        return None;
    };
    Some(TrackedRequest {
        doubt: Some(doubt),
        ..followed(request, payload, signed, draft.built_at_ms, false)
    })
}

fn followed(
    request: &SigningRequest,
    payload: &Payload,
    signed: &Signed,
    sent_at_ms: u64,
    resumed: bool,
) -> TrackedRequest {
    let number = request
        .network
        .rules()
        .sent_number(signed, &request.address);
    TrackedRequest {
        vault: request.vault,
        request: request.id,
        account: ChainAccount::of(request, payload),
        number: number.unwrap_or_else(|fault| {
            tracing::error!(request = %request.id, ?fault, "a transaction that was sent cannot be read");
            None
        }),
        transaction: TrackedTransaction {
            signed: signed.clone(),
            from: request.address.clone(),
            sent_at_ms,
        },
        unsigned: None,
        doubt: None,
        resumed,
    }
}
