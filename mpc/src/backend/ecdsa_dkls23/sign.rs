//! Signing sessions, and the loaded share that begins them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use covault_core::{derive::KeyPath, fault::Fault, port::Entropy, signature::Signature};
use dkls23::{
    protocols::{
        Parameters, PartiesMessage, Party, PartyIndex,
        signing::{
            Broadcast3to4, KeepPhase1to2, KeepPhase2to3, SignData, TransmitPhase1to2,
            TransmitPhase2to3, UniqueKeep1to2, UniqueKeep2to3,
        },
    },
    utilities::hashes::HashOutput,
};
use k256::Secp256k1;
use parking_lot::Mutex;
use zeroize::Zeroizing;

use super::{abort, between, blame_only, renew};
use crate::backend::{
    Abort, OutgoingMessage, Session, SignSetup, Signer, SignerIndex, StepOutput, check_signers,
    round_collector::{RoundCollector, RoundMessages, RoundProtocol, decode, encode},
};

/// Child keys kept ready per root key; each takes up to half a megabyte.
const CACHED_CHILDREN: usize = 32;

/// A loaded share.
pub(super) struct DklsSigner {
    root: Arc<Party<Secp256k1>>,
    children: Mutex<HashMap<KeyPath, Arc<Party<Secp256k1>>>>,
}

crate::secrets::secret!(DklsSigner);

impl DklsSigner {
    pub(super) fn new(root: Party<Secp256k1>) -> Self {
        Self {
            root: Arc::new(root),
            children: Mutex::default(),
        }
    }

    fn child(&self, path: &KeyPath) -> Result<Arc<Party<Secp256k1>>, Fault> {
        if path.indices().is_empty() {
            return Ok(Arc::clone(&self.root));
        }
        let known = self.children.lock().get(path).cloned();
        if let Some(child) = known {
            return Ok(child);
        }
        let child = self
            .root
            .derive_from_path(&path.to_string(), |_| String::new())
            .map_err(|error| Fault::bug(error.description))?;
        let child = Arc::new(child);
        let mut children = self.children.lock();
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
        let peers: Vec<SignerIndex> = setup
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
        Ok(Box::new(DklsSigning {
            party: self.child(&setup.path)?,
            data,
            collector,
            round_collector: RoundCollector::new(peers, 3),
            state: DklsSignState::New,
        }))
    }
}

struct DklsSigning {
    party: Arc<Party<Secp256k1>>,
    data: SignData,
    /// `None` when we collect.
    collector: Option<SignerIndex>,
    round_collector: RoundCollector,
    state: DklsSignState,
}

crate::secrets::secret!(DklsSigning);

enum DklsSignState {
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
    Finished,
}

crate::secrets::secret!(DklsSignState);

impl DklsSigning {
    fn between_us(&self, from: SignerIndex, parties: &PartiesMessage) -> Result<(), Abort> {
        between(from, self.party.party_index.as_u8(), parties)
    }

    fn first(
        &mut self,
        bodies: &BTreeMap<SignerIndex, Zeroizing<Vec<u8>>>,
    ) -> Result<StepOutput<Option<Signature>>, Abort> {
        let DklsSignState::First(unique, kept) =
            std::mem::replace(&mut self.state, DklsSignState::Finished)
        else {
            return Err(Abort::new("out of order"));
        };
        let received = bodies
            .iter()
            .map(|(from, body)| {
                let message: TransmitPhase1to2 = decode(*from, body)?;
                self.between_us(*from, &message.parties)?;
                Ok(message)
            })
            .collect::<Result<Vec<_>, Abort>>()?;
        let (unique, kept, transmit) = self
            .party
            .sign_phase2(&self.data, unique, kept, &received)
            .map_err(|error| blame_only(abort(&error), self.round_collector.peers()))?;
        self.state = DklsSignState::Second(unique, kept);
        let send = transmit
            .iter()
            .map(|message| {
                let to = message.parties.receiver.as_u8();
                Ok(OutgoingMessage {
                    to,
                    round: 2,
                    private: true,
                    body: encode(message)?,
                })
            })
            .collect::<Result<_, Abort>>()?;
        Ok(StepOutput::send(send))
    }

    fn second(
        &mut self,
        bodies: &BTreeMap<SignerIndex, Zeroizing<Vec<u8>>>,
    ) -> Result<StepOutput<Option<Signature>>, Abort> {
        let DklsSignState::Second(unique, kept) =
            std::mem::replace(&mut self.state, DklsSignState::Finished)
        else {
            return Err(Abort::new("out of order"));
        };
        let received = bodies
            .iter()
            .map(|(from, body)| {
                let message: TransmitPhase2to3<Secp256k1> = decode(*from, body)?;
                self.between_us(*from, &message.parties)?;
                Ok(message)
            })
            .collect::<Result<Vec<_>, Abort>>()?;
        let (x, own) = self
            .party
            .sign_phase3(&self.data, unique, kept, &received)
            .map_err(|error| blame_only(abort(&error), self.round_collector.peers()))?;
        match self.collector {
            None => {
                self.state = DklsSignState::Collecting { x, own };
                Ok(StepOutput::wait())
            }
            Some(to) => Ok(StepOutput {
                send: vec![OutgoingMessage {
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
        bodies: &BTreeMap<SignerIndex, Zeroizing<Vec<u8>>>,
    ) -> Result<StepOutput<Option<Signature>>, Abort> {
        let DklsSignState::Collecting { x, own } =
            std::mem::replace(&mut self.state, DklsSignState::Finished)
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
            .map_err(|error| blame_only(abort(&error), self.round_collector.peers()))?;
        let (mut r_bytes, mut s_bytes) = ([0; 32], [0; 32]);
        hex::decode_to_slice(&x, &mut r_bytes)
            .and_then(|()| hex::decode_to_slice(&s, &mut s_bytes))
            .map_err(|_| Abort::new("the signature is malformed"))?;
        if recovery > 1 {
            // R.x was above the group order (one in 2^127): r would not show it.
            return Err(Abort::new("the nonce point cannot be recovered"));
        }
        Ok(StepOutput::done(Some(Signature::Ecdsa {
            r: r_bytes,
            s: s_bytes,
            y_parity: recovery,
        })))
    }
}

impl RoundProtocol for DklsSigning {
    type Outcome = Option<Signature>;

    fn round_collector(&self) -> &RoundCollector {
        &self.round_collector
    }

    fn round_collector_mut(&mut self) -> &mut RoundCollector {
        &mut self.round_collector
    }

    fn begin(&mut self, _entropy: &dyn Entropy) -> Result<StepOutput<Option<Signature>>, Abort> {
        renew()?;
        if !matches!(self.state, DklsSignState::New) {
            return Err(Abort::new("out of order"));
        }
        let (unique, kept, transmit) = self
            .party
            .sign_phase1(&self.data)
            .map_err(|error| abort(&error))?;
        self.state = DklsSignState::First(unique, kept);
        self.round_collector.wait_for(1);
        let send = transmit
            .iter()
            .map(|message| {
                let to = message.parties.receiver.as_u8();
                Ok(OutgoingMessage {
                    to,
                    round: 1,
                    private: true,
                    body: encode(message)?,
                })
            })
            .collect::<Result<_, Abort>>()?;
        Ok(StepOutput::send(send))
    }

    fn take(
        &mut self,
        round: u16,
        bodies: RoundMessages,
    ) -> Result<StepOutput<Option<Signature>>, Abort> {
        renew()?;
        let output = match round {
            1 => self.first(&bodies),
            2 => self.second(&bodies),
            _ => self.third(&bodies),
        };
        bodies.into_values().for_each(crate::secrets::wipe);
        output
    }
}
