//! The only door into the orchestrator.

mod answers;
mod caller;
mod calls;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use covault_core::{
    fault::{Class, Fault},
    ids::VaultId,
};
use ractor::{Actor, ActorRef, rpc::CallResult};
use tokio::sync::{Semaphore, watch};

use crate::{
    audit::{self, By},
    backups,
    context::{Context, permits},
    directory,
    idempotency::{self, Entry, InWork},
    nodes,
    pledge::Pledge,
    request_index, restored,
    root::{self, DirectoryAddress, Root},
    settings::Orchestrator,
    simulations,
    store::{Key, Space},
    tokens, vault, views,
};

pub use self::{
    answers::{AuditView, Receipt, Stuck, Submitted, View},
    caller::{Caller, VaultScope},
    calls::{AuditQuery, Command, IdempotencyKey, Query},
};
pub use crate::{
    deposits::{Configure as ConfigureSweep, SweepView},
    dropped::Forgotten,
    operations::ShareBackup,
    rows::Operation,
    tokens::MadeToken,
    vault::{
        Wish as Reshare,
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
    root: ActorRef<root::Msg>,
    pub(crate) directory: watch::Receiver<DirectoryAddress>,
    pub(crate) in_work: InWork,
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
        let context = Arc::new(Context::new(orchestrator));
        // A store that cannot be read is better found out now than by the first request.
        context.store.get(&Key::new(Space::Probe, &[])).await?;
        restored::refuse_half(&context).await?;
        request_index::complete(&context).await?;
        audit::begin(&context).await?;
        restored::settle(&context).await?;
        let (address, mut directory) = watch::channel(None);
        let arguments = (Arc::clone(&context), address);
        let (root, _) = Actor::spawn(None, Root, arguments)
            .await
            .map_err(Fault::bug)?;
        directory
            .wait_for(Option::is_some)
            .await
            .map_err(Fault::bug)?;
        let settings = &context.settings;
        Ok(Self {
            inner: Arc::new(Inner {
                commands: Arc::new(Semaphore::new(permits(settings.max_commands))),
                context,
                root,
                directory,
                in_work: InWork::default(),
                closing: AtomicBool::new(false),
            }),
        })
    }

    /// Stops: refuses new commands, lets those in work come to their end, and stops every
    /// actor. Requests that are not final are on disk and go on at the next start.
    pub async fn stop(&self) {
        self.inner.closing.store(true, Ordering::SeqCst);
        // Who waits for a request to end asks again, of the next process.
        self.inner.context.waiters.close();
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
    async fn submit(
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
            self.context.hold.check(&self.context).await?;
        }
        let place = Arc::clone(&self.commands).try_acquire_owned();
        let place = Arc::new(place.map_err(|_| too_many())?);
        let context = &self.context;
        let by = By::caller(caller);
        let Some((operation, key)) = once else {
            let command = command?;
            let pledge = Pledge::new(by, tokens::in_use(context, caller).await?, place);
            return Ok(Submitted::first(self.run(caller, command, pledge).await?));
        };
        let token = caller.token;
        let entry = self.in_work.enter(context, token, operation, &key).await?;
        // Others had their turns first, and that may have taken long.
        let pledge = Pledge::new(by, tokens::in_use(context, caller).await?, place);
        let (record, _turn) = match entry {
            Entry::Replay(earlier) => return Submitted::again(operation, &earlier),
            Entry::First(record, turn) => (record, turn),
        };
        // Not worth another look at the key: nothing was begun.
        let command = command?;
        let fault = match self.run(caller, command, pledge.with(record)).await {
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

    async fn run(
        &self,
        caller: &Caller,
        command: Command,
        pledge: Pledge,
    ) -> Result<Receipt, Fault> {
        Ok(match command {
            Command::CreateWallet(request) => {
                Receipt::Wallet(self.create_wallet(caller, request, pledge).await?)
            }
            Command::UpdateWallet(request) => {
                Receipt::Wallet(self.update_wallet(caller, request, pledge).await?)
            }
            Command::CreateSigningRequest(request) => Receipt::SigningRequest(Box::new(
                self.create_request(caller, request, pledge).await?,
            )),
            Command::RejectSigningRequest { uuid } => {
                self.reject_request(caller, &uuid, pledge).await?;
                Receipt::Rejected
            }
            Command::Resimulate { uuid } => {
                let context = &self.context;
                let request = views::request(context, caller, uuid.parse()?).await?;
                Receipt::Simulation(simulations::again(context, &request, &pledge).await?)
            }
            Command::CreateBatchPayment(request) => {
                Receipt::BatchPayment(Box::new(self.create_batch(caller, request, pledge).await?))
            }
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
            Command::CreateDepositWallet(request) => {
                Receipt::Deposit(self.create_deposit_wallet(caller, &request, pledge).await?)
            }
            Command::BeginBackup => {
                operators_only(caller)?;
                Receipt::Backup(backups::begin(&self.context, pledge.by()).await?)
            }
            Command::LetClientsIn => {
                operators_only(caller)?;
                restored::resume(&self.context, pledge.by()).await?;
                Receipt::ClientsLetIn
            }
            Command::AddWatchAddress(request) => {
                Receipt::Watch(self.add_watch_address(caller, &request, &pledge).await?)
            }
        })
    }

    pub(crate) fn directory(&self) -> Result<ActorRef<directory::Msg>, Fault> {
        self.directory.borrow().clone().ok_or_else(starting)
    }

    pub(crate) async fn vault(&self, id: VaultId) -> Result<ActorRef<vault::Msg>, Fault> {
        let directory = self.directory()?;
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
            "the outcome is not known: repeat the call with the same idempotency key, or look before trying again",
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
