//! Calls to nodes, and which of their answers are accepted.
//!
//! A node that answers without end, or at a length that no honest answer has, fills its own few
//! places in the call and nothing else.

use std::{collections::HashMap, sync::Arc};

use covault_core::{
    fault::Fault,
    ids::SessionId,
    order::NodeId,
    signature::{Curve, Signature},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::{Cluster, ClusterInner, lock};
use crate::{message::OrderReply, meter, proofs::MAX_PROOFS, shares::backup::MAX_BACKUP};

/// Bytes of a reply without signatures and backups, as it is on the bus. An honest node needs a few
/// hundred; its reasons may be long.
const SMALL_REPLY_BYTES: usize = 64 << 10;
/// Bytes of a reply with proofs: each has a few hundred bytes for every holder.
const PROOF_REPLY_BYTES: usize = 4 * SMALL_REPLY_BYTES;
/// Bytes of a signature in a reply, at most.
const MAX_SIGNATURE_LEN: usize = 80;
/// Bytes of a public key, and of a signed statement.
const MAX_KEY: usize = 65;
const MAX_STATEMENT: usize = 64;
/// Rounds of a run, at most.
const MAX_ROUNDS: u16 = 16;
/// Answers of one node that wait in a call until it takes them.
pub(super) const MAX_REPLIES_PER_NODE: usize = 16;
/// The same where an answer may be large.
const MAX_LARGE_REPLIES_PER_NODE: usize = 1;

/// Who says what about which attempt.
pub(super) type NodeReply = (NodeId, u32, OrderReply);

/// What a call asks for, and so which answers it takes beside refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpectedReply {
    /// A root key.
    Key,
    /// This many signatures, for keys of this curve.
    Signatures(usize, Curve),
    /// Signed statements about new shares.
    Statements,
    /// That new shares are in use.
    Activation,
    /// Encrypted shares.
    Backups,
    /// Statements about this many addresses.
    Attestations(usize),
    /// A client signer's yes.
    Approval,
    /// That approvals are noted.
    Noted,
}

impl ExpectedReply {
    /// Most bytes of an answer, as it is on the bus.
    fn most_bytes(self) -> usize {
        match self {
            Self::Key | Self::Activation | Self::Approval | Self::Noted => SMALL_REPLY_BYTES,
            Self::Statements => PROOF_REPLY_BYTES,
            Self::Signatures(count, _) => {
                SMALL_REPLY_BYTES.saturating_add(count.saturating_mul(MAX_SIGNATURE_LEN))
            }
            Self::Backups => SMALL_REPLY_BYTES.saturating_add(MAX_BACKUP),
            Self::Attestations(count) => {
                SMALL_REPLY_BYTES.saturating_add(count.saturating_mul(MAX_SIGNATURE_LEN))
            }
        }
    }

    fn each(self) -> usize {
        match self {
            Self::Backups => MAX_LARGE_REPLIES_PER_NODE,
            _ => MAX_REPLIES_PER_NODE,
        }
    }

    /// Whether the answer is of a kind, and of a size, that can answer the call.
    fn takes(self, reply: &OrderReply) -> bool {
        match (self, reply) {
            (_, OrderReply::Refused(_) | OrderReply::Failed { .. }) => true,
            (
                Self::Key,
                OrderReply::KeyMade {
                    root, signature, ..
                },
            ) => {
                root.public_key.len() <= MAX_KEY && signature.len() == super::attest::SIGNATURE_LEN
            }
            (Self::Signatures(count, curve), OrderReply::Signed(signatures)) => {
                let fits = |signature: &Signature| signature.curve() == curve;
                signatures.len() == count && signatures.iter().all(fits)
            }
            (Self::Signatures(..), OrderReply::NoNonces { .. } | OrderReply::Busy) => true,
            (Self::Statements, OrderReply::Prepared(signature)) => signature.len() <= MAX_STATEMENT,
            (Self::Approval, OrderReply::Approved(signature)) => signature.len() <= MAX_STATEMENT,
            (Self::Approval, OrderReply::Busy) => true,
            (Self::Noted, OrderReply::Noted { .. } | OrderReply::Busy) => true,
            (Self::Statements, OrderReply::NotPermitted) => true,
            (Self::Statements, OrderReply::Behind { proven, .. }) => proven.len() <= MAX_PROOFS,
            (Self::Key | Self::Statements, OrderReply::Round { round, of }) => {
                (1..=MAX_ROUNDS).contains(of) && (1..=*of).contains(round)
            }
            (Self::Activation, OrderReply::Activated) => true,
            (Self::Backups, OrderReply::Backup(sealed)) => sealed.len() <= MAX_BACKUP,
            (Self::Attestations(count), OrderReply::Attested(signatures)) => {
                signatures.len() == count.saturating_mul(super::attest::SIGNATURE_LEN)
            }
            (
                _,
                OrderReply::KeyMade { .. }
                | OrderReply::Signed(_)
                | OrderReply::NoNonces { .. }
                | OrderReply::Prepared(_)
                | OrderReply::Activated
                | OrderReply::Backup(_)
                | OrderReply::Attested(_)
                | OrderReply::NotPermitted
                | OrderReply::Busy
                | OrderReply::Approved(_)
                | OrderReply::Noted { .. }
                | OrderReply::Round { .. }
                | OrderReply::Behind { .. },
            ) => false,
        }
    }
}

/// The calls that wait, by session.
pub(super) type PendingCalls = HashMap<SessionId, PendingCall>;

/// A call that waits.
pub(super) struct PendingCall {
    expected: ExpectedReply,
    /// Of which generation of shares the answers are.
    epoch: u32,
    /// The furthest round that each of them said it was in, and how many there are.
    rounds: HashMap<NodeId, (u16, u16)>,
    /// Whose answers count, and the places that each has left.
    permits: HashMap<NodeId, Arc<Semaphore>>,
    replies: mpsc::Sender<(NodeReply, OwnedSemaphorePermit)>,
}

/// Where one node's answers to one call go.
pub(super) struct ReplySlot {
    expected: ExpectedReply,
    permits: Arc<Semaphore>,
    replies: mpsc::Sender<(NodeReply, OwnedSemaphorePermit)>,
}

/// Why an answer is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ReplyError {
    #[error("flood: too many queued replies of this node")]
    Flood,
    #[error("the reply is larger than any honest one")]
    TooLarge,
    #[error("the reply does not match the request")]
    Unasked,
}

impl PendingCall {
    /// Where the node's answers go, if it was asked, about shares of this epoch.
    pub(super) fn slot(&self, node: &NodeId, epoch: u32) -> Option<ReplySlot> {
        let permits = self.permits.get(node).filter(|_| self.epoch == epoch)?;
        Some(ReplySlot {
            expected: self.expected,
            permits: Arc::clone(permits),
            replies: self.replies.clone(),
        })
    }

    /// The furthest round that two nodes have reached.
    fn round(&self) -> Option<(u16, u16)> {
        let is_seconded = |(round, of): &&(u16, u16)| {
            let said = self.rounds.values();
            let those = said.filter(|(reached, all)| all == of && reached >= round);
            those.count() > 1
        };
        self.rounds.values().filter(is_seconded).max().copied()
    }
}

impl ReplySlot {
    /// Whether an answer of this size is worth verifying.
    pub(super) fn has_room(&self, bytes: usize) -> Result<(), ReplyError> {
        if bytes > self.expected.most_bytes() {
            return Err(ReplyError::TooLarge);
        }
        if self.permits.available_permits() == 0 {
            return Err(ReplyError::Flood);
        }
        Ok(())
    }

    /// Hands over what the node, who is certain, has answered. The call may be over.
    pub(super) fn give(
        &self,
        node: NodeId,
        attempt: u32,
        reply: OrderReply,
    ) -> Result<(), ReplyError> {
        if !self.expected.takes(&reply) {
            return Err(ReplyError::Unasked);
        }
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let permit = permit.map_err(|_| ReplyError::Flood)?;
        let said = ((node, attempt, reply.sanitized()), permit);
        match self.replies.try_send(said) {
            Err(mpsc::error::TrySendError::Full(_)) => Err(ReplyError::Flood),
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
        }
    }
}

/// A registered call; ends with its scope.
pub(super) struct CallGuard<'a> {
    shared: &'a ClusterInner,
    session: SessionId,
    pub(super) replies: ReplyReceiver,
}

/// What was answered and not yet taken.
pub(super) struct ReplyReceiver(mpsc::Receiver<(NodeReply, OwnedSemaphorePermit)>);

impl ReplyReceiver {
    /// The next answer; its node may send another one from now on.
    pub(super) async fn recv(&mut self) -> Option<NodeReply> {
        self.0.recv().await.map(|(said, _)| said)
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
impl CallGuard<'_> {
    /// How many answers of a node wait.
    pub(super) fn kept(&self, node: &NodeId) -> usize {
        let calls = lock(&self.shared.calls);
        let call = calls.get(&self.session).unwrap();
        call.expected.each() - call.permits[node].available_permits()
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        let mut calls = lock(&self.shared.calls);
        calls.remove(&self.session);
        meter::calls(calls.len());
    }
}

impl Cluster {
    /// The furthest round that two nodes of a key generation or reshare say they have reached, and how many there are: one
    /// alone is not believed. `None`: they have not said so, or the run is over. For people.
    pub fn round(&self, session: &SessionId) -> Option<(u16, u16)> {
        lock(&self.shared.calls).get(session)?.round()
    }
}

impl ClusterInner {
    /// A node says which round of a run it is in.
    pub(super) fn note_round(&self, session: SessionId, node: NodeId, round: u16, of: u16) {
        if let Some(call) = lock(&self.calls).get_mut(&session) {
            let (reached, all) = call.rounds.entry(node).or_insert((round, of));
            if *all == of {
                *reached = round.max(*reached);
            }
        }
    }

    /// Registers for the answers of these nodes.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Bug`] when another call has this session.
    pub(super) fn call(
        &self,
        expected: ExpectedReply,
        epoch: u32,
        session: SessionId,
        nodes: &[NodeId],
    ) -> Result<CallGuard<'_>, Fault> {
        let each = expected.each();
        let (sender, replies) = mpsc::channel(nodes.len().saturating_mul(each).max(1));
        let permit = |node: &NodeId| (*node, Arc::new(Semaphore::new(each)));
        let mut calls = lock(&self.calls);
        if calls.contains_key(&session) {
            return Err(Fault::bug("two calls for one session"));
        }
        let waiting = PendingCall {
            expected,
            epoch,
            rounds: HashMap::new(),
            permits: nodes.iter().map(permit).collect(),
            replies: sender,
        };
        calls.insert(session, waiting);
        meter::calls(calls.len());
        drop(calls);
        Ok(CallGuard {
            shared: self,
            session,
            replies: ReplyReceiver(replies),
        })
    }
}
