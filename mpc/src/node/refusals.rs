//! What a node does not take from the bus, each reason with a name, and one log line a second for
//! each: a flood must not fill the disk with words about itself. Orders of trusted orchestrators that are
//! refused are not counted here: each has its line.

use std::{
    collections::HashMap,
    mem::{Discriminant, discriminant},
};

use covault_core::{
    fault::{Class, Fault},
    order::NodeId,
};
use parking_lot::Mutex;

use super::Node;
use crate::{envelope::EnvelopeError, preprocess::NonceMessageError};

/// How often one reason is logged, in milliseconds.
const LOG_INTERVAL_MS: u64 = 1_000;

/// Why a message was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MessageRefusal {
    /// Malformed, misdirected, unsealed, unopenable, or not signed by whom it names.
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    /// An order signed with a key that is not pinned.
    #[error("order ignored: this node does not trust the orchestrator that signed it")]
    UntrustedOrchestrator,
    /// A protocol message of a node that is not among the configured peers.
    #[error("message of a node that is not a peer")]
    NoPeer,
    /// About nonces, or under a pair key, of a node without a share of any key that we have.
    #[error("message of a node that shares no key with this one")]
    NoHolder,
    /// About what nodes see of each other, of a peer without a share of any key that we have.
    #[error("message of a peer that shares no key with this one")]
    NoWitness,
    /// Well sealed and signed, and not a message.
    #[error("the message cannot be read")]
    Unreadable,
    /// More unverified messages in one name than may wait. Whose they are nobody has verified.
    #[error("flood: too many queued messages claim this sender")]
    Flood,
    /// More unverified messages than may wait.
    #[error("flood: too many queued messages")]
    Full,
    /// More messages without an order than one sender, or all together, may have waiting.
    #[error("flood: too many messages queued for an order")]
    Early,
    /// More messages of one sender than a session has slots.
    #[error("flood: more messages than the session has rounds")]
    Queue,
    /// The session's order names others.
    #[error("the sender is not in the session")]
    NotInSession,
    /// Of another generation of shares than the session.
    #[error("the message is of another epoch than the session")]
    WrongEpoch,
    /// What a peer shows proves no generation that we could take.
    #[error("refused a proof that a peer sent")]
    Proof,
}

/// How often each reason came up.
#[derive(Default)]
pub(super) struct MessageRefusals {
    said: Mutex<HashMap<Discriminant<MessageRefusal>, RefusalCount>>,
}

#[derive(Default)]
struct RefusalCount {
    at_ms: Option<u64>,
    unsaid: u64,
}

impl MessageRefusals {
    /// Counts one; how many went unsaid when it is time to say so.
    fn count(&self, why: MessageRefusal, now_ms: u64) -> Option<u64> {
        let mut said = self.said.lock();
        let said = said.entry(discriminant(&why)).or_default();
        if said
            .at_ms
            .is_some_and(|at_ms| now_ms.abs_diff(at_ms) < LOG_INTERVAL_MS)
        {
            said.unsaid = said.unsaid.saturating_add(1);
            return None;
        }
        said.at_ms = Some(now_ms);
        Some(std::mem::take(&mut said.unsaid))
    }
}

impl Node {
    /// Says why a message was dropped. `from` is who it says it is from: nobody knows before its
    /// signature was verified.
    pub(super) fn drop_message(&self, from: &NodeId, why: MessageRefusal) {
        if let Some(unsaid) = self.refusals.count(why, self.clock.now_ms()) {
            let node = &self.name;
            let from = from.openssh_line("");
            // A peer is done with a new key a moment before this node is.
            if matches!(why, MessageRefusal::NoHolder | MessageRefusal::NoWitness) {
                tracing::debug!(%node, from, error = %why, unsaid, "message refused");
            } else {
                tracing::warn!(%node, from, error = %why, unsaid, "message refused");
            }
        }
    }

    /// Says why a proof that a peer sent is refused.
    pub(super) fn drop_proof(&self, from: &NodeId, fault: &Fault) {
        let why = MessageRefusal::Proof;
        if let Some(unsaid) = self.refusals.count(why, self.clock.now_ms()) {
            let node = &self.name;
            let from = from.openssh_line("");
            tracing::warn!(%node, from, error = %why, ?fault, unsaid, "message refused");
        }
    }
}

impl From<NonceMessageError> for MessageRefusal {
    fn from(error: NonceMessageError) -> Self {
        match error {
            NonceMessageError::Unreadable => Self::Unreadable,
            NonceMessageError::NoHolder => Self::NoHolder,
        }
    }
}

pub(super) fn refused(sentence: impl Into<String>) -> Fault {
    Fault::new(Class::Invalid, sentence)
}

/// The header's epoch is what binds every message of the session to a generation of shares.
pub(super) fn wrong_epoch() -> Fault {
    Fault::field("epoch", "envelope epoch does not match the order")
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn refusals__should_be_said_once_a_second_for_each_reason() {
        let refusals = MessageRefusals::default();
        assert_eq!(refusals.count(MessageRefusal::Flood, 10_000), Some(0));
        for at_ms in 10_000..10_999 {
            assert_eq!(refusals.count(MessageRefusal::Flood, at_ms), None);
        }
        assert_eq!(refusals.count(MessageRefusal::WrongEpoch, 10_500), Some(0));
        assert_eq!(refusals.count(MessageRefusal::Flood, 11_000), Some(999));
    }
}
