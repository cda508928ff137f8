//! The leases that this orchestrator holds, and the work that runs under them.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use covault_core::ids::{OrchestratorId, VaultId};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    LeaseScope,
    hot_numbers::HotNumbers,
    hot_rows::{Fence, HotRows, LeaseTerm},
};

/// Most commands that may be in progress on one vault; the gateway has a smaller limit for all.
const MAX_COMMANDS: u32 = 1 << 20;

/// One period of lease ownership.
pub struct Lease {
    scope: LeaseScope,
    version: u64,
    over: AtomicBool,
    /// One permit per command in progress.
    commands: Arc<Semaphore>,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({:?}, version {})", self.scope, self.version)
    }
}

/// A command in progress: the vault is not released before its end, though it may be lost.
pub struct LeaseGuard {
    lease: Arc<Lease>,
    _permit: OwnedSemaphorePermit,
}

impl LeaseGuard {
    /// Whether the vault was lost since: what the command has not committed by now, it never will.
    pub fn is_lost(&self) -> bool {
        self.lease.has_ended()
    }
}

impl LeaseTerm for Lease {
    fn is_over(&self) -> bool {
        self.has_ended()
    }

    fn fence(&self) -> Fence {
        Fence {
            row: self.scope.key(),
            version: self.version,
        }
    }
}

impl Lease {
    /// The lease that began with this version of the lease's row.
    pub fn new(scope: LeaseScope, version: u64) -> Arc<Self> {
        Arc::new(Self {
            scope,
            version,
            over: AtomicBool::new(false),
            commands: Arc::new(Semaphore::new(
                usize::try_from(MAX_COMMANDS).unwrap_or(usize::MAX),
            )),
        })
    }

    /// What it is about.
    pub fn scope(&self) -> LeaseScope {
        self.scope
    }

    /// The fencing token.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether it has ended: nothing may be done under it.
    pub fn has_ended(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Waits until the commands that are in progress have ended, and lets no other begin.
    pub async fn drain(&self, patience: Duration) {
        let all = self.commands.acquire_many(MAX_COMMANDS);
        if tokio::time::timeout(patience, all).await.is_err() {
            tracing::warn!(scope = ?self.scope, "commands are still running; the vault moves to another orchestrator without waiting for them");
        }
        self.commands.close();
    }
}

type LeaseListener = Box<dyn Fn(VaultId) + Send + Sync>;

/// All that this orchestrator has.
pub struct HeldLeases {
    me: OrchestratorId,
    held: Mutex<HashMap<LeaseScope, Arc<Lease>>>,
    listener: Mutex<Option<LeaseListener>>,
    /// When others were last known to see this orchestrator alive, by the steady clock; 0: never.
    seen_ms: AtomicU64,
    /// How often something was given back, or made for others.
    moves: AtomicU64,
    /// The version of the row of this orchestrator.
    heartbeat: AtomicU64,
    /// The orchestrators that are alive and take something; `None` before the first look.
    eligible: Mutex<Option<Vec<OrchestratorId>>>,
    /// What is known of the wallets and vaults that are here.
    pub hot_rows: HotRows,
    /// What is known of the numbers that requests of these vaults hold.
    pub hot_numbers: HotNumbers,
}

impl HeldLeases {
    /// Nothing yet.
    pub fn new(me: OrchestratorId) -> Self {
        Self {
            me,
            held: Mutex::default(),
            listener: Mutex::default(),
            seen_ms: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            heartbeat: AtomicU64::new(0),
            eligible: Mutex::default(),
            hot_rows: HotRows::default(),
            hot_numbers: HotNumbers::default(),
        }
    }

    /// This orchestrator.
    pub fn me(&self) -> OrchestratorId {
        self.me
    }

    fn held(&self) -> MutexGuard<'_, HashMap<LeaseScope, Arc<Lease>>> {
        self.held.lock()
    }

    /// The present lease.
    pub fn get(&self, scope: LeaseScope) -> Option<Arc<Lease>> {
        self.held().get(&scope).cloned()
    }

    /// Everything.
    pub fn all(&self) -> Vec<Arc<Lease>> {
        self.held().values().cloned().collect()
    }

    /// How many vaults are here.
    pub fn vaults(&self) -> usize {
        let held = self.held();
        let vaults = held
            .keys()
            .filter(|scope| matches!(scope, LeaseScope::Vault(_)));
        vaults.count()
    }

    /// Begins a command on a vault; `None` when the vault is not here, or just goes.
    pub fn enter(&self, vault: VaultId) -> Option<LeaseGuard> {
        let lease = self.get(LeaseScope::Vault(vault))?;
        let permit = Arc::clone(&lease.commands).try_acquire_owned().ok()?;
        Some(LeaseGuard {
            lease,
            _permit: permit,
        })
    }

    /// From now on this is here, unless it is already, or again since: several find out about one
    /// lease, in any order.
    pub fn begin(&self, lease: Arc<Lease>) {
        let scope = lease.scope;
        {
            let mut held = self.held();
            let present = held.get(&scope);
            if present.is_some_and(|present| present.version >= lease.version) {
                return;
            }
            self.hot_rows.lease_began(&lease.fence());
            if let Some(old) = held.insert(scope, lease) {
                old.over.store(true, Ordering::SeqCst);
            }
        }
        self.tell(scope);
    }

    /// From now on nothing is done under this lease.
    pub fn end(&self, lease: &Lease) {
        lease.over.store(true, Ordering::SeqCst);
        let ended = {
            let mut held = self.held();
            let present = held.get(&lease.scope);
            let present = present.is_some_and(|present| present.version == lease.version);
            present && held.remove(&lease.scope).is_some()
        };
        if ended {
            self.tell(lease.scope);
        }
    }

    /// Who is told of each change. Nobody else is from then on.
    pub fn on_change(&self, listener: LeaseListener) {
        *self.listener.lock() = Some(listener);
    }

    fn tell(&self, scope: LeaseScope) {
        let listener = self.listener.lock();
        if let (LeaseScope::Vault(vault), Some(listener)) = (scope, &*listener) {
            listener(vault);
        }
    }

    /// Others see this orchestrator alive; its row got this version after `now_ms` of the steady
    /// clock.
    pub fn seen(&self, version: u64, now_ms: u64) {
        self.heartbeat.store(version, Ordering::SeqCst);
        self.seen_ms.store(now_ms, Ordering::SeqCst);
    }

    /// The last version of its row that this orchestrator has written.
    pub fn heartbeat(&self) -> u64 {
        self.heartbeat.load(Ordering::SeqCst)
    }

    /// When that was last so.
    pub fn seen_ms(&self) -> u64 {
        self.seen_ms.load(Ordering::SeqCst)
    }

    /// These are alive and take something.
    pub fn set_eligible(&self, eligible: Vec<OrchestratorId>) {
        *self.eligible.lock() = Some(eligible);
    }

    /// Who is alive and takes something, as it was last seen.
    pub fn eligible(&self) -> Option<Vec<OrchestratorId>> {
        let eligible = self.eligible.lock();
        eligible.clone()
    }

    /// There is something for others.
    pub fn moved(&self) {
        self.moves.fetch_add(1, Ordering::SeqCst);
    }

    /// How often that was so.
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn held_leases() -> (HeldLeases, VaultId) {
        let me = OrchestratorId::from_bytes([1; 16]);
        (HeldLeases::new(me), VaultId::from_bytes([2; 16]))
    }

    #[tokio::test]
    async fn drain__should_wait_for_commands_and_let_no_other_begin() {
        let (held_leases, vault) = held_leases();
        assert!(held_leases.enter(vault).is_none());
        held_leases.begin(Lease::new(LeaseScope::Vault(vault), 3));
        let stay = held_leases.enter(vault).unwrap();
        let lease = held_leases.get(LeaseScope::Vault(vault)).unwrap();
        let draining = tokio::spawn(async move { lease.drain(Duration::from_secs(600)).await });
        tokio::task::yield_now().await;
        assert!(!draining.is_finished());
        drop(stay);
        draining.await.unwrap();
        assert!(held_leases.enter(vault).is_none());
    }

    #[test]
    fn begin__should_not_undo_a_lease_that_is_as_new() {
        let (held_leases, vault) = held_leases();
        let scope = LeaseScope::Vault(vault);
        let second = Lease::new(scope, 2);
        held_leases.begin(Arc::clone(&second));
        for version in [1, 2] {
            held_leases.begin(Lease::new(scope, version));
            assert!(!second.has_ended());
            assert!(Arc::ptr_eq(&held_leases.get(scope).unwrap(), &second));
        }
        held_leases.begin(Lease::new(scope, 3));
        assert!(second.has_ended());
    }

    #[test]
    fn end__should_end_no_later_lease_and_tell_of_changes_alone() {
        let (held_leases, vault) = held_leases();
        let told = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&told);
        held_leases.on_change(Box::new(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        }));
        let first = Lease::new(LeaseScope::Vault(vault), 3);
        held_leases.begin(Arc::clone(&first));
        let second = Lease::new(LeaseScope::Vault(vault), 5);
        held_leases.begin(Arc::clone(&second));
        assert!(first.has_ended() && !second.has_ended());
        held_leases.end(&first);
        assert!(!second.has_ended());
        assert_eq!(told.load(Ordering::SeqCst), 2);
        held_leases.end(&second);
        held_leases.end(&second);
        assert!(second.has_ended() && held_leases.all().is_empty());
        assert_eq!(told.load(Ordering::SeqCst), 3);
    }
}
