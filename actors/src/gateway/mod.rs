//! The gateway: the one way into the orchestrator.

mod answers;
pub mod command_bus;
mod commands;
mod pages;
mod routing;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use covault_core::{
    deposit::transfer::FollowedChain,
    fault::Fault,
    ids::OrchestratorId,
    token::{ApiToken, TokenAccess, TokenHash},
};
use futures::future::join;
use prost::Message as _;
use ractor::{Actor, ActorCell};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, watch};

use crate::{
    audit::{self, AuditActor},
    backup::{live::BackupSlot, restore},
    batches::driver,
    chain_rpc::{self, EndpointHealth},
    changes::{ChangeHub, follower},
    commands::{
        caller::{admins_only, full_access},
        command_commit::{CommandCommit, CommandPlaces},
        idempotency::KeyLocks,
        tokens,
    },
    deposits::{start::NotedChains, sweeper},
    gateway::command_bus::CommandBus,
    health::HealthCheck,
    leases::{self, LeaseManager},
    nodes,
    operations::{self, Operation, OperationCall, RegisteredOperation},
    port::NodeView,
    process::{tasks::contained, waiters::CompletionWaiters},
    requests::{tracker, tracking::work_queue},
    root::{self, RootSupervisor},
    services::{ChainWakes, Listeners, Services},
    settings::OrchestratorParts,
    store::{Key, KeySpace},
    users::{Accounts, ConsoleKey},
    vaults::{gaps, speed_ups, vault_actors::VaultActors},
    webhooks,
};

use self::{answers::Encoding, commands::ClientCommand, routing::GatewayHandler};
pub use self::{
    answers::{BacklogCounts, RequestBody},
    pages::{OwnWallet, PageReader, RecipientHistory, RequestPlace, RequestRule, WordOfToken},
};
pub use crate::{
    changes::{Change, ChangeListener, HeardChanges, ListenerStart, Position},
    commands::{
        answer::{IdempotencyKey, OperationResponse},
        caller::{AdminCaller, Caller, Person, VaultScope},
    },
    deposits::sweep_counts::SweepCounts,
    health::Health,
    process::{
        counters::{
            DroppedCounts, FollowCounts, NotificationCounts, OpenTransactions, RequestCounts,
            WebhookCounts,
        },
        limits::{Share, Shares},
        meter,
    },
    store::overview_rows::{BackupRow, OpenRequestCounts, ServiceCounts, VaultCounts},
};

/// How long [`Gateway::leave`] waits, and [`Gateway::stop`] for each of its steps.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// Commands of operators in progress: those of clients take none of these places.
const MAX_OPERATOR_COMMANDS: usize = 100;
/// How often it is looked whether others have all vaults of this orchestrator.
const LEAVE_POLL: Duration = Duration::from_millis(20);

/// The one way into the orchestrator. Cheap to clone.
#[derive(Clone)]
pub struct Gateway {
    inner: Arc<GatewayInner>,
}

/// What every clone of the gateway shares.
struct GatewayInner {
    services: Arc<Services>,
    /// The root supervisor.
    root: ActorCell,
    vaults: VaultActors,
    key_locks: KeyLocks,
    backups: BackupSlot,
    noted_chains: NotedChains,
    console_key: ConsoleKey,
    /// What has changed, for listeners.
    hub: Arc<ChangeHub>,
    /// Those who wait for requests to end.
    waiters: Arc<CompletionWaiters>,
    health: HealthCheck,
    command_bus: Arc<dyn CommandBus>,
    /// Commands in progress, also when their callers have stopped waiting.
    commands: CommandPlaces,
    /// Those of operators.
    operator_commands: CommandPlaces,
    closing: AtomicBool,
}

impl Gateway {
    /// Starts the orchestrator: loads what is live from the store and continues with it.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when the store cannot be read.
    pub async fn start(orchestrator: OrchestratorParts) -> Result<Self, Fault> {
        let command_bus = Arc::clone(&orchestrator.sharing.command_bus);
        let (hub, waiters) = (
            Arc::new(ChangeHub::default()),
            Arc::new(CompletionWaiters::default()),
        );
        let (tracking, tracked) = work_queue();
        let (speed_ups, speed_ups_due) = work_queue();
        let (gap_suspects, suspected) = work_queue();
        let listeners = Listeners {
            logs: Arc::clone(&hub) as _,
            outcomes: Arc::clone(&waiters) as _,
            tracking,
            speed_ups,
            gap_suspects,
            notices_due: Notify::new(),
            followers: ChainWakes::default(),
            sweepers: ChainWakes::default(),
        };
        let services = Arc::new(Services::new(orchestrator, listeners));
        // A store that cannot be read is better found out now than by the first request.
        services.store.get(&Key::new(KeySpace::Probe, &[])).await?;
        restore::refuse_half_restored(&services).await?;
        audit::begin(&services).await?;
        let client_gate = restore::recover_after_restore(&services).await?;
        if services.store.exclusive()
            && services.runs_vaults
            && let Err(fault) = leases::take_all(&services).await
        {
            tracing::warn!(?fault, "failed to acquire the leases; retrying");
        }
        if services.runs_vaults {
            let tracker = tracker::run(Arc::clone(&services), tracked);
            services.tasks.spawn(tracker);
        }
        let follower = follower::run(Arc::clone(&services), Arc::clone(&hub));
        services.tasks.spawn(follower);
        let (address, mut directory) = watch::channel(None);
        let root = if services.runs_vaults {
            let arguments = (Arc::clone(&services), address);
            let (root, _) = Actor::spawn(None, RootSupervisor, arguments)
                .await
                .map_err(Fault::bug)?;
            directory
                .wait_for(Option::is_some)
                .await
                .map_err(Fault::bug)?;
            root.get_cell()
        } else {
            let arguments = (Arc::clone(&services), directory.clone());
            let (lease_manager, _) = Actor::spawn(None, LeaseManager, arguments)
                .await
                .map_err(Fault::bug)?;
            lease_manager.get_cell()
        };
        let vaults = VaultActors {
            services: Arc::clone(&services),
            directory,
        };
        if services.runs_vaults {
            let speed_ups = speed_ups::run(vaults.clone(), speed_ups_due);
            services.tasks.spawn(speed_ups);
            services.tasks.spawn(gaps::run(vaults.clone(), suspected));
            services.tasks.spawn(driver::run(vaults.clone()));
            for sweeper in sweeper::of_all_chains(&vaults) {
                services.tasks.spawn(sweeper.run());
            }
        }
        let gateway = Self {
            inner: Arc::new(GatewayInner {
                commands: CommandPlaces::new(services.settings.max_commands),
                operator_commands: CommandPlaces::new(MAX_OPERATOR_COMMANDS),
                command_bus,
                vaults,
                services,
                root,
                key_locks: KeyLocks::default(),
                backups: BackupSlot::default(),
                noted_chains: NotedChains::default(),
                console_key: ConsoleKey::default(),
                hub,
                waiters,
                health: HealthCheck::new(client_gate),
                closing: AtomicBool::new(false),
            }),
        };
        let inner = &gateway.inner;
        let handler = Arc::new(GatewayHandler(Arc::downgrade(inner)));
        inner
            .command_bus
            .open(inner.services.held_leases.me(), handler)
            .await?;
        Ok(gateway)
    }

    /// Gives the vaults to other orchestrators that are alive, before [`Gateway::stop`]: commands continue, and are
    /// forwarded to who has their vault by then. Waits until none is left here, some seconds at most; not at all where
    /// nobody else could have them.
    pub async fn leave(&self) {
        let services = &self.inner.services;
        self.inner.health.leave();
        if services.store.exclusive() || !services.runs_vaults {
            return;
        }
        let _ = self.inner.root.send_message(root::Msg::Leave);
        let held = &services.held_leases;
        let left = async {
            loop {
                // Of those that take vaults this one is no more, once its round was done.
                let others = held
                    .eligible()
                    .filter(|others| !others.contains(&held.me()));
                if others.is_some_and(|others| others.is_empty() || held.vaults() == 0) {
                    return;
                }
                tokio::time::sleep(LEAVE_POLL).await;
            }
        };
        if tokio::time::timeout(STOP_PATIENCE, left).await.is_err() {
            tracing::warn!(
                "other orchestrators take over the remaining vaults when this one has stopped"
            );
        }
    }

    /// Stops: refuses new commands, lets those in progress come to their end, and stops every
    /// actor. Requests that are not final are on disk and continue at the next start.
    pub async fn stop(&self) {
        self.inner.closing.store(true, Ordering::SeqCst);
        // Who waits for a request to end asks again, of the next process.
        self.inner.waiters.close();
        // Others are to know before anything is given back.
        if self.inner.services.runs_vaults {
            let _ = self.inner.root.send_message(root::Msg::Leave);
        }
        let drained = join(
            self.inner.commands.drained(),
            self.inner.operator_commands.drained(),
        );
        if tokio::time::timeout(STOP_PATIENCE, drained).await.is_err() {
            tracing::warn!("commands are still in progress; stopping anyway");
        }
        if let Err(error) = self
            .inner
            .root
            .stop_and_wait(None, Some(STOP_PATIENCE))
            .await
        {
            tracing::warn!(%error, "the actors did not stop in time");
        }
        self.inner.services.tasks.close().await;
        self.inner
            .command_bus
            .close(self.inner.services.held_leases.me())
            .await;
        leases::release_all(&self.inner.services).await;
    }

    /// Which orchestrator this is: another one after each start.
    pub fn orchestrator(&self) -> OrchestratorId {
        self.inner.services.held_leases.me()
    }

    /// How many vaults are here, and how many orchestrators are alive as far as this one sees.
    pub fn vault_share(&self) -> (usize, usize) {
        let held_leases = &self.inner.services.held_leases;
        let others = held_leases.eligible().map_or(1, |eligible| eligible.len());
        (held_leases.vaults(), others)
    }

    /// Calls an operation with a request as a client sent it. A command is durable when this returns.
    /// A key that was used is answered before anything is made of the request: the first call's
    /// answer comes again whatever has become of the rules since.
    ///
    /// # Errors
    /// Any class; nothing was changed then, unless the store failed while it wrote.
    pub async fn call(
        &self,
        caller: &Caller,
        operation: &'static RegisteredOperation,
        request: RequestBody<'_>,
        key: Option<String>,
    ) -> Result<OperationResponse, Fault> {
        let descriptor = operation.descriptor();
        let (encoding, bytes) = match request {
            RequestBody::Json(bytes) => (Encoding::Json, bytes),
            RequestBody::Protobuf(bytes) => (Encoding::Protobuf, bytes),
        };
        let request = match encoding {
            Encoding::Json => descriptor.request_of_json(bytes),
            Encoding::Protobuf => descriptor.check_protobuf(bytes).map(|()| bytes.to_vec()),
        };
        let key = key.filter(|_| descriptor.takes_idempotency_key());
        let (request, key) = match key {
            // Only with a key is one request compared with another.
            Some(key) => {
                let request = request.and_then(|request| operation.canonical(&request));
                let body_hash = fingerprint(&request, bytes);
                (request, Some(IdempotencyKey { key, body_hash }))
            }
            None => (request, None),
        };
        let mut answer = if descriptor.is_command() {
            self.submit(ClientCommand {
                operation,
                request,
                key,
                caller: caller.clone(),
            })
            .await?
        } else {
            // Who may not ask is not told what is wrong with the question.
            if descriptor.needs_full_access() {
                full_access(caller)?;
            }
            admins_only(descriptor, caller)?;
            OperationResponse::first(self.inner.query(caller, operation, &request?).await?)
        };
        if encoding == Encoding::Json {
            answer.response = descriptor.response_to_json(&answer.response)?;
        }
        Ok(answer)
    }

    /// As [`Gateway::call`], with an operation and messages that are known here.
    ///
    /// # Errors
    /// As there.
    pub async fn call_typed<O: Operation>(
        &self,
        caller: &Caller,
        request: &O::Request,
        key: Option<String>,
    ) -> Result<(O::Response, OperationResponse), Fault> {
        let request = request.encode_to_vec();
        let operation = operations::find(O::METHOD)?;
        let answer = self
            .call(caller, operation, RequestBody::Protobuf(&request), key)
            .await?;
        let response = O::Response::decode(answer.response.as_slice()).map_err(Fault::bug)?;
        Ok((response, answer))
    }

    async fn submit(&self, command: ClientCommand) -> Result<OperationResponse, Fault> {
        let inner = Arc::clone(&self.inner);
        let work = async move { inner.submit(command).await };
        let mut work = Box::pin(contained(work));
        // What is refused at once, as most is in a crowd, needs no other thread.
        if let Poll::Ready(done) = futures::poll!(&mut work) {
            return done;
        }
        // A task of its own: a client that hangs up must not leave a command half done with
        // its idempotency key free.
        tokio::spawn(work)
            .await
            .unwrap_or_else(|error| Err(Fault::bug(error)))
    }

    /// The token of a hash, whether it may be used or not; `None`: there is none.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn token(&self, hash: &TokenHash) -> Result<Option<ApiToken>, Fault> {
        tokens::of_hash(&self.inner.services, hash).await
    }

    /// Whether a token may be used now.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unauthenticated`] when it is expired or revoked: callers cannot tell which.
    pub fn check_token(&self, token: &ApiToken) -> Result<(), Fault> {
        tokens::check_active(&self.inner.services, token)
    }

    /// The accounts of people who use the console.
    pub fn accounts(&self) -> Accounts<'_> {
        Accounts {
            services: &self.inner.services,
            console_key: &self.inner.console_key,
        }
    }

    /// What pages of the console read in the name of this person.
    pub fn pages<'a>(&'a self, caller: &'a Caller) -> PageReader<'a> {
        PageReader::new(&self.inner.services, caller)
    }

    /// Listens to what changes of the requests that a caller may see, behind a position or from now on. Waits while the
    /// store cannot be read.
    pub async fn listen(
        &self,
        caller: Caller,
        after: Option<Position>,
    ) -> (ChangeListener, ListenerStart) {
        let (services, hub) = (&self.inner.services, &self.inner.hub);
        ChangeListener::begin(Arc::clone(services), Arc::clone(hub), caller, after).await
    }

    /// How many listen.
    pub fn listeners(&self) -> usize {
        self.inner.hub.listeners()
    }

    /// Whether the service can take requests: the store can be written, the bus and a signer be reached, clients are let in,
    /// and it is not leaving.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] with what is in the way.
    pub async fn ready(&self) -> Result<(), Fault> {
        self.health().await.ready()
    }

    /// The same, part by part.
    pub async fn health(&self) -> Health {
        self.inner.health.look(&self.inner.services).await
    }

    /// The admitted nodes, and how many others announce themselves, as this process hears them.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn nodes(&self) -> Result<(Vec<NodeView>, usize), Fault> {
        let services = &self.inner.services;
        let unadmitted = services.signers.unadmitted().len();
        Ok((nodes::heard(services).await?, unadmitted))
    }

    /// How many vaults can sign, as it was last counted, and the last backup: when and how many bytes.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn overview(&self) -> Result<(Option<ServiceCounts>, Option<BackupRow>), Fault> {
        self.inner.health.overview(&self.inner.services).await
    }

    /// The public keys that webhooks are signed with, by whichever process sends them.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn webhook_keys(&self) -> Result<Vec<[u8; 32]>, Fault> {
        let services = &self.inner.services;
        webhooks::shown_keys(services).await
    }

    /// What became of requests in this process, by the name of their kind.
    pub fn requests(&self) -> BTreeMap<&'static str, RequestCounts> {
        self.inner.services.counters.requests()
    }

    /// Requests of this process that are not signed yet, and the bytes that unfinished ones hold.
    pub fn live(&self) -> (usize, usize) {
        let limits = &self.inner.services.limits;
        (limits.live.taken(), limits.live_bytes.taken())
    }

    /// How many messages wait in the deepest mailbox of a vault here, and of a live request.
    pub fn mailbox_depths(&self) -> [(&'static str, usize); 2] {
        let counters = &self.inner.services.counters;
        [
            ("vault", counters.vault_mailboxes.deepest()),
            ("request", counters.request_mailboxes.deepest()),
        ]
    }

    /// How far the blocks of chains were followed for deposits, by this process.
    pub fn follows(&self) -> BTreeMap<FollowedChain, FollowCounts> {
        self.inner.services.counters.follows()
    }

    /// Sweeps of vaults that this process has, by chain.
    pub fn sweeps(&self) -> BTreeMap<FollowedChain, SweepCounts> {
        self.inner.services.counters.sweeps.lock().clone()
    }

    /// The outcome of webhooks that this process has sent.
    pub fn webhook_counts(&self) -> WebhookCounts {
        *self.inner.services.counters.webhooks.lock()
    }

    /// The outcome of notifications that this process has sent.
    pub fn notification_counts(&self) -> NotificationCounts {
        *self.inner.services.counters.notifications.lock()
    }

    /// The chains that any process is to follow, and whether none does now.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn unowned_chains(&self) -> Result<BTreeMap<FollowedChain, bool>, Fault> {
        leases::unowned_chains(&self.inner.services).await
    }

    /// How the nodes of the chains are doing.
    pub fn chain_nodes(&self) -> Vec<EndpointHealth> {
        self.inner.services.chains.health()
    }

    /// How many requests cannot make progress now, and the outcomes of transactions that nodes had forgotten.
    pub fn backlog(&self) -> BacklogCounts {
        let services = &self.inner.services;
        let transactions = services.counters.transactions.lock().clone();
        BacklogCounts {
            transactions,
            waiting: services.counters.waiting(),
            forgotten: *services.counters.forgotten.lock(),
        }
    }
}

/// Tells one request from another by what it says: the same message may come over REST and over
/// gRPC, and JSON with other spaces.
fn fingerprint(request: &Result<Vec<u8>, Fault>, body: &[u8]) -> [u8; 32] {
    match request {
        Ok(message) => Sha256::digest(message),
        Err(_) => Sha256::new_with_prefix("unreadable")
            .chain_update(body)
            .finalize(),
    }
    .into()
}

impl GatewayInner {
    /// Answers a query from the store. Callers that may only read get no signature.
    async fn query(
        &self,
        caller: &Caller,
        operation: &'static RegisteredOperation,
        request: &[u8],
    ) -> Result<Vec<u8>, Fault> {
        let (services, descriptor) = (&*self.services, operation.descriptor());
        // The body of the call may have taken its time.
        let token = tokens::in_use(services, caller).await?;
        let call = OperationCall {
            vaults: &self.vaults,
            key_locks: &self.key_locks,
            backups: &self.backups,
            health: &self.health,
            noted_chains: &self.noted_chains,
            waiters: &self.waiters,
            services,
            caller,
            command_commit: CommandCommit::new(AuditActor::caller(caller), token, None),
        };
        let response = chain_rpc::asked_by(caller.token, operation.run(call, request)).await?;
        match caller.access {
            TokenAccess::Full => Ok(response),
            TokenAccess::ReadOnly => descriptor.response_for_readers(&response),
        }
    }
}
