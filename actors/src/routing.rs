//! Where a command is done: by the orchestrator that has its vault.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use covault_core::{
    batch::Payment,
    deposit::{DepositCall, Route},
    fault::{Class, Fault},
    ids::{OrchestratorId, RequestId, VaultId},
    payload::Payload,
    wallet::Wallet,
};
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    command_bus::{CommandHandler, ForwardOutcome, ForwardedCommand},
    context::elsewhere,
    gateway::{Caller, Command, IdempotencyKey, Inner, Operation, Submitted},
    idempotency,
    leases::{self, LeaseGuard, LeaseRow, LeaseScope},
    rows,
    store::Key,
    tokens, views,
};

/// How often it is looked who has a vault that is on its way.
const LOOK: Duration = Duration::from_millis(50);

/// How often it is looked whether who was asked still has the vault.
const LOST: Duration = Duration::from_millis(500);

/// Where a command is to be done.
pub enum Routing {
    /// Here. The vault does not go meanwhile, where the command is about one.
    Here(Option<LeaseGuard>),
    /// Where the vault is, which is not here.
    Elsewhere(VaultId),
    /// By any process in which vaults run, which this is not.
    Anywhere,
}

impl Inner {
    /// Does a command, here or where its vault is. A vault that is on its way is waited for.
    pub(crate) async fn dispatch(
        &self,
        caller: &Caller,
        once: Option<(Operation, IdempotencyKey)>,
        command: Command,
        work: Arc<OwnedSemaphorePermit>,
    ) -> Result<Submitted, Fault> {
        let context = &self.context;
        let mut left = Duration::from_millis(context.settings.lease_ms.saturating_mul(2));
        loop {
            let (vault, to) = match self.route(caller, &command).await? {
                Routing::Here(None) => {
                    return self.submit_here(caller, once, Ok(command), work).await;
                }
                Routing::Here(Some(stay)) => {
                    let (key, command, work) = (once.clone(), command.clone(), Arc::clone(&work));
                    let done = self.submit_here(caller, key, Ok(command), work).await;
                    let lost = once.is_some() && stay.is_lost();
                    match &done {
                        // Nothing of it can be done any more, and if it was, the key tells.
                        Err(fault) if lost && *fault.class() == Class::Unavailable => {
                            left = left.checked_sub(LOOK).ok_or_else(elsewhere)?;
                            continue;
                        }
                        _ => return done,
                    }
                }
                Routing::Elsewhere(vault) => (Some(vault), self.owner(vault).await?),
                Routing::Anywhere => (None, self.anybody()),
            };
            // What was done need not be asked for, whoever did it and wherever that is now.
            if let Some(answer) = self.answered(caller, once.as_ref()).await? {
                return Ok(answer);
            }
            if let Some((owner, recipient_version)) = self.there(to).await? {
                let forwarded = ForwardedCommand {
                    recipient_version,
                    caller: caller.clone(),
                    command: command.clone(),
                    idempotency: once.as_ref().map(|(_, key)| key.clone()),
                };
                let patience = Duration::from_millis(context.settings.command_timeout_ms);
                let outcome = tokio::select! {
                    outcome = self.command_bus.send(owner, forwarded, patience) => Some(outcome),
                    () = self.gone(vault, owner) => None,
                };
                match outcome {
                    Some(ForwardOutcome::Answer(answer)) => return *answer,
                    Some(ForwardOutcome::NotDone) => {}
                    // If it was done, the record of the key tells it to whoever has the vault now.
                    None if once.is_some() => {}
                    Some(ForwardOutcome::NotKnown) | None => return Err(not_known()),
                }
            }
            left = left.checked_sub(LOOK).ok_or_else(elsewhere)?;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The answer that a key has got, for a caller who may have it.
    async fn answered(
        &self,
        caller: &Caller,
        once: Option<&(Operation, IdempotencyKey)>,
    ) -> Result<Option<Submitted>, Fault> {
        let Some((operation, key)) = once else {
            return Ok(None);
        };
        let context = &self.context;
        let earlier = idempotency::look_again(context, caller.token, *operation, key).await?;
        let Some(earlier) = earlier else {
            return Ok(None);
        };
        tokens::in_use(context, caller).await?;
        Submitted::again(*operation, &earlier).map(Some)
    }

    /// Who has a vault, when it is another orchestrator that seems to be alive.
    async fn owner(&self, vault: VaultId) -> Result<Option<OrchestratorId>, Fault> {
        let held_leases = &self.context.held_leases;
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
    fn anybody(&self) -> Option<OrchestratorId> {
        let context = &self.context;
        let eligible = context.held_leases.eligible().unwrap_or_default();
        let mut dice = [0; 1];
        context.entropy.fill(&mut dice);
        let [dice] = dice;
        let index = usize::from(dice).checked_rem(eligible.len())?;
        eligible.get(index).copied()
    }

    /// With the version of its row, when it has one.
    async fn there(
        &self,
        to: Option<OrchestratorId>,
    ) -> Result<Option<(OrchestratorId, u64)>, Fault> {
        let Some(to) = to else {
            return Ok(None);
        };
        let row = self.context.store.get(&leases::member(to)).await?;
        Ok(row.map(|row| (to, row.version)))
    }

    async fn holder(&self, vault: VaultId) -> Result<Option<OrchestratorId>, Fault> {
        let lease: Option<LeaseRow> = self.load(&LeaseScope::Vault(vault).key()).await?;
        Ok(lease.and_then(|lease| lease.owner))
    }

    /// Ends when somebody else has the vault: then no answer comes from who had it.
    async fn gone(&self, vault: Option<VaultId>, owner: OrchestratorId) {
        let Some(vault) = vault else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(LOST).await;
            let held = self.holder(vault).await;
            if matches!(held, Ok(Some(other)) if other != owner) {
                return;
            }
        }
    }

    /// Where a command is to be done. What cannot be told is found out here, and told in the words
    /// of the command.
    pub(crate) async fn route(&self, caller: &Caller, command: &Command) -> Result<Routing, Fault> {
        let context = &self.context;
        if context.store.exclusive() {
            return Ok(Routing::Here(None));
        }
        let Some(vault) = self.vault_of(caller, command).await? else {
            return Ok(self.of_no_vault(command));
        };
        if let Some(stay) = context.held_leases.enter(vault) {
            return Ok(Routing::Here(Some(stay)));
        }
        Ok(match context.store.get(&rows::vault(vault)).await? {
            Some(_) => Routing::Elsewhere(vault),
            None => Routing::Here(None),
        })
    }

    /// Where a command is done that is about no vault, or about one that is not known.
    fn of_no_vault(&self, command: &Command) -> Routing {
        let runs = matches!(
            command,
            Command::CreateVault { .. }
                | Command::ReplaceSigners { .. }
                | Command::BackupVault { .. }
        );
        if runs && !self.context.runs_vaults {
            Routing::Anywhere
        } else {
            Routing::Here(None)
        }
    }

    /// The vault that a command needs.
    async fn vault_of(&self, caller: &Caller, command: &Command) -> Result<Option<VaultId>, Fault> {
        let context = &self.context;
        Ok(match command {
            Command::CreateWallet(request) => request.vault_uuid.parse().ok(),
            Command::CreateSigningRequest(request) => {
                let payload = request.r#type.as_ref().map(Payload::parse);
                match payload {
                    Some(Ok(payload)) => self.vault_of_wallet(payload.from()).await?,
                    _ => None,
                }
            }
            Command::CreateBatchPayment(request) => {
                let payment = request.r#type.as_ref().map(Payment::parse);
                match payment {
                    Some(Ok(payment)) => self.vault_of_wallet(payment.from()).await?,
                    _ => None,
                }
            }
            Command::UpdateWallet(request) => {
                let wallet = views::by_address(context, caller, &request.address).await;
                wallet.ok().map(|wallet| wallet.vault)
            }
            Command::RejectSigningRequest { uuid } => match uuid.parse::<RequestId>() {
                Ok(id) => context.request(id).await?.map(|(request, _)| request.vault),
                Err(_) => None,
            },
            Command::CreateVault { name, .. } | Command::ReplaceSigners { name, .. } => {
                self.load(&rows::vault_name(name)).await?
            }
            Command::ReshareVault { vault, .. } | Command::CancelReshare { vault } => {
                vault.parse().ok()
            }
            Command::CreateDepositWallet(request) => match DepositCall::parse(request) {
                Ok(call) => {
                    let key = rows::sweep_route(caller.token, call.network);
                    let route: Option<Route> = self.load(&key).await?;
                    route.and_then(|route| route.vault)
                }
                Err(_) => None,
            },
            // Of no vault, or guarded by the versions of their rows, or nothing is stored.
            Command::Resimulate { .. }
            | Command::BackupVault { .. }
            | Command::AdmitNode { .. }
            | Command::RemoveNode(_)
            | Command::CreateToken(_)
            | Command::RevokeToken(_)
            | Command::ConfigureSweep(_)
            | Command::AddWatchAddress(_)
            | Command::BeginBackup
            | Command::LetClientsIn => None,
        })
    }

    async fn vault_of_wallet(&self, address: &str) -> Result<Option<VaultId>, Fault> {
        let wallet = self
            .context
            .wallet_by(&rows::wallet_address(address))
            .await?;
        Ok(wallet.map(|(wallet, _): (Wallet, u64)| wallet.vault))
    }

    async fn load<T: serde::de::DeserializeOwned>(&self, key: &Key) -> Result<Option<T>, Fault> {
        Ok(self.context.load(key).await?.map(|(value, _)| value))
    }
}

fn not_known() -> Fault {
    Fault::unavailable(
        "the outcome is not known: repeat the call with the same idempotency key, or read the state before retrying",
    )
}

/// Takes the commands that others send to this orchestrator.
pub struct GatewayHandler(pub Weak<Inner>);

#[async_trait]
impl CommandHandler for GatewayHandler {
    async fn take(&self, forwarded: ForwardedCommand) -> ForwardOutcome {
        let Some(inner) = self.0.upgrade() else {
            return ForwardOutcome::NotDone;
        };
        let ForwardedCommand {
            recipient_version,
            caller,
            command,
            idempotency,
        } = forwarded;
        let once = command.operation().zip(idempotency);
        // Whoever sent it has given it up.
        let settings = &inner.context.settings;
        let window = settings.command_timeout_ms / settings.heartbeat_ms.max(1);
        if inner
            .context
            .held_leases
            .heartbeat()
            .abs_diff(recipient_version)
            > window
        {
            return ForwardOutcome::NotDone;
        }
        match inner.route(&caller, &command).await {
            Ok(Routing::Here(stay @ Some(_))) => {
                let answer = inner.submit_posted(&caller, once, command).await;
                drop(stay);
                match answer {
                    Some(answer) => ForwardOutcome::Answer(Box::new(answer)),
                    None => ForwardOutcome::NotDone,
                }
            }
            Ok(Routing::Here(None)) if inner.context.runs_vaults => {
                match inner.submit_posted(&caller, once, command).await {
                    Some(answer) => ForwardOutcome::Answer(Box::new(answer)),
                    None => ForwardOutcome::NotDone,
                }
            }
            Ok(_) => ForwardOutcome::NotDone,
            Err(fault) => ForwardOutcome::Answer(Box::new(Err(fault))),
        }
    }
}
