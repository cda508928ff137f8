#![allow(non_snake_case)]

use covault_core::ids::SessionId;

use super::*;
use crate::{bus::memory::MemoryBus, test_support::SystemEntropy};

fn codec() -> EnvelopeCodec {
    let identity = Arc::new(NodeIdentity::generate(&SystemEntropy));
    EnvelopeCodec::new(identity, MemoryBus::new(), Arc::new(SystemEntropy))
}

fn header(from: &EnvelopeCodec, to: &EnvelopeCodec, sealed: bool) -> EnvelopeHeader {
    EnvelopeHeader {
        kind: EnvelopeKind::Protocol,
        sealed,
        epoch: 0x0b0c_0d0e,
        session: SessionId::from_bytes([3; 16]),
        attempt: 0x0102_0304,
        round: 0x0506,
        sequence: 0x0708_090a,
        from: from.id(),
        to: to.id(),
    }
}

#[test]
fn envelope__should_open_for_its_recipient_only() {
    let (alice, bob, eve) = (codec(), codec(), codec());
    for sealed in [false, true] {
        let header = header(&alice, &bob, sealed);
        let wire = alice.write(&header, &[b"secret words"]).unwrap();
        assert_eq!(
            wire.windows(12).any(|window| window == b"secret words"),
            !sealed
        );
        let envelope = Envelope::parse(wire).unwrap();
        assert_eq!(envelope.header, header);
        assert_eq!(
            bob.open(&envelope).unwrap().body.as_slice(),
            b"secret words"
        );
        assert_eq!(eve.open(&envelope).err(), Some(EnvelopeError::Misdirected));
    }
}

#[test]
fn envelope__should_be_refused_when_any_byte_changes() {
    let (alice, bob) = (codec(), codec());
    for sealed in [false, true] {
        let wire = alice
            .write(&header(&alice, &bob, sealed), &[b"body"])
            .unwrap();
        for at in 0..wire.len() {
            let mut changed = wire.clone();
            changed[at] ^= 1;
            let refused = Envelope::parse(changed).and_then(|envelope| bob.open(&envelope));
            assert!(refused.is_err(), "byte {at}");
        }
        for length in 0..wire.len() {
            let cut = Envelope::parse(wire[..length].to_vec());
            assert!(
                cut.and_then(|envelope| bob.open(&envelope)).is_err(),
                "length {length}"
            );
        }
    }
}

#[test]
fn envelope__should_never_hold_an_order_or_a_reply_in_the_clear() {
    let (alice, bob) = (codec(), codec());
    for kind in [
        EnvelopeKind::SigningOrder,
        EnvelopeKind::KeygenOrder,
        EnvelopeKind::Reply,
    ] {
        let header = EnvelopeHeader {
            kind,
            ..header(&alice, &bob, false)
        };
        let clear = Envelope::parse(alice.write(&header, &[b"body"]).unwrap()).unwrap();
        assert_eq!(bob.open(&clear).err(), Some(EnvelopeError::Unsealed));
    }
}

#[test]
fn envelope__should_not_be_sealed_anew_by_another_sender() {
    let (alice, bob, eve) = (codec(), codec(), codec());
    let claimed = header(&alice, &bob, false);
    // Eve signs in the name of Alice.
    let envelope = Envelope::parse(eve.write(&claimed, &[b"body"]).unwrap()).unwrap();
    assert_eq!(bob.open(&envelope).err(), Some(EnvelopeError::BadSignature));
}
