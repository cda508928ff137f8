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
type Falsify = fn(&mut SignMsg);

/// What is done to a message of a round so that a proof in it becomes false. It can still be read.
fn falsifications() -> Vec<(u16, Falsify)> {
    vec![
        (2, |msg| {
            if let Msg::Round1b(msg) = msg {
                msg.psi0 = msg.psi1.clone();
            }
        }),
        (2, |msg| {
            if let Msg::Round1b(msg) = msg {
                msg.psi1 = msg.psi0.clone();
            }
        }),
        (4, |msg| {
            if let Msg::Round2(msg) = msg {
                msg.psi_j = msg.hat_psi_j.clone();
            }
        }),
        (4, |msg| {
            if let Msg::Round2(msg) = msg {
                msg.hat_psi_j = msg.psi_j.clone();
            }
        }),
        (4, |msg| {
            if let Msg::Round2(msg) = msg {
                msg.D = msg.hat_D.clone();
            }
        }),
        (4, |msg| {
            if let Msg::Round2(msg) = msg {
                msg.Gamma = msg.Gamma + msg.Gamma;
            }
        }),
        (5, |msg| {
            if let Msg::Round3(msg) = msg {
                msg.Delta = msg.S;
            }
        }),
    ]
}

/// Every proof of signing is held to. The crate alone lets the first two false ones pass: see
/// `ecdsa_cggmp24/ranges.rs`.
#[test]
fn cggmp24__should_name_who_sends_a_false_proof() {
    let (_, signers) = open(SCHEME, &wire::old_shares(SCHEME));
    let path = KeyPath::new(vec![1]).unwrap();
    for (place, (round, falsify)) in falsifications().into_iter().enumerate() {
        let parties = sign_parties(&signers, &[1, 2], &path, &[3; 32]);
        let mut touched = false;
        let outcomes = run(parties, |from, message| {
            if (from, message.round) == (2, round) {
                let mut msg: SignMsg = bcs::from_bytes(&message.body).unwrap();
                falsify(&mut msg);
                let body = bcs::to_bytes(&msg).unwrap();
                touched = body != *message.body;
                message.body = body.into();
            }
        });
        assert!(touched, "{place}");
        let abort = outcomes[&1].as_ref().err();
        assert!(
            abort.is_some_and(|abort| abort.culprits == [2]),
            "{place}: {abort:?}"
        );
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
        fault.public().contains("cggmp24 keys have no refresh"),
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
