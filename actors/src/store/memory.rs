//! A store in memory: for simulations and tests. Nothing survives the process.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};

use super::{Batch, CommitError, Key, RawRow, ReadError, Row, Scan, Snapshot, Store};

/// See the module.
#[derive(Default)]
pub struct MemoryStore {
    rows: Mutex<BTreeMap<Key, Row>>,
    shared: bool,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty store that several orchestrators of this process share.
    pub fn shared() -> Self {
        Self {
            shared: true,
            ..Self::default()
        }
    }

    fn rows(&self) -> MutexGuard<'_, BTreeMap<Key, Row>> {
        // A batch is applied only after every check; a panic cannot leave half of one.
        self.rows.lock()
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        batch.apply(&mut self.rows())
    }

    async fn get(&self, key: &Key) -> Result<Option<Row>, ReadError> {
        Ok(self.rows().get(key).cloned())
    }

    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>, ReadError> {
        Ok(Arc::new(MemorySnapshot(self.rows().clone())))
    }

    async fn scan(&self, scan: &Scan) -> Result<Vec<(Key, Row)>, ReadError> {
        let rows = self.rows();
        let key = |bytes: &[u8]| Key {
            space: scan.space,
            bytes: bytes.to_vec(),
        };
        let inside =
            |row: &(&Key, &Row)| row.0.space == scan.space && row.0.bytes.starts_with(&scan.prefix);
        let page = |found: &mut dyn Iterator<Item = (&Key, &Row)>| {
            found
                .skip(scan.skip)
                .take(scan.limit)
                .map(|(key, row)| (key.clone(), row.clone()))
                .collect::<Vec<_>>()
        };
        if scan.reverse {
            let last = match &scan.from {
                Some(from) => Bound::Included(key(from)),
                None => super::prefix_end(&scan.prefix)
                    .map_or(Bound::Unbounded, |end| Bound::Excluded(key(&end))),
            };
            let first = Bound::Included(key(&scan.prefix));
            if let (Bound::Included(a), Bound::Included(b)) = (&first, &last)
                && a > b
            {
                return Ok(Vec::new());
            }
            let mut found = rows
                .range((first, last))
                .rev()
                .skip_while(|row| !inside(row))
                .take_while(inside);
            Ok(page(&mut found))
        } else {
            let first = scan.from.as_ref().unwrap_or(&scan.prefix).max(&scan.prefix);
            let mut found = rows.range(key(first)..).take_while(inside);
            Ok(page(&mut found))
        }
    }

    fn exclusive(&self) -> bool {
        !self.shared
    }
}

/// A copy of all rows.
struct MemorySnapshot(BTreeMap<Key, Row>);

#[async_trait]
impl Snapshot for MemorySnapshot {
    async fn rows(&self, after: Option<&RawRow>, bytes: usize) -> Result<Vec<RawRow>, ReadError> {
        let mut found = Vec::new();
        let mut left = bytes;
        let from = after.map(|row| (row.space, row.key.as_slice()));
        for (key, row) in &self.0 {
            let place = (key.space as u8, key.bytes.as_slice());
            if from.is_some_and(|from| place <= from) {
                continue;
            }
            left = left.saturating_sub(row.value.len().saturating_add(key.bytes.len()));
            found.push(RawRow {
                space: key.space as u8,
                key: key.bytes.clone(),
                value: row.value.clone(),
            });
            if left == 0 {
                break;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;
    use crate::store::conformance::conformance;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn memory__should_conform() {
        conformance(|| async { Arc::new(MemoryStore::new()) as Arc<dyn Store> }).await;
    }
}
