//! Which vaults have something to go on with by themselves. Of thousands that come here together most have nothing: their
//! actors begin when somebody asks for them, and cost the store and this process nothing until then.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use covault_core::{
    fault::Fault,
    ids::VaultId,
    wallet::{
        generation::ReshareState,
        vault::{KeyState, Vault},
    },
};

use crate::store::{Key, KeySpace, ReadError, Row, Scan, Store, rows};

/// What a vault's actor reads when it begins and goes on with. Their keys begin with the vault. They are read one after the
/// other: only an actor of the vault moves a request from one to another, and that one goes on with it.
const SPACES: [KeySpace; 4] = [
    KeySpace::Outbox,
    KeySpace::Awaiting,
    KeySpace::ProofWanted,
    KeySpace::KeyProgress,
];
/// Rows that one question reads at most.
const PAGE: usize = 500;

/// Those of these vaults whose actors have something to go on with.
///
/// # Errors
/// When the store cannot be read.
pub async fn among(
    store: &dyn Store,
    vaults: &BTreeSet<VaultId>,
) -> Result<BTreeSet<VaultId>, Fault> {
    let keys: Vec<_> = vaults.iter().map(|id| rows::vault(*id)).collect();
    let stored = store.get_all(&keys).await?;
    let mut unfinished: BTreeSet<_> = vaults
        .iter()
        .copied()
        .filter(|id| !has_all_keys(&stored, *id))
        .collect();
    for space in SPACES {
        unfinished.extend(with_rows(store, space, vaults).await?);
    }
    Ok(unfinished)
}

/// Whether a vault has its keys, and nothing is to become of them. Of one that cannot be read its actor says so.
fn has_all_keys(stored: &BTreeMap<Key, Row>, id: VaultId) -> bool {
    let row = stored.get(&rows::vault(id));
    let vault = row.and_then(|row| rows::decode::<Vault>(&row.value).ok());
    vault.is_some_and(|vault| {
        vault.keys.iter().all(|key| match &key.state {
            KeyState::Ready(live) => {
                live.reshare == ReshareState::Idle && live.activation.is_none()
            }
            KeyState::Wanted | KeyState::Generating(_) | KeyState::Failed(_) => false,
        })
    })
}

/// Those of these vaults that have a row of a kind. Rows of other vaults are passed over, as are further ones of one.
async fn with_rows(
    store: &dyn Store,
    space: KeySpace,
    vaults: &BTreeSet<VaultId>,
) -> Result<BTreeSet<VaultId>, ReadError> {
    let mut found = BTreeSet::new();
    let mut next = vaults.first().copied();
    while let Some(from) = next {
        let scan = Scan {
            from: Some(from.as_bytes().to_vec()),
            ..Scan::prefix(space, &[], PAGE)
        };
        let page = store.scan(&scan).await?;
        let of = page.iter().filter_map(|(key, _)| {
            let id = key.bytes.first_chunk::<16>()?;
            Some(VaultId::from_bytes(*id))
        });
        let of: Vec<_> = of.collect();
        let last = of.last().filter(|_| page.len() == PAGE);
        next = last.and_then(|last| {
            let later = vaults.range((Bound::Excluded(*last), Bound::Unbounded));
            later.min().copied()
        });
        found.extend(of.into_iter().filter(|id| vaults.contains(id)));
    }
    Ok(found)
}

#[cfg(test)]
#[path = "unfinished_tests.rs"]
mod tests;
