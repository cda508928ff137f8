//! What a signer node asks its orchestrators for the people who approve on the node's own page, and what they answer.
//!
//! Nothing of it is believed: what a person approves is decoded by the node from the bytes that the approval is about,
//! and anyone who signs verifies the approval. An orchestrator that lies, or does not answer, has nothing approved.

use covault_core::{
    approval::{ApprovalProof, ApprovalTerms, GivenApproval, MAX_LIST},
    ids::RequestId,
};
use serde::{Deserialize, Serialize};

/// Most requests of one answer: as many as one gesture is about.
pub const MAX_PENDING: usize = MAX_LIST;
/// Most bytes of the requests of one answer.
pub const MAX_PENDING_BYTES: usize = 1 << 20;
/// Most bytes of the envelope of an answer.
pub(crate) const MAX_ANSWER: usize = MAX_PENDING_BYTES + (16 << 10);
/// Most bytes of the envelope of a question: an approval has at most 4 KiB, and what it is about 40 bytes a request.
pub(crate) const MAX_QUESTION: usize = 16 << 10;
/// Characters of a sentence of an orchestrator that are kept.
const MAX_PROBLEM: usize = 300;

/// A question, with its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeQuestionMsg {
    /// The node's clock, in milliseconds since the Unix epoch; grows with each question, so that none counts twice.
    pub at_ms: u64,
    /// What is asked.
    pub question: NodeQuestion,
}

/// What a node asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeQuestion {
    /// Which requests wait for people, of vaults whose signers the node is among?
    Pending {
        /// These alone, at most [`MAX_PENDING`]; empty: all.
        requests: Vec<RequestId>,
    },
    /// Store this approval. The orchestrator verifies it as any other.
    Approve {
        /// What was approved with it, at most [`MAX_PENDING`].
        requests: Vec<ApprovedRequest>,
        /// The proof.
        given: GivenApproval,
    },
    /// Store this rejection, of requests of one vault. The orchestrator verifies it as any other.
    Reject {
        /// What was rejected, at most [`MAX_PENDING`].
        requests: Vec<RequestId>,
        /// Why, in the person's words; may be empty.
        reason: String,
        /// The proof.
        proof: ApprovalProof,
    },
}

/// What a person has approved of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovedRequest {
    /// It.
    pub request: RequestId,
    /// Up to which fee, and until when.
    pub terms: ApprovalTerms,
}

/// What became of one request that was approved or rejected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeOutcome {
    /// It is stored.
    Done {
        /// How many approvals are still missing by the vault's own rule.
        missing: u32,
    },
    /// It is not stored.
    Refused {
        /// Why, in a sentence.
        problem: String,
    },
}

impl NodeQuestion {
    /// Whether it has no more than an honest one.
    pub(crate) fn is_bounded(&self) -> bool {
        let (least, count) = match self {
            Self::Pending { requests } => (0, requests.len()),
            Self::Approve { requests, .. } => (1, requests.len()),
            Self::Reject { requests, .. } => (1, requests.len()),
        };
        (least..=MAX_PENDING).contains(&count)
    }
}

/// What an orchestrator answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeAnswer {
    /// What waits.
    Pending {
        /// Protobuf bytes of a `SigningRequest` of the platform schema each, with what people are shown; at most
        /// [`MAX_PENDING`], of [`MAX_PENDING_BYTES`] together. Those that are due first come first.
        requests: Vec<Vec<u8>>,
        /// More wait than these.
        more: bool,
    },
    /// What became of each request of the question, in its order.
    Done {
        /// Each stands for itself.
        outcomes: Vec<NodeOutcome>,
    },
    /// Nothing was done.
    Refused {
        /// Why, in a sentence.
        problem: String,
    },
}

/// A sentence of an orchestrator, as people can be shown it.
fn shown(problem: &str) -> String {
    let shown = problem.chars().filter(|letter| !letter.is_control());
    shown.take(MAX_PROBLEM).collect()
}

impl NodeAnswer {
    /// The answer with its text cut to what people can be shown; `None`: it has more than an honest one.
    pub(crate) fn sanitized(self) -> Option<Self> {
        match self {
            Self::Pending { requests, .. } if requests.len() > MAX_PENDING => None,
            Self::Done { outcomes } if outcomes.len() > MAX_PENDING => None,
            Self::Done { outcomes } => {
                let outcomes = outcomes.into_iter().map(|outcome| match outcome {
                    NodeOutcome::Refused { problem } => NodeOutcome::Refused {
                        problem: shown(&problem),
                    },
                    done => done,
                });
                Some(Self::Done {
                    outcomes: outcomes.collect(),
                })
            }
            Self::Refused { problem } => Some(Self::Refused {
                problem: shown(&problem),
            }),
            answer => Some(answer),
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn answer__should_be_cut_to_what_people_can_be_shown() {
        let pending = |count| NodeAnswer::Pending {
            requests: vec![Vec::new(); count],
            more: false,
        };
        assert!(pending(MAX_PENDING).sanitized().is_some());
        assert!(pending(MAX_PENDING + 1).sanitized().is_none());
        let problem = format!("no\u{1b}[2J{}", "x".repeat(5000));
        let Some(NodeAnswer::Refused { problem }) = (NodeAnswer::Refused { problem }).sanitized()
        else {
            panic!("another answer")
        };
        assert!(problem.starts_with("no[2Jxxx"));
        assert_eq!(problem.chars().count(), MAX_PROBLEM);
        let done = |count| NodeAnswer::Done {
            outcomes: vec![
                NodeOutcome::Refused {
                    problem: "\u{1b}".repeat(400) + "no",
                };
                count
            ],
        };
        assert!(done(MAX_PENDING + 1).sanitized().is_none());
        let said = NodeOutcome::Refused {
            problem: "no".into(),
        };
        let outcomes = vec![said; MAX_PENDING];
        assert_eq!(
            done(MAX_PENDING).sanitized(),
            Some(NodeAnswer::Done { outcomes })
        );
    }

    #[test]
    fn question__should_be_about_no_more_requests_than_one_gesture_and_fit_its_envelope() {
        let request = RequestId::from_bytes([1; 16]);
        let terms = ApprovalTerms {
            most_fee: u128::MAX,
            valid_until_ms: u64::MAX,
        };
        // The most that an approval may have with its list.
        let proof = |bytes| ApprovalProof::Ssh("x".repeat(bytes));
        let approve = |count| NodeQuestion::Approve {
            requests: vec![ApprovedRequest { request, terms }; count],
            given: GivenApproval {
                list: vec![[1; 32]; 100],
                proof: proof(4096),
            },
        };
        let reject = |count| NodeQuestion::Reject {
            requests: vec![request; count],
            reason: "\u{1f4a3}".repeat(200),
            proof: proof(4096),
        };
        let pending = |count| NodeQuestion::Pending {
            requests: vec![request; count],
        };
        for question in [approve(100), reject(100), pending(100), pending(0)] {
            assert!(question.is_bounded());
            let at_ms = u64::MAX;
            let bytes = crate::message::encode(&NodeQuestionMsg { at_ms, question }).unwrap();
            // Beside it there are a header, a signature and what seals it.
            assert!(bytes.len() + 1024 < MAX_QUESTION, "{}", bytes.len());
        }
        for question in [
            approve(101),
            reject(101),
            pending(101),
            approve(0),
            reject(0),
        ] {
            assert!(!question.is_bounded());
        }
    }
}
