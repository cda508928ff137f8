//! How a vault that starts takes up the requests that were live before.
//!
//! They may be a hundred thousand: the vault reads them page by page, in tasks beside it, and answers calls in
//! between. First all get their places in the queues of their accounts, in the order of creation; then they get
//! actors, so many at a time.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use covault_core::{
    fault::Fault,
    ids::RequestId,
    networks::Payload,
    request::{RequestEffect, SigningRequest},
};

use super::{
    Msg, VaultState, parties,
    permit::{inputs, signing_parties},
    requests::ActorFailures,
};
use crate::{
    chain_rpc::ChainWait,
    process::{
        limits::{LimitedParty, Share, SigningParty},
        mailbox::ActorMailbox,
        tasks::contained,
    },
    requests::{account::ChainAccount, tx_builder},
    services::{Services, skip_unreadable},
    store::{KeySpace, Scan, rows},
};

/// Requests that are read at once.
const PAGE: usize = 512;
/// Unsigned requests of the vault beyond which the rest waits for those that have actors.
const AT_ONCE: usize = 1_000;
/// This many get actors in each round anyway: those that have one may wait for an unreachable chain.
const NEVERTHELESS: usize = 4;
/// How long it is waited then.
const PAUSE: Duration = Duration::from_millis(100);

/// A step of it.
pub enum ResumeStep {
    /// A page of live requests was read, and what is to be read next.
    Found(Result<(Vec<LiveRequest>, Option<Scan>), Fault>),
    /// These were read, and wait in this way until they have actors.
    Loaded(Result<Vec<ReadRequest>, Fault>, Vec<UnstartedRequest>),
}

/// A request, and what is stored of it with the version of its row.
type ReadRequest = (RequestId, Option<(SigningRequest, u64)>);

/// A request of which something is still to be done.
pub struct LiveRequest {
    failures: u32,
    request: SigningRequest,
}

/// A request that waits for an actor, and counts for how long new ones have to wait: it may come at any time.
pub struct UnstartedRequest {
    id: RequestId,
    /// Among those that are not signed.
    _unsigned: Option<Share<SigningParty>>,
    _ready: Option<Share<SigningParty>>,
    /// Among those that wait for what their chain's nodes say.
    _chain_wait: Option<ChainWait>,
}

/// How far it has got.
pub(super) struct ResumeProgress {
    /// Those that wait for an actor, in the order of creation.
    waiting: VecDeque<UnstartedRequest>,
    /// Those that have come since the vault started: they are not among those that it looks for.
    admitted: HashSet<RequestId>,
    /// Those of them that need turns: the queues are not complete yet.
    behind: Option<Vec<(ChainAccount, RequestId)>>,
}

impl ResumeProgress {
    /// Nothing was looked for yet.
    pub(super) fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            admitted: HashSet::new(),
            behind: Some(Vec::new()),
        }
    }
}

impl VaultState {
    pub(super) fn begin_resumption(&self, myself: &ActorMailbox<Msg>) {
        let all = Scan::prefix(KeySpace::Outbox, self.vault.id.as_bytes(), PAGE);
        self.find_more(myself, all);
    }

    /// A new request queues up, once all that come before it have.
    pub(super) fn queue_up(&mut self, request: RequestId, account: Option<ChainAccount>) {
        let resuming = self.resuming.as_mut();
        let behind = resuming.and_then(|resuming| {
            resuming.admitted.insert(request);
            resuming.behind.as_mut()
        });
        match (account, behind) {
            (Some(account), Some(behind)) => behind.push((account, request)),
            (Some(account), None) => self.account_queues.join(account, request),
            (None, _) => {}
        }
    }

    /// Whether earlier requests of a request's account have no actor yet, or were not found yet.
    pub(super) fn waits_for_resumption(&self, request: RequestId) -> bool {
        let Some(resuming) = &self.resuming else {
            return false;
        };
        let behind = resuming.behind.as_ref();
        let has_none = |other: &RequestId| !self.requests.contains_key(other);
        behind.is_some_and(|behind| behind.iter().any(|(_, other)| *other == request))
            || self.account_queues.is_behind(request, has_none)
    }

    /// Whether earlier requests may still be found.
    pub(super) fn looks_for_requests(&self) -> bool {
        let resuming = self.resuming.as_ref();
        resuming.is_some_and(|resuming| resuming.behind.is_some())
    }

    pub(super) async fn resume_requests(
        &mut self,
        myself: &ActorMailbox<Msg>,
        step: ResumeStep,
    ) -> Result<(), Fault> {
        match step {
            ResumeStep::Found(page) => {
                let (page, next) = page?;
                self.found(page).await;
                match next {
                    Some(next) => self.find_more(myself, next),
                    None => {
                        self.all_found();
                        self.load_more(myself);
                    }
                }
            }
            // What is started counts by itself.
            ResumeStep::Loaded(page, _unstarted) => {
                for (id, found) in page? {
                    if self.requests.contains_key(&id) {
                        continue;
                    }
                    self.go_on_with(myself, id, found).await?;
                }
                self.load_more(myself);
            }
        }
        Ok(())
    }

    fn find_more(&self, myself: &ActorMailbox<Msg>, scan: Scan) {
        let services = Arc::clone(&self.services);
        let actor = myself.clone();
        tokio::spawn(async move {
            let page = contained(find(&services, scan)).await;
            let _ = actor.cast(Msg::Resuming(ResumeStep::Found(page)));
        });
    }

    async fn found(&mut self, page: Vec<LiveRequest>) {
        for LiveRequest { failures, request } in page {
            let id = request.id;
            let admitted = |resuming: &ResumeProgress| resuming.admitted.contains(&id);
            if self.resuming.as_ref().is_some_and(admitted) {
                continue;
            }
            if request.state.is_over() {
                // Its transaction is all that is left to do.
                self.follow(&request).await;
                continue;
            }
            if failures > 0 {
                self.failures.insert(id, ActorFailures::counted(failures));
            }
            // What is wrong with one is told when it gets an actor.
            if let Ok(Some(account)) = self.account_queue_of(&request).await {
                self.account_queues.join(account, id);
            }
            let unstarted = self.unstarted(&request).await;
            if let Some(resuming) = &mut self.resuming {
                resuming.waiting.push_back(unstarted);
            }
        }
    }

    async fn unstarted(&self, request: &SigningRequest) -> UnstartedRequest {
        let effect = request.state.effect();
        let parties = parties(request);
        let is_unsigned = matches!(effect, Some(RequestEffect::Prepare | RequestEffect::Sign));
        let services = &self.services;
        let queue = contained(async {
            let payload = Payload::decode(&request.payload).map_err(Fault::bug)?;
            let queries = tx_builder::queries(services, request.network, &payload);
            let asks = tx_builder::local_chain_data(services, &payload, &queries).is_none();
            let queue = services.chains.queue(request.network, payload.chain_id());
            Ok(queue.filter(|_| asks).cloned())
        });
        let queue = match effect {
            Some(RequestEffect::Prepare) => queue.await.ok().flatten(),
            _ => None,
        };
        UnstartedRequest {
            id: request.id,
            _unsigned: is_unsigned.then(|| {
                let unsigned = &services.limits.unsigned;
                unsigned.retake(&signing_parties(request), inputs(request))
            }),
            _ready: (is_unsigned && queue.is_none()).then(|| {
                let ready = &services.limits.ready;
                ready.retake(&signing_parties(request), inputs(request))
            }),
            _chain_wait: queue.map(|queue| queue.enter(&parties)),
        }
    }

    fn all_found(&mut self) {
        let resuming = self.resuming.as_mut();
        let behind = resuming.and_then(|resuming| resuming.behind.take());
        for (account, request) in behind.into_iter().flatten() {
            if self.requests.contains_key(&request) {
                self.account_queues.join(account, request);
            }
        }
    }

    /// Reads the next ones, as far as there is room for their actors.
    fn load_more(&mut self, myself: &ActorMailbox<Msg>) {
        let Some(resuming) = &mut self.resuming else {
            return;
        };
        if resuming.waiting.is_empty() {
            self.resuming = None;
            return;
        }
        let live = &self.services.limits.live;
        let held = live.held(&LimitedParty::Vault(self.vault.id));
        let room = AT_ONCE.saturating_sub(held).clamp(NEVERTHELESS, PAGE);
        let next: Vec<_> = resuming
            .waiting
            .drain(..room.min(resuming.waiting.len()))
            .collect();
        let services = Arc::clone(&self.services);
        let actor = myself.clone();
        tokio::spawn(async move {
            if room == NEVERTHELESS {
                tokio::time::sleep(PAUSE).await;
            }
            let ids = next.iter().map(|unstarted| unstarted.id).collect();
            let loaded = contained(load(&services, ids)).await;
            let _ = actor.cast(Msg::Resuming(ResumeStep::Loaded(loaded, next)));
        });
    }
}

/// A page of the requests of which something is still to be done, in the order of creation. What cannot be read is
/// left alone: nothing can be done for it.
async fn find(services: &Services, scan: Scan) -> Result<(Vec<LiveRequest>, Option<Scan>), Fault> {
    let page = services.store.scan(&scan).await?;
    let ids = page.iter().filter_map(|(key, row)| {
        let row = rows::decode::<rows::OutboxRow>(&row.value).ok();
        let failures = row.map_or(0, |row| row.failures);
        Some((rows::outbox_request(key)?, failures))
    });
    let ids: Vec<_> = ids.collect();
    let keys: Vec<_> = ids.iter().map(|(id, _)| rows::request(*id)).collect();
    let requests = services.load_all::<SigningRequest>(&keys).await?;
    let mut found = Vec::with_capacity(ids.len());
    for ((id, failures), request) in ids.into_iter().zip(requests) {
        let request = skip_unreadable(request, format_args!("request {id}"))?;
        if let Some(request) = request.flatten() {
            found.push(LiveRequest { failures, request });
        }
    }
    found.sort_by_key(|found| (found.request.created_at_ms, found.request.id));
    Ok((found, scan.rest(&page)))
}

async fn load(services: &Services, ids: Vec<RequestId>) -> Result<Vec<ReadRequest>, Fault> {
    let keys: Vec<_> = ids.iter().map(|id| rows::request(*id)).collect();
    let mut found = services.store.get_all(&keys).await?;
    let loaded = ids.into_iter().zip(keys).map(|(id, key)| {
        let row = found.remove(&key);
        let decoded = row.map(|row| Ok((rows::decode(&row.value)?, row.version)));
        let found = skip_unreadable(decoded.transpose(), format_args!("request {id}"))?;
        Ok((id, found.flatten()))
    });
    loaded.collect()
}
