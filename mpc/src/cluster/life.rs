//! The life of a key, as the orchestrator asks for it: new generations of shares, and backups.

use covault_core::{
    fault::Fault,
    order::{BackupOrder, NodeId, ReshareOrder, ReshareProof},
};

use super::Cluster;

impl Cluster {
    /// Makes a new generation of shares: every new holder stores its share, and says so with a
    /// signed statement. The old shares go on signing until [`Cluster::activate`]. Repeating an
    /// order that has succeeded gives the same proof. All of [`ReshareOrder::parties`] must live;
    /// they are waited for until the order expires.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when nodes did not answer before the order
    /// expired (the public sentence names them), [`covault_core::fault::Class::Peer`] when some
    /// misbehaved, [`covault_core::fault::Class::Invalid`] when nodes refused. The next attempt
    /// needs a new session and a new epoch.
    pub async fn reshare(&self, _order: &ReshareOrder) -> Result<ReshareProof, Fault> {
        Err(Fault::bug("not built"))
    }

    /// Has the new shares taken into use and the old ones erased. Ok when every new holder and
    /// every old holder that lives has confirmed. May be repeated for ever, and must be, until it
    /// is Ok: the order's expiry does not matter any more.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] naming who has not confirmed yet,
    /// [`covault_core::fault::Class::Invalid`] when a node refused.
    pub async fn activate(
        &self,
        _order: &ReshareOrder,
        _proof: &ReshareProof,
    ) -> Result<(), Fault> {
        Err(Fault::bug("not built"))
    }

    /// Asks holders for their shares, encrypted with age to the order's recipients. Gives each
    /// holder's backup (see [`crate::shares::backup`]) or why there is none: not live, or its
    /// configuration does not name the recipients.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Bug`] when the order cannot be sent at all.
    pub async fn backup(
        &self,
        _order: &BackupOrder,
    ) -> Result<Vec<(NodeId, Result<Vec<u8>, Fault>)>, Fault> {
        Err(Fault::bug("not built"))
    }
}
