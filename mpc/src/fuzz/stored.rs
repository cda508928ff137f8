//! Targets for what nodes and operators keep in files, as a thief of the disk may have left it: share
//! files, backups, nonces made ahead, the policy.

use std::{str::FromStr as _, sync::OnceLock};

use covault_core::{
    derive::KeyPath,
    ids::{SessionId, VaultId},
    order::NodeId,
    scheme::Scheme,
};

use super::{
    CounterEntropy, Finding, finding,
    sessions::{FuzzInput, FuzzKey, key},
};
use crate::{
    backend::{self, KeyShare, PlainShare, SignerIndex},
    policy::Policy,
    preprocess::NonceSealer,
    shares::ShareEpoch,
    shares::{
        ShareRecord, age_file,
        backup::{self, DecryptedBackup},
    },
};

/// Everybody knows it: of this target only.
const IDENTITY: &str = "AGE-SECRET-KEY-1QQQSYQCYQ5RQWZQFPG9SCRGWPUGPZYSNZS23V9CCRYDPK8QARC0SWRYDWG";
const NONCE: u64 = 7;
const COMMITMENTS: &[u8] = b"commitments";

/// One step: what it is called in the first byte of an input is its place.
type FuzzStep = fn(&[u8]) -> Result<(), Finding>;
const STEPS: [FuzzStep; 10] = [
    share_file,
    |body| share(Scheme::FrostEd25519, body),
    |body| share(Scheme::Dkls23, body),
    |body| share(Scheme::Cggmp24, body),
    plain_share,
    backup_plain,
    backup_file,
    nonce,
    identities,
    primes,
];

/// Decodes what lies in files; the first byte chooses what it is.
///
/// # Errors
/// What should not have happened.
pub fn stored(data: &[u8]) -> Result<(), Finding> {
    let Some((which, body)) = data.split_first() else {
        return Ok(());
    };
    let mut steps = STEPS.iter().cycle();
    steps
        .nth(usize::from(*which))
        .map_or(Ok(()), |step| step(body))
}

/// Reads a policy.
///
/// # Errors
/// What should not have happened.
pub fn policy(data: &[u8]) -> Result<(), Finding> {
    let Ok(text) = std::str::from_utf8(data) else {
        return Ok(());
    };
    match Policy::parse(text) {
        Err(fault) if fault.message().is_empty() => finding("a refusal says nothing"),
        _ => Ok(()),
    }
}

/// The plaintext of a share file, without its version.
fn share_file(body: &[u8]) -> Result<(), Finding> {
    match age_file::reencode(body) {
        Some(bytes) if bytes != body => finding("a share reads back differently"),
        _ => Ok(()),
    }
}

/// A backend's own encoding of a share.
fn share(scheme: Scheme, body: &[u8]) -> Result<(), Finding> {
    let Ok(backend) = backend::of(scheme) else {
        return Ok(());
    };
    let root = match scheme {
        // Its share names the key; any other is refused after all else.
        Scheme::Cggmp24 => key(Scheme::Dkls23)?.root.clone(),
        _ => key(scheme)?.root.clone(),
    };
    let share = KeyShare {
        root,
        secret: body.to_vec().into(),
    };
    drop((backend.open(&share), backend.plain(&share)));
    Ok(())
}

fn plain_share(body: &[u8]) -> Result<(), Finding> {
    let key = key(Scheme::FrostEd25519)?;
    let Ok(share) = PlainShare::decode(&key.root, body) else {
        return Ok(());
    };
    match share.encode() {
        Ok(again) if again.as_slice() == body => Ok(()),
        _ => finding("a plain share reads back differently"),
    }
}

/// What an operator does with a backup: the private key, and a child of it.
fn recover(backup: DecryptedBackup) -> Result<(), Finding> {
    if let Ok(key) = backup::recover(&[backup]) {
        drop((key.private_hex(), key.xprv()));
        let path = KeyPath::new(vec![0, 1]).map_err(|fault| format!("{fault:?}"))?;
        if let Err(fault) = key.child(&path) {
            return finding(format_args!("a recovered key has no children: {fault:?}"));
        }
    }
    Ok(())
}

fn backup_plain(body: &[u8]) -> Result<(), Finding> {
    backup::read(body).map_or(Ok(()), recover)
}

/// The age envelope around it.
fn backup_file(body: &[u8]) -> Result<(), Finding> {
    let identity = backup::identities(IDENTITY).map_err(|fault| format!("{fault:?}"))?;
    backup::open(body, &identity).map_or(Ok(()), recover)
}

/// A sealed nonce beside its row in the claims file.
fn nonce(body: &[u8]) -> Result<(), Finding> {
    static SEALED: OnceLock<Option<(NonceSealer, Vec<u8>)>> = OnceLock::new();
    let of = ShareEpoch {
        root: vec![5; 32],
        epoch: 1,
    };
    let made = SEALED.get_or_init(|| {
        let sealer = NonceSealer::new(b"keyring")?;
        let sealed = sealer.seal(&of, NONCE, COMMITMENTS, b"a nonce", &CounterEntropy::new(9))?;
        Some((sealer, sealed))
    });
    let (sealer, sealed) = made.as_ref().ok_or("a nonce cannot be sealed")?;
    let opens = sealer.open(&of, NONCE, COMMITMENTS, body).is_some();
    if opens && body != sealed {
        return finding("a nonce opens that nobody sealed");
    }
    Ok(())
}

fn identities(body: &[u8]) -> Result<(), Finding> {
    let Ok(text) = std::str::from_utf8(body) else {
        return Ok(());
    };
    drop(backup::identities(text));
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    drop(backup::recipients(&lines));
    Ok(())
}

#[cfg_attr(not(feature = "cggmp24"), allow(unused_variables))]
fn primes(body: &[u8]) -> Result<(), Finding> {
    #[cfg(feature = "cggmp24")]
    super::cggmp24::primes(body);
    Ok(())
}

fn record(scheme: Scheme, key: &FuzzKey, share: &KeyShare) -> ShareRecord {
    ShareRecord {
        vault: VaultId::from_bytes([1; 16]),
        epoch: 1,
        scheme,
        session: SessionId::from_bytes([2; 16]),
        threshold: 2,
        holders: vec![NodeId([1; 32]), NodeId([2; 32])],
        order: Some([4; 32]),
        lineage: crate::shares::ShareLineage {
            known: vec![[5; 32]],
            sure: true,
        },
        restored: false,
        key: KeyShare {
            root: key.root.clone(),
            secret: share.secret.clone(),
        },
    }
}

fn samples_of(scheme: Scheme, step: u8) -> Result<Vec<FuzzInput>, Finding> {
    let key = key(scheme)?;
    let failed = |fault| format!("{fault:?}");
    let first: SignerIndex = 1;
    let share = key.shares.get(&first).ok_or("no share")?;
    let backend = backend::of(scheme).map_err(failed)?;
    let plain = backend.plain(share).map_err(failed)?;
    let record = record(scheme, &key, share);
    let file = age_file::plaintext(&record).ok_or("a share cannot be encoded")?;
    let identity = age::x25519::Identity::from_str(IDENTITY).map_err(str::to_owned)?;
    let holder = NodeId([1; 32]);
    let sealed = backup::export(&record, &plain, &holder, &[identity.to_public()]);
    let sealed = sealed.map_err(failed)?;
    let backup = age::decrypt(&identity, &sealed).map_err(|error| error.to_string())?;
    let encoded = plain.encode().map_err(failed)?;
    let bodies = [
        (0, file.as_slice()),
        (step, share.secret.as_slice()),
        (4, encoded.as_slice()),
        (5, backup.as_slice()),
        (6, sealed.as_slice()),
    ];
    Ok(bodies.map(|(step, body)| [&[step], body].concat()).to_vec())
}

/// Files as the honest write them, to begin with.
///
/// # Errors
/// What should not have happened.
pub fn stored_samples() -> Result<Vec<FuzzInput>, Finding> {
    let mut samples = samples_of(Scheme::FrostEd25519, 1)?;
    samples.extend(samples_of(Scheme::Dkls23, 2)?);
    samples.push([&[8], IDENTITY.as_bytes()].concat());
    samples.push([&[7, 1][..], &[0; 60]].concat());
    Ok(samples)
}
