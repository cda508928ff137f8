//! Why keys of the vault, or their next shares, are not there yet: rows, so that every process
//! answers the same.

use std::collections::BTreeMap;

use covault_core::{
    fault::Fault,
    ids::VaultId,
    scheme::Scheme,
    wallet::{
        generation::ReshareState,
        vault::{KeyState, VaultKey},
    },
};

use super::VaultState;
use crate::{
    services::Services,
    store::{Batch, KeySpace, Precondition, Scan, rows},
};

/// The problems of a vault.
///
/// # Errors
/// When the store cannot be read.
pub async fn load(services: &Services, vault: VaultId) -> Result<BTreeMap<Scheme, String>, Fault> {
    let all = Scan::prefix(KeySpace::KeyProblem, vault.as_bytes(), Scheme::ALL.len());
    let mut problems = BTreeMap::new();
    for (key, row) in services.store.scan(&all).await? {
        if let Some(scheme) = rows::key_problem_scheme(&key) {
            problems.insert(scheme, rows::decode(&row.value)?);
        }
    }
    Ok(problems)
}

/// Whether the key, or its next shares, are not there yet.
pub(super) fn is_open(key: &VaultKey) -> bool {
    match &key.state {
        KeyState::Ready(live) => {
            let asked = live.activation.as_ref().is_none_or(|it| it.asked);
            live.reshare != ReshareState::Idle || !asked || !live.untold().is_empty()
        }
        _ => true,
    }
}

impl VaultState {
    /// Forgets problems of keys that nothing is missing of: the process may have ended between.
    pub(super) async fn forget_solved(&mut self) {
        let solved = |key: &&VaultKey| !is_open(key);
        let solved = self.vault.keys.iter().filter(solved).map(|key| key.scheme);
        for scheme in solved.collect::<Vec<_>>() {
            self.note_problem(scheme, None).await;
        }
    }

    /// Stores why a key, or its next shares, are not there yet; `None` when nothing is wrong. It is
    /// for people: where it cannot be stored, the vault continues.
    pub(super) async fn note_problem(&mut self, scheme: Scheme, problem: Option<String>) {
        if self.problems.get(&scheme) == problem.as_ref() {
            return;
        }
        if let Err(fault) = self.store_problem(scheme, problem.as_ref()).await {
            let vault = self.vault.id;
            tracing::warn!(%vault, scheme = scheme.name(), ?problem, ?fault, "failed to store a problem of a key");
            return;
        }
        match problem {
            Some(problem) => self.problems.insert(scheme, problem),
            None => self.problems.remove(&scheme),
        };
    }

    async fn store_problem(&self, scheme: Scheme, problem: Option<&String>) -> Result<(), Fault> {
        let key = rows::key_problem(self.vault.id, scheme);
        let mut batch = Batch::new();
        match problem {
            Some(problem) => batch.put(key, Precondition::Any, rows::encode(problem)?),
            None => batch.delete(key, Precondition::Any),
        };
        Ok(self.services.store.commit(batch).await?)
    }
}
