//! What this orchestrator has, and who works under it.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use covault_core::ids::{OrchestratorId, VaultId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Ward;

/// Most commands that may be in work on one vault; the gateway has a smaller limit for all.
const MOST: u32 = 1 << 20;

/// The time from getting something until it goes to somebody else.
pub struct Tenure {
    ward: Ward,
    version: u64,
    over: AtomicBool,
    /// One permit per command in work.
    commands: Arc<Semaphore>,
}

impl fmt::Debug for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tenure({:?}, version {})", self.ward, self.version)
    }
}

/// A command in work: the vault is not given back meanwhile, though it may be lost.
pub struct Stay {
    tenure: Arc<Tenure>,
    _permit: OwnedSemaphorePermit,
}

impl Stay {
    /// Whether the vault was lost meanwhile: what the command has not committed by now, it never will.
    pub fn is_lost(&self) -> bool {
        self.tenure.is_over()
    }
}

impl Tenure {
    /// The tenure that began with this version of the lease's row.
    pub fn new(ward: Ward, version: u64) -> Arc<Self> {
        Arc::new(Self {
            ward,
            version,
            over: AtomicBool::new(false),
            commands: Arc::new(Semaphore::new(usize::try_from(MOST).unwrap_or(usize::MAX))),
        })
    }

    /// What it is about.
    pub fn ward(&self) -> Ward {
        self.ward
    }

    /// The fencing token.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether nothing may be done under it any more.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Waits until the commands that are in work have ended, and lets no other begin.
    pub async fn drain(&self, patience: Duration) {
        let all = self.commands.acquire_many(MOST);
        if tokio::time::timeout(patience, all).await.is_err() {
            tracing::warn!(ward = ?self.ward, "commands are still in work; it goes to another orchestrator all the same");
        }
        self.commands.close();
    }
}

type Teller = Box<dyn Fn(VaultId) + Send + Sync>;

/// All that this orchestrator has.
pub struct Tenures {
    me: OrchestratorId,
    held: Mutex<HashMap<Ward, Arc<Tenure>>>,
    teller: Mutex<Option<Teller>>,
    /// When others were last known to see this orchestrator alive, by the steady clock; 0: never.
    seen_ms: AtomicU64,
    /// How often something was given back, or made for others.
    moves: AtomicU64,
    /// The version of the row of this orchestrator.
    beat: AtomicU64,
    /// The orchestrators that are alive and take something; `None` before the first look.
    able: Mutex<Option<Vec<OrchestratorId>>>,
}

impl Tenures {
    /// Nothing yet.
    pub fn new(me: OrchestratorId) -> Self {
        Self {
            me,
            held: Mutex::default(),
            teller: Mutex::default(),
            seen_ms: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            beat: AtomicU64::new(0),
            able: Mutex::default(),
        }
    }

    /// This orchestrator.
    pub fn me(&self) -> OrchestratorId {
        self.me
    }

    fn held(&self) -> MutexGuard<'_, HashMap<Ward, Arc<Tenure>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present tenure.
    pub fn get(&self, ward: Ward) -> Option<Arc<Tenure>> {
        self.held().get(&ward).cloned()
    }

    /// Everything.
    pub fn all(&self) -> Vec<Arc<Tenure>> {
        self.held().values().cloned().collect()
    }

    /// How many vaults are here.
    pub fn vaults(&self) -> usize {
        let held = self.held();
        let vaults = held.keys().filter(|ward| matches!(ward, Ward::Vault(_)));
        vaults.count()
    }

    /// Begins a command on a vault; `None` when the vault is not here, or just goes.
    pub fn enter(&self, vault: VaultId) -> Option<Stay> {
        let tenure = self.get(Ward::Vault(vault))?;
        let permit = Arc::clone(&tenure.commands).try_acquire_owned().ok()?;
        Some(Stay {
            tenure,
            _permit: permit,
        })
    }

    /// From now on this is here, unless it is already, or again since: several find out about one
    /// lease, in any order.
    pub fn begin(&self, tenure: Arc<Tenure>) {
        let ward = tenure.ward;
        {
            let mut held = self.held();
            let present = held.get(&ward);
            if present.is_some_and(|present| present.version >= tenure.version) {
                return;
            }
            if let Some(old) = held.insert(ward, tenure) {
                old.over.store(true, Ordering::SeqCst);
            }
        }
        self.tell(ward);
    }

    /// From now on nothing is done under this tenure.
    pub fn end(&self, tenure: &Tenure) {
        tenure.over.store(true, Ordering::SeqCst);
        let ended = {
            let mut held = self.held();
            let present = held.get(&tenure.ward);
            let present = present.is_some_and(|present| present.version == tenure.version);
            present && held.remove(&tenure.ward).is_some()
        };
        if ended {
            self.tell(tenure.ward);
        }
    }

    /// Who is told of each change. Nobody else is from then on.
    pub fn on_change(&self, teller: Teller) {
        *self.teller.lock().unwrap_or_else(PoisonError::into_inner) = Some(teller);
    }

    fn tell(&self, ward: Ward) {
        let teller = self.teller.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Ward::Vault(vault), Some(teller)) = (ward, &*teller) {
            teller(vault);
        }
    }

    /// Others see this orchestrator alive; its row got this version after `now_ms` of the steady
    /// clock.
    pub fn seen(&self, version: u64, now_ms: u64) {
        self.beat.store(version, Ordering::SeqCst);
        self.seen_ms.store(now_ms, Ordering::SeqCst);
    }

    /// The last version of its row that this orchestrator has written.
    pub fn beat(&self) -> u64 {
        self.beat.load(Ordering::SeqCst)
    }

    /// When that was last so.
    pub fn seen_ms(&self) -> u64 {
        self.seen_ms.load(Ordering::SeqCst)
    }

    /// These are alive and take something.
    pub fn set_able(&self, able: Vec<OrchestratorId>) {
        *self.able.lock().unwrap_or_else(PoisonError::into_inner) = Some(able);
    }

    /// Who is alive and takes something, as it was last seen.
    pub fn able(&self) -> Option<Vec<OrchestratorId>> {
        let able = self.able.lock().unwrap_or_else(PoisonError::into_inner);
        able.clone()
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

    fn tenures() -> (Tenures, VaultId) {
        let me = OrchestratorId::from_bytes([1; 16]);
        (Tenures::new(me), VaultId::from_bytes([2; 16]))
    }

    #[tokio::test]
    async fn drain__should_wait_for_commands_and_let_no_other_begin() {
        let (tenures, vault) = tenures();
        assert!(tenures.enter(vault).is_none());
        tenures.begin(Tenure::new(Ward::Vault(vault), 3));
        let stay = tenures.enter(vault).unwrap();
        let tenure = tenures.get(Ward::Vault(vault)).unwrap();
        let draining = tokio::spawn(async move { tenure.drain(Duration::from_secs(600)).await });
        tokio::task::yield_now().await;
        assert!(!draining.is_finished());
        drop(stay);
        draining.await.unwrap();
        assert!(tenures.enter(vault).is_none());
    }

    #[test]
    fn begin__should_not_undo_a_tenure_that_is_as_new() {
        let (tenures, vault) = tenures();
        let ward = Ward::Vault(vault);
        let second = Tenure::new(ward, 2);
        tenures.begin(Arc::clone(&second));
        for version in [1, 2] {
            tenures.begin(Tenure::new(ward, version));
            assert!(!second.is_over());
            assert!(Arc::ptr_eq(&tenures.get(ward).unwrap(), &second));
        }
        tenures.begin(Tenure::new(ward, 3));
        assert!(second.is_over());
    }

    #[test]
    fn end__should_end_no_later_tenure_and_tell_of_changes_alone() {
        let (tenures, vault) = tenures();
        let told = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&told);
        tenures.on_change(Box::new(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        }));
        let first = Tenure::new(Ward::Vault(vault), 3);
        tenures.begin(Arc::clone(&first));
        let second = Tenure::new(Ward::Vault(vault), 5);
        tenures.begin(Arc::clone(&second));
        assert!(first.is_over() && !second.is_over());
        tenures.end(&first);
        assert!(!second.is_over());
        assert_eq!(told.load(Ordering::SeqCst), 2);
        tenures.end(&second);
        tenures.end(&second);
        assert!(second.is_over() && tenures.all().is_empty());
        assert_eq!(told.load(Ordering::SeqCst), 3);
    }
}
