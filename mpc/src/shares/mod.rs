//! Where a node keeps its shares.

pub mod age_file;
pub mod backup;

use covault_core::{
    fault::Fault,
    ids::{SessionId, VaultId},
    order::NodeId,
    scheme::Scheme,
};

use crate::backend::{Index, KeyShare};

/// The epoch of a share that was made by key generation.
pub const FIRST_EPOCH: u32 = 0;

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
    /// The share.
    pub key: KeyShare,
}

impl ShareRecord {
    /// A holder's index.
    pub fn index_of(&self, node: &NodeId) -> Option<Index> {
        let place = self.holders.iter().position(|holder| holder == node)?;
        Index::try_from(place.checked_add(1)?).ok()
    }
}

/// A place for shares.
pub trait ShareStore: Send + Sync {
    /// Stores a share; on disk when it returns.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Conflict`] when there is one for this key and epoch
    /// already: shares are never overwritten.
    fn save(&self, record: &ShareRecord) -> Result<(), Fault>;

    /// Whether there are any, readable or not.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] when nobody can tell.
    fn any(&self) -> Result<bool, Fault>;

    /// All shares.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] naming the one that cannot be read.
    fn load_all(&self) -> Result<Vec<ShareRecord>, Fault>;
}
