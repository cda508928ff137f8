//! Sends again what nodes have dropped.

use std::{collections::HashMap, time::Duration};

use covault_core::{fault::Fault, ids::RequestId, networks::Resource};
use tokio::time::Instant;

use super::ChainTracker;
use crate::{
    requests::{
        account::ChainAccount,
        rebroadcast::{self, SentAgain},
    },
    services::Services,
};

/// Nothing more is sent to every node in one round once that took so long.
const SPREAD_TIMEOUT: Duration = Duration::from_secs(10);

impl ChainTracker {
    /// Sends what nodes have lost once more: where there are numbers, from the lowest one of an account on.
    pub(super) async fn send_again(&mut self, missing: Vec<RequestId>, now_ms: u64) {
        let mut by_account: HashMap<ChainAccount, Vec<(u64, RequestId)>> = HashMap::new();
        let mut alone = Vec::new();
        for request in missing {
            let Some(entry) = self.open.get_mut(&request) else {
                continue;
            };
            entry.resent_ms = now_ms;
            match entry.tracked.number {
                Some(number) => by_account
                    .entry(entry.tracked.account.clone())
                    .or_default()
                    .push((number, request)),
                None => alone.push(request),
            }
        }
        for (account, of_account) in by_account {
            let Some((number, first)) = of_account.iter().min().copied() else {
                continue;
            };
            let Some(services) = self.services_of(first) else {
                continue;
            };
            // With what has replaced them, and with those behind them.
            let (cache, wanted) = (&self.cache, [Resource::Nonce(number)]);
            let sent = rebroadcast::rebroadcast_dropped(
                &services,
                cache,
                &*self.client,
                &account,
                &wanted,
            );
            let sent = sent.await;
            for (_, request) in of_account {
                self.was_sent(request, sent.clone());
            }
        }
        for request in alone {
            let Some(services) = self.services_of(request) else {
                continue;
            };
            let Some(entry) = self.open.get(&request) else {
                continue;
            };
            let account = entry.tracked.account.clone();
            let sent =
                rebroadcast::send_again_alone(&services, &*self.client, &account, request).await;
            let sent = sent.map(|sent| match sent {
                SentAgain::Refused(reason) => Some(reason),
                SentAgain::Accepted | SentAgain::Passed | SentAgain::Unknown => None,
            });
            self.was_sent(request, sent);
        }
    }

    /// Sends to every node what one says to have and no block takes: the lowest numbers of those that were not sent for
    /// longest first. What there is no time for comes next.
    pub(super) async fn spread(
        &mut self,
        mut held_back: Vec<(u64, Option<u64>, RequestId)>,
        now_ms: u64,
    ) {
        held_back.sort_unstable();
        let begun = Instant::now();
        for (_, number, request) in held_back {
            if begun.elapsed() >= SPREAD_TIMEOUT {
                return;
            }
            let services = self.services_of(request);
            let (Some(services), Some(entry)) = (services, self.open.get_mut(&request)) else {
                continue;
            };
            entry.resent_ms = now_ms;
            let account = entry.tracked.account.clone();
            let client = &*self.client;
            let sent = rebroadcast::spread(&services, client, &account, request, number).await;
            if let Err(fault) = sent {
                tracing::warn!(%request, ?fault, "failed to send a transaction to every node");
            }
        }
    }

    /// What may be done for the vault of a request now.
    pub(super) fn services_of(&self, request: RequestId) -> Option<Services> {
        let entry = self.open.get(&request)?;
        let services = self.services.for_vault(entry.tracked.vault).ok()?;
        services.is_lease_fresh().then_some(services)
    }

    /// The outcome of sending a transaction again.
    fn was_sent(&mut self, request: RequestId, sent: Result<Option<String>, Fault>) {
        let first = self.first_pause();
        match sent {
            Ok(in_the_way) => {
                if let Some(entry) = self.open.get_mut(&request) {
                    entry.in_the_way = in_the_way;
                    // A block may have it soon.
                    entry.pause = first;
                    entry.due = Instant::now() + first;
                }
            }
            Err(fault) => {
                tracing::warn!(%request, ?fault, "failed to send a dropped transaction again");
            }
        }
    }
}
