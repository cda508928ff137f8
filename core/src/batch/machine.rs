//! The state machine of a batch payment: `Pending -> Succeeded | Failed`.

use serde::{Deserialize, Serialize};

use crate::request::{AuditRecord, IllegalTransition};

/// Where a batch stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BatchState {
    /// It waits for a person to complete it.
    Pending,
    /// Its payment was signed and taken by a node.
    Succeeded,
    /// Over without a payment.
    Failed {
        /// A sentence that a person can act on.
        reason: String,
    },
}

/// Something that happened to a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchEvent {
    /// The signing request that pays succeeded.
    PaymentSent,
    /// One of its signing requests failed, or a caller dropped the batch.
    GaveUp {
        /// Why.
        reason: String,
    },
}

/// A transition, to be committed as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchStep {
    /// The new state.
    pub next: BatchState,
    /// What happened.
    pub audit: AuditRecord,
}

impl BatchState {
    /// The state's name.
    pub fn name(&self) -> &'static str {
        match self {
            BatchState::Pending => "Pending",
            BatchState::Succeeded => "Succeeded",
            BatchState::Failed { .. } => "Failed",
        }
    }

    /// Whether nothing will ever happen to the batch again.
    pub fn is_final(&self) -> bool {
        matches!(self, BatchState::Succeeded | BatchState::Failed { .. })
    }

    /// What an event makes of the state. `now_ms` is in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// [`IllegalTransition`] when the event cannot happen in this state.
    pub fn step(self, event: BatchEvent, now_ms: u64) -> Result<BatchStep, IllegalTransition> {
        let illegal = IllegalTransition {
            state: self.name(),
            event: event.name(),
        };
        let (next, detail) = match (self, event) {
            (BatchState::Pending, BatchEvent::PaymentSent) => {
                (BatchState::Succeeded, String::new())
            }
            (BatchState::Pending, BatchEvent::GaveUp { reason }) => {
                let detail = reason.clone();
                (BatchState::Failed { reason }, detail)
            }
            (BatchState::Succeeded | BatchState::Failed { .. }, _) => return Err(illegal),
        };
        let audit = AuditRecord {
            at_ms: now_ms,
            event: illegal.event.into(),
            state: next.name().into(),
            detail,
        };
        Ok(BatchStep { next, audit })
    }
}

impl BatchEvent {
    /// The event's name.
    pub fn name(&self) -> &'static str {
        match self {
            BatchEvent::PaymentSent => "PaymentSent",
            BatchEvent::GaveUp { .. } => "GaveUp",
        }
    }
}
