//! What operators are told of a request that has failed: no amounts, no addresses.

use covault_core::{
    networks::Payload,
    request::{RequestState, SigningRequest},
};

use crate::{services::Services, store::overview_rows::FailedRequest};

/// What a request whose payload is not at hand is counted as.
pub const OTHER_KIND: &str = "other";
/// Most characters of a word that is no address.
const LONG_WORD: usize = 24;
/// Most characters of a reason.
const LONG_REASON: usize = 300;

/// Writes into the log that a request has failed, and notes it for `covault status`; nothing where it has not. `is_unwanted`:
/// people rejected it, or its time was over.
pub fn tell(
    services: &Services,
    before: &RequestState,
    request: &SigningRequest,
    payload: Option<&Payload>,
    is_unwanted: bool,
    now_ms: u64,
) {
    let RequestState::Failed { code, reason, .. } = &request.state else {
        return;
    };
    let (id, vault) = (request.id, request.vault);
    let kind = payload.map(Payload::kind);
    // Nothing is wrong.
    if matches!(before, RequestState::AwaitingApproval { .. }) && is_unwanted {
        tracing::info!(
            request = %id,
            %vault,
            kind,
            "a request was rejected or has expired; covault request show says why"
        );
        return;
    }
    let (class, during) = (code.name(), before.name());
    // The reason may hold addresses and amounts: it is for those who may see the request.
    tracing::warn!(
        request = %id,
        %vault,
        kind,
        class,
        during,
        "a request has failed; covault request show says why"
    );
    services.counters.note_failures([FailedRequest {
        at_ms: now_ms,
        request: id,
        vault,
        kind: kind.unwrap_or(OTHER_KIND).to_owned(),
        class: class.to_owned(),
        during: during.to_owned(),
        reason: without_figures(reason),
    }]);
}

/// A reason without what must not be in it: words with digits and very long ones, among which all amounts, addresses and hashes
/// are.
fn without_figures(reason: &str) -> String {
    let is_figure =
        |word: &str| word.chars().any(char::is_numeric) || word.chars().count() > LONG_WORD;
    let words = reason.split_whitespace();
    let words = words.map(|word| if is_figure(word) { "…" } else { word });
    let kept = words.collect::<Vec<_>>().join(" ");
    kept.chars().take(LONG_REASON).collect()
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn reason__should_name_no_amount_and_no_address() {
        let reason = "insufficient funds: 0xF39Fd6e51aad88F6F4ce6aB8827279cffFb92266 has 12,5 and needs 21000 wei; \
                      addrxoneqqqqqqqqqqqqqqqqqqqqqqqqqqq cannot pay";
        assert_eq!(
            without_figures(reason),
            "insufficient funds: … has … and needs … wei; … cannot pay"
        );
        let long = "too long ".repeat(100);
        assert_eq!(without_figures(&long).chars().count(), LONG_REASON);
    }
}
