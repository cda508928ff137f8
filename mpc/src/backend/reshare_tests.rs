//! What a new generation of shares must be, whatever the scheme.

#![allow(non_snake_case)]

use std::collections::{BTreeMap, BTreeSet};

use covault_core::{
    derive::{KeyPath, RootKey},
    scheme::Scheme,
    signature::{Curve, Signature},
};
use proptest::prelude::*;
use zeroize::Zeroizing;

use super::{
    Abort, Dealer, KeyShare, KeygenSetup, OutgoingMessage, PlainShare, ReshareSetup, Session,
    SignSetup, SignerIndex, of, private, reshare::ReshareSession, suite::verify,
};
use crate::test_support::SystemEntropy;

type Outcomes<T> = BTreeMap<SignerIndex, Result<T, Abort>>;

/// Runs sessions against each other, the last message first. `tamper` may change or drop each.
fn run<T>(
    mut parties: BTreeMap<SignerIndex, Box<dyn Session<T>>>,
    mut tamper: impl FnMut(SignerIndex, &mut OutgoingMessage) -> bool,
) -> Outcomes<T> {
    let mut outcomes = BTreeMap::new();
    let mut queue: Vec<(SignerIndex, OutgoingMessage)> = Vec::new();
    for (me, session) in &mut parties {
        let output = session.start(&SystemEntropy).unwrap();
        queue.extend(output.send.into_iter().map(|message| (*me, message)));
    }
    while let Some((from, mut message)) = queue.pop() {
        let to = message.to;
        if !tamper(from, &mut message) || outcomes.contains_key(&to) {
            continue;
        }
        let session = parties.get_mut(&to).unwrap();
        match session.receive(from, message.round, message.body) {
            Ok(output) => {
                queue.extend(output.send.into_iter().map(|message| (to, message)));
                outcomes.extend(output.done.map(|done| (to, Ok(done))));
            }
            Err(abort) => {
                outcomes.insert(to, Err(abort));
            }
        }
    }
    outcomes
}

fn scheme(curve: Curve) -> Scheme {
    Scheme::default_of(curve)
}

/// A generation: the shares of its holders.
struct TestGeneration {
    curve: Curve,
    shares: BTreeMap<SignerIndex, KeyShare>,
}

impl TestGeneration {
    fn first(curve: Curve, threshold: u8, holders: u8) -> Self {
        let parties = (1..=holders)
            .map(|me| {
                let setup = KeygenSetup {
                    context: [9; 32],
                    me,
                    threshold,
                    parties: holders,
                };
                (me, of(scheme(curve)).unwrap().keygen(setup).unwrap())
            })
            .collect();
        let shares = run(parties, |_, _| true)
            .into_iter()
            .map(|(me, share)| (me, share.unwrap()))
            .collect();
        Self { curve, shares }
    }

    fn root(&self) -> RootKey {
        self.shares.values().next().unwrap().root.clone()
    }

    fn plain(&self, index: SignerIndex) -> PlainShare {
        of(scheme(self.curve))
            .unwrap()
            .plain(&self.shares[&index])
            .unwrap()
    }

    /// Each party's session. `stay` says, for a new holder, which old index it had.
    fn parties(
        &self,
        threshold: u8,
        holders: u8,
        dealers: &[SignerIndex],
        stay: &BTreeMap<SignerIndex, SignerIndex>,
    ) -> BTreeMap<SignerIndex, Box<dyn Session<Option<KeyShare>>>> {
        let mut next = holders;
        let dealers: Vec<Dealer> = dealers
            .iter()
            .map(|old| {
                let staying = stay.iter().find(|(_, place)| *place == old);
                let party = staying.map_or_else(
                    || {
                        next += 1;
                        next
                    },
                    |(party, _)| *party,
                );
                Dealer { party, old: *old }
            })
            .collect();
        (1..=next)
            .map(|me| {
                let setup = ReshareSetup {
                    context: [7; 32],
                    me,
                    root_public_key: self.root().public_key,
                    holders,
                    threshold,
                    dealers: dealers.clone(),
                };
                let dealer = dealers.iter().find(|dealer| dealer.party == me);
                let old = dealer.map(|dealer| dealer.old).or(stay.get(&me).copied());
                let share = old
                    .filter(|old| self.shares.contains_key(old))
                    .map(|old| self.plain(old));
                let backend = of(scheme(self.curve)).unwrap();
                (me, private::reshare(backend, setup, share).unwrap())
            })
            .collect()
    }

    fn reshare(
        &self,
        threshold: u8,
        holders: u8,
        dealers: &[SignerIndex],
        stay: &[(SignerIndex, SignerIndex)],
    ) -> Self {
        let stay = stay.iter().copied().collect();
        let outcomes = run(self.parties(threshold, holders, dealers, &stay), |_, _| {
            true
        });
        let mut shares = BTreeMap::new();
        for (me, outcome) in outcomes {
            let share = outcome.unwrap_or_else(|abort| panic!("party {me}: {abort:?}"));
            assert_eq!(
                share.is_some(),
                me <= holders,
                "only new holders get a share"
            );
            shares.extend(share.map(|share| (me, share)));
        }
        assert_eq!(shares.len(), usize::from(holders));
        assert!(shares.values().all(|share| share.root == self.root()));
        Self {
            curve: self.curve,
            shares,
        }
    }

    fn sign(&self, quorum: &[SignerIndex]) -> Option<Signature> {
        let backend = of(scheme(self.curve)).unwrap();
        let parties = quorum
            .iter()
            .map(|index| {
                let setup = SignSetup {
                    context: [1; 32],
                    signers: quorum.to_vec(),
                    path: path(),
                    message: message(self.curve),
                };
                let signer = backend.open(&self.shares[index]).unwrap();
                (*index, signer.sign(setup).unwrap())
            })
            .collect();
        run(parties, |_, _| true)
            .into_values()
            .find_map(|outcome| outcome.ok().flatten())
    }

    fn signs(&self, quorum: &[SignerIndex]) {
        let signature = self.sign(quorum).expect("a signature");
        let child = self.root().child(&path()).unwrap();
        verify(&child.public_key, &message(self.curve), &signature);
    }
}

fn path() -> KeyPath {
    KeyPath::new(vec![0, 3]).unwrap()
}

fn message(curve: Curve) -> Vec<u8> {
    match curve {
        Curve::Secp256k1 => vec![0x5a; 32],
        Curve::Ed25519 => b"any length of message".to_vec(),
    }
}

/// 2-of-3 to 3-of-5 with two of the old, to 2-of-2; each signs.
fn other_sets(curve: Curve) {
    let first = TestGeneration::first(curve, 2, 3);
    // Holder 2 leaves after dealing; 1 and 3 change places among five.
    let five = first.reshare(3, 5, &[2, 3], &[(4, 1), (2, 3)]);
    five.signs(&[1, 3, 5]);
    five.signs(&[4, 2, 1]);
    let two = five.reshare(2, 2, &[5, 1, 4], &[(1, 5)]);
    two.signs(&[2, 1]);
}

/// 2-of-3, refreshed, then with another in the place of one that is lost.
fn same_set(curve: Curve) {
    let first = TestGeneration::first(curve, 2, 3);
    let mut refreshed = first.reshare(2, 3, &[1, 3], &[(1, 1), (2, 2), (3, 3)]);
    refreshed.signs(&[1, 2]);
    refreshed.signs(&[3, 1]);
    for index in 1..=3 {
        assert_ne!(*first.plain(index).secret, *refreshed.plain(index).secret);
    }
    let replaced = refreshed.reshare(2, 3, &[1, 3], &[(1, 1), (3, 3)]);
    replaced.signs(&[2, 3]);
    // Old and new shares together are worth nothing.
    let mut old = first.shares;
    refreshed.shares.insert(3, old.remove(&3).unwrap());
    assert!(refreshed.sign(&[1, 3]).is_none());
    assert!(refreshed.sign(&[3, 2]).is_none());
    refreshed.signs(&[1, 2]);
}

#[test]
fn reshare__should_keep_the_key_on_ed25519() {
    other_sets(Curve::Ed25519);
    same_set(Curve::Ed25519);
}

#[test]
fn reshare__should_keep_the_key_in_other_hands_on_secp256k1() {
    other_sets(Curve::Secp256k1);
}

#[test]
fn reshare__should_keep_the_key_in_the_same_hands_on_secp256k1() {
    same_set(Curve::Secp256k1);
}

fn aborts<T>(outcomes: &Outcomes<T>) -> Vec<&Abort> {
    outcomes
        .values()
        .filter_map(|it| it.as_ref().err())
        .collect()
}

/// Sessions of the resharing itself, unsealed, so that messages can be forged.
fn plain_parties(
    first: &TestGeneration,
    dealers: &[Dealer],
    holders: u8,
    share: impl Fn(SignerIndex) -> Option<PlainShare>,
) -> BTreeMap<SignerIndex, Box<dyn Session<Option<PlainShare>>>> {
    (1..=holders)
        .map(|me| {
            let setup = ReshareSetup {
                context: [7; 32],
                me,
                root_public_key: first.root().public_key,
                holders,
                threshold: 2,
                dealers: dealers.to_vec(),
            };
            let session = ReshareSession::<frost_ed25519::Ed25519Sha512>::new(setup, share(me));
            (me, Box::new(session) as Box<dyn Session<_>>)
        })
        .collect()
}

const DEALERS: [Dealer; 2] = [Dealer { party: 1, old: 1 }, Dealer { party: 2, old: 2 }];

#[test]
fn reshare__should_name_a_dealer_of_another_share() {
    let first = TestGeneration::first(Curve::Ed25519, 2, 3);
    // Dealer 2 deals another secret than its share; 1 and 3 hold old shares and can tell.
    let parties = plain_parties(&first, &DEALERS, 3, |me| {
        let mut share = first.plain(me);
        if me == 2 {
            share.secret[0] ^= 1;
        }
        Some(share)
    });
    let outcomes = run(parties, |_, _| true);
    for index in [1, 3] {
        assert_eq!(outcomes[&index].as_ref().err().unwrap().culprits, [2]);
    }
    // Who holds no old share cannot tell who it was, but that it does not add up.
    let parties = plain_parties(&first, &DEALERS, 3, |me| {
        let mut share = (me != 3).then(|| first.plain(me))?;
        share.verifying.clear();
        if me == 2 {
            share.secret[0] ^= 1;
        }
        Some(share)
    });
    let outcomes = run(parties, |_, _| true);
    assert!(outcomes.values().all(Result::is_err));
    assert!(
        aborts(&outcomes)
            .iter()
            .all(|abort| abort.culprits.is_empty())
    );
}

#[test]
fn reshare__should_name_a_dealer_whose_part_is_not_on_its_polynomial() {
    let first = TestGeneration::first(Curve::Ed25519, 2, 3);
    let parties = plain_parties(&first, &DEALERS, 3, |me| Some(first.plain(me)));
    let outcomes = run(parties, |from, message| {
        if (from, message.to, message.round) == (2, 3, 3) {
            message.body[0] ^= 1;
        }
        true
    });
    assert_eq!(outcomes[&3].as_ref().err().unwrap().culprits, [2]);
    assert!(
        !outcomes.values().any(Result::is_ok),
        "nobody has a new share"
    );
}

#[test]
fn reshare__should_abort_when_a_dealer_tells_different_deals() {
    let first = TestGeneration::first(Curve::Ed25519, 2, 3);
    // What dealer 2 says in another run is as good by itself: the same constant term.
    let other = |from: SignerIndex| {
        let parties = plain_parties(&first, &DEALERS, 3, |me| Some(first.plain(me)));
        let mut said = None;
        run(parties, |sender, message| {
            if (sender, message.round) == (from, 1) {
                said = Some(message.body.clone());
            }
            true
        });
        said.unwrap()
    };
    let second = other(2);
    let mut sent_parts = 0;
    let parties = plain_parties(&first, &DEALERS, 3, |me| Some(first.plain(me)));
    let outcomes = run(parties, |from, message| {
        if (from, message.to, message.round) == (2, 3, 1) {
            message.body = Zeroizing::new(second.to_vec());
        }
        sent_parts += usize::from(message.round == 3);
        true
    });
    // A node that misses the end hears nothing more; no node completes the run.
    assert!(!outcomes.is_empty());
    for abort in outcomes.values().map(|it| it.as_ref().err().unwrap()) {
        assert!(abort.reason.contains("different deals"), "{abort:?}");
    }
    assert_eq!(sent_parts, 0, "no part has left");
}

#[test]
fn reshare__should_refuse_who_deals_unasked_or_for_another_threshold() {
    let first = TestGeneration::first(Curve::Ed25519, 2, 3);
    let start = || plain_parties(&first, &DEALERS, 3, |me| Some(first.plain(me)));
    let mut deal = None;
    run(start(), |from, message| {
        if (from, message.round) == (1, 1) {
            deal = Some(message.body.clone());
        }
        true
    });
    let deal = deal.unwrap();
    let outcomes = run(start(), |from, message| {
        if (from, message.to, message.round) == (3, 1, 1) {
            message.body = Zeroizing::new(deal.to_vec());
        }
        true
    });
    assert_eq!(outcomes[&1].as_ref().err().unwrap().culprits, [3]);
    let (mut points, chain_code): (Vec<Vec<u8>>, [u8; 32]) = bcs::from_bytes(&deal).unwrap();
    points.push(points[1].clone());
    let longer = bcs::to_bytes(&(points, chain_code)).unwrap();
    let outcomes = run(start(), |from, message| {
        if (from, message.to, message.round) == (1, 2, 1) {
            message.body = Zeroizing::new(longer.clone());
        }
        true
    });
    let abort = outcomes[&2].as_ref().err().unwrap();
    assert_eq!(abort.culprits, [1]);
    assert!(abort.reason.contains("threshold"), "{abort:?}");
}

#[test]
fn reshare__should_refuse_impossible_setups() {
    let first = TestGeneration::first(Curve::Ed25519, 2, 3);
    let good = ReshareSetup {
        context: [7; 32],
        me: 1,
        root_public_key: first.root().public_key,
        holders: 3,
        threshold: 2,
        dealers: DEALERS.to_vec(),
    };
    let backend = of(Scheme::FrostEd25519).unwrap();
    let refused = |change: &dyn Fn(&mut ReshareSetup), share: Option<SignerIndex>| {
        let mut setup = good.clone();
        change(&mut setup);
        backend
            .reshare(setup, share.map(|index| first.plain(index)))
            .is_err()
    };
    assert!(!refused(&|_| {}, Some(1)));
    assert!(refused(&|_| {}, None), "a dealer without a share");
    assert!(refused(&|_| {}, Some(2)), "a dealer with another's share");
    assert!(refused(&|setup| setup.threshold = 1, Some(1)));
    assert!(refused(&|setup| setup.threshold = 4, Some(1)));
    assert!(refused(&|setup| setup.me = 0, Some(1)));
    assert!(refused(&|setup| setup.me = 4, Some(1)));
    assert!(refused(&|setup| setup.dealers[1].old = 1, Some(1)));
    assert!(refused(&|setup| setup.dealers[1].party = 1, Some(1)));
    assert!(refused(&|setup| setup.dealers.truncate(1), Some(1)));
    assert!(refused(&|setup| setup.dealers[1].party = 9, Some(1)));
    assert!(refused(
        &|setup| setup.root_public_key = vec![0; 32],
        Some(1)
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any threshold to any other, any dealers, any places: the key stays.
    #[test]
    fn reshare__should_keep_the_key_for_any_shape(
        (old_threshold, old_holders) in (2_u8..5).prop_flat_map(|t| (Just(t), t..7)),
        (threshold, holders) in (2_u8..5).prop_flat_map(|t| (Just(t), t..7)),
        seed in any::<u64>(),
    ) {
        let first = TestGeneration::first(Curve::Ed25519, old_threshold, old_holders);
        let pick = |count: u8, of: u8, seed: u64| -> Vec<SignerIndex> {
            let mut all: Vec<SignerIndex> = (1..=of).collect();
            let mut seed = seed;
            let mut picked = Vec::new();
            while picked.len() < usize::from(count) {
                picked.push(all.remove(usize::try_from(seed % all.len() as u64).unwrap()));
                seed = seed.rotate_right(7) ^ 0x9e37_79b9_7f4a_7c15;
            }
            picked
        };
        let dealers = pick(old_threshold, old_holders, seed);
        // Some of the old ones stay, anywhere among the new.
        let staying = (seed % u64::from(old_holders.min(holders) + 1)) as u8;
        let stay: Vec<(SignerIndex, SignerIndex)> = pick(staying, holders, seed >> 9)
            .into_iter()
            .zip(pick(staying, old_holders, seed >> 21))
            .collect();
        let second = first.reshare(threshold, holders, &dealers, &stay);
        prop_assert_eq!(second.root(), first.root());
        let quorum = pick(threshold, holders, seed >> 3);
        second.signs(&quorum);
        prop_assert_eq!(
            quorum.iter().collect::<BTreeSet<_>>().len(),
            usize::from(threshold)
        );
    }
}
