//! The nonces among the rows of a node's claims file. Functions of one batch: [`crate::claims`] decides what else is in it.

use std::collections::BTreeMap;

use crate::{
    claims::rows::{RowKind, RowSpace, Rows},
    shares::ShareEpoch,
};

/// (root public key, epoch, number) -> (commitments, sealed secret).
const NONCES: RowSpace<NonceKey, (Vec<u8>, Vec<u8>)> = RowSpace::new(RowKind::Nonce);
type NonceKey = (Vec<u8>, u32, u64);
/// The number that the next nonce gets: never a smaller one, whatever was deleted.
const NEXT: RowSpace<(), u64> = RowSpace::new(RowKind::NextNonce);
/// How often the file was opened to be written.
const STARTS: RowSpace<(), u64> = RowSpace::new(RowKind::Starts);

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

fn key(of: &ShareEpoch, id: u64) -> NonceKey {
    (of.root.clone(), of.epoch, id)
}

/// Counts this opening of the file.
pub(crate) fn count_start(rows: &mut Rows) -> Result<(), redb::Error> {
    let known = rows.get(&STARTS, &())?.unwrap_or_default();
    rows.put(&STARTS, &(), &known.saturating_add(1))
}

/// Reads numbers and commitments; no secret.
pub(crate) fn load(rows: &Rows) -> Result<StoredNonces, redb::Error> {
    let mut stored = StoredNonces {
        next: rows.get(&NEXT, &())?.unwrap_or_default(),
        start: rows.get(&STARTS, &())?.unwrap_or_default(),
        ready: BTreeMap::new(),
    };
    rows.visit(&NONCES, |(root, epoch, id), (commitments, _)| {
        let of = ShareEpoch { root, epoch };
        stored.ready.entry(of).or_default().insert(id, commitments);
    })?;
    Ok(stored)
}

/// Adds nonces. Their numbers count as given out, even should they be deleted.
pub(crate) fn keep(
    rows: &mut Rows,
    of: &ShareEpoch,
    nonces: &[NonceRow],
) -> Result<(), redb::Error> {
    let mut highest = rows.get(&NEXT, &())?.unwrap_or_default();
    for NonceRow {
        id,
        commitments,
        sealed,
    } in nonces
    {
        let row = (commitments.clone(), sealed.clone());
        rows.put(&NONCES, &key(of, *id), &row)?;
        highest = highest.max(id.saturating_add(1));
    }
    rows.put(&NEXT, &(), &highest)
}

/// Deletes nonces and gives them; `None` when one was not there, and then the others are deleted
/// anyway.
pub(crate) fn take(
    rows: &mut Rows,
    take: &NonceSelection,
) -> Result<Option<Vec<NonceRow>>, redb::Error> {
    let mut taken = Vec::with_capacity(take.ids.len());
    for id in &take.ids {
        let key = key(&take.of, *id);
        if let Some((commitments, sealed)) = rows.get(&NONCES, &key)? {
            rows.delete(&NONCES, &key)?;
            taken.push(NonceRow {
                id: *id,
                commitments,
                sealed,
            });
        }
    }
    Ok((taken.len() == take.ids.len()).then_some(taken))
}

/// Deletes all nonces. Their numbers stay given out.
pub(crate) fn clear(rows: &mut Rows) -> Result<(), redb::Error> {
    let mut all = Vec::new();
    rows.visit(&NONCES, |key, _| all.push(key))?;
    all.iter().try_for_each(|key| rows.delete(&NONCES, key))
}

/// Deletes nonces.
pub(crate) fn burn(rows: &mut Rows, of: &ShareEpoch, ids: &[u64]) -> Result<(), redb::Error> {
    ids.iter()
        .try_for_each(|id| rows.delete(&NONCES, &key(of, *id)))
}
