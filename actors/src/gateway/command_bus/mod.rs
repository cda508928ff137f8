//! The command bus between the orchestrators of one cluster: the one that receives a client's command
//! forwards it to the owner of its vault, and waits for the answer.

pub mod form;
pub mod memory;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use covault_core::{fault::Fault, ids::OrchestratorId};

use crate::commands::{
    answer::{IdempotencyKey, OperationResponse},
    caller::Caller,
};

/// A command on its way.
#[derive(Clone, Debug)]
pub struct ForwardedCommand {
    /// The version of the recipient's row when it was sent: an old command is not run.
    pub recipient_version: u64,
    /// Who calls.
    pub caller: Caller,
    /// The full name of the operation's method.
    pub method: String,
    /// The request message.
    pub request: Vec<u8>,
    /// The idempotency key that it came with.
    pub key: Option<IdempotencyKey>,
}

/// The outcome of a forwarded command.
#[derive(Debug)]
pub enum ForwardOutcome {
    /// It was done, or refused: the answer, after the commit.
    Done(Box<Result<OperationResponse, Fault>>),
    /// It was not done and will not be: the recipient has not got the vault, or is not there.
    NotDone,
    /// No answer came: it may have been done, or be done later, once.
    NotKnown,
}

/// Runs forwarded commands.
#[async_trait]
pub trait CommandHandler: Send + Sync {
    /// Runs the command, if this orchestrator owns the vault.
    async fn handle(&self, forwarded: ForwardedCommand) -> ForwardOutcome;
}

/// Forwards commands between orchestrators. A command is delivered at most once.
#[async_trait]
pub trait CommandBus: Send + Sync {
    /// Starts delivering commands for `me` to the handler.
    ///
    /// # Errors
    /// When the bus cannot be used.
    async fn open(&self, me: OrchestratorId, handler: Arc<dyn CommandHandler>)
    -> Result<(), Fault>;

    /// Stops delivering commands for `me`.
    async fn close(&self, me: OrchestratorId);

    /// Forwards a command, and waits for the answer. The recipient does not begin with it after
    /// `patience`.
    async fn send(
        &self,
        to: OrchestratorId,
        forwarded: ForwardedCommand,
        patience: Duration,
    ) -> ForwardOutcome;
}
