//! Signing sessions, and the loaded share that begins them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use covault_core::{
    derive::{ChildKey, KeyPath, RootKey},
    fault::Fault,
    port::Entropy,
    signature::Signature,
};
use curve25519_dalek::{Scalar, constants::ED25519_BASEPOINT_TABLE, edwards::CompressedEdwardsY};
use frost_ed25519::{
    CheaterDetection, Identifier, SigningPackage, VerifyingKey, aggregate_custom,
    keys::{KeyPackage, PublicKeyPackage, SigningShare, VerifyingShare},
    round1::{self, SigningCommitments, SigningNonces},
    round2::{self, SignatureShare},
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::{
    abort, identifier,
    preprocess::{self, Commitments},
};
use crate::{
    backend::{
        Abort, OutgoingMessage, PreprocessedNonce, Session, SignSetup, Signer, SignerIndex,
        StepOutput, check_signers,
        round_collector::{RoundCollector, RoundMessages, RoundProtocol, decode, encode},
    },
    entropy::EntropyRng,
};

/// Child keys kept ready per root key.
const CACHED_CHILDREN: usize = 1024;

/// A loaded share.
pub(super) struct LoadedShare {
    pub root: RootKey,
    pub key: KeyPackage,
    pub public: PublicKeyPackage,
    pub me: SignerIndex,
}

crate::secrets::secret!(LoadedShare);

pub(super) struct FrostSigner {
    shared: Arc<LoadedShare>,
    children: Mutex<HashMap<KeyPath, Arc<ChildShare>>>,
}

crate::secrets::secret!(FrostSigner);

/// A share of a child key.
struct ChildShare {
    /// Our share with the tweak added.
    key: KeyPackage,
    verifying_key: VerifyingKey,
    tweak: Scalar,
}

crate::secrets::secret!(ChildShare);

impl LoadedShare {
    fn child(&self, path: &KeyPath) -> Result<ChildShare, Fault> {
        let ChildKey { public_key, tweak } = self.root.child(path)?;
        let broken = |_| Fault::bug("a FROST child key cannot be made");
        let tweak = Option::<Scalar>::from(Scalar::from_canonical_bytes(tweak))
            .ok_or_else(|| Fault::bug("a tweak is not a scalar"))?;
        let root = Zeroizing::new(self.key.signing_share().serialize());
        let mut root_bytes = Zeroizing::new([0; 32]);
        root_bytes.copy_from_slice(
            root.get(..32)
                .ok_or_else(|| Fault::bug("a share is short"))?,
        );
        let share = Option::<Scalar>::from(Scalar::from_canonical_bytes(*root_bytes))
            .map(Zeroizing::new)
            .ok_or_else(|| Fault::bug("a share is not a scalar"))?;
        let share = Zeroizing::new(*share + tweak);
        let share = SigningShare::deserialize(share.as_bytes()).map_err(broken)?;
        let verifying_key = VerifyingKey::deserialize(&public_key).map_err(broken)?;
        let key = KeyPackage::new(
            *self.key.identifier(),
            share,
            VerifyingShare::from(share),
            verifying_key,
            *self.key.min_signers(),
        );
        Ok(ChildShare {
            key,
            verifying_key,
            tweak,
        })
    }

    /// The verifying shares of the child key: each root share's point plus tweak times B.
    /// Only needed to find out who cheated.
    fn verifying_shares(&self, tweak: &Scalar) -> Option<BTreeMap<Identifier, VerifyingShare>> {
        let shift = ED25519_BASEPOINT_TABLE * tweak;
        self.public
            .verifying_shares()
            .iter()
            .map(|(identifier, share)| {
                let bytes = share.serialize().ok()?;
                let point = CompressedEdwardsY::from_slice(&bytes).ok()?.decompress()? + shift;
                Some((
                    *identifier,
                    VerifyingShare::deserialize(point.compress().as_bytes()).ok()?,
                ))
            })
            .collect()
    }
}

impl FrostSigner {
    pub(super) fn new(shared: LoadedShare) -> Self {
        Self {
            shared: Arc::new(shared),
            children: Mutex::default(),
        }
    }
}

impl FrostSigner {
    fn session(&self, setup: SignSetup, state: FrostSignState) -> Result<FrostSigning, Fault> {
        let threshold =
            SignerIndex::try_from(*self.shared.key.min_signers()).map_err(Fault::bug)?;
        let parties =
            SignerIndex::try_from(self.shared.public.max_signers()).map_err(Fault::bug)?;
        check_signers(&setup, self.shared.me, threshold, parties)?;
        let child = self.child(&setup.path)?;
        let peers = setup
            .signers
            .iter()
            .copied()
            .filter(|index| *index != self.shared.me)
            .collect();
        let begins = match state {
            FrostSignState::Ahead(_) => 2,
            _ => 1,
        };
        Ok(FrostSigning {
            shared: Arc::clone(&self.shared),
            child,
            setup,
            round_collector: RoundCollector::new(peers, 2),
            begins,
            state,
        })
    }

    fn child(&self, path: &KeyPath) -> Result<Arc<ChildShare>, Fault> {
        let children = || self.children.lock();
        if let Some(child) = children().get(path) {
            return Ok(Arc::clone(child));
        }
        let child = Arc::new(self.shared.child(path)?);
        let mut children = children();
        if children.len() >= CACHED_CHILDREN {
            children.clear();
        }
        children.insert(path.clone(), Arc::clone(&child));
        Ok(child)
    }
}

impl Signer for FrostSigner {
    fn sign(&self, setup: SignSetup) -> Result<Box<dyn Session<Option<Signature>>>, Fault> {
        Ok(Box::new(self.session(setup, FrostSignState::New)?))
    }

    fn makes_nonces(&self) -> bool {
        true
    }

    fn make_nonce(&self, entropy: &dyn Entropy) -> Option<Result<PreprocessedNonce, Fault>> {
        Some(preprocess::make(self.shared.key.signing_share(), entropy))
    }

    fn sign_preprocessed(
        &self,
        setup: SignSetup,
        own: PreprocessedNonce,
        peers: BTreeMap<SignerIndex, Arc<Commitments>>,
    ) -> Result<Box<dyn Session<Option<Signature>>>, Fault> {
        let mut others = setup.signers.clone();
        others.retain(|index| *index != self.shared.me);
        others.sort_unstable();
        if !others.iter().eq(peers.keys()) {
            return Err(Fault::field("nonces", "are not those of the signers"));
        }
        let nonces =
            preprocess::read(&own.secret).ok_or_else(|| Fault::bug("a stored nonce is damaged"))?;
        let state = FrostSignState::Ahead(Box::new((nonces, own.commitments, peers)));
        Ok(Box::new(self.session(setup, state)?))
    }
}

struct FrostSigning {
    shared: Arc<LoadedShare>,
    child: Arc<ChildShare>,
    setup: SignSetup,
    round_collector: RoundCollector,
    /// The first round there is: 2 when the commitments were made ahead.
    begins: u16,
    state: FrostSignState,
}

crate::secrets::secret!(FrostSigning);

/// Commitments of the other signers.
type PeerCommitments = BTreeMap<SignerIndex, Arc<Commitments>>;

enum FrostSignState {
    New,
    /// Our nonces and commitments, made ahead, and those of the peers.
    Ahead(Box<(SigningNonces, Vec<u8>, PeerCommitments)>),
    Committed(Box<(SigningNonces, SigningCommitments)>),
    Collecting {
        package: SigningPackage,
        share: SignatureShare,
        view: [u8; 32],
    },
    Finished,
}

crate::secrets::secret!(FrostSignState);

/// To the collector.
#[derive(Serialize, Deserialize)]
struct SignRound2 {
    /// Hash of everyone's commitments, as the sender saw them.
    view: [u8; 32],
    share: Vec<u8>,
}

impl FrostSigning {
    fn collector(&self) -> Option<SignerIndex> {
        self.setup.signers.first().copied()
    }

    fn first(
        &mut self,
        bodies: &BTreeMap<SignerIndex, Zeroizing<Vec<u8>>>,
    ) -> Result<StepOutput<Option<Signature>>, Abort> {
        let FrostSignState::Committed(committed) =
            std::mem::replace(&mut self.state, FrostSignState::Finished)
        else {
            return Err(Abort::new("out of order"));
        };
        // Used where they are, and cleared there: a copy would stay behind.
        let (nonces, own) = &*committed;
        let own = own.serialize().map_err(|error| abort(&error))?;
        let mut theirs = BTreeMap::new();
        for (from, body) in bodies {
            let commitments = Commitments::parse(body.to_vec())
                .ok_or_else(|| Abort::blame(*from, "malformed commitments"))?;
            theirs.insert(*from, Arc::new(commitments));
        }
        self.contribute(nonces, &own, &theirs)
    }

    /// Uses the nonces, which the caller then drops: a share for everyone's commitments.
    fn contribute(
        &mut self,
        nonces: &SigningNonces,
        own: &[u8],
        theirs: &BTreeMap<SignerIndex, Arc<Commitments>>,
    ) -> Result<StepOutput<Option<Signature>>, Abort> {
        let mut commitments =
            BTreeMap::from([(*self.child.key.identifier(), *nonces.commitments())]);
        let mut seen = BTreeMap::from([(self.shared.me, own)]);
        for (from, their) in theirs {
            commitments.insert(identifier(*from)?, their.points);
            seen.insert(*from, &their.bytes);
        }
        let view: [u8; 32] = seen
            .iter()
            .fold(
                Sha256::new().chain_update(self.setup.context),
                |hash, (index, body)| {
                    hash.chain_update([*index])
                        .chain_update(Sha256::digest(body))
                },
            )
            .finalize()
            .into();
        let package = SigningPackage::new(commitments, &self.setup.message);
        let share =
            round2::sign(&package, nonces, &self.child.key).map_err(|error| abort(&error))?;
        let Some(collector) = self
            .collector()
            .filter(|collector| *collector != self.shared.me)
        else {
            self.state = FrostSignState::Collecting {
                package,
                share,
                view,
            };
            return Ok(StepOutput::wait());
        };
        let body = encode(&SignRound2 {
            view,
            share: share.serialize(),
        })?;
        Ok(StepOutput {
            send: vec![OutgoingMessage {
                to: collector,
                round: 2,
                private: true,
                body,
            }],
            done: Some(None),
        })
    }

    fn second(
        &mut self,
        bodies: &BTreeMap<SignerIndex, Zeroizing<Vec<u8>>>,
    ) -> Result<StepOutput<Option<Signature>>, Abort> {
        let FrostSignState::Collecting {
            package,
            share,
            view,
        } = std::mem::replace(&mut self.state, FrostSignState::Finished)
        else {
            return Err(Abort::new("out of order"));
        };
        let mut shares = BTreeMap::from([(*self.child.key.identifier(), share)]);
        for (from, body) in bodies {
            let second: SignRound2 = decode(*from, body)?;
            if second.view != view {
                // Some signer sent different commitments to different peers, or this one lies:
                // the shares do not fit, and their check would blame the wrong one.
                return Err(Abort::new("the signers saw different commitments"));
            }
            let share = SignatureShare::deserialize(&second.share)
                .map_err(|_| Abort::blame(*from, "malformed signature share"))?;
            shares.insert(identifier(*from)?, share);
        }
        let threshold = Some(*self.child.key.min_signers());
        let public = PublicKeyPackage::new(BTreeMap::new(), self.child.verifying_key, threshold);
        // Verifies the signature; looks for the cheater only when that fails.
        let signature = aggregate_custom(&package, &shares, &public, CheaterDetection::Disabled)
            .or_else(|error| {
                let verifying = self
                    .shared
                    .verifying_shares(&self.child.tweak)
                    .ok_or(error)?;
                let public = PublicKeyPackage::new(verifying, self.child.verifying_key, threshold);
                aggregate_custom(&package, &shares, &public, CheaterDetection::AllCheaters)
            })
            .map_err(|error| abort(&error))?;
        let bytes = signature.serialize().map_err(|error| abort(&error))?;
        let (r, s) = bytes
            .split_first_chunk::<32>()
            .and_then(|(r, s)| Some((*r, *s.first_chunk::<32>()?)))
            .ok_or_else(|| Abort::new("the signature is short"))?;
        Ok(StepOutput::done(Some(Signature::Ed25519 { r, s })))
    }
}

impl RoundProtocol for FrostSigning {
    type Outcome = Option<Signature>;

    fn round_collector(&self) -> &RoundCollector {
        &self.round_collector
    }

    fn round_collector_mut(&mut self) -> &mut RoundCollector {
        &mut self.round_collector
    }

    fn begin(&mut self, entropy: &dyn Entropy) -> Result<StepOutput<Option<Signature>>, Abort> {
        match std::mem::replace(&mut self.state, FrostSignState::Finished) {
            FrostSignState::New => {}
            FrostSignState::Ahead(preprocess) => {
                let (nonces, own, theirs) = &*preprocess;
                let output = self.contribute(nonces, own, theirs)?;
                self.round_collector.wait_for(2);
                return Ok(output);
            }
            _ => return Err(Abort::new("out of order")),
        }
        let mut rng = EntropyRng(entropy);
        let (nonces, commitments) = round1::commit(self.child.key.signing_share(), &mut rng);
        let body = commitments.serialize().map_err(|error| abort(&error))?;
        self.state = FrostSignState::Committed(Box::new((nonces, commitments)));
        self.round_collector.wait_for(1);
        Ok(StepOutput::send(
            self.round_collector.to_all(1, false, &body),
        ))
    }

    fn admit(&self, from: SignerIndex, round: u16) -> Result<(), Abort> {
        if round < self.begins {
            // Unless the asker has told the two of us different things, and then he hears it.
            return Err(Abort::blame(from, "commitments where they were made ahead"));
        }
        Ok(())
    }

    fn take(
        &mut self,
        round: u16,
        bodies: RoundMessages,
    ) -> Result<StepOutput<Option<Signature>>, Abort> {
        match round {
            1 => self.first(&bodies),
            _ => self.second(&bodies),
        }
    }
}
