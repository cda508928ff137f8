//! Follows the audit logs of all vaults while there are listeners.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use covault_core::{
    audit::{AuditChain, AuditEntry, ChainHead, LinkedEntry},
    fault::Fault,
    ids::{RequestId, VaultId},
    port::random_16,
    request::SigningRequest,
};
use tokio::time::{Instant, sleep, timeout};

use super::{Change, ChangeHub, ChangeProgress, RecentChanges};
use crate::{
    audit::{self, AuditLog},
    lists::READ_CHUNK,
    services::{Services, skip_unreadable},
    store::{KeySpace, Scan, rows},
};

/// What changes in this time is told together: of one request the newest state only.
const TICK: Duration = Duration::from_millis(50);
/// How often it looks whether other processes have written.
const LOOK: Duration = Duration::from_millis(100);
/// The same where there can be none.
const LOOK_ALONE: Duration = Duration::from_secs(5);
/// Before it begins again when the store cannot be read.
const RETRY: Duration = Duration::from_secs(1);
/// Changes from this many milliseconds before the start are kept too: listeners of the previous process reconnect.
const PRELOAD_MS: u64 = super::MARGIN_MS + 60_000;
/// Of one vault no more entries than about this.
const PRELOAD_ENTRIES: u64 = 4_096;
/// Logs that are looked at in one question.
const HEADS: usize = 500;
/// How far back the first look goes for the entries since a time; then twice as far each time.
const FIRST_STRIDE: u64 = 256;

/// Follows as long as there are listeners, and waits for the next ones.
pub async fn run(services: Arc<Services>, hub: Arc<ChangeHub>) {
    loop {
        hub.heard().await;
        let followed = match ChangeFollower::begin(&services, &hub).await {
            Ok(mut follower) => follower.follow().await,
            Err(fault) => Err(fault),
        };
        if let Err(fault) = followed {
            tracing::warn!(
                ?fault,
                "changes of requests cannot be followed; trying again"
            );
            sleep(RETRY).await;
        }
    }
}

struct ChangeFollower<'a> {
    services: &'a Services,
    hub: &'a ChangeHub,
    /// The number up to which each vault's log was read.
    read: HashMap<VaultId, u64>,
    /// The last entry of the service's log.
    service: u64,
    /// All logs are to be looked at.
    all_due: bool,
}

impl<'a> ChangeFollower<'a> {
    /// Finds where to begin in each log.
    async fn begin(services: &'a Services, hub: &'a ChangeHub) -> Result<Self, Fault> {
        // What is written from now on is told, or found.
        hub.active.store(true, Ordering::SeqCst);
        let now_ms = services.now_ms();
        let from_ms = now_ms.saturating_sub(PRELOAD_MS);
        let [a, b, c, d, e, f, g, h, ..] = random_16(&*services.entropy);
        let mut followed = RecentChanges {
            id: u64::from_be_bytes([a, b, c, d, e, f, g, h]).max(1),
            first: 0,
            kept: VecDeque::new(),
            visible: 0,
            complete_from_ms: from_ms,
            safe_ms: from_ms,
            last_ms: HashMap::new(),
            service: 0,
        };
        let mut follower = Self {
            services,
            hub,
            read: HashMap::new(),
            service: 0,
            all_due: false,
        };
        let mut next = Some(Scan::prefix(KeySpace::AuditHead, &[], HEADS));
        while let Some(scan) = next {
            let page = services.store.scan(&scan).await?;
            let heads = page
                .iter()
                .filter_map(|(key, row)| head(key, &row.value))
                .collect::<Vec<_>>();
            let last = |(chain, number): &(AuditChain, u64)| rows::audit_entry(*chain, *number);
            let keys: Vec<_> = heads.iter().map(last).collect();
            let entries = services.store.get_all(&keys).await?;
            for ((chain, number), key) in heads.into_iter().zip(keys) {
                let AuditChain::Vault(vault) = chain else {
                    follower.service = number;
                    continue;
                };
                let entry = entries.get(&key);
                let at_ms = entry.and_then(|row| time_of(number, row.value.clone()));
                let at_ms = at_ms.unwrap_or(now_ms);
                followed.last_ms.insert(vault, at_ms);
                let begins = if at_ms < from_ms {
                    number
                } else {
                    let (begins, capped_ms) =
                        before(services, chain, number, from_ms, PRELOAD_ENTRIES).await?;
                    if let Some(capped_ms) = capped_ms {
                        let complete = capped_ms.saturating_add(1);
                        followed.complete_from_ms = followed.complete_from_ms.max(complete);
                    }
                    begins
                };
                follower.read.insert(vault, begins);
                if begins < number {
                    hub.written.lock().insert(chain);
                }
            }
            next = scan.rest(&page);
        }
        followed.service = follower.service;
        *hub.followed.write() = Some(followed);
        Ok(follower)
    }

    async fn follow(&mut self) -> Result<(), Fault> {
        let hub = self.hub;
        let alone = self.services.store.exclusive();
        let mut looked = Instant::now();
        loop {
            let began = Instant::now();
            let is_behind = match self.step().await {
                Ok(is_behind) => is_behind,
                Err(fault) => {
                    tracing::warn!(?fault, "failed to read changes of requests; retrying");
                    self.all_due = true;
                    sleep(RETRY).await;
                    continue;
                }
            };
            if hub.end_unheard() {
                return Ok(());
            }
            // Many logs must not keep the store busy.
            let busy = began.elapsed().saturating_mul(4);
            let look = if alone { LOOK_ALONE } else { LOOK.max(busy) };
            let told = if is_behind {
                tokio::task::yield_now().await;
                true
            } else {
                sleep(TICK).await;
                let pause = look.saturating_sub(looked.elapsed());
                timeout(pause, hub.wake.notified()).await.is_ok()
            };
            if !told || looked.elapsed() >= look {
                self.all_due = true;
                looked = Instant::now();
            }
        }
    }

    /// Reads what is new, a page of each log, and lets listeners have it: a log that grows faster than it is read keeps
    /// none of the others waiting. True when there is more.
    async fn step(&mut self) -> Result<bool, Fault> {
        let (services, hub) = (self.services, self.hub);
        let safe_ms = services.now_ms();
        let mut behind = std::mem::take(&mut *hub.written.lock());
        let service_due = behind.remove(&AuditChain::Service) || self.all_due;
        if self.all_due {
            let mut next = Some(Scan::prefix(KeySpace::AuditHead, &[], HEADS));
            while let Some(scan) = next {
                let page = services.store.scan(&scan).await?;
                for (chain, number) in page.iter().filter_map(|(key, row)| head(key, &row.value)) {
                    if let AuditChain::Vault(vault) = chain
                        && number > self.read.get(&vault).copied().unwrap_or(0)
                    {
                        behind.insert(chain);
                    }
                }
                next = scan.rest(&page);
            }
        }
        let mut more = BTreeSet::new();
        for chain in behind {
            if let AuditChain::Vault(vault) = chain
                && self.read_on(vault).await?
            {
                more.insert(chain);
            }
        }
        // After the changes: who has a change of after a token was revoked knows that as well.
        if service_due {
            let head = AuditLog(&*services.store).head(AuditChain::Service).await?;
            self.service = head.map_or(self.service, |head| head.number);
        }
        self.all_due = false;
        let is_behind = !more.is_empty();
        if is_behind {
            // What is told next is as late as it: tokens are looked at again.
            more.insert(AuditChain::Service);
            hub.written.lock().append(&mut more);
        }
        if let Some(followed) = &mut *hub.followed.write() {
            followed.visible = followed.next();
            if !is_behind {
                followed.safe_ms = safe_ms;
            }
            followed.service = self.service;
            let new = ChangeProgress {
                follower: followed.id,
                next: followed.visible,
                service: followed.service,
            };
            hub.news
                .send_if_modified(|news| std::mem::replace(news, new) != new);
        }
        Ok(is_behind)
    }

    /// Reads a page more of the log of a vault. True when there may be another one.
    async fn read_on(&mut self, vault: VaultId) -> Result<bool, Fault> {
        let services = self.services;
        let chain = AuditChain::Vault(vault);
        let read = self.read.get(&vault).copied().unwrap_or(0);
        let log = AuditLog(&*services.store);
        let page = log.entries(chain, read.saturating_add(1)).await?;
        let Some((last, _)) = page.last() else {
            return Ok(false);
        };
        let (last, is_whole) = (*last, page.len() == audit::PAGE);
        let (touched, last_ms) = touched(page, 0);
        let changes = changes(services, vault, touched).await?;
        if let Some(followed) = &mut *self.hub.followed.write() {
            let safe_ms = followed.safe_ms;
            for (at_ms, data) in changes {
                followed.keep(Change {
                    vault,
                    data,
                    at_ms,
                    safe_ms,
                });
            }
            let last = followed.last_ms.entry(vault).or_default();
            *last = last_ms.max(*last);
        }
        self.read.insert(vault, last);
        Ok(is_whole)
    }
}

fn head(key: &crate::store::Key, value: &[u8]) -> Option<(AuditChain, u64)> {
    let chain = rows::audit_chain(key)?;
    let head: ChainHead = rows::decode(value).ok()?;
    Some((chain, head.number))
}

fn time_of(number: u64, row: Vec<u8>) -> Option<u64> {
    let LinkedEntry { body, .. } = audit::decode_linked(number, row);
    AuditEntry::decode(&body).map(|entry| entry.at_ms)
}

/// The requests that entries of a log are about, from a time on, each with its last one's time, in the order of these;
/// and when the last of all entries was. Times are in milliseconds since the Unix epoch.
pub(super) fn touched(page: Vec<(u64, LinkedEntry)>, from_ms: u64) -> (Vec<(RequestId, u64)>, u64) {
    let mut last: HashMap<RequestId, (u64, u64)> = HashMap::new();
    let mut last_ms = 0;
    for (number, LinkedEntry { body, .. }) in page {
        let Some(entry) = AuditEntry::decode(&body) else {
            continue;
        };
        last_ms = entry.at_ms;
        let request = entry.subject.strip_prefix("request:");
        if let Some(request) = request.and_then(|id| id.parse().ok())
            && entry.at_ms >= from_ms
        {
            last.insert(request, (number, entry.at_ms));
        }
    }
    let mut touched: Vec<_> = last.into_iter().collect();
    touched.sort_unstable_by_key(|(_, (number, _))| *number);
    let touched = touched.into_iter();
    (
        touched.map(|(id, (_, at_ms))| (id, at_ms)).collect(),
        last_ms,
    )
}

/// What is told of requests, as they are now: the time of each change, and its JSON.
pub(super) async fn changes(
    services: &Services,
    vault: VaultId,
    touched: Vec<(RequestId, u64)>,
) -> Result<Vec<(u64, String)>, Fault> {
    let mut changes = Vec::with_capacity(touched.len());
    for chunk in touched.chunks(READ_CHUNK) {
        let keys: Vec<_> = chunk.iter().map(|(id, _)| rows::request(*id)).collect();
        let found = services.load_all::<SigningRequest>(&keys).await?;
        for ((id, at_ms), found) in chunk.iter().zip(found) {
            let found = skip_unreadable(found, format_args!("request {id}"))?.flatten();
            // Whose log it is decides who hears of it.
            let Some(request) = found.filter(|request| request.vault == vault) else {
                continue;
            };
            let change = request.change(*at_ms, services.now_ms());
            changes.push((*at_ms, serde_json::to_string(&change).map_err(Fault::bug)?));
        }
    }
    Ok(changes)
}

/// A number behind which all entries of a log lie that are of a time or later, in milliseconds since the Unix epoch;
/// some are older. It goes back by about `most` entries; where that is not far enough, also the time of the last one
/// that it has looked at.
pub(super) async fn before(
    services: &Services,
    chain: AuditChain,
    last: u64,
    from_ms: u64,
    most: u64,
) -> Result<(u64, Option<u64>), Fault> {
    let (mut number, mut stride) = (last, FIRST_STRIDE);
    loop {
        number = number.saturating_sub(stride);
        if number == 0 {
            return Ok((0, None));
        }
        let row = services
            .store
            .get(&rows::audit_entry(chain, number))
            .await?;
        let at_ms = row.and_then(|row| time_of(number, row.value));
        match at_ms {
            Some(at_ms) if at_ms < from_ms => return Ok((number, None)),
            // One that cannot be read says nothing of those before it.
            Some(at_ms) if last.saturating_sub(number) >= most => return Ok((number, Some(at_ms))),
            _ => stride = stride.saturating_mul(2),
        }
    }
}
