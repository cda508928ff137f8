//! Proofs of addresses that could not be had when their wallets were made: asked for until they are
//! there. Rows of [`KeySpace::ProofWanted`](crate::store::Space::ProofWanted) say which are missing.

use std::sync::Arc;

use covault_core::{fault::Fault, signature::Curve};

use super::{Msg, VaultState};
use crate::{
    process::{mailbox::ActorMailbox, tasks::AbortOnDrop},
    vaults::address_proofs::{self, ShareHolders},
};

/// What this process does for missing proofs.
#[derive(Default)]
pub(super) struct ProofWork {
    /// A try is due, or in progress.
    due: bool,
    work: Option<AbortOnDrop>,
    tries: u32,
}

impl VaultState {
    /// A wallet has no proof.
    pub(super) fn proof_missing(&mut self, myself: &ActorMailbox<Msg>) {
        if std::mem::replace(&mut self.proving.due, true) {
            return;
        }
        let pause = self.services.backoff(self.proving.tries);
        myself.send_after(pause, || Msg::ProofsDue);
    }

    /// Asks for what is missing, in a task beside the actor.
    pub(super) fn prove(&mut self, myself: &ActorMailbox<Msg>) {
        self.proving.due = true;
        let (services, vault) = (Arc::clone(&self.services), self.vault.id);
        let queues = Arc::clone(&self.proof_queues);
        let of = |curve| ShareHolders::of(&self.vault, curve);
        let holders: Vec<ShareHolders> = Curve::ALL.into_iter().filter_map(of).collect();
        let actor = myself.clone();
        let task = tokio::spawn(async move {
            let tried = address_proofs::complete(&services, &queues, &holders, vault).await;
            // The actor may have ended.
            let _ = actor.cast(Msg::ProofsTried(tried));
        });
        self.proving.work = Some(AbortOnDrop(task.abort_handle()));
    }

    pub(super) fn proofs_tried(&mut self, myself: &ActorMailbox<Msg>, tried: &Result<bool, Fault>) {
        self.proving.work = None;
        self.proving.due = false;
        match tried {
            Ok(false) => self.proving.tries = 0,
            Ok(true) => {
                self.proving.tries = 0;
                self.prove(myself);
            }
            Err(_) => {
                self.proving.tries = self.proving.tries.saturating_add(1);
                self.proof_missing(myself);
            }
        }
    }
}
