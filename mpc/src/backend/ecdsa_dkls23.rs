//! Threshold ECDSA on secp256k1: DKLs23 (Doerner, Kondi, Lee, shelat, eprint 2023/765), by the
//! dkls23 crate. That crate is not audited.
//!
//! Key generation, four rounds, every message sealed: (1) polynomial fragments; (2) commitments;
//! (3) proofs and openings, after everybody's commitments; (4) hash of everything that should
//! be the same for all, and of the outcome.
//!
//! Signing, three rounds: two between each pair, sealed, and one to the collector. The state
//! between rounds is used once and is never stored. The crate draws its own randomness from the
//! operating system.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use covault_core::{
    derive::{KeyPath, RootKey},
    fault::Fault,
    port::Entropy,
    signature::{Curve, Signature},
};
use dkls23::{
    DkgSession,
    protocols::{
        Abort as DklsAbort, AbortKind, AbortReason, Parameters, Party, PartyIndex,
        dkg::{
            BroadcastDerivationPhase2to4, BroadcastDerivationPhase3to4, ProofCommitment,
            TransmitInitMulPhase3to4, TransmitInitZeroSharePhase2to4,
            TransmitInitZeroSharePhase3to4,
        },
        signing::{
            Broadcast3to4, KeepPhase1to2, KeepPhase2to3, SignData, TransmitPhase1to2,
            TransmitPhase2to3, UniqueKeep1to2, UniqueKeep2to3,
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

use super::{
    Abort, Backend, Index, KeyShare, KeygenSetup, Outgoing, Session, SignSetup, Signer, Turn,
    check_keygen, check_signers,
    gather::{Gather, decode, encode},
};

/// Version of the stored share.
const SHARE_VERSION: u8 = 1;
/// Child keys kept ready per root key; each takes up to half a megabyte.
const CACHED_CHILDREN: usize = 32;

/// The backend.
pub(super) struct Dkls23;

impl Backend for Dkls23 {
    fn keygen(&self, setup: KeygenSetup) -> Result<Box<dyn Session<KeyShare>>, Fault> {
        check_keygen(&setup)?;
        let parameters = Parameters::new(setup.threshold, setup.parties).map_err(Fault::bug)?;
        let me = PartyIndex::new(setup.me).map_err(Fault::bug)?;
        let peers = (1..=setup.parties)
            .filter(|index| *index != setup.me)
            .collect();
        let session = DkgSession::new(parameters, me, setup.context.to_vec());
        Ok(Box::new(Keygen {
            gather: Gather::new(peers, 4),
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
        }))
    }

    fn open(&self, share: &KeyShare) -> Result<Arc<dyn Signer>, Fault> {
        let (version, party) = share
            .secret
            .split_first()
            .ok_or_else(|| Fault::bug("an ECDSA share is empty"))?;
        if *version != SHARE_VERSION {
            return Err(Fault::bug("an ECDSA share has an unknown version"));
        }
        let party: Party<Secp256k1> =
            bcs::from_bytes(party).map_err(|_| Fault::bug("an ECDSA share is damaged"))?;
        Ok(Arc::new(DklsSigner {
            root: Arc::new(party),
            children: Mutex::default(),
        }))
    }
}

fn party_index(index: Index) -> Result<PartyIndex, Abort> {
    PartyIndex::new(index).map_err(|_| Abort::new("no such index"))
}

/// Whom the library names. A sender is named only where its message was at fault, never where
/// our own state was.
fn abort(abort: &DklsAbort) -> Abort {
    let culprit = match &abort.reason {
        AbortReason::SessionBindingMismatch { counterparty }
        | AbortReason::ProofVerificationFailed { counterparty }
        | AbortReason::CommitmentMismatch { counterparty }
        | AbortReason::TrivialInstancePoint { counterparty }
        | AbortReason::OtConsistencyCheckFailed { counterparty }
        | AbortReason::MultiplicationVerificationFailed { counterparty, .. }
        | AbortReason::GammaUInconsistency { counterparty }
        | AbortReason::ZeroShareDecommitFailed { counterparty } => Some(counterparty.as_u8()),
        AbortReason::ChainCodeCommitmentFailed { party } => Some(party.as_u8()),
        AbortReason::UnexpectedSender { sender } | AbortReason::DuplicateSender { sender } => {
            Some(sender.as_u8())
        }
        _ => None,
    }
    .filter(|culprit| *culprit != abort.index.as_u8());
    let ban = match &abort.kind {
        AbortKind::BanCounterparty(index) => vec![index.as_u8()],
        AbortKind::Recoverable => Vec::new(),
    };
    Abort {
        reason: abort.description(),
        culprits: culprit.into_iter().collect(),
        ban,
    }
}

// ---- key generation

#[derive(Serialize, Deserialize)]
struct Second {
    commitment: HashOutput,
    derivation: BroadcastDerivationPhase2to4,
    zero: TransmitInitZeroSharePhase2to4,
}

#[derive(Serialize, Deserialize)]
struct Third {
    proof: DLogProof<Secp256k1>,
    derivation: BroadcastDerivationPhase3to4,
    zero: TransmitInitZeroSharePhase3to4,
    multiplication: TransmitInitMulPhase3to4<Secp256k1>,
}

struct Keygen {
    setup: KeygenSetup,
    gather: Gather,
    session: Option<DkgSession<Secp256k1>>,
    /// Our own fragment of our polynomial.
    fragment: Option<Zeroizing<[u8; 32]>>,
    commitments: BTreeMap<Index, HashOutput>,
    /// Ours, until everybody's commitment has arrived.
    proof: Option<ProofCommitment<Secp256k1>>,
    proofs: BTreeMap<Index, ProofCommitment<Secp256k1>>,
    derivation: BTreeMap<PartyIndex, BroadcastDerivationPhase2to4>,
    openings: BTreeMap<PartyIndex, BroadcastDerivationPhase3to4>,
    zero: Vec<TransmitInitZeroSharePhase2to4>,
    outcome: Option<(KeyShare, [u8; 32])>,
}

fn scalar(from: Index, bytes: &[u8]) -> Result<Scalar, Abort> {
    let malformed = || Abort::blame(from, "malformed fragment");
    let bytes: [u8; 32] = bytes.try_into().map_err(|_| malformed())?;
    Option::from(Scalar::from_repr(bytes.into())).ok_or_else(malformed)
}

impl Keygen {
    fn session(&mut self) -> Result<&mut DkgSession<Secp256k1>, Abort> {
        self.session
            .as_mut()
            .ok_or_else(|| Abort::new("the session is over"))
    }

    fn first(
        &mut self,
        bodies: &BTreeMap<Index, Zeroizing<Vec<u8>>>,
    ) -> Result<Turn<KeyShare>, Abort> {
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
            .map_err(|error| abort(&error))?;
        let mut send = Vec::new();
        for zero in zero {
            let to = zero.parties.receiver.as_u8();
            let second = Second {
                commitment: proof.commitment,
                derivation: derivation.clone(),
                zero,
            };
            send.push(Outgoing {
                to,
                round: 2,
                private: true,
                body: encode(&second)?,
            });
        }
        self.commitments.insert(me, proof.commitment);
        self.derivation.insert(party_index(me)?, derivation);
        // The proof stays here until everybody's commitment has arrived.
        self.proof = Some(proof);
        Ok(Turn::send(send))
    }

    fn second(
        &mut self,
        bodies: &BTreeMap<Index, Zeroizing<Vec<u8>>>,
    ) -> Result<Turn<KeyShare>, Abort> {
        let me = self.setup.me;
        for (from, body) in bodies {
            let second: Second = decode(*from, body)?;
            let sender = party_index(*from)?;
            if second.zero.parties.sender != sender || second.derivation.sender_index != sender {
                return Err(Abort::blame(*from, "spoke for another party"));
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
            let mut third = Third {
                proof: proof.proof.clone(),
                derivation: derivation.clone(),
                zero,
                multiplication,
            };
            let body = encode(&third)?;
            third.zero.seed.zeroize();
            third.zero.salt.zeroize();
            send.push(Outgoing {
                to: receiver.as_u8(),
                round: 3,
                private: true,
                body,
            });
        }
        self.proofs.insert(me, proof);
        self.openings.insert(party_index(me)?, derivation);
        Ok(Turn::send(send))
    }

    fn third(
        &mut self,
        bodies: &BTreeMap<Index, Zeroizing<Vec<u8>>>,
    ) -> Result<Turn<KeyShare>, Abort> {
        let (mut zero, mut multiplication) = (Vec::new(), Vec::new());
        for (from, body) in bodies {
            let third: Third = decode(*from, body)?;
            let sender = party_index(*from)?;
            if third.zero.parties.sender != sender
                || third.multiplication.parties.sender != sender
                || third.derivation.sender_index != sender
            {
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
            .ok_or_else(|| Abort::new("the session is over"))?;
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
            .map_err(|error| abort(&error));
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
        let party = encode(&party)?;
        let mut secret = Zeroizing::new(Vec::with_capacity(party.len() + 1));
        secret.push(SHARE_VERSION);
        secret.extend_from_slice(&party);
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
        Ok(Turn::send(self.gather.to_all(4, true, &outcome)))
    }

    fn fourth(
        &mut self,
        bodies: &BTreeMap<Index, Zeroizing<Vec<u8>>>,
    ) -> Result<Turn<KeyShare>, Abort> {
        let (share, outcome) = self
            .outcome
            .take()
            .ok_or_else(|| Abort::new("out of order"))?;
        if bodies.values().any(|body| body.as_slice() != outcome) {
            return Err(Abort::new(
                "the parties saw different messages or made different keys",
            ));
        }
        Ok(Turn::done(share))
    }
}

impl Session<KeyShare> for Keygen {
    fn start(&mut self, _entropy: &dyn Entropy) -> Result<Turn<KeyShare>, Abort> {
        let me = self.setup.me;
        let points = Zeroizing::new(self.session()?.phase1());
        let mut send = Vec::new();
        for (to, point) in (1..=self.setup.parties).zip(points.iter()) {
            let bytes = Zeroizing::new(<[u8; 32]>::from(point.to_bytes()));
            if to == me {
                self.fragment = Some(bytes);
            } else {
                let body = Zeroizing::new(bytes.to_vec());
                send.push(Outgoing {
                    to,
                    round: 1,
                    private: true,
                    body,
                });
            }
        }
        self.gather.wait_for(1);
        Ok(Turn::send(send))
    }

    fn receive(
        &mut self,
        from: Index,
        round: u16,
        body: Zeroizing<Vec<u8>>,
    ) -> Result<Turn<KeyShare>, Abort> {
        self.gather.put(from, round, body)?;
        let mut send = Vec::new();
        while let Some((round, bodies)) = self.gather.complete() {
            let mut turn = match round {
                1 => self.first(&bodies)?,
                2 => self.second(&bodies)?,
                3 => self.third(&bodies)?,
                _ => self.fourth(&bodies)?,
            };
            send.append(&mut turn.send);
            if turn.done.is_some() {
                return Ok(Turn {
                    send,
                    done: turn.done,
                });
            }
            self.gather.wait_for(round + 1);
        }
        Ok(Turn::send(send))
    }

    fn waiting_for(&self) -> Vec<Index> {
        self.gather.missing()
    }
}

// ---- signing

struct DklsSigner {
    root: Arc<Party<Secp256k1>>,
    children: Mutex<HashMap<KeyPath, Arc<Party<Secp256k1>>>>,
}

impl DklsSigner {
    fn child(&self, path: &KeyPath) -> Result<Arc<Party<Secp256k1>>, Fault> {
        if path.indices().is_empty() {
            return Ok(Arc::clone(&self.root));
        }
        let known = self
            .children
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(path)
            .cloned();
        if let Some(child) = known {
            return Ok(child);
        }
        let child = self
            .root
            .derive_from_path(&path.to_string(), |_| String::new())
            .map_err(|error| Fault::bug(error.description))?;
        let child = Arc::new(child);
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        if children.len() >= CACHED_CHILDREN {
            children.clear();
        }
        children.insert(path.clone(), Arc::clone(&child));
        Ok(child)
    }
}

impl Signer for DklsSigner {
    fn sign(&self, setup: SignSetup) -> Result<Box<dyn Session<Option<Signature>>>, Fault> {
        let me = self.root.party_index.as_u8();
        let Parameters {
            threshold,
            share_count,
        } = self.root.parameters;
        check_signers(&setup, me, threshold, share_count)?;
        let message_hash: HashOutput = setup
            .message
            .as_slice()
            .try_into()
            .map_err(|_| Fault::field("message", "must be a digest of 32 bytes"))?;
        let peers: Vec<Index> = setup
            .signers
            .iter()
            .copied()
            .filter(|index| *index != me)
            .collect();
        let counterparties = peers
            .iter()
            .map(|index| PartyIndex::new(*index).map_err(Fault::bug))
            .collect::<Result<_, _>>()?;
        let data = SignData {
            sign_id: setup.context.to_vec(),
            counterparties,
            message_hash,
        };
        let collector = setup
            .signers
            .first()
            .copied()
            .filter(|collector| *collector != me);
        Ok(Box::new(Sign {
            party: self.child(&setup.path)?,
            data,
            collector,
            gather: Gather::new(peers, 3),
            state: SignState::New,
        }))
    }
}

struct Sign {
    party: Arc<Party<Secp256k1>>,
    data: SignData,
    /// `None` when we collect.
    collector: Option<Index>,
    gather: Gather,
    state: SignState,
}

enum SignState {
    New,
    First(
        UniqueKeep1to2<Secp256k1>,
        BTreeMap<PartyIndex, KeepPhase1to2<Secp256k1>>,
    ),
    Second(
        UniqueKeep2to3<Secp256k1>,
        BTreeMap<PartyIndex, KeepPhase2to3<Secp256k1>>,
    ),
    Collecting {
        x: String,
        own: Broadcast3to4<Secp256k1>,
    },
    Over,
}

impl Sign {
    fn first(
        &mut self,
        bodies: &BTreeMap<Index, Zeroizing<Vec<u8>>>,
    ) -> Result<Turn<Option<Signature>>, Abort> {
        let SignState::First(unique, kept) = std::mem::replace(&mut self.state, SignState::Over)
        else {
            return Err(Abort::new("out of order"));
        };
        let received = bodies
            .iter()
            .map(|(from, body)| {
                let message: TransmitPhase1to2 = decode(*from, body)?;
                spoken_by(*from, message.parties.sender)?;
                Ok(message)
            })
            .collect::<Result<Vec<_>, Abort>>()?;
        let (unique, kept, transmit) = self
            .party
            .sign_phase2(&self.data, unique, kept, &received)
            .map_err(|error| abort(&error))?;
        self.state = SignState::Second(unique, kept);
        let send = transmit
            .iter()
            .map(|message| {
                let to = message.parties.receiver.as_u8();
                Ok(Outgoing {
                    to,
                    round: 2,
                    private: true,
                    body: encode(message)?,
                })
            })
            .collect::<Result<_, Abort>>()?;
        Ok(Turn::send(send))
    }

    fn second(
        &mut self,
        bodies: &BTreeMap<Index, Zeroizing<Vec<u8>>>,
    ) -> Result<Turn<Option<Signature>>, Abort> {
        let SignState::Second(unique, kept) = std::mem::replace(&mut self.state, SignState::Over)
        else {
            return Err(Abort::new("out of order"));
        };
        let received = bodies
            .iter()
            .map(|(from, body)| {
                let message: TransmitPhase2to3<Secp256k1> = decode(*from, body)?;
                spoken_by(*from, message.parties.sender)?;
                Ok(message)
            })
            .collect::<Result<Vec<_>, Abort>>()?;
        let (x, own) = self
            .party
            .sign_phase3(&self.data, unique, kept, &received)
            .map_err(|error| abort(&error))?;
        match self.collector {
            None => {
                self.state = SignState::Collecting { x, own };
                Ok(Turn::wait())
            }
            Some(to) => Ok(Turn {
                send: vec![Outgoing {
                    to,
                    round: 3,
                    private: true,
                    body: encode(&own)?,
                }],
                done: Some(None),
            }),
        }
    }

    fn third(
        &mut self,
        bodies: &BTreeMap<Index, Zeroizing<Vec<u8>>>,
    ) -> Result<Turn<Option<Signature>>, Abort> {
        let SignState::Collecting { x, own } = std::mem::replace(&mut self.state, SignState::Over)
        else {
            return Err(Abort::new("out of order"));
        };
        let mut received = vec![own];
        for (from, body) in bodies {
            received.push(decode(*from, body)?);
        }
        // Low s (BIP-62), and verified by the crate.
        let (s, recovery) = self
            .party
            .sign_phase4(&self.data, &x, &received, true)
            .map_err(|error| {
                let mut abort = abort(&error);
                // The protocol cannot name who spoilt this sum, unless there is one other party.
                if let ([peer], []) = (self.gather.peers(), abort.culprits.as_slice()) {
                    abort.culprits.push(*peer);
                }
                abort
            })?;
        let (mut r_bytes, mut s_bytes) = ([0; 32], [0; 32]);
        hex::decode_to_slice(&x, &mut r_bytes)
            .and_then(|()| hex::decode_to_slice(&s, &mut s_bytes))
            .map_err(|_| Abort::new("the signature is malformed"))?;
        if recovery > 1 {
            // R.x was above the group order (one in 2^127): r would not show it.
            return Err(Abort::new("the nonce point cannot be recovered"));
        }
        Ok(Turn::done(Some(Signature::Ecdsa {
            r: r_bytes,
            s: s_bytes,
            y_parity: recovery,
        })))
    }
}

fn spoken_by(from: Index, sender: PartyIndex) -> Result<(), Abort> {
    if sender.as_u8() == from {
        return Ok(());
    }
    Err(Abort::blame(from, "spoke for another party"))
}

impl Session<Option<Signature>> for Sign {
    fn start(&mut self, _entropy: &dyn Entropy) -> Result<Turn<Option<Signature>>, Abort> {
        let (unique, kept, transmit) = self
            .party
            .sign_phase1(&self.data)
            .map_err(|error| abort(&error))?;
        self.state = SignState::First(unique, kept);
        self.gather.wait_for(1);
        let send = transmit
            .iter()
            .map(|message| {
                let to = message.parties.receiver.as_u8();
                Ok(Outgoing {
                    to,
                    round: 1,
                    private: true,
                    body: encode(message)?,
                })
            })
            .collect::<Result<_, Abort>>()?;
        Ok(Turn::send(send))
    }

    fn receive(
        &mut self,
        from: Index,
        round: u16,
        body: Zeroizing<Vec<u8>>,
    ) -> Result<Turn<Option<Signature>>, Abort> {
        self.gather.put(from, round, body)?;
        let mut turn = Turn::wait();
        while let Some((round, bodies)) = self.gather.complete() {
            let next = match round {
                1 => self.first(&bodies)?,
                2 => self.second(&bodies)?,
                _ => self.third(&bodies)?,
            };
            turn.send.extend(next.send);
            if next.done.is_some() {
                return Ok(Turn {
                    send: turn.send,
                    done: next.done,
                });
            }
            self.gather.wait_for(round + 1);
        }
        Ok(turn)
    }

    fn waiting_for(&self) -> Vec<Index> {
        self.gather.missing()
    }
}
