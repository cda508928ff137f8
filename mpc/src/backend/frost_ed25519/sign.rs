//! Signing sessions, and the loaded share that begins them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
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
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::{abort, identifier};
use crate::{
    backend::{
        Abort, Index, Outgoing, Session, SignSetup, Signer, Turn, check_signers,
        gather::{Gather, decode, encode},
    },
    entropy::EntropyRng,
};

/// Child keys kept ready per root key.
const CACHED_CHILDREN: usize = 1024;

/// A loaded share.
pub(super) struct Shared {
    pub root: RootKey,
    pub key: KeyPackage,
    pub public: PublicKeyPackage,
    pub me: Index,
}

pub(super) struct FrostSigner {
    shared: Arc<Shared>,
    children: Mutex<HashMap<KeyPath, Arc<Child>>>,
}

/// A share of a child key.
struct Child {
    /// Our share with the tweak added.
    key: KeyPackage,
    verifying_key: VerifyingKey,
    tweak: Scalar,
}

impl Shared {
    fn child(&self, path: &KeyPath) -> Result<Child, Fault> {
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
        Ok(Child {
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
    pub(super) fn new(shared: Shared) -> Self {
        Self {
            shared: Arc::new(shared),
            children: Mutex::default(),
        }
    }
}

impl Signer for FrostSigner {
    fn sign(&self, setup: SignSetup) -> Result<Box<dyn Session<Option<Signature>>>, Fault> {
        let threshold = Index::try_from(*self.shared.key.min_signers()).map_err(Fault::bug)?;
        let parties = Index::try_from(self.shared.public.max_signers()).map_err(Fault::bug)?;
        check_signers(&setup, self.shared.me, threshold, parties)?;
        let known = self
            .children
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&setup.path)
            .cloned();
        let child = match known {
            Some(child) => child,
            None => {
                let child = Arc::new(self.shared.child(&setup.path)?);
                let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
                if children.len() >= CACHED_CHILDREN {
                    children.clear();
                }
                children.insert(setup.path.clone(), Arc::clone(&child));
                child
            }
        };
        let peers = setup
            .signers
            .iter()
            .copied()
            .filter(|index| *index != self.shared.me)
            .collect();
        Ok(Box::new(Sign {
            shared: Arc::clone(&self.shared),
            child,
            setup,
            gather: Gather::new(peers, 2),
            state: SignState::New,
        }))
    }
}

struct Sign {
    shared: Arc<Shared>,
    child: Arc<Child>,
    setup: SignSetup,
    gather: Gather,
    state: SignState,
}

enum SignState {
    New,
    Committed(Box<(SigningNonces, SigningCommitments)>),
    Collecting {
        package: SigningPackage,
        share: SignatureShare,
        view: [u8; 32],
    },
    Over,
}

/// To the collector.
#[derive(Serialize, Deserialize)]
struct Second {
    /// Hash of everybody's commitments, as the sender saw them.
    view: [u8; 32],
    share: Vec<u8>,
}

impl Sign {
    fn collector(&self) -> Option<Index> {
        self.setup.signers.first().copied()
    }

    fn first(
        &mut self,
        bodies: &BTreeMap<Index, Zeroizing<Vec<u8>>>,
    ) -> Result<Turn<Option<Signature>>, Abort> {
        let SignState::Committed(committed) = std::mem::replace(&mut self.state, SignState::Over)
        else {
            return Err(Abort::new("out of order"));
        };
        // Used where they are, and cleared there: a copy would stay behind.
        let (nonces, own) = &*committed;
        let mut commitments = BTreeMap::from([(*self.child.key.identifier(), *own)]);
        let own = own.serialize().map_err(|error| abort(&error))?;
        let mut seen = BTreeMap::from([(self.shared.me, own.as_slice())]);
        for (from, body) in bodies {
            let commitment = SigningCommitments::deserialize(body)
                .map_err(|_| Abort::blame(*from, "malformed commitments"))?;
            commitments.insert(identifier(*from)?, commitment);
            seen.insert(*from, body);
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
        // The nonces are used here, once, and dropped.
        let share =
            round2::sign(&package, nonces, &self.child.key).map_err(|error| abort(&error))?;
        drop(committed);
        let Some(collector) = self
            .collector()
            .filter(|collector| *collector != self.shared.me)
        else {
            self.state = SignState::Collecting {
                package,
                share,
                view,
            };
            return Ok(Turn::wait());
        };
        let body = encode(&Second {
            view,
            share: share.serialize(),
        })?;
        Ok(Turn {
            send: vec![Outgoing {
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
        bodies: &BTreeMap<Index, Zeroizing<Vec<u8>>>,
    ) -> Result<Turn<Option<Signature>>, Abort> {
        let SignState::Collecting {
            package,
            share,
            view,
        } = std::mem::replace(&mut self.state, SignState::Over)
        else {
            return Err(Abort::new("out of order"));
        };
        let mut shares = BTreeMap::from([(*self.child.key.identifier(), share)]);
        for (from, body) in bodies {
            let second: Second = decode(*from, body)?;
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
        // Verifies the signature; who cheated is only asked when somebody did.
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
        Ok(Turn::done(Some(Signature::Ed25519 { r, s })))
    }
}

impl Session<Option<Signature>> for Sign {
    fn start(&mut self, entropy: &dyn Entropy) -> Result<Turn<Option<Signature>>, Abort> {
        let mut rng = EntropyRng(entropy);
        let (nonces, commitments) = round1::commit(self.child.key.signing_share(), &mut rng);
        let body = commitments.serialize().map_err(|error| abort(&error))?;
        self.state = SignState::Committed(Box::new((nonces, commitments)));
        self.gather.wait_for(1);
        Ok(Turn::send(self.gather.to_all(1, false, &body)))
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
                _ => self.second(&bodies)?,
            };
            turn.send.extend(next.send);
            if next.done.is_some() {
                return Ok(Turn {
                    send: turn.send,
                    done: next.done,
                });
            }
            self.gather.wait_for(2);
        }
        Ok(turn)
    }

    fn waiting_for(&self) -> Vec<Index> {
        self.gather.missing()
    }
}

crate::secrets::secret!(Shared, FrostSigner, Child, Sign, SignState);
