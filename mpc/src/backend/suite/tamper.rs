//! Every message of every round is harmed in turn: a party must notice, and name only the sender.

use std::collections::BTreeSet;

use covault_core::{derive::KeyPath, scheme::Scheme};
use zeroize::Zeroizing;

use super::{Parties, keygen, keygen_parties, message, run, sign_parties, some_key};
use crate::backend::{Abort, SignerIndex};

/// Who is named for a message that was harmed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Blame {
    /// Always its sender.
    Sender,
    /// Its sender, where the harm falls on what proves it.
    Perhaps,
    /// Nobody: the protocol cannot tell.
    Nobody,
}
use Blame::{Nobody, Perhaps, Sender};

/// For each round: who is named for a message that cannot be read, and for one that can be but is
/// not what the protocol's code sent.
type BlameByRound = &'static [(Blame, Blame)];

/// What a backend promises.
pub(super) struct BlameTable {
    pub keygen: BlameByRound,
    pub signing: BlameByRound,
}

/// FROST: key generation with commitments, their echo, sealed shares, hash of the outcome.
pub(super) const FROST: BlameTable = BlameTable {
    keygen: &[
        (Sender, Perhaps),
        (Nobody, Nobody),
        (Sender, Perhaps),
        (Nobody, Nobody),
    ],
    signing: &[(Sender, Perhaps), (Sender, Perhaps)],
};

pub(super) const DKLS23: BlameTable = BlameTable {
    keygen: &[
        (Sender, Perhaps),
        (Sender, Perhaps),
        (Sender, Perhaps),
        (Nobody, Nobody),
    ],
    signing: &[(Sender, Perhaps), (Sender, Perhaps), (Sender, Perhaps)],
};

#[cfg(feature = "cggmp24")]
pub(super) const CGGMP24: BlameTable = BlameTable {
    keygen: &[
        (Sender, Perhaps),
        (Sender, Perhaps),
        (Sender, Perhaps),
        (Sender, Perhaps),
        (Sender, Perhaps),
        (Sender, Perhaps),
        (Sender, Perhaps),
        (Sender, Perhaps),
        (Sender, Perhaps),
        (Nobody, Nobody),
    ],
    signing: &[
        (Sender, Perhaps),
        (Sender, Perhaps),
        (Sender, Perhaps),
        (Sender, Perhaps),
        (Sender, Perhaps),
        (Sender, Perhaps),
    ],
};

/// What is done to a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tampering {
    /// The last byte is missing: it cannot be read.
    Cut,
    /// One bit is another, at so many quarters of the length: it may still be read.
    Flip(usize),
}

pub(super) fn harm(body: &mut Zeroizing<Vec<u8>>, harm: Tampering) {
    match harm {
        Tampering::Cut => {
            body.pop();
        }
        Tampering::Flip(quarters) => {
            let at = (body.len() * quarters / 4).min(body.len() - 1);
            body[at] ^= 0x10;
        }
    }
}

/// Harms what one party sends to another in one round. (Harm done to all alike may be none: another
/// polynomial is as good.) Gives the names that came up.
fn culprits<T>(
    parties: Parties<T>,
    (sender, recipient): (SignerIndex, SignerIndex),
    round: u16,
    how: Tampering,
) -> BTreeSet<SignerIndex> {
    let honest = parties.len() - 1;
    let mut touched = 0;
    let outcomes = run(parties, |from, message| {
        if (from, message.to, message.round) == (sender, recipient, round) {
            harm(&mut message.body, how);
            touched += 1;
        }
    });
    let what = format!("round {round}, {sender} to {recipient}, {how:?}");
    assert_eq!(touched, 1, "{what}");
    let aborts: Vec<&Abort> = outcomes
        .values()
        .filter_map(|outcome| outcome.as_ref().err())
        .collect();
    assert!(!aborts.is_empty(), "{what}: nobody noticed");
    let finished = outcomes
        .iter()
        .filter(|(index, outcome)| **index != sender && outcome.is_ok());
    assert!(finished.count() < honest, "{what}: all finished");
    aborts
        .iter()
        .flat_map(|abort| abort.culprits.iter().copied())
        .collect()
}

fn check(what: &str, named: Blame, sender: SignerIndex, found: &BTreeSet<SignerIndex>) {
    let of_sender = BTreeSet::from([sender]);
    let right = match named {
        Sender => *found == of_sender,
        Perhaps => found.is_subset(&of_sender),
        Nobody => found.is_empty(),
    };
    assert!(right, "{what}: expected {named:?}, named are {found:?}");
}

/// All pairs of parties and all places to harm, which takes a while, instead of some.
pub(super) fn thorough() -> bool {
    std::env::var_os("COVAULT_LONG_SUITE").is_some()
}

fn pairs(parties: &[SignerIndex]) -> Vec<(SignerIndex, SignerIndex)> {
    let all = parties
        .iter()
        .flat_map(|from| parties.iter().map(|to| (*from, *to)))
        .filter(|(from, to)| from != to);
    if thorough() {
        all.collect()
    } else {
        vec![(2, 1)]
    }
}

pub(super) fn keygen_is_guarded(scheme: Scheme, rounds: BlameByRound) {
    let make = || keygen_parties(scheme, 2, 3);
    for (round, (cut, flipped)) in (1..).zip(rounds) {
        if scheme == Scheme::Cggmp24 && round > 5 && !thorough() {
            // Each takes most of a minute.
            break;
        }
        for pair in pairs(&[1, 2, 3]) {
            let what = format!("{}, keygen round {round}", scheme.name());
            let found = culprits(make(), pair, round, Tampering::Cut);
            check(&what, *cut, pair.0, &found);
            let found = culprits(make(), pair, round, Tampering::Flip(2));
            check(&what, *flipped, pair.0, &found);
        }
    }
}

/// Messages that the others send to the collector, and to each other.
pub(super) fn signing_is_guarded(scheme: Scheme, rounds: BlameByRound) {
    let slow = scheme == Scheme::Cggmp24;
    let path = KeyPath::new(vec![4, 2]).unwrap();
    let message = message(scheme.curve());
    let mut keys = vec![(some_key(scheme).1, vec![1, 2])];
    if !slow {
        // With three, "the other one" is no answer.
        keys.push((keygen(scheme, 3, 4).1, vec![1, 2, 4]));
    }
    let last = u16::try_from(rounds.len()).unwrap();
    for (signers, quorum) in &keys {
        for (round, (cut, flipped)) in (1..).zip(rounds) {
            // Signature shares go to the collector only.
            for pair in pairs(quorum)
                .into_iter()
                .filter(|(_, to)| round < last || *to == quorum[0])
            {
                let what = format!("{}, signing round {round} of {quorum:?}", scheme.name());
                let parties = || sign_parties(signers, quorum, &path, &message);
                let found = culprits(parties(), pair, round, Tampering::Cut);
                check(&what, *cut, pair.0, &found);
                let places = if slow && !thorough() { 2..=2 } else { 0..=4 };
                for quarters in places {
                    let found = culprits(parties(), pair, round, Tampering::Flip(quarters));
                    check(&what, *flipped, pair.0, &found);
                }
            }
        }
    }
}
