//! The state machine of a batch payment: `Pending -> Approved -> Succeeded | Failed`, and from a failure that paid
//! nobody back to `Approved`.

use serde::{Deserialize, Serialize};

use crate::{
    ids::{BatchId, DerivedFrom, RequestId},
    order::NodeId,
    request::{AuditRecord, IllegalTransition},
};

/// Most signing requests that one batch makes.
pub const MAX_REQUESTS: usize = 64;

/// Where a batch stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BatchState {
    /// It waits for a person.
    Pending,
    /// A person has approved it; its newest signing request is on its way.
    Approved(BatchProgress),
    /// The chain has its payment for good.
    Succeeded(BatchProgress),
    /// Its last signing request has ended without a payment, or a person has rejected it.
    Failed {
        /// A sentence that a person can act on.
        reason: String,
        /// What it came to.
        progress: BatchProgress,
        /// Whether it can be resumed: it is certain that nothing was paid.
        resumable: bool,
    },
}

/// The signing requests of an approved batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchProgress {
    /// The client signer that decides about them, where one was named.
    pub client_signer: Option<NodeId>,
    /// They, in the order in which they were made.
    pub requests: Vec<BatchRequest>,
}

/// A signing request of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchRequest {
    /// What it is for.
    pub stage: BatchStage,
    /// It.
    pub request: RequestId,
}

/// What a signing request of a batch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BatchStage {
    /// Takes back what the batch contract may take: some tokens change an allowance only from 0.
    ResetAllowance,
    /// Lets the batch contract take just the total of the batch.
    Allowance,
    /// Pays.
    Send,
}

/// Something that happened to a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchEvent {
    /// A person approved it, and its first request was made.
    Approved {
        /// The client signer that decides, where one was named.
        client_signer: Option<NodeId>,
        /// The request.
        request: BatchRequest,
    },
    /// The request before was done, and the next one was made.
    StepMade(BatchRequest),
    /// The chain has the payment for good.
    PaymentSent,
    /// Its newest request has ended without doing what it was for, or the next one cannot be made.
    GaveUp {
        /// Why.
        reason: String,
        /// Whether it is certain that nothing was paid.
        resumable: bool,
    },
    /// A person had it tried again, and a request was made.
    Resumed(BatchRequest),
    /// A person does not want it, or no longer wants it.
    Rejected {
        /// Why.
        reason: String,
    },
    /// The store was restored from a backup: what became of it since is not known.
    Restored {
        /// Why it ends.
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

impl BatchProgress {
    /// The newest request that pays.
    pub fn send(&self) -> Option<RequestId> {
        self.newest(|stage| stage == BatchStage::Send)
    }

    /// The newest request that sets the allowance.
    pub fn allowance(&self) -> Option<RequestId> {
        self.newest(|stage| stage != BatchStage::Send)
    }

    fn newest(&self, is_wanted: impl Fn(BatchStage) -> bool) -> Option<RequestId> {
        let mut requests = self.requests.iter().rev();
        let found = requests.find(|request| is_wanted(request.stage))?;
        Some(found.request)
    }

    /// The id of the request that is made next: the same whichever process makes it, so that there is one.
    pub fn next_request(&self, batch: BatchId, stage: BatchStage) -> BatchRequest {
        let mut hashed = Vec::from(*b"covault/batch-request");
        hashed.extend(batch.as_bytes());
        hashed.extend((self.requests.len() as u64).to_be_bytes());
        hashed.push(match stage {
            BatchStage::ResetAllowance => 0,
            BatchStage::Allowance => 1,
            BatchStage::Send => 2,
        });
        BatchRequest {
            stage,
            request: RequestId::derived(
                DerivedFrom::BatchPayment,
                alloy_primitives::keccak256(hashed).0,
            ),
        }
    }

    fn with(mut self, request: BatchRequest) -> Option<Self> {
        let is_new = self
            .requests
            .iter()
            .all(|one| one.request != request.request);
        (is_new && self.requests.len() < MAX_REQUESTS).then(|| {
            self.requests.push(request);
            self
        })
    }
}

impl BatchState {
    /// The state's name.
    pub fn name(&self) -> &'static str {
        match self {
            BatchState::Pending => "Pending",
            BatchState::Approved(_) => "Approved",
            BatchState::Succeeded(_) => "Succeeded",
            BatchState::Failed { .. } => "Failed",
        }
    }

    /// The signing requests that were made for it.
    pub fn progress(&self) -> Option<&BatchProgress> {
        match self {
            BatchState::Pending => None,
            BatchState::Approved(progress)
            | BatchState::Succeeded(progress)
            | BatchState::Failed { progress, .. } => Some(progress),
        }
    }

    /// What an event makes of the state. `now_ms` is in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// [`IllegalTransition`] when the event cannot happen in this state, or the batch has made [`MAX_REQUESTS`]
    /// requests.
    pub fn step(self, event: BatchEvent, now_ms: u64) -> Result<BatchStep, IllegalTransition> {
        let illegal = IllegalTransition {
            state: self.name(),
            event: event.name(),
        };
        let (next, detail) = match (self, event) {
            (
                BatchState::Pending,
                BatchEvent::Approved {
                    client_signer,
                    request,
                },
            ) => {
                let progress = BatchProgress {
                    client_signer,
                    requests: vec![request],
                };
                (BatchState::Approved(progress), detail_of(&request))
            }
            (BatchState::Pending, BatchEvent::Rejected { reason }) => {
                (closed(reason.clone(), BatchProgress::default()), reason)
            }
            (
                BatchState::Failed {
                    progress,
                    resumable: true,
                    ..
                },
                BatchEvent::Rejected { reason },
            )
            // None of its requests is on its way: who has it rejected looks.
            | (BatchState::Approved(progress), BatchEvent::Rejected { reason }) => {
                (closed(reason.clone(), progress), reason)
            }
            (BatchState::Pending, BatchEvent::Restored { reason }) => {
                (closed(reason.clone(), BatchProgress::default()), reason)
            }
            (
                BatchState::Approved(progress)
                | BatchState::Failed {
                    progress,
                    resumable: true,
                    ..
                },
                BatchEvent::Restored { reason },
            ) => (closed(reason.clone(), progress), reason),
            (BatchState::Approved(progress), BatchEvent::StepMade(request))
            | (
                BatchState::Failed {
                    progress,
                    resumable: true,
                    ..
                },
                BatchEvent::Resumed(request),
            ) => match progress.with(request) {
                Some(progress) => (BatchState::Approved(progress), detail_of(&request)),
                None => return Err(illegal),
            },
            // What nodes had refused may have come nevertheless.
            (
                BatchState::Approved(progress) | BatchState::Failed { progress, .. },
                BatchEvent::PaymentSent,
            ) if progress.send().is_some() => (BatchState::Succeeded(progress), String::new()),
            (BatchState::Approved(progress), BatchEvent::GaveUp { reason, resumable }) => {
                let detail = reason.clone();
                let next = BatchState::Failed {
                    reason,
                    resumable: resumable && progress.requests.len() < MAX_REQUESTS,
                    progress,
                };
                (next, detail)
            }
            _ => return Err(illegal),
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

/// Where it ends for good without a payment.
fn closed(reason: String, progress: BatchProgress) -> BatchState {
    BatchState::Failed {
        reason,
        progress,
        resumable: false,
    }
}

fn detail_of(request: &BatchRequest) -> String {
    format!("{:?}: request {}", request.stage, request.request)
}

impl BatchEvent {
    /// The event's name.
    pub fn name(&self) -> &'static str {
        match self {
            BatchEvent::Approved { .. } => "Approved",
            BatchEvent::StepMade(_) => "StepMade",
            BatchEvent::PaymentSent => "PaymentSent",
            BatchEvent::GaveUp { .. } => "GaveUp",
            BatchEvent::Resumed(_) => "Resumed",
            BatchEvent::Rejected { .. } => "Rejected",
            BatchEvent::Restored { .. } => "Restored",
        }
    }
}
