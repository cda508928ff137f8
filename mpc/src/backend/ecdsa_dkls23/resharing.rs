//! A new generation of shares: resharing, then the crate's complete refresh among the new holders.

use std::collections::BTreeMap;

use covault_core::{derive::RootKey, fault::Fault, port::Entropy};
use dkls23::{
    protocols::{
        Parameters, Party, PartyIndex, PublicKeyPackage,
        derivation::DerivData,
        dkg::{
            KeepInitMulPhase3to4, KeepInitZeroSharePhase2to3, KeepInitZeroSharePhase3to4,
            ProofCommitment, TransmitInitMulPhase3to4, TransmitInitZeroSharePhase2to4,
            TransmitInitZeroSharePhase3to4,
        },
    },
    utilities::{hashes::HashOutput, proofs::DLogProof, zero_shares::ZeroShare},
};
use frost_secp256k1::Secp256K1Sha256;
use k256::{AffinePoint, ProjectivePoint, PublicKey, Secp256k1};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use zeroize::{Zeroize as _, Zeroizing};

use super::{abort, between, blame_only, keygen::scalar, party_index, renew, store};
use crate::backend::{
    Abort, KeyShare, OutgoingMessage, PlainShare, ReshareSetup, Session, SignerIndex, StepOutput,
    reshare::{ROUNDS, ReshareSession},
    round_collector::{RoundCollector, RoundMessages, RoundProtocol, decode, encode},
};

/// Those of the first half, and four of the second.
const LAST_ROUND: u16 = ROUNDS + 4;

#[derive(Serialize, Deserialize)]
struct RefreshRound6 {
    commitment: HashOutput,
    zero: TransmitInitZeroSharePhase2to4,
}

#[derive(Serialize, Deserialize)]
struct RefreshRound7 {
    proof: DLogProof<Secp256k1>,
    zero: TransmitInitZeroSharePhase3to4,
    multiplication: TransmitInitMulPhase3to4<Secp256k1>,
}

/// The session.
pub(super) struct DklsResharing {
    context: [u8; 32],
    parameters: Parameters,
    /// The first half, until it is over.
    plain: Option<ReshareSession<Secp256K1Sha256>>,
    /// Messages of the second half that came early.
    early: Vec<(SignerIndex, u16, Zeroizing<Vec<u8>>)>,
    refresh: Option<DklsRefresh>,
}

crate::secrets::secret!(DklsResharing);

impl DklsResharing {
    pub(super) fn new(setup: ReshareSetup, share: Option<PlainShare>) -> Result<Self, Fault> {
        Ok(Self {
            context: setup.context,
            parameters: Parameters::new(setup.threshold, setup.holders).map_err(Fault::bug)?,
            plain: Some(ReshareSession::new(setup, share)),
            early: Vec::new(),
            refresh: None,
        })
    }

    /// What the first half made begins the second.
    fn next(
        &mut self,
        output: StepOutput<Option<PlainShare>>,
    ) -> Result<StepOutput<Option<KeyShare>>, Abort> {
        let mut send = output.send;
        let share = match output.done {
            None => return Ok(StepOutput::send(send)),
            Some(None) => {
                return Ok(StepOutput {
                    send,
                    done: Some(None),
                });
            }
            Some(Some(share)) => share,
        };
        self.plain = None;
        let mut refresh = DklsRefresh::new(&share, self.context, self.parameters.clone())?;
        send.append(&mut refresh.fragments()?);
        self.refresh = Some(refresh);
        let mut done = None;
        for (from, round, body) in std::mem::take(&mut self.early) {
            let mut output = self.receive(from, round, body)?;
            send.append(&mut output.send);
            done = done.or(output.done);
        }
        Ok(StepOutput { send, done })
    }
}

impl Session<Option<KeyShare>> for DklsResharing {
    fn start(&mut self, entropy: &dyn Entropy) -> Result<StepOutput<Option<KeyShare>>, Abort> {
        let plain = self
            .plain
            .as_mut()
            .ok_or_else(|| Abort::new("out of order"))?;
        let output = plain.start(entropy)?;
        self.next(output)
    }

    fn receive(
        &mut self,
        from: SignerIndex,
        round: u16,
        body: Zeroizing<Vec<u8>>,
    ) -> Result<StepOutput<Option<KeyShare>>, Abort> {
        if let Some(refresh) = &mut self.refresh {
            return refresh.receive(from, round, body);
        }
        if round > ROUNDS {
            self.early.push((from, round, body));
            return Ok(StepOutput::wait());
        }
        let plain = self
            .plain
            .as_mut()
            .ok_or_else(|| Abort::new("the session has ended"))?;
        let output = plain.receive(from, round, body)?;
        self.next(output)
    }

    fn waiting_for(&self) -> Vec<SignerIndex> {
        match (&self.refresh, &self.plain) {
            (Some(refresh), _) => refresh.round_collector.missing(),
            (None, Some(plain)) => plain.waiting_for(),
            (None, None) => Vec::new(),
        }
    }

    fn last_round(&self) -> u16 {
        LAST_ROUND
    }
}

/// The second half, among the new holders.
struct DklsRefresh {
    me: SignerIndex,
    context: [u8; 32],
    root: RootKey,
    round_collector: RoundCollector,
    /// Has the new share, but nothing to sign with.
    hollow: Party<Secp256k1>,
    package: PublicKeyPackage<Secp256k1>,
    /// Our own fragment of our polynomial, then what corrects our share.
    own: Zeroizing<[u8; 32]>,
    /// Ours, until everyone's commitment has arrived.
    proof: Option<ProofCommitment<Secp256k1>>,
    commitments: BTreeMap<SignerIndex, HashOutput>,
    zero: Vec<TransmitInitZeroSharePhase2to4>,
    kept_zero_first: BTreeMap<PartyIndex, KeepInitZeroSharePhase2to3>,
    kept_zero: BTreeMap<PartyIndex, KeepInitZeroSharePhase3to4>,
    kept_multiplication: BTreeMap<PartyIndex, KeepInitMulPhase3to4<Secp256k1>>,
    outcome: Option<(KeyShare, [u8; 32])>,
}

crate::secrets::secret!(DklsRefresh);

impl Drop for DklsRefresh {
    fn drop(&mut self) {
        // The crate does not clear these.
        for kept in self.kept_zero_first.values_mut() {
            kept.seed.zeroize();
            kept.salt.zeroize();
        }
        for kept in self.kept_zero.values_mut() {
            kept.seed.zeroize();
        }
        for kept in self.kept_multiplication.values_mut() {
            kept.ot_sender.s.zeroize();
            kept.ot_receiver.seed.zeroize();
            kept.nonce.zeroize();
            kept.vec_r.zeroize();
            kept.correlation.zeroize();
        }
    }
}

fn point(bytes: &[u8]) -> Result<AffinePoint, Abort> {
    PublicKey::from_sec1_bytes(bytes)
        .map(|key| *key.as_affine())
        .map_err(|_| Abort::new("not a point"))
}

impl DklsRefresh {
    /// Assembles the party as the crate's repair does: with its share, without state for signing.
    fn new(share: &PlainShare, context: [u8; 32], parameters: Parameters) -> Result<Self, Abort> {
        let me = share.index;
        let pk = point(&share.root.public_key)?;
        let poly_point = scalar(me, share.secret.as_slice())?;
        let mut verifying = BTreeMap::new();
        for (index, bytes) in &share.verifying {
            verifying.insert(party_index(*index)?, point(bytes)?);
        }
        let peers = (1..=parameters.share_count)
            .filter(|index| *index != me)
            .collect();
        let hollow = Party {
            parameters: parameters.clone(),
            party_index: party_index(me)?,
            session_id: context.to_vec(),
            poly_point,
            pk,
            zero_share: ZeroShare::initialize(Vec::new()),
            mul_senders: BTreeMap::new(),
            mul_receivers: BTreeMap::new(),
            derivation_data: DerivData {
                depth: 0,
                child_number: 0,
                parent_fingerprint: [0; 4],
                poly_point,
                pk,
                chain_code: share.root.chain_code,
            },
            address: String::new(),
        };
        Ok(Self {
            me,
            context,
            root: share.root.clone(),
            round_collector: RoundCollector::new(peers, LAST_ROUND),
            hollow,
            package: PublicKeyPackage::new(pk, verifying, parameters),
            own: Zeroizing::new([0; 32]),
            proof: None,
            commitments: BTreeMap::new(),
            zero: Vec::new(),
            kept_zero_first: BTreeMap::new(),
            kept_zero: BTreeMap::new(),
            kept_multiplication: BTreeMap::new(),
            outcome: None,
        })
    }

    fn fragments(&mut self) -> Result<Vec<OutgoingMessage>, Abort> {
        renew()?;
        let points = Zeroizing::new(self.hollow.refresh_complete_phase1());
        let mut send = Vec::new();
        for (to, point) in (1..=SignerIndex::MAX).zip(points.iter()) {
            let bytes = Zeroizing::new(<[u8; 32]>::from(point.to_bytes()));
            if to == self.me {
                self.own = bytes;
            } else {
                send.push(OutgoingMessage {
                    to,
                    round: ROUNDS + 1,
                    private: true,
                    body: Zeroizing::new(bytes.to_vec()),
                });
            }
        }
        self.round_collector.wait_for(ROUNDS + 1);
        Ok(send)
    }

    fn fifth(&mut self, bodies: &RoundMessages) -> Result<Vec<OutgoingMessage>, Abort> {
        let mut fragments = Zeroizing::new(vec![scalar(self.me, self.own.as_slice())?]);
        for (from, body) in bodies {
            fragments.push(scalar(*from, body)?);
        }
        let (correction, proof, kept, zero) = self
            .hollow
            .refresh_complete_phase2(&self.context, &fragments);
        *self.own = correction.to_bytes().into();
        self.kept_zero_first = kept;
        let mut send = Vec::new();
        for zero in zero {
            let to = zero.parties.receiver.as_u8();
            let sixth = RefreshRound6 {
                commitment: proof.commitment,
                zero,
            };
            send.push(OutgoingMessage {
                to,
                round: ROUNDS + 2,
                private: true,
                body: encode(&sixth)?,
            });
        }
        self.commitments.insert(self.me, proof.commitment);
        // The proof stays here until everyone's commitment has arrived.
        self.proof = Some(proof);
        Ok(send)
    }

    fn sixth(&mut self, bodies: &RoundMessages) -> Result<Vec<OutgoingMessage>, Abort> {
        for (from, body) in bodies {
            let sixth: RefreshRound6 = decode(*from, body)?;
            between(*from, self.me, &sixth.zero.parties)?;
            self.commitments.insert(*from, sixth.commitment);
            self.zero.push(sixth.zero);
        }
        let proof = self
            .proof
            .as_ref()
            .ok_or_else(|| Abort::new("out of order"))?;
        let (kept_zero, zero, kept_multiplication, multiplication) = self
            .hollow
            .refresh_complete_phase3(&self.context, &self.kept_zero_first);
        self.kept_zero = kept_zero;
        self.kept_multiplication = kept_multiplication;
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
            let mut seventh = RefreshRound7 {
                proof: proof.proof.clone(),
                zero,
                multiplication,
            };
            let body = encode(&seventh)?;
            seventh.zero.seed.zeroize();
            seventh.zero.salt.zeroize();
            send.push(OutgoingMessage {
                to: receiver.as_u8(),
                round: ROUNDS + 3,
                private: true,
                body,
            });
        }
        Ok(send)
    }

    fn seventh(&mut self, bodies: &RoundMessages) -> Result<Vec<OutgoingMessage>, Abort> {
        let own = self
            .proof
            .take()
            .ok_or_else(|| Abort::new("out of order"))?;
        let mut proofs = BTreeMap::from([(self.me, own)]);
        let (mut zero, mut multiplication) = (Vec::new(), Vec::new());
        for (from, body) in bodies {
            let seventh: RefreshRound7 = decode(*from, body)?;
            between(*from, self.me, &seventh.zero.parties)?;
            between(*from, self.me, &seventh.multiplication.parties)?;
            let commitment = *self
                .commitments
                .get(from)
                .ok_or_else(|| Abort::new("a commitment is missing"))?;
            proofs.insert(
                *from,
                ProofCommitment {
                    index: party_index(*from)?,
                    proof: seventh.proof,
                    commitment,
                },
            );
            zero.push(seventh.zero);
            multiplication.push(seventh.multiplication);
        }
        let proofs: Vec<_> = proofs.into_values().collect();
        let correction = Zeroizing::new(scalar(self.me, self.own.as_slice())?);
        let party = self
            .hollow
            .refresh_complete_phase4(
                &self.context,
                &correction,
                &proofs,
                &self.kept_zero,
                &self.zero,
                &zero,
                &self.kept_multiplication,
                &multiplication,
            )
            .map_err(|error| blame_only(abort(&error), self.round_collector.peers()));
        for message in &mut zero {
            message.seed.zeroize();
            message.salt.zeroize();
        }
        let party = party?;
        let package = self
            .package
            .refresh(&self.context, &proofs)
            .map_err(|reason| Abort::new(reason.to_string()))?;
        let ours = ProjectivePoint::mul_by_generator(&party.poly_point).to_affine();
        if party.pk != self.hollow.pk || !package.verify_share(party.party_index, &ours) {
            return Err(Abort::new("our refreshed share does not fit"));
        }
        // The proofs were sent to each peer by itself: the hash shows whether all got the same.
        let same = encode(&(&proofs, &package))?;
        let outcome = Sha256::new()
            .chain_update(b"covault/dkls23/reshared")
            .chain_update(self.context)
            .chain_update(&self.root.public_key)
            .chain_update(self.root.chain_code)
            .chain_update(Sha256::digest(same.as_slice()))
            .finalize()
            .into();
        let share = KeyShare {
            root: self.root.clone(),
            secret: store(&party, &package)?,
        };
        self.outcome = Some((share, outcome));
        Ok(self.round_collector.to_all(ROUNDS + 4, true, &outcome))
    }

    /// What everyone says of the outcome must be the same.
    fn eighth(&mut self, bodies: &RoundMessages) -> Result<StepOutput<Option<KeyShare>>, Abort> {
        let (share, outcome) = self
            .outcome
            .take()
            .ok_or_else(|| Abort::new("out of order"))?;
        if bodies.values().any(|body| body.as_slice() != outcome) {
            return Err(Abort::new("the parties made different shares"));
        }
        Ok(StepOutput::done(Some(share)))
    }
}

impl RoundProtocol for DklsRefresh {
    type Outcome = Option<KeyShare>;

    fn round_collector(&self) -> &RoundCollector {
        &self.round_collector
    }

    fn round_collector_mut(&mut self) -> &mut RoundCollector {
        &mut self.round_collector
    }

    fn begin(&mut self, _entropy: &dyn Entropy) -> Result<StepOutput<Option<KeyShare>>, Abort> {
        self.fragments().map(StepOutput::send)
    }

    fn admit(&self, from: SignerIndex, round: u16) -> Result<(), Abort> {
        if round <= ROUNDS {
            return Err(Abort::blame(from, "message of a round that is over"));
        }
        Ok(())
    }

    fn take(
        &mut self,
        round: u16,
        bodies: RoundMessages,
    ) -> Result<StepOutput<Option<KeyShare>>, Abort> {
        renew()?;
        match round.saturating_sub(ROUNDS) {
            1 => self.fifth(&bodies).map(StepOutput::send),
            2 => self.sixth(&bodies).map(StepOutput::send),
            3 => self.seventh(&bodies).map(StepOutput::send),
            _ => self.eighth(&bodies),
        }
    }
}
