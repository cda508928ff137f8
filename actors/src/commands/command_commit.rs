//! What a command's commit holds besides its effect: the idempotency record, the condition that the calling
//! token is still valid, and the caller for the audit log.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use covault_core::{fault::Fault, ids::TokenId};
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    audit::AuditActor,
    commands::idempotency::IdempotencyRecord,
    process::limits::Share,
    store::{Batch, Key, Precondition},
};

/// Counts a command as one in progress, and as one of its token.
pub struct CommandPermit {
    _place: OwnedSemaphorePermit,
    _share: Share<TokenId>,
}

impl CommandPermit {
    /// What was taken for it.
    pub fn new(place: OwnedSemaphorePermit, share: Share<TokenId>) -> Self {
        Self {
            _place: place,
            _share: share,
        }
    }
}

impl std::fmt::Debug for CommandPermit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CommandPermit")
    }
}

/// Goes with a command to the actor that commits it. Until it is dropped the command counts as one in
/// work: a message that waits in a mailbox does, although its caller has stopped waiting.
#[derive(Clone, Debug)]
pub struct CommandCommit {
    by: Arc<AuditActor>,
    token: Option<(Key, u64)>,
    record: Option<IdempotencyRecord>,
    is_recorded: Arc<AtomicBool>,
    _permit: Option<Arc<CommandPermit>>,
}

impl CommandCommit {
    /// `by` is who asked; `token` is the row of the caller's token in the version in which it was
    /// found good, where it has one; `permit` is that of a command in progress.
    pub fn new(
        by: AuditActor,
        token: Option<(Key, u64)>,
        permit: Option<Arc<CommandPermit>>,
    ) -> Self {
        Self {
            by: Arc::new(by),
            token,
            record: None,
            is_recorded: Arc::default(),
            _permit: permit,
        }
    }

    /// The same with an idempotency record.
    #[must_use]
    pub fn with(self, record: IdempotencyRecord) -> Self {
        Self {
            record: Some(record),
            ..self
        }
    }

    /// Becomes true when a commit has the record.
    pub fn is_recorded(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_recorded)
    }

    /// Who asked.
    pub fn by(&self) -> &AuditActor {
        &self.by
    }

    /// Has the batch be taken only as long as the token was not revoked. A conflict about its row
    /// becomes `unauthenticated`.
    pub fn demand(&self, batch: &mut Batch) {
        if let Some((key, version)) = &self.token {
            batch.check(key.clone(), Precondition::Version(*version));
        }
    }

    /// As [`CommandCommit::demand`], and adds the idempotency record. `response` makes the message that
    /// the call answers with.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Bug`] when the record cannot be serialized.
    pub fn add_to(
        &self,
        batch: &mut Batch,
        response: impl FnOnce() -> Vec<u8>,
        now_ms: u64,
    ) -> Result<(), Fault> {
        self.demand(batch);
        let Some(record) = &self.record else {
            return Ok(());
        };
        self.is_recorded.store(true, Ordering::SeqCst);
        record.add_to(batch, &response(), now_ms)
    }
}
