//! Vaults in great number: copies of one.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use covault_actors::{
    store::{Batch, Key, KeySpace, Precondition, Store},
    testing::{StoreCall, ToldStore},
};
use covault_core::ids::VaultId;
use sha2::{Digest as _, Sha256};

use crate::world::*;

/// Names of one length.
pub fn numbered(number: usize) -> String {
    format!("v{number:09}")
}

/// The id of a copy.
pub fn id_of_copy(number: usize) -> VaultId {
    let digest = Sha256::digest(number.to_be_bytes());
    VaultId::from_bytes(*digest.first_chunk().unwrap())
}

/// Rows of vaults that are as this one, but for their ids and names: what a vault costs to make is not what is
/// measured.
pub async fn copy_vault(store: &dyn Store, template: VaultId, numbers: Range<usize>) {
    let value = async |space, key: &[u8]| {
        let row = store.get(&Key::new(space, &[key])).await;
        row.unwrap().unwrap().value
    };
    let (id, name) = (template.as_bytes().as_slice(), numbered(0));
    let row = value(KeySpace::Vault, id).await;
    let name_row = value(KeySpace::VaultName, name.as_bytes()).await;
    let replaced = |from: &[u8], to: &[u8], row: &mut [u8]| {
        let place = row.windows(from.len()).position(|window| window == from);
        let place = place.unwrap();
        row[place..place + to.len()].copy_from_slice(to);
    };
    for some in numbers.collect::<Vec<_>>().chunks(5_000) {
        let mut batch = Batch::new();
        for number in some {
            let (id_of_copy, name_of_copy) = (id_of_copy(*number), numbered(*number));
            let id_of_copy = id_of_copy.as_bytes();
            let mut copy = row.clone();
            replaced(id, id_of_copy, &mut copy);
            replaced(name.as_bytes(), name_of_copy.as_bytes(), &mut copy);
            let key = Key::new(KeySpace::Vault, &[id_of_copy]);
            batch.put(key, Precondition::Absent, copy);
            let key = Key::new(KeySpace::VaultName, &[name_of_copy.as_bytes()]);
            let mut copy = name_row.clone();
            replaced(id, id_of_copy, &mut copy);
            batch.put(key, Precondition::Absent, copy);
        }
        store.commit(batch).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vaults_with_nothing_to_go_on_with__should_have_no_actors_before_somebody_asks_for_them() {
    const VAULTS: usize = 3_000;
    let mut world = World::new();
    world.settings.signing_deadline_ms = 600_000;
    let gateway = world.start().await;
    let template = vault(&gateway, &numbered(0)).await;
    let main = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, main).await;
    world.signers.silent.store(true, Ordering::SeqCst);
    let unfinished = create(&gateway, raw(&from)).await;
    while world.signers.unanswered.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    gateway.stop().await;
    world.signers.silent.store(false, Ordering::SeqCst);
    copy_vault(&*world.store, template, 1..VAULTS).await;

    // Each actor asks once for the last wallet of its vault.
    let begun = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&begun);
    let store = ToldStore::new(&world.store, move |call: StoreCall<'_>| {
        if let StoreCall::Scan(scan) = call
            && scan.space == KeySpace::WalletIndex
        {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let gateway = world.start_on(store).await;
    assert_eq!(outcome(&gateway, &unfinished.uuid).await.error, None);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let begun = begun.load(Ordering::SeqCst);
    assert!((1..100).contains(&begun), "{begun}");
    let copy = vault_named(&gateway, &numbered(VAULTS - 1)).await.unwrap();
    assert_eq!(copy.uuid, id_of_copy(VAULTS - 1).to_string());
    evm_wallet(&gateway, id_of_copy(VAULTS - 1)).await;
}
