//! How many refused transactions of an account are kept: each costs its requests questions, and a program may repeat what
//! its wallet cannot pay for ever.

use std::collections::HashMap;

use covault_core::{
    fault::Fault,
    ids::RequestId,
    networks::{Purpose, Resource},
};

use super::RefusedPayment;
use crate::{
    services::Services,
    store::{
        Batch, CommitError, Key, Precondition,
        rows::{self, RefusedRow},
    },
};

/// So many refused transactions of one payment are kept of which the chain takes one at most; older ones are only counted.
const MOST_ALIKE: usize = 16;
/// So many of an account are kept, the newest of them.
const MOST_KEPT: usize = 1_024;

/// What a refused transaction pays, and the number or inputs that it uses for it: of those that have the same the chain takes
/// one at most.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Payment {
    number: u64,
    inputs: Vec<Resource>,
    purpose: [u8; 32],
}

impl Payment {
    /// Of a transaction with this number (0 where there are none) that spends these.
    pub fn new(number: u64, inputs: Vec<Resource>, purpose: &Purpose) -> Self {
        Self {
            number,
            inputs,
            purpose: purpose.key(),
        }
    }
}

/// Leaves those of transactions that are `alike`, by their places, which can come the longest, and of these the newest; they say
/// how many more there were. So when all that are left are over, the others are.
pub async fn keep_newest(
    services: &Services,
    mut found: Vec<RefusedPayment>,
    alike: impl Iterator<Item = Vec<usize>>,
) -> Result<Vec<RefusedPayment>, Fault> {
    let (mut batch, mut dropped, mut raised) = (Batch::new(), Vec::new(), Vec::new());
    for mut alike in alike {
        alike.sort_by_key(|at| found.get(*at).map(|it| (it.ends_ms, it.request)));
        let Some(surplus) = alike.len().checked_sub(MOST_ALIKE).filter(|it| *it > 0) else {
            continue;
        };
        let (old, kept) = alike.split_at(surplus);
        let Some((place, newest)) = kept.last().and_then(|at| Some((*at, found.get(*at)?))) else {
            continue;
        };
        let mut row = newest.row.clone();
        for refused in old.iter().filter_map(|index| found.get(*index)) {
            let older = refused.row.unkept.saturating_add(1);
            row.unkept = row.unkept.saturating_add(older);
            batch.delete(refused.key.clone(), Precondition::Version(refused.version));
            dropped.push(refused.request);
        }
        let expected = Precondition::Version(newest.version);
        batch.put(newest.key.clone(), expected, rows::encode(&row)?);
        raised.push((place, row));
    }
    if dropped.is_empty() {
        return Ok(found);
    }
    match services.store.commit(batch).await {
        Ok(()) => {}
        // Another request has done it.
        Err(CommitError::Conflict(_)) => return Ok(found),
        Err(error) => return Err(error.into()),
    }
    for (place, row) in raised {
        if let Some(refused) = found.get_mut(place) {
            refused.version = refused.version.saturating_add(1);
            refused.row = row;
        }
    }
    found.retain(|refused| !dropped.contains(&refused.request));
    Ok(found)
}

/// The rows of an account that were found in the store, but for those that say that one has come.
#[derive(Default)]
pub struct KeptPayments(Vec<KeptRow>);

struct KeptRow {
    request: RequestId,
    key: Key,
    version: u64,
    row: RefusedRow,
    payment: Option<Payment>,
    ends_ms: u64,
}

impl KeptPayments {
    /// Adds a page of them.
    pub fn add(&mut self, found: &[RefusedPayment]) {
        let found = found.iter().filter(|it| it.row.late.is_none());
        self.0.extend(found.map(|it| KeptRow {
            request: it.request,
            key: it.key.clone(),
            version: it.version,
            row: it.row.clone(),
            payment: it.payment.clone(),
            ends_ms: it.ends_ms,
        }));
    }

    /// Leaves those out that were just forgotten.
    pub fn leave_out(&mut self, over: &[RefusedPayment]) {
        self.0.retain(|row| over.iter().all(|it| it.key != row.key));
    }

    /// Of each payment leaves the one that can come the longest, which says how many more there were, where an account has too
    /// many: they cost each of its requests questions to the store. Where that is not enough, forgets those that end first.
    pub async fn bound(mut self, services: &Services) -> Result<(), Fault> {
        if self.0.len() <= MOST_KEPT {
            return Ok(());
        }
        // Ids begin with the time at which they were made.
        self.0
            .sort_by_key(|row| std::cmp::Reverse((row.ends_ms, row.request)));
        let mut batch = Batch::new();
        let mut newest: HashMap<Payment, usize> = HashMap::new();
        let mut left: Vec<(KeptRow, u64)> = Vec::new();
        for row in self.0 {
            let place = row.payment.as_ref().and_then(|it| newest.get(it).copied());
            if let Some((_, unkept)) = place.and_then(|place| left.get_mut(place)) {
                *unkept = unkept.saturating_add(row.row.unkept).saturating_add(1);
                batch.delete(row.key, Precondition::Version(row.version));
                continue;
            }
            if let Some(payment) = &row.payment {
                newest.insert(payment.clone(), left.len());
            }
            left.push((row, 0));
        }
        let surplus = left.len().saturating_sub(MOST_KEPT);
        if surplus > 0 {
            tracing::warn!(
                surplus,
                "nodes refused more than {MOST_KEPT} different payments of a wallet that can still come: the oldest were forgotten"
            );
        }
        for (index, (mut row, unkept)) in left.into_iter().enumerate() {
            let expected = Precondition::Version(row.version);
            if index >= MOST_KEPT {
                batch.delete(row.key, expected);
            } else if unkept > 0 {
                row.row.unkept = row.row.unkept.saturating_add(unkept);
                batch.put(row.key, expected, rows::encode(&row.row)?);
            }
        }
        match services.store.commit(batch).await {
            Ok(()) | Err(CommitError::Conflict(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
