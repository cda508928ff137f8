//! What comes from the bus: sorted by sender as fast as it comes, then verified one of each sender
//! in turn, so that who sends without end waits for itself.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Weak,
};

use covault_core::{order::NodeId, port::random_16};
use futures::FutureExt as _;

use super::{
    ClusterInner,
    calls::{ReplyError, ReplySlot},
    lock,
    questions::QuestionError,
};
use crate::{
    bus::Subscription,
    envelope::{EVERYONE, Envelope, EnvelopeError, EnvelopeHeader, EnvelopeKind},
    message::{
        Announcement, MAX_ANNOUNCEMENT, MAX_KEY_EXCHANGE, OrderReply, PreprocessMsg, WitnessMsg,
        decode, encode,
    },
    questions::MAX_QUESTION,
};

/// Messages, and bytes, of one sender that wait to be verified.
const MAX_QUEUED: usize = 512;
const MAX_QUEUED_BYTES: usize = 4 << 20;
/// Senders of whom some wait. More than a vault has holders.
const MAX_SENDERS: usize = 2048;
/// Messages that are sorted before the next one is verified.
const MAX_SORTED_AT_ONCE: usize = 256;
/// Bytes of a list of nonces: [`crate::preprocess::MAX_POOL_SIZE`] numbers and a key.
const MAX_NONCES: usize = crate::preprocess::MAX_POOL_SIZE * 8 + (4 << 10);
/// How often it is logged that a node's messages are dropped, in milliseconds.
const LOG_INTERVAL_MS: u64 = 10_000;
/// Nodes for whom that is remembered.
const MAX_LOGGED_NODES: usize = 1024;

/// Why a message was dropped.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum DropReason {
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    #[error(transparent)]
    ReplyError(#[from] ReplyError),
    #[error("flood: too many queued messages of this sender")]
    SenderQueue,
    #[error("the message is larger than any honest one")]
    TooLarge,
    #[error(transparent)]
    Question(#[from] QuestionError),
}

/// What waits of one sender.
#[derive(Default)]
struct SenderQueue {
    messages: VecDeque<(Envelope, Option<ReplySlot>)>,
    bytes: usize,
}

/// What waits, by sender. In order: whose turn it is must not depend on chance.
#[derive(Default)]
struct SenderQueues {
    queues: BTreeMap<NodeId, SenderQueue>,
    /// Whose turn it was.
    last: Option<NodeId>,
}

impl SenderQueues {
    fn push(&mut self, sender: NodeId, envelope: Envelope, slot: Option<ReplySlot>) -> bool {
        if self.queues.len() >= MAX_SENDERS && !self.queues.contains_key(&sender) {
            return false;
        }
        let queue = self.queues.entry(sender).or_default();
        let bytes = queue.bytes.saturating_add(envelope.size());
        if queue.messages.len() >= MAX_QUEUED || bytes > MAX_QUEUED_BYTES {
            return false;
        }
        queue.bytes = bytes;
        queue.messages.push_back((envelope, slot));
        true
    }

    /// The oldest message of the sender whose turn it is.
    fn next(&mut self) -> Option<(Envelope, Option<ReplySlot>)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let after = self.last.map_or(Unbounded, Excluded);
        let following = self.queues.range((after, Unbounded)).next();
        let (sender, _) = following.or_else(|| self.queues.iter().next())?;
        let sender = *sender;
        self.last = Some(sender);
        let queue = self.queues.get_mut(&sender)?;
        let message = queue.messages.pop_front();
        if let Some((envelope, _)) = &message {
            queue.bytes = queue.bytes.saturating_sub(envelope.size());
        }
        if queue.messages.is_empty() {
            self.queues.remove(&sender);
        }
        message
    }
}

/// When it was last said of whom that messages are dropped.
#[derive(Default)]
struct DropLog(HashMap<NodeId, u64>);

impl DropLog {
    fn log_drop(&mut self, shared: &ClusterInner, from: &NodeId, why: DropReason) {
        let now_ms = shared.clock.now_ms();
        let quiet = |at_ms: u64| now_ms.abs_diff(at_ms) < LOG_INTERVAL_MS;
        if self.0.get(from).is_some_and(|at_ms| quiet(*at_ms)) {
            return;
        }
        if self.0.len() >= MAX_LOGGED_NODES {
            self.0.retain(|_, at_ms| quiet(*at_ms));
            if self.0.len() >= MAX_LOGGED_NODES {
                return;
            }
        }
        self.0.insert(*from, now_ms);
        let node = shared.node_registry.name(from);
        tracing::warn!(%node, %why, "dropped messages to the orchestrator; logged at most every ten seconds per \
                                     node");
    }
}

pub(super) async fn listen(shared: Weak<ClusterInner>, mut inbox: Subscription) {
    let mut queues = SenderQueues::default();
    let mut drop_log = DropLog::default();
    loop {
        if queues.queues.is_empty() {
            let Some(message) = inbox.next().await else {
                return;
            };
            let Some(shared) = shared.upgrade() else {
                return;
            };
            shared.enqueue(message, &mut queues, &mut drop_log);
        }
        let Some(shared) = shared.upgrade() else {
            return;
        };
        for _ in 0..MAX_SORTED_AT_ONCE {
            match inbox.next().now_or_never() {
                Some(Some(message)) => shared.enqueue(message, &mut queues, &mut drop_log),
                Some(None) => return,
                None => break,
            }
        }
        if let Some((envelope, slot)) = queues.next() {
            let from = envelope.header.from;
            if let Err(why) = shared.process_envelope(envelope, slot) {
                drop_log.log_drop(&shared, &from, why);
            }
        }
        drop(shared);
        // Verifying takes its time; others have theirs on this thread.
        tokio::task::yield_now().await;
    }
}

impl ClusterInner {
    /// Puts a message where its sender's wait, when it is worth a verification.
    fn enqueue(&self, message: Vec<u8>, queues: &mut SenderQueues, drop_log: &mut DropLog) {
        let Ok(envelope) = Envelope::parse(message) else {
            return;
        };
        let EnvelopeHeader {
            kind,
            from,
            epoch,
            session,
            ..
        } = envelope.header;
        let mut queue = from;
        let mut slot = None;
        let fits = match kind {
            // Replies that nobody waits for are not worth a verification, nor are those of nodes
            // that were not asked, or of another epoch.
            EnvelopeKind::Reply => {
                let calls = lock(&self.calls);
                let Some(found) = calls.get(&session).and_then(|call| call.slot(&from, epoch))
                else {
                    return;
                };
                let room = found.has_room(envelope.size());
                slot = Some(found);
                room.map_err(DropReason::from)
            }
            EnvelopeKind::Announcement => {
                if !self.node_registry.listens_to(&from) {
                    return;
                }
                // Unknown senders can be arbitrarily many: all share one lane.
                if !self.node_registry.is_known(&from) {
                    queue = EVERYONE;
                }
                within(&envelope, MAX_ANNOUNCEMENT)
            }
            EnvelopeKind::Nonces => {
                if !self.preprocess.expects(&from) {
                    return;
                }
                within(&envelope, MAX_NONCES)
            }
            EnvelopeKind::Question => {
                if !self.node_registry.is_known(&from) {
                    return;
                }
                within(&envelope, MAX_QUESTION)
            }
            EnvelopeKind::KeyExchange | EnvelopeKind::Witness => {
                if !self.node_registry.is_known(&from) {
                    return;
                }
                // Either is small.
                within(&envelope, MAX_KEY_EXCHANGE)
            }
            EnvelopeKind::SigningOrder
            | EnvelopeKind::KeygenOrder
            | EnvelopeKind::ReshareOrder
            | EnvelopeKind::Activate
            | EnvelopeKind::BackupOrder
            | EnvelopeKind::AttestOrder
            | EnvelopeKind::Rejection
            | EnvelopeKind::Answer
            | EnvelopeKind::Protocol => return,
        };
        let kept = fits.and_then(|()| {
            let kept = queues.push(queue, envelope, slot);
            kept.then_some(()).ok_or(DropReason::SenderQueue)
        });
        if let Err(why) = kept {
            drop_log.log_drop(self, &from, why);
        }
    }

    /// Verifies a message, and hands it to whom it is for.
    fn process_envelope(
        &self,
        envelope: Envelope,
        slot: Option<ReplySlot>,
    ) -> Result<(), DropReason> {
        let EnvelopeHeader {
            kind,
            from,
            session,
            attempt,
            ..
        } = envelope.header;
        // It may have been filled since.
        if let Some(slot) = &slot {
            slot.has_room(envelope.size())?;
        }
        let opened = match self.codec.open_in_place(envelope) {
            Ok(opened) => opened,
            // Anyone can announce anything.
            Err(_) if kind == EnvelopeKind::Announcement => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        match (kind, slot) {
            (EnvelopeKind::Reply, Some(slot)) => {
                if let Some(reply) = decode::<OrderReply>(&opened.body) {
                    slot.give(from, attempt, reply)?;
                }
            }
            (EnvelopeKind::Announcement, _) => {
                if let Some(announcement) = decode::<Announcement>(&opened.body) {
                    self.codec.announced(&from, announcement.boot);
                    self.node_registry.heard(from, announcement);
                    self.ask_if_present(from);
                }
            }
            (EnvelopeKind::Witness, _) => {
                if let Some(WitnessMsg::Told { now: Some(now), .. }) = decode(&opened.body) {
                    self.node_registry.note_presence(&from, &now);
                }
            }
            (EnvelopeKind::KeyExchange, _) => self.codec.take_half(&from, &opened.body),
            (EnvelopeKind::Question, _) => self.asked(from, session, &opened.body)?,
            (EnvelopeKind::Nonces, _) => {
                if let Some(PreprocessMsg::Ready { of, floor, ids }) = decode(&opened.body) {
                    self.preprocess.heard(&from, of, floor, ids);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Asks a node whose clock is off whether it is there, when that is due.
    fn ask_if_present(&self, node: NodeId) {
        let question = self
            .node_registry
            .question(&node, || random_16(&*self.entropy));
        let Some(question) = question else { return };
        let boot = self.boot;
        let header = EnvelopeHeader::outside_sessions(EnvelopeKind::Witness, self.codec.id(), node);
        let sent = encode(&WitnessMsg::Ask { boot, question })
            .and_then(|body| self.codec.send(header, &body));
        if let Err(fault) = sent {
            tracing::debug!(?fault, "failed to ask a node whose clock is off");
        }
    }
}

fn within(envelope: &Envelope, most: usize) -> Result<(), DropReason> {
    if envelope.size() > most {
        return Err(DropReason::TooLarge);
    }
    Ok(())
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use covault_core::testing::ManualClock;
    use covault_core::{
        ids::SessionId,
        signature::{Curve, Signature},
    };
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::{
        bus::{Bus as _, memory::MemoryBus},
        cluster::{
            Cluster, ClusterConfig,
            calls::{CallGuard, ExpectedReply, MAX_REPLIES_PER_NODE},
        },
        envelope::EnvelopeCodec,
        identity::NodeIdentity,
        message::encode,
        test_support::SystemEntropy,
    };

    fn session() -> SessionId {
        SessionId::from_bytes([5; 16])
    }

    /// A cluster without nodes, two who speak as nodes, of whom the second is honest, and one who was asked for nothing.
    struct ListenFixture {
        cluster: Arc<Cluster>,
        orchestrator: NodeId,
        hostile: EnvelopeCodec,
        honest: EnvelopeCodec,
        stranger: EnvelopeCodec,
    }

    async fn world() -> ListenFixture {
        let bus = MemoryBus::new();
        let identity = || Arc::new(NodeIdentity::generate(&SystemEntropy));
        let codec =
            || EnvelopeCodec::new(identity(), Arc::clone(&bus) as _, Arc::new(SystemEntropy));
        let orchestrator = identity();
        let cluster = Cluster::start(ClusterConfig {
            identity: Arc::clone(&orchestrator),
            bus: Arc::clone(&bus) as _,
            clock: Arc::new(ManualClock::at(1_000_000)),
            entropy: Arc::new(SystemEntropy),
            live_for: Duration::from_secs(3),
            attempt: Duration::from_secs(2),
        });
        assert!(bus.reachable());
        ListenFixture {
            cluster: cluster.await.unwrap(),
            orchestrator: orchestrator.id(),
            hostile: codec(),
            honest: codec(),
            stranger: codec(),
        }
    }

    impl ListenFixture {
        fn call(&self, wanted: ExpectedReply) -> CallGuard<'_> {
            let nodes = [self.hostile.id(), self.honest.id()];
            self.cluster
                .shared
                .call(wanted, 0, session(), &nodes)
                .unwrap()
        }

        fn say(&self, codec: &EnvelopeCodec, reply: &OrderReply) {
            let header = EnvelopeHeader {
                kind: EnvelopeKind::Reply,
                sealed: true,
                epoch: 0,
                session: session(),
                attempt: 0,
                round: 0,
                sequence: 0,
                from: codec.id(),
                to: self.orchestrator,
            };
            codec.send(header, &encode(reply).unwrap()).unwrap();
        }

        /// Waits until the call keeps this many answers of the node.
        async fn until_kept(&self, call: &CallGuard<'_>, codec: &EnvelopeCodec, count: usize) {
            let kept = timeout(Duration::from_secs(60), async {
                while call.kept(&codec.id()) != count {
                    sleep(Duration::from_millis(5)).await;
                }
            });
            kept.await.expect("the answers come");
        }
    }

    fn failed() -> OrderReply {
        OrderReply::Failed {
            culprits: Vec::new(),
            missing: Vec::new(),
            reason: "x".repeat(1000),
            evidence: String::new(),
        }
    }

    fn signed(count: usize) -> OrderReply {
        let (r, s) = ([1; 32], [2; 32]);
        OrderReply::Signed(vec![Signature::Ed25519 { r, s }; count])
    }

    #[tokio::test]
    async fn round__should_be_taken_from_those_who_were_asked_and_where_there_can_be_one() {
        let world = world().await;
        let said = |round, of| OrderReply::Round { round, of };
        let mut call = world.call(ExpectedReply::Key);
        world.say(&world.stranger, &said(1, 5));
        for (round, of) in [(0, 5), (6, 5), (100, 100)] {
            world.say(&world.hostile, &said(round, of));
        }
        world.say(&world.honest, &said(2, 5));
        let taken = timeout(Duration::from_secs(60), call.replies.recv()).await;
        let (from, _, reply) = taken.unwrap().unwrap();
        assert_eq!(from, world.honest.id());
        assert!(matches!(reply, OrderReply::Round { round: 2, of: 5 }));
        drop(call);

        let mut call = world.call(ExpectedReply::Signatures(1, Curve::Ed25519));
        world.say(&world.honest, &said(1, 5));
        world.say(&world.honest, &signed(1));
        let taken = timeout(Duration::from_secs(60), call.replies.recv()).await;
        let (_, _, reply) = taken.unwrap().unwrap();
        assert!(
            matches!(reply, OrderReply::Signed(_)),
            "signing has no rounds for people"
        );
    }

    #[tokio::test]
    async fn round__should_be_one_that_two_nodes_have_reached() {
        let world = world().await;
        let [hostile, honest] = [&world.hostile, &world.honest].map(|codec| codec.id());
        let note = |node, round, of| world.cluster.shared.note_round(session(), node, round, of);
        let round = || world.cluster.round(&session());
        let call = world.call(ExpectedReply::Key);
        note(hostile, 9, 9);
        note(honest, 1, 5);
        assert_eq!(round(), None, "they do not agree on how many there are");
        note(hostile, 5, 5);
        assert_eq!(round(), None, "its first word counts");
        drop(call);

        let call = world.call(ExpectedReply::Statements);
        note(hostile, 5, 5);
        assert_eq!(round(), None, "nobody else is there");
        let mut seen = Vec::new();
        for reached in [1, 3, 2, 4] {
            note(honest, reached, 5);
            seen.extend(round());
        }
        assert_eq!(seen, [(1, 5), (3, 5), (3, 5), (4, 5)]);
        drop(call);
        assert_eq!(round(), None, "it is over");
    }

    #[tokio::test]
    async fn call__should_keep_few_answers_of_a_node_that_sends_without_end() {
        let world = world().await;
        let mut call = world.call(ExpectedReply::Signatures(1, Curve::Ed25519));
        for _ in 0..1_000 {
            world.say(&world.hostile, &failed());
        }
        world.say(&world.honest, &signed(1));
        world.until_kept(&call, &world.honest, 1).await;
        world
            .until_kept(&call, &world.hostile, MAX_REPLIES_PER_NODE)
            .await;
        assert_eq!(call.replies.waiting(), MAX_REPLIES_PER_NODE + 1);
        while call.replies.waiting() > 0 {
            call.replies.recv().await.unwrap();
        }
        // Its places are free again.
        world.say(&world.hostile, &failed());
        let (from, ..) = call.replies.recv().await.unwrap();
        assert_eq!(from, world.hostile.id());
    }

    #[tokio::test]
    async fn call__should_take_nothing_that_is_no_answer_to_it() {
        let world = world().await;
        let call = world.call(ExpectedReply::Signatures(1, Curve::Ed25519));
        let (r, s) = ([1; 32], [2; 32]);
        let ecdsa = Signature::Ecdsa { r, s, y_parity: 0 };
        for reply in [
            signed(50_000),
            signed(2),
            signed(0),
            OrderReply::Signed(vec![ecdsa]),
            OrderReply::Backup(vec![7; 3 << 20]),
            OrderReply::Backup(vec![7; 10]),
            OrderReply::Attested(vec![7; 64]),
            OrderReply::Prepared(vec![7; 64]),
            OrderReply::Activated,
        ] {
            world.say(&world.hostile, &reply);
        }
        // What a node says is heard in its order: when this is, the rest was.
        world.say(&world.hostile, &signed(1));
        world.until_kept(&call, &world.hostile, 1).await;
        assert_eq!(call.replies.waiting(), 1);
        drop(call);

        let call = world.call(ExpectedReply::Backups);
        world.say(&world.hostile, &OrderReply::Backup(vec![7; 2 << 20]));
        for _ in 0..100 {
            world.say(&world.hostile, &OrderReply::Backup(vec![7; 1 << 20]));
        }
        world.say(&world.honest, &OrderReply::Backup(vec![8; 5000]));
        world.until_kept(&call, &world.honest, 1).await;
        world.until_kept(&call, &world.hostile, 1).await;
        assert_eq!(call.replies.waiting(), 2);
    }

    /// Envelopes of a sender, that no signature holds.
    fn envelope(from: u8, size: usize) -> Envelope {
        let header = EnvelopeHeader {
            kind: EnvelopeKind::Nonces,
            sealed: false,
            epoch: 0,
            session: session(),
            attempt: 0,
            round: 0,
            sequence: 0,
            from: NodeId([from; 32]),
            to: NodeId([9; 32]),
        };
        let mut wire = header.to_bytes().to_vec();
        wire.resize(wire.len().saturating_add(64 + size), 0);
        Envelope::parse(wire).unwrap()
    }

    #[test]
    fn lanes__should_give_every_sender_its_turn() {
        let mut queues = SenderQueues::default();
        let mut push = |from: u8, size| queues.push(NodeId([from; 32]), envelope(from, size), None);
        let kept = (0..10_000).filter(|_| push(1, 10)).count();
        assert_eq!(kept, MAX_QUEUED);
        // By bytes too.
        let kept = (0..100).filter(|_| push(2, 1 << 20)).count();
        assert!(kept < 4, "{kept}");
        assert!(push(3, 10) && push(3, 10));
        let turns: Vec<u8> = (0..7)
            .map(|_| queues.next().unwrap().0.header.from.0[0])
            .collect();
        assert_eq!(turns, [1, 2, 3, 1, 2, 3, 1]);
        while queues.next().is_some() {}
        assert!(queues.queues.is_empty());
    }
}
