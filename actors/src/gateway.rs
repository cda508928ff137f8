//! The only door into the orchestrator.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use covault_core::{
    audit::{Chain, Head, Linked},
    fault::{Class, Fault},
    ids::{SessionId, TokenId, VaultId},
    order::NodeId,
    request::Audit,
    schema::wire,
    scheme::Scheme,
    token::{Access, ApiToken, NewToken, TokenHash},
};
use prost::Message as _;
use ractor::{Actor, ActorRef, rpc::CallResult};
use tokio::sync::{Semaphore, watch};

use crate::{
    audit::{self, By},
    backups,
    context::Context,
    directory,
    idempotency::{self, Earlier, Entry, InWork, Pledge},
    nodes,
    port::{NodeView, StrangerView},
    request_index, restored,
    root::{self, DirectoryAddress, Root},
    rows::Operation,
    rpc::EndpointHealth,
    settings::Orchestrator,
    simulations,
    store::{Key, RawRow, Space},
    vault, views,
};

pub use crate::{
    deposits::{Configure as ConfigureSweep, SweepView},
    dropped::Forgotten,
    operations::ShareBackup,
    tokens::MadeToken,
    vault::{
        Wish as Reshare,
        view::{KeyView, VaultView, WorkView},
    },
};

/// How long [`Gateway::stop`] waits for each of its steps.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// What is stuck, or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Requests that cannot go on now.
    pub waiting: usize,
    /// What became of transactions that nodes had forgotten.
    pub forgotten: Forgotten,
}

/// Who calls, after authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The token; scope of idempotency keys.
    pub token: TokenId,
    /// What the token may reach.
    pub vaults: VaultScope,
    /// What the token may do.
    pub access: Access,
    /// Whether it may do what operators do: vaults, nodes, tokens.
    pub operator: bool,
    /// The request id that errors and logs carry.
    pub request_id: String,
}

/// The vaults that a caller may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VaultScope {
    /// Every vault.
    All,
    /// These.
    Only(Vec<covault_core::ids::VaultId>),
}

/// An idempotency key with the SHA-256 of the request body it came with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// 1 to 255 characters.
    pub key: String,
    /// SHA-256 of the body.
    pub body_hash: [u8; 32],
}

/// Something to be done. Durable when [`Gateway::submit`] returns.
#[derive(Clone, Debug)]
pub enum Command {
    /// createWallet.
    CreateWallet(wire::CreateWalletRequest),
    /// updateWallet.
    UpdateWallet(wire::UpdateWalletRequest),
    /// createSigningRequest.
    CreateSigningRequest(wire::CreateSigningRequestRequest),
    /// rejectSigningRequest.
    RejectSigningRequest {
        /// The uuid as the client sent it.
        uuid: String,
    },
    /// resimulation.
    Resimulate {
        /// The uuid as the client sent it.
        uuid: String,
    },
    /// createBatchPayment.
    CreateBatchPayment(wire::CreateBatchPaymentRequest),
    /// Makes a vault: keygen of both root keys. Answers when the vault is stored; its keys
    /// follow (`Query::Vault`). The name is unique: repeating it answers the same vault, and
    /// tries again what had failed for good.
    CreateVault {
        /// Name, unique.
        name: String,
        /// Signers needed, 2 or more.
        threshold: u16,
        /// The nodes that get a share.
        signers: Vec<NodeId>,
        /// The scheme of its ECDSA key.
        ecdsa: Scheme,
    },
    /// As [`Command::CreateVault`], and has a vault of this name that has not all its keys yet make
    /// those that it lacks with these signers: the first ones may never come.
    ReplaceSigners {
        /// Name, unique.
        name: String,
        /// Signers needed, 2 or more.
        threshold: u16,
        /// The nodes that get a share.
        signers: Vec<NodeId>,
        /// The scheme of its ECDSA key.
        ecdsa: Scheme,
    },
    /// Makes new shares of a vault's keys: refresh, reshare, repair. Answers when the wish is
    /// stored; the keys' views say how it goes. Repeating it while it is in work changes nothing.
    ReshareVault {
        /// The vault's uuid.
        vault: String,
        /// What is wanted.
        reshare: Reshare,
    },
    /// Cancels that, before the new shares are in use.
    CancelReshare {
        /// The vault's uuid.
        vault: String,
    },
    /// Has every holder of a vault's keys encrypt its share to recipients that are kept offline.
    BackupVault {
        /// The vault's uuid.
        vault: String,
        /// age recipients ("age1..."), all of which each node's own configuration must name.
        recipients: Vec<String>,
    },
    /// Lets a signer node be used. Repeating it changes nothing but the name, if one is given.
    AdmitNode {
        /// Its identity.
        id: NodeId,
        /// What operators call it; empty: what it calls itself.
        name: String,
    },
    /// Ends the use of a signer node; refused while it holds shares.
    RemoveNode(NodeId),
    /// Makes an API token.
    CreateToken(NewToken),
    /// Ends the use of an API token, by its id or name. Repeating it by id changes nothing.
    RevokeToken(String),
    /// Changes what a sweep token has configured for a network.
    ConfigureSweep(ConfigureSweep),
    /// sweep/wallets. Once per token, network and ref.
    CreateDepositWallet(wire::CreateDepositWalletRequest),
    /// sweep/addWatchAddress. Once per token and address.
    AddWatchAddress(wire::AddWatchAddressRequest),
    /// Begins a backup of the store; its parts are asked for then ([`Query::BackupPart`]).
    BeginBackup,
    /// Lets clients in again after a restore.
    LetClientsIn,
}

/// What a command made.
#[derive(Clone, Debug)]
pub enum Receipt {
    /// The wallet.
    Wallet(wire::Wallet),
    /// The request, pending.
    SigningRequest(Box<wire::SigningRequest>),
    /// The request is rejected.
    Rejected,
    /// What a request's transaction would do; the bytes of `simulation`.
    Simulation(Vec<u8>),
    /// The batch, pending.
    BatchPayment(Box<wire::BatchPayment>),
    /// The vault.
    Vault(VaultView),
    /// Encrypted shares.
    Backups(Vec<ShareBackup>),
    /// The list of nodes is as it was asked for.
    NodesChanged,
    /// A new token: the only time that it is shown.
    TokenMade(Box<MadeToken>),
    /// A token as it is now.
    Token(Box<ApiToken>),
    /// A sweep token's configuration.
    Sweep(Box<SweepView>),
    /// The deposit wallet.
    Deposit(wire::CreateDepositWalletResponse),
    /// The watch.
    Watch(wire::AddWatchAddressResponse),
    /// The id of a backup.
    Backup(SessionId),
    /// Clients are let in.
    ClientsLetIn,
}

/// A receipt, and whether an idempotency key replayed it.
#[derive(Clone, Debug)]
pub struct Submitted {
    /// What was made (or, replayed, what was made then: byte for byte).
    pub receipt: Receipt,
    /// An earlier call with the same key made it.
    pub replayed: bool,
    /// That call had another body.
    pub body_mismatch: bool,
}

/// A question. Answered from state; only `Outcome` waits.
#[derive(Clone, Debug)]
pub enum Query {
    /// getSigningRequestDetails.
    SigningRequest {
        /// The uuid as the client sent it.
        uuid: String,
    },
    /// getSigningRequestList.
    SigningRequests(wire::GetSigningRequestListRequest),
    /// getBatchPaymentDetails.
    BatchPayment {
        /// The uuid as the client sent it.
        uuid: String,
    },
    /// executeSigningRequests: waits until the request is final.
    Outcome {
        /// The uuid as the client sent it.
        uuid: String,
        /// How long to wait, in milliseconds.
        timeout_ms: u64,
    },
    /// getWalletInfo by address.
    WalletByAddress(String),
    /// getWalletInfo by ref.
    WalletByRef(String),
    /// getWalletList.
    Wallets(wire::GetWalletListRequest),
    /// getBalance.
    Balance(wire::GetBalanceRequest),
    /// One vault, by name.
    Vault(String),
    /// All vaults in scope.
    Vaults,
    /// All admitted signer nodes, and those that want to join.
    Nodes,
    /// All API tokens.
    Tokens,
    /// The token of a hash that may be used now.
    Authenticate(TokenHash),
    /// What a sweep token has configured, by its id or name.
    Sweep(String),
    /// A question about the audit log.
    Audit(AuditQuery),
    /// A part of a backup, by the backup's id and the part's number, from 0 on.
    BackupPart(SessionId, u64),
    /// How the nodes of the chains are doing.
    ChainNodes,
    /// How many requests cannot go on now, and what became of transactions that nodes had forgotten.
    Stuck,
    /// Whether the service can take requests: store writable, bus reachable.
    Ready,
}

/// A question about the audit log; see [`audit::Log`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditQuery {
    /// The next chains after one.
    Chains(Option<Chain>),
    /// The entries of a chain from a number on.
    Entries(Chain, u64),
    /// What is older than the chains, after one such place.
    Older(Option<audit::Place>),
}

/// An answer about the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditView {
    /// Chains, with their heads.
    Chains(Vec<(Chain, Option<Head>)>),
    /// Entries, with the numbers under which they lie.
    Entries {
        /// At most [`audit::PAGE`].
        entries: Vec<(u64, Linked)>,
        /// The head of the chain, looked up after them.
        head: Option<Head>,
    },
    /// What is older.
    Older(Vec<(audit::Place, Vec<Audit>)>),
}

/// An answer.
#[derive(Clone, Debug)]
pub enum View {
    /// A signing request.
    SigningRequest(Box<wire::SigningRequest>),
    /// Signing requests.
    SigningRequests(Vec<wire::SigningRequest>),
    /// A batch payment.
    BatchPayment(Box<wire::BatchPayment>),
    /// How a request ended; the response message of executeSigningRequests.
    Outcome(Box<wire::ExecuteSigningRequestsResponse>),
    /// A wallet.
    Wallet(wire::Wallet),
    /// Wallets.
    Wallets(Vec<wire::Wallet>),
    /// A balance, decimal, in the smallest unit.
    Balance(String),
    /// A vault.
    Vault(VaultView),
    /// Vaults.
    Vaults(Vec<VaultView>),
    /// Signer nodes.
    Nodes {
        /// Admitted, by name.
        nodes: Vec<NodeView>,
        /// Not admitted, by key.
        strangers: Vec<StrangerView>,
    },
    /// API tokens, in the order in which they were made.
    Tokens {
        /// Revoked and expired ones too.
        tokens: Vec<ApiToken>,
        /// The orchestrator's clock, in milliseconds since the Unix epoch.
        now_ms: u64,
    },
    /// An API token.
    Token(Box<ApiToken>),
    /// A sweep token's configuration.
    Sweep(Box<SweepView>),
    /// A part of the audit log.
    Audit(AuditView),
    /// Rows of a backup; none: there are no more.
    BackupPart(Vec<RawRow>),
    /// Nodes of chains.
    ChainNodes(Vec<EndpointHealth>),
    /// What is stuck.
    Stuck(Stuck),
    /// Ready.
    Ready,
}

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
    /// One permit per command in work.
    commands: Semaphore,
    /// One permit per live request.
    pub(crate) live: Arc<Semaphore>,
    /// One permit per byte of live requests.
    pub(crate) live_bytes: Arc<Semaphore>,
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
                commands: Semaphore::new(permits(settings.max_commands)),
                live: Arc::new(Semaphore::new(permits(settings.max_live_requests))),
                live_bytes: Arc::new(Semaphore::new(permits(settings.max_live_bytes))),
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
        let inner = Arc::clone(&self.inner);
        let caller = caller.clone();
        // A task of its own: a client that hangs up must not leave a command half done with
        // its idempotency key free.
        tokio::spawn(async move { inner.submit(&caller, command, idempotency).await })
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
        command: Command,
        idempotency: Option<IdempotencyKey>,
    ) -> Result<Submitted, Fault> {
        if self.closing.load(Ordering::SeqCst) {
            return Err(Fault::unavailable("the service is shutting down"));
        }
        full_access(caller)?;
        if !caller.operator {
            self.context.hold.check(&self.context).await?;
        }
        let _slot = self.commands.try_acquire().map_err(|_| too_many())?;
        let operation = match &command {
            Command::CreateWallet(_) => Some(Operation::CreateWallet),
            Command::CreateSigningRequest(_) => Some(Operation::CreateSigningRequest),
            Command::CreateBatchPayment(_) => Some(Operation::CreateBatchPayment),
            // A vault's name is its key, as a token's, and a deposit's is (token, network, ref);
            // repeating the others does no harm.
            Command::UpdateWallet(_)
            | Command::RejectSigningRequest { .. }
            | Command::Resimulate { .. }
            | Command::CreateVault { .. }
            | Command::ReplaceSigners { .. }
            | Command::ReshareVault { .. }
            | Command::CancelReshare { .. }
            | Command::BackupVault { .. }
            | Command::AdmitNode { .. }
            | Command::RemoveNode(_)
            | Command::CreateToken(_)
            | Command::RevokeToken(_)
            | Command::BeginBackup
            | Command::LetClientsIn
            | Command::ConfigureSweep(_)
            | Command::CreateDepositWallet(_)
            | Command::AddWatchAddress(_) => None,
        };
        let Some((operation, key)) = operation.zip(idempotency) else {
            return Ok(Submitted::first(self.run(caller, command, None).await?));
        };
        let token = caller.token;
        let entry = self.in_work.enter(&self.context, token, operation, &key);
        let (pledge, _turn) = match entry.await? {
            Entry::Replay(earlier) => return Submitted::again(operation, &earlier),
            Entry::First(pledge, turn) => (pledge, turn),
        };
        let fault = match self.run(caller, command, Some(pledge)).await {
            Ok(receipt) => return Ok(Submitted::first(receipt)),
            Err(fault) => fault,
        };
        let found = idempotency::look_again(&self.context, token, operation, &key).await;
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
        pledge: Option<Pledge>,
    ) -> Result<Receipt, Fault> {
        Ok(match command {
            Command::CreateWallet(request) => {
                Receipt::Wallet(self.create_wallet(caller, request, pledge).await?)
            }
            Command::UpdateWallet(request) => {
                Receipt::Wallet(self.update_wallet(caller, request).await?)
            }
            Command::CreateSigningRequest(request) => Receipt::SigningRequest(Box::new(
                self.create_request(caller, request, pledge).await?,
            )),
            Command::RejectSigningRequest { uuid } => {
                self.reject_request(caller, &uuid).await?;
                Receipt::Rejected
            }
            Command::Resimulate { uuid } => {
                let request = views::request(&self.context, caller, uuid.parse()?).await?;
                Receipt::Simulation(simulations::again(&self.context, &request).await?)
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
                Receipt::Deposit(self.create_deposit_wallet(caller, &request).await?)
            }
            Command::BeginBackup => {
                operators_only(caller)?;
                let by = By::caller(caller);
                Receipt::Backup(backups::begin(&self.context, &by).await?)
            }
            Command::LetClientsIn => {
                operators_only(caller)?;
                restored::resume(&self.context, &By::caller(caller)).await?;
                Receipt::ClientsLetIn
            }
            Command::AddWatchAddress(request) => {
                Receipt::Watch(self.add_watch_address(caller, &request).await?)
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

/// The vault of a uuid, when the caller may reach it. Whether another one exists is not told.
pub(crate) fn vault_in_scope(caller: &Caller, uuid: &str) -> Result<VaultId, Fault> {
    let vault: VaultId = uuid.parse()?;
    if !in_scope(caller, vault) {
        return Err(Fault::new(
            Class::Forbidden,
            "the vault is outside the scope of this token",
        ));
    }
    Ok(vault)
}

/// Refuses callers who may only look.
pub(crate) fn full_access(caller: &Caller) -> Result<(), Fault> {
    match caller.access {
        Access::Full => Ok(()),
        Access::ReadOnly => Err(Fault::new(Class::Forbidden, "this token can only read")),
    }
}

/// Refuses callers who are no operators. A token that reaches every vault is not one for that.
pub(crate) fn operators_only(caller: &Caller) -> Result<(), Fault> {
    if caller.operator {
        return Ok(());
    }
    Err(Fault::new(
        Class::Forbidden,
        "only operators may do this: it needs the admin token",
    ))
}

pub(crate) fn in_scope(caller: &Caller, vault: VaultId) -> bool {
    match &caller.vaults {
        VaultScope::All => true,
        VaultScope::Only(vaults) => vaults.contains(&vault),
    }
}

impl Submitted {
    /// What this call made.
    fn first(receipt: Receipt) -> Self {
        Self {
            receipt,
            replayed: false,
            body_mismatch: false,
        }
    }

    /// What an earlier call with the same key got.
    fn again(operation: Operation, earlier: &Earlier) -> Result<Self, Fault> {
        let bytes = earlier.receipt.as_slice();
        let receipt = match operation {
            Operation::CreateWallet => wire::Wallet::decode(bytes).map(Receipt::Wallet),
            Operation::CreateSigningRequest => wire::SigningRequest::decode(bytes)
                .map(|request| Receipt::SigningRequest(Box::new(request))),
            Operation::CreateBatchPayment => wire::BatchPayment::decode(bytes)
                .map(|batch| Receipt::BatchPayment(Box::new(batch))),
        };
        Ok(Self {
            receipt: receipt.map_err(Fault::bug)?,
            replayed: true,
            body_mismatch: earlier.body_mismatch,
        })
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

/// As many permits as a semaphore can hold, and hand out at once.
fn permits(most: usize) -> usize {
    let at_once = usize::try_from(u32::MAX).unwrap_or(usize::MAX);
    most.min(Semaphore::MAX_PERMITS).min(at_once)
}

fn starting() -> Fault {
    Fault::unavailable("this part of the service is starting; try again")
}

/// The service has as much to do as it may take on; no limit of a caller's.
pub(crate) fn too_many() -> Fault {
    Fault::unavailable("too many requests are in work; try again later")
}
