//! The command bus within one process: for one orchestrator alone, and for tests with several.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use covault_core::{fault::Fault, ids::OrchestratorId};
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;

use super::{CommandBus, CommandHandler, ForwardOutcome, ForwardedCommand};

/// The handler of each orchestrator, and the runtime that it runs on.
type CommandHandlers = HashMap<OrchestratorId, (Arc<dyn CommandHandler>, Handle)>;

/// See the module.
#[derive(Default)]
pub struct MemoryCommandBus {
    handlers: Mutex<CommandHandlers>,
}

impl MemoryCommandBus {
    /// A bus without handlers.
    pub fn new() -> Self {
        Self::default()
    }

    fn handlers(&self) -> MutexGuard<'_, CommandHandlers> {
        self.handlers.lock()
    }
}

#[async_trait]
impl CommandBus for MemoryCommandBus {
    async fn open(
        &self,
        me: OrchestratorId,
        handler: Arc<dyn CommandHandler>,
    ) -> Result<(), Fault> {
        self.handlers().insert(me, (handler, Handle::current()));
        Ok(())
    }

    async fn close(&self, me: OrchestratorId) {
        self.handlers().remove(&me);
    }

    async fn send(
        &self,
        to: OrchestratorId,
        forwarded: ForwardedCommand,
        patience: Duration,
    ) -> ForwardOutcome {
        let handler = self.handlers().get(&to).cloned();
        let Some((handler, runtime)) = handler else {
            return ForwardOutcome::NotDone;
        };
        // Where the recipient runs: it may end during the call.
        let work = runtime.spawn(async move { handler.handle(forwarded).await });
        match tokio::time::timeout(patience, work).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => ForwardOutcome::NotKnown,
        }
    }
}
