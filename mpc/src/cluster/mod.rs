//! The client of the signer nodes, for the orchestrator.

mod ahead;
mod choose;
mod gone;
mod life;
mod roster;
mod strangers;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use covault_core::{
    derive::RootKey,
    fault::{Class, Fault},
    ids::SessionId,
    order::{KeygenOrder, NodeId, SigningOrder},
    port::{Clock, Entropy},
    signature::{Curve, Signature},
};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    bus::{Bus, Subscription},
    envelope::{EVERYONE, Envelope, Header, Kind, Post},
    identity::{NodeIdentity, openssh_line},
    message::{Announcement, KeygenRequest, NonceNews, Reply, SignRequest, decode, encode},
    meter,
    shares::FIRST_EPOCH,
    verify::verify,
};
use ahead::{Ahead, Ask};
use choose::{Choice, Trouble};
use roster::Roster;

pub use self::{ahead::NonceLevel, strangers::Stranger};
pub use crate::message::Ban;

/// How often a waiting call looks at which nodes live.
const LOOK: Duration = Duration::from_millis(200);
/// Nodes report what was missing when an attempt ends; they have this long to be heard.
const GRACE_MS: u64 = 300;

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

/// How an attempt has ended.
enum Ended {
    Signed(Vec<Signature>),
    /// With the same nodes, but without nonces made ahead, it may go well.
    NoNonces,
    Failed,
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
        self.shared
            .unless_gone(&order.signers, self.shared.keygen(order))
            .await
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
                        if let Some(NonceNews::Ready { of, ids }) = decode(&opened.body) {
                            shared.ahead.heard(&from, of, ids);
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

    async fn keygen(&self, order: &KeygenOrder) -> Result<RootKey, Fault> {
        let mut call = self.call(FIRST_EPOCH, order.session, &order.signers)?;
        self.roster.want(&order.signers);
        // All must be there at the same time.
        while !order.signers.iter().all(|signer| self.roster.live(signer)) {
            if self.clock.now_ms() >= order.expires_at_ms {
                return Err(self.roster.too_few(
                    &order.signers,
                    order.signers.len(),
                    &Trouble::default(),
                ));
            }
            sleep(LOOK).await;
        }
        let body = encode(&KeygenRequest {
            order: order.clone(),
            sent_at_ms: self.clock.now_ms(),
        })?;
        for signer in &order.signers {
            let place = (FIRST_EPOCH, order.session, 0);
            self.send(Kind::KeygenOrder, place, *signer, &body)?;
        }
        let mut made: HashMap<NodeId, RootKey> = HashMap::new();
        loop {
            let left = order
                .expires_at_ms
                .saturating_add(GRACE_MS)
                .saturating_sub(self.clock.now_ms());
            let reply = timeout(Duration::from_millis(left), call.replies.recv()).await;
            let Ok(Some((node, _, reply))) = reply else {
                let silent: Vec<NodeId> = order
                    .signers
                    .iter()
                    .filter(|node| !made.contains_key(node))
                    .copied()
                    .collect();
                return Err(self.roster.too_few(
                    &order.signers,
                    order.signers.len(),
                    &Trouble::of_silent(&silent),
                ));
            };
            match reply {
                Reply::KeyMade(root) => {
                    made.insert(node, root);
                }
                Reply::Refused(fault) => {
                    let name = self.roster.name(&node);
                    let sentence = format!("{name} refused to make a key: {}", fault.public());
                    return Err(Fault::new(fault.class().clone(), sentence));
                }
                Reply::Failed {
                    culprits,
                    missing,
                    reason,
                } if culprits.is_empty() => {
                    return Err(self
                        .roster
                        .too_few(
                            &order.signers,
                            order.signers.len(),
                            &Trouble::of_silent(&missing),
                        )
                        .caused_by(reason));
                }
                Reply::Failed {
                    culprits, reason, ..
                } => {
                    return Err(self.roster.misbehaved(&culprits).caused_by(reason));
                }
                Reply::Signed(_)
                | Reply::Prepared(_)
                | Reply::Activated
                | Reply::Backup(_)
                | Reply::NoNonces { .. } => {}
            }
            if made.len() == order.signers.len() {
                let mut keys = made.into_values();
                let first = keys.next().ok_or_else(|| Fault::bug("no signers"))?;
                if first.curve != order.scheme.curve() || keys.any(|key| key != first) {
                    return Err(Fault::bug("the nodes report different keys"));
                }
                if first.curve == Curve::Ed25519 {
                    self.ahead
                        .want(&first.public_key, FIRST_EPOCH, &order.signers);
                    self.ask(
                        &first.public_key,
                        FIRST_EPOCH,
                        self.ahead.ask_all(&first.public_key),
                    );
                }
                return Ok(first);
            }
        }
    }

    async fn sign(
        &self,
        order: &SigningOrder,
        session: SessionId,
        holders: &[NodeId],
        threshold: u16,
        deadline_ms: u64,
    ) -> Result<Vec<Signature>, Fault> {
        let deadline_ms = deadline_ms.min(order.expires_at_ms);
        let needed = usize::from(threshold);
        let mut request = SignRequest {
            order: order.clone(),
            session,
            signers: Vec::new(),
            nonces: Vec::new(),
            attempt_ms: 0,
            sent_at_ms: 0,
        };
        let mut call = self.call(order.epoch, session, holders)?;
        let mut trouble = Trouble::default();
        let mut attempt = 0_u32;
        // The schemes of the other curve make nothing ahead.
        let mut ahead = order.network.curve() == Curve::Ed25519;
        if ahead {
            self.ahead
                .want(&order.root_public_key, order.epoch, holders);
        }
        loop {
            let now_ms = self.clock.now_ms();
            if now_ms >= deadline_ms {
                return Err(self.roster.too_few(holders, needed, &trouble));
            }
            let team = match self.roster.choose(holders, needed, &trouble) {
                Choice::Team(team) => team,
                Choice::Wait => {
                    let left = Duration::from_millis(deadline_ms.saturating_sub(now_ms));
                    sleep(LOOK.min(left)).await;
                    continue;
                }
                Choice::Never => return Err(self.give_up(holders, needed, trouble)),
            };
            // What is slow, a backend or a machine, gets more time after two tries.
            let longer = 1 << (attempt / 2).min(3);
            let attempt_ms = u64::try_from(self.attempt.as_millis())
                .unwrap_or(u64::MAX)
                .saturating_mul(longer);
            request.nonces = if ahead {
                self.name_nonces(order, &team.signers)
            } else {
                Vec::new()
            };
            request.signers = team.signers.clone();
            request.attempt_ms = attempt_ms.min(deadline_ms.saturating_sub(now_ms));
            request.sent_at_ms = now_ms;
            let body = encode(&request)?;
            for signer in &team.signers {
                let place = (order.epoch, session, attempt);
                self.send(Kind::SigningOrder, place, *signer, &body)?;
            }
            let ended = self
                .await_attempt(order, &mut call, &request, attempt, &mut trouble)
                .await;
            meter::attempted(matches!(ended, Ended::Signed(_)));
            match ended {
                Ended::Signed(signatures) => return Ok(signatures),
                // Nobody's fault: the nodes commit anew.
                Ended::NoNonces => ahead = false,
                Ended::Failed => {
                    trouble.failed(&team.signers);
                    // The second try comes at once; what fails again and again must not spin.
                    if attempt > 0 {
                        sleep(LOOK).await;
                    }
                }
            }
            attempt = attempt
                .checked_add(1)
                .ok_or_else(|| Fault::bug("too many attempts"))?;
        }
    }

    /// Names nonces that were made ahead, if every signer has some, and asks those who have none.
    fn name_nonces(&self, order: &SigningOrder, signers: &[NodeId]) -> Vec<Vec<u64>> {
        let root = &order.root_public_key;
        let (nonces, asks) = self.ahead.name(root, signers, order.inputs.len());
        self.ask(root, order.epoch, asks);
        nonces
    }

    fn ask(&self, root: &[u8], epoch: u32, asks: impl IntoIterator<Item = Ask>) {
        for Ask { node, spent_below } in asks {
            let of = (root.to_vec(), epoch);
            let sent = encode(&NonceNews::Ask { of, spent_below }).and_then(|body| {
                self.send(
                    Kind::Nonces,
                    (epoch, SessionId::from_bytes([0; 16]), 0),
                    node,
                    &body,
                )
            });
            if let Err(fault) = sent {
                tracing::warn!(?fault, "cannot ask for nonces");
            }
        }
    }

    /// Waits for the signatures of an attempt; when it has failed, `trouble` says why.
    async fn await_attempt(
        &self,
        order: &SigningOrder,
        call: &mut Call<'_>,
        request: &SignRequest,
        attempt: u32,
        trouble: &mut Trouble,
    ) -> Ended {
        let team = request.signers.as_slice();
        let ends_ms = request.sent_at_ms.saturating_add(request.attempt_ms);
        let mut reported: Vec<NodeId> = Vec::new();
        loop {
            let left = ends_ms
                .saturating_add(GRACE_MS)
                .saturating_sub(self.clock.now_ms());
            let patience = Duration::from_millis(left).min(LOOK);
            match timeout(patience, call.replies.recv()).await {
                Err(_) | Ok(None) => {
                    let gone: Vec<NodeId> = team
                        .iter()
                        .filter(|node| !self.roster.live(node))
                        .copied()
                        .collect();
                    if left > 0 && gone.is_empty() {
                        continue;
                    }
                    if !gone.is_empty() {
                        // No word against the others.
                        self.suspect(&gone, trouble);
                        return Ended::Failed;
                    }
                    // With nonces made ahead only the collector has anything to say: the others are
                    // done once they have sent their shares.
                    let speakers = if request.nonces.is_empty() {
                        team
                    } else {
                        team.get(..1).unwrap_or_default()
                    };
                    let silent: Vec<NodeId> = speakers
                        .iter()
                        .filter(|node| !reported.contains(node))
                        .copied()
                        .collect();
                    self.failed(team, &silent, trouble);
                    return Ended::Failed;
                }
                // Of whichever attempt: what verifies is good.
                Ok(Some((node, of, Reply::Signed(signatures)))) => {
                    if verify(order, &signatures).is_ok() {
                        // All of them: the collector could not have done it alone.
                        if of == attempt {
                            for node in team {
                                self.roster.well_done(node);
                            }
                        }
                        return Ended::Signed(signatures);
                    }
                    tracing::warn!(?node, "a node sent signatures that do not verify");
                    trouble.misbehaved(node, node);
                    self.suspect(&[node], trouble);
                    if team.contains(&node) {
                        return Ended::Failed;
                    }
                }
                Ok(Some((node, of, Reply::Refused(fault))))
                    if of == attempt && team.contains(&node) =>
                {
                    tracing::warn!(?node, ?fault, "a node refused an order");
                    meter::was_refused(&fault);
                    match fault.class() {
                        Class::Unavailable => self.suspect(&[node], trouble),
                        // It has banned one of the others.
                        Class::Peer { culprits } => {
                            let banned: Vec<NodeId> = team
                                .iter()
                                .filter(|other| **other != node)
                                .filter(|other| culprits.contains(&openssh_line(other, "")))
                                .copied()
                                .collect();
                            for other in &banned {
                                trouble.misbehaved(node, *other);
                                self.roster.quarrelled(&node, other);
                            }
                            if banned.is_empty() {
                                trouble.refused(node, fault);
                            }
                        }
                        _ => trouble.refused(node, fault),
                    }
                    return Ended::Failed;
                }
                Ok(Some((
                    node,
                    of,
                    Reply::Failed {
                        culprits,
                        missing,
                        reason,
                    },
                ))) if of == attempt && team.contains(&node) => {
                    tracing::warn!(?node, ?culprits, ?missing, %reason, "a signing attempt failed");
                    let mut named = false;
                    for culprit in culprits.iter().filter(|culprit| team.contains(culprit)) {
                        trouble.misbehaved(node, *culprit);
                        self.roster.quarrelled(&node, culprit);
                        named = true;
                    }
                    if named {
                        return Ended::Failed;
                    }
                    let missing: Vec<NodeId> = missing
                        .into_iter()
                        .filter(|other| team.contains(other) && *other != node)
                        .collect();
                    if missing.is_empty() {
                        // Nobody can be named: try whom we have not tried.
                        self.failed(team, team, trouble);
                        return Ended::Failed;
                    }
                    // A word against a word: whoever lies, this team does not work.
                    self.failed(team, &missing, trouble);
                    reported.push(node);
                    if reported.len() == team.len() {
                        return Ended::Failed;
                    }
                }
                Ok(Some((node, at, Reply::NoNonces { of })))
                    if at == attempt && team.contains(&node) =>
                {
                    tracing::info!(?node, ?of, "nonces made ahead are not there");
                    let root = &order.root_public_key;
                    self.ask(root, order.epoch, self.ahead.lacking(root, node, of));
                    // Said of a request that names none it would be a way to stop us.
                    if request.nonces.is_empty() {
                        self.failed(team, &[node], trouble);
                        return Ended::Failed;
                    }
                    return Ended::NoNonces;
                }
                // Of an earlier attempt.
                Ok(Some(_)) => {}
            }
        }
    }

    fn suspect(&self, nodes: &[NodeId], trouble: &mut Trouble) {
        for node in nodes {
            self.roster.suspect(node, true);
            trouble.was_silent(*node);
        }
    }

    /// The team failed, and nobody is to blame for certain: those who say whom they missed may
    /// have kept silent themselves. So all are suspect, the missed ones more.
    fn failed(&self, team: &[NodeId], missed: &[NodeId], trouble: &mut Trouble) {
        for node in team {
            self.roster.suspect(node, false);
        }
        self.suspect(missed, trouble);
    }

    fn give_up(&self, holders: &[NodeId], needed: usize, mut trouble: Trouble) -> Fault {
        // Fewer refusals than it takes to stop the rest are no verdict: one node may lie.
        let verdict = holders.len().saturating_sub(needed).saturating_add(1);
        if trouble.refusals().count() < verdict && !trouble.culprits().is_empty() {
            return self.roster.misbehaved(&trouble.culprits());
        }
        if let Some((node, fault)) = trouble.take_refusal() {
            let sentence = format!(
                "{} refused to sign: {}",
                self.roster.name(&node),
                fault.public()
            );
            return Fault::new(fault.class().clone(), sentence).with_code(fault.code());
        }
        let culprits = trouble.culprits();
        if culprits.is_empty() {
            return self.roster.too_few(holders, needed, &trouble);
        }
        self.roster.misbehaved(&culprits)
    }
}
