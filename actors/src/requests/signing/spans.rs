//! What a request records of itself, where it is traced.

use covault_core::{
    fault::Fault,
    networks::VerifiedSignatures,
    request::RequestState,
    trace::{SpanFact, SpanName, TraceParent, TraceSpan},
};

use super::{BuildBlocker, Msg};
use crate::{
    chain_rpc::{BroadcastOutcome, ChainError},
    requests::request_store::StoredRequest,
    services::Services,
};

/// Begins the span of a request.
pub(super) fn span_of(
    services: &Services,
    stored: &StoredRequest,
    parent: TraceParent,
) -> TraceSpan {
    let StoredRequest {
        request, payload, ..
    } = stored;
    services
        .tracer
        .begin(SpanName::Request, parent)
        .with(SpanFact::Request(request.id))
        .with(SpanFact::Vault(request.vault))
        .with(SpanFact::Kind(payload.kind()))
        .with(SpanFact::Network(request.network))
}

/// Says in which state its actor leaves it.
pub(super) fn end(stored: &mut StoredRequest) {
    let state = &stored.request.state;
    let name = state.name();
    match state {
        RequestState::Failed { .. } => stored.trace.fail(name),
        _ => stored.trace.note(SpanFact::Outcome(name)),
    }
}

/// Says what came of asking a chain, or sending to it.
pub(super) fn note_chain(span: &mut TraceSpan, message: &Msg) {
    match message {
        Msg::ChainDataArrived(Err(blocker)) => span.fail(match blocker {
            BuildBlocker::Chain(ChainError::Refused(_)) => "refused",
            BuildBlocker::Chain(ChainError::Lacks(_)) => "lacks",
            BuildBlocker::Chain(ChainError::Unknown(_)) => "unknown",
            BuildBlocker::Wrong(fault) => fault.class().name(),
            BuildBlocker::TimeOver => "time_over",
            BuildBlocker::Loaded(..) => "loaded",
            BuildBlocker::Taken(_)
            | BuildBlocker::NoTurn
            | BuildBlocker::Repeated(_)
            | BuildBlocker::Behind
            | BuildBlocker::OthersLate
            | BuildBlocker::Price(_) => "waits",
        }),
        Msg::NodeAnswered(BroadcastOutcome::Accepted, _) => {
            span.note(SpanFact::Outcome("accepted"));
        }
        Msg::NodeAnswered(BroadcastOutcome::Refused(_), _) => span.fail("refused"),
        Msg::NodeAnswered(BroadcastOutcome::Doubtful(..), _) => span.fail("doubtful"),
        Msg::NodeAnswered(BroadcastOutcome::Unknown(_), _) => span.fail("unknown"),
        _ => {}
    }
}

/// Says what came of asking the signers.
pub(super) fn note_signers(span: &mut TraceSpan, answer: &Result<VerifiedSignatures, Fault>) {
    if let Err(fault) = answer {
        span.fail(fault.class().name());
    }
}
