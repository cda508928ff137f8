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

use crate::{
    services::Services,
    store::{Key, KeySpace, ReadError, Row, Scan, Store, rows},
};

/// What a vault's actor reads when it begins and goes on with. Their keys begin with the vault.
const SPACES: [KeySpace; 4] = [
    KeySpace::Outbox,
    KeySpace::Awaiting,
    KeySpace::ProofWanted,
    KeySpace::KeyProblem,
];
/// Rows that one question reads at most.
const PAGE: usize = 500;

/// Those of these vaults whose actors have something to go on with.
///
/// # Errors
/// When the store cannot be read.
pub async fn among(
    services: &Services,
    vaults: &BTreeSet<VaultId>,
) -> Result<BTreeSet<VaultId>, Fault> {
    let store = &*services.store;
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
#[allow(non_snake_case, reason = "tests")]
mod tests {
    use super::*;
    use crate::{
        store::{Batch, Precondition, memory::MemoryStore},
        testing::CountingStore,
    };
    use std::sync::{Arc, atomic::Ordering};

    fn vault(number: u16) -> VaultId {
        let [high, low] = number.to_be_bytes();
        VaultId::from_bytes([high, low, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])
    }

    #[tokio::test]
    async fn vaults_with_rows__should_be_found_among_those_of_others_and_with_very_many() {
        let inner = Arc::new(MemoryStore::new());
        let mut batch = Batch::new();
        // All even ones are others', and have some; of these only two have any, and one of them very many.
        let others = (0..2_000).step_by(2).map(|number| (number, 1));
        for (number, count) in others.chain([(7, 5_000), (1_501, 1)]) {
            for row in 0_u32..count {
                let key = Key::new(
                    KeySpace::Outbox,
                    &[vault(number).as_bytes(), &row.to_be_bytes()],
                );
                batch.put(key, Precondition::Absent, Vec::new());
            }
        }
        inner.commit(batch).await.unwrap();
        let store = CountingStore::new(inner);
        let ours: BTreeSet<_> = (1..2_000).step_by(2).map(vault).collect();
        let found = with_rows(&*store, KeySpace::Outbox, &ours).await.unwrap();
        assert_eq!(found, BTreeSet::from([vault(7), vault(1_501)]));
        let read = store.read.load(Ordering::SeqCst);
        assert!(read < 2_500, "{read}");
        let none = with_rows(&*store, KeySpace::Awaiting, &ours).await.unwrap();
        assert_eq!(none, BTreeSet::new());
    }
}
