//! FROST on Ed25519 (RFC 9591) with its distributed key generation (Komlo and Goldberg,
//! eprint 2020/852), by the frost-ed25519 crate.
//!
//! Key generation, four rounds: (1) package and commitment to a part of the chain code; (2) hash
//! of everybody's first message, so that a sender who told different peers different things is
//! noticed before any secret leaves; (3) secret package, sealed, and the part of the chain code;
//! (4) hash of the outcome.
//!
//! Signing, two rounds: commitments to all, signature shares to the collector. Nonces live in
//! the session and die with it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use covault_core::{
    derive::{ChildKey, KeyPath, RootKey},
    fault::Fault,
    port::Entropy,
    signature::{Curve, Signature},
};
use curve25519_dalek::{Scalar, constants::ED25519_BASEPOINT_TABLE, edwards::CompressedEdwardsY};
use frost_ed25519::{
    CheaterDetection, Error, Identifier, SigningPackage, VerifyingKey, aggregate_custom,
    keys::{
        KeyPackage, PublicKeyPackage, SigningShare, VerifyingShare,
        dkg::{self, round1 as dkg1, round2 as dkg2},
    },
    round1::{self, SigningCommitments, SigningNonces},
    round2::{self, SignatureShare},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use zeroize::{Zeroize as _, Zeroizing};

use super::{
    Abort, Backend, Index, KeyShare, KeygenSetup, Outgoing, Session, SignSetup, Signer, Turn,
    check_keygen, check_signers,
    gather::{Gather, decode, encode},
};
use crate::entropy::EntropyRng;

/// Version of the stored share.
const SHARE_VERSION: u8 = 1;
/// Child keys kept ready per root key.
const CACHED_CHILDREN: usize = 1024;

/// The backend.
pub(super) struct Frost;

impl Backend for Frost {
    fn keygen(&self, setup: KeygenSetup) -> Result<Box<dyn Session<KeyShare>>, Fault> {
        check_keygen(&setup)?;
        let peers = (1..=setup.parties)
            .filter(|index| *index != setup.me)
            .collect();
        let gather = Gather::new(peers, 4);
        Ok(Box::new(Keygen {
            setup,
            gather,
            state: KeygenState::New,
            own: BTreeMap::new(),
        }))
    }

    fn open(&self, share: &KeyShare) -> Result<Arc<dyn Signer>, Fault> {
        let damaged = |_| Fault::bug("a FROST share is damaged");
        let stored: Stored =
            bcs::from_bytes(&share.secret).map_err(|_| Fault::bug("a FROST share is damaged"))?;
        if stored.version != SHARE_VERSION {
            return Err(Fault::bug("a FROST share has an unknown version"));
        }
        let key = KeyPackage::deserialize(&stored.key).map_err(damaged)?;
        let public = PublicKeyPackage::deserialize(&stored.public).map_err(damaged)?;
        let me = index_of(key.identifier(), public.max_signers())
            .ok_or_else(|| Fault::bug("a FROST share has no index"))?;
        Ok(Arc::new(FrostSigner {
            shared: Arc::new(Shared {
                root: share.root.clone(),
                key,
                public,
                me,
            }),
            children: Mutex::default(),
        }))
    }
}

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u8,
    key: Vec<u8>,
    public: Vec<u8>,
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

fn identifier(index: Index) -> Result<Identifier, Abort> {
    Identifier::try_from(u16::from(index)).map_err(|_| Abort::new("no such index"))
}

fn index_of(identifier: &Identifier, parties: u16) -> Option<Index> {
    (1..=parties)
        .find(|index| Identifier::try_from(*index).as_ref() == Ok(identifier))
        .and_then(|index| Index::try_from(index).ok())
}

/// Blames those whom the library names.
fn abort(error: &Error) -> Abort {
    let culprits = error
        .culprits()
        .iter()
        .filter_map(|id| index_of(id, Index::MAX.into()))
        .collect();
    Abort {
        reason: error.to_string(),
        culprits,
        ban: Vec::new(),
    }
}

// ---- key generation

#[derive(Serialize, Deserialize)]
struct First {
    package: Vec<u8>,
    chain_commitment: [u8; 32],
}

#[derive(Serialize, Deserialize)]
struct Third {
    package: Vec<u8>,
    chain_part: [u8; 32],
    chain_salt: [u8; 32],
}

struct Keygen {
    setup: KeygenSetup,
    gather: Gather,
    state: KeygenState,
    /// Everybody's first message, ours too.
    own: BTreeMap<Index, Zeroizing<Vec<u8>>>,
}

enum KeygenState {
    New,
    Committed {
        secret: dkg1::SecretPackage,
        chain_part: [u8; 32],
        chain_salt: [u8; 32],
    },
    Echoed {
        secret: dkg1::SecretPackage,
        chain_part: [u8; 32],
        chain_salt: [u8; 32],
        echo: [u8; 32],
        packages: BTreeMap<Identifier, dkg1::Package>,
        chain_commitments: BTreeMap<Index, [u8; 32]>,
    },
    Shared {
        secret: Box<dkg2::SecretPackage>,
        chain_part: [u8; 32],
        echo: [u8; 32],
        packages: BTreeMap<Identifier, dkg1::Package>,
        chain_commitments: BTreeMap<Index, [u8; 32]>,
    },
    Made {
        share: KeyShare,
        outcome: [u8; 32],
    },
    Over,
}

impl Keygen {
    fn chain_commitment(&self, index: Index, part: &[u8; 32], salt: &[u8; 32]) -> [u8; 32] {
        Sha256::new()
            .chain_update(b"covault/frost/chain-code-part")
            .chain_update(self.setup.context)
            .chain_update([index])
            .chain_update(part)
            .chain_update(salt)
            .finalize()
            .into()
    }

    fn echo(&self) -> [u8; 32] {
        let mut hash = Sha256::new()
            .chain_update(b"covault/frost/echo")
            .chain_update(self.setup.context)
            .chain_update([self.setup.threshold, self.setup.parties]);
        for (index, body) in &self.own {
            hash.update([*index]);
            hash.update(Sha256::digest(body.as_slice()));
        }
        hash.finalize().into()
    }

    fn first(
        &mut self,
        bodies: BTreeMap<Index, Zeroizing<Vec<u8>>>,
    ) -> Result<Turn<KeyShare>, Abort> {
        let KeygenState::Committed {
            secret,
            chain_part,
            chain_salt,
        } = std::mem::replace(&mut self.state, KeygenState::Over)
        else {
            return Err(Abort::new("out of order"));
        };
        let (mut packages, mut chain_commitments) = (BTreeMap::new(), BTreeMap::new());
        for (from, body) in bodies {
            let first: First = decode(from, &body)?;
            let package = dkg1::Package::deserialize(&first.package)
                .map_err(|_| Abort::blame(from, "malformed package"))?;
            packages.insert(identifier(from)?, package);
            chain_commitments.insert(from, first.chain_commitment);
            self.own.insert(from, body);
        }
        let echo = self.echo();
        self.state = KeygenState::Echoed {
            secret,
            chain_part,
            chain_salt,
            echo,
            packages,
            chain_commitments,
        };
        Ok(Turn::send(self.gather.to_all(2, false, &echo)))
    }

    fn second(
        &mut self,
        bodies: &BTreeMap<Index, Zeroizing<Vec<u8>>>,
    ) -> Result<Turn<KeyShare>, Abort> {
        let KeygenState::Echoed {
            secret,
            chain_part,
            chain_salt,
            echo,
            packages,
            chain_commitments,
        } = std::mem::replace(&mut self.state, KeygenState::Over)
        else {
            return Err(Abort::new("out of order"));
        };
        if bodies.values().any(|body| body.as_slice() != echo) {
            // Either some sender equivocated or some echo lies: nobody can be named.
            return Err(Abort::new("the parties saw different first messages"));
        }
        let (secret, outgoing) = dkg::part2(secret, &packages).map_err(|error| abort(&error))?;
        let mut send = Vec::new();
        for to in self.gather.peers() {
            let package = outgoing
                .get(&identifier(*to)?)
                .ok_or_else(|| Abort::new("no package for a peer"))?
                .serialize()
                .map_err(|error| abort(&error))?;
            let mut third = Third {
                package,
                chain_part,
                chain_salt,
            };
            let body = encode(&third)?;
            third.package.zeroize();
            send.push(Outgoing {
                to: *to,
                round: 3,
                private: true,
                body,
            });
        }
        self.state = KeygenState::Shared {
            secret: Box::new(secret),
            chain_part,
            echo,
            packages,
            chain_commitments,
        };
        Ok(Turn::send(send))
    }

    fn third(
        &mut self,
        bodies: &BTreeMap<Index, Zeroizing<Vec<u8>>>,
    ) -> Result<Turn<KeyShare>, Abort> {
        let KeygenState::Shared {
            secret,
            chain_part,
            echo,
            packages,
            chain_commitments,
        } = std::mem::replace(&mut self.state, KeygenState::Over)
        else {
            return Err(Abort::new("out of order"));
        };
        let mut received = BTreeMap::new();
        let mut chain_parts = BTreeMap::from([(self.setup.me, chain_part)]);
        for (from, body) in bodies {
            let mut third: Third = decode(*from, body)?;
            let package = dkg2::Package::deserialize(&third.package);
            third.package.zeroize();
            received.insert(
                identifier(*from)?,
                package.map_err(|_| Abort::blame(*from, "malformed package"))?,
            );
            let commitment = self.chain_commitment(*from, &third.chain_part, &third.chain_salt);
            if chain_commitments.get(from) != Some(&commitment) {
                return Err(Abort::blame(
                    *from,
                    "opened another chain code than committed",
                ));
            }
            chain_parts.insert(*from, third.chain_part);
        }
        let (key, public) =
            dkg::part3(&secret, &packages, &received).map_err(|error| abort(&error))?;
        let chain_code: [u8; 32] = chain_parts
            .values()
            .fold(
                Sha256::new()
                    .chain_update(b"covault/frost/chain-code")
                    .chain_update(self.setup.context),
                |hash, part| hash.chain_update(part),
            )
            .finalize()
            .into();
        let public_key = public
            .verifying_key()
            .serialize()
            .map_err(|error| abort(&error))?;
        let mut stored = Stored {
            version: SHARE_VERSION,
            key: key.serialize().map_err(|error| abort(&error))?,
            public: public.serialize().map_err(|error| abort(&error))?,
        };
        let secret = encode(&stored)?;
        let outcome: [u8; 32] = Sha256::new()
            .chain_update(b"covault/frost/outcome")
            .chain_update(echo)
            .chain_update(chain_code)
            .chain_update(Sha256::digest(&stored.public))
            .finalize()
            .into();
        stored.key.zeroize();
        let root = RootKey {
            curve: Curve::Ed25519,
            public_key,
            chain_code,
        };
        self.state = KeygenState::Made {
            share: KeyShare { root, secret },
            outcome,
        };
        Ok(Turn::send(self.gather.to_all(4, false, &outcome)))
    }

    fn fourth(
        &mut self,
        bodies: &BTreeMap<Index, Zeroizing<Vec<u8>>>,
    ) -> Result<Turn<KeyShare>, Abort> {
        let KeygenState::Made { share, outcome } =
            std::mem::replace(&mut self.state, KeygenState::Over)
        else {
            return Err(Abort::new("out of order"));
        };
        if bodies.values().any(|body| body.as_slice() != outcome) {
            return Err(Abort::new("the parties made different keys"));
        }
        Ok(Turn::done(share))
    }
}

impl Session<KeyShare> for Keygen {
    fn start(&mut self, entropy: &dyn Entropy) -> Result<Turn<KeyShare>, Abort> {
        let KeygenSetup {
            me,
            threshold,
            parties,
            ..
        } = self.setup;
        let rng = EntropyRng(entropy);
        let (secret, package) = dkg::part1(identifier(me)?, parties.into(), threshold.into(), rng)
            .map_err(|error| abort(&error))?;
        let (mut chain_part, mut chain_salt) = ([0; 32], [0; 32]);
        entropy.fill(&mut chain_part);
        entropy.fill(&mut chain_salt);
        let first = First {
            package: package.serialize().map_err(|error| abort(&error))?,
            chain_commitment: self.chain_commitment(me, &chain_part, &chain_salt),
        };
        let body = encode(&first)?;
        let send = self.gather.to_all(1, false, &body);
        self.own.insert(me, body);
        self.state = KeygenState::Committed {
            secret,
            chain_part,
            chain_salt,
        };
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
                1 => self.first(bodies)?,
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

/// A loaded share.
struct Shared {
    root: RootKey,
    key: KeyPackage,
    public: PublicKeyPackage,
    me: Index,
}

struct FrostSigner {
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
        let (nonces, own) = *committed;
        let mut commitments = BTreeMap::from([(*self.child.key.identifier(), own)]);
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
            round2::sign(&package, &nonces, &self.child.key).map_err(|error| abort(&error))?;
        drop(nonces);
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
                private: false,
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
