//! The state machine: which event leads where, and what is to be done then.
//!
//! ```text
//! Received -> Screened -> AwaitingApproval -> Preparing -> Prepared <-> Signing -> Signed
//!     Signed -> Broadcasting -> Succeeded        (sent by us)
//!     Signed -> Succeeded                        (messages, broadcastTx=false)
//!     anything before Signed, and Broadcasting -> Failed
//!     anything before Signed -> Failed           (found in a restored backup)
//! ```
//! A request is rejected only before `Prepared`. From `Prepared` on it signs one draft: a new
//! attempt is a new session for the same digest. After `Signed` the bytes never change.

use serde::{Deserialize, Serialize};

use super::{Approval, Draft, State};
use crate::{fault::ExecuteCode, ids::SessionId, networks::Signed, signature::Signature};

/// Something that happened to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The checks found nothing against it.
    PolicyPassed {
        /// Whether it is to be sent once signed.
        broadcast: bool,
    },
    /// The vault's approval rule was looked up.
    ApprovalAsked {
        /// Who has to agree.
        rule: Approval,
    },
    /// Everybody who has to agree did.
    Approved {
        /// When signing is given up, in milliseconds since the Unix epoch.
        deadline_ms: u64,
    },
    /// Somebody said no.
    Rejected {
        /// Who and why.
        reason: String,
    },
    /// It cannot go on now, and will be tried again.
    Delayed {
        /// Why.
        reason: String,
    },
    /// The transaction was built.
    Built {
        /// It.
        draft: Draft,
    },
    /// A session was chosen for the next attempt.
    SessionClaimed {
        /// It.
        session: SessionId,
        /// When signing is given up; a restart after a long outage grants new time.
        deadline_ms: u64,
    },
    /// A session ended without signatures.
    SessionLost {
        /// Why.
        reason: String,
    },
    /// The signers signed.
    SignaturesMade {
        /// One per input of the draft.
        signatures: Vec<Signature>,
        /// The signed transaction; `None` for messages.
        signed: Option<Signed>,
    },
    /// Sending begins.
    SendingStarted,
    /// The client gets the signatures; nothing is sent.
    HandedOver,
    /// A node has the transaction.
    NodeAccepted,
    /// The network will never take the transaction.
    NodeRefused {
        /// Why.
        reason: String,
        /// The code that executeSigningRequests reports.
        code: ExecuteCode,
    },
    /// It cannot be built, or was not signed in time.
    GaveUp {
        /// Why.
        reason: String,
        /// The code that executeSigningRequests reports.
        code: ExecuteCode,
    },
    /// The store was restored from a backup in which it was not signed: what became of it since is
    /// not known. What it holds may be used up by now.
    Restored {
        /// Why that ends it.
        reason: String,
    },
}

/// What is to be done after the commit, at least once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Ask the chain and build.
    Prepare,
    /// Choose a session.
    ClaimSession,
    /// Run the session that the state names.
    Sign,
    /// Send the bytes or hand them over, as the draft says.
    Deliver,
    /// Send the bytes that the state holds.
    Broadcast,
}

/// A change of what the request holds ([`crate::networks::DynNetworkRules::uses`] of its draft), in the same
/// commit as the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReservationChange {
    /// It takes what the draft of the new state uses up; nobody else may hold that.
    Take,
    /// It lets go of what this draft uses up.
    Free(Box<Draft>),
    /// It is over, and its transaction is in the world, or may be: what this draft uses up stays
    /// taken, for as long as the transaction may still come.
    Outlive(Box<Draft>),
}

/// What happened, for the audit trail. Holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// Milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The event's name.
    pub event: String,
    /// The new state's name.
    pub state: String,
    /// More, in words.
    pub detail: String,
}

/// A transition, to be committed as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The new state.
    pub next: State,
    /// What is to be done after the commit. `None`: nothing, or nothing until the next event.
    pub effect: Option<Effect>,
    /// Claims that change with the state.
    pub claim: Option<ReservationChange>,
    /// What happened.
    pub audit: Audit,
}

/// The event cannot happen in the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event} cannot happen in {state}")]
pub struct Illegal {
    /// The state's name.
    pub state: &'static str,
    /// The event's name.
    pub event: &'static str,
}

impl State {
    /// The state's name.
    pub fn name(&self) -> &'static str {
        match self {
            State::Received => "Received",
            State::Screened { .. } => "Screened",
            State::AwaitingApproval { .. } => "AwaitingApproval",
            State::Preparing { .. } => "Preparing",
            State::Prepared { .. } => "Prepared",
            State::Signing { .. } => "Signing",
            State::Signed { .. } => "Signed",
            State::Broadcasting { .. } => "Broadcasting",
            State::Succeeded { .. } => "Succeeded",
            State::Failed { .. } => "Failed",
        }
    }

    /// Whether nothing will ever happen to the request again.
    pub fn is_final(&self) -> bool {
        matches!(self, State::Succeeded { .. } | State::Failed { .. })
    }

    /// What has to be done next in this state; the effect of the step that led to it.
    pub fn effect(&self) -> Option<Effect> {
        match self {
            State::Preparing { .. } => Some(Effect::Prepare),
            State::Prepared { .. } => Some(Effect::ClaimSession),
            State::Signing { .. } => Some(Effect::Sign),
            State::Signed { .. } => Some(Effect::Deliver),
            State::Broadcasting { .. } => Some(Effect::Broadcast),
            State::Received
            | State::Screened { .. }
            | State::AwaitingApproval { .. }
            | State::Succeeded { .. }
            | State::Failed { .. } => None,
        }
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
        let detail = event.detail();
        let mut claim = None;
        let next = match (self, event) {
            (State::Received, Event::PolicyPassed { broadcast }) => State::Screened { broadcast },
            (State::Screened { broadcast }, Event::ApprovalAsked { rule }) => {
                State::AwaitingApproval { broadcast, rule }
            }
            (State::AwaitingApproval { broadcast, .. }, Event::Approved { deadline_ms }) => {
                State::Preparing {
                    broadcast,
                    deadline_ms,
                }
            }
            (
                State::Received
                | State::Screened { .. }
                | State::AwaitingApproval { .. }
                | State::Preparing { .. },
                Event::Rejected { reason },
            ) => failed(reason, ExecuteCode::AlreadyDenied),
            (State::Preparing { broadcast, .. }, Event::Built { draft })
                if draft.broadcast == broadcast =>
            {
                claim = Some(ReservationChange::Take);
                State::Prepared { draft, attempts: 0 }
            }
            // A new reason changes nothing but what is known about it.
            (
                state @ (State::Preparing { .. } | State::Broadcasting { .. }),
                Event::Delayed { .. },
            ) => state,
            (
                State::Prepared {
                    mut draft,
                    attempts,
                },
                Event::SessionClaimed {
                    session,
                    deadline_ms,
                },
            ) => {
                draft.deadline_ms = deadline_ms;
                State::Signing {
                    draft,
                    attempt: attempts.saturating_add(1),
                    session,
                }
            }
            (State::Signing { draft, attempt, .. }, Event::SessionLost { .. }) => State::Prepared {
                draft,
                attempts: attempt,
            },
            (State::Signing { draft, .. }, Event::SignaturesMade { signatures, signed })
                if fits(&draft, &signatures, signed.as_ref()) =>
            {
                State::Signed {
                    draft,
                    signatures,
                    signed,
                }
            }
            (
                State::Signed {
                    draft,
                    signatures,
                    signed: Some(signed),
                },
                Event::SendingStarted,
            ) if draft.broadcast => State::Broadcasting {
                draft,
                signatures,
                signed,
            },
            (
                State::Signed {
                    draft,
                    signatures,
                    signed,
                },
                Event::HandedOver,
            ) if !draft.broadcast => {
                claim = Some(ReservationChange::Outlive(Box::new(draft)));
                State::Succeeded {
                    signatures,
                    signed,
                    sent: false,
                }
            }
            (
                State::Broadcasting {
                    draft,
                    signatures,
                    signed,
                },
                Event::NodeAccepted,
            ) => {
                claim = Some(ReservationChange::Outlive(Box::new(draft)));
                State::Succeeded {
                    signatures,
                    signed: Some(signed),
                    sent: true,
                }
            }
            (
                State::Broadcasting {
                    draft, signatures, ..
                },
                Event::NodeRefused { reason, code },
            ) => {
                // What it would have used goes to other requests: what takes it on the chain is
                // then also what makes this transaction void for ever.
                claim = Some(ReservationChange::Free(Box::new(draft)));
                State::Failed {
                    reason,
                    code,
                    signatures,
                }
            }
            (State::Preparing { .. }, Event::GaveUp { reason, code }) => failed(reason, code),
            (
                State::Received
                | State::Screened { .. }
                | State::AwaitingApproval { .. }
                | State::Preparing { .. },
                Event::Restored { reason },
            ) => failed(reason, ExecuteCode::Unspecified),
            (
                State::Prepared { draft, .. } | State::Signing { draft, .. },
                Event::Restored { reason },
            ) => {
                claim = Some(ReservationChange::Outlive(Box::new(draft)));
                failed(reason, ExecuteCode::Unspecified)
            }
            (
                State::Prepared { draft, .. } | State::Signing { draft, .. },
                Event::GaveUp { reason, code },
            ) => {
                claim = Some(ReservationChange::Free(Box::new(draft)));
                failed(reason, code)
            }
            _ => return Err(illegal),
        };
        let audit = Audit {
            at_ms: now_ms,
            event: illegal.event.into(),
            state: next.name().into(),
            detail,
        };
        Ok(Step {
            effect: next.effect(),
            next,
            claim,
            audit,
        })
    }
}

impl Event {
    /// The event's name.
    pub fn name(&self) -> &'static str {
        match self {
            Event::PolicyPassed { .. } => "PolicyPassed",
            Event::ApprovalAsked { .. } => "ApprovalAsked",
            Event::Approved { .. } => "Approved",
            Event::Rejected { .. } => "Rejected",
            Event::Delayed { .. } => "Delayed",
            Event::Built { .. } => "Built",
            Event::SessionClaimed { .. } => "SessionClaimed",
            Event::SessionLost { .. } => "SessionLost",
            Event::SignaturesMade { .. } => "SignaturesMade",
            Event::SendingStarted => "SendingStarted",
            Event::HandedOver => "HandedOver",
            Event::NodeAccepted => "NodeAccepted",
            Event::NodeRefused { .. } => "NodeRefused",
            Event::GaveUp { .. } => "GaveUp",
            Event::Restored { .. } => "Restored",
        }
    }

    fn detail(&self) -> String {
        match self {
            Event::Rejected { reason }
            | Event::Delayed { reason }
            | Event::SessionLost { reason }
            | Event::NodeRefused { reason, .. }
            | Event::GaveUp { reason, .. }
            | Event::Restored { reason } => reason.clone(),
            Event::Built { draft } => draft
                .claim
                .as_ref()
                .map(|claim| format!("nonce {}", claim.nonce))
                .unwrap_or_default(),
            Event::SessionClaimed { session, .. } => format!("session {session}"),
            Event::SignaturesMade { signed, .. } => signed
                .as_ref()
                .map(|signed| signed.tx_hash.clone())
                .unwrap_or_default(),
            Event::PolicyPassed { .. }
            | Event::ApprovalAsked { .. }
            | Event::Approved { .. }
            | Event::SendingStarted
            | Event::HandedOver
            | Event::NodeAccepted => String::new(),
        }
    }
}

/// Whether signatures are what the draft asks for: one of the right kind per input, and a
/// transaction where one is to be sent.
fn fits(draft: &Draft, signatures: &[Signature], signed: Option<&Signed>) -> bool {
    let inputs = &draft.unsigned.signing;
    inputs.len() == signatures.len()
        && inputs
            .iter()
            .zip(signatures)
            .all(|(input, signature)| input.curve == signature.curve())
        && (signed.is_some() || !draft.broadcast)
}

fn failed(reason: String, code: ExecuteCode) -> State {
    State::Failed {
        reason,
        code,
        signatures: Vec::new(),
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
