//! The state machine: which event leads where, and what is to be done then.
//!
//! ```text
//! Received -> Screened -> AwaitingApproval -> Preparing -> Prepared <-> Signing -> Signed
//!     Preparing -> AwaitingApproval              (it costs more than was approved)
//!     Signing -> AwaitingApproval -> Prepared    (a signer wants more approvals)
//!     Preparing, Signing -> AwaitingApproval     (signers hold what was approved for a time; then it continues)
//!     Signed -> Broadcasting -> Succeeded        (sent by us)
//!     Signed -> Succeeded                        (messages, broadcastTx=false)
//!     InDoubt -> Succeeded                       (a final block has its transaction)
//!     anything before Signed, and Broadcasting -> Failed
//!     AwaitingApproval -> InDoubt -> Failed      (it ends after signers were asked, and then can never come)
//!     anything before Prepared -> Failed         (found in a restored backup)
//!     Prepared or Signing -> InDoubt -> Failed   (the same: it may have been signed and sent since)
//!     Succeeded -> Failed                        (broadcastTx=false, and its client gives it up)
//! ```
//! A request is rejected before `Prepared` only, while it waits for people, or when its client has its transaction
//! to send. One that ends while it waits for people although signers were asked for its transaction is in doubt: some
//! may have signed, and a hostile one can send what they made. So is one that a restored backup shows with a
//! transaction. From `Prepared` on it signs one draft: a new attempt is a new session for the same digest, also after
//! people were asked once more, since a signer may have claimed it. After `Signed` the bytes never change.

use serde::{Deserialize, Serialize};

use super::{ApprovalRule, BuiltDraft, Consent, Draft, PersonApproval, RequestState};
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
    /// Nobody has to agree.
    Approved {
        /// When signing is given up, in milliseconds since the Unix epoch.
        deadline_ms: u64,
    },
    /// A person agreed, which was checked. With enough of them it continues.
    ApprovalGiven {
        /// Who.
        approval: Box<PersonApproval>,
        /// When signing is given up then, in milliseconds since the Unix epoch.
        deadline_ms: u64,
    },
    /// A signer wants more approvals than there are, or those that there are do not cover the transaction.
    ApprovalWanted {
        /// Which signer, and whose; or why not.
        reason: String,
    },
    /// Signers sign what was approved only when a time is over in which people can still reject it.
    ApprovalHeld {
        /// Until when, in milliseconds since the Unix epoch.
        until_ms: u64,
        /// Which signers, and until when.
        reason: String,
    },
    /// That time is over. With enough approvals that still hold it continues.
    HoldEnded {
        /// When signing is given up then, in milliseconds since the Unix epoch.
        deadline_ms: u64,
    },
    /// Too few have agreed in time.
    ApprovalExpired,
    /// An approver or token rejected it.
    Rejected {
        /// Who and why.
        reason: String,
    },
    /// It cannot continue now, and will be tried again.
    Delayed {
        /// Why.
        reason: String,
    },
    /// The transaction was built.
    Built {
        /// It.
        draft: Box<Draft>,
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
    /// What it is in doubt about can never come.
    NeverComes {
        /// Why, where the nodes say it.
        reason: Option<String>,
    },
    /// What it is in doubt about is in a final block.
    FoundFinal {
        /// Those in the block; empty where its nodes were not asked for them.
        signatures: Vec<Signature>,
        /// The transaction in the block; without its bytes where the signatures are not known.
        signed: Signed,
    },
    /// The store was restored from a backup in which it was not signed: its outcome since then is unknown. What it
    /// holds may be used up by now.
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
    /// Follow the transaction until it is final, or never will be. The request itself is over.
    Track,
    /// Watch until the transaction that nobody has here can never come.
    Doubt,
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
    /// Who has agreed, where that changes.
    pub consent: Option<Consent>,
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
            RequestState::InDoubt { .. } => "InDoubt",
            RequestState::Succeeded { .. } => "Succeeded",
            RequestState::Failed { .. } => "Failed",
        }
    }

    /// Whether nothing more is done for the request; its transaction may still be followed, or given up.
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            RequestState::Succeeded { .. } | RequestState::Failed { .. }
        )
    }

    /// Whether all that is left to do is to follow its transaction.
    pub fn is_over(&self) -> bool {
        self.is_final() || matches!(self, RequestState::InDoubt { .. })
    }

    /// Whether it has failed, or will: it gets no transaction.
    pub fn is_given_up(&self) -> bool {
        matches!(
            self,
            RequestState::Failed { .. } | RequestState::InDoubt { .. }
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
            RequestState::InDoubt { .. } => Some(RequestEffect::Doubt),
            RequestState::Succeeded {
                sent: true,
                signed: Some(_),
                ..
            } => Some(RequestEffect::Track),
            RequestState::Received
            | RequestState::Screened { .. }
            | RequestState::AwaitingApproval { .. }
            | RequestState::Succeeded { .. }
            | RequestState::Failed { .. } => None,
        }
    }

    /// The next state of a request with these approvals after an event. `now_ms` is in milliseconds
    /// since the Unix epoch.
    ///
    /// # Errors
    /// [`IllegalTransition`] when the event cannot happen in this state.
    pub fn step(
        self,
        consent: &Consent,
        event: RequestEvent,
        now_ms: u64,
    ) -> Result<RequestStep, IllegalTransition> {
        let illegal = IllegalTransition {
            state: self.name(),
            event: event.name(),
        };
        let detail = event.detail();
        let mut claim = None;
        let mut agreed = None;
        let next = match (self, event) {
            (RequestState::Received, RequestEvent::PolicyPassed { broadcast }) => {
                RequestState::Screened { broadcast }
            }
            (RequestState::Screened { broadcast }, RequestEvent::ApprovalAsked { rule }) => {
                agreed = Some(Consent::new(rule).waiting(now_ms));
                RequestState::AwaitingApproval {
                    broadcast,
                    built: None,
                }
            }
            (
                RequestState::AwaitingApproval {
                    broadcast,
                    built: None,
                },
                RequestEvent::Approved { deadline_ms },
            ) if consent.rule.needs() == 0 => RequestState::Preparing {
                broadcast,
                deadline_ms,
            },
            (
                RequestState::AwaitingApproval { broadcast, built },
                RequestEvent::ApprovalGiven {
                    approval,
                    deadline_ms,
                },
            ) if consent.takes(&approval, now_ms) => {
                let consent = agreed.insert(consent.with(*approval, now_ms));
                match consent.is_enough(now_ms) {
                    true => approved(broadcast, built, deadline_ms, &mut claim),
                    false => RequestState::AwaitingApproval { broadcast, built },
                }
            }
            (
                RequestState::AwaitingApproval { broadcast, built },
                RequestEvent::HoldEnded { deadline_ms },
            ) if consent.is_hold_over(now_ms) => {
                let consent = agreed.insert(consent.clone().released(now_ms));
                match consent.is_enough(now_ms) {
                    true => approved(broadcast, built, deadline_ms, &mut claim),
                    false => RequestState::AwaitingApproval { broadcast, built },
                }
            }
            (RequestState::AwaitingApproval { built, .. }, RequestEvent::ApprovalExpired)
                if consent.expires_at_ms <= now_ms =>
            {
                ended(built, consent.expired(now_ms), ExecuteCode::AlreadyDenied)
            }
            (RequestState::AwaitingApproval { built, .. }, RequestEvent::Rejected { reason }) => {
                ended(built, reason, ExecuteCode::AlreadyDenied)
            }
            (
                RequestState::AwaitingApproval { built, .. },
                RequestEvent::GaveUp { reason, code },
            ) => ended(built, reason, code),
            (RequestState::AwaitingApproval { built, .. }, RequestEvent::Restored { reason }) => {
                ended(built, reason, ExecuteCode::Unspecified)
            }
            (
                RequestState::InDoubt { reason, code, .. },
                RequestEvent::NeverComes { reason: void },
            ) => {
                let reason = match void {
                    Some(void) => format!("{reason}; {void}"),
                    None => reason,
                };
                failed(reason, code)
            }
            (RequestState::InDoubt { .. }, RequestEvent::FoundFinal { signatures, signed }) => {
                // Who sent it does not matter. What it used up is as it was: the chain has used it.
                RequestState::Succeeded {
                    signatures,
                    signed: Some(signed),
                    sent: true,
                    handed_over: None,
                }
            }
            (
                RequestState::Preparing { broadcast, .. },
                RequestEvent::ApprovalWanted { reason },
            ) if !consent.rule.of.is_empty() => {
                agreed = Some(consent.clone().wanting(reason, now_ms));
                RequestState::AwaitingApproval {
                    broadcast,
                    built: None,
                }
            }
            (
                RequestState::Preparing { broadcast, .. },
                RequestEvent::ApprovalHeld { until_ms, reason },
            ) if !consent.rule.of.is_empty() => {
                agreed = Some(consent.clone().held(reason, until_ms, now_ms));
                RequestState::AwaitingApproval {
                    broadcast,
                    built: None,
                }
            }
            (
                RequestState::Signing { draft, attempt, .. },
                event @ (RequestEvent::ApprovalWanted { .. } | RequestEvent::ApprovalHeld { .. }),
            ) if !consent.rule.of.is_empty() => {
                // People take time, so other requests may use what it holds. The draft stays the only one that this
                // request can ever sign.
                claim = Some(ReservationChange::Free(Box::new(draft.clone())));
                let consent = consent.clone();
                agreed = Some(match event {
                    RequestEvent::ApprovalHeld { until_ms, reason } => {
                        consent.held(reason, until_ms, now_ms)
                    }
                    RequestEvent::ApprovalWanted { reason } => consent.wanting(reason, now_ms),
                    event => consent.wanting(event.detail(), now_ms),
                });
                RequestState::AwaitingApproval {
                    broadcast: draft.broadcast,
                    built: Some(Box::new(BuiltDraft {
                        draft,
                        attempts: attempt,
                    })),
                }
            }
            (
                RequestState::Received
                | RequestState::Screened { .. }
                | RequestState::Preparing { .. },
                RequestEvent::Rejected { reason },
            ) => failed(reason, ExecuteCode::AlreadyDenied),
            (
                RequestState::Succeeded {
                    signatures,
                    handed_over: Some(_),
                    ..
                },
                RequestEvent::Rejected { reason },
            ) => {
                // What it holds goes with the commit, where the rows say that it still holds it.
                RequestState::Failed {
                    reason,
                    code: ExecuteCode::AlreadyDenied,
                    signatures,
                }
            }
            (RequestState::Preparing { broadcast, .. }, RequestEvent::Built { draft })
                if draft.broadcast == broadcast =>
            {
                claim = Some(ReservationChange::Take);
                RequestState::Prepared {
                    draft: *draft,
                    attempts: 0,
                }
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
                let draft = Box::new(draft);
                claim = Some(ReservationChange::Outlive(draft.clone()));
                RequestState::Succeeded {
                    handed_over: signed.is_some().then_some(draft),
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
                    handed_over: None,
                }
            }
            (
                RequestState::Broadcasting {
                    draft, signatures, ..
                },
                RequestEvent::NodeRefused { reason, code },
            ) => {
                // What it would have used goes to other requests: what takes it on the chain is
                // then also what makes this transaction void for ever. A node that has lied has the bytes, so the
                // next request of the account has to get this number, whatever that node offers
                // (`requests/refused/` of the orchestrator).
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
                | RequestState::Preparing { .. },
                RequestEvent::Restored { reason },
            ) => failed(reason, ExecuteCode::Unspecified),
            (
                RequestState::Prepared { draft, .. } | RequestState::Signing { draft, .. },
                RequestEvent::Restored { reason },
            ) => {
                claim = Some(ReservationChange::Outlive(Box::new(draft.clone())));
                given_up(draft, reason, ExecuteCode::Unspecified)
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
            consent: agreed,
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
            RequestEvent::ApprovalGiven { .. } => "ApprovalGiven",
            RequestEvent::ApprovalWanted { .. } => "ApprovalWanted",
            RequestEvent::ApprovalHeld { .. } => "ApprovalHeld",
            RequestEvent::HoldEnded { .. } => "HoldEnded",
            RequestEvent::ApprovalExpired => "ApprovalExpired",
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
            RequestEvent::NeverComes { .. } => "NeverComes",
            RequestEvent::FoundFinal { .. } => "FoundFinal",
        }
    }

    fn detail(&self) -> String {
        match self {
            // A line of each signer.
            RequestEvent::ApprovalWanted { reason } | RequestEvent::ApprovalHeld { reason, .. } => {
                reason.replace('\n', "; ")
            }
            RequestEvent::Rejected { reason }
            | RequestEvent::Delayed { reason }
            | RequestEvent::SessionLost { reason }
            | RequestEvent::NodeRefused { reason, .. }
            | RequestEvent::GaveUp { reason, .. }
            | RequestEvent::Restored { reason } => reason.clone(),
            RequestEvent::NeverComes { reason } => reason.clone().unwrap_or_default(),
            RequestEvent::FoundFinal { signed, .. } => signed.tx_hash.clone(),
            RequestEvent::ApprovalGiven { approval, .. } => {
                format!("approved by {}", approval.person)
            }
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
            | RequestEvent::ApprovalExpired
            | RequestEvent::HoldEnded { .. }
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

/// Where a request continues that enough people have approved.
fn approved(
    broadcast: bool,
    built: Option<Box<BuiltDraft>>,
    deadline_ms: u64,
    claim: &mut Option<ReservationChange>,
) -> RequestState {
    let Some(built) = built else {
        return RequestState::Preparing {
            broadcast,
            deadline_ms,
        };
    };
    let BuiltDraft {
        mut draft,
        attempts,
    } = *built;
    // If another request holds by now what this one used, that one keeps it, and this one ends.
    *claim = Some(ReservationChange::Take);
    draft.deadline_ms = deadline_ms;
    RequestState::Prepared { draft, attempts }
}

/// Where a request ends that waited for people. What signers were asked for they may have signed.
fn ended(built: Option<Box<BuiltDraft>>, reason: String, code: ExecuteCode) -> RequestState {
    match built {
        Some(built) => given_up(built.draft, reason, code),
        None => failed(reason, code),
    }
}

/// Where a request ends of which signers may have signed this.
fn given_up(draft: Draft, reason: String, code: ExecuteCode) -> RequestState {
    // A message is on no chain.
    if draft.unsigned.bytes.is_empty() {
        return failed(reason, code);
    }
    RequestState::InDoubt {
        draft: Box::new(draft),
        reason,
        code,
    }
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
