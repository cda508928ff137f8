//! Requests that a node never signs: its operator has vetoed them, or a person has rejected them.
//!
//! Files of the node's folder, which only root and the node's user can write to: `vetoed/UUID` and `rejected/VAULT.UUID`. The
//! first are the operator's; nothing that comes over the bus makes or removes one, so an orchestrator that withholds a
//! person's rejection cannot get the node to sign. The second the node makes itself when an orchestrator passes on what a
//! person has signed, and for requests of the vault that was signed with it: a person of one vault stops nothing of another.
//! What cannot be looked at is not signed.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    io,
    path::Path,
    sync::Arc,
};

use covault_core::{
    fault::Fault,
    ids::{RequestId, VaultId},
};
use parking_lot::Mutex;

use crate::marks::MarkFolder;

const VETOED: &str = "vetoed";
const REJECTED: &str = "rejected";
/// Most rejections of one vault that are kept: who may reject could fill the disk otherwise. The operator's vetoes have no
/// bound.
const MAX_REJECTED: usize = 20_000;

/// Why a request is never signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Veto {
    /// The node's operator has vetoed it.
    Operator,
    /// A person has rejected it.
    Person,
}

/// What became of a person's rejection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RejectionOutcome {
    /// Requests that were not rejected before.
    pub marked: Vec<RequestId>,
    /// Requests that are not rejected: too many of their vault are. The operator can veto them.
    pub no_room: Vec<RequestId>,
}

/// What one node never signs.
pub struct VetoStore {
    vetoed: MarkFolder,
    rejected: MarkFolder,
    /// How many rejections of each vault there are, once they were counted.
    counts: Mutex<Option<HashMap<String, usize>>>,
    /// Vaults of which no more rejections are kept.
    full: Mutex<HashSet<VaultId>>,
    /// Rejections on their way to the disk, and how often each is.
    begun: Mutex<HashMap<(VaultId, RequestId), usize>>,
    most: usize,
}

/// A person's rejection on its way to the disk: in force as long as this lives, and for good once it is written.
pub struct BegunRejection {
    store: Arc<VetoStore>,
    vault: VaultId,
    requests: BTreeSet<RequestId>,
}

impl BegunRejection {
    /// As [`VetoStore::reject`].
    ///
    /// # Errors
    /// As [`VetoStore::reject`].
    pub fn write(self) -> Result<RejectionOutcome, Fault> {
        let requests = Vec::from_iter(self.requests.iter().copied());
        self.store.reject(self.vault, &requests)
    }
}

impl Drop for BegunRejection {
    fn drop(&mut self) {
        let mut begun = self.store.begun.lock();
        for request in &self.requests {
            let of = (self.vault, *request);
            match begun.get_mut(&of) {
                Some(count) if *count > 1 => *count -= 1,
                _ => {
                    begun.remove(&of);
                }
            }
        }
    }
}

fn mark(vault: VaultId, request: RequestId) -> String {
    format!("{vault}.{request}")
}

fn failed(cause: io::Error) -> Fault {
    Fault::unavailable("the vetoes of this node cannot be read or written").caused_by(cause)
}

impl VetoStore {
    /// Of the node with this folder, which must be there.
    pub fn of(node_folder: &Path) -> Self {
        Self {
            vetoed: MarkFolder::new(node_folder, VETOED),
            rejected: MarkFolder::new(node_folder, REJECTED),
            counts: Mutex::default(),
            full: Mutex::default(),
            begun: Mutex::default(),
            most: MAX_REJECTED,
        }
    }

    /// A person rejects requests of a vault; who calls this has verified that. In force at once, before the disk has taken
    /// its time.
    #[must_use]
    pub fn begin(self: &Arc<Self>, vault: VaultId, requests: &[RequestId]) -> BegunRejection {
        let requests: BTreeSet<_> = requests.iter().copied().collect();
        let mut begun = self.begun.lock();
        for request in &requests {
            *begun.entry((vault, *request)).or_default() += 1;
        }
        drop(begun);
        BegunRejection {
            store: Arc::clone(self),
            vault,
            requests,
        }
    }

    /// Whether it is known that no more rejections of a vault are kept.
    pub(crate) fn is_full(&self, vault: VaultId) -> bool {
        self.full.lock().contains(&vault)
    }

    /// The operator vetoes a request for good. On disk, and so in force, when it returns.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when the disk fails.
    pub fn veto(&self, request: RequestId) -> Result<(), Fault> {
        self.vetoed.put(&request.to_string()).map_err(failed)
    }

    /// A person rejects requests of a vault for good; who calls this has verified that. On disk when it returns: each of them
    /// takes the disk its time.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when the disk fails: some of them may be rejected then.
    pub fn reject(
        &self,
        vault: VaultId,
        requests: &[RequestId],
    ) -> Result<RejectionOutcome, Fault> {
        let mut counts = self.counts.lock();
        let mut outcome = RejectionOutcome::default();
        let requests: BTreeSet<_> = requests.iter().copied().collect();
        for request in requests {
            let known = self.rejected.is_there(&mark(vault, request));
            if !known.map_err(failed)? {
                outcome.marked.push(request);
            }
        }
        if outcome.marked.is_empty() {
            return Ok(outcome);
        }
        let counts = match &mut *counts {
            Some(known) => known,
            unknown => {
                let mut found = HashMap::new();
                for mark in self.rejected.all().map_err(failed)? {
                    if let Some((vault, _)) = mark.split_once('.') {
                        *found.entry(vault.to_owned()).or_insert(0) += 1;
                    }
                }
                unknown.insert(found)
            }
        };
        let known = counts.entry(vault.to_string()).or_insert(0);
        let room = self.most.saturating_sub(*known).min(outcome.marked.len());
        outcome.no_room = outcome.marked.split_off(room);
        if !outcome.no_room.is_empty() {
            self.full.lock().insert(vault);
        }
        // Also before it fails: those that are on disk by then count.
        *known = known.saturating_add(room);
        let marks: Vec<_> = outcome.marked.iter().map(|it| mark(vault, *it)).collect();
        if !marks.is_empty() {
            // Root puts those of a file, and the node goes on with its own.
            self.rejected.put_all_for_the_node(&marks).map_err(failed)?;
        }
        Ok(outcome)
    }

    /// Whether all of these requests of a vault are rejected.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when that cannot be told.
    pub(crate) fn are_rejected(
        &self,
        vault: VaultId,
        requests: &[RequestId],
    ) -> Result<bool, Fault> {
        for request in requests {
            let known = self.rejected.is_there(&mark(vault, *request));
            if !known.map_err(failed)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Why the request must not be signed; `None`: it may be.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when that cannot be told: it must not be signed then either.
    pub fn of_request(&self, vault: VaultId, request: RequestId) -> Result<Option<Veto>, Fault> {
        if self.vetoed.is_there(&request.to_string()).map_err(failed)? {
            return Ok(Some(Veto::Operator));
        }
        if self.begun.lock().contains_key(&(vault, request)) {
            return Ok(Some(Veto::Person));
        }
        let rejected = self.rejected.is_there(&mark(vault, request));
        let rejected = rejected.map_err(failed)?;
        Ok(rejected.then_some(Veto::Person))
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::fs;

    use super::*;

    fn vault() -> VaultId {
        VaultId::from_bytes([1; 16])
    }

    fn request(last: u8) -> RequestId {
        RequestId::from_bytes([last; 16])
    }

    #[test]
    fn veto__should_hold_for_its_request_for_good_and_where_nobody_can_look() {
        let folder = tempfile::tempdir().unwrap();
        let store = VetoStore::of(folder.path());
        assert_eq!(store.of_request(vault(), request(1)).unwrap(), None);
        for _ in 0..2 {
            store.veto(request(1)).unwrap();
        }
        let store = VetoStore::of(folder.path());
        assert_eq!(
            store.of_request(vault(), request(1)).unwrap(),
            Some(Veto::Operator)
        );
        assert_eq!(store.of_request(vault(), request(2)).unwrap(), None);
        fs::remove_dir_all(folder.path().join(VETOED)).unwrap();
        // Not a folder.
        fs::write(folder.path().join(VETOED), b"").unwrap();
        assert!(store.of_request(vault(), request(2)).is_err());
        assert!(store.veto(request(2)).is_err());
    }

    #[test]
    fn rejection__should_be_in_force_before_it_is_on_disk() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(VetoStore {
            most: 1,
            ..VetoStore::of(folder.path())
        });
        let of = |last: u8| store.of_request(vault(), request(last)).unwrap();
        // The same comes twice, and one of them is not written.
        let (one, other) = (
            store.begin(vault(), &[request(1), request(2)]),
            store.begin(vault(), &[request(1)]),
        );
        assert!(!store.are_rejected(vault(), &[request(1)]).unwrap());
        assert_eq!(
            (of(1), of(2), of(3)),
            (Some(Veto::Person), Some(Veto::Person), None)
        );
        let elsewhere = VaultId::from_bytes([2; 16]);
        assert_eq!(store.of_request(elsewhere, request(1)).unwrap(), None);
        drop(one);
        assert_eq!((of(1), of(2)), (Some(Veto::Person), None));
        assert_eq!(other.write().unwrap().marked, [request(1)]);
        assert_eq!(of(1), Some(Veto::Person));
        // There is no room for another one, which is known from then on.
        assert!(!store.is_full(vault()));
        let outcome = store
            .begin(vault(), &[request(1), request(2)])
            .write()
            .unwrap();
        assert_eq!(
            (outcome.marked, outcome.no_room),
            (vec![], vec![request(2)])
        );
        assert_eq!((of(1), of(2)), (Some(Veto::Person), None));
        assert!(store.is_full(vault()) && !store.is_full(elsewhere));
        assert!(store.begun.lock().is_empty());
    }

    #[test]
    fn rejections__should_be_kept_for_good_and_be_bounded_by_vault_and_apart_from_vetoes() {
        let folder = tempfile::tempdir().unwrap();
        let store = VetoStore {
            most: 2,
            ..VetoStore::of(folder.path())
        };
        let reject = |store: &VetoStore, vault, requests: &[u8]| {
            let requests: Vec<_> = requests.iter().map(|last| request(*last)).collect();
            let RejectionOutcome { marked, no_room } = store.reject(vault, &requests).unwrap();
            (marked.len(), no_room)
        };
        assert_eq!(reject(&store, vault(), &[1]), (1, vec![]));
        assert_eq!(reject(&store, vault(), &[1, 1]), (0, vec![]));
        // Counted anew by who opens it, and as many taken as there is room for.
        let store = VetoStore {
            most: 2,
            ..VetoStore::of(folder.path())
        };
        let three = [request(1), request(2), request(3)];
        assert!(!store.are_rejected(vault(), &three[..2]).unwrap());
        assert_eq!(reject(&store, vault(), &[1, 2, 3]), (1, vec![request(3)]));
        assert_eq!(reject(&store, vault(), &[3]), (0, vec![request(3)]));
        assert_eq!(reject(&store, vault(), &[2]), (0, vec![]));
        assert!(store.are_rejected(vault(), &three[..2]).unwrap());
        assert!(!store.are_rejected(vault(), &three).unwrap());
        // Another vault has room of its own, and its requests are others.
        let other = VaultId::from_bytes([2; 16]);
        assert_eq!(store.of_request(other, request(2)).unwrap(), None);
        assert_eq!(reject(&store, other, &[3]), (1, vec![]));
        assert_eq!(
            store.of_request(vault(), request(2)).unwrap(),
            Some(Veto::Person)
        );
        assert_eq!(store.of_request(vault(), request(3)).unwrap(), None);
        store.veto(request(3)).unwrap();
        assert_eq!(
            store.of_request(vault(), request(3)).unwrap(),
            Some(Veto::Operator)
        );
        fs::remove_dir_all(folder.path().join(REJECTED)).unwrap();
        fs::write(folder.path().join(REJECTED), b"").unwrap();
        assert!(store.of_request(vault(), request(4)).is_err());
        assert!(store.reject(vault(), &[request(4)]).is_err());
    }
}
