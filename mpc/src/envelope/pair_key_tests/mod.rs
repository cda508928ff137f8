//! How pair keys come and go, with the test as the bus.

#![allow(non_snake_case)]

use covault_core::{ids::SessionId, testing::ManualClock};
use parking_lot::Mutex;

mod attacks;

use super::{
    pair_keys::{CONFIRMED_FOR_RETRIES_MS, CONFIRMED_MS},
    *,
};
use crate::{bus::Subscription, message::SKEW_MS, test_support::SystemEntropy};

const HOUR_MS: u64 = 3_600_000;
const MINUTE_MS: u64 = 60_000;

/// Keeps what is sent: the test is the bus.
#[derive(Default)]
struct Outbox(Mutex<Vec<Vec<u8>>>);

#[async_trait::async_trait]
impl Bus for Outbox {
    fn publish(&self, _: BusAddress, message: Vec<u8>) -> Result<(), BusError> {
        self.0.lock().push(message);
        Ok(())
    }

    async fn subscribe(&self, _: NodeId, _: bool) -> Result<Subscription, BusError> {
        Err(BusError::Unreachable("nobody listens".into()))
    }

    fn reachable(&self) -> bool {
        true
    }
}

/// One start of a node.
struct Side {
    codec: EnvelopeCodec,
    outbox: Arc<Outbox>,
}

type Opened = Result<Vec<u8>, EnvelopeError>;

impl Side {
    fn start(identity: &Arc<NodeIdentity>, clock: &Arc<ManualClock>) -> Self {
        let outbox = Arc::new(Outbox::default());
        let bus = Arc::clone(&outbox) as Arc<dyn Bus>;
        let codec = EnvelopeCodec::new(Arc::clone(identity), bus, Arc::new(SystemEntropy))
            .with_pair_keys(Arc::clone(clock) as Arc<dyn Clock>);
        Self { codec, outbox }
    }

    fn id(&self) -> NodeId {
        self.codec.id()
    }

    fn say(&self, to: &Self, body: &[u8]) {
        self.codec.send(header(self, to), body).unwrap();
    }

    /// What it has sent since.
    fn sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.outbox.0.lock())
    }

    /// Takes what reaches it: halves of keys as nodes do; what else was said.
    fn hear(&self, messages: &[Vec<u8>]) -> Vec<Opened> {
        let mut heard = Vec::new();
        for wire in messages {
            let envelope = Envelope::parse(wire.clone()).unwrap();
            let EnvelopeHeader { kind, from, .. } = envelope.header;
            match self.codec.open_in_place(envelope) {
                Ok(opened) if kind == EnvelopeKind::KeyExchange => {
                    self.codec.take_half(&from, &opened.body);
                }
                opened => heard.push(opened.map(|opened| opened.body.to_vec())),
            }
        }
        heard
    }
}

fn header(from: &Side, to: &Side) -> EnvelopeHeader {
    EnvelopeHeader {
        kind: EnvelopeKind::Protocol,
        sealed: true,
        epoch: 1,
        session: SessionId::from_bytes([3; 16]),
        attempt: 0,
        round: 5,
        sequence: 6,
        from: from.id(),
        to: to.id(),
    }
}

fn protection(wire: &[u8]) -> Protection {
    Envelope::parse(wire.to_vec()).unwrap().protection
}

fn kind(wire: &[u8]) -> EnvelopeKind {
    Envelope::parse(wire.to_vec()).unwrap().header.kind
}

/// The one message among what was sent that is no half of a key.
fn message(sent: Vec<Vec<u8>>) -> Vec<u8> {
    let is_message = |wire: &Vec<u8>| kind(wire) != EnvelopeKind::KeyExchange;
    let mut messages = sent.into_iter().filter(is_message);
    let found = messages.next().unwrap();
    assert!(messages.next().is_none());
    found
}

struct World {
    clock: Arc<ManualClock>,
    alice: Side,
    bob: Side,
    alice_identity: Arc<NodeIdentity>,
    bob_identity: Arc<NodeIdentity>,
}

impl World {
    /// Two who have not spoken.
    fn new() -> Self {
        let clock = Arc::new(ManualClock::at(1_000 * HOUR_MS));
        let identity = || Arc::new(NodeIdentity::generate(&SystemEntropy));
        let (alice_identity, bob_identity) = (identity(), identity());
        Self {
            alice: Side::start(&alice_identity, &clock),
            bob: Side::start(&bob_identity, &clock),
            clock,
            alice_identity,
            bob_identity,
        }
    }

    /// Two who have agreed on keys.
    fn paired() -> Self {
        let world = Self::new();
        world.alice.say(&world.bob, b"hello");
        world.settle();
        assert!(world.are_paired());
        world
    }

    fn pass(&self, ms: u64) {
        self.clock.advance(ms);
    }

    /// The bus brings everything until nobody says more.
    fn settle(&self) -> Vec<Opened> {
        let mut heard = Vec::new();
        loop {
            let (ours, theirs) = (self.alice.sent(), self.bob.sent());
            if ours.is_empty() && theirs.is_empty() {
                return heard;
            }
            heard.extend(self.bob.hear(&ours));
            heard.extend(self.alice.hear(&theirs));
        }
    }

    fn alice_says(&self) -> Vec<u8> {
        self.alice.say(&self.bob, b"a share");
        message(self.alice.sent())
    }

    fn bob_says(&self) -> Vec<u8> {
        self.bob.say(&self.alice, b"a share");
        message(self.bob.sent())
    }

    /// They speak after a while, and the bus brings everything.
    fn is_confirmed_again(&self) -> bool {
        self.alice.say(&self.bob, b"a share");
        self.bob.say(&self.alice, b"a share");
        self.settle();
        self.are_paired()
    }

    fn are_paired(&self) -> bool {
        let wires = [self.alice_says(), self.bob_says()];
        wires
            .iter()
            .all(|wire| protection(wire) == Protection::PairKey)
    }
}

fn share() -> Vec<Opened> {
    vec![Ok(b"a share".to_vec())]
}

#[test]
fn messages__should_be_signed_until_the_recipient_has_confirmed_the_key() {
    let world = World::new();
    let first = world.alice_says();
    assert_eq!(protection(&first), Protection::SignedAndSealed);
    assert_eq!(world.bob.hear(&[first]), share());
    // Nothing waits for the exchange, and what came before its end opens.
    world.pass(1_000);
    world.alice.say(&world.bob, b"one");
    assert_eq!(world.settle(), [Ok(b"one".to_vec())]);
    let (alice_says, bob_says) = (world.alice_says(), world.bob_says());
    for (wire, to) in [(alice_says, &world.bob), (bob_says, &world.alice)] {
        assert_eq!(protection(&wire), Protection::PairKey);
        assert!(!wire.windows(7).any(|bytes| bytes == b"a share"));
        assert_eq!(to.hear(&[wire]), share());
    }
}

#[test]
fn messages__should_be_signed_while_the_bus_drops_every_exchange() {
    let world = World::new();
    for _ in 0..200 {
        let wire = world.alice_says();
        assert_eq!(protection(&wire), Protection::SignedAndSealed);
        assert_eq!(world.bob.hear(&[wire]), share());
        world.pass(MINUTE_MS);
        world.alice.codec.renew_pair_keys();
        world.alice.sent();
    }
    // From the middle of an hour on, too.
    let world = World::paired();
    let mut forms = Vec::new();
    for _ in 0..200 {
        let wire = world.alice_says();
        forms.push(protection(&wire));
        assert_eq!(world.bob.hear(&[wire]), share());
        world.pass(1_000);
        world.alice.codec.renew_pair_keys();
        world.bob.codec.renew_pair_keys();
        world.alice.sent();
        world.bob.sent();
    }
    let paired = forms.iter().filter(|it| **it == Protection::PairKey);
    assert_eq!(paired.count(), 60, "a key is used while it is confirmed");
}

#[test]
fn exchange__should_survive_the_loss_repetition_and_order_of_any_of_its_messages() {
    // Each bit says what the bus does with the next message of the exchange.
    for fate in 0_u32..1 << 8 {
        let world = World::new();
        let mut delivered = 0;
        for _ in 0..12 {
            world.pass(1_500);
            world.alice.say(&world.bob, b"a share");
            world.bob.say(&world.alice, b"a share");
            for _ in 0..4 {
                for (from, to) in [(&world.alice, &world.bob), (&world.bob, &world.alice)] {
                    let mut sent = from.sent();
                    sent.reverse();
                    sent.extend(sent.clone());
                    sent.retain(|wire| {
                        let lost = kind(wire) == EnvelopeKind::KeyExchange
                            && delivered < 8
                            && fate & (1 << delivered) != 0;
                        delivered += u32::from(kind(wire) == EnvelopeKind::KeyExchange);
                        !lost
                    });
                    for heard in to.hear(&sent) {
                        assert_eq!(heard, Ok(b"a share".to_vec()), "{fate:b}");
                    }
                }
            }
        }
        assert!(world.are_paired(), "{fate:b}");
    }
}

#[test]
fn orders__should_be_signed_by_who_has_a_pair_key() {
    let world = World::paired();
    for kind in [
        EnvelopeKind::SigningOrder,
        EnvelopeKind::KeygenOrder,
        EnvelopeKind::ReshareOrder,
        EnvelopeKind::Activate,
        EnvelopeKind::BackupOrder,
        EnvelopeKind::AttestOrder,
        EnvelopeKind::Rejection,
        EnvelopeKind::Witness,
        EnvelopeKind::Question,
        EnvelopeKind::Answer,
        EnvelopeKind::KeyExchange,
        EnvelopeKind::Announcement,
    ] {
        let header = EnvelopeHeader {
            kind,
            ..header(&world.alice, &world.bob)
        };
        world.alice.codec.send(header, b"order").unwrap();
        for wire in world.alice.sent() {
            assert_ne!(protection(&wire), Protection::PairKey, "{kind:?}");
        }
        // An honest key does not make up for it.
        let keys = world.alice.codec.pair_keys.as_ref().unwrap();
        let key = keys.outgoing(&world.bob.id(), 0).unwrap();
        let wire = world.alice.codec.write_with(&header, &[b"order"], &key);
        let refused = world.bob.hear(&[wire.unwrap()]);
        assert_eq!(refused, [Err(EnvelopeError::Unsigned)], "{kind:?}");
    }
}

#[test]
fn exchange__should_be_of_the_present() {
    for (later_ms, taken) in [(SKEW_MS, true), (SKEW_MS + 1, false)] {
        let world = World::new();
        world.alice.codec.greet(&world.bob.id());
        world.pass(later_ms);
        world.bob.hear(&world.alice.sent());
        assert_eq!(!world.bob.sent().is_empty(), taken);
    }
}

#[test]
fn key__should_be_replaced_when_one_side_or_both_are_started_anew() {
    for (anew_alice, anew_bob) in [(true, false), (false, true), (true, true)] {
        let mut world = World::paired();
        let in_flight = world.alice_says();
        world.pass(5_000);
        if anew_alice {
            world.alice = Side::start(&world.alice_identity, &world.clock);
        }
        if anew_bob {
            world.bob = Side::start(&world.bob_identity, &world.clock);
        }
        let heard = world.bob.hear(&[in_flight]);
        match anew_bob {
            // It was for a session that is gone.
            true => assert_eq!(heard, [Err(EnvelopeError::UnknownPairKey)]),
            false => assert_eq!(heard, share()),
        }
        // Bob has said so, if need be, and Alice signs: nothing else is lost.
        world.alice.hear(&world.bob.sent());
        world.alice.say(&world.bob, b"a share");
        assert_eq!(world.settle(), share());
        world.pass(1_000);
        world.alice.say(&world.bob, b"a share");
        world.bob.say(&world.alice, b"a share");
        assert_eq!(world.settle(), [share(), share()].concat());
        assert!(world.are_paired(), "{anew_alice} {anew_bob}");
    }
}

#[test]
fn first_words_of_a_new_start__should_replace_the_key_before_an_answer_is_sealed_with_it() {
    let world = World::paired();
    world.pass(1_000);
    let alice = Side::start(&world.alice_identity, &world.clock);
    let world = World { alice, ..world };
    let header = EnvelopeHeader {
        kind: EnvelopeKind::SigningOrder,
        ..header(&world.alice, &world.bob)
    };
    world.alice.codec.send(header, b"order").unwrap();
    assert_eq!(world.bob.hear(&world.alice.sent()), [Ok(b"order".to_vec())]);
    let answer = world.bob_says();
    assert_eq!(protection(&answer), Protection::SignedAndSealed);
    assert_eq!(world.alice.hear(&[answer]), share());
}

#[test]
fn key__should_be_renewed_within_the_hour_and_end_with_what_is_on_its_way() {
    let world = World::paired();
    let before = world.alice_says();
    let key_id = |wire: &[u8]| wire[HEADER_LEN..HEADER_LEN + KEY_ID_LEN].to_vec();
    let mut late = Vec::new();
    for _ in 0..240 {
        world.pass(15_000);
        world.alice.codec.renew_pair_keys();
        world.bob.codec.renew_pair_keys();
        world.settle();
        let wire = world.alice_says();
        assert_eq!(
            protection(&wire),
            Protection::PairKey,
            "no signature in between"
        );
        if key_id(&wire) == key_id(&before) {
            late = wire.clone();
        }
        assert_eq!(world.bob.hear(&[wire]), share());
    }
    let after = world.alice_says();
    assert_ne!(key_id(&before), key_id(&after));
    assert_eq!(world.bob.hear(&[after]), share());
    // Renewed ten minutes ago. What is on its way for longer than two minutes does not open.
    assert_eq!(
        world.bob.hear(&[late]),
        [Err(EnvelopeError::UnknownPairKey)]
    );

    let world = World::paired();
    world.pass(50 * MINUTE_MS - 20_000);
    assert!(world.is_confirmed_again());
    let late = world.alice_says();
    world.pass(20_000);
    world.alice.codec.renew_pair_keys();
    world.bob.codec.renew_pair_keys();
    world.settle();
    assert_ne!(key_id(&world.alice_says()), key_id(&late));
    assert_eq!(world.bob.hear(std::slice::from_ref(&late)), share());
    world.pass(2 * MINUTE_MS);
    assert_eq!(
        world.bob.hear(&[late]),
        [Err(EnvelopeError::UnknownPairKey)]
    );
}

/// The bus brings everything else.
#[test]
fn message__should_be_lost_for_a_minute_at_most_when_a_new_start_cannot_say_so() {
    let world = World::paired();
    world.pass(CONFIRMED_FOR_RETRIES_MS);
    let bob = Side::start(&world.bob_identity, &world.clock);
    let world = World { bob, ..world };
    let say = |attempt| {
        let header = EnvelopeHeader {
            attempt,
            ..header(&world.alice, &world.bob)
        };
        world.alice.codec.send(header, b"a share").unwrap();
        world.bob.hear(&[message(world.alice.sent())])
    };
    let lost = [Err(EnvelopeError::UnknownPairKey)];
    assert_eq!(say(0), lost);
    // The attempt is repeated, and nobody relies on the key then.
    assert_eq!(say(1), share());
    assert_eq!(say(0), share());

    let world = World::paired();
    let bob = Side::start(&world.bob_identity, &world.clock);
    let world = World { bob, ..world };
    let mut lost_ms = Vec::new();
    for second in 0..100 {
        world.alice.codec.renew_pair_keys();
        let wire = world.alice_says();
        if world.bob.hear(&[wire]) != share() {
            lost_ms.push(second * 1_000);
        }
        world.bob.sent();
        world.pass(1_000);
    }
    assert_eq!(lost_ms.last(), Some(&(CONFIRMED_MS - 1_000)));
}

#[test]
fn key__should_not_be_used_for_a_start_of_the_peer_that_has_none() {
    let world = World::paired();
    world.alice.codec.announced(&world.bob.id(), [1; 16]);
    world.alice.codec.announced(&world.bob.id(), [1; 16]);
    assert!(world.are_paired());
    world.alice.codec.announced(&world.bob.id(), [2; 16]);
    assert_eq!(protection(&world.alice_says()), Protection::SignedAndSealed);
    // Of one who has no pair with us, nothing is kept.
    world.alice.codec.announced(&NodeId([7; 32]), [1; 16]);
    let keys = world.alice.codec.pair_keys.as_ref().unwrap();
    assert_eq!(keys.count(), 1);
    world.pass(2_000);
    assert!(world.is_confirmed_again());
}

#[test]
fn key__should_stay_confirmed_while_it_is_used_and_only_then() {
    let world = World::paired();
    let mut exchanges = 0;
    for _ in 0..600 {
        world.pass(1_000);
        for (side, peer) in [(&world.alice, &world.bob), (&world.bob, &world.alice)] {
            side.codec.renew_pair_keys();
            let said = side.sent();
            exchanges += said.len();
            peer.hear(&said);
        }
        assert!(world.are_paired());
    }
    // One to ask and one to answer, each 20 seconds, and no more of the other side.
    assert!((55..=65).contains(&exchanges), "{exchanges}");
    for _ in 0..120 {
        world.pass(1_000);
        world.alice.codec.renew_pair_keys();
        world.bob.codec.renew_pair_keys();
        world.settle();
    }
    world.alice.sent();
    for _ in 0..60 {
        world.pass(1_000);
        world.alice.codec.renew_pair_keys();
        assert!(world.alice.sent().is_empty());
    }
    assert_eq!(protection(&world.alice_says()), Protection::SignedAndSealed);
}

#[test]
fn keys__should_be_gone_once_nobody_needs_them() {
    let world = World::paired();
    world.pass(HOUR_MS + 2 * MINUTE_MS);
    for side in [&world.alice, &world.bob] {
        side.codec.renew_pair_keys();
        let keys = side.codec.pair_keys.as_ref().unwrap();
        assert_eq!(keys.count(), 0);
    }
}

/// What one message of a round costs, by form: `--run-ignored only -E 'test(cost__)' --no-capture`, in a release.
#[test]
#[ignore = "a measurement"]
#[expect(clippy::disallowed_methods, reason = "the machine's time is measured")]
fn cost__should_be_measured() {
    let world = World::paired();
    let keys = world.alice.codec.pair_keys.as_ref().unwrap();
    let key = keys.outgoing(&world.bob.id(), 0).unwrap();
    for size in [200, 27_000, 55_000] {
        let body = vec![7; size];
        let header = header(&world.alice, &world.bob);
        for paired in [false, true] {
            let write = || match paired {
                true => world.alice.codec.write_with(&header, &[&body], &key),
                false => world.alice.codec.write(&header, &[&body]),
            };
            let count = 2_000;
            let start = std::time::Instant::now();
            let wires: Vec<_> = (0..count).map(|_| write().unwrap()).collect();
            let written = start.elapsed() / count;
            let start = std::time::Instant::now();
            for wire in wires {
                let envelope = Envelope::parse(wire).unwrap();
                assert!(world.bob.codec.open_in_place(envelope).is_ok());
            }
            let opened = start.elapsed() / count;
            let body = || Zeroizing::new(vec![7; size]);
            let bodies: Vec<_> = (0..count).map(|_| body()).collect();
            let start = std::time::Instant::now();
            drop(bodies);
            let dropped = start.elapsed() / count;
            let bodies: Vec<_> = (0..count).map(|_| body()).collect();
            let start = std::time::Instant::now();
            bodies.into_iter().for_each(crate::secrets::wipe);
            let wiped = start.elapsed() / count;
            println!("{size}: dropped in {dropped:?}, wiped in {wiped:?}");
            println!(
                "{size} bytes, pair key {paired}: written in {written:?}, opened in {opened:?}"
            );
        }
    }
}
