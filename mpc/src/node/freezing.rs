//! What the node's operator has frozen: checked before each step of a signature, and announced.

use covault_core::{fault::Fault, ids::VaultId};

use super::Node;
use crate::{
    freeze::Frozen,
    message::{HaltReason, MAX_FROZEN},
};

impl Node {
    /// Refuses to sign for a vault that is frozen on this node, or where that cannot be told.
    pub(super) fn check_thawed(&self, vault: VaultId) -> Result<(), Fault> {
        if self.freezes.is_frozen(vault)? {
            let sentence = "the operator of this node has frozen the vault: it signs nothing until it is thawed";
            return Err(Fault::unavailable(sentence));
        }
        Ok(())
    }

    /// Looks whether something was frozen or thawed, and tells others at once.
    pub(super) fn look_for_freezes(&self) {
        let now = self
            .freezes
            .list()
            .inspect_err(|fault| tracing::debug!(?fault, "the freeze files cannot be read"))
            .ok();
        let mut frozen = self.frozen.lock();
        if *frozen == now {
            return;
        }
        match &now {
            Some(Frozen { all, vaults }) => {
                tracing::warn!(node = %self.name, all, ?vaults, "the freeze state of this node has changed");
            }
            None => {
                tracing::error!(node = %self.name, "signing nothing: the freeze files cannot be read");
            }
        }
        *frozen = now;
        drop(frozen);
        self.announce(false);
    }

    /// The vaults that it announces as frozen, and why it does not sign.
    pub(super) fn announced_frozen(
        &self,
        mut halted: Vec<HaltReason>,
    ) -> (Vec<VaultId>, Vec<HaltReason>) {
        let frozen = self.frozen.lock();
        let (all, vaults) = match &*frozen {
            Some(frozen) => (frozen.all, frozen.vaults.as_slice()),
            None => (true, [].as_slice()),
        };
        if all {
            halted.push(HaltReason::Frozen);
        }
        (vaults.iter().take(MAX_FROZEN).copied().collect(), halted)
    }
}
