//! What the orchestrator needs from the cluster of signer nodes. `src/` wires `mpc`'s cluster in.

use async_trait::async_trait;
use covault_core::{
    derive::RootKey,
    fault::Fault,
    ids::SessionId,
    order::{KeygenOrder, NodeId, SigningOrder},
    signature::Signature,
};

/// One attempt to sign an order with a fixed set of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningAttempt {
    /// The session. Claimed in the store before it is used, and never used again.
    pub session: SessionId,
    /// Every node that holds a share of the key, in the order of its keygen.
    pub holders: Vec<NodeId>,
    /// Signers needed.
    pub threshold: u16,
    /// Milliseconds since the Unix epoch after which the attempt has failed.
    pub deadline_ms: u64,
}

/// A signer node as the orchestrator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Identity.
    pub id: NodeId,
    /// The name the node announced.
    pub name: String,
    /// Whether it announced itself lately.
    pub live: bool,
    /// When it last announced itself, in milliseconds since the Unix epoch.
    pub last_seen_ms: u64,
}

/// The cluster of signer nodes.
#[async_trait]
pub trait Signers: Send + Sync {
    /// Makes a root key by distributed key generation. Repeating an order that has succeeded
    /// returns the same key.
    async fn keygen(&self, order: &KeygenOrder) -> Result<RootKey, Fault>;

    /// Signs every input of the order with any `threshold` live holders. Each signature was
    /// verified against the order's public key.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when too few holders answered in time (the
    /// public sentence names the missing nodes), [`covault_core::fault::Class::Peer`] when some
    /// misbehaved, [`covault_core::fault::Class::Invalid`] when the nodes refused the order.
    async fn sign(
        &self,
        order: &SigningOrder,
        attempt: &SigningAttempt,
    ) -> Result<Vec<Signature>, Fault>;

    /// Every node that ever announced itself.
    fn nodes(&self) -> Vec<NodeView>;
}
