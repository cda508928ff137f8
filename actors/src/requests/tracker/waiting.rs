//! Transactions that no block includes: reports them to the actors that help them.

use std::collections::{HashMap, HashSet};

use covault_core::{ids::RequestId, request::TransactionState};

use super::{ChainTracker, entry::FollowedTransaction};
use crate::{
    requests::{
        account::ChainAccount,
        tracking::{GapSuspect, SpeedUpDue, TrackedRequest},
    },
    store::rows::TransactionRow,
};

/// How long a transaction waits before it is looked whether a number before it is free, and before the next look, in
/// milliseconds.
const GAP_MS: u64 = 60_000;

impl ChainTracker {
    /// The newest block of the chain, where it is counted how long transactions wait.
    pub(super) async fn head(&self) -> Option<u64> {
        self.services.chains.speed_up(self.chain)?;
        match self.client.head().await {
            Ok(head) => head,
            Err(error) => {
                tracing::debug!(chain = %self.chain, ?error, "the nodes do not report their newest block");
                None
            }
        }
    }

    /// Has transactions replaced that no block takes for as long as the chain's policy lets them wait: of each
    /// account those with the lowest number, as those behind can only wait for it.
    pub(super) fn ask_to_speed_up(&self, seen: &[RequestId], head: u64) {
        let Some(policy) = self.services.chains.speed_up(self.chain) else {
            return;
        };
        let waits = |entry: &FollowedTransaction| match entry.known {
            TransactionRow {
                state: TransactionState::Pending,
                waits_since_block: Some(since),
                ..
            } => head.saturating_sub(since) >= policy.after_blocks,
            _ => false,
        };
        let waiting: Vec<&FollowedTransaction> = self.of(seen, waits).collect();
        let mut lowest: HashMap<&ChainAccount, u64> = HashMap::new();
        for tracked in waiting.iter().map(|entry| &entry.tracked) {
            if let Some(number) = tracked.number {
                let lowest = lowest.entry(&tracked.account).or_insert(number);
                *lowest = number.min(*lowest);
            }
        }
        for TrackedRequest {
            vault,
            request,
            account,
            number,
            ..
        } in waiting.iter().map(|entry| &entry.tracked)
        {
            if number.as_ref() == lowest.get(account).filter(|_| number.is_some()) {
                self.services.listeners.speed_ups.push(SpeedUpDue {
                    vault: *vault,
                    request: *request,
                    head,
                });
            }
        }
    }

    /// Has it looked whether transactions that can still come wait behind a number that nobody uses.
    pub(super) fn seek_gaps(&mut self, seen: &[RequestId], now_ms: u64) {
        let waits = |entry: &FollowedTransaction| {
            let transaction = &entry.tracked.transaction;
            let rules = entry.tracked.account.network.rules();
            let since_ms = transaction.sent_at_ms.max(entry.gap_sought_ms);
            entry.tracked.number.is_some()
                && entry.known.state == TransactionState::Pending
                && now_ms.abs_diff(since_ms) >= GAP_MS
                && rules
                    .valid_until(&transaction.signed)
                    .is_ok_and(|end| end.is_none_or(|end| end.time_ms == 0 || end.time_ms > now_ms))
        };
        let waiting: Vec<RequestId> = self
            .of(seen, waits)
            .map(|entry| entry.tracked.request)
            .collect();
        if waiting.is_empty() {
            return;
        }
        let numbers: HashSet<(&ChainAccount, u64)> = self
            .open
            .values()
            // What nobody has a transaction for uses no number.
            .filter(|entry| entry.tracked.unsigned.is_none())
            .filter_map(|entry| Some((&entry.tracked.account, entry.tracked.number?)))
            .collect();
        for TrackedRequest {
            request,
            account,
            number,
            ..
        } in self.of(&waiting, |_| true).map(|entry| &entry.tracked)
        {
            let below = number.and_then(|number| number.checked_sub(1));
            if let Some(below) = below.filter(|below| !numbers.contains(&(account, *below))) {
                self.services.listeners.gap_suspects.push(GapSuspect {
                    request: *request,
                    account: account.clone(),
                    below,
                });
            }
        }
        for request in waiting {
            if let Some(entry) = self.open.get_mut(&request) {
                entry.gap_sought_ms = now_ms;
            }
        }
    }

    /// Those of some transactions that are such.
    fn of(
        &self,
        some: &[RequestId],
        such: impl Fn(&FollowedTransaction) -> bool,
    ) -> impl Iterator<Item = &FollowedTransaction> {
        let entries = some.iter().filter_map(|request| self.open.get(request));
        entries.filter(move |entry| such(entry))
    }
}
