//! The tables of nonces in a node's claims database. Functions of one transaction: [`crate::claims`]
//! decides what else is in it.

use std::collections::BTreeMap;

use redb::{ReadTransaction, ReadableTable as _, TableDefinition, WriteTransaction};

use crate::shares::ShareEpoch;

/// (root public key, epoch, number) -> (commitments, sealed secret).
type NonceTable<'a> =
    TableDefinition<'a, (&'static [u8], u32, u64), (&'static [u8], &'static [u8])>;
const NONCES: NonceTable<'_> = TableDefinition::new("nonces.1");
/// The number that the next nonce gets: never a smaller one, whatever was deleted.
const NEXT: TableDefinition<'_, (), u64> = TableDefinition::new("next-nonce.1");
/// How often the file was opened to be written.
const STARTS: TableDefinition<'_, (), u64> = TableDefinition::new("starts.1");

/// Which nonces a session is to use.
#[derive(Clone, Debug)]
pub struct NonceSelection {
    /// The shares that they were made for.
    pub of: ShareEpoch,
    /// Their numbers, one per input.
    pub ids: Vec<u64>,
}

/// A nonce as it is stored.
pub(crate) struct NonceRow {
    pub id: u64,
    pub commitments: Vec<u8>,
    pub sealed: Vec<u8>,
}

/// What a file holds of nonces: numbers and commitments.
#[derive(Default)]
pub(crate) struct StoredNonces {
    /// The number that the next one gets.
    pub next: u64,
    /// Which opening of the file this is: never the same number twice.
    pub start: u64,
    /// By the shares that they are for.
    pub ready: BTreeMap<ShareEpoch, BTreeMap<u64, Vec<u8>>>,
}

/// Makes the tables that are missing, and counts this opening of the file.
pub(crate) fn make(transaction: &WriteTransaction) -> Result<(), redb::Error> {
    transaction.open_table(NONCES)?;
    transaction.open_table(NEXT)?;
    let mut starts = transaction.open_table(STARTS)?;
    let known = starts.get(())?.map_or(0, |known| known.value());
    starts.insert((), known.saturating_add(1))?;
    Ok(())
}

/// Reads numbers and commitments; no secret.
pub(crate) fn load(transaction: &ReadTransaction) -> Result<StoredNonces, redb::Error> {
    let mut stored = StoredNonces::default();
    if let Some(next) = transaction.open_table(NEXT)?.get(())? {
        stored.next = next.value();
    }
    if let Some(starts) = transaction.open_table(STARTS)?.get(())? {
        stored.start = starts.value();
    }
    for entry in transaction.open_table(NONCES)?.iter()? {
        let (key, row) = entry?;
        let (root, epoch, id) = key.value();
        let of = ShareEpoch {
            root: root.to_vec(),
            epoch,
        };
        let (commitments, _) = row.value();
        stored
            .ready
            .entry(of)
            .or_default()
            .insert(id, commitments.to_vec());
    }
    Ok(stored)
}

/// Adds nonces. Their numbers count as given out, even should they be deleted.
pub(crate) fn keep(
    transaction: &WriteTransaction,
    of: &ShareEpoch,
    rows: &[NonceRow],
) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(NONCES)?;
    let mut next = transaction.open_table(NEXT)?;
    let mut highest = next.get(())?.map_or(0, |next| next.value());
    for NonceRow {
        id,
        commitments,
        sealed,
    } in rows
    {
        let key = (of.root.as_slice(), of.epoch, *id);
        table.insert(key, (commitments.as_slice(), sealed.as_slice()))?;
        highest = highest.max(id.saturating_add(1));
    }
    next.insert((), highest)?;
    Ok(())
}

/// Deletes nonces and gives them; `None` when one was not there, and then the others are deleted
/// anyway.
pub(crate) fn take(
    transaction: &WriteTransaction,
    take: &NonceSelection,
) -> Result<Option<Vec<NonceRow>>, redb::Error> {
    let mut table = transaction.open_table(NONCES)?;
    let mut rows = Vec::with_capacity(take.ids.len());
    for id in &take.ids {
        let key = (take.of.root.as_slice(), take.of.epoch, *id);
        if let Some(row) = table.remove(key)? {
            let (commitments, sealed) = row.value();
            rows.push(NonceRow {
                id: *id,
                commitments: commitments.to_vec(),
                sealed: sealed.to_vec(),
            });
        }
    }
    Ok((rows.len() == take.ids.len()).then_some(rows))
}

/// Deletes all nonces. Their numbers stay given out.
pub(crate) fn clear(transaction: &WriteTransaction) -> Result<(), redb::Error> {
    transaction.delete_table(NONCES)?;
    transaction.open_table(NONCES)?;
    Ok(())
}

/// Deletes nonces.
pub(crate) fn burn(
    transaction: &WriteTransaction,
    of: &ShareEpoch,
    ids: &[u64],
) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(NONCES)?;
    for id in ids {
        table.remove((of.root.as_slice(), of.epoch, *id))?;
    }
    Ok(())
}
