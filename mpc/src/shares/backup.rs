//! Backups of shares, encrypted with age to recipients whose identities are kept offline, and what
//! is done with them: the private key from a threshold of them ([`recover`]), or one node's share
//! back into its folder ([`restore`]).
//!
//! A backup holds the plain share and what it is a share of; never nonces, nor a scheme's state for
//! signing. Its plaintext is a tag, a version byte, then BCS.

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    path::Path,
    str::FromStr as _,
};

use age::{
    Decryptor, Encryptor,
    x25519::{Identity, Recipient},
};
use covault_core::{
    derive::{ChildKey, KeyPath, RootKey},
    fault::{Class, Fault},
    ids::{SessionId, VaultId},
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
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize as _, Zeroizing};

use super::{ShareRecord, ShareStore as _, age_file::AgeFiles};
use crate::{
    backend::{KeyShare, PlainShare},
    claims::Claims,
};

const TAG: &[u8] = b"covault-backup";
const VERSION: u8 = 1;
/// Backups are a few kilobytes.
const MAX_PLAIN: u64 = 1 << 20;
/// The version bytes of an extended private key (BIP-32, main network).
const XPRV: [u8; 4] = [0x04, 0x88, 0xad, 0xe4];

/// One node's share as a backup holds it. Never printed; zeroized on drop.
pub struct Backup {
    /// The vault.
    pub vault: VaultId,
    /// The scheme of the key.
    pub scheme: Scheme,
    /// Generation of the shares.
    pub epoch: u32,
    /// Shares needed.
    pub threshold: u16,
    /// Who held shares; a holder's index is its place in this list, counted from 1.
    pub holders: Vec<NodeId>,
    /// Whose share this is.
    pub node: NodeId,
    /// The root key.
    pub root: RootKey,
    session: SessionId,
    share: PlainShare,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    vault: VaultId,
    scheme: Scheme,
    epoch: u32,
    session: SessionId,
    threshold: u16,
    holders: Vec<NodeId>,
    node: NodeId,
    root: RootKey,
    share: Vec<u8>,
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.share.zeroize();
    }
}

fn invalid(sentence: impl Into<String>) -> Fault {
    Fault::new(Class::Invalid, sentence)
}

/// Reads recipients (`age1...`).
///
/// # Errors
/// [`Class::Invalid`] naming the one that is none.
pub fn recipients(lines: &[String]) -> Result<Vec<Recipient>, Fault> {
    lines
        .iter()
        .map(|line| {
            Recipient::from_str(line.trim())
                .map_err(|_| invalid(format!("{line} is not an age recipient (age1...)")))
        })
        .collect()
}

/// Reads an age identity file: lines of `AGE-SECRET-KEY-1...`, comments behind `#`.
///
/// # Errors
/// [`Class::Invalid`] when there is none, or a line is none.
pub fn identities(text: &str) -> Result<Vec<Identity>, Fault> {
    let mut identities = Vec::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // The line is a secret: its number is all that is said of it.
        let identity = Identity::from_str(line)
            .map_err(|_| invalid(format!("line {number} is not an age identity")))?;
        identities.push(identity);
    }
    if identities.is_empty() {
        return Err(invalid("there is no age identity (AGE-SECRET-KEY-1...)"));
    }
    Ok(identities)
}

/// A record's share, encrypted to the recipients.
pub(crate) fn export(
    record: &ShareRecord,
    share: &PlainShare,
    node: &NodeId,
    recipients: &[Recipient],
) -> Result<Vec<u8>, Fault> {
    let failed = |_| Fault::bug("a backup cannot be made");
    let stored = Stored {
        vault: record.vault,
        scheme: record.scheme,
        epoch: record.epoch,
        session: record.session,
        threshold: record.threshold,
        holders: record.holders.clone(),
        node: *node,
        root: record.key.root.clone(),
        share: share.encode()?.to_vec(),
    };
    let size = bcs::serialized_size(&stored).map_err(failed)?;
    let mut plain = Zeroizing::new(Vec::with_capacity(TAG.len() + 1 + size));
    plain.extend_from_slice(TAG);
    plain.push(VERSION);
    bcs::serialize_into(&mut *plain, &stored).map_err(failed)?;
    let encryptor = Encryptor::with_recipients(recipients.iter().map(|recipient| recipient as _))
        .map_err(Fault::bug)?;
    let mut sealed = Vec::new();
    let mut writer = encryptor.wrap_output(&mut sealed).map_err(Fault::bug)?;
    writer.write_all(&plain).map_err(Fault::bug)?;
    writer.finish().map_err(Fault::bug)?;
    Ok(sealed)
}

/// Opens a backup file with any of the identities.
///
/// # Errors
/// [`Class::Invalid`] when none fits, or the file is damaged.
pub fn open(sealed: &[u8], identities: &[Identity]) -> Result<Backup, Fault> {
    let damaged = || invalid("the backup is damaged, or not one of Covault");
    let mut reader = Decryptor::new(sealed)
        .map_err(|cause| damaged().caused_by(cause))?
        .decrypt(identities.iter().map(|identity| identity as _))
        .map_err(|cause| invalid("no identity opens the backup").caused_by(cause))?
        .take(MAX_PLAIN);
    // Room for all of it: a buffer that grows leaves copies behind.
    let mut plain = Zeroizing::new(Vec::with_capacity(sealed.len()));
    reader
        .read_to_end(&mut plain)
        .map_err(|cause| damaged().caused_by(cause))?;
    let (version, body) = plain
        .strip_prefix(TAG)
        .and_then(<[u8]>::split_first)
        .ok_or_else(damaged)?;
    if *version != VERSION {
        return Err(invalid(
            "the backup is of a version that this program does not know",
        ));
    }
    // The decoder's message could quote the content.
    let mut stored: Stored = bcs::from_bytes(body).map_err(|_| damaged())?;
    let root = stored.root.clone();
    let share = PlainShare::decode(&root, &stored.share).map_err(|_| damaged())?;
    let backup = Backup {
        vault: stored.vault,
        scheme: stored.scheme,
        epoch: stored.epoch,
        threshold: stored.threshold,
        holders: std::mem::take(&mut stored.holders),
        node: stored.node,
        root,
        session: stored.session,
        share,
    };
    let place = usize::from(backup.share.index).checked_sub(1);
    let holder = place.and_then(|place| backup.holders.get(place));
    if holder != Some(&backup.node) || backup.root.curve != backup.scheme.curve() {
        return Err(damaged());
    }
    Ok(backup)
}

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
/// [`Class::Invalid`] when they are too few, of different keys or generations, or do not give the
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
                let public = k256::ProjectivePoint::mul_by_generator(&*child).to_affine();
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

/// Puts a share back into the folder of the node `node`, which must not run. The share deals in the
/// next refresh and does not sign before it.
///
/// # Errors
/// [`Class::Invalid`] when it is another node's, or the folder cannot be used (a node that runs has
/// it), [`Class::Conflict`] when the folder has a share of this key.
pub fn restore(
    folder: &Path,
    passphrase: &SecretString,
    work_factor: u8,
    node: &NodeId,
    backup: &Backup,
) -> Result<(), Fault> {
    if backup.node != *node {
        return Err(invalid("the backup is of another node's share"));
    }
    let shares = AgeFiles::open(folder, passphrase, work_factor)?;
    // Locks the folder. Without shares it may be new: the one that is put back does not sign.
    let claims = Claims::open(&folder.join("claims.redb"), !shares.any()?)?;
    let known = shares.load_all()?;
    if known
        .iter()
        .any(|record| record.key.root.public_key == backup.root.public_key)
    {
        return Err(Fault::new(
            Class::Conflict,
            "the folder has a share of this key",
        ));
    }
    shares.save(&ShareRecord {
        vault: backup.vault,
        epoch: backup.epoch,
        scheme: backup.scheme,
        session: backup.session,
        threshold: backup.threshold,
        holders: backup.holders.clone(),
        order: None,
        restored: true,
        key: KeyShare {
            root: backup.root.clone(),
            secret: backup.share.encode()?,
        },
    })?;
    drop(claims);
    Ok(())
}
