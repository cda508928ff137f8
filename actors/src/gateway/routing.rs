//! Where a command runs: by the orchestrator that has its vault.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use covault_core::{
    fault::{Class, Fault},
    ids::{OrchestratorId, VaultId},
};

use super::{ClientCommand, GatewayInner};
use crate::{
    commands::{answer::OperationResponse, command_commit::CommandPermit, idempotency, tokens},
    gateway::command_bus::{CommandHandler, ForwardOutcome, ForwardedCommand},
    leases::{self, LeaseGuard, LeaseRow, LeaseScope},
    operations::{Home, HomeLookup},
    services::vault_is_moving,
    store::{Key, rows},
};

/// How often it is looked who has a vault that is on its way.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How often it is looked whether who was asked still has the vault.
const OWNER_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Where a command is to run.
enum Routing {
    /// Here. The vault stays until the guard is dropped, where the command is about one.
    Here(Option<LeaseGuard>),
    /// Where the vault is, which is not here.
    Elsewhere(VaultId),
    /// By any process in which vaults run, which this is not.
    Anywhere,
}

impl GatewayInner {
    /// Runs a command, here or where its vault is. A vault that is being moved is waited for.
    pub(crate) async fn dispatch(
        &self,
        command: &ClientCommand,
        permit: Arc<CommandPermit>,
    ) -> Result<OperationResponse, Fault> {
        let services = &self.services;
        let has_key = command.key.is_some();
        let mut left = Duration::from_millis(services.settings.lease_ms.saturating_mul(2));
        loop {
            let (vault, to) = match self.route(command).await? {
                Routing::Here(None) => return self.submit_here(command, permit).await,
                Routing::Here(Some(lease)) => {
                    let done = self.submit_here(command, Arc::clone(&permit)).await;
                    let lost = has_key && lease.is_lost();
                    match &done {
                        // It can no longer be done here; if it was, the key's record shows it.
                        Err(fault) if lost && *fault.class() == Class::Unavailable => {
                            left = left
                                .checked_sub(POLL_INTERVAL)
                                .ok_or_else(vault_is_moving)?;
                            continue;
                        }
                        _ => return done,
                    }
                }
                Routing::Elsewhere(vault) => (Some(vault), self.owner(vault).await?),
                Routing::Anywhere => (None, self.any_orchestrator()),
            };
            // What was done need not be asked for again, wherever it was done.
            if let Some(answer) = self.recorded_response(command).await? {
                return Ok(answer);
            }
            if let Some((owner, recipient_version)) = self.with_member_version(to).await? {
                let forwarded = ForwardedCommand {
                    recipient_version,
                    caller: command.caller.clone(),
                    method: command.operation.descriptor().full_name().to_owned(),
                    request: command.request.clone()?,
                    key: command.key.clone(),
                };
                let patience = Duration::from_millis(services.settings.command_timeout_ms);
                let outcome = tokio::select! {
                    outcome = self.command_bus.send(owner, forwarded, patience) => Some(outcome),
                    () = self.until_moved(vault, owner) => None,
                };
                match outcome {
                    Some(ForwardOutcome::Done(answer)) => return *answer,
                    Some(ForwardOutcome::NotDone) => {}
                    // If it was done, the record of the key tells the present owner.
                    None if has_key => {}
                    Some(ForwardOutcome::NotKnown) | None => return Err(outcome_unknown()),
                }
            }
            left = left
                .checked_sub(POLL_INTERVAL)
                .ok_or_else(vault_is_moving)?;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// The answer that a key has got, for a caller who may have it.
    async fn recorded_response(
        &self,
        command: &ClientCommand,
    ) -> Result<Option<OperationResponse>, Fault> {
        let Some((method, key)) = command.idempotency_key() else {
            return Ok(None);
        };
        let (services, caller) = (&self.services, &command.caller);
        let earlier = idempotency::find_recorded(services, caller.token, method, key).await?;
        let Some(earlier) = earlier else {
            return Ok(None);
        };
        tokens::in_use(services, caller).await?;
        Ok(Some(earlier))
    }

    /// Who has a vault, when it is another orchestrator that seems to be alive.
    async fn owner(&self, vault: VaultId) -> Result<Option<OrchestratorId>, Fault> {
        let held_leases = &self.services.held_leases;
        let eligible = held_leases.eligible();
        // One that is stopping is not sent anything either: the vault is on its way.
        let seems = |id: &OrchestratorId| {
            eligible
                .as_ref()
                .is_none_or(|eligible| eligible.contains(id))
        };
        let owner = self.holder(vault).await?;
        Ok(owner.filter(|owner| *owner != held_leases.me() && seems(owner)))
    }

    /// Any orchestrator that seems to be alive.
    fn any_orchestrator(&self) -> Option<OrchestratorId> {
        let services = &self.services;
        let eligible = services.held_leases.eligible().unwrap_or_default();
        let mut dice = [0; 1];
        services.entropy.fill(&mut dice);
        let [dice] = dice;
        let index = usize::from(dice).checked_rem(eligible.len())?;
        eligible.get(index).copied()
    }

    /// With the version of its row, when it has one.
    async fn with_member_version(
        &self,
        to: Option<OrchestratorId>,
    ) -> Result<Option<(OrchestratorId, u64)>, Fault> {
        let Some(to) = to else {
            return Ok(None);
        };
        let row = self.services.store.get(&leases::member(to)).await?;
        Ok(row.map(|row| (to, row.version)))
    }

    async fn holder(&self, vault: VaultId) -> Result<Option<OrchestratorId>, Fault> {
        let lease: Option<LeaseRow> = self.load(&LeaseScope::Vault(vault).key()).await?;
        Ok(lease.and_then(|lease| lease.owner))
    }

    /// Ends when the vault has another owner: then the former one gives no answer.
    async fn until_moved(&self, vault: Option<VaultId>, owner: OrchestratorId) {
        let Some(vault) = vault else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(OWNER_CHECK_INTERVAL).await;
            let held = self.holder(vault).await;
            if matches!(held, Ok(Some(other)) if other != owner) {
                return;
            }
        }
    }

    /// Where a command is to run. What is wrong with its request is told where it runs.
    async fn route(&self, command: &ClientCommand) -> Result<Routing, Fault> {
        let services = &self.services;
        if services.store.exclusive() {
            return Ok(Routing::Here(None));
        }
        let lookup = HomeLookup {
            services,
            caller: &command.caller,
        };
        let request = command.request.as_ref().map_err(Clone::clone)?;
        let vault = match command.operation.home(&lookup, request).await? {
            Home::Vault(vault) => vault,
            Home::AnyOrchestrator if !services.runs_vaults => return Ok(Routing::Anywhere),
            Home::AnyOrchestrator | Home::AnyProcess => return Ok(Routing::Here(None)),
        };
        if let Some(lease) = services.held_leases.enter(vault) {
            return Ok(Routing::Here(Some(lease)));
        }
        Ok(match services.store.get(&rows::vault(vault)).await? {
            Some(_) => Routing::Elsewhere(vault),
            None => Routing::Here(None),
        })
    }

    async fn load<T: serde::de::DeserializeOwned>(&self, key: &Key) -> Result<Option<T>, Fault> {
        Ok(self.services.load(key).await?.map(|(value, _)| value))
    }
}

fn outcome_unknown() -> Fault {
    Fault::unavailable(
        "the outcome is not known: repeat the call with the same idempotency key, or read the state before retrying",
    )
}

/// Takes the commands that others send to this orchestrator.
pub struct GatewayHandler(pub Weak<GatewayInner>);

#[async_trait]
impl CommandHandler for GatewayHandler {
    async fn handle(&self, forwarded: ForwardedCommand) -> ForwardOutcome {
        let Some(inner) = self.0.upgrade() else {
            return ForwardOutcome::NotDone;
        };
        let ForwardedCommand {
            recipient_version,
            caller,
            method,
            request,
            key,
        } = forwarded;
        // The sender has given it up.
        let settings = &inner.services.settings;
        let window = settings.command_timeout_ms / settings.heartbeat_ms.max(1);
        let heartbeat = inner.services.held_leases.heartbeat();
        if heartbeat.abs_diff(recipient_version) > window {
            return ForwardOutcome::NotDone;
        }
        let command = match GatewayInner::forwarded(&method, request, key, caller) {
            Ok(command) => command,
            Err(fault) => return ForwardOutcome::Done(Box::new(Err(fault))),
        };
        // Kept while the command runs: the vault stays.
        let _lease = match inner.route(&command).await {
            Ok(Routing::Here(lease @ Some(_))) => lease,
            Ok(Routing::Here(None)) if inner.services.runs_vaults => None,
            Ok(_) => return ForwardOutcome::NotDone,
            Err(fault) => return ForwardOutcome::Done(Box::new(Err(fault))),
        };
        match inner.submit_forwarded(&command).await {
            Some(answer) => ForwardOutcome::Done(Box::new(answer)),
            None => ForwardOutcome::NotDone,
        }
    }
}
