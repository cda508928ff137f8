//! What every actor shares.

#[cfg(test)]
use std::collections::BTreeSet;
use std::{collections::HashSet, fmt::Display, ops::Deref, sync::Arc, time::Duration};

#[cfg(test)]
use covault_core::audit::AuditChain;

use covault_core::{
    backoff::Backoff,
    deposit::transfer::FollowedChain,
    fault::{Class, Fault, FaultCode},
    ids::{BatchId, OrchestratorId, RequestId, SessionId, VaultId, WalletId},
    networks::KnownChains,
    port::{Clock, Entropy, random_16},
    request::SigningRequest,
    wallet::{Wallet, vault::Vault},
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, OnceCell};
use zeroize::Zeroizing;

use crate::{
    chain_rpc::ChainClients,
    counters::Counters,
    leases::{
        CommitGuard, GuardedStore, HeldLeases, Lease, LeaseFence, LeaseScope, LogListener,
        RestoreFence, Tenure, UnleasedGuard,
    },
    limits::Limits,
    port::{MonotonicClock, SignerCluster},
    refused_payloads::RefusedPayloads,
    settings::{OrchestratorParts, Settings},
    store::{Key, Store, rows},
    tasks::Tasks,
    tracking::{GapSuspect, SpeedUpDue, TrackedRequest, WorkQueue},
    void_answers::{EndedLooks, RefusedVoid},
    webhooks::WebhookParts,
};

/// How long past its deadline the cluster is waited for, in milliseconds: it ends its runs
/// itself, and says who was missing.
pub const DEADLINE_GRACE_MS: u64 = 5_000;

/// What an actor works with: the store as it may write it, and what all share.
pub struct Services {
    /// Takes what belongs to no vault, or, under a lease, what is done under it.
    pub store: Arc<dyn Store>,
    /// The lease of the vault that it is done for.
    pub tenure: Option<Arc<dyn Tenure>>,
    shared: Arc<Shared>,
}

impl Deref for Services {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

/// Where this process tells what happens. Those who listen are above, and own what they make of it.
pub struct Listeners {
    /// Which logs are written to.
    pub logs: Arc<dyn LogListener>,
    /// Which requests have ended.
    pub outcomes: Arc<dyn OutcomeListener>,
    /// Takes the transactions that are to be followed.
    pub tracking: WorkQueue<TrackedRequest>,
    /// Takes the transactions that the policy of their chain has replaced.
    pub speed_ups: WorkQueue<SpeedUpDue>,
    /// Takes the transactions that may wait behind a gap.
    pub gap_suspects: WorkQueue<GapSuspect>,
}

#[cfg(test)]
impl Listeners {
    /// Nobody listens.
    pub fn none() -> Self {
        struct Nobody;
        impl LogListener for Nobody {
            fn is_active(&self) -> bool {
                false
            }

            fn written(&self, _: BTreeSet<AuditChain>) {}
        }
        impl OutcomeListener for Nobody {
            fn ended(&self, _: RequestId) {}
        }
        Self {
            logs: Arc::new(Nobody),
            outcomes: Arc::new(Nobody),
            tracking: crate::tracking::work_queue().0,
            speed_ups: crate::tracking::work_queue().0,
            gap_suspects: crate::tracking::work_queue().0,
        }
    }
}

/// Hears of the end of requests.
pub trait OutcomeListener: Send + Sync {
    /// The request is final, and committed.
    fn ended(&self, request: RequestId);
}

/// Ports and settings, and what the whole process has one of: the leases it holds, its limits, counters and
/// detached tasks, which many use and none alone.
pub struct Shared {
    whole_store: Arc<dyn Store>,
    /// The leases of this orchestrator.
    pub held_leases: Arc<HeldLeases>,
    pub monotonic: Arc<dyn MonotonicClock>,
    /// What operators call this machine.
    pub name: String,
    /// What no other process has at the same time.
    pub home: Option<[u8; 32]>,
    /// Whether vaults run here.
    pub runs_vaults: bool,
    pub signers: Arc<dyn SignerCluster>,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
    pub chains: ChainClients,
    pub known: KnownChains,
    pub settings: Settings,
    pub limits: Limits,
    pub counters: Counters,
    /// Chains of which it is stored since when payments are to be told: that is never taken back.
    pub noted_chains: Mutex<HashSet<FollowedChain>>,
    /// There is something to be sent to webhooks.
    pub notices_due: Notify,
    /// What they are sent with.
    pub webhooks: WebhookParts,
    /// What challenges of the console are marked with, once it was read.
    pub console_key: OnceCell<Zeroizing<[u8; 32]>>,
    /// Tasks that nobody waits for.
    pub tasks: Tasks,
    /// What nodes have said of refused transactions that never come.
    pub refused_void: RefusedVoid,
    /// Whose refused transactions are asked about beside its requests.
    pub ended_looks: EndedLooks,
    /// What refused requests were to do.
    pub refused_payloads: RefusedPayloads,
    /// Who is told what happens.
    pub listeners: Listeners,
}

impl Services {
    pub fn new(orchestrator: OrchestratorParts, listeners: Listeners) -> Self {
        let OrchestratorParts {
            store,
            signers,
            clock,
            entropy,
            chains,
            settings,
            webhooks,
            sharing,
        } = orchestrator;
        let me = OrchestratorId::from_random(random_16(&*entropy));
        let logs = Arc::clone(&listeners.logs);
        let shared = Shared {
            whole_store: Arc::clone(&store),
            held_leases: Arc::new(HeldLeases::new(me)),
            monotonic: sharing.monotonic,
            name: sharing.name,
            home: sharing.home,
            runs_vaults: sharing.runs_vaults,
            signers,
            clock,
            entropy,
            known: chains.known(),
            chains,
            limits: Limits::new(&settings),
            settings,
            counters: Counters::default(),
            noted_chains: Mutex::default(),
            notices_due: Notify::new(),
            webhooks,
            console_key: OnceCell::new(),
            tasks: Tasks::default(),
            refused_void: RefusedVoid::default(),
            ended_looks: EndedLooks::default(),
            refused_payloads: RefusedPayloads::default(),
            listeners,
        };
        Self {
            store: Arc::new(GuardedStore::new(store, UnleasedGuard, logs)),
            tenure: None,
            shared: Arc::new(shared),
        }
    }

    /// The same, for what is done under a lease: nothing is written once it is over.
    pub fn with_lease(&self, lease: Arc<Lease>) -> Self {
        let held_leases = Arc::clone(&self.held_leases);
        let is_vault = matches!(lease.scope(), LeaseScope::Vault(_));
        let tenure = is_vault.then(|| lease.clone() as Arc<dyn Tenure>);
        Self {
            tenure,
            ..self.guarded(LeaseFence { held_leases, lease })
        }
    }

    /// The same, for the first start after a restore; see [`RestoreFence`].
    pub fn with_restore_fence(&self, marker: Key, version: u64) -> Self {
        self.guarded(RestoreFence { marker, version })
    }

    fn guarded(&self, guard: impl CommitGuard + 'static) -> Self {
        Self {
            store: Arc::new(GuardedStore::new(
                Arc::clone(&self.whole_store),
                guard,
                Arc::clone(&self.listeners.logs),
            )),
            tenure: None,
            shared: Arc::clone(&self.shared),
        }
    }

    /// The services for what is done for a vault that is here.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when it is not.
    pub fn for_vault(&self, vault: VaultId) -> Result<Self, Fault> {
        let lease = self.held_leases.get(LeaseScope::Vault(vault));
        Ok(self.with_lease(lease.ok_or_else(vault_is_moving)?))
    }
}

/// The vault is on its way.
pub fn vault_is_moving() -> Fault {
    Fault::unavailable("the vault is being moved to another orchestrator; retry")
        .with_code(FaultCode::VaultMoving)
}

impl Shared {
    /// Whether others saw this orchestrator alive within the lease time, so that what it has is
    /// still its own. What cannot be taken back is begun only then; that this can be wrong by the
    /// time it takes to begin it does no harm (docs/decisions/0024-several-orchestrators.md).
    pub fn is_lease_fresh(&self) -> bool {
        let passed = self
            .monotonic
            .elapsed_ms()
            .saturating_sub(self.held_leases.seen_ms());
        self.whole_store.exclusive() || passed < self.settings.lease_ms
    }

    pub fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    pub fn new_request_id(&self) -> RequestId {
        RequestId::from_time(self.now_ms(), random_16(&*self.entropy))
    }

    pub fn new_session_id(&self) -> SessionId {
        SessionId::from_random(random_16(&*self.entropy))
    }

    pub fn new_vault_id(&self) -> VaultId {
        VaultId::from_random(random_16(&*self.entropy))
    }

    pub fn new_wallet_id(&self) -> WalletId {
        WalletId::from_time(self.now_ms(), random_16(&*self.entropy))
    }

    pub fn new_batch_id(&self) -> BatchId {
        BatchId::from_time(self.now_ms(), random_16(&*self.entropy))
    }

    /// How long a command may wait for an actor.
    pub fn call_timeout(&self) -> Option<Duration> {
        Some(Duration::from_millis(self.settings.command_timeout_ms))
    }

    /// The pause before try number `tries`, from 0.
    pub fn backoff(&self, tries: u32) -> Duration {
        let Settings {
            retry_first_ms,
            retry_most_ms,
            ..
        } = self.settings;
        let [first, longest] = [retry_first_ms, retry_most_ms].map(Duration::from_millis);
        let mut random = [0; 1];
        self.entropy.fill(&mut random);
        let [random] = random;
        Backoff::new(first, longest).jittered(tries, random)
    }
}

impl Services {
    /// A value with the version of its row.
    pub async fn load<T: DeserializeOwned>(&self, key: &Key) -> Result<Option<(T, u64)>, Fault> {
        match self.store.get(key).await? {
            Some(row) => Ok(Some((rows::decode(&row.value)?, row.version))),
            None => Ok(None),
        }
    }

    /// Several of one kind, in the order of their keys: `None` where there is none, an error where
    /// one cannot be decoded.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn load_all<T: DeserializeOwned>(
        &self,
        keys: &[Key],
    ) -> Result<Vec<Result<Option<T>, Fault>>, Fault> {
        let Some(space) = keys.first().map(|key| key.space) else {
            return Ok(Vec::new());
        };
        let bytes: Vec<_> = keys.iter().map(|key| key.bytes.clone()).collect();
        let found = self.store.get_all(space, &bytes).await?;
        let rows = bytes.iter().map(|key| found.get(key));
        Ok(rows
            .map(|row| row.map(|row| rows::decode(&row.value)).transpose())
            .collect())
    }

    pub async fn request(&self, id: RequestId) -> Result<Option<(SigningRequest, u64)>, Fault> {
        self.load(&rows::request(id)).await
    }

    pub async fn vault(&self, id: VaultId) -> Result<Option<(Vault, u64)>, Fault> {
        self.load(&rows::vault(id)).await
    }

    /// How often the rule of approval of a vault was changed.
    pub async fn rule_changes(&self, vault: VaultId) -> Result<u64, Fault> {
        let row = self.load(&rows::rule_changes(vault)).await?;
        Ok(row.map_or(0, |(changes, _)| changes))
    }

    /// The wallet that an index row names, with the version of its row.
    pub async fn wallet_by(&self, index: &Key) -> Result<Option<(Wallet, u64)>, Fault> {
        let Some((id, _)) = self.load::<WalletId>(index).await? else {
            return Ok(None);
        };
        self.load(&rows::wallet(id)).await
    }

    /// As [`Services::wallet_by`], for commands: what is known of a wallet whose vault is here is not read again.
    pub async fn hot_wallet_by(&self, index: &Key) -> Result<Option<(Wallet, u64)>, Fault> {
        let hot = &self.held_leases.hot_rows;
        let since = hot.begin();
        let (index_row, known) = match hot.find(index) {
            Some(row) => (row, true),
            None => match self.store.get(index).await? {
                Some(row) => (row, false),
                None => return Ok(None),
            },
        };
        let Some((wallet, version)) = self
            .hot(&rows::wallet(rows::decode(&index_row.value)?), vault_of)
            .await?
        else {
            return Ok(None);
        };
        let lease = self.held_leases.get(LeaseScope::Vault(wallet.vault));
        if let (Some(lease), false) = (lease, known) {
            hot.keep(lease, index, &index_row, since);
        }
        Ok(Some((wallet, version)))
    }

    /// As [`Services::wallet`], for commands.
    pub async fn hot_wallet(&self, id: WalletId) -> Result<(Wallet, u64), Fault> {
        let wallet = self.hot(&rows::wallet(id), vault_of).await?;
        wallet.ok_or_else(|| Fault::bug("no such wallet"))
    }

    /// As [`Services::vault`], for commands.
    pub async fn hot_vault(&self, id: VaultId) -> Result<Option<(Vault, u64)>, Fault> {
        self.hot(&rows::vault(id), |vault: &Vault| vault.id).await
    }

    async fn hot<T: DeserializeOwned>(
        &self,
        key: &Key,
        vault: fn(&T) -> VaultId,
    ) -> Result<Option<(T, u64)>, Fault> {
        let hot = &self.held_leases.hot_rows;
        if let Some(row) = hot.find(key) {
            return Ok(Some((rows::decode(&row.value)?, row.version)));
        }
        let since = hot.begin();
        let Some(row) = self.store.get(key).await? else {
            return Ok(None);
        };
        let value: T = rows::decode(&row.value)?;
        if let Some(lease) = self.held_leases.get(LeaseScope::Vault(vault(&value))) {
            hot.keep(lease, key, &row, since);
        }
        Ok(Some((value, row.version)))
    }

    pub async fn wallet(&self, id: WalletId) -> Result<(Wallet, u64), Fault> {
        let wallet = self.load(&rows::wallet(id)).await?;
        wallet.ok_or_else(|| Fault::bug("no such wallet"))
    }
}

fn vault_of(wallet: &Wallet) -> VaultId {
    wallet.vault
}

/// What is stored and cannot be read must not keep anybody from the rest: it is left alone, and the
/// log says so. `None` then.
///
/// # Errors
/// All but [`Class::Bug`].
pub fn skip_unreadable<T>(found: Result<T, Fault>, what: impl Display) -> Result<Option<T>, Fault> {
    match found {
        Err(fault) if *fault.class() == Class::Bug => {
            tracing::error!(%what, ?fault, "a stored value cannot be read; skipped");
            Ok(None)
        }
        found => found.map(Some),
    }
}
