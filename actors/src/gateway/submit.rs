//! How a command is taken: once for its key, and only as long as its token may be used.

use std::sync::{Arc, atomic::Ordering};

use covault_core::fault::{Class, Fault};
use tokio::sync::OwnedSemaphorePermit;

use super::{Caller, Command, IdempotencyKey, Inner, Operation, Submitted, full_access, too_many};
use crate::{
    audit::By,
    command_commit::CommandCommit,
    idempotency::{self, Entry},
    tokens,
};

impl Inner {
    /// Does what a client asks for, here or where its vault is.
    pub(super) async fn submit(
        &self,
        caller: &Caller,
        once: Option<(Operation, IdempotencyKey)>,
        command: Result<Command, Fault>,
    ) -> Result<Submitted, Fault> {
        if self.closing.load(Ordering::SeqCst) {
            return Err(Fault::unavailable("the service is shutting down"));
        }
        full_access(caller)?;
        if !caller.operator {
            self.context.client_gate.check(&self.context).await?;
        }
        let place = self.place_in_work()?;
        match command {
            Ok(command) => self.dispatch(caller, once, command, place).await,
            // Only the key can answer it, which any process can look up.
            Err(fault) => self.submit_here(caller, once, Err(fault), place).await,
        }
    }

    /// Does what another process was asked for; `None` when this one is stopping.
    pub(crate) async fn submit_posted(
        &self,
        caller: &Caller,
        once: Option<(Operation, IdempotencyKey)>,
        command: Command,
    ) -> Option<Result<Submitted, Fault>> {
        // Before it is looked whether this one stops: who stops waits for all places.
        let place = self.place_in_work();
        if self.closing.load(Ordering::SeqCst) {
            return None;
        }
        let checked = full_access(caller).and(place);
        Some(match checked {
            Ok(place) => self.submit_here(caller, once, Ok(command), place).await,
            Err(fault) => Err(fault),
        })
    }

    fn place_in_work(&self) -> Result<Arc<OwnedSemaphorePermit>, Fault> {
        let place = Arc::clone(&self.commands).try_acquire_owned();
        Ok(Arc::new(place.map_err(|_| too_many())?))
    }

    /// Does what can be done in this process.
    pub(crate) async fn submit_here(
        &self,
        caller: &Caller,
        once: Option<(Operation, IdempotencyKey)>,
        command: Result<Command, Fault>,
        place: Arc<OwnedSemaphorePermit>,
    ) -> Result<Submitted, Fault> {
        let context = &self.context;
        let by = By::caller(caller);
        let Some((operation, key)) = once else {
            let command = command?;
            let command_commit =
                CommandCommit::new(by, tokens::in_use(context, caller).await?, place);
            return Ok(Submitted::first(
                self.run(caller, command, command_commit).await?,
            ));
        };
        let token = caller.token;
        let entry = self.in_work.enter(context, token, operation, &key).await?;
        // Others had their turns first, and that may have taken long.
        let command_commit = CommandCommit::new(by, tokens::in_use(context, caller).await?, place);
        let (record, _turn) = match entry {
            Entry::Replay(earlier) => return Submitted::again(operation, &earlier),
            Entry::First(record, turn) => (record, turn),
        };
        // Not worth another look at the key: nothing was begun.
        let command = command?;
        let fault = match self.run(caller, command, command_commit.with(record)).await {
            Ok(receipt) => return Ok(Submitted::first(receipt)),
            Err(fault) if *fault.class() == Class::Unauthenticated => return Err(fault),
            Err(fault) => fault,
        };
        let found = idempotency::look_again(context, token, operation, &key).await;
        match found {
            Ok(Some(earlier)) => Submitted::again(operation, &earlier),
            // The error says more than that the store cannot be read either.
            Ok(None) | Err(_) => Err(fault),
        }
    }
}
