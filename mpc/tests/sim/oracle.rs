//! Reads everything that is sent, with everybody's keys, and says what must never happen.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
};

use covault_core::{
    ids::{RequestId, SessionId},
    order::{Generation, NodeId, SigningOrder},
    signature::Signature,
};
use covault_mpc::{
    bus::memory::MemoryBus,
    envelope::{Envelope, EnvelopeCodec, EnvelopeHeader, EnvelopeKind, OpenedEnvelope},
    identity::NodeIdentity,
};

use crate::{
    words::{self, OrderReply, PreprocessMsg, SignOrderMsg},
    world::SeededRng,
};

/// A run of a signing protocol for one input: session, attempt, input.
type RunSlot = (SessionId, u32, u32);
/// Root public key and epoch.
type ShareGeneration = (Vec<u8>, u32);

/// A session that the orchestrator runs.
#[derive(Clone)]
struct ExpectedSession {
    request: RequestId,
    /// Names the content.
    content: Vec<u8>,
    epoch: u32,
}

#[derive(Default)]
struct Observations {
    sessions: BTreeMap<SessionId, ExpectedSession>,
    /// Orders that have reached a node: node, session, attempt.
    ordered: BTreeSet<(NodeId, SessionId, u32)>,
    /// Those of shares that the node had said it has given up.
    stale: BTreeSet<(NodeId, SessionId, u32)>,
    /// The epoch of the shares that a node has last said it has taken into use.
    in_use: BTreeMap<NodeId, u32>,
    /// What a node has taken part in, by request.
    digests: BTreeMap<(NodeId, RequestId), Vec<u8>>,
    /// Who has used a share in which session.
    took_part: BTreeSet<(NodeId, SessionId)>,
    /// The nonces that an order names, by session, attempt and node: of which shares, and the
    /// number for each input.
    named: BTreeMap<(SessionId, u32, NodeId), (ShareGeneration, Vec<u64>)>,
    /// Nonces made ahead: the shares they are for, and the commitments, by node and number.
    numbers: BTreeMap<(NodeId, u64), (ShareGeneration, Vec<u8>)>,
    /// The number of each commitment that was made ahead, by node.
    preprocess: BTreeMap<(NodeId, Vec<u8>), u64>,
    /// Where each commitment of a first round was shown, by node.
    shown: BTreeMap<(NodeId, Vec<u8>), RunSlot>,
    /// Where each commitment's nonce was used for a share, by node.
    used: BTreeMap<(NodeId, Vec<u8>), RunSlot>,
    /// The commitment and the signature share of each node in each slot.
    messages: BTreeMap<(NodeId, RunSlot, u16), Vec<u8>>,
    /// The nonce point of each signature, and what it signs.
    points: BTreeMap<Vec<u8>, (Vec<u8>, Vec<u8>)>,
    /// What was signed for each request, and with which shares.
    signed: BTreeMap<RequestId, (Vec<u8>, Generation)>,
    /// Shares that were made with nonces made ahead.
    one_round: u64,
    violations: Vec<String>,
}

/// The judge.
pub struct Oracle {
    orchestrator: NodeId,
    /// Opens what was sent to each node.
    posts: BTreeMap<NodeId, EnvelopeCodec>,
    /// Who may do as it likes.
    byzantine: Option<NodeId>,
    /// FROST shows its commitments; other protocols are not looked into.
    frost: bool,
    seen: Mutex<Observations>,
}

impl Observations {
    fn violated(&mut self, what: String) {
        self.violations.push(what);
    }

    /// A node uses the nonce of a commitment for a share.
    fn uses(&mut self, from: NodeId, commitment: Vec<u8>, slot: RunSlot) {
        let place = (from, commitment);
        let preprocess = self.preprocess.contains_key(&place);
        let first = *self.used.entry(place).or_insert(slot);
        if first != slot {
            self.violated(format!(
                "{from:?} uses a nonce{} twice: in {first:?} and {slot:?}",
                if preprocess { " made ahead" } else { "" }
            ));
        }
    }

    /// A node uses the nonce that it was told to; false when it was told to use none.
    fn uses_named(&mut self, from: NodeId, slot: RunSlot) -> bool {
        let (session, attempt, input) = slot;
        let Some((shares, ids)) = self.named.get(&(session, attempt, from)).cloned() else {
            return false;
        };
        let Some(id) = ids.get(input as usize) else {
            self.violated(format!("{from:?} signs an input that has no nonce"));
            return true;
        };
        match self.numbers.get(&(from, *id)).cloned() {
            Some((of, commitment)) => {
                if of != shares {
                    self.violated(format!("{from:?} uses a nonce of other shares in {slot:?}"));
                }
                self.uses(from, commitment, slot);
                self.one_round += 1;
            }
            None => self.violated(format!("{from:?} uses a nonce that it has not shown")),
        }
        true
    }

    /// A node tells of a nonce that it has made ahead.
    fn made(&mut self, from: NodeId, of: &ShareGeneration, id: u64, commitment: Vec<u8>) {
        let known = *self
            .preprocess
            .entry((from, commitment.clone()))
            .or_insert(id);
        if known != id {
            self.violated(format!(
                "{from:?} shows one commitment as {known} and as {id}"
            ));
        }
        let new = (of.clone(), commitment);
        let known = self.numbers.insert((from, id), new.clone());
        if known.is_some_and(|known| known != new) {
            self.violated(format!("{from:?} gives the number {id} to two nonces"));
        }
    }
}

impl Oracle {
    pub fn new(
        orchestrator: NodeId,
        nodes: &[Arc<NodeIdentity>],
        byzantine: Option<NodeId>,
        frost: bool,
    ) -> Self {
        let posts = nodes
            .iter()
            .map(|identity| {
                let rng = Arc::new(SeededRng::new(0, 0));
                let codec = EnvelopeCodec::new(Arc::clone(identity), MemoryBus::new(), rng);
                (identity.id(), codec)
            })
            .collect();
        Self {
            orchestrator,
            posts,
            byzantine,
            frost,
            seen: Mutex::default(),
        }
    }

    fn seen(&self) -> MutexGuard<'_, Observations> {
        self.seen.lock().unwrap()
    }

    pub fn violation(&self, what: String) {
        self.seen().violated(what);
    }

    pub fn violations(&self) -> Vec<String> {
        self.seen().violations.clone()
    }

    /// How many shares were made with nonces made ahead.
    pub fn one_round(&self) -> u64 {
        self.seen().one_round
    }

    /// Whether the node has said that it uses the shares of this epoch, or of a later one.
    pub fn has_activated(&self, node: &NodeId, epoch: u32) -> bool {
        let seen = self.seen();
        seen.in_use.get(node).is_some_and(|known| *known >= epoch)
    }

    /// Who has used a share in which session.
    pub fn took_part(&self) -> BTreeSet<(NodeId, SessionId)> {
        self.seen().took_part.clone()
    }

    /// A session that the orchestrator is going to run.
    pub fn expect(&self, session: SessionId, order: &SigningOrder) {
        let expected = ExpectedSession {
            request: order.request,
            content: content(order),
            epoch: order.epoch,
        };
        self.seen().sessions.insert(session, expected);
    }

    /// Only what its recipient can open was said.
    fn open(&self, to: &NodeId, envelope: &Envelope) -> Option<OpenedEnvelope> {
        self.posts.get(to)?.open(envelope).ok()
    }

    /// A message has reached a node's inbox.
    pub fn delivered(&self, to: NodeId, message: &[u8]) {
        let Ok(envelope) = Envelope::parse(message.to_vec()) else {
            return;
        };
        let EnvelopeHeader {
            kind,
            epoch,
            session,
            attempt,
            from,
            ..
        } = envelope.header;
        let order = matches!(
            kind,
            EnvelopeKind::SigningOrder | EnvelopeKind::KeygenOrder | EnvelopeKind::ReshareOrder
        );
        if !order || from != self.orchestrator || self.open(&to, &envelope).is_none() {
            return;
        }
        let mut seen = self.seen();
        let place = (to, session, attempt);
        let first = seen.ordered.insert(place);
        let gone = seen.in_use.get(&to).is_some_and(|known| epoch < *known);
        if first && gone && kind == EnvelopeKind::SigningOrder {
            seen.stale.insert(place);
        }
    }

    /// A node has sent a message.
    pub fn sent(&self, message: &[u8]) {
        let Ok(envelope) = Envelope::parse(message.to_vec()) else {
            return;
        };
        let EnvelopeHeader { kind, from, to, .. } = envelope.header;
        if Some(from) == self.byzantine {
            return;
        }
        let opened = || self.open(&to, &envelope);
        match kind {
            EnvelopeKind::SigningOrder if from == self.orchestrator => {
                if let Some(opened) = opened() {
                    self.order(&envelope.header, &opened.body);
                }
            }
            EnvelopeKind::Nonces if from != self.orchestrator => {
                let body = opened().map(|opened| opened.body);
                let news = body.and_then(|body| words::read(&body));
                if let Some(PreprocessMsg::Made { of, nonces, .. }) = news {
                    let mut seen = self.seen();
                    for (id, commitment) in nonces {
                        seen.made(from, &of, id, commitment);
                    }
                }
            }
            EnvelopeKind::Reply => {
                if let Some(opened) = opened() {
                    self.reply(&envelope.header, &opened.body);
                }
            }
            EnvelopeKind::Protocol => self.protocol(&envelope.header, opened),
            _ => {}
        }
    }

    fn order(&self, header: &EnvelopeHeader, body: &[u8]) {
        let Some(request) = words::read::<SignOrderMsg>(body) else {
            return self.violation("an order that nobody can read".into());
        };
        let shares = (request.order.root_public_key, request.order.epoch);
        let mut seen = self.seen();
        for (signer, ids) in request.signers.iter().zip(request.nonces) {
            let place = (header.session, header.attempt, *signer);
            let new = (shares.clone(), ids);
            let known = seen.named.insert(place, new.clone());
            if known.is_some_and(|known| known != new) {
                seen.violated(format!("two orders for {place:?}"));
            }
        }
    }

    fn reply(&self, header: &EnvelopeHeader, body: &[u8]) {
        let EnvelopeHeader {
            epoch,
            session,
            attempt,
            from,
            ..
        } = *header;
        let mut seen = self.seen();
        if let Some(OrderReply::Signed(_)) = words::read(body) {
            seen.took_part.insert((from, session));
        }
        match words::read(body) {
            // The collector has used its nonces, and has not shown its shares.
            Some(OrderReply::Signed(signatures)) if self.frost => {
                for input in (0..).take(signatures.len()) {
                    seen.uses_named(from, (session, attempt, input));
                }
            }
            Some(OrderReply::Activated) => {
                let known = seen.in_use.entry(from).or_insert(epoch);
                *known = epoch.max(*known);
            }
            Some(_) => {}
            None => seen.violated(format!("{from:?} says what nobody can read")),
        }
    }

    fn protocol(&self, header: &EnvelopeHeader, opened: impl FnOnce() -> Option<OpenedEnvelope>) {
        let EnvelopeHeader {
            epoch,
            session,
            attempt,
            round,
            sequence,
            from,
            ..
        } = *header;
        let mut seen = self.seen();
        seen.took_part.insert((from, session));
        if !seen.ordered.contains(&(from, session, attempt)) {
            let what = format!("{from:?} runs {session} {attempt}, for which it has no order");
            seen.violated(what);
        }
        let Some(expected) = seen.sessions.get(&session).cloned() else {
            return;
        };
        if expected.epoch != epoch {
            seen.violated(format!(
                "{from:?} mixes epochs {epoch} and {} in {session}",
                expected.epoch
            ));
        }
        if seen.stale.contains(&(from, session, attempt)) {
            let what = format!("{from:?} signs with shares of {epoch}, which it has given up");
            seen.violated(what);
        }
        let request = expected.request;
        let known = seen
            .digests
            .entry((from, request))
            .or_insert(expected.content.clone());
        if *known != expected.content {
            let what = format!("{from:?} signs a second digest for request {request}");
            seen.violated(what);
        }
        if self.frost
            && let Some(opened) = opened()
        {
            let slot = (session, attempt, sequence);
            // Behind what was ordered of the sender.
            let body = opened.body.get(32..).unwrap_or_default();
            frost_message(&mut seen, from, slot, round, body.to_vec());
        }
    }

    /// The orchestrator got signatures.
    pub fn signed(&self, order: &SigningOrder, with: &Generation, signatures: &[Signature]) {
        let content = content(order);
        let mut seen = self.seen();
        let new = (content, with.clone());
        let (known, before) = seen.signed.entry(order.request).or_insert(new.clone());
        // Nodes remember, each for itself, if they are honest.
        if *known != new.0 && share_an_honest_node(before, with, self.byzantine) {
            let what = format!("two digests were signed for request {}", order.request);
            seen.violated(what);
        }
        for (input, signature) in order.inputs.iter().zip(signatures) {
            let bytes = signature.to_bytes();
            let what = (order.public_key.clone(), input.message.clone());
            let point = seen
                .points
                .entry(bytes[..32].to_vec())
                .or_insert(what.clone());
            if *point != what {
                seen.violated("one nonce point in two signatures".into());
            }
        }
    }
}

/// Round 1 shows the commitments, round 2 the signature share made with their nonces. With nonces
/// made ahead there is no round 1.
fn frost_message(seen: &mut Observations, from: NodeId, slot: RunSlot, round: u16, body: Vec<u8>) {
    let known = seen
        .messages
        .entry((from, slot, round))
        .or_insert(body.clone());
    if *known != body {
        let what = format!("{from:?} sends two messages of round {round} in {slot:?}");
        seen.violated(what);
    }
    if round == 1 {
        let shown = (from, body.clone());
        if seen.preprocess.contains_key(&shown) {
            let what = format!("{from:?} shows a nonce made ahead in {slot:?}");
            seen.violated(what);
        }
        let first = *seen.shown.entry(shown).or_insert(slot);
        if first != slot {
            seen.violated(format!(
                "{from:?} uses a nonce twice: in {first:?} and {slot:?}"
            ));
        }
        return;
    }
    if seen.uses_named(from, slot) {
        return;
    }
    match seen.messages.get(&(from, slot, 1)).cloned() {
        Some(commitment) => seen.uses(from, commitment, slot),
        None => seen.violated(format!(
            "{from:?} makes a share without a nonce in {slot:?}"
        )),
    }
}

/// Whether every quorum of one has an honest node in common with every quorum of the other.
fn share_an_honest_node(one: &Generation, other: &Generation, byzantine: Option<NodeId>) -> bool {
    let common = one.holders.iter().filter(|it| other.holders.contains(it));
    let common: Vec<NodeId> = common.copied().collect();
    let byzantine_nodes = common
        .iter()
        .filter(|node| Some(**node) == byzantine)
        .count();
    // How many of those in common a quorum needs at least.
    let queries = |of: &Generation| {
        let alone = of.holders.len() - common.len();
        usize::from(of.threshold).saturating_sub(alone)
    };
    queries(one) + queries(other) > common.len() + byzantine_nodes
}

fn content(order: &SigningOrder) -> Vec<u8> {
    order
        .inputs
        .iter()
        .flat_map(|input| input.message.clone())
        .collect()
}
