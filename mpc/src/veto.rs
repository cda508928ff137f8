//! Requests that a node never signs: its operator has vetoed them, or a person has rejected them.
//!
//! Files of the node's folder, which only root and the node's user can write to: `vetoed/UUID` and `rejected/VAULT.UUID`. The
//! first are the operator's; nothing that comes over the bus makes or removes one, so an orchestrator that withholds a
//! person's rejection cannot get the node to sign. The second the node makes itself when an orchestrator passes on what a
//! person has signed, and for requests of the vault that was signed with it: a person of one vault stops nothing of another.
//! Each has the person's name in it: rejections are counted by person, so that nobody uses up the room of others.
//! What cannot be looked at is not signed, and what cannot be written down is obeyed until the node stops.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
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
/// Most rejections of one vault that are kept of one person, who could fill the disk otherwise. The operator's vetoes have
/// no bound.
const MAX_OF_PERSON: usize = 20_000;
/// Rejections of one person that are written down before others have their turn: as many as one signature is about.
const WRITTEN_AT_ONCE: usize = covault_core::approval::MAX_LIST;

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
    /// Requests that are not rejected: the person has rejected too many of their vault. The operator can veto them.
    pub no_room: Vec<RequestId>,
}

/// Whose rejections, and of which vault.
type RejectedBy = (VaultId, Arc<str>);

/// A request that is rejected, and by whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedRequest {
    /// The vault that was signed with it.
    pub vault: VaultId,
    /// It.
    pub request: RequestId,
    /// Who has rejected it.
    pub person: Arc<str>,
}

#[derive(Default)]
struct Rejections {
    /// In force and not on disk.
    unwritten: BTreeMap<RejectedBy, BTreeSet<RequestId>>,
    /// How many are on disk, once they were counted.
    written: Option<HashMap<RejectedBy, usize>>,
}

impl Rejections {
    fn has_unwritten(&self, vault: VaultId, request: RequestId) -> bool {
        let mut all = self.unwritten.iter();
        all.any(|((of, _), requests)| *of == vault && requests.contains(&request))
    }

    fn count(&self, by: &RejectedBy) -> usize {
        let written = self.written.as_ref().and_then(|written| written.get(by));
        let unwritten = self.unwritten.get(by).map_or(0, BTreeSet::len);
        unwritten.saturating_add(written.copied().unwrap_or_default())
    }
}

/// What one node never signs.
pub struct VetoStore {
    vetoed: MarkFolder,
    rejected: MarkFolder,
    rejections: Mutex<Rejections>,
    /// One thread at a time writes rejections down.
    writing: Mutex<()>,
    most: usize,
}

fn mark(vault: VaultId, request: RequestId) -> String {
    format!("{vault}.{request}")
}

fn failed(cause: io::Error) -> Fault {
    Fault::unavailable("the vetoes of this node cannot be read or written").caused_by(cause)
}

/// Says in the log of the node which request a person has rejected, once that is on disk.
pub fn log_rejected(node: &str, rejected: &RejectedRequest) {
    let RejectedRequest {
        vault,
        request,
        person,
    } = rejected;
    tracing::warn!(node, %request, %vault, %person, "request rejected by a person: this node never signs it");
}

impl VetoStore {
    /// Of the node with this folder, which must be there.
    pub fn of(node_folder: &Path) -> Self {
        Self {
            vetoed: MarkFolder::new(node_folder, VETOED),
            rejected: MarkFolder::new(node_folder, REJECTED),
            rejections: Mutex::default(),
            writing: Mutex::default(),
            most: MAX_OF_PERSON,
        }
    }

    /// The operator vetoes a request for good. On disk, and so in force, when it returns.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when the disk fails.
    pub fn veto(&self, request: RequestId) -> Result<(), Fault> {
        self.vetoed.put(&request.to_string()).map_err(failed)
    }

    /// A person rejects requests of a vault for good; who calls this has verified that, and calls [`Self::write`] next. In
    /// force at once, and as long as this lives also where the disk fails.
    pub fn reject(&self, vault: VaultId, person: &str, requests: &[RequestId]) -> RejectionOutcome {
        let by: RejectedBy = (vault, person.into());
        // Held while the disk is looked at, so that nothing is counted twice that is being written.
        let mut rejections = self.rejections.lock();
        // Where that cannot be told it is not signed anyway, and written down when it can.
        let on_disk = |it: RequestId| matches!(self.rejected.is_there(&mark(vault, it)), Ok(true));
        let is_new = |it: &RequestId| !rejections.has_unwritten(vault, *it) && !on_disk(*it);
        let new: BTreeSet<_> = requests.iter().copied().filter(is_new).collect();
        let mut marked = Vec::from_iter(new);
        let room = self.most.saturating_sub(rejections.count(&by));
        let no_room = marked.split_off(room.min(marked.len()));
        if !marked.is_empty() {
            let unwritten = rejections.unwritten.entry(by).or_default();
            unwritten.extend(&marked);
        }
        RejectionOutcome { marked, no_room }
    }

    /// Whether rejections are in force that are not on disk.
    pub(crate) fn has_unwritten(&self) -> bool {
        !self.rejections.lock().unwritten.is_empty()
    }

    /// Writes down all rejections that are not, and tells of each that it has. Each takes the disk its time. Those that it
    /// fails for stay in force, for the next call.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when the disk fails.
    pub fn write(&self, mut written: impl FnMut(&RejectedRequest)) -> Result<(), Fault> {
        let _writing = self.writing.lock();
        if !self.has_unwritten() {
            return Ok(());
        }
        let is_counted = self.rejections.lock().written.is_some();
        if !is_counted {
            let found = self.on_disk().map_err(failed)?;
            self.rejections.lock().written = Some(found);
        }
        while self.has_unwritten() {
            let turn = |(by, requests): (&RejectedBy, &BTreeSet<RequestId>)| {
                let these = requests.iter().copied().take(WRITTEN_AT_ONCE);
                (by.clone(), Vec::from_iter(these))
            };
            let turns: Vec<_> = self.rejections.lock().unwritten.iter().map(turn).collect();
            for (by, requests) in turns {
                let (vault, person) = &by;
                let marks: Vec<_> = requests.iter().map(|it| mark(*vault, *it)).collect();
                // Root puts those of a file, and the node goes on with its own.
                let put = self.rejected.put_all_for_the_node(&marks, person);
                put.map_err(failed)?;
                self.note_written(&by, &requests);
                for request in requests {
                    written(&RejectedRequest {
                        vault: *vault,
                        request,
                        person: Arc::clone(person),
                    });
                }
            }
        }
        Ok(())
    }

    fn note_written(&self, by: &RejectedBy, requests: &[RequestId]) {
        let mut rejections = self.rejections.lock();
        let Rejections { unwritten, written } = &mut *rejections;
        if let Some(rest) = unwritten.get_mut(by) {
            rest.retain(|it| !requests.contains(it));
            if rest.is_empty() {
                unwritten.remove(by);
            }
        }
        let count = written.get_or_insert_default().entry(by.clone());
        let count = count.or_default();
        *count = count.saturating_add(requests.len());
    }

    fn on_disk(&self) -> io::Result<HashMap<RejectedBy, usize>> {
        let mut found: HashMap<RejectedBy, usize> = HashMap::new();
        for mark in self.rejected.all()? {
            let vault = mark.split_once('.').map(|(vault, _)| vault.parse());
            let Some(Ok(vault)) = vault else { continue };
            // Root's may not be readable: they are counted for nobody.
            let person = self.rejected.content(&mark).unwrap_or_default();
            let count = found.entry((vault, person.into())).or_default();
            *count = count.saturating_add(1);
        }
        Ok(found)
    }

    /// Whether all of these requests of a vault are rejected, and on disk.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when that cannot be told.
    pub fn are_written(&self, vault: VaultId, requests: &[RequestId]) -> Result<bool, Fault> {
        for request in requests {
            let is_unwritten = self.rejections.lock().has_unwritten(vault, *request);
            let known = self.rejected.is_there(&mark(vault, *request));
            if !known.map_err(failed)? || is_unwritten {
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
        // First in memory: what is written meanwhile is on disk by then.
        if self.rejections.lock().has_unwritten(vault, request) {
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

    fn of(folder: &Path, most: usize) -> VetoStore {
        VetoStore {
            most,
            ..VetoStore::of(folder)
        }
    }

    fn write(store: &VetoStore) -> Result<Vec<(RequestId, String)>, Fault> {
        let mut all = Vec::new();
        store.write(|it| all.push((it.request, it.person.to_string())))?;
        Ok(all)
    }

    /// Looking at rejections works, and writing them down does not, until the link is taken away.
    fn break_disk(folder: &Path) {
        std::os::unix::fs::symlink("/tmp", folder.join(REJECTED)).unwrap();
    }

    #[test]
    fn rejection__should_be_in_force_before_it_is_on_disk_and_where_it_cannot_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let store = VetoStore::of(folder.path());
        break_disk(folder.path());
        let veto = |last: u8| store.of_request(vault(), request(last)).unwrap();
        let both = [request(1), request(2)];
        assert_eq!(store.reject(vault(), "treasurer", &both).marked, both);
        // Told again, also by somebody else, it is no other one.
        assert_eq!(
            store.reject(vault(), "controller", &both),
            RejectionOutcome::default()
        );
        for _ in 0..2 {
            write(&store).unwrap_err();
            assert_eq!(
                (veto(1), veto(2), veto(3)),
                (Some(Veto::Person), Some(Veto::Person), None)
            );
            assert!(store.has_unwritten() && !store.are_written(vault(), &both).unwrap());
        }
        let elsewhere = VaultId::from_bytes([2; 16]);
        assert_eq!(store.of_request(elsewhere, request(1)).unwrap(), None);
        fs::remove_file(folder.path().join(REJECTED)).unwrap();
        let written = write(&store).unwrap();
        assert_eq!(
            written,
            both.map(|request| (request, "treasurer".to_owned()))
        );
        assert!(!store.has_unwritten() && store.are_written(vault(), &both).unwrap());
        assert_eq!(write(&store).unwrap(), []);
        let store = VetoStore::of(folder.path());
        assert!(store.are_written(vault(), &both).unwrap());
        assert!(!store.are_written(vault(), &[request(3)]).unwrap());
    }

    #[test]
    fn rejections__should_be_kept_for_good_and_be_bounded_by_person_and_vault() {
        let folder = tempfile::tempdir().unwrap();
        let reject = |store: &VetoStore, vault, person: &str, requests: &[u8]| {
            let requests: Vec<_> = requests.iter().map(|last| request(*last)).collect();
            let RejectionOutcome { marked, no_room } = store.reject(vault, person, &requests);
            (marked.len(), no_room)
        };
        let store = of(folder.path(), 2);
        assert_eq!(reject(&store, vault(), "one", &[1, 1]), (1, vec![]));
        // A disk that fails counts nothing twice and forgets nothing.
        break_disk(folder.path());
        write(&store).unwrap_err();
        assert_eq!(reject(&store, vault(), "one", &[1, 2]), (1, vec![]));
        write(&store).unwrap_err();
        fs::remove_file(folder.path().join(REJECTED)).unwrap();
        assert_eq!(
            reject(&store, vault(), "one", &[2, 3]),
            (0, vec![request(3)])
        );
        assert_eq!(write(&store).unwrap().len(), 2);
        // Counted anew by who opens it.
        for _ in 0..2 {
            assert_eq!(reject(&store, vault(), "one", &[1, 2]), (0, vec![]));
            assert_eq!(reject(&store, vault(), "one", &[3]), (0, vec![request(3)]));
        }
        // Another person and another vault have room of their own.
        let store = of(folder.path(), 2);
        let other = VaultId::from_bytes([2; 16]);
        assert_eq!(store.of_request(other, request(2)).unwrap(), None);
        assert_eq!(reject(&store, other, "one", &[3]), (1, vec![]));
        write(&store).unwrap();
        assert_eq!(
            reject(&store, vault(), "one", &[2, 3]),
            (0, vec![request(3)])
        );
        assert_eq!(store.of_request(vault(), request(3)).unwrap(), None);
        assert_eq!(
            reject(&store, vault(), "two", &[5, 4, 3]),
            (2, vec![request(5)])
        );
        let veto = |last: u8| store.of_request(vault(), request(last)).unwrap();
        assert_eq!(veto(3), Some(Veto::Person));
        store.veto(request(5)).unwrap();
        assert_eq!(veto(5), Some(Veto::Operator));
    }

    #[test]
    fn rejections__should_be_written_in_turn_by_person() {
        let folder = tempfile::tempdir().unwrap();
        let store = VetoStore::of(folder.path());
        let many: Vec<_> = (0..=2 * WRITTEN_AT_ONCE)
            .map(|number| RequestId::from_bytes(u128::try_from(number).unwrap().to_be_bytes()))
            .collect();
        store.reject(vault(), "many", &many);
        store.reject(vault(), "one", &[request(1)]);
        let written = write(&store).unwrap();
        let place = written.iter().position(|(_, person)| person == "one");
        assert_eq!(
            (written.len(), place),
            (many.len() + 1, Some(WRITTEN_AT_ONCE))
        );
    }

    #[test]
    fn rejection__should_stop_its_request_where_nobody_can_look() {
        let folder = tempfile::tempdir().unwrap();
        let store = VetoStore::of(folder.path());
        fs::write(folder.path().join(REJECTED), b"").unwrap();
        assert!(store.of_request(vault(), request(4)).is_err());
        store.reject(vault(), "one", &[request(4)]);
        assert!(write(&store).is_err());
        assert_eq!(
            store.of_request(vault(), request(4)).unwrap(),
            Some(Veto::Person)
        );
        assert!(store.of_request(vault(), request(5)).is_err());
    }
}
