//! The amounts of the last 24 hours, counted in buckets of ten minutes.
//!
//! A bucket counts until all of it is 24 hours old, so that no 24 hours ever hold more than a limit:
//! an amount counts for 24 hours, and for up to ten minutes more.
//!
//! The time never goes back: what is claimed while the clock is behind an earlier claim counts as of
//! that claim. So a clock that was set ahead and back again forgets nothing.

use std::collections::{HashMap, VecDeque};

use covault_core::amount::U256;

use super::{
    ClaimError,
    rows::{RowKind, RowSpace, Rows},
};
use crate::policy::Spending;

/// (bucket, counter) -> what was let go. Buckets since the Unix epoch; big-endian numbers, so that the oldest come first.
const SPENT: RowSpace<([u8; 8], String), [u8; 32]> = RowSpace::new(RowKind::Spent);

/// Milliseconds of a bucket.
pub(super) const BUCKET_MS: u64 = 600_000;
/// Whole buckets of 24 hours.
const BUCKETS: u64 = 144;
/// Counters in memory at most; the others are read again.
const MAX_CACHED_COUNTERS: usize = 16_384;

/// The windows of all counters.
#[derive(Debug, Default)]
pub(super) struct SpendingWindows {
    /// The last bucket that holds anything.
    last: u64,
    /// The counters that were used recently.
    cached: HashMap<String, SpendingWindow>,
}

/// The buckets of a counter from [`SpendingWindows::first`] on, in their order.
#[derive(Debug, Default)]
struct SpendingWindow {
    buckets: VecDeque<(u64, U256)>,
    /// Of all of them.
    total: U256,
}

impl SpendingWindow {
    fn of(buckets: VecDeque<(u64, U256)>) -> Self {
        let total = sum(buckets.iter());
        Self { buckets, total }
    }

    /// What counts from the bucket `first` on.
    fn total_from(&self, first: u64) -> U256 {
        match self.buckets.front() {
            Some((oldest, _)) if *oldest < first => {
                sum(self.buckets.iter().filter(|(bucket, _)| *bucket >= first))
            }
            _ => self.total,
        }
    }

    /// Adds to a bucket, which is the last one, and forgets those before `first`. What the bucket
    /// holds now.
    fn add(&mut self, bucket: u64, amount: U256, first: u64) -> U256 {
        while self.buckets.front().is_some_and(|(old, _)| *old < first) {
            self.buckets.pop_front();
        }
        let held = match self.buckets.back_mut() {
            Some((last, held)) if *last == bucket => {
                *held = held.saturating_add(amount);
                *held
            }
            _ => {
                self.buckets.push_back((bucket, amount));
                amount
            }
        };
        self.total = sum(self.buckets.iter());
        held
    }
}

fn sum<'a>(buckets: impl Iterator<Item = &'a (u64, U256)>) -> U256 {
    buckets.fold(U256::ZERO, |sum, (_, amount)| sum.saturating_add(*amount))
}

impl SpendingWindows {
    pub(super) fn open(rows: &Rows) -> Result<Self, redb::Error> {
        let mut last = 0;
        rows.visit(&SPENT, |(bucket, _), _| {
            last = last.max(u64::from_be_bytes(bucket));
        })?;
        Ok(Self {
            last,
            cached: HashMap::new(),
        })
    }

    /// The first bucket that counts when `bucket` is the last.
    fn first(bucket: u64) -> u64 {
        bucket.saturating_sub(BUCKETS)
    }

    /// Whether what counts in 24 hours would be above `most` with this amount.
    pub(super) fn is_above(
        &mut self,
        rows: &Rows,
        counter: &str,
        amount: U256,
        most: U256,
        now_ms: u64,
    ) -> Result<bool, redb::Error> {
        let first = Self::first(self.last.max(now_ms / BUCKET_MS));
        let total = self.window(rows, counter)?.total_from(first);
        Ok(total.saturating_add(amount) > most)
    }

    /// Adds to the counters; to none when one would be above its limit.
    pub(super) fn count(
        &mut self,
        rows: &mut Rows,
        spending: &[Spending],
        now_ms: u64,
    ) -> Result<Result<(), ClaimError>, redb::Error> {
        if spending.is_empty() {
            return Ok(Ok(()));
        }
        let bucket = self.last.max(now_ms / BUCKET_MS);
        let first = Self::first(bucket);
        let mut names = Vec::with_capacity(spending.len());
        for Spending {
            counter,
            amount,
            most_per_day,
            unapproved,
        } in spending
        {
            let name = counter.name();
            let total = self.window(rows, &name)?.total_from(first);
            let total = total.saturating_add(*amount);
            if most_per_day.is_some_and(|most| total > most) {
                return Ok(Err(ClaimError::DailyLimitReached(counter.clone())));
            }
            if let Some(unapproved) = unapproved
                && total > unapproved.most_per_day
            {
                let wants = unapproved.wants.clone();
                return Ok(Err(ClaimError::ApprovalsMissing(wants)));
            }
            names.push((name, *amount));
        }
        // Only now: a refused claim must not make the time go on.
        if bucket > self.last {
            self.last = bucket;
            let mut old = Vec::new();
            rows.visit_below(&SPENT, &first.to_be_bytes(), |key, _| old.push(key))?;
            for key in old {
                rows.delete(&SPENT, &key)?;
            }
            self.cached.retain(|_, window| {
                window
                    .buckets
                    .back()
                    .is_some_and(|(last, _)| *last >= first)
            });
        }
        for (name, amount) in names {
            let held = self.window(rows, &name)?.add(bucket, amount, first);
            rows.put(&SPENT, &(bucket.to_be_bytes(), name), &held.to_be_bytes())?;
        }
        Ok(Ok(()))
    }

    /// The window of a counter: what it held when anything was counted last.
    fn window(&mut self, rows: &Rows, name: &str) -> Result<&mut SpendingWindow, redb::Error> {
        if self.cached.len() >= MAX_CACHED_COUNTERS && !self.cached.contains_key(name) {
            self.cached.clear();
        }
        if !self.cached.contains_key(name) {
            let mut buckets = VecDeque::new();
            for bucket in Self::first(self.last)..=self.last {
                let key = (bucket.to_be_bytes(), name.to_owned());
                if let Some(amount) = rows.get(&SPENT, &key)? {
                    buckets.push_back((bucket, U256::from_be_bytes(amount)));
                }
            }
            self.cached
                .insert(name.to_owned(), SpendingWindow::of(buckets));
        }
        Ok(self.cached.entry(name.to_owned()).or_default())
    }
}

#[cfg(test)]
#[path = "windows_tests.rs"]
#[allow(non_snake_case)]
mod tests;
