//! How far keys of the vault are, or their next shares, that are not there yet: rows, so that every process answers the
//! same.

use std::{collections::BTreeMap, pin::pin, sync::Arc, time::Duration};

use covault_core::{
    fault::Fault,
    ids::{SessionId, VaultId},
    scheme::Scheme,
    wallet::{
        generation::ReshareState,
        vault::{KeyState, VaultKey},
    },
};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::{Msg, VaultState};
use crate::{
    port::{KeyRound, SignerCluster},
    process::mailbox::ActorMailbox,
    services::Services,
    store::{Batch, KeySpace, Precondition, Scan, rows},
};

/// How often a run is looked at, for people who wait: it takes seconds.
const LOOK: Duration = Duration::from_millis(500);

/// How far a key is, or its next shares, as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyProgress {
    /// Why it is not there yet.
    pub problem: Option<String>,
    /// Where the present run is.
    pub round: Option<KeyRound>,
}

/// The keys of a vault of which there is something to know.
///
/// # Errors
/// When the store cannot be read.
pub async fn load(
    services: &Services,
    vault: VaultId,
) -> Result<BTreeMap<Scheme, KeyProgress>, Fault> {
    let all = Scan::prefix(KeySpace::KeyProgress, vault.as_bytes(), Scheme::ALL.len());
    let mut progress = BTreeMap::new();
    for (key, row) in services.store.scan(&all).await? {
        if let Some(scheme) = rows::key_progress_scheme(&key) {
            progress.insert(scheme, rows::decode(&row.value)?);
        }
    }
    Ok(progress)
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

/// Waits for a run, and tells the vault which round it is in.
pub(super) async fn with_rounds<T>(
    actor: ActorMailbox<Msg>,
    signers: Arc<dyn SignerCluster>,
    (scheme, session): (Scheme, SessionId),
    run: impl Future<Output = T>,
) -> T {
    let (mut run, mut told) = (pin!(run), None);
    loop {
        if let Ok(outcome) = timeout(LOOK, &mut run).await {
            return outcome;
        }
        let round = signers.round(&session);
        if let Some(round) = round.filter(|_| round != told) {
            told = Some(round);
            // The actor may have ended.
            let _ = actor.cast(Msg::RoundReached(scheme, session, round));
        }
    }
}

impl VaultState {
    /// Forgets what was true of a process that has ended, before anything runs here: the rounds of its runs, and all of keys
    /// that nothing is missing of.
    pub(super) async fn forget_old_progress(&mut self) {
        let keys = self.vault.keys.iter();
        let open = keys.map(|key| (key.scheme, is_open(key)));
        for (scheme, is_open) in open.collect::<Vec<_>>() {
            let known = self.progress.get(&scheme).filter(|_| is_open);
            let problem = known.and_then(|it| it.problem.clone());
            self.note_problem(scheme, problem).await;
        }
    }

    /// Stores why a key, or its next shares, are not there yet, with nothing in progress; `None` when nothing is wrong.
    pub(super) async fn note_problem(&mut self, scheme: Scheme, problem: Option<String>) {
        let round = None;
        self.note_progress(scheme, KeyProgress { problem, round })
            .await;
    }

    /// Stores which round the present run for a key, or for its next shares, is in. Why an earlier one failed still counts.
    pub(super) async fn note_round(
        &mut self,
        scheme: Scheme,
        session: &SessionId,
        round: KeyRound,
    ) {
        if self.is_running(scheme, session) {
            let problem = self.progress.get(&scheme);
            let problem = problem.and_then(|it| it.problem.clone());
            let round = Some(round);
            self.note_progress(scheme, KeyProgress { problem, round })
                .await;
        }
    }

    fn is_running(&self, scheme: Scheme, session: &SessionId) -> bool {
        let keygen = self.keygens.get(&scheme);
        let work = self.works.get(&scheme);
        keygen.is_some_and(|it| it.runs(session)) || work.is_some_and(|it| it.runs(session))
    }

    /// It is for people: where it cannot be stored, the vault continues.
    async fn note_progress(&mut self, scheme: Scheme, progress: KeyProgress) {
        let is_nothing = progress == KeyProgress::default();
        let known = self.progress.get(&scheme);
        if known == Some(&progress) || known.is_none() && is_nothing {
            return;
        }
        if let Err(fault) = self.store_progress(scheme, &progress).await {
            let vault = self.vault.id;
            tracing::warn!(%vault, scheme = scheme.name(), ?progress, ?fault, "failed to store the progress of a key");
            return;
        }
        match is_nothing {
            true => self.progress.remove(&scheme),
            false => self.progress.insert(scheme, progress),
        };
    }

    async fn store_progress(&self, scheme: Scheme, progress: &KeyProgress) -> Result<(), Fault> {
        let key = rows::key_progress(self.vault.id, scheme);
        let mut batch = Batch::new();
        match *progress == KeyProgress::default() {
            true => batch.delete(key, Precondition::Any),
            false => batch.put(key, Precondition::Any, rows::encode(progress)?),
        };
        Ok(self.services.store.commit(batch).await?)
    }
}
