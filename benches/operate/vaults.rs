//! Copies of a vault, in a store that nobody has open.

use std::path::Path;

use covault_actors::store::{
    Batch, Key, KeySpace, Precondition, Scan, Store as _, redb::RedbStore,
};
use covault_core::ids::VaultId;

/// Vaults of one commit.
const PAGE: usize = 2_000;
const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// Adds so many vaults: each has the keys of this one, another id, and another name of the same length.
pub async fn add(file: &Path, vault: VaultId, name: &str, vaults: usize) {
    let store = RedbStore::open(file).unwrap();
    let mut rows = Vec::new();
    for space in [KeySpace::Vault, KeySpace::VaultName] {
        let all = store.scan(&Scan::prefix(space, &[], 100)).await.unwrap();
        let of_it = all.into_iter().filter(|(key, row)| {
            places(&key.bytes, vault.as_bytes()).len() + places(&row.value, vault.as_bytes()).len()
                > 0
        });
        rows.extend(of_it);
    }
    assert_eq!(rows.len(), 2, "the vault and its name");
    let first = u128::from_be_bytes(*vault.as_bytes()) + 1;
    let numbers: Vec<usize> = (0..vaults).collect();
    for page in numbers.chunks(PAGE) {
        let mut batch = Batch::new();
        for &number in page {
            let id = (first + number as u128).to_be_bytes();
            let other = name_of(number, name.len());
            let copy = |bytes: &[u8]| {
                let bytes = replaced(bytes, vault.as_bytes(), &id);
                replaced(&bytes, name.as_bytes(), &other)
            };
            for (key, row) in &rows {
                let key = Key {
                    space: key.space,
                    bytes: copy(&key.bytes),
                };
                batch.put(key, Precondition::Absent, copy(&row.value));
            }
        }
        store.commit(batch).await.unwrap();
    }
}

/// The number in digits and letters, as there is not much room.
fn name_of(number: usize, length: usize) -> Vec<u8> {
    let (mut name, mut rest) = (vec![b'0'; length], number);
    for place in name.iter_mut().rev() {
        *place = DIGITS[rest % DIGITS.len()];
        rest /= DIGITS.len();
    }
    assert_eq!(rest, 0, "too many vaults for names of this length");
    name
}

fn places(bytes: &[u8], part: &[u8]) -> Vec<usize> {
    let windows = bytes.windows(part.len()).enumerate();
    let found = windows.filter(|(_, window)| *window == part);
    found.map(|(place, _)| place).collect()
}

fn replaced(bytes: &[u8], part: &[u8], by: &[u8]) -> Vec<u8> {
    let mut replaced = bytes.to_vec();
    for place in places(bytes, part) {
        replaced[place..place + by.len()].copy_from_slice(by);
    }
    replaced
}
