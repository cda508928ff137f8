//! What a signer node asks its orchestrators for the people who approve on the node's own page, and what they answer.
//!
//! Nothing of it is believed: what a person approves is decoded by the node from the bytes that the approval is about,
//! and anyone who signs verifies the approval. An orchestrator that lies, or does not answer, has nothing approved.

use covault_core::{
    approval::{ApprovalTerms, GivenApproval},
    ids::RequestId,
};
use serde::{Deserialize, Serialize};

/// Most requests of one answer.
pub const MAX_PENDING: usize = 50;
/// Most bytes of the requests of one answer.
pub const MAX_PENDING_BYTES: usize = 1 << 20;
/// Most bytes of the envelope of an answer.
pub(crate) const MAX_ANSWER: usize = MAX_PENDING_BYTES + (16 << 10);
/// Most bytes of the envelope of a question: an approval has at most 4 KiB.
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
        /// This one alone.
        request: Option<RequestId>,
    },
    /// Store this approval. The orchestrator verifies it as any other.
    Approve {
        /// What was approved.
        request: RequestId,
        /// Up to which fee, and until when.
        terms: ApprovalTerms,
        /// The proof.
        given: GivenApproval,
    },
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
    /// The approval is stored.
    Approved {
        /// How many are still missing by the vault's own rule.
        missing: u32,
    },
    /// It was not done.
    Refused {
        /// Why, in a sentence.
        problem: String,
    },
}

impl NodeAnswer {
    /// The answer with its text cut to what people can be shown; `None`: it has more than an honest one.
    pub(crate) fn sanitized(self) -> Option<Self> {
        match self {
            Self::Pending { requests, .. } if requests.len() > MAX_PENDING => None,
            Self::Refused { problem } => {
                let shown = problem.chars().filter(|letter| !letter.is_control());
                Some(Self::Refused {
                    problem: shown.take(MAX_PROBLEM).collect(),
                })
            }
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
    }
}
