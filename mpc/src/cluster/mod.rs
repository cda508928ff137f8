//! The client of the signer nodes, for the orchestrator.

mod ahead;
mod choose;
mod keygen;
mod life;
mod roster;
mod sign;
mod strangers;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use covault_core::{
    derive::RootKey,
    fault::Fault,
    ids::SessionId,
    order::{KeygenOrder, NodeId, SigningOrder},
    port::{Clock, Entropy},
    signature::Signature,
};
use tokio::{sync::mpsc, task::JoinHandle};

use crate::{
    bus::{Bus, Subscription},
    envelope::{EVERYONE, Envelope, Header, Kind, Post},
    identity::NodeIdentity,
    message::{Announcement, NonceNews, Reply, decode},
    meter,
};
use ahead::Ahead;
use roster::Roster;

pub use self::{ahead::NonceLevel, strangers::Stranger};
pub use crate::message::Ban;

/// How often a waiting call looks at which nodes live.
const LOOK: Duration = Duration::from_millis(200);
/// Nodes report what was missing when an attempt ends; they have this long to be heard.
const GRACE_MS: u64 = 300;
/// How often an order for one session is repeated to those that have not answered, in milliseconds.
/// Their peers keep what they have said for some seconds until it comes.
const AGAIN_MS: u64 = 2_000;

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
    /// The version of its program.
    pub version: String,
    /// How many keys it says it holds a share of.
    pub keys: u32,
    /// Whom it says it has banned for cheating.
    pub bans: Vec<Ban>,
    /// How far its clock is ahead of ours, in milliseconds; the way of the message counts as well.
    pub skew_ms: i64,
}

/// Who says what about which attempt.
type Said = (NodeId, u32, Reply);
type Replies = mpsc::UnboundedSender<Said>;

/// The client of the signer nodes.
pub struct Cluster {
    shared: Arc<Shared>,
    listener: JoinHandle<()>,
}

struct Shared {
    post: Post,
    bus: Arc<dyn Bus>,
    clock: Arc<dyn Clock>,
    roster: Roster,
    ahead: Ahead,
    attempt: Duration,
    /// Who waits for replies, by session.
    calls: Mutex<HashMap<SessionId, Waiting>>,
}

/// A call that waits.
struct Waiting {
    /// Whose replies count.
    nodes: Vec<NodeId>,
    /// Of which generation of shares they are.
    epoch: u32,
    replies: Replies,
}

/// A registered call; ends with its scope.
struct Call<'a> {
    shared: &'a Shared,
    session: SessionId,
    replies: mpsc::UnboundedReceiver<Said>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut calls = lock(&self.shared.calls);
        calls.remove(&self.session);
        meter::calls(calls.len());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl Cluster {
    /// Starts to listen.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when the bus refuses the subscription. A bus
    /// that is away is waited for.
    pub async fn start(config: ClusterConfig) -> Result<Arc<Self>, Fault> {
        let ClusterConfig {
            identity,
            bus,
            clock,
            entropy,
            live_for,
            attempt,
        } = config;
        let post = Post::new(identity, Arc::clone(&bus), entropy);
        let inbox = bus.subscribe(post.id(), true).await.map_err(|cause| {
            Fault::unavailable("the message bus is not available").caused_by(cause)
        })?;
        let shared = Arc::new(Shared {
            post,
            bus,
            roster: Roster::new(Arc::clone(&clock), live_for),
            ahead: Ahead::new(Arc::clone(&clock)),
            clock,
            attempt,
            calls: Mutex::default(),
        });
        let listener = tokio::spawn(listen(Arc::downgrade(&shared), inbox));
        Ok(Arc::new(Self { shared, listener }))
    }

    /// Makes a root key. Repeating an order that has succeeded returns the same key.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when nodes did not answer before the order
    /// expired (the public sentence names them), [`covault_core::fault::Class::Peer`] when some
    /// misbehaved, [`covault_core::fault::Class::Invalid`] when nodes refused.
    pub async fn keygen(&self, order: &KeygenOrder) -> Result<RootKey, Fault> {
        self.shared.keygen(order).await
    }

    /// Signs every input of the order with any `threshold` of the live `holders` (all share
    /// holders, in the order of the keygen). Tries other sets until `deadline_ms` (since the
    /// Unix epoch) and waits for nodes that may come. Each signature was verified against the
    /// order's public key. `session` must be claimed by the caller and never used again.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when too few holders answered in time (the
    /// public sentence names the missing nodes), [`covault_core::fault::Class::Peer`] when some
    /// misbehaved, [`covault_core::fault::Class::Invalid`] when the nodes refused the order, and
    /// [`covault_core::fault::Class::WrongState`] when they have promised another signature for
    /// this request, or the session was used before.
    pub async fn sign(
        &self,
        order: &SigningOrder,
        session: SessionId,
        holders: &[NodeId],
        threshold: u16,
        deadline_ms: u64,
    ) -> Result<Vec<Signature>, Fault> {
        self.shared
            .sign(order, session, holders, threshold, deadline_ms)
            .await
    }

    /// From now on only these nodes are used and listed; the rest are strangers. Until somebody
    /// calls this, every node that announces itself counts.
    pub fn admit(&self, nodes: &[NodeId]) {
        self.shared.roster.admit(nodes);
    }

    /// Every admitted node that ever announced itself.
    pub fn nodes(&self) -> Vec<NodeStatus> {
        self.shared.roster.nodes()
    }

    /// The nodes that announced themselves lately without being admitted. A short list, whatever
    /// happens on the bus.
    pub fn strangers(&self) -> Vec<Stranger> {
        self.shared.roster.strangers()
    }

    /// The nonces made ahead that requests could name now, by key and node.
    pub fn nonce_levels(&self) -> Vec<NonceLevel> {
        self.shared.ahead.levels()
    }

    /// Whether the bus was reachable when it was last used.
    pub fn bus_reachable(&self) -> bool {
        self.shared.bus.reachable()
    }
}

async fn listen(shared: Weak<Shared>, mut inbox: Subscription) {
    while let Some(message) = inbox.next().await {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let Ok(envelope) = Envelope::parse(message) else {
            continue;
        };
        let Header {
            kind,
            from,
            epoch,
            session,
            attempt,
            ..
        } = envelope.header;
        match kind {
            Kind::Reply => {
                // Replies that nobody waits for are not worth a verification, nor are those of
                // nodes that were not asked, or of another epoch.
                let call = match lock(&shared.calls).get(&session) {
                    Some(call) if call.epoch == epoch && call.nodes.contains(&from) => {
                        call.replies.clone()
                    }
                    _ => continue,
                };
                match shared.post.open(&envelope) {
                    Ok(opened) => {
                        if let Some(reply) = decode::<Reply>(&opened.body) {
                            // The call may be over.
                            let _ = call.send((from, attempt, reply.cleaned()));
                        }
                    }
                    Err(error) => tracing::warn!(?from, %error, "reply refused"),
                }
            }
            Kind::Announcement => {
                if !shared.roster.listens_to(&from) {
                    continue;
                }
                let Ok(opened) = shared.post.open(&envelope) else {
                    continue;
                };
                if let Some(announcement) = decode::<Announcement>(&opened.body) {
                    shared.roster.heard(from, announcement);
                }
            }
            Kind::Nonces => {
                if !shared.ahead.expects(&from) {
                    continue;
                }
                match shared.post.open(&envelope) {
                    Ok(opened) => {
                        if let Some(NonceNews::Ready { of, floor, ids }) = decode(&opened.body) {
                            shared.ahead.heard(&from, of, floor, ids);
                        }
                    }
                    Err(error) => tracing::warn!(?from, %error, "message about nonces refused"),
                }
            }
            Kind::SigningOrder
            | Kind::KeygenOrder
            | Kind::ReshareOrder
            | Kind::Activate
            | Kind::BackupOrder
            | Kind::Protocol => {}
        }
    }
}

impl Shared {
    /// Registers for the replies of these nodes.
    fn call(&self, epoch: u32, session: SessionId, nodes: &[NodeId]) -> Result<Call<'_>, Fault> {
        let (sender, replies) = mpsc::unbounded_channel();
        let mut calls = lock(&self.calls);
        if calls.contains_key(&session) {
            return Err(Fault::bug("two calls for one session"));
        }
        let waiting = Waiting {
            nodes: nodes.to_vec(),
            epoch,
            replies: sender,
        };
        calls.insert(session, waiting);
        meter::calls(calls.len());
        drop(calls);
        Ok(Call {
            shared: self,
            session,
            replies,
        })
    }

    fn send(
        &self,
        kind: Kind,
        (epoch, session, attempt): (u32, SessionId, u32),
        to: NodeId,
        body: &[u8],
    ) -> Result<(), Fault> {
        debug_assert!(to != EVERYONE);
        let from = self.post.id();
        let header = Header {
            kind,
            sealed: true,
            epoch,
            session,
            attempt,
            round: 0,
            sequence: 0,
            from,
            to,
        };
        self.post.send(header, body)
    }
}
