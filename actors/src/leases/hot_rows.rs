//! The rows of wallets and vaults that each request needs, as they were last read under the lease of their vault.
//!
//! Nobody else changes them while the lease lasts, and what this process changes passes through
//! [`LeaseFence`](super::LeaseFence), which has them forgotten. Commands decide by them; their commits demand the
//! versions that they saw, under the lease. What clients are told of a wallet is read from the store.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::store::{Batch, CommitError, Key, KeySpace, Precondition, Row};

/// How many rows are remembered at most, in two generations: when the young one is full, the old one is forgotten.
/// One takes about half a kilobyte.
const REMEMBERED: usize = 40_000;
/// How many rows with a change of unknown outcome are remembered; beyond that all rows of a lease are read again.
const MAX_DOUBTS: usize = 10_000;

/// What rows are read under.
pub trait LeaseTerm: Send + Sync {
    /// Whether it is over: what was read under it may have changed since.
    fn is_over(&self) -> bool;
    /// What commits under it demand.
    fn fence(&self) -> Fence;
}

/// The row and its version that commits under a lease demand. Once it has a later version, none of them is taken.
#[derive(Clone, Debug)]
pub struct Fence {
    /// The row of the lease.
    pub row: Key,
    /// Its version.
    pub version: u64,
}

impl Fence {
    /// Whether no commit is taken any longer that demands this version of this row.
    fn is_after(&self, row: &Key, version: u64) -> bool {
        self.row == *row && self.version > version
    }
}

/// See the module.
#[derive(Default)]
pub struct HotRows(Mutex<HotRowTable>);

#[derive(Default)]
struct HotRowTable {
    /// Grows with every change that may make something that is being read now an older state.
    changes: u64,
    young: HashMap<Key, HotRow>,
    old: HashMap<Key, HotRow>,
    /// Of these it is not known whether a change was taken, or will be: they are always read.
    doubts: HashMap<Key, UncertainWrite>,
    /// As [`HotRowTable::doubts`], of all rows under leases up to a version, by the row of the lease.
    doubtful_leases: HashMap<Key, u64>,
}

/// A change may still come.
struct UncertainWrite {
    /// Under which it was made.
    fence: Fence,
    /// To no later version of the row than this one.
    version: u64,
}

impl HotRowTable {
    /// Whether a row that was just read under a lease may change by itself. Forgets what is no longer in doubt.
    fn is_doubtful(&mut self, fence: &Fence, key: &Key, version: u64) -> bool {
        let may_come = |doubt: &UncertainWrite| {
            version <= doubt.version && !fence.is_after(&doubt.fence.row, doubt.fence.version)
        };
        if self.doubts.get(key).is_some_and(may_come) {
            return true;
        }
        self.doubts.remove(key);
        let lease = self.doubtful_leases.get(&fence.row);
        lease.is_some_and(|lease| !fence.is_after(&fence.row, *lease))
    }

    fn doubt(&mut self, fence: &Fence, key: Key, version: u64) {
        let latest = self.doubts.get(&key).map_or(0, |doubt| doubt.version);
        if self.doubts.len() < MAX_DOUBTS || self.doubts.contains_key(&key) {
            let doubt = UncertainWrite {
                fence: fence.clone(),
                version: version.max(latest),
            };
            self.doubts.insert(key, doubt);
        } else {
            self.doubtful_leases
                .insert(fence.row.clone(), fence.version);
        }
    }

    fn forget<'a>(&mut self, keys: impl Iterator<Item = &'a Key>) {
        self.changes += 1;
        for key in keys {
            self.young.remove(key);
            self.old.remove(key);
        }
    }
}

struct HotRow {
    row: Row,
    /// Under which it was read.
    lease: Arc<dyn LeaseTerm>,
}

/// A commit that changes some of them is on its way.
pub struct HotChange<'a> {
    hot: &'a HotRows,
    fence: Fence,
    /// With the latest version of the row that it can change; `None` when it can only make the row.
    keys: Vec<(Key, Option<u64>)>,
    is_known: bool,
}

impl HotRows {
    /// A row, if it is known.
    pub fn find(&self, key: &Key) -> Option<Row> {
        let remembered = self.0.lock();
        let found = remembered.young.get(key);
        let found = found.or_else(|| remembered.old.get(key));
        let found = found.filter(|hot| !hot.lease.is_over());
        found.map(|hot| hot.row.clone())
    }

    /// Where a look at the store begins.
    pub fn begin(&self) -> u64 {
        self.0.lock().changes
    }

    /// Remembers what was read since [`HotRows::begin`], unless anything has changed in between.
    pub fn keep(&self, lease: Arc<dyn LeaseTerm>, key: &Key, row: &Row, since: u64) {
        let mut remembered = self.0.lock();
        if remembered.changes != since || remembered.is_doubtful(&lease.fence(), key, row.version) {
            return;
        }
        if remembered.young.len() >= REMEMBERED / 2 {
            remembered.old = std::mem::take(&mut remembered.young);
        }
        let hot = HotRow {
            row: row.clone(),
            lease,
        };
        remembered.young.insert(key.clone(), hot);
    }

    /// What is being read now is not to be remembered: another one may have changed it before.
    /// What was in doubt under the lease before it can no longer come.
    pub fn lease_began(&self, fence: &Fence) {
        let mut remembered = self.0.lock();
        remembered.changes += 1;
        let doubts = &mut remembered.doubts;
        doubts.retain(|_, doubt| !fence.is_after(&doubt.fence.row, doubt.fence.version));
        let leases = &mut remembered.doubtful_leases;
        leases.retain(|row, version| !fence.is_after(row, *version));
    }

    /// A commit begins; `None` when it changes none of them.
    pub fn change(&self, batch: &Batch, fence: Fence) -> Option<HotChange<'_>> {
        let writes = batch.writes().iter();
        let changed = writes
            .filter(|write| is_hot(write.key.space) && !write.change.is_check())
            .map(|write| {
                let latest = match write.expect {
                    Precondition::Absent => None,
                    Precondition::Version(version) => Some(version),
                    Precondition::Any => Some(u64::MAX),
                };
                (write.key.clone(), latest)
            });
        let keys: Vec<_> = changed.collect();
        if keys.is_empty() {
            return None;
        }
        self.0.lock().forget(keys.iter().map(|(key, _)| key));
        Some(HotChange {
            hot: self,
            fence,
            keys,
            is_known: false,
        })
    }

    /// A commit has found another version of a row than it wanted.
    pub fn conflicted(&self, key: &Key) {
        if is_hot(key.space) {
            self.0.lock().forget(std::iter::once(key));
        }
    }
}

impl HotChange<'_> {
    /// The commit has come back with this.
    pub fn done(mut self, outcome: &Result<(), CommitError>) {
        self.is_known = matches!(
            outcome,
            Ok(()) | Err(CommitError::Conflict(_) | CommitError::NotOwner)
        );
    }
}

/// Also when nobody has waited for the outcome.
impl Drop for HotChange<'_> {
    fn drop(&mut self) {
        let mut remembered = self.hot.0.lock();
        remembered.forget(self.keys.iter().map(|(key, _)| key));
        if !self.is_known {
            for (key, latest) in self.keys.drain(..) {
                if let Some(version) = latest {
                    remembered.doubt(&self.fence, key, version);
                }
            }
        }
    }
}

fn is_hot(space: KeySpace) -> bool {
    matches!(
        space,
        KeySpace::Wallet | KeySpace::WalletAddress | KeySpace::Vault
    )
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::ids::VaultId;

    use super::*;
    use crate::{
        leases::{HeldLeases, Lease, LeaseScope},
        store::Precondition,
    };

    fn row(version: u64) -> Row {
        Row {
            version,
            value: vec![1],
        }
    }

    fn written(key: &Key) -> Batch {
        let mut batch = Batch::new();
        batch.put(key.clone(), Precondition::Any, vec![2]);
        batch
    }

    #[test]
    fn hot_rows__should_be_known_only_as_long_as_nobody_can_have_changed_them() {
        let held = HeldLeases::new(covault_core::ids::OrchestratorId::from_bytes([1; 16]));
        let hot = &held.hot_rows;
        let lease = Lease::new(LeaseScope::Vault(VaultId::from_bytes([2; 16])), 1);
        held.begin(Arc::clone(&lease));
        let key = Key::new(KeySpace::Wallet, &[b"w"]);
        let keep = |version| hot.keep(Arc::clone(&lease) as _, &key, &row(version), hot.begin());
        keep(1);
        assert_eq!(hot.find(&key), Some(row(1)));
        // What was read before a change, and comes after it.
        let since = hot.begin();
        let change = hot.change(&written(&key), lease.fence()).unwrap();
        assert_eq!(hot.find(&key), None);
        hot.keep(Arc::clone(&lease) as _, &key, &row(1), since);
        assert_eq!(hot.find(&key), None);
        // What was read while it was on its way.
        keep(1);
        change.done(&Ok(()));
        assert_eq!(hot.find(&key), None);
        keep(2);
        assert_eq!(hot.find(&key), Some(row(2)));
        hot.conflicted(&key);
        assert_eq!(hot.find(&key), None);
        // What was read before the lease began.
        let since = hot.begin();
        held.begin(Lease::new(
            LeaseScope::Vault(VaultId::from_bytes([3; 16])),
            1,
        ));
        hot.keep(Arc::clone(&lease) as _, &key, &row(2), since);
        assert_eq!(hot.find(&key), None);
        keep(2);
        held.end(&lease);
        assert_eq!(hot.find(&key), None);
    }

    #[test]
    fn hot_rows__should_be_read_when_nobody_knows_what_became_of_a_change() {
        let hot = HotRows::default();
        let lease = Lease::new(LeaseScope::Maintenance, 1);
        for known in [true, false] {
            let key = Key::new(KeySpace::Vault, &[&[u8::from(known)]]);
            let change = hot.change(&written(&key), lease.fence()).unwrap();
            if known {
                change.done(&Err(CommitError::NotOwner));
            } else {
                drop(change);
            }
            hot.keep(Arc::clone(&lease) as _, &key, &row(1), hot.begin());
            assert_eq!(hot.find(&key).is_some(), known);
        }
        let mut demand = Batch::new();
        demand.check(Key::new(KeySpace::Wallet, &[]), Precondition::Version(1));
        assert!(hot.change(&demand, lease.fence()).is_none());
    }

    /// A change of a row under a lease of which nobody learns what became.
    fn lose(hot: &HotRows, lease: &Lease, key: &Key, expect: Precondition) {
        let mut batch = Batch::new();
        batch.put(key.clone(), expect, vec![2]);
        let change = hot.change(&batch, lease.fence()).unwrap();
        change.done(&Err(CommitError::Unavailable("gone".into())));
    }

    #[test]
    fn doubts__should_end_when_the_change_can_no_longer_come() {
        let held = HeldLeases::new(covault_core::ids::OrchestratorId::from_bytes([1; 16]));
        let hot = &held.hot_rows;
        let scope = LeaseScope::Vault(VaultId::from_bytes([2; 16]));
        let first = Lease::new(scope, 1);
        held.begin(Arc::clone(&first));
        let key = Key::new(KeySpace::Wallet, &[b"w"]);
        let is_kept = |lease: &Arc<Lease>, version| {
            hot.keep(Arc::clone(lease) as _, &key, &row(version), hot.begin());
            hot.find(&key).is_some()
        };
        lose(hot, &first, &key, Precondition::Absent);
        assert!(is_kept(&first, 1), "it could only make the row");
        lose(hot, &first, &key, Precondition::Version(7));
        assert!(!is_kept(&first, 7), "it may come now");
        assert!(is_kept(&first, 8), "it came, or another did");
        lose(hot, &first, &key, Precondition::Version(8));
        assert!(!is_kept(&first, 8));
        let other = Lease::new(LeaseScope::Vault(VaultId::from_bytes([3; 16])), 9);
        held.begin(Arc::clone(&other));
        assert!(!is_kept(&first, 8), "another vault's lease says nothing");
        let second = Lease::new(scope, 2);
        held.begin(Arc::clone(&second));
        assert!(is_kept(&second, 8), "what was sent under the first is void");
        // What was sent under the first comes back late.
        lose(hot, &first, &key, Precondition::Version(8));
        assert!(is_kept(&second, 8));
        assert!(hot.0.lock().doubts.is_empty());
    }

    #[test]
    fn doubts__should_stay_bounded_and_none_be_forgotten() {
        let hot = HotRows::default();
        let lease = Lease::new(LeaseScope::Maintenance, 1);
        let key = |number: usize| Key::new(KeySpace::Wallet, &[&number.to_be_bytes()]);
        for number in 0..=MAX_DOUBTS {
            lose(&hot, &lease, &key(number), Precondition::Version(1));
        }
        assert_eq!(hot.0.lock().doubts.len(), MAX_DOUBTS);
        let next = Lease::new(LeaseScope::Maintenance, 2);
        for (lease, kept) in [(&lease, false), (&next, true)] {
            for number in [0, MAX_DOUBTS] {
                hot.keep(Arc::clone(lease) as _, &key(number), &row(1), hot.begin());
                assert_eq!(hot.find(&key(number)).is_some(), kept, "{number}");
            }
            hot.lease_began(&next.fence());
        }
        assert!(hot.0.lock().doubts.is_empty() && hot.0.lock().doubtful_leases.is_empty());
    }

    #[test]
    fn hot_rows__should_stay_bounded() {
        let hot = HotRows::default();
        let lease = Lease::new(LeaseScope::Maintenance, 1);
        for number in 0..100_000_u32 {
            let key = Key::new(KeySpace::Wallet, &[&number.to_be_bytes()]);
            hot.keep(Arc::clone(&lease) as _, &key, &row(1), hot.begin());
        }
        let remembered = hot.0.lock();
        assert!(remembered.young.len() + remembered.old.len() <= REMEMBERED);
    }
}
