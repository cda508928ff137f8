//! A node's records about keys. For keys that it made: for which orchestrator, and whether they were ever
//! used, so that a hostile orchestrator cannot have a node make keys without end. For keys that it used:
//! which one belongs to the vault, so that it cannot have addresses of a second, weaker one stated. Stored
//! with the claims.

use std::collections::HashMap;

use covault_core::{ids::VaultId, order::NodeId, signature::Curve};

use crate::claims::rows::{RowKind, RowSpace, Rows};

/// Root public key -> (orchestrator, vault, made, last used), times in milliseconds since the Unix epoch;
/// 0: never.
const KEYS: RowSpace<Vec<u8>, KeyRow> = RowSpace::new(RowKind::Key);
type KeyRow = ([u8; 32], [u8; 16], u64, u64);

/// (vault, curve) -> root public key: the first one that this node stated an address of, or signed with; or the last
/// one that it was given a share of with a permit of its operator.
const VAULTS: RowSpace<([u8; 16], String), Vec<u8>> = RowSpace::new(RowKind::VaultKey);

/// Root public key -> when this node got a share of it by a reshare, in milliseconds since the Unix epoch.
const JOINED: RowSpace<Vec<u8>, u64> = RowSpace::new(RowKind::JoinedKey);

/// Root public key -> when this node got a share of it, having had none of the generation before, in milliseconds since
/// the Unix epoch.
const NEW_HOLDER: RowSpace<Vec<u8>, u64> = RowSpace::new(RowKind::NewHolder);

/// A key that was made by key generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRecord {
    /// The orchestrator that ordered it.
    pub orchestrator: NodeId,
    /// The vault that it was made for.
    pub vault: VaultId,
    /// When it was created, in milliseconds since the Unix epoch.
    pub made_ms: u64,
    /// When a signature with it was last agreed to, to an hour or so; `None`: never.
    pub used_ms: Option<u64>,
}

/// A share of a key that a node got by a reshare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JoinedKey {
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Whether it held one of the generation before, and so has counted what it signed with it.
    pub held_before: bool,
}

/// Notes by root public key.
pub(crate) type KeyRecords = HashMap<Vec<u8>, KeyRecord>;

/// The keys of vaults, by root public key.
pub(crate) type VaultKeys = HashMap<(VaultId, Curve), Vec<u8>>;

pub(crate) fn load_vaults(rows: &Rows) -> Result<VaultKeys, redb::Error> {
    let mut keys = VaultKeys::new();
    rows.visit(&VAULTS, |(vault, name), root| {
        if let Some(curve) = Curve::ALL.into_iter().find(|curve| curve.name() == name) {
            keys.insert((VaultId::from_bytes(vault), curve), root);
        }
    })?;
    Ok(keys)
}

/// Replaces the key of a vault.
pub(crate) fn put_vault(
    rows: &mut Rows,
    (vault, curve): (VaultId, Curve),
    root: &[u8],
) -> Result<(), redb::Error> {
    let key = (*vault.as_bytes(), curve.name().to_owned());
    rows.put(&VAULTS, &key, &root.to_vec())
}

/// Notes when this node got a share of a key by a reshare.
pub(crate) fn put_joined(
    rows: &mut Rows,
    root: &[u8],
    joined: JoinedKey,
) -> Result<(), redb::Error> {
    let JoinedKey { at_ms, held_before } = joined;
    rows.put(&JOINED, &root.to_vec(), &at_ms)?;
    if !held_before {
        rows.put(&NEW_HOLDER, &root.to_vec(), &at_ms)?;
    }
    Ok(())
}

/// When this node last got a share of the key without having had one of the generation before; `None`: never.
pub(crate) fn new_holder_ms(rows: &Rows, root: &[u8]) -> Result<Option<u64>, redb::Error> {
    rows.get(&NEW_HOLDER, &root.to_vec())
}

/// When this node last got a share of the key by a reshare; `None`: it made the key, and refreshed it only.
pub(crate) fn joined_ms(rows: &Rows, root: &[u8]) -> Result<Option<u64>, redb::Error> {
    rows.get(&JOINED, &root.to_vec())
}

pub(crate) fn load(rows: &Rows) -> Result<KeyRecords, redb::Error> {
    let mut notes = KeyRecords::new();
    rows.visit(&KEYS, |root, (orchestrator, vault, made_ms, used_ms)| {
        let note = KeyRecord {
            orchestrator: NodeId(orchestrator),
            vault: VaultId::from_bytes(vault),
            made_ms,
            used_ms: (used_ms != 0).then_some(used_ms),
        };
        notes.insert(root, note);
    })?;
    Ok(notes)
}

/// Replaces a key's note; `None` removes it.
pub(crate) fn put(
    rows: &mut Rows,
    root: &[u8],
    note: Option<&KeyRecord>,
) -> Result<(), redb::Error> {
    let root = root.to_vec();
    let Some(note) = note else {
        return rows.delete(&KEYS, &root);
    };
    let used_ms = note.used_ms.unwrap_or_default();
    let vault = *note.vault.as_bytes();
    rows.put(
        &KEYS,
        &root,
        &(note.orchestrator.0, vault, note.made_ms, used_ms),
    )
}
