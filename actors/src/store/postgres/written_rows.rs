//! What a writer remembers of the rows that it wrote last.
//!
//! It is a hint for its next commit, which demands of the database that these rows are still so: who
//! else writes them costs a few round trips and nothing else.

use std::collections::BTreeMap;

use super::group::GroupChanges;
use crate::store::{Key, KeySpace, Row};

/// The rows that were written last and are remembered in any case; twice as many at most, which is a few megabytes.
const REMEMBERED: usize = 16_384;

/// Rows by their versions, with the values of heads of the audit log alone.
#[derive(Default)]
pub(super) struct WrittenRows {
    recent: BTreeMap<Key, Row>,
    /// Those of before, until `recent` is full again.
    older: BTreeMap<Key, Row>,
}

impl WrittenRows {
    /// The row as it was written last; nothing where it was deleted or is not remembered.
    pub(super) fn find(&self, key: &Key) -> Option<&Row> {
        self.recent.get(key).or_else(|| self.older.get(key))
    }

    /// Remembers what a commit wrote.
    pub(super) fn note(&mut self, changes: GroupChanges) {
        for key in &changes.deletes {
            self.recent.remove(key);
            self.older.remove(key);
        }
        for (key, mut row) in changes.inserts.into_iter().chain(changes.updates) {
            match key.space {
                // Never written again.
                KeySpace::AuditEntry => continue,
                KeySpace::AuditHead => {}
                _ => row.value = Vec::new(),
            }
            self.recent.insert(key, row);
            if self.recent.len() >= REMEMBERED {
                self.older = std::mem::take(&mut self.recent);
            }
        }
    }

    /// Forgets all: another server may be there.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    #![allow(non_snake_case)]

    use covault_core::audit::AuditChain;

    use super::*;
    use crate::store::rows;

    fn written(key: Key, version: u64) -> (Key, Row) {
        let value = vec![7];
        (key, Row { version, value })
    }

    #[test]
    fn written_rows__should_know_the_last_ones_and_values_of_heads_alone() {
        let name = |number: usize| Key::new(KeySpace::Request, &[&number.to_be_bytes()]);
        let mut known = WrittenRows::default();
        let head = rows::audit_head(AuditChain::Service);
        let entry = rows::audit_entry(AuditChain::Service, 1);
        known.note(GroupChanges {
            inserts: vec![written(name(0), 1), written(entry.clone(), 1)],
            updates: vec![written(name(1), 4), written(head.clone(), 9)],
            ..GroupChanges::default()
        });
        let version = |known: &WrittenRows, key: &Key| known.find(key).map(|row| row.version);
        assert_eq!(version(&known, &name(0)), Some(1));
        assert_eq!(known.find(&name(1)).unwrap().value, Vec::<u8>::new());
        assert_eq!(known.find(&head).unwrap().value, [7]);
        assert_eq!(known.find(&entry), None);
        known.note(GroupChanges {
            deletes: vec![name(0)],
            ..GroupChanges::default()
        });
        assert_eq!(known.find(&name(0)), None);
        // What is written again and again stays, of the others as many as there may be.
        for number in 2..=3 * REMEMBERED {
            known.note(GroupChanges {
                updates: vec![written(name(number), 1), written(head.clone(), 10)],
                ..GroupChanges::default()
            });
        }
        assert_eq!(known.find(&name(1)), None);
        assert_eq!(version(&known, &name(3 * REMEMBERED)), Some(1));
        assert_eq!(version(&known, &head), Some(10));
        assert!(known.recent.len() + known.older.len() <= 2 * REMEMBERED);
        // What was deleted is not found among the older ones.
        let (old, _) = known.older.first_key_value().unwrap();
        let deletes = vec![old.clone()];
        known.note(GroupChanges {
            deletes: deletes.clone(),
            ..GroupChanges::default()
        });
        assert_eq!(known.find(&deletes[0]), None);
        known.clear();
        assert_eq!(known.find(&head), None);
    }
}
