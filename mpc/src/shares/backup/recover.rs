//! The private key, from a threshold of backups and nothing else. What does not fit is set aside: one
//! damaged file, one of another generation, or one hostile node must not keep the rest from giving
//! the key.

use std::collections::{BTreeMap, BTreeSet};

use covault_core::{
    derive::{ChildKey, KeyPath, RootKey},
    fault::Fault,
    ids::VaultId,
    order::NodeId,
    scheme::Scheme,
    signature::Curve,
};
use curve25519_dalek::{Scalar as EdScalar, constants::ED25519_BASEPOINT_TABLE};
use frost_core::{
    Ciphersuite, Identifier, VerifyingKey,
    keys::{KeyPackage, SigningShare, VerifyingShare, reconstruct},
};
use frost_ed25519::Ed25519Sha512;
use frost_secp256k1::Secp256K1Sha256;
use k256::elliptic_curve::{PrimeField as _, sec1::ToSec1Point as _};
use zeroize::Zeroizing;

use super::{DecryptedBackup, invalid};
use crate::backend::PlainShare;

/// The version bytes of an extended private key (BIP-32, main network).
const XPRV: [u8; 4] = [0x04, 0x88, 0xad, 0xe4];

/// A private root key. Never printed by itself; zeroized on drop.
pub struct RecoveredKey {
    /// Its public half.
    pub root: RootKey,
    secret: Zeroizing<[u8; 32]>,
}

crate::secrets::secret!(RecoveredKey { secret });

/// The private key of a wallet. Never printed by itself; zeroized on drop.
pub struct RecoveredChild {
    /// Its public half: 33 bytes (secp256k1) or 32 bytes (Ed25519).
    pub public_key: Vec<u8>,
    secret: Zeroizing<[u8; 32]>,
}

crate::secrets::secret!(RecoveredChild { secret });

/// A backup that a key was not made of, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedBackup {
    /// Its place in the list that was given.
    pub place: usize,
    /// Without secrets.
    pub why: String,
}

/// What the backups of one key give.
pub struct RecoveryReport {
    /// The vault that they name.
    pub vault: VaultId,
    /// The scheme of the key.
    pub scheme: Scheme,
    /// The private key; or why there is none, as [`recover`] says it.
    pub key: Result<RecoveredKey, Fault>,
    /// Backups of this key that do not belong to those that gave it: of other generations, or with
    /// a wrong share, which a hostile node may have given. Empty when there is no key.
    pub rejected: Vec<RejectedBackup>,
}

/// The private root key, from the backups of `threshold` nodes. More may be given, among them some
/// that do not fit: of another generation, or with a wrong share.
///
/// # Errors
/// [`covault_core::fault::Class::Invalid`] when they are of different keys, or of no generation
/// there are `threshold` that give the key.
pub fn recover(backups: &[DecryptedBackup]) -> Result<RecoveredKey, Fault> {
    let mut found = recover_all(backups);
    let Some(last) = found.pop() else {
        return Err(invalid("there are no backups"));
    };
    if !found.is_empty() {
        return Err(invalid("the backups are of different keys"));
    }
    last.key
}

/// Every private root key that the backups give, one entry for each vault and public key that they
/// name.
pub fn recover_all(backups: &[DecryptedBackup]) -> Vec<RecoveryReport> {
    let mut keys: BTreeMap<_, Vec<BackupCandidate<'_>>> = BTreeMap::new();
    for (place, backup) in backups.iter().enumerate() {
        let key = (backup.vault, backup.scheme.name(), &backup.root.public_key);
        let candidate = BackupCandidate { place, backup };
        keys.entry(key).or_default().push(candidate);
    }
    let found = keys.into_values().filter_map(|candidates| {
        let first = candidates.first()?.backup;
        let (key, rejected) = match one_key(&candidates) {
            Ok((key, rejected)) => (Ok(key), rejected),
            Err(fault) => (Err(fault), Vec::new()),
        };
        Some(RecoveryReport {
            vault: first.vault,
            scheme: first.scheme,
            key,
            rejected,
        })
    });
    found.collect()
}

#[derive(Clone, Copy)]
struct BackupCandidate<'a> {
    place: usize,
    backup: &'a DecryptedBackup,
}

impl BackupCandidate<'_> {
    /// Shares fit together only where all of this is the same.
    fn generation(&self) -> (u32, u16, &[NodeId], &[u8; 32]) {
        let DecryptedBackup {
            epoch,
            threshold,
            holders,
            root,
            ..
        } = self.backup;
        (*epoch, *threshold, holders, &root.chain_code)
    }

    fn needed(&self) -> usize {
        usize::from(self.backup.threshold)
    }
}

/// The key from backups that all name it, and those that do not belong.
fn one_key(
    candidates: &[BackupCandidate<'_>],
) -> Result<(RecoveredKey, Vec<RejectedBackup>), Fault> {
    let mut generations: BTreeMap<_, Vec<BackupCandidate<'_>>> = BTreeMap::new();
    for candidate in candidates {
        let generation = generations.entry(candidate.generation()).or_default();
        generation.push(*candidate);
    }
    // What most say first.
    let mut generations: Vec<Vec<BackupCandidate<'_>>> = generations.into_values().rev().collect();
    generations.sort_by_key(|generation| std::cmp::Reverse(generation.len()));
    let mut faults = Vec::new();
    for generation in &generations {
        let Some(first) = generation.first().map(|candidate| candidate.backup) else {
            continue;
        };
        let fitted = match first.scheme.curve() {
            Curve::Ed25519 => fit::<Ed25519Sha512>(generation),
            Curve::Secp256k1 => fit::<Secp256K1Sha256>(generation),
        };
        match fitted {
            Ok((secret, mut rejected)) => {
                let others = candidates.iter().filter(|candidate| {
                    !generation.iter().any(|kept| kept.place == candidate.place)
                });
                rejected.extend(others.map(|other| RejectedBackup {
                    place: other.place,
                    why: if other.backup.epoch == first.epoch {
                        "it names another threshold, other holders or another chain code than the \
                         rest"
                            .into()
                    } else {
                        format!(
                            "it is of epoch {}, and the key was recovered from those of epoch {}",
                            other.backup.epoch, first.epoch
                        )
                    },
                }));
                rejected.sort_by_key(|misfit| misfit.place);
                let root = first.root.clone();
                return Ok((RecoveredKey { root, secret }, rejected));
            }
            Err(fault) => faults.push((first, fault)),
        }
    }
    let epochs: BTreeSet<u32> = faults.iter().map(|(first, _)| first.epoch).collect();
    let told = faults
        .iter()
        .map(|(first, fault)| format!("epoch {}: {}", first.epoch, fault.message()));
    let told = told.collect::<Vec<_>>().join("; ");
    Err(match faults.as_slice() {
        [(_, only)] => only.clone(),
        _ if epochs.len() > 1 => {
            let epochs: Vec<String> = epochs.iter().map(u32::to_string).collect();
            invalid(format!(
                "the backups are of different generations (epochs {}), which do not fit together \
                 ({told})",
                epochs.join(" and ")
            ))
        }
        _ => invalid(format!(
            "the backups disagree about who holds shares, or about the chain code ({told})"
        )),
    })
}

/// Most sets of shares that are tried where nothing says which are right.
const MAX_TRIES: usize = 20_000;

/// The private key from backups of one generation, some of which may hold a wrong share; and those.
fn fit<C: Ciphersuite>(
    generation: &[BackupCandidate<'_>],
) -> Result<(Zeroizing<[u8; 32]>, Vec<RejectedBackup>), Fault> {
    let first = generation
        .first()
        .ok_or_else(|| invalid("there are no backups"))?;
    let needed = first.needed();
    let root = &first.backup.root;
    // The same file twice is one.
    let mut distinct: Vec<BackupCandidate<'_>> = Vec::new();
    for candidate in generation {
        let share = &candidate.backup.share;
        let known = |other: &BackupCandidate<'_>| {
            let other = &other.backup.share;
            other.index == share.index && *other.secret == *share.secret
        };
        if !distinct.iter().any(known) {
            distinct.push(*candidate);
        }
    }
    let holders: BTreeSet<u8> = distinct
        .iter()
        .map(|candidate| candidate.backup.share.index)
        .collect();
    if needed == 0 || holders.len() < needed {
        return Err(invalid(format!(
            "backups of {} nodes are too few: {needed} are needed",
            holders.len()
        )));
    }
    let give = |shares: &[BackupCandidate<'_>]| {
        let shares: Vec<&PlainShare> = shares.iter().map(|one| &one.backup.share).collect();
        interpolate::<C>(root, &shares)
    };
    let (good, secret) = shares_confirmed_by_peers::<C>(&distinct, needed, give)
        .or_else(|| {
            let mut tries = MAX_TRIES;
            try_all(&distinct, needed, &mut Vec::new(), &mut tries, &give)
        })
        .ok_or_else(|| {
            invalid(format!(
                "no {needed} of the backups give the key: some of their shares are wrong"
            ))
        })?;
    // A share is right when it gives the key together with right ones.
    let right = |candidate: &BackupCandidate<'_>| {
        let share = &candidate.backup.share;
        let same = |other: &&BackupCandidate<'_>| other.backup.share.index == share.index;
        if let Some(known) = good.iter().find(same) {
            return *known.backup.share.secret == *share.secret;
        }
        let mut with = good.clone();
        with.pop();
        with.push(*candidate);
        give(&with).is_ok()
    };
    let wrong = generation.iter().filter(|candidate| !right(candidate));
    let rejected = wrong.map(|wrong| RejectedBackup {
        place: wrong.place,
        why: "its share is wrong: it does not belong to the key. Its node may be hostile, or its \
              disk bad"
            .into(),
    });
    Ok((secret, rejected.collect()))
}

/// Shares that are as most others know them in public.
fn shares_confirmed_by_peers<'a, C: Ciphersuite>(
    candidates: &[BackupCandidate<'a>],
    needed: usize,
    give: impl Fn(&[BackupCandidate<'_>]) -> Result<Zeroizing<[u8; 32]>, Fault>,
) -> Option<(Vec<BackupCandidate<'a>>, Zeroizing<[u8; 32]>)> {
    let public = |share: &PlainShare| {
        let secret = SigningShare::<C>::deserialize(share.secret.as_slice()).ok()?;
        VerifyingShare::from(secret).serialize().ok()
    };
    let shown: Vec<(BackupCandidate<'a>, Vec<u8>)> = candidates
        .iter()
        .filter_map(|candidate| Some((*candidate, public(&candidate.backup.share)?)))
        .collect();
    let views: BTreeSet<_> = candidates
        .iter()
        .map(|candidate| &candidate.backup.share.verifying)
        .collect();
    views.into_iter().find_map(|view| {
        let mut fitting: BTreeMap<u8, BackupCandidate<'a>> = BTreeMap::new();
        for (candidate, public) in &shown {
            let index = candidate.backup.share.index;
            if view.get(&index) == Some(public) {
                fitting.insert(index, *candidate);
            }
        }
        let fitting: Vec<BackupCandidate<'a>> = fitting.into_values().take(needed).collect();
        if fitting.len() < needed {
            return None;
        }
        let secret = give(&fitting).ok()?;
        Some((fitting, secret))
    })
}

/// The first `needed` of the candidates that give the key, whichever they are.
fn try_all<'a>(
    rest: &[BackupCandidate<'a>],
    needed: usize,
    set: &mut Vec<BackupCandidate<'a>>,
    tries: &mut usize,
    give: &impl Fn(&[BackupCandidate<'_>]) -> Result<Zeroizing<[u8; 32]>, Fault>,
) -> Option<(Vec<BackupCandidate<'a>>, Zeroizing<[u8; 32]>)> {
    if set.len() == needed {
        *tries = tries.checked_sub(1)?;
        return give(set).ok().map(|secret| (set.clone(), secret));
    }
    let mut rest = rest;
    while let Some((next, after)) = rest.split_first() {
        if set.len().saturating_add(rest.len()) < needed || *tries == 0 {
            return None;
        }
        let index = next.backup.share.index;
        if set.iter().all(|other| other.backup.share.index != index) {
            set.push(*next);
            let found = try_all(after, needed, set, tries, give);
            if found.is_some() {
                return found;
            }
            set.pop();
        }
        rest = after;
    }
    None
}

fn interpolate<C: Ciphersuite>(
    root: &RootKey,
    shares: &[&PlainShare],
) -> Result<Zeroizing<[u8; 32]>, Fault> {
    let damaged = |_| invalid("a backup holds no share");
    let public = VerifyingKey::<C>::deserialize(&root.public_key).map_err(damaged)?;
    let threshold = u16::try_from(shares.len()).map_err(Fault::bug)?;
    let packages = shares
        .iter()
        .map(|share| {
            let secret = SigningShare::deserialize(share.secret.as_slice()).map_err(damaged)?;
            Ok(KeyPackage::new(
                Identifier::try_from(u16::from(share.index)).map_err(damaged)?,
                secret,
                VerifyingShare::from(secret),
                public,
                threshold,
            ))
        })
        .collect::<Result<Vec<KeyPackage<C>>, Fault>>()?;
    let key = reconstruct(&packages).map_err(|_| invalid("the backups do not fit together"))?;
    if VerifyingKey::from(&key) != public {
        return Err(invalid(
            "the backups do not give the key: one of them is wrong",
        ));
    }
    let serialized = Zeroizing::new(key.serialize());
    let mut secret = Zeroizing::new([0; 32]);
    if serialized.len() != secret.len() {
        return Err(Fault::bug("a private key is not of 32 bytes"));
    }
    secret.copy_from_slice(&serialized);
    Ok(secret)
}

impl RecoveredKey {
    /// The private key in hexadecimal: secp256k1, the scalar (32 bytes, big-endian), as wallets
    /// import it; Ed25519, the scalar (32 bytes, little-endian), for which no RFC 8032 seed exists.
    pub fn private_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(hex::encode(*self.secret))
    }

    /// secp256k1: the extended private key of BIP-32 (`xprv...`, depth 0), which wallets derive all
    /// children from. Ed25519 has none.
    pub fn xprv(&self) -> Option<Zeroizing<String>> {
        if self.root.curve != Curve::Secp256k1 {
            return None;
        }
        let mut bytes = Zeroizing::new(Vec::with_capacity(78));
        bytes.extend_from_slice(&XPRV);
        // Depth, fingerprint of the parent, number of the child: a root has none.
        bytes.extend_from_slice(&[0; 9]);
        bytes.extend_from_slice(&self.root.chain_code);
        bytes.push(0);
        bytes.extend_from_slice(self.secret.as_slice());
        Some(Zeroizing::new(
            bs58::encode(bytes.as_slice()).with_check().into_string(),
        ))
    }

    /// The private key at a path, as [`RootKey::child`] derives the public one.
    ///
    /// # Errors
    /// As [`RootKey::child`].
    pub fn child(&self, path: &KeyPath) -> Result<RecoveredChild, Fault> {
        let ChildKey { public_key, tweak } = self.root.child(path)?;
        let broken = || Fault::bug("a recovered key is not a scalar");
        let (secret, public) = match self.root.curve {
            Curve::Ed25519 => {
                let scalar = |bytes: [u8; 32]| {
                    Option::<EdScalar>::from(EdScalar::from_canonical_bytes(bytes))
                        .map(Zeroizing::new)
                        .ok_or_else(broken)
                };
                let child = Zeroizing::new(*scalar(*self.secret)? + *scalar(tweak)?);
                let public = (ED25519_BASEPOINT_TABLE * &*child).compress();
                (child.to_bytes(), public.to_bytes().to_vec())
            }
            Curve::Secp256k1 => {
                let scalar = |bytes: [u8; 32]| {
                    Option::<k256::Scalar>::from(k256::Scalar::from_repr(bytes.into()))
                        .map(Zeroizing::new)
                        .ok_or_else(broken)
                };
                let child = Zeroizing::new(*scalar(*self.secret)? + *scalar(tweak)?);
                let public = k256::ProjectivePoint::mul_by_generator(&child).to_affine();
                (
                    child.to_bytes().into(),
                    public.to_sec1_point(true).as_bytes().to_vec(),
                )
            }
        };
        if public != public_key {
            return Err(Fault::bug("a recovered key does not fit its public half"));
        }
        Ok(RecoveredChild {
            public_key,
            secret: Zeroizing::new(secret),
        })
    }
}

impl RecoveredChild {
    /// As [`RecoveredKey::private_hex`].
    pub fn private_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(hex::encode(*self.secret))
    }
}
