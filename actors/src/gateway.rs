//! The only door into the orchestrator.

mod answers;
mod caller;
mod calls;
mod submit;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use covault_core::{
    fault::Fault,
    ids::{OrchestratorId, VaultId},
};
use ractor::{Actor, ActorCell, ActorRef, rpc::CallResult};
use tokio::sync::{Semaphore, watch};

use crate::{
    audit, backups,
    command_bus::CommandBus,
    command_commit::CommandCommit,
    context::{Context, permits},
    directory,
    idempotency::InWork,
    leases::{self, LeaseManager},
    nodes, request_index, restore,
    root::{self, DirectoryAddress, Root},
    routing::GatewayHandler,
    settings::Orchestrator,
    simulations,
    store::{Key, Space},
    vault, views,
};

pub use self::{
    answers::{AuditView, Receipt, Stuck, Submitted, View},
    caller::{Caller, VaultScope},
    calls::{AuditQuery, Command, IdempotencyKey, Query},
};
pub use crate::{
    deposits::{Configure as ConfigureSweep, SweepView},
    operations::ShareBackup,
    rebroadcast::Forgotten,
    rows::Operation,
    tokens::MadeToken,
    vault::{
        ReshareRequest as Reshare,
        view::{KeyView, VaultView, WorkView},
    },
};
pub(crate) use caller::{full_access, in_scope, operators_only, vault_in_scope};

/// How long [`Gateway::stop`] waits for each of its steps.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// The door. Cheap to clone.
#[derive(Clone)]
pub struct Gateway {
    inner: Arc<Inner>,
}

/// What every clone of the door shares.
pub(crate) struct Inner {
    pub(crate) context: Arc<Context>,
    /// The actor above all others.
    root: ActorCell,
    pub(crate) directory: watch::Receiver<DirectoryAddress>,
    pub(crate) in_work: InWork,
    pub(crate) command_bus: Arc<dyn CommandBus>,
    /// One permit per command in work, also when whoever asked has stopped waiting for it.
    commands: Arc<Semaphore>,
    closing: AtomicBool,
}

impl Gateway {
    /// Starts the orchestrator: loads what is live from the store and goes on with it.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when the store cannot be read.
    pub async fn start(orchestrator: Orchestrator) -> Result<Self, Fault> {
        let command_bus = Arc::clone(&orchestrator.sharing.command_bus);
        let context = Arc::new(Context::new(orchestrator));
        // A store that cannot be read is better found out now than by the first request.
        context.store.get(&Key::new(Space::Probe, &[])).await?;
        restore::refuse_half(&context).await?;
        request_index::complete(&context).await?;
        audit::begin(&context).await?;
        restore::recover_after_restore(&context).await?;
        if context.store.exclusive()
            && context.runs_vaults
            && let Err(fault) = leases::take_all(&context).await
        {
            tracing::warn!(
                ?fault,
                "the vaults are taken as soon as the store can be used"
            );
        }
        let (address, mut directory) = watch::channel(None);
        let root = if context.runs_vaults {
            let arguments = (Arc::clone(&context), address);
            let (root, _) = Actor::spawn(None, Root, arguments)
                .await
                .map_err(Fault::bug)?;
            directory
                .wait_for(Option::is_some)
                .await
                .map_err(Fault::bug)?;
            root.get_cell()
        } else {
            let arguments = (Arc::clone(&context), directory.clone());
            let (lease_manager, _) = Actor::spawn(None, LeaseManager, arguments)
                .await
                .map_err(Fault::bug)?;
            lease_manager.get_cell()
        };
        let settings = &context.settings;
        let gateway = Self {
            inner: Arc::new(Inner {
                command_bus,
                commands: Arc::new(Semaphore::new(permits(settings.max_commands))),
                context,
                root,
                directory,
                in_work: InWork::default(),
                closing: AtomicBool::new(false),
            }),
        };
        let inner = &gateway.inner;
        let handler = Arc::new(GatewayHandler(Arc::downgrade(inner)));
        inner
            .command_bus
            .open(inner.context.held_leases.me(), handler)
            .await?;
        Ok(gateway)
    }

    /// Stops: refuses new commands, lets those in work come to their end, and stops every
    /// actor. Requests that are not final are on disk and go on at the next start.
    pub async fn stop(&self) {
        self.inner.closing.store(true, Ordering::SeqCst);
        // Who waits for a request to end asks again, of the next process.
        self.inner.context.waiters.close();
        // Others are to know before anything is given back.
        if self.inner.context.runs_vaults {
            let _ = self.inner.root.send_message(root::Msg::Leave);
        }
        let all = permits(self.inner.context.settings.max_commands);
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        let in_work = self.inner.commands.acquire_many(all);
        if tokio::time::timeout(STOP_PATIENCE, in_work).await.is_err() {
            tracing::warn!("commands are still in work; stopping all the same");
        }
        if let Err(error) = self
            .inner
            .root
            .stop_and_wait(None, Some(STOP_PATIENCE))
            .await
        {
            tracing::warn!(%error, "the actors did not stop in time");
        }
        self.inner.context.simulations.close().await;
        self.inner
            .command_bus
            .close(self.inner.context.held_leases.me())
            .await;
        leases::give_back(&self.inner.context).await;
    }

    /// Which orchestrator this is: another one after each start.
    pub fn orchestrator(&self) -> OrchestratorId {
        self.inner.context.held_leases.me()
    }

    /// How many vaults are here, and how many orchestrators are alive as far as this one sees.
    pub fn shares(&self) -> (usize, usize) {
        let held_leases = &self.inner.context.held_leases;
        let others = held_leases.eligible().map_or(1, |eligible| eligible.len());
        (held_leases.vaults(), others)
    }

    /// Does something. When it returns, the effect is on disk.
    ///
    /// # Errors
    /// Any class; nothing was changed then, unless the store failed while it wrote.
    pub async fn submit(
        &self,
        caller: &Caller,
        command: Command,
        idempotency: Option<IdempotencyKey>,
    ) -> Result<Submitted, Fault> {
        let once = command.operation().zip(idempotency);
        self.submit_as(caller, once, Ok(command)).await
    }

    /// Does something once for a key. `command` is what the call asks for, or why that cannot be
    /// read: a key that was used is answered before that is looked at, so that the first call's
    /// answer comes again whatever has become of the rules since, and whatever the body says.
    ///
    /// # Errors
    /// As [`Gateway::submit`]; and `command`'s own, where the key is free.
    pub async fn submit_once(
        &self,
        caller: &Caller,
        operation: Operation,
        key: IdempotencyKey,
        command: Result<Command, Fault>,
    ) -> Result<Submitted, Fault> {
        self.submit_as(caller, Some((operation, key)), command)
            .await
    }

    async fn submit_as(
        &self,
        caller: &Caller,
        once: Option<(Operation, IdempotencyKey)>,
        command: Result<Command, Fault>,
    ) -> Result<Submitted, Fault> {
        let inner = Arc::clone(&self.inner);
        let caller = caller.clone();
        // A task of its own: a client that hangs up must not leave a command half done with
        // its idempotency key free.
        tokio::spawn(async move { inner.submit(&caller, once, command).await })
            .await
            .unwrap_or_else(|error| Err(Fault::bug(error)))
    }

    /// Answers a question.
    ///
    /// # Errors
    /// Any class.
    pub async fn view(&self, caller: &Caller, query: Query) -> Result<View, Fault> {
        views::view(&self.inner.context, caller, query).await
    }
}

impl Inner {
    async fn run(
        &self,
        caller: &Caller,
        command: Command,
        command_commit: CommandCommit,
    ) -> Result<Receipt, Fault> {
        Ok(match command {
            Command::CreateWallet(request) => {
                Receipt::Wallet(self.create_wallet(caller, request, command_commit).await?)
            }
            Command::UpdateWallet(request) => {
                Receipt::Wallet(self.update_wallet(caller, request, command_commit).await?)
            }
            Command::CreateSigningRequest(request) => Receipt::SigningRequest(Box::new(
                self.create_request(caller, request, command_commit).await?,
            )),
            Command::RejectSigningRequest { uuid } => {
                self.reject_request(caller, &uuid, command_commit).await?;
                Receipt::Rejected
            }
            Command::Resimulate { uuid } => {
                let context = &self.context;
                let request = views::request(context, caller, uuid.parse()?).await?;
                Receipt::Simulation(simulations::again(context, &request, &command_commit).await?)
            }
            Command::CreateBatchPayment(request) => Receipt::BatchPayment(Box::new(
                self.create_batch(caller, request, command_commit).await?,
            )),
            Command::CreateVault {
                name,
                threshold,
                signers,
                ecdsa,
            } => Receipt::Vault(
                self.create_vault(caller, name, threshold, signers, ecdsa, false)
                    .await?,
            ),
            Command::ReplaceSigners {
                name,
                threshold,
                signers,
                ecdsa,
            } => Receipt::Vault(
                self.create_vault(caller, name, threshold, signers, ecdsa, true)
                    .await?,
            ),
            Command::ReshareVault { vault, reshare } => {
                Receipt::Vault(self.reshare(caller, &vault, reshare).await?)
            }
            Command::CancelReshare { vault } => {
                Receipt::Vault(self.cancel_reshare(caller, &vault).await?)
            }
            Command::BackupVault { vault, recipients } => {
                Receipt::Backups(self.backup(caller, &vault, recipients).await?)
            }
            Command::AdmitNode { id, name } => {
                self.change_nodes(caller, nodes::Change::Admit { id, name })
                    .await?
            }
            Command::RemoveNode(id) => self.change_nodes(caller, nodes::Change::Remove(id)).await?,
            Command::CreateToken(new) => {
                Receipt::TokenMade(Box::new(self.create_token(caller, new).await?))
            }
            Command::RevokeToken(which) => {
                Receipt::Token(Box::new(self.revoke_token(caller, &which).await?))
            }
            Command::ConfigureSweep(change) => {
                Receipt::Sweep(Box::new(self.configure_sweep(caller, change).await?))
            }
            Command::CreateDepositWallet(request) => Receipt::Deposit(
                self.create_deposit_wallet(caller, &request, command_commit)
                    .await?,
            ),
            Command::BeginBackup => {
                operators_only(caller)?;
                Receipt::Backup(backups::begin(&self.context, command_commit.by()).await?)
            }
            Command::LetClientsIn => {
                operators_only(caller)?;
                restore::resume(&self.context, command_commit.by()).await?;
                Receipt::ClientsLetIn
            }
            Command::AddWatchAddress(request) => Receipt::Watch(
                self.add_watch_address(caller, &request, &command_commit)
                    .await?,
            ),
        })
    }

    pub(crate) fn directory(&self) -> Result<ActorRef<directory::Msg>, Fault> {
        self.directory.borrow().clone().ok_or_else(starting)
    }

    pub(crate) async fn vault(&self, id: VaultId) -> Result<ActorRef<vault::Msg>, Fault> {
        let directory = match self.directory() {
            Ok(directory) => directory,
            Err(_) if self.context.vault(id).await?.is_none() => {
                return Err(Fault::invalid_uuid());
            }
            Err(starting) => return Err(starting),
        };
        let message = |reply| directory::Msg::GetVault(id, reply);
        let found = directory.call(message, self.context.call_timeout()).await;
        // Nothing was asked of the vault yet.
        let Ok(CallResult::Success(found)) = found else {
            return Err(starting());
        };
        match found {
            Some(vault) => Ok(vault),
            None if self.context.vault(id).await?.is_some() => Err(starting()),
            None => Err(Fault::invalid_uuid()),
        }
    }
}

pub(crate) fn answer<T, M>(
    result: Result<CallResult<T>, ractor::MessagingErr<M>>,
) -> Result<T, Fault> {
    match result {
        Ok(CallResult::Success(answer)) => Ok(answer),
        // The actor had the message: what it was doing may still reach the disk.
        Ok(CallResult::Timeout | CallResult::SenderError) => Err(Fault::unavailable(
            "the outcome is not known: repeat the call with the same idempotency key, or read the state before retrying",
        )),
        Err(_) => Err(starting()),
    }
}

fn starting() -> Fault {
    Fault::unavailable("this part of the service is starting; try again")
}

/// The service has as much to do as it may take on; no limit of a caller's.
pub(crate) fn too_many() -> Fault {
    Fault::unavailable("too many requests are in work; try again later")
}
