//! What a reshare order changes, as an operator permits it, and generations that were proven.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{Generation, NodeId, ReshareOrder, ReshareProof, canonical};
use crate::{fault::Fault, ids::VaultId, scheme::Scheme};

/// Hexadecimal digits of a change's id that operators type.
const CODE: usize = 32;

/// A change of who holds the shares of a key, or of how many are needed. A run that fails is
/// repeated with another session and epoch; the change stays the same until it is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReshareChange {
    /// The vault whose key it is.
    pub vault: VaultId,
    /// The scheme of the key.
    pub scheme: Scheme,
    /// The root public key.
    pub root_public_key: Vec<u8>,
    /// The present generation.
    pub old: Generation,
    /// Signers needed afterwards.
    pub threshold: u16,
    /// Share holders afterwards.
    pub holders: Vec<NodeId>,
}

impl ReshareChange {
    /// SHA-256 of the canonical bytes: names the change. It binds the present epoch, so a permit is void once the
    /// change is made.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when a field cannot be serialized.
    pub fn id(&self) -> Result<[u8; 32], Fault> {
        let Self {
            vault,
            scheme,
            root_public_key,
            old,
            threshold,
            holders,
        } = self;
        let fields = (vault, scheme, root_public_key, old, threshold, holders);
        let bytes = canonical("covault/reshare-change", &fields)?;
        Ok(Sha256::digest(bytes).into())
    }

    /// The beginning of the id, as operators type it.
    ///
    /// # Errors
    /// As [`ReshareChange::id`].
    pub fn code(&self) -> Result<String, Fault> {
        let mut code = hex::encode(self.id()?);
        code.truncate(CODE);
        Ok(code)
    }
}

impl Generation {
    /// Whether so many of the same nodes are needed, in whatever order they are listed.
    pub fn is_held_as(&self, threshold: u16, holders: &[NodeId]) -> bool {
        self.threshold == threshold
            && self.holders.len() == holders.len()
            && self.holders.iter().all(|node| holders.contains(node))
    }

    /// SHA-256 of the canonical bytes: names the generation among those of its key.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when a field cannot be serialized.
    pub fn id(&self) -> Result<[u8; 32], Fault> {
        let Self {
            epoch,
            threshold,
            holders,
        } = self;
        let bytes = canonical("covault/generation", &(epoch, threshold, holders))?;
        Ok(Sha256::digest(bytes).into())
    }
}

impl ReshareOrder {
    /// What the order changes, whatever its session and epoch.
    pub fn change(&self) -> ReshareChange {
        ReshareChange {
            vault: self.vault,
            scheme: self.scheme,
            root_public_key: self.root_public_key.clone(),
            old: self.old.clone(),
            threshold: self.new.threshold,
            holders: self.new.holders.clone(),
        }
    }

    /// Whether it is for other holders than the generation that it names as old, or for another
    /// threshold.
    pub fn changes(&self) -> bool {
        !self.old.is_held_as(self.new.threshold, &self.new.holders)
    }
}

/// A generation that was made, and the proof of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvenGeneration {
    /// The run that made it.
    pub order: ReshareOrder,
    /// The statements of its parties.
    pub proof: ReshareProof,
}

/// The outcome of a reshare order that nodes were asked to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReshareOutcome {
    /// The new generation is on the disks of its holders.
    Made(ReshareProof),
    /// Nothing was made: the nodes know of what came later.
    Behind(LaterGenerations),
}

/// What nodes know of a key's generations and the order did not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaterGenerations {
    /// The generations that follow the order's old one up to that in use, oldest first. Each is proven.
    pub proven: Vec<ProvenGeneration>,
    /// The highest epoch that was given to a run: the next one is above it.
    pub epoch: u32,
    /// How a node has refused.
    pub reason: Fault,
}
