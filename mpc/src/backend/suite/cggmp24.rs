//! What only cggmp24 does.

#![allow(non_snake_case)]

use std::collections::BTreeMap;

use cggmp24::signing::msg::Msg;
use covault_core::{derive::KeyPath, scheme::Scheme};
use k256::{
    ProjectivePoint, Scalar,
    elliptic_curve::{PrimeField as _, sec1::ToSec1Point as _},
};
use sha2::Sha256;

use super::{open, run, sign_parties, wire};
use crate::backend::{Dealer, ReshareSetup, of};

const SCHEME: Scheme = Scheme::Cggmp24;

#[test]
fn cggmp24__should_name_who_sends_numbers_that_cannot_be() {
    let (_, signers) = open(SCHEME, &wire::old_shares(SCHEME));
    let path = KeyPath::new(vec![1]).unwrap();
    let parties = sign_parties(&signers, &[1, 2], &path, &[3; 32]);
    let outcomes = run(parties, |from, message| {
        if (from, message.round) == (2, 1) {
            // After the kind of message comes the radix of the first number, which the library
            // believes and panics on.
            assert_eq!(message.body[..3], [0, 16, 0]);
            message.body[1] = 99;
        }
    });
    let abort = outcomes[&1].as_ref().err().unwrap();
    assert_eq!(abort.culprits, [2], "{abort:?}");
    assert_eq!(abort.reason, "malformed message");
}

#[test]
fn cggmp24__should_name_who_sends_more_than_it_may() {
    let (_, signers) = open(SCHEME, &wire::old_shares(SCHEME));
    let path = KeyPath::new(vec![1]).unwrap();
    let parties = sign_parties(&signers, &[1, 2], &path, &[3; 32]);
    let outcomes = run(parties, |from, message| {
        if (from, message.round) == (2, 1) {
            message.body.resize(1 << 20, 0);
        }
    });
    let abort = outcomes[&1].as_ref().err().unwrap();
    assert_eq!(
        (abort.culprits.as_slice(), abort.reason.as_str()),
        (&[2][..], "a message is too long")
    );
}

type SignMsg = Msg<cggmp24::supported_curves::Secp256k1, Sha256>;
/// Puts a proof of another run in the place of the same proof: it can be read, and proves something
/// else.
type FieldSwap = fn(&mut SignMsg, SignMsg);

/// Every proof of signing: its round, how it is exchanged, and what the refusal says of it.
fn exchanges() -> [(u16, FieldSwap, &'static str); 6] {
    [
        (
            2,
            |msg, other| match (msg, other) {
                (Msg::Round1b(msg), Msg::Round1b(other)) => msg.psi0 = other.psi0,
                _ => panic!("another message"),
            },
            RANGE,
        ),
        (
            2,
            |msg, other| match (msg, other) {
                (Msg::Round1b(msg), Msg::Round1b(other)) => msg.psi1 = other.psi1,
                _ => panic!("another message"),
            },
            RANGE,
        ),
        (
            4,
            |msg, other| match (msg, other) {
                (Msg::Round2(msg), Msg::Round2(other)) => msg.tilde_psi = other.tilde_psi,
                _ => panic!("another message"),
            },
            "(Some(",
        ),
        (
            4,
            |msg, other| match (msg, other) {
                (Msg::Round2(msg), Msg::Round2(other)) => msg.psi_j = other.psi_j,
                _ => panic!("another message"),
            },
            "(None, Some(",
        ),
        (
            4,
            |msg, other| match (msg, other) {
                (Msg::Round2(msg), Msg::Round2(other)) => msg.hat_psi_j = other.hat_psi_j,
                _ => panic!("another message"),
            },
            "(None, None, Some(",
        ),
        (
            5,
            |msg, other| match (msg, other) {
                (Msg::Round3(msg), Msg::Round3(other)) => msg.psi_prime = other.psi_prime,
                _ => panic!("another message"),
            },
            "\u{3c8}'' proof is invalid",
        ),
    ]
}

/// What `ecdsa_cggmp24/ranges.rs` says.
const RANGE: &str = "a proof or a number is wrong";

/// Every proof of signing is held to, each by itself. The crate alone lets the first two false ones
/// pass: see `ecdsa_cggmp24/ranges.rs`.
#[test]
fn cggmp24__should_name_who_sends_a_false_proof() {
    let (_, signers) = open(SCHEME, &wire::old_shares(SCHEME));
    let path = KeyPath::new(vec![1]).unwrap();
    let mut others = BTreeMap::new();
    run(
        sign_parties(&signers, &[1, 2], &path, &[4; 32]),
        |from, message| {
            if from == 2 {
                others.insert(message.round, message.body.to_vec());
            }
        },
    );
    for (round, exchange, says) in exchanges() {
        let parties = sign_parties(&signers, &[1, 2], &path, &[3; 32]);
        let outcomes = run(parties, |from, message| {
            if (from, message.round) == (2, round) {
                let mut msg: SignMsg = bcs::from_bytes(&message.body).unwrap();
                exchange(&mut msg, bcs::from_bytes(&others[&round]).unwrap());
                message.body = bcs::to_bytes(&msg).unwrap().into();
            }
        });
        let abort = outcomes[&1].as_ref().err().unwrap();
        assert_eq!(abort.culprits, [2], "{says}: {abort:?}");
        assert!(abort.reason.contains(says), "{says}: {abort:?}");
    }
}

#[test]
fn cggmp24__should_refuse_a_refresh() {
    let shares = wire::old_shares(SCHEME);
    let backend = of(SCHEME).unwrap();
    let setup = ReshareSetup {
        context: [1; 32],
        me: 1,
        root_public_key: shares[&1].root.public_key.clone(),
        holders: 3,
        threshold: 2,
        dealers: [1, 2]
            .map(|index| Dealer {
                party: index,
                old: index,
            })
            .to_vec(),
    };
    let share = backend.plain(&shares[&1]).unwrap();
    let fault = backend.reshare(setup, Some(share)).err().unwrap();
    assert!(
        fault.message().contains("cggmp24 keys have no refresh"),
        "{fault:?}"
    );
}

#[test]
fn cggmp24__should_give_shares_that_a_backup_can_hold() {
    let shares = wire::old_shares(SCHEME);
    let plain: BTreeMap<_, _> = shares
        .iter()
        .map(|(index, share)| (*index, of(SCHEME).unwrap().plain(share).unwrap()))
        .collect();
    let point = |scalar: Scalar| {
        let point = (ProjectivePoint::GENERATOR * scalar).to_affine();
        point.to_sec1_point(true).as_bytes().to_vec()
    };
    let scalar = |index| Scalar::from_repr((*plain[&index].secret).into()).unwrap();
    for (index, share) in &plain {
        assert_eq!(share.index, *index);
        assert_eq!(share.verifying[index], point(scalar(*index)));
        assert_eq!(share.verifying.len(), 3);
    }
    // Two points of a line give its value at 0: the key.
    let key = scalar(1) + scalar(1) - scalar(2);
    assert_eq!(point(key), shares[&1].root.public_key);
}
