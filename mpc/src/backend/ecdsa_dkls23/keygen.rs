//! The key generation session.

use std::collections::BTreeMap;

use covault_core::{derive::RootKey, fault::Fault, port::Entropy, signature::Curve};
use dkls23::{
    DkgSession,
    protocols::{
        Parameters, PartyIndex,
        dkg::{
            BroadcastDerivationPhase2to4, BroadcastDerivationPhase3to4, ProofCommitment,
            TransmitInitMulPhase3to4, TransmitInitZeroSharePhase2to4,
            TransmitInitZeroSharePhase3to4,
        },
    },
    utilities::{hashes::HashOutput, proofs::DLogProof},
};
use k256::{
    Scalar, Secp256k1,
    elliptic_curve::{PrimeField as _, sec1::ToSec1Point as _},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use zeroize::{Zeroize as _, Zeroizing};

use super::{abort, between, blame_only, party_index, renew, store};
use crate::backend::{
    Abort, KeyShare, KeygenSetup, OutgoingMessage, SignerIndex, StepOutput,
    round_collector::{RoundCollector, RoundMessages, RoundProtocol, decode, encode},
};

#[derive(Serialize, Deserialize)]
struct KeygenRound2 {
    commitment: HashOutput,
    derivation: BroadcastDerivationPhase2to4,
    zero: TransmitInitZeroSharePhase2to4,
}

#[derive(Serialize, Deserialize)]
struct KeygenRound3 {
    proof: DLogProof<Secp256k1>,
    derivation: BroadcastDerivationPhase3to4,
    zero: TransmitInitZeroSharePhase3to4,
    multiplication: TransmitInitMulPhase3to4<Secp256k1>,
}

crate::secrets::secret_form!(KeygenRound3);

pub(super) struct DklsKeygen {
    setup: KeygenSetup,
    round_collector: RoundCollector,
    session: Option<DkgSession<Secp256k1>>,
    /// Our own fragment of our polynomial.
    fragment: Option<Zeroizing<[u8; 32]>>,
    commitments: BTreeMap<SignerIndex, HashOutput>,
    /// Ours, until everyone's commitment has arrived.
    proof: Option<ProofCommitment<Secp256k1>>,
    proofs: BTreeMap<SignerIndex, ProofCommitment<Secp256k1>>,
    derivation: BTreeMap<PartyIndex, BroadcastDerivationPhase2to4>,
    openings: BTreeMap<PartyIndex, BroadcastDerivationPhase3to4>,
    zero: Vec<TransmitInitZeroSharePhase2to4>,
    outcome: Option<(KeyShare, [u8; 32])>,
}

crate::secrets::secret!(DklsKeygen);

pub(super) fn scalar(from: SignerIndex, bytes: &[u8]) -> Result<Scalar, Abort> {
    let malformed = || Abort::blame(from, "malformed fragment");
    let bytes: [u8; 32] = bytes.try_into().map_err(|_| malformed())?;
    Option::from(Scalar::from_repr(bytes.into())).ok_or_else(malformed)
}

impl DklsKeygen {
    pub(super) fn new(setup: KeygenSetup) -> Result<Self, Fault> {
        let parameters = Parameters::new(setup.threshold, setup.parties).map_err(Fault::bug)?;
        let me = PartyIndex::new(setup.me).map_err(Fault::bug)?;
        let peers = (1..=setup.parties)
            .filter(|index| *index != setup.me)
            .collect();
        let session = DkgSession::new(parameters, me, setup.context.to_vec());
        Ok(Self {
            round_collector: RoundCollector::new(peers, 4),
            session: Some(session),
            fragment: None,
            commitments: BTreeMap::new(),
            proof: None,
            proofs: BTreeMap::new(),
            derivation: BTreeMap::new(),
            openings: BTreeMap::new(),
            zero: Vec::new(),
            outcome: None,
            setup,
        })
    }

    fn session(&mut self) -> Result<&mut DkgSession<Secp256k1>, Abort> {
        self.session
            .as_mut()
            .ok_or_else(|| Abort::new("the session has ended"))
    }

    fn first(
        &mut self,
        bodies: &BTreeMap<SignerIndex, Zeroizing<Vec<u8>>>,
    ) -> Result<StepOutput<KeyShare>, Abort> {
        let me = self.setup.me;
        let own = self
            .fragment
            .take()
            .ok_or_else(|| Abort::new("out of order"))?;
        let mut fragments = Zeroizing::new(vec![scalar(me, own.as_slice())?]);
        for (from, body) in bodies {
            fragments.push(scalar(*from, body)?);
        }
        let (proof, zero, derivation) = self
            .session()?
            .phase2(&fragments)
            .map_err(|error| blame_only(abort(&error), self.round_collector.peers()))?;
        let mut send = Vec::new();
        for zero in zero {
            let to = zero.parties.receiver.as_u8();
            let second = KeygenRound2 {
                commitment: proof.commitment,
                derivation: derivation.clone(),
                zero,
            };
            send.push(OutgoingMessage {
                to,
                round: 2,
                private: true,
                body: encode(&second)?,
            });
        }
        self.commitments.insert(me, proof.commitment);
        self.derivation.insert(party_index(me)?, derivation);
        // The proof stays here until everyone's commitment has arrived.
        self.proof = Some(proof);
        Ok(StepOutput::send(send))
    }

    fn second(
        &mut self,
        bodies: &BTreeMap<SignerIndex, Zeroizing<Vec<u8>>>,
    ) -> Result<StepOutput<KeyShare>, Abort> {
        let me = self.setup.me;
        for (from, body) in bodies {
            let second: KeygenRound2 = decode(*from, body)?;
            let sender = party_index(*from)?;
            between(*from, me, &second.zero.parties)?;
            if second.derivation.sender_index != sender {
                return Err(Abort::blame(*from, "spoke for another party"));
            }
            // Who copies a commitment can open it too, once its maker has: the chain code would
            // then lack the randomness of both.
            let copied = self
                .derivation
                .values()
                .any(|known| known.cc_commitment == second.derivation.cc_commitment);
            if copied {
                return Err(Abort::blame(*from, "copied another party's commitment"));
            }
            self.commitments.insert(*from, second.commitment);
            self.derivation.insert(sender, second.derivation);
            self.zero.push(second.zero);
        }
        let proof = self
            .proof
            .take()
            .ok_or_else(|| Abort::new("out of order"))?;
        let (zero, multiplication, derivation) =
            self.session()?.phase3().map_err(|error| abort(&error))?;
        let mut zero: BTreeMap<_, _> = zero
            .into_iter()
            .map(|message| (message.parties.receiver, message))
            .collect();
        let mut send = Vec::new();
        for multiplication in multiplication {
            let receiver = multiplication.parties.receiver;
            let zero = zero
                .remove(&receiver)
                .ok_or_else(|| Abort::new("no seed for a peer"))?;
            let mut third = KeygenRound3 {
                proof: proof.proof.clone(),
                derivation: derivation.clone(),
                zero,
                multiplication,
            };
            let body = encode(&third)?;
            third.zero.seed.zeroize();
            third.zero.salt.zeroize();
            send.push(OutgoingMessage {
                to: receiver.as_u8(),
                round: 3,
                private: true,
                body,
            });
        }
        self.proofs.insert(me, proof);
        self.openings.insert(party_index(me)?, derivation);
        Ok(StepOutput::send(send))
    }

    fn third(
        &mut self,
        bodies: &BTreeMap<SignerIndex, Zeroizing<Vec<u8>>>,
    ) -> Result<StepOutput<KeyShare>, Abort> {
        let (mut zero, mut multiplication) = (Vec::new(), Vec::new());
        for (from, body) in bodies {
            let third: KeygenRound3 = decode(*from, body)?;
            let sender = party_index(*from)?;
            between(*from, self.setup.me, &third.zero.parties)?;
            between(*from, self.setup.me, &third.multiplication.parties)?;
            if third.derivation.sender_index != sender {
                return Err(Abort::blame(*from, "spoke for another party"));
            }
            let commitment = *self
                .commitments
                .get(from)
                .ok_or_else(|| Abort::new("a commitment is missing"))?;
            self.proofs.insert(
                *from,
                ProofCommitment {
                    index: sender,
                    proof: third.proof,
                    commitment,
                },
            );
            self.openings.insert(sender, third.derivation);
            zero.push(third.zero);
            multiplication.push(third.multiplication);
        }
        let proofs: Vec<_> = self.proofs.values().cloned().collect();
        let session = self
            .session
            .take()
            .ok_or_else(|| Abort::new("the session has ended"))?;
        let made = session
            .phase4(
                &proofs,
                &self.zero,
                &zero,
                &multiplication,
                &self.derivation,
                &self.openings,
                |_| String::new(),
            )
            .map_err(|error| blame_only(abort(&error), self.round_collector.peers()));
        // The crate does not clear these.
        for message in &mut zero {
            message.seed.zeroize();
            message.salt.zeroize();
        }
        let (party, package) = made?;
        let root = RootKey {
            curve: Curve::Secp256k1,
            public_key: party.pk.to_sec1_point(true).as_bytes().to_vec(),
            chain_code: *party.chain_code(),
        };
        let secret = store(&party, &package)?;
        // Everything that should have been broadcast was sent to each peer by itself: the hash
        // shows whether all got the same.
        let same = encode(&(&proofs, &self.derivation, &self.openings, &package))?;
        let outcome: [u8; 32] = Sha256::new()
            .chain_update(b"covault/dkls23/outcome")
            .chain_update(self.setup.context)
            .chain_update(&root.public_key)
            .chain_update(root.chain_code)
            .chain_update(Sha256::digest(same.as_slice()))
            .finalize()
            .into();
        self.outcome = Some((KeyShare { root, secret }, outcome));
        Ok(StepOutput::send(
            self.round_collector.to_all(4, true, &outcome),
        ))
    }

    fn fourth(
        &mut self,
        bodies: &BTreeMap<SignerIndex, Zeroizing<Vec<u8>>>,
    ) -> Result<StepOutput<KeyShare>, Abort> {
        let (share, outcome) = self
            .outcome
            .take()
            .ok_or_else(|| Abort::new("out of order"))?;
        if bodies.values().any(|body| body.as_slice() != outcome) {
            return Err(Abort::new(
                "the parties saw different messages or made different keys",
            ));
        }
        Ok(StepOutput::done(share))
    }
}

impl RoundProtocol for DklsKeygen {
    type Outcome = KeyShare;

    fn round_collector(&self) -> &RoundCollector {
        &self.round_collector
    }

    fn round_collector_mut(&mut self) -> &mut RoundCollector {
        &mut self.round_collector
    }

    fn begin(&mut self, _entropy: &dyn Entropy) -> Result<StepOutput<KeyShare>, Abort> {
        renew()?;
        let me = self.setup.me;
        let points = Zeroizing::new(self.session()?.phase1());
        let mut send = Vec::new();
        for (to, point) in (1..=self.setup.parties).zip(points.iter()) {
            let bytes = Zeroizing::new(<[u8; 32]>::from(point.to_bytes()));
            if to == me {
                self.fragment = Some(bytes);
            } else {
                let body = Zeroizing::new(bytes.to_vec());
                send.push(OutgoingMessage {
                    to,
                    round: 1,
                    private: true,
                    body,
                });
            }
        }
        self.round_collector.wait_for(1);
        Ok(StepOutput::send(send))
    }

    fn take(&mut self, round: u16, bodies: RoundMessages) -> Result<StepOutput<KeyShare>, Abort> {
        renew()?;
        match round {
            1 => self.first(&bodies),
            2 => self.second(&bodies),
            3 => self.third(&bodies),
            _ => self.fourth(&bodies),
        }
    }
}
