//! What a command's commit holds besides its effect: the idempotency record, the condition that the calling
//! token is still valid, and the caller for the audit log.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use covault_core::{fault::Fault, ids::TokenId, trace::TraceParent};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    audit::AuditActor,
    commands::idempotency::IdempotencyRecord,
    process::limits::{Share, Shares, permits, too_many},
    store::{Batch, Key, Precondition},
};

/// Places for commands in progress, in all and for each token.
pub struct CommandPlaces {
    most: usize,
    all: Arc<Semaphore>,
    of_tokens: Arc<Shares<TokenId>>,
}

impl CommandPlaces {
    /// So many places, all of them free.
    pub fn new(most: usize) -> Self {
        Self {
            most: permits(most),
            all: Arc::new(Semaphore::new(permits(most))),
            of_tokens: Shares::new(most),
        }
    }

    /// Takes a place for a command of a token.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when there is none, or the token has its share.
    pub fn take(&self, token: TokenId) -> Result<Arc<CommandPermit>, Fault> {
        let share = self.of_tokens.take(&[token], 1)?;
        let place = Arc::clone(&self.all).try_acquire_owned();
        Ok(Arc::new(CommandPermit {
            _place: place.map_err(|_| too_many())?,
            _share: share,
        }))
    }

    /// Waits until no command has a place.
    pub async fn drained(&self) {
        let all = u32::try_from(self.most).unwrap_or(u32::MAX);
        // Nobody closes it.
        let _ = self.all.acquire_many(all).await;
    }
}

/// Counts a command as one in progress, and as one of its token.
pub struct CommandPermit {
    _place: OwnedSemaphorePermit,
    _share: Share<TokenId>,
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
    origin: Arc<CommandOrigin>,
    token: Option<(Key, u64)>,
    record: Option<IdempotencyRecord>,
    is_recorded: Arc<AtomicBool>,
    _permit: Option<Arc<CommandPermit>>,
}

/// Who asked, and the span that it is part of.
#[derive(Clone, Debug)]
struct CommandOrigin {
    by: AuditActor,
    trace: TraceParent,
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
            origin: Arc::new(CommandOrigin {
                by,
                trace: TraceParent::Unknown,
            }),
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

    /// The same for a call that is part of a trace.
    #[must_use]
    pub fn traced(mut self, trace: TraceParent) -> Self {
        Arc::make_mut(&mut self.origin).trace = trace;
        self
    }

    /// The span that what is committed is part of.
    pub fn trace(&self) -> TraceParent {
        self.origin.trace
    }

    /// Becomes true when a commit has the record.
    pub fn is_recorded(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_recorded)
    }

    /// Who asked.
    pub fn by(&self) -> &AuditActor {
        &self.origin.by
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
