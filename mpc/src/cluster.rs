//! The client of the signer nodes, for the orchestrator.

use std::{sync::Arc, time::Duration};

use covault_core::{
    derive::RootKey,
    fault::Fault,
    ids::SessionId,
    order::{KeygenOrder, NodeId, SigningOrder},
    port::{Clock, Entropy},
    signature::Signature,
};

use crate::{bus::Bus, identity::NodeIdentity};

/// What a cluster client needs.
pub struct ClusterConfig {
    /// The orchestrator's identity, which nodes pin.
    pub identity: Arc<NodeIdentity>,
    /// The bus.
    pub bus: Arc<dyn Bus>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The source of randomness.
    pub entropy: Arc<dyn Entropy>,
    /// A node is live while its last announcement is younger; three heartbeats or more.
    pub live_for: Duration,
    /// How long one set of signers has before another set is tried.
    pub attempt: Duration,
}

/// A signer node as the cluster sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Identity.
    pub id: NodeId,
    /// The name it announced.
    pub name: String,
    /// Whether it announced itself lately.
    pub live: bool,
    /// When it last announced itself, in milliseconds since the Unix epoch.
    pub last_seen_ms: u64,
}

/// The client of the signer nodes.
pub struct Cluster {}

impl Cluster {
    /// Starts to listen.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when the bus refuses the subscription. A bus
    /// that is away is waited for.
    pub async fn start(config: ClusterConfig) -> Result<Arc<Self>, Fault> {
        let _ = config;
        todo!()
    }

    /// Makes a root key. Repeating an order that has succeeded returns the same key.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when nodes did not answer before the order
    /// expired (the public sentence names them), [`covault_core::fault::Class::Peer`] when some
    /// misbehaved, [`covault_core::fault::Class::Invalid`] when nodes refused.
    pub async fn keygen(&self, order: &KeygenOrder) -> Result<RootKey, Fault> {
        let _ = order;
        todo!()
    }

    /// Signs every input of the order with any `threshold` of the live `holders` (all share
    /// holders, in the order of the keygen). Tries other sets until `deadline_ms` (since the
    /// Unix epoch) and waits for nodes that may come. Each signature was verified against the
    /// order's public key. `session` must be claimed by the caller and never used again.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when too few holders answered in time (the
    /// public sentence names the missing nodes), [`covault_core::fault::Class::Peer`] when some
    /// misbehaved, [`covault_core::fault::Class::Invalid`] when the nodes refused the order.
    pub async fn sign(
        &self,
        order: &SigningOrder,
        session: SessionId,
        holders: &[NodeId],
        threshold: u16,
        deadline_ms: u64,
    ) -> Result<Vec<Signature>, Fault> {
        let _ = (order, session, holders, threshold, deadline_ms);
        todo!()
    }

    /// Every node that ever announced itself.
    pub fn nodes(&self) -> Vec<NodeStatus> {
        todo!()
    }

    /// Whether the bus was reachable when it was last used.
    pub fn bus_reachable(&self) -> bool {
        todo!()
    }
}
