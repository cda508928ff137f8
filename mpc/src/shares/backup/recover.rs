//! The private key, from a threshold of backups and nothing else.

use std::collections::BTreeSet;

use covault_core::{
    derive::{ChildKey, KeyPath, RootKey},
    fault::Fault,
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

use super::{Backup, invalid};
use crate::backend::PlainShare;

/// The version bytes of an extended private key (BIP-32, main network).
const XPRV: [u8; 4] = [0x04, 0x88, 0xad, 0xe4];

/// A private root key. Never printed by itself; zeroized on drop.
pub struct RecoveredKey {
    /// Its public half.
    pub root: RootKey,
    secret: Zeroizing<[u8; 32]>,
}

/// The private key of a wallet. Never printed by itself; zeroized on drop.
pub struct RecoveredChild {
    /// Its public half: 33 bytes (secp256k1) or 32 bytes (Ed25519).
    pub public_key: Vec<u8>,
    secret: Zeroizing<[u8; 32]>,
}

/// The private root key, from the backups of `threshold` nodes; more are not looked at.
///
/// # Errors
/// [`covault_core::fault::Class::Invalid`] when they are too few, of different keys or generations, or do not give the
/// key.
pub fn recover(backups: &[Backup]) -> Result<RecoveredKey, Fault> {
    let first = backups
        .first()
        .ok_or_else(|| invalid("there are no backups"))?;
    for other in backups {
        if other.vault != first.vault || other.root != first.root || other.scheme != first.scheme {
            return Err(invalid("the backups are of different keys"));
        }
        if other.epoch != first.epoch {
            return Err(invalid(format!(
                "the backups are of different generations (epochs {} and {}), which do not fit \
                 together",
                first.epoch, other.epoch
            )));
        }
        if other.threshold != first.threshold || other.holders != first.holders {
            return Err(invalid("the backups disagree about who holds shares"));
        }
    }
    let distinct: BTreeSet<u8> = backups.iter().map(|backup| backup.share.index).collect();
    if distinct.len() != backups.len() {
        return Err(invalid("two backups are of the same node"));
    }
    let needed = usize::from(first.threshold);
    if backups.len() < needed {
        return Err(invalid(format!(
            "{} backups are too few: {needed} are needed",
            backups.len()
        )));
    }
    let shares: Vec<&PlainShare> = backups
        .iter()
        .take(needed)
        .map(|backup| &backup.share)
        .collect();
    let secret = match first.scheme.curve() {
        Curve::Ed25519 => interpolate::<Ed25519Sha512>(&first.root, &shares),
        Curve::Secp256k1 => interpolate::<Secp256K1Sha256>(&first.root, &shares),
    }?;
    Ok(RecoveredKey {
        root: first.root.clone(),
        secret,
    })
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
