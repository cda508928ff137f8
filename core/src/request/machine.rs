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

use super::{ApprovalRule, Draft, RequestState};
use crate::{fault::ExecuteCode, ids::SessionId, networks::Signed, signature::Signature};

/// Something that happened to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestEvent {
    /// The checks found nothing against it.
    PolicyPassed {
        /// Whether it is to be sent once signed.
        broadcast: bool,
    },
    /// The vault's approval rule was looked up.
    ApprovalAsked {
        /// Who has to agree.
        rule: ApprovalRule,
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
pub enum RequestEffect {
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
pub struct AuditRecord {
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
pub struct RequestStep {
    /// The new state.
    pub next: RequestState,
    /// What is to be done after the commit. `None`: nothing, or nothing until the next event.
    pub effect: Option<RequestEffect>,
    /// Claims that change with the state.
    pub claim: Option<ReservationChange>,
    /// What happened.
    pub audit: AuditRecord,
}

/// The event cannot happen in the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event} cannot happen in {state}")]
pub struct IllegalTransition {
    /// The state's name.
    pub state: &'static str,
    /// The event's name.
    pub event: &'static str,
}

impl RequestState {
    /// The state's name.
    pub fn name(&self) -> &'static str {
        match self {
            RequestState::Received => "Received",
            RequestState::Screened { .. } => "Screened",
            RequestState::AwaitingApproval { .. } => "AwaitingApproval",
            RequestState::Preparing { .. } => "Preparing",
            RequestState::Prepared { .. } => "Prepared",
            RequestState::Signing { .. } => "Signing",
            RequestState::Signed { .. } => "Signed",
            RequestState::Broadcasting { .. } => "Broadcasting",
            RequestState::Succeeded { .. } => "Succeeded",
            RequestState::Failed { .. } => "Failed",
        }
    }

    /// Whether nothing will ever happen to the request again.
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            RequestState::Succeeded { .. } | RequestState::Failed { .. }
        )
    }

    /// What has to be done next in this state; the effect of the step that led to it.
    pub fn effect(&self) -> Option<RequestEffect> {
        match self {
            RequestState::Preparing { .. } => Some(RequestEffect::Prepare),
            RequestState::Prepared { .. } => Some(RequestEffect::ClaimSession),
            RequestState::Signing { .. } => Some(RequestEffect::Sign),
            RequestState::Signed { .. } => Some(RequestEffect::Deliver),
            RequestState::Broadcasting { .. } => Some(RequestEffect::Broadcast),
            RequestState::Received
            | RequestState::Screened { .. }
            | RequestState::AwaitingApproval { .. }
            | RequestState::Succeeded { .. }
            | RequestState::Failed { .. } => None,
        }
    }

    /// What an event makes of the state. `now_ms` is in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// [`IllegalTransition`] when the event cannot happen in this state.
    pub fn step(self, event: RequestEvent, now_ms: u64) -> Result<RequestStep, IllegalTransition> {
        let illegal = IllegalTransition {
            state: self.name(),
            event: event.name(),
        };
        let detail = event.detail();
        let mut claim = None;
        let next = match (self, event) {
            (RequestState::Received, RequestEvent::PolicyPassed { broadcast }) => {
                RequestState::Screened { broadcast }
            }
            (RequestState::Screened { broadcast }, RequestEvent::ApprovalAsked { rule }) => {
                RequestState::AwaitingApproval { broadcast, rule }
            }
            (
                RequestState::AwaitingApproval { broadcast, .. },
                RequestEvent::Approved { deadline_ms },
            ) => RequestState::Preparing {
                broadcast,
                deadline_ms,
            },
            (
                RequestState::Received
                | RequestState::Screened { .. }
                | RequestState::AwaitingApproval { .. }
                | RequestState::Preparing { .. },
                RequestEvent::Rejected { reason },
            ) => failed(reason, ExecuteCode::AlreadyDenied),
            (RequestState::Preparing { broadcast, .. }, RequestEvent::Built { draft })
                if draft.broadcast == broadcast =>
            {
                claim = Some(ReservationChange::Take);
                RequestState::Prepared { draft, attempts: 0 }
            }
            // A new reason changes nothing but what is known about it.
            (
                state @ (RequestState::Preparing { .. } | RequestState::Broadcasting { .. }),
                RequestEvent::Delayed { .. },
            ) => state,
            (
                RequestState::Prepared {
                    mut draft,
                    attempts,
                },
                RequestEvent::SessionClaimed {
                    session,
                    deadline_ms,
                },
            ) => {
                draft.deadline_ms = deadline_ms;
                RequestState::Signing {
                    draft,
                    attempt: attempts.saturating_add(1),
                    session,
                }
            }
            (RequestState::Signing { draft, attempt, .. }, RequestEvent::SessionLost { .. }) => {
                RequestState::Prepared {
                    draft,
                    attempts: attempt,
                }
            }
            (
                RequestState::Signing { draft, .. },
                RequestEvent::SignaturesMade { signatures, signed },
            ) if fits(&draft, &signatures, signed.as_ref()) => RequestState::Signed {
                draft,
                signatures,
                signed,
            },
            (
                RequestState::Signed {
                    draft,
                    signatures,
                    signed: Some(signed),
                },
                RequestEvent::SendingStarted,
            ) if draft.broadcast => RequestState::Broadcasting {
                draft,
                signatures,
                signed,
            },
            (
                RequestState::Signed {
                    draft,
                    signatures,
                    signed,
                },
                RequestEvent::HandedOver,
            ) if !draft.broadcast => {
                claim = Some(ReservationChange::Outlive(Box::new(draft)));
                RequestState::Succeeded {
                    signatures,
                    signed,
                    sent: false,
                }
            }
            (
                RequestState::Broadcasting {
                    draft,
                    signatures,
                    signed,
                },
                RequestEvent::NodeAccepted,
            ) => {
                claim = Some(ReservationChange::Outlive(Box::new(draft)));
                RequestState::Succeeded {
                    signatures,
                    signed: Some(signed),
                    sent: true,
                }
            }
            (
                RequestState::Broadcasting {
                    draft, signatures, ..
                },
                RequestEvent::NodeRefused { reason, code },
            ) => {
                // What it would have used goes to other requests: what takes it on the chain is
                // then also what makes this transaction void for ever.
                claim = Some(ReservationChange::Free(Box::new(draft)));
                RequestState::Failed {
                    reason,
                    code,
                    signatures,
                }
            }
            (RequestState::Preparing { .. }, RequestEvent::GaveUp { reason, code }) => {
                failed(reason, code)
            }
            (
                RequestState::Received
                | RequestState::Screened { .. }
                | RequestState::AwaitingApproval { .. }
                | RequestState::Preparing { .. },
                RequestEvent::Restored { reason },
            ) => failed(reason, ExecuteCode::Unspecified),
            (
                RequestState::Prepared { draft, .. } | RequestState::Signing { draft, .. },
                RequestEvent::Restored { reason },
            ) => {
                claim = Some(ReservationChange::Outlive(Box::new(draft)));
                failed(reason, ExecuteCode::Unspecified)
            }
            (
                RequestState::Prepared { draft, .. } | RequestState::Signing { draft, .. },
                RequestEvent::GaveUp { reason, code },
            ) => {
                claim = Some(ReservationChange::Free(Box::new(draft)));
                failed(reason, code)
            }
            _ => return Err(illegal),
        };
        let audit = AuditRecord {
            at_ms: now_ms,
            event: illegal.event.into(),
            state: next.name().into(),
            detail,
        };
        Ok(RequestStep {
            effect: next.effect(),
            next,
            claim,
            audit,
        })
    }
}

impl RequestEvent {
    /// The event's name.
    pub fn name(&self) -> &'static str {
        match self {
            RequestEvent::PolicyPassed { .. } => "PolicyPassed",
            RequestEvent::ApprovalAsked { .. } => "ApprovalAsked",
            RequestEvent::Approved { .. } => "Approved",
            RequestEvent::Rejected { .. } => "Rejected",
            RequestEvent::Delayed { .. } => "Delayed",
            RequestEvent::Built { .. } => "Built",
            RequestEvent::SessionClaimed { .. } => "SessionClaimed",
            RequestEvent::SessionLost { .. } => "SessionLost",
            RequestEvent::SignaturesMade { .. } => "SignaturesMade",
            RequestEvent::SendingStarted => "SendingStarted",
            RequestEvent::HandedOver => "HandedOver",
            RequestEvent::NodeAccepted => "NodeAccepted",
            RequestEvent::NodeRefused { .. } => "NodeRefused",
            RequestEvent::GaveUp { .. } => "GaveUp",
            RequestEvent::Restored { .. } => "Restored",
        }
    }

    fn detail(&self) -> String {
        match self {
            RequestEvent::Rejected { reason }
            | RequestEvent::Delayed { reason }
            | RequestEvent::SessionLost { reason }
            | RequestEvent::NodeRefused { reason, .. }
            | RequestEvent::GaveUp { reason, .. }
            | RequestEvent::Restored { reason } => reason.clone(),
            RequestEvent::Built { draft } => draft
                .claim
                .as_ref()
                .map(|claim| format!("nonce {}", claim.nonce))
                .unwrap_or_default(),
            RequestEvent::SessionClaimed { session, .. } => format!("session {session}"),
            RequestEvent::SignaturesMade { signed, .. } => signed
                .as_ref()
                .map(|signed| signed.tx_hash.clone())
                .unwrap_or_default(),
            RequestEvent::PolicyPassed { .. }
            | RequestEvent::ApprovalAsked { .. }
            | RequestEvent::Approved { .. }
            | RequestEvent::SendingStarted
            | RequestEvent::HandedOver
            | RequestEvent::NodeAccepted => String::new(),
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

fn failed(reason: String, code: ExecuteCode) -> RequestState {
    RequestState::Failed {
        reason,
        code,
        signatures: Vec::new(),
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
