//! The spans of a session that signs: its own, and one for each round.

use covault_core::trace::{SpanFact, SpanName, TraceSpan};

use super::SessionJob;

/// What a session that signs records, where its request is traced.
pub(in crate::node) struct SessionSpans {
    // Ends before the session's.
    round: TraceSpan,
    session: TraceSpan,
    number: u16,
}

impl SessionSpans {
    /// Before its first round.
    pub fn new(session: TraceSpan) -> Self {
        Self {
            round: TraceSpan::off(),
            session,
            number: 0,
        }
    }
}

impl SessionJob {
    /// It has come to this round, or is in it: the one before has ended.
    pub(super) fn enter_round(&mut self, round: u16) {
        if let Self::Sign { spans, .. } = self
            && round > spans.number
        {
            spans.number = round;
            spans.round = TraceSpan::off();
            let next = spans.session.child(SpanName::Round);
            spans.round = next.with(SpanFact::Round(round));
        }
    }

    /// It ends without a signature of this node.
    pub(super) fn failed(&mut self, how: &'static str) {
        if let Self::Sign { spans, .. } = self {
            spans.session.fail(how);
        }
    }
}
