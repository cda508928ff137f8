//! Batches that are committed together.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use covault_core::audit::Chain;
use tokio::sync::oneshot;

use crate::store::{
    Batch, CommitError, Key, KeySpace, Precondition, RowChange, RowWrite, damaged, rows,
};

/// Most batches, rows and bytes that share one transaction: bounds how long the first of them waits.
const BATCHES: usize = 256;
const ROWS: usize = 4096;
const BYTES: usize = 8 << 20;

/// A batch that waits. Whoever takes it out decides what becomes of it: the writer, or its caller,
/// who has waited long enough.
pub(super) type Waiting = Arc<Mutex<Option<Batch>>>;

/// Takes a batch out, if it is still there.
pub(super) fn take(waiting: &Waiting) -> Option<Batch> {
    waiting
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take()
}

/// A batch, and who is told.
pub(super) struct Job {
    pub(super) batch: Waiting,
    pub(super) reply: oneshot::Sender<Result<(), CommitError>>,
}

impl Job {
    /// Whether its caller still wants it.
    pub(super) fn wanted(&self) -> bool {
        let batch = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
        batch.is_some()
    }
}

/// Batches that go in one transaction.
pub(super) struct Group {
    members: Vec<Member>,
}

struct Member {
    batch: Batch,
    /// Which of the group's waves it belongs to: it is applied after every earlier wave.
    wave: u32,
    reply: oneshot::Sender<Result<(), CommitError>>,
}

/// What the statement takes: an element per row, ordered by wave, and one per entry of the audit log,
/// ordered by wave and chain.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RowMap<'a> {
    pub(super) ends: Vec<i32>,
    pub(super) batches: Vec<i32>,
    pub(super) spaces: Vec<i16>,
    pub(super) keys: Vec<&'a [u8]>,
    pub(super) expects: Vec<i64>,
    pub(super) changes: Vec<i16>,
    pub(super) values: Vec<&'a [u8]>,
    pub(super) entry_ends: Vec<i32>,
    pub(super) entry_batches: Vec<i32>,
    pub(super) chains: Vec<Vec<u8>>,
    pub(super) bodies: Vec<&'a [u8]>,
}

/// An entry of the audit log, and the number of its batch.
struct Appended<'a> {
    number: i32,
    chain: Chain,
    body: &'a [u8],
}

/// The last waves in which a row was written and looked at, and in which an entry was added whose chain
/// it is the head of.
#[derive(Clone, Copy, Default)]
struct Touched {
    written: Option<u32>,
    seen: Option<u32>,
    grown: Option<u32>,
}

impl Group {
    /// Takes those that have waited longest, in their order; nothing when nobody wants any of them.
    pub(super) fn take(waiting: &mut VecDeque<Job>) -> Option<Self> {
        let mut members: Vec<(Batch, _)> = Vec::new();
        let (mut rows, mut bytes) = (0, 0);
        while members.len() < BATCHES && rows < ROWS && bytes < BYTES {
            let Some(job) = waiting.pop_front() else {
                break;
            };
            if let Some(batch) = take(&job.batch) {
                rows += batch.writes().len().saturating_add(batch.appends().len());
                bytes += size(&batch);
                members.push((batch, job.reply));
            }
        }
        let waves = waves(members.iter().map(|(batch, _)| batch));
        let members = members.into_iter().zip(waves);
        let mut members: Vec<_> = members
            .map(|((batch, reply), wave)| Member { batch, wave, reply })
            .collect();
        members.sort_by_key(|member| member.wave);
        (!members.is_empty()).then_some(Self { members })
    }

    /// Each on its own.
    pub(super) fn split(self) -> impl Iterator<Item = Self> {
        self.members.into_iter().map(|member| Self {
            members: vec![Member { wave: 0, ..member }],
        })
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// What the statement takes.
    pub(super) fn rows(&self) -> RowMap<'_> {
        let mut rows = RowMap::default();
        let mut wave = 0;
        for (number, member) in (0..).zip(&self.members) {
            if member.wave != wave {
                rows.ends.push(place(rows.keys.len()));
                wave = member.wave;
            }
            let writes = member.batch.writes();
            for (index, write) in writes.iter().enumerate() {
                rows.batches.push(number);
                rows.spaces.push(i16::from(write.key.space as u8));
                rows.keys.push(&write.key.bytes);
                rows.expects.push(match write.expect {
                    Precondition::Any => -1,
                    Precondition::Absent => 0,
                    // There is no version 0, and none beyond.
                    Precondition::Version(0) => i64::MAX,
                    Precondition::Version(version) => i64::try_from(version).unwrap_or(i64::MAX),
                });
                let later = writes.get(index + 1..).unwrap_or_default();
                let (change, value): (_, &[u8]) = match &write.change {
                    // The last change of a row is the one that stays.
                    _ if later.iter().any(|later| later.key == write.key) => (3, &[]),
                    RowChange::Check if looked_at_by_all(write) => (4, &[]),
                    RowChange::Check => (0, &[]),
                    RowChange::Put(value) => (1, value),
                    RowChange::Delete => (2, &[]),
                };
                rows.changes.push(change);
                rows.values.push(value);
            }
        }
        rows.ends.push(place(rows.keys.len()));
        let mut wave = 0;
        for (of, entry) in self.entries() {
            while wave < of {
                rows.entry_ends.push(place(rows.bodies.len()));
                wave = wave.saturating_add(1);
            }
            rows.entry_batches.push(entry.number);
            rows.chains.push(entry.chain.key());
            rows.bodies.push(entry.body);
        }
        rows.entry_ends
            .resize(rows.ends.len(), place(rows.bodies.len()));
        rows
    }

    /// The entries of the audit log, with their waves, in the order in which the statement takes them.
    fn entries(&self) -> Vec<(u32, Appended<'_>)> {
        let mut entries = Vec::new();
        for (number, member) in (0..).zip(&self.members) {
            for (chain, body) in member.batch.appends() {
                let chain = *chain;
                entries.push((
                    member.wave,
                    Appended {
                        number,
                        chain,
                        body,
                    },
                ));
            }
        }
        // Those of one chain stay in their order.
        entries.sort_by_key(|(wave, entry)| (*wave, entry.chain));
        entries
    }

    /// Tells everybody, given the places (from 1) of rows that were not as expected, and below zero of
    /// entries that cannot be added to their chain.
    pub(super) fn answer(self, refused: &[i32]) {
        let refused: HashSet<&i32> = refused.iter().collect();
        let mut problems: HashMap<i32, CommitError> = HashMap::new();
        for (place, (_, entry)) in (1..).zip(self.entries()) {
            if refused.contains(&(0_i32.saturating_sub(place))) {
                let problem = "its head cannot be read, or an entry lies behind it";
                problems.insert(entry.number, damaged(entry.chain, &problem));
            }
        }
        let all = (0..).zip(&self.members);
        let all = all.flat_map(|(number, member)| {
            let writes = member.batch.writes().iter();
            writes.map(move |write| (number, &write.key))
        });
        for (place, (number, key)) in (1..).zip(all) {
            if refused.contains(&place) {
                problems.insert(number, CommitError::Conflict(key.clone()));
            }
        }
        for (number, member) in (0..).zip(self.members) {
            let outcome = match problems.remove(&number) {
                Some(problem) => Err(problem),
                None => Ok(()),
            };
            // The caller may have gone; the batch is on disk all the same.
            let _ = member.reply.send(outcome);
        }
    }

    /// Tells everybody that nothing is known of it, or that it did not happen.
    pub(super) fn fail(self, reason: &str) {
        for member in self.members {
            let _ = member
                .reply
                .send(Err(CommitError::Unavailable(reason.to_owned())));
        }
    }
}

fn place(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// What a batch takes on its way, in bytes.
pub(super) fn size(batch: &Batch) -> usize {
    let of = |write: &RowWrite| match &write.change {
        RowChange::Put(value) => write.key.bytes.len() + value.len(),
        RowChange::Delete | RowChange::Check => write.key.bytes.len(),
    };
    let entries = batch.appends().iter().map(|(_, body)| body.len());
    batch.writes().iter().map(of).chain(entries).sum()
}

/// Assigns each batch the first wave in which it follows all earlier ones that it has to do with.
fn waves<'a>(batches: impl Iterator<Item = &'a Batch>) -> Vec<u32> {
    let mut touched: HashMap<Key, Touched> = HashMap::new();
    let mut waves = Vec::new();
    for batch in batches {
        let mut wave = 0;
        for write in batch.writes() {
            let before = touched.get(&write.key).copied().unwrap_or_default();
            let changed = before.written.max(before.grown);
            wave = wave.max(changed.map_or(0, |changed| changed + 1));
            if writes(write) {
                wave = wave.max(before.seen.unwrap_or(0));
            }
        }
        // Entries are added at the end of a wave, to one chain as many as there are.
        let heads: BTreeSet<Key> = batch.chains().into_iter().map(rows::audit_head).collect();
        for head in &heads {
            let before = touched.get(head).copied().unwrap_or_default();
            wave = wave.max(before.written.map_or(0, |written| written + 1));
            wave = wave
                .max(before.seen.unwrap_or(0))
                .max(before.grown.unwrap_or(0));
        }
        for write in batch.writes() {
            let touched = touched.entry(write.key.clone()).or_default();
            if writes(write) {
                touched.written = Some(wave);
            } else {
                touched.seen = touched.seen.max(Some(wave));
            }
        }
        for head in heads {
            let touched = touched.entry(head).or_default();
            touched.grown = touched.grown.max(Some(wave));
        }
        waves.push(wave);
    }
    waves
}

/// Whether every process looks at this row in most of its batches: a client's token. (A lease is looked
/// at by its owner alone.)
fn looked_at_by_all(write: &RowWrite) -> bool {
    write.key.space == KeySpace::Token && matches!(write.expect, Precondition::Version(_))
}

/// Whether it must not meet another one on the same row in one wave. To demand that there is no
/// row takes its place for a moment.
fn writes(write: &RowWrite) -> bool {
    write.change != RowChange::Check || write.expect == Precondition::Absent
}

#[cfg(test)]
#[path = "group_tests.rs"]
mod tests;
