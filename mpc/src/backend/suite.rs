//! What every backend must do.

#[cfg(feature = "cggmp24")]
mod cggmp24;
mod dkls23_rules;
mod tamper;
mod wire;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use covault_core::{
    derive::{KeyPath, RootKey},
    scheme::Scheme,
    signature::{Curve, Signature},
};

use super::{
    Abort, KeyShare, KeygenSetup, OutgoingMessage, Session, SignSetup, Signer, SignerIndex, of,
};
use crate::test_support::{self, SystemEntropy};

type Parties<T> = BTreeMap<SignerIndex, Box<dyn Session<T>>>;

/// Runs sessions against each other. `tamper` may change each message, as (sender, message).
/// Gives each party's outcome, or who aborted with what.
fn run<T>(
    mut parties: Parties<T>,
    mut tamper: impl FnMut(SignerIndex, &mut OutgoingMessage),
) -> BTreeMap<SignerIndex, Result<T, Abort>> {
    let mut outcomes = BTreeMap::new();
    let mut queue: Vec<(SignerIndex, OutgoingMessage)> = Vec::new();
    for (me, session) in &mut parties {
        let output = session.start(&SystemEntropy).unwrap();
        assert!(output.done.is_none());
        queue.extend(output.send.into_iter().map(|message| (*me, message)));
    }
    // Last in, first out: messages overtake each other.
    while let Some((from, mut message)) = queue.pop() {
        tamper(from, &mut message);
        let to = message.to;
        if outcomes.contains_key(&to) {
            continue;
        }
        let session = parties.get_mut(&to).unwrap();
        match session.receive(from, message.round, message.body) {
            Ok(output) => {
                queue.extend(output.send.into_iter().map(|message| (to, message)));
                if let Some(done) = output.done {
                    outcomes.insert(to, Ok(done));
                }
            }
            Err(abort) => {
                outcomes.insert(to, Err(abort));
            }
        }
    }
    outcomes
}

/// A key generation of all parties. For a backend that takes primes these are cached ones, which
/// only tests have.
fn keygen_parties(scheme: Scheme, threshold: u8, parties: u8) -> Parties<KeyShare> {
    (1..=parties)
        .map(|me| {
            let setup = KeygenSetup {
                context: [9; 32],
                me,
                threshold,
                parties,
            };
            let primes = Box::new(move || Ok(test_support::primes(me)));
            let session = of(scheme).unwrap().keygen_with(setup, primes).unwrap();
            (me, session)
        })
        .collect()
}

type Signers = BTreeMap<SignerIndex, Arc<dyn Signer>>;

fn make_shares(scheme: Scheme, threshold: u8, parties: u8) -> BTreeMap<SignerIndex, KeyShare> {
    let outcomes = run(keygen_parties(scheme, threshold, parties), |_, _| {});
    assert_eq!(outcomes.len(), usize::from(parties));
    let name = |index, abort| panic!("party {index}: {abort:?}");
    outcomes
        .into_iter()
        .map(|(index, share)| (index, share.unwrap_or_else(|abort| name(index, abort))))
        .collect()
}

fn open(scheme: Scheme, shares: &BTreeMap<SignerIndex, KeyShare>) -> (RootKey, Signers) {
    let root = shares[&1].root.clone();
    let signers = shares
        .iter()
        .map(|(index, share)| {
            assert_eq!(share.root, root);
            (*index, of(scheme).unwrap().open(share).unwrap())
        })
        .collect();
    (root, signers)
}

fn keygen(scheme: Scheme, threshold: u8, parties: u8) -> (RootKey, Signers) {
    open(scheme, &make_shares(scheme, threshold, parties))
}

/// A 2-of-3 key to sign with: a fresh one, or where making one takes minutes, an old one.
fn some_key(scheme: Scheme) -> (RootKey, Signers) {
    match scheme {
        Scheme::Cggmp24 => open(scheme, &wire::old_shares(scheme)),
        _ => keygen(scheme, 2, 3),
    }
}

fn sign_parties(
    signers: &BTreeMap<SignerIndex, Arc<dyn Signer>>,
    quorum: &[SignerIndex],
    path: &KeyPath,
    message: &[u8],
) -> Parties<Option<Signature>> {
    quorum
        .iter()
        .map(|index| {
            let setup = SignSetup {
                context: [1; 32],
                signers: quorum.to_vec(),
                path: path.clone(),
                message: message.to_vec(),
            };
            (*index, signers[index].sign(setup).unwrap())
        })
        .collect()
}

fn signature(
    outcomes: BTreeMap<SignerIndex, Result<Option<Signature>, Abort>>,
    quorum: &[SignerIndex],
) -> Signature {
    assert_eq!(outcomes.len(), quorum.len());
    let mut given = Vec::new();
    for (index, outcome) in outcomes {
        let outcome = outcome.unwrap_or_else(|abort| panic!("party {index}: {abort:?}"));
        given.extend(outcome.map(|signature| (index, signature)));
    }
    assert_eq!(given.len(), 1, "the collector alone gives the signature");
    assert_eq!(given[0].0, quorum[0]);
    given.remove(0).1
}

/// Verifies with libraries that the backends do not use for it.
pub(crate) fn verify(public_key: &[u8], message: &[u8], signature: &Signature) {
    match signature {
        Signature::Ecdsa { r, s, y_parity } => {
            use k256::ecdsa::{RecoveryId, VerifyingKey, signature::hazmat::PrehashVerifier as _};
            let key = VerifyingKey::from_sec1_bytes(public_key).unwrap();
            let plain = k256::ecdsa::Signature::from_scalars(*r, *s).unwrap();
            key.verify_prehash(message, &plain).unwrap();
            assert_eq!(plain.normalize_s(), plain, "s is low");
            let id = RecoveryId::new(*y_parity == 1, false);
            let recovered = VerifyingKey::recover_from_prehash(message, &plain, id).unwrap();
            assert_eq!(recovered, key);
        }
        Signature::Ed25519 { .. } => {
            let key = ed25519_dalek::VerifyingKey::try_from(public_key).unwrap();
            let plain = ed25519_dalek::Signature::from_bytes(&signature.to_bytes());
            key.verify_strict(message, &plain).unwrap();
        }
    }
}

fn message(curve: Curve) -> Vec<u8> {
    match curve {
        Curve::Secp256k1 => vec![0x5a; 32],
        Curve::Ed25519 => b"any length of message".to_vec(),
    }
}

fn quorums(threshold: u8, parties: u8) -> Vec<Vec<SignerIndex>> {
    (0_u32..1 << parties)
        .filter(|mask| mask.count_ones() == u32::from(threshold))
        .map(|mask| {
            (1..=parties)
                .filter(|index| mask >> (index - 1) & 1 == 1)
                .collect()
        })
        .collect()
}

/// The child key by the hd-wallet crate.
fn outside_child(root: &RootKey, path: &KeyPath) -> Vec<u8> {
    use generic_ec::{Curve as Group, Point, curves};
    use hd_wallet::{Edwards, ExtendedPublicKey, HdWallet, Slip10};
    fn child<E: Group, W: HdWallet<E>>(root: &RootKey, path: &KeyPath) -> Vec<u8> {
        let mut key = ExtendedPublicKey::<E> {
            public_key: Point::from_bytes(&root.public_key).unwrap(),
            chain_code: root.chain_code,
        };
        for index in path.indices() {
            let index = hd_wallet::NonHardenedIndex::try_from(*index).unwrap();
            key = W::derive_child_public_key(&key, index);
        }
        key.public_key.to_bytes(true).to_vec()
    }
    match root.curve {
        Curve::Secp256k1 => child::<curves::Secp256k1, Slip10>(root, path),
        Curve::Ed25519 => child::<curves::Ed25519, Edwards>(root, path),
    }
}

/// Signs with these quorums: the root key first, then children; collectors change.
fn sign_with(root: &RootKey, signers: &Signers, quorums: &[Vec<SignerIndex>]) {
    let message = message(root.curve);
    for (number, quorum) in (0_u32..).zip(quorums) {
        let mut quorum = quorum.clone();
        // A few wallets, so that one derivation serves more than one signature.
        let path = KeyPath::new(vec![number % 7; number as usize % 3]).unwrap();
        let output = number as usize % quorum.len();
        quorum.rotate_left(output);
        let outcomes = run(sign_parties(signers, &quorum, &path, &message), |_, _| {});
        let signature = signature(outcomes, &quorum);
        verify(&outside_child(root, &path), &message, &signature);
    }
}

/// Quorums that sign in the short form.
const SOME_QUORUMS: usize = 18;

fn every_quorum_signs(scheme: Scheme, threshold: u8, parties: u8) {
    let (root, signers) = keygen(scheme, threshold, parties);
    // Of many, some that lie apart, unless COVAULT_LONG_SUITE wants all.
    let mut quorums = quorums(threshold, parties);
    if quorums.len() > SOME_QUORUMS && !tamper::thorough() {
        let step = quorums.len().div_ceil(SOME_QUORUMS);
        quorums = quorums.into_iter().step_by(step).collect();
        let seen: BTreeSet<SignerIndex> = quorums.iter().flatten().copied().collect();
        assert_eq!(seen.len(), usize::from(parties), "somebody signs nowhere");
    }
    sign_with(&root, &signers, &quorums);
}

fn fewer_cannot_sign(scheme: Scheme) {
    let (_, signers) = some_key(scheme);
    let path = KeyPath::new(vec![0]).unwrap();
    let message = message(scheme.curve());
    // Too few, too many, one twice, without the one that is asked, a stranger, nobody.
    for quorum in [
        &[1][..],
        &[1, 2, 3],
        &[1, 1],
        &[2, 3],
        &[1, 9],
        &[1, 0],
        &[],
    ] {
        let setup = SignSetup {
            context: [1; 32],
            signers: quorum.to_vec(),
            path: path.clone(),
            message: message.clone(),
        };
        assert!(signers[&1].sign(setup).is_err(), "{quorum:?}");
    }
    // Of those that were asked, all but one do not get there.
    let (_, signers) = match scheme {
        Scheme::Cggmp24 => (None, signers),
        _ => (Some(()), keygen(scheme, 3, 4).1),
    };
    let threshold = if scheme == Scheme::Cggmp24 { 2 } else { 3 };
    let quorum: Vec<SignerIndex> = (1..=threshold).collect();
    for silent in quorum.clone() {
        let mut parties = sign_parties(&signers, &quorum, &path, &message);
        let mut queue: Vec<(SignerIndex, OutgoingMessage)> = Vec::new();
        for (me, session) in &mut parties {
            if *me != silent {
                let output = session.start(&SystemEntropy).unwrap();
                queue.extend(output.send.into_iter().map(|message| (*me, message)));
            }
        }
        while let Some((from, message)) = queue.pop() {
            if message.to == silent {
                continue;
            }
            let to = message.to;
            let session = parties.get_mut(&to).unwrap();
            let output = session.receive(from, message.round, message.body).unwrap();
            assert!(output.done.is_none());
            queue.extend(output.send.into_iter().map(|message| (to, message)));
        }
        for me in quorum.iter().filter(|me| **me != silent) {
            assert_eq!(parties[me].waiting_for(), [silent]);
        }
    }
}

fn impossible_keygens_are_refused(scheme: Scheme) {
    for (threshold, parties, me) in [(1, 3, 1), (4, 3, 1), (2, 3, 0), (2, 3, 4)] {
        let setup = KeygenSetup {
            context: [0; 32],
            me,
            threshold,
            parties,
        };
        let primes = Box::new(|| unreachable!("nothing is begun"));
        assert!(
            of(scheme).unwrap().keygen_with(setup, primes).is_err(),
            "{threshold} {parties} {me}"
        );
    }
}

macro_rules! suite {
    ($name:ident, $scheme:expr, $table:expr) => {
        #[allow(non_snake_case)]
        mod $name {
            use super::*;

            #[test]
            fn backend__should_make_keys_2_of_2_and_sign() {
                every_quorum_signs($scheme, 2, 2);
            }

            #[test]
            fn backend__should_make_keys_2_of_3_and_sign_with_every_quorum() {
                every_quorum_signs($scheme, 2, 3);
            }

            #[test]
            fn backend__should_not_sign_with_fewer_or_other_than_threshold() {
                fewer_cannot_sign($scheme);
            }

            #[test]
            fn backend__should_notice_tampering_in_keygen_and_name_the_sender_where_it_can() {
                tamper::keygen_is_guarded($scheme, $table.keygen);
            }

            #[test]
            fn backend__should_notice_tampering_in_signing_and_name_the_sender_where_it_can() {
                tamper::signing_is_guarded($scheme, $table.signing);
            }

            #[test]
            fn backend__should_refuse_impossible_keygens() {
                impossible_keygens_are_refused($scheme);
            }

            #[test]
            fn backend__should_load_and_use_old_shares() {
                wire::old_shares_sign($scheme);
            }
        }
    };
}

/// For backends whose keys are made in seconds.
macro_rules! larger {
    ($name:ident, $scheme:expr) => {
        #[allow(non_snake_case)]
        mod $name {
            use super::*;

            #[test]
            fn backend__should_make_keys_3_of_5_and_sign_with_every_quorum() {
                every_quorum_signs($scheme, 3, 5);
            }

            #[test]
            fn backend__should_make_keys_5_of_9_and_sign_with_quorums() {
                every_quorum_signs($scheme, 5, 9);
            }
        }
    };
}

suite!(frost_ed25519, Scheme::FrostEd25519, tamper::FROST);
larger!(frost_ed25519_larger, Scheme::FrostEd25519);
suite!(ecdsa_dkls23, Scheme::Dkls23, tamper::DKLS23);
larger!(ecdsa_dkls23_larger, Scheme::Dkls23);
#[cfg(feature = "cggmp24")]
suite!(ecdsa_cggmp24, Scheme::Cggmp24, tamper::CGGMP24);

#[cfg(not(feature = "cggmp24"))]
#[test]
#[allow(non_snake_case)]
fn of__should_say_how_to_get_a_backend_that_is_not_built() {
    let fault = of(Scheme::Cggmp24).err().unwrap();
    assert!(fault.message().contains("--features cggmp24"), "{fault:?}");
}
