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

use crate::context::Context;

/// A vault.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyView {
    /// Its scheme.
    pub scheme: Scheme,
    /// The shares that sign; `None` before the key is there.
    pub generation: Option<Generation>,
    /// What is in work.
    pub work: Option<WorkView>,
    /// Why that has not worked yet, or why there is no key yet; since the start of the process.
    pub problem: Option<String>,
}

/// What is in work for a key that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkView {
    /// New shares are made; the present ones sign.
    Preparing {
        /// Signers needed then.
        threshold: u16,
        /// Who will hold the shares.
        holders: Vec<NodeId>,
    },
    /// New shares are in use, and not every node has confirmed that it knows.
    Telling,
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
    let open = live.is_none() || work.is_some();
    KeyView {
        scheme: key.scheme,
        generation: live.map(|live| live.generation.clone()),
        work,
        problem: context.problem(vault.id, key.scheme).filter(|_| open),
    }
}

fn work(live: &LiveKey) -> Option<WorkView> {
    match &live.reshare {
        Reshare::Wanted(target) | Reshare::Preparing { target, .. } => Some(WorkView::Preparing {
            threshold: target.threshold,
            holders: target.holders.clone(),
        }),
        Reshare::Idle => live.activation.as_ref().map(|_| WorkView::Telling),
    }
}
