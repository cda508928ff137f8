//! What operators do to a vault, shown as requests: it is made, its root keys are made and backed up, nodes get shares of
//! them, its rule changes. The command line makes these requests; they carry nothing that is signed, so nobody executes,
//! approves or rejects them.
//!
//! How one stands is read from the vault itself, as far as that says it: two rows that say the same could differ.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{
    ids::{DerivedFrom, RequestId, VaultId},
    order::NodeId,
    schema::wire::{
        self,
        signing_request::{Source, Status, Type, source},
    },
    signature::Curve,
    wallet::{
        generation::{LiveKey, ReshareState},
        vault::{KeyState, Vault},
    },
};

/// What ids of requests are derived with that can be found again from what they are about.
const ID_TAG: &[u8] = b"covault/management-request/v1";
/// Why a node got no share.
const NOT_GRANTED: &str = "the reshare ended without giving this node a share";

/// A request of an operator about a vault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagementRequest {
    /// The request.
    pub id: RequestId,
    /// The vault that it is about.
    pub vault: VaultId,
    /// What was asked for.
    pub kind: ManagementKind,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// How it ended, where the vault does not say it.
    pub outcome: Option<ManagementOutcome>,
}

/// What an operator asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ManagementKind {
    /// The vault. With the numbers and nodes of that time.
    VaultCreation {
        /// Signers needed.
        threshold: u16,
        /// Share holders.
        signers: Vec<NodeId>,
    },
    /// The root key of a curve.
    RootKeyGeneration(Curve),
    /// Another rule of approval.
    VaultSettingUpdate,
    /// The shares of its root keys, encrypted to be kept offline.
    RootKeyBackup,
    /// A share of the root key of a curve for a node that has none.
    KeyAccessGrant {
        /// The key's curve.
        curve: Curve,
        /// The node.
        node: NodeId,
        /// The generation of shares at that time.
        epoch: u32,
    },
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ManagementOutcome {
    /// It is done.
    Succeeded,
    /// It was not done; why.
    Failed(String),
}

impl ManagementRequest {
    fn new(id: RequestId, vault: VaultId, kind: ManagementKind, now_ms: u64) -> Self {
        Self {
            id,
            vault,
            kind,
            created_at_ms: now_ms,
            outcome: None,
        }
    }

    /// One that is over.
    pub fn over(
        id: RequestId,
        vault: VaultId,
        kind: ManagementKind,
        now_ms: u64,
        outcome: ManagementOutcome,
    ) -> Self {
        Self {
            outcome: Some(outcome),
            ..Self::new(id, vault, kind, now_ms)
        }
    }

    /// Those that come with a new vault: itself, and its root keys.
    pub fn of_new(vault: &Vault) -> Vec<Self> {
        let creation = ManagementKind::VaultCreation {
            threshold: vault.threshold,
            signers: vault.signers.clone(),
        };
        let keys = vault.keys.iter().map(|key| key.scheme.curve());
        let keys = keys.map(ManagementKind::RootKeyGeneration);
        std::iter::once(creation)
            .chain(keys)
            .map(|kind| Self::new(id_of(vault.id, &kind), vault.id, kind, vault.created_at_ms))
            .collect()
    }

    /// What a change of a vault begins, and what it ends well, as rows to be written. A row of the same id that is there
    /// keeps its time of creation.
    pub fn changed(before: &Vault, after: &Vault, now_ms: u64) -> Vec<Self> {
        let mut rows = Vec::new();
        for key in &after.keys {
            let curve = key.scheme.curve();
            let (Some(old), Some(new)) = (before.live(curve), after.live(curve)) else {
                continue;
            };
            let epoch = old.generation.epoch;
            let strangers = |nodes: &[NodeId]| {
                nodes
                    .iter()
                    .filter(|node| !old.holds(node))
                    .copied()
                    .collect()
            };
            let (wanted, granted): (Vec<NodeId>, Vec<NodeId>) =
                if new.generation.epoch != old.generation.epoch {
                    (Vec::new(), strangers(&new.generation.holders))
                } else if old.target().is_none() {
                    let target = new.target().unwrap_or_default();
                    (strangers(target), Vec::new())
                } else {
                    (Vec::new(), Vec::new())
                };
            let row = |node: NodeId, outcome| {
                let kind = ManagementKind::KeyAccessGrant { curve, node, epoch };
                let id = id_of(after.id, &kind);
                Self {
                    outcome,
                    ..Self::new(id, after.id, kind, now_ms)
                }
            };
            rows.extend(wanted.into_iter().map(|node| row(node, None)));
            let done = Some(ManagementOutcome::Succeeded);
            rows.extend(granted.into_iter().map(|node| row(node, done.clone())));
        }
        rows
    }

    /// How it stands; `None` while it is in progress.
    fn outcome_in(&self, vault: &Vault) -> Option<ManagementOutcome> {
        if self.outcome.is_some() {
            return self.outcome.clone();
        }
        match &self.kind {
            // Its row was written with the vault.
            ManagementKind::VaultCreation { .. } => Some(ManagementOutcome::Succeeded),
            ManagementKind::RootKeyGeneration(curve) => {
                let key = vault.keys.iter().find(|key| key.scheme.curve() == *curve)?;
                match &key.state {
                    KeyState::Wanted | KeyState::Generating(_) => None,
                    KeyState::Ready(_) => Some(ManagementOutcome::Succeeded),
                    KeyState::Failed(reason) => Some(ManagementOutcome::Failed(reason.clone())),
                }
            }
            ManagementKind::KeyAccessGrant { curve, node, epoch } => {
                let live = vault.live(*curve)?;
                let is_wanted = live.target().is_some_and(|target| target.contains(node));
                if live.generation.epoch == *epoch && is_wanted {
                    return match &live.reshare {
                        ReshareState::Halted { reason, .. } => {
                            Some(ManagementOutcome::Failed(reason.clone()))
                        }
                        _ => None,
                    };
                }
                Some(ManagementOutcome::Failed(NOT_GRANTED.into()))
            }
            ManagementKind::VaultSettingUpdate | ManagementKind::RootKeyBackup => None,
        }
    }

    /// The request as responses show it.
    pub fn to_wire(&self, vault: &Vault) -> wire::SigningRequest {
        let (status, failed_reason) = match self.outcome_in(vault) {
            None => (Status::Pending, String::new()),
            Some(ManagementOutcome::Succeeded) => (Status::Succeeded, String::new()),
            Some(ManagementOutcome::Failed(reason)) => (Status::Failed, reason),
        };
        let vault_uuid = self.vault.to_string();
        let shown = match &self.kind {
            ManagementKind::VaultCreation { threshold, signers } => {
                Type::VaultCreation(wire::VaultCreation {
                    vault_uuid: vault_uuid.clone(),
                    name: vault.name.clone(),
                    threshold: (*threshold).into(),
                    signers: signers.iter().map(|node| node.openssh_line("")).collect(),
                })
            }
            ManagementKind::RootKeyGeneration(curve) => {
                let key_type = match curve {
                    Curve::Secp256k1 => wire::KeyType::EccSecp256k1,
                    Curve::Ed25519 => wire::KeyType::EccEd25519,
                };
                Type::RootKeyGeneration(wire::RootKeyGeneration {
                    vault_uuid: vault_uuid.clone(),
                    key_type: key_type.into(),
                })
            }
            ManagementKind::VaultSettingUpdate => {
                Type::VaultSettingUpdate(wire::VaultSettingUpdate {
                    vault_uuid: vault_uuid.clone(),
                })
            }
            ManagementKind::RootKeyBackup => Type::RootKeyBackup(wire::RootKeyBackup {
                vault_uuid: vault_uuid.clone(),
            }),
            ManagementKind::KeyAccessGrant { node, .. } => {
                Type::KeyAccessGrant(wire::KeyAccessGrant {
                    vault_uuid: vault_uuid.clone(),
                    client_signer_public_key: node.openssh_line(""),
                })
            }
        };
        wire::SigningRequest {
            uuid: self.id.to_string(),
            status: status.into(),
            failed_reason,
            creation_timestamp: self.created_at_ms,
            r#type: Some(shown),
            vault_uuid: Some(vault_uuid),
            source: Some(Source {
                r#type: source::Type::Cli.into(),
                website: String::new(),
            }),
            ..Default::default()
        }
    }
}

impl LiveKey {
    fn holds(&self, node: &NodeId) -> bool {
        self.generation.holders.contains(node)
    }

    /// Who is to hold its shares, where an operator wants that.
    fn target(&self) -> Option<&[NodeId]> {
        match &self.reshare {
            ReshareState::Idle => None,
            ReshareState::Wanted(target)
            | ReshareState::Preparing { target, .. }
            | ReshareState::Halted { target, .. } => Some(&target.holders),
        }
    }
}

/// The id of a request that is found again when what it is about has come: 16 bytes of SHA-256, marked as a UUID of
/// one's own making (RFC 9562, version 8).
fn id_of(vault: VaultId, kind: &ManagementKind) -> RequestId {
    let hash = Sha256::new()
        .chain_update(ID_TAG)
        .chain_update(vault.as_bytes());
    let hash = match kind {
        ManagementKind::VaultCreation { .. } => hash.chain_update("vault"),
        ManagementKind::RootKeyGeneration(curve) => hash.chain_update(curve.name()),
        ManagementKind::KeyAccessGrant { curve, node, epoch } => hash
            .chain_update(node.0)
            .chain_update(epoch.to_be_bytes())
            .chain_update(curve.name()),
        // These are not found again.
        ManagementKind::VaultSettingUpdate => hash.chain_update("setting"),
        ManagementKind::RootKeyBackup => hash.chain_update("backup"),
    };
    RequestId::derived(DerivedFrom::Management, hash.finalize().into())
}

#[cfg(test)]
#[path = "management_tests.rs"]
#[allow(non_snake_case)]
mod tests;
