//! The store as seen by those who may write only part of it: the rows of a vault are written under its lease,
//! and by nobody else. So no commit can miss the check.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use covault_core::audit::AuditChain;

use super::{HeldLeases, Lease, hot_rows::LeaseTerm as _};
use crate::store::{
    Batch, CommitError, Key, KeySpace, Precondition, ReadError, Row, RowMap, RowWrite, Scan,
    Snapshot, Store,
};

/// Decides what is written.
#[async_trait]
pub trait CommitGuard: Send + Sync {
    /// Takes a batch to the store, or refuses it.
    ///
    /// # Errors
    /// [`CommitError`].
    async fn commit(&self, store: &dyn Store, batch: Batch) -> Result<(), CommitError>;
}

/// Hears which logs this process writes to.
pub trait LogListener: Send + Sync {
    /// Whether it listens now.
    fn is_active(&self) -> bool;

    /// These were written to, or may have been.
    fn written(&self, chains: BTreeSet<AuditChain>);
}

/// A store whose writes pass a guard. All rows may be read.
pub struct GuardedStore<G> {
    store: Arc<dyn Store>,
    guard: G,
    logs: Arc<dyn LogListener>,
}

impl<G> GuardedStore<G> {
    /// Of the whole store. `logs` is told of what is written.
    pub fn new(store: Arc<dyn Store>, guard: G, logs: Arc<dyn LogListener>) -> Self {
        Self { store, guard, logs }
    }
}

#[async_trait]
impl<G: CommitGuard> Store for GuardedStore<G> {
    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        let written = self.logs.is_active().then(|| batch.chains());
        let outcome = self.guard.commit(&*self.store, batch).await;
        // Also where it may have failed: what is there is read.
        if let Some(chains) = written {
            self.logs.written(chains);
        }
        outcome
    }

    async fn get(&self, key: &Key) -> Result<Option<Row>, ReadError> {
        self.store.get(key).await
    }

    async fn get_all(&self, keys: &[Key]) -> Result<RowMap, ReadError> {
        self.store.get_all(keys).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Vec<(Key, Row)>, ReadError> {
        self.store.scan(scan).await
    }

    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>, ReadError> {
        self.store.snapshot().await
    }

    fn exclusive(&self) -> bool {
        self.store.exclusive()
    }
}

/// For what is done under a lease.
pub struct LeaseFence {
    /// What this orchestrator has.
    pub held_leases: Arc<HeldLeases>,
    /// The lease.
    pub lease: Arc<Lease>,
}

#[async_trait]
impl CommitGuard for LeaseFence {
    async fn commit(&self, store: &dyn Store, batch: Batch) -> Result<(), CommitError> {
        if self.lease.has_ended() {
            return Err(CommitError::NotOwner);
        }
        let fence = self.lease.fence();
        let stored = fence.row.clone();
        let batch = batch.guarded_by(stored.clone(), fence.version);
        let hot = &self.held_leases.hot_rows;
        let change = hot.change(&batch, fence);
        let numbers = self
            .held_leases
            .hot_numbers
            .change(&batch, self.lease.clone());
        let outcome = store.commit(batch).await;
        if let Some(change) = change {
            change.done(&outcome);
        }
        if let Some(numbers) = numbers {
            numbers.done(&outcome);
        }
        if let Err(CommitError::Conflict(key)) = &outcome {
            hot.conflicted(key);
        }
        match outcome {
            Err(CommitError::Conflict(key)) if key == stored => {
                tracing::warn!(scope = ?self.lease.scope(), "lease lost to another orchestrator; nothing was written");
                self.held_leases.end(&self.lease);
                Err(CommitError::NotOwner)
            }
            done => done,
        }
    }
}

/// For the first start after a restore, which sees to every vault before any of them has an owner:
/// nothing is written once another process has finished with that.
pub struct RestoreFence {
    /// The row that tells where the restore stands.
    pub marker: Key,
    /// Its version as it was found.
    pub version: u64,
}

#[async_trait]
impl CommitGuard for RestoreFence {
    async fn commit(&self, store: &dyn Store, batch: Batch) -> Result<(), CommitError> {
        let batch = batch.guarded_by(self.marker.clone(), self.version);
        store.commit(batch).await
    }
}

/// For what belongs to no vault: its rows are guarded by their own versions.
pub struct UnleasedGuard;

/// Whether a write needs a lease: that of a vault, or of the chain whose blocks are followed.
fn needs_lease(write: &RowWrite) -> bool {
    if write.change.is_check() {
        return false;
    }
    match write.key.space {
        KeySpace::Vault => write.expect != Precondition::Absent,
        KeySpace::Wallet
        | KeySpace::WalletAddress
        | KeySpace::WalletRef
        | KeySpace::WalletIndex
        | KeySpace::Request
        | KeySpace::Outbox
        | KeySpace::Idempotency
        | KeySpace::RecordAge
        | KeySpace::NonceReservation
        | KeySpace::RefusedTransaction
        | KeySpace::Claim
        | KeySpace::ReservationExpiry
        | KeySpace::Batch
        | KeySpace::BatchIndex
        | KeySpace::OpenBatch
        | KeySpace::AskedRequest
        | KeySpace::RequestBatch
        | KeySpace::AllowanceBatch
        | KeySpace::Deposit
        | KeySpace::AddressProof
        | KeySpace::ProofWanted
        | KeySpace::Delay
        | KeySpace::KeyProgress
        | KeySpace::Transaction
        | KeySpace::Replacement
        | KeySpace::Awaiting
        | KeySpace::AwaitingPerson
        | KeySpace::RuleChanges
        | KeySpace::ChainCursor
        | KeySpace::BlockHeader
        | KeySpace::Transfer
        | KeySpace::OpenTransfer
        | KeySpace::TransferIndex
        | KeySpace::SweepDue
        | KeySpace::Sweep
        | KeySpace::SweepTotal
        | KeySpace::SweepTopUp
        | KeySpace::Notification
        | KeySpace::FirstWallet => true,
        // Guarded by their versions, or of no harm: simulations and how nodes and the service are doing are only shown.
        KeySpace::VaultName
        | KeySpace::Probe
        | KeySpace::Simulation
        | KeySpace::RequestIndex
        | KeySpace::RequestTerm
        | KeySpace::Management
        | KeySpace::Token
        | KeySpace::SweepRoute
        | KeySpace::SweepRules
        | KeySpace::Node
        | KeySpace::TokenName
        | KeySpace::Watch
        | KeySpace::Lease
        | KeySpace::Member
        | KeySpace::NodeStatus
        | KeySpace::Overview
        | KeySpace::AuditEntry
        | KeySpace::AuditHead
        | KeySpace::DepositAddress
        | KeySpace::TransferNotice
        | KeySpace::NoticeDue
        | KeySpace::NoticeAfter
        | KeySpace::WebhookSecret
        | KeySpace::WebhookKey
        | KeySpace::Rescan
        | KeySpace::ChainStart
        | KeySpace::ChainRestart
        | KeySpace::NoticeAge
        | KeySpace::BalanceCheck
        | KeySpace::Restore
        | KeySpace::User
        | KeySpace::UserName
        | KeySpace::UserLink
        | KeySpace::UserPasskey
        | KeySpace::UserSession
        | KeySpace::UsedChallenges
        | KeySpace::NotificationTarget
        | KeySpace::ConsoleKey => false,
    }
}

#[async_trait]
impl CommitGuard for UnleasedGuard {
    async fn commit(&self, store: &dyn Store, batch: Batch) -> Result<(), CommitError> {
        if let Some(write) = batch.writes().iter().find(|write| needs_lease(write)) {
            tracing::error!(space = ?write.key.space, "refused a commit without a lease; this is a bug");
            return Err(CommitError::NotOwner);
        }
        store.commit(batch).await
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::ids::{OrchestratorId, VaultId};

    use super::*;
    use crate::{
        leases::{LeaseRow, LeaseScope},
        services::Listeners,
        store::{memory::MemoryStore, rows},
    };

    fn batch() -> Batch {
        let mut batch = Batch::new();
        batch.put(
            Key::new(KeySpace::Request, &[b"r"]),
            Precondition::Any,
            vec![1],
        );
        batch
    }

    #[tokio::test]
    async fn fenced__should_write_nothing_once_the_lease_has_changed() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::shared());
        let me = OrchestratorId::from_bytes([1; 16]);
        let scope = LeaseScope::Vault(VaultId::from_bytes([2; 16]));
        let take = async |owner, term| {
            let mut batch = Batch::new();
            let stored = rows::encode(&LeaseRow { owner, term }).unwrap();
            batch.put(scope.key(), Precondition::Any, stored);
            store.commit(batch).await.unwrap();
        };
        take(Some(me), 1).await;
        let held_leases = Arc::new(HeldLeases::new(me));
        let with_lease = |version| {
            let lease = Lease::new(scope, version);
            held_leases.begin(Arc::clone(&lease));
            let held_leases = Arc::clone(&held_leases);
            let fence = LeaseFence { held_leases, lease };
            GuardedStore::new(Arc::clone(&store), fence, Listeners::none().logs)
        };
        let first = with_lease(1);
        first.commit(batch()).await.unwrap();
        take(None, 2).await;
        take(Some(me), 3).await;
        assert_eq!(first.commit(batch()).await, Err(CommitError::NotOwner));
        assert!(held_leases.get(scope).is_none());
        let row = Key::new(KeySpace::Request, &[b"r"]);
        assert_eq!(store.get(&row).await.unwrap().unwrap().version, 1);
        // The same orchestrator has it again, and what it began before stays over.
        let third = with_lease(3);
        assert_eq!(first.commit(batch()).await, Err(CommitError::NotOwner));
        third.commit(batch()).await.unwrap();
        // Other conflicts are what they are.
        let mut conflict = Batch::new();
        conflict.put(row.clone(), Precondition::Absent, vec![]);
        let told = third.commit(conflict).await;
        assert_eq!(told, Err(CommitError::Conflict(row)));
        assert!(held_leases.get(scope).is_some());
    }

    #[tokio::test]
    async fn open__should_refuse_what_belongs_to_a_vault() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let open = GuardedStore::new(Arc::clone(&store), UnleasedGuard, Listeners::none().logs);
        assert_eq!(open.commit(batch()).await, Err(CommitError::NotOwner));
        let vault = |expect| {
            let mut batch = Batch::new();
            batch.put(Key::new(KeySpace::Vault, &[b"v"]), expect, vec![]);
            batch
        };
        open.commit(vault(Precondition::Absent)).await.unwrap();
        let changed = open.commit(vault(Precondition::Version(1))).await;
        assert_eq!(changed, Err(CommitError::NotOwner));
        let mut check = Batch::new();
        check.check(Key::new(KeySpace::Vault, &[b"v"]), Precondition::Version(1));
        open.commit(check).await.unwrap();
    }
}
