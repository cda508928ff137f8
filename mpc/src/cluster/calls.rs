//! Calls: who asks nodes for something, and what it takes of their answers.
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

use super::{Shared, lock};
use crate::{message::Reply, meter, proofs::MAX_PROOFS, shares::backup::MAX_BACKUP};

/// Bytes of a reply without signatures and backups, as it is on the bus. An honest node needs a few
/// hundred; its reasons may be long.
const SMALL: usize = 64 << 10;
/// Bytes of a reply with proofs: each has a few hundred bytes for every holder.
const LARGER: usize = 4 * SMALL;
/// Bytes of a signature in a reply, at most.
const SIGNATURE: usize = 80;
/// Bytes of a public key, and of a signed statement.
const MAX_KEY: usize = 65;
const MAX_STATEMENT: usize = 64;
/// Answers of one node that wait in a call until it takes them.
pub(super) const EACH: usize = 16;
/// The same where an answer may be large.
const EACH_LARGE: usize = 1;

/// Who says what about which attempt.
pub(super) type NodeReply = (NodeId, u32, Reply);

/// What a call asks for, and so which answers it takes beside refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpectedReply {
    /// A root key.
    Key,
    /// So many signatures, for keys of this curve.
    Signatures(usize, Curve),
    /// Signed statements about new shares.
    Statements,
    /// That new shares are in use.
    Activation,
    /// Encrypted shares.
    Backups,
    /// Statements about so many addresses.
    Attestations(usize),
}

impl ExpectedReply {
    /// Most bytes of an answer, as it is on the bus.
    fn most_bytes(self) -> usize {
        match self {
            Self::Key | Self::Activation => SMALL,
            Self::Statements => LARGER,
            Self::Signatures(count, _) => SMALL.saturating_add(count.saturating_mul(SIGNATURE)),
            Self::Backups => SMALL.saturating_add(MAX_BACKUP),
            Self::Attestations(count) => SMALL.saturating_add(count.saturating_mul(SIGNATURE)),
        }
    }

    fn each(self) -> usize {
        match self {
            Self::Backups => EACH_LARGE,
            _ => EACH,
        }
    }

    /// Whether the answer is of a kind, and of a size, that can answer the call.
    fn takes(self, reply: &Reply) -> bool {
        match (self, reply) {
            (_, Reply::Refused(_) | Reply::Failed { .. }) => true,
            (
                Self::Key,
                Reply::KeyMade {
                    root, signature, ..
                },
            ) => root.public_key.len() <= MAX_KEY && signature.len() == super::attest::SIGNATURE,
            (Self::Signatures(count, curve), Reply::Signed(signatures)) => {
                let fits = |signature: &Signature| signature.curve() == curve;
                signatures.len() == count && signatures.iter().all(fits)
            }
            (Self::Signatures(..), Reply::NoNonces { .. }) => true,
            (Self::Statements, Reply::Prepared(signature)) => signature.len() <= MAX_STATEMENT,
            (Self::Statements, Reply::NotPermitted) => true,
            (Self::Statements, Reply::Behind { proven, .. }) => proven.len() <= MAX_PROOFS,
            (Self::Activation, Reply::Activated) => true,
            (Self::Backups, Reply::Backup(sealed)) => sealed.len() <= MAX_BACKUP,
            (Self::Attestations(count), Reply::Attested(signatures)) => {
                signatures.len() == count.saturating_mul(super::attest::SIGNATURE)
            }
            (
                _,
                Reply::KeyMade { .. }
                | Reply::Signed(_)
                | Reply::NoNonces { .. }
                | Reply::Prepared(_)
                | Reply::Activated
                | Reply::Backup(_)
                | Reply::Attested(_)
                | Reply::NotPermitted
                | Reply::Behind { .. },
            ) => false,
        }
    }
}

/// The calls that wait, by session.
pub(super) type Calls = HashMap<SessionId, Waiting>;

/// A call that waits.
pub(super) struct Waiting {
    wanted: ExpectedReply,
    /// Of which generation of shares the answers are.
    epoch: u32,
    /// Whose answers count, and the places that each has left.
    places: HashMap<NodeId, Arc<Semaphore>>,
    replies: mpsc::Sender<(NodeReply, OwnedSemaphorePermit)>,
}

/// Where one node's answers to one call go.
pub(super) struct Slot {
    wanted: ExpectedReply,
    places: Arc<Semaphore>,
    replies: mpsc::Sender<(NodeReply, OwnedSemaphorePermit)>,
}

/// Why an answer is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Untaken {
    #[error("flood: too many replies of this node wait")]
    Flood,
    #[error("the reply is larger than any honest one")]
    TooLarge,
    #[error("the reply is none to what was asked")]
    Unasked,
}

impl Waiting {
    /// Where the node's answers go, if it was asked, about shares of this epoch.
    pub(super) fn slot(&self, node: &NodeId, epoch: u32) -> Option<Slot> {
        let places = self.places.get(node).filter(|_| self.epoch == epoch)?;
        Some(Slot {
            wanted: self.wanted,
            places: Arc::clone(places),
            replies: self.replies.clone(),
        })
    }
}

impl Slot {
    /// Whether an answer of so many bytes is worth a verification.
    pub(super) fn has_room(&self, bytes: usize) -> Result<(), Untaken> {
        if bytes > self.wanted.most_bytes() {
            return Err(Untaken::TooLarge);
        }
        if self.places.available_permits() == 0 {
            return Err(Untaken::Flood);
        }
        Ok(())
    }

    /// Hands over what the node, who is certain, has answered. The call may be over.
    pub(super) fn give(&self, node: NodeId, attempt: u32, reply: Reply) -> Result<(), Untaken> {
        if !self.wanted.takes(&reply) {
            return Err(Untaken::Unasked);
        }
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| Untaken::Flood)?;
        let said = ((node, attempt, reply.cleaned()), place);
        match self.replies.try_send(said) {
            Err(mpsc::error::TrySendError::Full(_)) => Err(Untaken::Flood),
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
        }
    }
}

/// A registered call; ends with its scope.
pub(super) struct Call<'a> {
    shared: &'a Shared,
    session: SessionId,
    pub(super) replies: Replies,
}

/// What was answered and not yet taken.
pub(super) struct Replies(mpsc::Receiver<(NodeReply, OwnedSemaphorePermit)>);

impl Replies {
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
impl Call<'_> {
    /// How many answers of a node wait.
    pub(super) fn kept(&self, node: &NodeId) -> usize {
        let calls = lock(&self.shared.calls);
        let call = calls.get(&self.session).unwrap();
        call.wanted.each() - call.places[node].available_permits()
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut calls = lock(&self.shared.calls);
        calls.remove(&self.session);
        meter::calls(calls.len());
    }
}

impl Shared {
    /// Registers for the answers of these nodes.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Bug`] when another call has this session.
    pub(super) fn call(
        &self,
        wanted: ExpectedReply,
        epoch: u32,
        session: SessionId,
        nodes: &[NodeId],
    ) -> Result<Call<'_>, Fault> {
        let each = wanted.each();
        let (sender, replies) = mpsc::channel(nodes.len().saturating_mul(each).max(1));
        let place = |node: &NodeId| (*node, Arc::new(Semaphore::new(each)));
        let mut calls = lock(&self.calls);
        if calls.contains_key(&session) {
            return Err(Fault::bug("two calls for one session"));
        }
        let waiting = Waiting {
            wanted,
            epoch,
            places: nodes.iter().map(place).collect(),
            replies: sender,
        };
        calls.insert(session, waiting);
        meter::calls(calls.len());
        drop(calls);
        Ok(Call {
            shared: self,
            session,
            replies: Replies(replies),
        })
    }
}
