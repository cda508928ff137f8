//! The state machine of a batch payment: `Pending -> Succeeded | Failed`.

use serde::{Deserialize, Serialize};

use crate::request::{Audit, Illegal};

/// Where a batch stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
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
pub enum Event {
    /// The signing request that pays succeeded.
    PaymentSent,
    /// One of its signing requests failed, or somebody dropped the batch.
    GaveUp {
        /// Why.
        reason: String,
    },
}

/// A transition, to be committed as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The new state.
    pub next: State,
    /// What happened.
    pub audit: Audit,
}

impl State {
    /// The state's name.
    pub fn name(&self) -> &'static str {
        match self {
            State::Pending => "Pending",
            State::Succeeded => "Succeeded",
            State::Failed { .. } => "Failed",
        }
    }

    /// Whether nothing will ever happen to the batch again.
    pub fn is_final(&self) -> bool {
        matches!(self, State::Succeeded | State::Failed { .. })
    }

    /// What an event makes of the state. `now_ms` is in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// [`Illegal`] when the event cannot happen in this state.
    pub fn step(self, event: Event, now_ms: u64) -> Result<Step, Illegal> {
        let illegal = Illegal {
            state: self.name(),
            event: event.name(),
        };
        let (next, detail) = match (self, event) {
            (State::Pending, Event::PaymentSent) => (State::Succeeded, String::new()),
            (State::Pending, Event::GaveUp { reason }) => {
                let detail = reason.clone();
                (State::Failed { reason }, detail)
            }
            (State::Succeeded | State::Failed { .. }, _) => return Err(illegal),
        };
        let audit = Audit {
            at_ms: now_ms,
            event: illegal.event.into(),
            state: next.name().into(),
            detail,
        };
        Ok(Step { next, audit })
    }
}

impl Event {
    /// The event's name.
    pub fn name(&self) -> &'static str {
        match self {
            Event::PaymentSent => "PaymentSent",
            Event::GaveUp { .. } => "GaveUp",
        }
    }
}
