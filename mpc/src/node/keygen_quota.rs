//! How much one orchestrator may have a node do and store. A pinned orchestrator is obeyed, not trusted:
//! without limits it could fill the node's disk with keys, and its memory with sessions.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use covault_core::{
    derive::RootKey,
    fault::{Fault, FaultCode},
    ids::VaultId,
    order::NodeId,
    signature::Curve,
};
use parking_lot::{Mutex, MutexGuard};

use super::{Node, refusals::refused};
use crate::{
    claims::{ClaimError, Claims},
    key_records::{KeyRecord, KeyRecords, VaultKeys},
    loaded_keys::{LoadedKey, LoadedKeys},
};

/// Milliseconds of a day.
const DAY_MS: u64 = 86_400_000;
/// How exactly the last use of a key is noted.
const USE_PRECISION_MS: u64 = 3_600_000;
/// Sessions of one orchestrator that run at once, and the inputs that they sign.
const MAX_SESSIONS: usize = 8_192;
const MAX_INPUTS: usize = 32_768;
/// Key generations of one orchestrator that run at once: they take the most memory.
const MAX_KEYGENS: usize = 64;

/// How many keys a node makes for its orchestrators. Settings of its operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeygenQuota {
    /// For one vault within 24 hours. A vault has two keys; each try to make one counts that made a
    /// share here.
    pub keys_per_vault_per_day: usize,
    /// For one orchestrator within 24 hours.
    pub keys_per_day: usize,
    /// Made for one orchestrator that never signed; of all orchestrators together four times as
    /// many.
    pub unused_keys: usize,
}

impl Default for KeygenQuota {
    fn default() -> Self {
        Self {
            keys_per_vault_per_day: 16,
            keys_per_day: 512,
            unused_keys: 512,
        }
    }
}

/// What is kept of keys, and what runs.
pub(super) struct QuotaTracker {
    keygen_quota: KeygenQuota,
    notes: Mutex<KeyRecords>,
    vaults: Mutex<HashMap<(VaultId, Curve), VaultKeyRecord>>,
    running: Arc<Mutex<HashMap<NodeId, RunningSessions>>>,
}

/// Which key of a curve is a vault's.
struct VaultKeyRecord {
    root: Vec<u8>,
    on_disk: bool,
}

/// What is known of a key once it was to be noted as its vault's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordStatus {
    /// It is the vault's.
    OnDisk,
    /// It is, and that is not on disk yet.
    InMemory,
    /// The vault has another one.
    Other,
}

/// What runs of one orchestrator.
#[derive(Default)]
struct RunningSessions {
    sessions: usize,
    inputs: usize,
    /// For which vaults.
    keygens: Vec<VaultId>,
}

/// Room that a session takes until this is dropped.
pub(super) struct SessionReservation {
    running: Arc<Mutex<HashMap<NodeId, RunningSessions>>>,
    orchestrator: NodeId,
    inputs: usize,
    keygen: Option<VaultId>,
}

impl Drop for SessionReservation {
    fn drop(&mut self) {
        let mut running = lock(&self.running);
        let Some(own) = running.get_mut(&self.orchestrator) else {
            return;
        };
        own.sessions = own.sessions.saturating_sub(1);
        own.inputs = own.inputs.saturating_sub(self.inputs);
        let place = self
            .keygen
            .and_then(|vault| own.keygens.iter().position(|of| *of == vault));
        if let Some(place) = place {
            own.keygens.swap_remove(place);
        }
        if own.sessions == 0 {
            running.remove(&self.orchestrator);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl QuotaTracker {
    /// The ledger of a start, from what is on disk.
    pub(super) async fn open(
        keygen_quota: KeygenQuota,
        (mut notes, vaults): (KeyRecords, VaultKeys),
        claims: &Claims,
        keys: &LoadedKeys,
        now_ms: u64,
    ) -> Self {
        let held = keys.roots();
        // Shares that left, or were cleared. Those of today still count.
        let is_over = |root: &Vec<u8>, note: &KeyRecord| {
            !held.contains(root) && now_ms.abs_diff(note.made_ms) >= DAY_MS
        };
        let over = notes.extract_if(|root, note| is_over(root, note));
        let over: Vec<Vec<u8>> = over.map(|(root, _)| root).collect();
        for root in over {
            // A disk that fails is noticed by who needs it.
            let _ = claims.note_key(root, None).await;
        }
        for key in keys.all() {
            let record = key.record();
            // The node ended after it had stored the share, and before it had noted it.
            if record.order.is_none() && !record.restored {
                notes
                    .entry(record.key.root.public_key.clone())
                    .or_insert(KeyRecord {
                        orchestrator: NodeId([0; 32]),
                        vault: record.vault,
                        made_ms: now_ms,
                        used_ms: None,
                    });
            }
        }
        let on_disk = |(of, root)| {
            let on_disk = true;
            (of, VaultKeyRecord { root, on_disk })
        };
        Self {
            keygen_quota,
            notes: Mutex::new(notes),
            vaults: Mutex::new(vaults.into_iter().map(on_disk).collect()),
            running: Arc::default(),
        }
    }

    /// Notes that this is the key of the vault on its curve, unless another one is: the first that
    /// addresses are stated of, or that signs, while the operator has permitted none
    /// ([`Node::write_vault_key`]).
    pub(super) fn note_vault(&self, vault: VaultId, root: &RootKey) -> RecordStatus {
        let mut vaults = lock(&self.vaults);
        let note = vaults
            .entry((vault, root.curve))
            .or_insert_with(|| VaultKeyRecord {
                root: root.public_key.clone(),
                on_disk: false,
            });
        match note {
            VaultKeyRecord { root: known, .. } if *known != root.public_key => RecordStatus::Other,
            VaultKeyRecord { on_disk: true, .. } => RecordStatus::OnDisk,
            VaultKeyRecord { .. } => RecordStatus::InMemory,
        }
    }

    /// Whether this key is the vault's on its curve, and that is on disk.
    pub(super) fn is_noted(&self, of: (VaultId, Curve), root: &[u8]) -> bool {
        let vaults = lock(&self.vaults);
        let is_it = |note: &VaultKeyRecord| note.on_disk && note.root == root;
        vaults.get(&of).is_some_and(is_it)
    }

    /// Room for a session that signs so many inputs.
    pub(super) fn session(
        &self,
        orchestrator: NodeId,
        inputs: usize,
    ) -> Result<SessionReservation, Fault> {
        self.room(orchestrator, inputs, None)
    }

    fn room(
        &self,
        orchestrator: NodeId,
        inputs: usize,
        keygen: Option<VaultId>,
    ) -> Result<SessionReservation, Fault> {
        let mut running = lock(&self.running);
        let own = running.entry(orchestrator).or_default();
        if own.sessions >= MAX_SESSIONS || own.inputs.saturating_add(inputs) > MAX_INPUTS {
            let sentence = "this orchestrator has too many sessions running here";
            return Err(Fault::unavailable(sentence).with_code(FaultCode::Busy { seconds: 1 }));
        }
        own.sessions = own.sessions.saturating_add(1);
        own.inputs = own.inputs.saturating_add(inputs);
        own.keygens.extend(keygen);
        drop(running);
        Ok(SessionReservation {
            running: Arc::clone(&self.running),
            orchestrator,
            inputs,
            keygen,
        })
    }

    /// Room for a key generation. Those that run count as if they had made their key.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] with what the operator of the node can do.
    fn keygen(
        &self,
        orchestrator: NodeId,
        vault: VaultId,
        held: &HashSet<Vec<u8>>,
        now_ms: u64,
    ) -> Result<SessionReservation, Fault> {
        let notes = lock(&self.notes);
        let (in_work, of_vault, in_all) = {
            let running = lock(&self.running);
            let own = running.get(&orchestrator).map(|own| &own.keygens);
            let all = running
                .values()
                .map(|running| running.keygens.len())
                .sum::<usize>();
            let of_vault = running.values().flat_map(|running| &running.keygens);
            let of_vault = of_vault.filter(|of| **of == vault).count();
            (own.map_or(0, Vec::len), of_vault, all)
        };
        let today = |note: &&KeyRecord| now_ms.abs_diff(note.made_ms) < DAY_MS;
        let own = |note: &&KeyRecord| note.orchestrator == orchestrator;
        let unused = || {
            let unused = notes
                .iter()
                .filter(|(root, note)| note.used_ms.is_none() && held.contains(*root));
            unused.map(|(_, note)| note)
        };
        let KeygenQuota {
            keys_per_vault_per_day,
            keys_per_day,
            unused_keys,
        } = self.keygen_quota;
        let made = notes
            .values()
            .filter(today)
            .filter(|note| note.vault == vault);
        if made.count().saturating_add(of_vault) >= keys_per_vault_per_day {
            return Err(refused(format!(
                "vault: {keys_per_vault_per_day} keys were made for it within a day; the operator of \
                 this node allows more in signer.keys_per_vault_per_day"
            )));
        }
        let made = notes.values().filter(today).filter(own);
        if made.count().saturating_add(in_work) >= keys_per_day {
            return Err(refused(format!(
                "{keys_per_day} keys were made for this orchestrator within a day; the operator of \
                 this node allows more in signer.keys_per_day"
            )));
        }
        let of_own = unused().filter(own).count().saturating_add(in_work);
        let of_all = unused().count().saturating_add(in_all);
        if of_own >= unused_keys || of_all >= unused_keys.saturating_mul(4) {
            return Err(refused(format!(
                "{unused_keys} keys that this orchestrator had made here never signed; the operator \
                 of this node clears them with covault node clear-unused, or allows more in \
                 signer.unused_keys"
            )));
        }
        if in_work >= MAX_KEYGENS {
            return Err(Fault::unavailable(
                "this orchestrator has too many key generations running here",
            ));
        }
        // Still under the lock of the notes: of two orders at once the second one sees the first.
        self.room(orchestrator, 0, Some(vault))
    }
}

impl Node {
    /// Room for a key generation of this orchestrator.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] with what the operator of the node can do.
    pub(super) fn reserve_for_key(
        &self,
        orchestrator: NodeId,
        vault: VaultId,
    ) -> Result<SessionReservation, Fault> {
        let held = self.keys.roots();
        let now_ms = self.clock.now_ms();
        self.quota_tracker
            .keygen(orchestrator, vault, &held, now_ms)
    }

    /// Notes a key that was just made; on disk when it returns.
    pub(super) async fn note_made(
        &self,
        root: &[u8],
        orchestrator: NodeId,
        vault: VaultId,
    ) -> Result<(), ClaimError> {
        let note = KeyRecord {
            orchestrator,
            vault,
            made_ms: self.clock.now_ms(),
            used_ms: None,
        };
        self.note(root.to_vec(), note).await
    }

    /// Notes that a key is about to sign; on disk when it returns. Most times there is nothing to do.
    pub(super) async fn note_used(&self, root: &[u8]) -> Result<(), ClaimError> {
        let now_ms = self.clock.now_ms();
        if let Some(key) = self.keys.get(root) {
            let record = key.record();
            // Another one may sign, and has no addresses.
            if self
                .quota_tracker
                .note_vault(record.vault, &record.key.root)
                == RecordStatus::InMemory
            {
                self.save_vault_key(&key).await?;
            }
        }
        let note = lock(&self.quota_tracker.notes).get(root).copied();
        // What came by a reshare was made elsewhere.
        let Some(mut note) = note else { return Ok(()) };
        if note
            .used_ms
            .is_some_and(|used_ms| now_ms.abs_diff(used_ms) < USE_PRECISION_MS)
        {
            return Ok(());
        }
        note.used_ms = Some(now_ms.max(1));
        self.note(root.to_vec(), note).await
    }

    /// Has it on disk that this is its vault's key, which [`QuotaTracker::note_vault`] has said.
    pub(super) async fn save_vault_key(&self, key: &LoadedKey) -> Result<(), ClaimError> {
        let record = key.record();
        let of = (record.vault, record.key.root.curve);
        let root = record.key.root.public_key.clone();
        self.claims.note_vault_key(of, root).await?;
        if let Some(note) = lock(&self.quota_tracker.vaults).get_mut(&of) {
            note.on_disk = true;
        }
        Ok(())
    }

    /// Notes that this is the key of the vault, whichever was before; on disk when it returns.
    pub(super) async fn write_vault_key(
        &self,
        of: (VaultId, Curve),
        root: Vec<u8>,
    ) -> Result<(), ClaimError> {
        self.claims.note_vault_key(of, root.clone()).await?;
        let on_disk = true;
        lock(&self.quota_tracker.vaults).insert(of, VaultKeyRecord { root, on_disk });
        Ok(())
    }

    async fn note(&self, root: Vec<u8>, note: KeyRecord) -> Result<(), ClaimError> {
        // In force at once, whatever becomes of the disk.
        lock(&self.quota_tracker.notes).insert(root.clone(), note);
        self.claims.note_key(root, Some(note)).await
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn room__should_be_bounded_and_come_back() {
        let quota_tracker = QuotaTracker {
            keygen_quota: KeygenQuota::default(),
            notes: Mutex::default(),
            vaults: Mutex::default(),
            running: Arc::default(),
        };
        let (one, other) = (NodeId([1; 32]), NodeId([2; 32]));
        let mut rooms = Vec::new();
        while let Ok(room) = quota_tracker.session(one, 1) {
            rooms.push(room);
        }
        assert_eq!(rooms.len(), MAX_SESSIONS);
        // Of another one there is room anyway.
        drop(quota_tracker.session(other, MAX_INPUTS).unwrap());
        rooms.clear();
        assert!(lock(&quota_tracker.running).is_empty());

        let most = quota_tracker.session(one, MAX_INPUTS).unwrap();
        let fault = quota_tracker.session(one, 1).map(drop).unwrap_err();
        assert!(matches!(fault.code(), FaultCode::Busy { .. }));
        drop(most);
        quota_tracker.session(one, 1).map(drop).unwrap();

        let vault = VaultId::from_bytes([7; 16]);
        let key = || quota_tracker.keygen(one, vault, &HashSet::new(), 5);
        let mut rooms = Vec::new();
        while let Ok(room) = key() {
            rooms.push(room);
        }
        assert_eq!(
            rooms.len(),
            quota_tracker.keygen_quota.keys_per_vault_per_day
        );
        rooms.pop();
        rooms.push(key().unwrap());
        key().map(drop).unwrap_err();
    }
}
