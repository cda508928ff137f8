//! What every actor shares: ports, settings, and what exists once per process. What only one room keeps in
//! memory belongs to the actor that writes it.

mod reads;

#[cfg(test)]
use std::collections::BTreeSet;
use std::{collections::HashMap, fmt::Display, ops::Deref, sync::Arc, time::Duration};

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
    trace::Tracer,
};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::timeout};

use crate::{
    chain_rpc::ChainClients,
    leases::{
        CommitGuard, GuardedStore, HeldLeases, Lease, LeaseFence, LeaseScope, LeaseTerm,
        LogListener, RestoreFence, UnleasedGuard,
    },
    port::{LogControl, MonotonicClock, SignerCluster},
    process::{counters::Counters, limits::Limits, tasks::Tasks},
    requests::tracking::{GapSuspect, SpeedUpDue, TrackedRequest, WorkQueue},
    settings::{OrchestratorParts, Settings},
    store::{Key, Store},
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
    pub lease_term: Option<Arc<dyn LeaseTerm>>,
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
    /// There is something to be sent to webhooks.
    pub notices_due: Notify,
    /// What the followers of chains do was changed.
    pub followers: ChainWakes,
    /// What the sweepers of chains wait for has come.
    pub sweepers: ChainWakes,
}

/// Has what is done for a chain looked at before its next poll. A hint for this process alone: others find it by their polls.
#[derive(Default)]
pub struct ChainWakes(Mutex<HashMap<FollowedChain, Arc<Notify>>>);

impl ChainWakes {
    /// There is something to look at: at once, or as soon as the present look is over.
    pub fn wake(&self, chain: FollowedChain) {
        self.of(chain).notify_one();
    }

    /// The same, of some chains.
    pub fn wake_all(&self, chains: impl Iterator<Item = FollowedChain>) {
        chains.for_each(|chain| self.wake(chain));
    }

    /// Ends when there is something to look at, and with the pause.
    pub fn wait(&self, chain: FollowedChain, pause: Duration) -> impl Future<Output = ()> + use<> {
        let due = self.of(chain);
        // Either is as good.
        async move { timeout(pause, due.notified()).await.unwrap_or_default() }
    }

    fn of(&self, chain: FollowedChain) -> Arc<Notify> {
        Arc::clone(self.0.lock().entry(chain).or_default())
    }
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
            fn ended(&self, _: &SigningRequest) {}
        }
        Self {
            logs: Arc::new(Nobody),
            outcomes: Arc::new(Nobody),
            tracking: crate::requests::tracking::work_queue().0,
            speed_ups: crate::requests::tracking::work_queue().0,
            gap_suspects: crate::requests::tracking::work_queue().0,
            notices_due: Notify::new(),
            followers: ChainWakes::default(),
            sweepers: ChainWakes::default(),
        }
    }
}

/// Hears of the end of requests.
pub trait OutcomeListener: Send + Sync {
    /// The request is over, or waits for people, and that is committed.
    fn ended(&self, request: &SigningRequest);
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
    /// Tells the secret that all orchestrators share from another one.
    pub secret_fingerprint: Option<[u8; 8]>,
    pub log: Arc<dyn LogControl>,
    pub tracer: Tracer,
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
    /// What notices are sent to webhooks with.
    pub webhooks: WebhookParts,
    /// Tasks that nobody waits for.
    pub tasks: Tasks,
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
            secret_fingerprint: sharing.secret_fingerprint,
            log: sharing.log,
            tracer: sharing.tracer,
            runs_vaults: sharing.runs_vaults,
            signers,
            clock,
            entropy,
            known: chains.known(),
            chains,
            limits: Limits::new(&settings),
            settings,
            counters: Counters::default(),
            webhooks,
            tasks: Tasks::default(),
            listeners,
        };
        Self {
            store: Arc::new(GuardedStore::new(store, UnleasedGuard, logs)),
            lease_term: None,
            shared: Arc::new(shared),
        }
    }

    /// The same, for what is done under a lease: nothing is written once it is over.
    pub fn with_lease(&self, lease: Arc<Lease>) -> Self {
        let held_leases = Arc::clone(&self.held_leases);
        let is_vault = matches!(lease.scope(), LeaseScope::Vault(_));
        let lease_term = is_vault.then(|| lease.clone() as Arc<dyn LeaseTerm>);
        Self {
            lease_term,
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
            lease_term: None,
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

/// What is stored and cannot be read must not keep anyone from the rest: it is left alone, and the
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
