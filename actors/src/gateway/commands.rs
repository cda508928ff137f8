//! How a command is accepted: once for its idempotency key, and only while its token is valid.

use std::sync::{Arc, atomic::Ordering};

use covault_core::{
    fault::{Class, Fault},
    schema::service::Audience,
};

use super::GatewayInner;
use crate::{
    audit::AuditActor,
    commands::{
        answer::{IdempotencyKey, OperationResponse},
        caller::{AdminCaller, Caller, admins_only, full_access},
        command_commit::{CommandCommit, CommandPermit},
        idempotency::{self, KeyStatus},
        tokens,
    },
    operations::{self, OperationCall, RegisteredOperation},
};

/// A command of a caller.
#[derive(Clone)]
pub(crate) struct ClientCommand {
    /// The operation.
    pub operation: &'static RegisteredOperation,
    /// The request message; `Err` when it could not be read: only the key can answer it then.
    pub request: Result<Vec<u8>, Fault>,
    /// The key it came with.
    pub key: Option<IdempotencyKey>,
    /// Who calls.
    pub caller: Caller,
}

impl ClientCommand {
    /// The idempotency record, where the call has a key.
    pub(crate) fn idempotency_key(&self) -> Option<(&'static str, &IdempotencyKey)> {
        let method = self.operation.descriptor().full_name();
        self.key.as_ref().map(|key| (method, key))
    }
}

impl GatewayInner {
    /// Runs a command of a client, here or where its vault is.
    pub(super) async fn submit(&self, command: ClientCommand) -> Result<OperationResponse, Fault> {
        if self.closing.load(Ordering::SeqCst) {
            return Err(Fault::unavailable("the service is shutting down"));
        }
        self.check_caller(&command)?;
        // After a restore a token that was revoked since the backup is there again: only the one of the file has no row.
        let is_unnamed = |admin: &AdminCaller| admin.token.is_none();
        if !command.caller.admin.as_ref().is_some_and(is_unnamed) {
            self.health.client_gate.check(&self.services).await?;
        }
        let permit = self.permit(&command)?;
        match &command.request {
            Ok(_) => self.dispatch(&command, permit).await,
            // Only the key can answer it, which any process can look up.
            Err(_) => self.submit_here(&command, permit).await,
        }
    }

    /// Runs what another process forwarded; `None` when this one is stopping.
    pub(crate) async fn submit_forwarded(
        &self,
        command: &ClientCommand,
    ) -> Option<Result<OperationResponse, Fault>> {
        // Before it is looked whether this one stops: a stop waits for all permits.
        let permit = self.permit(command);
        if self.closing.load(Ordering::SeqCst) {
            return None;
        }
        let checked = self.check_caller(command).and(permit);
        Some(match checked {
            Ok(permit) => self.submit_here(command, permit).await,
            Err(fault) => Err(fault),
        })
    }

    fn check_caller(&self, command: &ClientCommand) -> Result<(), Fault> {
        full_access(&command.caller)?;
        admins_only(command.operation.descriptor(), &command.caller)
    }

    fn permit(&self, command: &ClientCommand) -> Result<Arc<CommandPermit>, Fault> {
        let caller = &command.caller;
        let is_for_admins = command.operation.descriptor().audience() == Audience::Admin;
        // The service itself calls operations of clients.
        let places = if caller.admin.is_some() && is_for_admins {
            &self.operator_commands
        } else {
            &self.commands
        };
        places.take(caller.token)
    }

    /// Runs a command in this process.
    pub(crate) async fn submit_here(
        &self,
        command: &ClientCommand,
        permit: Arc<CommandPermit>,
    ) -> Result<OperationResponse, Fault> {
        let (services, caller) = (&self.services, &command.caller);
        let by = AuditActor::caller(caller);
        let Some((method, key)) = command.idempotency_key() else {
            let token = tokens::in_use(services, caller).await?;
            let command_commit = CommandCommit::new(by, token, Some(permit)).traced(caller.trace);
            return Ok(OperationResponse::first(
                self.run(command, command_commit).await?,
            ));
        };
        let token = caller.token;
        let entry = self.key_locks.enter(services, token, method, key).await?;
        // Others had their turns first, and that may have taken long.
        let row = tokens::in_use(services, caller).await?;
        let command_commit = CommandCommit::new(by, row, Some(permit)).traced(caller.trace);
        let (record, _turn) = match entry {
            KeyStatus::Replay(earlier) => return Ok(earlier),
            KeyStatus::First(record, turn) => (record, turn),
        };
        // A request that cannot be read is not worth another look at the key: nothing was begun.
        if let Err(fault) = &command.request {
            return Err(fault.clone());
        }
        let command_commit = command_commit.with(record.clone());
        let is_recorded = command_commit.is_recorded();
        let fault = match self.run(command, command_commit).await {
            Ok(response) => {
                // One that committed nothing of its own; a repeated call has to get the same anyway.
                if !is_recorded.load(Ordering::SeqCst) {
                    record.store(services, &response).await?;
                }
                return Ok(OperationResponse::first(response));
            }
            Err(fault) if *fault.class() == Class::Unauthenticated => return Err(fault),
            Err(fault) => fault,
        };
        match idempotency::find_recorded(services, token, method, key).await {
            Ok(Some(earlier)) => Ok(earlier),
            // The error says more than that the store cannot be read either.
            Ok(None) | Err(_) => Err(fault),
        }
    }

    async fn run(
        &self,
        command: &ClientCommand,
        command_commit: CommandCommit,
    ) -> Result<Vec<u8>, Fault> {
        let request = command.request.as_ref().map_err(Clone::clone)?;
        let call = OperationCall {
            vaults: &self.vaults,
            key_locks: &self.key_locks,
            backups: &self.backups,
            health: &self.health,
            noted_chains: &self.noted_chains,
            waiters: &self.waiters,
            services: &self.services,
            caller: &command.caller,
            command_commit,
        };
        command.operation.run(call, request).await
    }

    /// A command that another process has forwarded.
    ///
    /// # Errors
    /// [`Class::Bug`] for a method that this version does not know.
    pub(crate) fn forwarded(
        method: &str,
        request: Vec<u8>,
        key: Option<IdempotencyKey>,
        caller: Caller,
    ) -> Result<ClientCommand, Fault> {
        Ok(ClientCommand {
            operation: operations::find(method)?,
            request: Ok(request),
            key,
            caller,
        })
    }
}
