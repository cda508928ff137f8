//! What every backend must do.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use covault_core::{
    derive::{KeyPath, RootKey},
    scheme::Scheme,
    signature::{Curve, Signature},
};
use zeroize::Zeroizing;

use super::{Abort, Index, KeyShare, KeygenSetup, Outgoing, Session, SignSetup, Signer, of};
use crate::test_support::SystemEntropy;

type Parties<T> = BTreeMap<Index, Box<dyn Session<T>>>;

/// Runs sessions against each other. `tamper` may change each message, as (sender, message).
/// Gives each party's outcome, or who aborted with what.
fn run<T>(
    mut parties: Parties<T>,
    mut tamper: impl FnMut(Index, &mut Outgoing),
) -> BTreeMap<Index, Result<T, Abort>> {
    let mut outcomes = BTreeMap::new();
    let mut queue: Vec<(Index, Outgoing)> = Vec::new();
    for (me, session) in &mut parties {
        let turn = session.start(&SystemEntropy).unwrap();
        assert!(turn.done.is_none());
        queue.extend(turn.send.into_iter().map(|message| (*me, message)));
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
            Ok(turn) => {
                queue.extend(turn.send.into_iter().map(|message| (to, message)));
                if let Some(done) = turn.done {
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

fn keygen_parties(curve: Curve, threshold: u8, parties: u8) -> Parties<KeyShare> {
    (1..=parties)
        .map(|me| {
            let setup = KeygenSetup {
                context: [9; 32],
                me,
                threshold,
                parties,
            };
            (
                me,
                of(Scheme::default_of(curve))
                    .unwrap()
                    .keygen(setup)
                    .unwrap(),
            )
        })
        .collect()
}

fn keygen(curve: Curve, threshold: u8, parties: u8) -> (RootKey, BTreeMap<Index, Arc<dyn Signer>>) {
    let outcomes = run(keygen_parties(curve, threshold, parties), |_, _| {});
    assert_eq!(outcomes.len(), usize::from(parties));
    let mut roots = Vec::new();
    let signers = outcomes
        .into_iter()
        .map(|(index, share)| {
            let share = share.unwrap_or_else(|abort| panic!("party {index}: {abort:?}"));
            roots.push(share.root.clone());
            (
                index,
                of(Scheme::default_of(curve)).unwrap().open(&share).unwrap(),
            )
        })
        .collect();
    assert!(roots.windows(2).all(|pair| pair[0] == pair[1]));
    (roots[0].clone(), signers)
}

fn sign_parties(
    signers: &BTreeMap<Index, Arc<dyn Signer>>,
    quorum: &[Index],
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
    outcomes: BTreeMap<Index, Result<Option<Signature>, Abort>>,
    quorum: &[Index],
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

fn quorums(threshold: u8, parties: u8) -> Vec<Vec<Index>> {
    (0_u32..1 << parties)
        .filter(|mask| mask.count_ones() == u32::from(threshold))
        .map(|mask| {
            (1..=parties)
                .filter(|index| mask >> (index - 1) & 1 == 1)
                .collect()
        })
        .collect()
}

fn every_quorum_signs(curve: Curve, threshold: u8, parties: u8) {
    let (root, signers) = keygen(curve, threshold, parties);
    let message = message(curve);
    for (number, mut quorum) in (0_u32..).zip(quorums(threshold, parties)) {
        // Root key first, then children; collectors change.
        let path = KeyPath::new(vec![number; number as usize % 3]).unwrap();
        quorum.rotate_left(number as usize % usize::from(threshold));
        let outcomes = run(sign_parties(&signers, &quorum, &path, &message), |_, _| {});
        let child = root.child(&path).unwrap();
        verify(&child.public_key, &message, &signature(outcomes, &quorum));
    }
}

fn fewer_cannot_sign(curve: Curve) {
    let (_, signers) = keygen(curve, 3, 4);
    let path = KeyPath::new(vec![0]).unwrap();
    for quorum in [
        vec![1, 2],
        vec![1],
        vec![1, 2, 3, 4],
        vec![1, 2, 2],
        vec![2, 3, 4],
        vec![1, 2, 9],
    ] {
        let setup = SignSetup {
            context: [1; 32],
            signers: quorum.clone(),
            path: path.clone(),
            message: message(curve),
        };
        assert!(signers[&1].sign(setup).is_err(), "{quorum:?}");
    }
    // Two of three that were asked do not get there without the third.
    let quorum = [1, 2, 3];
    let mut parties = sign_parties(&signers, &quorum, &path, &message(curve));
    let mut queue: Vec<(Index, Outgoing)> = Vec::new();
    for (me, session) in &mut parties {
        if *me != 3 {
            let turn = session.start(&SystemEntropy).unwrap();
            queue.extend(turn.send.into_iter().map(|message| (*me, message)));
        }
    }
    while let Some((from, message)) = queue.pop() {
        if message.to == 3 {
            continue;
        }
        let to = message.to;
        let turn = parties
            .get_mut(&to)
            .unwrap()
            .receive(from, message.round, message.body)
            .unwrap();
        assert!(turn.done.is_none());
        queue.extend(turn.send.into_iter().map(|message| (to, message)));
    }
    for me in [1, 2] {
        assert_eq!(parties[&me].waiting_for(), [3]);
    }
}

/// What is done to a message.
#[derive(Clone, Copy, Debug)]
enum Harm {
    /// The last byte is missing: it cannot be read.
    Cut,
    /// One bit is another, at so many quarters of the length: it may still be read.
    Flip(usize),
}

fn harm(body: &mut Zeroizing<Vec<u8>>, harm: Harm) {
    match harm {
        Harm::Cut => {
            body.pop();
        }
        Harm::Flip(quarters) => {
            let at = (body.len() * quarters / 4).min(body.len() - 1);
            body[at] ^= 0x10;
        }
    }
}

/// Harms what party 2 sends to party 1 in one round. (Harm done to all alike may be none: another
/// polynomial is as good.) Gives the names that came up.
fn culprits<T>(parties: Parties<T>, round: u16, how: Harm) -> BTreeSet<Index> {
    let honest = parties.keys().filter(|index| **index != 2).count();
    let mut touched = 0;
    let outcomes = run(parties, |from, message| {
        if (from, message.to, message.round) == (2, 1, round) {
            harm(&mut message.body, how);
            touched += 1;
        }
    });
    assert!(touched > 0, "nothing was sent in round {round}");
    let aborts: Vec<&Abort> = outcomes
        .values()
        .filter_map(|outcome| outcome.as_ref().err())
        .collect();
    assert!(!aborts.is_empty(), "round {round}, {how:?}: nobody noticed");
    let finished = outcomes
        .iter()
        .filter(|(index, outcome)| **index != 2 && outcome.is_ok());
    assert!(
        finished.count() < honest,
        "round {round}, {how:?}: all finished"
    );
    aborts
        .iter()
        .flat_map(|abort| abort.culprits.iter().copied())
        .collect()
}

/// `named`: rounds in which the sender of a message that cannot be read is named. One that can
/// be read, but is not what was sent, may go unnamed; nobody else is ever named for it.
fn tampering_is_noticed(curve: Curve, keygen_named: [bool; 4], sign_named: &[bool]) {
    let two = BTreeSet::from([2]);
    for (round, named) in (1..).zip(keygen_named) {
        let expected = if named { two.clone() } else { BTreeSet::new() };
        let found = culprits(keygen_parties(curve, 2, 3), round, Harm::Cut);
        assert_eq!(found, expected, "keygen round {round}");
        let found = culprits(keygen_parties(curve, 2, 3), round, Harm::Flip(2));
        assert!(found.is_subset(&two), "keygen round {round}: {found:?}");
    }
    let (_, signers) = keygen(curve, 2, 3);
    let path = KeyPath::new(vec![4, 2]).unwrap();
    let sign = |round, how| {
        culprits(
            sign_parties(&signers, &[1, 2], &path, &message(curve)),
            round,
            how,
        )
    };
    for (round, named) in (1..).zip(sign_named) {
        let expected = if *named { two.clone() } else { BTreeSet::new() };
        assert_eq!(sign(round, Harm::Cut), expected, "signing round {round}");
        for quarters in 0..=4 {
            let found = sign(round, Harm::Flip(quarters));
            assert!(found.is_subset(&two), "signing round {round}: {found:?}");
        }
    }
}

macro_rules! suite {
    ($name:ident, $curve:expr, $keygen_named:expr, $sign_named:expr) => {
        #[allow(non_snake_case)]
        mod $name {
            use super::*;

            #[test]
            fn backend__should_make_keys_2_of_2_and_sign() {
                every_quorum_signs($curve, 2, 2);
            }

            #[test]
            fn backend__should_make_keys_2_of_3_and_sign_with_every_quorum() {
                every_quorum_signs($curve, 2, 3);
            }

            #[test]
            fn backend__should_make_keys_3_of_5_and_sign_with_every_quorum() {
                every_quorum_signs($curve, 3, 5);
            }

            #[test]
            fn backend__should_not_sign_with_fewer_or_other_than_threshold() {
                fewer_cannot_sign($curve);
            }

            #[test]
            fn backend__should_notice_tampering_and_name_the_sender_where_it_can() {
                tampering_is_noticed($curve, $keygen_named, $sign_named);
            }

            #[test]
            fn backend__should_refuse_impossible_keygens() {
                for (threshold, parties, me) in [(1, 3, 1), (4, 3, 1), (2, 3, 0), (2, 3, 4)] {
                    let setup = KeygenSetup {
                        context: [0; 32],
                        me,
                        threshold,
                        parties,
                    };
                    assert!(
                        of(Scheme::default_of($curve))
                            .unwrap()
                            .keygen(setup)
                            .is_err(),
                        "{threshold} {parties} {me}"
                    );
                }
            }
        }
    };
}

suite!(
    frost_ed25519,
    Curve::Ed25519,
    [true, false, true, false],
    &[true, true]
);
suite!(
    ecdsa_dkls23,
    Curve::Secp256k1,
    [true, true, true, false],
    &[true, true, true]
);

/// A wrong answer in the oblivious transfers leaks key material when it can be repeated.
#[test]
#[allow(non_snake_case)]
fn ecdsa_dkls23__should_ask_for_a_ban_when_a_peer_cheats_in_the_multiplication() {
    let (_, signers) = keygen(Curve::Secp256k1, 2, 2);
    let path = KeyPath::new(vec![1]).unwrap();
    let parties = sign_parties(&signers, &[1, 2], &path, &[3; 32]);
    let outcomes = run(parties, |from, message| {
        if from == 2 && message.round == 1 {
            harm(&mut message.body, Harm::Flip(2));
        }
    });
    let abort = outcomes[&1].as_ref().err().unwrap();
    assert_eq!(
        (abort.ban.as_slice(), abort.culprits.as_slice()),
        (&[2][..], &[2][..]),
        "{abort:?}"
    );
}

#[test]
#[allow(non_snake_case)]
fn ecdsa_dkls23__should_refuse_a_copied_commitment() {
    // Round 2 begins with the commitment to the proof (32 bytes), the sender's index (1), and the
    // commitment to the part of the chain code (32). Who copies that one could open it later, too.
    let place = 33..65;
    let mut copied: Option<Vec<u8>> = None;
    let outcomes = run(keygen_parties(Curve::Secp256k1, 2, 3), |from, message| {
        if message.round != 2 {
            return;
        }
        match &copied {
            None => copied = Some(message.body[place.clone()].to_vec()),
            Some(first) if from != message.to => {
                message.body[place.clone()].copy_from_slice(first);
            }
            Some(_) => {}
        }
    });
    let aborts: Vec<&Abort> = outcomes
        .values()
        .filter_map(|it| it.as_ref().err())
        .collect();
    assert!(
        aborts
            .iter()
            .any(|abort| abort.reason.contains("copied") && !abort.culprits.is_empty()),
        "{aborts:?}"
    );
}
