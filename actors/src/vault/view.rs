//! A vault as operators see it.

use covault_core::{
    ids::VaultId,
    order::{Generation, NodeId},
    scheme::Scheme,
    wallet::{
        generation::{LiveKey, Reshare},
        vault::{KeyState, Vault, VaultKey},
    },
};

use serde::{Deserialize, Serialize};

use crate::context::Context;

/// A vault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VaultView {
    /// Id.
    pub id: VaultId,
    /// Name.
    pub name: String,
    /// Signers needed: those of the first key, or as the vault was asked for before it is there.
    pub threshold: u16,
    /// Share holders, likewise; their order is that of their indices.
    pub signers: Vec<NodeId>,
    /// Whether both root keys exist.
    pub ready: bool,
    /// Why key generation failed, where it did for good.
    pub failed_reason: Option<String>,
    /// Why it has not worked yet, where it is tried again; since the start of the process.
    pub problem: Option<String>,
    /// Its keys.
    pub keys: Vec<KeyView>,
}

/// A root key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyView {
    /// Its scheme.
    pub scheme: Scheme,
    /// The shares that sign; `None` before the key is there.
    pub generation: Option<Generation>,
    /// What is in work.
    pub work: Option<WorkView>,
    /// Why that has not worked yet, or why there is no key yet; since the start of the process.
    pub problem: Option<String>,
    /// Nodes that have not confirmed these shares: those that hold none of them may still have
    /// older ones. They are told as soon as they are there.
    pub unconfirmed: Vec<NodeId>,
    /// Nodes that may have shares of a run that has not succeeded. The next generation makes these
    /// worthless, and has them erased.
    pub leftover: Vec<NodeId>,
}

/// What is in work for a key that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkView {
    /// New shares are made; the present ones sign.
    Preparing {
        /// Signers needed then.
        threshold: u16,
        /// Who will hold the shares.
        holders: Vec<NodeId>,
    },
    /// New shares are in use, and not every node that needs to know, or is there, has confirmed it.
    Telling,
    /// Runs have failed, and there is no other before an operator wants it again. The present
    /// shares sign.
    Halted {
        /// Signers that were to be needed.
        threshold: u16,
        /// Who was to hold the shares.
        holders: Vec<NodeId>,
        /// Why the last run failed.
        reason: String,
    },
}

/// A vault as operators see it.
pub fn view(context: &Context, vault: &Vault) -> VaultView {
    let keys: Vec<KeyView> = vault
        .keys
        .iter()
        .map(|key| one(context, vault, key))
        .collect();
    let generation = keys.iter().find_map(|key| key.generation.clone());
    let (threshold, signers) = match generation {
        Some(Generation {
            threshold, holders, ..
        }) => (threshold, holders),
        None => (vault.threshold, vault.signers.clone()),
    };
    let waiting = keys.iter().filter(|key| key.generation.is_none());
    VaultView {
        id: vault.id,
        name: vault.name.clone(),
        threshold,
        signers,
        ready: vault.ready(),
        failed_reason: vault.failed_reason().map(str::to_owned),
        problem: waiting.filter_map(|key| key.problem.clone()).next(),
        keys,
    }
}

fn one(context: &Context, vault: &Vault, key: &VaultKey) -> KeyView {
    let live = match &key.state {
        KeyState::Ready(live) => Some(live),
        _ => None,
    };
    let work = live.and_then(work);
    let unconfirmed = live.map(|live| live.untold().to_vec()).unwrap_or_default();
    let leftover = live.map(leftover).unwrap_or_default();
    let open = live.is_none() || work.is_some() || !unconfirmed.is_empty();
    KeyView {
        scheme: key.scheme,
        generation: live.map(|live| live.generation.clone()),
        work,
        problem: context.problem(vault.id, key.scheme).filter(|_| open),
        unconfirmed,
        leftover,
    }
}

/// As long as a run may still succeed, its nodes are no matter of concern.
fn leftover(live: &LiveKey) -> Vec<NodeId> {
    match live.reshare {
        Reshare::Wanted(_) | Reshare::Preparing { .. } => Vec::new(),
        Reshare::Idle | Reshare::Halted { .. } => live.leftover.clone(),
    }
}

fn work(live: &LiveKey) -> Option<WorkView> {
    match &live.reshare {
        Reshare::Wanted(target) | Reshare::Preparing { target, .. } => Some(WorkView::Preparing {
            threshold: target.threshold,
            holders: target.holders.clone(),
        }),
        Reshare::Halted { target, reason } => Some(WorkView::Halted {
            threshold: target.threshold,
            holders: target.holders.clone(),
            reason: reason.clone(),
        }),
        Reshare::Idle => {
            let asked = live.activation.as_ref().is_none_or(|it| it.asked);
            (!asked || !live.is_confirmed()).then_some(WorkView::Telling)
        }
    }
}
