//! The row of a batch payment as it changes, alone or in the first commit of a signing request of the batch.

use covault_core::{
    audit::AuditChain,
    batch::{BatchEvent, BatchPayload, BatchPayment, BatchState},
    fault::{Class, Fault},
    request::{AuditRecord, IllegalTransition},
};

use crate::{
    audit::{AuditActor, AuditNote},
    commands::command_commit::CommandCommit,
    services::Services,
    store::{Batch, CommitError, Key, KeySpace, Precondition, batch_rows, rows},
};

/// A batch in its next state, with the version of its row in the state before.
pub struct BatchClaim {
    next: BatchPayment,
    version: u64,
    /// It was on its way before.
    was_open: bool,
    audit: AuditRecord,
    by: AuditActor,
}

impl BatchClaim {
    /// What an event makes of a batch whose row was read in this version.
    ///
    /// # Errors
    /// [`Class::WrongState`] when the event cannot happen to it.
    pub fn new(
        batch: &BatchPayment,
        version: u64,
        event: BatchEvent,
        by: &AuditActor,
        now_ms: u64,
    ) -> Result<Self, Fault> {
        let step = batch.state.clone().step(event, now_ms);
        let step = step.map_err(|IllegalTransition { state, event }| {
            let sentence = format!("the batch is {state}: {event} is not possible");
            Fault::new(Class::WrongState, sentence)
        })?;
        Ok(Self {
            next: BatchPayment {
                state: step.next,
                ..batch.clone()
            },
            version,
            was_open: matches!(batch.state, BatchState::Approved(_)),
            audit: step.audit,
            by: by.clone(),
        })
    }

    /// Adds the row, which must be as it was, and its audit entry.
    ///
    /// # Errors
    /// [`Class::Bug`] when they cannot be serialized.
    pub fn add_to(&self, batch: &mut Batch) -> Result<(), Fault> {
        let BatchPayment { id, vault, .. } = self.next;
        batch.put(
            rows::batch(id),
            Precondition::Version(self.version),
            rows::encode(&self.next)?,
        );
        let open = batch_rows::open_batch(vault, id);
        let is_open = matches!(self.next.state, BatchState::Approved(_));
        match is_open {
            true => batch.put(open, Precondition::Any, rows::encode(&())?),
            false => batch.delete(open, Precondition::Any),
        };
        // One at a time sets an allowance.
        if let Some(key) = allowance_row(&self.next) {
            match (self.was_open, is_open) {
                (false, true) => batch.put(key, Precondition::Absent, rows::encode(&id)?),
                (true, false) => batch.delete(key, Precondition::Any),
                (true, true) | (false, false) => &mut *batch,
            };
        }
        let made = self.next.state.progress().and_then(|it| it.requests.last());
        if let (Some(made), true) = (made, is_open) {
            let key = batch_rows::request_batch(made.request);
            batch.put(key, Precondition::Any, rows::encode(&id)?);
        }
        batch.delete(batch_rows::held_up(id), Precondition::Any);
        let event = format!("Batch{}", self.audit.event);
        AuditNote::new(&self.by, format_args!("batch:{id}"), &event)
            .fact("state", &self.audit.state)
            .fact("detail", &self.audit.detail)
            .add_to(batch, AuditChain::Vault(vault), self.audit.at_ms)
    }

    /// Commits it alone, with what a command demands. The batch as it is then.
    ///
    /// # Errors
    /// [`BatchClaim::lost`] when the batch has changed in between.
    pub async fn commit(
        self,
        services: &Services,
        command_commit: &CommandCommit,
    ) -> Result<BatchPayment, Fault> {
        let owner = services.for_vault(self.next.vault)?;
        let mut batch = Batch::new();
        self.add_to(&mut batch)?;
        command_commit.demand(&mut batch);
        match owner.store.commit(batch).await {
            Ok(()) => Ok(self.next),
            Err(CommitError::Conflict(key)) if key.space == KeySpace::Batch => Err(Self::lost()),
            Err(error) => Err(error.into()),
        }
    }

    /// Another batch has the allowance of the token.
    pub fn allowance_taken() -> Fault {
        Fault::new(
            Class::WrongState,
            "another batch pays the same token from the wallet; wait until it has ended",
        )
    }

    /// Another caller was faster.
    pub fn lost() -> Fault {
        Fault::new(
            Class::WrongState,
            "the batch has just changed; read it again",
        )
        .at("uuid")
    }
}

/// The row that the batch holds while it is on its way, whose payment needs an allowance.
pub(crate) fn allowance_row(batch: &BatchPayment) -> Option<Key> {
    let payment = BatchPayload::decode(&batch.payment).ok()?;
    let (token, chain) = (payment.allowance_token()?, payment.chain_id()?);
    Some(batch_rows::allowance_batch(batch.wallet, chain, token))
}
