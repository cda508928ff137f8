//! Sends due events, in one process for all: the one that holds the lease.
//!
//! A notice waits in the store until its receiver has said 200, or for three days of tries. The outcome of a try is one
//! commit, with what is sent after it: so an order holds per transfer, also over crashes, and nothing is lost. A crash
//! between the answer and the commit sends the same once more, under the same id.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use covault_core::{
    deposit::{SweepRoute, event::EventId},
    fault::Fault,
};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use reqwest::Url;

use super::{
    attempt::{AttemptEnd, DeliveryAttempt, Destination, pause_ms},
    budget::DeliveryBudget,
    published,
    sender::WebhookSender,
    sign::WebhookKeys,
};
use crate::{
    leases::LeaseScope,
    services::{Services, skip_unreadable},
    store::{KeySpace, Scan, deposit_rows, rows},
};

/// How often it is looked what is due, when nobody says so.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often it is looked for what is due later than anything can be, in milliseconds.
const LATE_INTERVAL_MS: u64 = 60_000;
/// Rows that one scan reads.
const PAGE: usize = 1_000;
/// Pages of what waits that are counted at most; a receiver is one at least.
const MOST_COUNTED_PAGES: usize = 100;
/// Most that is on its way to all receivers: each is a socket, and a question to the resolver.
const MOST_ON_THE_WAY: usize = 256;

pub enum Msg {
    /// It is time to look.
    LookDue,
    /// Something has come to its end.
    Ended {
        destination: Destination,
        id: EventId,
        end: AttemptEnd,
    },
}

/// An event that is not to be begun now.
#[derive(Clone, Copy)]
enum PostponedEvent {
    /// It is on its way.
    OnTheWay {
        /// How often in a row its outcome could not be stored.
        failures: u32,
    },
    /// The outcome of the last attempts could not be stored: it is left alone until then, so that others have their turn.
    Until {
        /// In milliseconds of the monotonic clock.
        at_ms: u64,
        /// How often in a row.
        failures: u32,
    },
}

/// The actor.
pub struct WebhookDelivery;

pub struct DeliveryState {
    services: Arc<Services>,
    /// `None`: this process has no key, and sends nothing.
    means: Option<(Arc<WebhookKeys>, Arc<WebhookSender>)>,
    budgets: HashMap<Destination, DeliveryBudget>,
    held: HashMap<EventId, PostponedEvent>,
    /// How much is on its way.
    on_the_way: usize,
    /// A look was asked for, and not begun yet.
    is_look_due: Arc<AtomicBool>,
    /// The last look had no room for all receivers.
    left_out: bool,
    /// The receiver that the next look begins after, so that each has its turn.
    last_served: Option<Destination>,
    /// Receivers whose address cannot be read, so that it is said once.
    unreadable: HashSet<Destination>,
    /// When the keys were last published, in milliseconds of the monotonic clock, and under which version of the lease.
    published: Option<(u64, u64)>,
    /// When it was last looked for what is due too late, in milliseconds of the monotonic clock.
    looked_late_at_ms: Option<u64>,
    is_failing: bool,
}

#[async_trait]
impl Actor for WebhookDelivery {
    type Msg = Msg;
    type State = DeliveryState;
    type Arguments = Arc<Services>;

    async fn pre_start(
        &self,
        myself: ActorRef<Msg>,
        services: Arc<Services>,
    ) -> Result<DeliveryState, ActorProcessingErr> {
        let parts = &services.webhooks;
        let means = match parts.keys.clone().filter(|_| services.runs_vaults) {
            Some(keys) => Some((keys, Arc::new(WebhookSender::new(parts.rules.clone())?))),
            None => None,
        };
        let state = DeliveryState {
            means,
            budgets: HashMap::new(),
            held: HashMap::new(),
            on_the_way: 0,
            is_look_due: Arc::default(),
            left_out: false,
            last_served: None,
            unreadable: HashSet::new(),
            published: None,
            looked_late_at_ms: None,
            is_failing: false,
            services: Arc::clone(&services),
        };
        let looks = Arc::clone(&state.is_look_due);
        if state.means.is_some() {
            myself.send_interval(INTERVAL, || Msg::LookDue);
            tokio::spawn(async move {
                loop {
                    services.listeners.notices_due.notified().await;
                    // One look is for all that came before it.
                    if looks.swap(true, Ordering::AcqRel) {
                        continue;
                    }
                    if myself.cast(Msg::LookDue).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        state: &mut DeliveryState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Msg::LookDue => {
                state.is_look_due.store(false, Ordering::Release);
                let looked = state.look(&myself).await;
                if let Err(fault) = &looked
                    && !state.is_failing
                {
                    tracing::warn!(?fault, "failed to send webhooks; retrying");
                }
                state.is_failing = looked.is_err();
            }
            Msg::Ended {
                destination,
                id,
                end,
            } => {
                let is_delivered = end == AttemptEnd::Delivered;
                state.ended(destination, id, end);
                // What comes after it is its receiver's, unless others wait for room.
                if is_delivered {
                    let looked = match state.left_out {
                        true => state.look(&myself).await,
                        false => state.look_at(destination, &myself).await,
                    };
                    if let Err(fault) = looked {
                        tracing::debug!(?fault, "failed to send webhooks");
                    }
                }
            }
        }
        Ok(())
    }
}

impl DeliveryState {
    async fn look(&mut self, myself: &ActorRef<Msg>) -> Result<(), Fault> {
        let lease = self.services.held_leases.get(LeaseScope::Webhooks);
        let (Some(lease), Some((keys, sender))) = (lease, self.means.clone()) else {
            self.services.counters.webhooks.lock().waiting = None;
            return Ok(());
        };
        let version = lease.version();
        let services = Arc::new(self.services.with_lease(lease));
        let monotonic_ms = services.monotonic.elapsed_ms();
        let is_known = self.published.is_some_and(|(at_ms, under)| {
            under == version && monotonic_ms.saturating_sub(at_ms) < published::REFRESH_MS
        });
        if !is_known {
            published::publish(&services, &keys).await?;
            self.published = Some((monotonic_ms, version));
        }
        let looks_late = self
            .looked_late_at_ms
            .is_none_or(|at_ms| monotonic_ms.saturating_sub(at_ms) >= LATE_INTERVAL_MS);
        let mut targets = Vec::new();
        let mut next = Some(Scan::prefix(KeySpace::SweepRoute, &[], PAGE));
        while let Some(scan) = next {
            let page = services.store.scan(&scan).await?;
            for (key, row) in &page {
                let Some(destination) = rows::split_sweep_route(key) else {
                    continue;
                };
                let route = rows::decode::<SweepRoute>(&row.value);
                let route = skip_unreadable(route, "where webhooks are sent")?;
                let url = route.and_then(|route| self.url_of(destination, &route));
                targets.extend(url.map(|url| (destination, url)));
            }
            next = scan.rest(&page);
        }
        if looks_late {
            self.looked_late_at_ms = Some(monotonic_ms);
            let waiting = waiting(&services, &targets).await?;
            services.counters.webhooks.lock().waiting = Some(waiting);
        }
        // Where there is no room for all, those that were left out are first the next time.
        let last = self.last_served;
        let first = targets.iter().position(|(of, _)| Some(*of) == last);
        let first = first.map_or(0, |first| first.saturating_add(1));
        let first = first.min(targets.len());
        targets.rotate_left(first);
        self.left_out = false;
        for (destination, url) in targets {
            if self.on_the_way >= MOST_ON_THE_WAY {
                self.left_out = true;
                break;
            }
            let means = (&keys, &sender);
            let target = (destination, &url);
            self.send_due(&services, means, myself, target, looks_late)
                .await?;
            self.last_served = Some(destination);
        }
        Ok(())
    }

    /// Sends one receiver what is due.
    async fn look_at(
        &mut self,
        destination: Destination,
        myself: &ActorRef<Msg>,
    ) -> Result<(), Fault> {
        let lease = self.services.held_leases.get(LeaseScope::Webhooks);
        let (Some(lease), Some((keys, sender))) = (lease, self.means.clone()) else {
            return Ok(());
        };
        let services = Arc::new(self.services.with_lease(lease));
        let (token, network) = destination;
        let key = rows::sweep_route(token, network);
        let route = services.load::<SweepRoute>(&key).await?;
        let url = route.and_then(|(route, _)| self.url_of(destination, &route));
        let Some(url) = url else {
            return Ok(());
        };
        let target = (destination, &url);
        self.send_due(&services, (&keys, &sender), myself, target, false)
            .await
    }

    /// Where a receiver is; `None` when there is none.
    fn url_of(&mut self, destination: Destination, route: &SweepRoute) -> Option<Url> {
        let webhook = route.webhook.as_ref()?;
        match Url::parse(&webhook.0) {
            Ok(url) => {
                self.unreadable.remove(&destination);
                Some(url)
            }
            Err(_) => {
                if self.unreadable.insert(destination) {
                    let (token, network) = destination;
                    tracing::error!(
                        %token, network = network.name(),
                        "the address of a webhook cannot be read: nothing is sent there; set it with covault sweep configure"
                    );
                }
                None
            }
        }
    }

    /// Sends as much as one receiver may get now.
    async fn send_due(
        &mut self,
        services: &Arc<Services>,
        (keys, sender): (&Arc<WebhookKeys>, &Arc<WebhookSender>),
        myself: &ActorRef<Msg>,
        (destination, url): (Destination, &Url),
        looks_late: bool,
    ) -> Result<(), Fault> {
        for (due_ms, id, failures) in self.due(services, destination, looks_late).await? {
            self.held.insert(id, PostponedEvent::OnTheWay { failures });
            self.budgets.entry(destination).or_default().begin();
            self.on_the_way = self.on_the_way.saturating_add(1);
            let attempt = DeliveryAttempt {
                services: Arc::clone(services),
                keys: Arc::clone(keys),
                sender: Arc::clone(sender),
                destination,
                url: url.clone(),
                id,
                due_ms,
            };
            begin(attempt, myself.clone());
        }
        Ok(())
    }

    /// What is due and may be begun now, with how often in a row its outcome could not be stored: no more than the
    /// receiver may get.
    async fn due(
        &self,
        services: &Services,
        destination: Destination,
        looks_late: bool,
    ) -> Result<Vec<(u64, EventId, u32)>, Fault> {
        let budget = self.budgets.get(&destination).copied().unwrap_or_default();
        let free = MOST_ON_THE_WAY.saturating_sub(self.on_the_way);
        let free = free.min(budget.free());
        let mut due = Vec::new();
        if free == 0 {
            return Ok(due);
        }
        let (token, network) = destination;
        let all = deposit_rows::due_notices(token, network);
        // Those on their way are due too, until they have come to their end.
        let limit = free.saturating_add(budget.on_the_way());
        let now_ms = services.now_ms();
        // No pause is longer: a clock that was wrong has said so.
        let latest_ms = now_ms.saturating_add(services.settings.webhook_retry_most_ms);
        let last = deposit_rows::notice_due(token, network, latest_ms, EventId([u8::MAX; 16]));
        let usual = Scan::prefix(all.space, &all.bytes, limit);
        let late = looks_late.then(|| Scan {
            from: Some(last.bytes),
            ..usual.clone()
        });
        for scan in [Some(usual), late].into_iter().flatten() {
            let is_late = scan.from.is_some();
            let mut next = Some(scan);
            while let Some(scan) = next {
                let page = services.store.scan(&scan).await?;
                next = scan.rest(&page);
                for (key, _) in &page {
                    let Some((due_ms, id)) = deposit_rows::due_event(key) else {
                        continue;
                    };
                    if due_ms > now_ms && !is_late {
                        next = None;
                        break;
                    }
                    if let Some(failures) = self.may_begin(id) {
                        due.push((due_ms, id, failures));
                    }
                    if due.len() == free {
                        return Ok(due);
                    }
                }
            }
        }
        Ok(due)
    }

    /// How often in a row the outcome of an event could not be stored; `None` when it is not to be begun now.
    fn may_begin(&self, id: EventId) -> Option<u32> {
        match self.held.get(&id) {
            None => Some(0),
            Some(PostponedEvent::OnTheWay { .. }) => None,
            Some(PostponedEvent::Until { at_ms, failures }) => {
                (self.services.monotonic.elapsed_ms() >= *at_ms).then_some(*failures)
            }
        }
    }

    fn ended(&mut self, destination: Destination, id: EventId, end: AttemptEnd) {
        let before = self.held.remove(&id);
        let success = match end {
            AttemptEnd::Delivered => Some(true),
            AttemptEnd::Refused => Some(false),
            AttemptEnd::NotSent => None,
            AttemptEnd::NotWritten => {
                let failures = match before {
                    Some(PostponedEvent::OnTheWay { failures }) => failures,
                    Some(PostponedEvent::Until { .. }) | None => 0,
                };
                let pause_ms = pause_ms(&self.services, failures);
                let held = PostponedEvent::Until {
                    at_ms: self
                        .services
                        .monotonic
                        .elapsed_ms()
                        .saturating_add(pause_ms),
                    failures: failures.saturating_add(1),
                };
                self.held.insert(id, held);
                None
            }
        };
        self.on_the_way = self.on_the_way.saturating_sub(1);
        self.budgets.entry(destination).or_default().end(success);
    }
}

/// How many events are due or wait for their next try. Those of tokens without a webhook wait for nothing.
async fn waiting(services: &Services, targets: &[(Destination, Url)]) -> Result<u64, Fault> {
    let (mut waiting, mut pages) = (0_u64, 0_usize);
    for ((token, network), _) in targets {
        let all = deposit_rows::due_notices(*token, *network);
        let mut next = Some(Scan::prefix(all.space, &all.bytes, PAGE));
        while let Some(scan) = next {
            if pages >= MOST_COUNTED_PAGES {
                return Ok(waiting);
            }
            pages = pages.saturating_add(1);
            let page = services.store.scan(&scan).await?;
            waiting = waiting.saturating_add(u64::try_from(page.len()).unwrap_or(u64::MAX));
            next = scan.rest(&page);
        }
    }
    Ok(waiting)
}

/// Sends one event, and tells the actor its outcome.
fn begin(attempt: DeliveryAttempt, myself: ActorRef<Msg>) {
    let (destination, id) = (attempt.destination, attempt.id);
    let told = EndToBeTold {
        myself,
        destination,
        id,
        // Also when it panics: its place must be given back.
        end: AttemptEnd::NotWritten,
    };
    tokio::spawn(async move {
        // All of it, and not its field alone, is of this task.
        let mut told = told;
        told.end = attempt.run().await.unwrap_or_else(|fault| {
            tracing::warn!(%id, ?fault, "failed to store the outcome of a webhook; it is sent again");
            AttemptEnd::NotWritten
        });
    });
}

/// Tells the actor the outcome of a try, once it is dropped.
struct EndToBeTold {
    myself: ActorRef<Msg>,
    destination: Destination,
    id: EventId,
    end: AttemptEnd,
}

impl Drop for EndToBeTold {
    fn drop(&mut self) {
        let Self {
            myself,
            destination,
            id,
            end,
        } = self;
        // It may have ended.
        let _ = myself.cast(Msg::Ended {
            destination: *destination,
            id: *id,
            end: *end,
        });
    }
}
