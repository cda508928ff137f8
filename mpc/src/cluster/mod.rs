//! The client of the signer nodes, for the orchestrator.

mod attest;
mod calls;
mod holds;
mod keygen;
mod life;
mod line;
mod listen;
mod load;
mod node_registry;
mod offline;
mod pace;
mod questions;
mod select_signers;
mod sign;
mod unadmitted;
mod window;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use covault_core::{
    attest::MadeKey,
    fault::{Fault, FaultCode},
    ids::{SessionId, TokenId, VaultId},
    networks::VerifiedSignatures,
    order::{KeygenOrder, ListedNodes, NodeId, SigningOrder},
    port::{Clock, Entropy, random_16},
    rate::UnsignedWork,
    scheme::Scheme,
    trace::TraceContext,
    turns::RequestTurn,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::{task::JoinHandle, time::sleep};

use crate::{
    bus::Bus,
    envelope::{EVERYONE, EnvelopeCodec, EnvelopeHeader, EnvelopeKind},
    identity::NodeIdentity,
    preprocess::{NonceInventory, NonceLevel},
};
use calls::{CallGuard, ExpectedReply, NodeReply, PendingCalls};
use listen::listen;
use node_registry::{NodeRegistry, places::SigningAsk};
use questions::NodeQuestions;

pub use self::holds::ClusterHold;
pub use self::questions::AskedQuestion;
pub use self::unadmitted::Unadmitted;
pub use crate::message::{Ban, HaltReason};

/// How often a waiting call looks at which nodes live.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How often those who wait for signers are looked at: a signer that was busy, or away, is there again.
const SERVE_INTERVAL: Duration = Duration::from_millis(50);
/// How often pair keys are looked at.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);
/// Nodes report what was missing when an attempt ends; they have this long to be heard.
const REPLY_GRACE_MS: u64 = 300;
/// How often an order for one session is repeated to those that have not answered, in milliseconds.
/// Their peers keep what they have said for some seconds until it comes.
const RESEND_MS: u64 = 2_000;

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
    /// How long one set of signers has before another set is tried, while nothing is known of how long
    /// attempts take; later a multiple of that.
    pub attempt: Duration,
}

crate::secrets::secret!(ClusterConfig);

/// Whether it is only for what there is to do that something was not done.
fn is_busy(fault: &Fault) -> bool {
    matches!(fault.code(), FaultCode::Busy { .. })
}

/// An order could not be sent for as long as there was time.
fn not_sent() -> Fault {
    let sentence = "message bus overloaded: it has not taken the order in time";
    Fault::unavailable(sentence).with_code(FaultCode::Busy { seconds: 1 })
}

/// A signer node as the cluster sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Identity.
    pub id: NodeId,
    /// The name it announced.
    pub name: String,
    /// Whether it announced itself recently.
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
    /// Why it does not sign.
    pub halted: Vec<HaltReason>,
    /// Vaults for which it signs nothing: its operator has frozen them.
    pub frozen: Vec<VaultId>,
    /// Which orchestrators and peers its configuration lists; `None` where nothing of it is believed.
    pub listed: Option<ListedNodes>,
}

/// How an order is to be signed.
#[derive(Clone, Copy, Debug)]
pub struct SigningTask<'a> {
    /// The scheme of the key.
    pub scheme: Scheme,
    /// Claimed by the caller, and never used again.
    pub session: SessionId,
    /// All share holders of the key, in the order of their indices.
    pub holders: &'a [NodeId],
    /// Signers needed.
    pub threshold: u16,
    /// When it is given up, in milliseconds since the Unix epoch.
    pub deadline_ms: u64,
    /// Who asks for it. Each has its turns.
    pub token: TokenId,
    /// Where it stands among those.
    pub turn: RequestTurn,
    /// The client signer that has to approve it and to take part. Others sign nothing.
    pub client_signer: Option<NodeId>,
    /// The span that the signers' are parts of, where the request is traced.
    pub trace: Option<TraceContext>,
}

/// The client of the signer nodes.
pub struct Cluster {
    shared: Arc<ClusterInner>,
    tasks: [JoinHandle<()>; 3],
}

struct ClusterInner {
    codec: EnvelopeCodec,
    bus: Arc<dyn Bus>,
    clock: Arc<dyn Clock>,
    node_registry: Arc<NodeRegistry>,
    preprocess: NonceInventory,
    attempt: Duration,
    entropy: Arc<dyn Entropy>,
    /// Names this start to nodes.
    boot: [u8; 16],
    /// Who waits for replies, by session.
    calls: Mutex<PendingCalls>,
    questions: NodeQuestions,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
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
        let codec = EnvelopeCodec::new(identity, Arc::clone(&bus), Arc::clone(&entropy))
            .with_pair_keys(Arc::clone(&clock));
        let inbox = bus.subscribe(codec.id(), true).await.map_err(|cause| {
            Fault::unavailable("the message bus is not available").caused_by(cause)
        })?;
        let shared = Arc::new(ClusterInner {
            codec,
            bus,
            node_registry: NodeRegistry::new(Arc::clone(&clock), live_for),
            preprocess: NonceInventory::new(Arc::clone(&clock)),
            clock,
            attempt,
            boot: random_16(&*entropy),
            entropy,
            calls: Mutex::default(),
            questions: NodeQuestions::default(),
        });
        let listener = tokio::spawn(listen(Arc::downgrade(&shared), inbox));
        let node_registry = Arc::downgrade(&shared.node_registry);
        let server = tokio::spawn(async move {
            while let Some(node_registry) = node_registry.upgrade() {
                node_registry.serve(None);
                drop(node_registry);
                sleep(SERVE_INTERVAL).await;
            }
        });
        let sender = Arc::downgrade(&shared);
        let renewal = tokio::spawn(async move {
            while let Some(shared) = sender.upgrade() {
                shared.codec.renew_pair_keys();
                drop(shared);
                sleep(RENEW_INTERVAL).await;
            }
        });
        let tasks = [listener, server, renewal];
        Ok(Arc::new(Self { shared, tasks }))
    }

    /// Makes a root key. Repeating an order that has succeeded returns the same key.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when nodes did not answer before the order
    /// expired (the public sentence names them), [`covault_core::fault::Class::Peer`] when some
    /// misbehaved, [`covault_core::fault::Class::Invalid`] when nodes refused.
    pub async fn keygen(&self, order: &KeygenOrder) -> Result<MadeKey, Fault> {
        self.shared
            .unless_offline(&order.signers, self.shared.keygen(order))
            .await
    }

    /// Signs every input of the order with any `threshold` of the live holders of its key. Tries other
    /// sets until the deadline and waits for nodes that may come, and for those that have room for it: each
    /// vault and token in its turn, of one of them first come, first served. Each signature was verified
    /// against the order's public key.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when too few holders answered in time (the
    /// public sentence names the missing nodes), at once with the code
    /// [`covault_core::fault::FaultCode::Busy`] when what came before takes longer than the request has,
    /// [`covault_core::fault::Class::Peer`] when some
    /// misbehaved, [`covault_core::fault::Class::Invalid`] when the nodes refused the order, and
    /// [`covault_core::fault::Class::WrongState`] when they have promised another signature for
    /// this request, or the session was used before.
    pub async fn sign(
        &self,
        order: &SigningOrder,
        task: SigningTask<'_>,
    ) -> Result<VerifiedSignatures, Fault> {
        self.shared.sign(order, task).await
    }

    /// How long it may be at the present rate until what the vault's keys of this scheme have to sign is signed,
    /// where so much of the vault is accepted and not signed, and the same again for what this
    /// token has waiting, so that nobody alone takes more than half of what time there is; the last sixteenth of it is
    /// for tokens that have nothing waiting. `None`: some wait, and nothing was signed yet by which it could be told.
    pub fn expected_wait(
        &self,
        scheme: Scheme,
        holders: &[NodeId],
        threshold: u16,
        (vault, token): (VaultId, TokenId),
        client_signer: Option<NodeId>,
        unsigned: UnsignedWork,
    ) -> Option<Duration> {
        let needed = usize::from(threshold);
        let ask = SigningAsk::new(scheme, holders, needed, (vault, token), 1)
            .with_client_signer(client_signer);
        self.shared.node_registry.wait_of_newcomer(&ask, unsigned)
    }

    /// From now on only these nodes are used and listed; the rest are unknown nodes. Until this is called, every node
    /// that announces itself counts.
    pub fn admit(&self, nodes: &[NodeId]) {
        self.shared.node_registry.admit(nodes);
        // They may still have keys of our last start.
        self.shared.codec.greet_new(nodes);
    }

    /// Every admitted node that ever announced itself.
    pub fn nodes(&self) -> Vec<NodeStatus> {
        self.shared.node_registry.nodes()
    }

    /// How many of them are live, and how many there are.
    pub fn node_counts(&self) -> (usize, usize) {
        self.shared.node_registry.counts()
    }

    /// The nodes that announced themselves recently without being admitted. A short list, whatever
    /// happens on the bus.
    pub fn unadmitted(&self) -> Vec<Unadmitted> {
        self.shared.node_registry.unadmitted()
    }

    /// The nonces made ahead that requests could name now, by key and node.
    pub fn nonce_levels(&self) -> Vec<NonceLevel> {
        self.shared.preprocess.levels()
    }

    /// Whether the bus was reachable when it was last used.
    pub fn bus_reachable(&self) -> bool {
        self.shared.bus.reachable()
    }
}

impl ClusterInner {
    /// As [`ClusterInner::send`]; false where more waits to be sent than the bus takes now.
    fn try_send(
        &self,
        kind: EnvelopeKind,
        place: (u32, SessionId, u32),
        to: NodeId,
        body: &[u8],
    ) -> Result<bool, Fault> {
        match self.send(kind, place, to, body) {
            Err(fault) if is_busy(&fault) => {
                tracing::warn!(?kind, ?fault, "failed to send an order");
                Ok(false)
            }
            sent => sent.map(|()| true),
        }
    }

    /// Sends an order to those who have not got it yet. Who has it by now is no longer one of them.
    fn send_to_rest(
        &self,
        kind: EnvelopeKind,
        place: (u32, SessionId, u32),
        rest: &mut BTreeSet<NodeId>,
        body: &[u8],
    ) -> Result<(), Fault> {
        while let Some(node) = rest.first().copied() {
            if !self.try_send(kind, place, node, body)? {
                return Ok(());
            }
            rest.remove(&node);
        }
        Ok(())
    }

    fn send(
        &self,
        kind: EnvelopeKind,
        (epoch, session, attempt): (u32, SessionId, u32),
        to: NodeId,
        body: &[u8],
    ) -> Result<(), Fault> {
        debug_assert!(to != EVERYONE);
        let from = self.codec.id();
        let header = EnvelopeHeader {
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
        self.codec.send(header, body)
    }
}
