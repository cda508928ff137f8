//! Sends what nodes have lost once more.

use std::collections::HashMap;

use covault_core::{fault::Fault, ids::RequestId, networks::Resource};
use tokio::time::Instant;

use super::Pump;
use crate::{
    account::ChainAccount,
    requests::rebroadcast::{self, SentAgain},
    services::Services,
};

impl Pump {
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

    /// What may be done for the vault of a request now.
    pub(super) fn services_of(&self, request: RequestId) -> Option<Services> {
        let entry = self.open.get(&request)?;
        let services = self.services.for_vault(entry.tracked.vault).ok()?;
        services.is_lease_fresh().then_some(services)
    }

    /// What came of sending a transaction again.
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
