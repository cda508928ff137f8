//! Questions of signer nodes for the people who approve on the nodes' own pages. The cluster answers none itself: who
//! knows the requests takes them here.

use std::collections::HashMap;

use covault_core::{fault::Fault, ids::SessionId, order::NodeId};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::{Cluster, ClusterInner};
use crate::{
    envelope::{EnvelopeHeader, EnvelopeKind},
    message::{SKEW_MS, decode, encode},
    questions::{NodeAnswer, NodeQuestion, NodeQuestionMsg},
};

/// Questions that wait to be answered, of all nodes.
const MAX_WAITING: usize = 64;

/// Why a question is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum QuestionError {
    #[error("the question cannot be read, or is about more than 100 requests")]
    Unreadable,
    #[error("the question's clock and ours are more than a minute apart")]
    Skewed,
    #[error("the question is not newer than one before")]
    Repeated,
    #[error("too many questions wait")]
    TooMany,
}

/// A question of an admitted node.
#[derive(Debug)]
pub struct AskedQuestion {
    /// Who asks.
    pub node: NodeId,
    /// What is asked.
    pub question: NodeQuestion,
    session: SessionId,
}

/// What nodes have asked.
pub(super) struct NodeQuestions {
    sender: mpsc::Sender<AskedQuestion>,
    receiver: Mutex<Option<mpsc::Receiver<AskedQuestion>>>,
    /// When each node asked last, by its clock: what is sent again counts for nothing.
    last_ms: Mutex<HashMap<NodeId, u64>>,
}

impl Default for NodeQuestions {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        Self {
            sender,
            receiver: Mutex::new(Some(receiver)),
            last_ms: Mutex::default(),
        }
    }
}

impl Cluster {
    /// The questions of nodes from now on; `None` when they were taken before. Those that nobody takes are dropped.
    pub fn questions(&self) -> Option<mpsc::Receiver<AskedQuestion>> {
        self.shared.questions.receiver.lock().take()
    }

    /// Answers a question.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when the bus does not take it.
    pub fn answer(&self, asked: &AskedQuestion, answer: &NodeAnswer) -> Result<(), Fault> {
        let codec = &self.shared.codec;
        let header = EnvelopeHeader {
            session: asked.session,
            ..EnvelopeHeader::outside_sessions(EnvelopeKind::Answer, codec.id(), asked.node)
        };
        codec.send(header, &encode(answer)?)
    }
}

impl ClusterInner {
    /// Takes a question whose sender is certain.
    pub(super) fn asked(
        &self,
        node: NodeId,
        session: SessionId,
        body: &[u8],
    ) -> Result<(), QuestionError> {
        let question: Option<NodeQuestionMsg> = decode(body);
        let NodeQuestionMsg { at_ms, question } = question
            .filter(|it| it.question.is_bounded())
            .ok_or(QuestionError::Unreadable)?;
        if at_ms.abs_diff(self.clock.now_ms()) > SKEW_MS {
            return Err(QuestionError::Skewed);
        }
        {
            let mut last_ms = self.questions.last_ms.lock();
            // Admitted nodes alone are heard, so there are few.
            let last_ms = last_ms.entry(node).or_default();
            if at_ms <= *last_ms {
                return Err(QuestionError::Repeated);
            }
            *last_ms = at_ms;
        }
        let asked = AskedQuestion {
            node,
            question,
            session,
        };
        let sent = self.questions.sender.try_send(asked);
        sent.map_err(|_| QuestionError::TooMany)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use covault_core::testing::ManualClock;

    use super::*;
    use crate::{
        bus::memory::MemoryBus, cluster::ClusterConfig, identity::NodeIdentity,
        test_support::SystemEntropy,
    };

    const NOW_MS: u64 = 1_000_000;

    #[tokio::test]
    async fn question__should_be_taken_once_and_only_of_these_minutes() {
        let cluster = Cluster::start(ClusterConfig {
            identity: Arc::new(NodeIdentity::generate(&SystemEntropy)),
            bus: MemoryBus::new(),
            clock: Arc::new(ManualClock::at(NOW_MS)),
            entropy: Arc::new(SystemEntropy),
            live_for: Duration::from_secs(3),
            attempt: Duration::from_secs(2),
        })
        .await
        .unwrap();
        let mut questions = cluster.questions().unwrap();
        assert!(cluster.questions().is_none());
        let ask = |node: u8, at_ms: u64| {
            let question = NodeQuestion::Pending {
                requests: Vec::new(),
            };
            let body = encode(&NodeQuestionMsg { at_ms, question }).unwrap();
            let session = SessionId::from_bytes([5; 16]);
            cluster.shared.asked(NodeId([node; 32]), session, &body)
        };
        // Again, older, and of another hour: none of these.
        for (at_ms, expected) in [
            (NOW_MS, Ok(())),
            (NOW_MS, Err(QuestionError::Repeated)),
            (NOW_MS - 1, Err(QuestionError::Repeated)),
            (NOW_MS + SKEW_MS + 1, Err(QuestionError::Skewed)),
            (0, Err(QuestionError::Skewed)),
        ] {
            assert_eq!(ask(1, at_ms), expected);
        }
        ask(2, NOW_MS - 1).unwrap();
        ask(1, NOW_MS + 1).unwrap();
        let mut heard = Vec::new();
        while let Ok(asked) = questions.try_recv() {
            heard.push(asked.node.0[0]);
        }
        assert_eq!(heard, [1, 2, 1]);
        // No more wait than that.
        let refused = (2..1_000).filter(|more| ask(1, NOW_MS + more).is_err());
        assert_eq!(refused.count(), 998 - MAX_WAITING);
        assert_eq!(questions.len(), MAX_WAITING);
    }
}
