//! Where a node keeps its shares.

pub mod age_file;
pub mod backup;

use covault_core::{
    derive::RootKey,
    fault::Fault,
    ids::{SessionId, VaultId},
    order::{Generation, NodeId},
    scheme::Scheme,
};
use serde::{Deserialize, Serialize};

use crate::backend::{KeyShare, SignerIndex};

/// The epoch of a share that was made by key generation.
pub const FIRST_EPOCH: u32 = 0;

/// Names a generation of the shares of a key: nonces are bound to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShareEpoch {
    /// Root public key.
    pub root: Vec<u8>,
    /// Generation of its shares.
    pub epoch: u32,
}

/// A share with what a node must know to use it. Never printed.
pub struct ShareRecord {
    /// The vault it belongs to.
    pub vault: VaultId,
    /// Generation of the vault's shares.
    pub epoch: u32,
    /// The scheme that made it, and signs with it.
    pub scheme: Scheme,
    /// The run that made it.
    pub session: SessionId,
    /// Signers needed.
    pub threshold: u16,
    /// Who holds shares; a holder's index is its place in this list, counted from 1.
    pub holders: Vec<NodeId>,
    /// The id of the reshare order that made it; none for key generation.
    pub order: Option<[u8; 32]>,
    /// The generations that it comes from.
    pub lineage: ShareLineage,
    /// Whether it was put back from a backup. Such a share deals in the next refresh, and does not
    /// sign before: what was signed and claimed after the backup is not known here. Its secret is
    /// the plain share ([`crate::backend::PlainShare::encode`]), not the backend's encoding.
    pub restored: bool,
    /// The share.
    pub key: KeyShare,
}

crate::secrets::secret!(ShareRecord);

/// The generations that a generation comes from, as its holder knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareLineage {
    /// Their ids ([`Generation::id`]), the last one's last.
    pub known: Vec<[u8; 32]>,
    /// The holder had a share of the last one, or its operator has permitted the change of it: it is
    /// not on the word of an orchestrator alone.
    pub sure: bool,
}

/// A share that a later generation has replaced. It signs nothing and is kept for recovery.
pub struct RetiredShare {
    /// The share.
    pub record: ShareRecord,
    /// When it was retired, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// It was in use, and not only prepared.
    pub was_in_use: bool,
}

crate::secrets::secret!(RetiredShare);

impl ShareRecord {
    /// The generation that it is of.
    pub fn generation(&self) -> Generation {
        Generation {
            epoch: self.epoch,
            threshold: self.threshold,
            holders: self.holders.clone(),
        }
    }

    /// A holder's index.
    pub fn index_of(&self, node: &NodeId) -> Option<SignerIndex> {
        let place = self.holders.iter().position(|holder| holder == node)?;
        SignerIndex::try_from(place.checked_add(1)?).ok()
    }
}

/// A place for shares. A share is pending until it is activated; the others are in use.
pub trait ShareStore: Send + Sync {
    /// Stores a share; on disk when it returns.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Conflict`] when there is one for this key and epoch
    /// already: shares are never overwritten.
    fn save(&self, record: &ShareRecord) -> Result<(), Fault>;

    /// Stores a share as pending; on disk when it returns.
    ///
    /// # Errors
    /// As [`ShareStore::save`].
    fn save_pending(&self, record: &ShareRecord) -> Result<(), Fault>;

    /// Whether there are any in use, readable or not.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] when nobody can tell.
    fn any(&self) -> Result<bool, Fault>;

    /// All shares in use. More than one of a key only when an activation was interrupted: the one of
    /// the highest epoch counts, and [`ShareStore::retire`] finishes the work.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] naming the one that cannot be read.
    fn load_all(&self) -> Result<Vec<ShareRecord>, Fault>;

    /// All pending shares.
    ///
    /// # Errors
    /// As [`ShareStore::load_all`].
    fn load_pending(&self) -> Result<Vec<ShareRecord>, Fault>;

    /// The share of a key and epoch that is in use, or pending.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] when there is none, or it cannot be read.
    fn load(
        &self,
        vault: VaultId,
        root: &RootKey,
        epoch: u32,
        pending: bool,
    ) -> Result<ShareRecord, Fault>;

    /// Takes the pending share of an epoch into use, in one step; on disk when it returns. Repeating
    /// it does nothing.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when the disk fails: nothing has changed then, or
    /// all.
    fn activate(&self, vault: VaultId, root: &RootKey, epoch: u32) -> Result<(), Fault>;

    /// Retires all shares of a key, in use and pending, whose epoch is below this one: on disk when
    /// it returns.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when the disk fails; some may be left.
    fn retire(&self, vault: VaultId, root: &RootKey, below: u32, now_ms: u64) -> Result<(), Fault>;

    /// How many shares of a key are retired.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] when nobody can tell.
    fn count_retired(&self, vault: VaultId, root: &RootKey) -> Result<usize, Fault>;

    /// Erases what was retired before this time, in milliseconds since the Unix epoch, but nothing of
    /// the keys to `keep`; how many.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when the disk fails; some may be left.
    fn erase_retired(&self, before_ms: u64, keep: &[(VaultId, RootKey)]) -> Result<usize, Fault>;
}
