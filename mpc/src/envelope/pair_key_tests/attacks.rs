//! Attacks on pair keys: by who owns the bus, by a peer, and by who has stolen an identity.

use std::collections::BTreeSet;

use super::*;

#[test]
fn message__should_be_refused_in_any_other_place_and_with_any_other_byte() {
    let world = World::paired();
    let wire = world.alice_says();
    for at in 0..wire.len() {
        for bit in [1, 0x80] {
            let mut changed = wire.clone();
            changed[at] ^= bit;
            let Ok(envelope) = Envelope::parse(changed) else {
                continue;
            };
            assert!(world.bob.codec.open(&envelope).is_err(), "byte {at}");
        }
    }
    for length in 0..wire.len() {
        let cut = Envelope::parse(wire[..length].to_vec());
        assert!(cut.and_then(|cut| world.bob.codec.open(&cut)).is_err());
    }
    let honest = header(&world.alice, &world.bob);
    let session = SessionId::from_bytes([9; 16]);
    let elsewhere = [
        EnvelopeHeader { session, ..honest },
        EnvelopeHeader { epoch: 2, ..honest },
        EnvelopeHeader {
            attempt: 5,
            ..honest
        },
        EnvelopeHeader { round: 6, ..honest },
        EnvelopeHeader {
            sequence: 7,
            ..honest
        },
        EnvelopeHeader {
            kind: EnvelopeKind::Reply,
            ..honest
        },
        EnvelopeHeader {
            kind: EnvelopeKind::Nonces,
            ..honest
        },
    ];
    for header in elsewhere {
        let moved = [&header.encode(Protection::PairKey)[..], &wire[HEADER_LEN..]].concat();
        assert_eq!(world.bob.hear(&[moved]), [Err(EnvelopeError::Unopenable)]);
    }
    assert_eq!(world.bob.hear(&[wire]), share());
}

#[test]
fn message__should_not_be_reflected_to_its_sender_or_passed_on() {
    let world = World::paired();
    let wire = world.alice_says();
    let back = [
        (world.bob.id(), world.alice.id()),
        (world.alice.id(), world.alice.id()),
    ];
    for (from, to) in back {
        let header = EnvelopeHeader {
            from,
            to,
            ..header(&world.alice, &world.bob)
        };
        let reflected = [&header.encode(Protection::PairKey)[..], &wire[HEADER_LEN..]].concat();
        assert_eq!(
            world.alice.hear(&[reflected]),
            [Err(EnvelopeError::UnknownPairKey)]
        );
    }
    assert_eq!(
        world.alice.hear(std::slice::from_ref(&wire)),
        [Err(EnvelopeError::Misdirected)]
    );
    // Carol has keys with both.
    let carol = Side::start(
        &Arc::new(NodeIdentity::generate(&SystemEntropy)),
        &world.clock,
    );
    for peer in [&world.alice, &world.bob] {
        world.pass(1_000);
        carol.say(peer, b"hello");
        for _ in 0..3 {
            peer.hear(&carol.sent());
            carol.hear(&peer.sent());
        }
        carol.say(peer, b"a share");
        let own = message(carol.sent());
        assert_eq!(protection(&own), Protection::PairKey);
        // In the name of another, with her own key or with the one that was seen on the bus.
        let claimed = EnvelopeHeader {
            from: world.alice.id(),
            ..header(&carol, &world.bob)
        };
        for wire in [&own, &wire] {
            let mut forged = own.clone();
            forged[..HEADER_LEN].copy_from_slice(&claimed.encode(Protection::PairKey));
            forged[HEADER_LEN..HEADER_LEN + KEY_ID_LEN]
                .copy_from_slice(&wire[HEADER_LEN..HEADER_LEN + KEY_ID_LEN]);
            assert!(world.bob.hear(&[forged])[0].is_err());
        }
    }
}

#[test]
fn exchange__should_be_refused_of_who_is_not_the_identity() {
    let world = World::paired();
    let eve = Side::start(
        &Arc::new(NodeIdentity::generate(&SystemEntropy)),
        &world.clock,
    );
    // She signs a half of her own in Alice's name.
    world.pass(1_000);
    eve.codec.greet(&world.bob.id());
    let mut forged = eve.sent().remove(0);
    let claimed = EnvelopeHeader::outside_sessions(
        EnvelopeKind::KeyExchange,
        world.alice.id(),
        world.bob.id(),
    );
    forged[..HEADER_LEN].copy_from_slice(&claimed.to_bytes());
    assert_eq!(
        world.bob.hear(&[forged]),
        [Err(EnvelopeError::BadSignature)]
    );
    // Nor does Bob's half for Eve serve for Alice.
    world.bob.codec.greet(&eve.id());
    let mut passed_on = world.bob.sent().remove(0);
    let claimed = EnvelopeHeader::outside_sessions(
        EnvelopeKind::KeyExchange,
        world.bob.id(),
        world.alice.id(),
    );
    passed_on[..HEADER_LEN].copy_from_slice(&claimed.to_bytes());
    assert_eq!(
        world.alice.hear(&[passed_on]),
        [Err(EnvelopeError::BadSignature)]
    );
    assert!(world.are_paired());
}

#[test]
fn exchange__should_not_be_undone_by_what_was_said_before() {
    let world = World::new();
    world.alice.say(&world.bob, b"hello");
    let mut said = Vec::new();
    for _ in 0..4 {
        let ours = world.alice.sent();
        world.bob.hear(&ours);
        let theirs = world.bob.sent();
        world.alice.hear(&theirs);
        said.push((ours, theirs));
    }
    assert!(world.are_paired());
    // Bob is started anew, and they agree again.
    let bob = Side::start(&world.bob_identity, &world.clock);
    let world = World { bob, ..world };
    world.pass(1_000);
    world.bob.say(&world.alice, b"hello");
    world.settle();
    assert!(world.are_paired());
    // The bus brings the halves of Bob's last start once more, and those that Alice said to him then.
    let (ours, theirs): (Vec<_>, Vec<_>) = said.into_iter().unzip();
    for _ in 0..3 {
        world.alice.hear(&theirs.concat());
        world.bob.hear(&ours.concat());
        let (alice_says, bob_says) = (world.alice_says(), world.bob_says());
        assert_eq!(protection(&alice_says), Protection::PairKey);
        assert_eq!(world.bob.hear(&[alice_says]), share());
        assert_eq!(world.alice.hear(&[bob_says]), share());
        world.pass(1_000);
    }
    // Alice, started anew, does not fall for them either: what she is told names no half of hers.
    let alice = Side::start(&world.alice_identity, &world.clock);
    let world = World { alice, ..world };
    world.alice.hear(&theirs.concat());
    let wire = world.alice_says();
    assert_eq!(protection(&wire), Protection::SignedAndSealed);
    assert_eq!(world.bob.hear(&[wire]), share());
}

#[test]
fn thief_of_an_identity__should_neither_open_nor_forge_what_was_said_before() {
    let world = World::new();
    world.alice.say(&world.bob, b"hello");
    let mut recorded = Vec::new();
    for _ in 0..4 {
        let (ours, theirs) = (world.alice.sent(), world.bob.sent());
        world.bob.hear(&ours);
        world.alice.hear(&theirs);
        recorded.extend([ours, theirs].concat());
    }
    recorded.extend([world.alice_says(), world.bob_says()]);
    let paired: Vec<_> = recorded
        .iter()
        .filter(|wire| protection(wire) == Protection::PairKey)
        .cloned()
        .collect();
    assert_eq!(paired.len(), 2);
    // With both identities even, and all that the bus has seen.
    let thief_bob = Side::start(&world.bob_identity, &world.clock);
    let thief_alice = Side::start(&world.alice_identity, &world.clock);
    for wire in &recorded {
        let to = Envelope::parse(wire.clone()).unwrap().header.to;
        let thief = if to == world.bob.id() {
            &thief_bob
        } else {
            &thief_alice
        };
        thief.hear(std::slice::from_ref(wire));
    }
    assert_eq!(
        thief_bob.hear(&paired[..1]),
        [Err(EnvelopeError::UnknownPairKey)]
    );
    assert_eq!(
        thief_alice.hear(&paired[1..]),
        [Err(EnvelopeError::UnknownPairKey)]
    );
    // Bob's identity does not speak to Bob in Alice's name.
    thief_bob.sent();
    world.pass(2_000);
    thief_bob.codec.greet(&world.alice.id());
    let claimed = EnvelopeHeader::outside_sessions(
        EnvelopeKind::KeyExchange,
        world.alice.id(),
        world.bob.id(),
    );
    let mut forged = thief_bob.sent().remove(0);
    forged[..HEADER_LEN].copy_from_slice(&claimed.to_bytes());
    assert_eq!(
        world.bob.hear(&[forged]),
        [Err(EnvelopeError::BadSignature)]
    );
    assert!(world.are_paired());
}

#[test]
fn peer__should_not_have_us_work_or_keep_without_bound() {
    let world = World::paired();
    let hostile = &world.bob;
    let keys = world.alice.codec.pair_keys.as_ref().unwrap();
    let first: BTreeSet<_> = keys.incoming_ids(&hostile.id()).into_iter().collect();
    let (mut answers, mut derived) = (0, BTreeSet::new());
    for number in 1..=1_000_u64 {
        world.pass(1);
        let mut key = [0; 32];
        SystemEntropy.fill(&mut key);
        let half = KeyExchangeMsg {
            at_ms: world.clock.now_ms() + number,
            made_ms: world.clock.now_ms(),
            key,
            yours: None,
            wants_answer: true,
        };
        hostile.codec.send_half(world.alice.id(), &half);
        world.alice.hear(&hostile.sent());
        answers += world.alice.sent().len();
        derived.extend(keys.incoming_ids(&hostile.id()));
    }
    derived.retain(|id| !first.contains(id));
    assert!((1..=6).contains(&answers), "{answers} answers");
    assert_eq!(keys.count(), 1);
    assert!(keys.incoming_ids(&hostile.id()).len() <= 4);
    assert!((1..=6).contains(&derived.len()), "{} keys", derived.len());
    // Messages under keys that nobody has make it speak once a second.
    world.pass(2_000);
    let mut wire = World::paired().alice_says();
    let claimed = header(hostile, &world.alice);
    wire[..HEADER_LEN].copy_from_slice(&claimed.encode(Protection::PairKey));
    let wires = vec![wire; 1_000];
    let refused = world.alice.hear(&wires);
    assert!(refused.iter().all(Result::is_err));
    assert_eq!(world.alice.sent().len(), 1);
}

/// The points of small order, and their other forms: what is agreed on with one is known to everyone.
const SMALL_ORDER: [&str; 7] = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
];

fn point(text: &str) -> [u8; 32] {
    hex::decode(text).unwrap().try_into().unwrap()
}

#[test]
fn keys__should_not_be_made_of_what_everybody_knows() {
    for key in SMALL_ORDER.map(point) {
        // With the highest bit, too: it does not count.
        for high in [0, 0x80] {
            let mut key = key;
            key[31] |= high;
            let world = World::new();
            world.alice.codec.greet(&world.bob.id());
            let offer = world.alice.sent().remove(0);
            let heard = Envelope::parse(offer).unwrap();
            let heard = world.bob.codec.open(&heard).unwrap();
            let heard: KeyExchangeMsg = decode(&heard.body).unwrap();
            let half = KeyExchangeMsg {
                at_ms: world.clock.now_ms() + 1,
                made_ms: world.clock.now_ms(),
                key,
                yours: Some(heard.key),
                wants_answer: false,
            };
            world.bob.codec.send_half(world.alice.id(), &half);
            world.alice.hear(&world.bob.sent());
            let keys = world.alice.codec.pair_keys.as_ref().unwrap();
            assert!(keys.incoming_ids(&world.bob.id()).is_empty());
            assert_eq!(protection(&world.alice_says()), Protection::SignedAndSealed);
        }
    }
    // Nor with an identity of that kind, for which anyone can sign.
    let world = World::paired();
    let keys = world.alice.codec.pair_keys.as_ref().unwrap();
    for identity in [
        point(SMALL_ORDER[0]),
        point(SMALL_ORDER[1]),
        point(SMALL_ORDER[4]),
    ] {
        let half = KeyExchangeMsg {
            at_ms: world.clock.now_ms(),
            made_ms: world.clock.now_ms(),
            key: [9; 32],
            yours: None,
            wants_answer: true,
        };
        keys.take(&NodeId(identity), &half);
        assert!(keys.incoming_ids(&NodeId(identity)).is_empty());
    }
}

/// Eve shows each of two the other's half as her own, and passes on what they then say to her.
#[test]
fn identities__should_not_be_swapped_under_a_key() {
    let world = World::new();
    let eve = Side::start(
        &Arc::new(NodeIdentity::generate(&SystemEntropy)),
        &world.clock,
    );
    let said = |by: &Side| {
        let mut said = by.sent();
        said.retain(|wire| kind(wire) == EnvelopeKind::KeyExchange);
        let envelope = Envelope::parse(said.remove(0)).unwrap();
        let opened = eve.codec.open(&envelope).unwrap();
        decode::<KeyExchangeMsg>(&opened.body).unwrap()
    };
    let tell = |to: &Side, half: &KeyExchangeMsg| {
        eve.codec.send_half(to.id(), half);
        to.hear(&eve.sent());
    };
    world.alice.codec.greet(&eve.id());
    tell(&world.bob, &said(&world.alice));
    let of_bob = said(&world.bob);
    assert!(of_bob.yours.is_some());
    tell(&world.alice, &of_bob);
    tell(&world.bob, &said(&world.alice));
    // Both believe to have a key with her, of the same two halves.
    let pairs = [(&world.alice, &world.bob), (&world.bob, &world.alice)];
    for (victim, other) in pairs {
        victim.say(&eve, b"a share");
        let wire = message(victim.sent());
        assert_eq!(protection(&wire), Protection::PairKey);
        assert!(eve.hear(std::slice::from_ref(&wire))[0].is_err());
        // She has it opened by the one whose half it is: as hers, or as the victim's.
        for from in [eve.id(), victim.id()] {
            let claimed = EnvelopeHeader {
                from,
                ..header(victim, other)
            };
            let mut moved = wire.clone();
            moved[..HEADER_LEN].copy_from_slice(&claimed.encode(Protection::PairKey));
            assert_eq!(
                other.hear(&[moved.clone()]),
                [Err(EnvelopeError::UnknownPairKey)]
            );
            // Under the name of the key that this one knows.
            let keys = other.codec.pair_keys.as_ref().unwrap();
            for id in keys.incoming_ids(&from) {
                moved[HEADER_LEN..HEADER_LEN + KEY_ID_LEN].copy_from_slice(&id);
                assert_eq!(
                    other.hear(&[moved.clone()]),
                    [Err(EnvelopeError::Unopenable)]
                );
            }
        }
    }
}

#[test]
fn thief_of_a_running_process__should_find_no_key_of_what_was_said_before() {
    let world = World::paired();
    let recorded = [world.alice_says(), world.bob_says()];
    let sides = [(&world.alice, &world.bob), (&world.bob, &world.alice)];
    let old = sides.map(|(side, peer)| {
        let keys = side.codec.pair_keys.as_ref().unwrap();
        let outgoing = keys.outgoing(&peer.id(), 0).unwrap();
        let id = keys.incoming_ids(&peer.id()).pop().unwrap();
        let incoming = keys.incoming(&peer.id(), &id).unwrap();
        [outgoing, incoming].map(|key| Arc::downgrade(&key))
    });
    assert!(old.iter().flatten().all(|key| key.upgrade().is_some()));
    for _ in 0..53 * 4 {
        world.pass(MINUTE_MS / 4);
        world.alice.codec.renew_pair_keys();
        world.bob.codec.renew_pair_keys();
        world.settle();
        assert!(world.are_paired());
    }
    assert!(old.iter().flatten().all(|key| key.upgrade().is_none()));
    // Nor can what is in memory now make them once more.
    assert_eq!(
        world.bob.hear(&recorded[..1]),
        [Err(EnvelopeError::UnknownPairKey)]
    );
    assert_eq!(
        world.alice.hear(&recorded[1..]),
        [Err(EnvelopeError::UnknownPairKey)]
    );
}

#[test]
fn strangers__should_not_fill_the_memory() {
    let world = World::new();
    let keys = world.alice.codec.pair_keys.as_ref().unwrap();
    for number in 0..2_000_u32 {
        let mut id = [7; 32];
        id[..4].copy_from_slice(&number.to_be_bytes());
        world.alice.codec.greet(&NodeId(id));
    }
    assert_eq!(keys.count(), 1_024);
    // Who finds no place is signed to.
    assert_eq!(protection(&world.alice_says()), Protection::SignedAndSealed);
}
