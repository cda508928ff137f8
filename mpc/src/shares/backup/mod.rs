//! Backups of shares, encrypted with age to recipients whose identities are kept offline, and what
//! is done with them: the private key from a threshold of them ([`recover`]), or one node's share
//! back into its folder ([`restore`]).
//!
//! A backup holds the plain share and what it is a share of; never nonces, nor a scheme's state for
//! signing. Its plaintext is a tag, a version byte, then BCS.

mod recover;
#[cfg(test)]
mod tests;

use std::{
    io::{Read as _, Write as _},
    path::Path,
    str::FromStr as _,
};

use age::{
    Decryptor, Encryptor,
    x25519::{Identity, Recipient},
};
use covault_core::{
    derive::RootKey,
    fault::{Class, Fault},
    ids::{SessionId, VaultId},
    order::NodeId,
    scheme::Scheme,
};
pub use recover::{
    RecoveredChild, RecoveredKey, RecoveryReport, RejectedBackup, recover, recover_all,
};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize as _, Zeroizing};

use super::{RetiredShare, ShareLineage, ShareRecord, ShareStore as _, age_file::AgeShareStore};
use crate::{
    backend::{self, KeyShare, PlainShare},
    claims::Claims,
};

const TAG: &[u8] = b"covault-backup";
const VERSION: u8 = 1;
/// Backups are a few kilobytes.
const MAX_PLAIN: u64 = 1 << 20;
/// Recipients of one backup, at most: about 100 bytes of its header each.
const MAX_RECIPIENTS: usize = 64;
/// Where the header of an age file must have ended. age parses it from the beginning for each line:
/// a long one, of a hostile node, would keep us for hours.
const MAX_HEADER: usize = 16 << 10;
const DAMAGED: &str = "the backup is damaged, or not one of Covault";
/// Most bytes of a backup as a file: what it holds, recipients, and age's own.
pub const MAX_BACKUP: usize = (1 << 20) + (64 << 10);

/// Least bytes behind an age header: a nonce (16), a tag (16), and a share with what it is of.
const MIN_BODY: usize = 16 + 16 + 100;

/// One node's share as a backup holds it. Never printed; zeroized on drop.
pub struct DecryptedBackup {
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

crate::secrets::secret!(DecryptedBackup);

#[derive(Serialize, Deserialize)]
struct StoredBackup {
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

crate::secrets::secret_form!(StoredBackup);

impl Drop for StoredBackup {
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
/// [`Class::Invalid`] naming the invalid one, or when there are more than 64.
pub fn recipients(lines: &[String]) -> Result<Vec<Recipient>, Fault> {
    if lines.len() > MAX_RECIPIENTS {
        return Err(invalid(format!(
            "a backup has {MAX_RECIPIENTS} recipients at most"
        )));
    }
    lines
        .iter()
        .map(|line| {
            Recipient::from_str(line.trim())
                // Anything else is not repeated: it may be an identity by mistake.
                .map_err(|_| match line.starts_with("age1") {
                    true => invalid(format!("{line} is not an age recipient (age1...)")),
                    false => invalid("a line is not an age recipient (age1...)".to_owned()),
                })
        })
        .collect()
}

/// Reads an age identity file: lines of `AGE-SECRET-KEY-1...`, comments behind `#`.
///
/// # Errors
/// [`Class::Invalid`] when there is none, or a line is invalid.
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
    let stored = StoredBackup {
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

/// A retired share of the node `node` as a backup.
///
/// # Errors
/// [`Class::Invalid`] naming an invalid recipient.
pub fn of_retired(
    retired: &RetiredShare,
    node: &NodeId,
    recipients: &[String],
) -> Result<Vec<u8>, Fault> {
    let record = &retired.record;
    let share = plain(record)?;
    export(record, &share, node, &self::recipients(recipients)?)
}

/// The plain share in a stored record.
pub(crate) fn plain(record: &ShareRecord) -> Result<PlainShare, Fault> {
    if record.restored {
        return PlainShare::decode(&record.key.root, &record.key.secret);
    }
    backend::of(record.scheme)?.plain(&record.key)
}

/// Whether a node's answer can be a backup: an age file for so many recipients, with something in it.
/// For whom it is, and what is in it, only an identity can tell.
///
/// # Errors
/// [`Class::Invalid`] when it is none.
pub fn check_sealed(sealed: &[u8], recipients: usize) -> Result<(), Fault> {
    let none = |why: &str| invalid(format!("what it sent is not a backup: {why}"));
    if sealed.len() > MAX_BACKUP {
        return Err(none("it is too large"));
    }
    let parsed =
        Decryptor::new(sealed).map_err(|cause| none("it is not an age file").caused_by(cause));
    if parsed?.is_scrypt() {
        return Err(none("it is encrypted to a passphrase"));
    }
    // The header ends with the line of its MAC; then come a nonce and what is encrypted.
    let mut stanzas = 0_usize;
    let mut body = 0_usize;
    for line in sealed.split_inclusive(|byte| *byte == b'\n') {
        body = body.saturating_add(line.len());
        if line.starts_with(b"-> X25519 ") {
            stanzas = stanzas.saturating_add(1);
        }
        if line.starts_with(b"--- ") {
            break;
        }
    }
    if stanzas != recipients {
        return Err(none(&format!(
            "it is encrypted to {stanzas} recipients and not to {recipients}"
        )));
    }
    if sealed.len().saturating_sub(body) < MIN_BODY {
        return Err(none("it is truncated"));
    }
    Ok(())
}

/// Opens a backup file with any of the identities.
///
/// # Errors
/// [`Class::Invalid`] when none fits, or the file is damaged.
pub fn open(sealed: &[u8], identities: &[Identity]) -> Result<DecryptedBackup, Fault> {
    let damaged = || invalid(DAMAGED);
    let mut header = sealed.get(..MAX_HEADER).unwrap_or(sealed).windows(4);
    if !header.any(|window| window == b"\n---") {
        return Err(damaged());
    }
    let mut reader = Decryptor::new_buffered(sealed)
        .map_err(|cause| damaged().caused_by(cause))?
        .decrypt(identities.iter().map(|identity| identity as _))
        .map_err(|cause| invalid("no identity opens the backup").caused_by(cause))?
        .take(MAX_PLAIN);
    // Room for all of it: a buffer that grows leaves copies behind.
    let mut plain = Zeroizing::new(Vec::with_capacity(sealed.len()));
    reader
        .read_to_end(&mut plain)
        .map_err(|cause| damaged().caused_by(cause))?;
    read(&plain)
}

/// Reads the plaintext of a backup.
pub(crate) fn read(plain: &[u8]) -> Result<DecryptedBackup, Fault> {
    let damaged = || invalid(DAMAGED);
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
    let mut stored: StoredBackup = bcs::from_bytes(body).map_err(|_| damaged())?;
    let root = stored.root.clone();
    let share = PlainShare::decode(&root, &stored.share).map_err(|_| damaged())?;
    let backup = DecryptedBackup {
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

/// Why a share of this scheme cannot be put back into a node.
pub fn unrestorable(scheme: Scheme) -> String {
    format!(
        "a {0} share is not put back: it could never sign, because a restored share signs after a \
         refresh only, and {0} has none. While enough other nodes hold theirs, they sign; when they \
         do not, `covault recover` gives the key",
        scheme.name()
    )
}

/// Puts a share back into the folder of the node `node`, which must not run. The share deals in the
/// next refresh and does not sign before it.
///
/// # Errors
/// [`Class::Invalid`] when it is another node's, or the folder cannot be used (a node that runs has
/// it), [`Class::WrongState`] when its scheme has no refresh, [`Class::Conflict`] when the folder has
/// a share of this key.
pub fn restore(
    folder: &Path,
    passphrase: &SecretString,
    work_factor: u8,
    node: &NodeId,
    backup: &DecryptedBackup,
) -> Result<(), Fault> {
    if backup.node != *node {
        return Err(invalid("the backup is of another node's share"));
    }
    if !backup.scheme.reshares() {
        return Err(Fault::new(Class::WrongState, unrestorable(backup.scheme)));
    }
    let shares = AgeShareStore::open(folder, passphrase, work_factor)?;
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
    // Locks the folder, and burns what was made ahead. Without shares it may be new: the one that is
    // put back does not sign.
    let claims = Claims::acquire_lock(&folder.join("claims.redb"), !shares.any()?)?;
    shares.save(&ShareRecord {
        vault: backup.vault,
        epoch: backup.epoch,
        scheme: backup.scheme,
        session: backup.session,
        threshold: backup.threshold,
        holders: backup.holders.clone(),
        order: None,
        lineage: ShareLineage::default(),
        restored: true,
        key: KeyShare {
            root: backup.root.clone(),
            secret: backup.share.encode()?,
        },
    })?;
    drop(claims);
    Ok(())
}
