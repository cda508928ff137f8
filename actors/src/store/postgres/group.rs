//! Batches that are committed together.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::store::{
    Batch, CommitError, Key, KeySpace, Precondition, Row, RowChange, RowWrite, rows,
};

/// Most batches, rows and bytes that share one transaction: bounds how long the first of them waits.
const BATCHES: usize = 256;
const ROWS: usize = 4096;
const BYTES: usize = 8 << 20;

/// A batch that waits. The one who takes it out decides what becomes of it: the writer, or its caller,
/// who has waited long enough.
pub(super) type QueuedJob = Arc<Mutex<Option<Batch>>>;

/// Takes a batch out, if it is still there.
pub(super) fn take(waiting: &QueuedJob) -> Option<Batch> {
    waiting.lock().take()
}

type JobOutcome = Result<(), CommitError>;

/// A batch, and who is told.
pub(super) struct CommitJob {
    pub(super) batch: QueuedJob,
    pub(super) reply: oneshot::Sender<JobOutcome>,
}

impl CommitJob {
    /// Whether its caller still wants it.
    pub(super) fn wanted(&self) -> bool {
        let batch = self.batch.lock();
        batch.is_some()
    }
}

/// Batches that go in one transaction, in the order of their arrival.
#[derive(Default)]
pub(super) struct CommitGroup {
    members: Vec<(Batch, oneshot::Sender<JobOutcome>)>,
    /// What the last try decided about each of them.
    outcomes: Vec<JobOutcome>,
    /// Rows that the next try looks at as well.
    suspects: BTreeSet<Key>,
}

/// What one statement can commit, if the rows are as was guessed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GuessedChanges {
    /// Rows that must be there, in these versions, and are locked as in [`GroupLocks`].
    pub(super) own: Vec<(Key, u64)>,
    pub(super) shared: Vec<(Key, u64)>,
    /// Rows that must not be there.
    pub(super) absent: BTreeSet<Key>,
    /// What is written then: none are held, and only such as must be there are deleted.
    pub(super) changes: GroupChanges,
}

/// The rows that a group has to lock.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GroupLocks {
    /// For itself.
    pub(super) own: BTreeSet<Key>,
    /// Against changes alone: others may look at them at the same time.
    pub(super) shared: BTreeSet<Key>,
}

/// What a group writes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct GroupChanges {
    /// Rows that are not there, and must not be.
    pub(super) inserts: Vec<(Key, Row)>,
    pub(super) updates: Vec<(Key, Row)>,
    /// Some of them may not be there.
    pub(super) deletes: Vec<Key>,
    /// Rows that must not be there, now and at the commit.
    pub(super) held: Vec<Key>,
}

impl CommitGroup {
    /// Takes those that have waited longest, in their order; nothing when nobody wants any of them.
    pub(super) fn take(waiting: &mut VecDeque<CommitJob>) -> Option<Self> {
        let mut group = Self::default();
        let (mut rows, mut bytes) = (0, 0);
        while group.len() < BATCHES && rows < ROWS && bytes < BYTES {
            let Some(job) = waiting.pop_front() else {
                break;
            };
            if let Some(batch) = take(&job.batch) {
                rows += batch.writes().len().saturating_add(batch.appends().len());
                bytes += size(&batch);
                group.members.push((batch, job.reply));
            }
        }
        (group.len() > 0).then_some(group)
    }

    /// Each on its own.
    pub(super) fn split(self) -> impl Iterator<Item = Self> {
        self.members.into_iter().map(|member| Self {
            members: vec![member],
            ..Self::default()
        })
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// The rows to be locked before [`CommitGroup::decide`].
    pub(super) fn locks(&self) -> GroupLocks {
        let (mut own, mut shared) = (self.suspects.clone(), BTreeSet::new());
        for (batch, _) in &self.members {
            for write in batch.writes() {
                let keys = match is_shared_read(write) {
                    true => &mut shared,
                    false => &mut own,
                };
                keys.insert(write.key.clone());
            }
            own.extend(batch.chains().into_iter().map(rows::audit_head));
        }
        shared.retain(|key| !own.contains(key));
        GroupLocks { own, shared }
    }

    /// Decides about each batch by what its rows most likely are: as it demands, or as `written` says that this
    /// process wrote them last. Nothing where that is not enough, or one statement cannot see to it: a chain of the
    /// audit log whose head is not known, rows that are not there and are to stay so.
    pub(super) fn guess<'a>(
        &mut self,
        written: impl Fn(&Key) -> Option<&'a Row>,
    ) -> Option<GuessedChanges> {
        let rows = self.likely_rows(written)?;
        let versions = rows.iter().map(|(key, row)| (key.clone(), row.version));
        let versions: BTreeMap<Key, u64> = versions.collect();
        let changes = self.decide(rows);
        // Another process may make such a row, unseen, while the statement waits for it at another one.
        let is_there = |key: &Key| versions.contains_key(key);
        if !changes.held.is_empty() || !changes.deletes.iter().all(is_there) {
            return None;
        }
        let mut absent: BTreeSet<Key> =
            changes.inserts.iter().map(|(key, _)| key.clone()).collect();
        let mut there = |keys: BTreeSet<Key>| {
            let mut there = Vec::with_capacity(keys.len());
            for key in keys {
                match versions.get(&key) {
                    Some(version) => there.push((key, *version)),
                    None => {
                        absent.insert(key);
                    }
                }
            }
            there
        };
        let GroupLocks { own, shared } = self.locks();
        let (own, shared) = (there(own), there(shared));
        Some(GuessedChanges {
            own,
            shared,
            absent,
            changes,
        })
    }

    /// Rows that are probably there, with their versions, and the values of heads of the audit log.
    fn likely_rows<'a>(
        &self,
        written: impl Fn(&Key) -> Option<&'a Row>,
    ) -> Option<BTreeMap<Key, Row>> {
        if !self.suspects.is_empty() {
            return None;
        }
        let (mut rows, mut seen) = (BTreeMap::new(), BTreeSet::new());
        for (batch, _) in &self.members {
            for write in batch.writes() {
                // Batches add to the audit log by its chains.
                if write.key.space == KeySpace::AuditHead {
                    return None;
                }
                if !seen.insert(&write.key) {
                    continue;
                }
                let demanded = match write.expect {
                    Precondition::Version(version) => Some(version),
                    Precondition::Absent | Precondition::Any => None,
                };
                let known = written(&write.key).map(|row| row.version);
                // Versions grow: the other one is out of date.
                if let Some(version) = demanded.max(known) {
                    let value = Vec::new();
                    rows.insert(write.key.clone(), Row { version, value });
                }
            }
            for head in batch.chains().into_iter().map(rows::audit_head) {
                let row = written(&head)?.clone();
                rows.insert(head, row);
            }
        }
        Some(rows)
    }

    /// Decides about each batch, given which of the locked rows there are, with the values of heads
    /// of the audit log (the others' do not matter).
    pub(super) fn decide(&mut self, mut rows: BTreeMap<Key, Row>) -> GroupChanges {
        let before: BTreeSet<Key> = rows.keys().cloned().collect();
        // Rows that are changed; and whether a batch relies on their absence where they are absent.
        let mut touched: BTreeMap<Key, bool> = BTreeMap::new();
        let decide = |(batch, _): &(Batch, _)| {
            batch.apply(&mut rows)?;
            for write in batch.writes() {
                let relies = match write.change {
                    RowChange::Put(_) => true,
                    RowChange::Delete | RowChange::Check => write.expect == Precondition::Absent,
                    RowChange::CheckOnce => false,
                };
                if relies || write.change == RowChange::Delete {
                    *touched.entry(write.key.clone()).or_default() |= relies;
                }
            }
            let heads = batch.chains().into_iter().map(rows::audit_head);
            touched.extend(heads.map(|head| (head, true)));
            Ok(())
        };
        self.outcomes = self.members.iter().map(decide).collect();
        // New entries of the audit log are named by no batch.
        let new = rows.keys().filter(|key| !before.contains(*key));
        touched.extend(new.map(|key| (key.clone(), true)));
        let mut changes = GroupChanges::default();
        for (key, relies) in touched {
            match rows.remove(&key) {
                Some(row) if before.contains(&key) => changes.updates.push((key, row)),
                Some(row) => changes.inserts.push((key, row)),
                // A row that is not there cannot be locked: who demands that has its place in
                // the index until the commit.
                None if relies && !before.contains(&key) => changes.held.push(key),
                None => changes.deletes.push(key),
            }
        }
        changes
    }

    /// Not all inserts of the last try were possible. The next one sees rows that another process has
    /// made, and looks whether there are entries behind the head of a chain.
    pub(super) fn collided(&mut self, changes: GroupChanges) {
        let keys = changes.inserts.into_iter().map(|(key, _)| key);
        let entries = keys.filter(|key| key.space == KeySpace::AuditEntry);
        self.suspects = entries.collect();
    }

    /// Tells everyone what was decided.
    pub(super) fn answer(mut self) {
        let outcomes = mem::take(&mut self.outcomes);
        for ((_, reply), outcome) in self.members.into_iter().zip(outcomes) {
            // The caller may have gone; the batch is on disk anyway.
            let _ = reply.send(outcome);
        }
    }

    /// Tells everyone that nothing is known of it, or that it did not happen.
    pub(super) fn fail(mut self, reason: &str) {
        let failed = Err(CommitError::Unavailable(reason.to_owned()));
        self.outcomes = vec![failed; self.len()];
        self.answer();
    }
}

/// What a batch takes on its way, in bytes.
pub(super) fn size(batch: &Batch) -> usize {
    let of = |write: &RowWrite| match &write.change {
        RowChange::Put(value) => write.key.bytes.len() + value.len(),
        RowChange::Delete | RowChange::Check | RowChange::CheckOnce => write.key.bytes.len(),
    };
    let entries = batch.appends().iter().map(|(_, body)| body.len());
    batch.writes().iter().map(of).chain(entries).sum()
}

/// Whether every process looks at this row in most of its batches: a client's token. (A lease is looked
/// at by its owner alone.) Or whether it may change while it is looked at.
fn is_shared_read(write: &RowWrite) -> bool {
    let is_token = write.key.space == KeySpace::Token
        && write.change == RowChange::Check
        && matches!(write.expect, Precondition::Version(_));
    is_token || write.change == RowChange::CheckOnce
}

#[cfg(test)]
#[path = "group_tests.rs"]
mod tests;
