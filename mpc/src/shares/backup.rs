//! Backups of shares, encrypted with age to recipients whose identities are kept offline, and what
//! is done with them: the private key from a threshold of them ([`recover`]), or one node's share
//! back into its folder ([`restore`]).

use std::path::Path;

use age::x25519::{Identity, Recipient};
use covault_core::{
    derive::{KeyPath, RootKey},
    fault::Fault,
    ids::VaultId,
    order::NodeId,
    scheme::Scheme,
};
use secrecy::SecretString;
use zeroize::Zeroizing;

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
}

/// A private root key. Never printed by itself; zeroized on drop.
pub struct RecoveredKey {
    /// Its public half.
    pub root: RootKey,
}

/// Reads recipients (`age1...`).
///
/// # Errors
/// [`covault_core::fault::Class::Invalid`] naming the one that is none.
pub fn recipients(_lines: &[String]) -> Result<Vec<Recipient>, Fault> {
    Err(Fault::bug("not built"))
}

/// Reads an age identity file: lines of `AGE-SECRET-KEY-1...`, comments behind `#`.
///
/// # Errors
/// [`covault_core::fault::Class::Invalid`] when there is none, or a line is none.
pub fn identities(_text: &str) -> Result<Vec<Identity>, Fault> {
    Err(Fault::bug("not built"))
}

/// Opens a backup file with any of the identities.
///
/// # Errors
/// [`covault_core::fault::Class::Invalid`] when none fits, or the file is damaged.
pub fn open(_sealed: &[u8], _identities: &[Identity]) -> Result<Backup, Fault> {
    Err(Fault::bug("not built"))
}

/// The private root key, from the backups of `threshold` nodes (more are used to check).
///
/// # Errors
/// [`covault_core::fault::Class::Invalid`] when they are too few, of different keys or generations,
/// or do not give the key.
pub fn recover(_backups: &[Backup]) -> Result<RecoveredKey, Fault> {
    Err(Fault::bug("not built"))
}

impl RecoveredKey {
    /// The private key in hexadecimal: secp256k1, the scalar (32 bytes, big-endian), as wallets
    /// import it; Ed25519, the scalar (32 bytes, little-endian), for which no RFC 8032 seed exists.
    pub fn private_hex(&self) -> Zeroizing<String> {
        Zeroizing::default()
    }

    /// secp256k1: the extended private key of BIP-32 (`xprv...`, depth 0), which wallets derive all
    /// children from. Ed25519 has none.
    pub fn xprv(&self) -> Option<Zeroizing<String>> {
        None
    }

    /// The private key of a child: its path, as [`RootKey::child`] derives it.
    ///
    /// # Errors
    /// As [`RootKey::child`].
    pub fn child(&self, _path: &KeyPath) -> Result<RecoveredKey, Fault> {
        Err(Fault::bug("not built"))
    }
}

/// Puts a share back into the folder of the node `node`, which must not run. The share deals in the
/// next refresh and does not sign before it.
///
/// # Errors
/// [`covault_core::fault::Class::Invalid`] when it is another node's, or the folder cannot be used,
/// [`covault_core::fault::Class::Conflict`] when the folder has a share of this key.
pub fn restore(
    _folder: &Path,
    _passphrase: &SecretString,
    _work_factor: u8,
    _node: &NodeId,
    _backup: &Backup,
) -> Result<(), Fault> {
    Err(Fault::bug("not built"))
}
