//! The rules under which dkls23 may be used, as far as a session can keep them; the others are in
//! `tests/dkls23_rules.rs`. docs/threat-model.md lists them all.

#![allow(non_snake_case)]

use std::collections::{BTreeMap, BTreeSet};

use covault_core::{derive::KeyPath, scheme::Scheme};
use dkls23::protocols::{Party, PublicKeyPackage};
use k256::Secp256k1;

use super::{
    Parties, keygen, keygen_parties, make_shares, open, run, sign_parties, sign_with,
    tamper::{Tampering, harm},
};
use crate::{
    backend::{Abort, KeyShare, KeygenSetup, OutgoingMessage, SignSetup, SignerIndex, of},
    test_support::SystemEntropy,
};

const SCHEME: Scheme = Scheme::Dkls23;

fn start<T>(parties: &mut Parties<T>) -> Vec<(SignerIndex, OutgoingMessage)> {
    let mut queue = Vec::new();
    for (me, session) in parties {
        let output = session.start(&SystemEntropy).unwrap();
        queue.extend(output.send.into_iter().map(|message| (*me, message)));
    }
    queue
}

#[test]
fn dkls23_rule__should_sign_with_exactly_threshold_signers_fixed_before_phase_1() {
    let (_, signers) = keygen(SCHEME, 2, 3);
    let path = KeyPath::new(vec![1]).unwrap();
    for quorum in [&[1][..], &[1, 2, 3], &[1, 1]] {
        let setup = SignSetup {
            context: [1; 32],
            signers: quorum.to_vec(),
            path: path.clone(),
            message: vec![3; 32],
        };
        assert!(signers[&1].sign(setup).is_err(), "{quorum:?}");
    }
    // The third holds a share and is not in it: what it says ends the session, and names it.
    let mut parties = sign_parties(&signers, &[1, 2], &path, &[3; 32]);
    let (_, message) = start(&mut parties)
        .into_iter()
        .find(|(from, _)| *from == 2)
        .unwrap();
    let session = parties.get_mut(&1).unwrap();
    let abort = session.receive(3, 1, message.body).err().unwrap();
    assert_eq!(abort.culprits, [3]);
}

#[test]
fn dkls23_rule__should_count_parties_from_1_and_fix_their_indices_at_keygen() {
    for (index, share) in make_shares(SCHEME, 2, 3) {
        let (party, _): (Party<Secp256k1>, PublicKeyPackage<Secp256k1>) =
            bcs::from_bytes(&share.secret[1..]).unwrap();
        assert_eq!(party.party_index.as_u8(), index);
        assert_eq!(
            (party.parameters.threshold, party.parameters.share_count),
            (2, 3)
        );
        let signer = of(SCHEME).unwrap().open(&share).unwrap();
        for signers in [vec![0, index], vec![index, 4]] {
            let setup = SignSetup {
                context: [1; 32],
                signers,
                path: KeyPath::new(vec![]).unwrap(),
                message: vec![3; 32],
            };
            assert!(signer.sign(setup).is_err());
        }
    }
    for me in [0, 4] {
        let setup = KeygenSetup {
            context: [0; 32],
            me,
            threshold: 2,
            parties: 3,
        };
        assert!(of(SCHEME).unwrap().keygen(setup).is_err());
    }
}

/// A wrong answer in the oblivious transfers leaks key material when it can be repeated.
#[test]
fn dkls23_rule__should_ask_for_a_ban_when_a_peer_cheats_in_the_multiplication() {
    let (_, signers) = keygen(SCHEME, 2, 2);
    let path = KeyPath::new(vec![1]).unwrap();
    let parties = sign_parties(&signers, &[1, 2], &path, &[3; 32]);
    let outcomes = run(parties, |from, message| {
        if from == 2 && message.round == 1 {
            harm(&mut message.body, Tampering::Flip(2));
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
fn dkls23_rule__should_use_the_state_between_phases_once() {
    let (_, signers) = keygen(SCHEME, 2, 2);
    let path = KeyPath::new(vec![1]).unwrap();
    let mut parties = sign_parties(&signers, &[1, 2], &path, &[3; 32]);
    let queue = start(&mut parties);
    let session = parties.get_mut(&1).unwrap();
    // Phase 1 runs once.
    assert!(session.start(&SystemEntropy).is_err());
    let (_, message) = queue.into_iter().find(|(from, _)| *from == 2).unwrap();
    let body = message.body.clone();
    assert_eq!(session.receive(2, 1, message.body).unwrap().send.len(), 1);
    // So does phase 2, also for the very same message.
    assert!(session.receive(2, 1, body).is_err());

    // What failed stays over: the state that was taken for it is gone.
    let mut parties = sign_parties(&signers, &[1, 2], &path, &[3; 32]);
    let queue = start(&mut parties);
    let session = parties.get_mut(&1).unwrap();
    let (_, mut message) = queue.into_iter().find(|(from, _)| *from == 2).unwrap();
    let good = message.body.clone();
    harm(&mut message.body, Tampering::Cut);
    assert!(session.receive(2, 1, message.body).is_err());
    let output = session.receive(2, 1, good);
    assert!(
        output.is_err()
            || output.is_ok_and(|output| output.send.is_empty() && output.done.is_none())
    );
    assert!(session.start(&SystemEntropy).is_err());
}

#[test]
fn dkls23_rule__should_show_proofs_only_after_all_commitments() {
    let mut parties = keygen_parties(SCHEME, 2, 3);
    let mut queue = start(&mut parties);
    let (mut second, mut third): (Vec<_>, Vec<_>) = (Vec::new(), Vec::new());
    let mut held = Vec::new();
    while let Some((from, message)) = queue.pop() {
        match message.round {
            2 => second.push((from, message.body.to_vec())),
            3 => third.push((from, message.body.to_vec())),
            _ => {}
        }
        // The commitment of 3 reaches nobody yet.
        if from == 3 && message.round == 2 {
            held.push((from, message));
            continue;
        }
        let to = message.to;
        let session = parties.get_mut(&to).unwrap();
        let output = session.receive(from, message.round, message.body).unwrap();
        queue.extend(output.send.into_iter().map(|message| (to, message)));
    }
    // 3 has everybody's, and goes on.
    let makers = |messages: &[(SignerIndex, Vec<u8>)]| -> BTreeSet<SignerIndex> {
        messages.iter().map(|(from, _)| *from).collect()
    };
    assert_eq!(makers(&second), BTreeSet::from([1, 2, 3]));
    assert_eq!(makers(&third), BTreeSet::from([3]));
    // A commitment comes with its maker's index, and without what it commits to.
    let proof = third[0].1[..64].to_vec();
    for (_, body) in second.iter().filter(|(from, _)| *from == 3) {
        assert!(!body.windows(64).any(|window| window == proof));
        assert!(body.len() < 200, "{} bytes", body.len());
    }
    // Once it is there, the others follow.
    for (from, message) in held {
        let session = parties.get_mut(&message.to).unwrap();
        let output = session.receive(from, message.round, message.body).unwrap();
        assert!(output.send.iter().any(|message| message.round == 3));
    }
}

#[test]
fn dkls23_rule__should_refuse_a_copied_commitment() {
    // Round 2 begins with the commitment to the proof (32 bytes), the sender's index (1), and the
    // commitment to the part of the chain code (32). Who copies that one could open it later, too.
    let place = 33..65;
    let mut copied: Option<Vec<u8>> = None;
    let outcomes = run(keygen_parties(SCHEME, 2, 3), |from, message| {
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

#[test]
fn dkls23_rule__should_seal_phase_1_for_each_peer() {
    let mut bodies = BTreeSet::new();
    let mut first = 0;
    run(keygen_parties(SCHEME, 2, 3), |_, message| {
        assert!(message.private, "round {}", message.round);
        if message.round == 1 {
            first += 1;
            bodies.insert(message.body.to_vec());
        }
    });
    // Each gets a fragment of its own.
    assert_eq!((first, bodies.len()), (6, 6));
    let (_, signers) = keygen(SCHEME, 2, 2);
    let path = KeyPath::new(vec![1]).unwrap();
    run(
        sign_parties(&signers, &[1, 2], &path, &[3; 32]),
        |_, message| {
            assert!(message.private, "round {}", message.round);
        },
    );
}

#[test]
fn dkls23_rule__should_compare_all_broadcasts_in_a_final_round() {
    // Anyone who hears another outcome has no key, whatever else is in order.
    let outcomes = run(keygen_parties(SCHEME, 2, 3), |from, message| {
        if (from, message.to, message.round) == (2, 1, 4) {
            harm(&mut message.body, Tampering::Flip(1));
        }
    });
    let abort = outcomes[&1].as_ref().err().unwrap();
    assert!(abort.reason.contains("different"), "{abort:?}");
    assert!(abort.culprits.is_empty() && abort.ban.is_empty());
    // And nobody has one before the final round.
    let mut rounds = BTreeMap::new();
    let outcomes = run(keygen_parties(SCHEME, 2, 3), |_, message| {
        *rounds.entry(message.round).or_insert(0) += 1;
    });
    assert_eq!(outcomes.len(), 3);
    assert_eq!(rounds, BTreeMap::from([(1, 6), (2, 6), (3, 6), (4, 6)]));
}

#[test]
fn dkls23_rule__should_keep_one_root_party_and_derive_children_per_request() {
    let shares = make_shares(SCHEME, 2, 2);
    let before: Vec<Vec<u8>> = shares
        .values()
        .map(|share: &KeyShare| share.secret.to_vec())
        .collect();
    let (root, signers) = open(SCHEME, &shares);
    // More wallets than are kept ready, all from what was stored once.
    sign_with(&root, &signers, &vec![vec![1, 2]; 40]);
    let after: Vec<Vec<u8>> = shares.values().map(|share| share.secret.to_vec()).collect();
    assert_eq!(before, after);
}
