//! Reads everything that is sent, with everybody's keys, and says what must never happen.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use covault_core::{
    ids::{RequestId, SessionId},
    order::{NodeId, SigningOrder},
    signature::Signature,
};
use covault_mpc::{
    bus::memory::MemoryBus,
    envelope::{Envelope, Header, Kind, Post},
    identity::NodeIdentity,
};

use crate::world::Dice;

/// A run of a signing protocol for one input: session, attempt, input.
type Slot = (SessionId, u32, u32);

#[derive(Default)]
struct Seen {
    /// What each signing session is to sign: request, and a name for the content.
    sessions: BTreeMap<SessionId, (RequestId, Vec<u8>)>,
    /// Orders that have reached a node: node, session, attempt.
    ordered: BTreeSet<(NodeId, SessionId, u32)>,
    /// What a node has taken part in, by request.
    digests: BTreeMap<(NodeId, RequestId), Vec<u8>>,
    /// Where each commitment to a nonce was shown, by node.
    commitments: BTreeMap<(NodeId, Vec<u8>), Slot>,
    /// The commitment and the signature share of each node in each slot.
    messages: BTreeMap<(NodeId, Slot, u16), Vec<u8>>,
    /// The nonce point of each signature, and what it signs.
    points: BTreeMap<Vec<u8>, (Vec<u8>, Vec<u8>)>,
    /// What was signed for each request.
    signed: BTreeMap<RequestId, Vec<u8>>,
    violations: Vec<String>,
}

/// The judge.
pub struct Oracle {
    orchestrator: NodeId,
    /// Opens what was sent to each node.
    posts: BTreeMap<NodeId, Post>,
    /// Who may do as it likes.
    byzantine: Option<NodeId>,
    /// FROST shows its commitments; other protocols are not looked into.
    frost: bool,
    seen: Mutex<Seen>,
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
                let dice = Arc::new(Dice::new(0, 0));
                let post = Post::new(Arc::clone(identity), MemoryBus::new(), dice);
                (identity.id(), post)
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

    fn violated(seen: &mut Seen, what: String) {
        seen.violations.push(what);
    }

    pub fn violation(&self, what: String) {
        Self::violated(&mut self.seen.lock().unwrap(), what);
    }

    pub fn violations(&self) -> Vec<String> {
        self.seen.lock().unwrap().violations.clone()
    }

    /// A session that the orchestrator is going to run.
    pub fn expect(&self, session: SessionId, order: &SigningOrder) {
        let content = content(order);
        let mut seen = self.seen.lock().unwrap();
        seen.sessions.insert(session, (order.request, content));
    }

    /// A message has reached a node's inbox.
    pub fn delivered(&self, to: NodeId, message: &[u8]) {
        let Ok(envelope) = Envelope::parse(message.to_vec()) else {
            return;
        };
        let header = envelope.header;
        if !matches!(header.kind, Kind::SigningOrder | Kind::KeygenOrder)
            || header.from != self.orchestrator
        {
            return;
        }
        // Only what its recipient can open is an order.
        let opens = |post: &Post| post.open(&envelope).is_ok();
        if self.posts.get(&to).is_some_and(opens) {
            let mut seen = self.seen.lock().unwrap();
            seen.ordered.insert((to, header.session, header.attempt));
        }
    }

    /// A node has sent a message.
    pub fn sent(&self, message: &[u8]) {
        let Ok(envelope) = Envelope::parse(message.to_vec()) else {
            return;
        };
        let Header {
            kind,
            session,
            attempt,
            round,
            sequence,
            from,
            to,
            ..
        } = envelope.header;
        if kind != Kind::Protocol || Some(from) == self.byzantine {
            return;
        }
        let opened = self.posts.get(&to).map(|post| post.open(&envelope));
        let mut seen = self.seen.lock().unwrap();
        if !seen.ordered.contains(&(from, session, attempt)) {
            let what = format!("{from:?} runs {session} {attempt}, for which it has no order");
            Self::violated(&mut seen, what);
        }
        let Some((request, content)) = seen.sessions.get(&session).cloned() else {
            return;
        };
        let known = seen
            .digests
            .entry((from, request))
            .or_insert(content.clone());
        if *known != content {
            let what = format!("{from:?} signs a second digest for request {request}");
            Self::violated(&mut seen, what);
        }
        let Some(Ok(opened)) = opened else { return };
        if self.frost {
            let slot = (session, attempt, sequence);
            self.frost_message(&mut seen, from, slot, round, opened.body.to_vec());
        }
    }

    /// Round 1 shows the commitments, round 2 the signature share made with their nonces.
    fn frost_message(&self, seen: &mut Seen, from: NodeId, slot: Slot, round: u16, body: Vec<u8>) {
        if round == 1 {
            let first = *seen.commitments.entry((from, body.clone())).or_insert(slot);
            if first != slot {
                let what = format!("{from:?} uses a nonce twice: in {first:?} and {slot:?}");
                Self::violated(seen, what);
            }
        }
        let known = seen
            .messages
            .entry((from, slot, round))
            .or_insert(body.clone());
        if *known != body {
            let what = format!("{from:?} sends two messages of round {round} in {slot:?}");
            Self::violated(seen, what);
        }
    }

    /// The orchestrator got signatures.
    pub fn signed(&self, order: &SigningOrder, signatures: &[Signature]) {
        let content = content(order);
        let mut seen = self.seen.lock().unwrap();
        let known = seen.signed.entry(order.request).or_insert(content.clone());
        if *known != content {
            let what = format!("two digests were signed for request {}", order.request);
            Self::violated(&mut seen, what);
        }
        for (input, signature) in order.inputs.iter().zip(signatures) {
            let bytes = signature.to_bytes();
            let what = (order.public_key.clone(), input.message.clone());
            let point = seen
                .points
                .entry(bytes[..32].to_vec())
                .or_insert(what.clone());
            if *point != what {
                Self::violated(&mut seen, "one nonce point in two signatures".into());
            }
        }
    }
}

fn content(order: &SigningOrder) -> Vec<u8> {
    order
        .inputs
        .iter()
        .flat_map(|input| input.message.clone())
        .collect()
}
