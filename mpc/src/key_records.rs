//! A node's records about keys. For keys that it made: for which orchestrator, and whether they were ever
//! used, so that a hostile orchestrator cannot have a node make keys without end. For keys that it used:
//! which one belongs to the vault, so that it cannot have addresses of a second, weaker one stated. Stored
//! with the claims.

use std::{collections::HashMap, path::Path};

use covault_core::{
    fault::{Class, Fault},
    ids::VaultId,
    order::NodeId,
    signature::Curve,
};
use redb::{
    Database, ReadTransaction, ReadableDatabase as _, ReadableTable as _, TableDefinition,
    TableError, WriteTransaction,
};

/// Root public key -> (orchestrator, vault, made, last used), times in milliseconds since the Unix epoch;
/// 0: never.
const KEYS: TableDefinition<'_, &[u8], KeyRow<'_>> = TableDefinition::new("keys.1");

/// (vault, curve) -> root public key: the first one that this node stated an address of, or signed with; or the last
/// one that it was given a share of with a permit of its operator.
const VAULTS: TableDefinition<'_, (&[u8; 16], &str), &[u8]> = TableDefinition::new("vault_keys.1");

/// Root public key -> when this node got a share of it by a reshare, in milliseconds since the Unix epoch.
const JOINED: TableDefinition<'_, &[u8], u64> = TableDefinition::new("keys_joined.1");

/// Root public key -> when this node got a share of it, having had none of the generation before, in milliseconds since
/// the Unix epoch.
const NEW_HOLDER: TableDefinition<'_, &[u8], u64> = TableDefinition::new("keys_new_holder.1");

type KeyRow<'a> = (&'a [u8; 32], &'a [u8; 16], u64, u64);

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

pub(crate) fn make(transaction: &WriteTransaction) -> Result<(), redb::Error> {
    transaction.open_table(KEYS)?;
    transaction.open_table(VAULTS)?;
    transaction.open_table(JOINED)?;
    transaction.open_table(NEW_HOLDER)?;
    Ok(())
}

pub(crate) fn load_vaults(transaction: &ReadTransaction) -> Result<VaultKeys, redb::Error> {
    let mut keys = VaultKeys::new();
    for entry in transaction.open_table(VAULTS)?.iter()? {
        let (of, root) = entry?;
        let (vault, name) = of.value();
        for curve in Curve::ALL.into_iter().filter(|curve| curve.name() == name) {
            keys.insert((VaultId::from_bytes(*vault), curve), root.value().to_vec());
        }
    }
    Ok(keys)
}

/// Replaces the key of a vault.
pub(crate) fn put_vault(
    transaction: &WriteTransaction,
    (vault, curve): (VaultId, Curve),
    root: &[u8],
) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(VAULTS)?;
    table.insert((vault.as_bytes(), curve.name()), root)?;
    Ok(())
}

/// Notes when this node got a share of a key by a reshare.
pub(crate) fn put_joined(
    transaction: &WriteTransaction,
    root: &[u8],
    joined: JoinedKey,
) -> Result<(), redb::Error> {
    let JoinedKey { at_ms, held_before } = joined;
    transaction.open_table(JOINED)?.insert(root, at_ms)?;
    if !held_before {
        transaction.open_table(NEW_HOLDER)?.insert(root, at_ms)?;
    }
    Ok(())
}

/// When this node last got a share of the key without having had one of the generation before; `None`: never.
pub(crate) fn new_holder_ms(
    transaction: &WriteTransaction,
    root: &[u8],
) -> Result<Option<u64>, redb::Error> {
    let table = transaction.open_table(NEW_HOLDER)?;
    Ok(table.get(root)?.map(|at_ms| at_ms.value()))
}

/// When this node last got a share of the key by a reshare; `None`: it made the key, and refreshed it only.
pub(crate) fn joined_ms(
    transaction: &WriteTransaction,
    root: &[u8],
) -> Result<Option<u64>, redb::Error> {
    let table = transaction.open_table(JOINED)?;
    Ok(table.get(root)?.map(|joined_ms| joined_ms.value()))
}

pub(crate) fn load(transaction: &ReadTransaction) -> Result<KeyRecords, redb::Error> {
    let table = match transaction.open_table(KEYS) {
        Ok(table) => table,
        Err(TableError::TableDoesNotExist(_)) => return Ok(KeyRecords::new()),
        Err(error) => return Err(error.into()),
    };
    let mut notes = KeyRecords::new();
    for entry in table.iter()? {
        let (root, row) = entry?;
        let (orchestrator, vault, made_ms, used_ms) = row.value();
        let note = KeyRecord {
            orchestrator: NodeId(*orchestrator),
            vault: VaultId::from_bytes(*vault),
            made_ms,
            used_ms: (used_ms != 0).then_some(used_ms),
        };
        notes.insert(root.value().to_vec(), note);
    }
    Ok(notes)
}

/// Replaces a key's note; `None` removes it.
pub(crate) fn put(
    transaction: &WriteTransaction,
    root: &[u8],
    note: Option<&KeyRecord>,
) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(KEYS)?;
    let Some(note) = note else {
        table.remove(root)?;
        return Ok(());
    };
    let used_ms = note.used_ms.unwrap_or_default();
    let row = (
        &note.orchestrator.0,
        note.vault.as_bytes(),
        note.made_ms,
        used_ms,
    );
    table.insert(root, row)?;
    Ok(())
}

/// The notes in the claims file of a node that does not run.
///
/// # Errors
/// [`Class::Invalid`] when the file is missing, damaged, or in use.
pub fn of_stopped_node(claims: &Path) -> Result<HashMap<Vec<u8>, KeyRecord>, Fault> {
    let failed = |cause: redb::Error| {
        let sentence = format!("claims file {}: cannot be read", claims.display());
        Fault::new(Class::Invalid, sentence).caused_by(cause)
    };
    let read = || {
        let database = Database::open(claims)?;
        load(&database.begin_read()?)
    };
    read().map_err(failed)
}
