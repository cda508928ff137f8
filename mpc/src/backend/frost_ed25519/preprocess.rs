//! Nonces made ahead: encoding, and peers' commitments as points.

use covault_core::{fault::Fault, port::Entropy};
use frost_ed25519::{
    keys::SigningShare,
    round1::{self, SigningCommitments, SigningNonces},
};
use zeroize::Zeroizing;

use crate::{backend::PreprocessedNonce, entropy::EntropyRng};

/// A peer's commitments, parsed: both are points of the prime-order group.
pub struct Commitments {
    pub(super) bytes: Vec<u8>,
    pub(super) points: SigningCommitments,
}

impl Commitments {
    /// Parses; this is the costly part of taking part in a signature. `None` when they are
    /// malformed.
    pub fn parse(bytes: Vec<u8>) -> Option<Self> {
        let points = SigningCommitments::deserialize(&bytes).ok()?;
        Some(Self { bytes, points })
    }

    #[cfg(test)]
    pub(crate) fn same(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

/// In the library's own encoding.
pub(super) fn make(
    share: &SigningShare,
    entropy: &dyn Entropy,
) -> Result<PreprocessedNonce, Fault> {
    let (nonces, commitments) = round1::commit(share, &mut EntropyRng(entropy));
    Ok(PreprocessedNonce {
        commitments: commitments.serialize().map_err(Fault::bug)?,
        secret: Zeroizing::new(nonces.serialize().map_err(Fault::bug)?),
    })
}

/// The nonces of [`make`].
pub(super) fn read(secret: &[u8]) -> Option<SigningNonces> {
    SigningNonces::deserialize(secret).ok()
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use covault_core::{derive::KeyPath, scheme::Scheme, signature::Signature};

    use super::*;
    use crate::{
        backend::{
            Abort, KeyShare, KeygenSetup, OutgoingMessage, Session, SignSetup, Signer, SignerIndex,
            of, suite::verify,
        },
        test_support::SystemEntropy,
    };

    type Parties<T> = BTreeMap<SignerIndex, Box<dyn Session<T>>>;

    fn run<T>(
        mut parties: Parties<T>,
        mut tamper: impl FnMut(SignerIndex, &mut OutgoingMessage),
    ) -> (usize, BTreeMap<SignerIndex, Result<T, Abort>>) {
        let (mut sent, mut outcomes, mut queue) = (0, BTreeMap::new(), Vec::new());
        for (me, session) in &mut parties {
            let output = session.start(&SystemEntropy).unwrap();
            queue.extend(output.send.into_iter().map(|message| (*me, message)));
            outcomes.extend(output.done.map(|done| (*me, Ok(done))));
        }
        while let Some((from, mut message)) = queue.pop() {
            sent += 1;
            tamper(from, &mut message);
            let to = message.to;
            if outcomes.contains_key(&to) {
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
        (sent, outcomes)
    }

    fn signers(threshold: u8, parties: u8) -> (KeyShare, BTreeMap<SignerIndex, Arc<dyn Signer>>) {
        let backend = of(Scheme::FrostEd25519).unwrap();
        let sessions = (1..=parties).map(|me| {
            let setup = KeygenSetup {
                context: [9; 32],
                me,
                threshold,
                parties,
            };
            (me, backend.keygen(setup).unwrap())
        });
        let (_, shares) = run(sessions.collect(), |_, _| {});
        let mut shares: BTreeMap<SignerIndex, KeyShare> = shares
            .into_iter()
            .map(|(index, share)| (index, share.ok().unwrap()))
            .collect();
        let signers = shares
            .iter()
            .map(|(index, share)| (*index, backend.open(share).unwrap()))
            .collect();
        (shares.remove(&1).unwrap(), signers)
    }

    fn setup(quorum: &[SignerIndex]) -> SignSetup {
        SignSetup {
            context: [1; 32],
            signers: quorum.to_vec(),
            path: KeyPath::new(vec![4, 2]).unwrap(),
            message: b"a message".to_vec(),
        }
    }

    fn sessions(
        signers: &BTreeMap<SignerIndex, Arc<dyn Signer>>,
        quorum: &[SignerIndex],
    ) -> Parties<Option<Signature>> {
        let made: BTreeMap<SignerIndex, PreprocessedNonce> = quorum
            .iter()
            .map(|index| (*index, make_one(&signers[index])))
            .collect();
        let commitments: BTreeMap<SignerIndex, Arc<Commitments>> = made
            .iter()
            .map(|(index, nonce)| (*index, parsed(nonce)))
            .collect();
        made.into_iter()
            .map(|(me, own)| {
                let mut peers = commitments.clone();
                peers.remove(&me);
                let session = signers[&me].sign_preprocessed(setup(quorum), own, peers);
                (me, session.unwrap())
            })
            .collect()
    }

    fn make_one(signer: &Arc<dyn Signer>) -> PreprocessedNonce {
        signer.make_nonce(&SystemEntropy).unwrap().unwrap()
    }

    fn parsed(nonce: &PreprocessedNonce) -> Arc<Commitments> {
        Arc::new(Commitments::parse(nonce.commitments.clone()).unwrap())
    }

    #[test]
    fn sign_preprocessed__should_take_one_message_from_each_but_the_collector() {
        for (threshold, parties, quorums) in [
            (2, 3, vec![vec![1, 2], vec![3, 1], vec![2, 3]]),
            (3, 5, vec![vec![5, 1, 3], vec![2, 4, 5]]),
        ] {
            let (share, signers) = signers(threshold, parties);
            let child = share.root.child(&setup(&[]).path).unwrap();
            for quorum in quorums {
                let (sent, mut outcomes) = run(sessions(&signers, &quorum), |_, _| {});
                assert_eq!(sent, quorum.len() - 1);
                let signature = outcomes.remove(&quorum[0]).unwrap().ok().unwrap();
                verify(&child.public_key, b"a message", &signature.unwrap());
                assert!(outcomes.values().all(|outcome| *outcome == Ok(None)));
            }
        }
    }

    #[test]
    fn sign_preprocessed__should_name_who_sends_a_wrong_share() {
        let (_, signers) = signers(3, 4);
        // The view comes first: who spoils it may have been told other commitments.
        for (at, culprits) in [(0, vec![]), (40, vec![4])] {
            let (_, outcomes) = run(sessions(&signers, &[1, 2, 4]), |from, message| {
                if from == 4 {
                    message.body[at] ^= 1;
                }
            });
            let abort = outcomes[&1].as_ref().unwrap_err();
            assert_eq!(abort.culprits, culprits, "{abort:?}");
            assert!(abort.ban.is_empty());
        }
        let (_, outcomes) = run(sessions(&signers, &[1, 2, 4]), |from, message| {
            if from == 2 {
                message.round = 1;
            }
        });
        assert_eq!(outcomes[&1].as_ref().unwrap_err().culprits, [2]);
    }

    #[test]
    fn sign_preprocessed__should_give_nothing_when_commitments_differ() {
        let (_, signers) = signers(2, 2);
        let (one, two, other) = (
            make_one(&signers[&1]),
            make_one(&signers[&2]),
            make_one(&signers[&2]),
        );
        // Party 2 has told party 1 something else than it uses.
        let told = BTreeMap::from([(2, parsed(&other))]);
        let heard = BTreeMap::from([(1, parsed(&one))]);
        let parties = BTreeMap::from([
            (
                1,
                signers[&1]
                    .sign_preprocessed(setup(&[1, 2]), one, told)
                    .unwrap(),
            ),
            (
                2,
                signers[&2]
                    .sign_preprocessed(setup(&[1, 2]), two, heard)
                    .unwrap(),
            ),
        ]);
        let (_, outcomes) = run(parties, |_, _| {});
        let abort = outcomes[&1].as_ref().unwrap_err();
        assert!(abort.reason.contains("different commitments"), "{abort:?}");
    }

    #[test]
    fn sign_preprocessed__should_refuse_nonces_of_others_than_the_signers() {
        let (_, signers) = signers(2, 3);
        let theirs = parsed(&make_one(&signers[&2]));
        for peers in [
            BTreeMap::new(),
            BTreeMap::from([(3, Arc::clone(&theirs))]),
            BTreeMap::from([(1, Arc::clone(&theirs)), (2, Arc::clone(&theirs))]),
            BTreeMap::from([(2, Arc::clone(&theirs)), (3, Arc::clone(&theirs))]),
        ] {
            let own = make_one(&signers[&1]);
            assert!(
                signers[&1]
                    .sign_preprocessed(setup(&[1, 2]), own, peers)
                    .is_err()
            );
        }
        let mut own = make_one(&signers[&1]);
        own.secret.pop();
        let peers = BTreeMap::from([(2, theirs)]);
        assert!(
            signers[&1]
                .sign_preprocessed(setup(&[1, 2]), own, peers)
                .is_err()
        );
    }
}
